"""Define the interface of a layout: how the rows of X are stored on a device and read by kernels.

    Survey: the facts about rows X that cost estimates use.
    Plan: the chosen layout, the vector to subtract from each row and the order of columns.
    Layout: one way to store rows; it estimates costs, copies rows to a device and names its programs.
    Rows: rows that are stored on a device in a layout.
    Reader: an object that copies U into panels and yields the kernel launches that compute K(X, U).

n is the number of rows, and d the number of features. V is the number of rows that kernels compute side by side. V
consecutive rows are called a lane group.

The estimated cost of a layout is the mean time to compute one value of K(X, U). The unit of the cost is the time of one
multiply-add in a product of dense rows. The cost includes the multiply-adds of the value, evaluating the kernel
function, and storing the value. The cost also includes an equal share of the kernel launches and of copying U.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm.arrays import Data
from clsvm.gram import partition
from clsvm.gram.layouts.panel import Launch, Panel, PanelPair
from clsvm.gram.partition import Partition
from clsvm.kernels import Kernel
from clsvm.kernels.records import Spec
from clsvm.opencl.profiles import Profile, shape_class
from clsvm.opencl.stream import Buffer, Stream

WHOLE = 8  # kernels that choose a working set read 8 rows at once, so rows are padded to a multiple of 8
WORKING = 512  # assumed number of right-hand rows U of a product K(X, U) if the caller gives none
WAIT = 4 / 3  # for few rows U, a CPU waits for memory: a multiply-add of K(X, U) then costs WAIT times as much
LAUNCHES = 20  # a kernel launch is estimated to cost 1 / LAUNCHES of profile.outer_cost, an outer iteration's overhead

Text = tuple[str, list[str]]  # OpenCL text of a program, and its -D options
Places = tuple[NDArray[np.int32], NDArray[np.int32]]  # the arrays Rows.order and Rows.position


@dataclass(frozen=True)
class Plan:
    """Say how training and test rows of a model are stored on a device.

    Attributes
    ----------
    kind
        name of the layout, which is the storage format of the rows.
    centre
        (d,) float64 vector that is subtracted from each row before the cast to the dtype of K. In sparse layouts, the
        vector is 0 in each column that contains a zero, because subtraction would make this zero a stored nonzero.
    reason
        text that lists the estimated costs by which the layout was chosen.
    partition
        the order of the columns and the number of columns that are stored densely; None for the caller's order.
    costs
        estimated cost of a kernel value, by layout name (:meth:`Layout.cost`). Empty for a plan from a model file.
    whole
        total cost of a kernel value, by layout name: the number in ``costs`` plus (cost of converting a row) / n. A fit
        of n rows computes about n kernel values with each converted row. layout="auto" chooses the lowest total cost.
    """

    kind: str
    centre: NDArray[np.float64]
    reason: str
    partition: Partition | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
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
        for one feature after another, the share of rows in which the feature is not 0. The shares are estimated from a
        sample of rows. Features that are 0 in the whole sample are left out.
    working
        expected number of right-hand rows U in a product K(X, U).
    binary
        whether all entries of all rows are known to be 0 or 1.
    """

    profile: Profile
    X: Data
    density: NDArray[np.float64]
    working: int
    binary: bool = False

    @property
    def n(self) -> int:
        return max(1, self.X.shape[0])

    @property
    def used(self) -> float:
        """Return the average number of nonzero features of a row."""
        return float(self.density.sum())

    def wait(self, times: float = WAIT) -> float:
        """Return the factor by which the multiply-adds of K(X, U) slow down: ``times`` for few rows U on a CPU, else 1.

        With few rows U, a CPU waits for the rows X from memory.
        """
        return times if self.profile.style == "simd" and shape_class(self.working) != "many" else 1.0

    @cached_property
    def fill(self) -> float:
        """Return the estimated number of columns in which a cluster of similar rows has nonzero entries.

        The layout "clustered" stores these columns for each row of the cluster.
        """
        return partition.sampled_fill(self.X, self.profile.lanes * self.profile.cluster)

    def overhead(self, values: float, launches: int) -> float:
        """Return the cost of a value of K(X, U), apart from the cost of its multiply-adds.

        values: cost of evaluating the kernel function and storing one value, in units of profile.value_cost.
        launches: number of kernel launches that compute K(X, U). Each value bears an equal share of the launch cost.
        """
        shared = launches * self.profile.outer_cost / LAUNCHES / (self.n * self.working)
        return values * self.profile.value_cost + shared

    def at_once(self, cells: float, values: float, launches: int) -> float:
        """Return the cost of a value of K(X, U) if multiply-adds overlap with evaluations of the kernel function.

        cells: cost of the multiply-adds of one value. The unit is the time of one multiply-add of dense rows.
        values: cost of evaluating the kernel function and storing one value, in units of profile.value_cost.
        launches: number of kernel launches that compute K(X, U). Each value bears an equal share of the launch cost.

        Let b = values * profile.value_cost. The overlap is assumed to lower the cost cells + b to sqrt(cells^2 + b^2).
        """
        return math.hypot(cells, values * self.profile.value_cost) + self.overhead(0.0, launches)


@dataclass(frozen=True)
class Rows:
    """Hold rows on the device, padded with zero rows to n_pad.

    Attributes
    ----------
    kind
        the name of the layout.
    dtype
        the dtype of the values.
    n
        number of rows.
    d
        number of features.
    n_pad
        number of rows with padding, a multiple of ``lanes``.
    lanes
        V, the number of rows that kernels compute side by side (a lane group).
    stored
        number of values that the layout stores, with padding.
    order
        (n_pad,) the index of the caller's row at each position on the device, -1 for padding.
    position
        (n,) the position on the device of each of the caller's rows.
    xx
        buffer of the rows' squared norms (n_pad,).
    cost
        cost of a value of K(X, U), in multiply-adds of dense rows. U are rows of X that were copied into a buffer.
    tile_cost
        cost of a value of K(U, U) in the same unit.
    layout_cost
        0 if the rows stay on the device. Otherwise, each product copies all rows to the device and converts them to the
        layout again. ``layout_cost`` is then the average cost for one row, in the same unit.
    words
        text that reports add to the description of the rows.
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
    layout_cost: float = field(default=0.0, kw_only=True)
    words: str = field(default="", kw_only=True)

    @property
    def length(self) -> int:
        """Return how many values a row of U takes in the buffer of the right-hand rows U of a product K(X, U)."""
        return self.d

    def buffers(self) -> tuple[Buffer, ...]:
        """Return all device buffers of the rows, so that the caller can free them."""
        return (self.xx,)

    def describe(self) -> str:
        text = f"{self.kind}, {self.stored / max(self.n, 1):.1f} stored entries a row of {self.d}, {self.lanes} lanes"
        return f"{text}, {self.words}" if self.words else text


class Reader(ABC):
    """Prepare products K(X, U) between rows X in one layout and right-hand rows U, for one kernel function K.

    A Reader copies the rows U into a panel, which is a device buffer. A panel is divided into blocks of equally many
    rows. The Reader then yields descriptions of the OpenCL kernel launches that compute K(X, U).

    Attributes
    ----------
    norms
        buffer with the squared norm |x|^2 of each row x of X. If X is in CSR and the kernel function has the form
        K(x, y) = f(sum_j e(x_j, y_j)) with functions e and f, the buffer has sum_j e(0, x_j) of each row x instead.
    width
        number of rows in a block of a panel for many rows U. A panel for few rows U may have smaller blocks.
    """

    def __init__(self, layout: Any, stream: Stream, rows: Any, kernel: Kernel) -> None:
        self.layout, self.stream, self.rows = layout, stream, rows
        self.real = np.dtype(rows.dtype)
        self.width = layout.width(stream.profile, rows.dtype, "many")
        self.norms = rows.xx

    def panel(self, capacity: int, square: bool = False) -> Panel:
        """Return an empty panel, a buffer for at least ``capacity`` rows U of products K(X, U).

        ``square`` says that products K(U, U) will be computed too.
        """
        shape = shape_class(max(3, capacity) if square else capacity)
        width = self.layout.width(self.stream.profile, self.rows.dtype, shape)
        capacity = -(-capacity // width) * width
        nbytes = self.values_bytes(capacity)
        with self.stream.tentative():
            values, uu = self.stream.buffer(nbytes), self.stream.buffer(capacity * self.real.itemsize)
        return Panel(capacity, width, values, uu, nbytes, shape)

    def panel_bytes(self, capacity: int) -> int:
        """Return the size in bytes of a panel for ``capacity`` rows U.

        A panel is the set of buffers for the right-hand rows U of a product K(X, U).
        """
        return self.values_bytes(capacity) + capacity * self.real.itemsize

    @abstractmethod
    def values_bytes(self, capacity: int) -> int:
        """Return the size in bytes of a buffer for the features of ``capacity`` right-hand rows U of K(X, U)."""

    def part(self, panel: Panel, first: int, capacity: int, count: Buffer) -> Panel:
        """Return a view of the rows first .. first + capacity - 1 of a panel.

        A panel is the set of buffers for the right-hand rows U of a product K(X, U). ``first`` and ``capacity`` are
        multiples of ``panel.width``. The buffer ``count`` holds how many rows of the view are in use. The other rows
        are padding. This base method selects only the rows' squared norms. Subclasses also select the rows.
        """
        uu = self.stream.part(panel.uu, first * self.real.itemsize, capacity * self.real.itemsize)
        return replace(panel, capacity=capacity, uu=uu)

    @abstractmethod
    def gather(self, panel: Panel, rows: Buffer, count: Buffer, fresh: bool = True) -> None:
        """Copy rows of X into a panel, the buffer of the right-hand rows U of a product K(X, U).

        Row u of the panel becomes the row of X at position rows[u], for u < count[0]. If rows[u] is -1, nothing is
        copied to row u. If ``fresh`` is true, the panel may lose all earlier contents. If it is false, rows to which
        nothing is copied keep theirs. If X is stored in CSR, the rows are only listed, because each product copies
        them. Raises ValueError if the panel is then too small for the entries of its rows.
        """

    @abstractmethod
    def over_rows(self, groups: range, panel: Panel, count: Buffer) -> Iterator[Launch]:
        """Yield the launches of a product K(X, U) over the lane groups ``groups`` of X.

        A lane group is V rows whose values are interleaved. ``panel`` holds the right-hand rows U, or one block of U at
        a time if X is in CSR. The buffer ``count`` holds the number of rows U. This generator may copy a new block of U
        to ``panel`` before it yields a launch, so the caller must enqueue each launch before it asks for the next one.
        """

    @abstractmethod
    def over_panel(self, groups: range, pair: PanelPair) -> Iterator[Launch]:
        """Yield the launches of a product K(R, U) between rows R of one panel and rows U of another.

        If ``pair.matrices`` is above 1, the launches compute several such products.

        groups: the lane groups of ``pair.panel`` that are the rows R. A lane group is V rows whose values are
            interleaved.
        pair: the two panels.
        """


class Layout(ABC):
    """Define one way to store rows on a device.

    Attributes
    ----------
    name
        the name in plans, reports and commands.
    reader
        the Reader class for rows of the layout.
    most
        the largest number of columns that rows may have.
    sparse
        whether zeros are left out. Subtracting a vector from the rows would then turn zeros into entries.
    in_order
        whether rows keep the caller's order. Only the layout "clustered" does not: it puts similar rows together. For
        this layout, :meth:`row_bytes` may exceed the true size of a row.
    shared
        whether the panel, the buffer of the right-hand rows U of K(X, U), holds all of U at once. Otherwise U is copied
        in blocks, and each block has a launch of its own.
    splits
        whether columns with few zeros are stored densely, apart from the sparse entries of the other columns.
    elementwise
        whether the layout allows kernel functions K(x, y) = f(sum_j e(x_j, y_j)).
    binary
        whether the entries of rows must be 0 or 1.
    plain
        the name of a simpler layout, or "" for none. The simpler layout takes less memory and less time to build, and
        replaces this layout for rows that are read only once. Layouts that have a simpler layout compute a weighted sum
        of kernel values in two steps: a first kernel stores the kernel values, and a second kernel adds them up.

    clsvm/tools/emit.py prints these attributes in the headers of C programs:

        rows_words: lines that say how rows lie in memory.
        panel_words: lines that say how the right-hand rows U of a product K(X, U) lie in memory.
        arguments: the meaning of the kernel arguments that differ between layouts.

    Predictions take support vectors in multiples of 64. Therefore 64 must be a multiple of :meth:`width`, the number of
    right-hand rows in a block, and of V, the number of rows whose values stand interleaved.
    """

    name: str
    reader: type[Any]
    most: int = 2**31 - 1
    sparse: bool
    shared: bool
    in_order: bool = True
    splits: bool = False
    elementwise: bool = True
    binary: bool = False
    plain: str = ""
    rows_words: tuple[str, ...] = ()
    panel_words: tuple[str, ...]
    arguments: Mapping[str, str]

    def suits(self, profile: Profile) -> bool:
        """Return whether the layout has its own kernels for the profile's kind of device."""
        return True

    @abstractmethod
    def cost(self, survey: Survey) -> float | None:
        """Return the estimated cost of computing one value of K; None if layout="auto" must not choose this layout.

        The unit is the time of one multiply-add in a product of dense rows.
        """

    def setup_cost(self, survey: Survey) -> float:
        """Return the cost of converting a row to the layout, without the cost of copying the row to the device.

        The unit is the time of one multiply-add in a product of dense rows.
        """
        return 0.0

    def partition(self, profile: Profile, X: Data) -> Partition | None:
        """Return the order of the columns of X (n, d), and how many of the first columns are stored densely.

        Return None if the layout keeps the caller's order.
        """
        return None

    @abstractmethod
    def row_bytes(self, plan: Plan, X: Data, itemsize: int) -> int:
        """Return the approximate size in bytes of a row of X in the layout, from which memory needs are estimated."""

    def block_bytes(self, plan: Plan, X: Data, itemsize: int, width: int) -> int:
        """Return the part of a panel's size in bytes that is the same for any number of rows U.

        A panel is a set of device buffers for the right-hand rows U of a product K(X, U). A panel is divided into
        blocks of ``width`` rows. The size of a panel is this part plus :meth:`row_bytes` for each row of U.
        """
        return 0

    @abstractmethod
    def build(self, stream: Stream, X: Data, plan: Plan, dtype: str) -> Rows:
        """Subtract the vector ``plan.centre`` from the rows X (n, d), and store them on the device in this layout."""

    @abstractmethod
    def width(self, profile: Profile, dtype: str, shape: str) -> int:
        """Return the number of rows in a block of a panel.

        A panel is a device buffer for the right-hand rows U of a product K(X, U), divided into blocks of equally many
        rows. ``shape`` is the size class of U: "two", "few" or "many" rows (profiles.shape_class).
        """

    @abstractmethod
    def program(self, spec: Spec, profile: Profile, dtype: str, shape: str, of_panel: bool, d: int = 0) -> Text:
        """Return the text and the -D options of an OpenCL kernel, named gram, that computes K(X, U).

        X are rows of d features in this layout. If ``of_panel`` is true, the kernel computes K(R, U) instead, for rows
        R and U that are selected from X. R and U may be the same rows. ``spec`` describes the kernel function K.
        ``shape`` is the size class of U: "two", "few" or "many" rows (profiles.shape_class).

        A lane group is V rows of X, which are computed side by side. The OpenCL kernel has these parameters, in order:

        - the index of the first lane group, and the number of lane groups;
        - the number of the row of X whose kernel values have index 0 in the output;
        - the numbers and buffers in Launch.arguments;
        - the parameters that the macros STORE_PARAMETERS, UPDATE_PARAMETERS and KERNEL_PARAMETERS define.

        The caller adds -D options that define further macros, which the text reads:

        - V; UB, the number of rows in a block of U (:meth:`width`); and INDEX, the type of a column number;
        - STORE to store the values of K; UPDATE to add their weighted sums to an array (programs.PRODUCTS);
        - SECTIONS to add up the values of K separately over several ranges of the rows U, and MATRICES to compute
          several products. A kernel that supports either must begin its body with the macro SECTION.
        """

    def forward_back(self, spec: Spec, profile: Profile, dtype: str, d: int) -> Text | None:
        """Return the OpenCL text and -D options of the kernel forward_back, or None if the layout has no such kernel.

        The kernel computes K' H K v and reads the rows X only once. K is K(X, U), and K' is the transpose of K. v has
        one column of coefficients for each output, so K v has one number for each row of X and each output. For each
        row i of X, H multiplies row i of K v by a symmetric matrix H_i (outputs, outputs). H_i may be diagonal.
        """
        return None

    @abstractmethod
    def items(self, numbers: Mapping[str, int]) -> int:
        """Return the number of work-items in a work-group. ``numbers`` are the kernel's -D options by name."""

    def grid(self, numbers: Mapping[str, int], groups: int, blocks: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the global and local size of a launch that computes K(X, U) on a GPU.

        X consists of ``groups`` lane groups, each of V rows whose values stand interleaved. The right-hand rows U are
        stored in blocks, whose number is ``blocks``. ``numbers`` holds the kernel's -D options by name.
        """
        items = self.items(numbers)
        shared = -(-blocks // numbers.get("BLOCKS", 1))
        return (-(-groups // numbers.get("GROUPS", 1)) * items, shared), (items, 1)

    def size(self, stream: Stream, numbers: Mapping[str, int], of_panel: bool, groups: int, cells: float) -> int:
        """Return the number of work-items of a launch on a CPU.

        The launch computes K(X, U) for ``groups`` lane groups of X. A lane group is V rows whose values stand
        interleaved. The kernel values between one lane group and all rows U take the time of ``cells`` multiply-adds.
        ``numbers`` holds the kernel's -D options by name. If ``of_panel`` is true, the launch computes K(U, U) in place
        of K(X, U), and its lane groups are lane groups of U.
        """
        return -(-groups // numbers.get("GROUPS", 1))


def lanes(profile: Profile, dtype: str) -> int:
    """Return V, the number of rows that kernels compute side by side.

    For kernels in SIMD style (on CPUs), V is half as large for float64 as for float32.
    """
    return profile.lanes // 2 if dtype == "float64" and profile.style == "simd" else profile.lanes


def options(profile: Profile, dtype: str, d: int = 0) -> list[str]:
    """Return the -D options that all programs over rows of ``dtype`` with ``d`` features share."""
    made = [f"-DV={lanes(profile, dtype)}", f"-DINDEX={'ushort' if d <= 1 << 16 else 'int'}"]
    made += ["-DSIMD"] * (profile.style == "simd") + ["-DREAL64"] * (dtype == "float64")
    return made + ["-DWIDE_PAIR"] * (profile.wide == "pair")


def packing(profile: Profile, source: DTypeLike, d: int, dtype: str) -> list[str]:
    """Return the -D options of kernels that read the caller's rows, of dtype ``source`` and with d features."""
    return [*options(profile, dtype, d), f"-DINPUT={'float' if np.dtype(source) == np.float32 else 'double'}"]


def padded(n: int, unit: int) -> int:
    """Round the number n of rows up to a multiple of both ``unit`` and WHOLE."""
    unit = math.lcm(unit, WHOLE)
    return -(-n // unit) * unit


def in_order(n: int, n_pad: int) -> Places:
    """Return the arrays Rows.order and Rows.position of n rows in the caller's order, padded to n_pad rows.

    The first array has the row number at each position, -1 for padding, and the second has each row's position.
    """
    at = np.arange(n_pad, dtype=np.int32)
    return np.where(at < n, at, np.int32(-1)), at[:n].copy()


def check_norms(norms: NDArray[Any], rows: Rows) -> None:
    """Raise ValueError if the squared norm of a row is not finite, since its kernel values cannot be computed."""
    if np.isnan(norms).any():
        raise ValueError("X must have no missing or infinite values, got a row whose squared norm is NaN")
    if not np.isfinite(norms).all():
        raise ValueError(norm_too_large(rows.dtype))


def norm_too_large(dtype: str) -> str:
    """Return the message for a row whose squared norm is not finite in ``dtype``."""
    advice = " or take dtype='float64'" * (dtype == "float32")
    return f"the squared norm of a row is too large for {dtype}: scale X{advice}"
