"""One fit of a Nyström model: rows and inducing points on devices, the preconditioner on the host, Newton's method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.distribute import DeviceThread, OnDevices, Parts, opened, owners, speeds
from clsvm.errors import rows_of
from clsvm.gram import layouts
from clsvm.gram.cross import CENTERS, kernel_matrix
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures, outside, refuse
from clsvm.kernels import Kernel
from clsvm.kernels.evaluation import Extent
from clsvm.nystrom import newton
from clsvm.nystrom.centers import Centers
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import InducingPoints, RowBlock, RowOperator, Task, blocks, within
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.report import NystromReport, Progress, Status
from clsvm.report.display import Display

Vector = NDArray[np.float64]
COARSE = 1e7  # condition of K(C, C) beyond which float32 is too coarse: T^-1 enlarges its errors
# Of K's diagonal, the jitter where nothing is finer than float32: at most the first, and the second over the penalty.
# T^-1 enlarges the rounding of K(X, C); what that does to the Hessian, its square over the jitter, is then small beside
# the penalty.
SINGLE, SQUARES = 1e-6, 1e-12


@dataclass(frozen=True)
class Options:
    """The parameters of a fit, by their names."""

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
class Formulation:
    """A kernel function on inducing points: the preconditioner, the rows' layout, and the dtypes to be tried in turn,
    the last of which is the finest that the device has."""

    kernel: Kernel
    centers: Centers
    preconditioner: Preconditioner
    plan: Plan
    dtypes: tuple[str, ...]
    finest: str
    device: str

    @property
    def points(self) -> InducingPoints:
        """Return the inducing points as blocks of rows need them."""
        return InducingPoints(self.centers.rows, self.kernel, self.plan, self.finest)


class Survey(NamedTuple):
    """What rows and devices say before a fit: the rows' layout, the finest dtype that all devices have, their names,
    and the rows' extent."""

    plan: Plan
    finest: str
    device: str
    extent: Extent


def survey(X: Data, kernel: Kernel, options: Options) -> Survey:
    """Survey rows X (n, d) of this process and the devices of the options."""
    with Stream(devices.first(options.device), options.memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
    there = [devices.find(one) for one in devices.listed(options.device)]
    finest = min(devices.default_profile(info).finest for info in there)
    device = " and ".join(dict.fromkeys(map(str, there)))
    return Survey(plan, finest, device, measures(kernel, X, plan).extent)


def formulate(kernel: Kernel, centers: Centers, options: Options, penalty: float, rows: Survey) -> Formulation:
    """Make what is the same for all tasks over these rows with these inducing points and this penalty or more.

    float64 is first where float32 is too coarse: where K among the inducing points is ill-conditioned, or inner values
    of K leave its range. Raises ValueError where the function is no kernel for these points, or float64 does not serve.
    """
    first, limit = devices.first(options.device), options.memory_limit
    with rows_of(CENTERS):
        K = kernel_matrix(centers.rows, kernel=kernel, dtype="float64", device=first, memory_limit=limit)
    if not np.isfinite(K).all():
        raise ValueError(f"{kernel!r} is not finite for some pairs of centers (center_selection)")
    plan, finest, device, extent = rows
    least = min(SINGLE, SQUARES / penalty) if finest == "float32" else 0.0
    preconditioner = Preconditioner(K, least, options.device, limit)
    dtypes, d = list(dict.fromkeys((options.dtype, finest))), centers.rows.shape[1]
    given = kernel, extent, measures(kernel, centers.rows, plan).extent
    if (preconditioner.condition > COARSE or outside(*given, dtypes[0], d)) and finest in dtypes:
        dtypes = [finest]
    refuse(*given, d, dtype=dtypes[0])
    return Formulation(kernel, centers, preconditioner, plan, tuple(dtypes), finest, device)


class PreparedRows(ABC):
    """Rows and inducing points laid out in one dtype, for any number of tasks of ``k`` outputs: :meth:`draw`, then
    :meth:`solve`.

    blocks: of the rows. cost: of a value of K in a pass. sample (s,): the rows of which the preconditioner is made;
    None: of inducing points that are no rows. coarse: whether the device has a finer dtype. Raises ValueError where
    memory_limit is too small.
    """

    blocks: Parts
    cost: float
    _operator: RowOperator  # of the last task

    def __init__(self, formulation: Formulation, dtype: str, k: int) -> None:
        self._formulation, self.k, self.sample = formulation, k, formulation.centers.places
        self.coarse = dtype != formulation.finest

    @abstractmethod
    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return K (s, m) of some rows, ascending, on the host."""

    @abstractmethod
    def describe(self) -> str:
        """Return where K is, and why."""

    @abstractmethod
    def memory(self) -> tuple[int, int | str | None]:
        """Return the bytes that are allocated now where factors are made, and the memory limit that is left there."""

    @abstractmethod
    def _posed(self, task: Task) -> Callable[[int], tuple[Any, ...]]:
        """Return what gives the arguments of :meth:`RowBlock.pose` for each block."""

    def draw(
        self, random: np.random.RandomState, penalty: float, tol: float, quadratic: bool = True, tasks: int = 1
    ) -> None:
        """Draw the rows of which the preconditioner is made, for so many tasks with this penalty or larger ones."""
        preconditioner, values, n = self._formulation.preconditioner, None, sum(self.blocks.sizes)
        self.sample = self._formulation.centers.places
        s = sampled(n, preconditioner.rank, self.k, self.cost, tol, quadratic, tasks)
        if s > preconditioner.m:
            self.sample = np.sort(random.choice(n, s, replace=False)) if s < n else np.arange(n)
            values = self.values(self.sample)
        preconditioner.sample(values, penalty)
        preconditioner.memory_limit = self.memory()[1]

    def solve(
        self,
        task: Task,
        start: Vector | None,
        tol: float,
        max_iter: int,
        progress: Progress | None = None,
        callback: newton.Callback | None = None,
    ) -> newton.Result:
        """Solve a task, as :func:`clsvm.nystrom.newton.solve`."""
        formulation, task = self._formulation, replace(task, largest=task.deviation)
        self._operator = RowOperator(self.blocks, task, formulation.preconditioner.m, self._posed(task))
        return newton.solve(self._operator, formulation.preconditioner, start, tol, max_iter, progress, callback)

    def decision_values(self, found: newton.Result) -> Vector:
        """Return f (k, n) of every row for the last task's result, by products as its gradients had them."""
        return self._operator.decision_values(found.alpha)


class RowsOnDevices(PreparedRows):
    """Rows X (n, d) of this process, whole on one device, or for a list of devices in blocks by their speeds.

    The blocks, and so the bits of all sums, follow from the number of rows alone.
    """

    def __init__(
        self, threads: Sequence[DeviceThread], X: Data, formulation: Formulation, dtype: str, k: int, listed: bool
    ) -> None:
        super().__init__(formulation, dtype, k)
        self._threads, self._listed = threads, listed
        self._slices = blocks(X.shape[0]) if listed else [slice(0, X.shape[0])]
        points = formulation.points

        def build(stream: Stream, i: int) -> RowBlock:
            return RowBlock.built(stream, X[self._slices[i]] if listed else X, points, dtype, k)

        self._owners = owners(len(self._slices), speeds(threads, X, points.rows, points.kernel, points.plan, dtype, k))
        self.blocks = self._on = OnDevices(threads, self._owners, build)
        self.cost = self._on.parts[0].cross.cost

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        found = self.blocks.ask("values", [(within(rows, some),) for some in self._slices])
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found))

    def describe(self) -> str:
        words = str(self._on.parts[0].cross.describe())
        if not self._listed:
            return words
        counts = [f"{self._owners.count(i)} on {one.stream.info.name}" for i, one in enumerate(self._threads)]
        return f"{len(self._slices)} parts, {', '.join(counts)}: {words}"

    def memory(self) -> tuple[int, int | str | None]:
        streams = [one.stream for one in self._threads]
        return max(stream.held for stream in streams), min(stream.limit - stream.held for stream in streams)

    def _posed(self, task: Task) -> Callable[[int], tuple[Any, ...]]:
        total = task.total
        return lambda i: (within(self.sample, self._slices[i]), total, task.among(self._slices[i]))


@contextmanager
def prepared(options: Options, X: Data, formulation: Formulation, dtype: str, k: int) -> Iterator[PreparedRows]:
    """Lay rows and inducing points out on the device, or on several."""
    listed = isinstance(options.device, list | tuple)
    with opened(options.device, options.memory_limit) as threads:
        yield RowsOnDevices(threads, X, formulation, dtype, k, listed)


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

    random: what draws the sampled rows. since: perf_counter() at which the fit began. float64 is taken where float32 is
    too coarse: where K(C, C) is ill-conditioned, or coefficients turn out so large that rounding of K shows. Raises
    ValueError where memory is too small or the kernel function is no kernel for these inducing points.
    """
    clock = Clock(since)
    clock.lap("check")
    formulation = formulate(kernel, centers, options, task.penalty, survey(X, kernel, options))
    clock.lap("preconditioner")

    def opened(dtype: str) -> AbstractContextManager[PreparedRows]:
        return prepared(options, X, formulation, dtype, len(task.y))

    return solved(formulation, task, options, start, random, clock, opened)


def solved(
    formulation: Formulation,
    task: Task,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    clock: Clock,
    opened: Callable[[str], AbstractContextManager[PreparedRows]],
) -> Trained:
    """Solve a formulation, in a finer dtype where a solve stalls. opened: lays the rows out in a dtype."""
    found, peak, held, preconditioner = None, 0, 0, formulation.preconditioner
    for dtype in formulation.dtypes:
        with opened(dtype) as made:
            clock.lap("layout")
            made.draw(random, task.penalty, options.tol, task.loss.quadratic)
            clock.lap("preconditioner")
            most = options.max_iter - (found.steps if found else 0)
            with Display(options.verbose, options.tol, violation="residual") as progress:
                now = made.solve(task, start, options.tol, most, progress, _going_on(options.callback, found))
            clock.lap("solve", now.seconds)
            found, start = now.after(found), now.alpha
            peak, held = max(peak, made.blocks.peak()), max(held, made.memory()[0])
        if found.status is not Status.STALLED:
            break
    assert found is not None
    factors = preconditioner.plan
    report = NystromReport(
        objective=found.objective,
        residual=found.residual,
        bound=found.bound,
        status=found.status.value,
        converged=found.status.converged,
        steps=found.steps,
        newton_steps=found.newton_steps,
        passes=found.passes,
        centers=formulation.centers.words,
        sample=preconditioner.m if made.sample is None else len(made.sample),
        condition=preconditioner.condition,
        jitter=preconditioner.jitter,
        rank=preconditioner.rank,
        bytes_held=max(peak, held + factors.nbytes),
        seconds=clock.seconds(),
        device=formulation.device,
        layout=made.describe(),
        factors=str(factors),
        dtype=formulation.finest if found.exact else dtype,
        trace=tuple(found.trace),
    )
    return Trained(found.alpha, report, formulation.plan)


def _going_on(callback: newton.Callback | None, before: newton.Result | None) -> newton.Callback | None:
    """Return a callback whose steps and seconds go on from those of the solve before."""
    if callback is None or before is None:
        return callback
    last = before.trace[-1]
    return lambda step, coefficients, seconds: callback(step + before.steps, coefficients, seconds + last.seconds)


class Clock:
    """The seconds of a fit by part."""

    def __init__(self, since: float) -> None:
        self._since = self._last = since
        self._spent: dict[str, float] = {}

    def lap(self, part: str, of_it: Mapping[str, float] = MappingProxyType({})) -> None:
        """Count the time since the last call as ``part``, but for ``of_it``."""
        now = perf_counter()
        for name, seconds in {part: now - self._last - sum(of_it.values()), **of_it}.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        self._last = now

    def seconds(self) -> dict[str, float]:
        total = perf_counter() - self._since
        return {**self._spent, "other": total - sum(self._spent.values()), "total": total}


def interrupted(status: str) -> bool:
    """Return whether Ctrl-C ended a fit."""
    return status == Status.INTERRUPTED.value
