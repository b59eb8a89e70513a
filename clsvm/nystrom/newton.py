"""Newton's method with preconditioned conjugate gradients for Nyström kernel machines on m inducing points.

Minimises  F(alpha) = (1/N) sum_i w_i l(f_i, y_i) + (penalty / 2) |f|^2,   f = K(X, C) alpha + offset,   N = sum w
Given      the row operator, which answers with sums over rows (rows.py), and the preconditioner
Returns    alpha (k, m) with |P' grad F| <= tol |P' grad F(0)| of each output, or of all together where the loss couples
           them; P = T^-1 A^-1, for which P' (Hessian) P is near I; and a bound of F - F* (:meth:`Newton._above`)
Source     Meanti et al. 2020, algorithms 1 and 2; Marteau-Ferey, Bach, Rudi 2019; Nocedal and Wright, 7.1
Units      all is done in the task's units, for each output its own, and what is found is given in the caller's

    f <- K alpha + offset,  g <- P'(K' (w l'(f)) / N + penalty T' u)            until |g| <= tol |g(0)|
    d <- the solution of  P'(K' (w l''(f)) K / N + penalty T'T) P d = -g        conjugate gradients, one pass a step
    alpha <- alpha + s P d, s = 1, 1/2, ... the first that lowers F enough, of each output

For the squared loss that is Falkon, and what is repeated is refinement: g is computed anew from alpha, so that errors
of float32 products do not add up. The papers go through decreasing penalties, so that each step is a good one; here
steps are shortened where they have to be, which needs no schedule and ends at the penalty that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.nystrom.preconditioner import Preconditioner
from clsvm.nystrom.rows import RowOperator
from clsvm.report import Point, Progress, Status

Vector = NDArray[np.float64]
INEXACT = 0.1  # how well a Newton step is solved at least, relative to g
FINE = {"float32": 1e-3, "float64": 1e-9}  # the same at most: what products in that dtype allow before a look at g
ENOUGH = 1e-4  # of the slope, that a step has to lower F by (Armijo)
HALVINGS = 30
LOST = 2e-4  # of the largest target: what rounding of K may do to f before gradients are of values in float64
LEAST = 1e-300  # times infinity is infinity
EPS = float(np.finfo(np.float64).eps)
SAFE = 4.0  # times what rounding makes of a gradient: where it is no more at the start, nothing is to be learnt
HIDDEN = 1e-3  # what it may do at most where a tolerance is claimed
FEW = 9.0  # how much more it does with as many rows as inducing points than with many more
STALL = 0.5  # g has to get lower by that factor, or F lower


@dataclass
class Result:
    """Where a solve ended: coefficients (k, m), F, the largest of the outputs' |g| / |g(0)|, a bound of F - F*, how.

    exact: whether gradients were of products in float64. weighing: seconds that the preconditioner took meanwhile.
    """

    alpha: Vector
    objective: float = np.inf
    residual: float = np.inf
    bound: float = np.inf
    status: Status = Status.STALLED
    steps: int = 0
    newton_steps: int = 0
    passes: int = 0
    exact: bool = False
    trace: list[Point] = field(default_factory=list)
    weighing: float = 0.0


Callback = Callable[[int, Vector, float], Any]


class Newton:
    """One minimisation of F over a row operator (:meth:`run`).

    max_iter: iterations of conjugate gradients at most. An interrupt ends the solve with what was found. callback: told
    iteration, coefficients (m, k) and seconds after each. before: the result of a solve in another dtype, whose counts
    and seconds go on. fine: how well a Newton step is solved at most, relative to the gradient.
    """

    def __init__(
        self,
        rows: RowOperator,
        preconditioner: Preconditioner,
        tol: float,
        max_iter: int,
        progress: Progress | None = None,
        callback: Callback | None = None,
        before: Result | None = None,
    ) -> None:
        self.rows, self.P, self.tol, self.max_iter = rows, preconditioner, tol, max_iter
        self.loss, self.penalty, self.units = rows.task.loss, rows.task.penalty, rows.units[:, None]
        self.squares = self._each(np.square(self.units), lambda rows: rows.max(axis=1))
        self.progress, self.callback, self.fine = progress, callback, FINE[rows.dtype]
        self.u, alpha, self.began = np.zeros((rows.k, preconditioner.rank)), np.zeros((rows.k, rows.m)), perf_counter()
        self.result, self.passed = Result(alpha), 0
        if before:
            self.result = Result(alpha, steps=before.steps, newton_steps=before.newton_steps, trace=before.trace)
            self.passed = before.passes
            self.began -= before.trace[-1].seconds
        self.G, self.curvature, self.values = np.empty(0), np.empty(0), np.empty(0)
        self.interrupted = False

    def run(self, start: Vector | None) -> Result:
        """Minimise F from coefficients ``start`` (k, m), or from 0."""
        result = self.result
        try:
            result.status = self._run(start)
            if result.status is Status.RESIDUAL and self._lost() > HIDDEN:
                result.status = Status.PRECISION if self.rows.dtype == "float64" else Status.COARSE
        except KeyboardInterrupt:
            result.status = Status.INTERRUPTED
        result.alpha = result.alpha * self.units
        result.passes, result.exact = self.passed + self.rows.passes, self.rows.refined
        return result

    def _run(self, start: Vector | None) -> Status:
        rows, loss = self.rows, self.loss
        self._weigh()
        slope = rows.slope()
        g = self._gradient(slope)
        learns = self._each(slope, lambda a: np.abs(a).max(axis=1)) > self._noise()
        goal = np.where(learns, self.tol * self._norms(g), np.inf)  # (elsewhere the offset is all)
        self._hold(self._values(self.u))
        if start is not None and learns.any():
            start = start / self.units
            if self.loss.coupled:  # (without curvature along what outputs share, the bound needs that to be 0)
                start = start - start.mean(axis=0)
            self.u = np.where(learns[:, None], self.P.of_coefficients(start), 0.0)
            self.result.alpha = start * learns[:, None] if self.P.kept is None else self.P.alpha(self.u)
            self._refine()
            rows.go(self.result.alpha)
            if not loss.quadratic:
                self._weigh()
            g = self._gradient(rows.slope())
            self._hold(self._values(self.u))
        size = self._seen(g, goal)
        while (size > goal).any():
            if self.result.steps >= self.max_iter:
                return Status.MAX_ITER
            with np.errstate(divide="ignore", invalid="ignore"):
                eta = self.fine if loss.quadratic else np.minimum(INEXACT, np.sqrt(size * self.tol / goal))
                eta = np.where(size > goal, np.maximum(np.maximum(eta, 0.3 * goal / size), self.fine), 1.0)
            d = self._conjugate_gradients(-g, eta[:, None])
            step = self.P.u(d)
            change = self.P.alpha(step)
            rows.look(change)
            s, lower = self._shortened(step, g * d)
            if not s.any():
                return Status.STALLED
            self.u, self.result.alpha = self.u + s * step, self.result.alpha + s * change
            rows.step(s)
            self.result.newton_steps += 1
            if self._refine():
                rows.go(self.result.alpha)
                self._hold(self._values(self.u))  # (f is another one)
                size = np.full_like(size, np.inf)
            if not loss.quadratic:
                self._weigh()
            g, before = self._gradient(rows.slope()), size
            size = self._seen(g, goal)
            if self.interrupted:
                return Status.INTERRUPTED
            going_on = (size > goal) & (lower | (size <= STALL * before))
            if (size > goal).any() and not going_on.any():
                return Status.STALLED
        return Status.RESIDUAL

    def _each(self, values: Vector, of: Callable[[Vector], Vector]) -> Vector:
        """Return a number of each output's row (k, ...) of values; one of all together of a coupled loss."""
        return of(values.reshape(1, -1) if self.loss.coupled else values)

    def _norms(self, g: Vector) -> Vector:
        return self._each(g, lambda rows: np.linalg.norm(rows, axis=1))

    def _refine(self) -> bool:
        """Take products in the finest dtype for gradients, where rounding of K shows and there is one."""
        return not self.rows.refined and self._lost() > LOST and self.rows.refine()

    def _lost(self) -> float:
        """Return what errors in K's last bit may do to f, over the largest target, of the worst output."""
        return float((self._hidden() / np.maximum(self.rows.task.deviation, 1e-300)).max())

    def _hidden(self) -> Vector:
        """Return what errors in K's last bit may do to f of each output (k,)."""
        rows = self.rows
        rounding = float(np.finfo(rows.dtype).eps) * self.P.size * (1 + FEW * rows.m / rows.n)
        return np.asarray(rounding * np.sqrt(np.square(self.result.alpha).sum(axis=1)))

    def _noise(self) -> Vector:
        """Return about what rounding of targets and of f makes of the slope of each output."""
        return SAFE * EPS * self.P.size * self._each(self.rows.rounding(), lambda rows: rows.max(axis=1))

    def _weigh(self) -> None:
        """Take the Hessian's weights at f, for the products, and at the sampled rows for the preconditioner."""
        total, at, least = self.rows.weigh()
        at = at if len(at) else np.full(self.rows.m, total / self.rows.m)  # (inducing points that are no rows)
        times = total / at.sum() if at.any() else 1.0
        began = perf_counter()
        self.P.weigh(at * times, self.penalty)
        self.curvature = np.minimum(least / times, 1.0) / 2
        self.result.weighing += perf_counter() - began

    def _gradient(self, slope: Vector) -> Vector:
        self.G = self.P.from_alpha(slope) + self.penalty * self.u
        return self.P.from_u(self.G)

    def _values(self, u: Vector, s: Vector | None = None) -> Vector:
        """Return F of each output, with f as it is or moved s times along the change."""
        squares = self._each(u, lambda rows: np.square(rows).sum(axis=1))
        return self.rows.losses(s) + self.penalty / 2 * squares

    def _hold(self, values: Vector) -> None:
        self.values, self.result.objective = values, float((values * self.squares).sum())

    def _hessian(self, d: Vector) -> Vector:
        v = self.P.u(d)
        c = self.rows.hessian(self.P.alpha(v))
        return self.P.from_u(self.P.from_alpha(c) + self.penalty * v)

    def _conjugate_gradients(self, right: Vector, eta: Vector) -> Vector:
        """Return d with |right - Hd| <= eta |right|, of each output, of all where they are coupled; eta (k, 1)."""

        def dots(a: Vector, b: Vector) -> Vector:
            return self._each(a * b, lambda rows: rows.sum(axis=1))[:, None]

        d, r, p = np.zeros_like(right), right, right
        rr = dots(r, r)
        goal = eta**2 * rr
        p = np.where(rr > goal, p, 0.0)
        while (rr > goal).any() and self.result.steps < self.max_iter and not self.interrupted:
            try:
                q = self._hessian(p)
            except KeyboardInterrupt:
                self.interrupted = True
                break
            self.result.steps += 1
            curve = dots(p, q)
            with np.errstate(divide="ignore", invalid="ignore"):
                t = np.where((rr > goal) & (curve > 0), rr / curve, 0.0)
            if not t.any():
                break
            d, r = d + t * p, r - t * q
            new = dots(r, r)
            p = r + np.where(rr > goal, new / np.maximum(rr, 1e-300), 0.0) * p
            rr = np.where(rr > goal, new, rr)
            self._tell(d)
        return d

    def _shortened(self, step: Vector, gd: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Return s (k, 1), and whether F got lower (k,): of each output the first of 1, 1/2, ... that lowers F enough,
        0 where none does.

        Rounding of F is no reason to stop. gd: each term of the slope.
        """
        before, slope = self.values, self._each(gd, lambda rows: rows.sum(axis=1))
        s, noise = np.ones(len(before)), 1e-14 * np.abs(before)
        for _ in range(HALVINGS):
            values = self._values(self.u + s[:, None] * step, s[:, None])
            done = values <= before + ENOUGH * s * slope + noise
            if done.all():
                break
            s = np.where(done, s, s / 2)
        else:
            s = np.where(done, s, 0.0)
            values = self._values(self.u + s[:, None] * step, s[:, None])
        self._hold(values)
        return s[:, None], values < before

    def _seen(self, g: Vector, goal: Vector) -> Vector:
        sizes = self._norms(g)
        if not np.isfinite(sizes).all():
            raise ValueError(f"kernel values of rows and centres, or targets, are beyond {self.rows.dtype}: scale X")
        result = self.result
        result.residual = float(np.divide(sizes * self.tol, goal, out=np.zeros_like(sizes), where=goal > 0).max())
        result.bound = float((self._above(sizes) * self.squares).sum())
        nan, now = float("nan"), perf_counter() - self.began
        seen, counts = (self.passed + self.rows.passes) * self.rows.n, (result.steps, result.newton_steps)
        point = Point(now, *counts, result.objective, nan, nan, result.residual, seen)
        result.trace.append(point)
        if self.progress:
            self.progress(point)
        return sizes

    def _above(self, sizes: Vector) -> Vector:
        """Return a bound of F - F* for each output, or of all together of a coupled loss; sizes: their |g|.

        It is the least of three bounds, and beside it what rounding can make of F and of the least F:

            F                     since losses are not negative
            |G|^2 / (2 penalty)   where G = grad_u F, since the penalty makes F strongly convex in u
            |g|^2 / (2 c)         where the Hessian H >= c A'A for all v with |v - u| <= r = 2 |g| / c, in A'A's norm:
                                  F(v) >= F(u) - |g| r + c r^2 / 2 = F(u) on the rim, so that the least F is within

        A'A is penalty I and ``times`` the sum of D b b' over sampled rows b of B, D the outputs' mean. H is penalty I
        and the sum of an output's own D b b' over all rows, which is ``least`` D or more. So H >= least / times A'A at
        u, of which ``curvature`` is the half: the other half allows for the rounding of A. Where f changes by at most t
        on the way from u to v, an own D falls to no less than exp(-2 t) of itself, since |l'''| <= 2 l''. That is a
        half or more where t <= |b| |v - u|_2 <= reach r / sqrt(penalty) <= log(2) / 2.

        Rounding of K moves each f by at most t. That moves F by at most |l'| t + t^2 / 2, since l'' <= 1, and by at
        most ``steepest`` t; so does it the least F. |l'| <= sqrt(2 l), as of any function that is not negative where
        l'' <= 1. T'T is K(C, C) up to ``off``, which moves |f|^2 by at most ``off`` |alpha|^2.
        """
        values, task, c, pull = self.values, self.rows.task, self.curvature, self._norms(self.G)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if not self.loss.quadratic:
                c = c / 2
                far = self.P.reach * 2 * sizes / c > np.log(2) / 2 * np.sqrt(self.penalty)
                c = np.where(far, 0.0, c)
            curved = np.where(c > 0, np.square(sizes) / (2 * c), np.inf)
        least = np.minimum(np.minimum(values, np.square(pull) / (2 * self.penalty)), curved)
        moved = self._hidden() + 4 * EPS * (task.deviation + np.abs(task.offset))
        t = self._each(moved[:, None], lambda rows: rows.max(axis=1))
        off = self.P.off * self._each(self.result.alpha, lambda rows: np.square(rows).sum(axis=1))
        rounding = np.minimum(2 * t * np.sqrt(2 * values) + np.square(t), 2 * np.maximum(t, LEAST) * task.loss.steepest)
        return least + rounding + self.penalty / 2 * off

    def _tell(self, d: Vector) -> None:
        """Call back after an iteration of conjugate gradients that has come to d; an interrupt there ends the solve."""
        if self.callback:
            now = perf_counter() - self.began
            try:
                self.callback(self.result.steps, ((self.result.alpha + self.P.alpha(self.P.u(d))) * self.units).T, now)
            except KeyboardInterrupt:
                self.interrupted = True
