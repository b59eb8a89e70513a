"""The data sets of the comparisons: where each comes from, its split, its parameters.

A set is made by a function that takes the data folder and returns rows and raw labels; `BUNDLED` sets need no folder.
"""

from __future__ import annotations

import argparse
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_svmlight_file,
    make_classification,
)
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, normalize

Split = tuple[Any, Any, Any, Any]
"""Training rows, training labels, test rows, test labels; rows as a float64 array or CSR with 32-bit indices."""


class MissingSetError(ValueError):
    """A data set that there is not, or not without a folder."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A binary RBF problem, ready to be fitted."""

    name: str
    X: Any
    """Training rows (n, d), float64 array or CSR, as the data comes."""
    y: NDArray[np.float64]
    """Labels (n,), -1 or +1."""
    X_test: Any
    y_test: NDArray[np.float64]
    C: float
    gamma: float


@dataclass(frozen=True, slots=True)
class DataSet:
    """How to make a problem."""

    make: Callable[[Path], Split]
    positive: float
    """The label that becomes +1; every other one becomes -1."""
    C: float
    gamma: float


def add_data(parser: argparse.ArgumentParser, words: str = "") -> None:
    """The option of a command that reads files."""
    named = os.environ.get("CLSVM_DATA")
    words = "; ".join(part for part in ("folder of the data sets (else that of CLSVM_DATA)", words) if part)
    parser.add_argument("--data", type=Path, default=Path(named) if named else None, help=words)


def load(name: str, folder: Path | None) -> Problem:
    """The problem of that name; FileNotFoundError or MissingSetError says what is missing."""
    if name not in SETS:
        raise MissingSetError(f"unknown data set {name!r}; there are {', '.join(SETS)}")
    if folder is None and name not in BUNDLED:
        raise MissingSetError(f"{name} is read from a folder: give it as --data DIR")
    recipe = SETS[name]
    X, y, X_test, y_test = recipe.make(folder or Path())
    signed = [np.where(np.asarray(labels) == recipe.positive, 1.0, -1.0) for labels in (y, y_test)]
    return Problem(name, X, signed[0], X_test, signed[1], recipe.C, recipe.gamma)


def _svmlight(path: Path, n_features: int) -> tuple[Any, Any]:
    """svmlight text in xz: CSR rows, labels."""
    with lzma.open(path) as file:
        X, y = load_svmlight_file(file, n_features=n_features, zero_based=False)
    # Some scikit-learn releases return 64-bit indices, which the peers refuse.
    return sp.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape), y


def _a9a(folder: Path) -> Split:
    return (*_svmlight(folder / "a9a.xz", 123), *_svmlight(folder / "a9a.t.xz", 123))


def _mnist(folder: Path) -> Split:
    with np.load(folder / "mnist.npz") as z:
        images = [z[name].reshape(len(z[name]), -1) / 255.0 for name in ("X_train", "X_test")]
        return images[0], z["y_train"], images[1], z["y_test"]


def _ijcnn1(folder: Path) -> Split:
    """The rows are a time series: the split is the published one, not a random one."""
    X, y = _svmlight(folder / "ijcnn1.xz", 22)
    return X[:35000], y[:35000], X[-14990:], y[-14990:]


def _covtype(folder: Path) -> Split:
    with np.load(folder / "covtype20k.npz") as z:
        X, y = z["X"].astype(np.float64), z["y"]
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    order = np.random.RandomState(0).permutation(20000)  # the old generator defines the split
    train, test = order[:15000], order[15000:]
    return X[train], y[train], X[test], y[test]


def _synthetic(_: Path) -> Split:
    """Its 20000 rows are all trained on; the test rows are the first 5000 of them."""
    X, y = make_classification(20000, 50, random_state=0)
    return X, y, X[:5000], y[:5000]


def _bundled(loader: Callable[..., tuple[Any, ArrayLike]]) -> Callable[[Path], Split]:
    """One of scikit-learn's own sets, columns scaled to [0, 1], a quarter of it held out."""

    def make(_: Path) -> Split:
        X, y = loader(return_X_y=True)
        X = (X - X.min(axis=0)) / np.where(np.ptp(X, axis=0) > 0, np.ptp(X, axis=0), 1.0)
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
        return X_train, y_train, X_test, y_test

    return make


def _first(make: Callable[[Path], Split], n: int) -> Callable[[Path], Split]:
    """The first n training rows of another set."""

    def cut(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        return X[:n], y[:n], X_test, y_test

    return cut


def _shifted(make: Callable[[Path], Split], by: float) -> Callable[[Path], Split]:
    """Another set with every feature moved away from 0."""

    def shift(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        return X + by, y, X_test + by, y_test

    return shift


def _twice(make: Callable[[Path], Split]) -> Callable[[Path], Split]:
    """Another set with every training row, label included, repeated once."""

    def repeat(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        return sp.vstack([X, X], format="csr"), np.concatenate([y, y]), X_test, y_test

    return repeat


def _zero_row(make: Callable[[Path], Split], row: int) -> Callable[[Path], Split]:
    """Another (sparse) set with one training row of zeros."""

    def clear(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        keep = np.ones(X.shape[0])
        keep[row] = 0.0
        cleared = sp.csr_matrix(sp.diags(keep) @ X)
        cleared.eliminate_zeros()
        return cleared, y, X_test, y_test

    return clear


def _dense(make: Callable[[Path], Split]) -> Callable[[Path], Split]:
    """Another (sparse) set as arrays."""

    def spread(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        return X.toarray(), y, X_test.toarray(), y_test

    return spread


def _shuffled(make: Callable[[Path], Split]) -> Callable[[Path], Split]:
    """Another set with its training rows in a random order."""

    def shuffle(folder: Path) -> Split:
        X, y, X_test, y_test = make(folder)
        order = np.random.default_rng(0).permutation(len(y))
        return X[order], y[order], X_test, y_test

    return shuffle


def _groups(first: tuple[int, ...], second: tuple[int, ...]) -> Callable[[Path], Split]:
    """Some groups of 20 Newsgroups, label 1, against some others, label 0; rows of length 1."""

    def pick(folder: Path) -> Split:
        parts: list[Any] = []
        for name in ("news20_bydate.xz", "news20_bydate.t.xz"):
            X, y = _svmlight(folder / name, 130107)
            some = np.isin(y, first + second)
            parts += [normalize(X[some]), np.isin(y[some], first).astype(float)]
        return parts[0], parts[1], parts[2], parts[3]

    return pick


SETS: dict[str, DataSet] = {
    "a9a": DataSet(_a9a, positive=1, C=1, gamma=0.05),
    "mnist8": DataSet(_mnist, positive=8, C=1, gamma=0.02),
    "ijcnn1": DataSet(_ijcnn1, positive=1, C=32, gamma=2),
    "covtype20k": DataSet(_covtype, positive=2, C=3, gamma=1),
    "synthetic20k": DataSet(_synthetic, positive=1, C=1, gamma=0.02),
    # Robustness: a large C, data far from 0, duplicate rows, a row of zeros.
    "a9a5k_C1e4": DataSet(_first(_a9a, 5000), positive=1, C=1e4, gamma=0.05),
    "covtype_shift": DataSet(_shifted(_first(_covtype, 5000), 1000.0), positive=2, C=3, gamma=1),
    "duplicates": DataSet(_twice(_first(_a9a, 2500)), positive=1, C=1, gamma=0.05),
    "zero_row": DataSet(_zero_row(_first(_a9a, 3000), 7), positive=1, C=1, gamma=0.05),
    # Hard: many pair steps for few rows.
    "a9a6k_C100": DataSet(_dense(_first(_a9a, 6000)), positive=1, C=100, gamma=0.08),
    "a9a6k_C100_wide": DataSet(_dense(_first(_a9a, 6000)), positive=1, C=100, gamma=0.02),
    "ijcnn6k_C100": DataSet(_dense(_first(_shuffled(_ijcnn1), 6000)), positive=1, C=100, gamma=0.08),
    "covtype6k_C100": DataSet(_first(_covtype, 6000), positive=2, C=100, gamma=0.08),
    # Text: few long rows.
    "news_graphics": DataSet(_groups((0, 1), (2, 3)), positive=1, C=10, gamma=1),
    "news_sports": DataSet(_groups((7, 8), (9, 10)), positive=1, C=10, gamma=1),
    # Tiny ones that need no folder.
    "breast_cancer": DataSet(_bundled(load_breast_cancer), positive=1, C=1, gamma=0.5),
    "digits8": DataSet(_bundled(load_digits), positive=8, C=1, gamma=0.05),
}
HARD = ("a9a6k_C100", "a9a6k_C100_wide", "ijcnn6k_C100", "covtype6k_C100", "a9a5k_C1e4")
TEXT = ("news_graphics", "news_sports")
BUNDLED = ("synthetic20k", "breast_cancer", "digits8")
"""Sets that need no data folder."""

MULTICLASS: dict[str, tuple[Callable[[Path], Split], float, float]] = {
    "mnist": (_mnist, 0.5, 0.02),
    "digits": (_bundled(load_digits), 0.5, 0.05),
}
"""Sets of more than two classes: how to make them, C and gamma. digits needs no folder."""


def load_multiclass(name: str, folder: Path | None) -> Problem:
    """The problem of that name in MULTICLASS, y and y_test being its labels as they come; errors as of ``load``."""
    if name not in MULTICLASS:
        raise MissingSetError(f"unknown data set {name!r} of several classes; there are {', '.join(MULTICLASS)}")
    if folder is None and name != "digits":
        raise MissingSetError(f"{name} is read from a folder: give it as --data DIR")
    make, C, gamma = MULTICLASS[name]
    X, y, X_test, y_test = make(folder or Path())
    return Problem(name, X, np.asarray(y, np.float64), X_test, np.asarray(y_test, np.float64), C, gamma)


def _letter(folder: Path) -> Split:
    return (*_svmlight(folder / "letter.scale.xz", 16), *_svmlight(folder / "letter.scale.t.xz", 16))


def _pendigits(folder: Path) -> Split:
    X, y = _svmlight(folder / "pendigits.xz", 16)
    X_test, y_test = _svmlight(folder / "pendigits.t.xz", 16)
    return X / 100, y, X_test / 100, y_test


def _news20(folder: Path) -> Split:
    """Word counts, each row of length 1."""
    X, y = _svmlight(folder / "news20_bydate.xz", 130107)
    X_test, y_test = _svmlight(folder / "news20_bydate.t.xz", 130107)
    return normalize(X), y, normalize(X_test), y_test


def _regression(name: str, n_features: int) -> Callable[[Path], Split]:
    """A file of numbers to predict, as ``_standardised``."""

    def make(folder: Path) -> Split:
        X, y = _svmlight(folder / name, n_features)
        return _standardised(X.toarray(), y)

    return make


def _diabetes(_: Path) -> Split:
    return _standardised(*load_diabetes(return_X_y=True))


def _standardised(X: Any, y: Any) -> Split:
    """A quarter held out; columns and target with mean 0 and deviation 1 on what is trained on."""
    X, X_test, y, y_test = train_test_split(X, y, random_state=0)
    columns, target = StandardScaler().fit(X), StandardScaler().fit(y[:, None])
    return (
        columns.transform(X),
        target.transform(y[:, None])[:, 0],
        columns.transform(X_test),
        target.transform(y_test[:, None])[:, 0],
    )


@dataclass(frozen=True, slots=True)
class TaskSet:
    """A set for every task that fits it, with an RBF kernel, and the numbers of each."""

    make: Callable[[Path], Split]
    target: Literal["classes", "numbers"]
    """What is to be predicted; a one-class machine looks at the rows alone."""
    gamma: float
    C: float
    nu: float
    """Of NuSVC and NuSVR; OneClassSVM takes OUTSIDE."""
    most: int | None = None
    """How many training rows are taken, the first ones; None: all."""
    most_test: int | None = None
    """The same of the test rows."""
    most_dense: tuple[int, int] | None = None
    """How many of them, and of the test rows, are taken in the dense form; then only columns that these use."""
    remark: str = ""
    """What is left out, in words."""


EPSILON = 0.1
"""Of SVR, whose targets have deviation 1."""
OUTSIDE = 0.1
"""nu of OneClassSVM."""

TASK_SETS: dict[str, TaskSet] = {
    "a9a": TaskSet(_a9a, "classes", gamma=0.05, C=1, nu=0.3, most=5000, remark="the first 5000 of 32561 rows"),
    "letter": TaskSet(_letter, "classes", gamma=4, C=16, nu=0.1),
    "pendigits": TaskSet(_pendigits, "classes", gamma=2, C=10, nu=0.1),
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
    "iris": TaskSet(_bundled(load_iris), "classes", gamma=1, C=1, nu=0.2),
    "breast_cancer": TaskSet(_bundled(load_breast_cancer), "classes", gamma=0.5, C=1, nu=0.2),
    "digits": TaskSet(_bundled(load_digits), "classes", gamma=0.05, C=10, nu=0.1),
    "diabetes": TaskSet(_diabetes, "numbers", gamma=0.1, C=1, nu=0.5),
}
BUNDLED_TASKS = ("iris", "breast_cancer", "digits", "diabetes")
"""Those of them that need no data folder."""


def load_task(name: str, folder: Path | None, whole: bool = False) -> Split:
    """The rows and targets of the set of that name in TASK_SETS, as they come; errors as of ``load``. whole: all rows,
    however many the tasks take."""
    if name not in TASK_SETS:
        raise MissingSetError(f"unknown data set {name!r} of several tasks; there are {', '.join(TASK_SETS)}")
    if folder is None and name not in BUNDLED_TASKS:
        raise MissingSetError(f"{name} is read from a folder: give it as --data DIR")
    recipe = TASK_SETS[name]
    X, y, X_test, y_test = recipe.make(folder or Path())
    most, most_test = (None, None) if whole else (recipe.most, recipe.most_test)
    return X[:most], np.asarray(y[:most], np.float64), X_test[:most_test], np.asarray(y_test[:most_test], np.float64)
