"""Turn decision values into predictions and probabilities, for estimators, models and searches.

If there is a binary problem for each pair of k classes, a row has k * (k - 1) / 2 decision values. To save memory, they
are computed in strips: the decision values of one class against a range of later classes, for a few rows. Each strip is
reduced to votes or sums before the next strip is computed. The division into strips does not change the results.

:class:`Decoder` makes the predictions of an estimator. :func:`calibrated` fits probability parameters as LIBSVM
does, by cross-validation. A model holds these parameters:

- two classes: a sigmoid of the decision value (J. Platt, "Probabilistic outputs for support vector machines", 2000);
- k > 2 classes: a sigmoid for each pair of classes, whose probabilities are coupled (T.-F. Wu, C.-J. Lin, R. C. Weng,
  "Probability estimates for multi-class classification by pairwise coupling", JMLR 5, 2004);
- regression: the scale of Laplace-distributed errors (C.-J. Lin, R. C. Weng, "Simple probabilistic predictions for
  support vector regression", 2004);
- one class: ten marks that divide the decision values of the training rows (Z. Que, C.-J. Lin, "One-class SVM
  probabilistic outputs", 2022).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
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
CLASSES = 40  # one-vs-one decision values are computed for blocks of at most CLASSES classes, unless rows are few
Rows = NDArray[np.intp]
FOLDS = 5
MIN_PROBABILITY = 1e-7  # probabilities of pairs are clipped to MIN_PROBABILITY ... 1 - MIN_PROBABILITY, as in LIBSVM
_MARKS = 10  # number of marks, the decision values at which the probability of a one-class model changes in a step
_CELLS = 1 << 22  # rows are processed in batches of such a size that no temporary array has more numbers than this
COUPLING_NUMBERS = 8  # for k class probabilities, coupled() allocates COUPLING_NUMBERS * k * k numbers for each row


@dataclass(frozen=True)
class Decoder:
    """Turn decision values of n rows into predictions and other results of an estimator.

    Decision values are (n,), (n, outputs) or, with a binary problem for each pair of classes, (n, pairs).

    Attributes
    ----------
    kind
        type of the prediction: CLASSES, ONE_CLASS or NUMBERS of clsvm.tasks.
    classes
        labels (k,) of the classes, empty for a task without classes.
    of_pairs
        whether there is a binary problem for each pair of classes.
    shape
        the classifier's parameter decision_function_shape: "ovo" or "ovr".
    break_ties
        the classifier's parameter break_ties.
    columns
        whether predictions of a single output have the shape (n, 1) instead of (n,).
    """

    kind: str
    classes: NDArray[Any]
    of_pairs: bool = False
    shape: str = "ovr"
    break_ties: bool = False
    columns: bool = False

    def decision_function(self, values: Vector) -> Vector:
        """Convert decision values of n rows to the result of the estimator's method decision_function."""
        k = len(self.classes)
        if k == 2 and values.ndim == 2:
            return np.asarray(values[:, 1] - values[:, 0])
        if self.of_pairs and self.shape == "ovr":
            return ovr_values(strips(values, k), len(values), k)
        return values

    def predict(self, values: Vector) -> NDArray[Any]:
        """Return the predictions for decision values. Raises ValueError if break_ties is True and
        decision_function_shape is "ovo"."""
        if self.by_votes:
            k = len(self.classes)
            won = votes(strips(values, k), len(values), k)
            return np.asarray(self.classes[won.argmax(axis=1)])
        return self.by_value(self.decision_function(values))

    @property
    def by_votes(self) -> bool:
        """Return whether the prediction for a row is the class that wins most pairs of classes.

        Raises ValueError if break_ties is True and decision_function_shape is "ovo"."""
        if self.break_ties and self.of_pairs and self.shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        return self.of_pairs and not self.break_ties

    def by_value(self, values: Vector) -> NDArray[Any]:
        """Return class labels, numbers (regression), or 1 and -1 (one-class SVM) for results of decision_function."""
        if len(self.classes):
            chosen = values.argmax(axis=1) if values.ndim == 2 else (values > 0).astype(np.intp)
            return np.asarray(self.classes[chosen])
        if self.kind == ONE_CLASS:
            return np.where(values > 0, 1, -1)
        return values.reshape(len(values), -1) if self.columns else values


def logistic(values: Vector) -> Vector:
    """Return the classes' probabilities (n, k) for decision values of a model with the logistic loss.

    The sigmoid maps decision values (n,) of two classes. The softmax maps decision values (n, k) of k > 2 classes.
    """
    if values.ndim == 2:
        return np.asarray(softmax(values, axis=1))
    return np.stack([expit(-values), expit(values)], axis=1)


def pairs(k: int) -> list[tuple[int, int]]:
    """Return all pairs of k classes in the order of a model's binary problems: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(k), 2))


def first_pair(k: int, i: int) -> int:
    """Return the position of the pair (i, i + 1) in the list of all pairs of k classes (:func:`pairs`)."""
    return i * k - i * (i + 1) // 2


class Strip(NamedTuple):
    """Hold the decision values of one class against a range of later classes, for a few rows.

    Strips come in an order in which the pairs with a class c are (0, c), ..., (c - 1, c), (c, c + 1), (c, c + 2), ....

    Attributes
    ----------
    class_index
        number of the class, counted from 0.
    others
        numbers of the later classes, as a slice. All of them are larger than ``class_index``.
    values
        decision values (later classes, rows). A positive value is for the class ``class_index``.
    """

    class_index: int
    others: slice
    values: Vector


def strips(values: Vector, k: int) -> Iterator[Strip]:
    """Yield the decision values ``values`` (rows, pairs) of all pairs of k classes as one Strip for each class.

    The strip of class i holds the pairs (i, j) with j > i. The last class has no strip.
    """
    for i in range(k - 1):
        first = first_pair(k, i)
        yield Strip(i, slice(i + 1, k), values[:, first : first + k - 1 - i].T)


def blocks(k: int, most: int) -> list[tuple[slice, slice]]:
    """Divide k classes into blocks of at most ``most`` consecutive classes, and return all pairs of blocks.

    A block is a slice of class numbers. The pairs include each block with itself.
    """
    size = -(-k // -(-k // max(1, most)))
    cuts = [slice(first, min(first + size, k)) for first in range(0, k, size)]
    return [(one, other) for at, one in enumerate(cuts) for other in cuts[at:]]


def strips_of_block(own: slice, others: slice, one: Vector, other: Vector, offsets: Vector, k: int) -> Iterator[Strip]:
    """Yield the decision values of all pairs of a class a in ``own`` and a class b > a in ``others``.

    A :class:`Strip` has the values of one class a. The decision value of a pair is the pair's intercept, plus two sums
    of coefficients times kernel values: one over the support vectors of a, and one over the support vectors of b.

    one, other: arrays (pairs, samples) if ``own`` and ``others`` differ. ``one`` has the sums over the support vectors
        of a, sorted by a, then by b. ``other`` has the sums over the support vectors of b, sorted by b, then by a. If
        ``own`` equals ``others``, both are one array, with a row for each two classes (c, e), c != e, of ``own``: the
        sums over the support vectors of c for the pair of c and e. The rows are sorted by c, then by e.
    offsets: intercepts (pairs,) of all pairs of the k classes.
    """
    same_block = own == others
    one = one.reshape(own.stop - own.start, -1, one.shape[1])
    other = other.reshape(others.stop - others.start, -1, other.shape[1])
    for at, i in enumerate(range(own.start, own.stop)):
        begin = i + 1 if same_block else others.start
        if begin == others.stop:
            continue
        offset = begin - others.start - same_block
        values = one[at, offset:] + other[begin - others.start :, at]
        first = first_pair(k, i) + begin - i - 1
        values += offsets[first : first + len(values), None]
        yield Strip(i, slice(begin, others.stop), values)


def votes(strips: Iterable[Strip], n: int, k: int) -> NDArray[np.intp]:
    """Return the number of pairs of classes that each of k classes wins, (n, k), for n rows.

    The decision values come in strips (:class:`Strip`), each of one class against later classes. A decision value of 0
    is a vote for the second class of the pair. Class i, counted from 0, is the second class of i pairs.
    """
    won = np.zeros((k, n), np.int32)
    for first, others, values in strips:
        positive = (values > 0).view(np.int8)
        won[first] += positive.sum(axis=0, dtype=np.int32)
        won[others] -= positive
    won += np.arange(k, dtype=np.int32)[:, None]  # as the second class of i pairs, class i wins i minus its losses
    return won.T.astype(np.intp)


def ovr_values(strips: Iterable[Strip], n: int, k: int) -> Vector:
    """Return scikit-learn's decision values (n, k) of shape "ovr" for n rows.

    The decision values of pairs come in strips (:class:`Strip`), each of one class against later classes. Let s be the
    sum of the decision values of all pairs whose first class is c, minus those of all pairs whose second class is c.
    The value of class c is its number of votes plus s / (3 * (|s| + 1)). A decision value of 0 is a vote for the pair's
    first class. The result equals that of sklearn.utils.multiclass._ovr_decision_function bit for bit.
    """
    won, sums = np.zeros((k, n), np.int32), np.zeros((k, n))
    for first, others, values in strips:
        negative = (values < 0).view(np.int8)
        won[first] -= negative.sum(axis=0, dtype=np.int32)
        won[others] += negative
        for one in values:  # added pair by pair, so that rounding does not depend on how many pairs ``values`` has
            sums[first] += one
        sums[others] -= values
    won += np.arange(k - 1, -1, -1, dtype=np.int32)[:, None]
    sums /= 3 * (np.abs(sums) + 1)
    sums += won
    return np.ascontiguousarray(sums.T)


def pair_values(strips: Iterable[Strip], n: int, k: int) -> Vector:
    """Join strips (:class:`Strip`), each of one class against later classes, to one array (n, pairs) for n rows."""
    out = np.empty((n, k * (k - 1) // 2))
    for i, others, values in strips:
        first = first_pair(k, i) + others.start - i - 1
        out[:, first : first + len(values)] = values.T
    return out


# Probability parameters


def platt(values: Vector, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Fit A and B of P(positive | f) = 1 / (1 + exp(A f + B)) by maximum likelihood.

    For p positive and m negative rows, the target probabilities are (p + 1) / (p + 2) and 1 / (m + 2). The
    targets 1 and 0 would give an infinite A if the decision values separate the classes.

    Parameters
    ----------
    values : array of float64 (n,)
        Decision values f.
    positive : array of bool (n,)
        Whether a row is of the positive class.

    Returns
    -------
    A, B : float
        Parameters of the sigmoid. A is 0 if all values are equal.

    References
    ----------
    Platt (2000), section 2.2.
    """
    from sklearn.linear_model import LogisticRegression

    above, n = np.count_nonzero(positive), len(values)
    target = np.where(positive, (above + 1) / (above + 2), 1 / (n - above + 2))
    centre, scale = float(values.mean()), float(values.std())
    if not scale > 1e-12 * abs(centre):
        share = target.mean()
        return 0.0, float(np.log((1 - share) / share))
    x = np.tile((values - centre) / scale, 2)[:, None]  # each row twice: once for each label, weighted by its target
    weights = np.concatenate([target, 1 - target])
    fitted = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    fitted.fit(x, np.repeat([True, False], n), sample_weight=weights)
    A = -float(fitted.coef_[0, 0]) / scale
    return A, -float(fitted.intercept_[0]) - A * centre


def laplace(residuals: Vector) -> float:
    """Fit sigma of the Laplace density exp(-|z| / sigma) / (2 sigma) to errors z.

    Parameters
    ----------
    residuals : array of float64 (n,)
        Errors of predictions.

    Returns
    -------
    sigma : float
        Mean absolute error, after errors of more than 5 * sqrt(2) times the mean absolute error are removed.

    References
    ----------
    Lin and Weng (2004).
    """
    sizes = np.abs(residuals)
    return float(sizes[sizes <= 5 * np.sqrt(2) * sizes.mean()].mean())


def density_marks(values: Vector) -> Vector | None:
    """Return the ten marks that map a one-class decision value to a probability.

    The sorted negative decision values are divided into five parts of equal size, and so are the other values. The
    parts have eleven bounds: the smallest value of each negative part, 0, and the largest value of each other part.
    Each mark is the middle of two neighbouring bounds.

    Parameters
    ----------
    values : array of float64 (n,)
        Decision values of the training rows.

    Returns
    -------
    marks : array of float64 (10,) or None
        Ascending marks. None if fewer than five values are < 0, or fewer than five are >= 0.

    References
    ----------
    Que and Lin (2022). The parts are divided as in LIBSVM 3.3.
    """
    values, per_side = np.sort(values), _MARKS // 2
    below = int(np.searchsorted(values, 0.0))
    above = len(values) - below
    if min(below, above) < per_side:
        return None
    steps = np.arange(per_side)
    lower, upper = values[steps * below // per_side], values[below - 1 + (steps + 1) * above // per_side]
    bounds: Vector = np.concatenate([lower, [0.0], upper])
    return np.asarray((bounds[:-1] + bounds[1:]) / 2)


# Probabilities


def of_pairs(values: Vector, A: Vector, B: Vector, k: int) -> Vector:
    """Return the classes' probabilities for the decision values of all pairs of classes.

    Parameters
    ----------
    values : array of float64 (n, pairs)
        Decision values of the pairs (0, 1), (0, 2), ..., (1, 2), .... A positive value is for the first class.
    A, B : array of float64 (pairs,)
        Parameters of each pair's sigmoid (:func:`platt`).
    k : int
        Number of classes.

    Returns
    -------
    probabilities : array of float64 (n, k)
        Probability of each class. For more than two classes, :func:`coupled` computes it from the pairs' probabilities.
    """
    first = np.clip(expit(-(values * A + B)), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.concatenate([first, 1 - first], axis=1) if k == 2 else coupled(first, k)


def coupled(first: Vector, k: int) -> Vector:
    """Couple the probabilities of pairs of classes to probabilities of k classes.

    Let r_st be the probability of class s if the class is s or t. The result p minimises p'Qp subject to sum_t p_t = 1.
    The matrix Q has the entries Q_tt = sum over s != t of (r_st)^2, and Q_ts = -r_st * r_ts. As in LIBSVM, each p_t
    starts at 1 / k. The iteration stops when all (Qp)_t are within 0.005 / k of p'Qp.

    Parameters
    ----------
    first : array of float64 (n, pairs)
        Probability of each pair's first class.
    k : int
        Number of classes.

    Returns
    -------
    probabilities : array of float64 (n, k)

    References
    ----------
    Wu, Lin and Weng (2004), the second method and its algorithm 2.
    """
    i, j = np.triu_indices(k, 1)
    diagonal = np.arange(k)
    out = np.empty((len(first), k))
    step = max(1, _CELLS // k**2)
    for begin in range(0, len(first), step):
        part = first[begin : begin + step]
        r = np.zeros((len(part), k, k))
        r[:, i, j], r[:, j, i] = part, 1 - part
        Q = -r * r.transpose(0, 2, 1)
        Q[:, diagonal, diagonal] = np.square(r).sum(axis=1)
        rows, p = np.arange(begin, begin + len(part)), np.full((len(part), k), 1 / k)  # rows not converged, and their p
        for _ in range(max(100, k)):
            Qp = (Q @ p[:, :, None])[:, :, 0]
            total = (p * Qp).sum(axis=1)
            active = np.abs(Qp - total[:, None]).max(axis=1) >= 0.005 / k
            out[rows[~active]] = p[~active]
            if not active.any():
                break
            rows, Q, p, Qp, total = rows[active], Q[active], p[active], Qp[active], total[active]
            for t in range(k):  # set p_t to its optimum, then scale p to the sum 1
                change = (total - Qp[:, t]) / Q[:, t, t]
                p[:, t] += change
                total = (total + change * (change * Q[:, t, t] + 2 * Qp[:, t])) / (1 + change) ** 2
                Qp = (Qp + change[:, None] * Q[:, t]) / (1 + change)[:, None]
                p /= (1 + change)[:, None]
        else:
            out[rows] = p
    return out


def of_one_class(values: Vector, marks: Vector) -> Vector:
    """Return the probabilities that a one-class model gives to rows, from their decision values.

    Parameters
    ----------
    values : array of float64 (n,)
        Decision values.
    marks : array of float64 (10,)
        Ascending decision values from :func:`density_marks`, at which the probability changes in a step.

    Returns
    -------
    probabilities : array of float64 (n, 2)
        Probability that a row is normal, and that it is an outlier.
    """
    steps = np.concatenate([[0.001], np.arange(1, len(marks)) / len(marks), [0.999]])
    normal = steps[np.searchsorted(marks, values, side="right")]
    return np.stack([normal, 1 - normal], axis=1)


# Cross-validation


def folds(y: NDArray[Any], count: int, of_classes: bool) -> list[tuple[Rows, Rows]]:
    """Return the folds of a shuffled cross-validation. The random seed is fixed.

    Parameters
    ----------
    y : array (n,)
        Labels or targets.
    count : int
        Number of folds, at most n. A larger number becomes n.
    of_classes : bool
        Whether every fold gets its share of each class. It is ignored if all classes have fewer than ``count`` rows.

    Returns
    -------
    folds : list
        For each fold a pair of arrays of row numbers: rows to train on, and rows to predict.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    count = min(count, len(y))
    _, index, sizes = np.unique(y, return_inverse=True, return_counts=True)
    stratified = of_classes and len(sizes) > 1 and count <= sizes.max()
    splitter = (StratifiedKFold if stratified else KFold)(count, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # folds may outnumber the rows of a class
        return list(splitter.split(np.zeros(len(y)), index))


def calibrated(estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Fit the probability parameters of a fitted estimator, and return its model with these parameters.

    Classifiers and regressors are fitted five times more, each time to four fifths of the rows, with the same
    parameters and weights. Each fit gives decision values of the other rows. If the training rows of such a fit lack
    one class of a pair, the pair's decision value is 1 or -1, in favour of the other class, as in LIBSVM.

    Parameters
    ----------
    estimator : estimator of clsvm
        Fitted SVM.
    X : array, CSR (n, d) or list of n rows
        Rows that the estimator was fitted to.
    y : array (n,)
        Labels or targets of the rows. A one-class model needs no labels.
    sample_weight : array (n,) or None
        Weights of the rows.

    Returns
    -------
    model : KernelModel
        The estimator's ``model_`` with probA and probB. A regression has only probA. A one-class model has
        prob_density_marks, which is None unless at least five decision values are < 0 and at least five are >= 0.

    Raises
    ------
    NotFittedError, TypeError
        If the estimator is not fitted, or not clsvm's, such as a pipeline.
    ValueError
        If y is missing, has only one label, or has a label that the estimator was not fitted to; if a fit to four
        fifths of the rows fails; or if the classifier was not fitted by a binary problem for each pair of classes.

    Warns
    -----
    ConvergenceWarning
        If a fold's fit did not converge.
    """
    from sklearn.base import is_classifier, is_regressor
    from sklearn.utils import column_or_1d, get_tags, indexable
    from sklearn.utils.validation import _check_n_features, check_is_fitted

    if not hasattr(estimator, "_task"):
        got = f"got {type(estimator).__name__}: take the last step of a pipeline, or a search's best_estimator_"
        raise TypeError(f"estimator must be an estimator of clsvm, {got}")
    check_is_fitted(estimator, "model_")
    model = estimator.model_
    X = arrays.checked(X)
    if hasattr(estimator, "n_features_in_"):
        _check_n_features(estimator, X, reset=False)
    if not (is_classifier(estimator) or is_regressor(estimator)):
        indexable(X, y)  # raises an error if the lengths differ
        return replace(model, prob_density_marks=density_marks(estimator.decision_function(X)))
    if y is None:
        raise ValueError("y must be the labels or targets of the rows, got None")
    if get_tags(estimator).input_tags.pairwise and not sparse.issparse(X):
        X = np.asarray(X)  # X is a precomputed kernel matrix; folds need slices of its rows and columns
    X, y, sample_weight = indexable(X, column_or_1d(y), sample_weight)
    if is_regressor(estimator):
        targets = y.astype(np.float64)
        predicted = np.zeros(len(y))
        for fold, rows, test in _fits(estimator, X, y, sample_weight):
            predicted[test] = fold.predict(rows)
        return replace(model, probA=np.array([laplace(targets - predicted)]))
    return replace(model, **_sigmoids(estimator, X, y, sample_weight))


def _sigmoids(estimator: Any, X: Any, y: NDArray[Any], sample_weight: Any) -> dict[str, Vector]:
    """Return probA and probB of each pair of classes, fitted to decision values of a cross-validation."""
    from sklearn.utils import _safe_indexing

    classes, model = estimator.classes_, estimator.model_
    if (unknown := np.setdiff1d(y, classes)).size:
        raise ValueError(f"y has the label {unknown[0]!r}, expected one of: {', '.join(map(repr, classes))}")
    if len(labels := np.unique(y)) < 2:
        raise ValueError(f"y must have rows of two classes or more, got only the label {labels[0]!r}")
    k = len(classes)
    i, j = np.triu_indices(k, 1)
    if not (model.of_pairs or len(model.dual_coef) == 1):
        raise ValueError(f"probabilities need multi_class='ovo', got a decision function for each of {k} classes")
    index, pair_of = np.searchsorted(classes, y), np.zeros((k, k - 1), np.intp)
    pair_of[i, j - 1] = pair_of[j, i] = np.arange(len(i))
    values = np.zeros((len(y), k - 1))  # decision values of the k - 1 pairs that the row's class belongs to
    step = max(1, _CELLS // len(i))
    for fold, rows, test in _fits(estimator, X, y, sample_weight):
        present = np.isin(classes, fold if isinstance(fold, np.ndarray) else fold.classes_)
        for begin in range(0, len(test), step):
            some = test[begin : begin + step]
            all_values = np.tile(present[i].astype(float) - present[j], (len(some), 1))
            if present.sum() > 1:
                found = fold.decision_function(_safe_indexing(rows, slice(begin, begin + step)))
                all_values[:, present[i] & present[j]] = -found[:, None] if present.sum() == 2 else found
            values[some] = np.take_along_axis(all_values, pair_of[index[some]], axis=1)
    of_class, fitted = [np.flatnonzero(index == c) for c in range(k)], []
    for first, second in zip(i.tolist(), j.tolist(), strict=True):
        pair = np.sort(np.concatenate([of_class[first], of_class[second]]))
        is_first = index[pair] == first
        fitted.append(platt(values[pair, np.where(is_first, second - 1, first)], is_first))
    A, B = np.array(fitted).T
    # If k = 2, A and B were fitted to -f: P(class 0) = 1 / (1 + exp(-A f + B)), so P(class 1) = 1 / (1 + exp(A f - B)).
    return {"probA": A, "probB": -B if k == 2 else B}


def _fits(estimator: Any, X: Any, y: NDArray[Any], sample_weight: Any) -> Iterator[tuple[Any, Any, Rows]]:
    """Yield (estimator, rows, indices) for each fold of a cross-validation. The other folds are the training rows.

    ``estimator`` is a copy, fitted to the training rows. ``rows`` are the fold's rows of X, and ``indices`` their row
    indices in X. If X is a kernel matrix, ``rows`` has only the columns of the training rows. If all training rows have
    one class, nothing is fitted. ``estimator`` is then an array (1,) with the label, and ``rows`` is None."""
    from sklearn.base import clone, is_classifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.metaestimators import _safe_split

    fixed: dict[str, Any] = {"checkpoint": None, "warm_start": False}
    fixed |= {"decision_function_shape": "ovo", "break_ties": False} if is_classifier(estimator) else {}
    failed = []
    for number, (train, test) in enumerate(folds(y, FOLDS, is_classifier(estimator)), 1):
        if is_classifier(estimator) and (y[train] == y[train[0]]).all():
            yield y[train[:1]], None, test
            continue
        fold = clone(estimator)
        fold.set_params(**{name: value for name, value in fixed.items() if name in fold.get_params(deep=False)})
        if isinstance(by_class := getattr(fold, "class_weight", None), dict):
            fold.class_weight = {label: by_class[label] for label in by_class.keys() & set(y[train].tolist())}
        weights = None if sample_weight is None else np.asarray(sample_weight)[train]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # one warning for all folds follows after the loop
                fold.fit(*_safe_split(fold, X, y, train), sample_weight=weights)
        except ValueError as error:
            raise ValueError(f"fitting fold {number} of {FOLDS} for the probabilities failed: {error}") from None
        if not fold.fit_report_.converged:
            failed.append(f"fold {number}: {fold.fit_report_.status}")
        yield fold, _safe_split(fold, X, y, test, train)[0], test
    if failed:
        words = f"the probabilities are from fits that did not converge ({'; '.join(failed)})"
        warn(words, ConvergenceWarning)
