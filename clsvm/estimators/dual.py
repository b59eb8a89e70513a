"""The base class of support vector machines: options of the solver, starts from earlier fits, learnt attributes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples, check_is_fitted

from clsvm.errors import ClsvmError
from clsvm.estimators.base import KernelEstimator
from clsvm.fit import driver, sharded
from clsvm.fit.run import Fitted
from clsvm.kernels import Kernel, Precomputed
from clsvm.models.model import KernelModel
from clsvm.opencl import devices
from clsvm.parameters import Options
from clsvm.problem import Problem, Subproblem, largest_nu, soft_margin
from clsvm.tasks import CLASSES, TASKS

Vector = NDArray[np.float64]
Part = list[tuple[Subproblem, Any]]  # problems solved together, and the places of their coefficients among all
_HARD = 1e30  # the bound of coefficients that have none: C=inf, a hard margin
_SAMPLE = 100  # rows whose kernel values say how large C is
_LARGE = 10.0  # C, for kernel values whose spread is 1
_MARGINS = 10.0  # tol: the smallest margin that C-SVC is asked for
_BOUNDED = 1 - 1e-5  # of a class's coefficients that may be at their bounds
_STEPS = 100  # SMO iterations of C-SVC, for each row


class Machine(KernelEstimator):
    """A support vector machine; tasks are its subclasses. clsvm.parameters describes their parameters."""

    def _options(self) -> Options:
        options = Options.of(self._asked())
        one, *others = devices.listed(options.device)
        return options if others else options.but(device=one)

    def _before(self, shape: tuple[int, int]) -> Vector | None:
        """Return the coefficients of the fit before, as those of the first rows, where warm_start asks for them."""
        if not self.warm_start or not hasattr(self, "dual_coef_"):
            return None
        before, (count, n) = len(self.dual_coef_), shape
        if before != count:
            raise ValueError("warm_start: the fit before was of another multi_class")
        if n < self.shape_fit_[0]:
            known = self.shape_fit_[0]
            raise ValueError(f"warm_start: X has {n} rows, expected the {known} of the fit before, or more")
        start = np.zeros((count, n))
        start[:, self.support_] = self.dual_coef_
        return start

    def _fit_parts(
        self,
        X: Any,
        parts: Iterable[Part],
        shape: tuple[int, int],
        started: float,
        index: Any = None,
        again: bool = True,
    ) -> None:
        """Train problems, some at a time, and set the learnt attributes.

        shape: (count, n) of all coefficients. index: (n,) each row's class, if any. again: whether a warm start goes on
        from the coefficients of the fit before.
        """
        rows, kernel = self._trained_on(X)
        copies = TASKS[self._task].copies
        before = self._before(shape) if again else None
        coefficients, fit = np.zeros(shape), None
        for part in parts:
            members = [one for one, _ in part]
            if before is not None:
                members = [replace(one, start=_begun(before[at], one.problem, copies)) for one, at in part]
            fit = driver.solve(rows, members, kernel, self._options(), started, fit)
            rho = np.concatenate([result.rho for result in fit.results])
            self._check_margins(rho, Fit(rows, kernel, members, started))
            for result, (_, at) in zip(fit.results, part, strict=True):
                b, _ = self._scaled(result.b, result.rho)
                coefficients[at] = b.reshape(len(b), copies, -1).sum(axis=1)
        assert fit
        self._set_learnt(X, kernel, fit, coefficients, np.zeros(shape[1], np.intp) if index is None else index)

    def _set_learnt(
        self, X: Any, kernel: Kernel | Precomputed, fit: Fitted, coefficients: Vector, index: NDArray[np.intp]
    ) -> None:
        """Set the learnt attributes, but for classes_. coefficients: (count, n) of all rows. index: (n,)."""
        report, of_classes = fit.report, TASKS[self._task].kind == CLASSES
        classes = self.classes_ if of_classes else np.zeros(0)
        support = np.flatnonzero(coefficients.any(axis=0))
        support = support[np.argsort(index[support], kind="stable")]  # by class, as scikit-learn has them
        self._ends = fit.rho, fit.dual  # (of the problems as the solver has them, for svm-train's lines)
        steps = np.minimum(fit.steps, np.iinfo(np.int32).max).astype(np.int32)
        self.n_iter_ = steps if of_classes else int(steps[0])
        self.support_ = support.astype(np.int32)
        if self._given:
            self.support_vectors_ = np.empty((0, 0))
        else:  # (what a function of the caller's reads can be anything)
            self.support_vectors_ = _safe_indexing(X, support) if self._own else X[support]
        self._n_support = np.bincount(index[support], minlength=max(1, len(classes))).astype(np.int32)
        self.dual_coef_ = coefficients[:, support]
        self.intercept_ = 0.0 - self._scaled(np.zeros((len(fit.rho), 1)), fit.rho)[1]
        self.fit_status_ = 0 if report.converged else 1
        self.shape_fit_ = X.shape if hasattr(X, "shape") else (_num_samples(X),)
        self.fit_report_ = report
        vectors: Any = self.support_vectors_
        plan = fit.plan
        if plan and len(plan.centre) != vectors.shape[1]:
            plan = None  # it is of fewer columns (_trained_on)
        if isinstance(kernel, Precomputed):
            vectors = support
            self._rows_of_fit = X if self._own else None
        self.model_ = KernelModel(
            kernel=kernel,
            support_vectors=vectors,
            dual_coef=self.dual_coef_,
            intercept=self.intercept_,
            classes=classes,
            n_support=self._n_support,
            plan=plan,
            dtype=self.dtype,
            task=self._task,
        )

    def _posed(self, y: Any, sample_weight: Any) -> tuple[NDArray[Any], list[Subproblem]]:
        """Return the classes and the subproblems of a fit to y (n,), over rows that the task's problem may repeat.

        For one class y is None, and sample_weight (n,) is given. Raises NotImplementedError where the classes are
        coupled.
        """
        raise NotImplementedError

    def _scaled(self, b: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Return coefficients (problems, n), or what is linear in them, and offsets (problems,) of the model, from b
        and rho (problems, groups) of the solved problem."""
        return b, rho.mean(axis=1)  # (of two groups the offset is their mean)

    def _check_margins(self, rho: Vector, fit: Fit | None = None) -> None:
        """Warn where offsets rho (problems, groups) show that solutions mean nothing.

        fit: where a remedy is sought, if that may take time.
        """

    def _trained_on(self, X: Any, kernel: Kernel | None = None) -> tuple[Any, Kernel | Precomputed]:
        """Return rows and kernel as the task's problem has them, each row as often as it has coefficients."""
        rows, made = super()._trained_on(X, kernel)
        return _repeated(rows, isinstance(made, Precomputed), TASKS[self._task].copies), made

    def _fit_whole(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        """Train the only problem of the task, over all rows."""
        _, (member,) = self._posed(y, sample_weight)
        shape = 1, member.problem.n // TASKS[self._task].copies
        self._fit_parts(X, [[(member, ...)]], shape, started)

    @property
    def n_support_(self) -> NDArray[np.int32]:
        """Return the number of support vectors of each class, (k,) int32; of all, (1,), without classes."""
        check_is_fitted(self)
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Return the weights (problems, d) of the features, for kernel="linear"."""
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
        """Return C as the solver takes it, 1 of a task without C."""
        C = float(self.C) if "C" in TASKS[self._task].parameters else 1.0
        return _HARD if np.isinf(C) else C


def _begun(start: Vector, problem: Problem, copies: int) -> Vector:
    """Return coefficients (problems, rows) to begin with, of which each copy of the rows has those of its sign."""
    if copies == 1:
        return start
    start = np.tile(start, copies)
    return np.where(problem.lo < 0, np.minimum(start, 0), np.maximum(start, 0))


def _repeated(X: Any, given: bool, copies: int) -> Any:
    """Return the rows ``copies`` times, one set below the other, or the kernel values of these."""
    if copies == 1:
        return X
    if given:
        return np.tile(X, (copies, copies))
    return sp.vstack([X] * copies, "csr") if sp.issparse(X) else np.concatenate([X] * copies)


class Fit(NamedTuple):
    """The rows of a fit, its kernel function, its problems, and perf_counter() at which it began."""

    rows: Any
    kernel: Kernel | Precomputed
    members: list[Subproblem]
    started: float


def possible_nu(fit: Fit, narrow: NDArray[np.intp], nu: float, options: Options) -> str:
    """Return in words which nu the rows allow, where the members ``narrow`` have no margin with ``nu``.

    The nu of C-SVC has the margin 1 / C. C is large for kernel values of this size, so that a nu much below leaves
    little margin or none. Where all coefficients of a class are at their bounds, no smaller nu has a larger margin.
    """
    most = min(largest_nu(one.problem.lo, one.problem.hi) for one in fit.members)
    limit = f"the sizes of the classes allow at most nu={most:g}"
    spread, members = _spread(fit.rows, fit.kernel), [fit.members[place] for place in narrow]
    if not 0 < spread < np.inf:
        return f"; {limit}"
    C = min(_LARGE / spread, 1 / (_MARGINS * max(options.tol, np.finfo(np.float64).tiny)))
    soft = _soft(fit, members, C, options)
    if soft is None or max(soft) <= nu:
        return f"; {limit}"
    own = [largest_nu(one.problem.lo, one.problem.hi) for one in members]
    if any(least > _BOUNDED * its for least, its in zip(soft, own, strict=True)):
        return f"; no smaller nu than {most:g} gives a margin of more than {1 / C:.2g}, and {limit}"
    if max(soft) > most:
        return f"; nu={max(soft):.3g} would be large enough, but {limit}"
    return f"; nu={min(most, _rounded_up(max(soft))):g} is large enough, and {limit}"


def _soft(fit: Fit, members: list[Subproblem], C: float, options: Options) -> list[float] | None:
    """Return the nu of C-SVC's solution for each member; None where they take too many iterations, or fail."""
    steps = _STEPS * max(len(one.rows) for one in members)
    steps = steps if options.max_iter < 0 else min(steps, options.max_iter)
    asked = options.but(max_iter=steps, gap_tol=None, checkpoint=None, verbose=False)
    posed_soft = [Subproblem(one.rows, soft_margin(one.problem, C)) for one in members]
    try:
        trained = driver.solve(fit.rows, posed_soft, fit.kernel, asked, fit.started)
    except (ValueError, MemoryError, ClsvmError):  # (what the fit itself found is not lost for a remedy)
        return None
    if not trained.report.converged:
        return None
    weights = [float((one.problem.hi - one.problem.lo).sum()) for one in members]
    return [float(np.abs(one.b).sum()) / (C * weight) for one, weight in zip(trained.results, weights, strict=True)]


def _spread(rows: Any, kernel: Kernel | Precomputed) -> float:
    """Return the mean squared distance, in the kernel's feature space, of some rows from their mean; 0 where rows are
    not on this machine."""
    if sharded.elsewhere(rows):
        return 0.0
    some = np.arange(0, rows.shape[0], -(-rows.shape[0] // _SAMPLE))
    with np.errstate(all="ignore"):
        K = rows[np.ix_(some, some)] if isinstance(kernel, Precomputed) else np.asarray(kernel(rows[some]))
        return float(np.diagonal(K).mean() - K.mean())


def _rounded_up(nu: float) -> float:
    """Return nu with three digits, not smaller than it is."""
    unit = 10.0 ** (np.floor(np.log10(nu)) - 2)
    return float(np.ceil(nu / unit) * unit)
