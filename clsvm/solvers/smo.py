"""Run the outer loop of sequential minimal optimisation (SMO), for rows on one device or on several.

An outer iteration chooses a working set, solves the dual over it and updates the gradients f = K b + q. Here K is the
kernel matrix, b are the coefficients, and q is the linear term of the dual. The iteration itself is in decomposition.py
for one device, and in sharded.py for several.

At a convergence check the host reads the KKT violation. If the violation is within tol, f is computed again in float64
for all rows whose rounding errors could hide a larger violation. If the violation in float64 is larger than tol, the
loop continues with the float64 values.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Problem, Vector
from clsvm.report import Point, Status, relative_gap
from clsvm.solvers import certificate
from clsvm.solvers.result import Result, Settings, ended

# A solve whose KKT violation is within tol goes on to CLOSE * tol if this makes the final check in float64 unnecessary.
# At most CLOSE_CHECKS times, a solve continues after a convergence check although its KKT violation is at most tol.
CLOSE_CHECKS, CLOSE = 3, 0.6
PATIENCE = 200  # smallest number of outer iterations without progress after which a solve counts as stalled
# A solve counts as stalled if more than MAX_CERTIFICATES float64 checks found that it has not converged.
MAX_CERTIFICATES = 20
# With at most FEW_ROWS rows, objectives are checked in float64 even if max_iter or max_time ended the solve.
FEW_ROWS = 4096
# The duality gap needs a pass over all rows. For working sets of W rows, it is computed every GAP_ROWS / W iterations.
GAP_ROWS = 512
# PARTS names the timed parts of a solve. The part "free" is the Newton steps, which change only free coefficients.
# In PARTS, "gap" is the computation of the primal and dual objectives, and "exact" is the check in float64.
PARTS = ("select", "subproblem", "tile", "rows", "update", "free", "gap", "exact")


@dataclass(frozen=True)
class Optimality:
    """Hold extremes and sums of the dual's derivatives, which the host reads at a convergence check.

    A group is a set of coefficients whose sum the constraint fixes. Each group has an offset.

    Attributes
    ----------
    least
        smallest derivative of the dual among coefficients that can rise, (groups,).
    most
        largest derivative of the dual among coefficients that can fall, (groups,).
    inside
        number of free coefficients, (groups,).
    sums
        sum of the derivatives for the free coefficients, (groups,).
    steps
        number of SMO iterations so far.
    rows
        number of rows of K that were computed so far.
    """

    problem: Problem
    least: Vector
    most: Vector
    inside: NDArray[Any]
    sums: Vector
    steps: int
    rows: int

    @cached_property
    def worst(self) -> float:
        """Return the largest KKT violation of all problems."""
        m, M, fixed = self.least, self.most, self.problem.constraint.has_offset
        with np.errstate(invalid="ignore"):
            violation = np.where(np.isfinite(m) & np.isfinite(M), M - m, 0) if fixed else np.maximum(-m, M)
        return float(np.maximum(violation, 0).max())

    @property
    def rho(self) -> Vector:
        """Return the offset of each group of coefficients with a fixed sum, or 0 if no sum is fixed."""
        if not self.problem.constraint.has_offset:
            return np.zeros((self.problem.problems, 1))
        return certificate.offsets(self.least, self.most, self.inside, self.sums)[None]


@dataclass
class History:
    """Hold the history of a solve that its convergence checks need.

    Attributes
    ----------
    began
        perf_counter() at the start.
    deadline
        perf_counter() at the time limit.
    saved
        perf_counter() when coefficients were last saved.
    outer
        outer iterations so far.
    close_checks
        number of checks at which the solve continued although the KKT violation was within tol.
    steps
        SMO iterations at the last check; -1 if a float64 check has replaced the gradients since.
    best
        smallest KKT violation so far.
    best_at
        outer iteration of the smallest violation, or of the last test for a stalled solve if that was later.
    level
        dual objective at the last test for a stalled solve.
    certificates
        number of float64 checks so far that found that the solve has not converged.
    exact_rows
        number of rows whose gradients were computed in float64.
    seconds
        seconds of each part of the solve, by the part's name.
    trace
        list of points, each with KKT violation and objectives at a convergence check.
    """

    began: float = 0.0
    deadline: float = np.inf
    saved: float = 0.0
    outer: int = 0
    close_checks: int = 0
    steps: int = -1
    best: float = np.inf
    best_at: int = 0
    level: float = -np.inf
    certificates: int = 0
    exact_rows: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    trace: list[Point] = field(default_factory=list)

    def add_seconds(self, part: str, since: float) -> None:
        """Add the time since ``since``, a value of perf_counter(), to the seconds of a ``part`` of the solve."""
        self.seconds[part] += perf_counter() - since


class Loop(ABC):
    """Solve ``problem`` over n rows with working sets of W rows. Subclasses implement the outer iterations.

    A subclass calls :meth:`_begin` before it computes anything.

    Attributes
    ----------
    sync
        outer iterations between two convergence checks.
    dtype
        dtype of kernel values.
    """

    problem: Problem
    settings: Settings
    n: int
    W: int
    sync: int
    dtype: str

    def _begin(self) -> None:
        """Reset the float64 check and the history of the solve."""
        self.check, self.history = certificate.Check(self.dtype, self.settings), History()

    @abstractmethod
    def coefficients(self) -> Vector:
        """Return the coefficients b (problems, n) in the caller's order of rows."""

    @abstractmethod
    def _now(self) -> tuple[Problem, Vector, Vector]:
        """Return the problem, its coefficients and its gradients, in the caller's order of rows.

        The bounds and the linear term of the problem are rounded as on the device, which stores them as doubles or as
        pairs of floats.
        """

    @abstractmethod
    def _read(self) -> Optimality:
        """Read from the device the numbers by which a convergence check judges the solve."""

    @abstractmethod
    def _step(self) -> None:
        """Make one outer iteration: choose a working set, solve the dual over it, and update the gradients."""

    @abstractmethod
    def _replace(self, f: Vector) -> None:
        """Replace the gradients by f (problems, n), in the caller's order of rows."""

    @abstractmethod
    def _sums(self, rho: Vector) -> Vector:
        """Return three sums (3,) for the objectives: b'Kb, q'b + epsilon * sum |b|, and the sum of all rows' losses.

        b are the coefficients, K is the kernel matrix, and q the linear term of the dual.

        rho: offsets (problems, groups) at which the losses are computed. A group is the rows that have the same offset.
        """

    def _between_checks(self, optimality: Optimality) -> bool:
        """Do the work of a subclass between a convergence check and the next outer iteration.

        A subclass may reserve memory for the row cache, compute rows of the kernel matrix in advance, and make a Newton
        step. Return whether a Newton step was made. The base method does nothing.
        """
        return False

    def cleared(self) -> AbstractContextManager[None]:
        """Return a context manager for a ``with`` statement whose body needs much device memory.

        Before the body runs, the context manager may free device buffers of the solver. After the body, the context
        manager allocates these buffers again.
        """
        return nullcontext()

    def run(self) -> Result:
        """Iterate until the solve ends, and return the result.

        On Ctrl-C, save the coefficients if ``settings.save`` is given, and raise KeyboardInterrupt.
        """
        try:
            return self._run()
        except KeyboardInterrupt:
            if self.settings.save:
                self.settings.save(self.coefficients())
            raise

    def _run(self) -> Result:
        history, status, changed = self.history, None, False
        history.began = history.saved = perf_counter()
        if self.settings.max_time is not None:
            history.deadline = history.began + self.settings.max_time
        while True:
            if history.outer % self.sync == 0:
                status, changed = self._converged()
                if status:
                    break
            if not changed:
                self._step()
                history.outer += 1
        # If max_iter or max_time ended the solve, only problems of at most FEW_ROWS rows are checked in float64. With
        # more rows, a check takes long.
        if status in (Status.MAX_ITER, Status.MAX_TIME) and self.n <= FEW_ROWS:
            self._check_float64(self._read().worst, np.inf)
        return self._result(status)

    def _converged(self) -> tuple[Status | None, bool]:
        """Check convergence. Return the status (None if the solve continues), and whether the state changed.

        The state changes if a float64 check replaced gradients, or if a Newton step was made. Convergence is then
        checked again before the next outer iteration.
        """
        s, history, optimality = self.settings, self.history, self._read()
        violation, gap = optimality.worst, self._record_check(optimality)
        if violation <= s.tol and history.close_checks < CLOSE_CHECKS and not self._close_enough(violation):
            history.close_checks += 1
            violation = gap = np.inf
        status = ended(s, violation, gap, optimality.steps, history.deadline)
        if status and status.converged:
            return self._confirm(status, violation)
        if status:
            return status, False
        if s.save and perf_counter() - history.saved >= s.save_every:
            s.save(self.coefficients())
            history.saved = perf_counter()
        if self._stalled(optimality):
            return Status.STALLED, False
        history.steps = optimality.steps
        return None, self._between_checks(optimality)

    def _confirm(self, status: Status, violation: float) -> tuple[Status | None, bool]:
        """Check in float64 whether a solve that ended with ``status`` in its own dtype has converged.

        Return a pair: the status with which the solve ends, and whether the solve must continue. If the solve has
        converged, the pair is (status, False). Otherwise the solve continues from the gradients that the check computed
        in float64, and the pair is (None, True). If more than MAX_CERTIFICATES checks have found that the solve has not
        converged, it ends, and the pair is (STALLED, False).

        violation: KKT violation before the check.
        """
        s, history, started = self.settings, self.history, perf_counter()
        if s.progress:
            s.progress.phase("checking in float64")
        by_tol = status is Status.TOLERANCE
        check = self._check_float64(violation, s.tol if by_tol else violation, gap=not by_tol)
        history.add_seconds("exact", started)
        if check.violation <= s.tol if by_tol else not check.rows.any():
            return status, False
        if not by_tol and relative_gap(*self._objectives(self._read().rho)) <= (s.gap_tol or 0):
            return status, False
        history.certificates += 1
        if history.certificates > MAX_CERTIFICATES:
            return Status.STALLED, False
        history.steps, history.best = -1, np.inf
        return None, True

    def _check_float64(self, violation: float, tol: float, gap: bool = False) -> certificate.CheckResult:
        """Check the coefficients and gradients in float64, and return the result of the check.

        The check computes the gradients of some rows again in float64. The float64 values replace the old ones.

        violation: KKT violation before the check.
        tol: KKT violation to reach.
        gap: whether the duality gap may end the solve.
        """
        if self.check.exact is None:
            return certificate.CheckResult(violation, np.zeros(0, bool), np.zeros((0, 0)))
        with self.cleared():
            check = self.check(*self._now(), violation, tol, gap)
            if check.rows.any():
                self._replace(check.f)
        self.history.exact_rows += int(check.rows.sum())
        return check

    def _close_enough(self, violation: float) -> bool:
        """Return whether a solve shall end now. Its KKT violation ``violation`` is at most tol.

        Rounding errors of float32 kernel values may change the KKT violation by up to a number, here called ``error``.
        A solve that ends now needs a check in float64 if error > 0.2 * tol and violation + error > tol. A solve that
        first continues to a violation of 0.6 * tol needs no check if error <= 0.4 * tol.

        Return False if a check is needed now, but would not be needed at 0.6 * tol. The solve then continues. Otherwise
        return True. Also return True if kernel values are float64, or if the solve has no checks in float64.
        """
        tol = self.settings.tol
        if self.check.exact is None or violation <= CLOSE * tol or self.dtype == "float64":
            return True
        error = 2 * self.check.error_bound(self.coefficients())
        return error > (1 - CLOSE) * tol or error <= tol / 5 or violation + error <= tol

    def _stalled(self, optimality: Optimality) -> bool:
        """Return whether the solve has stalled.

        A solve has stalled if no SMO iteration was made since the previous check. If the KKT violation has not fallen
        for many outer iterations, the solve has also stalled in two cases: the dual objective has not risen, or
        rounding may change the gradients by more than 100 * tol.
        """
        history = self.history
        if optimality.worst < 0.99 * history.best:
            history.best, history.best_at = optimality.worst, history.outer
        if history.outer - history.best_at > PATIENCE + 50 * self.n // self.W:
            level = self._objectives(optimality.rho)[1]
            rises = level > history.level + 1e-9 * abs(level)
            insufficient = certificate.INSUFFICIENT * self.settings.tol
            imprecise = self.check.exact is not None and self.check.error_bound(self.coefficients()) > insufficient
            history.best_at, history.level = history.outer, level
            if imprecise or not rises:
                return True
        return bool(history.outer) and optimality.steps == history.steps

    def _record_check(self, optimality: Optimality) -> float:
        """Record a convergence check for the report and the progress display. Return the relative duality gap or nan.

        The caller ends the solve if the returned gap is at most ``gap_tol``. The gap is returned if ``gap_tol`` is
        given and the number of outer iterations is a multiple of a constant. Otherwise nan is returned, even if the gap
        was computed for the report. So a repeated fit ends at the same outer iteration.
        """
        s, history, now = self.settings, self.history, perf_counter()
        every = max(1, GAP_ROWS // (self.W * self.sync)) * self.sync
        wanted = s.gap_tol is not None and history.outer % every == 0
        # If the trace's last point is t seconds after the start, the next is more than 1.1 * t + 0.02 after the start.
        traced = s.reported and (not history.trace or now - history.began > 1.1 * history.trace[-1].seconds + 0.02)
        point = self._point(optimality, self._objectives(optimality.rho) if wanted or traced else None)
        if wanted or traced:
            history.add_seconds("gap", now)
        if traced:
            history.trace.append(point)
        if s.progress:
            s.progress(point)
        return point.gap if wanted else float("nan")

    def _point(self, optimality: Optimality, objectives: tuple[float, float] | None) -> Point:
        """Return the point of the trace at a convergence check.

        optimality: state of the solve at the check.
        objectives: primal and dual objective, or None if they were not computed.
        """
        history, primal, dual, gap = self.history, *3 * (float("nan"),)
        if objectives:
            (primal, dual), gap = objectives, relative_gap(*objectives)
        seconds = perf_counter() - history.began
        return Point(seconds, optimality.steps, history.outer, primal, dual, gap, optimality.worst, optimality.rows)

    def _objectives(self, rho: Vector) -> tuple[float, float]:
        """Return the primal and the dual objective at the offsets rho (problems, groups).

        A group is the rows that have the same offset.
        """
        quadratic, linear, loss = self._sums(rho).tolist()
        primal = quadratic / 2 + loss
        if self.problem.constraint.has_offset:
            primal -= float((rho * self.problem.total).sum())
        return primal, -(quadratic / 2 + linear)

    def _result(self, status: Status) -> Result:
        history, optimality, (problem, b, f) = self.history, self._read(), self._now()
        b = self.problem.snapped(b, problem.lo, problem.hi)
        fixed = self.problem.constraint.has_offset
        rho = certificate.of(self.problem, b, f).rho.reshape(len(b), -1) if fixed else optimality.rho
        primal, dual = self._objectives(rho)
        history.trace.append(self._point(optimality, (primal, dual)))
        return Result(
            b=b,
            f=f,
            rho=rho,
            primal=primal,
            dual=dual,
            violation=optimality.worst,
            steps=optimality.steps,
            status=status,
            error_bound=self.check.error_bound(b),
            exact_rows=history.exact_rows,
            outer_steps=history.outer,
            rows_computed=optimality.rows,
            working_set=self.W,
            seconds=history.seconds,
            trace=tuple(history.trace),
            dtype=self.dtype,
        )
