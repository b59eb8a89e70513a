"""A product with a kernel matrix as OpenCL text for a host of another language: the program and all it takes to run it.

The text is the one that is run here, of :func:`gram.programs.gram`; it compiles with and without its options. Above it
stands a comment: what is computed, how rows and working vectors lie in memory, arguments, launch sizes, numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap

from clsvm.gram import programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.kernels import Kernel
from clsvm.opencl import sources
from clsvm.opencl.profiles import Profile

PRODUCTS = {
    "rows": "K[slot[u]][i - base] = K(x_i, u) for the rows i and the working vectors u",
    "update": "c[p][i - base] += sum_u D[p][u] K(x_i, u) for the rows i and the problems p; K is not stored",
    "both": "K[slot[u]][i - base] = K(x_i, u) and c[p][i - base] += sum_u D[p][u] K(x_i, u) in one pass",
    "forward-back": "out[p][u] += sum_i K(x_i, u) w[i] (t[p][i] - z[p][i]) with t[p][i] = sum_u v[p][u] K(x_i, u), in "
    "four kernels, a tile of rows at a time: gram stores K0 (slot[u] = u); forth makes t of K0 and v; residual makes r "
    "of t; back takes K0 and r",
    "tile": "K[slot[u]][v] = K(u, v) for the working vectors u and v",
}
_ARGUMENTS = {
    "group0": "first lane group of this launch",
    "groups": "lane groups of this launch",
    "base": "first row of the output, a multiple of V: 0 for an output of all rows",
    "xx": "[n_pad] <x_i,x_i>",
    "count": "[1] number of working vectors",
    "uu": "[capacity] <u,u>",
    "K0": "output: the rows of K, one of ld values for each working vector",
    "slab_rows": "rows that K0 has room for",
    "ld": "values from one row of K0 to the next, at least n_pad - base; whole fours",
    "slot": "[count] row of K0 for each working vector",
    "problems": "rows of c and of D",
    "n": "values from one row of c to the next, at least n_pad - base",
    "c": "[problems n] output: what is there is added to",
    "D": "[problems capacity] weights of the working vectors, 0 from count on",
    "capacity": "values from one row of D to the next, as said above",
}


def emit(kernel: Kernel, product: str, kind: str, dtype: str, profile: Profile, d: int = 0) -> str:
    """OpenCL text of a product of PRODUCTS over rows in the layout ``kind`` of gram.layouts.LAYOUTS.

    dtype: "float32" or "float64", of kernel values. d: number of features, which decides the type of column numbers;
    up to 65536 they have 16 bits. The values of the numbers stand in the comment alone: others build nothing anew.
    Raises ValueError for a product, layout or dtype that there is not, or not for this kernel function or profile, and
    for a layout whose values take several kernels in turn.
    """
    for got, known in ((product, PRODUCTS), (kind, LAYOUTS), (dtype, ("float32", "float64"))):
        if got not in known:
            raise ValueError(f"got {got!r}, expected one of {', '.join(known)}")
    if profile.lacks(dtype):
        raise ValueError("float64 needs a device with double precision")
    if LAYOUTS[kind].plain:
        raise ValueError(f"got {kind!r}, whose values several kernels make, on CPUs alone; expected another layout")
    back = programs.back(profile, dtype) if product == "forward-back" else None
    variant = programs.gram(kernel.spec, "rows" if back else product, kind, dtype, profile, d)
    made = dict.fromkeys((*variant.options, *(back.options if back else ())))
    options = dict(option.removeprefix("-D").partition("=")[::2] for option in made)
    head = [*_what(kernel, product, kind, dtype), ""]
    head += ["The file compiles as it is. Its options, for a build that shall say them itself:"]
    head += [*_wrapped(" ".join(made)), ""]
    head += [*_layout(options, product, kind), ""]
    head += [f"{'The first' if back else 'One'} kernel, {variant.entry}. Its arguments, in this order:"]
    head += [*_arguments(kernel, variant.text, options, product, kind, dtype), ""]
    head += [*_launch(options, kind, profile), ""]
    head += [*_numbers(kernel)]
    text = variant.text
    if back:
        head += ["", *_back(options, profile)]
        text += back.text.removeprefix(sources.cl())
    defines = (f"#ifndef {name}\n#define {name} {value}".rstrip() + "\n#endif" for name, value in options.items())
    return "\n".join([*(f"// {line}".rstrip() for line in head), "", *defines, text])


def _back(options: dict[str, str], profile: Profile) -> Iterator[str]:
    """The later kernels of forward and back."""
    real, wide = "double" if "REAL64" in options else "float", "float2" if "WIDE_PAIR" in options else "double"
    kernels = {
        "second": (
            "forth",
            (
                (f"global const {real} *", "K", "K0 of the first kernel"),
                ("long", "ld", "as there; also from one row of t to the next"),
                ("int", "rows", "rows of the tile, a multiple of V"),
                (f"global const {real} *", "v", "[problems capacity] weights of the working vectors"),
                ("global const int *", "count", "as in the first"),
                ("int", "problems", "rows of v, t and r"),
                ("int", "capacity", "as in the first; also from one row of v to the next"),
                (f"global {wide} *", "t", "output: [problems ld]"),
            ),
        ),
        "third": (
            "residual",
            (
                (f"global const {wide} *", "t", "of the second kernel"),
                ("long", "ld", "as there"),
                ("int", "first", "base of the first kernel"),
                (f"global const {wide} *", "w", "[n_pad] weights of all rows, 0 for padding; or [problems n]"),
                ("int", "own", "0 where one w serves all problems, 1 where each has its own"),
                (f"global const {wide} *", "z", "[problems n] what is taken from t; may be null"),
                ("long", "n", "values from one row of z to the next"),
                (f"global {real} *", "r", "output: [problems ld]"),
            ),
        ),
        "fourth": (
            "back",
            (
                (f"global const {real} *", "K", "K0 of the first kernel"),
                ("long", "ld", "as there; also from one row of r to the next"),
                ("int", "rows", "as in the second"),
                (f"global const {real} *", "r", "of the third kernel"),
                ("global const int *", "count", "as in the first"),
                ("int", "problems", "as in the second"),
                ("int", "capacity", "as in the first; also from one row of out to the next"),
                (f"global {wide} *", "out", "[problems capacity] what is there is added to"),
            ),
        ),
    }
    for place, (name, arguments) in kernels.items():
        yield f"The {place} kernel, {name}. Its arguments, in this order:"
        for number, (type_, argument, words) in enumerate(arguments):
            yield f"  {number:2d}.  {type_:22s}  {argument:10s}  {words}"
        if name == "residual":
            yield "Launch: two dimensions, global size (rows, problems); any local size."
        elif name == "forth" and profile.shape == "vector":
            each = f"rows / (V * {options['FORTH']})"
            yield f"Launch: one dimension, global size {each}, rounded up; local size 1."
        elif name == "forth":
            items = options["WG"]
            yield f"Launch: one dimension, global size rows / {options['LINE']} * {items}, local size {items}."
        elif profile.shape == "vector":
            yield f"Launch: one dimension, global size capacity / {options['OWN']}, local size 1."
        else:
            items = options["WG"]
            yield f"Launch: one dimension, global size capacity / {options['OWN']} * {items}, local size {items}."


def _wrapped(text: str) -> list[str]:
    indent = "  "
    return wrap(
        text, 112, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _what(kernel: Kernel, product: str, kind: str, dtype: str) -> Iterator[str]:
    yield f"{kernel.name}: K(x, y) ="
    yield from _wrapped(kernel.spec.formula)
    if not kernel.spec.element:
        yield "with dot = <x,y>, xx = <x,x>, yy = <y,y>, sqdist = max(xx + yy - 2 dot, 0)"
    yield ""
    yield f"Product {product!r} over {kind} rows with kernel values in {dtype}:"
    yield from _wrapped(PRODUCTS[product])


def _layout(options: dict[str, str], product: str, kind: str) -> Iterator[str]:
    """How rows and working vectors lie in memory."""
    V = options["V"]
    yield f"Rows go in lane groups of V = {V}: row i is lane i % V of group g = i / V. n_pad is the number of rows,"
    yield "rounded up to a multiple of V; rows of padding are zero, and their output has no meaning."
    if product == "tile":
        yield "The rows i of this product are the working vectors; n_pad is their capacity, which follows."
    yield from LAYOUTS[kind].explain(options, product == "tile")


def _arguments(
    kernel: Kernel, text: str, options: dict[str, str], product: str, kind: str, dtype: str
) -> Iterator[str]:
    """A line for each argument: its place, type, name and what it is."""
    own = LAYOUTS[kind].arguments(product == "tile", bool(kernel.spec.element))
    words = _ARGUMENTS | own
    if kernel.spec.element:
        words["xx"] = words["xx"].split("]")[0] + "] without effect for element-wise sums, but read"
        words["uu"] = own.get("uu", "[capacity] without effect for element-wise sums, but read")
    words |= {argument.name: "see below" for argument in kernel.spec.arguments}
    wide = "float2" if "WIDE_PAIR" in options else "double"
    real = "double" if dtype == "float64" else "float"
    names = {"real": real, "wide": wide, "INDEX": options["INDEX"]}
    for place, (type_, name) in enumerate(signature(text, options)):
        typed = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), type_)
        yield f"  {place:2d}  {typed:22s}  {name:10s}  {words[name]}"


def signature(text: str, options: dict[str, str]) -> list[tuple[str, str]]:
    """(type, name) of each argument of the kernel ``gram`` in ``text``, as the -D ``options`` have it."""
    found = re.search(r"void gram\((.*?)\)\s*\{", text, re.DOTALL)
    assert found
    parameters = found[1]
    for part, there in (("STORE", "STORE" in options), ("UPDATE", "UPDATE" in options), ("KERNEL", True)):
        (defined, *_) = re.findall(rf"^#define {part}_PARAMETERS(.*)$", text, re.MULTILINE)
        parameters = parameters.replace(f"{part}_PARAMETERS", defined if there else "")
    parameters = parameters.replace("SLABS_GIVEN", "global real *K0")
    pieces = (" ".join(piece.replace("*restrict", "*").replace("*", " * ").split()) for piece in parameters.split(","))
    split = (piece.rsplit(" ", 1) for piece in pieces)
    return [(type_.removeprefix("const "), name) for type_, name in split]


def _launch(options: dict[str, str], kind: str, profile: Profile) -> Iterator[str]:
    """Sizes of the range, as gram/products.py launches it."""
    number = {name: int(value) for name, value in options.items() if value.isdecimal()}
    if profile.shape == "vector":
        each = number.get("GROUPS", 1)
        size = "groups" if each == 1 else f"groups / {each}, rounded up"
        yield f"Launch: one dimension, global size {size}; local size 1."
        return
    items, groups = LAYOUTS[kind].items(number), number.get("GROUPS", 1)
    tiles = "groups" if groups == 1 else f"groups / {groups}, rounded up,"
    yield f"Launch: two dimensions, global size ({tiles} * {items}, blocks), local size ({items}, 1)."
    if "UPDATE" in options or not LAYOUTS[kind].shared:
        yield "  blocks must be 1."
    else:
        yield f"  blocks: the work-groups that share a lane group's work, 1 to capacity / {number['UB']}."


def _numbers(kernel: Kernel) -> Iterator[str]:
    arguments = kernel.spec.arguments
    if not arguments:
        yield "The kernel function has no numbers of its own."
        return
    given = ", ".join(f"{name} = {value!r}" for name, value in kernel.params.items())
    yield f"Numbers of the kernel function, for {given}; others need no other program:"
    for argument, value in zip(arguments, kernel.numbers, strict=True):
        yield f"  {argument.name} = {int(value) if argument.type == 'int' else value!r}"
