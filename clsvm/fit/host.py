"""Problems of few rows, solved or finished on the host: K in float64, and the active set method (active_set.py).

The host takes problems on which pair steps on a device stall in float32 before the optimum, or take very long. Its
results need no further certificate, since f is computed from the coefficients in float64.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts, precision
from clsvm.gram.exact import few_threads
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.report import Point, Status
from clsvm.solvers import active_set, certificate
from clsvm.solvers.result import Result, Settings, ended
from clsvm.threads import go_on

Vector = NDArray[np.float64]
MOST, COUPLED = 4096, 600  # coefficients at most; of coupled problems, whose sums are as many as their rows
COPIES = 4  # of a matrix of all coefficients, beside K
LEAST = 4096  # pair steps that every problem is given, beside the profile's patience
COARSE, FINE = 3e-4, 1e-3  # a relative gap that says that tol is coarse for a problem; the share of tol aimed at then
FEW, FEW_COARSE = 256, 1e-5  # the same gap for so few rows at most, of which all this takes some milliseconds
SEVERAL = 200  # problems of one fit at most that are brought nearer to the optimum
EPS = certificate.EPS
CONSTANT = 0.25  # a mean of a row of K beyond this share of the centred diagonal: the means are taken off
QUICK = 1 << 26  # multiply-adds that take less than the making of a program
ON_HOST = 1 << 28  # multiply-adds of K up to which the host computes it, too


def most(problem: Problem) -> int:
    """Coefficients of such a problem at most."""
    return COUPLED if problem.constraint is Constraint.COUPLED else MOST


def takes(stream: Stream, problem: Problem) -> bool:
    """Whether a problem is small enough, and memory_limit holds what it needs."""
    size = problem.q.size
    return size <= most(problem) and 8 * (problem.n**2 + COPIES * size**2) <= stream.limit - stream.held


def holds(stream: Stream, shape: tuple[int, int]) -> bool:
    """Return whether all of K of rows of that shape (n, d) is quickly made and kept on the host."""
    n, d = shape
    return n <= MOST and n * n * d <= QUICK and 16 * n * n <= stream.limit - stream.held


def aim(
    kernel: Kernel | Precomputed, shape: tuple[int, int], found: Result | None, certain: Result | None, quick: bool
) -> float | None:
    """Return the share of tol that the host shall come to from what pair steps found over rows of shape (n, d).

    certain: the same, with the status that rounding in float64 on the device leaves; both are None where pair steps
    could not begin. None where there is nothing to gain. The host goes on with

    - what stalled;
    - what is within tol but may be far from the optimum, by its relative gap, where that is ``quick``;
    - what rounding leaves too rough, where the host is finer.
    """
    if found is None or certain is None:
        return 1.0
    if found.status is Status.TOLERANCE and quick and found.gap > (FEW_COARSE if shape[0] <= FEW else COARSE):
        return FINE
    rough = certain.status is Status.PRECISION
    return 1.0 if found.status is Status.STALLED or (rough and finer(kernel, shape)) else None


def finer(kernel: Kernel | Precomputed, shape: tuple[int, int]) -> bool:
    """Return whether the host computes distances of rows from their differences, which loses no digits far from 0."""
    n, d = shape
    return isinstance(kernel, Kernel) and kernel.spec.of_distance and n * n * d <= ON_HOST


class Values(NamedTuple):
    """K (m, m) float64 of some rows, and its rounding error in units of eps. shift (m,): where K is not that of the
    rows themselves, which is K + shift 1' + 1 shift'."""

    K: NDArray[np.float64]
    scale: float
    shift: Vector | None = None

    def beyond(self, b: Vector) -> Vector | float:
        """Return what f of the rows themselves has beyond K b (problems, 1), for coefficients b that add up to 0."""
        return 0.0 if self.shift is None else (b @ self.shift)[:, None]

    def centred(self, problem: Problem) -> Values:
        """Return K less the means of its rows and columns, where coefficients add up to 0.

        f is then another by one number for all rows, which the offset takes. A large constant is out of the rounding,
        and functions such as -|x - y|^2, which are positive for such coefficients alone, have no negative eigenvalue.
        """
        if not problem.balanced:
            return self
        means = self.K.mean(axis=1)
        size = float((self.K.diagonal() - 2 * means + means.mean()).mean())  # of K's diagonal then
        if np.abs(means).max() < CONSTANT * size:
            return self
        shift = means - (means.mean() + size) / 2  # (a mean of 0 would make K singular)
        return self._replace(K=self.K - shift[:, None] - shift, shift=shift)


class HostFit:
    """Rows X, or X = K, ready for solves on the host, as :class:`prepare.PreparedFit` has them on a device.

    plan: of the rows as the device lays them out. rounding: the error of kernel values as a device computes them in
    float64, in units of eps; by default both are found here. Raises ValueError where kernel values are too large for
    float64.
    """

    last, precision = True, "float64"
    reason = "the host solves it whole in float64, which the device does not have"

    def __init__(
        self,
        stream: Stream,
        X: Any,
        kernel: Kernel | Precomputed,
        options: Options,
        plan: Plan | None = None,
        rounding: float | None = None,
    ) -> None:
        if rounding is None:
            if isinstance(kernel, Precomputed):
                rounding = float(np.abs(X).max())
            else:
                plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
                found = precision.measures(kernel, X, plan)
                rounding = precision.scales(kernel, found.sizes, found.extent, X.shape[1], "float64", "float64").double
        self.stream, self.plan, self._X, self._kernel, self._rounding = stream, plan, X, kernel, rounding
        self._options = options
        self._values: Values | None = None

    @property
    def device(self) -> str:
        """The device, in words."""
        return str(self.stream.info)

    def settle(self, problem: Problem, **asked: Any) -> Result:
        """Solve ``problem``, as PreparedFit does. Raises ValueError for one that is too large."""
        size = problem.q.size
        if size > most(problem):
            words = f"dtype 'float64' needs a device with double precision for a problem of {size} coefficients"
            raise ValueError(f"{words}, {self.stream.info} has none: use 'float32'")
        if not takes(self.stream, problem):
            raise ValueError(f"memory_limit is too small for a problem of {size} coefficients in float64 on the host")
        return self.finish(problem, None, **asked)

    def peak(self) -> int:
        """Return the most bytes that the device held, or the host for it."""
        return self.stream.peak

    def describe(self) -> str:
        """Return where the rows stand."""
        return "host, float64"

    def finish(self, problem: Problem, before: Result | None, aim: float = 1.0, **asked: Any) -> Result:
        """Solve ``problem``, one or coupled ones, from its result so far, else from ``start``.

        aim: the share of tol at which the work ends. asked: as of Settings; max_iter and max_time are what is
        left.
        """
        options, began = self._options, perf_counter()
        settings = Settings(options.tol, options.gap_tol, **asked)
        values = self._values = self._values or self._kernel_values(problem)
        until = began + (np.inf if settings.max_time is None else settings.max_time)
        best = problem.feasible(before.b) if before else settings.start
        stream, K, status = self.stream, values.K, None
        stream.peak = max(stream.peak, stream.held + 8 * (K.size + COPIES * problem.q.size**2))
        start = problem.start if best is None else best

        def going(found: active_set.Found) -> bool:
            nonlocal status, best
            go_on()
            best, gap = found.b, np.inf
            if settings.progress:
                nan = float("nan")
                settings.progress(Point(perf_counter() - began, found.steps, 0, nan, nan, nan, found.violation))
            if settings.gap_tol is not None:
                gap = certificate.reached(problem, found.b, found.f).gap
            status = ended(settings, np.inf, gap, found.steps, until)
            return status is None

        try:
            with few_threads(K.shape[0]):
                given = np.zeros(problem.q.shape) if start is None else start, aim * settings.tol, going
                found = active_set.solve(K, problem, *given, np.inf if settings.max_iter < 0 else settings.max_iter)
        except KeyboardInterrupt:
            if settings.save and best is not None:
                settings.save(best)
            raise
        b, f = found.b, found.f + values.beyond(found.b)
        at = certificate.reached(problem, b, f)
        seconds, primal, dual = perf_counter() - began, float(at.primal.sum()), float(at.dual.sum())
        result = Result(
            b=b,
            f=f,
            rho=at.rho,
            primal=primal,
            dual=dual,
            violation=at.violation,
            steps=found.steps,
            status=Status.TOLERANCE if at.violation <= settings.tol else status or Status.STALLED,
            error_bound=EPS * values.scale * float(np.abs(b).sum(axis=1).max()),
            exact_rows=int(b.size),
            rows_computed=len(K),
            working_set=int(b.size),
            seconds={"active set": seconds},
            trace=(Point(seconds, found.steps, 0, primal, dual, at.gap, at.violation, len(K)),),
            dtype="float64",
        )
        return result.after(before).certain(EPS * values.scale, options.tol, options.gap_tol)

    def _kernel_values(self, problem: Problem) -> Values:
        """Return K of the rows, centred where that changes nothing. With the linear kernel and dense rows these are
        centred, which loses no digits."""
        stream, X, kernel, scale = self.stream, self._X, self._kernel, self._rounding
        if isinstance(kernel, Precomputed) or self.plan is None:
            return Values(np.asarray(X, np.float64), scale).centred(problem)
        m, d = X.shape
        if kernel.name == "linear" and not sp.issparse(X) and problem.balanced:
            centre = X.mean(axis=0, dtype=np.float64)
            rows = X - centre
            with few_threads(m):
                return Values(rows @ rows.T, scale, rows @ centre + centre @ centre / 2)
        if m * m * d > ON_HOST and stream.profile.wide == "double":
            try:
                with stream.tentative():
                    gram = Gram(stream, layouts.build(stream, X, self.plan, "float64"), kernel)
                    panel = gram.of_all()
                    K = gram.values(panel, m).T
                    stream.free(*panel.buffers(), *gram.rows.buffers())
                certificate.finite(K, kernel)
                return Values(K, scale).centred(problem)
            except (MemoryLimitError, BufferSizeError):  # the device holds no panel: the host takes longer, and less
                pass
        with few_threads(m):
            K = kernel(X)
        certificate.finite(K, kernel)
        own = 2 * float(np.abs(K).max(initial=0.0)) if finer(kernel, X.shape) else scale
        return Values((K + K.T) / 2, min(scale, own)).centred(problem)
