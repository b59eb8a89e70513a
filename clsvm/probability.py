"""Fit probabilities to the decision values of an SVM, as LIBSVM does.

:func:`calibrated` fits probabilities by cross-validation for a fitted estimator. The other functions are its parts:

- :func:`folds` divides the rows for the cross-validation;
- :func:`platt` fits the sigmoid of two classes;
- :func:`of_pairs` and :func:`coupled` combine the probabilities of all pairs of classes;
- :func:`laplace` fits the scale of a regression's errors;
- :func:`density_marks` and :func:`of_one_class` map the decision values of a one-class SVM to probabilities.
"""

from __future__ import annotations

from clsvm.models.decoder import calibrated, coupled, density_marks, folds, laplace, of_one_class, of_pairs, platt

__all__ = ["calibrated", "coupled", "density_marks", "folds", "laplace", "of_one_class", "of_pairs", "platt"]
