"""Compute kernel matrices K(X, U), and products of weights with them, on a device.

X are the n training rows. U are some rows that were copied into a device buffer, which is called a panel. ``capacity``
is the number of rows for which the panel has room. D (problems, capacity) are weights of the rows U, with a row of
weights for each of several dual problems. c (problems, n) are sums, with a row of sums for each dual problem.

    gather: copy U and its squared norms into the panel, given the positions of U in X.
    tile: compute the kernel matrix K(U, U).
    accumulate: add the product D K(U, X) to the sums c, or write the kernel matrix K(U, X) to a buffer, or do both.

:class:`Operator` is the interface of these methods for the solvers. :class:`Gram` implements the methods for rows that
one device holds. The rows X are stored in groups of V rows that OpenCL kernels compute side by side. Such a group is
called a lane group (layouts/record.py).

Each kernel value is computed by one chain of operations in the order of the columns of X. So the bits of a kernel value
do not depend on the other rows in X and U. The bits are the same for all storage formats that have the same order of
columns, with one exception: kernel functions of the form f(sum_j e(x_j, y_j)). Matrix units (tensor cores) round in
their own way.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import LaneRows
from clsvm.gram.layouts.panel import Launch, Panel, PanelPair
from clsvm.gram.layouts.record import Reader, Rows
from clsvm.gram.programs import RowSource, Units, computed_rows
from clsvm.kernels import Kernel
from clsvm.opencl.contexts import Kernel as DeviceKernel
from clsvm.opencl.stream import ALIGNMENT, Buffer, Stream

Slots = dict[int, Buffer]
# MAX_LAUNCH is the largest number of multiply-adds in one launch on a GPU. A small GPU takes 0.2 s for this number.
# More work on a GPU is divided into several launches, because a driver may reset a GPU if a launch takes 2 s.
MAX_LAUNCH = 1e11
PASSING = 8 << 20  # largest size in bytes of a temporary store of kernel values, so that a CPU cache holds the store
# A temporary buffer of kernel values has values for at least MIN_STORE_ROWS rows of X, or for all rows if X has fewer.
# Each temporary buffer of kernel values needs new look-ups in the inverted index of X, so small buffers are slow.
MIN_STORE_ROWS = 4096


class Store(NamedTuple):
    """Describe where rows of a kernel matrix K are stored: in which buffers, and at which place in them.

    Attributes
    ----------
    slabs
        the buffers of the rows of K, which are called slabs: one buffer, or programs.SLABS buffers of equal size.
    slab_rows
        number of rows of K in each slab.
    ld
        number of values in each row of K.
    slot
        int32 buffer. Row u of a product K(U, X), where U are selected rows and X all rows, becomes row
        slot[u] % slab_rows of the slab with the index slot[u] // slab_rows.
    near
        whether the next OpenCL kernel reads the stored values. If true, kernels on CPUs write the values to the caches.
        If false, kernels on CPUs may write the values past the caches, directly to memory.
    """

    slabs: tuple[Buffer, ...]
    slab_rows: int
    ld: int
    slot: Buffer
    near: bool = False

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments for the parameters that OpenCL kernels need to store rows of K.

        The macro STORE_PARAMETERS in epilogue.mako is the list of these parameters.
        """
        return (*self.slabs, self.slab_rows, np.int64(self.ld), self.slot)


class Update(NamedTuple):
    """Describe an update c += D K(U, X) of sums c (problems, n), with weights D (problems, capacity) of the rows U.

    U are rows that were copied into a buffer, the panel. K(U, X) are the kernel values between U and the n rows X.

    Attributes
    ----------
    problems
        number of dual problems. Each has a row of sums in c and a row of weights in D.
    n
        number of values in a row of c.
    c
        buffer of the sums in wide numbers, which are doubles or pairs of floats.
    D
        buffer of the weights in wide numbers.
    capacity
        number of values in a row of D.
    sections
        0 if c is one array of sums for all rows U. Otherwise U is divided into this many ranges of rows, called
        sections. c then holds several arrays (problems, n), and each section adds to one of them. The buffer ``count``
        of :meth:`Operator.accumulate` then has three numbers for each section: the number of its rows, its first row,
        and the index of its array.
    """

    problems: int
    n: int
    c: Buffer
    D: Buffer
    capacity: int
    sections: int = 0

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments for the parameters that OpenCL kernels need to add D K(U, X) to the sums c.

        The macro UPDATE_PARAMETERS in epilogue.mako is the list of these parameters.
        """
        return self.problems, np.int64(self.n), self.c, self.D, self.capacity


class Tile(NamedTuple):
    """Describe the matrix of kernel values out[u, v] = K(row u, row v) of the rows in a panel, a buffer of rows of X.

    If ``matrices`` is above 1, the panel is divided into as many equal parts, and each part has its own matrix. The
    matrices follow each other in ``out``.

    Attributes
    ----------
    rows
        int32 buffer with the position in X of each row.
    count
        int32 buffer that :func:`counts` describes, with the number of rows twice for each matrix.
    out
        buffer for the matrix. The number of values in each row is the number of rows for which the panel, or its part,
        has room.
    first, end
        out[u, v] is computed for first <= v < end only. ``end`` = 0 stands for the number of values in a row of
        ``out``.
    symmetric
        whether values out[u, v] with first <= u < v < end may be left out too. The caller can copy them from out[v, u].
    matrices
        number of matrices. Only operators with the attribute ``at_once`` compute more than one.
    """

    rows: Buffer
    count: Buffer
    out: Buffer
    first: int = 0
    end: int = 0
    symmetric: bool = False
    matrices: int = 1


def counts(sizes: Iterable[tuple[int, int]]) -> NDArray[np.int32]:
    """Return the int32 array (matrices, SECTION) from which products among panels read the sizes of their matrices.

    Row m has the sizes of matrix m: the number of rows of the panel of U, and the number of rows of the other panel.
    """
    made = np.zeros((len(sizes := [*sizes]), programs.SECTION), np.int32)
    made[:, :2] = sizes
    return made


class Operator(Protocol):
    """Compute products with a kernel matrix for solvers, whether the matrix is stored or computed from rows.

    X are the rows of the operator, and U the right-hand rows of a product K(X, U). The buffer of U is called a panel.
    An operator belongs to one stream and one thread.

    Attributes
    ----------
    whole
        whether the device holds all of K.
    resident
        whether the device holds all rows X, and products compute K from them.
    share
        the share of the free memory that a working set may take.
    by_blocks
        whether the device is a CPU whose panels hold only one block of right-hand rows at a time. A product then copies
        one block after another into the panel, and its time grows with the number of blocks.
    at_once
        whether :meth:`tile` and :meth:`between` compute several matrices at once.
    units
        the matrix units (tensor cores) that compute products with many right-hand rows, or None.
    width
        number of right-hand rows in a block of a panel. Memory for a working set holds a multiple of ``width`` rows.
    stream
        the device stream.
    rows
        the rows X on the device.
    kernel
        the kernel function.
    """

    whole: bool = False
    resident: bool = False
    share: float = 0.5
    by_blocks: bool = False
    at_once: bool = False
    units: Units | None = None
    stream: Stream
    rows: Rows
    kernel: Any
    width: int

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel with room for at least ``capacity`` rows.

        A panel is a device buffer. Rows U are copied into the panel before a kernel matrix K(X, U) is computed. Set
        ``square`` if :meth:`tile` or :meth:`between` will compute kernel values between rows of the panel.
        """

    def panel_bytes(self, capacity: int) -> int:
        """Return the size in bytes of a panel with room for ``capacity`` rows.

        A panel is a device buffer. Rows U are copied into the panel before a kernel matrix K(X, U) is computed.
        """

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """Return a view of the rows ``first`` to ``first + capacity - 1`` of a filled panel.

        A panel is the buffer of the rows U of K(X, U). ``first`` and ``capacity`` are multiples of :attr:`width`. The
        buffer ``count`` holds how many rows of the view are in use.
        """

    def row_source(self, panel: Panel) -> tuple[RowSource, tuple[Any, ...]] | None:
        """Return OpenCL text that computes rows of K(U, U), and the arguments to add to the kernel that includes it.

        U are rows of X, copied into the buffer ``panel``. Only solvers on CPUs include the text in their programs.
        Return None if the buffer holds only a part of U at a time, or stores binary features as single bits.
        """

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """Copy the rows of X at the positions rows[0 .. count - 1] into ``panel``, the buffer of the rows U of K(X, U).

        A position of -1 copies no row. The row of ``panel`` at its place then has undefined values.
        """

    def tile(self, panel: Panel, tile: Tile) -> None:
        """Write K(U, U) to ``tile.out`` for the rows U in the buffer ``panel``, which was made with square=True."""

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        """Add the product D K(U, X) to sums c, and write the kernel matrix K(U, X) to device memory.

        X are the n rows of the operator, and U are the rows in ``panel``. D (problems, capacity) are weights of the
        rows U. c (problems, n) are sums.

        panel: device buffer of the rows U.
        count: device buffer with the number of rows U. For ``update.sections`` > 0, :class:`Update` says what it holds.
        store: the buffers to which K(U, X) is written, or None if K(U, X) is not needed.
        update: object that holds D and c, or None if no sums are needed.
        end: 0 if the results are needed for all rows X. Otherwise the results are needed only for the rows of X at the
            positions 0 .. end - 1. ``end`` is a multiple of V, the number of rows that kernels compute side by side.
        """

    def between(self, pair: PanelPair, K: Buffer, update: Update | None) -> None:
        """Compute the kernel matrix K(U, R) between two sets of rows of X, the rows R and U of the panels in ``pair``.

        The rows R are those of ``pair.panel``, and the rows U those of ``pair.right``. The outputs of several matrices
        follow each other. The attribute ``at_once`` says whether the operator allows several matrices.

        pair: the two panels.
        K: buffer to which the matrix K(U, R) is written if ``update`` is None. Otherwise the buffer is not used.
        update: None, or an object with weights D of the rows U, and with the sums to which D K(U, R) is added.
        """

    def use(self, units: Units | None) -> None:
        """Choose matrix units (tensor cores), or None, for later products K(X, U) with many right-hand rows U.

        The device must hold all rows X.
        """
        raise TypeError(
            f"{type(self).__name__} cannot use matrix units (tensor cores) without all rows X on the device"
        )

    def unreserved(self) -> AbstractContextManager[None]:
        """Return a context in which the caller may use the memory that the operator reserved for its own products."""
        return nullcontext()


def _product(store: Store | None, update: Update | None) -> str:
    """Return the key in programs.PRODUCTS of the kernel to launch for ``store`` and ``update``.

    The kernel writes kernel values to ``store``, adds weighted values to the sums of ``update``, or does both.
    """
    if store is None:
        return "sections" if update and update.sections else "update"
    slabs, near = len(store.slabs) > 1, store.near and not update
    return ("both" if update else "rows") + ", near" * near + ", slabs" * slabs


class Gram(Operator):
    """Compute kernel matrices K(X, U), and products of weights with them, for one kernel function on one device.

    X are the rows of the Gram, which the device holds. U are rows that are copied into a panel, which is a device
    buffer.

    Attributes
    ----------
    reader
        object that copies rows U into a panel. For a kernel matrix K(X, U), the reader yields descriptions of kernel
        launches, one after another. The class of the reader depends on the storage format of the rows X.
    numbers
        the kernel function's scalar arguments, such as gamma.
    squared
        buffer of the squared norms of the rows X as the matrix units (tensor cores) compute them, or None.
    min_tiles
        least number of work-groups for which each work-group computes a large block of K(X, U). If large blocks would
        give fewer work-groups, smaller blocks are used, so that no compute units idle.

    The parameter ``slots`` is a dictionary in which :meth:`slot` keeps the buffers that it makes. Several Grams may
    share ``slots``.
    """

    resident = True

    def __init__(self, stream: Stream, rows: Rows, kernel: Kernel, slots: Slots | None = None) -> None:
        self.stream, self.rows, self.kernel = stream, rows, kernel
        self._layout = LAYOUTS[rows.kind]
        self.reader: Reader = self._layout.reader(self._layout, stream, rows, kernel)
        self.width, self.by_blocks = self.reader.width, stream.profile.style == "simd" and not self._layout.shared
        self.at_once = self._layout.shared
        self._real = np.dtype(rows.dtype)
        self.numbers = kernel.scalars(rows.dtype)
        self._grams: dict[tuple[str, str, str], tuple[DeviceKernel, dict[str, int]]] = {}
        self._slots: Slots = {} if slots is None else slots
        self._plain: Gram | None = None  # computes sums from the same rows without a temporary buffer of K
        self.squared: Buffer = None  # squared norms, computed by the matrix units (tensor cores)
        self.min_tiles = stream.compute_units

    def use(self, units: Units | None) -> None:
        """Choose matrix units (tensor cores), or None, for later products K(X, U) with many right-hand rows U.

        The rows X must be dense float32 (see Units.why_not). :meth:`panel` makes a buffer for the rows U. If the
        buffer was made while no matrix units were chosen, products with this buffer never use matrix units.
        """
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
        """Copy the rows of X at the positions rows[0 .. count - 1] into a panel, the buffer of the rows U of K(X, U).

        If X is stored in CSR, the panel must have room for the entries of the copied rows. If ``fresh`` is true, the
        rest of the panel may become zero. If it is false, rows that other Grams copied into the panel remain.
        """
        self.reader.gather(panel, rows, count, fresh)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers of the rows and of their norms, without duplicates."""
        return tuple(dict.fromkeys((*self.rows.buffers(), self.reader.norms)))

    @property
    def groups(self) -> range:
        """Return the indices of all lane groups of X. A lane group is V rows that kernels compute side by side."""
        return range(self.rows.n_pad // self.rows.lanes)

    def row_source(self, panel: Panel) -> tuple[RowSource, tuple[Any, ...]] | None:
        if panel.rows_stay or self._layout.binary:
            return None
        return computed_rows(self.kernel.spec), (panel.values, panel.uu, self.rows.d, *self.numbers)

    def tile(self, panel: Panel, tile: Tile) -> None:
        W, V = panel.capacity // tile.matrices, self.rows.lanes
        store = Store((tile.out,), W, W, self.slot(W))
        product = "symmetric tile" if tile.symmetric and self.stream.profile.style == "simd" else "tile"
        groups = range(tile.first // V, -(-(tile.end or W) // V))
        passes = self.reader.over_panel(groups, PanelPair(panel, tile.rows, panel, tile.count, tile.matrices))
        _run(self._launches(product, panel, passes, 0, store, None))

    def between(self, pair: PanelPair, K: Buffer, update: Update | None) -> None:
        of, other = pair.panel.capacity // pair.matrices, pair.right.capacity // pair.matrices
        store = None if update else Store((K,), other, of, self.slot(other))
        passes = self.reader.over_panel(range(of // self.rows.lanes), pair)
        _run(self._launches("tile update" if update else "tile", pair.right, passes, 0, store, update))

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        groups = range(end // self.rows.lanes) if end else self.groups
        self.over_rows(groups, 0, panel, count, store, update)

    def of_all(self, capacity: int = 0, square: bool = False) -> Panel:
        """Return a buffer (panel) that holds all rows of X in the caller's order.

        In products K(X, U), the rows U of the panel are then all rows of X. The panel has room for at least
        ``capacity`` rows. Set ``square`` if kernel values between rows of the panel will be computed.
        """
        stream, n = self.stream, self.rows.n
        panel = self.panel(capacity or n, square)
        places = stream.upload(self.rows.position), stream.upload(np.array([n], np.int32))
        self.gather(panel, *places)
        panel.others = (*panel.others, *places)
        return panel

    def values(self, panel: Panel, m: int) -> NDArray[Any]:
        """Return K(X, U) (n, m) as a host array for the m right-hand rows U in the buffer ``panel``.

        The rows X are in the caller's order.
        """
        stream, count = self.stream, self.stream.upload(np.array([m], np.int32))
        out = stream.buffer(self._real.itemsize * m * self.rows.n_pad)
        self.accumulate(panel, count, Store((out,), m, self.rows.n_pad, self.slot(panel.capacity)), None)
        K = stream.read(out, self._real, (m, self.rows.n_pad))
        stream.free(out, count)
        places = slice(self.rows.n) if self._layout.in_order else self.rows.position
        return np.asarray(K[:, places].T)

    def over_rows(
        self, groups: range, base: int, panel: Panel, count: Buffer, store: Store | None, update: Update | None
    ) -> None:
        """Do what :meth:`accumulate` does, but only for the rows of X in the lane groups ``groups`` (V rows each).

        The values of row i of X are written to column i - base of the stored K(U, X), and added to column i - base of
        the sums in ``update``. ``base`` is 0 if the stored K(U, X) and the sums have a column for each row of X. It is
        -b if they have a column for each row of a larger set of rows, in which X is the block that begins at row b. It
        is positive if they have columns only for the rows of X from row ``base`` on.
        """
        if update and not store and self._layout.plain:
            self._add_through_store(groups, base, panel, count, update)
            return
        passes = (one for one in self.reader.over_rows(groups, panel, count) if update or not one.sums)
        _run(self._launches(_product(store, update), panel, passes, base, store, update))

    def _add_through_store(self, groups: range, base: int, panel: Panel, count: Buffer, update: Update) -> None:
        """Add D K(U, X) to the sums c by way of a temporary buffer. ``update`` holds the weights D and the sums c.

        Kernels of some layouts cannot add a value of K to the sums when they compute it. They write the values to a
        temporary buffer first, and then add the values in the buffer to c. The buffer holds the values between one
        block of the right-hand rows U in ``panel`` and a range of rows of X at a time. If memory is too small for a
        range of MIN_STORE_ROWS rows, the rows X are read as rows of the simpler layout ``Layout.plain``. The kernels of
        the simpler layout need no temporary buffer.
        """
        stream, V, width, itemsize = self.stream, self.rows.lanes, panel.width, self._real.itemsize
        # The buffer c has a sum of 8 bytes for each row. The sums of ``unit`` groups of V rows take ALIGNMENT bytes.
        # The sums c of a range of rows are an OpenCL sub-buffer, which must begin at a multiple of ALIGNMENT bytes.
        unit = ALIGNMENT // (8 * V)
        limit = min(PASSING, (stream.limit - stream.allocated) // 2)
        step = unit * (limit // (width * itemsize * V * unit))
        if step * V < min(MIN_STORE_ROWS, len(groups) * V):
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
                left = update.problems * update.n - (first - base)
                c = stream.part(update.c, 8 * (first - base), 8 * left) if first > base else update.c
                self.over_rows(some, first, panel, count, store, update._replace(c=c))

    def slot(self, capacity: int) -> Buffer:
        """Return an int32 buffer of the numbers 0 .. capacity - 1.

        With this buffer as ``Store.slot``, row u of a product K(U, X) is stored as row u of the store.
        """
        if capacity not in self._slots:
            self._slots[capacity] = self.stream.upload(np.arange(capacity, dtype=np.int32))
        return self._slots[capacity]

    def _wide(self, one: Launch, update: bool) -> bool:
        """Return whether the work-groups of the launch ``one`` compute K(X, U) in large blocks, not in small blocks.

        The profiles of some devices define the size of a large block, under the name "wide". Large blocks are used only
        if a launch with large blocks has at least ``min_tiles`` work-groups. If ``update`` is false, each work-group
        computes one block. If ``update`` is true, each work-group computes the blocks of all rows U for some rows of X,
        one block after another.
        """
        profile = self.stream.profile
        if "wide" not in profile.tiles or one.blocks < 2:
            return False
        tile = profile.tiles["wide"]
        tiles = -(-one.groups // tile["GROUPS"]) * (1 if update else -(-one.blocks // tile["BLOCKS"]))
        return tiles >= self.min_tiles

    def prepared(self, groups: range, panel: Panel, count: Buffer, update: Update) -> list[Callable[[], None]]:
        """Return functions that together add weighted kernel values to sums. Each function starts one kernel launch.

        The rows U in ``panel`` are divided into ranges, which are called sections. Each section has an array c of sums,
        with a sum c[p, i] for each dual problem p and each row x_i of X. Calling all functions adds
        sum_u D[p, u] K(u, x_i) over the rows u of the section to c[p, i]. D[p, u] is a weight. The functions may be
        called again after new data are written to the same buffers.

        groups: the part of X to take, as indices of lane groups. A lane group is V rows of X, which must be dense.
        panel: device buffer of the rows U.
        count: device buffer with three numbers for each section: the number of its rows, its first row in ``panel``,
            and the index of its array c.
        update: object that holds the weights D and the arrays c.
        """
        single = len(groups) == 1 and self.stream.profile.style == "simd"
        product = "sections, one group" if single else "sections"
        passes = self.reader.over_rows(groups, panel, count)
        launches = self._launches(product, panel, passes, 0, None, update)
        return [kernel.prepared(*launch) for kernel, *launch in launches]

    def _launches(
        self, product: str, panel: Panel, over: Iterable[Launch], base: int, store: Store | None, update: Update | None
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the kernel, global size, local size and arguments of each launch of a product.

        ``product`` is a key of programs.PRODUCTS. ``over`` has a record for each range of rows of X. On a GPU, a range
        that would take long is divided among several launches. Row i of X belongs to column i - base of the output.
        """
        stream, r, of_panel = self.stream, self.rows, programs.PRODUCTS[product].tile
        simd, sections = stream.profile.style == "simd", max(1, update.sections) if update else 1
        outcome = [given.arguments() for given in (store, update) if given]
        for one in over:
            shape = "wide" if panel.shape == "many" and self._wide(one, bool(update)) else panel.shape
            units = self.units if shape == "wide" and panel.squared and not of_panel else None
            if units:
                whole = units.norms_range(panel.capacity)
                yield stream.variant(units.norms(stream.profile)), *whole, r.d, panel.values, 0, panel.squared
                values, at, _, d, count, vectors, _ = one.arguments
                one = one._replace(arguments=(values, at, self.squared, d, count, vectors, panel.squared))
            kernel, numbers = self._program(product, shape, units, one.kernel)
            cells = one.blocks * numbers["UB"] * r.lanes * max(1.0, r.cost)  # multiply-adds for V rows of X
            each = numbers.get("GROUPS", 1)  # number of groups of r.lanes rows of X that one work-group takes
            step = max(1, one.groups) if simd else each * max(1, int(MAX_LAUNCH / (each * cells * one.matrices)))
            for begin in range(0, one.groups, step):
                some = min(step, one.groups - begin)
                if simd:  # work-groups of one work-item, since PoCL runs all items of a work-group on one core
                    grid = (one.items or self._layout.size(stream, numbers, of_panel, some, cells), 1), (1, 1)
                else:
                    grid = self._layout.grid(numbers, some, 1 if update else one.blocks)
                # Dimension 2 is for several matrices, or for sections, which are ranges of rows U of K(X, U).
                size, local = (*grid[0], max(sections, one.matrices)), (*grid[1], 1)
                yield kernel, size, local, one.first + begin, some, base, one.arguments, *outcome, self.numbers

    def _program(self, product: str, shape: str, units: Units | None, name: str) -> tuple[DeviceKernel, dict[str, int]]:
        """Return an OpenCL kernel that computes a product K(X, U), and its program's numeric -D options by macro name.

        product: key of programs.PRODUCTS. It says whether kernel values are stored, added to sums, or both.
        shape: "two", "few" or "many" for the number of right-hand rows U, or "wide" for many rows in larger blocks.
        units: the matrix units (tensor cores) that the kernel uses, or None.
        name: name of the kernel in the program.
        """
        which = product, units.name if units else shape, name
        if which not in self._grams:
            spec, profile, r = self.kernel.spec, self.stream.profile, self.rows
            if units:
                made = units.gram(spec, product, profile, r.d)
            else:
                made = programs.gram(spec, product, r.kind, r.dtype, profile, r.d, shape)
            self._grams[which] = self.stream.variant(made, name), made.numbers
        return self._grams[which]


def _run(launches: Iterator[tuple[Any, ...]]) -> None:
    for kernel, *launch in launches:
        kernel(*launch)
