"""Write the tables of the pages from the code and from results: ``python docs/generated.py``.

A page has a table between the lines ``<!-- generated: WORDS -->`` and ``<!-- end -->``. WORDS are one of these:

kernels          the built-in kernel functions: parameters, their defaults and limits, formula
flags COMMAND    flags and arguments of a command, such as ``flags train`` or ``flags kernels emit``
columns NAME     columns of the tables of result files: COLUMNS has files and columns by NAME
peers FILE       clsvm's fits in a GPU result beside ThunderSVM's fits to the same tolerance
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.command import page  # noqa: E402
from benchmarks.gpu import summary  # noqa: E402
from clsvm.cli.app import app  # noqa: E402
from clsvm.kernels.records import BUILTIN  # noqa: E402

Row = tuple[str, ...]
COLUMNS = {  # of a table: (files, columns), as ``columns`` takes them
    "training": (
        "cpu-2-cores-epyc-2026-11-28.json,pairs-cpu-2-cores-epyc-2026-11-28.json,text-cpu-2-cores-epyc-2026-11-28.json",
        "set = data | solver | cold s = first fit, s | warm s = later fits, s | times ours = later fits, "
        "times clsvm's | violation = KKT violation | test % = accuracy, %",
    ),
    "prediction": (
        "predict-cpu-2-cores-xeon-2026-11-28.json",
        "set = trained on | tests = test rows | solver | classes s = seconds | times ours = times clsvm's | "
        "first MB = memory of the first call, MB | later MB = memory of later calls, MB | right % = accuracy, %",
    ),
    "small": (
        "small-cpu-2-cores-xeon-2026-11-28.json",
        "set = data | fit, ours = clsvm's fit, ms | scikit-learn = scikit-learn's fit, ms | one row, ours = "
        "clsvm's prediction of a row, ms | scikit-learn 2 = scikit-learn's prediction, ms",
    ),
    "searches": (
        "search-cpu-2-cores-epyc-2026-11-28.json,search-short-cpu-2-cores-epyc-2026-11-28.json",
        "set = data | solver | cold s = first search, s | warm s = later searches, s | times ours = later "
        "searches, times clsvm's | its score = best score | scores apart = largest difference from clsvm's scores",
    ),
    "rows": (
        "growth-cpu-2-cores-avx2-2026-11-30.json",
        "set = data | rows | clsvm s = clsvm, s | libsvm s = scikit-learn, s | times ours = times clsvm's | "
        "onedal s = scikit-learn-intelex, s | times ours 2 = times clsvm's",
    ),
    "falkon": (
        "falkon-cpu-2-cores-2026-11-23.json",
        "set = data | loss | solver | cold s = first fit, s | warm s = later fits, s | times ours = later "
        "fits, times clsvm's | test error",
    ),
    "gallery": (
        "gallery-cpu-2-cores-2026-11-26.json",
        "script | scikit-learn s = scikit-learn, s | accel s = clsvm.accel, s | accel / scikit-learn = times "
        "scikit-learn's | numbers = numbers printed | lines that differ",
    ),
    "gpu": (
        "gpu-h100-later-2026-11-27.json#Training",
        "set = data | n x d = rows x features | first s = first fit, s | later s = best later fit, s | "
        "violation = KKT violation | gap = relative gap | test % = accuracy, %",
    ),
    "curves": (
        "study-curves-cpu-2-cores-2026-11-23.json",
        "set = data | machine = estimator | rows | vectors = support vectors or inducing points | s = seconds "
        "| test error",
    ),
    "ladder": (
        "ladder-intel-2-cores-2026-11-21.json",
        "W, n = right-hand rows, rows | rung | GFLOP/s | GB/s | of bandwidth | of multiply-adds",
    ),
    "workers": (
        "sharded-cpu-2-cores-2026-11-24.json",
        "rows | = where | cold s = first fit, s | s = later fits, s | times = times one process | violation = "
        "KKT violation | steps = outer iterations | KB a step and worker = KB an iteration and worker",
    ),
    "limited": (
        "larger-cpu-2-cores-xeon-2026-11-27.json",
        "set = data | MB = X, MB | limit MB = limit, MB | in core s = in core, s | limited s = limited, s | "
        "times | own memory MB = own memory, MB",
    ),
    "pairs": (
        "host-nvidia-profile-2026-11-30.json",
        "set = data | C | pairs | working sets | SMO iterations | launches | modelled ms = estimate for an H100, ms",
    ),
    "launches": (
        "host-gpu-profile-2026-11-30.json",
        "set = data | machines = subproblems | working sets | launches | waiting copies = blocking copies | "
        "GFMA = 10^9 multiply-adds of K",
    ),
    "ablation": (
        "study-ablation-cpu-2-cores-2026-11-23.json",
        "what = with | preconditioner of rows | steps | s in all = seconds | gain = gain over the row above | "
        "test % = test error, %",
    ),
    "blocks": (
        "study-growth-cpu-2-cores-2026-11-23.json",
        "rows | s a step = a step, s | rows a second | MB held | s of the fit = fit, s | where K is",
    ),
}


def markdown(header: Row, rows: Iterable[Row]) -> str:
    """Return a Markdown table; bars within cells are escaped."""
    lines = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def kernels() -> str:
    """Return the table of the built-in kernel functions."""
    header = "name", "parameters and defaults", "K(x, y)"
    return markdown(header, ((f"`{name}`", _parameters(spec), f"`{spec.formula}`") for name, spec in BUILTIN.items()))


def _parameters(spec: Any) -> str:
    return "; ".join(f"{one.name} = {one.default:g} ({one.limits})" for one in spec.parameters) or "none"


def flags(*words: str) -> str:
    """Return the table of a command's flags and arguments."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return markdown(("flag", "meaning"), _flags(command))


def _flags(command: Any) -> Iterator[Row]:
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        names, argument = ", ".join(one.opts), not one.opts[0].startswith("-")
        value = "" if argument or one.is_flag else f" {one.metavar or 'VALUE'}"
        default = "" if argument or one.is_flag or one.default in (None, "") else f" Default: {one.default}"
        yield f"`{names}{value}`", f"{one.help or ''}{default}"


def read(name: str) -> Any:
    """Return the content of a result file."""
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text("utf-8"))


def results(name: str) -> str:
    """Return the tables of a result."""
    return page(read(name))


def gpu(name: str, *title: str) -> str:
    """Return a table of a result of the GPU command."""
    return summary.section(read(name), " ".join(title))


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of a result's first table, or of the table named after #, as dicts by column title.

    An empty first cell gets the text of the cell above it. The second column of the same title is "title 2".
    """
    name, _, title = name.partition("#")
    text = gpu(name, title) if title else results(name)
    block = next(part for part in text.split("\n\n") if part.startswith("|")).splitlines()
    header, _, *lines = ([cell.strip() for cell in line.strip()[1:-1].split("|")] for line in block)
    header = [title + f" {1 + header[:i].count(title)}" * (title in header[:i]) for i, title in enumerate(header)]
    rows: list[dict[str, str]] = []
    for line in lines:
        rows.append(dict(zip(header, line, strict=True)))
        rows[-1][header[0]] = rows[-1][header[0]] or rows[-2][header[0]]
    return rows


def tables(name: str) -> list[dict[str, str]]:
    """Return the rows of the tables that an entry of COLUMNS names."""
    return [row for file in COLUMNS[name][0].split(",") for row in table(file)]


def columns(name: str) -> str:
    """Return a table of COLUMNS; repeated first cells are left empty.

    Its entry has result files, separated by commas, and ``COLUMN = TITLE | COLUMN = TITLE ...``: columns of each file's
    first table, or of its table after #. A column is shown under TITLE, if that is given.
    """
    given = [part.partition("=") for part in COLUMNS[name][1].split("|")]
    keys = [key.strip() for key, _, _ in given]
    cells = [tuple(row[key] for key in keys) for row in tables(name)]
    shown = [("" if i and cells[i - 1][0] == row[0] else row[0], *row[1:]) for i, row in enumerate(cells)]
    return markdown(tuple((title or key).strip() for key, _, title in given), shown)


def gpu_fits(name: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the fits of a GPU result: those of clsvm by data set, and those of other libraries."""
    steps = read(name)["steps"]
    ours = {step["set"]: step for step in steps if "cold" in step}
    return ours, next(step["peers"] for step in steps if step["step"] == "peers")


def peers(name: str) -> str:
    """Return a table of the seconds of clsvm's fits in a GPU result, beside ThunderSVM's fits to the same tolerance."""
    ours, others = gpu_fits(name)
    rows = []
    for row in others:
        if row["stop"] == "tol 1e-3" and not (own := ours[row["set"]])["parameters"].get("gap_tol"):
            seconds = (own["cold"], row["first"], min(own["warm"]), row["seconds"])
            rows.append((own["what"], *("not run" if one is None else f"{one:.2f}" for one in seconds)))
    first = "clsvm, first fit, s", "ThunderSVM, first fit, s"
    later = "clsvm, best later fit, s", "ThunderSVM, later fits, s"
    return markdown(("data", *first, *later), rows)


WRITERS: dict[str, Callable[..., str]] = {
    "columns": columns,
    "kernels": kernels,
    "flags": flags,
    "peers": peers,
}


_BLOCK = re.compile(r"^<!-- generated: ([^\n]+) -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its generated tables made anew."""

    def block(found: re.Match[str]) -> str:
        name, *given = found[1].split()
        return f"<!-- generated: {found[1]} -->\n\n{WRITERS[name](*given).strip()}\n\n<!-- end -->"

    return _BLOCK.sub(block, text)


if __name__ == "__main__":
    for path in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))):
        old = path.read_text("utf-8")
        if (new := filled(old)) != old:
            path.write_text(new, "utf-8")
            print(path)
