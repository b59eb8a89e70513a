"""Machines on centres against the direct solution at the same centres: scikit-learn's Nystroem and Ridge, or its
LogisticRegression. In turns; the first of each is cold, `seconds` the median of the later ones. The peer has a row for
each form of its rows.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split

import clsvm
from benchmarks import sets, solvers, table

Split = tuple[Any, Any, Any, Any]
PRECISE: dict[str, Any] = {"max_iter": 5000, "tol": 1e-7}  # else scikit-learn's logistic loss ends far from its least
KNOWN = ("clsvm", "nystroem")  # what is fitted here; the other peers are those of --product
TOL = 1e-3  # of ours: test errors are the direct solution's by then


@dataclass(frozen=True)
class FalkonSet:
    """How to make a set, its kernel width and penalty. logistic: whether that loss is measured, too."""

    make: Callable[[Path | None], Split]
    gamma: float
    penalty: float
    logistic: bool = False


def _scaled(X: Any) -> Any:
    spread = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(spread > 0, spread, 1)).astype(np.float32)


def _regression(name: str) -> Callable[[Path | None], Split]:
    def make(folder: Path | None) -> Split:
        X, y, X_test, y_test = sets.load_task(name, folder)
        dense = (np.asarray(part.toarray() if hasattr(part, "toarray") else part) for part in (X, X_test))
        rows = np.concatenate([*dense])
        targets = np.concatenate([y, y_test])
        return _split(_scaled(rows), (targets - targets.mean()) / targets.std())

    return make


def _split(X: Any, y: Any) -> Split:
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
    return X, y, X_test, y_test


def _file(name: str, folder: Path | None) -> Any:
    if folder is None or not (folder / name).exists():
        raise sets.MissingSetError(f"{name} is not there: --data names its folder")
    return np.load(folder / name)


def _kin40k(folder: Path | None) -> Split:
    found = _file("kin40k.npz", folder)
    return _split(found["X"].astype(np.float32), found["y"].ravel().astype(np.float64))


def _mnist(folder: Path | None) -> Split:
    found = _file("mnist.npz", folder)
    X, X_test = (found[f"X_{part}"].reshape(-1, 784) / np.float32(255) for part in ("train", "test"))
    return X, found["y_train"], X_test, found["y_test"]


def _covtype(folder: Path | None) -> Split:
    found = _file("covtype_full.npz", folder)
    return _split(_scaled(found["X"]), np.where(found["y"] == 2, 1, -1))


def _ijcnn1(folder: Path | None) -> Split:
    one = sets.load("ijcnn1", folder)
    return one.X.toarray(), one.y, one.X_test.toarray(), one.y_test


def _synthetic(folder: Path | None) -> Split:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25000, 10)).astype(np.float32)
    return _split(X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) / 2 > 0, 1, -1))


FALKON_SETS = {
    "synthetic": FalkonSet(_synthetic, 0.1, 1e-6, True),
    "kin40k": FalkonSet(_kin40k, 0.125, 1e-6),
    "cadata": FalkonSet(_regression("cadata"), 0.2, 1e-6),
    "cpusmall": FalkonSet(_regression("cpusmall"), 0.1, 1e-6),
    "ijcnn1": FalkonSet(_ijcnn1, 2.0, 1e-6, True),
    "mnist": FalkonSet(_mnist, 0.02, 1e-6, True),
    "covtype": FalkonSet(_covtype, 0.1, 1e-7),
}


def run(
    names: Sequence[str], peers: Sequence[str], folder: Path | None, device: Any, repeats: int, m: int, rows: int | None
) -> dict[str, Any]:
    """Rows of every set, squared loss and logistic, for ours and the peer. rows: of a set at most."""
    return {"centers": m, "sets": [_run(name, peers, folder, device, repeats, m, rows) for name in names]}


def _run(
    name: str, peers: Sequence[str], folder: Path | None, device: Any, repeats: int, m: int, rows: int | None
) -> dict[str, Any]:
    recipe = FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(folder)
    X, y = X[:rows], y[:rows]
    classes = len(np.unique(y)) <= 20
    features = Nystroem(gamma=recipe.gamma, n_components=m, random_state=0)
    centers = X[np.sort(drawn(len(X), m))]
    given = {
        "center_selection": centers,
        "gamma": recipe.gamma,
        "penalty": recipe.penalty,
        "fit_intercept": False,
        "tol": TOL,
        "device": device,
    }
    ours = {"squared": (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(**given)}
    if recipe.logistic:
        ours["logistic"] = clsvm.LogisticFalkonClassifier(**given)
    found: list[dict[str, Any]] = []
    asked = [(solver, form) for solver in ("clsvm", *peers) if solver in KNOWN for form in solvers.forms(solver, X)]
    rows_of = {form: (solvers.formed(X, form), solvers.formed(X_test, form)) for _, form in asked}
    for loss, machine in ours.items():
        seconds: dict[tuple[str, str], list[float]] = {one: [] for one in asked}
        scores: dict[tuple[str, str], float] = {}
        for _ in range(repeats):
            for one, spent in seconds.items():
                own, tests = rows_of[one[1]]
                gc.collect()
                began = perf_counter()
                mine = one[0] == "clsvm"
                answer = _ours(machine, own, y) if mine else _peer(features, loss, recipe.penalty, own, y)
                spent.append(perf_counter() - began)
                scores[one] = score(answer, tests, y_test, classes)
        least = min(value for one, value in scores.items() if one[0] == "nystroem") if len(asked) > 1 else np.inf
        for one, spent in seconds.items():
            row: dict[str, Any] = {"solver": one[0], "form": one[1], "loss": loss, "cold": spent[0]}
            row |= {"all_seconds": spent, "seconds": statistics.median(spent[1:] or spent), "score": scores[one]}
            if one[0] == "clsvm":
                row["report"] = machine.fit_report_.to_dict()
            else:
                words = f"error {scores[one]:.4f}, {least:.4f} with other rows"
                row["misses"] = [words] * (not near(scores[one], least))
            found.append(row)
    return {"set": name, "n": len(y), "d": X.shape[1], "gamma": recipe.gamma, "penalty": recipe.penalty, "rows": found}


def drawn(n: int, m: int) -> Any:
    """The rows that Nystroem's features of random_state=0 are of, which takes it m x m values and their SVD to say."""
    return np.random.RandomState(0).permutation(n)[:m]


def _ours(machine: Any, X: Any, y: Any) -> Callable[[Any], Any]:
    machine.fit(X, y)
    return machine.predict


def _peer(features: Nystroem, loss: str, penalty: float, X: Any, y: Any) -> Callable[[Any], Any]:
    """Features of the centres and a linear model of them: the same objective, solved directly."""
    Z = features.fit_transform(X)
    kinds = np.unique(y)
    if loss == "logistic":
        linear: Any = LogisticRegression(C=1 / (penalty * len(y)), fit_intercept=False, **PRECISE).fit(Z, y)
        return lambda rows: linear.predict(features.transform(rows))
    ridge = Ridge(alpha=penalty * len(y), fit_intercept=False)
    if len(kinds) > 20:
        ridge.fit(Z, y)
        return lambda rows: ridge.predict(features.transform(rows))
    if len(kinds) == 2:
        ridge.fit(Z, np.where(y == kinds[1], 1.0, -1.0))
        return lambda rows: kinds[(ridge.predict(features.transform(rows)) > 0).astype(int)]
    ridge.fit(Z, np.where(y[:, None] == kinds, 1.0, -1.0))
    return lambda rows: kinds[ridge.predict(features.transform(rows)).argmax(axis=1)]


def score(answer: Callable[[Any], Any], X: Any, y: Any, classes: bool) -> float:
    """The share of errors, or the root of the mean squared error."""
    found = answer(X)
    return float(np.mean(found != y)) if classes else float(np.sqrt(np.mean(np.square(found - y))))


def near(found: float, other: float) -> bool:
    """Return whether an error is at most 1 %, or 0.002, above another."""
    return found <= max(1.01 * other, other + 0.002)


def by_loss(one: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the rows of a set by loss: ours, and the peer's with the best form of its rows."""
    losses = dict.fromkeys(row["loss"] for row in one["rows"])
    return [table.best_forms([row for row in one["rows"] if row["loss"] == loss]) for loss in losses]


def holds(result: dict[str, Any]) -> bool:
    """Whether all of ours converged, to errors within 1 % of the peer's (of classes within 0.2 points)."""
    for one in result["sets"]:
        for ours, *peers in by_loss(one):
            if not (ours["report"]["converged"] and all(near(ours["score"], row["score"]) for row in peers)):
                return False
    return True


def show(result: dict[str, Any]) -> Table:
    """The rows of a result, with the ratio of the peer's seconds to ours."""
    shown = Table(
        title=f"machines on {result['centers']} centres; nystroem: scikit-learn's direct solution at the same ones"
    )
    for title in ("set", "loss", "solver", "cold s", "s", "times ours", "test error", "steps", "where K is"):
        shown.add_column(title, justify="left" if title in ("set", "loss", "solver", "where K is") else "right")
    for one in result["sets"]:
        label = f"{one['set']} {one['n']}x{one['d']}"
        ours = {row["loss"]: row["seconds"] for row in one["rows"] if row["solver"] == "clsvm"}
        for row in (row for rows in by_loss(one) for row in rows):
            figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / ours[row['loss']]:.1f}"
            report = row.get("report")
            words = (
                (str(report["steps"]), f"{report['dtype']}, {report['layout'].partition(';')[0]}")
                if report
                else ("", "")
            )
            shown.add_row(label, row["loss"], table.named(row), *figures, f"{row['score']:.4f}", *words)
            label = ""
    return shown
