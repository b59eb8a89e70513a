"""A machine for each pair of classes, by clsvm and its peers in turns: seconds, and every solution checked.

A peer has a row for each form of its input.

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

from benchmarks import check, sets, solvers, table, tasks, tasks_check


def run(names: Sequence[str], peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    """Rows of every set, of sets.TASK_SETS, for ours and each peer, with what their solutions miss (tasks.misses)."""
    return {"sets": [_run(name, peers, folder, device, repeats) for name in names]}


def _run(name: str, peers: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    recipe = sets.TASK_SETS[name]
    X, y, X_test, y_test = sets.load_task(name, folder)
    X, X_test = (part.toarray() if hasattr(part, "toarray") else part for part in (X, X_test))
    asked = [(solver, form) for solver in ("clsvm", *peers) for form in solvers.forms(solver, X)]
    given = {form: solvers.formed(X, form) for _, form in asked}
    seconds: dict[tuple[str, str], list[float]] = {one: [] for one in asked}
    models: dict[tuple[str, str], Any] = {}
    for _ in range(repeats):
        for one in asked:
            solver, form = one
            gc.collect()
            common = solvers.parameters(recipe.C, recipe.gamma) | ({"cache_size": "auto"} if solver == "clsvm" else {})
            models[one] = solvers.made(solver, "SVC", common, device=device)
            began = perf_counter()
            models[one].fit(given[form], y)
            seconds[one].append(perf_counter() - began)
            solvers.own(solver, models[one])
    rows = []
    for one, model in models.items():
        found = tasks_check.of_pairs(model, X, y, recipe.C, recipe.gamma)
        spent, (solver, form) = seconds[one], one
        row: dict[str, Any] = {"solver": solver, "form": form, "cold": spent[0], "all_seconds": spent, **found}
        row |= {"seconds": statistics.median(spent[1:] or spent)}
        rows.append(row | {"score": float(np.mean(model.predict(solvers.formed(X_test, form)) == y_test))})
    best = max(row["dual"] for row in rows)
    for row in rows:
        row["misses"] = misses(row, best, solvers.TOL)
    ours = models[asked[0]]
    return {
        "set": name,
        "n": len(y),
        "d": X.shape[1],
        "classes": len(ours.classes_),
        "C": recipe.C,
        "gamma": recipe.gamma,
        "report": str(ours.fit_report_),
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
    notes = [note for one in result["sets"] for note in table.passed_over(one["set"], one["rows"])]
    words = "a machine for each pair of classes; violation and dual recomputed in float64"
    shown = Table(title=words, caption="\n".join(notes) or None, caption_justify="left")
    for title in ("set", "solver", "cold s", "s", "times ours", "dual", "violation", "score", "misses"):
        shown.add_column(title, justify="left" if title in ("set", "solver", "misses") else "right")
    for one in result["sets"]:
        label = f"{one['set']}, {one['classes']} classes, C = {one['C']:g}, gamma = {one['gamma']:g}"
        warm = one["rows"][0]["seconds"]
        for row in table.best_forms(one["rows"]):
            figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / warm:.1f}"
            checked = f"{row['dual']:.8g}", f"{row['violation']:.2e}", f"{row['score']:.4f}"
            shown.add_row(label, table.named(row), *figures, *checked, "; ".join(row["misses"]))
            label = ""
    return shown
