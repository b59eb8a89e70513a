"""Cholesky factors, their products U U', and solves with them, for matrices that are larger than a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.linalg import tiles
from clsvm.linalg.tiles import Plan, Shape
from clsvm.opencl.devices import listed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Number

Matrix = NDArray[Any]
UNIT = 128  # tiles are whole ones, where they are chosen
TABLES = 1 << 14, 64  # bytes of small tables, and for each row of a tile
LEAST, PARTS = 1024, 8  # a chosen tile is no smaller, but for the memory; nor larger than so many parts of the matrix


def plan(
    n: int,
    dtype: Any = "float64",
    *,
    device: Any = None,
    memory_limit: int | str | None = None,
    tile: int | None = None,
) -> Plan:
    """Return how :func:`cholesky`, :func:`lauum` and :func:`solve_triangular` work on a matrix (n, n) of ``dtype``.

    device: as clsvm.SVC takes it, or a list of such, a worker each; one that stands there twice gets two queues.
    memory_limit: bytes on each worker's device; None: half of what is free there. tile: rows and columns of a tile;
    None: as many as the memory holds three of, at most an eighth of n. But where every device is a CPU, whose memory is
    the host's, or one lacks the dtype, LAPACK then works on the whole matrix, takes none and knows no memory_limit.
    Raises ValueError or TypeError for bad input (memory_limit is too small, a device lacks the dtype), or DeviceError.
    """
    whole = Number(least=1, whole=True)
    whole.check("n", n)
    if tile is not None:
        whole.check("tile", tile)
    dtype, devices = _real(dtype), tuple(listed(device))
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(one, memory_limit)) for one in devices]
    names = [str(one.info) for one in streams]
    limit = min(one.limit // (names.count(str(one.info)) if memory_limit is None else 1) for one in streams)
    lacking = next((f"{one.info} has no {dtype}" for one in streams if one.profile.lacks(dtype)), "")
    if tile is None and (reason := _for_lapack(streams) or lacking):
        return Plan("lapack", int(n), devices, limit, 0, reason)
    if lacking:
        raise ValueError(f"{lacking}: give the matrix in float32")
    most = int(min(n, tile or usual_tile(n)))
    for t in (most,) if tile else (most, *range((most - 1) // UNIT * UNIT, 0, -UNIT)):
        each = [Shape.of(one.profile, dtype, t).nbytes(dtype) for one in streams]
        nbytes = max(map(sum, each)) + TABLES[0] + TABLES[1] * t
        if nbytes <= limit and all(max(buffers) <= one.largest for one, buffers in zip(streams, each, strict=True)):
            return Plan("tiles", t, devices, limit, nbytes, "as asked" if tile else f"three take {nbytes} bytes")
    if nbytes > limit:
        raise MemoryLimitError(limit, 0, nbytes)
    raise BufferSizeError(f"{names[0]} allows no buffers for tiles of {t} rows")


def _real(dtype: Any) -> str:
    """Return the name of float32 or float64. Raises TypeError for any other dtype."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if dtype is None or name not in ("float32", "float64"):
        raise TypeError(f"dtype must be float32 or float64, got {dtype!r}")
    return name


def usual_tile(n: int) -> int:
    """Return the rows of a tile of a matrix (n, n) where memory allows it."""
    return max(LEAST, -(-n // (PARTS * UNIT)) * UNIT)


def _for_lapack(streams: Sequence[Stream]) -> str:
    """Return why LAPACK is as good; "" where it is not."""
    return "every device is a CPU, on whose cores it is as fast" * all(one.info.kind == "cpu" for one in streams)


def cholesky(
    A: Any,
    *,
    lower: bool = False,
    overwrite_a: bool = False,
    clean: bool = True,
    device: Any = None,
    memory_limit: int | str | None = None,
    tile: int | None = None,
) -> Matrix:
    """Return the Cholesky factor of A (n, n), symmetric and positive definite, of which one triangle is read: U with
    U'U = A, or L with L L' = A where ``lower``; (n, n), float32 or float64 as A is, else float64.

    overwrite_a: the factor takes A's place, which may be a memory-mapped file; without a copy where A is in C's order
    (in Fortran's for ``lower``) or the other one, more slowly. clean: zeros in the other triangle; else it stays as it
    is. device, memory_limit, tile: as :func:`plan` says. The bits are the same for any number of workers on devices of
    one kind. Meanti, Carratino, Rosasco and Rudi (2020), appendix C, Algorithm 4.
    Raises numpy.linalg.LinAlgError where A is not positive definite, ValueError or TypeError for bad input,
    DeviceError where the machine fails; what was to be overwritten is then half done.
    """
    where = {"device": device, "memory_limit": memory_limit, "tile": tile}
    return _in_triangle(A, "A", ("potrf", tiles.cholesky), lower, overwrite_a, clean, where)


def lauum(
    U: Any,
    *,
    lower: bool = False,
    overwrite: bool = False,
    clean: bool = True,
    device: Any = None,
    memory_limit: int | str | None = None,
    tile: int | None = None,
) -> Matrix:
    """Return one triangle of U U' of a triangle U (n, n), or of L'L where ``lower``; the other triangle is not read.

    The parameters and errors are :func:`cholesky`'s. Algorithm 3 of the same appendix.
    """
    where = {"device": device, "memory_limit": memory_limit, "tile": tile}
    return _in_triangle(U, "U", ("lauum", tiles.lauum), lower, overwrite, clean, where)


def _in_triangle(
    A: Any,
    name: str,
    work: tuple[str, Callable[[Matrix, Plan], None]],
    lower: bool,
    overwrite: bool,
    clean: bool,
    where: dict[str, Any],
) -> Matrix:
    """Return A, or a copy in the order that suits, with the result of ``work``, by LAPACK or by tiles, in one
    triangle."""
    out = _matrix(A, name)
    if not overwrite:
        out = np.array(out, order="F" if lower else "C")
    elif not out.flags.writeable:
        raise ValueError(f"{name} is read-only and cannot be overwritten")
    U, (routine, by_tiles) = out.T if lower else out, work
    made = plan(len(U), U.dtype, **where)
    if made.method == "tiles":
        by_tiles(U, made)
    else:
        _lapack(routine, U)
    for i in range(len(U) if clean else 0):
        U[i, :i] = 0
    return out


def solve_triangular(
    T: Any,
    B: Any,
    *,
    trans: bool = False,
    lower: bool = False,
    overwrite_b: bool = False,
    device: Any = None,
    memory_limit: int | str | None = None,
    tile: int | None = None,
) -> Matrix:
    """Return X of T X = B, or of T'X = B where ``trans``, for a triangle T (n, n) and B (n,) or (n, k).

    X has B's shape and T's dtype. The other triangle is not read. Columns of B are shared by the workers, a tile's
    width each.
    device, memory_limit and tile as :func:`plan` says. Raises numpy.linalg.LinAlgError where T is singular, ValueError
    or TypeError for bad input, entries that are not finite among it, DeviceError where the machine fails.
    """
    T, given = _matrix(T, "T"), _numbers(B, "B")
    if given.ndim not in (1, 2) or len(given) != len(T):
        raise ValueError(f"B must be (n,) or (n, k) with n = {len(T)} rows as T, got shape {given.shape}")
    X = np.array(given, T.dtype, order="C", copy=None if overwrite_b else True)
    if not X.flags.writeable:
        raise ValueError("B is read-only and cannot be overwritten")
    if len(zeros := np.flatnonzero(T.diagonal() == 0)):
        raise np.linalg.LinAlgError(f"T is singular: number {zeros[0]} of its diagonal is 0")
    for name, entries in (("the diagonal of T", T.diagonal()), ("B", X)):
        if not np.isfinite(entries).all():
            raise ValueError(f"{name} must be of finite numbers in {T.dtype}, got NaN or infinity")
    made = plan(len(T), T.dtype, device=device, memory_limit=memory_limit, tile=tile)
    columns, U = X.reshape(len(X), -1), T.T if lower else T
    if not X.size:
        return X
    if made.method == "lapack":
        solve = lapack.strtrs if T.dtype == np.float32 else lapack.dtrtrs
        turned = not T.flags.f_contiguous
        found, _ = solve(T.T if turned else T, columns, lower=lower != turned, trans=trans != turned)
        columns[...] = found
    elif lower != trans:  # U'X = B
        tiles.solve(U, columns, made)
    else:  # U X = B, from its last row on
        tiles.solve(U[::-1, ::-1].T, columns[::-1], made)
    if not np.isfinite(X).all() and not all(np.isfinite(U[i, i:]).all() for i in range(len(U))):
        raise ValueError("T must be of finite numbers in the triangle that is read, got NaN or infinity")
    return X


def _numbers(given: Any, name: str) -> Matrix:
    """Return an array of real numbers. Raises TypeError for sparse and masked arrays and for other entries."""
    if sparse.issparse(given) or np.ma.isMaskedArray(given):
        raise TypeError(f"{name} must be a dense array without a mask, got a {type(given).__name__}")
    try:
        array = np.asarray(given)
    except ValueError as error:  # (rows of different lengths)
        raise ValueError(f"{name} must be an array of real numbers, got {type(given).__name__}: {error}") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be of real numbers, got {array.dtype}")
    return array


def _matrix(A: Any, name: str) -> Matrix:
    """Return a square matrix of float32 or float64."""
    A = _numbers(A, name)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise ValueError(f"{name} must be a square matrix of at least one row, got shape {A.shape}")
    return A if A.dtype in (np.float32, np.float64) else A.astype(np.float64)


def _lapack(name: str, U: Matrix) -> None:
    """Do LAPACK's potrf or lauum in the upper triangle of U, whose rows or columns are without gaps."""
    routine = getattr(lapack, ("s" if U.dtype == np.float32 else "d") + name)
    rows = U.flags.c_contiguous
    F = np.asarray(U.T if rows else U)
    options = {"clean": 0, "overwrite_a": 1} if name == "potrf" else {"overwrite_c": 1}
    made, info = routine(F, lower=int(rows), **options)
    if name == "potrf" and not info:  # (of what is no number OpenBLAS does not say so)
        info = 1 + next(iter(np.flatnonzero(~np.isfinite(made.diagonal()))), -1)
    if info:
        raise np.linalg.LinAlgError(f"the leading minor of order {info} is not positive definite")
    if not np.shares_memory(made, F):  # (neither rows nor columns lie without gaps)
        F[...] = made
