"""The loop of a solve by decomposition, wherever its rows are: when it looks, by what it ends, what it reports.

A step chooses a working set, solves the dual over it and applies that (decomposition.py on one device, sharded.py on
several). When the violation seems small enough, the rows that can decide it are evaluated again in float64; if the true
violation is larger, their f is replaced and the loop goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.problem import Constraint, Problem
from clsvm.report import Point, Status, relative_gap
from clsvm.solvers import certificate
from clsvm.solvers.solution import Settings, Solution

Vector = NDArray[np.float64]
NEAR, CLOSE = 3, 0.6  # times that a violation within tol is brought towards CLOSE of it, to do without a certificate
PATIENCE = 200  # outer steps, and some more of many rows, in which neither violation nor dual need get better
CERTIFICATES = 20  # times that f is replaced before a solve counts as stalled
FEW_ROWS = 4096  # of which the objectives are checked in float64 also where a solve ends short of its tolerance
GAP_ROWS = 512  # rows solved between two looks at the duality gap, which take a pass over a few numbers a row
PARTS = (
    "select",
    "subproblem",
    "tile",
    "rows",
    "update",
    "free",
    "gap",
    "exact",
)  # of a solve, which seconds are told of


@dataclass(frozen=True)
class Look:
    """What the host reads back: extremes of the derivatives, how many coefficients are free, and the sum of their
    derivatives (problems, groups); violation, steps (problems,), and rows computed."""

    least: Vector
    most: Vector
    inside: NDArray[Any]
    sums: Vector
    violation: Vector
    steps: NDArray[np.int64]
    rows: int
    problems: int
    held: bool  # whether sums of coefficients are; else every row is by itself

    @property
    def free(self) -> int:
        """How many coefficients are."""
        return int(self.inside.sum())

    @property
    def rho(self) -> Vector:
        """The offset of each group (problems, groups)."""
        if not self.held:
            return np.zeros((self.problems, 1))
        return certificate.offsets(self.least, self.most, self.inside, self.sums)

    def point(self, seconds: float, outer: int, primal: Vector, dual: Vector) -> Point:
        """The point of a trace, with the objectives of the problems."""
        gap, violation = float(max(map(relative_gap, primal, dual))), float(self.violation.max())
        totals = float(primal.sum()), float(dual.sum())
        return Point(seconds, int(self.steps.sum()), outer, *totals, gap, violation, self.rows)


@dataclass
class Course:
    """What a solve remembers from one look to the next. steps: at the last one, -1 after f was replaced; near: looks at
    which it went on within tol; best: the least violation, at outer step best_at; level: of the dual."""

    began: float
    saved: float = 0.0
    near: int = 0
    steps: int = -1
    best: float = np.inf
    best_at: int = 0
    level: float = -np.inf
    certificates: int = 0
    exact_rows: int = 0


class Loop(ABC):
    """A solve of ``problem`` over n rows with working sets of W. sync: steps between two looks. dtype: of kernel
    values. until: when its time is over, by perf_counter."""

    problem: Problem
    settings: Settings
    n: int
    P: int
    W: int
    sync: int
    dtype: str

    def _begin(self) -> None:
        """Nothing was done yet."""
        self.rounding = certificate.Rounding(self.dtype, self.settings.kernel_scale, self.settings.sizes)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.trace: list[Point] = []
        self.until = np.inf

    @abstractmethod
    def coefficients(self) -> Vector:
        """b (P, n) in the caller's order."""

    @abstractmethod
    def found(self) -> tuple[Vector, Vector]:
        """b and f (P, n) in the caller's order, b within the bounds as the problem has them."""

    @abstractmethod
    def _extremes(self) -> None:
        """See how far each row is from its optimum."""

    @abstractmethod
    def _read(self) -> Look:
        """What was seen."""

    @abstractmethod
    def _step(self, outer: int) -> None:
        """One working set: choose, solve, apply."""

    @abstractmethod
    def _objective(self, rho: Vector) -> tuple[Vector, Vector]:
        """Primal and dual objective of each problem at offset rho (P, groups)."""

    @abstractmethod
    def _certified(self, violation: float, tol: float, gap: bool = False) -> tuple[float, int]:
        """certificate.certified of the state as it is, whose f is then replaced."""

    @abstractmethod
    def _reserve(self, look: Look) -> None:
        """Make room for the rows of K of the steps up to the next look."""

    def _seen(self, m: Vector, M: Vector, count: NDArray[Any], sums: Vector, steps: Any, rows: int) -> Look:
        """What the extremes m and M of the derivatives (P, groups) say, with how many are inside, and their sums."""
        held = self.problem.constraint not in (Constraint.NONE, Constraint.COUPLED)
        with np.errstate(invalid="ignore"):
            spread = np.where(np.isfinite(m) & np.isfinite(M), M - m, 0) if held else np.maximum(-m, M)[:, :1]
        return Look(m, M, count, sums, np.maximum(spread, 0).max(axis=1), steps, rows, self.P, held)

    def _objectives(self, sums: Vector, rho: Vector) -> tuple[Vector, Vector]:
        """Primal and dual objective at rho of what extremes.cl's ``objective`` sums, (P, 3)."""
        quadratic, linear, loss = sums.T
        primal = quadratic / 2 + loss
        if self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT):
            primal -= (rho.reshape(self.P, -1) * self.problem.total).sum(axis=1)
        return primal, -(quadratic / 2 + linear)

    def bound(self, b: Vector) -> float:
        """What rounding of the kernel values can have done to f at most, for coefficients b (problems, rows)."""
        return certificate.rounding(b, self.dtype, self.settings.kernel_scale)

    def run(self) -> Solution:
        try:
            return self._run()
        except KeyboardInterrupt:
            if self.settings.save:
                self.settings.save(self.coefficients())
            raise

    def _run(self) -> Solution:
        outer, course = 0, Course(perf_counter(), perf_counter())
        status: Status | None = None
        if self.settings.max_time is not None:
            self.until = course.began + self.settings.max_time
        while status is None:
            self._extremes()
            replaced = False
            if outer % self.sync == 0:
                status, replaced = self._look(outer, course)
            if status is None and not replaced:
                self._step(outer)
                outer += 1
        if status in (Status.MAX_ITER, Status.MAX_TIME) and self.n <= FEW_ROWS:  # (of many it would take long)
            worst = float(self._read().violation.max())
            course.exact_rows += self._certified(worst, np.inf)[1]
        self._extremes()
        return self._solution(status, outer, course)

    def _look(self, outer: int, course: Course) -> tuple[Status | None, bool]:
        """(how the solve ends, if it does; whether f was replaced, so that the state is to be looked at again)."""
        s, look = self.settings, self._read()
        violation, gap = float(look.violation.max()), self._watch(look, outer, course.began)
        close = violation <= s.tol and course.near < NEAR and not self._sure(violation)
        course.near += close
        if not close and (violation <= s.tol or (s.gap_tol is not None and gap <= s.gap_tol)):
            return self._checked(look, violation, course)
        if 0 <= s.max_iter <= int(look.steps.min()):
            return Status.MAX_ITER, False
        if perf_counter() >= self.until:
            return Status.MAX_TIME, False
        if s.save and perf_counter() - course.saved >= s.save_every:
            s.save(self.coefficients())
            course.saved = perf_counter()
        if self._stands_still(look, outer, violation, course):
            return Status.STALLED, False
        course.steps = int(look.steps.sum())
        self._reserve(look)
        return None, self._leapt(look, outer)

    def _leapt(self, look: Look, outer: int) -> bool:
        """Whether something better than a working set was found, and done."""
        return False

    def _checked(self, look: Look, violation: float, course: Course) -> tuple[Status | None, bool]:
        """:meth:`_look` where the violation or the gap is small enough by f as it is: is it by f in float64?"""
        s, started = self.settings, perf_counter()
        if s.progress:
            s.progress.phase("checking in float64")
        by_tol = violation <= s.tol
        tol = s.tol if by_tol else violation
        worst, evaluated = self._certified(violation, tol, gap=not by_tol)
        self.seconds["exact"] += perf_counter() - started
        course.exact_rows += evaluated
        if by_tol and worst <= s.tol:
            return Status.TOLERANCE, False
        if not by_tol and (not evaluated or self._gap() <= (s.gap_tol or 0)):
            return Status.GAP, False
        course.certificates += 1
        if course.certificates > CERTIFICATES:
            return Status.STALLED, False
        course.steps, course.best = -1, np.inf
        return None, True

    def _stands_still(self, look: Look, outer: int, violation: float, course: Course) -> bool:
        """Whether no step changed anything, or for long neither the violation fell nor the dual rose. The violation may
        go up and down for long while the dual still rises."""
        s = self.settings
        if violation < 0.99 * course.best:
            course.best, course.best_at = violation, outer
        patience = PATIENCE + 50 * self.n // self.W
        if outer - course.best_at > patience:
            level = float(self._objective(look.rho)[1].sum())
            rises = level > course.level + 1e-9 * abs(level)
            hidden = s.exact is not None and self._hidden() > certificate.HOPELESS * s.tol
            course.best_at, course.level = outer, level
            if hidden or not rises:
                return True
        return bool(outer) and int(look.steps.sum()) == course.steps

    def _solution(self, status: Status, outer: int, course: Course) -> Solution:
        look = self._read()
        b, f = self.found()
        held = self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT)
        rho = certificate.of(self.problem, b, f).rho.reshape(self.P, -1) if held else look.rho
        primal, dual = self._objective(rho)
        self.trace.append(look.point(perf_counter() - course.began, outer, primal, dual))
        return Solution(
            b=b,
            f=f,
            rho=rho,
            primal=primal,
            dual=dual,
            violation=look.violation,
            steps=look.steps,
            status=status,
            error_bound=self.bound(b),
            exact_rows=course.exact_rows,
            outer_steps=outer,
            rows_computed=look.rows,
            working_set=self.W,
            seconds=self.seconds,
            trace=tuple(self.trace),
            dtype=self.dtype,
        )

    def _watch(self, look: Look, outer: int, began: float) -> float:
        """The relative duality gap where it is wanted now (else nan); keeps the trace, shows progress.

        The gap is looked at by a count of steps, not by the clock: a fit ends at the same step every time.
        """
        s, now = self.settings, perf_counter() - began
        every = max(1, GAP_ROWS // (self.W * self.sync)) * self.sync
        wanted = s.gap_tol is not None and outer % every == 0
        # (the first second in a few dozen points)
        due = s.reported and (not self.trace or now > 1.1 * self.trace[-1].seconds + 0.02)
        if not (wanted or due):
            if s.progress:
                nan = float("nan")
                steps, violation = int(look.steps.sum()), float(look.violation.max())
                s.progress(Point(now, steps, outer, nan, nan, nan, violation, look.rows))
            return float("nan")
        primal, dual = self._objective(look.rho)
        self.seconds["gap"] += perf_counter() - began - now
        point = look.point(perf_counter() - began, outer, primal, dual)
        if due:
            self.trace.append(point)
        if s.progress:
            s.progress(point)
        return point.gap if wanted else float("nan")

    def _gap(self) -> float:
        """The relative duality gap of the state as it is now."""
        self._extremes()
        return float(max(map(relative_gap, *self._objective(self._read().rho))))

    def _hidden(self) -> float:
        """What rounding of kernel values can hide of f as it is."""
        return self.bound(self.coefficients())

    def _sure(self, violation: float) -> bool:
        """Whether a few steps more cannot spare the float64 certificate, or need not: what rounding of K hides is too
        much for that, or nothing, or within tol with the violation."""
        tol = self.settings.tol
        if self.settings.exact is None or violation <= CLOSE * tol or self.dtype == "float64":
            return True
        hidden = 2 * self._hidden()
        return hidden > (1 - CLOSE) * tol or hidden <= tol / 5 or violation + hidden <= tol
