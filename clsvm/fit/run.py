"""What the subproblems of a fit have in common, what became of each, and the one report of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.fit.checkpoint import Checkpoint
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.problem import Subproblem
from clsvm.report import FitReport, Point, Progress, Status, relative_gap
from clsvm.solvers import Result

Vector = NDArray[np.float64]


@dataclass
class RunInfo:
    """How and where subproblems were solved: what a report says beside their results.

    plan: the layout of the rows, None for kernel values that are given. reason: why working set and row cache have
    their sizes, in words. seconds: by part of the work. peak: the most bytes that a device held.
    """

    plan: Plan | None = None
    reason: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0

    def lap(self, part: str, since: float) -> None:
        """Count the seconds since perf_counter() was ``since``."""
        self.took({part: perf_counter() - since})

    def took(self, seconds: Mapping[str, float], times: int = 1) -> None:
        """Count seconds of parts, a share of one in ``times``."""
        for part, spent in seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + spent / times

    def add(self, others: Sequence[RunInfo]) -> None:
        """Add what some devices did at the same time; their seconds are the mean."""
        for one in others:
            self.plan = self.plan or one.plan
            self.took(one.seconds, len(others))
            self.reason = one.reason or self.reason
            self.peak = max(self.peak, one.peak)


@dataclass(frozen=True)
class Fitted:
    """What a fit comes to: a result for each subproblem, in order, how they were found, and seconds in all."""

    results: Sequence[Result]
    run: RunInfo
    seconds: float

    @classmethod
    def joined(cls, fits: Sequence[Fitted], seconds: float) -> Fitted:
        """Return fits of further subproblems over the same rows, one after another, as one that took ``seconds``."""
        run = RunInfo()
        for one in fits:
            run.add([one.run])
        run.reason = "; ".join(dict.fromkeys(one.run.reason for one in fits))
        return cls([result for one in fits for result in one.results], run, seconds)

    def without_coefficients(self) -> Fitted:
        """Return the same, but for the largest arrays."""
        none = np.zeros((0, 0))
        return replace(self, results=[replace(one, b=none, f=none) for one in self.results])

    @property
    def plan(self) -> Plan | None:
        """The layout of the rows, None for kernel values that are given."""
        return self.run.plan

    @property
    def rho(self) -> Vector:
        """The offsets (problems, groups)."""
        return np.concatenate([one.rho for one in self.results])

    @property
    def dual(self) -> Vector:
        """The dual objective of each subproblem."""
        return np.array([one.dual for one in self.results])

    @property
    def steps(self) -> NDArray[np.int64]:
        """The SMO iterations of each subproblem."""
        return np.array([one.steps for one in self.results], np.int64)

    @cached_property
    def report(self) -> FitReport:
        """The report of the fit."""
        results, run = self.results, self.run
        begun = [one for one in results if one.begun]
        known = begun or results
        status = Status.MAX_TIME if len(begun) < len(results) else _status(results)
        primal, dual = float(sum(one.primal for one in results)), float(sum(one.dual for one in begun))
        gap, violation = relative_gap(primal, dual), max(one.violation for one in results)
        steps, rows = sum(one.steps for one in results), sum(one.rows_computed for one in results)
        outer, trace = sum(one.outer_steps for one in results), results[0].trace if len(results) == 1 else ()
        reason = run.reason
        if len(results) == 1 and not trace:
            outer, reason = len(begun), "all rows are one working set"
            trace = (Point(self.seconds, steps, outer, primal, dual, gap, violation, rows),)
        return FitReport(
            primal=primal,
            dual=dual,
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
            seconds={**run.seconds, "other": self.seconds - sum(run.seconds.values()), "total": self.seconds},
            device=" and ".join(dict.fromkeys(one.device for one in known)),
            layout="; ".join(sorted({one.layout for one in results} - {""})),
            working_set_size=max(one.working_set for one in results),
            dtype=min(one.dtype for one in known),
            trace=trace,
            selection=reason,
            layout_costs=run.plan.costs if run.plan else {},
            precision="; ".join(sorted({one.precision for one in known})),
        )


def _status(results: Sequence[Result]) -> Status:
    """Return how a fit ended: as the first subproblem that did not converge, if there is one."""
    statuses = [one.status for one in results]
    within = Status.GAP if Status.GAP in statuses else Status.TOLERANCE
    return next((one for one in statuses if not one.converged), within)


@dataclass
class FitContext:
    """What all devices that work on a fit have in common.

    X: rows (n, d), or K (n, n) of a precomputed kernel. since: perf_counter() at which the fit began. results: by the
    places of the subproblems, so far. ended: places for which nothing more is done. recalled: places that the
    checkpoint has solved, if there is one. whole: rows of a subproblem up to which a device takes it whole.
    shards: whether rows are in shards, over which every subproblem is solved.
    """

    X: Any
    subproblems: Sequence[Subproblem]
    kernel: Kernel | Precomputed
    options: Options
    since: float
    checkpoint: Checkpoint | None = None
    results: dict[int, Result] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    recalled: frozenset[int] = frozenset()
    whole: int = 0
    shards: bool = False

    def __post_init__(self) -> None:
        solved = dict(self.checkpoint.solved) if self.checkpoint else {}
        self.results |= solved
        self.ended |= set(solved)
        self.recalled = frozenset(solved)

    def left(self) -> float:
        """Return the seconds that are left."""
        limit = self.options.max_time
        return np.inf if limit is None else limit - (perf_counter() - self.since)

    def steps_left(self, steps: int) -> int:
        """Return how many steps more a subproblem may take after ``steps``, -1 for no limit."""
        return -1 if self.options.max_iter < 0 else self.options.max_iter - steps

    def rows(self, rows: NDArray[np.intp]) -> Any:
        """Return some rows, or the kernel values between them."""
        return self.X[np.ix_(rows, rows)] if isinstance(self.kernel, Precomputed) else self.X[rows]

    def forget(self, places: Iterable[int]) -> None:
        """Begin subproblems again."""
        for place in set(places) - self.recalled:
            self.results.pop(place, None)
            self.ended.discard(place)

    def save(self, place: int) -> Callable[[Vector], None] | None:
        """Return a function that keeps coefficients of a subproblem, None where no checkpoint is asked for."""
        return None if self.checkpoint is None else partial(self.checkpoint.save, place)

    def found(self, place: int, result: Result, last: bool = False) -> None:
        """Take the result of a subproblem, after which it may go on in a finer dtype unless this was the last one."""
        self.results[place] = result
        if last or result.status is not Status.STALLED:
            self.ended.add(place)
        if self.checkpoint:
            self.checkpoint.ended(place, result)


class Worker(NamedTuple):
    """A device, by the options of what is solved there, and what it did; progress: what is told of it."""

    options: Options
    run: RunInfo
    progress: Progress | None
