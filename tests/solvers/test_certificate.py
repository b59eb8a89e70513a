"""What the certificate evaluates in float64, and what it leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem
from clsvm.solvers import certificate

N, TOL = 40, 1e-3


@pytest.mark.parametrize(("error", "gap", "rows"), [(1e-4, False, N), (1e-2, False, N // 4), (1e-2, True, N)])
def test_rows_of_the_objective_are_left_where_the_violation_is_beyond_tol(error: float, gap: bool, rows: int) -> None:
    """A quarter of the coefficients is free and decides the violation; the others are at a bound, by a wide margin."""
    rng = np.random.default_rng(0)
    signs, free = np.tile([1.0, -1.0], N // 2), np.arange(N) < N // 4
    lo, hi = np.minimum(signs, 0)[None], np.maximum(signs, 0)[None]
    q = -signs[None]
    problem = Problem(lo, hi, q, Constraint.BIAS, 0.0)
    b = np.where(free, signs / 2, signs)[None]
    f = np.where(free, 0.0, -signs)[None]  # (a bounded one would go further)
    true = f + error * rng.uniform(-1, 1, (1, N))
    asked: list[NDArray[Any]] = []

    def exact(at: NDArray[np.intp], b: NDArray[np.float64]) -> NDArray[np.float64]:
        asked.append(at)
        return (true - q)[:, at]

    violation, evaluated, found = certificate.certified(problem, b, f.copy(), exact, TOL, False, 0.0, TOL, gap)
    assert evaluated == rows == sum(map(len, asked))
    assert set(np.flatnonzero(free)) == set(asked[0])
    assert (violation > TOL) == (error > TOL)
    some = np.concatenate(asked)
    np.testing.assert_allclose(found[0, some], true[0, some], atol=1e-12)
