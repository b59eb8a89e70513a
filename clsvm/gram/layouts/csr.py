"""Rows in CSR, one after another: for text, and whatever has many columns and few entries.

A panel of them holds one block of working vectors at a time, of the features that these have
(cl_kernels/gram/scatter.cl), and which rows they are: each product fills it from the rows again, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred, entries
from clsvm.gram import partition
from clsvm.gram.layouts.record import (
    Layout,
    Panel,
    Pass,
    Plan,
    Reader,
    Rows,
    blocks_words,
    check_norms,
    in_order,
    lanes,
    options,
    packing,
    padded,
    template,
)
from clsvm.gram.layouts.survey import Survey
from clsvm.gram.partition import Partition
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.launch import Kernel as DeviceKernel
from clsvm.opencl.profiles import Profile, shape_class
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

ORDERED = 8192  # columns whose places a first-level cache holds
VALUE = 1.4  # of the profile's value_cost
CONVERTED = 1000.0  # dense cells that it takes to look whether one of a dense row is 0
LINE = 12000.0  # dense cells that a line of a block takes to be filled
CACHED = 4096  # lines of a block of 64 working vectors that a second-level cache holds
FAR = 3.0  # times what an entry takes, that it takes longer where no such line is its column's
TEAM_ITEMS = 256  # of a work-group in the group shape


class Entries(NamedTuple):
    """indptr (n_pad + 1,) int64, column number and value of each entry."""

    indptr: Buffer
    indices: Buffer
    data: Buffer


class DenseColumns(NamedTuple):
    """The columns that are stored whole, the first ``number`` of them, where there are any: row after row."""

    values: Buffer
    number: int


@dataclass(frozen=True)
class CsrRows(Rows):
    """Rows in CSR, but for the columns that are dense. lengths: of the rows' entries, falling."""

    csr: Entries
    dense: DenseColumns
    lengths: NDArray[np.int64]

    def buffers(self) -> tuple[Buffer, ...]:
        return (self.xx, *self.csr, *[self.dense.values] * (self.dense.number > 0))

    def describe(self) -> str:
        return super().describe() + f", {self.dense.number} columns whole" * (self.dense.number > 0)

    def entries(self, rows: int) -> int:
        """Return the most entries that so many rows can have together."""
        return int(self.lengths[:rows].sum())


class Listed(NamedTuple):
    """Which rows the working vectors are, where these are entries with norms; ``count`` of them."""

    csr: Entries
    dense: DenseColumns
    norms: Buffer
    count: Buffer
    rows: Buffer


@dataclass
class Block:
    """A block of working vectors, which parts of a panel share. place: (d,) where each feature stands in it, base more;
    what is at most base is of an earlier block, and counts as absent."""

    place: Buffer
    base: int = 0

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.place,)


class CsrReader(Reader):
    """Panels of a block at a time."""

    layout: Csr
    rows: CsrRows

    def __init__(self, layout: Csr, stream: Stream, rows: CsrRows, kernel: Kernel) -> None:
        super().__init__(layout, stream, rows, kernel)
        self._scatter: list[DeviceKernel] = []
        self._sparse = rows.d - rows.dense.number
        if kernel.spec.element:
            self.norms = self._zero_sums(kernel)

    def _zero_sums(self, kernel: Kernel) -> Buffer:
        """Return the start of each row's element-wise sums, which takes the place of the norms."""
        r, stream = self.rows, self.stream
        out = stream.buffer(self.real.itemsize * r.n_pad)
        made = stream.variant(zero_sums(kernel.spec, r.dtype, stream.profile, r.d))
        made((r.n_pad,), None, r.csr.indptr, r.csr.data, self._sparse, out, kernel.scalars(r.dtype))
        return out

    def panel(self, capacity: int, square: bool = False) -> Panel:
        stream = self.stream
        with stream.tentative():
            made = super().panel(capacity, square)
            stream.clear(made.values, made.width * self.real.itemsize)
            made.block = Block(stream.zeros(self._place_bytes))
        return made

    @property
    def _place_bytes(self) -> int:
        return 4 * max(1, self._sparse)

    def panel_bytes(self, capacity: int) -> int:
        return super().panel_bytes(capacity) + self._place_bytes

    def values_bytes(self, capacity: int) -> int:
        """Return the bytes of a block: a line of zeros, one for every dense column, one for every other that its
        vectors can have."""
        r, width = self.rows, self.layout.width(self.stream.profile, self.rows.dtype, shape_class(capacity))
        return (1 + r.dense.number + min(self._sparse, r.entries(width))) * width * self.real.itemsize

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        stream, itemsize = self.stream, self.real.itemsize
        listed = panel.listed._replace(count=count, rows=stream.part(panel.listed.rows, 4 * first, 4 * capacity))
        uu = stream.part(panel.uu, first * itemsize, capacity * itemsize)
        return replace(panel, capacity=capacity, uu=uu, listed=listed)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        if panel.nbytes < self.values_bytes(panel.capacity):
            raise ValueError("the panel was made by shorter rows")
        panel.listed = Listed(self.rows.csr, self.rows.dense, self.norms, count, rows)

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Pass]:
        yield from self._blocks(groups, self.norms, panel, count)  # (no list of rows is read)

    def over_panel(self, groups: range, panel: Panel, rows: Buffer, right: Panel, count: Buffer) -> Iterator[Pass]:
        yield from self._blocks(groups, rows, right, count)

    def _blocks(self, groups: range, rows: Buffer, panel: Panel, count: Buffer) -> Iterator[Pass]:
        """Yield a launch for each block of a panel, which holds that block meanwhile."""
        stream, r, block, (csr, dense, norms, listed, which) = self.stream, self.rows, panel.block, panel.listed
        mark, fill, _ = self._kernels()
        size, local = self._range(panel)
        lines = panel.nbytes // (panel.width * self.real.itemsize)
        by_entry = int(lines - 1 < r.d)
        for first in range(0, panel.capacity, panel.width):
            if block.base > 2**31 - 1 - 2 * lines:  # start again
                stream.clear(block.place, self._place_bytes)
                block.base = 0
            base, place = block.base, block.place
            mark(size, local, csr[:2], listed, which, first, base, dense.number, by_entry, place, panel.values)
            fill(size, local, csr, norms, listed, which, first, base, place, panel.values, panel.uu)
            if dense.number:
                self.spread(panel, first)
            reads = (r.csr, r.dense, rows, self.norms, first, base, count, place, panel.values, panel.uu)
            yield Pass(groups.start, len(groups), reads)
            block.base += lines

    def spread(self, panel: Panel, first: int) -> None:
        """Copy the dense columns of a block of working vectors into its panel."""
        *_, spread = self._kernels()
        _, dense, _, listed, which = panel.listed
        spread(*self._range(panel), dense, listed, which, first, panel.values)

    def _kernels(self) -> list[DeviceKernel]:
        if not self._scatter:
            made = scatter(self.stream.profile, self.rows.dtype, self.rows.d)
            self._scatter = [self.stream.variant(made, name) for name in ("mark", "fill", "spread")]
        return self._scatter

    def _range(self, panel: Panel) -> tuple[tuple[int, int], tuple[int, int] | None]:
        """Return the range and work-group of the kernels that fill a block of a panel."""
        vector = self.stream.profile.shape == "vector"
        return (panel.width, 1 if vector else 32), (1, 1) if vector else None


class Csr(Layout):
    """Entries alone."""

    name, sparse, shared = "csr", True, False

    def cost(self, survey: Survey) -> float | None:
        return self.of_parts(survey, np.zeros(len(survey.density), bool))

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        """Return the cost of a value of K, in dense cells, by a row's entries in columns that are not ``whole`` (d,).

        Half of what an entry of a row takes is its block's, however many vectors this has. On a CPU it takes four times
        as long if its column is in the block but not in the cache, which holds the lines of the densest columns. Each
        column that one of the vectors has is a line of the block, which has to be filled."""
        density = survey.density[~whole]
        profile, width = survey.profile, self.width(survey.profile, "float32", shape_class(survey.working))
        near = CACHED * 64 // width if profile.shape == "vector" else len(density)
        far = np.sort(density)[::-1][near:]
        read = density.sum() + FAR * (far * (1 - (1 - far) ** width)).sum()
        row = profile.csr_cost * (1 + profile.panel / width) / 2 * read
        filled = LINE / width * (1 - (1 - np.minimum(density, 1)) ** width).sum() / survey.n
        return float(row + filled) + survey.beside(VALUE, 3 * -(-survey.working // width))

    def price(self, survey: Survey) -> float:
        return 0.0 if sp.issparse(survey.X) else CONVERTED * survey.X.shape[1]

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        return 16 + (X.nnz if sp.issparse(X) else X.size) * (4 + itemsize) // max(1, X.shape[0])

    def nbytes(self, profile: Profile, plan: Plan, X: Data, itemsize: int) -> int:
        return self._entry_bytes(X, int(partition.counts(X).sum()), itemsize)

    def _entry_bytes(self, X: Data, entries: int, itemsize: int) -> int:
        """Return the bytes of so many entries of the rows of X: values, column numbers, and where each row begins."""
        return 8 * X.shape[0] + entries * (itemsize + (2 if X.shape[1] <= 1 << 16 else 4))

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        longest = np.sort(np.diff(entries(X).indptr))[-width:].sum()
        return int(min(X.shape[1], longest) + 1) * width * itemsize + 4 * X.shape[1]

    def partition(self, profile: Profile, X: Data) -> Partition | None:
        """Number columns by falling density where there are many, so that the places that are read most stand together.
        Entries keep their order, and values of K their bits."""
        return partition.by_density(partition.counts(X)) if X.shape[1] > ORDERED else None

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> CsrRows:
        X = entries(centred(X, plan.centre))
        if plan.partition:
            rank = plan.partition.widened(X.shape[1]).rank
            X = sp.csr_matrix((X.data, rank[X.indices], X.indptr), shape=X.shape)
        return self._laid(stream, X, np.zeros((X.shape[0], 0)), dtype)

    def _laid(self, stream: Stream, X: Any, dense: NDArray[np.floating], dtype: str) -> CsrRows:
        """Lay out CSR rows, and the columns before theirs that are dense: (n, number)."""
        (n, sparse), number, real, V = X.shape, dense.shape[1], np.dtype(dtype), lanes(stream.profile, dtype)
        d, n_pad, entries = sparse + number, padded(n, V), int(X.indptr[-1])
        indptr = np.full(n_pad + 1, entries, np.int64)
        indptr[: n + 1] = X.indptr
        indices = X.indices.astype(np.uint16 if d <= 1 << 16 else np.int32)
        csr = Entries(stream.upload(indptr), stream.upload(indices), stream.upload(X.data.astype(real)))
        columns = DenseColumns(csr.data, 0)
        if number:
            whole = np.zeros((n_pad, number), real)
            whole[:n] = dense
            columns = DenseColumns(stream.upload(whole), number)
        xx = stream.buffer(real.itemsize * n_pad)
        norms = stream.kernel(sources.cl("gram/pack"), packing(stream.profile, X.dtype, X.shape[1], dtype), "norms_csr")
        norms((n_pad,), None, csr.indptr, csr.data, columns, xx)
        profile = stream.profile
        cost = entries / max(1, n) * profile.csr_cost + number * profile.hybrid_cost + profile.value_cost
        lengths, sizes = -np.sort(-np.diff(indptr)), (n, d, n_pad, V, entries + n_pad * number)
        made = CsrRows(self.name, dtype, *sizes, *in_order(n, n_pad), xx, cost, cost, csr, columns, lengths)
        check_norms(stream, made)
        return made

    def reader(self, stream: Stream, rows: CsrRows, kernel: Kernel) -> CsrReader:
        return CsrReader(self, stream, rows, kernel)

    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return one vector's width for few working vectors: an entry meets a whole block, whatever stands in it."""
        V = lanes(profile, dtype)
        if profile.shape == "group":  # (a work-group's tile stands in local memory)
            return min(profile.panel, 64) if dtype == "float64" else profile.panel
        return V if shape != "many" else profile.panel * V // profile.lanes

    def program(
        self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0
    ) -> tuple[str, list[str]]:
        teams = [] if profile.shape == "vector" else [f"-DTEAMS={self._teams(self.width(profile, dtype, shape))}"]
        return template("csr", spec, profile), [*teams, *["-DLISTED"] * of_panel]

    def programs(self, profile: Profile, dtype: str, spec: Spec | None = None) -> Iterator[Variant]:
        if not spec:
            yield scatter(profile, dtype)
        elif spec.element:
            yield zero_sums(spec, dtype, profile)

    def items(self, numbers: Mapping[str, int]) -> int:
        return numbers["UB"] * self._teams(numbers["UB"])

    def _teams(self, width: int) -> int:
        """Return how many rows a work-group has at a time, in the group shape."""
        return max(1, TEAM_ITEMS // width)

    def explain(self, numbers: Mapping[str, str], of_panel: bool) -> Iterator[str]:
        yield from blocks_words(numbers["UB"])
        yield "  feature j of working vector u:  block[(place[j] - mark) * UB + u % UB]"
        yield "Line 0 is zero, for features that no vector of the block has. One launch for each block, in turn."

    def arguments(self, of_panel: bool, elementwise: bool) -> dict[str, str]:
        words = _ARGUMENTS | (_TILE if of_panel else {})
        if elementwise:
            words["uu"] = "[capacity] s of a zero row and u: sum_j e(0, u_j) over all d features"
        return words


CSR = Csr()
_ARGUMENTS = {
    "indptr": "[n_pad + 1] row i is entries indptr[i] .. indptr[i + 1] - 1",
    "indices": "feature of each entry, from 0, in the order in which a row's are summed",
    "data": "value of each entry",
    "dense": "[n_pad dense_columns] columns before those of the entries; not read where there are none",
    "dense_columns": "number of them",
    "rows": "not read by this program: any buffer",
    "first": "the first working vector of the block",
    "mark": "taken off a place it is the line",
    "place": "[d - dense_columns] line of each feature in the block, mark more; mark: no working vector has it",
    "block": "[lines UB] the working vectors of one block",
}
_TILE = {
    "indptr": "[rows + 1] row i of the data is entries indptr[i] .. indptr[i + 1] - 1",
    "rows": "[capacity] row of the data that each working vector is, -1 from count on",
    "xx": "[rows] <x_i,x_i>",
}


def scatter(profile: Profile, dtype: str, d: int = 0) -> Variant:
    """Return the program that fills a block of a panel with working rows; ``entry`` is the first of its three
    kernels."""
    return Variant(f"scatter {dtype}", sources.cl("gram/scatter"), tuple(options(profile, dtype, d)), "mark")


def zero_sums(spec: Spec, dtype: str, profile: Profile, d: int = 0) -> Variant:
    """Return the program that computes the start of element-wise sums over CSR rows."""
    text, label = sources.render("gram/zero_sums", kernel=spec), f"{spec.name or 'expression'} zero sums csr {dtype}"
    return Variant(label, text, tuple(options(profile, dtype, d)), "zero_sums")
