"""Check the arguments of a fit: rows, kernel values, labels and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from clsvm.errors import naming
from clsvm.kernels import Kernel

_TRIAL_ROWS = 20  # a kernel function is tried on this many rows before a fit
Vector = NDArray[np.float64]
Indices = NDArray[np.intp]
_LARGEST = 1e100  # largest target, and largest sum of the coefficients' bounds, so that their squares do not overflow
# New releases of scikit-learn raise an error if all weights are 0, unless allow_all_zero_weights=True is passed.
# clsvm passes allow_all_zero_weights=True to scikit-learn's check of weights if the check has this argument.
# If all weights are 0, the error is raised by clsvm's function weights_of, and not by scikit-learn's check.
_ALLOWED = {"allow_all_zero_weights"} & signature(_check_sample_weight).parameters.keys()


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text, such as 3x4."""
    return "x".join(map(str, shape))


def symmetric(K: NDArray[Any]) -> NDArray[Any]:
    """Return the kernel matrix K (n, n), or (K + K') / 2 with the transpose K' if rounding errors made K asymmetric.

    Raises ValueError if K and K' differ by more than 1e-5 times the largest absolute value of K.
    """
    step = max(1, (1 << 22) // len(K))
    worst = max(float(np.abs(K[i : i + step] - K[:, i : i + step].T).max()) for i in range(0, len(K), step))
    if worst > 1e-5 * float(np.abs(K).max()):
        raise ValueError(f"the kernel matrix is not symmetric: K(x, y) and K(y, x) differ by up to {worst:g}")
    return (K + K.T) / 2 if worst else K


def own_names(made: type, base: type) -> set[str]:
    """Return the names of the attributes that ``made``, a subclass of ``base``, defines or overrides.

    Attributes of mixins, and of classes between ``made`` and ``base``, count too.
    """

    class Bare(base):
        """Have only the attributes that Python adds to any class. ``own_names`` leaves these attributes out."""

    between = (one for one in made.__mro__ if one not in base.__mro__)
    return {name for one in between for name in vars(one)} - vars(Bare).keys()


def check_values(kernel: Kernel, X: Any) -> None:
    """Raise ValueError if the kernel function is not defined for the rows X.

    Raise ValueError also if kernel values are nan or not symmetric on a sample of at most _TRIAL_ROWS rows.
    """
    kernel.check_domain(X)
    sample = X[:: -(-X.shape[0] // _TRIAL_ROWS)]
    K = kernel(sample)
    # nan from a squared norm that overflows is no error here, because another check reports the overflow.
    if np.isnan(K).any() and np.isfinite(kernel.sizes(sample)).all():
        raise ValueError(f"{kernel!r} is nan for some rows of X")
    if np.isfinite(K).all() and np.abs(K - K.T).max() > 1e-9 * np.abs(K).max():
        raise ValueError(f"{kernel!r} is not symmetric: K(x, y) and K(y, x) differ by up to {np.abs(K - K.T).max():g}")


def variance(X: Any) -> float:
    """Return the variance of all values of X, zeros included; infinity or nan if the variance overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not sp.issparse(X):
            return float(X.var(dtype=np.float64))
        cells, data = X.shape[0] * X.shape[1], X.data.astype(np.float64)
        mean = data.sum() / cells
        return float((np.square(data - mean).sum() + (cells - len(data)) * mean**2) / cells)


class Labels(NamedTuple):
    """Hold the distinct labels ``classes`` (k,), sorted, and for each row the index of its class, ``indices`` (n,)."""

    classes: NDArray[Any]
    indices: Indices


def check_missing(y: Any, name: str = "y") -> None:
    """Raise ValueError if the labels y have a missing value: None, NaN or pandas.NA.

    Only arrays of objects or strings are checked. scikit-learn's check would raise a TypeError for pandas.NA and None.
    ``name`` is the parameter's name in the message.
    """
    values = np.asarray(y)
    for one in values.ravel().tolist() if y is not None and values.dtype.kind in "OT" else ():
        if one is None or type(one).__name__ == "NAType" or (isinstance(one, float) and one != one):
            raise ValueError(f"{name} must have a value for each row, got {one}: missing values are refused")


def classes_of(y: Any) -> Labels:
    """Return the distinct labels in y (n,) and each row's class index. Raises ValueError for fewer than two classes."""
    if isinstance(y, Labels):
        return y
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    classes, index = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"The number of classes has to be greater than one; got {len(classes)} class")
    return Labels(classes, index)


def check_size(y: Vector) -> Vector:
    """Return the targets y unchanged. Raises ValueError if a target's absolute value exceeds 1e100."""
    if (largest := float(np.abs(y).max(initial=0.0))) > _LARGEST:
        raise ValueError(f"absolute values of y must be at most {_LARGEST:g}, got {largest:g}")
    return y


def read_weights(sample_weight: Any, X: Any) -> Vector:
    """Return the weights (n,) of the rows of X, or 1 for each row if sample_weight is None. Negative weights become 0.

    Raises ValueError unless sample_weight is None, one finite number, or n finite numbers.
    """
    with naming("sample_weight"):
        rows = _check_sample_weight(sample_weight, X, dtype=np.float64, **dict.fromkeys(_ALLOWED, True))
    return np.maximum(rows, 0)


def weights_of(sample_weight: Any, X: Any, error_start: str = "Invalid input") -> Vector:
    """Return the weights (n,) of the rows of X, as :func:`read_weights` does.

    Raises ValueError if no row has a positive weight. The message begins with ``error_start``.
    """
    rows = read_weights(sample_weight, X)
    if not rows.any():
        raise ValueError(f"{error_start} - all samples have zero or negative weights.")
    return rows


def bounds_of(C: float, rows: Vector, by_class: Vector | None = None) -> Vector:
    """Return the bound of each row's coefficient, C * class weight * sample weight, (n,).

    ``rows`` (n,) has the sample weight of each row. ``by_class`` (n,) has the weight of each row's class, or is None
    if all class weights are 1. Raises ValueError if the sum of the bounds exceeds 1e100.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = C * rows if by_class is None else C * by_class * rows
        total = float(np.maximum(bounds, 0).sum())
    if not total <= _LARGEST:
        words = "sample_weight" if by_class is None else "class_weight * sample_weight"
        raise ValueError(f"the sum of C * {words} must be at most {_LARGEST:g}, got {total:g} for C={C:g}")
    return bounds


def class_weights(class_weight: Any, classes: NDArray[Any], y: NDArray[Any]) -> Vector:
    """Return the weights (k,) that the parameter class_weight gives to the k ``classes``. y (n,) are the rows' labels.

    Raises ValueError or TypeError unless class_weight is a dict of finite numbers >= 0, "balanced" or None. Weights of
    classes that do not occur in y are ignored if every class of y has a weight, as in scikit-learn.
    """
    labels = classes.tolist()
    unknown = [label for label in class_weight if label not in labels] if isinstance(class_weight, Mapping) else []
    if unknown and any(label not in class_weight for label in labels):
        raise ValueError(f"class_weight must have labels of y as keys, got {unknown} for the labels {labels}")
    with naming("class_weight"):
        weights = np.asarray(compute_class_weight(class_weight, classes=classes, y=y), np.float64)
    for label, weight in zip(labels, weights.tolist(), strict=True):
        if not 0 <= weight < np.inf:
            raise ValueError(f"class_weight must be >= 0 and finite, got {weight:g} for class {label!r}")
    return weights


@dataclass(frozen=True)
class ClassBounds:
    """Hold the classes of a fit and the bounds of its coefficients.

    Attributes
    ----------
    classes
        sorted labels of the classes with a row of positive weight, (k,).
    weights
        class weights, (k,).
    index
        index in ``classes`` of each row's class, -1 for rows of classes that are left out, (n,).
    bounds
        bound of each row's coefficient, C * class weight * sample weight, (n,).
    """

    classes: NDArray[Any]
    weights: Vector
    index: Indices
    bounds: Vector


def weighted_classes(index: Indices, weights: Vector, error_start: str) -> tuple[Indices, Indices]:
    """Return the classes that have a row of positive weight, and the position (n,) of each row's class among them.

    ``index`` (n,) is the class number of each row, ``weights`` (n,) its weight. If all rows of a class have weight 0,
    the position is -1 for each row of the class.

    Raises ValueError if fewer than two classes remain. The message begins with ``error_start``.
    """
    left = np.unique(index[weights > 0])
    if len(left) < 2:
        raise ValueError(f"{error_start} - all samples with positive weights belong to the same class.")
    indices = np.full(index.max() + 1, -1)
    indices[left] = np.arange(len(left))
    return left, indices[index]
