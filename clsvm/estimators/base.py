"""What every estimator shares: parameters and their checks, the kernel function, the fit's options, decision values."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from numbers import Integral, Real
from time import perf_counter
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import (
    _num_samples,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from clsvm import arrays, kernels, problem
from clsvm.errors import warn
from clsvm.estimators.checks import check_values, remedy, times, variance
from clsvm.estimators.parameters import number
from clsvm.fit import options, prepare, several, train
from clsvm.kernels import PRECOMPUTED, Kernel, Precomputed
from clsvm.kernels.records import BUILTIN
from clsvm.models.model import KernelModel
from clsvm.opencl import devices as devices
from clsvm.opencl import memory
from clsvm.report import FitReport
from clsvm.solvers.batch import Member

_SLOW = "kernel is a Python function: it is evaluated for all pairs of rows on the host; a clsvm Kernel runs on devices"
_ROUGH = 1e-6  # of the largest kernel value: beyond it, what is not symmetric shows in decision values
_DTYPES = [np.float64, np.float32]
_HARD = 1e30  # the bound of coefficients that have none: C=inf, a hard margin


class Machine(BaseEstimator):
    """A kernel machine under scikit-learn's contract; tasks are its subclasses.

    Their parameters are described in clsvm.estimators.parameters and listed by each one's docstring.
    """

    kernel: Any
    degree: Any
    gamma: Any
    coef0: Any
    tol: Any
    cache_size: Any
    max_iter: Any
    verbose: Any
    device: Any
    working_set_size: Any
    gap_tol: Any
    dtype: Any
    memory_limit: Any
    max_time: Any
    warm_start: Any
    checkpoint: Any
    checkpoint_every: Any
    model_: KernelModel
    fit_report_: FitReport
    n_iter_: Any
    _task: str  # of clsvm.tasks.TASKS

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._given
        tags.input_tags.sparse = not self._given
        return tags

    def __sklearn_clone__(self) -> Any:
        shell = copy.copy(self)  # pyopencl's objects cannot be copied, as clone would: the clone gets the same ones
        made = super(Machine, shell).__sklearn_clone__()
        made.device = self.device
        return made

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
        """Train on X (n, d), dense or sparse, and y (n,), labels or, of a regression, numbers; sample_weight (n,)
        scales C.

        Raises ValueError or TypeError for bad input (got and expected are named), DeviceError and BuildError where the
        machine fails, and leaves the estimator as it was then; warns with ConvergenceWarning where the tolerance was
        not reached.
        """
        started = perf_counter()
        self._check_numbers()
        learner = object.__new__(type(self))
        learner.__dict__ = self.__dict__.copy()
        rows = learner._learn(X, y, sample_weight, started)
        self.__dict__ = learner.__dict__  # (all that was learnt at once)
        if not self.fit_report_.converged:
            warn(f"{self.fit_report_}{remedy(self.model_.kernel, rows)}", ConvergenceWarning)
        return self

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        """Set every attribute that a fit learns, one after the other, and return the rows as they were read. started:
        perf_counter() when it began."""
        raise NotImplementedError

    @property
    def _given(self) -> bool:
        """Whether X holds kernel values."""
        return isinstance(self.kernel, str) and self.kernel == "precomputed"

    @property
    def _own(self) -> bool:
        """Whether the kernel is a function of the caller's."""
        return callable(self.kernel) and not isinstance(self.kernel, Kernel | type)

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **checks: Any) -> Any:
        """X, or (X, y), as the layouts read it, after scikit-learn's checks. What a function of the caller's reads is
        left as it is."""
        alone = isinstance(y, str)
        if self._given and sp.issparse(X):
            raise TypeError(
                f"Sparse precomputed kernels are not supported: dense data is required, got {type(X).__name__}"
            )
        if self._own:
            check_consistent_length(X, None if alone else y)
            return X if alone else (X, column_or_1d(y, warn=True))
        sparse = False if self._given else "csr"
        X = arrays.checked(X)
        checked = validate_data(self, X, y, reset=reset, accept_sparse=sparse, dtype=_DTYPES, order="C", **checks)
        return arrays.canonical(checked) if alone else (arrays.canonical(checked[0]), checked[1])

    def _trained_on(self, X: Any) -> tuple[Any, Kernel | Precomputed]:
        """What a solver gets: rows and a kernel function, or the kernel values of all pairs of rows."""
        if self._own:
            warn(_SLOW)
            return self._evaluated(X, X), PRECOMPUTED
        if self._given:
            if X.shape[0] != X.shape[1]:
                raise ValueError(f"Precomputed matrix must be a square matrix. Input is a {times(X.shape)} matrix.")
            return symmetric(X), PRECOMPUTED
        kernel = self._kernel(X)
        check_values(kernel, X)
        return arrays.without_empty(X) if kernel.of_entries else X, kernel

    def _evaluated(self, X: Any, Y: Any) -> NDArray[np.float64]:
        """K of the caller's function between the rows of X and Y."""
        K = self.kernel(X, Y)
        K = np.asarray(K.toarray() if sp.issparse(K) else K)
        if np.iscomplexobj(K):
            raise ValueError(f"the kernel function must return real numbers, got {K.dtype}")
        K = np.ascontiguousarray(K, np.float64)
        expected = _num_samples(X), _num_samples(Y)
        if K.shape != expected:
            raise ValueError(f"the kernel function must return {times(expected)} values, got {K.shape}")
        if not np.isfinite(K).all():
            raise ValueError("the kernel function returned values that are not finite")
        return symmetric(K) if X is Y else K

    def _options(self) -> options.Options:
        return options.Options(
            tol=float(self.tol),
            gap_tol=self.gap_tol,
            max_iter=min(int(self.max_iter), 2**62),
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

    def _before(self, shape: tuple[int, int]) -> NDArray[np.float64] | None:
        """The coefficients of the fit before, as those of the first rows, where warm_start asks for them."""
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        before, (count, n) = len(self.dual_coef_), shape
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
        kernel: Kernel | Precomputed,
        trained: train.Trained | several.Several,
        support: NDArray[np.intp],
        dual_coef: NDArray[np.float64],
        intercept: NDArray[np.float64],
        classes: NDArray[Any],
        index: NDArray[np.intp],
    ) -> None:
        """The learnt attributes that every task has. index: each row's class."""
        report = trained.report
        self.support_ = support.astype(np.int32)
        self.support_vectors_ = np.empty((0, 0)) if self._given else _safe_indexing(X, support)
        self._n_support = np.bincount(index[support], minlength=max(1, len(classes))).astype(np.int32)
        self.dual_coef_, self.intercept_ = dual_coef, intercept
        self.fit_status_ = 0 if report.converged else 1
        self.shape_fit_ = X.shape if hasattr(X, "shape") else (_num_samples(X),)
        self.fit_report_ = report
        vectors, plan = self.support_vectors_, trained.plan
        if plan and len(plan.centre) != vectors.shape[1]:
            plan = None  # it is of fewer columns (_trained_on)
        if isinstance(kernel, Precomputed):
            vectors = support
            self._rows_of_fit = X if self._own else None
        self.model_ = KernelModel(
            kernel=kernel,
            support_vectors=vectors,
            dual_coef=dual_coef,
            intercept=intercept,
            classes=classes,
            n_support=self._n_support,
            plan=plan,
            dtype=self.dtype,
            task=self._task,
        )

    def _posed(self, y: Any, sample_weight: Any) -> tuple[NDArray[Any], list[Member]]:
        """(classes, a member for each machine): the problems that a fit to y (n,) solves, over those n rows, where they
        are over subsets of the rows and not coupled. Raises NotImplementedError where they are not."""
        raise NotImplementedError

    def _scaled(
        self, b: NDArray[np.float64], rho: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients, or what is linear in them, (problems, n) and offsets (problems,) of the machine, from those of
        the problem, rho (problems, groups)."""
        return b, rho.mean(axis=1)  # (of two groups the middle is the offset)

    def _fit_one(self, X: Any, problem: problem.Problem, started: float) -> None:
        """Train the one problem of a task without classes, over the rows of X or over these twice."""
        rows, kernel = self._trained_on(X)
        n = rows.shape[0]
        if problem.n != n:
            rows = _twice(rows, isinstance(kernel, Precomputed))
        start = self._before((1, n))
        if start is not None and problem.n != n:
            start = np.concatenate([np.maximum(start, 0), np.minimum(start, 0)], axis=1)
        trained = train.train(rows, problem, kernel, self._options(), start, started)
        solution = trained.solution
        b = solution.b[0, :n] + solution.b[0, n:] if problem.n != n else solution.b[0]
        support = np.flatnonzero(b)
        self.n_iter_ = int(min(solution.steps[0], np.iinfo(np.int32).max))
        one, (_, rho) = np.zeros(n, np.intp), self._scaled(b[None], solution.rho)
        self._keep(X, kernel, trained, support, b[None, support], 0.0 - rho, np.zeros(0), one)

    @property
    def n_support_(self) -> NDArray[np.int32]:
        """Support vectors of each class (k,) int32; of all rows (1,) where there are none."""
        check_is_fitted(self)
        return self._n_support

    @property
    def coef_(self) -> Any:
        """(problems, d) weights of the features, for kernel="linear"."""
        check_is_fitted(self)
        if self.model_.kernel.name != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        coef = self._coef()
        coef.flags.writeable = False  # (a change of it would change nothing)
        return coef

    def _coef(self) -> Any:
        return self.dual_coef_ @ self.support_vectors_

    def _decision_values(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        X = self._rows(X)
        if self._own:
            X = self._evaluated(X, self._rows_of_fit)
        elif sp.issparse(X) and not sp.issparse(self.support_vectors_):
            raise ValueError(f"cannot use sparse input in {type(self).__name__!r} trained on dense data")
        return self.model_.decision_function(X, self.device, self.memory_limit)

    @property
    def _bound(self) -> float:
        """C as the solver takes it."""
        return min(float(self.C), _HARD)

    def _check_numbers(self) -> None:
        """Raises ValueError or TypeError for a parameter out of range: what it is and what was expected."""
        number("tol", self.tol, above=0)
        for name in ("gap_tol", "max_time"):
            if (value := getattr(self, name)) is not None:
                number(name, value, above=0)
        number("checkpoint_every", self.checkpoint_every, least=0)
        if self.checkpoint is not None and not isinstance(self.checkpoint, str | os.PathLike):
            raise TypeError(f"checkpoint must be the name of a file or None, got {self.checkpoint!r}")
        if self.cache_size != "auto":
            number("cache_size", self.cache_size, least=0)
        number("max_iter", self.max_iter, least=-1, kind=Integral)
        if self.working_set_size != "auto":
            number("working_set_size", self.working_set_size, least=2, kind=Integral)
        if not isinstance(self.dtype, str) or self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype must be 'float32' or 'float64', got {self.dtype!r}")
        memory.parse_bytes(self.memory_limit)
        for name in ("shrinking", "warm_start", "bias", "break_ties"):
            if not isinstance(value := getattr(self, name, False), bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        names = f"{', '.join(BUILTIN)}, precomputed"
        if isinstance(self.kernel, str) and not self._given and self.kernel not in BUILTIN:
            words = f"unknown kernel {self.kernel!r}; expected one of {names}, a Kernel or a function"
            if self.kernel and not self.kernel.isidentifier():
                words += f"; an expression is given as Kernel({self.kernel!r}, name=value for each of its parameters)"
            raise ValueError(words)
        if not (isinstance(self.kernel, str | Kernel) or self._own):
            raise TypeError(f"kernel must be a name ({names}), a Kernel or a function, got {self.kernel!r}")

    def _kernel(self, X: Any) -> Kernel:
        """The kernel function with its numbers, which the dtype of its values has to hold."""
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self._named_kernel(self.kernel, X)
        if words := kernel.beyond(self.dtype):
            asked = f" (of gamma={self.gamma!r})" if words.startswith("gamma=") and isinstance(self.gamma, str) else ""
            raise ValueError(prepare.beyond(words.replace(" ", f"{asked} ", 1), self.dtype))
        return kernel

    def _named_kernel(self, kernel: str, X: Any) -> Kernel:
        """gamma="scale" is 1 / (d var(X)), "auto" 1 / d; degree and coef0 are checked where they play no part too."""
        names, gamma = {p.name for p in BUILTIN[kernel].parameters}, self.gamma
        if isinstance(gamma, str):
            if gamma not in ("scale", "auto"):
                raise ValueError(f"gamma must be 'scale', 'auto' or a positive number, got {gamma!r}")
            spread = variance(X) if gamma == "scale" and "gamma" in names else 1.0
            if not np.isfinite(spread):
                raise ValueError("gamma='scale': the variance of X is beyond float64; scale X or give a number")
            gamma = 1.0 / (X.shape[1] * spread) if spread > 0 else 1.0
        elif not isinstance(gamma, Real):
            raise TypeError(f"gamma must be 'scale', 'auto' or a positive number, got {gamma!r}")
        given = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        kernels.make("poly", **given)
        return kernels.make(kernel, **{name: given[name] for name in names & given.keys()})


def _twice(X: Any, given: bool) -> Any:
    """The rows once more below themselves, or the kernel values of these."""
    if given:
        return np.tile(X, (2, 2))
    return sp.vstack([X, X], "csr") if sp.issparse(X) else np.concatenate([X, X])


def symmetric(K: NDArray[Any]) -> NDArray[Any]:
    """Kernel values K (n, n) themselves, or (K + K') / 2 where rounding has left them not quite symmetric. Raises
    ValueError where more than float32's rounding of the largest has."""
    step = max(1, (1 << 22) // len(K))
    worst = max(float(np.abs(K[i : i + step] - K[:, i : i + step].T).max()) for i in range(0, len(K), step))
    if worst > 1e-5 * float(np.abs(K).max()):
        raise ValueError(f"the kernel matrix is not symmetric: K(x, y) and K(y, x) differ by up to {worst:g}")
    if worst > _ROUGH * float(np.abs(K).max()):
        words = f"the kernel matrix is not quite symmetric: K and K' differ by up to {worst:.2g}"
        warn(f"{words}; the fit is to (K + K') / 2")
    return (K + K.T) / 2 if worst else K


KernelLike = str | Kernel | Callable[[Any, Any], Any]
