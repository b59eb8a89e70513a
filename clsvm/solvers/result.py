"""What a solve is asked, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isnan
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.exact import Exact
from clsvm.parameters import Options
from clsvm.problem import Vector
from clsvm.report import Point, Progress, Status, relative_gap

TINY = float(np.finfo(np.float64).tiny)
HIDDEN = 0.1  # share of a tolerance that rounding in float64 may hide


@dataclass(frozen=True)
class Settings:
    """What one solve is asked.

    max_iter: SMO iterations, -1 for no limit. max_time: seconds, None for no limit. cache_bytes: of the row cache.
    kernel_scale: the rounding error of K in units of its dtype's eps. exact: computes K b of rows in float64; None
    where K is exact enough as it is. sizes: of rows (n,), by which the float64 check draws a sample of them.
    start: feasible coefficients (problems, n) to begin with. known: coefficients near those, and the f of them. looked:
    rows (n,) whose known f is of kernel values in float64.
    save: called with the coefficients at least ``save_every`` seconds apart, and where the solve is interrupted.
    reported: whether a report follows. The host then waits for each part of an outer iteration to count its seconds,
    keeps a trace, and checks the rounding of objectives.
    """

    tol: float
    gap_tol: float | None = None
    max_iter: int = -1
    working_set: int = 0
    cache_bytes: int = 0
    kernel_scale: float = 1.0
    exact: Exact | None = None
    sizes: Vector | None = None
    progress: Progress | None = None
    max_time: float | None = None
    start: Vector | None = None
    known: tuple[Vector, Vector] | None = None
    looked: NDArray[np.bool_] | None = None
    save: Callable[[Vector], None] | None = None
    save_every: float = 60.0
    reported: bool = True


def ended(asked: Settings | Options, violation: float, gap: float, steps: int, until: float = np.inf) -> Status | None:
    """Return how a solve ends that stands there after so many steps, None where it goes on. until: when its time is
    over, by perf_counter."""
    if violation <= asked.tol:
        return Status.TOLERANCE
    if asked.gap_tol is not None and gap <= asked.gap_tol:
        return Status.GAP
    if 0 <= asked.max_iter <= steps:
        return Status.MAX_ITER
    return Status.MAX_TIME if perf_counter() >= until else None


@dataclass(frozen=True)
class Result:
    """What a solve of a subproblem comes to, whichever solver made it.

    b: coefficients (problems, m). f: gradients K b + q (problems, m). rho: offsets (problems, groups). primal, dual:
    objectives, nan for the dual of a subproblem that was not begun. violation: KKT violation. steps: SMO iterations, or
    steps of the active set. error_bound: largest error of f that rounding of K can have caused. exact_rows: rows whose
    f comes from kernel values in float64. dtype, precision, device, layout: of the kernel values that say so, in words.
    working_set: its size. seconds: by part of the solve.
    """

    b: Vector
    f: Vector
    rho: Vector
    primal: float
    dual: float
    violation: float
    steps: int
    status: Status
    error_bound: float
    exact_rows: int
    working_set: int
    dtype: str
    outer_steps: int = 0
    rows_computed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    trace: tuple[Point, ...] = ()
    precision: str = ""
    device: str = ""
    layout: str = ""

    @property
    def gap(self) -> float:
        return relative_gap(self.primal, self.dual)

    @property
    def begun(self) -> bool:
        """Whether a solver has taken the subproblem."""
        return not isnan(self.dual)

    def unfinished(self, most: int) -> bool:
        """Whether the solve took all steps that it was given, but not the ``most`` that it may, -1 for no limit."""
        return self.status is Status.MAX_ITER and not 0 <= most <= self.steps

    def after(self, before: Result | None) -> Result:
        """Return this result with what it took to come to ``before``, where it began."""
        if before is None:
            return self
        last, trace = before.trace[-1] if before.trace else None, self.trace
        if last:
            trace = tuple(
                p._replace(seconds=p.seconds + last.seconds, steps=p.steps + last.steps, outer=last.outer)
                for p in self.trace
            )
        parts = {*before.seconds, *self.seconds}
        return replace(
            self,
            steps=self.steps + before.steps,
            outer_steps=self.outer_steps + before.outer_steps,
            rows_computed=self.rows_computed + before.rows_computed,
            working_set=before.working_set,
            seconds={part: before.seconds.get(part, 0.0) + self.seconds.get(part, 0.0) for part in parts},
            trace=(*before.trace, *trace),
        )

    def certain(self, rounding: float, tol: float, gap_tol: float | None) -> Result:
        """Return the result with a status that says so where rounding in float64 itself, ``rounding`` for a coefficient
        1, can hide a tenth of the tolerance or more."""
        weight = float(np.abs(self.b).sum(axis=1).max(initial=0.0))
        hidden = rounding * weight

        def doubtful(status: Status) -> bool:
            if status is Status.GAP and gap_tol:
                return hidden * weight / max(abs(self.primal), TINY) > HIDDEN * gap_tol
            return hidden > HIDDEN * tol

        final = self.status is Status.STALLED and self.dtype == "float64"  # (else there is float64 to try)
        if not (self.status in (Status.TOLERANCE, Status.GAP) or final) or not doubtful(self.status):
            return self
        if gap_tol is not None and self.gap <= gap_tol and not doubtful(Status.GAP):
            return replace(self, status=Status.GAP)
        return replace(self, status=Status.PRECISION, error_bound=max(self.error_bound, hidden))
