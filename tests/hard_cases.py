"""Random problems of every task with what makes solvers fail: the n-th case is always the same one.

Equal rows with opposite labels, columns of very different size or nearly the same, offsets, constant columns, rows of
zeros, C from 1e-6 to 1e8, weights with zeros, classes of one row, three to forty classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn import svm

import clsvm
from benchmarks.check import gram

Array = NDArray[Any]
Random = np.random.Generator
MAX_TIME = 20.0  # seconds that a solver has for one case
TASKS = {"SVC": 0.55, "SVR": 0.15, "NuSVC": 0.1, "NuSVR": 0.09, "OneClassSVM": 0.11}
KERNELS = {"rbf": 0.33, "linear": 0.33, "poly": 0.12, "laplacian": 0.08, "sigmoid": 0.05, "precomputed": 0.09}
SIZES = {(2, 40): 0.4, (40, 150): 0.4, (150, 600): 0.17, (600, 1500): 0.03}


@dataclass(frozen=True)
class Case:
    """A problem: its estimator's class, the kernel with its numbers, what else is asked for, and the data (K or X)."""

    seed: int
    task: str
    kernel: str
    numbers: dict[str, float]
    asked: dict[str, Any]
    own: dict[str, Any]
    X: Any
    y: Array | None
    weights: Array | None
    words: tuple[str, ...]

    def __str__(self) -> str:
        settings = {"kernel": self.kernel, **self.numbers, **self.asked, **self.own}
        said = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        kind = f"{'CSR' if sp.issparse(self.X) else 'dense'} {self.X.dtype} {'x'.join(map(str, self.X.shape))}"
        return f"seed {self.seed}: {self.task}({said}) of {kind}: {', '.join(self.words)}"

    @property
    def convex(self) -> bool:
        """Whether there is one best objective. Values that were rounded to float32 may have lost that."""
        if self.kernel == "precomputed":
            K = np.asarray(self.X, np.float64)
            return bool(np.linalg.eigvalsh(K)[0] >= -len(K) * np.finfo(np.float64).eps * np.abs(K).max())
        return self.kernel != "sigmoid"

    def gram(self) -> Array:
        """K (n, n) in long double."""
        return gram(self.kernel, self.numbers, self.X)

    def ours(self, device: str | None = None) -> Any:
        """clsvm's estimator, fitted."""
        made = getattr(clsvm, self.task)(
            kernel=self.kernel, max_time=MAX_TIME, device=device, **self.numbers, **self.asked, **self.own
        )
        return made.fit(self.X, self.y, self.weights)

    @property
    def weighing(self) -> Any:
        """The labels of the rows that weigh something."""
        return self.y if self.weights is None else self.y[self.weights > 0]

    @property
    def has_peer(self) -> bool:
        """Whether LIBSVM solves the same problem. (Of several classes, one whose rows all weigh nothing is left out of
        scikit-learn's coefficients.)"""
        if not self.own.get("bias", True) or self.own.get("multi_class") == "crammer_singer":
            return False
        if self.y is None or self.task not in ("SVC", "NuSVC") or len(classes := np.unique(self.y)) == 2:
            return True
        return self.own.get("multi_class", "ovo") == "ovo" and np.array_equal(np.unique(self.weighing), classes)

    def theirs(self, steps: int) -> Any:
        """scikit-learn's estimator, which is LIBSVM's, fitted in so many steps at most."""
        given, X = self.kernel in ("laplacian", "precomputed"), self.X
        if self.kernel == "laplacian":
            X = self.gram().astype(np.float64)
        kernel, numbers = ("precomputed", {}) if given else (self.kernel, self.numbers)
        made = getattr(svm, self.task)(kernel=kernel, max_iter=steps, **numbers, **self.asked)
        made.fit(X, self.y, sample_weight=self.weights)
        if self.weights is not None:  # (scikit-learn counts the rows that weigh something)
            made.support_ = np.flatnonzero(self.weights > 0)[made.support_]
        return made


def case(seed: int) -> Case:
    """The case of that number."""
    rng, words = np.random.default_rng([seed, 7]), list[str]()
    task, kernel = picked(rng, TASKS), picked(rng, KERNELS)
    least, most = picked(rng, SIZES)
    n = int(rng.integers(least, most))
    X = rows(rng, n, words)
    y = labels(rng, X, words) if task in ("SVC", "NuSVC") else numbers_to_learn(rng, X, words)
    if y is not None and len(X) > 3 and rng.random() < 0.35:
        half = int(rng.integers(1, max(2, n // 2)))
        X[-half:] = X[:half]
        words.append(f"{half} rows twice, with labels of their own")
    weights = row_weights(rng, n, words)
    numbers = kernel_numbers(rng, kernel, X)
    asked = settings(rng, task, y)
    own: dict[str, Any] = {"dtype": "float64"} if rng.random() < 0.2 else {}
    if task == "SVC":
        own["multi_class"] = picked(rng, {"ovo": 0.6, "ovr": 0.2, "crammer_singer": 0.2})
    if task in ("SVC", "SVR") and own.get("multi_class") != "crammer_singer" and rng.random() < 0.2:
        own["bias"] = False
    if kernel == "precomputed":
        X = gram(*(("linear", {}) if rng.random() < 0.5 else ("rbf", {"gamma": natural(X)})), X).astype(np.float64)
    made: Any = X.astype(np.float32) if rng.random() < 0.25 else X
    if kernel != "precomputed" and rng.random() < 0.25:
        made = sp.csr_matrix(np.where(np.abs(made) < np.median(np.abs(made)), 0, made).astype(made.dtype))
    return Case(
        seed, task, kernel, numbers, asked, own, made, None if task == "OneClassSVM" else y, weights, tuple(words)
    )


def picked(rng: Random, chances: dict[Any, float]) -> Any:
    """One of the keys, by their chances."""
    keys, shares = list(chances), np.array(list(chances.values()))
    return keys[rng.choice(len(keys), p=shares / shares.sum())]


def rows(rng: Random, n: int, words: list[str]) -> Array:
    """Rows (n, d) of some kind, with up to three things wrong with them."""
    d = int(rng.choice([1, 2, 3, 5, 10, 30], p=[0.1, 0.25, 0.25, 0.2, 0.15, 0.05]))
    kinds: dict[str, Callable[[], Array]] = {
        "normal": lambda: rng.normal(size=(n, d)),
        "on a grid": lambda: rng.integers(-2, 3, (n, d)).astype(float),
        "of zeros and ones": lambda: rng.integers(0, 2, (n, d)).astype(float),
        "in blobs": lambda: rng.normal(size=(5, d))[rng.integers(0, 5, n)] * 3 + 0.1 * rng.normal(size=(n, d)),
        "of long tails": lambda: np.exp(2 * rng.normal(size=(n, d))),
    }
    kind = str(rng.choice(list(kinds)))
    X = kinds[kind]()
    words += [f"rows {kind}"]
    for wrong in rng.choice(WRONG, size=rng.choice(4, p=[0.35, 0.35, 0.2, 0.1]), replace=False):
        words.append(str(wrong))
        X = damaged(rng, X, wrong)
    return X


WRONG = (
    *("columns of other sizes", "columns nearly the same", "an offset", "an offset of a column", "a constant column"),
    *("rows of zeros", "one row far out", "few different rows", "everything small"),
)


def damaged(rng: Random, X: Array, wrong: str) -> Array:
    """Rows with one of WRONG, in place or anew."""
    n, d = X.shape
    match wrong:
        case "columns of other sizes":
            return X * 10.0 ** rng.uniform(-4, 4, d)
        case "columns nearly the same":
            return X[:, :1] + 10.0 ** rng.uniform(-8, -2) * X
        case "an offset":
            return X + 10.0 ** rng.uniform(0, 6)
        case "an offset of a column":
            X[:, rng.integers(d)] += 10.0 ** rng.uniform(0, 6)
        case "a constant column":
            X[:, rng.integers(d)] = 10.0 ** rng.uniform(-3, 5)
        case "rows of zeros":
            X[rng.random(n) < 0.3] = 0
        case "one row far out":
            X[rng.integers(n)] *= 10.0 ** rng.uniform(1, 5)
        case "few different rows":
            return X[rng.integers(0, max(1, n // 10), n)]
        case "everything small":
            return X * 10.0 ** rng.uniform(-6, -1)
    return X


def score(rng: Random, X: Array) -> Array:
    """Something to learn of the rows, (n,), about as large as 1."""
    spread = np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    value = ((X - X.mean(axis=0)) / spread) @ rng.normal(size=X.shape[1])
    return np.asarray(value / (np.abs(value).max() or 1) + rng.choice([0.02, 0.2, 1.0]) * rng.normal(size=len(X)))


def labels(rng: Random, X: Array, words: list[str]) -> Array:
    """Labels of two to forty classes, each of which has a row."""
    n, most = len(X), {2: 0.5, 3: 0.15, 5: 0.15, 12: 0.12, 40: 0.08}
    k = min(n, int(picked(rng, most)))
    k = int(rng.integers(3, k + 1)) if k > 3 else k
    index = np.zeros(n, int)
    if rng.random() < 0.25:
        words.append(f"{k} classes, all but one of one row")
        index[rng.permutation(n)[: k - 1]] = np.arange(1, k)
    else:
        words.append(f"{k} classes")
        index[np.argsort(score(rng, X))] = np.arange(n) * k // n
    names = rng.choice(["numbers", "words", "negative"])
    return (
        np.array([f"class {i:02d}" for i in range(k)])[index] if names == "words" else index - k * (names == "negative")
    )


def numbers_to_learn(rng: Random, X: Array, words: list[str]) -> Array:
    """Targets of any size."""
    size = float(10.0 ** rng.uniform(-3, 6)) if rng.random() < 0.3 else 1.0
    words.append(f"targets of {size:.2g}")
    return np.asarray(size * (score(rng, X) + (rng.choice([0, 10]) if rng.random() < 0.3 else 0)))


def row_weights(rng: Random, n: int, words: list[str]) -> Array | None:
    kind = picked(rng, {"none": 0.6, "with zeros": 0.2, "of many sizes": 0.2})
    if kind == "none":
        return None
    words.append(f"weights {kind}")
    if kind == "with zeros":
        return np.asarray(rng.choice([0.0, 0.5, 1.0, 3.0], n))
    return np.asarray(10.0 ** rng.uniform(-2, 2, n))


def natural(X: Array) -> float:
    """1 / (d var(X)), as gamma="scale" has it."""
    return float(1 / (X.shape[1] * X.var())) if X.var() > 0 else 1.0


def kernel_numbers(rng: Random, kernel: str, X: Array) -> dict[str, float]:
    gamma = natural(X) * 10.0 ** (rng.uniform(-2, 2) if rng.random() < 0.5 else 0)
    if kernel == "poly":
        gamma = 1 / float((X * X).sum(axis=1).max() or 1) if rng.random() < 0.7 else min(gamma, 1.0)
        return {"gamma": gamma, "coef0": float(rng.choice([0, 1])), "degree": int(rng.integers(2, 5))}
    if kernel == "sigmoid":
        return {"gamma": 0.1 / float((X * X).sum(axis=1).max() or 1), "coef0": float(rng.choice([0, -1]))}
    if kernel == "laplacian":
        return {"gamma": float(np.sqrt(gamma))}
    return {"gamma": gamma} if kernel == "rbf" else {}


def settings(rng: Random, task: str, y: Any) -> dict[str, Any]:
    """What both libraries are asked for."""
    wide = rng.random() < 0.35
    C = float(10.0 ** (rng.uniform(-6, 8) if wide else rng.uniform(-2, 3)))
    asked: dict[str, Any] = {"tol": float(rng.choice([1e-2, 1e-3, 1e-4], p=[0.1, 0.75, 0.15]))}
    if task in ("SVC", "SVR", "NuSVR"):
        asked["C"] = C
    if task == "SVC" and rng.random() < 0.2:
        asked["class_weight"] = "balanced"
    if task == "SVR":
        asked["epsilon"] = float(np.std(y) * rng.choice([0, 0.01, 0.1, 1]))
    if task == "NuSVC":
        counts = np.unique(y, return_counts=True)[1]
        asked["nu"] = float(rng.uniform(0.02, 0.98) * 2 * counts.min() / (counts.min() + counts.max()))
    if task in ("NuSVR", "OneClassSVM"):
        asked["nu"] = float(rng.uniform(0.02, 0.98))
    return asked
