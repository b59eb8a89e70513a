"""Training: seconds of whole fits and of their parts, and the certificate, checked anew on a sample of rows.

Sets are taken whole where the device is fast enough, else their first rows. The parts are those of one more fit that
waits for the device after each: on a GPU the others run ahead of it, and their seconds fall to whoever waits next.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import make_classification

import clsvm
from benchmarks import check, sets
from benchmarks.gpu.peaks import speed
from benchmarks.gpu.plan import Asked, PartialError
from benchmarks.ladder_device import Bench
from clsvm.models import svmlight
from clsvm.opencl import devices
from clsvm.report import by_part

Data = tuple[Any, NDArray[Any], Any, NDArray[Any]]
"""Training rows, labels, test rows, labels."""

ALL_OF_K = 0.25  # of the limit: what computing all of K may take at the arithmetic peak
COLD, WARM = 0.55, 0.75  # of the limit: when the first fit gives up, and until when another one is begun
FITS = 3  # warm ones
SAMPLE = 1000  # rows of the check
DECISIONS = 1e-2  # the largest error of a decision value
SLACK = 1.2  # of the violation that was reported


@dataclass(frozen=True)
class Training:
    """make: from the data folder; parameters: of clsvm.SVC; passes: how often all of K is computed, about, where many
    rows are support vectors, and a share of that where few are."""

    what: str
    make: Callable[[Path], Data]
    parameters: Mapping[str, Any]
    passes: float = 1.0


def _of(name: str, folder: Path) -> Data:
    one = sets.load(name, folder)
    return one.X, one.y, one.X_test, one.y_test


def _mnist10(folder: Path) -> Data:
    one = sets.load_multiclass("mnist", folder)
    return one.X, one.y, one.X_test, one.y_test


def _letter(folder: Path) -> Data:
    (X, y), (X_test, y_test) = (svmlight.read_problem(folder / f"letter.scale{end}.xz", 16) for end in ("", ".t"))
    return X.toarray(), y, X_test.toarray(), y_test


def _covtype(folder: Path) -> Data:
    """Class 2 against the rest, columns in [0, 1]; as many training rows as in GTSVM's paper, drawn at random."""
    with np.load(folder / "covtype_full.npz") as z:
        X, y = z["X"], np.where(z["y"] == 2, 1.0, -1.0)
    order = np.random.default_rng(0).permutation(len(y))
    X = X.astype(np.float32)
    low, high = X.min(axis=0), X.max(axis=0)
    return _split((X[order] - low) / np.maximum(high - low, 1), y[order], 522911)


def _split(X: Any, y: NDArray[Any], n: int) -> Data:
    return X[:n], y[:n], X[n:], y[n:]


def a9a_like(_: Path, n: int = 32561, tests: int = 16281) -> Data:
    """Rows (n, 123) of ones and zeros, CSR: one value of each of 14 attributes, rare values rare; a noisy label, +1 for
    a quarter, from a linear rule. Shape, non-zeros and the share of +1 are a9a's, nothing else is."""
    rng = np.random.default_rng(0)
    values = np.array([5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41])  # 123 in all
    columns = []
    for first, count in zip(np.cumsum(values) - values, values, strict=True):
        shares = rng.dirichlet(np.full(count, 0.5))
        columns.append(first + rng.choice(count, n + tests, p=shares))
    indices = np.stack(columns, axis=1).astype(np.int32)
    indptr = np.arange(0, indices.size + 1, len(values), dtype=np.int32)
    X = sp.csr_matrix((np.ones(indices.size), indices.ravel(), indptr), shape=(n + tests, int(values.sum())))
    score = X @ rng.normal(size=X.shape[1]) + rng.logistic(scale=0.6, size=n + tests)
    return _split(X, np.where(score > np.quantile(score, 0.76), 1.0, -1.0), n)


def mnist_like(_: Path, n: int = 60000, tests: int = 10000) -> Data:
    """Images (n, 784) in [0, 1] of ten classes, a fifth of their pixels above 0: noisy mixtures of two of a class's
    twelve shapes, or with one of another class. Size and non-zeros are about MNIST's, nothing else is."""
    rng = np.random.default_rng(0)
    at = np.stack(np.meshgrid(np.arange(28), np.arange(28)), axis=-1).reshape(1, 784, 2)
    strokes = rng.uniform(6, 22, (120, 5, 1, 2))  # shapes of five strokes
    shapes = np.exp(-np.square(at - strokes).sum(axis=-1) / 6).max(axis=1).astype(np.float32)
    y = rng.integers(0, 10, n + tests)
    other = np.where(rng.random(n + tests) < 0.2, rng.integers(0, 10, n + tests), y)
    one, two = (shapes[12 * label + rng.integers(0, 12, n + tests)] for label in (y, other))
    share = rng.uniform(0.55, 1, (n + tests, 1)).astype(np.float32)
    X = share * one + (1 - share) * two + rng.normal(0, 0.08, (n + tests, 784)).astype(np.float32) * (one > 0.02)
    return _split(np.clip(1.2 * X - 0.2, 0, 1), y.astype(np.float64), n)


def _eight(make: Callable[[Path], Data]) -> Callable[[Path], Data]:
    """Class 8 against the rest."""

    def two(folder: Path) -> Data:
        X, y, X_test, y_test = make(folder)
        return X, np.where(y == 8, 1.0, -1.0), X_test, np.where(y_test == 8, 1.0, -1.0)

    return two


def _synthetic(_: Path, n: int = 100000, tests: int = 10000) -> Data:
    """Two classes of 20 informative features among 200, each of deviation 1; a quarter are support vectors."""
    X, y = make_classification(n + tests, 200, n_informative=20, n_redundant=20, class_sep=2, random_state=0)
    return _split((X / X.std(axis=0)).astype(np.float32), np.where(y > 0, 1.0, -1.0), n)


SETS: dict[str, Training] = {
    "a9a": Training("a9a", partial(_of, "a9a"), {"C": 1, "gamma": 0.05}),
    "a9a-like": Training("synthetic, in place of a9a", a9a_like, {"C": 1, "gamma": 0.05}),
    "mnist8": Training("MNIST, 8 against the rest", partial(_of, "mnist8"), {"C": 1, "gamma": 0.02}, 0.4),
    "mnist8-like": Training("synthetic, in place of MNIST 8", _eight(mnist_like), {"C": 1, "gamma": 0.02}, 0.4),
    "synthetic": Training("synthetic, dense", _synthetic, {"C": 1, "gamma": 0.005}),
    "covtype": Training(
        "Covertype, class 2 against the rest, to a gap of 0.01", _covtype, {"C": 3, "gamma": 1, "gap_tol": 0.01}
    ),
    "letter": Training("letter, 26 classes by pairs", _letter, {"C": 16, "gamma": 4}),
    "mnist10": Training("MNIST, ten classes by pairs", _mnist10, {"C": 1, "gamma": 0.02}),
    "mnist10-like": Training("synthetic, in place of MNIST, by pairs", mnist_like, {"C": 1, "gamma": 0.02}),
    "mnist10 at once": Training(
        "MNIST, Crammer and Singer's machine to a gap of 0.01",
        _mnist10,
        {"C": 0.5, "gamma": 0.02, "multi_class": "crammer_singer", "gap_tol": 0.01},
    ),
}


def train(asked: Asked, name: str) -> Iterator[dict[str, Any]]:
    """Fits of one set: the first, up to three more, and one that waits; the certificate after the first."""
    one, began = SETS[name], perf_counter()
    X, y, X_test, y_test = one.make(asked.data or Path())
    whole, d = X.shape
    with Bench(asked.device) as bench:
        gflops, waits = speed(bench), bench.profile.sync == 1
    n = most(gflops, asked.seconds, d, one.passes)
    X, y = X[:n], y[:n]
    parameters = {**one.parameters, "device": asked.device}
    head = {"set": name, "what": one.what, "n": len(y), "of": whole, "d": d, "classes": len(np.unique(y))}
    yield {**head, "parameters": one.parameters, "gflops": gflops, "load_seconds": perf_counter() - began}

    def left(share: float) -> float:
        return began + share * asked.seconds - perf_counter()

    model, seconds = fit(parameters | {"max_time": max(1.0, left(COLD))}, X, y)
    report = model.fit_report_
    yield {"cold": seconds, "report": _shown(report), "n_support": len(model.support_)}
    if not report.converged:
        raise PartialError(f"{report.status}, after {seconds:.1f} s of {len(y)} rows")
    model.decision_function(X_test)  # its support vectors go to the device, and stay
    started = perf_counter()
    predicted = model.predict(X_test)
    yield {"accuracy": float(np.mean(predicted == y_test)), "predict_seconds": perf_counter() - started}
    checked = _checked(model, X, y, one.parameters)
    yield {"checked": checked}
    warm: list[float] = []
    while len(warm) < FITS and left(WARM) > 1.3 * (warm[-1] if warm else seconds):
        warm.append(fit(parameters, X, y)[1])
        yield {"warm": warm[-1:]}
    if waits:
        yield {"parts": by_part(report.seconds), "parts_of": "the first fit"}
    elif left(WARM) > 2 * min(warm, default=seconds):
        with waiting():
            waited, _ = fit(parameters, X, y)
        yield {"parts": by_part(waited.fit_report_.seconds), "parts_of": "a fit that waits for each part"}
        yield {"all_parts": dict(waited.fit_report_.seconds)}
    if wrong := [word for word, right in checked.items() if right is False]:
        raise ArithmeticError(f"the check on a sample of rows failed: {', '.join(wrong)}")


def most(gflops: float, seconds: float, d: int, passes: float) -> int:
    """Rows of d features of which all of K takes its share of the seconds, at the arithmetic peak."""
    return int(np.sqrt(1e9 * gflops * ALL_OF_K * seconds / (2 * d * passes)))


def fit(parameters: Mapping[str, Any], X: Any, y: NDArray[Any]) -> tuple[Any, float]:
    """(the machine, the seconds of its fit)."""
    model = clsvm.SVC(**parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = perf_counter()
        model.fit(X, y)
        return model, perf_counter() - started


def waiting() -> Any:
    """A context in which the host waits for the device after every part of a step, so that seconds are its own."""
    usual = devices.default_profile
    return patch("clsvm.opencl.stream.default_profile", lambda info: replace(usual(info), sync=1))


def _shown(report: Any) -> dict[str, Any]:
    found: dict[str, Any] = report.to_dict()
    del found["trace"]
    return found


def _checked(model: Any, X: Any, y: NDArray[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Decision values of some training rows in float64 from the coefficients alone, and for two classes whether they
    are optimal within the violation; nothing where the model is of pairs."""
    rows = np.random.default_rng(0).permutation(len(y))[:SAMPLE]
    coef = np.asarray(model.dual_coef_, np.float64)
    classes = len(model.classes_)
    if classes > 2 and len(coef) != classes:
        return {}
    kernel_fn = check.kernel("rbf", gamma=parameters["gamma"])
    values = check.responses(X[rows], model.support_vectors_, coef.T, kernel_fn)
    values = values + np.asarray(model.intercept_) if classes == 2 else values
    ours = np.asarray(model.decision_function(X[rows])).reshape(values.shape)
    error = float(np.abs(ours - values).max())
    found = {"rows": len(rows), "decision_error": error, "decisions right": error <= DECISIONS}
    if classes > 2:
        return found
    alpha = np.zeros(len(y))
    alpha[model.support_] = np.abs(coef[0])
    margin, C = y[rows] * values[:, 0] - 1, parameters["C"]
    short = -margin[alpha[rows] < C * (1 - check.BOUND_SLACK)]
    beyond = margin[alpha[rows] > C * check.BOUND_SLACK]
    violation = float(max(short.max(initial=0), beyond.max(initial=0)))
    return found | {"violation": violation, "optimal": violation <= SLACK * max(model.tol, model.fit_report_.violation)}
