"""A working set of rows from several shards: the choice among their candidates, and the dual over it on one device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Tile
from clsvm.kernels import Kernel
from clsvm.opencl.launch import local
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem
from clsvm.solvers import certificate, programs
from clsvm.solvers.decomposition import VECTOR_STATE
from clsvm.solvers.programs import Limits

Vector = NDArray[np.float64]
WHOLE = 16  # a working set is whole vectors of this many
SHARE = 0.5  # of the memory, for rows and tile of a working set


def chosen(
    problem: Problem, rows: NDArray[np.intp], f: Vector, b: Vector, least: Vector, most: Vector, quota: int
) -> NDArray[np.intp]:
    """Return the places in ``rows`` (c,), with their f and b, of the rows that violate their optimum most.

    quota: rows of each side where a sum is held, else in all. least, most (groups,): the extremes of all rows.
    """
    lo, hi, kink = problem.lo[0, rows], problem.hi[0, rows], problem.kink
    right, left = certificate.sides(f, b, kink)
    up, low = b < hi, b > lo
    if problem.constraint is Constraint.NONE:
        worst = np.maximum(np.where(up, -right, 0), np.where(low, left, 0))
        return _first(worst, np.ones(len(rows), bool), rows, quota)
    group = (lo < 0).astype(int) if problem.groups == 2 else np.zeros(len(rows), int)
    rise = np.where(up, most[group] - right, -1.0)
    fall = np.where(low, left - least[group], -1.0)
    falls = fall > rise
    sides = [_first(v, side, rows, quota) for v, side in ((rise, ~falls), (fall, falls))]
    return np.concatenate(sides)


def _first(violation: Vector, among: NDArray[np.bool_], rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return the places with the largest violations above 0; of equal ones the first row comes first."""
    places = np.flatnonzero(among & (violation > 0))
    return places[np.lexsort((rows[places], -violation[places]))[:most]]


class WorkingSet:
    """The dual over W rows at a time, which come from the host.

    most: the largest W, less where memory holds no such set; row: bytes of one; plan: of rows as they come.
    """

    def __init__(
        self,
        stream: Stream,
        kernel: Kernel,
        plan: Plan,
        dtype: str,
        constraint: Constraint,
        kink: float,
        most: int,
        row: int,
    ) -> None:
        self.stream, self._kernel, self._plan, self.dtype = stream, kernel, plan, dtype
        self._constraint, self._real = constraint, np.dtype(dtype).itemsize
        self.W = self._size(most, row)
        self._kink, self._counters = stream.wide(np.array([kink])), stream.zeros(8 * 4)
        self._mirror = stream.variant(programs.carry(stream.profile, dtype), "mirror")
        self._Q = stream.buffer(self._real * self.W**2)  # (new memory takes longer to touch than to fill)

    def _size(self, W: int, row: int) -> int:
        stream = self.stream
        unit = max(WHOLE, *(one.width(stream.profile, self.dtype, "many") for one in LAYOUTS.values()))
        W = max(1, W // unit) * unit
        room = min(SHARE * (stream.limit - stream.held), stream.largest)
        most = stream.local_memory // VECTOR_STATE if stream.profile.shape == "vector" else W
        while W > WHOLE and (W * (W * self._real + 3 * row) > room or most < W):
            W = max(WHOLE, W // 2 // WHOLE * WHOLE)
        return W

    def solve(
        self, X: Data, f: Vector, b: Vector, lo: Vector, hi: Vector, tol: float, max_iter: int
    ) -> tuple[Vector, int]:
        """Return b and the SMO iterations so far for rows X (w, d), w <= W, with their f, b and bounds (w,)."""
        with self.stream.recycling(), self.stream.scratch():
            return self._solve(X, (f, b, lo, hi), Limits.of(tol, max_iter, self.W))

    def _solve(self, X: Data, numbers: tuple[Vector, ...], limits: Limits) -> tuple[Vector, int]:
        stream, w = self.stream, X.shape[0]
        rows = layouts.build(stream, X, layouts.once(self._plan, X), self.dtype)
        gram = Gram(stream, rows, self._kernel)
        panel = gram.panel(self.W, square=True)
        W = self.W
        at = np.full(W, -1, np.int32)
        at[:w] = rows.position
        here = np.where(at >= 0, np.arange(W), -1).astype(np.int32)
        places, count, ws = stream.upload(at), stream.upload(np.array([W], np.int32)), stream.upload(here)
        Q, delta = self._Q, stream.zeros(8 * W)
        gram.gather(panel, places, count)
        gram.tile(panel, Tile(places, count, Q, half=True))
        self._mirror(*programs.squares(stream.profile, W, W), W, 0, Q)
        f, b, lo, hi = (stream.wide(np.concatenate([values, np.zeros(W - w)])) for values in numbers)
        state = f, b, lo, hi, self._kink, delta, self._counters
        items = programs.subproblem_items(stream.profile, W)
        memory = local(VECTOR_STATE * W if items == 1 else 8)
        kernel = stream.variant(programs.subproblem(stream.profile, self.dtype, W, self._constraint))
        kernel((items,), (items,), W, W, ws, Q, state, limits, memory)
        steps = int(stream.read(self._counters, np.int64, 4)[0])
        return stream.read_wide(b, W)[:w], steps
