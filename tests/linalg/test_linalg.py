"""Factors in tiles against NumPy: right, within memory, refusals of other input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from numpy.testing import assert_array_equal

from clsvm import linalg
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.linalg import factors
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream

EXACT = {"float32": 1e-5, "float64": 1e-13}
ONE = np.eye(3)


def definite(n: int, dtype: str = "float64", condition: float = 1e4) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0]
    return ((Q * np.geomspace(1, 1 / condition, n)) @ Q.T).astype(dtype)


def apart(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


def check(A: np.ndarray, exact: float, where: dict[str, Any]) -> None:
    """Factor and product; in place, in the order that suits and in the other one, the same bits."""
    low = np.tril if where["lower"] else np.triu
    U = linalg.cholesky(A, **where)
    assert U.dtype == A.dtype
    assert (low(U) == U).all()
    full = U.astype(np.float64)
    assert apart(full @ full.T if where["lower"] else full.T @ full, A) < exact
    B = linalg.lauum(U, **where)
    assert apart(B, low(full.T @ full if where["lower"] else full @ full.T)) < exact
    for order in "CF":
        own, other = np.array(A, order=order), A - low(A)  # type: ignore[call-overload]
        for work, result in ((linalg.cholesky, U), (linalg.lauum, B)):
            overwrite = {"overwrite_a" if work is linalg.cholesky else "overwrite": True}
            assert work(own, clean=False, **overwrite, **where) is own
            assert_array_equal(own - low(own), other)
            if where["tile"]:
                assert_array_equal(low(own), result)
            assert apart(low(own), result) < exact


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("n", "tile"), [(70, 30), (5, 2), (1, 1), (129, 200), (401, 134)])
@pytest.mark.parametrize("lower", [False, True])
def test_against_numpy(device: str, profile: str, dtype: str, n: int, tile: int, lower: bool) -> None:
    if Stream(device).profile.lacks(dtype):
        pytest.skip("the device has no double precision")
    check(definite(n, dtype), EXACT[dtype], {"lower": lower, "device": device, "tile": tile})


@pytest.mark.parametrize("lower", [False, True])
def test_lapack_where_the_device_is_a_cpu(device: str, lower: bool) -> None:
    if devices.find(device).kind != "cpu":
        pytest.skip("no CPU")
    assert linalg.plan(300, device=device).method == "lapack"
    check(definite(300), 1e-12, {"lower": lower, "device": device, "tile": None})
    A = definite(300)
    assert apart(linalg.cholesky(A, lower=lower, device=device), scipy.linalg.cholesky(A, lower=lower)) < 1e-12


@pytest.mark.parametrize(("trans", "lower"), [(False, False), (True, False), (False, True)])
def test_triangular_solves(trans: bool, lower: bool) -> None:
    T = definite(50, "float32")
    B = np.random.default_rng(0).normal(size=(50, 3))
    X = linalg.solve_triangular(T, B, trans=trans, lower=lower)
    assert X.dtype == T.dtype
    low = np.tril(T) if lower else np.triu(T)
    assert apart((low.T if trans else low).astype(np.float64) @ X, B) < 1e-2


def test_a_pivot_that_is_not_positive(device: str) -> None:
    A = definite(600)
    A[310, 310] = -1.0
    for _ in range(2):  # the first failure leaves nothing behind
        with pytest.raises(np.linalg.LinAlgError, match=r"order 311 \(in diagonal tile 4 of 6\)"):
            linalg.cholesky(A, device=[device, device], tile=100)
    A[0, 0] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="order 1 "):
        linalg.cholesky(A, device=device, tile=100)


def test_memory(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tiles of a size that the limit holds; what is held stays within it; a memory-mapped matrix."""
    monkeypatch.setattr(factors, "_for_lapack", lambda *_: "")
    limit = 3_000_000
    made = linalg.plan(3000, device=device, memory_limit=limit)
    assert (made.method, made.tile % factors.UNIT) == ("tiles", 0)
    assert limit // 2 < made.nbytes <= limit
    peaks, free = [], Stream.__exit__

    def leave(self: Stream, *given: Any) -> None:
        peaks.append(self.peak)
        free(self, *given)

    monkeypatch.setattr(Stream, "__exit__", leave)
    A = definite(900)
    mapped = np.lib.format.open_memmap(tmp_path / "A.npy", "w+", A.dtype, A.shape)
    mapped[:] = A
    linalg.cholesky(mapped, overwrite_a=True, device=device, memory_limit=limit)
    assert 0 < max(peaks) <= made.nbytes
    assert apart(np.load(tmp_path / "A.npy"), scipy.linalg.cholesky(A)) < 1e-12
    with pytest.raises(MemoryLimitError, match="memory_limit of 100000 bytes is too small"):
        linalg.plan(3000, device=device, memory_limit=100_000)
    with pytest.raises(MemoryLimitError):
        linalg.plan(3000, device=device, memory_limit=limit, tile=2000)
    monkeypatch.setenv("CLSVM_LARGEST_BUFFER", "300000")
    assert linalg.plan(3000, device=device, memory_limit=limit).tile < made.tile
    with pytest.raises(BufferSizeError, match="a matrix tile of 1000 rows needs"):
        linalg.plan(3000, device=device, tile=1000)


FACTOR, PRODUCT, SOLVE = linalg.cholesky, linalg.lauum, linalg.solve_triangular
WRONG: tuple[tuple[Any, tuple[Any, ...], type[Exception], str], ...] = (
    (FACTOR, (np.ones((3, 2)),), ValueError, "A must be a square matrix of at least one row, got sh"),
    (PRODUCT, (np.ones((0, 0)),), ValueError, r"U must be a square matrix of at .* got shape \(0, 0\)"),
    (SOLVE, (ONE, np.ones(4)), ValueError, r"B must have shape \(n,\) or \(n, k\), .* \(n = 3\)"),
    (SOLVE, (ONE, 1.0), ValueError, r"B must have shape \(n,\) or .*got shape \(\)"),
    (SOLVE, (np.diag([1.0, 0]), np.ones(2)), np.linalg.LinAlgError, "singular"),
    (SOLVE, (ONE, ONE[0] + 0j), TypeError, "B must be of real numbers, got complex128"),
    (PRODUCT, (ONE + 0j,), TypeError, "U must be of real numbers, got complex128"),
    (FACTOR, (ONE.astype(str),), TypeError, "A must be of real numbers, got <U"),
    (FACTOR, (scipy.sparse.eye(3),), TypeError, "A must be a dense array .*, got a dia_matrix"),
    (FACTOR, (np.ma.array(ONE, mask=ONE),), TypeError, "A must be .* got a MaskedArray"),
    (FACTOR, ([[1.0, 0.0], [1.0]],), ValueError, "inhomogeneous shape"),
    (SOLVE, (ONE, ["1", "2", "3"]), TypeError, "B must be of real numbers, got <U1"),
    (SOLVE, (ONE, [1, np.inf, 0]), ValueError, "must not contain infs or NaNs"),
    (SOLVE, (ONE.astype("f"), [1e300, 0, 0]), ValueError, "must not contain infs or NaNs"),
    (SOLVE, ([[1, np.nan], [0, 1]], [1, 1]), ValueError, "must not contain infs or NaNs"),
)
PLANS: tuple[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str], ...] = (
    ((5,), {"tile": 0}, ValueError, "tile must be >= 1, got 0"),
    ((5,), {"tile": 2.0}, TypeError, "tile must be an integer >= 1, got 2.0"),
    ((5,), {"device": []}, TypeError, "device must have at least one entry if it is a list"),
    ((0,), {}, ValueError, "n must be >= 1, got 0"),
    ((True,), {}, TypeError, "n must be an integer >= 1, got True"),
    ((5, "int8"), {}, TypeError, "dtype must be float32 or float64, got 'int8'"),
    ((5, "spam"), {}, TypeError, "data type 'spam' not understood"),
)


@pytest.mark.parametrize("tile", [None, 2])
@pytest.mark.filterwarnings("ignore:overflow", "ignore::PendingDeprecationWarning")
def test_what_is_no_matrix_of_real_numbers(device: str, tile: int | None) -> None:
    where: dict[str, Any] = {"device": device, "tile": tile}
    for call, given, error, words in WRONG:
        with pytest.raises(error, match=words):
            call(*given, **({} if call is SOLVE else where))
    for sizes, given, error, words in PLANS:
        with pytest.raises(error, match=words):
            linalg.plan(*sizes, **given)
    locked = np.eye(3)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="A is read-only"):
        linalg.cholesky(locked, overwrite_a=True)
    with pytest.raises(np.linalg.LinAlgError, match=r"minor of order [23]"):  # (the tile's last)
        linalg.cholesky(np.diag([1, np.nan, 1]), **where)
    assert linalg.cholesky(np.asmatrix(4 * ONE), **where).tolist() == (2 * ONE).tolist()
    assert linalg.cholesky([[4, 2], [2, 5]], **where).tolist() == [[2, 1], [0, 2]]
    assert linalg.plan(np.int32(5), np.dtype("f4"), device=device).tile == 5


def test_no_float64_on_the_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said where tiles are asked for; else LAPACK does it."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.raises(ValueError, match="has no float64: give the matrix in float32"):
        linalg.plan(100, device=device, tile=10)
    assert linalg.plan(100, device=device).method == "lapack"
