"""Compute and cache rows of the kernel matrix K for a solve, and choose the sizes of working set and row cache.

An outer iteration first needs the tile Q = K(ws, ws), the kernel values among the rows of its working set ws. Then it
needs the row K(i, X) for each row i whose coefficient has changed, where X are all rows. Two methods compute rows of K
before they are needed, if this is less work:

Rows before the tile: all rows K(ws, X) are computed first and stored in the row cache, and Q is copied from them. This
is less work if a value of Q costs much more than a value of a row, and few rows are idle. A row is called "idle" if the
iteration does not need it, because none of its coefficients changes. For example, an inverted index of X makes whole
rows cheap, while Q is computed from CSR rows.

Prefetched rows: all rows of K that the cache lacks are computed together, before iterations need them. Half of the
values among these rows follow by symmetry (:func:`clsvm.gram.store.fill`).

:func:`sizes` chooses the sizes of working set and row cache by a cost model with the costs in the device's profile. The
unit of cost is the time of one multiply-add in a product of dense rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.panel import Panel
from clsvm.gram.layouts.record import Rows
from clsvm.gram.products import Operator, Update
from clsvm.gram.store import RowCache, fill
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Vector
from clsvm.solvers import certificate
from clsvm.solvers.result import Settings
from clsvm.solvers.state import Selection, State, pairs

Positions = NDArray[np.int32]
# CACHE_SHARE: largest share of free memory that the row cache takes. Checks of the solution in float64 need the rest.
CACHE_SHARE = 0.75
SINGLE_VALUE = 4.0  # factor by which a value of a cached row costs more if it is read alone, not with the whole row
IDLE = 0.05  # assumed share of a working set's rows whose coefficients do not change in an outer iteration
# NEW_SHARE: assumed share of the values of a working set's kernel matrix that are computed. Half of the rows of the
# working set are assumed to be new. Then 1/4 of the values stay from the previous working set, 3/8 are computed, and
# 3/8 follow by symmetry.
NEW_SHARE = 3 / 8
# Once FIRST_PREFETCH * n rows of K (n, n) were computed, a solve considers computing all other rows of K in advance.
# The solve considers this again each time that the number of computed rows has doubled.
FIRST_PREFETCH = 1 / 8
MIN_GAIN = 1.25  # rows are computed in advance only if the expected saving exceeds MIN_GAIN times the cost
REUSED = 1 / 2  # if kernel values are cheap, rows of K (n, n) are cached only after REUSED * n of them were computed
FUNCTION = 1 / 2  # computing a kernel value from an inner product costs FUNCTION * Profile.value_cost
MIN_WORKING_SET = 16  # smallest working set that "auto" takes, in rows
# Constants of the model that estimates the cost of a solve, fitted to the data sets a9a, ijcnn1, covtype and MNIST
DECLINE, FRESH, INNER_STEPS = (
    0.3,  # DECLINE: the number of coefficient changes in a solve with working sets of W rows varies as W^-DECLINE
    0.65,  # FRESH: share of the rows of a working set whose coefficients change in an outer iteration
    1.5,  # INNER_STEPS / sqrt(pairs): SMO iterations for each coefficient that changes in an outer iteration
)
SUPPORT = 1 / 3  # assumed share of rows whose coefficients change at all in a solve
# STAYING: if a working set has W rows, a row cache for m < STAYING * W rows of K evicts rows that are needed again.
# These rows are then computed again. In this case, the cost model multiplies the cost of computed rows by
# RECOMPUTED * (STAYING * W / m) ** EVICTION.
STAYING, RECOMPUTED, EVICTION = 1.5, 1.6, 0.2
# If the kernel values among the rows of a working set take more than NEAR_BYTES bytes, the part of the cost of an SMO
# iteration that grows with the working set is multiplied by FAR_COST.
NEAR_BYTES = 4 << 20
FAR_COST = 1.2


def copy_cost(profile: Profile) -> float:
    """Return the cost of copying one kernel value from the row cache into the kernel matrix of a working set's rows.

    The unit is the time of one multiply-add in a product of dense rows.
    """
    return SINGLE_VALUE * profile.cache_cost


def tile_cost(profile: Profile, rows: Rows, n: int, W: int, idle: float | None = None) -> float:
    """Return the cost of one value of Q = K(ws, ws), if all rows K(ws, X) are computed and Q is copied from them.

    ws is the working set, X are all rows, and K is the kernel matrix. A row i of ws is idle if its coefficient does not
    change in an outer iteration. For an idle row i, the row K(i, X) of the kernel matrix is computed only to fill Q.
    The result is the cost of copying one value, plus a share of the cost of the idle rows. The share is the cost of
    computing K(i, X) for all idle rows i, divided by the number of copied values. This number is taken as
    3/8 * W^2. Half of the rows of ws are assumed to be new, and the other values of Q stay from the previous working
    set or follow by symmetry. The unit is the time of one multiply-add in a product of dense rows.

    n: number of values of a row of K.
    W: number of rows of the working set.
    idle: average number of idle rows in an outer iteration; None stands for IDLE * W.
    """
    return copy_cost(profile) + (IDLE * W if idle is None else idle) * n * rows.cost / (NEW_SHARE * W * W)


def compute_rows_first(
    profile: Profile, rows: Rows, n: int, W: int, idle: int, steps: int, missing: bool = True
) -> bool:
    """Return whether to compute the rows K(ws, X) of the kernel matrix K before the values K(ws, ws).

    ws is the working set, and X are all rows. If the result is true, K(ws, ws) is then copied from K(ws, X). The row
    cache must have room for K(ws, X).

    n: number of values of a row of K.
    W: number of rows of the working set.
    idle: number of times so far that a row entered a working set and its coefficient did not change.
    steps: number of outer iterations so far. An outer iteration chooses one working set, and solves the dual over it.
    missing: whether at least one of the n rows of K is not in the row cache.
    """
    if not missing:
        return copy_cost(profile) < rows.tile_cost
    return tile_cost(profile, rows, n, W, (idle + IDLE * W) / (steps + 1)) < rows.tile_cost


def prefetches(gram: Operator) -> bool:
    """Return whether a solve that needs all rows of K saves time if it computes them together in advance.

    Half of the values are then copied by symmetry. Return False on GPUs, or if the rows of X do not stay on the device.
    """
    if not gram.resident or gram.stream.profile.style != "simd":
        return False
    return gram.rows.cost * (1 - MIN_GAIN / 2) > MIN_GAIN * programs.COPIED * gram.stream.profile.cache_cost


def new_cache(stream: Stream, rows: Rows, nbytes: int, entries: int, later: bool = False) -> RowCache:
    """Return a cache for rows of K. It takes at most ``nbytes`` bytes and at most CACHE_SHARE of the free memory.

    entries: number of rows of K that an outer iteration may need.
    later: whether the cache allocates its memory only when RowCache.reserve is called.
    """
    limit = min(nbytes, int(CACHE_SHARE * (stream.limit - stream.allocated)))
    return RowCache(stream, rows.n_pad, np.dtype(rows.dtype).itemsize, limit, entries, later)


class ChangedRows(NamedTuple):
    """Hold the device buffers that list rows whose coefficients an outer iteration changed.

    Attributes
    ----------
    count
        number of listed rows.
    row
        positions of the listed rows i in the device's order of rows; None if the row cache has all K(i, X).
    slot
        for each listed row i, the slot in the row cache for its kernel values K(i, X).
    D
        changes of the listed rows' coefficients, (problems, capacity). The lists have room for ``capacity`` rows.
    """

    count: Buffer
    row: Buffer
    slot: Buffer
    D: Buffer


class KernelRows:
    """Update the gradients after coefficients changed, by rows of the kernel matrix K from a row cache.

    X are the rows of the problem. Rows of K that the cache lacks are computed and stored in the cache.

    Attributes
    ----------
    panel
        buffer for the rows of X from which rows of K are computed.
    last_counters
        result of :meth:`counters` at the previous convergence check.
    uncached
        number to add to the device's count of computed rows of K, to get the true count. The device does not count the
        rows that :meth:`respond` computes. ``uncached`` rises by the number of these rows. The device counts a row that
        is computed in advance as one whole row, even if some values of the row were copied by symmetry. ``uncached``
        falls by the number of copied values, divided by the length of a row.
    prefetched
        number of rows of K that were computed in advance. Values that were copied by symmetry do not count: a row with
        half of its values copied counts as half a row.
    computed
        number of rows of K computed up to the previous convergence check, without rows computed in advance.
    rows_before_tile
        whether the rows K(ws, X) of K for a working set ws are computed before K(ws, ws), the kernel values among the
        rows of ws.
    """

    def __init__(self, state: State, selection: Selection, panel: Panel, settings: Settings) -> None:
        self.state, self.selection, self.panel = state, selection, panel
        s, P, capacity = state.stream, state.P, panel.capacity
        self.hits = ChangedRows(s.zeros(4), None, s.zeros(4 * capacity), s.zeros(8 * P * capacity))
        self.misses = ChangedRows(s.zeros(4), s.zeros(4 * capacity), s.zeros(4 * capacity), s.zeros(8 * P * capacity))
        self.delta = s.zeros(8 * P * selection.stride)  # changes of coefficients in P problems by the last solve
        self._cache_after = settings.cache_after
        self.cache = new_cache(s, state.gram.rows, settings.cache_bytes, selection.W, self._cache_after > 0)
        self._plan = s.variant(selection.program, "plan")
        stored = programs.stored(s.profile, state.gram.rows.dtype)
        self._update, self._gather_tile = s.variant(stored), s.variant(stored, "gather_tile")
        self._earlier_rows = 0  # number of rows of K computed for earlier problems
        self.rows_before_tile = False

    def begin(self, settings: Settings) -> None:
        """Begin another problem: reset the counts of rows and iterations. The row cache keeps its rows of K."""
        counters = self.counters()
        self._earlier_rows += int(counters[1])
        counters[[0, 1, 3]] = 0  # counter 2 counts filled slots of the row cache, which stay filled
        self.state.stream.write(self.selection.counters, counters)
        self.last_counters, self._settings = counters, settings
        self.uncached = self.prefetched = self.computed = 0
        can_prefetch = self.cache.capacity and prefetches(self.state.gram)
        # Computing all missing rows of K in advance is considered once this number of rows was computed.
        self._next_prefetch = FIRST_PREFETCH * self.state.gram.rows.n if can_prefetch else np.inf

    def counters(self) -> NDArray[np.int64]:
        """Return four counts of the solve, (4,): SMO iterations, computed rows of K, filled slots, and idle rows.

        A slot is the place of a row in the row cache. The last count is the number of times that a row entered a
        working set and none of its coefficients changed in that outer iteration.
        """
        return self.state.stream.read(self.selection.counters, np.int64, 4)

    def reserve(self, outer: int, sync: int, deadline: float) -> None:
        """Reserve memory of the row cache for the next outer iterations.

        Compute all missing rows of K in advance if that saves time. Then choose what the next iterations compute first:
        whole rows of K for the rows of the working set, or only the kernel values between pairs of these rows.

        outer: number of outer iterations so far.
        sync: number of outer iterations until the next call.
        deadline: perf_counter() at which the solve's time is over.
        """
        state, W, cache = self.state, self.selection.W, self.cache
        _, rows, stored, idle = self.last_counters.tolist()
        if self._earlier_rows + rows >= self._cache_after:
            cache.reserve(stored, sync)
        self.computed = rows + self.uncached - self.prefetched
        if outer and self.prefetch_pays(self._earlier_rows + rows):
            made, mirrored = self.prefetch(deadline)
            self.uncached -= mirrored
            self.prefetched += made - mirrored
            stored += made
        # all_cached: whether the row cache can hold the rows of K for all working sets of the next ``sync`` iterations.
        all_cached = min(stored + sync * W, state.n) <= cache.capacity
        arguments = state.stream.profile, state.gram.rows, state.n, W, idle, outer
        self.rows_before_tile = all_cached and compute_rows_first(*arguments, stored < state.gram.rows.n)

    @property
    def tile_cost(self) -> float:
        """Return the current cost of one kernel value between two rows of a working set.

        The unit is the time of one multiply-add in a product of dense rows.
        """
        return copy_cost(self.state.stream.profile) if self.rows_before_tile else self.state.gram.rows.tile_cost

    def plan(self, leaving: range, all_rows: bool = False) -> None:
        """List the rows of the working set whose coefficients changed, in two lists: hits and misses.

        A row i is a hit if its kernel values K(i, X) with all rows X are in the row cache, and else a miss.

        The method also makes room for the next working set: the rows at the places ``leaving`` leave the working set.

        all_rows: list all rows of the working set, whether their coefficients changed or not.
        """
        state, selection, hits = self.state, self.selection, self.hits
        group = state.stream.profile.group
        places = selection.W, leaving.start, len(leaving)
        sizes = (state.P, selection.stride, *places, self.cache.capacity, int(all_rows))
        changed = (hits.count, hits.slot, hits.D, self.misses, self.panel.capacity)
        directory, sets = (self.cache.slot_of, self.cache.owner), (selection.ws, selection.in_set)
        self._plan((group,), (group,), sizes, sets, self.delta, directory, changed, selection.counters)

    def _update_arguments(self, changed: ChangedRows) -> Update:
        state = self.state
        return Update(state.P, state.n, state.f, changed.D, self.panel.capacity)

    def add_hits(self) -> None:
        """Update the gradients by the listed hits, which are rows of K in the row cache.

        Each row is added to the gradients, times the change of its coefficient.
        """
        if self.cache.capacity:
            size = programs.update_range(self.state.stream.profile, self.state.n)
            store = self.cache.store(self.hits.slot).arguments()
            self._update(*size, store, self._update_arguments(self.hits).arguments(), self.hits.count)

    def compute_misses(self, add: bool = True) -> None:
        """Compute the listed misses, which are rows of K that the row cache lacks, and store them in the cache.

        add: whether to add each computed row, times the change of its coefficient, to the gradients.
        """
        gram, panel, misses = self.state.gram, self.panel, self.misses
        gram.gather(panel, misses.row, misses.count)
        if gram.by_blocks:  # a product takes time for each block of rows in its buffer, so empty blocks are left out
            number = int(self.state.stream.read(misses.count, np.int32, 1)[0])
            if not number:
                return
            panel = gram.part(panel, 0, -(-number // panel.width) * panel.width, misses.count)
        store = self.cache.store(misses.slot) if self.cache.capacity else None
        gram.accumulate(panel, misses.count, store, self._update_arguments(misses) if add else None)

    def respond(self, b: Vector) -> None:
        """Add the product K b to the gradients, for numbers b (1, n), one for each row.

        Rows of K in the row cache are not computed again.
        """
        stream, capacity, uncached = self.state.stream, self.panel.capacity, b
        if self.cache.capacity:
            slots = self.slots()[self.state.gram.rows.position]
            uncached, cached = np.where(slots < 0, b, 0), np.flatnonzero((slots >= 0) & (b[0] != 0))
            for first in range(0, len(cached), capacity):
                some = cached[first : first + capacity]
                D, slots_now = np.zeros((1, capacity)), np.zeros(capacity, np.int32)
                D[0, : len(some)], slots_now[: len(some)] = b[0, some], slots[some]
                stream.write(self.hits.count, np.array([len(some)], np.int32))
                stream.write(self.hits.slot, slots_now)
                stream.write_wide(self.hits.D, D)
                self.add_hits()
        self.uncached += int(np.count_nonzero(uncached))
        self.state.respond(uncached, self.panel)

    def slots(self) -> Positions:
        """Return for each row i the slot of its kernel values K(i, X) in the row cache, or -1 if the cache lacks them.

        A slot is the place of one row in the cache. Rows i are in the order in which the device stores the rows X.
        """
        return self.state.stream.read(self.cache.slot_of, np.int32, self.state.n)

    def missing(self) -> Positions:
        """Return, in ascending order, the positions of all rows i whose kernel values K(i, X) are not in the row cache.

        X are all rows. The position of a row is its index in the order in which the device stores the rows.
        """
        at = self.state.gram.rows.position
        return np.sort(at[self.slots()[at] < 0])

    def tile(self, rows: Buffer, W: int, new: range, Q: Buffer) -> None:
        """Copy the columns Q[:, new] of the kernel matrix Q (W, W) of W rows from rows of K in the row cache.

        Of the square Q[new, new] only the lower triangle is copied. The caller adds the other values by symmetry.

        rows: buffer with the positions of W rows in the device's order of rows.
        """
        size = (1 if self.state.stream.profile.style == "simd" else self.state.gram.rows.lanes, W)
        self._gather_tile(
            size, None, self.cache.store(self.cache.slot_of).arguments(), rows, W, new.start, new.stop, 1, Q
        )

    def prefetch_pays(self, computed: int) -> bool:
        """Return whether to compute all rows of K in advance, because the solve will likely need most of them.

        The solve is expected to need a row of K if a coefficient of the row violates the optimality conditions.

        computed: number of rows of K computed so far.
        """
        state, rows = self.state, self.state.gram.rows
        if computed < self._next_prefetch or self.cache.most < rows.n:
            return False
        self._next_prefetch = 2.0 * computed
        missing = self.missing()
        violating = certificate.of(*state.now()).violating(self._settings.tol).reshape(state.P, rows.n).any(axis=0)
        needed = np.isin(missing, rows.position[violating]).sum()
        cost = rows.cost / 2 + programs.COPIED * state.stream.profile.cache_cost
        return bool(needed * rows.cost > MIN_GAIN * len(missing) * cost)

    def prefetch(self, deadline: float = np.inf) -> tuple[int, int]:
        """Compute all rows of K that the row cache lacks, or as many as time allows, and store them in the cache.

        Return two numbers. The first is the number of rows of K that were added to the cache. Some values of these rows
        were not computed but copied by symmetry, K_ij = K_ji. The second number is the number of copied values, divided
        by the number of values of a row.

        If the cache has no room for all missing rows, the method does nothing, and returns 0 and 0.

        deadline: value of perf_counter() at which the time is over.
        """
        state, cache, stream = self.state, self.cache, self.state.stream
        if self._settings.progress:
            self._settings.progress.phase("the other rows of the kernel matrix")
        n, missing, counts = state.n, self.missing(), self.counters()
        head = int(counts[2])
        cache.reserve(head + len(missing), 0)
        if head + len(missing) > cache.capacity:
            return 0, 0
        slot_of, misses = self.slots(), self.misses
        slot_of[missing] = head + np.arange(len(missing), dtype=np.int32)[::-1]
        row_list, to = (misses.row, misses.slot, misses.count), cache.store(misses.slot)
        first, ends = fill(state.gram, self.panel, row_list, to, missing, slot_of, until=deadline)
        made, slot_of[missing[:first]] = missing[first:], -1
        owner = stream.read(cache.owner, np.int32, head + len(made))
        owner[slot_of[made]] = made
        counts[[1, 2]] += len(made)
        for buffer, values in ((cache.owner, owner), (self.selection.counters, counts), (cache.slot_of, slot_of)):
            stream.write(buffer, values)
        return len(made), int((n - ends[made]).sum()) // n


class Sizes(NamedTuple):
    """Hold the sizes of the working set and the row cache of a solve.

    Attributes
    ----------
    working_set
        number of rows of a working set.
    cache_bytes
        largest number of bytes of the row cache.
    cache_after
        number of rows of K that are computed before the row cache begins to store rows.
    reason
        text that says why these sizes were chosen.
    """

    working_set: int
    cache_bytes: int
    cache_after: int
    reason: str


def sizes(stream: Stream, gram: Operator, working_set: int | str, cache: float | str, n: int | None = None) -> Sizes:
    """Return the sizes of the working set and the row cache.

    A size given as a number is taken as it is. For a working set of size "auto", the cost of a solve is estimated for
    several sizes (:func:`cost`), and the size of least cost is taken. The estimate uses the costs in the profile for
    this kind of device (profiles.py). With a large working set, a solve computes fewer rows of the kernel matrix K, and
    launches fewer OpenCL kernels. With a small working set, each SMO iteration costs less, and so do the kernel values
    between the rows of the working set.

    A row cache of size "auto" stores rows from the start if reading a value costs less than computing it. Otherwise it
    stores rows only after REUSED * n rows of K were computed, because in a shorter solve a cache takes more time than
    it saves.

    working_set: number of rows, or "auto".
    cache: size of the row cache in MB, or "auto".
    n: number of rows of the problem, by default all rows of ``gram``.
    """
    profile, rows = stream.profile, gram.rows
    n, cells = n or rows.n, rows.cost
    computing = cells + FUNCTION * profile.value_cost
    use_cache = computing > profile.cache_cost if cache == "auto" else float(cache) > 0
    if working_set == "auto":
        most = CACHE_SHARE * (stream.limit - stream.allocated)
        nbytes = most if cache == "auto" else min(most, float(cache) * 1e6)
        cached = nbytes / (np.dtype(rows.dtype).itemsize * rows.n_pad) if use_cache else 0.0  # rows of K in the cache
        tiles = dict.fromkeys(_sizes(profile.working_set), rows.tile_cost)
        if use_cache and not gram.whole and cached >= rows.n_pad:
            tiles = {W: min(own, tile_cost(profile, rows, n, W)) for W, own in tiles.items()}
        values = {
            W: min(cells, profile.cache_cost) if gram.whole else _value(profile, cells, n, cached, W) for W in tiles
        }
        costs = {W: cost(profile, n, tile, values[W], W, rows.layout_cost) for W, tile in tiles.items()}
        W = min(costs, key=lambda size: (costs[size], size))
        reason = f"a working set of up to {W} costs least by the device's rates"
    else:
        W = int(working_set)
        reason = f"a working set of {W} was asked for"
    if gram.whole:
        return Sizes(W, 0, 0, f"{reason}; all of K is on the device")
    if cache != "auto":
        nbytes = int(min(float(cache) * 1e6, stream.limit))
        return Sizes(W, nbytes, 0, f"{reason}; a row cache of {float(cache):g} MB was asked for")
    after = 0 if use_cache else int(REUSED * n)
    begins = f" after {after} were computed" if after else ""
    return Sizes(W, stream.limit, after, f"{reason}; rows are cached{begins}")


def _value(profile: Profile, cells: float, n: int, cached: float, W: int) -> float:
    """Return the mean cost of a value of K, over rows that are read from the cache and rows that are computed.

    The unit is the time of one multiply-add in a product of dense rows. If the cache holds few rows compared to a
    working set of W rows, some rows are evicted too early and computed again.

    cells: cost of computing a value.
    n: number of rows of K.
    cached: number of rows of K that the row cache can hold.
    """
    cached_share = min(1.0, cached / (n * SUPPORT))
    recomputed = RECOMPUTED * (STAYING * W / cached) ** EVICTION if 0 < cached < STAYING * W else 1.0
    return cached_share * min(cells, profile.cache_cost) + (1 - cached_share) * recomputed * cells


def _sizes(largest: int) -> list[int]:
    return [MIN_WORKING_SET << k for k in range((largest // MIN_WORKING_SET).bit_length())]


def cost(profile: Profile, n: int, width: float, value: float, W: int, layout_cost: float = 0.0) -> float:
    """Return the cost of a solve with a working set of W rows, up to a factor that is the same for every W.

    The cost is the number of coefficient changes times the cost of a change. A change costs the n values of a row of K,
    some SMO iterations, and a share of the other work of an outer iteration: launches of OpenCL kernels, the choice of
    the working set, half of its W x W kernel matrix, and copying the rows of X to the device if they do not stay there.

    The unit is the time of one multiply-add in a product of dense rows.

    n: number of values of a row of K.
    width: cost of one kernel value between two rows of the working set.
    value: cost of one value of a row of K.
    layout_cost: cost of copying a row of X to the device. Each outer iteration pays it for all n rows. 0 if the rows
        stay on the device.
    """
    changed = FRESH * min(W, n * SUPPORT)
    tile = W * W / 2 * max(width, 1)
    step = profile.smo_cost + profile.smo_row_cost * W * (FAR_COST if 4 * W * W > NEAR_BYTES else 1.0)
    inner = INNER_STEPS / pairs(profile, W) ** 0.5 * step
    row = n * value + (profile.outer_cost + (profile.selection_cost + layout_cost) * n + tile) / changed + inner
    return float(row * W**-DECLINE)
