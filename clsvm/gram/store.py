"""Values of K that stay on the device: the rows that a solve computed last, or all of K.

Both stand in up to SLABS equal buffers, which come from a pool that outlives the fit. Kernels take them as a
:class:`Store`.
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import DeviceError
from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel, Rows, lanes
from clsvm.gram.products import Operator, Store, Tile, Update
from clsvm.gram.programs import SLABS, RowSource
from clsvm.kernels import PRECOMPUTED
from clsvm.opencl.stream import Buffer, Stream
from clsvm.threads import go_on

Places = NDArray[np.int32]
_WHOLE = 16  # rows and working sets are whole vectors of any dtype
_AT_A_TIME = 512  # rows of K that are computed


class RowCache:
    """A ring of rows of ``ld`` values of ``itemsize`` bytes within ``limit`` bytes; capacity 0 where that is too
    little.

    The device decides which rows stay (cl_kernels/solvers/rowcache.cl); the host adds slabs as rows come. entries: the
    most rows that one outer iteration can ask for, all of which the ring has to hold.
    """

    def __init__(self, stream: Stream, ld: int, itemsize: int, limit: int, entries: int) -> None:
        self._stream, self.ld = stream, ld
        row = ld * itemsize
        # Powers of two, so that a later fit finds slabs of its size in the pool; no more than all rows of K. A device's
        # own memory is large: its slabs are multiples of a smaller power.
        all_rows = 1 << (-(-ld // SLABS) * row - 1).bit_length()
        most = max(limit // SLABS, 1)
        unit = 1 << max(0, most.bit_length() - (1 if stream.unified else 4))
        self.slab_bytes = min(all_rows, max(1, most // unit) * unit, stream.largest)
        self.slab_rows = self.slab_bytes // row
        self._entries = entries
        self._slabs: list[Buffer] = []
        self._most = SLABS if self.slab_rows * SLABS >= entries and limit > 0 else 0
        self.slot_of = stream.upload(np.full(ld, -1, np.int32))
        rows = max(1, self.slab_rows * self._most)
        self.owner = stream.upload(np.full(rows, -1, np.int32))
        while self._most and self.capacity < entries:
            if not self._grow():  # no ring at all rather than one that a single iteration would overrun
                stream.give_slabs_back()
                self._slabs.clear()
                self._most = 0

    @property
    def capacity(self) -> int:
        """Return the slots of the ring as it is now."""
        return self.slab_rows * len(self._slabs)

    @property
    def most(self) -> int:
        """Return the slots that the ring may grow to."""
        return self.slab_rows * self._most

    @property
    def coming(self) -> int:
        """Return the bytes by which the ring may still grow."""
        return (self._most - len(self._slabs)) * self.slab_bytes

    def store(self, slot: Buffer) -> Store:
        """Return the ring as kernels take it; slot: where each working vector's row stands."""
        return Store(_all_slabs(self._slabs), self.slab_rows, self.ld, slot)

    def reserve(self, computed: int, steps: int) -> None:
        """Grow, while the limit lasts, so that the next ``steps`` iterations evict nothing after ``computed`` rows."""
        while len(self._slabs) < self._most and computed + steps * self._entries > self.capacity:
            if not self._grow():
                return

    def _grow(self) -> bool:
        try:
            self._slabs.append(self._stream.slab(self.slab_bytes))
        except (ValueError, DeviceError):  # the budget ends here: the ring stays as large as it is
            self._most = len(self._slabs)
            return False
        return True


class StoredGram(Operator):
    """Products with K (n, n) that is on the device whole, in ``store``: working vectors are numbers of rows.

    vectors: products over the rows, which make a tile again where that reads less than picking its values.
    """

    whole = True

    def __init__(self, stream: Stream, store: Store, rows: Rows, kernel: Any, vectors: Operator | None = None) -> None:
        self.stream, self.rows, self.kernel, self._store, self._vectors = stream, rows, kernel, store, vectors
        self.width = vectors.width if vectors else _WHOLE
        self._update = stream.variant(programs.update(stream.profile, rows.dtype))
        given = programs.given(stream.profile, rows.dtype)
        self._pick, self._answer = (stream.variant(given, name) for name in ("pick", "answer"))

    def panel_bytes(self, capacity: int) -> int:
        return self._vectors.panel_bytes(capacity) if self._vectors else 0

    def panel(self, capacity: int, square: bool = False) -> Panel:
        if self._vectors:
            return self._vectors.panel(capacity, square)
        return Panel(-(-capacity // _WHOLE) * _WHOLE, _WHOLE, None, None, 0, "many")

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        return replace(panel, capacity=capacity, rows=self.stream.part(panel.rows, 4 * first, 4 * capacity))

    def of_panel(self, panel: Panel) -> tuple[Any, ...]:
        return self._store._replace(slot=panel.rows).arguments()

    def row_source(self) -> RowSource:
        return programs.picked_rows()

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        panel.rows = rows

    def tile(self, panel: Panel, tile: Tile) -> None:
        profile = self.stream.profile
        gram = self._vectors
        if gram and programs.picked_cost(profile, self.rows.n_pad, panel.capacity) >= gram.rows.tile_cost:
            gram.gather(panel, tile.rows, tile.count)
            gram.tile(panel, tile)
            return
        size = (1 if profile.shape == "vector" else self.rows.lanes, panel.capacity)
        given = tile.rows, panel.capacity, tile.known, int(tile.half), tile.out
        self._pick(size, None, self._store.arguments(), *given)

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        """Add K(X, U) D to c; a store is not filled."""
        if update:
            size = programs.update_range(self.stream.profile, update.n)
            self._update(*size, self.of_panel(panel), update.arguments(), count)

    def between(self, panel: Panel, at: Buffer, right: Panel, count: Buffer, K: Buffer, update: Update | None) -> None:
        given = self._store._replace(slot=at).arguments()
        assert update  # (K is there)
        self._answer((panel.capacity,), None, given, right.rows, count, update.D, update.c)


def nbytes(n: int, dtype: str) -> int:
    """Return the bytes that K of n rows takes."""
    return n * (n + SLABS) * np.dtype(dtype).itemsize


def needs(gram: Operator) -> int:
    """Return the bytes that :func:`computed` takes while it works."""
    return nbytes(gram.rows.n_pad, gram.rows.dtype) + gram.panel_bytes(_AT_A_TIME)


def given(stream: Stream, K: NDArray[Any], dtype: str) -> StoredGram:
    """Return products with K (n, n) symmetric, on the host in float32 or float64, in ``dtype``.

    Raises ValueError where memory_limit does not hold K, DeviceError where the device does not.
    """
    n, ld = len(K), -(-len(K) // _WHOLE) * _WHOLE
    at = np.arange(n, dtype=np.int32)
    order = np.concatenate([at, np.full(ld - n, -1, np.int32)])
    rows = Rows("given", dtype, n, n, ld, lanes(stream.profile, dtype), n * ld, order, at, None, ld, 1)
    store = _store(stream, ld, dtype)
    for slab, first in zip(store.slabs, range(0, ld, store.slab_rows), strict=False):
        part = np.zeros((store.slab_rows, ld), dtype)
        some = K[first : first + len(part)]
        part[: len(some), :n] = some
        stream.write(slab, part)
    return StoredGram(stream, store, rows, PRECOMPUTED)


def computed(gram: Operator, tiles: bool) -> StoredGram:
    """Return products with all of K of the rows of ``gram``, which is computed for many solves.

    tiles: whether tiles of cheap vectors are made again; else every tile is picked. In the vector shape, where values
    are dear, half of K is computed, which the other half mirrors: of element-wise sums of sparse rows K(x, y) and
    K(y, x) can differ in their last bit when computed. Raises as :func:`given` does.
    """
    stream, rows, profile = gram.stream, gram.rows, gram.stream.profile
    store, n = _store(stream, rows.n_pad, rows.dtype), rows.n_pad
    half = profile.shape == "vector" and rows.cost / 2 > programs.COPIED * profile.cache_cost
    panel, every = gram.panel(min(_AT_A_TIME, store.slab_rows)), np.arange(n, dtype=np.int32)
    listed = stream.buffer(4 * panel.capacity), stream.buffer(4 * panel.capacity), stream.buffer(4)
    fill(gram, panel, listed, store, every, every, half)
    stream.free(*listed, *panel.buffers())
    cost = min(programs.picked_cost(profile, n, 1), rows.tile_cost) if tiles else 1.0  # (of any working set, at most)
    return StoredGram(stream, store, replace(rows, tile_cost=cost), gram.kernel, gram if tiles else None)


def fill(
    gram: Operator,
    panel: Panel,
    listed: tuple[Buffer, Buffer, Buffer],
    store: Store,
    rows: Places,
    slot_of: Places,
    half: bool = True,
    until: float = np.inf,
) -> tuple[int, Places]:
    """Compute the rows of K at ascending positions into their slots of a store.

    Panel after panel, from the last rows to the first:

        K[u][.. end]   <- products over the lane groups up to the last row u of the panel
        K[u][end ..]   <- K[end ..][u] at the end, where ``half``                                    given.cl, reflect

    Return which of ``rows`` is the first that was made, and the end of the computed values of each row (n_pad,).
    listed: buffers for the rows of a panel, their slots and their count. slot_of: slot of each row. until: the time of
    perf_counter at which the work ends early, with whole rows.
    """
    stream, n, first = gram.stream, gram.rows.n_pad, len(rows)
    ends, unit = np.full(n, n, np.int32), max(programs.SIDE, gram.rows.lanes)
    at, slot, count = listed
    while first and perf_counter() < until:
        go_on()
        last, first = first, max(0, first - panel.capacity)
        some = rows[first:last]
        for buffer, values in ((at, some), (slot, slot_of[some]), (count, np.array([len(some)], np.int32))):
            stream.write(buffer, values)
        gram.gather(panel, at, count)
        if half:
            ends[some] = min(n, -(-(int(some[-1]) + 1) // unit) * unit)
        gram.accumulate(panel, count, store._replace(slot=slot), None, int(ends[some[0]]))
        stream.finish()
    if half:
        reflect(gram, store, slot_of, ends)
    return first, ends


def reflect(gram: Operator, store: Store, slot_of: Places, ends: Places) -> None:
    """Fill the values from each row's end (n,) on, of rows in these slots, by their mirror images. For the vector
    shape."""
    stream, n = gram.stream, len(ends)
    kernel = stream.variant(programs.given(stream.profile, gram.rows.dtype), "reflect")
    with stream.scratch():
        there = store._replace(slot=stream.upload(slot_of))
        kernel((n // programs.SIDE,), (1,), there.arguments(), stream.upload(ends), n)


def _store(stream: Stream, n_pad: int, dtype: str) -> Store:
    """Return room for K (n_pad, n_pad), row i in slot i."""
    rows = -(-n_pad // SLABS)
    nbytes = rows * n_pad * np.dtype(dtype).itemsize
    return Store(_all_slabs([stream.slab(nbytes) for _ in range(0, n_pad, rows)]), rows, n_pad, None)


def _all_slabs(slabs: list[Buffer]) -> tuple[Buffer, ...]:
    """Return SLABS buffers, the last slab in place of each that is missing."""
    return (*slabs, *slabs[-1:] * (SLABS - len(slabs)))
