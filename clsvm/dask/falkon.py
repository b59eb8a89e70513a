"""Machines on centres over chunks of rows: scikit-learn's interface, Dask's arrays and data frames.

chunks         checked and kept by the workers that have them, laid out there once on the worker's device
centres        drawn across the chunks, sent to all; K among them and its factors stay with the caller
a step         coefficients out, sums over a chunk's rows back; added up here in the order of the chunks
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from distributed import Future
from numpy.typing import NDArray
from sklearn.utils.validation import check_random_state

import clsvm.estimators.falkon as local
from clsvm.arrays import stacked
from clsvm.dask import worker
from clsvm.dask.encoding import Encoding, Labels, Numbers, Summary
from clsvm.dask.rows import (
    HEAD,
    Answering,
    Moments,
    gathered,
    here,
    in_chunks,
    is_dask,
    measured,
    one_device,
    scored,
    split,
    taken,
    variance,
)
from clsvm.dask.side import Chunks, OnWorkers, nbytes
from clsvm.dask.worker import Terms
from clsvm.gram.cross import USED
from clsvm.gram.matrix import kernel_matrix
from clsvm.kernels.evaluation import Extent
from clsvm.losses import LOSSES, crossing
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.centers import Centers, count
from clsvm.nystrom.rows import Task, deviation
from clsvm.opencl import devices

Vector = NDArray[np.float64]


class Encoded(NamedTuple):
    """The encoding of targets, the offset (k,), the weights' sum, classes (c,), and targets (k, any) among which are
    the least and the largest of each output."""

    encoding: Encoding
    offset: Vector
    total: float
    classes: NDArray[Any]
    extremes: Vector


class _Products:
    """What a fit asks of K(X, C), with X in chunks."""

    def __init__(
        self, chunks: Chunks, sizes: list[int], posed: nystrom.Posed, options: nystrom.Options, k: int
    ) -> None:
        self._chunks, self._ends, self._posed, self._options = chunks, np.cumsum(sizes), posed, options
        self.n, self.m, self.k = int(self._ends[-1]), posed.centers.rows.shape[0], k
        self.cost = posed.centers.rows.shape[1] + USED

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """K (s, m) of some rows, ascending, which come here for it."""
        found = [rows for rows, _ in taken(self._chunks, split(rows, self._ends)) if rows.shape[0]]
        X = stacked(found)
        given = {"device": devices.first(self._options.device), "memory_limit": self._options.memory_limit}
        return kernel_matrix(X, self._posed.centers.rows, self._posed.kernel, dtype="float64", **given)

    def describe(self) -> str:
        """Where K is."""
        homes = len(set(self._chunks.homes))
        return f"{self._posed.plan.kind}, {len(self._chunks.X)} chunks on {homes} workers"


class _OnWorkers(nystrom.Ready):
    """Rows in chunks, ready for a dtype."""

    cross: _Products

    def __init__(self, chunks: Chunks, sizes: list[int], posed: nystrom.Posed, terms: Terms, options: Any) -> None:
        self._posed, self.sample, self._limit = posed, posed.centers.places, options.memory_limit
        self._chunks, self._terms, self.coarse = chunks, terms, terms.dtype != posed.finest
        self._sizes = sizes
        self.cross = _Products(chunks, sizes, posed, options, len(terms.offset))

    @property
    def _left(self) -> int | str | None:
        return self._limit

    @property
    def held(self) -> int:
        return 0

    @property
    def peak(self) -> int:
        return max([0, *self._chunks.client.run(worker.peak, self._terms.name, on_error="ignore").values()])

    def _side(self, task: Any) -> OnWorkers:
        samples = [None] * len(self._sizes) if self.sample is None else split(self.sample, np.cumsum(self._sizes))
        terms = self._terms._replace(samples=tuple(samples))
        self._chunks.sent += nbytes(terms.centers)
        return OnWorkers(self._chunks, terms, task, sum(self._sizes))


class OverChunks(Answering, local.Falkon):
    """What the machines of this package share; what is said there of X and y holds of Dask's collections, too.

    Rows come in chunks, of known sizes or unknown; columns in one. A Dask client has to be there. ``device`` and
    ``memory_limit`` are of each worker's device, and of the caller's for the preconditioner. Centres are drawn evenly,
    or given. bytes_sent_ (dict) says what travelled after the rows were laid out.
    """

    _encoding: Any = Numbers

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        if not is_dask(X):
            y, sample_weight = here(y=y, sample_weight=sample_weight).values()
            return super()._learn(X, y, sample_weight, started)
        clock, name = nystrom.Clock(started), uuid.uuid4().hex
        if isinstance(self.center_selection, str) and self.center_selection != "uniform":
            raise ValueError(f"center_selection must be 'uniform' or rows (m, d), got {self.center_selection!r}")
        one_device(self.device)
        if y is None:
            raise ValueError("y must be given, in the chunks of X, got None")
        chunks = gathered(X, y, sample_weight)
        facts = measured(chunks)
        sizes, d = [one.n for one in facts], max(facts).d
        for words, column in (("y", chunks.y), ("sample_weight", chunks.weights)):
            own = chunks.each(len, column) if isinstance(column[0], Future) else sizes
            if own != sizes:
                raise ValueError(f"{words} must come in chunks of as many rows as X, {sizes}, got {own}")
        chunks.keep([i for i, n in enumerate(sizes) if n])
        sizes = [n for n in sizes if n]
        summaries = chunks.each(self._encoding.summary, chunks.y, chunks.weights)
        random = check_random_state(self.random_state)
        at = int(np.argmax(sizes))
        head = chunks.client.submit(worker.take, chunks.X[at], np.arange(min(HEAD, sizes[at]))).result()[0]
        self._rows(worker.named(head, getattr(X, "columns", None)), reset=True)
        kernel = self._kernel(Moments((sum(sizes), d), variance(facts)))
        self._flat = np.ndim(y) == 1
        encoding, offset, total, classes, extremes = self._encoded(chunks, summaries)
        if not np.isfinite(total):
            raise ValueError(
                f"the sum of class_weight * sample_weight must be a finite float64, got {total}: scale them"
            )
        centers = self._drawn(chunks, head, sizes, summaries, random, kernel)
        clock.lap("check")
        options = self._options()
        given = kernel, options.layout, options.device, options.memory_limit
        found = nystrom.Found(*chunks.client.submit(worker.choose, chunks.X[at], *given).result())
        extents = chunks.each(worker.extent, chunks.X, [kernel] * len(sizes), [found.plan] * len(sizes))
        posed = nystrom.posed(kernel, centers, options, float(self.penalty), found, reduce(Extent.joined, extents))
        clock.lap("preconditioner")
        loss = LOSSES[self._loss(len(offset))]
        terms = Terms(
            name=name,
            encoding=encoding,
            kernel=kernel,
            centers=centers.rows,
            plan=posed.plan,
            dtype=posed.dtypes[0],
            finest=posed.finest,
            loss=loss.name,
            offset=offset,
            largest=deviation(extremes, offset),
            penalty=float(self.penalty),
            total=total,
            device=options.device,
            memory_limit=options.memory_limit,
            neighbours=chunks.neighbours(),
            chunks=-(-len(sizes) // max(1, len(chunks.workers()))),
            samples=(),
        )
        task = Task(loss, np.empty((len(offset), 0)), np.array([total]), offset, float(self.penalty), terms.largest)

        def opened(dtype: str) -> Any:
            return _ready(chunks, sizes, posed, terms._replace(dtype=dtype, name=f"{name}-{dtype}"), options)

        trained = nystrom.solved(posed, task, options, None, random, clock, opened)
        self._set_learnt(trained, centers, offset, classes, kernel)
        self.bytes_sent_ = {"to the workers": chunks.sent, "back": chunks.received}
        return centers.rows

    def _encoded(self, chunks: Chunks, summaries: list[Summary]) -> Encoded:
        """Return what all chunks' targets come to. Raises ValueError where no row weighs anything."""
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
        """Where the loss's derivative, summed over all chunks, is 0."""
        encoding, loss, count = Numbers(k), self._loss(k), len(chunks.X)

        def slope(at: float) -> float:
            given = [encoding] * count, [loss] * count, [output] * count, [at] * count
            return float(sum(chunks.each(worker.slope_at, *given, chunks.y, chunks.weights)))

        return crossing(slope, float(low), float(high))

    def _drawn(
        self, chunks: Chunks, head: Any, sizes: list[int], summaries: list[Summary], random: Any, kernel: Any
    ) -> Centers:
        """Centres drawn evenly from the rows that weigh something, or those that are given."""
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
        filled = [rows for rows, _ in found if rows.shape[0]]
        rows = stacked(filled)
        return Centers(rows, places.astype(np.intp), words)


class _Classes(OverChunks):
    """The same of classifiers."""

    _encoding = Labels
    class_weight: Any

    def _encoded(self, chunks: Chunks, summaries: list[Summary]) -> Encoded:
        encoding, weights = Labels.of(summaries, self.class_weight, self._targets)
        loss = LOSSES[self._loss(len(encoding.table))]
        offset = loss.constant(encoding.table, weights) if self.fit_intercept else np.zeros(len(encoding.table))
        self.classes_ = encoding.classes
        return Encoded(encoding, offset, float(weights.sum()), encoding.classes, encoding.table)


class FalkonRegressor(OverChunks, local.FalkonRegressor):
    """:class:`clsvm.FalkonRegressor` for rows in chunks."""

    predict = in_chunks(local.FalkonRegressor.predict)
    score = scored(local.FalkonRegressor.score)


class FalkonClassifier(_Classes, local.FalkonClassifier):
    """:class:`clsvm.FalkonClassifier` for rows in chunks."""

    predict = in_chunks(local.FalkonClassifier.predict)
    decision_function = in_chunks(local.FalkonClassifier.decision_function)
    score = scored(local.FalkonClassifier.score)


class LogisticFalkonClassifier(_Classes, local.LogisticFalkonClassifier):
    """:class:`clsvm.LogisticFalkonClassifier` for rows in chunks."""

    predict = in_chunks(local.LogisticFalkonClassifier.predict)
    predict_proba = in_chunks(local.LogisticFalkonClassifier.predict_proba)
    predict_log_proba = in_chunks(local.LogisticFalkonClassifier.predict_log_proba)
    decision_function = in_chunks(local.LogisticFalkonClassifier.decision_function)
    score = scored(local.LogisticFalkonClassifier.score)


@contextmanager
def _ready(
    chunks: Chunks, sizes: list[int], posed: nystrom.Posed, terms: Terms, options: Any
) -> Iterator[nystrom.Ready]:
    try:
        yield _OnWorkers(chunks, sizes, posed, terms, options)
    finally:
        chunks.client.run(worker.forget, terms.name, on_error="ignore")
