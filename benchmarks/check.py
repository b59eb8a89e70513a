"""An independent check of a solution: everything again from the coefficients, in float64, with NumPy alone.

    minimise 1/2 b'Kb + q'b + kink sum |b|   subject to   lo <= b <= hi, and for each group of b the sum that it has

Letters: n rows, d features, m variables of a problem, each over one of the rows; f = K b + q. A coefficient can grow at
the slope f (+ kink to the right of 0, - kink to the left of it) and shrink at it; the violation is how far the largest
slope of what can shrink stands above the least of what can grow, in the worst group.

    SVC          a pair of classes: |b| <= C_i on the side of the row's class, q = -1 or +1, sum b = 0
    NuSVC        a pair: |b| <= w_i, each class adds up to nu / 2 of all w; as it was before the margin was made 1
    SVR          |b| <= C_i, q = -y, kink = epsilon, sum b = 0
    NuSVR        over the rows twice: alpha, then -alpha*, each adds up to nu / 2 of all C_i; q = -y
    OneClassSVM  0 <= b <= w_i, sum b = nu sum w

The kernel matrix is made a block at a time and never kept: s x n values, of which 2 MB exist at once.
Sources: Chang and Lin, *LIBSVM: a library for support vector machines* (2011), section 2; scikit-learn's user guide,
"Support Vector Machines", for the layout of dual_coef_.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]
Index = NDArray[np.intp]
KernelFn = Callable[[Any, Any], Array]
"""Rows (p, d) and rows (q, d) -> a new float64 array (p, q). Both are float64 arrays, or CSR if d > DENSE_COLUMNS."""

BOUND_SLACK = 1e-8
"""A coefficient within this share of its range of a bound stands at that bound.

Solvers put coefficients on their bounds exactly, so the slack only has to absorb the rounding of a solver that keeps
alpha as C minus something, or as two float32 (1e-14). A float32 alpha (6e-8) is deliberately not forgiven.
"""
DENSE_COLUMNS = 4096
"""Up to this many features, blocks of sparse rows are made dense: BLAS is then much faster than sparse products."""
ROW_BLOCK, SUPPORT_BLOCK = 256, 1024
DUAL, VIOLATION = 1e-5, 1.2  # of the best dual objective; of the tolerance


@dataclass(frozen=True, slots=True)
class Dual:
    """A problem of m variables and coefficients b for it; all arrays are (m,). totals: the sum of each group."""

    rows: Index
    b: Array
    lo: Array
    hi: Array
    q: Array
    totals: tuple[float, ...]
    group: Index
    kink: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What coefficients amount to.

    dual: the objective, as it is maximised. box: the largest step over a bound, relative to the largest range.
    off_sum: the largest difference of a group to its sum, relative to all that the bounds allow.
    """

    dual: float
    violation: float
    box: float
    off_sum: float


def standing(X: Any, problem: Dual, kernel_fn: KernelFn) -> Standing:
    """Return what the coefficients of one problem over the training rows X (n, d), array or CSR, amount to."""
    return _stand(X, problem, kernel_fn)[0]


def _stand(X: Any, problem: Dual, kernel_fn: KernelFn) -> tuple[Standing, Array]:
    """Return the standing and K b (m,)."""
    rows, place = np.unique(problem.rows, return_inverse=True)
    coef = np.bincount(place, problem.b).astype(np.float64)
    used, own = np.flatnonzero(coef), X if len(rows) == X.shape[0] else X[rows]
    c = responses(own, own[used], coef[used], kernel_fn)[place]
    b, lo, hi, f = problem.b, problem.lo, problem.hi, c + problem.q
    width = hi - lo
    slack = BOUND_SLACK * width
    grow = np.where(b < hi - slack, f + np.where(b >= -slack, problem.kink, -problem.kink), np.inf)
    shrink = np.where(b > lo + slack, f + np.where(b > slack, problem.kink, -problem.kink), -np.inf)
    groups = [problem.group == g for g in range(len(problem.totals))]
    ranges = [float(shrink[one].max(initial=-np.inf) - grow[one].min(initial=np.inf)) for one in groups]
    sums = [abs(float(b[one].sum()) - total) for one, total in zip(groups, problem.totals, strict=True)]
    found = Standing(
        dual=-float(b @ c / 2 + problem.q @ b + problem.kink * np.abs(b).sum()),
        violation=max(0.0, *ranges),
        box=max(0.0, float(np.max(np.maximum(lo - b, b - hi)))) / float(width.max()),
        off_sum=float(max(sums) / width.sum()),
    )
    return found, c


def merged(standings: Sequence[Standing]) -> dict[str, float]:
    """Return the sum of the objectives of all pairs of classes, and the worst of all else."""
    worst = {key: max(getattr(one, key) for one in standings) for key in ("violation", "box", "off_sum")}
    return {"dual": sum(one.dual for one in standings)} | worst


def solved(model: Any, X: Any, y: Array, C: float, gamma: float, numbers: bool = False) -> dict[str, float]:
    """Return :func:`merged` of an SVC, or of an SVR where targets are numbers, with the rbf kernel."""
    duals, rbf = (epsilon_svr if numbers else c_svc), kernel("rbf", gamma=gamma)
    return merged([standing(X, one, rbf) for one in duals(model, y, np.full(len(y), C))])


def judge(rows: Sequence[dict[str, Any]], tol: float) -> None:
    """Add what each row of :func:`solved` misses, beside the best dual objective among them."""
    best = max((row["dual"] for row in rows if "dual" in row), default=0.0)
    for row in rows:
        if "dual" in row:
            off = max(row["box"], row["off_sum"])
            words = f"constraints off by {off:.1e}" * (not off <= BOUND_SLACK)
            row["misses"] = [*row.get("misses", []), *_missed(row["dual"], row["violation"], words, best, tol)]


def _missed(dual: float, violation: float, constraints: str, best: float, tol: float) -> list[str]:
    found = []
    if not dual >= best - DUAL * abs(best):
        found.append(f"dual {dual:.8g} below the best {best:.8g} by more than {DUAL:g}")
    if constraints:
        found.append(constraints)
    if not violation <= VIOLATION * tol:
        found.append(f"KKT violation {violation:.3g} above {VIOLATION:g} tol = {VIOLATION * tol:.3g}")
    return found


@dataclass(frozen=True, slots=True)
class Check:
    """What the coefficients of a binary SVM amount to.

    gap: relative; primal - dual itself where primal + dual is not positive. sum_y_alpha: |sum of y alpha|.
    box: the largest max(-alpha_i, alpha_i - C_i), at least 0, absolute.
    """

    dual: float
    primal: float
    gap: float
    violation: float
    sum_y_alpha: float
    box: float
    n_support: int


def recompute(X: Any, y: ArrayLike, C: ArrayLike, coef: ArrayLike, intercept: float, kernel_fn: KernelFn) -> Check:
    """Return objectives, gap, optimality and feasibility of a binary solution.

    Args:
        X: training rows (n, d), array or sparse.
        y: labels (n,), -1 or +1.
        C: the box, one number or one for each row (n,).
        coef: y * alpha for every row (n,), 0 where a row is no support vector.
        intercept: b in the decision c + b, c = K coef.
        kernel_fn: see KernelFn; `kernel` makes the usual ones.
    """
    y, coef = np.asarray(y, np.float64), np.asarray(coef, np.float64)
    C = np.broadcast_to(np.asarray(C, np.float64), y.shape)
    if not np.isin(y, (-1.0, 1.0)).all() or coef.shape != y.shape or X.shape[0] != len(y):
        raise ValueError(f"expected y of -1 and +1 and one coef for each row, got {y.shape}, {coef.shape}, {X.shape}")
    found, c = _stand(X, _signed(np.arange(len(y)), y, coef, C), kernel_fn)
    alpha, dual = y * coef, found.dual
    primal = float(coef @ c) / 2 + float(C @ np.maximum(0.0, 1.0 - y * (c + intercept)))
    return Check(
        dual=dual,
        primal=primal,
        gap=2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual,
        violation=found.violation,
        sum_y_alpha=abs(float(coef.sum())),
        box=max(0.0, float(np.max(-alpha)), float(np.max(alpha - C))),
        n_support=int(np.count_nonzero(coef)),
    )


def judged(checks: Sequence[Check], C: float, tol: float) -> list[list[str]]:
    """Return what each of some binary solutions misses, beside the best feasible one among them."""
    words = [
        ""
        if one.sum_y_alpha <= 1e-4 * C and one.box <= 1e-5 * C
        else f"constraints: |sum y alpha| {one.sum_y_alpha:.2g}, box {one.box:.2g} for C = {C:g}"
        for one in checks
    ]
    best = max((one.dual for one, off in zip(checks, words, strict=True) if not off), default=float("nan"))
    return [_missed(one.dual, one.violation, off, best, tol) for one, off in zip(checks, words, strict=True)]


def responses(X: Any, support: Any, coef: Array, kernel_fn: KernelFn) -> Array:
    """Return K(X, support) coef (n,) without K, of rows (n, d) and support rows (s, d), arrays or sparse."""
    if not len(coef):
        return np.zeros(X.shape[0])
    starts = range(0, len(coef), SUPPORT_BLOCK)
    panels = [(_rows(support, i, i + SUPPORT_BLOCK), coef[i : i + SUPPORT_BLOCK]) for i in starts]

    def block(start: int) -> Array:
        rows = _rows(X, start, start + ROW_BLOCK)
        return np.asarray(sum(kernel_fn(rows, panel) @ weights for panel, weights in panels))

    # Blocks in threads, BLAS in one thread each: exp is then as parallel as the products.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(block, range(0, X.shape[0], ROW_BLOCK))))


def full_coef(model: Any, n: int) -> Array:
    """Return y * alpha for every training row (n,) of a fitted binary SVC."""
    return coefficients(model, n)[0]


def coefficients(model: Any, n: int) -> Array:
    """Return dual_coef_ (k - 1, n_SV) of a fitted model, array or sparse, over all n training rows: (k - 1, n)."""
    dual = model.dual_coef_
    dual = dual.toarray() if sp.issparse(dual) else np.asarray(dual)
    spread = np.zeros((len(dual), n))
    spread[:, np.asarray(model.support_)] = dual
    return spread


def c_svc(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of each pair of classes of an SVC; bounds (n,) are C_i."""
    for rows, signs, b in _pairs(model, y):
        yield _signed(rows, signs, b, bounds[rows])


def _signed(rows: Index, signs: Array, b: Array, C: Array) -> Dual:
    box = signs * C
    return Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), -signs, (0.0,), np.zeros(len(rows), np.intp))


def nu_svc(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """Yield the same of a NuSVC; bounds are weights of rows. dual_coef_ is scaled; the sums say by how much."""
    for rows, signs, b in _pairs(model, y):
        box, half = signs * bounds[rows], model.nu * bounds[rows].sum() / 2
        b = b * (2 * half / np.abs(b).sum())
        group = (signs < 0).astype(np.intp)
        yield Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), np.zeros(len(rows)), (half, -half), group)


def epsilon_svr(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of an SVR; bounds are C_i."""
    rows = np.arange(len(y))
    yield Dual(rows, coefficients(model, len(y))[0], -bounds, bounds, -y, (0.0,), 0 * rows, model.epsilon)


def nu_svr(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of a NuSVR; bounds are C_i. dual_coef_ is alpha - alpha*; one of the two is taken to be 0."""
    n, none, half = len(y), np.zeros(len(y)), model.nu * bounds.sum() / 2
    (b,) = coefficients(model, n)
    yield Dual(
        rows=np.tile(np.arange(n), 2),
        b=np.concatenate([np.maximum(b, 0), np.minimum(b, 0)]),
        lo=np.concatenate([none, -bounds]),
        hi=np.concatenate([bounds, none]),
        q=-np.tile(y, 2),
        totals=(half, -half),
        group=np.repeat(np.arange(2), n),
    )


def one_class(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """Yield the problem of a OneClassSVM; bounds are the weights of the rows, y plays no part."""
    rows, none = np.arange(len(bounds)), np.zeros(len(bounds))
    (b,) = coefficients(model, len(bounds))
    yield Dual(rows, b, none, bounds, none, (float(model.nu * bounds.sum()),), 0 * rows)


Duals = Callable[[Any, Array, Array], Iterator[Dual]]
"""A fitted model of either library, targets (n,) and bounds (n,) -> its problems."""


def _pairs(model: Any, y: Array) -> Iterator[tuple[Index, Array, Array]]:
    """Yield rows, signs and coefficients of each pair of classes; two classes alone are signed by the second."""
    spread, classes = coefficients(model, len(y)), model.classes_
    for i, j in combinations(range(len(classes)), 2):
        first = y == classes[i]
        rows = np.flatnonzero(first | (y == classes[j]))
        b = np.where(first[rows], spread[j - 1, rows], spread[i, rows])
        yield rows, np.where(first[rows] == (len(classes) > 2), 1.0, -1.0), b


def kernel(name: str, *, gamma: float = 1.0, coef0: float = 0.0, degree: int = 3) -> KernelFn:
    """Return one of scikit-learn's four kernel functions (linear, poly, rbf, sigmoid) as a KernelFn."""

    def dot(A: Any, B: Any) -> Array:
        product = A @ B.T
        return np.asarray(product.toarray() if sp.issparse(product) else product, np.float64)

    def affine(A: Any, B: Any) -> Array:
        K = dot(A, B)
        K *= gamma
        K += coef0
        return K

    def poly(A: Any, B: Any) -> Array:
        return affine(A, B) ** degree

    def sigmoid(A: Any, B: Any) -> Array:
        return np.tanh(affine(A, B))

    def rbf(A: Any, B: Any) -> Array:
        if not sp.issparse(A):  # the distance does not see a shift, the difference of large squares does
            centre = B.mean(axis=0)
            A, B = A - centre, B - centre
        K = dot(A, B)
        K *= 2
        K -= _squares(A)[:, None]
        K -= _squares(B)[None, :]
        np.minimum(K, 0.0, out=K)
        K *= gamma
        return np.exp(K, out=K)

    return {"linear": dot, "poly": poly, "rbf": rbf, "sigmoid": sigmoid}[name]


def _squares(A: Any) -> Array:
    """Return the squared Euclidean norms of the rows, (p,)."""
    return np.asarray(A.multiply(A).sum(axis=1)).ravel() if sp.issparse(A) else np.einsum("ij,ij->i", A, A)


def _rows(X: Any, start: int, stop: int) -> Any:
    """Return rows of X as KernelFn wants them."""
    block = X[start:stop]
    if sp.issparse(block) and block.shape[1] <= DENSE_COLUMNS:
        block = block.toarray()
    return block.astype(np.float64) if sp.issparse(block) else np.asarray(block, np.float64)


def clear(values: Array, classes: int, margin: float) -> NDArray[np.bool_]:
    """Return whether a prediction stays the same when each decision value moves by ``margin``, (n,).

    values: (n,) of one machine, or (n, pairs) of a machine for each pair of classes, positive for the first. A class
    has to have at least as many votes, without those near 0, as any other (more, than one before it) with all of them.
    """
    if values.ndim == 1:
        return np.abs(values) > margin
    least, most, votes = (np.zeros((len(values), classes), np.intp) for _ in range(3))
    for p, (i, j) in enumerate(combinations(range(classes), 2)):
        for counts, by in ((least, -margin), (most, margin), (votes, 0.0)):
            counts[:, i] += values[:, p] + by > 0
            counts[:, j] += values[:, p] - by <= 0
    winner = votes.argmax(axis=1)[:, None]
    column = np.arange(classes)
    held = np.take_along_axis(least, winner, axis=1) - most - (column < winner)
    return np.all((held >= 0) | (column == winner), axis=1)
