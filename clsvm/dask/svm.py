"""Fit SVMs to Dask arrays and data frames, whose rows are in chunks on workers.

The caller is the process that calls ``fit``. The caller chooses working sets, and solves the dual problem over the rows
of a working set. Each worker holds a shard: the rows of all its chunks, with the gradient f of the dual problem at
these rows (solvers/sharded.py).

rows            Each worker checks its chunks, and joins them into one shard.
an iteration    The caller sends the changes of the coefficients to all shards. The caller also sends the rows whose
                coefficients changed, unless the shards have cached the kernel values of these rows. Each shard updates
                its f, and returns candidates for the next working set.
a lost shard    Another worker builds the shard again, and recomputes its gradient f from the coefficients, which the
                caller holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_y

from clsvm.arrays import Data, stacked
from clsvm.dask.executor import Chunks, OnWorkers
from clsvm.dask.rows import ChunkedRows, OverChunks, checked_chunks, is_dask
from clsvm.estimators import svm
from clsvm.estimators.checks import check_missing
from clsvm.fit.sharded import ShardSet
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.solvers.sharded import Shard


def shard(stream: Stream, X: Data, *_: Any, kernel: Kernel, plan: Plan, dtype: str) -> Shard:
    """Build a shard on the worker's device.

    X: rows (n, d) of all chunks of the worker.
    plan: storage format of the rows on the device.
    dtype: dtype of kernel values.
    """
    return Shard(stream, X, kernel, plan, dtype)


class ShardedRows(ChunkedRows):
    """Hold the rows X (n, d) of an SVM fit on Dask's workers. The rows on a worker form one shard.

    This class implements :class:`clsvm.fit.sharded.RemoteRows`.

    Attributes
    ----------
    order
        row numbers (n,) in X of the rows of the first shard, then of the second shard, and so on.
    sizes
        number of rows of each shard.
    """

    def __init__(self, chunks: Chunks, columns: Any = None) -> None:
        super().__init__(chunks, columns)
        ends, client, addresses = np.cumsum(self.sizes), chunks.client, chunks.addresses()
        shards: list[Any] = []
        order: list[NDArray[np.intp]] = []
        for address in sorted(set(addresses)):
            chunks_here = [i for i, one in enumerate(addresses) if one == address]
            parts = [chunks.X[i] for i in chunks_here]
            shards.append(client.submit(stacked, parts, workers=[address], allow_other_workers=True))
            order.append(np.concatenate([np.arange(ends[i] - self.sizes[i], ends[i]) for i in chunks_here]))
        self.order, self.sizes = np.concatenate(order), [len(one) for one in order]
        self._inverse_order = np.argsort(self.order)
        none = [None] * len(shards)
        self.chunks = Chunks(client, shards, none, none)

    def __getitem__(self, rows: Any) -> Data:
        return super().__getitem__(self._inverse_order[rows])

    @contextmanager
    def lay_out(self, kernel: Kernel, options: Options, dtype: str) -> Iterator[ShardSet]:
        """Copy the rows to the workers' devices, and yield the shards, which compute kernel values in ``dtype``.

        A shard holds the rows of one worker. The devices' memory is freed when the ``with`` block ends.
        """
        plan, finest, device = self.planned(kernel, options)
        build = partial(shard, kernel=kernel, plan=plan, dtype=dtype)
        with closing(OnWorkers(self.chunks, build, self.sizes, options.device, options.memory_limit)) as shards:
            yield ShardSet(shards, plan, finest, f"{len(self.sizes)} of Dask's workers, each with {device}")


class ChunkedSVM(OverChunks):
    """Fit an SVM to rows in chunks. This is the base class of the estimators in this module.

    The process that calls ``fit`` fetches all of y and sample_weight from the workers. X stays on the workers.
    """

    kernel: Any
    checkpoint: Any

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        if self.checkpoint is not None:
            raise ValueError(f"checkpoint must be None for X in Dask chunks, got {self.checkpoint!r}")
        if self.kernel == "precomputed" or (callable(self.kernel) and not isinstance(self.kernel, Kernel)):
            raise ValueError(
                f"for X in Dask chunks, kernel must be a Kernel or a name other than 'precomputed', got {self.kernel!r}"
            )
        chunks = checked_chunks(X)
        y, sample_weight = (chunks.client.persist(one) if is_dask(one) else one for one in (y, sample_weight))
        rows = ShardedRows(chunks, getattr(X, "columns", None))
        self._learn(rows, y, sample_weight, started)

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **asked: Any) -> Any:
        if not isinstance(X, ChunkedRows) or isinstance(y, str):
            return super()._rows(X, y, reset=reset, **asked)
        X = super()._rows(X, reset=reset)
        if y is None:
            raise ValueError("y must be given, got None")
        check_missing(y)
        y = _check_y(y, y_numeric=asked.get("y_numeric", False))
        if len(y) != X.shape[0]:
            raise ValueError(f"y must have {X.shape[0]} rows, as X has, got {len(y)}")
        return X, y


class SVC(ChunkedSVM, svm.SVC):
    """Fit :class:`clsvm.SVC` to rows in chunks on Dask's workers."""


class NuSVC(ChunkedSVM, svm.NuSVC):
    """Fit :class:`clsvm.NuSVC` to rows in chunks on Dask's workers."""


class SVR(ChunkedSVM, svm.SVR):
    """Fit :class:`clsvm.SVR` to rows in chunks on Dask's workers."""


class OneClassSVM(ChunkedSVM, svm.OneClassSVM):
    """Fit :class:`clsvm.OneClassSVM` to rows in chunks on Dask's workers."""
