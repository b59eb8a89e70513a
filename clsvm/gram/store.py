"""Keep values of the kernel matrix K on the device: the rows that a solver computed last, or all of K.

Rows of K are in up to SLABS buffers of equal size, which are called slabs. The slabs come from a pool that outlives the
fit. Kernels receive them as a :class:`products.Store`. The place of a row of K in the slabs is called its slot.

    RowCache: a cache of rows of K, in which a new row replaces the oldest one.
    StoredGram: an Operator that reads values from all of K.
    precomputed: copy all of K from a NumPy array, and return its StoredGram.
    computed: compute all of K from the rows, and return its StoredGram.
    fill: compute some rows of K, and write each row into its slot.
"""

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import DeviceError
from clsvm.gram import programs
from clsvm.gram.layouts.panel import Panel, PanelPair
from clsvm.gram.layouts.record import Rows, in_order, lanes
from clsvm.gram.products import Operator, Store, Tile, Update
from clsvm.gram.programs import SLABS, RowSource
from clsvm.kernels import PRECOMPUTED
from clsvm.opencl.stream import Buffer, Stream
from clsvm.threads import check_interrupt

Places = NDArray[np.int32]
# The length of a stored row of K, and the number of rows of a panel, are multiples of 16, the largest SIMD width.
_WHOLE = 16
_AT_A_TIME = 512  # number of rows of K that one product computes


class RowCache:
    """Cache the rows of the kernel matrix K that were computed last, in at most ``limit`` bytes of device memory.

    The cache is a ring of slots, each for one row of K. The device decides which row a slot holds
    (cl_kernels/solvers/rowcache.cl). The slots are in device buffers of equal size, called slabs. The host allocates
    more slabs when more rows are to be cached. One outer iteration of the solver requests at most ``entries`` rows. If
    the memory cannot hold ``entries`` rows, the cache holds no rows. If ``later`` is true, the host allocates no slabs
    before :meth:`reserve` is called.

    Attributes
    ----------
    ld
        number of values in a row of K; each takes ``itemsize`` bytes.
    slab_bytes
        size of a slab in bytes.
    slab_rows
        number of rows of K in a slab.
    slot_of
        int32 buffer (ld,) with the number of the slot of each row of K, or -1 for a row that is not cached.
    owner
        int32 buffer with the number of the row of K that each slot holds, or -1 for an empty slot.
    """

    def __init__(self, stream: Stream, ld: int, itemsize: int, limit: int, entries: int, later: bool = False) -> None:
        self._stream, self.ld = stream, ld
        row = ld * itemsize
        # A slab is a buffer of cached rows of K. Its size is rounded, so that later fits can use the slab again.
        # If SLABS slabs together hold all rows of K, a slab takes ``all_rows`` bytes, rounded up to a power of two.
        all_rows = 1 << (-(-ld // SLABS) * row - 1).bit_length()
        most = max(limit // SLABS, 1)  # largest size in bytes of a slab within the memory limit
        # If device and host share memory, ``most`` (the largest slab size in bytes) is rounded down to a power of two.
        # On any other device, ``most`` (the largest slab size in bytes) is rounded down by less than an eighth.
        unit = 1 << max(0, most.bit_length() - (1 if stream.unified else 4))
        self.slab_bytes = min(all_rows, max(1, most // unit) * unit, stream.largest)
        self.slab_rows = self.slab_bytes // row
        self._entries = entries
        self._slabs: list[Buffer] = []
        self._most = SLABS if self.slab_rows * SLABS >= entries and limit > 0 else 0
        self.slot_of = stream.upload(np.full(ld, -1, np.int32))
        rows = max(1, self.slab_rows * self._most)
        self.owner = stream.upload(np.full(rows, -1, np.int32))
        if not later:
            self.reserve(0, 0)

    @property
    def capacity(self) -> int:
        """Return the number of rows of K that fit in the buffers allocated so far."""
        return self.slab_rows * len(self._slabs)

    @property
    def most(self) -> int:
        """Return the largest number of rows of K that the cache may hold after it has grown."""
        return self.slab_rows * self._most

    @property
    def growth_bytes(self) -> int:
        """Return the number of bytes by which the cache may still grow."""
        return (self._most - len(self._slabs)) * self.slab_bytes

    def store(self, slot: Buffer) -> Store:
        """Return a Store, the record by which OpenCL kernels find the rows of K in this cache.

        A kernel reads or writes a list of rows of K. The int32 buffer ``slot`` has a number for each row in this list:
        slot[k] is the place in the cache, called the slot, of the row at index k of the list.
        """
        return Store(_all_slabs(self._slabs), self.slab_rows, self.ld, slot)

    def reserve(self, computed: int, steps: int) -> None:
        """Allocate more buffers for rows of K, so that the next ``steps`` outer iterations evict no cached row.

        ``computed`` is the number of rows of K that were computed so far. Each computed row takes the next place in the
        cache. An outer iteration computes at most as many rows as the constructor's argument ``entries`` says. The
        cache grows up to :attr:`most` rows, or until the memory budget is used up.
        """
        if not self._grow(self._entries):  # memory cannot hold the rows of one outer iteration, so nothing is cached
            self._stream.give_slabs_back()
            self._slabs.clear()
            self._most = 0
        self._grow(computed + steps * self._entries)

    def _grow(self, rows: int) -> bool:
        """Allocate buffers until they hold min(rows, self.most) rows of K. Return False if memory does not suffice."""
        while len(self._slabs) < self._most and self.capacity < rows:
            try:
                self._slabs.append(self._stream.slab(self.slab_bytes))
            except (ValueError, DeviceError):  # the cache stays at its present size for good
                self._most = len(self._slabs)
                return False
        return True


_KERNELS = "update", "gather_tile", "add_between"


class StoredGram(Operator):
    """Compute products with a kernel matrix K (n, n) that the device stores whole in ``store``.

    ``vectors`` is None, or an Operator that computes values of K from the rows X. A product takes the rows of K at the
    positions of some rows U of X. A panel holds these positions on the device. If ``vectors`` is given, the panel also
    has a buffer for a copy of the rows U. :meth:`tile` writes the matrix K(U, U). The method gathers the values of
    K(U, U) from ``store``, or computes them by ``vectors`` if this takes less time.
    """

    whole = True

    def __init__(self, stream: Stream, store: Store, rows: Rows, kernel: Any, vectors: Operator | None = None) -> None:
        self.stream, self.rows, self.kernel, self._store, self._vectors = stream, rows, kernel, store, vectors
        self.width, self.at_once = vectors.width if vectors else _WHOLE, vectors is None
        kernels = (stream.variant(programs.stored(stream.profile, rows.dtype), name) for name in _KERNELS)
        self._update, self._gather_tile, self._add_between = kernels

    def panel_bytes(self, capacity: int) -> int:
        return self._vectors.panel_bytes(capacity) if self._vectors else 0

    def panel(self, capacity: int, square: bool = False) -> Panel:
        if self._vectors:
            return self._vectors.panel(capacity, square)
        return Panel(-(-capacity // _WHOLE) * _WHOLE, _WHOLE, None, None, 0, "many")

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        return replace(panel, capacity=capacity, rows=self.stream.part(panel.rows, 4 * first, 4 * capacity))

    def row_source(self, panel: Panel) -> tuple[RowSource, tuple[Any, ...]]:
        return programs.stored_rows(), self._store._replace(slot=panel.rows).arguments()

    def gather(self, panel: Panel, rows: Buffer, count: Buffer) -> None:
        panel.rows = rows

    def tile(self, panel: Panel, tile: Tile) -> None:
        profile, gram, W = self.stream.profile, self._vectors, panel.capacity // tile.matrices
        if gram and programs.gather_cost(profile, self.rows.n_pad, W) >= gram.rows.tile_cost:
            gram.gather(panel, tile.rows, tile.count)
            gram.tile(panel, tile)
            return
        size = (1 if profile.style == "simd" else self.rows.lanes, W, tile.matrices)
        given = tile.rows, W, tile.first, tile.end or W, int(tile.symmetric), tile.out
        self._gather_tile(size, None, self._store.arguments(), *given)

    def accumulate(self, panel: Panel, count: Buffer, store: Store | None, update: Update | None, end: int = 0) -> None:
        """Add the product D K(U, X) of weights D and stored kernel values to the sums c.

        U are some rows of X. ``panel`` holds the positions of the rows U in X, and the buffer ``count`` holds the
        number of rows U. ``update`` holds D and c. If ``update`` is None, no product is computed. Other operators write
        K(U, X) to ``store``. This operator ignores ``store``, because the device stores all values of K already. This
        operator also ignores ``end``, so the product takes all rows of X.
        """
        if update:
            size = programs.update_range(self.stream.profile, update.n)
            self._update(*size, self._store._replace(slot=panel.rows).arguments(), update.arguments(), count)

    def between(self, pair: PanelPair, K: Buffer, update: Update | None) -> None:
        panel, at, right, count, matrices = pair
        given, size = self._store._replace(slot=at).arguments(), (panel.capacity // matrices, matrices)
        assert update  # solvers omit ``update`` only for operators with ``by_blocks``, which is false here
        self._add_between(size, None, given, right.rows, right.capacity // matrices, count, update.D, update.c)


def nbytes(n: int, dtype: str) -> int:
    """Return the number of bytes that the kernel matrix K (n, n) takes in ``dtype``, rounded up for its buffers."""
    return n * (n + SLABS) * np.dtype(dtype).itemsize


def needed_bytes(gram: Operator) -> int:
    """Return how many bytes :func:`computed` allocates: for K, and for a buffer of rows U while it computes K(X, U)."""
    return nbytes(gram.rows.n_pad, gram.rows.dtype) + gram.panel_bytes(_AT_A_TIME)


def precomputed(stream: Stream, K: NDArray[Any], dtype: str) -> StoredGram:
    """Copy the symmetric kernel matrix K (n, n) from the host to the device in ``dtype``, and return its operator.

    K is a float32 or float64 array.

    Raises ValueError if K exceeds memory_limit, and DeviceError if the device cannot allocate it.
    """
    n, ld = len(K), -(-len(K) // _WHOLE) * _WHOLE
    V, places = lanes(stream.profile, dtype), in_order(n, ld)
    rows = Rows("precomputed", dtype, n, n, ld, V, n * ld, *places, None, ld, 1)
    store = _store(stream, ld, dtype)
    for slab, first in zip(store.slabs, range(0, ld, store.slab_rows), strict=False):
        part = np.zeros((store.slab_rows, ld), dtype)
        some = K[first : first + len(part)]
        part[: len(some), :n] = some
        stream.write(slab, part)
    return StoredGram(stream, store, rows, PRECOMPUTED)


def computed(gram: Operator, tiles: bool) -> StoredGram:
    """Compute all of K for the rows of ``gram``, and return an operator that reads the stored K for many solves.

    ``tiles`` says how the operator makes the matrix K(U, U) of selected rows U. If ``tiles`` is true, K(U, U) is
    computed from the rows when this costs less than gathering it from the stored K. If ``tiles`` is false, K(U, U) is
    always gathered.

    If values of K are costly, CPUs compute half of K and copy each value K(x, y) to K(y, x). The copy also makes K
    exactly symmetric: for element-wise kernel functions of sparse rows, K(x, y) and K(y, x) can differ in the last bit.

    Raises ValueError and DeviceError as :func:`precomputed` does.
    """
    stream, rows, profile = gram.stream, gram.rows, gram.stream.profile
    store, n = _store(stream, rows.n_pad, rows.dtype), rows.n_pad
    symmetric = profile.style == "simd" and rows.cost / 2 > programs.COPIED * profile.cache_cost
    panel, every = gram.panel(min(_AT_A_TIME, store.slab_rows)), np.arange(n, dtype=np.int32)
    listed = stream.buffer(4 * panel.capacity), stream.buffer(4 * panel.capacity), stream.buffer(4)
    fill(gram, panel, listed, store, every, every, symmetric)
    stream.free(*listed, *panel.buffers())
    # A value of K between two rows of a working set is computed or gathered from the stored K, whichever costs less.
    cost = min(programs.gather_cost(profile, n, 1), rows.tile_cost) if tiles else 1.0
    return StoredGram(stream, store, replace(rows, tile_cost=cost), gram.kernel, gram if tiles else None)


def fill(
    gram: Operator,
    panel: Panel,
    listed: tuple[Buffer, Buffer, Buffer],
    store: Store,
    rows: Places,
    slot_of: Places,
    symmetric: bool = True,
    until: float = np.inf,
) -> tuple[int, Places]:
    """Compute the rows of K at the ascending positions ``rows``, and write each row to its slot, a place in ``store``.

    n_pad is the number of rows of K, which includes rows of padding. ``rows`` is divided into sections of at most as
    many rows as fit in the buffer ``panel``. One product computes the rows of one section. The products proceed from
    the last section to the first. No product starts after the time ``until``.

    If ``symmetric`` is true, the product of a section computes K[u][v] for its rows u only in the columns v < end. The
    number ``end`` is the last position u in the section plus 1, rounded up to a whole block of columns. After all
    products, the values K[u][v] with v >= end are copied from K[v][u]. Each of these rows v must be in ``rows``, or be
    stored already.

    Arguments:
        listed: three buffers, for the positions of a product's rows, for the slots of the rows, and for their number.
        slot_of: (n_pad,) slot of each row of K.
        until: value of time.perf_counter().

    Return an index i and an array ``ends`` (n_pad,). The rows of K at the positions rows[i:] were computed, and i is 0
    if all rows were computed. For a row u that a product computed, ends[u] is the number of values that the product
    computed, and the remaining values were copied. For all other rows u, ends[u] is n_pad, and nothing was copied.
    """
    stream, n, first = gram.stream, gram.rows.n_pad, len(rows)
    ends, unit = np.full(n, n, np.int32), max(programs.SIDE, gram.rows.lanes)
    at, slot, count = listed
    while first and perf_counter() < until:
        check_interrupt()
        last, first = first, max(0, first - panel.capacity)
        some = rows[first:last]
        for buffer, values in ((at, some), (slot, slot_of[some]), (count, np.array([len(some)], np.int32))):
            stream.write(buffer, values)
        gram.gather(panel, at, count)
        if symmetric:
            ends[some] = min(n, -(-(int(some[-1]) + 1) // unit) * unit)
        gram.accumulate(panel, count, store._replace(slot=slot), None, int(ends[some[0]]))
        stream.finish()
    if symmetric:
        mirror_rows(gram, store, slot_of, ends)
    return first, ends


def mirror_rows(gram: Operator, store: Store, slot_of: Places, ends: Places) -> None:
    """Complete stored rows of the symmetric matrix K, on CPUs: copy K[v][u] to K[u][v] for every v >= ends[u].

    slot_of[u] is the place of row u of K in ``store``, or -1 if row u is not stored. Before the copy, a stored row u
    has only its first ends[u] values. If row u is complete or not stored, ends[u] is the number of rows of K, so that
    nothing is copied to row u. Each row v from which values are copied must be stored.
    """
    stream, n = gram.stream, len(ends)
    kernel = stream.variant(programs.stored(stream.profile, gram.rows.dtype), "mirror_rows")
    with stream.scratch():
        ready = store._replace(slot=stream.upload(slot_of))
        kernel((n // programs.SIDE,), (1,), ready.arguments(), stream.upload(ends), n)


def _store(stream: Stream, n_pad: int, dtype: str) -> Store:
    """Allocate device buffers of equal size that together hold a kernel matrix K (n_pad, n_pad).

    The first buffer is for the first rows of K, the second buffer for the next rows, and so on.
    """
    rows = -(-n_pad // SLABS)
    nbytes = rows * n_pad * np.dtype(dtype).itemsize
    return Store(_all_slabs([stream.slab(nbytes) for _ in range(0, n_pad, rows)]), rows, n_pad, None)


def _all_slabs(slabs: list[Buffer]) -> tuple[Buffer, ...]:
    """Return exactly SLABS buffers, by repeating the last one, since kernels take a fixed number of arguments."""
    return (*slabs, *slabs[-1:] * (SLABS - len(slabs)))
