"""The rows of a caller: what makes them safe to read, centres, and sparse columns by other numbers."""

from __future__ import annotations

import contextlib
import copy
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

_MANY = 1 << 17  # columns up to which it does not matter how many are empty


def checked(X: Any, name: str = "X") -> Any:
    """Return sparse X as CSR whose parts fit together, dense X as it is. name: what errors call it.

    SciPy's constructors and its own conversions look at next to nothing of the parts, and whoever reads them reads
    wherever they point. Raises ValueError that names what is wrong, also of a file that X is mapped from.
    """
    check_files(X)
    if not sp.issparse(X):
        return X
    if X.format != "csr":
        _check(X, name)
        X = X.tocsr()
    _check(X, name)
    return X


def mapped(X: Any) -> Iterator[mmap.mmap]:
    """Yield the files that X, an array, a list of rows or sparse, is mapped from.

    Reading beyond the end of a mapped file ends the process.
    """
    rows = isinstance(X, list | tuple) and len(X) and isinstance(X[0], np.ndarray)
    parts = [getattr(X, part, None) for part in _PARTS] if sp.issparse(X) else X if rows else [X]
    for array in (*parts, *(_coordinates(X) if sp.issparse(X) and X.format == "coo" else ())):
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            with contextlib.suppress(OSError):  # of memory without a file
                base.size()
                yield base


def check_files(*given: Any) -> None:
    """Check every file that one of the arrays is mapped from, by :func:`check_file`."""
    for file in (file for one in given for file in mapped(one)):
        check_file(file, len(file))


def check_file(file: mmap.mmap, size: int) -> None:
    """Raise ValueError where a file that an array is mapped from has become shorter than ``size`` bytes."""
    if file.size() < size:
        raise ValueError(f"a file that is read in place, by a map, had {size} bytes and now has {file.size()}")


def _check(X: Any, name: str) -> None:
    """Raise ValueError where the parts of a sparse matrix (n, d) do not fit together."""
    if X.ndim != 2:
        raise ValueError(f"{name} must be rows of features, got a sparse array of the shape {X.shape}")
    try:
        if X.format in ("csr", "csc", "bsr"):
            kinds = {getattr(part, "dtype", type(part).__name__) for part in (X.indices, X.indptr)}
            if not kinds <= {np.dtype(np.int32), np.dtype(np.int64)}:
                raise ValueError(f"indices and indptr are of {' and '.join(map(str, kinds))}, expected int32 or int64")
            copy.copy(X).check_format(full_check=True)  # (which may change parts of what it checks)
            if (X.indptr[1:] < X.indptr[:-1]).any():  # (SciPy looks only where the last one is above 0)
                raise ValueError("indptr must be a non-decreasing sequence")
        elif X.format == "coo":
            sp.coo_matrix((X.data, _coordinates(X)), shape=X.shape)
        elif X.format == "lil" and any(len(at) != len(values) for at, values in zip(X.rows, X.data, strict=True)):
            raise ValueError("a row has not as many values as columns")
    except ValueError as error:
        raise ValueError(f"{name} is malformed ({X.format}): {error}") from None


def _coordinates(X: Any) -> tuple[Any, ...]:
    """Return the places of the entries of a COO matrix, by dimension."""
    return getattr(X, "coords", None) or (X.row, X.col)


_PARTS = ("data", "indices", "indptr", "offsets")


def columns(*parts: Any) -> NDArray[np.int32]:
    """Return the columns in which one of the CSR matrices has entries, ascending."""
    return np.unique(np.concatenate([X.indices[: X.indptr[-1]] for X in parts]))


def without_empty(X: Any) -> Any:
    """Return X (n, d) without its empty columns where these are by far the most, else X itself."""
    return numbered(X, columns(X)) if sp.issparse(X) and by_far_empty(X) else X


def by_far_empty(X: Any) -> bool:
    """Return whether an array of numbers by column would outgrow a CSR matrix."""
    return bool(X.shape[1] > max(_MANY, 4 * X.nnz))


def numbered(X: Any, known: NDArray[np.int32]) -> sp.csr_matrix:
    """Return the CSR matrix X with the columns ``known`` (ascending) as its first ones.

    A row's entries in other columns follow in their order, numbered in each row separately: no row that it meets has
    entries there.
    """
    indices, data = X.indices[: X.indptr[-1]], X.data[: X.indptr[-1]]
    place = np.searchsorted(known, indices)
    there = known[np.minimum(place, len(known) - 1)] == indices if len(known) else np.zeros(len(place), bool)
    rows, others = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), np.flatnonzero(~there)
    first = np.searchsorted(rows[others], rows[others])  # where the row's own begin
    number = np.arange(len(others)) - first
    place[others] = len(known) + number
    width = len(known) + int(number.max(initial=-1)) + 1
    made = sp.csr_matrix((data, place.astype(np.int32), X.indptr), shape=(X.shape[0], width))
    if others.size:
        made = made.sorted_indices()
    return made


def picked(X: Data, places: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the columns ``places`` of X (n, d), dense or CSR, as a dense float64 array (n, places).

    Memory and time depend on the entries and on the places alone, whatever d is.
    """
    if not sp.issparse(X):
        return np.ascontiguousarray(X[:, places], np.float64)
    known, back = np.unique(places, return_inverse=True)
    there = np.isin(X.indices[: X.indptr[-1]], known)
    before = np.concatenate([[0], np.cumsum(there)])
    kept = X.data[: X.indptr[-1]][there], np.searchsorted(known, X.indices[: X.indptr[-1]][there])
    found = sp.csr_matrix((*kept, before[X.indptr]), shape=(X.shape[0], len(known))).toarray()
    return np.ascontiguousarray(found[:, back], np.float64)


def widened(X: Any, width: int) -> sp.csr_matrix:
    """Return the CSR matrix X with empty columns after its own, ``width`` together."""
    return sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], max(width, X.shape[1])))


Data = Any  # (n, d) C-contiguous float32/float64 array or CSR matrix with sorted int32 indices


def both_dense(X: Any, Y: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return X (n, d) and Y (m, d) as dense float64, and the number of columns that were left out.

    Columns in which neither has an entry are left out where both are sparse.
    """
    both, empty = [checked(Z) for Z in ((X,) if Y is X else (X, Y))], 0
    if sp.issparse(X) and sp.issparse(Y):
        known = columns(*both)
        both, empty = [numbered(Z, known) for Z in both], X.shape[1] - len(known)
    both = [np.asarray(Z.toarray() if sp.issparse(Z) else Z, np.float64) for Z in both]
    return both[0], both[-1], empty


def canonical(X: Any) -> Data:
    """Return X as the layouts read it, X itself where it is that already: float32 or float64, dense in C order and
    aligned, or CSR with sorted int32 indices, each once. Raises ValueError for malformed sparse rows, and for 2^31
    features or more."""
    if not sp.issparse(X):
        X = np.asarray(X)
        return np.require(X, X.dtype if X.dtype in (np.float32, np.float64) else np.float64, ["C", "ALIGNED"])
    X = checked(X)
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]} features, expected less than {2**31}")
    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    X = sp.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)  # (its own say on its order may be out of date)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return sp.csr_matrix((X.data, X.indices.astype(np.int32, copy=False), X.indptr), shape=X.shape)


def entries(X: Data) -> sp.csr_matrix:
    """Return the entries of rows (n, d) as CSR, of dense ones those that are not 0, in a third of SciPy's time."""
    if sp.issparse(X):
        return sp.csr_matrix(X)
    there = X != 0
    ends = np.zeros(len(X) + 1, np.int64)
    np.cumsum(np.count_nonzero(there, axis=1), out=ends[1:])
    columns = np.broadcast_to(np.arange(X.shape[1], dtype=np.int32), X.shape)[there]
    return sp.csr_matrix((X[there], columns, ends), shape=X.shape)


def stacked(parts: Sequence[Data]) -> Data:
    """Return rows (n, d) one below the other, all dense or all CSR."""
    if len(parts) == 1:
        return parts[0]
    return sp.vstack(parts, "csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def centred(X: Data, centre: NDArray[np.float64]) -> Data:
    """Return X less the centre in float64, dense or CSR as it is; itself where the centre is 0."""
    if not centre.any():
        return X
    if not sp.issparse(X):
        return X - centre
    columns = np.flatnonzero(centre)
    shifts = centre[X.indices]
    if np.count_nonzero(shifts) == X.shape[0] * len(columns):
        return sp.csr_matrix((X.data - shifts, X.indices, X.indptr), shape=X.shape)
    shift = sp.csr_matrix(
        (
            np.tile(centre[columns], X.shape[0]),
            np.tile(columns.astype(np.int32), X.shape[0]),
            np.arange(X.shape[0] + 1, dtype=np.int64) * len(columns),
        ),
        shape=X.shape,
    )
    return sp.csr_matrix(X - shift)
