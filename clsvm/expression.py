"""Expressions over dot, sqdist, xx, yy and named parameters: one tree, evaluated by NumPy and rendered as OpenCL.

The text is parsed with Python's ``ast`` against a fixed list of names, operators and functions; nothing of it is
ever passed through to the compiler. ``x ** p`` with an integer literal or an integer parameter becomes a product by
repeated squaring; constants are written in the program's own type.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import erf

VARIABLES = ("dot", "sqdist", "xx", "yy")

# name -> (NumPy function, OpenCL function, number of arguments)
FUNCTIONS: dict[str, tuple[Callable[..., Any], str, int]] = {
    "exp": (np.exp, "exp", 1),
    "expm1": (np.expm1, "expm1", 1),
    "log": (np.log, "log", 1),
    "log1p": (np.log1p, "log1p", 1),
    "sqrt": (np.sqrt, "sqrt", 1),
    "tanh": (np.tanh, "tanh", 1),
    "cosh": (np.cosh, "cosh", 1),
    "sin": (np.sin, "sin", 1),
    "cos": (np.cos, "cos", 1),
    "abs": (np.abs, "fabs", 1),
    "erf": (erf, "erf", 1),
    "maximum": (np.maximum, "fmax", 2),
    "minimum": (np.minimum, "fmin", 2),
}
_OPERATORS: dict[type[ast.AST], tuple[Callable[..., Any], str]] = {
    ast.Add: (np.add, "+"),
    ast.Sub: (np.subtract, "-"),
    ast.Mult: (np.multiply, "*"),
    ast.Div: (np.divide, "/"),
}
_MAX_LENGTH = 4096


@dataclass(frozen=True)
class Expression:
    """A checked expression.

    text: what the user wrote. parameters: names allowed beside VARIABLES. integers: those of them that are integers.
    Raises ValueError that names the token and its column for anything outside the language.
    """

    text: str
    parameters: tuple[str, ...] = ()
    integers: frozenset[str] = frozenset()
    names: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        names: set[str] = set()
        _check(self._tree(), self, names)
        object.__setattr__(self, "names", frozenset(names))

    def _tree(self) -> ast.expr:
        if len(self.text) > _MAX_LENGTH:
            raise ValueError(f"expression has {len(self.text)} characters, at most {_MAX_LENGTH} are taken")
        try:
            return ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            column = getattr(error, "offset", None)
            raise ValueError(f"not an expression (column {column}): {self.text[:80]!r}") from None

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """NumPy value of the tree; ``values`` maps every used name to an array or a number."""
        return _evaluate(self._tree(), self, values)

    def opencl(self) -> str:
        """OpenCL text of the tree over values of type ``kv``; parameters are scalars named ``p_<name>``."""
        return _render(self._tree(), self)


def _check(node: ast.expr, e: Expression, names: set[str]) -> None:
    def refuse(what: str) -> ValueError:
        return ValueError(f"{what} at column {node.col_offset + 1} of {e.text!r}")

    match node:
        case ast.Constant(value=value):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
                raise refuse(f"constant {str(value)[:20]!r} is not a number of moderate size")
        case ast.Name(id=name):
            if name not in VARIABLES and name not in e.parameters:
                raise refuse(f"unknown name {name!r} (known: {', '.join((*VARIABLES, *e.parameters))})")
            names.add(name)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand, e, names)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            if _exponent(right, e) is None:
                raise refuse("exponent of ** is neither a small whole number nor an integer parameter")
            _check(left, e, names)
            if isinstance(right, ast.Name):
                names.add(right.id)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            _check(left, e, names)
            _check(right, e, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in FUNCTIONS:
                raise refuse(f"unknown function {name!r} (known: {', '.join(FUNCTIONS)})")
            if len(args) != FUNCTIONS[name][2]:
                raise refuse(f"{name} takes {FUNCTIONS[name][2]} arguments, got {len(args)}")
            for argument in args:
                _check(argument, e, names)
        case _:
            raise refuse(f"{type(node).__name__} is not part of the language")


def _exponent(node: ast.expr, e: Expression) -> int | str | None:
    """The exponent of ``**`` as a whole number 0..64 or the name of an integer parameter, else None."""
    match node:
        case ast.Constant(value=int(value)) if 0 <= value <= 64 and not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in e.integers:
            return name
    return None


def _evaluate(node: ast.expr, e: Expression, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand):
            inner = _evaluate(operand, e, values)
            return -inner if isinstance(op, ast.USub) else inner
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _evaluate(left, e, values) ** _evaluate(right, e, values)
        case ast.BinOp(op=op, left=left, right=right):
            return _OPERATORS[type(op)][0](_evaluate(left, e, values), _evaluate(right, e, values))
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name][0](*(_evaluate(a, e, values) for a in args))
    raise AssertionError(node)


def _render(node: ast.expr, e: Expression) -> str:
    match node:
        case ast.Constant(value=value):
            return f"((kv)(real){float(str(value))!r})"
        case ast.Name(id=name):
            return name if name in VARIABLES else f"((kv)p_{name})"
        case ast.UnaryOp(op=op, operand=operand):
            return f"({'-' if isinstance(op, ast.USub) else ''}{_render(operand, e)})"
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            power = _exponent(right, e)
            return f"ipow({_render(left, e)}, {power if isinstance(power, int) else 'p_' + str(power)})"
        case ast.BinOp(op=op, left=left, right=right):
            return f"({_render(left, e)} {_OPERATORS[type(op)][1]} {_render(right, e)})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"{FUNCTIONS[name][1]}({', '.join(_render(a, e) for a in args)})"
    raise AssertionError(node)
