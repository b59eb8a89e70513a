"""Store rows of 0 and 1 with a bit for each feature.

The bits of a row are in words of B bits, 32 for the dtype float32 and 64 for float64. V rows whose words stand
interleaved are a lane group. Lane group g begins at index at[g] of the array ``values``:

    feature j of row number r of group g is bit j % B of values[at[g] + (j / B) * V + r], with j / B rounded down.

The inner product of two rows is the number of features that both rows have, an exact integer. Products run the kernels
of dense rows (lanes.py). The macro BIT_ROWS makes the kernels count common bits instead of adding products
(templates/gram/kernel_function.mako).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from clsvm.arrays import Data
from clsvm.gram.layouts import record
from clsvm.gram.layouts.lanes import DENSE_VALUE, Columns, LaneRows, Lanes, split, staged_rows
from clsvm.gram.layouts.record import Plan, Survey, Text
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream

# binary() compares _STEP entries of X at a time with 0 and with 1, so that a CPU cache holds the entries.
_STEP = 1 << 14


def binary(X: Data) -> bool:
    """Return whether all entries of X (n, d) are 0 or 1."""
    parts = X.data[:, None] if sp.issparse(X) else X
    step = max(1, _STEP // max(1, parts.shape[1]))
    blocks = (parts[i : i + step] for i in range(0, parts.shape[0], step))
    return all(bool(((block == 0) | (block == 1)).all()) for block in blocks)


def words(d: int, dtype: str) -> int:
    """Return the number of words for a row of d features, which takes one bit for each feature.

    A word has as many bits as a value of ``dtype``: 32 for float32, and 64 for float64.
    """
    return max(1, -(-d // (8 * np.dtype(dtype).itemsize)))


@dataclass(frozen=True)
class BitRows(LaneRows):
    """Hold rows of 0 and 1 on the device, with one bit for each feature.

    The bits of a row are stored in words of 32 or 64 bits. V is the number of rows that kernels compute side by side.
    The words of V rows are interleaved: word 0 of each of these rows comes first, then word 1 of each, and so on.
    """

    @property
    def length(self) -> int:
        return words(self.d, self.dtype)

    def describe(self) -> str:
        return f"{self.kind}, {self.length} words a row of {self.d}, {self.lanes} lanes"


class Bits(Lanes):
    """Store rows of 0 and 1 with a bit for each feature."""

    name, elementwise, binary = "bits", False, True
    rows_words = (
        "  feature j of row i:  bit j % B of values[at[g] + j / B * V + i % V],  at[g] = g * V * d,",
        "  for words of B bits, 32 for float32 and 64 for float64",
    )
    panel_words = ("  feature j of right-hand row u:  bit j % B of panel[(u / UB * d + j / B) * UB + u % UB]",)
    arguments: Mapping[str, str] = {**Lanes.arguments, "values": "the rows, in words of bits", "d": "words of a row"}

    def cost(self, survey: Survey) -> float | None:
        if not survey.binary:
            return None
        return survey.at_once(words(survey.X.shape[1], "float32") * survey.profile.bits_cost, DENSE_VALUE, 2)

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        return itemsize * words(X.shape[1], f"float{8 * itemsize}")

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> BitRows:
        (n, d), real, V = X.shape, np.dtype(dtype), record.lanes(stream.profile, dtype)
        n_pad, length = record.padded(n, V), words(X.shape[1], dtype)
        order, position = record.in_order(n, n_pad)
        parts, at = split(stream, np.full(n_pad // V, length * V * real.itemsize))
        begins, xx = stream.upload(at // real.itemsize), stream.buffer(real.itemsize * n_pad)
        pack = stream.kernel(sources.cl("gram/bits"), record.packing(stream.profile, X.dtype, d, dtype), "bits")
        for staged, source, order_buffer in staged_rows(stream, X, order, V):
            for part in parts:
                if some := part.common(staged):
                    pack((V, len(some)), (V, 1), *source, some.start, order_buffer, begins, part.values, xx)
            stream.finish()
        cost = stream.profile.bits_cost * length
        sizes = (n, d, n_pad, V, length * n_pad)
        return BitRows(self.name, dtype, *sizes, order, position, xx, cost, cost, tuple(parts), Columns(*3 * (begins,)))

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        text, options = super().program(spec, profile, dtype, shape, of_panel, words(d, dtype))
        return text, [*options, "-DBIT_ROWS"]

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> Text | None:
        made = super().forward_back(spec, profile, dtype, words(d, dtype))
        return made and (made[0], [*made[1], "-DBIT_ROWS"])


BITS = Bits()
