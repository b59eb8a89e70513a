"""Decomposition over rows in several places: the solver of decomposition.py with f and rows in shards.

Solves:   as decomposition.py, one problem (BIAS, NONE or SPLIT)
Given:    shards (shard.py) on several devices or machines, and a device for the working set
Stops:    as decomposition.py (smo.py), by the extremes of all shards

    until stopped:
        ws    <- half of the last working set, and of the candidates of all shards those with the largest violations
        b_ws  <- solution of the dual over ws, here                                             working_set.py
        f     <- f + K(., changed) delta in every shard, which offers its next candidates with the answer

An outer iteration is one question to each shard: rows of the working set whose kernel values the shards lack go there,
candidates and numbers of a few rows come back; nothing as long as a shard travels before the end. The rows of K that
the shards cache are decided here, so that all cache the same. The coefficients are here: a shard that was lost
(clsvm.distribute) is posed again with its part of them, and its f is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data, stacked
from clsvm.distribute import Lost, Parts, ask_one, replayed
from clsvm.problem import Constraint, Problem
from clsvm.solvers.result import Settings
from clsvm.solvers.shard import Change, Offer, ShardProblem, row_bytes
from clsvm.solvers.smo import Loop, Optimality
from clsvm.solvers.working_set import WorkingSet, chosen

Vector = NDArray[np.float64]
Rows = NDArray[np.intp]
PIECE = 1024  # rows at a time that f is made of
EXACT = 64 << 20  # bytes of support vectors at a time in float64


class Sharded(Loop):
    """The solve of one problem; ``settings`` without the function that evaluates rows in float64: the shards do."""

    def __init__(self, shards: Parts, working_set: WorkingSet, problem: Problem, settings: Settings) -> None:
        self._shards, self._set, self._given = shards, working_set, problem
        lo, hi = map(working_set.stream.held_wide, (problem.lo, problem.hi))
        self.problem = replace(problem, lo=lo, hi=hi)  # (as the coefficients meet them)
        self.settings = replace(settings, exact=self.exact)
        self.n, self.P, self.W, self.sync, self.dtype = problem.n, 1, working_set.W, 1, working_set.dtype
        self._ends = np.cumsum(shards.sizes)
        self._starts = self._ends - np.asarray(shards.sizes)
        start = problem.start if settings.start is None else settings.start
        self._b = np.zeros((1, self.n)) if start is None else start.copy()
        self._rows_computed = self._steps = 0
        self._directory = Directory(self.n)
        self._kept, self._kept_X = np.zeros(0, np.intp), None
        self._offers: list[Offer] = []
        self._begin()
        self._lives = [0] * len(self._ends)  # how often each shard has begun again
        everyone = range(len(self._ends))
        self._ask("pose", [(self._part(i),) for i in everyone])
        lost = self._respond(everyone)
        replayed([Lost() if i in lost else None for i in everyone], self._again)
        self._look_again()

    def _part(self, i: int) -> ShardProblem:
        here, p = slice(self._starts[i], self._ends[i]), self.problem
        given = p.lo[:, here], p.hi[:, here], p.q[:, here], self._b[:, here]
        return ShardProblem(*given, p.constraint, p.kink, self.W, self.settings.cache_bytes)

    # Questions.

    def _ask(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Return what all shards answer; one that is lost is brought back first."""
        return replayed(self._shards.ask(name, given), lambda i: self._again(i, name, given[i]))

    def _again(self, i: int, name: str = "", given: tuple[Any, ...] | None = None) -> Any:
        """Pose a lost shard's problem again, make its f of the coefficients, and return its answer to a question."""
        self._lives[i] += 1
        self._directory.forget()
        self.check.forget(slice(self._starts[i], self._ends[i]))
        answer = ask_one(self._shards, i, "pose", self._part(i))
        if isinstance(answer, Lost) or self._respond([i]):
            return Lost()
        if name in ("", "pose"):
            return answer
        # Its coefficients, and so its f, have a step already.
        return ask_one(self._shards, i, name, *((self._unchanged()[i],) if name == "step" else given or ()))

    def _respond(self, shards: Sequence[int]) -> set[int]:
        """Make f of shards that have just begun, of the coefficients, and return those that were lost meanwhile.

        A shard that is brought back while the support vectors are asked for has all of its f then.
        """
        lives, lost = {i: self._lives[i] for i in shards}, set[int]()
        for rows, X in self._support("sent", self._b, PIECE):
            given = (X, self._b[0, rows])
            behind = [i not in lost and lives.get(i) == life for i, life in enumerate(self._lives)]
            answers = self._shards.ask("respond", [given if one else None for one in behind])
            lost |= {i for i, answer in enumerate(answers) if isinstance(answer, Lost)}
        return lost

    def _split(self, rows: Rows) -> list[NDArray[np.int32]]:
        """Split rows, in any order, by their shards, counted from the first of each."""
        home = np.searchsorted(self._ends, rows, side="right")
        return [(rows[home == i] - start).astype(np.int32) for i, start in enumerate(self._starts)]

    def _taken(self, name: str, rows: Rows) -> Data:
        """Return X of some rows, in their order: as they were given ("whole") or as they travel ("sent")."""
        parts = self._split(rows)
        found = self._ask(name, [(part,) if len(part) else None for part in parts])
        home = np.searchsorted(self._ends, rows, side="right")
        order = np.argsort(np.argsort(home, kind="stable"), kind="stable")
        return stacked([one for one in found if one is not None])[order]

    def _support(self, name: str, b: Vector, step: int) -> Iterator[tuple[Rows, Data]]:
        """Yield support vectors of coefficients b (1, n), ``step`` at a time."""
        support = np.flatnonzero(b[0])
        for first in range(0, len(support), step):
            rows = support[first : first + step]
            yield rows, self._taken(name, rows)

    # A step.

    def _step(self, outer: int) -> None:
        before = self._steps
        self._solve()
        if self._steps == before:  # (of other shards, each knew only how they were before the last step)
            self._look_again()
            self._solve()

    def _look_again(self) -> None:
        """Ask for candidates by all extremes as they are."""
        self._offers = self._ask("step", [(change,) for change in self._unchanged()])

    def _solve(self) -> None:
        """Choose a working set, solve it, apply its changes."""
        started, p, of, W = perf_counter(), self.problem, self._offers, self.W
        offered = np.concatenate([one.rows + start for one, start in zip(of, self._starts, strict=True)])
        f, b = np.concatenate([one.f for one in of]), self._b[0]
        stay, sides = len(self._kept), 1 if p.constraint is Constraint.NONE else 2
        least, most = np.min([one.least for one in of], axis=0), np.max([one.most for one in of], axis=0)
        new = chosen(p, offered, f, b[offered], least, most, (W - stay) // sides)
        rows = np.concatenate([self._kept, offered[new]])
        if not len(rows):
            return
        X = stacked([self._kept_X] * bool(stay) + [stacked([one.X for one in of])[new]])
        f = np.concatenate([*(one.kept for one in of), f[new]])
        self.seconds["select"] += perf_counter() - started
        started, s = perf_counter(), self.settings
        found, self._steps = self._set.solve(X, f, b[rows], p.lo[0, rows], p.hi[0, rows], s.tol, s.max_iter)
        self.seconds["subproblem"] += perf_counter() - started
        started, change = perf_counter(), found - b[rows]
        self._b[0, rows] = found
        stays = stay + np.sort(np.arange(len(new))[:: 1 if stay else 2])
        stays = stays[np.argsort(rows[stays])]
        self._kept, self._kept_X = rows[stays], X[stays]
        changed = np.flatnonzero(change)
        self._apply(rows[changed], change[changed], X[changed])
        self.seconds["rows"] += perf_counter() - started

    def _apply(self, rows: Rows, change: Vector, X: Data) -> None:
        """Send the changed coefficients to all shards, and take their next candidates."""
        slots, hit = self._directory.slots(rows, min(one.capacity for one in self._offers))
        self._rows_computed += int((~hit).sum())
        told = self._unchanged()
        for i, own in enumerate(self._split(rows)):
            told[i] = told[i]._replace(
                rows=own,
                b=self._b[0, own + self._starts[i]],
                X=None if hit.all() else X[~hit],
                weights=change[~hit],
                slots=slots[~hit] if len(slots) else slots,
                hits=slots[hit] if len(slots) else slots,
                hit_weights=change[hit],
            )
        self._offers = self._ask("step", [(one,) for one in told])

    def _unchanged(self) -> list[Change]:
        """Return the change of each shard where nothing changed."""
        none, nothing, made = np.zeros(0, np.int32), np.zeros(0), []
        for i, kept in enumerate(self._split(self._kept)):
            others = [one for k, one in enumerate(self._offers) if k != i]
            far = np.full(self.problem.groups, np.inf)
            least = np.min([far, *(one.least for one in others)], axis=0)
            most = np.max([-far, *(one.most for one in others)], axis=0)
            stay = min(len(self._kept), self.W // 2)
            told = none, nothing, None, nothing, none, none, nothing
            made.append(Change(*told, kept, least, most, stay, self._rows_computed))
        return made

    # The loop's.

    def coefficients(self) -> Vector:
        return self._b.copy()

    def found(self) -> tuple[Vector, Vector]:
        return self._given.snapped(self._b, self.problem.lo, self.problem.hi), self._f()

    def _f(self) -> Vector:
        return np.concatenate(self._ask("f", [()] * len(self._ends)))[None]

    def _extremes(self) -> None:
        """Every answer to a step has them."""

    def _reserve(self, state: Optimality) -> None:
        """Every shard does, in its step."""

    def _read(self) -> Optimality:
        of = self._offers
        m, M = np.min([one.least for one in of], axis=0)[None], np.max([one.most for one in of], axis=0)[None]
        count, sums = np.sum([one.inside for one in of], axis=0)[None], np.sum([one.sums for one in of], axis=0)[None]
        return self._optimality(m, M, count, sums, np.array([self._steps]), self._rows_computed)

    def _objective(self, rho: Vector) -> tuple[Vector, Vector]:
        parts = self._ask("objective", [(rho.ravel(),)] * len(self._ends))
        return self._objectives(np.sum(parts, axis=0)[None], rho)

    def _now(self) -> tuple[Problem, Vector, Vector]:
        return self.problem, self._b, self._f()

    def _replace(self, f: Vector) -> None:
        self._ask("put", [(f[0, start:end],) for start, end in zip(self._starts, self._ends, strict=True)])
        self._look_again()

    def exact(self, rows: Rows, b: Vector) -> Vector:
        """Return K b (1, n) in float64 of some rows, ascending; b (1, n)."""
        parts, c = self._split(rows), np.zeros((1, len(rows)))
        size = max(1, row_bytes(self._taken("whole", rows[:1])))
        for support, X in self._support("whole", b, max(1, EXACT // size)):
            given = [(part, X, b[:, support]) if len(part) else None for part in parts]
            c += np.concatenate([one for one in self._ask("exact", given) if one is not None], axis=1)
        return c


class Directory:
    """The rows of K, of n, that the shards cache: a ring of slots, as rowcache.cl has it on one device."""

    def __init__(self, n: int) -> None:
        self._slot_of, self._owner, self._head = np.full(n, -1, np.int32), np.zeros(0, np.intp), 0

    def forget(self) -> None:
        """Forget all rows."""
        self._slot_of[:], self._owner[:] = -1, -1

    def slots(self, rows: Rows, capacity: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the slot of each row, empty without a cache, and whether the row is cached there; then all are."""
        slots = self._slot_of[rows]
        hit = slots >= 0
        if not capacity:
            return np.zeros(0, np.int32), hit
        if capacity > len(self._owner):
            self._owner = np.concatenate([self._owner, np.full(capacity - len(self._owner), -1, np.intp)])
        new = rows[~hit]
        taken = ((self._head + np.arange(len(new))) % capacity).astype(np.int32)
        left = self._owner[taken]
        self._slot_of[left[left >= 0]] = -1
        self._owner[taken], self._slot_of[new], slots[~hit] = new, taken, taken
        self._head = (self._head + len(new)) % capacity
        return slots, hit
