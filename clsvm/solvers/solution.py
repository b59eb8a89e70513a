"""What a solve is asked, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clsvm.report import Point, Progress, Status
from clsvm.solvers.certificate import Exact

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """Numbers of a solve. max_iter: steps, -1 for no limit. max_time: seconds, None for no limit. cache_bytes: of the
    row cache. kernel_scale: the rounding error of K in units of its dtype's eps. exact: see module; None where K is
    exact enough as it is. sizes: of rows (n,), by which a sample of them is taken (certificate.certified). start:
    feasible coefficients (problems, n) to begin with; known: coefficients near those and the f of them; looked: the
    rows (n,) of which that f is of kernel values in float64. save: called with the coefficients at least ``save_every``
    seconds apart, and where the solve is interrupted. reported: whether somebody is told of seconds by part, for which
    the host waits more often, of a trace, and of objectives, whose rounding is looked at."""

    tol: float
    gap_tol: float | None
    max_iter: int
    working_set: int
    cache_bytes: int
    kernel_scale: float
    exact: Exact | None
    sizes: Vector | None = None
    progress: Progress | None = None
    max_time: float | None = None
    start: Vector | None = None
    known: tuple[Vector, Vector] | None = None
    looked: NDArray[np.bool_] | None = None
    save: Callable[[Vector], None] | None = None
    save_every: float = 60.0
    reported: bool = True


@dataclass(frozen=True)
class Solution:
    """b, f (problems, n), rho (problems, groups) and primal, dual, violation, steps (problems,), float64. dtype: of the
    kernel values that f is of."""

    b: Vector
    f: Vector
    rho: Vector
    primal: Vector
    dual: Vector
    violation: Vector
    steps: NDArray[np.int64]
    status: Status
    error_bound: float
    exact_rows: int
    outer_steps: int
    rows_computed: int
    working_set: int
    seconds: dict[str, float]
    trace: tuple[Point, ...]
    dtype: str

    def after(self, before: Solution) -> Solution:
        """This solution, with what it cost to come to ``before``, where it began."""
        last = before.trace[-1] if before.trace else None
        later = (
            [
                p._replace(seconds=p.seconds + last.seconds, steps=p.steps + last.steps, outer=last.outer)
                for p in self.trace
            ]
            if last
            else list(self.trace)
        )
        parts = {*before.seconds, *self.seconds}
        return replace(
            self,
            steps=self.steps + before.steps,
            outer_steps=self.outer_steps + before.outer_steps,
            rows_computed=self.rows_computed + before.rows_computed,
            working_set=before.working_set,
            seconds={part: before.seconds.get(part, 0.0) + self.seconds.get(part, 0.0) for part in parts},
            trace=(*before.trace, *later),
        )
