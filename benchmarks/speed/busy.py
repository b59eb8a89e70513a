"""The same fits alone and beside one other busy process: what each solver loses when it has to share the cores.

The other process computes on one thread, wherever the system puts it. A solver that hands each core an equal part of
the work waits for the slowest, so that one busy core of two can double its time. A fit alone and one beside the process
take turns, for each solver in turn.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import command, fit, table
from benchmarks.command import Asked, Command, Parser, Result, add_peers, add_repeats, add_sets
from benchmarks.sets import BUNDLED, HARD, SETS, add_data, load

# It ends by itself where the benchmark was killed.
SPIN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextmanager
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """Another process that computes, on one thread, from the beginning of the block to its end."""
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is about to compute
            yield process
        finally:
            process.kill()


def fit_set(name: str, options: fit.Options) -> dict[str, Any]:
    """A row for each solver and form of its input: what fit.results says of its fits alone and beside the process, and
    how many times as long the latter take."""
    problem = load(name, options.data)
    alone, beside = fit.contestants(problem, options), fit.contestants(problem, options)
    given = fit.rows_of(alone, problem.X)
    for _ in range(options.repeats):
        for quiet, disturbed in zip(alone, beside, strict=True):
            fit.fit(quiet, given, problem, options)
            with busy():
                fit.fit(disturbed, given, problem, options)
    both = zip(fit.results(alone, problem, options), fit.results(beside, problem, options), strict=True)
    rows = [_row(*pair) for pair in both]
    return fit.head(problem, options) | {"rows": rows, "asked": _asked(rows)}


def _row(alone: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    row = {key: alone[key] for key in ("solver", "form")} | {"error": alone["error"] or beside["error"]}
    if row["error"]:
        return row
    row |= {"warm": alone["warm"], "ratio": beside["warm"] / alone["warm"], "alone": alone, "beside": beside}
    return row | {"misses": list(dict.fromkeys([*alone["misses"], *beside["misses"]]))}


def _asked(rows: list[dict[str, Any]]) -> bool | None:
    """Whether ours loses no more than oneDAL; None where one of them has no row."""
    loses = {row["solver"]: row["ratio"] for row in table.best_forms(rows) if not row["error"]}
    return loses["clsvm"] <= loses["onedal"] if {"clsvm", "onedal"} <= loses.keys() else None


HEADER = ("set", "solver", "alone s", "beside s", "times as long", "dual", "violation", "no more than oneDAL")
LEGEND = (
    "medians of the fits after the first; beside: one other process computes on one thread; dual and the larger KKT "
    "violation recomputed in float64; * does not count; notes below"
)


def cells(result: Result) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and the notes on rows marked with *."""
    rows: list[tuple[str, ...]] = []
    measured, notes = table.measured(result)
    for one in measured:
        label, said = table.label(one), table.verdict(one["asked"])
        for row in table.best_forms(one["rows"]):
            name, missed = table.solver(one["set"], row)
            notes += missed
            rows.append((label, name, *(_numbers(row) if not row["error"] else [""] * 5), said))
            label = said = ""
        notes += table.passed_over(one["set"], one["rows"])
    return rows, notes


def _numbers(row: dict[str, Any]) -> list[str]:
    alone, beside = row["alone"], row["beside"]
    violation = max(alone["violation"], beside["violation"])
    seconds = f"{alone['warm']:.3g}", f"{beside['warm']:.3g}"
    return [*seconds, f"{row['ratio']:.2f}", f"{alone['dual']:.8g}", f"{violation:.2e}"]


LAYOUT = table.Layout(HEADER, 2, LEGEND, cells)


def holds(result: Result) -> bool:
    """Whether every fit of ours counts, and loses no more than oneDAL's where that was fitted."""
    for one in result["sets"]:
        ours = [row for row in one.get("rows", ()) if row["solver"] == "clsvm"]
        if not ours or any(row["error"] or row["misses"] for row in ours) or one["asked"] is False:
            return False
    return True


def _arguments(parser: Parser) -> None:
    add_sets(parser, tuple(SETS), list(HARD), f"; {', '.join(HARD)}")
    add_peers(parser)
    add_data(parser, f"none needed for {', '.join(BUNDLED)}")
    add_repeats(parser, 8, "fits of each solver, alone and beside")


def _measure(asked: Asked) -> Result:
    options = fit.Options(tuple(asked.peers), asked.data, asked.repeats, asked.repeats, device=asked.device)
    return command.on_device(asked, {"sets": [command.in_own_process(fit_set, name, options) for name in asked.sets]})


COMMAND = Command(
    "busy",
    "the sets of hard, fitted alone and beside one other busy process",
    _arguments,
    _measure,
    partial(table.terminal, layout=LAYOUT),
    holds,
    partial(table.markdown, layout=LAYOUT),
)
