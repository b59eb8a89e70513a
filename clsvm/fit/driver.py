"""The way of a fit: its subproblems by dtype, solver and device.

    for each dtype, float32 first where that is asked for, of what has no final result:
        small subproblems   side by side on each device, and on the host what that leaves       side_by_side.py
        large ones          one after another, those over the same rows with one row cache      prepare.py
                            on the host where the device does not have the dtype                host.py
    rows elsewhere, or one subproblem for several devices: in shards                            sharded.py

max_time, progress and checkpoint are those of all subproblems together. Several devices take pieces of the work from a
queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.distribute import dealt
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.fit import checkpoint, host, prepare, sharded, side_by_side
from clsvm.fit.prepare import PreparedFit
from clsvm.fit.run import FitContext, Fitted, RunInfo, Worker
from clsvm.fit.sharded import ShardedFit
from clsvm.gram.layouts.packing import DeviceRows
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import default_profile, find, listed
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Subproblem
from clsvm.report import Progress, Status
from clsvm.report.display import Display
from clsvm.solvers import Result, batch

PIECES = 4  # of the work for each of several devices: enough to end at about the same time
BATCHES = 16  # in a part of the work that has a checkpoint: each part fills room for tiles with zeros, which takes time


def solve(
    X: Any, subproblems: Sequence[Subproblem], kernel: Kernel | Precomputed, options: Options, since: float
) -> Fitted:
    """Solve every subproblem over the rows of X (n, d), dense or CSR (arrays.canonical), or elsewhere; or over X = K
    (n, n) where the kernel is precomputed.

    since: perf_counter() at which the fit began. Raises ValueError where numbers are too large or memory too small,
    CheckpointError for a checkpoint of another fit.
    """
    with (
        checkpoint.opened(options, X, subproblems, kernel) as kept,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        starts = kept.b if kept else [one.start for one in subproblems]
        begun = [one.begun(b) for one, b in zip(subproblems, starts, strict=True)]
        driver = _Driver(FitContext(X, begun, kernel, options, since, kept), progress)
        driver.solve()
        return Fitted(driver.results(), driver.run, perf_counter() - since)


class _Driver:
    """The work of a fit, and what is known of it beside the results."""

    def __init__(self, context: FitContext, progress: Progress | None) -> None:
        self.context, self.progress, self.run = context, progress, RunInfo()
        device, self.alone = context.options.device, len(context.subproblems) == 1
        self.devices = listed(device)
        if sharded.elsewhere(context.X) or (self.alone and len(self.devices) > 1):
            self.devices, context.shards = [device], True
        self.profiles = [] if context.shards else [default_profile(find(one)) for one in self.devices]
        self.run.lap("check", context.since)

    def solve(self) -> None:
        """Solve all that a checkpoint has not solved."""
        context, able, at_once = self.context, self._able(self.context.options.dtype), 0
        if not context.shards and (not self.alone or _suits_batch(context, self.profiles[0])):
            context.whole, at_once = _room(able, context.options)
        self._passes(at_once)
        if not (self.alone or context.shards):
            self.run.reason = self._counts() if able else host.HostFit.reason
        if self.run.plan is None and not (isinstance(context.kernel, Precomputed) or context.shards):
            with Stream(self.devices[0], context.options.memory_limit) as stream:
                self.run.plan = prepare.planned(stream.profile, context.X, context.kernel, context.options)

    def _able(self, dtype: str) -> list[Any]:
        """Return the devices that have a dtype; shards find that out where the rows are."""
        if self.context.shards:
            return self.devices
        return [one for one, profile in zip(self.devices, self.profiles, strict=True) if not profile.lacks(dtype)]

    def _passes(self, at_once: int) -> None:
        """Solve what has no final result, in the dtype asked for, then in float64 where a device has it.

        at_once: small subproblems that keep each device at work.
        """
        context, sizes = self.context, [len(one.rows) for one in self.context.subproblems]
        for dtype in ("float32", "float64") if context.options.dtype == "float32" else ("float64",):
            able, todo = self._able(dtype), [place for place in range(len(sizes)) if place not in context.ended]
            if not todo or (not able and dtype != context.options.dtype):
                return
            small = [place for place in todo if sizes[place] <= context.whole]
            large = [place for place in todo if sizes[place] > context.whole]
            try:
                if small and context.left() > 0:
                    work = partial(side_by_side.solve, context, dtype, len(small) <= host.SEVERAL)
                    self._deal(able, _pieces(sizes, small, len(able), at_once, bool(context.checkpoint)), work)
            except (MemoryLimitError, BufferSizeError):  # one after another they take less
                context.forget(place for place, size in enumerate(sizes) if size <= context.whole)
                context.whole = 0
                self._passes(at_once)
                return
            if large:
                devices, pieces = able or self.devices, [[place] for place in large]
                if not context.shards:
                    pieces = _together(sizes, large, context.X.shape[0], len(devices))
                self._deal(devices, pieces, partial(_one_by_one, context, dtype))

    def _deal(
        self,
        devices: Sequence[Any],
        pieces: Iterable[list[int]],
        work: Callable[[Worker, Iterator[list[int]]], Generator[None]],
    ) -> None:
        """Have the devices do ``work`` on pieces, lists of places; the first one shows its progress."""
        options, plan = self.context.options, self.run.plan
        told = [self.progress] + [None] * len(devices)
        workers = [
            Worker(options.but(device=one), RunInfo(plan), progress)
            for one, progress in zip(devices, told, strict=False)
        ]
        try:
            for _ in dealt(workers, pieces, work):
                pass
        finally:
            self.run.add([worker.run for worker in workers])

    def _counts(self) -> str:
        """Return in words how many subproblems were solved which way."""
        context = self.context
        large = sum(
            len(context.subproblems[place].rows) > context.whole for place in context.results.keys() - context.recalled
        )
        whole, recalled = len(context.subproblems) - large - len(context.recalled), len(context.recalled)
        words = f"{whole} problems of up to {context.whole} rows solved whole, {large} by decomposition"
        return words + (f", {recalled} solved by the fit before, as its checkpoint says" if recalled else "")

    def results(self) -> list[Result]:
        """Return the result of each subproblem, in order; of one that was not begun, where it would begin."""
        context, dtype = self.context, self.context.options.dtype
        for place, one in enumerate(context.subproblems):
            if place not in context.results:
                b, rho = one.beginning, np.zeros((one.problem.problems, one.problem.groups))
                context.results[place] = Result(
                    b=b,
                    f=np.full_like(b, np.nan),
                    rho=rho,
                    primal=np.inf,
                    dual=np.nan,
                    violation=np.inf,
                    steps=0,
                    status=Status.MAX_TIME,
                    error_bound=0.0,
                    exact_rows=0,
                    working_set=0,
                    dtype=dtype,
                    precision=dtype,
                    device=" and ".join(dict.fromkeys(str(find(one)) for one in listed(context.options.device))),
                )
        return [context.results[place] for place in range(len(context.subproblems))]


def _suits_batch(context: FitContext, profile: Profile) -> bool:
    """Whether a subproblem by itself is best taken whole, which takes a tenth of the launches: of few rows, on a device
    that has double precision, with nothing asked that a batch does not do."""
    (one,), options = context.subproblems, context.options
    if one.problem.constraint is Constraint.COUPLED or profile.wide != "double" or len(one.rows) > profile.alone:
        return False
    auto = options.working_set_size == options.layout == "auto"
    values = np.dtype(options.dtype).itemsize * len(one.rows) ** 2  # bytes of all of K
    kept = options.cache_size == "auto" or 1e6 * float(options.cache_size) >= values
    return auto and kept and options.gap_tol is None and options.checkpoint is None


def _room(devices: Sequence[Any], options: Options) -> tuple[int, int]:
    """Return the most rows of a subproblem that each of the devices takes whole, and how many of these keep each of
    them at work; (0, 0) for no device."""
    most, counts = [], [0]
    for device in devices:
        with Stream(device, options.memory_limit) as stream:
            most.append(batch.largest(stream))
            counts.append(batch.at_once(stream))
    return min(most, default=0), max(counts)


def _together(sizes: Sequence[int], large: list[int], n: int, devices: int) -> list[list[int]]:
    """Return the places ``large`` in pieces: those of all n rows, in a piece for each device, then each other one by
    itself, for several devices the largest first."""
    whole = [place for place in large if sizes[place] == n]
    parts = [part.tolist() for part in np.array_split(whole, min(devices, len(whole)))] if whole else []
    if devices > 1:
        large = sorted(large, key=lambda place: -sizes[place])
    return [*parts, *([place] for place in large if sizes[place] < n)]


def _pieces(sizes: Sequence[int], todo: list[int], devices: int, at_once: int, kept: bool = False) -> list[list[int]]:
    """Return the places ``todo`` in pieces for a queue, the largest first: some for each device, so that they end at
    about the same time, but of ``at_once`` places or more where there are enough of these.

    kept: a checkpoint has the results of a piece when all of it is done, so pieces are as small as keeps a device at
    work.
    """
    if devices == 1 and not kept:
        return [todo]
    ordered = sorted(todo, key=lambda place: -sizes[place])
    size = max(-(-len(todo) // (PIECES * devices)), min(at_once, -(-len(todo) // devices)))
    pieces = [ordered] if devices == 1 else [ordered[first : first + size] for first in range(0, len(todo), size)]
    if not kept:
        return pieces
    parts: list[list[int]] = []
    for piece in pieces:
        parts.append([])
        rows = 0
        for place in piece:
            if len(parts[-1]) >= at_once and rows >= BATCHES * batch.ROWS:
                parts.append([])
                rows = 0
            parts[-1].append(place)
            rows += sizes[place]
    return parts


def _one_by_one(context: FitContext, dtype: str, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve large subproblems on one device, or over shards, one after another, those of a piece over the same rows."""
    with _shared(context, worker) as picked:
        for places in pieces:
            if len(context.subproblems) > 1 and context.left() <= 0:
                break
            some, rows = context.subproblems[places[0]].rows, context.X
            if picked is not None and len(some) > host.MOST:  # (the host may take fewer)
                rows = picked[some] if len(some) < len(picked) else picked
            elif len(some) < context.X.shape[0] and not context.shards:
                rows = context.rows(some)
            _over_the_same_rows(context, dtype, worker, places, rows)
            yield


@contextmanager
def _shared(context: FitContext, worker: Worker) -> Iterator[DeviceRows | None]:
    """X on a device with memory of its own, where large subproblems have more rows together; else None.

    They are laid out from there: rows that they share go over the bus once, and the host copies none of them.
    """
    options, X, kernel = worker.options, context.X, context.kernel
    sizes = [len(one.rows) for place, one in enumerate(context.subproblems) if place not in context.recalled]
    large = [rows for rows in sizes if rows > max(context.whole, host.MOST)]
    if context.shards or isinstance(kernel, Precomputed) or sum(large) <= X.shape[0]:
        yield None
        return
    with Stream(options.device, options.memory_limit) as stream:
        held = (
            X if stream.unified else prepare.on_device(stream, X, prepare.planned(stream.profile, X, kernel, options))
        )
        yield held if isinstance(held, DeviceRows) else None


def _over_the_same_rows(context: FitContext, dtype: str, worker: Worker, places: list[int], rows: Any) -> None:
    """Solve large subproblems, one after another, over ``rows``, with one row cache."""
    (options, run, progress), began = worker, perf_counter()
    whole = rows.shape[0] == context.X.shape[0]
    with _ready(context, dtype, options, rows, run.plan if whole else None) as ready:
        run.lap("layout", began)
        for place in places:
            one, before, left = context.subproblems[place], context.results.get(place), context.left()
            again = one.begun(before.b) if before else one
            again = again.among(rows.shape[0]) if context.shards else again
            found = ready.settle(
                again.problem,
                start=again.start,
                max_iter=context.steps_left(before.steps if before else 0),
                max_time=None if np.isinf(left) else left,
                progress=progress,
                save=context.save(place),
                save_every=options.checkpoint_every,
            )
            if found is None:
                continue
            run.took(found.seconds)
            if context.shards:
                found = replace(found, b=found.b[:, one.rows], f=found.f[:, one.rows])
            precision = ready.precision if found.dtype == "float32" else found.dtype
            found = replace(found.after(before), precision=precision, device=ready.device, layout=ready.describe())
            context.found(place, found, ready.last)
        run.reason, run.peak = ready.reason, max(run.peak, ready.peak())
        if whole:
            run.plan = run.plan or ready.plan


@contextmanager
def _ready(
    context: FitContext, dtype: str, options: Options, rows: Any, plan: Plan | None
) -> Iterator[PreparedFit | host.HostFit | ShardedFit]:
    """Lay out rows for solves over them: on a device, on the host where the device does not have the dtype, or in
    shards."""
    kernel = context.kernel
    if context.shards:
        with sharded.in_shards(rows, kernel, options, dtype) as ready:
            yield ready
        return
    with Stream(options.device, options.memory_limit) as stream:
        if stream.profile.lacks(dtype):
            yield host.HostFit(stream, rows, kernel, options)
        else:
            yield PreparedFit(stream, rows, kernel, options, dtype, plan)
