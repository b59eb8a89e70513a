"""Solve the dual of kernel SVMs by decomposition into working sets, which are chosen and solved on the device.

Solves:   minimise 1/2 b'Kb + q'b + epsilon * sum |b|,  lo <= b <= hi,  sum b fixed or free; :class:`Coupled` solves
          Crammer and Singer's multiclass SVM
Given:    products with the kernel matrix K (gram); the linear term q, the bounds lo and hi, and the constraint
          (problem.py); settings
Returns:  coefficients b, gradients f = K b + q, offsets rho, and how the solve ended
Stops:    KKT violation <= tol, relative duality gap <= gap_tol, max_iter SMO iterations, or max_time
Source:   GTSVM (Cotter, Srebro, Keshet 2011) sections 3 and 5.1; ThunderSVM and oneDAL for working sets of half old and
          half new rows; cuML, which computes whole rows of K only for rows whose coefficients changed; LIBSVM for the
          choice of two coefficients in an SMO iteration (WSS 2)

    repeat until stopped (an outer iteration):
        ws   <- half of the last working set, and the rows with the largest KKT violations  state.py
        Q    <- K(ws, ws); values among rows that stay remain                               gram.tile, mirror.cl
        b_ws <- solution of the dual over the coefficients of ws, by SMO                    subproblem_*.cl
        f    <- f + K(., c) delta, for the rows c whose coefficients changed by delta;      rowcache.cl, update.cl
                rows of K that are not in the row cache are computed                        gram
        if SMO converges slowly: make a Newton step for all coefficients not at a bound     newton.py

If it is less work, whole rows K(ws, .) are computed first, and Q is copied from them (kernel_rows.py). The host reads
the KKT violation after every ``Profile.sync`` outer iterations, a number that depends on the device (smo.py). K is
usually in float32. b and f are in float64 or pairs of float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from clsvm.gram.products import Operator, Tile, counts
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem, Vector
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.newton import Newton
from clsvm.solvers.result import Settings
from clsvm.solvers.smo import Loop, Optimality
from clsvm.solvers.state import SQUARE, Limits, Selection, SmoKernel, State, View, max_working_set, mirror

# Parts of an outer iteration are timed only for more than UNTIMED rows, because the host must wait for each part.
UNTIMED = 1024
WHOLE = 16  # the memory for a working set is allocated in blocks of at least WHOLE rows
LEAST = 4  # if a working set has at least LEAST rows, half of them stay in the next working set


class Solver(Loop):
    """Solve a problem on one device by outer iterations over working sets.

    :meth:`load` starts another problem of the same shape and constraint. The device's memory and the cached rows of the
    kernel matrix are used again.

    Attributes
    ----------
    stay
        number of rows of a working set that the next working set keeps.
    """

    def __init__(self, stream: Stream, gram: Operator, problem: Problem, settings: Settings) -> None:
        self.stream, self.problem, self.settings = stream, problem, settings
        self.n, self.sync, self.dtype = gram.rows.n_pad, stream.profile.sync, gram.rows.dtype
        self.state = State(stream, gram, problem.problems)
        self.W, stride = self._working_set(gram)
        self.stay = self.W // 2 if self.W >= LEAST else 0
        self.selection = Selection(gram, problem.constraint, self.W, stride)
        self._count = stream.upload(counts([(stride, stride)]))
        self._allocate()
        self._smo = SmoKernel(stream, self.dtype, stride, problem.constraint)
        self._mirror = mirror(stream, self.dtype)
        self._set_view()
        self.rows = KernelRows(self.state, self.selection, self.panel, settings)
        self.newton: Newton | None = None
        self.load(problem, settings)

    def _allocate(self) -> None:
        """Allocate the panel, which is a buffer for rows of X, and Q, the kernel matrix among the working set.

        In an outer iteration the panel first holds the rows of the working set, to compute Q. Then it holds rows whose
        coefficients changed, to update the gradients.
        """
        self.panel, self._has_tile = self.state.gram.panel(self.selection.stride, square=True), False
        self.Q = self.stream.buffer(np.dtype(self.dtype).itemsize * self.panel.capacity**2)

    def _set_view(self) -> None:
        """Set ``view``: buffers with the gradients, coefficients and bounds by which working sets are chosen."""
        self.view = self.state.view

    def load(self, problem: Problem, settings: Settings) -> None:
        """Load ``problem`` and its start coefficients, and compute the gradients of the dual at the start.

        All problems that a solver loads have the same shape and constraint. If ``settings.known_gradient`` has the
        gradients at coefficients near the start, only their change is computed.
        """
        self.problem, self.settings = problem, settings
        start = problem.initial if settings.start is None else settings.start
        change = self.state.load(problem, start, settings.known_gradient)
        self.rows.begin(settings)
        self.selection.clear()
        self._new = range(self.W)
        if self.newton:
            self.newton.release()
        newton_possible = problem.constraint is not Constraint.COUPLED
        self.newton = Newton(self.state, self.rows, settings.kernel_scale) if newton_possible else None
        self._begin()
        if settings.known_exact is not None and settings.known_gradient is not None:
            b, f = settings.known_gradient
            self.check.remember(settings.known_exact, b, f - problem.q)
        self.state.respond(change, self.panel)
        self._update_optimality()

    def _working_set(self, gram: Operator) -> tuple[int, int]:
        """Return the number of rows of a working set, and the number of rows for which memory is allocated.

        The number of rows of a working set is even, because half of them stay in the next working set. The requested
        number of rows is at most the number of rows n of the problem. If it is smaller than a block of rows, it is
        rounded up to an even number. Otherwise it is rounded down to whole blocks. A block has max(gram.width, WHOLE)
        rows. If the constraint fixes two sums, a working set has at least 4 rows: a pair for each sum.

        OpenCL kernels need whole blocks of rows, so memory is allocated for a multiple of the block size. If the rows
        and the kernel matrix among them do not fit in memory, this multiple is lowered in steps of about an eighth,
        down to one block. The working set then has fewer rows than requested.
        """
        stream, rows, unit = self.stream, gram.rows, max(gram.width, WHOLE)
        real, most = np.dtype(rows.dtype).itemsize, max_working_set(stream)
        requested = min(self.settings.working_set, rows.n)
        W = max(1, requested // unit) * unit
        while unit < W:
            parts = gram.panel_bytes(W), W**2 * real
            budget = gram.share * (stream.limit - stream.allocated - self._other_bytes(W, real))
            fits = sum(parts) <= budget and max(parts) <= stream.largest
            if fits and most >= W:
                break
            eighth = (1 << (W - 1).bit_length()) // 8
            W = max(1, (W - max(unit, eighth)) // unit) * unit
        least = LEAST if self.problem.constraint is Constraint.SPLIT else 2
        return min(W, max(least, -(-requested // 2) * 2)), W

    def _other_bytes(self, W: int, real: int) -> int:
        """Return the bytes that a working set of W rows needs in addition to its rows of X and its kernel matrix.

        real: bytes of a kernel value.
        """
        return 24 * self.problem.problems * W + Selection.nbytes(self.stream.profile, self.n, W)

    def coefficients(self) -> Vector:
        return self.state.coefficients()

    def _now(self) -> tuple[Problem, Vector, Vector]:
        return self.state.now()

    def _update_optimality(self) -> None:
        """Compute the optimality state on the device: extremes and sums of the dual's derivatives.

        The extremes are the smallest derivative among coefficients that can rise, and the largest among coefficients
        that can fall. The sums are over free coefficients.
        """
        self.selection.find_extremes(self.view)

    def _replace(self, f: Vector) -> None:
        self.state.replace(f)
        self._update_optimality()

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Free the buffers of the working set at the start of a ``with`` block, and allocate them again at its end.

        The buffers are for rows of X, and for the kernel matrix among the working set.
        """
        self.stream.finish()
        self.stream.free(*self.panel.buffers(), self.Q)
        try:
            yield
        finally:
            self._allocate()
            self.rows.panel = self.panel

    def _between_checks(self, optimality: Optimality) -> bool:
        """Reserve memory for the row cache, and compute rows of K in advance if that saves time.

        Then make a Newton step if it is estimated to cost less than the SMO iterations that it replaces. Return whether
        a Newton step was made and lowered the dual.
        """
        started, newton = perf_counter(), self.newton
        self.rows.reserve(self.history.outer, self.sync, self.history.deadline)
        self.history.add_seconds("rows", started)
        if newton is None or not newton.should_run(optimality, self.settings.tol, self.history.outer):
            return False
        started = perf_counter()
        change = newton.find_change()
        made = change is not None and newton.apply(change)
        if made:
            counters = self.rows.counters()
            counters[0] += 1
            self.stream.write(self.selection.counters, counters)
            self._update_optimality()
        self.history.add_seconds("free", started)
        return made

    def _step(self) -> None:
        rows, half = self.rows, self.W - self.stay
        with self._lap("select"):
            self.selection.choose(self.view, self._new)
        if rows.rows_before_tile:
            with self._lap("rows"):
                rows.plan(range(0), all_rows=True)
                rows.compute_misses(add=False)
        with self._lap("tile"):
            self._tile(self._new)
        with self._lap("subproblem"):
            self._solve_set(Limits.of(self.settings.tol, self.settings.max_iter, self.W))
        with self._lap("update"):
            # The two halves of the working set leave in turn. After the first solve, every row is new.
            self._new = range(half) if self._new.stop == self.W else range(half, self.W)
            rows.plan(self._new)
            rows.add_hits()
        # If ``rows_before_tile`` is set, the row cache has all rows of K for this iteration, and none is computed here.
        with self._lap("rows"):
            rows.compute_misses()
        self._update_optimality()

    @contextmanager
    def _lap(self, part: str) -> Iterator[None]:
        """Measure the seconds of a ``with`` block, which is one part of an outer iteration.

        ``part`` is the name of the part, such as "select" or "update". The seconds are added to the total of this part
        over all outer iterations. At the end of the block, the host may wait for the device, so that the seconds
        include the device's work. The host waits only if all of three conditions hold: a report of the solve will be
        made, the problem has more than UNTIMED rows, and the device's profile asks for a convergence check after every
        outer iteration.
        """
        started = perf_counter()
        yield
        if self.stream.profile.sync == 1 and self.settings.reported and self.n > UNTIMED:
            self.stream.finish()
        elif self.sync == 1 or part == "rows":
            # If convergence checks are rare, flush the command queue only after launches that compute rows of K.
            self.stream.flush()
        self.history.add_seconds(part, started)

    def _tile(self, new: range) -> None:
        """Make Q = K(ws, ws), the kernel matrix among the rows of the working set ws.

        Only the rows at the places ``new`` were not in the previous working set. The kernel values among the other rows
        remain in Q if the halves of the working set are multiples of the OpenCL kernels' block sizes. Half of the other
        values are computed, and the rest follow by symmetry.
        """
        gram, panel = self.state.gram, self.panel
        ws, Q, W = self.selection.ws, self.Q, panel.capacity
        if not self._has_tile or len(new) > self.stay or self.stay % max(gram.rows.lanes, SQUARE):
            new = range(W)
        elif new.start:
            new = range(new.start, W)  # with the places behind the working set, which the kernels compute too
        if self.rows.rows_before_tile:
            self.rows.tile(ws, W, new, Q)
        else:
            gram.gather(panel, ws, self._count)
            gram.tile(panel, Tile(ws, self._count, Q, new.start, new.stop, symmetric=True))
        self._mirror(W, new, Q)
        self._has_tile = True

    def _solve_set(self, limits: Limits) -> None:
        state = self.view, self.rows.delta, self.selection.counters
        self._smo(1, self.n, self.selection.ws, self.Q, state, limits)

    def _read(self) -> Optimality:
        optimality, self.rows.last_counters = self.selection.optimality()
        steps, computed, *_ = self.rows.last_counters.tolist()
        return Optimality(self.problem, *optimality, steps, computed + self.rows.uncached)

    def _sums(self, rho: Vector) -> Vector:
        buffer = self.stream.wide(rho)
        sums = self.selection.sums(self.view, self.state.q, buffer)
        self.stream.free(buffer)
        return sums


class Coupled(Solver):
    """Solve the dual of Crammer and Singer's multiclass SVM, which has coefficients b_pi for each class p and row i.

    Solves:   minimise sum_p (1/2 b_p'K b_p + q_p'b_p),  lo_p <= b_p <= hi_p,  sum_p b_pi = 0 for every row i
    Given:    products with the kernel matrix K; the linear term q_p and the bounds lo_p and hi_p of each class p
    Source:   GTSVM (Cotter, Srebro, Keshet 2011) sections 2.2 and 5.1, equation 4; Crammer and Singer 2002

    b_p is the vector of the coefficients of class p. The gradients are f_p = K b_p + q_p. The KKT violation of row i is
    v_i = max {f_pi : b_pi > lo_pi} - min {f_pi : b_pi < hi_pi} over the classes p. All classes have the same working
    set, which gets the rows with the largest v_i. An SMO iteration chooses one row i, and minimises the dual over the
    coefficients b_pi of this row for all classes p.

    The class Selection, which chooses working sets, expects a dual problem with one coefficient for each row. It is
    given a problem without a constraint on sums, in which the coefficient of row i is 0, its bounds are 0 and 1, and
    its gradient is -v_i. The KKT violation of this coefficient is v_i.
    """

    def _other_bytes(self, W: int, real: int) -> int:
        return super()._other_bytes(W, real) + real * (2 * W + 1) * self.problem.problems + 32 * self.n

    def _set_view(self) -> None:
        stream, real, n = self.stream, np.dtype(self.dtype).itemsize, self.n
        self._scratch = stream.zeros(real * (2 * self.selection.stride + 1) * self.problem.problems)
        b, lo, hi = (stream.wide(np.full(n, bound)) for bound in (0.0, 0.0, 1.0))
        self.view = View(stream.zeros(8 * n), b, lo, hi, self.state.view.epsilon)
        self._k = {name: stream.variant(self.selection.program, name) for name in ("row_violations", "coupled")}

    def _update_optimality(self) -> None:
        self._k["row_violations"]((self.n,), None, self.n, self.state.P, self.state.view[:4], self.view.f)
        super()._update_optimality()

    def _solve_set(self, limits: Limits) -> None:
        f, b, _, hi, _ = self.state.view
        state, n = (f, b, hi, self.rows.delta, self.selection.counters), (self.n, self.state.P)
        self._smo(1, n, self.selection.ws, self.Q, state, limits, memory=self._scratch)

    def _sums(self, rho: Vector) -> Vector:  # rho is unused, because all offsets are 0
        f, b, _, hi, _ = self.state.view
        return self.selection.sums(self.state.P, (f, b, hi, self.state.q), kernel=self._k["coupled"])
