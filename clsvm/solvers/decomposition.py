"""Decomposition: the dual of kernel SVMs by working sets chosen, solved and applied on the device.

Solves:   minimise 1/2 b'Kb + q'b + kink sum |b|,  lo <= b <= hi,  sum b fixed or free, for several problems over one
          set of rows (coupled.py: problems that are coupled row by row)
Given:    products with K (gram), the problems (tasks), tolerances
Returns:  b, f = Kb + q, rho, and how it ended
Stops:    violation max_low f - min_up f <= tol, or the relative duality gap <= gap_tol, or max_iter steps, or max_time
Source:   GTSVM (Cotter, Srebro, Keshet 2011) sections 3 and 5.1; working sets of half old, half new rows as in
          ThunderSVM and oneDAL; the W x W tile first and whole rows only for coefficients that changed, as in cuML;
          the choice of pairs inside is LIBSVM's (WSS 2)

    until stopped:
        ws   <- half of the last working set, and the rows with the largest violations      selection.py
        Q    <- K(ws, ws), of which the kept half is there                                  gram.tile, carry.cl
        b_ws <- solution of the dual over ws                                                subproblem_*.cl
        f    <- f + K(., changed) delta, rows from the store or computed and stored         rowcache.cl, update.cl, gram

Nothing of length n leaves the device, and the host waits only every ``sync`` steps, to read the violation. K is in
float32 as a rule, b and f in float64 (or pairs of float32). When the violation seems small enough, the rows that can
decide it, within the bound of what rounding of K can have done to f, are evaluated again in float64 (``exact``); if the
true violation is larger, their f is replaced and the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import variants
from clsvm.device import Buffer, Stream, local
from clsvm.gram import Gram, Store, Update
from clsvm.report import Point, Progress, Status, relative_gap
from clsvm.rowcache import RowCache
from clsvm.solvers import certificate
from clsvm.solvers.selection import View, nbytes, selection
from clsvm.tasks import Constraint, Problem

Vector = NDArray[np.float64]
Exact = Callable[[NDArray[np.intp], Vector], Vector]  # (rows i, b (problems, n)) -> K b of those rows in float64
MOST = 20  # inner steps for each row of the working set, after which f is made anew
SHRINK = 0.1  # an inner solve stops at this share of its first violation
VECTOR_STATE = 64  # bytes of local memory for each row of the working set in the vector shape's subproblem
CACHE_SHARE = 0.75  # of the memory that is left, for the row store; the certificate needs some as well
NEAR, CLOSE = 3, 0.6  # times that a violation within tol is brought towards CLOSE of it, to do without a certificate
CERTIFICATES = 20  # times that f is replaced before a solve counts as stalled
FEW_ROWS = 4096  # of which the objectives are checked in float64 also where a solve ends short of its tolerance
WHOLE = 16  # a working set is whole vectors of this many
GAP_ROWS = 512  # rows solved between two looks at the duality gap, which take a pass over a few numbers a row


@dataclass(frozen=True)
class Settings:
    """Numbers of a solve. max_iter: steps, -1 for no limit. max_time: seconds, None for no limit. cache_bytes: of the
    row store. kernel_scale: the rounding error of K in units of its dtype's eps. exact: see module; None where K is
    exact enough as it is. start: feasible coefficients (problems, n) to begin with; known: coefficients near
    those and the f of them. keep: called with the coefficients at least ``keep_every`` seconds apart, and where the
    solve is interrupted. timed: whether seconds are wanted by part, for which the host waits more often."""

    tol: float
    gap_tol: float | None
    max_iter: int
    working_set: int
    cache_bytes: int
    kernel_scale: float
    exact: Exact | None
    progress: Progress | None = None
    max_time: float | None = None
    start: Vector | None = None
    known: tuple[Vector, Vector] | None = None
    keep: Callable[[Vector], None] | None = None
    keep_every: float = 60.0
    timed: bool = True


@dataclass(frozen=True)
class Solution:
    """b, f (problems, n), rho (problems, groups) and primal, dual, violation, steps (problems,), float64. dtype: of the
    kernel values that f is of."""

    b: Vector
    f: Vector
    rho: Vector
    primal: Vector
    dual: Vector
    violation: Vector
    steps: NDArray[np.int64]
    status: Status
    error_bound: float
    exact_rows: int
    outer_steps: int
    rows_computed: int
    working_set: int
    seconds: dict[str, float]
    trace: tuple[Point, ...]
    dtype: str

    def after(self, before: Solution) -> Solution:
        """This solution, with what it cost to come to ``before``, where it began."""
        last = before.trace[-1] if before.trace else None
        later = (
            [
                p._replace(seconds=p.seconds + last.seconds, steps=p.steps + last.steps, outer=last.outer)
                for p in self.trace
            ]
            if last
            else list(self.trace)
        )
        parts = {*before.seconds, *self.seconds}
        return replace(
            self,
            steps=self.steps + before.steps,
            outer_steps=self.outer_steps + before.outer_steps,
            rows_computed=self.rows_computed + before.rows_computed,
            working_set=before.working_set,
            seconds={part: before.seconds.get(part, 0.0) + self.seconds.get(part, 0.0) for part in parts},
            trace=(*before.trace, *later),
        )


class Solver:
    """The state of a solve on the device, and one method for each stage of a step.

    ``sets`` working sets are chosen at a time, each for ``each`` problems. :meth:`load` begins again with another
    problem of the same shape and constraint, with all room and what the row store has.
    """

    def __init__(self, stream: Stream, gram: Gram, problem: Problem, settings: Settings) -> None:
        self.stream, self.gram, self.problem, self.settings = stream, gram, problem, settings
        rows, P = gram.rows, problem.problems
        self.n, self.P = rows.n_pad, P
        self.sets, self.each = self._shape()
        self.lo, self.hi, self.q, self.f, self.b = (stream.buffer(8 * P * self.n) for _ in range(5))
        self.kink = stream.buffer(8)
        self.W = self._working_set()
        self.keep = self.W // 2
        self.selection = selection(stream, rows.dtype, problem.constraint, self.sets, self.n, self.W)
        self._scratch()
        self._kernels()
        real = np.dtype(rows.dtype).itemsize
        room = min(settings.cache_bytes, int(CACHE_SHARE * (stream.limit - stream.held)))
        self.cache = RowCache(stream, self.n, real, room, self.sets * self.W)
        self._before = 0  # rows computed for problems before
        self.load(problem, settings)

    def load(self, problem: Problem, settings: Settings) -> None:
        """The state at the start of a problem."""
        stream, self.problem, self.settings = self.stream, problem, settings
        start = problem.start if settings.start is None else settings.start
        b = np.zeros((self.P, self.n)) if start is None else self._padded(start)
        q = self._padded(problem.q)
        near, f = (None, q) if settings.known is None else (settings.known[0], self._padded(settings.known[1]))
        arrays = self._padded(problem.lo), self._padded(problem.hi), q, f, b, np.array([problem.kink])
        for buffer, array in zip((self.lo, self.hi, self.q, self.f, self.b, self.kink), arrays, strict=True):
            stream.write_wide(buffer, array)
        counters = stream.read(self.counters, np.int64, (self.P, 4))
        self._before += int(counters[0, 1])
        counters[:, :2] = 0  # (the head of the ring stays)
        stream.write(self.counters, counters)
        self.selection.clear()
        parts = ("select", "subproblem", "tile", "rows", "update", "gap", "exact")
        self.seconds = dict.fromkeys(parts, 0.0)
        self.trace: list[Point] = []
        if start is not None:
            self._gradients(start if near is None else start - near)

    def _shape(self) -> tuple[int, int]:
        return self.problem.problems, 1

    def _working_set(self) -> int:
        """The working set size asked for, in whole tiles, halved until it takes at most half of the memory left."""
        stream, rows, unit = self.stream, self.gram.rows, max(self.gram.width, WHOLE)
        real = np.dtype(rows.dtype).itemsize
        W = max(1, min(self.settings.working_set, rows.n) // unit) * unit
        own, sets = VECTOR_STATE if stream.profile.shape == "vector" else 0, self.sets
        while unit < W:
            panel, tile = self.gram.panel_bytes(sets * W), (sets * W) ** 2 * real
            room = (stream.limit - stream.held - self._besides(W, real)) // 2
            fits = room >= panel + tile and max(panel, tile) <= stream.largest
            if fits and own * W <= stream.local_memory:
                break
            W = max(1, W // 2 // unit) * unit
        return W

    def _besides(self, W: int, real: int) -> int:
        """Bytes that a working set of W needs besides panels and tile: what changed, of every problem; the choice."""
        chosen = nbytes(self.stream.profile, self.problem.constraint, self.sets, self.n, W)
        return 24 * self.P * W + chosen

    def _padded(self, values: Vector) -> Vector:
        """(P, n) in the caller's order -> (P, n_pad) in device order, zero in padding rows."""
        padded = np.zeros((self.P, self.n))
        padded[:, self.gram.rows.position] = values
        return padded

    def _scratch(self) -> None:
        s, P, S, W = self.stream, self.P, self.sets, self.W
        self.panel = self.gram.panel(W * S, square=True)  # of the working set, then of what changed of it
        room = self.panel.capacity
        self.count = s.upload(np.array([S * W], np.int32))
        self.hits, self.misses = s.zeros(4), s.zeros(4)
        self.hit_slot, self.miss_row, self.miss_slot = (s.zeros(4 * room) for _ in range(3))
        self.hit_D, self.miss_D = s.zeros(8 * P * room), s.zeros(8 * P * room)
        self.delta, self.counters = s.zeros(8 * P * W), s.zeros(8 * 4 * P)
        self.sums = s.zeros(8 * 3 * S * self.selection.chunks)
        self.Q = s.buffer(np.dtype(self.gram.rows.dtype).itemsize * self.panel.capacity**2)

    def _kernels(self) -> None:
        stream, profile, dtype = self.stream, self.stream.profile, self.gram.rows.dtype
        self.group, self.block = profile.group, profile.block
        self.items, constraint = variants.subproblem_items(profile, self.W), self.problem.constraint
        self._subproblem = stream.variant(variants.subproblem(profile, dtype, self.W, constraint))
        self._k = {name: stream.variant(self.selection.program, name) for name in ("objective", "plan", *self._more)}
        self._k["update"] = stream.variant(variants.update(profile, dtype))
        self._k |= {name: stream.variant(variants.carry(profile, dtype), name) for name in ("carry", "mirror")}

    _more: tuple[str, ...] = ()  # kernels of the selection's program beyond those that every solve uses

    def run(self) -> Solution:
        try:
            return self._run()
        except KeyboardInterrupt:
            if self.settings.keep:
                self.settings.keep(self._coefficients())
            raise

    def _run(self) -> Solution:
        status, outer, exact_rows, certificates = None, 0, 0, 0
        s, began = self.settings, perf_counter()
        before, best, best_at = -1, np.inf, 0
        patience, last_level = 200 + 50 * self.n // self.W, -np.inf
        kept, near = began, 0
        while True:
            self._extremes()
            if outer % self.stream.profile.sync == 0:
                state = self._read()
                violation = float(state.violation.max())
                gap = self._watch(state, outer, began)
                close = violation <= s.tol and near < NEAR and not self._sure(violation)
                near += close
                if not close and (violation <= s.tol or (s.gap_tol is not None and gap <= s.gap_tol)):
                    status = Status.TOLERANCE if violation <= s.tol else Status.GAP
                    started = perf_counter()
                    if s.progress:
                        s.progress.phase("checking in float64")
                    worst, evaluated = self._certify(state, s.tol if violation <= s.tol else violation)
                    self.seconds["exact"] += perf_counter() - started
                    exact_rows += evaluated
                    if status is Status.TOLERANCE and worst <= s.tol:
                        break
                    if status is Status.GAP and (not evaluated or self._gap() <= (s.gap_tol or 0)):
                        break
                    certificates += 1
                    if certificates > CERTIFICATES:
                        status = Status.STALLED
                        break
                    before, best = -1, np.inf
                    continue
                if 0 <= s.max_iter <= int(state.steps.min()):
                    status = Status.MAX_ITER
                    break
                if s.max_time is not None and perf_counter() - began >= s.max_time:
                    status = Status.MAX_TIME
                    break
                if s.keep and perf_counter() - kept >= s.keep_every:
                    s.keep(self._coefficients())
                    kept = perf_counter()
                if violation < 0.99 * best:
                    best, best_at = violation, outer
                if outer - best_at > patience:  # the violation may go up and down for long while the dual still rises
                    level = float(self._objective(state.rho)[1].sum())
                    rises = level > last_level + 1e-9 * abs(level)
                    hidden = s.exact is not None and self._bound(self._coefficients()) > certificate.HOPELESS * s.tol
                    patience = patience if rises and not hidden else 0
                    best_at, last_level = outer, level
                if (outer and int(state.steps.sum()) == before) or not patience:
                    status = Status.STALLED
                    break
                before = int(state.steps.sum())
                self.cache.reserve(self._before + state.rows, self.stream.profile.sync)
            self._step(outer)
            outer += 1
        if status in (Status.MAX_ITER, Status.MAX_TIME) and self.n <= FEW_ROWS:  # (of many it would take long)
            exact_rows += self._certify(state, np.inf)[1]
        self._extremes()
        state = self._read()
        position = self.gram.rows.position
        shape = (self.P, self.n)
        b, f = (self.stream.read_wide(buffer, shape)[:, position] for buffer in (self.b, self.f))
        b = self.problem.snapped(b, *map(self.stream.held_wide, (self.problem.lo, self.problem.hi)))
        if not np.isfinite(f).all():
            raise ValueError(f"{self.gram.kernel!r} is not finite for some pairs of rows")
        held = self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT)
        rho = certificate.of(self.problem, b, f).rho.reshape(self.P, -1) if held else state.rho
        primal, dual = self._objective(rho)
        self.trace.append(self._point(state, outer, began, primal, dual))
        return Solution(
            b=b,
            f=f,
            rho=rho,
            primal=primal,
            dual=dual,
            violation=state.violation,
            steps=state.steps,
            status=status,
            error_bound=self._bound(b),
            exact_rows=exact_rows,
            outer_steps=outer,
            rows_computed=state.rows,
            working_set=self.W,
            seconds=self.seconds,
            trace=tuple(self.trace),
            dtype=self.gram.rows.dtype,
        )

    def _view(self) -> View:
        """f, b, lo, hi (sets, n_pad), kink, as the choice of working sets sees them."""
        return self.f, self.b, self.lo, self.hi, self.kink

    def _extremes(self) -> None:
        self.selection.look(self._view())

    def _coefficients(self) -> Vector:
        return self.stream.read_wide(self.b, (self.P, self.n))[:, self.gram.rows.position]

    def _gradients(self, b: Vector) -> None:
        """f += K b, a panel of rows at a time."""
        s, gram, support = self.stream, self.gram, np.flatnonzero(b.any(axis=0))
        for first in range(0, len(support), self.panel.capacity):
            some = support[first : first + self.panel.capacity]
            weights = np.zeros((self.P, self.panel.capacity))
            weights[:, : len(some)] = b[:, some]
            at, count = s.upload(gram.rows.position[some]), s.upload(np.array([len(some)], np.int32))
            D = s.wide(weights)
            gram.gather(self.panel, at, count)
            gram.accumulate(self.panel, count, None, Update(self.P, self.n, self.f, D, self.panel.capacity))
            s.finish()
            s.free(at, count, D)

    def _watch(self, state: State, outer: int, began: float) -> float:
        """The relative duality gap where it is wanted now (else nan); keeps the trace, shows progress.

        The gap is looked at by a count of steps, not by the clock: a fit ends at the same step every time.
        """
        s, now = self.settings, perf_counter() - began
        every = max(1, GAP_ROWS // (self.W * self.stream.profile.sync)) * self.stream.profile.sync
        wanted = s.gap_tol is not None and outer % every == 0
        due = not self.trace or now > 1.1 * self.trace[-1].seconds + 0.02  # (the first second in a few dozen points)
        if not (wanted or due):
            if s.progress:
                nan = float("nan")
                steps, violation = int(state.steps.sum()), float(state.violation.max())
                s.progress(Point(now, steps, outer, nan, nan, nan, violation, state.rows))
            return float("nan")
        primal, dual = self._objective(state.rho)
        self.seconds["gap"] += perf_counter() - began - now
        point = self._point(state, outer, began, primal, dual)
        if due:
            self.trace.append(point)
        if s.progress:
            s.progress(point)
        return point.gap if wanted else float("nan")

    def _point(self, state: State, outer: int, began: float, primal: Vector, dual: Vector) -> Point:
        gap, violation = float(max(map(relative_gap, primal, dual))), float(state.violation.max())
        steps, total = int(state.steps.sum()), (float(primal.sum()), float(dual.sum()))
        return Point(perf_counter() - began, steps, outer, *total, gap, violation, state.rows)

    def _step(self, outer: int) -> None:
        """One working set: choose, solve, apply."""
        P, W, keep = self.P, self.W, self.keep if outer else 0
        ws, started = self.selection.ws, perf_counter()
        self.selection.choose(self._view(), keep)
        self._lap("select", started)
        started = perf_counter()
        self._tile(keep)
        self._lap("tile", started)
        started = perf_counter()
        self._solve_set()
        self._lap("subproblem", started)
        started = perf_counter()
        self._k["plan"](
            (self.group,), (self.group,), self.n, self.sets, self.each, W, self.keep, self.cache.capacity, ws,
            self.selection.in_set, self.delta, self.cache.slot_of, self.cache.owner, self.hits, self.hit_slot,
            self.hit_D, self.misses, self.miss_row, self.miss_slot, self.miss_D, self.panel.capacity, self.counters,
        )  # fmt: skip
        store = None
        if self.cache.capacity:
            store = Store(self.cache.slabs, self.cache.slab_rows, self.n, self.miss_slot)
            self._k["update"](
                (-(-self.n // self.block),), None, *store.slabs, store.slab_rows, np.int64(self.n), self.hit_slot, P,
                np.int64(self.n), self.f, self.hit_D, self.panel.capacity, self.hits,
            )  # fmt: skip
        self._lap("update", started)
        started = perf_counter()
        self.gram.gather(self.panel, self.miss_row, self.misses)
        update = Update(P, self.n, self.f, self.miss_D, self.panel.capacity)
        self.gram.accumulate(self.panel, self.misses, store, update)
        self._lap("rows", started)

    def _tile(self, keep: int) -> None:
        """Q of the working set: what is new of it, where the last one's is at hand in whole lane groups and squares; of
        that one side, which the other mirrors."""
        ws, Q, W, half = self.selection.ws, self.Q, self.panel.capacity, self.W // 2
        self.gram.gather(self.panel, ws, self.count)
        known = half if keep and self.sets == 1 and half % max(self.gram.rows.lanes, variants.SQUARE) == 0 else 0
        wide, high = W // variants.SQUARE, (W - known) // variants.SQUARE
        if known:
            self._k["carry"]((high, high), None, W, known, Q)
        self.gram.tile(self.panel, ws, self.count, Q, known, half=True)
        self._k["mirror"]((wide, high), None, W, known, Q)

    def _limits(self) -> tuple[Any, ...]:
        """tolerance, shrink, most steps, budget: when the subproblem is solved."""
        s = self.settings
        budget = np.int64(s.max_iter if s.max_iter >= 0 else 2**62)
        return np.float32(0.5 * s.tol), np.float32(SHRINK), MOST * self.W, budget

    def _solve_set(self) -> None:
        memory = local(VECTOR_STATE * self.W if self.items == 1 else 8)
        state = (self.f, self.b, self.lo, self.hi, self.kink, self.delta, self.counters)
        size = (self.items * self.P,), (self.items,)
        self._subproblem(*size, self.n, self.W, self.selection.ws, self.Q, *state, *self._limits(), memory)

    def _lap(self, part: str, started: float) -> None:
        """Where the host reads every step anyway, wait here too, so that seconds fall to the part that took them."""
        if self.stream.profile.sync == 1 and self.settings.timed:
            self.stream.finish()
        else:
            self.stream.flush()
        self.seconds[part] += perf_counter() - started

    def _read(self) -> State:
        numbers, places = self.selection.extremes()
        counters = self.stream.read(self.counters, np.int64, (self.P, 4))
        m, M = numbers[..., 0].min(axis=1), numbers[..., 1].max(axis=1)  # (sets, groups)
        if self.problem.constraint in (Constraint.NONE, Constraint.COUPLED):  # every row by itself
            violation = np.maximum(np.maximum(-m, M), 0)[:, 0]
            return State(m, M, np.zeros((self.P, 1)), violation, counters[: self.sets, 0], int(counters[0, 1]))
        free = places[..., 2].sum(axis=1)
        with np.errstate(invalid="ignore"):
            middle = np.where(np.isfinite(m) & np.isfinite(M), (m + M) / 2, np.where(np.isfinite(m), m, M))
            rho = np.where(free > 0, numbers[..., 2].sum(axis=1) / np.maximum(free, 1), middle)
            violation = np.where(np.isfinite(m) & np.isfinite(M), M - m, -np.inf).max(axis=1)
        rho = np.where(np.isfinite(rho), rho, 0.0)
        return State(m, M, rho, np.maximum(violation, 0.0), counters[: self.sets, 0], int(counters[0, 1]))

    def _gap(self) -> float:
        """The relative duality gap of the state as it is now."""
        self._extremes()
        return float(max(map(relative_gap, *self._objective(self._read().rho))))

    def _objective(self, rho: Vector) -> tuple[Vector, Vector]:
        """Primal and dual objective of each problem at offset rho."""
        buffer = self.stream.wide(rho)
        self._sum(buffer)
        quadratic, linear, loss = self.stream.read_wide(self.sums, (self.sets, self.selection.chunks, 3)).sum(axis=1).T
        self.stream.free(buffer)
        primal = quadratic / 2 + loss
        if self.problem.constraint in (Constraint.BIAS, Constraint.SPLIT):
            primal -= (rho.reshape(self.P, -1) * self.problem.total).sum(axis=1)
        return primal, -(quadratic / 2 + linear)

    def _sum(self, rho: Buffer) -> None:
        """Into ``sums``: what the objectives are made of, chunk by chunk."""
        state = (self.f, self.b, self.lo, self.hi, self.kink, self.q)
        self.selection.over_rows(self._k["objective"], *state, rho, self.sums)

    def _bound(self, b: Vector) -> float:
        """What rounding of the kernel values can have done to f at most, for coefficients b (problems, rows)."""
        eps = float(np.finfo(self.gram.rows.dtype).eps)
        return eps * self.settings.kernel_scale * float(np.abs(b).sum(axis=1).max())

    def _sure(self, violation: float) -> bool:
        """Whether a few steps more cannot spare the float64 certificate, or need not: what rounding of K hides is too
        much for that, or nothing, or within tol with the violation."""
        tol = self.settings.tol
        if self.settings.exact is None or violation <= CLOSE * tol or self.gram.rows.dtype == "float64":
            return True
        hidden = 2 * self._bound(self._coefficients())
        return hidden > (1 - CLOSE) * tol or hidden <= tol / 5 or violation + hidden <= tol

    def _certify(self, state: State, tol: float) -> tuple[float, int]:
        """(violation, rows evaluated): f of the rows that decide the violation and the objectives, from kernel values
        in float64, where rounding may hide a tenth of tol. Where these are in float64 as it is, f of all rows: it has
        gathered the rounding of many steps."""
        double = self.gram.rows.dtype == "float64"
        shape = (self.P, self.n)
        b = self.stream.read_wide(self.b, shape)
        bound = self._bound(b)
        worst = float(state.violation.max())
        if self.settings.exact is None:
            return worst, 0
        f, lo, hi, q = (self.stream.read_wide(buffer, shape) for buffer in (self.f, self.lo, self.hi, self.q))
        now = replace(self.problem, lo=lo, hi=hi, q=q, start=None)
        order = self.gram.rows.order
        there = order >= 0
        coefficients = np.zeros((self.P, self.gram.rows.n))
        coefficients[:, order[there]] = b[:, there]
        rows = there & double
        if not double and bound > tol / 10 and worst + 2 * bound > tol:
            rows = there & certificate.of(now, b, f).deciding(tol, bound).reshape(shape).any(axis=0)
        evaluated, off = 0, bound
        for more in (rows, there & ~rows & (b != 0).any(axis=0)):
            at = np.flatnonzero(more)
            if at.size:
                exact = self.settings.exact(order[at].astype(np.intp), coefficients) + q[:, at]
                off = float(np.abs(exact - f[:, at]).max())  # what rounding did here, it will have done to the rest
                f[:, at] = exact
                evaluated += at.size
            level, weight = certificate.level(f, b, q, now.kink)
            if (off * weight <= certificate.OBJECTIVE * level).all():
                break
        if not evaluated:
            return worst, 0
        self.stream.write_wide(self.f, f)
        return certificate.of(now, b, f).violation, evaluated


@dataclass(frozen=True)
class State:
    """What the host reads back: m, M, rho (problems, groups), violation, steps (problems,), and rows computed."""

    m: Vector
    M: Vector
    rho: Vector
    violation: Vector
    steps: NDArray[np.int64]
    rows: int
