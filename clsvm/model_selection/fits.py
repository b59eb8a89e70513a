"""All fits of a search, by candidates and folds: what they share, their results, and a checkpoint of these."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _num_samples

from clsvm import files
from clsvm.distribute import dealt
from clsvm.errors import CheckpointError, ClsvmError, warn
from clsvm.estimators import checks
from clsvm.fit.checkpoint import UNREADABLE
from clsvm.models.decoder import Decoder
from clsvm.opencl.devices import listed
from clsvm.report import counting

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
Place = tuple[int, int]  # candidate, fold
ALONE: tuple[Any, ...] = ()  # the key of a job that shares nothing
_WRITE_EVERY = 10.0  # seconds between two writes of a checkpoint
# Errors for which a fit is done as the estimator does it: it raises them again, or succeeds.
SAID = (ValueError, TypeError, NotImplementedError, MemoryError, ClsvmError)


@dataclass(frozen=True)
class FoldResult:
    """The result of a fit to a fold: decision values of some rows (rising numbers), (rows,) or (rows, machines).

    offsets: what these lack of sums of kernel values, (machines,); Falkon models have none.
    predicted: the classes (rows,) by pairs of classes, whose values are many. ``values`` are then what
    decision_function returns, or empty where no scorer asks for them.
    """

    values: Vector
    seconds: float
    converged: bool
    offsets: Vector = field(default_factory=lambda: np.zeros(0))
    predicted: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return self.values.nbytes + (0 if self.predicted is None else self.predicted.nbytes)


Results = dict[Place, FoldResult | Exception]


class Job(NamedTuple):
    """A fit: its candidate, its fold, and the estimator with its parameters."""

    candidate: int
    fold: int
    machine: Any

    @property
    def place(self) -> Place:
        """Return where its result stands."""
        return self.candidate, self.fold


class Group(NamedTuple):
    """Jobs of one key, which share their work, or a job that goes alone."""

    key: tuple[Any, ...]
    jobs: list[Job]


class Fits:
    """Every fit of a search: candidates by folds. Subclasses say what the fits of their estimators share.

    machine: the estimator with the parameters that are not searched.
    """

    valued = True  # whether scorers may ask for decision values
    whole = False  # whether values of all pairs of classes are kept, as a checkpoint has them

    def __init__(
        self,
        machine: Any,
        X: Any,
        y: Any,
        splits: Sequence[tuple[Rows, Rows]],
        candidates: Sequence[Mapping[str, Any]],
        sample_weight: Any,
        trained_too: bool,
    ) -> None:
        self.machine, self.X, self.y, self.splits, self.candidates = machine, X, y, splits, candidates
        self.weights = None if sample_weight is None else checks.weights_of(sample_weight, X)
        self.kept = [self._kept(train, trained_too) for train, _ in splits]
        self.found: Results = {}
        self.rows = clone(machine)._rows(X, reset=True)  # as a solver reads them
        self.n = _num_samples(X)
        self._targets: dict[int, tuple[Any, Any]] = {}  # by fold

    def key(self, job: Job) -> tuple[Any, ...]:
        """Return what jobs have in common that share their work.

        Raises NotImplementedError, or what the fit would raise, where a job shares nothing.
        """
        raise NotImplementedError

    def shared(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """Do the jobs of a group, with a yield whenever some are done. Add those that have to go alone to ``apart``."""
        raise NotImplementedError

    def decoder(self, machine: Any, fold: int) -> Decoder:
        """Return how a machine that was fitted to a fold makes predictions of decision values."""
        return machine._decoder(*self.targets(fold))

    def options(self, machine: Any) -> Any:
        """Return what a fit asks of the solver. Raises ValueError or TypeError for a parameter out of range."""
        machine._check_numbers()
        return machine._options()

    def bare(self) -> Self:
        """Return a copy without what is found and what each process makes of X and y itself."""
        bare = copy.copy(self)
        bare.found, bare.rows, bare._targets = {}, None, {}
        return bare

    def __sklearn_clone__(self) -> Fits:
        return self

    def _kept(self, train: Rows, trained_too: bool) -> Rows:
        """Return the rows, rising, whose decision values a fit to ``train`` gives: those of its tests."""
        tests = [test for same, test in self.splits if np.array_equal(same, train)]
        return np.unique(np.concatenate([*tests, train] if trained_too else tests))

    def run(self, checkpoint: Any, shown: bool) -> None:
        """Do the fits that are not done yet. The errors of fits are kept, for scikit-learn to deal with."""
        file, digest = None if checkpoint is None else Path(checkpoint), ""
        self.whole = file is not None
        if file is not None:
            asked = self.splits, self.candidates, self.kept
            digest = joblib.hash((self.machine, self.X, self.y, self.weights, *asked))
            if file.exists():
                self._read(file, digest)
        written, total, begun = perf_counter(), len(self.candidates) * len(self.splits), len(self.found)
        counted = counting("{done} of {total} fits, {left} left", total, begun, lines=True) if shown else nullcontext()
        try:
            with _unconverged_unsaid(), counted as show, closing(self._each()) as each:
                for _ in each:
                    if show:
                        show(len(self.found))
                    if file is not None and perf_counter() - written > _WRITE_EVERY:
                        self._write(file, digest)
                        written = perf_counter()
        finally:
            if file is not None:
                self._write(file, digest)

    def _each(self) -> Generator[None]:
        """Do one fit after another."""
        yield from self._by(self._groups())

    def _by(self, groups: list[Group]) -> Generator[None]:
        """Do the jobs of some groups, then those that turned out to go alone, on the estimator's devices."""
        devices, apart = listed(self.machine.device), list[Job]()

        def work(device: Any, pieces: Iterator[Group]) -> Generator[None]:
            for group in pieces:
                yield from self._together(group._replace(jobs=self._on(device, group.jobs)), apart)

        yield from dealt(devices, _pieces(groups, len(devices)), work)
        yield from dealt(devices, [Group(ALONE, [job]) for job in apart], work)

    def pieces(self, workers: int) -> list[list[Place]]:
        """Return the places of the fits that are not done yet, in pieces for workers that share nothing."""
        return [[job.place for job in group.jobs] for group in _pieces(self._groups(), workers)]

    def done(self, places: Sequence[Place]) -> Results:
        """Return the results of some fits."""
        own = copy.copy(self)
        own.found = {}
        with _unconverged_unsaid():
            for _ in own._by(own._groups(places)):
                pass
        return own.found

    def _on(self, device: Any, jobs: list[Job]) -> list[Job]:
        """Return jobs on one of the estimator's devices, but for those whose candidate names its own."""
        return [
            job
            if "device" in self.candidates[job.candidate]
            else job._replace(machine=clone(job.machine).set_params(device=device))
            for job in jobs
        ]

    def _together(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """Do the jobs of a group; one by one those that go alone, and all where they cannot share their work after all,
        with a warning that says why where one succeeds so."""
        why = ""
        try:
            if group.key != ALONE:
                yield from self.shared(group, apart)
        except SAID as error:  # of these numbers, on this device
            why = str(error) or type(error).__name__
        for job in group.jobs:
            if job.place not in self.found and job not in apart:
                found = self.found[job.place] = self._alone(job)
                if why and isinstance(found, FoldResult):
                    warn(f"fits that could share their work are done one by one: {why}", RuntimeWarning)
                    why = ""
                yield

    def _groups(self, among: Sequence[Place] | None = None) -> list[Group]:
        """Return the groups of jobs that are not done, those that share nothing last. among: of these fits alone."""
        groups: list[Group] = []
        for candidate, values in enumerate(self.candidates):
            machine = clone(self.machine).set_params(**clone(dict(values), safe=False))
            for fold in range(len(self.splits)):
                job, key = Job(candidate, fold, machine), ALONE
                if job.place in self.found or not (among is None or job.place in among):
                    continue
                with suppress(*SAID):
                    key = self.key(job)
                same = next((group for group in groups if group.key == key != ALONE), None)
                if same is None:
                    groups.append(same := Group(key, []))
                same.jobs.append(job)
        return sorted(groups, key=lambda group: group.key == ALONE)

    def by_rows(self, job: Job) -> bool:
        """Return whether a job is of the rows as they are: no row is there twice, and no earlier fit matters."""
        train = self.splits[job.fold][0]
        return len(np.unique(train)) == len(train) and not job.machine.warm_start

    def targets(self, fold: int) -> tuple[Any, Any]:
        """Return y and sample_weight of the rows that a fold is fitted to; weights of 1 where none are given.

        Labels are read once (:class:`checks.Labels`). Raises ValueError as a fit does.
        """
        if fold not in self._targets:
            train = self.splits[fold][0]
            y: Any = None if self.y is None else np.asarray(self.y)[train]
            y = checks.classes_of(y) if is_classifier(self.machine) else y
            self._targets[fold] = y, np.ones(len(train)) if self.weights is None else self.weights[train]
        return self._targets[fold]

    def _alone(self, job: Job) -> FoldResult | Exception:
        """Fit the estimator to the fold's rows. Return its error, if any, for scikit-learn's error_score."""
        machine: Any = clone(job.machine)
        train, kept = self.splits[job.fold][0], self.kept[job.fold]
        began = perf_counter()
        X, y = _safe_split(machine, self.X, self.y, train)
        weights = {} if self.weights is None else {"sample_weight": self.weights[train]}
        try:
            machine.fit(X, y, **weights)
            ended = perf_counter() - began, machine.fit_report_.converged, -machine.intercept_
            rows = _safe_split(machine, self.X, self.y, kept, train)[0]
            if self.whole or not machine.model_.of_pairs:
                return FoldResult(machine._decision_values(rows), *ended)
            values = machine.decision_function(rows) if self.valued else np.zeros((len(kept), 0))
            return FoldResult(values, *ended, machine.predict(rows))
        except Exception as error:
            return error

    def reduced(self, found: FoldResult, decoder: Decoder) -> FoldResult:
        """Return what is kept of a fit: of pairs of classes no value for each, unless all are asked for."""
        if self.whole or not decoder.of_pairs:
            return found
        values = decoder.decision_function(found.values) if self.valued else np.zeros((len(found.values), 0))
        return replace(found, values=values, predicted=decoder.predict(found.values))

    def fold_of(self, train: Rows) -> int | None:
        """Return the number of the fold that is fitted to ``train``, if there is one."""
        return next((i for i, (rows, _) in enumerate(self.splits) if np.array_equal(rows, train)), None)

    def _read(self, file: Path, expected: str) -> None:
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                digest, found = str(content["clsvm_search"]), {}
                for name in content.files:
                    if name[0].isdigit():
                        candidate, fold = map(int, name.split("_"))
                        seconds, converged, *offsets = content[f"of_{name}"]
                        numbers = float(seconds), bool(converged), np.array(offsets)
                        found[candidate, fold] = FoldResult(content[name], *numbers)
        except UNREADABLE as error:
            raise CheckpointError(f"{file} is no checkpoint of a search ({error})") from None
        if digest != expected:
            raise CheckpointError(f"{file} is of another search: other data, splits or parameters; delete it")
        self.found.update(found)

    def _write(self, file: Path, digest: str) -> None:
        content: dict[str, Any] = {"clsvm_search": np.str_(digest)}
        for (candidate, fold), found in list(self.found.items()):  # (other threads add some meanwhile)
            if isinstance(found, FoldResult):
                content[f"{candidate}_{fold}"] = found.values
                content[f"of_{candidate}_{fold}"] = np.array([found.seconds, found.converged, *found.offsets])
        with files.atomic_write(file) as stream:
            np.savez(stream, **content)


def _unconverged_unsaid() -> warnings.catch_warnings[None]:
    """Silence warnings of fits that did not converge: the search counts these. Filters are the process's, so that this
    is for the thread that waits for all others."""
    return warnings.catch_warnings(action="ignore", category=ConvergenceWarning)


def _pieces(groups: list[Group], workers: int) -> list[Group]:
    """Return groups for workers: where fewer share work than there are workers, each of these is split by folds.

    Every part makes its own kernel matrix, so there are no more parts than needed.
    """
    parts, pieces = -(-workers // max(1, sum(group.key != ALONE for group in groups))), []
    for group in groups:
        folds = list(dict.fromkeys(job.fold for job in group.jobs))
        for some in np.array_split(folds, min(parts, len(folds))):
            pieces.append(group._replace(jobs=[job for job in group.jobs if job.fold in some]))
    return pieces
