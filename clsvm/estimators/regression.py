"""Support vector regression."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from clsvm.estimators import targets
from clsvm.estimators.base import KernelLike
from clsvm.estimators.classification import Vector
from clsvm.estimators.constructors import documented, keep
from clsvm.estimators.dual import Machine
from clsvm.parameters import Number
from clsvm.problem import Problem, Subproblem, posed


class _Regressor(RegressorMixin, Machine):
    """What SVR and NuSVR have in common: everything but the dual problem."""

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        """Return the dual problem of targets y (n,) and the weights (n,) of their rows."""
        raise NotImplementedError

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        X, y = self._rows(X, y, reset=True, y_numeric=True)
        _, (member,) = self._posed(y, sample_weight)
        self._fit_one(X, member.problem, started)
        return X

    def _posed(self, y: Any, sample_weight: Any) -> tuple[NDArray[Any], list[Subproblem]]:
        weights = targets.weights_of(sample_weight, y)
        problem = self._problem(targets.numbers_of(y), weights)
        return np.zeros(0), [Subproblem(np.arange(problem.n), problem)]


@documented
class SVR(_Regressor):
    """Epsilon-support vector regression on an OpenCL device.

    Attributes after fit: support_ (n_SV,) int32, support_vectors_ (n_SV, d), n_support_ (1,) int32, dual_coef_
    (1, n_SV) float64, intercept_ (1,), n_iter_, fit_status_, shape_fit_, n_features_in_, fit_report_, model_, coef_
    (linear).
    """

    _task = "epsilon_svr"
    C: float
    epsilon: float
    bias: bool

    def __init__(
        self,
        *,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        C: float = 1.0,
        epsilon: float = 0.1,
        shrinking: bool = True,
        cache_size: float | str = "auto",
        verbose: bool = False,
        max_iter: int = -1,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        bias: bool = True,
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        keep(self, locals())

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        return posed.epsilon_svr(y, targets.bounds_of(self._bound, weights), self.epsilon, bool(self.bias))


@documented
class NuSVR(_Regressor):
    """nu-support vector regression on an OpenCL device: nu of (0, 1] in place of the tube's width, which is found.

    The problem is over the rows twice, alpha and alpha*, and takes as much memory.

    Attributes after fit: those of :class:`SVR`.
    """

    _task = "nu_svr"
    nu: float
    C: float

    def __init__(
        self,
        *,
        nu: float = 0.5,
        C: float = 1.0,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        tol: float = 1e-3,
        cache_size: float | str = "auto",
        verbose: bool = False,
        max_iter: int = -1,
        device: Any = None,
        working_set_size: int | str = "auto",
        gap_tol: float | None = None,
        dtype: str = "float32",
        precision: str = "float32",
        memory_limit: int | str | None = None,
        layout: str = "auto",
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        keep(self, locals())

    def _problem(self, y: Vector, weights: Vector) -> Problem:
        return posed.nu_svr(y, targets.bounds_of(self.C, weights), float(self.nu))

    def _check_numbers(self) -> None:
        super()._check_numbers()
        Number(above=0).check("C", self.C)
