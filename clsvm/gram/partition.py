"""Which columns of sparse rows are worth storing dense: BoostSVM's partition by column density.

Columns are walked from the emptiest on, those without an entry first; what was walked when a rule says stop is sparse,
the rest dense. Columns are numbered by falling density, dense ones first, so that what is read most stands together.
A row's entries stay in the order in which they came.

    paper   stops before a column that would bring the walked part above 5 % density, or that is itself above 50 %
    code    also where four times the entries walked are more than the cells that would be left dense (their source)
    cost    stops before a column that is read faster whole, by the profile's rates (:class:`Gain`)

Source: Xie et al. 2023 (BoostSVM), algorithms 1 and 2, and the code published with it. Counts are exact and over the
columns that have an entry: empty ones would dilute the 5 %.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data

SPARSE, FULL = 0.05, 0.5  # of the paper's rule: density of the walked part, of a column
LEFT = 4  # of the code's
PIECE = 1 << 19  # entries that a thread splits at a time
RULES = ("paper", "code", "cost")


@dataclass(frozen=True)
class Gain:
    """What storing columns whole gains. A column of such a density gains (entry * density)^power - 1 times what its
    cells take; entry: what a full column takes as entries over that, or its root. least: what all of them together must
    gain at least, in cells, for any to be whole."""

    entry: float
    power: int = 1
    least: float = 0.0

    def whole(self, density: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which columns of such density (d,) are worth storing whole."""
        gained = (density * self.entry) ** self.power - 1
        found: NDArray[np.bool_] = gained > 0
        return found if gained[found].sum() > self.least else np.zeros_like(found)


@dataclass(frozen=True)
class Partition:
    """The first ``dense`` of the columns in ``order`` (d,) are dense."""

    order: NDArray[np.int32]
    dense: int

    @cached_property
    def rank(self) -> NDArray[np.int32]:
        """Return where each column stands in the order, (d,)."""
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return rank

    def __getstate__(self) -> dict[str, object]:
        return {"order": self.order, "dense": self.dense}

    def widened(self, d: int) -> Partition:
        """Return the partition with empty columns behind, up to d."""
        if d <= len(self.order):
            return self
        return Partition(np.concatenate([self.order, np.arange(len(self.order), d, dtype=np.int32)]), self.dense)


def counts(X: Data) -> NDArray[np.int64]:
    """Return how many rows of X (n, d), dense or CSR, have an entry in each column: (d,)."""
    if isinstance(X, np.ndarray):
        return np.count_nonzero(X, axis=0)
    return np.bincount(X.indices[X.data != 0] if not X.data.all() else X.indices, minlength=X.shape[1])


def by_density(count: NDArray[np.int64]) -> Partition:
    """Return the order alone: no column is dense."""
    return Partition(_rising(int(count.max(initial=0)) - count).astype(np.int32), 0)


def _rising(count: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the order of counts; short numbers are sorted in a tenth of the time."""
    short = np.uint16 if int(count.max(initial=0)) < 1 << 16 else np.int64
    return np.argsort(count.astype(short), kind="stable")


def partition(count: NDArray[np.int64], n: int, rule: str, gain: Gain) -> Partition:
    """Return the partition of columns with ``count`` (d,) entries in n rows; gain: of the rule of costs. Raises
    ValueError for an unknown rule."""
    if rule not in RULES:
        raise ValueError(f"got the rule {rule!r}, expected one of {', '.join(RULES)}")
    rising = _rising(count)
    occur = rising[count[rising] > 0]
    dense = len(occur) - _walked(count[occur], n, rule, gain)
    falling = np.concatenate([occur[::-1], rising[: len(rising) - len(occur)]])
    return Partition(falling.astype(np.int32), dense)


def _walked(rising: NDArray[np.int64], n: int, rule: str, gain: Gain) -> int:
    """Return how many of the columns that occur are walked before the rule stops."""
    if rule == "cost":
        return len(rising) - int(gain.whole(rising / max(1, n)).sum())
    columns, total = np.arange(1, len(rising) + 1), np.cumsum(rising)
    stop = (total > SPARSE * n * columns) | (rising > FULL * n)
    if rule == "code":
        stop |= LEFT * total > n * (len(rising) - columns)
    return int(stop.argmax()) if stop.any() else len(rising)


def split(X: sp.csr_matrix, made: Partition) -> tuple[NDArray[np.floating], sp.csr_matrix]:
    """Split CSR rows X (n, d): return the dense columns (n, dense), and the others in CSR with each row's entries in
    the order that they had. Threads take some rows at a time. Raises ValueError where the partition is of another
    number of columns."""
    n, d = X.shape
    if len(made.order) != d:
        raise ValueError(f"the partition is of {len(made.order)} columns, got rows of {d}")
    dense, rank = np.zeros((n, made.dense), X.dtype), made.rank

    def part(first: int, last: int) -> tuple[NDArray[np.floating], NDArray[np.int32], NDArray[np.intp]]:
        """Values and columns of the entries that are not dense, and how many each row has."""
        ends = X.indptr[first : last + 1] - X.indptr[first]
        entries = slice(int(X.indptr[first]), int(X.indptr[last]))
        columns, data = rank.take(X.indices[entries]), X.data[entries]
        sparse = columns >= made.dense
        whole, rest = np.flatnonzero(~sparse), np.flatnonzero(sparse)  # (numbers are read faster than by a mask)
        row = first + np.searchsorted(ends, whole, "right") - 1
        dense[row, columns.take(whole)] = data.take(whole)
        return data.take(rest), columns.take(rest) - np.int32(made.dense), np.diff(np.searchsorted(rest, ends))

    ends = np.searchsorted(X.indptr, np.arange(PIECE, X.indptr[-1], PIECE))
    edges = np.unique(np.concatenate([[0], ends, [n]]))
    with ThreadPoolExecutor(os.cpu_count(), "clsvm partition") as pool:
        parts = (pool.map if len(edges) > 2 else map)(part, edges[:-1], edges[1:])
        data, columns, counts_ = zip(*parts, strict=True) if n else ([], [], [])
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([*counts_, np.zeros(0, np.intp)]))])
    joined = np.concatenate([*data, np.zeros(0, X.dtype)]), np.concatenate([*columns, np.zeros(0, np.int32)]), indptr
    return dense, sp.csr_matrix(joined, shape=(n, d - made.dense))
