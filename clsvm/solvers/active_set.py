"""Solve dual problems of at most a few thousand rows on which SMO converges slowly, by the active set method.

Solves:   minimise 1/2 b'Kb + q'b + epsilon * sum |b|,  lo <= b <= hi,  equality constraints on sums of b (see below)
Given:    the kernel matrix K (m, m), the linear term q, the bounds lo and hi, and feasible coefficients b
Returns:  b, the gradients f = K b + q, the KKT violation and the number of steps
Stops:    violation <= tol / 2, or several factorizations in a row brought no progress, or the caller stops it
Source:   Scheinberg 2006 (An efficient implementation of an active set method for SVMs); Nocedal and Wright, 16.5

    repeat until stopped:
        F    <- the free coefficients, and the coefficients at a bound that violate optimality most
        L L' <- Cholesky factorization of K_FF, the kernel matrix among F, plus a small multiple of the identity
        repeat until a step reaches no bound:
            d    <- the step to the minimum over F under the equality constraints, by L and a Schur complement
            t    <- the step length of least objective along d, or less so that no coefficient passes a bound
            b, f <- b + t d, f + t K d
            fix the coefficients that reached a bound

A step moves all free coefficients at once towards their joint minimum. The active set method takes about one step for
each coefficient that reaches a bound or leaves it. SMO takes millions of iterations on some problems: with features of
very different sizes, with nearly equal rows of opposite labels, or with a large C.

The equality constraints depend on the problem. The dual of an SVM with a bias fixes the sum of all coefficients b. The
duals of nu-SVC and nu-SVR fix two sums: the sum over the coefficients with lo < 0, and the sum over all others. The
dual of an SVM without a bias fixes no sum. Crammer and Singer's multiclass SVM has a problem for each class, and the
problems of all classes are solved together. For each row, the sum of its coefficients over the classes is fixed.

All computations are made on the host in float64.
"""

from collections.abc import Callable
from itertools import accumulate, repeat, takewhile
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Problem, Vector
from clsvm.solvers import certificate
from clsvm.solvers.certificate import Extremes
from clsvm.solvers.newton import Face, Factor, Rows, factor_with_ridge
from clsvm.threads import one_thread

Flags = NDArray[np.bool_]
EPS = certificate.EPS
# At first, at most MIN_JOINED coefficients at a bound become free to rise, and at most MIN_JOINED become free to fall.
MIN_JOINED = 16
MAX_FIXED = 128  # when this many coefficients have reached bounds, K among the free coefficients is factored anew
# The ridge of K (m, m) is RIDGE * RIDGE_GROWTH^min(p, 3) * m * max K_ii after p factorizations without progress.
RIDGE, RIDGE_GROWTH = 10 * EPS, 1e3
ROUNDS = 100  # a solve over n coefficients factors K among the free coefficients at most n + ROUNDS times
# After PAIRS factorizations of K without progress, every second step changes only the two most violating coefficients.
PAIRS = 2
# The solve ends if more than STUCK factorizations in a row lower neither the KKT violation nor the dual objective.
STUCK = 10
CLOSE = 0.5  # the solve stops at a KKT violation of CLOSE * tol
REFINEMENTS = 1  # iterative refinements of each step, because the step's linear system may be nearly singular


class ActiveSetResult(NamedTuple):
    """Hold the best result of a solve so far, for one or more problems over m rows with the kernel matrix K.

    Attributes
    ----------
    b
        coefficients (problems, m).
    f
        gradients K b + q (problems, m), where q is the linear term of the dual.
    violation
        KKT violation.
    steps
        number of steps so far.
    """

    b: Vector
    f: Vector
    violation: float
    steps: int


def solve(
    K: Vector,
    problem: Problem,
    b: Vector,
    tol: float,
    should_continue: Callable[[ActiveSetResult], bool] = lambda found: True,
    most: float = np.inf,
) -> ActiveSetResult:
    """Solve ``problem`` by the active set method; return the best result found.

    K: kernel matrix (m, m) among the rows of the problem.
    b: feasible coefficients (problems, m) from which the solve starts.
    tol: largest KKT violation of a solution. The solve ends when the violation is at most tol / 2.
    should_continue: function that is called with the best result so far before each factorization of K. If it returns
        False, the solve ends.
    most: largest number of steps.
    """
    state = _State(K, problem, b)
    steps, stuck, max_joined, lowest_dual, lowest = 0, 0, MIN_JOINED, np.inf, np.inf
    best = ActiveSetResult(b, state.f.reshape(b.shape), np.inf, 0)
    for _ in range(ROUNDS + b.size):
        with one_thread():
            state.refresh()
        optimality = certificate.of(problem, state.b, state.f)
        stuck = 0 if optimality.violation < 0.99 * best.violation else stuck
        current, noise = state.dual()
        if optimality.violation < best.violation or (best.violation > tol and current < lowest - noise):
            lowest = current
            now, f = state.b.reshape(b.shape).copy(), state.f.reshape(b.shape).copy()
            best = ActiveSetResult(now, f, optimality.violation, steps)
        best = best._replace(steps=steps)
        if optimality.violation <= CLOSE * tol or stuck > STUCK or not should_continue(best) or steps >= most:
            return best
        # Without progress, every second step changes only the most violating pair, because this always lowers the dual.
        if stuck > PAIRS and stuck % 2:
            inside, entering, ridge, left = np.zeros_like(optimality.inside), state.pair(optimality), RIDGE, 1.0
        else:
            inside, entering = optimality.inside, state.choose_entering(optimality, max_joined, CLOSE * tol / 2)
            ridge, left = RIDGE * RIDGE_GROWTH ** min(stuck, 3), most - steps
        with one_thread():  # for each round anew, so that other threads need not wait for the whole solve
            made_steps, fixed = _descend(state, inside, entering, ridge, left)
        steps += made_steps
        current, noise = state.dual()
        decreased, lowest_dual = current < lowest_dual - noise, min(current, lowest_dual)
        # Each free coefficient that reaches a bound may cost one more step.
        # If many coefficients reached a bound in this round, halve the number that may become free in the next round.
        next_max = 2 * max_joined if 4 * fixed <= np.count_nonzero(entering) else max_joined // 2
        if decreased:
            stuck, max_joined = 0, max(MIN_JOINED, next_max)
        else:
            stuck, max_joined = stuck + 1, MIN_JOINED if made_steps else 1
    return best


class _State:
    """Hold the coefficients and gradients of all problems over m rows, each as a vector of problems * m numbers."""

    def __init__(self, K: Vector, problem: Problem, b: Vector) -> None:
        self.K, self.m, self.max_diagonal = K, K.shape[0], float(np.abs(K.diagonal()).max(initial=0.0))
        self.lo, self.hi, self.q, self.b = problem.lo.ravel(), problem.hi.ravel(), problem.q.ravel(), b.ravel().copy()
        self.f, self.epsilon = self.q.copy(), problem.epsilon
        self.group, self.total = problem.group.ravel(), problem.totals

    def refresh(self) -> None:
        """Correct rounding errors in sums of the coefficients b, then compute the gradients f = K b + q.

        K is the kernel matrix, and q is the linear term of the dual problem. The equality constraints of the dual
        problem fix the values of sums of coefficients. A sum is corrected if it differs from its fixed value. There is
        one exception: if all coefficients of a sum are at bounds up to rounding errors, the coefficients are moved to
        these bounds, and the sum is not corrected.
        """
        sums = np.bincount(self.group, self.b, len(self.total))[: len(self.total)]
        for g in np.flatnonzero(sums != self.total):
            in_group = np.flatnonzero(self.group == g)
            lo, hi, b = self.lo[in_group], self.hi[in_group], self.b[in_group]

            def at_bound(b: Vector, lo: Vector = lo, hi: Vector = hi) -> Flags:
                return np.asarray((b == lo) | (b == hi) | ((b == 0) & (self.epsilon > 0)))

            slack = certificate.SLACK * EPS * float(np.abs(b).sum())  # largest rounding error of the sum of b
            snapped_b = certificate.snapped(b, lo, hi, self.epsilon, slack)
            if at_bound(snapped_b).all() and abs(snapped_b.sum() - self.total[g]) <= 2 * slack:
                self.b[in_group] = snapped_b
                continue  # all coefficients are at bounds; a correction of their sum would make one of them seem free
            excess = b.sum() - self.total[g]
            distance = b - lo if excess > 0 else hi - b
            # Change free coefficients before coefficients at bounds; in each kind, first those that can move farthest.
            order = np.lexsort((-distance, at_bound(b)))
            b[order] -= np.sign(excess) * np.diff(np.minimum(np.cumsum(distance[order]), abs(excess)), prepend=0.0)
            self.b[in_group] = np.clip(b, lo, hi)
        self.f = (self.b.reshape(-1, self.m) @ self.K).ravel() + self.q

    def dual(self) -> tuple[float, float]:
        """Return the dual objective, which is minimised, and the typical size of its rounding error."""
        size = float(np.abs(self.b).sum())
        return float(self.b @ (self.f + self.q)) / 2 + self.epsilon * size, EPS * self.max_diagonal * size**2 / 100

    def choose_entering(self, optimality: Extremes, max_joined: int, least: float) -> NDArray[np.int8]:
        """Choose coefficients at bounds to become free: the ones that violate optimality most.

        Return a number for each coefficient: 1 if it becomes free to rise, -1 if it becomes free to fall, else 0. If
        the dual has a term epsilon * |b| with epsilon > 0, a coefficient of 0 counts as at a bound.

        max_joined: at most this many coefficients are chosen to rise, and at most this many to fall.
        least: a coefficient is chosen only if it violates optimality by more than this number.
        """
        inside, entering, middle = optimality.inside, np.zeros(len(self.b), np.int8), optimality.offset
        if optimality.fixed_sums:
            # Coefficients can be chosen to rise where the dual's derivative is below ``middle``, and to fall above it.
            # ``middle`` is halfway between the smallest derivative for rising and the largest for falling coefficients.
            with np.errstate(invalid="ignore"):
                between = (optimality.least + optimality.most) / 2
            middle = np.where(np.isfinite(between), between, optimality.rho)[optimality.group]
        for sign, excess in ((1, middle - optimality.right), (-1, optimality.left - middle)):
            excess = np.where(inside, -np.inf, excess)
            most = np.argpartition(-excess, min(max_joined, len(excess)) - 1)[:max_joined]
            entering[most[excess[most] > least]] = sign
        return entering

    def pair(self, optimality: Extremes) -> NDArray[np.int8]:
        """Mark the most violating pair of coefficients.

        Return 1 for the coefficient that will rise, -1 for the one that will fall, and 0 for all others. If no sum of
        coefficients is fixed, only the most violating coefficient is marked.
        """
        entering, in_group = np.zeros(len(self.b), np.int8), optimality.group == optimality.violations.argmax()
        up = np.where(in_group, optimality.right, np.inf).argmin()
        down = np.where(in_group, optimality.left, -np.inf).argmax()
        if optimality.fixed_sums or -optimality.right[up] >= optimality.left[down]:
            entering[up] = 1
        if optimality.fixed_sums or not entering[up]:
            entering[down] = -1
        return entering

    def hessian(self, rows: Rows) -> Vector:
        """Return the Hessian of the dual with respect to the coefficients with the indices ``rows``.

        ``rows`` are indices in a vector with the coefficients of all problems, m for each problem. The entry for two
        coefficients of one problem is the kernel value of their rows. The entry is 0 if their problems differ.
        """
        row, part = rows % self.m, rows // self.m
        tile = self.K[np.ix_(row, row)]
        return tile if self.b.size == self.m else tile * (part[:, None] == part)

    def smooth_bounds(self, rows: Rows, up: Flags) -> tuple[Vector, Vector, Vector]:
        """Return three vectors for some coefficients b: derivatives of epsilon * |b|, lower bounds and upper bounds.

        If epsilon > 0, the returned bounds are narrowed so that no coefficient can change its sign. Between them,
        epsilon * |b| is linear.

        rows: indices of the coefficients in the vector of all problems' coefficients.
        up: mask of the coefficients that will rise if they are 0. The others will fall if they are 0.
        """
        b, lo, hi, epsilon = self.b[rows], self.lo[rows], self.hi[rows], self.epsilon
        epsilon_term = np.where(b == 0, np.where(up, epsilon, -epsilon), np.sign(b) * epsilon)
        positive = epsilon_term > 0
        top = np.where(~positive & (epsilon > 0), np.minimum(hi, 0), hi)
        return epsilon_term, np.where(positive & (epsilon > 0), np.maximum(lo, 0), lo), top

    def update_gradient(self, rows: Rows, step: Vector) -> None:
        """Update the gradients f = K b + q after some coefficients b have changed; K is the kernel matrix.

        rows: indices of the changed coefficients. The vector of all coefficients has the m coefficients of the first
            problem, then the m coefficients of the second problem, and so on.
        step: the change of each of these coefficients.
        """
        row, f = rows % self.m, self.f.reshape(-1, self.m)
        for part in np.unique(rows // self.m):
            in_group = rows // self.m == part
            f[part] += self.K[:, row[in_group]] @ step[in_group]


def _descend(state: _State, inside: Flags, entering: NDArray[np.int8], ridge: float, most: float) -> tuple[int, int]:
    """Minimise the dual over the free coefficients, in at most ``most`` steps.

    Return the number of steps that changed a coefficient, and the number of coefficients that were fixed at a bound.
    If the dual has a term epsilon * |b| with epsilon > 0, 0 is a bound too.

    state: coefficients and gradients, which the function changes.
    inside: mask of the coefficients between their bounds that are free.
    entering: 1 for a coefficient that is made free too and shall rise, -1 for a coefficient that is made free too and
        shall fall, and 0 for every other coefficient.
    ridge: first ridge to try. Let H be the Hessian of the dual for the k free coefficients. The product
        ridge * k * (largest diagonal entry of H) is added to the diagonal of H. If the matrix is then not positive
        definite, a larger ridge is tried.
    most: largest number of steps.
    """
    F = np.flatnonzero(inside | (entering != 0))
    if not F.size:
        return 0, 0
    epsilon_term, bottom, top = state.smooth_bounds(F, entering[F] > 0)
    hessian, sums = state.hessian(F), state.total.size
    largest = float(np.abs(hessian.diagonal()).max())
    present, group = np.unique(state.group[F] if sums else np.zeros(len(F), np.intp), return_inverse=True)
    factor = _factorize(hessian, ridge * len(F), largest or 1.0)
    face = Face(factor, state.f[F] + epsilon_term, group, len(present) if sums else 0, REFINEMENTS)
    fixed, zeros, made_steps = np.zeros(len(F), bool), np.zeros(len(F)), 0
    # A coefficient that has just left a bound is fixed there again if the step would take it beyond this bound.
    for _ in range(MAX_FIXED + len(F)):
        d = face.minimum(fixed, zeros)
        if d is None:
            break
        if sums:  # rounding errors are removed from the step d, because d must not change the fixed sums
            free_count = np.bincount(group[~fixed], minlength=len(present))
            for _ in range(2):
                excess = np.bincount(group, d, len(present)) / np.maximum(free_count, 1)
                d[~fixed] -= excess[group[~fixed]]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(d > 0, (top - state.b[F]) / d, np.where(d < 0, (bottom - state.b[F]) / d, np.inf))
        ratio[fixed] = np.inf
        slope, curve = float(d @ (state.f[F] + epsilon_term)), float(d @ (hessian @ d))
        flat = curve <= 10 * EPS * len(F) * largest * float(d @ d)
        step = min(float(ratio.min()), np.inf if flat else -slope / curve)
        if not slope < 0 or not np.isfinite(step):
            break
        hit = ratio <= step
        b = np.where(hit, np.where(d > 0, top, bottom), np.clip(state.b[F] + step * d, bottom, top))
        change = b - state.b[F]
        change[fixed] = 0
        if change.any():
            state.b[F] += change
            state.b[F[hit]] = b[hit]
            state.update_gradient(F, change)
            face.update_gradient(state.f[F] + epsilon_term)
            made_steps += 1
        if not hit.any() or made_steps >= most:
            break
        reached = np.flatnonzero(hit)
        if not step and not entering[F][~fixed & ~hit].any():
            # Fix only one of the coefficients that reached bounds. To fix all could leave none that can move.
            reached = reached[[np.abs(d[reached]).argmax()]]
        fixed[reached] = True
        if np.count_nonzero(fixed) >= MAX_FIXED and made_steps:
            break
    return made_steps, int(np.count_nonzero(fixed))


def _factorize(hessian: Vector, ridge: float, least: float) -> Factor:
    """Return the Cholesky factor of ``hessian`` plus a small multiple of the identity.

    The multiple grows until the sum is positive definite.

    hessian: Hessian of the dual with respect to the free coefficients.
    ridge: first multiple to try, relative to the mean diagonal entry of ``hessian``.
    least: lower limit of this mean. It replaces a smaller mean.
    """
    ridges = takewhile(np.isfinite, accumulate(repeat(100.0), mul, initial=ridge))
    factor = factor_with_ridge(
        np.float64, ridges, least, lambda one: one.extend(np.arange(len(hessian)), hessian[:0], hessian)
    )
    if factor is None:
        raise ValueError("kernel values must be finite, got NaN or infinity")
    return factor
