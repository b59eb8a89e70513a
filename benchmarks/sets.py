"""The data sets of the comparisons: where each comes from, its split, its parameters.

A set is made by a function that takes the data folder and returns rows and raw labels; `BUNDLED` sets need no folder.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, normalize

Split = tuple[Any, Any, Any, Any]
"""Training rows, training labels, test rows, test labels; rows as a float64 array or CSR with 32-bit indices."""
Make = Callable[[Path], Split]


class MissingSetError(ValueError):
    """A data set that there is not, or not without a folder."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Training rows X (n, d) and labels y, test rows, and the numbers of an RBF problem."""

    name: str
    X: Any
    y: NDArray[np.float64]
    X_test: Any
    y_test: NDArray[np.float64]
    C: float
    gamma: float


@dataclass(frozen=True, slots=True)
class DataSet:
    """How to make a problem. positive: the label that becomes +1; every other one becomes -1."""

    make: Make
    positive: float
    C: float
    gamma: float


def load(name: str, folder: Path | None) -> Problem:
    """Return the binary problem of that name; raise FileNotFoundError or MissingSetError where something is missing."""
    _wanted(name, folder, SETS, BUNDLED)
    recipe = SETS[name]
    X, y, X_test, y_test = recipe.make(folder or Path())
    signed = [np.where(np.asarray(labels) == recipe.positive, 1.0, -1.0) for labels in (y, y_test)]
    return Problem(name, X, signed[0], X_test, signed[1], recipe.C, recipe.gamma)


def load_multiclass(name: str, folder: Path | None) -> Problem:
    """Return the problem of that name in MULTICLASS, with its labels as they come; errors as of ``load``."""
    _wanted(name, folder, MULTICLASS, ("digits",), " of several classes")
    make, C, gamma = MULTICLASS[name]
    X, y, X_test, y_test = make(folder or Path())
    return Problem(name, X, np.asarray(y, np.float64), X_test, np.asarray(y_test, np.float64), C, gamma)


def load_task(name: str, folder: Path | None, whole: bool = False) -> Split:
    """Return the split of the set of that name in TASK_SETS; errors as of ``load``. whole: all of its rows."""
    _wanted(name, folder, TASK_SETS, BUNDLED_TASKS, " of several tasks")
    recipe = TASK_SETS[name]
    X, y, X_test, y_test = recipe.make(folder or Path())
    most, most_test = (None, None) if whole else (recipe.most, recipe.most_test)
    return X[:most], np.asarray(y[:most], np.float64), X_test[:most_test], np.asarray(y_test[:most_test], np.float64)


def _wanted(name: str, folder: Path | None, known: Any, bundled: Sequence[str], what: str = "") -> None:
    if name not in known:
        raise MissingSetError(f"unknown data set {name!r}{what}; there are {', '.join(known)}")
    if folder is None and name not in bundled:
        raise MissingSetError(f"{name} is read from a folder: give it as --data DIR")


def _svmlight(path: Path, n_features: int) -> tuple[Any, Any]:
    with lzma.open(path) as file:
        X, y = datasets.load_svmlight_file(file, n_features=n_features, zero_based=False)
    # Some scikit-learn releases return 64-bit indices, which the peers refuse.
    return sp.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape), y


def _files(name: str, n_features: int, change: Callable[[Any], Any] = lambda X: X) -> Make:
    """Make a set of name.xz and name.t.xz, svmlight text."""

    def make(folder: Path) -> Split:
        (X, y), (X_test, y_test) = (_svmlight(folder / f"{name}{end}.xz", n_features) for end in ("", ".t"))
        return change(X), y, change(X_test), y_test

    return make


def _mnist(folder: Path) -> Split:
    with np.load(folder / "mnist.npz") as z:
        images = [z[name].reshape(len(z[name]), -1) / 255.0 for name in ("X_train", "X_test")]
        return images[0], z["y_train"], images[1], z["y_test"]


def _ijcnn1(folder: Path) -> Split:
    """Make ijcnn1. The rows are a time series: the split is the published one, not a random one."""
    X, y = _svmlight(folder / "ijcnn1.xz", 22)
    return X[:35000], y[:35000], X[-14990:], y[-14990:]


def _covtype(folder: Path) -> Split:
    with np.load(folder / "covtype20k.npz") as z:
        X, y = scaled(z["X"].astype(np.float64)), z["y"]
    order = np.random.RandomState(0).permutation(20000)  # the old generator defines the split
    train, test = order[:15000], order[15000:]
    return X[train], y[train], X[test], y[test]


def covertype(n: int | None, folder: Path | None) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Return X (n, 54) in [0, 1] and signs (n,) of n rows of covtype_full, drawn by seed 0; None: all."""
    if folder is None or not (folder / "covtype_full.npz").exists():
        raise MissingSetError("covtype_full.npz is not there: --data names its folder")
    with np.load(folder / "covtype_full.npz") as found:
        X, y = scaled(found["X"].astype(np.float32)), found["y"]
    some = np.random.default_rng(0).permutation(len(X))[:n]
    return X[some], np.where(y[some] == 2, 1, -1).astype(np.int8)


def scaled(X: NDArray[Any]) -> NDArray[Any]:
    """Return rows whose columns are in [0, 1]."""
    low, high = X.min(axis=0), X.max(axis=0)
    return np.asarray((X - low) / np.where(high > low, high - low, 1))


def _synthetic(_: Path) -> Split:
    """Make 20000 rows that are all trained on; the test rows are the first 5000 of them."""
    X, y = datasets.make_classification(20000, 50, random_state=0)
    return X, y, X[:5000], y[:5000]


def _bundled(loader: Callable[..., Any]) -> Make:
    """Make one of scikit-learn's own sets, columns scaled to [0, 1], a quarter of it held out."""

    def make(_: Path) -> Split:
        X, y = loader(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(scaled(X), y, random_state=0)
        return X_train, y_train, X_test, y_test

    return make


def _but(make: Make, train: Callable[[Any, Any], tuple[Any, Any]], both: Callable[[Any], Any] = lambda X: X) -> Make:
    """Make another set with ``train`` of its training rows and labels, and ``both`` of all rows."""

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
    """Clear the eighth of 3000 sparse rows."""
    cleared = sp.csr_matrix(sp.diags(np.where(np.arange(3000) == 7, 0.0, 1.0)) @ X[:3000])
    cleared.eliminate_zeros()
    return cleared, y[:3000]


def _shuffled(X: Any, y: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(0).permutation(len(y))[:6000]
    return X[order], y[order]


def _array(X: Any) -> Any:
    return X.toarray() if sp.issparse(X) else X


_a9a = _files("a9a", 123)
_news20 = _files("news20_bydate", 130107, normalize)


def _groups(first: tuple[int, ...], second: tuple[int, ...]) -> Make:
    """Make some groups of 20 Newsgroups, label 1, against some others, label 0; rows of length 1."""

    def pick(folder: Path) -> Split:
        X, y, X_test, y_test = _news20(folder)
        train, test = (np.isin(labels, first + second) for labels in (y, y_test))
        return X[train], np.isin(y[train], first) * 1.0, X_test[test], np.isin(y_test[test], first) * 1.0

    return pick


SETS: dict[str, DataSet] = {
    "a9a": DataSet(_a9a, positive=1, C=1, gamma=0.05),
    "mnist8": DataSet(_mnist, positive=8, C=1, gamma=0.02),
    "ijcnn1": DataSet(_ijcnn1, positive=1, C=32, gamma=2),
    "covtype20k": DataSet(_covtype, positive=2, C=3, gamma=1),
    "synthetic20k": DataSet(_synthetic, positive=1, C=1, gamma=0.02),
    # Robustness: a large C, data far from 0, duplicate rows, a row of zeros.
    "a9a5k_C1e4": DataSet(_but(_a9a, _first(5000)), positive=1, C=1e4, gamma=0.05),
    "covtype_shift": DataSet(_but(_covtype, _first(5000), lambda X: X + 1000.0), positive=2, C=3, gamma=1),
    "duplicates": DataSet(_but(_a9a, _twice), positive=1, C=1, gamma=0.05),
    "zero_row": DataSet(_but(_a9a, _zero_row), positive=1, C=1, gamma=0.05),
    # Hard: many pair steps for few rows.
    "a9a6k_C100": DataSet(_but(_a9a, _first(6000), _array), positive=1, C=100, gamma=0.08),
    "a9a6k_C100_wide": DataSet(_but(_a9a, _first(6000), _array), positive=1, C=100, gamma=0.02),
    "ijcnn6k_C100": DataSet(_but(_ijcnn1, _shuffled, _array), positive=1, C=100, gamma=0.08),
    "covtype6k_C100": DataSet(_but(_covtype, _first(6000)), positive=2, C=100, gamma=0.08),
    # Text: few long rows.
    "news_graphics": DataSet(_groups((0, 1), (2, 3)), positive=1, C=10, gamma=1),
    "news_sports": DataSet(_groups((7, 8), (9, 10)), positive=1, C=10, gamma=1),
    # Tiny ones that need no folder.
    "breast_cancer": DataSet(_bundled(datasets.load_breast_cancer), positive=1, C=1, gamma=0.5),
    "digits8": DataSet(_bundled(datasets.load_digits), positive=8, C=1, gamma=0.05),
}
HARD = ("a9a6k_C100", "a9a6k_C100_wide", "ijcnn6k_C100", "covtype6k_C100", "a9a5k_C1e4")
TEXT = ("news_graphics", "news_sports")
BUNDLED = ("synthetic20k", "breast_cancer", "digits8")
"""Sets that need no data folder."""

MULTICLASS: dict[str, tuple[Make, float, float]] = {
    "mnist": (_mnist, 0.5, 0.02),
    "digits": (_bundled(datasets.load_digits), 0.5, 0.05),
}
"""Sets of more than two classes: how to make them, C and gamma. digits needs no folder."""


def _regression(name: str, n_features: int) -> Make:
    """Make a set of a file of numbers to predict, standardised."""

    def make(folder: Path) -> Split:
        X, y = _svmlight(folder / name, n_features)
        return _standardised(X.toarray(), y)

    return make


def _standardised(X: Any, y: Any) -> Split:
    """Hold out a quarter; columns and target have mean 0 and deviation 1 on what is trained on."""
    X, X_test, y, y_test = train_test_split(X, y[:, None], random_state=0)
    columns, target = StandardScaler().fit(X), StandardScaler().fit(y)
    rows, targets = map(columns.transform, (X, X_test)), (target.transform(part)[:, 0] for part in (y, y_test))
    (X, X_test), (y, y_test) = rows, targets
    return X, y, X_test, y_test


@dataclass(frozen=True, slots=True)
class TaskSet:
    """A set for every task that fits it, with an RBF kernel, and the numbers of each.

    nu: of NuSVC and NuSVR; OneClassSVM takes OUTSIDE. most, most_test: the first training and test rows that are
    taken. most_dense: the same two in the dense form; then only columns that these use. remark: what is left out.
    """

    make: Make
    target: Literal["classes", "numbers"]
    gamma: float
    C: float
    nu: float
    most: int | None = None
    most_test: int | None = None
    most_dense: tuple[int, int] | None = None
    remark: str = ""


EPSILON = 0.1  # of SVR, whose targets have deviation 1
OUTSIDE = 0.1  # nu of OneClassSVM

TASK_SETS: dict[str, TaskSet] = {
    "a9a": TaskSet(_a9a, "classes", gamma=0.05, C=1, nu=0.3, most=5000, remark="the first 5000 of 32561 rows"),
    "letter": TaskSet(_files("letter.scale", 16), "classes", gamma=4, C=16, nu=0.1),
    "pendigits": TaskSet(_files("pendigits", 16, lambda X: X / 100), "classes", gamma=2, C=10, nu=0.1),
    "mnist7k": TaskSet(_mnist, "classes", gamma=0.02, C=10, nu=0.1, most=7000, remark="the first 7000 of 60000 rows"),
    "news20_bydate": TaskSet(
        _news20,
        "classes",
        gamma=1,
        C=10,
        nu=0.1,
        most=3000,
        most_test=1000,
        most_dense=(600, 150),
        remark="the first 3000 of 11314 rows and 1000 of 7532 test rows; dense, where scikit-learn takes minutes, the "
        "first 600 and 150, and columns that these use",
    ),
    "cadata": TaskSet(_regression("cadata.xz", 8), "numbers", gamma=0.5, C=1, nu=0.3),
    "cpusmall": TaskSet(_regression("cpusmall.xz", 12), "numbers", gamma=0.1, C=10, nu=0.3),
    "abalone": TaskSet(_regression("abalone.xz", 8), "numbers", gamma=0.1, C=10, nu=0.3),
    "iris": TaskSet(_bundled(datasets.load_iris), "classes", gamma=1, C=1, nu=0.2),
    "breast_cancer": TaskSet(_bundled(datasets.load_breast_cancer), "classes", gamma=0.5, C=1, nu=0.2),
    "digits": TaskSet(_bundled(datasets.load_digits), "classes", gamma=0.05, C=10, nu=0.1),
    "diabetes": TaskSet(
        lambda _: _standardised(*datasets.load_diabetes(return_X_y=True)), "numbers", gamma=0.1, C=1, nu=0.5
    ),
}
BUNDLED_TASKS = ("iris", "breast_cancer", "digits", "diabetes")
"""Sets of tasks that need no data folder."""
