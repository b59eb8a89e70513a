"""Subproblems that the host solves in float64, or finishes from where pair steps leave them."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from clsvm.fit import host
from clsvm.gram import layouts, precision
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem
from clsvm.solvers import Result


class OnHost:
    """Rows X laid out as planned, or X = K, of subproblems for the host.

    rounding: the error of kernel values as a device computes them in float64, in units of eps.
    """

    def __init__(
        self, stream: Stream, X: Any, kernel: Kernel | Precomputed, plan: Plan | None, rounding: float, options: Options
    ) -> None:
        self._given, self._rounding = (stream, X, kernel, plan), rounding
        self._tol, self._gap_tol = options.tol, options.gap_tol
        self._values: host.Values | None = None

    def finish(self, problem: Problem, before: Result | None, aim: float = 1.0, **asked: Any) -> Result:
        """Solve ``problem`` from its result so far, else from ``start``.

        aim: the share of tol at which the work ends. asked: as of solvers.Settings; max_iter and max_time are what is
        left.
        """
        began = perf_counter()
        if self._values is None:
            self._values = host.kernel_values(*self._given, problem, self._rounding)
        most, limit = asked["max_iter"], asked["max_time"]
        found = host.solve(
            self._given[0],
            self._values,
            problem,
            problem.feasible(before.b) if before else asked["start"],
            self._tol,
            host.End(
                self._gap_tol,
                np.inf if most < 0 else most,
                np.inf if limit is None else limit - (perf_counter() - began),
                asked.get("progress"),
                asked.get("save"),
            ),
            aim,
        )
        return found.after(before).certain(host.EPS * self._values.scale, self._tol, self._gap_tol)


class HostFit:
    """What :class:`prepare.PreparedFit` is on a device, where the device does not have float64: rows, or given kernel
    values, ready for solves of at most host.MOST coefficients each. Raises ValueError where kernel values are too large
    for float64."""

    last, precision = True, "float64"
    reason = "the host solves it whole in float64, which the device does not have"

    def __init__(self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options) -> None:
        self.stream, self.plan, self.device = stream, None, str(stream.info)
        if isinstance(kernel, Precomputed):
            rounding = float(np.abs(X).max())
        else:
            self.plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
            found = precision.measures(kernel, X, self.plan)
            rounding = precision.scales(kernel, found.sizes, found.extent, X.shape[1], "float64", "float64").double
        self._on_host = OnHost(stream, X, kernel, self.plan, rounding, options)

    def settle(self, problem: Problem, **asked: Any) -> Result:
        """As PreparedFit's. Raises ValueError for a problem that is too large."""
        size = problem.q.size
        if size > host.most(problem):
            words = f"dtype 'float64' needs a device with double precision for a problem of {size} coefficients"
            raise ValueError(f"{words}, {self.stream.info} has none: use 'float32'")
        if not host.takes(self.stream, problem):
            raise ValueError(f"memory_limit is too small for a problem of {size} coefficients in float64 on the host")
        return self._on_host.finish(problem, None, **asked)

    def peak(self) -> int:
        """Return the most bytes that the device held, or the host for it."""
        return self.stream.peak

    def describe(self) -> str:
        """Return where the rows stand."""
        return "host, float64"
