"""The driver of a fit: subproblems by dtype, solver and device.

    for each dtype, float32 first where that is asked for, of what has no final result:
        small subproblems   side by side on each device, and on the host what that leaves       side_by_side.py
        large ones          one after another, those over the same rows with one row cache      prepare.py
                            on the host where the device does not have the dtype                host.py
    rows elsewhere, or one subproblem for several devices: in shards                            sharded.py

max_time, progress and checkpoint are those of all subproblems together. Several devices take pieces of the work from a
queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
from clsvm.fit.run import FitContext, Fitted, Worker
from clsvm.fit.sharded import ShardedFit
from clsvm.gram.layouts.lanes import DeviceRows
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import default_profile, find, listed
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Subproblem
from clsvm.report import Display, Status
from clsvm.solvers import Result, batch

DTYPES = "float32", "float64"  # in the order in which they are tried
PIECES = 4  # of the work for each of several devices: enough to end at about the same time
BATCHES = 16  # in a part of the work that has a checkpoint: each part fills room for tiles with zeros, which takes time
Devices = Mapping[str, Sequence[Any]]  # those that have a dtype


def solve(
    X: Any,
    subproblems: Sequence[Subproblem],
    kernel: Kernel | Precomputed,
    options: Options,
    since: float,
    before: Fitted | None = None,
) -> Fitted:
    """Solve every subproblem over the rows of X (n, d), dense or CSR (arrays.canonical), or elsewhere; or over X = K
    (n, n) where the kernel is precomputed.

    since: perf_counter() at which the fit began. before: what other subproblems of the fit came to, over the same rows.
    Raises ValueError where numbers are too large or memory too small, CheckpointError for a checkpoint of another fit.
    """
    with (
        checkpoint.opened(options, X, subproblems, kernel) as kept,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        starts = kept.b if kept else [one.start for one in subproblems]
        begun = [one.begun(b) for one, b in zip(subproblems, starts, strict=True)]
        run = replace(before.run, progress=progress, reason="") if before else Worker(options, progress)
        if not before:
            run.lap("check", since)
        context = FitContext(X, begun, kernel, options, since, run, kept)
        _solve(context)
        return Fitted(_results(context), run, perf_counter() - since, before)


def _solve(context: FitContext) -> None:
    """Solve all that a checkpoint has not solved, on devices that are chosen here."""
    X, options, run, one = context.X, context.options, context.run, len(context.subproblems) == 1
    named = listed(options.device)
    if sharded.elsewhere(X) or (one and len(named) > 1):
        context.shards = True
        _passes(context, {dtype: [options.device] for dtype in DTYPES})  # (shards find out which dtypes there are)
        return
    profiles = [default_profile(find(device)) for device in named]
    able = {
        dtype: [device for device, profile in zip(named, profiles, strict=True) if not profile.lacks(dtype)]
        for dtype in DTYPES
    }
    usable = able[options.dtype]
    if not one or _suits_batch(context, profiles[0]):
        context.whole, context.at_once = _room(usable, options)
    _passes(context, able | {options.dtype: usable or named})
    if not one:
        run.reason = _counts(context) if usable else host.HostFit.reason
    if run.plan is None and not isinstance(context.kernel, Precomputed):
        with Stream(named[0], options.memory_limit) as stream:
            run.plan = prepare.planned(stream.profile, X, context.kernel, options)


def _passes(context: FitContext, devices: Devices) -> None:
    """Solve what has no final result, in the dtype asked for, then in float64 where a device has it."""
    sizes = [len(one.rows) for one in context.subproblems]
    for dtype in DTYPES[DTYPES.index(context.options.dtype) :]:
        able, todo = devices[dtype], [place for place in range(len(sizes)) if place not in context.ended]
        if not todo or not able:
            return
        small = [place for place in todo if sizes[place] <= context.whole]
        large = [place for place in todo if sizes[place] > context.whole]
        context.few = len(small) <= host.SEVERAL
        try:
            if small and context.left() > 0:
                pieces = _pieces(sizes, small, len(able), context.at_once, context.checkpoint is not None)
                _deal(context, able, pieces, partial(side_by_side.solve, context, dtype))
        except (MemoryLimitError, BufferSizeError):  # one after another they take less
            context.forget(place for place, size in enumerate(sizes) if size <= context.whole)
            context.whole = 0
            _passes(context, devices)
            return
        if large:
            pieces = [[place] for place in large]
            if not context.shards:
                pieces = _together(sizes, large, context.X.shape[0], len(able))
            _deal(context, able, pieces, partial(_one_by_one, context, dtype))


def _deal(
    context: FitContext,
    devices: Sequence[Any],
    pieces: Iterable[list[int]],
    work: Callable[[Worker, Iterator[list[int]]], Generator[None]],
) -> None:
    """Have the devices do ``work`` on pieces, lists of places; the first one shows its progress."""
    run = context.run
    workers = [Worker(context.options.but(device=one), plan=run.plan) for one in devices]
    workers[0].progress = run.progress
    try:
        for _ in dealt(workers, pieces, work):
            pass
    finally:
        run.add(workers)


def _counts(context: FitContext) -> str:
    """Return in words how many subproblems were solved which way."""
    sizes, recalled = [len(one.rows) for one in context.subproblems], len(context.recalled)
    large = sum(sizes[place] > context.whole for place in context.results.keys() - context.recalled)
    words = f"{len(sizes) - large - recalled} problems of up to {context.whole} rows solved whole"
    words += f", {large} by decomposition"
    return words + (f", {recalled} solved by the fit before, as its checkpoint says" if recalled else "")


def _results(context: FitContext) -> list[Result]:
    """Return the result of each subproblem, in order; of one that was not begun, where it would begin."""
    results, dtype, nothing = context.results, context.options.dtype, (np.inf, np.nan, np.inf, 0.0, 0)
    if missing := [place for place in range(len(context.subproblems)) if place not in results]:
        device = " and ".join(dict.fromkeys(str(find(one)) for one in listed(context.options.device)))
        for one, place in ((context.subproblems[place], place) for place in missing):
            rho = np.zeros((one.problem.problems, one.problem.groups))
            found = checkpoint.result(one.beginning, rho, Status.MAX_TIME, dtype, device, nothing)
            results[place] = replace(found, working_set=0)
    return [results[place] for place in range(len(context.subproblems))]


def _suits_batch(context: FitContext, profile: Profile) -> bool:
    """Return whether a single subproblem is best taken whole, which takes a tenth of the launches.

    That is so for few rows, on a device that has double precision, with nothing asked that a batch does not do.
    """
    (one,), options = context.subproblems, context.options
    if one.problem.constraint is Constraint.COUPLED or profile.wide != "double" or len(one.rows) > profile.alone:
        return False
    auto = options.working_set_size == options.layout == "auto"
    values = np.dtype(options.dtype).itemsize * len(one.rows) ** 2  # bytes of all of K
    kept = options.cache_size == "auto" or 1e6 * float(options.cache_size) >= values
    return auto and kept and options.gap_tol is None and options.checkpoint is None


def _room(devices: Sequence[Any], options: Options) -> tuple[int, int]:
    """Return the most rows of a subproblem that each device takes whole, and how many of these keep each at work.

    Both are 0 for no device.
    """
    most, counts = [], [0]
    for device in devices:
        with Stream(device, options.memory_limit) as stream:
            most.append(batch.largest(stream))
            counts.append(batch.at_once(stream))
    return min(most, default=0), max(counts)


def _together(sizes: Sequence[int], large: list[int], n: int, devices: int) -> list[list[int]]:
    """Return the places ``large`` in pieces, the largest first.

    Those of all n rows are a piece for each device, each other one is a piece.
    """
    whole = [place for place in large if sizes[place] == n]
    parts = [part.tolist() for part in np.array_split(whole, min(devices, len(whole)))] if whole else []
    return [*parts, *([place] for place in sorted(large, key=lambda place: -sizes[place]) if sizes[place] < n)]


def _pieces(sizes: Sequence[int], todo: list[int], devices: int, at_once: int, kept: bool = False) -> list[list[int]]:
    """Return the places ``todo`` in pieces for a queue, the largest first.

    Each device gets some, so that they end at about the same time, of ``at_once`` places where there are enough.
    kept: pieces are as small as keeps a device at work, since a checkpoint has the results of a piece at its end.
    """
    share = -(-len(todo) // devices)
    size = share if devices == 1 else max(-(-len(todo) // (PIECES * devices)), min(at_once, share))
    pieces, rows = list[list[int]](), 0
    for place in sorted(todo, key=lambda place: -sizes[place]):
        enough = kept and pieces and len(pieces[-1]) >= at_once and rows >= BATCHES * batch.ROWS
        if not pieces or len(pieces[-1]) == size or enough:
            pieces.append([])
            rows = 0
        pieces[-1].append(place)
        rows += sizes[place]
    return pieces


def _one_by_one(context: FitContext, dtype: str, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Solve large subproblems on one device, or over shards, one after another, those of a piece over the same rows."""
    with _shared(context, worker) as held:
        for places in pieces:
            if len(context.subproblems) > 1 and context.left() <= 0:
                break
            some, rows = context.subproblems[places[0]].rows, context.X
            if held is not None and len(some) > host.MOST:  # (the host may take fewer)
                rows = held[some] if len(some) < len(held) else held
            elif len(some) < context.X.shape[0] and not context.shards:
                rows = context.rows(some)
            _over_the_same_rows(context, dtype, worker, places, rows)
            yield


@contextmanager
def _shared(context: FitContext, worker: Worker) -> Iterator[DeviceRows | None]:
    """Yield X on a device with memory of its own, where large subproblems have more rows together; else None.

    Subproblems are laid out from there: shared rows go over the bus once, and the host copies none.
    """
    options, X, kernel = worker.options, context.X, context.kernel
    sizes = [len(one.rows) for place, one in enumerate(context.subproblems) if place not in context.recalled]
    large = [rows for rows in sizes if rows > max(context.whole, host.MOST)]
    if context.shards or isinstance(kernel, Precomputed) or sum(large) <= X.shape[0]:
        yield None
        return
    with Stream(options.device, options.memory_limit) as stream:
        plan = None if stream.unified else prepare.planned(stream.profile, X, kernel, options)
        held = plan and prepare.on_device(stream, X, plan)
        yield held if isinstance(held, DeviceRows) else None


def _over_the_same_rows(context: FitContext, dtype: str, worker: Worker, places: list[int], rows: Any) -> None:
    """Solve large subproblems, one after another, over ``rows``, with one row cache."""
    began, whole = perf_counter(), rows.shape[0] == context.X.shape[0]
    with _ready(context, dtype, worker, rows, whole) as ready:
        worker.lap("layout", began)
        for place in places:
            one, before = context.subproblems[place], context.results.get(place)
            again = one.begun(before.b) if before else one
            again = again.among(rows.shape[0]) if context.shards else again
            asked = {"start": again.start, "progress": worker.progress, **context.asked(place)}
            found = ready.settle(again.problem, **asked)
            if found is None:
                continue
            worker.took(found.seconds)
            if context.shards:
                found = replace(found, b=found.b[:, one.rows], f=found.f[:, one.rows])
            precision = ready.precision if found.dtype == "float32" else found.dtype
            found = replace(found.after(before), precision=precision, device=ready.device, layout=ready.describe())
            context.found(place, found, ready.last)
        worker.reason, worker.peak = ready.reason, max(worker.peak, ready.peak())
        if whole:
            worker.plan = worker.plan or ready.plan


@contextmanager
def _ready(
    context: FitContext, dtype: str, worker: Worker, rows: Any, whole: bool
) -> Iterator[PreparedFit | host.HostFit | ShardedFit]:
    """Lay out rows for solves over them: on a device, on the host where the device does not have the dtype, or in
    shards. whole: whether they are all rows of the fit."""
    kernel, options = context.kernel, worker.options
    if context.shards:
        with sharded.in_shards(rows, kernel, options, dtype) as ready:
            yield ready
        return
    with Stream(options.device, options.memory_limit) as stream:
        if stream.profile.lacks(dtype):
            yield host.HostFit(stream, rows, kernel, options)
        else:
            yield PreparedFit(stream, rows, kernel, options, dtype, worker.plan if whole else None)
