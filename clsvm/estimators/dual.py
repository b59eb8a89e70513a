"""What estimators of dual problems share: the solver's options, starts from earlier fits, what a fit leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import (
    _num_samples,
    check_is_fitted,
)

from clsvm import problem
from clsvm.estimators.base import KernelEstimator
from clsvm.estimators.margins import Fit
from clsvm.fit import driver
from clsvm.fit.run import Fitted
from clsvm.kernels import Kernel, Precomputed
from clsvm.models.model import KernelModel
from clsvm.opencl import devices
from clsvm.parameters import Options
from clsvm.problem import Subproblem
from clsvm.report import FitReport
from clsvm.tasks import TASKS

_HARD = 1e30  # the bound of coefficients that have none: C=inf, a hard margin


class Machine(KernelEstimator):
    """A support vector machine; tasks are its subclasses.

    Their parameters are described in clsvm.parameters and listed by each one's docstring.
    """

    tol: Any
    shrinking: Any
    cache_size: Any
    max_iter: Any
    working_set_size: Any
    gap_tol: Any
    precision: Any
    max_time: Any
    warm_start: Any
    checkpoint: Any
    checkpoint_every: Any
    n_iter_: Any
    fit_report_: FitReport
    _ends: tuple[NDArray[np.float64], NDArray[np.float64]]

    def _options(self) -> Options:
        options = Options.of(self._asked())
        one, *others = devices.listed(options.device)
        return options if others else options.but(device=one)

    def _before(self, shape: tuple[int, int]) -> NDArray[np.float64] | None:
        """The coefficients of the fit before, as those of the first rows, where warm_start asks for them."""
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        before, (count, n) = len(self.dual_coef_), shape
        if before != count:
            raise ValueError("warm_start: the fit before was of another multi_class")
        if n < self.shape_fit_[0]:
            raise ValueError(
                f"warm_start: X has {n} rows, expected the {self.shape_fit_[0]} of the fit before, or more"
            )
        start = np.zeros((count, n))
        start[:, self.support_] = self.dual_coef_
        return start

    def _set_learnt(
        self,
        X: Any,
        kernel: Kernel | Precomputed,
        trained: Fitted,
        support: NDArray[np.intp],
        dual_coef: NDArray[np.float64],
        intercept: NDArray[np.float64],
        classes: NDArray[Any],
        index: NDArray[np.intp],
    ) -> None:
        """The learnt attributes that every task has. index: each row's class."""
        report = trained.report
        self._ends = trained.rho, trained.dual  # (of the problems as the solver has them, for svm-train's lines)
        self.support_ = support.astype(np.int32)
        if self._given:
            self.support_vectors_ = np.empty((0, 0))
        else:  # (what a function of the caller's reads can be anything)
            self.support_vectors_ = _safe_indexing(X, support) if self._own else X[support]
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

    def _posed(self, y: Any, sample_weight: Any) -> tuple[NDArray[Any], list[Subproblem]]:
        """(classes, a member for each machine): the problems that a fit to y (n,) solves, over those n rows, each as
        often as the task's problem has it. Of one class y is None, and sample_weight (n,) is given. Raises
        NotImplementedError where the problems are coupled."""
        raise NotImplementedError

    def _scaled(
        self, b: NDArray[np.float64], rho: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Coefficients, or what is linear in them, (problems, n) and offsets (problems,) of the machine, from those of
        the problem, rho (problems, groups)."""
        return b, rho.mean(axis=1)  # (of two groups the offset is their mean)

    def _check_margins(self, rho: NDArray[np.float64], fit: Fit | None = None) -> None:
        """Warn where offsets rho (problems, groups) show that solutions mean nothing.

        fit: where a remedy is sought, if that may take time.
        """

    def _trained_on(self, X: Any, kernel: Kernel | None = None) -> tuple[Any, Kernel | Precomputed]:
        """As the task's problem has the rows: each of them as often as it has coefficients."""
        rows, made = super()._trained_on(X, kernel)
        return _repeated(rows, isinstance(made, Precomputed), TASKS[self._task].copies), made

    def _fit_one(self, X: Any, problem: problem.Problem, started: float) -> None:
        """Train the one problem of a task without classes."""
        rows, kernel = self._trained_on(X)
        copies = TASKS[self._task].copies
        n = problem.n // copies
        start = self._before((1, n))
        if start is not None and copies > 1:  # each copy takes what has the sign of its bounds
            start = np.tile(start, copies)
            start = np.where(problem.lo < 0, np.minimum(start, 0), np.maximum(start, 0))
        whole = Subproblem(np.arange(problem.n), problem, start)
        trained = driver.solve(rows, [whole], kernel, self._options(), started)
        b = trained.results[0].b.reshape(copies, n).sum(axis=0)
        support = np.flatnonzero(b)
        self.n_iter_ = int(min(trained.steps[0], np.iinfo(np.int32).max))
        all_one, (_, rho) = np.zeros(n, np.intp), self._scaled(b[None], trained.rho)
        self._set_learnt(X, kernel, trained, support, b[None, support], 0.0 - rho, np.zeros(0), all_one)

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

    @property
    def _bound(self) -> float:
        """C as the solver takes it."""
        return _HARD if np.isinf(self.C) else float(self.C)


def _repeated(X: Any, given: bool, copies: int) -> Any:
    """The rows ``copies`` times, one set below the other, or the kernel values of these."""
    if copies == 1:
        return X
    if given:
        return np.tile(X, (copies, copies))
    return sp.vstack([X] * copies, "csr") if sp.issparse(X) else np.concatenate([X] * copies)
