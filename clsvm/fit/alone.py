"""Fits in float64 where the device has no double precision: the host solves problems of few rows by itself."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from clsvm import solvers
from clsvm.fit import host, prepare
from clsvm.gram import layouts, precision
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem


class HostFit:
    """What :class:`prepare.PreparedFit` is on a device: rows (or given kernel values) ready for solves, each of at most
    host.MOST coefficients. Raises ValueError where kernel values are too large for float64."""

    last, precision = True, "float64"
    reason = "the host solves it whole in float64, which the device does not have"

    def __init__(self, stream: Stream, X: Any, kernel: Kernel | Precomputed, options: Options) -> None:
        self.stream, self._X, self._kernel, self._options = stream, X, kernel, options
        self.plan: Plan | None = None
        if not isinstance(kernel, Precomputed):
            self.plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
        self._values: host.Values | None = None
        self._scale = self._rounding()

    def _rounding(self) -> float:
        """Of kernel values, in units of eps."""
        if isinstance(self._kernel, Precomputed) or self.plan is None:
            return float(np.abs(self._X).max())
        found = precision.measures(self._kernel, self._X, self.plan)
        given = self._kernel, found.sizes, found.extent, self._X.shape[1]
        return prepare.scales(*given, "float64", "float64").double

    def settle(self, problem: Problem, **asked: Any) -> solvers.Solution:
        """As PreparedFit's. Raises ValueError for a problem that is too large."""
        began, size, options = perf_counter(), problem.q.size, self._options
        if size > host.most(problem):
            words = f"dtype 'float64' needs a device with double precision for a problem of {size} coefficients"
            raise ValueError(f"{words}, {self.stream.info} has none: use 'float32'")
        if not host.takes(self.stream, problem):
            raise ValueError(f"memory_limit is too small for a problem of {size} coefficients in float64 on the host")
        if self._values is None:
            args = self.stream, self._X, self._kernel, self.plan, problem, self._scale
            self._values = host.kernel_values(*args)
        most, limit = asked["max_iter"], asked["max_time"]
        found = host.solve(
            self.stream,
            self._values,
            problem,
            asked["start"],
            options.tol,
            options.gap_tol,
            most=np.inf if most < 0 else most,
            max_time=np.inf if limit is None else limit - (perf_counter() - began),
            progress=asked["progress"],
            save=asked["save"],
        )
        return prepare.sure(found, host.EPS * self._values.scale, options.tol, options.gap_tol)

    def describe(self) -> str:
        """Where the rows stand."""
        return "host, float64"
