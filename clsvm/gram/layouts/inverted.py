"""Rows as an inverted index: of each column, the rows that have an entry in it; the dense columns are stored whole.

An entry of a working vector meets the entries of its column, and no others. Where few rows share a column that is far
less than all entries of the rows, which the other sparse layouts read. Rows are cut into blocks whose sums a cache
holds. Values of K are made where they are kept, in turns: the sums of the dense columns, then what entries that meet
add to them, in the order of the columns, so that a value has the bits of any other layout of this order.

Only the vector shape has an index: where work-groups share local memory, such rows stand as hybrid ones.

Sources: inverted indices are those of text retrieval (Zobel and Moffat 2006); the product is Gustavson's of two sparse
matrices (1978), row by row of the working vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.errors import BufferSizeError
from clsvm.gram.layouts.csr import HYBRID, MADE, CsrReader, CsrRows, Hybrid
from clsvm.gram.layouts.record import Panel, Pass, Plan, Survey, Text, options
from clsvm.gram.partition import Gain
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile, shape_class
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

BLOCK, MOST = 16384, 1 << 16  # rows of a block: a second-level cache holds their sums; what 16 bits can number
BEGUN = 2.0  # of value_cost: to store sums of columns that are whole, and to read them again
LIST = 60.0  # times what two entries that meet cost: to find a column's rows of a block
COLD = 1.75  # times that where up to 16 vectors look for it, and no cache has it yet
FEWEST = 256  # rows that an index is made of
PARTS = 4  # work-items that make an index, for each compute unit
WEIGHED = 512  # rows of a work-item that adds values to c


class Index(NamedTuple):
    """Blocks of ``size`` rows, of which the first is entry ``start`` in front, as indptr of the rows has it; those of
    column k < columns in block b are start + ends[b][k] .. start + ends[b][k + 1] - 1. rows: of each entry, from the
    first of its block on."""

    size: int
    columns: int
    indptr: Buffer
    ends: Buffer
    rows: Buffer
    values: Buffer


@dataclass(frozen=True)
class InvertedRows(CsrRows):
    """Rows in CSR, from which panels are made, and their index."""

    index: Index

    def buffers(self) -> tuple[Buffer, ...]:
        return (*super().buffers(), *self.index[3:])


class InvertedReader(CsrReader):
    """Products over the index; among working vectors alone, over entries."""

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Pass]:
        r, (csr, dense, norms, _, which) = self.rows, panel.listed
        V, size = r.lanes, r.index.size
        begin, number = groups.start, len(groups)
        blocks = -(-groups.stop * V // size) - begin * V // size
        for first in range(0, panel.capacity, panel.width):
            reads = (csr, r.dense, which, r.xx, norms, first, count, panel.values, r.n_pad, r.index)
            if dense.number:
                self.spread(panel, first)
                yield Pass(begin, number, reads)
            yield Pass(begin, number, reads, kernel="meet", items=blocks * panel.width)
            yield Pass(begin, number, reads, kernel="weigh", items=-(-number * V // WEIGHED), sums=True)


class Inverted(Hybrid):
    """An index of the entries, and columns that are dense."""

    name, reader, plain = "inverted", InvertedReader, HYBRID.name
    elementwise = False  # (such sums have terms for entries that meet none)

    def suits(self, profile: Profile) -> bool:
        return profile.shape == "vector"

    def cost(self, survey: Survey) -> float | None:
        if not self.suits(survey.profile) or survey.n < FEWEST:
            return None
        return MADE * self.of_parts(survey, self.gain(survey.profile).whole(survey.density))

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        number, n = int(whole.sum()), survey.n
        blocks = -(-survey.working // self.width(survey.profile, "float32", shape_class(survey.working)))
        found = LIST * survey.wait(COLD)
        cells = _cells(survey.profile, n, number, survey.density[~whole] * n, found, survey.wait())
        return cells + survey.beside(0.0, (1 + (number > 0)) * blocks)

    def gain(self, profile: Profile) -> Gain:
        """Return the gain of storing a column whole: as many pairs meet as the square of its cells."""
        if not self.suits(profile):
            return super().gain(profile)
        cell = profile.hybrid_cost
        return Gain(math.sqrt(profile.hit_cost / cell), 2, BEGUN * profile.value_cost / cell)

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        (n, d), stored = X.shape, X.nnz if sp.issparse(X) else X.size
        return super().row_bytes(plan, X, itemsize) + _bytes(n, d, stored, itemsize) // max(1, n)

    def nbytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        rest = self._rest(plan, X)
        columns = max(1, int(np.count_nonzero(rest)))
        return super().nbytes(plan, X, itemsize) + _bytes(X.shape[0], columns, int(rest.sum()), itemsize)

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> CsrRows:
        n, profile = X.shape[0], stream.profile
        if not self.suits(profile) or n < FEWEST:
            return HYBRID.build(stream, X, plan, dtype)
        dense, rest = self._split(X, plan)
        laid = self._laid(stream, dense, rest, dtype)
        count = np.bincount(rest.indices, minlength=1)
        cost = _cells(profile, n, laid.dense.number, count)
        return InvertedRows(**vars(laid) | {"cost": cost}, index=_index(stream, laid, len(count)))

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        text, made = super().program(spec, profile, dtype, shape, of_panel)
        if of_panel:
            return text, made
        return sources.render("gram/gram_inverted_vector", kernel=spec), [*made, f"-DWEIGHED={WEIGHED}"]


INVERTED = Inverted()


def _cells(profile: Profile, n: int, dense: int, count: NDArray[Any], found: float = LIST, wait: float = 1.0) -> float:
    """Return the cost of a value of K, in dense cells: of its dense columns, of the entries that meet for it, and of
    finding a column's rows of a block, as so many of these. count: entries of the columns that are not dense; found:
    see LIST; wait: see Survey."""
    share = np.asarray(count, np.float64) / n
    meeting = float((share**2).sum() + found * share.sum() / min(n, BLOCK))
    kept = profile.value_cost * (1 + BEGUN * (dense > 0))
    return wait * (dense * profile.hybrid_cost + profile.hit_cost * meeting) + kept


def _size(n: int, columns: int, entries: int) -> int:
    """Return the rows of a block: as many as a cache holds the sums of, or more where the ends of columns would take
    more room than the entries."""
    size = BLOCK
    while size < MOST and -(-n // size) * columns > entries:
        size *= 2
    return size


def _bytes(n: int, columns: int, entries: int, itemsize: int) -> int:
    """Return the bytes of an index of so many entries of n rows."""
    blocks = -(-n // _size(n, columns, entries))
    return entries * (2 + itemsize) + 4 * blocks * (columns + 2)


def invert(profile: Profile, dtype: str, d: int = 0) -> Variant:
    """Return the program that makes an index of CSR rows; ``entry`` is the first of its three kernels."""
    return Variant(f"invert {dtype}", sources.cl("gram/invert"), tuple(options(profile, dtype, d)), "count")


def _index(stream: Stream, rows: CsrRows, columns: int) -> Index:
    """Return the index of rows; columns: one more than the last that has an entry."""
    n, csr, units = rows.n, rows.csr, stream.compute_units
    entries, real = rows.entries(n), np.dtype(rows.dtype)
    size = _size(n, columns, entries)
    if rows.entries(size) >= 1 << 31:  # (they are numbered by 31 bits)
        raise BufferSizeError(f"got {size} rows of {rows.entries(size)} entries, expected fewer than {1 << 31}")
    blocks = -(-n // size)
    parts = 1 << (-(-PARTS * units // blocks) - 1).bit_length()
    ends, at = stream.buffer(4 * blocks * (columns + 2)), stream.buffer(2 * entries)
    made, values = invert(stream.profile, rows.dtype, rows.d), stream.buffer(real.itemsize * entries)
    count, total, place = (stream.variant(made, name) for name in ("count", "sum", "place"))
    sizes = n, size, columns, parts
    count((blocks * parts,), (1,), sizes, csr[:2], ends)
    total((blocks,), (1,), columns, ends)
    place((blocks * parts,), (1,), sizes, csr, ends, at, values)
    return Index(size, columns, csr.indptr, ends, at, values)
