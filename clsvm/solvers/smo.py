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
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import Point, Status, relative_gap
from clsvm.solvers import certificate
from clsvm.solvers.result import Result, Settings, ended

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
    sum of their derivatives. steps (problems,). rows: of K, computed so far.
    """

    problem: Problem
    least: Vector
    most: Vector
    inside: NDArray[Any]
    sums: Vector
    steps: NDArray[np.int64]
    rows: int

    @property
    def held(self) -> bool:
        """Whether sums of coefficients are held; else every row is by itself."""
        return self.problem.constraint not in (Constraint.NONE, Constraint.COUPLED)

    @cached_property
    def worst(self) -> float:
        """The largest violation."""
        m, M = self.least, self.most
        with np.errstate(invalid="ignore"):
            spread = np.where(np.isfinite(m) & np.isfinite(M), M - m, 0) if self.held else np.maximum(-m, M)[:, :1]
        return float(np.maximum(spread, 0).max())

    @property
    def rho(self) -> Vector:
        """The offset of each group (problems, groups)."""
        if not self.held:
            return np.zeros((self.problem.problems, 1))
        return certificate.offsets(self.least, self.most, self.inside, self.sums)


@dataclass
class Course:
    """What a solve remembers from one convergence check to the next.

    outer: iterations so far. until: when its time is over, by perf_counter. saved: when coefficients were saved. near:
    checks at which it went on within tol. steps: at the last check, -1 after f was replaced. best: the least violation,
    at outer iteration best_at. level: of the dual.
    """

    began: float = 0.0
    until: float = np.inf
    saved: float = 0.0
    outer: int = 0
    near: int = 0
    steps: int = -1
    best: float = np.inf
    best_at: int = 0
    level: float = -np.inf
    certificates: int = 0
    exact_rows: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    trace: list[Point] = field(default_factory=list)

    def took(self, part: str, since: float) -> None:
        """Count the seconds of a part of an iteration."""
        self.seconds[part] += perf_counter() - since


class Loop(ABC):
    """A solve of ``problem`` over n rows with working sets of W. sync: iterations between two convergence checks.
    dtype: of kernel values. A subclass has :meth:`_begin` called before it computes anything."""

    problem: Problem
    settings: Settings
    n: int
    W: int
    sync: int
    dtype: str

    def _begin(self) -> None:
        """Start the float64 check and all counts anew."""
        s = self.settings
        self.check = certificate.Check(self.dtype, s.kernel_scale, s.exact, s.sizes, s.reported)
        self.course = Course()

    @abstractmethod
    def coefficients(self) -> Vector:
        """Return b (problems, n) in the caller's order."""

    @abstractmethod
    def _now(self) -> tuple[Problem, Vector, Vector]:
        """Return the problem with its numbers as the coefficients meet them, b and f, in the caller's order."""

    @abstractmethod
    def _read(self) -> Optimality:
        """Return how far the state is from its optimum."""

    @abstractmethod
    def _step(self) -> None:
        """Choose a working set, solve it and apply that."""

    @abstractmethod
    def _replace(self, f: Vector) -> None:
        """Take f (problems, n), in the caller's order."""

    @abstractmethod
    def _sums(self, rho: Vector) -> Vector:
        """Return what extremes.cl's ``objective`` sums at offsets rho (problems, groups), (problems, 3)."""

    def _between_checks(self, seen: Optimality) -> bool:
        """Make ready for the iterations up to the next check; return whether a better step than theirs was made."""
        return False

    def cleared(self) -> AbstractContextManager[None]:
        """Return a context in which memory that steps need is free."""
        return nullcontext()

    def found(self) -> tuple[Vector, Vector]:
        """Return b and f in the caller's order, b within the bounds as the problem has them."""
        held, b, f = self._now()
        return self.problem.snapped(b, held.lo, held.hi), f

    def run(self) -> Result:
        """Iterate until the problem is solved, or an end is set; save the coefficients where that is interrupted."""
        try:
            return self._run()
        except KeyboardInterrupt:
            if self.settings.save:
                self.settings.save(self.coefficients())
            raise

    def _run(self) -> Result:
        course, status, changed = self.course, None, False
        course.began = course.saved = perf_counter()
        if self.settings.max_time is not None:
            course.until = course.began + self.settings.max_time
        while True:
            if course.outer % self.sync == 0:
                status, changed = self._converged()
                if status:
                    break
            if not changed:
                self._step()
                course.outer += 1
        if status in (Status.MAX_ITER, Status.MAX_TIME) and self.n <= FEW_ROWS:  # (of many it would take long)
            self._certified(self._read().worst, np.inf)
        return self._solution(status)

    def _converged(self) -> tuple[Status | None, bool]:
        """Return how the solve ends, if it does, and whether the state was changed, so that it is to be read again."""
        s, course, seen = self.settings, self.course, self._read()
        violation, gap = seen.worst, self._watch(seen)
        if violation <= s.tol and course.near < NEAR and not self._settled(violation):
            course.near += 1
            status = ended(s, np.inf, np.inf, int(seen.steps.min()), course.until)
        else:
            status = ended(s, violation, gap, int(seen.steps.min()), course.until)
        if status and status.converged:
            return self._confirmed(status, violation)
        if status:
            return status, False
        if s.save and perf_counter() - course.saved >= s.save_every:
            s.save(self.coefficients())
            course.saved = perf_counter()
        if self._stands_still(seen):
            return Status.STALLED, False
        course.steps = int(seen.steps.sum())
        return None, self._between_checks(seen)

    def _confirmed(self, status: Status, violation: float) -> tuple[Status | None, bool]:
        """Do as :meth:`_converged` where the solve ends with ``status`` by f as it is: does it by f in float64?"""
        s, course, started = self.settings, self.course, perf_counter()
        if s.progress:
            s.progress.phase("checking in float64")
        by_tol = status is Status.TOLERANCE
        found = self._certified(violation, s.tol if by_tol else violation, gap=not by_tol)
        course.took("exact", started)
        if found.violation <= s.tol if by_tol else not found.rows.any() or self._gap() <= (s.gap_tol or 0):
            return status, False
        course.certificates += 1
        if course.certificates > CERTIFICATES:
            return Status.STALLED, False
        course.steps, course.best = -1, np.inf
        return None, True

    def _certified(self, violation: float, tol: float, gap: bool = False) -> certificate.Checked:
        """Check the state as it is in float64, and take the f that comes of it."""
        if self.check.exact is None:
            return certificate.Checked(violation, np.zeros(0, bool), np.zeros((0, 0)))
        with self.cleared():
            found = self.check(*self._now(), violation, tol, gap)
            if found.rows.any():
                self._replace(found.f)
        self.course.exact_rows += int(found.rows.sum())
        return found

    def _settled(self, violation: float) -> bool:
        """Return whether a few steps more cannot spare the float64 check, or need not: rounding of K hides too much for
        that, or nothing, or what it hides is within tol with the violation."""
        tol = self.settings.tol
        if self.check.exact is None or violation <= CLOSE * tol or self.dtype == "float64":
            return True
        hidden = 2 * self.check.hidden(self.coefficients())
        return hidden > (1 - CLOSE) * tol or hidden <= tol / 5 or violation + hidden <= tol

    def _stands_still(self, seen: Optimality) -> bool:
        """Return whether no step changed anything, or for long neither the violation fell nor the dual rose. The
        violation may go up and down for long while the dual still rises."""
        course = self.course
        if seen.worst < 0.99 * course.best:
            course.best, course.best_at = seen.worst, course.outer
        if course.outer - course.best_at > PATIENCE + 50 * self.n // self.W:
            level = float(self._objectives(seen.rho)[1].sum())
            rises = level > course.level + 1e-9 * abs(level)
            hopeless = certificate.HOPELESS * self.settings.tol
            hidden = self.check.exact is not None and self.check.hidden(self.coefficients()) > hopeless
            course.best_at, course.level = course.outer, level
            if hidden or not rises:
                return True
        return bool(course.outer) and int(seen.steps.sum()) == course.steps

    def _watch(self, seen: Optimality) -> float:
        """Return the relative duality gap where it is wanted now, else nan; keep the trace and show progress.

        The gap is looked at by a count of steps, not by the clock: a fit ends at the same step every time.
        """
        s, course, now = self.settings, self.course, perf_counter()
        every = max(1, GAP_ROWS // (self.W * self.sync)) * self.sync
        wanted = s.gap_tol is not None and course.outer % every == 0
        # (the first second in a few dozen points)
        due = s.reported and (not course.trace or now - course.began > 1.1 * course.trace[-1].seconds + 0.02)
        point = self._point(seen, self._objectives(seen.rho) if wanted or due else None)
        if wanted or due:
            course.took("gap", now)
        if due:
            course.trace.append(point)
        if s.progress:
            s.progress(point)
        return point.gap if wanted else float("nan")

    def _point(self, seen: Optimality, objectives: tuple[Vector, Vector] | None) -> Point:
        """Return the point of a trace, with primal and dual of the problems where they are known."""
        course, primal, dual, gap = self.course, *3 * (float("nan"),)
        if objectives:
            primal, dual = (float(one.sum()) for one in objectives)
            gap = float(max(map(relative_gap, *objectives)))
        steps, seconds = int(seen.steps.sum()), perf_counter() - course.began
        return Point(seconds, steps, course.outer, primal, dual, gap, seen.worst, seen.rows)

    def _gap(self) -> float:
        """Return the relative duality gap of the state as it is now."""
        return float(max(map(relative_gap, *self._objectives(self._read().rho))))

    def _objectives(self, rho: Vector) -> tuple[Vector, Vector]:
        """Return primal and dual objective of each problem at offsets rho (problems, groups)."""
        quadratic, linear, loss = self._sums(rho).T
        primal = quadratic / 2 + loss
        if self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT):
            primal -= (rho.reshape(self.problem.problems, -1) * self.problem.total).sum(axis=1)
        return primal, -(quadratic / 2 + linear)

    def _solution(self, status: Status) -> Result:
        course, seen, (b, f) = self.course, self._read(), self.found()
        rho = certificate.of(self.problem, b, f).rho.reshape(len(b), -1) if seen.held else seen.rho
        objectives = self._objectives(rho)
        course.trace.append(self._point(seen, objectives))
        return Result(
            b=b,
            f=f,
            rho=rho,
            primal=float(objectives[0].sum()),
            dual=float(objectives[1].sum()),
            violation=seen.worst,
            steps=int(seen.steps.sum()),
            status=status,
            error_bound=self.check.hidden(b),
            exact_rows=course.exact_rows,
            outer_steps=course.outer,
            rows_computed=seen.rows,
            working_set=self.W,
            seconds=course.seconds,
            trace=tuple(course.trace),
            dtype=self.dtype,
        )
