"""Targets in chunks: a summary of each, the encoding that follows from all, and the numbers that a solver gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y

from clsvm.estimators import targets

Vector = NDArray[np.float64]


class Summary(NamedTuple):
    """A chunk's targets. there: how many rows weigh something; keys: the labels, or the weighted mean (1, k) of the
    numbers; weights, counts: the sum of weights and the rows of each key; least, most (k,): ends of the numbers of rows
    that weigh something."""

    there: int
    keys: NDArray[Any]
    weights: Vector
    counts: NDArray[Any]
    least: Vector
    most: Vector


def joined(parts: list[NDArray[Any]], name: str = "y") -> NDArray[Any]:
    """Return the labels or numbers ``name`` of all chunks as one array.

    Raises ValueError where some chunks have strings and others have numbers: NumPy would make strings of both.
    """
    kinds = {("strings" if one.dtype.kind in "OSTU" else "numbers"): str(one.dtype) for one in parts if one.size}
    if len(kinds) > 1:
        raise ValueError(f"chunks of {name} must have one kind of values, got {' and '.join(kinds.values())}")
    return np.concatenate([one for one in parts if one.size] or parts)


class Numbers:
    """The encoding of a regression's targets. classes: none."""

    classes = np.zeros(0)

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise a chunk. Raises ValueError for targets that are no finite numbers."""
        y = targets.within(np.asarray(_check_y(y, multi_output=True, y_numeric=True), np.float64))
        w, columns = targets.read_weights(weights, y), y.reshape(len(y), -1)
        total = np.array([w.sum()])
        means = (w @ columns / total)[None] if total[0] > 0 else np.zeros((1, columns.shape[1]))
        there = columns[w > 0]
        ends = (there.min(axis=0), there.max(axis=0)) if len(there) else (means[0], means[0])
        return Summary(int((w > 0).sum()), means, total, np.array([len(y)]), *ends)

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y, np.float64)
        return np.ascontiguousarray(y.reshape(len(y), -1).T), targets.read_weights(weights, y)


class Labels(NamedTuple):
    """The encoding of classes (c,) that weigh something. known (a,): all classes that there are; by_class (a,): what
    multiplies the weights of each; table (k, c): the targets of each class."""

    classes: NDArray[Any]
    known: NDArray[Any]
    by_class: Vector
    table: Vector

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise a chunk."""
        y = _check_y(y)
        check_classification_targets(y)
        w = targets.read_weights(weights, y)
        keys, index = np.unique(y, return_inverse=True)
        sums, counts = np.bincount(index, w, len(keys)).astype(np.float64), np.bincount(index, minlength=len(keys))
        return Summary(int((w > 0).sum()), keys, sums, counts, np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, chunks: list[Summary], class_weight: Any, table: Any) -> tuple[Labels, Vector]:
        """Return the encoding by all summaries, and the weights (c,) of the classes.

        table: makes targets (k, c) of places (c,) and their number. Raises ValueError for fewer than two classes.
        """
        known, places = np.unique(joined([one.keys for one in chunks]), return_inverse=True)
        if len(known) < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {len(known)} class")
        sums, counts = (
            np.bincount(places, np.concatenate(column))
            for column in ([one.weights for one in chunks], [one.counts for one in chunks])
        )
        if isinstance(class_weight, str) and class_weight == "balanced":
            by_class = counts.sum() / (len(known) * counts)
        else:
            by_class = targets.class_weights(class_weight, known, known)
        if not sums.any():
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        left, _ = targets.weighing(np.arange(len(known)), sums * by_class, "Invalid input")
        made = cls(known[left], known, by_class, table(np.arange(len(left)), len(left)))
        return made, (sums * by_class)[left]

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y).reshape(-1)
        places = np.searchsorted(self.classes, y).clip(max=len(self.classes) - 1)
        w = targets.read_weights(weights, y) * self.by_class[np.searchsorted(self.known, y)]
        return np.ascontiguousarray(self.table[:, places]), w


Encoding = Numbers | Labels
