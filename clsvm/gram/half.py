"""c = K(X, X) b for one set of rows, by half of K: a value adds to the sums of both of its rows.

Rows go through a panel, block after block of working vectors. For each block, K between it and all rows up to its last
is computed and kept for the moment. All of it adds to the sums of those rows, the block's own among them. What it has
with the rows before the block adds to the sums of the block as well, transposed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clsvm.gram import programs
from clsvm.gram.products import Gram, Store, Update

Vector = NDArray[np.float64]
BLOCK = 128  # working vectors at a time: parts of arrays of four bytes begin where any device lets them


def responses(gram: Gram, b: Vector) -> Vector:
    """K b' in float64, (problems, n) of b (problems, n), for rows that stand as they came. The caller frees what it
    makes (:meth:`Stream.scratch`). Raises MemoryLimitError where the budget does not hold a block."""
    stream, rows, problems = gram.stream, gram.rows, len(b)
    n, n_pad, V = rows.n, rows.n_pad, rows.lanes
    group = stream.profile.group if stream.profile.shape == "group" else 1
    back = stream.variant(programs.back(stream.profile, rows.dtype, exact=True))
    panel, D = gram.panel(BLOCK), np.zeros((problems, n_pad))
    D[:, :n] = b
    weights, c = stream.wide(D), stream.zeros(8 * problems * n_pad)
    at = np.full(-(-n // BLOCK) * BLOCK, -1, np.int32)
    at[:n] = np.arange(n)
    places, K = stream.upload(at), stream.buffer(np.dtype(rows.dtype).itemsize * BLOCK * n_pad)
    store = Store((K,), BLOCK, n_pad, gram.slot(panel.capacity))
    full, last = (stream.upload(np.array([size], np.int32)) for size in (BLOCK, n - len(at) + BLOCK))
    for first in range(0, n, BLOCK):
        count, end = full if first + BLOCK <= n else last, min(first + BLOCK, n_pad)
        left = 8 * (problems * n_pad - first)
        gram.gather(panel, stream.part(places, 4 * first, 4 * BLOCK), count)
        update = Update(problems, n_pad, c, stream.part(weights, 8 * first, left), n_pad)
        gram.over_rows("both", range(-(-end // V)), 0, panel, count, store, update)
        if first:
            given = K, np.int64(n_pad), first, weights, count, problems, n_pad, stream.part(c, 8 * first, left)
            back((BLOCK // programs.OWN * group,), (group,), *given)
    return stream.read_wide(c, (problems, n_pad))[:, :n]
