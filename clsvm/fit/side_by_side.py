"""Small subproblems side by side on one device (solvers/batch.py), and on the host what that leaves."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.arrays import Data
from clsvm.fit import host, prepare
from clsvm.fit.run import FitContext, Worker
from clsvm.gram import layouts, store
from clsvm.gram.blocks import products_of
from clsvm.gram.exact import HostBlocks
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import CSR
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Operator
from clsvm.kernels import Precomputed
from clsvm.opencl.stream import Stream
from clsvm.report import Point, Status
from clsvm.solvers import Checks, Result, batch, ended

# K of all rows is computed once where a row takes the room of so many values at least, subproblems' tiles have so many
# times as many values as it has, and it takes no more than a share of the memory that the rows leave.
LONG, COMMON, ROOM = 128, 1.3, 0.25
WIDE = 4096  # columns at most of rows that the host samples: sparse ones become dense there


def solve(context: FitContext, dtype: str, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve small subproblems on one device, from their results so far: each piece side by side, then on the host what
    is left of it."""
    if (first := next(pieces, None)) is None:
        return
    with Stream(worker.options.device, worker.options.memory_limit) as stream:
        began = perf_counter()
        work = _Work(stream, context, worker, dtype, first)
        worker.lap("layout", began)
        for todo in chain([first], pieces):
            if context.left() <= 0:
                break
            for part, step in ("subproblem", work.on_device), ("active set", work.on_host):
                began = perf_counter()
                step(todo)
                worker.lap(part, began)
            worker.peak = max(worker.peak, stream.peak)
            yield


def _whole(stream: Stream, dtype: str, X: Data, plans: tuple[Plan, Plan], sizes: list[int]) -> Plan | None:
    """Return the plan of rows for K of all of them, computed once: one of ``plans``, which are for products with all
    rows, and for rows that are read by their numbers. None where the tiles of subproblems of these sizes have hardly
    more values than K, rows are short, or memory is little."""
    if stream.profile.shape != "vector":
        return None
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize

    def cells(plan: Plan) -> float:
        return plan.costs.get(plan.kind, plan.costs.get(CSR.name, np.inf))  # (hybrid rows without a dense column)

    apart = plans[1]
    best = min((plan for plan in plans if LAYOUTS[plan.kind].in_order), key=cells)
    long = LAYOUTS[apart.kind].row_bytes(apart, X, itemsize) >= LONG * itemsize
    common = sum(size**2 for size in sizes) >= COMMON * n**2
    left = stream.limit - stream.held - LAYOUTS[best.kind].nbytes(best, X, itemsize)
    return best if long and common and store.nbytes(n, dtype) <= ROOM * left else None


class _Work:
    """Subproblems on one device in one dtype, from their results so far; they take tiles from the products ``gram``.

    scale: rounding errors of kernel values. plan: how rows stand that are read by their numbers, None for kernel values
    that are given.
    """

    def __init__(self, stream: Stream, context: FitContext, worker: Worker, dtype: str, first: list[int]) -> None:
        self.stream, self.context, self.worker, self.plan = stream, context, worker, None
        X, kernel, options, whole = context.X, context.kernel, worker.options, None
        sizes = [len(context.subproblems[place].rows) for place in first]
        if plan := worker.plan or prepare.planned(stream.profile, X, kernel, options):
            worker.plan = plan
            self.plan = layouts.gathered(plan, X, stream.limit // 8, options.layout == "auto")
            whole = _whole(stream, dtype, X, (plan, self.plan), sizes)
        self.gram, self.scale = prepare.products(stream, X, kernel, options, dtype, whole or self.plan)
        if whole and self.plan and self.gram.resident:
            in_place = not LAYOUTS[self.plan.kind].sparse and batch.made_in_place(self.gram, max(sizes))
            if not in_place and store.needs(self.gram) <= stream.limit - stream.held:
                self.gram = store.computed(self.gram, tiles=False)
        self.quick = host.holds(stream, X.shape)  # whether all of K is quickly made on the host
        self.blocks: dict[bool, HostBlocks] = {}  # of K on the host, by whether all of it is made
        self.rows, self.began = 0, perf_counter()  # of kernel matrices, so far

    def on_device(self, todo: list[int]) -> None:
        """Solve subproblems that the dtype is fine enough for, and those that are too large for the host."""
        context, options, kept, scale = self.context, self.worker.options, self.context.checkpoint, self.scale
        able = [place for place in todo if not (self._hopeless(place) and self._takes(place))]
        before = [context.results.get(place) for place in able]
        again = [
            replace(context.subproblems[place], start=one.b) if one else context.subproblems[place]
            for place, one in zip(able, before, strict=True)
        ]
        checked = self.gram.rows.dtype == "float32" and (self.stream.profile.wide == "double" or self.quick)
        sample = self._blocks(self.quick) if context.X.shape[1] <= WIDE else None
        results = batch.solve(
            self.stream,
            self.gram,
            again,
            options.tol,
            context.steps_left(max((one.steps for one in before if one), default=0)),
            Checks(scale.own, (lambda: self._double) if checked else None, sample, scale.sizes),
            batch.Told(
                lambda at, result: self._watch(able[at], result.after(before[at])),
                lambda: context.left() <= 0,
                None if kept is None else lambda at, b: kept.stands(able[at], b),
            ),
        )
        for place, one, result in zip(able, before, results, strict=True):
            if result is not None:
                found = result.after(one)
                if found.status is not Status.TOLERANCE:
                    status = ended(options, np.inf, found.gap, found.steps) or Status.STALLED
                    found = replace(found, status=status)
                context.results[place] = replace(found, **self._where(found.dtype))

    def on_host(self, todo: list[int]) -> None:
        """Finish what pair steps left, what is finer on the host, and few subproblems for which tol is coarse.

        Then say where rounding in float64 itself could hide the tolerance, or time was over.
        """
        context, options, rounding = self.context, self.worker.options, host.EPS * self.scale.double
        for place in todo:
            before = context.results.get(place)
            if before is None and self.gram.rows.dtype == "float32" and self.stream.profile.wide == "double":
                continue  # (pair steps in float64 come first)
            shape = len(context.subproblems[place].rows), context.X.shape[1]
            found = before and before.certain(rounding, options.tol, options.gap_tol)
            aim = host.aim(context.kernel, shape, before, found, self.quick and context.few)
            if aim is not None and self._takes(place) and context.left() > 0:
                found = self._one_on_host(place, aim)
                self._watch(place, found)
            if found:
                late = found.status is Status.STALLED and context.left() <= 0
                context.found(place, replace(found, status=Status.MAX_TIME) if late else found)

    def _one_on_host(self, place: int, aim: float) -> Result:
        """Solve a subproblem over its own rows, from its result so far."""
        context, worker, one = self.context, self.worker, self.context.subproblems[place]
        given = context.rows(one.rows), context.kernel, worker.options, worker.plan, self.scale.double
        asked = {"start": one.start, **context.asked(place)}
        found = host.HostFit(self.stream, *given).finish(one.problem, context.results.get(place), aim, **asked)
        return replace(found, seconds={}, trace=(), **self._where(found.dtype))

    def _where(self, dtype: str) -> dict[str, Any]:
        """Return words for kernel values of ``dtype``: how they were computed, by which device, of which rows."""
        options, rows = self.worker.options, self.gram.rows
        unlike = self.plan is not None and options.layout not in ("auto", rows.kind)
        words = f", read by their numbers, and so not {options.layout}" * unlike
        why = ": problems of few rows are solved whole" * (options.precision == "fast" and dtype == "float32")
        layout = f"{rows.describe()}{words}, {rows.dtype}"
        return {"precision": f"{dtype}{why}", "device": str(self.stream.info), "layout": layout}

    @cached_property
    def _double(self) -> Operator | HostBlocks:
        """Make K in float64 on the host, where all of it is quickly made, else products in float64 on the device."""
        X, kernel = self.context.X, self.context.kernel
        if self.quick:
            return self._blocks(True)
        if isinstance(kernel, Precomputed) or self.plan is None:
            return store.given(self.stream, X, "float64")
        return products_of(self.stream, X, self.plan, kernel, "float64")

    def _blocks(self, whole: bool) -> HostBlocks:
        """Return K on the host, made once of each kind."""
        if whole not in self.blocks:
            X, plan = self.context.X, self.worker.plan
            centre = plan.centre if plan else np.zeros(X.shape[1])
            self.blocks[whole] = HostBlocks(X, self.context.kernel, centre, whole)
        return self.blocks[whole]

    def _watch(self, place: int, result: Result) -> None:
        self.rows += result.b.shape[1]
        if self.worker.progress:
            now, nan = perf_counter() - self.began, float("nan")
            found = {**self.context.results, place: result}  # (other threads add some meanwhile)
            steps = sum(one.steps for one in found.values())
            self.worker.progress(Point(now, steps, place, nan, nan, nan, result.violation, self.rows))

    def _takes(self, place: int) -> bool:
        return host.takes(self.stream, self.context.subproblems[place].problem)

    def _hopeless(self, place: int) -> bool:
        """Return whether one coefficient's rounding would hide the tolerance, and there is a better dtype."""
        dtype, problem = self.gram.rows.dtype, self.context.subproblems[place].problem
        coarse = prepare.coarse(dtype, self.scale.own, problem, self.worker.options.tol)
        return dtype != self.stream.profile.finest and coarse
