"""Estimate the seconds that clsvm and LIBSVM need for a fit or prediction of scikit-learn, to choose the faster one.

LIBSVM's time for a fit is estimated as proportional to the square of the number of rows. The estimate also grows with
the number of stored features of a row. clsvm's time is estimated as a fixed time for checks and kernel launches, plus a
share of LIBSVM's time. The first call of a process also loads OpenCL and the device's programs.

LIBSVM's real time depends on C and the data, and can be several times the estimate, or half of it. clsvm is therefore
chosen only if its estimated time is less than half of LIBSVM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PYTHON, PROBABILITY = "kernel is a function of Python's", "probability=True"
CAPPED, TALKS = "max_iter ends LIBSVM's steps", "verbose=True prints LIBSVM's words"


@dataclass(frozen=True)
class Costs:
    """Hold the constants from which the seconds of fits and predictions are estimated.

    The constants are for two CPU cores with Intel's OpenCL runtime. The constants of fits were measured. The constants
    of predictions are guesses. LIBSVM's real fits take 0.5 to 5.5 times the estimated time.

    Attributes
    ----------
    pair
        LIBSVM's fit: seconds for each pair of rows.
    pair_cell
        LIBSVM's fit: additional seconds for each pair of rows and each stored feature of a row.
    value
        LIBSVM's prediction: seconds for each kernel value.
    value_cell
        LIBSVM's prediction: additional seconds for each kernel value and each stored feature of a row.
    term
        LIBSVM's prediction for k > 2 classes: additional seconds for each kernel value, times k - 2.
    fit
        clsvm's fit: seconds that every fit takes.
    answer
        clsvm's prediction: seconds that every prediction takes.
    machine
        clsvm's fit: additional seconds for each pair of classes.
    vote
        clsvm's prediction: additional seconds for each row and each pair of classes.
    share
        clsvm's fit and prediction: additional time, as a share of LIBSVM's estimated time.
    first
        seconds that the first call of a process takes to load OpenCL and cached programs.
    max_share
        clsvm is chosen if its estimated time is less than this share of LIBSVM's.
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
    max_share: float = 0.5

    def fit_seconds(self, rows: int, cells: float, classes: int) -> tuple[float, float]:
        """Return LIBSVM's estimated seconds for a fit to ``rows`` rows, and a lower bound of clsvm's seconds.

        The lower bound is the part of clsvm's time that does not depend on the number of rows.
        LIBSVM's seconds are summed over all pairs of classes.

        cells: mean number of stored features of a row.
        """
        pairs = rows**2 * (1 if classes < 2 else 2 * (classes - 1) / classes)
        return pairs * (self.pair + self.pair_cell * cells), self.fit + self.machine * classes * (classes - 1) / 2

    def predict_seconds(self, rows: int, support: int, cells: float, classes: int) -> tuple[float, float]:
        """Return LIBSVM's estimated seconds for decision values of ``rows`` rows, and a lower bound of clsvm's seconds.

        The lower bound leaves out the time to compute kernel values.

        support: number of support vectors.
        cells: mean number of stored features of a row.
        """
        libsvm = rows * support * (self.value + self.value_cell * cells + self.term * max(0, classes - 2))
        return libsvm, self.answer + self.vote * rows * (classes * (classes - 1) / 2 if classes > 2 else 0)

    def pays(self, theirs: float, least: float, spent: float) -> bool:
        """Return whether clsvm's estimated seconds are less than ``self.max_share`` times LIBSVM's estimated seconds.

        clsvm's estimated seconds are ``least`` + ``self.share`` * ``theirs`` + max(0, ``self.first`` - ``spent``). The
        term ``self.share`` * ``theirs`` is the part of clsvm's time that grows with LIBSVM's time. The last term is the
        time ``self.first`` to load OpenCL, less the time that this process has spent in LIBSVM. A process that has
        spent much time in LIBSVM will probably make more calls, which share the time to load OpenCL.

        theirs: LIBSVM's estimated seconds for the call.
        least: lower bound of clsvm's seconds for the call, without the time to load OpenCL.
        spent: seconds that this process has spent in LIBSVM so far, or ``self.first`` if OpenCL is loaded.
        """
        return least + self.share * theirs + max(0.0, self.first - spent) < self.max_share * theirs


COSTS = Costs()


def refused(model: Any, kernel: Any) -> str:
    """Return the reason why clsvm cannot run fits of the scikit-learn estimator ``model``, or "" if clsvm can.

    kernel: name of the estimator's kernel, or a Python function.
    """
    if callable(kernel):
        return PYTHON
    if getattr(model, "probability", False) not in (False, "deprecated"):
        return PROBABILITY
    if model.max_iter != -1:
        return CAPPED
    return TALKS if model.verbose else ""


def nonpositive_weight(model: Any, sample_weight: Any) -> str:
    """Return "a weight is 0 or less" if a sample or class weight is not positive, else "".

    A fit with a weight of 0 or less must be left to LIBSVM. LIBSVM removes rows of weight 0 before a fit, and numbers
    the support vectors by their positions among the remaining rows.
    """
    weights = np.concatenate([np.ravel(sample_weight), np.ravel(getattr(model, "class_weight_", ()))])
    return "" if (weights > 0).all() else "a weight is 0 or less"


def cells(X: Any) -> float:
    """Return the mean number of stored entries in a row of X (n, d). For a dense X, this is d."""
    return float(X.nnz) / max(1, X.shape[0]) if hasattr(X, "nnz") else float(X.shape[1])


def number_of_classes(y: Any) -> int:
    """Return the number of classes for labels y (n,) that scikit-learn has numbered from 0."""
    return int(np.max(y, initial=0)) + 1
