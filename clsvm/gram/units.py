"""Matrix units: instructions that multiply small matrices, behind the inner products of wide tiles of dense rows.

A unit is a record: its text in cl_kernels/gram (fragments, splits), the tile that suits it, and how far off an inner
product can be. Templates gram/*_matrix_group.mako hold all the rest. Only those that units_check.py finds right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clsvm.gram import programs
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.layouts.record import Rows, options
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant


@dataclass(frozen=True)
class Units:
    """Matrix units of a kind of device, and how they are used.

    name: what reports call them. text: cl_kernels/<text>.cl. platform: a word of the OpenCL platform that can have
    them. warp, fragment, sharing: items that hold a fragment together, rows of one, items that have sums of the same
    row. groups, blocks, depth: lane groups and panel blocks of a tile, features that are staged at a time. rows,
    vectors: of a tile, those of a warp. least: features from which on values are stored sooner by them.
    error: of an inner product, its rounding over the norms that it is of, as clsvm.kernels.Kernel.rounding's eps.
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


def gram(spec: Spec, product: str, units: Units, profile: Profile, d: int = 0) -> Variant:
    """Return the gram program of a kernel function over dense rows in float32, for one of programs.PRODUCTS over all
    rows."""
    template = sources.render("gram/gram_matrix_group", kernel=spec, units=units.name, unroll=units.unroll)
    text = "\n".join((sources.cl(units.text), template.removeprefix(sources.cl())))
    V = profile.lanes
    numbers = {
        "UB": V, "GROUPS": units.groups, "BLOCKS": units.blocks, "DEPTH": units.depth, "WARP_ROWS": units.rows,
        "WARP_VECTORS": units.vectors, "TOGETHER": units.together(V), "ITEMS": units.items(V),
    }  # fmt: skip
    own: Sequence[str] = [f"-D{name}={n}" for name, n in numbers.items()]
    made = (*options(profile, "float32", d), *programs.PRODUCTS[product].options, *own, *units.options)
    return Variant(f"{spec.name or 'expression'} {product} dense float32 {units.name}", text, made, "gram")


def norms(units: Units, profile: Profile) -> Variant:
    """Return the program of squared norms of rows in dense lane groups, to the bits of those programs."""
    text = sources.cl(units.text, "gram/matrix_norms")
    made = (*options(profile, "float32"), f"-DITEMS={units.warp}", *units.options)
    return Variant(f"norms {units.name}", text, made, "norms")


def of_norms(units: Units, rows: int) -> tuple[tuple[int], tuple[int]]:
    """Return its range and work-group over so many rows, whole lane groups."""
    return (rows // units.fragment * units.warp,), (units.warp,)
