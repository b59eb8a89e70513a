"""What scikit-learn's estimators and parameters are called here."""

from __future__ import annotations

import inspect
from typing import Any

from sklearn import svm
from sklearn.base import BaseEstimator

from clsvm.estimators.checks import defined

OURS = {"c_svc": "SVC", "nu_svc": "NuSVC", "epsilon_svr": "SVR", "nu_svr": "NuSVR", "one_class": "OneClassSVM"}
LIBSVM_CACHE = 200  # MB, scikit-learn's default: where it says no more, the size is chosen
_THEIR_OWN = ("probability", "random_state", "verbose", "shrinking", "max_iter")
_THEIRS = {task: getattr(svm, name) for task, name in OURS.items()}
_UNUSED = {"nu_svc": "class_weight"}  # LIBSVM takes it and does nothing with it


def made(model: Any, **others: Any) -> Any:
    """Return clsvm's estimator, not fitted, with the parameters of one of scikit-learn's and ``others`` over them.

    A parameter that only a user's subclass of scikit-learn's class has, such as ``device``, is left out.
    """
    from clsvm.accel import strict

    kind = getattr(strict, OURS[model._impl])
    shared = inspect.signature(kind).parameters.keys() & inspect.signature(_THEIRS[model._impl]).parameters.keys()
    names = [name for name in shared - set(_THEIR_OWN) if hasattr(model, name)]
    given = {name: getattr(model, name) for name in names if name != _UNUSED.get(model._impl)}
    if given.get("cache_size") == LIBSVM_CACHE:
        given["cache_size"] = "auto"
    return kind(**given | others)


def altered(estimator: BaseEstimator) -> str:
    """Return in words why an estimator may differ from scikit-learn's support vector machines, or "" if it is one.

    A subclass that defines nothing is one, too.
    """
    kind = type(estimator)
    base = next((one for one in kind.__mro__ if one in _THEIRS.values()), None)
    if base is None or (kind is not base and defined(kind, base)):
        return f"{kind.__name__} has methods or parameters of its own"
    replaced = [name for name in vars(estimator) if hasattr(kind, name) or name.startswith("__")]
    return f"{', '.join(replaced)} of this {kind.__name__} is replaced" if replaced else ""
