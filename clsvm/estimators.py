"""Estimators under scikit-learn's contract: parameters are checked in fit, what is learnt ends in an underscore."""

from __future__ import annotations

import copy
import os
import warnings
from numbers import Integral, Real
from time import perf_counter
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from clsvm import budget, kernels, layout, model, targets, tasks, training
from clsvm import device as devices
from clsvm.kernel_records import BUILTIN
from clsvm.kernels import Kernel

_LOOK = 20  # rows on which a kernel function is tried before anything else


class SVC(ClassifierMixin, BaseEstimator):
    """C-support vector classification on an OpenCL device: of two classes, or of more by Crammer and Singer's machine.

    Parameters are scikit-learn's SVC's where it has them: C, kernel (a name of clsvm.kernels.BUILTIN or a Kernel),
    degree, gamma ("scale", "auto" or a number), coef0, tol (KKT violation), cache_size (MB, or "auto": a share of
    memory_limit), class_weight, max_iter (pair steps, -1: no limit), verbose, random_state (kept for the interface;
    the solver uses no random numbers). Beyond them:

    device : None, "gpu", "cpu", part of a platform's or device's name, "name:index", a pyopencl Device or CommandQueue
    working_set_size : int or "auto" (the device profile's)
    gap_tol : stop as soon as the relative duality gap is this small, None: tol alone decides
    dtype : "float32" or "float64", of kernel values; sums and coefficients are float64 either way. Where float32 values
        cannot reach tol (large unscaled features with a linear kernel, say), float64 is taken; the report says so
    memory_limit : bytes or text like "2GB"; default half of what is free on the device
    multi_class : "ovo" (two classes only as yet), or "crammer_singer": all classes in one problem without offsets
        (GTSVM, equation 3); dual_coef_ is then (k, n_SV), intercept_ zeros (k,), decision_function (n, k) or for two
        classes their difference (n,), and a step of max_iter solves one row
    bias : whether there is an offset; without one every row is by itself (GTSVM, section 2)
    max_time : seconds after which the solver stops, None: no limit
    warm_start : go on from the coefficients of the fit before, with another C, another kernel or further rows after
        those that it had
    checkpoint : a file to go on from, where it exists, and to write to every checkpoint_every seconds, at the end and
        when interrupted; one of other data, C or kernel is refused with a CheckpointError

    Attributes after fit: support_ (n_SV,) int32, support_vectors_ (n_SV, d), n_support_ (2,) int32, dual_coef_
    (1, n_SV) float64, intercept_ (1,), classes_, class_weight_, n_iter_ (1,) int32, fit_status_ (0, or 1 where it did
    not converge), shape_fit_, n_features_in_, fit_report_ (:class:`clsvm.report.FitReport`), model_, coef_ (linear).
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: str | Kernel = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        cache_size: float | str = "auto",
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        random_state: Any = None,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        memory_limit: int | str | None = None,
        multi_class: str = "ovo",
        bias: bool = True,
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.random_state = random_state
        self.device = device
        self.working_set_size = working_set_size
        self.gap_tol = gap_tol
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.multi_class = multi_class
        self.bias = bias
        self.max_time = max_time
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = self.multi_class == "crammer_singer"
        return tags

    def __sklearn_clone__(self) -> Any:
        shell = copy.copy(self)  # pyopencl's objects cannot be copied, as clone would: the clone gets the same ones
        return super(SVC, shell).__sklearn_clone__().set_params(device=self.device)

    def set_params(self, **params: Any) -> Self:
        """scikit-learn's; ``kernel__gamma`` and its like make a new :class:`Kernel`, since kernels do not change."""
        inner = {name: params.pop(name) for name in list(params) if name.startswith("kernel__")}
        super().set_params(**params)
        if inner:
            if not isinstance(self.kernel, Kernel):
                raise ValueError(f"{next(iter(inner))} needs a Kernel, kernel is {self.kernel!r}")
            self.kernel = self.kernel.set_params(**{name.removeprefix("kernel__"): v for name, v in inner.items()})
        return self

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if state.get("device") is not None and not isinstance(state["device"], str):
            info = devices.find(state["device"])  # a pyopencl object does not travel: its index on this machine does
            state = {**state, "device": str(info.index)}
        return state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or sparse, and labels y (n,); sample_weight (n,) scales C.

        Raises ValueError or TypeError for bad input (got and expected are named), DeviceError and BuildError where the
        machine fails; warns with ConvergenceWarning where the tolerance was not reached.
        """
        started = perf_counter()
        self._check_numbers()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        X = layout.canonical(X)
        coupled = self.multi_class == "crammer_singer"
        classes, index = targets.classes_of(y, most=None if coupled else 2)
        weights, bounds = targets.boxes(self.C, self.class_weight, sample_weight, X, classes, index)
        kernel = self._kernel(X)
        _check_values(kernel, X)
        if coupled:
            problem = tasks.crammer_singer(index, bounds, len(classes))
        else:
            problem = tasks.c_svc(np.where(index == 1, 1.0, -1.0)[None], bounds[None], bool(self.bias))
        trained = training.train(X, problem, kernel, self._options(), self._start(classes, problem), started)
        self._keep(X, kernel, trained, classes, index, weights)
        if not trained.report.converged:
            warnings.warn(f"{trained.report.status} ({trained.report})", ConvergenceWarning, stacklevel=2)
        return self

    def _options(self) -> training.Options:
        return training.Options(
            tol=float(self.tol),
            gap_tol=self.gap_tol,
            max_iter=int(self.max_iter),
            max_time=self.max_time,
            working_set_size=self.working_set_size,
            cache_size=self.cache_size,
            dtype=self.dtype,
            device=self.device,
            memory_limit=self.memory_limit,
            verbose=self.verbose,
            checkpoint=self.checkpoint,
            checkpoint_every=float(self.checkpoint_every),
        )

    def _start(self, classes: NDArray[Any], problem: tasks.Problem) -> NDArray[np.float64] | None:
        """The coefficients of the fit before, as those of the first rows, where warm_start asks for them."""
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        before, (count, n) = len(self.dual_coef_), problem.q.shape
        if not np.array_equal(self.classes_, classes):
            raise ValueError(f"warm_start: the fit before had the classes {self.classes_}, got {classes}")
        if before != count:
            raise ValueError("warm_start: the fit before was of another multi_class")
        if n < self.shape_fit_[0]:
            raise ValueError(
                f"warm_start: X has {n} rows, expected the {self.shape_fit_[0]} of the fit before, and more"
            )
        start = np.zeros((count, n))
        start[:, self.support_] = self.dual_coef_
        return start

    def _keep(
        self,
        X: Any,
        kernel: Kernel,
        trained: training.Trained,
        classes: NDArray[Any],
        index: NDArray[np.intp],
        weights: NDArray[np.float64],
    ) -> None:
        """The learnt attributes: support vectors by class, then by row, as scikit-learn has them."""
        solution, report = trained.solution, trained.report
        support = np.flatnonzero(solution.b.any(axis=0))
        support = support[np.argsort(index[support], kind="stable")]
        self.classes_, self.class_weight_ = classes, weights
        self.support_ = support.astype(np.int32)
        self.support_vectors_ = X[support]
        self.n_support_ = np.bincount(index[support], minlength=len(classes)).astype(np.int32)
        self.dual_coef_ = solution.b[:, support]
        self.intercept_ = 0.0 - solution.rho
        self.n_iter_ = np.minimum(solution.steps[:1], np.iinfo(np.int32).max).astype(np.int32)
        self.fit_status_ = 0 if report.converged else 1
        self.shape_fit_ = X.shape
        self.fit_report_ = report
        self.model_ = model.KernelModel(
            kernel=kernel,
            support_vectors=self.support_vectors_,
            dual_coef=self.dual_coef_,
            intercept=self.intercept_,
            classes=classes,
            n_support=self.n_support_,
            plan=trained.plan,
            dtype=report.dtype,
        )

    @property
    def coef_(self) -> Any:
        """(1, d) weights of the features, for kernel="linear"."""
        check_is_fitted(self)
        if self.model_.kernel.name != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        return self.dual_coef_ @ self.support_vectors_

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Decision values (n,) float64 of the rows of X: positive for classes_[1]; (n, k) for more classes than two.
        The same for a row in any batch."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        if sp.issparse(X) and not sp.issparse(self.support_vectors_):
            raise ValueError(f"cannot use sparse input in {type(self).__name__!r} trained on dense data")
        values = self.model_.decision_function(layout.canonical(X), self.device, self.memory_limit)
        return values[:, 1] - values[:, 0] if values.ndim == 2 and len(self.classes_) == 2 else values

    def predict(self, X: Any) -> NDArray[Any]:
        """The class (n,) of each row of X: by the sign of its decision value, or the largest of k."""
        values = self.decision_function(X)
        chosen = values.argmax(axis=1) if values.ndim == 2 else values > 0
        predicted: NDArray[Any] = self.classes_[chosen.astype(np.intp)]
        return predicted

    def _check_numbers(self) -> None:
        _number("C", self.C, above=0)
        _number("tol", self.tol, above=0)
        for name in ("gap_tol", "max_time"):
            if (value := getattr(self, name)) is not None:
                _number(name, value, above=0)
        _number("checkpoint_every", self.checkpoint_every, least=0)
        if self.multi_class not in ("ovo", "crammer_singer"):
            raise ValueError(f"multi_class must be 'ovo' or 'crammer_singer', got {self.multi_class!r}")
        if not isinstance(self.bias, bool | np.bool_):
            raise TypeError(f"bias must be True or False, got {self.bias!r}")
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be the name of a file or None, got {self.checkpoint!r}")
        if self.cache_size != "auto":
            _number("cache_size", self.cache_size, least=0)
        _number("max_iter", self.max_iter, least=-1, kind=Integral)
        if self.working_set_size != "auto":
            _number("working_set_size", self.working_set_size, least=2, kind=Integral)
        if not isinstance(self.dtype, str) or self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {self.dtype!r}")
        budget.parse_bytes(self.memory_limit)
        check_random_state(self.random_state)
        if isinstance(self.kernel, str):
            kernels.make(self.kernel)
        elif not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be a name ({', '.join(BUILTIN)}) or a Kernel, got {self.kernel!r}")

    def _kernel(self, X: Any) -> Kernel:
        """The kernel function with its numbers, which the dtype of its values has to hold."""
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self._named_kernel(self.kernel, X)
        if words := kernel.beyond(self.dtype):
            asked = f" (of gamma={self.gamma!r})" if words.startswith("gamma=") and isinstance(self.gamma, str) else ""
            raise ValueError(training.beyond(words.replace(" ", f"{asked} ", 1), self.dtype))
        return kernel

    def _named_kernel(self, kernel: str, X: Any) -> Kernel:
        """gamma="scale" is 1 / (d var(X)), "auto" 1 / d; degree and coef0 are checked where they play no part too."""
        names, gamma = {p.name for p in BUILTIN[kernel].parameters}, self.gamma
        if isinstance(gamma, str):
            if gamma not in ("scale", "auto"):
                raise ValueError(f"gamma must be 'scale', 'auto' or a positive number, got {gamma!r}")
            variance = _variance(X) if gamma == "scale" and "gamma" in names else 1.0
            if not np.isfinite(variance):
                raise ValueError("gamma='scale': the variance of X is beyond float64; scale X or give a number")
            gamma = 1.0 / (X.shape[1] * variance) if variance > 0 else 1.0
        given = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        kernels.make("poly", **given)
        return kernels.make(kernel, **{name: given[name] for name in names & given.keys()})


def _number(
    name: str, value: Any, above: float | None = None, least: float | None = None, kind: type[Any] = Real
) -> None:
    expected = f"> {above}" if above is not None else f">= {least}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, kind):
        word = "an integer" if kind is Integral else "a number"
        raise TypeError(f"{name} must be {word} {expected}, got {value!r}")
    if not -np.inf < value < np.inf or (above is not None and value <= above) or (least is not None and value < least):
        raise ValueError(f"{name} must be {expected} and finite, got {value!r}")


def _check_values(kernel: Kernel, X: Any) -> None:
    """A kernel function that is not for such rows: said before the work, from a few of them."""
    kernel.check_domain(X)
    few = X[:: -(-X.shape[0] // _LOOK)]
    K = kernel(few)
    with np.errstate(over="ignore"):
        held = np.isfinite((few.multiply(few) if sp.issparse(few) else few * few).sum())  # (else refused by its norms)
    if held and np.isnan(K).any():
        raise ValueError(f"{kernel!r} is nan for some rows of X")
    if np.isfinite(K).all() and np.abs(K - K.T).max() > 1e-9 * np.abs(K).max():
        raise ValueError(f"{kernel!r} is not symmetric: K(x, y) and K(y, x) differ by up to {np.abs(K - K.T).max():g}")


def _variance(X: Any) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        if not sp.issparse(X):
            return float(X.var(dtype=np.float64))
        cells, data = X.shape[0] * X.shape[1], X.data.astype(np.float64)
        mean = data.sum() / cells
        return float((np.square(data - mean).sum() + (cells - len(data)) * mean**2) / cells)
