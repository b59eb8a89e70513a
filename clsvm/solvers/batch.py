"""Solve many small problems at a time, each with all of its kernel matrix on the device.

Solves:   minimise 1/2 b'Kb + q'b + epsilon * sum |b|,  lo <= b <= hi,  for each subproblem. An equality constraint may
          fix the sum of b. In nu-SVC and nu-SVR it fixes two sums: over rows with hi > 0, and over rows with lo < 0.
Given:    products with the kernel matrix K over all rows of the data set (gram); the rows of each subproblem, the
          linear term q and the bounds lo and hi of its dual
Returns:  coefficients b, offsets rho, objectives and KKT violation of each subproblem

A subproblem is a dual problem over some rows of a data set, such as the rows of two classes or of a fold. Its tile is
the kernel matrix among its rows, padded to W x W values. A batch of subproblems is solved in three stages:

    1. compute the tile of each subproblem
    2. run the SMO kernel, an OpenCL kernel with one work-item or work-group for each subproblem
    3. compute the gradients f = K b + q of each subproblem from its tile

Stages 2 and 3 are repeated until all subproblems are solved or make no progress. Stage 3 adds in double precision, or
in pairs of floats if the device has no doubles. The SMO kernel updates its own gradients in the precision of K, usually
float32. Rounding errors of these gradients may end the SMO kernel too early, so that another launch is needed.

On a CPU, stage 1 is left out if the rows of a subproblem fit in a core's cache. The SMO kernel then computes a row of
the tile when it first needs the row.

Float64 check: gradients of some rows are computed again in float64. This is done if rounding errors of K could change
the objective of a subproblem too much, or could change whether its KKT violation is within tol.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.products import Operator, counts
from clsvm.opencl.stream import Buffer, Stream, join_arrays
from clsvm.problem import Constraint, Problem, Subproblem, Vector
from clsvm.report import Status
from clsvm.solvers import certificate, gradients
from clsvm.solvers.result import Result
from clsvm.solvers.state import Limits, SmoKernel, View, max_working_set

# On GPUs, a subproblem of more than SMALL rows is padded to a multiple of the size of a work-group.
# On GPUs, a subproblem of at most SMALL rows is padded to a multiple of min(SMALL, size of a work-group).
SMALL = 128
STOP = 0.1  # the SMO kernel stops at a violation of STOP * tol; the rest of tol is left for rounding errors of K
FEW, STOP_FEW = 256, 0.02  # subproblems of at most FEW rows stop at STOP_FEW * tol, because their SMO costs little
LAUNCH = 20  # a launch of the SMO kernel makes at most LAUNCH * W SMO iterations for a subproblem of W rows
# If memory suffices, a batch has at least PER_UNIT subproblems for each compute unit of the device.
# More subproblems are added to a batch as long as the batch has at most ROWS rows in total.
PER_UNIT, ROWS = 2, 16384
IN_CACHE = 256 << 10  # the rows of a subproblem stay in a core's cache if they take at most IN_CACHE bytes
# Errors of gradients f are measured in about SAMPLE rows, and SAFETY times the largest is the bound for all rows.
SAMPLE, SAFETY = 16, 2
# With more than MANY support vectors, rounding errors of gradients f are extrapolated from a sample (_sampled_error).
MANY = 2 * certificate.SAMPLE
REUSE = 1.5  # a freed buffer is reused if its size is at most REUSE times the requested size
Block = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]  # computes K[rows, columns]
# The host computes float64 gradients if they need at most ON_HOST * n * d kernel values, for n rows of d features.
ON_HOST = 1 / 8


class Request(NamedTuple):
    """Hold the tolerance and the limits of a batch, and functions that compute float64 values.

    Attributes
    ----------
    tol
        KKT violation to reach.
    max_iter
        largest number of SMO iterations of a subproblem. -1 stands for Profile.most_steps(W), where W is the number
        of rows to which the subproblem is padded.
    kernel_scale
        rounding error of a kernel value in units of eps of the kernel dtype.
    exact
        function without arguments, or None. If it is None, no gradients are checked in float64. Otherwise the check
        uses the result of ``exact()``: an Operator for products with the kernel matrix K in float64, or a function that
        computes K[rows, columns] in float64 on the host.
    sample
        function that computes K[rows, columns] in float64 on the host, or None. If it is given, the check calls it in
        place of ``exact()`` wherever few kernel values are needed.
    sizes
        array (n,) with a number for each row of the data set, or None. Rows with larger numbers have kernel values with
        larger rounding errors. For most kernels the number is the row's squared norm (Kernel.sizes). If the check
        samples the rows of a subproblem with many support vectors, the sample includes rows with the largest numbers.
    should_stop
        function that is called after each launch. If it returns True, the batch ends with its results so far.
    description
        texts for the results: precision, device and layout.
    """

    tol: float
    max_iter: int
    kernel_scale: float
    exact: Callable[[], Operator | Block] | None = None
    sample: Block | None = None
    sizes: Vector | None = None
    should_stop: Callable[[], bool] = lambda: False
    description: Mapping[str, Any] = MappingProxyType({})


def max_rows(stream: Stream) -> int:
    """Return the largest number of rows that a subproblem may have in a batch on this device."""
    W = int(min(stream.profile.batch_rows, max_working_set(stream)))
    budget = int(gradients.TILES * (stream.limit - stream.allocated))
    while W > gradients.UNIT and min(budget, stream.largest) < 8 * W * W:
        W //= 2
    return W


def batch_size(stream: Stream) -> int:
    """Return the number of subproblems in a batch that keeps all compute units of the device busy."""
    return PER_UNIT * stream.compute_units


def rows_on_demand(gram: Operator, rows: int) -> bool:
    """Return whether the rows of a subproblem fit in the cache of a CPU core.

    If they fit, the SMO kernel can compute a row of the subproblem's kernel matrix when it needs the row.

    rows: number of rows of the subproblem.
    """
    return gram.panel_bytes(rows) <= IN_CACHE


def solve(gram: Operator, subproblems: Sequence[Subproblem], request: Request) -> Iterator[tuple[int, Result]]:
    """Solve ``subproblems`` in batches. After each batch, yield the index and the result of each of its subproblems.

    A subproblem has at most :func:`max_rows` rows. If ``request.should_stop`` ends the solve, nothing is yielded for
    the batches that have not begun.

    gram: operator for products with the kernel matrix over all rows.
    request: tolerance and limits of a batch.
    """
    stream, itemsize = gram.stream, np.dtype(gram.rows.dtype).itemsize
    order = sorted(range(len(subproblems)), key=lambda index: -len(subproblems[index].rows))
    batches = list(_batches(gram, order, [len(subproblem.rows) for subproblem in subproblems]))
    nbytes = itemsize * max((len(indices) * W * W for W, indices in batches), default=0)
    Q, blank = stream.buffer(nbytes), False
    with stream.recycling(REUSE):
        for W, indices in batches:
            batch = _Batch(gram, [subproblems[index] for index in indices], W, Q, request)
            if not batch.row_arguments:
                if not blank:  # clear Q once: OpenCL kernels read its padding, which must be finite
                    stream.clear(Q, nbytes)
                blank = True
                batch.tiles()
            yield from zip(indices, batch.run(), strict=True)
            batch.free()
            if request.should_stop():
                break
    stream.free(Q)


def _width(gram: Operator, rows: int) -> int:
    """Return W, the number of rows to which a subproblem with ``rows`` rows is padded.

    W is a multiple of the block sizes of the OpenCL kernels. On GPUs (kernel style "workgroup") W has few different
    values, because each value needs a program of its own.
    """
    unit, profile = gradients.UNIT, gram.stream.profile
    if profile.style == "workgroup":
        unit = min(SMALL, profile.group) if rows <= SMALL else profile.group
    unit = max(gram.width, unit)
    return -(-rows // unit) * unit


def _batches(gram: Operator, order: list[int], sizes: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Divide subproblems into batches. Yield (W, indices) for each batch.

    W is the number of rows to which each subproblem of the batch is padded. ``indices`` are the indices of the
    subproblems. The number of compute units and the free memory determine how many subproblems a batch has.

    order: indices of subproblems, by falling number of rows.
    sizes: number of rows of each subproblem.
    """
    stream, itemsize, first = gram.stream, np.dtype(gram.rows.dtype).itemsize, 0
    while first < len(order):
        W = _width(gram, sizes[order[first]])
        panel = gram.panel_bytes(2 * W) - gram.panel_bytes(W)  # bytes that W more rows take in a buffer for rows of X
        capacity = min(int(gradients.TILES * (stream.limit - stream.allocated)), stream.largest) // (
            itemsize * W * W + 3 * panel
        )
        unit = batch_size(stream)
        count = max(1, min(max(unit, ROWS // W // unit * unit), capacity))
        yield W, order[first : first + count]
        first += count


class _Batch:
    """Solve B subproblems, each padded to W rows. The buffer Q (B, W, W) is for their kernel matrices.

    Attributes
    ----------
    unrounded
        padded bounds and linear terms of all subproblems in float64.
    problem
        the same bounds and linear terms, rounded to the numbers that the device stores.
    positions
        positions of each subproblem's rows in the device's order of rows, -1 for padding, (B, W).
    row_arguments
        arguments from which the SMO kernel computes a row of Q when it first needs the row. They are empty if all of Q
        is computed before the kernel runs.
    """

    f: Vector

    def __init__(self, gram: Operator, subproblems: Sequence[Subproblem], W: int, Q: Buffer, request: Request) -> None:
        self.stream, self.gram, self.subproblems, self.request = gram.stream, gram, subproblems, request
        self.W, self.Q = W, Q
        stream, B, kind = gram.stream, len(subproblems), subproblems[0].problem
        lo, hi, q, b = (np.zeros((B, W)) for _ in range(4))
        ws, self.positions = np.full((B, W), -1, np.int32), np.full((B, W), -1, np.int32)
        for p, subproblem in enumerate(subproblems):
            m, problem = len(subproblem.rows), subproblem.problem
            ws[p, :m], self.positions[p, :m] = np.arange(m), gram.rows.position[subproblem.rows]
            lo[p, :m], hi[p, :m], q[p, :m] = problem.lo[0], problem.hi[0], problem.q[0]
            b[p, :m] = subproblem.initial[0]
        self.unrounded = Problem(lo, hi, q, kind.constraint, kind.epsilon)
        # Round bounds and coefficients as the device does: it may store each number as two floats, not as a double.
        lo, hi, q, self.b = map(stream.round_wide, (lo, hi, q, b))
        self.problem = Problem(lo, hi, q, kind.constraint, kind.epsilon)
        wide = map(stream.as_wide, (q, self.b, lo, hi, np.array([kind.epsilon]), q))
        blank = np.zeros((B, W)), np.zeros((B, 4)), np.zeros((B, W), np.uint8)
        self._sizes = [len(subproblem.rows) for subproblem in subproblems]
        self._counts = stream.upload(counts((m, m) for m in self._sizes))
        # One buffer on the device holds all arrays of this batch of subproblems.
        self._buffer, parts, *_ = join_arrays(stream, [*wide, *blank, ws, np.array([B * W], np.int32)])
        self._state, (self._linear, self._delta, self._counters, made, self._ws) = View(*parts[:5]), parts[5:10]
        self.panel, self.at = gradients.gathered(gram, self.positions, parts[10])
        # ``source`` is OpenCL code with which the SMO kernel computes single rows of K. None: the kernel gets all of K.
        possible = stream.profile.style == "simd" and kind.constraint is not Constraint.SPLIT
        given = gram.row_source(self.panel) if possible and rows_on_demand(gram, W) else None
        source, values = given or (None, ())
        self.row_arguments = (made, *values) if given else ()
        self._smo = SmoKernel(stream, gram.rows.dtype, W, kind.constraint, source)

    def tiles(self) -> None:
        """Compute the tile of each subproblem of the batch. A tile is the kernel matrix among a subproblem's rows."""
        gradients.tiles(self.gram, self.panel, self.at, self._counts, self.Q, self._sizes)

    def free(self) -> None:
        self.stream.finish()
        self.stream.free(self._buffer, self._counts, self.at, *self.panel.buffers())

    def run(self) -> list[Result]:
        """Solve the subproblems of the batch; return their results."""
        (B, W), request, tol = self.b.shape, self.request, self.request.tol
        budget = self.stream.profile.most_steps(W) if request.max_iter < 0 else request.max_iter
        stop = STOP_FEW if W <= FEW else STOP
        limits = Limits(np.float32(stop * tol), np.float32(0), LAUNCH * W, np.int64(budget))
        exact, mask, steps = np.zeros(B, bool), np.zeros((B, W), bool), np.zeros(B, np.int64)
        results: dict[int, Result] = {}
        if self.b.any():
            if self.row_arguments:
                # With a limit of 0 iterations, the SMO kernel still computes all rows of K with nonzero coefficients.
                self._solve(limits._replace(steps=0))
            self._respond()
        while True:
            self._solve(limits)
            self.b = self.stream.read_wide(self._state.b, (B, W))
            self._respond()
            before, steps = steps, self.stream.read(self._counters, np.int64, (B, 4))[:, 0]
            optimality, unchanged = certificate.of(self.problem, self.b, self.f), steps == before
            violation = optimality.violations.reshape(B, -1).max(axis=1)
            finished = (violation <= tol) | unchanged
            bound = certificate.rounding_bounds(self.gram.rows.dtype, request.kernel_scale, self.b)
            error = 2 * bound  # a violation is a difference of two gradients, each with an error of up to ``bound``
            checked = exact.copy()
            if request.exact:
                uncertain = error > (1 - STOP) * tol
                exact |= finished & (uncertain | self._imprecise(bound, finished & ~uncertain & ~exact))
            if exact.any():
                mask = optimality.deciding(tol, np.repeat(bound, W)).reshape(B, W) | (self.b != 0)
                mask &= exact[:, None]
                self._respond_exactly(mask)
                optimality = certificate.of(self.problem, self.b, self.f)
                violation = optimality.violations.reshape(B, -1).max(axis=1)
                error[exact] = 0
            certified = violation + error <= tol
            unsolved = ~certified & (~unchanged | (exact & ~checked)) & (steps < budget)
            unsolved[[*results]] = False
            end = not unsolved.any() or request.should_stop()
            # Store a solved subproblem's result now: later launches of the SMO kernel still change its coefficients.
            if done := [p for p in range(B) if p not in results and (end or certified[p])]:
                numbers = violation, steps, bound, mask.sum(axis=1), certified
                results |= self._results(done, optimality, [values[done].tolist() for values in numbers])
            if end:
                return [results[p] for p in range(B)]

    def _solve(self, limits: Limits) -> None:
        """Launch the SMO kernel on all subproblems of the batch. Each ends at its solution or at the ``limits``."""
        (B, W), state = self.b.shape, (self._state, self._delta, self._counters)
        self._smo(B, W, self._ws, self.Q, state, limits, self.row_arguments)

    def _imprecise(self, bound: Vector, certain: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask (B,) of the subproblems whose objective may have a relative error above an accepted limit.

        The limit of the relative error is certificate.OBJECTIVE = 5e-5. The error of an objective is estimated from the
        rounding errors of the gradients f. ``bound`` may be far larger than these rounding errors. Therefore, if
        the estimate from ``bound`` exceeds the limit for a subproblem in ``certain``, a second estimate decides. The
        second estimate uses rounding errors that are measured in a sample of the subproblem's rows.

        bound: upper bound of the rounding errors of the gradients f of each subproblem, (B,).
        certain: mask (B,) of subproblems whose KKT violation needs no float64 check.
        """
        level, weight = certificate.dual_size(self.problem, self.b, self.f)
        imprecise = np.asarray(bound * weight > certificate.OBJECTIVE * level)
        many = (self.b != 0).sum(axis=1) > MANY if self.request.sizes is not None else np.zeros(len(self.b), bool)
        if (sampled := certain & imprecise & many).any():
            imprecise &= ~sampled | (self._sampled_error(sampled) > certificate.OBJECTIVE * level)
        if (sampled := certain & imprecise & ~many).any():
            error = np.where(sampled, SAFETY * self._largest_error(sampled), bound)
            imprecise &= ~sampled | (np.minimum(error, bound) * weight > certificate.OBJECTIVE * level)
        return imprecise

    def _sampled_error(self, subproblems: NDArray[np.bool_]) -> Vector:
        """Estimate the sum of |b_i| * |error of f_i| over the rows i of each of the B subproblems, (B,).

        b are the coefficients, and f the gradients. The error of f_i is its difference from f_i in float64. Errors are
        computed for a sample of support vectors, from which the sum is extrapolated (:func:`certificate.sample`). If
        the constraint makes the coefficients of a subproblem add up to 0, the mean error is subtracted, because a
        constant error does not change the objectives. ``self.f`` is not changed.

        subproblems: mask (B,) of the subproblems to estimate; the result is 0 for all others.
        """
        represented, before = np.zeros(self.b.shape), self.f.copy()
        for p in np.flatnonzero(subproblems).tolist():
            sizes = np.asarray(self.request.sizes)[self.subproblems[p].rows]
            sampled, multiplicity = certificate.sample(np.flatnonzero(self.b[p]), self.b[[p]], sizes)
            represented[p, sampled] = multiplicity
        self._respond_exactly(represented > 0)
        change = self.f - before
        self._restore(before)
        mean = (change * represented).sum(axis=1) / np.maximum(represented.sum(axis=1), 1)
        change -= np.where([subproblem.problem.balanced for subproblem in self.subproblems], mean, 0)[:, None]
        return np.asarray((np.abs(change * self.b) * represented).sum(axis=1))

    def _largest_error(self, subproblems: NDArray[np.bool_]) -> Vector:
        """Return the largest rounding error of the gradients f in a sample of rows, for each of the B subproblems.

        The sample of a subproblem has 16 to 31 support vectors with coefficients of all sizes. If there are fewer
        support vectors, the sample has all of them. A rounding error is the difference between an entry of ``self.f``
        and the same gradient in float64. The call does not change ``self.f``.

        subproblems: mask (B,) of the subproblems to measure. The result is 0 for subproblems outside the mask.
        """
        before, mask = self.f.copy(), np.zeros(self.b.shape, bool)
        for p in np.flatnonzero(subproblems).tolist():
            used = np.flatnonzero(self.b[p])
            by_size = used[np.argsort(-np.abs(self.b[p, used]), kind="stable")]
            mask[p, by_size[:: max(1, len(used) // SAMPLE)]] = True
        self._respond_exactly(mask)
        error = np.abs(self.f - before).max(axis=1)
        self._restore(before)
        return np.asarray(error)

    def _restore(self, f: Vector) -> None:
        """Set the gradients of all B subproblems to f (B, W), on the host and on the device.

        W is the number of rows to which each subproblem is padded.
        """
        self.f = f
        self.stream.write_wide(self._state.f, f)

    def _respond(self) -> None:
        """Compute the gradients f = K b + q of all subproblems from their kernel matrices K.

        b are the coefficients, and q is the linear term of the dual.
        """
        gradients.respond_tiles(self.gram, self.b.shape, self.Q, self._state.b, self._linear, self._state.f)
        f = self.stream.read_wide(self._state.f, self.b.shape)
        self.f = np.where(self.positions >= 0, f, 0.0)  # position -1: padding, where f may be nan
        certificate.finite(self.f, self.gram.kernel)

    def _respond_exactly(self, mask: NDArray[np.bool_]) -> None:
        """Compute the gradients f in float64 for the rows that ``mask`` (B, W) marks in the B subproblems.

        The host computes f if few kernel values are needed, or if ``request.exact`` returns a function that computes
        kernel values on the host. Otherwise the device computes f, by products with the kernel matrix in float64.
        """
        assert self.request.exact
        count, rows = int((mask.sum(axis=1) * (self.b != 0).sum(axis=1)).sum()), self.gram.rows
        gram = (count <= ON_HOST * rows.n * rows.d and self.request.sample) or self.request.exact()
        if callable(gram):
            self._by_host(gram, mask)
        else:
            some, requests, q, at = np.flatnonzero(mask.any(axis=1)).tolist(), [], self.problem.q, self.positions
            for p in some:
                mask_p, used = mask[p], self.b[p] != 0
                requests.append(gradients.GradientRequest(at[p, mask_p], at[p, used], q[p, mask_p], self.b[p, used]))
            for p, values in zip(some, gradients.responses(gram, requests), strict=True):
                self.f[p, mask[p]] = values
        self.stream.write_wide(self._state.f, self.f)

    def _by_host(self, block: Block, mask: NDArray[np.bool_]) -> None:
        """Compute the gradients f on the host for the rows that ``mask`` marks.

        block: function that computes kernel values K[rows, columns].
        mask: mask (B, W) of rows; row p marks rows of subproblem p, which is padded to W rows.
        """
        for p in np.flatnonzero(mask.any(axis=1)).tolist():
            rows, entries, used = self.subproblems[p].rows, np.flatnonzero(mask[p]), np.flatnonzero(self.b[p])
            self.f[p, entries] = block(rows[entries], rows[used]) @ self.b[p, used] + self.problem.q[p, entries]

    def _results(
        self, done: list[int], optimality: certificate.Extremes, numbers: list[list[Any]]
    ) -> dict[int, Result]:
        """Return the results of the subproblems with the indices ``done``.

        optimality: optimality conditions of all subproblems of the batch.
        numbers: five lists with a value for each subproblem in ``done``: KKT violation, SMO iterations, error bound of
            the gradients, number of rows checked in float64, and whether the violation is certainly within tol.
        """
        offset, rho = optimality.offset.reshape(self.b.shape), optimality.rho.reshape(len(self.b), -1)
        primal, dual = certificate.objectives(self.problem, self.b, self.f, offset)
        b, results = self.unrounded.snapped(self.b, self.problem.lo, self.problem.hi), {}
        for p, violation, steps, bound, exact_rows, certified in zip(done, *numbers, strict=True):
            n = len(self.subproblems[p].rows)
            results[p] = Result(
                b=b[p : p + 1, :n].copy(),
                f=self.f[p : p + 1, :n].copy(),
                rho=rho[p : p + 1].copy(),
                primal=float(primal[p]),
                dual=float(dual[p]),
                violation=violation,
                steps=steps,
                status=Status.TOLERANCE if certified else Status.STALLED,
                error_bound=bound,
                exact_rows=exact_rows,
                working_set=n,
                rows_computed=n,
                dtype=self.gram.rows.dtype,
                **self.request.description,
            )
        return results
