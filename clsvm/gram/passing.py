"""Rows X in the host's memory, or in a file, that pass through a device block by block, as often as one likes.

    ahead      while the caller computes with one block, a thread lays out the next one on a queue of its own, so that
               reading a file, copying to the device and packing take no time of their own; two blocks at most are there
    in turn    one block after another is laid out and freed
    in place   a device that shares the host's memory packs rows from where they stand into one window (Window)

Results are the same bits.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.layouts.lanes import CLUSTERED, DENSE, Arrangement, Columns, LaneRows, Packer, Part, Source
from clsvm.gram.layouts.record import Panel, Plan, Rows, in_order, lanes
from clsvm.gram.responses import whole_tiles
from clsvm.opencl.stream import Buffer, Stream

Block = tuple[slice, Rows]  # which rows of X, and these on the device
BLOCK = 256 << 20  # bytes of a block at most
SHARE = 0.5  # of what is left of the budget: for the blocks, and for what laying one out takes
IN_TURN, IN_PLACE, COPIED = 1.1, 3, 5  # blocks that the share holds: one, two, and a copy of its rows as float64
EVEN = 4096  # rows at most that blocks are made whole of
LOOSE = 2  # times what a part of a block needs: how large the buffer of an earlier block may be that it gets
OWN = 16  # bytes of a row's norm and places
ALIGNED = 128  # bytes of which arrays begin at a multiple, so that buffers begin where they do
WAIT = 256 << 20  # bytes of a window's rows before the host waits for them, so that Ctrl-C is heard
UNEVEN = 1.5  # a block of sparse rows has at most so many times the entries of as many average rows


class Streamed:
    """X (n, d), dense or CSR, in memory or memory-mapped, laid out by ``plan`` in ``dtype``, some rows at a time.

    beside: bytes that the caller will hold for each row of a block while it has it. most: bytes of a block at most
    (BLOCK). again: whether there are so many passes that it pays to look for an order of the rows; arrangement: that,
    else they stand as they came. share: bytes that a pass takes of the stream's budget, at most. step: rows of a block,
    at most. slices: the blocks. near: whether kernels read any row of X where it is. ahead: whether the next block is
    laid out meanwhile; it is not where there is one alone, where memory holds no two, where the device computes with
    what is in its memory already, and in the simulator.
    """

    def __init__(
        self,
        stream: Stream,
        X: Data,
        plan: Plan,
        dtype: str,
        beside: int = 0,
        most: int | None = None,
        again: bool = False,
    ) -> None:
        self._stream, self._X, self._dtype, itemsize = stream, X, dtype, np.dtype(dtype).itemsize
        self._files = {file: file.size() for file in arrays.mapped(X)}
        there = stream.unified and not self._files and not sp.issparse(X)
        self.near = near = there and X.nbytes <= stream.info.largest_buffer
        self.arrangement: Arrangement | None = None
        if again and near and plan.kind == CLUSTERED.name:
            with contextlib.suppress(MemoryLimitError), stream.tentative():  # (else rows stand as they came)
                self.arrangement = CLUSTERED.arranged(stream, X, plan, dtype)
        if not self.arrangement:
            plan = layouts.streamed(plan, X, stream.limit - stream.held) if again else layouts.once(plan, X)
        self._plan = plan
        most = min(most or BLOCK, stream.largest)
        places, cells = X.shape[0], X.indptr if sp.issparse(X) else None
        row = layouts.row_bytes(plan, X, itemsize) + OWN
        if self.arrangement:
            cells = np.concatenate([[0], np.cumsum(self.arrangement.cells)])
            places = len(cells) - 1
            row = itemsize * int(cells[-1] / places) + OWN
        in_turn = IN_TURN if cells is None else IN_TURN * UNEVEN
        blocks = COPIED if not stream.unified else in_turn if near else IN_PLACE
        left = (SHARE / 2 if again else SHARE) * (stream.limit - stream.held)
        self.share = int(min(left, blocks * max(most, whole_tiles(1) * row)))
        room = int(self.share / blocks)
        self.step = min(places, _even(stream, dtype, whole_tiles(min(most, room) // (row + beside))))
        self.slices = [*_cut(places, self.step, cells)]
        self.ahead = not near and len(self.slices) > 1 and self.step * row <= room and not stream.simulated

    @contextlib.contextmanager
    def passing(self, backward: bool = False) -> Iterator[Iterator[Block]]:
        """Make one pass over all blocks, in order or in the opposite one. A block is there until the next one is asked
        for, and the caller's queue is finished then. Leaving early, by an error or Ctrl-C, leaves no thread and no
        buffer.

        Iterating raises whatever laying out a block raises: ValueError where memory_limit is too small or a file became
        shorter, DeviceError, MemoryError.
        """
        with contextlib.ExitStack() as stack:
            if self.ahead:
                other = stack.enter_context(self._stream.beside(self.share))
                stack.enter_context(other.recycling())
                worker = ThreadPoolExecutor(1, "clsvm rows")
                stack.callback(worker.shutdown)
                stack.callback(_wait, worker, os.getpid())
            slices = self.slices[::-1] if backward else self.slices
            blocks = self._laid_ahead(other, worker, slices) if self.ahead else self._laid_in_turn(slices)
            yield stack.enter_context(contextlib.closing(blocks))

    def _laid_in_turn(self, slices: list[slice]) -> Generator[Block, None, None]:
        with self._stream.recycling(LOOSE if self.near else 1):
            for rows in slices:
                with self._stream.scratch():
                    yield rows, self.laid(self._stream, rows)

    def _laid_ahead(
        self, other: Stream, worker: ThreadPoolExecutor, slices: list[slice]
    ) -> Generator[Block, None, None]:
        """Yield blocks that a thread lays out on the other stream, which the caller's thread uses only while that one
        waits."""
        process, used = os.getpid(), None
        coming = worker.submit(self._fetched, other, slices[0])
        for rows, following in zip(slices, [*slices[1:], None], strict=True):
            if os.getpid() != process:
                raise DeviceError("a forked process began amid rows that stream by: their thread is its parent's")
            made = coming.result()
            if used is not None:
                other.free(*used.buffers())
            if following is not None:
                coming = worker.submit(self._fetched, other, following)
            try:
                yield rows, made
            finally:
                self._stream.finish()
            used = made

    def _fetched(self, stream: Stream, rows: slice) -> Rows:
        """Lay out a block in the thread, for other queues."""
        self.check_files()
        if stream.unified and not sp.issparse(self._X):
            _touch(self._X[rows])
        made = self.laid(stream, rows)
        stream.finish()
        return made

    def check_files(self) -> None:
        """Raise ValueError where a file that X is mapped from became shorter: reading it would end the process."""
        for file, size in self._files.items():
            arrays.check_file(file, size)

    def laid(self, stream: Stream, rows: slice) -> Rows:
        """Lay out some of the rows on ``stream`` as a block is; the caller frees them."""
        self.check_files()
        if self.arrangement:
            return CLUSTERED.build_part(stream, self._X, self._plan, self._dtype, self.arrangement, rows)
        X = self._X if rows.stop - rows.start == self._X.shape[0] else self._X[rows]
        return layouts.build(stream, X, self._plan, self._dtype, range(rows.start, rows.stop))


class Window:
    """Dense rows that stay where the host has them, and where kernels read them: one block after another stands in lane
    groups, in a window that is filled again and again; or some rows, by their numbers, in a panel.

    Nothing waits between two blocks: the places of rows, and their norms ``xx``, are there from the start.
    """

    def __init__(self, passing: Streamed, stream: Stream, X: NDArray[Any], plan: Plan, dtype: str, xx: Buffer) -> None:
        self._stream, self._X, self._xx, arranged = stream, X, xx, passing.arrangement
        (n, d), V, self._itemsize = X.shape, lanes(stream.profile, dtype), np.dtype(dtype).itemsize
        n_pad = -(-passing.slices[-1].stop // V) * V
        order, position = (arranged.order, arranged.position) if arranged else in_order(n, n_pad)
        lengths = arranged.groups[0] if arranged else np.full(n_pad // V, d)
        before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * V  # cells before a group
        self._blocks = [range(some.start // V, -(-some.stop // V)) for some in passing.slices]
        self._cells = [int(before[some.stop] - before[some.start]) for some in self._blocks]
        at = np.concatenate([before[some.start : some.stop] - before[some.start] for some in self._blocks])
        # The host's memory holds these as well as X.
        self._where = [_aligned(one) for one in (order, at, *(arranged.groups[1:] if arranged else ()))]
        kind, stored = (plan.kind if arranged else DENSE.name), int(before[-1])
        self._rows = kind, dtype, n, d, n_pad, V, stored, order, position, xx, stored / n, d
        self._packer = Packer(stream, X.dtype, dtype, plan.centre)
        self._panel_at: dict[int, Buffer] = {}

    @contextlib.contextmanager
    def passing(self, backward: bool = False) -> Iterator[tuple[Rows, Iterator[range]]]:
        """Give all rows, and the lane groups of the block that stands in the window, one block after another; no other
        rows are there. The window's memory is free again at the end."""
        stream, (n, d) = self._stream, self._X.shape
        with contextlib.ExitStack() as stack:
            stack.enter_context(stream.scratch())
            source = Source(0, n, d, *stack.enter_context(stream.view(self._X)))
            places, at, *listed = [stack.enter_context(stream.view(one))[0] for one in self._where]
            where = Columns(at, *(listed or (at, at)))
            values = stream.buffer(max(self._cells) * self._itemsize)
            part = Part(0, self._blocks[-1].stop, values)

            def blocks() -> Iterator[range]:
                laid, each = 0, list(zip(self._blocks, self._cells, strict=True))
                for some, cells in reversed(each) if backward else each:
                    self._packer.rows(source, some, places, where, values)
                    yield some
                    stream.flush()
                    laid += cells
                    if laid * self._itemsize > WAIT:
                        stream.finish()
                        laid = 0

            yield LaneRows(*self._rows, (part,), where), blocks()

    def gather(self, panel: Panel, ids: Buffer) -> None:
        """Bring the rows of X with the numbers ids (capacity,) int32, -1: none, into a panel of lane groups."""
        stream, (n, d) = self._stream, self._X.shape
        groups = range(panel.capacity // panel.width)
        if panel.capacity not in self._panel_at:
            self._panel_at[panel.capacity] = stream.upload(np.array(groups, np.int64) * panel.width * d)
        where = Columns(*[self._panel_at[panel.capacity]] * 3)
        with stream.view(self._X) as (source, begin):
            self._packer.rows(Source(0, n, d, source, begin), groups, ids, where, panel.values)
        self._packer.norms(groups, where, panel.values, panel.uu)
        panel.filled = True


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that begins where the device wants arrays to begin."""
    room = np.empty(array.nbytes + ALIGNED, np.uint8)
    first = -room.ctypes.data % ALIGNED
    made: NDArray[Any] = room[first : first + array.nbytes].view(array.dtype)
    made[:] = array
    return made


def _wait(worker: ThreadPoolExecutor, process: int) -> None:
    """Wait until the thread has nothing to do, since it works with buffers that are freed next. A forked process has no
    such thread.

    Its shutdown, which waits once more where Ctrl-C comes here, is no place to wait alone: a thread that is joined when
    Ctrl-C comes counts as ended in Python before 3.13.
    """
    if os.getpid() == process:
        worker.submit(int).result()


def _even(stream: Stream, dtype: str, step: int) -> int:
    """Return so many rows, or fewer that all compute units share evenly in whole register tiles."""
    profile = stream.profile
    tile = profile.tiles["many"].get("GROUPS", 1) * lanes(profile, dtype) * stream.compute_units
    unit = math.lcm(tile, whole_tiles(1))
    return step // unit * unit if step >= unit and unit <= EVEN else step


def _cut(n: int, step: int, cells: NDArray[np.integer] | None) -> Iterator[slice]:
    """Yield consecutive rows, ``step`` at most and fewer where these would have far more cells than others; cells (n +
    1,): how many stand before each."""
    first = 0
    most = 0 if cells is None else int(UNEVEN * step * int(cells[n]) / n)
    while first < n:
        last = min(first + step, n)
        if cells is not None and cells[last] - cells[first] > most:
            fit = int(np.searchsorted(cells[first : last + 1], cells[first] + most, "right")) - 1
            last = min(last, first + whole_tiles(fit))
        yield slice(first, last)
        first = last


def _touch(X: Data) -> None:
    """Read a byte of every page, so that waiting for a disk is this thread's and no kernel's."""
    X.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)
