"""Turn the user's labels and weights into the signs and boxes of the dual problems."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from clsvm.errors import naming

Vector = NDArray[np.float64]
_MOST = 1e100  # of the sum of all bounds: its square, times kernel values, is a number
# Weights that are all 0 have the words of weights_of, whichever release of scikit-learn is installed.
_ALLOWED = {"allow_all_zero_weights"} & signature(_check_sample_weight).parameters.keys()


class Labels(NamedTuple):
    """Labels that have been read: classes (k,), sorted, and the place of each row's class among them, places (n,)."""

    classes: NDArray[Any]
    places: NDArray[np.intp]


def check_missing(y: Any, name: str = "y") -> None:
    """Raise ValueError where objects or strings y have a missing entry: None, NaN or pandas.NA.

    scikit-learn's own check ends with a TypeError for pandas.NA and for None.
    """
    dtype = getattr(y, "dtype", None)
    if y is None or (isinstance(dtype, np.dtype) and dtype.kind not in "OT"):
        return
    values = np.asarray(y)
    NA = getattr(sys.modules.get("pandas"), "NA", None)
    for one in values.ravel().tolist() if values.dtype.kind in "OT" else ():
        if one is None or one is NA or (isinstance(one, float) and one != one):
            raise ValueError(f"{name} must have a value for each row, got {one}: missing values are refused")


def classes_of(y: Any) -> Labels:
    """Return labels y (n,) as they are read, or themselves. Raises ValueError for fewer than two classes."""
    if isinstance(y, Labels):
        return y
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    classes, index = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {len(classes)} class")
    return Labels(classes, index)


def numbers_of(y: Any) -> Vector:
    """Return targets (n,) as float64. Raises ValueError as :func:`within`."""
    return within(np.asarray(column_or_1d(y, warn=True), np.float64))


def within(y: Vector) -> Vector:
    """Return the targets themselves. Raises ValueError where their squares are beyond float64."""
    if (largest := float(np.abs(y).max(initial=0.0))) > _MOST:
        raise ValueError(f"y must be numbers of at most {_MOST:g}, got {largest:g}")
    return y


def read_weights(sample_weight: Any, X: Any) -> Vector:
    """Return the weights (n,) of the rows of X: ones by default, 0 for negative ones.

    Raises ValueError for weights that are not n finite numbers or a single one.
    """
    with naming("sample_weight"):
        rows = _check_sample_weight(sample_weight, X, dtype=np.float64, **dict.fromkeys(_ALLOWED, True))
    return np.maximum(rows, 0)


def weights_of(sample_weight: Any, X: Any, refused: str = "Invalid input") -> Vector:
    """Return :func:`read_weights`. Raises ValueError where no row has a positive weight."""
    rows = read_weights(sample_weight, X)
    if not rows.any():
        raise ValueError(f"{refused} - all samples have zero or negative weights.")
    return rows


def bounds_of(C: float, rows: Vector, by_class: Vector | None = None) -> Vector:
    """Return C * class weight * sample weight of each row, (n,).

    Raises ValueError where the square of the sum of the bounds is beyond float64.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = C * rows if by_class is None else C * by_class * rows
        total = float(np.maximum(bounds, 0).sum())
    if not total <= _MOST:
        words = "sample_weight" if by_class is None else "class_weight * sample_weight"
        raise ValueError(f"the sum of C * {words} must be at most {_MOST:g}, got {total:g} for C={C:g}")
    return bounds


def class_weights(class_weight: Any, classes: NDArray[Any], y: NDArray[Any]) -> Vector:
    """Return the weight (k,) of each of the classes, by class_weight and the labels y (n,).

    Raises ValueError or TypeError for a class_weight that is no dict, 'balanced' or None, and for a weight that is
    negative or not finite. Weights of classes that are not in y play no part, as in scikit-learn.
    """
    with naming("class_weight"):
        weights = np.asarray(compute_class_weight(class_weight, classes=classes, y=y), np.float64)
    for label, weight in zip(classes.tolist(), weights.tolist(), strict=True):
        if not 0 <= weight < np.inf:
            raise ValueError(f"class_weight must be >= 0 and finite, got {weight:g} for class {label!r}")
    return weights


@dataclass(frozen=True)
class Boxes:
    """Classes and bounds of a fit.

    classes (k,): sorted, those with a row of positive weight. weights (k,): of the classes. index (n,): each row's
    class, -1 where it is none of these. bounds (n,): of each row's coefficient, C * class weight * sample weight.
    """

    classes: NDArray[Any]
    weights: Vector
    index: NDArray[np.intp]
    bounds: Vector


def boxes(C: float, class_weight: Any, sample_weight: Any, y: Any, refused: str = "Invalid input") -> Boxes:
    """Return the classes of labels y (n,) and the bounds of their rows' coefficients.

    A class without a row of positive weight is none. Raises ValueError where fewer than two classes are left.
    """
    classes, index = classes_of(y)
    weights = class_weights(class_weight, classes, classes[index])
    rows = weights_of(sample_weight, index, refused)
    bounds = bounds_of(C, rows, weights[index])
    left, index = weighing(index, bounds, refused)
    return Boxes(classes[left], weights[left], index, np.maximum(bounds, 0))


def weighing(index: NDArray[np.intp], weights: Vector, refused: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the classes that have a row of positive weight, and for each row its place among them, else -1.

    index, weights (n,): class and weight of each row. Raises ValueError where fewer than two classes are left.
    """
    left = np.unique(index[weights > 0])
    if len(left) < 2:
        raise ValueError(f"{refused} - all samples with positive weights belong to the same class.")
    places = np.full(index.max() + 1, -1)
    places[left] = np.arange(len(left))
    return left, places[index]
