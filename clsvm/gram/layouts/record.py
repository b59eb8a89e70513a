"""What a layout of rows is: one record of a module in this package, which says all that is its own.

A layout stores rows (:class:`Rows`), estimates what they cost (:class:`Survey`), makes panels of working vectors from
them, and gives kernels their arguments (:class:`Reader`). Letters: n rows, d features, V lanes.

An estimate is the time of a value of K in dense cells: its multiply-adds, the kernel function and its store, and its
part of the launches and of what a product lays out for its working vectors.
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

WHOLE = 8  # rows that choosing a working set takes at a time: n_pad is a multiple, whatever V is
WORKING = 512  # working vectors of a product, where nothing else is known
WAIT = 4 / 3  # times what a cell takes otherwise, where vectors are so few that rows come from memory too slowly
LAUNCHES = 20  # of an outer iteration, about: what one takes is so many times less than the profile's step_cost

Text = tuple[str, list[str]]  # of a program, and its -D options
Places = tuple[NDArray[np.int32], NDArray[np.int32]]  # order and position of rows (see Rows)


@dataclass(frozen=True)
class Plan:
    """How a model's rows are laid out, training and test alike.

    kind: the layout's name. centre: (d,) float64 subtracted before the cast (zeros where a shift would cost sparsity).
    reason: the costs that decided, in dense cells. partition: of the columns, where the layout has one.
    costs: the same estimates of a value of K by layout, of each that could be estimated, and fill, of the columns that
    a cluster would hold; none in a plan that a model file holds. whole: those estimates and each value's share of
    laying out its row, which decided.
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
    """What the choice of a layout knows: rows X (n, d), the share of them in which each feature that occurs is not 0,
    and the number of working vectors of a product."""

    profile: Profile
    X: Data
    density: NDArray[np.float64]
    working: int

    @property
    def n(self) -> int:
        return max(1, self.X.shape[0])

    @property
    def used(self) -> float:
        """Return how many features of a row are not 0, on average."""
        return float(self.density.sum())

    def wait(self, times: float = WAIT) -> float:
        """Return by what factor a cell of the rows takes longer than where working vectors are many: so few of them, on
        a CPU, use rows faster than memory brings them."""
        return times if self.profile.shape == "vector" and shape_class(self.working) != "many" else 1.0

    @cached_property
    def fill(self) -> float:
        """Return how many columns a cluster of the profile's size would hold, about."""
        return partition.sampled_fill(self.X, self.profile.lanes * self.profile.cluster)

    def beside(self, values: float, launches: int) -> float:
        """Return the cost of a value beside its cells: the kernel function and its store, as a multiple of the
        profile's value_cost, and its share of a product's launches."""
        shared = launches * self.profile.step_cost / LAUNCHES / (self.n * self.working)
        return values * self.profile.value_cost + shared

    def at_once(self, cells: float, values: float, launches: int) -> float:
        """Return the cost of a value whose cells and kernel function are computed while others are stored: hardly more
        than the longer of the two."""
        return math.hypot(cells, values * self.profile.value_cost) + self.beside(0.0, launches)


@dataclass(frozen=True)
class Rows:
    """Rows on the device, n_pad with padding, which is zero vectors; xx: their squared norms.

    kind: the layout's name. stored: cells kept, padding included. order: the caller's row at each position (-1:
    padding), position: the inverse. cost, tile_cost: of a value of K, and of one among working vectors, in dense cells.
    laid: of a row that is laid out anew in every product, likewise. words: how they lie, where that is not all said.
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
        """Return every buffer of the rows, to be freed."""
        return (self.xx,)

    def describe(self) -> str:
        own = f"{self.kind}, {self.stored / max(self.n, 1):.1f} cells a row of {self.d}, {self.lanes} lanes"
        return f"{own}, {self.words}" if self.words else own


@dataclass
class Panel:
    """Room for ``capacity`` working vectors: squared norms, and values in blocks of ``width``. rows: which rows they
    are, where a product wants to know. fetched: rows that were laid out for it (gram/blocks.py). filled: whether there
    are numbers in it. squared: room for norms by matrix units (gram/units.py), where products take these. places: the
    rows' positions and their count, where they belong to the panel. block, listed: what a panel of one block of working
    vectors at a time has (csr.py)."""

    capacity: int
    width: int
    values: Buffer
    uu: Buffer
    nbytes: int
    shape: str  # profiles.shape_class of the number asked for
    rows: Buffer = None
    fetched: Any = None
    filled: bool = False
    squared: Buffer = None
    places: tuple[Buffer, ...] = ()
    block: Any = None
    listed: Any = None

    @property
    def rows_stay(self) -> bool:
        """Return whether the rows' buffers have to live as long as the panel."""
        return self.block is not None

    def buffers(self) -> tuple[Buffer, ...]:
        """Return every buffer of the panel, to be freed."""
        own = self.values, self.uu, self.squared, *self.places
        parts = [one.buffers for one in (self.block, self.fetched) if one]
        return (*(buffer for buffer in own if buffer is not None), *chain.from_iterable(parts))


class Pass(NamedTuple):
    """A launch over lane groups first .. first + groups - 1; reads: the kernel's arguments that say what is read.
    blocks: of working vectors, which work-groups can share. kernel: which one of the program. items: of the launch in
    the vector shape, where it is not the layout's. sums: whether it is for an update alone."""

    first: int
    groups: int
    reads: tuple[Any, ...]
    blocks: int = 1
    kernel: str = "gram"
    items: int = 0
    sums: bool = False


class Reader(ABC):
    """Rows of a layout as the products of one kernel function read them: into panels, and in launches over rows.

    norms: what stands for |x|^2 in the kernel function. width: working sets are whole blocks of so many rows.
    """

    def __init__(self, layout: Any, stream: Stream, rows: Any, kernel: Kernel) -> None:
        self.layout, self.stream, self.rows = layout, stream, rows
        self.real = np.dtype(rows.dtype)
        self.width = layout.width(stream.profile, rows.dtype, "many")
        self.norms = rows.xx

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel for at least ``capacity`` working vectors; square: one that a tile takes."""
        shape = shape_class(max(3, capacity) if square else capacity)
        width = self.layout.width(self.stream.profile, self.rows.dtype, shape)
        capacity = -(-capacity // width) * width
        nbytes = self.values_bytes(capacity)
        with self.stream.tentative():
            values, uu = self.stream.buffer(nbytes), self.stream.buffer(capacity * self.real.itemsize)
        return Panel(capacity, width, values, uu, nbytes, shape)

    def panel_bytes(self, capacity: int) -> int:
        """Return the bytes of a panel."""
        return self.values_bytes(capacity) + capacity * self.real.itemsize

    @abstractmethod
    def values_bytes(self, capacity: int) -> int:
        """Return the bytes of the values of a panel."""

    @abstractmethod
    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """Return whole blocks of a gathered panel: ``capacity`` working vectors from ``first`` on, ``count`` there."""

    @abstractmethod
    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        """Bring the rows at positions rows[0 .. count - 1] (int32, -1: none) into a panel that these rows or others
        with as long ones made. The rest of the panel becomes zero, or, where it is not ``fresh``, keeps what stood
        there."""

    def of_panel(self, panel: Panel) -> tuple[Any, ...] | None:
        """Return what kernel values of a panel are made of, in lane groups: values, norms, features. None where it does
        not hold all of its vectors."""
        return None

    @abstractmethod
    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Pass]:
        """Yield the launches over some lane groups of the rows; the panel may change in between."""

    @abstractmethod
    def over_panel(self, groups: range, panel: Panel, rows: Buffer, right: Panel, count: Buffer) -> Iterator[Pass]:
        """Yield the launches over some lane groups of a square panel, which holds ``rows``, against the ``count``
        working vectors of another, ``right``."""


class Layout(ABC):
    """One way for rows to stand on a device; its rows have its name as their kind.

    name: as plans, reports and commands say it. reader: of its rows. most: columns that it can hold. sparse: whether
    zeros are not stored, so that taking off a centre would add entries. in_order: whether rows stand as they came; else
    :meth:`row_bytes` is a bound. shared: whether a panel holds all of its vectors at once, so that several work-groups
    can share them. splits: whether some columns are dense and the rest are not, as its plan's partition says.
    elementwise: whether there are element-wise sums. plain: the layout whose kernels read these rows too, of one whose
    values several launches make where they are stored: it takes less memory, needs no store, and is made sooner.

    For tools/emit.py: rows_words, panel_words: lines that say how rows and working vectors lie in memory. arguments:
    what those arguments of its gram kernels are that differ between layouts; panel_arguments: over a panel.
    Lanes and blocks of panels divide 64 rows, by which responses go.
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
        """Return whether there are kernels of its own for a kind of device."""
        return True

    @abstractmethod
    def cost(self, survey: Survey) -> float | None:
        """Return the cost of a value of K, in dense cells; None where the layout is not to be chosen."""

    def price(self, survey: Survey) -> float:
        """Return the cost of laying out a row, beyond a copy, in dense cells."""
        return 0.0

    def partition(self, profile: Profile, X: Data) -> Partition | None:
        """Return the partition of the columns of X (n, d), where the layout has one."""
        return None

    @abstractmethod
    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        """Return the bytes of a row of X as it is laid out, about: the memory limit counts on it."""

    def nbytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        """Estimate the bytes of all rows of X as they are laid out, without their norms."""
        return X.shape[0] * self.row_bytes(plan, X, itemsize)

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        """Return the bytes that a panel of rows of X, in blocks of ``width``, takes besides those of its rows."""
        return 0

    @abstractmethod
    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> Rows:
        """Put X (n, d) on the device, less the plan's centre."""

    @abstractmethod
    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return how many working vectors stand side by side in a panel of a shape class."""

    @abstractmethod
    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        """Return a kernel called gram over rows of d features; of_panel: of a panel.

        Its parameters are group0, groups, base (the lane groups of a launch, and the first row of the output), then
        what :class:`Pass` says is read, then STORE_PARAMETERS UPDATE_PARAMETERS KERNEL_PARAMETERS
        (templates/gram/epilogue.mako). It obeys V, UB and INDEX (:func:`options`), and what programs.PRODUCTS defines:
        STORE, UPDATE, HALF, SLABS, for which finish_*.mako can be included, and SECTIONS (then it begins with SECTION).
        """

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> Text | None:
        """Return a kernel called forward_back, one pass over rows; None without one."""
        return None

    @abstractmethod
    def items(self, numbers: Mapping[str, int]) -> int:
        """Return the work-items of a work-group in the group shape, by the -D numbers of a gram kernel."""

    def grid(self, numbers: Mapping[str, int], groups: int, blocks: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the range and work-group of a launch over lane groups and blocks of working vectors, in the group
        shape."""
        items = self.items(numbers)
        shared = -(-blocks // numbers.get("BLOCKS", 1))
        return (-(-groups // numbers.get("GROUPS", 1)) * items, shared), (items, 1)

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        """Return the work-items of a launch over lane groups, of so many cells each, in the vector shape."""
        return -(-groups // numbers.get("GROUPS", 1))


def lanes(profile: Profile, dtype: str) -> int:
    """Return V for values of ``dtype``: half as many doubles fill the same vector."""
    return profile.lanes // 2 if dtype == "float64" and profile.shape == "vector" else profile.lanes


def options(profile: Profile, dtype: str, d: int = 0) -> list[str]:
    """Return the -D options that every program over rows of ``dtype`` shares."""
    made = [f"-DV={lanes(profile, dtype)}", f"-DINDEX={'ushort' if d <= 1 << 16 else 'int'}"]
    made += ["-DVECTOR"] * (profile.shape == "vector") + ["-DREAL64"] * (dtype == "float64")
    return made + ["-DWIDE_PAIR"] * (profile.wide == "pair")


def packing(profile: Profile, source: DTypeLike, d: int, dtype: str) -> list[str]:
    """Return the -D options of kernels that read the caller's rows, of dtype ``source`` and d features."""
    return [*options(profile, dtype, d), f"-DINPUT={'float' if np.dtype(source) == np.float32 else 'double'}"]


def template(family: str, spec: Spec, profile: Profile) -> str:
    """Return the text of the gram kernel of a family: a layout's, or "few" for few working vectors in the group
    shape."""
    return sources.render(f"gram/gram_{family}_{profile.shape}", kernel=spec)


def padded(n: int, unit: int) -> int:
    """Return n rows in whole ``unit`` and whole vectors of the choice of working sets."""
    unit = math.lcm(unit, WHOLE)
    return -(-n // unit) * unit


def in_order(n: int, n_pad: int) -> Places:
    """Return order and position of rows that stand as they came."""
    at = np.arange(n_pad, dtype=np.int32)
    return np.where(at < n, at, np.int32(-1)), at[:n].copy()


def refuse(norms: NDArray[Any], rows: Rows) -> None:
    """Raise RowTooLargeError for a row whose squared norm, of those of the first places, overflows: it has no kernel
    values."""
    bad = np.flatnonzero(~np.isfinite(norms))
    if bad.size:
        raise RowTooLargeError(int(rows.order[bad[0]]), rows.dtype)
