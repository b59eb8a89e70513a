"""Compute the kernel matrix K(X, U) between n rows X and m rows U, or its products with matrices of k columns.

:func:`kernel_matrix` computes the values of K. :class:`Sums` computes three products for rows X on the device. K is
K(X, U) and K' its transpose. V (m, k) and R (n, k) are given matrices:

    forward: K V (n, k).
    back: K' R (m, k).
    forward_back: K' H K V (m, k). H multiplies each row of K V by a matrix (k, k) that belongs to the row
        (:meth:`Sums.set_weights`).

The methods take and return transposed arrays: (k, m) for V, and (k, n) for K V.

Sums are doubles, or pairs of floats on devices without doubles. In forward_back, groups of a few terms are first added
in the dtype of K. The order of all additions is fixed, so repeated calls return the same bits.
:class:`Cross` computes the three products for any number of rows in the host's memory, or in a memory-mapped file. A
pass is one product over all rows X. Cross chooses one of three ways, by the memory that they need and their cost:

    rows: X is on the device, and every pass computes K.
    stored: K is on the device, and X is freed.
    streamed: every pass copies X to the device block by block, and computes K (gram/blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays
from sklearn.utils import check_array

from clsvm import arrays, kernels
from clsvm.arrays import Data
from clsvm.errors import naming
from clsvm.gram import layouts, programs
from clsvm.gram.blocks import Streamed
from clsvm.gram.exact import COPIES
from clsvm.gram.layouts.lanes import LaneRows
from clsvm.gram.layouts.panel import Panel
from clsvm.gram.layouts.record import Plan, Rows
from clsvm.gram.precision import check_range, measures, outside
from clsvm.gram.products import Gram, Store
from clsvm.gram.responses import CHUNK, PANEL, whole_tiles
from clsvm.kernels import Kernel
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
# bytes of a block of rows of K that is computed at a time: OF_UNIT for each core of a CPU, OF_DEVICE for a whole GPU
OF_UNIT, OF_DEVICE = 8 << 20, 64 << 20
MIN_TILE_ROWS = 4096  # on a GPU, the block of K that is computed at a time usually has at least this many rows
# Constants of the class OnePass, which computes products with a kernel matrix and its transpose in one pass on CPUs:
EACH = 4  # one kernel launch has at most EACH work-items for each compute unit of the CPU
CACHE = 2 << 20  # a work-item keeps at most about this many bytes of kernel values, so that a core's cache holds them
# A work-item's scratch memory holds MIN_SUB to MAX_SUB OpenCL vectors of values for each column of the kernel matrix.
MIN_SUB, MAX_SUB = 2, 8
SEVERAL = 4  # with fewer than 4 outputs, scratch memory holds at most MAX_SUB / 2 vectors for each kernel matrix column


def usual_tile_bytes(stream: Stream, row: int) -> int:
    """Return the usual size in bytes of a tile. A tile is a block of rows of K.

    A tile of this size fits in the caches of a CPU, or keeps all compute units of a GPU busy. ``row`` is the size in
    bytes of one row of K.
    """
    return OF_UNIT * stream.compute_units if stream.profile.style == "simd" else max(OF_DEVICE, MIN_TILE_ROWS * row)


class RowTile(NamedTuple):
    """Describe a tile of K(X, U): the kernel values between consecutive rows of X and all rows U.

    Attributes
    ----------
    groups
        indices of the lane groups in the tile. A lane group is V rows of X that an OpenCL kernel processes together.
    first
        position of the first row of the tile among all rows of K.
    rows
        number of rows of K in the tile.
    values
        buffer of the kernel values in the tile.
    """

    groups: range
    first: int
    rows: int
    values: Buffer

    @property
    def places(self) -> slice:
        """Return the positions of the tile's rows among all rows of K. The tile is a block of rows of K."""
        return slice(self.first, self.first + self.rows)


class Weights(NamedTuple):
    """Hold a matrix H (k, k) for each row of X on the device. k is the number of outputs.

    :meth:`Sums.forward_back` multiplies the k outputs of each row by the row's H. If ``shares`` is None, H is diagonal,
    and its entries are the row's weights. Otherwise H = w (diag(P) - P P'), where w is the weight of the row, and
    P (k,) are its probabilities.

    Attributes
    ----------
    w
        buffer of the rows' weights: (k, n_pad) if ``per_output`` is 1, else (n_pad,). n_pad is the number of rows with
        padding.
    per_output
        1 if each output has its own weights, 0 if all outputs of a row share one weight.
    shares
        buffer of the probabilities P of all rows (k, n_pad), or None if H is diagonal.
    """

    w: Buffer
    per_output: int
    shares: Buffer


class Sums:
    """Compute products of the kernel matrix K(X, U), or of its transpose, with matrices of ``k`` columns on a device.

    ``gram`` holds the rows X. ``panel`` is the device buffer that holds the ``m`` rows U. The number of rows for which
    the buffer has room must be a multiple of 4 (programs.ROWS_EACH). :meth:`Gram.of_all` with ``square=True`` makes a
    buffer of that kind. ``tile_bytes`` is the size in bytes of a tile. A tile is a block of rows of K, and the device
    computes one tile at a time. If ``keep`` is true, the constructor computes all of K and stores K on the device.
    Products then read K and not X. Raises ValueError if the memory limit of the device is too small.
    """

    def __init__(
        self, gram: Gram, panel: Panel, m: int, k: int, tile_bytes: int | None = None, keep: bool = False
    ) -> None:
        self.gram, self.panel, self.m, self.k, self.keep = gram, panel, m, k, keep
        stream, rows, capacity = gram.stream, gram.rows, panel.capacity
        assert capacity % programs.ROWS_EACH == 0
        V, groups, row = rows.lanes, rows.n_pad // rows.lanes, np.dtype(rows.dtype).itemsize * capacity
        wanted = usual_tile_bytes(stream, row) if tile_bytes is None else tile_bytes
        step = max(1, min(groups, wanted // (V * row)))
        self._ld = size = step * V
        firsts, nbytes = range(0, groups, step), row * size
        tiles = [stream.slab(nbytes) for _ in firsts] if keep else [stream.buffer(nbytes)] * len(firsts)
        some = [range(first, min(first + step, groups)) for first in firsts]
        self._parts = [RowTile(of, of.start * V, len(of) * V, tile) for of, tile in zip(some, tiles, strict=True)]
        self._t, self._r = stream.buffer(8 * k * size), stream.buffer(8 * k * size)
        self._v, self._out = stream.buffer(8 * k * capacity), stream.buffer(8 * k * capacity)
        self._count = stream.upload(np.array([m], np.int32))
        names = "residual", "coupled", "zero_padding", "forth", "back"
        made = {exact: programs.back(stream.profile, rows.dtype, exact) for exact in (False, True)}
        self._kernels = {(name, exact): stream.variant(made[exact], name) for name in names for exact in made}
        self._padding = np.flatnonzero(rows.order < 0).astype(np.int32)
        self._listed = stream.upload(self._padding)
        self._one_pass = None if keep else OnePass.of(gram, panel, k, nbytes)
        self._weights = Weights(None, 0, None)
        self.set_weights(None)
        for part in self._parts if keep else ():
            self._compute_tile(part)

    def set_weights(self, w: Vector | None, shares: Vector | None = None) -> None:
        """Set a matrix H_i (k, k) for each row i of X, by which :meth:`forward_back` multiplies the row's k outputs.

        ``w`` holds the weights of the n rows; None means weights of 1. If ``shares`` is None, H_i is diagonal: w[i]
        times the identity for ``w`` of shape (n,), and diag(w[:, i]) for ``w`` of shape (k, n).

        If ``shares`` (k, n) holds probabilities, ``w`` must be (n,) or None. With P = shares[:, i], H_i is
        w[i] (diag(P) - P P').
        """
        stream, old = self.gram.stream, self._weights
        stream.finish()
        stream.free(*(buffer for buffer in (old.w, old.shares) if buffer is not None))
        w = np.ones(self.gram.rows.n) if w is None else w
        coupled = None if shares is None else stream.wide(self._to_device_order(shares))
        # padding rows get the weight 0, so that they add nothing to the products
        self._weights = Weights(stream.wide(self._to_device_order(w)), int(w.ndim > 1), coupled)

    def _to_device_order(self, values: Vector) -> Vector:
        """Reorder ``values`` (..., n) from the caller's order of rows to the order in which the device stores the rows.
        The result has the shape (..., n_pad), where n_pad is the number of rows with padding. Padding rows get 0."""
        placed = np.zeros((*values.shape[:-1], self.gram.rows.n_pad))
        placed[..., self.gram.rows.position] = values
        return placed

    def forward(self, V: Vector) -> Vector:
        """Return V K(U, X) (k, n) for the rows X of ``gram`` and the rows U in the buffer ``panel``, given V (k, m)."""
        stream, rows = self.gram.stream, self.gram.rows
        stream.write_wide(self._v, self._padded(V))
        T = np.empty((self.k, rows.n_pad))
        for part in self._parts:
            self._forward(part, exact=True)
            T[:, part.places] = stream.read_wide(self._t, (self.k, self._ld))[:, : part.rows]
        return T[:, rows.position]

    def back(self, R: Vector) -> Vector:
        """Return R K(X, U) (k, m) for the rows X of ``gram`` and the rows U in the buffer ``panel``, given R (k, n)."""
        stream, placed = self.gram.stream, self._to_device_order(R)
        stream.clear(self._out, 8 * self.k * self.panel.capacity)
        part_of = np.zeros((self.k, self._ld))
        for part in self._parts:
            if not self.keep:
                self._compute_tile(part)
            part_of[:, : part.rows] = placed[:, part.places]
            stream.write_wide(self._r, part_of)
            self._add(part, exact=True)
        return self._read()

    def forward_back(self, V: Vector) -> Vector:
        """Return the sum of H_i V K(U, x_i) K(x_i, U) over all rows x_i of ``gram``, an array (k, m), given V (k, m).

        U are the m rows in the buffer ``panel``, and k is the number of outputs. H_i (k, k) is the matrix that
        :meth:`set_weights` has set for row x_i.
        """
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
                self._kernels["coupled", False]((part.rows,), None, *given, at.shares, n, self.k, self._r)
            else:
                self._kernels["residual", False]((part.rows, self.k), None, *given, at.per_output, None, n, self._r)
            self._add(part)
        return self._read()

    def _padded(self, V: Vector) -> Vector:
        padded = np.zeros((self.k, self.panel.capacity))
        padded[:, : self.m] = V
        return padded

    def _compute_tile(self, part: RowTile) -> None:
        """Compute a tile, a block of rows of K. Padding rows get 0, since their kernel values may be infinite."""
        capacity = self.panel.capacity
        # The next kernel reads the values, so kernels on CPUs should leave the values in the caches.
        near = not self.keep and self.gram.stream.profile.style == "simd"
        store = Store((part.values,), capacity, self._ld, self.gram.slot(capacity), near)
        self.gram.over_rows(part.groups, part.first, self.panel, self._count, store, None)
        begin, stop = np.searchsorted(self._padding, (part.first, part.places.stop)).tolist()
        if stop > begin:
            given = self._listed, begin, part.first, capacity, part.values, np.int64(self._ld)
            self._kernels["zero_padding", False]((stop - begin,), None, *given)

    def _forward(self, part: RowTile, exact: bool = False) -> None:
        """Compute K(X, U) V for the rows X of a tile, a block of rows of K. The buffer ``_t`` receives the result.

        U are the right-hand rows. The buffer ``_v`` holds V. With ``exact``, all sums are doubles or pairs of floats.
        """
        profile = self.gram.stream.profile
        if not self.keep:
            self._compute_tile(part)
        if profile.style == "simd":
            size, local = -(-part.rows // (self.gram.rows.lanes * programs.FORTH)), 1
        else:
            size, local = part.rows // programs.LINE * profile.group, profile.group
        given = part.values, np.int64(self._ld), part.rows, self._v, self._count, self.k, self.panel.capacity, self._t
        self._kernels["forth", exact]((size,), (local,), *given)

    def _add(self, part: RowTile, exact: bool = False) -> None:
        """Add K' R to the buffer ``_out``, where K is a tile: a block of rows of the kernel matrix.

        K' is the transpose of K. The buffer ``_r`` holds a row of R for each row of the tile. With ``exact``, all sums
        are doubles or pairs of floats.
        """
        profile, capacity = self.gram.stream.profile, self.panel.capacity
        group = profile.group if profile.style == "workgroup" else 1
        given = part.values, np.int64(self._ld), part.rows, self._r, self._count, self.k, capacity, self._out
        self._kernels["back", exact]((capacity // programs.ROWS_EACH * group,), (group,), *given)

    def _read(self) -> Vector:
        return self.gram.stream.read_wide(self._out, (self.k, self.panel.capacity))[:, : self.m]


class OnePass:
    """Compute K' H K V in one pass over the rows X, on CPUs.

    K is K(X, U), and K' is its transpose. V has a column for each of k outputs. H multiplies each row of K V by a
    matrix (k, k) that belongs to the row. Each work-item takes some rows of X, and processes a few of them at a time.
    For these few rows it computes K, then K V, and then their part of K' H K V. K is in scratch memory that fits in the
    cache of a core. The results of the work-items are added in the order of the rows, so the sum has the same bits for
    any number of work-items.
    """

    def __init__(self, gram: Gram, panel: Panel, k: int, made: Variant, scratch: Sequence[int], items: int) -> None:
        self._gram, self._panel, self._k, stream = gram, panel, k, gram.stream
        units = stream.compute_units
        self._items = items - items % units if items > units else items
        self._absent = stream.upload((gram.rows.order < 0).astype(np.uint8))
        self._scratch = [stream.buffer(self._items * nbytes) for nbytes in scratch]
        self._kernel = stream.variant(made)
        self._add_parts = stream.variant(programs.back(stream.profile, gram.rows.dtype), "add_parts")

    @staticmethod
    def of(gram: Gram, panel: Panel, k: int, limit: int) -> OnePass | None:
        """Return a OnePass, which computes K' H K V for ``k`` outputs, or None if no OnePass is possible.

        K is K(X, U), and K' is its transpose. V has a column for each output. H multiplies row i of K V by a matrix
        (k, k) that belongs to row i of X. ``panel`` is the buffer of the rows U. No OnePass is possible if the layout
        or the device has no program for K' H K V, or if the scratch memory of a work-item exceeds ``limit`` bytes.
        Scratch memory holds K and K V for a few rows of X, and sums for K' H K V.
        """
        stream, rows = gram.stream, gram.rows
        sub, real = MAX_SUB if k >= SEVERAL else MAX_SUB // 2, np.dtype(rows.dtype).itemsize
        while sub > MIN_SUB and sub * real * rows.lanes * panel.capacity > CACHE:
            sub //= 2
        made = programs.forward_back(gram.kernel.spec, rows.kind, rows.dtype, stream.profile, rows.d, sub)
        taken = sub * rows.lanes
        scratch = real * taken * panel.capacity, 8 * taken * k, real * taken * k, 8 * k * panel.capacity
        items = min(EACH * stream.compute_units, limit // sum(scratch), -(-rows.n_pad // (programs.BLOCK * rows.lanes)))
        return OnePass(gram, panel, k, made, scratch, items) if made and items else None

    def add(self, V: Buffer, weights: Weights, out: Buffer, count: Buffer) -> None:
        """Add K' H K V to the buffer ``out``.

        K is K(X, U), and K' is its transpose. V has a column for each of k outputs. H multiplies row i of K V by a
        matrix H_i (k, k), which belongs to row i of X. ``weights`` holds the numbers from which all H_i are computed.
        The buffers ``V`` and ``out`` hold transposed matrices (k, capacity), where ``capacity`` is the largest number
        of rows U. ``V`` has the dtype of K. The buffer ``count`` holds the number of rows U.
        """
        gram, panel, k, n = self._gram, self._panel, self._k, np.int64(self._gram.rows.n_pad)
        given: tuple[Any, ...] = (k, panel.capacity, V, n, *weights, self._absent, *self._scratch)
        step, size = self._items * programs.BLOCK, k * panel.capacity
        for one in gram.reader.over_rows(gram.groups, panel, count):
            for first in range(0, one.groups, step):
                groups = min(step, one.groups - first)
                items = -(-groups // programs.BLOCK)
                self._kernel((items,), (1,), one.first + first, groups, one.arguments, *given, gram.numbers)
                self._add_parts((size,), None, self._scratch[-1], items, size, out)


_DTYPES = [np.float64, np.float32]
SHARE = 0.7  # largest share of the free memory for the rows X or for a stored K; products need little other memory
# USED: a CPU's cost of adding a value of K to weighted sums. The unit is one multiply-add in a product of dense rows.
# DOUBLE: on a CPU, computing a value of K takes DOUBLE times as long in float64 as in float32.
USED, DOUBLE = 20.0, 2.4
PROBE = 4096  # largest number of rows from which the cost of a value of K is estimated
MAX_COPY = 64 << 20  # largest size in bytes of the kernel values that are copied to the host at a time


def _checked(X: Any, name: str) -> Any:
    """Return the rows X, checked and converted by scikit-learn's check_array. Error messages call them ``name``."""
    with naming(name):
        return check_array(arrays.checked(X, name), accept_sparse="csr", dtype=_DTYPES, input_name=name)


def kernel_matrix(
    X: Any,
    Y: Any = None,
    kernel: str | Kernel = "rbf",
    *,
    device: Any = None,
    dtype: str = "float32",
    memory_limit: int | str | None = None,
    **params: Any,
) -> NDArray[Any]:
    """Compute the kernel matrix K(X, Y) on a device.

    If an intermediate value would leave the range of float32, values are computed in float64 and then rounded to
    ``dtype``. The host computes float64 values if the device has no double precision.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        A row x_i for each row of the result.
    Y : array-like or sparse matrix of shape (m, d), default=None
        A row y_j for each column of the result. None means X.
    kernel : str or Kernel, default="rbf"
        A :class:`Kernel`, or the name of a built-in kernel function, whose parameters are ``params``.
    device : None, str, int, pyopencl.Device or pyopencl.CommandQueue, default=None
        The device, as for the estimators: "gpu", "cpu", an index, or part of a name. None takes the device that
        CLSVM_DEVICE names, else a usable GPU, else a usable CPU.
    dtype : {"float32", "float64"}, default="float32"
        Data type of the result.
    memory_limit : int or str, default=None
        Limit of the device memory in bytes, or text such as "2GB". None takes half of the free memory. The result
        is in the host's memory and does not count.
    **params : dict
        Parameters of a built-in kernel function, such as ``gamma``.

    Returns
    -------
    ndarray of shape (n, m)
        The values K(x_i, y_j) in ``dtype``.

    Raises
    ------
    ValueError
        If an argument is invalid, or a value of K is not finite.
    TypeError
        If an argument has a wrong type, or ``params`` accompany a :class:`Kernel`.
    DeviceError
        If the device fails or is absent.
    BuildError
        If the device cannot build a program.
    """
    if isinstance(kernel, Kernel) and params:
        raise TypeError(f"parameters {', '.join(params)} are only for a kernel given by name, got {kernel!r}")
    kernel = kernel if isinstance(kernel, Kernel) else kernels.make(kernel, **params)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    if words := kernel.beyond(dtype):
        raise ValueError(f"{words} for {dtype}")
    X, Y = _checked(X, "X"), None if Y is None else _checked(Y, "Y")
    X, Y = check_pairwise_arrays(X, Y, accept_sparse="csr", dtype=_DTYPES, ensure_all_finite=False)
    X, Y = arrays.canonical(X), arrays.canonical(Y)
    if sp.issparse(X) and sp.issparse(Y) and kernel.of_entries and arrays.mostly_empty(X):
        columns = arrays.columns(X, Y)
        X, Y = arrays.renumbered(X, columns), arrays.renumbered(Y, columns)
    for name, rows in (("X", X), ("Y", Y)):
        with naming(name):
            kernel.check_domain(rows)
    out: NDArray[Any] = np.empty((X.shape[0], Y.shape[0]), dtype)
    if not out.size:
        return out
    with Stream(device, memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec)
        of_x, of_y = (measures(kernel, rows, plan).extent for rows in (X, Y))
        if dtype == "float32" and outside(kernel, of_x, of_y, dtype, X.shape[1]):
            dtype = "float64"  # compute K in float64, and round it to float32 in ``out``
        if dtype == "float64":
            check_range(kernel, of_x, of_y, X.shape[1])
        if stream.profile.lacks(dtype):
            step = max(1, CHUNK // (8 * COPIES * Y.shape[0]))
            for start in range(0, X.shape[0], step):
                out[start : start + step] = kernel(X[start : start + step], Y)
            return out
        _fill(stream, kernel, plan, dtype, X, Y, out)
    if not np.isfinite(out).all():
        i, j = np.argwhere(~np.isfinite(out))[0]
        raise ValueError(f"{kernel!r} is {out[i, j]} in {out.dtype} for row {i} of X and row {j} of Y")
    return out


def _fill(stream: Stream, kernel: Kernel, plan: Plan, dtype: str, X: Data, Y: Data, out: NDArray[Any]) -> None:
    """Write K(X, Y) into ``out``, one block after another, so that each block fits in the memory budget."""
    itemsize, budget = np.dtype(dtype).itemsize, (stream.limit - stream.allocated) // 4
    step = whole_tiles(min(CHUNK, budget) // layouts.row_bytes(plan, X, itemsize))
    row = layouts.row_bytes(plan, Y, itemsize) + min(step, X.shape[0]) * itemsize
    capacity = min(whole_tiles(Y.shape[0]), whole_tiles(min(PANEL, budget) // row))
    for start in range(0, X.shape[0], step):
        rows = layouts.build(stream, X[start : start + step], plan, dtype)
        gram = Gram(stream, rows, kernel)
        for begin in range(0, Y.shape[0], capacity):
            right = layouts.build(stream, Y[begin : begin + capacity], plan, dtype)
            source = Gram(stream, right, kernel)
            panel = source.of_all(capacity)
            out[start : start + rows.n, begin : begin + right.n] = gram.values(panel, right.n)
            stream.free(*panel.buffers(), *source.buffers())
        stream.free(*gram.buffers())


class Cross:
    """Compute products of the kernel matrix K(X, C) with matrices of ``k`` columns, for rows X and inducing points C.

    X (n, d) and C (m, d) are dense or CSR. K has the dtype ``dtype``. A pass is one product over all rows of X.

    Attributes
    ----------
    way
        "rows" if X is on the device, "stored" if K is on the device, "streamed" if every pass copies X to the device
        block by block.
    reason
        text that says whether K is stored, or computed again in every pass. For the way "stored", it has the size of K
        in MB. For the way "streamed", it has the number of rows in a block.
    passes
        number of passes so far.
    cost
        estimated time to compute one value of K, or to read the value if K is stored. The unit is the time of one
        multiply-add in the inner product of two dense rows.

    ``centres`` holds C. ``plan`` says how the device stores rows, such as dense or CSR. ``keep`` says whether K may be
    stored on the device. Raises ValueError if the memory limit of ``stream`` is too small."""

    def __init__(
        self, stream: Stream, X: Data, centres: Data, kernel: Kernel, plan: Plan, dtype: str, k: int, keep: bool = True
    ) -> None:
        self._stream, self._X, self._kernel, self._plan, self.dtype, self.k = stream, X, kernel, plan, dtype, k
        self.n, self.m = X.shape[0], centres.shape[0]
        self.passes = 0
        laid = layouts.build(stream, centres, layouts.single_pass_plan(plan, centres), dtype)
        source = Gram(stream, laid, kernel)
        self._panel = source.of_all(square=True)
        if not self._panel.rows_stay:
            stream.finish()
            stream.free(*source.buffers())
        self._blocks: list[tuple[slice, Sums]] = []
        self._weights: tuple[Vector | None, Vector | None] = (None, None)
        self._lay_out(keep)

    def _lay_out(self, keep: bool) -> None:
        """Choose the attribute ``way``, and copy X or store K on the device accordingly.

        "rows" keeps X on the device, "stored" keeps K on the device, and "streamed" keeps neither. ``keep`` says
        whether K may be stored."""
        stream, itemsize = self._stream, np.dtype(self.dtype).itemsize
        left, row = stream.limit - stream.allocated, layouts.row_bytes(self._plan, self._X, itemsize)
        # values: bytes of a row of K. sums_bytes: bytes that class Sums allocates for each row of X.
        values, sums_bytes = self._panel.capacity * itemsize, 8 * (4 * self.k + 1)
        self._tile = min(usual_tile_bytes(stream, values), left // 8)
        self._streamed = passing = Streamed(stream, self._X, self._plan, self.dtype, sums_bytes)
        with stream.scratch():
            laid = passing.lay_out(stream, slice(0, min(passing.step, PROBE)))
            self.cost = laid.cost
        reading = stream.profile.stored_cost * itemsize / 4
        if stream.profile.style == "simd":
            function = stream.profile.value_cost if isinstance(laid, LaneRows) else 0.0  # CSR rows include it
            self.cost = (self.cost + function) * (DOUBLE if itemsize == 8 else 1.0) + USED
        stored, resident = self.n * (values + sums_bytes) + passing.step * row, self.n * (row + sums_bytes)
        if keep and self.cost > reading and stored <= SHARE * left:
            self.way, self.cost = "stored", reading
            self.reason = f"K is stored, {self.n * values / 1e6:.0f} MB"
        elif resident <= SHARE * left:
            self.way, self.reason = "rows", "K is computed in every pass"
        else:
            self.way = "streamed"
            self.reason = f"K is computed in every pass; rows pass through the device, {passing.step} at a time"
        if self.way == "rows":
            made = layouts.build(stream, self._X, self._plan, self.dtype)
            self._blocks.append((slice(0, self.n), self._sums(made)))
        for rows in passing.slices if self.way == "stored" else ():
            sums = self._sums(passing.lay_out(stream, rows))
            self._blocks.append((rows, sums))
            stream.finish()
            stream.free(*sums.gram.buffers())

    def _sums(self, rows: Rows) -> Sums:
        gram = Gram(self._stream, rows, self._kernel)
        return Sums(gram, self._panel, self.m, self.k, self._tile, keep=self.way == "stored")

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return K(X[rows], C) as a host array in Fortran order, for row numbers ``rows`` and the inducing points C."""
        some = min(MAX_COPY, self._tile) // (self._panel.capacity * 8)
        step = max(1, min(self._streamed.step, some))
        if 0 < len(rows) <= step:
            return self._values(rows)
        K = np.empty((len(rows), self.m), self.dtype, order="F")
        for first in range(0, len(rows), step):
            K[first : first + step] = self._values(rows[first : first + step])
        return K

    def _values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        with self._stream.scratch():
            plan = layouts.single_pass_plan(self._plan, X := self._X[rows])
            gram = Gram(self._stream, layouts.build(self._stream, X, plan, self.dtype), self._kernel)
            return gram.values(self._panel, self.m)

    def set_weights(self, w: Vector | None = None, shares: Vector | None = None) -> None:
        """Set a matrix H_i (k, k) for each row i of X, by which :meth:`forward_back` multiplies the row's k outputs.

        ``w`` holds the weights of the n rows; None means weights of 1. If ``shares`` is None, H_i is diagonal: w[i]
        times the identity for ``w`` of shape (n,), and diag(w[:, i]) for ``w`` of shape (k, n). If ``shares`` (k, n)
        holds probabilities, ``w`` must be (n,) or None. With P = shares[:, i], H_i is w[i] (diag(P) - P P').
        """
        self._weights = w, shares
        for rows, sums in self._blocks:
            self._weigh(sums, rows)

    def _weigh(self, sums: Sums, rows: slice) -> None:
        sums.set_weights(*(None if given is None else given[..., rows] for given in self._weights))

    def forward(self, V: Vector) -> Vector:
        """Return V K(C, X) (k, n) for rows X and inducing points C, given V (k, m)."""
        T = np.empty((self.k, self.n))
        self._each_block(lambda rows, sums: np.copyto(T[:, rows], sums.forward(V)))
        return T

    def back(self, R: Vector) -> Vector:
        """Return R K(X, C) (k, m) for rows X and inducing points C, given R (k, n)."""
        return self._total(lambda rows, sums: sums.back(R[:, rows]))

    def forward_back(self, V: Vector) -> Vector:
        """Return the sum of H_i V K(C, x_i) K(x_i, C) over all rows x_i, an array (k, m), given V (k, m).

        C are the m inducing points, and k is the number of outputs. H_i (k, k) is the matrix that :meth:`set_weights`
        has set for row x_i.
        """
        return self._total(lambda rows, sums: sums.forward_back(V))

    def _total(self, product: Callable[[slice, Sums], Vector]) -> Vector:
        out = np.zeros((self.k, self.m))
        self._each_block(lambda rows, sums: np.add(out, product(rows, sums), out=out))
        return out

    def _each_block(self, one: Callable[[slice, Sums], object]) -> None:
        """Call ``one(rows, sums)`` for each block of the rows X, and add 1 to the attribute ``passes``. ``rows`` is the
        slice of the block's rows. ``sums`` is the Sums object that computes products for these rows."""
        self.passes += 1
        for rows, sums in self._blocks:
            one(rows, sums)
        if self.way == "streamed":
            with self._streamed.passing() as blocks:
                for rows, laid in blocks:
                    sums = self._sums(laid)
                    self._weigh(sums, rows)
                    one(rows, sums)

    def describe(self) -> str:
        """Return a text with the storage format of the rows X and the attributes ``way`` and ``reason``. They say where
        X and K are stored, and whether K is computed again in each product over all rows X."""
        return f"{self._plan.kind}, {self.way}; {self.reason}"
