"""Compute sums K b of kernel values with coefficients b in float64.

Solvers use the sums to check solutions. Models use the sums to predict rows for which float32 is not precise enough.
The device computes most sums. The host computes sums in NumPy if they take few multiply-adds, if the device lacks
double precision or memory, or if |x - y|^2 from inner products is too imprecise even in float64.

    of_rows: return the function that solvers call to compute some rows of K b.
    responses: compute K(X, S) b, for rows X and support vectors S.
    symmetric_sums: compute K(X, S) b from about half of the values of K, if most rows of X are support vectors.
    decision_values: compute decision values, in float64 for rows where float32 is not precise enough.
    HostBlocks: compute blocks of K on the host.
"""

import contextlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, both_dense, centred
from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts, programs
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Plan, in_order, norm_too_large
from clsvm.gram.precision import measures
from clsvm.gram.products import Gram, Operator, Store, Update
from clsvm.gram.responses import ALL, PANEL, SECTIONS, TILE, Support
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.threads import threads_for

Vector = NDArray[np.float64]
# Exact: a function of r row numbers ``rows`` and coefficients b (problems, n) that returns b K[:, rows] (problems, r)
Exact = Callable[[NDArray[np.intp], Vector], Vector]

HOST = 1 << 22  # the host computes sums over a kernel matrix of at most this many multiply-adds
RANGE = 128  # smallest number of support vectors over which a GPU sums separately
# A block of K on the host takes at most HOST_BYTES bytes, including COPIES temporary arrays of the block's size.
HOST_BYTES, COPIES = 64 << 20, 4
FETCHED = 256 << 20  # largest size in bytes of the rows that are copied from X at a time, since X may be a mapped file
# Clustering similar rows saves time only if computing a kernel matrix takes CLUSTERED multiply-adds or more.
CLUSTERED = 1 << 27
# symmetric_sums needs |R union S| <= ROWS_FACTOR * |R|, for the requested rows R and the support vectors S.
ROWS_FACTOR = 1.25
# symmetric_sums needs |S| >= SUPPORT_SHARE * |R union S|, for the requested rows R and the support vectors S.
SUPPORT_SHARE = 0.6
BLOCK = 128  # symmetric_sums computes this many rows of K at a time, a number that keeps sub-buffers aligned
BLOCK_VALUES = 1 << 15  # number of values of K in a block on the host, so that a CPU cache holds the block


def of_rows(gram: Operator, X: Any, plan: Plan, device: Any) -> Exact:
    """Return a function that computes rows of K b in float64, given row numbers and coefficients b (problems, n).

    The function keeps to the memory budget of ``gram.stream``. X may be memory-mapped, so the function reads at most
    about FETCHED bytes of rows and FETCHED bytes of support vectors at a time.
    """
    stream, kernel = gram.stream, gram.kernel
    step = max(1, FETCHED // max(1, X.nnz * 12 // X.shape[0] if sp.issparse(X) else X.shape[1] * X.itemsize))

    def exact(rows: NDArray[np.intp], b: Vector) -> Vector:
        support = np.flatnonzero(b.any(axis=0))
        with gram.unreserved(), Stream(device, max(1, stream.limit - stream.allocated), stream.profile) as inner:
            few = max(len(rows), len(support)) <= step
            c = symmetric_sums(inner, kernel, plan, X, rows, support, b[:, support]) if few else None
            if c is None:
                c = np.zeros((len(b), len(rows)))
                for first in range(0, len(rows), step):
                    here = X[rows[first : first + step]]
                    for begin in range(0, len(support), step):
                        some = support[begin : begin + step]
                        c[:, first : first + step] += responses(inner, kernel, plan, here, X[some], b[:, some])
            stream.peak = max(stream.peak, stream.allocated + inner.peak)
        return c

    return exact


def of_precomputed(K: Any) -> Exact:
    """Return a function that computes rows of K b for a precomputed K, given row numbers and coefficients b."""
    return lambda rows, b: (K[rows] @ b.T).T


def responses(stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, b: Vector) -> Vector:
    """Return b K(support, X) in float64 (problems, n), for coefficients b (problems, m) of the m support vectors.

    The host computes small products, since building an OpenCL program would take longer than computing them.
    """
    cells = X.shape[0] * support.shape[0] * X.shape[1]
    plan = layouts.single_pass_plan(plan, X) if cells < CLUSTERED else layouts.cheaper_plan(plan, X)
    return _in_float64(stream, kernel, plan, X, (support, b, ()), on_host=cells <= HOST)


def symmetric_sums(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, rows: NDArray[np.intp], support: NDArray[np.intp], b: Vector
) -> Vector | None:
    """Return b K(X[support], X[rows]) in float64, for coefficients b (problems, m) of the support vectors.

    ``rows`` and ``support`` are row numbers in X. Return None if :func:`responses` would be faster, if the layout
    changes the order of rows, if the device lacks double precision, or if memory is too small. The sums agree with
    :func:`responses` up to rounding.

    Let Z be the requested rows and the support vectors together. K(Z, Z) is symmetric, so only about half of it is
    computed. Z is taken in blocks. For each block, K is computed between the block and the rows of Z up to the end of
    the block. A value K(x, y) is added to the sums of both x and y.
    """
    plan, both = layouts.cheaper_plan(plan, X), np.union1d(rows, support).astype(np.int32)
    laid_in_order = layouts.LAYOUTS[plan.kind].in_order
    pays = laid_in_order and len(support) >= SUPPORT_SHARE * len(both) and len(both) <= ROWS_FACTOR * len(rows)
    if not pays or stream.profile.lacks("float64") or len(rows) * len(support) * X.shape[1] <= HOST:
        return None
    with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative(), stream.scratch():
        laid = layouts.build(stream, X if len(both) == X.shape[0] else X[both], plan, "float64")
        whole = np.zeros((len(b), laid.n))
        whole[:, both.searchsorted(support)] = b
        return _symmetric(Gram(stream, laid, kernel), whole)[:, both.searchsorted(rows)]
    return None


def _symmetric(gram: Gram, b: Vector) -> Vector:
    """Return b K (problems, n) for coefficients b (problems, n) and the kernel matrix K (n, n) of the rows of ``gram``.

    K is symmetric, so the function computes only about half of K, one block of BLOCK rows after another. The layout of
    ``gram`` must keep the caller's order of rows. Call this function inside ``with stream.scratch()``, which frees the
    function's buffers. Raises MemoryLimitError if the memory budget cannot hold a block.
    """
    stream, rows, problems = gram.stream, gram.rows, len(b)
    n, n_pad, V = rows.n, rows.n_pad, rows.lanes
    group = stream.profile.group if stream.profile.style == "workgroup" else 1
    back = stream.variant(programs.back(stream.profile, rows.dtype, exact=True))
    panel, D = gram.panel(BLOCK), np.zeros((problems, n_pad))
    D[:, :n] = b
    weights, c = stream.wide(D), stream.zeros(8 * problems * n_pad)
    at, _ = in_order(n, -(-n // BLOCK) * BLOCK)
    places, K = stream.upload(at), stream.buffer(np.dtype(rows.dtype).itemsize * BLOCK * n_pad)
    store = Store((K,), BLOCK, n_pad, gram.slot(panel.capacity))
    full, last = (stream.upload(np.array([size], np.int32)) for size in (BLOCK, n - len(at) + BLOCK))
    for first in range(0, n, BLOCK):
        count, end = full if first + BLOCK <= n else last, min(first + BLOCK, n_pad)
        left = 8 * (problems * n_pad - first)
        gram.gather(panel, stream.part(places, 4 * first, 4 * BLOCK), count)
        update = Update(problems, n_pad, c, stream.part(weights, 8 * first, left), n_pad)
        gram.over_rows(range(-(-end // V)), 0, panel, count, store, update)
        if first:
            given = K, np.int64(n_pad), first, weights, count, problems, n_pad, stream.part(c, 8 * first, left)
            back((BLOCK // programs.ROWS_EACH * group,), (group,), *given)
    return stream.read_wide(c, (problems, n_pad))[:, :n]


def decision_values(support: Support, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
    """Return decision values of the rows X without the intercept, computed in float32 or float64.

    The dtype is chosen for each row separately, so a decision value does not depend on the other rows of a call. A row
    gets float64 if float32 is not precise enough for it, or if a value is not finite in float32. The support vectors
    are divided into groups. Each group has its own decision values. The slice ``groups`` selects the groups to use.
    Raises ValueError if the range of float64 is too small for a row.
    """
    precision, kernel = support.precision, support.kernel
    assert precision
    found = measures(kernel, X, support.plan)
    if np.isinf(found.sizes).any():
        raise ValueError(norm_too_large("float64"))
    double, count = support.dtype == "float64", len(support.among(groups))
    near = np.zeros(X.shape[0], bool) if double else precision(found)
    out = np.zeros((count * len(coefficients), X.shape[0]))
    if near.any():
        out[:, near] = support.responses(stream, X if near.all() else X[near], coefficients, groups)
        near &= np.isfinite(out).all(axis=0)
    far = np.flatnonzero(~near)
    if far.size:
        precision.check(found.some(far))
        rows = X[far] if near.any() else X
        # rough: float64 is too imprecise for |x - y|^2 by inner products, so the host adds up squares (x_j - y_j)^2.
        rough = kernel.spec.of_distance and not kernel.spec.element and not precision(found.some(far), "float64").all()
        if double and not (rough or stream.profile.lacks("float64")):
            out[:, far] = support.responses(stream, rows, coefficients, groups)
        else:
            others = support.vectors_of(groups, coefficients)
            out[:, far] = _in_float64(stream, kernel, support.plan, rows, others, on_host=rough)
        if not np.isfinite(out).all():
            raise ValueError(f"{kernel!r} is not finite for some rows and support vectors")
    return out


def _in_float64(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, others: tuple[Data, Vector, Sequence[int]], on_host: bool
) -> Vector:
    """Return sums of K(S, X) over the support vectors S, weighted by their coefficients, in float64.

    A group is a range of support vectors, and K is summed over each group separately. ``others`` holds S, the
    coefficients, and for each group the index after its last support vector. The host computes the sums if ``on_host``
    is set, or if the device lacks doubles or memory. The host computes one block of K after another within the free
    part of the memory budget. Raises MemoryLimitError if the budget is too small for a block.
    """
    support, b, ends = others
    if not (on_host or stream.profile.lacks("float64")):
        # If memory or the largest buffer of the device is too small, the host computes all sums below.
        with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative():
            cuts = ends or (_cuts(stream, X, support.shape[0]) if plan.kind == DENSE.name else [])
            sums = Support(stream, kernel, plan, support, "float64", cuts, keep=False).responses(stream, X, b)
            return sums if ends else np.asarray(sums.reshape(-1, len(b), X.shape[0]).sum(axis=0))
    n, m = X.shape[0], support.shape[0]
    most = X.shape[1]  # upper bound of the number of entries in a row
    if sp.issparse(X) and sp.issparse(support):
        most = max(int(np.diff(rows.indptr).max(initial=0)) for rows in (X, support))

    def needed(block: int) -> int:  # bytes of a block of K, and of dense copies of its rows and its support vectors
        down, across = min(block, n), min(block, m)
        return 8 * COPIES * (down * across + (down + across) * min(X.shape[1], (down + across) * most))

    limit = min(HOST_BYTES, stream.limit - stream.allocated)
    block = next((1 << k for k in range(20, 0, -1) if needed(1 << k) <= limit), 1)
    if stream.allocated + needed(block) > stream.limit:
        raise MemoryLimitError(stream.limit, stream.allocated, needed(block))
    stream.peak = max(stream.peak, stream.allocated + needed(block))
    out = np.zeros((max(1, len(ends)), len(b), n))
    for c, (first, end) in zip(out, pairwise((0, *(ends or (m,)))), strict=True):
        for begin in range(first, end, block):
            some = slice(begin, min(begin + block, end))
            for start in range(0, n, block):
                c[:, start : start + block] += b[:, some] @ kernel(X[start : start + block], support[some]).T
    return out.reshape(-1, n)


def _cuts(stream: Stream, X: Data, m: int) -> Sequence[int]:
    """Return the ends of the ranges of m support vectors over which a GPU sums separately, for dense rows X (n, d).

    A work-group adds up the kernel values of a few rows. If n is small, most compute units of a GPU would be idle.
    Several ranges occupy more of them, with at least RANGE support vectors in a range. The result is empty for a CPU,
    if n is large, or if m or the number of ranges in a buffer is small.
    """
    profile, (n, d) = stream.profile, X.shape
    wanted = 4 * stream.compute_units * profile.block // n if profile.style == "workgroup" else 0
    size = max(RANGE, -(-m // max(1, wanted, SECTIONS) // TILE) * TILE)
    pays = wanted > 1 and m > (SECTIONS - 1) * size and 8 * d * SECTIONS * size <= PANEL
    return [*range(size, m, size), m] if pays else []


class HostBlocks:
    """Compute blocks of the kernel matrix K (n, n) in float64 on the host, for n rows of d features.

    X holds the rows (n, d), or K itself for a precomputed kernel.

    If ``whole`` is true, the squared distance of two rows x and y is computed as the sum of (x_j - y_j)^2. As soon as
    the requested blocks have n^2 values or more in total, all of K is computed and stored. Later blocks are read from
    the stored K. For dense rows, a value read from the stored K has the same bits as a value computed for one block.

    If ``whole`` is false, K is not stored. The squared distance is computed as |x|^2 + |y|^2 - 2 <x, y>, after the
    vector ``centre`` (d,) is subtracted from both rows. For many features, this takes much less time than the sum of
    (x_j - y_j)^2. The kernel values are as precise as float64 values that a device computes.
    """

    def __init__(self, X: Any, kernel: Kernel | Precomputed, centre: Vector, whole: bool) -> None:
        self._X, self._kernel, self._centre, self._whole = X, kernel, centre, whole
        self._left = X.shape[0] ** 2
        self._K: Any = X if isinstance(kernel, Precomputed) else None

    def __call__(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return K[rows][:, columns]."""
        self._left -= len(rows) * len(columns)
        if self._K is None and isinstance(self._kernel, Kernel):
            with threads_for(len(rows) * len(columns) * self._X.shape[1]):
                if self._left > 0 or not self._whole:
                    return self._between(self._kernel, self._X[rows], self._X[columns])
                self._K = self._between(self._kernel, self._X, self._X)
        return np.asarray(self._K[np.ix_(rows, columns)], np.float64)

    def _between(self, kernel: Kernel, X: Any, Y: Any) -> NDArray[np.float64]:
        """Return K(X, Y).

        If |x - y|^2 is computed from norms and inner products, a few rows of X are taken at a time, so that a CPU cache
        holds the values.
        """
        if self._whole or "sqdist" not in kernel.spec.expression.names:
            return kernel(X, Y)
        X, Y, _ = both_dense(centred(X, self._centre), centred(Y, self._centre))
        out, step = np.empty((len(X), len(Y))), max(1, BLOCK_VALUES // max(1, len(Y)))
        xx, yy = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
        for some in (slice(first, first + step) for first in range(0, len(X), step)):
            out[some] = kernel.at(xx[some, None], yy, X[some] @ Y.T)
        return out
