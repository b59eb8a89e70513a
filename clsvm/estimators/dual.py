"""Define :class:`Machine`, the base class of the SVM estimators.

Machine solves the dual problems that a subclass defines, and sets the learnt attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted

from clsvm.estimators.base import KernelEstimator
from clsvm.estimators.checks import Indices
from clsvm.fit import driver
from clsvm.fit.run import Fitted
from clsvm.gram import layouts
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl import devices
from clsvm.parameters import PARAMETERS, Options
from clsvm.problem import Problem, Subproblem
from clsvm.tasks import CLASSES, TASKS

Vector = NDArray[np.float64]
# Group: pairs (dual problem, NumPy index). The index selects the problem's entries in the array of all coefficients.
Group = list[tuple[Subproblem, Any]]
_HARD_MARGIN = 1e30  # bound of the coefficients if C is infinite, for a hard margin


class Machine(KernelEstimator):
    """Fit an SVM by solving the dual problems that a subclass defines. This is the base class of the SVM estimators."""

    def _options(self) -> Options:
        given = self._solver_params()
        options = Options(**{name: given[name] for name in given if PARAMETERS[name].solver})
        one, *others = devices.device_list(options.device)
        return options if others else options.replace(device=one)

    def _last_coefficients(self, shape: tuple[int, int]) -> Vector | None:
        """Return the coefficients of the last fit, from which a warm start begins, as an array of shape ``shape``.

        The array has the rows of dual_coef_, and a column for each of n training rows. Training rows that were added
        since the last fit have coefficients 0. Return None if warm_start is False or this is the first fit.

        Raises ValueError if the last fit had more training rows, or another number of rows in dual_coef_.
        """
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        before, (count, n) = len(self.dual_coef_), shape
        if before != count:
            raise ValueError(
                f"warm_start: multi_class must be as in the last fit, which gave {before} rows of dual_coef_; "
                f"with the present multi_class, dual_coef_ gets {count} rows"
            )
        if n < self.shape_fit_[0]:
            known = self.shape_fit_[0]
            raise ValueError(f"warm_start: X has {n} rows, expected at least the {known} rows of the last fit")
        start = np.zeros((count, n))
        start[:, self.support_] = self.dual_coef_
        return start

    def _fit_groups(
        self, X: Any, groups: Iterable[Group], count: int, index: Indices, started: float, same_classes: bool = True
    ) -> None:
        """Solve groups of dual problems, one group after another, and set the learnt attributes.

        groups: lists of pairs (dual problem, NumPy index). The index selects the coefficients of the dual problem in
            the array of all coefficients, (count, n).
        count: number of rows of the array of all coefficients.
        index: class of each row, (n,).
        started: perf_counter() at the start of the fit.
        same_classes: whether a warm start may use the coefficients of the last fit.
        """
        rows, kernel = self._solver_rows(X)
        copies, shape = TASKS[self._task].copies, (count, len(index))
        before = self._last_coefficients(shape) if same_classes else None
        coefficients, fit = np.zeros(shape), None
        for group in groups:
            subproblems = [one for one, _ in group]
            if before is not None:
                subproblems = [_started(one, before[at], copies) for one, at in group]
            fit = driver.solve(rows, subproblems, kernel, self._options(), started, fit)
            rho = np.concatenate([result.rho for result in fit.results])
            self._check_margins(rho, [one.problem for one in subproblems])
            for result, (_, at) in zip(fit.results, group, strict=True):
                b, _ = self._scaled(result.b, result.rho)
                coefficients[at] = b.reshape(len(b), copies, -1).sum(axis=1)
        assert fit
        self._set_learnt(X, kernel, fit, coefficients, index)

    def _set_learnt(
        self, X: Any, kernel: Kernel | Precomputed, fit: Fitted, coefficients: Vector, index: Indices
    ) -> None:
        """Set the learnt attributes, except classes_, from the solver's results ``fit``.

        X: the n training rows.
        kernel: kernel function of the fit.
        coefficients: array with the rows of dual_coef_ and a column for each of the n training rows. dual_coef_ itself
            has only the columns of the support vectors.
        index: number of the class of each training row, (n,); zeros for a task without classes.
        """
        report, of_classes = fit.report, TASKS[self._task].kind == CLASSES
        support = np.flatnonzero(coefficients.any(axis=0))
        support = support[np.argsort(index[support], kind="stable")]  # ordered by class, as in scikit-learn
        self._ends = fit.rho, fit.dual  # offsets and dual objectives, which ``clsvm train`` prints
        steps = np.minimum(fit.steps, np.iinfo(np.int32).max).astype(np.int32)
        self.n_iter_ = steps if of_classes else int(steps[0])
        self.support_ = support.astype(np.int32)
        if self._precomputed:
            self.support_vectors_ = np.empty((0, 0))
        else:  # rows for a kernel that is a Python function can be any objects
            self.support_vectors_ = _safe_indexing(X, support) if self._user_kernel else X[support]
        self._n_support = np.bincount(index[support], minlength=max(1, len(self._labels))).astype(np.int32)
        self.dual_coef_ = coefficients[:, support]
        self.intercept_ = 0.0 - self._scaled(np.zeros((len(fit.rho), 1)), fit.rho)[1]
        self.fit_status_ = 0 if report.converged else 1
        self.shape_fit_ = X.shape if hasattr(X, "shape") else (_num_samples(X),)
        self.fit_report_ = report
        vectors: Any = self.support_vectors_
        plan = fit.plan and layouts.unrestricted_plan(fit.plan)
        if plan and len(plan.centre) != vectors.shape[1]:
            # ``plan`` describes X without its empty columns, but the support vectors have all columns of X.
            plan = None
        if isinstance(kernel, Precomputed):
            vectors = support
            self._rows_of_fit = X if self._user_kernel else None
        self.model_ = self._kernel_model(kernel, vectors, n_support=self._n_support, plan=plan, dtype=self.dtype)

    def _formulate(self, y: Any, sample_weight: Any) -> list[Subproblem]:
        """Return the dual problems of a fit to the labels or targets y (n,).

        For a one-class SVM y is None, and sample_weight (n,) is given. The dual problem of nu-SVR has each row twice.
        Raises NotImplementedError for Crammer and Singer's problem, which is one problem for all classes.
        """
        raise NotImplementedError

    def _scaled(self, b: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Scale the solutions of p dual problems: return the coefficients (p, n) and offsets (p,) of the model.

        b: coefficients (p, n) of the dual problems. Decision values without offset can also be given, because they
        are scaled by the same factor.
        rho: offsets of the dual problems, (p, 1), or (p, 2) for nu-SVC and nu-SVR.
        """
        return b, rho.mean(axis=1)  # if a dual problem has two offsets, the model's offset is their mean

    def _check_margins(self, rho: Vector, problems: Sequence[Problem]) -> None:
        """Warn if a dual problem of nu-SVC has found no margin between two classes.

        For nu-SVC, ``rho`` (p, 2) has two offsets for each of p dual problems. The margin of a problem is half their
        difference, (rho[:, 0] - rho[:, 1]) / 2. A margin of at most tol counts as none. The warning names the largest
        nu that is feasible for all ``problems``. Other tasks never warn.
        """

    def _solver_rows(self, X: Any, kernel: Kernel | None = None) -> tuple[Any, Kernel | Precomputed]:
        """Return the rows and the kernel function in the form that a solver takes.

        nu-SVR has two coefficients for each row, so its rows are returned twice, one copy after the other.
        """
        rows, made = super()._solver_rows(X, kernel)
        if (copies := TASKS[self._task].copies) > 1:
            repeated = np.tile(np.arange(rows.shape[0]), copies)
            rows = rows[np.ix_(repeated, repeated)] if isinstance(made, Precomputed) else rows[repeated]
        return rows, made

    def _fit_whole(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        """Fit a task that has a single dual problem over all rows, such as a regression."""
        (subproblem,) = self._formulate(y, sample_weight)
        index = np.zeros(subproblem.problem.n // TASKS[self._task].copies, np.intp)
        self._fit_groups(X, [[(subproblem, ...)]], 1, index, started)

    @property
    def n_support_(self) -> NDArray[np.int32]:
        """Return the number of support vectors of each of k classes, (k,) int32.

        For a task without classes, return the number of all support vectors, (1,).
        """
        check_is_fitted(self)
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Return the weights of the d features for each of p decision functions, (p, d).

        Raises AttributeError unless the kernel is linear.
        """
        check_is_fitted(self)
        if self.model_.kernel.name != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        coef = self._coef()
        coef.flags.writeable = False  # a change would be lost, since each access computes the array anew
        return coef

    def _coef(self) -> Any:
        return self.dual_coef_ @ self.support_vectors_

    @property
    def _bound(self) -> float:
        """Return C as a finite number: _HARD_MARGIN for an infinite C, and 1 for a task without C."""
        C = float(self.C) if "C" in TASKS[self._task].parameters else 1.0
        return _HARD_MARGIN if np.isinf(C) else C


def _started(one: Subproblem, start: Vector, copies: int) -> Subproblem:
    """Return a copy of the subproblem ``one`` that is solved from the coefficients ``start``.

    start: coefficients (p, n) of the subproblem's p dual problems over n rows.
    copies: 2 for nu-SVR, else 1. The dual problem of nu-SVR has two coefficients for each row. The first is at least
        0, and the second at most 0. A positive number in ``start`` becomes the first coefficient, and a negative number
        the second. The row's other coefficient is 0.
    """
    if copies > 1:
        start = np.tile(start, copies)
        start = np.where(one.problem.lo < 0, np.minimum(start, 0), np.maximum(start, 0))
    return replace(one, start=start)
