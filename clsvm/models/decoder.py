"""Turn decision values into predictions and probabilities, for estimators, models and searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from clsvm.models import pairwise
from clsvm.tasks import ONE_CLASS

Vector = NDArray[np.float64]


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
            return pairwise.against_rest(pairwise.strips(values, k), len(values), k)
        return values

    def predict(self, values: Vector) -> NDArray[Any]:
        """Return what the estimator's predict returns. Raises ValueError as :attr:`by_votes`."""
        if self.by_votes:
            k = len(self.classes)
            won = pairwise.votes(pairwise.strips(values, k), len(values), k)
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
