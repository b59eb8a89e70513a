"""The results of `python -m benchmarks tasks` as a table."""

from __future__ import annotations

from typing import Any

from benchmarks.table import Layout
from benchmarks.tasks import DUAL, MARGIN

HEADER = (
    "set",
    "task",
    "form",
    "weights",
    "dual",
    "off by",
    "worst pair",
    "violation",
    "predicted alike",
    "score",
    "SVs",
    "seconds",
)
LEGEND = (
    "pairs of figures: ours / scikit-learn's; off by: of its dual objective, summed over pairs of classes, and of the "
    "worst pair; dual and KKT violation recomputed in float64; predicted alike: of the test rows that are farther than "
    f"{MARGIN:g} from a boundary; score: accuracy, R^2, or the share inside; weights: of rows and classes "
    "(scikit-learn's NuSVC does not heed those of classes and gets them as weights of rows); a row with * does not hold"
)


def cells(result: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and the notes on rows marked with *."""
    rows: list[tuple[str, ...]] = []
    remarks: list[str] = []
    for one in result["sets"]:
        if "error" in one:
            rows.append((one["set"], "*", *[""] * (len(HEADER) - 2)))
            remarks.append(f"{one['set']}: {one['error']}")
        if one.get("remark"):
            remarks.append(f"{one['set']}: {one['remark']}")
        before = None
        for row in one.get("rows", []):
            missed = [row["error"]] if row["error"] else row["misses"]
            label = f"{one['set']} {row['n']}x{row['d']}"
            words = (row["task"] + "*" * bool(missed), row["form"], "yes" if row["weights"] == "weighted" else "")
            noted = [*missed, *row.get("notes", [])]
            remarks += [f"{one['set']}, {row['task']}, {row['form']}, {row['weights']}: {note}" for note in noted]
            figures = [""] * (len(HEADER) - 4) if row["error"] else _figures(row)
            rows.append((label if label != before else "", *words, *figures))
            before = label
    every = [row for one in result["sets"] for row in one.get("rows", [])]
    held = [row for row in every if not (row["error"] or row["misses"])]
    higher = sum(row["dual_difference"] > DUAL for row in held)
    summary = f"{len(held)} of {len(every)} rows hold"
    above = f"{higher} of them with a dual more than {DUAL:g} above scikit-learn's"
    return rows, [f"{summary}, {above}", *remarks]


def _figures(row: dict[str, Any]) -> list[str]:
    alike = f"{100 * row['same']:.2f} % of {row['compared']:.0f}" if "same" in row else ""
    return [
        f"{row['dual']:.8g}",
        f"{row['dual_difference']:+.1e}",
        f"{row['worst_pair']:+.1e}",
        f"{row['violation']:.2e} / {row['peer_violation']:.2e}",
        alike,
        f"{row['score']:.4f} / {row['peer_score']:.4f}",
        f"{row['n_support']} / {row['peer_n_support']}",
        f"{row['seconds']:.2g} / {row['peer_seconds']:.2g}",
    ]


LAYOUT = Layout(HEADER, 4, LEGEND, cells)
