"""Describe kernel functions by records (:class:`Spec`). The end of this file has the records of built-in functions.

A kernel function K(x, y) has one of two forms:

    inner-product form   K(x, y) = f(dot, sqdist, xx, yy)      xx = <x,x>, yy = <y,y>, dot = <x,y>,
                                                               sqdist = max(xx + yy - 2 dot, 0)   (GTSVM, section 5.2)
    element-wise form    K(x, y) = f(s)                        s = sum_j e(x_j, y_j) over all features j

A record has the expressions f and e as texts, from which the OpenCL code is made. Most records of built-in functions
also have an oracle, a NumPy function that computes K in float64. An oracle is written independently of the expressions,
and is faster than their evaluation on the host.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist, squareform

from clsvm.kernels.expression import FUNCTIONS, Expression, Node

Matrix = NDArray[np.float64]
Oracle = Callable[..., Matrix]
VARIABLES = ("dot", "sqdist", "xx", "yy")  # variables of f in K(x, y) = f(<x,y>, |x - y|^2, <x,x>, <y,y>)
SUM, ELEMENTS = ("s",), ("x", "y")  # variables of f and of e in K(x, y) = f(s), s = sum_j e(x_j, y_j)


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a kernel function.

    Attributes
    ----------
    name
        name of the parameter.
    default
        default value of the parameter.
    lower
        lower limit of the parameter's values.
    above
        whether a value must be larger than ``lower``; otherwise it may equal ``lower``.
    integer
        whether a value must be a whole number.
    """

    name: str
    default: float = field(compare=False)
    lower: float = field(default=-np.inf, compare=False)
    above: bool = field(default=False, compare=False)
    integer: bool = False

    def check(self, value: Any) -> float | int:
        """Return ``value`` as a Python number.

        Raises TypeError if ``value`` has a wrong type. Raises ValueError if ``value`` is not finite, or is outside the
        limits of this parameter.
        """
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral if self.integer else Real):
            raise TypeError(f"{self.name} must be {'an integer' if self.integer else 'a number'}, got {value!r}")
        try:
            number = int(value) if self.integer else float(value)  # type: ignore[call-overload]
            finite = math.isfinite(number)
        except OverflowError:  # a Python int can be larger than any float
            raise ValueError(f"{self.name} must be finite, got a whole number too large for float64") from None
        if not finite or number < self.lower or (self.above and number == self.lower):
            raise ValueError(f"{self.name} must be finite{' and' * bool(self._bound)}{self._bound}, got {value!r}")
        return number

    @property
    def _bound(self) -> str:
        return "" if self.lower == -np.inf else f" {'>' if self.above else '>='} {self.lower:g}"

    @property
    def limits(self) -> str:
        return f"{'whole ' * self.integer}number{self._bound}"


class Argument(NamedTuple):
    """Describe a number that OpenCL kernels get as an argument to compute a kernel function.

    Attributes
    ----------
    type
        type of the number in the OpenCL text: "int", or "real" for the dtype of kernel values.
    name
        name of the number in the OpenCL text.
    value
        function that computes the number from the values of the kernel function's parameters.
    """

    type: str
    name: str
    value: Callable[[Mapping[str, Any]], float | int]


@dataclass(frozen=True)
class Spec:
    """Describe a kernel function K(x, y): a function f of inner products, or f(s) with s = sum_j e(x_j, y_j).

    The inner products are dot = <x,y>, xx = <x,x>, yy = <y,y> and sqdist = |x - y|^2.

    Attributes
    ----------
    name
        name of a built-in function, "" for a function that a user defined.
    parameters
        parameters of the function.
    text
        text of the expression f.
    element_text
        text of the expression e, "" for a function of inner products.
    oracle
        function oracle(X, Y, **params) that returns the kernel matrix of X and Y in float64, or None.
    doc
        formula in mathematical notation, for lists of kernel functions.
    nonnegative
        whether negative entries of rows are refused.
    """

    name: str
    parameters: tuple[Parameter, ...]
    text: str
    element_text: str = ""
    oracle: Oracle | None = field(default=None, compare=False, repr=False)
    doc: str = field(default="", compare=False, repr=False)
    nonnegative: bool = False

    def _parsed(self, text: str, variables: tuple[str, ...]) -> Expression:
        integers = frozenset(p.name for p in self.parameters if p.integer)
        return Expression(text, variables, tuple(p.name for p in self.parameters), integers)

    @cached_property
    def expression(self) -> Expression:
        return self._parsed(self.text, SUM if self.element_text else VARIABLES)

    @cached_property
    def element(self) -> Expression | None:
        return self._parsed(self.element_text, ELEMENTS) if self.element_text else None

    @property
    def formula(self) -> str:
        """Return the formula of the kernel function K(x, y) as text.

        If K(x, y) is an expression in inner products such as <x, y>, the formula is this expression. If K(x, y) = f(s)
        with s = sum_j e(x_j, y_j), the formula has the expression f first, and then the expression e.
        """
        sums = f", s = sum {self.element.text}" if self.element else ""
        return self.expression.text + sums

    @cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        return (self.expression, self.element) if self.element else (self.expression,)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Return the numbers that OpenCL kernels get as arguments to compute the kernel function.

        A kernel function K(x, y) is an expression f in inner products of x and y, or f(sum_j e(x_j, y_j)) with a second
        expression e. Each argument is the value of a part of an expression. The part contains parameters, but no
        variable that depends on x or y. An example is -gamma in exp(-gamma * sqdist), with sqdist = |x - y|^2. The
        arguments that belong to f are named f0, f1, ... The arguments that belong to e are named e0, e1, ...
        """
        return tuple(
            Argument("int" if node.name in e.integers else "real", f"{prefix}{i}", node.evaluate)
            for prefix, e in zip("fe", self._expressions, strict=False)
            for i, node in enumerate(e.hoisted)
        )

    @cached_property
    def constants(self) -> frozenset[float]:
        """Return the numeric constants that are written in the kernel function's expression f.

        If the kernel function has the form K(x, y) = f(sum_j e(x_j, y_j)), the constants that are written in the
        expression e are included.
        """
        nodes = (node for e in self._expressions for node in e.tree.walk())
        return frozenset(node.number for node in nodes if not node.name and not node.function)

    @cached_property
    def of_distance(self) -> bool:
        """Return whether K(x, y) depends on x - y alone, so that adding one vector to all rows changes no value."""
        if self.element is None:
            return not self.expression.names & {"dot", "xx", "yy"}
        return _of_difference(self.element.tree)


def _of_difference(node: Node) -> bool:
    """Return whether x and y occur in the expression tree ``node`` only as x - y or y - x."""
    if node.function and node.function.numpy is np.subtract and {a.name for a in node.args} == set(ELEMENTS):
        return True
    return node.name not in ELEMENTS and all(map(_of_difference, node.args))


def _name(name: str) -> str:
    """Return ``name`` if a parameter can have this name, else raise ValueError.

    Expressions and scikit-learn's grid searches must be able to use the name, so "__" is not allowed.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name or keyword.iskeyword(name):
        raise ValueError(f"a parameter's name is letters, digits and single underscores, got {name!r}")
    if name in (*FUNCTIONS, *VARIABLES, *SUM, *ELEMENTS, "nonnegative"):
        raise ValueError(f"{name!r} is a reserved name and cannot be a parameter")
    return name


def user_spec(function: Any, element: Any, params: Mapping[str, Any]) -> Spec:
    """Return the record of a kernel function that a user defines by the texts ``function`` and ``element``.

    ``function`` is the expression f, and ``element`` the expression e in K(x, y) = f(sum_j e(x_j, y_j)). For a function
    of inner products, ``element`` is "". ``params`` are the values of the parameters. A parameter is declared an
    integer if its value is an integer and it occurs as an exponent.

    Raises TypeError if an expression is not text or a value is not a number. Raises ValueError if an expression is
    invalid, if a parameter has an invalid name or value, if a parameter occurs in no expression, or if ``element``
    contains neither x nor y.
    """
    given = [Parameter(_name(name), 1.0).check(value) for name, value in params.items()]
    if not isinstance(function, str) or not isinstance(element, str):
        raise TypeError(f"a kernel function must be text, got {function if isinstance(element, str) else element!r}")
    names = tuple(params)
    integers = frozenset(name for name, value in params.items() if isinstance(value, Integral))
    parsed = [Expression(function, SUM if element else VARIABLES, names, integers)]
    parsed += [Expression(element, ELEMENTS, names, integers)] if element else []
    if unused := [name for name in names if not any(name in e.names for e in parsed)]:
        raise ValueError(f"parameter {', '.join(unused)} does not occur in {' and '.join(e.text for e in parsed)!r}")
    if element and not parsed[1].names & set(ELEMENTS):
        raise ValueError(f"the element expression has neither x nor y: {element!r}")
    whole = integers & {name for e in parsed for name in e.exponents}
    made = tuple(Parameter(name, v, integer=name in whole) for name, v in zip(names, given, strict=True))
    return Spec("", made, parsed[0].text, parsed[1].text if element else "")


# An oracle is a NumPy function that computes a built-in kernel function. It does not use the function's expressions,
# from which the OpenCL code is made.

_FEW, _LONG = 1024, 8  # for X of at most _FEW rows and at least _LONG columns, distances(X, X) computes half a matrix


def distances(X: Matrix, Y: Matrix, metric: str) -> Matrix:
    """Return the distances (n, m) between the rows of X (n, d) and of Y (m, d) in SciPy's ``metric``.

    If Y is X and has 2 to 1024 rows of at least 8 columns, the distance of each pair of rows is computed only once.
    """
    halved = Y is X and 1 < len(X) <= _FEW and X.shape[1] >= _LONG
    return squareform(pdist(X, metric), checks=False) if halved else cdist(X, Y, metric)


def _decay(metric: str) -> Oracle:
    """Return a NumPy function of X, Y and gamma that computes exp(-gamma * distance) in SciPy's ``metric``."""

    def oracle(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
        far = distances(X, Y, metric)
        far *= -gamma
        return np.exp(far, out=far)

    return oracle


def _matern32(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(3.0) * gamma * distances(X, Y, "euclidean")
    return (1 + t) * np.exp(-t)


def _matern52(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(5.0) * gamma * distances(X, Y, "euclidean")
    return (1 + t + t * t / 3) * np.exp(-t)


def _by_feature(term: Callable[[Matrix, Matrix], Matrix]) -> Oracle:
    """Return a NumPy function of X and Y that computes the kernel matrix of K(x, y) = sum_j term(x_j, y_j).

    ``term`` gets column j of X and of Y, and returns the terms of feature j for all pairs of rows.
    """

    def oracle(X: Matrix, Y: Matrix) -> Matrix:
        K = np.zeros((len(X), len(Y)))
        for x, y in zip(X.T, Y.T, strict=True):
            K += term(x, y)
        return K

    return oracle


def _chi2_term(x: Matrix, y: Matrix) -> Matrix:
    total = np.add.outer(x, y)
    return -np.divide(np.subtract.outer(x, y) ** 2, total, out=np.zeros_like(total), where=total != 0)


_additive_chi2 = _by_feature(_chi2_term)
_GAMMA = Parameter("gamma", 1.0, lower=0.0, above=True)
_COEF0 = Parameter("coef0", 0.0)
_DEGREE = Parameter("degree", 3, lower=0, integer=True)
_ALPHA = Parameter("alpha", 1.0, lower=0.0, above=True)
_CHI2 = "where(x + y > 0, (x - y) ** 2 / (x + y), 0)"

_SPECS = (
    Spec("linear", (), "dot", doc="<x,y>"),
    Spec(
        "poly", (_GAMMA, _COEF0, _DEGREE), "(gamma * dot + coef0) ** degree", "",
        lambda X, Y, gamma, coef0, degree: np.power(gamma * (X @ Y.T) + coef0, degree), "(gamma <x,y> + coef0)^degree",
    ),
    Spec("rbf", (_GAMMA,), "exp(-gamma * sqdist)", "", _decay("sqeuclidean"), "exp(-gamma |x-y|^2)"),
    Spec("sigmoid", (_GAMMA, _COEF0), "tanh(gamma * dot + coef0)", doc="tanh(gamma <x,y> + coef0)"),
    Spec("exponential", (_GAMMA,), "exp(-gamma * sqrt(sqdist))", "", _decay("euclidean"), "exp(-gamma |x-y|)"),
    Spec(
        "rational_quadratic", (_GAMMA, _ALPHA), "exp(-alpha * log1p(gamma / alpha * sqdist))", "",
        lambda X, Y, gamma, alpha: np.power(1 + gamma * distances(X, Y, "sqeuclidean") / alpha, -alpha),
        "(1 + gamma |x-y|^2 / alpha)^-alpha",
    ),
    Spec(
        "matern32", (_GAMMA,), "(1 + sqrt(3) * gamma * sqrt(sqdist)) * exp(-(sqrt(3) * gamma * sqrt(sqdist)))", "",
        _matern32, "(1 + t) exp(-t), t = sqrt(3) gamma |x-y|",
    ),
    Spec(
        "matern52", (_GAMMA,),
        "(1 + sqrt(5) * gamma * sqrt(sqdist) + 5 / 3 * gamma ** 2 * sqdist) * exp(-(sqrt(5) * gamma * sqrt(sqdist)))",
        "", _matern52, "(1 + t + t^2/3) exp(-t), t = sqrt(5) gamma |x-y|",
    ),
    Spec(
        "cosine", (), "where(minimum(xx, yy) > 0, dot / (sqrt(xx) * sqrt(yy)), 0)",
        doc="<x,y> / (|x| |y|), 0 for a zero row",
    ),
    Spec("laplacian", (_GAMMA,), "exp(-gamma * s)", "abs(x - y)", _decay("cityblock"), "exp(-gamma sum |x-y|)"),
    Spec(
        "canberra", (_GAMMA,), "exp(-gamma * s)", "where(abs(x) + abs(y) > 0, abs(x - y) / (abs(x) + abs(y)), 0)",
        _decay("canberra"), "exp(-gamma sum |x-y| / (|x| + |y|)), 0/0 = 0",
    ),
    Spec(
        "chi2", (_GAMMA,), "exp(-gamma * s)", _CHI2,
        lambda X, Y, gamma: np.exp(gamma * _additive_chi2(X, Y)), "exp(-gamma sum (x-y)^2 / (x+y)), 0/0 = 0", True,
    ),
    Spec(
        "additive_chi2", (), "-s", _CHI2,
        _additive_chi2, "-sum (x-y)^2 / (x+y), 0/0 = 0; for machines with an offset", True,
    ),
    Spec("histogram_intersection", (), "s", "minimum(x, y)", _by_feature(np.minimum.outer), "sum min(x, y)", True),
)  # fmt: skip
BUILTIN: Mapping[str, Spec] = {spec.name: spec for spec in _SPECS}
