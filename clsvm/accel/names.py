"""What scikit-learn's estimators and parameters are called here."""

from __future__ import annotations

import inspect
from typing import Any

OURS = {"c_svc": "SVC", "nu_svc": "NuSVC", "epsilon_svr": "SVR", "nu_svr": "NuSVR", "one_class": "OneClassSVM"}
LIBSVM_CACHE = 200  # MB, scikit-learn's default: where it says no more, the size is chosen
_THEIR_OWN = ("probability", "random_state", "verbose", "shrinking", "max_iter")
_UNUSED = {"nu_svc": "class_weight"}  # LIBSVM takes it and does nothing with it


def made(model: Any, **others: Any) -> Any:
    """Our estimator with the parameters of one of scikit-learn's, not fitted; others: over these."""
    import clsvm

    kind = getattr(clsvm, OURS[model._impl])
    names = [name for name in inspect.signature(kind).parameters if name not in _THEIR_OWN and hasattr(model, name)]
    given = {name: getattr(model, name) for name in names if name != _UNUSED.get(model._impl)}
    if given.get("cache_size") == LIBSVM_CACHE:
        given["cache_size"] = "auto"
    return kind(**given | others)
