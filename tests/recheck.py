"""What a fitted machine is worth, from its coefficients alone, in NumPy's long double.

Nothing here comes from clsvm: a model is read by dual_coef_, intercept_, support_, classes_, class_weight_ and its
parameters, which scikit-learn's estimators have alike. In signed coefficients b each problem is

    minimise 1/2 b'Kb + q'b + kink sum |b|   subject to   lo <= b <= hi  and fixed sums over groups of rows

and its violation is how much the largest derivative of what may fall exceeds the least one of what may rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Long = np.longdouble
Array = NDArray[Any]
SLACK = 1e-12  # of a bound: a coefficient this near to it stands on it
OVERLAP = 1e-9  # of what nu-SVR's coefficients add up to: what may be hidden in pairs that cancel


@dataclass(frozen=True)
class Checked:
    """What a model's coefficients are worth: the violation, and the dual objective (maximised) of all problems.

    sums, boxes: how far constraints are missed, relative to n times the largest bound, and to that bound.
    size: sum |b| of all problems. reach: the most that kernel values of one add up to, sum |b| max |K|.
    offset: by how much an offset lies outside of the range that the violation leaves it.
    known: False where the coefficients do not say the solution.
    """

    violation: float = 0.0
    dual: float = 0.0
    sums: float = 0.0
    boxes: float = 0.0
    size: float = 0.0
    reach: float = 0.0
    offset: float = 0.0
    known: bool = True


@dataclass(frozen=True)
class Problem:
    """One problem over some rows of K; groups: masks with their sums, none where there is no offset; rho: the offset
    that the model has, where there is one to compare."""

    rows: Array
    b: Array
    lo: Array
    hi: Array
    q: Array
    kink: float = 0.0
    groups: Sequence[tuple[Array, Any]] = ()
    rho: Any = None
    known: bool = True


def gram(kernel: str, numbers: dict[str, float], X: Any) -> Array:
    """K (n, n) in long double of the rows of X, or X itself where it is precomputed."""
    X = np.asarray(X.toarray() if sp.issparse(X) else X).astype(Long)
    if kernel == "precomputed":
        return X
    gamma, coef0 = Long(numbers.get("gamma", 1)), Long(numbers.get("coef0", 0))
    if kernel in ("rbf", "laplacian"):
        power, total = 2 if kernel == "rbf" else 1, np.zeros((len(X), len(X)), Long)
        for column in X.T:
            total += np.abs(column[:, None] - column) ** power
        return np.asarray(np.exp(-gamma * total))
    dot = X @ X.T
    if kernel == "linear":
        return dot
    if kernel == "poly":
        return np.asarray((gamma * dot + coef0) ** int(numbers["degree"]))
    if kernel == "sigmoid":
        return np.asarray(np.tanh(gamma * dot + coef0))
    raise KeyError(kernel)


def check(model: Any, K: Array, y: Any, sample_weight: Any = None) -> Checked:
    """A model fitted to rows with the kernel values K (n, n), long double, targets y (n,) and sample_weight (n,)."""
    if getattr(model, "multi_class", "") == "crammer_singer":
        return _coupled(model, K, y, sample_weight)
    parts = [_of_problem(problem, K) for problem in _problems(model, K, y, sample_weight)]
    worst = {
        name: max(getattr(part, name) for part in parts) for name in ("violation", "sums", "boxes", "reach", "offset")
    }
    added = {name: sum(getattr(part, name) for part in parts) for name in ("dual", "size")}
    return Checked(**added, known=all(part.known for part in parts), **worst)


def _weights(model: Any, y: Any, sample_weight: Any, n: int) -> Array:
    """What the bound of each row is multiplied by."""
    rows = np.ones(n) if sample_weight is None else np.maximum(np.asarray(sample_weight, np.float64), 0)
    if not hasattr(model, "classes_"):
        return rows
    index = _classes(model, y)
    return np.asarray(np.where(index >= 0, rows * np.asarray(model.class_weight_)[index], 0.0))


def _classes(model: Any, y: Any) -> Array:
    """The number of each row's class; -1 for one that weighs nothing and so is no class of the model's."""
    index = np.minimum(np.searchsorted(model.classes_, y), len(model.classes_) - 1)
    return np.where(model.classes_[index] == y, index, -1)


def _spread(model: Any, n: int) -> Array:
    """dual_coef_ with a column for every row."""
    full = np.zeros((model.dual_coef_.shape[0], n))
    coefficients = model.dual_coef_
    full[:, model.support_] = coefficients.toarray() if sp.issparse(coefficients) else coefficients
    return full


def _problems(model: Any, K: Array, y: Any, sample_weight: Any) -> Iterator[Problem]:
    n, kind = len(K), type(model).__name__
    full, weights = _spread(model, n), _weights(model, y, sample_weight, n)
    everything, bias = np.arange(n), getattr(model, "bias", True)
    whole = [(np.ones(n, bool), 0.0)] if bias else []
    if kind in ("SVC", "NuSVC"):
        for number, (rows, signs, b) in enumerate(_machines(model, y, full)):
            make = _c_svc if kind == "SVC" else _nu_svc
            yield make(model, rows, signs, b, weights[rows], bias, -model.intercept_[number])
    elif kind == "SVR":
        box, q = model.C * weights, -np.asarray(y, np.float64)
        rho = -model.intercept_[0] if bias else None
        yield Problem(everything, full[0], -box, box, q, model.epsilon, whole, rho)
    elif kind == "OneClassSVM":
        total = model.nu * weights.sum()
        yield Problem(everything, full[0], 0 * weights, weights, 0 * weights, 0.0, [(np.ones(n, bool), total)],
                      -model.intercept_[0])  # fmt: skip
    elif kind == "NuSVR":
        yield _nu_svr(full[0], model.C * weights, np.asarray(y, np.float64), model.nu, K)
    else:
        raise KeyError(kind)


def _machines(model: Any, y: Any, full: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Rows, signs and coefficients of each machine of a classifier."""
    index, k = _classes(model, y), len(model.classes_)
    everything = np.arange(len(index))
    if k == 2:
        yield everything, np.where(index == 1, 1.0, -1.0), full[0]
    elif getattr(model, "multi_class", "ovo") == "ovr":
        for i in range(k):
            yield everything, np.where(index == i, 1.0, -1.0), full[i]
    else:
        for i, j in combinations(range(k), 2):
            rows = np.flatnonzero((index == i) | (index == j))
            first = index[rows] == i
            yield rows, np.where(first, 1.0, -1.0), np.where(first, full[j - 1, rows], full[i, rows])


def _c_svc(model: Any, rows: Array, signs: Array, b: Array, weights: Array, bias: bool, rho: float) -> Problem:
    box = signs * (model.C * weights)
    groups = [(np.ones(len(rows), bool), 0.0)] if bias else []
    return Problem(rows, b, np.minimum(box, 0), np.maximum(box, 0), -signs, 0.0, groups, rho if bias else None)


def _nu_svc(model: Any, rows: Array, signs: Array, b: Array, weights: Array, bias: bool, rho: float) -> Problem:
    """Its coefficients were scaled to a margin of 1; before, each class has nu / 2 of all weights."""
    half, total, box = model.nu * weights.sum() / 2, np.abs(b).sum(), signs * weights
    b = b * (2 * half / total) if total > 0 else b
    groups = [(signs > 0, half), (signs < 0, -half)]
    return Problem(rows, b, np.minimum(box, 0), np.maximum(box, 0), 0 * box, 0.0, groups)


def _nu_svr(b: Array, C: Array, y: Array, nu: float, K: Array) -> Problem:
    """Over the rows twice. What the two coefficients of a row have in common is not in the model: it is laid on the
    rows in the middle of the tube, where it harms least."""
    n, half = len(b), nu * C.sum() / 2
    up, down = np.maximum(b, 0), np.minimum(b, 0)
    missing = half - (up.sum() - down.sum()) / 2
    if missing > OVERLAP * half:
        f = K @ b.astype(Long) - y
        inside = np.abs(f - (f[up > 0].max(initial=-np.inf) + f[down < 0].min(initial=np.inf)) / 2)
        order = np.argsort(np.where(np.isfinite(inside), inside, np.abs(f - np.median(f))), kind="stable")
        room = np.cumsum((C - np.abs(b))[order])
        common = np.zeros(n)
        common[order] = np.diff(np.minimum(room, missing), prepend=0.0)
        up, down = up + common, down - common
    zero, first = np.zeros(n), np.arange(2 * n) < n
    groups = [(first, half), (~first, -half)]
    lo, hi = np.concatenate([zero, -C]), np.concatenate([C, zero])
    twice, known = np.tile(np.arange(n), 2), missing <= OVERLAP * half
    return Problem(twice, np.concatenate([up, down]), lo, hi, -np.concatenate([y, y]), 0.0, groups, known=known)


def _of_problem(problem: Problem, K: Array) -> Checked:
    b, lo, hi, q = (array.astype(Long) for array in (problem.b, problem.lo, problem.hi, problem.q))
    kink, most = problem.kink, float(np.maximum(problem.hi, -problem.lo).max(initial=0))
    f = K[np.ix_(problem.rows, problem.rows)] @ b + q
    slack = SLACK * np.maximum(-lo, hi)
    up, low = b < hi - slack, b > lo + slack
    right, left = f + np.where(b < -slack, -kink, kink), f + np.where(b > slack, kink, -kink)
    violation = sums = offset = Long(0)
    if not problem.groups:
        violation = max(violation, (-right[up]).max(initial=0), left[low].max(initial=0))
    for mask, total in problem.groups:
        sums = max(sums, abs(b[mask].sum() - total))
        least, greatest = right[mask & up].min(initial=np.inf), left[mask & low].max(initial=-np.inf)
        violation = max(violation, greatest - least)
        if problem.rho is not None:
            ends = [end for end in (least, greatest) if np.isfinite(end)]
            offset = max([Long(0), *([min(ends) - problem.rho, problem.rho - max(ends)] if len(ends) == 2 else [])])
    boxes = max((b - hi).max(initial=0), (lo - b).max(initial=0))
    quadratic, size = b @ (f - q), np.abs(b).sum()
    return Checked(
        violation=float(violation),
        dual=-float(quadratic / 2 + q @ b + kink * size),
        sums=float(sums) / (most * len(b)) if most else float(sums),
        boxes=float(boxes) / most if most else float(boxes),
        size=float(size),
        reach=float(size * np.abs(K).max()),
        offset=float(offset),
        known=problem.known,
    )


def _coupled(model: Any, K: Array, y: Any, sample_weight: Any) -> Checked:
    """Crammer and Singer's: a row's coefficients add up to 0, that of its class is at most C, the others at most 0."""
    index, n = _classes(model, y), len(K)
    b, C = _spread(model, n).astype(Long), (model.C * _weights(model, y, sample_weight, n)).astype(Long)
    own = np.arange(len(b))[:, None] == index
    f = (K @ b.T).T - own
    least = np.where(b < own * C - SLACK * C, f, np.inf).min(axis=0)
    most = float(C.max())
    return Checked(
        violation=float(np.where(C > 0, f.max(axis=0) - least, 0).max(initial=0)),
        dual=-float((b * (f + own)).sum() / 2 - (b * own).sum()),
        sums=float(np.abs(b.sum(axis=0)).max()) / (most * n),
        boxes=float((b - own * C).max(initial=0)) / most,
        size=float(np.abs(b).sum()),
        reach=float(np.abs(b).sum(axis=1).max() * np.abs(K).max()),
    )
