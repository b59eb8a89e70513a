"""Sparse rows with and without each of BoostSVM's two changes: columns in order of density, and a partition of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from clsvm.arrays import Data
from clsvm.gram import partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import Csr
from clsvm.gram.layouts.hybrid import Hybrid
from clsvm.gram.layouts.record import Layout
from clsvm.gram.partition import Partition
from clsvm.opencl.profiles import Profile


class AsTheyCame(Csr):
    """Rows in CSR, with columns numbered as they came."""

    def partition(self, profile: Profile, X: Data) -> None:
        return None


class Ordered(Csr):
    """Rows in CSR, with columns numbered by falling density, however few they are."""

    def partition(self, profile: Profile, X: Data) -> Partition:
        return partition.by_density(partition.counts(X))


class InPlace(Hybrid):
    """The hybrid layout, with the columns of each part numbered as they came."""

    def partition(self, profile: Profile, X: Data) -> Partition:
        made = super().partition(profile, X)
        parts = np.split(made.order, [made.dense])
        return Partition(np.concatenate([np.sort(part) for part in parts]), made.dense)


@dataclass(frozen=True)
class Variant:
    """How our machines hold rows: a layout's name, and what stands for that layout."""

    layout: str
    record: Layout | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While it lasts, the layout of this process is the variant's."""
        if self.record is None:
            yield
            return
        usual, LAYOUTS[self.layout] = LAYOUTS[self.layout], self.record
        try:
            yield
        finally:
            LAYOUTS[self.layout] = usual


AS_THEY_ARE = Variant("auto")
VARIANTS = {
    "neither": Variant("csr", AsTheyCame()),
    "order": Variant("csr", Ordered()),
    "partition": Variant("hybrid", InPlace()),
    "both": Variant("hybrid"),
}
