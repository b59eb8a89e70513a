"""What says how far coefficients are from the optimum: derivatives, their extremes, offsets, the objectives.

Entries are the coefficients of all problems one after another; ``group`` (entries,) numbers the sum that each belongs
to, of ``groups`` sums that are held, each the dual of an offset; groups = 0: every coefficient is by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.tasks import Problem

Vector = NDArray[np.float64]
OBJECTIVE = 5e-5  # share of an objective that rounding of K may move


class Extremes(NamedTuple):
    """Derivatives of the dual to the right (infinity where a coefficient may not rise) and to the left (-infinity where
    it may not fall), inside: where both are the same number; offset of each entry, rho (groups,), and the violation.
    group (entries,): the sum of each; least, most (groups,): the extremes of right and left in it."""

    right: Vector
    left: Vector
    inside: NDArray[np.bool_]
    offset: Vector
    rho: Vector
    violation: float
    group: NDArray[np.intp]
    least: Vector
    most: Vector

    def deciding(self, tol: float, bound: float) -> NDArray[np.bool_]:
        """The entries (entries,) whose derivatives decide whether the violation is within tol, where each may be off
        by ``bound``, and those that decide the offsets of sums for which that is not clear."""
        off = 2 * bound
        if not len(self.least):
            return (-self.right > tol - off) | (self.left > tol - off)
        doubtful = (self.most - self.least > tol - off)[self.group]
        near = (self.right <= self.least[self.group] + off) | (self.left >= self.most[self.group] - off)
        return doubtful & (near | self.inside)


def sides(f: Vector, b: Vector, kink: float) -> tuple[Vector, Vector]:
    """The derivatives of the dual to the right and to the left of b, as common.cl has them."""
    return f + np.where(b < 0, -kink, kink), f + np.where(b > 0, kink, -kink)


def extremes(
    f: Vector, b: Vector, lo: Vector, hi: Vector, kink: float, group: NDArray[np.intp], groups: int
) -> Extremes:
    """The extremes of coefficients b with f = K b + q, all (entries,)."""
    right, left = sides(f, b, kink)
    right, left = np.where(b < hi, right, np.inf), np.where(b > lo, left, -np.inf)
    inside = right == left
    if not groups:
        worst = max(0.0, float(-right.min(initial=np.inf)), float(left.max(initial=-np.inf)))
        none = np.zeros(0)
        return Extremes(right, left, inside, np.zeros_like(f), none, worst, group, none, none)
    least, most = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(least, group, right)
    np.maximum.at(most, group, left)
    both = np.isfinite(least) & np.isfinite(most)
    count = np.bincount(group[inside], minlength=groups)
    sums = np.bincount(group[inside], right[inside], groups)
    with np.errstate(invalid="ignore"):
        middle = np.where(both, (least + most) / 2, np.where(np.isfinite(least), least, most))
        worst = float(np.where(both, most - least, 0.0).max(initial=0.0))
    rho = np.where(count > 0, sums / np.maximum(count, 1), np.where(np.isfinite(middle), middle, 0.0))
    return Extremes(right, left, inside, rho[group], rho, worst, group, least, most)


def of(problem: Problem, b: Vector, f: Vector) -> Extremes:
    """The extremes of coefficients b (problems, n) of a problem, entry by entry."""
    lo, hi, group = problem.lo.ravel(), problem.hi.ravel(), problem.group.ravel()
    return extremes(f.ravel(), b.ravel(), lo, hi, problem.kink, group, len(problem.totals))


def objectives(
    f: Vector, b: Vector, lo: Vector, hi: Vector, q: Vector, kink: float, offset: Vector
) -> tuple[Vector, Vector]:
    """Primal and dual objective (problems,) of coefficients b (problems, n) at the offset of each, f = K b + q."""
    quadratic = (b * (f - q)).sum(axis=1)
    slack = offset - f
    loss = np.maximum(np.maximum(lo * (slack + kink), hi * (slack - kink)), 0).sum(axis=1)
    dual = -(quadratic / 2 + (q * b).sum(axis=1) + kink * np.abs(b).sum(axis=1))
    return quadratic / 2 + loss - (offset * b).sum(axis=1), dual


def level(f: Vector, b: Vector, q: Vector, kink: float) -> tuple[Vector, Vector]:
    """Size of the dual objective and sum of the absolute coefficients (problems,), by which rounding of f moves it."""
    weight = np.abs(b).sum(axis=1)
    return np.abs((b * (f + q)).sum(axis=1) / 2 + kink * weight), weight


def coupled_objectives(f: Vector, b: Vector, hi: Vector, q: Vector) -> tuple[Vector, Vector]:
    """The same, of coupled problems together (1,): the loss of a row is that of its class against the best."""
    quadratic = float((b * (f - q)).sum())
    own = hi > 0
    loss = float((hi.max(axis=0) * (f.max(axis=0) - np.where(own, f, 0).sum(axis=0))).sum())
    return np.array([quadratic / 2 + loss]), np.array([-(quadratic / 2 + float((q * b).sum()))])
