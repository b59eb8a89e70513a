"""What says how far coefficients are from the optimum: derivatives, their extremes, offsets, the objectives.

Entries are the coefficients of all problems one after another; ``group`` (entries,) numbers the sum that each belongs
to. Where a sum is held, its dual is an offset; else every coefficient is by itself, and the offset is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.exact import Exact
from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import relative_gap

OBJECTIVE = 5e-5  # share of an objective that rounding of K may move
SAMPLE, FEW = 256, 4  # rows that say what rounding did; times so many rows, up to which all of them are evaluated
HOPELESS = 100.0  # times tol: where rounding of K can hide that much, a solve that no longer moves has stalled
EPS = float(np.finfo(np.float64).eps)
SLACK = 64  # roundings of the sum of a group's coefficients that one of them can have


def finite(values: NDArray[Any], kernel: Any) -> None:
    """Raise ValueError where kernel values, or sums of them, are not finite."""
    if not np.isfinite(values).all():
        raise ValueError(f"{kernel!r} is not finite for some pairs of rows")


def coarse(dtype: str, scale: float, problem: Problem, tol: float) -> bool:
    """Return whether kernel values of ``dtype`` with rounding errors of ``scale`` eps are too coarse for tol: what they
    do to a single coefficient would hide it."""
    return float(np.finfo(dtype).eps) * scale * float(np.maximum(problem.hi, -problem.lo).max()) > HOPELESS * tol


class Extremes(NamedTuple):
    """How far coefficients are from the optimum, entry by entry and by group.

    right, left (entries,): derivatives of the dual to either side; infinity where a coefficient may not rise, -infinity
    where it may not fall. inside: where both are the same number. group (entries,): the sum of each. least, most
    (groups,): the extremes of right and left. rho, violations (groups,). held: whether the sums are held.
    """

    right: Vector
    left: Vector
    inside: NDArray[np.bool_]
    group: NDArray[np.intp]
    least: Vector
    most: Vector
    rho: Vector
    violations: Vector
    held: bool

    @property
    def violation(self) -> float:
        """Return the largest violation of all groups."""
        return float(self.violations.max(initial=0.0))

    @property
    def offset(self) -> Vector:
        """Return the offset of each entry."""
        return self.rho[self.group]

    def violating(self, tol: float) -> NDArray[np.bool_]:
        """Return which entries (entries,) have derivatives beyond their offsets by more than tol."""
        return np.asarray((self.right < self.offset - tol) | (self.left > self.offset + tol))

    def deciding(self, tol: float, bound: float | Vector) -> NDArray[np.bool_]:
        """Return which entries (entries,) decide whether the violation is within tol, where each derivative may be off
        by ``bound``, one number or its own. Entries that decide the offset of a sum count where that is not clear."""
        off = np.broadcast_to(bound, self.right.shape)
        if not self.held:
            return (-self.right > tol - 2 * off) | (self.left > tol - 2 * off)
        low, high = np.full((2, *self.rho.shape), np.inf), np.full((2, *self.rho.shape), -np.inf)
        for which, sign in enumerate((-1, 1)):  # what the extremes can be
            np.minimum.at(low[which], self.group, self.right + sign * off)
            np.maximum.at(high[which], self.group, self.left - sign * off)
        doubtful = ~(high[0] - low[0] <= tol)[self.group]
        near = (self.right - off <= low[1][self.group]) | (self.left + off >= high[1][self.group])
        return np.asarray(doubtful & (near | self.inside))


def sides(f: Vector, b: Vector, kink: float) -> tuple[Vector, Vector]:
    """Return the derivatives of the dual to the right and to the left of b, as common.cl has them; to be read alone."""
    if not kink:
        return f, f
    return f + np.where(b < 0, -kink, kink), f + np.where(b > 0, kink, -kink)


def slack(b: Vector) -> float:
    """Return what rounding can leave of the sum of coefficients b (entries,), and so of one of them."""
    return SLACK * EPS * float(np.abs(b).sum())


def snapped(b: Vector, lo: Vector, hi: Vector, kink: float, within: float | Vector | None = None) -> Vector:
    """Return b (entries,) with each coefficient that is ``within`` so much of a bound, or of the kink, moved to it; by
    default within what rounding of the sum can have done."""
    off = slack(b) if within is None else within
    b = np.where(b - lo <= off, lo, np.where(hi - b <= off, hi, b))
    return np.where((np.abs(b) <= off) & (lo < 0) & (hi > 0), 0.0, b) if kink else b


def of(problem: Problem, b: Vector, f: Vector) -> Extremes:
    """Return the extremes of coefficients b with f = K b + q, both (problems, n) or entry by entry, of a problem."""
    f, b, lo, hi, group = f.ravel(), b.ravel(), problem.lo.ravel(), problem.hi.ravel(), problem.group.ravel()
    kink, held = problem.kink, len(problem.totals)
    groups = held or problem.problems
    right, left = sides(f, b, kink)
    right, left = np.where(b < hi, right, np.inf), np.where(b > lo, left, -np.inf)
    inside = (right == left) & ~((b == 0) & (kink > 0))  # (of large derivatives rounding takes the kink)
    least, most, rho = np.full(groups, np.inf), np.full(groups, -np.inf), np.zeros(groups)
    with np.errstate(invalid="ignore"):
        np.minimum.at(least, group, right)
        np.maximum.at(most, group, left)
        worst = most - least if held else np.maximum(-least, most)
        violations = np.nan_to_num(np.maximum(worst, 0.0), nan=np.inf, posinf=np.inf)
    if held:
        slacks = np.asarray(SLACK * EPS * np.bincount(group, np.abs(b), groups), np.float64)
        near = snapped(b, lo, hi, kink, slacks[group])
        if (near != b).any():  # what rounding alone keeps off its bound is not free, and says nothing of the offset
            rho = of(problem, near, f).rho
        else:
            free = group[inside]
            sums = np.bincount(free, right[inside], groups)
            rho = offsets(least, most, np.bincount(free, minlength=groups), sums)
    return Extremes(right, left, inside, group, least, most, rho, violations, held > 0)


def offsets(least: Vector, most: Vector, count: NDArray[Any], sums: NDArray[Any]) -> Vector:
    """Return the offset of each group: the mean of its ``count`` derivatives inside, which add up to ``sums``, else the
    middle of what it can be; all arrays of one shape."""
    both = np.isfinite(least) & np.isfinite(most)
    with np.errstate(invalid="ignore"):
        middle = np.where(both, (least + most) / 2, np.where(np.isfinite(least), least, most))
    return np.where(count > 0, sums / np.maximum(count, 1), np.where(np.isfinite(middle), middle, 0.0))


class Checked(NamedTuple):
    """The violation, the rows (n,) whose f was evaluated in float64, and f (problems, n) with these values."""

    violation: float
    rows: NDArray[np.bool_]
    f: Vector


class Check:
    """The float64 check of one solve: which rows decide, and their f from kernel values in float64.

    ``exact`` evaluates K b, None where K is exact enough. Kernel values of ``dtype`` are off by kernel_scale eps each.
    The check knows what rounding can have done to f of each row: a row that was evaluated is off by what rounding did
    to the change of the coefficients since. sizes: of rows (n,), by which a sample of them is taken. objective: whether
    somebody asks for the objectives, whose rounding is then looked at.
    """

    def __init__(
        self,
        dtype: str,
        kernel_scale: float,
        exact: Exact | None = None,
        sizes: Vector | None = None,
        objective: bool = True,
    ) -> None:
        self.exact = exact
        self._given, self._sizes, self._objective = (dtype, kernel_scale), sizes, objective
        self._b: Vector | None = None  # when rows were last evaluated
        self._c = self._off = np.zeros(0)  # K b then, and what rounding had done
        self._known = np.zeros(0, bool)  # of these rows

    def hidden(self, b: Vector) -> float:
        """Return what rounding of kernel values can have done to f at most, for coefficients b (problems, n)."""
        dtype, kernel_scale = self._given
        return float(np.finfo(dtype).eps) * kernel_scale * float(np.abs(b).sum(axis=1).max())

    def bound(self, b: Vector) -> Vector:
        """Return what rounding can have done to f of each row (n,), for coefficients b (problems, n)."""
        whole = np.full(b.shape[1], self.hidden(b))
        return whole if self._b is None else np.minimum(whole, self._off + self.hidden(b - self._b))

    def know(self, rows: NDArray[np.bool_], b: Vector, c: Vector) -> None:
        """Take c = K b (problems, n), of which some rows (n,) were evaluated in float64, for coefficients b."""
        self._off, self._known, self._b, self._c = np.where(rows, 0.0, self.bound(b)), rows, b.copy(), c

    def forget(self, rows: slice) -> None:
        """Forget rows of which f was made from kernel values again."""
        if self._b is not None:
            self._off[rows] = np.inf

    def evaluated(self, at: NDArray[np.intp], b: Vector) -> Vector:
        """Return K b of some rows in float64: of known rows by what has changed since, where that is less work."""
        assert self.exact
        changed = b if self._b is None else b - self._b
        known = self._known[at] if 2 * np.count_nonzero(changed) < np.count_nonzero(b) else np.zeros(len(at), bool)
        out = np.empty((len(b), len(at)))
        if known.any():
            out[:, known] = self._c[:, at[known]] + (self.exact(at[known], changed) if changed.any() else 0)
        if not known.all():
            out[:, ~known] = self.exact(at[~known], b)
        return out

    def __call__(self, problem: Problem, b: Vector, f: Vector, worst: float, tol: float, gap: bool = False) -> Checked:
        """Return the violation of coefficients b, seen as ``worst``, and f where kernel values in float64 replace it.

        Evaluated are the rows that decide the violation and the objectives, where rounding may hide a tenth of tol. In
        float64 these are all rows: f has gathered the rounding of many steps. Rows of the objectives are left where the
        violation turns out to be beyond tol, or nobody asks for objectives, unless the ``gap`` may end the solve.
        """
        off, f, seen = self.bound(b), f.copy(), np.zeros(problem.n, bool)

        def evaluate(rows: NDArray[np.intp]) -> Vector:
            """Put f of these rows right; return what rounding had done to it (problems, rows)."""
            values = self.evaluated(rows, b) + problem.q[:, rows]
            did = np.abs(values - f[:, rows])
            f[:, rows], seen[rows] = values, True
            return np.asarray(did)

        rows: NDArray[np.bool_] = np.full(problem.n, self._given[0] == "float64")
        if not rows.any() and worst + 2 * off.max(initial=0.0) > tol:
            rows = wanted(problem, b, f, off, tol)
        if rows.any():
            evaluate(np.flatnonzero(rows))
        if gap or (self._objective and (not seen.any() or of(problem, b, f).violation <= tol)):
            size, weight = level(problem, b, f)
            loose = (off[:, None] * weight > OBJECTIVE * size).any(axis=1)
            rest = np.flatnonzero(~seen & loose & (b != 0).any(axis=0))
            if self._sizes is not None and len(rest) > FEW * SAMPLE:
                # The sum of a sample's errors is twice what those of all rows can come to.
                some, times = sample(rest, b, self._sizes)
                moved = (evaluate(some) * np.abs(b[:, some]) * times).sum(axis=1)
                rest = rest[~seen[rest] & (moved > OBJECTIVE * size).any()]
            if rest.size:
                evaluate(rest)
        if seen.any():
            worst = of(problem, b, f).violation
            self.know(seen, b, f - problem.q)
        return Checked(worst, seen, f)


def wanted(problem: Problem, b: Vector, f: Vector, off: Vector, tol: float) -> NDArray[np.bool_]:
    """Return which rows (n,) decide whether the violation of coefficients b is within tol, where f of each may be off
    by ``off`` (n,); rows that are off by next to nothing do not count."""
    deciding = of(problem, b, f).deciding(tol, np.tile(off, problem.problems))
    return np.asarray(deciding.reshape(b.shape).any(axis=0) & (off > tol / 10))


def sample(rows: NDArray[np.intp], b: Vector, sizes: Vector) -> tuple[NDArray[np.intp], Vector]:
    """Return SAMPLE of some rows, ascending, and how many rows each stands for: the largest rows, and of the others as
    many of each size of coefficient."""
    by_size = rows[np.argsort(-sizes[rows], kind="stable")]
    largest, others = by_size[: SAMPLE // 4], by_size[SAMPLE // 4 :]
    by_weight = others[np.argsort(-np.abs(b[:, others]).max(axis=0), kind="stable")]
    some = by_weight[:: -(-len(others) // (SAMPLE - len(largest)))]
    found, times = np.concatenate([largest, some]), np.ones(len(largest) + len(some))
    times[len(largest) :] = len(others) / max(1, len(some))
    order = np.argsort(found)
    return found[order], times[order]


def objectives(problem: Problem, b: Vector, f: Vector, offset: Vector) -> tuple[Vector, Vector]:
    """Return primal and dual objective of each problem, at the ``offset`` (problems, n) of each coefficient.

    Coupled problems have one of each together: the loss of a row is that of its class against the best.
    """
    lo, hi, q, kink = problem.lo, problem.hi, problem.q, problem.kink
    if problem.constraint is Constraint.COUPLED:
        quadratic, own = np.asarray([(b * (f - q)).sum()]), np.where(hi > 0, f, 0).sum(axis=0)
        loss = (hi.max(axis=0) * (f.max(axis=0) - own)).sum()
        return quadratic / 2 + loss, -(quadratic / 2 + (q * b).sum())
    quadratic, slack = (b * (f - q)).sum(axis=1), offset - f
    loss = np.maximum(np.maximum(lo * (slack + kink), hi * (slack - kink)), 0).sum(axis=1)
    dual = -(quadratic / 2 + (q * b).sum(axis=1) + kink * np.abs(b).sum(axis=1))
    return quadratic / 2 + loss - (offset * b).sum(axis=1), dual


class Reached(NamedTuple):
    """What coefficients come to: offsets (problems, groups), primal and dual of each problem, of coupled ones together;
    violation and relative gap, the largest of all."""

    rho: Vector
    primal: Vector
    dual: Vector
    violation: float
    gap: float


def reached(problem: Problem, b: Vector, f: Vector) -> Reached:
    """Return what coefficients b (problems, n) with f = K b + q come to."""
    seen = of(problem, b, f)
    primal, dual = objectives(problem, b, f, seen.offset.reshape(b.shape))
    coupled = problem.constraint is Constraint.COUPLED
    rho = np.zeros((problem.problems, 1)) if coupled else seen.rho.reshape(problem.problems, -1)
    return Reached(rho, primal, dual, seen.violation, float(max(map(relative_gap, primal, dual))))


def level(problem: Problem, b: Vector, f: Vector) -> tuple[Vector, Vector]:
    """Return the size of the dual objective and the sum of the absolute coefficients (problems,), by which rounding of
    f moves it."""
    weight = np.abs(b).sum(axis=1)
    return np.abs((b * (f + problem.q)).sum(axis=1) / 2 + problem.kink * weight), weight
