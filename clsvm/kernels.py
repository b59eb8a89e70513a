"""Kernel functions K(x, y) = f(xx, yy, dot, sqdist) as records: one record here is all that a new function costs.

xx = <x,x>, yy = <y,y>, dot = <x,y>, sqdist = max(xx + yy - 2 dot, 0)   (GTSVM, section 5.2). Each record carries
its expression, from which the device code is made, and an oracle: the same function written independently on
vectors, in float64, against which tests hold every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from clsvm.expression import Expression

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its default and its limits (``lower`` itself excluded where ``above``)."""

    name: str
    default: float
    lower: float = -np.inf
    above: bool = False
    integer: bool = False

    def check(self, value: Any) -> float | int:
        """``value`` as a plain number. Raises TypeError or ValueError naming what was got and what was expected."""
        kind = Integral if self.integer else Real
        if isinstance(value, bool | np.bool_) or not isinstance(value, kind):
            expected = "an integer" if self.integer else "a number"
            raise TypeError(f"{self.name} must be {expected}, got {value!r}")
        number: float | int = int(value) if self.integer else float(value)  # type: ignore[call-overload]
        if not math.isfinite(number) or number < self.lower or (self.above and number == self.lower):
            expected = "" if self.lower == -np.inf else f" {'>' if self.above else '>='} {self.lower:g}"
            raise ValueError(f"{self.name} must be finite{expected and ' and' + expected}, got {value!r}")
        return number


@dataclass(frozen=True)
class Spec:
    """What a kernel function is: name, parameters, expression, oracle(X, Y, **params) -> (n, m) float64, doc line."""

    name: str
    parameters: tuple[Parameter, ...]
    text: str
    oracle: Callable[..., Matrix] = field(compare=False, repr=False)
    doc: str = field(compare=False, repr=False)

    @cached_property
    def expression(self) -> Expression:
        integers = frozenset(p.name for p in self.parameters if p.integer)
        return Expression(self.text, tuple(p.name for p in self.parameters), integers)

    @property
    def of_distance(self) -> bool:
        """True where the function depends on x - y alone, so that shifting all rows changes nothing."""
        return not self.expression.names & {"dot", "xx", "yy"}


@dataclass(frozen=True)
class Kernel:
    """A kernel function with its parameters' values; immutable, hashable, picklable. Made by :func:`make`."""

    spec: Spec
    values: tuple[float | int, ...]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def params(self) -> dict[str, float | int]:
        return dict(zip((p.name for p in self.spec.parameters), self.values, strict=True))

    def __call__(self, X: Matrix, Y: Matrix) -> Matrix:
        """The oracle: X (n, d), Y (m, d) dense float64 -> K (n, m) float64, on the host."""
        return self.spec.oracle(X, Y, **self.params)

    def rounding(self, largest: float, eps: float) -> float:
        """The largest rounding error of K(x, y) in units of ``eps``, for rows with <x,x> <= ``largest``.

        Of the value itself, and of its argument: <x,y> is off by eps * largest, |x-y|^2 by twice as much.
        """
        if self.spec.of_distance:
            argument, size = "sqdist", 2 * eps * largest
            grid = np.concatenate([[0.0], np.geomspace(eps, 4.0, 400) * largest])
        else:
            argument, size = "dot", eps * largest
            grid = np.linspace(-1.0, 1.0, 401) * largest
        values = {**self.params, **dict.fromkeys(("dot", "sqdist"), grid), "xx": largest, "yy": largest}
        with np.errstate(all="ignore"):
            here = np.asarray(self.spec.expression.evaluate(values), np.float64)
            there = self.spec.expression.evaluate({**values, argument: grid + size})
            return float(max(np.abs(here).max(), np.abs(there - here).max() / eps))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v:g}' for k, v in self.params.items())})"

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.spec.name, self.params)


def _distance(X: Matrix, Y: Matrix) -> Matrix:
    return cdist(X, Y, "euclidean")


def _linear(X: Matrix, Y: Matrix) -> Matrix:
    return X @ Y.T


def _poly(X: Matrix, Y: Matrix, gamma: float, coef0: float, degree: int) -> Matrix:
    return np.power(gamma * (X @ Y.T) + coef0, degree)


def _rbf(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return np.exp(-gamma * cdist(X, Y, "sqeuclidean"))


def _sigmoid(X: Matrix, Y: Matrix, gamma: float, coef0: float) -> Matrix:
    return np.tanh(gamma * (X @ Y.T) + coef0)


def _exponential(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    return np.exp(-gamma * _distance(X, Y))


def _rational_quadratic(X: Matrix, Y: Matrix, gamma: float, alpha: float) -> Matrix:
    return np.power(1 + gamma * cdist(X, Y, "sqeuclidean") / alpha, -alpha)


def _matern32(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(3.0) * gamma * _distance(X, Y)
    return (1 + t) * np.exp(-t)


def _matern52(X: Matrix, Y: Matrix, gamma: float) -> Matrix:
    t = np.sqrt(5.0) * gamma * _distance(X, Y)
    return (1 + t + t * t / 3) * np.exp(-t)


def _cosine(X: Matrix, Y: Matrix) -> Matrix:
    norms = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Y, axis=1)[None, :]
    return np.where(norms > 0, X @ Y.T / np.where(norms > 0, norms, 1), 0.0)


_GAMMA = Parameter("gamma", 1.0, lower=0.0, above=True)
_COEF0 = Parameter("coef0", 0.0)
_DEGREE = Parameter("degree", 3, lower=0, integer=True)
_ALPHA = Parameter("alpha", 1.0, lower=0.0, above=True)

_SPECS = (
    Spec("linear", (), "dot", _linear, "<x,y>"),
    Spec("poly", (_GAMMA, _COEF0, _DEGREE), "(gamma * dot + coef0) ** degree", _poly, "(gamma <x,y> + coef0)^degree"),
    Spec("rbf", (_GAMMA,), "exp(-gamma * sqdist)", _rbf, "exp(-gamma |x-y|^2)"),
    Spec("sigmoid", (_GAMMA, _COEF0), "tanh(gamma * dot + coef0)", _sigmoid, "tanh(gamma <x,y> + coef0)"),
    Spec("exponential", (_GAMMA,), "exp(-gamma * sqrt(sqdist))", _exponential, "exp(-gamma |x-y|)"),
    Spec(
        "rational_quadratic",
        (_GAMMA, _ALPHA),
        "exp(-alpha * log1p(gamma * sqdist / alpha))",
        _rational_quadratic,
        "(1 + gamma |x-y|^2 / alpha)^-alpha",
    ),
    Spec(
        "matern32",
        (_GAMMA,),
        "(1 + 1.7320508075688772 * gamma * sqrt(sqdist)) * exp(-1.7320508075688772 * gamma * sqrt(sqdist))",
        _matern32,
        "(1 + t) exp(-t), t = sqrt(3) gamma |x-y|",
    ),
    Spec(
        "matern52",
        (_GAMMA,),
        "(1 + 2.23606797749979 * gamma * sqrt(sqdist) + 1.6666666666666667 * gamma * gamma * sqdist)"
        " * exp(-2.23606797749979 * gamma * sqrt(sqdist))",
        _matern52,
        "(1 + t + t^2/3) exp(-t), t = sqrt(5) gamma |x-y|",
    ),
    Spec(
        "cosine",
        (),
        "dot / (sqrt(maximum(xx, 1e-30)) * sqrt(maximum(yy, 1e-30)))",
        _cosine,
        "<x,y> / (|x| |y|), 0 for a zero row",
    ),
)
BUILTIN: Mapping[str, Spec] = {spec.name: spec for spec in _SPECS}


def make(name: str, **params: Any) -> Kernel:
    """The built-in kernel function ``name`` with its parameters, the others at their defaults.

    Raises ValueError for an unknown name or parameter or a value outside its limits, TypeError for a non-number.
    """
    if not isinstance(name, str) or name not in BUILTIN:
        raise ValueError(f"unknown kernel {name!r}; expected one of {', '.join(BUILTIN)}, or a Kernel")
    spec = BUILTIN[name]
    unknown = params.keys() - {p.name for p in spec.parameters}
    if unknown:
        raise ValueError(f"kernel {name} has no parameter {', '.join(sorted(unknown))}")
    return Kernel(spec, tuple(p.check(params.get(p.name, p.default)) for p in spec.parameters))


def _restore(name: str, params: dict[str, Any]) -> Kernel:
    return make(name, **params)
