"""Whether whole rows of a working set come before its tile, which is then copied from those rows.

A value among working vectors is computed by itself, or it is one of a row of K. Rows come first where a value of the
tile costs much more than one of a row (an inverted index makes whole rows alone), where the row cache holds all rows,
and where few rows are idle: no coefficient of an idle row changes, so that it need not have been computed yet.
"""

from __future__ import annotations

from clsvm.gram.layouts.record import Rows
from clsvm.opencl.profiles import Profile

ALONE = 4.0  # a value that is read alone takes so many times as long as one that is read in sequence
IDLE = 0.05  # share of a working set that is idle in a step, before any step was made
NEW = 3 / 8  # of the squares of a tile are new in a step: half of the working set stays, and a half is its mirror image


def copy_cost(profile: Profile) -> float:
    """What a value costs that is copied from a row of the row cache, in dense cells."""
    return ALONE * profile.cache_cost


def tile_cost(profile: Profile, rows: Rows, n: int, W: int, idle: float | None = None) -> float:
    """What a value of the tile of a working set of W costs where its rows, of n values, come first, in dense cells;
    ``idle`` of them in a step, on average."""
    return copy_cost(profile) + (IDLE * W if idle is None else idle) * n * rows.cost / (NEW * W * W)


def pays(profile: Profile, rows: Rows, n: int, W: int, idle: int, steps: int, missing: bool = True) -> bool:
    """Whether rows shall come first, where the row cache has room, after so many rows were idle in so many steps;
    missing: whether it lacks any."""
    if not missing:
        return copy_cost(profile) < rows.tile_cost
    return tile_cost(profile, rows, n, W, (idle + IDLE * W) / (steps + 1)) < rows.tile_cost
