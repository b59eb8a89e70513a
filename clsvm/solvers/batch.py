"""Many small problems at a time: each is its own working set, with all of its kernel matrix on the device.

Solves:   the problems of decomposition.py, one for each Subproblem, over some rows each of one data set
Given:    products with K over all rows (gram); rows and problem of each member
Returns:  b, rho, objectives, violation of each

A batch of members goes through three stages: their W x W tiles, the subproblem (a work-item or a work-group for each),
f = K b + q. On a CPU short rows are made by the subproblem itself, when a step first needs them or a coefficient is not
0 at the start, and picked from K where all of it is there: a tile holds many of coefficients that never change. What
the subproblem left, because its f is in kernel precision or because it ran out of steps, is solved again from there.
Where the rounding of K could hide most of the tolerance, f of the rows that can decide the violation comes from float64
products with the support vectors; where it could move the objective alone, a sample of rows says first how much of that
it did. A member that has taken its steps, or stands still, short of its tolerance is left as it is, and the result
says so. One-vs-one pairs, folds and subsets of rows in general are such members.
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

UNIT = 32  # rows whose numbers fill an aligned part of a buffer, and whole vectors
ROOM = 128  # places of what products are taken of are multiples of it: parts of buffers are aligned then
MIRRORED = 64  # cells of a row from which a value of K is cheaper to copy than to compute
HALVED = 0.6  # of what K between rows and support vectors takes: half of K among all of them
FEWER, PASSING = 2, 16 << 20  # support vectors for each row that is asked for; bytes of K between them, at most
TILES = 0.25  # share of the memory that is left, for the tiles of a batch, or one in float64
SMALL = 128  # rows of the smallest member that work-groups take
STOP = 0.1  # of tol, for the subproblem: the rest is for what rounding of K hides
FEW, NEARER = 256, 0.02  # rows at most of a tile in which further steps cost next to nothing; of tol, in their place
LAUNCH = 20  # pair steps for each row of a member, after which f is made anew and the host looks
AT_ONCE, ROWS = 2, 16384  # members for each compute unit at least, and members of so many rows together
IN_CACHE = 256 << 10  # bytes of a member's rows that a core reads again and again at no cost
SAMPLE, SURE = 16, 2  # rows that say what rounding did; how many times the most of it is taken for the rest
MANY = 2 * certificate.SAMPLE  # support vectors beyond which more rows say it
LOOSE = 1.5  # times the size that is asked for: buffers of larger members, which are taken again
Block = Callable[[NDArray[np.intp], NDArray[np.intp]], NDArray[np.float64]]  # K[rows, columns] on the host
ON_HOST = 1 / 8  # float64 values that cost what laying out a cell of the rows does


class Request(NamedTuple):
    """What is asked of a batch, and what it knows of the rounding of K.

    max_iter: SMO iterations of a member, -1 for the profile's patience. kernel_scale: the error of a value of K, in
    units of its dtype's eps. exact: makes the same products in float64, or blocks of K on the host. sample: blocks of K
    on the host, for few rows. sizes: of all rows, for a sample of the rows of large members. over: asked after each
    launch; where it says True the members at work are left as they are. stands: told where each member at work stands,
    by its place. words: precision, device and layout of the results.
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
    """Return the most rows of a member that the device takes whole."""
    W = int(min(stream.profile.alone, most_places(stream)))
    room = int(TILES * (stream.limit - stream.held))
    while W > UNIT and min(room, stream.largest) < 8 * W * W:
        W //= 2
    return W


def at_once(stream: Stream) -> int:
    """Return how many members keep all compute units of the device at work."""
    return AT_ONCE * stream.compute_units


def made_in_place(gram: Operator, rows: int) -> bool:
    """Return whether a core's cache holds the cells of so many rows of a member, of which there are none where K is
    there: the subproblem can make kernel values, or pick them."""
    return gram.panel_bytes(rows) <= IN_CACHE


def solve(gram: Operator, members: Sequence[Subproblem], asked: Request) -> Iterator[tuple[int, Result]]:
    """Yield the result of each member with its place, but for those that time was over for before they were begun.
    Members are at most :func:`largest` rows."""
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
                if not blank:  # of a tile there is what its rows have; what stands beside it has to be some number
                    stream.clear(Q, nbytes)
                blank = True
                batch.tiles()
            yield from zip(places, batch.run(places), strict=True)
            batch.free()
            if asked.over():
                break
    stream.free(Q)


def _width(gram: Operator, rows: int) -> int:
    """Return W of a member: whole vectors and aligned parts of buffers; in the group shape few sizes, each is a
    program."""
    unit, profile = UNIT, gram.stream.profile
    if profile.shape == "group":
        unit = min(SMALL, profile.group) if rows <= SMALL else profile.group
    unit = max(gram.width, unit)
    return -(-rows // unit) * unit


def _batches(gram: Operator, order: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Yield members of falling size, as many at a time as the compute units want and a share of the memory holds."""
    stream, itemsize, first = gram.stream, np.dtype(gram.rows.dtype).itemsize, 0
    while first < len(order):
        W = _width(gram, sizes[order[first]])
        panel = gram.panel_bytes(2 * W) - gram.panel_bytes(W)  # what one member more takes
        room = min(int(TILES * (stream.limit - stream.held)), stream.largest) // (itemsize * W * W + 3 * panel)
        unit = at_once(stream)
        count = max(1, min(max(unit, ROWS // W // unit * unit), room))
        yield order[first : first + count]
        first += count


class _Device(NamedTuple):
    """The numbers of a batch on the device, parts of the buffer ``whole``. ws: places of each member's rows among its
    own; all, counts: how many places there are, and rows of each member; made: which rows of Q the subproblem made."""

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
    """Some members on the device, their tiles in Q, as problems over W places each."""

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
        # as the device holds them: where it has no double precision they are sums of two floats
        lo, hi, q, self.b = map(stream.held_wide, (lo, hi, q, b))
        self.problem = Problem(lo, hi, q, kind.constraint, kind.kink)
        wide = map(stream.as_wide, (q, self.b, lo, hi, np.array([kind.kink]), q))
        blank = np.zeros((B, W)), np.zeros((B, 4)), np.zeros((B, W), np.uint8)
        numbers = counts([B * W, *(len(member.rows) for member in members)])
        whole, parts, *_ = together(stream, [*wide, *blank, ws, *numbers])
        self.device = _Device(whole, View(*parts[:5]), parts[11:], *parts[5:11])
        self.panel, self.at = gathered(gram, self.places, self.device.all)
        values = self._own_rows()
        self.own_rows = (self.device.made, *values) if values else ()  # what the subproblem makes rows of
        source = gram.row_source() if values else None
        self._pair_steps = PairSteps(stream, gram.rows.dtype, W, kind.constraint, source)

    def _own_rows(self) -> tuple[Any, ...] | None:
        """Return what the subproblem makes rows of Q from, where it does: it finds a member's rows in its core's cache,
        or the values are there."""
        if self.stream.profile.shape != "vector" or self.problem.constraint is Constraint.SPLIT:
            return None
        return self.gram.of_panel(self.panel) if made_in_place(self.gram, self.W) else None

    def tiles(self) -> None:
        """Compute all of Q."""
        stream, gram, W = self.stream, self.gram, self.W
        for p, (member, count) in enumerate(zip(self.members, self.device.counts, strict=True)):
            part, rows = gram.part(self.panel, p * W, W, count), stream.part(self.at, 4 * p * W, 4 * W)
            tile(gram, part, rows, count, self.Q, p, len(member.rows))

    def free(self) -> None:
        self.stream.finish()
        self.stream.free(self.device.whole, self.at, *self.panel.buffers())

    def run(self, places: Sequence[int]) -> list[Result]:
        """Solve the members, which are told of by their ``places``; return what each comes to."""
        (B, W), asked, tol = self.b.shape, self.asked, self.asked.tol
        budget = self.stream.profile.patience * W if asked.max_iter < 0 else asked.max_iter
        stop = NEARER if W <= FEW else STOP
        limits = Limits(np.float32(stop * tol), np.float32(0), LAUNCH * W, np.int64(budget))
        exact, near, steps = np.zeros(B, bool), np.zeros((B, W), bool), np.zeros(B, np.int64)
        if self.b.any():
            if self.own_rows:  # (no steps: the rows of these coefficients)
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
            hidden = 2 * bound  # of the violation
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
        """Launch the subproblem of all members."""
        (B, W), on = self.b.shape, self.device
        self._pair_steps(B, W, on.ws, self.Q, (on.state, on.delta, on.counters), limits, self.own_rows)

    def _bound(self) -> Vector:
        """Return what rounding of K can have done to f of each member (B,)."""
        eps = float(np.finfo(self.gram.rows.dtype).eps) * self.asked.kernel_scale
        return np.asarray(eps * np.abs(self.b).sum(axis=1))

    def _loose(self, bound: Vector, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the members (B,) whose objective rounding of K could move by more than a report may be off; where that
        is ``alone`` to be looked at, as a sample of rows has it."""
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
        """Return the sum of what rounding did to f times the coefficients (B,), as certificate.sample of the support
        vectors of some ``members`` has it. What it did to all rows alike counts for nothing where the coefficients add
        up to 0. f is left as it is."""
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
        """Return the most that rounding of K has moved f in some support vectors of each of the members (B,), of all
        sizes of coefficients: by the host, or where it has no values by products with the rows."""
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
        """Make f from the tiles."""
        on, shape = self.device, self.b.shape
        _respond(self.gram, shape, self.Q, on.state.b, on.linear, on.state.f)
        f = self.stream.read_wide(on.state.f, shape)
        self.f = np.where(self.places >= 0, f, 0.0)  # (where there is no row, the kernel function may have no value)
        certificate.finite(self.f, self.gram.kernel)

    def _respond_exactly(self, near: NDArray[np.bool_]) -> None:
        """Make f of the rows ``near`` (B, W) from float64 products with the support vectors of their member, or from
        values of the host where they are few beside the rows that products would be laid out for."""
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
        """Make f of the rows ``near`` (B, W) from blocks of K on the host."""
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
    """What is asked of a member: f of the rows at some places, from q there, and the places and coefficients of its
    support vectors."""

    rows: NDArray[np.int32]
    support: NDArray[np.int32]
    q: Vector
    b: Vector


def responses(gram: Operator, asked: Sequence[Asked]) -> list[Vector]:
    """Return f = K b + q of each, by ``gram``, which is in float64."""
    halved = [_halved(gram, one) for one in asked]
    across = [not half and _few(gram, one) for half, one in zip(halved, asked, strict=True)]
    ways = list(zip(asked, halved, across, strict=True))
    rest = iter(_between(gram, [one for one, *alone in ways if not any(alone)]))
    return [_among(gram, one) if half else _across(gram, one) if few else next(rest) for one, half, few in ways]


def _halved(gram: Operator, one: Asked) -> bool:
    """Return whether half of K among all rows that take part is less work, and memory holds it."""
    stream, m = gram.stream, len(np.union1d(one.rows, one.support))
    W, room = _square(gram, m), min(stream.largest, int(TILES * (stream.limit - stream.held)))
    return mirrors(gram) and m * m / 2 <= HALVED * len(one.rows) * len(one.support) and room >= 8 * W * W


def _few(gram: Operator, one: Asked) -> bool:
    """Return whether so few rows are asked for that they are best the working vectors."""
    few = FEWER * len(one.rows) <= len(one.support) and 8 * len(one.rows) * len(one.support) <= PASSING
    return few and gram.by_blocks


def _among(gram: Operator, one: Asked) -> Vector:
    """Return f by a tile of all rows that take part."""
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
    """Return f by K between support vectors and the rows that are asked for, which are the working vectors: a block of
    entries is laid out for each few of these."""
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
    """Return f by products of the rows that are asked for with the support vectors."""
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
    """Return whether one side of a tile is computed, which the other mirrors: on a CPU, of long rows."""
    return gram.stream.profile.shape == "vector" and gram.rows.tile_cost >= MIRRORED


def tile(gram: Operator, panel: Panel, rows: Buffer, count: Buffer, Q: Buffer, place: int, most: int) -> None:
    """Compute K among the ``most`` rows of a square panel, as tile number ``place`` of Q."""
    W, real, half = panel.capacity, np.dtype(gram.rows.dtype).itemsize, mirrors(gram)
    own = gram.stream.part(Q, real * place * W * W, real * W * W)
    gram.tile(panel, Tile(rows, count, own, half=half, most=most))
    if half:
        mirror(gram.stream, gram.rows.dtype)(W, 0, own)


def _respond(gram: Operator, shape: tuple[int, int], Q: Buffer, b: Buffer, q: Buffer, f: Buffer) -> None:
    """Compute f = Q b + q of as many tiles of W x W as shape (tiles, W) has."""
    (tiles, W), profile = shape, gram.stream.profile
    columns = -(-W // (RESPOND * gram.rows.lanes)) if profile.shape == "vector" else W
    gram.stream.variant(respond(profile, gram.rows.dtype))((columns, tiles), None, W, Q, b, q, f)


def gathered(gram: Operator, places: NDArray[np.int32], count: Buffer) -> tuple[Panel, Buffer]:
    """Return a panel of the rows at ``places``, -1 where there is none; and these on the device."""
    panel, at = gram.panel(places.size, square=True), gram.stream.upload(places.ravel())
    gram.gather(panel, at, count)
    return panel, at


def counts(numbers: Sequence[int]) -> list[NDArray[np.int32]]:
    """Return each number by itself, as kernels take how many there are of something."""
    return [np.array([number], np.int32) for number in numbers]


def _padded(places: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return so many places, -1 behind those that are given."""
    return np.pad(places, (0, size - len(places)), constant_values=-1)


def _square(gram: Operator, rows: int) -> int:
    """Return the rows of a tile of so many rows."""
    return _whole(gram, -(-rows // UNIT) * UNIT)


def _whole(gram: Operator, rows: int) -> int:
    """Return so many rows, one at least, in whole blocks of ``gram``."""
    return -(-max(1, rows) // gram.width) * gram.width
