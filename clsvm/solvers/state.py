"""The state of a solve on the device, the rows that violate their optimum most, and the programs of solvers.

State: coefficients b, gradients f = K b + q, bounds. Rows stand in the device's order, in which padding rows belong to
no problem. Selection: working sets, chosen by counting. ``quota`` rows come from each side (or from all, without a
bias) that are not in the set yet, and stand behind the ``stay`` rows that stay. No array of length n is sorted or
leaves the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts import record
from clsvm.gram.layouts.record import WHOLE, Panel
from clsvm.gram.products import Operator, Update
from clsvm.gram.programs import RowSource
from clsvm.opencl import sources
from clsvm.opencl.contexts import local
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream, together
from clsvm.problem import Constraint, Problem, Vector
from clsvm.solvers import certificate

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


class View(NamedTuple):
    """What working sets are chosen by: f, b and its bounds, each (sets, n), and the kink."""

    f: Buffer
    b: Buffer
    lo: Buffer
    hi: Buffer
    kink: Buffer


class State:
    """lo, hi, q, f, b of ``P`` problems, each (P, n) wide numbers on the device, n rows with padding; kink (1,)."""

    def __init__(self, stream: Stream, gram: Operator, problems: int) -> None:
        self.stream, self.gram, self.n, self.P = stream, gram, gram.rows.n_pad, problems
        lo, hi, self.q, self.f, self.b = (stream.buffer(8 * problems * self.n) for _ in range(5))
        self.view = View(self.f, self.b, lo, hi, stream.buffer(8))

    def load(self, problem: Problem, start: Vector | None, known: tuple[Vector, Vector] | None) -> Vector | None:
        """Set the state to the start of ``problem``; return the coefficients of which f lacks K b yet. known:
        coefficients near ``start`` and the f of them."""
        lo, hi, held_q = map(self.stream.held_wide, (problem.lo, problem.hi, problem.q))
        self._held = replace(problem, lo=lo, hi=hi, q=held_q, start=None)  # (as the device holds its numbers)
        b = np.zeros((self.P, self.n)) if start is None else self.padded(start)
        q = self.padded(problem.q)
        near, f = (None, q) if known is None else (known[0], self.padded(known[1]))
        view = View(f, b, self.padded(problem.lo), self.padded(problem.hi), np.array([problem.kink]))
        for buffer, array in zip((*self.view, self.q), (*view, q), strict=True):
            self.stream.write_wide(buffer, array)
        return start if start is None or near is None else start - near

    def padded(self, values: Vector) -> Vector:
        """Return values (P, n) in the caller's order as (P, n_pad) in device order, zero in padding rows."""
        padded = np.zeros((self.P, self.n))
        padded[:, self.gram.rows.position] = values
        return padded

    def replace(self, f: Vector) -> None:
        """Take f (P, n) in the caller's order."""
        self.stream.write_wide(self.f, self.padded(f))

    def coefficients(self) -> Vector:
        """Return b (P, n) in the caller's order."""
        return self.stream.read_wide(self.b, (self.P, self.n))[:, self.gram.rows.position]

    def gradients(self) -> Vector:
        """Return f (P, n) in the caller's order."""
        return self.stream.read_wide(self.f, (self.P, self.n))[:, self.gram.rows.position]

    def now(self) -> tuple[Problem, Vector, Vector]:
        """Return the problem with its numbers as the device holds them, and b and f (P, n), in the caller's order."""
        f = self.gradients()
        certificate.finite(f, self.gram.kernel)
        return self._held, self.coefficients(), f

    def respond(self, b: Vector, panel: Panel) -> None:
        """Add K b to f, a panel of rows at a time; where K is there, and a panel holds places alone, as many rows as
        memory has room for."""
        s, gram, support = self.stream, self.gram, np.flatnonzero(b.any(axis=0))
        most = (s.limit - s.held) // (2 * (8 * self.P + 4)) if gram.whole else 0
        room = max(panel.capacity, min(most, len(support)))
        for first in range(0, len(support), room):
            some = support[first : first + room]
            weights = np.zeros((self.P, room))
            weights[:, : len(some)] = b[:, some]
            at, count = s.upload(gram.rows.position[some]), s.upload(np.array([len(some)], np.int32))
            D = s.wide(weights)
            gram.gather(panel, at, count)
            gram.accumulate(panel, count, None, Update(self.P, self.n, self.f, D, room))
            s.finish()
            s.free(at, count, D)


def _chunks(profile: Profile, n: int) -> int:
    least = BINS if profile.shape == "vector" else max(64, 2 * profile.group)  # (each chunk has its own bins)
    return max(1, min(profile.chunks, n // least))


def nbytes(profile: Profile, sets: int, n: int, W: int) -> int:
    """Return about how much device memory choosing working sets of W takes."""
    return sets * (n + 4 * W + 8 * BINS * _chunks(profile, n))


class Selection:
    """The working sets (``sets``, W) of a solve and how they are chosen from n rows, in a number of chunks;
    :meth:`clear` comes first.

    ``numbers`` and ``places``: what was seen at the last look (extremes.cl); ``counters`` (problems, 4): the solve's,
    which are read with them. ``ws``: -1 where a set is not full; each has ``stride`` places (W, where no number is
    given), W of which are ever taken.
    """

    def __init__(
        self,
        stream: Stream,
        dtype: str,
        constraint: Constraint,
        sets: int,
        n: int,
        W: int,
        stride: int | None = None,
        problems: int = 1,
    ) -> None:
        profile = stream.profile
        self.stream, self.sets, self.n, self.W, self.stride = stream, sets, n, W, stride or W
        self._sides = 2 if constraint in (Constraint.BIAS, Constraint.SPLIT) else 1
        self.chunks = _chunks(profile, n)
        self.chunk = -(-n // (self.chunks * WHOLE)) * WHOLE
        self.in_set, self.ws = stream.buffer(sets * n), stream.buffer(4 * sets * self.stride)
        bins, pieces = 2 * BINS, sets * self.chunks
        sizes = bins * pieces, bins * sets, 4 * sets, 4 * pieces
        self._counted = tuple(stream.zeros(4 * size) for size in sizes)  # bins of chunks and of sets; ends, shares
        shape = sets, self.chunks, 2 if constraint is Constraint.SPLIT else 1, 4
        seen = stream.as_wide(np.zeros(shape)), np.zeros(shape, np.int32), np.zeros((problems, 4), np.int64)
        self._seen = together(stream, seen)
        self.numbers, self.places, self.counters = self._seen.each
        self.program = selection(profile, dtype, constraint)
        names = ("extremes", "histogram", "threshold", "collect", "objective", *["share"] * (profile.shape == "group"))
        self._k = {name: stream.variant(self.program, name) for name in names}
        self._sums = stream.zeros(8 * 3 * pieces)

    def clear(self) -> None:
        """Take all rows out of the working sets; a step may have been interrupted."""
        self.stream.clear(self.in_set, self.sets * self.n)
        self.stream.write(self.ws, np.full(self.sets * self.stride, -1, np.int32))
        self.stream.clear(self._counted[1], 4 * 2 * BINS * self.sets)

    def over_rows(self, kernel: Any, *arguments: Any) -> None:
        """Launch a pass over the chunks of every problem's rows."""
        group = self.stream.profile.group
        kernel((group * self.chunks, self.sets), (group, 1), self.n, self.chunk, *arguments)

    def look(self, view: View) -> None:
        """Find extremes and sums of the state as it is."""
        self.over_rows(self._k["extremes"], view, self.numbers, self.places)

    def sums(self, *arguments: Any, kernel: Any = None) -> Vector:
        """Return the sums (sets, 3) that the objectives are made of; arguments: the kernel's before them."""
        self.over_rows(kernel or self._k["objective"], *arguments, self._sums)
        return np.asarray(self.stream.read_wide(self._sums, (self.sets, self.chunks, 3)).sum(axis=1))

    def beside(self, least: Vector, most: Vector) -> None:
        """Take the extremes (groups,) of rows elsewhere into what was seen, for :meth:`choose`."""
        numbers, places, counters = self.extremes()
        lower, higher = least < numbers[0, 0, :, 0], most > numbers[0, 0, :, 1]
        numbers[0, 0, lower, 0], numbers[0, 0, higher, 1] = least[lower], most[higher]
        places[0, 0, lower, 0] = places[0, 0, higher, 1] = np.iinfo(np.int32).max  # (no row of these)
        self._seen.write(self.stream, (self.stream.as_wide(numbers), places, counters))

    def choose(self, view: View, stay: int) -> None:
        """Fill the working set behind its first ``stay`` rows, after a look at the same state: two more passes over the
        rows, whatever the quota (count.cl)."""
        quota, group = (self.W - stay) // self._sides, self.stream.profile.group
        counts, totals, ends, shares = self._counted
        self.over_rows(self._k["histogram"], view, self.in_set, self.numbers, self.places, counts, totals)
        self._k["threshold"]((group * self.sets,), (group,), self.chunks, quota, self._counted)
        if "share" in self._k:
            self.over_rows(self._k["share"], counts, ends, shares)
        chosen = (self.numbers, self.places, ends, shares, quota, stay, self.stride, self.ws)
        self.over_rows(self._k["collect"], view, self.in_set, chosen)

    def extremes(self) -> tuple[Vector, NDArray[np.int32], NDArray[np.int64]]:
        """Return what was seen, numbers and places (sets, chunks, groups, 4), and the counters (problems, 4)."""
        numbers, places, counters = self._seen.read(self.stream)
        return self.stream.narrow(numbers), places, counters

    def seen(self) -> tuple[tuple[Vector, Vector, NDArray[Any], Vector], NDArray[np.int64]]:
        """Return the least and the largest derivative, how many coefficients are inside, and the sum of their
        derivatives, each (sets, groups), and the counters (problems, 4)."""
        numbers, places, counters = self.extremes()
        least, most = numbers[..., 0].min(axis=1), numbers[..., 1].max(axis=1)
        return (least, most, places[..., 2].sum(axis=1), numbers[..., 2].sum(axis=1)), counters
