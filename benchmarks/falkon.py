"""Nyström kernel machines against the direct solution at the same inducing points.

The direct solution is that of scikit-learn's Nystroem with Ridge or LogisticRegression. It has a row for each form of
the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

import clsvm
from benchmarks import sets, solvers, table
from benchmarks.command import DATA, Asked, Command, Part, each_set, number, peers, repeats, sets_of
from benchmarks.sets import Split
from benchmarks.solvers import dense, interleaved, timings
from benchmarks.table import Row, Shown, shown

PRECISE: dict[str, Any] = {"max_iter": 5000, "tol": 1e-7}  # else LogisticRegression stops far from the minimum
TOL = 1e-3  # of clsvm's fits, which reaches the test errors of the direct solution


@dataclass(frozen=True)
class FalkonSet:
    """A data set with its parameters for Falkon models and for SVMs.

    make: makes the data set from the data folder. logistic: whether the logistic loss is measured, too. C, epsilon:
    parameters of SVMs; epsilon is None for classes. most: the number of rows at most for SVMs.
    """

    make: Callable[[Path | None], Split]
    gamma: float
    penalty: float
    logistic: bool = False
    C: float = 1.0
    epsilon: float | None = None
    most: int | None = None


def _standard(X: Any) -> Any:
    spread = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)


def _split(X: Any, y: Any) -> Split:
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    return X, y, X_test, y_test


def _regression(name: str, folder: Path | None) -> Split:
    X, y, X_test, y_test = sets.load(name, folder).split
    rows, targets = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    return _split(_standard(rows), (targets - targets.mean()) / targets.std())


def _kin40k(folder: Path | None) -> Split:
    found = sets.archive(folder, "kin40k.npz")
    return _split(found["X"].astype(np.float32), found["y"].ravel().astype(np.float64))


def _loaded(name: str, folder: Path | None) -> Split:
    X, y, X_test, y_test = sets.load(name, folder).split
    return dense(X).astype(np.float32), y, dense(X_test).astype(np.float32), y_test


def _covtype(folder: Path | None) -> Split:
    found = sets.archive(folder, "covtype_full.npz")
    return _split(_standard(found["X"]), np.where(found["y"] == 2, 1, -1))


def _synthetic(folder: Path | None) -> Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25000, 10)).astype(np.float32)
    return _split(X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) / 2 > 0, 1, -1))


FALKON_SETS = {
    "synthetic": FalkonSet(_synthetic, 0.1, 1e-6, True),
    "kin40k": FalkonSet(_kin40k, 0.125, 1e-6, C=10, epsilon=0.05),
    "cadata": FalkonSet(partial(_regression, "cadata"), 0.2, 1e-6, epsilon=0.1),
    "cpusmall": FalkonSet(partial(_regression, "cpusmall"), 0.1, 1e-6, epsilon=0.1),
    "ijcnn1": FalkonSet(partial(_loaded, "ijcnn1"), 2.0, 1e-6, True, C=32),
    "mnist": FalkonSet(partial(_loaded, "mnist"), 0.02, 1e-6, True, C=10),
    "covtype": FalkonSet(_covtype, 0.1, 1e-7, C=10, most=116_000),
}


def falkon_set(name: str, asked: Asked) -> Row:
    """Fit clsvm and scikit-learn to one data set, with squared loss, and with logistic loss if the set has it."""
    recipe, m = FALKON_SETS[name], asked.centers
    X, y, X_test, y_test = recipe.make(asked.data)
    X, y = X[: asked.rows], y[: asked.rows]
    classes = len(np.unique(y)) <= 20
    # Nystroem takes the same rows with random_state=0.
    drawn = np.random.RandomState(0).permutation(len(X))[:m]
    given = {
        "center_selection": X[np.sort(drawn)], "gamma": recipe.gamma, "penalty": recipe.penalty,
        "fit_intercept": False, "tol": TOL, "device": asked.device,
    }  # fmt: skip
    alpha = recipe.penalty * len(y)
    ridge = (RidgeClassifier if classes else Ridge)(alpha=alpha, fit_intercept=False)
    models = {"squared": ((clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(**given), ridge)}
    if recipe.logistic:
        direct = LogisticRegression(C=1 / alpha, fit_intercept=False, **PRECISE)
        models["logistic"] = clsvm.LogisticFalkonClassifier(**given), direct
    entered = solvers.entered(asked.peers, X, asked.repeats)
    rows_of = {form: (solvers.formed(X, form), solvers.formed(X_test, form)) for _, form, _ in entered}
    found: list[Row] = []
    for loss, (ours, linear) in models.items():
        features = Nystroem(gamma=recipe.gamma, n_components=m, random_state=0)
        by_name = {"clsvm": ours, "nystroem": make_pipeline(features, linear)}
        calls = {one: partial(clone(by_name[one[0]]).fit, rows_of[one[1]][0], y) for one in entered}
        rows: list[Row] = []
        for (solver, form, _), (seconds, model) in interleaved(calls, asked.repeats).items():
            rows.append({"solver": solver, "form": form, "loss": loss} | timings(seconds))
            rows[-1]["score"] = score(model, rows_of[form][1], y_test, classes)
            if solver == "clsvm":
                rows[-1]["report"] = model.fit_report_.to_dict()
        least = min((row["score"] for row in rows[1:]), default=np.inf)
        for row in rows[1:]:
            if not near(row["score"], least):
                row["misses"] = [f"error {row['score']:.4f}, {least:.4f} with other rows"]
        found += rows
    return {"set": name, "n": len(y), "d": X.shape[1], "gamma": recipe.gamma, "penalty": recipe.penalty, "rows": found}


def score(model: Any, X: Any, y: Any, classes: bool) -> float:
    """Return the share of wrong predictions of classes, or the root mean squared error of predicted numbers."""
    found = model.predict(X)
    return float(np.mean(found != y)) if classes else float(np.sqrt(np.mean(np.square(found - y))))


def near(found: float, other: float) -> bool:
    """Return whether an error exceeds another one by at most 1 %, or by at most 0.002."""
    return found <= max(1.01 * other, other + 0.002)


def _losses(result: Row) -> list[Row]:
    """Return a record for each data set and loss."""
    return [
        one | {"loss": loss, "rows": [row for row in one["rows"] if row["loss"] == loss]}
        for one in result["sets"]
        for loss in dict.fromkeys(row["loss"] for row in one["rows"])
    ]


def _holds(result: Row) -> bool:
    """Return whether clsvm's fits converged to errors near the peer's."""
    for one in _losses(result):
        ours, *others = table.best_forms(one["rows"])
        if not (ours["report"]["converged"] and all(near(ours["score"], row["score"]) for row in others)):
            return False
    return True


def _show(result: Row) -> Shown:
    rows, notes = table.compared(_losses(result))
    columns = (
        table.SOLVED[0], ("loss", "{loss}"), *table.SOLVED[1:], ("test error", "{score:.4f}"),
        ("steps", "{report[steps]}"),
        ("where K is", lambda row: f"{row['report']['dtype']}, {row['report']['layout'].partition(';')[0]}"),
    )  # fmt: skip
    words = f"{result['centers']} inducing points; nystroem: scikit-learn's direct solution at the same ones"
    return shown(words, columns, rows, *notes, left=3)


COMMAND = Command(
    "falkon",
    "Nyström kernel machines against the direct solution at the same inducing points",
    (
        sets_of(tuple(FALKON_SETS), ("synthetic",)), peers(("nystroem",)), number("--centers", 2000, "m"),
        number("--rows", None, "rows of a set at most"), repeats(3), DATA,
    ),
    Part(each_set(falkon_set, "centers"), _show, _holds),
)  # fmt: skip
