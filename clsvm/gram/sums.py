"""Products with K(X, U) that are summed at once, for several outputs in one pass over tiles of rows.

    forward       T = K(X, U) V
    back          out = K(X, U)' R
    forward_back  out = K(X, U)' H K(X, U) V, H of each row: w, one for each output, or w (diag(P) - P P')

U are the working vectors of a panel, m of them, X n rows, k outputs; arrays are the host's, float64, rows in the
caller's order. A tile of K(X, U) is computed, used and forgotten, or kept for the passes to come. Sums of a few terms
of forward_back are in the dtype of K, and these are summed in wide numbers; forward and back alone have wide numbers
throughout, for gradients. Their order is that of the rows: the same bits each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Gram, Store
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
OF_UNIT, OF_DEVICE = 8 << 20, 64 << 20  # bytes of K at a time: of a core in the vector shape, of all in the group shape
LEAST = 4096  # rows at a time in the group shape, however long they are: a group takes a few
# Of a pass by work-items that keep their values of K to themselves (OnePass).
EACH = 4  # work-items of a compute unit in a launch
CACHE = 2 << 20  # bytes of K that a work-item has at a time, about: what a core has of the caches
FEW, MOST = 2, 8  # lane groups of them, at least and at most; half of the most for fewer outputs than SEVERAL
SEVERAL = 4  # outputs: fewer sums of lanes are worth a longer way to K


def usual(stream: Stream, row: int) -> int:
    """Return the bytes of a tile of K, of rows of so many: caches read it back, and there is work for all units."""
    return OF_UNIT * stream.compute_units if stream.profile.shape == "vector" else max(OF_DEVICE, LEAST * row)


class RowTile(NamedTuple):
    """A tile of K: its lane groups, its first row, how many rows it has, and its values."""

    groups: range
    first: int
    rows: int
    values: Buffer

    @property
    def places(self) -> slice:
        """Return where its rows stand among all."""
        return slice(self.first, self.first + self.rows)


class Weights(NamedTuple):
    """H of :meth:`Sums.forward_back` on the device: w, whether each output has its own, P."""

    w: Buffer
    own: int
    shares: Buffer


class Sums:
    """Products of one Gram and a gathered panel of ``m`` working vectors, for ``k`` outputs. tile_bytes: of K at once.
    keep: whether all of K is kept from the first pass on, in slabs of the process's pool.

    :meth:`weigh` sets H for the passes to come. Raises ValueError where memory_limit is too small, and for a
    panel that is not whole lane groups (one made with ``square``).
    """

    def __init__(
        self, gram: Gram, panel: Panel, m: int, k: int, tile_bytes: int | None = None, keep: bool = False
    ) -> None:
        self.gram, self.panel, self.m, self.k, self.keep = gram, panel, m, k, keep
        stream, rows, capacity = gram.stream, gram.rows, panel.capacity
        if capacity % programs.OWN:
            raise ValueError(f"a panel of {capacity} working vectors is not whole lane groups: make it square")
        V, groups, row = rows.lanes, rows.n_pad // rows.lanes, np.dtype(rows.dtype).itemsize * capacity
        wanted = usual(stream, row) if tile_bytes is None else tile_bytes
        step = max(1, min(groups, wanted // (V * row)))
        self._ld = size = step * V
        firsts, nbytes = range(0, groups, step), row * size
        tiles = [stream.slab(nbytes) for _ in firsts] if keep else [stream.buffer(nbytes)] * len(firsts)
        some = [range(first, min(first + step, groups)) for first in firsts]
        self._parts = [RowTile(of, of.start * V, len(of) * V, tile) for of, tile in zip(some, tiles, strict=True)]
        self._made = 0  # rows whose values are kept
        self._t, self._r = stream.buffer(8 * k * size), stream.buffer(8 * k * size)
        self._v, self._out = stream.buffer(8 * k * capacity), stream.buffer(8 * k * capacity)
        self._count = stream.upload(np.array([m], np.int32))
        short, exact = (programs.back(stream.profile, rows.dtype, one) for one in (False, True))
        self._kernels = {
            name: stream.variant(short, name) for name in ("residual", "coupled", "blank", "forth", "back")
        }
        self._exact = {name: stream.variant(exact, name) for name in ("forth", "back")}
        self._padding = np.flatnonzero(rows.order < 0).astype(np.int32)
        self._listed = stream.upload(self._padding)
        self._one_pass = None if keep else OnePass.of(gram, panel, k, nbytes)
        self._weights = Weights(None, 0, None)
        self.weigh(None)

    def make(self) -> None:
        """Make all that is kept: rows need not be there for passes to come."""
        for part in self._parts:
            self._filled(part)

    def weigh(self, w: Vector | None, shares: Vector | None = None) -> None:
        """Set H of :meth:`forward_back`: w (n,), or one for each output (k, n) where outputs are not coupled by P (k,
        n); None is 1."""
        stream, old = self.gram.stream, self._weights
        stream.finish()
        stream.free(*(buffer for buffer in (old.w, old.shares) if buffer is not None))
        w = np.ones(self.gram.rows.n) if w is None else w
        coupled = None if shares is None else stream.wide(self._in_place(shares))
        self._weights = Weights(stream.wide(self._in_place(w)), int(w.ndim > 1), coupled)  # (w is 0 in padding rows)

    def _in_place(self, values: Vector) -> Vector:
        """Return (..., n) in the caller's order as (..., n_pad) in device order, 0 in padding rows."""
        placed = np.zeros((*values.shape[:-1], self.gram.rows.n_pad))
        placed[..., self.gram.rows.position] = values
        return placed

    def forward(self, V: Vector) -> Vector:
        """Return T = K(X, U) V: (k, n) of V (k, m)."""
        stream, rows = self.gram.stream, self.gram.rows
        stream.write_wide(self._v, self._padded(V))
        T = np.empty((self.k, rows.n_pad))
        for part in self._parts:
            self._forward(part, exact=True)
            T[:, part.places] = stream.read_wide(self._t, (self.k, self._ld))[:, : part.rows]
        return T[:, rows.position]

    def back(self, R: Vector) -> Vector:
        """Return K(X, U)' R: (k, m) of R (k, n)."""
        stream, placed = self.gram.stream, self._in_place(R)
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        part_of = np.zeros((self.k, self._ld))
        for part in self._parts:
            self._filled(part)
            part_of[:, : part.rows] = placed[:, part.places]
            stream.write_wide(self._r, part_of)
            self._add(part, exact=True)
        return self._read()

    def forward_back(self, V: Vector) -> Vector:
        """Return K(X, U)' H K(X, U) V: (k, m) of V (k, m), with H as :meth:`weigh` has it."""
        stream, rows, at = self.gram.stream, self.gram.rows, self._weights
        stream.write(self._v, self._padded(V).astype(rows.dtype))
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        if self._one_pass:
            self._one_pass.add(self._v, at, self._out, self._count)
            return self._read()
        for part in self._parts:
            self._forward(part)
            given, n = (self._t, np.int64(self._ld), part.first, at.w), np.int64(rows.n_pad)
            if at.shares is not None:
                self._kernels["coupled"]((part.rows,), None, *given, at.shares, n, self.k, self._r)
            else:
                self._kernels["residual"]((part.rows, self.k), None, *given, at.own, None, n, self._r)
            self._add(part)
        return self._read()

    def _padded(self, V: Vector) -> Vector:
        padded = np.zeros((self.k, self.panel.capacity))
        padded[:, : self.m] = V
        return padded

    def _filled(self, part: RowTile) -> None:
        """Make the values of a tile, unless they are kept. Its padding rows become 0, since the kernel function may
        have no value there."""
        if self.keep and part.first < self._made:
            return
        capacity = self.panel.capacity
        near = not self.keep and self.gram.stream.profile.shape == "vector"  # (caches are to read it back)
        store = Store((part.values,), capacity, self._ld, self.gram.slot(capacity), near)
        self.gram.over_rows(part.groups, part.first, self.panel, self._count, store, None)
        self._made = part.places.stop
        begin, stop = np.searchsorted(self._padding, (part.first, self._made)).tolist()
        if stop > begin:
            where = self._listed, begin, part.first
            self._kernels["blank"]((stop - begin,), None, where, capacity, part.values, np.int64(self._ld))

    def _forward(self, part: RowTile, exact: bool = False) -> None:
        """Compute T of a tile, from its values."""
        profile = self.gram.stream.profile
        self._filled(part)
        if profile.shape == "vector":
            size, local = -(-part.rows // (self.gram.rows.lanes * programs.FORTH)), 1
        else:
            size, local = part.rows // programs.LINE * profile.group, profile.group
        given = part.values, np.int64(self._ld), part.rows, self._v, self._count, self.k, self.panel.capacity, self._t
        (self._exact if exact else self._kernels)["forth"]((size,), (local,), *given)

    def _add(self, part: RowTile, exact: bool = False) -> None:
        """Add K' R of the tile to ``out``."""
        profile, capacity = self.gram.stream.profile, self.panel.capacity
        group = profile.group if profile.shape == "group" else 1
        given = part.values, np.int64(self._ld), part.rows, self._r, self._count, self.k, capacity, self._out
        (self._exact if exact else self._kernels)["back"]((capacity // programs.OWN * group,), (group,), *given)

    def _read(self) -> Vector:
        return self.gram.stream.read_wide(self._out, (self.k, self.panel.capacity))[:, : self.m]


class OnePass:
    """K(X, U)' H K(X, U) V in one pass over rows by work-items that keep their values of K to themselves.

    Each takes some lane groups, makes their values in scratch that its core's own cache holds, and sums forward and
    back from there. The sums of the work-items are then added in their order, so that the bits do not depend on how
    many a launch has.
    """

    def __init__(self, gram: Gram, panel: Panel, k: int, made: Variant, scratch: Sequence[int], items: int) -> None:
        self._gram, self._panel, self._k, stream = gram, panel, k, gram.stream
        units = stream.compute_units
        self._items = items - items % units if items > units else items
        self._absent = stream.upload((gram.rows.order < 0).astype(np.uint8))
        self._scratch = [stream.buffer(self._items * nbytes) for nbytes in scratch]
        self._kernel = stream.variant(made)
        self._collected = stream.variant(programs.back(stream.profile, gram.rows.dtype), "collected")

    @staticmethod
    def of(gram: Gram, panel: Panel, k: int, room: int) -> OnePass | None:
        """Return one for a gathered panel and ``k`` outputs; None where the rows' layout or the device has no such
        program, or the scratch of a work-item is more than ``room`` bytes: K, sums forward in wide numbers and short
        ones, sums back."""
        stream, rows = gram.stream, gram.rows
        sub, real = MOST if k >= SEVERAL else MOST // 2, np.dtype(rows.dtype).itemsize
        while sub > FEW and sub * real * rows.lanes * panel.capacity > CACHE:
            sub //= 2
        made = programs.forward_back(gram.kernel.spec, rows.kind, rows.dtype, stream.profile, rows.d, sub)
        held = sub * rows.lanes
        scratch = real * held * panel.capacity, 8 * held * k, real * held * k, 8 * k * panel.capacity
        items = min(EACH * stream.compute_units, room // sum(scratch), -(-rows.n_pad // (programs.BLOCK * rows.lanes)))
        return OnePass(gram, panel, k, made, scratch, items) if made and items else None

    def add(self, V: Buffer, weights: Weights, out: Buffer, count: Buffer) -> None:
        """Add K' H K V to out (k, capacity), with V (k, capacity) in the dtype of K and H as ``weights``."""
        gram, panel, k, n = self._gram, self._panel, self._k, np.int64(self._gram.rows.n_pad)
        given: tuple[Any, ...] = (k, panel.capacity, V, n, *weights, self._absent, *self._scratch)
        step, size = self._items * programs.BLOCK, k * panel.capacity
        for one in gram.reader.over_rows(gram.groups, panel, count):
            for first in range(0, one.groups, step):
                groups = min(step, one.groups - first)
                items = -(-groups // programs.BLOCK)
                self._kernel((items,), (1,), one.first + first, groups, one.reads, *given, gram.numbers)
                self._collected((size,), None, self._scratch[-1], items, size, out)
