"""Fit Falkon models to Dask arrays and data frames. The rows are in chunks on workers.

The caller is the process that calls ``fit``. The caller and the workers divide the work:

rows               Each worker checks its chunks of rows, and copies the rows once to its device.
inducing points    The caller draws m rows of all chunks as inducing points, and sends these points to all workers. The
                   caller computes the kernel matrix of the inducing points and its Cholesky factor.
a solver step      The caller sends coefficients (k, m) of k outputs. For each of its chunks, a worker returns the loss,
                   the gradient or a Hessian product, summed over the chunk's rows. The caller adds the sums in the
                   order of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

import clsvm.estimators.falkon as local
from clsvm.arrays import Data, stacked
from clsvm.dask.executor import OnWorkers
from clsvm.dask.rows import ChunkedRows, OverChunks, checked_chunks
from clsvm.dask.worker import Encoding, Labels, Numbers, Summary, extent, slope_at
from clsvm.distribute import Parts, split
from clsvm.gram.cross import USED, kernel_matrix
from clsvm.kernels import Extent, Kernel
from clsvm.losses import LOSSES, crossing
from clsvm.nystrom import fit as nystrom
from clsvm.nystrom.rows import InducingPoints, RowBlock, Task, Vector, deviation
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream


def block(
    stream: Stream, X: Data, y: Any, weights: Any, *, points: InducingPoints, encoding: Encoding, task: Task
) -> RowBlock:
    """Build the object that computes sums over the rows of a chunk on a worker's device (:class:`RowBlock`).

    X: the rows (n, d) of the chunk.
    y: targets of the rows, class labels or numbers.
    weights: weights of the rows.
    points: the inducing points.
    encoding: converts y to numbers.
    task: the loss, the penalty and the intercept of the fit.
    """
    y, weights = encoding.encoded(y, weights)
    return RowBlock.built(stream, X, points, replace(task, y=y, weights=weights))


class FalkonRows(ChunkedRows, nystrom.Rows):
    """Hold the rows of a Falkon fit, with their targets, in chunks on Dask's workers.

    Attributes
    ----------
    weighted
        for each chunk, the number of rows with positive weight.
    encoding
        object that converts labels or targets to numbers. It is the same for all chunks.
    task
        loss, penalty and intercept of the fit. The intercept is computed from all targets before the solve. The targets
        of single rows stay on the workers. For a classifier with k outputs and c classes, column j of ``task.y`` (k, c)
        has the k numeric targets of a row of class j. For a regression with k outputs, ``task.y`` (k, 2) has the
        smallest and the largest target of each output.
    """

    weighted: list[int]
    encoding: Encoding
    task: Task
    with_targets = True
    # The preconditioner reads kernel values of training rows once, because each read copies rows from the workers.
    reads_again = False

    def survey(self, kernel: Kernel, options: nystrom.Options) -> nystrom.Survey:
        plan, finest, device = self.planned(kernel, options)
        extents = self.chunks.map(partial(extent, kernel=kernel, plan=plan), self.chunks.X)
        return nystrom.Survey(plan, finest, device, reduce(Extent.union, extents))

    @contextmanager
    def _open_blocks(self, points: InducingPoints, options: nystrom.Options) -> Iterator[Parts]:
        self._points, device, limit = points, options.device, options.memory_limit
        self._device_options = {"device": devices.first_device(device), "memory_limit": limit}
        self.cost = points.rows.shape[1] + USED
        build = partial(block, points=points, encoding=self.encoding, task=self.task.subset(slice(0, 0)))
        with closing(OnWorkers(self.chunks, build, self.sizes, device, limit)) as parts:
            self.layout = f"{points.plan.kind}, {len(self.sizes)} chunks on {len(set(parts.addresses))} workers"
            yield parts

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """Return the kernel values (s, m) between s training rows and the m inducing points.

        ``rows`` has the indices of the s training rows, which are on Dask's workers. This method runs in the caller,
        the process that calls ``fit``. The method fetches the s rows from the workers to the caller, and computes the
        kernel values there in float64.
        """
        points = self._points
        return kernel_matrix(self[rows], points.rows, points.kernel, dtype="float64", **self._device_options)


class ChunkedFalkon(OverChunks, local.Falkon):
    """Fit a Falkon model to rows in chunks. This is the base class of the estimators in this module.

    Inducing points are drawn uniformly at random, or given by the parameter ``center_selection``.
    """

    _encoding: Any = Labels
    class_weight: Any

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        if isinstance(self.center_selection, str) and self.center_selection != "uniform":
            raise ValueError(f"center_selection must be 'uniform' or an array (m, d), got {self.center_selection!r}")
        if self.warm_start:
            raise ValueError(
                "warm_start must be False for X in Dask chunks; to use the inducing points of an earlier fit again, "
                "pass them as center_selection"
            )
        if y is None:
            raise ValueError("y must be given, in as many chunks as X, got None")
        self._flat = np.ndim(y) == 1
        rows = FalkonRows(checked_chunks(X, y, sample_weight), getattr(X, "columns", None))
        summaries = rows.chunks.map(self._encoding.summary, rows.chunks.y, rows.chunks.weights)
        self._rows(rows, reset=True)
        rows.weighted, (rows.encoding, rows.task) = [one.weighted for one in summaries], self._encoded(rows, summaries)
        total = float(rows.task.total[0])
        if not np.isfinite(total):
            raise ValueError(
                f"the sum of class_weight * sample_weight must be a finite float64, got {total}: scale them"
            )
        self._train(rows, rows.task, rows.encoding.classes, started)

    def _encoded(self, rows: FalkonRows, summaries: list[Summary]) -> tuple[Encoding, Task]:
        """Return the encoding that converts targets to numbers, and the objective of the fit (:class:`Task`).

        The targets of the rows stay on the workers. The array ``Task.y`` therefore holds other targets, which stand for
        the targets of all rows. ``Task.y`` has one row for each output of the model. For a classifier, it has one
        column for each class, with the numeric targets of the class. The weight of the column is the sum of the weights
        of all rows of the class. For a regressor, it has two columns: the smallest and the largest target of each
        output.

        summaries: for each chunk of rows, a summary of the targets in the chunk.
        """
        encoding, weights = Labels.of(summaries, self.class_weight, self._targets)
        return encoding, self._problem(local.Targets(encoding.classes, encoding.table, weights))

    def _centers(
        self, X: Any, kernel: Kernel, task: Task, random: np.random.RandomState
    ) -> tuple[nystrom.Centers, Vector | None]:
        """Return the inducing points, and the coefficients from which the solve starts. None stands for zeros.

        If X is in chunks, the inducing points are given by the user, or are drawn uniformly at random from the rows
        with positive weight, and the coefficients are None. If X is not in chunks, the base class chooses the points
        and the coefficients.
        """
        if not isinstance(X, FalkonRows):
            return super()._centers(X, kernel, task, random)
        if not isinstance(self.center_selection, str):
            return self._choose_centers(X[:1], kernel, np.ones(1), random), None
        ends = np.cumsum(X.weighted)
        m, words = nystrom.count_centers(int(ends[-1]), self.n_centers)
        ranks = np.sort(random.choice(int(ends[-1]), m, replace=False))
        found = X.take_rows(split(ranks, X.weighted), weighted=True)
        starts = np.cumsum(X.sizes) - X.sizes
        indices = np.concatenate([indices + start for (_, indices), start in zip(found, starts, strict=True)])
        rows = stacked([rows for rows, _ in found if rows.shape[0]])
        return nystrom.Centers(rows, indices.astype(np.intp), words), None


class FalkonRegressor(ChunkedFalkon, local.FalkonRegressor):
    """Fit :class:`clsvm.FalkonRegressor` to rows in chunks on Dask's workers."""

    _encoding = Numbers

    def _encoded(self, rows: FalkonRows, summaries: list[Summary]) -> tuple[Encoding, Task]:
        weights = np.array([float(one.weights[0]) for one in summaries])
        if not weights.sum() > 0:
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        means = np.concatenate([one.keys for one in summaries])
        filled = [one for one in summaries if one.weighted]
        least, most = np.min([one.least for one in filled], axis=0), np.max([one.most for one in filled], axis=0)
        if not self.fit_intercept:
            offset = np.zeros(means.shape[1])
        elif self.loss == "squared":
            offset = weights @ means / weights.sum()
        else:
            offset = np.array([self._middle(rows, c, *ends) for c, ends in enumerate(zip(least, most, strict=True))])
        extremes = np.stack([least, most], axis=1)
        total, penalty = np.array([float(weights.sum())]), float(self.penalty)
        return Numbers(), Task(LOSSES[self.loss], extremes, total, offset, penalty, deviation(extremes, offset))

    def _middle(self, rows: FalkonRows, output: int, low: float, high: float) -> float:
        """Return the constant prediction between ``low`` and ``high`` that has the least loss for one output.

        The loss is summed over all rows. The constant is found as the zero of the loss's derivative.

        output: index of the output.
        """

        def slope(at: float) -> float:
            of_chunk = partial(slope_at, self.loss, output, at)
            return float(sum(rows.chunks.map(of_chunk, rows.chunks.y, rows.chunks.weights)))

        return crossing(slope, float(low), float(high))


class FalkonClassifier(ChunkedFalkon, local.FalkonClassifier):
    """Fit :class:`clsvm.FalkonClassifier` to rows in chunks on Dask's workers."""


class LogisticFalkonClassifier(ChunkedFalkon, local.LogisticFalkonClassifier):
    """Fit :class:`clsvm.LogisticFalkonClassifier` to rows in chunks on Dask's workers."""
