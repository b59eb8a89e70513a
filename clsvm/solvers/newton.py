"""Make Newton steps of the dual problem of an SVM: move all free coefficients to the minimum over these coefficients.

A coefficient is free if it lies between its bounds. In epsilon-SVR, a free coefficient is also not 0. F is the set of
the free coefficients.

Solves:   minimise 1/2 d'Md + g'd over the changes d of the coefficients in F, with bottom <= d <= top, and with the sum
          of d equal to 0 in each group;  M = K_FF + ridge I
Given:    coefficients b of a dual problem, and the gradients f = K b + q with the linear term q; the kernel matrix K_FF
          among the rows of F; the derivatives g of the dual by the coefficients in F; bounds bottom and top of d,
          between which the dual is quadratic; groups, which are sets of coefficients with a fixed sum; ridge, a small
          number that makes M positive definite in spite of rounding errors
Returns:  coefficients b and gradients f at which the dual is lower; b and f as given if the step does not lower it
Source:   Hintermueller, Ito, Kunisch 2002 (a primal-dual active set strategy is a semismooth Newton method), with a
          line search; Scheinberg 2006 for active sets of SVMs

    U    <- the Cholesky factor of M = U'U, computed by blocks of columns
    H    <- {}, the set of the entries of d that are fixed at bottom or top
    repeat until no entry of d is beyond its bounds bottom and top:
        d <- the minimiser over all d with the sum 0 in each group and with the entries in H at their bounds, from U and
             a Schur complement of M
        add to H the entries of d that are beyond bottom or top, each fixed at the bound that it is beyond
    b, f <- b + t d, f + t K d with the t in (0, 1] that minimises the dual

SMO soon finds which coefficients are at a bound, but takes long to find the values of the free coefficients. A Newton
step computes these values.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs, lapack

from clsvm.gram.layouts.panel import Panel
from clsvm.gram.products import Tile, counts
from clsvm.gram.programs import SECTION
from clsvm.opencl.stream import Buffer
from clsvm.problem import Problem, Vector
from clsvm.solvers import certificate
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.smo import Optimality
from clsvm.solvers.state import State
from clsvm.threads import one_thread

Matrix = NDArray[Any]  # matrix in the dtype of kernel values
Rows = NDArray[np.intp]
# A Newton step is computed up to ROUNDS times, each time with more coefficients fixed at the bounds that they crossed.
ROUNDS = 10
RIDGE = 10.0  # the first ridge is RIDGE * eps * sqrt(number of free coefficients) times the mean diagonal entry of K
# If K + ridge * I is not positive definite, the next ridge is RIDGE_GROWTH times as large. At most TRIES are tried.
RIDGE_GROWTH, TRIES = 30.0, 5
MOST, LEAST = 4096, 32  # largest and smallest number of free coefficients of a Newton step
ALIGN = 256  # buffers for rows of X hold a multiple of ALIGN rows, so that buffers of few different sizes are needed
SHORT = 0.5  # a Newton step is not made if the line search finds the minimum at less than SHORT of its length
BLOCK = 1024  # at most BLOCK rows are added to the Cholesky factor at a time, so that BLOCK^2 values of K fit in caches
# COPIES: on the host, a step with m free coefficients takes at most COPIES arrays (m, m) in the dtype of K.
# PRODUCTS: a Factor with m rows takes at most PRODUCTS * m^2 bytes for the inner products in ``Factor.products``.
COPIES, PRODUCTS = 8, 32
# A Cholesky factor is used again if at most this share of its coefficients became free or reached a bound since.
MAX_CHANGED = 0.25
# LOW: convergence checks begin to record the KKT violation when it has fallen to LOW times its first value.
# LATE: convergence checks record any KKT violation once SMO has computed LATE * n rows of the kernel matrix (n, n).
LOW, LATE = 0.5, 4
# CHECKS_BEFORE: the first Newton step needs more than CHECKS_BEFORE convergence checks that record the KKT violation.
# CHECKS_BETWEEN: a Newton step is considered after more than this number of convergence checks since the previous step.
CHECKS_BEFORE, CHECKS_BETWEEN = 4, 2
FAILURE_FACTOR = 4.0  # each Newton step that does not lower the dual multiplies the estimated cost of the next by this
MIN_SAVING = 4.0  # a first Newton step is made only if SMO would cost more than MIN_SAVING times as much as the step
SMALL = 8  # cost of a Newton step's small computations, as a multiple of ``Profile.outer_cost``
SOLVES = 50  # a Newton step with the previous step's Cholesky factor is assumed to solve SOLVES linear systems


class Factor:
    """Hold the upper Cholesky factor U with U'U = K[rows, rows] + ridge I, in the dtype of K.

    U consists of blocks of consecutive columns. Each block stores the upper triangle of its diagonal square, and the
    entries above this square. Columns of V, the inverse of the transpose U', are computed on request and stored. If
    rows are added to the factor, the stored columns are extended too.

    Attributes
    ----------
    rows
        numbers of the m rows.
    columns
        the stored columns of V, (m, k).
    products
        inner products of the stored columns, (k, k). The products are entries of the inverse of U'U.
    """

    def __init__(self, dtype: DTypeLike, ridge: float, least: float) -> None:
        """Make an empty factor.

        The factor will be the Cholesky factor of K + r I for the rows that :meth:`extend` adds. K is the kernel matrix
        among the added rows, and r is ``ridge`` times the mean diagonal entry of K among the rows of the first call.

        dtype: dtype of the factor.
        ridge: the ridge r, as a multiple of the mean diagonal entry.
        least: lower limit of the mean diagonal entry. If the mean is smaller, ``least`` replaces it.
        """
        self.dtype, self.ridge = np.dtype(dtype), 0.0
        self._trsm, self._syrk, self._trsv = get_blas_funcs(("trsm", "syrk", "trsv"), dtype=self.dtype)
        self._potrf = get_lapack_funcs("potrf", dtype=self.dtype)
        self._relative, self._least = ridge, least
        self.rows: Rows = np.zeros(0, np.intp)
        self._blocks: list[tuple[Matrix, Matrix]] = []
        self._column_of = np.zeros(0, np.intp)  # for each row, the index of its column in ``columns``; -1 if not stored
        self.columns, self.products = np.zeros((0, 0), self.dtype), np.zeros((0, 0))

    @property
    def nbytes(self) -> int:
        """Return the bytes of the factor U, of the stored columns of its inverse, and of their inner products."""
        blocks = sum(above.nbytes + diagonal.nbytes for above, diagonal in self._blocks)
        return blocks + self.columns.nbytes + self.products.nbytes

    def extend(self, rows: Rows, cross: Matrix, block: Matrix) -> bool:
        """Extend the Cholesky factor of K + ridge I by k rows, and return True.

        Return False and add no row if the matrix with the new rows is not positive definite.

        cross: K (m, k) between the m rows of the factor and the new rows.
        block: the lower triangle of K (k, k) among the new rows.
        """
        if not self._blocks:
            self.ridge = self._relative * max(self._least, float(block.diagonal().mean()))
        M = np.array(block.T, self.dtype, order="F")
        M[np.diag_indices(len(M))] += self.ridge
        above = self.forward(cross)
        if len(above):
            M = self._syrk(-1.0, above, 1.0, M, trans=1, lower=0, overwrite_c=1)
        diagonal, failed = self._potrf(M, lower=0, clean=0, overwrite_a=1)
        if failed:
            return False
        more = self._trsm(-1.0, diagonal, above.T @ self.columns, lower=0, trans_a=1)
        self.columns, self.products = np.asfortranarray(np.vstack([self.columns, more])), self.products + more.T @ more
        self._blocks.append((above, diagonal))
        self.rows = np.concatenate([self.rows, rows])
        self._column_of = np.concatenate([self._column_of, np.full(len(rows), -1, np.intp)])
        return True

    def forward(self, R: Matrix) -> Matrix:
        """Solve U'X = R for a matrix R (m, k) by forward substitution with the factor U; return X."""
        out, m = np.empty(R.shape, self.dtype, order="F"), 0
        for above, diagonal in self._blocks:
            new = slice(m, m + len(diagonal))
            out[new] = self._trsm(1.0, diagonal, R[new] - above.T @ out[:m] if m else R[new], lower=0, trans_a=1)
            m = new.stop
        return out

    def back(self, w: Matrix) -> Vector:
        """Solve U x = w for one vector w (m,) by back substitution with the factor U; return x (m,)."""
        left, found = w, []
        for above, diagonal in reversed(self._blocks):
            found.append(self._trsv(diagonal, left[len(above) :]))
            left = left[: len(above)] - above @ found[-1]
        return np.concatenate(found[::-1]).astype(np.float64)

    def add_columns(self, at: Rows) -> Rows:
        """Compute the columns ``at`` of the inverse of U', and add them to ``self.columns`` if they are not yet there.

        U' is the transpose of the Cholesky factor U. Return, for each entry of ``at``, the position of its column in
        ``self.columns``.
        """
        new = at[self._column_of[at] < 0]
        if len(new):
            unit = np.zeros((len(self.rows), len(new)), self.dtype, order="F")
            unit[new, np.arange(len(new))] = 1
            made = self.forward(unit)
            cross = self.columns.T @ made
            self._column_of[new] = self.columns.shape[1] + np.arange(len(new))
            self.columns = np.asfortranarray(np.hstack([self.columns, made]))
            self.products = np.vstack([np.hstack([self.products, cross]), np.hstack([cross.T, made.T @ made])])
        return self._column_of[at]


def ridges(dtype: DTypeLike, rows: int) -> Iterator[float]:
    """Yield TRIES numbers c in rising order: multiples of the mean diagonal entry of a kernel matrix K.

    The caller tries the ridge c * mean(diag(K)) for each number c, until K + ridge * I has a Cholesky factor. The first
    number is RIDGE * sqrt(rows) * eps. Each further number is RIDGE_GROWTH times as large as the number before.

    dtype: dtype of K. eps is the machine epsilon of this dtype.
    rows: number of rows of K.
    """
    for k in range(TRIES):
        yield RIDGE_GROWTH**k * RIDGE * float(np.finfo(dtype).eps) * float(np.sqrt(rows))


def factor_with_ridge(
    dtype: DTypeLike, ridges: Iterable[float], least: float, add_rows: Callable[[Factor], bool]
) -> Factor | None:
    """Return the Cholesky factor of K + ridge * I with the first of the ``ridges`` that succeeds, or None.

    A ridge succeeds if K + ridge * I is positive definite. K alone may have small negative eigenvalues by rounding.

    dtype: dtype of the factor.
    ridges: ridges in rising order, each as a multiple of the mean diagonal entry of K.
    least: lower limit of the mean diagonal entry of K. If the mean is smaller, ``least`` replaces it.
    add_rows: function that is called with an empty factor, which holds one of the ridges. The function adds all rows of
        K to the factor, and returns True if K + ridge * I is positive definite, else False.
    """
    return next((one for one in (Factor(dtype, ridge, least) for ridge in ridges) if add_rows(one)), None)


class Face:
    """Minimise 1/2 d'Md + g'd over d (m,) by a Cholesky factor of M, under constraints.

    The entries of d are divided into groups, and the sum of each group is fixed at 0. :meth:`minimum` can also fix
    entries of d at given values. The multipliers of all constraints are found from a Schur complement of M.

    factor: Cholesky factor of M.
    g: linear term, which is the gradient at d = 0, (m,).
    group: number of the group to which each entry of d belongs, (m,).
    groups: number of groups; 0 if no sum is fixed.
    refinements: number of iterative refinements of the multipliers.
    """

    def __init__(self, factor: Factor, g: Vector, group: Rows, groups: int, refinements: int = 0) -> None:
        self._factor, self._refinements = factor, refinements
        sums = np.arange(groups)[:, None] == group
        self.sums = sums[sums.any(axis=1)]
        right = np.array(np.vstack([g, self.sums]).T, factor.dtype, order="F")
        self._forward_g, *forward_sums = factor.forward(right).T
        self._sums = self.sums.astype(np.float64)
        self._forward_sums = np.array(forward_sums, factor.dtype).reshape(len(forward_sums), len(g)).T

    def update_gradient(self, g: Vector) -> None:
        """Replace the linear term of the minimised function by g (m,)."""
        self._forward_g = self._factor.forward(np.array(g[:, None], self._factor.dtype, order="F"))[:, 0]

    def minimum(self, fixed: NDArray[np.bool_], at: Vector) -> Vector | None:
        """Return the d (m,) that minimises 1/2 d'Md + g'd under two constraints, or None if no minimum is found.

        This object holds the Cholesky factor U of M = U'U, the linear term g (m,) and the groups of the entries of d.
        The constraints are:

        1. Entries marked in ``fixed`` have given values.
        2. The entries of each group have the sum 0, unless all entries of the group are fixed.

        fixed: mask of the fixed entries, (m,).
        at: values (m,), of which only those of the fixed entries are read.
        """
        order = np.flatnonzero(fixed)
        factor, column = self._factor, self._factor.add_columns(order)
        free = (self.sums & ~fixed).any(axis=1)
        sums, W = (self._sums, self._forward_sums) if free.all() else (self._sums[free], self._forward_sums[:, free])
        n_sums, solve = len(sums), None
        multipliers, weights = np.zeros(n_sums + len(order)), np.zeros(len(factor.products), factor.dtype)
        if len(multipliers):
            cross = (W.T @ factor.columns)[:, column]
            S = np.empty((len(multipliers), len(multipliers)))
            S[:n_sums, :n_sums], S[:n_sums, n_sums:], S[n_sums:, :n_sums] = W.T @ W, cross, cross.T
            S[n_sums:, n_sums:] = factor.products[np.ix_(column, column)]
            solve = _solver(S, self._refinements > 0)
            if solve is None:
                return None
            right = (factor.columns.T @ self._forward_g)[column] + at[order]
            multipliers = solve(-np.concatenate([W.T @ self._forward_g, right]))
        for again in range(self._refinements + 1):
            weights[column] = multipliers[n_sums:]
            w = self._forward_g + W @ multipliers[:n_sums].astype(factor.dtype) + factor.columns @ weights
            d = -factor.back(w)
            if again == self._refinements or solve is None:
                break
            residual = np.concatenate([sums @ d, d[order] - at[order]])
            if np.abs(residual).max() <= certificate.EPS * np.abs(d).max():
                break
            multipliers += solve(residual)
        d[fixed] = at[fixed]
        return d


def _solver(S: Vector, singular: bool) -> Callable[[Vector], Vector] | None:
    """Return a function that solves linear systems with the symmetric matrix S.

    If S is not positive definite and ``singular`` is true, the function multiplies by the pseudoinverse of S. If S is
    not positive definite and ``singular`` is false, return None.
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
    factor: Factor, g: Vector, bottom: Vector, top: Vector, group: Rows, groups: int, fixed: Rows
) -> Vector | None:
    """Return the change d (m,) of the coefficients that minimises 1/2 d'Md + g'd between the bounds of d.

    M = U'U is the matrix whose Cholesky factor U is ``factor``. d is first computed without bounds. Then each entry of
    d that is beyond a bound is fixed at this bound, and the other entries are computed again. d is computed at most
    ROUNDS times. Return None if no minimum is found.

    g: derivatives of the dual by the m coefficients, which belong to the m rows of the factor, (m,).
    bottom, top: bounds of d, (m,).
    group: number of the group to which each entry of d belongs, (m,).
    groups: number of groups. The entries of d in each group have the sum 0. If ``groups`` is 0, no sum is fixed.
    fixed: indices of the entries of d that must be 0, because their coefficients are no longer free.
    """
    at_bound, at, face = np.zeros(len(g), bool), np.zeros(len(g)), Face(factor, g, group, groups)
    at_bound[fixed] = True
    d = at
    for _ in range(ROUNDS):
        found = face.minimum(at_bound, at)
        if found is None:
            return None
        d = found
        outside = ~at_bound & ((d < bottom) | (d > top))
        if not outside.any():
            break
        at_bound |= outside
        at[outside] = np.where(d[outside] < bottom[outside], bottom[outside], top[outside])
    return _restore_sums(np.clip(d, bottom, top), face.sums, bottom, top, at_bound) if np.isfinite(d).all() else None


def _restore_sums(
    d: Vector, sums: NDArray[np.bool_], bottom: Vector, top: Vector, fixed: NDArray[np.bool_]
) -> Vector | None:
    """Remove rounding errors from the sums of d (m,), which should be 0 in each group; return d.

    The rounding error of a sum is spread over the free entries of the group. An entry is free if it is between its
    bounds ``bottom`` and ``top``, and ``fixed`` does not mark it. Return None if the free entries of a group are too
    close to their bounds.

    sums: masks (groups, m). Row g of ``sums`` marks the entries of group g.
    """
    for one in sums:
        for _ in range(ROUNDS):
            excess = d[one].sum()
            free = one & ~fixed & (d > bottom) & (d < top)
            if abs(excess) <= certificate.EPS * np.abs(d[one]).sum() or not free.any():
                break
            d[free] = np.clip(d[free] - excess / free.sum(), bottom[free], top[free])
        if abs(d[one].sum()) > certificate.SLACK * certificate.EPS * np.abs(d[one]).sum():
            return None
    return d


class CostModel:
    """Estimate whether a Newton step saves time, from the cost and progress of SMO so far.

    The KKT violation goes up and down while SMO finds the support vectors. A Newton step is considered only later, when
    the violation is well below its first value, or when SMO has computed many rows of K. The step is made if the
    violation then falls slowly.
    """

    def __init__(self) -> None:
        self._log: list[tuple[float, float]] = []  # (cost of SMO, logarithm of the least KKT violation) at each check
        self._first = 0.0  # first KKT violation
        # _stepped says whether a Newton step was tried. _price_factor multiplies the estimated cost of the next one.
        self._stepped, self._price_factor = False, 1.0

    def pays(self, cost: float, violation: float, tol: float, price: float, late: bool) -> bool:
        """Return whether the rest of the solve by SMO is expected to cost more than a Newton step.

        Call this method at each convergence check. Before the first Newton step, it begins to record the KKT violation
        when the violation has fallen to half of its first value, or when ``late`` is true. After a Newton step, it
        records the violation at every check. The estimate assumes that the violation keeps falling as fast as in the
        later half of the recorded checks.

        cost: cost of SMO so far.
        violation: KKT violation now.
        tol: KKT violation to reach.
        price: cost of a Newton step, in the unit of ``cost``.
        late: whether to begin recording at any violation, because SMO has computed many rows of K.
        """
        self._first = self._first or violation
        if not self._log and violation > LOW * self._first and not late:
            return False
        least = min(np.log(max(violation, tol)), self._log[-1][1] if self._log else np.inf)
        self._log.append((cost, least))
        if len(self._log) <= (CHECKS_BETWEEN if self._stepped else CHECKS_BEFORE):
            return False
        middle, least_before = self._log[-1 - len(self._log) // 2]
        required = self._price_factor * (1 if self._stepped else MIN_SAVING)
        return bool((least - np.log(tol)) * (cost - middle) > required * price * (least_before - least))

    def record(self, decreased: bool) -> None:
        """Record that a Newton step was tried, and forget the violations recorded before it.

        decreased: whether the step lowered the dual.
        """
        self._log.clear()
        self._stepped, self._first = True, np.inf
        self._price_factor *= 1.0 if decreased else FAILURE_FACTOR


class Newton:
    """Make Newton steps over all free coefficients of a problem that SMO solves by working sets.

    A coefficient is free if it lies between its bounds. K is the kernel matrix. If memory allows, the Cholesky factor
    of K among the rows of the free coefficients is stored for the next step. The bytes of this stored factor count
    towards the memory limit of the fit on this device, until :meth:`release` frees the factor.
    """

    def __init__(self, state: State, rows: KernelRows, kernel_scale: float) -> None:
        self._state, self._stream, self._gram, self._rows = state, state.stream, state.gram, rows
        self._scale, self._dtype = kernel_scale, np.dtype(state.gram.rows.dtype)
        self._factor: Factor | None = None
        self._reserved = 0  # bytes of the factor
        self._costs = CostModel()

    def should_run(self, optimality: Optimality, tol: float, outer: int) -> bool:
        """Return whether a Newton step is possible and costs less than the SMO iterations that it replaces.

        outer: number of outer iterations so far.
        """
        profile, rows, n, W = self._stream.profile, self._rows, self._state.n, self._rows.selection.W
        free, cells, width = int(optimality.inside.sum()), self._gram.rows.cost, max(rows.tile_cost, 1.0)
        value = min(cells, profile.cache_cost) if rows.cache.capacity or self._gram.whole else cells
        iteration = profile.outer_cost + profile.selection_cost * n + W * W / 2 * width
        steps, computed = optimality.steps, rows.computed
        cost = computed * n * value + outer * iteration + steps * (profile.smo_cost + profile.smo_row_cost * W)
        reusable = self._factor is not None and abs(len(self._factor.rows) - free) <= MAX_CHANGED / 2 * free
        work = SOLVES * free**2 if reusable else free**3 / 6
        price = profile.factor_cost * work + (0 if reusable else free * free / 2 * width) + n * free * value + iteration
        price += SMALL * profile.outer_cost
        pays = self._costs.pays(cost, optimality.worst, tol, price, computed > LATE * n)
        return pays and LEAST <= free <= MOST and self._fits(free)

    def _fits(self, free: int) -> bool:
        """Return whether the free memory suffices for a Newton step over ``free`` coefficients.

        The memory of the step includes a new Cholesky factor. The memory of the previous factor counts as free.
        """
        stream, rows = self._stream, _round_up(2 * min(free, BLOCK))
        device = self._gram.panel_bytes(rows), self._dtype.itemsize * rows**2
        host = free**2 * (COPIES * self._dtype.itemsize + PRODUCTS)
        free_bytes = stream.limit - stream.allocated + self._reserved
        return max(device) <= stream.largest and sum(device) + host <= free_bytes

    def find_change(self) -> Vector | None:
        """Return the step (1, n) from the coefficients to the minimum of the dual over all free coefficients.

        Return None if no minimum is found. The Cholesky factor of the kernel matrix among the rows of the
        free coefficients is stored for the next step, unless the cache of rows of the kernel matrix needs the memory.
        """
        change = self._find_change(*self._state.now())
        if self._stream.limit - self._stream.allocated < self._rows.cache.growth_bytes + self._reserved:
            self.release()
        if change is None:
            self._costs.record(False)
        return change

    def _find_change(self, problem: Problem, b: Vector, f: Vector) -> Vector | None:
        optimality = certificate.of(problem, b, f)
        factor = self._factorize(np.flatnonzero(optimality.inside))
        if factor is None:
            return None
        rows = factor.rows
        leaving = np.flatnonzero(~optimality.inside[rows])
        g, x, epsilon = np.where(optimality.inside, optimality.right, 0)[rows], b[0, rows], problem.epsilon > 0
        lowest = np.where(epsilon & (x > 0), 0.0, problem.lo[0, rows])
        highest = np.where(epsilon & (x < 0), 0.0, problem.hi[0, rows])
        with one_thread():
            group, groups = optimality.group[rows], len(problem.totals)
            d = minimum(factor, g, lowest - x, highest - x, group, groups, leaving)
        self._keep(factor)
        if d is None:
            return None
        new_b = np.where(d <= lowest - x, lowest, np.where(d >= highest - x, highest, x + d))
        new_b[leaving] = x[leaving]
        change = np.zeros_like(b)
        change[0, rows] = new_b - x
        return change

    def apply(self, change: Vector) -> bool:
        """Add t * ``change`` to the coefficients, with the t in (0, 1] that minimises the dual objective.

        Return whether the coefficients were changed. They stay as they are if no t lowers the dual objective, or if the
        minimising t is less than SHORT.

        change: step from the coefficients to the minimum of the dual over all free coefficients, (1, n).
        """
        state, stream = self._state, self._stream
        problem, b, f = state.now()
        new_b = stream.round_wide(b + change)
        self._rows.respond(new_b - b)
        new_f = state.gradients()
        slope = float((f * (new_b - b)).sum()) + problem.epsilon * float(np.abs(new_b).sum() - np.abs(b).sum())
        curve = float(((new_f - f) * (new_b - b)).sum())
        t = 1.0 if curve <= -slope else -slope / curve
        decreased = slope < 0 and t >= SHORT and bool(np.isfinite(new_f).all())
        if not decreased:
            new_b, new_f = b, f
        elif t < 1:
            new_b, new_f = b + t * (new_b - b), f + t * (new_f - f)
        if not decreased or t < 1:
            state.replace(new_f)
        stream.write_wide(state.b, state.padded(new_b))
        self._costs.record(decreased)
        return decreased

    def release(self) -> None:
        """Free the stored Cholesky factor."""
        self._stream.reserve(-self._reserved)
        self._factor, self._reserved = None, 0

    def _factorize(self, free: Rows) -> Factor | None:
        """Return a Cholesky factor of K among the rows ``free``, whose coefficients lie between their bounds.

        If many coefficients have left or reached a bound since the previous factor was made, a new factor is made of
        the rows ``free`` alone. If few have, the previous factor is extended by the rows whose coefficients left a
        bound. The extended factor still contains the rows whose coefficients reached a bound. The caller must hold the
        coefficients of these rows constant. A small number (ridge) is added to the diagonal of K. Return None if K is
        not positive definite, even with the largest ridge that is tried.
        """
        last = self._factor
        if last is not None:
            new = np.setdiff1d(free, last.rows)
            leaving = len(last.rows) + len(new) - len(free)
            if len(new) + leaving <= MAX_CHANGED * len(free) and (not len(new) or self._grow(last, new)):
                return self._keep(last)
        self.release()
        tried = ridges(self._dtype, len(free))
        made = factor_with_ridge(self._dtype, tried, self._scale, lambda factor: self._grow(factor, free))
        return self._keep(made) if made else None

    def _keep(self, factor: Factor) -> Factor:
        """Store the Cholesky factor for the next step, count its bytes towards the memory limit, and return it."""
        self._stream.reserve(factor.nbytes - self._reserved)
        self._factor, self._reserved = factor, factor.nbytes
        return factor

    def _grow(self, factor: Factor, rows: Rows) -> bool:
        """Extend the Cholesky ``factor`` of K by ``rows``, BLOCK rows at a time.

        Return whether the extended matrix is positive definite.
        """
        stream, m, n = self._stream, len(factor.rows), len(rows)
        panel = self._gram.panel(_round_up(min(BLOCK, m + max(0, n - BLOCK)) + min(BLOCK, n)), square=True)
        W = panel.capacity
        buffers = [stream.buffer(nbytes) for nbytes in (4 * W, 4 * SECTION, self._dtype.itemsize * W**2)]
        grown = all(self._extend(factor, rows[first : first + BLOCK], panel, buffers) for first in range(0, n, BLOCK))
        stream.finish()
        stream.free(*buffers, *panel.buffers())
        return grown

    def _extend(self, factor: Factor, rows: Rows, panel: Panel, buffers: list[Buffer]) -> bool:
        """Extend the Cholesky ``factor`` of K by one block of rows.

        Return whether the extended matrix is positive definite.

        panel, buffers: device memory in which :meth:`_kernel_values` computes kernel values.
        """
        cross = np.empty((len(factor.rows), len(rows)), self._dtype, order="F")
        for first in range(0, max(1, len(cross)), BLOCK):
            known = factor.rows[first : first + BLOCK]
            cross[first : first + len(known)], among = self._kernel_values(known, rows, panel, *buffers)
        with one_thread():
            return factor.extend(rows, cross, among)

    def _kernel_values(
        self, known: Rows, others: Rows, panel: Panel, at: Buffer, count: Buffer, out: Buffer
    ) -> tuple[Matrix, Matrix]:
        """Compute two kernel matrices on the device, and return them as arrays on the host.

        The first array has the kernel values K(known, others). The second array has K(others, others), of which only
        the lower triangle is valid. ``known`` and ``others`` are row numbers of X.

        The method overwrites four device buffers. After the call, they describe the rows ``known``, followed by the
        rows ``others``:

        panel: the features of these rows.
        at: the positions of these rows in the order in which the device stores the rows of X.
        count: the number of these rows.
        out: kernel values between pairs of these rows. Only the kernel values that the method returns are valid.
        """
        stream, gram, W = self._stream, self._gram, panel.capacity
        k, m = len(known), len(known) + len(others)
        places = np.full(W, -1, np.int32)
        places[:m] = gram.rows.position[np.concatenate([known, others])]
        stream.write(at, places)
        stream.write(count, counts([(m, m)]))
        whole = k - k % max(gram.rows.lanes, gram.width)
        gram.gather(panel, at, count)
        gram.tile(panel, Tile(at, count, out, whole, m, symmetric=True))
        K = stream.read(out, self._dtype, (W, W))
        return np.concatenate([K[:whole, k:m], K[k:m, whole:k].T]), K[k:m, k:m].copy()


def _round_up(rows: int) -> int:
    """Return the number ``rows`` rounded up to a multiple of ALIGN."""
    return -(-rows // ALIGN) * ALIGN
