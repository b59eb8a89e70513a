"""K b in float64: on the device where it has doubles and room, else by the kernel's oracle on the host.

of_rows     the function that a solver asks: K b of some rows of X, within what is left of its budget
responses   K(X, S) b' for rows X and support vectors S
decided     decision values, each row's in the dtype that is fine enough for it
HostBlocks  blocks of K itself on the host
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, both_dense, centred
from clsvm.errors import ROW, BufferSizeError, MemoryLimitError, RowError, RowTooLargeError
from clsvm.gram import layouts, programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures, terms
from clsvm.gram.products import Gram, Operator, Store, Update
from clsvm.gram.responses import ALL, Support
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.threads import one_thread

Vector = NDArray[np.float64]
Exact = Callable[[NDArray[np.intp], Vector], Vector]  # K b of some rows, (problems, rows), for b (problems, n)

HOST = 1 << 22  # multiply-adds below which the host computes values
HOST_BYTES, COPIES = 64 << 20, 4  # of a block there, and arrays of its size
FETCHED = 256 << 20  # bytes of rows at most that the host copies at a time
CLUSTERED = 1 << 30  # multiply-adds below which rows are not worth clustering
AMONG = 1.25  # times the rows that are asked for, up to which half of K among them and support vectors pays
HALVED = 0.6  # share of support vectors from which half of K among all rows is less work than K of these alone
BLOCK = 128  # working vectors of half of K at a time: parts of arrays of four bytes begin where any device lets them
ALONE = 1024  # rows up to which the linear algebra takes one thread
AT_A_TIME = 1 << 15  # values of K on the host
AT_ONCE = 1 << 20  # of few rows among themselves: four arrays of them are little memory


def of_rows(gram: Operator, X: Any, plan: Plan, device: Any) -> Exact:
    """Return the function that computes K b of some rows of X within the stream's budget. X may be in a file: many rows
    or support vectors are taken some at a time."""
    stream, kernel = gram.stream, gram.kernel
    step = max(1, FETCHED // max(1, X.nnz * 12 // X.shape[0] if sp.issparse(X) else X.shape[1] * X.itemsize))

    def exact(rows: NDArray[np.intp], b: Vector) -> Vector:
        support = np.flatnonzero(b.any(axis=0))
        with gram.lent(), Stream(device, max(1, stream.limit - stream.held), stream.profile) as own:
            few = max(len(rows), len(support)) <= step
            c = by_half(own, kernel, plan, X, rows, support, b[:, support]) if few else None
            if c is None:
                c = np.zeros((len(b), len(rows)))
                for first in range(0, len(rows), step):
                    here = X[rows[first : first + step]]
                    for begin in range(0, len(support), step):
                        some = support[begin : begin + step]
                        c[:, first : first + step] += responses(own, kernel, plan, here, X[some], b[:, some])
            stream.peak = max(stream.peak, stream.held + own.peak)
        return c

    return exact


def of_given(K: Any) -> Exact:
    """Return the function that computes K b of given kernel values."""
    return lambda rows, b: (K[rows] @ b.T).T


def responses(stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, b: Vector) -> Vector:
    """Return K(X, support) b'; by the host where there is so little of it that no program is worth building."""
    cells = X.shape[0] * support.shape[0] * X.shape[1]
    plan = layouts.once(plan, X) if cells < CLUSTERED else layouts.cheaper(plan, X)
    return _in_double(stream, kernel, plan, X, (support, b, ()), on_host=cells <= HOST)


def by_half(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, rows: NDArray[np.intp], support: NDArray[np.intp], b: Vector
) -> Vector | None:
    """Return :func:`responses` of rows of X, most of which are support vectors, by half of K among all of them; the
    sums differ by rounding. None where that does not pay, or memory does not hold it.

    Rows go through a panel, block after block of working vectors. K between a block and all rows up to its last is
    computed and adds to the sums of those rows, the block's own among them. The values that the block has with the rows
    before it add to the sums of the block as well, transposed.
    """
    plan, both = layouts.cheaper(plan, X), np.union1d(rows, support).astype(np.int32)
    layout = LAYOUTS[plan.kind]
    pays = layout.in_order and len(support) >= HALVED * len(both) and len(both) <= AMONG * len(rows)
    if not pays or stream.profile.lacks("float64") or len(rows) * len(support) * X.shape[1] <= HOST:
        return None
    if len(both) * layout.row_bytes(plan, X, 8) > (stream.limit - stream.held) // 2:
        return None
    with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative(), stream.scratch():
        laid = layouts.build(stream, X if len(both) == X.shape[0] else X[both], plan, "float64", both)
        whole = np.zeros((len(b), laid.n))
        whole[:, both.searchsorted(support)] = b
        return _symmetric(Gram(stream, laid, kernel), whole)[:, both.searchsorted(rows)]
    return None


def _symmetric(gram: Gram, b: Vector) -> Vector:
    """Return K b' (problems, n) of b (problems, n), for rows that stand as they came, by half of K.

    The caller frees the buffers (:meth:`Stream.scratch`). Raises MemoryLimitError where the budget does not hold a
    block.
    """
    stream, rows, problems = gram.stream, gram.rows, len(b)
    n, n_pad, V = rows.n, rows.n_pad, rows.lanes
    group = stream.profile.group if stream.profile.shape == "group" else 1
    back = stream.variant(programs.back(stream.profile, rows.dtype, exact=True))
    panel, D = gram.panel(BLOCK), np.zeros((problems, n_pad))
    D[:, :n] = b
    weights, c = stream.wide(D), stream.zeros(8 * problems * n_pad)
    at = np.full(-(-n // BLOCK) * BLOCK, -1, np.int32)
    at[:n] = np.arange(n)
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
            back((BLOCK // programs.OWN * group,), (group,), *given)
    return stream.read_wide(c, (problems, n_pad))[:, :n]


def decided(support: Support, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
    """Return :meth:`Support.responses`, of rows beyond the reach of float32 in float64: row by row, whatever the others
    are.

    Values that are not finite in float32 are evaluated again in float64. Raises RowError for a row for which float64
    does not serve either.
    """
    reach, kernel = support.reach, support.kernel
    assert reach
    found = measures(kernel, X, support.plan)
    if np.isinf(found.sizes).any():
        raise RowTooLargeError(int(np.argmax(np.isinf(found.sizes))), "float64")
    double, count = support.dtype == "float64", len(support.among(groups))
    near = np.zeros(X.shape[0], bool) if double else reach(found)
    out = np.zeros((count * len(coefficients), X.shape[0]))
    if near.any():
        out[:, near] = support.responses(stream, X if near.all() else X[near], coefficients, groups)
        near &= np.isfinite(out).all(axis=0)
    far = np.flatnonzero(~near)
    if far.size:
        reach.check(found.some(far), far)
        rows = X[far] if near.any() else X
        # The host takes |x - y|^2 by differences, which lose nothing to rows far from one another.
        rough = kernel.spec.of_distance and not kernel.spec.element and not reach(found.some(far), "float64").all()
        try:
            if double and not (rough or stream.profile.lacks("float64")):
                out[:, far] = support.responses(stream, rows, coefficients, groups)
            else:
                others = support.vectors_of(groups, coefficients)
                out[:, far] = _in_double(stream, kernel, support.plan, rows, others, on_host=rough)
        except RowError as error:
            raise error.moved(int(far[error.row]) - error.row) from None
        bad = ~np.isfinite(out).all(axis=0)
        if bad.any():
            words = f"{kernel!r} is not finite for row {ROW} and some support vectors"
            raise RowError(words, int(np.argmax(bad)))
    return out


def _in_double(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, others: tuple[Data, Vector, Sequence[int]], on_host: bool
) -> Vector:
    """Return :meth:`Support.responses` in float64 to ``others``: support vectors, coefficients, ends of groups.

    The host computes it where it is asked to, and where the device has no doubles or no room: by the kernel's oracle,
    in blocks of rows and of support vectors within what is left of the budget. Raises ValueError where that holds no
    block of one of each.
    """
    support, b, ends = others
    if not (on_host or stream.profile.lacks("float64")):
        # (What is left of the budget, or a buffer, may hold no tile of them.)
        with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative():
            return Support(stream, kernel, plan, support, "float64", ends, keep=False).responses(stream, X, b)
    n, m = X.shape[0], support.shape[0]
    most = max(terms(X), terms(support)) if sp.issparse(X) and sp.issparse(support) else X.shape[1]

    def needed(side: int) -> int:  # K, and the rows without columns that have no entry
        down, across = min(side, n), min(side, m)
        return 8 * COPIES * (down * across + (down + across) * min(X.shape[1], (down + across) * most))

    room = min(HOST_BYTES, stream.limit - stream.held)
    side = next((1 << k for k in range(20, 0, -1) if needed(1 << k) <= room), 1)
    if stream.held + needed(side) > stream.limit:
        raise MemoryLimitError(stream.limit, stream.held, needed(side))
    stream.peak = max(stream.peak, stream.held + needed(side))
    out = np.zeros((max(1, len(ends)), len(b), n))
    for c, (first, end) in zip(out, pairwise((0, *(ends or (m,)))), strict=True):
        for begin in range(first, end, side):
            some = slice(begin, min(begin + side, end))
            for start in range(0, n, side):
                c[:, start : start + side] += b[:, some] @ kernel(X[start : start + side], support[some]).T
    return out.reshape(-1, n)


class HostBlocks:
    """K (n, n) float64 on the host, of rows X (n, d), or X itself where it holds K: block by block.

    whole: all of K is made once the blocks that were asked for come to as many values; distances come from differences,
    so that a value of dense rows has the same bits in every block. Else distances come from norms and products of rows
    less their ``centre`` (d,), as exact as devices compute them, and many times as fast where rows are long.
    """

    def __init__(self, X: Any, kernel: Kernel | Precomputed, centre: Vector, whole: bool) -> None:
        self._X, self._kernel, self._centre, self._whole = X, kernel, centre, whole
        self._left = X.shape[0] ** 2
        self._K: Any = X if isinstance(kernel, Precomputed) else None

    def __call__(self, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return K[rows, columns]."""
        self._left -= len(rows) * len(columns)
        if self._K is None and isinstance(self._kernel, Kernel):
            with few_threads(len(rows)):
                if self._left > 0 or not self._whole:
                    X = self._X[rows]
                    return self._between(self._kernel, X, X if np.array_equal(rows, columns) else self._X[columns])
                self._K = self._between(self._kernel, self._X, self._X)
        return np.asarray(self._K[np.ix_(rows, columns)], np.float64)

    def _between(self, kernel: Kernel, X: Any, Y: Any) -> NDArray[np.float64]:
        """Return K (n, m); of distances some rows at a time, so that a cache holds what is in between, but for few rows
        among themselves."""
        few = self._whole and Y is X and X.shape[0] ** 2 <= AT_ONCE
        if few or "sqdist" not in kernel.spec.expression.names:
            return kernel(X, Y)
        if not self._whole:
            X, Y = centred(X, self._centre), centred(Y, self._centre)
        X, Y, _ = both_dense(X, Y)
        out, step = np.empty((len(X), len(Y))), max(1, AT_A_TIME // max(1, len(Y)))
        xx, yy = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
        for some in (slice(first, first + step) for first in range(0, len(X), step)):
            out[some] = kernel(X[some], Y) if self._whole else kernel.at(xx[some, None], yy, X[some] @ Y.T)
        return out


def few_threads(m: int) -> AbstractContextManager[Any]:
    """Return a context of one thread where rows are few: several would wait for each other more than they work, and
    much more where the machine is busy."""
    return one_thread() if m <= ALONE else nullcontext()
