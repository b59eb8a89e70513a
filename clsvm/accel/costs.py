"""Estimate the seconds of a call on a device and in LIBSVM by a rough model, to choose the faster of the two.

LIBSVM's solver takes a time that grows with the square of the rows, and with the features that a row has; what clsvm
takes is a fixed time (checks, launches, a copy of the rows) and a share of LIBSVM's. A process pays once for loading
OpenCL and the device's programs. Times vary with C and the data by several times, so a call has to be expected to take
half as long at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PYTHON, PROBABILITY = "kernel is a function of Python's", "probability=True"
CAPPED, TALKS = "max_iter ends LIBSVM's steps", "verbose=True prints LIBSVM's words"


@dataclass(frozen=True)
class Costs:
    """Seconds on two cores of an EPYC (Intel's CPU runtime).

    LIBSVM's fits of breast_cancer, digits, covtype, ijcnn1, a9a and MNIST take 0.5 to 5.5 times what ``pair`` and
    ``pair_cell`` say; of answers the numbers are a guess.

    pair, pair_cell: of LIBSVM's fit for each pair of rows, and more for each feature of a row. value, value_cell: of
    its decision values, for each of a row and support vector. term: of LIBSVM's sums, for each row, support vector and
    other class. fit, answer: what ours takes however small the work is; machine: more of a fit, for each pair of
    classes. vote: more of an answer, for each row and pair of classes, whose value comes to the host. share: of
    LIBSVM's time that ours takes beyond that. first: what the first call of a process takes more, its programs being in
    the cache. half: the share of LIBSVM's time that ours has to be expected to stay below.
    """

    pair: float = 4e-9
    pair_cell: float = 4e-11
    value: float = 1e-8
    value_cell: float = 1e-9
    term: float = 1e-9
    fit: float = 5e-3
    answer: float = 1e-3
    machine: float = 3e-4
    vote: float = 8e-9
    share: float = 0.2
    first: float = 0.4
    half: float = 0.5

    def of_fit(self, rows: int, cells: float, classes: int) -> float:
        """Return LIBSVM's seconds; for more than two classes, of all pairs of them."""
        pairs = rows**2 * (1 if classes < 2 else 2 * (classes - 1) / classes)
        return pairs * (self.pair + self.pair_cell * cells)

    def least_of_fit(self, classes: int) -> float:
        """Return the seconds that ours takes however few the rows are."""
        return self.fit + self.machine * classes * (classes - 1) / 2

    def of_answer(self, rows: int, support: int, cells: float, classes: int) -> float:
        """Return LIBSVM's seconds of decision values: kernel values, and of more than two classes the sums of pairs."""
        return rows * support * (self.value + self.value_cell * cells + self.term * max(0, classes - 2))

    def least_of_answer(self, rows: int, classes: int) -> float:
        """Return the seconds that ours takes however few the support vectors are."""
        return self.answer + self.vote * rows * (classes * (classes - 1) / 2 if classes > 2 else 0)

    def pays(self, theirs: float, least: float, spent: float) -> bool:
        """Return whether ours, which takes ``least`` at least, is expected to take half as long as LIBSVM's ``theirs``.

        spent: the seconds that LIBSVM took in this process so far. What loading takes is paid once they come to it.
        """
        return least + self.share * theirs + max(0.0, self.first - spent) < self.half * theirs


COSTS = Costs()


def refused(model: Any, kernel: Any) -> str:
    """Return in words why clsvm cannot do the work of an estimator of scikit-learn's, or "" where it can."""
    if callable(kernel):
        return PYTHON
    if getattr(model, "probability", False) not in (False, "deprecated"):
        return PROBABILITY
    if model.max_iter != -1:
        return CAPPED
    return TALKS if model.verbose else ""


def left_out(model: Any, sample_weight: Any) -> str:
    """Return in words why a fit with such weights is LIBSVM's, which numbers the rows that are left anew, or ""."""
    weights = np.concatenate([np.ravel(sample_weight), np.ravel(getattr(model, "class_weight_", ()))])
    return "" if (weights > 0).all() else "a weight is 0 or less"


def cells(X: Any) -> float:
    """Return the mean count of numbers that a row of X (n, d) stores."""
    return float(X.nnz) / max(1, X.shape[0]) if hasattr(X, "nnz") else float(X.shape[1])


def number_of_classes(y: Any) -> int:
    """Return the number of classes of labels y (n,), which scikit-learn has numbered."""
    return int(np.max(y, initial=0)) + 1
