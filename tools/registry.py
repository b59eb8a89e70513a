"""List every program of a device profile, so that compilers can be tested on all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.csr import INVERTED, invert, scatter, zero_sums
from clsvm.gram.layouts.lanes import DENSE, gather
from clsvm.gram.layouts.record import packing
from clsvm.gram.programs import PRODUCTS, UNITS, back, computed_rows, forward_back, gram, stored, stored_rows
from clsvm.kernels.records import Spec
from clsvm.linalg.tiles import programs
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.problem import Constraint
from clsvm.solvers.state import mirroring, respond, selection, subproblem

DTYPES = "float32", "float64"


def registry(specs: Iterable[Spec], profile: Profile, matrix_units: str = "") -> list[Variant]:
    """Return all programs of a profile for some kernel functions, without duplicates.

    matrix_units: name of the device's matrix units (tensor cores) in clsvm.gram.programs, or "".
    """
    specs, found = list(specs), dict[tuple[str, tuple[str, ...]], Variant]()
    dtypes = [dtype for dtype in DTYPES if not profile.lacks(dtype)]
    of_kernels = (_of_kernel(spec, dtype, profile) for spec in specs for dtype in dtypes)
    for one in chain(fixed(profile), *of_kernels, of_units(matrix_units, specs, profile)):
        found.setdefault((one.text, one.options), one)
    return list(found.values())


def fixed(profile: Profile) -> Iterator[Variant]:
    """Yield the programs that do not depend on a kernel function."""
    yield Variant("zero", sources.cl("opencl/zero"), (), "zero")
    for dtype in DTYPES:
        if profile.lacks(dtype):
            continue
        for constraint in Constraint:
            yield selection(profile, dtype, constraint)
            yield subproblem(profile, dtype, profile.working_set, constraint)
            if profile.style == "simd" and constraint in (Constraint.BIAS, Constraint.NONE):
                yield subproblem(profile, dtype, profile.working_set, constraint, stored_rows())
        for program in mirroring, respond, stored, back:
            yield program(profile, dtype)
        yield back(profile, dtype, exact=True)
        yield from programs(profile, dtype)
        yield from of_rows(profile, dtype)


def _of_kernel(spec: Spec, dtype: str, profile: Profile) -> Iterator[Variant]:
    """Yield the programs of one kernel function, except those for matrix units (tensor cores)."""
    for kind in layouts.names(spec):
        if not LAYOUTS[kind].suits(profile):
            continue
        for product in PRODUCTS:
            for shape in shapes(profile, product, kind):
                yield gram(spec, product, kind, dtype, profile, shape=shape)
        if made := forward_back(spec, kind, dtype, profile):
            yield made
    if spec.element:
        yield zero_sums(spec, dtype, profile)
    if profile.style == "simd":
        for constraint in (Constraint.BIAS, Constraint.NONE):
            yield subproblem(profile, dtype, profile.working_set, constraint, computed_rows(spec))


def shapes(profile: Profile, product: str, kind: str) -> list[str]:
    """Return the shape classes in which a product exists for rows in a layout."""
    made = PRODUCTS[product]
    if (made.simd and profile.style != "simd") or made.layout not in (None, kind):
        return []
    return [shape for shape in profile.tiles if shape not in made.without]


def of_rows(profile: Profile, dtype: str) -> Iterator[Variant]:
    """Yield the programs that lay out rows and fill panels with right-hand rows."""
    yield from (gather(profile, dtype, shape=shape) for shape in ("many", "two"))
    for source in DTYPES:
        made = tuple(packing(profile, source, 0, dtype))
        yield Variant(f"pack {source} as {dtype}", sources.cl("gram/pack"), made, "pack")
        yield Variant(f"pack {source} as bits for {dtype}", sources.cl("gram/bits"), made, "bits")
    yield Variant(f"cluster {dtype}", sources.cl("gram/cluster"), (*partition.options(profile, dtype),), "assign")
    yield scatter(profile, dtype)
    if INVERTED.suits(profile):
        yield invert(profile, dtype)


def of_units(name: str, specs: Iterable[Spec], profile: Profile) -> Iterator[Variant]:
    """Yield the programs for the matrix units (tensor cores) ``name``: kernel functions of inner products, dense
    float32 rows.
    """
    for one in UNITS:
        if one.name != name:
            continue
        yield one.norms(profile)
        for spec in specs:
            for product, made in PRODUCTS.items():
                if not (made.tile or made.layout or spec.element) and "wide" in shapes(profile, product, DENSE.name):
                    yield one.gram(spec, product, profile)
