"""The active set method by itself: every constraint, singular and indefinite matrices, slow cases of pair steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer

from clsvm import problem as posed
from clsvm.problem import Problem
from clsvm.solvers import active_set, certificate
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
