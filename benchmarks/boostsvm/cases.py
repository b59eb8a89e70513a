"""The data sets of the comparison: real ones from benchmarks.sets, and synthetic ones like the paper's.

Synthetic sets have the shapes and densities of the paper's sets. A row has an entry in column r = 1, 2, ... with
probability min(CAP, r^-a), and bisection finds the exponent a of a density. ``h`` further columns are common: they have
entries in the share COMMON of all rows, as some of url's do. Columns stand in random order, and rows have length 1.
Labels or targets come from a linear function of TEACHER columns, which are drawn in proportion to their entries, with
the noise NOISE.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy import optimize
from sklearn.preprocessing import normalize

from benchmarks import sets
from benchmarks.command import Asked
from benchmarks.sets import Problem
from benchmarks.solvers import dense

CAP = 0.5  # largest density of a column that is not one of the h
COMMON = 0.74
TEACHER = 200
NOISE = 0.05  # share of flipped labels, or noise of a target over its deviation
DRAWN_ROWS, DRAWN_COLUMNS, DRAWN_ENTRIES = (400, 40000), (100, 60000), (4, 1500)  # ranges of random shapes
DRAWN_MOST = 1.5e7  # entries of a random shape at most


@dataclass(frozen=True)
class Shape:
    """The shape of a synthetic set of n rows. dense: whether zeros are spread evenly, without a power law."""

    n: int
    d: int
    density: float
    target: Literal["classes", "numbers"] = "classes"
    dense: bool = False

    @property
    def per_row(self) -> float:
        """Return the average number of entries of a row."""
        return self.density * self.d

    def refused(self, h: int) -> str:
        """Return why the set cannot have h common columns, or an empty string."""
        if h and self.dense:
            return "all columns are dense"
        if h * COMMON > self.per_row or h >= self.d:
            return f"{h} columns of density {COMMON} need {h * COMMON:.0f} entries a row, rows have {self.per_row:.1f}"
        return ""


SHAPES = {
    "real-sim": Shape(72309, 20958, 0.0024),
    "rcv1": Shape(67740, 47236, 0.0015),
    "e2006": Shape(16087, 150360, 0.0082, target="numbers"),
    "gisette": Shape(6000, 5000, 0.9908, dense=True),
    "url": Shape(23961, 3231961, 0.000036),
}


def drawn(seed: int) -> Shape:
    """Draw a random shape, whose rows, columns and entries of a row have uniform logarithms."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> int:
        return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))

    n, d = between(*DRAWN_ROWS), between(*DRAWN_COLUMNS)
    per_row = between(DRAWN_ENTRIES[0], min(0.4 * d, DRAWN_ENTRIES[1], DRAWN_MOST / n))
    return Shape(n, d, per_row / d)


def power_law(d: int, a: float) -> NDArray[np.float64]:
    """Return the falling densities of d columns for the exponent a."""
    return np.minimum(CAP, np.arange(1, d + 1, dtype=np.float64) ** -a)


def exponent(d: int, per_row: float) -> float:
    """Return the exponent in [0, 8] with which d columns have ``per_row`` entries a row."""
    return float(optimize.bisect(lambda a: power_law(d, a).sum() - per_row, 0, 8, xtol=1e-14))


def _entries(rng: np.random.Generator, n: int, density: NDArray[np.float64], place: NDArray[np.int64]) -> sp.csr_matrix:
    """Draw CSR rows with independent entries, in column place[j] with probability density[j].

    Each place of the matrix gets a Poisson number of points with mean -log(1 - density), and has an entry if the number
    is positive.
    """
    d = len(density)
    points = rng.poisson(-np.log1p(-density) * n)
    cells = rng.integers(0, n, points.sum()) * d + np.repeat(place, points)
    cells.sort()
    cells = cells[np.diff(cells, prepend=-1) != 0]
    indptr = np.searchsorted(cells, np.arange(n + 1) * d)
    values = np.abs(rng.standard_normal(len(cells), np.float32))
    return sp.csr_matrix((values, (cells % d).astype(np.int32), indptr.astype(np.int32)), shape=(n, d))


def _taught(rng: np.random.Generator, X: Any, count: NDArray[np.int64], target: str) -> NDArray[np.float64]:
    """Return y (n,): targets with mean 0 and deviation 1 before the noise, or labels of -1 and 1."""
    n, used = X.shape[0], np.flatnonzero(count)
    # The columns with the largest keys are a draw without replacement, with probabilities proportional to counts.
    keys = np.log(count[used]) + rng.gumbel(size=len(used))
    chosen = used[np.argsort(-keys)[:TEACHER]]
    teacher = np.zeros(len(count))
    teacher[chosen] = rng.standard_normal(len(chosen))
    score = np.asarray(X @ teacher, np.float64)
    if target == "numbers":
        return (score - score.mean()) / score.std() + NOISE * rng.standard_normal(n)
    y = np.where(score > np.median(score), 1.0, -1.0)
    y[rng.random(n) < NOISE] *= -1
    return y


REAL = ("a9a", "mnist8", "ijcnn1", "letter", "news20_bydate")
SETS = (*REAL, *SHAPES)
RANDOM = "random-"  # the prefix of a seed, in the name of a set with a random shape
DENSE = 0.5  # the least density of a set that is an array
CLASSES, NUMBERS = (100.0, 0.5), (256.0, 0.125)  # the paper's C and gamma


def made(name: str, shape: Shape, h: int = 0, scale: int = 1, seed: int = 0) -> Problem:
    """Make a set of a shape, with h common columns and n / scale rows; raise ValueError if h is not possible."""
    if words := shape.refused(h):
        raise ValueError(words)
    rng, n = np.random.default_rng(seed), max(2, shape.n // scale)
    if shape.dense:
        cells = np.abs(rng.standard_normal((n, shape.d), np.float32))
        cells[rng.random(cells.shape, np.float32) >= shape.density] = 0
        X, record = normalize(cells), {}
        count, common = np.count_nonzero(cells, axis=0), np.zeros(0, np.int64)
    else:
        a = exponent(shape.d - h, shape.per_row - h * COMMON)
        density = np.concatenate([np.full(h, COMMON), power_law(shape.d - h, a)])
        place = rng.permutation(shape.d)
        X, record = normalize(_entries(rng, n, density, place)), {"exponent": a}
        count, common = np.bincount(X.indices, minlength=shape.d), place[:h]
    total = int(count.sum())
    record |= {"density": total / (n * shape.d), "share_common": float(count[common].sum() / max(total, 1))}
    y, numbers = _taught(rng, X, count, shape.target), shape.target == "numbers"
    return Problem(name, X, y, None, y, *(NUMBERS if numbers else CLASSES), numbers, h, record)


def refused(name: str, h: int) -> str:
    """Return why a set cannot have h common columns, or an empty string."""
    if name in SHAPES:
        return SHAPES[name].refused(h)
    return "a real set has no added columns" if h else ""


@lru_cache(1)
def load(name: str, h: int = 0, scale: int = 1, folder: Path | None = None) -> Problem:
    """Return a set by name with n / scale rows, the same rows in every call. Raises the errors of sets.load."""
    if name in SHAPES or name.startswith(RANDOM):
        seed = int(name.removeprefix(RANDOM)) if name.startswith(RANDOM) else 0
        return made(name, SHAPES.get(name) or drawn(seed), h, scale, seed)
    X, y, *_ = sets.load(name, folder).split
    chosen = np.sort(np.random.default_rng(0).permutation(len(y))[: max(2, len(y) // scale)])
    X = normalize(X[chosen].astype(np.float32))
    if sp.issparse(X):
        X.sort_indices()
        X = dense(X) if X.nnz >= DENSE * X.shape[0] * X.shape[1] else X
    return Problem(name, X, y[chosen], None, y[chosen], *CLASSES)


def loaded(name: str, asked: Asked) -> partial[Problem]:
    """Return a function that loads a set with the command line's options."""
    return partial(load, name, asked.h, asked.scale, asked.data)
