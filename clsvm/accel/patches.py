"""Patch scikit-learn so that its SVMs try clsvm before LIBSVM, which is part of scikit-learn.

Eight methods of scikit-learn are replaced:

- ``_dense_fit`` and ``_sparse_fit`` of scikit-learn's base class BaseLibSVM. ``fit`` checks its input and calls
  one of the two. The replacements store clsvm's result in the attributes that LIBSVM would set.
- four methods of BaseLibSVM that compute predictions and decision values.
- ``fit`` of scikit-learn's searches. The replacement tries clsvm only for a GridSearchCV over an SVM.
- the constructor of the class in which scikit-learn wraps functions for joblib's workers. The replacement makes SVMs
  in the workers try clsvm too.

If clsvm computes a prediction, it makes a clsvm model from the attributes of the scikit-learn estimator. clsvm adds no
attribute to the estimator. Pickles are therefore unchanged, and copies of an estimator give equal results.
:func:`install` sets the replacements, and :func:`uninstall` restores the original methods.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
from sklearn import svm
from sklearn.base import BaseEstimator, is_classifier
from sklearn.model_selection import GridSearchCV, ParameterGrid, check_cv
from sklearn.model_selection._search import BaseSearchCV
from sklearn.svm._base import BaseLibSVM
from sklearn.utils import parallel
from sklearn.utils.validation import _num_samples

from clsvm.accel import log
from clsvm.accel.costs import COSTS, PYTHON, cells, nonpositive_weight, number_of_classes, refused
from clsvm.errors import DeviceError, warn
from clsvm.estimators.callbacks import registered
from clsvm.estimators.checks import own_names

_THEIRS = (svm.SVC, svm.NuSVC, svm.SVR, svm.NuSVR, svm.OneClassSVM)
SHARED = {"C", "gamma", "nu", "epsilon", "kernel", "degree", "coef0", "tol"}  # parameters that a grid may vary


def search_refused(search: Any, params: dict[str, Any]) -> str:
    """Return the reason why clsvm cannot run the GridSearchCV ``search``, or "" if clsvm can.

    params: keyword arguments that ``search.fit`` was given in addition to X and y.
    """
    if params:
        return f"fit was given {', '.join(sorted(params))}"
    if words := altered(search.estimator):
        return words
    if registered(search, search.estimator):
        return "callbacks are to hear of each fit"
    if search.verbose or search.n_jobs == 0:
        return "verbose tells of each fit, and n_jobs=0 is an error"
    if not (search.cv is None or isinstance(search.cv, int | list | tuple) or hasattr(search.cv, "split")):
        return "cv can be gone through once only"
    if not (search.scoring is None or isinstance(search.scoring, str)) or not isinstance(search.refit, bool):
        return "scoring or refit is neither a name nor True or False"
    grid = ParameterGrid(search.param_grid)
    if others := {name for one in grid for name in one} - SHARED:
        return f"the grid varies {', '.join(sorted(others))}"
    kernels = {one["kernel"] for one in grid if isinstance(one.get("kernel"), str)}
    if search.estimator.kernel == "precomputed" or "precomputed" in kernels:
        return "kernel='precomputed'"
    reasons = (refused(search.estimator, one.get("kernel", search.estimator.kernel)) for one in grid)
    return next(filter(None, reasons), "")


def altered(estimator: BaseEstimator) -> str:
    """Return the reason why an estimator may behave unlike scikit-learn's SVMs, or "" if there is none.

    There are two reasons: the estimator's class adds or changes a method or parameter, or an attribute of the object
    hides a method.
    """
    kind = type(estimator)
    base = next((one for one in kind.__mro__ if one in _THEIRS), None)
    if base is None or (kind is not base and own_names(kind, base)):
        return f"{kind.__name__} has methods or parameters of its own"
    replaced = [name for name in vars(estimator) if hasattr(kind, name) or name.startswith("__")]
    return f"{', '.join(replaced)} of this {kind.__name__} is replaced" if replaced else ""


def seconds(search: Any, X: Any, y: Any) -> tuple[float, float]:
    """Return LIBSVM's estimated seconds for all fits of a GridSearchCV, and a lower bound of clsvm's seconds.

    The lower bound is the part of clsvm's time that does not depend on the number of rows.
    """
    rows = _num_samples(X)
    width = cells(X) if hasattr(X, "shape") and len(X.shape) == 2 else float(len(X[0]))
    classifier = is_classifier(search.estimator)
    folds = check_cv(search.cv, y, classifier=classifier).get_n_splits(X, y)
    classes = len(np.unique(y)) if classifier and y is not None else 1
    part, fits = rows * (folds - 1) // max(1, folds), len(ParameterGrid(search.param_grid)) * folds
    theirs, least = COSTS.fit_seconds(part, width, classes)
    return fits * theirs, fits * least


def run(search: Any, X: Any, y: Any) -> Any:
    """Fit the GridSearchCV ``search`` by clsvm's SVCSearchCV. Set the fitted attributes of ``search``, and return it.

    ``search`` is unchanged except for the fitted attributes.
    """
    from clsvm.accel.strict import Search, made
    from clsvm.model_selection.search import copy_attributes

    shared = {name: getattr(search, name) for name in ("scoring", "cv", "error_score", "return_train_score")}
    found = Search(made(search.estimator), search.param_grid, refit=False, **shared).fit(X, y)
    copy_attributes(search, found, X, y)
    return search


Method = Callable[..., Any]
Function = Callable[[], Any]
Seconds = tuple[float, float]  # LIBSVM's estimated seconds for a call, and a lower bound of clsvm's
_CLASSIFIERS = ("c_svc", "nu_svc")
# clsvm never runs fits or predictions of an estimator that overrides a method of sklearn's BaseLibSVM named below.
_CALLED = {name: getattr(BaseLibSVM, name) for name in ("_compute_kernel", "_warn_from_fit_status")}


# broken: reason why no device is usable, or "". spent: seconds that this process has computed in LIBSVM so far.
_state: dict[str, Any] = {"broken": "", "spent": 0.0}


def _fit(original: Method) -> Method:
    @functools.wraps(original)
    def fit(self: Any, X: Any, y: Any, sample_weight: Any, solver_type: int, kernel: str, random_seed: int) -> Any:
        libsvm = functools.partial(original, self, X, y, sample_weight, solver_type, kernel, random_seed=random_seed)
        with log.call(f"{type(self).__name__}.fit", getattr(X, "shape", ())) as call:
            classes = number_of_classes(y) if self._impl in _CLASSIFIERS else 1
            reason = _bypassed(self) or refused(self, self.kernel) or nonpositive_weight(self, sample_weight)
            width = 0.0 if reason or kernel == "precomputed" else cells(X)
            ours = functools.partial(_learn, self, X, y, sample_weight, kernel)
            return _run_faster(call, reason, COSTS.fit_seconds(len(y), width, classes), ours, libsvm)

    return fit


def _run_faster(call: log.Call, reason: str, estimated: Seconds, ours: Function, libsvm: Function) -> Any:
    """Run a fit or prediction by clsvm or by LIBSVM, and return the result.

    call: record of the fit or prediction.
    reason: why clsvm cannot run the call, or "".
    estimated: LIBSVM's estimated seconds, and a lower bound of clsvm's seconds.
    ours: function that runs the call by clsvm. It is used if clsvm can run the call and is expected to be faster.
    libsvm: function that runs the call by LIBSVM. It is used otherwise, and if ``ours`` raises an error.
    """
    if _clsvm_is_faster(call, reason, estimated):
        try:
            return ours()
        except Exception as error:
            _failed(call, error)
    began = perf_counter()
    found = libsvm()
    _state["spent"] += perf_counter() - began
    return found


def _clsvm_is_faster(call: log.Call, reason: str, estimated: Seconds) -> bool:
    """Return whether clsvm can run a fit or prediction, and is expected to be faster than LIBSVM.

    call: record of the fit or prediction. The reason for the choice is stored there.
    reason: why clsvm cannot run the call, or "".
    estimated: LIBSVM's estimated seconds, and a lower bound of clsvm's seconds.
    """
    if reason := reason or _state["broken"]:
        call.why = reason
        return False
    loaded = "pyopencl" in sys.modules
    theirs, least = estimated
    pays = COSTS.pays(theirs, least, COSTS.first if loaded else _state["spent"])
    call.who = log.OURS if pays else log.THEIRS
    call.why = f"LIBSVM is expected to take {theirs:.2g} s" + ", OpenCL is not loaded yet" * (not loaded and not pays)
    return pays


def _failed(call: log.Call, error: Exception) -> None:
    """Record in ``call`` that clsvm failed with ``error``, so that scikit-learn runs the call.

    If no device is usable, warn, and let scikit-learn run all later calls.
    """
    call.who, call.why = log.THEIRS, f"clsvm failed: {error}"
    if isinstance(error, DeviceError):
        from clsvm.opencl.devices import find

        try:
            find(None)
        except DeviceError as lacking:
            _state["broken"] = f"no device: {lacking}"
            with suppress(RuntimeWarning):  # the user may turn warnings into exceptions, which must not stop the call
                warn(f"clsvm.accel leaves all fits and predictions to scikit-learn: {lacking}", RuntimeWarning)


def _learn(model: Any, X: Any, y: Any, sample_weight: Any, kernel: str) -> None:
    """Fit a clsvm estimator, and set the attributes of the scikit-learn estimator ``model`` that LIBSVM would set."""
    from clsvm.accel.strict import made
    from clsvm.estimators.convert import libsvm_attributes

    gamma = "scale" if kernel == "precomputed" else model._gamma  # model._gamma is 0 for precomputed kernels
    others: dict[str, Any] = {"kernel": kernel, "gamma": gamma}
    if model._impl == "c_svc":  # y holds class numbers 0, 1, ..., so class_weight gets these numbers as keys
        others["class_weight"] = dict(enumerate(model.class_weight_))
    ours = made(model, **others)
    weights = sample_weight if len(sample_weight) else None
    ours.fit(X, None if model._impl == "one_class" else y, sample_weight=weights)
    found = libsvm_attributes(ours)
    for name in ("support_", "support_vectors_", "_n_support"):
        setattr(model, name, found[name])
    model.dual_coef_, model.intercept_ = found["_dual_coef_"], found["_intercept_"]
    model._probA, model._probB, model.fit_status_ = np.empty(0), np.empty(0), ours.fit_status_
    model._num_iter = np.atleast_1d(np.asarray(ours.n_iter_, np.int32))


def _clsvm_model(model: Any) -> Any:
    """Return a clsvm model with the attributes of the fitted scikit-learn estimator ``model``.

    Raises ValueError if the private coefficients of ``model``, which LIBSVM reads, differ from the public coefficients.
    A user has then changed one of the two.
    """
    import clsvm

    sign = -1 if _classes(model) == 2 else 1
    public = sign * _array(model.dual_coef_), sign * model.intercept_
    if not all(map(np.array_equal, (_array(model._dual_coef_), model._intercept_), public)):
        raise ValueError(
            "dual_coef_ and intercept_ must be as fit set them, "
            "got values that do not match _dual_coef_ and _intercept_, from which LIBSVM predicts"
        )
    return clsvm.from_sklearn(model).model_


def _array(given: Any) -> Any:
    return given.toarray() if hasattr(given, "toarray") else given


def _classes(model: Any) -> int:
    """Return the number of classes of a fitted scikit-learn SVM, or 0 if it is not a classifier.

    The number is read from LIBSVM's attributes, because a subclass may define ``classes_`` differently.
    """
    return len(model._n_support) if model._impl in _CLASSIFIERS else 0


def _bypassed(model: Any) -> str:
    """Return a sentence about private methods of scikit-learn's BaseLibSVM that ``model`` overrides, or "" if none.

    The methods are _compute_kernel and _warn_from_fit_status. clsvm calls neither, so LIBSVM has to run the fits and
    predictions of an estimator that overrides one of them.
    """
    theirs = [name for name in _CALLED if getattr(getattr(model, name), "__func__", None) is not _CALLED[name]]
    return f"{type(model).__name__} has a {' and a '.join(theirs)} of its own" if theirs else ""


def _replace_prediction(original: Method, predict: Callable[[Any, Any, Any], Any]) -> Method:
    """Return a replacement for the prediction method ``original`` of scikit-learn's SVMs.

    If clsvm is expected to be faster than LIBSVM, the replacement calls ``predict(estimator, clsvm_model, X)``.
    Otherwise, or if clsvm fails, it calls ``original``.
    """
    name = original.__name__.removeprefix("_dense_").removeprefix("_sparse_")

    @functools.wraps(original)
    def replacement(self: Any, X: Any) -> Any:
        with log.call(f"{type(self).__name__}.{name}", getattr(X, "shape", ())) as call:
            support, estimated = len(self.support_), (0.0, 0.0)
            reason = _bypassed(self) or (PYTHON if callable(self.kernel) else "")
            reason = reason or ("" if support else "there is no support vector")
            if not reason:  # clsvm supports the call, so X is an array or a sparse matrix, not a list of objects
                estimated = COSTS.predict_seconds(X.shape[0], support, cells(X), _classes(self))
            libsvm = functools.partial(original, self, X)
            return _run_faster(call, reason, estimated, lambda: predict(self, _clsvm_model(self), X), libsvm)

    return replacement


def _predicted(model: Any, clsvm_model: Any, X: Any) -> Any:
    """Return predictions (n,) as LIBSVM returns them, in float64.

    The prediction of a classifier is the number of a class, counted from 0. The prediction of a regression is a value,
    and that of a one-class SVM is 1 or -1.

    model: fitted scikit-learn estimator.
    clsvm_model: clsvm model with the attributes of ``model``.
    """
    k = _classes(model)
    if k == 2:  # for a decision value of 0, LIBSVM predicts the second class
        return np.where(_decision_values(model, clsvm_model, X)[:, 0] > 0, 0.0, 1.0)
    found = clsvm_model.predict(X)
    return (np.searchsorted(clsvm_model.classes, found) if k else found).astype(np.float64)


def _decision_values(model: Any, clsvm_model: Any, X: Any) -> Any:
    """Return decision values (n, 1), or (n, pairs of classes) for more than two classes.

    A positive value of a classifier is for the first class of the pair, as in LIBSVM.
    """
    values = clsvm_model.decision_function(X)
    return (-values if _classes(model) == 2 else values).reshape(X.shape[0], -1)


class Accelerated:
    """Wrap a function that joblib sends to worker processes, so that clsvm accelerates scikit-learn's SVMs there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.sender = function, os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function. In a worker process, patch scikit-learn's SVMs while the function runs."""
        if os.getpid() == self.sender or installed():
            return self.function(*args, **kwargs)
        install()
        try:
            return self.function(*args, **kwargs)
        finally:
            uninstall()


def _sent(original: Method) -> Method:
    """Return a replacement for ``original``, the constructor of scikit-learn's class _FuncWrapper.

    scikit-learn sends functions to joblib's workers, and first wraps each function in _FuncWrapper. The replacement
    also wraps the function in :class:`Accelerated`.
    """

    @functools.wraps(original)
    def init(self: Any, function: Any) -> None:
        original(self, function)
        self.function = function if isinstance(function, Accelerated) else Accelerated(function)

    return init


def _searched(original: Method) -> Method:
    @functools.wraps(original)
    def fit(self: Any, X: Any, y: Any = None, **params: Any) -> Any:
        if type(self) is not GridSearchCV or not isinstance(self.estimator, BaseLibSVM):
            return original(self, X, y, **params)
        with log.call(f"GridSearchCV({type(self.estimator).__name__}).fit", getattr(X, "shape", ())) as call:
            try:  # after any error, scikit-learn's own search runs, and reports invalid input
                self._validate_params()
                reason = search_refused(self, params)
                if _clsvm_is_faster(call, reason, (0.0, 0.0) if reason else seconds(self, X, y)):
                    return run(self, X, y)
            except Exception as error:
                _failed(call, error)
            call.by_fits = True
        return original(self, X, y, **params)

    return fit


_PATCHES: tuple[tuple[Any, str, Callable[[Method], Method]], ...] = (
    (BaseLibSVM, "_dense_fit", _fit),
    (BaseLibSVM, "_sparse_fit", _fit),
    (BaseLibSVM, "_dense_predict", functools.partial(_replace_prediction, predict=_predicted)),
    (BaseLibSVM, "_sparse_predict", functools.partial(_replace_prediction, predict=_predicted)),
    (BaseLibSVM, "_dense_decision_function", functools.partial(_replace_prediction, predict=_decision_values)),
    (BaseLibSVM, "_sparse_decision_function", functools.partial(_replace_prediction, predict=_decision_values)),
    (BaseSearchCV, "fit", _searched),
    (parallel._FuncWrapper, "__init__", _sent),
)
_originals: dict[tuple[Any, str], Method] = {}


def installed() -> bool:
    """Return whether scikit-learn's support vector machines are patched, so that they try clsvm first."""
    return bool(_originals)


def install() -> None:
    """Patch scikit-learn's SVMs, so that they try clsvm first in this process and in joblib's worker processes.

    A second call does nothing.

    Raises
    ------
    RuntimeError
        If this release of scikit-learn lacks one of the patched methods. In this case no method is replaced.
    """
    if _originals:
        return
    missing = [f"{owner.__name__}.{name}" for owner, name, _ in _PATCHES if name not in vars(owner)]
    if missing:
        import sklearn

        words = f"scikit-learn {sklearn.__version__} has no {', '.join(missing)}"
        raise RuntimeError(f"{words}: clsvm.accel does not know this release")
    for owner, name, make in _PATCHES:
        _originals[owner, name] = vars(owner)[name]
        setattr(owner, name, make(_originals[owner, name]))


def uninstall() -> None:
    """Restore the methods of scikit-learn that :func:`install` replaced. Fitted estimators keep their attributes."""
    for (owner, name), method in _originals.items():
        setattr(owner, name, method)
    _originals.clear()
