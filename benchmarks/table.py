"""Results as tables in Markdown, whose cells are made by format strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Column = tuple[str, str | Callable[[Row], str]]
"""A title, and a format string or a function that makes the cell from a row."""
CHECKED = "dual and KKT violation recomputed in float64; a row with * does not count; notes below"


def _seconds(row: Row) -> str:
    return failure(row) if row.get("too_long") else f"{row['took']:.3g}"


SOLVED: tuple[Column, ...] = (
    ("set", "{label}"), ("solver", "{named}"), ("cold s", "{cold:.3g}"), ("warm s", _seconds),
    ("times ours", "{times:.2f}"),
)  # fmt: skip
CERTIFIED: tuple[Column, ...] = ("dual", "{dual:.8g}"), ("violation", "{violation:.2e}")


def percent(title: str, key: str, older: str = "") -> Column:
    """Return a column of a share in percent. older: the key of the share in older results."""
    return title, lambda row: f"{100 * row[key if key in row else older]:.2f}"


@dataclass
class Shown:
    """A table of cells. left: the number of columns that are aligned to the left."""

    header: Sequence[str]
    rows: list[list[str]]
    title: str = ""
    notes: list[str] = field(default_factory=list)
    left: int = 1

    def markdown(self) -> str:
        """Return the table for a page or a terminal, with slashes for the bars within cells."""
        rule = ["---" if i < self.left else "---:" for i in range(len(self.header))]
        cells = [[cell.replace("|", "/") for cell in row] for row in (self.header, rule, *self.rows)]
        wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
        aligned = [[f"{cell:{'<' if i < self.left else '>'}{wide[i]}}" for i, cell in enumerate(row)] for row in cells]
        lines = [f"| {' | '.join(row)} |" for row in aligned]
        words = [f"{line}  " for text in (self.title, *self.notes) for line in text.splitlines()]
        return "\n".join([*lines, *([""] if words else []), *words])


def shown(title: str | Row, columns: Sequence[Column], rows: Sequence[Row], *notes: str, left: int = 1) -> Shown:
    """Return a table of rows, whose first cell is empty if it repeats the cell above.

    If the title is a result, the title of the table is the result's device, processor and date.
    """
    cells = [[cell(row, how) for _, how in columns] for row in rows]
    for line, above in reversed([*zip(cells[1:], cells, strict=False)]):
        line[0] = "" if line[0] == above[0] else line[0]
    title = title if isinstance(title, str) else where(title)
    return Shown([name for name, _ in columns], cells, title, [note for note in notes if note], left)


def cell(row: Row, how: str | Callable[[Row], str]) -> str:
    """Return the text of a cell, or "" if the row lacks a value."""
    try:
        return how.format_map(row) if isinstance(how, str) else how(row)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return ""


def where(result: Row) -> str:
    """Return a result's device, processor and date in one line."""
    machine = result["machine"]
    return f"{result['device']}; {machine['cpu']}, {machine['cores']} cores; {result['date']}"


def label(one: Row) -> str:
    """Return a data set's name and shape."""
    return f"{one['set']} {one['n']}x{one['d']}" + (f", h = {one['h']}" if one.get("h") else "")


def named(row: Row) -> str:
    """Return the solver of a row and the form of the rows that it got."""
    return f"{row['solver']} ({row['form']})" if row.get("form") else str(row["solver"])


def starred(row: Row) -> str:
    """Return ``named`` with * if the row does not count."""
    return named(row) + "*" * bool(row.get("misses") or (failure(row) and not row.get("too_long")))


def failure(row: Row) -> str:
    """Return why a row has no figures, or an empty string."""
    return str(row.get("error") or row.get("failed") or "")


def took(row: Row) -> float:
    """Return the seconds by which the forms of a solver's rows are compared."""
    return float(row["warm"] if "warm" in row else row.get("seconds", 0.0))


def best_forms(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each solver: the fastest form whose solution counts, or the fastest form if none counts."""
    chosen: dict[str, Row] = {}

    def rank(row: Row) -> tuple[bool, bool, float]:
        return bool(failure(row)), bool(row.get("misses")), took(row)

    for row in rows:
        if row["solver"] not in chosen or rank(row) < rank(chosen[row["solver"]]):
            chosen[row["solver"]] = row
    return list(chosen.values())


def passed_over(name: str, rows: Sequence[Row]) -> list[str]:
    """Return notes on the forms with which a solver is faster, but whose solution does not count."""
    return [
        f"{name}, {named(row)}: {took(row):.3g} s, does not count: {'; '.join(row['misses'])}"
        for best in best_forms(rows)
        for row in rows
        if row["solver"] == best["solver"] and row.get("misses") and not best.get("misses") and took(row) < took(best)
    ]


def compared(ones: Sequence[Row], head: Callable[[Row], str] = label) -> tuple[list[Row], list[str]]:
    """Return the best rows of all data sets, and notes on the rows that do not count.

    Each row gets its data set's record as ``one``, its label, its solver's name, and ``times``: its seconds over
    clsvm's.
    """
    rows: list[Row] = []
    notes: list[str] = []
    for one in ones:
        ours = next((took(row) for row in one["rows"] if row["solver"] == "clsvm" and not failure(row)), None)
        for row in best_forms(one["rows"]):
            more = {"one": one, "label": head(one), "named": starred(row), "took": None if failure(row) else took(row)}
            more["times"] = took(row) / ours if ours and row["solver"] != "clsvm" and not failure(row) else None
            rows.append(row | more)
            words = [failure(row)] * (not row.get("too_long")) if failure(row) else row.get("misses", [])
            notes += [f"{one['set']}, {named(row)}: {note}" for note in (*words, *row.get("notes", []))]
        notes += passed_over(one["set"], one["rows"])
    return rows, notes


def ours_hold(result: Row) -> bool:
    """Return whether each data set has a row of clsvm that counts."""
    ours = [[row for row in one["rows"] if row["solver"] == "clsvm"] for one in result["sets"]]
    return all(rows and not any(failure(row) or row.get("misses") for row in rows) for rows in ours)
