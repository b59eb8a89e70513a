"""Solve or finish subproblems of few rows on the host.

The host computes K in float64 and solves by the active set method (solvers/active_set.py). The host takes a subproblem
if SMO on a device stalls in float32 or takes very long. The result needs no further float64 check, since the gradients
f are computed from the coefficients in float64.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.exact import few_threads
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import Point, Status
from clsvm.solvers import active_set, certificate
from clsvm.solvers.result import Result, Settings, ended
from clsvm.threads import check_interrupt

# The host solves problems of at most MOST coefficients, and Crammer and Singer's problem of at most COUPLED.
MOST, COUPLED = 4096, 600
COPIES = 4  # number of matrices as large as K that a solve needs in memory, in addition to K
# The host takes over after patience * coefficients + EXTRA_STEPS SMO iterations; the device's profile has ``patience``.
EXTRA_STEPS = 4096
# If a result within tol has a relative gap above COARSE_GAP, the host continues to a KKT violation of FINE_TOL * tol.
COARSE_GAP, FINE_TOL = 3e-4, 1e-3
# If a result within tol has at most FEW_ROWS rows and a relative gap above FEW_COARSE, the host continues.
FEW_ROWS, FEW_COARSE = 256, 1e-5
SEVERAL = 200  # with more small subproblems than this, solves on the host end at tol even if the duality gap is large
EPS = certificate.EPS
# K is centred if a row of K has an absolute mean of at least CONSTANT_SHARE * (mean diagonal entry of the centred K).
CONSTANT_SHARE = 0.25
QUICK = 1 << 26  # a K of at most so many multiply-adds takes the host less time than building an OpenCL program
ON_HOST = 1 << 28  # the host leaves a K of more multiply-adds to a device with double precision


def can_solve(stream: Stream, problem: Problem) -> bool:
    """Return whether the host can solve ``problem``: few coefficients, and matrices within memory_limit."""
    size, left = problem.q.size, stream.limit - stream.allocated
    most = COUPLED if problem.constraint is Constraint.COUPLED else MOST
    return size <= most and 8 * (problem.n**2 + COPIES * size**2) <= left


def computes_quickly(stream: Stream, shape: tuple[int, int]) -> bool:
    """Return whether the host can compute K of (n, d) rows quickly, and memory_limit allows it to keep K."""
    n, d = shape
    return n <= MOST and n * n * d <= QUICK and 16 * n * n <= stream.limit - stream.allocated


def tol_share(
    kernel: Kernel | Precomputed, shape: tuple[int, int], found: Result | None, checked: Result | None, quick: bool
) -> float | None:
    """Return the share s if the host shall continue a solve to the KKT violation s * tol, or None if it shall not.

    Return 1 if SMO stalled or could not begin. Return 1 also if rounding on the device may exceed tol, but the host
    computes K more precisely. Return FINE_TOL if a result within tol has a large relative gap and ``quick`` is true.

    shape: (n, d) of the rows.
    found: the result of SMO on the device, None if SMO could not begin.
    checked: ``found`` with its status after the check for float64 rounding errors
        (:meth:`Result.with_precision_status`).
    quick: whether a more accurate result would cost the host little time.
    """
    if found is None or checked is None:
        return 1.0
    if found.status is Status.TOLERANCE and quick and found.gap > (FEW_COARSE if shape[0] <= FEW_ROWS else COARSE_GAP):
        return FINE_TOL
    unverifiable = checked.status is Status.PRECISION
    return 1.0 if found.status is Status.STALLED or (unverifiable and more_precise(kernel, shape)) else None


def more_precise(kernel: Kernel | Precomputed, shape: tuple[int, int]) -> bool:
    """Return whether K of (n, d) rows is more precise on the host than on a device.

    That is so for functions of |x - y|: the host computes the differences x - y, so that no digits are lost for rows
    far from the origin. Return False if this would take too many operations.
    """
    n, d = shape
    return isinstance(kernel, Kernel) and kernel.spec.of_distance and n * n * d <= ON_HOST


class KernelValues(NamedTuple):
    """Hold K (m, m) in float64, perhaps centred.

    Attributes
    ----------
    K
        kernel values (m, m).
    scale
        rounding error of K in units of eps.
    shift
        None, or numbers (m,) if K was centred: the kernel matrix of the rows is K + shift 1' + 1 shift'.
    """

    K: NDArray[np.float64]
    scale: float
    shift: Vector | None = None

    def centred(self, problem: Problem) -> KernelValues:
        """Return K with its row and column means subtracted, if these are large and the coefficients add up to 0.

        Centring changes all gradients f of a problem by one constant, which the offset absorbs. Rounding errors become
        smaller, because a large constant is taken out of K. With a conditionally positive definite function, such as
        -|x - y|^2, the centred K has no negative eigenvalues.
        """
        if not problem.balanced:
            return self
        means = self.K.mean(axis=1)
        size = float((self.K.diagonal() - 2 * means + means.mean()).mean())  # the mean of the centred diagonal
        if np.abs(means).max() < CONSTANT_SHARE * size:
            return self
        # Subtract the vector ``shift`` from rows and columns of K. Every row then has the mean ``size``, since a mean
        # of 0 would make K singular.
        shift = means - (means.mean() + size) / 2
        return self._replace(K=self.K - shift[:, None] - shift, shift=shift)


class HostFit:
    """Finish subproblems on the host.

    X: the rows, or the kernel matrix if the kernel is precomputed.
    plan: the layout of the rows on the device, None for a precomputed kernel.
    rounding: the error of the device's float64 kernel values, in units of eps.
    """

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, plan: Plan | None, rounding: float
    ) -> None:
        self._stream, self._plan, self._X, self._kernel, self._rounding = stream, plan, X, kernel, rounding
        self._options = options
        self._values: KernelValues | None = None

    def finish(self, problem: Problem, before: Result | None, tol_share: float = 1.0, **asked: Any) -> Result:
        """Solve ``problem`` on the host; the result includes the iterations and seconds of ``before``.

        before: result from whose coefficients the solve starts; None lets it start from ``asked["start"]``.
        tol_share: the solve ends at the KKT violation tol_share * tol.
        asked: fields of Settings, whose max_iter and max_time limit this solve alone.
        """
        options, began = self._options, perf_counter()
        settings = Settings(options.tol, options.gap_tol, **asked)
        values = self._values = self._values or self._kernel_values(problem)
        until = began + (np.inf if settings.max_time is None else settings.max_time)
        best = problem.initial if settings.start is None else settings.start
        if before:
            best = problem.feasible(before.b)
        stream, K, status = self._stream, values.K, None
        stream.peak = max(stream.peak, stream.allocated + 8 * (K.size + COPIES * problem.q.size**2))

        def should_continue(found: active_set.ActiveSetResult) -> bool:
            nonlocal status, best
            check_interrupt()
            best, gap = found.b, np.inf
            if settings.progress:
                nan = float("nan")
                settings.progress(Point(perf_counter() - began, found.steps, 0, nan, nan, nan, found.violation))
            if settings.gap_tol is not None:
                gap = certificate.evaluate(problem, found.b, found.f).gap
            status = ended(settings, np.inf, gap, found.steps, until)
            return status is None

        try:
            with few_threads(K.shape[0]):
                most = np.inf if settings.max_iter < 0 else settings.max_iter
                found = active_set.solve(K, problem, best, tol_share * settings.tol, should_continue, most)
        except KeyboardInterrupt:
            if settings.save:
                settings.save(best)
            raise
        b, f = found.b, found.f
        if values.shift is not None:  # centring K by ``shift`` lowered every f of a problem by b'shift
            f = f + (b @ values.shift)[:, None]
        at = certificate.evaluate(problem, b, f)
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
            error_bound=float(certificate.rounding_bounds("float64", values.scale, b).max()),
            exact_rows=int(b.size),
            rows_computed=len(K),
            working_set=int(b.size),
            seconds={"active set": seconds},
            trace=(Point(seconds, found.steps, 0, primal, dual, at.gap, at.violation, len(K)),),
            dtype="float64",
        )
        return result.after(before).with_precision_status(EPS * values.scale, options)

    def _kernel_values(self, problem: Problem) -> KernelValues:
        """Return K in float64. If the problem's coefficients add up to 0, large means of K are subtracted.

        With the linear kernel and dense rows, the mean row is subtracted from X instead, which loses fewer digits.
        """
        stream, X, kernel, scale = self._stream, self._X, self._kernel, self._rounding
        if isinstance(kernel, Precomputed) or self._plan is None:
            return KernelValues(np.asarray(X, np.float64), scale).centred(problem)
        m, d = X.shape
        if kernel.name == "linear" and not sp.issparse(X) and problem.balanced:
            centre = X.mean(axis=0, dtype=np.float64)
            rows = X - centre
            with few_threads(m):
                return KernelValues(rows @ rows.T, scale, rows @ centre + centre @ centre / 2)
        if m * m * d > ON_HOST and stream.profile.wide == "double":
            try:
                with stream.tentative():
                    gram = Gram(stream, layouts.build(stream, X, self._plan, "float64"), kernel)
                    panel = gram.of_all()
                    K = gram.values(panel, m).T
                    stream.free(*panel.buffers(), *gram.rows.buffers())
                certificate.finite(K, kernel)
                return KernelValues(K, scale).centred(problem)
            except (MemoryLimitError, BufferSizeError):  # the host computes K below: more time, but less memory
                pass
        with few_threads(m):
            K = kernel(X)
        certificate.finite(K, kernel)
        host_scale = 2 * float(np.abs(K).max(initial=0.0)) if more_precise(kernel, X.shape) else scale
        return KernelValues((K + K.T) / 2, min(scale, host_scale)).centred(problem)
