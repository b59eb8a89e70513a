"""What the certificate evaluates in float64, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem
from clsvm.solvers import certificate

N, TOL = 40, 1e-3


class Asked(certificate.Check):
    """The check of f (1, n), which is ``true`` and which rounding can have moved by ``bound``, one number or of each
    row its own. rows: what was asked for."""

    def __init__(self, true: Any, q: Any, bound: Any, sizes: Any = None, objective: bool = True) -> None:
        self.rows: list[NDArray[np.intp]] = []
        super().__init__("float32", 1.0, lambda at, b: self.rows.append(at) or (true - q)[:, at], sizes, objective)
        self.error_bounds = lambda b: np.array(np.broadcast_to(bound, b.shape[1]), np.float64)  # type: ignore[method-assign]


def on_the_margin(n: int, free: NDArray[np.bool_]) -> tuple[Problem, NDArray[Any], NDArray[Any]]:
    """A problem, b and f (1, n): coefficients are ``free``, or at a bound by a wide margin."""
    signs = np.tile([1.0, -1.0], n // 2)
    problem = Problem(np.minimum(signs, 0)[None], np.maximum(signs, 0)[None], -signs[None])
    return problem, np.where(free, signs / 2, signs)[None], np.where(free, 0.0, -signs)[None]


@pytest.mark.parametrize(("error", "gap", "rows"), [(1e-4, False, N), (1e-2, False, N // 4), (1e-2, True, N)])
def test_rows_of_the_objective_are_left_where_the_violation_is_beyond_tol(error: float, gap: bool, rows: int) -> None:
    """A quarter of the coefficients is free and decides the violation; the others are at a bound, by a wide margin."""
    free = np.arange(N) < N // 4
    problem, b, f = on_the_margin(N, free)
    true = f + error * np.random.default_rng(0).uniform(-1, 1, (1, N))
    check = Asked(true, problem.q, TOL)
    violation, looked, found = check(problem, b, f, 0.0, TOL, gap)
    some = np.concatenate(check.rows)
    assert looked.sum() == rows == len(some)
    assert set(np.flatnonzero(free)) == set(check.rows[0])
    assert (violation > TOL) == (error > TOL)
    np.testing.assert_allclose(found[0, some], true[0, some], atol=1e-12)
    alone = Asked(true, problem.q, TOL, objective=False)(problem, b, f, 0.0, TOL, gap)
    assert alone[0] == violation
    assert alone[1].sum() == (N if gap else N // 4)  # (an objective that nobody asks for has no rows)


def random_state(rng: np.random.Generator) -> tuple[Problem, NDArray[Any], NDArray[Any]]:
    signs = rng.choice([-1.0, 1.0], N)
    lo, hi = np.minimum(signs, 0)[None], np.maximum(signs, 0)[None]
    b = np.clip(signs * rng.choice([0.0, 0.3, 1.0], N), lo, hi)
    return Problem(lo, hi, -signs[None], Constraint.BIAS, 0.0), b, rng.uniform(-3e-3, 3e-3, (1, N))


@pytest.mark.parametrize(("constraint", "tol"), [(Constraint.BIAS, 5.5 * TOL), (Constraint.NONE, 3 * TOL)])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_s_own_bound(seed: int, constraint: Constraint, tol: float) -> None:
    """Without the rows that are left, the violation is on the same side of tol, but for what a small bound may hide; no
    row of a small bound is asked for on its account."""
    rng = np.random.default_rng(seed)
    problem, b, f = random_state(rng)
    problem = replace(problem, constraint=constraint)
    bound = np.where(rng.random(N) < 0.5, TOL / 20, TOL)
    true = f + bound * rng.uniform(-1, 1, (1, N))
    worst = certificate.of(problem, b, f).violation
    if worst + 2 * bound.max() <= tol:
        pytest.skip("nothing is asked for")
    check = Asked(true, problem.q, bound)
    found = check(problem, b, f, worst, tol).violation
    truth, hidden = certificate.of(problem, b, true).violation, 2 * TOL / 20
    assert (bound[check.rows[0]] == TOL).all()
    assert truth <= tol + hidden if found <= tol else truth > tol - hidden


def test_rounding_since_rows_were_looked_at() -> None:
    b, scale, eps = np.array([[1.0, 0.0, -1.0]]), 4.0, np.finfo(np.float32).eps
    error = certificate.Check("float32", scale)
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

    error, known, every = certificate.Check("float32", 4.0, exact), np.arange(N) % 2 == 0, np.arange(N)
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
    violation, looked, found = check(problem, b, f, 0.0, TOL)
    assert (free == 0) or set(check.rows[0]) == set(np.flatnonzero(decides))
    assert all((np.diff(at) > 0).all() for at in check.rows)
    assert violation <= TOL
    assert looked.all() == (error > 1e-4)
    assert looked.all() or looked.sum() <= free + certificate.SAMPLE
    np.testing.assert_allclose(found[0, looked], true[0, looked], atol=1e-12)
    assert Asked(true, problem.q, 0.1)(problem, b, f, 0.0, TOL).rows.all()


def test_a_sample_stands_for_all_rows() -> None:
    rng = np.random.default_rng(1)
    rows, b, sizes = np.sort(rng.choice(5000, 3000, replace=False)), rng.standard_normal((1, 5000)), rng.random(5000)
    some, times = certificate.sample(rows, b, sizes)
    assert set(some) <= set(rows)
    assert len(some) == len(set(some)) <= certificate.SAMPLE
    np.testing.assert_allclose(times.sum(), len(rows))
    assert set(rows[np.argsort(-sizes[rows])[: certificate.SAMPLE // 4]]) == set(some[times == 1])
    np.testing.assert_allclose((np.abs(b[0, some]) * times).sum(), np.abs(b[0, rows]).sum(), rtol=0.05)
