"""Rows in dense lane groups (packing.py): V rows side by side, with all features; and what reads any lane groups.

A panel is itself a set of rows in dense lane groups. Source: Catanzaro 2011, listings 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clsvm.arrays import Data
from clsvm.gram.layouts.packing import Columns, LaneRows, packed
from clsvm.gram.layouts.record import (
    Layout,
    Panel,
    Pass,
    Plan,
    Reader,
    blocks_words,
    in_order,
    lanes,
    options,
    padded,
    template,
)
from clsvm.gram.layouts.survey import Survey
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.launch import Kernel as DeviceKernel
from clsvm.opencl.profiles import Profile, Tile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

MAX_FEATURES = 16384  # of rows that are clustered, or dense though most of their cells are empty
TILES = 4  # register tiles of dense rows of a work-item at least, where there are so many
WORTH = 1 << 20  # cells of a work-item at least: some microseconds
UNEVEN = 8  # of a tile: work-items of a compute unit that are enough to share it evenly
CHUNK = 128  # features of dense rows' tiles that a first-level cache holds, beside those of working vectors
CUT = {"many": 1, "few": 4}  # chunks of features beyond which tiles of a shape class go chunk by chunk
WAIT = 1.5  # of dense rows: see Survey.wait
VALUE = 1.5  # of the profile's value_cost, while other values' cells are computed
_UNREAD = "not read by this program: any buffer"


class LaneReader(Reader):
    """Panels of all features, whatever a lane group's are."""

    layout: Lanes
    rows: LaneRows

    def __init__(self, layout: Lanes, stream: Stream, rows: LaneRows, kernel: Kernel) -> None:
        super().__init__(layout, stream, rows, kernel)
        self._gathers: dict[str, DeviceKernel] = {}
        self._panels: tuple[int, Buffer] = (0, None)  # the largest panel that there was, and where its groups begin

    def values_bytes(self, capacity: int) -> int:
        return capacity * max(self.rows.d, 1) * self.real.itemsize

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        row, itemsize = panel.nbytes // panel.capacity, self.real.itemsize
        values = self.stream.part(panel.values, first * row, capacity * row)
        uu = self.stream.part(panel.uu, first * itemsize, capacity * itemsize)
        return replace(panel, capacity=capacity, values=values, uu=uu)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        r, stream = self.rows, self.stream
        if fresh and not (r.dense and panel.filled):  # (of other rows all features are written over)
            stream.clear(panel.values, panel.nbytes)
            stream.clear(panel.uu, panel.capacity * self.real.itemsize)
        panel.filled = True
        if panel.shape not in self._gathers:
            self._gathers[panel.shape] = stream.variant(gather(stream.profile, r.dtype, r.d, panel.shape))
        size = (panel.capacity, 1 if stream.profile.shape == "vector" else 32)
        for part in r.parts:
            arguments = part, r.at, int(r.dense), self.norms, r.d, count, rows, panel.values, panel.uu
            self._gathers[panel.shape](size, None, *arguments)

    def of_panel(self, panel: Panel) -> tuple[Any, ...]:
        return panel.values, panel.uu, self.rows.d

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Pass]:
        r = self.rows
        for part in r.parts:
            first, end = max(groups.start, part.first), min(groups.stop, part.first + part.groups)
            if first < end:
                reads = (part.values, r.at, self.norms, r.d, count, panel.values, panel.uu)
                yield Pass(first, end - first, reads, panel.capacity // panel.width)

    def over_panel(self, groups: range, panel: Panel, rows: Buffer, right: Panel, count: Buffer) -> Iterator[Pass]:
        if panel.capacity > self._panels[0]:
            at = np.arange(0, panel.capacity, self.rows.lanes, dtype=np.int64) * max(self.rows.d, 1)
            self._panels = panel.capacity, self.stream.upload(at)
        at = self._panels[1]
        reads = (panel.values, Columns(at, at, at), panel.uu, self.rows.d, count, right.values, right.uu)
        yield Pass(groups.start, len(groups), reads, right.capacity // right.width)


class Lanes(Layout):
    """Rows in dense lane groups."""

    name, sparse, shared = "dense", False, True

    def cost(self, survey: Survey) -> float | None:
        d = survey.X.shape[1]
        return None if d > MAX_FEATURES and survey.used < 0.25 * d else survey.at_once(d * survey.wait(WAIT), VALUE, 2)

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        return max(1, X.shape[1] * itemsize)

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> LaneRows:
        n, d = X.shape
        V = lanes(stream.profile, dtype)
        n_pad = padded(n, V)
        lengths, columns_at = np.full(n_pad // V, d, np.int64), np.zeros(n_pad // V + 1, np.int32)
        groups = lengths, columns_at, np.zeros(1, np.int32)
        return packed(stream, X, plan.centre, dtype, self.name, in_order(n, n_pad), groups)

    def reader(self, stream: Stream, rows: LaneRows, kernel: Kernel) -> LaneReader:
        return LaneReader(self, stream, rows, kernel)

    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return the vector's width, but 2 for two working vectors: among empty ones a line of the cache would hold a
        single feature of them, and a long panel leaves the first-level cache to the rows."""
        return 2 if shape == "two" else lanes(profile, dtype)

    def program(
        self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0
    ) -> tuple[str, list[str]]:
        tile = self.tile(profile, dtype, shape, of_panel)
        made = ["-DDENSE"] if of_panel or not self.sparse else []
        family = "few" if profile.shape == "group" and shape in ("two", "few") else "lanes"
        return template(family, spec, profile), [*made, *_numbers(tile), *self._cut(profile, shape, d, of_panel)]

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> tuple[str, list[str]] | None:
        if profile.shape != "vector":
            return None
        made = ["-DDENSE"] * (not self.sparse) + _numbers(self.single(profile, dtype, "many"))
        text = sources.render("gram/forward_back_lanes_vector", kernel=spec)
        return text, [*made, *self._cut(profile, "many", d, False)]

    def _cut(self, profile: Profile, shape: str, d: int, of_panel: bool) -> list[str]:
        """Return the -D option of tiles that go chunk by chunk through many features."""
        whole, most = of_panel or not self.sparse, CUT.get(shape, np.inf) * CHUNK
        return [f"-DCHUNK={CHUNK}"] * (whole and profile.shape == "vector" and d > most)

    def single(self, profile: Profile, dtype: str, shape: str) -> Tile:
        """Return the register tile of a kernel that holds one lane group at a time, in the vector shape."""
        held = profile.tiles[shape]["COLUMNS"] * profile.tiles[shape]["GROUPS"]
        columns = math.gcd(self.width(profile, dtype, shape), 1 << held.bit_length() - 1)
        return {"COLUMNS": columns, "GROUPS": 1, "AHEAD": 0}

    def tile(self, profile: Profile, dtype: str, shape: str, of_panel: bool) -> Tile:
        """Return the register tile of a gram kernel for a shape class; no wider than a panel's block."""
        chosen = {**profile.tiles[shape]}
        if profile.shape == "vector":
            return {**chosen, "COLUMNS": min(chosen["COLUMNS"], self.width(profile, dtype, shape))}
        own = self.sparse and not of_panel  # (a lane group's columns)
        if dtype == "float64":  # (two registers a number)
            few = {"RX": 1, "GROUPS": max(1, chosen["GROUPS"] // 2)}
            chosen |= few if "RX" in chosen else {"GROUPS": 1, "BLOCKS": 1, "DEPTH": min(8, chosen["DEPTH"])}
        return chosen | {name: 1 for name in ("GROUPS", "RX") if own and name in chosen}

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        """Return so many work-items that each has a few register tiles of rows one after another, and enough to do to
        be worth starting; a panel larger than the caches is then read once for all of an item's tiles."""
        tiles, units = super().size(stream, numbers, of_panel, groups, cells), stream.compute_units
        rounds = tiles // (units * TILES)
        uneven = of_panel and rounds < UNEVEN  # (of half a tile, items have more and more to do)
        if uneven or "GROUPS" not in numbers:
            return tiles
        return min(tiles, units * max(1, min(rounds, int(groups * cells / (units * WORTH)))))

    def programs(self, profile: Profile, dtype: str, spec: Spec | None = None) -> Iterator[Variant]:
        if spec:
            return
        for shape in ("many", "two"):
            yield gather(profile, dtype, shape=shape)
        for source in ("float", "double"):
            made = *options(profile, dtype), f"-DINPUT={source}"
            yield Variant(f"pack {source} as {dtype}", sources.cl("gram/pack"), made, "pack")

    def items(self, numbers: Mapping[str, int]) -> int:
        V = numbers["V"]
        if "ITEMS" in numbers:
            return numbers["ITEMS"]
        return V // numbers["RX"] * numbers["GROUPS"] if "RX" in numbers else V // 4 * (numbers["UB"] // 4)

    def explain(self, numbers: Mapping[str, str], of_panel: bool) -> Iterator[str]:
        if not of_panel:
            yield "  feature j of row i:  values[at[g] + j * V + i % V],  at[g] = g * V * d"
        yield from panel_words(numbers)

    def arguments(self, of_panel: bool, elementwise: bool) -> dict[str, str]:
        words = _ARGUMENTS | (_TILE if of_panel else {})
        if of_panel or not self.sparse:
            words |= dict.fromkeys(("columns_at", "columns"), _UNREAD)
        return words


DENSE = Lanes()

_ARGUMENTS = {
    "values": "the rows",
    "at": "[lane groups] where each lane group begins in values",
    "columns": "the features that a lane group holds, ascending",
    "columns_at": "[lane groups + 1] where a lane group's features begin in columns",
    "d": "number of features",
    "panel": "[capacity d] the working vectors",
}
_TILE = {
    "values": "the working vectors: the same buffer as panel",
    "at": "[capacity / V] at[g] = g V d",
    "xx": "[capacity] the same buffer as uu",
}


def _numbers(tile: Tile) -> list[str]:
    return [f"-D{name}={n}" for name, n in tile.items()]


def panel_words(numbers: Mapping[str, str]) -> Iterator[str]:
    """Say how working vectors stand in a panel."""
    yield from blocks_words(numbers["UB"])
    yield "  feature j of working vector u:  panel[(u / UB * d + j) * UB + u % UB]"


def gather(profile: Profile, dtype: str, d: int = 0, shape: str = "many") -> Variant:
    """Return the program that gathers working rows into a panel of lane groups."""
    made = *options(profile, dtype, d), f"-DUB={DENSE.width(profile, dtype, shape)}"
    return Variant(f"gather {dtype} {shape}", sources.cl("gram/gather"), made, "gather")
