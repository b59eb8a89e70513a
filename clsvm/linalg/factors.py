"""Compute Cholesky factors of matrices, and products U U' of triangular matrices U, on the host or on a device.

On the host, LAPACK computes with the whole matrix. On a device, clsvm.linalg.tiles computes with square tiles of the
matrix, a few at a time. :func:`plan` chooses the method and the size of the tiles. :func:`cholesky` and :func:`lauum`
check their arguments and follow the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from scipy import sparse
from scipy.linalg import lapack

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.linalg import tiles
from clsvm.linalg.tiles import Matrix, Plan, TileSizes
from clsvm.opencl.devices import DeviceInfo, first_device
from clsvm.opencl.stream import Stream
from clsvm.parameters import Number

UNIT = 128  # if ``plan`` chooses tiles smaller than the matrix, their number of rows is a multiple of UNIT
# For matrix tiles of t rows, plan() reserves TABLES[0] + TABLES[1] * t device bytes for all index arrays together.
TABLES = 1 << 14, 64
# A matrix (n, n) is divided into square tiles of about n / PARTS rows, but at least MIN_TILE rows if memory allows it.
MIN_TILE, PARTS = 1024, 8


def plan(
    n: int,
    dtype: Any = "float64",
    *,
    device: Any = None,
    memory_limit: int | str | None = None,
    tile: int | None = None,
) -> Plan:
    """Choose how :func:`cholesky` and :func:`lauum` compute with a matrix (n, n): by LAPACK, or by tiles on a device.

    If ``tile`` is None, and if the device is a CPU or lacks the dtype, LAPACK works on the whole matrix on the host.
    ``memory_limit`` then has no effect. In all other cases, the device works on three square tiles of the matrix at a
    time.

    Parameters
    ----------
    n : int
        Rows of the matrix.
    dtype : {"float32", "float64"}, default="float64"
        Data type of the matrix.
    device : None, str, int, pyopencl.Device, pyopencl.CommandQueue or a list of these, default=None
        Device, as for the estimators. The first device of a list does the work.
    memory_limit : int or str, default=None
        Limit of the memory in bytes on the device, or text such as "2GB". None means half of the device's free memory.
    tile : int, default=None
        Number of rows and of columns of a tile. None means max(1024, n / 8), rounded up to a multiple of 128, but at
        most n. A smaller tile is chosen if three tiles would exceed the memory limit.

    Returns
    -------
    Plan
        The method, the size of the tiles, and the reason for the choice.

    Raises
    ------
    ValueError
        If an argument is invalid, memory_limit is too small, or the device lacks the dtype and ``tile`` is given.
    TypeError
        If an argument has a wrong type.
    DeviceError
        If the device is absent.
    """
    whole = Number(least=1, whole=True)
    whole.check("n", n)
    if tile is not None:
        whole.check("tile", tile)
    dtype, device = np.dtype(dtype).name, first_device(device)
    if dtype not in ("float32", "float64"):
        raise TypeError(f"dtype must be float32 or float64, got {dtype!r}")
    with Stream(device, memory_limit) as stream:
        info, profile, limit = stream.info, stream.profile, stream.limit
    lacking = f"{info} has no {dtype}" * profile.lacks(dtype)
    if tile is None and (reason := _for_lapack(info) or lacking):
        return Plan("lapack", int(n), device, limit, 0, reason)
    if lacking:
        raise ValueError(f"{lacking}: give the matrix in float32")
    most = int(min(n, tile or usual_tile(n)))
    for t in (most,) if tile else (most, *range((most - 1) // UNIT * UNIT, 0, -UNIT)):
        buffers = TileSizes.of(profile, dtype, t).nbytes(dtype)
        nbytes = sum(buffers) + TABLES[0] + TABLES[1] * t
        if nbytes <= limit and max(buffers) <= stream.largest:
            return Plan("tiles", t, device, limit, nbytes, "as asked" if tile else f"three take {nbytes} bytes")
    if nbytes > limit:
        raise MemoryLimitError(limit, 0, nbytes)
    raise BufferSizeError(
        f"{info} allows buffers of at most {stream.largest} bytes, a matrix tile of {t} rows needs {max(buffers)}"
    )


def usual_tile(n: int) -> int:
    """Return the number of rows of the square tiles into which a matrix (n, n) is divided if memory allows it."""
    return max(MIN_TILE, -(-n // (PARTS * UNIT)) * UNIT)


def _for_lapack(info: DeviceInfo) -> str:
    """Return the reason why LAPACK on the host is preferred to the device, or "" if there is no reason."""
    return "the device is a CPU, on whose cores it is as fast" * (info.kind == "cpu")


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
    """Compute the Cholesky factor of a symmetric positive definite matrix A: U with U'U = A, or L with L L' = A.

    If an error is raised and ``overwrite_a`` is set, the content of A is undefined.

    Parameters
    ----------
    A : array of shape (n, n)
        The matrix. Only one triangle is read: the lower one if ``lower``, else the upper one.
    lower : bool, default=False
        Whether to return L instead of U.
    overwrite_a : bool, default=False
        Whether the factor replaces A, which may be a memory-mapped file. If A is in C or Fortran order, no copy of A is
        made. C order is faster for U, and Fortran order for L.
    clean : bool, default=True
        Whether the other triangle of the result, which does not hold the factor, is set to zero. If False, the other
        triangle has the entries that A has there.
    device, memory_limit, tile
        Parameters of :func:`plan`.

    Returns
    -------
    ndarray of shape (n, n)
        The factor, in the dtype of A if this is float32 or float64, otherwise in float64.

    Raises
    ------
    numpy.linalg.LinAlgError
        If A is not positive definite.
    ValueError, TypeError
        If an argument is invalid.
    DeviceError
        If the device fails or is absent.

    References
    ----------
    Meanti, Carratino, Rosasco and Rudi (2020), Kernel methods through the roof, appendix C, Algorithm 4.
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
    """Compute the product U U' of an upper triangular matrix U, or the product L'L of a lower triangular matrix L.

    Parameters
    ----------
    U : array of shape (n, n)
        The matrix U, or L if ``lower``. Only its triangle is read: the lower one if ``lower``, else the upper one.
    lower : bool, default=False
        Whether the matrix is lower triangular, so that L'L is computed.
    overwrite : bool, default=False
        Whether the result replaces the matrix that is passed as U. Otherwise the result is a new array.
    clean : bool, default=True
        Whether the other triangle of the result, which does not hold the product, is set to zero. If False, the other
        triangle has the entries that U has there.
    device, memory_limit, tile
        Parameters of :func:`plan`.

    Returns
    -------
    ndarray of shape (n, n)
        One triangle of the symmetric product: the lower one if ``lower``, else the upper one.

    Raises
    ------
    ValueError, TypeError
        If an argument is invalid.
    DeviceError
        If the device fails or is absent.

    References
    ----------
    Meanti, Carratino, Rosasco and Rudi (2020), Kernel methods through the roof, appendix C, Algorithm 3.
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
    """Replace one triangle of A, or of a copy of A, by the result of a LAPACK routine. Return the matrix.

    For the routine "potrf", the result is the Cholesky factor of A. For the routine "lauum", the result is the product
    U U' of the upper triangle U of A, or the product L'L of the lower triangle L of A.

    name: name of A in error messages.
    work: name of the LAPACK routine, and a function that computes the routine's result on a device.
    lower: whether to read and replace the lower triangle of A. Otherwise the upper triangle is read and replaced.
    overwrite: whether to change A itself. Otherwise a copy of A is changed.
    clean: whether to set the entries of the other triangle to zero.
    where: the arguments device, memory_limit and tile of :func:`plan`, by name.
    """
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


def solve_triangular(T: Any, B: Any, *, trans: bool = False, lower: bool = False) -> Matrix:
    """Solve T X = B, or T'X = B, for a triangular matrix T by scipy.linalg.solve_triangular.

    Parameters
    ----------
    T : array of shape (n, n)
        The matrix. Only one triangle is read: the lower one if ``lower``, else the upper one. Its numbers must be
        finite.
    B : array of shape (n,) or (n, k)
        The right-hand sides.
    trans : bool, default=False
        Whether to solve with T' instead of T.
    lower : bool, default=False
        Whether T is lower triangular.

    Returns
    -------
    ndarray of B's shape
        X, in T's dtype.

    Raises
    ------
    numpy.linalg.LinAlgError
        If T is singular.
    ValueError, TypeError
        If an argument is invalid, or if T or B has entries that are not finite.
    """
    T, B = _matrix(T, "T"), _numbers(B, "B")
    if B.ndim not in (1, 2) or len(B) != len(T):
        raise ValueError(
            f"B must have shape (n,) or (n, k), with as many rows as T (n = {len(T)}), got shape {B.shape}"
        )
    triangle = np.tril(T) if lower else np.triu(T)
    found: Matrix = scipy.linalg.solve_triangular(triangle, B.astype(T.dtype), trans=int(trans), lower=lower)
    return found


def _numbers(given: Any, name: str) -> Matrix:
    """Return ``given`` as a NumPy array. ``name`` is its name in error messages.

    Raises TypeError if ``given`` is sparse or masked, or if its entries are not real numbers.
    """
    if sparse.issparse(given) or np.ma.isMaskedArray(given):
        raise TypeError(f"{name} must be a dense array without a mask, got a {type(given).__name__}")
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be of real numbers, got {array.dtype}")
    return array


def _matrix(A: Any, name: str) -> Matrix:
    """Return A as a float32 or float64 array. Raises ValueError if A is not a square matrix of at least one row."""
    A = _numbers(A, name)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not len(A):
        raise ValueError(f"{name} must be a square matrix of at least one row, got shape {A.shape}")
    return A if A.dtype in (np.float32, np.float64) else A.astype(np.float64)


def _lapack(name: str, U: Matrix) -> None:
    """Replace the upper triangle of U by the result of LAPACK's routine ``name``.

    The routine "potrf" computes a Cholesky factor, and "lauum" the product U U'. Raises LinAlgError if potrf finds that
    the matrix is not positive definite.
    """
    routine = getattr(lapack, ("s" if U.dtype == np.float32 else "d") + name)
    rows = U.flags.c_contiguous
    F = np.asarray(U.T if rows else U)
    options = {"clean": 0, "overwrite_a": 1} if name == "potrf" else {"overwrite_c": 1}
    made, info = routine(F, lower=int(rows), **options)
    if name == "potrf" and not info:  # OpenBLAS returns info = 0 even if the factor contains NaN
        info = 1 + next(iter(np.flatnonzero(~np.isfinite(made.diagonal()))), -1)
    if info:
        raise np.linalg.LinAlgError(f"the leading minor of order {info} is not positive definite")
    if not np.shares_memory(made, F):  # F is not contiguous, so LAPACK worked on a copy of F
        F[...] = made
