"""Products with K(X, U) that are summed at once, for several outputs in one pass over tiles of rows.

    forward       T = K(X, U) V
    back          out = K(X, U)' R
    forward_back  out = K(X, U)' H (K(X, U) V - z), H of each row: w, one for each output, or w (diag(P) - P P')

U are the working vectors of a panel, m of them, X n rows, k outputs; arrays are the host's, float64, rows in the
caller's order. A tile of K(X, U) is computed, used and forgotten, or kept for the passes to come. Sums of a few terms
of forward_back are in the dtype of K, and these are summed in wide numbers; forward and back alone have wide numbers
throughout, for gradients. Their order is that of the rows: the same bits each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import one_pass, programs
from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Gram, Store
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
OF_UNIT, OF_DEVICE = 8 << 20, 64 << 20  # bytes of K at a time: of a core in the vector shape, of all in the group shape
LEAST = 4096  # rows at a time in the group shape, however long they are: a group takes a few


_BETWEEN, _WAYS = ("residual", "coupled", "blank"), ("forth", "back")  # kernels of back.cl


def usual(stream: Stream, row: int) -> int:
    """Bytes of a tile of K, of rows of so many: caches read it back, and there is work for all units."""
    return OF_UNIT * stream.compute_units if stream.profile.shape == "vector" else max(OF_DEVICE, LEAST * row)


class Part(NamedTuple):
    """A tile: its first lane group, how many there are, where its values stand."""

    begin: int
    groups: int
    values: Buffer


class Sums:
    """Of one Gram and a gathered panel of ``m`` working vectors, for ``k`` outputs. tile_bytes: of K at a time. keep:
    whether all of K is kept from the first pass on, in slabs of the process's pool.

    :meth:`weigh` sets H and z for the passes to come. Raises ValueError where memory_limit is too small, and for a
    panel that is not whole lane groups (one made with ``square``).
    """

    def __init__(
        self, gram: Gram, panel: Panel, m: int, k: int, tile_bytes: int | None = None, keep: bool = False
    ) -> None:
        self.gram, self.panel, self.m, self.k, self.keep = gram, panel, m, k, keep
        stream, rows, real = gram.stream, gram.rows, np.dtype(gram.rows.dtype)
        if panel.capacity % programs.OWN:
            raise ValueError(f"a panel of {panel.capacity} working vectors is not whole lane groups: make it square")
        self._real, self._groups = real, rows.n_pad // rows.lanes
        row = real.itemsize * panel.capacity
        wanted = usual(stream, row) if tile_bytes is None else tile_bytes
        self._step = max(1, min(self._groups, wanted // (rows.lanes * row)))
        self._ld = size = self._step * rows.lanes
        nbytes = real.itemsize * size * panel.capacity
        count = -(-self._groups // self._step) if keep else 1
        self._tiles = [stream.slab(nbytes) if keep else stream.buffer(nbytes) for _ in range(count)]
        self._made = 0  # tiles whose values are there
        self._t, self._r = stream.buffer(8 * k * size), stream.buffer(8 * k * size)
        self._v, self._out = stream.buffer(8 * k * panel.capacity), stream.buffer(8 * k * panel.capacity)
        self._count = stream.upload(np.array([m], np.int32))
        short, exact = (programs.back(stream.profile, rows.dtype, one) for one in (False, True))
        self._residual, self._coupled, self._blank = map(partial(stream.variant, short), _BETWEEN)
        self._forths, self._backs = ([stream.variant(made, name) for made in (short, exact)] for name in _WAYS)
        self._padding = np.flatnonzero(rows.order < 0).astype(np.int32)
        self._listed = stream.upload(self._padding)
        self._one_pass = None if keep else one_pass.of(gram, panel, k, nbytes)
        self._w: Buffer = None
        self._z: Buffer = None
        self._shares: Buffer = None
        self.weigh(None)

    def make(self) -> None:
        """Make all that is kept: rows need not be there for passes to come."""
        for part in self._parts():
            self._filled(part)

    def weigh(self, w: Vector | None, z: Vector | None = None, shares: Vector | None = None) -> None:
        """H and z of :meth:`forward_back`: w (n,) or one for each output (k, n), z (k, n), P (k, n) of w (diag(P) -
        P P'), with neither of them; None is 1 and 0. Raises ValueError for P with z or with a w for each output."""
        if shares is not None and (z is not None or (w is not None and w.ndim > 1)):
            raise ValueError("outputs that are coupled have one weight a row and no z")
        stream = self.gram.stream
        stream.finish()
        stream.free(*(buffer for buffer in (self._w, self._z, self._shares) if buffer is not None))
        w = np.ones(self.gram.rows.n) if w is None else w
        self._own = int(w.ndim > 1)
        self._w = stream.wide(self._in_place(w))  # (0 in padding rows)
        self._z, self._shares = (None if one is None else stream.wide(self._in_place(one)) for one in (z, shares))

    def _in_place(self, values: Vector) -> Vector:
        """(..., n) in the caller's order -> (..., n_pad) in device order, 0 in padding rows."""
        placed = np.zeros((*values.shape[:-1], self.gram.rows.n_pad))
        placed[..., self.gram.rows.position] = values
        return placed

    def forward(self, V: Vector) -> Vector:
        """T = K(X, U) V: (k, n) of V (k, m)."""
        stream, rows = self.gram.stream, self.gram.rows
        self._weights(V, exact=True)
        T = np.empty((self.k, rows.n_pad))
        for part in self._parts():
            self._forward(part, exact=True)
            first, size = part.begin * rows.lanes, part.groups * rows.lanes
            T[:, first : first + size] = stream.read_wide(self._t, (self.k, self._ld))[:, :size]
        return T[:, rows.position]

    def back(self, R: Vector) -> Vector:
        """out = K(X, U)' R: (k, m) of R (k, n)."""
        stream, rows = self.gram.stream, self.gram.rows
        placed = self._in_place(R)
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        part_of = np.zeros((self.k, self._ld))
        for part in self._parts():
            first, size = part.begin * rows.lanes, part.groups * rows.lanes
            self._filled(part)
            part_of[:, :size] = placed[:, first : first + size]
            stream.write_wide(self._r, part_of)
            self._add(part, exact=True)
        return self._read()

    def forward_back(self, V: Vector) -> Vector:
        """out = K(X, U)' H (K(X, U) V - z): (k, m) of V (k, m), with H and z as :meth:`weigh` has them."""
        rows, stream = self.gram.rows, self.gram.stream
        self._weights(V)
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        n = np.int64(rows.n_pad)
        if self._one_pass:
            given = self._w, self._own, self._z, self._shares, self._out, self._count
            self._one_pass.add(self._v, *given)
            return self._read()
        for part in self._parts():
            first, size = part.begin * rows.lanes, part.groups * rows.lanes
            self._forward(part)
            sizes = np.int64(self._ld), first
            if self._shares is not None:
                self._coupled((size,), None, self._t, sizes, self._w, self._shares, n, self.k, self._r)
            else:
                self._residual((size, self.k), None, self._t, sizes, self._w, self._own, self._z, n, self._r)
            self._add(part)
        return self._read()

    def _parts(self) -> Iterator[Part]:
        for number, begin in enumerate(range(0, self._groups, self._step)):
            values = self._tiles[number if self.keep else 0]
            yield Part(begin, min(self._step, self._groups - begin), values)

    def _weights(self, V: Vector, exact: bool = False) -> None:
        padded = np.zeros((self.k, self.panel.capacity))
        padded[:, : self.m] = V
        if exact:
            self.gram.stream.write_wide(self._v, padded)
        else:
            self.gram.stream.write(self._v, padded.astype(self._real))

    def _store(self, part: Part) -> Store:
        capacity = self.panel.capacity
        return Store((part.values,), capacity, self._ld, self.gram.slot(capacity))

    def _there(self, part: Part) -> bool:
        """Whether the values of a tile were kept."""
        return self.keep and part.begin < self._made

    def _filled(self, part: Part) -> None:
        """The values of a tile, made where they are not there."""
        if not self._there(part):
            first = part.begin * self.gram.rows.lanes
            near = not self.keep and self.gram.stream.profile.shape == "vector"  # (caches are to read it back)
            product = "rows, near" if near else "rows"
            self.gram.over_rows(product, _groups(part), first, self.panel, self._count, self._store(part), None)
            self._done(part)

    def _forward(self, part: Part, exact: bool = False) -> None:
        """T of a tile, from its values."""
        stream, rows = self.gram.stream, part.groups * self.gram.rows.lanes
        self._filled(part)
        if stream.profile.shape == "vector":
            size, local = -(-rows // (self.gram.rows.lanes * programs.FORTH)), 1
        else:
            local = stream.profile.group
            size = rows // programs.LINE * local
        given = part.values, np.int64(self._ld), rows, self._v, self._count
        self._forths[exact]((size,), (local,), *given, self.k, self.panel.capacity, self._t)

    def _done(self, part: Part) -> None:
        """Note that a tile was made. Its padding rows become 0: the kernel function need not have a value there."""
        self._made = part.begin + 1
        lanes = self.gram.rows.lanes
        first, end = part.begin * lanes, (part.begin + part.groups) * lanes
        begin, stop = np.searchsorted(self._padding, (first, end)).tolist()
        if stop > begin:
            where = self._listed, begin, first
            self._blank((stop - begin,), None, where, self.panel.capacity, part.values, np.int64(self._ld))

    def _add(self, part: Part, exact: bool = False) -> None:
        """out += K' R of the tile."""
        profile, capacity = self.gram.stream.profile, self.panel.capacity
        group = profile.group if profile.shape == "group" else 1
        size, rows = (capacity // programs.OWN * group,), part.groups * self.gram.rows.lanes
        sizes = np.int64(self._ld), rows, self._r, self._count, self.k, capacity, self._out
        self._backs[exact](size, (group,), part.values, *sizes)

    def _read(self) -> Vector:
        shape = self.k, self.panel.capacity
        return self.gram.stream.read_wide(self._out, shape)[:, : self.m]

    def free(self) -> None:
        """Give every buffer back but those of the rows, the panel, and what is kept."""
        self.weigh(None)
        if self._one_pass:
            self._one_pass.free()
        tiles = () if self.keep else self._tiles
        self.gram.stream.free(self._w, *tiles, self._t, self._r, self._v, self._out, self._count, self._listed)


def _groups(part: Part) -> range:
    return range(part.begin, part.begin + part.groups)
