"""A product with a kernel matrix as OpenCL text for a host of another language: the program and all it takes to run it.

The text is the one that is run here, of :func:`gram.programs.gram`; it compiles with and without its options. A comment
above it says what is computed, how rows and working vectors lie in memory, the arguments, launch sizes and numbers.
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
_LATER_ARGUMENTS = {  # of the later kernels of forward and back
    "K": "K0 of the first kernel",
    "count": "as in the first",
    "v": "[problems capacity] weights of the working vectors",
    "first": "base of the first kernel",
    "w": "[n_pad] weights of all rows, 0 for padding; or [problems n]",
    "own": "0 where one w serves all problems, 1 where each has its own",
    "z": "[problems n] what is taken from t; may be null",
    "n": "values from one row of z to the next",
    "out": "[problems capacity] what is there is added to",
}
_LATER = {
    "forth": {
        "ld": "as there; also from one row of t to the next",
        "rows": "rows of the tile, a multiple of V",
        "problems": "rows of v, t and r",
        "capacity": "as in the first; also from one row of v to the next",
        "t": "output: [problems ld]",
    },
    "residual": {"t": "of the second kernel", "ld": "as there", "r": "output: [problems ld]"},
    "back": {
        "ld": "as there; also from one row of r to the next",
        "rows": "as in the second",
        "r": "of the third kernel",
        "problems": "as in the second",
        "capacity": "as in the first; also from one row of out to the next",
    },
}


def emit(kernel: Kernel, product: str, kind: str, dtype: str, profile: Profile, d: int = 0) -> str:
    """Return the OpenCL text of a product of PRODUCTS over rows in the layout ``kind`` of gram.layouts.LAYOUTS.

    dtype: "float32" or "float64", of kernel values. d: number of features; up to 65536 column numbers have 16 bits. The
    values of the kernel function's numbers stand in the comment alone, so other values need no other program.

    Raises:
        ValueError: There is no such product, layout or dtype, not for this kernel function or profile, or the layout's
            values take several kernels in turn.
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
    words = _words(kernel, product, kind)
    head += [*_arguments(variant.text, options, "gram", words), ""]
    head += [*_launch(options, kind, profile), ""]
    head += [*_numbers(kernel)]
    text = variant.text
    if back:
        head += ["", *_later(back.text, options, profile)]
        text += back.text.removeprefix(sources.cl())
    defines = (f"#ifndef {name}\n#define {name} {value}".rstrip() + "\n#endif" for name, value in options.items())
    return "\n".join([*(f"// {line}".rstrip() for line in head), "", *defines, text])


def _later(text: str, options: dict[str, str], profile: Profile) -> Iterator[str]:
    """Yield the lines on the later kernels of forward and back."""
    for place, (name, words) in zip(("second", "third", "fourth"), _LATER.items(), strict=True):
        yield f"The {place} kernel, {name}. Its arguments, in this order:"
        yield from _arguments(text, options, name, _LATER_ARGUMENTS | words, ".")
        if name == "residual":
            yield "Launch: two dimensions, global size (rows, problems); any local size."
            continue
        total, each = ("capacity", options["OWN"]) if name == "back" else ("rows", options["LINE"])
        if profile.shape == "group":
            items = options["WG"]
            yield f"Launch: one dimension, global size {total} / {each} * {items}, local size {items}."
        elif name == "back":
            yield f"Launch: one dimension, global size capacity / {each}, local size 1."
        else:
            yield f"Launch: one dimension, global size rows / (V * {options['FORTH']}), rounded up; local size 1."


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
    """Yield how rows and working vectors lie in memory."""
    V = options["V"]
    yield f"Rows go in lane groups of V = {V}: row i is lane i % V of group g = i / V. n_pad is the number of rows,"
    yield "rounded up to a multiple of V; rows of padding are zero, and their output has no meaning."
    if product == "tile":
        yield "The rows i of this product are the working vectors; n_pad is their capacity, which follows."
    layout, UB = LAYOUTS[kind], options["UB"]
    if not (product == "tile" and layout.shared):
        yield from layout.rows_words
    yield f"Working vectors go in blocks of UB = {UB}; capacity is their number, rounded up to a multiple of UB, and"
    yield "what there is beyond their number is zero:"
    yield from layout.panel_words


def _words(kernel: Kernel, product: str, kind: str) -> dict[str, str]:
    """Return what each argument of the kernel ``gram`` is."""
    layout = LAYOUTS[kind]
    words = {**_ARGUMENTS, **layout.arguments, **(layout.panel_arguments if product == "tile" else {})}
    if kernel.spec.element:
        words["xx"] = words["xx"].split("]")[0] + "] without effect for element-wise sums, but read"
        of_zero = "s of a zero row and u: sum_j e(0, u_j) over all d features"
        words["uu"] = "[capacity] " + ("without effect for element-wise sums, but read" if layout.shared else of_zero)
    return words | {argument.name: "see below" for argument in kernel.spec.arguments}


def _arguments(text: str, options: dict[str, str], entry: str, words: dict[str, str], mark: str = "") -> Iterator[str]:
    """Yield a line for each argument of a kernel: its place, type, name and what it is."""
    real = "double" if "REAL64" in options else "float"
    wide = "float2" if "WIDE_PAIR" in options else "double"
    names = {"real": real, "term": real, "wide": wide, "INDEX": options["INDEX"]}
    for place, (type_, name) in enumerate(signature(text, options, entry)):
        typed = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), type_)
        yield f"  {place:2d}{mark}  {typed:22s}  {name:10s}  {words[name]}"


def signature(text: str, options: dict[str, str], entry: str = "gram") -> list[tuple[str, str]]:
    """Return the type and name of each argument of the kernel ``entry`` in ``text``, as the -D ``options`` have it."""
    found = re.search(rf"void {entry}\((.*?)\)\s*\{{", text, re.DOTALL)
    assert found
    parameters = found[1]
    for part, there in (("STORE", "STORE" in options), ("UPDATE", "UPDATE" in options), ("KERNEL", True)):
        if f"{part}_PARAMETERS" in parameters:
            (defined, *_) = re.findall(rf"^#define {part}_PARAMETERS(.*)$", text, re.MULTILINE)
            parameters = parameters.replace(f"{part}_PARAMETERS", defined if there else "")
    parameters = parameters.replace("SLABS_GIVEN", "global real *K0")
    pieces = (" ".join(piece.replace("*restrict", "*").replace("*", " * ").split()) for piece in parameters.split(","))
    split = (piece.rsplit(" ", 1) for piece in pieces)
    return [(type_.removeprefix("const "), name) for type_, name in split]


def _launch(options: dict[str, str], kind: str, profile: Profile) -> Iterator[str]:
    """Yield the sizes of the range, as gram/products.py launches it."""
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
