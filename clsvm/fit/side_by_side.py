"""Small problems over subsets of the rows of one data set, side by side on one device (solvers/batch.py), and on the
host what that leaves."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from time import perf_counter

import numpy as np

from clsvm.arrays import Data
from clsvm.fit import host, prepare
from clsvm.fit.checkpoint import Ended
from clsvm.fit.record import Given, Record, Worker, as_outcome
from clsvm.gram import layouts
from clsvm.gram.blocks import products_of
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import CSR
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precomputed import PrecomputedGram, SharedGram, StoredGram
from clsvm.gram.products import Gram, Products
from clsvm.kernels import Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.report import Point, Progress, Status
from clsvm.report.display import Display
from clsvm.solvers import Solution, batch, certificate
from clsvm.solvers.member import Checks, Outcome

# K of all rows is computed once where a row takes the room of so many values at least, members' tiles have so many
# times as many values as it has, and it takes no more than a share of the memory that the rows leave.
LONG, COMMON, ROOM = 128, 1.3, 0.25
WIDE = 4096  # columns at most of rows that the host samples: sparse ones become dense there


def solve(dtype: str, few: bool, given: Given, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Small members on one device, from what was found before: each piece side by side, then what is left of it on the
    host. few: whether they are few altogether."""
    options, record = worker
    if (first := next(pieces, None)) is None:
        return
    with (
        Stream(options.device, options.memory_limit) as stream,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        started = perf_counter()
        gram, record.plan, scale = _products(stream, dtype, given, worker, [len(given.members[i].rows) for i in first])
        record.lap("layout", started)
        unlike = record.plan is not None and options.layout not in ("auto", gram.rows.kind)
        words = f", read by their numbers, and so not {options.layout}" * unlike
        record.layouts.append(f"{gram.rows.describe()}{words}, {dtype}")
        record.devices.append(str(stream.info))
        work = _Work(stream, gram, given, options, scale, record, few, progress)
        for todo in chain([first], pieces):
            if given.left() <= 0:
                break
            started = perf_counter()
            work.side_by_side(todo)
            record.lap("subproblem", started)
            started = perf_counter()
            work.on_host(todo)
            record.lap("active set", started)
            work.conclude(todo)
            work.keep(todo)
            record.peak = max(record.peak, stream.peak)
            yield


def _products(
    stream: Stream, dtype: str, given: Given, worker: Worker, sizes: list[int]
) -> tuple[Products, Plan | None, prepare.Scales]:
    """The products of which members of these sizes take their tiles, the plan of the rows, and rounding errors: of rows
    by their numbers, or of K of all rows, computed once."""
    (options, record), X, kernel = worker, given.X, given.kernel
    if isinstance(kernel, Precomputed):
        gram, plan, scale, _ = prepare.products(stream, X, kernel, options, dtype)
        return gram, plan, scale
    plan = record.plan or prepare.planned(stream.profile, X, kernel, options)
    apart = _by_number(stream, plan, X, options)
    whole = _whole(stream, dtype, X, (plan, apart), sizes)
    gram, _, scale, _ = prepare.products(stream, X, kernel, options, dtype, plan, whole or apart)
    if whole and isinstance(gram, Gram):
        in_place = not LAYOUTS[apart.kind].sparse and batch.made_in_place(gram, max(sizes))
        gram = gram if in_place or SharedGram.needs(gram) > stream.limit - stream.held else SharedGram(stream, gram)
    return gram, plan, scale


def _by_number(stream: Stream, plan: Plan, X: Data, options: Options) -> Plan:
    """The plan for rows that are read by their numbers."""
    return layouts.gathered(plan, X, stream.limit // 8, options.layout == "auto")


def _whole(stream: Stream, dtype: str, X: Data, plans: tuple[Plan, Plan], sizes: list[int]) -> Plan | None:
    """The plan of rows for K of all of them, computed once: one of ``plans``, which are for products with all rows, and
    for rows that are read by their numbers. None where the tiles of members of these sizes have hardly more values
    than K, rows are short, or memory is little."""
    if stream.profile.shape != "vector":
        return None
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize

    def cells(plan: Plan) -> float:
        return plan.costs.get(plan.kind, plan.costs.get(CSR.name, np.inf))  # (hybrid rows without a dense column)

    apart = plans[1]
    best = min((plan for plan in plans if LAYOUTS[plan.kind].in_order), key=cells)
    long = LAYOUTS[apart.kind].row_bytes(apart, X, itemsize) >= LONG * itemsize
    common = sum(size**2 for size in sizes) >= COMMON * n**2
    left = stream.limit - stream.held - LAYOUTS[best.kind].nbytes(stream.profile, best, X, itemsize)
    return best if long and common and StoredGram.nbytes(n, dtype) <= ROOM * left else None


@dataclass
class _Work:
    """Members on one device in one dtype: what they are made of, and what was found so far."""

    stream: Stream
    gram: Products
    given: Given
    options: Options
    scale: prepare.Scales
    record: Record
    few: bool
    progress: Progress | None
    finished: set[int] = field(default_factory=set)  # those that the host has solved
    blocks: dict[bool, host.Blocks] = field(default_factory=dict)
    began: float = field(default_factory=perf_counter)

    def side_by_side(self, todo: list[int]) -> None:
        """Members that their dtype is fine enough for, and those that are too large for the host."""
        able = [place for place in todo if not (self._hopeless(place) and self._takes(place))]
        members, found = self.given.members, self.given.found
        again = [replace(members[p], start=found[p].b) if p in found else members[p] for p in able]
        taken = max((found[p].steps for p in able if p in found), default=0)
        options, single, kept = self.options, self.gram.rows.dtype == "float32", self.given.kept
        checked = single and (self.stream.profile.wide == "double" or self._held)
        sample = self._blocks(self._held) if self.given.X.shape[1] <= WIDE else None
        outcomes = batch.solve(
            self.stream,
            self.gram,
            again,
            options.tol,
            options.max_iter if options.max_iter < 0 else options.max_iter - taken,
            Checks(self.scale.own, (lambda: self._double) if checked else None, sample, self.scale.sizes),
            self._watch,
            lambda: self.given.left() <= 0,
            None if kept is None else lambda at, b: kept.stands(able[at], b),
        )
        for place, outcome in zip(able, outcomes, strict=True):
            if outcome is not None:
                before = found[place].steps if place in found else 0
                found[place] = replace(outcome, steps=before + outcome.steps)
                capped = 0 <= options.max_iter <= found[place].steps
                left = Status.GAP if self._within(outcome) else Status.MAX_ITER if capped else Status.STALLED
                self.record.statuses[place] = Status.TOLERANCE if outcome.sure else left
                self.record.dtypes[place] = self.gram.rows.dtype

    def on_host(self, todo: list[int]) -> None:
        """What that left, what is finer there, and, of few small problems, those for which tol is coarse."""
        quick = self.few and host.holds(self.stream, self.given.X.shape)
        for place in todo:
            status, outcome = self.record.statuses.get(place, Status.STALLED), self.given.found.get(place)
            if outcome is None and self.gram.rows.dtype == "float32" and self.stream.profile.wide == "double":
                continue  # (pair steps in float64 come first)
            rough = status is Status.TOLERANCE and certificate.beyond(self._hidden(place), self.options.tol)
            gap = outcome.gap if outcome else np.inf
            aim = host.aim(self.given.kernel, self._shape(place), status, gap, rough, quick)
            if aim is not None and self._takes(place) and self.given.left() > 0:
                one = self._one_on_host(place, aim)
                self.given.found[place], self.record.statuses[place] = as_outcome(one), one.status
                self.record.dtypes[place] = one.dtype
                self.finished.add(place)
                self._watch(place, self.given.found[place])

    def conclude(self, todo: list[int]) -> None:
        """Statuses that say so where rounding in float64 itself could hide the tolerance, or time was over."""
        statuses = self.record.statuses
        for place in todo:
            status = statuses.get(place)
            if status not in (Status.TOLERANCE, Status.GAP, Status.STALLED):
                continue
            outcome = self.given.found[place]
            bound = outcome.error_bound if place in self.finished else self._hidden(place)
            weight, options = float(np.abs(outcome.b).sum()), self.options
            numbers = bound, weight, outcome.primal, options.tol, options.gap_tol
            if certificate.doubtful(status, *numbers):
                if self._within(outcome) and not certificate.doubtful(Status.GAP, *numbers):
                    statuses[place] = Status.GAP
                    continue
                statuses[place] = Status.PRECISION
                self.given.found[place] = replace(outcome, error_bound=max(outcome.error_bound, bound))
            elif statuses[place] is Status.STALLED and self.given.left() <= 0:
                statuses[place] = Status.MAX_TIME

    def keep(self, todo: list[int]) -> None:
        """How the members ended, in the checkpoint."""
        found, record, kept = self.given.found, self.record, self.given.kept
        for place in todo:
            if kept and place in found:
                at = record.dtypes[place], str(self.stream.info)
                kept.ended(place, Ended(found[place], record.statuses[place], *at))

    def _one_on_host(self, place: int, aim: float) -> Solution:
        """A member over its own rows, from what was found before."""
        member, before, most = self.given.members[place], self.given.found.get(place), self.options.max_iter
        rows, kernel = self.given.rows(member.rows), self.given.kernel
        values = host.kernel_values(self.stream, rows, kernel, self.record.plan, member.problem, self.scale.double)
        start = before.b if before else member.start
        steps, kept = before.steps if before else 0, self.given.kept
        one = host.solve(
            self.stream,
            values,
            member.problem,
            None if start is None else member.problem.feasible(start[None]),
            self.options.tol,
            self.options.gap_tol,
            most=np.inf if most < 0 else most - steps,
            max_time=self.given.left(),
            aim=aim,
            save=None if kept is None else partial(kept.save, place),
        )
        return replace(one, steps=one.steps + steps)

    @cached_property
    def _held(self) -> bool:
        """Whether all of K is quickly made on the host."""
        return host.holds(self.stream, self.given.X.shape)

    @cached_property
    def _double(self) -> Products | host.Blocks:
        """K in float64 on the host, where all of it is quickly made, else products in float64 on the device."""
        X, kernel, plan = self.given.X, self.given.kernel, self.record.plan
        if self._held:
            return self._blocks(True)
        laid = plan and _by_number(self.stream, plan, X, self.options)
        if isinstance(kernel, Precomputed) or laid is None:
            return PrecomputedGram(self.stream, X, "float64")
        return products_of(self.stream, X, laid, kernel, "float64")

    def _blocks(self, whole: bool) -> host.Blocks:
        """K on the host, one of each kind."""
        if whole not in self.blocks:
            X, plan = self.given.X, self.record.plan
            centre = plan.centre if plan else np.zeros(X.shape[1])
            self.blocks[whole] = host.Blocks(X, self.given.kernel, centre, whole)
        return self.blocks[whole]

    def _watch(self, place: int, outcome: Outcome) -> None:
        self.record.rows += len(outcome.b)
        if self.progress:
            now, nan = perf_counter() - self.began, float("nan")
            found = {**self.given.found, place: outcome}  # (other threads add some meanwhile)
            steps = sum(one.steps for one in found.values())
            self.progress(Point(now, steps, place, nan, nan, nan, outcome.violation, self.record.rows))

    def _within(self, outcome: Outcome) -> bool:
        """Whether gap_tol is reached."""
        return self.options.gap_tol is not None and outcome.gap <= self.options.gap_tol

    def _shape(self, place: int) -> tuple[int, int]:
        return len(self.given.members[place].rows), self.given.X.shape[1]

    def _takes(self, place: int) -> bool:
        return host.takes(self.stream, self.given.members[place].problem)

    def _hopeless(self, place: int) -> bool:
        """Whether one coefficient's rounding would hide the tolerance, and there is a better dtype."""
        if self.gram.rows.dtype == self.stream.profile.finest:
            return False
        rounding = float(np.finfo(self.gram.rows.dtype).eps) * self.scale.own
        return certificate.hopeless(rounding, self.given.members[place].problem, self.options.tol)

    def _hidden(self, place: int) -> float:
        """What rounding of kernel values in float64, as devices compute them, can hide of a member's violation."""
        return host.EPS * self.scale.double * float(np.abs(self.given.found[place].b).sum())
