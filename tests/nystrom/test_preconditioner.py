"""The preconditioner against NumPy: factors, solves, what is indefinite, how many rows are sampled."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from clsvm.nystrom.preconditioner import Preconditioner, sampled


def kernel(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.exp(-np.square(X[:, None] - Y).sum(axis=2))


@pytest.mark.parametrize("m", [1, 7, 600])  # (copies go by 512)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("of_rows", [False, True])
def test_against_numpy(m: int, k: int, of_rows: bool) -> None:
    rng = np.random.default_rng(m)
    C, X = rng.normal(size=(m, 4)), rng.normal(size=(5000 if m > 500 else 30, 4))
    K = kernel(C, C)
    made = Preconditioner(K.copy())
    T = linalg.cholesky(K + made.jitter * np.eye(m))
    b = rng.normal(size=(k, m))
    for _ in range(2):  # (T serves every A)
        if of_rows:
            D, across = rng.random(len(X)) / len(X), kernel(X, C)
            made.sample(across, 0.0)
            B = linalg.solve_triangular(T, across.T, trans=1).T
            H = (B.T * D) @ B
        else:
            D = rng.random(m) / m
            H = (T * D) @ T.T
        made.weigh(D, 1e-3)
        A = linalg.cholesky(H + 1e-3 * np.eye(m))
        close = {"rtol": 0, "atol": 1e-8 * np.linalg.cond(T)}
        np.testing.assert_allclose(made.alpha(b), np.linalg.solve(T, b.T).T, **close)
        np.testing.assert_allclose(made.from_alpha(b), np.linalg.solve(T.T, b.T).T, **close)
        np.testing.assert_allclose(made.u(b), np.linalg.solve(A, b.T).T, **close)
        np.testing.assert_allclose(made.from_u(b), np.linalg.solve(A.T, b.T).T, **close)
        np.testing.assert_allclose(made.of_coefficients(b), (T @ b.T).T, **close)


def test_equal_centres_get_a_jitter() -> None:
    made = Preconditioner(np.ones((700, 700)))
    assert 0 < made.jitter < 1e-9
    made.weigh(np.full(700, 1 / 700), 1e-3)
    assert np.isfinite(made.alpha(made.u(np.ones((1, 700))))).all()


def test_what_fails_is_tried_again_with_more() -> None:
    """Values that rounding has left slightly indefinite, beyond the first jitter."""
    rng = np.random.default_rng(1)
    V = rng.normal(size=(600, 5))
    noise = rng.normal(size=(600, 600)) * 1e-9
    K = V @ V.T + noise + noise.T
    made = Preconditioner(K.copy())
    T = linalg.cholesky(K + made.jitter * np.eye(600))
    b = rng.normal(size=(1, 600))
    np.testing.assert_allclose(made.of_coefficients(b), (T @ b.T).T, atol=1e-9)


def test_indefinite_values_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    with pytest.raises(ValueError, match="K among the 50 centres is not positive definite"):
        Preconditioner(np.tanh(-X @ X.T))


def test_how_many_rows_are_sampled() -> None:
    """All where they are few, several for each centre elsewhere, more where passes cost more, never fewer than m."""
    assert sampled(900, 500, 1, 10, 1e-5) == 900
    cheap, dear = sampled(10**5, 1000, 1, 5, 1e-5), sampled(10**5, 1000, 10, 800, 1e-5)
    assert 1000 < cheap < dear <= 10**5
    assert sampled(10**6, 30000, 1, 5, 1e-5) >= 30000
