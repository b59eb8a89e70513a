"""Make the clsvm estimators that run in place of scikit-learn's.

A nu-SVC fit without a margin, which clsvm's public estimator only warns about, raises NoMarginError here. The caller
then lets LIBSVM fit.
"""

from __future__ import annotations

import inspect
from typing import Any

from sklearn import svm

import clsvm.estimators.svm as own
from clsvm.model_selection import SVCSearchCV
from clsvm.model_selection.folds import Folds
from clsvm.tasks import TASKS

LIBSVM_CACHE = 200  # MB: scikit-learn's default cache_size, which becomes "auto"
_THEIR_OWN = {"probability", "random_state", "verbose", "shrinking", "max_iter"}


class NoMarginError(Exception):
    """nu is too small, so the optimum has no margin; LIBSVM stops before the optimum with a usable model."""


class NuSVC(own.NuSVC):
    """Fit as clsvm's NuSVC, but raise NoMarginError if two classes have no margin."""

    def _check_margins(self, rho: Any, fit: Any = None) -> None:
        if (self._margins(rho) <= self.tol).any():
            raise NoMarginError(f"nu={self.nu:g} leaves no margin between two classes")


class _Folds(Folds):
    """Run the fits of a search; raise the NoMarginError of a fit, which ends the search."""

    def run(self, checkpoint: Any, shown: bool) -> None:
        super().run(checkpoint, shown)
        for found in self.found.values():
            if isinstance(found, NoMarginError):
                raise found


def made(model: Any, **others: Any) -> Any:
    """Return an unfitted clsvm estimator with the parameters of a scikit-learn estimator ``model``.

    ``others`` override them. A parameter that only a user's subclass of scikit-learn's class has is left out.
    """
    name = TASKS[model._impl].estimator
    ours: Any = NuSVC if name == "NuSVC" else getattr(own, name)
    shared = inspect.signature(ours).parameters.keys() & inspect.signature(getattr(svm, name)).parameters.keys()
    given = {name: getattr(model, name) for name in shared - _THEIR_OWN if hasattr(model, name)}
    if ours is NuSVC:  # LIBSVM ignores class_weight in nu-SVC
        given.pop("class_weight", None)
    if given.get("cache_size") == LIBSVM_CACHE:
        given["cache_size"] = "auto"
    return ours(**given | others)


class Search(SVCSearchCV):
    """Search as clsvm's SVCSearchCV, but raise the NoMarginError of a fold's fit."""

    _folds = _Folds
