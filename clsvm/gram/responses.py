"""Compute decision values without the intercept: sums of K over support vectors, weighted by coefficients.

    c (problems, n) = coefficients (problems, m) K(S, X)

S are the m support vectors and X the n rows to predict. :class:`Support` computes the sums for any number of rows in
bounded memory. For few rows, preparing buffers and programs takes longer than computing the sums. Therefore
:class:`SmallBatchPredictor` keeps buffers and programs ready for few rows. Both classes return the same bits for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.layouts.lanes import DENSE, Packer, Source
from clsvm.gram.layouts.panel import Panel
from clsvm.gram.layouts.record import Plan, check_norms
from clsvm.gram.precision import RowPrecision
from clsvm.gram.products import Gram, Update
from clsvm.kernels import Kernel
from clsvm.opencl.contexts import thread_dict
from clsvm.opencl.stream import ALIGNMENT, Buffer, JoinedArrays, Stream, join_arrays

Vector = NDArray[np.float64]
# A device buffer of support vectors has room for a multiple of TILE rows.
# TILE is a multiple of V, the number of rows whose values are stored interleaved on the device.
# With the built-in device profiles, TILE is a multiple of the block size in which rows U of K(X, U) are stored.
TILE = 64
# Sub-buffers must be aligned, so each group of support vectors begins at a multiple of _BEGIN rows in its buffer.
_BEGIN = ALIGNMENT // 4
CHUNK = 256 << 20  # rows to predict are copied to the device in chunks of at most this many bytes
# A buffer of support vectors has PANEL bytes. A buffer that is not kept has PASSING bytes on a CPU.
PANEL, PASSING = 32 << 20, 4 << 20
# If memory allows, a buffer that is not kept may hold MIN_PANEL support vectors that take more than PASSING bytes.
MIN_PANEL = 512
ALL = slice(None)  # select every group of support vectors
# Kernel values are summed over each group of support vectors separately.
# If a buffer has SECTIONS or more groups and the rows to predict are dense, one launch computes the sums of all groups.
# Otherwise LoadedPanel.add launches an OpenCL kernel for each group of support vectors.
SECTIONS = 16
# For large batches, the coefficients of support vectors are copied to the device in parts of up to WEIGHTS bytes.
# If one group of support vectors in a buffer has more than WEIGHTS bytes of coefficients, they are copied together.
WEIGHTS = 8 << 20
ROW_OVERHEAD = 24  # bytes for a row's squared norm and for its place in the order in which the device stores rows
MAX_BATCH = 64  # largest number of rows in a small batch, a multiple of V (rows that a kernel processes together)
SHARE = 1 / 128  # largest share of the memory budget that a SmallBatchPredictor takes
# A SmallBatchPredictor computes a sum of kernel values for each row, dual problem and group of support vectors.
# A thread keeps at most PREDICTORS SmallBatchPredictors for the same queue, number of problems and number of groups.
PREDICTORS = 8
FIXED = 4096  # bytes of a SmallBatchPredictor besides its rows, norms, sums and coefficients


def whole_tiles(rows: int) -> int:
    """Round ``rows`` down to a multiple of TILE = 64, but return at least 64.

    Kernel values are summed over one block of rows after another, and the memory budget limits the size of a block. If
    block sizes are multiples of 64, the sums have the same bits for every memory budget.
    """
    return max(1, rows // TILE) * TILE


class Piece(NamedTuple):
    """Describe a piece: consecutive support vectors of one group that are stored in one panel.

    A panel is a device buffer of support vectors. A group is a range of the support vectors of a model. Weighted kernel
    values are summed over each group separately.

    Attributes
    ----------
    which
        the piece as a slice of all support vectors of the model.
    at
        position in the panel of the first support vector of the piece.
    group
        index of the group.
    """

    which: slice
    at: int
    group: int

    @property
    def size(self) -> int:
        """Return the number of support vectors in this piece, which is a range of consecutive support vectors."""
        return int(self.which.stop - self.which.start)

    def numbers(self, begin: int = 0, first: int = 0) -> NDArray[np.int32]:
        """Return three numbers that describe the piece to OpenCL kernels.

        A piece is a range of consecutive support vectors in a device buffer. All of them are in one group, over which
        weighted kernel values are summed. The three numbers are:

        - the number of support vectors of the piece
        - the position of its first support vector in the device buffer, minus ``begin``
        - the index of its group, minus ``first``
        """
        return np.array([self.size, self.at - begin, self.group - first], np.int32)


def _pieces(ends: Sequence[int], most: int) -> tuple[int, list[list[Piece]]]:
    """Divide groups of support vectors into pieces, and distribute the pieces to device buffers of equal size.

    A group is a range of support vectors, over which weighted kernel values are summed. A piece is the part of a group
    in one buffer. Each piece begins at a multiple of _BEGIN rows in its buffer, because OpenCL's sub-buffers must be
    aligned. ``ends`` holds for each group the index after its last support vector. The capacity of a buffer is at most
    max(most, 64) support vectors. Return this capacity, and for each buffer the list of its pieces.
    """
    sizes = np.diff([0, *ends])
    places = int((-(-sizes[:-1] // _BEGIN) * _BEGIN).sum() + sizes[-1])
    panels = -(-places // whole_tiles(most))
    capacity = whole_tiles(-(-places // max(1, panels)) + TILE - 1)
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


def _runs(pieces: Sequence[Piece], among: Sequence[int], problems: int) -> Iterator[list[int]]:
    """Divide the indices ``among`` of ``pieces`` into runs, and yield each run as a list of indices.

    A piece is a range of support vectors. Each support vector has a coefficient for each problem. The coefficients of a
    run take at most WEIGHTS bytes, or the run is a single piece.
    """
    run: list[int] = []
    for at in among:
        if run and 8 * problems * (pieces[at].at + pieces[at].size - pieces[run[0]].at) > WEIGHTS:
            yield run
            run = []
        run.append(at)
    yield run


def _weights(pieces: Sequence[Piece], coefficients: Vector, begin: int, capacity: int) -> Vector:
    """Return coefficients (problems, capacity) for the positions begin .. begin + capacity - 1 of a panel.

    A panel is a device buffer of support vectors. Positions that hold no support vector of ``pieces`` get 0.
    """
    D = np.zeros((len(coefficients), capacity))
    for piece in pieces:
        D[:, piece.at - begin : piece.at - begin + piece.size] = coefficients[:, piece.which]
    return D


class LoadedPanel(NamedTuple):
    """Hold support vectors that were copied into one panel, a device buffer.

    The support vectors are in groups, and weighted kernel values are summed over each group separately. A piece is the
    part of a group in this panel.

    Attributes
    ----------
    panel
        the panel, in which the support vectors are the right-hand rows of products.
    pieces
        the pieces in the panel (:class:`Piece`).
    sections
        a device array of three numbers for each piece: its size, its position and the index of its group
        (Piece.numbers).
    buffers
        the buffers to free with the panel.
    """

    panel: Panel
    pieces: Sequence[Piece]
    sections: JoinedArrays
    buffers: tuple[Buffer, ...]

    def add(self, gram: Gram, run: Sequence[int], coefficients: Vector, c: Buffer, n: int, first: int) -> list[Buffer]:
        """Add sums of kernel values over groups of support vectors to the device buffer c.

        ``gram`` holds the rows x to predict. n is the number of rows x with padding, rounded up to a multiple of 64.
        ``coefficients`` (problems, m) has a row for each dual problem, and a column for each of the m support vectors
        of the model. For each group from the group of index ``first`` on, c has an array (problems, n). The array's
        entry for a problem and a row x is

            sum of (coefficient of s in the problem) * K(s, x) over the support vectors s of the group.

        A group is a range of support vectors. The buffer ``panel`` of this object may hold only a piece of a group.
        ``run`` lists the pieces whose terms are added, as indices in ``pieces``. Return the buffers that the caller
        frees after the OpenCL kernels have run.
        """
        stream, problems, pieces = gram.stream, len(coefficients), [self.pieces[at] for at in run]
        begin = pieces[0].at
        capacity = whole_tiles(pieces[-1].at + pieces[-1].size - begin + TILE - 1)
        D = stream.wide(_weights(pieces, coefficients, begin, capacity))
        if len(run) >= SECTIONS and gram.rows.kind == DENSE.name and not stream.simulated:
            numbers = join_arrays(stream, [piece.numbers(begin, first) for piece in pieces]).buffer
            part = gram.part(self.panel, begin, capacity, numbers)
            gram.accumulate(part, numbers, None, Update(problems, n, c, D, capacity, len(pieces)))
            return [D, numbers]
        size = 8 * problems * n
        for at, piece in zip(run, pieces, strict=True):
            sums, before = stream.part(c, size * (piece.group - first), size), 8 * (piece.at - begin)
            weights = stream.part(D, before, 8 * problems * capacity - before)
            update = Update(problems, n, sums, weights, capacity)
            count = self.sections.each[at]
            part = gram.part(self.panel, piece.at, whole_tiles(piece.size + TILE - 1), count)
            gram.accumulate(part, count, None, update)
        return [D]


class Support:
    """Hold the support vectors (m, d) of a model on a device and compute sums over them.

    A panel is a device buffer of support vectors S, for products K(X, S) with the rows X to predict. All panels
    stay on the device if the argument ``keep`` is true and they take at most a quarter of the free memory. Otherwise
    every call copies the support vectors into one panel, a part at a time. The sums are the same in both cases.

    The support vectors are in one or more groups, and weighted kernel values are summed over each group separately. A
    piece is the part of a group that is in one panel.

    Attributes
    ----------
    kernel
        the kernel function.
    plan
        the layout of the rows to predict.
    vectors
        the support vectors on the host.
    dtype
        the dtype of K.
    pieces
        the pieces in each panel.
    buffers
        the buffers of the panels that stay on the device for later calls.
    precision
        object that tells for which rows float32 is precise enough. The model sets this attribute.
    columns
        the column of X for each column of the support vectors; None if the columns were not renumbered.

    ``ends`` holds the index after the last support vector of each group; it is empty for a single group. ``keep`` says
    whether more than one call will follow, so that panels should stay if memory allows.
    """

    precision: RowPrecision | None = None
    columns: NDArray[np.int32] | None = None

    def __init__(
        self, stream: Stream, kernel: Kernel, plan: Plan, vectors: Data, dtype: str, ends: Sequence[int], keep: bool
    ) -> None:
        plan = layouts.unrestricted_plan(plan)
        self.kernel, self.plan, self.vectors, self.dtype = kernel, plan, vectors, dtype
        self._ends, self._single = ends or (vectors.shape[0],), layouts.single_pass_plan(plan, vectors)
        itemsize, budget = np.dtype(dtype).itemsize, stream.limit - stream.allocated
        row = layouts.row_bytes(plan, vectors, itemsize)
        block = layouts.LAYOUTS[plan.kind].block_bytes(plan, vectors, itemsize, TILE)
        limit = min(stream.largest, max(0, budget // 8 - block))
        self._capacity, self.pieces = _pieces(self._ends, min(PANEL, limit) // row)
        self._resident: list[LoadedPanel] = []
        self.buffers: tuple[Buffer, ...] = ()
        if stream.profile.lacks(self.dtype):  # the host computes the decision values instead (exact.decision_values)
            return
        needed = len(self.pieces) * (self._capacity * (row + ROW_OVERHEAD) + block) + ALIGNMENT * len(ends)
        if keep and needed <= budget // 4:
            self._resident = [self._loaded(stream, pieces) for pieces in self.pieces]
            self.buffers = tuple(buffer for load in self._resident for buffer in load.buffers)
        else:
            most = max((PASSING if stream.profile.style == "simd" else PANEL) // row, MIN_PANEL)
            self._capacity, self.pieces = _pieces(self._ends, min(most, limit // row))
        stream.finish()

    def _loaded(self, stream: Stream, pieces: list[Piece]) -> LoadedPanel:
        """Copy the support vectors in ``pieces`` to the device, into a new panel, and return the LoadedPanel.

        A piece is a range of consecutive support vectors. A panel is a buffer of the rows U of products K(X, U).
        """
        first, end = pieces[0].which.start, pieces[-1].which.stop
        gram = Gram(stream, layouts.build(stream, self.vectors[first:end], self._single, self.dtype), self.kernel)
        panel = gram.panel(self._capacity)
        places = np.full(panel.capacity, -1, np.int32)
        for which, at, _ in pieces:
            places[at : at + which.stop - which.start] = gram.rows.position[which.start - first : which.stop - first]
        rows, count = stream.upload(places), stream.upload(np.array([panel.capacity], np.int32))
        gram.gather(panel, rows, count)
        sections = join_arrays(stream, [piece.numbers() for piece in pieces])
        lasting, passing = (*panel.buffers(), sections.buffer), (count, rows, *gram.buffers())
        if panel.rows_stay:
            return LoadedPanel(panel, pieces, sections, (*lasting, *passing))
        stream.finish()
        stream.free(*passing)
        return LoadedPanel(panel, pieces, sections, lasting)

    def responses(self, stream: Stream, X: Data, coefficients: Vector, groups: slice = ALL) -> Vector:
        """Return sums of K(S, X) over the support vectors S, weighted by ``coefficients`` (problems, m), in float64.

        The m support vectors are in consecutive groups. Each sum is over one group, and the slice ``groups`` selects
        groups. The result is (groups * problems, n): all problems of the first selected group, then of the next group.
        K is not stored, and the n rows X are taken in chunks of bounded memory. The sums of a row depend on neither the
        other rows nor the memory budget. Raises ValueError if memory_limit is too small.
        """
        if stream.profile.wide == "double":
            return self._summed(stream, X, coefficients, groups)
        # a pair of float32 cannot hold 1e-45 or 1e60, so each problem's coefficients are scaled by a power of two
        sizes = np.abs(coefficients).max(axis=1, initial=0.0)
        units = np.where(sizes > 0, np.ldexp(0.5, np.frexp(sizes)[1]), 1.0)
        scaled = np.tile(units, len(self.among(groups)))[:, None]
        return self._summed(stream, X, coefficients / units[:, None], groups) * scaled

    def _summed(self, stream: Stream, X: Data, coefficients: Vector, groups: slice) -> Vector:
        """Return the sums of K(S, X) over groups of support vectors S, weighted by the coefficients.

        :meth:`responses` describes arguments and result. The device adds in doubles, or in pairs of floats if it has no
        doubles. In pairs of floats, each coefficient must be in the range of a float.
        """
        among = self.among(groups)
        problems, n = len(coefficients), X.shape[0]
        if len(among) == len(self._ends) and (few := self._small_batch(stream, X, problems)):
            return few.responses(stream, X, coefficients)
        row = layouts.row_bytes(self.plan, X, np.dtype(self.dtype).itemsize) + ROW_OVERHEAD + 8 * problems * len(among)
        step = whole_tiles(min(CHUNK, stream.largest, (stream.limit - stream.allocated) // 4) // row)
        out = np.empty((len(among) * problems, n))
        with stream.recycling():
            for start in range(0, n, step):
                rows = layouts.build(stream, X[start : start + step], self.plan, self.dtype)
                gram = Gram(stream, rows, self.kernel)
                found = self._sums(stream, gram, coefficients, among)
                in_order = layouts.LAYOUTS[rows.kind].in_order
                out[:, start : start + step] = found[:, : rows.n] if in_order else found[:, rows.position]
                stream.free(*gram.buffers())
        return out

    def _small_batch(self, stream: Stream, X: Data, problems: int) -> SmallBatchPredictor | None:
        """Return this thread's :class:`SmallBatchPredictor`, or None if it cannot predict the rows X.

        A SmallBatchPredictor keeps buffers and programs for predictions of few rows. ``problems`` is the number of dual
        problems of the model. The result is None unless all of these conditions hold:

        - X has at most MAX_BATCH = 64 rows
        - the device would store X as a dense matrix
        - the support vectors stay on the device between calls
        - the device has double precision, and is not simulated by Oclgrind
        - the buffers of the predictor take at most SHARE = 1 / 128 of the memory limit
        """
        (n, d), groups, vectors = X.shape, len(self._ends), len(self._resident) * self._capacity
        if not self._resident or n > MAX_BATCH or stream.profile.wide != "double" or stream.simulated:
            return None
        nbytes = FIXED + 8 * (MAX_BATCH * (2 * d + 1 + problems * groups) + problems * vectors)
        if nbytes > SHARE * stream.limit or layouts.single_pass_plan(self.plan, X).kind != DENSE.name:
            return None
        made = thread_dict("small batches").setdefault((stream.queue, problems, groups), WeakKeyDictionary())
        if self not in made:
            if len(made) >= PREDICTORS:
                made.clear()
            made[self] = SmallBatchPredictor(stream, self, self._resident, d, problems)
        found: SmallBatchPredictor = made[self]
        return found

    def among(self, groups: slice) -> range:
        """Return the indices of the groups of support vectors that the slice ``groups`` selects."""
        return range(len(self._ends))[groups]

    def vectors_of(self, among: slice, coefficients: Vector) -> tuple[Data, Vector, Sequence[int]]:
        """Return the support vectors S of some groups, their coefficients, and the end of each group.

        The slice ``among`` selects the groups. A group is a range of support vectors, over which weighted kernel values
        are summed. The end of a group is the index in S after its last support vector.
        """
        groups = self.among(among)
        cuts = (0, *self._ends)[groups.start : groups.stop + 1]
        some = slice(cuts[0], cuts[-1])
        return self.vectors[some], coefficients[:, some], [end - cuts[0] for end in cuts[1:]]

    def _sums(self, stream: Stream, gram: Gram, coefficients: Vector, groups: range) -> Vector:
        """Return weighted sums of kernel values over selected groups of support vectors, for the rows of ``gram``.

        A group is a range of support vectors. ``groups`` has the indices of the selected groups. ``coefficients`` has a
        row for each dual problem, and a column for each support vector of the model. For a group, a dual problem and a
        row x of ``gram``, the result has the

            sum of (coefficient of s in the problem) * K(s, x) over the support vectors s of the group.

        The result has the shape (groups * problems, n_pad). Its first rows are for all problems of the first selected
        group. Its columns are for the rows x, in the order in which the device stores them. The device adds rows of
        padding, and n_pad is the number of rows with padding.
        """
        problems, n_pad = len(coefficients), gram.rows.n_pad
        n = -(-n_pad // TILE) * TILE  # rounded up, so that the sub-buffer of each group's sums is aligned
        sums = stream.zeros(8 * len(groups) * problems * n)
        for number, pieces in enumerate(self.pieces):
            among = [at for at, piece in enumerate(pieces) if piece.group in groups]
            if not among:
                continue
            load = self._resident[number] if self._resident else self._loaded(stream, pieces)
            for run in _runs(pieces, among, problems):
                stream.free(*load.add(gram, run, coefficients, sums, n, groups.start))
            stream.finish()
            stream.free(*(() if self._resident else load.buffers))
        found = stream.read_wide(sums, (len(groups) * problems, n))[:, :n_pad]
        stream.free(sums)
        return found


class SmallBatchPredictor:
    """Compute decision values without the intercept for at most MAX_BATCH rows of d features in one call.

    A decision value is a sum of weighted kernel values over a group of support vectors. ``loads`` are the buffers with
    the support vectors on the device. A predictor belongs to one command queue and one thread. It keeps its own buffers
    on the device between calls.

    One device buffer holds the rows to predict, their squared norms and the decision values, so that a call needs few
    copies. One copy to the device writes the rows and sets the decision values to zero. One copy to the host reads the
    decision values and the norms. The norms show whether a row exceeds the range of the dtype.
    """

    def __init__(self, stream: Stream, support: Support, loads: Sequence[LoadedPanel], d: int, problems: int) -> None:
        plan, dtype, groups = support.plan, support.dtype, len(support.among(ALL))
        self._loads, self._problems, self._capacity = loads, problems, loads[0].panel.capacity
        built = DENSE.build(stream, np.zeros((MAX_BATCH, d)), plan, dtype)
        self._begin = MAX_BATCH * (1 + groups * problems)  # index at which rows begin in the buffer
        self._host = np.zeros(self._begin + MAX_BATCH * d)
        self._device = stream.upload(self._host)
        self._sums = stream.part(self._device, 8 * MAX_BATCH, 8 * (self._begin - MAX_BATCH))
        self._rows = replace(built, xx=stream.part(self._device, 0, 8 * MAX_BATCH))
        self._gram = Gram(stream, self._rows, support.kernel)
        rows = stream.part(self._device, 8 * self._begin, 8 * MAX_BATCH * d)
        self._source = Source(0, self._rows.n_pad, d, rows, 0)
        self._packer = Packer(stream, np.float64, dtype, plan.centre)
        self._order = stream.upload(np.arange(self._rows.n_pad, dtype=np.int32))
        size = 8 * problems * self._capacity
        self._weights = stream.buffer(size * len(loads))
        self._weights_of = [stream.part(self._weights, number * size, size) for number in range(len(loads))]
        self._written: Vector | None = None  # the coefficients that were last copied to the device
        self._launches: dict[int, list[Callable[[], None]]] = {}  # launches by the number of lane groups (V rows each)
        # Before a fork, a thread acquires the lock for building OpenCL programs, and then stream.lock.
        # To avoid a deadlock, programs are built by self._prepare, before this thread acquires stream.lock.
        self._prepare(1)
        m = max(piece.which.stop for load in loads for piece in load.pieces)
        self._predict(stream, np.zeros((1, d)), np.zeros((problems, m)))
        lasting = self._order, self._packer.centre, self._device, self._weights
        stream.detach([*built.buffers(), *lasting])

    def responses(self, stream: Stream, X: Data, coefficients: Vector) -> Vector:
        """Return sums of kernel values between groups of support vectors and rows X, weighted by ``coefficients``.

        A group is a range of the m support vectors. X (n, d) has at most MAX_BATCH rows, and ``coefficients`` is
        (problems, m). The result is (groups * problems, n): all problems of the first group, then of the next group.

        Raises ValueError for a row whose squared norm exceeds the range of the dtype.
        """
        self._prepare(-(-X.shape[0] // self._rows.lanes))
        with stream.lock:  # a thread that forks needs this lock first, so it waits until the prediction is done
            return self._predict(stream, X.toarray() if sp.issparse(X) else X, coefficients)

    def _predict(self, stream: Stream, X: NDArray[np.floating], coefficients: Vector) -> Vector:
        rows, n, begin = self._rows, len(X), self._begin
        self._host[begin : begin + X.size] = X.reshape(-1)
        stream.write(self._device, self._host[: begin + X.size])
        if self._written is None or not np.array_equal(self._written, coefficients):
            self._written = None  # if the copy fails, the coefficients count as not written
            weights = [_weights(load.pieces, coefficients, 0, self._capacity) for load in self._loads]
            stream.write_wide(self._weights, np.stack(weights))
            self._written = coefficients.copy()
        for launch in self._launches[-(-n // rows.lanes)]:
            launch()
        found = stream.read(self._device, np.float64, (begin // MAX_BATCH, MAX_BATCH))
        check_norms(found[0].view(rows.dtype)[:n], rows)
        return found[1:, :n]

    def _prepare(self, groups: int) -> None:
        """Prepare the launches of OpenCL kernels that compute decision values of ``groups`` * V rows.

        The device stores rows in groups of V, and interleaves the values of the V rows of a group. The launches store
        the rows in this way, compute the norms of the rows, and sum weighted kernel values over the support vectors.
        """
        if groups in self._launches:
            return
        rows, packer, some = self._rows, self._packer, range(groups)
        (part,) = rows.parts  # MAX_BATCH rows fit in one buffer
        prepared = [packer.rows(self._source, some, self._order, rows.at, part.values, prepared=True)]
        prepared.append(packer.norms(some, rows.at, part.values, rows.xx, prepared=True))
        for D, load in zip(self._weights_of, self._loads, strict=True):
            update = Update(self._problems, MAX_BATCH, self._sums, D, self._capacity, len(load.pieces))
            prepared += self._gram.prepared(some, load.panel, load.sections.buffer, update)
        self._launches[groups] = prepared
