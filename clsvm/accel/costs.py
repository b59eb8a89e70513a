"""Estimate the seconds of a call by clsvm and by LIBSVM with a rough cost model, to choose the faster one.

LIBSVM's fit takes time proportional to the square of the number of rows, and grows with the features stored in a row.
clsvm's call takes a fixed time for checks, launches and a copy of the rows, plus a share of LIBSVM's time. The first
call of a process also loads OpenCL and the device's programs. Times depend on C and the data by a factor of several.
Therefore clsvm is chosen only if its estimate is below half of LIBSVM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PYTHON, PROBABILITY = "kernel is a function of Python's", "probability=True"
CAPPED, TALKS = "max_iter ends LIBSVM's steps", "verbose=True prints LIBSVM's words"


@dataclass(frozen=True)
class Costs:
    """Hold the constants of the cost model in seconds, measured on two CPU cores with Intel's OpenCL runtime.

    LIBSVM's real fits take 0.5 to 5.5 times the estimate. The constants of predictions are guesses.

    Attributes
    ----------
    pair, pair_cell
        LIBSVM's fit: seconds for each pair of rows, and for each pair and stored feature of a row.
    value, value_cell
        LIBSVM's prediction: seconds for each kernel value, and for each kernel value and stored feature of a row.
    term
        LIBSVM's prediction: seconds for each row, support vector and class beyond two.
    fit, answer
        clsvm's fixed seconds of a fit, and of a prediction.
    machine
        clsvm's fit: seconds for each pair of classes.
    vote
        clsvm's prediction: seconds for each row and pair of classes.
    share
        clsvm's further time as a share of LIBSVM's.
    first
        seconds that the first call of a process takes to load OpenCL and cached programs.
    half
        share of LIBSVM's time below which clsvm's estimate must lie.
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
        """Return LIBSVM's seconds for a fit to ``rows`` rows with ``cells`` stored features each, over all pairs."""
        pairs = rows**2 * (1 if classes < 2 else 2 * (classes - 1) / classes)
        return pairs * (self.pair + self.pair_cell * cells)

    def least_of_fit(self, classes: int) -> float:
        """Return the seconds that clsvm's fit takes even if it has few rows."""
        return self.fit + self.machine * classes * (classes - 1) / 2

    def of_answer(self, rows: int, support: int, cells: float, classes: int) -> float:
        """Return LIBSVM's seconds for the decision values of ``rows`` rows with ``support`` support vectors."""
        return rows * support * (self.value + self.value_cell * cells + self.term * max(0, classes - 2))

    def least_of_answer(self, rows: int, classes: int) -> float:
        """Return the seconds that clsvm's decision values take even if there are few support vectors."""
        return self.answer + self.vote * rows * (classes * (classes - 1) / 2 if classes > 2 else 0)

    def pays(self, theirs: float, least: float, spent: float) -> bool:
        """Return whether clsvm is expected to take less than half of LIBSVM's time.

        theirs: LIBSVM's estimated seconds. least: clsvm's seconds for a small problem. spent: the seconds that LIBSVM
        took in this process so far. Once they reach ``first``, the time to load OpenCL no longer counts.
        """
        return least + self.share * theirs + max(0.0, self.first - spent) < self.half * theirs


COSTS = Costs()


def refused(model: Any, kernel: Any) -> str:
    """Return the reason why clsvm cannot run a scikit-learn estimator, or "" if it can.

    model: the estimator. kernel: its parameter ``kernel``.
    """
    if callable(kernel):
        return PYTHON
    if getattr(model, "probability", False) not in (False, "deprecated"):
        return PROBABILITY
    if model.max_iter != -1:
        return CAPPED
    return TALKS if model.verbose else ""


def left_out(model: Any, sample_weight: Any) -> str:
    """Return "a weight is 0 or less" if a sample or class weight is not positive, else "".

    LIBSVM drops rows of weight 0 and renumbers the others, so such a fit stays with LIBSVM.
    """
    weights = np.concatenate([np.ravel(sample_weight), np.ravel(getattr(model, "class_weight_", ()))])
    return "" if (weights > 0).all() else "a weight is 0 or less"


def cells(X: Any) -> float:
    """Return the mean number of stored entries in a row of X (n, d); d if X is dense."""
    return float(X.nnz) / max(1, X.shape[0]) if hasattr(X, "nnz") else float(X.shape[1])


def number_of_classes(y: Any) -> int:
    """Return the number of classes for labels y (n,) that scikit-learn has numbered from 0."""
    return int(np.max(y, initial=0)) + 1
