"""The fits of a search: what of them shares rows of K, and the solves, each from near its end."""

from __future__ import annotations

import warnings
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _num_samples

from clsvm import arrays, files
from clsvm.errors import CheckpointError, ClsvmError
from clsvm.estimators import targets
from clsvm.estimators.answers import Answers
from clsvm.estimators.checks import check_values
from clsvm.estimators.dual import Machine
from clsvm.estimators.steps import DualSteps
from clsvm.fit import prepare
from clsvm.gram.precision import DECISION_ERROR
from clsvm.kernels import Kernel
from clsvm.model_selection.shown import shown_fits
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.report import Status
from clsvm.solvers import Solution, batch

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
_WRITE_EVERY = 10.0  # seconds between two writes of a checkpoint
_SAID = (ValueError, TypeError, NotImplementedError, ClsvmError)  # what a fit of its own says once more, or can do


@dataclass(frozen=True)
class Found:
    """What a fit to a fold came to: decision values of ``rows`` (rising numbers), (rows,) or (rows, machines)."""

    values: Vector
    seconds: float
    converged: bool


class Recalled(NamedTuple):
    """How a fit answers, and its decision values of some ``rows`` (rising numbers)."""

    answers: Answers
    rows: Rows
    values: Vector

    def decision_function(self, numbers: Rows) -> Vector:
        """As the fitted machine's, for the rows of these numbers."""
        return self.answers.decision_function(self.values[np.searchsorted(self.rows, numbers)])

    def predict(self, numbers: Rows) -> NDArray[Any]:
        """As the fitted machine's, for the rows of these numbers."""
        return self.answers.predict(self.values[np.searchsorted(self.rows, numbers)])


class Job(NamedTuple):
    """A fit: its candidate, its fold, and the machine with its parameters."""

    candidate: int
    fold: int
    machine: Machine

    @property
    def steps(self) -> DualSteps:
        return DualSteps(self.machine)


class Group(NamedTuple):
    """Jobs that share rows of K: those of one kernel function on one device."""

    key: tuple[Any, ...]
    jobs: list[Job]


class Folds:
    """Every fit of a search: candidates by folds. machine: with the parameters that are not searched."""

    def __init__(
        self,
        machine: Machine,
        X: Any,
        y: Any,
        splits: Sequence[tuple[Rows, Rows]],
        candidates: Sequence[Mapping[str, Any]],
        sample_weight: Any,
        trained_too: bool,
    ) -> None:
        self.machine, self.X, self.y, self.splits, self.candidates = machine, X, y, splits, candidates
        self.weights = None if sample_weight is None else targets.weights_of(sample_weight, X)
        self.kept = [self._kept(train, trained_too) for train, _ in splits]
        self.found: dict[tuple[int, int], Found | Exception] = {}
        self.rows = DualSteps(clone(machine)).rows(X)  # as a solver reads them
        self.n = _num_samples(X)
        self._digest = ""

    def __sklearn_clone__(self) -> Folds:
        return self

    def _kept(self, train: Rows, trained_too: bool) -> Rows:
        """The rows, rising, whose decision values are wanted of a fit to ``train``: those of all folds that have it."""
        tests = [test for same, test in self.splits if np.array_equal(same, train)]
        return np.unique(np.concatenate([*tests, train] if trained_too else tests))

    @property
    def seconds(self) -> Vector:
        """Of each fit, (candidates, folds); nan where it failed."""
        out = np.full((len(self.candidates), len(self.splits)), np.nan)
        for (candidate, fold), found in self.found.items():
            if isinstance(found, Found):
                out[candidate, fold] = found.seconds
        return out

    @property
    def unconverged(self) -> int:
        return sum(isinstance(found, Found) and not found.converged for found in self.found.values())

    def run(self, checkpoint: Any, shown: bool) -> None:
        """Do what is not done yet; errors of a fit are kept, for scikit-learn to deal with."""
        file = None if checkpoint is None else Path(checkpoint)
        if file is not None:
            asked = self.splits, self.candidates, self.kept
            self._digest = joblib.hash((self.machine, self.X, self.y, self.weights, *asked))
            if file.exists():
                self._read(file)
        started = perf_counter()
        try:
            with shown_fits(shown, len(self.found), len(self.candidates) * len(self.splits)) as show:
                for _ in self._each():
                    show(len(self.found))
                    if file is not None and perf_counter() - started > _WRITE_EVERY:
                        self._write(file)
                        started = perf_counter()
        finally:
            if file is not None:
                self._write(file)

    def _each(self) -> Iterator[None]:
        """Fit by fit."""
        groups, apart = self._groups()
        for group in groups:
            try:
                yield from self._shared(group, apart)
            except _SAID:  # of these numbers, on this device
                apart += [job for job in group.jobs if (job.candidate, job.fold) not in self.found and job not in apart]
        for job in apart:
            self.found[job.candidate, job.fold] = self._alone(job)
            yield

    def _groups(self) -> tuple[list[Group], list[Job]]:
        """What shares rows, and what does not."""
        groups: list[Group] = []
        apart: list[Job] = []
        for candidate, values in enumerate(self.candidates):
            machine = clone(self.machine).set_params(**clone(dict(values), safe=False))
            for fold in range(len(self.splits)):
                job = Job(candidate, fold, machine)
                if (candidate, fold) in self.found:
                    continue
                try:
                    key = self._key(job)
                except _SAID:
                    apart.append(job)
                    continue
                same = next((group for group in groups if group.key == key), None)
                if same is None:
                    groups.append(same := Group(key, []))
                same.jobs.append(job)
        return groups, apart

    def _key(self, job: Job) -> tuple[Any, ...]:
        """What jobs of a group have in common. Raises NotImplementedError where a job shares nothing: it is not of the
        rows as they were read, or counts some of them twice, or has a past."""
        machine, train, of_all = job.machine, self.splits[job.fold][0], DualSteps(self.machine)
        options = job.steps.options()
        read_alike = (job.steps.given, job.steps.own) == (of_all.given, of_all.own)
        if not read_alike or len(np.unique(train)) < len(train) or machine.warm_start or machine.checkpoint is not None:
            raise NotImplementedError
        room = options.dtype, options.working_set_size, options.cache_size, options.device, options.memory_limit
        return self._kernel(job), getattr(machine, "bias", True), *room

    def _kernel(self, job: Job) -> Any:
        """The kernel function, whose gamma may be by the rows of the fold; or the caller's."""
        machine = job.machine
        if job.steps.given or job.steps.own:
            return machine.kernel
        by_rows = not isinstance(machine.kernel, Kernel) and isinstance(machine.gamma, str)
        return job.steps.kernel(self.rows[self.splits[job.fold][0]] if by_rows else self.rows)

    def _targets(self, fold: int) -> tuple[Any, Any]:
        train = self.splits[fold][0]
        y = None if self.y is None else np.asarray(self.y)[train]
        return y, None if self.weights is None else self.weights[train]

    def _shared(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """The jobs of a group over one set of rows, a fold after the other; what has to go alone is added to
        ``apart``."""
        first, kernel = group.jobs[0].steps, group.key[0]
        options = first.options()
        if isinstance(kernel, Kernel):
            check_values(kernel, self.rows)
            rows = arrays.without_empty(self.rows) if kernel.of_entries else self.rows
        else:
            rows, kernel = first.trained_on(self.rows)
        by_fold: dict[int, list[Job]] = defaultdict(list)
        with Stream(options.device, options.memory_limit) as stream:
            for job in group.jobs:
                (apart if self._small(stream, job) else by_fold[job.fold]).append(job)
            if not by_fold:
                return
            ready = prepare.PreparedFit(stream, rows, kernel, options, options.dtype, whole=True)
            last: dict[int, list[_Solved]] = {}
            for fold, jobs in by_fold.items():
                jobs.sort(key=lambda job: [getattr(job.machine, name, 0.0) for name in ("nu", "C", "epsilon")])
                before: list[_Solved] = []
                for job in jobs:
                    began = perf_counter()
                    near = last.get(job.candidate, before)  # the same in another fold, or another C in this one
                    try:
                        solved = self._solved(job, ready, near)
                    except _SAID:
                        solved = []
                    if not solved:
                        apart.append(job)
                        continue
                    before = last[job.candidate] = solved
                    values = np.stack([one.decision_values(job.steps)[self.kept[fold]] for one in solved], axis=1)
                    values = values[:, 0] if len(solved) == 1 else values
                    converged = all(one.solution.status.converged for one in solved)
                    self.found[job.candidate, fold] = Found(values, perf_counter() - began, converged)
                    yield

    def _solved(self, job: Job, ready: prepare.PreparedFit, near: list[_Solved]) -> list[_Solved]:
        """The machines of a job over all rows, each from where one ``near`` it ended, if there are any; none where the
        rounding of kernel values is too much, for which the estimator has float64."""
        train, options, began = self.splits[job.fold][0], job.steps.options(), perf_counter()
        members = job.steps.posed(*self._targets(job.fold))
        problems = [member.problem.among(train[member.rows], self.n) for member in members]
        if any(ready.coarse(problem, options.tol) for problem in problems):
            return []
        starts: list[dict[str, Any]] = [{}] * len(problems)
        if len(near) == len(problems):
            starts = [one.start(problem) for one, problem in zip(near, problems, strict=True)]
        solved = []
        for problem, start in zip(problems, starts, strict=True):
            one = _Solved(problem, ready.solve(problem, **_asked(options, perf_counter() - began), **start))
            moved = one.moved(job.steps) > DECISION_ERROR
            if moved or one.solution.status is Status.STALLED:
                return []
            solved.append(one)
        return solved

    def _small(self, stream: Stream, job: Job) -> bool:
        """Whether a job is best by itself: its machines are solved side by side then, or are of another kind."""
        try:
            members = job.steps.posed(*self._targets(job.fold))
        except _SAID:
            return True
        return len(members) > 1 and max(len(member.rows) for member in members) <= batch.largest(stream)

    def _alone(self, job: Job) -> Found | Exception:
        """A fit as the estimator has it, of the fold's rows; scikit-learn's error_score says what becomes of errors."""
        machine: Any = clone(job.machine)
        train, kept = self.splits[job.fold][0], self.kept[job.fold]
        began = perf_counter()
        X, y = _safe_split(machine, self.X, self.y, train)
        weights = {} if self.weights is None else {"sample_weight": self.weights[train]}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                machine.fit(X, y, **weights)
            seconds = perf_counter() - began
            values = DualSteps(machine).decision_values(_safe_split(machine, self.X, self.y, kept, train)[0])
        except Exception as error:
            return error
        return Found(values, seconds, machine.fit_report_.converged)

    def recall(self, machine: Machine, candidate: int, train: Rows) -> Recalled | None:
        """What a fit of the machine, with the parameters of a candidate, to ``train`` came to; None where those are no
        fold. Raises what the fit raised."""
        fold = next((i for i, (rows, _) in enumerate(self.splits) if np.array_equal(rows, train)), None)
        if fold is None:
            return None
        found = self.found[candidate, fold]
        if isinstance(found, Exception):
            raise found
        return Recalled(DualSteps(machine).answers(*self._targets(fold)), self.kept[fold], found.values)

    def _read(self, file: Path) -> None:
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                digest, found = str(content["clsvm_search"]), {}
                for name in content.files:
                    if name[0].isdigit():
                        candidate, fold = map(int, name.split("_"))
                        seconds, converged = content[f"of_{name}"]
                        found[candidate, fold] = Found(content[name], float(seconds), bool(converged))
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{file} is no checkpoint of a search ({error})") from None
        if digest != self._digest:
            raise CheckpointError(f"{file} is of another search: other data, splits or parameters; delete it")
        self.found.update(found)

    def _write(self, file: Path) -> None:
        content: dict[str, Any] = {"clsvm_search": np.str_(self._digest)}
        for (candidate, fold), found in self.found.items():
            if isinstance(found, Found):
                content[f"{candidate}_{fold}"] = found.values
                content[f"of_{candidate}_{fold}"] = np.array([found.seconds, found.converged])
        with files.atomic_write(file) as stream:
            np.savez(stream, **content)


class _Solved(NamedTuple):
    """A problem over all rows and its solution."""

    problem: Problem
    solution: Solution

    def start(self, problem: Problem) -> dict[str, Any]:
        """Where to begin with ``problem``, which has other bounds, or other rows: settings of a solve.

        Coefficients are scaled with the bounds. Rows that are new begin at the bound on whose side they are, or at 0:
        near the solution where the rest is the same.
        """
        old = self.problem
        ratio = old.ratio(problem)
        b, f = self.solution.b * ratio, (self.solution.f - old.q) * ratio + problem.q
        if problem.constraint is Constraint.SPLIT:
            return {"start": problem.feasible(b), "known": (b, f)}
        rho, new = self.solution.rho, (old.lo == 0) & (old.hi == 0)
        guess = np.where(f + problem.kink < rho, problem.hi, np.where(f - problem.kink > rho, problem.lo, 0))
        return {"start": problem.settled(np.where(new, guess, b), f, rho), "known": (b, f)}

    def moved(self, steps: DualSteps) -> float:
        """How far the rounding of kernel values can have moved a decision value."""
        bound, _ = steps.scaled(np.array([[self.solution.error_bound]]), self.solution.rho)
        return float(bound[0, 0])

    def decision_values(self, steps: DualSteps) -> Vector:
        """Of every row, (n,). Rounded, so that equal rows, whose f is made by other sums, tie as they should."""
        values, rho = steps.scaled(self.solution.f - self.problem.q, self.solution.rho)
        return np.round(values[0] - rho[0], 10)


def _asked(options: Options, spent: float) -> dict[str, Any]:
    """What a machine asks of one solve, for which some seconds are spent; folds have no certificate in float64 and no
    seconds by part."""
    left = None if options.max_time is None else options.max_time - spent
    names = ("tol", "gap_tol", "max_iter")
    return {"exact": None, "timed": False, "max_time": left, **{name: getattr(options, name) for name in names}}
