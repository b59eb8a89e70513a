"""Coefficients, decision values and scores of some ninety fits, to see whether a change of the code changed a number.

    python -m tests.digests --out before.npz --device Intel            before the change
    python -m tests.digests --against before.npz --device Intel        after it

All tasks, layouts and dtypes, several devices, rows that pass through the device, searches and Nystroem kernel
machines, on the profiles of CPUs and GPUs (``--profiles gpu-pair`` on a device whose compiler takes it), by the public
interface alone. A tuner's file would change sums, so it is left out of sight.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Rows = Any
Arrays = dict[str, NDArray[Any]]
SIZE = {"memory_limit": "1GB"}


def dense(n: int = 2500, d: int = 20) -> Rows:
    return np.random.default_rng(0).normal(size=(n, d))


def patterned(n: int = 2500, d: int = 120) -> Rows:
    """Forty columns of each row, those of one of thirty patterns: rows that cluster well."""
    rng = np.random.default_rng(1)
    patterns = np.stack([np.sort(rng.permutation(d)[:40]) for _ in range(30)])
    columns = patterns[rng.integers(0, 30, n)]
    return sp.csr_matrix((rng.normal(size=columns.size), columns.ravel(), np.arange(0, columns.size + 1, 40)), (n, d))


def text(n: int = 1500, d: int = 20000) -> Rows:
    """Few entries in many columns, rows of length 1."""
    X = sp.random(n, d, 0.003, "csr", random_state=2)
    return sp.csr_matrix(X.multiply(1 / np.maximum(1e-9, np.sqrt(X.multiply(X).sum(axis=1)))))


def labels(X: Rows, classes: int = 2) -> NDArray[Any]:
    """Classes of about the same size that a curved surface parts, a tenth of them wrong."""
    rng = np.random.default_rng(3)
    f = X @ rng.normal(size=X.shape[1])
    f = f + 0.5 * np.cos(2 * f / f.std()) * f.std()
    y = np.digitize(f, np.quantile(f, np.arange(1, classes) / classes))
    wrong = rng.random(len(y)) < 0.1
    y[wrong] = rng.integers(0, classes, wrong.sum())
    return y


def fits(profile: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and estimator's fit of each."""
    import clsvm
    from clsvm import model_selection

    device = os.environ["CLSVM_DEVICE"]
    some: dict[str, Callable[[], Rows]] = {"dense": dense, "clustered": patterned, "csr": text}

    def made(kind: str, X: Rows, y: Any = None, weights: Any = None, **parameters: Any) -> Callable[[], Any]:
        given = {} if weights is None else {"sample_weight": weights}
        return lambda: (getattr(clsvm, kind)(**{**SIZE, **parameters}).fit(X, y, **given), X)

    def searched(kind: str, estimator: Any, grid: Any, X: Rows, y: Any) -> Callable[[], Any]:
        return lambda: (getattr(model_selection, kind)(estimator, grid, cv=3).fit(X, y), X)

    dtypes = ("float32",) if profile == "gpu-pair" else ("float32", "float64")
    for name, rows in some.items():
        X = rows()
        for dtype in dtypes:
            yield f"SVC {name} {dtype}", made("SVC", X, labels(X), C=10.0, dtype=dtype)
        yield f"SVC {name} three classes", made("SVC", X, labels(X, 3), C=3.0)
    X = dense()
    y, t = labels(X), X[:, 0] ** 2 + np.sin(3 * X[:, 1])
    yield "SVC pairs", made("SVC", X[:1500], labels(X[:1500], 6), C=2.0)
    yield "SVC shared", made("SVC", X, y, shrinking=True, C=2.0, class_weight={0: 3.0})
    yield "Crammer-Singer", made("SVC", X, labels(X, 4), multi_class="crammer_singer")
    yield "SVR", made("SVR", X, t, epsilon=0.05)
    yield "NuSVC", made("NuSVC", X, y, nu=0.4)
    yield "NuSVR", made("NuSVR", X[:1000], t[:1000], nu=0.3, C=5.0)
    yield "OneClassSVM", made("OneClassSVM", X, nu=0.2)
    yield "SVC one machine a class", made("SVC", X[:1500], labels(X[:1500], 4), C=2.0, multi_class="ovr")
    yield "SVC weights", made("SVC", X, y, np.linspace(0, 2, len(y)), C=3.0)
    yield "SVC no bias", made("SVC", X[:1500], y[:1500], bias=False)
    yield "SVC far too large C", made("SVC", X[:800], y[:800], C=1e5, max_iter=20000)
    yield "SVC max_iter", made("SVC", X, y, C=100.0, gamma=0.5, max_iter=500)
    yield "SVC passing", made("SVC", wide := dense(4000, 300), labels(wide), memory_limit="6MB", cache_size=1)
    yield "SVC two devices", made("SVC", X, y, C=10.0, device=[device, device])
    yield "SVC pairs, two devices", made("SVC", X[:1500], labels(X[:1500], 6), device=[device, device])
    yield "SVR csr", made("SVR", some["csr"](), np.asarray(some["csr"]().sum(axis=1)).ravel(), epsilon=0.01)
    yield "FalkonRegressor", made("FalkonRegressor", X, t, n_centers=200, random_state=0)
    yield "FalkonClassifier", made("FalkonClassifier", X, labels(X, 3), n_centers=200, random_state=0)
    yield "LogisticFalkonClassifier", made("LogisticFalkonClassifier", X, y, n_centers=200, random_state=0)
    if profile != "gpu-pair":
        forced = {"clustered": patterned, "hybrid": patterned, "inverted": text}
        for name in list(forced)[: 3 if profile == "cpu" else 2]:
            for dtype in dtypes:
                yield f"SVC as {name} {dtype}", made("SVC", Z := forced[name](), labels(Z), layout=name, dtype=dtype)
        grid = {"C": [0.5, 5.0], "gamma": [0.02, 0.2]}
        yield "search", searched("SVCSearchCV", clsvm.SVC(**SIZE), grid, X[:900], y[:900])
        yield "search, pairs", searched("SVCSearchCV", clsvm.SVC(**SIZE), grid, X[:900], labels(X[:900], 4))
    if profile == "cpu":
        few: dict[str, Any] = {"n_centers": 100, "random_state": 0}
        Z = some["csr"]()
        yield "FalkonRegressor, two devices", made("FalkonRegressor", X, t, device=[device, device], **few)
        yield "FalkonRegressor csr", made("FalkonRegressor", Z, np.asarray(Z.sum(axis=1)).ravel(), **few)
        yield "FalkonRegressor passing", made("FalkonRegressor", wide, wide[:, 0] ** 2, memory_limit="3MB", **few)
        yield (
            "FalkonSearchCV",
            searched("FalkonSearchCV", clsvm.FalkonRegressor(**few), {"penalty": [1e-6, 1e-3]}, X, t),
        )
        for kernel in ("linear", "poly", "laplacian", "sigmoid"):
            yield f"SVC {kernel}", made("SVC", X[:1500], y[:1500], kernel=kernel)
        K = np.exp(-((X[:1200, None, :5] - X[None, :1200, :5]) ** 2).sum(axis=2))
        yield "SVC precomputed", made("SVC", K, y[:1200], kernel="precomputed")
        yield "SVC gap", made("SVC", X, y, C=5.0, gap_tol=0.01)
        yield "SVC small", made("SVC", X[:150], labels(X[:150], 3))


def numbers(model: Any, X: Rows) -> Arrays:
    """Return what a fit came to."""
    if hasattr(model, "cv_results_"):
        return {"scores": model.cv_results_["mean_test_score"], "predicted": model.predict(X)}
    found = {name: getattr(model, name + "_") for name in ("dual_coef", "support") if hasattr(model, name + "_")}
    found |= {"intercept": model.intercept_} if hasattr(model, "intercept_") else {}
    found |= {"decision": model.decision_function(X)} if hasattr(model, "decision_function") else {}
    found |= {"predicted": model.predict(X)}
    return {name: np.asarray(value.toarray() if sp.issparse(value) else value) for name, value in found.items()}


def digest(arrays: Arrays) -> str:
    made = hashlib.blake2b(digest_size=8)
    for array in arrays.values():
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def differences(before: Arrays, now: Arrays) -> str:
    """The largest difference of each array, relative to its largest number."""
    words = []
    for name, array in now.items():
        if before[name].shape != array.shape:
            words.append(f"{name} {before[name].shape} then, {array.shape} now")
        elif not np.array_equal(before[name], array):
            size = max(float(np.abs(before[name]).max(initial=0.0)), 1e-300)
            words.append(f"{name} {float(np.abs(array - before[name]).max()) / size:.1e}")
    return ", ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True)
    parser.add_argument("--profiles", default="cpu,cpu8,gpu")
    parser.add_argument("--out")
    parser.add_argument("--against")
    options = parser.parse_args()
    os.environ["CLSVM_DEVICE"] = options.device
    os.environ["CLSVM_TUNED"] = str(Path(tempfile.mkdtemp()) / "none.json")
    warnings.simplefilter("ignore")
    before = dict(np.load(options.against)) if options.against else {}
    kept: Arrays = {}
    changed = 0
    for profile in options.profiles.split(","):
        os.environ["CLSVM_PROFILE"] = profile
        for name, fit in fits(profile):
            model, X = fit()
            arrays, key = numbers(model, X), f"{profile} {name}"
            words = ""
            if options.against:
                old = {part: before[f"{key}/{part}"] for part in arrays}
                words = differences(old, arrays) or "same"
                changed += words != "same"
            report = getattr(model, "best_estimator_", model).fit_report_
            layout = report.layout.split(" (")[0]
            print(f"{key:40} {digest(arrays)} {words}  [{layout}]", flush=True)
            kept |= {f"{key}/{part}": array for part, array in arrays.items()}
    if options.out:
        np.savez(options.out, **kept)
    if options.against:
        print(f"{changed} differ")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
