"""Prepare rows on a device, and solve dual problems over them.

Preparation chooses the storage format of the rows, and the sizes of working set and row cache. The caller chooses the
dtype of kernel values, and preparation decides whether matrix units (tensor cores) compute them.
:meth:`PreparedFit.solve` solves one problem, and hands it to the host if SMO stalls. If rounding errors of float64 are
too large for tol, the result gets the status PRECISION.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

from clsvm.fit import host
from clsvm.gram import exact, layouts, precision, store
from clsvm.gram import units as matrix_units
from clsvm.gram.blocks import STATE_BYTES, products_of
from clsvm.gram.layouts.lanes import DENSE, DeviceRows
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import Scales
from clsvm.gram.products import Operator
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem, Vector
from clsvm.report import Status
from clsvm.solvers import certificate
from clsvm.solvers.decomposition import Coupled, Solver
from clsvm.solvers.kernel_rows import MIN_WORKING_SET, sizes
from clsvm.solvers.result import Result, Settings

WHOLE_SHARE = 0.5  # share of the free memory that the whole kernel matrix may take
# X may be stored twice on the device if both copies and a solve's arrays take at most the share SHARED of free memory.
SHARED = 0.25
# The dual's linear term and K @ (start coefficients) must be below RANGE_SHARE * (the device's largest number).
RANGE_SHARE = 1e-3


class PreparedFit:
    """Hold rows (or a precomputed kernel matrix K) on a device, and solve dual problems over these rows.

    All solves share settings and a cache of rows of K. The constructor's argument ``whole`` says that many solves will
    follow. All of K is then computed before the first solve, if it fits in memory. Raises ValueError if numbers are too
    large for the dtype or memory is too small.

    Attributes
    ----------
    plan
        storage format of the rows on the device, None for a precomputed kernel.
    settings
        fields of Settings that all solves have in common.
    reason
        text that says why working set and row cache have their sizes.
    is_finest
        whether the dtype of the kernel values is the most precise one that the device supports.
    precision
        text that says how kernel values are computed.
    """

    def __init__(
        self,
        stream: Stream,
        X: Any,
        kernel: Kernel | Precomputed,
        options: Options,
        dtype: str,
        plan: Plan | None = None,
        whole: bool = False,
    ) -> None:
        self.stream, self._X, self._kernel, self._dtype = stream, X, kernel, dtype
        plan = plan or planned(stream.profile, X, kernel, options)
        if isinstance(X, DeviceRows):
            stream.reserve(X.nbytes)  # X is in a buffer of another stream, but counts in this stream's memory limit
        elif plan and X.shape[0] > host.MOST:
            # X with at most host.MOST rows is not copied for later use: the host may solve a problem of this size.
            X = on_device(stream, X, plan)
        self.gram, self._scales = products(stream, X, kernel, options, dtype, plan)
        exactly = exact.of_rows(self.gram, X, plan, options.device) if plan else exact.of_precomputed(X)
        budget = WHOLE_SHARE * (stream.limit - stream.allocated)
        stored = whole and self.gram.resident and store.nbytes(self.gram.rows.n_pad, dtype) <= budget
        if stored:
            self.gram = store.computed(self.gram, tiles=True)
        units, self.precision = matrix_units.choose_units(self.gram, options.precision, whole)
        scale = self._scales
        if units and scale.sizes is not None and scale.extent:
            self.gram.use(units)
            given = scale.sizes, scale.extent, X.shape[1], dtype, options.dtype, units.error
            scale = precision.scales(self.gram.kernel, *given)
        chosen = sizes(stream, self.gram, options.working_set_size, options.cache_size)
        working_set, self.reason = chosen.working_set, chosen.reason
        if stored and options.working_set_size == "auto":
            working_set = max(MIN_WORKING_SET, working_set // 2)  # each solve starts near its solution
        self.settings = Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            working_set=working_set,
            cache_bytes=chosen.cache_bytes,
            cache_after=chosen.cache_after,
            kernel_scale=scale.in_dtype,
            exact=exactly,
            sizes=scale.sizes,
        )
        self.plan, self.device, self.is_finest = plan, str(stream.info), dtype == stream.profile.finest
        self._double_error = host.EPS * scale.double
        self._on_host = host.HostFit(stream, self._X, kernel, options, plan, scale.double)
        self._solver: Solver | None = None

    def precision_insufficient(self, problem: Problem, tol: float) -> bool:
        """Return whether rounding errors of kernel values in the dtype of this fit are too large for tol."""
        return certificate.precision_insufficient(self._dtype, self.settings.kernel_scale, problem, tol)

    def solve_smo(self, problem: Problem, **settings: Any) -> Result:
        """Solve ``problem`` by SMO. All problems that one PreparedFit solves must have the same constraint and shape.

        settings: fields of Settings for this solve alone.
        """
        self._disable_units(problem)
        merged = replace(self.settings, **settings)
        if self._solver is None:
            method = Coupled if problem.constraint is Constraint.COUPLED else Solver
            self._solver = method(self.stream, self.gram, problem, merged)
        else:
            self._solver.load(problem, merged)
        return self._solver.run()

    def solve(self, problem: Problem, **settings: Any) -> Result | None:
        """Solve ``problem`` with kernel values in the dtype of this fit, or return None if float64 is needed.

        The device solves the problem by SMO, unless rounding errors of the kernel values are too large for tol. In that
        case the result is None, and the caller solves the problem in float64. If the problem has few rows, the host
        takes over from SMO in three cases:

        - SMO stalled or took very many iterations.
        - SMO ended with a large relative duality gap, and the host can solve quickly.
        - Rounding errors of float64 on the device may be too large for tol, and the host's are smaller.

        Raises ValueError if targets or sums of weights are so large that the solve may overflow on the device. The
        limit is RANGE_SHARE times the largest number that the device computes with: the largest float32 on a device
        without double precision, else the largest float64.

        settings: fields of Settings for this solve alone, among them start, max_iter and max_time.
        """
        self._disable_units(problem)
        self._check_range(problem, settings["start"])
        if not self.is_finest and self.precision_insufficient(problem, self.settings.tol):
            return None
        began, most, small = perf_counter(), settings["max_iter"], host.can_solve(self.stream, problem)
        patience = self.stream.profile.most_steps(problem.q.size) + host.EXTRA_STEPS
        given = patience if small and not 0 <= most <= patience else most
        found = self.solve_smo(problem, **settings | {"max_iter": given})
        share = self._host_share(found, most) if small else None
        if share is None:
            return found.with_precision_status(self._double_error, self.settings)
        seconds = perf_counter() - began
        settings["max_time"] = settings["max_time"] and max(0.0, settings["max_time"] - seconds)
        settings["max_iter"] = most if most < 0 else most - found.steps
        if host.can_solve(self.stream, problem):
            return self._on_host.finish(problem, found, share, **settings)
        # If the host lacks memory for K, SMO continues on the device up to the caller's limit of ``most`` iterations.
        if found.unfinished(most):
            found = self.solve_smo(problem, **settings | {"start": problem.feasible(found.b)}).after(found)
        return found.with_precision_status(self._double_error, self.settings)

    def _check_range(self, problem: Problem, start: Vector | None) -> None:
        """Raise ValueError if the numbers of a dual problem are so large that the solve may overflow on the device.

        Two numbers must be below RANGE_SHARE (0.001) times the largest number that the device computes with. The first
        is the largest entry of the dual's linear term. The second is an estimate of the largest entry of K times the
        start coefficients. A device without double precision computes with numbers up to the largest float32.

        start: the start coefficients. If ``start`` is None, the start coefficients are ``problem.initial``.
        """
        initial, size = problem.initial if start is None else start, max(self._scales.in_dtype, self._scales.double)
        weight = float(np.abs(initial).sum(axis=1).max()) * size
        most = RANGE_SHARE * self.stream.profile.largest
        if max(float(np.abs(problem.q).max()), weight) >= most:
            raise ValueError(
                f"targets or sums of weights beyond {most:.3g} need a device with double precision, "
                f"{self.stream.info} has none: make y or sample_weight smaller"
            )

    def _host_share(self, found: Result, most: int) -> float | None:
        """Return a factor s if the host shall continue the solve to a KKT violation of s * tol, else None.

        found: the result of SMO on the device, from which the host continues.
        most: the caller's limit on SMO iterations, -1 for no limit.
        """
        checked = found.with_precision_status(self._double_error, self.settings)
        unfinished = replace(found, status=Status.STALLED) if found.unfinished(most) else found
        quick = self.settings.gap_tol is None and host.computes_quickly(self.stream, self._X.shape)
        return host.tol_share(self._kernel, self._X.shape, unfinished, checked, quick)

    def _disable_units(self, problem: Problem) -> None:
        """Stop using matrix units (tensor cores) if their rounding errors are too large for tol.

        This is possible only before the first solve. If the errors are too large for a later problem, the host solves
        the problem, or it is solved in float64.
        """
        gram = self.gram
        if gram.units and not self._solver and self.precision_insufficient(problem, self.settings.tol):
            self.precision = f"float32: {gram.units.name} is too coarse for tol"
            gram.use(None)
            self.settings = replace(self.settings, kernel_scale=self._scales.in_dtype)

    def peak(self) -> int:
        """Return the largest number of bytes that the device had allocated at a time."""
        return self.stream.peak

    def describe(self) -> str:
        """Return a text that names the storage format of the rows on the device, and the reason for it."""
        return self.gram.rows.describe() + (f" ({self.plan.reason})" if self.plan else "")


@contextmanager
def on_one_device(
    rows: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, plan: Plan | None
) -> Iterator[PreparedFit]:
    """Open the device of ``options``, copy ``rows`` to it, and yield them as a :class:`PreparedFit`.

    plan: storage format of the rows on the device; None chooses one.
    """
    with Stream(options.device, options.memory_limit) as stream:
        yield PreparedFit(stream, rows, kernel, options, dtype, plan)


def products(
    stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, plan: Plan | None
) -> tuple[Operator, Scales]:
    """Return an operator for products with the kernel matrix K(X, X), and the rounding errors of kernel values.

    Raises ValueError if numbers are too large for the dtype or memory is too small.

    X: rows, or the kernel matrix itself if the kernel is precomputed.
    plan: storage format of the rows on the device.
    """
    if isinstance(kernel, Precomputed) or plan is None:
        largest = float(np.abs(X).max())
        if largest > float(np.finfo(dtype).max):
            raise ValueError(precision.beyond(f"a kernel value of {largest:.3g} is too large", options.dtype))
        return store.precomputed(stream, X, dtype), Scales(0.0 if X.dtype == dtype == "float32" else largest, largest)
    gram = products_of(stream, X, plan, kernel, dtype)
    stream.finish()
    found = precision.measured(stream, gram.rows, kernel, X, plan)
    return gram, precision.scales(kernel, found.sizes, found.extent, X.shape[1], dtype, options.dtype)


def on_device(stream: Stream, X: Any, plan: Plan) -> Any:
    """Return a copy of X (n, d) on the device, or X itself if a copy saves no time or does not fit in device memory.

    The rows of X are used again when a solution is checked in float64, and when later dual problems over some of the
    rows are solved. Without a copy, the host sends the rows to the device for each use. A copy is made only if ``plan``
    stores the rows as a dense matrix, and if the device has its own memory and double precision.
    """
    if plan.kind != DENSE.name or stream.unified or stream.profile.wide == "pair":
        return X
    (n, d), size, sparse = X.shape, X.dtype.itemsize, sp.issparse(X)
    if n * (2 * d * size + STATE_BYTES) > SHARED * (stream.limit - stream.allocated):
        return X
    if n * d * size > min(stream.largest, exact.FETCHED if sparse else np.inf):
        return X
    dense = X.toarray() if sparse else X
    return DeviceRows(dense, stream.upload(dense), plan, np.arange(n))


def planned(profile: Profile, X: Any, kernel: Kernel | Precomputed, options: Options) -> Plan | None:
    """Return the plan by which rows X are stored on the device, or None if X is a precomputed kernel matrix.

    Raises ValueError if the layout that the options name cannot hold the rows, or if the kernel function cannot use it.
    """
    if isinstance(kernel, Precomputed):
        return None
    if isinstance(X, DeviceRows):
        return X.plan
    return layouts.choose(profile, X, kernel.spec, options.layout, options.working_set_size, all_rows=True)
