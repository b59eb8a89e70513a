"""Products with K(X, U) that are summed at once, for several outputs in one pass over tiles of rows.

    forward       T = K(X, U) V
    back          out = K(X, U)' R
    forward_back  out = K(X, U)' (w * (K(X, U) V - z))

U are the working vectors of a panel, m of them, X n rows, k outputs; arrays are the host's, float64, rows in the
caller's order. A tile of K(X, U) is computed, used and forgotten. Sums of a few terms are in the dtype of K, and these
are summed in wide numbers, in the order of the rows: the same bits each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Gram, Store, Update

Vector = NDArray[np.float64]
TILE = {"vector": 8 << 20, "group": 64 << 20}  # bytes of K at a time, by the profile's shape: caches read it back


class Sums:
    """Of one Gram and a gathered panel of ``m`` working vectors, for ``k`` outputs. tile_bytes: of K at a time.

    :meth:`weigh` sets w and z for the passes to come. Raises ValueError where memory_limit is too small, and for a
    panel that is not whole lane groups (one made with ``square``).
    """

    def __init__(self, gram: Gram, panel: Panel, m: int, k: int, tile_bytes: int | None = None) -> None:
        self.gram, self.panel, self.m, self.k = gram, panel, m, k
        stream, rows, real = gram.stream, gram.rows, np.dtype(gram.rows.dtype)
        if panel.capacity % programs.OWN:
            raise ValueError(f"a panel of {panel.capacity} working vectors is not whole lane groups: make it square")
        self._real, self._groups = real, rows.n_pad // rows.lanes
        wanted = TILE[stream.profile.shape] if tile_bytes is None else tile_bytes
        step = max(1, min(self._groups, wanted // (real.itemsize * rows.lanes * panel.capacity)))
        self._step, size = step, step * rows.lanes
        self._ld = size
        self._tile = stream.buffer(real.itemsize * size * panel.capacity)
        self._t, self._r = stream.buffer(8 * k * size), stream.buffer(real.itemsize * k * size)
        self._v, self._out = stream.buffer(real.itemsize * k * panel.capacity), stream.buffer(8 * k * panel.capacity)
        self._count = stream.upload(np.array([m], np.int32))
        self._w, self._z = stream.wide(self._in_place(np.ones(rows.n))), None
        made = programs.back(stream.profile, rows.dtype)
        self._residual, self._back = stream.variant(made, "residual"), stream.variant(made, "back")

    def weigh(self, w: Vector | None, z: Vector | None = None) -> None:
        """w (n,) and z (k, n) of :meth:`forward_back`; None is 1 and 0."""
        stream = self.gram.stream
        stream.finish()
        stream.free(*(buffer for buffer in (self._w, self._z) if buffer is not None))
        self._w = stream.wide(self._in_place(np.ones(self.gram.rows.n) if w is None else w))  # (0 in padding rows)
        self._z = None if z is None else stream.wide(self._in_place(z))

    def _in_place(self, values: Vector) -> Vector:
        """(..., n) in the caller's order -> (..., n_pad) in device order, 0 in padding rows."""
        placed = np.zeros((*values.shape[:-1], self.gram.rows.n_pad))
        placed[..., self.gram.rows.position] = values
        return placed

    def forward(self, V: Vector) -> Vector:
        """T = K(X, U) V: (k, n) of V (k, m)."""
        stream, rows = self.gram.stream, self.gram.rows
        self._weights(V)
        T = np.empty((self.k, rows.n_pad))
        for begin, here in self._tiles():
            self._forward(begin, here, None)
            size = here * rows.lanes
            first = begin * rows.lanes
            T[:, first : first + size] = stream.read_wide(self._t, (self.k, self._ld))[:, :size]
        return T[:, rows.position]

    def back(self, R: Vector) -> Vector:
        """out = K(X, U)' R: (k, m) of R (k, n)."""
        stream, rows = self.gram.stream, self.gram.rows
        placed = self._in_place(R).astype(self._real)
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        part = np.zeros((self.k, self._ld), self._real)
        for begin, here in self._tiles():
            groups, first, size = range(begin, begin + here), begin * rows.lanes, here * rows.lanes
            self.gram.over_rows("rows", groups, first, self.panel, self._count, self._store(), None)
            part[:, :size] = placed[:, first : first + size]
            stream.write(self._r, part)
            self._add(size)
        return self._read()

    def forward_back(self, V: Vector) -> Vector:
        """out = K(X, U)' (w * (K(X, U) V - z)): (k, m) of V (k, m), with w and z as :meth:`weigh` has them."""
        rows = self.gram.rows
        self._weights(V)
        self.gram.stream.clear(self._out, 8 * self.k * self.panel.capacity)
        for begin, here in self._tiles():
            first, size = begin * rows.lanes, here * rows.lanes
            self._forward(begin, here, self._store())
            sizes = np.int64(self._ld), first
            self._residual((size, self.k), None, self._t, sizes, self._w, self._z, np.int64(rows.n_pad), self._r)
            self._add(size)
        return self._read()

    def _tiles(self) -> Iterator[tuple[int, int]]:
        """(first lane group, lane groups) of each tile."""
        for begin in range(0, self._groups, self._step):
            yield begin, min(self._step, self._groups - begin)

    def _weights(self, V: Vector) -> None:
        padded = np.zeros((self.k, self.panel.capacity), self._real)
        padded[:, : self.m] = V
        self.gram.stream.write(self._v, padded)

    def _store(self) -> Store:
        capacity = self.panel.capacity
        return Store((self._tile,), capacity, self._ld, self.gram.slot(capacity))

    def _forward(self, begin: int, here: int, store: Store | None) -> None:
        """T of a tile, and K into ``store``."""
        stream, lanes = self.gram.stream, self.gram.rows.lanes
        stream.clear(self._t, 8 * self.k * self._ld)
        update = Update(self.k, self._ld, self._t, self._v, self.panel.capacity)
        product, groups = "rows, sums" if store else "sums", range(begin, begin + here)
        self.gram.over_rows(product, groups, begin * lanes, self.panel, self._count, store, update)

    def _add(self, rows: int) -> None:
        """out += K' R of the tile."""
        profile, capacity = self.gram.stream.profile, self.panel.capacity
        group = profile.group if profile.shape == "group" else 1
        sizes = (self.k, capacity, self._out)
        size = (capacity // programs.OWN * group,), (group,)
        self._back(*size, self._tile, np.int64(self._ld), rows, self._r, self._count, *sizes)

    def _read(self) -> Vector:
        shape = self.k, self.panel.capacity
        return self.gram.stream.read_wide(self._out, shape)[:, : self.m]

    def free(self) -> None:
        """Give every buffer back but those of the rows and the panel."""
        self.weigh(None)
        self.gram.stream.free(self._w, self._tile, self._t, self._r, self._v, self._out, self._count)
