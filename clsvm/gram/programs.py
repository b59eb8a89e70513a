"""The programs that a kernel function becomes: one for each product, layout, dtype and device profile.

    rows     K(X, U) stored                         STORE
    update   c += K(X, U) D, nothing stored         UPDATE (both, where a layout makes values in a store)
    both     the two in one pass                    STORE, UPDATE
    tile     K(U, U) of the working vectors         STORE, over the panel or the listed rows
    half tile   without what mirrors other values   STORE, HALF   (the vector shape: it counts where cores are few)
    tile update  c += K(U, U') D                    UPDATE, over the panel or the listed rows
    sections     an update for each part of a panel UPDATE, SECTIONS   (of dense lane groups, or of one)

A variant is a text and its -D options, so the same thing is run here, written for a C host and cross-compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Rows, options
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.opencl.stream import APART


class Product(NamedTuple):
    """-D options of a product; tile: whether its rows are the working vectors themselves; vector: whether it is the
    vector shape's alone; layout: the only one that has it; without: shape classes of working vectors that it never
    meets; single: whether register tiles hold one lane group, where the vector shape's hold several."""

    options: tuple[str, ...]
    tile: bool = False
    vector: bool = False
    layout: str | None = None
    without: tuple[str, ...] = ()
    single: bool = False


SLABS = 8  # buffers that hold rows of K
SECTION = APART // 4  # ints from the numbers of a section to those of the next, as parts.together has them
_SECTIONS = "-DUPDATE", f"-DSECTIONS={SECTION}"

PRODUCTS = {
    "rows": Product(("-DSTORE",)),
    "rows, near": Product(("-DSTORE", "-DNEAR"), vector=True),
    "rows, slabs": Product(("-DSTORE", f"-DSLABS={SLABS}")),
    "update": Product(("-DUPDATE",)),
    "both": Product(("-DSTORE", "-DUPDATE")),
    "both, slabs": Product(("-DSTORE", "-DUPDATE", f"-DSLABS={SLABS}")),
    "tile": Product(("-DSTORE", "-DNEAR"), tile=True, without=("two",)),
    "half tile": Product(("-DSTORE", "-DNEAR", "-DHALF"), tile=True, vector=True, without=("two",)),
    "tile update": Product(("-DUPDATE",), tile=True, without=("two",)),
    "sections": Product(_SECTIONS, layout=DENSE.name, without=("two", "few")),
    "sections, one group": Product(_SECTIONS, vector=True, layout=DENSE.name, without=("two", "few"), single=True),
}


def gram(spec: Spec, product: str, kind: str, dtype: str, profile: Profile, d: int = 0, shape: str = "many") -> Variant:
    """Return the gram program of a kernel function for a shape class of working vectors (profiles.shape_class).

    Raises ValueError for a layout that the kernel function or the product does not have, and for a shape class that the
    product never meets: a tile's panel is a set of rows in whole lane groups.
    """
    if kind not in layouts.names(spec):
        known = ", ".join(layouts.names(spec))
        raise ValueError(f"kernel {spec.name or spec.formula} has the layouts {known}, got {kind!r}")
    layout = LAYOUTS[kind]
    made = PRODUCTS["both" if product == "update" and layout.plain else product]
    if made.layout not in (None, kind):
        raise ValueError(f"product {product!r} has the layout {made.layout}, got {kind!r}")
    if shape in made.without:
        raise ValueError(f"product {product!r} is of panels for more working vectors, got shape {shape!r}")
    if made.single:
        profile = replace(profile, tiles={**profile.tiles, shape: DENSE.single(profile, dtype, shape)})
    text, own = layout.program(spec, profile, dtype, shape, made.tile, d)
    shared = *options(profile, dtype, d), f"-DUB={layout.width(profile, dtype, shape)}"
    label = f"{spec.name or 'expression'} {product} {kind} {dtype} {shape}"
    return Variant(label, text, (*shared, *made.options, *own), "gram")


def update(profile: Profile, dtype: str) -> Variant:
    """Return the program of f += K D from rows of the row cache."""
    made = *options(profile, dtype), f"-DSLABS={SLABS}", f"-DBLOCK={profile.block}"
    grouped = [f"-DWG={profile.group}"] * (profile.shape == "group")
    return Variant(f"update {dtype}", sources.cl("gram/update"), (*made, *grouped), "update")


def update_range(profile: Profile, n: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return its range and work-group over n rows."""
    pieces = -(-n // profile.block)
    return ((pieces,), None) if profile.shape == "vector" else ((pieces * profile.group,), (profile.group,))


SIDE = 16  # of the squares of given.cl, reflect
COPIED = 2.0  # times the profile's cache_cost, that a value takes which is a mirror image
PICKED, LINE = 0.45, 16  # of it, for each value that is read for one that is picked; of a line of the cache


def picked_cost(profile: Profile, n: int, W: int) -> float:
    """Return the cost of a value that is picked, in dense cells, one of W from each of some stored rows of n: a line of
    the cache is read for it, or its share of the row."""
    return PICKED * min(LINE, n / W) * profile.cache_cost


def given(profile: Profile, dtype: str) -> Variant:
    """Return the program of products with stored rows of a kernel matrix; ``entry`` is the first of its kernels."""
    made = *options(profile, dtype), f"-DSLABS={SLABS}"
    return Variant(f"given {dtype}", sources.cl("gram/given"), made, "pick")


class RowSource(NamedTuple):
    """Program text by which a subproblem on a CPU gets the rows of its tile that it needs, its options, and a name."""

    name: str
    text: str
    options: tuple[str, ...] = ()


def made_rows(spec: Spec) -> RowSource:
    """Return the text that makes rows from the vectors of a panel."""
    return RowSource(spec.name or "expression", sources.render("gram/row_vector", kernel=spec))


def picked_rows() -> RowSource:
    """Return the text that takes rows from a stored kernel matrix."""
    return RowSource("given", sources.cl("gram/row_given"), (f"-DSLABS={SLABS}",))


BLOCK = 32  # of forward_back: lane groups of a work-item
RUN = 128  # terms of a sum that is in the dtype of K


def forward_back(spec: Spec, kind: str, dtype: str, profile: Profile, d: int = 0, sub: int = 4) -> Variant | None:
    """Return the program of forward and back in one pass over rows, by work-items that have K of ``sub`` lane groups in
    scratch at a time, a divisor of BLOCK. None where a layout and profile have no such program."""
    layout = LAYOUTS[kind]
    made = layout.forward_back(spec, profile, dtype, d)
    if made is None:
        return None
    shared = *options(profile, dtype, d), f"-DUB={layout.width(profile, dtype, 'many')}"
    own = f"-DBLOCK={BLOCK}", f"-DSUB={sub}", f"-DRUN={RUN}", *made[1]
    return Variant(f"{spec.name or 'expression'} forward_back {kind} {dtype}", made[0], (*shared, *own), "forward_back")


# Of back.cl: working vectors that an item takes at a time on the way back, which divides every panel's capacity,
# vectors of rows on the way forth, and rows of a work-group, which divides every lane group.
OWN, FORTH, LINE = 4, 4, 16


def back(profile: Profile, dtype: str, exact: bool = False) -> Variant:
    """Return the program of forward and back over stored tiles; ``entry`` is one of its kernels. exact: all sums are
    wide."""
    own = f"-DOWN={OWN}", f"-DFORTH={FORTH}", f"-DLINE={LINE}", f"-DRUN={RUN}", *["-DEXACT"] * exact
    made = *options(profile, dtype), f"-DWG={profile.group}", *own
    return Variant(f"back {dtype}{' exact' * exact}", sources.cl("gram/back"), made, "back")


@dataclass(frozen=True)
class Units:
    """Matrix units of a kind of device, and how they are used: instructions that multiply small matrices, behind the
    inner products of wide tiles of dense rows. Templates gram/*_matrix_group.mako hold all that is not theirs.

    name: what reports call them. text: cl_kernels/<text>.cl, their fragments and splits. platform: a word of the OpenCL
    platform that can have them. warp, fragment, sharing: items that hold a fragment together, rows of one, items that
    have sums of the same row. groups, blocks, depth: lane groups and panel blocks of a tile, features that are staged
    at a time. rows, vectors: of a tile, those of a warp. least: features from which on values are stored sooner by
    them. error: of an inner product, its rounding over the norms that it is of, as clsvm.kernels.Kernel.rounding's eps.
    options: more of the build's. unroll: what stands before loops over fragments.
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
        """Return the work-items of a work-group, for lane groups and panel blocks of so many lanes."""
        return self.warp * (self.groups * lanes // self.rows) * (self.blocks * lanes // self.vectors)

    def together(self, lanes: int) -> int:
        """Return how many fragments of a warp's rows have their sums for an update in local memory at a time, in place
        of features."""
        staged = 32 * self.depth * ((self.groups + self.blocks) * lanes // 4 + 4)
        across, each = self.blocks * lanes // self.vectors, self.groups * lanes // self.rows * self.fragment
        number = self.rows // self.fragment
        while number > 1 and 8 * across * self.sharing * (number * each + 4) > staged:
            number //= 2
        return number

    def why_not(self, spec: Spec, rows: Rows, profile: Profile) -> str:
        """Say why these rows' values of a kernel function are not made by them; "" where they are."""
        if spec.element:
            return "the kernel function is no function of inner products"
        if rows.kind != DENSE.name or rows.dtype != "float32":
            return f"rows are {rows.kind}, {rows.dtype}"
        if rows.d < self.least:
            return f"of {rows.d} features values are stored no sooner by {self.name}, {self.least} are the least"
        V = rows.lanes
        whole = V * self.groups % self.rows == V * self.blocks % self.vectors == 0
        return "" if whole and "wide" in profile.tiles else f"the profile {profile.name} has no such tile"

    def gram(self, spec: Spec, product: str, profile: Profile, d: int = 0) -> Variant:
        """Return the gram program of a kernel function over dense rows in float32, for one of PRODUCTS over all
        rows."""
        template = sources.render("gram/gram_matrix_group", kernel=spec, units=self.name, unroll=self.unroll)
        text, V = "\n".join((sources.cl(self.text), template.removeprefix(sources.cl()))), profile.lanes
        numbers = {
            "UB": V, "GROUPS": self.groups, "BLOCKS": self.blocks, "DEPTH": self.depth, "WARP_ROWS": self.rows,
            "WARP_VECTORS": self.vectors, "TOGETHER": self.together(V), "ITEMS": self.items(V),
        }  # fmt: skip
        own = *PRODUCTS[product].options, *(f"-D{name}={n}" for name, n in numbers.items()), *self.options
        label = f"{spec.name or 'expression'} {product} dense float32 {self.name}"
        return Variant(label, text, (*options(profile, "float32", d), *own), "gram")

    def norms(self, profile: Profile) -> Variant:
        """Return the program of squared norms of rows in dense lane groups, to the bits of those programs."""
        made = (*options(profile, "float32"), f"-DITEMS={self.warp}", *self.options)
        return Variant(f"norms {self.name}", sources.cl(self.text, "gram/matrix_norms"), made, "norms")

    def norms_range(self, rows: int) -> tuple[tuple[int], tuple[int]]:
        """Return its range and work-group over so many rows, whole lane groups."""
        return (rows // self.fragment * self.warp,), (self.warp,)


# Errors. tf32 x 3: what is left out of a product and its splits, 2^-21 of it at most (cl_kernels/gram/mma.cl), and as
# much for what the units cut off in sums of eight terms: of each less than a last bit of the largest, all to one side,
# where float32's roundings go to both. That sums grow is not counted, as Kernel.rounding has it. mfma: as any float32.
# Stored values of 128 features took 1.07 of float32's time on an H100, of 784 features 0.85 (AMD: taken from there).
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
