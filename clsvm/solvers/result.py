"""Hold the settings of a solve (:class:`Settings`) and its outcome (:class:`Result`), the same for every solver."""

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
from clsvm.report import Display, Point, Status, relative_gap

TINY = float(np.finfo(np.float64).tiny)
ROUNDING_SHARE = 0.1  # float64 rounding errors of up to this share of tol or gap_tol are accepted


@dataclass(frozen=True)
class Settings:
    """Hold the tolerances, limits, memory sizes and start of a solve.

    Attributes
    ----------
    tol
        KKT violation at which the solve ends.
    gap_tol
        relative duality gap at which the solve ends, or None.
    max_iter
        largest number of SMO iterations, -1 for no limit.
    working_set
        number of rows of a working set.
    cache_bytes
        size in bytes of the row cache, which stores rows of the kernel matrix K on the device.
    cache_after
        number of rows of K that are computed before the row cache begins to store rows.
    kernel_scale
        rounding error of a kernel value, in units of the machine epsilon of the dtype of kernel values.
    exact
        function that computes the product K b of the kernel matrix with coefficients b in float64, for given rows. None
        if the solve needs no float64 check.
    sizes
        numbers (n,) that grow with the rounding errors of a row's kernel values (Kernel.sizes). For most kernels they
        are the rows' squared norms. With these numbers, the float64 check can sample the rows with the largest errors.
    progress
        progress display, or None.
    max_time
        largest number of seconds that the solve may take, None for no limit.
    start
        feasible coefficients (problems, n) at the start; None stands for ``Problem.initial``.
    known_gradient
        pair of arrays (problems, n), or None: coefficients near ``start``, and the gradients at these coefficients. The
        solver computes the gradients at ``start`` from this pair.
    known_exact
        mask of the rows whose gradients in ``known_gradient`` come from float64 kernel values, (n,); or None.
    save
        function that stores coefficients, or None. It is called every ``save_every`` seconds and at Ctrl-C.
    reported
        whether the caller makes a report of the solve. If true, the host measures the seconds of each part of an outer
        iteration. The host also records the objectives and the KKT violation at some convergence checks, and checks the
        rounding errors of the objectives.
    """

    tol: float
    gap_tol: float | None = None
    max_iter: int = -1
    working_set: int = 0
    cache_bytes: int = 0
    cache_after: int = 0
    kernel_scale: float = 1.0
    exact: Exact | None = None
    sizes: Vector | None = None
    progress: Display | None = None
    max_time: float | None = None
    start: Vector | None = None
    known_gradient: tuple[Vector, Vector] | None = None
    known_exact: NDArray[np.bool_] | None = None
    save: Callable[[Vector], None] | None = None
    save_every: float = 60.0
    reported: bool = True


def ended(
    settings: Settings | Options, violation: float, gap: float, steps: int, until: float = np.inf
) -> Status | None:
    """Return the status with which a solve ends now, or None if it continues.

    violation: KKT violation.
    gap: relative duality gap.
    steps: SMO iterations so far.
    until: perf_counter() at which the solve's time is over.
    """
    if violation <= settings.tol:
        return Status.TOLERANCE
    if settings.gap_tol is not None and gap <= settings.gap_tol:
        return Status.GAP
    if 0 <= settings.max_iter <= steps:
        return Status.MAX_ITER
    return Status.MAX_TIME if perf_counter() >= until else None


@dataclass(frozen=True)
class Result:
    """Hold the outcome of one subproblem, from any solver.

    A subproblem is a dual problem over m rows, or the problems of all classes in Crammer and Singer's multiclass SVM.

    Attributes
    ----------
    b
        coefficients (problems, m).
    f
        gradients K b + q (problems, m), with the kernel matrix K and the linear term q.
    rho
        offsets (problems, groups). A group is the rows whose coefficients have one fixed sum, or all rows if no sum is
        fixed.
    primal
        primal objective.
    dual
        dual objective, nan if no solver began.
    violation
        KKT violation.
    steps
        SMO iterations, or steps of the active set method.
    status
        how the solve ended.
    error_bound
        largest error of f that rounding of K can have caused.
    exact_rows
        number of rows whose gradients were computed from float64 kernel values.
    working_set
        number of rows of a working set.
    dtype
        dtype of the kernel values.
    precision
        text that says how the kernel values were computed.
    device
        name of the device.
    layout
        text that names the storage format of the rows on the device.
    outer_steps
        outer iterations.
    rows_computed
        number of rows of K that were computed.
    seconds
        seconds of each part of the solve, by the part's name.
    trace
        points of the solve, each with KKT violation and objectives at a convergence check.
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
    def started(self) -> bool:
        """Return whether a solver has begun to solve the subproblem."""
        return not isnan(self.dual)

    def unfinished(self, most: int) -> bool:
        """Return whether the solve ended at its own max_iter, although the limit ``most`` allows more iterations.

        most: the caller's limit on SMO iterations, -1 for no limit.
        """
        return self.status is Status.MAX_ITER and not 0 <= most <= self.steps

    def after(self, before: Result | None) -> Result:
        """Return this result with the iterations, seconds and trace of ``before`` added.

        before: the result whose coefficients this solve started from, or None.
        """
        if before is None:
            return self
        trace = self.trace
        if before.trace:
            seconds, steps, outer, *_ = before.trace[-1]
            trace = tuple(p._replace(seconds=p.seconds + seconds, steps=p.steps + steps, outer=outer) for p in trace)
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

    def with_precision_status(self, rounding: float, settings: Settings | Options) -> Result:
        """Return the result, with a new status if float64 rounding errors may exceed a tenth of the tolerance.

        Only a solve that converged, or that stalled in float64, gets a new status. The new status is GAP if the duality
        gap is surely within gap_tol, and else PRECISION.

        rounding: number such that float64 gradients have rounding errors of at most ``rounding`` times the sum of |b|
            over the coefficients b.
        """
        tol, gap_tol, weight = settings.tol, settings.gap_tol, float(np.abs(self.b).sum(axis=1).max(initial=0.0))
        rounding_error = rounding * weight

        def unverifiable(status: Status) -> bool:
            if status is Status.GAP and gap_tol:
                return rounding_error * weight / max(abs(self.primal), TINY) > ROUNDING_SHARE * gap_tol
            return rounding_error > ROUNDING_SHARE * tol

        final = self.status is Status.STALLED and self.dtype == "float64"  # a stalled float32 solve is tried in float64
        if not (self.status in (Status.TOLERANCE, Status.GAP) or final) or not unverifiable(self.status):
            return self
        if gap_tol is not None and self.gap <= gap_tol and not unverifiable(Status.GAP):
            return replace(self, status=Status.GAP)
        return replace(self, status=Status.PRECISION, error_bound=max(self.error_bound, rounding_error))
