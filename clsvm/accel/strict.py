"""clsvm's estimators in place of scikit-learn's. A solution without use is an error here, not a warning."""

from __future__ import annotations

import inspect
from typing import Any

from sklearn import svm

import clsvm.estimators.svm as own
from clsvm.model_selection import SVCSearchCV
from clsvm.model_selection.folds import Folds
from clsvm.tasks import TASKS

LIBSVM_CACHE = 200  # MB, scikit-learn's default: where it says no more, the size is chosen
_THEIR_OWN = {"probability", "random_state", "verbose", "shrinking", "max_iter"}


class NoMarginError(Exception):
    """nu is too small for the rows: the optimum tells nothing, whereas LIBSVM ends before it with a model of use."""


class NuSVC(own.NuSVC):
    """clsvm's NuSVC, whose fit raises NoMarginError where two classes have no margin."""

    def _check_margins(self, rho: Any, fit: Any = None) -> None:
        if (self._margins(rho) <= self.tol).any():
            raise NoMarginError(f"nu={self.nu:g} leaves no margin between two classes")


class _Folds(Folds):
    """Fits of a search. A fit without a margin ends the search."""

    def run(self, checkpoint: Any, shown: bool) -> None:
        super().run(checkpoint, shown)
        for found in self.found.values():
            if isinstance(found, NoMarginError):
                raise found


def made(model: Any, **others: Any) -> Any:
    """Return clsvm's estimator, not fitted, with the parameters of one of scikit-learn's and ``others`` over them.

    A parameter that only a user's subclass of scikit-learn's class has, such as ``device``, is left out.
    """
    name = TASKS[model._impl].estimator
    ours: Any = NuSVC if name == "NuSVC" else getattr(own, name)
    shared = inspect.signature(ours).parameters.keys() & inspect.signature(getattr(svm, name)).parameters.keys()
    given = {name: getattr(model, name) for name in shared - _THEIR_OWN if hasattr(model, name)}
    if ours is NuSVC:  # (LIBSVM takes a class_weight there and does nothing with it)
        given.pop("class_weight", None)
    if given.get("cache_size") == LIBSVM_CACHE:
        given["cache_size"] = "auto"
    return ours(**given | others)


class Search(SVCSearchCV):
    """clsvm's SVCSearchCV, whose fit raises NoMarginError where a fit to a fold does."""

    _folds = _Folds
