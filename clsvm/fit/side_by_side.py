"""Small subproblems side by side on one device (solvers/batch.py), and on the host what that leaves."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
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
from clsvm.gram.precision import Scales
from clsvm.gram.products import Operator
from clsvm.kernels import Precomputed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.report import Point, Status
from clsvm.solvers import Checks, Result, batch, certificate, ended

# K of all rows is computed once where a row takes the room of so many values at least, subproblems' tiles have so many
# times as many values as it has, and it takes no more than a share of the memory that the rows leave.
LONG, COMMON, ROOM = 128, 1.3, 0.25
WIDE = 4096  # columns at most of rows that the host samples: sparse ones become dense there


def solve(context: FitContext, dtype: str, few: bool, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve small subproblems on one device, from their results so far: each piece side by side, then on the host what
    is left of it. few: whether they are few altogether."""
    options, run, _ = worker
    if (first := next(pieces, None)) is None:
        return
    with Stream(options.device, options.memory_limit) as stream:
        started = perf_counter()
        gram, scale = _products(stream, dtype, context, worker, [len(context.subproblems[i].rows) for i in first])
        run.lap("layout", started)
        work = _Work(stream, gram, context, worker, scale, few)
        for todo in chain([first], pieces):
            if context.left() <= 0:
                break
            started = perf_counter()
            work.on_device(todo)
            run.lap("subproblem", started)
            started = perf_counter()
            work.on_host(todo)
            run.lap("active set", started)
            run.peak = max(run.peak, stream.peak)
            yield


def _products(
    stream: Stream, dtype: str, context: FitContext, worker: Worker, sizes: list[int]
) -> tuple[Operator, Scales]:
    """Return the products from which subproblems of these sizes take their tiles, and rounding errors: of rows by their
    numbers, or of K of all rows, computed once."""
    (options, run, _), X, kernel = worker, context.X, context.kernel
    if isinstance(kernel, Precomputed):
        gram, _, scale, _ = prepare.products(stream, X, kernel, options, dtype)
        return gram, scale
    plan = run.plan = run.plan or prepare.planned(stream.profile, X, kernel, options)
    apart = _by_number(stream, plan, X, options)
    whole = _whole(stream, dtype, X, (plan, apart), sizes)
    gram, _, scale, _ = prepare.products(stream, X, kernel, options, dtype, plan, whole or apart)
    if whole and gram.resident:
        in_place = not LAYOUTS[apart.kind].sparse and batch.made_in_place(gram, max(sizes))
        gram = gram if in_place or store.needs(gram) > stream.limit - stream.held else store.computed(gram, tiles=False)
    return gram, scale


def _by_number(stream: Stream, plan: Plan, X: Data, options: Options) -> Plan:
    """Return the plan for rows that are read by their numbers."""
    return layouts.gathered(plan, X, stream.limit // 8, options.layout == "auto")


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
    left = stream.limit - stream.held - LAYOUTS[best.kind].nbytes(stream.profile, best, X, itemsize)
    return best if long and common and store.nbytes(n, dtype) <= ROOM * left else None


@dataclass
class _Work:
    """Subproblems on one device in one dtype, from their results so far. scale: rounding errors of kernel values."""

    stream: Stream
    gram: Operator
    context: FitContext
    worker: Worker
    scale: Scales
    few: bool
    blocks: dict[bool, HostBlocks] = field(default_factory=dict)
    rows: int = 0  # of kernel matrices, so far
    began: float = field(default_factory=perf_counter)

    def on_device(self, todo: list[int]) -> None:
        """Solve subproblems that the dtype is fine enough for, and those that are too large for the host."""
        able = [place for place in todo if not (self._hopeless(place) and self._takes(place))]
        context, options, before = self.context, self.worker.options, [self._before(place) for place in able]
        again = [
            replace(context.subproblems[place], start=one.b) if one else context.subproblems[place]
            for place, one in zip(able, before, strict=True)
        ]
        single, kept = self.gram.rows.dtype == "float32", context.checkpoint
        checked = single and (self.stream.profile.wide == "double" or self._held)
        sample = self._blocks(self._held) if context.X.shape[1] <= WIDE else None
        results = batch.solve(
            self.stream,
            self.gram,
            again,
            options.tol,
            context.steps_left(max((one.steps for one in before if one), default=0)),
            Checks(self.scale.own, (lambda: self._double) if checked else None, sample, self.scale.sizes),
            batch.Told(
                lambda at, result: self._watch(able[at], result.after(before[at])),
                lambda: context.left() <= 0,
                None if kept is None else lambda at, b: kept.stands(able[at], b),
            ),
        )
        for place, one, result in zip(able, before, results, strict=True):
            if result is not None:
                found = replace(result.after(one), **self._where(result.dtype))
                if found.status is not Status.TOLERANCE:
                    status = ended(options, np.inf, found.gap, found.steps)
                    found = replace(found, status=status or Status.STALLED)
                context.results[place] = found

    def on_host(self, todo: list[int]) -> None:
        """Finish what that left, what is finer on the host, and, of few small subproblems, those for which tol is
        coarse. Then say where rounding in float64 itself could hide the tolerance, or time was over."""
        context, options, rounding = self.context, self.worker.options, host.EPS * self.scale.double
        quick = self.few and host.holds(self.stream, context.X.shape)
        for place in todo:
            before = self._before(place)
            if before is None and self.gram.rows.dtype == "float32" and self.stream.profile.wide == "double":
                continue  # (pair steps in float64 come first)
            result = before and before.certain(rounding, options.tol, options.gap_tol)
            status, gap = (before.status, before.gap) if before else (Status.STALLED, np.inf)
            rough = result is not None and result.status is Status.PRECISION
            shape = len(context.subproblems[place].rows), context.X.shape[1]
            aim = host.aim(context.kernel, shape, status, gap, rough, quick)
            if aim is not None and self._takes(place) and context.left() > 0:
                result = self._one_on_host(place, aim)
                self._watch(place, result)
            if result is not None:
                late = result.status is Status.STALLED and context.left() <= 0
                context.found(place, replace(result, status=Status.MAX_TIME) if late else result)

    def _one_on_host(self, place: int, aim: float) -> Result:
        """Solve a subproblem over its own rows, from its result so far."""
        context, before, one = self.context, self._before(place), self.context.subproblems[place]
        given = context.rows(one.rows), context.kernel, self.worker.options, self.worker.run.plan, self.scale.double
        found = host.HostFit(self.stream, *given).finish(
            one.problem,
            before,
            aim,
            start=one.start,
            max_iter=context.steps_left(before.steps if before else 0),
            max_time=context.left(),
            save=context.save(place),
        )
        return replace(found, seconds={}, trace=(), **self._where(found.dtype))

    def _where(self, dtype: str) -> dict[str, Any]:
        """Return words for kernel values of ``dtype``: how they were computed, by which device, of which rows."""
        options, rows = self.worker.options, self.gram.rows
        unlike = self.worker.run.plan is not None and options.layout not in ("auto", rows.kind)
        words = f", read by their numbers, and so not {options.layout}" * unlike
        why = ": problems of few rows are solved whole" * (options.precision == "fast" and dtype == "float32")
        layout = f"{rows.describe()}{words}, {rows.dtype}"
        return {"precision": f"{dtype}{why}", "device": str(self.stream.info), "layout": layout}

    @cached_property
    def _held(self) -> bool:
        """Whether all of K is quickly made on the host."""
        return host.holds(self.stream, self.context.X.shape)

    @cached_property
    def _double(self) -> Operator | HostBlocks:
        """K in float64 on the host, where all of it is quickly made, else products in float64 on the device."""
        X, kernel, plan = self.context.X, self.context.kernel, self.worker.run.plan
        if self._held:
            return self._blocks(True)
        laid = plan and _by_number(self.stream, plan, X, self.worker.options)
        if isinstance(kernel, Precomputed) or laid is None:
            return store.given(self.stream, X, "float64")
        return products_of(self.stream, X, laid, kernel, "float64")

    def _blocks(self, whole: bool) -> HostBlocks:
        """K on the host, one of each kind."""
        if whole not in self.blocks:
            X, plan = self.context.X, self.worker.run.plan
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

    def _before(self, place: int) -> Result | None:
        return self.context.results.get(place)

    def _takes(self, place: int) -> bool:
        return host.takes(self.stream, self.context.subproblems[place].problem)

    def _hopeless(self, place: int) -> bool:
        """Whether one coefficient's rounding would hide the tolerance, and there is a better dtype."""
        dtype, tol = self.gram.rows.dtype, self.worker.options.tol
        rounding = float(np.finfo(dtype).eps) * self.scale.own
        coarse = certificate.hopeless(rounding, self.context.subproblems[place].problem, tol)
        return dtype != self.stream.profile.finest and coarse
