"""Sparse rows with and without each of BoostSVM's two changes: columns in order of density, and a partition of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from clsvm.arrays import Data
from clsvm.gram import partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.hybrid import Hybrid
from clsvm.gram.partition import Partition
from clsvm.opencl.profiles import Profile


class InPlace(Hybrid):
    """The hybrid layout, with the columns of each part in the order in which they came."""

    def partition(self, profile: Profile, X: Data) -> Partition:
        made = super().partition(profile, X)
        parts = np.split(made.order, [made.dense])
        return Partition(np.concatenate([np.sort(part) for part in parts]), made.dense)


@dataclass(frozen=True)
class Variant:
    """How our machines hold rows. ordered: columns by falling density, beforehand. in_place: the partition's columns
    keep their order."""

    layout: str
    ordered: bool = False
    in_place: bool = False

    def columns(self, X: Any) -> Any:
        """X (n, d) with its columns in the order of the variant."""
        if not self.ordered:
            return X
        falling = np.argsort(-partition.counts(X), kind="stable")
        if not sp.issparse(X):
            return np.ascontiguousarray(X[:, falling])
        rank = np.empty(len(falling), np.int32)
        rank[falling] = np.arange(len(falling), dtype=np.int32)
        moved = sp.csr_matrix((X.data, rank[X.indices], X.indptr), shape=X.shape)
        return moved.sorted_indices()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While it lasts, the hybrid layout of this process is the variant's."""
        usual = LAYOUTS["hybrid"]
        if self.in_place:
            LAYOUTS["hybrid"] = InPlace()
        try:
            yield
        finally:
            LAYOUTS["hybrid"] = usual


AS_THEY_ARE = Variant("auto")
VARIANTS = {
    "neither": Variant("csr"),
    "order": Variant("csr", ordered=True),
    "partition": Variant("hybrid", in_place=True),
    "both": Variant("hybrid"),
}
