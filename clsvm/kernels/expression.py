"""Parse expressions of kernel functions, evaluate them in NumPy, render them as OpenCL, find their rounding errors.

:class:`Expression` parses a text with Python's ``ast``, and accepts only known names and the functions of the table
FUNCTIONS. The OpenCL text is made from the expression tree, so no text of the user reaches the OpenCL compiler.

An expression has variables, such as dot = <x,y>, which depend on rows x and y, and parameters, such as gamma. The host
computes each subtree that has parameters but no variables. It uses float64 and passes the value as an argument to the
OpenCL kernel. Therefore no program is built for new parameter values. A power whose exponent is a whole number becomes
products by repeated squaring. A subtree that occurs more than once becomes an OpenCL variable.

:func:`compare` finds rounding errors: it computes an expression in a dtype and in a wider type, and compares the
values. It also finds subtrees whose values leave the range of the dtype. For example, x ** 2 in sqrt(x ** 2) overflows
float32 long before x does. :func:`inner_products` and :func:`elements` return sample values of the variables.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special


def _whole_power(x: Any, n: int) -> Any:
    """Return x ** n by repeated squaring, in the order of operations of the OpenCL function ``ipow``."""
    result, square, left = 1.0, x, abs(int(n))
    while left:
        result = result * square if left & 1 else result
        left >>= 1
        square = square * square if left else square
    return result if n >= 0 else np.divide(1.0, result)


def _erf(x: Any) -> Any:
    """Return erf(x) in the type of x. For long double, which SciPy's erf does not accept, compute in float64."""
    wide = getattr(x, "dtype", None) == np.longdouble
    return special.erf(x.astype(np.float64)).astype(np.longdouble) if wide else special.erf(x)


class Function(NamedTuple):
    """Describe an operator or function of the language in which users write kernel expressions.

    Attributes
    ----------
    numpy
        NumPy function.
    opencl
        OpenCL text, with {} for each argument.
    arity
        number of arguments.
    truth
        whether the function returns a truth value.
    """

    numpy: Callable[..., Any]
    opencl: str
    arity: int
    truth: bool = False


_UNARY = "expm1", "log", "log1p", "sqrt", "cbrt", "sinh", "cosh", "tanh", "sin", "cos"
FUNCTIONS = {
    "exp": Function(np.exp, "exponential({})", 1),
    **{name: Function(getattr(np, name), f"{name}({{}})", 1) for name in _UNARY},
    **{f"arc{name}": Function(getattr(np, f"arc{name}"), f"a{name}({{}})", 1) for name in ("sin", "cos", "tan")},
    "abs": Function(np.abs, "fabs({})", 1),
    "erf": Function(_erf, "erf({})", 1),
    "maximum": Function(np.fmax, "fmax({}, {})", 2),
    "minimum": Function(np.fmin, "fmin({}, {})", 2),
    "power": Function(np.power, "power({}, {})", 2),
    "where": Function(np.where, "({} ? {} : {})", 3),
}
_OPERATORS = {
    ast.Add: Function(np.add, "({} + {})", 2),
    ast.Sub: Function(np.subtract, "({} - {})", 2),
    ast.Mult: Function(np.multiply, "({} * {})", 2),
    ast.Div: Function(np.divide, "({} / {})", 2),
    ast.USub: Function(np.negative, "(-{})", 1),
    ast.UAdd: Function(np.positive, "{}", 1),
    ast.Lt: Function(np.less, "({} < {})", 2, True),
    ast.LtE: Function(np.less_equal, "({} <= {})", 2, True),
    ast.Gt: Function(np.greater, "({} > {})", 2, True),
    ast.GtE: Function(np.greater_equal, "({} >= {})", 2, True),
    ast.Eq: Function(np.equal, "({} == {})", 2, True),
    ast.NotEq: Function(np.not_equal, "({} != {})", 2, True),
}
_WHOLE = Function(_whole_power, "ipow({}, {})", 2)  # power whose exponent, the second argument, is an int
_MAX_LENGTH, _MAX_DEPTH, _MAX_CONSTANT, _MAX_WHOLE = 4096, 100, 1e30, 16


@dataclass(frozen=True)
class Node:
    """Hold a checked expression tree: a number, a name, or a ``function`` applied to the subtrees ``args``."""

    function: Function | None = None
    args: tuple[Node, ...] = ()
    number: float | int = 0.0
    name: str = ""

    def walk(self) -> Iterator[Node]:
        yield self
        for argument in self.args:
            yield from argument.walk()

    def names(self) -> Iterator[str]:
        return (node.name for node in self.walk() if node.name)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        if self.name:
            return values[self.name]
        if not self.function:
            return self.number
        return self.apply(argument.evaluate(values) for argument in self.args)

    def apply(self, arguments: Iterable[Any]) -> Any:
        """Return the value of the node's function at ``arguments``, which are NumPy arrays or Python numbers.

        If all arguments are numbers, the value is a Python number.
        """
        assert self.function
        # Python integers become floats, because integers overflow in NumPy and have no negative powers.
        value = self.function.numpy(*(float(a) if isinstance(a, int) else a for a in arguments))
        # A float64 scalar of NumPy would turn float32 arrays into float64 arrays, so it becomes a Python float.
        return float(value) if isinstance(value, np.floating) or getattr(value, "shape", None) == () else value


@dataclass(frozen=True)
class Expression:
    """Parse and check a text in the language in which users write kernel functions.

    Raises ValueError for a text outside the language; the message names the token and its column. Raises TypeError if
    ``text`` is not a string.

    Attributes
    ----------
    text
        text of the expression, as Python's ast.unparse writes it.
    variables
        names that stand for quantities of the rows x and y, such as dot = <x,y>.
    parameters
        names of the kernel function's parameters.
    integers
        names of the parameters that are integers.
    tree
        the checked expression tree.
    """

    text: str
    variables: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    integers: frozenset[str] = frozenset()
    tree: Node = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        source = _one_line(self.text)
        parsed = _parse(source)
        tree = _Reader(self, source).read(parsed)
        if tree.function and tree.function.truth:
            raise ValueError(f"a comparison is allowed only in where(...), got one as the value of {self.text!r}")
        object.__setattr__(self, "text", ast.unparse(parsed))
        object.__setattr__(self, "tree", tree)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of the variables and parameters that occur in the expression."""
        return frozenset(self.tree.names())

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Compute the expression in NumPy. ``values`` maps each name in the expression to an array or a number."""
        return self.tree.evaluate(values)

    @cached_property
    def exponents(self) -> frozenset[str]:
        """Return the names of the integer parameters that occur as exponents in the expression."""
        return frozenset(name for node in self.tree.walk() if node.function is _WHOLE and (name := node.args[1].name))

    @cached_property
    def hoisted(self) -> tuple[Node, ...]:
        """Return the largest subtrees that contain parameters and no variable, such as -gamma in exp(-gamma * sqdist).

        The host computes the value of each subtree and passes it to the OpenCL kernel as an argument.
        """
        return tuple(dict.fromkeys(self._hoist(self.tree)))

    def _hoist(self, node: Node) -> Iterator[Node]:
        names = set(node.names())
        if names and not names & set(self.variables) and not (node.function and node.function.truth):
            yield node
        else:
            for argument in node.args:
                yield from self._hoist(argument)

    def opencl(self, prefix: str) -> tuple[list[str], str]:
        """Return a list of OpenCL statements, and an OpenCL expression for the value of this expression tree.

        Each statement defines a variable for a subtree that occurs more than once. The OpenCL expression uses these
        variables. All values have the OpenCL type ``kv``, in which OpenCL kernels evaluate kernel functions.

        The tuple :attr:`hoisted` has the subtrees that depend only on parameters of the kernel function. The host
        computes the value of each of these subtrees, and passes it to the OpenCL kernel as an argument. The name of the
        argument is ``prefix`` followed by the position of the subtree in :attr:`hoisted`.
        """
        arguments = {node: f"{prefix}{i}" for i, node in enumerate(self.hoisted)}
        times: Counter[Node] = Counter()
        _count(self.tree, arguments, times)
        named: dict[Node, str] = {}
        statements: list[str] = []

        def render(node: Node) -> str:
            if node in arguments:
                return f"((kv){arguments[node]})"
            if node.name:
                return node.name
            if not node.function:
                return f"((kv)NUMBER({node.number!r}))"
            if node not in named:
                if node.function is _WHOLE:
                    base, exponent = node.args
                    text = f"ipow({render(base)}, {arguments[exponent] if exponent.name else exponent.number})"
                else:
                    text = node.function.opencl.format(*map(render, node.args))
                if times[node] < 2 or node.function.truth:
                    return text
                named[node] = f"{prefix}_{len(named)}"
                statements.append(f"const kv {named[node]} = {text};")
            return named[node]

        value = render(self.tree)
        return statements, value


def _count(node: Node, arguments: Mapping[Node, str], times: Counter[Node]) -> None:
    times[node] += 1
    if node not in arguments and times[node] == 1:
        for argument in node.args:
            _count(argument, arguments, times)


def _one_line(text: Any) -> str:
    """Check the characters of an expression's text, and return the text on one line without blanks at its ends.

    Raises TypeError if ``text`` is not a string. Raises ValueError if the text is too long, or has a character that the
    language of expressions does not use.
    """
    if not isinstance(text, str):
        raise TypeError(f"an expression is text, got {text!r}")
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"expression has {len(text)} characters, at most {_MAX_LENGTH} are allowed")
    if bad := re.search(r"[^\w.+\-*/(),<>=! \n]", text, re.ASCII):
        words = f"character {bad[0]!r} at column {bad.start() + 1} of {text[:80]!r}"
        raise ValueError(f"{words} is not allowed in an expression{': a power is **' * (bad[0] == '^')}")
    return text.replace("\n", " ").strip()


def _parse(text: str) -> ast.expr:
    """Return Python's syntax tree of a text. Raises ValueError if the text is not an expression in Python's syntax."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.args[0] if error.args else "too deep"
        column = getattr(error, "offset", 1) or len(text) + 1  # in a SyntaxError, offset 0 means the end of the text
        raise ValueError(f"not an expression: {reason}, at column {column} of {text[:80]!r}") from None


class _Reader:
    """Convert Python's syntax tree of an expression to a :class:`Node`, a checked expression tree.

    Raises ValueError for anything that the language of kernel functions lacks.
    """

    def __init__(self, e: Expression, source: str) -> None:
        self.e, self.source = e, source

    def refuse(self, node: ast.expr, what: str) -> ValueError:
        token = self.source[node.col_offset : node.end_col_offset][:24]
        return ValueError(f"{what} at {token!r}, column {node.col_offset + 1} of {self.source[:80]!r}")

    def read(self, node: ast.expr, depth: int = 0) -> Node:
        if depth > _MAX_DEPTH:
            raise self.refuse(node, f"more than {_MAX_DEPTH} levels of nesting")
        made = self._read(node, depth + 1)
        if made.function and not made.function.truth and not any(made.names()):
            with np.errstate(all="ignore"):
                number = float(made.evaluate({}))
            if not abs(number) < _MAX_CONSTANT:
                raise self.refuse(node, f"expected a number below {_MAX_CONSTANT:g} in absolute value, got {number}")
            return Node(number=number)
        return made

    def _read(self, node: ast.expr, depth: int) -> Node:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_CONSTANT:
                    raise self.refuse(node, f"expected a number below {_MAX_CONSTANT:g} in absolute value")
                return Node(number=float(value))
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return self._call(_OPERATORS[type(op)], [operand], depth)
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return self._power(node, left, right, depth)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return self._call(_OPERATORS[type(op)], [left, right], depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self._call(_OPERATORS[type(op)], [left, right], depth)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if name not in FUNCTIONS:
                    raise self.refuse(node, f"unknown function {name[:40]!r} (known: {', '.join(FUNCTIONS)})")
                if len(args) != FUNCTIONS[name].arity:
                    raise self.refuse(node, f"{name} takes {FUNCTIONS[name].arity} arguments, got {len(args)}")
                return self._call(FUNCTIONS[name], args, depth)
        raise self.refuse(node, f"{type(node).__name__} is not allowed in an expression")

    def _name(self, node: ast.expr, name: str) -> Node:
        if name in self.e.variables or name in self.e.parameters:
            return Node(name=name)
        if name in FUNCTIONS:
            raise self.refuse(node, f"function {name!r} needs its arguments in parentheses")
        known = ", ".join((*self.e.variables, *self.e.parameters))
        name = name[:40]
        raise self.refuse(node, f"unknown name {name!r} (known: {known}; a parameter needs its value, {name}=...)")

    def _call(self, function: Function, args: list[ast.expr], depth: int) -> Node:
        made = tuple(self.read(argument, depth) for argument in args)
        for i, argument in enumerate(made):
            wanted = function is FUNCTIONS["where"] and i == 0
            if bool(argument.function and argument.function.truth) != wanted:
                got = "a number where a comparison" if wanted else "a comparison where a number"
                raise self.refuse(args[i], f"{got} is expected")
        return Node(function, made)

    def _power(self, node: ast.expr, left: ast.expr, right: ast.expr, depth: int) -> Node:
        """Return a :class:`Node` that computes the power left ** right of two expressions.

        If the exponent is an integer parameter, or a whole number from -16 to 16, the node computes the power by
        repeated squaring. Otherwise the node calls the function ``power`` of the expression language.
        """
        made = self._call(FUNCTIONS["power"], [left, right], depth)
        base, exponent = made.args
        if exponent.name in self.e.integers:
            return Node(_WHOLE, made.args)
        number = exponent.number
        if not (exponent.function or exponent.name) and math.trunc(number) == number and abs(number) <= _MAX_WHOLE:
            return Node(_WHOLE, (base, Node(number=int(number))))
        return made


_COSINES = np.array([1.0, 1 - 1e-6, 0.9, 0.3, 1e-2, 1e-5, -1e-5, -1e-2, -0.3, -0.9, -1.0])
_POINTS = 6  # rounding errors are estimated at this many values of a variable, from its smallest to its largest value
_STEPS, _LARGEST = np.linspace(0, 1, _POINTS), float(np.finfo(np.float64).max)
INVALID = float(np.finfo(np.float32).max)  # error of a value computed as inf or nan, if its exact value is finite


class Extent(NamedTuple):
    """Hold the range of the sizes of some rows, and the range of the absolute values of the rows' entries.

    For a kernel function of inner products, the size of a row is its squared norm. Any other kernel function K(x, y)
    depends on a sum s(x, y) of terms e(x_j, y_j) over the features j. The size of a row x is then twice the larger of
    |s(0, x)| and |s(x, x)|, where 0 is a row of zeros (Kernel.sizes). It estimates the largest |s(x, y)| for any row y.

    Attributes
    ----------
    largest
        the largest size of a row.
    least
        the smallest nonzero size of a row.
    high
        the largest absolute entry of a row, or 0 for a kernel function of inner products.
    low
        the smallest nonzero absolute entry of a row, or 0 for a kernel function of inner products.
    """

    largest: float
    least: float = 0.0
    high: float = 0.0
    low: float = 0.0

    def union(self, other: Extent) -> Extent:
        """Return the extent of all rows of two sets. ``self`` and ``other`` are the extents of the two sets.

        An extent has the largest and the smallest nonzero size of a row (``largest``, ``least``). The size is usually
        the squared norm. An extent also has the largest and the smallest nonzero absolute entry (``high``, ``low``).

        ``largest`` and ``high`` of the result are maxima over both sets. ``least`` and ``low`` are minima over both
        sets. If such a minimum is 0 for one set, the set has no nonzero value, and the result is that of the other set.
        """
        highest = max(self.largest, other.largest), max(self.high, other.high)
        low = [min((one for one in pair if one > 0), default=0.0) for pair in zip(self, other, strict=True)]
        return Extent(highest[0], low[1], highest[1], low[3])


class Evaluation(NamedTuple):
    """Hold the largest errors of an expression that was computed in a dtype for many values of its variables.

    A computed value in the dtype is compared with the exact value, which is computed in a wider type. The absolute
    error is |computed value - exact value|. Infinite exact values do not count.

    Attributes
    ----------
    largest
        the largest absolute exact value.
    error
        the largest absolute error. It is INVALID, the largest float32 number, if a computed value is not finite and its
        exact value is finite.
    outside
        the largest absolute error among values for which a subtree of the expression overflowed or underflowed.
    out_of_range
        whether any subtree of the expression overflowed or underflowed.
    """

    largest: float
    error: float
    outside: float
    out_of_range: bool


def compare(tree: Node, values: Mapping[str, Any], dtype: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Evaluate an expression both in ``dtype`` and in a wider type, and return three arrays.

    ``values`` maps each variable to an array of the wider type, and each parameter to a Python number. The arrays are
    broadcast. The results are:

    1. the values in the wider type;
    2. the absolute errors of the values in ``dtype``. An error is 0 where the value in the wider type is not finite.
       It is INVALID, the largest float32 number, where only the value in ``dtype`` is not finite;
    3. a mask, set where a subtree of the expression overflowed or underflowed in ``dtype``.
    """
    tiny = np.finfo(dtype).tiny

    def narrowed(wide: NDArray[Any], value: Any, left: Any) -> tuple[Any, Any, Any]:
        narrow = np.asarray(value, dtype)
        size = np.abs(narrow)
        if size.min() >= tiny and size.max() < np.inf:
            return wide, narrow, left
        narrow = np.where(size < tiny, narrow.dtype.type(0), narrow)  # some devices flush subnormal numbers to 0
        return wide, narrow, left | ~np.isfinite(narrow) | ((np.abs(wide) < tiny) & (wide != 0))

    def walk(node: Node) -> tuple[Any, Any, Any]:
        if not node.function:
            value: Any = values[node.name] if node.name else node.number
            is_number = not isinstance(value, np.ndarray)
            return (value, value, False) if is_number else narrowed(value, value, False)
        wides, narrows, lefts = zip(*map(walk, node.args), strict=True)
        wide, left = node.apply(wides), reduce(or_, lefts)
        if not isinstance(wide, np.ndarray):  # a subtree without variables, which the host computes in float64
            return wide, wide, False
        narrow = node.apply(narrows)
        return (wide, narrow, left) if node.function.truth else narrowed(wide, narrow, left)

    with np.errstate(all="ignore"):
        wide, narrow, left = np.broadcast_arrays(*walk(tree))
        error = np.abs(narrow - wide)
    error = np.where(np.isfinite(wide), np.where(np.isfinite(error), error, INVALID), 0)
    return wide, error, left


def summary(wide: NDArray[Any], error: NDArray[Any], left: NDArray[Any]) -> Evaluation:
    """Summarize the three arrays that :func:`compare` returns for an expression.

    The expression was evaluated in a dtype, and for comparison in a wider type. ``wide`` holds the values in the wider
    type, and ``error`` the absolute errors of the values in the dtype. ``left`` is True where a part of the expression
    overflowed or underflowed in the dtype. Return the largest finite |wide|, the largest error, the largest error where
    ``left`` is True, and whether ``left`` is True anywhere.
    """
    finite = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    outside = np.where(left, error, 0).max()
    return Evaluation(float(finite), min(float(error.max()), INVALID), min(float(outside), INVALID), bool(left.any()))


def inner_products(rows: Extent, others: Extent, wide: type) -> dict[str, NDArray[Any]]:
    """Return values of xx = <x,x>, yy = <y,y>, dot = <x,y> and sqdist = |x - y|^2 at which rounding errors are tested.

    ``rows`` gives the smallest and the largest squared norm of the rows x, and ``others`` those of the rows y. The
    result maps each of the four names to an array of the type ``wide``. The arrays broadcast to all combinations of a
    value of xx, a value of yy and a cosine of the angle between x and y.
    """
    xx = between(rows.least, rows.largest, wide)[:, None, None]
    yy = between(others.least, others.largest, wide)[:, None]
    with np.errstate(invalid="ignore"):  # infinite norms give nan
        # If |x|^2 = |y|^2, |x| |y| is taken as |x|^2 without square roots, so that x = y gives |x - y|^2 = 0 exactly.
        dot = np.where(xx == yy, xx, np.sqrt(xx) * np.sqrt(yy)) * _COSINES
        return {"xx": xx, "yy": yy, "dot": dot, "sqdist": np.maximum(xx + yy - 2 * dot, 0)}


def elements(rows: Extent, others: Extent, signs: Sequence[int], wide: type) -> dict[str, NDArray[Any]]:
    """Return test values of an entry x_j of a row x and of an entry y_j of a row y.

    The caller measures at these values the rounding errors of a function of x_j and y_j. The result is a dict with two
    arrays of type ``wide``: "x" has values of x_j, and "y" has values of y_j. The arrays broadcast to all pairs of a
    value of x_j and a value of y_j.

    The values are 0, and numbers with the signs in ``signs``, which lists 1, -1 or both. ``rows`` gives the smallest
    nonzero and the largest absolute value of x_j, and ``others`` gives the same for y_j.
    """
    x, y = (
        np.concatenate([[0.0], *(sign * between(one.low, one.high, wide) for sign in signs)]) for one in (rows, others)
    )
    return {"x": x[:, None], "y": y}


def between(least: float, largest: float, wide: type = np.longdouble) -> NDArray[Any]:
    """Return an array of _POINTS = 6 numbers in geometric progression from ``least`` to ``largest``, of type ``wide``.

    If ``least`` is 0 or equals ``largest``, all six numbers are ``largest``.
    """
    if not 0 < least < largest:
        return np.full(_POINTS, largest, wide)
    inner = np.exp(math.log(least) * (1 - _STEPS) + math.log(min(largest, _LARGEST)) * _STEPS)
    found: NDArray[Any] = inner.astype(wide)
    found[[0, -1]] = least, largest
    return found
