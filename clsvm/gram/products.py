"""Products with a kernel matrix that is never stored whole.

    gather        working rows -> a panel (and their squared norms)
    tile          K(U, U) of a panel's rows, W x W
    accumulate    c += K(X, U) D for all rows X, keeping K(X, U) in the row cache where one is given

U are a panel's working vectors, D their weights for each of the problems. Every value K(x, u) is computed by the same
chain of operations in column order, whatever the layout, tile or batch, so it has the same bits everywhere (of an
element-wise sum: in each layout); but for those of wide tiles by matrix units, where these were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import LaneRows
from clsvm.gram.layouts.record import Panel, Pass, Reader, Rows
from clsvm.gram.programs import RowSource, Units, made_rows
from clsvm.kernels import Kernel
from clsvm.opencl.contexts import Kernel as DeviceKernel
from clsvm.opencl.stream import APART, Buffer, Stream

Slots = dict[int, Buffer]
# Cells of a launch on a GPU: 0.2 seconds at 5e11 a second, as is taken for a small one; one with a screen resets at 2
LONGEST = 1e11
PASSING = 8 << 20  # bytes of values at most that are stored for a sum alone: a cache holds them
FEW = 4096  # rows of such a store that are too few: each column's entries are looked for in every one


class Store(NamedTuple):
    """Where rows of K are kept: SLABS buffers (or one) of slab_rows rows of ld values; slot[u] for each u. near:
    whether caches shall keep the values of one buffer, since they are read next, in the vector shape."""

    slabs: tuple[Buffer, ...]
    slab_rows: int
    ld: int
    slot: Buffer
    near: bool = False

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of kernels, in their order."""
        return (*self.slabs, self.slab_rows, np.int64(self.ld), self.slot)


class Update(NamedTuple):
    """c (problems, n) += K D, with D (problems, capacity); both wide. sections: of the panel, each with a c of its own,
    one after another, where there are some; ``count`` then has several numbers of each (epilogue.mako)."""

    problems: int
    n: int
    c: Buffer
    D: Buffer
    capacity: int
    sections: int = 0

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of kernels, in their order."""
        return self.problems, np.int64(self.n), self.c, self.D, self.capacity


class Tile(NamedTuple):
    """Values among the rows of a square panel: out[u, v] = K(row u, row v), rows of ``capacity`` values, for all u and
    v >= known, whole lane groups; half: at least for u < known and u >= v. rows, count: which rows these are. most: how
    many of them there can be, where the host knows that they are fewer than the panel holds."""

    rows: Buffer
    count: Buffer
    out: Buffer
    known: int = 0
    half: bool = False
    most: int | None = None


class Operator(Protocol):
    """The kernel matrix as solvers ask for it, whatever it is made of, on one stream and so in one thread.

    whole: whether all of K is on the device. resident: whether all rows are, in one piece. share: the part of the
    free memory that a working set may take. by_blocks: whether each block of working vectors is laid out anew for every
    product, so that few of them cost less. width: working sets are whole blocks of so many rows. units: the matrix
    units that make wide tiles, if any.
    """

    whole: bool = False
    resident: bool = False
    share: float = 0.5
    by_blocks: bool = False
    units: Units | None = None
    stream: Stream
    rows: Rows
    kernel: Any
    width: int

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel for at least ``capacity`` working vectors; square: one that :meth:`tile` takes."""

    def panel_bytes(self, capacity: int) -> int:
        """Return the bytes of a panel."""

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """Return whole blocks of a gathered panel: ``capacity`` working vectors from ``first`` on, ``count`` there."""

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """Return the arguments from which :meth:`row_source` makes kernel values; None where a panel does not hold all
        of its vectors."""

    def row_source(self) -> RowSource:
        """Return the program text by which a subproblem makes rows of its tile from :meth:`of_panel`."""

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """Bring the rows at positions rows[0 .. count - 1] (int32, -1: none) into a panel."""

    def tile(self, panel: Panel, tile: Tile) -> None:
        """Compute K among the rows of a gathered square panel, in the rows' dtype."""

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        """Add K(X, U) D over all rows to c, and put K(X, U) into the store; either may be None. Rows from position
        ``end`` on, whole lane groups, need no values, unless it is 0."""

    def between(self, panel: Panel, at: Buffer, right: Panel, count: Buffer, K: Buffer, update: Update | None) -> None:
        """Put K(U', U) of a square panel U of the rows ``at`` and the ``count`` working vectors of another, U', into K,
        or, with an update, add K(U, U') D to its c."""

    def use(self, units: Units | None) -> None:
        """Take matrix units for wide tiles of all rows from here on, or none. Only of resident rows."""
        raise TypeError("rows are not on the device in one piece")

    def lent(self) -> AbstractContextManager[None]:
        """Return a context in which the memory that products themselves are made in is free."""
        return nullcontext()


def _product(store: Store | None, update: Update | None) -> str:
    """Return which of programs.PRODUCTS fills a store, an update, or both."""
    if store is None:
        return "sections" if update and update.sections else "update"
    slabs, near = len(store.slabs) > 1, store.near and not update
    return ("both" if update else "rows") + ", near" * near + ", slabs" * slabs


Range = tuple[int, ...]


def _range(size: Range, local: Range, sections: int) -> tuple[Range, Range]:
    """Return the range and work-group of a launch, with the sections of a panel in the third dimension, if any."""
    if not sections:
        return size, local
    between = (1,) * (2 - len(size))
    return (*size, *between, sections), (*local, *between, 1)


class Gram(Operator):
    """Products of one kernel function over one set of rows that is on the device. slots: the buffers that :meth:`slot`
    has made, where several of them share them."""

    resident = True

    def __init__(self, stream: Stream, rows: Rows, kernel: Kernel, slots: Slots | None = None) -> None:
        self.stream, self.rows, self.kernel = stream, rows, kernel
        self._layout = LAYOUTS[rows.kind]
        self.reader: Reader = self._layout.reader(self._layout, stream, rows, kernel)
        self.width, self.by_blocks = self.reader.width, stream.profile.shape == "vector" and not self._layout.shared
        self._real = np.dtype(rows.dtype)
        self.numbers = kernel.scalars(rows.dtype)
        self._grams: dict[tuple[str, str, str], tuple[DeviceKernel, dict[str, int]]] = {}
        self._slots: Slots = {} if slots is None else slots
        self._plain: Gram | None = None  # of the same rows, by kernels that need no store
        self.squared: Buffer = None  # norms of the rows, by these units
        self.at_least = stream.compute_units  # wide tiles of a product; fewer leave units of the device without any

    def use(self, units: Units | None) -> None:
        """Take matrix units for wide tiles of all rows from here on, or none; panels that were made before go without.
        Of dense rows in float32 (Units.why_not)."""
        self.units = units
        if units is None or not isinstance(self.rows, LaneRows):
            return
        r, stream = self.rows, self.stream
        kernel = stream.variant(units.norms(stream.profile))
        self.squared = stream.buffer(self._real.itemsize * r.n_pad)
        for part in r.parts:
            size = units.norms_range(part.groups * r.lanes)
            kernel(*size, r.d, part.values, part.first, self.squared)

    def panel(self, capacity: int, square: bool = False) -> Panel:
        made = self.reader.panel(capacity, square)
        if self.units and made.shape == "many":
            with self.stream.tentative():
                made.squared = self.stream.buffer(made.capacity * self._real.itemsize)
        return made

    def panel_bytes(self, capacity: int) -> int:
        return self.reader.panel_bytes(capacity) + (0 if self.squared is None else capacity * self._real.itemsize)

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        return self.reader.part(panel, first, capacity, count)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        """Bring rows into a panel that these rows or others with as long ones made; the rest of it becomes zero, or,
        where it is not ``fresh``, keeps rows that other sets of rows brought."""
        self.reader.gather(panel, rows, count, fresh)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers of the rows and of their products."""
        return tuple(dict.fromkeys((*self.rows.buffers(), self.reader.norms)))

    @property
    def groups(self) -> range:
        """Return all lane groups of the rows."""
        return range(self.rows.n_pad // self.rows.lanes)

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """Return values, norms and features of a panel of lane groups, and the function's numbers."""
        held = self.reader.of_panel(panel)
        return held if held is None else (*held, *self.numbers)

    def row_source(self) -> RowSource:
        return made_rows(self.kernel.spec)

    def tile(self, panel: Panel, tile: Tile) -> None:
        store = Store((tile.out,), panel.capacity, panel.capacity, self.slot(panel.capacity))
        product = "half tile" if tile.half and self.stream.profile.shape == "vector" else "tile"
        most = panel.capacity if tile.most is None else tile.most
        groups = range(tile.known // self.rows.lanes, -(-most // self.rows.lanes))
        passes = self.reader.over_panel(groups, panel, tile.rows, panel, tile.count)
        self._launch(product, panel, passes, 0, store, None)

    def between(self, panel: Panel, at: Buffer, right: Panel, count: Buffer, K: Buffer, update: Update | None) -> None:
        store = None if update else Store((K,), right.capacity, panel.capacity, self.slot(right.capacity))
        passes = self.reader.over_panel(range(panel.capacity // self.rows.lanes), panel, at, right, count)
        self._launch("tile update" if update else "tile", right, passes, 0, store, update)

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        groups = range(end // self.rows.lanes) if end else self.groups
        self.over_rows(groups, 0, panel, count, store, update)

    def of_all(self, capacity: int = 0, square: bool = False) -> Panel:
        """Return a panel of all rows in the caller's order, with room for so many at least."""
        stream, n = self.stream, self.rows.n
        panel = self.panel(capacity or n, square)
        places = stream.upload(self.rows.position), stream.upload(np.array([n], np.int32))
        self.gather(panel, *places)
        if panel.rows_stay:
            panel.places = places
        else:
            stream.finish()
            stream.free(*places)
        return panel

    def values(self, panel: Panel, m: int) -> NDArray[Any]:
        """Return K(X, U) (n, m) on the host for the m working vectors of a gathered panel, in the caller's order."""
        stream, count = self.stream, self.stream.upload(np.array([m], np.int32))
        out = stream.buffer(self._real.itemsize * m * self.rows.n_pad)
        self.accumulate(panel, count, Store((out,), m, self.rows.n_pad, self.slot(panel.capacity)), None)
        K = stream.read(out, self._real, (m, self.rows.n_pad))
        stream.free(out, count)
        return np.asarray(K[:, self.rows.position].T)

    def over_rows(
        self, groups: range, base: int, panel: Panel, count: Buffer, store: Store | None, update: Update | None
    ) -> None:
        """Do as :meth:`accumulate` does over some lane groups; row ``base`` is the first of store and update."""
        if update and not store and self._layout.plain:
            self._through(groups, base, panel, count, update)
            return
        passes = (one for one in self.reader.over_rows(groups, panel, count) if update or not one.sums)
        self._launch(_product(store, update), panel, passes, base, store, update)

    def _through(self, groups: range, base: int, panel: Panel, count: Buffer, update: Update) -> None:
        """Add K(X, U) D to c by way of a store of a block of working vectors, and some rows, at a time; where half of
        the memory that is left holds few rows of it, by the kernels that need none."""
        stream, V, width, itemsize = self.stream, self.rows.lanes, panel.width, self._real.itemsize
        unit = APART // (8 * V)  # lane groups whose sums begin where a part of a buffer can
        room = min(PASSING, (stream.limit - stream.held) // 2)
        step = unit * (room // (width * itemsize * V * unit))
        if step * V < min(FEW, len(groups) * V):
            if self._plain is None:
                rows = replace(self.rows, kind=self._layout.plain)
                self._plain = Gram(stream, rows, self.kernel, self._slots)
            self._plain.over_rows(groups, base, panel, count, None, update)
            return
        size = min(step, len(groups)) * V
        with stream.scratch():
            slot = stream.upload(np.arange(panel.capacity, dtype=np.int32) % width)
            store = Store((stream.buffer(width * size * itemsize),), width, size, slot)
            for begin in range(groups.start, groups.stop, step):
                some, first = range(begin, min(begin + step, groups.stop)), begin * V
                rest = update.problems * update.n - (first - base)
                c = stream.part(update.c, 8 * (first - base), 8 * rest) if first > base else update.c
                self.over_rows(some, first, panel, count, store, update._replace(c=c))

    def slot(self, capacity: int) -> Buffer:
        """Return the buffer 0, 1, ...: working vector u is kept in row u."""
        if capacity not in self._slots:
            self._slots[capacity] = self.stream.upload(np.arange(capacity, dtype=np.int32))
        return self._slots[capacity]

    def _wide(self, one: Pass, update: bool) -> bool:
        """Return whether tiles of many rows and working vectors leave every compute unit some of them."""
        profile = self.stream.profile
        if "wide" not in profile.tiles or one.blocks < 2:
            return False
        tile = profile.tiles["wide"]
        tiles = -(-one.groups // tile["GROUPS"]) * (1 if update else -(-one.blocks // tile["BLOCKS"]))
        return tiles >= self.at_least

    def held(self, groups: range, panel: Panel, count: Buffer, update: Update) -> list[Callable[[], None]]:
        """Return the launches of c += K(X, U) D over some lane groups of dense rows, for sections of a panel, to be
        repeated as the buffers change."""
        alone = len(groups) == 1 and self.stream.profile.shape == "vector"
        product = "sections, one group" if alone else "sections"
        passes = self.reader.over_rows(groups, panel, count)
        each = (launch for one in passes for launch in self._launches(product, panel, one, 0, None, update))
        return [kernel.held(*launch) for kernel, *launch in each]

    def _launch(
        self, product: str, panel: Panel, passes: Iterable[Pass], base: int, store: Store | None, update: Update | None
    ) -> None:
        for one in passes:
            for kernel, *launch in self._launches(product, panel, one, base, store, update):
                kernel(*launch)

    def _launches(
        self, product: str, panel: Panel, one: Pass, base: int, store: Store | None, update: Update | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the kernel, range, work-group and arguments of each launch."""
        stream, r, shape = self.stream, self.rows, panel.shape
        if shape == "many" and self._wide(one, bool(update)):
            shape = "wide"
        units = self.units if shape == "wide" and panel.squared and not programs.PRODUCTS[product].tile else None
        which = product, units.name if units else shape, one.kernel
        if which not in self._grams:
            if units:
                made = units.gram(self.kernel.spec, product, stream.profile, r.d)
            else:
                made = programs.gram(self.kernel.spec, product, r.kind, r.dtype, stream.profile, r.d, shape)
            self._grams[which] = stream.variant(made, one.kernel), made.numbers
        if units:
            over = units.norms_range(panel.capacity)
            yield stream.variant(units.norms(stream.profile)), *over, r.d, panel.values, 0, panel.squared
            values, at, _, d, count, vectors, _ = one.reads
            one = one._replace(reads=(values, at, self.squared, d, count, vectors, panel.squared))
        kernel, numbers = self._grams[which]
        outcome, apart = [given.arguments() for given in (store, update) if given], update.sections if update else 0
        cells = one.blocks * numbers["UB"] * r.lanes * max(1.0, r.cost)  # of a lane group
        if stream.profile.shape == "vector":  # (a group each: PoCL, left to choose, gives few large items to one core)
            of_panel = programs.PRODUCTS[product].tile
            items = one.items or self._layout.size(stream, numbers, of_panel, one.groups, cells)
            yield kernel, *_range((items,), (1,), apart), one.first, one.groups, base, one.reads, *outcome, self.numbers
            return
        each = numbers.get("GROUPS", 1)  # (lane groups of a tile)
        step = each * max(1, int(LONGEST / (each * cells)))
        for begin in range(0, one.groups, step):
            some = min(step, one.groups - begin)
            grid = self._layout.grid(numbers, some, 1 if update else one.blocks)
            yield kernel, *_range(*grid, apart), one.first + begin, some, base, one.reads, *outcome, self.numbers
