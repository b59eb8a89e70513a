"""What of sparse rows stands together: columns that are worth storing dense, and clusters of rows.

Partition of columns by their density. Columns are walked from the emptiest on, those without an entry first; what was
walked when a rule says stop is sparse, the rest dense. Columns are numbered by falling density, dense ones first, so
that what is read most stands together. A row's entries stay in the order in which they came.

    paper   stops before a column that would bring the walked part above 5 % density, or that is itself above 50 %
    code    also where four times the entries walked are more than the cells that would be left dense (their source)
    cost    stops before a column that is read faster whole, by the profile's rates (:class:`Gain`)

Source: Xie et al. 2023 (BoostSVM), algorithms 1 and 2, and the code published with it. Counts are exact and over the
columns that have an entry: empty ones would dilute the 5 %.

Clusters of rows of like sparsity patterns, on the device (GTSVM section 5.3, Algorithm 2). One pass: each row joins the
active cluster S that costs least, |S| |Jx - JS| + |JS - Jx| for its columns Jx and the cluster's JS; a full cluster
makes room for the next. (The paper's initial ``max(k, n / l)`` must be ``min``.) Letters: n rows, d features, J the
columns in use.

The order of the walk: the paper's is random, and best while the active clusters see a good part of all rows. Rows that
come sorted by the pattern of a few telling columns do better where they would see little, and then pieces of the walk
can be clustered side by side at no loss. On a9a and MNIST the two cross near eight times as many clusters as active.
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


ACTIVE = 64  # clusters that a row can join, the paper's default
_GROUP = 64  # work-items that walk together in the group shape
_LANES = 16  # clusters side by side
EXCESS = 0.85  # of the columns that sorted neighbours have beyond a row's own, which clusters have too
_CROSSING = 8  # times ACTIVE: clusters from which on a sorted walk is better
_SAMPLE = 2048, 1 << 22  # rows and cells at most that the telling columns are found from
_TELLING = 32  # how many of them
_SORTED = 8192, 1 << 24  # rows and cells at most that are sorted to see what clusters would fill
_STAGING = 256 << 20  # bytes of dense rows on the device at a time


@dataclass(frozen=True)
class Clusters:
    """Clusters of at most ``size`` rows. order (clusters * size,) int32: the rows of one cluster after another, -1
    where it is not full. mask (clusters, d) bool: the columns that its rows use."""

    size: int
    order: NDArray[np.int32]
    mask: NDArray[np.bool_]


def options(profile: Profile, dtype: DTypeLike) -> list[str]:
    """Return the -D options of ``cluster.cl`` for rows of ``dtype``."""
    shape = ["-DVECTOR"] if profile.shape == "vector" else [f"-DWG={_GROUP}"]
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
    """Make clusters of ``size`` rows of X (n, d), C-contiguous float32/float64 or CSR with int32 indices.

    active: clusters that a row can join, None for all at once. order: of the walk, "random" as in the paper, "sorted"
    by pattern and in pieces side by side, None for what is better. centre (d,): what counts as zero, of dense rows.
    Same rows, same profile: same clusters.

    Raises ValueError for clusters of too many cells, and where the memory budget does not hold a bit for each of X's.
    """
    n, d = X.shape
    if (size + 1) * d >= 2**31:
        raise ValueError(f"clusters of {size} rows of {d} features cost up to {(size + 1) * d}, at most {2**31 - 1}")
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
    """Return (n, words) uint32 on the device: bit j of a row is set where the row differs from the centre in column
    j."""
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
    """Run Algorithm 2 over the rows in the order of ``walk``, over each piece of it separately."""
    clusters, words = -(-n // size), _words(d)
    order = np.full(clusters * size, -1, np.int32)
    share = -(-clusters // pieces)
    pieces = -(-clusters // share)
    k = -(-min(active, share) // _LANES) * _LANES
    walked, placed = stream.upload(walk.astype(np.int32)), stream.upload(order)
    unions, slots, filled = (stream.buffer(4 * m) for m in (pieces * k * words, pieces * 3 * k, clusters * words))
    items = 1 if stream.profile.shape == "vector" else _GROUP
    kernel = stream.kernel(sources.cl("gram/cluster"), options(stream.profile, np.float32), "assign")
    numbers = n, words, size, min(active, share), k, clusters, share
    kernel((items * pieces,), (items,), *numbers, patterns, walked, unions, slots, filled, placed)
    order = stream.read(placed, np.int32, len(order))
    bits = stream.read(filled, np.uint32, (clusters, words)).astype("<u4").view(np.uint8)
    stream.free(walked, placed, unions, slots, filled)
    return Clusters(size, order, np.unpackbits(bits, axis=1, count=d, bitorder="little").view(bool))


def _sorted(patterns: NDArray[np.uint32], d: int) -> NDArray[np.intp]:
    """Return the order of bit sets (n, words) in which neighbours are alike."""
    sample = sampled(patterns, d, *_SAMPLE).astype("<u4").view(np.uint8)
    columns = telling_columns(np.unpackbits(sample, axis=1, count=d, bitorder="little"))
    return by_pattern(patterns[:, columns // 32] >> (columns % 32).astype(np.uint32) & 1)


def by_pattern(bits: NDArray[Any]) -> NDArray[np.intp]:
    """Return the order of rows of 0 and 1 (n, at most 32): the first column counts most, equal rows keep their
    order."""
    weights = np.uint32(1) << np.arange(bits.shape[1], dtype=np.uint32)[::-1]
    return np.argsort(bits.astype(np.uint32) @ weights, kind="stable")


def sampled(rows: Any, d: int, most: int, cells: int) -> Any:
    """Return evenly spaced rows: about ``most`` of them, and about ``cells`` cells where each row has d."""
    n = rows.shape[0]
    return rows[:: max(1, n // most, n * d // cells)]


def telling_columns(patterns: NDArray[Any]) -> NDArray[np.intp]:
    """Return the columns of the patterns (m, d) of 0 and 1 that tell most, one after another by pivoted Cholesky on the
    covariance of a sample of the rows; at most 32, fewer where the rest follows from them."""
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
    """Estimate the average columns of a cluster of ``size`` rows without a device: of some rows, and of groups of
    neighbours when these are sorted by their pattern. Clusters have fewer, EXCESS of those beyond a row's own."""
    sample = sampled(X, X.shape[1], *_SORTED)
    groups = sample.shape[0] // size
    if not groups:
        return float(X.shape[1])
    pattern = (sample.toarray() if sp.issparse(sample) else sample) != 0
    order = by_pattern(pattern[:, telling_columns(pattern)])
    fill = float(pattern[order[: groups * size]].reshape(groups, size, -1).any(axis=1).sum(axis=1).mean())
    own = float(pattern.sum(axis=1).mean())
    return own + EXCESS * max(0.0, fill - own)
