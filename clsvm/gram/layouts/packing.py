"""Rows into lane groups: V rows side by side, contiguous for each feature of a group's list J.

    values[at[group] + j V + lane]    J is everything (lanes.py), or what some row of a cluster uses (clustered.py)

The caller's rows are read from the host's memory where the device shares it, else from a copy of some at a time, or of
all of them (:class:`DeviceRows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from clsvm.arrays import Data
from clsvm.gram.layouts.record import Places, Plan, Rows, lanes, packing, refuse
from clsvm.opencl import sources
from clsvm.opencl.stream import Buffer, Stream

_STAGING = 256 << 20  # bytes of the caller's rows on the device at a time, where the host's memory is not shared


class Part(NamedTuple):
    """Lane groups first .. first + groups - 1 in one buffer, small enough for the device's largest allocation."""

    first: int
    groups: int
    values: Buffer


class Columns(NamedTuple):
    """Where each lane group begins in values, where its features begin in columns, and these."""

    at: Buffer
    columns_at: Buffer
    columns: Buffer

    @property
    def dense(self) -> bool:
        """Return whether every group has all features: nothing else is listed then."""
        return self.columns is self.at


@dataclass(frozen=True)
class LaneRows(Rows):
    """Rows in lane groups."""

    parts: tuple[Part, ...]
    at: Columns

    def buffers(self) -> tuple[Buffer, ...]:
        return (self.xx, *dict.fromkeys(self.at), *(part.values for part in self.parts))


class DeviceRows:
    """The rows ``numbers`` of X (n, d), C-contiguous float32 or float64, of which a device has all as they came, in
    ``source``, so that they are laid out without the host; with the plan of all rows, dense.

    An index picks some of them; numpy.asarray brings them to the host.
    """

    ndim = 2

    def __init__(self, X: NDArray[Any], source: Buffer, plan: Plan, numbers: NDArray[Any]) -> None:
        self.X, self.source, self.plan, self.numbers = X, source, plan, np.asarray(numbers)
        self.shape, self.dtype, self.itemsize = (len(self.numbers), X.shape[1]), X.dtype, X.itemsize
        self.nbytes = X.nbytes  # of all rows

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> DeviceRows:
        return DeviceRows(self.X, self.source, self.plan, self.numbers[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.X[self.numbers], dtype)


class Source(NamedTuple):
    """Rows row0 .. row0 + rows - 1 of d features, row-major in a buffer from item ``begin`` on."""

    row0: int
    rows: int
    d: int
    buffer: Buffer
    begin: int


class Packer:
    """The kernels that bring rows of a dtype, less ``centre`` (d,), into lane groups of ``dtype``. The caller frees its
    centre. held: a launch is not made but returned, to be repeated."""

    def __init__(self, stream: Stream, source: DTypeLike, dtype: str, centre: NDArray[np.float64]) -> None:
        self._profile, self._d = stream.profile, len(centre)
        made = sources.cl("gram/pack"), packing(stream.profile, source, self._d, dtype)
        self._pack, self._norms = (stream.kernel(*made, name) for name in ("pack", "norms_lanes"))
        self.centre = stream.upload(centre.astype(stream.profile.finest))

    def rows(
        self, source: Source, groups: range, order: Buffer, where: Columns, values: Buffer, held: bool = False
    ) -> Any:
        """Pack lane groups: position i stands in the source's row order[i] - row0."""
        width = 1 if self._profile.shape == "vector" else 64
        arguments = *source, groups.start, order, self.centre, where, int(where.dense), values
        return (self._pack.held if held else self._pack)((width, len(groups)), (width, 1), *arguments)

    def norms(self, groups: range, where: Columns, values: Buffer, xx: Buffer, held: bool = False) -> Any:
        """Compute the squared norms of lane groups."""
        items = len(groups) * (1 if self._profile.shape == "vector" else self._profile.lanes)
        arguments = groups.start, self._d, values, where.at, where.columns_at, int(where.dense), xx
        return (self._norms.held if held else self._norms)((items,), None, *arguments)


def packed(
    stream: Stream,
    X: Data,
    centre: NDArray[np.float64],
    dtype: str,
    kind: str,
    places: Places,
    groups: Sequence[NDArray[Any]],
) -> LaneRows:
    """Return X in lane groups. groups: how many features each holds, and, unless it holds all, where these begin among
    the columns, and those."""
    d, (order, position), (lengths, *listed) = X.shape[1], places, groups
    V, real = lanes(stream.profile, dtype), np.dtype(dtype)
    packer = Packer(stream, X.dtype, dtype, centre)
    parts, at = _split(stream, lengths * V * real.itemsize)
    begins = stream.upload(at // real.itemsize)
    where = Columns(begins, *(map(stream.upload, listed) if listed else (begins, begins)))
    for there, source, order_buffer in _staged(stream, X, order, V):
        for part in parts:
            some = range(max(there.start, part.first), min(there.stop, part.first + part.groups))
            if some:
                packer.rows(source, some, order_buffer, where, part.values)
        stream.finish()
    stored, rows_there = int(lengths.sum()) * V, len(position)
    cost, sizes = stored / max(1, rows_there), (rows_there, d, len(order), V, stored)
    xx = stream.buffer(real.itemsize * len(order))
    made = LaneRows(kind, dtype, *sizes, order, position, xx, cost, d, tuple(parts), where)
    for part in parts:
        packer.norms(range(part.first, part.first + part.groups), where, part.values, xx)
    stream.free(packer.centre)
    refuse(stream.read(xx, dtype, len(order)), made)
    return made


def _split(stream: Stream, sizes: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64]]:
    """Put consecutive groups into buffers within the largest allocation; return each group's byte offset in its own."""
    parts, at, first, filled = [], np.zeros(len(sizes), np.int64), 0, 0
    for g, size in enumerate(sizes.tolist()):
        if filled and filled + size > stream.largest:
            parts.append(Part(first, g - first, stream.buffer(filled)))
            first, filled = g, 0
        at[g] = filled
        filled += size
    parts.append(Part(first, len(sizes) - first, stream.buffer(filled)))
    return parts, at


def _staged(stream: Stream, X: Data, order: NDArray[np.int32], V: int) -> Iterator[tuple[range, Source, Buffer]]:
    """Yield lane groups, the caller's rows that stand in them, and the order on the device, some groups at a time."""
    n, d = X.shape
    groups = len(order) // V
    if isinstance(X, DeviceRows):
        order_buffer = stream.upload(np.where(order >= 0, X.numbers[order], -1).astype(np.int32))
        yield range(groups), Source(0, len(X.X), d, X.source, 0), order_buffer
    elif stream.unified and not sp.issparse(X):
        order_buffer = stream.upload(order)
        with stream.view(X) as (source, begin):
            yield range(groups), Source(0, n, d, source, begin), order_buffer
    else:
        there = order >= 0
        before = np.concatenate([[0], np.cumsum(there)])  # the caller's rows in front of a position
        order_buffer = stream.upload(np.where(there, before[:-1], -1).astype(np.int32))
        chunk = max(1, min(_STAGING, stream.largest) // max(1, V * d * X.dtype.itemsize))
        for first in range(0, groups, chunk):
            some = range(first, min(first + chunk, groups))
            piece = order[some.start * V : some.stop * V]
            wanted = piece[piece >= 0]
            as_they_stand = len(wanted) > 0 and bool((np.diff(wanted) == 1).all())  # (a slice is no copy)
            rows = X[wanted[0] : wanted[-1] + 1] if as_they_stand else X[wanted]
            rows = rows.toarray() if sp.issparse(rows) else rows
            with stream.view(np.ascontiguousarray(rows)) as (source, begin):
                yield some, Source(int(before[first * V]), len(rows), d, source, begin), order_buffer
    stream.free(order_buffer)
