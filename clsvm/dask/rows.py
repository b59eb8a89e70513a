"""Read Dask arrays and data frames as chunks of rows on Dask's workers, and predict for rows in chunks.

:func:`checked_chunks` makes the workers compute and check the chunks. :class:`ChunkedRows` presents the chunks as one
matrix. :class:`OverChunks` is the base class of estimators that fit and predict with rows in chunks. :func:`computed`
brings Dask collections to the caller's computer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import dask
import numpy as np
import scipy.sparse as sp
from dask.array import Array, from_array
from distributed import Client, Future, get_client
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from clsvm.arrays import Data, stacked
from clsvm.dask import worker
from clsvm.dask.executor import Chunks, results
from clsvm.distribute import split
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.opencl.devices import device_list

HEAD = 20  # this many rows are fetched to check the parameters before a fit
PREDICTIONS = "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples"


def is_dask(X: Any) -> bool:
    """Return whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


class ChunkedRows:
    """Present rows X (n, d), which are in chunks on workers, as one matrix.

    Indexing with a slice or an array of row numbers fetches these rows from the workers.

    Raises ValueError if the chunks of X are partly sparse and partly dense, or differ in their number of features.
    Raises ValueError also if a chunk of y or sample_weight has another length than its chunk of X.

    Attributes
    ----------
    chunks
        chunks of X, y and sample_weight, without the empty ones.
    columns
        column names of a data frame, else None.
    sizes
        number of rows of each chunk.
    shape
        number of rows and features (n, d).
    """

    def __init__(self, chunks: Chunks, columns: Any = None) -> None:
        infos = chunks.map(worker.describe, chunks.X)
        if not sum(one.n for one in infos):
            raise ValueError(f"X must have rows, got none in {len(infos)} chunks")
        non_empty = [one for one in infos if one.n]
        if len({one.d for one in non_empty}) > 1:
            shapes = [(one.n, one.d) for one in infos]
            raise ValueError(f"all chunks of X must have the same number of features, got shapes {shapes}")
        if len({one.sparse for one in non_empty}) > 1:
            kinds = ["sparse" if one.sparse else "dense" for one in infos]
            raise ValueError(f"chunks of X must be all dense or all sparse, got {kinds}")
        sizes = [one.n for one in infos]
        for words, column in (("y", chunks.y), ("sample_weight", chunks.weights)):
            column_sizes = chunks.map(len, column) if isinstance(column[0], Future) else sizes
            if column_sizes != sizes:
                raise ValueError(f"chunks of {words} must have {sizes} rows, as X's chunks have, got {column_sizes}")
        chunks.select([i for i, n in enumerate(sizes) if n])
        self.chunks, self.columns, self.sizes = chunks, columns, [one.n for one in non_empty]
        self.shape = sum(self.sizes), non_empty[0].d
        # Combine the variances of the chunks into the variance of all values of X (Chan, Golub, LeVeque 1983).
        cells, means = np.array(self.sizes, float) * non_empty[0].d, np.array([one.mean for one in non_empty])
        mean = cells @ means / cells.sum()
        squares = sum(one.squares for one in non_empty) + cells @ np.square(means - mean)
        self._variance = float(squares / cells.sum())

    def var(self, dtype: Any = None) -> float:
        """Return the variance of all n * d values of X, as a float. ``dtype`` has no effect."""
        return self._variance

    def take_rows(self, indices: list[NDArray[np.intp]], weighted: bool = False) -> list[Any]:
        """Fetch some rows of each chunk. Return for each chunk a pair: the rows, and their row numbers in the chunk.

        indices: for each chunk, the positions of the selected rows among all rows of the chunk, counted from 0.
        weighted: if true, ``indices`` are positions among the chunk's rows with positive weight instead. The returned
            row numbers are positions among all rows of the chunk.
        """
        chunks = self.chunks
        return chunks.map(partial(worker.take, weighted=weighted), chunks.X, indices, chunks.weights)

    def __getitem__(self, rows: Any) -> Data:
        """Fetch the rows of X that a slice or an array of row numbers selects."""
        numbers = np.arange(*rows.indices(self.shape[0])) if isinstance(rows, slice) else rows
        indices, inverse = np.unique(numbers, return_inverse=True)
        found = [some for some, _ in self.take_rows(split(indices, self.sizes))]
        return stacked([some for some in found if some.shape[0]] or found[:1])[inverse]

    def planned(self, kernel: Kernel, options: Any) -> tuple[Plan, str, str]:
        """Let a worker choose the layout of the largest chunk. A layout is a storage format of rows on a device.

        Return the layout, the most precise dtype of the worker's device, and the name of the device.

        options: object with the attributes layout, device and memory_limit.
        """
        given = kernel, options.layout, options.device, options.memory_limit
        largest = self.chunks.X[int(np.argmax(self.sizes))]
        return self.chunks.client.submit(worker.in_thread, worker.choose, largest, *given, pure=False).result()


def client_for(words: str) -> Client:
    """Return the current Dask client. Raises ValueError if no client is open.

    words: start of the error message, which says what needs a client.
    """
    try:
        client = get_client()
    except ValueError:
        raise ValueError(f"{words} a Dask client: make one by distributed.Client()") from None
    if client.status in ("closing", "closed"):
        raise ValueError(
            f"{words} an open Dask client, got one that is {client.status}: make one by distributed.Client()"
        )
    return client


def checked_chunks(X: Any, y: Any = None, weights: Any = None) -> Chunks:
    """Let the workers compute, check and keep the chunks of X (n, d), y and weights. Return the futures of the chunks.

    y and weights may be None. Raises ValueError if no client is open, or if y or weights cannot be divided into the
    same chunks as X.
    """
    client = client_for("X in Dask chunks needs")
    X = rows_of(X)
    rows = [client.submit(worker.checked, block) for block in _blocks(client, X)]
    return Chunks(client, rows, _column(client, y, X, "y"), _column(client, weights, X, "sample_weight"))


def _column(client: Client, one: Any, X: Any, name: str) -> list[Any]:
    """Divide y or sample_weight into chunks with the same rows as the chunks of X, and return the chunks' futures.

    ``one`` is the argument of ``fit`` with the name ``name``, "y" or "sample_weight". If ``one`` is None or a single
    weight, return a list with ``one`` itself for each chunk of X.
    """
    n, ends = X.npartitions, _sizes(X)
    if not is_dask(one):
        if one is None or (name == "sample_weight" and np.ndim(one) == 0):
            return [one] * n
        if np.isnan(ends).any():
            given = type(one).__name__
            raise ValueError(f"{name} must be a Dask collection if the sizes of X's chunks are not known, got {given}")
        one = from_array(worker.values(one, name), chunks=-1)
    one = chunked(one, name)
    if name == "sample_weight" and one.ndim != 1:
        raise ValueError(
            f"sample_weight must be one number for each row, got a {type(one).__name__} with ndim={one.ndim}"
        )
    sizes = _sizes(one)
    if not np.isnan([*ends, *sizes]).any():
        if sum(sizes) != sum(ends):
            raise ValueError(f"{name} must have {sum(ends)} rows, as X has, got {sum(sizes)}")
        one = one.rechunk({0: ends})
    blocks = _blocks(client, one)
    if len(blocks) != n:
        raise ValueError(f"{name} must have as many chunks as X ({n}), got {len(blocks)}")
    return [client.submit(worker.values, block, name) for block in blocks]


def is_frame(one: Any) -> bool:
    """Return whether an object is a Dask data frame or series."""
    return hasattr(type(one), "to_dask_array")


def chunked(one: Any, name: str) -> Any:
    """Return a Dask array, divided so that each chunk has whole rows. Return a Dask data frame or series unchanged.

    Raises TypeError for other collections. Raises ValueError for an array without dimensions.

    name: the parameter's name in messages.
    """
    if is_frame(one):
        return one
    if not isinstance(one, Array):
        raise TypeError(f"{name} must be a Dask array, data frame or series, got {type(one).__name__}")
    if one.ndim == 0:
        raise ValueError(f"{name} must have a value for each row, got a Dask array without dimensions")
    return one.rechunk(dict.fromkeys(range(1, one.ndim), -1)) if max(one.numblocks[1:], default=1) > 1 else one


def rows_of(X: Any) -> Any:
    """Return a Dask array or data frame X (n, d) in chunks of whole rows.

    Raises ValueError if X does not have two dimensions.
    """
    X = chunked(X, "X")
    if X.ndim != 2:
        raise ValueError(f"X must be rows of features (n, d), got a {type(X).__name__} with ndim={X.ndim}")
    return X


def computed(**given: Any) -> dict[str, Any]:
    """Compute all Dask collections among the arguments together. Return a dictionary of all arguments by name.

    Collections become NumPy arrays, SciPy matrices or pandas objects. Other arguments are returned unchanged.
    """
    collections = {name: chunked(one, name) for name, one in given.items() if is_dask(one)}
    delayed = [
        one if is_frame(one) else dask.delayed(list)([*one.to_delayed().ravel()]) for one in collections.values()
    ]
    try:
        client = get_client()
    except ValueError:  # without a client, Dask computes in its own threads
        came = [one.compute() for one in delayed]
    else:
        came = results(client, [client.compute(one) for one in delayed])
    found = dict(zip(collections, came, strict=True))
    return {name: _concatenated(found[name], name) if name in found else one for name, one in given.items()}


def _concatenated(found: Any, name: str) -> Any:
    """Concatenate a list of chunks to one array. Return a data frame unchanged. ``name`` is for error messages."""
    if not isinstance(found, list):
        return found
    if any(map(sp.issparse, found)):
        return stacked(found)
    return worker.joined([worker.values(one, name) for one in found], name)


def _sizes(one: Any) -> tuple[float, ...]:
    """Return the number of rows of each chunk of a Dask collection. A number that Dask does not know is nan."""
    return tuple(one.chunks[0]) if isinstance(one, Array) else (np.nan,) * one.npartitions


def _blocks(client: Client, one: Any) -> list[Future[Any]]:
    delayed = one.to_delayed()
    return list(client.compute([*delayed] if isinstance(delayed, list) else [*delayed.ravel()]))


def _in_chunks(cls: type, name: str) -> Any:
    """Return the prediction method ``name`` of an estimator class, extended to accept Dask collections."""
    method = getattr(cls, name)

    @wraps(method)
    def predict(self: Any, X: Any) -> Any:
        return self._predicted(name, X) if is_dask(X) else method(self, X)

    return available_if(lambda self: hasattr(super(cls, self), name))(predict)


def scored(method: Callable[..., float]) -> Callable[..., float]:
    """Return an estimator's method ``score``, extended to accept Dask collections.

    For a Dask collection, each worker predicts for the rows that it holds. The caller fetches the predictions, y and
    sample_weight, and computes the score.
    """

    @wraps(method)
    def score(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        if not any(map(is_dask, (X, y, sample_weight))):
            return method(self, X, y, sample_weight)
        found = computed(y_true=y, y_pred=self.predict(X), sample_weight=sample_weight)
        return float((accuracy_score if is_classifier(self) else r2_score)(**found))

    return score


class ChunkPredictions:
    """Let an estimator class predict for Dask collections. This class is a mixin.

    A subclass inherits prediction methods, such as ``predict``, from another base class. The mixin replaces each method
    that PREDICTIONS names. For a Dask collection of rows, the new method returns a lazy Dask collection of predictions.
    For other rows, the new method calls the inherited method.
    """

    n_features_in_: int

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for name in PREDICTIONS:
            if hasattr(cls, name) and name not in vars(cls):
                setattr(cls, name, _in_chunks(cls, name))

    def _predicted(self, name: str, X: Any) -> Any:
        """Return a lazy Dask collection of the results of the prediction method ``name`` for X (n, d).

        Raises ValueError if the estimator was fitted with another number of features than d.
        """
        check_is_fitted(self)
        X = rows_of(X)
        d = self.n_features_in_ if np.isnan(X.shape[1]) else X.shape[1]
        meta = worker.predicted(worker.sample(self, d, getattr(X, "columns", None)), self, name)[:0]
        if is_frame(X):
            return X.map_partitions(worker.predicted, self, name, meta=meta)
        shape = {"drop_axis": 1} if meta.ndim == 1 else {"chunks": (X.chunks[0], (meta.shape[1],))}
        return X.map_blocks(worker.predicted, self, name, dtype=meta.dtype, meta=meta, **shape)


class OverChunks(ChunkPredictions):
    """Fit and predict with Dask collections. This is the base class of the estimators in clsvm.dask.

    X and y may be Dask collections, or any data that clsvm's other estimators take. A fit to Dask collections needs an
    open Dask client. The numbers of rows of the chunks may be unknown.

    ``device`` and ``memory_limit`` hold for each worker, and for the process that calls ``fit``. This process solves
    the problems over an SVM's working sets, or computes a Falkon model's preconditioner.
    """

    device: Any

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "score" not in vars(cls) and (score := getattr(cls, "score", None)):
            cls.score = scored(score)  # type: ignore[attr-defined]

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        if not is_dask(X):
            y, sample_weight = computed(y=y, sample_weight=sample_weight).values()
            super()._learn(X, y, sample_weight, started)  # type: ignore[misc]
            return
        if len(device_list(self.device)) > 1:
            raise ValueError(
                f"for X in Dask chunks, device must name one device, which all workers use, got device={self.device!r}"
            )
        self._learn_chunks(X, y, sample_weight, started)

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> None:
        """Fit the estimator to a Dask collection X (n, d). ``started`` is the perf_counter() at the start of the fit.

        Raises ValueError or TypeError for parameters or data that rows in chunks do not support.
        """
        raise NotImplementedError

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **checks: Any) -> Any:
        if not isinstance(X, ChunkedRows):
            return super()._rows(X, y, reset=reset, **checks)  # type: ignore[misc]
        super()._rows(worker.named(X[:HEAD], X.columns), reset=reset)  # type: ignore[misc]
        return X
