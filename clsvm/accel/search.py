"""GridSearchCV over scikit-learn's support vector machines, as SVCSearchCV does it: folds and values of C share K."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import svm
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import ParameterGrid, check_cv

from clsvm.accel import costs
from clsvm.estimators.callbacks import registered
from clsvm.estimators.checks import defined

_THEIRS = (svm.SVC, svm.NuSVC, svm.SVR, svm.NuSVR, svm.OneClassSVM)
SHARED = {"C", "gamma", "nu", "epsilon", "kernel", "degree", "coef0", "tol"}  # that searches of ours vary


def refused(asked: Any, params: dict[str, Any]) -> str:
    """Return in words why the search stays GridSearchCV's own, or "" where it need not."""
    if params:
        return f"fit was given {', '.join(sorted(params))}"
    if words := altered(asked.estimator):
        return words
    if registered(asked, asked.estimator):
        return "callbacks are to hear of each fit"
    if asked.verbose or asked.n_jobs == 0:
        return "verbose tells of each fit, and n_jobs=0 is an error"
    if not (asked.cv is None or isinstance(asked.cv, int | list | tuple) or hasattr(asked.cv, "split")):
        return "cv can be gone through once only"
    if not (asked.scoring is None or isinstance(asked.scoring, str)) or not isinstance(asked.refit, bool):
        return "scoring or refit is neither a name nor True or False"
    grid = ParameterGrid(asked.param_grid)
    if others := {name for one in grid for name in one} - SHARED:
        return f"the grid varies {', '.join(sorted(others))}"
    kernels = {one["kernel"] for one in grid if isinstance(one.get("kernel"), str)}
    if asked.estimator.kernel == "precomputed" or "precomputed" in kernels:
        return "kernel='precomputed'"
    reasons = [costs.refused(asked.estimator, one.get("kernel", asked.estimator.kernel)) for one in grid]
    return next(filter(None, reasons), "")


def altered(estimator: BaseEstimator) -> str:
    """Return in words why an estimator may differ from scikit-learn's support vector machines, or "" if it is one.

    A subclass that defines nothing is one, too.
    """
    kind = type(estimator)
    base = next((one for one in kind.__mro__ if one in _THEIRS), None)
    if base is None or (kind is not base and defined(kind, base)):
        return f"{kind.__name__} has methods or parameters of its own"
    replaced = [name for name in vars(estimator) if hasattr(kind, name) or name.startswith("__")]
    return f"{', '.join(replaced)} of this {kind.__name__} is replaced" if replaced else ""


def seconds(asked: Any, X: Any, y: Any) -> tuple[float, float]:
    """Return the seconds that LIBSVM is expected to take for all fits of the search, and the least that ours takes."""
    rows = X.shape[0] if hasattr(X, "shape") else len(X)
    width = costs.cells(X) if hasattr(X, "shape") and len(X.shape) == 2 else float(len(X[0]))
    classifier = is_classifier(asked.estimator)
    folds = check_cv(asked.cv, y, classifier=classifier).get_n_splits(X, y)
    classes = len(np.unique(y)) if classifier and y is not None else 1
    part, fits = rows * (folds - 1) // max(1, folds), len(ParameterGrid(asked.param_grid)) * folds
    return fits * costs.COSTS.of_fit(part, width, classes), fits * costs.COSTS.least_of_fit(classes)


def run(asked: Any, X: Any, y: Any) -> Any:
    """Search as SVCSearchCV, and give GridSearchCV what it would have found."""
    from clsvm.accel.strict import Search, made
    from clsvm.model_selection.search import adopt

    found = Search(
        made(asked.estimator),
        asked.param_grid,
        scoring=asked.scoring,
        refit=False,
        cv=asked.cv,
        error_score=asked.error_score,
        return_train_score=asked.return_train_score,
    ).fit(X, y)
    adopt(asked, found, X, y)
    return asked
