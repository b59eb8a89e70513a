"""A machine for each pair of classes, by clsvm and its peers in turns: seconds, and every solution checked.

Order: ours, peer, peer, ours, ... so that whatever else the machine does falls on all alike. The first fit of each is
its cold one, `seconds` the median of the later ones.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

import clsvm
from benchmarks import check, sets, tasks, tasks_check
from benchmarks.search import PEERS


def run(names: Sequence[str], peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    """Rows of every set, of sets.TASK_SETS, for ours and each peer, with what their solutions miss (tasks.misses)."""
    return {"sets": [_run(name, peers, folder, device, repeats) for name in names]}


def _run(name: str, peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    recipe = sets.TASK_SETS[name]
    X, y, X_test, y_test = sets.load_task(name, folder)
    X, X_test = (part.toarray() if hasattr(part, "toarray") else part for part in (X, X_test))
    makers = {"clsvm": lambda: clsvm.SVC(device=device)} | {peer: PEERS[peer] for peer in peers}
    seconds: dict[str, list[float]] = {solver: [] for solver in makers}
    models: dict[str, Any] = {}
    for _ in range(repeats):
        for solver, make in makers.items():
            gc.collect()
            models[solver] = make().set_params(C=recipe.C, gamma=recipe.gamma)
            began = perf_counter()
            models[solver].fit(X, y)
            seconds[solver].append(perf_counter() - began)
    rows = []
    for solver, model in models.items():
        found = tasks_check.of_pairs(model, X, y, recipe.C, recipe.gamma)
        row: dict[str, Any] = {"solver": solver, "cold": seconds[solver][0], "all_seconds": seconds[solver], **found}
        row |= {"seconds": statistics.median(seconds[solver][1:] or seconds[solver])}
        rows.append(row | {"score": float(np.mean(model.predict(X_test) == y_test))})
    best = max(row["dual"] for row in rows)
    for row in rows:
        row["misses"] = misses(row, best, models["clsvm"].tol)
    return {
        "set": name,
        "n": len(y),
        "d": X.shape[1],
        "classes": len(models["clsvm"].classes_),
        "C": recipe.C,
        "gamma": recipe.gamma,
        "report": str(models["clsvm"].fit_report_),
        "rows": rows,
    }


def misses(row: dict[str, Any], best: float, tol: float) -> list[str]:
    """Why a row does not count, in words: its summed dual beside the best one's, its violation, its constraints."""
    below, allowed = (best - row["dual"]) / abs(best), tasks.VIOLATION * tol
    found = [f"dual {below:.1e} below the best"] * (not below <= tasks.DUAL)
    found += [f"violation {row['violation']:.3g} above {allowed:g}"] * (not row["violation"] <= allowed)
    off = max(row["box"], row["off_sum"])
    return found + [f"constraints off by {off:.1e}"] * (not off <= check.BOUND_SLACK)


def show(result: dict[str, Any]) -> Table:
    """The rows of a result, with the ratio of each peer's seconds to ours."""
    table = Table(title="a machine for each pair of classes; violation and dual recomputed in float64")
    for title in ("set", "solver", "cold s", "s", "times ours", "dual", "violation", "score", "misses"):
        table.add_column(title, justify="left" if title in ("set", "solver", "misses") else "right")
    for one in result["sets"]:
        label = f"{one['set']}, {one['classes']} classes, C = {one['C']:g}, gamma = {one['gamma']:g}"
        warm = one["rows"][0]["seconds"]
        for row in one["rows"]:
            figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / warm:.1f}"
            checked = f"{row['dual']:.8g}", f"{row['violation']:.2e}", f"{row['score']:.4f}"
            table.add_row(label, row["solver"], *figures, *checked, "; ".join(row["misses"]))
            label = ""
    return table
