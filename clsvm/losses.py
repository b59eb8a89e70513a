"""Define the losses l(f, y) of Nyström kernel machines as records with their derivatives.

f (k, n) holds decision values and y (k, n) targets, for k outputs and n rows. Two classes have one output with targets
-1 and 1. More classes have one output each. Their targets are 0 and 1 for the softmax loss, and -1 and 1 for the
squared loss. An estimator selects a loss by its name in the dictionary ``LOSSES``. Newton's method reads the loss's
derivatives with respect to f.

To add a loss, add a record to ``_LOSSES``. Error bounds in nystrom/newton.py need l >= 0, l'' <= 1 and |l'''| <= 2 l'',
where l'' and l''' are the second and third derivatives of l with respect to f.

Source: Meanti et al. 2020 (Kernel methods through the roof), section 3 and appendix A; Marteau-Ferey, Bach, Rudi 2019
(generalised self-concordance).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

Vector = NDArray[np.float64]
Function = Callable[[Vector, Vector], Vector]
TINY = 1e-4  # below this argument the first two terms of the power series of log cosh are exact up to float64 rounding


@dataclass(frozen=True)
class Loss:
    """Describe a loss and its derivatives as functions of f (k, n) and y (k, n).

    Attributes
    ----------
    name
        name by which estimators select the loss.
    value
        function that returns the losses l (k, n), one for each output and row. A coupled loss depends on all outputs of
        a row together, so its function returns (1, n).
    derivative
        function that returns dl/df (k, n).
    second
        function that returns d2l/df2 (k, n). For a coupled loss it returns the probabilities p (k, n) of the classes
        instead. The matrix of second derivatives at row i is then diag(p_i) - p_i p_i', where p_i is column i of p.
    constant
        function of the targets y and the row weights w (n,). It returns the constant decision value of each output,
        (k,), for which the sum of w_i l over the rows i is smallest.
    quadratic
        whether the second derivative is the same for all f.
    coupled
        whether l depends on all outputs together.
    numbers
        whether the loss is for regression. The loss of a regression depends on f - y alone.
    steepest
        upper bound of |dl/df|: a number for all outputs, or (k,) with a number for each output. For a coupled loss,
        upper bound of the sum of |dl/df| over the outputs of a row.
    scaled
        function that takes a number u for each output, (k, 1), and returns the Loss for decision values and targets
        that are divided by u. If l(f, y) is this loss, the returned loss is l(u f, u y) / u^2. ``scaled`` is None if
        this function equals l(f, y), as for the squared loss. ``scaled`` is also None for classification losses,
        which are never divided.
    """

    name: str
    value: Function
    derivative: Function
    second: Function
    constant: Function
    quadratic: bool = False
    coupled: bool = False
    numbers: bool = False
    steepest: float | Vector = np.inf
    scaled: Callable[[Vector], Loss] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle this loss as its name in LOSSES, because pickle refuses its lambda functions."""
        return _by_name, (self.name,)

    def units(self, largest: Vector) -> Vector:
        """Return for each output the unit (k,) by which decision values f and targets y are divided during a fit.

        ``largest`` (k,) is the largest |y - offset| of each output, where the offset is the output's intercept. For a
        quadratic loss, the unit is the largest power of 2 that does not exceed ``largest``. For a regression loss that
        is not quadratic, the unit is the smaller of this power and 1. For a classification loss, the unit is 1. If
        ``largest`` is 0, the unit is 1 for every loss.
        """
        if not self.numbers:
            return np.ones_like(largest)
        most = largest if self.quadratic else np.minimum(largest, 1.0)
        return np.where(largest > 0, np.ldexp(0.5, np.frexp(most)[1]), 1.0)

    def in_units(self, units: Vector) -> Loss:
        """Return the loss for decision values and targets that were divided by ``units`` (k,), one unit u per output.

        If l(f, y) is this loss, the returned loss is the function l(u f, u y) / u^2 of f and y.
        """
        return self if self.scaled is None else self.scaled(units[:, None])


def _by_name(name: str) -> Loss:
    return LOSSES[name]


def _log_cosh(f: Vector, y: Vector, unit: Vector | float) -> Vector:
    u = np.abs(f - y)
    v = u * unit
    tiny = np.square(u) / 2 * (1 - np.square(np.minimum(v, TINY)) / 6)  # avoids unit^2, which may underflow
    small = np.log1p(2 * np.square(np.sinh(np.minimum(v, 1.0) / 2)))  # this form avoids cancellation near 0
    large = np.where(v < 1, small, v + np.log1p(np.exp(-2 * v)) - np.log(2))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(v < TINY, tiny, large / unit / unit)


def _log_cosh_in(unit: Vector | float) -> Loss:
    return Loss(
        "log_cosh",  # log cosh(f - y): like (f - y)^2 / 2 near y, like |f - y| far from it
        partial(_log_cosh, unit=unit),
        lambda f, y: np.tanh((f - y) * unit) / unit,
        lambda f, y: 1 - np.square(np.tanh((f - y) * unit)),
        _middle,
        numbers=True,
        steepest=1 / unit if isinstance(unit, float) else 1 / unit[:, 0],
        scaled=_log_cosh_in,
    )


def crossing(slope: Callable[[float], float], low: float, high: float) -> float:
    """Return a zero of the rising function ``slope`` between ``low`` and ``high``.

    slope(low) must be at most 0, and slope(high) at least 0. The zero's error is at most about
    2e-12 * min(high - low, 1), so a zero in a short interval is accurate too.
    """
    unit = min(high - low, 1.0)
    if unit == 0:
        return low
    xtol = max(2e-12 * unit, float(np.finfo(np.float64).smallest_subnormal))
    return float(brentq(lambda c: slope(c) / unit, low, high, xtol=xtol, maxiter=2000))


def _middle(y: Vector, w: Vector) -> Vector:
    """Return for each of k outputs the number c that minimises sum_i w_i log cosh(c - y_i), as an array (k,).

    y_i are the targets of the output, and w_i the weights of the rows.
    """
    rows = y[:, w > 0]
    ends = rows.min(axis=1), rows.max(axis=1)
    w = w[w > 0]

    def slope(one: Vector, c: float) -> float:
        return float(w @ np.tanh(c - one))

    return np.array([crossing(partial(slope, one), low, high) for one, low, high in zip(rows, *ends, strict=True)])


def _odds(y: Vector, w: Vector) -> Vector:
    return np.log((y > 0) @ w) - np.log((y < 0) @ w)


def _shares(y: Vector, w: Vector) -> Vector:
    logs = np.log(y @ w)
    return np.asarray(logs - logs.mean())


_LOSSES = (
    Loss(
        "squared",  # (f - y)^2 / 2
        lambda f, y: np.asarray(np.square(f - y) / 2),
        lambda f, y: f - y,
        lambda f, y: np.ones_like(f),
        lambda y, w: np.asarray(y @ w / w.sum()),
        quadratic=True,
        numbers=True,
    ),
    _log_cosh_in(1.0),
    Loss(
        "logistic",  # log(1 + exp(-y f)), y = +1 or -1
        lambda f, y: np.asarray(np.logaddexp(0, -y * f)),
        lambda f, y: -y * expit(-y * f),
        lambda f, y: expit(f) * expit(-f),
        _odds,
        steepest=1.0,
    ),
    Loss(
        "softmax",  # log sum_c exp(f_c) - f_y, where f_y is the decision value of the row's own class
        lambda f, y: np.asarray(logsumexp(f, axis=0, keepdims=True) - (f * y).sum(axis=0, keepdims=True)),
        lambda f, y: softmax(f, axis=0) - y,
        lambda f, y: softmax(f, axis=0),
        _shares,
        coupled=True,
        steepest=2.0,
    ),
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in _LOSSES}
