"""Rows X in the host's memory that pass through a device block by block, as often as one likes.

While the caller computes with one block, a thread lays out the next one on a queue of its own, so that reading a file,
copying to the device and packing into lanes take no time of their own. Two blocks are on the device at most: the one
before is freed when the next one is there. Results are the same bits as of blocks that are laid out in turn, as those
are that a CPU device finds in memory: rows are packed from where they stand, without a copy, and nothing waits.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Arrangement, Plan, Rows, lanes
from clsvm.gram.responses import row_bytes, whole_tiles
from clsvm.opencl.stream import Stream

Block = tuple[slice, Rows]  # which rows of X, and these on the device
BLOCK = 256 << 20  # bytes of a block at most
SHARE = 0.5  # of what is left of the budget: for the blocks, and for what laying one out takes
IN_TURN, IN_PLACE, COPIED = 1.1, 3, 5  # blocks that the share holds: one, two, and a copy of its rows as float64
EVEN = 4096  # rows at most that blocks are made whole of
LOOSE = 2  # times what a part of a block needs: how large the buffer of an earlier block may be that it gets
OWN = 16  # bytes of a row's norm and places
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
        if again and near:
            with contextlib.suppress(MemoryLimitError), stream.tentative():  # (else rows stand as they came)
                self.arrangement = LAYOUTS[plan.kind].arranged(stream, X, plan, dtype)
        if not self.arrangement:
            plan = layouts.streamed(plan, X, stream.limit - stream.held) if again else layouts.once(plan, X)
        self._plan = plan
        most = min(most or BLOCK, stream.largest)
        places, cells = X.shape[0], X.indptr if sp.issparse(X) else None
        row = row_bytes(plan, X, itemsize) + OWN
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
        """One pass over all blocks, in order or in the opposite one. A block is there until the next one is asked for,
        and the caller's queue is finished then. Leaving it early, by an error or Ctrl-C, leaves no thread and no
        buffer.

        Iterating raises ValueError where memory_limit is too small or a file became shorter, DeviceError, MemoryError:
        whatever laying out a block raises.
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
        """The worker alone uses the other stream while it works, and the caller's thread where it has nothing to do."""
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
        """Of the thread: a block that is there for other queues."""
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
        """Some of the rows, laid out on ``stream`` as a block is; the caller frees them."""
        self.check_files()
        if self.arrangement:
            layout = LAYOUTS[self._plan.kind]
            return layout.build_part(stream, self._X, self._plan, self._dtype, self.arrangement, rows)
        X = self._X if rows.stop - rows.start == self._X.shape[0] else self._X[rows]
        return layouts.build(stream, X, self._plan, self._dtype, range(rows.start, rows.stop))


def _wait(worker: ThreadPoolExecutor, process: int) -> None:
    """Wait until the thread has nothing to do, since it works with buffers that are freed next. A forked process has no
    such thread.

    Its shutdown, which waits once more where Ctrl-C comes here, is no place to wait alone: a thread that is joined when
    Ctrl-C comes counts as ended in Python before 3.13.
    """
    if os.getpid() == process:
        worker.submit(int).result()


def _even(stream: Stream, dtype: str, step: int) -> int:
    """So many rows, or fewer that all compute units share evenly in whole register tiles."""
    profile = stream.profile
    tile = profile.tiles["many"].get("GROUPS", 1) * lanes(profile, dtype) * stream.compute_units
    unit = math.lcm(tile, whole_tiles(1))
    return step // unit * unit if step >= unit and unit <= EVEN else step


def _cut(n: int, step: int, cells: NDArray[np.integer] | None) -> Iterator[slice]:
    """Consecutive rows, ``step`` at most and fewer where these would have far more cells than others; cells (n + 1,):
    how many stand before each."""
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
