"""Compute the optimality conditions of dual problems in float64, and check in float64 whether solves have converged.

:func:`of` takes coefficients b and gradients f = K b + q, with the kernel matrix K and the dual's linear term q. It
computes the derivatives of the dual, their extremes, the offsets and the KKT violation. :func:`evaluate` adds the
objectives. :class:`Check` computes f of a row again from float64 kernel values if rounding errors of K could change
whether a solve has converged.

An "entry" is one coefficient of one problem; the entries of all problems follow one another. A "group" is a set of
entries whose sum the constraint fixes. The multiplier of this sum is the group's offset rho. If the constraint fixes
no sum, a group is one whole problem, rho is 0, and each entry has optimality conditions of its own.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import relative_gap
from clsvm.solvers.result import Settings

OBJECTIVE = 5e-5  # largest accepted relative error that rounding of K may cause in an objective
# Rounding errors are measured in a sample of SAMPLE rows, or in all rows if there are at most FEW * SAMPLE.
SAMPLE, FEW = 256, 4
# Rounding errors of K are too large for tol if they can change a gradient by more than INSUFFICIENT * tol.
INSUFFICIENT = 100.0
EPS = float(np.finfo(np.float64).eps)
SLACK = 64  # the rounding error of a sum of float64 coefficients b is assumed to be at most SLACK * EPS * sum |b|


def finite(values: NDArray[Any], kernel: Any) -> None:
    """Raise ValueError if kernel values, or sums of them, are not finite."""
    if not np.isfinite(values).all():
        raise ValueError(f"{kernel!r} is not finite for some pairs of rows")


def precision_insufficient(dtype: str, scale: float, problem: Problem, tol: float) -> bool:
    """Return whether kernel values of ``dtype`` are too coarse to solve ``problem`` within tol.

    Kernel values are too coarse if their rounding error times the largest possible |coefficient| exceeds 100 * tol.

    scale: rounding error of a kernel value in units of eps of ``dtype``.
    """
    return float(np.finfo(dtype).eps) * scale * float(np.maximum(problem.hi, -problem.lo).max()) > INSUFFICIENT * tol


def rounding_bounds(dtype: str, scale: float, b: Vector) -> Vector:
    """Return for each problem a bound of the error of K b that the rounding of K can cause, (problems,).

    dtype: dtype of the kernel matrix K.
    scale: rounding error of a kernel value in units of eps of ``dtype``.
    b: coefficients (problems, n).
    """
    return np.asarray(float(np.finfo(dtype).eps) * scale * np.abs(b).sum(axis=1))


class Extremes(NamedTuple):
    """Hold the optimality conditions of coefficients, by entry and by group.

    An entry is one coefficient of one problem. A group is a set of entries whose sum the constraint fixes; if it fixes
    no sum, a group is all entries of a problem.

    Attributes
    ----------
    right
        derivative of the dual for a rising coefficient, (entries,); infinity at the upper bound.
    left
        derivative of the dual for a falling coefficient, (entries,); -infinity at the lower bound.
    inside
        mask of the free entries, (entries,). An entry is free if ``right`` equals ``left``. If epsilon > 0, an entry
        with the coefficient 0 is never free.
    group
        number of the group of each entry, (entries,).
    least
        smallest ``right`` of each group, (groups,).
    most
        largest ``left`` of each group, (groups,).
    rho
        offset of each group, which is the multiplier of the fixed sum, (groups,); 0 if no sum is fixed.
    violations
        KKT violation of each group, (groups,).
    fixed_sums
        whether the constraint fixes the sums of the groups.
    """

    right: Vector
    left: Vector
    inside: NDArray[np.bool_]
    group: NDArray[np.intp]
    least: Vector
    most: Vector
    rho: Vector
    violations: Vector
    fixed_sums: bool

    @property
    def violation(self) -> float:
        """Return the largest KKT violation of all problems."""
        return float(self.violations.max(initial=0.0))

    @property
    def offset(self) -> Vector:
        """Return an array (entries,) with the offset of each coefficient of all dual problems.

        If the constraints of the dual problems fix sums of coefficients, the offset of a coefficient is the Lagrange
        multiplier of the fixed sum that contains the coefficient. If no sum is fixed, all offsets are 0.
        """
        return self.rho[self.group]

    def violating(self, tol: float) -> NDArray[np.bool_]:
        """Return a mask of the coefficients that violate the optimality conditions by more than tol, (entries,).

        The offset of a coefficient is the Lagrange multiplier of the equality constraint that contains the coefficient,
        or 0 if there is no equality constraint. The derivative of the dual for a rising coefficient must be at least
        the offset, unless the coefficient is at its upper bound. The derivative for a falling coefficient must be at
        most the offset, unless the coefficient is at its lower bound.
        """
        return np.asarray((self.right < self.offset - tol) | (self.left > self.offset + tol))

    def deciding(self, tol: float, errors: Vector) -> NDArray[np.bool_]:
        """Return a mask of the entries whose derivatives must be exact to decide whether the violation is within tol.

        An entry is one coefficient of one dual problem. The mask has the shape (entries,). A group is all entries whose
        sum one equality constraint fixes. A group whose KKT violation is within tol in spite of rounding errors has no
        entry in the mask. In any other group, two kinds of entries are in the mask: entries whose exact derivative may
        be the smallest or the largest of the group, and free entries, which are not at a bound. The free entries
        determine the multiplier of the equality constraint.

        If there is no equality constraint, an entry is in the mask if its own violation may be near or above tol.

        errors: bounds of the rounding errors of the derivatives, (entries,).
        """
        if not self.fixed_sums:
            return (-self.right > tol - 2 * errors) | (self.left > tol - 2 * errors)
        low, high = np.full((2, *self.rho.shape), np.inf), np.full((2, *self.rho.shape), -np.inf)
        # high[0] - low[0] is an upper bound of each group's KKT violation, and high[1] - low[1] is a lower bound.
        for which, sign in enumerate((-1, 1)):
            np.minimum.at(low[which], self.group, self.right + sign * errors)
            np.maximum.at(high[which], self.group, self.left - sign * errors)
        unverifiable = ~(high[0] - low[0] <= tol)[self.group]
        extreme = (self.right - errors <= low[1][self.group]) | (self.left + errors >= high[1][self.group])
        return np.asarray(unverifiable & (extreme | self.inside))


def one_sided_derivatives(f: Vector, b: Vector, lo: Vector, hi: Vector, epsilon: float) -> tuple[Vector, Vector]:
    """Return the derivatives of the dual for rising and for falling coefficients b.

    The derivative for rising b is infinity at the upper bound hi. The derivative for falling b is -infinity at the
    lower bound lo. The OpenCL code in common.cl computes the same.

    f: gradients of the dual without its term epsilon * sum |b|.
    """
    right, left = f, f
    if epsilon:
        right, left = f + np.where(b < 0, -epsilon, epsilon), f + np.where(b > 0, epsilon, -epsilon)
    return np.where(b < hi, right, np.inf), np.where(b > lo, left, -np.inf)


def snapped(b: Vector, lo: Vector, hi: Vector, epsilon: float, distance: float | Vector) -> Vector:
    """Move coefficients b that are near a bound lo or hi to this bound; return all coefficients.

    If epsilon is not 0, coefficients near 0 are moved to 0, where the dual's term epsilon * |b| is not smooth.

    distance: largest distance that counts as near.
    """
    b = np.where(b - lo <= distance, lo, np.where(hi - b <= distance, hi, b))
    return np.where((np.abs(b) <= distance) & (lo < 0) & (hi > 0), 0.0, b) if epsilon else b


def of(problem: Problem, b: Vector, f: Vector) -> Extremes:
    """Return the optimality conditions at coefficients b with gradients f, both (problems, n) or flat.

    The gradients are f = K b + q, with the kernel matrix K and the linear term q of the dual.
    """
    f, b, lo, hi, group = f.ravel(), b.ravel(), problem.lo.ravel(), problem.hi.ravel(), problem.group.ravel()
    epsilon, fixed = problem.epsilon, len(problem.totals)
    groups = fixed or problem.problems
    right, left = one_sided_derivatives(f, b, lo, hi, epsilon)
    # The dual's term epsilon * |b| has a kink at b = 0, so b = 0 counts as a bound, even if both rounded slopes agree.
    inside = (right == left) & ~((b == 0) & (epsilon > 0))
    least, most, rho = np.full(groups, np.inf), np.full(groups, -np.inf), np.zeros(groups)
    with np.errstate(invalid="ignore"):
        np.minimum.at(least, group, right)
        np.maximum.at(most, group, left)
        worst = most - least if fixed else np.maximum(-least, most)
        violations = np.nan_to_num(np.maximum(worst, 0.0), nan=np.inf, posinf=np.inf)
    if fixed:
        slacks = np.asarray(SLACK * EPS * np.bincount(group, np.abs(b), groups), np.float64)
        snapped_b = snapped(b, lo, hi, epsilon, slacks[group])
        if (snapped_b != b).any():  # a coefficient within rounding of a bound must not count as free
            rho = of(problem, snapped_b, f).rho
        else:
            free = group[inside]
            sums = np.bincount(free, right[inside], groups)
            rho = offsets(least, most, np.bincount(free, minlength=groups), sums)
    return Extremes(right, left, inside, group, least, most, rho, violations, fixed > 0)


def offsets(least: Vector, most: Vector, count: NDArray[Any], sums: NDArray[Any]) -> Vector:
    """Return the offset of each group of coefficients: the mean of the dual's derivatives for its free coefficients.

    If no coefficient of a group is free, its offset is the middle between its extreme derivatives ``least`` and
    ``most``. All arrays have one number for each group.

    count: number of free coefficients.
    sums: sum of the derivatives for free coefficients.
    """
    both = np.isfinite(least) & np.isfinite(most)
    with np.errstate(invalid="ignore"):
        middle = np.where(both, (least + most) / 2, np.where(np.isfinite(least), least, most))
    return np.where(count > 0, sums / np.maximum(count, 1), np.where(np.isfinite(middle), middle, 0.0))


class CheckResult(NamedTuple):
    """Hold the result of a float64 check of a solve.

    Attributes
    ----------
    violation
        KKT violation after the check.
    rows
        mask of the rows whose gradients the check computed in float64, (n,).
    f
        gradients of the dual, (problems, n), with float64 values for the rows that ``rows`` marks.
    """

    violation: float
    rows: NDArray[np.bool_]
    f: Vector


class Check:
    """Check a solve in float64: compute gradients f again for rows whose rounding errors could change the outcome.

    The outcome is whether the KKT violation is within tol. If ``settings.reported`` is true, the objectives are part of
    the outcome too. For each row, the check keeps a bound of the rounding error of f. When f of a row is computed in
    float64, the row's bound becomes 0. Later changes of coefficients raise it again.

    dtype: dtype of kernel values.
    settings: the settings of the solve.
    """

    def __init__(self, dtype: str, settings: Settings) -> None:
        self.exact, self._dtype, self._settings = settings.exact, dtype, settings
        self._b: Vector | None = None  # coefficients at which gradients f were last computed in float64
        # _product: K b for the coefficients b = _b, (problems, n). _errors: bound of each row's rounding error, (n,).
        self._product = self._errors = np.zeros(0)
        self._exact_rows = np.zeros(0, bool)  # mask of the rows whose ``_product`` comes from float64 kernel values

    def error_bound(self, b: Vector) -> float:
        """Return the largest error of the gradients f = K b + q that rounding of K can cause.

        b: coefficients (problems, n).
        """
        return float(rounding_bounds(self._dtype, self._settings.kernel_scale, b).max())

    def error_bounds(self, b: Vector) -> Vector:
        """Return for each row an upper bound of the rounding errors of the row's gradients, (n,).

        A row has one gradient for each dual problem, and the bound holds for all of them. If the gradients of a row
        were computed in float64 before, only the change of b since then contributes to the row's bound.

        b: coefficients of the dual problems, (problems, n).
        """
        whole = np.full(b.shape[1], self.error_bound(b))
        return whole if self._b is None else np.minimum(whole, self._errors + self.error_bound(b - self._b))

    def remember(self, rows: NDArray[np.bool_], b: Vector, c: Vector) -> None:
        """Store the product K b. Later checks add K times the change of b to it.

        rows: mask (n,) of the rows whose product comes from float64 kernel values.
        b: coefficients (problems, n).
        c: product of b and the kernel matrix K, (problems, n).
        """
        self._errors = np.where(rows, 0.0, self.error_bounds(b))
        self._exact_rows, self._b, self._product = rows, b.copy(), c

    def invalidate(self, rows: slice) -> None:
        """Record that the gradients of the ``rows`` are no longer from float64 kernel values.

        The solve calls this after it has replaced the gradients by values in its own dtype.
        """
        if self._b is not None:
            self._errors[rows] = np.inf

    def evaluated(self, at: NDArray[np.intp], b: Vector) -> Vector:
        """Return the product K b for the rows ``at`` in float64, (problems, rows).

        For some rows the product with earlier coefficients is known in float64. If few coefficients changed since,
        only K times their change is computed and added.

        b: coefficients (problems, n).
        """
        assert self.exact
        changed = b if self._b is None else b - self._b
        exact = self._exact_rows[at] if 2 * np.count_nonzero(changed) < np.count_nonzero(b) else np.zeros(len(at), bool)
        out = np.empty((len(b), len(at)))
        if exact.any():
            out[:, exact] = self._product[:, at[exact]] + (self.exact(at[exact], changed) if changed.any() else 0)
        if not exact.all():
            out[:, ~exact] = self.exact(at[~exact], b)
        return out

    def __call__(
        self, problem: Problem, b: Vector, f: Vector, worst: float, tol: float, gap: bool = False
    ) -> CheckResult:
        """Check the KKT violation, and perhaps the objectives, of coefficients b with gradients f, both (problems, n).

        For a solve in float32, the check of the violation computes the gradients of a row again in float64 if rounding
        errors of these gradients could change whether the violation is within tol. Gradients with an error bound of at
        most tol / 10 are not computed again. For a solve in float64, the gradients of all rows are computed again,
        because rounding errors of many iterations add up.

        The objectives are checked in two cases: ``gap`` is true, or the solve's settings ask for a report and no
        float64 gradients have shown a violation above tol. The check of the objectives computes gradients of support
        vectors again in float64 if rounding may cause a relative error of an objective above OBJECTIVE (5e-5).

        worst: KKT violation at the given gradients f.
        tol: largest KKT violation that is accepted.
        gap: whether a small duality gap may end the solve.
        """
        errors, f, checked = self.error_bounds(b), f.copy(), np.zeros(problem.n, bool)

        def recompute(rows: NDArray[np.intp]) -> Vector:
            """Replace gradients f of the ``rows`` by float64 values; return the absolute changes (problems, rows)."""
            values = self.evaluated(rows, b) + problem.q[:, rows]
            change = np.abs(values - f[:, rows])
            f[:, rows], checked[rows] = values, True
            return np.asarray(change)

        rows: NDArray[np.bool_] = np.full(problem.n, self._dtype == "float64")
        if not rows.any() and worst + 2 * errors.max(initial=0.0) > tol:
            rows = rows_to_check(problem, b, f, errors, tol)
        if rows.any():
            recompute(np.flatnonzero(rows))
        if gap or (self._settings.reported and (not checked.any() or of(problem, b, f).violation <= tol)):
            size, weight = dual_size(problem, b, f)
            imprecise = (errors[:, None] * weight > OBJECTIVE * size).any(axis=1)
            unchecked = np.flatnonzero(~checked & imprecise & (b != 0).any(axis=0))
            if self._settings.sizes is not None and len(unchecked) > FEW * SAMPLE:
                # Estimate the error of the objective from a sample, in which each row stands for ``times`` rows.
                some, times = sample(unchecked, b, self._settings.sizes)
                effect = (recompute(some) * np.abs(b[:, some]) * times).sum(axis=1)
                unchecked = unchecked[~checked[unchecked] & (effect > OBJECTIVE * size).any()]
            if unchecked.size:
                recompute(unchecked)
        if checked.any():
            worst = of(problem, b, f).violation
            self.remember(checked, b, f - problem.q)
        return CheckResult(worst, checked, f)


def rows_to_check(problem: Problem, b: Vector, f: Vector, errors: Vector, tol: float) -> NDArray[np.bool_]:
    """Mark the rows whose gradients f must be exact to decide whether the KKT violation is within tol, (n,).

    Rows with an error bound of at most a tenth of tol are not marked.

    b: coefficients (problems, n).
    f: gradients (problems, n).
    errors: for each row, a bound of the rounding error of its gradients, (n,).
    """
    deciding = of(problem, b, f).deciding(tol, np.tile(errors, problem.problems))
    return np.asarray(deciding.reshape(b.shape).any(axis=0) & (errors > tol / 10))


def sample(rows: NDArray[np.intp], b: Vector, sizes: Vector) -> tuple[NDArray[np.intp], Vector]:
    """Return a sample of the ``rows`` in ascending order, and how many of the ``rows`` each sampled row represents.

    The sample has at most SAMPLE = 256 rows. It has the 64 rows with the largest ``sizes``, because their kernel values
    have the largest rounding errors. Each of these 64 rows represents only itself. The other rows are sorted by their
    largest |b| over all problems. Every t-th row of this order is taken, with the smallest integer t for which at most
    192 rows are taken. Each of them represents the same number of rows.

    b: coefficients of the dual problems, (problems, n).
    sizes: for each of the n rows, a number that grows with the rounding errors of the row's kernel values. For most
        kernels it is the squared norm of the row (Kernel.sizes).
    """
    by_size = rows[np.argsort(-sizes[rows], kind="stable")]
    largest, others = by_size[: SAMPLE // 4], by_size[SAMPLE // 4 :]
    by_weight = others[np.argsort(-np.abs(b[:, others]).max(axis=0), kind="stable")]
    some = by_weight[:: -(-len(others) // (SAMPLE - len(largest)))]
    found, times = np.concatenate([largest, some]), np.ones(len(largest) + len(some))
    times[len(largest) :] = len(others) / max(1, len(some))
    order = np.argsort(found)
    return found[order], times[order]


def objectives(problem: Problem, b: Vector, f: Vector, offset: Vector) -> tuple[Vector, Vector]:
    """Return the primal and the dual objective of each problem.

    The problems of Crammer and Singer's multiclass SVM, one for each class, have one primal and one dual objective
    together.

    b: coefficients (problems, n).
    f: gradients K b + q, with the kernel matrix K and the linear term q of the dual, (problems, n).
    offset: for each coefficient, the Lagrange multiplier of the equality constraint that contains the coefficient, or 0
        if there is no equality constraint, (problems, n).
    """
    lo, hi, q, epsilon = problem.lo, problem.hi, problem.q, problem.epsilon
    if problem.constraint is Constraint.COUPLED:
        quadratic, own = np.asarray([(b * (f - q)).sum()]), np.where(hi > 0, f, 0).sum(axis=0)
        loss = (hi.max(axis=0) * (f.max(axis=0) - own)).sum()
        return quadratic / 2 + loss, -(quadratic / 2 + (q * b).sum())
    quadratic, slack = (b * (f - q)).sum(axis=1), offset - f
    loss = np.maximum(np.maximum(lo * (slack + epsilon), hi * (slack - epsilon)), 0).sum(axis=1)
    dual = -(quadratic / 2 + (q * b).sum(axis=1) + epsilon * np.abs(b).sum(axis=1))
    return quadratic / 2 + loss - (offset * b).sum(axis=1), dual


class Evaluation(NamedTuple):
    """Hold offsets, objectives, violation and duality gap of coefficients.

    Attributes
    ----------
    rho
        offsets (problems, groups). A group is the rows whose coefficients have one fixed sum, or all rows if no sum is
        fixed.
    primal, dual
        primal and dual objective of each problem. The problems of Crammer and Singer's multiclass SVM, one for each
        class, have a common primal and a common dual objective.
    violation
        largest KKT violation of all problems.
    gap
        largest relative duality gap of all problems.
    """

    rho: Vector
    primal: Vector
    dual: Vector
    violation: float
    gap: float


def evaluate(problem: Problem, b: Vector, f: Vector) -> Evaluation:
    """Return offsets, objectives, KKT violation and duality gap of coefficients.

    b: coefficients (problems, n).
    f: gradients K b + q of the dual, with the kernel matrix K and the linear term q, (problems, n).
    """
    optimality = of(problem, b, f)
    primal, dual = objectives(problem, b, f, optimality.offset.reshape(b.shape))
    coupled = problem.constraint is Constraint.COUPLED
    rho = np.zeros((problem.problems, 1)) if coupled else optimality.rho.reshape(problem.problems, -1)
    return Evaluation(rho, primal, dual, optimality.violation, float(max(map(relative_gap, primal, dual))))


def dual_size(problem: Problem, b: Vector, f: Vector) -> tuple[Vector, Vector]:
    """Return the absolute dual objective and the sum of |b| of each problem, both (problems,).

    If the gradients f have errors of at most e, the dual objective has an error of at most e times the sum of |b|.

    b: coefficients (problems, n).
    """
    weight = np.abs(b).sum(axis=1)
    return np.abs((b * (f + problem.q)).sum(axis=1) / 2 + problem.epsilon * weight), weight
