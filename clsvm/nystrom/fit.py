"""Fit a Nyström model: draw inducing points (:func:`spread_rows`, :func:`leverage`), and compute their coefficients.

:func:`train` chooses the storage format of the rows, makes the preconditioner, and copies the rows to devices
(:class:`Rows`). Newton's method (newton.py) then computes the coefficients. If a solve in float32 stalls, the fit
continues in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, solve_triangular
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import gen_batches

from clsvm.arrays import Data
from clsvm.distribute import OnDevices, Parts, open_streams, split
from clsvm.gram import layouts
from clsvm.gram.cross import kernel_matrix
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import check_range, measures, outside
from clsvm.kernels import Extent, Kernel
from clsvm.nystrom.newton import Callback, Newton, Result
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import InducingPoints, RowBlock, RowOperator, Task, Vector, blocks
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from clsvm.report import Display, NystromReport, Status

# A fit begins in the most precise dtype if the inducing points' kernel matrix has a condition number above COARSE.
COARSE = 1e7
# Jitter is a small number that is added to the diagonal of the inducing points' kernel matrix. It outweighs rounding
# errors. If a device lacks float64, the jitter is at least min(SINGLE, SQUARES / penalty) * mean(diagonal), because
# rounding errors of float32 could exceed a small penalty. If the matrix is factored with pivots, the jitter is 0.
SINGLE, SQUARES = 1e-6, 1e-12
# Names of attributes that the fit report copies, under the same names, from Result and from Preconditioner.
_OF_SOLVE = "objective", "residual", "bound", "steps", "newton_steps", "passes"
_OF_PRECONDITIONER = "condition", "jitter", "rank"


@dataclass(frozen=True)
class Options:
    """Hold the estimator parameters that a fit needs. Each attribute has the name of its parameter."""

    tol: float
    max_iter: int
    dtype: str
    device: Any
    memory_limit: int | str | None
    layout: str
    verbose: Any
    callback: Callback | None


class Survey(NamedTuple):
    """Describe the rows X of a fit, and the devices that compute with the rows.

    Attributes
    ----------
    plan
        how the devices store the rows: the format, such as dense or CSR, and the vector subtracted from each row.
    finest
        most precise dtype that all devices have.
    device
        names of the devices.
    extent
        the largest and the smallest nonzero size of a row. For most kernel functions, the size of a row is its squared
        norm. For element-wise kernel functions, f(sum_j e(x_j, y_j)), ``extent`` also has the largest and the smallest
        nonzero absolute entry of the rows. From these numbers, the fit determines whether intermediate values of the
        kernel function leave the range of a dtype.
    """

    plan: Plan
    finest: str
    device: str
    extent: Extent


class Rows(ABC):
    """Hold the rows X (n, d) of a fit, on one device or several, for any number of tasks with ``k`` outputs.

    A task is a loss with targets, weights and a penalty (:class:`Task`). Call :meth:`formulate` first. Then, inside
    ``with lay_out(...)``, call :meth:`draw`, and :meth:`solve` for each task. Below, K(X, C) are the kernel values
    between the rows and the inducing points C.

    Attributes
    ----------
    surveyed
        storage format and norms of the rows, and names of the devices (:class:`Survey`).
    preconditioner
        preconditioner for the solves.
    operator
        object that computes sums over all rows, such as gradients. It is the :class:`RowOperator` of the last solve.
    blocks
        blocks of rows on their devices.
    cost
        time to compute one value of K(X, C), or to read the value if K(X, C) is stored. The unit is the time of a
        multiply-add in a product of dense rows.
    sample
        indices (s,) of the training rows from which the preconditioner is made. None if the preconditioner is made from
        inducing points that are not training rows.
    layout
        text for the report that says how K(X, C) is computed or stored.
    has_finer_dtype
        whether the devices have a dtype that is more precise than the dtype of products with K(X, C).
    with_targets
        whether blocks get their targets and weights when the blocks are built. If not, :meth:`solve` sends targets and
        weights to the blocks.
    reads_again
        whether the preconditioner may request the kernel values between the sampled rows and C several times. If true,
        the preconditioner may request the values again for each new set of weights of the rows
        (:meth:`Preconditioner.weigh`). If false, the preconditioner requests the values once, and stores a matrix that
        is computed from the values.
    """

    surveyed: Survey
    preconditioner: Preconditioner
    operator: RowOperator
    blocks: Parts
    cost: float
    layout: str
    sample: NDArray[np.intp] | None
    with_targets = False
    reads_again = True

    @abstractmethod
    def survey(self, kernel: Kernel, options: Options) -> Survey:
        """Return the storage format and norms of the rows, the names of the devices, and a dtype.

        The dtype is the most precise one that all devices have.
        """

    @abstractmethod
    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return kernel values (s, m) between the s rows with the ascending indices ``rows`` and the inducing points.

        The values are an array on the host.
        """

    @abstractmethod
    def _open_blocks(self, points: InducingPoints, options: Options) -> AbstractContextManager[Parts]:
        """Return a context in which the devices hold blocks of rows.

        Entering the context sets two attributes: ``cost``, the cost of a kernel value between a row and an inducing
        point, and ``layout``, a text that says how these kernel values are computed or stored.
        """

    def formulate(self, kernel: Kernel, centers: Centers, options: Options, penalty: float) -> tuple[str, ...]:
        """Choose the storage format of the rows, make the preconditioner, and return the dtypes for the solves.

        The returned tuple has one or two dtypes. A solve begins in the first dtype. If the solve stalls, it continues
        in the second dtype. The first dtype is ``options.dtype``, and the second is the most precise dtype that all
        devices have. If both are the same, the tuple has one dtype. In two other cases, the tuple has only the most
        precise dtype: the kernel matrix of the inducing points is ill-conditioned, or intermediate values of the kernel
        function leave the range of ``options.dtype``.

        centers: the inducing points.
        penalty: the smallest penalty of all tasks. A task is a loss with targets, weights and a penalty.

        Raises ValueError if the kernel matrix of the inducing points is not finite or not positive semi-definite. Also
        raises ValueError if intermediate values of the kernel function leave the range of the first returned dtype.
        """
        rows = self.surveyed = self.survey(kernel, options)
        first, limit = devices.first_device(options.device), options.memory_limit
        K = kernel_matrix(centers.rows, kernel=kernel, dtype="float64", device=first, memory_limit=limit)
        if not np.isfinite(K).all():
            raise ValueError(f"{kernel!r} is not finite for some pairs of the inducing points set by center_selection")
        least = min(SINGLE, SQUARES / penalty) if rows.finest == "float32" else 0.0
        self._kernel, self._centers = kernel, centers
        self.preconditioner = Preconditioner(K, least, options.device, limit)
        dtypes, d = list(dict.fromkeys((options.dtype, rows.finest))), centers.rows.shape[1]
        given = kernel, rows.extent, measures(kernel, centers.rows, rows.plan).extent
        if (self.preconditioner.condition > COARSE or outside(*given, dtypes[0], d)) and rows.finest in dtypes:
            dtypes = [rows.finest]
        check_range(*given, d, dtype=dtypes[0])
        return tuple(dtypes)

    @contextmanager
    def lay_out(self, options: Options, dtype: str, k: int) -> Iterator[None]:
        """Return a context in which the devices hold the rows and the inducing points.

        Kernel values between the rows and the inducing points are computed in ``dtype``.

        k: number of outputs of every task that :meth:`solve` gets inside the context.

        Raises MemoryLimitError if the memory limit of a device is too small.
        """
        finest = self.surveyed.finest
        self.k, self.has_finer_dtype = k, dtype != finest
        points = InducingPoints(self._centers.rows, self._kernel, self.surveyed.plan, dtype, k, finest)
        with self._open_blocks(points, options) as self.blocks:
            yield

    def draw(
        self, random: np.random.RandomState, penalty: float, tol: float, quadratic: bool = True, tasks: int = 1
    ) -> None:
        """Draw the rows from which the preconditioner is made, and give their kernel values to the preconditioner.

        No row is drawn if it is cheaper to make the preconditioner from the inducing points alone. A task is a loss
        with targets, weights and a penalty.

        penalty: the smallest penalty of the tasks.
        tol: residual at which the solves of the tasks end.
        quadratic: whether the loss of the tasks is quadratic.
        tasks: number of tasks.
        """
        preconditioner, n = self.preconditioner, sum(self.blocks.sizes)
        self.sample = self._centers.indices
        spectrum = preconditioner.spectrum(penalty, n)
        if not self.reads_again:
            spectrum = spectrum._replace(noise=np.inf)
        s, sums = sampled(n, preconditioner.rank, self.k, self.cost, tol, quadratic, tasks, spectrum)
        if s > preconditioner.m:
            drawn = self.sample = np.sort(random.choice(n, s, replace=False)) if s < n else np.arange(n)
            if sums:
                preconditioner.sample_sums(lambda some: self.values(drawn[some]))
            else:
                preconditioner.sample(self.values(drawn), penalty)
        else:
            preconditioner.sample(None, penalty)
        preconditioner.memory_limit = self.blocks.memory()[1]

    def solve(self, task: Task, start: Vector | None, tol: float, max_iter: int, **asked: Any) -> Result:
        """Minimise a task's objective by Newton's method, until the residual is at most ``tol``.

        start: coefficients (k, m) to begin with, or None for 0.
        max_iter: largest number of conjugate gradient steps. The solve ends after this number in any case.
        asked: other parameters of :class:`Newton`.
        """
        sizes = self.blocks.sizes
        samples: Any = [None] * len(sizes) if self.sample is None else split(self.sample, sizes)
        ends, total = np.cumsum(sizes), task.total

        def task_arguments(i: int) -> tuple[Any, ...]:
            local_task = None if self.with_targets else task.subset(slice(ends[i] - sizes[i], ends[i]))
            return samples[i], total, local_task

        self.operator = RowOperator(self.blocks, task, self.preconditioner.m, task_arguments)
        return Newton(self.operator, self.preconditioner, tol, max_iter, **asked).run(start)


class LocalRows(Rows):
    """Hold rows X (n, d) of this process, on one device, or in blocks on a list of devices.

    The blocks are divided equally among the devices of a list. The number of rows alone determines the blocks. Sums
    over the rows therefore have the same bits on any list of equal devices.
    """

    def __init__(self, X: Data) -> None:
        self._X = X

    def survey(self, kernel: Kernel, options: Options) -> Survey:
        with Stream(devices.first_device(options.device), options.memory_limit) as stream:
            plan = layouts.choose(stream.profile, self._X, kernel.spec, options.layout)
        found = [devices.find(one) for one in devices.device_list(options.device)]
        finest = min(devices.default_profile(info).finest for info in found)
        device = " and ".join(dict.fromkeys(map(str, found)))
        return Survey(plan, finest, device, measures(kernel, self._X, plan).extent)

    @contextmanager
    def _open_blocks(self, points: InducingPoints, options: Options) -> Iterator[Parts]:
        X, listed = self._X, isinstance(options.device, list | tuple)
        slices = blocks(X.shape[0]) if listed else [slice(0, X.shape[0])]

        def build(stream: Stream, i: int) -> RowBlock:
            return RowBlock.built(stream, X[slices[i]] if listed else X, points)

        with open_streams(options.device, options.memory_limit) as threads:
            homes = sorted(i % len(threads) for i in range(len(slices)))
            made = OnDevices(threads, homes, build)
            cross = made.parts[0].cross
            self.cost, self.layout = cross.cost, cross.describe()
            if listed:
                counts = [f"{homes.count(i)} on {one.stream.info.name}" for i, one in enumerate(threads)]
                self.layout = f"{len(slices)} parts, {', '.join(counts)}: {self.layout}"
            yield made

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        found = self.blocks.call("values", [(some,) for some in split(rows, self.blocks.sizes)])
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found))


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
    """Minimise the objective of ``task`` over the coefficients of the inducing points ``centers``.

    Return the coefficients (k, m) of k outputs and m inducing points, the report, and the storage format of the rows.

    X: rows (n, d), dense or CSR, or an object that holds the rows (:class:`Rows`).
    start: coefficients (k, m) to begin with, or None.
    random: generator that draws the rows from which the preconditioner is made.
    since: perf_counter() at the start of the fit.

    The fit uses float64 from the start if the kernel matrix of the inducing points is too ill-conditioned for float32.
    The fit continues in float64 if the solve in float32 stalls. Raises MemoryLimitError if the memory limit is too
    small. Raises ValueError if the kernel matrix of the inducing points is not positive semi-definite.
    """
    rows, clock = X if isinstance(X, Rows) else LocalRows(X), Clock(since)
    clock.lap("check")
    dtypes = rows.formulate(kernel, centers, options, task.penalty)
    clock.lap("preconditioner")
    found, peak, allocated = None, 0, 0
    for dtype in dtypes:
        with rows.lay_out(options, dtype, len(task.y)):
            clock.lap("layout")
            rows.draw(random, task.penalty, options.tol, task.loss.quadratic)
            clock.lap("preconditioner")
            with Display(options.verbose, options.tol, violation="residual") as progress:
                settings = {"progress": progress, "callback": options.callback, "before": found}
                found = rows.solve(task, start, options.tol, options.max_iter, **settings)
            clock.lap("solve", preconditioner_seconds=found.preconditioner_seconds)
            start, peak, allocated = found.alpha, max(peak, rows.blocks.peak()), max(allocated, rows.blocks.memory()[0])
        if found.status is not Status.STALLED:
            break
    assert found is not None
    preconditioner, factors = rows.preconditioner, rows.preconditioner.plan
    report = NystromReport(
        **{name: getattr(found, name) for name in _OF_SOLVE},
        **{name: getattr(preconditioner, name) for name in _OF_PRECONDITIONER},
        status=found.status.value,
        converged=found.status.converged,
        centers=centers.description,
        sample=preconditioner.m if rows.sample is None else len(rows.sample),
        bytes_held=max(peak, allocated + factors.nbytes),
        seconds=clock.seconds(),
        device=rows.surveyed.device,
        layout=rows.layout,
        factors=str(factors),
        dtype=rows.surveyed.finest if found.exact else dtype,
        trace=tuple(found.trace),
    )
    return found.alpha, report, rows.surveyed.plan


class Clock:
    """Measure the seconds of each part of a fit."""

    def __init__(self, since: float) -> None:
        self._since = self._last = since
        self._spent = defaultdict[str, float](float)

    def lap(self, part: str, preconditioner_seconds: float = 0.0) -> None:
        """Add the seconds since the last call to the time of the ``part`` of a fit.

        preconditioner_seconds: how many of the seconds since the last call the preconditioner took. These seconds are
        added to the time of the part "preconditioner" instead.
        """
        now = perf_counter()
        self._spent[part] += now - self._last - preconditioner_seconds
        self._spent["preconditioner"] += preconditioner_seconds
        self._last = now

    def seconds(self) -> dict[str, float]:
        total = perf_counter() - self._since
        return {**self._spent, "other": total - sum(self._spent.values()), "total": total}


LEAST, LARGEST = 100, 5000  # smallest and largest number of inducing points for n_centers="auto"
CANDIDATES = 20  # k-means++ draws m inducing points from at most CANDIDATES * m rows
SAMPLE_ROWS, BLOCK = 1000, 1 << 24  # rows drawn to estimate leverage scores; limit of kernel values computed at a time


class Centers(NamedTuple):
    """Hold the inducing points of a fit.

    Attributes
    ----------
    rows
        the points (m, d).
    indices
        row numbers (m,) of the points in X, or None if they are not rows of X.
    description
        number of points and the reason for this number, as text for the report.
    """

    rows: Data
    indices: NDArray[np.intp] | None
    description: str


def count_centers(n: int, requested: int | str) -> tuple[int, str]:
    """Return the number of inducing points to draw from n rows, and the reason in words.

    requested: n_centers of the estimator, a number or "auto".
    """
    if requested == "auto":
        m = min(n, LARGEST, max(LEAST, int(np.ceil(np.sqrt(n) * np.log2(max(n, 2))))))
        return m, f"{m}: sqrt(n) log2(n) of {n} rows, {LEAST} to {LARGEST}, at most all"
    m = min(n, int(requested))
    return m, f"{m} of {n} rows" + (f" ({requested} were asked for)" if m < int(requested) else " as asked for")


def spread_rows(X: Data, eligible: NDArray[np.intp], m: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """Draw m different rows of X by k-means++, which prefers rows far from one another. Return their indices in X.

    eligible: indices of the rows that may be drawn.
    """
    some = eligible if len(eligible) <= CANDIDATES * m else random.choice(eligible, CANDIDATES * m, replace=False)
    drawn = np.unique(some[kmeans_plusplus(X[some], m, random_state=random)[1]])
    # If rows of X are equal, k-means++ may draw an index twice. Other rows, drawn at random, replace the repetitions.
    return np.concatenate([drawn, random.choice(np.setdiff1d(eligible, drawn), m - len(drawn), replace=False)])


def leverage(
    X: Data,
    kernel: Kernel,
    eligible: NDArray[np.intp],
    penalty: float,
    random: np.random.RandomState,
    where: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Return approximate ridge leverage scores of the rows X[eligible], up to a common factor. All scores are positive.

    The function draws a set S of s rows uniformly at random. K is the kernel function, and I is the identity matrix.
    The score of a row x is K(x, x) - K(x, S) (K(S, S) + penalty * s * I)^-1 K(S, x). A score below 0.1 % of the mean
    score is replaced by 0.1 % of the mean score.

    penalty: penalty of the fit, a positive number.
    where: the device for kernel values and its memory limit, as keyword arguments of :func:`kernel_matrix`.

    Source: Rudi, Calandriello, Carratino, Rosasco 2018 (BLESS).
    """
    s = min(SAMPLE_ROWS, len(eligible))
    sample_rows = X[np.sort(random.choice(eligible, s, replace=False))]
    K = kernel_matrix(sample_rows, kernel=kernel, dtype="float64", **where)
    factor, lower = cho_factor(K + penalty * s * np.eye(s), lower=True)
    scores = np.concatenate([np.diagonal(kernel(X[eligible[some]])) for some in gen_batches(len(eligible), 256)])
    for some in gen_batches(len(eligible), max(1, BLOCK // s)):
        cross = solve_triangular(factor, kernel_matrix(sample_rows, X[eligible[some]], kernel, **where), lower=lower)
        scores[some] -= np.square(cross).sum(axis=0)
    return np.maximum(scores, 1e-3 * max(float(scores.mean()), 1e-300))
