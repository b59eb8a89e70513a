"""Sums over support vectors, and kernel matrices, on a device: rows pass through bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.errors import ROW, BufferSizeError, MemoryLimitError, RowError, RowTooLargeError
from clsvm.gram import desk, half, layouts
from clsvm.gram.desk import Piece
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Panel, Plan
from clsvm.gram.precision import Reach, measures, terms
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel
from clsvm.opencl.contexts import of_thread
from clsvm.opencl.parts import APART, Parts, together
from clsvm.opencl.stream import Buffer, Stream

Vector = NDArray[np.float64]
_TILE = 64  # a multiple of every layout's lanes and panel blocks
_BEGIN = APART // 4  # working vectors of which a piece begins at a multiple: its norms are then a part of a buffer
CHUNK = 256 << 20  # bytes of rows that are evaluated at a time
HOST = 1 << 22  # multiply-adds below which float64 values are computed on the host
_HOST_BYTES, COPIES = 64 << 20, 4  # of a block there, and arrays of its size
_CLUSTERED = 1 << 30  # multiply-adds below which rows are not worth clustering
IN_PLACE = 0.8  # of the memory that is left: for rows that are read in place
PANEL, PASSING = 32 << 20, 4 << 20  # bytes of support vectors that are evaluated at a time: kept ones, passing ones
FEWEST = 512  # passing ones at a time, of wide rows: each piece is laid out by itself
AMONG = 1.25  # times the rows that are asked for, up to which they are laid out with support vectors among them
HALVED = 0.6  # share of support vectors from which half of K among all rows is less work than K of these alone
ALL = slice(None)  # groups
SECTIONS = 16  # pieces from which one launch for all is worth a program of its own
WEIGHTS = 8 << 20  # bytes of coefficients that are on the device at a time, at most, but for those of one piece
OWN = 24  # bytes of a row's norm and places


class Support:
    """Support vectors (m, d) on a device, as the working vectors of products with rows laid out by ``plan``.

    ``buffers`` may be kept for later calls, within a quarter of the memory that is free: panels of all of them, or
    their CSR rows. Else, or where no later call is to come (``keep`` is False), there are none, and the support vectors
    pass through a panel in each call. No value depends on which it is. In float64 the host computes the values where
    the device has no double precision. reach: the rows that float32 is fine enough for. known: the columns that theirs
    stand for, where they are numbered anew (:func:`arrays.numbered`). The rows are what is clustered: with the parts
    exchanged, as GTSVM has them (section 5.4), K has to be stored for its sums, which took twice as long with few
    features.
    """

    def __init__(
        self,
        stream: Stream,
        kernel: Kernel,
        plan: Plan,
        vectors: Data,
        dtype: str,
        ends: Sequence[int] = (),
        reach: Reach | None = None,
        known: NDArray[np.int32] | None = None,
        keep: bool = True,
    ) -> None:
        self.kernel, self.plan, self.vectors, self.dtype = kernel, plan, vectors, dtype
        self.reach, self.known, self._ends = reach, known, ends
        self._single = layouts.once(plan, vectors)
        m, itemsize, budget = vectors.shape[0], np.dtype(dtype).itemsize, stream.limit - stream.held
        row, block = row_bytes(plan, vectors, itemsize), LAYOUTS[plan.kind].block_bytes(plan, vectors, itemsize, _TILE)
        room = min(stream.largest, max(0, budget // 8 - block))
        self._capacity, self._loads = _loads(ends or (m,), min(PANEL, room) // row)
        self._groups = max(1, len(ends))
        self._kept: list[_Load] = []
        self.buffers: tuple[Buffer, ...] = ()
        if stream.profile.lacks(self.dtype):  # (the host computes values)
            return
        if keep and len(self._loads) * (self._capacity * (row + OWN) + block) + APART * len(ends) <= budget // 4:
            self._kept = [self._gathered(stream, load) for load in self._loads]
            self.buffers = tuple(buffer for load in self._kept for buffer in load.buffers)
        else:
            self._capacity, self._loads = _loads(ends or (m,), min(max(PASSING // row, FEWEST), room // row))
        self._load = 2 * self._capacity * (row + OWN) + block  # bytes: as rows, and as a panel
        stream.finish()

    def _gathered(self, stream: Stream, pieces: list[Piece]) -> _Load:
        """Pieces of them in a panel of their own."""
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
            return _Load(panel, parts, sections, (*own, count, rows, *buffers_of(gram)))
        stream.finish()
        stream.free(rows, count, *buffers_of(gram))
        return _Load(panel, parts, sections, own)

    def responses(self, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
        """c = K(X, support) coefficients' with sums in float64: (problems, n) for (problems, m) coefficients; where the
        support vectors were given ``ends`` of groups, those of each of these ``groups`` one after another,
        (groups * problems, n).

        Nothing of K is stored; rows pass through bounded memory. A row's value depends on neither the other rows of
        the call nor the memory. Raises ValueError where memory_limit does not hold one tile.
        """
        among = range(self._groups)[groups]
        if stream.profile.lacks(self.dtype):
            return _on_host(stream, self.kernel, X, *self._of(among, coefficients))
        if stream.profile.wide == "double":
            return self._summed(stream, X, coefficients, groups)
        sizes = np.abs(coefficients).max(axis=1, initial=0.0)  # (a pair of float32 holds no 1e-45 and no 1e60)
        units = np.where(sizes > 0, np.ldexp(0.5, np.frexp(sizes)[1]), 1.0)
        return self._summed(stream, X, coefficients / units[:, None], groups) * np.tile(units, len(among))[:, None]

    def _summed(self, stream: Stream, X: Data, coefficients: Vector, groups: slice) -> Vector:
        """Return :meth:`responses` to coefficients that the device's wide numbers hold."""
        among = range(self._groups)[groups]
        problems, n = len(coefficients), X.shape[0]
        if len(among) == self._groups and (at := self._desk(stream, X, problems)):
            return at.responses(stream, X, coefficients)
        row = row_bytes(self.plan, X, np.dtype(self.dtype).itemsize) + OWN + 8 * problems * len(among)
        step = whole_tiles(min(CHUNK, stream.largest, self._room(stream, X, problems)) // row)
        out = np.empty((len(among) * problems, n)) if n > step else None
        with stream.recycling():
            for start in range(0, n, step):
                rows = layouts.build(stream, X[start : start + step], self.plan, self.dtype, range(start, n))
                gram = Gram(stream, rows, self.kernel)
                found = self._sums(stream, gram, coefficients, among)
                found = found[:, : rows.n] if LAYOUTS[rows.kind].in_order else found[:, rows.position]
                stream.free(*buffers_of(gram))
                if out is None:
                    return found
                out[:, start : start + step] = found
        return np.zeros((len(among) * problems, 0)) if out is None else out

    def _desk(self, stream: Stream, X: Data, problems: int) -> desk.Desk | None:
        """This thread's desk for calls of few rows; None where X does not go over one."""
        shape = problems, self._groups
        if not self._kept or not desk.fits(stream, self.plan, X, *shape, len(self._loads) * self._capacity):
            return None
        desks = of_thread("desks").setdefault((stream.queue, shape), WeakKeyDictionary())
        if self not in desks:
            if len(desks) >= desk.DESKS:
                desks.clear()
            loads = zip(self._kept, self._loads, strict=True)
            held = [(kept.panel, kept.sections.buffer, pieces) for kept, pieces in loads]
            desks[self] = desk.Desk(stream, self.kernel, self.plan, self.dtype, X.shape[1], held, shape)
        found: desk.Desk = desks[self]
        return found

    def _of(self, groups: range, coefficients: Vector) -> tuple[Data, Vector, Sequence[int]]:
        """Return the support vectors of these groups, their coefficients and the ends of their groups."""
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
            dense = gram.rows.kind == DENSE.name and not stream.simulated
            add = self._add_sections if dense and len(among) >= SECTIONS else self._add_pieces
            for run in _runs(pieces, among, problems):
                placed = [(pieces[at], load.parts[at], load.sections.each[at]) for at in run]
                stream.free(*add(stream, gram, load.panel, placed, coefficients, _Sums(sums, n, groups.start)))
            stream.finish()
            stream.free(*(() if self._kept else load.buffers))
        found = stream.read_wide(sums, (len(groups) * problems, n))[:, :n_pad]
        stream.free(sums)
        return found

    def _add_pieces(
        self, stream: Stream, gram: Gram, panel: Panel, placed: Sequence[_Placed], coefficients: Vector, sums: _Sums
    ) -> tuple[Buffer, ...]:
        """Add the terms of some pieces to the sums of their groups, a launch each; return the buffers that it took."""
        D = together(stream, [stream.as_wide(coefficients[:, piece.which]) for piece, _, _ in placed])
        for (piece, part, count), weights in zip(placed, D.each, strict=True):
            size = 8 * len(coefficients) * sums.n
            c = stream.part(sums.buffer, size * (piece.group - sums.first), size)
            gram.accumulate(part, count, None, Update(len(coefficients), sums.n, c, weights, piece.size))
        return (D.buffer,)

    def _add_sections(
        self, stream: Stream, gram: Gram, panel: Panel, placed: Sequence[_Placed], coefficients: Vector, sums: _Sums
    ) -> tuple[Buffer, ...]:
        """Do as :meth:`_add_pieces` does, to the same bits, with all pieces in one launch: of dense rows."""
        pieces = [piece for piece, _, _ in placed]
        begin, end = pieces[0].at, pieces[-1].at + pieces[-1].size
        weights = np.zeros((len(coefficients), whole_tiles(end - begin + _TILE - 1)))
        for piece in pieces:
            weights[:, piece.at - begin : piece.at - begin + piece.size] = coefficients[:, piece.which]
        D, capacity = stream.wide(weights), weights.shape[1]
        places = [np.array([one.size, one.at - begin, one.group - sums.first], np.int32) for one in pieces]
        numbers = together(stream, places).buffer
        update = Update(len(coefficients), sums.n, sums.buffer, D, capacity, len(pieces))
        part = gram.part(panel, begin, capacity, numbers)
        gram.over_rows("sections", gram.groups, 0, part, numbers, None, update)
        return D, numbers

    def _room(self, stream: Stream, X: Data, problems: int) -> int:
        """Bytes for rows at a time. Where support vectors pass by, every block of rows asks for all of them again, so
        the rows get what those leave; but for those that are copied to the device before they are laid out."""
        left = stream.limit - stream.held
        if self._kept or not stream.unified or sp.issparse(X):
            return left // 4
        return max(left // 4, int(IN_PLACE * (left - self._load - 8 * problems * self._capacity)))

    def decided(self, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
        """:meth:`responses`, of rows beyond the reach of float32 in float64: row by row, whatever the others are.

        Values that are not finite in float32 are evaluated again in float64. Raises RowError for a row for which
        float64 does not serve either.
        """
        assert self.reach
        found = measures(self.kernel, X, self.plan)
        if np.isinf(found.sizes).any():
            raise RowTooLargeError(int(np.argmax(np.isinf(found.sizes))), "float64")
        double, among = self.dtype == "float64", range(self._groups)[groups]
        near = np.zeros(X.shape[0], bool) if double else self.reach(found)
        out = np.zeros((len(among) * len(coefficients), X.shape[0]))
        if near.any():
            out[:, near] = self.responses(stream, X if near.all() else X[near], coefficients, groups)
            near &= np.isfinite(out).all(axis=0)
        far = np.flatnonzero(~near)
        if far.size:
            self.reach.check(found.some(far), far)
            given = self.kernel, X[far] if near.any() else X, *self._of(among, coefficients)
            # The host takes |x - y|^2 by differences, which lose nothing to rows far from one another.
            spec = self.kernel.spec
            rough = spec.of_distance and not spec.element and not self.reach(found.some(far), "float64").all()
            try:
                if rough:
                    out[:, far] = _on_host(stream, *given)
                elif double:
                    out[:, far] = self.responses(stream, given[1], coefficients, groups)
                else:
                    out[:, far] = _in_float64(stream, given[0], self.plan, *given[1:])
            except RowError as error:
                raise error.moved(int(far[error.row]) - error.row) from None
            bad = ~np.isfinite(out).all(axis=0)
            if bad.any():
                words = f"{self.kernel!r} is not finite for row {ROW} and some support vectors"
                raise RowError(words, int(np.argmax(bad)))
        return out


_Placed = tuple[Piece, Panel, Buffer]  # a piece, its part of the panel, and its numbers on the device


class _Sums(NamedTuple):
    """Sums (groups * problems, n) on the device, of groups from ``first`` on."""

    buffer: Buffer
    n: int
    first: int


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
    """(working vectors of a panel, about ``most`` or fewer; the pieces that share one) of support vectors whose groups
    have these ends. A piece begins where a part of a buffer can."""
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


def row_bytes(plan: Plan, X: Data, itemsize: int) -> int:
    """Bytes of a row of X as it is laid out, about."""
    return LAYOUTS[plan.kind].row_bytes(plan, X, itemsize)


def buffers_of(gram: Gram) -> tuple[Buffer, ...]:
    """What rows and their products hold."""
    sums = () if gram.norms is gram.rows.xx else (gram.norms,)
    return (*gram.rows.buffers(), *sums)


def whole_tiles(rows: int) -> int:
    """So many rows in whole tiles of any layout, at least one; sums then group the same way however memory is."""
    return max(1, rows // _TILE) * _TILE


def exact_responses(stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, coefficients: Vector) -> Vector:
    """:meth:`Support.responses` in float64: on the device where it has it and room, else by the kernel's oracle on the
    host, as where there is so little of it that no program is worth building."""
    cells = X.shape[0] * support.shape[0] * X.shape[1]
    if cells <= HOST:
        return _on_host(stream, kernel, X, support, coefficients)
    plan = layouts.once(plan, X) if cells < _CLUSTERED else layouts.cheaper(plan, X)
    return _in_float64(stream, kernel, plan, X, support, coefficients)


def exact_among(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, rows: NDArray[np.intp], support: NDArray[np.intp], b: Vector
) -> Vector | None:
    """:func:`exact_responses` of some rows of X (n, d) and some as support vectors, with b (problems, len(support)):
    they are laid out once for both, to the same bits; where most are support vectors half of K is computed (half.py),
    and the sums differ by rounding. None where neither pays, or memory does not hold it."""
    plan = layouts.cheaper(plan, X)
    both, layout = np.union1d(rows, support).astype(np.int32), LAYOUTS[plan.kind]
    halved = layout.in_order and len(support) >= HALVED * len(both)
    if not (layout.sparse or halved) or len(both) > AMONG * len(rows):
        return None
    if len(rows) * len(support) * X.shape[1] <= HOST:
        return None
    if not _doubles(stream) or len(both) * layout.row_bytes(plan, X, 8) > (stream.limit - stream.held) // 2:
        return None
    with contextlib.suppress(MemoryLimitError, BufferSizeError), stream.tentative(), stream.scratch():
        laid = layouts.build(stream, X if len(both) == X.shape[0] else X[both], plan, "float64", both)
        gram, of_rows, of_support = Gram(stream, laid, kernel), both.searchsorted(rows), both.searchsorted(support)
        if halved:
            whole = np.zeros((len(b), laid.n))
            whole[:, of_support] = b
            with contextlib.suppress(MemoryLimitError, BufferSizeError):
                return half.responses(gram, whole)[:, of_rows]
        panel, count = gram.panel(len(support)), stream.upload(np.array([len(support)], np.int32))
        gram.gather(panel, stream.upload(laid.position[of_support]), count)
        D, c = np.zeros((len(b), panel.capacity)), stream.zeros(8 * len(b) * laid.n_pad)
        D[:, : len(support)] = b
        gram.accumulate(panel, count, None, Update(len(b), laid.n_pad, c, stream.wide(D), panel.capacity))
        return stream.read_wide(c, (len(b), laid.n_pad))[:, laid.position[of_rows]]
    return None


def _doubles(stream: Stream) -> bool:
    """Whether the device computes in float64."""
    return bool(stream.info.fp64) and stream.profile.wide == "double"


def _in_float64(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, coefficients: Vector, ends: Sequence[int] = ()
) -> Vector:
    """On the device where it has float64 and room, else on the host."""
    if _doubles(stream):
        try:
            with stream.tentative():
                made = Support(stream, kernel, plan, support, "float64", ends, keep=False)
                return made.responses(stream, X, coefficients)
        except (MemoryLimitError, BufferSizeError):  # what is left of the budget, or a buffer, holds no tile of them
            pass
    return _on_host(stream, kernel, X, support, coefficients, ends)


def _on_host(
    stream: Stream, kernel: Kernel, X: Data, support: Data, coefficients: Vector, ends: Sequence[int] = ()
) -> Vector:
    """:meth:`Support.responses` in float64 by the kernel's oracle, in blocks of rows and of support vectors within what
    is left of the budget. Raises ValueError where that holds no block of one of each."""
    n, m, problems = X.shape[0], support.shape[0], len(coefficients)
    most = max(terms(X), terms(support)) if sp.issparse(X) and sp.issparse(support) else X.shape[1]

    def needed(side: int) -> int:  # K, and the rows without columns that have no entry
        down, across = min(side, n), min(side, m)
        return 8 * COPIES * (down * across + (down + across) * min(X.shape[1], (down + across) * most))

    room = min(_HOST_BYTES, stream.limit - stream.held)
    side = next((1 << k for k in range(20, 0, -1) if needed(1 << k) <= room), 1)
    if stream.held + needed(side) > stream.limit:
        raise MemoryLimitError(stream.limit, stream.held, needed(side))
    stream.peak = max(stream.peak, stream.held + needed(side))
    out = np.zeros((max(1, len(ends)), problems, n))
    for c, (first, end) in zip(out, pairwise((0, *(ends or (m,)))), strict=True):
        for begin in range(first, end, side):
            some = slice(begin, min(begin + side, end))
            for start in range(0, n, side):
                c[:, start : start + side] += coefficients[:, some] @ kernel(X[start : start + side], support[some]).T
    return out.reshape(-1, n)
