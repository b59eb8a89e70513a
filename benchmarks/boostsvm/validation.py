"""Table 5: two-fold cross-validation by ours and LIBSVM's machines on the same folds."""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from benchmarks import table
from benchmarks.boostsvm import cases, paper
from benchmarks.boostsvm.machines import FOLDS, Contestant, contestants
from benchmarks.boostsvm.shared import Options, Part, failed, label, measured, shown
from clsvm.opencl import devices

ACCURACY = 0.002  # that ours may differ by from LIBSVM's
ERROR = 0.01  # the same for a mean squared error, of its size


def measure(name: str, options: Options) -> dict[str, Any]:
    """Return a row for each solver and form of its input: score, the mean over the folds, and all of them.

    The score is the accuracy, or the mean squared error of a regression.
    """
    case = options.load(name)
    peers = tuple(dict.fromkeys(("libsvm", *options.peers)))
    with contestants(case, options, peers) as made:
        rows = [_row(one) for one in made]
    found = {"device": str(devices.find(options.device)), "rows": rows}
    one = case.head() | found | {"score": "accuracy" if case.classes else "mean squared error"}
    theirs = next((row["value"] for row in rows if row["solver"] == "libsvm" and "value" in row), None)
    for row in rows:
        off = 0.0 if theirs is None or "value" not in row else _off(one, row["value"], theirs)
        row["misses"] = [f"score {row['value']:.5f}, LIBSVM's {theirs:.5f}"] * (off > 1)
    return one


def _row(one: Contestant) -> dict[str, Any]:
    scores = []
    for i in range(FOLDS):
        if (answer := one.ask(i)) is not None:
            one.seconds.append(answer[0])
            scores.append(answer[1])
    row = one.row()
    return row | ({} if one.failed else {"seconds": sum(one.seconds), "value": statistics.mean(scores), "all": scores})


def differs(one: dict[str, Any]) -> float | None:
    """How far our score is from LIBSVM's, of what is allowed; None where one of them has none."""
    values = {row["solver"]: row.get("value") for row in table.best_forms(one["rows"])}
    ours, theirs = values["clsvm"], values.get("libsvm")
    return None if ours is None or theirs is None else _off(one, ours, theirs)


def _off(one: dict[str, Any], value: float, theirs: float) -> float:
    """Return how far a score is from LIBSVM's, relative to the allowed difference."""
    return abs(value - theirs) / (ACCURACY if one["score"] == "accuracy" else ERROR * theirs)


def holds(result: dict[str, Any]) -> bool:
    """Whether ours has a score for each set, the same as LIBSVM's where that ended."""
    ones = measured(result)
    ended = not any(one["rows"][0]["failed"] for one in ones)
    return not failed(result) and ended and all((differs(one) or 0.0) <= 1 for one in ones)


def show(result: dict[str, Any]) -> Table:
    """A row for each solver."""
    rows, notes = [], []
    for one in measured(result):
        head, beside = label(one), f"{paper.TABLE_5[one['set']]:g} %" if one["set"] in paper.TABLE_5 else ""
        notes += table.passed_over(label(one), one["rows"])
        for row in table.best_forms(one["rows"]):
            figures = ["", row["failed"]]
            if "value" in row:
                value = f"{100 * row['value']:.2f} %" if one["score"] == "accuracy" else f"{row['value']:.5f}"
                figures = [f"{row['seconds']:.3g}", value]
            rows.append([head, table.named(row), *figures, beside])
            head = beside = ""
    words = (
        "s: both fits; accuracy in % or mean squared error, mean of two folds\n"
        "the paper's accuracy is of the sets themselves; synthetic ones have 5 % of noise"
    )
    return shown(result, "\n".join([words, *notes]), ("set", "solver", "s", "score", "paper's"), 2, rows)


TABLE_5 = Part("two-fold cross-validation beside LIBSVM", cases.SETS, measure, show, holds)
