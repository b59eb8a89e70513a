"""K(X, C) of rows X in the host's memory, of any number, and m centres C, as products that are summed at once.

    rows      X is on the device, K(X, C) is made in every pass
    kept      K(X, C) is on the device, and X no longer
    streamed  X passes through the device in every pass, some rows at a time (gram/passing.py)

What fits and costs least is chosen: a value of K costs a row's cells, the function and its use to make, and a share of
the profile's ``cache_cost`` to read.
X may be memory-mapped. Results do not depend on which it is but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.errors import rows_of
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.passing import Streamed
from clsvm.gram.products import Gram
from clsvm.gram.sums import Sums, usual
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
SHARE = 0.7  # of what is left of the budget at most: for rows or for K (what passes need beside is small)
# Of a pass, measured on a CPU: what a value of K costs that is made and used at once in the vector shape, in dense
# cells, beside its row's; what reading one costs, over the profile's cost, which is of rows here and there.
USED, IN_ORDER = 20.0, 0.7
PROBE = 4096  # rows that say what a value of K costs
CENTERS = "the centers (center_selection)"  # what errors call them
SOME = 64 << 20  # bytes of values that the host is given at a time


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
            self._blocks.append((slice(0, self.n), self._sums(Gram(stream, made, self._kernel))))
        for rows in passing.slices if self.way == "kept" else ():
            gram = Gram(stream, passing.laid(stream, rows), self._kernel)
            sums = self._sums(gram)
            self._blocks.append((rows, sums))
            sums.make()
            stream.finish()
            stream.free(*gram.buffers())

    def _sums(self, gram: Gram) -> Sums:
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

        def one(rows: slice, sums: Sums) -> None:
            T[:, rows] = sums.forward(V)

        self._over(one)
        return T

    def back(self, R: Vector) -> Vector:
        """Return K(X, C)' R: (k, m) of R (k, n)."""
        return self._total(lambda rows, sums: sums.back(R[:, rows]))

    def forward_back(self, V: Vector) -> Vector:
        """Return K(X, C)' H K(X, C) V: (k, m) of V (k, m)."""
        return self._total(lambda rows, sums: sums.forward_back(V), weighed=True)

    def _total(self, product: Callable[[slice, Sums], Vector], weighed: bool = False) -> Vector:
        out = np.zeros((self.k, self.m))

        def one(rows: slice, sums: Sums) -> None:
            out[:] += product(rows, sums)

        self._over(one, weighed)
        return out

    def _over(self, one: Callable[[slice, Sums], None], weighed: bool = False) -> None:
        """Call ``one`` with each block of rows in turn."""
        self.passes += 1
        for rows, sums in self._blocks:
            one(rows, sums)
        if self.way != "streamed":
            return
        w, shares = self._weights
        with self._streamed.passing() as blocks:
            for rows, laid in blocks:
                with self._stream.scratch():
                    sums = self._sums(Gram(self._stream, laid, self._kernel))
                    if weighed:
                        sums.weigh(*_of(rows, w, shares))
                    one(rows, sums)

    def describe(self) -> str:
        """Say where K is, and why."""
        return f"{self._plan.kind}, {self.way}; {self.reason}"


def _of(rows: slice, *given: Vector | None) -> tuple[Vector | None, ...]:
    return tuple(None if one is None else one[..., rows] for one in given)
