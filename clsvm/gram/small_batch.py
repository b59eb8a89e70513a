"""Sums over support vectors for a few rows, where the support vectors stay on the device.

    c = K(X, support) coefficients'        for at most MOST rows X

A call for one row spends its time on buffers, places and programs, not on products. A predictor has all these ready:
the rows are written over those of the call before, in dense lane groups. A value has the same bits in any other call.
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
from clsvm.gram.layouts.lanes import DENSE, Packer, Source
from clsvm.gram.layouts.record import Panel, Plan, refuse
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
MOST = 64  # rows: whole lane groups of every device
SHARE = 1 / 128  # of the memory, which a predictor takes at most
PREDICTORS = 8  # of a thread: one more, and the others are given up
_FIXED = 4096  # bytes of places and counts


class Piece(NamedTuple):
    """Support vectors of one group in a panel: which of all they are, where they begin in it, the group's number."""

    which: slice
    at: int
    group: int

    @property
    def size(self) -> int:
        """Return how many vectors there are."""
        return int(self.which.stop - self.which.start)

    @property
    def place(self) -> slice:
        """Return where they stand in the panel."""
        return slice(self.at, self.at + self.size)


# A panel, the numbers of its pieces on the device (epilogue.mako, SECTIONS), and these.
Load = tuple[Panel, Buffer, Sequence[Piece]]


def fits(stream: Stream, plan: Plan, X: Data, problems: int, groups: int, vectors: int) -> bool:
    """Return whether rows X are for a predictor: they are few, rows that are used once stand in dense lane groups, and
    a predictor takes a small share of the memory."""
    n, d = X.shape
    if n > MOST or stream.profile.wide != "double" or stream.simulated:
        return False
    if layouts.once(plan, X).kind != DENSE.name:
        return False
    return 8 * (2 * MOST * d + MOST * (1 + problems * groups) + problems * vectors) + _FIXED <= SHARE * stream.limit


class SmallBatchPredictor:
    """For support vectors in ``loads``, of some groups, each with so many problems' coefficients (shape: problems,
    groups), in ``dtype``; of the stream's queue and this thread alone. Its buffers outlive the stream.

    Norms of the rows, sums and the rows themselves stand in one buffer, since a copy takes longer than its bytes: one
    to the device brings the rows, and zeros before them; one back brings norms and sums.
    """

    def __init__(
        self,
        stream: Stream,
        kernel: Kernel,
        plan: Plan,
        dtype: str,
        d: int,
        loads: Sequence[Load],
        shape: tuple[int, int],
    ) -> None:
        self._loads, (self._problems, groups) = loads, shape
        built = DENSE.build(stream, np.zeros((MOST, d)), replace(plan, kind=DENSE.name), dtype)
        self._rows = MOST * (1 + groups * self._problems)  # where they begin, in doubles
        self._host = np.zeros(self._rows + MOST * d)
        self._device = stream.upload(self._host)
        self._sums = stream.part(self._device, 8 * MOST, 8 * (self._rows - MOST))
        rows = replace(built, xx=stream.part(self._device, 0, 8 * MOST))
        self._laid, self._gram = rows, Gram(stream, rows, kernel)
        self._source = Source(0, rows.n_pad, d, stream.part(self._device, 8 * self._rows, 8 * MOST * d), 0)
        self._packer = Packer(stream, np.float64, dtype, plan.centre)
        self._order = stream.upload(np.arange(rows.n_pad, dtype=np.int32))
        self._shapes = [(self._problems, panel.capacity) for panel, _, _ in loads]
        ends = np.cumsum([0, *(8 * problems * capacity for problems, capacity in self._shapes)]).tolist()
        self._weights = stream.buffer(ends[-1])
        self._own = [stream.part(self._weights, first, end - first) for first, end in pairwise(ends)]
        self._written: Vector | None = None  # the coefficients that are there
        self._launches: dict[int, list[Callable[[], None]]] = {}  # by lane groups
        # A fork waits for the builder first, then for streams: what is built is built before a call holds its stream.
        self._hold(stream, 1)
        m = max(piece.which.stop for _, _, pieces in loads for piece in pieces)
        self._answered(stream, np.zeros((1, d)), np.zeros((self._problems, m)))
        own = self._order, self._packer.centre, self._device, self._weights
        stream.hand_over([*built.buffers(), *own])

    def responses(self, stream: Stream, X: Data, coefficients: Vector) -> Vector:
        """Return c (groups * problems, n) of rows X (n, d), n <= MOST, by coefficients (problems, support vectors).
        Raises ValueError for a row whose squared norm is too large for the dtype."""
        self._hold(stream, -(-X.shape[0] // self._gram.rows.lanes))
        with stream.lock:  # (a fork waits for the stream of the call)
            return self._answered(stream, X.toarray() if sp.issparse(X) else X, coefficients)

    def _answered(self, stream: Stream, X: NDArray[np.floating], coefficients: Vector) -> Vector:
        rows, n, begin = self._gram.rows, len(X), self._rows
        self._host[begin : begin + X.size] = X.reshape(-1)
        stream.write(self._device, self._host[: begin + X.size])
        if self._written is None or not np.array_equal(self._written, coefficients):
            self._write(stream, coefficients)
        for launch in self._launches[-(-n // rows.lanes)]:
            launch()
        found = stream.read(self._device, np.float64, (begin // MOST, MOST))
        refuse(found[0].view(rows.dtype)[:n], rows)
        return found[1:, :n]

    def _hold(self, stream: Stream, groups: int) -> None:
        """Have the launches for so many lane groups: their rows, and products with all support vectors."""
        if groups in self._launches:
            return
        rows, packer, held = self._laid, self._packer, []
        for part in rows.parts:
            if some := range(part.first, min(groups, part.first + part.groups)):
                held.append(packer.rows(self._source, some, self._order, rows.at, part.values, held=True))
                held.append(packer.norms(some, rows.at, part.values, rows.xx, held=True))
        for D, (panel, numbers, pieces) in zip(self._own, self._loads, strict=True):
            update = Update(self._problems, MOST, self._sums, D, panel.capacity, len(pieces))
            held += self._gram.held(range(groups), panel, numbers, update)
        self._launches[groups] = held

    def _write(self, stream: Stream, coefficients: Vector) -> None:
        """Write the coefficients of each piece into its panel's room."""
        self._written = None  # (until all are there)
        weights = [np.zeros(shape) for shape in self._shapes]
        for D, (_, _, pieces) in zip(weights, self._loads, strict=True):
            for piece in pieces:
                D[:, piece.place] = coefficients[:, piece.which]
        stream.write_wide(self._weights, np.concatenate([D.ravel() for D in weights]))
        self._written = coefficients.copy()
