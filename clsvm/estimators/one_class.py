"""The one-class SVM."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OutlierMixin

from clsvm.estimators import targets
from clsvm.estimators.base import KernelLike
from clsvm.estimators.classification import Vector
from clsvm.estimators.constructors import documented, keep
from clsvm.estimators.dual import Machine
from clsvm.problem import Subproblem, posed


@documented
class OneClassSVM(OutlierMixin, Machine):
    """One-class support vector machine on an OpenCL device: a boundary around most of the rows.

    Attributes after fit: support_ (n_SV,) int32, support_vectors_ (n_SV, d), n_support_ (1,) int32, dual_coef_
    (1, n_SV) float64, intercept_ (1,), offset_, n_iter_, fit_status_, shape_fit_, n_features_in_, fit_report_, model_,
    coef_ (linear).
    """

    _task = "one_class"
    nu: float

    def __init__(
        self,
        *,
        kernel: KernelLike = "rbf",
        degree: int = 3,
        gamma: float | str = "scale",
        coef0: float = 0.0,
        tol: float = 1e-3,
        nu: float = 0.5,
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
        max_time: float | None = None,
        warm_start: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> None:
        keep(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or sparse; sample_weight (n,) are the bounds of the coefficients. y is not used.
        Raises and warns as :meth:`SVC.fit`."""
        return super().fit(X, y, sample_weight)

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        X = self._rows(X, reset=True)
        _, (member,) = self._posed(None, targets.weights_of(sample_weight, X))
        self._fit_one(X, member.problem, started)
        self.offset_ = -self.intercept_
        return X

    def _posed(self, y: Any, sample_weight: Any) -> tuple[NDArray[Any], list[Subproblem]]:
        weights = targets.bounds_of(1.0, targets.weights_of(sample_weight, sample_weight))
        return np.zeros(0), [Subproblem(np.arange(len(weights)), posed.one_class(float(self.nu), weights))]

    def decision_function(self, X: Any) -> Vector:
        """Return the signed distance (n,) float64 of each row of X (n, d) to the boundary, positive inside."""
        return self._decision_values(X)

    def score_samples(self, X: Any) -> Vector:
        """Return decision_function + offset_ of the rows of X (n, d), (n,)."""
        return np.asarray(self.decision_function(X) + self.offset_)
