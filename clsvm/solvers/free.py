"""All free coefficients to their minimum at once, by a Cholesky factor of K among them; and when that pays.

Solves:   minimise over d: 1/2 d'Md + g'd,  bottom <= b + d <= top,  the sum of d in each group 0;  M = K_FF + ridge I
Given:    K among the free coefficients F, their derivatives g, and the bounds of the face on which the dual is smooth
Returns:  b, f at a lower dual, or as they were
Source:   Hintermueller, Ito, Kunisch 2002 (a primal-dual active set strategy is a semismooth Newton method), with a
          step along the way to what it finds; Scheinberg 2006 for active sets of SVMs

    U'U  <- M, block by block of columns, as many as memory has room for                        factor.py
    d    <- the minimum within the bounds
    b, f <- b + t d, f + t K d, 0 < t <= 1 the best on that way

Pair steps find out soon which coefficients stand at a bound, and take long over the rest, which one such step does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.gram.products import Tile
from clsvm.opencl.stream import Buffer
from clsvm.problem import Problem
from clsvm.solvers import certificate
from clsvm.solvers.factor import Factor, minimum, steadied
from clsvm.solvers.state import State
from clsvm.threads import one_thread

Vector = NDArray[np.float64]
Matrix = NDArray[Any]  # in the dtype of K
Rows = NDArray[np.intp]
FromCache = Callable[[NDArray[np.int32], Buffer, int, int, Buffer], bool]
Square = Callable[[Rows, Rows], AbstractContextManager[tuple[Matrix, Matrix]]]
MOST, LEAST = 4096, 32  # free coefficients
MARGIN = 256  # panels and blocks of a factor are whole multiples, so that few sizes are made
SHORT = 0.5  # of the way to what is found: a step that ends before is not made, since its bounds are the wrong ones
BLOCK = 1024  # rows of such a block at most: its squares are in caches
PLACES = 16  # bytes of a row of a panel beside it, some of which stay when it goes
MEANWHILE = 3  # squares of a block on the host, beside it and its columns, while it is made
GROWN = 3  # times what a factor keeps of its inverse, that it takes to have it grow too
KEPT = 0.25  # share of a factor's coefficients that may have come or gone before it is made anew
LOW, LATE = 0.5, 4  # share of the first violation that is low; times all rows that were computed, after which any is
LOOKS, MORE = 4, 2  # at a low violation, before such a step, and between two
DOUBT = 4.0  # by how much dearer the next one is where one came to nothing
SPARED = 4.0  # prices of such a step that working sets have to go on for, to make the first one
SMALL = 8  # outer steps' launches and waits that the small parts of such a step take
SOLVES = 50  # right sides of such a step with a factor that is there


class Pace:
    """Whether a step over all free coefficients pays, from what working sets have cost and come to so far.

    At first the violation goes up and down while the support vectors are found, and then falls fast. Only where it
    falls slowly once it is well below that of the beginning, such steps are worth a thought.
    """

    def __init__(self) -> None:
        self._log: list[tuple[float, float]] = []  # cost so far, the logarithm of the least violation, since it is low
        self._first = 0.0  # violation
        self._made, self._doubt = False, 1.0  # whether there was one; how much dearer the next one is

    def pays(self, cost: float, violation: float, tol: float, price: float, late: bool) -> bool:
        """After working sets of ``cost`` in all, at a ``violation``: would going on as in the second half of the looks
        since the violation is low cost more than some such steps at ``price``? late: whether it is to be low anyway."""
        self._first = self._first or violation
        if not self._log and violation > LOW * self._first and not late:
            return False
        least = min(np.log(max(violation, tol)), self._log[-1][1] if self._log else np.inf)
        self._log.append((cost, least))
        if len(self._log) <= (MORE if self._made else LOOKS):
            return False
        half, before = self._log[-1 - len(self._log) // 2]
        many = self._doubt * (1 if self._made else SPARED)
        return bool((least - np.log(tol)) * (cost - half) > many * price * (before - least))

    def made(self, well: bool) -> None:
        """Such a step was made, ``well`` if it lowered the dual: what was before says nothing of what follows."""
        self._log.clear()
        self._made, self._first = True, np.inf
        self._doubt *= 1.0 if well else DOUBT


class Leap:
    """Steps over all free coefficients of the one problem of a ``state``, which is solved by working sets of W rows.

    value: the cost of a value of K that adds to f, in dense cells. from_cache: makes K among some rows, at their
    places, of what the row cache has, and says whether it did (Solver._tile_there). spare: bytes that are free while
    :meth:`find` works. The factor is kept from one step to the next where that leaves room enough; its bytes are the
    stream's, until :meth:`end`.
    """

    def __init__(
        self, state: State, W: int, kernel_scale: float, value: float, from_cache: FromCache, spare: int
    ) -> None:
        self._state, self._stream, self._gram, self._W = state, state.stream, state.gram, W
        self._scale, self._value, self._from_cache, self._spare = kernel_scale, value, from_cache, spare
        self._dtype = np.dtype(state.gram.rows.dtype)
        self._factor: Factor | None = None
        self._held = 0  # bytes of it
        self._pace = Pace()

    def due(self, free: int, violation: float, tol: float, rows: int, steps: int, outer: int, tile_cost: float) -> bool:
        """Whether to step now, with so many ``free`` coefficients, after ``outer`` working sets, ``steps`` of pairs,
        and so many ``rows`` of K computed. tile_cost: of a value among working vectors, as it is made now."""
        profile, n, W = self._stream.profile, self._state.n, self._W
        width = max(tile_cost, 1.0)
        a_set = profile.step_cost + profile.look_cost * n + W * W / 2 * width
        cost = rows * n * self._value + outer * a_set + steps * (profile.inner_step + profile.inner_cost * W)
        kept = self._factor is not None and abs(len(self._factor.rows) - free) <= KEPT / 2 * free
        work = SOLVES * free**2 if kept else free**3 / 6
        price = profile.factor_cost * work + (0 if kept else free * free / 2 * width) + n * free * self._value + a_set
        price += SMALL * profile.step_cost
        pays = self._pace.pays(cost, violation, tol, price, rows > LATE * n)
        return pays and LEAST <= free <= MOST and self._block(0, free, self._spare + self._held) > 0

    def _block(self, before: int, new: int, spare: int = 0) -> int:
        """The largest block by which memory, and ``spare`` bytes more, lets a factor of ``before`` rows grow by ``new``
        ones; 0 where it holds none."""
        stream = self._stream
        left = stream.limit - stream.held
        for block in range(min(_whole(max(before, new)), BLOCK), 0, -MARGIN):
            rows = _whole(_pair(before, new, block))
            device = self._gram.panel_bytes(rows), self._dtype.itemsize * rows**2
            all_of_it = sum(device) + PLACES * rows + self._host_bytes(before, new, block)
            if max(device) <= stream.largest and all_of_it <= left + spare and PLACES * rows <= left:
                return block
        return 0

    def _host_bytes(self, before: int, new: int, block: int) -> int:
        """Of what a factor grows by, and what is made on the host meanwhile."""
        more, columns = new * before + new * (new + block) // 2, before + new + MEANWHILE * block
        kept = GROWN * self._factor.kept if before and self._factor else 0
        return self._dtype.itemsize * (more + block * columns) + kept

    def find(self, wanted: int) -> Vector | None:
        """What to add to b (1, n), all the way to the minimum; None where there is no way, or no memory for it. wanted:
        bytes that the caller needs next; the factor is kept where as much again as it takes is left beside them."""
        try:
            change = self._found(*self._state.now())
        except (MemoryLimitError, DeviceError, MemoryError):
            change = None
            self.end()
        if self._factor and self._stream.limit - self._stream.held < wanted + self._held:
            self._factor.forget()
            self._hold(self._factor)
        if self._stream.limit - self._stream.held < wanted + self._held:
            self.end()
        if change is None:
            self._pace.made(False)
        return change

    def _found(self, problem: Problem, b: Vector, f: Vector) -> Vector | None:
        seen = certificate.of(problem, b, f)
        factor = self._factored(np.flatnonzero(seen.inside))
        if factor is None:
            return None
        rows = factor.rows
        gone = np.flatnonzero(~seen.inside[rows])
        g, x, kink = np.where(seen.inside, seen.right, 0)[rows], b[0, rows], problem.kink > 0
        lowest = np.where(kink & (x > 0), 0.0, problem.lo[0, rows])
        highest = np.where(kink & (x < 0), 0.0, problem.hi[0, rows])
        room = self._stream.limit - self._stream.held
        with one_thread():
            d = minimum(factor, g, lowest - x, highest - x, seen.group[rows], len(problem.totals), gone, room)
        self._hold(factor)
        if d is None:
            return None
        after = np.where(d <= lowest - x, lowest, np.where(d >= highest - x, highest, x + d))
        after[gone] = x[gone]
        change = np.zeros_like(b)
        change[0, rows] = after - x
        return change

    def go(self, change: Vector, respond: Callable[[Vector], None]) -> bool:
        """Add ``change`` to b, or the part of it with which the dual is least; whether that lowers it. respond: adds K
        times some coefficients (1, n) to f."""
        state, stream = self._state, self._stream
        problem, b, f = state.now()
        after = stream.held_wide(b + change)
        respond(after - b)
        ahead = state.gradients()
        slope = float((f * (after - b)).sum()) + problem.kink * float(np.abs(after).sum() - np.abs(b).sum())
        curve = float(((ahead - f) * (after - b)).sum())
        t = 1.0 if curve <= -slope else -slope / curve
        well = slope < 0 and t >= SHORT and bool(np.isfinite(ahead).all())
        if not well:
            after, ahead = b, f
        elif t < 1:
            after, ahead = b + t * (after - b), f + t * (ahead - f)
        if not well or t < 1:
            stream.write_wide(state.f, state.padded(ahead))
        stream.write_wide(state.b, state.padded(after))
        self._pace.made(well)
        return well

    def end(self) -> None:
        """Give back what is kept."""
        self._stream.reserve(-self._held)
        self._factor, self._held = None, 0

    def _factored(self, free: Rows) -> Factor | None:
        """A factor with the rows ``free``: the last one, where few came or went, else a new one. None where K among
        them is not positive definite, or memory does not hold it."""
        last = self._factor
        if last is not None:
            new = np.setdiff1d(free, last.rows)
            gone = len(last.rows) + len(new) - len(free)
            if len(new) + gone <= KEPT * len(free):
                block = self._block(len(last.rows), len(new)) if len(new) else 0
                if not len(new) or (block and self._grown(last, new, block)):
                    return self._hold(last)
        self.end()
        block = self._block(0, len(free))
        if not block:
            return None
        made = steadied(self._dtype, self._scale, len(free), lambda factor: self._grown(factor, free, block))
        return self._hold(made) if made else None

    def _hold(self, factor: Factor) -> Factor:
        """The factor, whose bytes are the stream's from now on."""
        self._stream.reserve(factor.nbytes - self._held)
        self._factor, self._held = factor, factor.nbytes
        return factor

    def _grown(self, factor: Factor, rows: Rows, block: int) -> bool:
        """Whether ``factor`` has further rows now, which came ``block`` by block."""
        m, n = len(factor.rows), len(rows)
        host = self._host_bytes(m, n, block)
        self._stream.reserve(host)
        try:
            with self._desk(_pair(m, n, block)) as square:
                pieces = (rows[first : first + block] for first in range(0, n, block))
                return all(self._extended(factor, some, block, square) for some in pieces)
        finally:
            self._stream.reserve(-host)

    def _extended(self, factor: Factor, rows: Rows, block: int, square: Square) -> bool:
        """Whether ``factor`` has these rows now, of which K beside its own came ``block`` by block."""
        if len(factor.rows) <= block:
            with square(factor.rows, rows) as (beside, among), one_thread():
                return factor.extend(rows, beside, among)
        beside = np.empty((len(factor.rows), len(rows)), self._dtype, order="F")
        among = np.empty((len(rows), len(rows)), self._dtype)
        for first in range(0, len(beside), block):
            known = factor.rows[first : first + block]
            with square(known, rows) as (K_known, K_rows):
                beside[first : first + len(known)], among[:] = K_known, K_rows
        with one_thread():
            return factor.extend(rows, beside, among)

    @contextmanager
    def _desk(self, rows: int) -> Iterator[Square]:
        """What gives K between some rows and others, and among these others, lower triangle, of so many ``rows`` in all
        at most; each there inside its own context alone."""
        stream, gram = self._stream, self._gram
        panel, made = gram.panel(_whole(rows), square=True), []
        try:
            for nbytes in (4 * panel.capacity, 4, self._dtype.itemsize * panel.capacity**2):
                made.append(stream.buffer(nbytes))
            at, count, out = made
            W = panel.capacity

            @contextmanager
            def square(known: Rows, others: Rows) -> Iterator[tuple[Matrix, Matrix]]:
                k, m = len(known), len(known) + len(others)
                places = np.full(W, -1, np.int32)
                places[:m] = gram.rows.position[np.concatenate([known, others])]
                stream.write(at, places)
                stream.write(count, np.array([m], np.int32))
                whole = k - k % max(gram.rows.lanes, gram.width)
                if not self._from_cache(places[:m], at, W, whole, out):
                    gram.gather(panel, at, count)
                    gram.tile(panel, Tile(at, count, out, whole, half=True, most=m))
                with stream.mapped(out, self._dtype, (W, W)) as K:
                    yield np.concatenate([K[:whole, k:m], K[k:m, whole:k].T]), K[k:m, k:m]

            yield square
        finally:
            stream.finish()
            stream.free(*made, *panel.buffers())


def _whole(rows: int) -> int:
    """So many rows, or more, that panels are made for."""
    return -(-rows // MARGIN) * MARGIN


def _pair(before: int, new: int, block: int) -> int:
    """Rows of a square with a block of those that are there and one of ``new`` ones, which all are there at last."""
    return min(block, before + max(0, new - block)) + min(block, new)
