"""Sums over support vectors on a device: rows pass through bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts, small_batch
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Panel, Plan
from clsvm.gram.precision import Reach
from clsvm.gram.products import Gram, Update
from clsvm.gram.small_batch import Piece, SmallBatchPredictor
from clsvm.kernels import Kernel
from clsvm.opencl.contexts import of_thread
from clsvm.opencl.parts import APART, Parts, together
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
_TILE = 64  # a multiple of every layout's lanes and panel blocks
_BEGIN = APART // 4  # working vectors of which a piece begins at a multiple: its norms are then a part of a buffer
CHUNK = 256 << 20  # bytes of rows that are evaluated at a time
IN_PLACE = 0.8  # of the memory that is left: for rows that are read in place
PANEL, PASSING = 32 << 20, 4 << 20  # bytes of support vectors that are evaluated at a time: kept ones, passing ones
FEWEST = 512  # passing ones at a time, of wide rows: each piece is laid out by itself
ALL = slice(None)  # groups
SECTIONS = 16  # pieces from which one launch for all is worth a program of its own
WEIGHTS = 8 << 20  # bytes of coefficients that are on the device at a time, at most, but for those of one piece
OWN = 24  # bytes of a row's norm and places


class Support:
    """Support vectors (m, d) on a device, as the working vectors of products with rows laid out by ``plan``.

    ``buffers`` may be kept for later calls, within a quarter of the memory that is free: panels of all of them, or
    their CSR rows. Else, or where no later call is to come (``keep`` is False), there are none, and the support vectors
    pass through a panel in each call. No value depends on which it is. ends: where each group of support vectors ends,
    if there are groups. A model sets reach, the rows that float32 is fine enough for, and known, the columns that those
    of the support vectors stand for where they are numbered anew (:func:`arrays.numbered`).

    The rows are clustered, not the support vectors: else K has to be stored for its sums (GTSVM, section 5.4).
    """

    reach: Reach | None = None
    known: NDArray[np.int32] | None = None

    def __init__(
        self,
        stream: Stream,
        kernel: Kernel,
        plan: Plan,
        vectors: Data,
        dtype: str,
        ends: Sequence[int] = (),
        keep: bool = True,
    ) -> None:
        self.kernel, self.plan, self.vectors, self.dtype = kernel, plan, vectors, dtype
        self._ends = ends
        self._single = layouts.once(plan, vectors)
        m, itemsize, budget = vectors.shape[0], np.dtype(dtype).itemsize, stream.limit - stream.held
        row = layouts.row_bytes(plan, vectors, itemsize)
        block = LAYOUTS[plan.kind].block_bytes(plan, vectors, itemsize, _TILE)
        room = min(stream.largest, max(0, budget // 8 - block))
        self._capacity, self._loads = _loads(ends or (m,), min(PANEL, room) // row)
        self._groups = max(1, len(ends))
        self._kept: list[_Load] = []
        self.buffers: tuple[Buffer, ...] = ()
        if stream.profile.lacks(self.dtype):  # (exact.decided has the host compute values)
            return
        if keep and len(self._loads) * (self._capacity * (row + OWN) + block) + APART * len(ends) <= budget // 4:
            self._kept = [self._gathered(stream, load) for load in self._loads]
            self.buffers = tuple(buffer for load in self._kept for buffer in load.buffers)
        else:
            self._capacity, self._loads = _loads(ends or (m,), min(max(PASSING // row, FEWEST), room // row))
        self._load = 2 * self._capacity * (row + OWN) + block  # bytes: as rows, and as a panel
        stream.finish()

    def _gathered(self, stream: Stream, pieces: list[Piece]) -> _Load:
        """Gather pieces of them in a panel of their own."""
        first, end = pieces[0].which.start, pieces[-1].which.stop
        gram = Gram(stream, layouts.build(stream, self.vectors[first:end], self._single, self.dtype), self.kernel)
        panel = gram.panel(self._capacity)
        places = np.full(panel.capacity, -1, np.int32)
        for piece in pieces:
            places[piece.place] = gram.rows.position[piece.which.start - first : piece.which.stop - first]
        rows, count = stream.upload(places), stream.upload(np.array([panel.capacity], np.int32))
        gram.gather(panel, rows, count)
        sections = together(stream, [np.array([piece.size, piece.at, piece.group], np.int32) for piece in pieces])
        parts = [
            gram.part(panel, piece.at, whole_tiles(piece.size + _TILE - 1), count)
            for piece, count in zip(pieces, sections.each, strict=True)
        ]
        own = (*panel.buffers(), sections.buffer)
        if panel.rows_stay:
            return _Load(panel, parts, sections, (*own, count, rows, *gram.buffers()))
        stream.finish()
        stream.free(rows, count, *gram.buffers())
        return _Load(panel, parts, sections, own)

    def responses(self, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
        """Return K(X, support) coefficients' with sums in float64: (problems, n) for (problems, m) coefficients; of
        support vectors in groups the sums of each of these ``groups`` one after another, (groups * problems, n).

        Nothing of K is stored; rows pass through bounded memory. A row's value depends on neither the other rows of
        the call nor the memory. Raises ValueError where memory_limit does not hold one tile.
        """
        if stream.profile.wide == "double":
            return self._summed(stream, X, coefficients, groups)
        sizes = np.abs(coefficients).max(axis=1, initial=0.0)  # (a pair of float32 holds no 1e-45 and no 1e60)
        units = np.where(sizes > 0, np.ldexp(0.5, np.frexp(sizes)[1]), 1.0)
        scaled = np.tile(units, len(self.among(groups)))[:, None]
        return self._summed(stream, X, coefficients / units[:, None], groups) * scaled

    def _summed(self, stream: Stream, X: Data, coefficients: Vector, groups: slice) -> Vector:
        """Return :meth:`responses` to coefficients that the device's wide numbers hold."""
        among = self.among(groups)
        problems, n = len(coefficients), X.shape[0]
        if len(among) == self._groups and (few := self._for_few(stream, X, problems)):
            return few.responses(stream, X, coefficients)
        row = layouts.row_bytes(self.plan, X, np.dtype(self.dtype).itemsize) + OWN + 8 * problems * len(among)
        step = whole_tiles(min(CHUNK, stream.largest, self._room(stream, X, problems)) // row)
        out = np.empty((len(among) * problems, n)) if n > step else None
        with stream.recycling():
            for start in range(0, n, step):
                rows = layouts.build(stream, X[start : start + step], self.plan, self.dtype, range(start, n))
                gram = Gram(stream, rows, self.kernel)
                found = self._sums(stream, gram, coefficients, among)
                found = found[:, : rows.n] if LAYOUTS[rows.kind].in_order else found[:, rows.position]
                stream.free(*gram.buffers())
                if out is None:
                    return found
                out[:, start : start + step] = found
        return np.zeros((len(among) * problems, 0)) if out is None else out

    def _for_few(self, stream: Stream, X: Data, problems: int) -> SmallBatchPredictor | None:
        """Return this thread's small-batch predictor; None where there is none for X."""
        shape = problems, self._groups
        if not self._kept or not small_batch.fits(stream, self.plan, X, *shape, len(self._loads) * self._capacity):
            return None
        made = of_thread("small batches").setdefault((stream.queue, shape), WeakKeyDictionary())
        if self not in made:
            if len(made) >= small_batch.PREDICTORS:
                made.clear()
            loads = zip(self._kept, self._loads, strict=True)
            held = [(kept.panel, kept.sections.buffer, pieces) for kept, pieces in loads]
            made[self] = SmallBatchPredictor(stream, self.kernel, self.plan, self.dtype, X.shape[1], held, shape)
        found: SmallBatchPredictor = made[self]
        return found

    def among(self, groups: slice) -> range:
        """Return the numbers of some groups."""
        return range(self._groups)[groups]

    def vectors_of(self, among: slice, coefficients: Vector) -> tuple[Data, Vector, Sequence[int]]:
        """Return the support vectors of some groups, their coefficients and the ends of their groups."""
        groups = self.among(among)
        if not self._ends:
            return self.vectors, coefficients, ()
        cuts = (0, *self._ends)[groups.start : groups.stop + 1]
        some = slice(cuts[0], cuts[-1])
        return self.vectors[some], coefficients[:, some], [end - cuts[0] for end in cuts[1:]]

    def _sums(self, stream: Stream, gram: Gram, coefficients: Vector, groups: range) -> Vector:
        """Return the sums (groups * problems, n_pad) of some groups for some rows, in the device's order."""
        problems, n_pad = len(coefficients), gram.rows.n_pad
        n = -(-n_pad // _TILE) * _TILE  # (so that the sums of a group begin where a part of a buffer can)
        sums = stream.zeros(8 * len(groups) * problems * n)
        for number, pieces in enumerate(self._loads):
            among = [at for at, piece in enumerate(pieces) if piece.group in groups]
            if not among:
                continue
            load = self._kept[number] if self._kept else self._gathered(stream, pieces)
            to = _Sums(stream, gram, load, pieces, coefficients, sums, n, groups.start)
            dense = gram.rows.kind == DENSE.name and not stream.simulated
            for run in _runs(pieces, among, problems):
                stream.free(*(to.add_sections(run) if dense and len(among) >= SECTIONS else to.add_pieces(run)))
            stream.finish()
            stream.free(*(() if self._kept else load.buffers))
        found = stream.read_wide(sums, (len(groups) * problems, n))[:, :n_pad]
        stream.free(sums)
        return found

    def _room(self, stream: Stream, X: Data, problems: int) -> int:
        """Return the bytes for rows at a time. Where support vectors pass by, every block of rows asks for all of them
        again, so the rows get the rest of the memory, unless they are copied to the device before they are laid out."""
        left = stream.limit - stream.held
        if self._kept or not stream.unified or sp.issparse(X):
            return left // 4
        return max(left // 4, int(IN_PLACE * (left - self._load - 8 * problems * self._capacity)))


class _Sums(NamedTuple):
    """Sums (groups * problems, n) on the device, of groups from ``first`` on, to which the pieces of a load add."""

    stream: Stream
    gram: Gram
    load: _Load
    pieces: Sequence[Piece]
    coefficients: Vector
    buffer: Buffer
    n: int
    first: int

    def add_pieces(self, run: Sequence[int]) -> tuple[Buffer, ...]:
        """Add the terms of some pieces, a launch each; return the buffers that it took."""
        stream, coefficients, problems = self.stream, self.coefficients, len(self.coefficients)
        D = together(stream, [stream.as_wide(coefficients[:, self.pieces[at].which]) for at in run])
        for at, weights in zip(run, D.each, strict=True):
            piece, size = self.pieces[at], 8 * problems * self.n
            c = stream.part(self.buffer, size * (piece.group - self.first), size)
            update = Update(problems, self.n, c, weights, piece.size)
            self.gram.accumulate(self.load.parts[at], self.load.sections.each[at], None, update)
        return (D.buffer,)

    def add_sections(self, run: Sequence[int]) -> tuple[Buffer, ...]:
        """Do as :meth:`add_pieces` does, to the same bits, with all pieces in one launch: of dense rows."""
        stream, problems, pieces = self.stream, len(self.coefficients), [self.pieces[at] for at in run]
        begin, end = pieces[0].at, pieces[-1].at + pieces[-1].size
        weights = np.zeros((problems, whole_tiles(end - begin + _TILE - 1)))
        for piece in pieces:
            weights[:, piece.at - begin : piece.at - begin + piece.size] = self.coefficients[:, piece.which]
        D, capacity = stream.wide(weights), weights.shape[1]
        places = [np.array([one.size, one.at - begin, one.group - self.first], np.int32) for one in pieces]
        numbers = together(stream, places).buffer
        part = self.gram.part(self.load.panel, begin, capacity, numbers)
        self.gram.accumulate(part, numbers, None, Update(problems, self.n, self.buffer, D, capacity, len(pieces)))
        return D, numbers


def _runs(pieces: Sequence[Piece], among: Sequence[int], problems: int) -> Iterator[list[int]]:
    """Yield the numbers ``among`` of some pieces, those at a time whose coefficients take few bytes."""
    run: list[int] = []
    for at in among:
        if run and 8 * problems * (pieces[at].at + pieces[at].size - pieces[run[0]].at) > WEIGHTS:
            yield run
            run = []
        run.append(at)
    yield run


def _loads(ends: Sequence[int], most: int) -> tuple[int, list[list[Piece]]]:
    """Return how many working vectors a panel has, about ``most`` or fewer, and the pieces that share each panel, of
    support vectors whose groups have these ends. A piece begins where a part of a buffer can."""
    sizes = np.diff([0, *ends])
    room = int((-(-sizes[:-1] // _BEGIN) * _BEGIN).sum() + sizes[-1])
    panels = -(-room // whole_tiles(most))
    capacity = whole_tiles(-(-room // max(1, panels)) + _TILE - 1)
    loads: list[list[Piece]] = []
    at = capacity
    for group, (first, end) in enumerate(pairwise((0, *ends))):
        while first < end:
            if at >= capacity:
                loads.append([])
                at = 0
            size = min(end - first, capacity - at)
            loads[-1].append(Piece(slice(first, first + size), at, group))
            first, at = first + size, at + -(-size // _BEGIN) * _BEGIN
    return capacity, loads


class _Load(NamedTuple):
    """Working vectors in a panel, the part of each piece, how many it has, where it begins and of which group it is,
    and every buffer of theirs."""

    panel: Panel
    parts: list[Panel]
    sections: Parts
    buffers: tuple[Buffer, ...]


def whole_tiles(rows: int) -> int:
    """Return so many rows in whole tiles of any layout, at least one; sums then group the same way however memory
    is."""
    return max(1, rows // _TILE) * _TILE
