"""Exact SVMs over chunks of rows: a shard on each of Dask's workers, the working set here.

chunks          checked and kept by the workers that have them, one below the other in a shard for each worker
an iteration    rows of the working set go to the shards that lack them, candidates come back (solvers/sharded.py)
a lost shard    is built again by another worker, and its f made anew from the coefficients, which are here
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_y

from clsvm.arrays import Data, stacked
from clsvm.dask import worker
from clsvm.dask.executor import Chunks, on_workers
from clsvm.dask.rows import (
    HEAD,
    OverChunks,
    answering,
    gathered,
    is_dask,
    measured,
    one_device,
    split,
    taken,
    variance,
)
from clsvm.estimators import svm, targets
from clsvm.fit.sharded import Laid, OneShard
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options


def shard(stream: Stream, X: Data, *_: Any, kernel: Kernel, plan: Plan, dtype: str) -> OneShard:
    """Build a worker's shard of rows X (n, d)."""
    return OneShard(stream, X, kernel, plan, dtype)


class ChunkedRows:
    """:class:`clsvm.fit.sharded.RemoteRows` X (n, d) in chunks on workers. Each worker's chunks become one shard; some
    of the rows come here by their numbers."""

    def __init__(self, chunks: Chunks, columns: Any = None) -> None:
        self.columns = columns  # of a data frame
        facts = measured(chunks)
        sizes = [one.n for one in facts]
        self.shape, self._variance = (sum(sizes), max(facts).d), variance(facts)
        ends, client, homes = np.cumsum(sizes), chunks.client, chunks.homes()
        shards: list[Any] = []
        order: list[NDArray[np.intp]] = []
        self.sizes: list[int] = []
        for home in sorted(set(homes)):
            own = [i for i, one in enumerate(homes) if one == home and sizes[i]]
            if own:
                parts = [chunks.X[i] for i in own]
                shards.append(client.submit(stacked, parts, workers=[home], allow_other_workers=True))
                order += [np.arange(ends[i] - sizes[i], ends[i]) for i in own]
                self.sizes.append(sum(sizes[i] for i in own))
        self.order = np.concatenate(order)
        self._place = np.argsort(self.order)
        none = [None] * len(shards)
        self.chunks = Chunks(client, shards, none, none)

    def var(self, dtype: Any = None) -> float:
        """Return the variance of all cells."""
        return self._variance

    def __getitem__(self, rows: Any) -> Data:
        """Return some of the rows, by a slice or by their numbers, here."""
        places, inverse = np.unique(self._place[rows], return_inverse=True)
        found = [some for some, _ in taken(self.chunks, split(places, np.cumsum(self.sizes))) if some.shape[0]]
        if not found:
            found = [self.chunks.client.submit(worker.take, self.chunks.X[0], places).result()[0]]
        return stacked(found)[inverse]

    @contextmanager
    def laid(self, kernel: Kernel, options: Options, dtype: str) -> Iterator[Laid]:
        """Lay out a shard for each worker that has chunks."""
        chunks, where = self.chunks, (options.device, options.memory_limit)
        largest = chunks.X[int(np.argmax(self.sizes))]
        asked = chunks.client.submit(worker.choose, largest, kernel, options.layout, *where, pure=False)
        plan, finest, device = asked.result()
        build = partial(shard, kernel=kernel, plan=plan, dtype=dtype)
        with on_workers(chunks, build, self.sizes, *where) as shards:
            yield Laid(shards, plan, finest, f"{len(self.sizes)} of Dask's workers, each with {device}")


class ChunkedSVM(OverChunks):
    """What the SVMs of this package share. y and sample_weight come here, rows stay."""

    kernel: Any
    checkpoint: Any

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        one_device(self.device)
        if self.checkpoint is not None:
            raise ValueError(f"checkpoint is for rows in one place, got rows in chunks and {self.checkpoint!r}")
        if self.kernel == "precomputed" or (callable(self.kernel) and not isinstance(self.kernel, Kernel)):
            raise ValueError(f"rows in chunks take kernel functions of the device, got kernel={self.kernel!r}")
        chunks = gathered(X)
        y, sample_weight = (chunks.client.persist(one) if is_dask(one) else one for one in (y, sample_weight))
        rows = ChunkedRows(chunks, getattr(X, "columns", None))
        self._learn(rows, y, sample_weight, started)
        self.bytes_sent_ = rows.chunks.bytes_sent
        return rows

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **checks: Any) -> Any:
        if not isinstance(X, ChunkedRows):
            return super()._rows(X, y, reset=reset, **checks)  # type: ignore[misc]
        super()._rows(worker.named(X[:HEAD], X.columns), reset=reset)  # type: ignore[misc]
        if isinstance(y, str):
            return X
        if y is None:
            raise ValueError("y must be given, got None")
        targets.check_missing(y)
        y = _check_y(y, y_numeric=checks.get("y_numeric", False))
        if len(y) != X.shape[0]:
            raise ValueError(f"y must have as many rows as X, got {len(y)} and {X.shape[0]}")
        return X, y


@answering
class SVC(ChunkedSVM, svm.SVC):
    """:class:`clsvm.SVC` for rows in chunks."""


@answering
class NuSVC(ChunkedSVM, svm.NuSVC):
    """:class:`clsvm.NuSVC` for rows in chunks."""


@answering
class SVR(ChunkedSVM, svm.SVR):
    """:class:`clsvm.SVR` for rows in chunks."""


@answering
class OneClassSVM(ChunkedSVM, svm.OneClassSVM):
    """:class:`clsvm.OneClassSVM` for rows in chunks."""
