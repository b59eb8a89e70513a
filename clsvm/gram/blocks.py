"""Compute products with the kernel matrix K for rows X that exceed the device's memory.

X stays in the host's memory or in a memory-mapped file. :func:`products_of` returns a :class:`Gram` if the device can
hold all rows. Otherwise it returns a :class:`BlockGram`, which splits X into blocks of rows. Both operators compute
values of K with the same bits.

A product with a BlockGram is one pass over X: it takes one block after another. Every second pass takes the blocks from
last to first, because the system's page cache still holds the blocks that were read last. Blocks get to the device in
one of three ways:

    ahead: a thread copies the next block on its own queue while the caller computes with the current block.
    in turn: each block is copied, used and freed before the next one.
    window: on a device that shares the host's memory, a kernel reads X in the host's memory and writes one block after
        another into the same buffer (:class:`Window`).

The right-hand rows U of a product K(X, U) are rows of X that a solver selects. U is copied from X into a device buffer,
which is called a panel.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays, system
from clsvm.arrays import Data
from clsvm.errors import BufferSizeError, DeviceError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.layouts.lanes import CLUSTERED, Arrangement, Columns, LaneRows, Packer, Part, Source
from clsvm.gram.layouts.panel import Panel, PanelPair
from clsvm.gram.layouts.record import Plan, Rows, in_order, lanes
from clsvm.gram.products import Gram, Operator, Slots, Store, Tile, Update
from clsvm.gram.programs import RowSource
from clsvm.gram.responses import whole_tiles
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream

Block = tuple[slice, Rows]  # a slice of X and its rows on the device
ROWS_SHARE, PLAIN_SHARE, SHARE, WORKING_SHARE = (
    0.8,  # ROWS_SHARE: all rows stay on the device if rows and solver state take at most this share of free memory
    0.4,  # PLAIN_SHARE: rows stay plain, without an inverted index, if rows and index exceed this share of free memory
    0.5,  # SHARE: share of the free memory that a pass over X may take; half of this share if many passes follow
    0.7,  # WORKING_SHARE: share of the free memory for a working set if X passes through the device in blocks
)
# bytes of solver state for each row of X: gradient, coefficient, bounds, and its indices in working set and row cache
STATE_BYTES = 56
BLOCK = 256 << 20  # largest size in bytes of a block of rows of X; class BlockGram takes smaller blocks
# UNIFIED: largest size in bytes of a block of X's rows, if a device that shares the host's memory reads X many times.
# COPIED: largest size in bytes of a block of X's rows, if X is copied many times to a device with its own memory.
UNIFIED, COPIED = 2 << 20, 64 << 20
# MIN_ROWS: blocks of up to MIN_ROWS rows may exceed the limit of UNIFIED bytes. With fewer rows, some cores would idle.
MIN_ROWS = 1280
CACHED_SHARE = 0.5  # a mapped file of at most this share of the free memory of the host is assumed to stay in memory
ONE, TWO, COPY = (
    1.1,  # ONE: a pass over X takes 1.1 times the bytes of a block of rows, if one block is in memory at a time
    3,  # TWO: a pass over X takes 3 times the bytes of a block of rows, if a second block is copied during computations
    5,  # COPY: a pass over X takes 5 times the bytes of a block of rows, if the device has its own memory
)
ROW_OVERHEAD = 16  # bytes for a row's squared norm and for its place in the order in which the device stores rows
UNEVEN = 1.5  # a block of s sparse rows is shortened if it has more than UNEVEN * s * (mean entries per row) entries
ALIGNED = 128  # alignment in bytes of host arrays that become device buffers without a copy
# LAID: cost of copying one value of a row to the device. One multiply-add in a product of dense rows costs 1.
# FILLED: cost of copying one value if an OpenCL kernel reads it in host memory. One multiply-add costs 1.
LAID, FILLED = 150, 20
LARGER = 10 * 64  # bytes by which 10 buffers grow at most if each size is rounded up to a multiple of 64
# SAMPLE: the memory for the rows U of K(X, U) is estimated from SAMPLE rows of X, in CSR from the fullest ones.
SAMPLE = 64


def products_of(stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str) -> Operator:
    """Return the operator for products with K over the rows X (n, d).

    The operator is a :class:`Gram` if device memory can hold all rows, in the layout of ``plan``, beside the solver's
    arrays. Otherwise it is a :class:`BlockGram`, which copies one block of rows after another to the device. Raises
    ValueError if memory_limit cannot hold a few blocks of rows, and the exceptions of layouts.build.
    """
    left, n, itemsize = stream.limit - stream.allocated, X.shape[0], np.dtype(dtype).itemsize
    plain = layouts.LAYOUTS[plan.kind].plain
    if plain and n * layouts.row_bytes(plan, X, itemsize) > PLAIN_SHARE * left:
        plan = replace(plan, kind=plain)  # a large inverted index would take memory that cached rows of K use better
    # The memory of rows in the layout "clustered" (similar rows together) is known only after they were stored.
    if not layouts.LAYOUTS[plan.kind].in_order or n * layouts.row_bytes(plan, X, itemsize) <= ROWS_SHARE * left:
        with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative():
            gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
            taken = left - (stream.limit - stream.allocated)
            if taken + STATE_BYTES * n > ROWS_SHARE * left:
                raise MemoryLimitError(stream.limit, stream.allocated, taken)
            return gram
    return BlockGram(stream, X, plan, kernel, dtype)


class Streamed:
    """Copy the rows X (n, d) to the device, one block of rows after another. X is dense or CSR, perhaps memory-mapped.

    A pass over X copies each block once.

    ``plan`` says in which layout the device stores the rows, such as "dense" or "csr". ``dtype`` is the dtype of the
    stored values. ``row_extra`` is the number of bytes that the caller allocates for each row of a block.

    ``again`` says whether the caller makes many passes over X. If ``again`` is true, blocks are smaller, and every
    second pass takes the blocks from last to first. The layout "clustered", which puts similar rows together, is used
    for blocks only if ``again`` is true.

    Attributes
    ----------
    single
        plan by which :meth:`gathered` stores rows of X that the caller selects. If ``arrangement`` is None, blocks are
        stored by this plan too.
    arrangement
        the order of the rows in the layout "clustered", or None if the blocks keep the order of X.
    step
        largest number of rows of a block.
    slices
        the rows of each block, as a slice of all n rows. The rows are counted in the order of ``arrangement``, or in
        the order of X if ``arrangement`` is None.
    share
        largest number of bytes of device memory that a pass over X takes.
    near
        whether kernels can read rows of X directly in the host's memory. A :class:`BlockGram` lets them do so only if
        the device has float64, and a panel can hold all right-hand rows U of K(X, U) at once.
    ahead
        whether a thread prepares the next block while the caller uses the current one. ``ahead`` is false if ``near``
        is true, if X is one block, if memory is too small for two blocks, or if the device is simulated.
    """

    def __init__(
        self, stream: Stream, X: Data, plan: Plan, dtype: str, row_extra: int = 0, again: bool = False
    ) -> None:
        self.stream, self.X, self.dtype, self.itemsize = stream, X, dtype, np.dtype(dtype).itemsize
        self._files, left = {file: len(file) for file in arrays.mapped(X)}, stream.limit - stream.allocated
        shared = stream.unified and not sp.issparse(X) and X.nbytes <= stream.info.largest_buffer
        # Many passes over a file that the page cache can hold read it in place. Otherwise a thread reads blocks ahead.
        in_memory = not self._files or (again and shared and X.nbytes <= CACHED_SHARE * (system.available() or 0))
        self.near = near = shared and in_memory
        self.single = layouts.streamed_plan(plan, X, left) if again else layouts.single_pass_plan(plan, X)
        row = layouts.row_bytes(self.single, X, self.itemsize)
        most = BLOCK
        if again:
            most = max(UNIFIED, MIN_ROWS * row) if stream.unified else COPIED
        self.arrangement: Arrangement | None = None
        if again and near and plan.kind == CLUSTERED.name:
            # rows keep the order of X if sorting them into clusters of similar rows would exceed the memory budget
            with contextlib.suppress(MemoryLimitError), stream.tentative():
                self.arrangement = CLUSTERED.arranged(stream, X, plan, dtype)
        self._plan = plan if self.arrangement else self.single
        places, cells = X.shape[0], X.indptr if sp.issparse(X) else None
        if self.arrangement:
            cells = np.repeat(self.arrangement.groups[0], lanes(stream.profile, dtype))
            cells = np.concatenate([[0], np.cumsum(cells)])
            places = len(cells) - 1
            row = self.itemsize * int(cells[-1] / places)
        row, most = row + ROW_OVERHEAD, min(most, stream.largest)
        in_turn = ONE if cells is None else ONE * UNEVEN
        blocks = COPY if not stream.unified else in_turn if near else TWO
        budget = (SHARE / 2 if again else SHARE) * (stream.limit - stream.allocated)
        self.share = int(min(budget, blocks * max(most, whole_tiles(1) * row)))
        limit = int(self.share / blocks)
        self.step = min(places, whole_tiles(min(most, limit) // (row + row_extra)))
        self.slices = [*_cut(places, self.step, cells)]
        self.ahead = not near and len(self.slices) > 1 and self.step * row <= limit and not stream.simulated
        self._again, self._passes = again, 0

    def following(self) -> list[slice]:
        """Return the slice of rows of each block, in the order in which the next pass over X takes the blocks."""
        self._passes += 1
        return self.slices[::-1] if self._again and self._passes % 2 == 0 else self.slices

    def passing(self) -> AbstractContextManager[Iterator[Block]]:
        """Return a context manager, whose value is an iterator over the blocks of X.

        The iterator yields the slice of rows of each block, and the rows on the device. The caller must wait until
        its queue is idle before it requests the next block. The request frees the current block, and all buffers that
        the caller made since it received this block. The end of the context, also after an error or Ctrl-C, frees all
        buffers and ends the thread that copies blocks.

        The iterator raises ValueError if memory_limit is too small or if a file was truncated. It can also raise
        DeviceError and MemoryError.
        """
        return contextlib.closing(self._laid_ahead() if self.ahead else self._laid_in_turn())

    def _laid_in_turn(self) -> Generator[Block, None, None]:
        with self.stream.recycling():
            for rows in self.following():
                with self.stream.scratch():
                    yield rows, self.lay_out(self.stream, rows)

    def _laid_ahead(self) -> Generator[Block, None, None]:
        """Yield the slice of each block and its rows on the device. A worker thread copies blocks on a second stream.

        The caller's thread uses the second stream only while the worker thread is idle.
        """
        process, used, slices = os.getpid(), None, self.following()

        def fetched(rows: slice) -> Rows:
            laid = self.lay_out(other, rows)
            other.finish()
            return laid

        worker = ThreadPoolExecutor(1, "clsvm rows")
        with self.stream.second_stream(self.share) as other, other.recycling(), worker:
            try:
                coming = worker.submit(fetched, slices[0])
                for rows, following in zip(slices, [*slices[1:], None], strict=True):
                    if os.getpid() != process:
                        words = "a process that was forked while X was being read cannot continue the fit or prediction"
                        raise DeviceError(
                            f"{words}, because only its parent process has the thread that reads X; "
                            "continue in the parent process"
                        )
                    made = coming.result()
                    if used is not None:
                        other.free(*used.buffers())
                    if following is not None:
                        coming = worker.submit(fetched, following)
                    with self.stream.scratch():
                        yield rows, made
                    used = made
            finally:
                # Wait until the worker thread is idle, because the buffers that it fills are freed next.
                # Before Python 3.13, Ctrl-C can mark a busy thread as ended, so that the executor does not wait for it.
                if os.getpid() == process:  # a forked process has no worker thread
                    worker.submit(int).result()

    def check_files(self) -> None:
        """Raise ValueError if a file that X is mapped from was truncated, since reading it would kill the process."""
        for file, size in self._files.items():
            arrays.check_file(file, size)

    def lay_out(self, stream: Stream, rows: slice) -> Rows:
        """Store the slice ``rows`` of X as one block on the device. The caller frees the block's buffers."""
        self.check_files()
        if self.arrangement:
            return CLUSTERED.build_part(stream, self.X, self._plan, self.dtype, self.arrangement, rows)
        X = self.X if rows.stop - rows.start == self.X.shape[0] else self.X[rows]
        if self._files and not sp.issparse(X):  # read a byte of each page first, so that no kernel waits for a disk
            X.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)
        return layouts.build(stream, X, self._plan, self.dtype)

    def gathered(self, ids: NDArray[np.int32]) -> Rows:
        """Store the rows with the row numbers ``ids`` on the device, in buffers separate from the blocks of X."""
        self.check_files()
        return layouts.build(self.stream, self.X[ids], self.single, self.dtype)


def _cut(n: int, step: int, cells: NDArray[np.integer] | None) -> Iterator[slice]:
    """Yield slices that divide ``n`` rows into runs of at most ``step`` consecutive rows.

    ``cells`` is None if all rows have equally many entries. Otherwise cells[i] is the number of entries in the rows
    before row i, and cells[n] is the number of entries in all rows. The mean number of entries in ``step`` rows is then
    step * cells[n] / n. A run that has more than UNEVEN = 1.5 times this number of entries is shortened, but not to
    fewer than 64 rows.
    """
    first = 0
    most = 0 if cells is None else int(UNEVEN * step * int(cells[n]) / n)
    while first < n:
        last = min(first + step, n)
        if cells is not None and cells[last] - cells[first] > most:
            fit = int(np.searchsorted(cells[first : last + 1], cells[first] + most, "right")) - 1
            last = min(last, first + whole_tiles(fit))
        yield slice(first, last)
        first = last


class Window:
    """Copy dense rows of X to the device by an OpenCL kernel that reads X in the host's memory.

    The copied rows are stored in lane groups. A lane group is V rows with interleaved values.

    :meth:`passing` copies one block of X after another into the same buffer, the window. :meth:`gather` copies single
    rows into a panel. A panel is a device buffer that holds the rows U of a kernel matrix K(X, U).

    The argument ``passing`` divides X into blocks. The argument ``rows`` describes all rows of X: their squared norms,
    and the order in which the device stores them. ``centre`` is a vector (features,) that is subtracted from each row.
    """

    def __init__(self, passing: Streamed, rows: Rows, centre: NDArray[np.float64]) -> None:
        self._passing, self._rows, self._stream = passing, rows, passing.stream
        arranged, V, slices = passing.arrangement, rows.lanes, passing.slices
        lengths = arranged.groups[0] if arranged else np.full(rows.n_pad // V, rows.d)
        before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * V  # values before each V rows
        groups = [range(some.start // V, -(-some.stop // V)) for some in slices]
        # _cells[g]: number of stored values of the block whose first lane group (V rows) has the index g
        self._cells = {of.start: int(before[of.stop] - before[of.start]) for of in groups}
        at = np.concatenate([before[of.start : of.stop] - before[of.start] for of in groups])
        # _where: host arrays with the device's order of rows, and where each lane group (V rows) begins in its block.
        self._where = [_aligned(one) for one in (rows.order, at, *(arranged.groups[1:] if arranged else ()))]
        self._packer = Packer(passing.stream, passing.X.dtype, rows.dtype, centre)
        self._panel_at: dict[int, Buffer] = {}

    @contextlib.contextmanager
    def passing(self) -> Iterator[tuple[Rows, Iterator[range]]]:
        """Return a context manager, whose value is a pair: a :class:`Rows` object, and an iterator over blocks of X.

        The Rows object describes all rows of X, which are stored in lane groups. A lane group is V rows with
        interleaved values. Each step of the iterator copies the next block of X into one buffer, the window. The step
        yields a range, the indices of the lane groups in the block. The end of the context frees the window.
        """
        stream, X, rows, itemsize = self._stream, self._passing.X, self._rows, self._passing.itemsize
        n, d = X.shape
        with contextlib.ExitStack() as stack:
            stack.enter_context(stream.scratch())
            source = Source(0, n, d, *stack.enter_context(stream.view(X)))
            places, at, *listed = [stack.enter_context(stream.view(one))[0] for one in self._where]
            where = Columns(at, *(listed or (at, at)))
            values = stream.buffer(max(self._cells.values()) * itemsize)

            def blocks() -> Iterator[range]:
                for some in self._passing.following():
                    self._passing.check_files()
                    groups = range(some.start // rows.lanes, -(-some.stop // rows.lanes))
                    self._packer.rows(source, groups, places, where, values)
                    yield groups
                    stream.finish()  # so that Ctrl-C takes effect

            part = Part(0, rows.n_pad // rows.lanes, values)
            yield LaneRows(**vars(rows), parts=(part,), at=where), blocks()

    def gather(self, panel: Panel, ids: Buffer) -> None:
        """Copy rows of X into a panel. A panel is a device buffer that holds the rows U of a kernel matrix K(X, U).

        The panel has a place for each row of U. The int32 buffer ``ids`` has a number for each place: the number of the
        row of X that is copied to the place. A place with the number -1 gets a row of zeros.
        """
        stream, (n, d), groups = self._stream, self._passing.X.shape, range(panel.capacity // panel.width)
        if panel.capacity not in self._panel_at:
            self._panel_at[panel.capacity] = stream.upload(np.array(groups, np.int64) * panel.width * d)
        where = Columns(*[self._panel_at[panel.capacity]] * 3)
        self._passing.check_files()
        with stream.view(self._passing.X) as (source, begin):
            self._packer.rows(Source(0, n, d, source, begin), groups, ids, where, panel.values)
        self._packer.norms(groups, where, panel.values, panel.uu)
        panel.filled = True


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of ``array`` that starts at a multiple of ALIGNED bytes."""
    raw = np.empty(array.nbytes + ALIGNED, np.uint8)
    first = -raw.ctypes.data % ALIGNED
    made: NDArray[Any] = raw[first : first + array.nbytes].view(array.dtype)
    made[:] = array
    return made


@dataclass
class Fetched:
    """Describe the rows of X that were copied into a panel, the buffer of the rows U of products K(X, U).

    Rows are copied into the panel in one of two ways:

        through a device copy: the host copies the rows to the device, and a kernel copies the rows from this device
            copy into the panel. If the rows are stored in CSR, the panel has room for only one block of the rows U.
            Each product then fills the panel with one block after another, so the device copy is kept.
        directly: a kernel copies the rows from the host's memory into the panel (:class:`Window`).

    Attributes
    ----------
    at
        int32 buffer with a number for each place in the panel. A place is for one row, and -1 stands for no row.
        If rows are copied directly, the number is the row number in X. Otherwise the number is the position of the row
        in the device copy.
    count
        number of places in use, places without a row included.
    ids
        row numbers in X of the rows in the kept device copy, ascending. None if no device copy is kept.
    gram
        kernel operator (Gram) of the rows in the kept device copy. None if no device copy is kept.
    """

    at: Buffer
    count: int = 0
    ids: NDArray[np.int32] | None = None
    gram: Gram | None = None

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers to free together with the panel: ``at``, and those of ``gram`` if it is not None."""
        return (self.at, *self.gram.buffers()) if self.gram else (self.at,)


class BlockGram(Operator):
    """Compute products with K over rows X (n, d), dense or CSR, that stay in the host's memory or a file."""

    share = WORKING_SHARE

    def __init__(self, stream: Stream, X: Data, plan: Plan, kernel: Kernel, dtype: str) -> None:
        self.stream, self.kernel = stream, kernel
        self._streamed = streamed = Streamed(stream, X, plan, dtype, again=True)
        # _rows_stay: whether a CSR copy of the rows U of K(X, U) stays on the device, so that each product can read it.
        self._rows_stay = not layouts.LAYOUTS[streamed.single.kind].shared
        lengths = _entries(X) if self._rows_stay else np.zeros(X.shape[0])
        self._longest = np.argsort(-lengths, kind="stable").astype(np.int32)
        self._slots: Slots = {}
        self._few = self._fetch(np.sort(self._longest[:SAMPLE]))
        self.width, self.at_once = self._few.width, self._few.at_once
        row = layouts.row_bytes(streamed.single, X, streamed.itemsize)
        # _most_bytes[k]: bytes of the k rows of X with the most entries, an upper bound for any k rows of X
        entries = np.concatenate([[0], np.cumsum(lengths[self._longest])])
        self._most_bytes = row * (entries * X.shape[0] / max(1, entries[-1]))
        self._row = 2 * row + (0 if stream.unified or sp.issparse(X) else X.dtype.itemsize * X.shape[1])
        self._share = streamed.share
        stream.reserve(self._share)
        self._window: Window | None = None
        # Class Window launches an OpenCL kernel that subtracts a float64 vector from rows, so the device needs float64.
        near = not self._rows_stay and streamed.near and not stream.profile.lacks("float64")
        self.rows = self._first_pass(FILLED if near else LAID)
        if near:
            self._window = Window(streamed, self.rows, plan.centre)

    def _first_pass(self, laid: float) -> Rows:
        """Make a first pass over the blocks of X, and return a :class:`Rows` record of all rows.

        The record has the squared norms of all rows, the average cost of computing a value of K, and the average cost
        of copying a row to the device in a later pass. ``laid`` is the cost of copying one value of a row. The unit of
        costs is one multiply-add in a product of dense rows.
        """
        norms: list[NDArray[Any]] = []
        laid_out: list[Rows] = []

        def record(gram: Gram, groups: range, base: int) -> None:
            norms.append(self.stream.read(gram.rows.xx, gram.rows.dtype, gram.rows.n_pad))
            laid_out.append(gram.rows)

        self._each_block(record)
        streamed, one = self._streamed, laid_out[0]
        (n, d), n_pad, stored = streamed.X.shape, sum(map(len, norms)), sum(rows.stored for rows in laid_out)
        words = f"in {len(laid_out)} blocks of {streamed.step} rows at most, which pass through the device"
        cost = sum(rows.cost * rows.n for rows in laid_out) / n
        xx, arranged = self.stream.upload(np.concatenate(norms)), streamed.arrangement
        places = arranged.places if arranged else in_order(n, n_pad)
        at = n, d, n_pad, one.lanes, stored, *places, xx, cost, one.tile_cost
        return Rows(one.kind, one.dtype, *at, layout_cost=laid * stored / n, words=words)

    def _each_block(self, work: Callable[[Gram, range, int], None]) -> None:
        """Call ``work(gram, groups, base)`` for each block of X. A block is a range of consecutive rows.

        ``gram`` is a :class:`Gram`, which computes products with the kernel matrix of its rows. The rows of ``gram``
        are either the rows of the block, or all rows of X. ``base`` is the difference of row numbers: row i of X is row
        i + base of ``gram``. Rows are counted in the order in which the device stores them. If ``gram`` has all rows of
        X, ``base`` is 0. Otherwise ``base`` is -b, where b is the number of the block's first row in X.

        The rows of ``gram`` are stored in lane groups. A lane group is V rows with interleaved values. ``groups`` is
        the range of the lane groups in ``gram`` that store the block. Buffers that ``work`` makes are freed after the
        block, or at the end of the pass if ``gram`` has all rows of X.
        """
        with self.unreserved():
            if self._window:
                with self._window.passing() as (rows, windows):
                    gram = Gram(self.stream, rows, self.kernel)
                    for groups in windows:
                        work(gram, groups, 0)
                return
            with self._streamed.passing() as blocks:
                for where, laid in blocks:
                    gram = Gram(self.stream, laid, self.kernel)
                    work(gram, gram.groups, -where.start)

    def unreserved(self) -> AbstractContextManager[None]:
        return self.stream.unreserved(self._share)

    def _fetch(self, ids: NDArray[np.int32]) -> Gram:
        """Store the rows of X with the numbers ``ids`` on the device, and return a :class:`Gram` of the stored rows.

        The Gram computes products with the kernel matrix K(X', U), where X' are the stored rows and U any other rows.
        """
        return Gram(self.stream, self._streamed.gathered(ids), self.kernel, self._slots)

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel, a buffer for ``capacity`` or more right-hand rows U of a product K(X, U).

        Set ``square`` if :meth:`tile` or :meth:`between` will compute kernel values between rows of the panel.

        If the rows are stored in CSR, the method also allocates memory for a CSR copy of the rows U on the device.
        The panel then has room for only one block of the rows U. Each product fills the panel with one block after
        another from the CSR copy.
        """
        with self.stream.tentative():
            made = self._few.panel(capacity, square)
            made.fetched = Fetched(self.stream.buffer(4 * made.capacity))
            if self._rows_stay:
                made.fetched.ids = np.sort(self._longest[:capacity])
                made.fetched.gram = self._fetch(made.fetched.ids)
            if square:
                # ``slot`` puts a buffer into a cache, so call it last: an error after it would free the cached buffer.
                self._few.slot(made.capacity)
        return made

    def panel_bytes(self, capacity: int) -> int:
        """Return an upper bound, in bytes, of the memory that :meth:`panel` takes for ``capacity`` rows."""
        nbytes = self._few.panel_bytes(capacity) + 8 * capacity
        if not self._rows_stay:
            return nbytes
        return nbytes + int(self._most_bytes[min(capacity, len(self._longest))]) + LARGER

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        made = self._of(panel).part(panel, first, capacity, count)
        at = self.stream.part(panel.fetched.at, 4 * first, 4 * capacity)
        return replace(made, fetched=replace(panel.fetched, at=at, count=capacity))

    def row_source(self, panel: Panel) -> tuple[RowSource, tuple[Any, ...]] | None:
        return self._few.row_source(panel)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """Copy selected rows of X into ``panel``, the device buffer of the rows U of products K(X, U).

        The device buffer ``rows`` holds the positions of the selected rows in the device's order of rows, -1 for no
        row. The buffer ``count`` holds the number of positions. The host reads the positions. It then copies the
        selected rows to the device, or launches a kernel that reads them in the host's memory (:class:`Window`).
        """
        stream, fetched = self.stream, panel.fetched
        fetched.count = number = min(int(stream.read(count, np.int32, 1)[0]), panel.capacity)
        places, wanted = stream.read(rows, np.int32, number), np.full(panel.capacity, -1, np.int32)
        wanted[:number] = np.where(places >= 0, self.rows.order[places], -1)
        ids = np.unique(wanted[wanted >= 0])
        if self._rows_stay:
            # copy no rows if the device still has all wanted rows
            if not np.isin(ids, fetched.ids, assume_unique=True).all():
                stream.finish()
                stream.free(*fetched.gram.buffers())
                fetched.ids, fetched.gram = ids[:0], None  # if the next line fails, nothing refers to the freed buffers
                fetched.ids, fetched.gram = ids, self._fetch(ids)
            self._gather(panel, fetched.gram, fetched.ids, wanted, count)
        elif self._window and panel.width == self.rows.lanes:
            stream.write(fetched.at, wanted)
            self._window.gather(panel, fetched.at)
        else:
            # If ``ids`` is empty, take one row of X instead: without a row, the loop would not set ``panel`` to zero.
            ids = ids if len(ids) else self._longest[:1]
            step = max(SAMPLE, self._share // self._row)
            with self.unreserved():
                for first in range(0, len(ids), step):
                    with stream.scratch():
                        some = ids[first : first + step]
                        self._gather(panel, self._fetch(some), some, wanted, count, fresh=not first)

    def _gather(
        self, panel: Panel, gram: Gram, ids: NDArray[Any], wanted: NDArray[Any], count: Buffer, fresh: bool = True
    ) -> None:
        """Copy rows of X into ``panel``, the device buffer of the rows U of products K(X, U).

        The rows come from a copy of some rows of X on the device. ``gram`` computes kernel values of the rows in this
        device copy. ``ids`` holds the row numbers in X of the rows in the device copy, ascending.

        The panel has a place for each row of U. ``wanted`` holds for each place the number of the wanted row of X, or
        -1 for no row. The device buffer ``count`` holds the number of places in use.

        A place is skipped if its number in ``wanted`` is -1, or if the device copy does not have the wanted row. If
        ``fresh`` is false, a skipped place keeps its contents. If ``fresh`` is true, its contents may be set to zero.
        """
        index = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
        at = np.where(ids[index] == wanted, gram.rows.position[index], np.int32(-1))
        self.stream.write(panel.fetched.at, at)
        gram.gather(panel, panel.fetched.at, count, fresh)

    def _of(self, panel: Panel) -> Gram:
        """Return the Gram that computes K(U, U) for the rows U of X that were copied into the buffer ``panel``."""
        return panel.fetched.gram or self._few

    def tile(self, panel: Panel, tile: Tile) -> None:
        self._of(panel).tile(panel, tile._replace(rows=panel.fetched.at))

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        """Add D K(U, X) to the sums c, and write K(U, X) into ``store``, in one pass over all blocks of X.

        K(U, X) is the kernel matrix between rows U and the rows X of this operator. The buffer ``panel`` holds the rows
        U, and the buffer ``count`` holds the number of rows U. ``update`` holds the weights D and the sums c. If
        ``update`` is None, nothing is added to sums. If ``store`` is None, K(U, X) is not written. ``end`` has no
        effect: the pass always takes all rows of X. If there are no rows U, no pass is made.
        """
        if panel.fetched.count:
            self._each_block(lambda gram, groups, base: gram.over_rows(groups, base, panel, count, store, update))

    def between(self, pair: PanelPair, K: Buffer, update: Update | None) -> None:
        self._of(pair.panel).between(pair._replace(at=pair.panel.fetched.at), K, update)


def _entries(X: Data) -> NDArray[np.int64]:
    """Return the number of nonzero entries of each row of X, as an array (n,)."""
    if sp.issparse(X):
        return np.asarray(np.diff(X.indptr), np.int64)
    parts = (X[first : first + MIN_ROWS] for first in range(0, X.shape[0], MIN_ROWS))
    return np.concatenate([np.count_nonzero(part, axis=1) for part in parts])
