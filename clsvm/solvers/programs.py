"""The programs of solvers: the choice of working sets, the dual over one, and what carries its tile along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from clsvm.gram.layouts import record
from clsvm.gram.programs import RowSource
from clsvm.opencl import sources
from clsvm.opencl.launch import local
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Constraint

BINS = 2048  # of the histogram that chooses the working set
MOST = 20  # inner steps for each row of the working set, after which f is made anew
SHRINK = 0.1  # an inner solve stops at this share of its first violation
VECTOR_STATE = 64  # bytes of local memory for each row of the working set in the vector shape's subproblem


def _cl(*names: str) -> str:
    return sources.cl(*(f"solvers/{name}" for name in names))


def subproblem_items(profile: Profile, working_set: int) -> int:
    """Return the number of work-items that solve the dual over a working set of that size."""
    return 1 if profile.shape == "vector" else min(1 << working_set.bit_length() - 1, profile.pair_items)


def subproblem(
    profile: Profile,
    dtype: str,
    working_set: int,
    constraint: Constraint = Constraint.BIAS,
    rows: RowSource | None = None,
) -> Variant:
    """Return the program that solves the dual over a working set of that size; with a source of rows (vector shape,
    BIAS or NONE) it gets the rows of Q that it needs itself."""
    items = subproblem_items(profile, working_set)
    ground = ("fold",) if profile.shape == "vector" else ("argmin", "least")
    options = [*record.options(profile, dtype), f"-DWG={items}"]
    options += [f"-DEACH={-(-working_set // items)}"] * (items > 1)
    options += ["-DNO_BIAS"] * (constraint is Constraint.NONE) + ["-DSPLIT"] * (constraint is Constraint.SPLIT)
    names = [f"subproblem_{profile.shape}"]
    if constraint is Constraint.COUPLED:
        names = ["row_threshold", f"coupled_{profile.shape}"]
    label, text = f"subproblem {constraint.name.lower()} {dtype}", _cl(*ground, *names)
    if rows:
        label, text = f"{rows.name} {label}", rows.text + text.removeprefix(sources.cl())
        options += ["-DROWS", *rows.options]
    return Variant(label, text, tuple(options), "subproblem")


def selection(profile: Profile, dtype: str, constraint: Constraint = Constraint.BIAS) -> Variant:
    """Return the program that chooses the working set and plans the row cache; ``entry`` is the first of several
    kernels."""
    options = [*record.options(profile, dtype), f"-DWG={profile.group}", f"-DBINS={BINS}"]
    options += ["-DNO_BIAS"] * (constraint in (Constraint.NONE, Constraint.COUPLED))
    options += ["-DSPLIT"] * (constraint is Constraint.SPLIT)
    names = ("extremes", "count", "rowcache", *["coupled"] * (constraint is Constraint.COUPLED))
    text = _cl(*["argmin"] * (profile.shape == "group"), *names)
    return Variant(f"{', '.join(names)} {constraint.name.lower()} {dtype}", text, tuple(options), "extremes")


RESPOND = 4  # VECTORS of respond.cl


def respond(profile: Profile, dtype: str) -> Variant:
    """Return the program of f = K b + q, of problems that are solved whole."""
    return Variant(f"respond {dtype}", sources.cl("solvers/respond"), (*record.options(profile, dtype),), "respond")


def shard(profile: Profile, dtype: str) -> Variant:
    """Return the program for single rows of a shard; ``entry`` is the first of three kernels."""
    return Variant(f"shard {dtype}", _cl("shard"), (*record.options(profile, dtype),), "put")


SQUARE = 16  # SIDE of carry.cl


def carry(profile: Profile, dtype: str) -> Variant:
    """Return the program of a tile from the one before; ``entry`` is the first of two kernels."""
    return Variant(f"carry {dtype}", sources.cl("solvers/carry"), (*record.options(profile, dtype),), "carry")


def squares(profile: Profile, wide: int, high: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """Return range and work-group of that program over wide x high values, whole squares."""
    if profile.shape == "vector":
        return (wide // SQUARE, high // SQUARE), None
    return (wide, high), (SQUARE, SQUARE)


def mirror(stream: Stream, dtype: str) -> Callable[[int, int, Buffer], None]:
    """Return the launch that mirrors one side of a tile Q (W, W) of numbers of ``dtype``, from column ``known`` on."""
    kernel = stream.variant(carry(stream.profile, dtype), "mirror")
    return lambda W, known, Q: kernel(*squares(stream.profile, W, W - known), W, known, Q)


def most_places(stream: Stream) -> float:
    """Return the most places of a working set whose subproblem the device's local memory holds."""
    return stream.local_memory // VECTOR_STATE if stream.profile.shape == "vector" else np.inf


class Limits(NamedTuple):
    """When a subproblem is solved: at ``tol``, at the share ``shrink`` of its first violation, or after so many steps.
    budget: steps that its problem has in all."""

    tol: np.float32
    shrink: np.float32
    steps: int
    budget: np.int64

    @classmethod
    def of(cls, tol: float, max_iter: int, W: int) -> Self:
        """Return the limits for a working set of W rows in a solve to ``tol`` by ``max_iter`` steps, -1 for any
        number."""
        return cls(np.float32(0.5 * tol), np.float32(SHRINK), MOST * W, np.int64(max_iter if max_iter >= 0 else 2**62))


class PairSteps:
    """SMO iterations on working sets of W places: the subproblem's kernel, and how it is launched."""

    def __init__(
        self, stream: Stream, dtype: str, W: int, constraint: Constraint, rows: RowSource | None = None
    ) -> None:
        self._items, self._W = subproblem_items(stream.profile, W), W
        self._kernel = stream.variant(subproblem(stream.profile, dtype, W, constraint, rows))

    def __call__(
        self, sets: int, n: Any, ws: Buffer, Q: Buffer, state: Any, limits: Limits, rows: Any = (), memory: Any = None
    ) -> None:
        """Launch them on so many sets ``ws`` of n rows, with tiles Q; rows: what rows of Q are made from. memory: the
        kernel's own, local by default."""
        memory = memory or local(VECTOR_STATE * self._W if self._items == 1 else 8)
        self._kernel((self._items * sets,), (self._items,), n, self._W, ws, Q, state, limits, memory, rows)
