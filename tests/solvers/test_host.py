"""What the host does in float64. The active set method by itself: every constraint, singular and indefinite matrices,
slow cases of pair steps. The certificate: what it evaluates, and what it leaves."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer

from clsvm import problem as posed
from clsvm.problem import Constraint, Problem
from clsvm.solvers import active_set, certificate
from clsvm.solvers.result import Settings
from clsvm.threads import one_thread
from tests.conftest import calls_of

TOL = 1e-6


@pytest.fixture(autouse=True)
def one() -> Iterator[None]:
    """Linear algebra as fits have it: several threads for what is small take many times as long beside other work."""
    with one_thread():
        yield


def rows(n: int = 60, d: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0)


X, SIGNS = rows()
K = np.exp(-cdist(X, X, "sqeuclidean"))
TARGETS = X[:, 1] + np.sin(3 * X[:, 0])
ONES = np.ones(60)
PROBLEMS = {
    "classes": posed.c_svc(SIGNS[None], 10 * ONES[None]),
    "weights of 0": posed.c_svc(SIGNS[None], np.resize([0.0, 0.5, 2.0], (1, 60))),
    "no offset": posed.c_svc(SIGNS[None], 10 * ONES[None], bias=False),
    "several sums": posed.c_svc(np.stack([SIGNS, np.roll(SIGNS, 7)]), np.stack([ONES, 5 * ONES])),
    "regression": posed.epsilon_svr(TARGETS, 20 * ONES, 0.1),
    "regression, no offset": posed.epsilon_svr(TARGETS, 20 * ONES, 0.1, bias=False),
    "one class": posed.one_class(0.3, ONES),
    "nu": posed.nu_svc(SIGNS, 0.4, ONES),
    "nu, regression": posed.nu_svr(TARGETS, 20 * ONES, 0.3),
    "coupled": posed.crammer_singer(np.arange(60) % 3, 2 * ONES, 3),
}


def assert_feasible(problem: Problem, b: Any, slack: float = 0.0) -> None:
    assert (b >= problem.lo - slack).all()
    assert (b <= problem.hi + slack).all()
    sums = np.bincount(problem.group.ravel(), b.ravel())[: len(problem.totals)]
    np.testing.assert_allclose(sums, problem.totals, atol=1e-12 * max(1.0, float(problem.hi.max())))


def solved(K: Any, problem: Problem, tol: float = TOL) -> active_set.ActiveSetResult:
    start = np.zeros(problem.q.shape) if problem.start is None else problem.start
    found = active_set.solve(K, problem, start, tol)
    assert_feasible(problem, found.b)
    np.testing.assert_allclose(found.f, found.b @ K + problem.q, rtol=1e-12, atol=1e-12 * np.abs(found.f).max())
    assert found.violation == certificate.of(problem, found.b, found.f).violation
    return found


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_constraint(name: str) -> None:
    """For K, where the bounds alone decide, where all rows are one, and at a stationary point of an indefinite K."""
    problem, tilted = PROBLEMS[name], np.tanh(X @ X.T - 1)
    assert np.linalg.eigvalsh(tilted)[0] < -0.1
    times = problem.q.shape[1] // len(K)  # (nu-SVR's rows are there twice)
    for values in (K, np.zeros_like(K), np.ones_like(K), tilted):
        assert solved(np.tile(values, (times, times)), problem).violation <= TOL


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_a_start_is_made_into_is_feasible(name: str) -> None:
    """Whatever comes in, and what is so already stays."""
    problem = PROBLEMS[name]
    for seed, size in enumerate((0, 1, 1, 2, 2, 9)):
        b = problem.feasible(size * np.random.default_rng(seed).normal(size=problem.q.shape))
        assert_feasible(problem, b, slack=1e-12)
        np.testing.assert_allclose(problem.feasible(b), b, atol=1e-12)
        assert not size or np.abs(b).sum() > 0


def test_most_of_what_joins_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that join and come back to a bound cost a solve each: there were 10280 where twice as many always joined."""
    descents = calls_of(monkeypatch, active_set, "_descend")
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(800, 6))
    signs = np.where(np.sin(2 * Z[:, 0]) + Z[:, 1] * Z[:, 2] + 0.3 * rng.normal(size=800) > 0, 1.0, -1.0)
    found = solved(np.exp(-0.3 * cdist(Z, Z, "sqeuclidean")), posed.c_svc(signs[None], np.full((1, 800), 1e3)), 1e-3)
    assert found.violation <= 1e-3
    assert sum(call.result[1] for call in descents) < 800


def test_it_ends_when_it_is_told_to_or_cannot_go_on() -> None:
    problem, seen = PROBLEMS["classes"], list[active_set.ActiveSetResult]()

    def twice(found: active_set.ActiveSetResult) -> bool:
        seen.append(found)
        return len(seen) < 2

    found = active_set.solve(K, problem, np.zeros((1, 60)), TOL, twice)
    assert len(seen) == 2
    assert found.violation > TOL
    best = active_set.solve(K, problem, np.zeros((1, 60)), 0.0)
    assert 0 <= best.violation < 1e-10


@pytest.mark.parametrize("seed", range(4))
def test_nothing_stands_still_short_of_the_optimum(seed: int) -> None:
    """Rows that occur several times, bounds that meet all at once: whatever joins is held at once, unless care is
    taken, and what rounding of a sum leaves of a coefficient is in the way of all others."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        n, d = int(rng.choice([5, 20, 60])), int(rng.integers(1, 4))
        Z = np.round(rng.normal(size=(n, d)), int(rng.integers(0, 3)))
        values = np.exp(-0.3 * cdist(Z, Z, "sqeuclidean")) if rng.random() < 0.5 else Z @ Z.T
        weights = np.ones(n) if rng.random() < 0.5 else rng.choice([0.0, 0.5, 1, 3], size=n)
        weights[0] = 1.0
        C, signs, numbers = float(rng.choice([0.1, 1, 100])), rng.choice([-1.0, 1], size=n), rng.normal(size=n)
        for problem in (
            posed.c_svc(signs[None], C * weights[None]),
            posed.epsilon_svr(numbers, C * weights, 0.1),
            posed.one_class(float(rng.choice([0.1, 0.5, 1])), weights),
        ):
            start = np.zeros(problem.q.shape) if problem.start is None else problem.start
            assert active_set.solve(values, problem, start, 1e-4).violation <= 1e-4


def test_what_was_found_is_what_has_the_lowest_dual() -> None:
    """Where it is stopped half-way: the violation rises at first while the dual falls."""
    data: Any = load_breast_cancer()
    Z = data.data - data.data.mean(axis=0)
    problem = posed.c_svc(np.where(data.target == 1, 1.0, -1.0)[None], np.ones((1, len(Z))))
    levels = []
    for most in (0, 10, 50, 100):
        found = active_set.solve(Z @ Z.T, problem, np.zeros((1, len(Z))), TOL, most=most)
        assert found.steps <= most
        levels.append(float((found.b * (found.f + problem.q)).sum()) / 2)
    assert sorted(levels, reverse=True) == levels
    assert levels[1] < 0 == levels[0]


N, WITHIN = 40, 1e-3


class Asked(certificate.Check):
    """The check of f (1, n), which is ``true`` within ``bound``, one number or one for each row. rows: those asked."""

    def __init__(self, true: Any, q: Any, bound: Any, sizes: Any = None, objective: bool = True) -> None:
        self.rows: list[NDArray[np.intp]] = []
        given: dict[str, Any] = {"sizes": sizes, "reported": objective}
        given["exact"] = lambda at, b: self.rows.append(at) or (true - q)[:, at]
        super().__init__("float32", Settings(TOL, **given))
        self.error_bounds = lambda b: np.array(np.broadcast_to(bound, b.shape[1]), np.float64)  # type: ignore[method-assign]


def on_the_margin(n: int, free: NDArray[np.bool_]) -> tuple[Problem, NDArray[Any], NDArray[Any]]:
    """A problem, b and f (1, n): coefficients are ``free``, or at a bound by a wide margin."""
    signs = np.tile([1.0, -1.0], n // 2)
    problem = Problem(np.minimum(signs, 0)[None], np.maximum(signs, 0)[None], -signs[None])
    return problem, np.where(free, signs / 2, signs)[None], np.where(free, 0.0, -signs)[None]


def test_the_sum_is_kept_beside_coefficients_near_their_bounds() -> None:
    """Coefficients count as at a bound within the sum's rounding error. The sum is of those that there are."""
    C, near = 5e7, 3e-6
    b = np.array([[C / 3, C / 3, C / 3, C - near, C - near, -C + near, -C, -C]])
    problem = posed.c_svc(np.sign(b), np.full(b.shape, C))
    state = active_set._State(np.eye(8), problem, b + 1e-3 * (np.arange(8) == 0))
    state.refresh()
    assert abs(state.b.sum()) < 1e-6


@pytest.mark.parametrize(("error", "gap", "rows"), [(1e-4, False, N), (1e-2, False, N // 4), (1e-2, True, N)])
def test_rows_of_the_objective_are_left_where_the_violation_is_beyond_tol(error: float, gap: bool, rows: int) -> None:
    """A quarter of the coefficients is free and decides the violation; the others are at a bound, by a wide margin."""
    free = np.arange(N) < N // 4
    problem, b, f = on_the_margin(N, free)
    true = f + error * np.random.default_rng(0).uniform(-1, 1, (1, N))
    check = Asked(true, problem.q, WITHIN)
    violation, looked, found = check(problem, b, f, 0.0, WITHIN, gap)
    some = np.concatenate(check.rows)
    assert looked.sum() == rows == len(some)
    assert set(np.flatnonzero(free)) == set(check.rows[0])
    assert (violation > WITHIN) == (error > WITHIN)
    np.testing.assert_allclose(found[0, some], true[0, some], atol=1e-12)
    alone = Asked(true, problem.q, WITHIN, objective=False)(problem, b, f, 0.0, WITHIN, gap)
    assert alone[0] == violation
    assert alone[1].sum() == (N if gap else N // 4)  # (an objective that nobody asks for has no rows)


def random_state(rng: np.random.Generator) -> tuple[Problem, NDArray[Any], NDArray[Any]]:
    signs = rng.choice([-1.0, 1.0], N)
    lo, hi = np.minimum(signs, 0)[None], np.maximum(signs, 0)[None]
    b = np.clip(signs * rng.choice([0.0, 0.3, 1.0], N), lo, hi)
    return Problem(lo, hi, -signs[None], Constraint.BIAS, 0.0), b, rng.uniform(-3e-3, 3e-3, (1, N))


@pytest.mark.parametrize(("constraint", "tol"), [(Constraint.BIAS, 5.5 * WITHIN), (Constraint.NONE, 3 * WITHIN)])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_s_own_bound(seed: int, constraint: Constraint, tol: float) -> None:
    """Without the rows that are left, the violation is on the same side of tol, but for what a small bound may hide; no
    row of a small bound is asked for on its account."""
    rng = np.random.default_rng(seed)
    problem, b, f = random_state(rng)
    problem = replace(problem, constraint=constraint)
    bound = np.where(rng.random(N) < 0.5, WITHIN / 20, WITHIN)
    true = f + bound * rng.uniform(-1, 1, (1, N))
    worst = certificate.of(problem, b, f).violation
    if worst + 2 * bound.max() <= tol:
        pytest.skip("nothing is asked for")
    check = Asked(true, problem.q, bound)
    found = check(problem, b, f, worst, tol).violation
    truth, hidden = certificate.of(problem, b, true).violation, 2 * WITHIN / 20
    assert (bound[check.rows[0]] == WITHIN).all()
    assert truth <= tol + hidden if found <= tol else truth > tol - hidden


def test_rounding_since_rows_were_looked_at() -> None:
    b, scale, eps = np.array([[1.0, 0.0, -1.0]]), 4.0, np.finfo(np.float32).eps
    error = certificate.Check("float32", Settings(TOL, kernel_scale=scale))
    np.testing.assert_allclose(error.error_bounds(b), 2 * scale * eps)
    error.remember(np.array([True, False, True]), b, b)
    np.testing.assert_allclose(error.error_bounds(b), np.array([0, 2, 0]) * scale * eps)
    later = b + np.array([[0.0, 0.25, -0.25]])
    np.testing.assert_allclose(error.error_bounds(later), np.array([0.5, 2.5, 0.5]) * scale * eps)
    error.remember(np.array([False, True, False]), later, b)
    np.testing.assert_allclose(error.error_bounds(b), np.array([1, 0.5, 1]) * scale * eps)
    error.invalidate(slice(0, 2))
    np.testing.assert_allclose(error.error_bounds(later), np.array([2.5, 2.5, 0.5]) * scale * eps)


@pytest.mark.parametrize("problems", [1, 3])
def test_rows_that_are_known_are_evaluated_by_what_has_changed(problems: int) -> None:
    rng = np.random.default_rng(0)
    K, b = rng.normal(size=(N, N)), rng.normal(size=(problems, N))
    asked: list[tuple[int, int]] = []

    def exact(at: NDArray[np.intp], b: NDArray[np.float64]) -> NDArray[np.float64]:
        asked.append((len(at), np.count_nonzero(b.any(axis=0))))
        return np.asarray(b @ K[at].T)

    error = certificate.Check("float32", Settings(TOL, kernel_scale=4.0, exact=exact))
    known, every = np.arange(N) % 2 == 0, np.arange(N)
    np.testing.assert_allclose(error.evaluated(every, b), b @ K.T)
    error.remember(known, b, np.where(known, b @ K.T, np.nan))
    later = b.copy()
    later[:, :3] += 1
    np.testing.assert_allclose(error.evaluated(every[5:], later), (later @ K.T)[:, 5:])
    assert asked == [(N, N), (N // 2 - 3, 3), (N // 2 - 2, N)]
    np.testing.assert_allclose(error.evaluated(every, -b), -b @ K.T)
    assert asked[3:] == [(N, N)]  # (all has changed)


MANY = 6000


@pytest.mark.parametrize("error", [1e-6, 1e-3])
@pytest.mark.parametrize("free", [0, 60])
def test_a_sample_says_what_rounding_did_to_an_objective(error: float, free: int) -> None:
    """Of many rows that decide nothing, a sample is evaluated, and the others where its errors could matter. Those that
    decide the violation are evaluated all, and say nothing of the others: theirs are none here."""
    rng, decides = np.random.default_rng(0), np.arange(MANY) < free
    problem, b, f = on_the_margin(MANY, decides)
    true = f + np.where(decides, 0.0, error) * rng.uniform(0.5, 1, (1, MANY))
    check = Asked(true, problem.q, 0.1, rng.random(MANY))
    violation, looked, found = check(problem, b, f, 0.0, WITHIN)
    assert (free == 0) or set(check.rows[0]) == set(np.flatnonzero(decides))
    assert all((np.diff(at) > 0).all() for at in check.rows)
    assert violation <= WITHIN
    assert looked.all() == (error > 1e-4)
    assert looked.all() or looked.sum() <= free + certificate.SAMPLE
    np.testing.assert_allclose(found[0, looked], true[0, looked], atol=1e-12)
    assert Asked(true, problem.q, 0.1)(problem, b, f, 0.0, WITHIN).rows.all()


def test_a_sample_stands_for_all_rows() -> None:
    rng = np.random.default_rng(1)
    rows, b, sizes = np.sort(rng.choice(5000, 3000, replace=False)), rng.standard_normal((1, 5000)), rng.random(5000)
    some, times = certificate.sample(rows, b, sizes)
    assert set(some) <= set(rows)
    assert len(some) == len(set(some)) <= certificate.SAMPLE
    np.testing.assert_allclose(times.sum(), len(rows))
    assert set(rows[np.argsort(-sizes[rows])[: certificate.SAMPLE // 4]]) == set(some[times == 1])
    np.testing.assert_allclose((np.abs(b[0, some]) * times).sum(), np.abs(b[0, rows]).sum(), rtol=0.05)
