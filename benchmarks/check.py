"""An independent check of a trained binary SVM: everything again from the coefficients, in float64, with NumPy alone.

Letters: n rows, d features, s support rows; a = alpha >= 0, y in {-1, +1}, coef = y * a.

    dual      sum a - 1/2 a'Qa                                 Q_ij = y_i y_j K_ij
    primal    1/2 a'Qa + sum C_i max(0, 1 - y_i (c_i + b))      c = K coef
    gap       2 (primal - dual) / (primal + dual)
    violation max_{low} f - min_{up} f                          f = c - y, the dual's negated gradient times y
              up  = rows whose coef can grow:   y=+1 and a<C, or y=-1 and a>0
              low = rows whose coef can shrink: y=+1 and a>0, or y=-1 and a<C

The kernel matrix is made a block at a time and never kept: s x n values, of which 2 MB exist at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

Array = NDArray[np.float64]
KernelFn = Callable[[Any, Any], Array]
"""Rows (p, d) and rows (q, d) -> a new float64 array (p, q). Both are float64 arrays, or CSR if d > DENSE_COLUMNS."""

BOUND_SLACK = 1e-8
"""An alpha within this share of C_i of 0 or C_i stands at that bound.

Solvers put alphas on their bounds exactly, so no slack at all is the strict reading; it must only absorb the rounding
of a solver that keeps alpha as C minus something, or as two float32 (1e-14). A float32 alpha (6e-8) is deliberately not
forgiven. What the slack can hide is small: moving a by 1e-8 C moves f by at most 1e-8 C K(x, x), a tenth of tol = 1e-3
for C = 1e4 and K = 1.
"""
DENSE_COLUMNS = 4096
"""Up to this many features, blocks of sparse rows are made dense: BLAS is then much faster than sparse products."""
ROW_BLOCK, SUPPORT_BLOCK = 256, 1024


@dataclass(frozen=True, slots=True)
class Check:
    """What the coefficients amount to; see the module's docstring."""

    dual: float
    primal: float
    gap: float
    """Relative; primal - dual itself where primal + dual is not positive, and so nothing to relate it to."""
    violation: float
    """Below 0 where the solution is better than optimal to rounding; 0 where no pair of rows can move."""
    sum_y_alpha: float
    """|sum of y alpha|, absolute."""
    box: float
    """The largest max(-alpha_i, alpha_i - C_i), at least 0, absolute."""
    n_support: int


def recompute(X: Any, y: ArrayLike, C: ArrayLike, coef: ArrayLike, intercept: float, kernel_fn: KernelFn) -> Check:
    """Objectives, gap, optimality and feasibility of a solution, from scratch.

    Args:
        X: training rows (n, d), array or sparse.
        y: labels (n,), -1 or +1.
        C: the box, one number or one for each row (n,).
        coef: y * alpha for every row (n,), 0 where a row is no support vector.
        intercept: b in the decision c + b.
        kernel_fn: see KernelFn; `kernel` makes the usual ones.
    """
    y = np.asarray(y, np.float64)
    coef = np.asarray(coef, np.float64)
    C = np.broadcast_to(np.asarray(C, np.float64), y.shape)
    if not np.isin(y, (-1.0, 1.0)).all() or coef.shape != y.shape or X.shape[0] != len(y):
        raise ValueError(f"expected y of -1 and +1 and one coef for each row, got {y.shape}, {coef.shape}, {X.shape}")
    support = np.flatnonzero(coef)
    c = responses(X, X[support], coef[support], kernel_fn)
    f, alpha = c - y, y * coef
    quadratic = float(coef @ c)
    dual = float(alpha.sum()) - quadratic / 2
    primal = quadratic / 2 + float(C @ np.maximum(0.0, 1.0 - y * (c + intercept)))
    not_zero, not_full = alpha > BOUND_SLACK * C, alpha < C * (1 - BOUND_SLACK)
    up = np.where(y > 0, not_full, not_zero)
    low = np.where(y > 0, not_zero, not_full)
    return Check(
        dual=dual,
        primal=primal,
        gap=2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual,
        violation=float(f[low].max() - f[up].min()) if low.any() and up.any() else 0.0,
        sum_y_alpha=abs(float(coef.sum())),
        box=max(0.0, float(np.max(-alpha)), float(np.max(alpha - C))),
        n_support=len(support),
    )


def misses(check: Check, C: float, tol: float, best_dual: float) -> list[str]:
    """What keeps a solution from counting, in words; empty where it counts.

    Args:
        C: the box of every row.
        tol: the KKT tolerance that the solver was given.
        best_dual: the highest dual objective that any feasible solution of the same problem reached.
    """
    found = []
    if check.dual < best_dual - 1e-5 * abs(best_dual):
        found.append(f"dual {check.dual:.8g} below the best {best_dual:.8g} by more than 1e-5")
    if not feasible(check, C):
        found.append(f"constraints: |sum y alpha| {check.sum_y_alpha:.2g}, box {check.box:.2g} for C = {C:g}")
    if not check.violation <= 1.2 * tol:
        found.append(f"KKT violation {check.violation:.3g} above 1.2 tol = {1.2 * tol:.3g}")
    return found


def judged(checks: Sequence[Check], C: float, tol: float) -> list[list[str]]:
    """What each of some solutions of one problem misses, beside the best feasible one among them."""
    best = max((one.dual for one in checks if feasible(one, C)), default=float("nan"))
    return [misses(one, C, tol, best) for one in checks]


def feasible(check: Check, C: float) -> bool:
    """Whether the equality constraint holds to 1e-4 C and the box to 1e-5 C."""
    return check.sum_y_alpha <= 1e-4 * C and check.box <= 1e-5 * C


def responses(X: Any, support: Any, coef: Array, kernel_fn: KernelFn) -> Array:
    """K(X, support) coef (n,) without K: rows (n, d) and support rows (s, d), arrays or sparse, and coef (s,)."""
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
    """y * alpha for every training row (n,) of a fitted binary SVC, from its support_ and dual_coef_."""
    dual_coef = model.dual_coef_
    coef = np.zeros(n)
    coef[np.asarray(model.support_)] = (dual_coef.toarray() if sp.issparse(dual_coef) else np.asarray(dual_coef))[0]
    return coef


def kernel(name: str, *, gamma: float = 1.0, coef0: float = 0.0, degree: int = 3) -> KernelFn:
    """One of scikit-learn's four kernel functions (linear, poly, rbf, sigmoid) as a KernelFn."""

    def dot(A: Any, B: Any) -> Array:
        product = A @ B.T
        return np.asarray(product.toarray() if sp.issparse(product) else product, np.float64)

    def poly(A: Any, B: Any) -> Array:
        K = dot(A, B)
        K *= gamma
        K += coef0
        return np.power(K, degree, out=K)

    def sigmoid(A: Any, B: Any) -> Array:
        K = dot(A, B)
        K *= gamma
        K += coef0
        return np.tanh(K, out=K)

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
    """Squared Euclidean norms of the rows, (p,)."""
    return np.asarray(A.multiply(A).sum(axis=1)).ravel() if sp.issparse(A) else np.einsum("ij,ij->i", A, A)


def _rows(X: Any, start: int, stop: int) -> Any:
    """Rows of X as KernelFn wants them."""
    block = X[start:stop]
    if sp.issparse(block) and block.shape[1] <= DENSE_COLUMNS:
        block = block.toarray()
    return block.astype(np.float64) if sp.issparse(block) else np.asarray(block, np.float64)
