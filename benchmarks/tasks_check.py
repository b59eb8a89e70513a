"""An independent check of the machine of any task: its dual problems from the coefficients, in float64, with NumPy.

    minimise 1/2 b'Kb + q'b + kink sum |b|   subject to   lo <= b <= hi, and for each group of b the sum that it has

Letters: n training rows, m variables of a problem, each over one of the rows; f = K b + q. A coefficient can grow at
the slope f (+ kink to the right of 0, - kink to the left of it) and shrink at it; the violation is how far the largest
slope of what can shrink stands above the least of what can grow, in the worst group.

    SVC          a pair of classes: |b| <= C_i on the side of the row's class, q = -1 or +1, sum b = 0
    NuSVC        a pair: |b| <= w_i, each class adds up to nu / 2 of all w; as it was before the margin was made 1
    SVR          |b| <= C_i, q = -y, kink = epsilon, sum b = 0
    NuSVR        over the rows twice: alpha, then -alpha*, each adds up to nu / 2 of all C_i; q = -y
    OneClassSVM  0 <= b <= w_i, sum b = nu sum w

Sources: Chang and Lin, *LIBSVM: a library for support vector machines* (2011), section 2; scikit-learn's user guide,
"Support Vector Machines", for the layout of dual_coef_.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks import check
from benchmarks.check import BOUND_SLACK, Array, KernelFn, responses

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Dual:
    """A problem of m variables and coefficients b for it; all arrays are (m,)."""

    rows: Index
    """Of the training rows, that of each variable."""
    b: Array
    lo: Array
    hi: Array
    q: Array
    totals: tuple[float, ...]
    """What the coefficients of each group add up to."""
    group: Index
    kink: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What coefficients amount to."""

    dual: float
    """The objective, as it is maximised."""
    violation: float
    box: float
    """The largest step over a bound, of the bound's own size."""
    off_sum: float
    """The largest difference of a group to its sum, of all that the bounds allow."""


def standing(X: Any, problem: Dual, kernel_fn: KernelFn) -> Standing:
    """Of one problem over the training rows X (n, d), array or CSR."""
    rows, place = np.unique(problem.rows, return_inverse=True)
    coef = np.bincount(place, problem.b).astype(np.float64)
    used, own = np.flatnonzero(coef), X[rows]
    c = responses(own, own[used], coef[used], kernel_fn)[place]
    b, lo, hi, f = problem.b, problem.lo, problem.hi, c + problem.q
    width = hi - lo
    slack = BOUND_SLACK * width
    grow = np.where(b < hi - slack, f + np.where(b >= -slack, problem.kink, -problem.kink), np.inf)
    shrink = np.where(b > lo + slack, f + np.where(b > slack, problem.kink, -problem.kink), -np.inf)
    groups = [problem.group == g for g in range(len(problem.totals))]
    ranges = [float(shrink[one].max(initial=-np.inf) - grow[one].min(initial=np.inf)) for one in groups]
    sums = [abs(float(b[one].sum()) - total) for one, total in zip(groups, problem.totals, strict=True)]
    return Standing(
        dual=-float(b @ c / 2 + problem.q @ b + problem.kink * np.abs(b).sum()),
        violation=max(0.0, *ranges),
        box=max(0.0, float(np.max(np.maximum(lo - b, b - hi)))) / float(width.max()),
        off_sum=float(max(sums) / width.sum()),
    )


def merged(standings: Sequence[Standing]) -> dict[str, float]:
    """Of all pairs of classes: the sum of the objectives, the worst of all else."""
    worst = {key: max(getattr(one, key) for one in standings) for key in ("violation", "box", "off_sum")}
    return {"dual": sum(one.dual for one in standings)} | worst


def of_pairs(model: Any, X: Any, y: Array, C: float, gamma: float) -> dict[str, float]:
    """:func:`merged` of an SVC's machines for each pair of classes, C the same for all rows, rbf."""
    kernel = check.kernel("rbf", gamma=gamma)
    return merged([standing(X, one, kernel) for one in c_svc(model, y, np.full(len(y), C))])


def coefficients(model: Any, n: int) -> Array:
    """dual_coef_ (k - 1, n_SV) of a fitted model, array or sparse, over all n training rows: (k - 1, n)."""
    dual = model.dual_coef_
    dual = dual.toarray() if sp.issparse(dual) else np.asarray(dual)
    spread = np.zeros((len(dual), n))
    spread[:, np.asarray(model.support_)] = dual
    return spread


def c_svc(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """The problem of each pair of classes of an SVC; bounds (n,) are C_i."""
    for rows, signs, b in _pairs(model, y):
        box = signs * bounds[rows]
        yield Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), -signs, (0.0,), np.zeros(len(rows), np.intp))


def nu_svc(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """The same of a NuSVC; bounds are the weights of the rows. dual_coef_ is scaled; the sums say by how much."""
    for rows, signs, b in _pairs(model, y):
        box, half = signs * bounds[rows], model.nu * bounds[rows].sum() / 2
        b = b * (2 * half / np.abs(b).sum())
        group = (signs < 0).astype(np.intp)
        yield Dual(rows, b, np.minimum(box, 0), np.maximum(box, 0), np.zeros(len(rows)), (half, -half), group)


def epsilon_svr(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """The one problem of an SVR; bounds are C_i."""
    rows = np.arange(len(y))
    yield Dual(rows, coefficients(model, len(y))[0], -bounds, bounds, -y, (0.0,), 0 * rows, model.epsilon)


def nu_svr(model: Any, y: Array, bounds: Array) -> Iterator[Dual]:
    """The one problem of a NuSVR; bounds are C_i. dual_coef_ is alpha - alpha*, of which one is taken to be 0."""
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
    """The one problem of a OneClassSVM; bounds are the weights of the rows, y plays no part."""
    rows, none = np.arange(len(bounds)), np.zeros(len(bounds))
    (b,) = coefficients(model, len(bounds))
    yield Dual(rows, b, none, bounds, none, (float(model.nu * bounds.sum()),), 0 * rows)


Duals = Callable[[Any, Array, Array], Iterator[Dual]]
"""A fitted model of either library, targets (n,) and bounds (n,) -> its problems."""


def _pairs(model: Any, y: Array) -> Iterator[tuple[Index, Array, Array]]:
    """Rows, signs and coefficients of each pair of classes; two classes alone are signed by the second."""
    spread, classes = coefficients(model, len(y)), model.classes_
    for i, j in combinations(range(len(classes)), 2):
        first = y == classes[i]
        rows = np.flatnonzero(first | (y == classes[j]))
        b = np.where(first[rows], spread[j - 1, rows], spread[i, rows])
        yield rows, np.where(first[rows] == (len(classes) > 2), 1.0, -1.0), b


def clear(values: Array, classes: int, margin: float) -> NDArray[np.bool_]:
    """Whether a prediction stays the same when each decision value may move by ``margin``: (n,) for values (n,) of one
    machine, or (n, pairs) of a machine for each pair of classes, positive for the first: whether the class of the most
    pairs has at least as many, without those that are near 0, as any other (more, than one before it) with all of them.
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
