"""Rows of which some columns are stored whole and the rest in CSR: for data of which a part is dense.

A value of K is one chain of operations over the dense columns and then over the entries, so that it has the bits of any
other layout of columns in this order (partition.Partition.chain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data, centred, entries
from clsvm.gram import partition
from clsvm.gram.layouts.csr import Csr, CsrRows
from clsvm.gram.layouts.record import Plan, lanes
from clsvm.gram.layouts.survey import Survey
from clsvm.gram.partition import Gain, Partition
from clsvm.kernels.records import Spec
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Stream

MADE = 1.05  # times what its products cost: the partition is made and rows are split, for each set of rows
BEGUN = 0.5  # of value_cost, that the columns that are stored whole take beside their cells


class Hybrid(Csr):
    """Entries, and columns that are dense."""

    name, splits = "hybrid", True

    def cost(self, survey: Survey) -> float | None:
        whole = self.gain(survey.profile).whole(survey.density)
        return MADE * self.of_parts(survey, whole) if whole.any() else None

    def of_parts(self, survey: Survey, whole: NDArray[np.bool_]) -> float:
        cells = float(survey.profile.hybrid_cost * survey.wait() * whole.sum())
        return cells + super().of_parts(survey, whole) + survey.beside(BEGUN, 1)

    def gain(self, profile: Profile) -> Gain:
        """Return the gain of storing a column whole."""
        return Gain(profile.csr_cost / profile.hybrid_cost, 1, BEGUN * profile.value_cost / profile.hybrid_cost)

    def partition(self, profile: Profile, X: Data) -> Partition:
        return partition.partition(partition.counts(X), X.shape[0], gain=self.gain(profile))

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        return super().row_bytes(plan, X, itemsize) + (plan.partition.dense * itemsize if plan.partition else 0)

    def nbytes(self, profile: Profile, plan: Plan, X: Data, itemsize: int) -> int:
        assert plan.partition
        whole, rest = plan.partition.dense, partition.counts(X)[plan.partition.order[plan.partition.dense :]]
        return X.shape[0] * whole * itemsize + self._entry_bytes(X, int(rest.sum()), itemsize)

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        beside = plan.partition.dense * width * itemsize if plan.partition else 0
        return super().block_bytes(plan, X, itemsize, width) + beside

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> CsrRows:
        assert plan.partition
        dense, rest = partition.split(entries(centred(X, plan.centre)), plan.partition)
        return self._laid(stream, rest, dense, dtype)

    def program(
        self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0
    ) -> tuple[str, list[str]]:
        text, made = super().program(spec, profile, dtype, shape, of_panel)
        return text, [*made, "-DDENSE_COLUMNS", *self._at_once(profile, dtype, shape)]

    def programs(self, profile: Profile, dtype: str, spec: Spec | None = None) -> Iterator[Variant]:
        return iter(())  # (they are those of entries)

    def explain(self, numbers: Mapping[str, str], of_panel: bool) -> Iterator[str]:
        yield "The first dense_columns features are stored whole, and the others are numbered from there, from 0:"
        yield "  feature j < dense_columns of row i:             dense[i * dense_columns + j]"
        yield "  feature j < dense_columns of working vector u:  block[(1 + j) * UB + u % UB]"
        yield from super().explain(numbers, of_panel)

    def _at_once(self, profile: Profile, dtype: str, shape: str) -> list[str]:
        """Return the option for the number of rows whose sums are in registers, as many as the tile of dense rows
        has."""
        if profile.shape == "group":
            return []
        held, V = profile.tiles["many"]["COLUMNS"] * profile.tiles["many"]["GROUPS"], lanes(profile, dtype)
        of_row = self.width(profile, dtype, shape) // V
        return [f"-DAT_ONCE={min(V, 1 << max(0, (held // of_row).bit_length() - 1))}"]


HYBRID = Hybrid()
