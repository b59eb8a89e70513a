"""The state of a solve on the device: coefficients b, gradients f = K b + q, bounds; and what says how far b is.

Apart from the loop that changes it (decomposition.py). Rows stand in the device's order, in which padding rows belong
to no problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Products, Update
from clsvm.opencl.stream import Stream
from clsvm.problem import Problem
from clsvm.report import Point, relative_gap
from clsvm.solvers import certificate
from clsvm.solvers.solution import Exact, Vector


@dataclass(frozen=True)
class Look:
    """What the host reads back: rho (problems, groups), violation, steps (problems,), and rows computed."""

    rho: Vector
    violation: Vector
    steps: NDArray[np.int64]
    rows: int

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


class State:
    """lo, hi, q, f, b of ``P`` problems, each (P, n) wide numbers on the device, n rows with padding; kink (1,)."""

    def __init__(self, stream: Stream, gram: Products, problems: int) -> None:
        self.stream, self.gram, self.n, self.P = stream, gram, gram.rows.n_pad, problems
        self.lo, self.hi, self.q, self.f, self.b = (stream.buffer(8 * problems * self.n) for _ in range(5))
        self.kink = stream.buffer(8)

    def load(self, problem: Problem, start: Vector | None, known: tuple[Vector, Vector] | None) -> Vector | None:
        """The state at the start of ``problem``; the coefficients of which f lacks K b yet. known: coefficients near
        ``start`` and the f of them."""
        self.problem = problem
        b = np.zeros((self.P, self.n)) if start is None else self.padded(start)
        q = self.padded(problem.q)
        near, f = (None, q) if known is None else (known[0], self.padded(known[1]))
        arrays = self.padded(problem.lo), self.padded(problem.hi), q, f, b, np.array([problem.kink])
        for buffer, array in zip((self.lo, self.hi, self.q, self.f, self.b, self.kink), arrays, strict=True):
            self.stream.write_wide(buffer, array)
        return start if start is None or near is None else start - near

    def padded(self, values: Vector) -> Vector:
        """(P, n) in the caller's order -> (P, n_pad) in device order, zero in padding rows."""
        padded = np.zeros((self.P, self.n))
        padded[:, self.gram.rows.position] = values
        return padded

    def coefficients(self) -> Vector:
        """b (P, n) in the caller's order."""
        return self.stream.read_wide(self.b, (self.P, self.n))[:, self.gram.rows.position]

    def found(self) -> tuple[Vector, Vector]:
        """b and f (P, n) in the caller's order, b within the bounds as the problem has them."""
        f = self.stream.read_wide(self.f, (self.P, self.n))[:, self.gram.rows.position]
        certificate.finite(f, self.gram.kernel)
        lo, hi = map(self.stream.held_wide, (self.problem.lo, self.problem.hi))
        return self.problem.snapped(self.coefficients(), lo, hi), f

    def respond(self, b: Vector, panel: Panel) -> None:
        """f += K b, a panel of rows at a time."""
        s, gram, support = self.stream, self.gram, np.flatnonzero(b.any(axis=0))
        for first in range(0, len(support), panel.capacity):
            some = support[first : first + panel.capacity]
            weights = np.zeros((self.P, panel.capacity))
            weights[:, : len(some)] = b[:, some]
            at, count = s.upload(gram.rows.position[some]), s.upload(np.array([len(some)], np.int32))
            D = s.wide(weights)
            gram.gather(panel, at, count)
            gram.accumulate(panel, count, None, Update(self.P, self.n, self.f, D, panel.capacity))
            s.finish()
            s.free(at, count, D)

    def bound(self, b: Vector, kernel_scale: float) -> float:
        """What rounding of the kernel values can have done to f at most, for coefficients b (problems, rows)."""
        eps = float(np.finfo(self.gram.rows.dtype).eps)
        return eps * kernel_scale * float(np.abs(b).sum(axis=1).max())

    def certify(self, exact: Exact | None, kernel_scale: float, worst: float, tol: float) -> tuple[float, int]:
        """(violation, rows evaluated): f of the rows that decide the violation and the objectives, from kernel values
        in float64, where rounding may hide a tenth of tol. Where these are in float64 as it is, f of all rows: it has
        gathered the rounding of many steps."""
        double = self.gram.rows.dtype == "float64"
        shape = (self.P, self.n)
        b = self.stream.read_wide(self.b, shape)
        bound = self.bound(b, kernel_scale)
        if exact is None:
            return worst, 0
        f, lo, hi, q = (self.stream.read_wide(buffer, shape) for buffer in (self.f, self.lo, self.hi, self.q))
        now = replace(self.problem, lo=lo, hi=hi, q=q, start=None)
        order = self.gram.rows.order
        there = order >= 0
        coefficients = np.zeros((self.P, self.gram.rows.n))
        coefficients[:, order[there]] = b[:, there]
        rows = there & double
        if not double and bound > tol / 10 and worst + 2 * bound > tol:
            rows = there & certificate.of(now, b, f).deciding(tol, bound).reshape(shape).any(axis=0)
        evaluated, off = 0, bound
        for more in (rows, there & ~rows & (b != 0).any(axis=0)):
            at = np.flatnonzero(more)
            if at.size:
                values = exact(order[at].astype(np.intp), coefficients) + q[:, at]
                off = float(np.abs(values - f[:, at]).max())  # what rounding did here, it will have done to the rest
                f[:, at] = values
                evaluated += at.size
            level, weight = certificate.level(f, b, q, now.kink)
            if (off * weight <= certificate.OBJECTIVE * level).all():
                break
        if not evaluated:
            return worst, 0
        self.stream.write_wide(self.f, f)
        return certificate.of(now, b, f).violation, evaluated
