"""Store rows with few nonzero entries in one of three layouts: csr, hybrid and inverted.

    csr: compressed sparse rows (CSR).
    hybrid: the densest columns are stored densely (zeros included), and the entries of other columns in CSR.
    inverted: as hybrid, and with an inverted index of the CSR entries.

A product K(X, U) has the kernel values between rows X and right-hand rows U. Its buffer for U, the panel, holds one
block of rows U at a time, with only the features that occur in the block. Each product copies one block after another
to the panel (cl_kernels/gram/scatter.cl).

The three layouts sum over the densely stored columns first, and then over the other columns, in the
caller's order. If two layouts store the same columns densely, their kernel values have the same bits.

An inverted index lists, for each column, the rows of X that have an entry in the column. For a right-hand row u, a
product reads only the columns in which u has entries. The layouts csr and hybrid read all entries of X. An index saves
most of the work if few rows share a column. X is divided into blocks of rows, each with an index of its own. Blocks are
so small that the sums of u with all rows of a block stay in a core's cache. Devices other than CPUs use hybrid instead.

References: Zobel and Moffat 2006, inverted indices of text retrieval; Gustavson 1978, the product of two sparse
matrices row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred
from clsvm.errors import BufferSizeError
from clsvm.gram import partition
from clsvm.gram.layouts import record
from clsvm.gram.layouts.panel import Launch, Panel, PanelPair
from clsvm.gram.layouts.record import Layout, Plan, Reader, Rows, Survey, Text, options
from clsvm.gram.partition import Gain, Partition
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.contexts import Kernel as DeviceKernel
from clsvm.opencl.profiles import Profile, shape_class
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

ORDERED = 8192  # if X has more than ORDERED columns, they are sorted by number of entries, largest number first
VALUE = 1.4  # cost of the kernel function and of storing its value, as a multiple of value_cost in the device's profile
CONVERTED = 1000.0  # cost of converting one value of a dense row to CSR; a multiply-add of dense rows costs 1
LINE = 12000.0  # cost of copying one feature of a block of CSR rows to a buffer; a multiply-add of dense rows costs 1
CACHED = 4096  # a CPU's second-level cache holds this many features of a block of 64 rows U of K(X, U)
FAR = 3.0  # for K(X, U), an entry X[i, j] costs 1 + FAR times as much if the cache lacks feature j of the rows U
TEAM_ITEMS = 256  # number of work-items in a work-group
MADE = 1.05  # factor on the cost of a value of K if a layout first separates dense columns from sparse ones
BEGUN = 0.5  # extra cost of a kernel value if X has densely stored columns, as a multiple of profile.value_cost


class Entries(NamedTuple):
    """Hold CSR rows on the device in SciPy's three arrays. ``indptr`` is int64, and includes the rows of padding."""

    indptr: Buffer
    indices: Buffer
    data: Buffer


class DenseColumns(NamedTuple):
    """Hold the densely stored columns of sparse rows X. ``number`` is the number of these columns.

    The buffer ``values`` holds ``number`` values of each row of X, zeros included, one row after another. If ``number``
    is 0, ``values`` is a placeholder that no OpenCL kernel reads.
    """

    values: Buffer
    number: int


@dataclass(frozen=True)
class CsrRows(Rows):
    """Hold rows on the device: some columns densely, and the entries of the other columns in CSR.

    Attributes
    ----------
    csr
        the entries in the columns that are not stored densely.
    dense
        the columns that are stored densely.
    lengths
        the numbers of CSR entries of the rows, sorted from largest to smallest, so not in the order of the rows.
    """

    csr: Entries
    dense: DenseColumns
    lengths: NDArray[np.int64]

    def buffers(self) -> tuple[Buffer, ...]:
        return (self.xx, *self.csr, *[self.dense.values] * (self.dense.number > 0))

    def describe(self) -> str:
        return super().describe() + f", {self.dense.number} columns whole" * (self.dense.number > 0)

    def entries(self, rows: int) -> int:
        """Return the total number of CSR entries in the ``rows`` rows with the most entries."""
        return int(self.lengths[:rows].sum())


class PanelRows(NamedTuple):
    """Say which rows of X are the right-hand rows U of K(X, U). Each product copies U from X to a panel, a buffer.

    Attributes
    ----------
    csr
        the CSR entries of all rows of X.
    dense
        the columns of X that are stored densely.
    norms
        buffer of the squared norms of all rows of X.
    count
        buffer with the number of right-hand rows.
    rows
        buffer with the positions of the right-hand rows in X.
    """

    csr: Entries
    dense: DenseColumns
    norms: Buffer
    count: Buffer
    rows: Buffer


@dataclass
class PanelBlock:
    """Say where a block of the right-hand rows U of K(X, U) stores each feature.

    The block consists of lines. Line 0 has only zeros. Each other line has one feature of all rows of the block.

    Attributes
    ----------
    line_of
        int32 buffer with a number for each feature j that is not stored densely. If a row of the block has feature j,
        the feature's line is line_of[j] - base, at least 1. Otherwise line_of[j] <= base, and the feature's line is 0.
    base
        offset that is added to the line numbers of this block in line_of. All numbers that earlier blocks left in
        line_of are at most ``base``, so line_of need not be cleared between blocks.
    """

    line_of: Buffer
    base: int = 0


class CsrReader(Reader):
    """Read CSR rows X for products K(X, U). A panel, the buffer of U, holds one block of the rows U at a time."""

    def __init__(self, layout: Csr, stream: Stream, rows: CsrRows, kernel: Kernel) -> None:
        super().__init__(layout, stream, rows, kernel)
        self._sparse = rows.d - rows.dense.number
        self._line_bytes = 4 * max(1, self._sparse)
        if kernel.spec.element:  # K(x, y) = f(sum_j e(x_j, y_j)) needs sum_j e(0, x_j) of each row, and no norms
            self.norms = stream.buffer(self.real.itemsize * rows.n_pad)
            made = stream.variant(zero_sums(kernel.spec, rows.dtype, stream.profile, rows.d))
            given = rows.csr.indptr, rows.csr.data, self._sparse, self.norms, kernel.scalars(rows.dtype)
            made((rows.n_pad,), None, *given)

    @cached_property
    def _scatter(self) -> list[DeviceKernel]:
        made = scatter(self.stream.profile, self.rows.dtype, self.rows.d)
        return [self.stream.variant(made, name) for name in ("mark", "fill", "copy_dense")]

    def panel(self, capacity: int, square: bool = False) -> Panel:
        stream = self.stream
        with stream.tentative():
            made = super().panel(capacity, square)
            stream.clear(made.values, made.width * self.real.itemsize)
            made.block = PanelBlock(stream.zeros(self._line_bytes))
            made.others = (made.block.line_of,)
        return made

    def panel_bytes(self, capacity: int) -> int:
        return super().panel_bytes(capacity) + self._line_bytes

    def values_bytes(self, capacity: int) -> int:
        """Return the size in bytes of a panel for up to ``capacity`` right-hand rows U of products K(X, U).

        The panel is a buffer for one block of rows U at a time. It consists of lines. A line holds the values of one
        feature for all rows of the block. There is a line for each densely stored column, a line for each other feature
        that can occur in the block, and a line of zeros.
        """
        r, width = self.rows, self.layout.width(self.stream.profile, self.rows.dtype, shape_class(capacity))
        lines: int = 1 + r.dense.number + min(self._sparse, r.entries(width))
        return lines * width * self.real.itemsize

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        listed = panel.listed._replace(count=count, rows=self.stream.part(panel.listed.rows, 4 * first, 4 * capacity))
        return replace(super().part(panel, first, capacity, count), listed=listed)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        if panel.nbytes < self.values_bytes(panel.capacity):
            words = f"it has {panel.nbytes} bytes, expected {self.values_bytes(panel.capacity)}"
            raise ValueError(f"the buffer for the rows U of a product K(X, U) is too small: {words}")
        panel.listed = PanelRows(self.rows.csr, self.rows.dense, self.norms, count, rows)

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Launch]:
        # a product with all rows of X does not read the kernel argument ``rows``; self.norms is only a placeholder
        yield from self.over_panel(groups, PanelPair(panel, self.norms, panel, count))

    def over_panel(self, groups: range, pair: PanelPair) -> Iterator[Launch]:
        """Copy the rows U of a product K(R, U) to ``pair.right`` block by block. Yield a launch for each block.

        The launch computes the kernel values between the rows R and the block of U. V is the number of rows that OpenCL
        kernels compute side by side. For each g in ``groups``, R includes the V rows of X at the positions
        pair.at[V * g + v], v = 0 .. V - 1. The kernels read R from X itself, and do not use ``pair.panel``.
        """
        _, rows, right, count, _ = pair
        stream, r, block, (csr, dense, norms, listed, which) = self.stream, self.rows, right.block, right.listed
        mark, fill, _ = self._scatter
        size, local = self._range(right)
        lines = right.nbytes // (right.width * self.real.itemsize)
        by_entry = int(lines - 1 < r.d)
        for first in range(0, right.capacity, right.width):
            if block.base > 2**31 - 1 - 2 * lines:  # clear line_of before its ints overflow
                stream.clear(block.line_of, self._line_bytes)
                block.base = 0
            base, line_of = block.base, block.line_of
            mark(size, local, csr[:2], listed, which, first, base, dense.number, by_entry, line_of, right.values)
            fill(size, local, csr, norms, listed, which, first, base, line_of, right.values, right.uu)
            if dense.number:
                self.copy_dense(right, first)
            arguments = (r.csr, r.dense, rows, self.norms, first, base, count, line_of, right.values, right.uu)
            yield Launch(groups.start, len(groups), arguments)
            block.base += lines

    def copy_dense(self, panel: Panel, first: int) -> None:
        """Copy the densely stored columns of panel.width right-hand rows, from row ``first`` on, to ``panel``."""
        _, dense, _, listed, which = panel.listed
        self._scatter[2](*self._range(panel), dense, listed, which, first, panel.values)

    def _range(self, panel: Panel) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Return the global and local work size of the OpenCL kernels that copy a block of data rows to ``panel``."""
        simd = self.stream.profile.style == "simd"
        return (panel.width, 1 if simd else 32), (1, 1) if simd else None


class Csr(Layout):
    """Store only the nonzero entries of rows, as compressed sparse rows (CSR)."""

    name, reader, sparse, shared = "csr", CsrReader, True, False
    panel_words = (
        "  feature j of right-hand row u:  block[(line_of[j] - mark) * UB + u % UB]",
        "Line 0 is zero, for features that no row of the block has. Blocks take a launch each, one after the other.",
    )
    arguments: Mapping[str, str] = {
        "indptr": "[n_pad + 1] row i is entries indptr[i] .. indptr[i + 1] - 1",
        "indices": "feature of each entry, from 0; entries of a row are summed in their order",
        "data": "value of each entry",
        "dense": "[n_pad dense_columns] columns before those of the entries; not read if dense_columns is 0",
        "dense_columns": "number of dense columns",
        "rows": "not read by this program: any buffer",
        "first": "first right-hand row of the block",
        "mark": "line_of less mark is a line of the block",
        "line_of": "[d - dense_columns] mark plus the feature's line in the block; mark if no row of the block has it",
        "block": "[lines UB] the right-hand rows of one block",
    }

    def cost(self, survey: Survey) -> float | None:
        return self.of_parts(survey, np.zeros(len(survey.density), bool))

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        """Estimate the cost of one value of K(X, U) without the multiply-adds of the densely stored columns of X.

        The unit is one multiply-add in a product of dense rows. ``survey`` describes X. ``whole`` is the mask of the
        densely stored columns. The rows U are copied to a buffer, one block of rows at a time. The estimate includes
        these copies. For a block of profile.panel rows, reading an entry of X costs as much as the multiply-adds of the
        entry with the block. A CPU's cache holds only the densest columns of the block. In a column outside the cache,
        an entry of X costs 1 + FAR times as much as in a cached column, if any row of the block has an entry there.
        """
        density = survey.density[~whole]
        profile, width = survey.profile, self.width(survey.profile, "float32", shape_class(survey.working))
        near = CACHED * 64 // width if profile.style == "simd" else len(density)
        far = np.sort(density)[::-1][near:]
        read = density.sum() + FAR * (far * (1 - (1 - far) ** width)).sum()
        row = profile.csr_cost * (1 + profile.panel / width) / 2 * read
        filled = LINE / width * (1 - (1 - np.minimum(density, 1)) ** width).sum() / survey.n
        return float(row + filled) + survey.overhead(VALUE, 3 * -(-survey.working // width))

    def setup_cost(self, survey: Survey) -> float:
        return 0.0 if sp.issparse(survey.X) else CONVERTED * survey.X.shape[1]

    def partition(self, profile: Profile, X: Data) -> Partition | None:
        """Return the order of the columns by falling density, or None if X has at most ORDERED columns.

        The device numbers the columns in this order, so that often read columns share cache lines. Each row keeps its
        entries in the order of X, so the bits of kernel values do not change.
        """
        return partition.by_density(partition.counts(X)) if X.shape[1] > ORDERED else None

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        entries_bytes = 16 + (X.nnz if sp.issparse(X) else X.size) * (4 + itemsize) // max(1, X.shape[0])
        return entries_bytes + _whole(plan) * itemsize

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        entries = np.diff(X.indptr) if sp.issparse(X) else np.count_nonzero(X, axis=1)
        longest = int(np.sort(entries)[-width:].sum())
        return (min(X.shape[1], longest) + 1 + _whole(plan)) * width * itemsize + 4 * X.shape[1]

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> CsrRows:
        return self._laid(stream, *self._split(X, plan), dtype)

    def _split(self, X: Data, plan: Plan) -> tuple[NDArray[np.floating], sp.csr_matrix]:
        """Subtract ``plan.centre`` from X (n, d). Return the dense columns as an array, and the other columns in CSR.

        The vector ``plan.centre`` (d,) is 0 except in columns in which every row has an entry. So zeros of X stay zero.
        """
        X = sp.csr_matrix(centred(X, plan.centre))
        if self.splits and plan.partition:
            return partition.split(X, plan.partition)
        if plan.partition:
            rank = plan.partition.widened(X.shape[1]).rank
            X = sp.csr_matrix((X.data, rank[X.indices], X.indptr), shape=X.shape)
        return np.zeros((X.shape[0], 0)), X

    def _laid(self, stream: Stream, dense: NDArray[np.floating], X: sp.csr_matrix, dtype: str) -> CsrRows:
        """Copy the densely stored columns ``dense`` and the other columns X (CSR) to the device, and compute norms."""
        profile, real, V = stream.profile, np.dtype(dtype), record.lanes(stream.profile, dtype)
        (n, sparse), number, stored = X.shape, dense.shape[1], int(X.indptr[-1])
        d, n_pad = sparse + number, record.padded(n, V)
        indptr = np.full(n_pad + 1, stored, np.int64)
        indptr[: n + 1] = X.indptr
        indices = X.indices.astype(np.uint16 if d <= 1 << 16 else np.int32)
        csr = Entries(stream.upload(indptr), stream.upload(indices), stream.upload(X.data.astype(real)))
        whole = np.zeros((n_pad, number), real)
        whole[:n] = dense
        columns = DenseColumns(stream.upload(whole) if number else csr.data, number)
        xx = stream.buffer(real.itemsize * n_pad)
        norms = stream.kernel(sources.cl("gram/pack"), record.packing(profile, X.dtype, sparse, dtype), "norms_csr")
        norms((n_pad,), None, csr.indptr, csr.data, columns, xx)
        cost = stored / max(1, n) * profile.csr_cost + number * profile.hybrid_cost + profile.value_cost
        lengths, sizes = -np.sort(-np.diff(indptr)), (n, d, n_pad, V, stored + n_pad * number)
        places = record.in_order(n, n_pad)
        made = CsrRows(self.name, dtype, *sizes, *places, xx, cost, cost, csr, columns, lengths)
        record.check_norms(stream.read(xx, dtype, n_pad), made)
        return made

    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return the number of rows in a block of the right-hand rows U of K(X, U).

        If U has few rows, a block on a CPU has only V rows, the length of a SIMD vector. A larger block would need more
        rows of padding, and a row of padding takes as much time as a row of U.
        """
        V = record.lanes(profile, dtype)
        if profile.style == "workgroup":  # local memory holds values of K, so a block of doubles has fewer rows
            return min(profile.panel, 64) if dtype == "float64" else profile.panel
        return V if shape != "many" else profile.panel * V // profile.lanes

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        teams = [] if profile.style == "simd" else [f"-DTEAMS={_teams(self.width(profile, dtype, shape))}"]
        text = sources.render(f"gram/gram_csr_{profile.style}", kernel=spec)
        return text, [*teams, *["-DLISTED"] * of_panel]

    def items(self, numbers: Mapping[str, int]) -> int:
        return numbers["UB"] * _teams(numbers["UB"])


CSR = Csr()


class Hybrid(Csr):
    """Store the densest columns densely, zeros included, and the entries of the other columns in CSR."""

    name, splits = "hybrid", True
    rows_words = (
        "The first dense_columns features are stored densely. The others are numbered from 0:",
        "  feature j < dense_columns of row i:             dense[i * dense_columns + j]",
        "  feature j < dense_columns of right-hand row u:  block[(1 + j) * UB + u % UB]",
    )

    def cost(self, survey: Survey) -> float | None:
        whole = self.gain(survey.profile).whole(survey.density)
        return MADE * self.of_parts(survey, whole) if whole.any() else None

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        cells = float(survey.profile.hybrid_cost * survey.wait() * whole.sum())
        return cells + super().of_parts(survey, whole) + survey.overhead(BEGUN, 1)

    def gain(self, profile: Profile) -> Gain:
        """Return a :class:`Gain`, which estimates the time saved by storing a column densely instead of in CSR."""
        return Gain(profile.csr_cost / profile.hybrid_cost, 1, BEGUN * profile.value_cost / profile.hybrid_cost)

    def partition(self, profile: Profile, X: Data) -> Partition:
        return partition.partition(partition.counts(X), X.shape[0], self.gain(profile))

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        text, made = super().program(spec, profile, dtype, shape, of_panel)
        made.append("-DDENSE_COLUMNS")
        if profile.style == "simd":  # a CPU's kernel has the sums of AT_ONCE rows of X in registers at a time
            tile, V = profile.tiles["many"], record.lanes(profile, dtype)
            of_row = self.width(profile, dtype, shape) // V
            at_once = tile["COLUMNS"] * tile["GROUPS"] // of_row
            made.append(f"-DAT_ONCE={min(V, 1 << max(0, at_once.bit_length() - 1))}")
        return text, made


HYBRID = Hybrid()


def _whole(plan: Plan) -> int:
    """Return the number of columns that the plan stores densely."""
    return plan.partition.dense if plan.partition else 0


def _teams(width: int) -> int:
    """Return the number of teams in a work-group. A team of ``width`` work-items multiplies one row of X at a time."""
    return max(1, TEAM_ITEMS // width)


def scatter(profile: Profile, dtype: str, d: int = 0) -> Variant:
    """Return the OpenCL program that copies a block of the right-hand rows U of a product K(X, U) to a buffer."""
    return Variant(f"scatter {dtype}", sources.cl("gram/scatter"), tuple(options(profile, dtype, d)), "mark")


def zero_sums(spec: Spec, dtype: str, profile: Profile, d: int = 0) -> Variant:
    """Return the program that computes sum_j e(0, x_j) for CSR rows x and a kernel function f(sum_j e(x_j, y_j))."""
    text, label = sources.render("gram/zero_sums", kernel=spec), f"{spec.name or 'expression'} zero sums csr {dtype}"
    return Variant(label, text, tuple(options(profile, dtype, d)), "zero_sums")


# X is divided into blocks of BLOCK rows, each with an inverted index. BLOCK kernel values fit in a core's cache.
# If rows have few entries, up to MAX_BLOCK rows of X share an inverted index. Its row numbers have 16 bits.
BLOCK, MAX_BLOCK = 16384, 1 << 16
ADDED = 2.0  # cost of storing an inner product over the dense columns and loading it again, in units of value_cost
LIST = 60.0  # cost of finding a column's entries in a block of an inverted index, as a multiple of profile.hit_cost
COLD = 1.75  # factor on LIST if a product K(X, U) has at most 16 rows U: a CPU then waits for the index from memory
MIN_INDEXED = 256  # an inverted index is made for at least this many rows
PARTS = 4  # an inverted index is built by about this many work-items for each compute unit
WEIGHED = 512  # number of rows x for which one work-item computes sums of weighted kernel values, sum_u w_u K(x, u)


class InvertedIndex(NamedTuple):
    """Hold the inverted index of CSR rows on the device. The rows are divided into blocks of ``size`` rows.

    The index is a list of all entries of the rows: first the entries of block 0, then the entries of block 1, and so
    on. The entries of a block are sorted by column, and the entries of a column by row.

    columns: number of columns. All entries are in the columns 0 to columns - 1.
    indptr: indptr[i] is the number of entries in the rows before row i. Block b begins at place indptr[b * size].
    ends: ends[b][k] is the number of entries that block b has in the columns 0 to k - 1. With start = indptr[b * size],
        the entries of block b in column k are at the places start + ends[b][k] to start + ends[b][k + 1] - 1.
    rows: rows[e] is the row of the entry at place e, counted from the first row of the entry's block.
    values: values[e] is the value of the entry at place e.
    """

    size: int
    columns: int
    indptr: Buffer
    ends: Buffer
    rows: Buffer
    values: Buffer


@dataclass(frozen=True)
class InvertedRows(CsrRows):
    """Hold rows in CSR and in an inverted index. Products K(X, U) read the rows X from the index, and U from CSR."""

    index: InvertedIndex

    def buffers(self) -> tuple[Buffer, ...]:
        return (*super().buffers(), *self.index[3:])


class InvertedReader(CsrReader):
    """Read rows X by an index from columns to rows for products K(X, U). Products K(U, U) read the rows U as CSR."""

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Launch]:
        r, (csr, dense, norms, _, which) = self.rows, panel.listed
        V, size = r.lanes, r.index.size
        begin, number = groups.start, len(groups)
        blocks = -(-groups.stop * V // size) - begin * V // size
        for first in range(0, panel.capacity, panel.width):
            arguments = (csr, r.dense, which, r.xx, norms, first, count, panel.values, r.n_pad, r.index)
            if dense.number:
                self.copy_dense(panel, first)
                yield Launch(begin, number, arguments)
            yield Launch(begin, number, arguments, kernel="match", items=blocks * panel.width)
            yield Launch(begin, number, arguments, kernel="add_weighted", items=-(-number * V // WEIGHED), sums=True)


class Inverted(Hybrid):
    """Store the densest columns densely, and the other entries twice: by row (CSR), and by column (inverted index)."""

    name, reader, plain = "inverted", InvertedReader, HYBRID.name
    elementwise = False  # no kernels f(sum_j e(x_j, y_j)): an index skips each j with x_j = 0, even if e(0, y_j) != 0

    def suits(self, profile: Profile) -> bool:
        return profile.style == "simd"

    def cost(self, survey: Survey) -> float | None:
        if not self.suits(survey.profile) or survey.n < MIN_INDEXED:
            return None
        return MADE * self.of_parts(survey, self.gain(survey.profile).whole(survey.density))

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        number, n = int(whole.sum()), survey.n
        blocks = -(-survey.working // self.width(survey.profile, "float32", shape_class(survey.working)))
        found = LIST * survey.wait(COLD)
        cells = _cells(survey.profile, n, number, survey.density[~whole] * n, found, survey.wait())
        return cells + survey.overhead(0.0, (1 + (number > 0)) * blocks)

    def gain(self, profile: Profile) -> Gain:
        """Return a :class:`Gain`: the time saved by storing a column densely instead of in an inverted index.

        With an index, a product K(X, U) multiplies each pair of an entry of X and an entry of U in the same column. The
        number of pairs in a column grows as the square of the column's density.
        """
        if not self.suits(profile):
            return super().gain(profile)
        cell = profile.hybrid_cost
        return Gain(math.sqrt(profile.hit_cost / cell), 2, ADDED * profile.value_cost / cell)

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        (n, d), stored = X.shape, X.nnz if sp.issparse(X) else X.size
        return super().row_bytes(plan, X, itemsize) + _bytes(n, d, stored, itemsize) // max(1, n)

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> CsrRows:
        n, profile = X.shape[0], stream.profile
        if not self.suits(profile) or n < MIN_INDEXED:
            return HYBRID.build(stream, X, plan, dtype)
        dense, sparse = self._split(X, plan)
        laid = self._laid(stream, dense, sparse, dtype)
        count = np.bincount(sparse.indices, minlength=1)
        cost = _cells(profile, n, laid.dense.number, count)
        return InvertedRows(**vars(laid) | {"cost": cost}, index=_index(stream, laid, len(count)))

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        text, made = super().program(spec, profile, dtype, shape, of_panel)
        if of_panel:
            return text, made
        return sources.render("gram/gram_inverted_simd", kernel=spec), [*made, f"-DWEIGHED={WEIGHED}"]


INVERTED = Inverted()


def _cells(profile: Profile, n: int, dense: int, count: NDArray[Any], found: float = LIST, wait: float = 1.0) -> float:
    """Estimate the cost of one value of K(X, U) if the n rows X are stored with an inverted index.

    The unit is one multiply-add in a product of dense rows. The rows U are assumed to be as dense as X in each column.

    dense: number of columns that are stored densely.
    count: number of entries of X in each other column.
    found: cost of one look-up of a column of U in a block of the index, as a multiple of profile.hit_cost.
    wait: factor by which multiply-adds slow down if a CPU waits for memory (Survey.wait), else 1.
    """
    share = np.asarray(count, np.float64) / n
    matches = float((share**2).sum() + found * share.sum() / min(n, BLOCK))
    storing = profile.value_cost * (1 + ADDED * (dense > 0))
    return wait * (dense * profile.hybrid_cost + profile.hit_cost * matches) + storing


def _size(n: int, columns: int, entries: int) -> int:
    """Return the number of rows in a block of an inverted index of n rows with ``entries`` entries.

    Each block stores an offset for each of the ``columns`` columns. The number of rows is BLOCK, doubled until the
    index has no more offsets than entries, but at most MAX_BLOCK.
    """
    size = BLOCK
    while size < MAX_BLOCK and -(-n // size) * columns > entries:
        size *= 2
    return size


def _bytes(n: int, columns: int, entries: int, itemsize: int) -> int:
    """Return the size in bytes of an inverted index of n rows with ``entries`` entries in ``columns`` columns."""
    blocks = -(-n // _size(n, columns, entries))
    return entries * (2 + itemsize) + 4 * blocks * (columns + 2)


def invert(profile: Profile, dtype: str, d: int = 0) -> Variant:
    """Return the program with the OpenCL kernels ``count``, ``sum`` and ``write``, which build an inverted index."""
    return Variant(f"invert {dtype}", sources.cl("gram/invert"), tuple(options(profile, dtype, d)), "count")


def _index(stream: Stream, rows: CsrRows, columns: int) -> InvertedIndex:
    """Build the inverted index of ``rows``, whose CSR entries are in the columns 0 .. columns - 1."""
    n, csr, units = rows.n, rows.csr, stream.compute_units
    entries, real = rows.entries(n), np.dtype(rows.dtype)
    size = _size(n, columns, entries)
    most = rows.entries(size)
    if most >= 1 << 31:  # the index stores offsets in a block as 32-bit ints
        raise BufferSizeError(f"a block of {size} rows has {most} entries, expected fewer than {1 << 31}")
    blocks = -(-n // size)
    parts = 1 << (-(-PARTS * units // blocks) - 1).bit_length()
    ends, at = stream.buffer(4 * blocks * (columns + 2)), stream.buffer(2 * entries)
    made, values = invert(stream.profile, rows.dtype, rows.d), stream.buffer(real.itemsize * entries)
    count, total, write = (stream.variant(made, name) for name in ("count", "sum", "write"))
    sizes = n, size, columns, parts
    count((blocks * parts,), (1,), sizes, csr[:2], ends)
    total((blocks,), (1,), columns, ends)
    write((blocks * parts,), (1,), sizes, csr, ends, at, values)
    return InvertedIndex(size, columns, csr.indptr, ends, at, values)
