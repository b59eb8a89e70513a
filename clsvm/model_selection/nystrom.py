"""The fits of a search of machines on centres: K(X, C) once for all folds and penalties of a kernel function.

A fold is a few outputs of one problem over all rows, with weights 0 for the rows that it leaves out: each value of K
that is made or read meets all folds, and their decision values of the rows left out are at hand. One preconditioner, of
rows of all folds, serves them all, since it is of a sample of rows in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_random_state

from clsvm.estimators.checks import check_values
from clsvm.model_selection.fits import Fits, FoldResult, Group, Job
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.rows import Task
from clsvm.report import Status

Vector = NDArray[np.float64]
OUTPUTS = 64  # at once at most: beyond that K is a small part of the work
HOST, ARRAYS = 1 << 30, 12  # bytes of the host's memory for outputs of all rows, about; arrays of these in a solve


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
