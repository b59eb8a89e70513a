"""The preconditioner against NumPy: factors, solves, what is indefinite, how many rows are sampled."""

import threading

import numpy as np
import pytest
from scipy import linalg

from clsvm.nystrom.preconditioner import Preconditioner, Spectrum, sampled
from clsvm.threads import one_thread


def kernel(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.exp(-np.square(X[:, None] - Y).sum(axis=2))


@pytest.mark.parametrize(("m", "k"), [(1, 3), (7, 1), (600, 3)])  # (copies go by 512)
@pytest.mark.parametrize("of", ["points", "rows", "sums"])
def test_against_numpy(m: int, k: int, of: str) -> None:
    rng = np.random.default_rng(m)
    C, X = rng.normal(size=(m, 4)), rng.normal(size=(5000 if m > 500 else 30, 4))
    K = kernel(C, C)
    made = Preconditioner(K.copy())
    T = linalg.cholesky(K + made.jitter * np.eye(m))
    b = rng.normal(size=(k, m))
    for _ in range(2):  # (T serves every A)
        if of != "points":
            D, across = rng.random(len(X)) / len(X), kernel(X, C)
            if of == "sums":
                made.sample_sums(across.__getitem__)
            else:
                made.sample(across, 0.0)
            B = linalg.solve_triangular(T, across.T, trans=1).T
            H = (B.T * D) @ B
        else:
            D = rng.random(m) / m
            H = (T * D) @ T.T
        made.weigh(D, 1e-3)
        assert 0 <= made.shift < (1e-4 if of == "sums" else 1e-300)
        A = linalg.cholesky(H + (1e-3 + made.shift) * np.eye(m))
        close = {"rtol": 0, "atol": 1e-8 * np.linalg.cond(T)}
        np.testing.assert_allclose(made.alpha(b), np.linalg.solve(T, b.T).T, **close)
        np.testing.assert_allclose(made.from_alpha(b), np.linalg.solve(T.T, b.T).T, **close)
        np.testing.assert_allclose(made.u(b), np.linalg.solve(A, b.T).T, **close)
        np.testing.assert_allclose(made.from_u(b), np.linalg.solve(A.T, b.T).T, **close)
        np.testing.assert_allclose(made.of_coefficients(b), (T @ b.T).T, **close)


def test_zero_and_equal_centres_are_left_out() -> None:
    C = np.r_[np.zeros((3, 2)), np.ones((300, 2)), [[1.0, 2.0]]]
    made = Preconditioner(C @ C.T)
    assert made.rank == 2
    assert Preconditioner(np.ones((700, 700))).rank == 1
    assert Preconditioner(np.zeros((5, 5))).rank == 5  # (a jitter is all that there is)


def test_what_fails_is_tried_again_with_more() -> None:
    """Values that rounding has left slightly indefinite, beyond the first tolerance."""
    rng = np.random.default_rng(1)
    V = rng.normal(size=(600, 5))
    noise = rng.normal(size=(600, 600)) * 1e-9
    made = Preconditioner(V @ V.T + noise + noise.T)
    assert 5 <= made.rank < 30
    b = rng.normal(size=(1, 600))
    np.testing.assert_allclose(np.square(made.of_coefficients(b)).sum(), np.square(b @ V).sum(), rtol=1e-5)


def test_how_many_rows_are_sampled() -> None:
    """All where they are few, several for each centre elsewhere, more where passes cost more, never fewer than m."""
    assert sampled(900, 500, 1, 10, 1e-5) == (900, False)
    (cheap, _), (dear, _) = sampled(10**5, 1000, 1, 5, 1e-5), sampled(10**5, 1000, 10, 800, 1e-5)
    assert 1000 < cheap < dear <= 10**5
    assert sampled(10**6, 30000, 1, 5, 1e-5)[0] >= 30000
    assert sampled(9000, 1000, 1, 50, 1e-5, spectrum=Spectrum(0.1)) == (9000, True)
    assert not sampled(9000, 1000, 1, 50, 1e-5, spectrum=Spectrum(1e6))[1]
    assert not sampled(9000, 1000, 1, 50, 1e-5, quadratic=False, spectrum=Spectrum(0.1))[1]


@pytest.mark.parametrize("m", [60, 1500])
def test_what_others_do_changes_no_bits(m: int) -> None:
    """The number of threads is the process's, and another one is another sum."""
    random = np.random.default_rng(0)
    X, rows = random.normal(size=(m, 3)), random.normal(size=(2 * m, 3))
    K, K_s = (np.exp(-np.square(A[:, None] - X[None]).sum(axis=2)) for A in (X, rows))
    K[np.diag_indices(m)] += 0.1

    def made() -> np.ndarray:
        one = Preconditioner(K.copy())
        one.sample(K_s, 1e-3)
        one.weigh(np.full(2 * m, 1 / m), 1e-3)
        return one.u(one.from_alpha(X.T))

    first, stop = made(), threading.Event()

    def others() -> None:
        while not stop.wait(0.0005):
            with one_thread():
                stop.wait(0.0005)

    other = threading.Thread(target=others)
    other.start()
    try:
        for _ in range(60 if m < 100 else 6):
            np.testing.assert_array_equal(made(), first)
    finally:
        stop.set()
        other.join()
