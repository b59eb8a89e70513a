"""K between two sets of rows: its values (:func:`kernel_matrix`), and products that are summed at once.

:class:`Cross` is K(X, C) of rows X in the host's memory, of any number, and m centres C:

    rows      X is on the device, K(X, C) is made in every pass
    kept      K(X, C) is on the device, and X no longer
    streamed  X passes through the device in every pass, some rows at a time (gram/blocks.py)

What fits and costs least is chosen: a value of K costs a row's cells, the function and its use to make, and a share of
the profile's ``cache_cost`` to read.
X may be memory-mapped. Results do not depend on which it is but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays
from sklearn.utils import check_array

from clsvm import arrays, kernels
from clsvm.arrays import Data
from clsvm.errors import naming, rows_of
from clsvm.gram import layouts
from clsvm.gram.blocks import Streamed
from clsvm.gram.exact import COPIES
from clsvm.gram.layouts.record import Plan, Rows
from clsvm.gram.precision import measures, outside, refuse
from clsvm.gram.products import Gram
from clsvm.gram.responses import CHUNK, PANEL, whole_tiles
from clsvm.gram.sums import Sums, usual
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
_DTYPES = [np.float64, np.float32]
SHARE = 0.7  # of what is left of the budget at most: for rows or for K (what passes need beside is small)
# Of a pass, measured on a CPU: what a value of K costs that is made and used at once in the vector shape, in dense
# cells, beside its row's; what reading one costs, over the profile's cost, which is of rows here and there.
USED, IN_ORDER = 20.0, 0.7
PROBE = 4096  # rows that say what a value of K costs
TIMED = 8192  # rows that say how fast a device is
CENTERS = "the centers (center_selection)"  # what errors call them
SOME = 64 << 20  # bytes of values that the host is given at a time


def _checked(X: Any, name: str) -> Any:
    """Return rows as scikit-learn checks them, with their own name in errors."""
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
    """Compute K(X, Y) (n, m) in ``dtype`` on a device: X (n, d), Y (m, d), dense or sparse; Y=None is X.

    kernel: a Kernel, or a built-in's name with ``params``. memory_limit: of the device; the result is the host's. Where
    an inner value leaves the range of float32, values are computed in float64 and rounded; in float64 the host computes
    them where the device has no double precision.
    Raises ValueError or TypeError for bad input, DeviceError and BuildError where the machine fails.
    """
    if isinstance(kernel, Kernel) and params:
        raise TypeError(f"parameters {', '.join(params)} go with a kernel's name, got {kernel!r}")
    kernel = kernel if isinstance(kernel, Kernel) else kernels.make(kernel, **params)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    if words := kernel.beyond(dtype):
        raise ValueError(f"{words} for {dtype}")
    X, Y = _checked(X, "X"), None if Y is None else _checked(Y, "Y")
    X, Y = check_pairwise_arrays(X, Y, accept_sparse="csr", dtype=_DTYPES, ensure_all_finite=False)
    X, Y = arrays.canonical(X), arrays.canonical(Y)
    if sp.issparse(X) and sp.issparse(Y) and kernel.of_entries and arrays.by_far_empty(X):
        known = arrays.columns(X, Y)
        X, Y = arrays.numbered(X, known), arrays.numbered(Y, known)
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
            dtype = "float64"  # the result keeps its own
        if dtype == "float64":
            refuse(kernel, of_x, of_y, X.shape[1])
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
    """Put K(X, Y) into ``out`` by the device, some rows and some working vectors at a time."""
    itemsize, budget = np.dtype(dtype).itemsize, (stream.limit - stream.held) // 4
    step = whole_tiles(min(CHUNK, budget) // layouts.row_bytes(plan, X, itemsize))
    row = layouts.row_bytes(plan, Y, itemsize) + min(step, X.shape[0]) * itemsize
    capacity = min(whole_tiles(Y.shape[0]), whole_tiles(min(PANEL, budget) // row))
    for start in range(0, X.shape[0], step):
        rows = layouts.build(stream, X[start : start + step], plan, dtype, range(start, X.shape[0]))
        gram = Gram(stream, rows, kernel)
        for begin in range(0, Y.shape[0], capacity):
            with rows_of("Y"):
                right = layouts.build(stream, Y[begin : begin + capacity], plan, dtype, range(begin, Y.shape[0]))
            source = Gram(stream, right, kernel)
            panel = source.of_all(capacity)
            out[start : start + rows.n, begin : begin + right.n] = gram.values(panel, right.n)
            stream.free(*panel.buffers(), *source.buffers())
        stream.free(*gram.buffers())


class Cross:
    """K(X, C) in ``dtype`` for ``k`` outputs. X (n, d), centres (m, d), dense or CSR.

    way: one of the three above. reason: why. passes: how often K was made or read. cost: of a value in a pass, in
    dense cells. keep: whether K may be kept. Raises ValueError where memory_limit is too small.
    """

    def __init__(
        self,
        stream: Stream,
        X: Data,
        centres: Data,
        kernel: Kernel,
        plan: Plan,
        dtype: str,
        k: int,
        keep: bool = True,
    ) -> None:
        self._stream, self._X, self._kernel, self._plan, self.dtype, self.k = stream, X, kernel, plan, dtype, k
        self.n, self.m = X.shape[0], centres.shape[0]
        self.passes = 0
        with rows_of(CENTERS):
            laid = layouts.build(stream, centres, layouts.once(plan, centres), dtype)
        source = Gram(stream, laid, kernel)
        self._panel = source.of_all(square=True)
        if not self._panel.rows_stay:
            stream.free(*source.buffers())
        self._blocks: list[tuple[slice, Sums]] = []
        self._weights: tuple[Vector | None, Vector | None] = (None, None)
        self._lay_out(keep)

    def _lay_out(self, keep: bool) -> None:
        """Choose the way and, but of rows that are streamed, do what is done once."""
        stream, itemsize = self._stream, np.dtype(self.dtype).itemsize
        left, row = stream.limit - stream.held, layouts.row_bytes(self._plan, self._X, itemsize)
        values, beside = self._panel.capacity * itemsize, 8 * (4 * self.k + 1)  # bytes of a row of K, and of its sums
        self._tile = min(usual(stream, values), left // 8)
        self._streamed = passing = Streamed(stream, self._X, self._plan, self.dtype, beside)
        with stream.scratch():
            cells = passing.laid(stream, slice(0, min(passing.step, PROBE))).cost
        self.cost = cells + USED * (stream.profile.shape == "vector")
        reading = IN_ORDER * stream.profile.cache_cost
        words = f"making a value of K costs as much as {self.cost:.0f} dense cells, reading it {reading:.0f}"
        kept, held = self.n * (values + beside) + passing.step * row, self.n * (row + beside)
        if keep and self.cost > reading and kept <= SHARE * left:
            self.way, self.reason = "kept", f"{words}: K is kept, {self.n * values / 1e6:.0f} MB"
            self.cost = reading
        else:
            if not keep:
                words = "few passes are to come"
            elif self.cost > reading:
                words += f", and memory does not hold {self.n * values / 1e6:.0f} MB of it"
            self.way = "rows" if held <= SHARE * left else "streamed"
            by = f"; rows pass through the device, {passing.step} at a time" if self.way == "streamed" else ""
            self.reason = f"{words}: K is made in every pass{by}"
        if self.way == "rows":
            made = layouts.build(stream, self._X, self._plan, self.dtype)
            self._blocks.append((slice(0, self.n), self._sums(made)))
        for rows in passing.slices if self.way == "kept" else ():
            sums = self._sums(passing.laid(stream, rows))
            self._blocks.append((rows, sums))
            sums.make()
            stream.finish()
            stream.free(*sums.gram.buffers())

    def _sums(self, rows: Rows) -> Sums:
        gram = Gram(self._stream, rows, self._kernel)
        return Sums(gram, self._panel, self.m, self.k, self._tile, keep=self.way == "kept")

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return K (s, m) of some rows, on the host."""
        real, some = np.dtype(self.dtype), min(SOME, self._tile) // (self._panel.capacity * 8)
        step = max(1, min(self._streamed.step, some))
        K = np.empty((len(rows), self.m), real)
        for first in range(0, len(rows), step):
            with self._stream.scratch():
                X = self._X[rows[first : first + step]]
                plan = layouts.once(self._plan, X)
                gram = Gram(self._stream, layouts.build(self._stream, X, plan, self.dtype), self._kernel)
                K[first : first + step] = gram.values(self._panel, self.m)
        return K

    def weigh(self, w: Vector | None = None, shares: Vector | None = None) -> None:
        """Set H of :meth:`forward_back`, as :meth:`Sums.weigh` does."""
        self._weights = w, shares
        for rows, sums in self._blocks:
            sums.weigh(*_of(rows, w, shares))

    def forward(self, V: Vector) -> Vector:
        """Return T = K(X, C) V: (k, n) of V (k, m)."""
        T = np.empty((self.k, self.n))
        self._over(lambda rows, sums: np.copyto(T[:, rows], sums.forward(V)))
        return T

    def back(self, R: Vector) -> Vector:
        """Return K(X, C)' R: (k, m) of R (k, n)."""
        return self._total(lambda rows, sums: sums.back(R[:, rows]))

    def forward_back(self, V: Vector) -> Vector:
        """Return K(X, C)' H K(X, C) V: (k, m) of V (k, m)."""
        return self._total(lambda rows, sums: sums.forward_back(V), weighed=True)

    def _total(self, product: Callable[[slice, Sums], Vector], weighed: bool = False) -> Vector:
        out = np.zeros((self.k, self.m))
        self._over(lambda rows, sums: np.add(out, product(rows, sums), out=out), weighed)
        return out

    def _over(self, one: Callable[[slice, Sums], object], weighed: bool = False) -> None:
        """Call ``one`` with each block of rows in turn."""
        self.passes += 1
        for rows, sums in self._blocks:
            one(rows, sums)
        if self.way != "streamed":
            return
        w, shares = self._weights
        with self._streamed.passing() as blocks:
            for rows, laid in blocks:
                sums = self._sums(laid)
                if weighed:
                    sums.weigh(*_of(rows, w, shares))
                one(rows, sums)

    def describe(self) -> str:
        """Say where K is, and why."""
        return f"{self._plan.kind}, {self.way}; {self.reason}"


def _of(rows: slice, *given: Vector | None) -> tuple[Vector | None, ...]:
    return tuple(None if one is None else one[..., rows] for one in given)


def pass_seconds(stream: Stream, X: Data, centres: Data, kernel: Kernel, plan: Plan, dtype: str, k: int = 1) -> float:
    """Return the seconds of a second pass over the first rows of X (n, d)."""
    with stream.scratch():
        cross = Cross(stream, X[:TIMED], centres, kernel, plan, dtype, k, keep=False)
        V = np.zeros((k, cross.m))
        cross.forward_back(V)
        began = perf_counter()
        cross.forward_back(V)
        return perf_counter() - began
