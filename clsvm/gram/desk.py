"""Answers for a few rows, where the support vectors stay on the device: all but the rows' numbers is made once.

    c = K(X, support) coefficients'        for at most MOST rows X

What a call for one row costs is buffers, places and programs, not products. A desk has all these ready: the rows are
written over those of the call before, in dense lane groups. A value has the bits that it has in any other call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.layouts.lanes import DENSE, Refill
from clsvm.gram.layouts.record import Panel, Plan, check_norms
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
MOST = 64  # rows: whole lane groups of every device
SHARE = 1 / 128  # of the memory, which a desk takes at most
DESKS = 8  # of a thread: one more, and the others are given up
_FIXED = 4096  # bytes of places and counts


class Part(NamedTuple):
    """Support vectors in a panel, how many there are, which of all they are, and the number of their group."""

    panel: Panel
    count: Buffer
    which: slice
    group: int


def fits(stream: Stream, plan: Plan, X: Data, problems: int, groups: int, vectors: int) -> bool:
    """Whether rows X go over a desk: they are few, dense lane groups are what rows are laid out in that are used once,
    and what a desk holds is a small share of the memory."""
    n, d = X.shape
    if n > MOST or stream.profile.wide != "double" or stream.simulated:
        return False
    if layouts.once(plan, X).kind != DENSE.name:
        return False
    return 8 * (2 * MOST * d + MOST * problems * groups + problems * vectors) + _FIXED <= SHARE * stream.limit


class Desk:
    """For support vectors in ``parts``, whose groups are ``groups``, each with ``problems`` coefficients, in ``dtype``;
    of the stream's queue and this thread alone. Its buffers outlive the stream."""

    def __init__(
        self,
        stream: Stream,
        kernel: Kernel,
        plan: Plan,
        dtype: str,
        d: int,
        parts: Sequence[Part],
        shape: tuple[int, int],
    ) -> None:
        self._parts, (self._problems, self._groups) = parts, shape
        rows = DENSE.build(stream, np.zeros((MOST, d)), replace(plan, kind=DENSE.name), dtype)
        self._gram, self._refill = Gram(stream, rows, kernel), Refill(stream, rows, plan.centre)
        self._each = 8 * self._problems * MOST  # bytes of a group's sums: whole parts of a buffer
        self._all = stream.buffer(self._groups * self._each)
        self._sums = [stream.part(self._all, group * self._each, self._each) for group in range(self._groups)]
        self._shapes = [(self._problems, part.panel.capacity) for part in parts]
        ends = np.cumsum([0, *(8 * problems * capacity for problems, capacity in self._shapes)]).tolist()
        self._weights = stream.buffer(ends[-1])
        self._own = [stream.part(self._weights, first, end - first) for first, end in pairwise(ends)]
        self._written: Vector | None = None  # the coefficients that are there
        self._launches: dict[int, list[Callable[[], None]]] = {}  # by lane groups
        # A fork waits for the builder first, then for streams: what is built is built before a call holds its stream.
        self._hold(1)
        self._answered(stream, np.zeros((1, d)), np.zeros((self._problems, max(part.which.stop for part in parts))))
        stream.hand_over([*rows.buffers(), *self._refill.buffers, self._all, self._weights])

    def responses(self, stream: Stream, X: Data, coefficients: Vector) -> Vector:
        """c (groups * problems, n) of rows X (n, d), n <= MOST, by coefficients (problems, support vectors). Raises
        ValueError for a row whose squared norm is too large for the dtype."""
        self._hold(-(-X.shape[0] // self._gram.rows.lanes))
        with stream.lock:  # (a fork waits for the stream of the call)
            return self._answered(stream, X.toarray() if sp.issparse(X) else X, coefficients)

    def _answered(self, stream: Stream, X: NDArray[np.floating], coefficients: Vector) -> Vector:
        gram, n = self._gram, len(X)
        groups = -(-n // gram.rows.lanes)
        self._refill(stream, X)
        stream.clear(self._all, self._groups * self._each)
        if self._written is None or not np.array_equal(self._written, coefficients):
            self._write(stream, coefficients)
        for launch in self._launches[groups]:
            launch()
        found = stream.read_wide(self._all, (self._groups * self._problems, MOST))[:, :n]
        check_norms(stream, gram.rows, n)  # (last: the device waits for nothing on the way)
        return found

    def _hold(self, groups: int) -> None:
        """Have the launches of products of so many lane groups with all parts."""
        if groups in self._launches:
            return
        held: list[Callable[[], None]] = []
        for D, (panel, count, _, group) in zip(self._own, self._parts, strict=True):
            update = Update(self._problems, MOST, self._sums[group], D, panel.capacity)
            held += self._gram.held(range(groups), panel, count, update)
        self._launches[groups] = held

    def _write(self, stream: Stream, coefficients: Vector) -> None:
        """The coefficients of each part, in its panel's room."""
        self._written = None  # (until all are there)
        weights = [np.zeros(shape) for shape in self._shapes]
        for D, part in zip(weights, self._parts, strict=True):
            D[:, : part.which.stop - part.which.start] = coefficients[:, part.which]
        stream.write_wide(self._weights, np.concatenate([D.ravel() for D in weights]))
        self._written = coefficients.copy()
