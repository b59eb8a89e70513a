"""Rows on a device, panels of them, and tiles of K, for tests of products."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from clsvm.gram import layouts
from clsvm.gram.partition import Partition
from clsvm.gram.products import Gram, Operator, Store, Tile, Update, counts
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream


def chain(made: Partition) -> np.ndarray:
    """The order in which a row's terms are summed: dense columns, then the others as they came, (d,)."""
    return np.concatenate([made.order[: made.dense], np.sort(made.order[made.dense :])])


class Gathered(NamedTuple):
    """A panel, the positions of its rows on the device, and how many they are."""

    panel: Any
    places: Any
    count: Any


def products(stream: Stream, X: Any, kernel: Kernel, kind: str = "dense", dtype: str = "float32") -> Gram:
    plan = layouts.choose(stream.profile, X, kernel.spec, kind, all_rows=True)
    return Gram(stream, layouts.build(stream, X, plan, dtype), kernel)


def gathered(stream: Stream, gram: Operator, rows: int | Sequence[int] | np.ndarray, square: bool = False) -> Gathered:
    """A panel of rows by the caller's numbers, -1 for none, or of the first so many."""
    numbers = np.arange(rows) if isinstance(rows, int) else np.asarray(rows)
    panel = gram.panel(len(numbers), square=square)
    at = np.full(panel.capacity, -1, np.int32)
    at[: len(numbers)] = np.where(numbers >= 0, gram.rows.position[numbers], -1)
    made = Gathered(panel, stream.upload(at), stream.upload(counts([(len(numbers),) * 2])))
    gram.gather(*made)
    return made


def tile(stream: Stream, gram: Operator, of: Gathered, **given: Any) -> np.ndarray:
    """All of a square panel's tile."""
    shape, dtype = (of.panel.capacity,) * 2, gram.rows.dtype
    out = stream.zeros(np.dtype(dtype).itemsize * of.panel.capacity**2)
    gram.tile(of.panel, Tile(of.places, of.count, out, **given))
    return stream.read(out, dtype, shape)


def store(stream: Stream, gram: Operator, panel: Any) -> Store:
    """Room for all rows of K of a panel, row u in slot u."""
    nbytes = np.dtype(gram.rows.dtype).itemsize * panel.capacity * gram.rows.n_pad
    slot = stream.upload(np.arange(panel.capacity, dtype=np.int32))
    return Store((stream.zeros(nbytes),), panel.capacity, gram.rows.n_pad, slot)


def summed(stream: Stream, gram: Operator, of: Gathered, weights: np.ndarray, kept: Store | None = None) -> np.ndarray:
    """Sums over the rows of a panel by ``weights`` (problems, at most its capacity), (problems, n), rows in the
    caller's order; kept: where their values are stored as well."""
    D, n_pad = np.zeros((len(weights), of.panel.capacity)), gram.rows.n_pad
    D[:, : weights.shape[1]] = weights
    c = stream.wide(np.zeros((len(D), n_pad)))
    gram.accumulate(of.panel, of.count, kept, Update(len(D), n_pad, c, stream.wide(D), of.panel.capacity))
    return stream.read_wide(c, (len(D), n_pad))[:, gram.rows.position]


def stored(stream: Stream, gram: Operator, kept: Store) -> np.ndarray:
    """The values in such a store, (capacity, n), rows in the caller's order."""
    K = stream.read(kept.slabs[0], gram.rows.dtype, (kept.slab_rows, kept.ld))
    return K[:, gram.rows.position]
