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
                (or whole rows first, and Q from the row cache                         rows_first.py, given.cl)
        b_ws <- solution of the dual over ws                                                subproblem_*.cl
        f    <- f + K(., changed) delta, rows from the row cache, or computed              rowcache.cl, update.cl, gram
        where that brings little, all free coefficients to their minimum                   free.py

Of length n, b and f alone leave the device, and only a few times; the host waits only every ``sync`` steps, to read the
violation (loop.py). Where most rows are likely to be asked for, all of them are made at once (rest.py). K
is in float32 as a rule, b and f in float64 (or pairs of float32).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs as gram_programs
from clsvm.gram.products import Products, Store, Tile, Update
from clsvm.gram.row_cache import RowCache
from clsvm.opencl.launch import local
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Constraint, Problem
from clsvm.solvers import programs, rows_first
from clsvm.solvers.free import Leap
from clsvm.solvers.loop import Look, Loop
from clsvm.solvers.programs import Hits, Limits, Misses
from clsvm.solvers.rest import Rest
from clsvm.solvers.selection import View, nbytes, selection
from clsvm.solvers.solution import Settings
from clsvm.solvers.state import State

Vector = NDArray[np.float64]
VECTOR_STATE = 64  # bytes of local memory for each row of the working set in the vector shape's subproblem
CACHE_SHARE = 0.75  # of the memory that is left, for the row cache; the certificate needs some as well
UNTIMED = 1024  # rows up to which no part of a step is waited for by itself
WHOLE = 16  # a working set stands in whole vectors of this many places
LEAST = 4  # rows of a working set of which a half stays


class Solver(Loop):
    """The state of a solve on the device, and one method for each stage of a step.

    ``sets`` working sets are chosen at a time, each for ``each`` problems. :meth:`load` begins again with another
    problem of the same shape and constraint, with all room and what the row cache has.
    """

    def __init__(self, stream: Stream, gram: Products, problem: Problem, settings: Settings) -> None:
        self.stream, self.gram, self.problem, self.settings = stream, gram, problem, settings
        rows, P = gram.rows, problem.problems
        self.n, self.P, self.sync, self.dtype = rows.n_pad, P, stream.profile.sync, rows.dtype
        self.sets, self.each = self._shape()
        self.state = State(stream, gram, P)
        self.W, self.stride = self._working_set()
        self.stay = self.W // 2 if self.W >= LEAST else 0
        sizes = self.sets, self.n, self.W, self.stride, P
        self.selection = selection(stream, rows.dtype, problem.constraint, *sizes)
        self.counters = self.selection.counters
        self._scratch()
        self._kernels()
        real = np.dtype(rows.dtype).itemsize
        room = min(settings.cache_bytes, int(CACHE_SHARE * (stream.limit - stream.held)))
        self.cache = RowCache(stream, self.n, real, room, self.sets * self.W)
        self._before = 0  # rows computed for problems before
        self._rows_first = False  # whether rows come before the tile
        self.leap: Leap | None = None
        self.load(problem, settings)

    def load(self, problem: Problem, settings: Settings) -> None:
        """The state at the start of a problem."""
        stream, self.problem, self.settings = self.stream, problem, settings
        start = problem.start if settings.start is None else settings.start
        missing = self.state.load(problem, start, settings.known)
        counters = stream.read(self.counters, np.int64, (self.P, 4))
        self._before += int(counters[0, 1])
        counters[:, [0, 1, 3]] = 0  # (the head of the ring stays)
        stream.write(self.counters, counters)
        self.selection.clear()
        if self.leap:
            self.leap.end()
        alone, cells = self.P == 1 and problem.constraint is not Constraint.COUPLED, self.gram.rows.cost
        value = min(cells, stream.profile.cache_cost) if self.cache.capacity or self.gram.whole else cells
        given = settings.kernel_scale, value, self._tile_there, self._square_bytes
        self.leap = Leap(self.state, self.W, *given) if alone else None
        rest = self.cache.capacity and self.sets == 1 and Rest.suits(self.gram)
        self.rest = Rest(self.state, self.cache, settings.tol) if rest else None
        self._apart = 0  # rows that the row cache does not get, for such steps; less those that are mirror images
        self._at_once = self._asked = 0  # rows computed apart from working sets; for them, at the last look
        self._idle = self._outer = 0  # new rows of working sets of which no coefficient changed; working sets
        self._begin()
        if settings.looked is not None and settings.known is not None:
            self.rounding.looked(settings.looked, settings.known[0], settings.known[1] - problem.q)
        if missing is not None:
            self.state.respond(missing, self.panel)

    def _shape(self) -> tuple[int, int]:
        return self.problem.problems, 1

    def _working_set(self) -> tuple[int, int]:
        """(rows, places) of a working set: of the size asked for, in whole tiles; an eighth less, and so on, until it
        takes no more than its share of what is left. Of a set smaller than a tile the other places stay empty; it has
        an even number of rows, since half of it stays, and of two sums four at least, two for a pair of each."""
        stream, rows, unit = self.stream, self.gram.rows, max(self.gram.width, WHOLE)
        real = np.dtype(rows.dtype).itemsize
        asked = min(self.settings.working_set, rows.n)
        W = max(1, asked // unit) * unit
        own, sets = VECTOR_STATE if stream.profile.shape == "vector" else 0, self.sets
        while unit < W:
            panel, tile = self.gram.panel_bytes(sets * W), (sets * W) ** 2 * real
            room = self.gram.share * (stream.limit - stream.held - self._besides(W, real))
            fits = room >= panel + tile and max(panel, tile) <= stream.largest
            if fits and own * W <= stream.local_memory:
                break
            eighth = (1 << (W - 1).bit_length()) // 8
            W = max(1, (W - max(unit, eighth)) // unit) * unit
        least = LEAST if self.problem.constraint is Constraint.SPLIT else 2
        return min(W, max(least, -(-asked // 2) * 2)), W

    def _besides(self, W: int, real: int) -> int:
        """Bytes that a working set of W needs besides panels and tile: what changed, of every problem; the choice."""
        chosen = nbytes(self.stream.profile, self.problem.constraint, self.sets, self.n, W)
        return 24 * self.P * W + chosen

    def _scratch(self) -> None:
        s, P, S, W = self.stream, self.P, self.sets, self.stride
        self._square()
        room = self.panel.capacity
        self.count = s.upload(np.array([S * W], np.int32))
        self.hits = Hits(s.zeros(4), s.zeros(4 * room), s.zeros(8 * P * room))
        self.misses = Misses(s.zeros(4), s.zeros(4 * room), s.zeros(4 * room), s.zeros(8 * P * room))
        self.delta = s.zeros(8 * P * W)
        self.sums = s.zeros(8 * 3 * S * self.selection.chunks)

    def _square(self) -> None:
        """Room for panel and tile: of the working set; the panel then of what changed of it."""
        before = self.stream.held
        self.panel = self.gram.panel(self.stride * self.sets, square=True)
        self.Q = self.stream.buffer(np.dtype(self.gram.rows.dtype).itemsize * self.panel.capacity**2)
        self._square_bytes, self._tile_made = self.stream.held - before, False

    def _kernels(self) -> None:
        stream, profile, dtype = self.stream, self.stream.profile, self.gram.rows.dtype
        self.group = profile.group
        self.items, constraint = programs.subproblem_items(profile, self.stride), self.problem.constraint
        self._subproblem = stream.variant(programs.subproblem(profile, dtype, self.stride, constraint))
        self._k = {name: stream.variant(self.selection.program, name) for name in ("objective", "plan", *self._more)}
        self._k["update"] = stream.variant(gram_programs.update(profile, dtype))
        self._k["pick"] = stream.variant(gram_programs.given(profile, dtype))
        self._k |= {name: stream.variant(programs.carry(profile, dtype), name) for name in ("carry", "mirror")}

    _more: tuple[str, ...] = ()  # kernels of the selection's program beyond those that every solve uses

    def _certified(self, violation: float, tol: float, gap: bool = False) -> tuple[float, int]:
        """:meth:`State.certify`, with the memory of panel and tile."""
        if self.settings.exact is None:
            return violation, 0
        with self.cleared():
            return self.state.certify(self.settings.exact, self.rounding, violation, tol, gap, self.settings.reported)

    def coefficients(self) -> Vector:
        return self.state.coefficients()

    def found(self) -> tuple[Vector, Vector]:
        return self.state.found()

    def _leapt(self, look: Look, outer: int) -> bool:
        """All free coefficients to their minimum at once, where that costs less than the working sets it spares."""
        leap, violation, steps = self.leap, float(look.violation.max()), int(look.steps.sum())
        rows, profile = self.gram.rows, self.stream.profile
        tile = rows_first.copy_cost(profile) if self._rows_first else rows.tile_cost
        if leap is None or not leap.due(look.free, violation, self.settings.tol, self._asked, steps, outer, tile):
            return False
        started = perf_counter()
        with self.cleared():
            change = leap.find(self._square_bytes + self.cache.coming)
        moved = change is not None and leap.go(change, self._respond)
        if moved:
            counters = self.stream.read(self.counters, np.int64, (self.P, 4))
            counters[0, 0] += 1
            self.stream.write(self.counters, counters)
        self.seconds["free"] += perf_counter() - started
        return moved

    def _respond(self, b: Vector) -> None:
        """f += K b (1, n), of rows from the row cache where they are there."""
        stream, room, missing = self.stream, self.panel.capacity, b
        if self.cache.capacity:
            slots = stream.read(self.cache.slot_of, np.int32, self.n)[self.gram.rows.position]
            missing, there = np.where(slots < 0, b, 0), np.flatnonzero((slots >= 0) & (b[0] != 0))
            for first in range(0, len(there), room):
                some = there[first : first + room]
                D, of = np.zeros((1, room)), np.zeros(room, np.int32)
                D[0, : len(some)], of[: len(some)] = b[0, some], slots[some]
                stream.write(self.hits.count, np.array([len(some)], np.int32))
                stream.write(self.hits.slot, of)
                stream.write_wide(self.hits.D, D)
                self._from_cache()
        self._apart += int(np.count_nonzero(missing))
        self.state.respond(missing, self.panel)

    def _from_cache(self) -> None:
        """f += K D, of the hits."""
        store = Store(self.cache.slabs, self.cache.slab_rows, self.n, self.hits.slot)
        update = Update(self.P, self.n, self.state.f, self.hits.D, self.panel.capacity).arguments()
        size = gram_programs.update_range(self.stream.profile, self.n)
        self._k["update"](*size, store.arguments(), update, self.hits.count)

    def _reserve(self, look: Look) -> None:
        computed, most = self._before + look.rows - self._apart, self.sync * self.sets * self.W
        self.cache.reserve(computed, self.sync)
        self._asked = look.rows - self._at_once
        if look.steps.any():
            computed += self._make_rest(computed)
        # Rows of a working set may not leave between its tile and the update: as many as come have to have room, and
        # of one working set no row is missed twice.
        room = self.sets == 1 and min(computed + most, self.n) <= self.cache.capacity
        seen = self.stream.profile, self.gram.rows, self.n, self.W, self._idle, self._outer
        self._rows_first = room and rows_first.pays(*seen, computed < self.gram.rows.n)

    def _make_rest(self, computed: int) -> int:
        """All other rows, after so many, where that is better than to wait until they are asked for; how many."""
        started, made = perf_counter(), 0
        if self.rest and self.rest.pays(computed):
            if self.settings.progress:
                self.settings.progress.phase("the other rows of the kernel matrix")
            made, mirrored = self.rest.make(self.panel, self.misses, self.counters, self.until)
            self._apart -= mirrored
            self._at_once += made - mirrored
        self.seconds["rows"] += perf_counter() - started
        return made

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """The memory of panel and tile is free inside. Between two steps the panel holds nothing, and the tile what the
        next one then makes again."""
        self.stream.finish()
        self.stream.free(*self.panel.buffers(), self.Q)
        self._tile_made = False
        try:
            yield
        finally:
            self._square()

    def _view(self) -> View:
        """f, b, lo, hi (sets, n_pad), kink, as the choice of working sets sees them."""
        state = self.state
        return View(state.f, state.b, state.lo, state.hi, state.kink)

    def _extremes(self) -> None:
        self.selection.look(self._view())

    def _step(self, outer: int) -> None:
        stay, started = self.stay if outer else 0, perf_counter()
        self._outer = outer + 1
        self.selection.choose(self._view(), stay)
        self._lap("select", started)
        if self._rows_first:
            started = perf_counter()
            self._plan(self.W, all_of_them=True)
            self._missing(None)
            self._lap("rows", started)
        started = perf_counter()
        self._tile(stay)
        self._lap("tile", started)
        started = perf_counter()
        self._solve_set()
        self._lap("subproblem", started)
        started = perf_counter()
        self._plan(self.stay)
        if self.cache.capacity:
            self._from_cache()
        self._lap("update", started)
        started = perf_counter()  # (where rows came first, none is missing, or f is right nevertheless)
        self._missing(Update(self.P, self.n, self.state.f, self.misses.D, self.panel.capacity))
        self._lap("rows", started)

    def _plan(self, stay: int, all_of_them: bool = False) -> None:
        """Which rows of the working set that changed, or all of them, are in the row cache, and which are not; its last
        ``stay`` rows then stay."""
        sizes = (self.n, self.sets, self.each, self.stride, self.W, stay, self.cache.capacity, int(all_of_them))
        kept = (self.cache.slot_of, self.cache.owner)
        changed = (self.hits, self.misses, self.panel.capacity)
        one, sets = ((self.group,), (self.group,)), (self.selection.ws, self.selection.in_set)
        self._k["plan"](*one, sizes, sets, self.delta, kept, changed, self.counters)

    def _missing(self, update: Update | None) -> None:
        """The rows that are not in the row cache: into it, where there is one, and into f."""
        store = None
        if self.cache.capacity:
            store = Store(self.cache.slabs, self.cache.slab_rows, self.n, self.misses.slot)
        self.gram.gather(self.panel, self.misses.row, self.misses.count)
        self.gram.accumulate(self.panel, self.misses.count, store, update)

    def _tile(self, stay: int) -> None:
        """Q of the working set: what is new of it, where the last one's is at hand in whole lane groups and squares; of
        that one side, which the other mirrors."""
        ws, Q, W, half = self.selection.ws, self.Q, self.panel.capacity, self.W // 2
        kept = stay and self._tile_made and self.sets == 1
        known = half if kept and half % max(self.gram.rows.lanes, programs.SQUARE) == 0 else 0
        profile = self.stream.profile
        if known:
            self._k["carry"](*programs.squares(profile, known, known), W, known, Q)
        if self._rows_first:
            self._tile_of_rows(ws, W, known, Q)
        else:
            self.gram.gather(self.panel, ws, self.count)
            self.gram.tile(self.panel, Tile(ws, self.count, Q, known, half=True))
        self._k["mirror"](*programs.squares(profile, W, W - known), W, known, Q)
        self._tile_made = True

    def _tile_of_rows(self, rows: Buffer, W: int, known: int, Q: Buffer) -> None:
        """Q (W, W) of rows that the row cache has, like :class:`Tile` with ``half``."""
        size = (1 if self.stream.profile.shape == "vector" else self.gram.rows.lanes, W)
        store = Store(self.cache.slabs, self.cache.slab_rows, self.n, self.cache.slot_of)
        self._k["pick"](size, None, store.arguments(), rows, W, known, 1, Q)

    def _tile_there(self, places: NDArray[np.int32], rows: Buffer, W: int, known: int, Q: Buffer) -> bool:
        """:meth:`_tile_of_rows`, of rows at some places, where the row cache has them all and that is cheaper."""
        cheaper = rows_first.copy_cost(self.stream.profile) < self.gram.rows.tile_cost
        if not cheaper or not self.cache.capacity:
            return False
        there = bool((self.stream.read(self.cache.slot_of, np.int32, self.n)[places] >= 0).all())
        if there:
            self._tile_of_rows(rows, W, known, Q)
        return there

    def _solve_set(self) -> None:
        memory = local(VECTOR_STATE * self.stride if self.items == 1 else 8)
        state = (self._view(), self.delta, self.counters)
        limits = Limits.of(self.settings.tol, self.settings.max_iter, self.W)
        size = (self.items * self.P,), (self.items,)
        self._subproblem(*size, self.n, self.stride, self.selection.ws, self.Q, state, limits, memory)

    def _lap(self, part: str, started: float) -> None:
        """Where the host reads every step anyway, wait here too, so that seconds fall to the part that took them, but
        for few rows, whose steps take less than that."""
        if self.stream.profile.sync == 1 and self.settings.reported and self.n > UNTIMED:
            self.stream.finish()
        elif self.sync == 1 or part == "rows":  # (else once a step, at its end)
            self.stream.flush()
        self.seconds[part] += perf_counter() - started

    def _read(self) -> Look:
        numbers, places, counters = self.selection.extremes()
        self._idle = int(counters[0, 3])
        m, M = numbers[..., 0].min(axis=1), numbers[..., 1].max(axis=1)  # (sets, groups)
        inside = places[..., 2].sum(axis=1), numbers[..., 2].sum(axis=1)
        return self._seen(m, M, *inside, counters[: self.sets, 0], int(counters[0, 1]) + self._apart)

    def _objective(self, rho: Vector) -> tuple[Vector, Vector]:
        buffer = self.stream.wide(rho)
        self._sum(buffer)
        sums = self.stream.read_wide(self.sums, (self.sets, self.selection.chunks, 3)).sum(axis=1)
        self.stream.free(buffer)
        return self._objectives(sums, rho)

    def _sum(self, rho: Buffer) -> None:
        """Into ``sums``: what the objectives are made of, chunk by chunk."""
        self.selection.over_rows(self._k["objective"], self._view(), self.state.q, rho, self.sums)
