"""Save the coefficients of an SVM fit in a file, from which a later fit continues."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
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
from clsvm.problem import Constraint, Subproblem, Vector
from clsvm.report import Status
from clsvm.solvers.result import Result

# errors that NumPy raises for files that are not checkpoints
UNREADABLE = OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile
_SHOWN = "problems", "kernel"  # entries of the file that error messages quote; other entries are digests
_REACHED = "primal", "dual", "violation", "error_bound", "exact_rows"  # attributes of a Result that the file stores


@contextmanager
def open_checkpoint(
    options: Options, X: Any, subproblems: Sequence[Subproblem], kernel: Kernel | Precomputed
) -> Iterator[Checkpoint | None]:
    """Open the checkpoint file that ``options.checkpoint`` names; yield None if it names none.

    An existing file is read. The file is written when the context ends, also if an error or Ctrl-C ends it. Raises
    CheckpointError as :meth:`Checkpoint.read` does.
    """
    if options.checkpoint is None:
        yield None
        return
    made = Checkpoint(Path(options.checkpoint), X, subproblems, kernel, options)
    if made.file.exists():
        made.read()
    try:
        yield made
        made.changed = True
    finally:
        if made.changed:
            made.write()


class Checkpoint:
    """Write the coefficients of a fit's subproblems to a file, from which a later fit continues.

    The file also has digests of the rows, labels, bounds and kernel, so that a fit to other data refuses it. The file
    is written whole or not at all. Several threads may use one checkpoint.

    Attributes
    ----------
    b
        list of the coefficients (problems, m) of each subproblem, at first those from which the subproblem starts.
    solved
        index of a converged subproblem -> its result, empty if the fit has one subproblem only. A later fit with equal
        tol, gap_tol and dtype takes these results as they are.
    changed
        whether the file lacks the current coefficients.
    """

    VERSION = 2

    def __init__(
        self, file: Path, X: Any, subproblems: Sequence[Subproblem], kernel: Kernel | Precomputed, options: Options
    ) -> None:
        self.file = file
        self._settings = ", ".join(f"{name}={getattr(options, name)!r}" for name in ("tol", "gap_tol", "dtype"))
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
            "problems": _problems_text(subproblems, X.shape[0]),
            "labels": _digest(*formulation),
            "C, nu or weights": _digest(*bounds),
            "kernel": repr(kernel),
        }
        self.b = [
            np.zeros_like(one.problem.q) if one.start is None else one.start.reshape(one.problem.q.shape)
            for one in subproblems
        ]
        self.solved: dict[int, Result] = {}
        self._lock, self._written, self.changed = RLock(), perf_counter(), False
        folder = self.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {str(self.file)!r}: there is no folder {str(folder)!r}")

    def read(self) -> None:
        """Read the file. Raises CheckpointError if it belongs to another fit or is no checkpoint of clsvm."""
        try:
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                stored = {name: content[name] for name in content.files}
            self._load(int(stored["clsvm_checkpoint"]), stored)
        except CheckpointError:
            raise
        except UNREADABLE as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{self.file} is no checkpoint of clsvm{why}") from None

    def _load(self, version: int, stored: Mapping[str, NDArray[Any]]) -> None:
        if version != self.VERSION:
            raise CheckpointError(f"{self.file} is a checkpoint of version {version}, expected {self.VERSION}")
        for name, expected in self._digests.items():
            if (found := str(stored[name])) != expected:
                words = f" ({found}, expected {expected})" if name in _SHOWN else ""
                raise CheckpointError(f"{self.file} is of another fit: other {name}{words}; name another file, or none")
        b, ends = stored["b"], np.cumsum([one.size for one in self.b])
        if b.shape != (ends[-1],) or b.dtype != np.float64 or not np.isfinite(b).all():
            raise CheckpointError(f"{self.file} holds coefficients {b.shape} of {b.dtype}, expected ({ends[-1]},)")
        self.b = [part.reshape(one.shape) for part, one in zip(np.split(b, ends[:-1]), self.b, strict=True)]
        if str(stored["asked"]) == self._settings:
            named = (stored[name].tolist() for name in ("solved", "ended", "reached"))
            for index, (status, dtype, device), reached, rho in zip(*named, stored["rho"], strict=True):
                self.solved[index] = result(self.b[index], rho[None], Status[status], dtype, device, reached)

    def save(self, index: int, b: Vector, every: float = 0.0, ended: Result | None = None) -> None:
        """Keep the coefficients b of the subproblem with the index ``index``, and its result if it has converged.

        Write the file if at least ``every`` seconds have passed since it was last written. Raises OSError.

        ended: the subproblem's result, or None if its solve goes on.
        """
        with self._lock:
            self.b[index], self.changed = b.reshape(self.b[index].shape), True
            self.solved.pop(index, None)  # an older result belongs to older coefficients
            if ended and ended.status.converged and len(self.b) > 1:
                self.solved[index] = ended
            if perf_counter() - self._written >= every:
                self.write()

    def write(self) -> None:
        """Replace the file by one with the current coefficients and results. Raises OSError."""
        with self._lock:
            solved = [one for _, one in sorted(self.solved.items())]
            content: dict[str, Any] = {
                "clsvm_checkpoint": np.int64(self.VERSION),
                "b": np.concatenate([one.ravel() for one in self.b]),
                "asked": np.str_(self._settings),
                "solved": np.array(sorted(self.solved), np.int64),
                "ended": np.array([(one.status.name, one.dtype, one.device) for one in solved], np.str_),
                "reached": np.array([[getattr(one, name) for name in _REACHED] for one in solved], np.float64),
                "rho": np.array([one.rho[0] for one in solved], np.float64),
            }
            content |= {name: np.str_(value) for name, value in self._digests.items()}
            with files.atomic_write(self.file) as stream:
                np.savez(stream, **content)
            self._written, self.changed = perf_counter(), False


def result(b: Vector, rho: Vector, status: Status, dtype: str, device: str, reached: Sequence[float]) -> Result:
    """Return a Result from coefficients b, offsets rho and the numbers that _REACHED names.

    The result counts no SMO iterations, and its gradients f are nan.
    """
    numbers: dict[str, Any] = dict(zip(_REACHED, reached, strict=True))
    numbers |= {"exact_rows": int(numbers["exact_rows"]), "steps": 0, "working_set": b.shape[1], "precision": dtype}
    return Result(b=b, f=np.full_like(b, np.nan), rho=rho, status=status, dtype=dtype, device=device, **numbers)


def _problems_text(subproblems: Sequence[Subproblem], n: int) -> str:
    """Say in words whether a fit to n rows has one subproblem, one for each class, or one for each pair of classes."""
    if len(subproblems) == 1:
        coupled = subproblems[0].problem.constraint is Constraint.COUPLED
        return "one for all classes" if coupled else "one"
    return "one for each class" if all(len(one.rows) == n for one in subproblems) else "one for each pair of classes"


def _digest(*arrays: NDArray[Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(str((array.shape, array.dtype)).encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return made.hexdigest()
