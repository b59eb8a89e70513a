"""Kernel functions as records: one record at the end of this file is all that a new built-in costs.

    inner-product form   K(x, y) = f(dot, sqdist, xx, yy)      xx = <x,x>, yy = <y,y>, dot = <x,y>,
                                                               sqdist = max(xx + yy - 2 dot, 0)   (GTSVM, section 5.2)
    element-wise form    K(x, y) = f(s),  s = sum_j e(x_j, y_j)

Each record carries its expressions, from which the device code is made, and an oracle: the same function written
independently on vectors, in float64, against which tests hold every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist, squareform

from clsvm.kernels.expression import Expression, Node

Matrix = NDArray[np.float64]
VARIABLES = ("dot", "sqdist", "xx", "yy")  # of the inner-product form
SUM, ELEMENTS = ("s",), ("x", "y")  # of the element-wise form


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its default and its limits (``lower`` itself excluded where ``above``)."""

    name: str
    default: float = field(compare=False)
    lower: float = field(default=-np.inf, compare=False)
    above: bool = field(default=False, compare=False)
    integer: bool = False

    def check(self, value: Any) -> float | int:
        """``value`` as a plain number. Raises TypeError or ValueError naming what was got and what was expected."""
        kind = Integral if self.integer else Real
        if isinstance(value, bool | np.bool_) or not isinstance(value, kind):
            expected = "an integer" if self.integer else "a number"
            raise TypeError(f"{self.name} must be {expected}, got {value!r}")
        number: float | int
        try:
            number = int(value) if self.integer else float(value)  # type: ignore[call-overload]
            finite = math.isfinite(number)
        except OverflowError:  # (Python's whole numbers have no end)
            raise ValueError(f"{self.name} must be finite, got a whole number too large for float64") from None
        if not finite or number < self.lower or (self.above and number == self.lower):
            expected = "" if self.lower == -np.inf else f" {'>' if self.above else '>='} {self.lower:g}"
            raise ValueError(f"{self.name} must be finite{expected and ' and' + expected}, got {value!r}")
        return number

    @property
    def limits(self) -> str:
        kind = "whole number" if self.integer else "number"
        return kind if self.lower == -np.inf else f"{kind} {'>' if self.above else '>='} {self.lower:g}"


class Argument(NamedTuple):
    """A number that the device gets: its OpenCL type ("real" or "int"), its name there, the subtree it is."""

    type: str
    name: str
    value: Callable[[Mapping[str, Any]], float | int]


@dataclass(frozen=True)
class Spec:
    """What a kernel function is.

    name ("" for a user's own), parameters, text of f, text of e ("" for the inner-product form), oracle(X, Y, **params)
    -> (n, m) float64 or None, doc line, nonnegative: whether the rows must be.
    """

    name: str
    parameters: tuple[Parameter, ...]
    text: str
    element_text: str = ""
    oracle: Callable[..., Matrix] | None = field(default=None, compare=False, repr=False)
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
        """The expressions in their normal form."""
        sums = f", s = sum {self.element.text}" if self.element else ""
        return self.expression.text + sums

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """What the device gets beside the rows: the hoisted numbers of f (f0, f1, ...) and of e (e0, e1, ...)."""
        made = []
        for prefix, e in (("f", self.expression), ("e", self.element)):
            for i, node in enumerate(e.hoisted if e else ()):
                made.append(Argument("int" if e and e.whole(node) else "real", f"{prefix}{i}", node.evaluate))
        return tuple(made)

    @cached_property
    def constants(self) -> frozenset[float]:
        """Numbers that stand in the expressions."""
        trees = (e.tree for e in (self.expression, self.element) if e)
        return frozenset(n.number for tree in trees for n in tree.walk() if not n.name and not n.function)

    @cached_property
    def of_distance(self) -> bool:
        """True where the function depends on x - y alone, so that shifting all rows changes nothing."""
        if self.element is None:
            return not self.expression.names & {"dot", "xx", "yy"}
        return _of_difference(self.element.tree)


def _of_difference(node: Node) -> bool:
    """Whether x and y stand only as x - y or y - x."""
    if node.function and node.function.numpy is np.subtract and {a.name for a in node.args} == set(ELEMENTS):
        return True
    return node.name not in ELEMENTS and all(map(_of_difference, node.args))


# Oracles: each function as its formula says, apart from the expressions.

_FEW, _LONG = (
    1024,
    8,
)  # rows at most, and columns at least, for which their mirror images take less than their distances


def _decay(gamma: float, distances: Matrix) -> Matrix:
    """exp(-gamma distances) in their place: memory touched for the first time takes longer than the function."""
    distances *= -gamma
    return np.exp(distances, out=distances)


def _distances(X: Matrix, Y: Matrix, metric: str) -> Matrix:
    """Among rows themselves, where they are few and long, half of them are computed: the others have the same bits."""
    halved = Y is X and 1 < len(X) <= _FEW and X.shape[1] >= _LONG
    return squareform(pdist(X, metric), checks=False) if halved else cdist(X, Y, metric)


def _distance(X: Matrix, Y: Matrix) -> Matrix:
    return _distances(X, Y, "euclidean")


def _linear(X: Matrix, Y: Matrix) -> Matrix:
    return X @ Y.T


def _poly(X: Matrix, Y: Matrix, gamma: float, coef0: float, degree: int) -> Matrix:
    return np.power(gamma * (X @ Y.T) + coef0, degree)


def _rbf(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return _decay(gamma, _distances(X, Y, "sqeuclidean"))


def _sigmoid(X: Matrix, Y: Matrix, gamma: float, coef0: float) -> Matrix:
    return np.tanh(gamma * (X @ Y.T) + coef0)


def _exponential(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return _decay(gamma, _distance(X, Y))


def _rational_quadratic(X: Matrix, Y: Matrix, gamma: float, alpha: float) -> Matrix:
    return np.power(1 + gamma * _distances(X, Y, "sqeuclidean") / alpha, -alpha)


def _matern32(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(3.0) * gamma * _distance(X, Y)
    return (1 + t) * np.exp(-t)


def _matern52(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(5.0) * gamma * _distance(X, Y)
    return (1 + t + t * t / 3) * np.exp(-t)


def _cosine(X: Matrix, Y: Matrix) -> Matrix:
    norms = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Y, axis=1)[None, :]
    return np.where(norms > 0, X @ Y.T / np.where(norms > 0, norms, 1), 0.0)


def _laplacian(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return _decay(gamma, _distances(X, Y, "cityblock"))


def _additive_chi2(X: Matrix, Y: Matrix) -> Matrix:
    K = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):  # a feature at a time
        total = np.add.outer(x, y)
        K -= np.divide(np.subtract.outer(x, y) ** 2, total, out=np.zeros_like(total), where=total != 0)
    return K


def _chi2(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return np.exp(gamma * _additive_chi2(X, Y))


def _histogram_intersection(X: Matrix, Y: Matrix) -> Matrix:
    K = np.zeros((len(X), len(Y)))
    for x, y in zip(X.T, Y.T, strict=True):
        K += np.minimum.outer(x, y)
    return K


def _canberra(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return _decay(gamma, _distances(X, Y, "canberra"))


_GAMMA = Parameter("gamma", 1.0, lower=0.0, above=True)
_COEF0 = Parameter("coef0", 0.0)
_DEGREE = Parameter("degree", 3, lower=0, integer=True)
_ALPHA = Parameter("alpha", 1.0, lower=0.0, above=True)
_CHI2 = "where(x + y > 0, (x - y) ** 2 / (x + y), 0)"

_SPECS = (
    Spec("linear", (), "dot", oracle=_linear, doc="<x,y>"),
    Spec(
        "poly",
        (_GAMMA, _COEF0, _DEGREE),
        "(gamma * dot + coef0) ** degree",
        oracle=_poly,
        doc="(gamma <x,y> + coef0)^degree",
    ),
    Spec("rbf", (_GAMMA,), "exp(-gamma * sqdist)", oracle=_rbf, doc="exp(-gamma |x-y|^2)"),
    Spec("sigmoid", (_GAMMA, _COEF0), "tanh(gamma * dot + coef0)", oracle=_sigmoid, doc="tanh(gamma <x,y> + coef0)"),
    Spec("exponential", (_GAMMA,), "exp(-gamma * sqrt(sqdist))", oracle=_exponential, doc="exp(-gamma |x-y|)"),
    Spec(
        "rational_quadratic",
        (_GAMMA, _ALPHA),
        "exp(-alpha * log1p(gamma / alpha * sqdist))",
        oracle=_rational_quadratic,
        doc="(1 + gamma |x-y|^2 / alpha)^-alpha",
    ),
    Spec(
        "matern32",
        (_GAMMA,),
        "(1 + sqrt(3) * gamma * sqrt(sqdist)) * exp(-(sqrt(3) * gamma * sqrt(sqdist)))",
        oracle=_matern32,
        doc="(1 + t) exp(-t), t = sqrt(3) gamma |x-y|",
    ),
    Spec(
        "matern52",
        (_GAMMA,),
        "(1 + sqrt(5) * gamma * sqrt(sqdist) + 5 / 3 * gamma ** 2 * sqdist) * exp(-(sqrt(5) * gamma * sqrt(sqdist)))",
        oracle=_matern52,
        doc="(1 + t + t^2/3) exp(-t), t = sqrt(5) gamma |x-y|",
    ),
    Spec(
        "cosine",
        (),
        "where(minimum(xx, yy) > 0, dot / (sqrt(xx) * sqrt(yy)), 0)",
        oracle=_cosine,
        doc="<x,y> / (|x| |y|), 0 for a zero row",
    ),
    Spec("laplacian", (_GAMMA,), "exp(-gamma * s)", "abs(x - y)", _laplacian, "exp(-gamma sum |x-y|)"),
    Spec(
        "canberra",
        (_GAMMA,),
        "exp(-gamma * s)",
        "where(abs(x) + abs(y) > 0, abs(x - y) / (abs(x) + abs(y)), 0)",
        _canberra,
        "exp(-gamma sum |x-y| / (|x| + |y|)), 0/0 = 0",
    ),
    Spec("chi2", (_GAMMA,), "exp(-gamma * s)", _CHI2, _chi2, "exp(-gamma sum (x-y)^2 / (x+y)), 0/0 = 0", True),
    Spec(
        "additive_chi2",
        (),
        "-s",
        _CHI2,
        _additive_chi2,
        "-sum (x-y)^2 / (x+y), 0/0 = 0; for machines with an offset",
        True,
    ),
    Spec("histogram_intersection", (), "s", "minimum(x, y)", _histogram_intersection, "sum min(x, y)", True),
)
BUILTIN: Mapping[str, Spec] = {spec.name: spec for spec in _SPECS}
