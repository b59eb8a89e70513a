"""Newton steps: move all free coefficients to their joint minimum, by a Cholesky factor of K among them.

Solves:   minimise over d: 1/2 d'Md + g'd,  bottom <= d <= top,  the sum of d in each group 0;  M = K_FF + ridge I
Given:    K_FF, the kernel matrix among the free coefficients F, their derivatives g, and the bounds of their change d,
          between which the dual is smooth
Returns:  b and f with a lower dual, or unchanged
Source:   Hintermueller, Ito, Kunisch 2002 (a primal-dual active set strategy is a semismooth Newton method), with a
          line search; Scheinberg 2006 for active sets of SVMs

    U'U  <- M, by blocks of columns
    H    <- the empty set, of coefficients that are fixed at a bound
    until no coefficient leaves its bounds:
        d <- the minimum over F with the sums fixed and H at their bounds           Schur complement of U'U = M
        H <- H and the coefficients that d takes beyond their bounds
    b, f <- b + t d, f + t K d with the best 0 < t <= 1

SMO soon finds which coefficients are at a bound, but takes long to find the values of the free coefficients. A Newton
step computes these values.
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
ROUNDS = 10  # most rounds in which coefficients that would leave their bounds are fixed
RIDGE = 10.0  # relative ridge in units of eps times the square root of the number of coefficients
STEADIER, TRIES = 30.0, 5  # factor of the next ridge if K + ridge * I is indefinite; most ridges to try
MOST, LEAST = 4096, 32  # most and fewest free coefficients of a Newton step
MARGIN = 256  # panels and a factor's blocks have a multiple of MARGIN rows, so that there are few different sizes
SHORT = 0.5  # least length t of a step; a shorter step is dropped, since it has fixed the wrong coefficients
BLOCK = 1024  # most rows of a block of the factor, so that its diagonal block fits in caches
PLACES = 16  # bytes for each right-hand row of a product, in addition to the row's values
MEANWHILE = 3  # number of arrays (block, block) on the host while a block of the factor is computed
GROWN = 3  # memory needed to extend the stored columns of U'^-1, as a multiple of their own memory
KEPT = 0.25  # share of rows that may be added to or dropped from a factor before it is computed anew
LOW, LATE = 0.5, 4  # a violation is low at LOW times the first one or less, or once LATE * n rows are computed
LOOKS, MORE = 4, 2  # convergence checks at a low violation before the first Newton step, and between two steps
DOUBT = 4.0  # factor of the price of the next step after a step without gain
SPARED = 4.0  # least ratio of SMO's expected cost to the price of a step that justifies the first step
SMALL = 8  # cost of a step's small parts, as a multiple of the cost of an outer iteration's launches
SOLVES = 50  # linear systems that a step solves if it uses the factor of the step before


class Columns(NamedTuple):
    """Hold columns of U'^-1, the inverse of the transposed Cholesky factor U of a matrix M (m, m).

    all: the columns, (m, k).
    products: inner products of the columns, (k, k), which are entries of M^-1.
    at: indices of the requested columns among the k columns.
    """

    all: Matrix
    products: Vector
    at: Rows


class Factor:
    """Hold the upper Cholesky factor U with U'U = K[rows, rows] + ridge I, in the dtype of K.

    U consists of blocks of consecutive columns. Each block stores the columns' entries above its diagonal square, and
    the upper triangle of that square. Requested columns of U'^-1 stay in memory, and are extended with the factor.
    """

    def __init__(self, dtype: DTypeLike, ridge: float, least: float) -> None:
        """Make an empty factor.

        ridge: ridge in units of the mean diagonal of K among the first rows.
        least: smallest value of this mean.
        """
        self.dtype, self.ridge = np.dtype(dtype), 0.0
        self._relative, self._least = ridge, least
        self.rows: Rows = np.zeros(0, np.intp)
        self._blocks: list[tuple[Matrix, Matrix]] = []
        self.forget()

    def forget(self) -> None:
        """Drop the columns of U'^-1 that are in memory."""
        self._place = np.full(len(self.rows), -1, np.intp)  # index of each row's column in _columns, or -1
        self._columns = np.zeros((len(self.rows), 0), self.dtype, order="F")
        self._products = np.zeros((0, 0))

    @property
    def kept(self) -> int:
        """Return the bytes of the columns of U'^-1 that are kept for later calls."""
        return self._columns.nbytes + self._products.nbytes

    @property
    def nbytes(self) -> int:
        """Return the bytes of all blocks, and of the columns of U'^-1 that are in memory."""
        return self.kept + sum(side.nbytes + corner.nbytes for side, corner in self._blocks)

    def extend(self, rows: Rows, beside: Matrix, among: Matrix) -> bool:
        """Add k rows to the factor; return False if the matrix is then not positive definite.

        beside: K (m, k) between the m rows of the factor and the new rows.
        among: the lower triangle of K (k, k) among the new rows.
        """
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
        """Return U'^-1 R for a matrix R (m, k), by forward substitution."""
        _, trsm, _, _ = _routines(self.dtype)
        out, m = np.empty(R.shape, self.dtype, order="F"), 0
        for side, corner in self._blocks:
            new = slice(m, m + len(corner))
            out[new] = trsm(1.0, corner, R[new] - side.T @ out[:m] if m else R[new], lower=0, trans_a=1)
            m = new.stop
        return out

    def back(self, w: Matrix) -> Vector:
        """Return U^-1 w for one vector w, by back substitution."""
        _, _, _, trsv = _routines(self.dtype)
        left, found = w, []
        for side, corner in reversed(self._blocks):
            found.append(trsv(corner, left[len(side) :]))
            left = left[: len(side)] - side @ found[-1]
        return np.concatenate(found[::-1]).astype(np.float64)

    def columns(self, at: Rows, room: float) -> Columns | None:
        """Return columns of U'^-1 that include the columns with the indices ``at``.

        Return None if the columns take more than ``room`` bytes.
        """
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
        """Return the bytes of ``columns`` columns of U'^-1, ``new`` of them still to compute, with temporary arrays."""
        return self.dtype.itemsize * len(self.rows) * (3 * columns + 2 * new) + 4 * 8 * columns**2


def _routines(dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return LAPACK's potrf and BLAS's trsm, syrk and trsv for a dtype."""
    if dtype == np.float64:
        return lapack.dpotrf, blas.dtrsm, blas.dsyrk, blas.dtrsv
    return lapack.spotrf, blas.strsm, blas.ssyrk, blas.strsv


def ridges(dtype: DTypeLike, rows: int) -> Iterator[float]:
    """Yield increasing ridges for a factor of ``rows`` rows, in units of the mean of K's diagonal."""
    for k in range(TRIES):
        yield STEADIER**k * RIDGE * float(np.finfo(dtype).eps) * float(np.sqrt(rows))


def steadied(dtype: DTypeLike, ridges: Iterable[float], least: float, grow: Callable[[Factor], bool]) -> Factor | None:
    """Return the factor with the smallest of the ``ridges`` for which ``grow`` succeeds, None if it never does.

    K may be indefinite by rounding, so that a small ridge can fail.

    least: smallest mean diagonal, as in :class:`Factor`.
    grow: function that adds the rows to an empty factor, and returns whether that succeeded.
    """
    return next((one for one in (Factor(dtype, ridge, least) for ridge in ridges) if grow(one)), None)


class Face:
    """Minimise 1/2 d'Md + g'd over d (m,), with a Cholesky factor of M, fixed sums and some fixed entries of d.

    The sum of d in each group is 0. These sums and the fixed entries are the conditions of a Schur complement of M.

    g: gradient (m,).
    group: group number of each entry, (m,).
    groups: number of fixed sums, 0 if none is fixed.
    refined: number of iterative refinements of the conditions.
    """

    def __init__(self, factor: Factor, g: Vector, group: Rows, groups: int, refined: int = 0) -> None:
        self._factor, self._refined = factor, refined
        sums = np.arange(groups)[:, None] == group
        self.sums = sums[sums.any(axis=1)]
        self._down, *sides = factor.forward(np.array(np.vstack([g, self.sums]).T, factor.dtype, order="F")).T
        self._sums = self.sums.astype(np.float64)
        self._sides = np.array(sides, factor.dtype).reshape(len(sides), len(g)).T

    def move(self, g: Vector) -> None:
        """Replace the gradient by g (m,)."""
        self._down = self._factor.forward(np.array(g[:, None], self._factor.dtype, order="F"))[:, 0]

    def minimum(self, held: NDArray[np.bool_], at: Vector, room: float = np.inf) -> Vector | None:
        """Return the minimiser d (m,), whose entries marked in ``held`` (m,) are fixed at the values of ``at`` (m,).

        Return None if there is no minimiser, or if it takes more than ``room`` bytes. The sum of a group is no
        condition if all entries of the group are fixed.
        """
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
    """Return a function that solves linear systems with the matrix S, None if S is not positive definite.

    singular: allow a singular S, for which the function uses the pseudoinverse.
    """
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
    """Return the change d (m,) of the coefficients in a Newton step, by the loop in the docstring of this module.

    Return None if there is no minimum, or if it takes more than ``room`` bytes.

    g: derivatives for the rows of the factor, (m,).
    bottom, top: bounds of d, (m,).
    group, groups: as in :class:`Face`.
    gone: indices of rows of the factor that are no longer free; d is 0 there.
    """
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
    """Return the change d (m,) of the coefficients, with the sum of each group restored to 0.

    A row of ``sums`` (groups, m) marks the entries of a group. The rounding error of the sum is spread over the group's
    free entries, which are between ``bottom`` and ``top``. The entries in ``held`` are fixed, and not free. Return None
    if the free entries are too close to their bounds for that.
    """
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
    """Estimate whether a Newton step pays, from the cost and progress of SMO so far.

    At first the violation goes up and down while SMO finds the support vectors; then it falls fast. A Newton step is
    considered only if the violation is well below the first one and falls slowly.
    """

    def __init__(self) -> None:
        self._log: list[tuple[float, float]] = []  # (cost of SMO, log of the least violation)
        self._first = 0.0  # first violation
        self._made, self._doubt = False, 1.0  # whether a step was made; factor on the next step's price

    def pays(self, cost: float, violation: float, tol: float, price: float, late: bool) -> bool:
        """Return whether SMO will cost more to the end than a Newton step of this ``price``.

        The forecast extrapolates from the second half of the convergence checks at which the violation was low.

        cost: cost of SMO so far, in the unit of ``price``.
        violation: the current KKT violation.
        late: treat any violation as low.
        """
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
        """Record a Newton step; the forecast begins anew.

        well: whether the step decreased the dual.
        """
        self._log.clear()
        self._made, self._first = True, np.inf
        self._doubt *= 1.0 if well else DOUBT


class Newton:
    """Make Newton steps over all free coefficients of a problem that SMO solves by working sets.

    The factor stays between steps if memory allows. The factor's bytes count towards the stream's limit until
    :meth:`end`.
    """

    def __init__(self, state: State, rows: KernelRows, kernel_scale: float) -> None:
        self._state, self._stream, self._gram, self._rows = state, state.stream, state.gram, rows
        self._scale, self._dtype = kernel_scale, np.dtype(state.gram.rows.dtype)
        self._factor: Factor | None = None
        self._held = 0  # bytes of the factor
        self._costs = CostModel()

    def due(self, optimality: Optimality, tol: float, outer: int) -> bool:
        """Return whether a Newton step costs less than the SMO iterations that it replaces.

        outer: number of outer iterations so far.
        """
        profile, rows, n, W = self._stream.profile, self._rows, self._state.n, self._rows.selection.W
        free, cells, width = int(optimality.inside.sum()), self._gram.rows.cost, max(rows.tile_cost, 1.0)
        value = min(cells, profile.cache_cost) if rows.cache.capacity or self._gram.whole else cells
        a_set = profile.step_cost + profile.look_cost * n + W * W / 2 * width
        steps, asked = int(optimality.steps.sum()), rows.counts.asked
        cost = asked * n * value + outer * a_set + steps * (profile.inner_step + profile.inner_cost * W)
        kept = self._factor is not None and abs(len(self._factor.rows) - free) <= KEPT / 2 * free
        work = SOLVES * free**2 if kept else free**3 / 6
        price = profile.factor_cost * work + (0 if kept else free * free / 2 * width) + n * free * value + a_set
        price += SMALL * profile.step_cost
        pays = self._costs.pays(cost, optimality.worst, tol, price, asked > LATE * n)
        return pays and LEAST <= free <= MOST and self._block(0, free, rows.square.nbytes + self._held) > 0

    def _block(self, before: int, new: int, spare: int = 0) -> int:
        """Return the largest block size with which a factor of ``before`` rows can grow by ``new`` rows, or 0.

        The memory of device and host limits the size. spare: bytes that will be freed before the step.
        """
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
        """Return the bytes by which the factor grows on the host, with temporary arrays, for ``new`` more rows."""
        more, columns = new * before + new * (new + block) // 2, before + new + MEANWHILE * block
        kept = GROWN * self._factor.kept if before and self._factor else 0
        return self._dtype.itemsize * (more + block * columns) + kept

    def find(self) -> Vector | None:
        """Return the change of the coefficients to their joint minimum, (1, n).

        Return None if there is no minimum, or no memory to compute it. The factor is kept for the next step if that
        leaves enough memory to the outer iterations.
        """
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
        optimality = certificate.of(problem, b, f)
        factor = self._factored(np.flatnonzero(optimality.inside))
        if factor is None:
            return None
        rows = factor.rows
        gone = np.flatnonzero(~optimality.inside[rows])
        g, x, epsilon = np.where(optimality.inside, optimality.right, 0)[rows], b[0, rows], problem.epsilon > 0
        lowest = np.where(epsilon & (x > 0), 0.0, problem.lo[0, rows])
        highest = np.where(epsilon & (x < 0), 0.0, problem.hi[0, rows])
        room = self._stream.limit - self._stream.held
        with one_thread():
            d = minimum(factor, g, lowest - x, highest - x, optimality.group[rows], len(problem.totals), gone, room)
        self._hold(factor)
        if d is None:
            return None
        after = np.where(d <= lowest - x, lowest, np.where(d >= highest - x, highest, x + d))
        after[gone] = x[gone]
        change = np.zeros_like(b)
        change[0, rows] = after - x
        return change

    def go(self, change: Vector) -> bool:
        """Add t * ``change`` to the coefficients b, with the t <= 1 of the least dual; return whether the dual fell.

        If t would be less than SHORT, b does not change.

        change: change of the coefficients to their joint minimum, (1, n).
        """
        state, stream = self._state, self._stream
        problem, b, f = state.now()
        after = stream.held_wide(b + change)
        self._rows.respond(after - b)
        ahead = state.gradients()
        slope = float((f * (after - b)).sum()) + problem.epsilon * float(np.abs(after).sum() - np.abs(b).sum())
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
        """Free the factor."""
        self._stream.reserve(-self._held)
        self._factor, self._held = None, 0

    def _factored(self, free: Rows) -> Factor | None:
        """Return a factor that has the rows ``free``.

        The last factor is extended if few rows have become free or reached a bound since then; else a new factor is
        made. Return None if K among the rows is not positive definite, or memory is too small.
        """
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
        """Keep the factor, count its bytes towards the stream's limit, and return it."""
        self._stream.reserve(factor.nbytes - self._held)
        self._factor, self._held = factor, factor.nbytes
        return factor

    def _grown(self, factor: Factor, rows: Rows, block: int) -> bool:
        """Extend ``factor`` by ``rows``, ``block`` rows at a time; return whether that succeeded."""
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
        """Extend ``factor`` by one block of rows; return whether that succeeded.

        square: function that returns K between and among given rows (:meth:`_kernel_block`).
        """
        beside = np.empty((len(factor.rows), len(rows)), self._dtype, order="F")
        for first in range(0, max(1, len(beside)), block):
            known = factor.rows[first : first + block]
            beside[first : first + len(known)], among = square(known, rows)
        with one_thread():
            return factor.extend(rows, beside, among)

    @contextmanager
    def _kernel_block(self, rows: int) -> Iterator[KernelBlock]:
        """Yield a function of two arrays of row numbers, with at most ``rows`` numbers in all.

        The function returns K between the rows of both arrays, and the lower triangle of K among the second rows.
        """
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
    """Return the number ``rows`` rounded up to a multiple of MARGIN, for panels of right-hand rows."""
    return -(-rows // MARGIN) * MARGIN


def _pair(before: int, new: int, block: int) -> int:
    """Return the largest number of rows in one call of :meth:`Newton._kernel_block`'s function.

    The function gets one block of the factor's rows and one block of the new rows.
    """
    return min(block, before + max(0, new - block)) + min(block, new)
