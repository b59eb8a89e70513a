"""Products with K of rows that a device does not hold as they are: X stays in the host's memory, or in a mapped file.

    passing   memory does not hold all rows: they go through the device block by block in every product (streamed.py),
              backwards in every other one, so that the last rows of a file, which the system still has, are read first
    staying   memory holds them, but no single buffer does: blocks that are laid out once

Working rows are fetched from the host by their numbers and laid out as a few rows of their own, from which a panel is
gathered. The row cache, and whatever a solver keeps for each row, are on the device as ever, and values of K have the
same bits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import Lanes
from clsvm.gram.layouts.record import Panel, Plan, Rows, in_order
from clsvm.gram.layouts.window import Window
from clsvm.gram.products import Gram, Slots, Store, Tile, Update, over_all
from clsvm.gram.programs import RowSource
from clsvm.gram.responses import buffers_of, row_bytes
from clsvm.gram.streamed import Streamed
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream

ROWS_SHARE = 0.8  # of what is left of the budget at most, for all rows
PLAIN_SHARE = 0.4  # of it, beyond which rows stand in the plainer of two layouts
BESIDE = 56  # bytes of a row beside it: f, its coefficient and bounds, whether it is in the working set or a cache
STAY_SHARE = 0.6  # of it, for blocks that stay
UNIFIED, COPIED = 2 << 20, 64 << 20  # bytes of a block: what caches hold, where the device reads the host's memory
LEAST = 1280  # rows of a block, where memory holds so many: fewer leave cores without work at its end
# Cells of a product that laying out a cell of a row takes as long as, measured on a CPU; in place, in a window.
LAID, FILLED = 150, 20
WORKING_SHARE = 0.7  # of what is left then, for a working set: the larger it is, the fewer passes
ALIGNED = 10 * 64  # bytes that buffers of laid out rows are larger than what they hold
SAMPLE = 64  # rows that say what panels take: those with the most entries


def products_of(stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str) -> Gram | BlockGram:
    """Products over the rows of X (n, d): on the device as ``plan`` says, where it holds them so, with a solve beside.

    Raises ValueError where memory_limit does not hold a few blocks either, and as layouts.build does.
    """
    left, layout, asked = stream.limit - stream.held, LAYOUTS[plan.kind], plan.kind
    if layout.plain and X.shape[0] * row_bytes(plan, X, np.dtype(dtype).itemsize) > PLAIN_SHARE * left:
        plan = replace(plan, kind=layout.plain)  # (the row cache is worth more than an index)
        layout = LAYOUTS[plan.kind]
    if not layout.bounds and X.shape[0] * row_bytes(plan, X, np.dtype(dtype).itemsize) > ROWS_SHARE * left:
        return BlockGram(stream, X, plan, kernel, dtype, asked)
    with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative():
        gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
        taken = left - (stream.limit - stream.held)
        if taken + BESIDE * X.shape[0] > ROWS_SHARE * left:
            raise MemoryLimitError(stream.limit, stream.held, taken)
        return gram
    return BlockGram(stream, X, plan, kernel, dtype, asked)


@dataclass(frozen=True)
class BlockRows(Rows):
    """All rows, though not in buffers of their own. words: how they lie."""

    words: str

    def describe(self) -> str:
        return f"{super().describe()}, {self.words}"


@dataclass(frozen=True)
class Fetched:
    """What a panel knows of its rows. at: which of those that were laid out for it each working vector is, -1 for none;
    known: how many working vectors there are; ids: the rows (ascending) that are still on the device in ``gram``, where
    a panel needs them."""

    at: Buffer
    known: int = 0
    ids: NDArray[np.int32] | None = None
    gram: Gram | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """To be given back with the panel."""
        return (self.at, *buffers_of(self.gram)) if self.gram else (self.at,)


class BlockGram:
    """:class:`clsvm.gram.products.Products` over rows X (n, d), dense or CSR, that stay where they are."""

    whole, share = False, WORKING_SHARE

    def __init__(
        self, stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str, asked: str | None = None
    ) -> None:
        """asked: the layout that they would have in core, where it is not the plan's."""
        self.stream, self.kernel, self._X, self._dtype = stream, kernel, X, dtype
        (n, _), left = X.shape, stream.limit - stream.held
        self._asked = asked or plan.kind
        self._plan = layouts.streamed(plan, X, left)  # of the rows that are fetched
        itemsize = np.dtype(dtype).itemsize
        self._row = row_bytes(self._plan, X, itemsize)
        self._host_row = 0 if stream.unified else X.dtype.itemsize * (0 if sp.issparse(X) else X.shape[1])
        self._stays = stays = n * self._row <= STAY_SHARE * left
        lanes = isinstance(LAYOUTS[self._plan.kind], Lanes)  # (an array may be asked for as entries)
        lengths = np.full(n, X.shape[1]) if lanes else _entries(X)
        self._longest = np.argsort(-lengths, kind="stable").astype(np.int32)
        entries = np.concatenate([[0], np.cumsum(lengths[self._longest])])
        self._worth = entries * n / max(1, entries[-1])  # rows of the mean length that the longest make
        most = None if stays else max(UNIFIED, LEAST * self._row) if stream.unified else COPIED
        self._streamed = streamed = Streamed(stream, X, plan, dtype, most=most, again=True)
        self._slots: Slots = {}
        self._few = self._laid(np.sort(self._longest[:SAMPLE]))
        panel = self._few.panel(1)
        self.width, self._rows_stay = self._few.width, panel.rows_stay
        stream.free(*panel.buffers())
        fetched = SAMPLE * (2 * self._row + self._host_row)  # (the least that a panel is made by)
        self._passes, self._share = 0, min(fetched, left // 4) if stays else streamed.share
        stream.reserve(self._share)
        blocks = streamed.slices if stays else []
        self._blocks = [(rows.start, Gram(stream, streamed.laid(stream, rows), kernel)) for rows in blocks]
        self._window: Window | None = None
        near = not stays and streamed.near and lanes and stream.profile.wide == "double"  # (no centre of pairs there)
        self.rows: Rows = self._looked(0 if stays else FILLED if near else LAID)
        if near:
            where = streamed.slices, streamed.arrangement, self.rows.xx
            self._window = Window(stream, X, plan.centre, dtype, self.rows.kind, *where)

    def _looked(self, laid: float) -> Rows:
        """All rows, after a first pass over their blocks; ``laid``: what a cell takes to be laid out anew."""
        norms: list[NDArray[Any]] = []
        seen: list[Rows] = []

        def look(gram: Gram, groups: range, base: int) -> None:
            norms.append(self.stream.read(gram.rows.xx, self._dtype, gram.rows.n_pad))
            seen.append(gram.rows)

        self._over(look)
        (n, d), one, step = self._X.shape, seen[0], self._streamed.step
        n_pad, stored = sum(map(len, norms)), sum(rows.stored for rows in seen)
        stay = "stay" if self._stays else "pass through the device"
        other = f", and so not {self._asked}" * (one.kind != self._asked)
        words = f"in {len(seen)} blocks of {step} rows at most, which {stay}{other}"
        cost = sum(rows.cost * rows.n for rows in seen) / n
        xx, arranged = self.stream.upload(np.concatenate(norms)), self._streamed.arrangement
        order, position = (arranged.order, arranged.position) if arranged else in_order(n, n_pad)
        sizes = n, d, n_pad, one.lanes, stored
        return BlockRows(
            one.kind, self._dtype, *sizes, order, position, xx, cost, one.tile_cost, words, laid=laid * stored / n
        )

    def _over(self, work: Callable[[Gram, range, int], None]) -> None:
        """``work`` with the products of each block, its lane groups among those, and which row of what is kept for them
        is the first of all; what it makes in a block that passes is freed."""
        for first, gram in self._blocks:
            work(gram, gram.groups, -first)
        if self._blocks:
            return
        backward, self._passes = self._passes % 2 == 1, self._passes + 1
        if self._window:
            with self.lent(), self._window.passing(backward) as (rows, windows):
                gram = Gram(self.stream, rows, self.kernel)
                for groups in windows:
                    work(gram, groups, 0)
            return
        with self.lent(), self._streamed.passing(backward) as blocks:
            for rows_there, laid in blocks:
                with self.stream.scratch():
                    gram = Gram(self.stream, laid, self.kernel)
                    work(gram, gram.groups, -rows_there.start)

    def lent(self) -> AbstractContextManager[None]:
        """What passes are made in is free inside."""
        return self.stream.lent(self._share)

    def _laid(self, ids: NDArray[np.int32]) -> Gram:
        """Some of the rows, on the device."""
        self._streamed.check_files()
        rows = layouts.build(self.stream, self._X[ids], self._plan, self._dtype, ids)
        return Gram(self.stream, rows, self.kernel, self._slots)

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """An empty panel for at least ``capacity`` working vectors, and room for their rows where these have to stay;
        square: one that :meth:`tile` takes."""
        with self.stream.tentative():
            made = self._few.panel(capacity, square)
            made.fetched = Fetched(self.stream.buffer(4 * made.capacity))
            if made.rows_stay:
                ids = np.sort(self._longest[:capacity])
                made.fetched = replace(made.fetched, ids=ids, gram=self._laid(ids))
            if square:
                self._few.slot(made.capacity)  # (last, since it stays)
        return made

    def panel_bytes(self, capacity: int) -> int:
        """Of a panel, of what says where its rows are, and of the longest rows that can stay with it."""
        own = self._few.panel_bytes(capacity) + 8 * capacity
        if not self._rows_stay:
            return own
        return own + int(self._row * self._worth[min(capacity, len(self._longest))]) + ALIGNED

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """``capacity`` working vectors of a gathered panel from ``first`` on, whole blocks; ``count`` of them there."""
        made = self._of(panel).part(panel, first, capacity, count)
        at = self.stream.part(panel.fetched.at, 4 * first, 4 * capacity)
        return replace(made, fetched=replace(panel.fetched, at=at, known=capacity))

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """As of any rows of the layout."""
        return self._few.of_panel(panel)

    def row_source(self) -> RowSource:
        """As of any rows of the layout."""
        return self._few.row_source()

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """The rows at positions rows[0 .. count - 1] (int32, -1: none) into a panel. The host reads which they are, and
        fetches them."""
        known = min(int(self.stream.read(count, np.int32, 1)[0]), panel.capacity)
        places = self.stream.read(rows, np.int32, known)
        wanted = np.where(places >= 0, self.rows.order[places], -1)
        ids = np.unique(wanted[wanted >= 0])
        panel.fetched = replace(panel.fetched, known=known)
        if panel.rows_stay:
            self._kept(panel, wanted, ids, count)
            return
        if self._window and panel.width == self.rows.lanes:
            self.stream.write(panel.fetched.at, np.pad(wanted, (0, panel.capacity - known), constant_values=-1))
            self._window.gather(panel, panel.fetched.at)
            return
        if not len(ids):
            ids = self._longest[:1]  # (any: none of them is wanted, and the panel is cleared)
        step = max(SAMPLE, self._share // (2 * self._row + self._host_row))
        with self.lent():
            for first in range(0, len(ids), step):
                with self.stream.scratch():
                    some = ids[first : first + step]
                    gram = self._laid(some)
                    self._place(panel, gram, some, wanted)
                    gram.gather(panel, panel.fetched.at, count, fresh=not first)

    def _kept(self, panel: Panel, wanted: NDArray[np.int32], ids: NDArray[np.int32], count: Buffer) -> None:
        """:meth:`gather` where the rows stay with the panel: those that it has need not be fetched again."""
        if not np.isin(ids, panel.fetched.ids, assume_unique=True).all():
            self.stream.finish()
            self.stream.free(*buffers_of(panel.fetched.gram))
            panel.fetched = replace(panel.fetched, ids=ids[:0], gram=None)  # (laying out may fail)
            panel.fetched = replace(panel.fetched, ids=ids, gram=self._laid(ids))
        self._place(panel, panel.fetched.gram, panel.fetched.ids, wanted)
        panel.fetched.gram.gather(panel, panel.fetched.at, count)

    def _place(self, panel: Panel, gram: Gram, ids: NDArray[np.int32], wanted: NDArray[np.int32]) -> None:
        """Tell the device which of the rows ``ids``, laid out in ``gram``, each working vector is."""
        at = np.full(panel.capacity, -1, np.int32)
        there = np.flatnonzero(np.isin(wanted, ids))
        at[there] = gram.rows.position[np.searchsorted(ids, wanted[there])]
        self.stream.write(panel.fetched.at, at)

    def _of(self, panel: Panel) -> Gram:
        """What makes kernel values among working vectors of a panel."""
        return panel.fetched.gram or self._few

    def tile(self, panel: Panel, tile: Tile) -> None:
        """K among the rows of a square panel, gathered."""
        self._of(panel).tile(panel, tile._replace(rows=panel.fetched.at))

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """c += K(X, U) D over all rows, and K(X, U) into the row cache; no pass where there is no working vector."""
        if not panel.fetched.known:
            return
        product = over_all(store, update)

        def work(gram: Gram, groups: range, base: int) -> None:
            gram.over_rows(product, groups, base, panel, count, store, update)

        self._over(work)

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        """c += K(U, U') D for the rows of a square panel U and the ``count`` working vectors of another, U'."""
        self._of(panel).respond(panel, panel.fetched.at, right, count, update)


def _entries(X: Data) -> NDArray[np.int64]:
    """How many entries each row has, (n,)."""
    if sp.issparse(X):
        return np.asarray(np.diff(X.indptr), np.int64)
    parts = (X[first : first + LEAST] for first in range(0, X.shape[0], LEAST))
    return np.concatenate([np.count_nonzero(part, axis=1) for part in parts])
