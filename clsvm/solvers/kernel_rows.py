"""The rows of K that a solve computes: what the row cache keeps, and when rows are made before they are asked for.

A step asks for the rows of its working set whose coefficients changed. Two other ways can be less work:

Rows before the tile. A value among working vectors is computed by itself, or it is one of a row of K. Whole rows of a
working set come first where a value of the tile costs much more than one of a row (an inverted index makes whole rows
alone), where the row cache holds all rows, and where few rows are idle: no coefficient of an idle row changes, so that
it need not have been computed yet.

Prefetched rows. Working sets ask for a few rows at a time, each with all of its values. Of many rows that are made
together half of the values are mirror images of the others (:func:`clsvm.gram.store.fill`).

The sizes of working set and row cache are what the device's measured rates make of them (:func:`sizes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.layouts.record import Rows
from clsvm.gram.products import Operator, Update
from clsvm.gram.store import RowCache, fill
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Vector
from clsvm.solvers import certificate
from clsvm.solvers.result import Settings
from clsvm.solvers.state import Selection, State

Places = NDArray[np.int32]
CACHE_SHARE = 0.75  # of the memory that is left, for the row cache; the certificate needs some as well
ALONE = 4.0  # a value that is read alone takes so many times as long as one that is read in sequence
IDLE = 0.05  # share of a working set that is idle in a step, before any step was made
NEW = 3 / 8  # of the squares of a tile are new in a step: half of the working set stays, and a half is its mirror image
FIRST = 1 / 8  # of all rows: so many are computed before prefetching is considered, twice as many before the next time
GAIN = 1.25  # times what prefetching costs, that it is to spare
MIN_WORKING_SET = 16
# How the work of a solve goes with the working set W, fitted to a9a, ijcnn1, covtype and MNIST on a CPU for W of 16 to
# 2048: rows of K that change a coefficient, W to the power -DECLINE; such rows of a step, FRESH of W; inner steps of a
# row, INNER.
DECLINE, FRESH, INNER = 0.3, 0.65, 1.5
SUPPORT = 1 / 3  # of all rows: beyond that, most are no support vectors
# Where the row cache holds fewer than STAYING working sets, it has forgotten rows that stay: AGAIN times the rows are
# computed, and larger sets spare few of them, W to the power FORGOTTEN - DECLINE (measured with gisette's shape, C=100
# and sets of 128 to 2048 rows).
STAYING, AGAIN, FORGOTTEN = 1.5, 1.6, 0.2
NEAR = 4 << 20  # bytes of a W x W tile beyond which an inner step takes FAR times as long
FAR = 1.2


def copy_cost(profile: Profile) -> float:
    """Return what a value costs that is copied from a row of the row cache, in dense cells."""
    return ALONE * profile.cache_cost


def tile_cost(profile: Profile, rows: Rows, n: int, W: int, idle: float | None = None) -> float:
    """Return what a value of the tile of a working set of W costs where its rows, of n values, come first, in dense
    cells; ``idle`` rows in a step, on average."""
    return copy_cost(profile) + (IDLE * W if idle is None else idle) * n * rows.cost / (NEW * W * W)


def before_tile(profile: Profile, rows: Rows, n: int, W: int, idle: int, steps: int, missing: bool = True) -> bool:
    """Return whether rows shall come before the tile, where the row cache has room, after so many rows were idle in so
    many steps; missing: whether it lacks any."""
    if not missing:
        return copy_cost(profile) < rows.tile_cost
    return tile_cost(profile, rows, n, W, (idle + IDLE * W) / (steps + 1)) < rows.tile_cost


def prefetches(gram: Operator) -> bool:
    """Return whether there are kernels that prefetch rows, and that could pay if all rows were wanted."""
    if not gram.resident or gram.stream.profile.shape != "vector":
        return False
    return gram.rows.cost * (1 - GAIN / 2) > GAIN * programs.COPIED * gram.stream.profile.cache_cost


def new_cache(stream: Stream, rows: Rows, nbytes: int, entries: int) -> RowCache:
    """Return a row cache of ``nbytes`` at most, for ``entries`` rows of an outer iteration at least."""
    limit = min(nbytes, int(CACHE_SHARE * (stream.limit - stream.held)))
    return RowCache(stream, rows.n_pad, np.dtype(rows.dtype).itemsize, limit, entries)


class Square:
    """The panel of the working sets, and their tile Q. After the tile, the panel holds the rows that changed.

    count: how many rows they have, on the device. made: whether Q is the tile of the last working set. nbytes: of both.
    """

    def __init__(self, stream: Stream, gram: Operator, rows: int) -> None:
        self._stream, self._gram, self._rows = stream, gram, rows
        self._make()
        self.count = stream.upload(np.array([rows], np.int32))

    def _make(self) -> None:
        before = self._stream.held
        self.panel = self._gram.panel(self._rows, square=True)
        self.Q = self._stream.buffer(np.dtype(self._gram.rows.dtype).itemsize * self.panel.capacity**2)
        self.nbytes, self.made = self._stream.held - before, False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Free the memory of both inside. Between two steps the panel holds nothing, and the tile is made again."""
        self._stream.finish()
        self._stream.free(*self.panel.buffers(), self.Q)
        self.made = False
        try:
            yield
        finally:
            self._make()


@dataclass
class Counts:
    """Rows of one problem. apart: computed for Newton steps, which the row cache does not get, less mirror images.
    at_once: prefetched. asked: computed for working sets, at the last check. idle: new rows of working sets of which no
    coefficient changed, in so many outer steps."""

    apart: int = 0
    at_once: int = 0
    asked: int = 0
    idle: int = 0
    outer: int = 0


class Changed(NamedTuple):
    """Rows of the working sets that changed: how many, which rows (where they are missing in the row cache), their
    slots there, by how much they changed (P, room)."""

    count: Buffer
    row: Buffer
    slot: Buffer
    D: Buffer


class KernelRows:
    """The rows of K that change f in a solve, in or behind a row cache of ``cache_bytes`` at most."""

    def __init__(self, state: State, selection: Selection, square: Square, cache_bytes: int) -> None:
        self.state, self.selection, self.square = state, selection, square
        s, P, room = state.stream, state.P, square.panel.capacity
        self.hits = Changed(s.zeros(4), None, s.zeros(4 * room), s.zeros(8 * P * room))
        self.misses = Changed(s.zeros(4), s.zeros(4 * room), s.zeros(4 * room), s.zeros(8 * P * room))
        self.delta = s.zeros(8 * P * selection.stride)  # of the working sets' coefficients
        self.cache = new_cache(s, state.gram.rows, cache_bytes, selection.sets * selection.W)
        self._plan = s.variant(selection.program, "plan")
        self._update = s.variant(programs.update(s.profile, state.gram.rows.dtype))
        self._pick = s.variant(programs.given(s.profile, state.gram.rows.dtype))
        self._before = 0  # rows computed for problems before
        self.first = False  # whether rows come before the tile

    def begin(self, settings: Settings) -> None:
        """Count anew for a further problem; the row cache keeps what it has."""
        counters = self.counters()
        self._before += int(counters[0, 1])
        counters[:, [0, 1, 3]] = 0  # (the head of the ring stays)
        self.state.stream.write(self.selection.counters, counters)
        self.counts, self._settings = Counts(), settings
        suits = self.cache.capacity and self.selection.sets == 1 and prefetches(self.state.gram)
        self._next = FIRST * self.state.gram.rows.n if suits else np.inf  # rows, after which prefetching is considered

    def counters(self) -> NDArray[np.int64]:
        """Return the solve's counters (P, 4)."""
        return self.state.stream.read(self.selection.counters, np.int64, (self.state.P, 4))

    def reserve(self, rows: int, began: bool, sync: int, until: float) -> None:
        """Make room for the next ``sync`` steps after so many ``rows``, prefetch rows and choose what comes first where
        that pays. began: whether coefficients have changed."""
        state, choice, counts, cache = self.state, self.selection, self.counts, self.cache
        computed = self._before + rows - counts.apart
        cache.reserve(computed, sync)
        counts.asked = rows - counts.at_once
        if began and self.prefetch_pays(computed):
            made, mirrored = self.prefetch(until)
            counts.apart -= mirrored
            counts.at_once += made - mirrored
            computed += made
        # Rows of a working set may not leave between its tile and the update: as many as come have to have room, and
        # of one working set no row is missed twice.
        room = choice.sets == 1 and min(computed + sync * choice.W, state.n) <= cache.capacity
        seen = state.stream.profile, state.gram.rows, state.n, choice.W, counts.idle, counts.outer
        self.first = room and before_tile(*seen, computed < state.gram.rows.n)

    @property
    def tile_cost(self) -> float:
        """What a value among working vectors costs as it is made now, in dense cells."""
        return copy_cost(self.state.stream.profile) if self.first else self.state.gram.rows.tile_cost

    def plan(self, stay: int, all_of_them: bool = False) -> None:
        """Find which rows of the working set that changed, or all of them, are in the row cache, and which are not; its
        last ``stay`` rows then stay."""
        state, choice, hits = self.state, self.selection, self.hits
        each, group = state.P // choice.sets, state.stream.profile.group
        sizes = (state.n, choice.sets, each, choice.stride, choice.W, stay, self.cache.capacity, int(all_of_them))
        changed = (hits.count, hits.slot, hits.D, self.misses, self.square.panel.capacity)
        kept, sets = (self.cache.slot_of, self.cache.owner), (choice.ws, choice.in_set)
        self._plan((group,), (group,), sizes, sets, self.delta, kept, changed, choice.counters)

    def _added(self, changed: Changed) -> Update:
        state = self.state
        return Update(state.P, state.n, state.f, changed.D, self.square.panel.capacity)

    def add_hits(self) -> None:
        """Add to f the rows that are in the row cache."""
        if self.cache.capacity:
            size = programs.update_range(self.state.stream.profile, self.state.n)
            store = self.cache.store(self.hits.slot).arguments()
            self._update(*size, store, self._added(self.hits).arguments(), self.hits.count)

    def make_misses(self, add: bool = True) -> None:
        """Compute the rows that are not in the row cache, into it, and ``add`` them to f."""
        gram, panel, misses = self.state.gram, self.square.panel, self.misses
        gram.gather(panel, misses.row, misses.count)
        store = self.cache.store(misses.slot) if self.cache.capacity else None
        gram.accumulate(panel, misses.count, store, self._added(misses) if add else None)

    def respond(self, b: Vector) -> None:
        """Add K b (1, n) to f, of rows from the row cache where they are there."""
        stream, room, missing = self.state.stream, self.square.panel.capacity, b
        if self.cache.capacity:
            slots = self.slots()[self.state.gram.rows.position]
            missing, there = np.where(slots < 0, b, 0), np.flatnonzero((slots >= 0) & (b[0] != 0))
            for first in range(0, len(there), room):
                some = there[first : first + room]
                D, of = np.zeros((1, room)), np.zeros(room, np.int32)
                D[0, : len(some)], of[: len(some)] = b[0, some], slots[some]
                stream.write(self.hits.count, np.array([len(some)], np.int32))
                stream.write(self.hits.slot, of)
                stream.write_wide(self.hits.D, D)
                self.add_hits()
        self.counts.apart += int(np.count_nonzero(missing))
        self.state.respond(missing, self.square.panel)

    def slots(self) -> Places:
        """Return the slot of the row at each position, -1 where the row cache has none."""
        return self.state.stream.read(self.cache.slot_of, np.int32, self.state.n)

    def missing(self) -> Places:
        """Return positions of rows without a slot, ascending."""
        at = self.state.gram.rows.position
        return np.sort(at[self.slots()[at] < 0])

    def tile(self, rows: Buffer, W: int, known: int, Q: Buffer) -> None:
        """Copy Q (W, W) from rows that the row cache has, like gram's Tile with ``half``."""
        size = (1 if self.state.stream.profile.shape == "vector" else self.state.gram.rows.lanes, W)
        self._pick(size, None, self.cache.store(self.cache.slot_of).arguments(), rows, W, known, 1, Q)

    def tile_if_there(self, places: Places, rows: Buffer, W: int, known: int, Q: Buffer) -> bool:
        """Do as :meth:`tile` for rows at some places, where the row cache has them all and that is cheaper; return
        whether that was so."""
        cheaper = copy_cost(self.state.stream.profile) < self.state.gram.rows.tile_cost
        there = cheaper and self.cache.capacity > 0 and bool((self.slots()[places] >= 0).all())
        if there:
            self.tile(rows, W, known, Q)
        return there

    def prefetch_pays(self, computed: int) -> bool:
        """Return whether to make all rows that the row cache lacks at once, after so many rows: whether most of them
        are likely to be asked for, since their coefficients violate the optimality conditions."""
        state, rows = self.state, self.state.gram.rows
        if computed < self._next or self.cache.most < rows.n:
            return False
        self._next = 2.0 * computed
        missing = self.missing()
        asked = certificate.of(*state.now()).violating(self._settings.tol).reshape(state.P, rows.n).any(axis=0)
        wanted = np.isin(missing, rows.position[asked]).sum()
        each = rows.cost / 2 + programs.COPIED * state.stream.profile.cache_cost
        return bool(wanted * rows.cost > GAIN * len(missing) * each)

    def prefetch(self, until: float = np.inf) -> tuple[int, int]:
        """Make them, and end early at a time of perf_counter; return how many were made, and how many rows their mirror
        images would fill.

        Nothing is done where the ring has no free slots for them. The row cache is told of them at the end, when their
        values are whole.
        """
        state, cache, stream = self.state, self.cache, self.state.stream
        if self._settings.progress:
            self._settings.progress.phase("the other rows of the kernel matrix")
        n, missing, counts = state.n, self.missing(), self.counters()
        head = int(counts[0, 2])
        cache.reserve(head + len(missing), 0)
        if head + len(missing) > cache.capacity:
            return 0, 0
        slot_of, misses = self.slots(), self.misses
        slot_of[missing] = head + np.arange(len(missing), dtype=np.int32)[::-1]
        listed, to = (misses.row, misses.slot, misses.count), cache.store(misses.slot)
        first, ends = fill(state.gram, self.square.panel, listed, to, missing, slot_of, until=until)
        made, slot_of[missing[:first]] = missing[first:], -1
        owner = stream.read(cache.owner, np.int32, head + len(made))
        owner[slot_of[made]] = made
        counts[0, [1, 2]] += len(made)
        for buffer, values in ((cache.owner, owner), (self.selection.counters, counts), (cache.slot_of, slot_of)):
            stream.write(buffer, values)
        return len(made), int((n - ends[made]).sum()) // n


def sizes(
    stream: Stream, gram: Operator, working_set: int | str, cache: float | str, n: int | None = None
) -> tuple[int, int, str]:
    """Return the working set size, the bytes of the row cache, and why: the numbers given, or the sizes of the least
    cost by the device's measured rates (profiles.py), in dense multiply-adds.

    n: rows of the problem, where these are not all of them. A value of K costs a row's cells to compute and
    ``cache_cost`` cells to read again from the row cache: rows are kept where that is less. A large working set leaves
    fewer rows to compute and fewer launches. A small one has the cheaper tile and SMO iterations (:func:`cost`).
    """
    profile, rows, words = stream.profile, gram.rows, []
    cells = rows.cost
    keep = cells > profile.cache_cost if cache == "auto" else float(cache) > 0
    if working_set == "auto":
        n, kept = n or rows.n, _kept(stream, rows, cache) if keep else 0.0
        tiles = dict.fromkeys(_sizes(profile.working_set), rows.tile_cost)
        if keep and not gram.whole and kept >= rows.n_pad:
            tiles = {W: min(own, tile_cost(profile, rows, n, W)) for W, own in tiles.items()}
        values = {
            W: min(cells, profile.cache_cost) if gram.whole else _value(profile, cells, n, kept, W) for W in tiles
        }
        costs = {W: cost(profile, n, tile, values[W], W, rows.laid) for W, tile in tiles.items()}
        W = min(costs, key=lambda size: (costs[size], size))
        words.append(f"a working set of up to {W} costs least by the device's rates")
        if W > MIN_WORKING_SET:
            words[0] += f" (one of {MIN_WORKING_SET} {costs[MIN_WORKING_SET] / costs[W]:.1f} times as much)"
    else:
        W = int(working_set)
        words.append(f"a working set of {W} was asked for")
    if gram.whole:
        return W, 0, "; ".join([*words, "all of K is on the device"])
    if cache != "auto":
        words.append(f"a row cache of {float(cache):g} MB was asked for")
        return W, int(min(float(cache) * 1e6, stream.limit)), "; ".join(words)
    words.append(
        f"computing a value of K again costs {cells:.0f} dense cells, reading it {profile.cache_cost:.0f}: "
        + ("rows are kept" if keep else "no row is kept")
    )
    return W, stream.limit if keep else 0, "; ".join(words)


def _kept(stream: Stream, rows: Rows, cache: float | str) -> float:
    """Return how many rows of K a row cache of that size holds."""
    room = CACHE_SHARE * (stream.limit - stream.held)
    asked = room if cache == "auto" else min(room, float(cache) * 1e6)
    return float(asked) / (np.dtype(rows.dtype).itemsize * rows.n_pad)


def _value(profile: Profile, cells: float, n: int, kept: float, W: int) -> float:
    """Return the mean cost of a value of K in dense cells, where the row cache holds ``kept`` rows of n.

    A value of a cached row is read. Rows that stay in the working set are cached, if the set is not too large for the
    row cache.
    """
    there = min(1.0, kept / (n * SUPPORT))
    again = AGAIN * (STAYING * W / kept) ** FORGOTTEN if 0 < kept < STAYING * W else 1.0
    return there * min(cells, profile.cache_cost) + (1 - there) * again * cells


def _sizes(largest: int) -> list[int]:
    return [MIN_WORKING_SET << k for k in range((largest // MIN_WORKING_SET).bit_length())]


def cost(profile: Profile, n: int, width: float, value: float, W: int, laid: float = 0.0) -> float:
    """Return the cost of a solve with a working set of W, up to a factor that is the same for every W.

    width: cells of a right-hand row. value: cost of a value of K. laid: cost of a row that every outer iteration lays
    out anew. A row that changes costs its n values, its SMO iterations, and its share of an outer iteration: launches,
    laying out, the choice of the working set, and the new half of the W x W tile.
    """
    changed = FRESH * min(W, n * SUPPORT)
    tile = W * W / 2 * max(width, 1)
    inner = INNER * (profile.inner_step + profile.inner_cost * W * (FAR if 4 * W * W > NEAR else 1.0))
    row = n * value + (profile.step_cost + (profile.look_cost + laid) * n + tile) / changed + inner
    return float(row * W**-DECLINE)
