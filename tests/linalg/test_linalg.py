"""Factors in tiles against NumPy: right, the same bits by any workers, errors that reach all of them."""

from __future__ import annotations

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
from clsvm.linalg import factors, schedule
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from tests.conftest import USABLE, halves

DTYPES = ("float32", "float64")
EXACT = {"float32": 1e-5, "float64": 1e-13}


def definite(n: int, dtype: str = "float64", condition: float = 1e4) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(n).normal(size=(n, n)))[0]
    return ((Q * np.geomspace(1, 1 / condition, n)) @ Q.T).astype(dtype)


def apart(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


def test_each_kernel_once(device: str, profile: str) -> None:
    """Small enough for a simulator: tiles of their own size, the last ones smaller."""
    A = definite(5, "float32")
    U = linalg.cholesky(A, device=device, tile=2)
    full = U.astype(np.float64)
    assert apart(full.T @ full, A) < EXACT["float32"]
    assert apart(linalg.lauum(U, device=device, tile=2), np.triu(full @ full.T)) < EXACT["float32"]
    assert apart(full @ linalg.solve_triangular(U, np.ones(5), device=device, tile=2), np.ones(5)) < 1e-2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "tile"),
    [(70, 30), (5, 2), (1, 1), (129, 200), (401, 134)],
)
@pytest.mark.parametrize("lower", [False, True])
def test_against_numpy(device: str, profile: str, dtype: str, n: int, tile: int, lower: bool) -> None:
    """Factor, product and solves; in place, in the order that suits and in the other one, the same bits."""
    if Stream(device).profile.lacks(dtype):
        pytest.skip("the device has no double precision")
    where: dict[str, Any] = {"lower": lower, "device": device, "tile": tile}
    A, low = definite(n, dtype), np.tril if lower else np.triu
    U = linalg.cholesky(A, **where)
    assert U.dtype == dtype
    assert (low(U) == U).all()
    full = U.astype(np.float64)
    assert apart(full @ full.T if lower else full.T @ full, A) < EXACT[dtype]
    B = linalg.lauum(U, **where)
    assert apart(B, low(full.T @ full if lower else full @ full.T)) < EXACT[dtype]
    for order in "CF":
        own, other = np.array(A, order=order), A - low(A)  # type: ignore[call-overload]
        assert linalg.cholesky(own, overwrite_a=True, clean=False, **where) is own
        assert_array_equal(own - low(own), other)
        assert_array_equal(low(own), U)
        assert linalg.lauum(own, overwrite=True, clean=False, **where) is own
        assert_array_equal(own - low(own), other)
        assert_array_equal(low(own), B)
        right = np.random.default_rng(0).normal(size=(n, 3))
        for trans in (False, True):
            X = linalg.solve_triangular(np.array(U, order=order), right, trans=trans, **where)  # type: ignore[call-overload]
            assert apart((full.T if trans else full) @ X, right) < 1e3 * EXACT[dtype]


def test_lapack_where_every_device_is_a_cpu(device: str) -> None:
    """The same functions by LAPACK, with the same results up to rounding."""
    if devices.find(device).kind != "cpu":
        pytest.skip("no CPU")
    assert linalg.plan(300, device=device).method == "lapack"
    A, right = definite(300), np.arange(300.0)
    for lower in (False, True):
        for order in "CF":
            given = {"lower": lower, "device": device}
            L = linalg.cholesky(np.array(A, order=order), **given)  # type: ignore[call-overload]
            assert apart(L, scipy.linalg.cholesky(A, lower=lower)) < 1e-12
            own = np.array(A, order=order)  # type: ignore[call-overload]
            linalg.cholesky(own, overwrite_a=True, clean=False, **given)
            assert apart(own, np.where((L != 0), L, A)) < 1e-12
            assert apart(linalg.lauum(L, **given), np.tril(L.T @ L) if lower else np.triu(L @ L.T)) < 1e-12
            for trans in (False, True):
                X = linalg.solve_triangular(np.array(L, order=order), right, trans=trans, **given)  # type: ignore[call-overload]
                assert apart((L.T if trans else L) @ X, right) < 1e-10


def teams(device: str) -> dict[str, Any]:
    """One queue, three, and two parts of the device where it has any."""
    found = {"one": device, "three queues": [device] * 3}
    if parts := halves(device):
        found["two parts"] = parts
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_by_any_workers(device: str, dtype: str) -> None:
    A = definite(701, dtype)
    factors = {name: linalg.cholesky(A, device=team, tile=100) for name, team in teams(device).items()}
    products = {name: linalg.lauum(factors["one"], device=team, tile=100) for name, team in teams(device).items()}
    for name, team in teams(device).items():
        assert_array_equal(factors[name], factors["one"])
        assert_array_equal(products[name], products["one"])
        own = factors["one"].copy()
        assert_array_equal(linalg.lauum(own, overwrite=True, device=team, tile=100), products["one"])
        X = linalg.solve_triangular(factors["one"], A, device=team, tile=100)
        assert_array_equal(X, linalg.solve_triangular(factors["one"], A, device=device, tile=100))


def test_two_runtimes_agree() -> None:
    if len(USABLE) < 2:
        pytest.skip("one device alone")
    A = definite(500)
    both = linalg.cholesky(A, device=[str(one.index) for one in USABLE[:2]], tile=100)
    assert apart(both, scipy.linalg.cholesky(A)) < 1e-12


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_pivot_that_is_not_positive_ends_all_workers(device: str, workers: int) -> None:
    A = definite(600)
    A[310, 310] = -1.0
    linalg.cholesky(definite(600), device=device, tile=100)  # (programs are built by now)
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
    A = np.triu(definite(600))

    def broken(self: Any, *_: Any, **__: Any) -> None:
        if threading.current_thread().name.endswith("(go)") and self.stream.held:
            raise RuntimeError("broken")

    monkeypatch.setattr("clsvm.linalg.tiles.DeviceTiles.add", broken)
    for out in (False, True):
        with pytest.raises(RuntimeError, match="broken"):
            linalg.lauum(A.copy(), overwrite=out, device=[device] * 2, tile=100)
    monkeypatch.setattr("clsvm.linalg.tiles.DeviceTiles.subtract", broken)
    with pytest.raises(RuntimeError, match="broken"):
        linalg.cholesky(definite(600), device=[device] * 2, tile=100)
    monkeypatch.undo()
    joined = threading.Thread.join

    def interrupted(self: threading.Thread, *given: Any) -> None:
        if not raised:
            raised.append(True)
            raise KeyboardInterrupt
        joined(self, *given)

    raised: list[bool] = []
    monkeypatch.setattr(schedule.threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        linalg.cholesky(definite(600), device=[device] * 2, tile=50)
    monkeypatch.undo()
    assert not [t for t in threading.enumerate() if t.name.endswith("(go)")]


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


ONE = np.eye(3)
WRONG = (
    (lambda **g: linalg.cholesky(np.ones((3, 2))), ValueError, "A must be a square matrix of at least one row, got sh"),
    (lambda **g: linalg.lauum(np.ones((0, 0))), ValueError, r"U must be a square matrix of at .* got shape \(0, 0\)"),
    (lambda **g: linalg.cholesky(ONE, tile=0), ValueError, "tile must be >= 1, got 0"),
    (lambda **g: linalg.solve_triangular(ONE, np.ones(4), **g), ValueError, r"B must be \(n,\) or \(n, k\) with n = 3"),
    (lambda **g: linalg.solve_triangular(np.diag([1.0, 0]), np.ones(2)), ValueError, "T is singular: number 1 of its"),
    (lambda **g: linalg.cholesky(ONE, device=[]), TypeError, "or a list of at least one of them"),
    (lambda **_: linalg.plan(0), ValueError, "n must be >= 1, got 0"),
    (lambda **_: linalg.plan(True), TypeError, "n must be an integer >= 1, got True"),
    (lambda **_: linalg.plan(5, tile=2.0), TypeError, "tile must be an integer >= 1, got 2.0"),
    (lambda **_: linalg.plan(5, "int8"), TypeError, "dtype must be float32 or float64, got 'int8'"),
    (lambda **_: linalg.plan(5, None), TypeError, "dtype must be float32 or float64, got None"),
    (lambda **g: linalg.lauum(ONE + 0j, **g), TypeError, "U must be of real numbers, got complex128"),
    (lambda **g: linalg.cholesky(ONE.astype(str), **g), TypeError, "A must be of real numbers, got <U"),
    (lambda **g: linalg.cholesky(scipy.sparse.eye(3), **g), TypeError, "A must be a dense array .*, got a dia_matrix"),
    (lambda **g: linalg.cholesky(np.ma.array(ONE, mask=ONE), **g), TypeError, "A must be .* got a MaskedArray"),
    (lambda **g: linalg.cholesky([[1.0, 0.0], [1.0]], **g), ValueError, "A must be an array of real numbers, got list"),
    (lambda **g: linalg.solve_triangular(ONE + 0j, np.ones(3), **g), TypeError, "T must be of real .* complex128"),
    (lambda **g: linalg.solve_triangular(ONE, ["1", "2", "3"], **g), TypeError, "B must be of real numbers, got <U1"),
    (lambda **g: linalg.solve_triangular(ONE, 1.0, **g), ValueError, r"B must be \(n,\) or .*got shape \(\)"),
    (lambda **g: linalg.solve_triangular(ONE, [1, np.inf, 0], **g), ValueError, "B must be of finite numbers"),
    (lambda **g: linalg.solve_triangular(ONE.astype("f"), [1e300, 0, 0], **g), ValueError, "B must be .* in float32"),
    (lambda **g: linalg.solve_triangular(np.diag([1, np.nan]), [1, 1], **g), ValueError, "the diagonal of T must be"),
    (
        lambda **g: linalg.solve_triangular([[1, np.nan], [0, 1]], [1, 1], **g),
        ValueError,
        "T must be of finite numbers",
    ),
)


@pytest.mark.parametrize("tile", [None, 2])
@pytest.mark.filterwarnings("ignore:overflow", "ignore::PendingDeprecationWarning")
def test_what_is_no_matrix_of_real_numbers(device: str, tile: int | None) -> None:
    for call, error, words in WRONG:
        with pytest.raises(error, match=words):
            call(device=device, tile=tile)
    for name, call in (
        ("A", lambda a: linalg.cholesky(a, overwrite_a=True)),
        ("B", lambda b: linalg.solve_triangular(ONE, b, overwrite_b=True, device=device, tile=tile)),
    ):
        locked = np.eye(3)
        locked.flags.writeable = False
        with pytest.raises(ValueError, match=f"{name} is read-only"):
            call(locked)
    with pytest.raises(np.linalg.LinAlgError, match=r"minor of order [23]"):  # (the tile's last)
        linalg.cholesky(np.diag([1, np.nan, 1]), device=device, tile=tile)
    beside = np.array([[1, 2], [np.nan, 4]])  # (the other triangle is not read)
    assert linalg.solve_triangular(beside, [5, 4], device=device, tile=tile).tolist() == [3, 1]
    assert linalg.cholesky(np.asmatrix(4 * ONE), device=device, tile=tile).tolist() == (2 * ONE).tolist()
    assert linalg.cholesky([[4, 2], [2, 5]], device=device, tile=tile).tolist() == [[2, 1], [0, 2]]
    assert linalg.plan(np.int32(5), np.dtype("f4"), device=device).tile == 5


def test_no_float64_on_the_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said where tiles are asked for; else LAPACK does it."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.raises(ValueError, match="has no float64: give the matrix in float32"):
        linalg.plan(100, device=device, tile=10)
    assert linalg.plan(100, device=device).method == "lapack"
