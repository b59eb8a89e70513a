"""Define :class:`Problem`, the dual problem of a kernel SVM, and for each task a function that makes one.

A problem has one signed coefficient b_i for each row i; for classification b_i = y_i alpha_i:

    minimise    1/2 b'Kb + q'b + epsilon * sum_i |b_i|
    subject to  lo_i <= b_i <= hi_i for each row i, and a constraint on sums of coefficients (:class:`Constraint`)

K (n, n) is the kernel matrix, and lo <= 0 <= hi. f = K b + q is the gradient without the epsilon term. rho is the
offset, and decision values are K b - rho. The loss of row i in the primal problem is

    max(lo_i * (rho - f_i + epsilon), hi_i * (rho - f_i - epsilon), 0)

If the constraint is sum_i b_i = total, the primal problem also has the term - rho * total.

In epsilon-SVR b_i stands for alpha_i - alpha*_i, and epsilon * |b_i| for epsilon * (alpha_i + alpha*_i). alpha_i and
alpha*_i are the multipliers of errors above and below the tube. In all other problems epsilon is 0.

Crammer and Singer's multiclass SVM has one problem for each class p. Row i has a coefficient b_pi and a gradient f_pi
in the problem of class p. Let c be the class of row i, and C_i the row's penalty parameter C:

    p = c       -C_i <= b_pi <= C_i and q_pi = -1
    other p     -C_i <= b_pi <= 0   and q_pi = 0

The constraint is sum_p b_pi = 0 for each row i. So b_ci is never negative, and its lower bound -C_i has no effect. The
offsets are 0. The gradient f_ci is d - 1, where d is the decision value of row i for class c, and 1 is the margin. For
any other class p, f_pi is the decision value of row i for class p. The loss of row i is C_i * (max_p f_pi - f_ci).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Constraint(enum.Enum):
    """Name the constraints on sums of coefficients that a problem can have."""

    BIAS = "sum_i b_pi = total for every problem p, the dual of an offset that costs nothing"
    NONE = "nothing: the offset is 0"
    SPLIT = "the sum of the rows with hi > 0 and that of the rows with lo < 0, for every problem p (nu-SVC, nu-SVR)"
    COUPLED = "sum_p b_pi = 0 for every row i: one problem a class (Crammer and Singer), offsets 0"

    @property
    def has_offset(self) -> bool:
        """Return whether the decision functions have offsets that the fit determines.

        An offset is the Lagrange multiplier of a constraint that fixes the sum of a problem's coefficients over rows.
        The constraint COUPLED, of Crammer and Singer's SVM, fixes sums of another kind: for each row, the sum of the
        row's coefficients over all problems. COUPLED therefore gives no offset.
        """
        return self in (Constraint.BIAS, Constraint.SPLIT)

    @property
    def groups(self) -> int:
        """Return the number of groups into which a problem's rows are divided, each with its own offset.

        The constraint SPLIT, of nu-SVC and nu-SVR, fixes two sums of coefficients, so it has 2 groups. Other
        constraints have 1.
        """
        return 2 if self is Constraint.SPLIT else 1


@dataclass(frozen=True)
class Problem:
    """Hold one or more dual problems over the same n rows.

    A row with lo = hi = 0 takes no part in a problem.

    Attributes
    ----------
    lo, hi
        bounds of the coefficients, (problems, n) float64.
    q
        linear term, (problems, n) float64.
    constraint
        which sums of coefficients are fixed.
    epsilon
        factor of the term sum_i |b_i| over the coefficients b_i: epsilon of epsilon-SVR, else 0.
    start
        feasible coefficients (problems, n); None stands for zeros. The constraint fixes sums of
        coefficients at their values in ``start``.
    """

    lo: Vector
    hi: Vector
    q: Vector
    constraint: Constraint = Constraint.BIAS
    epsilon: float = 0.0
    start: Vector | None = None

    @property
    def problems(self) -> int:
        return int(self.q.shape[0])

    @property
    def groups(self) -> int:
        """Return the number of groups into which a problem's rows are divided, each with its own offset.

        The constraint SPLIT, of nu-SVC and nu-SVR, fixes two sums of coefficients, so it has 2 groups. Other
        constraints have 1.
        """
        return self.constraint.groups

    @property
    def initial(self) -> Vector:
        """Return feasible coefficients (problems, n): ``start``, or zeros if it is None."""
        return np.zeros_like(self.q) if self.start is None else self.start

    @property
    def total(self) -> Vector:
        """Return the sum of the coefficients of each group of rows, (problems, groups).

        The constraint SPLIT, of nu-SVC and nu-SVR, divides the rows into two groups; otherwise all rows are one group.
        """
        start = self.initial
        if self.groups == 1:
            return np.asarray(start.sum(axis=1, keepdims=True))
        return np.stack([np.maximum(start, 0).sum(axis=1), np.minimum(start, 0).sum(axis=1)], axis=1)

    @property
    def group(self) -> NDArray[np.intp]:
        """Return for each coefficient the number of the fixed sum to which the coefficient belongs, (problems, n).

        The fixed sums are the sums of coefficients that the constraint fixes. Sum number g, counted from 0, has the
        value totals[g]. If the constraint fixes no sum, return for each coefficient the number of its problem.
        """
        p = np.arange(self.problems)[:, None]
        match self.constraint:
            case Constraint.COUPLED:
                return np.broadcast_to(np.arange(self.n), self.q.shape)
            case Constraint.SPLIT:
                return np.asarray(2 * p + (self.lo < 0))
        return np.broadcast_to(p, self.q.shape)

    @property
    def totals(self) -> Vector:
        """Return the values at which the constraint fixes sums of coefficients: a 1-D array, one value for each sum.

        If the constraint fixes no sum, the array is empty.
        """
        if self.constraint is Constraint.COUPLED:
            return np.zeros(self.n)
        return np.zeros(0) if self.constraint is Constraint.NONE else self.total.ravel()

    @property
    def balanced(self) -> bool:
        """Return whether the constraint makes the coefficients of each problem add up to 0."""
        return self.constraint is Constraint.BIAS and not self.totals.any()

    @property
    def n(self) -> int:
        return int(self.q.shape[1])

    def embedded(self, rows: NDArray[np.intp], n: int) -> Problem:
        """Return this problem as a problem over n rows: row j becomes row ``rows[j]``.

        The remaining rows have lo = hi = 0, so their coefficients are 0.
        """
        start = None if self.start is None else _embedded(self.start, rows, n)
        lo, hi, q = (_embedded(values, rows, n) for values in (self.lo, self.hi, self.q))
        return replace(self, lo=lo, hi=hi, q=q, start=start)

    def ratio(self, other: Problem) -> float:
        """Return the sum of hi - lo of the problem ``other``, divided by the same sum of this problem.

        lo and hi are the bounds of a coefficient. Both sums count only coefficients that have lo < hi in both problems.
        If there is no such coefficient, return 1.
        """
        both = (self.hi > self.lo) & (other.hi > other.lo)
        self_range, other_range = (float((p.hi - p.lo)[both].sum()) for p in (self, other))
        return other_range / self_range if self_range > 0 else 1.0

    def feasible(self, b: Vector) -> Vector:
        """Return feasible coefficients (problems, n) near ``b``, from which a solve can start.

        If the problem has a ``start``, :func:`filled` changes ``b`` until each sum that the constraint fixes has the
        same value as in ``start``.

        If the problem has no ``start``, all fixed sums are 0. The coefficients are clipped to their bounds, then
        changed as the constraint asks:

        - BIAS: the sum of each problem's coefficients must be 0. If the sum is positive, all positive coefficients are
          multiplied by one factor below 1, which makes the sum 0. If the sum is negative, all negative coefficients
          are multiplied by such a factor.
        - COUPLED: each row's coefficients must have the sum 0 over all problems. The coefficient in the problem of the
          row's class becomes minus the sum of the row's other coefficients. If this value exceeds the upper bound, the
          other coefficients are first multiplied by one factor, which makes the value equal to the bound.

        Coefficients are not scaled if the sum (for BIAS) differs from 0 only by rounding, or if the value (for COUPLED)
        differs from the upper bound only by rounding. So coefficients at a bound stay there.
        """
        if self.start is not None:
            totals, up, down = self.total.T, np.maximum(b, 0), np.maximum(-b, 0)
            b = np.stack([filled(*row) for row in zip(up, np.maximum(self.hi, 0), totals[0], strict=True)])
            if self.groups == 2:
                b -= np.stack([filled(*row) for row in zip(down, np.maximum(-self.lo, 0), -totals[1], strict=True)])
            return b
        b = np.clip(b, self.lo, self.hi)
        if self.constraint is Constraint.BIAS:
            above, below = np.maximum(b, 0).sum(axis=1, keepdims=True), -np.minimum(b, 0).sum(axis=1, keepdims=True)
            own, both = np.where(b > 0, above, below), np.minimum(above, below)
            with np.errstate(invalid="ignore"):
                b *= np.where(_close(own, both), 1, both / own)
        elif self.constraint is Constraint.COUPLED:
            own_class = self.hi > 0
            others = np.where(own_class, 0, b)
            total, most = -others.sum(axis=0), self.hi.max(axis=0)
            near = _close(total, most)
            with np.errstate(invalid="ignore", divide="ignore"):
                others *= np.where((total > most) & ~near, most / total, 1)
            b = others + own_class * np.where(near, most, -others.sum(axis=0))
        return b

    def snapped(self, b: Vector, lo: Vector, hi: Vector) -> Vector:
        """Return the coefficients ``b`` (problems, n) clipped to this problem's bounds.

        ``b`` was computed with other bounds, ``lo`` and ``hi``. A coefficient equal to its bound in ``lo`` becomes this
        problem's lower bound, and a coefficient equal to its bound in ``hi`` becomes the upper bound.

        lo, hi: bounds with which ``b`` was computed, (problems, n): this problem's bounds rounded to the device's
            dtype, or the bounds of a similar problem.
        """
        return np.clip(np.where(b == hi, self.hi, np.where(b == lo, self.lo, b)), self.lo, self.hi)

    def restore_sums(self, b: Vector, f: Vector, rho: Vector) -> Vector:
        """Return ``b`` (problems, n) clipped to the bounds, with each fixed sum restored to its value in ``totals``.

        ``totals`` has the sums that the constraint requires. Coefficients with the smallest |f - rho| change first, as
        far as the bounds allow. The constraint must not be COUPLED, because problems with this constraint have no
        offsets.

        f: gradients (problems, n).
        rho: offsets (problems, groups). A group is the rows whose coefficients have one fixed sum.
        """
        b = np.clip(b, self.lo, self.hi)
        group, distance = self.group, np.abs(f - self.offset(rho))
        for number, total in enumerate(self.totals):
            in_group = group == number
            b_group, order = b[in_group], np.argsort(distance[in_group], kind="stable")
            excess = b_group.sum() - total
            slack = b_group - self.lo[in_group] if excess > 0 else self.hi[in_group] - b_group
            change = np.diff(np.minimum(np.cumsum(slack[order]), abs(excess)), prepend=0.0)
            b_group[order] -= np.sign(excess) * change
            b[in_group] = b_group
        return b

    def offset(self, rho: Vector) -> Vector:
        """Return each row's offset in each problem, (problems, n), given the offsets ``rho`` (problems, groups).

        A group is the rows that have the same offset. The constraint SPLIT, of nu-SVC and nu-SVR, divides the rows into
        two groups; otherwise all rows are one group. The constraint must not be COUPLED, because problems with this
        constraint have no offsets.
        """
        return np.asarray(rho.ravel()[self.group])


@dataclass(frozen=True)
class Subproblem:
    """Hold one or more dual problems over the same m rows of a data set.

    rows: numbers of the m rows in the data set.
    problem: the dual problems.
    start: coefficients (problems, m) from which a solve starts. None stands for ``problem.initial``: the coefficients
        ``problem.start``, or zeros if ``problem.start`` is None too.
    """

    rows: NDArray[np.intp]
    problem: Problem
    start: Vector | None = None

    @property
    def initial(self) -> Vector:
        """Return the coefficients (problems, m) from which a solve over the m rows starts."""
        return self.problem.initial if self.start is None else self.start

    def embedded(self, n: int) -> Subproblem:
        """Return the subproblem as one over all n rows of the data set, in which the other rows have bounds of 0."""
        start = None if self.start is None else _embedded(self.start, self.rows, n)
        return Subproblem(np.arange(n), self.problem.embedded(self.rows, n), start)

    def with_start(self, b: Vector | None) -> Subproblem:
        """Return the subproblem with a feasible ``start`` near the coefficients ``b``.

        If ``b`` is None or all 0, the result has ``start`` None.
        """
        if b is None or not b.any():
            return self if self.start is None else replace(self, start=None)
        return replace(self, start=self.problem.feasible(b.reshape(self.problem.q.shape)))


def _embedded(values: Vector, rows: NDArray[np.intp], n: int) -> Vector:
    """Return an array (problems, n) with ``values`` in the columns ``rows`` and 0 in the others."""
    out = np.zeros((len(values), n))
    out[:, rows] = values
    return out


def filled(b: Vector, hi: Vector, total: float) -> Vector:
    """Return coefficients between 0 and ``hi`` (n,) near ``b`` (n,) >= 0 that have the sum ``total``.

    The function scales the coefficients to the sum ``total``, then clips them to ``hi``. If clipping made the sum too
    small, it raises coefficients to their bounds, in the order of the rows, until the sum is ``total``. A sum that
    differs from ``total`` only by rounding counts as equal. A coefficient that is nearly ``hi`` becomes ``hi``.
    """
    if b.sum() > 0 and not _close(b.sum(), total):
        b = b * (total / b.sum())
    b = np.where(b > hi * (1 - _SLACK), hi, b)
    missing = 0.0 if _close(b.sum(), total) else max(0.0, total - b.sum())
    return np.asarray(b + np.diff(np.minimum(np.cumsum(hi - b), missing), prepend=0.0))


_SLACK = 1e-12  # relative differences up to this size count as rounding errors of coefficients and their sums


def _close(total: Vector | float, value: Vector | float) -> Any:
    """Return whether ``total``, a sum of coefficients, differs from ``value`` only by rounding errors."""
    return np.abs(total - value) <= _SLACK * np.abs(value)


def c_svc(signs: Vector, C: Vector, bias: bool = True) -> Problem:
    """Return the dual of C-SVC (Cotter, Srebro, Keshet 2011, equation 2).

    signs: class of each row, +1 or -1, or 0 for a row outside the problem, (problems, n).
    C: upper bound of each row's coefficient |b_i|, (problems, n).
    bias: whether the decision functions have offsets.
    """
    box = signs * C
    constraint = Constraint.BIAS if bias else Constraint.NONE
    return Problem(np.minimum(box, 0), np.maximum(box, 0), -signs.astype(np.float64), constraint)


def crammer_singer(index: NDArray[np.intp], C: Vector, classes: int) -> Problem:
    """Return the dual of Crammer and Singer's multiclass SVM (Cotter, Srebro, Keshet 2011, equation 4).

    The dual has one problem for each class p, in which row i has the coefficient b_pi. The coefficients of a row add up
    to 0 over all classes.

    index: class number of each row, (n,).
    C: bound of each row, (n,). b_pi >= -C_i for every class p. b_pi <= C_i if p is the class of row i, else b_pi <= 0.
    """
    own_class = np.arange(classes)[:, None] == index
    lo = np.broadcast_to(-C, own_class.shape).copy()
    return Problem(lo, own_class * C, -own_class.astype(np.float64), Constraint.COUPLED)


def epsilon_svr(y: Vector, C: Vector, epsilon: float, bias: bool = True) -> Problem:
    """Return the dual of epsilon-SVR.

    Its coefficients are b = alpha - alpha*, where alpha and alpha* are the multipliers of errors above and below the
    tube.

    y: targets (n,).
    C: upper bound of each row's coefficient |b_i|, (n,).
    bias: whether the decision function has an offset.
    """
    box = C[None].astype(np.float64)
    return Problem(-box, box, -y[None].astype(np.float64), Constraint.BIAS if bias else Constraint.NONE, float(epsilon))


def one_class(nu: float, weights: Vector) -> Problem:
    """Return the dual of the one-class SVM: 0 <= b <= weights (n,), and the sum of b is nu times the sum of weights.

    Source: Schoelkopf et al. 2001, with the scaling of LIBSVM.
    """
    hi = weights[None].astype(np.float64)
    start = filled(np.zeros_like(weights), weights, nu * weights.sum())[None]
    return Problem(np.zeros_like(hi), hi, np.zeros_like(hi), start=start)


def nu_svc(signs: Vector, nu: float, weights: Vector) -> Problem:
    """Return the dual of nu-SVC for the classes ``signs`` (n,) of the rows, +1 or -1, and row ``weights`` (n,).

    The coefficients b have |b_i| <= weights_i. The sum of |b_i| over each class is (nu / 2) * sum of weights. Raises
    ValueError if the weights of a class are too small for this sum. Source: Schoelkopf et al. 2000, with the scaling of
    LIBSVM.
    """
    box, class_sum = signs * weights, nu * weights.sum() / 2
    lo, hi = np.minimum(box, 0), np.maximum(box, 0)
    if class_sum > min(hi.sum(), -lo.sum()) * (1 + _SLACK):
        raise ValueError(f"specified nu is infeasible: got nu={nu:g}, at most {largest_nu(lo, hi):g} for these rows")
    return _split(lo, hi, np.zeros_like(box), class_sum)


def largest_nu(lo: Vector, hi: Vector) -> float:
    """Return the largest feasible nu of nu-SVC for bounds lo and hi (n,), rounded down to six digits for messages."""
    most = 2 * min(hi.sum(), -lo.sum()) / (hi.sum() - lo.sum())
    unit = 10.0 ** (np.floor(np.log10(most)) - 5)
    return float(np.floor(most / unit * (1 + _SLACK)) * unit)


def nu_svr(y: Vector, C: Vector, nu: float) -> Problem:
    """Return the dual of nu-SVR for targets y (n,) and the bound C (n,) of each row.

    The problem has 2 n coefficients: alpha (n,), then -alpha* (n,). The sum of alpha is (nu / 2) * sum of C, and so is
    the sum of alpha*.
    """
    zero = np.zeros_like(C)
    return _split(np.concatenate([zero, -C]), np.concatenate([C, zero]), -np.concatenate([y, y]), nu * C.sum() / 2)


def _split(lo: Vector, hi: Vector, q: Vector, class_sum: float) -> Problem:
    start = filled(np.zeros_like(hi), hi, class_sum) - filled(np.zeros_like(lo), -lo, class_sum)
    return Problem(lo[None], hi[None], q[None].astype(np.float64), Constraint.SPLIT, start=start[None])
