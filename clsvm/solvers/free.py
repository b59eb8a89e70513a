"""All free coefficients to their minimum at once, by a Cholesky factor of K among them; and when that pays.

Solves:   minimise over d: 1/2 d'Md + g'd,  bottom <= b + d <= top,  the sum of d in each group 0;  M = K_FF + ridge I
Given:    K among the free coefficients F, their derivatives g, and the bounds of the face on which the dual is smooth
Returns:  b, f at a lower dual, or as they were
Source:   Hintermueller, Ito, Kunisch 2002 (a primal-dual active set strategy is a semismooth Newton method), with a
          step along the way to what it finds; Scheinberg 2006 for active sets of SVMs

    H <- none
    until nothing leaves its bounds:
        d <- the minimum over F, sums unchanged, those of H at their bounds         Schur complement of U'U = M
        H <- H and what d takes beyond its bounds, each at that bound
    b, f <- b + t d, f + t K d, 0 < t <= 1 the best on that way

Pair steps find out soon which coefficients stand at a bound, and take long over the rest, which one such step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.gram.products import Tile
from clsvm.opencl.stream import Buffer
from clsvm.problem import Problem
from clsvm.solvers import certificate
from clsvm.solvers.state import State
from clsvm.threads import one_thread

Vector = NDArray[np.float64]
Matrix = NDArray[Any]  # in the dtype of K
Rows = NDArray[np.intp]
FromCache = Callable[[NDArray[np.int32], Buffer, int, int, Buffer], bool]
MOST, LEAST = 4096, 32  # free coefficients
MARGIN = 256  # panels are whole multiples, so that few sizes are made
ROUNDS = 10  # of what leaves its bounds
SHORT = 0.5  # of the way to what is found: a step that ends before is not made, since its bounds are the wrong ones
RIDGE = 10.0  # in units of the rounding of K, times the root of the coefficients
COPIES = 3  # of K among the free coefficients on the host, its factor among them, beside the device's
KEPT = 0.25  # share of a factor's coefficients that may have come or gone before it is made anew
STEADIER, TRIES = 30.0, 5  # by how much more the ridge is where K rounded is indefinite, and how often
LOW, LATE = 0.5, 4  # share of the first violation that is low; times all rows that were computed, after which any is
LOOKS, MORE = 4, 2  # at a low violation, before such a step, and between two
DOUBT = 4.0  # by how much dearer the next one is where one came to nothing
SPARED = 4.0  # prices of such a step that working sets have to go on for, to make the first one
SMALL = 8  # outer steps' launches and waits that the small parts of such a step take
SOLVES = 50  # right sides of such a step with a factor that is there


class Factor:
    """U'U = K among ``rows`` + ridge I, upper, in the dtype of K: a triangle, and further columns as they came, each
    set of them its part beside the rows before and its own triangle."""

    def __init__(self, rows: Rows, scale: float) -> None:
        """scale: the rounding error of K in units of eps."""
        self.rows, self._scale, self.ridge = rows, scale, 0.0
        self.U: Matrix = np.zeros((0, 0), order="F")
        self._further: list[tuple[Matrix, Matrix]] = []

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return self.U.nbytes + sum(side.nbytes + corner.nbytes for side, corner in self._further)

    def make(self, K: Matrix) -> bool:
        """The factor of K (m, m), of which the lower triangle is there; False where it is not positive definite."""
        potrf, _ = _routines(K.dtype)
        size = max(self._scale, float(K.diagonal().mean()))
        self.ridge = RIDGE * float(np.finfo(K.dtype).eps) * size * float(np.sqrt(len(K)))
        for _ in range(TRIES):
            M = np.array(K.T, order="F")
            M[np.diag_indices(len(M))] += self.ridge
            self.U, failed = potrf(M, lower=0, clean=0, overwrite_a=1)
            if not failed:
                return True
            self.ridge *= STEADIER
        return False

    def extend(self, rows: Rows, beside: Matrix, among: Matrix) -> bool:
        """The same with further rows, by K beside them (m, k) and among them (k, k), lower triangle."""
        k, (potrf, _) = len(among), _routines(self.U.dtype)
        side = self.forward(np.asfortranarray(beside))
        M = np.tril(among) + np.tril(among, -1).T
        M[np.diag_indices(k)] += self.ridge
        corner, failed = potrf(np.asfortranarray(M - side.T @ side), lower=0, clean=1)
        if failed:
            return False
        self._further.append((side, corner))
        self.rows = np.concatenate([self.rows, rows])
        return True

    def forward(self, R: Matrix) -> Matrix:
        """U'^-1 R."""
        _, trsm = _routines(self.U.dtype)
        out = np.empty(R.shape, self.U.dtype, order="F")
        m = len(self.U)
        out[:m] = trsm(1.0, self.U, R[:m], lower=0, trans_a=1)
        for side, corner in self._further:
            new = slice(m, m + len(corner))
            out[new] = trsm(1.0, corner, R[new] - side.T @ out[:m], lower=0, trans_a=1)
            m = new.stop
        return out

    def back(self, w: Matrix) -> Vector:
        """U^-1 w, of one vector."""
        _, trsm = _routines(self.U.dtype)
        left, found = w[:, None].copy(), []
        for side, corner in reversed(self._further):
            found.append(trsm(1.0, corner, left[len(side) :], lower=0))
            left = left[: len(side)] - side @ found[-1]
        found.append(trsm(1.0, self.U, left, lower=0))
        return np.concatenate(found[::-1])[:, 0].astype(np.float64)


def _routines(dtype: Any) -> tuple[Any, Any]:
    """LAPACK's potrf and the BLAS's trsm for numbers of a dtype."""
    double = dtype == np.float64
    return (lapack.dpotrf, blas.dtrsm) if double else (lapack.spotrf, blas.strsm)


def minimum(
    factor: Factor, g: Vector, bottom: Vector, top: Vector, group: Rows, groups: int, gone: Rows
) -> Vector | None:
    """d (m,), see module: g, bottom, top (m,) of the factor's rows, these bounds less b; group (m,) of ``groups`` sums,
    none where nothing is held. gone: those that are not free any more, of which d is 0."""
    m, dtype = len(g), factor.U.dtype
    sums = np.arange(groups)[:, None] == group
    sums = sums[sums.any(axis=1)]
    held, at = np.zeros(m, bool), np.zeros(m)
    held[gone] = True
    down = factor.forward(np.array(g[:, None], dtype, order="F"))[:, 0]
    W = factor.forward(np.array(sums.T, dtype, order="F"))
    order, d = np.zeros(0, np.intp), np.zeros(m)  # what is held, as W has it
    for _ in range(ROUNDS):
        new = np.setdiff1d(np.flatnonzero(held), order)
        unit = np.zeros((m, len(new)), dtype, order="F")
        unit[new, np.arange(len(new))] = 1
        W, order = np.hstack([W, factor.forward(unit)]), np.concatenate([order, new])
        forces = np.zeros(W.shape[1])
        if len(forces):
            S, failed = lapack.dpotrf((W.T @ W).astype(np.float64), lower=0)
            if failed:
                return None
            wanted = np.concatenate([np.zeros(len(sums)), at[order]])
            forces, _ = lapack.dpotrs(S, -(W.T @ down) - wanted, lower=0)
        d = -factor.back(down + W @ forces.astype(dtype))
        d[held] = at[held]
        out = ~held & ((d < bottom) | (d > top))
        if not out.any():
            break
        held |= out
        at[out] = np.where(d[out] < bottom[out], bottom[out], top[out])
    return _kept(np.clip(d, bottom, top), sums, bottom, top, held) if np.isfinite(d).all() else None


def _kept(d: Vector, sums: NDArray[np.bool_], bottom: Vector, top: Vector, held: NDArray[np.bool_]) -> Vector | None:
    """d with what rounding left of its sums taken from those that are not held; None where they cannot take it."""
    for one in sums:
        for _ in range(ROUNDS):
            excess = d[one].sum()
            free = one & ~held & (d > bottom) & (d < top)
            if abs(excess) <= certificate.EPS * np.abs(d[one]).sum() or not free.any():
                break
            d[free] = np.clip(d[free] - excess / free.sum(), bottom[free], top[free])
        if abs(d[one].sum()) > certificate.SLACK * certificate.EPS * np.abs(d[one]).sum():
            return None
    return d


class Pace:
    """Whether a step over all free coefficients pays, from what working sets have cost and come to so far.

    At first the violation goes up and down while the support vectors are found, and then falls fast. Only where it
    falls slowly once it is well below that of the beginning, such steps are worth a thought.
    """

    def __init__(self) -> None:
        self._log: list[tuple[float, float]] = []  # cost so far, the logarithm of the least violation, since it is low
        self._first = 0.0  # violation
        self._made, self._doubt = False, 1.0  # whether there was one; how much dearer the next one is

    def pays(self, cost: float, violation: float, tol: float, price: float, late: bool) -> bool:
        """After working sets of ``cost`` in all, at a ``violation``: would going on as in the second half of the looks
        since the violation is low cost more than some such steps at ``price``? late: whether it is to be low anyway."""
        self._first = self._first or violation
        if not self._log and violation > LOW * self._first and not late:
            return False
        least = min(np.log(max(violation, tol)), self._log[-1][1] if self._log else np.inf)
        self._log.append((cost, least))
        if len(self._log) <= (MORE if self._made else LOOKS):
            return False
        half, before = self._log[-1 - len(self._log) // 2]
        many = self._doubt * (1 if self._made else SPARED)
        return bool((least - np.log(tol)) * (cost - half) > many * price * (before - least))

    def made(self, well: bool) -> None:
        """Such a step was made, ``well`` if it lowered the dual: what was before says nothing of what follows."""
        self._log.clear()
        self._made, self._first = True, np.inf
        self._doubt *= 1.0 if well else DOUBT


class Leap:
    """Steps over all free coefficients of the one problem of a ``state``, which is solved by working sets of W rows.

    value: the cost of a value of K that adds to f, in dense cells. from_cache: makes K among some rows, at their
    places, of what the row cache has, and says whether it did (Solver._tile_there). The factor is kept from one step to
    the next, and its bytes are the stream's, until :meth:`end`.
    """

    def __init__(self, state: State, W: int, kernel_scale: float, value: float, from_cache: FromCache) -> None:
        self._state, self._stream, self._gram, self._W = state, state.stream, state.gram, W
        self._scale, self._value, self._from_cache = kernel_scale, value, from_cache
        self._dtype = np.dtype(state.gram.rows.dtype)
        self._factor: Factor | None = None
        self._kept = 0  # bytes of it
        self._pace = Pace()

    def due(self, free: int, violation: float, tol: float, rows: int, steps: int, outer: int, tile_cost: float) -> bool:
        """Whether to step now, with so many ``free`` coefficients, after ``outer`` working sets, ``steps`` of pairs,
        and so many ``rows`` of K computed. tile_cost: of a value among working vectors, as it is made now."""
        profile, n, W = self._stream.profile, self._state.n, self._W
        width = max(tile_cost, 1.0)
        a_set = profile.step_cost + profile.look_cost * n + W * W / 2 * width
        cost = rows * n * self._value + outer * a_set + steps * (profile.inner_step + profile.inner_cost * W)
        kept = self._factor is not None and abs(len(self._factor.rows) - free) <= KEPT / 2 * free
        work = SOLVES * free**2 if kept else free**3 / 6
        price = profile.factor_cost * work + (0 if kept else free * free / 2 * width) + n * free * self._value + a_set
        price += SMALL * profile.step_cost
        pays = self._pace.pays(cost, violation, tol, price, rows > LATE * n)
        return pays and LEAST <= free <= MOST and self._fits(free)

    def _fits(self, rows: int) -> bool:
        """Whether memory holds K among so many rows, on the device, and its factor and copies on the host."""
        stream, panel = self._stream, self._gram.panel_bytes(rows + MARGIN)
        tile = self._dtype.itemsize * (rows + MARGIN) ** 2
        return max(tile, panel) <= stream.largest and panel + COPIES * tile <= stream.limit - stream.held

    def find(self) -> Vector | None:
        """What to add to b (1, n), all the way to the minimum; None where there is no way, or no memory for it."""
        try:
            change = self._found(*self._state.now())
        except (MemoryLimitError, DeviceError):
            change = None
        if change is None:
            self._pace.made(False)
        return change

    def _found(self, problem: Problem, b: Vector, f: Vector) -> Vector | None:
        seen = certificate.of(problem, b, f)
        factor = self._factored(np.flatnonzero(seen.inside))
        if factor is None:
            return None
        rows = factor.rows
        gone = np.flatnonzero(~seen.inside[rows])
        g, x, kink = np.where(seen.inside, seen.right, 0)[rows], b[0, rows], problem.kink > 0
        lowest = np.where(kink & (x > 0), 0.0, problem.lo[0, rows])
        highest = np.where(kink & (x < 0), 0.0, problem.hi[0, rows])
        with one_thread():
            d = minimum(factor, g, lowest - x, highest - x, seen.group[rows], len(problem.totals), gone)
        if d is None:
            return None
        after = np.where(d <= lowest - x, lowest, np.where(d >= highest - x, highest, x + d))
        after[gone] = x[gone]
        change = np.zeros_like(b)
        change[0, rows] = after - x
        return change

    def go(self, change: Vector, respond: Callable[[Vector], None]) -> bool:
        """Add ``change`` to b, or the part of it with which the dual is least; whether that lowers it. respond: adds K
        times some coefficients (1, n) to f."""
        state, stream = self._state, self._stream
        problem, b, f = state.now()
        after = stream.held_wide(b + change)
        respond(after - b)
        ahead = state.now()[2]
        slope = float((f * (after - b)).sum()) + problem.kink * float(np.abs(after).sum() - np.abs(b).sum())
        curve = float(((ahead - f) * (after - b)).sum())
        t = 1.0 if curve <= -slope else -slope / curve
        well = slope < 0 and t >= SHORT and bool(np.isfinite(ahead).all())
        if not well:
            after, ahead = b, f
        elif t < 1:
            after, ahead = b + t * (after - b), f + t * (ahead - f)
        if not well or t < 1:
            stream.write_wide(state.f, state.padded(ahead))
        stream.write_wide(state.b, state.padded(after))
        self._pace.made(well)
        return well

    def end(self) -> None:
        """Give back what is kept."""
        self._stream.reserve(-self._kept)
        self._factor, self._kept = None, 0

    def _factored(self, free: Rows) -> Factor | None:
        """A factor with the rows ``free``: the last one, where few came or went, else a new one. None where K among
        them is not positive definite, or memory does not hold it."""
        last = self._factor
        if last is not None:
            m, new = len(last.rows), np.setdiff1d(free, last.rows)
            gone = m + len(new) - len(free)
            if len(new) + gone <= KEPT * len(free) and self._fits(m + len(new)):
                if not len(new):
                    return last
                with self._tile(np.concatenate([last.rows, new]), m) as (beside, among), one_thread():
                    extended = last.extend(new, beside, among)
                if extended:
                    return self._keep(last)
        self.end()
        made = Factor(free, self._scale)
        with self._tile(free) as (_, K), one_thread():
            well = made.make(K)
        return self._keep(made) if well else None

    def _keep(self, factor: Factor) -> Factor:
        """The factor, which is kept for the next step. Raises ValueError where memory does not hold it."""
        self.end()
        self._stream.reserve(factor.nbytes)
        self._factor, self._kept = factor, factor.nbytes
        return factor

    @contextmanager
    def _tile(self, rows: Rows, known: int = 0) -> Iterator[tuple[Matrix, Matrix]]:
        """K between the first ``known`` of some rows and the others, and among these, lower triangle; inside alone."""
        stream, gram, m = self._stream, self._gram, len(rows)
        panel, made = gram.panel(-(-m // MARGIN) * MARGIN, square=True), []
        try:
            places = np.full(panel.capacity, -1, np.int32)
            places[:m] = gram.rows.position[rows]
            for array in (places, np.array([m], np.int32)):
                made.append(stream.upload(array))
            made.append(stream.buffer(self._dtype.itemsize * panel.capacity**2))
            at, count, out = made
            whole = known - known % max(gram.rows.lanes, gram.width)
            if not self._from_cache(places[:m], at, panel.capacity, whole, out):
                gram.gather(panel, at, count)
                gram.tile(panel, Tile(at, count, out, whole, half=True))
            with stream.mapped(out, self._dtype, (panel.capacity, panel.capacity)) as K:
                stream.peak = max(stream.peak, stream.held + COPIES * K.nbytes)  # (what the host makes of it)
                yield np.concatenate([K[:whole, known:m], K[known:m, whole:known].T]), K[known:m, known:m]
        finally:
            stream.finish()
            stream.free(*made, *panel.buffers())
