"""The ladder as a picture: rungs against n, reductions against n, each with the bound that reading sets."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from clsvm.errors import install


def library() -> Any:
    """matplotlib.pyplot without a display; SystemExit says how to get it where it is missing."""
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ImportError:
        raise SystemExit(f"a picture needs matplotlib: {install('plot')}") from None
    return importlib.import_module("matplotlib.pyplot")


def draw(result: dict[str, Any], path: Path) -> None:
    """GFLOP/s of the rungs at W = 2 over n, and 10^9 numbers a second of the reductions, into the file ``path``."""
    plot = library()
    figure, (left, right) = plot.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    bandwidth, d = result["peaks"]["read_gbs"], result["groups"][0]["d"]
    sweep = result["sweep"]
    for name in sweep[0]["gflops"]:
        points = [(one["n"], one["gflops"][name]) for one in sweep if one["gflops"][name] is not None]
        if points:
            left.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    # 2 W = 4 flops a number of X, and the W results with it
    left.axhline(
        4 * d / (4 * (d + 2)) * bandwidth, color="black", linestyle="--", label="bound by reading X from memory"
    )
    left.set(title=f"two kernel rows, d = {d}", xlabel="rows n", ylabel="GFLOP/s")
    for name in dict.fromkeys(row["name"] for row in result["reductions"]["rows"]):
        rows = [row for row in result["reductions"]["rows"] if row["name"] == name and row["right"]]
        right.plot([row["n"] for row in rows], [row["gbs"] / 4 for row in rows], marker="o", markersize=3, label=name)
    right.axhline(bandwidth / 4, color="black", linestyle="--", label="bound by reading from memory")
    right.set(title="reductions", xlabel="numbers", ylabel="10⁹ numbers a second")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(f"{result['device']}, {result['date']}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plot.close(figure)
