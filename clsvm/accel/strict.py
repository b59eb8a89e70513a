"""Estimators that stand in for scikit-learn's: a solution without use is an error here, not a warning."""

from __future__ import annotations

from typing import Any

from clsvm.estimators import classification
from clsvm.estimators.classification import SVC
from clsvm.estimators.one_class import OneClassSVM
from clsvm.estimators.regression import SVR, NuSVR
from clsvm.model_selection import SVCSearchCV
from clsvm.model_selection.folds import Folds

__all__ = ["SVC", "SVR", "NoMarginError", "NuSVC", "NuSVR", "OneClassSVM", "Search"]


class NoMarginError(Exception):
    """nu is too small for the rows: the optimum tells nothing, whereas LIBSVM ends before it with a model of use."""


class NuSVC(classification.NuSVC):
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


class Search(SVCSearchCV):
    """clsvm's SVCSearchCV, whose fit raises NoMarginError where a fit to a fold does."""

    _folds = _Folds
