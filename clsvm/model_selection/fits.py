"""The fits of a search, by candidates and folds: what they share, what they came to, and a checkpoint of it."""

from __future__ import annotations

import copy
import warnings
import zipfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _num_samples

from clsvm import files
from clsvm.errors import CheckpointError, ClsvmError, warn
from clsvm.estimators import targets
from clsvm.estimators.answers import Answers, Classes, Probable
from clsvm.estimators.steps import Steps
from clsvm.model_selection.shown import shown_fits
from clsvm.opencl.devices import listed
from clsvm.threads import dealt

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
_WRITE_EVERY = 10.0  # seconds between two writes of a checkpoint
SAID = (
    ValueError,
    TypeError,
    NotImplementedError,
    MemoryError,
    ClsvmError,
)  # what a fit of its own says once more, or can do


@dataclass(frozen=True)
class Found:
    """What a fit to a fold came to: decision values of ``rows`` (rising numbers), (rows,) or (rows, machines).

    offsets: what these lack of sums of kernel values, (machines,); of machines on centres none is kept.
    predicted: the classes (rows,) by pairs of them, whose values are many; ``values`` are then what decision_function
    returns, or empty where no scorer asks for them.
    """

    values: Vector
    seconds: float
    converged: bool
    offsets: Vector = field(default_factory=lambda: np.zeros(0))
    predicted: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.values.nbytes + (0 if self.predicted is None else self.predicted.nbytes)


class Recalled(NamedTuple):
    """How a fit answers, and what it came to for some ``rows`` (rising numbers)."""

    answers: Answers
    rows: Rows
    values: Vector
    offsets: Vector
    predicted: NDArray[Any] | None

    def decision_function(self, numbers: Rows) -> Vector:
        """As the fitted machine's, for the rows of these numbers."""
        if self.predicted is not None:
            return np.asarray(self.values[np.searchsorted(self.rows, numbers)])
        return self.answers.decision_function(self.values[np.searchsorted(self.rows, numbers)])

    def score_samples(self, numbers: Rows) -> Vector:
        """As the fitted machine's, which is of one class, for the rows of these numbers."""
        return self.decision_function(numbers) + self.offsets

    def predict(self, numbers: Rows) -> NDArray[Any]:
        """As the fitted machine's, for the rows of these numbers."""
        if self.predicted is not None:
            return np.asarray(self.predicted[np.searchsorted(self.rows, numbers)])
        return self.answers.predict(self.values[np.searchsorted(self.rows, numbers)])

    def predict_log_proba(self, numbers: Rows) -> Vector:
        """As the fitted machine's, which has probabilities, for the rows of these numbers."""
        assert isinstance(self.answers, Probable)
        return self.answers.predict_log_proba(self.values[np.searchsorted(self.rows, numbers)])

    def predict_proba(self, numbers: Rows) -> Vector:
        """As the fitted machine's, which has probabilities, for the rows of these numbers."""
        assert isinstance(self.answers, Probable)
        return self.answers.predict_proba(self.values[np.searchsorted(self.rows, numbers)])


class Job(NamedTuple):
    """A fit: its candidate, its fold, and the machine with its parameters."""

    candidate: int
    fold: int
    machine: Any


class Group(NamedTuple):
    """Jobs that share their work: those of one key."""

    key: tuple[Any, ...]
    jobs: list[Job]


class Fits:
    """Every fit of a search: candidates by folds. machine: with the parameters that are not searched. Subclasses say
    what fits of their machines share."""

    steps: type[Steps]
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
        self.weights = None if sample_weight is None else targets.weights_of(sample_weight, X)
        self.kept = [self._kept(train, trained_too) for train, _ in splits]
        self.found: dict[tuple[int, int], Found | Exception] = {}
        self.rows = self.steps(clone(machine)).rows(X)  # as a solver reads them
        self.n = _num_samples(X)
        self._digest = ""
        self._targets: dict[int, tuple[Any, Any]] = {}  # by fold

    def key(self, job: Job) -> tuple[Any, ...]:
        """What jobs have in common that share their work. Raises NotImplementedError, or what the fit would raise,
        where a job shares nothing."""
        raise NotImplementedError

    def shared(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """The jobs of a group, a yield whenever some are found; what has to go alone is added to ``apart``."""
        raise NotImplementedError

    def answers(self, machine: Any, fold: int) -> Answers:
        """How a machine answers that was fitted to a fold."""
        raise NotImplementedError

    def bare(self) -> Self:
        """Return a copy without what is found and what each process makes of X and y itself."""
        bare = copy.copy(self)
        bare.found, bare.rows, bare._targets = {}, None, {}
        return bare

    def __sklearn_clone__(self) -> Fits:
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
        self.whole = file is not None
        if file is not None:
            asked = self.splits, self.candidates, self.kept
            self._digest = joblib.hash((self.machine, self.X, self.y, self.weights, *asked))
            if file.exists():
                self._read(file)
        started = perf_counter()
        begun, total = len(self.found), len(self.candidates) * len(self.splits)
        try:
            with (
                _no_convergence_warnings(),
                shown_fits(shown, begun, total) as show,
                closing(self._each()) as steps,
            ):
                for _ in steps:
                    show(len(self.found))
                    if file is not None and perf_counter() - started > _WRITE_EVERY:
                        self._write(file)
                        started = perf_counter()
        finally:
            if file is not None:
                self._write(file)

    def _each(self) -> Generator[None]:
        """Fit by fit."""
        yield from self._by(*self._groups())

    def _by(self, groups: list[Group], apart: list[Job]) -> Generator[None]:
        """The jobs of some groups, then those that go alone, on the machine's devices."""
        devices = listed(self.machine.device)

        def together(device: Any, pieces: Iterator[Group]) -> Generator[None]:
            for group in pieces:
                yield from self._together(group._replace(jobs=self._on(device, group.jobs)), apart)

        def alone(device: Any, jobs: Iterator[Job]) -> Generator[None]:
            for job in jobs:
                yield from self._one_by_one(self._on(device, [job]))

        yield from dealt(devices, _pieces(groups, len(devices)), together)
        yield from dealt(devices, apart, alone)

    def pieces(self, workers: int) -> list[list[tuple[int, int]]]:
        """What is not done yet, (candidate, fold) of each fit, in pieces for workers that share nothing."""
        groups, apart = self._groups()
        jobs = [group.jobs for group in _pieces(groups, workers)] + [[job] for job in apart]
        return [[(job.candidate, job.fold) for job in some] for some in jobs]

    def done(self, jobs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Found | Exception]:
        """What some fits come to, (candidate, fold) of each, and no others."""
        own = copy.copy(self)
        own.found, groups, apart = {}, *self._groups(jobs)
        with _no_convergence_warnings():
            for _ in own._by(groups, apart):
                pass
        return own.found

    def _on(self, device: Any, jobs: list[Job]) -> list[Job]:
        """Jobs on one of the machine's devices; but for those whose candidate says on which."""
        return [
            job
            if "device" in self.candidates[job.candidate]
            else job._replace(machine=clone(job.machine).set_params(device=device))
            for job in jobs
        ]

    def _together(self, group: Group, apart: list[Job]) -> Iterator[None]:
        """The jobs of a group; what has to go alone is added to ``apart``."""
        try:
            yield from self.shared(group, apart)
        except SAID as error:  # of these numbers, on this device
            left = [job for job in group.jobs if (job.candidate, job.fold) not in self.found and job not in apart]
            yield from self._one_by_one(left, str(error) or type(error).__name__)

    def _one_by_one(self, jobs: list[Job], why: str = "") -> Iterator[None]:
        """Fits as the estimator does them; said where that is slower than it should be: where ``why`` hinders none."""
        for job in jobs:
            found = self.found[job.candidate, job.fold] = self._alone(job)
            if why and isinstance(found, Found):
                warn(f"fits that could share their work are done one by one: {why}", RuntimeWarning)
                why = ""
            yield

    def _groups(self, among: Sequence[tuple[int, int]] | None = None) -> tuple[list[Group], list[Job]]:
        """What shares its work, and what does not, of what is not done; among: of these fits alone."""
        groups: list[Group] = []
        apart: list[Job] = []
        for candidate, values in enumerate(self.candidates):
            machine = clone(self.machine).set_params(**clone(dict(values), safe=False))
            for fold in range(len(self.splits)):
                job = Job(candidate, fold, machine)
                if (candidate, fold) in self.found or not (among is None or (candidate, fold) in among):
                    continue
                try:
                    key = self.key(job)
                except SAID:
                    apart.append(job)
                    continue
                same = next((group for group in groups if group.key == key), None)
                if same is None:
                    groups.append(same := Group(key, []))
                same.jobs.append(job)
        return groups, apart

    def by_rows(self, job: Job) -> bool:
        """Whether a job is of the rows as they are: it counts none of them twice, and has no past."""
        train = self.splits[job.fold][0]
        return len(np.unique(train)) == len(train) and not job.machine.warm_start

    def targets(self, fold: int) -> tuple[Any, Any]:
        """y of the rows that a fold is fitted to, as all fits take it, and sample_weight of them, ones where none is
        given. Raises ValueError as a fit does."""
        if fold not in self._targets:
            train = self.splits[fold][0]
            y = None if self.y is None else self.steps(self.machine).targets(np.asarray(self.y)[train])
            self._targets[fold] = y, np.ones(len(train)) if self.weights is None else self.weights[train]
        return self._targets[fold]

    def _alone(self, job: Job) -> Found | Exception:
        """A fit as the estimator has it, of the fold's rows; scikit-learn's error_score says what becomes of errors."""
        machine: Any = clone(job.machine)
        train, kept = self.splits[job.fold][0], self.kept[job.fold]
        began = perf_counter()
        X, y = _safe_split(machine, self.X, self.y, train)
        weights = {} if self.weights is None else {"sample_weight": self.weights[train]}
        try:
            machine.fit(X, y, **weights)
            seconds = perf_counter() - began
            steps = self.steps(machine)
            rows = _safe_split(machine, self.X, self.y, kept, train)[0]
            converged, offsets, by_pairs = machine.fit_report_.converged, steps.offsets(), machine.model_.of_pairs
            if by_pairs and not self.whole:
                values = machine.decision_function(rows) if self.valued else np.zeros((len(kept), 0))
                return Found(values, seconds, converged, offsets, machine.predict(rows))
            values = steps.decision_values(rows)
        except Exception as error:
            return error
        return Found(values, seconds, converged, offsets)

    def reduced(self, found: Found, answers: Answers) -> Found:
        """Return what is kept of a fit: of pairs of classes no value for each, unless all are asked for."""
        if self.whole or not (isinstance(answers, Classes) and answers.of_pairs):
            return found
        values = answers.decision_function(found.values) if self.valued else np.zeros((len(found.values), 0))
        return replace(found, values=values, predicted=answers.predict(found.values))

    def recall(self, machine: Any, candidate: int, train: Rows) -> Recalled | None:
        """What a fit of the machine, with the parameters of a candidate, to ``train`` came to; None where those are no
        fold. Raises what the fit raised."""
        fold = next((i for i, (rows, _) in enumerate(self.splits) if np.array_equal(rows, train)), None)
        if fold is None:
            return None
        found = self.found[candidate, fold]
        if isinstance(found, Exception):
            raise found
        return Recalled(self.answers(machine, fold), self.kept[fold], found.values, found.offsets, found.predicted)

    def _read(self, file: Path) -> None:
        try:
            with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as content:
                digest, found = str(content["clsvm_search"]), {}
                for name in content.files:
                    if name[0].isdigit():
                        candidate, fold = map(int, name.split("_"))
                        seconds, converged, *offsets = content[f"of_{name}"]
                        numbers = float(seconds), bool(converged), np.array(offsets)
                        found[candidate, fold] = Found(content[name], *numbers)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(f"{file} is no checkpoint of a search ({error})") from None
        if digest != self._digest:
            raise CheckpointError(f"{file} is of another search: other data, splits or parameters; delete it")
        self.found.update(found)

    def _write(self, file: Path) -> None:
        content: dict[str, Any] = {"clsvm_search": np.str_(self._digest)}
        for (candidate, fold), found in list(self.found.items()):  # (other threads add some meanwhile)
            if isinstance(found, Found):
                content[f"{candidate}_{fold}"] = found.values
                content[f"of_{candidate}_{fold}"] = np.array([found.seconds, found.converged, *found.offsets])
        with files.atomic_write(file) as stream:
            np.savez(stream, **content)


def _pieces(groups: list[Group], workers: int) -> list[Group]:
    """Groups; where there are fewer of them than workers each in parts, which have some folds each. Every part makes
    its own kernel matrix, so there are no more parts than needed."""
    parts = max(1, -(-workers // max(1, len(groups))))
    return [piece for group in groups for piece in _by_folds(group, parts)]


def _by_folds(group: Group, parts: int) -> list[Group]:
    """A group in so many parts at most, by folds."""
    folds = list(dict.fromkeys(job.fold for job in group.jobs))
    split = [set(some.tolist()) for some in np.array_split(folds, min(parts, len(folds)))]
    return [group._replace(jobs=[job for job in group.jobs if job.fold in some]) for some in split]


@contextmanager
def _no_convergence_warnings() -> Iterator[None]:
    """Fits inside do not warn where they did not converge: the search counts them. For the thread that waits for all
    others: filters of warnings are the process's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
