"""The sets of the comparison: real ones from benchmarks.sets, with rows of length 1, and synthetic ones by shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from benchmarks import sets
from benchmarks.boostsvm import shapes
from benchmarks.boostsvm.shapes import SHAPES

Loader = Callable[[Path | None], tuple[Any, Any]]


def _binary(name: str) -> Loader:
    def make(folder: Path | None) -> tuple[Any, Any]:
        problem = sets.load(name, folder)
        return problem.X, problem.y

    return make


def _classes(name: str) -> Loader:
    def make(folder: Path | None) -> tuple[Any, Any]:
        if folder is None:
            raise sets.MissingSetError(f"{name} is read from a folder: give it as --data DIR")
        return sets.TASK_SETS[name].make(folder)[:2]

    return make


REAL: dict[str, Loader] = {
    "a9a": _binary("a9a"),
    "mnist8": _binary("mnist8"),
    "ijcnn1": _binary("ijcnn1"),
    "letter": _classes("letter"),
    "news20_bydate": _classes("news20_bydate"),
}
SETS = (*REAL, *SHAPES)
RANDOM = "random-"  # before a seed: a set of the shape that it draws
DENSE = 0.5  # from this density on a set is an array
EPSILON = 0.1  # of SVR; targets have deviation 1


@dataclass(frozen=True)
class Case:
    """A set with its parameters, the paper's: X (n, d), float32, CSR or array, and y (n,), labels or numbers.

    h: columns of density 0.74. record: how a synthetic set was made; {} for a real one.
    """

    name: str
    h: int
    X: Any
    y: NDArray[np.float64]
    classes: bool = True
    C: float = 100.0
    gamma: float = 0.5
    record: dict[str, float] = field(default_factory=dict)

    @property
    def nnz(self) -> int:
        """Entries that are not 0."""
        return int(self.X.nnz if sp.issparse(self.X) else np.count_nonzero(self.X))

    def head(self) -> dict[str, Any]:
        """What every row of a result says about its set."""
        n, d = self.X.shape
        numbers = {"n": n, "d": d, "nnz": self.nnz, "C": self.C, "gamma": self.gamma}
        return {"set": self.name, "h": self.h, **numbers, "density": self.nnz / (n * d), "made": self.record}


def refused(name: str, h: int) -> str:
    """Why a set cannot have h common columns, in words; empty where it can."""
    if name in SHAPES:
        return SHAPES[name].refused(h)
    return "a real set has the columns that it has" if h else ""


def load(name: str, h: int = 0, scale: int = 1, folder: Path | None = None) -> Case:
    """The set of that name with n / scale rows; the same rows in every call. FileNotFoundError or MissingSetError says
    what is missing."""
    if name in SHAPES or name.startswith(RANDOM):
        seed = int(name.removeprefix(RANDOM)) if name.startswith(RANDOM) else 0
        shape = SHAPES.get(name) or shapes.drawn(seed)
        made = shapes.make(shape, h, scale, seed)
        numbers = {"C": 100.0, "gamma": 0.5} if shape.target == "classes" else {"C": 256.0, "gamma": 0.125}
        return Case(name, h, made.X, made.y, shape.target == "classes", **numbers, record=made.record)
    X, y = REAL[name](folder)
    y = np.asarray(y, np.float64)
    chosen = np.sort(np.random.default_rng(0).permutation(len(y))[: max(2, len(y) // scale)])
    X = normalize(X[chosen].astype(np.float32))
    if sp.issparse(X):
        X.sort_indices()
        if X.nnz >= DENSE * X.shape[0] * X.shape[1]:
            X = X.toarray()
    return Case(name, h, X, y[chosen])
