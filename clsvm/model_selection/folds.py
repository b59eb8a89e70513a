"""Run the fits of a grid search with shared kernel values: :class:`Folds` for SVMs, :class:`NystromFolds` for Falkon.

SVMs     All fits with one kernel function share the rows of the kernel matrix K on the device. The dual problem of a
         fold is over all n rows of the search, with the coefficients b and the linear term q. For rows outside the
         fold's training set, the bounds of the coefficients are 0. Each solve starts from the solution of a similar
         fit. The solver keeps the gradient f = K b + q for all rows. The decision values of the test rows are f - q
         minus an offset, so they need no further kernel values.
Falkon   Several folds are outputs of one problem over all n rows of the search, up to MAX_OUTPUTS outputs in all. With
         a softmax loss, each fold is a problem of its own. Rows outside a fold's training set have weight 0 in the
         fold's output. Each kernel value between a row and an inducing point is computed once for all folds of a
         problem. One preconditioner, made from a sample of all rows, serves all folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from time import perf_counter
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_random_state

from clsvm.estimators.checks import check_values
from clsvm.estimators.dual import Machine
from clsvm.fit.prepare import PreparedFit
from clsvm.gram.precision import DECISION_ERROR
from clsvm.kernels import Kernel
from clsvm.model_selection.fits import FIT_ERRORS, Fits, FoldResult, Group, Job, Rows
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.rows import Task
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem, Subproblem
from clsvm.report import Status
from clsvm.solvers import batch, certificate
from clsvm.solvers.result import Result
from clsvm.tasks import TASKS

Vector = NDArray[np.float64]
# A search keeps solutions of at most MAX_START_BYTES bytes in all, as starting points of later fits.
MAX_START_BYTES = 256 << 20
EQUAL = 1e-12  # two coefficients count as equal if they differ by less than this share of their size
# Falkon fits are solved together if they have at most MAX_OUTPUTS outputs in all. More outputs would save little time.
MAX_OUTPUTS = 64
# A Falkon solve has ARRAYS host arrays of shape (outputs, rows), which together take at most MAX_HOST_BYTES bytes.
MAX_HOST_BYTES, ARRAYS = 1 << 30, 12


class Folds(Fits):
    """Hold all fits of a grid search over SVMs. Fits with the same kernel function and device share kernel values."""

    def key(self, job: Job) -> tuple[Any, ...]:
        estimator, options = job.estimator, self.options(job.estimator)
        kernel_kinds = {(one._precomputed, one._user_kernel) for one in (estimator, self.estimator)}
        if len(kernel_kinds) > 1 or not self.shareable(job) or estimator.checkpoint is not None:
            raise NotImplementedError
        limit = options.dtype, options.working_set_size, options.cache_size, options.device, options.memory_limit
        return self._kernel(job), getattr(estimator, "bias", True), *limit

    def _kernel(self, job: Job) -> Any:
        """Return the kernel function of a fit. For gamma="scale", it depends on the fold's training rows."""
        estimator = job.estimator
        if estimator._precomputed or estimator._user_kernel:
            return estimator.kernel
        by_rows = not isinstance(estimator.kernel, Kernel) and isinstance(estimator.gamma, str)
        return estimator._kernel(self.rows[self.splits[job.fold][0]] if by_rows else self.rows)

    def run_shared(self, group: Group) -> Iterator[None]:
        """Run the fits of a group, one fold after another. All fits use one copy of the search's rows on the device."""
        first, known = group.jobs[0].estimator, group.key[0]
        options = self.options(first)
        rows, kernel = first._solver_rows(self.rows, known if isinstance(known, Kernel) else None)
        with Stream(options.device, options.memory_limit) as stream:
            prepared: PreparedFit | None = None
            last: dict[int, list[FoldSolution]] = {}  # maps a candidate's number to its latest solutions
            solved: list[FoldSolution] = []
            for job in sorted(group.jobs, key=_order):
                began, subproblems = perf_counter(), self._subproblems(job, stream)
                before, solved = last.get(job.candidate, solved), []
                if subproblems:
                    prepared = prepared or PreparedFit(stream, rows, kernel, options, options.dtype, whole=True)
                    with suppress(*FIT_ERRORS):
                        solved = self._solve_fits(job, subproblems, prepared, before)
                if not solved:
                    continue
                last.pop(job.candidate, None)
                # A solution has 5 arrays of one size: bounds lo and hi, linear term q, coefficients b and gradient f.
                if (len(last) + 1) * sum(5 * one.problem.q.nbytes for one in solved) <= MAX_START_BYTES:
                    last[job.candidate] = solved
                values, offsets = zip(*(one.decision_values(job.estimator) for one in solved), strict=True)
                values_of_fold = np.stack([one[self.stored_rows[job.fold]] for one in values], axis=1)
                values_of_fold = values_of_fold[:, 0] if len(solved) == 1 else values_of_fold
                converged = all(one.solution.status.converged for one in solved)
                found = FoldResult(values_of_fold, perf_counter() - began, converged, np.array(offsets))
                self.results[job.id] = self.reduced(found, self.decoder(job.estimator, job.fold))
                yield

    def _subproblems(self, job: Job, stream: Stream) -> list[Subproblem]:
        """Return the dual problems of a fit. An empty list means that the estimator's own ``fit`` is to be called.

        The list is empty in two cases: the targets are invalid, or the fit has several small dual problems. The
        estimator's own ``fit`` solves small problems in one batch.
        """
        try:
            subproblems = job.estimator._formulate(*self.targets(job.fold))
        except FIT_ERRORS:
            return []
        small = len(subproblems) > 1 and max(len(one.rows) for one in subproblems) <= batch.max_rows(stream)
        return [] if small else subproblems

    def _solve_fits(
        self, job: Job, subproblems: list[Subproblem], prepared: PreparedFit, before: list[FoldSolution]
    ) -> list[FoldSolution]:
        """Solve the dual problems of one fit of a grid search, and return the solutions.

        Each dual problem is extended to all n rows of the search. Rows that do not belong to the dual problem have the
        coefficient 0.

        job: the fit, which is an estimator with its parameters, and a fold.
        subproblems: the dual problems, over the training rows of the fold.
        prepared: the solver with the rows of the search on the device.
        before: solutions of a similar fit, from which the solves start; empty if there is no similar fit.

        A solution is checked in float64 if rounding errors of kernel values could change a decision value by more than
        DECISION_ERROR. If the check fails, the solver continues from this solution. It then uses the gradients
        that the check computed in float64.

        Return an empty list in three cases: a solve stalls, a solve ends before convergence although its solution needs
        the check in float64, or the dtype of kernel values is too coarse for the tolerance ``tol``. After an empty
        list, the search calls the estimator's own ``fit``.
        """
        estimator, began = job.estimator, perf_counter()
        options, copies = self.options(estimator), TASKS[estimator._task].copies
        rows_of_fold = (np.arange(copies)[:, None] * self.n + self.splits[job.fold][0]).ravel()
        problems = [one.problem.embedded(rows_of_fold[one.rows], copies * self.n) for one in subproblems]
        if any(prepared.precision_insufficient(problem, options.tol) for problem in problems):
            return []
        solved: list[FoldSolution] = []
        for i, problem in enumerate(problems):
            start = before[i].start(problem) if len(before) == len(problems) else {}
            settings = _solve_settings(options, perf_counter() - began)
            one = FoldSolution(problem, prepared.solve_smo(problem, **settings, **start))
            if one.decision_error(estimator) > DECISION_ERROR:
                if not one.solution.status.converged:
                    return []
                settings = _solve_settings(options, perf_counter() - began, one.solution.steps)
                one = one.certified(prepared, self.stored_rows[job.fold], settings)
            if one.solution.status is Status.STALLED:
                return []
            solved.append(one)
        return solved


class FoldSolution(NamedTuple):
    """Hold a dual problem over all n rows of the search, for one fold, and the problem's solution.

    Rows outside the fold's training set have coefficients 0.
    """

    problem: Problem
    solution: Result

    def start(self, problem: Problem) -> dict[str, Any]:
        """Return settings of the solver, with which a solve of ``problem`` starts from this solution.

        ``problem`` has other bounds or other training rows than the problem of this solution. A coefficient between its
        bounds is scaled by the ratio of the new and the old bounds. A coefficient at a bound moves to the new bound.
        For a row that is new in ``problem``, the gradient f of the dual objective decides whether the coefficient
        starts at its lower bound, its upper bound or 0. If these coefficients do not have the sum that ``problem``
        asks for, coefficients of the rows nearest to the margin are changed until they do.

        The settings are:

        start: coefficients to start from.
        known_gradient: the pair (b, f). b are all coefficients of this solution, scaled by the ratio, and f is the
            gradient at b. The solver computes the gradient at ``start`` from f. For each coefficient in which
            ``start`` differs from b, it then computes one row of the kernel matrix.
        """
        old, found = self.problem, self.solution
        responses, ratio = found.f - old.q, old.ratio(problem)
        f, rho, similar = responses + problem.q, problem.offset(found.rho), ratio * found.b
        new_b = np.where(f + problem.epsilon < rho, problem.hi, np.where(f - problem.epsilon > rho, problem.lo, 0))
        bounded, new = (found.b == old.lo) | (found.b == old.hi), (old.lo == 0) & (old.hi == 0)
        b = np.where(bounded, problem.snapped(found.b, old.lo, old.hi), similar)
        b = problem.restore_sums(np.where(new, new_b, b), f, found.rho)
        similar = np.where(np.abs(b - similar) <= EQUAL * np.abs(b), b, similar)
        return {"start": b, "known_gradient": (similar, responses * ratio + problem.q)}

    def certified(self, prepared: PreparedFit, stored_rows: Rows, settings: dict[str, Any]) -> FoldSolution:
        """Check this solution with float64 kernel values. Return the solution, or a better one if the check fails.

        The check fails if the KKT violation exceeds the tolerance, or if the solve ended for another reason than its
        KKT violation, such as a small duality gap. The solve then continues with ``settings``.

        ``stored_rows`` are rows whose decision values the search keeps. The decision values are computed from the
        gradient f of the dual objective. So the entries of f for these rows are always computed in float64, whether the
        check fails or not.
        """
        problem, found, exact = self.problem, self.solution, prepared.settings.exact
        assert exact
        b, f = found.b, found.f.copy()
        rows = certificate.rows_to_check(problem, b, f, np.full(problem.n, found.error_bound), settings["tol"])
        rows[stored_rows] = True
        # ``error_bound`` does not include rounding errors of the updates of the gradients f during a solve.
        # After a solve in float64, f is computed anew for all rows, because errors of the updates of f matter then.
        rows |= found.dtype == "float64"
        f[:, rows] = exact(np.flatnonzero(rows), b) + problem.q[:, rows]
        optimality = certificate.of(problem, b, f)
        if found.status is Status.TOLERANCE and optimality.violation <= settings["tol"]:
            rho = optimality.rho.reshape(found.rho.shape) if optimality.fixed_sums else found.rho
            return FoldSolution(problem, replace(found, f=f, rho=rho))
        given = {"exact": exact, "start": b, "known_gradient": (b, f), "known_exact": rows}
        solution = prepared.solve_smo(problem, **settings | given).after(found)
        new_f, change = solution.f.copy(), solution.b - b
        new_f[:, stored_rows] = f[:, stored_rows] + (exact(stored_rows, change) if change.any() else 0)
        return FoldSolution(problem, replace(solution, f=new_f))

    def decision_error(self, estimator: Machine) -> float:
        """Return an upper bound of the error that rounding of kernel values causes in a decision value."""
        bound, _ = estimator._scaled(np.array([[self.solution.error_bound]]), self.solution.rho)
        return float(bound[0, 0])

    def decision_values(self, estimator: Machine) -> tuple[Vector, float]:
        """Return the decision values (n,) of all rows, and the offset rho of the decision function.

        rho is already subtracted in the decision values. The decision values are rounded to 10 decimals, so that equal
        rows have equal values in spite of rounding errors.
        """
        estimator._check_margins(self.solution.rho, [self.problem])
        values, rho = estimator._scaled(self.solution.f - self.problem.q, self.solution.rho)
        return np.round(values[0] - rho[0], 10), float(rho[0])


def _order(job: Job) -> list[float]:
    """Return the sort key of a fit: the number of its fold, then its parameters nu, C and epsilon, all ascending."""
    return [job.fold, *(getattr(job.estimator, name, 0.0) for name in ("nu", "C", "epsilon"))]


def _solve_settings(options: Options, spent: float, steps: int = 0) -> dict[str, Any]:
    """Return the settings of one solve that makes no check in float64 and computes no values for reports.

    spent: seconds that earlier solves of the same fit used of max_time.
    steps: iterations that earlier solves of the same problem used of max_iter.
    """
    left = None if options.max_time is None else options.max_time - spent
    most = options.max_iter if options.max_iter < 0 else max(0, options.max_iter - steps)
    settings = {"tol": options.tol, "gap_tol": options.gap_tol, "max_iter": most, "max_time": left}
    return {"exact": None, "reported": False, **settings}


class NystromFolds(Fits):
    """Hold all fits of a grid search over Falkon models.

    Fits share work if they have the same kernel function, the same inducing points, the same number of outputs, and the
    same dtype, device and memory limit.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Map a candidate's number to its kernel function and a hash of the parameters that select inducing points.
        self._kernels: dict[int, tuple[Any, str]] = {}

    def key(self, job: Job) -> tuple[Any, ...]:
        estimator, options, selection = job.estimator, self.options(job.estimator), job.estimator.center_selection
        if not self.shareable(job) or options.callback is not None:
            raise NotImplementedError
        if job.candidate not in self._kernels:  # made once, because gamma="scale" reads all rows
            by_penalty = isinstance(selection, str) and selection == "leverage"
            drawn = selection, estimator.n_centers, estimator.random_state, estimator.penalty if by_penalty else None
            self._kernels[job.candidate] = estimator._kernel(self.rows), joblib.hash(drawn)
        k = len(estimator._formulate(*self.targets(job.fold)).y)
        return *self._kernels[job.candidate], k, options.dtype, options.device, options.memory_limit

    def run_shared(self, group: Group) -> Iterator[None]:
        (kernel, _, k, *_), first = group.key, group.jobs[0].estimator
        options, random = self.options(first), check_random_state(clone(first).random_state)
        check_values(kernel, self.rows)
        weights = first._formulate(np.asarray(self.y), self.weights).weights
        centers = first._choose_centers(self.rows, kernel, weights, random)
        least, tol = (min(float(getattr(job.estimator, name)) for job in group.jobs) for name in ("penalty", "tol"))
        prepared = nystrom.LocalRows(self.rows)
        dtypes = prepared.formulate(kernel, centers, options, least)
        losses = [self._of_fold(job).loss for job in group.jobs]
        outputs = min(MAX_OUTPUTS, MAX_HOST_BYTES // (8 * ARRAYS * self.n))
        parts = _parts(group.jobs, 1 if losses[0].coupled else max(1, outputs // k))
        with prepared.lay_out(options, dtypes[0], k * len(parts[0])):
            prepared.draw(random, least, tol, all(loss.quadratic for loss in losses), len(parts))
            # ``last`` maps the index of a fold to the coefficients of its last fit, (outputs, inducing points).
            last: dict[int, Vector] = {}
            for part in parts:
                self._solve_fits(part, prepared, last)
                yield

    def _solve_fits(self, part: list[Job], prepared: nystrom.Rows, last: dict[int, Vector]) -> None:
        """Solve several fits as the outputs of one problem, and store their results.

        part: the fits to solve.
        prepared: the rows of the search on the device.
        last: dictionary from a fold to the coefficients (outputs, inducing points) of the fold's previous fit. The
            solve starts from these coefficients. The method replaces them by the coefficients of this solve.

        If the solve stalls in float32 although the device has float64, store no results and no coefficients. The search
        then calls the estimator's own ``fit``.
        """
        began, estimator, folds = perf_counter(), part[0].estimator, [job.fold for job in part]
        start = np.concatenate([last[fold] for fold in folds]) if last.keys() >= {*folds} else None
        found = prepared.solve(self._task(part), start, float(estimator.tol), int(estimator.max_iter))
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if found.status is Status.STALLED and prepared.has_finer_dtype:
            return
        f = prepared.operator.decision_values(found.alpha).reshape(len(part), -1, self.n)
        alpha = found.alpha.reshape(len(part), -1, found.alpha.shape[1])
        jobs = list(dict.fromkeys(part))
        seconds = (perf_counter() - began) / len(jobs)
        for i, job in enumerate(jobs):
            last[job.fold] = alpha[i]
            values = f[i][:, self.stored_rows[job.fold]].T
            values = values[:, 0] if values.shape[1] == 1 else values
            self.results[job.id] = FoldResult(values, seconds, found.status.converged)

    def _task(self, part: list[Job]) -> Task:
        """Return one optimization problem for all fits of ``part``, so that they are solved together.

        Each fit has one or more outputs, which are decision functions with their own targets. The returned problem has
        the outputs of all fits. Its row weights have the shape (n,) for a single fit, else (outputs, n).
        """
        tasks = [self._of_fold(job) for job in part]
        if len(tasks) == 1:
            return tasks[0]
        names = "y", "offset", "largest"
        y, offset, largest = (np.concatenate([getattr(task, name) for task in tasks]) for name in names)
        weights = np.concatenate([np.broadcast_to(task.weights, task.y.shape) for task in tasks])
        return replace(tasks[0], y=y, weights=weights, offset=offset, largest=largest)

    def _of_fold(self, job: Job) -> Task:
        """Return the optimization problem of a fit over all n rows of the search.

        Rows outside the fit's training set have weight 0.
        """
        train = self.splits[job.fold][0]
        task = job.estimator._problem(job.estimator._formulate(*self.targets(job.fold)))
        y, weights = np.zeros((len(task.y), self.n)), np.zeros(self.n)
        y[:, train], weights[train] = task.y, task.weights
        return replace(task, y=y, weights=weights)


def _parts(jobs: list[Job], most: int) -> list[list[Job]]:
    """Divide the fits of each candidate into parts of at most ``most`` fits, which are solved together.

    A candidate is one choice of parameter values. All parts have the same number of fits. To fill a part that has too
    few fits, its last fit is repeated. Candidates with a larger penalty come first.
    """
    by_candidate = [list(same) for _, same in groupby(jobs, key=lambda job: job.candidate)]
    fullest = max(map(len, by_candidate))
    most = -(-fullest // -(-fullest // most))
    parts = []
    for same in sorted(by_candidate, key=lambda same: -float(same[0].estimator.penalty)):
        for first in range(0, len(same), most):
            some = same[first : first + most]
            parts.append(some + some[-1:] * (most - len(some)))
    return parts
