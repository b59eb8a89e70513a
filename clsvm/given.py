"""Products with a kernel matrix that is given: kernel="precomputed", and functions of the caller's.

The methods are those of :class:`clsvm.gram.Gram` that solvers call. K is on the device whole, in buffers like the row
store's; no row is ever computed, so a solve needs no store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import layout, variants
from clsvm.device import Buffer, Stream
from clsvm.gram import Gram, Panel, Store, Update
from clsvm.kernels import PRECOMPUTED
from clsvm.layout import Rows
from clsvm.rowcache import SLABS

_WHOLE = 16  # rows and working sets are whole vectors of any dtype


class Given(Gram):
    """K (n, n) symmetric, on the host in float32 or float64, as the products of one set of rows in ``dtype``.

    Raises ValueError where memory_limit does not hold it, DeviceError where the device does not.
    """

    whole = True

    def __init__(self, stream: Stream, K: NDArray[Any], dtype: str) -> None:
        n = len(K)
        ld, profile = -(-n // _WHOLE) * _WHOLE, stream.profile
        at = np.arange(n, dtype=np.int32)
        order = np.concatenate([at, np.full(ld - n, -1, np.int32)])
        self.stream, self.shape = stream, profile.shape
        self.kernel = PRECOMPUTED  # type: ignore[assignment]  # (solvers do no more than name it)
        self.rows = Rows("given", dtype, n, n, ld, layout.lanes(profile, dtype), n * ld, order, at, None)
        self.width, self._real = _WHOLE, np.dtype(dtype)
        self._slab_rows = -(-n // SLABS)
        slabs = []
        for first in range(0, n, self._slab_rows):
            part = np.zeros((min(self._slab_rows, n - first), ld), dtype)
            part[:, :n] = K[first : first + len(part)]
            slabs.append(stream.upload(part))
        self._slabs = (*slabs, *[slabs[-1]] * (SLABS - len(slabs)))
        given = variants.given(profile, dtype)
        self._pick, self._answer = stream.variant(given, "pick"), stream.variant(given, "answer")
        self._update = stream.variant(variants.update(profile, dtype))

    def _head(self) -> tuple[Any, ...]:
        return (*self._slabs, self._slab_rows, np.int64(self.rows.n_pad))

    def panel_bytes(self, capacity: int) -> int:
        return 0

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Working vectors are their rows' numbers."""
        return Panel(-(-capacity // _WHOLE) * _WHOLE, _WHOLE, None, None, 0, "many")

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        rows = self.stream.part(panel.listed[1], 4 * first, 4 * capacity)
        return replace(panel, capacity=capacity, listed=(count, rows))

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        panel.listed = count, rows

    def tile(self, panel: Panel, rows: Buffer, count: Buffer, out: Buffer, known: int = 0, offset: int = 0) -> None:
        """As :meth:`clsvm.gram.Gram.tile`."""
        size = (1 if self.shape == "vector" else self.rows.lanes, panel.capacity)
        self._pick(size, None, *self._head(), rows, panel.capacity, known, offset, out)

    def respond(self, panel: Panel, rows: Buffer, right: Panel, count: Buffer, update: Update) -> None:
        self._answer((panel.capacity,), None, *self._head(), rows, right.listed[1], count, update.D, update.c)

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None) -> None:
        """c += K(X, U) D over all rows; a store is not filled."""
        if update:
            n, block = self.rows.n_pad, self.stream.profile.block
            tail = (panel.listed[1], update.problems, np.int64(update.n), update.c, update.D, update.capacity, count)
            self._update((-(-n // block),), None, *self._head(), *tail)
