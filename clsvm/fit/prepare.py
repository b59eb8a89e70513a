"""Rows on a device, ready for solves: layout, precision, working set and row cache, and what their end is worth."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.fit import host
from clsvm.gram import exact, layouts, precision, store
from clsvm.gram import units as matrix_units
from clsvm.gram.blocks import BESIDE, products_of
from clsvm.gram.layouts.lanes import DENSE, DeviceRows
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import Scales
from clsvm.gram.products import Operator
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.report import Status
from clsvm.solvers import certificate
from clsvm.solvers.decomposition import Coupled, Solver
from clsvm.solvers.kernel_rows import MIN_WORKING_SET, sizes
from clsvm.solvers.result import Result, Settings

Vector = NDArray[np.float64]
WHOLE_SHARE = 0.5  # of the memory that is left, for all of K
SHARED = 0.25  # of it at most, for rows as they came, those that are laid out, and what a solve has beside them
ROOM = 1e-3  # of the largest wide number, for targets: what is computed of them is larger


class PreparedFit:
    """Rows, or given kernel values, on a device, and what all solves over them share: settings, row cache, room.

    plan: the layout of the rows, None for given values. settings: of a solve without start, time and progress. reason:
    why working set and row cache have their sizes. last: whether the device has no better dtype. precision: how kernel
    values are computed, in words. whole: many solves are to come, so all of K is computed first where memory holds it.
    Raises ValueError as :func:`products` does.
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
            stream.reserve(X.nbytes)  # (another stream's)
        elif plan and X.shape[0] > host.MOST:  # (the host may finish fewer, from X)
            X = on_device(stream, X, plan)
        self.gram, self._plain = products(stream, X, kernel, options, dtype, plan)
        exactly = exact.of_rows(self.gram, X, plan, options.device) if plan else exact.of_given(X)
        room = WHOLE_SHARE * (stream.limit - stream.held)
        stored = whole and self.gram.resident and store.nbytes(self.gram.rows.n_pad, dtype) <= room
        if stored:
            self.gram = store.computed(self.gram, tiles=True)
        units, self.precision = matrix_units.chosen(self.gram, options.precision, whole)
        scale = self._plain
        if units and scale.sizes is not None and scale.extent:
            self.gram.use(units)
            given = scale.sizes, scale.extent, X.shape[1], dtype, options.dtype, units.error
            scale = precision.scales(self.gram.kernel, *given)
        working_set, cache, self.reason = sizes(stream, self.gram, options.working_set_size, options.cache_size)
        if stored and options.working_set_size == "auto":
            working_set = max(MIN_WORKING_SET, working_set // 2)
            self.reason += "; half of it, since solves begin near their end"
        self.settings = Settings(
            tol=options.tol,
            gap_tol=options.gap_tol,
            max_iter=options.max_iter,
            working_set=working_set,
            cache_bytes=cache,
            kernel_scale=scale.own,
            exact=exactly,
            sizes=scale.sizes,
        )
        self.plan, self.device, self.last = plan, str(stream.info), dtype == stream.profile.finest
        self._double = host.EPS * scale.double
        self._on_host = host.HostFit(stream, self._X, kernel, options, plan, scale.double)
        self._solver: Solver | None = None

    def coarse(self, problem: Problem, tol: float) -> bool:
        """Return whether the dtype is too coarse for tol."""
        return certificate.coarse(self._dtype, self.settings.kernel_scale, problem, tol)

    def solve(self, problem: Problem, **settings: Any) -> Result:
        """Solve ``problem``, of the constraint and the shape of the ones before.

        settings: those of Settings that differ from one solve to the next.
        """
        self._plainer(problem)
        asked = replace(self.settings, **settings)
        if self._solver is None:
            method = Coupled if problem.constraint is Constraint.COUPLED else Solver
            self._solver = method(self.stream, self.gram, problem, asked)
        else:
            self._solver.load(problem, asked)
        return self._solver.run()

    def settle(self, problem: Problem, **asked: Any) -> Result | None:
        """Solve ``problem`` by pair steps, and finish one of few rows on the host.

        That is done where pair steps stall, go on for very long, could not begin in this dtype, or end within a tol
        that says little of the objective.

        asked: ``settings`` of :meth:`solve`, among them start, max_iter and max_time. Return None where the problem is
        left to a better dtype.
        """
        self._plainer(problem)
        began, found, most = perf_counter(), None, asked["max_iter"]
        small, held, aim = host.takes(self.stream, problem), self._holds(problem, asked["start"]), None
        if not (held or small):
            words = f"targets or sums of weights beyond {ROOM * self.stream.profile.largest:.3g} for a problem of"
            raise ValueError(
                f"{words} {problem.q.size} coefficients need a device with double precision, {self.stream.info} has "
                "none: scale y or sample_weight"
            )
        if held and (self.last or not self.coarse(problem, self.settings.tol)):
            patience = self.stream.profile.patience * problem.q.size + host.LEAST
            given = patience if small and not 0 <= most <= patience else most
            found = self.solve(problem, **asked | {"max_iter": given})
        if small:
            aim = self._aim(found, most)
        if aim is None:
            return found and self._certain(found)
        if found:
            seconds = perf_counter() - began
            asked["max_time"] = asked["max_time"] and max(0.0, asked["max_time"] - seconds)
            asked["max_iter"] = most if most < 0 else most - found.steps
        with self._solver.cleared() if self._solver else nullcontext():
            if found is None or host.takes(self.stream, problem):
                return self._on_host.finish(problem, found, aim, **asked)
        if found.unfinished(most):  # (memory_limit does not hold the solver and what the host needs)
            again = {"start": problem.feasible(found.b), "known": None}
            found = self.solve(problem, **asked | again).after(found)
        return self._certain(found)

    def _holds(self, problem: Problem, start: Vector | None) -> bool:
        """Return whether the device's wide numbers hold targets, and what a start makes of f."""
        begun = problem.start if start is None else start
        size = max(self._plain.own, self._plain.double)
        weight = 0.0 if begun is None else float(np.abs(begun).sum(axis=1).max()) * size
        return max(float(np.abs(problem.q).max()), weight) < ROOM * self.stream.profile.largest

    def _aim(self, found: Result | None, most: int) -> float | None:
        """Return the share of tol that the host shall come to from a result of pair steps, None where it gains
        nothing."""
        certain = found and self._certain(found)
        seen = replace(found, status=Status.STALLED) if found and found.unfinished(most) else found
        quick = self.settings.gap_tol is None and host.holds(self.stream, self._X.shape)
        return host.aim(self._kernel, self._X.shape, seen, certain, quick)

    def _plainer(self, problem: Problem) -> None:
        """Take plain float32 before the first solve where that of matrix units is too coarse for tol. A later problem
        for which it is goes where one goes that float32 is too coarse for."""
        gram = self.gram
        if gram.units and not self._solver and self.coarse(problem, self.settings.tol):
            self.precision = f"float32: {gram.units.name} is too coarse for tol"
            gram.use(None)
            self.settings = replace(self.settings, kernel_scale=self._plain.own)

    def _certain(self, found: Result) -> Result:
        return found.certain(self._double, self.settings.tol, self.settings.gap_tol)

    def peak(self) -> int:
        """Return the most bytes that the device held."""
        return self.stream.peak

    def describe(self) -> str:
        """Return the layout in words, and why it was chosen."""
        return self.gram.rows.describe() + (f" ({self.plan.reason})" if self.plan else "")


def products(
    stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options, dtype: str, plan: Plan | None
) -> tuple[Operator, Scales]:
    """Return products with K of the rows of X, laid out as planned, or with K = X, once they are on the device; and the
    rounding errors of kernel values.

    Raises ValueError where numbers are too large for the dtype or memory too small.
    """
    if isinstance(kernel, Precomputed) or plan is None:
        largest = float(np.abs(X).max())
        if largest > float(np.finfo(dtype).max):
            raise ValueError(precision.beyond(f"a kernel value of {largest:.3g} is too large", options.dtype))
        return store.given(stream, X, dtype), Scales(0.0 if X.dtype == dtype == "float32" else largest, largest)
    gram = products_of(stream, X, plan, kernel, dtype)
    stream.finish()
    found = precision.measured(stream, gram.rows, kernel, X, plan)
    return gram, precision.scales(kernel, found.sizes, found.extent, X.shape[1], dtype, options.dtype)


def on_device(stream: Stream, X: Any, plan: Plan) -> Any:
    """Return X (n, d) as DeviceRows on a device with memory of its own, else X.

    X has to be dense there and to take, with the rows and what a solve has beside them, a small part of that memory.
    Rows that are laid out later, for a float64 check or a subproblem, then go over no bus again.
    """
    if plan.kind != DENSE.name or stream.unified or stream.profile.wide == "pair":
        return X
    (n, d), size, sparse = X.shape, X.dtype.itemsize, sp.issparse(X)
    if n * (2 * d * size + BESIDE) > SHARED * (stream.limit - stream.held):
        return X
    if n * d * size > min(stream.largest, exact.FETCHED if sparse else np.inf):
        return X
    dense = X.toarray() if sparse else X
    return DeviceRows(dense, stream.upload(dense), plan, np.arange(n))


def planned(profile: Profile, X: Any, kernel: Kernel | Precomputed, options: Options) -> Plan | None:
    """Return the layout of the rows of X, as the options ask; None for kernel values. Raises as layouts.choose does."""
    if isinstance(kernel, Precomputed):
        return None
    if isinstance(X, DeviceRows):
        return X.plan
    return layouts.choose(profile, X, kernel.spec, options.layout, options.working_set_size)
