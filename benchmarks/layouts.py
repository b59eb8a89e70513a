"""The same solver on the same rows in each layout, in turns: what laying out rows by their sparsity is worth.

The first fit of each is its cold one, `seconds` the median of the later ones. The objectives must agree.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.table import Table

import clsvm
from benchmarks import sets, tasks
from clsvm import arrays, kernels
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.opencl.stream import Stream


def run(names: Sequence[str], folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    """A row for each layout of every set, of sets.SETS, and which of them the estimator takes by itself."""
    return {"sets": [_run(name, folder, device, repeats) for name in names]}


def _run(name: str, folder: Path | None, device: Any, repeats: int) -> dict[str, Any]:
    p = sets.load(name, folder)
    seconds: dict[str, list[float]] = {kind: [] for kind in LAYOUTS}
    reports: dict[str, Any] = {}
    for _ in range(repeats):
        for kind in LAYOUTS:
            model = clsvm.SVC(C=p.C, gamma=p.gamma, device=device, layout=kind)
            gc.collect()
            began = perf_counter()
            model.fit(p.X, p.y)
            seconds[kind].append(perf_counter() - began)
            reports[kind] = model.fit_report_
    with Stream(device) as stream:
        chosen = layouts.choose(stream.profile, arrays.canonical(p.X), kernels.make("rbf", gamma=p.gamma).spec)
    rows = [
        {
            "layout": kind,
            "cold": times[0],
            "seconds": statistics.median(times[1:] or times),
            "all_seconds": times,
            "dual": reports[kind].dual,
            "violation": reports[kind].violation,
            "stored": reports[kind].layout,
            "report": str(reports[kind]),
        }
        for kind, times in seconds.items()
    ]
    best = max(row["dual"] for row in rows)
    for row in rows:
        row["agrees"] = bool(best - row["dual"] <= tasks.DUAL * abs(best))
    what = {"set": name, "n": p.X.shape[0], "d": p.X.shape[1], "C": p.C, "gamma": p.gamma}
    return what | {"chosen": chosen.kind, "reason": chosen.reason, "rows": rows}


def show(result: dict[str, Any]) -> Table:
    """The rows of a result, with the ratio of each layout's seconds to those of the chosen one."""
    table = Table(title="one solver, each layout; * is the one that it takes by itself")
    for title in ("set", "layout", "cold s", "s", "times the chosen", "dual", "violation"):
        table.add_column(title, justify="left" if title in ("set", "layout") else "right")
    for one in result["sets"]:
        label, chosen = f"{one['set']} {one['n']} x {one['d']}", one["chosen"]
        ours = next(row["seconds"] for row in one["rows"] if row["layout"] == chosen)
        for row in one["rows"]:
            mark = " *" if row["layout"] == chosen else ""
            figures = f"{row['cold']:.3g}", f"{row['seconds']:.3g}", f"{row['seconds'] / ours:.2f}"
            table.add_row(label, row["layout"] + mark, *figures, f"{row['dual']:.8g}", f"{row['violation']:.2e}")
            label = ""
    return table
