"""The loop of a solve by sequential minimal optimisation, wherever its rows are: one device or several shards.

An outer iteration chooses a working set, solves the dual over it and applies that (decomposition.py on one device,
sharded.py on several). At a convergence check the host reads how far the coefficients are from the optimum. When the
violation seems small enough, the rows that can decide it are evaluated again in float64; if the true violation is
larger, their f is replaced and the loop goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem
from clsvm.report import Point, Status, relative_gap
from clsvm.solvers import certificate
from clsvm.solvers.result import Result, Settings

Vector = NDArray[np.float64]
NEAR, CLOSE = 3, 0.6  # times that a violation within tol is brought towards CLOSE of it, to do without a certificate
PATIENCE = 200  # outer steps, and some more of many rows, in which neither violation nor dual need get better
CERTIFICATES = 20  # times that f is replaced before a solve counts as stalled
FEW_ROWS = 4096  # rows up to which the objectives are checked in float64 also where a solve ends short of its tolerance
GAP_ROWS = 512  # rows solved between two duality gaps, each of which takes a pass over a few numbers a row
PARTS = ("select", "subproblem", "tile", "rows", "update", "free", "gap", "exact")  # of the seconds of a solve


@dataclass(frozen=True)
class Optimality:
    """How far a solve is from its optimum, as the host reads it at a convergence check.

    least, most, inside, sums (problems, groups): extremes of the derivatives, how many coefficients are free, and the
    sum of their derivatives. violation, steps (problems,). rows: computed so far. held: whether sums of coefficients
    are held; else every row of these ``problems`` is by itself.
    """

    least: Vector
    most: Vector
    inside: NDArray[Any]
    sums: Vector
    violation: Vector
    steps: NDArray[np.int64]
    rows: int
    problems: int
    held: bool

    @property
    def worst(self) -> float:
        """Return the largest violation."""
        return float(self.violation.max())

    @property
    def rho(self) -> Vector:
        """Return the offset of each group (problems, groups)."""
        if not self.held:
            return np.zeros((self.problems, 1))
        return certificate.offsets(self.least, self.most, self.inside, self.sums)

    def point(self, seconds: float, outer: int, objectives: tuple[Vector, Vector] | None = None) -> Point:
        """Return the point of a trace, with primal and dual of the problems where they are known."""
        primal = dual = gap = float("nan")
        if objectives:
            primal, dual = (float(one.sum()) for one in objectives)
            gap = float(max(map(relative_gap, *objectives)))
        return Point(seconds, int(self.steps.sum()), outer, primal, dual, gap, self.worst, self.rows)


@dataclass
class Course:
    """What a solve remembers from one convergence check to the next.

    saved: when coefficients were saved. near: checks at which it went on within tol. steps: at the last check, -1
    after f was replaced. best: the least violation, at outer step best_at. level: of the dual.
    """

    began: float = field(default_factory=perf_counter)
    saved: float = field(default_factory=perf_counter)
    near: int = 0
    steps: int = -1
    best: float = np.inf
    best_at: int = 0
    level: float = -np.inf
    certificates: int = 0
    exact_rows: int = 0
    trace: list[Point] = field(default_factory=list)


class Loop(ABC):
    """A solve of ``problem`` over n rows with working sets of W. sync: steps between two convergence checks. dtype: of
    kernel values. until: when its time is over, by perf_counter."""

    problem: Problem
    settings: Settings
    n: int
    P: int
    W: int
    sync: int
    dtype: str

    def _begin(self) -> None:
        """Start clocks and float64 check anew."""
        s = self.settings
        self.check = certificate.Check(self.dtype, s.kernel_scale, s.exact, s.sizes, s.reported)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.until = np.inf

    @abstractmethod
    def coefficients(self) -> Vector:
        """Return b (P, n) in the caller's order."""

    @abstractmethod
    def _now(self) -> tuple[Problem, Vector, Vector]:
        """Return the problem with its numbers as the coefficients meet them, b and f (P, n), in the caller's order."""

    def found(self) -> tuple[Vector, Vector]:
        """Return b and f (P, n) in the caller's order, b within the bounds as the problem has them."""
        held, b, f = self._now()
        return self.problem.snapped(b, held.lo, held.hi), f

    @abstractmethod
    def _replace(self, f: Vector) -> None:
        """Take f (P, n), in the caller's order."""

    @abstractmethod
    def _extremes(self) -> None:
        """See how far each row is from its optimum."""

    @abstractmethod
    def _read(self) -> Optimality:
        """Return what was seen."""

    @abstractmethod
    def _step(self, outer: int) -> None:
        """Choose a working set, solve it and apply that."""

    @abstractmethod
    def _objective(self, rho: Vector) -> tuple[Vector, Vector]:
        """Return primal and dual objective of each problem at offset rho (P, groups)."""

    @abstractmethod
    def _reserve(self, state: Optimality) -> None:
        """Make room for the rows of K of the steps up to the next convergence check."""

    def _newton(self, state: Optimality, outer: int) -> bool:
        """Return whether a step over all free coefficients was better than a working set, and was done."""
        return False

    def cleared(self) -> AbstractContextManager[None]:
        """Return a context in which memory that steps need is free."""
        return nullcontext()

    def run(self) -> Result:
        """Iterate until the problem is solved, or an end is set; save the coefficients where that is interrupted."""
        try:
            return self._run()
        except KeyboardInterrupt:
            if self.settings.save:
                self.settings.save(self.coefficients())
            raise

    def _run(self) -> Result:
        outer, course, status = 0, Course(), None
        if self.settings.max_time is not None:
            self.until = course.began + self.settings.max_time
        while status is None:
            self._extremes()
            replaced = False
            if outer % self.sync == 0:
                status, replaced = self._converged(outer, course)
            if status is None and not replaced:
                self._step(outer)
                outer += 1
        if status in (Status.MAX_ITER, Status.MAX_TIME) and self.n <= FEW_ROWS:  # (of many it would take long)
            self._certified(self._read().worst, np.inf, course)
        self._extremes()
        return self._solution(status, outer, course)

    def _converged(self, outer: int, course: Course) -> tuple[Status | None, bool]:
        """Return how the solve ends, if it does, and whether f was replaced, so that the state has to be seen again."""
        s, state = self.settings, self._read()
        violation, gap = state.worst, self._watch(state, outer, course)
        close = violation <= s.tol and course.near < NEAR and not self._settled(violation)
        course.near += close
        if not close and (violation <= s.tol or (s.gap_tol is not None and gap <= s.gap_tol)):
            return self._checked(violation, course)
        if 0 <= s.max_iter <= int(state.steps.min()):
            return Status.MAX_ITER, False
        if perf_counter() >= self.until:
            return Status.MAX_TIME, False
        if s.save and perf_counter() - course.saved >= s.save_every:
            s.save(self.coefficients())
            course.saved = perf_counter()
        if self._stands_still(state, outer, course):
            return Status.STALLED, False
        course.steps = int(state.steps.sum())
        self._reserve(state)
        return None, self._newton(state, outer)

    def _checked(self, violation: float, course: Course) -> tuple[Status | None, bool]:
        """Do as :meth:`_converged` where the violation or the gap is small enough by f as it is: is it by f in
        float64?"""
        s, started = self.settings, perf_counter()
        if s.progress:
            s.progress.phase("checking in float64")
        by_tol = violation <= s.tol
        found = self._certified(violation, s.tol if by_tol else violation, course, gap=not by_tol)
        self.seconds["exact"] += perf_counter() - started
        if by_tol and found.violation <= s.tol:
            return Status.TOLERANCE, False
        if not by_tol and (not found.rows.any() or self._gap() <= (s.gap_tol or 0)):
            return Status.GAP, False
        course.certificates += 1
        if course.certificates > CERTIFICATES:
            return Status.STALLED, False
        course.steps, course.best = -1, np.inf
        return None, True

    def _certified(self, violation: float, tol: float, course: Course, gap: bool = False) -> certificate.Checked:
        """Check the state as it is in float64, and take the f that comes of it."""
        if self.check.exact is None:
            return certificate.Checked(violation, np.zeros(0, bool), np.zeros((self.P, 0)))
        with self.cleared():
            found = self.check(*self._now(), violation, tol, gap)
            if found.rows.any():
                self._replace(found.f)
        course.exact_rows += int(found.rows.sum())
        return found

    def _settled(self, violation: float) -> bool:
        """Return whether a few steps more cannot spare the float64 check, or need not: rounding of K hides too much for
        that, or nothing, or what it hides is within tol with the violation."""
        tol = self.settings.tol
        if self.check.exact is None or violation <= CLOSE * tol or self.dtype == "float64":
            return True
        hidden = 2 * self.check.hidden(self.coefficients())
        return hidden > (1 - CLOSE) * tol or hidden <= tol / 5 or violation + hidden <= tol

    def _stands_still(self, state: Optimality, outer: int, course: Course) -> bool:
        """Return whether no step changed anything, or for long neither the violation fell nor the dual rose. The
        violation may go up and down for long while the dual still rises."""
        if state.worst < 0.99 * course.best:
            course.best, course.best_at = state.worst, outer
        patience = PATIENCE + 50 * self.n // self.W
        if outer - course.best_at > patience:
            level = float(self._objective(state.rho)[1].sum())
            rises = level > course.level + 1e-9 * abs(level)
            hopeless = certificate.HOPELESS * self.settings.tol
            hidden = self.check.exact is not None and self.check.hidden(self.coefficients()) > hopeless
            course.best_at, course.level = outer, level
            if hidden or not rises:
                return True
        return bool(outer) and int(state.steps.sum()) == course.steps

    def _watch(self, state: Optimality, outer: int, course: Course) -> float:
        """Return the relative duality gap where it is wanted now, else nan; keep the trace and show progress.

        The gap is looked at by a count of steps, not by the clock: a fit ends at the same step every time.
        """
        s, now = self.settings, perf_counter() - course.began
        every = max(1, GAP_ROWS // (self.W * self.sync)) * self.sync
        wanted = s.gap_tol is not None and outer % every == 0
        # (the first second in a few dozen points)
        due = s.reported and (not course.trace or now > 1.1 * course.trace[-1].seconds + 0.02)
        point = state.point(now, outer)
        if wanted or due:
            objectives = self._objective(state.rho)
            self.seconds["gap"] += perf_counter() - course.began - now
            point = state.point(perf_counter() - course.began, outer, objectives)
        if due:
            course.trace.append(point)
        if s.progress:
            s.progress(point)
        return point.gap if wanted else float("nan")

    def _gap(self) -> float:
        """Return the relative duality gap of the state as it is now."""
        self._extremes()
        return float(max(map(relative_gap, *self._objective(self._read().rho))))

    def _optimality(self, m: Vector, M: Vector, count: NDArray[Any], sums: Vector, steps: Any, rows: int) -> Optimality:
        """Return what extremes m and M of the derivatives (P, groups) say, with how many are inside, and their sums."""
        held = self.problem.constraint not in (Constraint.NONE, Constraint.COUPLED)
        with np.errstate(invalid="ignore"):
            spread = np.where(np.isfinite(m) & np.isfinite(M), M - m, 0) if held else np.maximum(-m, M)[:, :1]
        return Optimality(m, M, count, sums, np.maximum(spread, 0).max(axis=1), steps, rows, self.P, held)

    def _objectives(self, sums: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Return primal and dual objective at rho of what extremes.cl's ``objective`` sums, (P, 3)."""
        quadratic, linear, loss = sums.T
        primal = quadratic / 2 + loss
        if self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT):
            primal -= (rho.reshape(self.P, -1) * self.problem.total).sum(axis=1)
        return primal, -(quadratic / 2 + linear)

    def _solution(self, status: Status, outer: int, course: Course) -> Result:
        state, (b, f) = self._read(), self.found()
        rho = certificate.of(self.problem, b, f).rho.reshape(self.P, -1) if state.held else state.rho
        objectives = self._objective(rho)
        course.trace.append(state.point(perf_counter() - course.began, outer, objectives))
        return Result(
            b=b,
            f=f,
            rho=rho,
            primal=float(objectives[0].sum()),
            dual=float(objectives[1].sum()),
            violation=state.worst,
            steps=int(state.steps.sum()),
            status=status,
            error_bound=self.check.hidden(b),
            exact_rows=course.exact_rows,
            outer_steps=outer,
            rows_computed=state.rows,
            working_set=self.W,
            seconds=self.seconds,
            trace=tuple(course.trace),
            dtype=self.dtype,
        )
