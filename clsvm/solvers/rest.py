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
from clsvm.gram.products import Gram, Products, Store, half_end, over_all, reflect
from clsvm.gram.row_cache import RowCache
from clsvm.opencl.stream import Buffer
from clsvm.solvers import certificate
from clsvm.solvers.programs import Misses
from clsvm.solvers.state import State
from clsvm.threads import go_on

FIRST = 1 / 8  # of all rows: so many are computed before it is looked at, and twice as many before the next time
GAIN = 1.25  # times what it costs, that it is to spare


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
        return gram.rows.cost * (1 - GAIN / 2) > GAIN * programs.COPIED * gram.stream.profile.cache_cost

    def pays(self, computed: int) -> bool:
        """Whether it does, after so many rows."""
        state, rows = self._state, self._state.gram.rows
        if computed < self._next or self._cache.most < rows.n:
            return False
        self._next = 2.0 * computed
        missing = self._missing()
        asked = certificate.of(*state.now()).violating(self._tol).reshape(state.P, rows.n).any(axis=0)
        wanted = np.isin(missing, rows.position[asked]).sum()
        each = rows.cost / 2 + programs.COPIED * state.stream.profile.cache_cost
        return bool(wanted * rows.cost > GAIN * len(missing) * each)

    def make(self, panel: Panel, misses: Misses, counters: Buffer, until: float = np.inf) -> Made:
        """Computes them, and ends early at a time of perf_counter. Nothing is done where the ring has no free slots for
        them. The row cache is told of them at the end, when their values are whole."""
        state, cache, stream = self._state, self._cache, self._state.stream
        n, room = state.n, panel.capacity
        missing, counts = self._missing(), stream.read(counters, np.int64, 4 * state.P)
        head = int(counts[2])
        cache.reserve(head + len(missing), 0)
        if head + len(missing) > cache.capacity:
            return Made(0, 0)
        slots = (head + np.arange(len(missing), dtype=np.int32))[::-1]
        ends, first = np.full(n, n, np.int32), len(missing)
        store = Store(cache.slabs, cache.slab_rows, n, misses.slot)
        while first and perf_counter() < until:
            go_on()
            last, first = first, max(0, first - room)
            ends[missing[first:last]] = self._panel(panel, misses, store, missing[first:last], slots[first:last])
        made, to = missing[first:], slots[first:]
        slot_of = stream.read(cache.slot_of, np.int32, n)
        slot_of[made] = to
        reflect(stream, state.gram.rows.dtype, store, slot_of, ends)
        owner = stream.read(cache.owner, np.int32, head + len(made))
        owner[to] = made
        counts[[1, 2]] += len(made)
        for buffer, values in ((cache.owner, owner), (counters, counts), (cache.slot_of, slot_of)):
            stream.write(buffer, values)
        return Made(len(made), int((n - ends[made]).sum()) // n)

    def _panel(
        self, panel: Panel, misses: Misses, store: Store, rows: NDArray[np.int32], slots: NDArray[np.int32]
    ) -> int:
        """Values of rows at ascending positions, up to the last one's lane group and square, into their slots; where
        these end."""
        stream, gram, room = self._state.stream, self._state.gram, panel.capacity
        assert isinstance(gram, Gram)
        at, to = np.full(room, -1, np.int32), np.zeros(room, np.int32)
        at[: len(rows)], to[: len(rows)] = rows, slots
        for buffer, values in (misses.row, at), (misses.slot, to), (misses.count, np.array([len(rows)], np.int32)):
            stream.write(buffer, values)
        gram.gather(panel, misses.row, misses.count)
        end = half_end(gram.rows, int(rows[-1]))
        groups = range(end // gram.rows.lanes)
        gram.over_rows(over_all(store, None), groups, 0, panel, misses.count, store, None)
        stream.finish()
        return end

    def _missing(self) -> NDArray[np.int32]:
        """Positions of rows without a slot, ascending."""
        state, at = self._state, self._state.gram.rows.position
        slots = state.stream.read(self._cache.slot_of, np.int32, state.n)
        return np.sort(at[slots[at] < 0])
