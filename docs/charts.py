"""Draw the charts of the pages from benchmarks/results: ``python docs/charts.py docs/pictures``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import generated  # noqa: E402

FITS = (
    "cpu-2-cores-epyc-2026-11-28.json",
    "pairs-cpu-2-cores-epyc-2026-11-28.json",
    "text-cpu-2-cores-epyc-2026-11-28.json",
)
SEARCHES = "search-cpu-2-cores-epyc-2026-11-28.json", "search-short-cpu-2-cores-epyc-2026-11-28.json"
ROWS = "growth-cpu-2-cores-epyc-2026-11-28.json"
FALKON = "falkon-cpu-2-cores-2026-11-23.json"
ERRORS = "study-curves-cpu-2-cores-2026-11-23.json"
PREDICTIONS = "predict-cpu-2-cores-xeon-2026-11-28.json"
COLOURS = {"clsvm": "#1f6fb4", "onedal": "#ef9f4a", "libsvm": "#b5b5b5", "nystroem": "#b5b5b5"}
NAMES = {"clsvm": "clsvm", "onedal": "scikit-learn-intelex", "libsvm": "scikit-learn", "nystroem": "scikit-learn"}


@contextmanager
def chart(path: Path, height: float, panels: int = 1) -> Iterator[list[Any]]:
    """Yield the axes of some panels; write them to ``path`` with a grid and a legend at the end."""
    figure, axes = plt.subplots(1, panels, figsize=(7.5, height), layout="constrained", squeeze=False, sharey=True)
    yield list(axes[0])
    for one in axes[0]:
        one.grid(alpha=0.3, which="major")
        one.set_axisbelow(True)
    axes[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def bars(path: Path, files: Sequence[str], label: str, wanted: Sequence[str] = ("cold s", "warm s")) -> None:
    """Draw seconds by data set and solver on a logarithmic axis.

    A pale bar is a first fit, and the full bar in front of it the later fits.

    wanted: the columns of seconds to draw.
    """
    groups: dict[str, list[dict[str, str]]] = {}
    for row in (row for name in files for row in generated.table(name)):
        groups.setdefault(" ".join(filter(None, (row["set"], row.get("loss", "")))), []).append(row)
    styles = {"cold s": (", first", 0.8, 0.35), "warm s": (", later", 0.55, 1.0), "classes s": ("", 0.7, 1.0)}
    named: set[str] = set()
    at, places = 0.0, []
    with chart(path, 0.8 + 0.31 * sum(map(len, groups.values()))) as (axes,):
        for own in groups.values():
            places.append(at + (len(own) - 1) / 2)
            for row in own:
                solver = row["solver"].split(" ")[0].rstrip("*")
                for key in wanted:
                    words, thick, alpha = styles[key]
                    words = "_" * ((words := NAMES[solver] + words) in named) + words  # matplotlib leaves out _words
                    axes.barh(at, float(row[key]), thick, color=COLOURS[solver], alpha=alpha, label=words)
                    named.add(words)
                at += 1
            at += 0.5
        axes.set_yticks(places, [*groups], fontsize=8)
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel=label)


def fits(points: Sequence[Any], solver: str) -> dict[int, Any]:
    """Return, for each number of rows, the result of a solver's fastest valid fit."""
    found: dict[int, Any] = {}
    for point in points:
        rows = [row for row in point["rows"] if row["solver"] == solver and not (row["failed"] or row["misses"])]
        if rows:
            found[point["n"]] = min(rows, key=lambda row: row["seconds"])
    return found


def over_rows(path: Path) -> None:
    """Draw seconds over the number of rows, of first and later fits, with one panel for each set with C = 1."""
    ones = [one for one in generated.read(ROWS)["sets"] if one["C"] == 1]
    with chart(path, 3.6, len(ones)) as panels:
        for axes, one in zip(panels, ones, strict=True):
            for solver in ("clsvm", "onedal"):
                found = fits(one["points"], solver)
                for key, style, words in (("cold", ":o", "first"), ("seconds", "-o", "later")):
                    seconds, words = [row[key] for row in found.values()], f"{NAMES[solver]}, {words}"
                    axes.loglog([*found], seconds, style, markersize=4, color=COLOURS[solver], label=words)
            axes.set(title=f"{one['set']}, {one['d']} features", xlabel="rows")
        panels[0].set_ylabel("seconds of a fit")


def errors(path: Path) -> None:
    """Draw the test error over the seconds of a fit, with one panel for each set."""
    sets = generated.read(ERRORS)["sets"]
    figure, panels = plt.subplots(1, len(sets), figsize=(12, 3.6), layout="constrained")
    for axes, one in zip(panels, sets, strict=True):
        for name in dict.fromkeys(row["machine"] for row in one["rows"]):
            points = [row for row in one["rows"] if row["machine"] == name]
            percent = [row["error"] * (100 if one["classes"] else 1) for row in points]
            axes.semilogx([row["seconds"] for row in points], percent, marker="o", label=name)
        error = "test error, %" if one["classes"] else "root of the mean squared error"
        axes.set(title=f"{one['set']}, {one['n']} rows", xlabel="seconds of a fit", ylabel=error)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main(folder: Path) -> None:
    """Draw all charts into a folder."""
    bars(folder / "speed_train.png", FITS, "seconds of a fit")
    bars(folder / "speed_predict.png", [PREDICTIONS], "seconds for all test rows", ["classes s"])
    bars(folder / "speed_search.png", SEARCHES, "seconds of a search")
    bars(folder / "speed_falkon.png", [FALKON], "seconds of a fit")
    over_rows(folder / "speed_rows.png")
    errors(folder / "which_estimator.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
