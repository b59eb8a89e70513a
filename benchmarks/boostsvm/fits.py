"""Table 2: seconds to train, ours and the peers', with every solution recomputed in float64.

What cannot run here has an estimate: the multiply-adds that a fit is expected to take, over the rate of multiply-adds
of the measured one. A fit computes kernel rows in proportion to its rows, and each takes as many multiply-adds as the
set has entries. C and gamma are those of the measured fit, for epsilon too. An estimate from few rows is rough: what a
fit does besides products is then a large part of its time.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks import table
from benchmarks.boostsvm import cases, paper
from benchmarks.boostsvm.cases import Case
from benchmarks.boostsvm.machines import TOL, contestants, in_turns, judge, standing
from benchmarks.boostsvm.shapes import SHAPES
from benchmarks.boostsvm.shared import Options, Part, failed, label, measured, shown
from clsvm.opencl import devices

STANDS_FOR = {"gisette": "epsilon", "news20_bydate": "news20.binary"}  # whose rate an estimate takes


def measure(name: str, options: Options) -> dict[str, Any]:
    """Return a row for each solver and form of its input, and estimates.

    A row has the seconds, the standing of the solution and what that misses.
    """
    case, rows = options.load(name), []
    with contestants(case, options, options.peers) as made:
        in_turns(made)
        for one in made:
            row, solution = one.row(), one.ask("model")
            if solution is not None:
                row |= standing(case, solution)
                row |= {"n_support": len(solution.support_), "report": solution.report}
            rows.append(row)
    judge(rows)
    found = {"device": str(devices.find(options.device)), "tol": TOL, "rows": rows}
    return case.head() | found | {"estimates": estimates(case, rows[0])}


def estimates(case: Case, ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Our seconds on the paper's set of the same name, and on the one that this set stands for."""
    if "seconds" not in ours or "report" not in ours:
        return []
    n, d = case.X.shape
    computed, nnz = ours["report"]["rows_computed"], case.nnz
    rate = computed * nnz / ours["seconds"]
    wanted = []
    if case.name in SHAPES and SHAPES[case.name].paper_n > n:
        wanted.append((case.name, SHAPES[case.name].paper_n, d, nnz / (n * d)))
    if case.name in STANDS_FOR:
        other = STANDS_FOR[case.name]
        wanted.append((other, *paper.ELSEWHERE[other]))
    return [
        {
            "set": other,
            "n": rows,
            "d": columns,
            "multiply_adds": computed * rows / n * rows * columns * density,
            "rate": rate,
            "seconds": computed * rows / n * rows * columns * density / rate,
        }
        for other, rows, columns, density in wanted
    ]


def holds(result: dict[str, Any]) -> bool:
    """Whether each fit of ours ended within the limit with a solution that counts."""
    ours = [one["rows"][0] for one in measured(result)]
    return not failed(result) and not any(row["failed"] or row["misses"] for row in ours)


def show(result: dict[str, Any]) -> Table:
    """A row for each solver, the estimates, and the paper's seconds."""
    rows, notes = [], []
    for one in measured(result):
        ours, head, beside = one["rows"][0].get("seconds"), label(one), _paper(one["set"])
        for row in table.best_forms(one["rows"]):
            rows.append([head, table.named(row), *_cells(row, ours), beside])
            head = beside = ""
            notes += [f"{label(one)}, {table.named(row)}: {words}" for words in row.get("misses", [])]
        notes += table.passed_over(label(one), one["rows"])
        for other in one["estimates"]:
            cells = ["", f"{other['seconds']:.3g}", *[""] * 4]
            rows.append([f"{other['set']} {other['n']}x{other['d']}", "estimate", *cells, _paper(other["set"])])
    words = (
        "s: median after the first fit; dual and KKT violation recomputed in float64; * does not count\n"
        "estimate: not measured; the multiply-adds expected of a fit over the rate of those of the row above\n"
        f"paper's s: {' / '.join(paper.SOLVERS)}, on an i9-10900K and an RTX 3090, on the sets themselves"
    )
    heads = "set", "solver", "cold s", "s", "times ours", "dual", "violation", "SVs", "paper's s"
    return shown(result, "\n".join([words, *notes]), heads, 2, rows)


def _cells(row: dict[str, Any], ours: float | None) -> list[str]:
    if "seconds" not in row:
        return ["", row["failed"], *[""] * 4]
    times = "" if row["solver"] == "clsvm" or ours is None else f"{row['seconds'] / ours:.2f}"
    seconds = f"{row['cold']:.3g}", f"{row['seconds']:.3g}" + "*" * bool(row.get("misses")), times
    if "dual" not in row:
        return [*seconds, row["failed"], "", ""]
    return [*seconds, f"{row['dual']:.8g}", f"{row['violation']:.2e}", str(row["n_support"])]


def _paper(name: str) -> str:
    return " / ".join("-" if one is None else f"{one:g}" for one in paper.TABLE_2.get(name, ()))


TABLE_2 = Part("seconds to train beside the peers", cases.SETS, measure, show, holds, repeats=3)
