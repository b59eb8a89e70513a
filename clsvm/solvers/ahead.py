"""Whether whole rows of a working set come before its tile, which is then made of values that they have.

A value among working vectors is computed by itself, or it is one of a row of K. Rows come first where a value of the
tile costs much more than one of a row (an inverted index makes whole rows alone), where all rows are kept, and where
few of them are idle: of an idle row no coefficient changes, and it would not have been computed.
"""

from __future__ import annotations

from clsvm.gram.layouts.record import Rows
from clsvm.opencl.profiles import Profile

PICKED = 4.0  # times as long as a value that is read in turn takes one that is read alone
IDLE = 0.05  # of a working set, in a step, before any was seen
NEW = 3 / 8  # of the squares of a tile are new in a step: half of the working set stays, and a half is its mirror image


def picked(profile: Profile) -> float:
    """What a value that is taken from a row of the row cache costs, in dense cells."""
    return PICKED * profile.cache_cost


def value(profile: Profile, rows: Rows, n: int, W: int, idle: float | None = None) -> float:
    """What a value of the tile of a working set of W costs where its rows, of n values, come first, in dense cells;
    ``idle`` of them in a step, on average."""
    return picked(profile) + (IDLE * W if idle is None else idle) * n * rows.cost / (NEW * W * W)


def pays(profile: Profile, rows: Rows, n: int, W: int, idle: int, steps: int) -> bool:
    """Whether rows shall come first, where the row cache has room, after so many rows were idle in so many steps."""
    return value(profile, rows, n, W, (idle + IDLE * W) / (steps + 1)) < rows.tile_cost
