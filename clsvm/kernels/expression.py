"""Expressions over named variables and parameters: one tree, evaluated by NumPy and rendered as OpenCL.

The text is parsed with Python's ``ast`` against the table FUNCTIONS; nothing of it ever reaches the compiler, which
sees only operators and functions of that table, numbers in the program's own type and names made here. Subtrees of
parameters alone are hoisted: the host computes them in float64 and passes them as kernel arguments, so new values
build nothing and cost nothing inside. Whole powers become products by repeated squaring, repeated subtrees a variable.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special


def _whole_power(x: Any, n: int) -> Any:
    """Return x ** n by repeated squaring, as ``ipow`` does on the device."""
    result, square, left = 1.0, x, abs(int(n))
    while left:
        result = result * square if left & 1 else result
        left >>= 1
        square = square * square if left else square
    return result if n >= 0 else np.divide(1.0, result)


def _erf(x: Any) -> Any:
    """Return erf(x) in the type of x; SciPy has none for long double, in which float64's value is within range."""
    wide = getattr(x, "dtype", None) == np.longdouble
    return special.erf(x.astype(np.float64)).astype(np.longdouble) if wide else special.erf(x)


class Function(NamedTuple):
    """An operator or function: for NumPy, as OpenCL text of its arguments, whether it yields a truth value."""

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
_WHOLE = Function(_whole_power, "ipow({}, {})", 2)  # its second argument is a whole number, not a value
_FOREIGN = re.compile(r"//|<<|>>|\b(?:and|or|not|is|in|if|await|yield)\b|(?<![\d.])\.\s*[A-Za-z_]\w*|(?<![<>=!])=(?!=)")
_MAX_LENGTH, _MAX_DEPTH, _MAX_CONSTANT, _MAX_WHOLE = 4096, 100, 1e30, 16


@dataclass(frozen=True)
class Node:
    """A checked tree: a number, a name, or ``function`` of ``args``."""

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
        return self.applied(argument.evaluate(values) for argument in self.args)

    def applied(self, arguments: Iterable[Any]) -> Any:
        """Return the function's value for the values of its arguments, a Python number where they all are numbers."""
        assert self.function
        # (NumPy's whole numbers would wrap round, and have no negative powers)
        value = self.function.numpy(*(float(a) if isinstance(a, int) else a for a in arguments))
        # (NumPy's own scalars would turn float32 arrays into float64)
        return float(value) if isinstance(value, np.floating) or getattr(value, "shape", None) == () else value


@dataclass(frozen=True)
class Expression:
    """A checked expression.

    text: what the user wrote, kept in Python's normal form. variables: names that stand for values on the device.
    parameters: names that stand for numbers, ``integers`` those of them that are whole.
    Raises ValueError that names the token and its column for anything outside the language, TypeError for no text.
    """

    text: str
    variables: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    integers: frozenset[str] = frozenset()
    tree: Node = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        parsed = _parse(self.text)
        tree = _Reader(self, self.text.replace("\n", " ")).read(parsed)
        if tree.function and tree.function.truth:
            raise ValueError(f"a comparison stands only in where(...), got one as the value of {self.text!r}")
        object.__setattr__(self, "text", ast.unparse(parsed))
        object.__setattr__(self, "tree", tree)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the variables and parameters that are used."""
        return frozenset(self.tree.names())

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return NumPy's value of the tree; ``values`` maps every used name to an array or a Python number."""
        return self.tree.evaluate(values)

    @cached_property
    def exponents(self) -> frozenset[str]:
        """Return the parameters that stand as exponents of products."""
        return frozenset(name for node in self.tree.walk() if node.function is _WHOLE and (name := node.args[1].name))

    @cached_property
    def hoisted(self) -> tuple[Node, ...]:
        """Return the largest subtrees of parameters alone: what the device gets as numbers, in the order of their
        names."""
        return tuple(dict.fromkeys(self._hoist(self.tree)))

    def _hoist(self, node: Node) -> Iterator[Node]:
        names = set(node.names())
        if names and not names & set(self.variables) and not (node.function and node.function.truth):
            yield node
        else:
            for argument in node.args:
                yield from self._hoist(argument)

    def opencl(self, prefix: str) -> tuple[list[str], str]:
        """Return (statements, value): OpenCL text over values of type ``kv``; hoisted number i is ``<prefix><i>``."""
        arguments = {node: f"{prefix}{i}" for i, node in enumerate(self.hoisted)}
        times: Counter[Node] = Counter()
        _count(self.tree, arguments, times)
        known: dict[Node, str] = {}
        statements: list[str] = []

        def render(node: Node) -> str:
            if node in arguments:
                return f"((kv){arguments[node]})"
            if node.name:
                return node.name
            if not node.function:
                return f"((kv)NUMBER({node.number!r}))"
            if node not in known:
                if node.function is _WHOLE:
                    base, exponent = node.args
                    text = f"ipow({render(base)}, {arguments[exponent] if exponent.name else exponent.number})"
                else:
                    text = node.function.opencl.format(*map(render, node.args))
                if times[node] < 2 or node.function.truth:
                    return text
                known[node] = f"{prefix}_{len(known)}"
                statements.append(f"const kv {known[node]} = {text};")
            return known[node]

        value = render(self.tree)
        return statements, value


def _count(node: Node, arguments: Mapping[Node, str], times: Counter[Node]) -> None:
    times[node] += 1
    if node not in arguments and times[node] == 1:
        for argument in node.args:
            _count(argument, arguments, times)


def _parse(text: Any) -> ast.expr:
    """Return Python's own tree of a text, of which nothing is left that it would take too long or too kindly."""
    if not isinstance(text, str):
        raise TypeError(f"an expression is text, got {text!r}")
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"expression has {len(text)} characters, at most {_MAX_LENGTH} are taken")
    if bad := re.search(r"[^\w.+\-*/(),<>=! \n]", text, re.ASCII):
        hint = " (a power is written a ** b)" if bad[0] == "^" else ""
        words = f"character {bad[0]!r} at column {bad.start() + 1} of {text[:80]!r} is not part of the language"
        raise ValueError(words + hint)
    blanks = len(text) - len(text.lstrip())  # which Python takes for an indent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = ast.parse(text.replace("\n", " ").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        offset = getattr(error, "offset", 1)  # 0: where the text ends
        column = offset + blanks if offset else len(text) + 1
        near, reason = text[column - 1 : column + 9] or "the end", error.args[0] if error.args else "too deep"
        raise ValueError(f"not an expression: {reason}, near {near!r} at column {column} of {text[:80]!r}") from None
    for node in ast.walk(parsed):
        if isinstance(node, ast.expr):
            node.col_offset, node.end_col_offset = node.col_offset + blanks, (node.end_col_offset or 0) + blanks
    return parsed


class _Reader:
    """Makes our tree of Python's, refusing what the language does not have."""

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
                raise self.refuse(node, f"{number} is not a number of moderate size")
            return Node(number=number)
        return made

    def _read(self, node: ast.expr, depth: int) -> Node:
        match node:
            case ast.Constant(value=value):
                if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MAX_CONSTANT:
                    raise self.refuse(node, "a constant that is not a number of moderate size")
                return Node(number=float(value))
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return self._call(node, _OPERATORS[type(op)], [operand], depth)
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return self._power(node, left, right, depth)
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return self._call(node, _OPERATORS[type(op)], [left, right], depth)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self._call(node, _OPERATORS[type(op)], [left, right], depth)
            case ast.Compare(ops=ops) if len(ops) > 1:
                raise self.refuse(node, "a chain of comparisons (write where(a < b, where(b < c, ...), ...))")
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if name not in FUNCTIONS:
                    raise self.refuse(node, f"unknown function {name[:40]!r} (known: {', '.join(FUNCTIONS)})")
                if len(args) != FUNCTIONS[name].arity:
                    raise self.refuse(node, f"{name} takes {FUNCTIONS[name].arity} arguments, got {len(args)}")
                return self._call(node, FUNCTIONS[name], args, depth)
        source = self.source[: node.end_col_offset]
        if token := _FOREIGN.search(source, node.col_offset):
            node.col_offset, node.end_col_offset = token.span()
        hint = " (write where(a < b, u, v))" if isinstance(node, ast.IfExp) else ""
        raise self.refuse(node, f"{type(node).__name__} is not part of the language{hint}")

    def _name(self, node: ast.expr, name: str) -> Node:
        if name in self.e.variables or name in self.e.parameters:
            return Node(name=name)
        if name in FUNCTIONS:
            raise self.refuse(node, f"function {name!r} without its arguments")
        known = ", ".join((*self.e.variables, *self.e.parameters))
        name = name[:40]
        raise self.refuse(node, f"unknown name {name!r} (known: {known}; a parameter needs its value, {name}=...)")

    def _call(self, node: ast.expr, function: Function, args: list[ast.expr], depth: int) -> Node:
        made = tuple(self.read(argument, depth) for argument in args)
        for i, argument in enumerate(made):
            wanted = function is FUNCTIONS["where"] and i == 0
            if bool(argument.function and argument.function.truth) != wanted:
                got = "a number where a comparison" if wanted else "a comparison where a number"
                raise self.refuse(args[i], f"{got} is expected")
        return Node(function, made)

    def _power(self, node: ast.expr, left: ast.expr, right: ast.expr, depth: int) -> Node:
        """Return ``**``: by products for a small whole exponent or an integer parameter, else by ``power``."""
        made = self._call(node, FUNCTIONS["power"], [left, right], depth)
        base, exponent = made.args
        if exponent.name in self.e.integers:
            return Node(_WHOLE, made.args)
        number = exponent.number
        if not (exponent.function or exponent.name) and math.trunc(number) == number and abs(number) <= _MAX_WHOLE:
            return Node(_WHOLE, (base, Node(number=int(number))))
        return made
