"""Run the fits of a grid search, one for each candidate and fold, and keep their results.

A candidate is one choice of parameter values from the grid. :class:`Fits` puts fits that can share kernel values or
solutions into one group (:class:`Group`). It gives the groups to the estimator's devices, and writes checkpoints. The
subclasses in folds.py run the fits of a group with shared work. If a fit cannot share work, the estimator's own ``fit``
is called.
"""

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
from clsvm.distribute import run_pieces
from clsvm.errors import CheckpointError, ClsvmError, warn
from clsvm.estimators import checks
from clsvm.models.decoder import Decoder
from clsvm.opencl.devices import device_list
from clsvm.report import Progress

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
JobId = tuple[int, int]  # (index of the candidate, index of the fold): identifies a fit
UNSHARED: tuple[Any, ...] = ()  # value of Fits.key for a fit that shares no work with other fits
_WRITE_EVERY = 10.0  # minimum seconds between two writes of a checkpoint
# If work that several fits share raises one of FIT_ERRORS, the fits are run one by one, by their estimators' ``fit``.
FIT_ERRORS = (ValueError, TypeError, NotImplementedError, MemoryError, ClsvmError)


@dataclass(frozen=True)
class FoldResult:
    """Hold the result of a fit to a fold's training rows: decision values of the test rows, and perhaps of other rows.

    Attributes
    ----------
    values
        decision values in ascending order of rows: (rows,) for a single dual problem or output, else (rows, problems).
        If ``predicted`` is given, the result of decision_function instead.
    seconds
        wall time of the fit.
    converged
        whether the solve converged.
    offsets
        offsets rho (problems,) of the decision functions. The offsets are already subtracted in ``values``. Empty for
        a Falkon model that was fitted together with other models.
    predicted
        predicted classes (rows,), or None. If ``predicted`` is None, the predictions are computed from ``values`` when
        they are needed.
    """

    values: Vector
    seconds: float
    converged: bool
    offsets: Vector = field(default_factory=lambda: np.zeros(0))
    predicted: NDArray[Any] | None = None


Results = dict[JobId, FoldResult | Exception]


class Job(NamedTuple):
    """Describe one fit of a grid search: the indices of its candidate and fold, and the estimator to fit.

    A candidate is one choice of parameter values. The estimator has the candidate's parameter values.
    """

    candidate: int
    fold: int
    estimator: Any

    @property
    def id(self) -> JobId:
        """Return (index of the candidate, index of the fold): the key of the fit's result in ``Fits.results``."""
        return self.candidate, self.fold


class Group(NamedTuple):
    """Hold the fits ``jobs`` of a grid search that have the same ``key``. The fits share work, such as kernel values.

    A fit that shares no work is alone in its group, with the key UNSHARED.
    """

    key: tuple[Any, ...]
    jobs: list[Job]


class Fits:
    """Hold all fits of a grid search and their results. :meth:`run` runs the fits.

    A candidate is one choice of parameter values. Each candidate has one fit for each fold. A subclass implements
    :meth:`key` and :meth:`run_shared` for its estimators.

    Attributes
    ----------
    estimator
        estimator with the parameters that are not searched.
    X
        rows of the search, (n, d), or kernel values (n, n).
    y
        labels or targets (n,) of the rows.
    weights
        sample weights (n,), or None if none were given.
    splits
        for each fold, the row numbers of its training set and of its test set.
    candidates
        for each candidate, a dictionary of its parameter values.
    stored_rows
        for each fold, the numbers of the rows whose decision values are stored.
    results
        dictionary from (candidate, fold) to the result of the fit, or to the exception that the fit raised.
    rows
        X as a contiguous array or CSR matrix, which solvers read.
    n
        number of rows of X.
    """

    keep_pairs = False  # whether to keep the decision values of all pairs of classes, for a checkpoint

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        splits: Sequence[tuple[Rows, Rows]],
        candidates: Sequence[Mapping[str, Any]],
        sample_weight: Any,
        trained_too: bool,
    ) -> None:
        self.estimator, self.X, self.y, self.splits, self.candidates = estimator, X, y, splits, candidates
        self.weights = None if sample_weight is None else checks.weights_of(sample_weight, X)
        self.stored_rows = [self._rows_to_store(train, trained_too) for train, _ in splits]
        self.results: Results = {}
        self._targets: dict[int, tuple[Any, Any]] = {}
        self.rows = clone(estimator)._rows(X, reset=True)
        self.n = _num_samples(X)

    def key(self, job: Job) -> tuple[Any, ...]:
        """Return a key for a fit. Fits with equal keys can share work, such as kernel values.

        Raises an error of a type in FIT_ERRORS if the fit cannot share work.
        """
        raise NotImplementedError

    def run_shared(self, group: Group) -> Iterator[None]:
        """Run the fits of a group, which share work such as kernel values, and store their results.

        Yield None whenever one or several fits are done. If a fit cannot share work after all, this method stores no
        result for the fit, and the caller calls the estimator's own ``fit``.
        """
        raise NotImplementedError

    def decoder(self, estimator: Any, fold: int) -> Decoder:
        """Return the decoder: an object that computes predictions from decision values.

        The decoder is for an estimator that was fitted to the training rows of ``fold``.
        """
        return estimator._decoder(*self.targets(fold))

    def options(self, estimator: Any) -> Any:
        """Return the solver options of an estimator. Raises ValueError or TypeError if a parameter is invalid."""
        estimator._check_numbers()
        return estimator._options()

    def without_data(self) -> Self:
        """Return a copy of this object that can be sent to other processes.

        The copy keeps X, y, the sample weights, the folds and the parameters of all fits. It has no results. It also
        lacks two conversions that the other process can repeat: X in the form that solvers read, and the targets of
        each fold.
        """
        stripped = copy.copy(self)
        stripped.results, stripped.rows, stripped._targets = {}, None, {}
        return stripped

    def __sklearn_clone__(self) -> Fits:
        return self

    def _rows_to_store(self, train: Rows, trained_too: bool) -> Rows:
        """Return the numbers of the rows whose decision values are stored, for a fit to the training rows ``train``.

        Several folds may have the same training rows and different test rows. The test rows of every fold with the
        training rows ``train`` are returned. If ``trained_too`` is true, the training rows are returned too.
        """
        tests = [test for rows, test in self.splits if np.array_equal(rows, train)]
        return np.unique(np.concatenate([*tests, train] if trained_too else tests))

    def run(self, checkpoint: Any, show_progress: bool) -> None:
        """Run all fits that have no result yet.

        If a fit raises an exception, the exception is stored as the result, for scikit-learn's error_score.

        checkpoint: path of a file, or None. Results are read from the file at the start, and written to the file.
        show_progress: whether to show progress on stderr.
        """
        file, digest = None if checkpoint is None else Path(checkpoint), ""
        self.keep_pairs = file is not None
        if file is not None:
            asked = self.splits, self.candidates, self.stored_rows
            digest = joblib.hash((self.estimator, self.X, self.y, self.weights, *asked))
            if file.exists():
                self._read(file, digest)
        written, total, begun = perf_counter(), len(self.candidates) * len(self.splits), len(self.results)
        progress = Progress() if show_progress else nullcontext()
        try:
            with _without_convergence_warnings(), progress as shown, closing(self._run_all()) as each:
                for _ in each:
                    if shown:
                        done = len(self.results)
                        shown.show(f"{done} of {total} fits", (done - begun) / (total - begun))
                    if file is not None and perf_counter() - written > _WRITE_EVERY:
                        self._write(file, digest)
                        written = perf_counter()
        finally:
            if file is not None:
                self._write(file, digest)

    def _run_all(self) -> Generator[None]:
        """Run on this computer all fits that have no result yet. Yield None whenever one or several fits are done."""
        yield from self._run_groups(self._groups())

    def _run_groups(self, groups: list[Group]) -> Generator[None]:
        """Run groups of fits on the estimator's devices. Yield None whenever one or several fits are done."""

        def work(device: Any, pieces: Iterator[Group]) -> Generator[None]:
            for group in pieces:
                jobs = [self._with_device(job, device) for job in group.jobs]
                yield from self._run_group(group._replace(jobs=jobs))

        devices = device_list(self.estimator.device)
        yield from run_pieces(devices, _pieces(groups, len(devices)), work)

    def pieces(self, workers: int) -> list[list[JobId]]:
        """Divide the fits that have no result yet into pieces for a number of workers.

        A piece is a list of (candidate, fold), one pair for each fit.
        """
        return [[job.id for job in group.jobs] for group in _pieces(self._groups(), workers)]

    def run_jobs(self, indices: Sequence[JobId]) -> Results:
        """Run the fits given by their pairs (candidate, fold), and return their results."""
        copied = copy.copy(self)
        copied.results = {}
        with _without_convergence_warnings():
            for _ in copied._run_groups(copied._groups(indices)):
                pass
        return copied.results

    def _with_device(self, job: Job, device: Any) -> Job:
        """Return a copy of ``job``, one fit of the search, with an estimator that uses ``device``.

        If the grid varies the parameter "device", return ``job`` unchanged.
        """
        if "device" in self.candidates[job.candidate]:
            return job
        return job._replace(estimator=clone(job.estimator).set_params(device=device))

    def _run_group(self, group: Group) -> Iterator[None]:
        """Run the fits of a group with shared work. Then call the estimator's own ``fit`` for each missing result.

        Yield None whenever one or several fits are done. If the shared work raised an error, and a call of ``fit`` then
        succeeds, warn with the error's message.
        """
        reason = ""
        try:
            if group.key != UNSHARED:
                yield from self.run_shared(group)
        except FIT_ERRORS as error:  # one by one, the fits may still succeed
            reason = str(error) or type(error).__name__
        for job in group.jobs:
            if job.id not in self.results:
                found = self.results[job.id] = self._fit_alone(job)
                if reason and isinstance(found, FoldResult):
                    warn(f"fits that share work failed together, and are now done one by one: {reason}", RuntimeWarning)
                    reason = ""
                yield

    def _groups(self, only: Sequence[JobId] | None = None) -> list[Group]:
        """Return the fits that have no result yet, in groups of fits that share work, such as kernel values.

        Two fits are in the same group if :meth:`key` returns equal keys for them. A fit that cannot share work has a
        group of its own. The groups of fits that cannot share work come last.

        only: the pairs (candidate, fold) of the fits to return; None for all fits.
        """
        groups: list[Group] = []
        for candidate, values in enumerate(self.candidates):
            estimator = clone(self.estimator).set_params(**clone(dict(values), safe=False))
            for fold in range(len(self.splits)):
                job, key = Job(candidate, fold, estimator), UNSHARED
                if job.id in self.results or not (only is None or job.id in only):
                    continue
                with suppress(*FIT_ERRORS):
                    key = self.key(job)
                group_of_key = next((group for group in groups if group.key == key != UNSHARED), None)
                if group_of_key is None:
                    groups.append(group_of_key := Group(key, []))
                group_of_key.jobs.append(job)
        return sorted(groups, key=lambda group: group.key == UNSHARED)

    def shareable(self, job: Job) -> bool:
        """Return whether a fit can share work: its training set repeats no row, and its estimator has no warm_start."""
        train = self.splits[job.fold][0]
        return len(np.unique(train)) == len(train) and not job.estimator.warm_start

    def targets(self, fold: int) -> tuple[Any, Any]:
        """Return y and the sample weights of a fold's training rows. The weights are 1 if none were given.

        For a classifier, y is returned as :class:`checks.Labels`, which has the class index of each row. Raises
        ValueError for labels of fewer than two classes.
        """
        if fold not in self._targets:
            train = self.splits[fold][0]
            y: Any = None if self.y is None else np.asarray(self.y)[train]
            y = checks.classes_of(y) if is_classifier(self.estimator) else y
            self._targets[fold] = y, np.ones(len(train)) if self.weights is None else self.weights[train]
        return self._targets[fold]

    def _fit_alone(self, job: Job) -> FoldResult | Exception:
        """Call the estimator's own ``fit`` for the fold's training rows. Return the result, or the exception raised."""
        estimator: Any = clone(job.estimator)
        train, stored_rows = self.splits[job.fold][0], self.stored_rows[job.fold]
        began = perf_counter()
        X, y = _safe_split(estimator, self.X, self.y, train)
        weights = {} if self.weights is None else {"sample_weight": self.weights[train]}
        try:
            estimator.fit(X, y, **weights)
            outcome = perf_counter() - began, estimator.fit_report_.converged, -estimator.intercept_
            rows = _safe_split(estimator, self.X, self.y, stored_rows, train)[0]
            if self.keep_pairs or not estimator.model_.of_pairs:
                return FoldResult(estimator._decision_values(rows), *outcome)
            return FoldResult(estimator.decision_function(rows), *outcome, estimator.predict(rows))
        except Exception as error:
            return error

    def reduced(self, found: FoldResult, decoder: Decoder) -> FoldResult:
        """Return the result ``found`` of a fit without values that the search does not need.

        If the fit has a binary problem for each pair of classes, ``found`` has a decision value for each pair. The
        returned result has the values of decision_function and the predicted classes instead. Both are computed by
        ``decoder``. Return ``found`` unchanged if the fit has no such binary problems. Also return ``found`` unchanged
        if ``self.keep_pairs`` is true: a checkpoint then stores the decision values of all pairs.
        """
        if self.keep_pairs or not decoder.of_pairs:
            return found
        predicted = decoder.predict(found.values)
        return replace(found, values=decoder.decision_function(found.values), predicted=predicted)

    def fold_of(self, train: Rows) -> int | None:
        """Return the number of the fold that has the training rows ``train``, or None if there is none."""
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
        except files.DAMAGED_ARCHIVE as error:
            raise CheckpointError(f"{file} is no checkpoint of a search: {error}") from None
        if digest != expected:
            raise CheckpointError(f"{file} belongs to another search with other data, splits or parameters: delete it")
        self.results.update(found)

    def _write(self, file: Path, digest: str) -> None:
        content: dict[str, Any] = {"clsvm_search": np.str_(digest)}
        for (candidate, fold), found in list(self.results.items()):  # other threads add results meanwhile
            if isinstance(found, FoldResult):
                content[f"{candidate}_{fold}"] = found.values
                content[f"of_{candidate}_{fold}"] = np.array([found.seconds, found.converged, *found.offsets])
        with files.atomic_write(file) as stream:
            np.savez(stream, **content)


def _without_convergence_warnings() -> warnings.catch_warnings[None]:
    """Silence warnings of fits that did not converge. The search itself warns with the number of such fits.

    Python's warning filters hold for all threads of the process. This function must therefore be called only by the
    thread that starts the search's other threads and waits until they end.
    """
    return warnings.catch_warnings(action="ignore", category=ConvergenceWarning)


def _pieces(groups: list[Group], workers: int) -> list[Group]:
    """Split groups of fits by folds if there are fewer groups than workers, and return all groups.

    Fits in a group share kernel values. Each part of a split group computes these kernel values again.
    """
    parts, pieces = -(-workers // max(1, sum(group.key != UNSHARED for group in groups))), []
    for group in groups:
        folds = list(dict.fromkeys(job.fold for job in group.jobs))
        for some in np.array_split(folds, min(parts, len(folds))):
            pieces.append(group._replace(jobs=[job for job in group.jobs if job.fold in some]))
    return pieces
