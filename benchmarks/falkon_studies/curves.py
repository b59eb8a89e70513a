"""Test errors against seconds: SVC or SVR on ever more rows, Falkon on all rows with ever more centres.

SVMs are fitted on twice the rows each time until a fit takes longer than the limit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import clsvm
from benchmarks.falkon import FALKON_SETS, TOL, Split, score
from benchmarks.falkon_studies.pictures import picture
from benchmarks.falkon_studies.shared import Options, fitted, named

FIRST = 1000  # rows of the first SVM
CENTERS = (100, 200, 500, 1000, 2000, 4000)


@dataclass(frozen=True)
class CurveSet:
    """C, and epsilon of numbers (None: classes), of SVMs on a set of FALKON_SETS, which has gamma and penalty. rows: of
    it at most."""

    C: float
    epsilon: float | None = None
    rows: int | None = None


CURVE_SETS = {
    "kin40k": CurveSet(C=10, epsilon=0.05),
    "ijcnn1": CurveSet(C=32),
    "covtype": CurveSet(C=10, rows=116_000),
    "synthetic": CurveSet(C=1),
}
OWN = ("kin40k", "ijcnn1", "covtype")


def run(options: Options) -> dict[str, Any]:
    """The points of every set."""
    return {"limit": options.limit, "sets": [_run(name, options) for name in named(options, tuple(CURVE_SETS), OWN)]}


def _run(name: str, options: Options) -> dict[str, Any]:
    one, recipe = CURVE_SETS[name], FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(options.data)
    X, y = _shuffled(X, y, options.rows or one.rows)
    posed = X, y, X_test, y_test
    rows = [*_of_svms(name, posed, options), *_of_centers(name, posed, options)]
    numbers = {"gamma": recipe.gamma, "penalty": recipe.penalty, "C": one.C, "epsilon": one.epsilon}
    return {"set": name, "n": len(y), "d": X.shape[1], "classes": one.epsilon is None, **numbers, "rows": rows}


def _shuffled(X: Any, y: Any, most: int | None) -> tuple[Any, Any]:
    """Some of the rows, drawn: of those of ijcnn1, a time series, the first are not like the others."""
    drawn = np.random.default_rng(0).permutation(len(y))[:most]
    return X[drawn], y[drawn]


def _of_svms(name: str, posed: Split, options: Options) -> Iterator[dict[str, Any]]:
    """Points of SVMs on ever more rows, until one takes longer than the limit."""
    one = CURVE_SETS[name]
    given = {"C": one.C, "gamma": FALKON_SETS[name].gamma, "device": options.device}
    n, seconds = min(FIRST, len(posed[1])), 0.0
    while seconds <= options.limit:
        machine = clsvm.SVC(**given) if one.epsilon is None else clsvm.SVR(epsilon=one.epsilon, **given)
        point = _point(machine, n, posed, one.epsilon is None)
        seconds = point["seconds"]
        yield point
        if n == len(posed[1]):
            return
        n = min(2 * n, len(posed[1]))


def _of_centers(name: str, posed: Split, options: Options) -> Iterator[dict[str, Any]]:
    """Points of machines on all rows with ever more centres."""
    recipe, classes = FALKON_SETS[name], CURVE_SETS[name].epsilon is None
    given = {"gamma": recipe.gamma, "penalty": recipe.penalty, "tol": TOL, "random_state": 0, "device": options.device}
    n = len(posed[1])
    for m in CENTERS:
        if m <= min(n, options.centers or n):
            machine = (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(n_centers=m, **given)
            yield _point(machine, n, posed, classes)


def _point(machine: Any, n: int, posed: Split, classes: bool) -> dict[str, Any]:
    """Of a fit on the first n rows. vectors: support vectors, or centres."""
    X, y, X_test, y_test = posed
    gc.collect()
    seconds = fitted(machine, X[:n], y[:n])
    return {
        "machine": type(machine).__name__,
        "rows": n,
        "vectors": int(machine.support_vectors_.shape[0]),
        "seconds": seconds,
        "error": score(machine.predict, X_test, y_test, classes),
        "converged": bool(machine.fit_report_.converged),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether all converged."""
    return all(row["converged"] for one in result["sets"] for row in one["rows"])


def show(result: dict[str, Any]) -> Table:
    """A row for each point; errors in % of classes, or the root of the mean square of numbers."""
    table = Table(title=f"test errors against seconds; SVMs on ever more rows, until a fit takes {result['limit']:g} s")
    for title in ("set", "machine", "rows", "vectors", "s", "test error"):
        table.add_column(title, justify="left" if title in ("set", "machine") else "right")
    for one in result["sets"]:
        label = f"{one['set']} {one['n']}x{one['d']}"
        for row in one["rows"]:
            error = f"{100 * row['error']:.2f} %" if one["classes"] else f"{row['error']:.4f}"
            counts = str(row["rows"]), str(row["vectors"])
            table.add_row(label, row["machine"], *counts, f"{row['seconds']:.3g}", error)
            label = ""
    return table


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel for each set, errors over the logarithm of seconds, into the file ``path``."""
    with picture(result, path, len(result["sets"])) as panels:
        for axes, one in zip(panels, result["sets"], strict=True):
            for name in dict.fromkeys(row["machine"] for row in one["rows"]):
                points = [row for row in one["rows"] if row["machine"] == name]
                axes.semilogx(*_coordinates(points, one["classes"]), marker="o", label=name)
            error = "test error, %" if one["classes"] else "test error, root of the mean square"
            axes.set(title=f"{one['set']}, {one['n']} rows", xlabel="seconds to train", ylabel=error)


def _coordinates(points: list[dict[str, Any]], classes: bool) -> tuple[list[float], list[float]]:
    return [row["seconds"] for row in points], [row["error"] * (100 if classes else 1) for row in points]
