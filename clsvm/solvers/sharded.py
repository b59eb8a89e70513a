"""Solve one dual problem over rows that are divided among devices or workers, by decomposition into working sets.

Each device or worker has a shard: a part of the rows of X, and the gradients f of the dual for these rows.

Solves:   a problem as in decomposition.py, except Crammer and Singer's multiclass SVM
Given:    shards (:class:`Shard`) on several devices or machines, and a device for the working set
Stops:    by the same criteria as decomposition.py, from the extreme derivatives of the dual in all shards

    repeat until stopped (an outer iteration):
        ws    <- half of the last working set, and the candidates of all shards with the largest violations
        b_ws  <- solution of the dual over the coefficients of ws, on the device for the working set
        f     <- f + K(., changed) delta in every shard, for the changes delta of the coefficients;
                 the shard replies with its candidates for the next working set

An outer iteration sends one request to each shard, with the changed coefficients. If no row cache has the kernel values
of a changed row, the request has the row of X too. The caller (:class:`Sharded`) holds the coefficients, and decides
which rows of K the shards cache. All shards cache the same rows. If a shard is lost (clsvm.distribute), the caller
sends its part of the problem to a new shard, which computes f from the coefficients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred, stacked
from clsvm.distribute import Lost, Parts, Request, count_losses, split
from clsvm.gram import exact, layouts, precision, programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Tile, Update, counts
from clsvm.kernels import Kernel
from clsvm.kernels.expression import Extent
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem, Vector
from clsvm.solvers import certificate
from clsvm.solvers.gradients import gathered
from clsvm.solvers.kernel_rows import new_cache, sizes
from clsvm.solvers.result import Settings
from clsvm.solvers.smo import Loop, Optimality
from clsvm.solvers.state import Limits, Selection, SmoKernel, State, max_working_set, mirror

Rows = NDArray[np.intp]
Requests = Sequence[Request | None]  # for each shard the arguments of its call, or None if it is not called
Call = Callable[[str, Requests], list[Any]]
WHOLE = 16  # W, the largest number of rows of a working set, is a multiple of WHOLE
SHARE = 0.5  # the rows of X in a working set and their kernel matrix may take this share of the free device memory
PIECE = 1024  # number of support vectors that are sent at a time to a new shard, which computes gradients from them
EXACT_BYTES = 64 << 20  # bytes of support vectors that are sent to the shards at a time in a float64 check


def chosen(problem: Problem, rows: Rows, f: Vector, b: Vector, least: Vector, most: Vector, quota: int) -> Rows:
    """Choose the candidates with the largest KKT violations for the working set. Return their indices in ``rows``.

    rows, f, b: row numbers, gradients of the dual and coefficients of the c candidates, (c,).
    least, most: extreme derivatives of the dual over all rows, not only the candidates. For each group of rows whose
        coefficients have a fixed sum, ``least`` has the smallest derivative among coefficients that can rise, and
        ``most`` has the largest derivative among coefficients that can fall.
    quota: largest number of candidates to choose. If sums of coefficients are fixed, up to ``quota`` candidates whose
        coefficients should rise are chosen, and up to ``quota`` candidates whose coefficients should fall.
    """
    lo, hi = problem.lo[0, rows], problem.hi[0, rows]
    right, left = certificate.one_sided_derivatives(f, b, lo, hi, problem.epsilon)

    def first(violation: Vector) -> Rows:  # indices of the largest positive violations; in a tie, lower row numbers
        places = np.flatnonzero(violation > 0)
        return places[np.lexsort((rows[places], -violation[places]))[:quota]]

    if problem.constraint is Constraint.NONE:
        return first(np.maximum(-right, left))
    group = (lo < 0).astype(int) if problem.groups == 2 else np.zeros(len(rows), int)
    rise, fall = most[group] - right, left - least[group]
    return np.concatenate([first(np.where(fall > rise, -1.0, rise)), first(np.where(fall > rise, fall, -1.0))])


class WorkingSet:
    """Solve the dual over working sets of up to W rows, which the host sends to the device.

    plan: storage format of the rows of a working set on the device.
    most: upper bound of W; W is smaller if less memory is free.
    row: approximate bytes of a row of X on the host.
    """

    def __init__(
        self, stream: Stream, kernel: Kernel, plan: Plan, dtype: str, problem: Problem, most: int, row: int
    ) -> None:
        self.stream, self._kernel, self._plan, self.dtype = stream, kernel, plan, dtype
        self.W = self._size(most, row)
        self._epsilon, self._counters = stream.wide(np.array([problem.epsilon])), stream.zeros(8 * 4)
        self._steps = SmoKernel(stream, dtype, self.W, problem.constraint)
        self._mirror = mirror(stream, dtype)
        self._Q = stream.buffer(np.dtype(dtype).itemsize * self.W**2)  # allocated once: first access to memory is slow

    def _size(self, W: int, row: int) -> int:
        stream, real = self.stream, np.dtype(self.dtype).itemsize
        unit = max(WHOLE, *(one.width(stream.profile, self.dtype, "many") for one in LAYOUTS.values()))
        W = max(1, W // unit) * unit
        budget = min(SHARE * (stream.limit - stream.allocated), stream.largest)
        while W > WHOLE and (W * (W * real + 3 * row) > budget or max_working_set(stream) < W):
            W = max(WHOLE, W // 2 // WHOLE * WHOLE)
        return W

    def solve(self, X: Data, numbers: Iterable[Vector], limits: Limits) -> tuple[Vector, int]:
        """Solve the dual over the w rows X (w, d) of a working set. w is at most the attribute W.

        Return the new coefficients of the w rows, and the number of SMO iterations that all calls so far have made.
        ``numbers`` holds four arrays (w,) for the rows: gradients, coefficients, lower bounds and upper bounds.
        """
        stream, W, w = self.stream, self.W, X.shape[0]
        with stream.recycling(), stream.scratch():
            rows = layouts.build(stream, X, layouts.single_pass_plan(self._plan, X), self.dtype)
            gram = Gram(stream, rows, self._kernel)
            at = np.full(W, -1, np.int32)
            at[:w] = rows.position
            here = np.where(at >= 0, np.arange(W), -1).astype(np.int32)
            count, ws = stream.upload(counts([(W, W)])), stream.upload(here)
            panel, places = gathered(gram, at, count)
            gram.tile(panel, Tile(places, count, self._Q, symmetric=True))
            self._mirror(W, range(W), self._Q)
            f, b, lo, hi = (stream.wide(np.concatenate([values, np.zeros(W - w)])) for values in numbers)
            state = f, b, lo, hi, self._epsilon, stream.zeros(8 * W), self._counters
            self._steps(1, W, ws, self._Q, state, limits)
            steps = int(stream.read(self._counters, np.int64, 4)[0])
            return stream.read_wide(b, W)[:w], steps


class Sharded(Loop):
    """Solve one problem over rows in shards, which are parts of the rows on several devices."""

    sync = 1

    def __init__(self, shards: Parts, working_set: WorkingSet, problem: Problem, settings: Settings) -> None:
        self._shards, self._working_set, self.problem = shards, working_set, problem
        lo, hi = map(working_set.stream.round_wide, (problem.lo, problem.hi))
        self._rounded = replace(problem, lo=lo, hi=hi)  # bounds as the device rounds them
        self.settings = replace(settings, exact=self.exact)
        self.n, self.W, self.dtype = problem.n, working_set.W, working_set.dtype
        self._ends = np.cumsum([0, *shards.sizes])  # shard i has the rows _ends[i] to _ends[i + 1] - 1
        self._b = (problem.initial if settings.start is None else settings.start).copy()
        self._steps, self._directory = 0, CacheDirectory(self.n)
        self._staying: Rows = np.zeros(0, np.intp)
        self._staying_X: Data = None
        self._candidates: list[Candidates] = []
        self._begin()
        self._load_shards(range(len(shards.sizes)), Counter())
        self._request_candidates()

    def _call(self, name: str, given: Requests) -> list[Any]:
        """Call the method ``name`` of the shards, and return their replies. Replace shards that are lost.

        given: arguments for each shard; None for a shard that is not called.
        """
        losses = Counter[int]()
        return self._call_all(name, given, losses, lambda lost: self._load_shards(lost, losses))

    def _call_all(
        self, name: str, given: Requests, losses: Counter[int], on_lost: Callable[[set[int]], None]
    ) -> list[Any]:
        """Call the method ``name`` of the shards with the arguments ``given``, and return their replies.

        If shards are lost, call ``on_lost`` with their numbers, and then call the method of these shards again.

        losses: number of losses of each shard during this request. Raises DeviceError if a shard is lost too often.
        """
        replies = self._shards.call(name, given)
        while lost := {i for i, reply in enumerate(replies) if isinstance(reply, Lost)}:
            count_losses(losses, lost)
            on_lost(lost)
            # A new shard gets no changes of coefficients, because it was loaded with the current coefficients.
            again = [(one,) for one in self._unchanged()] if name == "step" else given
            retried = self._shards.call(name, [one if i in lost else None for i, one in enumerate(again)])
            replies = [retried[i] if i in lost else reply for i, reply in enumerate(replies)]
        return replies

    def _load_shards(self, shards: Iterable[int], losses: Counter[int]) -> None:
        """Send each of the new ``shards`` its part of the problem, and let it compute the gradients of its rows.

        A shard is the rows of X on one device. A shard is lost if its worker fails. Its replacement is then loaded too.
        losses: how many times each shard was lost since the current request to the shards began.
        """
        missing = set(shards)
        while missing:
            lost_again = set[int]()
            call = partial(self._call_all, losses=losses, on_lost=lost_again.update)
            self._directory.clear()
            for i in missing:
                self.check.invalidate(slice(*self._ends[i : i + 2]))
            call("load", [self._part_of_problem(i) if i in missing else None for i in range(len(self._ends) - 1)])
            for rows, X in self._support_vectors("prepared", self._b, PIECE, call):
                given = X, self._b[0, rows]
                call("respond", [given if i in missing - lost_again else None for i in range(len(self._ends) - 1)])
            missing = lost_again

    def _part_of_problem(self, i: int) -> tuple[Problem, Vector, int, int]:
        here, p = slice(*self._ends[i : i + 2]), self._rounded
        part = replace(p, lo=p.lo[:, here], hi=p.hi[:, here], q=p.q[:, here], start=None)
        return part, self._b[:, here], self.W, self.settings.cache_bytes

    def _fetch_rows(self, name: str, rows: Rows, call: Call) -> Data:
        """Return the rows of X with the ascending row numbers ``rows``, from the shards that have them.

        name: "original" for rows as the user gave them, "prepared" for centred rows in the dtype of K.
        call: function that sends a request to the shards.
        """
        found = call(name, [(part,) if len(part) else None for part in split(rows, self._shards.sizes)])
        return stacked([one for one in found if one is not None])

    def _support_vectors(self, name: str, b: Vector, step: int, call: Call) -> Iterator[tuple[Rows, Data]]:
        """Yield row numbers and features of the rows with coefficients b != 0, at most ``step`` rows at a time.

        name: "original" for rows as the user gave them, "prepared" for centred rows in the dtype of K.
        call: function that sends a request to the shards.
        """
        support = np.flatnonzero(b[0])
        for first in range(0, len(support), step):
            rows = support[first : first + step]
            yield rows, self._fetch_rows(name, rows, call)

    def _step(self) -> None:
        before = self._steps
        self._solve()
        # If no SMO iteration was made, the candidates came from outdated derivatives, so new candidates are requested.
        if self._steps == before:
            self._request_candidates()
            self._solve()

    def _request_candidates(self) -> None:
        """Request from each shard its rows with the largest violations, as candidates for the working set."""
        self._candidates = self._call("step", [(change,) for change in self._unchanged()])

    def _solve(self) -> None:
        """Choose a working set, solve the dual over it, and send the changed coefficients to the shards."""
        started, p, candidates, W, s = perf_counter(), self._rounded, self._candidates, self.W, self.settings
        offered = np.concatenate([one.rows + i for one, i in zip(candidates, self._ends[:-1], strict=True)])
        f, b = np.concatenate([one.f for one in candidates]), self._b[0]
        stay, directions = len(self._staying), 2 if p.constraint.has_offset else 1
        new = chosen(p, offered, f, b[offered], *_extremes(candidates, p.groups), (W - stay) // directions)
        rows = np.concatenate([self._staying, offered[new]])
        if not len(rows):
            return
        X = stacked([self._staying_X] * bool(stay) + [stacked([one.X for one in candidates])[new]])
        f = np.concatenate([*(one.staying for one in candidates), f[new]])
        self.history.add_seconds("select", started)
        started, numbers = perf_counter(), (f, b[rows], p.lo[0, rows], p.hi[0, rows])
        found, self._steps = self._working_set.solve(X, numbers, Limits.of(s.tol, s.max_iter, W))
        self.history.add_seconds("subproblem", started)
        started, change = perf_counter(), found - b[rows]
        b[rows] = found
        stays = stay + np.sort(np.arange(len(new))[:: 1 if stay else 2])
        stays = stays[np.argsort(rows[stays])]
        self._staying, self._staying_X = rows[stays], X[stays]
        changed = np.flatnonzero(change)
        self._apply(rows[changed], change[changed], X[changed])
        self.history.add_seconds("rows", started)

    def _apply(self, rows: Rows, change: Vector, X: Data) -> None:
        """Send the changed coefficients to all shards, and receive the candidates for the next working set.

        rows, change, X: for each changed coefficient, its row number, its change and its row of X.
        """
        slots, hit = self._directory.slots(rows, min(one.capacity for one in self._candidates))
        common: dict[str, Any] = {"X": None if hit.all() else X[~hit], "weights": change[~hit]}
        if len(slots):
            common |= {"slots": slots[~hit], "hits": slots[hit], "hit_weights": change[hit]}
        requests = zip(self._unchanged(), split(np.sort(rows), self._shards.sizes), self._ends, strict=False)
        changes = [one._replace(rows=own, b=self._b[0, own + start], **common) for one, own, start in requests]
        self._candidates = self._call("step", [(one,) for one in changes])

    def _unchanged(self) -> list[Change]:
        """Return for each shard a request for working-set candidates: a :class:`Change` without new coefficients."""
        made, stay = [], min(len(self._staying), self.W // 2)
        for i, staying in enumerate(split(self._staying, self._shards.sizes)):
            others = _extremes([one for k, one in enumerate(self._candidates) if k != i], self.problem.groups)
            made.append(Change(staying, *others, stay, self._directory.computed))
        return made

    # Methods that the base class Loop calls.

    def coefficients(self) -> Vector:
        return self._b.copy()

    def _read(self) -> Optimality:
        candidates = self._candidates
        inside, sums = (np.sum([getattr(one, name) for one in candidates], axis=0) for name in ("inside", "sums"))
        least, most = _extremes(candidates, self.problem.groups)
        return Optimality(self.problem, least, most, inside, sums, self._steps, self._directory.computed)

    def _sums(self, rho: Vector) -> Vector:
        return np.sum(self._call("objective", [(rho.ravel(),)] * len(self._candidates)), axis=0)

    def _now(self) -> tuple[Problem, Vector, Vector]:
        return self._rounded, self._b, np.concatenate(self._call("f", [()] * len(self._candidates)))[None]

    def _replace(self, f: Vector) -> None:
        self._call("put", [(part,) for part in np.split(f[0], self._ends[1:-1])])
        self._request_candidates()

    def exact(self, rows: Rows, b: Vector) -> Vector:
        """Return K b in float64 for coefficients b (1, n), at the ascending row numbers ``rows``: (1, len(rows))."""
        parts, c = split(rows, self._shards.sizes), np.zeros((1, len(rows)))
        size = max(1, row_bytes(self._fetch_rows("original", rows[:1], self._call)))
        for support, X in self._support_vectors("original", b, max(1, EXACT_BYTES // size), self._call):
            given = [(part, X, b[:, support]) if len(part) else None for part in parts]
            c += np.concatenate([one for one in self._call("exact", given) if one is not None], axis=1)
        return c


def _extremes(each: Sequence[Candidates], groups: int) -> tuple[Vector, Vector]:
    """Return the extreme derivatives of the dual over several shards, as two arrays (groups,).

    A group is a set of rows for which a constraint fixes the sum of the coefficients, or all rows if no sum is fixed.
    The first array has the smallest derivative among the coefficients of each group that can rise. The second array has
    the largest derivative among the coefficients of each group that can fall.
    """
    far = np.full(groups, np.inf)
    return np.min([far, *(one.least for one in each)], axis=0), np.max([-far, *(one.most for one in each)], axis=0)


class CacheDirectory:
    """Record for each row of K its slot in the row caches of the shards. All shards cache the same rows.

    The slots are a ring, as in rowcache.cl: a new row takes the place of the oldest.

    computed: number of rows of K so far that were needed but not cached.
    """

    def __init__(self, n: int) -> None:
        self._slot_of, self._owner, self._head = np.full(n, -1, np.int32), np.zeros(0, np.intp), 0
        self.computed = 0

    def clear(self) -> None:
        """Record that the row caches hold no row of K."""
        self._slot_of[:], self._owner[:] = -1, -1

    def slots(self, rows: Rows, capacity: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the cache slot of each row, and a mask of the rows that had a slot before the call.

        A row without a slot gets the next of the ``capacity`` slots. After the last slot, the first slot is next. A row
        whose slot is given to another row has no slot any more. If ``capacity`` is 0, no slots are returned.
        """
        slots = self._slot_of[rows]
        hit = slots >= 0
        self.computed += int((~hit).sum())
        if not capacity:
            return np.zeros(0, np.int32), hit
        if capacity > len(self._owner):
            self._owner = np.concatenate([self._owner, np.full(capacity - len(self._owner), -1, np.intp)])
        new = rows[~hit]
        taken = ((self._head + np.arange(len(new))) % capacity).astype(np.int32)
        evicted = self._owner[taken]
        self._slot_of[evicted[evicted >= 0]] = -1
        self._owner[taken], self._slot_of[new], slots[~hit] = new, taken, taken
        self._head = (self._head + len(new)) % capacity
        return slots, hit


Slots = NDArray[np.int32]
NO_ROWS, NO_SLOTS, NO_NUMBERS = np.zeros(0, np.intp), np.zeros(0, np.int32), np.zeros(0)
CHECK_BYTES = 256 << 20  # bytes of a shard's rows that a float64 check copies at a time


class Change(NamedTuple):
    """Tell a shard, the rows of X on one device, which coefficients an outer iteration changed.

    Attributes
    ----------
    staying
        row numbers, in this shard, of the shard's rows that stay in the next working set.
    least, most
        two arrays (groups,). ``least`` has the smallest derivative of the dual by coefficients that can rise, ``most``
        the largest by coefficients that can fall, over all rows of the other shards. A group is the rows whose
        coefficients have one fixed sum, or all rows if no sum is fixed.
    stay
        number of rows that stay in the next working set, counted over all shards.
    computed
        number of rows of the kernel matrix K that the solve has computed so far.
    rows, b
        row numbers, in this shard, of the shard's rows with changed coefficients, and the new coefficients.
    X
        (m, d) the m rows of all shards with a changed coefficient and no kernel values in the row caches, or None.
    weights
        (m,) new minus old coefficient of each row in ``X``.
    slots
        (m,) slots of the row cache that will store the kernel values of the rows in ``X``; empty if there is no cache.
    hits, hit_weights
        (h,) cache slots, and new minus old coefficients, of the h changed rows with kernel values in the row caches.
    """

    staying: Rows
    least: Vector
    most: Vector
    stay: int
    computed: int
    rows: Rows = NO_ROWS
    b: Vector = NO_NUMBERS
    X: Data | None = None
    weights: Vector = NO_NUMBERS
    slots: Slots = NO_SLOTS
    hits: Slots = NO_SLOTS
    hit_weights: Vector = NO_NUMBERS


class ShardInfo(NamedTuple):
    """Hold properties of a shard (rows of X on one device), and sizes of working set and row cache for this shard.

    sizes: for each row a number that grows with the rounding errors of its kernel values, usually its squared norm.
    extent: largest and smallest of ``sizes``, and largest and smallest absolute entry of the shard's rows.
    W, cache_bytes: number of rows of a working set, and bytes of the row cache (kernel_rows.sizes).
    reason: text that says why W and cache_bytes were chosen.
    row: approximate bytes of a row of X on the host.
    layout: text that names the storage format of the rows on the device.
    """

    sizes: Vector
    extent: Extent
    W: int
    cache_bytes: int
    reason: str
    row: int
    layout: str


class Candidates(NamedTuple):
    """Hold a shard's candidates for the next working set. A shard is the rows of X on one device.

    A group is a set of rows for which a constraint fixes the sum of the coefficients, or all rows if no sum is fixed.
    Gradients f are those of the dual without the term epsilon * |b| of SVR. Derivatives include this term.

    Attributes
    ----------
    rows, f, X
        row numbers in the shard, gradients f and features of the candidates.
    staying
        gradients f of the shard's rows that stay in the working set.
    least, most
        smallest derivative by a coefficient that can rise, and largest by a coefficient that can fall, (groups,).
    inside, sums
        number of free coefficients, and sum of the derivatives by the free coefficients, (groups,).
    capacity
        number of slots of the shard's row cache.
    """

    rows: Rows
    f: Vector
    X: Data
    staying: Vector
    least: Vector
    most: Vector
    inside: NDArray[np.int64]
    sums: Vector
    capacity: int


def centred_plan(plan: Plan) -> Plan:
    """Return the layout ``plan`` without a mean to subtract, for rows that were centred before they were sent."""
    return replace(plan, centre=np.zeros_like(plan.centre)) if plan.centre.any() else plan


def row_bytes(X: Data) -> int:
    """Return the approximate bytes of a row of X on the host."""
    return max(1, X.nnz * (X.dtype.itemsize + 4) // X.shape[0] if sp.issparse(X) else X.shape[1] * X.itemsize)


class Shard:
    """Hold a part X (n, d) of all rows, dense or CSR, and its part of the problem on a device.

    Row numbers are indices of rows of X. Raises ValueError if the rows need more memory than memory_limit.
    """

    def __init__(self, stream: Stream, X: Data, kernel: Kernel, plan: Plan, dtype: str) -> None:
        self.stream, self.X, self.kernel, self.plan, self.dtype = stream, X, kernel, plan, dtype
        self.gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
        stream.finish()
        self.n = X.shape[0]
        self.state = State(stream, self.gram, 1)
        self._is_loaded = False
        self._update = stream.variant(programs.stored(stream.profile, dtype))

    def info(self, working_set: int | str, cache: float | str, n: int) -> ShardInfo:
        """Return the shard's properties, and the sizes of working set and row cache that suit the shard.

        working_set, cache: the options working_set_size and cache_size; "auto" chooses a size for this shard.
        n: number of rows of all shards together.
        """
        found = precision.measured(self.stream, self.gram.rows, self.kernel, self.X, self.plan)
        W, nbytes, after, reason = sizes(self.stream, self.gram, working_set, cache, n)
        if after:  # a row cache saves time only in long solves, so the shard has none
            nbytes, reason = 0, f"{reason.split(';')[0]}; rows are not cached"
        return ShardInfo(found.sizes, found.extent, W, nbytes, reason, row_bytes(self.X), self.gram.rows.describe())

    def load(self, problem: Problem, b: Vector, W: int, cache_bytes: int) -> None:
        """Load the shard's part of the problem with coefficients b (1, n), and set its gradients to the linear term q.

        The caller must then add K b by :meth:`respond`. W: rows of a working set. cache_bytes: bytes of the row cache.
        Later calls must give the same W and cache_bytes.
        """
        self.state.load(problem, b, (b, problem.q))
        self._b = self.state.padded(b)  # coefficients (1, rows) in the device's order
        if not self._is_loaded:
            self._is_loaded = True
            self.selection = Selection(self.gram, problem.constraint, W)
            self.cache = new_cache(self.stream, self.gram.rows, cache_bytes, W)

    def step(self, change: Change) -> Candidates:
        """Update coefficients and gradients by the ``change``; return the candidates for the next working set."""
        with self.stream.recycling():
            with self.stream.scratch():
                self._apply_change(change)
            with self.stream.scratch():
                return self._find_candidates(change)

    def _apply_change(self, change: Change) -> None:
        stream, at = self.stream, self.gram.rows.position
        hits, state = len(change.hits), self.state
        if len(change.rows):
            self._b[0, at[change.rows]] = change.b
            stream.write_wide(state.b, self._b)
        self.cache.reserve(change.computed, 1)
        if hits:
            D, store = stream.wide(change.hit_weights), self.cache.store(stream.upload(change.hits))
            update, count = Update(1, state.n, state.f, D, hits), stream.upload(np.array([hits], np.int32))
            size = programs.update_range(stream.profile, state.n)
            self._update(*size, store.arguments(), update.arguments(), count)
        if change.X is not None:
            self._accumulate(change.X, change.weights, change.slots)

    def _accumulate(self, X: Data, weights: Vector, slots: Slots = NO_SLOTS) -> None:
        """Add K(., X) times ``weights`` to the gradients of the shard's rows, for given rows X (m, d).

        If ``slots`` are given, also store the kernel values in these slots of the row cache.
        """
        stream, m = self.stream, X.shape[0]
        plan = layouts.single_pass_plan(centred_plan(self.plan), X)
        gram = Gram(stream, layouts.build(stream, X, plan, self.dtype), self.kernel)
        panel, count = gram.of_all(), stream.upload(np.array([m], np.int32))
        beyond = 0, panel.capacity - m
        store = self.cache.store(stream.upload(np.pad(slots, beyond))) if len(slots) else None
        D = stream.wide(np.pad(weights, beyond))
        update = Update(1, self.state.n, self.state.f, D, panel.capacity)
        self.gram.accumulate(panel, count, store, update)

    def _find_candidates(self, change: Change) -> Candidates:
        stream, selection, rows = self.stream, self.selection, self.gram.rows
        staying, in_set = rows.position[change.staying], np.zeros(rows.n_pad, np.uint8)
        in_set[staying] = 1
        selection.clear()
        stream.write(selection.in_set, in_set)
        selection.find_extremes(self.state.view)
        optimality, _ = selection.optimality()
        selection.merge_extremes(change.least, change.most)
        selection.choose(self.state.view, range(change.stay, selection.W))
        ws = stream.read(selection.ws, np.int32, selection.W)[change.stay :]
        ws = ws[ws >= 0]
        f, chosen = stream.read_wide(self.state.f, rows.n_pad), rows.order[ws]
        return Candidates(chosen, f[ws], self.prepared(chosen), f[staying], *optimality, self.cache.capacity)

    def prepared(self, rows: Rows) -> Data:
        """Return the rows of X with the row numbers ``rows``, centred (minus plan.centre) and cast to self.dtype."""
        X, centre = self.X[rows], self.plan.centre
        return (centred(X, centre) if centre.any() else X).astype(self.dtype, copy=False)

    def original(self, rows: Rows) -> Data:
        """Return the rows of X with the row numbers ``rows``, as given: neither centred nor cast."""
        return self.X[rows]

    def respond(self, X: Data, weights: Vector) -> None:
        """Add K(., X) times ``weights`` to the shard's gradients, for rows X (m, d) that :meth:`prepared` returned."""
        with self.stream.scratch():
            self._accumulate(X, weights)

    def objective(self, rho: Vector) -> Vector:
        """Return sums over the shard's rows, (3,): b * (K b), q * b + epsilon * |b|, and losses with offsets rho."""
        with self.stream.scratch():
            return self.selection.sums(self.state.view, self.state.q, self.stream.wide(rho))

    def f(self) -> Vector:
        """Return the gradients f (n,) of the shard's rows."""
        return self.state.gradients()[0]

    def put(self, f: Vector) -> None:
        """Replace the gradients of the shard's rows by f (n,)."""
        self.state.replace(f[None])

    def exact(self, rows: Rows, support: Data, b: Vector) -> Vector:
        """Return the product b K(support, X[rows]) in float64, for coefficients b (1, m) of rows ``support`` (m, d)."""
        stream, c = self.stream, np.zeros((1, len(rows)))
        with stream.second_stream(stream.limit - stream.allocated) as own:
            step = max(1, CHECK_BYTES // row_bytes(self.X))
            for first in range(0, len(rows), step):
                here = self.X[rows[first : first + step]]
                c[:, first : first + step] = exact.responses(own, self.kernel, self.plan, here, support, b)
        return c
