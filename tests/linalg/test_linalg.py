"""Factors in tiles against NumPy: right, the same bits by any workers, errors that reach all of them."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from numpy.testing import assert_array_equal

from clsvm import linalg
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.linalg import factors, tiles
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from tests.conftest import halves

EXACT = {"float32": 1e-5, "float64": 1e-13}
ONE = np.eye(3)


def definite(n: int, dtype: str = "float64", condition: float = 1e4) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0]
    return ((Q * np.geomspace(1, 1 / condition, n)) @ Q.T).astype(dtype)


def apart(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


def check(A: np.ndarray, exact: float, where: dict[str, Any]) -> None:
    """Factor, product and solves; in place, in the order that suits and in the other one, the same bits."""
    low, n = np.tril if where["lower"] else np.triu, len(A)
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
        right = np.random.default_rng(0).normal(size=(n, 3))
        for trans in (False, True):
            X = linalg.solve_triangular(np.array(U, order=order), right, trans=trans, **where)  # type: ignore[call-overload]
            assert apart((full.T if trans else full) @ X, right) < 1e3 * exact


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("n", "tile"), [(70, 30), (5, 2), (1, 1), (129, 200), (401, 134)])
@pytest.mark.parametrize("lower", [False, True])
def test_against_numpy(device: str, profile: str, dtype: str, n: int, tile: int, lower: bool) -> None:
    if Stream(device).profile.lacks(dtype):
        pytest.skip("the device has no double precision")
    check(definite(n, dtype), EXACT[dtype], {"lower": lower, "device": device, "tile": tile})


@pytest.mark.parametrize("lower", [False, True])
def test_lapack_where_every_device_is_a_cpu(device: str, lower: bool) -> None:
    if devices.find(device).kind != "cpu":
        pytest.skip("no CPU")
    assert linalg.plan(300, device=device).method == "lapack"
    check(definite(300), 1e-12, {"lower": lower, "device": device, "tile": None})
    A = definite(300)
    assert apart(linalg.cholesky(A, lower=lower, device=device), scipy.linalg.cholesky(A, lower=lower)) < 1e-12


@pytest.mark.parametrize("dtype", EXACT)
def test_the_same_bits_by_any_workers(device: str, dtype: str) -> None:
    """One queue, three, and two parts of the device where it has any."""
    A = definite(701, dtype)
    U = linalg.cholesky(A, device=device, tile=100)
    B, X = linalg.lauum(U, device=device, tile=100), linalg.solve_triangular(U, A, device=device, tile=100)
    for team in ([device] * 3, halves(device)):
        where: dict[str, Any] = {"device": team, "tile": 100}
        if team:
            assert_array_equal(linalg.cholesky(A, **where), U)
            assert_array_equal(linalg.lauum(U, **where), B)
            assert_array_equal(linalg.lauum(U.copy(), overwrite=True, **where), B)
            assert_array_equal(linalg.solve_triangular(U, A, **where), X)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_pivot_that_is_not_positive_ends_all_workers(device: str, workers: int) -> None:
    A = definite(600)
    linalg.cholesky(A, device=device, tile=100)  # (programs are built by now)
    A[310, 310] = -1.0
    before = threading.active_count()
    for _ in range(10):
        began = time.monotonic()
        with pytest.raises(np.linalg.LinAlgError, match=r"order 311 \(tile 3, 3 of 6\)"):
            linalg.cholesky(A, device=[device] * workers, tile=100)
        assert time.monotonic() - began < 60
        assert threading.active_count() == before
    A[0, 0] = np.nan
    with pytest.raises(np.linalg.LinAlgError, match="order 1 "):
        linalg.cholesky(A, device=[device] * workers, tile=100)


def test_errors_and_interrupts_reach_all_workers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one of them raises; and what comes to the caller's thread while it waits."""

    def broken(self: Any, *_: Any, **__: Any) -> None:
        if threading.current_thread().name.startswith("clsvm tiles") and self.stream.allocated:
            raise RuntimeError("broken")

    monkeypatch.setattr("clsvm.linalg.tiles.DeviceTiles.add", broken)
    for work in (linalg.lauum, linalg.cholesky):
        with pytest.raises(RuntimeError, match="broken"):
            work(definite(600), device=[device] * 2, tile=100)
    monkeypatch.undo()

    def interrupted(futures: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tiles, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        linalg.cholesky(definite(600), device=[device] * 2, tile=50)
    monkeypatch.undo()
    assert not [t for t in threading.enumerate() if t.name.startswith("clsvm tiles")]


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
    with pytest.raises(BufferSizeError, match="no buffers for tiles of 1000 rows"):
        linalg.plan(3000, device=device, tile=1000)


FACTOR, PRODUCT, SOLVE = linalg.cholesky, linalg.lauum, linalg.solve_triangular
WRONG: tuple[tuple[Any, tuple[Any, ...], type[Exception], str], ...] = (
    (FACTOR, (np.ones((3, 2)),), ValueError, "A must be a square matrix of at least one row, got sh"),
    (PRODUCT, (np.ones((0, 0)),), ValueError, r"U must be a square matrix of at .* got shape \(0, 0\)"),
    (SOLVE, (ONE, np.ones(4)), ValueError, r"B must be \(n,\) or \(n, k\) with n = 3"),
    (SOLVE, (ONE, 1.0), ValueError, r"B must be \(n,\) or .*got shape \(\)"),
    (SOLVE, (np.diag([1.0, 0]), np.ones(2)), ValueError, "T is singular: entry 1 of its"),
    (PRODUCT, (ONE + 0j,), TypeError, "U must be of real numbers, got complex128"),
    (FACTOR, (ONE.astype(str),), TypeError, "A must be of real numbers, got <U"),
    (FACTOR, (scipy.sparse.eye(3),), TypeError, "A must be a dense array .*, got a dia_matrix"),
    (FACTOR, (np.ma.array(ONE, mask=ONE),), TypeError, "A must be .* got a MaskedArray"),
    (FACTOR, ([[1.0, 0.0], [1.0]],), ValueError, "A must be an array of real numbers, got list"),
    (SOLVE, (ONE, ["1", "2", "3"]), TypeError, "B must be of real numbers, got <U1"),
    (SOLVE, (ONE, [1, np.inf, 0]), ValueError, "B must be of finite numbers"),
    (SOLVE, (ONE.astype("f"), [1e300, 0, 0]), ValueError, "B must be .* in float32"),
    (SOLVE, (np.diag([1, np.nan]), [1, 1]), ValueError, "the diagonal of T must be"),
    (SOLVE, ([[1, np.nan], [0, 1]], [1, 1]), ValueError, "T must be of finite numbers"),
)
PLANS: tuple[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str], ...] = (
    ((5,), {"tile": 0}, ValueError, "tile must be >= 1, got 0"),
    ((5,), {"tile": 2.0}, TypeError, "tile must be an integer >= 1, got 2.0"),
    ((5,), {"device": []}, TypeError, "or a list of at least one of them"),
    ((0,), {}, ValueError, "n must be >= 1, got 0"),
    ((True,), {}, TypeError, "n must be an integer >= 1, got True"),
    ((5, "int8"), {}, TypeError, "dtype must be float32 or float64, got 'int8'"),
    ((5, None), {}, TypeError, "dtype must be float32 or float64, got None"),
)


@pytest.mark.parametrize("tile", [None, 2])
@pytest.mark.filterwarnings("ignore:overflow", "ignore::PendingDeprecationWarning")
def test_what_is_no_matrix_of_real_numbers(device: str, tile: int | None) -> None:
    where: dict[str, Any] = {"device": device, "tile": tile}
    for call, given, error, words in WRONG:
        with pytest.raises(error, match=words):
            call(*given, **where)
    for sizes, given, error, words in PLANS:
        with pytest.raises(error, match=words):
            linalg.plan(*sizes, **given)
    locked = np.eye(3)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="A is read-only"):
        linalg.cholesky(locked, overwrite_a=True)
    with pytest.raises(ValueError, match="B is read-only"):
        linalg.solve_triangular(ONE, locked, overwrite_b=True, **where)
    with pytest.raises(np.linalg.LinAlgError, match=r"minor of order [23]"):  # (the tile's last)
        linalg.cholesky(np.diag([1, np.nan, 1]), **where)
    beside = np.array([[1, 2], [np.nan, 4]])  # (the other triangle is not read)
    assert linalg.solve_triangular(beside, [5, 4], **where).tolist() == [3, 1]
    assert linalg.cholesky(np.asmatrix(4 * ONE), **where).tolist() == (2 * ONE).tolist()
    assert linalg.cholesky([[4, 2], [2, 5]], **where).tolist() == [[2, 1], [0, 2]]
    assert linalg.plan(np.int32(5), np.dtype("f4"), device=device).tile == 5


def test_no_float64_on_the_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said where tiles are asked for; else LAPACK does it."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.raises(ValueError, match="has no float64: give the matrix in float32"):
        linalg.plan(100, device=device, tile=10)
    assert linalg.plan(100, device=device).method == "lapack"
