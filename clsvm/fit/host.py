"""Solve or finish dual problems over few rows on the host.

The host computes the kernel matrix K in float64 and solves by the active set method (solvers/active_set.py). If K takes
more than ON_HOST multiply-adds, a device with double precision computes K, as far as its memory allows. The host takes
a problem if SMO on a device stalls or takes very long, or if its result is not accurate enough. The result of the host
needs no float64 check, because its gradients are computed in float64.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import Point, Status
from clsvm.solvers import active_set, certificate
from clsvm.solvers.result import Result, Settings, ended
from clsvm.threads import check_interrupt, threads_for

# The host solves problems of at most MOST coefficients. For Crammer and Singer's multiclass SVM the limit is COUPLED.
MOST, COUPLED = 4096, 600
COPIES = 4  # number of matrices of (coefficients)^2 values that a solve needs in memory, in addition to K
# After Profile.most_steps(number of coefficients) + EXTRA_STEPS SMO iterations, the host takes over from a device.
EXTRA_STEPS = 4096
# If SMO reaches tol with a relative duality gap > COARSE_GAP, the host may lower the KKT violation to FINE_TOL * tol.
COARSE_GAP, FINE_TOL = 3e-4, 1e-3
# The host may continue a solve of at most FEW_ROWS rows that SMO ended with a relative duality gap > FEW_COARSE.
FEW_ROWS, FEW_COARSE = 256, 1e-5
# The host lowers KKT violations of small problems to FINE_TOL * tol only in fits of at most SEVERAL small problems.
SEVERAL = 200
EPS = certificate.EPS
# KernelValues.centred centres K only if a row of K has |mean| >= CONSTANT_SHARE * s. Here s is the mean diagonal entry
# that K would have if K were centred to row means of 0.
CONSTANT_SHARE = 0.25
QUICK = 1 << 26  # the host computes a kernel matrix of QUICK multiply-adds faster than it builds an OpenCL program
# The host computes a kernel matrix of at most ON_HOST multiply-adds. A device with float64 computes a larger matrix.
ON_HOST = 1 << 28


def can_solve(stream: Stream, problem: Problem) -> bool:
    """Return whether the host can solve ``problem``.

    The problem must have few coefficients, and the matrices of the solve must fit in memory_limit.
    """
    size, left = problem.q.size, stream.limit - stream.allocated
    most = COUPLED if problem.constraint is Constraint.COUPLED else MOST
    return size <= most and 8 * (problem.n**2 + COPIES * size**2) <= left


def computes_quickly(stream: Stream, shape: tuple[int, int]) -> bool:
    """Return whether the host can compute the kernel matrix of n rows quickly, and store it within memory_limit.

    shape: number of rows and features (n, d).
    """
    n, d = shape
    return n <= MOST and n * n * d <= QUICK and 16 * n * n <= stream.limit - stream.allocated


def tol_share(
    kernel: Kernel | Precomputed, shape: tuple[int, int], found: Result, checked: Result, quick: bool
) -> float | None:
    """Return a factor s if the host shall continue a device's solve to a KKT violation of s * tol, else None.

    tol is the tolerance of the fit. The host continues in three cases:

    - SMO on the device stalled: s is 1.
    - SMO reached tol with a large relative duality gap, and ``quick`` is true: s is FINE_TOL, which is below 1.
    - Rounding errors on the device may be too large for tol, and the host's kernel values are more precise: s is 1.

    shape: number of rows and features (n, d).
    found: the result of SMO on the device.
    checked: the result ``found`` after :meth:`Result.with_precision_status`, which sets the status to PRECISION if
        rounding errors of the device's float64 kernel values may be too large for tol.
    quick: whether a more accurate result costs the host little time.
    """
    if found.status is Status.TOLERANCE and quick and found.gap > (FEW_COARSE if shape[0] <= FEW_ROWS else COARSE_GAP):
        return FINE_TOL
    unverifiable = checked.status is Status.PRECISION
    return 1.0 if found.status is Status.STALLED or (unverifiable and more_precise(kernel, shape)) else None


def more_precise(kernel: Kernel | Precomputed, shape: tuple[int, int]) -> bool:
    """Return whether the host computes the kernel matrix of n rows more precisely than a device.

    The host does so for kernel functions of the difference x - y of two rows. It subtracts the rows first, so that no
    digits are lost for rows far from the origin. Return False if n * n * d operations are too many for the host.

    shape: number of rows and features (n, d).
    """
    n, d = shape
    return isinstance(kernel, Kernel) and kernel.spec.of_distance and n * n * d <= ON_HOST


class KernelValues(NamedTuple):
    """Hold the kernel matrix of m rows in float64, as it is or centred.

    Attributes
    ----------
    K
        matrix (m, m). If it is not centred, K[i, j] is the kernel value k(i, j) of rows i and j. If it is centred,
        K[i, j] is k(i, j) - shift[i] - shift[j].
    scale
        rounding error of a kernel value, in units of eps = 2^-52.
    shift
        numbers (m,). Centring subtracts shift[i] from row i and from column i of the kernel matrix. None if K is not
        centred.
    """

    K: NDArray[np.float64]
    scale: float
    shift: Vector | None = None

    def centred(self, problem: Problem) -> KernelValues:
        """Return the kernel values with K centred, so that all rows of K have the same mean.

        For each i, a number shift[i] is subtracted from row i and column i of K. This lowers rounding errors, because a
        large constant is taken out of K. All gradients change by the same number, which the offset absorbs. K is not
        centred if its row means are small, or if the coefficients of ``problem`` need not add up to 0. With a
        conditionally positive definite kernel function, such as -|x - y|^2, the centred K has no negative eigenvalues.
        """
        if not problem.balanced:
            return self
        means = self.K.mean(axis=1)
        # ``size`` is the mean diagonal entry that K would have if K were centred to row means of 0.
        size = float((self.K.diagonal() - 2 * means + means.mean()).mean())
        if np.abs(means).max() < CONSTANT_SHARE * size:
            return self
        # Subtracting ``shift`` gives each row of K the mean ``size``. The mean is not 0, because K would be singular if
        # all row means were 0.
        shift = means - (means.mean() + size) / 2
        return self._replace(K=self.K - shift[:, None] - shift, shift=shift)


class HostFit:
    """Solve dual problems over the rows X on the host, or finish solves that a device has begun.

    X: the rows, or the kernel matrix if the kernel is precomputed.
    plan: storage format of the rows on the device, None for a precomputed kernel.
    rounding: rounding error of the device's float64 kernel values, in units of eps.
    """

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, plan: Plan | None, rounding: float
    ) -> None:
        self._stream, self._plan, self._X, self._kernel, self._rounding = stream, plan, X, kernel, rounding
        self._options = options
        self._values: KernelValues | None = None

    def finish(self, problem: Problem, before: Result | None, tol_share: float = 1.0, **asked: Any) -> Result:
        """Solve ``problem`` on the host; the result includes the iterations and seconds of ``before``.

        before: result from whose coefficients the solve starts. If it is None, the solve starts from
            ``asked["start"]``.
        tol_share: the solve ends at a KKT violation of tol_share * tol.
        asked: fields of Settings. The limits max_iter and max_time are for this solve alone.
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
            most = np.inf if settings.max_iter < 0 else settings.max_iter
            found = active_set.solve(K, problem, best, tol_share * settings.tol, should_continue, most)
        except KeyboardInterrupt:
            if settings.save:
                settings.save(best)
            raise
        b, f = found.b, found.f
        if values.shift is not None:  # centring K by ``shift`` lowered all gradients f by b @ shift, for coefficients b
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
        """Return the kernel matrix K of the rows in float64, centred where this lowers rounding errors.

        Centring subtracts a number shift[i] from row i and from column i of K, so that the means of all rows of K are
        equal. K is centred only if the constraint of ``problem`` makes the coefficients add up to 0. For the linear
        kernel and dense rows X, the centred K is computed from X minus the mean row of X. This causes smaller rounding
        errors than centring K after K was computed.
        """
        stream, X, kernel, scale = self._stream, self._X, self._kernel, self._rounding
        if isinstance(kernel, Precomputed) or self._plan is None:
            return KernelValues(np.asarray(X, np.float64), scale).centred(problem)
        m, d = X.shape
        if kernel.name == "linear" and not sp.issparse(X) and problem.balanced:
            centre = X.mean(axis=0, dtype=np.float64)
            rows = X - centre
            with threads_for(m * m * d):
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
            except (MemoryLimitError, BufferSizeError):  # the host computes K below, in more time but in less memory
                pass
        with threads_for(m * m * d):
            K = kernel(X)
        certificate.finite(K, kernel)
        host_scale = 2 * float(np.abs(K).max(initial=0.0)) if more_precise(kernel, X.shape) else scale
        return KernelValues((K + K.T) / 2, min(scale, host_scale)).centred(problem)
