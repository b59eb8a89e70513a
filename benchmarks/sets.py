"""The data sets of the comparisons: the source, the split and the parameters of each.

A function makes a data set from the data folder, and returns rows and raw labels. `BUNDLED` sets need no folder.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, normalize

from benchmarks.command import MissingSetError
from benchmarks.solvers import dense, nonzeros

Split = tuple[Any, Any, Any, Any]
"""Training rows, training labels, test rows, test labels; rows as a float64 array or CSR with 32-bit indices."""
Make = Callable[[Path], Split]


@dataclass(frozen=True, slots=True)
class Problem:
    """Training rows X (n, d), labels or targets y, test rows, and the parameters of an SVM with the rbf kernel.

    numbers: whether y are targets. h: the number of common columns of a synthetic set, which most rows have. made: the
    properties of a synthetic set.
    """

    name: str
    X: Any
    y: NDArray[np.float64]
    X_test: Any
    y_test: NDArray[np.float64]
    C: float
    gamma: float
    numbers: bool = False
    h: int = 0
    made: dict[str, float] = field(default_factory=dict)

    @property
    def split(self) -> Split:
        """Return the rows and labels."""
        return self.X, self.y, self.X_test, self.y_test

    @property
    def nnz(self) -> int:
        """Return the number of non-zero entries."""
        return nonzeros(self.X)

    def head(self) -> dict[str, Any]:
        """Return the description of the data set for results."""
        (n, d), nnz = self.X.shape, self.nnz
        shape = {"set": self.name, "h": self.h, "n": n, "d": d, "nnz": nnz, "density": nnz / (n * d)}
        classes = 0 if self.numbers else len(np.unique(self.y))
        return shape | {"classes": classes, "C": self.C, "gamma": self.gamma, "made": self.made}


@dataclass(frozen=True, slots=True)
class DataSet:
    """A function that makes a data set, and the parameters of its problem.

    positive: the label that becomes +1, while the others become -1; None if labels stay. numbers: whether the set has
    targets in place of labels. most, most_test: numbers of training and test rows for fits of many pairs of classes.
    """

    make: Make
    C: float
    gamma: float
    positive: float | None = None
    numbers: bool = False
    most: int | None = None
    most_test: int | None = None


@lru_cache(1)
def load(name: str, folder: Path | None, few: bool = False) -> Problem:
    """Return the problem of a data set by name, and keep it for the next call. few: whether to take ``most`` rows.

    Raises FileNotFoundError for a missing file, and MissingSetError for an unknown name or without a data folder.
    """
    if name not in SETS:
        raise MissingSetError(f"unknown data set {name!r}; there are {', '.join(SETS)}")
    if folder is None and name not in BUNDLED:
        raise MissingSetError(f"{name} is read from a folder: give it as --data DIR")
    one = SETS[name]
    X, y, X_test, y_test = one.make(folder or Path())
    if one.positive is not None:
        y, y_test = (np.where(np.asarray(labels) == one.positive, 1.0, -1.0) for labels in (y, y_test))
    n, m = (one.most, one.most_test) if few else (None, None)
    labels, tests = np.asarray(y[:n], np.float64), np.asarray(y_test[:m], np.float64)
    return Problem(name, X[:n], labels, X_test[:m], tests, one.C, one.gamma, one.numbers)


def _svmlight(path: Path, n_features: int) -> tuple[Any, Any]:
    with lzma.open(path) as file:
        X, y = datasets.load_svmlight_file(file, n_features=n_features, zero_based=False)
    # Some scikit-learn releases return 64-bit indices, which the peers refuse.
    return sp.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape), y


def _files(name: str, n_features: int, change: Callable[[Any], Any] = lambda X: X) -> Make:
    """Return a function that makes a set of the svmlight files name.xz and name.t.xz."""

    def make(folder: Path) -> Split:
        (X, y), (X_test, y_test) = (_svmlight(folder / f"{name}{end}.xz", n_features) for end in ("", ".t"))
        return change(X), y, change(X_test), y_test

    return make


def _mnist(folder: Path) -> Split:
    with np.load(folder / "mnist.npz") as z:
        images = [z[name].reshape(len(z[name]), -1) / 255.0 for name in ("X_train", "X_test")]
        return images[0], z["y_train"], images[1], z["y_test"]


def _ijcnn1(folder: Path) -> Split:
    """Make ijcnn1 with its published split, since its rows are a time series."""
    X, y = _svmlight(folder / "ijcnn1.xz", 22)
    return X[:35000], y[:35000], X[-14990:], y[-14990:]


def _covtype(folder: Path) -> Split:
    with np.load(folder / "covtype20k.npz") as z:
        X, y = scaled(z["X"].astype(np.float64)), z["y"]
    order = np.random.RandomState(0).permutation(20000)  # the old generator defines the split
    train, test = order[:15000], order[15000:]
    return X[train], y[train], X[test], y[test]


def archive(folder: Path | None, name: str) -> Any:
    """Open an .npz file of the folder."""
    return np.load((folder or Path()) / name)


def covertype(n: int | None, folder: Path | None) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return X (n, 54) in [0, 1] and signs (n,) of n random rows of covtype_full, or of all rows if n is None."""
    found = archive(folder, "covtype_full.npz")
    X, y = scaled(found["X"].astype(np.float32)), found["y"]
    some = np.random.default_rng(0).permutation(len(X))[:n]
    return X[some], np.where(y[some] == 2, 1, -1).astype(np.int8)


def scaled(X: NDArray[Any]) -> NDArray[Any]:
    """Return the rows with each column scaled to [0, 1]."""
    low, high = X.min(axis=0), X.max(axis=0)
    return np.asarray((X - low) / np.where(high > low, high - low, 1))


def _synthetic(_: Path) -> Split:
    """Make 20000 training rows, whose first 5000 are the test rows."""
    X, y = datasets.make_classification(20000, 50, random_state=0)
    return X, y, X[:5000], y[:5000]


def _bundled(loader: Callable[..., Any]) -> Make:
    """Return a function that makes one of scikit-learn's sets, columns scaled to [0, 1], a quarter held out."""

    def make(_: Path) -> Split:
        X, y = loader(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(scaled(X), y, random_state=0)
        return X_train, y_train, X_test, y_test

    return make


def _but(make: Make, train: Callable[[Any, Any], tuple[Any, Any]], both: Callable[[Any], Any] = lambda X: X) -> Make:
    """Return a function that changes a set: ``train`` its training rows and labels, ``both`` all its rows."""

    def changed(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        X, y = train(X, y)
        return both(X), y, both(X_test), y_test

    return changed


def _first(n: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda X, y: (X[:n], y[:n])


def _twice(X: Any, y: Any) -> tuple[Any, Any]:
    return sp.vstack([X[:2500], X[:2500]], format="csr"), np.concatenate([y[:2500], y[:2500]])


def _zero_row(X: Any, y: Any) -> tuple[Any, Any]:
    """Return the first 3000 sparse rows with zeros in the eighth."""
    cleared = sp.csr_matrix(sp.diags(np.where(np.arange(3000) == 7, 0.0, 1.0)) @ X[:3000])
    cleared.eliminate_zeros()
    return cleared, y[:3000]


def _shuffled(X: Any, y: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(0).permutation(len(y))[:6000]
    return X[order], y[order]


_a9a = _files("a9a", 123)
_news20 = _files("news20_bydate", 130107, normalize)


def _groups(first: tuple[int, ...], second: tuple[int, ...]) -> Make:
    """Return a function that makes two classes of 20 Newsgroups, with rows of length 1; ``first`` has the label 1."""

    def pick(folder: Path) -> Split:
        X, y, X_test, y_test = _news20(folder)
        train, test = (np.isin(labels, first + second) for labels in (y, y_test))
        return X[train], np.isin(y[train], first) * 1.0, X_test[test], np.isin(y_test[test], first) * 1.0

    return pick


def _regression(name: str, n_features: int) -> Make:
    """Return a function that makes a standardised set for regression from a svmlight file."""

    def make(folder: Path) -> Split:
        X, y = _svmlight(folder / name, n_features)
        return _standardised(X.toarray(), y)

    return make


def _standardised(X: Any, y: Any) -> Split:
    """Hold out a quarter, and scale columns and target to mean 0 and deviation 1 on the training rows."""
    X, X_test, y, y_test = train_test_split(X, y[:, None], random_state=0)
    columns, target = StandardScaler().fit(X), StandardScaler().fit(y)
    rows, targets = map(columns.transform, (X, X_test)), (target.transform(part)[:, 0] for part in (y, y_test))
    (X, X_test), (y, y_test) = rows, targets
    return X, y, X_test, y_test


def _all_of_covertype(folder: Path) -> Split:
    X, y = covertype(None, folder)
    return X.astype(np.float64), y, X[:5000].astype(np.float64), y[:5000]


SETS: dict[str, DataSet] = {
    "a9a": DataSet(_a9a, 1, 0.05, 1, most=5000),
    "mnist8": DataSet(_mnist, 1, 0.02, 8),
    "ijcnn1": DataSet(_ijcnn1, 32, 2, 1),
    "covtype20k": DataSet(_covtype, 3, 1, 2),
    "covtype": DataSet(_all_of_covertype, 1, 1, 1),
    "synthetic20k": DataSet(_synthetic, 1, 0.02, 1),
    # Special cases: a large C, data far from 0, duplicate rows, a row of zeros.
    "a9a5k_C1e4": DataSet(_but(_a9a, _first(5000)), 1e4, 0.05, 1),
    "covtype_shift": DataSet(_but(_covtype, _first(5000), lambda X: X + 1000.0), 3, 1, 2),
    "duplicates": DataSet(_but(_a9a, _twice), 1, 0.05, 1),
    "zero_row": DataSet(_but(_a9a, _zero_row), 1, 0.05, 1),
    # Hard cases: many SMO iterations for few rows.
    "a9a6k_C100": DataSet(_but(_a9a, _first(6000), dense), 100, 0.08, 1),
    "a9a6k_C100_wide": DataSet(_but(_a9a, _first(6000), dense), 100, 0.02, 1),
    "ijcnn6k_C100": DataSet(_but(_ijcnn1, _shuffled, dense), 100, 0.08, 1),
    "covtype6k_C100": DataSet(_but(_covtype, _first(6000)), 100, 0.08, 2),
    # Text: few long rows.
    "news_graphics": DataSet(_groups((0, 1), (2, 3)), 10, 1, 1),
    "news_sports": DataSet(_groups((7, 8), (9, 10)), 10, 1, 1),
    # Small sets that need no folder.
    "breast_cancer": DataSet(_bundled(datasets.load_breast_cancer), 1, 0.5, 1),
    "digits8": DataSet(_bundled(datasets.load_digits), 1, 0.05, 8),
    # Several classes.
    "mnist": DataSet(_mnist, 1, 0.02),
    "letter": DataSet(_files("letter.scale", 16, dense), 16, 4),
    "pendigits": DataSet(_files("pendigits", 16, lambda X: dense(X) / 100), 10, 2),
    "mnist7k": DataSet(_mnist, 10, 0.02, most=7000),
    "news20_bydate": DataSet(_news20, 10, 1, most=3000, most_test=1000),
    "iris": DataSet(_bundled(datasets.load_iris), 1, 1),
    "digits": DataSet(_bundled(datasets.load_digits), 10, 0.05),
    # Regression.
    "cadata": DataSet(_regression("cadata.xz", 8), 1, 0.5, numbers=True),
    "cpusmall": DataSet(_regression("cpusmall.xz", 12), 10, 0.1, numbers=True),
    "diabetes": DataSet(lambda _: _standardised(*datasets.load_diabetes(return_X_y=True)), 1, 0.1, numbers=True),
}
BINARY = tuple(name for name, one in SETS.items() if one.positive is not None)
CLASSES = ("a9a", "letter", "pendigits", "mnist7k", "news20_bydate", "iris", "breast_cancer", "digits", "mnist")
HARD = ("a9a6k_C100", "a9a6k_C100_wide", "ijcnn6k_C100", "covtype6k_C100", "a9a5k_C1e4")
PAIRS = ("letter", "pendigits", "mnist7k")
TEXT = ("news_graphics", "news_sports")
BUNDLED = ("synthetic20k", "breast_cancer", "digits8", "iris", "digits", "diabetes")
"""Data sets that need no data folder."""
