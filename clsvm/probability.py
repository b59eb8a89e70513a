"""Probabilities of a fitted machine, from its decision values on rows that it was not fitted to."""

from __future__ import annotations

from clsvm.models.decoder import calibrated, coupled, density_marks, folds, laplace, of_one_class, of_pairs, platt

__all__ = ["calibrated", "coupled", "density_marks", "folds", "laplace", "of_one_class", "of_pairs", "platt"]
