"""Coefficients in a file, to go on from."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import files
from clsvm.errors import CheckpointError
from clsvm.fit.prepare import Vector
from clsvm.kernels import Kernel, Precomputed
from clsvm.problem import Problem


class Checkpoint:
    """Coefficients in a file, with digests of the fit that they belong to; written whole or not at all."""

    VERSION = 1

    def __init__(self, file: Path, X: Any, problem: Problem, kernel: Kernel | Precomputed) -> None:
        self.file, self._shape = file, problem.q.shape
        arrays = (X.indptr, X.indices, X.data) if sp.issparse(X) else (X,)
        self._of = {
            "rows of X": _digest(np.asarray(X.shape), *arrays),
            "labels": _digest(problem.q, np.asarray([problem.constraint.name]), np.asarray([problem.kink])),
            "C, nu or weights": _digest(problem.lo, problem.hi, *([] if problem.start is None else [problem.total])),
            "kernel": repr(kernel),
        }
        folder = self.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {str(self.file)!r}: there is no folder {str(folder)!r}")

    def read(self) -> Vector:
        """The coefficients (problems, n). Raises CheckpointError for a file of another fit, or none of clsvm's."""
        try:
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                version, b = int(content["clsvm_checkpoint"]), content["b"]
                found = {name: str(content[name]) for name in self._of}
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{self.file} is no checkpoint of clsvm{why}") from None
        if version != self.VERSION:
            raise CheckpointError(f"{self.file} is a checkpoint of version {version}, expected {self.VERSION}")
        for name, expected in self._of.items():
            if found[name] != expected:
                words = f" ({found[name]}, expected {expected})" if name == "kernel" else ""
                raise CheckpointError(f"{self.file} is of another fit: other {name}{words}; name another file, or none")
        if b.shape != self._shape or b.dtype != np.float64 or not np.isfinite(b).all():
            raise CheckpointError(f"{self.file} holds coefficients {b.shape} of {b.dtype}, expected {self._shape}")
        return np.asarray(b)

    def write(self, b: Vector) -> None:
        """Replace the file by one with ``b``. Raises OSError."""
        content: dict[str, Any] = {"clsvm_checkpoint": np.int64(self.VERSION), "b": b}
        content |= {name: np.str_(value) for name, value in self._of.items()}
        with files.atomic_write(self.file) as stream:
            np.savez(stream, **content)


def _digest(*arrays: NDArray[Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(str((array.shape, array.dtype)).encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return made.hexdigest()
