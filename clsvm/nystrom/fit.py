"""One fit of a machine on centres: rows and centres on a device, the preconditioner on the host, Newton's method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.errors import rows_of
from clsvm.gram import layouts
from clsvm.gram.cross import CENTERS, Cross
from clsvm.gram.layouts.record import Plan
from clsvm.gram.matrix import kernel_matrix
from clsvm.gram.precision import measures, outside, refuse
from clsvm.kernels import Kernel
from clsvm.kernels.evaluation import Extent
from clsvm.nystrom import newton
from clsvm.nystrom.centers import Centers
from clsvm.nystrom.places import Place, Spread, opened
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import Rows, Side, Task
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.report import NystromReport, Progress, Status
from clsvm.report.display import Display

Vector = NDArray[np.float64]
COARSE = 1e7  # a condition of K among the centres beyond which float32 is too coarse: T^-1 enlarges its errors
# Of K's diagonal, the jitter where nothing is finer than float32: at most the first, and the second over the penalty.
# T^-1 enlarges the rounding of K(X, C); what that does to the Hessian, its square over the jitter, is then small beside
# the penalty.
SINGLE, SQUARES = 1e-6, 1e-12


@dataclass(frozen=True)
class Options:
    """What a fit asks, by the parameters' names."""

    tol: float
    max_iter: int
    dtype: str
    device: Any
    memory_limit: int | str | None
    layout: str
    verbose: Any
    callback: newton.Callback | None


@dataclass(frozen=True)
class Trained:
    """Coefficients (k, m), the report, and what a model of it needs to know."""

    alpha: Vector
    report: NystromReport
    plan: Plan


@dataclass(frozen=True)
class Posed:
    """A kernel function on centres: the preconditioner, the rows' layout, and the dtypes to be tried in turn, the last
    of which is the finest that the device has."""

    kernel: Kernel
    centers: Centers
    preconditioner: Preconditioner
    plan: Plan
    dtypes: tuple[str, ...]
    finest: str
    device: str


def pose(X: Data, kernel: Kernel, centers: Centers, options: Options, penalty: float) -> Posed:
    """What is the same for all tasks over the rows of X (n, d) with these centres and this penalty or more. float64 is
    first where float32 is too coarse: where K among the centres is ill-conditioned, or inner values of K leave its
    range. Raises ValueError where the kernel function is no kernel for these centres, or float64 does not serve."""
    with Stream(devices.first(options.device), options.memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
    there = [devices.find(one) for one in devices.listed(options.device)]
    finest = min(devices.default_profile(info).finest for info in there)
    device = " and ".join(dict.fromkeys(map(str, there)))
    return posed(kernel, centers, options, penalty, Found(plan, finest, device), measures(kernel, X, plan).extent)


class Found(NamedTuple):
    """What the devices say: the rows' layout, the finest dtype that all of them have, their names."""

    plan: Plan
    finest: str
    device: str


def posed(kernel: Kernel, centers: Centers, options: Options, penalty: float, found: Found, extent: Extent) -> Posed:
    """The same where the rows, of this extent, are elsewhere; the preconditioner is made here."""
    first, limit = devices.first(options.device), options.memory_limit
    with rows_of(CENTERS):
        K = kernel_matrix(centers.rows, kernel=kernel, dtype="float64", device=first, memory_limit=limit)
    if not np.isfinite(K).all():
        raise ValueError(f"{kernel!r} is not finite for some pairs of centers (center_selection)")
    plan, finest, device = found
    least = min(SINGLE, SQUARES / penalty) if finest == "float32" else 0.0
    preconditioner = Preconditioner(K, least, options.device, limit)
    dtypes, d = list(dict.fromkeys((options.dtype, finest))), centers.rows.shape[1]
    given = kernel, extent, measures(kernel, centers.rows, plan).extent
    if (preconditioner.condition > COARSE or outside(*given, dtypes[0], d)) and finest in dtypes:
        dtypes = [finest]
    refuse(*given, d, dtype=dtypes[0])
    return Posed(kernel, centers, preconditioner, plan, tuple(dtypes), finest, device)


class Drawn(Protocol):
    """What drawing the sampled rows asks of K(X, C): n, m, k, the cost of a value, some rows, words."""

    n: int
    m: int
    k: int
    cost: float

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]: ...

    def describe(self) -> str: ...


class Ready:
    """Rows and centres on a device in one dtype, for any number of tasks of ``k`` outputs: :meth:`draw`, then
    :meth:`solve`.

    sample (s,): the rows of which the preconditioner is made; None: of centres that are no rows. coarse: whether the
    device has a finer dtype. Raises ValueError where memory_limit is too small.
    """

    cross: Drawn
    _finest: Cross | None

    def __init__(self, stream: Stream, X: Data, posed: Posed, dtype: str, k: int) -> None:
        self._posed, self.sample, self._streams = posed, posed.centers.places, [stream]
        self._given = stream, X, posed.centers.rows, posed.kernel, posed.plan
        self.cross = self._products = Cross(*self._given, dtype, k)
        self.coarse, self._finest = dtype != posed.finest, None

    @property
    def peak(self) -> int:
        """The most bytes that were held on a device."""
        return max(stream.peak for stream in self._streams)

    @property
    def _left(self) -> int | str | None:
        """What of the memory limit is left for the preconditioner."""
        return min(stream.limit - stream.held for stream in self._streams)

    @property
    def held(self) -> int:
        """What is held now where factors are made, as long as there are rows."""
        return max(stream.held for stream in self._streams)

    def _finer(self) -> Cross:
        """Products in the finest dtype, made once."""
        if self._finest is None:
            self._finest = Cross(*self._given, self._posed.finest, self.cross.k, keep=False)
        return self._finest

    def draw(
        self, random: np.random.RandomState, penalty: float, tol: float, quadratic: bool = True, tasks: int = 1
    ) -> None:
        """Draw the rows of which the preconditioner is made, for so many tasks with this penalty or larger ones."""
        cross, values, self.sample = self.cross, None, self._posed.centers.places
        s = sampled(cross.n, self._posed.preconditioner.rank, cross.k, cross.cost, tol, quadratic, tasks)
        if s > cross.m:
            self.sample = np.sort(random.choice(cross.n, s, replace=False)) if s < cross.n else np.arange(cross.n)
            values = cross.values(self.sample)
        self._posed.preconditioner.sample(values, penalty)
        self._posed.preconditioner.memory_limit = self._left

    def solve(
        self,
        task: Task,
        start: Vector | None,
        tol: float,
        max_iter: int,
        progress: Progress | None = None,
        callback: newton.Callback | None = None,
    ) -> newton.Found:
        """As :func:`clsvm.nystrom.newton.solve`."""
        return newton.solve(self._side(task), self._posed.preconditioner, start, tol, max_iter, progress, callback)

    def _side(self, task: Task) -> Side:
        return Rows(self._products, task, self.sample, exact=self._finer if self.coarse else None)

    def decision_values(self, task: Task, found: newton.Found) -> Vector:
        """f (k, n) of every row, by products as the solve's gradients had them."""
        cross, units = self._finest if found.exact and self._finest else self._products, task.units[:, None]
        return cross.forward(found.alpha / units) * units + task.offset[:, None]


class ReadyInPlaces(Ready):
    """The same of rows on several devices."""

    cross: Spread

    def __init__(self, places: Sequence[Place], X: Data, posed: Posed, dtype: str, k: int) -> None:
        self._posed, self.sample, self._streams = posed, posed.centers.places, [place.stream for place in places]
        given = X, posed.centers.rows, posed.kernel, posed.plan
        self.cross, self.coarse = Spread(places, *given, dtype, k, posed.finest), dtype != posed.finest

    def _side(self, task: Task) -> Side:
        return self.cross.side(task, self.sample)


@contextmanager
def ready(options: Options, X: Data, posed: Posed, dtype: str, k: int) -> Iterator[Ready]:
    """Rows and centres on the device, or on several."""
    if isinstance(options.device, list | tuple):
        with opened(options.device, options.memory_limit) as places:
            yield ReadyInPlaces(places, X, posed, dtype, k)
    else:
        with Stream(options.device, options.memory_limit) as stream:
            yield Ready(stream, X, posed, dtype, k)


def train(
    X: Data,
    task: Task,
    kernel: Kernel,
    centers: Centers,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    since: float,
) -> Trained:
    """Fit ``task`` over the rows of X (n, d), dense or CSR, from coefficients ``start`` (k, m) where they are given.
    random: what draws the sampled rows. since: perf_counter() at which the fit began.

    float64 is taken where float32 is too coarse: where K among the centres is ill-conditioned, or coefficients turn out
    so large that rounding of K shows. Raises ValueError where memory is too small or the kernel function is no kernel
    for these centres.
    """
    clock = Clock(since)
    clock.lap("check")
    posed = pose(X, kernel, centers, options, task.penalty)
    clock.lap("preconditioner")
    return solved(
        posed, task, options, start, random, clock, lambda dtype: ready(options, X, posed, dtype, len(task.y))
    )


def solved(
    posed: Posed,
    task: Task,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    clock: Clock,
    opened: Callable[[str], AbstractContextManager[Ready]],
) -> Trained:
    """The steps of :func:`train` from there on. opened: has the rows ready in a dtype."""
    found, peak, held, centers = None, 0, 0, posed.centers
    for dtype in posed.dtypes:
        with opened(dtype) as made:
            clock.lap("layout")
            made.draw(random, task.penalty, options.tol, task.loss.quadratic)
            clock.lap("preconditioner")
            most = options.max_iter - (found.steps if found else 0)
            with Display(options.verbose, options.tol, violation="residual") as progress:
                now = made.solve(task, start, options.tol, most, progress, _going_on(options.callback, found))
            clock.lap("solve", now.seconds)
            found, start, peak, held = now.after(found), now.alpha, max(peak, made.peak), max(held, made.held)
        if found.status is not Status.STALLED:
            break
    assert found is not None
    factors = posed.preconditioner.plan
    report = NystromReport(
        objective=found.objective,
        residual=found.residual,
        bound=found.bound,
        status=found.status.value,
        converged=found.status.converged,
        steps=found.steps,
        newton_steps=found.newton_steps,
        passes=found.passes,
        centers=centers.words,
        sample=posed.preconditioner.m if made.sample is None else len(made.sample),
        condition=posed.preconditioner.condition,
        jitter=posed.preconditioner.jitter,
        rank=posed.preconditioner.rank,
        bytes_held=max(peak, held + factors.nbytes),
        seconds=clock.seconds(),
        device=posed.device,
        layout=made.cross.describe(),
        factors=str(factors),
        dtype=posed.finest if found.exact else dtype,
        trace=tuple(found.trace),
    )
    return Trained(found.alpha, report, posed.plan)


def _going_on(callback: newton.Callback | None, before: newton.Found | None) -> newton.Callback | None:
    """A callback whose steps and seconds go on from those of the solve before."""
    if callback is None or before is None:
        return callback
    last = before.trace[-1]
    return lambda step, coefficients, seconds: callback(step + before.steps, coefficients, seconds + last.seconds)


class Clock:
    """Seconds by part."""

    def __init__(self, since: float) -> None:
        self._since = self._last = since
        self._spent: dict[str, float] = {}

    def lap(self, part: str, of_it: Mapping[str, float] = MappingProxyType({})) -> None:
        """Count the time since the last one as ``part``, but for ``of_it``."""
        now = perf_counter()
        for name, seconds in {part: now - self._last - sum(of_it.values()), **of_it}.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        self._last = now

    def seconds(self) -> dict[str, float]:
        total = perf_counter() - self._since
        return {**self._spent, "other": total - sum(self._spent.values()), "total": total}


def interrupted(status: str) -> bool:
    """Whether Ctrl-C ended a fit."""
    return status == Status.INTERRUPTED.value
