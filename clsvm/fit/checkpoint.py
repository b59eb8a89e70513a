"""Coefficients in a file, to go on from."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import files
from clsvm.errors import CheckpointError
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.problem import Constraint
from clsvm.report import Status
from clsvm.solvers.member import Member, Outcome

Vector = NDArray[np.float64]
_SHOWN = "problems", "kernel"  # what a refusal quotes: the rest are digests
_REACHED = "primal", "dual", "violation", "error_bound", "exact_rows"  # what is kept of an outcome, beside b and rho


class Ended(NamedTuple):
    """How one of several problems ended, and the dtype and the device of the kernel values that say so."""

    outcome: Outcome
    status: Status
    dtype: str
    device: str


@contextmanager
def opened(
    options: Options, X: Any, members: Sequence[Member], kernel: Kernel | Precomputed
) -> Iterator[Checkpoint | None]:
    """The checkpoint that a fit of ``members`` to X asks for, if it does: read where the file is there, and written
    once more at the end, however that comes. Raises CheckpointError as :meth:`Checkpoint.read`."""
    if options.checkpoint is None:
        yield None
        return
    made = Checkpoint(Path(options.checkpoint), X, members, kernel, options)
    if made.file.exists():
        made.read()
    try:
        yield made
        made.write()
    finally:
        made.close()


class Checkpoint:
    """Coefficients of some problems in a file, how those ended that are solved, and digests of the fit that they belong
    to; written whole or not at all. Several threads may use it.

    b: the coefficients (problems, n) of each member, its own start before there are others. solved: the members of
    several that converged, which need not be solved again: the file says so where tol, gap_tol and dtype are the same.
    A member of a single problem that is coupled has as many coefficients as that.
    """

    VERSION = 2

    def __init__(
        self, file: Path, X: Any, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options
    ) -> None:
        self.file, self._every = file, options.checkpoint_every
        self._asked = ", ".join(f"{name}={getattr(options, name)!r}" for name in ("tol", "gap_tol", "dtype"))
        arrays = (X.indptr, X.indices, X.data) if sp.issparse(X) else (X,)
        posed, bounds = list[NDArray[Any]](), list[NDArray[Any]]()
        for one in (member.problem for member in members):
            posed += [one.q, np.asarray([one.constraint.name]), np.asarray([one.kink])]
            bounds += [one.lo, one.hi, *([] if one.start is None else [one.total])]
        if (unused := np.setdiff1d(np.arange(X.shape[0]), np.concatenate([one.rows for one in members]))).size:
            bounds.append(unused)
        self._of = {
            "rows of X": _digest(np.asarray(X.shape), *arrays),
            "problems": _kind(members, X.shape[0]),
            "labels": _digest(*posed),
            "C, nu or weights": _digest(*bounds),
            "kernel": repr(kernel),
        }
        self.b = [
            np.zeros_like(one.problem.q) if one.start is None else one.start.reshape(one.problem.q.shape)
            for one in members
        ]
        self.solved: dict[int, Ended] = {}
        self._lock, self._written, self._changed = RLock(), perf_counter(), False
        folder = self.file.parent
        if not folder.is_dir():
            raise CheckpointError(f"checkpoint {str(self.file)!r}: there is no folder {str(folder)!r}")

    def read(self) -> None:
        """Take what the file has. Raises CheckpointError for a file of another fit, or none of clsvm's."""
        try:
            with open(self.file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                held = {name: content[name] for name in content.files}
            self._take(int(held["clsvm_checkpoint"]), held)
        except CheckpointError:
            raise
        except (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile) as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"{self.file} is no checkpoint of clsvm{why}") from None

    def _take(self, version: int, held: Mapping[str, NDArray[Any]]) -> None:
        if version != self.VERSION:
            raise CheckpointError(f"{self.file} is a checkpoint of version {version}, expected {self.VERSION}")
        for name, expected in self._of.items():
            if (found := str(held[name])) != expected:
                words = f" ({found}, expected {expected})" if name in _SHOWN else ""
                raise CheckpointError(f"{self.file} is of another fit: other {name}{words}; name another file, or none")
        b, ends = held["b"], np.cumsum([one.size for one in self.b])
        if b.shape != (ends[-1],) or b.dtype != np.float64 or not np.isfinite(b).all():
            raise CheckpointError(f"{self.file} holds coefficients {b.shape} of {b.dtype}, expected ({ends[-1]},)")
        self.b = [part.reshape(one.shape) for part, one in zip(np.split(b, ends[:-1]), self.b, strict=True)]
        if str(held["asked"]) == self._asked:
            named = (held[name].tolist() for name in ("solved", "ended", "reached"))
            for place, (status, dtype, device), reached, rho in zip(*named, held["rho"], strict=True):
                self.solved[place] = self._recalled(place, Status[status], dtype, device, reached, rho)

    def _recalled(
        self, place: int, status: Status, dtype: str, device: str, reached: Sequence[float], rho: Vector
    ) -> Ended:
        """How a problem ended in the fit that wrote the file; this fit takes no steps for it."""
        numbers: dict[str, Any] = dict(zip(_REACHED, reached, strict=True))
        numbers["exact_rows"] = int(numbers["exact_rows"])
        outcome = Outcome(b=self.b[place][0], rho=rho, steps=0, sure=status is Status.TOLERANCE, **numbers)
        return Ended(outcome, status, dtype, device)

    def save(self, place: int, b: Vector) -> None:
        """Keep the coefficients of a problem, and write the file. Raises OSError."""
        with self._lock:
            self._keep(place, b)
            self.write()

    def stands(self, place: int, b: Vector) -> None:
        """:meth:`save`, but the file is written only where it is time again."""
        with self._lock:
            self._keep(place, b)
            self._write_in_time()

    def ended(self, place: int, one: Ended) -> None:
        """:meth:`stands` of a problem that nothing more is done for."""
        with self._lock:
            self._keep(place, one.outcome.b)
            if one.status.converged:
                self.solved[place] = one
            self._write_in_time()

    def close(self) -> None:
        """:meth:`write` where there is something new."""
        with self._lock:
            if self._changed:
                self.write()

    def write(self) -> None:
        """Replace the file by one of what there is now. Raises OSError."""
        with self._lock:
            solved = [(place, *one) for place, one in sorted(self.solved.items())]
            content: dict[str, Any] = {
                "clsvm_checkpoint": np.int64(self.VERSION),
                "b": np.concatenate([one.ravel() for one in self.b]),
                "asked": np.str_(self._asked),
                "solved": np.array([place for place, *_ in solved], np.int64),
                "ended": np.array([(status.name, *where) for _, _, status, *where in solved], np.str_),
                "reached": np.array([[getattr(one, name) for name in _REACHED] for _, one, *_ in solved], np.float64),
                "rho": np.array([one.rho for _, one, *_ in solved], np.float64),
            }
            content |= {name: np.str_(value) for name, value in self._of.items()}
            with files.atomic_write(self.file) as stream:
                np.savez(stream, **content)
            self._written, self._changed = perf_counter(), False

    def _keep(self, place: int, b: Vector) -> None:
        """Coefficients of a problem, of which nothing else is known."""
        self.b[place], self._changed = b.reshape(self.b[place].shape), True
        self.solved.pop(place, None)

    def _write_in_time(self) -> None:
        if perf_counter() - self._written >= self._every:
            self.write()


def _kind(members: Sequence[Member], n: int) -> str:
    """What the problems of a fit to n rows are of, in words."""
    if len(members) == 1:
        coupled = members[0].problem.constraint is Constraint.COUPLED
        return "one for all classes" if coupled else "one"
    return "one for each class" if all(len(one.rows) == n for one in members) else "one for each pair of classes"


def _digest(*arrays: NDArray[Any]) -> str:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(str((array.shape, array.dtype)).encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return made.hexdigest()
