"""Check objectives, constraints and optimality of fitted models of every task, from their coefficients alone, in NumPy.

The module imports nothing of clsvm. It reads the attributes that clsvm's and scikit-learn's estimators share:
dual_coef_, intercept_, support_, classes_, class_weight_ and the parameters. All tasks but Crammer and Singer's solve

    minimise 1/2 b'Kb + q'b + epsilon sum |b|   subject to   lo <= b <= hi, and for each group of b the sum that it has

over signed coefficients b (m,), each of one training row. f = K b + q is the gradient without the term of epsilon.

    SVC          a pair of classes, or a class: |b| <= C_i on the side of the row's class, q = -1 or +1, sum b = 0
    NuSVC        a pair: |b| <= w_i, each class adds up to nu / 2 of all w; before the scaling to a margin of 1
    SVR          |b| <= C_i, q = -y, epsilon its parameter, sum b = 0
    NuSVR        over the rows twice: alpha, then -alpha*, each adds up to nu / 2 of all C_i; q = -y
    OneClassSVM  0 <= b <= w_i, sum b = nu sum w

The primal objective for an offset rho (one a group) is

    1/2 b'Kb + sum_i max { -(f_i - rho) t - epsilon |t| : lo_i <= t <= hi_i } - rho (the group's sum)

Primal minus dual is never negative. If K is positive semi-definite, the difference is 0 at the optimum alone, so a
small gap proves a solution without a second solver. `check` works in the dtype of a whole matrix K, and `gram` makes K
in long double. `standing` works in float64 and holds 2 MB of K at a time.

Sources: Chang and Lin, *LIBSVM: a library for support vector machines* (2011), section 2; Cotter, Srebro, Keshet, *A
GPU-tailored approach for training kernelized SVMs* (2011), equations 1 to 4; scikit-learn's user guide, "Support Vector
Machines", for the layout of dual_coef_.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import pairwise_kernels
from threadpoolctl import threadpool_limits

Array = NDArray[Any]
Long = np.longdouble
KernelFn = Callable[[Any, Any], Array]
"""Rows (p, d) and rows (q, d) -> a new float64 array (p, q). Both are float64 arrays, or CSR if d > DENSE_COLUMNS."""

SLACK = 1e-12
"""A coefficient within this share of its bound's size of the bound stands on it."""
BOUND_SLACK = 1e-8
"""SLACK for other libraries' results, which may keep a coefficient as C minus something, or as two float32 (1e-14).
A float32 coefficient (6e-8) is deliberately not forgiven: moving b by 1e-8 C moves f by at most 1e-8 C K(x, x)."""
OVERLAP = 1e-9
"""The share of the sum of nu-SVR's coefficients that may be hidden in pairs which cancel."""
DENSE_COLUMNS = 4096
"""Up to this many features, blocks of sparse rows are made dense: BLAS is then much faster than sparse products."""
ROW_BLOCK, SUPPORT_BLOCK = 256, 1024
DUAL, VIOLATION = 1e-5, 1.2  # of the best dual objective; of the tolerance


@dataclass(frozen=True)
class Dual:
    """A problem of m variables and coefficients b for it; all arrays are (m,)."""

    rows: NDArray[np.intp]
    """The training row of each variable."""
    b: Array
    lo: Array
    hi: Array
    q: Array
    epsilon: float = 0.0
    groups: Sequence[tuple[Array, float]] = ()
    """Masks with the sums of their coefficients; none where the machine has no offset."""
    rho: float | None = None
    """The offset that the model has; the one that minimises the primal is taken where it is None."""
    common: float = 0.0
    """The sum of what pairs of coefficients have in common, which cancels in the model (of NuSVR alone)."""


@dataclass(frozen=True)
class Checked:
    """Objectives, optimality and constraints of the coefficients of a problem, or of all problems of a model.

    dual: the objective, as it is maximised. violation: the KKT violation, which is the largest slope of a coefficient
    that can shrink minus the least slope of one that can grow, in the worst group. box: the largest violation of a
    bound, in units of the largest bound. off_sum: the largest error of a group's sum, in the same units. size: sum |b|.
    reach: a bound of the sums of kernel values, sum |b| max |K|. offset: the distance of the model's offset from the
    range that the violation allows. open: the width of the range of optimal offsets, the least of all problems. known:
    whether the model's coefficients determine the solution. gap: the relative duality gap, or primal - dual if the sum
    of both is not positive.
    """

    dual: float
    primal: float
    violation: float
    box: float
    off_sum: float
    variables: int
    n_support: int
    size: float
    reach: float = 0.0
    offset: float = 0.0
    open: float = 0.0
    known: bool = True
    gap: float = field(init=False)

    def __post_init__(self) -> None:
        difference, total = self.primal - self.dual, self.primal + self.dual
        object.__setattr__(self, "gap", 2 * difference / total if total > 0 else difference)

    @property
    def off_share(self) -> float:
        """Return off_sum divided by the number of variables."""
        return self.off_sum / max(1, self.variables)


def check(model: Any, K: Array, y: Any, sample_weight: Any = None) -> Checked:
    """Check a model fitted to rows with kernel values K (n, n), targets y (n,) and sample_weight (n,), in K's dtype."""
    return joined(each(model, K, y, sample_weight))


def each(model: Any, K: Array, y: Any, sample_weight: Any = None) -> list[Checked]:
    """Check every problem of a model; see `check`."""
    bounds, largest = bounds_of(model, y, len(K), sample_weight), float(np.abs(K).max())
    if getattr(model, "multi_class", "") == "crammer_singer":
        b, own = coefficients(model, len(K)), _classes(model, y) == np.arange(len(model.dual_coef_))[:, None]
        one = crammer_singer(b, own, bounds, (K @ b.T.astype(K.dtype)).T)
        return [replace(one, reach=float(np.abs(b).sum(axis=1).max()) * largest)]
    found = []
    for problem in duals(model, y, bounds):
        rows, place = np.unique(problem.rows, return_inverse=True)
        b = np.bincount(place, problem.b)
        used = np.flatnonzero(b)
        one = checked(problem, (K[np.ix_(rows, rows[used])] @ b[used].astype(K.dtype))[place])
        found.append(replace(one, reach=one.size * largest))
    return found


def standing(X: Any, problem: Dual, kernel_fn: KernelFn, slack: float = BOUND_SLACK) -> Checked:
    """Check one problem over training rows X (n, d), array or CSR, in float64, without K."""
    rows, place = np.unique(problem.rows, return_inverse=True)
    b, own = np.bincount(place, problem.b), X[rows]
    used = np.flatnonzero(b)
    return checked(problem, responses(own, own[used], b[used], kernel_fn)[place], slack)


def merged(standings: Sequence[Checked]) -> dict[str, float]:
    """Return the joined figures of a model's problems for a result file."""
    one = joined(standings)
    figures = {name: getattr(one, name) for name in ("primal", "dual", "gap", "violation", "n_support", "box")}
    return figures | {"off_sum": one.off_share}


def solved(model: Any, problem: Any) -> dict[str, float]:
    """Return :func:`merged` of an SVC, or of an SVR where targets are numbers, for a problem as of sets.Problem."""
    given, rbf = (epsilon_svr if problem.numbers else c_svc), kernel("rbf", gamma=problem.gamma)
    bounds = np.full(len(problem.y), problem.C)
    return merged([standing(problem.X, one, rbf) for one in given(model, problem.y, bounds)])


def judge(rows: Sequence[dict[str, Any]], tol: float, slack: float = BOUND_SLACK) -> None:
    """Add the failed checks of each row of :func:`solved` as "misses".

    The dual objective is compared with the best one of a feasible row. slack: by which bounds and sums may be violated.
    """
    found = [row for row in rows if "dual" in row]
    off = {id(row): max(row["box"], row["off_sum"]) for row in found}
    best = max((row["dual"] for row in found if off[id(row)] <= slack), default=float("nan"))
    for row in found:
        rules = {
            f"dual {row['dual']:.8g} below the best {best:.8g} by more than {DUAL:g}":
                row["dual"] >= best - DUAL * abs(best),
            f"constraints off by {off[id(row)]:.1e}": off[id(row)] <= slack,
            f"KKT violation {row['violation']:.3g} above {VIOLATION:g} tol = {VIOLATION * tol:.3g}":
                row["violation"] <= VIOLATION * tol,
        }  # fmt: skip
        row["misses"] = [*row.get("misses", []), *(words for words, holds in rules.items() if not holds)]


def judged(
    rows: list[dict[str, Any]], solutions: Sequence[Any], problem: Any, tol: float, slack: float = BOUND_SLACK
) -> list[dict[str, Any]]:
    """Return the rows with the figures of their solutions and the failed checks. A solution may be None."""
    for row, found in zip(rows, solutions, strict=True):
        row |= {} if found is None else solved(found, problem)
    judge(rows, tol, slack)
    return rows


# From a problem and K b to its check


def checked(problem: Dual, c: Array, slack: float = SLACK) -> Checked:
    """Check one problem, given c = K b (m,), in c's dtype."""
    b, lo, hi, q = (np.asarray(array, c.dtype) for array in (problem.b, problem.lo, problem.hi, problem.q))
    f, epsilon, most = c + q, problem.epsilon, max(hi.max(initial=0), -lo.min(initial=0))
    if problem.common:
        b = b + _common(problem, f)
    room = slack * np.maximum(hi, -lo)
    grow = np.where(b < hi - room, f + np.where(b < -room, -epsilon, epsilon), np.inf)
    shrink = np.where(b > lo + room, f + np.where(b > room, epsilon, -epsilon), -np.inf)
    quadratic = b @ c
    primal, violation, off_sum, offset, wide = quadratic / 2, 0.0, 0.0, 0.0, np.inf
    if not problem.groups:
        violation = max(0.0, float(-grow.min()), float(shrink.max()))
        primal += _losses(problem, f, lo, hi, 0.0)
    for mask, total in problem.groups:
        least, greatest = float(grow[mask].min(initial=np.inf)), float(shrink[mask].max(initial=-np.inf))
        violation, wide = max(violation, greatest - least), min(wide, max(0.0, least - greatest))
        off_sum = max(off_sum, abs(float(b[mask].sum() - total)))
        rho = _best_offset(f[mask], lo[mask], hi[mask], epsilon, total) if problem.rho is None else problem.rho
        primal += _losses(problem, f[mask], lo[mask], hi[mask], rho) - rho * total
        if problem.rho is not None and np.isfinite([least, greatest]).all():
            offset = max(0.0, min(least, greatest) - rho, rho - max(least, greatest))
    return Checked(
        dual=-float(quadratic / 2 + q @ b + epsilon * np.abs(b).sum()),
        primal=float(primal),
        violation=violation,
        box=max(0.0, float(np.maximum(b - hi, lo - b).max(initial=0))) / (float(most) or 1.0),
        off_sum=off_sum / (float(most) or 1.0),
        variables=len(b),
        n_support=int(np.count_nonzero(b)),
        size=float(np.abs(b).sum()),
        offset=float(offset),
        open=wide if problem.groups else 0.0,
        known=not problem.common,
    )


def _common(problem: Dual, f: Array) -> Array:
    """Return the changes of coefficients that add the common parts of pairs to the rows in the middle of the tube."""
    n = len(f) // 2
    up, down, f, C = problem.b[:n], problem.b[n:], f[:n], problem.hi[:n]
    inside = np.abs(f - (f[up > 0].max(initial=-np.inf) + f[down < 0].min(initial=np.inf)) / 2)
    order = np.argsort(np.where(np.isfinite(inside), inside, np.abs(f - np.median(f))), kind="stable")
    room, both = np.cumsum((C - up + down)[order]), np.zeros(n)
    both[order] = np.diff(np.minimum(room, problem.common), prepend=0.0)
    return np.concatenate([both, -both])


def _losses(problem: Dual, f: Array, lo: Array, hi: Array, rho: Any) -> Any:
    """Return sum_i max { -(f_i - rho) t - epsilon |t| : lo_i <= t <= hi_i }; 0 lies between the bounds."""
    g = f - rho
    return np.maximum(0, np.maximum(-hi * (g + problem.epsilon), -lo * (g - problem.epsilon))).sum()


def _best_offset(f: Array, lo: Array, hi: Array, epsilon: float, total: float) -> Any:
    """Return the rho that minimises a group's primal, which is convex and piecewise linear.

    The slope rises by -lo_i where rho passes f_i - epsilon, and by hi_i where rho passes f_i + epsilon.
    """
    breaks, rises = np.concatenate([f - epsilon, f + epsilon]), np.concatenate([-lo, hi])
    order = np.argsort(breaks)
    passed = int(np.searchsorted(np.cumsum(rises[order]), total - lo.sum()))
    return breaks[order[min(passed, len(order) - 1)]]


def crammer_singer(b: Array, own: Array, C: Array, c: Array, slack: float = SLACK) -> Checked:
    """Check Crammer and Singer's problem, in c's dtype.

    A row's coefficients add up to 0. The coefficient of the row's class is at most C, and the others are at most 0. b:
    coefficients (k, n). own: whether a class is that of the row (k, n). C: bounds of the rows (n,). c: K b (k, n).
    """
    b, C = b.astype(c.dtype), C.astype(c.dtype)
    f, most = c - own, float(C.max())
    least = np.where(b < own * C - slack * C, f, np.inf).min(axis=0)
    quadratic = (b * c).sum()
    return Checked(
        dual=float((b * own).sum() - quadratic / 2),
        primal=float(quadratic / 2 + C @ (f.max(axis=0) - (f * own).sum(axis=0))),
        violation=float(np.where(C > 0, f.max(axis=0) - least, 0).max(initial=0)),
        box=max(0.0, float((b - own * C).max())) / most,
        off_sum=float(np.abs(b.sum(axis=0)).max()) / most,
        variables=b.shape[1],
        n_support=int(b.any(axis=0).sum()),
        size=float(np.abs(b).sum()),
    )


def joined(checks: Sequence[Checked]) -> Checked:
    """Join the checks of all problems of a model: objectives and sizes are added, the worst of the others counts."""
    added = {name: sum(getattr(one, name) for one in checks) for name in ("dual", "primal", "size", "n_support")}
    worst = ("violation", "box", "off_sum", "variables", "reach", "offset")
    return Checked(
        **added,
        **{name: max(getattr(one, name) for one in checks) for name in worst},
        open=min(one.open for one in checks),
        known=all(one.known for one in checks),
    )


# From a model to its problems


def bounds_of(model: Any, y: Any, n: int, sample_weight: Any = None) -> Array:
    """Return the bound of each row's coefficient (n,): C (1 of nu-SVC and one-class machines) times its weights."""
    bounds = np.ones(n) if sample_weight is None else np.maximum(np.asarray(sample_weight, np.float64), 0)
    if hasattr(model, "classes_"):
        index = _classes(model, y)
        bounds = np.where(index >= 0, bounds * np.asarray(model.class_weight_)[index], 0.0)
    return bounds if type(model).__name__ in ("NuSVC", "OneClassSVM") else bounds * model.C


def duals(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problems of a fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM, of either library."""
    return DUALS[type(model).__name__](model, y, bounds)


def coefficients(model: Any, n: int) -> Array:
    """Return dual_coef_ (k, n_SV) of a fitted model, array or sparse, with a column for each of n training rows."""
    dual = model.dual_coef_
    b = np.zeros((dual.shape[0], n))
    b[:, np.asarray(model.support_)] = dual.toarray() if sp.issparse(dual) else dual
    return b


def full_coef(model: Any, n: int) -> Array:
    """Return y * alpha for every training row (n,) of a fitted binary SVC."""
    return np.asarray(coefficients(model, n)[0])


def c_svc(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problems of an SVC; bounds (n,) are C_i."""
    bias, offsets = getattr(model, "bias", True), getattr(model, "intercept_", None)
    for number, (rows, signs, b) in enumerate(_machines(model, y)):
        yield _side(rows, signs, b, bounds[rows], bias, None if offsets is None else -float(offsets[number]))


def _side(rows: Any, signs: Array, b: Array, C: Array, bias: bool, rho: float | None) -> Dual:
    """Return the problem of one class against another, signs -1 and +1."""
    box = signs * C
    groups = [(np.ones(len(rows), bool), 0.0)] if bias else []
    return Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), -signs, 0.0, groups, rho)


def nu_svc(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problems of a NuSVC; bounds are the weights of the rows.

    dual_coef_ is scaled to a margin of 1; the sums say by how much.
    """
    for rows, signs, b in _machines(model, y):
        half, total, box = model.nu * bounds[rows].sum() / 2, np.abs(b).sum(), signs * bounds[rows]
        b = b * (2 * half / total) if total > 0 else b
        groups = [(signs > 0, half), (signs < 0, -half)]
        yield Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), 0 * box, 0.0, groups)


def epsilon_svr(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of an SVR; bounds are C_i."""
    n, offsets = len(bounds), getattr(model, "intercept_", None)
    groups = [(np.ones(n, bool), 0.0)] if getattr(model, "bias", True) else []
    rho = None if offsets is None else -float(offsets[0])
    q = -np.asarray(y, np.float64)
    yield Dual(np.arange(n), coefficients(model, n)[0], -bounds, bounds, q, model.epsilon, groups, rho)


def nu_svr(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of a NuSVR; bounds are C_i. dual_coef_ is alpha - alpha*."""
    n, half, (b,) = len(bounds), model.nu * bounds.sum() / 2, coefficients(model, len(bounds))
    missing, first, none = half - np.abs(b).sum() / 2, np.arange(2 * n) < n, np.zeros(n)
    yield Dual(
        rows=np.tile(np.arange(n), 2),
        b=np.concatenate([np.maximum(b, 0), np.minimum(b, 0)]),
        lo=np.concatenate([none, -bounds]),
        hi=np.concatenate([bounds, none]),
        q=-np.tile(np.asarray(y, np.float64), 2),
        groups=[(first, half), (~first, -half)],
        common=float(missing) if missing > OVERLAP * half else 0.0,
    )


def one_class(model: Any, y: Any, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of a OneClassSVM; bounds are the weights of the rows, y plays no part."""
    n, none = len(bounds), np.zeros(len(bounds))
    groups = [(np.ones(n, bool), float(model.nu * bounds.sum()))]
    yield Dual(np.arange(n), coefficients(model, n)[0], none, bounds, none, 0.0, groups, -float(model.intercept_[0]))


Duals = Callable[[Any, Any, Array], Iterator[Dual]]
"""A fitted model of either library, targets (n,) and bounds (n,) -> its problems."""
DUALS: dict[str, Duals] = {
    "SVC": c_svc,
    "NuSVC": nu_svc,
    "SVR": epsilon_svr,
    "NuSVR": nu_svr,
    "OneClassSVM": one_class,
}


def _classes(model: Any, y: Any) -> Array:
    """Return the number of each row's class; -1 for one that weighs nothing and so is no class of the model's."""
    index = np.minimum(np.searchsorted(model.classes_, y), len(model.classes_) - 1)
    return np.where(model.classes_[index] == y, index, -1)


def _machines(model: Any, y: Any) -> Iterator[tuple[Any, Array, Array]]:
    """Yield rows, signs and coefficients of each machine of a classifier; two classes are signed by the second."""
    index, k = _classes(model, y), len(model.classes_)
    everything, full = np.arange(len(index)), coefficients(model, len(index))
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


# Kernel values


def gram(name: str, numbers: dict[str, float], X: Any) -> Array:
    """Return K (n, n) in long double of the rows of X, or X itself where it is precomputed."""
    X = np.asarray(X.toarray() if sp.issparse(X) else X).astype(Long)
    if name == "precomputed":
        return X
    gamma, coef0 = Long(numbers.get("gamma", 1)), Long(numbers.get("coef0", 0))
    if name in ("rbf", "laplacian"):
        power, total = 2 if name == "rbf" else 1, np.zeros((len(X), len(X)), Long)
        for column in X.T:
            total += np.abs(column[:, None] - column) ** power
        return np.asarray(np.exp(-gamma * total))
    dot = X @ X.T
    if name == "linear":
        return dot
    if name == "poly":
        return np.asarray((gamma * dot + coef0) ** int(numbers["degree"]))
    if name == "sigmoid":
        return np.asarray(np.tanh(gamma * dot + coef0))
    raise KeyError(name)


def responses(X: Any, support: Any, coef: Array, kernel_fn: KernelFn) -> Array:
    """Return K(X, support) coef without K: rows (n, d) and support rows (s, d), arrays or sparse, and coef (s,) or
    (s, k)."""
    if not len(coef):
        return np.zeros((X.shape[0], *coef.shape[1:]))
    starts = range(0, len(coef), SUPPORT_BLOCK)
    panels = [(_rows(support, i, i + SUPPORT_BLOCK), coef[i : i + SUPPORT_BLOCK]) for i in starts]

    def block(start: int) -> Array:
        rows = _rows(X, start, start + ROW_BLOCK)
        return np.asarray(sum(kernel_fn(rows, panel) @ weights for panel, weights in panels))

    # Blocks in threads, BLAS in one thread each: exp is then as parallel as the products.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(block, range(0, X.shape[0], ROW_BLOCK))))


def kernel(name: str, **numbers: float) -> KernelFn:
    """Return one of scikit-learn's four kernel functions (linear, poly, rbf, sigmoid) as a KernelFn."""
    given = {"gamma": 1.0, "coef0": 0.0, "degree": 3} | numbers

    def values(A: Any, B: Any) -> Array:
        if name == "rbf" and not sp.issparse(A):  # a distance sees no shift, the difference of large squares does
            centre = B.mean(axis=0)
            A, B = A - centre, B - centre
        return np.asarray(pairwise_kernels(A, B, metric=name, filter_params=True, **given))

    return values


def _rows(X: Any, start: int, stop: int) -> Any:
    """Return rows of X as KernelFn wants them."""
    block = X[start:stop]
    if sp.issparse(block) and block.shape[1] <= DENSE_COLUMNS:
        block = block.toarray()
    return block.astype(np.float64) if sp.issparse(block) else np.asarray(block, np.float64)
