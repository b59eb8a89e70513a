"""Table 5 of Meanti et al. 2020: seconds to train and test errors of Falkon beside SVMs, here our SVC and LIBSVM, all
with the same rbf kernel. CIFAR10's part is taken by rows as wide as its images.

A fit on few rows builds the programs before ours are timed. LIBSVM may be given fewer rows; its seconds then grow with
the square of the rows, and its error is one of the few.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from sklearn.svm import SVC

import clsvm
from benchmarks import solvers
from benchmarks.falkon import FALKON_SETS, TOL, Split, score
from benchmarks.falkon_studies.network import Network
from benchmarks.falkon_studies.shared import Options, fitted, named, seconds_of

CACHE_MB = 2000  # of LIBSVM
TRAINED, TESTED = 50000, 10000  # rows of the synthetic set
PAPER = {"mnist": {"Falkon": 10.9, "Falkon in core": 6.5, "ThunderSVM": 19.6}}  # seconds on two GPUs


@dataclass(frozen=True)
class WideSet:
    """How to make a set, and its numbers: gamma of all machines, C of SVMs, penalty of ours."""

    make: Callable[[Options], Split]
    gamma: float
    C: float
    penalty: float


def _mnist(options: Options) -> Split:
    return FALKON_SETS["mnist"].make(options.data)


def _synthetic(options: Options) -> Split:
    network, n = Network(), min(TRAINED, options.rows or TRAINED)
    return *network.rows(n, 1), *network.rows(min(TESTED, n), 2)


WIDE_SETS = {
    "mnist": WideSet(_mnist, gamma=0.02, C=10, penalty=1e-6),
    "synthetic": WideSet(_synthetic, gamma=0.5 / 3072, C=1, penalty=1e-6),
}


def run(options: Options) -> dict[str, Any]:
    """Rows of every set: the machines."""
    names = named(options, tuple(WIDE_SETS), tuple(WIDE_SETS))
    return {"centers": options.centers or 2000, "sets": [_run(name, options) for name in names]}


def _run(name: str, options: Options) -> dict[str, Any]:
    recipe = WIDE_SETS[name]
    X, y, X_test, y_test = recipe.make(options)
    X, y = X[: options.rows], y[: options.rows]
    rows = [_ours(machine, X, y, X_test, y_test) for machine in _machines(recipe, options)]
    if "libsvm" in options.peers:
        rows.append(_libsvm(recipe, options, X, y, X_test, y_test))
    numbers = {"gamma": recipe.gamma, "C": recipe.C, "penalty": recipe.penalty}
    return {"set": name, "n": len(y), "d": X.shape[1], **numbers, "paper": PAPER.get(name, {}), "rows": rows}


def _machines(recipe: WideSet, options: Options) -> tuple[Any, Any]:
    given = {"gamma": recipe.gamma, "device": options.device, "random_state": 0}
    m = options.centers or 2000
    falkon = clsvm.FalkonClassifier(n_centers=m, penalty=recipe.penalty, tol=TOL, **given)
    return falkon, clsvm.SVC(C=recipe.C, **given)


def _ours(machine: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, Any]:
    gc.collect()
    seconds = fitted(machine, X, y)
    return {
        "solver": type(machine).__name__,
        "rows": len(y),
        "vectors": len(machine.support_vectors_),
        "seconds": seconds,
        "error": score(machine.predict, X_test, y_test, True),
        "converged": bool(machine.fit_report_.converged),
        "note": "",
    }


def _libsvm(recipe: WideSet, options: Options, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, Any]:
    """seconds and error are those of all rows; what was measured on fewer stands beside them."""
    n, some = len(y), min(len(y), options.libsvm_rows)
    machine = SVC(C=recipe.C, gamma=recipe.gamma, cache_size=CACHE_MB)
    (form,) = solvers.forms("libsvm", X)
    rows = solvers.formed(X[:some], form)
    measured = seconds_of(lambda: machine.fit(rows, y[:some]))
    error = score(machine.predict, solvers.formed(X_test, form), y_test, True)
    return {
        "solver": "LIBSVM",
        "form": form,
        "rows": some,
        "vectors": len(machine.support_vectors_),
        "measured_seconds": measured,
        "measured_error": error,
        "seconds": measured * (n / some) ** 2,
        "error": error if some == n else None,
        "note": "" if some == n else f"extrapolated from {some} rows with the square of the rows",
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether all of ours converged."""
    return all(row.get("converged", True) for one in result["sets"] for row in one["rows"])


def show(result: dict[str, Any]) -> Table:
    """A row for each machine."""
    table = Table(title=f"Falkon on {result['centers']} centres beside SVMs: seconds to train and test errors")
    for title in ("set", "solver", "rows", "vectors", "s", "times Falkon's", "test error %", "note"):
        table.add_column(title, justify="left" if title in ("set", "solver", "note") else "right")
    for one in result["sets"]:
        label, first = f"{one['set']} {one['n']}x{one['d']}", one["rows"][0]["seconds"]
        for row in one["rows"]:
            figures = f"{row['seconds']:.3g}", f"{row['seconds'] / first:.1f}"
            counts = str(row["rows"]), str(row["vectors"])
            table.add_row(label, row["solver"], *counts, *figures, _error(row), row["note"])
            label = ""
    return table


def _error(row: dict[str, Any]) -> str:
    if row["error"] is None:
        return f"({100 * row['measured_error']:.2f} of {row['rows']} rows, {row['measured_seconds']:.3g} s)"
    return f"{100 * row['error']:.2f}"
