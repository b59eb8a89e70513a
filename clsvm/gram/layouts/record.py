"""Define the interface of a layout: how the rows of X are stored on a device and read by kernels.

    Survey: the facts about rows that cost estimates use.
    Plan: the chosen layout, the centre to subtract and the order of columns.
    Layout: one layout; it estimates costs, lays out rows and names its programs.
    Rows: rows that a layout has put on a device.
    Panel: room for right-hand rows U of a product K(X, U).
    Reader: fills panels and yields the kernel arguments of launches over rows.

Letters: n rows, d features, and V lanes. A lane group is V consecutive rows, which kernels compute side by side.

An estimated cost is the time of one value of K. Its unit is one multiply-add of the dense layout. The estimate counts
the multiply-adds, the kernel function, the store, and the value's share of launches and of filling panels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm.arrays import Data
from clsvm.errors import RowTooLargeError
from clsvm.gram import partition
from clsvm.gram.partition import Partition
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile, shape_class
from clsvm.opencl.stream import Buffer, Stream

WHOLE = 8  # rows that kernels choosing a working set read at once; n_pad is a multiple of it for any V
WORKING = 512  # right-hand rows of a product if the caller does not know better
WAIT = 4 / 3  # factor on the cost of a multiply-add if right-hand rows are so few that a CPU waits for rows from memory
LAUNCHES = 20  # launches of an outer iteration, about: the profile's step_cost divided by it is the cost of one launch

Text = tuple[str, list[str]]  # text of a program and its -D options
Places = tuple[NDArray[np.int32], NDArray[np.int32]]  # order and position of rows, as in Rows


@dataclass(frozen=True)
class Plan:
    """Say how training and test rows of a model are laid out.

    Attributes
    ----------
    kind
        the name of the layout.
    centre
        (d,) float64, subtracted before the cast to the device's dtype; 0 where a shift would add entries.
    reason
        the costs that decided, in words.
    partition
        the order of the columns and the number of dense ones, for layouts that use it.
    costs
        the estimated cost of a value of K for each layout. A plan from a model file has none.
    fill
        the estimated number of columns in a cluster, or None.
    whole
        the costs including each value's share of laying out its row; the least of them decided.
    """

    kind: str
    centre: NDArray[np.float64]
    reason: str
    partition: Partition | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    fill: float | None = None
    whole: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Survey:
    """Hold the facts about rows X (n, d) on which a layout's cost depends.

    Attributes
    ----------
    profile
        the device profile with its measured costs.
    X
        the rows.
    density
        for each feature that occurs, the share of rows in which it is not 0.
    working
        number of right-hand rows in a product.
    """

    profile: Profile
    X: Data
    density: NDArray[np.float64]
    working: int

    @property
    def n(self) -> int:
        return max(1, self.X.shape[0])

    @property
    def used(self) -> float:
        """Return the average number of nonzero features of a row."""
        return float(self.density.sum())

    def wait(self, times: float = WAIT) -> float:
        """Return the factor by which multiply-adds slow down for few right-hand rows. A CPU then uses rows faster than
        the memory delivers them."""
        return times if self.profile.shape == "vector" and shape_class(self.working) != "many" else 1.0

    @cached_property
    def fill(self) -> float:
        """Return the estimated number of columns that a cluster of the profile's size would hold."""
        return partition.sampled_fill(self.X, self.profile.lanes * self.profile.cluster)

    def beside(self, values: float, launches: int) -> float:
        """Return the cost of a value of K beyond its multiply-adds.

        The cost is ``values`` times the profile's value_cost, for the kernel function and the store, and the value's
        share of ``launches`` launches.
        """
        shared = launches * self.profile.step_cost / LAUNCHES / (self.n * self.working)
        return values * self.profile.value_cost + shared

    def at_once(self, cells: float, values: float, launches: int) -> float:
        """Return the cost of a value of K if multiply-adds overlap with the kernel function of other values. The cost
        is then little more than the larger of the two."""
        return math.hypot(cells, values * self.profile.value_cost) + self.beside(0.0, launches)


@dataclass(frozen=True)
class Rows:
    """Hold rows on the device, padded with zero rows to n_pad.

    Attributes
    ----------
    kind, dtype
        the name of the layout and the dtype of the values.
    n, d
        number of rows and of features.
    n_pad
        number of positions, a multiple of V.
    lanes
        V.
    stored
        number of stored values, with padding.
    order
        (n_pad,) the caller's row at each position, -1 for padding.
    position
        (n,) the position of each of the caller's rows.
    xx
        buffer of the squared norms (n_pad,).
    cost, tile_cost
        cost of a value of K, and of a value in a tile, in dense multiply-adds.
    laid
        cost of laying out a row again in every product, in the same unit.
    words
        further words for reports.
    """

    kind: str
    dtype: str
    n: int
    d: int
    n_pad: int
    lanes: int
    stored: int
    order: NDArray[np.int32]
    position: NDArray[np.int32]
    xx: Buffer
    cost: float
    tile_cost: float
    laid: float = field(default=0.0, kw_only=True)
    words: str = field(default="", kw_only=True)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all buffers of the rows, to be freed."""
        return (self.xx,)

    def describe(self) -> str:
        own = f"{self.kind}, {self.stored / max(self.n, 1):.1f} cells a row of {self.d}, {self.lanes} lanes"
        return f"{own}, {self.words}" if self.words else own


@dataclass
class Panel:
    """Hold up to ``capacity`` right-hand rows of a product, in blocks of ``width`` rows.

    Attributes
    ----------
    values, uu
        buffers of the rows' values and of their squared norms.
    nbytes
        size of ``values`` in bytes.
    shape
        the class of ``capacity`` for which programs differ (profiles.shape_class).
    rows
        buffer of the rows' positions, for operators that read a stored K.
    fetched
        the rows that were laid out for this panel (gram/blocks.py).
    filled
        whether the buffers hold valid numbers.
    squared
        buffer for norms by matrix units (gram/units.py), or None.
    places
        buffers of positions and count that are freed with the panel.
    block, listed
        the block that ``values`` holds, and the rows to fill it from (csr.py).
    """

    capacity: int
    width: int
    values: Buffer
    uu: Buffer
    nbytes: int
    shape: str
    rows: Buffer = None
    fetched: Any = None
    filled: bool = False
    squared: Buffer = None
    places: tuple[Buffer, ...] = ()
    block: Any = None
    listed: Any = None

    @property
    def rows_stay(self) -> bool:
        """Return whether the buffers of the rows must live as long as the panel, because products read them again."""
        return self.block is not None

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all buffers of the panel, to be freed."""
        own = self.values, self.uu, self.squared, *self.places
        parts = [one.buffers for one in (self.block, self.fetched) if one]
        return (*(buffer for buffer in own if buffer is not None), *chain.from_iterable(parts))


class Pass(NamedTuple):
    """Describe a launch of a product kernel over the lane groups first .. first + groups - 1.

    Attributes
    ----------
    reads
        the kernel's arguments for the rows and the panel.
    blocks
        number of panel blocks that work-groups can share.
    kernel
        name of the kernel in the program.
    items
        number of work-items of a SIMD launch, or 0 for the layout's own number.
    sums
        whether only a product that updates c needs the launch.
    """

    first: int
    groups: int
    reads: tuple[Any, ...]
    blocks: int = 1
    kernel: str = "gram"
    items: int = 0
    sums: bool = False


class Reader(ABC):
    """Read the rows of a layout for products with one kernel function: fill panels with them, and yield launches over
    them.

    Attributes
    ----------
    norms
        buffer that takes the place of |x|^2 in the kernel function.
    width
        number of right-hand rows in a block; the sizes of working sets are multiples of it.
    """

    def __init__(self, layout: Any, stream: Stream, rows: Any, kernel: Kernel) -> None:
        self.layout, self.stream, self.rows = layout, stream, rows
        self.real = np.dtype(rows.dtype)
        self.width = layout.width(stream.profile, rows.dtype, "many")
        self.norms = rows.xx

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel for at least ``capacity`` right-hand rows. Pass ``square`` for a panel of a tile."""
        shape = shape_class(max(3, capacity) if square else capacity)
        width = self.layout.width(self.stream.profile, self.rows.dtype, shape)
        capacity = -(-capacity // width) * width
        nbytes = self.values_bytes(capacity)
        with self.stream.tentative():
            values, uu = self.stream.buffer(nbytes), self.stream.buffer(capacity * self.real.itemsize)
        return Panel(capacity, width, values, uu, nbytes, shape)

    def panel_bytes(self, capacity: int) -> int:
        """Return the size of a panel for ``capacity`` right-hand rows in bytes."""
        return self.values_bytes(capacity) + capacity * self.real.itemsize

    @abstractmethod
    def values_bytes(self, capacity: int) -> int:
        """Return the size of a panel's values in bytes."""

    @abstractmethod
    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """Return a view of whole blocks of a gathered panel: ``capacity`` right-hand rows from ``first``, ``count`` of
        them valid."""

    @abstractmethod
    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        """Copy the rows at positions rows[0 .. count - 1] (int32, -1 for none) into a panel. Rows at least as long must
        have made the panel.

        Zero the rest of the panel if ``fresh``; otherwise keep its contents.
        """

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """Return a panel's values, squared norms and feature count in the format of lane groups. Return None if the
        panel holds only one block at a time."""
        return None

    @abstractmethod
    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Pass]:
        """Yield the launches over the given lane groups of the rows. The contents of the panel may change from one
        launch to the next."""

    @abstractmethod
    def over_panel(self, groups: range, panel: Panel, rows: Buffer, right: Panel, count: Buffer) -> Iterator[Pass]:
        """Yield the launches over the given lane groups of a square panel, whose positions in X are ``rows``, against
        the ``count`` right-hand rows of the panel ``right``."""


class Layout(ABC):
    """Define one way to store rows on a device.

    Attributes
    ----------
    name
        the name in plans, reports and commands.
    reader
        the class that reads its rows.
    most
        the largest number of columns.
    sparse
        whether zeros are left out, so that subtracting a centre would add entries.
    in_order
        whether rows keep the caller's order. Otherwise :meth:`row_bytes` is an upper bound.
    shared
        whether a panel holds all its right-hand rows at once, so that several work-groups can share them.
    splits
        whether the plan's partition splits off dense columns.
    elementwise
        whether kernel functions of element-wise sums can use it.
    plain
        for a layout that stores K in several launches, the layout whose kernels also read its rows. These
        kernels sum without a store. The plain layout takes less memory and less time to build.

    tools/emit.py prints these in the headers of C programs:

        rows_words, panel_words: lines that say how rows and right-hand rows lie in memory.
        arguments: the meaning of the kernel arguments that differ between layouts.
        panel_arguments: their meaning in a launch over a panel.

    V and the block width of panels divide 64, by which sums over support vectors are grouped.
    """

    name: str
    reader: type[Any]
    most: int = 2**31 - 1
    sparse: bool
    shared: bool
    in_order: bool = True
    splits: bool = False
    elementwise: bool = True
    plain: str = ""
    rows_words: tuple[str, ...] = ()
    panel_words: tuple[str, ...]
    arguments: Mapping[str, str]
    panel_arguments: Mapping[str, str]

    def suits(self, profile: Profile) -> bool:
        """Return whether the layout has separate kernels for this kind of device."""
        return True

    @abstractmethod
    def cost(self, survey: Survey) -> float | None:
        """Return the cost of a value of K in dense multiply-adds. Return None if the layout should not be chosen."""

    def price(self, survey: Survey) -> float:
        """Return the cost of laying out a row, beyond a copy, in dense multiply-adds."""
        return 0.0

    def partition(self, profile: Profile, X: Data) -> Partition | None:
        """Return the partition of the columns of X (n, d), or None for a layout without one."""
        return None

    @abstractmethod
    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        """Return the approximate bytes of a row of X once it is laid out. The memory budget relies on it."""

    def nbytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        """Estimate the bytes of all rows of X once they are laid out, without their norms."""
        return X.shape[0] * self.row_bytes(plan, X, itemsize)

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        """Return the bytes of a panel of rows of X, in blocks of ``width``, beyond the bytes of its rows."""
        return 0

    @abstractmethod
    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> Rows:
        """Lay out X (n, d), less the plan's centre, on the device."""

    @abstractmethod
    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return the number of right-hand rows that stand side by side in a block of a panel. ``shape`` is the class of
        their number (profiles.shape_class)."""

    @abstractmethod
    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        """Return the text and -D options of a kernel named gram over rows of d features, or over a panel if
        ``of_panel``.

        The kernel's parameters are, in order: the first lane group, the number of groups and the first row of the
        output; then the arguments in :class:`Pass`; then STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS
        (templates/gram/epilogue.mako).

        The kernel obeys the macros V, UB and INDEX of :func:`options`, and the macros of programs.PRODUCTS: STORE,
        UPDATE, HALF and SLABS, as finish_*.mako implement them, and SECTIONS, for which the body begins with SECTION.
        """

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> Text | None:
        """Return a kernel named forward_back that makes one pass over rows, or None if the layout has none."""
        return None

    @abstractmethod
    def items(self, numbers: Mapping[str, int]) -> int:
        """Return the number of work-items in a work-group, given the -D numbers of a work-group kernel."""

    def grid(self, numbers: Mapping[str, int], groups: int, blocks: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the global and local size of a work-group launch over lane groups and blocks of right-hand rows."""
        items = self.items(numbers)
        shared = -(-blocks // numbers.get("BLOCKS", 1))
        return (-(-groups // numbers.get("GROUPS", 1)) * items, shared), (items, 1)

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        """Return the number of work-items of a SIMD launch over lane groups. One group costs ``cells``
        multiply-adds."""
        return -(-groups // numbers.get("GROUPS", 1))


def lanes(profile: Profile, dtype: str) -> int:
    """Return V for values of ``dtype``. A SIMD vector holds half as many doubles as floats."""
    return profile.lanes // 2 if dtype == "float64" and profile.shape == "vector" else profile.lanes


def options(profile: Profile, dtype: str, d: int = 0) -> list[str]:
    """Return the -D options that all programs over rows of ``dtype`` share."""
    made = [f"-DV={lanes(profile, dtype)}", f"-DINDEX={'ushort' if d <= 1 << 16 else 'int'}"]
    made += ["-DVECTOR"] * (profile.shape == "vector") + ["-DREAL64"] * (dtype == "float64")
    return made + ["-DWIDE_PAIR"] * (profile.wide == "pair")


def packing(profile: Profile, source: DTypeLike, d: int, dtype: str) -> list[str]:
    """Return the -D options of kernels that read the caller's rows, which have the dtype ``source`` and d features."""
    return [*options(profile, dtype, d), f"-DINPUT={'float' if np.dtype(source) == np.float32 else 'double'}"]


def template(family: str, spec: Spec, profile: Profile) -> str:
    """Return the text of a layout's gram kernel. The family "few" serves few right-hand rows with work-group
    kernels."""
    return sources.render(f"gram/gram_{family}_{profile.shape}", kernel=spec)


def padded(n: int, unit: int) -> int:
    """Round n rows up to multiples of ``unit`` and of WHOLE."""
    unit = math.lcm(unit, WHOLE)
    return -(-n // unit) * unit


def in_order(n: int, n_pad: int) -> Places:
    """Return order and position of rows that keep the caller's order."""
    at = np.arange(n_pad, dtype=np.int32)
    return np.where(at < n, at, np.int32(-1)), at[:n].copy()


def refuse(norms: NDArray[Any], rows: Rows) -> None:
    """Raise RowTooLargeError for the first row whose squared norm is not finite, since K has no values for it."""
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        raise RowTooLargeError(int(rows.order[bad[0]]), rows.dtype)
