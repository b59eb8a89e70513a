"""A user's own kernel functions as records, and the names of their parameters."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping
from itertools import chain, count
from numbers import Integral
from typing import Any

from clsvm.kernels.expression import FUNCTIONS, Expression
from clsvm.kernels.records import ELEMENTS, SUM, VARIABLES, Parameter, Spec


def _name(name: str) -> str:
    """A parameter's name. Raises ValueError for one that an expression could not hold or grid search not reach."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name or keyword.iskeyword(name):
        raise ValueError(f"a parameter's name is letters, digits and single underscores, got {name!r}")
    if name in (*FUNCTIONS, *VARIABLES, *SUM, *ELEMENTS, "nonnegative"):
        raise ValueError(f"{name!r} is a name of the language and cannot be a parameter")
    return name


def own(function: Any, element: Any, params: Mapping[str, Any]) -> Spec:
    """The record of a user's own kernel function. A parameter is whole where it is given so and stands as exponent."""
    given = [Parameter(_name(name), 1.0).check(value) for name, value in params.items()]
    if not isinstance(function, str) or not isinstance(element, str):
        raise TypeError(f"a kernel function is text, got {function if isinstance(element, str) else element!r}")
    names = tuple(params)
    integers = frozenset(name for name, value in params.items() if isinstance(value, Integral))
    texts = ((function, SUM if element else VARIABLES), *([(element, ELEMENTS)] if element else []))
    parsed = [Expression(text, variables, names, integers) for text, variables in texts]
    unused = [name for name in names if not any(name in e.names for e in parsed)]
    if unused:
        raise ValueError(f"parameter {', '.join(unused)} does not stand in {' and '.join(e.text for e in parsed)!r}")
    if element and not parsed[1].names & set(ELEMENTS):
        raise ValueError(f"the element expression has neither x nor y: {element!r}")
    whole = integers & {name for e in parsed for name in e.exponents}
    made = tuple(Parameter(name, v, integer=name in whole) for name, v in zip(names, given, strict=True))
    return Spec("", made, parsed[0].text, parsed[1].text if element else "")


def free(name: str, taken: Any) -> str:
    """``name``, or name_2, name_3, ... where it is taken."""
    return next(n for n in chain([name], (f"{name}_{i}" for i in count(2))) if n not in taken)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names for its parameters."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)
