"""Products with a kernel matrix that is on the device whole: kernel="precomputed", functions of the caller's, and K of
rows that many solves share.

A solve computes no row and needs no store.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel, Rows, lanes
from clsvm.gram.products import Gram, Store, Tile, Update, half_end, reflect
from clsvm.gram.programs import RowSource
from clsvm.gram.row_cache import SLABS
from clsvm.kernels import PRECOMPUTED, Kernel
from clsvm.opencl.stream import Buffer, Stream

_WHOLE = 16  # rows and working sets are whole vectors of any dtype
_AT_A_TIME = 512  # rows of K that are computed


class Slabs:
    """Room for K (n_pad, n_pad) in SLABS buffers of ``rows`` rows, as the row cache's: row i in slot i."""

    def __init__(self, stream: Stream, n_pad: int, dtype: str) -> None:
        self.stream, self.ld, self.rows = stream, n_pad, -(-n_pad // SLABS)
        nbytes = self.rows * n_pad * np.dtype(dtype).itemsize
        self.starts = range(0, n_pad, self.rows)
        self.buffers = [stream.slab(nbytes) for _ in self.starts]
        self.head = *self.buffers, *[self.buffers[-1]] * (SLABS - len(self.buffers)), self.rows, np.int64(n_pad)
        self._update = stream.variant(programs.update(stream.profile, dtype))
        self._pick = stream.variant(programs.given(stream.profile, dtype), "pick")

    def add(self, rows: Buffer, count: Buffer, update: Update) -> None:
        """c += K(X, U) D, U the ``count`` first of ``rows``."""
        self._update(*programs.update_range(self.stream.profile, update.n), self.head, rows, update.arguments(), count)

    def pick(self, lanes: int, panel: Panel, tile: Tile) -> None:
        """K among the rows of a tile, of which the panel has room for as many."""
        size = (1 if self.stream.profile.shape == "vector" else lanes, panel.capacity)
        self._pick(size, None, self.head, None, tile.rows, panel.capacity, tile.known, int(tile.half), tile.out)


class _WholeGram:
    """What they have in common: working vectors are known by their rows' numbers, and values of K are read."""

    whole, share = True, 0.5
    _slabs: Slabs

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """The numbers of working rows into a panel."""
        panel.rows = rows

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """None: tiles are made from the vectors."""
        return None

    def row_source(self) -> RowSource:
        """Rows of tiles by picking values of K."""
        return programs.picked_rows()

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """c += K(X, U) D over all rows; a store is not filled."""
        if update:
            self._slabs.add(panel.rows, count, update)


class _Numbered(_WholeGram):
    """Those whose panels hold numbers of rows alone."""

    stream: Stream
    rows: Rows

    def panel_bytes(self, capacity: int) -> int:
        """Nothing."""
        return 0

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """An empty panel for at least ``capacity`` working vectors."""
        return Panel(-(-capacity // _WHOLE) * _WHOLE, _WHOLE, None, None, 0, "many")

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """``capacity`` working vectors of a gathered panel from ``first`` on."""
        return replace(panel, capacity=capacity, rows=self.stream.part(panel.rows, 4 * first, 4 * capacity))

    def of_panel(self, panel: Panel) -> tuple[Any, ...]:
        """What rows of tiles are picked from: K and the numbers of the rows."""
        return *self._slabs.head, panel.rows

    def tile(self, panel: Panel, tile: Tile) -> None:
        """K among the rows of a panel."""
        self._slabs.pick(self.rows.lanes, panel, tile)


class PrecomputedGram(_Numbered):
    """:class:`Products` with K (n, n) symmetric, on the host in float32 or float64, as those of one set of rows in
    ``dtype``; nothing is known of the rows but their numbers, and working vectors are these.

    Raises ValueError where memory_limit does not hold it, DeviceError where the device does not.
    """

    kernel = PRECOMPUTED

    def __init__(self, stream: Stream, K: NDArray[Any], dtype: str) -> None:
        n, ld = len(K), -(-len(K) // _WHOLE) * _WHOLE
        at = np.arange(n, dtype=np.int32)
        order = np.concatenate([at, np.full(ld - n, -1, np.int32)])
        self.stream, self.width = stream, _WHOLE
        self.rows = Rows("given", dtype, n, n, ld, lanes(stream.profile, dtype), n * ld, order, at, None, ld, 1)
        self._slabs = Slabs(stream, ld, dtype)
        for slab, first in zip(self._slabs.buffers, self._slabs.starts, strict=True):
            part = np.zeros((self._slabs.rows, ld), dtype)
            some = K[first : first + len(part)]
            part[: len(some), :n] = some
            stream.write(slab, part)
        self._answer = stream.variant(programs.given(stream.profile, dtype), "answer")

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        """c += K(U, U') D."""
        self._answer((panel.capacity,), None, self._slabs.head, rows, right.rows, count, update.D, update.c)


class StoredGram(_WholeGram):
    """:class:`Products` with K of rows, computed once for many solves by decomposition; a tile of vectors that are
    cheap is made from them again, which reads less. Raises as :class:`PrecomputedGram` does."""

    def __init__(self, stream: Stream, rows: Rows, kernel: Kernel) -> None:
        self.kernel, self._gram, self._made = kernel, Gram(stream, rows, kernel), rows.tile_cost
        self._picked = partial(programs.picked_cost, stream.profile, rows.n_pad)
        self.rows = replace(rows, tile_cost=min(self._picked(1), rows.tile_cost))  # (of any working set, at most)
        self.width, self.panel, self.panel_bytes = self._gram.width, self._gram.panel, self._gram.panel_bytes
        self.part, self.respond = self._gram.part, self._gram.respond
        self._slabs = _computed(stream, self._gram)

    @staticmethod
    def nbytes(n: int, dtype: str) -> int:
        """What K of n rows takes."""
        return n * (n + SLABS) * np.dtype(dtype).itemsize

    def tile(self, panel: Panel, tile: Tile) -> None:
        """K among the rows of a square panel."""
        if self._picked(panel.capacity) < self._made:
            self._slabs.pick(self.rows.lanes, panel, tile)
        else:
            self._gram.gather(panel, tile.rows, tile.count)
            self._gram.tile(panel, tile)


class SharedGram(_Numbered):
    """:class:`Products` with K of rows, computed once for the tiles of many problems, each over some of them. For the
    vector shape. Raises as :class:`PrecomputedGram` does."""

    def __init__(self, stream: Stream, gram: Gram) -> None:
        self.stream, self.kernel, self.width = stream, gram.kernel, _WHOLE
        self.rows, self._slabs = replace(gram.rows, tile_cost=1.0), _computed(stream, gram)

    @staticmethod
    def needs(gram: Gram) -> int:
        """The bytes that it takes while K is computed."""
        return StoredGram.nbytes(gram.rows.n_pad, gram.rows.dtype) + gram.panel_bytes(_AT_A_TIME)

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        """Raises NotImplementedError: f of a problem that is solved whole comes from its tile."""
        raise NotImplementedError


def _computed(stream: Stream, gram: Gram) -> Slabs:
    """K of the rows of ``gram``; in the vector shape, where values are dear, half of it, which the other half mirrors
    (of element-wise sums of sparse rows K(x, y) and K(y, x) can differ in their last bit when computed)."""
    rows, slabs, profile = gram.rows, Slabs(stream, gram.rows.n_pad, gram.rows.dtype), stream.profile
    half = profile.shape == "vector" and rows.cost / 2 > programs.COPIED * profile.cache_cost
    panel = gram.panel(_AT_A_TIME)
    ends = np.full(rows.n_pad, rows.n_pad, np.int32)  # of what is computed of each row
    at, count, slot = (stream.buffer(4 * panel.capacity) for _ in range(3))
    for slab, begin in zip(slabs.buffers, slabs.starts, strict=True):
        last = min(begin + slabs.rows, rows.n_pad)
        for first in range(begin, last, panel.capacity):
            some = np.arange(first, min(first + panel.capacity, last), dtype=np.int32)
            for buffer, values in ((at, some), (count, np.array([len(some)], np.int32)), (slot, some - begin)):
                stream.write(buffer, values)
            gram.gather(panel, at, count)
            if half:
                ends[some] = half_end(rows, int(some[-1]))
            groups = range(ends[first] // rows.lanes)
            gram.over_rows("rows", groups, 0, panel, count, Store((slab,), slabs.rows, rows.n_pad, slot), None)
            stream.finish()
    if half:
        store = Store(slabs.head[:SLABS], slabs.rows, rows.n_pad, slot)
        reflect(stream, rows.dtype, store, np.arange(rows.n_pad, dtype=np.int32), ends)
    stream.free(at, count, slot, *panel.buffers())
    return slabs
