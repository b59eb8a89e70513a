"""Losses l(f, y) of decision values, as records: estimators name them, the Newton path reads their derivatives.

f and y are (k, n): k outputs of n rows. Classes are signs (1, n) of two, or one row of 0 and 1 for each of several.
A further loss is a record here. Source: Meanti et al. 2020 (Kernel methods through the roof), section 3 and appendix A;
Marteau-Ferey, Bach, Rudi 2019 (generalised self-concordance).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, logsumexp, softmax

Vector = NDArray[np.float64]
Function = Callable[[Vector, Vector], Vector]


@dataclass(frozen=True)
class Loss:
    """value: l of each row, (k, n) by output, or (1, n) of a coupled loss. derivative, second: dl/df and d2l/df2
    (k, n); of a coupled loss, whose second derivative is diag(p) - p p', second is p. constant: the f (k,) that is best
    where it is the same for all rows, of y and weights (n,). quadratic: whether ``second`` does not depend on f. words:
    for documentation."""

    name: str
    words: str
    value: Function
    derivative: Function
    second: Function
    constant: Function
    quadratic: bool = False
    coupled: bool = False


def _log_cosh(f: Vector, y: Vector) -> Vector:
    u = np.abs(f - y)
    small = np.log1p(2 * np.square(np.sinh(np.minimum(u, 1.0) / 2)))  # (the other way would cancel)
    return np.where(u < 1, small, u + np.log1p(np.exp(-2 * u)) - np.log(2))


def _middle(y: Vector, w: Vector) -> Vector:
    """Where the sum of w tanh(c - y) is 0, of each output."""
    ends = y.min(axis=1) - 1e-9, y.max(axis=1) + 1e-9
    pairs = zip(y, *ends, strict=True)
    return np.array([brentq(lambda c, one=one: float(w @ np.tanh(c - one)), low, high) for one, low, high in pairs])


def _odds(y: Vector, w: Vector) -> Vector:
    return np.log((y > 0) @ w) - np.log((y < 0) @ w)


def _shares(y: Vector, w: Vector) -> Vector:
    logs = np.log(y @ w)
    return np.asarray(logs - logs.mean())


_LOSSES = (
    Loss(
        "squared",
        "(f - y)^2 / 2",
        lambda f, y: np.asarray(np.square(f - y) / 2),
        lambda f, y: f - y,
        lambda f, y: np.ones_like(f),
        lambda y, w: np.asarray(y @ w / w.sum()),
        quadratic=True,
    ),
    Loss(
        "log_cosh",
        "log cosh(f - y): like (f - y)^2 / 2 near y, like |f - y| far from it",
        _log_cosh,
        lambda f, y: np.tanh(f - y),
        lambda f, y: 1 - np.square(np.tanh(f - y)),
        _middle,
    ),
    Loss(
        "logistic",
        "log(1 + exp(-y f)), y = +1 or -1",
        lambda f, y: np.asarray(np.logaddexp(0, -y * f)),
        lambda f, y: -y * expit(-y * f),
        lambda f, y: expit(f) * expit(-f),
        _odds,
    ),
    Loss(
        "softmax",
        "log sum_c exp(f_c) - f_y",
        lambda f, y: np.asarray(logsumexp(f, axis=0, keepdims=True) - (f * y).sum(axis=0, keepdims=True)),
        lambda f, y: softmax(f, axis=0) - y,
        lambda f, y: softmax(f, axis=0),
        _shares,
        coupled=True,
    ),
)
LOSSES: dict[str, Loss] = {loss.name: loss for loss in _LOSSES}
