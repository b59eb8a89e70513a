"""Divide the columns of sparse rows into densely stored and sparse ones, and divide rows into clusters of similar rows.

Columns: the densest columns are stored densely, zeros included, and the others as sparse entries. A column is stored
densely if the device reads it faster in this form, by the costs in its profile (:class:`Gain`). Columns are numbered by
falling density, so that the columns with the most entries are next to each other. Reference: Xie et al. 2023
(BoostSVM), where a column is stored densely if its density exceeds a fixed limit.

Clusters: rows of a cluster are nonzero in similar columns. If at least one row of a cluster is nonzero in a column, the
cluster stores the column's values for all its rows, zeros included. Several clusters, the active ones, are filled at a
time. The device takes one row x after another. A row joins the active cluster S for which the fewest additional zeros
must be stored. Let a be the number of columns in which x is nonzero and all rows of S are zero. Let b be the number of
columns in which x is zero and a row of S is not:

    additional zeros = (number of rows of S) * a + b.

A full cluster is no longer active, and a new cluster takes its place. Reference: GTSVM (Cotter, Srebro, Keshet 2011),
section 5.3, algorithm 2. For n rows, clusters of l rows and the wanted number k of active clusters, the paper sets the
number of active clusters to max(k, n / l). This is a misprint for min(k, n / l).

GTSVM takes the rows in random order. A random order is best while the active clusters are a large share of all
clusters. Otherwise rows are sorted by a few columns that best predict the other columns (:func:`informative_columns`).
The sorted rows are cut into pieces, which are clustered in parallel.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from clsvm.arrays import Data
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Buffer, Stream

PIECE = 1 << 19  # number of CSR entries that a thread splits at a time into entries of dense and of sparse columns


@dataclass(frozen=True)
class Gain:
    """Compute how much is saved if a column of sparse rows is stored densely.

    The saving is (entry * density)^power - 1, where ``density`` is the share of the rows that are nonzero in the
    column. The unit is the cost of one value of a column that is stored densely.

    Attributes
    ----------
    entry
        cost of a sparse entry, divided by the cost of a value of a densely stored column. If ``power`` is 2, ``entry``
        is the square root of this ratio.
    power
        1 for CSR entries. 2 for an inverted index, whose cost grows with the number of pairs of entries in a column.
    least
        columns are stored densely only if the sum of their savings exceeds this number.
    """

    entry: float
    power: int = 1
    least: float = 0.0

    def whole(self, density: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a mask of the columns that are worth storing densely, given each column's density (d,)."""
        gained = (density * self.entry) ** self.power - 1
        found: NDArray[np.bool_] = gained > 0
        return found if gained[found].sum() > self.least else np.zeros_like(found)


@dataclass(frozen=True)
class Partition:
    """Hold an order of the d columns of sparse rows, and the number of columns that are stored densely.

    ``order`` (d,) lists the column numbers. The columns in its first ``dense`` places are stored densely.
    """

    order: NDArray[np.int32]
    dense: int

    @cached_property
    def rank(self) -> NDArray[np.int32]:
        """Return an array (d,) with the index of each column in ``order``."""
        rank = np.empty_like(self.order)
        rank[self.order] = np.arange(len(self.order), dtype=self.order.dtype)
        return rank

    def __getstate__(self) -> dict[str, object]:
        return {"order": self.order, "dense": self.dense}

    def widened(self, d: int) -> Partition:
        """Return this partition extended to d columns. The added columns come last, and are not stored densely."""
        if d <= len(self.order):
            return self
        return Partition(np.concatenate([self.order, np.arange(len(self.order), d, dtype=np.int32)]), self.dense)


def counts(X: Data) -> NDArray[np.int64]:
    """Return the number of nonzero entries in each column of X (n, d), dense or CSR."""
    if isinstance(X, np.ndarray):
        return np.count_nonzero(X, axis=0)
    return np.bincount(X.indices[X.data != 0] if not X.data.all() else X.indices, minlength=X.shape[1])


def by_density(count: NDArray[np.int64]) -> Partition:
    """Return a Partition that lists all columns in the order of falling density.

    In this Partition, no column is stored densely: only the nonzero entries of each column are stored. The density of a
    column is the share of the rows that are nonzero in the column. ``count`` (d,) is the number of nonzero entries of
    each of the d columns.
    """
    return Partition(np.argsort(-count, kind="stable").astype(np.int32), 0)


def partition(count: NDArray[np.int64], n: int, gain: Gain) -> Partition:
    """Return the partition that orders columns by falling density. Columns that ``gain`` selects are stored densely.

    ``count`` (d,) is the number of entries of each column in n rows.
    """
    rising, empty = np.argsort(count, kind="stable"), np.count_nonzero(count == 0)
    falling = np.concatenate([rising[empty:][::-1], rising[:empty]])
    return Partition(falling.astype(np.int32), int(gain.whole(count[rising] / max(1, n)).sum()))


def split(X: sp.csr_matrix, made: Partition) -> tuple[NDArray[np.floating], sp.csr_matrix]:
    """Split CSR rows X (n, d) into an array of the dense columns and a CSR matrix of the other columns.

    The partition ``made`` says which columns are dense. The entries of each row in the CSR matrix keep their order.
    Each thread splits some rows at a time. Raises ValueError if the partition is for another number of columns.
    """
    n, d = X.shape
    if len(made.order) != d:
        raise ValueError(f"X must have {len(made.order)} features, as the given partition of columns has, got {d}")
    dense, rank = np.zeros((n, made.dense), X.dtype), made.rank

    def part(first: int, last: int) -> tuple[NDArray[np.floating], NDArray[np.int32], NDArray[np.intp]]:
        """Split rows first .. last - 1 of X into densely stored columns and the entries of the other columns.

        A densely stored column has a value for each row, zeros included. These values are written to the array
        ``dense`` of the enclosing function. For the other columns, return three arrays: the values of the entries, the
        column number of each entry, counted from the first of the other columns, and the number of entries in each row.
        """
        ends = X.indptr[first : last + 1] - X.indptr[first]
        entries = slice(int(X.indptr[first]), int(X.indptr[last]))
        columns, data = rank.take(X.indices[entries]), X.data[entries]
        sparse = columns >= made.dense
        whole, entry = np.flatnonzero(~sparse), np.flatnonzero(sparse)  # NumPy selects faster by indices than by a mask
        row = first + np.searchsorted(ends, whole, "right") - 1
        dense[row, columns.take(whole)] = data.take(whole)
        return data.take(entry), columns.take(entry) - np.int32(made.dense), np.diff(np.searchsorted(entry, ends))

    ends = np.searchsorted(X.indptr, np.arange(PIECE, X.indptr[-1], PIECE))
    edges = np.concatenate([[0], ends, [n]])
    with ThreadPoolExecutor(os.cpu_count(), "clsvm partition") as pool:
        parts = (pool.map if len(edges) > 2 else map)(part, edges[:-1], edges[1:])
        data, columns, lengths = map(np.concatenate, zip(*parts, strict=True))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return dense, sp.csr_matrix((data, columns, indptr), shape=(n, d - made.dense))


# By default, ACTIVE clusters of similar rows are filled at a time: each row joins the most similar of these clusters.
ACTIVE = 64  # the default of GTSVM
_GROUP = 64  # number of work-items of a work-group that assigns rows to clusters of similar rows
# A cluster of similar rows has a bit set of its nonzero columns. The words of _LANES such bit sets are interleaved.
_LANES = 16
# Clusters of similar rows store about EXCESS times the zeros of equal-sized groups of rows sorted by nonzero columns.
EXCESS = 0.85
# By default, rows are sorted before clustering if there are at least _CROSSING * ACTIVE clusters.
_CROSSING = 8
_SAMPLE = 2048, 1 << 22  # the columns to sort by are chosen from a sample of about 2048 rows or 2^22 values
_TELLING = 32  # rows are sorted by at most this many columns: those that best predict the other columns
_SORTED = 8192, 1 << 24  # sampled_fill estimates clusters from a sample of about 8192 rows or 2^24 values
_STAGING = 256 << 20  # bytes of dense rows that are copied to the device at a time


@dataclass(frozen=True)
class Clusters:
    """Hold clusters of at most ``size`` rows that are nonzero in similar columns.

    Attributes
    ----------
    order
        (clusters * size,) int32, the row numbers of one cluster after another; -1 fills up a cluster with fewer rows.
    mask
        (clusters, d) bool, whether any row of the cluster is not 0 in the column.
    """

    size: int
    order: NDArray[np.int32]
    mask: NDArray[np.bool_]


def options(profile: Profile, dtype: DTypeLike) -> list[str]:
    """Return the -D options of the kernels in cluster.cl, which group similar rows, for rows of ``dtype``."""
    shape = ["-DSIMD"] if profile.style == "simd" else [f"-DWG={_GROUP}"]
    wide = ["-DWIDE_PAIR"] * (profile.wide == "pair")
    return [f"-DINPUT={'float' if np.dtype(dtype) == np.float32 else 'double'}", *shape, *wide]


def cluster(
    stream: Stream,
    X: Any,
    size: int,
    active: int | None = ACTIVE,
    order: str | None = None,
    centre: NDArray[np.float64] | None = None,
) -> Clusters:
    """Divide the rows of X (n, d) into clusters of ``size`` rows that are nonzero in similar columns.

    X is a C-contiguous float32 or float64 array, or CSR with int32 indices.

    A cluster stores the same columns for all of its rows, zeros included. Rows join clusters one after another. Each
    row joins the open cluster in which the row adds the fewest stored zeros. A cluster is open until it has ``size``
    rows. ``active`` is the largest number of clusters that are open at the same time; None means all clusters.

    ``order`` is the order in which rows join clusters: "random" as in the SVM program GTSVM, or "sorted" by similarity.
    None means "sorted" if there are many clusters, else "random". Sorted rows are cut into pieces, which are clustered
    in parallel. ``active`` then limits the open clusters of each piece. A value X[i, j] of dense rows counts as zero if
    it equals centre[j]. All devices with the same profile return the same clusters.

    Raises ValueError if (size + 1) * d >= 2^31. A row adds fewer than (size + 1) * d stored zeros to a cluster, and the
    device counts these zeros in int32. Raises MemoryLimitError if the memory budget cannot hold one bit for each value
    of X.
    """
    n, d = X.shape
    most = (size + 1) * d
    if most >= 2**31:
        raise ValueError(
            f"X has {d} features, too many for the clustered layout: adding a row to a cluster of rows could require "
            f"{most} stored zeros, more than the limit of {2**31 - 1}"
        )
    clusters = -(-n // size)
    if not n * d:
        places = np.arange(clusters * size, dtype=np.int32)
        return Clusters(size, np.where(places < n, places, -1).astype(np.int32), np.zeros((clusters, d), bool))
    active = min(active or clusters, clusters)
    pieces = clusters // (_CROSSING * max(active, ACTIVE))
    order = order or ("sorted" if pieces else "random")
    patterns = _patterns(stream, X, centre)
    if order == "random":
        walk, pieces = np.random.default_rng(0).permutation(n), 1
    else:
        walk = _sorted(stream.read(patterns, np.uint32, (n, _words(d))), d)
    found = _assign(stream, patterns, n, d, size, active, walk, max(1, min(pieces, stream.profile.chunks)))
    stream.free(patterns)
    return found


def _words(d: int) -> int:
    return -(-d // 32)


def _patterns(stream: Stream, X: Any, centre: NDArray[np.float64] | None) -> Buffer:
    """Return a device buffer of uint32 words with a set of d bits for each row of X (n, d).

    Bit j of row i is set if X[i, j] is not 0. For dense X with a vector ``centre``, the bit is set if X[i, j] is not
    centre[j].
    """
    n, d = X.shape
    name = "pattern_csr" if sp.issparse(X) else "pattern_dense"
    kernel = stream.kernel(sources.cl("gram/cluster"), options(stream.profile, X.dtype), name)
    zero = np.zeros(d) if centre is None else centre
    given = stream.upload(X.indptr.astype(np.int64) if sp.issparse(X) else zero.astype(stream.profile.finest))
    out = stream.buffer(4 * n * _words(d))
    if sp.issparse(X):
        with stream.view(X.indices) as (indices, first), stream.view(X.data) as (data, begin):
            kernel((n,), None, _words(d), given, indices, first, data, begin, out)
    else:
        step = max(1, n if stream.unified else (min(_STAGING, stream.largest) - 63) // (d * X.itemsize))
        for row in range(0, n, step):
            rows = X[row : row + step]
            with stream.view(rows) as (source, begin):
                kernel((_words(d), len(rows)), None, d, source, begin, given, row, out)
    stream.free(given)
    return out


def _assign(
    stream: Stream, patterns: Buffer, n: int, d: int, size: int, active: int, walk: NDArray[Any], pieces: int
) -> Clusters:
    """Divide n rows of d columns into clusters of ``size`` rows that are nonzero in similar columns.

    The buffer ``patterns`` holds a bit set of the nonzero columns of each row. ``walk`` is the order in which rows join
    clusters. The order is cut into ``pieces`` parts that are clustered independently. In each part at most ``active``
    clusters are filled at a time, and a row joins one of these clusters.
    """
    clusters, words = -(-n // size), _words(d)
    order = np.full(clusters * size, -1, np.int32)
    share = -(-clusters // pieces)
    pieces = -(-clusters // share)
    k = -(-min(active, share) // _LANES) * _LANES
    walked, placed = stream.upload(walk.astype(np.int32)), stream.upload(order)
    unions, slots, filled = (stream.buffer(4 * m) for m in (pieces * k * words, pieces * 3 * k, clusters * words))
    items = 1 if stream.profile.style == "simd" else _GROUP
    kernel = stream.kernel(sources.cl("gram/cluster"), options(stream.profile, np.float32), "assign")
    numbers = n, words, size, min(active, share), k, clusters, share
    kernel((items * pieces,), (items,), *numbers, patterns, walked, unions, slots, filled, placed)
    order = stream.read(placed, np.int32, len(order))
    bits = stream.read(filled, np.uint32, (clusters, words)).astype("<u4").view(np.uint8)
    stream.free(walked, placed, unions, slots, filled)
    return Clusters(size, order, np.unpackbits(bits, axis=1, count=d, bitorder="little").view(bool))


def _sorted(patterns: NDArray[np.uint32], d: int) -> NDArray[np.intp]:
    """Return an order (n,) of n rows of d columns in which neighbours are similar.

    patterns[i] is the bit set of the columns in which row i is nonzero.
    """
    sample = sampled(patterns, d, *_SAMPLE).astype("<u4").view(np.uint8)
    columns = informative_columns(np.unpackbits(sample, axis=1, count=d, bitorder="little"))
    return by_pattern(patterns[:, columns // 32] >> (columns % 32).astype(np.uint32) & 1)


def by_pattern(bits: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order that sorts the rows of ``bits``, an array of 0 and 1 with at most 32 columns.

    Rows are sorted as binary numbers whose highest digit is the first column. Equal rows keep their order.
    """
    weights = np.uint32(1) << np.arange(bits.shape[1], dtype=np.uint32)[::-1]
    return np.argsort(bits.astype(np.uint32) @ weights, kind="stable")


def sampled(rows: Any, d: int, most: int, cells: int) -> Any:
    """Return every k-th row of ``rows``, which have d values each.

    k is chosen such that the sample has at most 2 * ``most`` rows, and at most about 2 * ``cells`` values.
    """
    n = rows.shape[0]
    return rows[:: max(1, n // most, n * d // cells)]


def informative_columns(patterns: NDArray[Any]) -> NDArray[np.intp]:
    """Return the numbers of at most 32 columns of ``patterns`` (m, d) that best predict the other columns.

    Patterns are rows of 0 and 1. The returned columns are the pivots in a Cholesky factorization of the covariance of
    the columns over a sample of the rows. Fewer than 32 columns are returned if they determine all other columns.
    """
    pattern = np.asarray(sampled(patterns, patterns.shape[1], *_SAMPLE), np.float32)
    pattern = pattern - pattern.mean(axis=0)
    residual = np.einsum("ij,ij->j", pattern, pattern) / max(1, len(pattern))  # the covariance's diagonal
    factor = np.zeros((pattern.shape[1], _TELLING))
    columns: list[int] = []
    for k in range(min(_TELLING, pattern.shape[1])):
        j = int(np.argmax(residual))
        if residual[j] < 1e-6:
            break
        columns.append(j)
        covariance = pattern.T @ pattern[:, j] / len(pattern)
        factor[:, k] = (covariance - factor[:, :k] @ factor[j, :k]) / np.sqrt(residual[j])
        residual -= factor[:, k] ** 2
        residual[j] = 0
    return np.array(columns, np.intp)


def sampled_fill(X: Any, size: int) -> float:
    """Estimate how many columns of X a cluster of ``size`` rows stores on average.

    A cluster is a group of rows that are nonzero in similar columns. A cluster stores all columns in which at least one
    of its rows is nonzero. Clusters are made on a device, by :func:`cluster`. The estimate needs no device, because it
    uses simpler groups. A sample of rows is sorted by a few columns (:func:`informative_columns`), and is cut into
    groups of ``size`` consecutive rows. Let r be the mean number of columns in which one row is nonzero. Let g be the
    mean number of columns in which at least one row of a group is nonzero. Clusters store fewer columns than these
    groups, so the estimate is r + EXCESS * (g - r), where EXCESS < 1.
    """
    sample = sampled(X, X.shape[1], *_SORTED)
    groups = sample.shape[0] // size
    if not groups:
        return float(X.shape[1])
    pattern = (sample.toarray() if sp.issparse(sample) else sample) != 0
    order = by_pattern(pattern[:, informative_columns(pattern)])
    fill = float(pattern[order[: groups * size]].reshape(groups, size, -1).any(axis=1).sum(axis=1).mean())
    of_row = float(pattern.sum(axis=1).mean())
    return of_row + EXCESS * max(0.0, fill - of_row)
