"""Figure 4: how the entries of each set are spread over its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.boostsvm import cases
from benchmarks.boostsvm.shared import Options, Part, failed, label, measured, shown
from benchmarks.falkon_studies.pictures import picture
from clsvm.gram import partition
from clsvm.opencl import devices

TENTHS = 10
POINTS = 80  # of a curve, at most


def measure(name: str, options: Options) -> dict[str, Any]:
    """Columns that occur, by falling density: the density of each tenth of them; ranks, curve: the density at some
    ranks; whole: columns that each of the paper's rules stores dense."""
    case = options.load(name)
    n, count = case.X.shape[0], partition.counts(case.X)
    falling = np.sort(count[count > 0])[::-1] / n
    ranks = np.unique(np.geomspace(1, len(falling), POINTS).astype(int))
    found = {
        "device": str(devices.find(options.device)),
        "occur": len(falling),
        "common": int((falling > partition.FULL).sum()),
        "deciles": [float(tenth.mean()) if len(tenth) else None for tenth in np.array_split(falling, TENTHS)],
        "ranks": ranks.tolist(),
        "curve": falling[ranks - 1].tolist(),
        "whole": {rule: partition.partition(count, n, rule).dense for rule in ("paper", "code")},
    }
    return case.head() | found


def holds(result: dict[str, Any]) -> bool:
    """Whether the tenths of columns have all entries between them."""
    return not failed(result) and all(_all_there(one) for one in measured(result))


def _all_there(one: dict[str, Any]) -> bool:
    sizes = [len(tenth) for tenth in np.array_split(np.arange(one["occur"]), TENTHS)]
    entries = sum(size * (density or 0) for size, density in zip(sizes, one["deciles"], strict=True)) * one["n"]
    return bool(abs(entries - one["nnz"]) <= 1e-6 * one["nnz"])


def show(result: dict[str, Any]) -> Table:
    """The density of each tenth in percent."""
    rows = []
    for one in measured(result):
        tenths = ("-" if density is None else f"{100 * density:.3g}" for density in one["deciles"])
        counts = str(one["occur"]), str(one["common"]), *(str(one["whole"][rule]) for rule in ("paper", "code"))
        rows.append([label(one), f"{100 * one['density']:.3g}", *counts, *tenths])
    words = (
        "density in % of each tenth of the columns that occur, densest first; whole: columns that a rule stores dense"
    )
    heads = "set", "density %", "occur", "> 50 %", "whole, paper", "code", *(str(i + 1) for i in range(TENTHS))
    return shown(result, words, heads, 1, rows)


def draw(result: dict[str, Any], path: Path) -> None:
    """The density of columns over their rank, both axes logarithmic, into the file ``path``."""
    with picture(result, path, 1) as (axes,):
        for one in measured(result):
            axes.loglog(one["ranks"], one["curve"], marker=".", label=label(one))
        axes.set(title="columns by falling density", xlabel="rank", ylabel="share of rows with an entry")


FIGURE_4 = Part("density by tenths of the columns", cases.SETS, measure, show, holds, draw)
