"""Rows in chunks on Dask's workers: how they come there, some of them here, and what methods answer for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dask.array import from_array
from distributed import Client, Future, get_client
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from clsvm.dask import worker
from clsvm.dask.side import Chunks, nbytes
from clsvm.opencl.devices import listed

Vector = NDArray[np.float64]
HEAD = 20  # rows that are looked at before the work


def is_dask(X: Any) -> bool:
    """Whether X is one of Dask's collections."""
    return hasattr(X, "__dask_graph__")


class Moments(NamedTuple):
    """As much of all rows as a kernel function's numbers depend on."""

    shape: tuple[int, int]
    variance: float

    def var(self, dtype: Any = None) -> float:
        return self.variance


def split(rows: NDArray[np.intp], ends: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Sorted rows by the chunk that they are in, counted from its first."""
    cuts = np.searchsorted(rows, ends)
    starts = np.concatenate([[0], ends[:-1]])
    return [some - start for some, start in zip(np.split(rows, cuts[:-1]), starts, strict=True)]


def taken(chunks: Chunks, places: list[NDArray[np.intp]], there: bool = False) -> list[Any]:
    """(rows, places) of each chunk; there: counted among rows that weigh something."""
    found = chunks.each(worker.take, chunks.X, places, chunks.weights, [there] * len(places))
    chunks.sent += nbytes(places)
    chunks.received += nbytes([rows for rows, _ in found])
    return found


def client_for(words: str) -> Client:
    """The Dask client that is there. Raises ValueError, which says that ``words`` one, where there is none."""
    try:
        return get_client()
    except ValueError:
        raise ValueError(f"{words} a Dask client: make one by distributed.Client()") from None


def one_device(device: Any) -> None:
    """Raises ValueError where these are several: a worker has one."""
    if len(listed(device)) > 1:
        raise ValueError(f"rows in chunks take one device a worker, got device={device!r}")


def gathered(X: Any, y: Any, weights: Any) -> Chunks:
    """Chunks of X (n, d), y and weights (or None), kept by the workers. Raises ValueError where there is no client, or
    where they do not come in the same chunks."""
    client = client_for("rows in chunks need")
    X, y, weights = (array(one) for one in (X, y, weights))
    if X.ndim != 2:
        raise ValueError(f"X must be (n, d), got {X.ndim} dimensions")
    X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
    columns: list[list[Any]] = [_blocks(client, X)]
    for name, one in (("y", y), ("sample_weight", weights)):
        if one is None:
            columns.append([None] * len(columns[0]))
            continue
        one = one if hasattr(one, "chunks") else _like(np.asarray(one), X, name)
        known = not np.isnan([*X.chunks[0], *one.chunks[0]]).any()
        if known and sum(one.chunks[0]) != sum(X.chunks[0]):
            raise ValueError(f"{name} must have as many rows as X, got {sum(one.chunks[0])} and {sum(X.chunks[0])}")
        one = one.rechunk({0: X.chunks[0]}) if known and one.chunks[0] != X.chunks[0] else one
        one = one.rechunk({1: -1}) if one.ndim > 1 and one.numblocks[1] > 1 else one
        columns.append(_blocks(client, one))
        if len(columns[-1]) != len(columns[0]):
            raise ValueError(f"{name} must come in the {len(columns[0])} chunks of X, got {len(columns[-1])}")
    rows = [client.submit(worker.checked, block) for block in columns[0]]
    return Chunks(client, rows, columns[1], columns[2])


def array(one: Any) -> Any:
    """One of Dask's arrays of one of its data frames; anything else as it is."""
    return one.to_dask_array() if hasattr(one, "to_dask_array") else one


def _like(values: NDArray[Any], X: Any, name: str) -> Any:
    """Values that are here, in the chunks of X."""
    if np.isnan(X.chunks[0]).any():
        raise ValueError(f"{name} must be one of Dask's collections where the sizes of X's chunks are not known")
    return from_array(values, chunks=(X.chunks[0], *values.shape[1:]))


def _blocks(client: Any, array: Any) -> list[Future[Any]]:
    return list(client.compute([*array.to_delayed().ravel()]))


def named(head: Any, X: Any) -> Any:
    """Rows with the names of a data frame's columns."""
    return worker.named(head, getattr(X, "columns", None))


def variance(facts: list[worker.Facts]) -> float:
    """Of all cells of all chunks (Chan, Golub, LeVeque 1983)."""
    cells = np.array([one.n * one.d for one in facts], float)
    means = np.array([one.mean for one in facts])
    mean = cells @ means / cells.sum()
    return float((sum(one.squares for one in facts) + cells @ np.square(means - mean)) / cells.sum())


class Answering:
    """Methods of a fitted machine for rows in chunks."""

    n_features_in_: int

    def _answered(self, name: str, X: Any) -> Any:
        """What a method answers for rows in chunks, as an array of Dask's."""
        check_is_fitted(self)
        columns, X = getattr(X, "columns", None), array(X)
        like = worker.answer(np.zeros((1, self.n_features_in_)), self, name, columns)
        shape = {"drop_axis": 1} if like.ndim == 1 else {"chunks": (X.chunks[0], (like.shape[1],))}
        X = X.rechunk({1: -1}) if X.numblocks[1] > 1 else X
        return X.map_blocks(worker.answer, self, name, columns, dtype=like.dtype, meta=like[:0], **shape)

    def predict(self, X: Any) -> Any:
        """As of rows X (n, d) in one place; of one of Dask's collections an array of Dask's."""
        return self._answered("predict", X) if is_dask(X) else super().predict(X)  # type: ignore[misc]
