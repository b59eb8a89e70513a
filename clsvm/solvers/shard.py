"""A shard: some of the rows of a solve on one device, with their f, b and bounds.

It offers the rows that violate their optimum most, applies the changes of the working set, and caches values of K of
its own rows with rows of any shard. Rows travel centred and in the dtype of kernel values (sharded.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred
from clsvm.gram import exact, layouts
from clsvm.gram import programs as gram_programs
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream
from clsvm.problem import Problem, Vector
from clsvm.solvers import programs
from clsvm.solvers.kernel_rows import new_cache
from clsvm.solvers.state import Selection, State

Places = NDArray[np.int32]
NO_ROWS, NO_NUMBERS = np.zeros(0, np.int32), np.zeros(0)
EXACT = 256 << 20  # bytes of rows at most that a look in float64 copies


class Change(NamedTuple):
    """What an outer iteration changed.

    kept: rows of this shard that stay in the working set. least, most (groups,): extremes of the other shards, as far
    as is known. stay: how many rows of the working set stay in all. computed: rows of K that were computed so far.
    rows, b: this shard's rows whose coefficient changed, and the new coefficients. X (m, d): changed rows of any shard
    of which the row cache has no values; weights: by how much each changed; slots: where their values go. hits,
    hit_weights: slots of the cached rows, and by how much these changed.
    """

    kept: Places
    least: Vector
    most: Vector
    stay: int
    computed: int
    rows: Places = NO_ROWS
    b: Vector = NO_NUMBERS
    X: Data | None = None
    weights: Vector = NO_NUMBERS
    slots: Places = NO_ROWS
    hits: Places = NO_ROWS
    hit_weights: Vector = NO_NUMBERS


class Offer(NamedTuple):
    """A shard's candidates for the next working set.

    rows, f, X: their numbers, f and features; kept: f of the rows that stay. least, most, inside, sums (groups,):
    extremes of all its rows, how many are inside their bounds, the sums of their derivatives. capacity: slots of its
    row cache.
    """

    rows: Places
    f: Vector
    X: Data
    kept: Vector
    least: Vector
    most: Vector
    inside: NDArray[np.int64]
    sums: Vector
    capacity: int


def cast(X: Data, centre: Vector, dtype: str) -> Data:
    """Return rows as they travel."""
    return (centred(X, centre) if centre.any() else X).astype(dtype, copy=False)


def travelled(plan: Plan) -> Plan:
    """Return the plan of rows that have travelled."""
    return replace(plan, centre=np.zeros_like(plan.centre)) if plan.centre.any() else plan


def row_bytes(X: Data) -> int:
    """Return about the bytes of a row on the host."""
    return max(1, X.nnz * (X.dtype.itemsize + 4) // X.shape[0] if sp.issparse(X) else X.shape[1] * X.itemsize)


class Shard:
    """Rows X (n, d), dense or CSR, laid out on a device. Row numbers are the caller's. Raises ValueError where
    memory_limit does not hold them."""

    def __init__(self, stream: Stream, X: Data, kernel: Kernel, plan: Plan, dtype: str) -> None:
        self.stream, self.X, self.kernel, self.plan, self.dtype = stream, X, kernel, plan, dtype
        self.gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
        stream.finish()
        self.n = X.shape[0]
        self.state = State(stream, self.gram, 1)
        self._posed: tuple[Any, ...] = ()
        program = programs.shard(stream.profile, dtype)
        self._k = {name: stream.variant(program, name) for name in ("put", "mark", "pick")}
        self._k["update"] = stream.variant(gram_programs.update(stream.profile, dtype))

    def pose(self, problem: Problem, b: Vector, W: int, cache_bytes: int) -> None:
        """Begin the shard's part of a problem at coefficients b (1, n), with f = q. W: rows of a working set;
        cache_bytes: of the row cache."""
        self.state.load(problem, b, (b, problem.q))
        given = problem.constraint, W, cache_bytes
        if self._posed and self._posed != given:
            raise RuntimeError("a shard is for problems of one kind")
        if not self._posed:
            self.selection = Selection(self.stream, self.dtype, problem.constraint, 1, self.state.n, W)
            self.cache = new_cache(self.stream, self.gram.rows, cache_bytes, W)
            self._posed = given

    def step(self, change: Change) -> Offer:
        """Apply a change, and offer candidates."""
        with self.stream.recycling():
            with self.stream.scratch():
                self._take(change)
            with self.stream.scratch():
                return self._offer(change)

    def _take(self, change: Change) -> None:
        stream, at = self.stream, self.gram.rows.position
        changed, hits, state = len(change.rows), len(change.hits), self.state
        if changed:
            self._k["put"]((changed,), None, stream.upload(at[change.rows]), stream.wide(change.b), state.b)
        self.cache.reserve(change.computed, 1)
        if hits:
            D, store = stream.wide(change.hit_weights), self.cache.store(stream.upload(change.hits))
            update, count = Update(1, state.n, state.f, D, hits), stream.upload(np.array([hits], np.int32))
            size = gram_programs.update_range(stream.profile, state.n)
            self._k["update"](*size, store.arguments(), update.arguments(), count)
        if change.X is not None:
            self._accumulate(change.X, change.weights, change.slots)

    def _accumulate(self, X: Data, weights: Vector, slots: Places = NO_ROWS) -> None:
        """Add K(., X) weights to f, and the values to the row cache where there are slots."""
        stream, m = self.stream, X.shape[0]
        plan = layouts.once(travelled(self.plan), X)
        gram = Gram(stream, layouts.build(stream, X, plan, self.dtype), self.kernel)
        panel, count = gram.of_all(), stream.upload(np.array([m], np.int32))
        beyond = 0, panel.capacity - m
        store = self.cache.store(stream.upload(np.pad(slots, beyond))) if len(slots) else None
        D = stream.wide(np.pad(weights, beyond))
        update = Update(1, self.state.n, self.state.f, D, panel.capacity)
        self.gram.accumulate(panel, count, store, update)

    def _offer(self, change: Change) -> Offer:
        stream, choice, rows = self.stream, self.selection, self.gram.rows
        choice.clear()
        kept = np.zeros(0)
        if len(change.kept):
            at = stream.upload(rows.position[change.kept])
            self._k["mark"]((len(change.kept),), None, at, choice.in_set)
            kept = self._picked(at, len(change.kept))
        choice.look(self.state.view)
        seen, _ = choice.seen()
        choice.beside(change.least, change.most)
        choice.choose(self.state.view, change.stay)
        ws = stream.read(choice.ws, np.int32, choice.W)[change.stay :]
        ws = ws[ws >= 0]
        f = self._picked(stream.upload(ws), len(ws)) if len(ws) else np.zeros(0)
        chosen = rows.order[ws]
        least, most, inside, sums = (one[0] for one in seen)
        return Offer(chosen, f, self.sent(chosen), kept, least, most, inside, sums, self.cache.capacity)

    def _picked(self, at: Buffer, count: int) -> Vector:
        out = self.stream.buffer(8 * count)
        self._k["pick"]((count,), None, at, self.state.f, out)
        return self.stream.read_wide(out, count)

    def sent(self, rows: Places) -> Data:
        """Return some rows as they travel."""
        return cast(self.X[rows], self.plan.centre, self.dtype)

    def whole(self, rows: Places) -> Data:
        """Return some rows as they were given."""
        return self.X[rows]

    def respond(self, X: Data, weights: Vector) -> None:
        """Add K(., X) weights to f for rows X (m, d) that have travelled."""
        with self.stream.scratch():
            self._accumulate(X, weights)

    def objective(self, rho: Vector) -> Vector:
        """Return the three sums (3,) that the objectives at offsets rho (groups,) are made of."""
        with self.stream.scratch():
            return self.selection.sums(self.state.view, self.state.q, self.stream.wide(rho))[0]

    def f(self) -> Vector:
        """Return f (n,) of all rows."""
        return self.state.gradients()[0]

    def put(self, f: Vector) -> None:
        """Replace f (n,)."""
        self.state.replace(f[None])

    def exact(self, rows: Places, support: Data, b: Vector) -> Vector:
        """Return K b in float64 of some rows, b (1, m) of the support vectors (m, d) as they were given."""
        stream, c = self.stream, np.zeros((1, len(rows)))
        with stream.beside(stream.limit - stream.held) as own:
            step = max(1, EXACT // row_bytes(self.X))
            for first in range(0, len(rows), step):
                here = self.X[rows[first : first + step]]
                c[:, first : first + step] = exact.responses(own, self.kernel, self.plan, here, support, b)
        return c
