"""Make the clsvm estimators that run in place of scikit-learn's SVMs.

If nu is too small, a nu-SVC has no margin between two classes. clsvm's public NuSVC then warns. The NuSVC of this
module raises NoMarginError instead, and LIBSVM runs the fit.
"""

from __future__ import annotations

import inspect
from typing import Any

from sklearn import svm

import clsvm.estimators.svm as own
from clsvm.model_selection import SVCSearchCV
from clsvm.model_selection.folds import Folds
from clsvm.tasks import TASKS

LIBSVM_CACHE = 200  # scikit-learn's default cache_size in MB; clsvm replaces this value by "auto"
_THEIR_OWN = {"probability", "random_state", "verbose", "shrinking", "max_iter"}


class NoMarginError(Exception):
    """Report that nu is too small, so that the optimum of nu-SVC has no margin.

    LIBSVM stops before it reaches this optimum, with a usable model. LIBSVM therefore runs the fit after this error.
    """


class NuSVC(own.NuSVC):
    """Fit a nu-SVC as clsvm's NuSVC does, but raise an error where clsvm's NuSVC only warns.

    The error is NoMarginError. It is raised if the solution for a pair of classes has a margin of at most ``tol``.
    """

    def _check_margins(self, rho: Any, problems: Any) -> None:
        if (self._margins(rho) <= self.tol).any():
            raise NoMarginError(f"nu={self.nu:g} leaves no margin between two classes")


class _Folds(Folds):
    """Run the fits of a grid search. If a fit raised NoMarginError, raise this error after all fits have ended."""

    def run(self, checkpoint: Any, shown: bool) -> None:
        super().run(checkpoint, shown)
        for found in self.results.values():
            if isinstance(found, NoMarginError):
                raise found


def made(model: Any, **others: Any) -> Any:
    """Return an unfitted clsvm estimator with the parameters of the scikit-learn estimator ``model``.

    Parameters that only a user's subclass has are left out. The parameters probability, random_state, verbose,
    shrinking and max_iter are left out too. scikit-learn's default cache_size becomes "auto". A NuSVC gets no
    class_weight, because LIBSVM ignores it for a nu-SVC.

    others: parameters whose values replace the values in ``model``.
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
    """Search a parameter grid as clsvm's SVCSearchCV does, but handle NoMarginError differently.

    If a fit raises NoMarginError, the search raises this error, instead of scoring the fit as failed.
    """

    _folds = _Folds
