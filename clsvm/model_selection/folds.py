"""The fits of a search, and what they share.

Fits of dual problems over one kernel function share rows of K, and each solve begins near its end. Falkon models share
K(X, C): a fold is a few outputs of one problem over all rows, with weights 0 for the rows that it leaves out. Each
value of K that is made or read meets all folds, and their decision values of the rows left out are at hand. One
preconditioner, of rows of all folds, serves them all, since it is of a sample of rows in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from math import log
from time import perf_counter
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_random_state

from clsvm.estimators.checks import check_values
from clsvm.estimators.dual import Machine
from clsvm.fit import prepare
from clsvm.gram.precision import DECISION_ERROR
from clsvm.kernels import Kernel
from clsvm.model_selection.fits import SAID, Fits, FoldResult, Group, Job
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
STARTS = 256 << 20  # bytes of solutions that are kept, for fits of other folds and of other candidates each
ROUNDED = 1e-12  # of a coefficient: what scaling it by rounded numbers may do, and much less than any tolerance sees
OUTPUTS = 64  # at once at most: beyond that K is a small part of the work
HOST, ARRAYS = 1 << 30, 12  # bytes of the host's memory for outputs of all rows, about; arrays of these in a solve


class Folds(Fits):
    """All fits of a search over support vector machines. Jobs of a group have one kernel function on one device."""

    def key(self, job: Job) -> tuple[Any, ...]:
        machine, options = job.machine, self.options(job.machine)
        read_alike = (machine._given, machine._own) == (self.machine._given, self.machine._own)
        if not read_alike or not self.by_rows(job) or machine.checkpoint is not None:
            raise NotImplementedError
        room = options.dtype, options.working_set_size, options.cache_size, options.device, options.memory_limit
        return self._kernel(job), getattr(machine, "bias", True), *room

    def _kernel(self, job: Job) -> Any:
        """Return the kernel function, whose gamma may be by the rows of the fold, or the caller's."""
        machine = job.machine
        if machine._given or machine._own:
            return machine.kernel
        by_rows = not isinstance(machine.kernel, Kernel) and isinstance(machine.gamma, str)
        return machine._kernel(self.rows[self.splits[job.fold][0]] if by_rows else self.rows)

    def shared(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """Do the jobs of a group over one set of rows, a fold after the other."""
        first, known = group.jobs[0].machine, group.key[0]
        options = self.options(first)
        rows, kernel = first._trained_on(self.rows, known if isinstance(known, Kernel) else None)
        with Stream(options.device, options.memory_limit) as stream:
            ready: prepare.PreparedFit | None = None
            last: dict[int, list[_Solved]] = {}  # by candidate
            for fold, jobs in groupby(sorted(group.jobs, key=_order), key=lambda job: job.fold):
                here: list[list[_Solved]] = []  # of this fold
                for job in jobs:
                    began, members, solved = perf_counter(), self._members(job, stream), list[_Solved]()
                    near = [last[job.candidate]] if job.candidate in last else here  # the same in another fold first
                    if members:
                        ready = ready or prepare.PreparedFit(stream, rows, kernel, options, options.dtype, whole=True)
                        with suppress(*SAID):
                            solved = self._solved(job, members, ready, near)
                    if not solved:
                        apart.append(job)
                        continue
                    room = STARTS // sum(map(_Solved.nbytes, solved))
                    last.pop(job.candidate, None)
                    if len(last) < room:
                        last[job.candidate] = solved
                    here = [*(here if len(here) < room else []), solved]
                    values, offsets = zip(*(one.answered(job.machine) for one in solved), strict=True)
                    decided = np.stack([one[self.kept[fold]] for one in values], axis=1)
                    decided = decided[:, 0] if len(solved) == 1 else decided
                    converged = all(one.solution.status.converged for one in solved)
                    found = FoldResult(decided, perf_counter() - began, converged, np.array(offsets))
                    self.found[job.place] = self.reduced(found, self.decoder(job.machine, fold))
                    yield

    def _members(self, job: Job, stream: Stream) -> list[Subproblem]:
        """Return the machines of a job; none where they share no rows, where posing them fails, or where several are
        best by themselves, solved side by side."""
        try:
            _, members = job.machine._posed(*self.targets(job.fold))
        except SAID:
            return []
        small = len(members) > 1 and max(len(one.rows) for one in members) <= batch.largest(stream)
        return [] if small else members

    def _solved(
        self, job: Job, members: list[Subproblem], ready: prepare.PreparedFit, near: Sequence[list[_Solved]]
    ) -> list[_Solved]:
        """Solve the machines of a job over all rows, each as often as the problem has it.

        Each begins where that of the nearest job of ``near`` ended. Where rounding of kernel values could move a
        decision value too far, a solve goes on to a certificate in float64. Return no machines where rounding is too
        much even for that: the estimator then has other ways.
        """
        machine, began = job.machine, perf_counter()
        options, copies = self.options(machine), TASKS[machine._task].copies
        places = (np.arange(copies)[:, None] * self.n + self.splits[job.fold][0]).ravel()  # of the fold's rows
        problems = [one.problem.among(places[one.rows], copies * self.n) for one in members]
        if any(ready.coarse(problem, options.tol) for problem in problems):
            return []
        nearest = min(reversed(near), key=lambda solved: solved[0].far(problems[0]), default=[])
        alike, solved = len(nearest) == len(problems), list[_Solved]()
        for place, problem in enumerate(problems):
            start = nearest[place].start(problem) if alike else {}
            one = _Solved(problem, ready.solve(problem, **_asked(options, perf_counter() - began), **start))
            if one.moved(machine) > DECISION_ERROR:
                if not one.solution.status.converged:
                    return []
                asked = _asked(options, perf_counter() - began, one.solution.steps)
                one = one.certified(ready, self.kept[job.fold], asked)
            if one.solution.status is Status.STALLED:
                return []
            solved.append(one)
        return solved


class _Solved(NamedTuple):
    """A problem over all rows and its solution."""

    problem: Problem
    solution: Result

    def nbytes(self) -> int:
        """Return the bytes of its arrays: lo, hi and q; b and f."""
        return 5 * self.problem.q.nbytes

    def far(self, problem: Problem) -> tuple[float, float]:
        """Return how far ``problem`` is from this one: by the width of its bounds, then by that of its tube."""
        return round(abs(log(self.problem.ratio(problem))), 9), abs(self.problem.kink - problem.kink)

    def start(self, problem: Problem) -> dict[str, Any]:
        """Return where to begin with ``problem``, which has other bounds or other rows, as settings of a solve.

        Coefficients are scaled with the bounds; those at a bound stay there. Rows that are new begin at the bound on
        whose side they are by the solution as it is, or at 0: near the solution where the rest is the same. Where the
        sums are others (another nu, another fold), the rows nearest to the margin give or take the difference.
        """
        old, found = self.problem, self.solution
        responses, ratio = found.f - old.q, old.ratio(problem)
        f, rho, near = responses + problem.q, problem.offset(found.rho), ratio * found.b
        guess = np.where(f + problem.kink < rho, problem.hi, np.where(f - problem.kink > rho, problem.lo, 0))
        bounded, new = (found.b == old.lo) | (found.b == old.hi), (old.lo == 0) & (old.hi == 0)
        b = np.where(bounded, problem.snapped(found.b, old.lo, old.hi), near)
        b = problem.settled(np.where(new, guess, b), f, found.rho)
        near = np.where(np.abs(b - near) <= ROUNDED * np.abs(b), b, near)  # (each that differs costs a row of K)
        return {"start": b, "known": (near, responses * ratio + problem.q)}

    def certified(self, ready: prepare.PreparedFit, kept: NDArray[np.intp], asked: dict[str, Any]) -> _Solved:
        """Return the solution by kernel values in float64, gone on from this one; those give f of the rows ``kept``."""
        problem, found, exact = self.problem, self.solution, ready.settings.exact
        assert exact
        b, f = found.b, found.f.copy()
        rows = certificate.wanted(problem, b, f, np.full(problem.n, found.error_bound), asked["tol"])
        rows[kept] = True
        rows |= found.dtype == "float64"  # (of which all rows have gathered the rounding of many steps)
        f[:, rows] = exact(np.flatnonzero(rows), b) + problem.q[:, rows]
        seen = certificate.of(problem, b, f)
        if found.status is Status.TOLERANCE and seen.violation <= asked["tol"]:
            rho = seen.rho.reshape(found.rho.shape) if seen.held else found.rho
            return _Solved(problem, replace(found, f=f, rho=rho))
        given = {"exact": exact, "start": b, "known": (b, f), "looked": rows}
        solution = ready.solve(problem, **asked | given).after(found)
        here, moved = solution.f.copy(), solution.b - b
        here[:, kept] = f[:, kept] + (exact(kept, moved) if moved.any() else 0)
        return _Solved(problem, replace(solution, f=here))

    def moved(self, machine: Machine) -> float:
        """Return how far the rounding of kernel values can have moved a decision value."""
        bound, _ = machine._scaled(np.array([[self.solution.error_bound]]), self.solution.rho)
        return float(bound[0, 0])

    def answered(self, machine: Machine) -> tuple[Vector, float]:
        """Return the decision values of every row of the problem, and their offset.

        Values are rounded, so that equal rows, whose f is made by other sums, tie as they should.
        """
        machine._check_margins(self.solution.rho)
        values, rho = machine._scaled(self.solution.f - self.problem.q, self.solution.rho)
        return np.round(values[0] - rho[0], 10), float(rho[0])


def _order(job: Job) -> list[float]:
    """Return the place of a job among those that share rows: by its fold, then from narrow bounds to wide ones."""
    return [job.fold, *(getattr(job.machine, name, 0.0) for name in ("nu", "C", "epsilon"))]


def _asked(options: Options, spent: float, steps: int = 0) -> dict[str, Any]:
    """Return what a machine asks of one solve, for which some seconds and steps are spent.

    It asks for no certificate in float64 and for no report.
    """
    left = None if options.max_time is None else options.max_time - spent
    most = options.max_iter if options.max_iter < 0 else max(0, options.max_iter - steps)
    asked = {"tol": options.tol, "gap_tol": options.gap_tol, "max_iter": most, "max_time": left}
    return {"exact": None, "reported": False, **asked}


class NystromFolds(Fits):
    """All fits of a search over Falkon models. Jobs of a group have one kernel function, the same centres and as many
    outputs."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._kernels: dict[int, tuple[Any, str]] = {}  # of a candidate, and what its centres depend on

    def key(self, job: Job) -> tuple[Any, ...]:
        machine, options, how = job.machine, self.options(job.machine), job.machine.center_selection
        if not self.by_rows(job) or options.callback is not None:
            raise NotImplementedError
        if job.candidate not in self._kernels:  # (these take a look at all rows)
            by_penalty = isinstance(how, str) and how == "leverage"
            drawn = how, machine.n_centers, machine.random_state, machine.penalty if by_penalty else None
            self._kernels[job.candidate] = machine._kernel(self.rows), joblib.hash(drawn)
        k = len(machine._posed(*self.targets(job.fold)).y)
        return *self._kernels[job.candidate], k, options.dtype, options.device, options.memory_limit

    def shared(self, group: Group, apart: list[Job]) -> Iterator[None]:
        (kernel, _, k, *_), first = group.key, group.jobs[0].machine
        options, random = self.options(first), check_random_state(clone(first).random_state)
        check_values(kernel, self.rows)
        weights = first._posed(np.asarray(self.y), self.weights).weights
        centers = first._chosen(self.rows, kernel, weights, random)
        least, tol = (min(float(getattr(job.machine, name)) for job in group.jobs) for name in ("penalty", "tol"))
        ready = nystrom.LocalRows(self.rows)
        formulation = nystrom.formulate(kernel, centers, options, least, ready.survey(kernel, options))
        losses = [self._of_fold(job).loss for job in group.jobs]
        outputs = min(OUTPUTS, HOST // (8 * ARRAYS * self.n))
        parts = _parts(group.jobs, 1 if losses[0].coupled else max(1, outputs // k))
        with ready.laid(formulation, options, formulation.dtypes[0], k * len(parts[0])):
            ready.draw(random, least, tol, all(loss.quadratic for loss in losses), len(parts))
            last: dict[int, Vector] = {}  # coefficients (k, m) by fold
            for part in parts:
                if not self._solved(part, ready, last):
                    apart += dict.fromkeys(part)
                yield

    def _solved(self, part: list[Job], ready: nystrom.Rows, last: dict[int, Vector]) -> bool:
        """Solve a part from where the one before of the same folds ended, and note what was found; or not, where it
        stalls and the device has finer numbers."""
        began, machine, folds = perf_counter(), part[0].machine, [job.fold for job in part]
        start = np.concatenate([last[fold] for fold in folds]) if last.keys() >= {*folds} else None
        found = ready.solve(self._task(part), start, float(machine.tol), int(machine.max_iter))
        if found.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if found.status is Status.STALLED and ready.coarse:
            return False
        f, alpha = (some.reshape(len(part), -1, some.shape[1]) for some in (ready.decision_values(found), found.alpha))
        jobs = list(dict.fromkeys(part))
        seconds = (perf_counter() - began) / len(jobs)
        for place, job in enumerate(jobs):
            last[job.fold] = alpha[place]
            values = f[place][:, self.kept[job.fold]].T
            values = values[:, 0] if values.shape[1] == 1 else values
            self.found[job.place] = FoldResult(values, seconds, found.status.converged)
        return True

    def _task(self, part: list[Job]) -> Task:
        """Return the task whose outputs are those of each fold. A single fold's weights are of rows, not of outputs."""
        tasks = [self._of_fold(job) for job in part]
        if len(tasks) == 1:
            return tasks[0]
        names = "y", "offset", "deviation"
        y, offset, largest = (np.concatenate([getattr(task, name) for task in tasks]) for name in names)
        weights = np.concatenate([np.broadcast_to(task.weights, task.y.shape) for task in tasks])
        return replace(tasks[0], y=y, weights=weights, offset=offset, largest=largest)

    def _of_fold(self, job: Job) -> Task:
        """Return the task over all rows, with weights 0 where the fold leaves them out."""
        train = self.splits[job.fold][0]
        task = job.machine._problem(job.machine._posed(*self.targets(job.fold)))
        y, weights = np.zeros((len(task.y), self.n)), np.zeros(self.n)
        y[:, train], weights[train] = task.y, task.weights
        return replace(task, y=y, weights=weights)


def _parts(jobs: list[Job], most: int) -> list[list[Job]]:
    """Return the jobs of each candidate in parts, from the largest penalty down: of at most ``most``, and all of one
    size, which the last job of a part fills up."""
    by_candidate: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        by_candidate[job.candidate].append(job)
    fullest = max(map(len, by_candidate.values()))
    most = -(-fullest // -(-fullest // most))
    parts = []
    for same in sorted(by_candidate.values(), key=lambda same: -float(same[0].machine.penalty)):
        for first in range(0, len(same), most):
            some = same[first : first + most]
            parts.append(some + some[-1:] * (most - len(some)))
    return parts
