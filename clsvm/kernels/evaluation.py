"""Evaluation errors of kernel expressions: an expression computed in the type that runs beside a wider one.

A device computes f(xx, yy, dot) operation by operation, and each inner value has to fit the type: xx * yy of
dot / sqrt(xx * yy) leaves float32's range long before the quotient does. :func:`evaluated` walks an expression in both
types at once, and :func:`inner_products` says at which arguments this shows what rows of given sizes can meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.kernels.expression import Node

_COSINES = np.array([1.0, 1 - 1e-6, 0.9, 0.3, 1e-2, 1e-5, -1e-5, -1e-2, -0.3, -0.9, -1.0])
_POINTS = 6  # sizes between the smallest and the largest, both included
_STEPS, _MOST = np.linspace(0, 1, _POINTS), float(np.finfo(np.float64).max)
BROKEN = float(np.finfo(np.float32).max)  # the error of a value that is not finite where it should be


class Extent(NamedTuple):
    """The sizes of some rows.

    largest, least: the largest and the smallest nonzero squared norm (inner-product form) or size of an element-wise
    sum. high, low: the largest and the smallest nonzero absolute entry, 0 for the inner-product form.
    """

    largest: float
    least: float = 0.0
    high: float = 0.0
    low: float = 0.0

    def joined(self, other: Extent) -> Extent:
        """Return the extent of both sets of rows together."""
        highest = max(self.largest, other.largest), max(self.high, other.high)
        low = [min((one for one in pair if one > 0), default=0.0) for pair in zip(self, other, strict=True)]
        return Extent(highest[0], low[1], highest[1], low[3])


class Evaluation(NamedTuple):
    """The errors of evaluating a kernel expression in a type.

    largest: the largest absolute value. error: the largest absolute error, BROKEN for a value that is not finite.
    outside: the largest error where an inner value overflowed, or vanished without being 0. left: whether one did.
    """

    largest: float
    error: float
    outside: float
    left: bool


def evaluated(tree: Node, values: Mapping[str, Any], dtype: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the value of an expression, its absolute error in ``dtype``, and whether the range of that was left.

    values: arrays in a wider type whose shapes go together, or Python numbers, by name; numbers are parameters. The
    value is in the wider type. The error is BROKEN where the value is finite and that in ``dtype`` is not, and 0 where
    neither is.
    """
    tiny = np.finfo(dtype).tiny

    def narrowed(wide: NDArray[Any], value: Any, left: Any) -> tuple[Any, Any, Any]:
        narrow = np.asarray(value, dtype)
        size = np.abs(narrow)
        if size.min() >= tiny and size.max() < np.inf:
            return wide, narrow, left
        narrow = np.where(size < tiny, narrow.dtype.type(0), narrow)  # (as devices may do)
        return wide, narrow, left | ~np.isfinite(narrow) | ((np.abs(wide) < tiny) & (wide != 0))

    def walk(node: Node) -> tuple[Any, Any, Any]:
        if not node.function:
            value: Any = values[node.name] if node.name else node.number
            is_number = not isinstance(value, np.ndarray)
            return (value, value, False) if is_number else narrowed(value, value, False)
        wides, narrows, lefts = zip(*map(walk, node.args), strict=True)
        wide, left = node.applied(wides), reduce(or_, lefts)
        if not isinstance(wide, np.ndarray):  # a function of parameters, which the host computes
            return wide, wide, False
        narrow = node.applied(narrows)
        return (wide, narrow, left) if node.function.truth else narrowed(wide, narrow, left)

    with np.errstate(all="ignore"):
        wide, narrow, left = np.broadcast_arrays(*walk(tree))
        error = np.abs(narrow - wide)
    error = np.where(np.isfinite(wide), np.where(np.isfinite(error), error, BROKEN), 0)
    return wide, error, left


def summary(wide: NDArray[Any], error: NDArray[Any], left: NDArray[Any]) -> Evaluation:
    """Return the extremes of what :func:`evaluated` returns."""
    finite = np.abs(wide[np.isfinite(wide)]).max(initial=0.0)
    outside = np.where(left, error, 0).max()
    return Evaluation(float(finite), min(float(error.max()), BROKEN), min(float(outside), BROKEN), bool(left.any()))


def inner_products(rows: Extent, others: Extent, wide: type) -> dict[str, NDArray[Any]]:
    """Return xx, yy, dot and sqdist that rows and others of these sizes can have, in a type."""
    xx = between(rows.least, rows.largest, wide)[:, None, None]
    yy = between(others.least, others.largest, wide)[:, None]
    with np.errstate(invalid="ignore"):  # (sizes may be infinite)
        dot = np.where(xx == yy, xx, np.sqrt(xx) * np.sqrt(yy)) * _COSINES  # (a row's distance from itself is 0)
        return {"xx": xx, "yy": yy, "dot": dot, "sqdist": np.maximum(xx + yy - 2 * dot, 0)}


def elements(rows: Extent, others: Extent, signs: Sequence[int], wide: type) -> dict[str, NDArray[Any]]:
    """Return entries x and y of these signs, or 0, that rows and others can have, in a type."""
    x, y = (
        np.concatenate([[0.0], *(sign * between(one.low, one.high, wide) for sign in signs)]) for one in (rows, others)
    )
    return {"x": x[:, None], "y": y}


def between(least: float, largest: float, wide: type = np.longdouble) -> NDArray[Any]:
    """Return a few numbers from the smallest to the largest in equal ratios, in a type."""
    if not 0 < least < largest:
        return np.full(_POINTS, largest, wide)
    inner = np.exp(math.log(least) * (1 - _STEPS) + math.log(min(largest, _MOST)) * _STEPS)
    found: NDArray[Any] = inner.astype(wide)
    found[[0, -1]] = least, largest
    return found
