"""The batch solver: many small problems at a time, each with all of its kernel matrix on the device.

Solves:   the problems of decomposition.py, one for each Subproblem, over subsets of the rows of one data set
Given:    products with K over all rows (gram); the rows and the dual problem of each subproblem
Returns:  b, rho, objectives and violation of each subproblem

A subproblem of the batch is a pair of classes, a fold, or any subset of rows. All of its rows are its working set,
padded to W rows. A batch goes through three stages: the W x W tiles K among the rows of each subproblem; the SMO
kernel, with one work-item or work-group for each subproblem; and f = K b + q. The last two are repeated until all
subproblems are solved or have stalled, since the SMO kernel's own f is in kernel precision.

Kernel values of the SMO kernel. On a CPU with short rows, the SMO kernel computes rows of its tile itself when it first
needs them, because many coefficients never change. If all of K is on the device, it reads rows from there.

Float64 check. If the bound of K's rounding errors exceeds most of tol, f is computed from float64 products with the
support vectors, for all rows whose exact f could change the outcome. If rounding could change only the objective by too
much, a sample of rows first measures the effect on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import Panel
from clsvm.gram.products import Operator, Tile, Update
from clsvm.opencl.stream import Buffer, Stream, together
from clsvm.problem import Constraint, Problem, Subproblem, Vector
from clsvm.report import Status
from clsvm.solvers import certificate
from clsvm.solvers.certificate import Extremes
from clsvm.solvers.result import Result
from clsvm.solvers.state import RESPOND, Limits, PairSteps, View, mirror, most_places, respond
from clsvm.threads import one_thread

UNIT = 32  # subproblems are padded to a multiple of UNIT rows, so that parts of buffers are aligned
ROOM = 128  # float64 products are padded to a multiple of ROOM rows, so that parts of buffers are aligned
MIRRORED = 64  # a value of K that costs at least MIRRORED multiply-adds is mirrored rather than computed twice
HALVED = 0.6  # m rows and s support vectors: half of K among both is computed if it has at most HALVED * m * s values
FEWER, PASSING = 2, 16 << 20  # m rows are few if FEWER * m <= s, and K (m, s) has at most PASSING bytes
TILES = 0.25  # share of the free memory for the tiles of a batch, or for one tile in float64
SMALL = 128  # rows of the smallest tile in workgroup-style kernels
STOP = 0.1  # share of tol at which the SMO kernel stops; the rest is for rounding errors of K
FEW, NEARER = 256, 0.02  # subproblems of at most FEW rows stop at NEARER * tol, since SMO costs little there
LAUNCH = 20  # most SMO iterations in a launch, for each row of a subproblem
AT_ONCE, ROWS = 2, 16384  # a batch has AT_ONCE subproblems for each compute unit, or more up to ROWS rows in all
IN_CACHE = 256 << 10  # most bytes of a subproblem's rows that stay in a core's cache
SAMPLE, SURE = 16, 2  # rows sampled for their rounding errors; safety factor on the largest error
MANY = 2 * certificate.SAMPLE  # for more support vectors than this, certificate.sample draws the sample
LOOSE = 1.5  # a freed buffer is reused if its size is at most LOOSE times the requested size
Block = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]  # K[rows, columns] on the host
ON_HOST = 1 / 8  # float64 kernel values that the host computes while the device lays out one stored entry


class Request(NamedTuple):
    """Hold the tolerance and the limits of a batch, and functions that compute float64 values.

    Attributes
    ----------
    tol
        KKT violation to reach.
    max_iter
        most SMO iterations of a subproblem, -1 for the device profile's patience.
    kernel_scale
        rounding error of K in units of its dtype's eps.
    exact
        function that returns the operator in float64, or blocks of K on the host; None for no float64 check.
    sample
        blocks of K on the host for few rows, or None.
    sizes
        sizes of all rows (n,), from which rounding errors follow, or None. Large subproblems sample rows by them.
    over
        function that is called after each launch. If it returns True, the batch ends as it is.
    stands
        function that is called with the index and the coefficients of each subproblem after each launch, or None.
    words
        precision, device and layout for the results, as texts.
    """

    tol: float
    max_iter: int
    kernel_scale: float
    exact: Callable[[], Operator | Block] | None = None
    sample: Block | None = None
    sizes: Vector | None = None
    over: Callable[[], bool] = lambda: False
    stands: Callable[[int, Vector], object] | None = None
    words: Mapping[str, Any] = MappingProxyType({})


def largest(stream: Stream) -> int:
    """Return the most rows that a subproblem may have in a batch on this device."""
    W = int(min(stream.profile.alone, most_places(stream)))
    room = int(TILES * (stream.limit - stream.held))
    while W > UNIT and min(room, stream.largest) < 8 * W * W:
        W //= 2
    return W


def at_once(stream: Stream) -> int:
    """Return the number of subproblems that keep all compute units of the device busy."""
    return AT_ONCE * stream.compute_units


def made_in_place(gram: Operator, rows: int) -> bool:
    """Return whether the SMO kernel of a batch can compute rows of its tile Q itself when it needs them.

    This is possible if the ``rows`` rows of a subproblem stay in the cache of a core.
    """
    return gram.panel_bytes(rows) <= IN_CACHE


def solve(gram: Operator, members: Sequence[Subproblem], asked: Request) -> Iterator[tuple[int, Result]]:
    """Solve the subproblems ``members`` in batches; yield (index of the subproblem, result) as batches end.

    A subproblem has at most :func:`largest` rows. If ``asked.over`` ends the solve before a subproblem began, that
    subproblem has no result.

    gram: operator for products with K over all rows.
    asked: tolerance and limits of the batch.
    """
    stream, itemsize = gram.stream, np.dtype(gram.rows.dtype).itemsize
    order = sorted(range(len(members)), key=lambda place: -len(members[place].rows))
    batches = list(_batches(gram, order, [len(member.rows) for member in members]))
    widths = [_width(gram, len(members[places[0]].rows)) for places in batches]
    nbytes = itemsize * max((len(places) * W * W for places, W in zip(batches, widths, strict=True)), default=0)
    Q, blank = stream.buffer(nbytes), False
    with stream.recycling(LOOSE):
        for places, W in zip(batches, widths, strict=True):
            batch = _Batch(gram, [members[place] for place in places], W, Q, asked)
            if not batch.own_rows:
                if not blank:  # values of a tile outside its rows are never written, but must be finite
                    stream.clear(Q, nbytes)
                blank = True
                batch.tiles()
            yield from zip(places, batch.run(places), strict=True)
            batch.free()
            if asked.over():
                break
    stream.free(Q)


def _width(gram: Operator, rows: int) -> int:
    """Return W, the number of rows of the square tile of a subproblem with ``rows`` rows.

    W is a multiple of the vector length. In workgroup style there are few values of W, since each needs its own
    program.
    """
    unit, profile = UNIT, gram.stream.profile
    if profile.shape == "group":
        unit = min(SMALL, profile.group) if rows <= SMALL else profile.group
    unit = max(gram.width, unit)
    return -(-rows // unit) * unit


def _batches(gram: Operator, order: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Yield batches, as lists of indices from ``order``, as large as compute units and memory suggest.

    order: indices of subproblems, those with most rows first.
    sizes: number of rows of each subproblem.
    """
    stream, itemsize, first = gram.stream, np.dtype(gram.rows.dtype).itemsize, 0
    while first < len(order):
        W = _width(gram, sizes[order[first]])
        panel = gram.panel_bytes(2 * W) - gram.panel_bytes(W)  # bytes of the rows of one further subproblem
        room = min(int(TILES * (stream.limit - stream.held)), stream.largest) // (itemsize * W * W + 3 * panel)
        unit = at_once(stream)
        count = max(1, min(max(unit, ROWS // W // unit * unit), room))
        yield order[first : first + count]
        first += count


class _Device(NamedTuple):
    """Name the arrays of a batch on the device, all parts of the buffer ``whole``.

    state: f, b, lo, hi and epsilon.
    counts: number of rows of each subproblem.
    linear: q.
    delta: changes of the coefficients.
    counters: SMO iterations of each subproblem.
    made: which rows of Q the SMO kernel has computed.
    ws: working set of each subproblem, all of its rows.
    all: number of rows of the whole batch, with padding.
    """

    whole: Buffer
    state: View
    counts: Sequence[Buffer]
    linear: Buffer
    delta: Buffer
    counters: Buffer
    made: Buffer
    ws: Buffer
    all: Buffer


class _Batch:
    """Solve B subproblems, each padded to W rows, with their tiles in the buffer Q.

    The tile of a subproblem is the kernel matrix among its rows, padded to W x W.
    """

    f: Vector

    def __init__(self, gram: Operator, members: Sequence[Subproblem], W: int, Q: Buffer, asked: Request) -> None:
        self.stream, self.gram, self.members, self.W, self.Q, self.asked = gram.stream, gram, members, W, Q, asked
        stream, B, kind = gram.stream, len(members), members[0].problem
        lo, hi, q, b = (np.zeros((B, W)) for _ in range(4))
        ws, self.places = np.full((B, W), -1, np.int32), np.full((B, W), -1, np.int32)
        for p, member in enumerate(members):
            m, own = len(member.rows), member.problem
            ws[p, :m], self.places[p, :m] = np.arange(m), gram.rows.position[member.rows]
            lo[p, :m], hi[p, :m], q[p, :m], b[p, :m] = own.lo[0], own.hi[0], own.q[0], member.beginning[0]
        # Round the numbers as the device does: without double precision they are sums of two floats.
        lo, hi, q, self.b = map(stream.held_wide, (lo, hi, q, b))
        self.problem = Problem(lo, hi, q, kind.constraint, kind.epsilon)
        wide = map(stream.as_wide, (q, self.b, lo, hi, np.array([kind.epsilon]), q))
        blank = np.zeros((B, W)), np.zeros((B, 4)), np.zeros((B, W), np.uint8)
        numbers = counts([B * W, *(len(member.rows) for member in members)])
        whole, parts, *_ = together(stream, [*wide, *blank, ws, *numbers])
        self.device = _Device(whole, View(*parts[:5]), parts[11:], *parts[5:11])
        self.panel, self.at = gathered(gram, self.places, self.device.all)
        values = self._own_rows()  # arguments by which the SMO kernel computes rows of Q
        self.own_rows = (self.device.made, *values) if values else ()
        source = gram.row_source() if values else None
        self._pair_steps = PairSteps(stream, gram.rows.dtype, W, kind.constraint, source)

    def _own_rows(self) -> tuple[Any, ...] | None:
        """Return the arguments by which the SMO kernel computes rows of its tile Q, None if whole tiles are given."""
        if self.stream.profile.shape != "vector" or self.problem.constraint is Constraint.SPLIT:
            return None
        return self.gram.of_panel(self.panel) if made_in_place(self.gram, self.W) else None

    def tiles(self) -> None:
        """Compute the tiles K among the rows of each subproblem of the batch."""
        stream, gram, W = self.stream, self.gram, self.W
        for p, (member, count) in enumerate(zip(self.members, self.device.counts, strict=True)):
            part, rows = gram.part(self.panel, p * W, W, count), stream.part(self.at, 4 * p * W, 4 * W)
            tile(gram, part, rows, count, self.Q, p, len(member.rows))

    def free(self) -> None:
        self.stream.finish()
        self.stream.free(self.device.whole, self.at, *self.panel.buffers())

    def run(self, places: Sequence[int]) -> list[Result]:
        """Solve the subproblems of the batch; return their results.

        places: indices of the batch's subproblems among all subproblems of :func:`solve`, for ``asked.stands``.
        """
        (B, W), asked, tol = self.b.shape, self.asked, self.asked.tol
        budget = self.stream.profile.patience * W if asked.max_iter < 0 else asked.max_iter
        stop = NEARER if W <= FEW else STOP
        limits = Limits(np.float32(stop * tol), np.float32(0), LAUNCH * W, np.int64(budget))
        exact, near, steps = np.zeros(B, bool), np.zeros((B, W), bool), np.zeros(B, np.int64)
        if self.b.any():
            if self.own_rows:  # a launch without iterations computes rows of Q for coefficients that are not 0
                self._solve(limits._replace(steps=0))
            self._respond()
        while True:
            self._solve(limits)
            self.b = self.stream.read_wide(self.device.state.b, (B, W))
            if asked.stands:
                for place, b, member in zip(places, self.b, self.members, strict=True):
                    asked.stands(place, b[: len(member.rows)].copy())
            self._respond()
            before, steps = steps, self.stream.read(self.device.counters, np.int64, (B, 4))[:, 0]
            seen, bound, still = certificate.of(self.problem, self.b, self.f), self._bound(), steps == before
            violation = seen.violations.reshape(B, -1).max(axis=1)
            hidden = 2 * bound  # error bound of the violation
            checked = exact.copy()
            if asked.exact:
                settled, doubt = (violation <= tol) | still, hidden > (1 - STOP) * tol
                exact |= settled & (doubt | self._loose(bound, settled & ~doubt & ~exact))
            if exact.any():
                near = seen.deciding(tol, np.repeat(bound, W)).reshape(B, W) | (self.b != 0)
                near &= exact[:, None]
                self._respond_exactly(near)
                seen = certificate.of(self.problem, self.b, self.f)
                violation = seen.violations.reshape(B, -1).max(axis=1)
                hidden[exact] = 0
            sure = violation + hidden <= tol
            if not (~sure & (~still | (exact & ~checked)) & (steps < budget)).any() or asked.over():
                break
        ends = zip(*map(np.ndarray.tolist, (violation, steps, bound, near.sum(axis=1), sure)), strict=True)
        return [self._result(p, seen, *end) for p, end in enumerate(ends)]

    def _solve(self, limits: Limits) -> None:
        """Launch the SMO kernel on all subproblems of the batch."""
        (B, W), on = self.b.shape, self.device
        self._pair_steps(B, W, on.ws, self.Q, (on.state, on.delta, on.counters), limits, self.own_rows)

    def _bound(self) -> Vector:
        """Return the error bound of f of each subproblem, (B,)."""
        eps = float(np.finfo(self.gram.rows.dtype).eps) * self.asked.kernel_scale
        return np.asarray(eps * np.abs(self.b).sum(axis=1))

    def _loose(self, bound: Vector, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the B subproblems may have a relative rounding error of the objective above OBJECTIVE, (B,).

        bound: error bound of f of each subproblem, (B,).
        alone: subproblems (B,) whose violation is certain. Their errors are measured with a sample of rows.
        """
        level, weight = certificate.level(self.problem, self.b, self.f)
        loose = np.asarray(bound * weight > certificate.OBJECTIVE * level)
        many = (self.b != 0).sum(axis=1) > MANY if self.asked.sizes is not None else np.zeros(len(self.b), bool)
        if (sampled := alone & loose & many).any():
            loose &= ~sampled | (self._shifted(sampled) > certificate.OBJECTIVE * level)
        if (sampled := alone & loose & ~many).any():
            moved = np.where(sampled, SURE * self._moved(sampled), bound)
            loose &= ~sampled | (np.minimum(moved, bound) * weight > certificate.OBJECTIVE * level)
        return loose

    def _shifted(self, members: NDArray[np.bool_]) -> Vector:
        """Estimate sum_i |b_i| * |error of f_i| for the subproblems ``members`` (B,) from a sample of support vectors.

        The sample is drawn by certificate.sample. The mean error does not count if the coefficients add up to 0. f does
        not change.
        """
        times, before = np.zeros(self.b.shape), self.f.copy()
        for p in np.flatnonzero(members).tolist():
            sizes = np.asarray(self.asked.sizes)[self.members[p].rows]
            some, so_many = certificate.sample(np.flatnonzero(self.b[p]), self.b[[p]], sizes)
            times[p, some] = so_many
        self._respond_exactly(times > 0)
        did = self.f - before
        self.f = before
        self.stream.write_wide(self.device.state.f, before)
        alike = (did * times).sum(axis=1) / np.maximum(times.sum(axis=1), 1)
        did -= np.where([member.problem.balanced for member in self.members], alike, 0)[:, None]
        return np.asarray((np.abs(did * self.b) * times).sum(axis=1))

    def _moved(self, members: NDArray[np.bool_]) -> Vector:
        """Return for each of the subproblems ``members`` the largest rounding error of f in a sample of rows, (B,).

        The sample has support vectors with coefficients of all sizes. The host computes float64 values if it can, else
        the device.
        """
        before, near = self.f.copy(), np.zeros(self.b.shape, bool)
        for p in np.flatnonzero(members).tolist():
            used = np.flatnonzero(self.b[p])
            by_size = used[np.argsort(-np.abs(self.b[p, used]), kind="stable")]
            near[p, by_size[:: max(1, len(used) // SAMPLE)]] = True
        if self.asked.sample:
            self._by_host(self.asked.sample, near)
        else:
            self._respond_exactly(near)
        return np.asarray(np.abs(self.f - before).max(axis=1))

    def _respond(self) -> None:
        """Compute f = K b + q of all subproblems from their tiles."""
        on, shape = self.device, self.b.shape
        _respond(self.gram, shape, self.Q, on.state.b, on.linear, on.state.f)
        f = self.stream.read_wide(on.state.f, shape)
        self.f = np.where(self.places >= 0, f, 0.0)  # padding rows may have no valid kernel value
        certificate.finite(self.f, self.gram.kernel)

    def _respond_exactly(self, near: NDArray[np.bool_]) -> None:
        """Compute the gradients f in float64 where the mask ``near`` (B, W) is true.

        The host computes them if few kernel values are needed. Otherwise the device computes products, for which rows
        must be laid out.
        """
        assert self.asked.exact
        few = int((near.sum(axis=1) * (self.b != 0).sum(axis=1)).sum()) <= ON_HOST * self.gram.rows.n * self.gram.rows.d
        gram = (few and self.asked.sample) or self.asked.exact()
        if callable(gram):
            self._by_host(gram, near)
        else:
            some, asked, q, at = np.flatnonzero(near.any(axis=1)).tolist(), [], self.problem.q, self.places
            for p in some:
                here, used = near[p], self.b[p] != 0
                asked.append(Asked(at[p, here], at[p, used], q[p, here], self.b[p, used]))
            for p, values in zip(some, responses(gram, asked), strict=True):
                self.f[p, near[p]] = values
        self.stream.write_wide(self.device.state.f, self.f)

    def _by_host(self, block: Block, near: NDArray[np.bool_]) -> None:
        """Compute the gradients f where the mask ``near`` (B, W) is true, from blocks of K on the host."""
        with one_thread():
            for p in np.flatnonzero(near.any(axis=1)).tolist():
                own, here, used = self.members[p].rows, np.flatnonzero(near[p]), np.flatnonzero(self.b[p])
                self.f[p, here] = block(own[here], own[used]) @ self.b[p, used] + self.problem.q[p, here]

    def _result(
        self, p: int, seen: Extremes, violation: float, steps: int, bound: float, exact: int, sure: bool
    ) -> Result:
        member, shape = self.members[p], self.b.shape
        here = slice(p, p + 1), slice(len(member.rows))
        lo, hi, q = (array[here].copy() for array in (self.problem.lo, self.problem.hi, self.problem.q))
        problem, b = replace(self.problem, lo=lo, hi=hi, q=q), self.b[here].copy()
        primal, dual = certificate.objectives(problem, b, self.f[here].copy(), seen.offset.reshape(shape)[here].copy())
        return Result(
            b=member.problem.snapped(b, lo, hi),
            f=self.f[here].copy(),
            rho=seen.rho.reshape(len(self.members), -1)[p][None],
            primal=float(primal[0]),
            dual=float(dual[0]),
            violation=violation,
            steps=steps,
            status=Status.TOLERANCE if sure else Status.STALLED,
            error_bound=bound,
            exact_rows=exact,
            working_set=len(member.rows),
            rows_computed=len(member.rows),
            dtype=self.gram.rows.dtype,
            **self.asked.words,
        )


class Asked(NamedTuple):
    """Request f = K b + q of some rows of a subproblem.

    Attributes
    ----------
    rows
        positions of the requested rows on the device.
    support
        positions of the support vectors on the device.
    q
        linear terms of the requested rows.
    b
        coefficients of the support vectors.
    """

    rows: NDArray[np.int32]
    support: NDArray[np.int32]
    q: Vector
    b: Vector


def responses(gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """Return f = K b + q of the rows of each request in ``asked``, by the float64 operator ``gram``."""
    halved = [_halved(gram, one) for one in asked]
    across = [not half and _few(gram, one) for half, one in zip(halved, asked, strict=True)]
    ways = list(zip(asked, halved, across, strict=True))
    rest = iter(_between(gram, [one for one, *alone in ways if not any(alone)]))
    return [_among(gram, one) if half else _across(gram, one) if few else next(rest) for one, half, few in ways]


def _halved(gram: Operator, one: Asked) -> bool:
    """Return whether to answer a request from K among its rows and support vectors together.

    Half of this K follows by symmetry. Computing the other half pays if it is less work than K(rows, support) and this
    K fits in memory.
    """
    stream, m = gram.stream, len(np.union1d(one.rows, one.support))
    W, room = _square(gram, m), min(stream.largest, int(TILES * (stream.limit - stream.held)))
    return mirrors(gram) and m * m / 2 <= HALVED * len(one.rows) * len(one.support) and room >= 8 * W * W


def _few(gram: Operator, one: Asked) -> bool:
    """Return whether a request has few rows in comparison with its support vectors.

    The product K(support, rows) is then faster than K(rows, support).
    """
    few = FEWER * len(one.rows) <= len(one.support) and 8 * len(one.rows) * len(one.support) <= PASSING
    return few and gram.by_blocks


def _among(gram: Operator, one: Asked) -> Vector:
    """Return f of a request from one tile of K among its rows and support vectors."""
    stream, both = gram.stream, np.union1d(one.rows, one.support)
    m, W = len(both), _square(gram, len(both))
    q, b, at = np.zeros(W), np.zeros(W), both.searchsorted(one.rows)
    q[at], b[both.searchsorted(one.support)] = one.q, one.b
    count, Q, f = stream.upload(np.array([m], np.int32)), stream.buffer(8 * W * W), stream.buffer(8 * W)
    (panel, rows), weights, linear = gathered(gram, _padded(both, W), count), stream.wide(b), stream.wide(q)
    tile(gram, panel, rows, count, Q, 0, m)
    _respond(gram, (1, W), Q, weights, linear, f)
    found = stream.read_wide(f, W)[at]
    stream.free(count, Q, f, rows, weights, linear, *panel.buffers())
    return found


def _across(gram: Operator, one: Asked) -> Vector:
    """Return f of a request from the product K(support, rows), which suits few rows and many support vectors."""
    stream, R, S = gram.stream, _whole(gram, len(one.rows)), _whole(gram, len(one.support))
    here, there = (stream.upload(np.array([len(some)], np.int32)) for some in (one.rows, one.support))
    panel, at = gathered(gram, _padded(one.support, S), there)
    right, of = gathered(gram, _padded(one.rows, R), here)
    out = stream.buffer(8 * R * S)
    gram.between(panel, at, right, here, out, None)
    K = stream.read(out, np.float64, (R, S))[: len(one.rows), : len(one.support)]
    stream.free(here, there, at, of, out, *panel.buffers(), *right.buffers())
    return np.asarray(K @ one.b + one.q)


def _between(gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """Return f of each request from products K(rows, support) b."""
    if not asked:
        return []
    stream, lengths = gram.stream, [(len(one.rows), len(one.support)) for one in asked]
    R, S = (_whole(gram, -(-max(1, *some) // ROOM) * ROOM) for some in zip(*lengths, strict=True))
    everything = stream.upload(np.array([len(asked) * max(R, S)], np.int32))
    panel, at = gathered(gram, np.stack([_padded(one.rows, R) for one in asked]), everything)
    right, of = gathered(gram, np.stack([_padded(one.support, S) for one in asked]), everything)
    D = stream.wide(np.stack([np.pad(one.b, (0, S - len(one.b))) for one in asked]))
    c = stream.wide(np.stack([np.pad(one.q, (0, R - len(one.q))) for one in asked]))
    count, each, *_ = together(stream, counts([number for some in lengths for number in some]))
    for i, (m, vectors) in enumerate(lengths):
        here, there, m, vectors = *each[2 * i : 2 * i + 2], _whole(gram, m), _whole(gram, vectors)
        left, own = gram.part(panel, i * R, m, here), gram.part(right, i * S, vectors, there)
        sums, parts = stream.part(c, 8 * i * R, 8 * m), stream.part(D, 8 * i * S, 8 * vectors)
        update = Update(1, m, sums, parts, vectors)
        gram.between(left, stream.part(at, 4 * i * R, 4 * m), own, there, None, update)
    found = stream.read_wide(c, (len(asked), R))
    stream.free(everything, at, of, D, c, count, *panel.buffers(), *right.buffers())
    return [values[: len(one.rows)] for one, values in zip(asked, found, strict=True)]


def mirrors(gram: Operator) -> bool:
    """Return whether one half of a tile is computed and then copied to the other: on a CPU, for long rows."""
    return gram.stream.profile.shape == "vector" and gram.rows.tile_cost >= MIRRORED


def tile(gram: Operator, panel: Panel, rows: Buffer, count: Buffer, Q: Buffer, place: int, most: int) -> None:
    """Compute the kernel matrix among the rows of a panel into tile number ``place`` of the buffer Q.

    Each tile of Q has W x W values, for a panel with room for W rows.

    panel: the rows, in the layout of right-hand rows of a product.
    rows: buffer with the positions of the rows on the device.
    count: buffer with the number of rows.
    most: upper bound of the number of rows.
    """
    W, real, half = panel.capacity, np.dtype(gram.rows.dtype).itemsize, mirrors(gram)
    own = gram.stream.part(Q, real * place * W * W, real * W * W)
    gram.tile(panel, Tile(rows, count, own, half=half, most=most))
    if half:
        mirror(gram.stream, gram.rows.dtype)(W, 0, own)


def _respond(gram: Operator, shape: tuple[int, int], Q: Buffer, b: Buffer, q: Buffer, f: Buffer) -> None:
    """Compute f = Q b + q for several tiles Q of W x W values.

    shape: (number of tiles, W).
    """
    (tiles, W), profile = shape, gram.stream.profile
    columns = -(-W // (RESPOND * gram.rows.lanes)) if profile.shape == "vector" else W
    gram.stream.variant(respond(profile, gram.rows.dtype))((columns, tiles), None, W, Q, b, q, f)


def gathered(gram: Operator, places: NDArray[np.int32], count: Buffer) -> tuple[Panel, Buffer]:
    """Gather rows into a panel, the layout of right-hand rows of a product; return it and the positions' buffer.

    places: position of each row on the device; -1 stands for no row.
    count: buffer with the number of positions.
    """
    panel, at = gram.panel(places.size, square=True), gram.stream.upload(places.ravel())
    gram.gather(panel, at, count)
    return panel, at


def counts(numbers: Sequence[int]) -> list[NDArray[np.int32]]:
    """Return each number as an int32 array of one entry, the form in which kernels take counts."""
    return [np.array([number], np.int32) for number in numbers]


def _padded(places: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return the array ``places`` padded by -1 to the length ``size``."""
    return np.pad(places, (0, size - len(places)), constant_values=-1)


def _square(gram: Operator, rows: int) -> int:
    """Return the number of rows and columns of a square tile of K among ``rows`` rows, with padding."""
    return _whole(gram, -(-rows // UNIT) * UNIT)


def _whole(gram: Operator, rows: int) -> int:
    """Return ``rows``, at least 1, rounded up to a multiple of ``gram.width``, the rows in a panel's block."""
    return -(-max(1, rows) // gram.width) * gram.width
