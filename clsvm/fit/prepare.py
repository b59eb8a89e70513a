"""Rows on a device, ready for solves: layout, precision, working set and row cache, and what their end is worth."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import solvers
from clsvm.fit import host
from clsvm.fit.sizes import MIN_WORKING_SET, choose
from clsvm.gram import layouts, precision, responses, trial
from clsvm.gram.blocks import BESIDE, BlockGram, products_of
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.picked import Picked
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import Measures
from clsvm.gram.precomputed import PrecomputedGram, StoredGram
from clsvm.gram.products import Gram, Products
from clsvm.gram.units import Units
from clsvm.kernels import Kernel, Precomputed, underflow
from clsvm.kernels.evaluation import BROKEN, Extent
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem
from clsvm.report import Status, relative_gap
from clsvm.solvers import certificate

Vector = NDArray[np.float64]
WHOLE_SHARE = 0.5  # of the memory that is left, for all of K
SHARED = 0.25  # of it at most, for rows as they came, those that are laid out, and what a solve has beside them
FETCHED = 256 << 20  # bytes of rows at most that the host copies for a look in float64
ROOM = 1e-3  # of the largest wide number, for targets: what is computed of them is larger


class PreparedFit:
    """Rows (or given kernel values) on a device, and what all solves over them share: settings, row cache, room.

    settings: of a solve without start, time and progress. reason: why the working set and the row cache are as they
    are. plan: None for given values. last: whether the device has no better dtype. precision: how kernel values are
    computed, in words. Raises as :func:`train` does.
    whole: many solves are to come, so all of K is computed first where memory holds it.
    """

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, whole: bool = False
    ) -> None:
        self.stream, self._X, self._kernel = stream, X, kernel
        self._values: host.Values | None = None
        plan = None if isinstance(kernel, Precomputed) else planned(stream.profile, X, kernel, options)
        if isinstance(X, Picked):
            stream.reserve(X.nbytes)  # (another stream's)
        elif plan and X.shape[0] > host.MOST:  # (the host may finish fewer, from X)
            X = on_device(stream, X, plan)
        self.gram, self.plan, self._plain, exact = products(stream, X, kernel, options, dtype, plan)
        room = WHOLE_SHARE * (stream.limit - stream.held)
        if whole and isinstance(self.gram, Gram) and StoredGram.nbytes(self.gram.rows.n_pad, dtype) <= room:
            self.gram = StoredGram(stream, self.gram.rows, self.gram.kernel)
        units, self.precision = fast(self.gram, options, whole)
        scale = self._plain
        if units and isinstance(self.gram, Gram) and scale.sizes is not None and scale.extent:
            self.gram.use(units)
            scale = scales(self.gram.kernel, scale.sizes, scale.extent, X.shape[1], dtype, options.dtype, units.error)
        working_set, cache, self.reason = choose(stream, self.gram, options.working_set_size, options.cache_size)
        if isinstance(self.gram, StoredGram) and options.working_set_size == "auto":
            working_set = max(MIN_WORKING_SET, working_set // 2)
            self.reason += "; half of it, since solves begin near their end"
        self.settings = solvers.Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            max_iter=options.max_iter,
            working_set=working_set,
            cache_bytes=cache,
            kernel_scale=scale.own,
            exact=exact,
            sizes=scale.sizes,
        )
        self.last, self._eps = dtype == stream.profile.finest, float(np.finfo(dtype).eps)
        self._double = float(np.finfo(np.float64).eps) * scale.double  # the same in float64
        self._size = max(self._plain.own, self._plain.double)
        self._solver: solvers.Solver | None = None

    def coarse(self, problem: Problem, tol: float) -> bool:
        """Whether the dtype is too coarse for tol: the rounding of a single coefficient would hide it."""
        return certificate.hopeless(self._eps * self.settings.kernel_scale, problem, tol)  # (of a coefficient 1)

    def holds(self, problem: Problem, start: Vector | None) -> bool:
        """Whether the device's wide numbers hold targets, and what a start makes of f."""
        begun = problem.start if start is None else start
        weight = 0.0 if begun is None else float(np.abs(begun).sum(axis=1).max()) * self._size
        return max(float(np.abs(problem.q).max()), weight) < ROOM * self.stream.profile.largest

    def hopeless(self, problem: Problem, tol: float) -> bool:
        """The same, where there is a better dtype."""
        return not self.last and self.coarse(problem, tol)

    def solve(self, problem: Problem, **settings: Any) -> solvers.Solution:
        """Solve ``problem``, of the constraint and the shape of the ones before. settings: those of solvers.Settings
        that differ from one solve to the next."""
        self._plainer(problem)
        asked = replace(self.settings, **settings)
        if self._solver is None:
            self._solver = solvers.solver(self.stream, self.gram, problem, asked)
        else:
            self._solver.load(problem, asked)
        return self._solver.run()

    def settle(self, problem: Problem, **settings: Any) -> solvers.Solution | None:
        """:meth:`solve`, and on the host what pair steps leave of a problem of few rows: where they stall, go on for
        very long, could not begin in this dtype, or end within a tol that says little of the objective. None where the
        problem is left to a better dtype."""
        self._plainer(problem)
        asked, began, solution = replace(self.settings, **settings), perf_counter(), None
        small, most, aim = host.takes(self.stream, problem), asked.max_iter, 1.0
        held = self.holds(problem, asked.start)
        if not (held or small):
            words = f"targets or sums of weights beyond {ROOM * self.stream.profile.largest:.3g} for a problem of"
            raise ValueError(
                f"{words} {problem.q.size} coefficients need a device with double precision, {self.stream.info} has "
                "none: scale y or sample_weight"
            )
        if held and not self.hopeless(problem, asked.tol):
            patience = self.stream.profile.patience * problem.q.size + host.LEAST
            given = min(patience, most) if most >= 0 else patience
            solution = self.solve(problem, **settings | ({"max_iter": given} if small else {}))
            sure, shape = self._sure(solution, self._double), self._X.shape
            status = Status.STALLED if self._unfinished(solution, most) else solution.status
            gap = max(map(relative_gap, solution.primal, solution.dual))
            rough, quick = sure.status is Status.PRECISION, asked.gap_tol is None and host.holds(self.stream, shape)
            gain = host.aim(self._kernel, shape, status, gap, rough, quick) if small else None
            if gain is None:
                return sure
            aim = gain
        if not small:
            return None
        with self._solver.cleared() if self._solver else nullcontext():
            if solution is None or host.takes(self.stream, problem):
                return self._finished(problem, asked, solution, perf_counter() - began, aim)
        if not self._unfinished(solution, most):  # (memory_limit does not hold the solver and what the host needs)
            return sure
        again: dict[str, Any] = {"start": problem.feasible(solution.b), "known": None}
        if most >= 0:
            again["max_iter"] = most - int(solution.steps.min())
        if asked.max_time is not None:
            again["max_time"] = max(0.0, asked.max_time - (perf_counter() - began))
        return self._sure(self.solve(problem, **settings | again).after(solution), self._double)

    def _plainer(self, problem: Problem) -> None:
        """Plain float32 from here on, before the first solve, where that of matrix units is too coarse for tol. A later
        problem for which it is goes where one goes that float32 is too coarse for."""
        gram = self.gram
        if isinstance(gram, Gram) and gram.units and not self._solver and self.coarse(problem, self.settings.tol):
            self.precision = f"float32: {gram.units.name} is too coarse for tol"
            gram.use(None)
            self.settings = replace(self.settings, kernel_scale=self._plain.own)

    def _finished(
        self, problem: Problem, asked: solvers.Settings, solution: solvers.Solution | None, took: float, aim: float
    ) -> solvers.Solution:
        """What the host makes of a solution, or of the start where there is none."""
        if self._values is None:
            scale = self._double / host.EPS
            self._values = host.kernel_values(self.stream, self._X, self._kernel, self.plan, problem, scale)
        most = asked.max_iter
        found = host.solve(
            self.stream,
            self._values,
            problem,
            asked.start if solution is None else problem.feasible(solution.b),
            asked.tol,
            asked.gap_tol,
            most=np.inf if most < 0 else most - (int(solution.steps.sum()) if solution else 0),
            max_time=np.inf if asked.max_time is None else asked.max_time - took,
            aim=aim,
            progress=asked.progress,
            save=asked.save,
        )
        return self._sure(found.after(solution) if solution else found, host.EPS * self._values.scale)

    def _unfinished(self, solution: solvers.Solution, most: int) -> bool:
        """Whether a problem of few rows took all steps that it was given, but not all that it may."""
        return solution.status is Status.MAX_ITER and not 0 <= most <= int(solution.steps.min())

    def _sure(self, solution: solvers.Solution, rounding: float) -> solvers.Solution:
        return sure(solution, rounding, self.settings.tol, self.settings.gap_tol)

    def describe(self) -> str:
        """The layout and why it was chosen."""
        return self.gram.rows.describe() + (f" ({self.plan.reason})" if self.plan else "")


def sure(solution: solvers.Solution, rounding: float, tol: float, gap_tol: float | None) -> solvers.Solution:
    """The solution, with a status that says so where rounding in float64 itself, so much for a coefficient 1, can hide
    a tenth of the tolerance or more."""
    weight = float(np.abs(solution.b).sum(axis=1).max(initial=0.0))
    hidden, primal = rounding * weight, float(np.abs(solution.primal).max())
    doubtful = certificate.doubtful(solution.status, hidden, weight, primal, tol, gap_tol)
    stalled = solution.status is Status.STALLED and solution.dtype == "float64"  # (else there is float64 to try)
    if (solution.status in (Status.TOLERANCE, Status.GAP) or stalled) and doubtful:
        return replace(solution, status=Status.PRECISION, error_bound=max(solution.error_bound, hidden))
    return solution


class Scales(NamedTuple):
    """The rounding error of kernel values in units of eps: of their dtype, in it, and of float64, in float64; and the
    sizes of rows (n,) that it follows from, with their extent; None of values that are given."""

    own: float
    double: float
    sizes: Vector | None = None
    extent: Extent | None = None


def products(
    stream: Stream,
    X: Any,
    kernel: Kernel | Precomputed,
    options: Options,
    dtype: str,
    plan: Plan | None = None,
    laid: Plan | None = None,
) -> tuple[Products, Plan | None, Scales, solvers.Exact]:
    """(products of the rows of X or of K, the plan of their layout, rounding errors of kernel values, what evaluates
    them in float64), once they are on the device.

    laid: how they stand, where not as planned. Raises ValueError where numbers are too large for the dtype or memory
    too small.
    """
    if isinstance(kernel, Precomputed):
        largest = float(np.abs(X).max())
        if largest > float(np.finfo(dtype).max):
            raise ValueError(beyond(f"a kernel value of {largest:.3g} is too large", options.dtype))
        given = PrecomputedGram(stream, X, dtype)
        own = 0.0 if X.dtype == dtype == "float32" else largest
        return given, None, Scales(own, largest), _exact_given(X)
    plan = plan or planned(stream.profile, X, kernel, options)
    gram = products_of(stream, X, laid or plan, kernel, dtype)
    stream.finish()
    return gram, plan, rounding(stream, plan, X, gram, options.dtype), _exact(options, gram, plan, X)


def fast(gram: Products, options: Options, many: bool = False) -> tuple[Units | None, str]:
    """(matrix units for the products of a fit where precision="fast" asks for them and they serve, how kernel values
    are computed, in words). many: whether many solves share the rows, of which some may be too hard for the units."""
    dtype = gram.rows.dtype
    if options.precision != "fast" or dtype != "float32":
        return None, dtype
    if not isinstance(gram, Gram):
        return None, "float32: K is given, is stored whole, or is of rows that pass through the device"
    if many:
        return None, "float32: many solves share the rows"
    stream = gram.stream
    why = [one.why_not(gram.kernel.spec, gram.rows, stream.profile) for one in trial.known(stream)]
    if why and all(why):  # (no trial where none would serve)
        return None, f"float32: {why[0]}"
    units, words, _ = trial.found(stream)
    words = units.why_not(gram.kernel.spec, gram.rows, stream.profile) if units else words
    return (units, units.name) if units and not words else (None, f"float32: {words}")


def on_device(stream: Stream, X: Any, plan: Plan) -> Any:
    """X (n, d), Picked from a dense copy on a device with memory of its own, where it is laid out so and takes, with
    the rows and what a solve has beside them, a small part of that: what is laid out later, for a look in float64 or of
    some of the rows, goes over no bus again, and the host gathers nothing. Else X."""
    if plan.kind != DENSE.name or stream.unified or stream.profile.wide == "pair":
        return X
    (n, d), size, sparse = X.shape, X.dtype.itemsize, sp.issparse(X)
    if n * (2 * d * size + BESIDE) > SHARED * (stream.limit - stream.held):
        return X
    if n * d * size > min(stream.largest, FETCHED if sparse else np.inf):
        return X
    dense = X.toarray() if sparse else X
    return Picked(dense, stream.upload(dense), plan, np.arange(n))


def planned(profile: Profile, X: Any, kernel: Kernel, options: Options) -> Plan:
    """The layout of the rows of X, as the options ask. Raises as layouts.choose does."""
    if isinstance(X, Picked):
        return X.plan
    return layouts.choose(profile, X, kernel.spec, options.layout, options.working_set_size)


def _exact(options: Options, gram: Gram | BlockGram, plan: Plan, X: Any) -> Callable[..., Vector]:
    """K b in float64 for some rows, within what is left of the budget; of many rows or support vectors, which may be in
    a file, some at a time."""
    stream, kernel = gram.stream, gram.kernel
    step = max(1, FETCHED // max(1, X.nnz * 12 // X.shape[0] if sp.issparse(X) else X.shape[1] * X.itemsize))

    def in_pieces(own: Stream, rows: NDArray[np.intp], support: NDArray[np.intp], b: Vector) -> Vector:
        c = np.zeros((len(b), len(rows)))
        for first in range(0, len(rows), step):
            here = X[rows[first : first + step]]
            for begin in range(0, len(support), step):
                some = support[begin : begin + step]
                given = own, kernel, plan, here, X[some], b[:, some]
                c[:, first : first + step] += responses.exact_responses(*given)
        return c

    def exact(rows: NDArray[np.intp], b: Vector) -> Vector:
        support, c = np.flatnonzero(b.any(axis=0)), None
        with gram.lent(), Stream(options.device, max(1, stream.limit - stream.held), stream.profile) as own:
            if max(len(rows), len(support)) <= step:
                c = responses.exact_among(own, kernel, plan, X, rows, support, b[:, support])
            c = in_pieces(own, rows, support, b) if c is None else c
            stream.peak = max(stream.peak, stream.held + own.peak)
        return c

    return exact


def _exact_given(K: Any) -> Callable[..., Vector]:
    """The same where K is given."""
    return lambda rows, b: (K[rows] @ b.T).T


def rounding(stream: Stream, plan: Plan, X: Any, gram: Gram | BlockGram, asked: str) -> Scales:
    """The rounding errors of kernel values. Raises ValueError where they are too large for a dtype."""
    found = row_sizes(stream, plan, X, gram)
    return scales(gram.kernel, found.sizes, found.extent, X.shape[1], gram.rows.dtype, asked)


def row_sizes(stream: Stream, plan: Plan, X: Any, gram: Gram | BlockGram) -> Measures:
    """The size of each row (n,), and its entries where these count, from which rounding errors follow."""
    dtype = gram.rows.dtype
    eps, floor = float(np.finfo(dtype).eps), underflow(dtype, X.shape[1])
    found: Vector = stream.read(gram.rows.xx, dtype, gram.rows.n_pad)[gram.rows.position].astype(np.float64)
    if gram.kernel.spec.element or found.min(initial=np.inf) * eps < floor:  # (too small for the dtype is 0 there)
        return precision.measures(gram.kernel, X, plan)
    return Measures(found, found[:0], found[:0])


def scales(
    kernel: Kernel, sizes: Vector, extent: Extent, d: int, dtype: str, asked: str, error: float | None = None
) -> Scales:
    """The rounding errors of kernel values of rows of d features with such sizes. error: that of an inner product over
    its norms, where it is not the dtype's. Raises ValueError where they are too large for a dtype, and where inner
    values leave the range of float64."""
    size, least, *_ = extent
    single, double = (kernel.evaluation(extent, extent, one, d) for one in (dtype, "float64"))
    eps, most = float(np.finfo(dtype).eps), float(np.finfo(dtype).max)
    error = error or eps
    own = kernel.rounding(size, error, least, underflow(dtype, d)) * (error / eps)
    wide = kernel.rounding(size, host.EPS, least, underflow("float64", d))
    if not (single.largest <= most and wide < np.inf):
        raise ValueError(beyond(f"{kernel!r} of these rows (inner products up to {size:.3g}) is too large", asked))
    precision.refuse(kernel, extent, extent, d)
    return Scales(min(max(own, single.error / eps), BROKEN), max(wide, double.error / host.EPS), sizes, extent)


def beyond(what: str, dtype: str) -> str:
    """The words for numbers that ``dtype`` does not hold."""
    return f"{what} for {dtype}: scale X" + (" or take dtype='float64'" * (dtype == "float32"))
