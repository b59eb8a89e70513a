"""Falkon models over chunks of rows: scikit-learn's interface, Dask's arrays and data frames.

chunks             checked and kept by the workers that have them, laid out there once on the worker's device
inducing points    drawn across the chunks, sent to all; K among them and its factors stay with the caller
an iteration       coefficients out, sums over a chunk's rows back; added up here in the order of the chunks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from distributed import Future
from numpy.typing import NDArray
from sklearn.utils.validation import check_random_state

import clsvm.estimators.falkon as local
from clsvm.arrays import Data, stacked
from clsvm.dask import worker
from clsvm.dask.encoding import Encoding, Labels, Numbers, Summary
from clsvm.dask.executor import Chunks, OnWorkers, nbytes, on_workers
from clsvm.dask.rows import (
    HEAD,
    Moments,
    OverChunks,
    answering,
    gathered,
    measured,
    one_device,
    split,
    taken,
    variance,
)
from clsvm.gram.cross import USED, kernel_matrix
from clsvm.kernels import Kernel
from clsvm.kernels.evaluation import Extent
from clsvm.losses import LOSSES, crossing
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.centers import Centers, count
from clsvm.nystrom.rows import InducingPoints, RowBlock, Task, deviation
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]


class Encoded(NamedTuple):
    """Hold a summary of the targets of all chunks: their encoding, the offset (k,), the weights' sum, classes (c,), and
    targets (k, any) among which are the least and the largest of each output."""

    encoding: Encoding
    offset: Vector
    total: float
    classes: NDArray[Any]
    extremes: Vector


class Targets(NamedTuple):
    """Make a task of a chunk's targets. loss: its name (a loss itself is not pickled)."""

    encoding: Encoding
    loss: str
    offset: Vector
    penalty: float
    largest: Vector

    def task(self, y: Any, weights: Any) -> Task:
        """Return the task of a chunk."""
        return Task(LOSSES[self.loss], *self.encoding.encoded(y, weights), self.offset, self.penalty, self.largest)


def block(
    stream: Stream, X: Data, y: Any, weights: Any, *, points: InducingPoints, dtype: str, targets: Targets
) -> RowBlock:
    """Build a worker's block of a chunk, rows X (n, d) and targets y, which are encoded there."""
    return RowBlock.built(stream, X, points, dtype, len(targets.offset), targets.task(y, weights))


class PreparedChunks(nystrom.PreparedRows):
    """Rows in chunks on workers, laid out in a dtype."""

    blocks: OnWorkers

    def __init__(
        self, chunks: Chunks, blocks: OnWorkers, formulation: nystrom.Formulation, dtype: str, k: int, total: float
    ) -> None:
        super().__init__(formulation, dtype, k)
        self.blocks, self._chunks, self._total = blocks, chunks, np.array([total])
        self._ends = np.cumsum(blocks.sizes)
        self.cost = formulation.centers.rows.shape[1] + USED
        chunks.sent += nbytes(formulation.centers.rows)

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """See :class:`clsvm.nystrom.fit.PreparedRows`; the rows come here for it."""
        X = stacked([some for some, _ in taken(self._chunks, split(rows, self._ends)) if some.shape[0]])
        where = {"device": devices.first(self.blocks.device), "memory_limit": self.blocks.memory_limit}
        formulation = self._formulation
        return kernel_matrix(X, formulation.centers.rows, formulation.kernel, dtype="float64", **where)

    def describe(self) -> str:
        homes = len(set(self.blocks.homes))
        return f"{self._formulation.plan.kind}, {len(self.blocks.sizes)} chunks on {homes} workers"

    def memory(self) -> tuple[int, int | str | None]:
        return 0, self.blocks.memory_limit

    def _posed(self, task: Task) -> Callable[[int], tuple[Any, ...]]:
        samples = [None] * len(self._ends) if self.sample is None else split(self.sample, self._ends)
        return lambda i: (samples[i], self._total)


class ChunkedFalkon(OverChunks, local.Falkon):
    """Fit a Falkon model to rows in chunks: the base class of this module's estimators.

    Inducing points are drawn evenly, or given.
    """

    _encoding: Any = Numbers

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        clock, columns = nystrom.Clock(started), getattr(X, "columns", None)
        if isinstance(self.center_selection, str) and self.center_selection != "uniform":
            raise ValueError(f"center_selection must be 'uniform' or rows (m, d), got {self.center_selection!r}")
        one_device(self.device)
        if y is None:
            raise ValueError("y must be given, in the chunks of X, got None")
        self._flat = np.ndim(y) == 1
        chunks = gathered(X, y, sample_weight)
        facts = _of_one_length(chunks)
        sizes = [one.n for one in facts if one.n]
        summaries = chunks.each(self._encoding.summary, chunks.y, chunks.weights)
        random = check_random_state(self.random_state)
        largest = chunks.X[int(np.argmax(sizes))]
        head = chunks.client.submit(worker.take, largest, np.arange(min(HEAD, max(sizes)))).result()[0]
        self._rows(worker.named(head, columns), reset=True)
        kernel = self._kernel(Moments((sum(sizes), max(facts).d), variance(facts)))
        found = self._encoded(chunks, summaries)
        if not np.isfinite(found.total):
            raise ValueError(
                f"the sum of class_weight * sample_weight must be a finite float64, got {found.total}: scale them"
            )
        centers = self._drawn(chunks, head, sizes, summaries, random, kernel)
        clock.lap("check")
        options = self._options()
        rows = _survey(chunks, largest, kernel, options)
        formulation = nystrom.formulate(kernel, centers, options, float(self.penalty), rows)
        clock.lap("preconditioner")
        k, spread = len(found.offset), deviation(found.extremes, found.offset)
        targets = Targets(found.encoding, self._loss(k), found.offset, float(self.penalty), spread)
        # The workers have the targets.
        task = Task(LOSSES[targets.loss], np.empty((k, 0)), np.empty(0), found.offset, targets.penalty, spread)

        @contextmanager
        def opened(dtype: str) -> Iterator[nystrom.PreparedRows]:
            build = partial(block, points=formulation.points, dtype=dtype, targets=targets)
            with on_workers(chunks, build, sizes, options.device, options.memory_limit) as blocks:
                yield PreparedChunks(chunks, blocks, formulation, dtype, k, found.total)

        trained = nystrom.solved(formulation, task, options, None, random, clock, opened)
        self._set_basis(centers, found.offset, found.classes)
        self._set_learnt(trained, kernel)
        self.bytes_sent_ = chunks.bytes_sent
        return centers.rows

    def _encoded(self, chunks: Chunks, summaries: list[Summary]) -> Encoded:
        """Return what the targets of all chunks come to. Raises ValueError where no row weighs anything."""
        weights = np.array([float(one.weights[0]) for one in summaries])
        if not weights.sum() > 0:
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        means = np.concatenate([one.keys for one in summaries])
        k = means.shape[1]
        filled = [one for one in summaries if one.there]
        least, most = np.min([one.least for one in filled], axis=0), np.max([one.most for one in filled], axis=0)
        if not self.fit_intercept:
            offset = np.zeros(k)
        elif self._loss(k) == "squared":
            offset = weights @ means / weights.sum()
        else:
            offset = np.array([self._middle(chunks, c, k, least[c], most[c]) for c in range(k)])
        return Encoded(Numbers(k), offset, float(weights.sum()), np.zeros(0), np.stack([least, most], axis=1))

    def _middle(self, chunks: Chunks, output: int, k: int, low: float, high: float) -> float:
        """Return where the loss's derivative, summed over all chunks, is 0."""
        encoding, loss = Numbers(k), self._loss(k)

        def slope(at: float) -> float:
            of_chunk = partial(worker.slope_at, encoding, loss, output, at)
            return float(sum(chunks.each(of_chunk, chunks.y, chunks.weights)))

        return crossing(slope, float(low), float(high))

    def _drawn(
        self, chunks: Chunks, head: Any, sizes: list[int], summaries: list[Summary], random: Any, kernel: Any
    ) -> Centers:
        """Return inducing points drawn evenly from the rows that weigh something, or the given ones."""
        if self.warm_start:
            raise ValueError("warm_start is not for rows in chunks: give the centres as center_selection")
        if not isinstance(self.center_selection, str):
            return self._chosen(head, kernel, np.ones(head.shape[0]), random)
        ends = np.cumsum([one.there for one in summaries])
        m, words = count(int(ends[-1]), self.n_centers)
        ranks = np.sort(random.choice(int(ends[-1]), m, replace=False))
        found = taken(chunks, split(ranks, ends), there=True)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        places = np.concatenate([places + start for (_, places), start in zip(found, starts, strict=True)])
        return Centers(stacked([rows for rows, _ in found if rows.shape[0]]), places.astype(np.intp), words)


class ChunkedClassifier(ChunkedFalkon):
    """Add classes to a Falkon model over chunks: the base class of the classifiers."""

    _encoding = Labels
    class_weight: Any

    def _encoded(self, chunks: Chunks, summaries: list[Summary]) -> Encoded:
        encoding, weights = Labels.of(summaries, self.class_weight, self._targets)
        loss = LOSSES[self._loss(len(encoding.table))]
        offset = loss.constant(encoding.table, weights) if self.fit_intercept else np.zeros(len(encoding.table))
        return Encoded(encoding, offset, float(weights.sum()), encoding.classes, encoding.table)


@answering
class FalkonRegressor(ChunkedFalkon, local.FalkonRegressor):
    """:class:`clsvm.FalkonRegressor` for rows in chunks."""


@answering
class FalkonClassifier(ChunkedClassifier, local.FalkonClassifier):
    """:class:`clsvm.FalkonClassifier` for rows in chunks."""


@answering
class LogisticFalkonClassifier(ChunkedClassifier, local.LogisticFalkonClassifier):
    """:class:`clsvm.LogisticFalkonClassifier` for rows in chunks."""


def _of_one_length(chunks: Chunks) -> list[worker.Facts]:
    """Return the facts of all chunks, and leave empty ones out. Raises ValueError where y or sample_weight come in
    chunks of other lengths."""
    facts = measured(chunks)
    sizes = [one.n for one in facts]
    for words, column in (("y", chunks.y), ("sample_weight", chunks.weights)):
        own = chunks.each(len, column) if isinstance(column[0], Future) else sizes
        if own != sizes:
            raise ValueError(f"{words} must come in chunks of as many rows as X, {sizes}, got {own}")
    chunks.keep([i for i, n in enumerate(sizes) if n])
    return facts


def _survey(chunks: Chunks, largest: Any, kernel: Kernel, options: nystrom.Options) -> nystrom.Survey:
    """Survey the chunks and the device of a worker."""
    given = kernel, options.layout, options.device, options.memory_limit
    plan, finest, device = chunks.client.submit(worker.choose, largest, *given).result()
    extents = chunks.each(partial(worker.extent, kernel=kernel, plan=plan), chunks.X)
    return nystrom.Survey(plan, finest, device, reduce(Extent.joined, extents))
