"""Probabilities as LIBSVM has them: fitted to what cross-validation predicts, kept in a model as a few numbers.

- two classes: a sigmoid of the decision value (J. Platt, "Probabilistic outputs for support vector machines", 2000; the
  stable form of its sums from H.-T. Lin, C.-J. Lin, R. C. Weng, "A note on Platt's probabilistic outputs for support
  vector machines", Machine Learning 68, 2007);
- k classes: the pairs' sigmoids coupled (T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability estimates for multi-class
  classification by pairwise coupling", JMLR 5, 2004);
- regression: the scale of Laplace-distributed errors (C.-J. Lin, R. C. Weng, "Simple probabilistic predictions for
  support vector regression", 2004);
- one class: the decision value's place among those of the training rows (Z. Que, C.-J. Lin, "One-class SVM
  probabilistic outputs", 2022).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from clsvm import arrays
from clsvm.errors import warn

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
FOLDS = 5
LEAST = 1e-7  # LIBSVM keeps each pair's probability this far from 0 and 1
_MARKS = 10  # of the decision values of one class
_CELLS = 1 << 22  # of the matrices that are coupled at a time
HELD = 8  # numbers that are held for each of these: r, Q and what they are made of


# What is fitted


def platt(values: Vector, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Return A and B of P(positive | f) = 1 / (1 + exp(A f + B)), the most likely ones for decision values (n,).

    Source: Platt (2000), section 2.2: not 1 and 0 are the targets but (N+ + 1) / (N+ + 2) and 1 / (N- + 2), so that the
    optimum is finite where the classes are apart. A is 0 where all values are the same.
    """
    from sklearn.linear_model import LogisticRegression

    above, n = np.count_nonzero(positive), len(values)
    target = np.where(positive, (above + 1) / (above + 2), 1 / (n - above + 2))
    centre, scale = float(values.mean()), float(values.std())
    if not scale > 1e-12 * abs(centre):
        share = target.mean()
        return 0.0, float(np.log((1 - share) / share))
    x = np.tile((values - centre) / scale, 2)[:, None]  # every row with both labels, by the target's weights
    weights = np.concatenate([target, 1 - target])
    fitted = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    fitted.fit(x, np.repeat([True, False], n), sample_weight=weights)
    A = -float(fitted.coef_[0, 0]) / scale
    return A, -float(fitted.intercept_[0]) - A * centre


def laplace(residuals: Vector) -> float:
    """Return sigma of the density exp(-|z| / sigma) / (2 sigma) of errors (n,): their mean size, without those beyond
    five standard deviations (sqrt(2) sigma each). Source: Lin and Weng (2004)."""
    sizes = np.abs(residuals)
    return float(sizes[sizes <= 5 * np.sqrt(2) * sizes.mean()].mean())


def density_marks(values: Vector) -> Vector | None:
    """Return ten ascending marks (10,) in the decision values (n,) of the training rows: between the middles of
    neighbouring marks lies a fifth of the negative ones, or of the others. None for fewer than five of either.

    Source: Que and Lin (2022), as LIBSVM 3.3 numbers its bins.
    """
    values, half = np.sort(values), _MARKS // 2
    below = int(np.searchsorted(values, 0.0))
    above = len(values) - below
    if min(below, above) < half:
        return None
    steps = np.arange(half)
    lower, upper = values[steps * below // half], values[below - 1 + (steps + 1) * above // half]
    bounds: Vector = np.concatenate([lower, [0.0], upper])
    return np.asarray((bounds[:-1] + bounds[1:]) / 2)


# What is made of it


def of_pairs(values: Vector, A: Vector, B: Vector, k: int) -> Vector:
    """Return probabilities (n, k) of the classes, from decision values (n, pairs) that are positive for a pair's first
    class, pairs (0, 1), (0, 2), ..., (1, 2), ...; A and B (pairs,)."""
    first = np.clip(expit(-(values * A + B)), LEAST, 1 - LEAST)
    return np.concatenate([first, 1 - first], axis=1) if k == 2 else coupled(first, k)


def coupled(first: Vector, k: int) -> Vector:
    """Return probabilities (n, k) of k classes that fit those (n, pairs) of each pair's first class.

    They minimise p'Qp with sum p = 1, Q_tt = sum_s r_st^2, Q_ts = -r_st r_ts, r_st = P(s | s or t). Source: Wu, Lin and
    Weng (2004), the second method and its algorithm 2; from where LIBSVM starts and until it stops (all (Qp)_t within
    0.005 / k of p'Qp), which is what makes the digits the same.
    """
    i, j = np.triu_indices(k, 1)
    own = np.arange(k)
    out = np.empty((len(first), k))
    step = max(1, _CELLS // k**2)
    for begin in range(0, len(first), step):
        part = first[begin : begin + step]
        r = np.zeros((len(part), k, k))
        r[:, i, j], r[:, j, i] = part, 1 - part
        Q = -r * r.transpose(0, 2, 1)
        Q[:, own, own] = np.square(r).sum(axis=1)
        places, p = np.arange(begin, begin + len(part)), np.full((len(part), k), 1 / k)  # of the rows not yet done
        for _ in range(max(100, k)):
            Qp = (Q @ p[:, :, None])[:, :, 0]
            total = (p * Qp).sum(axis=1)
            going = np.abs(Qp - total[:, None]).max(axis=1) >= 0.005 / k
            out[places[~going]] = p[~going]
            if not going.any():
                break
            places, Q, p, Qp, total = places[going], Q[going], p[going], Qp[going], total[going]
            for t in range(k):  # one p_t after another to its optimum, then sum p = 1 again
                change = (total - Qp[:, t]) / Q[:, t, t]
                p[:, t] += change
                total = (total + change * (change * Q[:, t, t] + 2 * Qp[:, t])) / (1 + change) ** 2
                Qp = (Qp + change[:, None] * Q[:, t]) / (1 + change)[:, None]
                p /= (1 + change)[:, None]
        else:
            out[places] = p
    return out


def of_one_class(values: Vector, marks: Vector) -> Vector:
    """Return probabilities (n, 2) of being normal and of being an outlier, from values (n,) and marks (10,)."""
    steps = np.concatenate([[0.001], np.arange(1, len(marks)) / len(marks), [0.999]])
    normal = steps[np.searchsorted(marks, values, side="right")]
    return np.stack([normal, 1 - normal], axis=1)


# Cross-validation


def folds(y: NDArray[Any], count: int, of_classes: bool) -> list[tuple[Rows, Rows]]:
    """Return rows to train on and to predict, ``count`` times, at most once for each row of y (n,).

    They are shuffled, the same ones every time. Each class has its share of every fold, unless there are more folds
    than rows of any class.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    count = min(count, len(y))
    _, index, sizes = np.unique(y, return_inverse=True, return_counts=True)
    stratified = of_classes and len(sizes) > 1 and count <= sizes.max()
    splitter = (StratifiedKFold if stratified else KFold)(count, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # such a class is in fewer folds
        return list(splitter.split(np.zeros(len(y)), index))


def calibrated(
    estimator: Any,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    watch: Callable[[Any, Rows], object] = lambda fold, rows: None,
) -> Any:
    """Return the model of a fitted ``estimator`` with probabilities: its ``model_`` (:class:`KernelModel`) with probA
    and probB; of regression probA alone; of one class prob_density_marks, None where too few rows are on a side.

    X (n, d) or a list of n rows, y (n,) and sample_weight (n,) are what the estimator was fitted to. Except for one
    class, the estimator is fitted five times more, to four fifths of the rows each. These fits have its parameters and
    weights, and the folds are the same each time. A pair may have one class alone in a fold's rows: LIBSVM's value for
    it is then 1 or -1. ``watch`` is called with each fold's fitted estimator and the places of its rows.

    Raises NotFittedError, ValueError where there is no machine for each pair of classes, and what ``fit`` raises; warns
    with ConvergenceWarning where a fold's fit did not converge.
    """
    from sklearn.base import is_classifier, is_regressor
    from sklearn.utils import column_or_1d, get_tags, indexable
    from sklearn.utils.validation import _check_n_features, check_is_fitted

    check_is_fitted(estimator, "model_")
    model = estimator.model_
    X = arrays.checked(X)
    if hasattr(estimator, "n_features_in_"):
        _check_n_features(estimator, X, reset=False)
    if not (is_classifier(estimator) or is_regressor(estimator)):
        indexable(X, y)  # raises the error for lengths that differ
        return replace(model, prob_density_marks=density_marks(estimator.decision_function(X)))
    if y is None:
        raise ValueError("y must be the labels or targets of the rows, got None")
    if get_tags(estimator).input_tags.pairwise and not sparse.issparse(X):
        X = np.asarray(X)  # only arrays of kernel values can be split in rows and columns
    X, y, sample_weight = indexable(X, column_or_1d(y), sample_weight)
    if is_regressor(estimator):
        targets = y.astype(np.float64)
        predicted = np.zeros(len(y))
        for fold, rows, test in _fits(estimator, X, y, sample_weight, watch):
            predicted[test] = fold.predict(rows)
        return replace(model, probA=np.array([laplace(targets - predicted)]))
    return replace(model, **_sigmoids(estimator, X, y, sample_weight, watch))


def _sigmoids(
    estimator: Any, X: Any, y: NDArray[Any], sample_weight: Any, watch: Callable[[Any, Rows], object]
) -> dict[str, Vector]:
    """Return probA and probB of each pair of classes, from decision values of rows that a fit has not seen."""
    from sklearn.utils import _safe_indexing

    classes, model = estimator.classes_, estimator.model_
    if (unknown := np.setdiff1d(y, classes)).size:
        raise ValueError(f"y has the label {unknown[0]!r}, expected those of the fit: {', '.join(map(repr, classes))}")
    k = len(classes)
    i, j = np.triu_indices(k, 1)
    if not (model.of_pairs or len(model.dual_coef) == 1):
        raise ValueError(f"probabilities are of a machine for each pair of classes, got {k} classes in one machine")
    index, place = np.searchsorted(classes, y), np.zeros((k, k - 1), np.intp)
    place[i, j - 1] = place[j, i] = np.arange(len(i))
    values = np.zeros((len(y), k - 1))  # of the pairs of each row's own class: no other pair is fitted to the row
    step = max(1, _CELLS // len(i))
    for fold, rows, test in _fits(estimator, X, y, sample_weight, watch):
        known = np.isin(classes, fold if isinstance(fold, np.ndarray) else fold.classes_)
        for begin in range(0, len(test), step):
            some = test[begin : begin + step]
            whole = np.tile(known[i].astype(float) - known[j], (len(some), 1))
            if known.sum() > 1:
                found = fold.decision_function(_safe_indexing(rows, slice(begin, begin + step)))
                whole[:, known[i] & known[j]] = -found[:, None] if known.sum() == 2 else found
            values[some] = np.take_along_axis(whole, place[index[some]], axis=1)
    of_class, fitted = [np.flatnonzero(index == c) for c in range(k)], []
    for first, second in zip(i.tolist(), j.tolist(), strict=True):
        pair = np.sort(np.concatenate([of_class[first], of_class[second]]))
        own = index[pair] == first
        fitted.append(platt(values[pair, np.where(own, second - 1, first)], own))
    A, B = np.array(fitted).T
    return {"probA": A, "probB": -B if k == 2 else B}  # (of two classes the second is the positive one)


def _fits(
    estimator: Any, X: Any, y: NDArray[Any], sample_weight: Any, watch: Callable[[Any, Rows], object]
) -> Iterator[tuple[Any, Any, Rows]]:
    """Yield for each fold the estimator that is fitted to the other folds' rows, or their only class (1,); the fold's
    rows; and their places. scikit-learn knows which columns of given kernel values belong to the rows."""
    from sklearn.base import clone, is_classifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.metaestimators import _safe_split

    own: dict[str, Any] = {"checkpoint": None, "warm_start": False}
    own |= {"decision_function_shape": "ovo", "break_ties": False} if is_classifier(estimator) else {}
    failed = []
    for number, (train, test) in enumerate(folds(y, FOLDS, is_classifier(estimator)), 1):
        if is_classifier(estimator) and (y[train] == y[train[0]]).all():
            yield y[train[:1]], None, test
            continue
        fold = clone(estimator)
        fold.set_params(**{name: value for name, value in own.items() if name in fold.get_params(deep=False)})
        if isinstance(by_class := getattr(fold, "class_weight", None), dict):
            fold.class_weight = {label: by_class[label] for label in by_class.keys() & set(y[train].tolist())}
        weights = None if sample_weight is None else np.asarray(sample_weight)[train]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # said below
                fold.fit(*_safe_split(fold, X, y, train), sample_weight=weights)
        except ValueError as error:
            raise ValueError(f"fold {number} of {FOLDS} for the probabilities: {error}") from None
        if not fold.fit_report_.converged:
            failed.append(f"fold {number}: {fold.fit_report_.status}")
        watch(fold, train)
        yield fold, _safe_split(fold, X, y, test, train)[0], test
    if failed:
        words = f"the probabilities are from fits that did not finish ({'; '.join(failed)})"
        warn(words, ConvergenceWarning)
