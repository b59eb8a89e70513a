"""Sparse rows: what makes them safe to read."""

from __future__ import annotations

from typing import Any

import scipy.sparse as sp


def checked(X: Any) -> Any:
    """X as CSR whose parts fit together; itself where it is dense.

    SciPy's constructors and its own conversions look at next to nothing of the parts, and whoever reads them reads
    wherever they point. Raises ValueError that names what is wrong.
    """
    if not sp.issparse(X):
        return X
    if X.format in ("csc", "bsr"):
        _check(X)
    X = X.tocsr()
    _check(X)
    return X


def _check(X: Any) -> None:
    """Raise ValueError where the parts of a CSR, CSC or BSR matrix (n, d) do not fit together."""
    if X.ndim != 2:
        raise ValueError(f"X must be rows of features, got a sparse array of the shape {X.shape}")
    height, width = X.blocksize if X.format == "bsr" else (1, 1)
    lines, places = X.shape[0] // height, X.shape[1] // width
    if X.format == "csc":
        lines, places = places, lines
    indptr, entries = X.indptr, len(X.data)
    if len(X.indices) != entries:
        raise ValueError(f"X is malformed: it has {len(X.indices)} indices, expected {entries} as in data")
    if len(indptr) != lines + 1 or indptr[0] != 0:
        got = f"{len(indptr)} numbers from {indptr[0] if len(indptr) else 'none'} on"
        raise ValueError(f"X is malformed: indptr has {got}, expected {lines + 1} from 0 on")
    falls = (indptr[1:] < indptr[:-1]).nonzero()[0]
    if falls.size:
        at = int(falls[0])
        raise ValueError(f"X is malformed: indptr falls from {indptr[at]} to {indptr[at + 1]} at {at + 1}")
    if indptr[-1] > entries:
        raise ValueError(f"X is malformed: indptr ends at {indptr[-1]}, expected at most the {entries} of data")
    used = X.indices[: indptr[-1]]
    if used.size and (used.min() < 0 or used.max() >= places):
        raise ValueError(
            f"X is malformed: its indices are {used.min()} to {used.max()}, expected 0 to {places - 1} ({X.format})"
        )
