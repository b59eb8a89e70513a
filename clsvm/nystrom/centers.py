"""The inducing points of a Nyström model: rows drawn evenly, by k-means++ or by leverage, or given ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, solve_triangular
from sklearn.cluster import kmeans_plusplus

from clsvm.arrays import Data
from clsvm.gram.cross import kernel_matrix
from clsvm.kernels import Kernel

LEAST, LARGEST = 100, 5000  # inducing points where their number is left to us
LOOKED_AT = 20  # rows for each inducing point that k-means++ chooses from
PILOT, BLOCK = 1000, 1 << 24  # rows that leverage is measured against; values of K at a time


class Centers(NamedTuple):
    """Inducing points. rows (m, d); places (m,): their numbers among the rows of X, None where they are no rows; words:
    how many, and why."""

    rows: Data
    places: NDArray[np.intp] | None
    words: str


def count(n: int, asked: int | str) -> tuple[int, str]:
    """Return (m, why) for n rows that can be drawn."""
    if asked == "auto":
        m = min(n, LARGEST, max(LEAST, int(np.ceil(np.sqrt(n) * np.log2(max(n, 2))))))
        return m, f"{m}: sqrt(n) log2(n) of {n} rows, {LEAST} to {LARGEST}, at most all"
    m = min(n, int(asked))
    return m, f"{m} of {n} rows" + (f" ({asked} were asked for)" if m < int(asked) else " as asked for")


def choose(
    X: Data,
    how: Any,
    asked: int | str,
    weights: NDArray[np.float64],
    random: np.random.RandomState,
    kernel: Kernel,
    penalty: float,
    where: Mapping[str, Any],
) -> Centers:
    """Choose inducing points by a center_selection: "uniform", "k-means++", "leverage", or rows (m, d) themselves.

    Rows that weigh nothing are not drawn. where: the device and memory_limit of the kernel values that leverage needs.
    """
    if not isinstance(how, str):
        return Centers(how, None, f"{how.shape[0]} that were given")
    there = np.flatnonzero(weights > 0)
    m, words = count(len(there), asked)
    if m == len(there):
        return Centers(X[there], there, f"{words}: every row")
    if how == "uniform":
        drawn = random.choice(there, m, replace=False)
    elif how == "k-means++":
        some = there if len(there) <= LOOKED_AT * m else random.choice(there, LOOKED_AT * m, replace=False)
        drawn = np.unique(some[kmeans_plusplus(X[some], m, random_state=random)[1]])
        # Where points coincide k-means++ takes a row twice.
        others = random.choice(np.setdiff1d(there, drawn), m - len(drawn), replace=False)
        drawn = np.concatenate([drawn, others])
    else:
        scores = leverage(X, kernel, there, penalty, random, where)
        drawn = random.choice(there, m, replace=False, p=scores / scores.sum())
    index = np.sort(drawn)
    return Centers(X[index], index, f"{words}, drawn by {how}" if how != "uniform" else words)


def leverage(
    X: Data,
    kernel: Kernel,
    there: NDArray[np.intp],
    penalty: float,
    random: np.random.RandomState,
    where: Mapping[str, Any],
) -> NDArray[np.float64]:
    """Return about the ridge leverage scores of the rows ``there``, at least a little.

    (K(x, x) - k' (K_ss + penalty s I)^-1 k) / (penalty n), against s rows drawn evenly. Source: Rudi, Calandriello,
    Carratino, Rosasco 2018 (BLESS).
    """
    s = min(PILOT, len(there))
    pilot = X[np.sort(random.choice(there, s, replace=False))]
    K = kernel_matrix(pilot, kernel=kernel, dtype="float64", **where)
    factor, lower = cho_factor(K + penalty * s * np.eye(s), lower=True)
    scores, step = np.empty(len(there)), max(1, BLOCK // s)
    for first in range(0, len(there), step):
        rows = X[there[first : first + step]]
        across = solve_triangular(factor, kernel_matrix(pilot, rows, kernel, **where), lower=lower)
        scores[first : first + step] = _diagonal(kernel, rows) - np.square(across).sum(axis=0)
    return np.maximum(scores, 1e-3 * max(float(scores.mean()), 1e-300))


def _diagonal(kernel: Kernel, X: Data) -> NDArray[np.float64]:
    """Return K(x, x) of each row."""
    step = 256
    parts = (np.diagonal(kernel(X[i : i + step])) for i in range(0, X.shape[0], step))
    return np.concatenate([*parts])
