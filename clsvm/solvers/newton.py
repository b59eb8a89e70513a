"""Newton steps: all free coefficients to their minimum at once, by a Cholesky factor of K among them.

Solves:   minimise over d: 1/2 d'Md + g'd,  bottom <= d <= top,  the sum of d in each group 0;  M = K_FF + ridge I
Given:    K among the free coefficients F, their derivatives g, and the bounds of the face on which the dual is smooth
Returns:  b, f at a lower dual, or as they were
Source:   Hintermueller, Ito, Kunisch 2002 (a primal-dual active set strategy is a semismooth Newton method), with a
          step along the way to what it finds; Scheinberg 2006 for active sets of SVMs

    U'U  <- M, block by block of columns, as many as memory has room for
    H    <- none
    until nothing leaves its bounds:
        d <- the minimum over F, sums unchanged, those of H at their bounds         Schur complement of U'U = M
        H <- H and what d takes beyond its bounds, each at that bound
    b, f <- b + t d, f + t K d, 0 < t <= 1 the best on that way

SMO iterations find out soon which coefficients stand at a bound, and take long over the rest, which one such step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import blas, lapack

from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.gram.products import Tile
from clsvm.problem import Problem, Vector
from clsvm.solvers import certificate
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.smo import Optimality
from clsvm.solvers.state import State
from clsvm.threads import one_thread

Matrix = NDArray[Any]  # in the dtype of K
Rows = NDArray[np.intp]
KernelBlock = Callable[[Rows, Rows], tuple[Matrix, Matrix]]
ROUNDS = 10  # of what leaves its bounds
RIDGE = 10.0  # in units of the rounding of K, times the root of the coefficients
STEADIER, TRIES = 30.0, 5  # by how much more the ridge is where K rounded is indefinite, and how often
MOST, LEAST = 4096, 32  # free coefficients
MARGIN = 256  # panels and blocks of a factor are whole multiples, so that few sizes are made
SHORT = 0.5  # of the way to what is found: a step that ends before is not made, since its bounds are the wrong ones
BLOCK = 1024  # rows of such a block at most: its squares are in caches
PLACES = 16  # bytes of a row of a panel beside it, some of which stay when it goes
MEANWHILE = 3  # squares of a block on the host, beside it and its columns, while it is made
GROWN = 3  # times what a factor keeps of its inverse, that it takes to have it grow too
KEPT = 0.25  # share of a factor's coefficients that may have come or gone before it is made anew
LOW, LATE = 0.5, 4  # share of the first violation that is low; times all rows that were computed, after which any is
LOOKS, MORE = 4, 2  # at a low violation, before such a step, and between two
DOUBT = 4.0  # by how much dearer the next one is where one came to nothing
SPARED = 4.0  # prices of such a step that working sets have to go on for, to make the first one
SMALL = 8  # outer steps' launches and waits that the small parts of such a step take
SOLVES = 50  # right sides of such a step with a factor that is there


class Columns(NamedTuple):
    """Columns (m, k) of U'^-1, their inner products (k, k), which are rows and columns of M^-1, and where those are
    that were asked for."""

    all: Matrix
    products: Vector
    at: Rows


class Factor:
    """U'U = K among ``rows`` + ridge I, upper, in the dtype of K: blocks of columns, each of them its part beside the
    rows before and its own triangle. Columns of U'^-1 stay once they were asked for, and grow with it."""

    def __init__(self, dtype: DTypeLike, ridge: float, least: float) -> None:
        """ridge: in units of the mean of K's diagonal at first, or of ``least`` where that is more."""
        self.dtype, self.ridge = np.dtype(dtype), 0.0
        self._relative, self._least = ridge, least
        self.rows: Rows = np.zeros(0, np.intp)
        self._blocks: list[tuple[Matrix, Matrix]] = []
        self.forget()

    def forget(self) -> None:
        """Keep no column of U'^-1."""
        self._place = np.full(len(self.rows), -1, np.intp)  # of each row's column among those that are kept
        self._columns = np.zeros((len(self.rows), 0), self.dtype, order="F")
        self._products = np.zeros((0, 0))

    @property
    def kept(self) -> int:
        """The bytes of the columns of U'^-1."""
        return self._columns.nbytes + self._products.nbytes

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks, and of what is kept beside them."""
        return self.kept + sum(side.nbytes + corner.nbytes for side, corner in self._blocks)

    def extend(self, rows: Rows, beside: Matrix, among: Matrix) -> bool:
        """Take k further rows, by K beside them (m, k) and among them (k, k), of which the lower triangle is there.
        Return False where that is not positive definite."""
        if not self._blocks:
            self.ridge = self._relative * max(self._least, float(among.diagonal().mean()))
        potrf, trsm, syrk, _ = _routines(self.dtype)
        M = np.array(among.T, self.dtype, order="F")
        M[np.diag_indices(len(M))] += self.ridge
        side = self.forward(beside)
        if len(side):
            M = syrk(-1.0, side, 1.0, M, trans=1, lower=0, overwrite_c=1)
        corner, failed = potrf(M, lower=0, clean=0, overwrite_a=1)
        if failed:
            return False
        more = trsm(-1.0, corner, side.T @ self._columns, lower=0, trans_a=1)
        grown, products = np.asfortranarray(np.vstack([self._columns, more])), self._products + more.T @ more
        self._blocks.append((side, corner))
        self.rows = np.concatenate([self.rows, rows])
        self._place = np.concatenate([self._place, np.full(len(rows), -1, np.intp)])
        self._columns, self._products = grown, products
        return True

    def forward(self, R: Matrix) -> Matrix:
        """Return U'^-1 R."""
        _, trsm, _, _ = _routines(self.dtype)
        out, m = np.empty(R.shape, self.dtype, order="F"), 0
        for side, corner in self._blocks:
            new = slice(m, m + len(corner))
            out[new] = trsm(1.0, corner, R[new] - side.T @ out[:m] if m else R[new], lower=0, trans_a=1)
            m = new.stop
        return out

    def back(self, w: Matrix) -> Vector:
        """Return U^-1 w, of one vector."""
        _, _, _, trsv = _routines(self.dtype)
        left, found = w, []
        for side, corner in reversed(self._blocks):
            found.append(trsv(corner, left[len(side) :]))
            left = left[: len(side)] - side @ found[-1]
        return np.concatenate(found[::-1]).astype(np.float64)

    def columns(self, at: Rows, room: float) -> Columns | None:
        """Return columns of U'^-1, those ``at`` among them; None where they take more than ``room`` bytes."""
        m, kept, new = len(self.rows), self._columns.shape[1], at[self._place[at] < 0]
        if self._bytes(kept + len(new), len(new)) > room and kept:
            self.forget()
            kept, new = 0, at
        if self._bytes(kept + len(new), len(new)) > room:
            return None
        if len(new):
            unit = np.zeros((m, len(new)), self.dtype, order="F")
            unit[new, np.arange(len(new))] = 1
            made = self.forward(unit)
            across = self._columns.T @ made
            self._products = np.vstack([np.hstack([self._products, across]), np.hstack([across.T, made.T @ made])])
            self._columns = np.asfortranarray(np.hstack([self._columns, made]))
            self._place[new] = kept + np.arange(len(new))
        return Columns(self._columns, self._products, self._place[at])

    def _bytes(self, columns: int, new: int) -> int:
        """Return the bytes of so many columns of U'^-1, ``new`` ones among them, and of what is made meanwhile."""
        return self.dtype.itemsize * len(self.rows) * (3 * columns + 2 * new) + 4 * 8 * columns**2


def _routines(dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return LAPACK's potrf and the BLAS's trsm, syrk and trsv for numbers of a dtype."""
    if dtype == np.float64:
        return lapack.dpotrf, blas.dtrsm, blas.dsyrk, blas.dtrsv
    return lapack.spotrf, blas.strsm, blas.ssyrk, blas.strsv


def ridges(dtype: DTypeLike, rows: int) -> Iterator[float]:
    """Yield larger and larger ridges for a factor of so many rows, in units of the mean of K's diagonal."""
    for k in range(TRIES):
        yield STEADIER**k * RIDGE * float(np.finfo(dtype).eps) * float(np.sqrt(rows))


def steadied(dtype: DTypeLike, ridges: Iterable[float], least: float, grow: Callable[[Factor], bool]) -> Factor | None:
    """Return the first factor, with one of the ``ridges``, that ``grow`` makes whole, since K as it is rounded may be
    indefinite; None where it makes none so. least: as of Factor."""
    return next((one for one in (Factor(dtype, ridge, least) for ridge in ridges) if grow(one)), None)


class Face:
    """The minima of 1/2 d'Md + g'd over the rows of a factor, each sum of d in a group 0, some coefficients held.

    The sums and what is held are rows of a Schur complement of U'U = M. group (m,): of ``groups`` sums, none where
    nothing is held. refined: how often what rounding left of the conditions is taken away.
    """

    def __init__(self, factor: Factor, g: Vector, group: Rows, groups: int, refined: int = 0) -> None:
        self._factor, self._refined = factor, refined
        sums = np.arange(groups)[:, None] == group
        self.sums = sums[sums.any(axis=1)]
        self._down, *sides = factor.forward(np.array(np.vstack([g, self.sums]).T, factor.dtype, order="F")).T
        self._sums = self.sums.astype(np.float64)
        self._sides = np.array(sides, factor.dtype).reshape(len(sides), len(g)).T

    def move(self, g: Vector) -> None:
        """Take another gradient g (m,)."""
        self._down = self._factor.forward(np.array(g[:, None], self._factor.dtype, order="F"))[:, 0]

    def minimum(self, held: NDArray[np.bool_], at: Vector, room: float = np.inf) -> Vector | None:
        """Return d (m,) at the minimum where coefficients that are ``held`` (m,) move by ``at`` (m,); None where there
        is none, or it takes more than ``room`` bytes. A sum that is held whole is no condition."""
        order = np.flatnonzero(held)
        known = self._factor.columns(order, room)
        if known is None:
            return None
        free = (self.sums & ~held).any(axis=1)
        sums, W = (self._sums, self._sides) if free.all() else (self._sums[free], self._sides[:, free])
        taken, dtype, solve = len(sums), self._factor.dtype, None
        forces, pull = np.zeros(taken + len(order)), np.zeros(len(known.products), dtype)
        if len(forces):
            across = (W.T @ known.all)[:, known.at]
            S = np.empty((len(forces), len(forces)))
            S[:taken, :taken], S[:taken, taken:], S[taken:, :taken] = W.T @ W, across, across.T
            S[taken:, taken:] = known.products[np.ix_(known.at, known.at)]
            solve = _solver(S, self._refined > 0)
            if solve is None:
                return None
            forces = solve(-np.concatenate([W.T @ self._down, (known.all.T @ self._down)[known.at] + at[order]]))
        for again in range(self._refined + 1):
            pull[known.at] = forces[taken:]
            d = -self._factor.back(self._down + W @ forces[:taken].astype(dtype) + known.all @ pull)
            if again == self._refined or solve is None:
                break
            off = np.concatenate([sums @ d, d[order] - at[order]])
            if np.abs(off).max() <= certificate.EPS * np.abs(d).max():
                break
            forces += solve(off)
        d[held] = at[held]
        return d


def _solver(S: Vector, singular: bool) -> Callable[[Vector], Vector] | None:
    """Return what solves systems with S, by its pseudoinverse where rounding left it indefinite and it may be
    ``singular``, else None."""
    U, failed = lapack.dpotrf(S, lower=0)
    if not failed:
        return lambda right: np.asarray(lapack.dpotrs(U, right, lower=0)[0])
    if not singular:
        return None
    scale = 1 / np.sqrt(S.diagonal())
    inverse = np.linalg.pinv(S * scale * scale[:, None], hermitian=True) * scale * scale[:, None]
    return lambda right: np.asarray(inverse @ right)


def minimum(
    factor: Factor, g: Vector, bottom: Vector, top: Vector, group: Rows, groups: int, gone: Rows, room: float = np.inf
) -> Vector | None:
    """Return d (m,), see module: g, bottom, top (m,) of the factor's rows, these bounds less b; group (m,) of
    ``groups`` sums, none where nothing is held. gone: coefficients that are not free any more, of which d is 0. room:
    bytes that all of it may take. None where there is no such minimum, or it takes more."""
    held, at, face = np.zeros(len(g), bool), np.zeros(len(g)), Face(factor, g, group, groups)
    held[gone] = True
    d = at
    for _ in range(ROUNDS):
        found = face.minimum(held, at, room)
        if found is None:
            return None
        d = found
        out = ~held & ((d < bottom) | (d > top))
        if not out.any():
            break
        held |= out
        at[out] = np.where(d[out] < bottom[out], bottom[out], top[out])
    return _kept(np.clip(d, bottom, top), face.sums, bottom, top, held) if np.isfinite(d).all() else None


def _kept(d: Vector, sums: NDArray[np.bool_], bottom: Vector, top: Vector, held: NDArray[np.bool_]) -> Vector | None:
    """Return d with what rounding left of its sums taken from those that are not held; None where they cannot take
    it."""
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


class CostModel:
    """Whether a Newton step pays, from what working sets have cost and come to so far.

    At first the violation goes up and down while the support vectors are found, and then falls fast. Only where it
    falls slowly once it is well below that of the beginning, such steps are worth a thought.
    """

    def __init__(self) -> None:
        self._log: list[tuple[float, float]] = []  # cost so far, the logarithm of the least violation, since it is low
        self._first = 0.0  # violation
        self._made, self._doubt = False, 1.0  # whether there was one; how much dearer the next one is

    def pays(self, cost: float, violation: float, tol: float, price: float, late: bool) -> bool:
        """Return whether, after working sets of ``cost`` in all, at a ``violation``, going on as in the second half of
        the looks since the violation is low costs more than some such steps at ``price``. late: whether it counts as
        low anyway."""
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
        """Note that such a step was made, ``well`` if it lowered the dual: what was before says nothing of what
        follows."""
        self._log.clear()
        self._made, self._first = True, np.inf
        self._doubt *= 1.0 if well else DOUBT


class Newton:
    """Newton steps over all free coefficients of the one problem of a ``state``, which is solved by working sets.

    The factor is kept from one step to the next where that leaves room enough; its bytes are the stream's, until
    :meth:`end`.
    """

    def __init__(self, state: State, rows: KernelRows, kernel_scale: float) -> None:
        self._state, self._stream, self._gram, self._rows = state, state.stream, state.gram, rows
        self._scale, self._dtype = kernel_scale, np.dtype(state.gram.rows.dtype)
        self._factor: Factor | None = None
        self._held = 0  # bytes of it
        self._costs = CostModel()

    def due(self, seen: Optimality, tol: float, outer: int) -> bool:
        """Return whether to step now, after ``outer`` working sets."""
        profile, rows, n, W = self._stream.profile, self._rows, self._state.n, self._rows.selection.W
        free, cells, width = int(seen.inside.sum()), self._gram.rows.cost, max(rows.tile_cost, 1.0)
        value = min(cells, profile.cache_cost) if rows.cache.capacity or self._gram.whole else cells
        a_set = profile.step_cost + profile.look_cost * n + W * W / 2 * width
        steps, asked = int(seen.steps.sum()), rows.counts.asked
        cost = asked * n * value + outer * a_set + steps * (profile.inner_step + profile.inner_cost * W)
        kept = self._factor is not None and abs(len(self._factor.rows) - free) <= KEPT / 2 * free
        work = SOLVES * free**2 if kept else free**3 / 6
        price = profile.factor_cost * work + (0 if kept else free * free / 2 * width) + n * free * value + a_set
        price += SMALL * profile.step_cost
        pays = self._costs.pays(cost, seen.worst, tol, price, asked > LATE * n)
        return pays and LEAST <= free <= MOST and self._block(0, free, rows.square.nbytes + self._held) > 0

    def _block(self, before: int, new: int, spare: int = 0) -> int:
        """Return the largest block by which memory, and ``spare`` bytes more, lets a factor of ``before`` rows grow by
        ``new`` ones; 0 where it holds none."""
        stream = self._stream
        left = stream.limit - stream.held
        for block in range(min(_whole(max(before, new)), BLOCK), 0, -MARGIN):
            rows = _whole(_pair(before, new, block))
            device = self._gram.panel_bytes(rows), self._dtype.itemsize * rows**2
            all_of_it = sum(device) + PLACES * rows + self._host_bytes(before, new, block)
            if max(device) <= stream.largest and all_of_it <= left + spare and PLACES * rows <= left:
                return block
        return 0

    def _host_bytes(self, before: int, new: int, block: int) -> int:
        """Return the bytes that a factor grows by, and those of what is made on the host meanwhile."""
        more, columns = new * before + new * (new + block) // 2, before + new + MEANWHILE * block
        kept = GROWN * self._factor.kept if before and self._factor else 0
        return self._dtype.itemsize * (more + block * columns) + kept

    def find(self) -> Vector | None:
        """Return what to add to b (1, n), all the way to the minimum; None where there is no way, or no memory for it.
        The factor is kept where as much memory again as it takes is left beside what the next steps need."""
        wanted = self._rows.square.nbytes + self._rows.cache.coming
        try:
            change = self._found(*self._state.now())
        except (MemoryLimitError, DeviceError, MemoryError):
            change = None
            self.end()
        if self._factor and self._stream.limit - self._stream.held < wanted + self._held:
            self._factor.forget()
            self._hold(self._factor)
        if self._stream.limit - self._stream.held < wanted + self._held:
            self.end()
        if change is None:
            self._costs.made(False)
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
        room = self._stream.limit - self._stream.held
        with one_thread():
            d = minimum(factor, g, lowest - x, highest - x, seen.group[rows], len(problem.totals), gone, room)
        self._hold(factor)
        if d is None:
            return None
        after = np.where(d <= lowest - x, lowest, np.where(d >= highest - x, highest, x + d))
        after[gone] = x[gone]
        change = np.zeros_like(b)
        change[0, rows] = after - x
        return change

    def go(self, change: Vector) -> bool:
        """Add ``change`` to b, or the part of it with which the dual is least; return whether that lowers it."""
        state, stream = self._state, self._stream
        problem, b, f = state.now()
        after = stream.held_wide(b + change)
        self._rows.respond(after - b)
        ahead = state.gradients()
        slope = float((f * (after - b)).sum()) + problem.kink * float(np.abs(after).sum() - np.abs(b).sum())
        curve = float(((ahead - f) * (after - b)).sum())
        t = 1.0 if curve <= -slope else -slope / curve
        well = slope < 0 and t >= SHORT and bool(np.isfinite(ahead).all())
        if not well:
            after, ahead = b, f
        elif t < 1:
            after, ahead = b + t * (after - b), f + t * (ahead - f)
        if not well or t < 1:
            state.replace(ahead)
        stream.write_wide(state.b, state.padded(after))
        self._costs.made(well)
        return well

    def end(self) -> None:
        """Give the factor back."""
        self._stream.reserve(-self._held)
        self._factor, self._held = None, 0

    def _factored(self, free: Rows) -> Factor | None:
        """Return a factor with the rows ``free``: the last one, where few came or went, else a new one. None where K
        among them is not positive definite, or memory does not hold it."""
        last = self._factor
        if last is not None:
            new = np.setdiff1d(free, last.rows)
            gone = len(last.rows) + len(new) - len(free)
            if len(new) + gone <= KEPT * len(free):
                block = self._block(len(last.rows), len(new)) if len(new) else 0
                if not len(new) or (block and self._grown(last, new, block)):
                    return self._hold(last)
        self.end()
        block = self._block(0, len(free))
        if not block:
            return None
        of = ridges(self._dtype, len(free))
        made = steadied(self._dtype, of, self._scale, lambda factor: self._grown(factor, free, block))
        return self._hold(made) if made else None

    def _hold(self, factor: Factor) -> Factor:
        """Keep the factor, whose bytes are the stream's from now on, and return it."""
        self._stream.reserve(factor.nbytes - self._held)
        self._factor, self._held = factor, factor.nbytes
        return factor

    def _grown(self, factor: Factor, rows: Rows, block: int) -> bool:
        """Return whether ``factor`` has further rows now, which came ``block`` by block."""
        m, n = len(factor.rows), len(rows)
        host = self._host_bytes(m, n, block)
        self._stream.reserve(host)
        try:
            with self._kernel_block(_pair(m, n, block)) as square:
                pieces = (rows[first : first + block] for first in range(0, n, block))
                return all(self._extended(factor, some, block, square) for some in pieces)
        finally:
            self._stream.reserve(-host)

    def _extended(self, factor: Factor, rows: Rows, block: int, square: KernelBlock) -> bool:
        """Return whether ``factor`` has these rows now, of which K beside its own came ``block`` by block."""
        beside = np.empty((len(factor.rows), len(rows)), self._dtype, order="F")
        for first in range(0, max(1, len(beside)), block):
            known = factor.rows[first : first + block]
            beside[first : first + len(known)], among = square(known, rows)
        with one_thread():
            return factor.extend(rows, beside, among)

    @contextmanager
    def _kernel_block(self, rows: int) -> Iterator[KernelBlock]:
        """Give what makes K between some rows and others, and among these others, lower triangle, of so many ``rows``
        in all at most."""
        stream, gram = self._stream, self._gram
        panel, made = gram.panel(_whole(rows), square=True), []
        try:
            for nbytes in (4 * panel.capacity, 4, self._dtype.itemsize * panel.capacity**2):
                made.append(stream.buffer(nbytes))
            at, count, out = made
            W = panel.capacity

            def square(known: Rows, others: Rows) -> tuple[Matrix, Matrix]:
                k, m = len(known), len(known) + len(others)
                places = np.full(W, -1, np.int32)
                places[:m] = gram.rows.position[np.concatenate([known, others])]
                stream.write(at, places)
                stream.write(count, np.array([m], np.int32))
                whole = k - k % max(gram.rows.lanes, gram.width)
                if not self._rows.tile_if_there(places[:m], at, W, whole, out):
                    gram.gather(panel, at, count)
                    gram.tile(panel, Tile(at, count, out, whole, half=True, most=m))
                K = stream.read(out, self._dtype, (W, W))
                return np.concatenate([K[:whole, k:m], K[k:m, whole:k].T]), K[k:m, k:m].copy()

            yield square
        finally:
            stream.finish()
            stream.free(*made, *panel.buffers())


def _whole(rows: int) -> int:
    """Return so many rows, or more, that panels are made for."""
    return -(-rows // MARGIN) * MARGIN


def _pair(before: int, new: int, block: int) -> int:
    """Return the rows of a square with a block of those that are there and one of ``new`` ones, all of which are there
    at last."""
    return min(block, before + max(0, new - block)) + min(block, new)
