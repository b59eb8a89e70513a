"""Fit probabilities to the decision values of an SVM, as LIBSVM does.

:func:`calibrated` fits them by cross-validation for a fitted estimator. The other functions are its parts: folds,
sigmoids of pairs of classes and their coupling, errors of a regression, and marks of a one-class SVM.
"""

from __future__ import annotations

from clsvm.models.decoder import calibrated, coupled, density_marks, folds, laplace, of_one_class, of_pairs, platt

__all__ = ["calibrated", "coupled", "density_marks", "folds", "laplace", "of_one_class", "of_pairs", "platt"]
