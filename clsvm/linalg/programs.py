"""The programs of tiles: the family of products with a kernel function that only scales, and four kernels of their
own."""

from __future__ import annotations

from collections.abc import Iterator

from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import options
from clsvm.kernels.records import Parameter, Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile
from clsvm.opencl.sources import Variant

SCALED = Spec("", (Parameter("scale", 1.0),), "scale * dot")
LAYOUT = LAYOUTS["dense"]
OWN = ("pack", "turn", "solve", "factor")  # the files of cl_kernels/linalg


def product(profile: Profile, dtype: str) -> Variant:
    """C[u][i] += scale <x_i, u>."""
    text, own = LAYOUT.program(SCALED, profile, dtype, "many", False)
    shared = *options(profile, dtype), f"-DUB={LAYOUT.width(profile, dtype, 'many')}"
    return Variant(f"sum {dtype}", text, (*shared, "-DSTORE", "-DSUM", *own), "gram")


def own(name: str, profile: Profile, dtype: str) -> Variant:
    """One of OWN."""
    made = *options(profile, dtype), f"-DWG={profile.group}"
    return Variant(f"{name} {dtype}", sources.cl(f"linalg/{name}"), made, name)


def programs(profile: Profile, dtype: str) -> Iterator[Variant]:
    """All of them."""
    yield product(profile, dtype)
    for name in OWN:
        yield own(name, profile, dtype)
