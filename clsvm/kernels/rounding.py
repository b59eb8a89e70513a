"""Bound the rounding errors of kernel values on a grid of norms and distances.

:func:`grid_errors` returns values of a kernel function and their errors. :func:`shares` bounds errors by the values:

    |error of K(x, y)| <= share * K(x, y) + rest

Functions such as exp(-gamma * sqdist) have small errors where their values are small.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The grid has distances (eps / 2)^step. The steps are the first array if it has many norms, else the second.
_STEPS = np.linspace(1, 0, 200), np.linspace(1, 0, 1000)
_SIZES = np.concatenate([[1.0], np.geomspace(1e-6, 0.9, 9)])  # norms of the grid; the largest is 1
SMALL = 1e-4  # errors of values below this share of the largest value are bounded by ``rest``


def grid_errors(
    kernel: Any, size: float, eps: float, least: float | None, floor: float, terms: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values of K on the grid, and their errors divided by ``eps``.

    ``kernel`` is a Kernel. See Kernel.rounding for the other arguments.
    """
    many = 1 + 0.75 * math.sqrt(terms)
    used = kernel.spec.expression.names & {"xx", "yy", "dot", "sqdist"}
    # a function of sqdist alone has its largest errors on rows of the largest norm, so no other norm is tested
    distance_only = used == {"sqdist"}
    near = np.concatenate([[0.0], 2 * (eps / 2) ** _STEPS[distance_only]])
    if kernel.spec.element:
        grid = np.concatenate([near, -near]) * size / 2
        grid = grid[(grid >= min(0.0, kernel.sign)) if kernel.sign >= 0 else (grid <= 0)]
        value = kernel.at(s=grid)
        shifted = [kernel.at(s=grid + (max(4, many) * eps * size + floor) * (kernel.sign or 1))]
    else:
        norms = _SIZES[: 1 if distance_only else None] * size
        if least and least < norms.min() and not distance_only:
            norms = np.concatenate([norms, np.geomspace(least, norms.min(), 5)[:-1]])
        i, j = np.triu_indices(len(norms))  # pairs i <= j suffice, since K is symmetric
        xx, yy = norms[i, None], norms[j, None]
        # rows of equal norm may be the same row, whose distance must be exactly 0
        both = np.where(xx == yy, xx, np.sqrt(xx) * np.sqrt(yy))
        dot = both * (1 - near)
        value = kernel.at(xx, yy, dot)
        shifted = [kernel.at(xx, yy, dot - many * eps * both - floor)]
        if used & {"xx", "yy"}:
            shifted += [kernel.at(xx * (1 + many * eps), yy, dot), kernel.at(xx, yy * (1 + many * eps), dot)]
        if floor and used & {"xx", "yy", "sqdist"}:
            lost = np.maximum(norms - floor, 0.0)
            shifted += [kernel.at(lost[i, None], yy, dot), kernel.at(xx, lost[j, None], dot)]
    with np.errstate(all="ignore"):
        found = np.maximum(min(2.0, many) * np.abs(value), sum(np.abs(moved - value) for moved in shifted) / eps)
    valid = ~np.isnan(found)
    return np.broadcast_to(value, found.shape)[valid], found[valid]


def shares(values: NDArray[Any], errors: NDArray[Any]) -> tuple[float, float]:
    """Return ``share`` and ``rest`` such that each error is at most share * value + rest.

    The share is infinite if a value is negative or not finite, or if there are no values.
    """
    if not values.size or not np.isfinite(values).all() or values.min() < 0 or values.max() <= 0:
        return math.inf, 0.0
    small = values <= SMALL * values.max()
    return float((errors[~small] / values[~small]).max()), float(errors[small].max(initial=0.0))
