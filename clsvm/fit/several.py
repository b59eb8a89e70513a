"""Several problems over subsets of the rows of one data set: one-vs-one pairs and the like, trained together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.fit import checkpoint, host, prepare, sharded, side_by_side, spread
from clsvm.fit.checkpoint import Checkpoint, Ended
from clsvm.fit.record import Given, Record, Worker, as_outcome
from clsvm.fit.train import train_each
from clsvm.fit.trained import Several, Trained
from clsvm.gram.layouts.picked import Picked
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import default_profile, find, listed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.report import Status
from clsvm.solvers import batch
from clsvm.solvers.member import Member
from clsvm.threads import dealt

PIECES = 4  # of the work for each of several devices: enough to end at about the same time
BATCHES = 16  # in a part of the work that has a checkpoint: each part fills room for tiles with zeros, which takes time


def train(X: Any, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float) -> Several:
    """Solve every member over the rows of X (n, d), dense or CSR, or over X = K (n, n) where the kernel is precomputed:
    small ones side by side on one layout of X (solvers/batch.py), and on the host what that leaves (host.py); large
    ones one after another, those that are of all rows with one row cache.

    since: perf_counter() at which the fit began. max_time is that of all together. Raises as train.train does. Several
    devices take members from a queue, some at a time; each lays out X once in each dtype. Of rows that are elsewhere,
    all shards take one member after another. What a checkpoint has solved for the same tolerances stands as it is.
    """
    if sharded.elsewhere(X):
        return spread.train(X, members, kernel, options, since)
    with checkpoint.opened(options, X, members, kernel) as kept:
        starts = kept.b if kept else [one.start for one in members]
        begun = [one.begun(b) for one, b in zip(members, starts, strict=True)]
        return _solved(X, begun, kernel, options, since, kept)


def _solved(
    X: Any,
    members: Sequence[Member],
    kernel: Kernel | Precomputed,
    options: Options,
    since: float,
    kept: Checkpoint | None,
) -> Several:
    """:func:`train` of rows that are here, from where the members begin and from what is solved already."""
    there, record, solved = listed(options.device), Record(), dict(kept.solved) if kept else {}
    found = record.recall(solved)
    record.lap("check", since)

    def left() -> float:
        return np.inf if options.max_time is None else options.max_time - (perf_counter() - since)

    given = Given(X, members, kernel, found, left, kept)

    def deal(devices: Sequence[Any], pieces: Iterable[list[int]], work: Callable[..., Generator[None]]) -> None:
        """Have the devices do ``work`` on pieces, lists of members; the first one shows its progress."""
        verbose = [options.verbose] + [False] * len(devices)
        asked = [options.but(device=one, verbose=shown) for one, shown in zip(devices, verbose, strict=False)]
        workers = [Worker(one, record.beside()) for one in asked]
        try:
            for _ in dealt(workers, pieces, partial(work, given)):
                pass
        finally:
            record.add([worker.record for worker in workers])

    able = _able(there, options.dtype)
    record.most, at_once = _room(able, options)
    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = _small(members, record)
        finer = able if dtype == options.dtype or not todo else _able(there, dtype)
        if todo and finer and left() > 0:
            few, pieces = len(todo) <= host.SEVERAL, _pieces(members, todo, len(finer), at_once)
            if kept:
                pieces = [part for piece in pieces for part in _parts(members, piece, at_once)]
            try:
                deal(finer, pieces, partial(side_by_side.solve, dtype, few))
            except (MemoryLimitError, BufferSizeError):  # one after another they take less
                record.most, record.alone = 0, True
                found.clear()
                found.update(record.recall(solved))
                break
    able = able or there
    large = [place for place, one in enumerate(members) if len(one.rows) > record.most and place not in found]
    if large:
        deal(able, _together(members, large, X.shape[0], len(able)), _one_by_one)
    if record.plan is None and not isinstance(kernel, Precomputed):
        with Stream(there[0], options.memory_limit) as stream:
            record.plan = prepare.planned(stream.profile, X, kernel, options)
    b = [found[place].b if place in found else member.beginning for place, member in enumerate(members)]
    none = np.zeros(members[0].problem.groups)
    rho = np.stack([found[place].rho if place in found else none for place in range(len(members))])
    dual = np.array([found[place].dual if place in found else np.nan for place in range(len(members))])
    steps = np.array([found[place].steps if place in found else 0 for place in range(len(members))], np.int64)
    return Several(b, rho, dual, steps, record.report(found, len(members), options, since), record.plan)


def _together(members: Sequence[Member], large: list[int], n: int, devices: int) -> list[list[int]]:
    """The members ``large``: those of all n rows, in a part for each device, then each other one by itself, the largest
    first."""
    whole = [place for place in large if len(members[place].rows) == n]
    parts = [part.tolist() for part in np.array_split(whole, min(devices, len(whole)))] if whole else []
    if devices > 1:
        large.sort(key=lambda place: -len(members[place].rows))
    return [*parts, *([place] for place in large if place not in whole)]


def _pieces(members: Sequence[Member], todo: list[int], devices: int, at_once: int) -> list[list[int]]:
    """The members ``todo``, the largest first, in pieces for a queue: some for each device, so that they end at about
    the same time, but of ``at_once`` members or more where there are enough of these."""
    if devices == 1:
        return [todo]
    size = max(-(-len(todo) // (PIECES * devices)), min(at_once, -(-len(todo) // devices)))
    todo = sorted(todo, key=lambda place: -len(members[place].rows))
    return [todo[first : first + size] for first in range(0, len(todo), size)]


def _parts(members: Sequence[Member], piece: list[int], at_once: int) -> list[list[int]]:
    """A piece in parts that keep a device at work, the largest members first: a checkpoint has how the members of a
    part ended when all of them did."""
    parts: list[list[int]] = [[]]
    rows = 0
    for place in sorted(piece, key=lambda place: -len(members[place].rows)):
        if len(parts[-1]) >= at_once and rows >= BATCHES * batch.ROWS:
            parts.append([])
            rows = 0
        parts[-1].append(place)
        rows += len(members[place].rows)
    return parts


def _able(there: Sequence[Any], dtype: str) -> list[Any]:
    """The devices that have a dtype."""
    return [device for device in there if not default_profile(find(device)).lacks(dtype)]


def _room(devices: Sequence[Any], options: Options) -> tuple[int, int]:
    """The most rows of a member that each of the devices takes whole, and how many members keep each of them at work;
    (0, 0) for no device."""
    most, counts = [], [0]
    for device in devices:
        with Stream(device, options.memory_limit) as stream:
            most.append(batch.largest(stream))
            counts.append(batch.at_once(stream))
    return min(most, default=0), max(counts)


def _small(members: Sequence[Member], record: Record) -> list[int]:
    """The members that devices take whole and that are not done; float64 is for those that float32 left."""
    small = [place for place, member in enumerate(members) if len(member.rows) <= record.most]
    return [place for place in small if record.statuses.get(place, Status.STALLED) is Status.STALLED]


def _one_by_one(given: Given, worker: Worker, pieces: Iterator[list[int]]) -> Generator[None]:
    """Large members on one device, those of a piece over the same rows."""
    with _shared(given, worker) as picked:
        for places in pieces:
            if given.left() <= 0:
                break
            some, rows = given.members[places[0]].rows, given.X
            if picked is not None and len(some) > host.MOST:  # (the host may take fewer)
                rows = picked[some] if len(some) < len(picked) else picked
            elif len(some) < given.X.shape[0]:
                rows = given.rows(some)
            _over_the_same_rows(given, worker, places, rows)
            yield


@contextmanager
def _shared(given: Given, worker: Worker) -> Iterator[Picked | None]:
    """X on a device with memory of its own, where large members that are to be solved have more rows together; else
    None. They are laid out from there: rows that they share go over the bus once, and the host copies none of them."""
    (options, record), X, kernel = worker, given.X, given.kernel
    todo = [len(one.rows) for place, one in enumerate(given.members) if place not in given.found]
    large = [rows for rows in todo if rows > max(record.most, host.MOST)]
    if isinstance(kernel, Precomputed) or sum(large) <= X.shape[0]:
        yield None
        return
    with Stream(options.device, options.memory_limit) as stream:
        held = (
            X if stream.unified else prepare.on_device(stream, X, prepare.planned(stream.profile, X, kernel, options))
        )
        yield held if isinstance(held, Picked) else None


def _over_the_same_rows(given: Given, worker: Worker, places: list[int], rows: Any) -> None:
    """Large members on one device, one after another, and what there is of their rows."""
    (options, record), kept = worker, given.kept
    some = [given.members[place] for place in places]

    def ended(i: int, one: Trained) -> None:
        end = Ended(as_outcome(one.solution), one.solution.status, one.report.dtype, one.report.device)
        given.found[places[i]], record.statuses[places[i]] = end.outcome, end.status
        record.reports.append(one.report)
        record.devices.append(end.device)
        if kept:
            kept.ended(places[i], end)

    problems, starts = [one.problem for one in some], [None if one.start is None else one.start[None] for one in some]
    own = options.but(max_time=None if options.max_time is None else given.left())
    save = None if kept is None else lambda i, b: kept.save(places[i], b)
    train_each(rows, problems, given.kernel, own, starts, perf_counter(), save, ended)
