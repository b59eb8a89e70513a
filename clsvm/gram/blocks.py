"""Products with K of rows that a device does not hold as they are: X stays in the host's memory, or in a mapped file.

    passing   memory does not hold all rows: they go through the device block by block in every product (passing.py),
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
from clsvm.gram.layouts.record import Panel, Plan, Rows, in_order
from clsvm.gram.passing import Streamed, Window
from clsvm.gram.products import Gram, Operator, Slots, Store, Tile, Update
from clsvm.gram.programs import RowSource
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


def products_of(stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str) -> Operator:
    """Return products over the rows of X (n, d): on the device as ``plan`` says where it holds them so with a solve
    beside.

    Raises ValueError where memory_limit does not hold a few blocks either, and as layouts.build does.
    """
    left, asked, n, itemsize = stream.limit - stream.held, plan.kind, X.shape[0], np.dtype(dtype).itemsize
    plain = LAYOUTS[plan.kind].plain
    if plain and n * layouts.row_bytes(plan, X, itemsize) > PLAIN_SHARE * left:
        plan = replace(plan, kind=plain)  # (the row cache is worth more than an index)
    # (The bytes of rows that do not stand as they come are known once they stand.)
    if not LAYOUTS[plan.kind].in_order or n * layouts.row_bytes(plan, X, itemsize) <= ROWS_SHARE * left:
        with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative():
            gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
            taken = left - (stream.limit - stream.held)
            if taken + BESIDE * n > ROWS_SHARE * left:
                raise MemoryLimitError(stream.limit, stream.held, taken)
            return gram
    return BlockGram(stream, X, plan, kernel, dtype, asked)


@dataclass
class Fetched:
    """The rows that were laid out for a panel. at: which of them each working vector is, -1 for none; known: how many
    working vectors there are; ids: the rows (ascending) that are still on the device in ``gram``, where a panel needs
    them."""

    at: Buffer
    known: int = 0
    ids: NDArray[np.int32] | None = None
    gram: Gram | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers that are freed with the panel."""
        return (self.at, *self.gram.buffers()) if self.gram else (self.at,)


class BlockGram(Operator):
    """Products over rows X (n, d), dense or CSR, that stay where they are."""

    share = WORKING_SHARE

    def __init__(self, stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str, asked: str = "") -> None:
        """Lay out nothing yet but blocks that stay; asked: the layout that the rows would have in core, if not the
        plan's."""
        self.stream, self.kernel, self._X, self._dtype = stream, kernel, X, dtype
        (n, d), left, itemsize = X.shape, stream.limit - stream.held, np.dtype(dtype).itemsize
        self._plan = layouts.streamed(plan, X, left)  # of the rows that are fetched
        self._row = layouts.row_bytes(self._plan, X, itemsize)
        self._host_row = 0 if stream.unified else X.dtype.itemsize * (0 if sp.issparse(X) else d)
        self._stays = stays = n * self._row <= STAY_SHARE * left
        whole = LAYOUTS[self._plan.kind].shared  # panels have all of their vectors; else they read the rows' entries
        lengths = np.full(n, d) if whole else _entries(X)
        self._longest = np.argsort(-lengths, kind="stable").astype(np.int32)
        entries = np.concatenate([[0], np.cumsum(lengths[self._longest])])
        self._worth = entries * n / max(1, entries[-1])  # rows of the mean length that the longest make
        most = None if stays else max(UNIFIED, LEAST * self._row) if stream.unified else COPIED
        self._streamed = streamed = Streamed(stream, X, plan, dtype, most=most, again=True)
        self._slots: Slots = {}
        self._few = self._laid(np.sort(self._longest[:SAMPLE]))
        self.width, self._rows_stay = self._few.width, not whole
        fetched = SAMPLE * (2 * self._row + self._host_row)  # (the least that a panel is made by)
        self._passes, self._share = 0, min(fetched, left // 4) if stays else streamed.share
        stream.reserve(self._share)
        blocks = streamed.slices if stays else []
        self._blocks = [(rows.start, Gram(stream, streamed.laid(stream, rows), kernel)) for rows in blocks]
        self._window: Window | None = None
        near = not stays and streamed.near and whole and stream.profile.wide == "double"  # (no centre of pairs there)
        self.rows = self._looked(0 if stays else FILLED if near else LAID, asked or plan.kind)
        if near:
            self._window = Window(streamed, stream, X, plan, dtype, self.rows.xx)

    def _looked(self, laid: float, asked: str) -> Rows:
        """Return all rows, after a first pass over their blocks; ``laid``: what a cell takes to be laid out anew."""
        norms: list[NDArray[Any]] = []
        seen: list[Rows] = []

        def look(gram: Gram, groups: range, base: int) -> None:
            norms.append(self.stream.read(gram.rows.xx, self._dtype, gram.rows.n_pad))
            seen.append(gram.rows)

        self._over(look)
        (n, d), one, step = self._X.shape, seen[0], self._streamed.step
        n_pad, stored = sum(map(len, norms)), sum(rows.stored for rows in seen)
        stay = "stay" if self._stays else "pass through the device"
        other = f", and so not {asked}" * (one.kind != asked)
        words = f"in {len(seen)} blocks of {step} rows at most, which {stay}{other}"
        cost = sum(rows.cost * rows.n for rows in seen) / n
        xx, arranged = self.stream.upload(np.concatenate(norms)), self._streamed.arrangement
        order, position = (arranged.order, arranged.position) if arranged else in_order(n, n_pad)
        at = n, d, n_pad, one.lanes, stored, order, position, xx, cost, one.tile_cost
        return Rows(one.kind, self._dtype, *at, laid=laid * stored / n, words=words)

    def _over(self, work: Callable[[Gram, range, int], None]) -> None:
        """Call ``work`` with the products of each block, its lane groups among those, and which row of what is kept for
        them is the first of all; what it makes in a block that passes is freed."""
        for first, gram in self._blocks:
            work(gram, gram.groups, -first)
        if self._blocks:
            return
        backward, self._passes = self._passes % 2 == 1, self._passes + 1
        with self.lent():
            if self._window:
                with self._window.passing(backward) as (rows, windows):
                    gram = Gram(self.stream, rows, self.kernel)
                    for groups in windows:
                        work(gram, groups, 0)
                return
            with self._streamed.passing(backward) as blocks:
                for rows_there, laid in blocks:
                    with self.stream.scratch():
                        gram = Gram(self.stream, laid, self.kernel)
                        work(gram, gram.groups, -rows_there.start)

    def lent(self) -> AbstractContextManager[None]:
        return self.stream.lent(self._share)

    def _laid(self, ids: NDArray[np.int32]) -> Gram:
        """Return products over some of the rows, on the device."""
        self._streamed.check_files()
        rows = layouts.build(self.stream, self._X[ids], self._plan, self._dtype, ids)
        return Gram(self.stream, rows, self.kernel, self._slots)

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel, and room for its rows where these have to stay."""
        with self.stream.tentative():
            made = self._few.panel(capacity, square)
            made.fetched = Fetched(self.stream.buffer(4 * made.capacity))
            if self._rows_stay:
                made.fetched.ids = np.sort(self._longest[:capacity])
                made.fetched.gram = self._laid(made.fetched.ids)
            if square:
                self._few.slot(made.capacity)  # (last, since it stays)
        return made

    def panel_bytes(self, capacity: int) -> int:
        """Return the bytes of a panel, of the places of its rows, and of the longest rows that can stay with it."""
        own = self._few.panel_bytes(capacity) + 8 * capacity
        if not self._rows_stay:
            return own
        return own + int(self._row * self._worth[min(capacity, len(self._longest))]) + ALIGNED

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        made = self._of(panel).part(panel, first, capacity, count)
        at = self.stream.part(panel.fetched.at, 4 * first, 4 * capacity)
        return replace(made, fetched=replace(panel.fetched, at=at, known=capacity))

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        return self._few.of_panel(panel)

    def row_source(self) -> RowSource:
        return self._few.row_source()

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """Bring rows into a panel. The host reads which they are, and fetches them."""
        stream, fetched = self.stream, panel.fetched
        fetched.known = known = min(int(stream.read(count, np.int32, 1)[0]), panel.capacity)
        places = stream.read(rows, np.int32, known)
        wanted = np.where(places >= 0, self.rows.order[places], -1)
        ids = np.unique(wanted[wanted >= 0])
        if self._rows_stay:  # (those that the panel has need not be fetched again)
            if not np.isin(ids, fetched.ids, assume_unique=True).all():
                stream.finish()
                stream.free(*fetched.gram.buffers())
                fetched.ids, fetched.gram = ids[:0], None  # (laying out may fail)
                fetched.ids, fetched.gram = ids, self._laid(ids)
            self._gather(panel, fetched.gram, fetched.ids, wanted, count)
            return
        if self._window and panel.width == self.rows.lanes:
            stream.write(fetched.at, np.pad(wanted, (0, panel.capacity - known), constant_values=-1))
            self._window.gather(panel, fetched.at)
            return
        if not len(ids):
            ids = self._longest[:1]  # (any: none of them is wanted, and the panel is cleared)
        step = max(SAMPLE, self._share // (2 * self._row + self._host_row))
        with self.lent():
            for first in range(0, len(ids), step):
                with stream.scratch():
                    some = ids[first : first + step]
                    self._gather(panel, self._laid(some), some, wanted, count, fresh=not first)

    def _gather(
        self,
        panel: Panel,
        gram: Gram,
        ids: NDArray[np.int32],
        wanted: NDArray[np.int32],
        count: Buffer,
        fresh: bool = True,
    ) -> None:
        """Bring those of the rows ``ids``, laid out in ``gram``, that are wanted into a panel."""
        at = np.full(panel.capacity, -1, np.int32)
        there = np.flatnonzero(np.isin(wanted, ids))
        at[there] = gram.rows.position[np.searchsorted(ids, wanted[there])]
        self.stream.write(panel.fetched.at, at)
        gram.gather(panel, panel.fetched.at, count, fresh)

    def _of(self, panel: Panel) -> Gram:
        """Return what makes kernel values among working vectors of a panel."""
        return panel.fetched.gram or self._few

    def tile(self, panel: Panel, tile: Tile) -> None:
        self._of(panel).tile(panel, tile._replace(rows=panel.fetched.at))

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """Add to c and fill the store in one pass; there is none where there is no working vector."""

        def work(gram: Gram, groups: range, base: int) -> None:
            gram.over_rows(groups, base, panel, count, store, update)

        if panel.fetched.known:
            self._over(work)

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        self._of(panel).respond(panel, panel.fetched.at, right, count, update)


def _entries(X: Data) -> NDArray[np.int64]:
    """Return how many entries each row has, (n,)."""
    if sp.issparse(X):
        return np.asarray(np.diff(X.indptr), np.int64)
    parts = (X[first : first + LEAST] for first in range(0, X.shape[0], LEAST))
    return np.concatenate([np.count_nonzero(part, axis=1) for part in parts])
