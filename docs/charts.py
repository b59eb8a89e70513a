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

GPU = "gpu-h100-2026-11-27.json"
STYLES = {  # of a solver: its name and colour
    "clsvm": ("clsvm", "#1f6fb4"),
    "onedal": ("scikit-learn-intelex", "#ef9f4a"),
    "libsvm": ("scikit-learn", "#b5b5b5"),
    "nystroem": ("scikit-learn", "#b5b5b5"),
    "ThunderSVM": ("ThunderSVM", "#3b9c5a"),
    "GTSVM": ("GTSVM", "#8a5fb0"),
}


@contextmanager
def chart(path: Path, width: float, height: float, panels: int = 1) -> Iterator[Sequence[Any]]:
    """Yield the axes of some panels; write them to ``path`` with a grid and a legend for all of them at the end."""
    figure, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained", squeeze=False, sharey=True)
    yield axes[0]
    named: dict[str, Any] = {}
    for one in axes[0]:
        one.grid(alpha=0.3, which="major")
        one.set_axisbelow(True)
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=5, fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def bars(path: Path, table: str, label: str, wanted: Sequence[str] = ("cold s", "warm s")) -> None:
    """Draw seconds by data set and solver on a logarithmic axis, from a table of ``generated.COLUMNS``.

    A pale bar is a first fit, and the full bar in front of it the later fits.

    wanted: the columns of seconds to draw.
    """
    groups: dict[str, list[dict[str, str]]] = {}
    for row in generated.tables(table):
        groups.setdefault(" ".join(filter(None, (row["set"], row.get("loss", "")))), []).append(row)
    styles = {"cold s": (", first", 0.8, 0.35), "warm s": (", later", 0.55, 1.0), "classes s": ("", 0.7, 1.0)}
    named: set[str] = set()
    at, places = 0.0, []
    with chart(path, 7.5, 1 + 0.31 * sum(map(len, groups.values()))) as (axes,):
        for own in groups.values():
            places.append(at + (len(own) - 1) / 2)
            for row in own:
                solver = row["solver"].split(" ")[0].rstrip("*")
                for key in wanted:
                    (name, colour), (words, thick, alpha) = STYLES[solver], styles[key]
                    words = "_" * (name + words in named) + name + words  # matplotlib leaves out _words
                    axes.barh(at, float(row[key]), thick, color=colour, alpha=alpha, label=words)
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
    """Draw seconds of first and later fits over the number of rows: a panel for each set with C = 1, and a GPU's."""
    ones = [one for one in generated.read(generated.COLUMNS["rows"][0])["sets"] if one["C"] == 1]
    with chart(path, 8, 4.2, len(ones) + 1) as panels:
        for axes, one in zip(panels, ones, strict=False):
            for solver in ("clsvm", "onedal", "libsvm"):
                found = fits(one["points"], solver)
                dots(axes, solver, {n: (row["cold"], row["seconds"]) for n, row in found.items()}, (":", "-"))
            axes.set_title(f"{one['set']}, two CPU cores", fontsize=9)
            axes.set_xlabel("rows")
        ticks = {}
        for solver, name, n, *seconds in on_gpu(("a9a", "mnist8")):
            dots(panels[-1], solver, {n: seconds}, ("", ""))
            ticks[n] = f"{name}\n{n:,}"
        panels[-1].set_xticks([*ticks], [*ticks.values()])
        panels[-1].minorticks_off()
        panels[-1].set(xlim=(2e4, 1e5), xlabel="rows")
        panels[-1].set_title("H100", fontsize=9)
        panels[0].set_ylabel("seconds of a fit")


def dots(axes: Any, solver: str, seconds: dict[int, Sequence[float | None]], joined: Sequence[str]) -> None:
    """Draw hollow dots for first fits and full dots for later fits.

    seconds: both, by the number of rows. joined: the styles of the lines between the dots of first and later fits.
    """
    name, colour = STYLES[solver]
    for i, (face, when) in enumerate((("white", "first"), (colour, "later"))):
        points = [(n, both[i]) for n, both in seconds.items() if both[i] is not None]
        if points:
            axes.loglog(*zip(*points, strict=True), "o" + joined[i], markersize=4, color=colour,
                        markerfacecolor=face, label=f"{name}, {when}")  # fmt: skip


def on_gpu(sets: Sequence[str]) -> Iterator[tuple[str, str, int, float | None, float | None]]:
    """Yield the solver, set, rows and seconds (first, later) of the fits in the GPU's result."""
    ours, others = generated.gpu_fits(GPU)
    for one in map(ours.get, sets):
        yield "clsvm", one["set"], one["n"], one["cold"], sorted(one["warm"])[len(one["warm"]) // 2]
    for row in (row for row in others if row["set"] in sets):
        yield row["solver"], row["set"], ours[row["set"]]["n"], row["first"], row["seconds"]


def errors(path: Path) -> None:
    """Draw the test error over the seconds of a fit, with one panel for each set."""
    sets = generated.read(generated.COLUMNS["curves"][0])["sets"]
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
    bars(folder / "speed_train.png", "training", "seconds of a fit")
    bars(folder / "speed_predict.png", "prediction", "seconds for all test rows", ["classes s"])
    bars(folder / "speed_search.png", "searches", "seconds of a search")
    bars(folder / "speed_falkon.png", "falkon", "seconds of a fit")
    over_rows(folder / "speed_rows.png")
    errors(folder / "which_estimator.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
