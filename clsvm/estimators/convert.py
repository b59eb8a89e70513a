"""Convert fitted estimators between scikit-learn and clsvm, with the same coefficients and predictions."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import svm
from sklearn.utils.validation import check_is_fitted

import clsvm.estimators.svm as estimators
from clsvm import arrays
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import PRECOMPUTED, Kernel, Precomputed, make
from clsvm.kernels.records import BUILTIN
from clsvm.models.model import KernelModel
from clsvm.parameters import PARAMETERS

_OURS = {getattr(svm, name): getattr(estimators, name) for name in ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM")}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
_KERNELS = ("linear", "poly", "rbf", "sigmoid", "precomputed")  # names of the kernels that clsvm and scikit-learn share
_COPIED = ("fit_status_", "shape_fit_", "n_iter_", "n_features_in_", "feature_names_in_", "class_weight_", "classes_")


def from_sklearn(model: Any, **params: Any) -> Any:
    """Convert a fitted SVM of scikit-learn to the fitted estimator of clsvm.

    Parameters and attributes are copied, except for cache_size, fit_report_ and the probability parameters.

    Parameters
    ----------
    model : estimator of scikit-learn
        Fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM.
    **params
        Parameters of clsvm's estimator that replace those of ``model``, such as device, dtype or memory_limit.

    Returns
    -------
    estimator : object
        Fitted estimator of clsvm.

    Raises
    ------
    TypeError
        If ``model`` is not one of these estimators.
    NotFittedError
        If ``model`` is not fitted.
    ValueError
        If the kernel of ``model`` is a Python function.
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
    vectors = made.support_  # with a precomputed kernel K, a model stores column indices of K, not support vectors
    if model.kernel in BUILTIN:
        given = {"gamma": float(model._gamma), "coef0": float(model.coef0), "degree": model.degree}
        kernel = make(model.kernel, **{p.name: given[p.name] for p in BUILTIN[model.kernel].parameters})
        vectors = made.support_vectors_
    made.intercept_ = _float64(model.intercept_)
    _copy(model, made)
    classes = made._labels
    dual_coef = model.dual_coef_.toarray() if sparse.issparse(model.dual_coef_) else model.dual_coef_
    made.dual_coef_ = _float64(dual_coef).reshape(max(1, len(classes) - 1), len(made.support_))
    plan = None if len(made.support_) else Plan("dense", np.zeros(model.n_features_in_), "no support vectors")
    made.model_ = made._kernel_model(kernel, vectors, n_support=made._n_support, plan=plan, dtype=made.dtype)
    return made


def to_sklearn(model: Any) -> Any:
    """Convert a fitted SVM of clsvm to the fitted estimator of scikit-learn.

    All parameters and attributes that both libraries have are copied, except for cache_size. A :class:`clsvm.Kernel`
    becomes the name of a kernel and its parameters.

    Parameters
    ----------
    model : estimator of clsvm
        Fitted SVC, NuSVC, SVR, NuSVR or OneClassSVM.

    Returns
    -------
    estimator : object
        Fitted estimator of scikit-learn.

    Raises
    ------
    TypeError
        If ``model`` is not one of these estimators.
    NotFittedError
        If ``model`` is not fitted.
    ValueError
        If scikit-learn has no such model: the kernel is none of its built-in kernels, the model has no offset, or
        ``multi_class`` is not "ovo" for more than two classes.
    """
    kind = _other(model, _THEIRS, "clsvm")
    expansion: KernelModel = model.model_
    if expansion.kernel.name not in _KERNELS or model._user_kernel:
        got = expansion.kernel if isinstance(expansion.kernel, Kernel) else model.kernel
        raise ValueError(f"scikit-learn has the kernels {', '.join(_KERNELS)}, got {got!r}")
    if not getattr(model, "bias", True):
        raise ValueError("scikit-learn's estimators have an offset, got an estimator with bias=False")
    numbers = expansion.kernel.params if isinstance(expansion.kernel, Kernel) else {}
    if not (expansion.of_pairs or len(expansion.dual_coef) == 1):
        strategy = getattr(model, "multi_class", "")
        raise ValueError(
            "conversion to scikit-learn needs multi_class='ovo', a binary problem for each pair of classes, "
            f"got multi_class={strategy!r}"
        )
    made = _fitted_shell(kind, model.support_vectors_, expansion.classes)
    kernel_params = {"kernel": expansion.kernel.name, **numbers} if isinstance(model.kernel, Kernel) else {}
    made.set_params(**_shared(model, kind, _OURS[kind]) | kernel_params)
    vars(made).update(libsvm_attributes(model), _gamma=float(numbers.get("gamma", 1.0)))
    _copy(model, made)
    return made


def libsvm_attributes(model: Any) -> dict[str, Any]:
    """Convert the fitted clsvm ``model`` to the attributes that a fit by LIBSVM sets in scikit-learn's estimator."""
    expansion: KernelModel = model.model_
    k, vectors = len(expansion.classes), _float64(model.support_vectors_)
    dual_coef, intercept = _float64(expansion.dual_coef), _float64(expansion.intercept)
    dual_coef = _stored(dual_coef) if sparse.issparse(vectors) else dual_coef
    sign = -1 if k == 2 else 1  # of two classes, LIBSVM takes the first as positive, clsvm the second
    return {
        "support_": np.array(model.support_, np.int32),
        "support_vectors_": vectors,
        "_n_support": np.array(expansion.n_support if k else np.repeat(expansion.n_support, 2), np.int32),
        "dual_coef_": dual_coef,
        "intercept_": intercept,
        "_dual_coef_": sign * dual_coef,
        "_intercept_": sign * intercept,
    }


def _other(model: Any, table: dict[Any, Any], whose: str) -> Any:
    """Return the class of the other library that corresponds to the class of ``model``.

    ``table`` maps classes of one library to classes of the other. ``whose`` is the name of the library of ``model``.
    Raises TypeError if ``table`` lacks the class of ``model``, and NotFittedError if ``model`` is not fitted.
    """
    for one, other in table.items():
        if isinstance(model, one):
            check_is_fitted(model)
            return other
    raise TypeError(f"model must be one of {whose}'s {', '.join(one.__name__ for one in table)}, got {model!r}")


def _shared(model: Any, *kinds: Any) -> dict[str, Any]:
    """Return the parameters that both classes in ``kinds`` have, with their values in ``model``, as a dict.

    One class is an estimator of clsvm, and the other the same estimator of scikit-learn. The parameter cache_size is
    left out, because it has different meanings in clsvm and in scikit-learn.
    """
    ours, theirs = (inspect.signature(kind).parameters.keys() for kind in kinds)
    return {name: getattr(model, name) for name in (ours & theirs) - {"cache_size"}}


def _copy(model: Any, made: Any) -> None:
    """Copy learnt attributes from the estimator ``model`` to the estimator ``made``.

    One estimator is clsvm's and the other scikit-learn's. _COPIED lists the attributes that both have.
    """
    for name in _COPIED:
        if hasattr(model, name):
            setattr(made, name, copy.copy(getattr(model, name)))
    if hasattr(model, "offset_"):
        made.offset_ = -made.intercept_


def _fitted_shell(kind: Any, vectors: Any, classes: NDArray[Any]) -> Any:
    """Return an estimator of the scikit-learn class ``kind``, fitted to one row of each class.

    A regression or one-class SVM is fitted to two rows. The fit sets the private attributes that the installed release
    of scikit-learn needs. The caller then overwrites coefficients and support vectors.
    """
    n, d = max(2, len(classes)), max(1, vectors.shape[1])
    rows = sparse.csr_matrix((np.arange(n), (np.arange(n), np.zeros(n, int))), (n, d), dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shell = kind(gamma=1.0)
        return shell.fit(rows if sparse.issparse(vectors) else rows.toarray(), classes if len(classes) else range(n))


def _float64(array: Any) -> Any:
    """Return a writable float64 copy of an array, dense or CSR."""
    if sparse.issparse(array):
        return sparse.csr_matrix(array, dtype=np.float64, copy=True)
    return np.array(array, np.float64, order="C")


def _stored(dense: NDArray[np.float64]) -> sparse.csr_matrix:
    """Return ``dense`` as a CSR matrix that stores zeros too, as scikit-learn stores coefficients of sparse rows."""
    rows, columns = dense.shape
    structure = np.tile(np.arange(columns), rows), columns * np.arange(rows + 1)
    return sparse.csr_matrix((dense.ravel(), *structure), shape=dense.shape)
