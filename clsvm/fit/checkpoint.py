"""Save the coefficients of an SVM fit in a file, from which a later fit continues."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import files
from clsvm.errors import CheckpointError
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.problem import Subproblem, Vector


@contextmanager
def open_checkpoint(
    options: Options, X: Any, subproblems: Sequence[Subproblem], kernel: Kernel | Precomputed
) -> Iterator[Checkpoint | None]:
    """Yield the checkpoint of a fit in the file ``options.checkpoint``, or None if the user named no file.

    An existing file is read. When the ``with`` block ends, the file is written, also after an error or Ctrl-C. Raises
    CheckpointError as :meth:`Checkpoint.read` does.
    """
    if options.checkpoint is None:
        yield None
        return
    made = Checkpoint(Path(options.checkpoint), X, subproblems, kernel)
    if made.file.exists():
        made.read()
    try:
        yield made
        made.changed = True
    finally:
        if made.changed:
            made.write()


class Checkpoint:
    """Write the coefficients of all dual problems of a fit to a file, from which a later fit continues.

    The file also has digests of the rows, labels, bounds and kernel. :meth:`read` raises CheckpointError if the digests
    of the current fit differ. The file is written whole or not at all. Several threads may use one checkpoint.

    Attributes
    ----------
    b
        list with an array of coefficients, (problems, m), for each subproblem. A subproblem is one or more dual
        problems over the same m rows. At first the list has the coefficients from which the fit starts.
    changed
        whether the coefficients changed since the file was written.
    """

    VERSION = 2

    def __init__(self, file: Path, X: Any, subproblems: Sequence[Subproblem], kernel: Kernel | Precomputed) -> None:
        self.file = file
        arrays = (X.indptr, X.indices, X.data) if sp.issparse(X) else (X,)
        formulation, bounds = list[NDArray[Any]](), list[NDArray[Any]]()
        for one in (subproblem.problem for subproblem in subproblems):
            formulation += [one.q, np.asarray([one.constraint.name]), np.asarray([one.epsilon])]
            bounds += [one.lo, one.hi, *([] if one.start is None else [one.total])]
        used = np.concatenate([one.rows for one in subproblems])
        if (unused := np.setdiff1d(np.arange(X.shape[0]), used)).size:
            bounds.append(unused)
        self._digests = {
            "rows of X": _digest(np.asarray(X.shape), *arrays),
            "labels": _digest(*formulation),
            "C, nu or weights": _digest(*bounds),
            "kernel": repr(kernel),
        }
        self.b = [
            np.zeros_like(one.problem.q) if one.start is None else one.start.reshape(one.problem.q.shape)
            for one in subproblems
        ]
        self._lock, self._written, self.changed = RLock(), perf_counter(), False
        folder = self.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {str(self.file)!r}: there is no folder {str(folder)!r}")

    def read(self) -> None:
        """Read the file. Raises CheckpointError if it belongs to another fit or is no checkpoint of clsvm."""
        try:
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                version = int(content["clsvm_checkpoint"])
                if version != self.VERSION:
                    raise CheckpointError(f"{self.file} is a checkpoint of version {version}, expected {self.VERSION}")
                stored, b = {name: str(content[name]) for name in self._digests}, content["b"]
        except CheckpointError:
            raise
        except files.DAMAGED_ARCHIVE as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{self.file} is no checkpoint of clsvm{why}") from None
        for name, expected in self._digests.items():
            if (found := stored[name]) != expected:
                words = f" ({found}, expected {expected})" if name == "kernel" else ""
                raise CheckpointError(
                    f"{self.file} was written by a fit with different {name}{words}; pass another file, or none"
                )
        ends = np.cumsum([one.size for one in self.b])
        if b.shape != (ends[-1],) or b.dtype != np.float64 or not np.isfinite(b).all():
            raise CheckpointError(
                f"{self.file} has coefficients of shape {b.shape} and dtype {b.dtype}, expected finite float64 "
                f"of shape ({ends[-1]},)"
            )
        self.b = [part.reshape(one.shape) for part, one in zip(np.split(b, ends[:-1]), self.b, strict=True)]

    def save(self, index: int, b: Vector, every: float = 0.0) -> None:
        """Store the coefficients b of the subproblem with the index ``index``.

        Write the file if it was last written at least ``every`` seconds ago. Raises OSError if writing fails.
        """
        with self._lock:
            self.b[index], self.changed = b.reshape(self.b[index].shape), True
            if perf_counter() - self._written >= every:
                self.write()

    def write(self) -> None:
        """Replace the file by one with the current coefficients. Raises OSError if writing fails."""
        with self._lock:
            b = np.concatenate([one.ravel() for one in self.b])
            content: dict[str, Any] = {"clsvm_checkpoint": self.VERSION, "b": b, **self._digests}
            with files.atomic_write(self.file) as stream:
                np.savez(stream, **content)
            self._written, self.changed = perf_counter(), False


def _digest(*arrays: NDArray[Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(str((array.shape, array.dtype)).encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return made.hexdigest()
