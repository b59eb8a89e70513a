"""Products with a kernel matrix that is never stored whole.

    gather        working rows -> a panel (and their squared norms)
    tile          K(U, U) of a panel's rows, W x W
    accumulate    c += K(X, U) D for all rows X, keeping K(X, U) in the row cache where one is given
    forward_back  out += K(X, U)' (w * (K(X, U) v)), a tile of rows at a time

U are a panel's working vectors, D their weights for each of the problems. Every value K(x, u) is computed by the same
chain of operations in column order, whatever the layout, tile or batch, so it has the same bits everywhere (of an
element-wise sum: in each layout).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layout import Part, Rows
from clsvm.kernels import Kernel
from clsvm.opencl.profiles import shape_class
from clsvm.opencl.stream import Buffer, Stream
from clsvm.opencl.stream import Kernel as DeviceKernel

RUN, SHARE = 16, 8  # clustered rows: lane groups of a work-item at most, work-items of a compute unit at least


@dataclass
class Panel:
    """Room for ``capacity`` working vectors: squared norms, and values in blocks of ``width``. Of CSR rows it holds one
    block at a time, of the features that its vectors have (cl_kernels/gram/scatter.cl), and which rows they are."""

    capacity: int
    width: int
    values: Buffer
    uu: Buffer
    nbytes: int
    shape: str  # profiles.shape_class of the number asked for
    place: Buffer = None
    base: list[int] = field(default_factory=lambda: [0])  # places up to it are of earlier blocks
    rows: Buffer = None  # which rows they are
    listed: tuple[Any, ...] = ()  # CSR: indptr, indices, data, norms, count, rows; alive until the products are done

    def buffers(self) -> tuple[Buffer, ...]:
        """Every buffer of its own, to be given back."""
        return tuple(buffer for buffer in (self.values, self.uu, self.place) if buffer is not None)


class Store(NamedTuple):
    """Where rows of K are kept: SLABS buffers (or one) of slab_rows rows of ld values; slot[u] for each u."""

    slabs: tuple[Buffer, ...]
    slab_rows: int
    ld: int
    slot: Buffer


class Update(NamedTuple):
    """c (problems, n) += K D, with D (problems, capacity); both wide."""

    problems: int
    n: int
    c: Buffer
    D: Buffer
    capacity: int


class Tile(NamedTuple):
    """Values among the rows of a square panel: out[offset + u, v] = K(row u, row v), rows of ``capacity`` values, for
    all u and v >= known, whole lane groups; half: at least for u < known and u >= v. rows, count: which rows these
    are."""

    rows: Buffer
    count: Buffer
    out: Buffer
    known: int = 0
    offset: int = 0
    half: bool = False


class Products(Protocol):
    """What solvers ask of a kernel matrix, whatever it is made of. whole: whether all of K is on the device. width:
    working sets are whole blocks of so many rows."""

    whole: bool
    width: int
    rows: Rows
    kernel: Any

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """An empty panel for at least ``capacity`` working vectors; square: one that :meth:`tile` takes."""

    def panel_bytes(self, capacity: int) -> int:
        """Of the values of a panel."""

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """``capacity`` working vectors of a gathered panel from ``first`` on, whole blocks; ``count`` of them there."""

    def of_panel(self, panel: Panel) -> tuple[Any, ...]:
        """What makes kernel values of a panel of lane groups: values, norms, features, the function's numbers."""

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """The rows at positions rows[0 .. count - 1] (int32, -1: none) into a panel."""

    def tile(self, panel: Panel, tile: Tile) -> None:
        """K among the rows of a square panel, gathered."""

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """c += K(X, U) D over all rows, and K(X, U) into the store; either may be None."""

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        """c += K(U, U') D for the rows of a square panel U and the ``count`` working vectors of another, U'."""


class Gram:
    """:class:`Products` of one kernel function over one set of rows, for one stream (so for one thread)."""

    whole = False  # whether K is on the device whole

    def __init__(self, stream: Stream, rows: Rows, kernel: Kernel) -> None:
        self.stream, self.rows, self.kernel = stream, rows, kernel
        profile = stream.profile
        self.shape = profile.shape
        self.width = programs.width(profile, rows.kind, rows.dtype, "many")
        self._real = np.dtype(rows.dtype)
        self._numbers = tuple(
            np.int32(value) if argument.type == "int" else self._real.type(value)
            for argument, value in zip(kernel.spec.arguments, kernel.numbers, strict=True)
        )
        self._gathers: dict[str, DeviceKernel] = {}
        self._scatter: tuple[DeviceKernel, ...] | None = None
        self._grams: dict[tuple[str, str], DeviceKernel] = {}
        self._slots: dict[tuple[int, int], Buffer] = {}
        self._panel_at: dict[int, Buffer] = {}
        self.norms = self._zero_sums() if rows.csr and kernel.spec.element else rows.xx

    def _zero_sums(self) -> Buffer:
        """What element-wise sums start from stands where the norms would."""
        r, stream = self.rows, self.stream
        made = programs.zero_sums(self.kernel.spec, r.dtype, stream.profile, r.d)
        assert r.csr
        out = stream.buffer(self._real.itemsize * r.n_pad)
        stream.variant(made)((r.n_pad,), None, r.csr[0], r.csr[2], r.d, out, *self._numbers)
        return out

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """An empty panel for at least ``capacity`` working vectors; square: one that :meth:`tile` takes."""
        stream, r, shape = self.stream, self.rows, shape_class(max(3, capacity) if square else capacity)
        width = programs.width(stream.profile, r.kind, r.dtype, shape)
        capacity = -(-capacity // width) * width
        nbytes = self.panel_bytes(capacity)
        values, uu = stream.buffer(nbytes), stream.buffer(capacity * self._real.itemsize)
        if not r.csr:
            return Panel(capacity, width, values, uu, nbytes, shape)
        stream.clear(values, width * self._real.itemsize)
        return Panel(capacity, width, values, uu, nbytes, shape, stream.zeros(4 * r.d))

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """``capacity`` working vectors of a gathered panel from ``first`` on, whole blocks; ``count`` of them there."""
        stream, itemsize = self.stream, self._real.itemsize
        values, listed = panel.values, panel.listed
        if listed:
            *csr, _, rows = listed
            listed = (*csr, count, stream.part(rows, 4 * first, 4 * capacity))
        else:
            row = panel.nbytes // panel.capacity
            values = stream.part(values, first * row, capacity * row)
        uu = stream.part(panel.uu, first * itemsize, capacity * itemsize)
        return replace(panel, capacity=capacity, values=values, uu=uu, listed=listed)

    def of_panel(self, panel: Panel) -> tuple[Any, ...]:
        """What makes kernel values of a panel of lane groups: values, norms, features, the function's numbers."""
        return panel.values, panel.uu, self.rows.d, *self._numbers

    def panel_bytes(self, capacity: int) -> int:
        """Of the values of a panel: all of lane groups; of CSR rows a block, with a line for every feature that its
        vectors can have, and one of zeros."""
        r = self.rows
        if not r.csr:
            return capacity * max(r.d, 1) * self._real.itemsize
        return (1 + min(r.d, r.entries(self.width))) * self.width * self._real.itemsize

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """The rows at positions rows[0 .. count - 1] (int32, -1: none) into a panel that these rows or others with as
        long ones made; the rest of it zero."""
        r = self.rows
        if r.csr:
            if panel.nbytes < self.panel_bytes(panel.capacity):
                raise ValueError("the panel was made by shorter rows")
            panel.listed = (*r.csr, self.norms, count, rows)
            return
        self.stream.clear(panel.values, panel.nbytes)
        self.stream.clear(panel.uu, panel.capacity * self._real.itemsize)
        if panel.shape not in self._gathers:
            made = programs.gather(self.stream.profile, r.dtype, r.d, panel.shape)
            self._gathers[panel.shape] = self.stream.variant(made)
        gather = self._gathers[panel.shape]
        size = (panel.capacity, 1 if self.shape == "vector" else 32)
        for part in r.parts:
            head = (part.first, part.groups, part.values, r.at, r.columns_at, r.columns, int(r.kind == "dense"))
            gather(size, None, *head, self.norms, r.d, count, rows, panel.values, panel.uu)

    def tile(self, panel: Panel, tile: Tile) -> None:
        """K among the rows of a square panel, in the rows' dtype."""
        offset = tile.offset
        store = Store((tile.out,), offset + panel.capacity, panel.capacity, self._slot(panel.capacity, offset))
        product = "half tile" if tile.half and self.shape == "vector" else "tile"
        self._tile(product, panel, tile.rows, panel, tile.count, tile.known, store, None)

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        """c += K(U, U') D for the rows of a square panel U and the ``count`` working vectors of another, U'."""
        self._tile("tile update", panel, rows, right, count, 0, None, update)

    def _tile(
        self,
        product: str,
        panel: Panel,
        rows: Buffer,
        right: Panel,
        count: Buffer,
        known: int,
        store: Store | None,
        update: Update | None,
    ) -> None:
        """A product whose rows are those of a panel, from ``known`` on."""
        first, end = known // self.rows.lanes, panel.capacity // self.rows.lanes
        span = first, end - first
        if self.rows.csr:
            for block in self._blocks(right):
                head: tuple[Any, ...] = (*self.rows.csr, rows, self.norms, *block)
                self._launch(product, span, 1, 0, head, right, count, store, update)
            return
        if panel.capacity not in self._panel_at:
            at = np.arange(0, panel.capacity, self.rows.lanes, dtype=np.int64) * max(self.rows.d, 1)
            self._panel_at[panel.capacity] = self.stream.upload(at)
        at = self._panel_at[panel.capacity]
        head = (panel.values, at, at, at, panel.uu, self.rows.d)
        blocks = 1 if update else right.capacity // right.width
        self._launch(product, span, blocks, 0, head, right, count, store, update)

    def _blocks(self, panel: Panel) -> Iterator[tuple[int, int]]:
        """(first working vector, base) of each block of a panel of CSR rows, which stands in it meanwhile."""
        stream, r = self.stream, self.rows
        *csr, norms, count, rows = panel.listed
        if self._scatter is None:
            made = programs.scatter(stream.profile, r.dtype, r.d)
            self._scatter = stream.variant(made, "mark"), stream.variant(made, "fill")
        mark, fill = self._scatter
        size = (panel.width, 1 if self.shape == "vector" else 32)
        lines = panel.nbytes // (panel.width * self._real.itemsize)
        by_entry = int(lines - 1 < r.d)
        for first in range(0, panel.capacity, panel.width):
            if panel.base[0] > 2**31 - 1 - 2 * lines:  # start again
                stream.clear(panel.place, 4 * r.d)
                panel.base[0] = 0
            base = panel.base[0]
            mark(size, None, *csr[:2], count, rows, first, base, by_entry, panel.place, panel.values)
            fill(size, None, *csr, norms, count, rows, first, base, panel.place, panel.values, panel.uu)
            yield first, base
            panel.base[0] += lines

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """c += K(X, U) D over all rows, and K(X, U) into the store; either may be None."""
        for part, (first, groups) in self._spans(0, self.rows.n_pad // self.rows.lanes):
            self._rows(part, first, groups, 0, panel, count, store, update)

    def rows_of(self, panel: Panel, source: Gram) -> NDArray[Any]:
        """K(U, X) on the host, U the rows of ``source`` in the caller's order (at most the panel's capacity), X these,
        in device order: (source's n, n_pad)."""
        stream, n, itemsize = self.stream, source.rows.n, self._real.itemsize
        at, count = stream.upload(source.rows.position), stream.upload(np.array([n], np.int32))
        out = stream.buffer(itemsize * n * self.rows.n_pad)
        source.gather(panel, at, count)
        self.accumulate(panel, count, Store((out,), n, self.rows.n_pad, self._slot(panel.capacity)), None)
        K = stream.read(out, self._real, (n, self.rows.n_pad))
        stream.free(at, count, out)
        return K

    def forward_back(
        self, panel: Panel, count: Buffer, w: Buffer, v: Buffer, out: Buffer, problems: int, tile_bytes: int = 64 << 20
    ) -> None:
        """out += K(X, U)' (w * (K(X, U) v)) with w (n_pad,), v and out (problems, capacity), all wide.

        K is computed once, a tile of rows within ``tile_bytes`` at a time; sums go in the order of the rows.
        """
        stream, lanes = self.stream, self.rows.lanes
        groups = self.rows.n_pad // lanes
        step = max(1, min(groups, tile_bytes // (self._real.itemsize * lanes * panel.capacity)))
        size = step * lanes
        tile, t = stream.buffer(self._real.itemsize * size * panel.capacity), stream.buffer(8 * problems * size)
        store = Store((tile,), panel.capacity, size, self._slot(panel.capacity))
        group = stream.profile.group if self.shape == "group" else 1
        back = stream.variant(programs.back(stream.profile, self.rows.dtype))
        for begin in range(0, groups, step):
            here = min(step, groups - begin)
            stream.clear(t, 8 * problems * size)
            for part, (first, some) in self._spans(begin, here):
                update = Update(problems, size, t, v, panel.capacity)
                self._rows(part, first, some, begin * lanes, panel, count, store, update)
            arguments = (tile, np.int64(size), begin * lanes, here * lanes, w, t, count, panel.capacity, out)
            back((group * panel.capacity, problems), (group, 1), *arguments)
        stream.finish()
        stream.free(tile, t)

    def _spans(self, begin: int, groups: int) -> list[tuple[Part | None, tuple[int, int]]]:
        """Lane groups begin .. begin + groups - 1, buffer by buffer: (part, (first, how many))."""
        if self.rows.csr:
            return [(None, (begin, groups))]
        spans = ((p, max(begin, p.first), min(begin + groups, p.first + p.groups)) for p in self.rows.parts)
        return [(part, (first, end - first)) for part, first, end in spans if first < end]

    def _rows(
        self,
        part: Part | None,
        first: int,
        groups: int,
        base: int,
        panel: Panel,
        count: Buffer,
        store: Store | None,
        update: Update | None,
    ) -> None:
        """The product over some lane groups; row ``base`` is the first of store and update."""
        r = self.rows
        product = "rows" if not update else "update" if not store else "both, slabs" if len(store.slabs) > 1 else "both"
        if part is None:
            assert r.csr
            for block in self._blocks(panel):
                head: tuple[Any, ...] = (*r.csr, self.norms, self.norms, *block)  # (the list of rows is not read)
                self._launch(product, (first, groups), 1, base, head, panel, count, store, update)
            return
        head = (part.values, r.at, r.columns_at, r.columns, self.norms, r.d)
        self._launch(product, (first, groups), 1, base, head, panel, count, store, update)

    def _slot(self, capacity: int, offset: int = 0) -> Buffer:
        """offset, offset + 1, ...: working vector u is kept in row offset + u."""
        if (capacity, offset) not in self._slots:
            self._slots[capacity, offset] = self.stream.upload(np.arange(offset, offset + capacity, dtype=np.int32))
        return self._slots[capacity, offset]

    def _launch(
        self,
        product: str,
        span: tuple[int, int],
        blocks: int,
        base: int,
        head: tuple[Any, ...],
        panel: Panel,
        count: Buffer,
        store: Store | None,
        update: Update | None,
    ) -> None:
        r, stream = self.rows, self.stream
        key = product, panel.shape
        if key not in self._grams:
            made = programs.gram(self.kernel.spec, product, r.kind, r.dtype, stream.profile, r.d, panel.shape)
            self._grams[key] = stream.variant(made)
        first, groups = span
        tile = {} if r.csr else programs.tile(stream.profile, product, r.kind, r.dtype, panel.shape)
        at = (panel.place,) if r.csr else ()
        arguments = [first, groups, base, *head, count, *at, panel.values, panel.uu]
        if store:
            arguments += [*store.slabs, store.slab_rows, np.int64(store.ld), store.slot]
        if update:
            arguments += [update.problems, np.int64(update.n), update.c, update.D, update.capacity]
        size: tuple[int, ...]
        local: tuple[int, ...]
        if self.shape == "vector":  # (a group each: PoCL, left to choose, gives few large items to one core)
            items = -(-groups // tile.get("GROUPS", 1))
            if r.kind == "clustered" and not programs.PRODUCTS[product].tile:
                items = min(items, max(-(-items // RUN), SHARE * stream.compute_units))
            size, local = (items,), (1,)
        else:
            items = panel.width if r.csr else r.lanes // tile["RX"] * (tile["COLUMNS"] // tile["RY"])
            size, local = (groups * items, blocks), (items, 1)
        self._grams[key](size, local, *arguments, *self._numbers)
