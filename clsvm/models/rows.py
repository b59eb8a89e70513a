"""Rows in a file, without labels: svmlight text, or arrays as NumPy and SciPy write them."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from clsvm.files import PathLike
from clsvm.models import svmlight
from clsvm.system import explained

_NAMES = "X", "X_train"  # the rows in an archive of several arrays
_SCIPY = {"format", "shape", "data"}  # what scipy.sparse.save_npz writes, beside the indices
_DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, KeyError, OverflowError, struct.error)


def read_rows(path: PathLike, n_features: int | None = None) -> Any:
    """The rows of a file, (n, d): dense of a .npy, or of X, X_train or the only matrix of a .npz; CSR of what
    scipy.sparse.save_npz writes, and of svmlight text, as :func:`svmlight.read_problem` reads it.

    n_features: d, where svmlight text has its last columns empty. Raises OSError and ValueError, which names the file.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".npy", ".npz"):
        return svmlight.read_problem(path, n_features)[0]
    try:
        with explained(f"reading {path}"):
            X = _archived(path) if suffix == ".npz" else np.load(path, allow_pickle=False)
    except _DAMAGE as error:
        raise ValueError(f"{path}: got {str(error)[:300]}, expected numbers as NumPy or SciPy write them") from None
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise ValueError(f"{path}: got an array of {X.dtype} with the shape {X.shape}, expected rows of numbers")
    if n_features is not None and n_features != X.shape[1]:
        raise ValueError(f"{path}: got {X.shape[1]} columns, expected {n_features}, the number of features")
    return X


def _archived(path: PathLike) -> Any:
    """The rows of an archive of arrays."""
    with np.load(path, allow_pickle=False) as archive:
        names = set(archive.files)
        if not names >= _SCIPY:
            name = next((name for name in _NAMES if name in names), None) or _only(archive)
            return archive[name]
    return sp.load_npz(path)


def _only(archive: Any) -> str:
    """The name of the only matrix. Raises ValueError where there are more, or none."""
    found = [name for name in archive.files if archive[name].ndim == 2]
    if len(found) != 1:
        raise ValueError(f"the arrays {', '.join(archive.files)}, and none is called {' or '.join(_NAMES)}")
    return str(found[0])
