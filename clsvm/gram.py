"""Products with a kernel matrix that is never stored whole.

    gather      working rows -> a panel (and their squared norms)
    tile        K(U, U) of a panel's rows, W x W
    accumulate  c += K(X, U) D for all rows X, keeping K(X, U) in the row store where one is given

U are a panel's working vectors, D their weights for each of the problems. Every value K(x, u) is computed by the same
chain of fused multiply-adds in column order, whatever the layout, tile or batch, so it has the same bits everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from clsvm import layout, sources
from clsvm.device import Buffer, Stream
from clsvm.device import Kernel as DeviceKernel
from clsvm.kernels import Kernel
from clsvm.layout import Rows
from clsvm.rowcache import SLABS


@dataclass(frozen=True)
class Panel:
    """Room for ``capacity`` working vectors: values in blocks, squared norms, how many are in it (int32 [1])."""

    capacity: int
    values: Buffer
    uu: Buffer
    nbytes: int


class Store(NamedTuple):
    """Where rows of K are kept: SLABS buffers of slab_rows rows of ld values; slot[u] for each working vector."""

    slabs: tuple[Buffer, ...]
    slab_rows: int
    ld: int
    slot: Buffer


class Update(NamedTuple):
    """c (problems, n) += K D, with D (problems, capacity); both wide."""

    problems: int
    n: int
    c: Buffer
    D: Buffer
    capacity: int


class Gram:
    """The products of one kernel function over one set of rows, for one stream (so for one thread)."""

    def __init__(self, stream: Stream, rows: Rows, kernel: Kernel) -> None:
        self.stream, self.rows, self.kernel = stream, rows, kernel
        profile = stream.profile
        self.shape = profile.shape
        self._opts = layout.options(profile, rows.dtype, rows.d)
        self.width = profile.panel if rows.kind == "csr" else rows.lanes  # working vectors of a panel block
        self._opts += [f"-DUB={self.width}"]
        self._opts += [f"-DR={profile.register}"] if self.shape == "group" else []
        self._real = np.dtype(rows.dtype)
        kind = "csr" if rows.kind == "csr" else "lanes"
        self._text = sources.render(f"gram_{kind}_{self.shape}", kernel=kernel.spec)
        self._gather = stream.kernel(sources.cl("gather"), self._opts, f"gather_{kind}")
        self._numbers = tuple(
            np.int32(value) if p.integer else self._real.type(value)
            for p, value in zip(kernel.spec.parameters, kernel.values, strict=True)
        )
        self._grams: dict[tuple[str, ...], DeviceKernel] = {}
        self._tile_at: dict[int, tuple[Buffer, Buffer]] = {}

    def panel(self, capacity: int) -> Panel:
        """An empty panel for at least ``capacity`` working vectors."""
        capacity = -(-capacity // self.width) * self.width
        nbytes = capacity * max(self.rows.d, 1) * self._real.itemsize
        values, uu = self.stream.buffer(nbytes), self.stream.buffer(capacity * self._real.itemsize)
        return Panel(capacity, values, uu, nbytes)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        """The rows at positions rows[0 .. count - 1] (int32, -1: none) into the panel; the rest of it zero."""
        r = self.rows
        self.stream.clear(panel.values, panel.nbytes)
        self.stream.clear(panel.uu, panel.capacity * self._real.itemsize)
        slices = 1 if self.shape == "vector" else 32
        size = (panel.capacity, slices)
        if r.csr:
            self._gather(size, None, *r.csr, r.xx, r.d, count, rows, panel.values, panel.uu)
            return
        for part in r.parts:
            head = (part.first, part.groups, part.values, r.at, r.columns_at, r.columns, int(r.kind == "dense"))
            self._gather(size, None, *head, r.xx, r.d, count, rows, panel.values, panel.uu)

    def tile(self, panel: Panel, rows: Buffer, count: Buffer, out: Buffer) -> None:
        """out[u, v] = K(row u, row v) of the panel's rows, (capacity, capacity) in the rows' dtype."""
        if panel.capacity not in self._tile_at:
            at = np.arange(0, panel.capacity, self.rows.lanes, dtype=np.int64) * max(self.rows.d, 1)
            slot = np.arange(panel.capacity, dtype=np.int32)
            self._tile_at[panel.capacity] = self.stream.upload(at), self.stream.upload(slot)
        at_buffer, slot = self._tile_at[panel.capacity]
        store = Store((out,), panel.capacity, panel.capacity, slot)
        if self.rows.csr:
            kernel = self._kernel("-DSTORE", "-DLISTED")
            head: tuple[Any, ...] = (*self.rows.csr, rows, self.rows.xx)
        else:  # a panel is itself a set of rows in the dense lane layout
            kernel = self._kernel("-DSTORE", "-DDENSE")
            head = (0, panel.values, at_buffer, at_buffer, at_buffer, panel.uu)
        groups = panel.capacity // self.rows.lanes
        self._launch(kernel, groups, panel.capacity // self.width, head, panel, count, store, None)

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update) -> None:
        """c += K(X, U) D over all rows, and K(X, U) into the store where one is given."""
        flags = ["-DUPDATE", *(["-DSTORE", f"-DSLABS={SLABS}"] if store else [])]
        r = self.rows
        if r.csr:
            kernel = self._kernel(*flags)
            self._launch(kernel, r.n_pad // r.lanes, 1, (*r.csr, r.xx, r.xx), panel, count, store, update)
            return
        kernel = self._kernel(*flags, *(["-DDENSE"] if r.kind == "dense" else []))
        for part in r.parts:
            head = (part.first, part.values, r.at, r.columns_at, r.columns, r.xx)
            self._launch(kernel, part.groups, 1, head, panel, count, store, update)

    def _kernel(self, *flags: str) -> DeviceKernel:
        if flags not in self._grams:
            self._grams[flags] = self.stream.kernel(self._text, [*self._opts, *flags], "gram")
        return self._grams[flags]

    def _launch(
        self,
        kernel: DeviceKernel,
        groups: int,
        blocks: int,
        head: tuple[Any, ...],
        panel: Panel,
        count: Buffer,
        store: Store | None,
        update: Update | None,
    ) -> None:
        arguments = [*head, self.rows.d, count, panel.values, panel.uu]
        if store:
            arguments += [*store.slabs, store.slab_rows, np.int64(store.ld), store.slot]
        if update:
            arguments += [update.problems, np.int64(update.n), update.c, update.D, update.capacity]
        size: tuple[int, ...]
        local: tuple[int, ...] | None
        if self.shape == "vector":
            size, local = (groups,), None
        else:
            items = self.width if self.rows.csr else (self.rows.lanes // self.stream.profile.register) ** 2
            size, local = (groups * items, blocks), (items, 1)
        kernel(size, local, *arguments, *self._numbers)
