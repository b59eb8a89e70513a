"""Train Nyström kernel machines on m inducing points C by Newton's method with preconditioned conjugate gradients.

For each output, the method minimises the objective F over the coefficients alpha (m,):

    F(alpha) = (1/N) sum_i w_i l(f_i, y_i) + (penalty / 2) alpha' K(C, C) alpha

    f       decision values K alpha + offset, (n,)
    K       kernel values (n, m) between the n rows X and the inducing points C
    y       targets (n,)
    w, N    sample weights (n,), and their sum
    offset  constant part of the output's decision values, which is chosen before the solve
    l       loss; l1 and l2 are its first and second derivatives with respect to f
    penalty positive factor of the regularisation term
    '       transpose of a matrix

The preconditioner is P = T^-1 A^-1 with triangular factors T and A (preconditioner.py). T'T is K(C, C). A'A is near the
Hessian of F with respect to T alpha. g is the preconditioned gradient P' dF/dalpha, and tol is the tolerance. The
method repeats Newton steps:

    until |g| <= tol |g at alpha = 0|:
        f     <- K alpha + offset
        g     <- P' (K' (w * l1(f)) / N + penalty T'T alpha)
        d     <- the solution of  P' (K' diag(w * l2(f)) K / N + penalty T'T) P d = -g  by conjugate gradients
        alpha <- alpha + s P d, with the first step length s of 1, 1/2, 1/4, ... that lowers F enough

If the loss couples the outputs, as softmax does, F, the norms and s are for all outputs together. The result also has
an upper bound of F minus its minimum.

A step of conjugate gradients is one pass over the rows (rows.py). Few steps are needed, since the matrix of the
equation for d is near the identity. For the squared loss the method is Falkon. A further Newton step is then iterative
refinement: g is computed again from alpha, so errors of float32 products do not accumulate.

The papers below lower the penalty gradually, since Newton steps for a small penalty are good only near the minimum.
Here the penalty has its final value from the start. The choice of s shortens steps that would not lower F enough.

During a solve, the targets, f and alpha of each output are divided by a power of 2, the output's unit (Task.units in
rows.py). At the end, alpha is multiplied by the unit.

Source: Meanti et al. 2020, algorithms 1 and 2; Marteau-Ferey, Bach, Rudi 2019; Nocedal and Wright, 7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.nystrom.preconditioner import Preconditioner
from clsvm.nystrom.rows import RowOperator, Vector
from clsvm.report import Display, Point, Status

INEXACT = 0.1  # far from the optimum, the conjugate gradients of a Newton step end at this relative residual
FINE = {"float32": 1e-3, "float64": 1e-9}  # conjugate gradients never aim at a smaller relative residual, by dtype
ENOUGH = 1e-4  # fraction of the predicted decrease of the objective that a step must reach (Armijo)
HALVINGS = 30  # largest number of halvings of a step length
# If rounding may change decision values by over REFINE * max |target - offset|, gradients are computed in float64.
REFINE = 2e-4
LEAST = 1e-300  # replaces 0 in a product with infinity, which would be nan
EPS = float(np.finfo(np.float64).eps)
SAFE = 4.0  # an output's coefficients stay 0 if its first gradient is below SAFE times the gradient's rounding error
# A solve is not converged if rounding may change decision values by over MOST_ROUNDING * max |target - offset|.
MOST_ROUNDING = 1e-3
# With m inducing points and n rows, the estimated rounding error of decision values is multiplied by 1 + FEW * m / n.
FEW = 9.0
STALL = 0.5  # a solve has stalled if a step neither lowers the objective nor halves the gradient's norm


@dataclass
class Result:
    """Hold the result of a solve.

    Attributes
    ----------
    alpha
        coefficients (k, m).
    objective
        objective F, summed over the outputs.
    residual
        norm of the preconditioned gradient, relative to its norm at alpha = 0; the largest of the outputs.
    bound
        upper bound of F - F*, where F* is the minimum of the objective F.
    status
        how the solve ended.
    steps
        conjugate gradient steps.
    newton_steps
        Newton steps.
    passes
        passes over the rows.
    exact
        whether the solve changed to a more precise dtype for gradients.
    trace
        state of the solve at its start and after each Newton step.
    preconditioner_seconds
        seconds that the preconditioner took during the solve.
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
    preconditioner_seconds: float = 0.0


Callback = Callable[[int, Vector, float], Any]


class Newton:
    """Minimise an objective F over the coefficients of a Nyström kernel machine. :meth:`run` does the solve.

    F is a mean loss over the training rows, plus a regularisation term. A KeyboardInterrupt ends the solve with the
    result so far, if a step was made.

    rows: object that computes the sums over the training rows in F, in its gradient and in products with its Hessian.
    preconditioner: triangular factors by which the conjugate gradients are preconditioned.
    tol: the solve ends when the norm of the preconditioned gradient is at most ``tol`` times this norm at coefficients
        of 0.
    progress: display of the progress, or None.
    before: result of an earlier solve in another dtype, or None. The steps and seconds of the earlier solve are added
        to the steps and seconds of this solve.

    Attributes
    ----------
    max_iter
        largest number of conjugate gradient steps.
    callback
        function that is called after each conjugate gradient step, or None. Its arguments are the number of steps so
        far, the coefficients (m, k) of m inducing points for k outputs, and the seconds so far.
    fine
        smallest tolerance of the conjugate gradients in a Newton step, as a relative residual of the step's linear
        system.
    """

    def __init__(
        self,
        rows: RowOperator,
        preconditioner: Preconditioner,
        tol: float,
        max_iter: int,
        progress: Display | None = None,
        callback: Callback | None = None,
        before: Result | None = None,
    ) -> None:
        self.rows, self.P, self.tol, self.max_iter = rows, preconditioner, tol, max_iter
        self.loss, self.penalty, self.units = rows.task.loss, rows.task.penalty, rows.units[:, None]
        self.squares = self._joined(np.square(self.units)).max(axis=1)
        self.progress, self.callback, self.fine = progress, callback, FINE[rows.dtype]
        self.u, alpha, self.began = np.zeros((rows.k, preconditioner.rank)), np.zeros((rows.k, rows.m)), perf_counter()
        self.result = Result(alpha)
        if before:
            self.result = Result(
                alpha, steps=before.steps, newton_steps=before.newton_steps, passes=before.passes, trace=before.trace
            )
            self.began -= before.trace[-1].seconds
        self.G, self.curvature, self.values = np.empty(0), np.empty(0), np.empty(0)
        self.interrupted = False

    def run(self, start: Vector | None) -> Result:
        """Minimise the objective from coefficients ``start`` (k, m), or from 0 if ``start`` is None.

        A KeyboardInterrupt before the first step returns the earlier solve's coefficients ``start``. If there was no
        earlier solve, the KeyboardInterrupt is raised.
        """
        result = self.result
        try:
            result.status = self._run(start)
            if result.status is Status.RESIDUAL and self._relative_rounding() > MOST_ROUNDING:
                result.status = Status.PRECISION if self.rows.dtype == "float64" else Status.COARSE
        except KeyboardInterrupt:
            result.status = Status.INTERRUPTED
        result.alpha = result.alpha * self.units
        if result.status is Status.INTERRUPTED and not result.alpha.any():
            if start is None or not result.steps:
                raise KeyboardInterrupt
            result.alpha = start
        result.passes, result.exact = result.passes + self.rows.passes, self.rows.refined
        return result

    def _run(self, start: Vector | None) -> Status:
        rows, loss = self.rows, self.loss
        self._weigh()
        slope = rows.slope()
        g = self._gradient(slope)
        has_gradient = np.abs(self._joined(slope)).max(axis=1) > self._noise()
        # If an output's first gradient is within the rounding error of gradients, the output's coefficients stay 0.
        goal = np.where(has_gradient, self.tol * self._norms(g), np.inf)
        self._set_objective(self._values(self.u))
        if start is not None and has_gradient.any():
            start = start / self.units
            if self.loss.coupled:
                # _upper_bound needs coefficients whose mean over the outputs is 0 for every inducing point.
                start = start - start.mean(axis=0)
            self.u = np.where(has_gradient[:, None], self.P.of_coefficients(start), 0.0)
            self.result.alpha = start * has_gradient[:, None] if self.P.pivots is None else self.P.alpha(self.u)
            self._refine()
            rows.set_alpha(self.result.alpha)
            if not loss.quadratic:
                self._weigh()
            g = self._gradient(rows.slope())
            self._set_objective(self._values(self.u))
        size = self._record(g, goal)
        while (size > goal).any():
            if self.result.steps >= self.max_iter:
                return Status.MAX_ITER
            with np.errstate(divide="ignore", invalid="ignore"):
                eta = self.fine if loss.quadratic else np.minimum(INEXACT, np.sqrt(size * self.tol / goal))
                eta = np.where(size > goal, np.maximum(np.maximum(eta, 0.3 * goal / size), self.fine), 1.0)
            d = self._conjugate_gradients(-g, eta[:, None])
            step = self.P.u(d)
            change = self.P.alpha(step)
            rows.set_change(change)
            s, lower = self._line_search(step, g * d)
            if not s.any():
                return Status.STALLED
            self.u, self.result.alpha = self.u + s * step, self.result.alpha + s * change
            rows.take_step(s)
            self.result.newton_steps += 1
            if self._refine():
                rows.set_alpha(self.result.alpha)
                self._set_objective(self._values(self.u))  # more precise decision values change the objective
                size = np.full_like(size, np.inf)
            if not loss.quadratic:
                self._weigh()
            g, before = self._gradient(rows.slope()), size
            size = self._record(g, goal)
            if self.interrupted:
                return Status.INTERRUPTED
            progresses = (size > goal) & (lower | (size <= STALL * before))
            if (size > goal).any() and not progresses.any():
                return Status.STALLED
        return Status.RESIDUAL

    def _joined(self, values: Vector) -> Vector:
        """Return the values (k, ...) of k outputs, flattened to (1, -1) if the loss depends on all outputs together."""
        return values.reshape(1, -1) if self.loss.coupled else values

    def _norms(self, g: Vector) -> Vector:
        return np.linalg.norm(self._joined(g), axis=1)

    def _refine(self) -> bool:
        """Let later gradients be computed in a more precise dtype, if rounding errors of kernel values are too large.

        Return whether this call changed the dtype of gradients. The dtype is changed at most once in a solve.
        """
        return not self.rows.refined and self._relative_rounding() > REFINE and self.rows.refine()

    def _relative_rounding(self) -> float:
        """Return an estimate of how much rounding of kernel values changes decision values, as a ratio.

        The ratio of an output is the change of its decision values, divided by the output's largest
        |target - offset|. The largest ratio of all outputs is returned.
        """
        return float((self._rounding_of_f() / np.maximum(self.rows.task.largest, 1e-300)).max())

    def _rounding_of_f(self) -> Vector:
        """Return an estimate of how much rounding of kernel values changes the decision values of each output, (k,)."""
        rows = self.rows
        rounding = float(np.finfo(rows.dtype).eps) * self.P.size * (1 + FEW * rows.m / rows.n)
        return np.asarray(rounding * np.sqrt(np.square(self.result.alpha).sum(axis=1)))

    def _noise(self) -> Vector:
        """Return a bound of the rounding error of each output's gradient, or one bound if the loss couples outputs.

        The bound is a multiple of the mean over rows of |dl/df| + |y| + |f|, for the loss l, targets y and decision
        values f.
        """
        return SAFE * EPS * self.P.size * self._joined(self.rows.rounding()).max(axis=1)

    def _weigh(self) -> None:
        """Compute the preconditioner's factor A, and set ``curvature``, from the loss's second derivatives.

        Notation:

            '           transpose of a matrix
            M >= N      the matrix M - N is positive semi-definite
            T           the preconditioner's other factor
            H           Hessian of an output's objective with respect to T alpha, for the coefficients alpha
            D           second derivative of the loss at a row of the fit, times the row's share w / N of all weights
            mean(D)     mean of D over the outputs
            b           T'^-1 v for a row, where the column v has the row's kernel values with the inducing points
            sample      the rows from which the preconditioner is made
            S           sum of mean(D) b b' over the sample
            scale       sum of mean(D) over all rows, divided by the sum over the sample
            least       the output's smallest D / mean(D) in the sample
            shift       estimate of the rounding errors of A'A

        A is the triangular factor with A'A = (penalty + shift) * I + scale * S. ``curvature`` has a number c for each
        output such that H >= c A'A:

            c = 1/2 * min(1, least / scale) / (1 + 2 * shift / penalty)

        The factor 1/2 allows for rounding errors of A, and the factor 2 for rounding errors of A'A. Without rounding
        errors, H >= c A'A would hold even with both factors replaced by 1:

            H   = penalty * I + sum of D b b' over all rows
               >= penalty * I + least * S
               >= min(1, least / scale) * (penalty * I + scale * S)
               >= min(1, least / scale) / (1 + shift / penalty) * A'A

        If the loss couples the outputs, as softmax does, ``least`` is the smallest p / mean(D) in the sample, where p
        is w / N times the row's smallest class probability. H >= c A'A then holds only for coefficients whose mean over
        the outputs is 0.
        """
        total, at, least = self.rows.weigh()
        at = at if len(at) else np.full(self.rows.m, total / self.rows.m)  # inducing points that are not rows
        scale = total / at.sum() if at.any() else 1.0
        began = perf_counter()
        self.P.weigh(at * scale, self.penalty)
        self.curvature = np.minimum(least / scale, 1.0) / 2 / (1 + 2 * self.P.shift / self.penalty)
        self.result.preconditioner_seconds += perf_counter() - began

    def _gradient(self, slope: Vector) -> Vector:
        self.G = self.P.from_alpha(slope) + self.penalty * self.u
        return self.P.from_u(self.G)

    def _values(self, u: Vector, s: Vector | None = None) -> Vector:
        """Return the objective of each output: its mean loss plus penalty / 2 * |u|^2.

        The objective is evaluated at the current coefficients if s is None, else after a step of the lengths s.

        u: T alpha (k, r), for the coefficients alpha at which the objective is evaluated. T'T is the kernel matrix of
        the inducing points, and r is its rank.
        s: step lengths (k, 1), or None. With s, the loss is evaluated at the decision values f + s * change. Here f are
        the decision values before the step, and :meth:`RowOperator.set_change` computed ``change``.
        """
        squares = np.square(self._joined(u)).sum(axis=1)
        return self.rows.losses(s) + self.penalty / 2 * squares

    def _set_objective(self, values: Vector) -> None:
        self.values, self.result.objective = values, float((values * self.squares).sum())

    def _hessian(self, d: Vector) -> Vector:
        v = self.P.u(d)
        c = self.rows.hessian(self.P.alpha(v))
        return self.P.from_u(self.P.from_alpha(c) + self.penalty * v)

    def _conjugate_gradients(self, right: Vector, eta: Vector) -> Vector:
        """Return an approximate solution d of H d = right by conjugate gradients, for the preconditioned Hessian H.

        The iteration ends when |right - H d| <= eta * |right| for each output. If the loss couples the outputs, the
        norms are over all outputs. The iteration also ends at a KeyboardInterrupt, and when the fit has taken
        ``max_iter`` conjugate gradient steps.

        right: right-hand side (k, r), for k outputs and the rank r of the inducing points' kernel matrix.
        eta: relative residual (k, 1).
        """

        def dots(a: Vector, b: Vector) -> Vector:
            return self._joined(a * b).sum(axis=1)[:, None]

        d, r, p = np.zeros_like(right), right, right
        rr = dots(r, r)
        goal = eta**2 * rr
        p = np.where(rr > goal, p, 0.0)
        try:
            while (rr > goal).any() and self.result.steps < self.max_iter:
                q = self._hessian(p)
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
                if self.callback:
                    now, alpha = perf_counter() - self.began, self.result.alpha + self.P.alpha(self.P.u(d))
                    self.callback(self.result.steps, (alpha * self.units).T, now)
        except KeyboardInterrupt:
            self.interrupted = True
        return d

    def _line_search(self, step: Vector, gd: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Return the step length s (k, 1) of each of k outputs, and whether the step lowers the objective F, (k,).

        s is the first of 1, 1/2, 1/4, ... for which F falls enough, or rises by no more than the rounding error of F.
        If no such s is found, s is 0. For a rise within the rounding error, and for s = 0, the second array is False.
        If the loss couples the outputs, F and s are for all outputs together. The arrays then are (1, 1) and (1,).

        step: change (k, r) of u = T alpha for s = 1, where alpha are the coefficients. T'T is the kernel matrix of the
            inducing points, and r is the rank of this matrix.
        gd: gradient of F with respect to v = A u, times the change of v for s = 1, element by element, (k, r). A is the
            preconditioner's triangular factor. The sum over an output's r elements is the slope of F along the step.
        """
        before, slope = self.values, self._joined(gd).sum(axis=1)
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
        self._set_objective(values)
        return s[:, None], values < before

    def _record(self, g: Vector, goal: Vector) -> Vector:
        sizes = self._norms(g)
        if not np.isfinite(sizes).all():
            raise ValueError(
                "kernel values between rows and inducing points, or the targets y, exceed the range of "
                f"{self.rows.dtype}: scale X or y"
            )
        result = self.result
        result.residual = float(np.divide(sizes * self.tol, goal, out=np.zeros_like(sizes), where=goal > 0).max())
        result.bound = float((self._upper_bound(sizes) * self.squares).sum())
        nan, now = float("nan"), perf_counter() - self.began
        # ``result.passes`` is the number of passes over the rows in an earlier solve in another dtype, else 0.
        rows_read = (result.passes + self.rows.passes) * self.rows.n
        point = Point(now, result.steps, result.newton_steps, result.objective, nan, nan, result.residual, rows_read)
        result.trace.append(point)
        if self.progress:
            self.progress(point)
        return sizes

    def _upper_bound(self, sizes: Vector) -> Vector:
        """Return an upper bound of F - F* for each output, or for all outputs together if the loss couples them.

        Notation:

            '           transpose of a matrix
            T, A        triangular factors of the preconditioner: T'T is near the inducing points' kernel matrix, and
                        A'A is near the Hessian of F with respect to T alpha, for the coefficients alpha
            sample      the rows from which A is made
            penalty     factor of the term |T alpha|^2 / 2 of F
            u           T alpha, for the current coefficients alpha
            F, F*       objective at u, and its minimum
            G           gradient of F with respect to u
            g           A'^-1 G; ``sizes`` are the norms |g|
            c           a number for each output
            v           any value of T alpha with |A (v - u)| <= 2 |g| / c
            l2          second derivative of the loss
            reach       decision values of the sample at u and at v differ by at most reach * |v - u|

        The bound is the least of:

            F                      since losses are not negative, so that F* >= 0
            |G|^2 / (2 * penalty)  since the penalty makes F strongly convex in u
            |g|^2 / (2 * c)        if the Hessian of F is at least c A'A at every v

        For the squared loss, c is the number ``curvature`` of :meth:`_weigh`, since l2 is constant. For another loss, c
        is half of ``curvature``. This c is right if, for each row of the sample, l2 at v is at least half of l2 at u.
        These three inequalities bound l2 at v:

            |v - u| <= 2 |g| / (c sqrt(penalty)), since A'A is at least penalty * I.
            Decision values of the sample change by at most h = 2 reach |g| / (c sqrt(penalty)) between u and v.
            l2 at v >= exp(-2 h) * l2 at u, since the loss's third derivative is at most 2 * l2 in size.

        If h <= log(2) / 2, then exp(-2 h) >= 1/2, and c is right. If h is larger, the third bound is not used.

        Two effects of rounding are added to the bound:

        - Rounding of kernel values changes each decision value by at most t. F and F* each change by at most
          sqrt(2 F) t + t^2 / 2, since the loss is not negative and l2 <= 1. They also change by at most t times the
          largest slope of the loss. The smaller limit is used.
        - T'T differs from the inducing points' kernel matrix by at most ``error`` of the preconditioner, in the
          spectral norm. F then changes by at most penalty / 2 * error * |alpha|^2.
        """
        values, task, c, gradient_norm = self.values, self.rows.task, self.curvature, self._norms(self.G)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if not self.loss.quadratic:
                c = c / 2
                out_of_reach = self.P.reach * 2 * sizes / c > np.log(2) / 2 * np.sqrt(self.penalty)
                c = np.where(out_of_reach, 0.0, c)
            curvature_bound = np.where(c > 0, np.square(sizes) / (2 * c), np.inf)
        least = np.minimum(np.minimum(values, np.square(gradient_norm) / (2 * self.penalty)), curvature_bound)
        f_error = self._rounding_of_f() + 4 * EPS * (task.largest + np.abs(task.offset))
        t = self._joined(f_error[:, None]).max(axis=1)
        jitter_term = self.P.error * np.square(self._joined(self.result.alpha)).sum(axis=1)
        rounding = np.minimum(2 * t * np.sqrt(2 * values) + np.square(t), 2 * np.maximum(t, LEAST) * task.loss.steepest)
        return least + rounding + self.penalty / 2 * jitter_term
