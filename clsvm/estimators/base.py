"""Define :class:`KernelEstimator`, the base class of all estimators.

The base class checks parameters and rows, makes the kernel function, runs ``fit``, and predicts. Each subclass defines
an optimization problem. clsvm.model_selection, clsvm.dask and clsvm.accel also call private methods of estimators.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, wraps
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import validation

from clsvm import arrays, kernels
from clsvm.errors import warn
from clsvm.estimators.callbacks import CallbackSupportMixin, FitTask, fit_task
from clsvm.estimators.checks import check_missing, check_values, shape_text, symmetric, variance
from clsvm.gram import precision
from clsvm.kernels import PRECOMPUTED, Kernel, Precomputed
from clsvm.kernels.records import BUILTIN
from clsvm.models.decoder import Decoder
from clsvm.models.model import KernelModel
from clsvm.opencl import devices, memory
from clsvm.parameters import PARAMETERS, Parameter
from clsvm.system import explained
from clsvm.tasks import CLASSES, TASKS

_SLOW = "kernel is a Python function: it is evaluated for all pairs of rows on the host; a clsvm Kernel runs on devices"
_SCALE = "; it may help to scale the columns of X, by scikit-learn's StandardScaler or MaxAbsScaler"
DTYPES = [np.float64, np.float32]
P = ParamSpec("P")
T = TypeVar("T")
KernelLike = str | Kernel | Callable[[Any, Any], Any]


class KernelEstimator(CallbackSupportMixin, BaseEstimator):
    """Fit and predict with a kernel function, as the base class of all estimators.

    The estimators follow scikit-learn's conventions for estimators. Subclasses implement the fit in :meth:`_learn`.
    """

    kernel: Any
    _table: Mapping[str, Parameter] = PARAMETERS  # description of each parameter of the constructor, by name
    _task: str  # key of clsvm.tasks.TASKS
    _other_kernels = "precomputed, a Kernel or a function"  # valid kernels besides the built-in names, for messages
    _callback_task: FitTask | None = None  # while a fit runs: the object that calls scikit-learn's callbacks

    if TYPE_CHECKING:  # lets type checkers accept the attributes that hold parameters and results of a fit

        def __getattr__(self, name: str) -> Any: ...

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        tags.input_tags.sparse = not self._precomputed
        return tags

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the estimator, as scikit-learn does, and return the estimator.

        A name such as ``kernel__gamma`` replaces the estimator's :class:`Kernel` by one with this value of gamma.
        Raises ValueError for a name that neither the estimator nor its kernel has.
        """
        inner = {name: params.pop(name) for name in list(params) if name.startswith("kernel__")}
        super().set_params(**params)
        if inner:
            if not isinstance(self.kernel, Kernel):
                raise ValueError(
                    f"{next(iter(inner))} can be set only if kernel is a clsvm.Kernel, got {self.kernel!r}"
                )
            self.kernel = self.kernel.set_params(**{name.removeprefix("kernel__"): v for name, v in inner.items()})
        return self

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the estimator to training data.

        If an error is raised, the estimator stays as it was. Warns with ConvergenceWarning if the tolerance was not
        reached.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d), or (n, n) for a precomputed kernel
            Training rows.
        y : array of shape (n,)
            Class labels, or targets of a regression; ignored by OneClassSVM.
        sample_weight : array of shape (n,) or None
            Factor by which C is multiplied for each row. None means 1.

        Returns
        -------
        self : object
            Fitted estimator.

        Raises
        ------
        ValueError, TypeError
            If an input or parameter is invalid; the message names the given value and the valid ones.
        DeviceError, BuildError
            If the device fails or cannot build a program.
        """
        started = perf_counter()
        self._check_numbers()
        arrays.check_files(y, sample_weight)
        with (
            explained(f"{type(self).__name__}.fit"),
            fit_task(self, X, y, sample_weight, self._max_steps) as callback_task,
        ):
            learner = object.__new__(type(self))
            learner.__dict__ = self.__dict__.copy()
            learner._callback_task = callback_task
            learner._learn(X, y, sample_weight, started)
            del learner._callback_task
            # Self takes the results of the fitted copy ``learner`` only here, so a failed fit leaves self unchanged.
            self.__dict__ = learner.__dict__
            if callback_task:
                callback_task.end()
        if not self.fit_report_.converged:
            warn(f"{self.fit_report_}{_SCALE * isinstance(self.model_.kernel, Kernel)}", ConvergenceWarning)
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        """Fit to X and y, and set the learnt attributes.

        ``started`` is the value of perf_counter() at the start of the fit.
        """
        raise NotImplementedError

    def _check_numbers(self) -> None:
        """Raise ValueError or TypeError if a parameter is invalid. The message names its valid values."""
        given = self._solver_params()
        for name, value in given.items():
            self._table[name].limits.check(name, value)
        memory.parse_bytes(self.memory_limit)
        names = ", ".join(BUILTIN)
        if isinstance(self.kernel, str) and not self._precomputed and self.kernel not in BUILTIN:
            raise ValueError(f"unknown kernel {self.kernel!r}; expected one of {names}, {self._other_kernels}")
        if not (isinstance(self.kernel, str | Kernel) or self._user_kernel):
            raise TypeError(f"kernel must be a name ({names}), {self._other_kernels}, got {self.kernel!r}")
        validation.check_random_state(given.get("random_state"))

    def _solver_params(self) -> dict[str, Any]:
        """Return a dict from the names of parameters to their values in this estimator.

        The dict has the arguments of the constructor of the clsvm estimator. If a user has derived a subclass from the
        clsvm estimator, further arguments of the subclass are left out. A parameter of the solver that the clsvm
        estimator does not take is in the dict only if the estimator has an attribute with the parameter's name.
        """
        made: Any = type(self)
        known = (name for name, one in self._table.items() if name in _named(made) or one.solver)
        return {name: getattr(self, name) for name in known if hasattr(self, name)}

    @property
    def _max_steps(self) -> int:
        """Return the largest number of solver steps of a fit, for scikit-learn's callbacks.

        0 means that callbacks see the fit as a single step.
        """
        return 0

    @property
    def _precomputed(self) -> bool:
        """Return whether the kernel is precomputed. If so, X has kernel values in place of features."""
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    @property
    def _user_kernel(self) -> bool:
        """Return whether the kernel is a Python function of the user."""
        return callable(self.kernel) and not isinstance(self.kernel, Kernel | type)

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **asked: Any) -> Any:
        """Check X, or X and y, as scikit-learn does. Return X as a contiguous array or CSR matrix, and y if given.

        If the kernel is a Python function, the rows are returned unchanged. ``asked`` are further options of
        scikit-learn's validate_data.
        """
        X_only = isinstance(y, str)
        if self._precomputed and sp.issparse(X):
            raise TypeError(
                f"Sparse precomputed kernels are not supported: dense data is required, got {type(X).__name__}"
            )
        check_missing(y)
        if self._user_kernel:
            arrays.check_files(X)
            validation.check_consistent_length(X, None if X_only else y)
            return X if X_only else (X, validation.column_or_1d(y, warn=True))
        form = {"accept_sparse": False if self._precomputed else "csr", "dtype": DTYPES, "order": "C"}
        checked = validation.validate_data(self, arrays.checked(X), y, reset=reset, **form, **asked)
        return arrays.canonical(checked) if X_only else (arrays.canonical(checked[0]), checked[1])

    def _solver_rows(self, X: Any, kernel: Kernel | None = None) -> tuple[Any, Kernel | Precomputed]:
        """Return the rows and the kernel function in the form that a solver takes.

        If the kernel is precomputed or a Python function, return the kernel matrix K (n, n) and the object PRECOMPUTED
        instead. ``kernel`` is the kernel function. If it is None, the method makes it from the estimator's parameters.
        """
        if self._user_kernel:
            warn(_SLOW)
            return self._evaluated(X, X), PRECOMPUTED
        if self._precomputed:
            if X.shape[0] != X.shape[1]:
                raise ValueError(
                    f"Precomputed matrix must be a square matrix. Input is a {shape_text(X.shape)} matrix."
                )
            return symmetric(X), PRECOMPUTED
        kernel = self._kernel(X) if kernel is None else kernel
        check_values(kernel, X)
        return arrays.without_empty(X) if kernel.of_entries else X, kernel

    def _evaluated(self, X: Any, Y: Any) -> NDArray[np.float64]:
        """Return the kernel matrix K between the rows of X and Y, computed by the user's Python function.

        Raises ValueError if the function's result is not a matrix of finite real numbers with the right shape.
        """
        K = self.kernel(X, Y)
        K = np.asarray(K.toarray() if sp.issparse(K) else K)
        if np.iscomplexobj(K):
            raise ValueError(f"the kernel function must return real numbers, got {K.dtype}")
        K = np.ascontiguousarray(K, np.float64)
        expected = validation._num_samples(X), validation._num_samples(Y)
        if K.shape != expected:
            raise ValueError(f"the kernel function must return {shape_text(expected)} values, got {K.shape}")
        if not np.isfinite(K).all():
            raise ValueError("the kernel function must return finite numbers, got NaN or infinity")
        return symmetric(K) if X is Y else K

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict for each row of X; the prediction of a row does not depend on the other rows of the call.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, d), or (n, training rows) for a precomputed kernel
            Rows.

        Returns
        -------
        ndarray of shape (n,), or (n, k) for k outputs
            Two classes: the label by the sign of the decision value. More classes: the label of the class with the
            largest decision value, or with the most votes if each pair of classes has a binary classifier.
            Regression: float64 values. One-class model: 1 inside the boundary, -1 outside.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        ValueError
            If X has another number of features than the training rows.
        """
        decoder = self._fitted_decoder
        if decoder.by_votes:
            return self.model_.predict(self._prediction_rows(X), devices.first_device(self.device), self.memory_limit)
        values = getattr(self, "decision_function", self._decision_values)(X)  # regressors lack decision_function
        return decoder.by_value(values)

    def _decision_values(self, X: Any, shape: str = "ovo") -> NDArray[np.float64]:
        """Return the decision values of the rows of X.

        If the model has a binary problem for each pair of classes, ``shape`` "ovo" gives a column for each pair, and
        "ovr" a column for each class.
        """
        X = self._prediction_rows(X)
        return self.model_.decision_function(X, devices.first_device(self.device), self.memory_limit, shape)

    @property
    def _labels(self) -> NDArray[Any]:
        """Return the class labels (k,) of the fitted estimator, or an empty array for a task without classes."""
        return getattr(self, "classes_", np.zeros(0)) if TASKS[self._task].kind == CLASSES else np.zeros(0)

    def _kernel_model(self, kernel: Kernel | Precomputed, support_vectors: Any, **others: Any) -> KernelModel:
        """Return the kernel expansion that predicts for the fitted estimator.

        The attributes dual_coef_, intercept_ and classes_ must be set. ``others`` are further arguments of KernelModel.
        """
        return KernelModel(
            kernel, support_vectors, self.dual_coef_, self.intercept_, self._labels, task=self._task, **others
        )

    @property
    def _fitted_decoder(self) -> Decoder:
        """Return the decoder that turns decision values of the fitted estimator into predictions."""
        columns = not getattr(self, "_flat", True)  # true if y had the shape (n, k), which predictions then have too
        return Decoder(TASKS[self._task].kind, self._labels, columns=columns)

    def _decoder(self, y: Any, sample_weight: Any) -> Decoder:
        """Return the decoder that would turn decision values into predictions after a fit to y and sample_weight."""
        return Decoder(TASKS[self._task].kind, np.zeros(0))

    def _prediction_rows(self, X: Any) -> Any:
        """Check the rows X to predict for, and return them in the form that the model takes.

        If the kernel is a Python function, return the kernel values between X and the training rows. Raises ValueError
        for invalid rows, and NotFittedError if the estimator is not fitted.
        """
        validation.check_is_fitted(self)
        X = self._rows(X)
        if self._user_kernel:
            X = self._evaluated(X, self._rows_of_fit)
        elif sp.issparse(X) and not sp.issparse(self.support_vectors_):
            raise ValueError(f"cannot use sparse input in {type(self).__name__!r} trained on dense data")
        return X

    def _kernel(self, X: Any) -> Kernel:
        """Return the kernel function that the estimator's parameters describe, for rows X.

        Raises ValueError if a parameter of the kernel function is too large for the estimator's dtype.
        """
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self._named_kernel(self.kernel, X)
        if words := kernel.beyond(self.dtype):
            raise ValueError(precision.beyond(words, self.dtype))
        return kernel

    def _named_kernel(self, kernel: str, X: Any) -> Kernel:
        """Return the built-in kernel function with the name ``kernel``, for rows X (n, d).

        gamma="scale" means 1 / (d * var(X)), and "auto" means 1 / d. The parameters degree and coef0 are checked even
        if the kernel function does not have them.
        """
        names, gamma = {p.name for p in BUILTIN[kernel].parameters}, self.gamma
        if isinstance(gamma, str):
            if gamma not in ("scale", "auto"):
                raise ValueError(f"gamma must be 'scale', 'auto' or a positive number, got {gamma!r}")
            var = variance(X) if gamma == "scale" and "gamma" in names else 1.0
            gamma = 1.0 / (X.shape[1] * var) if var else 1.0
            if not 0 < gamma < np.inf:
                raise ValueError(
                    f"gamma='scale' divides by the variance of X, which is {var:g}: scale X, or give a number"
                )
        elif not isinstance(gamma, Real):
            raise TypeError(f"gamma must be 'scale', 'auto' or a positive number, got {gamma!r}")
        given = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        kernels.make("poly", **given)
        return kernels.make(kernel, **{name: given[name] for name in names & given.keys()})


# Functions for constructors of estimators


def set_parameters(estimator: Any, given: Mapping[str, Any]) -> None:
    """Set the parameters of an estimator as attributes. ``given`` is ``locals()`` in the estimator's constructor."""
    for name, value in given.items():
        if name != "self":
            setattr(estimator, name, value)


def documented(made: type[T]) -> type[T]:
    """Add the section "Parameters" to the docstring of an estimator class, before the other sections.

    The parameters' descriptions come from ``_table`` of the class.
    """
    if made.__doc__:  # None under python -OO
        table = getattr(made, "_table", PARAMETERS)
        listed = ["Parameters", "----------"]
        for one in list(inspect.signature(made.__init__).parameters.values())[1:]:
            kind = table[one.name].kind or str(one.annotation).replace(" | ", " or ")
            listed.append(f"{one.name} : {kind}, default={one.default!r}")
            words = f"{table[one.name].words}."
            listed.append(textwrap.fill(words, 110, initial_indent=" " * 4, subsequent_indent=" " * 4))
        summary, *others = re.split(r"\n\n(?=\w+\n-+\n)", inspect.cleandoc(made.__doc__), maxsplit=1)
        made.__doc__ = "\n\n".join([summary, "\n".join(listed), *others])
    return made


def without_probability(init: Callable[P, None]) -> Callable[P, None]:
    """Wrap a constructor so that scikit-learn's parameter ``probability`` raises TypeError.

    The message says how to get probabilities without this parameter.
    """

    @wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        if "probability" in given:
            raise TypeError(
                f"{type(args[0]).__name__} has no parameter 'probability': wrap the estimator in scikit-learn's "
                "CalibratedClassifierCV, or fit it and use clsvm.probability.calibrated(model, X, y).predict_proba(X)"
            )
        init(*args, **given)

    return checked


@cache
def _named(made: type) -> frozenset[str]:
    """Return the parameter names of the constructor of the estimator class ``made``.

    For a user's subclass, return those of the clsvm estimator from which it is derived.
    """
    own_class = next(one for one in made.__mro__ if one.__module__.startswith("clsvm."))
    return frozenset(inspect.signature(own_class).parameters)
