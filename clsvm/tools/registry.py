"""Every program that there is, for compilers to be tried on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clsvm.gram import layouts, units
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import DENSE
from clsvm.gram.programs import PRODUCTS, back, forward_back, given, gram, made_rows, picked_rows, shapes, update
from clsvm.gram.units import Units
from clsvm.kernels.records import Spec
from clsvm.linalg.programs import programs
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.problem import Constraint
from clsvm.solvers.programs import carry, respond, selection, shard, subproblem


def of_kernel(spec: Spec, dtype: str, profile: Profile) -> Iterator[Variant]:
    """Every program of one kernel function for one dtype and profile."""
    for kind in layouts.names(spec):
        if not LAYOUTS[kind].suits(profile):
            continue
        for product in PRODUCTS:
            for shape in shapes(profile, product, kind):
                yield gram(spec, product, kind, dtype, profile, shape=shape)
        if made := forward_back(spec, kind, dtype, profile):
            yield made
        yield from LAYOUTS[kind].programs_of(spec, profile, dtype)
    if profile.shape == "vector":
        for constraint in (Constraint.BIAS, Constraint.NONE):
            yield subproblem(profile, dtype, profile.working_set, constraint, made_rows(spec))


def registry(
    specs: Iterable[Spec], profile: Profile, dtypes: Iterable[str] = ("float32", "float64")
) -> Iterator[Variant]:
    """Every program of the given kernel functions for a profile, each text with the same options once."""
    seen = set()
    dtypes = [dtype for dtype in dtypes if dtype == "float32" or profile.wide == "double"]
    for spec in specs:
        for dtype in dtypes:
            for variant in of_kernel(spec, dtype, profile):
                if (variant.text, variant.options) not in seen:
                    seen.add((variant.text, variant.options))
                    yield variant


def fixed(profile: Profile, dtypes: Iterable[str] = ("float32", "float64")) -> Iterator[Variant]:
    """Every program that no kernel function is in, for a profile."""
    yield Variant("zero", sources.cl("opencl/zero"), (), "zero")
    for dtype in dtypes:
        if profile.lacks(dtype):
            continue
        for constraint in Constraint:
            yield selection(profile, dtype, constraint)
            if constraint is not Constraint.SPLIT:
                yield selection(profile, dtype, constraint, profile.sort_most)
            yield subproblem(profile, dtype, profile.working_set, constraint)
            if profile.shape == "vector" and constraint in (Constraint.BIAS, Constraint.NONE):
                yield subproblem(profile, dtype, profile.working_set, constraint, picked_rows())
        yield update(profile, dtype)
        yield carry(profile, dtype)
        yield shard(profile, dtype)
        yield respond(profile, dtype)
        yield given(profile, dtype)
        yield back(profile, dtype)
        yield back(profile, dtype, exact=True)
        yield from programs(profile, dtype)
        for layout in LAYOUTS.values():
            yield from layout.programs(profile, dtype)


def of_units(one: Units, specs: Iterable[Spec], profile: Profile) -> Iterator[Variant]:
    """Every program of matrix units: of kernel functions of inner products, over dense rows in float32."""
    yield units.norms(one, profile)
    for spec in specs:
        for product, made in PRODUCTS.items():
            if not (made.tile or made.layout or spec.element) and "wide" in shapes(profile, product, DENSE.name):
                yield units.gram(spec, product, one, profile)
