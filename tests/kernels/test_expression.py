"""Expressions: every function and operator on the devices against NumPy, and every way of putting foreign text in one.

CLSVM_EXPRESSIONS=2000 draws that many random texts anew.
"""

import math
import os
import re
import string
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from clsvm.gram.layouts import record
from clsvm.kernels import Kernel
from clsvm.kernels.expression import FUNCTIONS, Expression, Node
from clsvm.opencl import devices, sources
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream

MANY = int(os.environ.get("CLSVM_EXPRESSIONS", "0"))
LANES = 320
SHAPES = {"vector": "cpu", "scalar": "gpu"}
INNER = ("dot", "sqdist", "xx", "yy")
COMPARISONS = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal}
COMPARISONS["!="] = np.not_equal
GUARDED = {  # functions on arguments that they are defined for, whatever is put in
    "exp": "exp(-abs({}))",
    "expm1": "expm1(2 * tanh({}))",
    "log": "log(0.2 + abs({}))",
    "log1p": "log1p(abs({}))",
    "sqrt": "sqrt(0.01 + abs({}))",
    "sinh": "sinh(2 * sin({}))",
    "cosh": "cosh(2 * cos({}))",
    "arcsin": "arcsin(0.9 * sin({}))",
    "arccos": "arccos(0.9 * cos({}))",
}
NUMBERS = {"a": 0.37, "b": -1.9, "n": 4, "m": -3}
EVERY = (
    *(GUARDED.get(name, f"{name}({{}})").format("3 * dot") for name, f in FUNCTIONS.items() if f.arity == 1),
    "exp(20 * dot) + expm1(-dot) + 5 * erf(4 * dot) + log(xx) + sqrt(sqdist) + log1p(sqdist)",
    "cbrt(-dot) + arctan(100 * dot) + sin(200 * dot) + cos(200 * dot) + tanh(dot) + sinh(-dot) + cosh(7 * dot)",
    "maximum(dot, 0.3) - minimum(xx, yy) / (+dot + 9)",
    "power(xx, dot) + xx ** 0.5 + xx ** a + (sqdist + 1) ** -2.5 + sqdist ** 0.7",  # sqdist is 0 on some lanes
    "dot ** 3 + dot ** -2 / 1e9 + dot ** 16 + dot ** 17 + xx ** n + yy ** m + dot ** 0 + dot ** 1",
    "where(dot < 0.1, xx, -yy) * where(xx >= yy * 1.01, dot, 3) + where(n * dot > 0.3, sqdist, a)",
    "where(dot == -9, 1, xx) + where(dot != -9, xx, 5) + where(xx <= 1.3, where(yy > a, xx, yy), dot)",
    "(xx + a * b) ** 2 * exp(-a * sqdist) + (xx + a * b) ** 2 * sin(xx + a * b) + 1 / (sqdist + xx + yy)",
    "n * dot + m * xx + dot ** n + power(xx, n) + 2 ** m * yy + n ** m * yy + a ** n * dot",
    "1e-30 * dot + 9e29 * 1e-29 * xx + 1e-45 * yy + 1e-320 + 0.1",
    "7",
    "a",
)


every_shape = pytest.mark.parametrize("shape", SHAPES)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def kernel_of(text: str) -> Kernel:
    """The kernel function, with those of NUMBERS that it names."""
    return Kernel(text, **{name: value for name, value in NUMBERS.items() if re.search(rf"\b{name}\b", text)})


def inputs(dtype: str) -> dict[str, np.ndarray]:
    """dot, xx and yy on LANES lanes: rows apart, the same row twice, rows whose distance rounds below 0."""
    rng = np.random.default_rng(1)
    xx, yy = np.exp(rng.uniform(np.log(0.05), np.log(4.0), (2, LANES)))
    yy[:60] = xx[:60]
    dot = rng.uniform(-1, 0.95, LANES) * np.sqrt(xx * yy)
    dot[:60] = xx[:60] * np.repeat([1, 1 + 1e-5], 30)
    return {name: value.astype(dtype) for name, value in (("dot", dot), ("xx", xx), ("yy", yy))}


def known(kernel: Kernel, given: dict[str, np.ndarray], dtype: Any) -> dict[str, Any]:
    """Every name of the kernel function's expression with its value."""
    values = {name: value.astype(dtype) for name, value in given.items()}
    return {**kernel.params, **values, "sqdist": np.maximum(values["xx"] + values["yy"] - 2 * values["dot"], 0)}


PROBE = """
#ifdef SIMD
#define AT(p) loadv(i, p)
#define PUT(value, p) storev(value, i, p)
#else
#define AT(p) p[i]
#define PUT(value, p) p[i] = value
#endif
kernel void probe(global const real *restrict a, global const real *restrict b, global const real *restrict c,
                  global real *restrict values KERNEL_PARAMETERS) {
  const size_t i = get_global_id(0);
  PUT(kernel_value(AT(a), AT(b), AT(c) KERNEL_ARGUMENTS), values);
}
#undef AT
#undef PUT
"""


def program(kernels: list[Kernel]) -> str:
    """The template's text for each kernel function, under names of its own, and a probe that calls it on every lane."""
    text = sources.cl()
    for i, kernel in enumerate(kernels):
        own = sources.render("gram/kernel_function", kernel=kernel.spec).removeprefix(sources.cl())
        names = "kernel_value", "ipow", "power", "exponential", "probe"
        renamed = [f"#define {name} {name}_{i}\n" for name in names]
        forgotten = *names, "ADD_TERM", "INNER_PRODUCT", "KERNEL_PARAMETERS", "KERNEL_ARGUMENTS"
        text += "".join(f"#undef {name}\n" for name in forgotten) + "".join(renamed) + own + PROBE
    return text


def probed(
    device: str, shape: str, dtype: str, kernels: list[Kernel], given: dict[str, np.ndarray]
) -> Iterator[np.ndarray]:
    """f on every lane for each kernel function, from the text that the products use."""
    info = devices.find(device)
    if not info.fp64 and f"{dtype} {shape}" != "float32 scalar":
        pytest.skip(f"{info} has no float64")
    profile = replace(PROFILES[SHAPES[shape]], wide="double" if info.fp64 else "pair")
    with Stream(device, profile=profile) as stream:
        text, options = program(kernels), tuple(record.options(profile, dtype))
        buffers = [stream.upload(value) for value in given.values()]
        size = LANES // record.lanes(profile, dtype) if shape == "vector" else LANES
        for i, kernel in enumerate(kernels):
            out = stream.upload(np.zeros(LANES, dtype))
            with np.errstate(over="ignore"):
                numbers = kernel.scalars(dtype)
            stream.kernel(text, options, f"probe_{i}")((size,), None, *buffers, out, *numbers)
            yield stream.read(out, dtype, LANES)


def met(tree: Node, values: dict[str, Any]) -> tuple[np.ndarray | float, np.ndarray | bool]:
    """(largest magnitude in the tree on each lane, lanes that come near a threshold, where f jumps)."""
    largest: np.ndarray | float = 0.0
    near: np.ndarray | bool = False
    for node in tree.walk():
        if node.function and node.function.truth:
            left, right = (np.asarray(argument.evaluate(values), np.float64) for argument in node.args)
            near |= np.abs(left - right) <= 1e-4 * np.maximum(np.abs(left), np.abs(right))
        else:
            largest = np.maximum(largest, np.abs(node.evaluate(values)))
        if node.name == "sqdist":
            largest = np.maximum(largest, values["xx"] + values["yy"])
    return largest, near


def used(kernel: Kernel, given: dict[str, np.ndarray], got: np.ndarray) -> float:
    """The device's largest error over what it may be, on the lanes that are finite all through the tree.

    float32: 8 times the error of the same tree in NumPy float32 plus 2e-6 of the largest magnitude in the tree.
    float64: 1e-14 of it, plus 8 times the error that the float32 one foretells, where the tree itself loses digits.
    """
    expression, wide, narrow = kernel.spec.expression, known(kernel, given, "f8"), known(kernel, given, "f4")
    near_given = {name: value.astype("f4") for name, value in given.items()}
    with np.errstate(all="ignore"):
        expected = expression.evaluate(wide)
        own = np.abs(expression.evaluate(narrow) - expression.evaluate(known(kernel, near_given, "f8")))
        large, near = met(expression.tree, wide)
    good = (large < 1e30) & ~np.asarray(near) & np.ones(LANES, bool)
    assert good.sum() >= LANES // 8
    own, largest = (np.broadcast_to(a, LANES)[good].max() for a in (own, large))
    error = np.abs(got.astype(np.float64) - expected)[good].max()
    allowed = 8 * own + 2e-6 * largest if got.dtype == np.float32 else 8 * own * 2.0**-29 + 1e-14 * largest
    return float(error / allowed)


@pytest.mark.full
@every_shape
@every_dtype
def test_every_function_and_operator_on_the_device(device: str, shape: str, dtype: str) -> None:
    kernels, given = [kernel_of(text) for text in EVERY], inputs(dtype)
    for kernel, got in zip(kernels, probed(device, shape, dtype, kernels, given), strict=True):
        share = used(kernel, given, got)
        assert share <= 1, f"{share:.2f} of what is allowed: {kernel}"
    nodes = chain.from_iterable(kernel.spec.expression.tree.walk() for kernel in kernels)
    operators = {"({} + {})", "({} - {})", "({} * {})", "({} / {})", "(-{})", "{}", "ipow({}, {})"}
    comparisons = {f"({{}} {word} {{}})" for word in COMPARISONS}
    functions = {f.opencl for f in FUNCTIONS.values()} | operators | comparisons
    assert {node.function.opencl for node in nodes if node.function} == functions


def probe(device: str, shape: str, dtype: str, text: str, given: dict[str, np.ndarray], **params: Any) -> np.ndarray:
    """f on the device, for dot, xx and yy as they are given."""
    return next(probed(device, shape, dtype, [Kernel(text, **params)], given))


@every_shape
@every_dtype
def test_comparisons_are_exact_and_distances_never_negative(device: str, shape: str, dtype: str) -> None:
    whole = {name: np.random.default_rng(i).integers(-2, 3, LANES).astype(dtype) for i, name in enumerate(INNER[::3])}
    given = {"dot": whole["dot"], "xx": whole["dot"] + 1, "yy": whole["yy"]}
    words = enumerate(COMPARISONS)
    text = " + ".join(f"{3**i} * (where(dot {word} yy, 1, 0) + where(xx {word} 1, 1, 0))" for i, word in words)
    expected = sum(
        3**i * (compared(given["dot"], given["yy"]) * 1.0 + compared(given["xx"], 1) * 1.0)
        for i, compared in enumerate(COMPARISONS.values())
    )
    assert len(np.unique(expected)) > 5
    assert_array_equal(probe(device, shape, dtype, text, given), expected)
    near = inputs(dtype)  # where xx + yy - 2 dot rounds below zero sqdist is 0, and a root of it no NaN
    assert (near["xx"] + near["yy"] - 2 * near["dot"])[30:60].max() < 0
    got = probe(device, shape, dtype, "sqrt(sqdist)", near)
    assert (got[:60] == 0).all()
    assert (got[60:] > 0.1).all()


@every_shape
@every_dtype
def test_whole_powers_are_products(device: str, shape: str, dtype: str) -> None:
    """To the last bit those of repeated squaring, of negative numbers too, whether the exponent is written or given."""
    rng = np.random.default_rng(0)
    given = {name: (rng.choice([-1, 1], LANES) * rng.uniform(0.1, 3, LANES)).astype(dtype) for name in ("dot", "xx")}
    given["yy"] = given["dot"]
    x = given["dot"]
    x2 = x * x
    x4 = x2 * x2
    powers = {0: np.ones_like(x), 1: x, 2: x2, 3: x * x2, 5: x * x4, 7: (x * x2) * x4, 12: x4 * (x4 * x4)}
    kernels = [Kernel(f"dot ** {n}") for n in powers] + [Kernel("dot ** n", n=n) for n in powers]
    assert not any("power(dot" in program([kernel]) for kernel in kernels)
    for got, expected in zip(
        probed(device, shape, dtype, kernels, given), [*powers.values(), *powers.values()], strict=True
    ):
        assert_array_equal(got, expected)


@pytest.mark.full
@every_shape
@every_dtype
def test_a_lane_leaves_its_neighbours_alone(device: str, shape: str, dtype: str) -> None:
    """PoCL 3.1's pow of eight doubles is wrong beside such a lane."""
    rng = np.random.default_rng(5)
    lanes = np.arange(3, LANES, 5)
    unary = [f"{name}({{}})" for name, function in FUNCTIONS.items() if function.arity == 1]
    kernels = [Kernel(text.format("dot")) for text in (*unary, "{} ** 0.358", "power(1.7, {})", "{} ** 3 / yy")]
    for odd in (0.0, 1e-310, np.inf, np.nan, -1.5):
        given = {name: rng.uniform(0.05, 0.95, LANES).astype(dtype) for name in ("dot", "xx", "yy")}
        given["dot"][lanes] = odd
        wide = {name: value.astype(np.float64) for name, value in given.items()}
        tolerance = 1e-6 if dtype == "float32" else 1e-14
        for kernel, got in zip(kernels, probed(device, shape, dtype, kernels, given), strict=True):
            with np.errstate(all="ignore"):
                expected = np.delete(kernel.spec.expression.evaluate(wide), lanes)
            assert_allclose(np.delete(got, lanes), expected, rtol=tolerance, atol=tolerance, err_msg=f"{kernel} {odd}")


PYTHON = {name: np.vectorize(math.erf) if name == "erf" else getattr(np, name) for name in FUNCTIONS}


@pytest.mark.parametrize("text", EVERY)
def test_a_tree_means_what_python_means(text: str) -> None:
    """Python's own evaluation of the normal form, ``**`` as NumPy's power, gives the values of the tree."""
    kernel = kernel_of(text)
    expression, names = kernel.spec.expression, known(kernel, inputs("float64"), "float64")
    again = replace(expression)
    assert again == expression
    assert again.tree == expression.tree
    with np.errstate(all="ignore"):
        value = np.asarray(expression.evaluate(names))
        numbers = {name: np.float64(number) for name, number in kernel.params.items()}  # whole numbers are floats
        # as in the tree, no number is whole
        text = re.sub(r"(?<![\w.])(?<!e[-+])(\d+)(?![\w.])", r"\1.0", expression.text)
        meant = np.asarray(eval(text, {**PYTHON, **names, **numbers}))
        large, near = met(expression.tree, names)
    assert ((np.abs(value - meant) <= 1e-6 * large) | near).all()


def opencl(text: str, variables: tuple[str, ...] = INNER, **params: float | int) -> str:
    integers = frozenset(name for name, value in params.items() if isinstance(value, int))
    statements, value = Expression(text, variables, tuple(params), integers).opencl("f")
    return " ".join([*statements, value])


def test_the_text_of_a_tree() -> None:
    """Numbers of the parameters alone are the host's, in float64: the text has their places and nothing of their names.
    What stands twice is computed once, and constants have the type of the values."""
    kernel = Kernel(
        "exp(-gamma * sqdist) + sqrt(a * b + 1) * dot ** n + where(a < b, a, dot) + n", gamma=1, a=2, b=3, n=2
    )
    text = opencl(kernel.spec.text, gamma=1.0, a=2.0, b=3.0, n=2)
    assert [argument.type for argument in kernel.spec.arguments] == ["real", "real", "int", "real", "real"]
    assert kernel.numbers == (-1.0, np.sqrt(7.0), 2, 2.0, 3.0)
    assert re.findall(r"\bf\d\b", text) == ["f0", "f1", "f2", "f3", "f4", "f3", "f2"]
    assert not re.search(r"gamma|\ba\b|\bb\b|\bn\b|sqrt", text)
    text = opencl("exp(-sqrt(sqdist + 1)) * (sqrt(sqdist + 1) + 2) + sqrt(sqdist + 1)")
    assert text.count("sqrt(") == 1
    assert text.startswith("const kv f_0 = sqrt((sqdist + ((kv)NUMBER(1.0))));")
    text = opencl("0.1 * dot + 2 ** 0.5 + 1e22 + where(dot < 1, -3, 7)")
    typed = re.compile(r"\(\(kv\)NUMBER\((-?\d+(?:\.\d+)?(?:e\+\d+)?)\)\)")
    assert typed.findall(text) == ["0.1", "1.4142135623730951", "1e+22", "1.0", "-3.0", "7.0"]
    assert not re.search(r"\d", typed.sub("", text))


# Hostile texts


ALLOWED = {"kv", "NUMBER", "const", "ipow", *re.findall(r"[a-z]\w*", " ".join(f.opencl for f in FUNCTIONS.values()))}


def assert_safe(expression: Expression) -> None:
    """Its OpenCL text has numbers, operators, variables, functions of the table and names made here: nothing else."""
    statements, value = expression.opencl("f")
    text = " ".join([*statements, value])
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"(?<![\w.])\d+\.?\d*(e[+-]?\d+)?(?!\w)", "0", text))
    assert set(words) <= {*ALLOWED, *expression.variables, *(word for word in words if re.fullmatch(r"f_?\d+", word))}
    assert re.fullmatch(r"[\w.+\-*/(),<>=!?: ;]*", text)
    assert text.count(";") == len(statements)
    assert "//" not in text
    assert "/*" not in text
    assert re.fullmatch(r"[\w.+\-*/(),<>=! ]*", expression.text)  # it stands in a comment of the program
    assert text.count("(") == text.count(")")


LANGUAGE, SIZE = "is not allowed in an expression", "expected a number below"
CHARACTERS = string.ascii_letters + string.digits + "_.+-*/(),<>=! \n"
FOREIGN_CHARACTERS = (  # Python's, OpenCL's, blanks that are none, look-alikes that Python would take for ASCII names
    *("dot[0]", "lambda: dot", 'f"{dot}"', "dot } kernel void evil(global int *p) {", "dot\n#define dot 1"),
    *("dot\\\n+ xx", "dot ^ 2", "dot\r", "dot\x00", "dot\u2028+ xx", "dot\ud800", "dоt", "２ * dot"),
)
SAFE = (
    *("(exp)(dot)", "where(where(dot < 1, xx, yy) < 2, 1, 2)", "where(1 < 2, dot, xx)", "  dot\n\n  + xx "),
    *("9e29 * dot", "1e-400 * dot", "1_000 * dot + 0x10", "dot ** 10 ** 10", "dot ** 1e29", "dot / (1 - 1)"),
    *("(" * 150 + "dot" + ")" * 150, "-" * 90 + "dot", "exp(" * 99 + "dot" + ")" * 99, " + ".join(["dot"] * 100)),
    *("where(dot < 1, " * 60 + "1" + ", 2)" * 60, "(dot + xx) * " * 90 + "dot"),
)
REFUSED = {  # the text: what the error says of it, and the column that it names (0: none, or Python's choice)
    "__import__(dot)": ("unknown function '__import__'", 1),
    "().__class__.__bases__": (f"Attribute {LANGUAGE} at '().__class__", 1),
    "dot = 1": ("not an expression: invalid syntax", 5),
    "exp(x=dot)": (f"Call {LANGUAGE}", 1),
    "exp(dot)(xx)": (LANGUAGE, 1),
    "(yield dot)": (f"Yield {LANGUAGE}", 2),
    "sqdist^2": (f"{LANGUAGE}: a power is **", 0),
    "None": (SIZE, 1),
    "dot // xx": (f"BinOp {LANGUAGE}", 1),
    "kv * f0": ("unknown name 'kv'", 1),
    "where(dot < 1 or xx < 1, 1, 2)": (f"BoolOp {LANGUAGE}", 7),
    "dot if xx else yy": (f"IfExp {LANGUAGE}", 1),
    "dot == 1": ("a comparison is allowed only in where", 0),
    "where(dot, xx, yy)": ("a number where a comparison is expected at 'dot'", 7),
    "where(0 < dot < 1, xx, yy)": (f"Compare {LANGUAGE}", 7),
    "where(dot < 1, xx < 1, 2)": ("a comparison where a number is expected at 'xx < 1'", 16),
    "2 ** (dot < 1)": ("a comparison where a number is expected", 7),
    "where(dot < 1, 1)": ("where takes 3 arguments, got 2", 1),
    "exp + dot": ("function 'exp' needs its arguments in parentheses", 1),
    "gamma * dot": ("unknown name 'gamma' (known: dot, sqdist, xx, yy; a parameter needs its value, gamma=...)", 1),
    "dot +\n  Dot": ("unknown name 'Dot'", 9),
    "": ("not an expression", 1),
    "dot)": ("not an expression", 4),
    "1e400 * dot": (SIZE, 1),
    "10 ** 30 * dot": ("absolute value, got 1e+30 at '10 ** 30'", 1),
    "dot + 0 ** -1": ("absolute value, got inf at '0 ** -1'", 7),
    "(-8) ** (1 / 3)": ("absolute value, got nan", 1),
    "(" * 10**6 + "dot" + ")" * 10**6: ("has 2000003 characters, at most 4096", 0),
    "(" * 2000 + "dot" + ")" * 2000: ("", 0),  # (what is said depends on Python's parser)
    "exp(" * 150 + "dot" + ")" * 150: ("more than 100 levels of nesting", 405),
    " + ".join(["dot"] * 500): ("more than 100 levels of nesting", 1),
}
FIRST = {
    text: next(i for i, character in enumerate(text) if character not in CHARACTERS) for text in FOREIGN_CHARACTERS
}
REFUSED |= {text: (f"character {text[at]!r} at column {at + 1}", at + 1) for text, at in FIRST.items()}


@pytest.mark.parametrize("text", [*REFUSED, *SAFE], ids=lambda text: ascii(text[:24]) + f" {len(text)}")
def test_hostile_texts_are_refused_or_read_safely(text: str) -> None:
    tracemalloc.start()
    try:
        if text in SAFE:
            assert_safe(expression := Expression(text, INNER))
            made = sources.render("gram/kernel_function", kernel=Kernel(text).spec).removeprefix(sources.cl()).strip()
            assert made.splitlines()[0] == f"// expression: K(x, y) = {expression.text}"  # one line of comment
        else:
            message, column = REFUSED[text]
            with pytest.raises(ValueError, match=re.escape(message) or None) as caught:
                Expression(text, INNER)
            assert not column or f"column {column} " in str(caught.value)
            assert len(str(caught.value)) < 600
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("text", [None, 1, 1.5, b"dot", ["dot"], ("dot",), object(), np.array("dot")])
def test_an_expression_is_text(text: Any) -> None:
    with pytest.raises(TypeError, match="an expression is text"):
        Expression(text, INNER)


OWN = "dot xx a n exp where power ( ) , + - * / ** < == 1 2.5"
OTHERS = "// /* */ . _ = ; { } \\ ' # if or 0x 1e ｅ __"
TOKENS, FOREIGN = (*OWN.split(), " "), (*OTHERS.split(), "\n", "\x00")


@settings(max_examples=MANY or 200, derandomize=not MANY, database=None, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(TOKENS), max_size=12).map("".join),
        st.lists(st.sampled_from((*TOKENS, *FOREIGN)), max_size=10).map("".join),
        st.text(max_size=20),
    )
)
def test_any_text_is_refused_or_read_safely(text: str) -> None:
    """Read means what its normal form means, and that Python agrees; refused means ValueError that names a column."""
    try:
        expression = Expression(text, INNER, ("a", "n"), frozenset({"n"}))
    except ValueError as error:
        if not re.search(r"column \d|a comparison is allowed only in where", str(error)):
            raise
    else:
        assert_safe(expression)
        assert replace(expression).tree == expression.tree
