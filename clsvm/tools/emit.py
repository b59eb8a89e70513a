"""Emit the OpenCL program that computes a kernel matrix or a product with it, for a host program in any language.

The program is the one that clsvm itself runs, from :func:`gram.programs.gram`. A host program can compile it without -D
options, because the program gives each missing option its value. A comment at its head, made from
templates/tools/emit.mako, says how to store the rows and how to launch the OpenCL kernel.
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
    "rows": "K[slot[u]][i - base] = K(x_i, u) for the rows i and the right-hand rows u",
    "update": "c[p][i - base] += sum_u D[p][u] K(x_i, u) for the rows i and the problems p; K is not stored",
    "both": "K[slot[u]][i - base] = K(x_i, u) and c[p][i - base] += sum_u D[p][u] K(x_i, u) in one pass",
}
_ARGUMENTS = {
    "group0": "first lane group of this launch",
    "groups": "lane groups of this launch",
    "base": "first row of the output, a multiple of V: 0 for an output of all rows",
    "xx": "[n_pad] <x_i,x_i>",
    "count": "[1] number of right-hand rows",
    "uu": "[capacity] <u,u>",
    "K0": "output: the rows of K, one of ld values for each right-hand row",
    "slab_rows": "rows that K0 has space for",
    "ld": "values between starts of rows of K0, at least n_pad - base; a multiple of 4",
    "slot": "[count] row of K0 for each right-hand row",
    "problems": "rows of c and of D",
    "n": "values from one row of c to the next, at least n_pad - base",
    "c": "[problems n] output: sums are added to its content",
    "D": "[problems capacity] weights of the right-hand rows, 0 from count on",
    "capacity": "values from one row of D to the next (above)",
}


def emit(kernel: Kernel, product: str, kind: str, dtype: str, profile: Profile, d: int = 0) -> str:
    """Return an OpenCL program that computes kernel values K(x_i, u) of rows x_i and u, or their weighted sums over u.

    Parameters
    ----------
    kernel : Kernel
        Kernel function. Its parameters are arguments of the OpenCL kernel, so one text serves all parameter values.
    product : str
        Key of PRODUCTS: "rows" for the kernel values, "update" for the weighted sums, "both" for values and sums.
    kind : str
        Name of the format in which the rows x_i are stored: a key of gram.layouts.LAYOUTS.
    dtype : {"float32", "float64"}
        Data type of kernel values.
    profile : Profile
        Profile of the device for which the program is made. It has the sizes of work-groups that suit the device, and
        says whether the device has double precision.
    d : int, default=0
        Number of features. It decides the type of column numbers in sparse formats: they have 16 bits if d is at most
        65536, and else 32 bits. The default thus gives 16 bits. If the device is a CPU, d also decides whether a
        program for densely stored rows adds up the features in several passes, which changes only its speed.

    Returns
    -------
    str
        The text of the program. A comment at its head says how to run the program.

    Raises
    ------
    ValueError
        If ``product``, ``kind`` or ``dtype`` is not one of the permitted values, if the device lacks ``dtype``,
        if rows in the format ``kind`` do not allow the kernel function, or if they need several OpenCL kernels to
        compute a kernel value.
    """
    for got, allowed in ((product, PRODUCTS), (kind, LAYOUTS), (dtype, ("float32", "float64"))):
        if got not in allowed:
            raise ValueError(f"got {got!r}, expected one of {', '.join(allowed)}")
    if profile.lacks(dtype):
        raise ValueError(f"float64 needs double precision, which this profile ({profile.name}) lacks")
    layout = LAYOUTS[kind]
    if layout.plain:
        reason = "which needs several kernels for a value of K; expected a layout that needs one"
        raise ValueError(f"got {kind!r}, {reason}")
    variant = programs.gram(kernel.spec, product, kind, dtype, profile, d)
    options = dict(option.removeprefix("-D").partition("=")[::2] for option in variant.options)
    head = sources.filled(
        "tools/emit", kernel=kernel, product=product, does=PRODUCTS[product], layout=layout, dtype=dtype,
        profile=profile, made=variant.options, options=options, entry=variant.entry,
        arguments=[*_arguments(variant.text, options, _words(kernel, layout))], wrapped=_wrapped,
    )  # fmt: skip
    defines = (f"#ifndef {name}\n#define {name} {value}".rstrip() + "\n#endif" for name, value in options.items())
    return "\n".join([*(f"// {line}".rstrip() for line in head.rstrip().split("\n")), "", *defines, variant.text])


def _wrapped(text: str) -> str:
    return indent("\n".join(wrap(text, 110, break_on_hyphens=False, break_long_words=False)), "  ")


def _words(kernel: Kernel, layout: Layout) -> dict[str, str]:
    """Return a dict from the name of each argument of the OpenCL kernel ``gram`` to the argument's description.

    ``layout`` is the format in which the kernel reads rows.
    """
    words = {**_ARGUMENTS, **layout.arguments}
    if kernel.spec.element:
        words["xx"] = words["xx"].split("]")[0] + "] without effect for element-wise sums, but read"
        of_zero = "s of a zero row and u: sum_j e(0, u_j) over all d features"
        words["uu"] = "[capacity] " + ("without effect for element-wise sums, but read" if layout.shared else of_zero)
    return words | {argument.name: "see below" for argument in kernel.spec.arguments}


def _arguments(text: str, options: dict[str, str], words: dict[str, str]) -> Iterator[str]:
    """Yield a line of text for each argument of the OpenCL kernel ``gram``: its position, type, name and description.

    ``text`` is the text of the OpenCL program, and ``options`` are its -D options. ``words`` maps names of arguments to
    their descriptions.
    """
    real = "double" if "REAL64" in options else "float"
    wide = "float2" if "WIDE_PAIR" in options else "double"
    names = {"real": real, "term": real, "wide": wide, "INDEX": options["INDEX"]}
    for number, (type_, name) in enumerate(_signature(text, options)):
        typed = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), type_)
        yield f"  {number:2d}  {typed:22s}  {name:10s}  {words[name]}"


def _signature(text: str, options: dict[str, str]) -> list[tuple[str, str]]:
    """Return the type and the name of each argument of the kernel ``gram`` in the OpenCL program ``text``.

    ``options`` are the program's -D options, which decide which arguments the kernel has.
    """
    found = re.search(r"void gram\((.*?)\)\s*\{", text, re.DOTALL)
    assert found
    parameters = found[1]
    for part, enabled in (("STORE", "STORE" in options), ("UPDATE", "UPDATE" in options), ("KERNEL", True)):
        if f"{part}_PARAMETERS" in parameters:
            (defined, *_) = re.findall(rf"^#define {part}_PARAMETERS(.*)$", text, re.MULTILINE)
            parameters = parameters.replace(f"{part}_PARAMETERS", defined if enabled else "")
    parameters = parameters.replace("SLABS_GIVEN", "global real *K0")
    pieces = (" ".join(piece.replace("*restrict", "*").replace("*", " * ").split()) for piece in parameters.split(","))
    split = (piece.rsplit(" ", 1) for piece in pieces)
    return [(type_.removeprefix("const "), name) for type_, name in split]
