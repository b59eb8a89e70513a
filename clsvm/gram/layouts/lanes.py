"""Store rows in lane groups. A lane group is V rows, with the V values of one feature next to each other.

    feature J[j] of row number r of lane group g is values[at[g] + j * V + r].

Lane group g begins at index at[g] and stores the features in the list J. In the layout "dense", J has all features. The
layout "clustered" puts rows with similar nonzero features in the same cluster, which is one lane group or several lane
groups. J then leaves out the features that are zero in all rows of the cluster.

Kernels copy the caller's rows into lane groups, a part of the rows at a time. The host first copies the part to the
device, unless the device shares the host's memory or already has the rows (:class:`DeviceRows`).

The panel, the buffer of the right-hand rows U of a product K(X, U), stores all features of U in lane groups too.

References: Catanzaro 2011, listings 3 and 4; GTSVM (Cotter, Srebro and Keshet 2011), section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from clsvm.arrays import Data, centred
from clsvm.gram import partition
from clsvm.gram.layouts import record
from clsvm.gram.layouts.panel import Launch, Panel, PanelPair
from clsvm.gram.layouts.record import Layout, Places, Plan, Reader, Rows, Survey, Text, options
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.contexts import Kernel as OpenCLKernel
from clsvm.opencl.profiles import Profile, Tile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import Buffer, Stream

MAX_FEATURES = 16384  # largest number of columns in the layout "clustered", and in "dense" for rows with many zeros
TILES = 4  # a work-item computes at least this many register tiles: blocks of K whose sums are kept in registers
WORTH = 1 << 20  # a work-item does at least this many multiply-adds, so that its start costs little by comparison
# A work-item computes a single block of K(U, U) if each compute unit gets fewer than UNEVEN * TILES blocks.
UNEVEN = 8
# The first-level cache can hold CHUNK features of all the rows of X and U that a work-item multiplies for K(X, U).
CHUNK = 128
# If rows have more than CUT * CHUNK features, a CPU computes K(X, U) in passes over CHUNK features each.
# CUT has a value for "few" rows of U in K(X, U), 3 to 16, and a value for "many" rows, 17 or more.
CUT = {"many": 1, "few": 4}
WAIT = 1.5  # for few rows U, a CPU waits for memory: a multiply-add of K(X, U) then costs WAIT times as much
# Cost of the kernel function in the layouts "dense" and "clustered", as a multiple of the profile's value_cost.
DENSE_VALUE, CLUSTERED_VALUE = 1.5, 1.4
# Constants of the layout "clustered", which stores rows with similar nonzero features together:
AHEAD = 64  # while a kernel multiplies feature j of rows, it prefetches the values of feature j + AHEAD
# A work-item takes at most RUN lane groups, each of V rows. A compute unit gets at least SHARE work-items.
RUN, SHARE = 16, 8
# The layout "clustered" stores rows in groups. A group leaves out the columns that are zero in all of its rows.
# On CPUs, a multiply-add is estimated to cost more if a group of rows leaves out more than SKIPPED zero columns.
SKIPPED = 1024
# If groups of rows omit z > SKIPPED zero columns, CPU multiply-adds take 1 + (z - SKIPPED) / SCATTERED times as long.
SCATTERED = 1280
FIRST = 600.0  # K(X, U): cost of loading a feature of all rows of U into a cache, in units of a dense multiply-add
NEAR = 256  # this many features of the rows U of K(X, U) stay in a cache, and cost nothing to load
STAGING = 256 << 20  # bytes of rows that are copied at a time to a device that does not share the host's memory


class Part(NamedTuple):
    """Describe a buffer of the lane groups first .. first + groups - 1. A lane group is V rows with interleaved values.

    Rows take several buffers if they exceed the device's largest allocation.
    """

    first: int
    groups: int
    values: Buffer

    def common(self, groups: range) -> range:
        """Return which lane groups of the range ``groups`` are in this buffer. A lane group is V rows."""
        return range(max(groups.start, self.first), min(groups.stop, self.first + self.groups))


class Columns(NamedTuple):
    """Tell where each lane group (V rows with interleaved values) begins, and which features it stores.

    Attributes
    ----------
    at
        where each lane group's values begin in the buffer that holds them (Part.values).
    columns_at
        where each lane group's features begin in ``columns``.
    columns
        the features that each lane group stores, in ascending order, one group after the other.
    """

    at: Buffer
    columns_at: Buffer
    columns: Buffer

    @property
    def dense(self) -> bool:
        """Return whether all lane groups, each of V rows with interleaved values, store all features.

        If they do, kernels need no list of the stored features. The field ``columns`` is then the same buffer as the
        field ``at``, and kernels do not read ``columns``.
        """
        return self.columns is self.at


@dataclass(frozen=True)
class LaneRows(Rows):
    """Hold rows on the device in lane groups, each of V rows with interleaved values.

    Attributes
    ----------
    parts
        the buffers with the values, each for a range of lane groups.
    at
        where each lane group begins in its buffer, and which features it stores.
    """

    parts: tuple[Part, ...]
    at: Columns

    def buffers(self) -> tuple[Buffer, ...]:
        return (self.xx, *dict.fromkeys(self.at), *(part.values for part in self.parts))


class DeviceRows:
    """Select the rows ``numbers`` of X (n, d), of which the device has a copy.

    A kernel can read the copy, so no rows need to be transferred to the device.

    Attributes
    ----------
    X
        the host's array, C-contiguous float32 or float64.
    source
        the device's copy of X.
    plan
        how rows of X are stored for products: in the layout "dense", after the vector plan.centre is subtracted.
    numbers
        the row numbers in X of the selected rows.

    Indexing selects a subset of the rows. numpy.asarray returns the selected rows as a host array.
    """

    ndim = 2

    def __init__(self, X: NDArray[Any], source: Buffer, plan: Plan, numbers: NDArray[Any]) -> None:
        self.X, self.source, self.plan, self.numbers = X, source, plan, np.asarray(numbers)
        self.shape, self.dtype, self.itemsize = (len(self.numbers), X.shape[1]), X.dtype, X.itemsize
        self.nbytes = X.nbytes  # bytes of all rows of X

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> DeviceRows:
        return DeviceRows(self.X, self.source, self.plan, self.numbers[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.X[self.numbers], dtype)


class Source(NamedTuple):
    """Describe ``rows`` rows of ``d`` values, stored row by row in ``buffer`` from index ``begin`` on.

    The first of these rows has the number ``row0``.
    """

    row0: int
    rows: int
    d: int
    buffer: Buffer
    begin: int


class Packer:
    """Subtract ``centre`` (d,) from rows, copy the differences into lane groups, and compute the rows' squared norms.

    A lane group is V rows with interleaved values. Each method launches a kernel. With ``prepared=True`` it launches
    nothing, and returns a function that launches the kernel. The attribute ``centre`` is a device buffer with a copy of
    the vector, which the user of the object frees.
    """

    def __init__(self, stream: Stream, source: DTypeLike, dtype: str, centre: NDArray[np.float64]) -> None:
        self._profile, self._d = stream.profile, len(centre)
        made = sources.cl("gram/pack"), record.packing(stream.profile, source, self._d, dtype)
        self._pack, self._norms = (stream.kernel(*made, name) for name in ("pack", "norms_lanes"))
        self.centre = stream.upload(centre.astype(stream.profile.finest))

    def rows(
        self, source: Source, groups: range, order: Buffer, where: Columns, values: Buffer, prepared: bool = False
    ) -> Any:
        """Write the lane groups ``groups``, each of V rows with interleaved values, to the buffer ``values``.

        Lane group g begins at index where.at[g] of ``values``. Row i of the lane groups is the row of ``source`` with
        the number order[i], or a row of zeros if order[i] is -1.
        """
        width = 1 if self._profile.style == "simd" else 64
        arguments = *source, groups.start, order, self.centre, where, int(where.dense), values
        return (self._pack.prepared if prepared else self._pack)((width, len(groups)), (width, 1), *arguments)

    def norms(self, groups: range, where: Columns, values: Buffer, xx: Buffer, prepared: bool = False) -> Any:
        """Compute the squared norms of the rows in lane groups, and write them to the buffer ``xx``.

        A lane group is V rows with interleaved values. ``groups`` has the indices of the lane groups. Lane group g
        begins at index where.at[g] of the buffer ``values``. If ``prepared`` is true, launch no kernel, and return a
        function that launches the kernel.
        """
        items = len(groups) * (1 if self._profile.style == "simd" else self._profile.lanes)
        arguments = groups.start, self._d, values, where.at, where.columns_at, int(where.dense), xx
        return (self._norms.prepared if prepared else self._norms)((items,), None, *arguments)


def split(stream: Stream, sizes: NDArray[np.int64]) -> tuple[list[Part], NDArray[np.int64]]:
    """Allocate buffers for lane groups of V rows. sizes[g] is the size of lane group g in bytes.

    No buffer exceeds the device's largest allocation. Return the buffers, each for consecutive lane groups, and the
    offset in bytes of each lane group in its buffer.
    """
    parts, at, first, filled = [], np.zeros(len(sizes), np.int64), 0, 0
    for g, size in enumerate(sizes.tolist()):
        if filled and filled + size > stream.largest:
            parts.append(Part(first, g - first, stream.buffer(filled)))
            first, filled = g, 0
        at[g] = filled
        filled += size
    parts.append(Part(first, len(sizes) - first, stream.buffer(filled)))
    return parts, at


def staged_rows(stream: Stream, X: Data, order: NDArray[np.int32], V: int) -> Iterator[tuple[range, Source, Buffer]]:
    """Copy rows of X to the device in parts, so that the caller can arrange them in lane groups.

    A lane group is V rows whose values the caller interleaves. ``order`` lists the rows of all lane groups, one lane
    group after another. Each entry of ``order`` is the index of a row in X, or -1 for a padding row. A part has the
    rows of a range of lane groups. For each part, yield

    - the range of lane groups;
    - a :class:`Source`, which describes a device buffer with the rows of the part;
    - an int32 device buffer ``ids`` with an entry for each entry of ``order``. If order[i] is -1, ids[i] is -1 too. If
      order[i] is a row of the part, ids[i] - row0 is the row's index among the rows that the Source describes. ``row0``
      is an attribute of the Source.

    If the device can read X without a copy, there is one part, and its Source describes the buffer that the device
    reads.
    """
    n, d = X.shape
    groups = len(order) // V
    if isinstance(X, DeviceRows):
        order_buffer = stream.upload(np.where(order >= 0, X.numbers[order], -1).astype(np.int32))
        yield range(groups), Source(0, len(X.X), d, X.source, 0), order_buffer
    elif stream.unified and not sp.issparse(X):
        order_buffer = stream.upload(order)
        with stream.view(X) as (source, begin):
            yield range(groups), Source(0, n, d, source, begin), order_buffer
    else:
        valid = order >= 0
        before = np.concatenate([[0], np.cumsum(valid)])  # number of rows of X before each position, without padding
        order_buffer = stream.upload(np.where(valid, before[:-1], -1).astype(np.int32))
        chunk = max(1, min(STAGING, stream.largest) // max(1, V * d * X.dtype.itemsize))
        for first in range(0, groups, chunk):
            some = range(first, min(first + chunk, groups))
            piece = order[some.start * V : some.stop * V]
            wanted = piece[piece >= 0]
            as_they_stand = len(wanted) > 0 and bool((np.diff(wanted) == 1).all())  # a slice needs no copy
            rows = X[wanted[0] : wanted[-1] + 1] if as_they_stand else X[wanted]
            rows = rows.toarray() if sp.issparse(rows) else rows
            with stream.view(np.ascontiguousarray(rows)) as (source, begin):
                yield some, Source(int(before[first * V]), len(rows), d, source, begin), order_buffer
    stream.free(order_buffer)


class LaneReader(Reader):
    """Read rows X, stored in lane groups of V rows with interleaved values, for products K(X, U).

    The panel, the buffer of the right-hand rows U, stores all features of U, even if the lane groups of X leave out
    features.
    """

    def __init__(self, layout: Lanes, stream: Stream, rows: LaneRows, kernel: Kernel) -> None:
        super().__init__(layout, stream, rows, kernel)
        # _panels[0] is the capacity, in rows, of the largest buffer of rows U for which over_panel was called so far.
        # _panels[1][g] is the index at which group g of V interleaved rows begins in such a buffer.
        self._panels: tuple[int, Buffer] = (0, None)
        # The dict _gathers holds OpenCL kernels that copy rows of X to the buffer of U, for a product K(X, U).
        # The keys of _gathers are classes of the number of rows of U: "two" (up to 2), "few" (3 to 16), "many" (more).
        self._gathers: dict[str, OpenCLKernel] = {}

    def values_bytes(self, capacity: int) -> int:
        return capacity * max(self.rows.length, 1) * self.real.itemsize

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        row = panel.nbytes // panel.capacity
        values = self.stream.part(panel.values, first * row, capacity * row)
        return replace(super().part(panel, first, capacity, count), values=values)

    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        r, stream = self.rows, self.stream
        if fresh and not r.at.dense:
            stream.clear(panel.values, panel.nbytes)
            stream.clear(panel.uu, panel.capacity * self.real.itemsize)
        if panel.shape not in self._gathers:
            self._gathers[panel.shape] = stream.variant(gather(stream.profile, r.dtype, r.d, panel.shape))
        size = (panel.capacity, 1 if stream.profile.style == "simd" else 32)
        blank = fresh and r.at.dense and not panel.filled  # whether the buffer may hold uninitialised numbers
        panel.filled = True
        outcome = self.norms, r.length, count, rows, panel.values, panel.uu
        for part in r.parts:
            self._gathers[panel.shape](size, None, part, r.at, int(r.at.dense), int(blank), *outcome)
            blank = False

    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Launch]:
        r = self.rows
        for part in r.parts:
            if some := part.common(groups):
                arguments = (part.values, r.at, self.norms, r.length, count, panel.values, panel.uu)
                yield Launch(some.start, len(some), arguments, panel.capacity // panel.width)

    def over_panel(self, groups: range, pair: PanelPair) -> Iterator[Launch]:
        panel, _, right, count, matrices = pair
        capacity = panel.capacity // matrices
        if capacity > self._panels[0]:
            at = np.arange(0, capacity, self.rows.lanes, dtype=np.int64) * max(self.rows.length, 1)
            self._panels = capacity, self.stream.upload(at)
        at = self._panels[1]
        arguments = (panel.values, Columns(at, at, at), panel.uu, self.rows.length, count, right.values, right.uu)
        blocks = right.capacity // matrices // right.width
        yield Launch(groups.start, len(groups), arguments, blocks, matrices=matrices)


class Lanes(Layout):
    """Store all features of all rows, in lane groups: V rows, with the V values of a feature next to each other."""

    name, reader, sparse, shared = "dense", LaneReader, False, True
    rows_words: tuple[str, ...] = ("  feature j of row i:  values[at[g] + j * V + i % V],  at[g] = g * V * d",)
    panel_words = ("  feature j of right-hand row u:  panel[(u / UB * d + j) * UB + u % UB]",)
    arguments: Mapping[str, str] = {
        "values": "the rows",
        "at": "[lane groups] where each lane group begins in values",
        "d": "number of features",
        "panel": "[capacity d] the right-hand rows",
        **dict.fromkeys(("columns_at", "columns"), "not read by this program: any buffer"),
    }

    def cost(self, survey: Survey) -> float | None:
        d = survey.X.shape[1]
        if d > MAX_FEATURES and survey.used < 0.25 * d:
            return None
        return survey.at_once(d * survey.wait(WAIT), DENSE_VALUE, 2)

    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        return max(1, X.shape[1] * itemsize)

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> LaneRows:
        n, d = X.shape
        V = record.lanes(stream.profile, dtype)
        n_pad = record.padded(n, V)
        lengths = np.full(n_pad // V, d, np.int64)
        return self._packed(stream, X, plan, dtype, record.in_order(n, n_pad), [lengths])

    def _packed(
        self, stream: Stream, X: Data, plan: Plan, dtype: str, places: Places, groups: Sequence[NDArray[Any]]
    ) -> LaneRows:
        """Subtract ``plan.centre`` from the rows X, and store them on the device in lane groups.

        A lane group is V rows with interleaved values. places[0] has the index of the row at each position on the
        device, -1 for padding. places[1] has the position of each row. groups[0] has the number of features of each
        lane group. If lane groups leave out features, groups[2] lists the features of all lane groups, one lane group
        after another, and groups[1] says where each lane group begins in this list.
        """
        d, (order, position), (lengths, *listed) = X.shape[1], places, groups
        V, real = record.lanes(stream.profile, dtype), np.dtype(dtype)
        packer = Packer(stream, X.dtype, dtype, plan.centre)
        parts, at = split(stream, lengths * V * real.itemsize)
        begins = stream.upload(at // real.itemsize)
        where = Columns(begins, *(map(stream.upload, listed) if listed else (begins, begins)))
        for staged, source, order_buffer in staged_rows(stream, X, order, V):
            for part in parts:
                if some := part.common(staged):
                    packer.rows(source, some, order_buffer, where, part.values)
            stream.finish()
        stored, count = int(lengths.sum()) * V, len(position)
        cost, sizes = stored / max(1, count), (count, d, len(order), V, stored)
        xx = stream.buffer(real.itemsize * len(order))
        made = LaneRows(self.name, dtype, *sizes, order, position, xx, cost, d, tuple(parts), where)
        for part in parts:
            packer.norms(range(part.first, part.first + part.groups), where, part.values, xx)
        stream.free(packer.centre)
        record.check_norms(stream.read(xx, dtype, len(order)), made)
        return made

    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return how many rows of U are in a block of the buffer that stores U, for a product K(X, U).

        A block has V rows. V is also the number of rows of X that kernels compute side by side. If ``shape`` is "two",
        U has at most two rows, and a block has two rows. Padding to V rows would then take up space in the first-level
        cache.
        """
        return 2 if shape == "two" else record.lanes(profile, dtype)

    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        family = "few" if profile.style == "workgroup" and shape in ("two", "few") else "lanes"
        text = sources.render(f"gram/gram_{family}_{profile.style}", kernel=spec)
        return text, self._options(profile, self.tile(profile, dtype, shape, of_panel), shape, d, of_panel)

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> Text | None:
        if profile.style != "simd":
            return None
        text = sources.render("gram/forward_back_lanes_simd", kernel=spec)
        return text, self._options(profile, self.single(profile, dtype, "many"), "many", d, of_panel=False)

    def _options(self, profile: Profile, tile: Tile, shape: str, d: int, of_panel: bool) -> list[str]:
        """Return the -D options of an OpenCL kernel that computes K(X, U), for rows X of d features.

        ``tile`` maps names of macros to numbers, such as the sizes of a block of K(X, U). The options define these
        macros. The options define the macro DENSE if all rows store all features. With DENSE, the options also define
        the macro CHUNK if the device is a CPU and d is large: the kernel then multiplies CHUNK features at a time.
        ``shape`` is the size class of U: "two", "few" or "many" rows. If ``of_panel`` is true, the product is K(U, U).
        """
        dense, most = of_panel or not self.sparse, CUT.get(shape, np.inf) * CHUNK
        chunk = [f"-DCHUNK={CHUNK}"] * (dense and profile.style == "simd" and d > most)
        return [*["-DDENSE"] * dense, *(f"-D{name}={n}" for name, n in tile.items()), *chunk]

    def single(self, profile: Profile, dtype: str, shape: str) -> Tile:
        """Return a dictionary from names of macros to numbers, for a CPU kernel that computes K(X, U) in blocks.

        A work-item computes one block at a time, and keeps the sums of the block in registers. A block has COLUMNS rows
        of U, and GROUPS lane groups of X. GROUPS is 1 here. A lane group is V rows whose values are interleaved, and V
        is the length of the kernel's vectors. AHEAD is 0 here, so the kernel does not prefetch.

        shape: "two", "few" or "many", for the number of rows of U (profiles.shape_class).
        """
        registers = profile.tiles[shape]["COLUMNS"] * profile.tiles[shape]["GROUPS"]
        columns = math.gcd(self.width(profile, dtype, shape), 1 << registers.bit_length() - 1)
        return {"COLUMNS": columns, "GROUPS": 1, "AHEAD": 0}

    def tile(self, profile: Profile, dtype: str, shape: str, of_panel: bool) -> Tile:
        """Return settings of the OpenCL kernel that computes K(X, U), as a dictionary from macro names to numbers.

        The settings include the size of a block of K(X, U). A block is the kernel values that a work-item of a CPU, or
        a work-group of a GPU, computes in registers at a time. ``shape`` is the size class of U: "two", "few" or "many"
        rows (profiles.shape_class). If ``of_panel`` is true, the kernel computes K(U, U), and reads both factors from
        the buffer of the rows U. This buffer stores all features of the rows U, even if the layout of X leaves out
        features that are zero.
        """
        chosen = {**profile.tiles[shape]}
        if profile.style == "simd":
            return {**chosen, "COLUMNS": min(chosen["COLUMNS"], self.width(profile, dtype, shape))}
        # If lane groups (rows stored interleaved) have different columns, a work-group takes one lane group at a time.
        columns_differ = self.sparse and not of_panel
        if dtype == "float64":  # a double takes two registers, so fewer sums fit
            few = {"RX": 1, "GROUPS": max(1, chosen["GROUPS"] // 2)}
            chosen |= few if "RX" in chosen else {"GROUPS": 1, "BLOCKS": 1, "DEPTH": min(8, chosen["DEPTH"])}
        return chosen | {name: 1 for name in ("GROUPS", "RX") if columns_differ and name in chosen}

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        """Return the number of work-items of a launch on a CPU.

        The launch computes K(X, U) for ``groups`` lane groups of X. A lane group is V rows whose values stand
        interleaved. The kernel values between one lane group and all rows U take the time of ``cells`` multiply-adds.
        ``numbers`` holds the kernel's -D options by name. If ``of_panel`` is true, the launch computes K(U, U) in place
        of K(X, U), and its lane groups are lane groups of U.

        A work-item computes several register tiles, which are blocks of K whose sums are in registers. The start of a
        work-item then costs little by comparison. Rows U that exceed the caches are read once for all tiles of a
        work-item.
        """
        tiles, units = super().size(stream, numbers, of_panel, groups, cells), stream.compute_units
        rounds = tiles // (units * TILES)
        # A launch with SYMMETRIC computes only a triangle of K(U, U), and the rows of a triangle differ in length.
        # If each work-item computes one block, OpenCL can spread blocks of unequal cost evenly over the cores.
        uneven = "SYMMETRIC" in numbers and rounds < UNEVEN
        if uneven or "GROUPS" not in numbers:
            return tiles
        return min(tiles, units * max(1, min(rounds, int(groups * cells / (units * WORTH)))))

    def items(self, numbers: Mapping[str, int]) -> int:
        V = numbers["V"]
        if "ITEMS" in numbers:
            return numbers["ITEMS"]
        return V // numbers["RX"] * numbers["GROUPS"] if "RX" in numbers else V // 4 * (numbers["UB"] // 4)


DENSE = Lanes()


def gather(profile: Profile, dtype: str, d: int = 0, shape: str = "many") -> Variant:
    """Return the program that copies rows of X into a panel, the buffer of the right-hand rows U of K(X, U).

    X is stored in lane groups, each of V rows with interleaved values. ``shape`` is the size class of U.
    """
    made = *options(profile, dtype, d), f"-DUB={DENSE.width(profile, dtype, shape)}"
    return Variant(f"gather {dtype} {shape}", sources.cl("gram/gather"), made, "gather")


class Arrangement(NamedTuple):
    """Say at which position the layout "clustered" will store each of the n rows of X.

    V consecutive positions are a lane group: V rows with interleaved values. A cluster is one lane group, or several
    consecutive lane groups (Profile.cluster). Rows with similar nonzero features are put in the same cluster. The lane
    groups of a cluster leave out the features that are zero in all rows of the cluster. With padding, there are
    n_pad >= n positions.

    Attributes
    ----------
    places
        places[0] (n_pad,) has the index in X of the row at each position, -1 for padding. places[1] (n,) has the
        position of each row of X.
    groups
        groups[0] says how many features each lane group stores. groups[2] lists the indices of these features, one
        lane group after another. groups[1] has the index in groups[2] at which each lane group begins.
    """

    places: Places
    groups: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]


class Clustered(Lanes):
    """Store rows in lane groups of V rows, in clusters of rows with similar nonzero features.

    A cluster is one lane group or several lane groups. Features that are zero in all rows of a cluster are not stored.
    """

    name, sparse, most, in_order, elementwise = "clustered", True, MAX_FEATURES, False, False
    rows_words = (
        "A group stores the features that any of its rows has; all others are zero in the whole group:",
        "  feature columns[columns_at[g] + j] of row i:  values[at[g] + j * V + i % V]",
    )
    arguments: Mapping[str, str] = {
        **Lanes.arguments,
        "columns": "the features that a lane group holds, ascending",
        "columns_at": "[lane groups + 1] where a lane group's features begin in columns",
    }

    def cost(self, survey: Survey) -> float | None:
        n, d = survey.X.shape
        if n < 2 or d > MAX_FEATURES or survey.used >= 0.9 * d:
            return None
        profile, cells = survey.profile, survey.profile.clustered_cost * survey.fill * survey.wait()
        if profile.style == "simd":
            cells *= 1 + max(0.0, d - survey.fill - SKIPPED) / SCATTERED
            cells += FIRST * min(d / n, survey.fill / profile.lanes) * max(0.0, 1 - NEAR / d)
        return survey.at_once(cells, CLUSTERED_VALUE, 2)

    def setup_cost(self, survey: Survey) -> float:
        return survey.profile.cluster_cost

    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> LaneRows:
        if sp.issparse(X):
            X, plan = centred(X, plan.centre), replace(plan, centre=np.zeros(X.shape[1]))
        return self._packed(stream, X, plan, dtype, *self.arranged(stream, X, plan, dtype))

    def arranged(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> Arrangement:
        """Choose an order of the rows of X (n, d) that puts rows with similar nonzero features next to each other."""
        n, V = X.shape[0], record.lanes(stream.profile, dtype)
        size = V * stream.profile.cluster
        n_pad = record.padded(n, size)
        clusters = partition.cluster(stream, X, size, centre=plan.centre)
        empty = n_pad - len(clusters.order)  # number of positions after the last cluster, for padding
        order = np.concatenate([clusters.order, np.full(empty, -1, np.int32)])
        position = np.empty(n, np.int32)
        position[order[order >= 0]] = np.flatnonzero(order >= 0)
        mask = np.pad(np.repeat(clusters.mask, size // V, axis=0), ((0, empty // V), (0, 0)))
        lengths = mask.sum(axis=1, dtype=np.int64)
        if lengths.sum() >= 2**31:
            raise ValueError(f"the clustered layout needs {lengths.sum()} columns, at most {2**31 - 1} are possible")
        columns_at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        groups = lengths, columns_at, np.nonzero(mask)[1].astype(np.int32)
        return Arrangement((order, position), groups)

    def build_part(
        self, stream: Stream, X: Data, plan: Plan, dtype: str, arrangement: Arrangement, places: slice
    ) -> LaneRows:
        """Store some rows of X on the device, in the order that ``arrangement`` gives to all rows of X.

        ``places`` is the range of positions in this order that are stored. V consecutive positions are a lane group,
        whose values are interleaved. ``places`` has whole lane groups only.
        """
        lengths, columns_at, columns = arrangement.groups
        V, order = record.lanes(stream.profile, dtype), arrangement.places[0][places]
        first, end = places.start // V, places.start // V + len(order) // V
        begin, stop = columns_at[first], columns_at[end]
        groups = lengths[first:end], columns_at[first : end + 1] - begin, columns[begin:stop]
        position = np.flatnonzero(order >= 0).astype(np.int32)
        return self._packed(stream, X, plan, dtype, (order, position), groups)

    def tile(self, profile: Profile, dtype: str, shape: str, of_panel: bool) -> Tile:
        if of_panel or profile.style == "workgroup":
            return super().tile(profile, dtype, shape, of_panel)
        # A group of V clustered rows is too short to start the hardware prefetcher, so the kernel prefetches the rows.
        return {**self.single(profile, dtype, shape), "AHEAD": AHEAD}

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        items = Layout.size(self, stream, numbers, of_panel, groups, cells)
        return items if of_panel else min(items, max(-(-items // RUN), SHARE * stream.compute_units))


CLUSTERED = Clustered()
