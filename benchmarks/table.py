"""Results as tables: cells by format strings, as Markdown and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Column = tuple[str, str | Callable[[Row], str]]
"""A title, and a format string or a function that makes the cell from a row. Columns of numbers stand to the right."""
CHECKED = "dual and KKT violation recomputed in float64; a row with * does not count; notes below"


def _seconds(row: Row) -> str:
    return failure(row) if row.get("too_long") else f"{row['took']:.3g}"


SOLVED: tuple[Column, ...] = (
    ("set", "{label}"), ("solver", "{named}"), ("cold s", "{cold:.3g}"), ("warm s", _seconds),
    ("times ours", "{times:.2f}"),
)  # fmt: skip
CERTIFIED: tuple[Column, ...] = ("dual", "{dual:.8g}"), ("violation", "{violation:.2e}")


def percent(title: str, key: str, older: str = "") -> Column:
    """Return a column of a share in percent. older: its key in older results."""
    return title, lambda row: f"{100 * row[key if key in row else older]:.2f}"


@dataclass
class Shown:
    """A table of cells. left: the number of columns of words."""

    header: Sequence[str]
    rows: list[list[str]]
    title: str = ""
    notes: list[str] = field(default_factory=list)
    left: int = 1

    def markdown(self) -> str:
        """Return the table for a page or a terminal; a bar within a cell becomes a slash."""
        rule = ["---" if i < self.left else "---:" for i in range(len(self.header))]
        cells = [[cell.replace("|", "/") for cell in row] for row in (self.header, rule, *self.rows)]
        wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
        aligned = [[f"{cell:{'<' if i < self.left else '>'}{wide[i]}}" for i, cell in enumerate(row)] for row in cells]
        lines = [f"| {' | '.join(row)} |" for row in aligned]
        words = [f"{line}  " for text in (self.title, *self.notes) for line in text.splitlines()]
        return "\n".join([*lines, *([""] if words else []), *words])


def shown(title: str | Row, columns: Sequence[Column], rows: Sequence[Row], *notes: str, left: int = 1) -> Shown:
    """Return a table of rows; a first cell that repeats the one above is left empty.

    A result in place of a title gives its device, machine and date.
    """
    cells = [[cell(row, how) for _, how in columns] for row in rows]
    for line, above in reversed([*zip(cells[1:], cells, strict=False)]):
        line[0] = "" if line[0] == above[0] else line[0]
    title = title if isinstance(title, str) else where(title)
    return Shown([name for name, _ in columns], cells, title, [note for note in notes if note], left)


def cell(row: Row, how: str | Callable[[Row], str]) -> str:
    """Return the text of a cell; "" where the row lacks a value."""
    try:
        return how.format_map(row) if isinstance(how, str) else how(row)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError):
        return ""


def where(result: Row) -> str:
    """Return device, processor and date in one line."""
    machine = result["machine"]
    return f"{result['device']}; {machine['cpu']}, {machine['cores']} cores; {result['date']}"


def label(one: Row) -> str:
    """Return a set's name and shape."""
    return f"{one['set']} {one['n']}x{one['d']}" + (f", h = {one['h']}" if one.get("h") else "")


def named(row: Row) -> str:
    """Return the solver of a row and the form of its input."""
    return f"{row['solver']} ({row['form']})" if row.get("form") else str(row["solver"])


def starred(row: Row) -> str:
    """Return ``named`` with * where the row does not count."""
    return named(row) + "*" * bool(row.get("misses") or (failure(row) and not row.get("too_long")))


def failure(row: Row) -> str:
    """Return why there is no figure, or an empty string."""
    return str(row.get("error") or row.get("failed") or "")


def took(row: Row) -> float:
    """Return the seconds by which the forms of a solver's input are compared."""
    return float(row["warm"] if "warm" in row else row.get("seconds", 0.0))


def best_forms(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each solver: its fastest form whose solution counts, or the fastest where none counts."""
    chosen: dict[str, Row] = {}

    def rank(row: Row) -> tuple[bool, bool, float]:
        return bool(failure(row)), bool(row.get("misses")), took(row)

    for row in rows:
        if row["solver"] not in chosen or rank(row) < rank(chosen[row["solver"]]):
            chosen[row["solver"]] = row
    return list(chosen.values())


def passed_over(name: str, rows: Sequence[Row]) -> list[str]:
    """Return notes on forms with which a solver is faster, but whose solution does not count."""
    return [
        f"{name}, {named(row)}: {took(row):.3g} s, does not count: {'; '.join(row['misses'])}"
        for best in best_forms(rows)
        for row in rows
        if row["solver"] == best["solver"] and row.get("misses") and not best.get("misses") and took(row) < took(best)
    ]


def compared(ones: Sequence[Row], head: Callable[[Row], str] = label) -> tuple[list[Row], list[str]]:
    """Return the best rows of all sets and the notes on what does not count.

    Each row gets its set's record as ``one``, its label, its solver's name, and ``times``: its seconds over ours.
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
    """Return whether each set has a row of ours that counts."""
    ours = [[row for row in one["rows"] if row["solver"] == "clsvm"] for one in result["sets"]]
    return all(rows and not any(failure(row) or row.get("misses") for row in rows) for rows in ours)


def library() -> Any:
    """Return matplotlib.pyplot without a display; raise SystemExit where it is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        from clsvm.errors import install

        raise SystemExit(f"a picture needs matplotlib: {install('plot')}") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plot

    return plot


@contextmanager
def picture(result: Row, path: Path, panels: int = 1) -> Iterator[list[Any]]:
    """Yield the axes of some panels; write them with grids and legends to ``path`` at the end."""
    plot = library()
    figure, axes = plot.subplots(1, panels, figsize=(6.5 * panels, 5), layout="constrained", squeeze=False)
    yield list(axes[0])
    for one in axes[0]:
        one.grid(alpha=0.3, which="both")
        one.legend(fontsize=9)
    figure.suptitle(f"{result['device']}, {result['date']}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plot.close(figure)
