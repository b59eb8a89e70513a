"""K(X, U)' H (K(X, U) V - z) in one pass over rows by work-items that keep their values of K to themselves.

Each takes some lane groups, makes their values in scratch that its core's own cache holds, and sums forward and back
from there. What the work-items have is then summed in their order: the bits do not depend on how many a launch has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Gram
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer

EACH = 4  # work-items of a compute unit in a launch
CACHE = 2 << 20  # bytes of K that a work-item has at a time, about: what a core has of the caches
FEW, MOST = 2, 8  # lane groups of them, at least and at most; half of the most for fewer outputs than SEVERAL
SEVERAL = 4  # outputs: fewer sums of lanes are worth a longer way to K


def of(gram: Gram, panel: Panel, k: int, room: int) -> OnePass | None:
    """For a gathered panel and ``k`` outputs; None where the rows' layout or the device has no such program, or a
    work-item's scratch is more than ``room`` bytes."""
    stream, rows = gram.stream, gram.rows
    sub, group = MOST if k >= SEVERAL else MOST // 2, np.dtype(rows.dtype).itemsize * rows.lanes * panel.capacity
    while sub > FEW and sub * group > CACHE:
        sub //= 2
    made = programs.forward_back(gram.kernel.spec, rows.kind, rows.dtype, stream.profile, rows.d, sub)
    fits = sum(_scratch(gram, panel, k, sub)) <= room
    return OnePass(gram, panel, k, made, room) if made and fits else None


def _scratch(gram: Gram, panel: Panel, k: int, sub: int) -> tuple[int, ...]:
    """Bytes of a work-item: K, sums forward in wide numbers and short ones, sums back."""
    real, held = np.dtype(gram.rows.dtype).itemsize, sub * gram.rows.lanes
    return real * held * panel.capacity, 8 * held * k, real * held * k, 8 * k * panel.capacity


class OnePass:
    """See :func:`of`."""

    def __init__(self, gram: Gram, panel: Panel, k: int, made: Variant, room: int) -> None:
        self._gram, self._panel, self._k = gram, panel, k
        stream, rows, units = gram.stream, gram.rows, gram.stream.compute_units
        scratch = _scratch(gram, panel, k, made.numbers["SUB"])
        items = min(EACH * units, room // sum(scratch), -(-rows.n_pad // (programs.BLOCK * rows.lanes)))
        self._items = items - items % units if items > units else items
        self._absent = stream.upload((rows.order < 0).astype(np.uint8))
        self._scratch = [stream.buffer(self._items * nbytes) for nbytes in scratch]
        self._kernel = stream.variant(made)
        self._collected = stream.variant(programs.back(stream.profile, rows.dtype), "collected")

    def add(self, weights: Buffer, w: Buffer, own: int, z: Buffer, shares: Buffer, out: Buffer, count: Buffer) -> None:
        """out (k, capacity) += K' H (K V - z), with ``weights`` (k, capacity) for V, in the dtype of K."""
        gram, panel, k, n = self._gram, self._panel, self._k, np.int64(self._gram.rows.n_pad)
        given: tuple[Any, ...] = (k, panel.capacity, weights, n, w, own, z, shares, self._absent, *self._scratch)
        step, size = self._items * programs.BLOCK, k * panel.capacity
        for one in gram.passes(panel, count):
            for first in range(0, one.groups, step):
                groups = min(step, one.groups - first)
                items = -(-groups // programs.BLOCK)
                self._kernel((items,), (1,), one.first + first, groups, one.reads, *given, gram.numbers)
                self._collected((size,), None, self._scratch[-1], items, size, out)

    def free(self) -> None:
        """Give its buffers back."""
        self._gram.stream.free(self._absent, *self._scratch)
