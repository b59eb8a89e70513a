"""Hold the state of an SVM fit and its outcome.

:class:`FitContext` is the state that all devices of the fit share. :class:`Worker` counts the seconds and bytes of each
device. :class:`Fitted` is the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.fit.checkpoint import Checkpoint
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.problem import Subproblem
from clsvm.report import Display, FitReport, Point, Status, relative_gap
from clsvm.solvers.result import Result


@dataclass
class Worker:
    """Count the seconds and bytes of one device, or of all devices of a fit together.

    Attributes
    ----------
    progress
        progress display, or None.
    plan
        storage format of the rows on the device, None for a precomputed kernel.
    reason
        text that says why working set and row cache have their sizes.
    seconds
        seconds of each part of the work, by the part's name.
    peak
        largest number of bytes that a device had allocated at a time.
    """

    options: Options
    progress: Display | None = None
    plan: Plan | None = None
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0

    def lap(self, part: str, since: float) -> None:
        """Add the time since ``since``, a value of perf_counter(), to the seconds of a ``part`` of the work."""
        self.add_seconds({part: perf_counter() - since})

    def add_seconds(self, seconds: Mapping[str, float], times: int = 1) -> None:
        """Add the seconds that each part of the work took to the attribute ``seconds`` of this object.

        seconds: the seconds to add, by the name of the part. For example, "layout" is copying the rows to the device.
        times: number by which the seconds are divided before they are added.
        """
        for part, spent in seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent / times

    def add(self, others: Sequence[Worker]) -> None:
        """Add the work of several devices, which ran at the same time, to the counts of this object.

        The mean of the devices' seconds for each part of the work is added to the attribute ``seconds``. A part is,
        for example, "layout": copying the rows to the device. The attribute ``peak`` becomes the largest number of
        bytes that any of the devices had allocated at a time, if this number is larger than ``peak``.

        others: one Worker for each device.
        """
        for one in others:
            self.plan = self.plan or one.plan
            self.add_seconds(one.seconds, len(others))
            self.reason = one.reason or self.reason
            self.peak = max(self.peak, one.peak)


class Fitted:
    """Hold the outcome of a fit: the results of its subproblems, and the report of the fit.

    A subproblem is one or more dual problems over the same rows. If the same fit solved other subproblems earlier, the
    argument ``before`` is the Fitted object of the earlier subproblems. The report and the attributes rho, dual and
    steps begin with the earlier subproblems. The attribute ``results`` leaves the earlier subproblems out.

    Attributes
    ----------
    results
        result of each subproblem, in order, without the earlier subproblems.
    rho
        offsets of all dual problems, (problems, groups), with the earlier subproblems first. A group is the rows of a
        dual problem that have the same offset.
    dual
        dual objective of each subproblem, (subproblems,), with the earlier subproblems first.
    steps
        number of SMO iterations of each subproblem, (subproblems,), with the earlier subproblems first.
    plan
        storage format of the rows on the device, None for a precomputed kernel.
    """

    def __init__(self, results: Sequence[Result], run: Worker, seconds: float, before: Fitted | None = None) -> None:
        self.results, self.run, self.plan, self._seconds = results, run, run.plan, seconds
        none = np.zeros((0, 0))  # replaces coefficients and gradients, which the report does not need, to save memory
        self._all, self._reasons = [replace(one, b=none, f=none) for one in results], {run.reason: None}
        if before:
            self._all, self._reasons = before._all + self._all, before._reasons | self._reasons
        self.rho = np.concatenate([one.rho for one in self._all])
        self.dual, self.steps = (np.array([getattr(one, name) for one in self._all]) for name in ("dual", "steps"))

    @cached_property
    def report(self) -> FitReport:
        """Return the report of the fit."""
        run, results, seconds = self.run, self._all, self._seconds
        started, statuses = [one for one in results if one.started], dict.fromkeys(one.status for one in results)
        within = Status.GAP if Status.GAP in statuses else Status.TOLERANCE
        status = next((one for one in statuses if not one.converged), within)
        if len(started) < len(results):
            status = Status.MAX_TIME
        primal, dual = sum(one.primal for one in results), sum(one.dual for one in started)
        violation, steps = max(one.violation for one in results), sum(one.steps for one in results)
        outer, rows = sum(one.outer_steps for one in results), sum(one.rows_computed for one in results)
        gap, reason, trace = relative_gap(primal, dual), "; ".join(self._reasons), results[0].trace
        if len(results) > 1:
            trace = ()
        elif not trace:
            outer, reason = len(started), "all rows are one working set"
            trace = (Point(seconds, steps, outer, primal, dual, gap, violation, rows),)
        return FitReport(
            primal=float(primal),
            dual=float(dual),
            gap=gap,
            violation=violation,
            error_bound=max(one.error_bound for one in results),
            exact_rows=sum(one.exact_rows for one in results),
            status=status.value,
            converged=status.converged,
            steps=steps,
            outer_steps=outer,
            rows_computed=rows,
            bytes_held=run.peak,
            seconds={**run.seconds, "other": seconds - sum(run.seconds.values()), "total": seconds},
            device=" and ".join(dict.fromkeys(one.device for one in started or results)),
            layout="; ".join(sorted({one.layout for one in results} - {""})),
            working_set_size=max(one.working_set for one in results),
            dtype=min(one.dtype for one in started or results),
            trace=trace,
            selection=reason,
            layout_costs=dict(run.plan.costs) if run.plan else {},
            precision="; ".join(sorted({one.precision for one in started or results})),
        )


@dataclass
class FitContext:
    """Hold the state of a fit that all its devices share.

    Attributes
    ----------
    X
        rows (n, d), or the kernel matrix (n, n) if the kernel is precomputed.
    subproblems
        dual problems to solve, each over all rows or some of them.
    since
        perf_counter() at the start of the fit.
    run
        seconds of each part of the work and peak of memory, for all devices together.
    results
        result so far of each subproblem, by the subproblem's index.
    ended
        indices of the subproblems with a final result.
    max_batch_rows
        largest number of rows of a subproblem that the batch solver takes.
    double_rows
        the batch solver solves subproblems of at most ``double_rows`` rows in float64 at once, if they are few.
    batch_size
        number of subproblems that keep a device busy if it solves them at the same time, as a batch.
    few
        whether the fit has at most host.SEVERAL small subproblems. If so, the host may solve them more accurately than
        tol.
    shards
        whether the rows are divided among several devices, which solve each subproblem together.
    """

    X: Any
    subproblems: Sequence[Subproblem]
    kernel: Kernel | Precomputed
    options: Options
    since: float
    run: Worker
    checkpoint: Checkpoint | None
    max_batch_rows: int = 0
    double_rows: int = 0
    batch_size: int = 0
    few: bool = True
    shards: bool = False
    results: dict[int, Result] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def seconds_left(self) -> float:
        """Return the seconds until the fit reaches max_time."""
        limit = self.options.max_time
        return np.inf if limit is None else limit - (perf_counter() - self.since)

    def steps_left(self, steps: int) -> int:
        """Return how many SMO iterations a subproblem may make after ``steps`` iterations, -1 for no limit."""
        return -1 if self.options.max_iter < 0 else self.options.max_iter - steps

    def solve_settings(self, index: int) -> dict[str, Any]:
        """Return the Settings fields max_iter, max_time, save and save_every for the next solve of a subproblem.

        index: index of the subproblem.
        """
        before, left, checkpoint = self.results.get(index), self.seconds_left(), self.checkpoint
        return {
            "max_iter": self.steps_left(before.steps if before else 0),
            "max_time": None if np.isinf(left) else left,
            "save": checkpoint and partial(checkpoint.save, index),
            "save_every": self.options.checkpoint_every,
        }

    def rows(self, rows: NDArray[np.intp]) -> Any:
        """Return the rows of X with the numbers ``rows``, or the kernel values among them if X is a kernel matrix."""
        return self.X[np.ix_(rows, rows)] if isinstance(self.kernel, Precomputed) else self.X[rows]

    def store(self, index: int, result: Result, last: bool = False) -> None:
        """Store the result of the subproblem with the index ``index``.

        The result is final if the solve did not stall, or if ``last`` is true. Otherwise the subproblem is solved
        further, with kernel values in a more precise dtype.

        last: whether the device has no more precise dtype.
        """
        self.results[index] = result
        if last or result.status is not Status.STALLED:
            self.ended.add(index)
        if self.checkpoint:
            self.checkpoint.save(index, result.b, self.options.checkpoint_every)
