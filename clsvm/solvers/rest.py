"""The rest of the rows of K at once, where most of those that the row cache lacks are likely to be asked for.

Working sets ask for a few rows at a time, each with all of its values. Of many rows that are made together half of the
values are mirror images of the others. Panel after panel, from the last rows to the first:

    K[u][.. end]   <- products over the lane groups up to the last row u of the panel
    K[u][end ..]   <- K[end ..][u]                                                               given.cl, reflect

Rows are likely to be asked for where their coefficients violate the optimality conditions.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Gram, Products, Store, over_all
from clsvm.gram.row_cache import RowCache
from clsvm.opencl.stream import Buffer
from clsvm.solvers import certificate
from clsvm.solvers.programs import Misses
from clsvm.solvers.state import State
from clsvm.threads import go_on

FIRST = 1 / 8  # of all rows: so many are computed before it is looked at, and twice as many before the next time
COPIED = 2.0  # times the profile's cache_cost, that a value takes which is a mirror image
GAIN = 1.25  # times what it costs, that it is to spare
SIDE = 16  # of the squares of reflect


class Made(NamedTuple):
    """How many rows were made, and how many of them the values that are mirror images would fill."""

    rows: int
    mirrored: int


class Rest:
    """The rest of the rows of a solve's row cache."""

    def __init__(self, state: State, cache: RowCache, tol: float) -> None:
        self._state, self._cache, self._tol = state, cache, tol
        self._next = FIRST * state.gram.rows.n

    @staticmethod
    def suits(gram: Products) -> bool:
        """Whether there are kernels for it, and it could pay (:meth:`pays`) if all rows were wanted."""
        if not isinstance(gram, Gram) or gram.stream.profile.shape != "vector":
            return False
        return gram.rows.cost * (1 - GAIN / 2) > GAIN * COPIED * gram.stream.profile.cache_cost

    def pays(self, computed: int) -> bool:
        """Whether it does, after so many rows."""
        state, rows = self._state, self._state.gram.rows
        if computed < self._next or self._cache.most < rows.n:
            return False
        self._next = 2.0 * computed
        missing = self._missing()
        seen = certificate.of(*state.now())
        asked = violating(seen, self._tol).reshape(state.P, rows.n).any(axis=0)
        wanted = np.isin(missing, rows.position[asked]).sum()
        each = rows.cost / 2 + COPIED * state.stream.profile.cache_cost
        return bool(wanted * rows.cost > GAIN * len(missing) * each)

    def make(self, panel: Panel, misses: Misses, counters: Buffer, until: float = np.inf) -> Made:
        """Computes them, and ends early at a time of perf_counter. Nothing is done where the ring has no free slots for
        them. The row cache is told of them at the end, when their values are whole."""
        state, cache, stream = self._state, self._cache, self._state.stream
        gram, n, room = state.gram, state.n, panel.capacity
        assert isinstance(gram, Gram)
        missing, counts = self._missing(), stream.read(counters, np.int64, 4 * state.P)
        head = int(counts[2])
        cache.reserve(head + len(missing), 0)
        if head + len(missing) > cache.capacity:
            return Made(0, 0)
        slots = (head + np.arange(len(missing), dtype=np.int32))[::-1]
        slot_of, ends = stream.read(cache.slot_of, np.int32, n), np.full(n, n, np.int32)
        unit = max(SIDE, gram.rows.lanes)
        reflect = stream.variant(programs.given(stream.profile, gram.rows.dtype), "reflect")
        store = Store(cache.slabs, cache.slab_rows, n, misses.slot)
        first = len(missing)
        while first and perf_counter() < until:
            go_on()
            last, first = first, max(0, first - room)
            some, at, to = missing[first:last], np.full(room, -1, np.int32), np.zeros(room, np.int32)
            at[: len(some)], to[: len(some)] = some, slots[first:last]
            given = (misses.row, at), (misses.slot, to), (misses.count, np.array([len(some)], np.int32))
            for buffer, values in given:
                stream.write(buffer, values)
            ends[some] = end = min(n, -(-(int(some[-1]) + 1) // unit) * unit)
            gram.gather(panel, misses.row, misses.count)
            groups = range(end // gram.rows.lanes)
            gram.over_rows(over_all(store, None), groups, 0, panel, misses.count, store, None)
            stream.finish()
        made, to = missing[first:], slots[first:]
        slot_of[made] = to
        with stream.scratch():
            there = store._replace(slot=stream.upload(slot_of))
            reflect((n // SIDE,), (1,), there.arguments(), stream.upload(ends), n)
            stream.finish()
        owner = stream.read(cache.owner, np.int32, head + len(made))
        owner[to] = made
        counts[[1, 2]] += len(made)
        for buffer, values in ((cache.owner, owner), (counters, counts), (cache.slot_of, slot_of)):
            stream.write(buffer, values)
        return Made(len(made), int((n - ends[made]).sum()) // n)

    def _missing(self) -> NDArray[np.int32]:
        """Positions of rows without a slot, ascending."""
        state, at = self._state, self._state.gram.rows.position
        slots = state.stream.read(self._cache.slot_of, np.int32, state.n)
        return np.sort(at[slots[at] < 0])


def violating(seen: certificate.Extremes, tol: float) -> NDArray[np.bool_]:
    """The entries whose coefficients are to change."""
    offset = seen.offset if seen.held else np.zeros_like(seen.right)
    return np.asarray((seen.right < offset - tol) | (seen.left > offset + tol))
