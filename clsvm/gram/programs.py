"""Choose the text and the -D options of each OpenCL program that computes products with the kernel matrix K.

K(U, X) is the kernel matrix between selected rows U and rows X. A panel is the buffer that holds the rows U. A second
panel may hold other selected rows R. A layout is a way to store the rows X, such as "dense". D holds a weight for each
row of U. D K(U, X) has a number for each row of X: the weighted sum of the row's kernel values with all rows of U. The
numbers are added to an array c. Each product defines macros by -D options:

    rows: store K(U, X). Macro STORE.
    update: add D K(U, X) to c. Macro UPDATE. In the layout "inverted", kernel values must be stored before they are
        added. So this layout uses the program of the product "both" instead.
    both: store K(U, X), and add D K(U, X) to c. Macros STORE, UPDATE.
    tile: store K(U, U), or K(R, U). One launch may compute several such matrices. Macros STORE, MATRICES.
    symmetric tile: store about half of the symmetric K(U, U). Macros STORE, SYMMETRIC, MATRICES. Only CPUs use
        this product.
    tile update: add D K(R, U) to c. D has a weight for each row of R, c a sum for each row of U. One launch
        may do this for several matrices K(R, U). Macros UPDATE, MATRICES.
    sections: add D K(U, X) to several arrays c. Each array has the sums over one section, which is a range of the rows
        U. Macros UPDATE, SECTIONS. Only the layout "dense" has this product.

A :class:`Variant` is a program text with its -D options. The library runs variants. Tools write variants to files for C
programs, and compile them for other devices.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from clsvm.gram import layouts
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Rows, options
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import ALIGNMENT


class Product(NamedTuple):
    """Describe a kind of product with a kernel matrix K, for which OpenCL programs exist (PRODUCTS).

    K(X, U) is the kernel matrix between rows X and selected rows U, which are called right-hand rows. A panel is the
    buffer that holds the right-hand rows. A second panel may hold other selected rows R.

    Attributes
    ----------
    options
        -D options of the product's programs.
    tile
        True if the product computes K(U, U) or K(R, U), whose rows are all in panels. False if it computes K(X, U).
    simd
        whether only CPUs use the product. OpenCL kernels for CPUs are in SIMD style.
    layout
        the only layout that has the product, or None if all layouts have it.
    without
        the numbers of right-hand rows U for which the product has no program, as words: "two" stands for at most 2
        rows, "few" for 3 to 16 rows, and "many" for more.
    single
        True if an OpenCL kernel on a CPU computes the values of one lane group of X at a time. False if the OpenCL
        kernel may compute several lane groups at a time. A lane group is V rows of X, whose values are stored
        interleaved.
    """

    options: tuple[str, ...]
    tile: bool = False
    simd: bool = False
    layout: str | None = None
    without: tuple[str, ...] = ()
    single: bool = False


SLABS = 8  # largest number of buffers ("slabs") that hold rows of K
# A buffer may describe several ranges of the rows U of a product K(X, U), or the sizes of several matrices. The
# description of range or matrix s begins at int SECTION * s.
SECTION = ALIGNMENT // 4
_SECTIONS, _MATRICES = ("-DUPDATE", f"-DSECTIONS={SECTION}"), f"-DMATRICES={SECTION}"

PRODUCTS = {
    "rows": Product(("-DSTORE",)),
    "rows, near": Product(("-DSTORE", "-DNEAR"), simd=True),
    "rows, slabs": Product(("-DSTORE", f"-DSLABS={SLABS}")),
    "update": Product(("-DUPDATE",)),
    "both": Product(("-DSTORE", "-DUPDATE")),
    "both, slabs": Product(("-DSTORE", "-DUPDATE", f"-DSLABS={SLABS}")),
    "tile": Product(("-DSTORE", "-DNEAR", _MATRICES), tile=True, without=("two",)),
    "symmetric tile": Product(
        ("-DSTORE", "-DNEAR", "-DSYMMETRIC=1", _MATRICES), tile=True, simd=True, without=("two",)
    ),
    "tile update": Product(("-DUPDATE", _MATRICES), tile=True, without=("two",)),
    "sections": Product(_SECTIONS, layout=DENSE.name, without=("two", "few")),
    "sections, one group": Product(_SECTIONS, simd=True, layout=DENSE.name, without=("two", "few"), single=True),
}


def gram(spec: Spec, product: str, kind: str, dtype: str, profile: Profile, d: int = 0, shape: str = "many") -> Variant:
    """Return the program of a product (see PRODUCTS) for a kernel function, a layout ``kind`` and a dtype.

    ``spec`` describes the kernel function. ``shape`` is a word for the number of rows U in K(X, U): "two" for at most 2
    rows, "few" for 3 to 16 rows, and "many" for more. Raises ValueError if the kernel function does not support the
    layout.
    """
    if kind not in layouts.names(spec):
        allowed = ", ".join(layouts.names(spec))
        raise ValueError(f"kernel function {spec.name or spec.formula} supports only layouts {allowed}, got {kind!r}")
    layout = layouts.LAYOUTS[kind]
    made = PRODUCTS["both" if product == "update" and layout.plain else product]
    if made.single:
        profile = replace(profile, tiles={**profile.tiles, shape: DENSE.single(profile, dtype, shape)})
    text, extra = layout.program(spec, profile, dtype, shape, made.tile, d)
    shared = *options(profile, dtype, d), f"-DUB={layout.width(profile, dtype, shape)}"
    label = f"{spec.name or 'expression'} {product} {kind} {dtype} {shape}"
    return Variant(label, text, (*shared, *made.options, *extra), "gram")


def update_range(profile: Profile, n: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the global and local size of a launch of the kernel update, over n rows (:func:`stored`)."""
    pieces = -(-n // profile.block)
    return ((pieces,), None) if profile.style == "simd" else ((pieces * profile.group,), (profile.group,))


SIDE = 16  # the kernel mirror_rows (stored.cl) copies 16 x 16 values of K at a time
COPIED = 2.0  # cost of copying a value K[u][v] to K[v][u], as a multiple of the profile's cache_cost
# To gather one value of K, a device reads up to CACHE_LINE values, each at the cost GATHERED * Profile.cache_cost.
GATHERED, CACHE_LINE = 0.45, 16


def gather_cost(profile: Profile, n: int, W: int) -> float:
    """Return the cost of gathering one value from a stored kernel matrix K, whose rows have n values each.

    W values are gathered from each row. For each of the W values, a device reads a cache line of 16 values. But the
    device never reads more than all n values of a row. So it reads min(16, n / W) values for each gathered value. The
    cost of reading one value is GATHERED * profile.cache_cost. The unit of a cost is the time of one multiply-add in a
    product of dense rows.
    """
    return GATHERED * min(CACHE_LINE, n / W) * profile.cache_cost


def stored(profile: Profile, dtype: str) -> Variant:
    """Return the program that copies, adds and multiplies values of a stored kernel matrix K.

    The program has the OpenCL kernels update, gather_tile, mirror_rows and add_between. The kernel update adds D K to
    the gradients of the dual problem, for weights D.
    """
    made = *options(profile, dtype), f"-DSLABS={SLABS}", f"-DBLOCK={profile.block}", _MATRICES
    grouped = [f"-DWG={profile.group}"] * (profile.style == "workgroup")
    return Variant(f"stored {dtype}", sources.cl("gram/update", "gram/stored"), (*made, *grouped), "update")


class RowSource(NamedTuple):
    """Hold OpenCL text, with its -D options, that makes a row of a subproblem's kernel matrix when the row is needed.

    Programs that solve subproblems on CPUs include the text.
    """

    name: str
    text: str
    options: tuple[str, ...] = ()


def computed_rows(spec: Spec) -> RowSource:
    """Return OpenCL text that computes rows of the kernel matrix of a small dual problem.

    A buffer holds the features of the dual problem's training rows, from which the kernel values are computed.
    """
    return RowSource(spec.name or "expression", sources.render("gram/row_simd", kernel=spec))


def stored_rows() -> RowSource:
    """Return OpenCL text that copies rows of the kernel matrix of a small dual problem from a stored matrix.

    The stored matrix holds the kernel values among all training rows of the fit.
    """
    return RowSource("stored", sources.cl("gram/row_stored"), (f"-DSLABS={SLABS}",))


BLOCK = 32  # a work-item of the kernel forward_back takes BLOCK lane groups, each of V rows of X
RUN = 128  # number of terms summed in the dtype of K, before the sum is added to a double or a pair of floats


def forward_back(spec: Spec, kind: str, dtype: str, profile: Profile, d: int = 0, sub: int = 4) -> Variant | None:
    """Return the program that computes K' H K B in one pass over the rows of K, for a matrix B of k columns.

    K is the kernel matrix between rows X, of ``d`` features each, and some other rows U. K' is the transpose of K. H
    multiplies each row of K B by a k x k matrix that belongs to the row.

    The device stores the rows X in groups of V rows, with interleaved values. A work-item processes BLOCK = 32 groups,
    one after another. It holds the kernel values of ``sub`` groups at a time in scratch memory. BLOCK must be a
    multiple of ``sub``.

    ``kind`` is the layout, the storage format of X on the device. Return None if there is no program for this layout
    and this kind of device.
    """
    layout = layouts.LAYOUTS[kind]
    made = layout.forward_back(spec, profile, dtype, d)
    if made is None:
        return None
    shared = *options(profile, dtype, d), f"-DUB={layout.width(profile, dtype, 'many')}"
    extra = f"-DBLOCK={BLOCK}", f"-DSUB={sub}", f"-DRUN={RUN}", *made[1]
    label = f"{spec.name or 'expression'} forward_back {kind} {dtype}"
    return Variant(label, made[0], (*shared, *extra), "forward_back")


ROWS_EACH, FORTH, LINE = (
    4,  # ROWS_EACH: a CPU's work-item or GPU's work-group sums weight[x] * K(x, u) over x for ROWS_EACH rows u
    4,  # FORTH: a CPU's work-item sums weight[u] * K(x, u) over u for FORTH * V rows x. An OpenCL vector holds V sums.
    16,  # LINE: a GPU's work-group sums weight[u] * K(x, u) over u for LINE rows x
)


def back(profile: Profile, dtype: str, exact: bool = False) -> Variant:
    """Return the program that computes K V and K' R from stored rows of K, for matrices V and R.

    K' is the transpose of K. With ``exact``, all sums are doubles, or pairs of floats on devices without doubles.
    """
    extra = f"-DROWS_EACH={ROWS_EACH}", f"-DFORTH={FORTH}", f"-DLINE={LINE}", f"-DRUN={RUN}", *["-DEXACT"] * exact
    made = *options(profile, dtype), f"-DWG={profile.group}", *extra
    return Variant(f"back {dtype}{' exact' * exact}", sources.cl("gram/back"), made, "back")


@dataclass(frozen=True)
class Units:
    """Describe the matrix units (tensor cores) of a kind of device, and the tiles of K that they compute.

    Matrix units compute inner products of dense rows. K(X, U) is the kernel matrix between rows X and right-hand rows
    U. Matrix units compute K(X, U) only if U has many rows. A tile is the block of K(X, U) that a work-group computes.
    A lane group is V rows of X, whose values are stored interleaved. The device determines V. A warp is the work-items
    that run one instruction together. A fragment is a small matrix that a warp multiplies by one instruction. All
    matrix units share the templates gram/*_matrix_workgroup.mako.

    Attributes
    ----------
    name
        the name in reports.
    text
        name of the file cl_kernels/<text>.cl, which defines the operations on fragments.
    platform
        a word in the names of the OpenCL platforms that may have these matrix units.
    warp
        number of work-items in a warp.
    fragment
        number of rows of X in a fragment.
    sharing
        number of work-items of a warp that hold sums for the same row of X in a fragment.
    groups
        number of lane groups in a tile.
    blocks
        number of blocks of V right-hand rows in a tile.
    depth
        number of features of each row that are copied to local memory at a time.
    rows
        number of rows of X in a tile for which one warp computes kernel values.
    vectors
        number of right-hand rows in a tile for which one warp computes kernel values.
    least
        smallest number of features for which matrix units are used. For fewer, ordinary arithmetic is faster.
    error
        rounding error of an inner product <x, y>, as a multiple of the product |x| |y| of the norms. The library uses
        the same multiple for any number of features. The method "tf32 x 3" (gram/mma.cl) multiplies two numbers with a
        relative error of at most 2^-21. NVIDIA's matrix units add an error of about 2^-21, because they truncate each
        sum of eight products. AMD's matrix units round like ordinary float32 arithmetic.
    options
        additional options of the OpenCL compiler.
    unroll
        the pragma before loops over fragments.
    """

    name: str
    text: str
    platform: str
    warp: int
    fragment: int
    sharing: int
    groups: int
    blocks: int
    depth: int
    rows: int
    vectors: int
    least: int
    error: float
    options: tuple[str, ...] = ()
    unroll: str = "#pragma unroll"

    def items(self, lanes: int) -> int:
        """Return the number of work-items in a work-group that computes a block of the kernel matrix K(X, U).

        ``lanes`` is a number V that the device determines: V rows are stored together, with interleaved values. A
        work-group computes the kernel values between ``self.groups`` * V rows of X and ``self.blocks`` * V rows of U. A
        warp is the work-items that run one instruction together. Each warp of the work-group computes the kernel values
        between a number ``self.rows`` of these rows of X and a number ``self.vectors`` of these rows of U. So the
        work-group has (``self.groups`` * V / ``self.rows``) * (``self.blocks`` * V / ``self.vectors``) warps, each of
        ``self.warp`` work-items.
        """
        return self.warp * (self.groups * lanes // self.rows) * (self.blocks * lanes // self.vectors)

    def together(self, lanes: int) -> int:
        """Return the number of fragments of a warp whose partial sums fit in local memory at a time.

        A warp is the work-items that run one instruction together. A fragment is a small matrix that a warp multiplies
        by one instruction. For each row of a fragment, several work-items hold partial sums of weighted kernel values.
        The work-items write the partial sums to local memory, where the partial sums are added. Earlier in the same
        OpenCL kernel, this local memory holds features of the rows, and its size is chosen for the features. If the
        local memory is too small for the partial sums of all fragments of each warp, the fragments are summed in
        several passes. The result is the number of fragments of each warp in one pass.

        ``lanes`` is V, the number of rows whose values are stored interleaved.
        """
        staged = 32 * self.depth * ((self.groups + self.blocks) * lanes // 4 + 4)
        across, each = self.blocks * lanes // self.vectors, self.groups * lanes // self.rows * self.fragment
        number = self.rows // self.fragment
        while number > 1 and 8 * across * self.sharing * (number * each + 4) > staged:
            number //= 2
        return number

    def why_not(self, spec: Spec, rows: Rows, profile: Profile) -> str:
        """Return the reason why the matrix units cannot compute kernel values of ``rows``, or "" if they can."""
        if spec.element:
            return "the kernel function is no function of inner products"
        if rows.kind != DENSE.name or rows.dtype != "float32":
            return f"rows are {rows.kind}, {rows.dtype}"
        if rows.d < self.least:
            return f"{self.name} is faster only for rows of at least {self.least} features, got {rows.d}"
        V = rows.lanes
        whole = V * self.groups % self.rows == V * self.blocks % self.vectors == 0
        return "" if whole and "wide" in profile.tiles else f"the profile {profile.name} has no tile for {self.name}"

    def gram(self, spec: Spec, product: str, profile: Profile, d: int = 0) -> Variant:
        """Return the program that computes a product (see PRODUCTS) over dense float32 rows by the matrix units."""
        template = sources.render("gram/gram_matrix_workgroup", kernel=spec, units=self.name, unroll=self.unroll)
        text, V = "\n".join((sources.cl(self.text), template.removeprefix(sources.cl()))), profile.lanes
        numbers = {
            "UB": V, "GROUPS": self.groups, "BLOCKS": self.blocks, "DEPTH": self.depth, "WARP_ROWS": self.rows,
            "WARP_VECTORS": self.vectors, "TOGETHER": self.together(V), "ITEMS": self.items(V),
        }  # fmt: skip
        extra = *PRODUCTS[product].options, *(f"-D{name}={n}" for name, n in numbers.items()), *self.options
        label = f"{spec.name or 'expression'} {product} dense float32 {self.name}"
        return Variant(label, text, (*options(profile, "float32", d), *extra), "gram")

    def norms(self, profile: Profile) -> Variant:
        """Return the program that computes squared norms of dense rows by the matrix units (tensor cores).

        The squared norm of a row x is bitwise equal to the inner product <x, x> that the matrix units compute in a
        kernel matrix.
        """
        made = (*options(profile, "float32"), f"-DITEMS={self.warp}", *self.options)
        return Variant(f"norms {self.name}", sources.cl(self.text, "gram/matrix_norms"), made, "norms")

    def norms_range(self, rows: int) -> tuple[tuple[int], tuple[int]]:
        """Return the global and local size of a launch of the program that :meth:`norms` returns.

        The program computes the squared norms of rows. The device stores rows in groups of V rows, and interleaves the
        values of the rows of a group. ``rows`` is the number of rows, a multiple of V.
        """
        return (rows // self.fragment * self.warp,), (self.warp,)


UNITS: tuple[Units, ...] = (
    Units(
        name="tf32 x 3", text="gram/mma", platform="NVIDIA", warp=32, fragment=8, sharing=8, groups=2, blocks=2,
        depth=16, rows=32, vectors=64, least=256, error=2.0**-20,
    ),
    Units(
        name="mfma float32", text="gram/mfma", platform="AMD", warp=64, fragment=32, sharing=32, groups=2, blocks=2,
        depth=16, rows=64, vectors=64, least=256, error=2.0**-23,
    ),
)  # fmt: skip
