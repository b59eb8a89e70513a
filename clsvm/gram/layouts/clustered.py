"""Clustered rows: lane groups (lanes.py) of like rows, each with the features that any of its rows uses.

Device order is that of the clusters. Source: GTSVM (Cotter, Srebro and Keshet 2011), section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.arrays import Data, centred, entries
from clsvm.gram import cluster
from clsvm.gram.layouts.lanes import MAX_FEATURES, Lanes, panel_words
from clsvm.gram.layouts.packing import LaneRows, packed
from clsvm.gram.layouts.record import Layout, Plan, lanes, padded
from clsvm.gram.layouts.survey import Survey
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile, Tile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Stream

AHEAD = 64  # features by which clustered rows are fetched ahead
RUN, SHARE = 16, 8  # clustered rows: lane groups of a work-item at most, work-items of a compute unit at least
VALUE = 1.4  # of the profile's value_cost, while other values' cells are computed
SKIPPED = 1024  # columns of a panel that a cluster may leave out
SCATTERED = 1280  # columns beyond these by which a cell takes its time longer
FIRST = 600.0  # dense cells that a column of a panel takes to be read for the first time,
NEAR = 256  # but for as many that a cache holds


class Arrangement(NamedTuple):
    """Where rows stand before any of them is laid out. order, position: as of :class:`Rows`; cells (n_pad,): of each;
    groups: what else the layout knows."""

    order: NDArray[np.int32]
    position: NDArray[np.int32]
    cells: NDArray[np.int64]
    groups: Any


class Clustered(Lanes):
    """Lane groups of like rows, that hold what any of theirs uses."""

    name, sparse, most, in_order, elementwise = "clustered", True, MAX_FEATURES, False, False

    def cost(self, survey: Survey) -> float | None:
        n, d = survey.X.shape
        if n < 2 or d > MAX_FEATURES or survey.used >= 0.9 * d:
            return None
        profile, cells = survey.profile, survey.profile.clustered_cost * survey.fill * survey.wait()
        if profile.shape == "vector":
            cells *= 1 + max(0.0, d - survey.fill - SKIPPED) / SCATTERED
            cells += FIRST * min(d / n, survey.fill / profile.lanes) * max(0.0, 1 - NEAR / d)
        return survey.at_once(cells, VALUE, 2)

    def price(self, survey: Survey) -> float:
        return survey.profile.cluster_price

    def nbytes(self, profile: Profile, plan: Plan, X: Data, itemsize: int) -> int:
        whole = super().nbytes(profile, plan, X, itemsize)
        return whole if plan.fill is None else round(X.shape[0] * plan.fill * itemsize)

    def once(self, X: Data, room: float) -> str:
        """Take rows as they stand: making clusters would not pay."""
        return "csr" if sp.issparse(X) and 8 * X.shape[0] * X.shape[1] > room else "dense"

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> LaneRows:
        if sp.issparse(X):
            X, plan = entries(centred(X, plan.centre)), replace(plan, centre=np.zeros(X.shape[1]))
        order, position, _, groups = self.arranged(stream, X, plan, dtype)
        return packed(stream, X, plan.centre, dtype, self.name, (order, position), groups)

    def arranged(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> Arrangement:
        """Return where the rows of X (n, d), dense, shall stand, for :meth:`build_part`."""
        n, V = X.shape[0], lanes(stream.profile, dtype)
        size = V * stream.profile.cluster
        n_pad = padded(n, size)
        clusters = cluster.cluster(stream, X, size, centre=plan.centre)
        empty = n_pad - len(clusters.order)  # rows of no cluster
        order = np.concatenate([clusters.order, np.full(empty, -1, np.int32)])
        position = np.empty(n, np.int32)
        position[order[order >= 0]] = np.flatnonzero(order >= 0)
        mask = np.pad(np.repeat(clusters.mask, size // V, axis=0), ((0, empty // V), (0, 0)))
        lengths = mask.sum(axis=1, dtype=np.int64)
        if lengths.sum() >= 2**31:
            raise ValueError(f"the clustered layout of {n} rows needs {lengths.sum()} columns, at most {2**31 - 1}")
        columns_at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        groups = lengths, columns_at, np.nonzero(mask)[1].astype(np.int32)
        return Arrangement(order, position, np.repeat(lengths, V), groups)

    def build_part(
        self, stream: Stream, X: Data, plan: Plan, dtype: str, arrangement: Arrangement, places: slice
    ) -> LaneRows:
        """Return the rows at some of the places, whole lane groups, of all of X, on the device."""
        lengths, columns_at, columns = arrangement.groups
        V, order = lanes(stream.profile, dtype), arrangement.order[places]
        first, end = places.start // V, places.start // V + len(order) // V
        begin, stop = columns_at[first], columns_at[end]
        groups = lengths[first:end], columns_at[first : end + 1] - begin, columns[begin:stop]
        there = np.flatnonzero(order >= 0).astype(np.int32)
        return packed(stream, X, plan.centre, dtype, self.name, (order, there), groups)

    def tile(self, profile: Profile, dtype: str, shape: str, of_panel: bool) -> Tile:
        if of_panel or profile.shape == "group":
            return super().tile(profile, dtype, shape, of_panel)
        # (a lane group's columns are its own; it ends before the processor's own fetching has set in)
        return {**self.single(profile, dtype, shape), "AHEAD": AHEAD}

    def programs(self, profile: Profile, dtype: str, spec: Spec | None = None) -> Iterator[Variant]:
        if not spec:
            yield Variant(f"cluster {dtype}", sources.cl("gram/cluster"), (*cluster.options(profile, dtype),), "assign")

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        items = Layout.size(self, stream, numbers, of_panel, groups, cells)
        return items if of_panel else min(items, max(-(-items // RUN), SHARE * stream.compute_units))

    def explain(self, numbers: Mapping[str, str], of_panel: bool) -> Iterator[str]:
        if not of_panel:
            yield "A group holds the features that any row of it has, the others are zero for the whole group:"
            yield "  feature columns[columns_at[g] + j] of row i:  values[at[g] + j * V + i % V]"
        yield from panel_words(numbers)


CLUSTERED = Clustered()
