"""Check and convert the caller's data matrices X (n, d), dense or sparse.

:func:`checked` and :func:`check_files` detect malformed sparse matrices and shortened memory-mapped files.
:func:`canonical` converts X to an array of floats or to a CSR matrix with sorted indices. The other functions select
and renumber columns, stack matrices, and subtract a vector from all rows.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

_PARTS = ("data", "indices", "indptr", "offsets", "row", "col")  # attributes in which sparse matrices hold their arrays
_MANY = 1 << 17  # empty columns are removed only from matrices with more columns than this


def checked(X: Any, name: str = "X") -> Any:
    """Check the arrays of sparse X, and return X as CSR. Return dense X unchanged. Error messages call X ``name``.

    SciPy hardly checks indices and pointers, so code that trusts a malformed matrix reads outside of its arrays. Raises
    ValueError for a malformed matrix, or if a memory-mapped file of X has become shorter.
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
    """Yield the memory-mapped files that hold data of X, which is an array, a list of rows or a sparse matrix."""
    rows = isinstance(X, list | tuple) and len(X) and isinstance(X[0], np.ndarray)
    parts: Any = [getattr(X, part, None) for part in _PARTS] if sp.issparse(X) else X if rows else [X]
    for base in parts:
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            with contextlib.suppress(OSError):  # size() raises for an anonymous map, which has no file and is left out
                base.size()
                yield base


def check_files(*given: Any) -> None:
    """Raise ValueError if a memory-mapped file that holds data of the given arrays has become shorter."""
    for file in (file for one in given for file in mapped(one)):
        check_file(file, len(file))


def check_file(file: mmap.mmap, size: int) -> None:
    """Raise ValueError if a memory-mapped file has become shorter than ``size`` bytes.

    Reading beyond the end of a mapped file would kill the process.
    """
    if file.size() < size:
        raise ValueError(f"a memory-mapped file had {size} bytes and now has {file.size()}")


def _check(X: Any, name: str) -> None:
    """Raise ValueError if the arrays of sparse X contradict each other, or if X is not two-dimensional.

    The message calls X ``name``.
    """
    if X.ndim != 2:
        raise ValueError(f"{name} must be rows of features, got a sparse array of the shape {X.shape}")
    try:
        if X.format in ("csr", "csc", "bsr"):
            kinds = {getattr(part, "dtype", type(part).__name__) for part in (X.indices, X.indptr)}
            if not kinds <= {np.dtype(np.int32), np.dtype(np.int64)}:
                raise ValueError(f"indices and indptr are of {' and '.join(map(str, kinds))}, expected int32 or int64")
            copy.copy(X).check_format(full_check=True)  # a copy, since check_format may modify the matrix
            if (X.indptr[1:] < X.indptr[:-1]).any():  # check_format misses decreasing pointers if indptr[-1] is 0
                raise ValueError("indptr must be a non-decreasing sequence")
        elif X.format == "coo":
            sp.coo_matrix((X.data, (X.row, X.col)), shape=X.shape)
        elif X.format == "lil" and any(len(at) != len(values) for at, values in zip(X.rows, X.data, strict=True)):
            raise ValueError("each row must have as many values as column indices")
    except ValueError as error:
        raise ValueError(f"{name} is malformed ({X.format}): {error}") from None


def columns(*parts: Any) -> NDArray[np.int32]:
    """Return the ascending numbers of the columns in which at least one of the CSR matrices ``parts`` has an entry."""
    return np.unique(np.concatenate([X.indices[: X.indptr[-1]] for X in parts]))


def without_empty(X: Any) -> Any:
    """Remove the empty columns of X (n, d) if X is sparse and has very many empty columns (:func:`mostly_empty`)."""
    return renumbered(X, columns(X)) if sp.issparse(X) and mostly_empty(X) else X


def mostly_empty(X: Any) -> bool:
    """Return whether a CSR matrix X has very many columns, compared with its number of stored entries.

    X must have more than 2^17 columns (``_MANY``), and more than four times as many columns as stored entries.
    """
    return bool(X.shape[1] > max(_MANY, 4 * X.nnz))


def renumbered(X: Any, kept_columns: NDArray[np.integer]) -> sp.csr_matrix:
    """Renumber the columns of the CSR matrix X: column ``kept_columns[j]`` becomes column j.

    ``kept_columns`` (k,) ascends. If it does not contain a column of X, the column is called surplus. The entries of
    surplus columns are kept too, so that norms of rows stay the same. In each row, they move to the columns k, k + 1,
    and so on, one after another.

    The inner product of two rows stays the same if one of them has no entry in a surplus column. Otherwise the product
    may change, because entries of different surplus columns can move to the same column.
    """
    indices, data = X.indices[: X.indptr[-1]], X.data[: X.indptr[-1]]
    index = np.searchsorted(kept_columns, indices)
    is_kept = np.append(kept_columns, -1)[index] == indices
    rows, others = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), np.flatnonzero(~is_kept)
    first = np.searchsorted(rows[others], rows[others])  # index in ``others`` at which each entry's row begins
    number = np.arange(len(others)) - first
    index[others] = len(kept_columns) + number
    width = len(kept_columns) + int(number.max(initial=-1)) + 1
    made = sp.csr_matrix((data, index.astype(np.int32), X.indptr), shape=(X.shape[0], width))
    return made.sorted_indices() if others.size else made


def gathered_columns(X: Data, places: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the columns of X whose numbers are ``places``, as a dense float64 array (n, len(places)).

    X (n, d) is dense or CSR. For a CSR matrix, memory and time do not depend on d.
    """
    if not sp.issparse(X):
        return np.ascontiguousarray(X[:, places], np.float64)
    kept_columns, inverse = np.unique(places, return_inverse=True)
    found = renumbered(X, kept_columns)[:, : len(kept_columns)].toarray()
    return np.ascontiguousarray(found[:, inverse], np.float64)


def widened(X: Any, width: int) -> sp.csr_matrix:
    """Return the CSR matrix X with at least ``width`` columns; columns that are added are empty."""
    return sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], max(width, X.shape[1])))


Data = Any  # (n, d) C-contiguous float32/float64 array or CSR matrix with sorted int32 indices


def both_dense(X: Any, Y: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return X (n, d) and Y (m, d) as dense float64 arrays, and the number of columns that were removed.

    If X and Y are both sparse, the columns that are empty in both are removed. Otherwise all columns stay.
    """
    matrices, empty = [checked(Z) for Z in ((X,) if Y is X else (X, Y))], 0
    if sp.issparse(X) and sp.issparse(Y):
        kept_columns = columns(*matrices)
        matrices, empty = [renumbered(Z, kept_columns) for Z in matrices], X.shape[1] - len(kept_columns)
    matrices = [np.asarray(Z.toarray() if sp.issparse(Z) else Z, np.float64) for Z in matrices]
    return matrices[0], matrices[-1], empty


def canonical(X: Any) -> Data:
    """Convert X (n, d) to an array or CSR matrix of float32 or float64, in the form that device code reads.

    float32 values stay float32, and all other values become float64. A dense result is aligned and in C order. A dense
    X that has this form is returned itself. A sparse result has int32 indices that ascend without duplicates in each
    row. Raises ValueError for a malformed sparse matrix, or one of 2^31 or more columns.
    """
    if not sp.issparse(X):
        X = np.asarray(X)
        return np.require(X, X.dtype if X.dtype in (np.float32, np.float64) else np.float64, ["C", "ALIGNED"])
    X = checked(X)
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]} features, expected less than {2**31}")
    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    # X may have outdated flags about sorted and unique indices, so a new matrix without flags is made.
    X = sp.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return sp.csr_matrix((X.data, X.indices.astype(np.int32, copy=False), X.indptr), shape=X.shape)


def stacked(parts: Sequence[Data]) -> Data:
    """Stack the rows of matrices with d columns each, all dense or all CSR, into one matrix."""
    if len(parts) == 1:
        return parts[0]
    return sp.vstack(parts, "csr") if sp.issparse(parts[0]) else np.concatenate(parts)


def centred(X: Data, centre: NDArray[np.float64]) -> Data:
    """Subtract the vector ``centre`` (d,) from all rows of X (n, d), dense or CSR. Return X itself if centre is 0."""
    if not centre.any():
        return X
    if not sp.issparse(X):
        return X - centre
    columns = np.flatnonzero(centre)
    shifts = centre[X.indices]
    if np.count_nonzero(shifts) == X.shape[0] * len(columns):
        return sp.csr_matrix((X.data - shifts, X.indices, X.indptr), shape=X.shape)
    values, indices = np.tile(centre[columns], X.shape[0]), np.tile(columns.astype(np.int32), X.shape[0])
    starts = np.arange(X.shape[0] + 1, dtype=np.int64) * len(columns)
    return sp.csr_matrix(X - sp.csr_matrix((values, indices, starts), shape=X.shape))
