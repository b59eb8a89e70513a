"""Working sets chosen on the device: the rows that violate their optimum most, by counting.

``quota`` rows come from each side (or from all, without a bias) that are not in the set yet, and stand behind the
``stay`` rows that stay. No array of length n is sorted or leaves the device.
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
    least = programs.BINS if profile.shape == "vector" else max(64, 2 * profile.group)  # (each chunk has its own bins)
    return max(1, min(profile.chunks, n // least))


def nbytes(profile: Profile, sets: int, n: int, W: int) -> int:
    """Return about how much device memory choosing working sets of W takes."""
    return sets * (n + 4 * W + 8 * programs.BINS * _chunks(profile, n))


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
        self._sides = 2 if constraint in (Constraint.BIAS, Constraint.SPLIT) else 1
        self.chunks = _chunks(profile, n)
        self.chunk = -(-n // (self.chunks * WHOLE)) * WHOLE
        self.in_set, self.ws = stream.buffer(sets * n), stream.buffer(4 * sets * self.stride)
        self._totals = stream.buffer(4 * 2 * programs.BINS * sets)
        self.clear()
        shape = sets, self.chunks, 2 if constraint is Constraint.SPLIT else 1, 4
        seen = stream.as_wide(np.zeros(shape)), np.zeros(shape, np.int32), np.zeros((problems, 4), np.int64)
        self._seen = together(stream, seen)
        self.numbers, self.places, self.counters = self._seen.each
        pieces = sets * self.chunks
        self._counts, self._ends, self._shares = (
            stream.zeros(4 * size) for size in (2 * programs.BINS * pieces, 4 * sets, 4 * pieces)
        )
        self.program = programs.selection(profile, dtype, constraint)
        names = ("extremes", "histogram", "threshold", "collect", *["share"] * (profile.shape == "group"))
        self._k = {name: stream.variant(self.program, name) for name in names}

    def clear(self) -> None:
        """Take all rows out of the working sets; a step may have been interrupted."""
        self.stream.clear(self.in_set, self.sets * self.n)
        self.stream.write(self.ws, np.full(self.sets * self.stride, -1, np.int32))
        self.stream.clear(self._totals, 4 * 2 * programs.BINS * self.sets)

    def over_rows(self, kernel: Any, *arguments: Any) -> None:
        """Launch a pass over the chunks of every problem's rows."""
        group = self.stream.profile.group
        kernel((group * self.chunks, self.sets), (group, 1), self.n, self.chunk, *arguments)

    def look(self, view: View) -> None:
        """Find extremes and sums of the state as it is."""
        self.over_rows(self._k["extremes"], view, self.numbers, self.places)

    def beside(self, least: NDArray[np.float64], most: NDArray[np.float64]) -> None:
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
        counted = self._counts, self._totals, self._ends, self._shares
        self.over_rows(self._k["histogram"], view, self.in_set, self.numbers, self.places, *counted[:2])
        self._k["threshold"]((group * self.sets,), (group,), self.chunks, quota, counted)
        if "share" in self._k:
            self.over_rows(self._k["share"], self._counts, self._ends, self._shares)
        chosen = (self.numbers, self.places, self._ends, self._shares, quota, stay, self.stride, self.ws)
        self.over_rows(self._k["collect"], view, self.in_set, chosen)

    def extremes(self) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int64]]:
        """Return what was seen, numbers and places (sets, chunks, groups, 4), and the counters (problems, 4)."""
        numbers, places, counters = self._seen.read(self.stream)
        return self.stream.narrow(numbers), places, counters
