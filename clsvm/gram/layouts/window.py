"""Dense rows that stay where the host has them, and where kernels read them: one block at a time stands in lane groups,
in a window that is filled again and again; or some of them, by their numbers, in a panel.

Nothing waits between two blocks: what says where rows stand, and their norms, are there from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.lanes import DENSE, Columns, LaneRows, of_norms, pack_size
from clsvm.gram.layouts.record import Arrangement, Panel, in_order, lanes, packing
from clsvm.gram.layouts.staged import Part
from clsvm.opencl import sources
from clsvm.opencl.stream import Buffer, Stream

ALIGNED = 128  # bytes of which arrays begin at a multiple, so that buffers begin where they do
WAIT = 256 << 20  # bytes of rows that are laid out before the host waits for them, so that Ctrl-C is heard


class Window:
    """Lane groups of the blocks ``slices`` of places of X (n, d), less ``centre``, for a device that shares the host's
    memory. arrangement: where rows stand, with columns of their own; else they stand as they came, and are dense. xx:
    the norms of all places."""

    def __init__(
        self,
        stream: Stream,
        X: NDArray[Any],
        centre: NDArray[np.float64],
        dtype: str,
        kind: str,
        slices: list[slice],
        arrangement: Arrangement | None,
        xx: Buffer,
    ) -> None:
        self._stream, self._X, self._dtype, self._xx = stream, X, dtype, xx
        (n, d), V = X.shape, lanes(stream.profile, dtype)
        self._n_pad = n_pad = -(-slices[-1].stop // V) * V
        self._kind = kind if arrangement else DENSE.name
        order, position = (arrangement.order, arrangement.position) if arrangement else in_order(n, n_pad)
        self._order, self._position = order, position
        lengths = arrangement.groups[0] if arrangement else np.full(n_pad // V, d)
        before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) * V  # cells before a group
        self._blocks = [range(some.start // V, -(-some.stop // V)) for some in slices]
        at = np.concatenate([before[some.start : some.stop] - before[some.start] for some in self._blocks])
        self._cells = [int(before[some.stop] - before[some.start]) for some in self._blocks]
        self._stored = int(before[-1])
        # (read where they are, as X is)
        self._where = [_aligned(one) for one in (order, at, *(arrangement.groups[1:] if arrangement else ()))]
        self._centre = stream.upload(centre.astype(stream.profile.finest))
        opts = packing(stream.profile, X, dtype)
        self._pack, self._norms = (
            stream.kernel(sources.cl("gram/pack"), opts, name) for name in ("pack", "norms_lanes")
        )
        self._panel_at: dict[int, Buffer] = {}

    @contextmanager
    def passing(self, backward: bool = False) -> Iterator[tuple[LaneRows, Iterator[range]]]:
        """(all rows, the lane groups of a block that stands in the window, one block after another). Of the rows, only
        those of that block are there. The window's memory is free again at the end."""
        stream, (n, d), dense = self._stream, self._X.shape, self._kind == DENSE.name
        with ExitStack() as stack:
            stack.enter_context(stream.scratch())
            source, begin = stack.enter_context(stream.view(self._X))
            places, at, *listed = [stack.enter_context(stream.view(one))[0] for one in self._where]
            where = Columns(at, *(listed or (at, at)))
            itemsize = np.dtype(self._dtype).itemsize
            values = stream.buffer(max(self._cells) * itemsize)
            part = Part(0, self._n_pad // (V := lanes(stream.profile, self._dtype)), values)
            sizes = n, d, self._n_pad, V, self._stored, self._order, self._position, self._xx, self._stored / n, d
            rows = LaneRows(self._kind, self._dtype, *sizes, (part,), where, dense)

            def blocks() -> Iterator[range]:
                laid = 0
                for number in reversed(range(len(self._blocks))) if backward else range(len(self._blocks)):
                    some = self._blocks[number]
                    given = 0, n, d, source, begin, some.start, places, self._centre, where, int(dense)
                    self._pack(*pack_size(stream.profile, len(some)), *given, values)
                    yield some
                    stream.flush()
                    laid += self._cells[number]
                    if laid * itemsize > WAIT:
                        stream.finish()
                        laid = 0

            yield rows, blocks()

    def gather(self, panel: Panel, ids: Buffer) -> None:
        """The rows of X with the numbers ids (capacity,) int32, -1: none, into a panel of lane groups."""
        stream, (n, d), V = self._stream, self._X.shape, lanes(self._stream.profile, self._dtype)
        if panel.capacity not in self._panel_at:
            at = np.arange(0, panel.capacity, V, dtype=np.int64) * d
            self._panel_at[panel.capacity] = stream.upload(at)
        at, groups = self._panel_at[panel.capacity], panel.capacity // V
        where = Columns(at, at, at)
        with stream.view(self._X) as (source, begin):
            given = 0, n, d, source, begin, 0, ids, self._centre, where, 1
            self._pack(*pack_size(stream.profile, groups), *given, panel.values)
        size = of_norms(stream.profile, groups)
        self._norms(*size, 0, d, panel.values, where.at, where.columns_at, 1, panel.uu)
        panel.filled = True


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins where the device wants arrays to begin."""
    room = np.empty(array.nbytes + ALIGNED, np.uint8)
    first = -room.ctypes.data % ALIGNED
    made: NDArray[Any] = room[first : first + array.nbytes].view(array.dtype)
    made[:] = array
    return made
