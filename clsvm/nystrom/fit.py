"""One fit of a Nyström model: its inducing points, rows on devices, the preconditioner, and Newton's method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, solve_triangular
from sklearn.cluster import kmeans_plusplus

from clsvm.arrays import Data
from clsvm.distribute import OnDevices, Parts, opened, owners, speeds, split
from clsvm.errors import rows_of
from clsvm.gram import layouts
from clsvm.gram.cross import CENTERS, kernel_matrix, pass_seconds
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures, outside, refuse
from clsvm.kernels import Kernel
from clsvm.kernels.expression import Extent
from clsvm.nystrom.newton import Callback, Newton, Result
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import InducingPoints, RowBlock, RowOperator, Task, blocks
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.report import Display, NystromReport, Status

Vector = NDArray[np.float64]
COARSE = 1e7  # condition of K(C, C) beyond which float32 is too coarse: T^-1 enlarges its errors
# Of K's diagonal, the jitter where nothing is finer than float32: at most the first, and the second over the penalty.
# T^-1 enlarges the rounding of K(X, C); what that does to the Hessian, its square over the jitter, is then small beside
# the penalty.
SINGLE, SQUARES = 1e-6, 1e-12
# What the report takes over under the same names.
_OF_SOLVE = "objective", "residual", "bound", "steps", "newton_steps", "passes"
_OF_PRECONDITIONER = "condition", "jitter", "rank"


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
    callback: Callback | None


class Survey(NamedTuple):
    """What rows and devices say before a fit: the rows' layout, the finest dtype that all devices have, their names,
    and the rows' extent."""

    plan: Plan
    finest: str
    device: str
    extent: Extent


class Formulation(NamedTuple):
    """A kernel function on inducing points: the preconditioner, the survey of the rows, and the dtypes to be tried in
    turn."""

    kernel: Kernel
    centers: Centers
    preconditioner: Preconditioner
    rows: Survey
    dtypes: tuple[str, ...]


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
    least = min(SINGLE, SQUARES / penalty) if rows.finest == "float32" else 0.0
    preconditioner = Preconditioner(K, least, options.device, limit)
    dtypes, d = list(dict.fromkeys((options.dtype, rows.finest))), centers.rows.shape[1]
    given = kernel, rows.extent, measures(kernel, centers.rows, rows.plan).extent
    if (preconditioner.condition > COARSE or outside(*given, dtypes[0], d)) and rows.finest in dtypes:
        dtypes = [rows.finest]
    refuse(*given, d, dtype=dtypes[0])
    return Formulation(kernel, centers, preconditioner, rows, tuple(dtypes))


class Rows(ABC):
    """Rows X (n, d) of a fit, at one place or several: surveyed, then laid out in a dtype with inducing points, for any
    number of tasks of ``k`` outputs (:meth:`draw`, then :meth:`solve`).

    blocks: of the rows. cost: of a value of K in a pass. sample (s,): the rows of which the preconditioner is made;
    None: of inducing points that are no rows. coarse: whether the devices have a finer dtype. with_targets: whether the
    blocks know their targets by themselves.
    """

    blocks: Parts
    cost: float
    sample: NDArray[np.intp] | None
    with_targets = False
    _operator: RowOperator  # of the last task

    @abstractmethod
    def survey(self, kernel: Kernel, options: Options) -> Survey:
        """Survey the rows and the devices of the options."""

    @abstractmethod
    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return K (s, m) of some rows, ascending, on the host."""

    @abstractmethod
    def describe(self) -> str:
        """Return where K is, and why."""

    @abstractmethod
    def _opened(self, points: InducingPoints, options: Options) -> AbstractContextManager[Parts]:
        """Lay the rows out in blocks, and note their cost."""

    @contextmanager
    def laid(self, formulation: Formulation, options: Options, dtype: str, k: int) -> Iterator[None]:
        """Lay rows and inducing points out. Raises ValueError where memory_limit is too small."""
        survey = formulation.rows
        self._formulation, self.k, self.coarse = formulation, k, dtype != survey.finest
        points = InducingPoints(formulation.centers.rows, formulation.kernel, survey.plan, dtype, k, survey.finest)
        with self._opened(points, options) as self.blocks:
            yield

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
        preconditioner.memory_limit = self.blocks.memory()[1]

    def solve(self, task: Task, start: Vector | None, tol: float, max_iter: int, **asked: Any) -> Result:
        """Solve a task from coefficients ``start`` (k, m), or from 0; asked: more of :class:`Newton`'s parameters."""
        preconditioner, sizes = self._formulation.preconditioner, self.blocks.sizes
        task = replace(task, largest=task.deviation)
        samples: Any = [None] * len(sizes) if self.sample is None else split(self.sample, sizes)
        ends, total = np.cumsum(sizes), task.total

        def pose(i: int) -> tuple[Any, ...]:
            own = None if self.with_targets else task.among(slice(ends[i] - sizes[i], ends[i]))
            return samples[i], total, own

        self._operator = RowOperator(self.blocks, task, preconditioner.m, pose)
        return Newton(self._operator, preconditioner, tol, max_iter, **asked).run(start)

    def decision_values(self, found: Result) -> Vector:
        """Return f (k, n) of every row for the last task's result, by products as its gradients had them."""
        return self._operator.decision_values(found.alpha)


class LocalRows(Rows):
    """Rows X (n, d) of this process, whole on one device, or for a list of devices in blocks by their speeds.

    The blocks, and so the bits of all sums, follow from the number of rows alone.
    """

    def __init__(self, X: Data) -> None:
        self._X = X

    def survey(self, kernel: Kernel, options: Options) -> Survey:
        with Stream(devices.first(options.device), options.memory_limit) as stream:
            plan = layouts.choose(stream.profile, self._X, kernel.spec, options.layout)
        there = [devices.find(one) for one in devices.listed(options.device)]
        finest = min(devices.default_profile(info).finest for info in there)
        device = " and ".join(dict.fromkeys(map(str, there)))
        return Survey(plan, finest, device, measures(kernel, self._X, plan).extent)

    @contextmanager
    def _opened(self, points: InducingPoints, options: Options) -> Iterator[Parts]:
        X, listed = self._X, isinstance(options.device, list | tuple)
        slices = blocks(X.shape[0]) if listed else [slice(0, X.shape[0])]
        given = X, points.rows, points.kernel, points.plan, points.dtype, points.k

        def build(stream: Stream, i: int) -> RowBlock:
            return RowBlock.built(stream, X[slices[i]] if listed else X, points)

        with opened(options.device, options.memory_limit) as threads:
            homes = owners(len(slices), speeds(threads, lambda stream: pass_seconds(stream, *given)))
            made = OnDevices(threads, homes, build)
            cross = made.parts[0].cross
            self.cost, self._words = cross.cost, cross.describe()
            if listed:
                counts = [f"{homes.count(i)} on {one.stream.info.name}" for i, one in enumerate(threads)]
                self._words = f"{len(slices)} parts, {', '.join(counts)}: {self._words}"
            yield made

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        found = self.blocks.ask("values", [(some,) for some in split(rows, self.blocks.sizes)])
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found))

    def describe(self) -> str:
        return self._words


def train(
    X: Data | Rows,
    task: Task,
    kernel: Kernel,
    centers: Centers,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    since: float,
) -> tuple[Vector, NystromReport, Plan]:
    """Fit ``task`` over the rows of X (n, d), dense or CSR, from coefficients ``start`` (k, m) where they are given.

    Returns coefficients (k, m), the report, and the rows' layout.
    random: what draws the sampled rows. since: perf_counter() at which the fit began. float64 is taken where float32 is
    too coarse: where K(C, C) is ill-conditioned, or coefficients turn out so large that rounding of K shows. Raises
    ValueError where memory is too small or the kernel function is no kernel for these inducing points.
    """
    rows, clock = X if isinstance(X, Rows) else LocalRows(X), Clock(since)
    clock.lap("check")
    formulation = formulate(kernel, centers, options, task.penalty, rows.survey(kernel, options))
    clock.lap("preconditioner")
    found, peak, held, preconditioner = None, 0, 0, formulation.preconditioner
    for dtype in formulation.dtypes:
        with rows.laid(formulation, options, dtype, len(task.y)):
            clock.lap("layout")
            rows.draw(random, task.penalty, options.tol, task.loss.quadratic)
            clock.lap("preconditioner")
            with Display(options.verbose, options.tol, violation="residual") as progress:
                told = {"progress": progress, "callback": options.callback, "before": found}
                found = rows.solve(task, start, options.tol, options.max_iter, **told)
            clock.lap("solve", weighing=found.weighing)
            start, peak, held = found.alpha, max(peak, rows.blocks.peak()), max(held, rows.blocks.memory()[0])
        if found.status is not Status.STALLED:
            break
    assert found is not None
    factors = preconditioner.plan
    report = NystromReport(
        **{name: getattr(found, name) for name in _OF_SOLVE},
        **{name: getattr(preconditioner, name) for name in _OF_PRECONDITIONER},
        status=found.status.value,
        converged=found.status.converged,
        centers=centers.words,
        sample=preconditioner.m if rows.sample is None else len(rows.sample),
        bytes_held=max(peak, held + factors.nbytes),
        seconds=clock.seconds(),
        device=formulation.rows.device,
        layout=rows.describe(),
        factors=str(factors),
        dtype=formulation.rows.finest if found.exact else dtype,
        trace=tuple(found.trace),
    )
    return found.alpha, report, formulation.rows.plan


class Clock:
    """The seconds of a fit by part."""

    def __init__(self, since: float) -> None:
        self._since = self._last = since
        self._spent = defaultdict[str, float](float)

    def lap(self, part: str, weighing: float = 0.0) -> None:
        """Count the time since the last call as ``part``, but for what the preconditioner took of it."""
        now = perf_counter()
        self._spent[part] += now - self._last - weighing
        self._spent["preconditioner"] += weighing
        self._last = now

    def seconds(self) -> dict[str, float]:
        total = perf_counter() - self._since
        return {**self._spent, "other": total - sum(self._spent.values()), "total": total}


LEAST, LARGEST = 100, 5000  # inducing points where their number is left to us
LOOKED_AT = 20  # rows for each inducing point that k-means++ chooses from
PILOT, BLOCK = 1000, 1 << 24  # rows that leverage is measured against; values of K at a time


class Centers(NamedTuple):
    """Inducing points. rows (m, d); places (m,): their numbers among the rows of X, None where they are no rows; words:
    how many, and why."""

    rows: Data
    places: NDArray[np.intp] | None
    words: str


def count_centers(n: int, asked: int | str) -> tuple[int, str]:
    """Return (m, why) for n rows that can be drawn."""
    if asked == "auto":
        m = min(n, LARGEST, max(LEAST, int(np.ceil(np.sqrt(n) * np.log2(max(n, 2))))))
        return m, f"{m}: sqrt(n) log2(n) of {n} rows, {LEAST} to {LARGEST}, at most all"
    m = min(n, int(asked))
    return m, f"{m} of {n} rows" + (f" ({asked} were asked for)" if m < int(asked) else " as asked for")


def choose_centers(
    X: Data,
    how: Any,
    asked: int | str,
    weights: NDArray[np.float64],
    random: np.random.RandomState,
    kernel: Kernel,
    penalty: float,
    where: Mapping[str, Any],
) -> Centers:
    """Choose inducing points by a center_selection: "uniform", "k-means++", "leverage", or rows (m, d) themselves.

    Rows that weigh nothing are not drawn. where: the device and memory_limit of the kernel values that leverage needs.
    """
    if not isinstance(how, str):
        return Centers(how, None, f"{how.shape[0]} that were given")
    there = np.flatnonzero(weights > 0)
    m, words = count_centers(len(there), asked)
    if m == len(there):
        return Centers(X[there], there, f"{words}: every row")
    if how == "uniform":
        drawn = random.choice(there, m, replace=False)
    elif how == "k-means++":
        some = there if len(there) <= LOOKED_AT * m else random.choice(there, LOOKED_AT * m, replace=False)
        drawn = np.unique(some[kmeans_plusplus(X[some], m, random_state=random)[1]])
        # Where points coincide k-means++ takes a row twice.
        others = random.choice(np.setdiff1d(there, drawn), m - len(drawn), replace=False)
        drawn = np.concatenate([drawn, others])
    else:
        scores = _leverage(X, kernel, there, penalty, random, where)
        drawn = random.choice(there, m, replace=False, p=scores / scores.sum())
    index = np.sort(drawn)
    return Centers(X[index], index, f"{words}, drawn by {how}" if how != "uniform" else words)


def _leverage(
    X: Data,
    kernel: Kernel,
    there: NDArray[np.intp],
    penalty: float,
    random: np.random.RandomState,
    where: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Return about the ridge leverage scores of the rows ``there``, at least a little.

    (K(x, x) - k' (K_ss + penalty s I)^-1 k) / (penalty n), against s rows drawn evenly. Source: Rudi, Calandriello,
    Carratino, Rosasco 2018 (BLESS).
    """
    s = min(PILOT, len(there))
    pilot = X[np.sort(random.choice(there, s, replace=False))]
    K = kernel_matrix(pilot, kernel=kernel, dtype="float64", **where)
    factor, lower = cho_factor(K + penalty * s * np.eye(s), lower=True)
    scores, step = np.empty(len(there)), max(1, BLOCK // s)
    for first in range(0, len(there), step):
        rows = X[there[first : first + step]]
        across = solve_triangular(factor, kernel_matrix(pilot, rows, kernel, **where), lower=lower)
        scores[first : first + step] = _diagonal(kernel, rows) - np.square(across).sum(axis=0)
    return np.maximum(scores, 1e-3 * max(float(scores.mean()), 1e-300))


def _diagonal(kernel: Kernel, X: Data) -> NDArray[np.float64]:
    """Return K(x, x) of each row."""
    step = 256
    parts = (np.diagonal(kernel(X[i : i + step])) for i in range(0, X.shape[0], step))
    return np.concatenate([*parts])
