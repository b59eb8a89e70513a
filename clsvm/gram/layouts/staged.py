"""On the way into lane groups: the caller's rows as kernels read them, and the buffers that the groups go to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram.layouts.picked import Picked
from clsvm.opencl.stream import Buffer, Stream

_STAGING = 256 << 20  # bytes of the caller's rows on the device at a time, where the host's memory is not shared


class Part(NamedTuple):
    """Lane groups first .. first + groups - 1 in one buffer, small enough for the device's largest allocation."""

    first: int
    groups: int
    values: Buffer


def split(stream: Stream, sizes: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64]]:
    """Consecutive groups into buffers within the largest allocation; each group's byte offset in its own buffer."""
    parts, at, first, filled = [], np.zeros(len(sizes), np.int64), 0, 0
    for g, size in enumerate(sizes.tolist()):
        if filled and filled + size > stream.largest:
            parts.append(Part(first, g - first, stream.buffer(filled)))
            first, filled = g, 0
        at[g] = filled
        filled += size
    parts.append(Part(first, len(sizes) - first, stream.buffer(filled)))
    return parts, at


def staged(stream: Stream, X: Data, order: NDArray[np.int32], V: int) -> Any:
    """The caller's rows, row-major on the device, some lane groups at a time.

    Yields (first group, groups, row0, rows, buffer of rows, its first item, buffer of the order): position i stands in
    the buffer at row order[i] - row0. A device that shares the host's memory reads the caller's array itself, and one
    that holds these rows as they came has them already.
    """
    n, d = X.shape
    groups = len(order) // V
    if isinstance(X, Picked):
        order_buffer = stream.upload(np.where(order >= 0, X.numbers[order], -1).astype(np.int32))
        yield 0, groups, 0, len(X.X), X.source, 0, order_buffer
        stream.free(order_buffer)
        return
    if stream.unified and not sp.issparse(X):
        order_buffer = stream.upload(order)
        with stream.view(X) as (source, begin):
            yield 0, groups, 0, n, source, begin, order_buffer
        stream.free(order_buffer)
        return
    there = order >= 0
    before = np.concatenate([[0], np.cumsum(there)])  # the caller's rows in front of a position
    order_buffer = stream.upload(np.where(there, before[:-1], -1).astype(np.int32))
    chunk = max(1, min(_STAGING, stream.largest) // max(1, V * d * X.dtype.itemsize))
    for first in range(0, groups, chunk):
        count = min(chunk, groups - first)
        piece = order[first * V : (first + count) * V]
        wanted = piece[piece >= 0]
        as_they_stand = len(wanted) > 0 and bool((np.diff(wanted) == 1).all())  # (a slice is no copy)
        rows = X[wanted[0] : wanted[-1] + 1] if as_they_stand else X[wanted]
        rows = rows.toarray() if sp.issparse(rows) else rows
        with stream.view(np.ascontiguousarray(rows)) as (source, begin):
            yield first, count, int(before[first * V]), len(rows), source, begin, order_buffer
    stream.free(order_buffer)
