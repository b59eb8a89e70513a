"""What estimators answer, from decision values: these themselves, a side, or classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from clsvm.models import pairwise

Vector = NDArray[np.float64]


class Answers:
    """Of a regression: the decision values (n,)."""

    classes: NDArray[Any] | None = None

    def decision_function(self, values: Vector) -> Vector:
        """What decision_function returns."""
        return values

    def predict(self, values: Vector) -> NDArray[Any]:
        """What predict returns."""
        return values


class Columns(Answers):
    """Of a regression whose targets were a matrix: (n, k), one column too."""

    def predict(self, values: Vector) -> NDArray[Any]:
        return values.reshape(len(values), -1)


class Sides(Answers):
    """Of one class: +1 inside of the boundary, -1 outside."""

    def predict(self, values: Vector) -> NDArray[Any]:
        return np.where(values > 0, 1, -1)


class Classes(Answers):
    """Of classes: by the sign of decision values (n,), the largest of (n, k), or the most votes of (n, pairs)."""

    classes: NDArray[Any]

    def __init__(self, classes: NDArray[Any], of_pairs: bool, shape: str, break_ties: bool) -> None:
        self.classes, self.of_pairs, self.shape, self.break_ties = classes, of_pairs, shape, break_ties

    def decision_function(self, values: Vector) -> Vector:
        k = len(self.classes)
        if values.ndim == 2 and k == 2:
            return np.asarray(values[:, 1] - values[:, 0])
        if self.of_pairs and self.shape == "ovr":
            return pairwise.against_rest(pairwise.strips(values, k), len(values), k)
        return values

    def ties(self) -> bool:
        """Whether decision values break ties. Raises ValueError where they cannot."""
        if self.break_ties and self.of_pairs and self.shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        return self.break_ties and self.of_pairs

    @property
    def by_votes(self) -> bool:
        """Whether votes of pairs decide, not decision values. Raises ValueError as :meth:`ties`."""
        return self.of_pairs and not self.ties()

    def predict(self, values: Vector) -> NDArray[Any]:
        if not self.by_votes:
            return self.by_value(self.decision_function(values))
        k = len(self.classes)
        predicted: NDArray[Any] = self.classes[
            pairwise.votes(pairwise.strips(values, k), len(values), k).argmax(axis=1)
        ]
        return predicted

    def by_value(self, values: Vector) -> NDArray[Any]:
        """The class of each row by what decision_function returned: the largest value, or the sign of a single one."""
        chosen = values.argmax(axis=1) if values.ndim == 2 else np.asarray(values > 0, np.intp)
        predicted: NDArray[Any] = self.classes[chosen]
        return predicted


class Probable(Classes):
    """Of classes by logistic regression, with probabilities; decision values are (n,) of two, (n, k) of more."""

    def __init__(self, classes: NDArray[Any]) -> None:
        super().__init__(classes, False, "ovr", False)

    def predict_proba(self, values: Vector) -> Vector:
        """What predict_proba returns, (n, k)."""
        if values.ndim == 2:
            return np.asarray(softmax(values, axis=1))
        return np.stack([expit(-values), expit(values)], axis=1)

    def predict_log_proba(self, values: Vector) -> Vector:
        """The logarithms of :meth:`predict_proba`."""
        if values.ndim == 2:
            return np.asarray(values - np.logaddexp.reduce(values, axis=1, keepdims=True))
        return -np.logaddexp(0, np.stack([values, -values], axis=1))
