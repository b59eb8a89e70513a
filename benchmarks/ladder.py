"""A ladder of ways to compute kernel rows, from the naive kernel to clsvm's own, and reductions, each against what the
device can do at most, measured in the same run.

Times are wall times of batches of launches up to the wait for the last one, the best of many rounds in which everything
takes its turn. GFLOP/s count 2 n W d for every rung, a multiply and an add for each feature and pair, so that the rungs
compare; those that sum (x - u)^2 do half as much again. GB/s count X read once and the results written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from benchmarks.ladder_device import Bench, Clock, Peaks
from benchmarks.ladder_extremes import FORMS, Extremes, shapes
from benchmarks.ladder_inner import inner_steps
from benchmarks.ladder_rungs import RUNGS, Matrix, Prepared, Problem

TOLERANCE = 1e-4  # of kernel values, which are at most 1
SLOW = 0.15  # seconds; a rung that takes longer is measured on fewer rows


@dataclass(frozen=True)
class Sizes:
    """What is measured: (W, n) of each group of rungs, n of the sweep at W = 2, numbers reduced, seconds of a part."""

    d: int
    groups: tuple[tuple[int, int], ...]
    sweep: tuple[int, ...]
    reduced: tuple[int, ...]
    read: int
    """Numbers that the read peak reads: far more than any cache holds."""
    chain: int
    """Multiply-adds of a chain of the arithmetic peak."""
    seconds: float
    inner: tuple[int, ...]
    """Working sets whose inner steps are timed."""


SIZES = {
    "small": Sizes(33, ((2, 300), (19, 300)), (64, 256), (1 << 10, 1 << 16), 1 << 18, 64, 0.0, (32,)),
    "full": Sizes(
        784,
        ((2, 102400), (16, 102400), (512, 20480)),
        tuple(1 << k for k in range(10, 18)),
        tuple(1 << k for k in range(10, 27, 2)),
        1 << 27,
        1 << 15,
        40.0,
        (64, 128, 256, 512, 1024),
    ),
}


def run(device: Any, sizes: Sizes) -> dict[str, Any]:
    """Measures it all on ``device``; the record that `table` and `plot` take."""
    with Bench(device) as bench:
        peaks = Peaks(bench, sizes.read, sizes.chain)
        groups = [_group(bench, sizes, W, n, peaks) for W, n in sizes.groups]
        reductions = _reductions(bench, sizes, peaks)
        best = max(groups, key=lambda group: group["peaks"]["fma_gflops"])["peaks"]
        fastest = max((*groups, reductions), key=lambda part: part["peaks"]["read_gbs"])["peaks"]
        return {
            "kind": "ladder",
            "device": str(bench.stream.info),
            "profile": bench.profile.name,
            "lanes": bench.lanes,
            "what": __doc__,
            "peaks": {name: (fastest if name.startswith("read") else best)[name] for name in best},
            "groups": groups,
            "sweep": [_sweep(bench, sizes, n) for n in sizes.sweep],
            "reductions": reductions,
            "inner": inner_steps(device, 16 * max(sizes.inner), sizes.inner),
        }


def _group(bench: Bench, sizes: Sizes, W: int, n: int, peaks: Peaks) -> dict[str, Any]:
    """All rungs at one W and n, and the peaks that took turns with them, so that shares compare like with like."""
    with bench.section() as bench:
        problem = Problem(Matrix(bench, n, sizes.d), W)
        rungs, prepared = _rungs(problem)
        clock = Clock(sizes.seconds)
        launches = {name: _launch(one, rows) for name, (one, rows) in prepared.items()}
        clock.run(bench, peaks.launches | launches)
        rates = peaks.rates(clock)
        for row in rungs:
            if not row["reason"]:
                one, m = prepared[row["name"]]
                seconds = clock.best[row["name"]]
                row |= {
                    "rows": m,
                    "seconds": seconds,
                    "gflops": 2e-9 * m * W * sizes.d / seconds,
                    "gbs": 4e-9 * m * (sizes.d + W) / seconds,
                    "error": _checked(bench, problem, one, m),
                }
                row["right"] = row["error"] <= TOLERANCE
                row["of_bandwidth"] = row["gbs"] / rates["read_gbs"]
                row["of_arithmetic"] = row["gflops"] / rates["fma_gflops"]
                row["of_bound"] = max(row["of_bandwidth"], row["of_arithmetic"])
    return {"W": W, "n": n, "d": sizes.d, "block": problem.block, "peaks": rates, "rungs": rungs}


def _rungs(problem: Problem) -> tuple[list[dict[str, Any]], dict[str, tuple[Prepared, int]]]:
    """A record for each rung, and those that the device can run with the rows that they are measured on."""
    bench, n = problem.bench, problem.matrix.n
    records, prepared = [], {}
    for rung in RUNGS:
        record: dict[str, Any] = {"name": rung.name, "what": rung.what, "reason": rung.lacks(problem)}
        records.append(record)
        if record["reason"]:
            continue
        try:
            one = rung.prepare(problem)
            prepared[rung.name] = one, _affordable(bench, one, n)
        except Exception as error:  # a driver's refusal is a result, too, and the other rungs still count
            first = str(error).strip().partition("\n")[0]
            record["reason"] = f"{type(error).__name__}: {first}"
    return records, prepared


def _affordable(bench: Bench, one: Prepared, n: int) -> int:
    """Rows that a launch of the rung gets through in SLOW seconds, by a trial with a few."""
    few = min(n, 1024)
    if not one.partial or few == n:
        one.launch(n)
        bench.stream.finish()
        return n
    clock = Clock(0.0, rounds=1, batch=0.0)
    clock.run(bench, {"few": lambda: one.launch(few)})
    return min(n, max(few, int(few * SLOW / clock.best["few"])))


def _checked(bench: Bench, problem: Problem, one: Prepared, m: int) -> float:
    """The largest error of a fresh launch."""
    one.clear()
    one.launch(m)
    bench.stream.finish()
    return problem.error(one.read, m)


def _launch(one: Prepared, rows: int) -> Any:
    return lambda: one.launch(rows)


def _sweep(bench: Bench, sizes: Sizes, n: int) -> dict[str, Any]:
    """GFLOP/s of every rung at W = 2 and this n; None where it cannot run or is wrong."""
    with bench.section() as bench:
        problem = Problem(Matrix(bench, n, sizes.d), 2)
        records, prepared = _rungs(problem)
        clock = Clock(sizes.seconds / 10)
        clock.run(bench, {name: _launch(one, rows) for name, (one, rows) in prepared.items()})
        rates: dict[str, float | None] = {record["name"]: None for record in records}
        for name, (one, rows) in prepared.items():
            if _checked(bench, problem, one, rows) <= TOLERANCE:
                rates[name] = 4e-9 * rows * sizes.d / clock.best[name]
    return {"n": n, "gflops": rates}


def _reductions(bench: Bench, sizes: Sizes, peaks: Peaks) -> dict[str, Any]:
    """Every form at every size in its best shape, and the peaks that took turns with them."""
    most = max(sizes.reduced)
    with bench.section() as bench:
        numbers = np.random.default_rng(0).standard_normal(most, np.float32)
        x = bench.stream.upload(numbers)
        forms = {form.name: [Extremes(bench, form, most, shape) for shape in shapes(bench)] for form in FORMS}
        launches = {
            f"{name} {n} {one.shape}": one.launch(x, n) for n in sizes.reduced for name in forms for one in forms[name]
        }
        clock = Clock(sizes.seconds)
        clock.run(bench, peaks.launches | launches)
        rates = peaks.rates(clock)
        rows = []
        for n in sizes.reduced:
            for name, tried in forms.items():
                one = min(tried, key=lambda one: clock.best[f"{name} {n} {one.shape}"])
                launches[f"{name} {n} {one.shape}"]()
                seconds, right = clock.best[f"{name} {n} {one.shape}"], one.right(numbers[:n])
                row = {"n": n, "name": name, "lanes": one.shape.lanes, "seconds": seconds, "right": right}
                row["gbs"] = 4e-9 * n / seconds
                rows.append(row | {"of_bandwidth": row["gbs"] / rates["read_gbs"]})
    return {"peaks": rates, "rows": rows}


def all_right(result: dict[str, Any]) -> bool:
    """Whether everything that ran computed what NumPy computes."""
    rungs = [row for group in result["groups"] for row in group["rungs"] if not row["reason"]]
    return all(row["right"] for row in (*rungs, *result["reductions"]["rows"]))


RUNG_HEADER = ("W", "n", "rung", "GFLOP/s", "GB/s", "% of bandwidth", "% of multiply-adds", "max error")
LEGEND = (
    "GFLOP/s of 2 n W d, GB/s of X read and K written once; shares of the peaks that took turns with the rungs; "
    "a rung with * is wrong and does not count"
)


def _peaks(part: dict[str, Any]) -> str:
    return f"{part['peaks']['fma_gflops']:.0f} GFLOP/s, {part['peaks']['read_gbs']:.1f} GB/s"


def title(result: dict[str, Any]) -> str:
    """Where and when it was measured, and the best of the peaks."""
    machine = result["machine"]
    where = f"{result['device']}; {machine['cpu']}, {machine['cores']} cores; {result['date']}"
    return f"{where}; peaks {_peaks(result)}"


def rung_cells(result: dict[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rungs' rows in the order of RUNG_HEADER, and notes: what did not run, and what ran on fewer rows."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for group in result["groups"]:
        label = f"{group['W']}", f"{group['n']}"
        for row in group["rungs"]:
            if row["reason"]:
                rows.append((*label, row["name"], "-", "-", "-", "-", "-"))
                notes.append(f"W = {group['W']}, {row['name']}: {row['reason']}")
            else:
                if row["rows"] < group["n"]:
                    notes.append(f"W = {group['W']}, {row['name']}: measured on {row['rows']} rows")
                rates = f"{row['gflops']:.1f}", f"{row['gbs']:.1f}"
                shares = f"{100 * row['of_bandwidth']:.1f}", f"{100 * row['of_arithmetic']:.1f}"
                rows.append((*label, row["name"] + "*" * (not row["right"]), *rates, *shares, f"{row['error']:.0e}"))
            label = "", ""
        notes.append(
            f"W = {group['W']}: {group['block']} working rows share a pass over X in all rungs but clsvm's; "
            f"peaks meanwhile {_peaks(group)}"
        )
    return rows, notes


def reduction_cells(result: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the reductions: GB/s and in brackets the share of the read bandwidth."""
    names = list(dict.fromkeys(row["name"] for row in result["reductions"]["rows"]))
    cells: dict[int, dict[str, str]] = {}
    for row in result["reductions"]["rows"]:
        text = f"{row['gbs']:.1f} ({100 * row['of_bandwidth']:.0f} %)" + "*" * (not row["right"])
        cells.setdefault(row["n"], {})[row["name"]] = text
    return ("numbers", *names), [(f"2^{np.log2(n):g}", *(line[name] for name in names)) for n, line in cells.items()]


INNER_HEADER = ("working set", "steps", "working sets", "microseconds a step")


def inner_cells(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows in the order of INNER_HEADER."""
    figures = ((row["W"], row["steps"], row["working_sets"]) for row in result["inner"])
    return [(*map(str, one), f"{row['microseconds']:.3f}") for one, row in zip(figures, result["inner"], strict=True)]


def terminal(result: dict[str, Any]) -> Group:
    """For rich's console."""
    rungs, notes = rung_cells(result)
    header, reductions = reduction_cells(result)
    tables = []
    for name, head, lines, left in (
        (title(result), RUNG_HEADER, rungs, "rung"),
        (
            f"reductions, GB/s and share of the bandwidth; peaks meanwhile {_peaks(result['reductions'])}",
            header,
            reductions,
            "",
        ),
        ("inner steps of the solver", INNER_HEADER, inner_cells(result), ""),
    ):
        one = Table(title=name)
        for column in head:
            one.add_column(column, justify="left" if column == left else "right", no_wrap=True)
        for line in lines:
            one.add_row(*line)
        tables.append(one)
    return Group(tables[0], "\n".join([LEGEND, *notes]), *tables[1:])


def markdown(result: dict[str, Any]) -> str:
    """The same for a page of text."""
    rungs, notes = rung_cells(result)
    header, reductions = reduction_cells(result)

    def lines(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
        return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]

    footer = [f"{line}  " for line in (title(result), LEGEND, *notes)]
    inner = lines(INNER_HEADER, inner_cells(result))
    return "\n".join([*lines(RUNG_HEADER, rungs), "", *footer, "", *lines(header, reductions), "", *inner])
