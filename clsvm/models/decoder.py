"""Turn decision values into predictions and probabilities, for estimators, models and searches.

Of k classes by pairs there are k (k - 1) / 2 values for each row, so they come in strips: the values of one class
against some later classes, for a few rows. A strip is reduced before the next one is computed. No result depends on how
pairs and rows are cut.

Probabilities are those of LIBSVM, fitted to what cross-validation predicts, and kept in a model as a few numbers:

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax

from clsvm import arrays
from clsvm.errors import warn
from clsvm.tasks import ONE_CLASS

Vector = NDArray[np.float64]
CLASSES = 40  # classes in a block of many rows: more take more memory a row, and fewer take more launches
Rows = NDArray[np.intp]
FOLDS = 5
LEAST = 1e-7  # LIBSVM keeps each pair's probability this far from 0 and 1
_MARKS = 10  # of the decision values of one class
_CELLS = 1 << 22  # of the matrices that are coupled at a time
HELD = 8  # numbers that are held for each of these: r, Q and what they are made of


@dataclass(frozen=True)
class Decoder:
    """Make predictions of decision values: (n,), (n, outputs), or (n, pairs) of pairs of classes.

    kind: of the task (:mod:`clsvm.tasks`). classes: (k,), empty without classes. of_pairs: whether each pair of
    classes has a problem. shape, break_ties: parameters of the classifier, as scikit-learn has them. columns: whether
    predictions of one output are (n, 1).
    """

    kind: str
    classes: NDArray[Any]
    of_pairs: bool = False
    shape: str = "ovr"
    break_ties: bool = False
    columns: bool = False

    def decision_function(self, values: Vector) -> Vector:
        """Return what the estimator's decision_function returns."""
        k = len(self.classes)
        if k == 2 and values.ndim == 2:
            return np.asarray(values[:, 1] - values[:, 0])
        if self.of_pairs and self.shape == "ovr":
            return against_rest(strips(values, k), len(values), k)
        return values

    def predict(self, values: Vector) -> NDArray[Any]:
        """Return what the estimator's predict returns. Raises ValueError as :attr:`by_votes`."""
        if self.by_votes:
            k = len(self.classes)
            won = votes(strips(values, k), len(values), k)
            return np.asarray(self.classes[won.argmax(axis=1)])
        return self.by_value(self.decision_function(values))

    @property
    def by_votes(self) -> bool:
        """Return whether votes of pairs decide. Raises ValueError where values cannot break ties of votes."""
        if self.break_ties and self.of_pairs and self.shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        return self.of_pairs and not self.break_ties

    def by_value(self, values: Vector) -> NDArray[Any]:
        """Return the predictions of what decision_function returned: the class of the largest value, or by the sign."""
        if len(self.classes):
            chosen = values.argmax(axis=1) if values.ndim == 2 else (values > 0).astype(np.intp)
            return np.asarray(self.classes[chosen])
        if self.kind == ONE_CLASS:
            return np.where(values > 0, 1, -1)
        return values.reshape(len(values), -1) if self.columns else values


def logistic(values: Vector) -> Vector:
    """Return probabilities (n, k) of decision values (n,) of two classes, or (n, k) of more."""
    if values.ndim == 2:
        return np.asarray(softmax(values, axis=1))
    return np.stack([expit(-values), expit(values)], axis=1)


def log_logistic(values: Vector) -> Vector:
    """Return the logarithms of :func:`logistic`, also where a probability underflows."""
    if values.ndim == 2:
        return np.asarray(values - np.logaddexp.reduce(values, axis=1, keepdims=True))
    return -np.logaddexp(0, np.stack([values, -values], axis=1))


def pairs(k: int) -> list[tuple[int, int]]:
    """Return the pairs of k classes in the order of their problems: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(k), 2))


def first_pair(k: int, i: int) -> int:
    """Return the place of the pair (i, i + 1) among the pairs of k classes."""
    return i * k - i * (i + 1) // 2


class Strip(NamedTuple):
    """Decision values (others, rows) of class ``own`` against the classes ``others``, positive for ``own``.

    Strips of the same rows come in an order in which each class meets the other classes in their order.
    """

    own: int
    others: slice
    values: Vector


def strips(values: Vector, k: int) -> Iterator[Strip]:
    """Yield the strips of decision values (rows, pairs)."""
    for i in range(k - 1):
        first = first_pair(k, i)
        yield Strip(i, slice(i + 1, k), values[:, first : first + k - 1 - i].T)


def blocks(k: int, most: int) -> list[tuple[slice, slice]]:
    """Return blocks of at most ``most`` classes, each with itself and with every later one, by the first of the two."""
    size = -(-k // -(-k // max(1, most)))
    cuts = [slice(first, min(first + size, k)) for first in range(0, k, size)]
    return [(one, other) for at, one in enumerate(cuts) for other in cuts[at:]]


def strips_of_block(own: slice, others: slice, one: Vector, other: Vector, offsets: Vector, k: int) -> Iterator[Strip]:
    """Yield the strips of the pairs between two blocks of classes, or within a block.

    one : sums of kernel values (own classes * others, rows); within a block a class has no sum for itself.
    other : the same with the blocks exchanged; within a block it is ``one``.
    offsets : (pairs,) of all k classes.
    """
    within = own == others
    one = one.reshape(own.stop - own.start, -1, one.shape[1])
    other = other.reshape(others.stop - others.start, -1, other.shape[1])
    for at, i in enumerate(range(own.start, own.stop)):
        begin = i + 1 if within else others.start
        if begin == others.stop:
            continue
        here = begin - others.start - within
        values = one[at, here:] + other[begin - others.start :, at]
        first = first_pair(k, i) + begin - i - 1
        values += offsets[first : first + len(values), None]
        yield Strip(i, slice(begin, others.stop), values)


def votes(found: Iterable[Strip], n: int, k: int) -> NDArray[np.intp]:
    """Return the number of pairs (n, k) that each class wins; a value of 0 is a vote for the second class."""
    won = np.zeros((k, n), np.int32)
    for own, others, values in found:
        positive = (values > 0).view(np.int8)
        won[own] += positive.sum(axis=0, dtype=np.int32)
        won[others] -= positive
    won += np.arange(k, dtype=np.int32)[:, None]  # (as second class, every pair but those that the first one wins)
    return won.T.astype(np.intp)


def against_rest(found: Iterable[Strip], n: int, k: int) -> Vector:
    """Return scikit-learn's decision values (n, k) of shape "ovr".

    A value is the number of votes and, below 1/3, a share by the sum of a class's decision values. The bits are those
    of sklearn.utils.multiclass._ovr_decision_function, where a value of 0 is a vote for the first class.
    """
    won, sums = np.zeros((k, n), np.int32), np.zeros((k, n))
    for own, others, values in found:
        negative = (values < 0).view(np.int8)
        won[own] -= negative.sum(axis=0, dtype=np.int32)
        won[others] += negative
        for one in values:  # (one after another, so that sums have the same bits in any block)
            sums[own] += one
        sums[others] -= values
    won += np.arange(k - 1, -1, -1, dtype=np.int32)[:, None]
    sums /= 3 * (np.abs(sums) + 1)
    sums += won
    return np.ascontiguousarray(sums.T)


def side_by_side(found: Iterable[Strip], n: int, k: int) -> Vector:
    """Return the decision values (n, pairs) themselves."""
    out = np.empty((n, k * (k - 1) // 2))
    for own, others, values in found:
        first = first_pair(k, own) + others.start - own - 1
        out[:, first : first + len(values)] = values.T
    return out


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
