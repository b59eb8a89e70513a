"""A product with a kernel matrix as OpenCL text for a host of another language: the program and all it takes to run it.

The text is the one that is run here, of :func:`gram.programs.gram`; it compiles with and without its options. A comment
above it (templates/tools/emit.mako) says what is computed, how rows and working vectors lie in memory, the arguments,
launch sizes and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import indent, wrap

from clsvm.gram import programs
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Layout
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

    Raises
    ------
    ValueError
        There is no such product, layout or dtype, not for this kernel function or profile, or the layout's
        values take several kernels in turn.
    """
    for got, known in ((product, PRODUCTS), (kind, LAYOUTS), (dtype, ("float32", "float64"))):
        if got not in known:
            raise ValueError(f"got {got!r}, expected one of {', '.join(known)}")
    if profile.lacks(dtype):
        raise ValueError("float64 needs a device with double precision")
    layout = LAYOUTS[kind]
    if layout.plain:
        raise ValueError(f"got {kind!r}, whose values several kernels make, on CPUs alone; expected another layout")
    back = programs.back(profile, dtype) if product == "forward-back" else None
    variant = programs.gram(kernel.spec, "rows" if back else product, kind, dtype, profile, d)
    made = dict.fromkeys((*variant.options, *(back.options if back else ())))
    options = dict(option.removeprefix("-D").partition("=")[::2] for option in made)
    later, text = {}, variant.text
    if back:
        text += back.text.removeprefix(sources.cl())
        for name, words in _LATER.items():
            later[name] = list(_arguments(back.text, options, name, _LATER_ARGUMENTS | words, "."))
    arguments = list(_arguments(variant.text, options, "gram", _words(kernel, layout, product == "tile")))
    head = sources.filled(
        "tools/emit", kernel=kernel, product=product, does=PRODUCTS[product], layout=layout, dtype=dtype,
        profile=profile, made=made, options=options, entry=variant.entry, arguments=arguments, later=later,
        wrapped=_wrapped,
    )  # fmt: skip
    defines = (f"#ifndef {name}\n#define {name} {value}".rstrip() + "\n#endif" for name, value in options.items())
    return "\n".join([*(f"// {line}".rstrip() for line in head.rstrip().split("\n")), "", *defines, text])


def _wrapped(text: str) -> str:
    return indent("\n".join(wrap(text, 110, break_on_hyphens=False, break_long_words=False)), "  ")


def _words(kernel: Kernel, layout: Layout, of_panel: bool) -> dict[str, str]:
    """Return what each argument of the kernel ``gram`` is."""
    words = {**_ARGUMENTS, **layout.arguments, **(layout.panel_arguments if of_panel else {})}
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
