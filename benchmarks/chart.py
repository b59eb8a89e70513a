"""Seconds of fits beside the peers', as a picture: for each set of a result a bar of each solver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.falkon_studies.pictures import picture

NAMES = {"clsvm": "clsvm", "onedal": "scikit-learn-intelex", "libsvm": "scikit-learn"}
COLOURS = {"clsvm": "#1f6fb4", "onedal": "#f0a04b", "libsvm": "#b8b8b8"}
HEIGHT = 0.8  # of a set's bars together


def fastest(result: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """(set, the warm seconds of each solver) of a result of ``fit`` and its like; of a solver with several forms of its
    input the fastest, of fits that count alone."""
    found = []
    for one in result["sets"]:
        seconds: dict[str, float] = {}
        for row in one.get("rows", []):
            if row.get("warm") and not (row["error"] or row["misses"]):
                seconds[row["solver"]] = min(row["warm"], seconds.get(row["solver"], row["warm"]))
        if "clsvm" in seconds:
            found.append((f"{one['set']}\n{one['n']} x {one['d']}", seconds))
    return found


def draw(result: dict[str, Any], path: Path) -> None:
    """Horizontal bars over a logarithmic axis, how many times as long as ours at each end, into the file ``path``."""
    sets = fastest(result)
    with picture(result, path, 1) as (axes,):
        each = HEIGHT / len(NAMES)
        for place, solver in enumerate(NAMES):
            rows = [(at, one[solver], one["clsvm"]) for at, (_, one) in enumerate(sets) if solver in one]
            at = [row + (place + 0.5) * each - HEIGHT / 2 for row, _, _ in rows]
            axes.barh(at, [took for _, took, _ in rows], 0.9 * each, color=COLOURS[solver], label=NAMES[solver])
            for height, (_, took, ours) in zip(at, rows, strict=True):
                words = f"{took:.2g} s" if solver == "clsvm" else f"{took / ours:.1f} x"
                axes.annotate(words, (took, height), (3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(range(len(sets)), [name for name, _ in sets], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set(xscale="log", xlabel="seconds of a warm fit")
