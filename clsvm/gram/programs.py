"""The programs that a kernel function becomes: one for each product, layout, dtype and device profile.

    rows     K(X, U) stored                         STORE
    update   c += K(X, U) D, nothing stored         UPDATE
    both     the two in one pass                    STORE, UPDATE   (with ``back.cl``: forward and back)
    tile     K(U, U) of the working vectors         STORE, over the panel or the listed rows
    half tile   without what mirrors other values   STORE, HALF   (the vector shape: it counts where cores are few)
    tile update  c += K(U, U') D                    UPDATE, over the panel or the listed rows

A variant is a text and its -D options, so the same thing is run here, written for a C host and cross-compiled.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from clsvm.gram import cluster, layout
from clsvm.gram.row_cache import SLABS
from clsvm.kernels.records import Spec
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile, Tile
from clsvm.opencl.sources import Variant


class Product(NamedTuple):
    """-D options of a product; tile: whether its rows are the working vectors themselves; vector: whether it is the
    vector shape's alone."""

    options: tuple[str, ...]
    tile: bool = False
    vector: bool = False


PRODUCTS = {
    "rows": Product(("-DSTORE",)),
    "update": Product(("-DUPDATE",)),
    "both": Product(("-DSTORE", "-DUPDATE")),
    "both, slabs": Product(("-DSTORE", "-DUPDATE", f"-DSLABS={SLABS}")),
    "tile": Product(("-DSTORE",), tile=True),
    "half tile": Product(("-DSTORE", "-DHALF"), tile=True, vector=True),
    "tile update": Product(("-DUPDATE",), tile=True),
}
LAYOUTS = ("dense", "clustered", "csr")


def width(profile: Profile, kind: str, dtype: str, shape: str) -> int:
    """Working vectors that stand side by side in a panel. Two stand alone: among empty ones a line of the cache would
    hold a single feature of them, and a long panel leaves the first-level cache to the rows that stream by."""
    if kind == "csr":
        return profile.panel * layout.lanes(profile, dtype) // profile.lanes
    return 2 if shape == "two" else layout.lanes(profile, dtype)


def common_options(profile: Profile, kind: str, dtype: str, d: int, shape: str = "many") -> tuple[str, ...]:
    """What gather and gram have to agree on."""
    return (*layout.options(profile, dtype, d), f"-DUB={width(profile, kind, dtype, shape)}")


def tile(profile: Profile, product: str, kind: str, dtype: str, shape: str) -> Tile:
    """The register tile of a gram kernel over lane groups, for a shape class; no wider than a panel's block."""
    block = width(profile, kind, dtype, shape)
    if profile.shape == "vector" and kind != "dense" and not PRODUCTS[product].tile:
        held = profile.tiles[shape]["COLUMNS"] * profile.tiles[shape]["GROUPS"]  # (a lane group's columns are its own)
        return {"COLUMNS": math.gcd(block, 1 << held.bit_length() - 1), "GROUPS": 1, "AHEAD": 0}
    chosen = {**profile.tiles[shape]}
    if profile.shape == "group" and dtype == "float64":  # two registers a number: half as many a work-item
        chosen["RY"] = max(1, chosen["RY"] // 2)
        block = min(block, profile.group * chosen["RX"] * chosen["RY"] // layout.lanes(profile, dtype))
    return {**chosen, "COLUMNS": min(chosen["COLUMNS"], block)}


def gram(spec: Spec, product: str, kind: str, dtype: str, profile: Profile, d: int = 0, shape: str = "many") -> Variant:
    """The gram program of a kernel function for a shape class of working vectors (profiles.shape_class).

    Raises ValueError for a layout that the kernel function does not have, and for a tile of two: a tile's panel is a
    set of rows in whole lane groups.
    """
    if kind not in spec.layouts:
        raise ValueError(f"kernel {spec.name or spec.formula} has the layouts {', '.join(spec.layouts)}, got {kind!r}")
    options, of_panel, _ = PRODUCTS[product]
    if of_panel and shape == "two":
        raise ValueError("a tile is of panels for more than two working vectors, got shape 'two'")
    if kind == "csr":
        layout_options = ["-DLISTED"] if of_panel else []
    else:  # a panel is itself a set of rows in the dense lane layout
        layout_options = ["-DDENSE"] if of_panel or kind == "dense" else []
    family = "csr" if kind == "csr" else "lanes"
    if family == "lanes":
        layout_options += [f"-D{name}={n}" for name, n in tile(profile, product, kind, dtype, shape).items()]
    text = text_of(f"gram_{family}_{profile.shape}", spec)
    made = (*common_options(profile, kind, dtype, d, shape), *options, *layout_options)
    return Variant(f"{spec.name or 'expression'} {product} {kind} {dtype} {shape}", text, made, "gram")


def zero_sums(spec: Spec, dtype: str, profile: Profile, d: int = 0) -> Variant:
    """What element-wise sums over CSR rows start from."""
    options = common_options(profile, "csr", dtype, d)
    text = text_of("zero_sums", spec)
    return Variant(f"{spec.name or 'expression'} zero sums csr {dtype}", text, options, "zero_sums")


@lru_cache(256)
def text_of(template: str, spec: Spec) -> str:
    """Rendering takes a millisecond, and every fit asks for several."""
    return sources.render(f"gram/{template}", kernel=spec)


def shapes(profile: Profile, product: str) -> list[str]:
    """The shape classes that a product comes in."""
    if PRODUCTS[product].vector and profile.shape != "vector":
        return []
    return [shape for shape in profile.tiles if shape != "two" or not PRODUCTS[product].tile]


def update(profile: Profile, dtype: str) -> Variant:
    """f += K D from rows of the store."""
    options = *layout.options(profile, dtype), f"-DSLABS={SLABS}", f"-DBLOCK={profile.block}"
    return Variant(f"update {dtype}", sources.cl("gram/update"), options, "update")


def given(profile: Profile, dtype: str) -> Variant:
    """Products with a kernel matrix that is there; ``entry`` is the first of two kernels."""
    options = *layout.options(profile, dtype), f"-DSLABS={SLABS}"
    return Variant(f"given {dtype}", sources.cl("gram/given"), options, "pick")


def back(profile: Profile, dtype: str) -> Variant:
    """The way back of forward and back."""
    options = *layout.options(profile, dtype), f"-DWG={profile.group}"
    return Variant(f"back {dtype}", sources.cl("gram/back"), options, "back")


def gather(profile: Profile, dtype: str, d: int = 0, shape: str = "many") -> Variant:
    """Working rows into a panel, of lane groups."""
    return Variant(
        f"gather {dtype} {shape}",
        sources.cl("gram/gather"),
        common_options(profile, "dense", dtype, d, shape),
        "gather",
    )


def scatter(profile: Profile, dtype: str, d: int = 0) -> Variant:
    """Working rows of CSR into a block of a panel; ``entry`` is the first of three kernels."""
    return Variant(f"scatter {dtype}", sources.cl("gram/scatter"), common_options(profile, "csr", dtype, d), "mark")


def cluster_rows(profile: Profile, given: str) -> Variant:
    """Rows of that dtype into clusters; ``entry`` is the last of several kernels."""
    return Variant(f"cluster {given}", sources.cl("gram/cluster"), (*cluster.options(profile, given),), "assign")
