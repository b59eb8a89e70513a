"""Fits of some hundred rows and answers for one row, ours and scikit-learn's in turns; every solution is checked.

Sets are scikit-learn's own, columns standardised, with the defaults of both libraries. Seconds are medians of the runs
after the first.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from sklearn import datasets, svm
from sklearn.preprocessing import StandardScaler

import clsvm
from benchmarks import check, solvers, tasks_check
from benchmarks.pairs import misses
from clsvm.opencl import devices

SETS: dict[str, Callable[..., Any]] = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "diabetes": datasets.load_diabetes,
    "digits": datasets.load_digits,
}
NUMBERS = ("diabetes",)  # whose targets are to be predicted as they are


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside --device and --out."""
    parser.add_argument("--repeats", type=int, default=21, help="fits of each, the first included (21)")


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """A row for each set: milliseconds of a fit and of an answer for one row."""
    rows = [_row(name, asked.device, asked.repeats) for name in SETS]
    return {"device": str(devices.find(asked.device)), "rows": rows}


def holds(result: dict[str, Any]) -> bool:
    """Whether every solution of ours does."""
    return not any(row["misses"] for row in result["rows"])


def _row(name: str, device: Any, repeats: int) -> dict[str, Any]:
    X, y = SETS[name](return_X_y=True)
    X, numbers = StandardScaler().fit_transform(X), name in NUMBERS
    (form,) = solvers.forms("libsvm", X)
    X = solvers.formed(X, form)
    makers: dict[str, Callable[[], Any]] = {
        "clsvm": lambda: (clsvm.SVR if numbers else clsvm.SVC)(device=device),
        "scikit-learn": svm.SVR if numbers else svm.SVC,
    }
    fits: dict[str, list[float]] = {solver: [] for solver in makers}
    answers: dict[str, list[float]] = {solver: [] for solver in makers}
    models: dict[str, Any] = {}
    for _ in range(repeats):
        for solver, make in makers.items():
            began = perf_counter()
            models[solver] = make().fit(X, y)
            fits[solver].append(1e3 * (perf_counter() - began))
    for i in range(repeats):
        for solver, model in models.items():
            began = perf_counter()
            model.predict(X[i % len(X) : i % len(X) + 1])
            answers[solver].append(1e3 * (perf_counter() - began))
    found = {solver: _checked(model, X, y, numbers) for solver, model in models.items()}
    best = max(one["dual"] for one in found.values())
    return {
        "set": name,
        "n": len(y),
        "d": X.shape[1],
        "fit_ms": {solver: statistics.median(times[1:] or times) for solver, times in fits.items()},
        "answer_ms": {solver: statistics.median(times[1:] or times) for solver, times in answers.items()},
        "solutions": found,
        "misses": misses(found["clsvm"], best, models["clsvm"].tol),
    }


def _checked(model: Any, X: Any, y: Any, numbers: bool) -> dict[str, float]:
    gamma = 1 / (X.shape[1] * X.var())
    duals = (tasks_check.epsilon_svr if numbers else tasks_check.c_svc)(model, y, np.ones(len(y)))
    kernel = check.kernel("rbf", gamma=gamma)
    return tasks_check.merged([tasks_check.standing(X, one, kernel) for one in duals])


def show(result: dict[str, Any]) -> Table:
    """Milliseconds, and how many times ours scikit-learn takes."""
    table = Table(title="milliseconds; ratio: scikit-learn's over ours; the violation recomputed in float64")
    titles = "set", "fit", "scikit-learn", "ratio", "one row", "scikit-learn", "ratio", "violation", "misses"
    for title in titles:
        table.add_column(title, justify="left" if title in ("set", "misses") else "right")
    for row in result["rows"]:
        figures: list[str] = []
        for times in (row["fit_ms"], row["answer_ms"]):
            ours, its = times["clsvm"], times["scikit-learn"]
            figures += [f"{ours:.3g}", f"{its:.3g}", f"{its / ours:.2f}"]
        violation = f"{row['solutions']['clsvm']['violation']:.1e}"
        table.add_row(f"{row['set']} {row['n']}x{row['d']}", *figures, violation, "; ".join(row["misses"]))
    return table
