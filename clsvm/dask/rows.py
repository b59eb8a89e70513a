"""Rows in chunks on Dask's workers: how they come there, some of them here, and what estimators answer for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

import dask
import numpy as np
import scipy.sparse as sp
from dask.array import Array, from_array
from distributed import Client, Future, get_client
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import _num_samples, check_is_fitted

from clsvm.arrays import stacked
from clsvm.dask import worker
from clsvm.dask.encoding import joined
from clsvm.dask.executor import Chunks, nbytes, results
from clsvm.opencl.devices import listed

Vector = NDArray[np.float64]
Estimator = TypeVar("Estimator")
HEAD = 20  # rows that are looked at before the work
ANSWERS = "predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples"


def is_dask(X: Any) -> bool:
    """Whether X is one of Dask's collections."""
    return hasattr(X, "__dask_graph__")


class Moments(NamedTuple):
    """The facts of all rows that a kernel function's numbers depend on."""

    shape: tuple[int, int]
    variance: float

    def var(self, dtype: Any = None) -> float:
        return self.variance


def split(rows: NDArray[np.intp], ends: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return sorted rows by their chunk, counted from its first."""
    cuts = np.searchsorted(rows, ends)
    starts = np.concatenate([[0], ends[:-1]])
    return [some - start for some, start in zip(np.split(rows, cuts[:-1]), starts, strict=True)]


def taken(chunks: Chunks, places: list[NDArray[np.intp]], there: bool = False) -> list[Any]:
    """Return (rows, places) of each chunk; there: places are counted among rows that weigh something."""
    found = chunks.each(partial(worker.take, there=there), chunks.X, places, chunks.weights)
    chunks.sent += nbytes(places)
    chunks.received += nbytes([rows for rows, _ in found])
    return found


def client_for(words: str) -> Client:
    """Return the current Dask client. Raises ValueError, which says that ``words`` one, where there is no open one."""
    try:
        client = get_client()
    except ValueError:
        raise ValueError(f"{words} a Dask client: make one by distributed.Client()") from None
    if client.status in ("closing", "closed"):
        raise ValueError(
            f"{words} an open Dask client, got one that is {client.status}: make one by distributed.Client()"
        )
    return client


def one_device(device: Any) -> None:
    """Check a worker's device. Raises ValueError where it is several."""
    if len(listed(device)) > 1:
        raise ValueError(f"rows in chunks take one device a worker, got device={device!r}")


def gathered(X: Any, y: Any = None, weights: Any = None) -> Chunks:
    """Return the chunks of X (n, d), y and weights (or None), which the workers compute and keep.

    Raises ValueError where there is no client, or where the three do not come in the same chunks.
    """
    client = client_for("rows in chunks need")
    X = rows_of(X)
    rows = [client.submit(worker.checked, block) for block in _blocks(client, X)]
    return Chunks(client, rows, _column(client, y, X, "y"), _column(client, weights, X, "sample_weight"))


def _column(client: Client, one: Any, X: Any, name: str) -> list[Any]:
    """Return the chunks of y or sample_weight, as those of X. A single weight, or None, is that of each chunk."""
    n, ends = X.npartitions, _sizes(X)
    if not is_dask(one):
        if one is None or (name == "sample_weight" and np.ndim(one) == 0):
            return [one] * n
        given, one = type(one).__name__, worker.values(one, name)
        if _num_samples(one) != sum(ends) and not np.isnan(ends).any():
            raise ValueError(f"{name} must have as many rows as X, got {len(one)} and {sum(ends)}")
        if np.isnan(ends).any():
            raise ValueError(
                f"{name} must be one of Dask's collections where the sizes of X's chunks are not known, got {given}"
            )
        one = from_array(one, chunks=(ends, *one.shape[1:]))
    one = chunked(one, name)
    if name == "sample_weight" and one.ndim != 1:
        raise ValueError(
            f"sample_weight must be one number for each row, got a {type(one).__name__} with ndim={one.ndim}"
        )
    own = _sizes(one)
    if not np.isnan([*ends, *own]).any():
        if sum(own) != sum(ends):
            raise ValueError(f"{name} must have as many rows as X, got {sum(own)} and {sum(ends)}")
        one = one.rechunk({0: ends})
    blocks = _blocks(client, one)
    if len(blocks) != n:
        raise ValueError(f"{name} must come in the {n} chunks of X, got {len(blocks)}")
    return [client.submit(worker.values, block, name) for block in blocks]


def is_frame(one: Any) -> bool:
    """Return whether ``one`` is a data frame or series of Dask."""
    return hasattr(type(one), "to_dask_array")


def chunked(one: Any, name: str) -> Any:
    """Return a Dask array, its rows whole in each chunk, or a data frame. Raises TypeError for other collections."""
    if is_frame(one):
        return one
    if not isinstance(one, Array):
        raise TypeError(f"{name} must be a Dask array, data frame or series, got {type(one).__name__}")
    if one.ndim == 0:
        raise ValueError(f"{name} must have a value for each row, got a Dask array without dimensions")
    return one.rechunk(dict.fromkeys(range(1, one.ndim), -1)) if max(one.numblocks[1:], default=1) > 1 else one


def rows_of(X: Any) -> Any:
    """Return :func:`chunked` rows X (n, d). Raises ValueError for another number of dimensions."""
    X = chunked(X, "X")
    if X.ndim != 2:
        raise ValueError(f"X must be rows of features (n, d), got a {type(X).__name__} with ndim={X.ndim}")
    return X


def here(**given: Any) -> dict[str, Any]:
    """Return Dask's collections as NumPy's, SciPy's or pandas', all computed at once, and anything else as it is."""
    there = {name: chunked(one, name) for name, one in given.items() if is_dask(one)}
    asked = [one if is_frame(one) else dask.delayed(list)([*one.to_delayed().ravel()]) for one in there.values()]
    try:
        client = get_client()
    except ValueError:  # Dask's threads do without one
        came = [one.compute() for one in asked]
    else:
        came = results(client, [client.compute(one) for one in asked])
    found = dict(zip(there, came, strict=True))
    return {name: _whole(found[name], name) if name in found else one for name, one in given.items()}


def _whole(found: Any, name: str) -> Any:
    """Return the chunks of an array as one; a data frame as it is."""
    if not isinstance(found, list):
        return found
    if any(map(sp.issparse, found)):
        return stacked(found)
    return joined([worker.values(one, name) for one in found], name)


def measured(chunks: Chunks) -> list[worker.Facts]:
    """Return the facts of each chunk of rows. Raises ValueError where the chunks do not make one matrix."""
    facts = chunks.each(worker.facts, chunks.X)
    if not sum(one.n for one in facts):
        raise ValueError(f"X must have rows, got none in {len(facts)} chunks")
    filled = [one for one in facts if one.n]
    if len({one.d for one in filled}) > 1:
        shapes = [(one.n, one.d) for one in facts]
        raise ValueError(f"chunks of X must have rows with as many features each, got {shapes}")
    if len({one.sparse for one in filled}) > 1:
        kinds = ["sparse" if one.sparse else "dense" for one in facts]
        raise ValueError(f"chunks of X must be all dense or all sparse, got {kinds}")
    return facts


def _sizes(one: Any) -> tuple[float, ...]:
    """Return the rows of each chunk, nan where Dask does not know."""
    return tuple(one.chunks[0]) if isinstance(one, Array) else (np.nan,) * one.npartitions


def _blocks(client: Client, one: Any) -> list[Future[Any]]:
    delayed = one.to_delayed()
    return list(client.compute([*delayed] if isinstance(delayed, list) else [*delayed.ravel()]))


def variance(facts: list[worker.Facts]) -> float:
    """Return the variance of all cells of all chunks (Chan, Golub, LeVeque 1983)."""
    cells = np.array([one.n * one.d for one in facts], float)
    means = np.array([one.mean for one in facts])
    mean = cells @ means / cells.sum()
    return float((sum(one.squares for one in facts) + cells @ np.square(means - mean)) / cells.sum())


def in_chunks(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an estimator's method that answers for a Dask collection with a Dask array, and else as before."""

    @wraps(method)
    def answer(self: Any, X: Any) -> Any:
        return self._answered(method.__name__, X) if is_dask(X) else method(self, X)

    return answer


def scored(method: Callable[..., float]) -> Callable[..., float]:
    """Return an estimator's score, of Dask's collections too.

    The rows stay where they are; predictions, y and sample_weight come here.
    """

    @wraps(method)
    def score(self: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        if not any(map(is_dask, (X, y, sample_weight))):
            return method(self, X, y, sample_weight)
        found = here(y_true=y, y_pred=self.predict(X), sample_weight=sample_weight)
        return float((accuracy_score if is_classifier(self) else r2_score)(**found))

    return score


def answering(cls: type[Estimator]) -> type[Estimator]:
    """Return an estimator's class whose methods answer for Dask's collections, too."""
    for name in ANSWERS:
        if hasattr(cls, name):
            setattr(cls, name, in_chunks(getattr(cls, name)))
    if score := getattr(cls, "score", None):
        setattr(cls, score.__name__, scored(score))
    return cls


class Answering:
    """Methods of a fitted estimator for rows in chunks."""

    n_features_in_: int

    def _answered(self, name: str, X: Any) -> Any:
        """Return what a method answers for rows in chunks, as a Dask array. Raises ValueError for other features."""
        check_is_fitted(self)
        X = rows_of(X)
        d = self.n_features_in_ if np.isnan(X.shape[1]) else X.shape[1]
        like = worker.answer(worker.sample(self, d, getattr(X, "columns", None)), self, name)[:0]
        if is_frame(X):
            return X.map_partitions(worker.answer, self, name, meta=like)
        shape = {"drop_axis": 1} if like.ndim == 1 else {"chunks": (X.chunks[0], (like.shape[1],))}
        return X.map_blocks(worker.answer, self, name, dtype=like.dtype, meta=like, **shape)


class OverChunks(Answering):
    """What the estimators of this package share: X and y are as in clsvm's estimators, or Dask's collections.

    Rows come in chunks, of known sizes or unknown; columns in one. A Dask client has to be there. ``device`` and
    ``memory_limit`` are of each worker's device, and of the caller's for what stays here: an SVM's working set, a
    Falkon model's preconditioner. bytes_sent_ (dict) says what travelled after the rows were laid out.
    """

    device: Any

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        if is_dask(X):
            return self._learn_chunks(X, y, sample_weight, started)
        y, sample_weight = here(y=y, sample_weight=sample_weight).values()
        return super()._learn(X, y, sample_weight, started)  # type: ignore[misc]

    def _learn_chunks(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        """Learn from Dask's rows X (n, d). Raises ValueError or TypeError for what chunks do not support."""
        raise NotImplementedError
