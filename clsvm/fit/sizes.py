"""The sizes of the working set and the row cache, by what the device's measured rates make of them."""

from __future__ import annotations

import numpy as np

from clsvm.gram.layouts.record import Rows
from clsvm.gram.products import Operator
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream
from clsvm.solvers import kernel_rows
from clsvm.solvers.kernel_rows import CACHE_SHARE

MIN_WORKING_SET = 16
# How the work of a solve goes with the working set W, fitted to a9a, ijcnn1, covtype and MNIST on a CPU for W of 16 to
# 2048: rows of K that change a coefficient, W to the power -DECLINE; such rows of a step, FRESH of W; inner steps of a
# row, INNER.
DECLINE, FRESH, INNER = 0.3, 0.65, 1.5
SUPPORT = 1 / 3  # of all rows: beyond that, most are no support vectors
# Where the row cache holds fewer than STAYING working sets, it has forgotten rows that stay: AGAIN times the rows are
# computed, and larger sets spare few of them, W to the power FORGOTTEN - DECLINE (measured with gisette's shape, C=100
# and sets of 128 to 2048 rows).
STAYING, AGAIN, FORGOTTEN = 1.5, 1.6, 0.2
NEAR = 4 << 20  # bytes of a W x W tile beyond which an inner step takes FAR times as long
FAR = 1.2


def choose(
    stream: Stream, gram: Operator, working_set: int | str, cache: float | str, n: int | None = None
) -> tuple[int, int, str]:
    """Return the working set size, the bytes of the row cache, and why: the numbers given, or the sizes of the least
    cost by the device's measured rates (profiles.py), in dense multiply-adds.

    n: rows of the problem, where these are not all of them. A value of K costs a row's cells to compute and
    ``cache_cost`` cells to read again from the row cache: rows are kept where that is less. A large working set leaves
    fewer rows to compute and fewer launches. A small one has the cheaper tile and SMO iterations (:func:`cost`).
    """
    profile, rows, words = stream.profile, gram.rows, []
    cells = rows.cost
    keep = cells > profile.cache_cost if cache == "auto" else float(cache) > 0
    if working_set == "auto":
        n, kept = n or rows.n, _kept(stream, rows, cache) if keep else 0.0
        tiles = dict.fromkeys(_sizes(profile.working_set), rows.tile_cost)
        if keep and not gram.whole and kept >= rows.n_pad:
            tiles = {W: min(own, kernel_rows.tile_cost(profile, rows, n, W)) for W, own in tiles.items()}
        values = {
            W: min(cells, profile.cache_cost) if gram.whole else _value(profile, cells, n, kept, W) for W in tiles
        }
        costs = {W: cost(profile, n, tile, values[W], W, rows.laid) for W, tile in tiles.items()}
        W = min(costs, key=lambda size: (costs[size], size))
        words.append(f"a working set of up to {W} costs least by the device's rates")
        if W > MIN_WORKING_SET:
            words[0] += f" (one of {MIN_WORKING_SET} {costs[MIN_WORKING_SET] / costs[W]:.1f} times as much)"
    else:
        W = int(working_set)
        words.append(f"a working set of {W} was asked for")
    if gram.whole:
        return W, 0, "; ".join([*words, "all of K is on the device"])
    if cache != "auto":
        words.append(f"a row cache of {float(cache):g} MB was asked for")
        return W, int(min(float(cache) * 1e6, stream.limit)), "; ".join(words)
    words.append(
        f"computing a value of K again costs {cells:.0f} dense cells, reading it {profile.cache_cost:.0f}: "
        + ("rows are kept" if keep else "no row is kept")
    )
    return W, stream.limit if keep else 0, "; ".join(words)


def _kept(stream: Stream, rows: Rows, cache: float | str) -> float:
    """Return how many rows of K a row cache of that size holds."""
    room = CACHE_SHARE * (stream.limit - stream.held)
    asked = room if cache == "auto" else min(room, float(cache) * 1e6)
    return float(asked) / (np.dtype(rows.dtype).itemsize * rows.n_pad)


def _value(profile: Profile, cells: float, n: int, kept: float, W: int) -> float:
    """Return the mean cost of a value of K in dense cells, where the row cache holds ``kept`` rows of n.

    A value of a cached row is read. Rows that stay in the working set are cached, if the set is not too large for the
    row cache.
    """
    there = min(1.0, kept / (n * SUPPORT))
    again = AGAIN * (STAYING * W / kept) ** FORGOTTEN if 0 < kept < STAYING * W else 1.0
    return there * min(cells, profile.cache_cost) + (1 - there) * again * cells


def _sizes(largest: int) -> list[int]:
    return [MIN_WORKING_SET << k for k in range((largest // MIN_WORKING_SET).bit_length())]


def cost(profile: Profile, n: int, width: float, value: float, W: int, laid: float = 0.0) -> float:
    """Return the cost of a solve with a working set of W, up to a factor that is the same for every W.

    width: cells of a right-hand row. value: cost of a value of K. laid: cost of a row that every outer iteration lays
    out anew. A row that changes costs its n values, its SMO iterations, and its share of an outer iteration: launches,
    laying out, the choice of the working set, and the new half of the W x W tile.
    """
    changed = FRESH * min(W, n * SUPPORT)
    tile = W * W / 2 * max(width, 1)
    inner = INNER * (profile.inner_step + profile.inner_cost * W * (FAR if 4 * W * W > NEAR else 1.0))
    row = n * value + (profile.step_cost + (profile.look_cost + laid) * n + tile) / changed + inner
    return float(row * W**-DECLINE)
