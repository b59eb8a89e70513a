"""How each task poses its dual problem."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clsvm.problem.dual import Constraint, Problem, Vector, filled

_SLACK = 1e-12  # of a sum of weights, for rounding


def c_svc(signs: Vector, C: Vector, bias: bool = True) -> Problem:
    """Return C-SVC (GTSVM, equation 2).

    signs (problems, n): +1, -1, or 0 of a row that is not in the problem. C: (problems, n).
    """
    box = signs * C
    constraint = Constraint.BIAS if bias else Constraint.NONE
    return Problem(np.minimum(box, 0), np.maximum(box, 0), -signs.astype(np.float64), constraint)


def crammer_singer(index: NDArray[np.intp], C: Vector, classes: int) -> Problem:
    """Return the multiclass problem of Crammer and Singer (GTSVM, equation 4), one problem a class.

    index (n,): each row's class. C (n,): of each row. b_pi = alpha_i^(p) <= C_i where p is i's class, else <= 0.
    """
    own = np.arange(classes)[:, None] == index
    return Problem(np.broadcast_to(-C, own.shape).copy(), own * C, -own.astype(np.float64), Constraint.COUPLED)


def epsilon_svr(y: Vector, C: Vector, epsilon: float, bias: bool = True) -> Problem:
    """Return epsilon-SVR of targets y (n,) and C (n,) of each row.

    b = alpha - alpha*, of which one is 0 at the optimum.
    """
    box = C[None].astype(np.float64)
    return Problem(-box, box, -y[None].astype(np.float64), Constraint.BIAS if bias else Constraint.NONE, float(epsilon))


def one_class(nu: float, weights: Vector) -> Problem:
    """Return the one-class SVM, 0 <= b <= weights (n,) and sum b = nu sum weights.

    Source: Schoelkopf et al. 2001, as LIBSVM scales it.
    """
    hi = weights[None].astype(np.float64)
    start = filled(np.zeros_like(weights), weights, nu * weights.sum())[None]
    return Problem(np.zeros_like(hi), hi, np.zeros_like(hi), start=start)


def nu_svc(signs: Vector, nu: float, weights: Vector) -> Problem:
    """Return nu-SVC of signs (n,), +1 or -1, and weights (n,).

    |b| <= weights, and the coefficients of each class add up to nu / 2 of all weights. Raises ValueError where a class
    has not that much. Source: Schoelkopf et al. 2000, as LIBSVM scales it.
    """
    box, half = signs * weights, nu * weights.sum() / 2
    lo, hi = np.minimum(box, 0), np.maximum(box, 0)
    if half > min(hi.sum(), -lo.sum()) * (1 + _SLACK):
        raise ValueError(f"specified nu is infeasible: got nu={nu:g}, at most {largest_nu(lo, hi):g} for these rows")
    return _split(lo, hi, np.zeros_like(box), half)


def largest_nu(lo: Vector, hi: Vector) -> float:
    """Return the largest nu of nu-SVC for bounds lo and hi (n,), rounded down to six digits, as messages show it."""
    most = 2 * min(hi.sum(), -lo.sum()) / (hi.sum() - lo.sum())
    unit = 10.0 ** (np.floor(np.log10(most)) - 5)
    return float(np.floor(most / unit * (1 + _SLACK)) * unit)


def soft_margin(problem: Problem, C: float) -> Problem:
    """Return the C-SVC problem of the rows and weights of a nu-SVC problem.

    At its solution a, nu-SVC with nu = sum |a| / (C sum of weights) has the solution a / C and the margin 1 / C.

    Source: Chang and Lin 2001, Training nu-Support Vector Classifiers, theorem 5.
    """
    return c_svc(np.sign(problem.lo + problem.hi), C * (problem.hi - problem.lo))


def nu_svr(y: Vector, C: Vector, nu: float) -> Problem:
    """Return nu-SVR of targets y (n,) and C (n,) of each row.

    The problem is over the rows twice (2 n): alpha, then -alpha*, each of which adds up to nu / 2 of all C.
    """
    zero = np.zeros_like(C)
    return _split(np.concatenate([zero, -C]), np.concatenate([C, zero]), -np.concatenate([y, y]), nu * C.sum() / 2)


def _split(lo: Vector, hi: Vector, q: Vector, half: float) -> Problem:
    start = filled(np.zeros_like(hi), hi, half) - filled(np.zeros_like(lo), -lo, half)
    return Problem(lo[None], hi[None], q[None].astype(np.float64), Constraint.SPLIT, start=start[None])
