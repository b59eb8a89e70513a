"""Every program that there is, for compilers to be tried on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clsvm.gram import layout
from clsvm.gram.programs import PRODUCTS, back, cluster_rows, gather, given, gram, scatter, shapes, update, zero_sums
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant
from clsvm.problem import Constraint
from clsvm.solvers.programs import carry, respond, selection, subproblem


def of_kernel(spec: Spec, dtype: str, profile: Profile) -> Iterator[Variant]:
    """Every program of one kernel function for one dtype and profile."""
    for kind in spec.layouts:
        for product in PRODUCTS:
            for shape in shapes(profile, product):
                yield gram(spec, product, kind, dtype, profile, shape=shape)
    if spec.element:
        yield zero_sums(spec, dtype, profile)
    if profile.shape == "vector":
        for constraint in (Constraint.BIAS, Constraint.NONE):
            yield subproblem(profile, dtype, profile.working_set, constraint, spec)


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
    for source in dtypes:
        yield cluster_rows(profile, source)
    for dtype in dtypes:
        if dtype == "float64" and profile.wide == "pair":
            continue
        for constraint in Constraint:
            yield selection(profile, dtype, constraint)
            if constraint is not Constraint.SPLIT:
                yield selection(profile, dtype, constraint, profile.sort_most)
            yield subproblem(profile, dtype, profile.working_set, constraint)
        yield update(profile, dtype)
        yield carry(profile, dtype)
        yield respond(profile, dtype)
        yield given(profile, dtype)
        for source in ("float", "double"):
            options = *layout.options(profile, dtype), f"-DINPUT={source}"
            yield Variant(f"pack {source} as {dtype}", sources.cl("gram/pack"), options, "pack")
        yield back(profile, dtype)
        for shape in ("many", "two"):
            yield gather(profile, dtype, shape=shape)
        yield scatter(profile, dtype)
