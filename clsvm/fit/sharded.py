"""One problem over rows in several places: laid out there in shards, solved, certified, reported.

The places are devices of this machine (:class:`OnDevices`), or whatever else has rows (:class:`Elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from clsvm import solvers
from clsvm.arrays import Data
from clsvm.fit import prepare
from clsvm.fit.sizes import choose
from clsvm.fit.trained import At, Trained, reported
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel, Precomputed
from clsvm.kernels.evaluation import Extent
from clsvm.nystrom.places import Place, opened
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.report import Status
from clsvm.report.display import Display
from clsvm.solvers import certificate
from clsvm.solvers.shard import Part, Shard, row_bytes, travelled
from clsvm.solvers.sharded import Lost, Sharded, Shards
from clsvm.solvers.working_set import WorkingSet

Vector = NDArray[np.float64]
PROBE, WORKING = 8192, 256  # rows, and working rows, that say how fast a device is
ALIKE = 1.3  # times as fast: devices whose speeds are nearer than that count as the same


class Facts(NamedTuple):
    """What a shard says of itself. sizes, extent: of its rows (prepare.row_sizes); W, cache_bytes, reason: of
    sizes.choose; row: bytes of one; layout: words."""

    sizes: Vector
    extent: Extent
    W: int
    cache_bytes: int
    reason: str
    row: int
    layout: str


class Laid(Shards, Protocol):
    """Rows laid out for one dtype. plan: of all; finest: the finest dtype that every place has; device: words."""

    plan: Plan
    finest: str
    device: str


class Elsewhere(Protocol):
    """Rows (n, d) that are not here. order (n,): the caller's row at each place of the shards, one after another."""

    shape: tuple[int, int]
    order: NDArray[np.intp]

    def laid(self, kernel: Kernel, options: Options, dtype: str) -> AbstractContextManager[Laid]:
        """Shards of the rows, in that dtype."""


def elsewhere(X: Any) -> TypeGuard[Elsewhere]:
    """Whether rows are (isinstance takes longer to say so than some parts of a small fit)."""
    return hasattr(X, "laid")


class OneShard(Shard):
    """A shard that says what a fit needs to know of it."""

    def facts(self, working_set: int | str, cache: float | str, n: int) -> Facts:
        """For a problem of n rows in all."""
        found = prepare.row_sizes(self.stream, self.plan, self.X, self.gram)
        W, cache_bytes, reason = choose(self.stream, self.gram, working_set, cache, n)
        return Facts(found.sizes, found.extent, W, cache_bytes, reason, row_bytes(self.X), self.gram.rows.describe())


def train(
    X: Any,
    problem: Problem,
    kernel: Kernel | Precomputed,
    options: Options,
    start: Vector | None,
    since: float,
    save: Callable[[Vector], None] | None = None,
) -> Trained:
    """train.train of rows that are elsewhere, or for several devices of this machine. Raises ValueError for kernel
    values, and for problems that are coupled."""
    if isinstance(kernel, Precomputed):
        raise ValueError(
            "kernel='precomputed' and functions of Python are for one device: rows over several make their own values"
        )
    if problem.constraint is Constraint.COUPLED:
        raise ValueError("multi_class='crammer_singer' is for one device, got rows over several")
    home = X if elsewhere(X) else OnDevices(X, devices.listed(options.device))
    b = None if start is None or not start.any() else problem.feasible(start)[:, home.order]
    place = np.argsort(home.order)
    there = _ordered(problem, home.order)
    trained: Trained | None = None
    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        began = perf_counter()
        with (
            Stream(devices.first(options.device), options.memory_limit) as stream,
            Display(options.verbose, options.tol, options.gap_tol) as progress,
            home.laid(kernel, options, dtype) as laid,
        ):
            ready = Ready(stream, laid, home.shape, kernel, options, dtype)
            if not ready.last and ready.coarse(there):
                continue
            seconds = {"check": began - since, "layout": perf_counter() - began}
            solution = ready.solve(
                there,
                start=b,
                max_time=None if options.max_time is None else options.max_time - (perf_counter() - since),
                progress=progress,
                save=save and (lambda b: save(b[:, place])),
                save_every=options.checkpoint_every,
            )
            solution = replace(solution, b=solution.b[:, place], f=solution.f[:, place])
            report = reported(solution, ready.at(), seconds | solution.seconds, perf_counter() - since)
            trained = Trained(solution, report, laid.plan)
            if ready.last or solution.status is not Status.STALLED:
                break
    assert trained
    return trained


def _ordered(problem: Problem, order: NDArray[np.intp]) -> Problem:
    """A problem over its rows in another order."""
    start = None if problem.start is None else problem.start[:, order]
    return replace(problem, lo=problem.lo[:, order], hi=problem.hi[:, order], q=problem.q[:, order], start=start)


class Ready:
    """Rows in shards, ready for a solve, with a device for the working set; shape (n, d) of all."""

    def __init__(
        self, stream: Stream, laid: Laid, shape: tuple[int, int], kernel: Kernel, options: Options, dtype: str
    ) -> None:
        self._stream, self._laid, self._kernel, self._options, self._dtype = stream, laid, kernel, options, dtype
        asked = options.working_set_size, options.cache_size, shape[0]
        found: list[Any] = [Lost()]
        while any(isinstance(one, Lost) for one in found):  # (one that was lost is there again)
            found = laid.ask("facts", [asked] * len(laid.sizes))
        self._facts: list[Facts] = found
        sizes = np.concatenate([one.sizes for one in self._facts])
        extent = reduce(Extent.joined, (one.extent for one in self._facts))
        self._scales = prepare.scales(kernel, sizes, extent, shape[1], dtype, options.dtype)
        self.last = dtype == laid.finest

    def coarse(self, problem: Problem) -> bool:
        """Whether the dtype is too coarse for the tolerance."""
        eps = float(np.finfo(self._dtype).eps)
        return certificate.hopeless(eps * self._scales.own, problem, self._options.tol)

    def solve(self, problem: Problem, **settings: Any) -> solvers.Solution:
        """Solve ``problem``; settings: those of solvers.Settings that are of one solve."""
        one, asked, plan = self._facts[0], self._options, travelled(self._laid.plan)
        given = self._stream, self._kernel, plan, self._dtype, problem.constraint, problem.kink
        working_set = WorkingSet(*given, min(one.W, problem.n), max(fact.row for fact in self._facts))
        wanted = solvers.Settings(
            tol=asked.tol,
            gap_tol=asked.gap_tol,
            max_iter=asked.max_iter,
            working_set=working_set.W,
            cache_bytes=one.cache_bytes,
            kernel_scale=self._scales.own,
            exact=None,
            sizes=self._scales.sizes,
            **settings,
        )
        solution = Sharded(self._laid, working_set, problem, wanted).run()
        rounding = float(np.finfo(np.float64).eps) * self._scales.double
        return prepare.sure(solution, rounding, asked.tol, asked.gap_tol)

    def at(self) -> At:
        """Where it was solved."""
        peaks = [one for one in self._laid.ask("peak", [()] * len(self._facts)) if not isinstance(one, Lost)]
        few, many = min(self._laid.sizes), max(self._laid.sizes)
        layout = f"{len(self._facts)} shards of {few} to {many} rows: {self._facts[0].layout}"
        where = max(self._stream.peak, *peaks), self._laid.device, layout, self._facts[0].reason, self._laid.plan
        return At(*where, "float32: rows are in shards" * (self._options.precision == "fast"))


class OnDevices:
    """Rows X (n, d) for some devices of this machine, in shards by the devices' speeds."""

    def __init__(self, X: Data, devices: Sequence[Any]) -> None:
        self._X, self._devices, self.shape, self.order = X, devices, X.shape, np.arange(X.shape[0])

    @contextmanager
    def laid(self, kernel: Kernel, options: Options, dtype: str) -> Iterator[Laid]:
        """See :class:`Elsewhere`."""
        with opened(self._devices, options.memory_limit) as places:
            plan = prepare.planned(places[0].stream.profile, self._X, kernel, options)
            yield AtPlaces(places, self._X, kernel, plan, dtype)


class AtPlaces:
    """:class:`Laid` of rows X (n, d) at places of this machine."""

    def __init__(self, places: Sequence[Place], X: Data, kernel: Kernel, plan: Plan, dtype: str) -> None:
        self.plan, self._places = plan, places
        self.finest = min(place.stream.profile.finest for place in places)
        self.device = " and ".join(dict.fromkeys(str(place.stream.info) for place in places))
        ends = _ends(X.shape[0], _speeds(places, X, kernel, plan, dtype))
        parts = [X[first:end] for first, end in pairwise([0, *ends])]
        self.sizes: Sequence[int] = [part.shape[0] for part in parts]
        made = [
            place.ask(OneShard, place.stream, part, kernel, plan, dtype)
            for place, part in zip(places, parts, strict=True)
        ]
        self._shards: list[OneShard] = [one.result() for one in made]

    def begin(self, part: Callable[[int], Part]) -> None:
        """Nothing is lost on this machine."""
        self.ask("pose", [(part(i),) for i in range(len(self.sizes))])

    def ask(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """See :class:`clsvm.solvers.sharded.Shards`."""
        asked = [
            None if one is None else place.ask(getattr(shard, name), *one)
            for place, shard, one in zip(self._places, self._shards, given, strict=True)
        ]
        return [None if one is None else one.result() for one in asked]


def _speeds(places: Sequence[Place], X: Data, kernel: Kernel, plan: Plan, dtype: str) -> Vector:
    """How fast each place is by itself; devices of one name are, and few rows are not worth a look."""
    if len({str(place.stream.info) for place in places}) == 1 or X.shape[0] < PROBE:
        return np.ones(len(places))
    speeds = np.array([place.ask(_speed, place.stream, X, kernel, plan, dtype).result() for place in places])
    return np.ones(len(places)) if speeds.max() <= ALIKE * speeds.min() else speeds


def _speed(stream: Stream, X: Data, kernel: Kernel, plan: Plan, dtype: str) -> float:
    """Values of K a second that a device makes, in a second pass over the first rows."""
    some = X[:PROBE]
    with stream.scratch():
        gram = Gram(stream, layouts.build(stream, some, plan, dtype), kernel)
        m = min(WORKING, some.shape[0])
        panel, count = gram.panel(m), stream.upload(np.array([m], np.int32))
        gram.gather(panel, stream.upload(gram.rows.position[:m].copy()), count)
        c, D = stream.zeros(8 * gram.rows.n_pad), stream.zeros(8 * panel.capacity)
        took = 0.0
        for _ in range(2):
            stream.finish()
            began = perf_counter()
            gram.accumulate(panel, count, None, Update(1, gram.rows.n_pad, c, D, panel.capacity))
            stream.finish()
            took = perf_counter() - began
    return m * some.shape[0] / took


def _ends(n: int, speeds: Vector) -> list[int]:
    """Where the shards of n rows end, by the devices' speeds; at least a row each. Raises ValueError for fewer rows."""
    if n < len(speeds):
        raise ValueError(f"{len(speeds)} devices take at least a row each, got {n} rows")
    ends = np.round(np.cumsum(speeds) / speeds.sum() * n).astype(int)
    least = np.arange(1, len(speeds) + 1)
    ends = np.maximum.accumulate(np.maximum(ends, least) - least) + least  # (each beyond the one before it)
    return [int(end) for end in np.minimum(ends, n - least[::-1] + 1)]
