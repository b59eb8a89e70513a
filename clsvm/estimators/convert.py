"""Fitted estimators from scikit-learn's to clsvm's and back, with the same coefficients and predictions."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import svm
from sklearn.utils.validation import check_is_fitted

import clsvm.estimators.svm as own
from clsvm import arrays
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import PRECOMPUTED, Kernel, Precomputed, make
from clsvm.kernels.records import BUILTIN
from clsvm.models.model import KernelModel
from clsvm.parameters import PARAMETERS
from clsvm.tasks import CLASSES, TASKS

_OURS = {getattr(svm, name): getattr(own, name) for name in ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM")}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_KERNELS = ("linear", "poly", "rbf", "sigmoid", "precomputed")  # both have these, under the same names
_SAME = ("fit_status_", "shape_fit_", "n_iter_", "n_features_in_", "feature_names_in_", "class_weight_", "classes_")


def from_sklearn(model: Any, **params: Any) -> Any:
    """Return clsvm's estimator, fitted as ``model`` is: SVC, NuSVC, SVR, NuSVR or OneClassSVM of scikit-learn.

    Parameters and attributes are the same (cache_size apart), decision values those of kernel values in ``dtype``.
    ``model_`` has the sigmoids of a model that was fitted with probability=True. There is no fit_report_. params: of
    clsvm's estimator, in place of those of ``model``: device, dtype, memory_limit and so on.

    Raises TypeError for another estimator, NotFittedError, and ValueError for a kernel that is a function of Python's.
    """
    kind = _other(model, _OURS, "scikit-learn")
    if model.kernel not in _KERNELS:
        raise ValueError(f"model must have one of the kernels {', '.join(_KERNELS)}, got {model.kernel!r}")
    made: Any = kind()
    made.set_params(**_shared(model, kind, _THEIRS[kind]) | params)
    PARAMETERS["dtype"].limits.check("dtype", made.dtype)
    made.support_, made._n_support = np.array(model.support_, np.int32), np.array(model.n_support_, np.int32)
    made.support_vectors_ = arrays.canonical(_float64(model.support_vectors_))
    kernel: Kernel | Precomputed = PRECOMPUTED
    vectors = made.support_  # (of given values the support vectors are columns)
    if model.kernel in BUILTIN:
        given = {"gamma": float(model._gamma), "coef0": float(model.coef0), "degree": model.degree}
        kernel = make(model.kernel, **{p.name: given[p.name] for p in BUILTIN[model.kernel].parameters})
        vectors = made.support_vectors_
    classes = model.classes_ if TASKS[made._task].kind == CLASSES else np.zeros(0)
    dual_coef = model.dual_coef_.toarray() if sparse.issparse(model.dual_coef_) else model.dual_coef_
    made.dual_coef_ = _float64(dual_coef).reshape(max(1, len(classes) - 1), len(made.support_))
    made.intercept_ = _float64(model.intercept_)
    _copy(model, made)
    A, B = (np.array(getattr(model, name, ()), np.float64) for name in ("_probA", "_probB"))
    made.model_ = KernelModel(
        kernel=kernel,
        support_vectors=vectors,
        dual_coef=made.dual_coef_,
        intercept=made.intercept_,
        classes=classes,
        n_support=made._n_support,
        plan=None if len(made.support_) else Plan("dense", np.zeros(model.n_features_in_), "no support vectors"),
        dtype=made.dtype,
        task=made._task,
        probA=A if A.size else None,
        probB=_turned(B, classes) if B.size else None,
    )
    return made


def to_sklearn(model: Any) -> Any:
    """Return scikit-learn's estimator, fitted as ``model`` is, an estimator of clsvm.

    Parameters and attributes are the same (cache_size apart; of a :class:`clsvm.Kernel` its name and numbers), decision
    values those of kernel values in float64. Probabilities of ``model.model_`` become those of probability=True.

    Raises TypeError for anything else, NotFittedError, and ValueError where scikit-learn has no such model: for another
    kernel function, more than two classes other than by pairs, classes that are coupled, no offset.
    """
    kind = _other(model, _THEIRS, "clsvm")
    machine: KernelModel = model.model_
    given = model.kernel == "precomputed"
    if machine.kernel.name not in _KERNELS or (not given and isinstance(machine.kernel, Precomputed)):
        got = machine.kernel if isinstance(machine.kernel, Kernel) else model.kernel
        raise ValueError(f"scikit-learn has the kernels {', '.join(_KERNELS)}, got {got!r}")
    if not getattr(model, "bias", True):
        raise ValueError("scikit-learn's machines have an offset, got one of bias=False")
    numbers = machine.kernel.params if isinstance(machine.kernel, Kernel) else {}
    if not (machine.of_pairs or len(machine.dual_coef) == 1):
        way = getattr(model, "multi_class", "")
        raise ValueError(f"scikit-learn has a machine for each pair of classes, got multi_class={way!r}")
    made = _fitted_shell(kind, model.support_vectors_, machine.classes)
    own_kernel = {"kernel": machine.kernel.name, **numbers} if isinstance(model.kernel, Kernel) else {}
    made.set_params(**_shared(model, kind, _OURS[kind]) | own_kernel)
    vars(made).update(libsvm_attributes(model), _gamma=float(numbers.get("gamma", 1.0)))
    _copy(model, made)
    if machine.probA is not None and machine.probB is not None:
        made._probA, made._probB = machine.probA.copy(), _turned(machine.probB, machine.classes)
        made.probability = made._effective_probability = True
    return made


def libsvm_attributes(model: Any) -> dict[str, Any]:
    """Return the attributes that LIBSVM would have left in scikit-learn's estimator for a fitted one of clsvm."""
    machine: KernelModel = model.model_
    k, vectors = len(machine.classes), _float64(model.support_vectors_)
    dual_coef, intercept = _float64(machine.dual_coef), _float64(machine.intercept)
    dual_coef = _stored(dual_coef) if sparse.issparse(vectors) else dual_coef
    turned = -1 if k == 2 else 1  # (LIBSVM's positive class is the first one)
    return {
        "support_": np.array(model.support_, np.int32),
        "support_vectors_": vectors,
        "_n_support": np.array(machine.n_support if k else np.repeat(machine.n_support, 2), np.int32),
        "dual_coef_": dual_coef,
        "intercept_": intercept,
        "_dual_coef_": turned * dual_coef,
        "_intercept_": turned * intercept,
    }


def _other(model: Any, table: dict[Any, Any], whose: str) -> Any:
    """Return the other library's class for a fitted estimator. Raises TypeError and NotFittedError."""
    for one, other in table.items():
        if isinstance(model, one):
            check_is_fitted(model)
            return other
    raise TypeError(f"model must be {whose}'s {', '.join(one.__name__ for one in table)}, got {model!r}")


def _shared(model: Any, *kinds: Any) -> dict[str, Any]:
    """Return the parameters of ``model`` that both classes have, but for cache_size, whose values differ."""
    ours, theirs = (inspect.signature(kind).parameters.keys() for kind in kinds)
    return {name: getattr(model, name) for name in (ours & theirs) - {"cache_size"}}


def _copy(model: Any, made: Any) -> None:
    """Copy the attributes that are the same on both sides, where ``model`` has them."""
    for name in _SAME:
        if hasattr(model, name):
            value = getattr(model, name)
            setattr(made, name, value.copy() if isinstance(value, np.ndarray) else value)
    if hasattr(model, "offset_"):
        made.offset_ = -made.intercept_


def _fitted_shell(kind: Any, vectors: Any, classes: NDArray[Any]) -> Any:
    """Return an estimator that scikit-learn has fitted to a row of each class (two without classes).

    It has the private attributes that the installed release needs, for such rows and so many classes.
    """
    n, d = max(2, len(classes)), max(1, vectors.shape[1])
    rows = sparse.csr_matrix((np.arange(n), (np.arange(n), np.zeros(n, int))), (n, d), dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shell = kind(gamma=1.0)
        return shell.fit(rows if sparse.issparse(vectors) else rows.toarray(), classes if len(classes) else range(n))


def _float64(array: Any) -> Any:
    """Return a copy in float64, dense or CSR, since clsvm's arrays may be read-only."""
    if sparse.issparse(array):
        return sparse.csr_matrix(array, dtype=np.float64, copy=True)
    return np.array(array, np.float64, order="C")


def _stored(dense: NDArray[np.float64]) -> sparse.csr_matrix:
    """Return CSR with every entry stored, zeros too, as scikit-learn keeps coefficients of sparse rows."""
    rows, columns = dense.shape
    places = np.tile(np.arange(columns), rows), columns * np.arange(rows + 1)
    return sparse.csr_matrix((dense.ravel(), *places), shape=dense.shape)


def _turned(B: NDArray[np.float64], classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sigmoids' offsets for the other library's positive class: the second of two here, the first there."""
    return 0.0 - B if len(classes) == 2 else B.copy()
