"""The comparison as a table: for the terminal, and as markdown for the README."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

HEADER = (
    "set",
    "solver",
    "cold s",
    "warm s",
    "ours faster by",
    "dual",
    "gap",
    "violation",
    "SVs",
    "test %",
    "max diff",
)
LEGEND = (
    "warm: median of the fits after the first; max diff: largest difference of a test decision to LIBSVM's; "
    "dual, gap and KKT violation recomputed in float64; a row with * does not count; notes below"
)


def cells(result: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and the notes on rows marked with *."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for one in result["sets"]:
        if "error" in one:
            rows.append((one["set"], "*", *[""] * (len(HEADER) - 2)))
            notes.append(f"{one['set']}: {one['error']}")
            continue
        head = label(one)
        ours = next((row for row in one["rows"] if row["solver"] == "clsvm" and not row["error"]), None)
        for row in best_forms(one["rows"]):
            name, said = solver(one["set"], row)
            notes += said
            rows.append((head, name, *(_numbers(row, ours) if not row["error"] else [""] * (len(HEADER) - 2))))
            head = ""
        notes += passed_over(one["set"], one["rows"])
    return rows, notes


def named(row: dict[str, Any]) -> str:
    """Return the solver of a row and the form of its input, where the row has one."""
    return f"{row['solver']} ({row['form']})" if row.get("form") else str(row["solver"])


def solver(name: str, row: dict[str, Any]) -> tuple[str, list[str]]:
    """The solver of a row of the set of that name, with * where it does not count, and the notes that say why."""
    shown = named(row)
    missed = [row["error"]] if row["error"] else row["misses"]
    notes = [f"{name}, {shown}: {note}" for note in (*missed, *row.get("notes", []))]
    return shown + "*" * bool(missed), notes


def verdict(asked: bool | None) -> str:
    """Whether something is as it was asked for, in a cell; None: not known."""
    return "" if asked is None else "yes" if asked else "no"


def best_forms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each solver the form of input it is fastest with, among those whose solution counts where there is one."""
    chosen: dict[str, dict[str, Any]] = {}

    def rank(row: dict[str, Any]) -> tuple[bool, bool, float]:
        return bool(row.get("error") or row.get("failed")), bool(row.get("misses")), _seconds(row)

    for row in rows:
        if row["solver"] not in chosen or rank(row) < rank(chosen[row["solver"]]):
            chosen[row["solver"]] = row
    return list(chosen.values())


def passed_over(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return notes on the set of that name: forms with which a solver is faster, but whose solution does not count."""
    notes = []
    for best in best_forms(rows):
        for row in rows:
            faster = row["solver"] == best["solver"] and not best.get("misses") and 0 < _seconds(row) < _seconds(best)
            if faster and row.get("misses"):
                notes.append(f"{name}, {named(row)}: {_seconds(row):.3g} s, does not count: {'; '.join(row['misses'])}")
    return notes


def _seconds(row: dict[str, Any]) -> float:
    """Return the seconds by which the forms of a solver's input are compared."""
    return float(row["warm"] if "warm" in row else row.get("seconds", 0.0))


def _numbers(row: dict[str, Any], ours: dict[str, Any] | None) -> list[str]:
    return [
        f"{row['cold']:.3g}",
        f"{row['warm']:.3g}",
        "" if ours is None or row is ours else f"{row['warm'] / ours['warm']:.2f}",
        f"{row['dual']:.8g}",
        f"{row['gap']:.1e}",
        f"{row['violation']:.2e}",
        str(row["n_support"]),
        f"{100 * row['accuracy']:.2f}",
        "" if row["decision_difference"] is None else f"{row['decision_difference']:.1e}",
    ]


def measured(result: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The sets of a result that could be measured, and notes on the others."""
    failed = [one for one in result["sets"] if "error" in one]
    return [one for one in result["sets"] if "error" not in one], [f"{one['set']}: {one['error']}" for one in failed]


def label(one: dict[str, Any]) -> str:
    """A set of a result by its name and shape."""
    return f"{one['set']} {one['n']}x{one['d']}"


def title(result: dict[str, Any]) -> str:
    """Where and when it was measured, in one line."""
    machine = result["machine"]
    return f"{result['device']}; {machine['cpu']}, {machine['cores']} cores; {result['date']}"


@dataclass(frozen=True)
class Layout:
    """How the results of one command are shown."""

    header: tuple[str, ...]
    left: int
    """How many columns are words."""
    legend: str
    cells: Callable[[dict[str, Any]], tuple[list[tuple[str, ...]], list[str]]]
    """Of a result: rows in the order of the header, and notes."""


FIT = Layout(HEADER, 2, LEGEND, cells)


def terminal(result: dict[str, Any], layout: Layout = FIT) -> Table:
    """For rich's console."""
    rows, notes = layout.cells(result)
    table = Table(title=title(result), caption="\n".join([layout.legend, *notes]), caption_justify="left")
    for i, name in enumerate(layout.header):
        table.add_column(name, justify="left" if i < layout.left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row, end_section=False)
    return table


def markdown(result: dict[str, Any], layout: Layout = FIT) -> str:
    """For the README."""
    rows, notes = layout.cells(result)
    rule = ["---" if i < layout.left else "---:" for i in range(len(layout.header))]
    lines = [f"| {' | '.join(row)} |" for row in (layout.header, rule, *rows)]
    footer = [title(result), layout.legend, *notes]
    return "\n".join([*lines, "", *[f"{line}  " for line in footer]])
