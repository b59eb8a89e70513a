"""Problems that are coupled row by row, solved together: multiclass machines of Crammer and Singer.

Solves:   minimise sum_p 1/2 b_p'K b_p + q_p'b_p,  b <= hi,  sum_p b_pi = 0 for every row i
Given:    as decomposition.py; one working set of rows for all problems
Source:   GTSVM (Cotter, Srebro, Keshet 2011) sections 2.2 and 5.1, equation 4; Crammer and Singer 2002

A row's violation v_i = max_p f_pi - min {f_pi : b_pi < hi_pi} is what the working set is chosen by: to the selection
the rows are one problem without bias whose gradient is -v. Inside the working set a row is solved exactly at a time.
"""

from __future__ import annotations

import numpy as np

from clsvm.opencl.stream import Buffer
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.programs import Limits
from clsvm.solvers.selection import View


class Coupled(Solver):
    """The stages of a step that differ."""

    _more = ("spread", "coupled")

    def _shape(self) -> tuple[int, int]:
        return 1, self.problem.problems

    def _besides(self, W: int, real: int) -> int:
        return super()._besides(W, real) + real * (2 * W + 1) * self.P + 32 * self.n

    def _scratch(self) -> None:
        super()._scratch()
        stream, real = self.stream, np.dtype(self.gram.rows.dtype).itemsize
        self.rows = stream.zeros(real * (2 * self.stride + 1) * self.P)
        b, lo, hi = (stream.wide(np.full(self.n, bound)) for bound in (0.0, 0.0, 1.0))
        self.view = View(stream.zeros(8 * self.n), b, lo, hi, self.state.kink)

    def _view(self) -> View:
        return self.view

    def _extremes(self) -> None:
        self._k["spread"]((self.n,), None, self.n, self.P, super()._view()[:4], self.view.f)
        super()._extremes()

    def _solve_set(self) -> None:
        state = (self.state.f, self.state.b, self.state.hi, self.delta, self.counters)
        size = (self.items,), (self.items,)
        limits = Limits.of(self.settings.tol, self.settings.max_iter, self.W)
        self._subproblem(*size, self.n, self.P, self.stride, self.selection.ws, self.Q, state, limits, self.rows)

    def _sum(self, rho: Buffer) -> None:  # (the offsets are 0)
        state = (self.state.f, self.state.b, self.state.hi, self.state.q)
        self.selection.over_rows(self._k["coupled"], self.P, state, self.sums)
