"""Decision values of one binary classifier for each pair of k classes, and the results that are made of them.

There are k (k - 1) / 2 values for each row, so they come in strips: the values of one class against some later classes,
for a few rows. A strip is reduced before the next one is computed. No result depends on how pairs and rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
CLASSES = 40  # classes in a block of many rows: more take more memory a row, and fewer take more launches


def pairs(k: int) -> list[tuple[int, int]]:
    """Return the pairs of k classes in the order of their problems: (0, 1), (0, 2), ..., (1, 2), ..."""
    return list(combinations(range(k), 2))


def first_pair(k: int, i: int) -> int:
    """Return the place of the pair (i, i + 1) among the pairs of k classes."""
    return i * k - i * (i + 1) // 2


class Strip(NamedTuple):
    """Decision values (others, rows) of class ``own`` against the classes ``others``, positive for ``own``.

    Strips of the same rows come in an order in which each class meets the other classes in their order.
    """

    own: int
    others: slice
    values: Vector


def strips(values: Vector, k: int) -> Iterator[Strip]:
    """Yield the strips of decision values (rows, pairs)."""
    for i in range(k - 1):
        first = first_pair(k, i)
        yield Strip(i, slice(i + 1, k), values[:, first : first + k - 1 - i].T)


def blocks(k: int, most: int) -> list[tuple[slice, slice]]:
    """Return blocks of at most ``most`` classes, each with itself and with every later one, by the first of the two."""
    size = -(-k // -(-k // max(1, most)))
    cuts = [slice(first, min(first + size, k)) for first in range(0, k, size)]
    return [(one, other) for at, one in enumerate(cuts) for other in cuts[at:]]


def strips_of_block(own: slice, others: slice, one: Vector, other: Vector, offsets: Vector, k: int) -> Iterator[Strip]:
    """Yield the strips of the pairs between two blocks of classes, or within a block.

    one : sums of kernel values (own classes * others, rows); within a block a class has no sum for itself.
    other : the same with the blocks exchanged; within a block it is ``one``.
    offsets : (pairs,) of all k classes.
    """
    within = own == others
    one = one.reshape(own.stop - own.start, -1, one.shape[1])
    other = other.reshape(others.stop - others.start, -1, other.shape[1])
    for at, i in enumerate(range(own.start, own.stop)):
        begin = i + 1 if within else others.start
        if begin == others.stop:
            continue
        here = begin - others.start - within
        values = one[at, here:] + other[begin - others.start :, at]
        first = first_pair(k, i) + begin - i - 1
        values += offsets[first : first + len(values), None]
        yield Strip(i, slice(begin, others.stop), values)


def votes(found: Iterable[Strip], n: int, k: int) -> NDArray[np.intp]:
    """Return the number of pairs (n, k) that each class wins; a value of 0 is a vote for the second class."""
    won = np.zeros((k, n), np.int32)
    for own, others, values in found:
        positive = (values > 0).view(np.int8)
        won[own] += positive.sum(axis=0, dtype=np.int32)
        won[others] -= positive
    won += np.arange(k, dtype=np.int32)[:, None]  # (as second class, every pair but those that the first one wins)
    return won.T.astype(np.intp)


def against_rest(found: Iterable[Strip], n: int, k: int) -> Vector:
    """Return scikit-learn's decision values (n, k) of shape "ovr".

    A value is the number of votes and, below 1/3, a share by the sum of a class's decision values. The bits are those
    of sklearn.utils.multiclass._ovr_decision_function, where a value of 0 is a vote for the first class.
    """
    won, sums = np.zeros((k, n), np.int32), np.zeros((k, n))
    for own, others, values in found:
        negative = (values < 0).view(np.int8)
        won[own] -= negative.sum(axis=0, dtype=np.int32)
        won[others] += negative
        for one in values:  # (one after another, so that sums have the same bits in any block)
            sums[own] += one
        sums[others] -= values
    won += np.arange(k - 1, -1, -1, dtype=np.int32)[:, None]
    sums /= 3 * (np.abs(sums) + 1)
    sums += won
    return np.ascontiguousarray(sums.T)


def side_by_side(found: Iterable[Strip], n: int, k: int) -> Vector:
    """Return the decision values (n, pairs) themselves."""
    out = np.empty((n, k * (k - 1) // 2))
    for own, others, values in found:
        first = first_pair(k, own) + others.start - own - 1
        out[:, first : first + len(values)] = values.T
    return out
