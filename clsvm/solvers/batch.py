"""Many small problems at a time: each is its own working set, with all of its kernel matrix on the device.

Solves:   the problems of decomposition.py, one for each Member (member.py), over some rows each of one data set
Given:    products with K over all rows (gram); rows and problem of each member
Returns:  b, rho, objectives, violation of each

A batch of members goes through three stages: their W x W tiles, the subproblem (a work-item or a work-group for each),
f = K b + q. On a CPU short rows are made by the subproblem itself, when a step first needs them or a coefficient is not
0 at the start, and picked from K where all of it is there: a tile holds many of coefficients that never change. What
the subproblem left, because its f is in kernel precision or because it ran out of steps, is solved again from there.
Where the rounding of K could hide most of the tolerance, f of the rows that can decide the violation comes from float64
products with the support vectors; where it could move the objective alone, a sample of rows says first how much of that
it did. A member that has taken its steps, or stands still, short of its tolerance is left as it is, and the outcome
says so. One-vs-one pairs, folds and subsets of rows in general are such members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.products import Products
from clsvm.opencl.launch import local
from clsvm.opencl.parts import together
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Constraint
from clsvm.solvers import certificate, member_tiles, programs
from clsvm.solvers.certificate import Extremes
from clsvm.solvers.decomposition import VECTOR_STATE
from clsvm.solvers.member import Block, Checks, Member, Outcome
from clsvm.solvers.member_tiles import TILES, UNIT
from clsvm.solvers.programs import Limits
from clsvm.solvers.selection import View
from clsvm.threads import one_thread

Vector = NDArray[np.float64]
Stands = Callable[[int, Vector], object]
SMALL = 128  # rows of the smallest member that work-groups take
STOP = 0.1  # of tol, for the subproblem: the rest is for what rounding of K hides
FEW, NEARER = 256, 0.02  # rows at most of a tile in which further steps cost next to nothing; of tol, in their place
LAUNCH = 20  # pair steps for each row of a member, after which f is made anew and the host looks
AT_ONCE, ROWS = 2, 16384  # members for each compute unit at least, and members of so many rows together
IN_CACHE = 256 << 10  # bytes of a member's rows that a core reads again and again at no cost
SAMPLE, SURE = 16, 2  # rows that say what rounding did; how many times the most of it is taken for the rest
MANY = 2 * certificate.SAMPLE  # support vectors beyond which more rows say it
LOOSE = 1.5  # times the size that is asked for: buffers of larger members, which are taken again
ON_HOST = 1 / 8  # float64 values that cost what laying out a cell of the rows does


def largest(stream: Stream) -> int:
    """The most rows of a member that the device takes whole."""
    W = stream.profile.alone
    if stream.profile.shape == "vector":
        W = min(W, stream.local_memory // VECTOR_STATE)
    room = int(TILES * (stream.limit - stream.held))
    while W > UNIT and min(room, stream.largest) < 8 * W * W:
        W //= 2
    return W


def at_once(stream: Stream) -> int:
    """How many members keep all compute units of the device at work."""
    return AT_ONCE * stream.compute_units


def made_in_place(gram: Products, rows: int) -> bool:
    """Whether a core's cache holds the cells of so many rows of a member, of which there are none where K is there: the
    subproblem can make kernel values, or pick them."""
    return gram.panel_bytes(rows) <= IN_CACHE


def solve(
    stream: Stream,
    gram: Products,
    members: Sequence[Member],
    tol: float,
    max_iter: int,
    checks: Checks,
    watch: Callable[[int, Outcome], object] = lambda place, outcome: None,
    over: Callable[[], bool] = lambda: False,
    stands: Stands | None = None,
) -> list[Outcome | None]:
    """The outcome of each member, in order. watch is told of each as it comes (place, outcome). over: asked after each
    launch; where it says True the members at work are left as they are, and the rest is None. max_iter: pair steps of a
    member, -1 for the profile's patience. stands: told after each launch where each member at work stands (place, b).
    Members are at most :func:`largest` rows."""
    found: list[Outcome | None] = [None] * len(members)
    if not members:
        return found
    order = sorted(range(len(members)), key=lambda place: -len(members[place].rows))
    batches = list(_batches(stream, gram, order, [len(member.rows) for member in members]))
    itemsize = np.dtype(gram.rows.dtype).itemsize
    widths = [_width(stream, gram, len(members[places[0]].rows)) for places in batches]
    nbytes, blank = itemsize * max(len(places) * W * W for places, W in zip(batches, widths, strict=True)), False
    Q = stream.buffer(nbytes)
    with stream.recycling(LOOSE):
        for places, W in zip(batches, widths, strict=True):
            batch = _Batch(stream, gram, [members[place] for place in places], W, Q, checks)
            if not batch.own_rows:
                if not blank:  # of a tile there is what its rows have; what stands beside it has to be some number
                    stream.clear(Q, nbytes)
                blank = True
                batch.tiles()
            tell = stands and partial(_tell, stands, places)
            for place, outcome in zip(places, batch.run(tol, max_iter, over, tell), strict=True):
                found[place] = outcome
                watch(place, outcome)
            batch.free()
            if over():
                break
    stream.free(Q)
    return found


def _width(stream: Stream, gram: Products, rows: int) -> int:
    """W of a member: whole vectors and aligned parts of buffers; in the group shape few sizes, each is a program."""
    unit = max(gram.width, UNIT)
    if stream.profile.shape == "group":
        unit = max(gram.width, min(SMALL, stream.profile.group) if rows <= SMALL else stream.profile.group)
    return -(-rows // unit) * unit


def _batches(stream: Stream, gram: Products, order: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """Members of falling size, as many at a time as the compute units want and a share of the memory holds."""
    itemsize = np.dtype(gram.rows.dtype).itemsize
    first = 0
    while first < len(order):
        W = _width(stream, gram, sizes[order[first]])
        panel = gram.panel_bytes(2 * W) - gram.panel_bytes(W)  # what one member more takes
        room = min(int(TILES * (stream.limit - stream.held)), stream.largest) // (itemsize * W * W + 3 * panel)
        unit = at_once(stream)
        count = max(1, min(max(unit, ROWS // W // unit * unit), room))
        yield order[first : first + count]
        first += count


def _tell(stands: Stands, places: Sequence[int], p: int, b: Vector) -> None:
    """Tell where member p of a batch of ``places`` stands."""
    stands(places[p], b)


class _Batch:
    """Some members on the device, their tiles in Q."""

    f: Vector

    def __init__(
        self, stream: Stream, gram: Products, members: Sequence[Member], W: int, Q: Buffer, checks: Checks
    ) -> None:
        self.stream, self.gram, self.members, self.W, self.Q = stream, gram, members, W, Q
        self.eps = float(np.finfo(gram.rows.dtype).eps) * checks.kernel_scale
        self.exact, self.sample, self.sizes = checks.exact, checks.sample, checks.sizes
        problem, B = members[0].problem, len(members)
        self.constraint, self.kink, self.B = problem.constraint, problem.kink, B
        self.lo, self.hi, self.q, self.b = (np.zeros((B, W)) for _ in range(4))
        ws, self.places = np.full((B, W), -1, np.int32), np.full((B, W), -1, np.int32)
        for p, member in enumerate(members):
            m = len(member.rows)
            ws[p, :m], self.places[p, :m] = np.arange(m), gram.rows.position[member.rows]
            for array, of in ((self.lo, "lo"), (self.hi, "hi"), (self.q, "q")):
                array[p, :m] = getattr(member.problem, of)[0]
            self.b[p, :m] = member.beginning
        self.groups = problem.groups
        self.group = self.groups * np.arange(B)[:, None] + (self.lo < 0) * (self.groups - 1)
        # as the device holds them: where it has no double precision they are sums of two floats
        self.lo, self.hi, self.q, self.b = map(stream.held_wide, (self.lo, self.hi, self.q, self.b))
        own = self.q, self.b, self.lo, self.hi, np.array([self.kink]), self.q
        blank = np.zeros((B, W)), np.zeros((B, 4)), np.zeros((B, W), np.uint8)
        numbers = member_tiles.counts([B * W, *(len(member.rows) for member in members)])
        self.inputs, parts, *_ = together(stream, [*map(stream.as_wide, own), *blank, ws, *numbers])
        f, b, lo, hi, kink, self.linear, self.delta, self.counters, made, self.ws, self.all, *self.counts = parts
        self.state = View(f, b, lo, hi, kink)
        self.panel, self.at = member_tiles.gathered(stream, gram, self.places, self.all)
        self.own_rows: tuple[Any, ...] = ()  # what the subproblem makes rows of
        if values := self._own_rows():
            self.own_rows = made, *values

    def _own_rows(self) -> tuple[Any, ...] | None:
        """What the subproblem makes rows of Q from, where it does: it finds a member's rows in its core's cache, or
        the values are there."""
        if self.stream.profile.shape != "vector" or self.constraint is Constraint.SPLIT:
            return None
        return self.gram.of_panel(self.panel) if made_in_place(self.gram, self.W) else None

    def tiles(self) -> None:
        """All of Q."""
        stream, gram, W = self.stream, self.gram, self.W
        for p, (member, count) in enumerate(zip(self.members, self.counts, strict=True)):
            part, rows = gram.part(self.panel, p * W, W, count), stream.part(self.at, 4 * p * W, 4 * W)
            member_tiles.tile(stream, gram, part, rows, count, self.Q, p, len(member.rows))

    def free(self) -> None:
        self.stream.finish()
        self.stream.free(self.inputs, self.at, *self.panel.buffers())

    def run(self, tol: float, max_iter: int, over: Callable[[], bool], stands: Stands | None) -> list[Outcome]:
        stream, B, W = self.stream, self.B, self.W
        profile, dtype = stream.profile, self.gram.rows.dtype
        items = programs.subproblem_items(profile, W)
        source = self.gram.row_source() if self.own_rows else None
        subproblem = stream.variant(programs.subproblem(profile, dtype, W, self.constraint, source))
        memory = local(VECTOR_STATE * W if items == 1 else 8)
        budget = profile.patience * W if max_iter < 0 else max_iter
        stop = NEARER if W <= FEW else STOP
        limits = Limits(np.float32(stop * tol), np.float32(0), LAUNCH * W, np.int64(budget))
        exact, near = np.zeros(B, bool), np.zeros((B, W), bool)
        steps = np.zeros(B, np.int64)
        state = (self.state, self.delta, self.counters)
        if self.b.any():
            if self.own_rows:  # (no steps: the rows of these coefficients)
                none = limits._replace(steps=0)
                subproblem((items * B,), (items,), W, W, self.ws, self.Q, state, none, memory, self.own_rows)
            self._respond()
        while True:
            subproblem((items * B,), (items,), W, W, self.ws, self.Q, state, limits, memory, self.own_rows)
            self.b = stream.read_wide(self.state.b, (B, W))
            if stands:
                for p, member in enumerate(self.members):
                    stands(p, self.b[p, : len(member.rows)].copy())
            self._respond()
            before, steps = steps, stream.read(self.counters, np.int64, (B, 4))[:, 0]
            seen, bound, still = self._extremes(), self._bound(), steps == before
            violation = seen.violations.reshape(B, -1).max(axis=1)
            hidden = 2 * bound  # of the violation
            checked = exact.copy()
            if self.exact:
                settled, doubt = (violation <= tol) | still, hidden > (1 - STOP) * tol
                exact |= settled & (doubt | self._loose(bound, settled & ~doubt & ~exact))
            if exact.any():
                near = seen.deciding(tol, np.repeat(bound, W)).reshape(B, W) | (self.b != 0)
                near &= exact[:, None]
                self._respond_exactly(near)
                seen = self._extremes()
                violation = seen.violations.reshape(B, -1).max(axis=1)
                hidden[exact] = 0
            sure = violation + hidden <= tol
            if not (~sure & (~still | (exact & ~checked)) & (steps < budget)).any() or over():
                break
        offset, rho = seen.offset.reshape(B, W), seen.rho.reshape(B, -1)
        ends = zip(offset, rho, *map(np.ndarray.tolist, (violation, steps, bound, near.sum(axis=1), sure)), strict=True)
        return [self._outcome(p, *end) for p, end in enumerate(ends)]

    def _bound(self) -> Vector:
        """Of f, from the rounding of K."""
        return np.asarray(self.eps * np.abs(self.b).sum(axis=1))

    def _loose(self, bound: Vector, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The members (B,) whose objective rounding of K could move by more than a report may be off; of those where
        that is ``alone`` to be looked at, as a sample of rows has it."""
        level, weight = certificate.level(self.f, self.b, self.q, self.kink)
        loose = np.asarray(bound * weight > certificate.OBJECTIVE * level)
        many = (self.b != 0).sum(axis=1) > MANY if self.sizes is not None else np.zeros(self.B, bool)
        if (sampled := alone & loose & many).any():
            loose &= ~sampled | (self._shifted(sampled) > certificate.OBJECTIVE * level)
        if (sampled := alone & loose & ~many).any():
            moved = np.where(sampled, SURE * self._moved(sampled), bound)
            loose &= ~sampled | (np.minimum(moved, bound) * weight > certificate.OBJECTIVE * level)
        return loose

    def _shifted(self, members: NDArray[np.bool_]) -> Vector:
        """The sum of what rounding did to f times the coefficients (B,), as certificate.sample of the support vectors
        of some ``members`` has it. What it did to all rows alike counts for nothing where the coefficients add up to 0:
        f is left as it is."""
        times, before = np.zeros(self.b.shape), self.f.copy()
        for p in np.flatnonzero(members).tolist():
            sizes = np.asarray(self.sizes)[self.members[p].rows]
            some, so_many = certificate.sample(np.flatnonzero(self.b[p]), self.b[[p]], sizes)
            times[p, some] = so_many
        self._respond_exactly(times > 0)
        did = self.f - before
        self.f = before
        self.stream.write_wide(self.state.f, before)
        alike = (did * times).sum(axis=1) / np.maximum(times.sum(axis=1), 1)
        did -= np.where([member.problem.balanced for member in self.members], alike, 0)[:, None]
        return np.asarray((np.abs(did * self.b) * times).sum(axis=1))

    def _moved(self, members: NDArray[np.bool_]) -> Vector:
        """The most that rounding of K has moved f in some support vectors of each of the members (B,), of all sizes of
        coefficients: by the host, or where it has no values by products with the rows."""
        before, near = self.f.copy(), np.zeros(self.b.shape, bool)
        for p in np.flatnonzero(members).tolist():
            used = np.flatnonzero(self.b[p])
            by_size = used[np.argsort(-np.abs(self.b[p, used]), kind="stable")]
            near[p, by_size[:: max(1, len(used) // SAMPLE)]] = True
        if self.sample:
            self._by_host(self.sample, near)
        else:
            self._respond_exactly(near)
        return np.asarray(np.abs(self.f - before).max(axis=1))

    def _respond(self) -> None:
        """f from the tiles."""
        member_tiles.respond(self.stream, self.gram, self.b.shape, self.Q, self.state.b, self.linear, self.state.f)
        f = self.stream.read_wide(self.state.f, self.b.shape)
        self.f = np.where(self.places >= 0, f, 0.0)  # (where there is no row, the kernel function may have no value)
        certificate.finite(self.f, self.gram.kernel)

    def _respond_exactly(self, near: NDArray[np.bool_]) -> None:
        """f of the rows ``near`` (B, W) from float64 products with the support vectors of their member, or from values
        of the host where they are few beside the rows that products would be laid out for."""
        assert self.exact
        few = int((near.sum(axis=1) * (self.b != 0).sum(axis=1)).sum()) <= ON_HOST * self.gram.rows.n * self.gram.rows.d
        stream, gram = self.stream, (few and self.sample) or self.exact()
        if callable(gram):
            self._by_host(gram, near)
            stream.write_wide(self.state.f, self.f)
            return
        some, used = np.flatnonzero(near.any(axis=1)).tolist(), self.b != 0
        asked = [
            member_tiles.Asked(self.places[p, near[p]], self.places[p, used[p]], self.q[p, near[p]], self.b[p, used[p]])
            for p in some
        ]
        for p, values in zip(some, member_tiles.responses(stream, gram, asked), strict=True):
            self.f[p, near[p]] = values
        stream.write_wide(self.state.f, self.f)

    def _by_host(self, block: Block, near: NDArray[np.bool_]) -> None:
        """f of the rows ``near`` (B, W) from blocks of K on the host."""
        with one_thread():
            for p in np.flatnonzero(near.any(axis=1)).tolist():
                own, here, used = self.members[p].rows, np.flatnonzero(near[p]), np.flatnonzero(self.b[p])
                self.f[p, here] = block(own[here], own[used]) @ self.b[p, used] + self.q[p, here]

    def _extremes(self) -> Extremes:
        """Of all members, each with its own groups."""
        f, b, lo, hi = (array.ravel() for array in (self.f, self.b, self.lo, self.hi))
        held = self.constraint is not Constraint.NONE
        return certificate.extremes(f, b, lo, hi, self.kink, self.group.ravel(), self.B * self.groups, held)

    def _outcome(
        self, p: int, at: Vector, rho: Vector, violation: float, steps: int, bound: float, exact: int, sure: bool
    ) -> Outcome:
        member = self.members[p]
        f, b, lo, hi, q, at = (
            array[None, : len(member.rows)].copy()
            for array in (self.f[p], self.b[p], self.lo[p], self.hi[p], self.q[p], at)
        )
        primal, dual = certificate.objectives(f, b, lo, hi, q, self.kink, at)
        b = member.problem.snapped(b, lo, hi)
        return Outcome(b[0], rho, float(primal[0]), float(dual[0]), violation, steps, bound, exact, sure)
