"""Working sets chosen on the device: the rows that violate their optimum most, by counting or by sorting.

Both take ``quota`` rows from each side (or from all, without a bias) that are not in the set yet, and write them behind
the ``stay`` rows that stay. Nothing of length n is sorted or leaves the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import WHOLE
from clsvm.opencl.parts import together
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Constraint
from clsvm.solvers import programs


class View(NamedTuple):
    """What working sets are chosen by: f, b and its bounds, each (sets, n), and the kink."""

    f: Buffer
    b: Buffer
    lo: Buffer
    hi: Buffer
    kink: Buffer


def _chunks(profile: Profile, n: int) -> int:
    return max(1, min(profile.chunks, n // max(64, 2 * profile.group)))  # (each has its own bins)


class Selection:
    """The working sets (``sets``, W) of a solve and how they are chosen from n rows, in a number of chunks.

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
        self.sides = 2 if constraint in (Constraint.BIAS, Constraint.SPLIT) else 1
        self.groups = 2 if constraint is Constraint.SPLIT else 1
        self.most = W // self.sides  # of the first working set, which keeps nothing
        self.group, self.chunks = profile.group, _chunks(profile, n)
        self.chunk = -(-n // (self.chunks * WHOLE)) * WHOLE
        self.in_set, self.ws = stream.buffer(sets * n), stream.buffer(4 * sets * self.stride)
        self.clear()
        shape = sets, self.chunks, self.groups, 4
        seen = stream.as_wide(np.zeros(shape)), np.zeros(shape, np.int32), np.zeros((problems, 4), np.int64)
        self._seen = together(stream, seen)
        self.numbers, self.places, self.counters = self._seen.each
        self.program = programs.selection(profile, dtype, constraint, self._quota())
        self._k = {name: stream.variant(self.program, name) for name in ("extremes", *self._names)}

    _names: tuple[str, ...] = ()

    def clear(self) -> None:
        """No row is in a working set."""
        self.stream.clear(self.in_set, self.sets * self.n)
        self.stream.write(self.ws, np.full(self.sets * self.stride, -1, np.int32))

    def _quota(self) -> int:
        """The largest quota that the program has to hold; 0: any."""
        return 0

    def over_rows(self, kernel: Any, *arguments: Any) -> None:
        """A pass over the chunks of every problem's rows."""
        kernel((self.group * self.chunks, self.sets), (self.group, 1), self.n, self.chunk, *arguments)

    def look(self, view: View) -> None:
        """Extremes and sums of the state as it is."""
        self.over_rows(self._k["extremes"], view, self.numbers, self.places)

    def beside(self, least: NDArray[np.float64], most: NDArray[np.float64]) -> None:
        """Take the extremes (groups,) of rows elsewhere into what was seen, for :meth:`choose`."""
        numbers, places, counters = self.extremes()
        lower, higher = least < numbers[0, 0, :, 0], most > numbers[0, 0, :, 1]
        numbers[0, 0, lower, 0], numbers[0, 0, higher, 1] = least[lower], most[higher]
        places[0, 0, lower, 0] = places[0, 0, higher, 1] = np.iinfo(np.int32).max  # (no row of these)
        self._seen.write(self.stream, (self.stream.as_wide(numbers), places, counters))

    def choose(self, view: View, stay: int) -> None:
        """Fill the working set behind its first ``stay`` rows, after a look at the same state."""
        raise NotImplementedError

    def extremes(self) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]:
        """What was seen, numbers and places (sets, chunks, groups, 4), and the counters (problems, 4)."""
        numbers, places, counters = self._seen.read(self.stream)
        return self.stream.narrow(numbers), places, counters

    def _one_group(self) -> tuple[tuple[int], tuple[int]]:
        return (self.group * self.sets,), (self.group,)


class Counting(Selection):
    """Four passes over the rows, whatever the quota (count.cl)."""

    totals: Buffer = None

    def __init__(
        self, stream: Stream, dtype: str, constraint: Constraint, sets: int, n: int, W: int, *given: Any
    ) -> None:
        self._names = "histogram", "threshold", *["share"] * (stream.profile.shape == "group"), "collect"
        super().__init__(stream, dtype, constraint, sets, n, W, *given)
        pieces = sets * self.chunks
        self.counts, self.totals, self.ends, self.shares = (
            stream.zeros(4 * size)
            for size in (2 * programs.BINS * pieces, 2 * programs.BINS * sets, 4 * sets, 4 * pieces)
        )

    def clear(self) -> None:
        super().clear()
        if self.totals:  # (a step may have been interrupted)
            self.stream.clear(self.totals, 4 * 2 * programs.BINS * self.sets)

    def choose(self, view: View, stay: int) -> None:
        quota = (self.W - stay) // self.sides
        self.over_rows(self._k["histogram"], view, self.in_set, self.numbers, self.places, self.counts, self.totals)
        counted = self.counts, self.totals, self.ends, self.shares
        self._k["threshold"](*self._one_group(), self.chunks, quota, counted)
        if "share" in self._k:
            self.over_rows(self._k["share"], self.counts, self.ends, self.shares)
        chosen = (self.numbers, self.places, self.ends, self.shares, quota, stay, self.stride, self.ws)
        self.over_rows(self._k["collect"], view, self.in_set, chosen)


class Sorting(Selection):
    """One pass, which is the look itself, for small quotas (sort.cl)."""

    _names = ("shortlist", "choose")

    def __init__(
        self, stream: Stream, dtype: str, constraint: Constraint, sets: int, n: int, W: int, *given: Any
    ) -> None:
        super().__init__(stream, dtype, constraint, sets, n, W, *given)
        listed = sets * self.chunks * self.sides * self.most
        self.keys, self.rows = stream.zeros(8 * listed), stream.zeros(4 * listed)

    def _quota(self) -> int:
        return self.most

    def look(self, view: View) -> None:
        lists = (self.in_set, self.most, self.numbers, self.places, self.keys, self.rows)
        self.over_rows(self._k["shortlist"], view, lists)

    def choose(self, view: View, stay: int) -> None:
        seen = (self.in_set, self.numbers, self.places, self.keys, self.rows)
        quota = (self.W - stay) // self.sides
        sizes = (self.n, self.chunks, self.most)
        self._k["choose"](*self._one_group(), sizes, view, seen, quota, stay, self.stride, self.ws)


def kind_for(profile: Profile, constraint: Constraint, W: int) -> type[Counting] | type[Sorting]:
    """The way that a device profile takes for a working set of W."""
    quota = W // 2 if constraint is Constraint.BIAS else W
    return Sorting if quota <= profile.sort_most and constraint is not Constraint.SPLIT else Counting


def nbytes(profile: Profile, constraint: Constraint, sets: int, n: int, W: int) -> int:
    """Device memory for choosing working sets of W, about."""
    kind, pieces = kind_for(profile, constraint, W), sets * _chunks(profile, n)
    return sets * (n + 4 * W) + pieces * (8 * programs.BINS if kind is Counting else 12 * W)


def selection(stream: Stream, dtype: str, constraint: Constraint, sets: int, n: int, W: int, *given: Any) -> Selection:
    """:func:`kind_for` the stream's profile, with its buffers. given: stride and problems of :class:`Selection`."""
    return kind_for(stream.profile, constraint, W)(stream, dtype, constraint, sets, n, W, *given)
