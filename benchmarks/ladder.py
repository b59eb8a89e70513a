"""A ladder of ways to compute kernel rows, from the naive kernel to clsvm's own, and reductions, each against what the
device can do at most, measured in the same run.

Times are wall times of batches of launches up to the wait for the last one, the best of many rounds in which everything
takes its turn. GFLOP/s count 2 n W d for every rung, a multiply and an add for each feature and pair, so that the rungs
compare; those that sum (x - u)^2 do half as much again. GB/s count X read once and the results written once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from benchmarks import table
from benchmarks.bench import TOLERANCE, Bench, Clock, Peaks
from benchmarks.command import PLOT, Asked, Command, Part, option
from benchmarks.rungs import FORMS, RUNGS, Extremes, Problem, Ready, shapes
from benchmarks.table import Row, Shown, picture, shown
from clsvm import SVC

SLOW = 0.15  # seconds; a rung that takes longer is measured on fewer rows


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    groups: (W, n) of each group of rungs. sweep: n at W = 2. reduced: numbers of a reduction. read: numbers that the
    read peak reads, far more than any cache holds. chain: multiply-adds of a chain of the arithmetic peak.
    seconds: of a part. inner: working sets whose inner steps are timed.
    """

    d: int
    groups: tuple[tuple[int, int], ...]
    sweep: tuple[int, ...]
    reduced: tuple[int, ...]
    read: int
    chain: int
    seconds: float
    inner: tuple[int, ...]


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


def measure(asked: Asked) -> Row:
    """Measure rungs, reductions and inner steps on a device."""
    sizes = SIZES[asked.sizes]
    with Bench(asked.device) as bench:
        peaks = Peaks(bench, sizes.read, sizes.chain)
        groups = [_group(bench, sizes, W, n, peaks) for W, n in sizes.groups]
        reductions = _reductions(bench, sizes, peaks)
        best = max(groups, key=lambda group: group["peaks"]["fma_gflops"])["peaks"]
        fastest = max((*groups, reductions), key=lambda part: part["peaks"]["read_gbs"])["peaks"]
        return {
            "profile": bench.profile.name,
            "lanes": bench.lanes,
            "peaks": {name: (fastest if name.startswith("read") else best)[name] for name in best},
            "groups": groups,
            "sweep": [_sweep(bench, sizes, n) for n in sizes.sweep],
            "reductions": reductions,
            "inner": [inner_steps(asked.device, 16 * max(sizes.inner), W) for W in sizes.inner],
        }


def _group(bench: Bench, sizes: Sizes, W: int, n: int, peaks: Peaks) -> Row:
    """Measure all rungs at one W and n, and the peaks that take turns with them, so that shares compare."""
    with bench.section() as part:
        problem = Problem(part, n, sizes.d, W)
        rungs, prepared = _rungs(problem)
        clock = Clock(sizes.seconds)
        clock.run(part, peaks.launches | {name: partial(one.launch, rows) for name, (one, rows) in prepared.items()})
        rates = peaks.rates(clock)
        for row in rungs:
            if not row["reason"]:
                one, m = prepared[row["name"]]
                seconds = clock.best[row["name"]]
                flops, nbytes = 2e-9 * m * W * sizes.d, 4e-9 * m * (sizes.d + W)
                row |= {"rows": m, "seconds": seconds, "gflops": flops / seconds, "gbs": nbytes / seconds}
                row["error"] = _checked(part, problem, one, m)
                row["right"] = row["error"] <= TOLERANCE
                row["of_bandwidth"] = row["gbs"] / rates["read_gbs"]
                row["of_arithmetic"] = row["gflops"] / rates["fma_gflops"]
    return {"W": W, "n": n, "d": sizes.d, "block": problem.block, "peaks": rates, "rungs": rungs}


def _rungs(problem: Problem) -> tuple[list[Row], dict[str, tuple[Ready, int]]]:
    """Return a record for each rung, and those that the device can run with the rows that they are measured on."""
    records, prepared = [], {}
    for rung in RUNGS:
        record: Row = {"name": rung.name, "what": rung.what, "reason": rung.lacks(problem)}
        records.append(record)
        if record["reason"]:
            continue
        try:
            one = rung.prepare(problem)
            prepared[rung.name] = one, _affordable(problem, one)
        except Exception as error:  # a driver's refusal is a result, too, and the other rungs still count
            first = str(error).strip().partition("\n")[0]
            record["reason"] = f"{type(error).__name__}: {first}"
    return records, prepared


def _affordable(problem: Problem, one: Ready) -> int:
    """Return the rows that a launch of the rung gets through in SLOW seconds, by a trial with a few."""
    bench, n = problem.bench, problem.n
    few = min(n, 1024)
    if one.into is not problem or few == n:
        one.launch(n)
        bench.stream.finish()
        return n
    clock = Clock(0.0, rounds=1, batch=0.0)
    clock.run(bench, {"few": partial(one.launch, few)})
    return min(n, max(few, int(few * SLOW / clock.best["few"])))


def _checked(bench: Bench, problem: Problem, one: Ready, m: int) -> float:
    one.into.clear()
    one.launch(m)
    bench.stream.finish()
    return problem.error(one.into, m)


def _sweep(bench: Bench, sizes: Sizes, n: int) -> Row:
    """Return GFLOP/s of every rung at W = 2 and this n; None where it cannot run or is wrong."""
    with bench.section() as part:
        problem = Problem(part, n, sizes.d, 2)
        records, prepared = _rungs(problem)
        clock = Clock(sizes.seconds / 10)
        clock.run(part, {name: partial(one.launch, rows) for name, (one, rows) in prepared.items()})
        rates: dict[str, float | None] = {record["name"]: None for record in records}
        for name, (one, rows) in prepared.items():
            if _checked(part, problem, one, rows) <= TOLERANCE:
                rates[name] = 4e-9 * rows * sizes.d / clock.best[name]
    return {"n": n, "gflops": rates}


def _reductions(bench: Bench, sizes: Sizes, peaks: Peaks) -> Row:
    """Return a row for every form at every size in its best shape, and the peaks that took turns with them."""
    most = max(sizes.reduced)
    with bench.section() as part:
        numbers = np.random.default_rng(0).standard_normal(most, np.float32)
        x = part.stream.upload(numbers)
        forms = {form.name: [Extremes(part, form, most, shape) for shape in shapes(part)] for form in FORMS}
        every = {(name, n): {one.shape: one for one in some} for n in sizes.reduced for name, some in forms.items()}
        launches = {
            f"{name} {n} {shape}": one.launch(x, n) for (name, n), some in every.items() for shape, one in some.items()
        }
        clock = Clock(sizes.seconds)
        clock.run(part, peaks.launches | launches)
        rates, rows = peaks.rates(clock), []
        for (name, n), some in every.items():
            spent = {shape: clock.best[f"{name} {n} {shape}"] for shape in some}
            best = min(spent, key=spent.__getitem__)
            launches[f"{name} {n} {best}"]()
            seconds = spent[best]
            row = {"n": n, "name": name, "lanes": best.lanes, "seconds": seconds, "gbs": 4e-9 * n / seconds}
            row |= {"right": some[best].right(numbers[:n]), "of_bandwidth": row["gbs"] / rates["read_gbs"]}
            rows.append(row)
    return {"peaks": rates, "rows": rows}


def inner_steps(device: Any, n: int, W: int) -> Row:
    """Return microseconds of an inner step, and of each part of a working set of W rows, of the best of three fits.

    The data are noisy, so that a working set needs hundreds of steps.
    """
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.5, 1, -1)
    X = rng.normal(size=(n, 16)) + 0.15 * y[:, None]
    rows = []
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = SVC(C=10, gamma=0.05, working_set_size=W, max_iter=200 * n, device=device)
            report = model.fit(X, y).fit_report_
        steps, sets, spent = report.steps, report.outer_steps, report.seconds
        row = {"W": report.working_set_size, "steps": steps, "working_sets": sets, "status": report.status}
        row["microseconds"] = 1e6 * spent["subproblem"] / max(steps, 1)
        rows.append(row | {"of_a_set": {part: 1e6 * took / max(sets, 1) for part, took in spent.items()}})
    return min(rows, key=lambda row: row["microseconds"])


def _holds(result: Row) -> bool:
    rungs = [row for group in result["groups"] for row in group["rungs"] if not row["reason"]]
    return all(row["right"] for row in (*rungs, *result["reductions"]["rows"]))


def _peaks(part: Row) -> str:
    return f"{part['peaks']['fma_gflops']:.0f} GFLOP/s, {part['peaks']['read_gbs']:.1f} GB/s"


def show(result: Row) -> list[Shown]:
    """Return the tables of rungs, reductions and inner steps."""
    rows, notes = [], []
    for group in result["groups"]:
        words = f"{group['block']} working rows share a pass over X in all rungs but clsvm's"
        notes.append(f"W = {group['W']}: {words}; peaks meanwhile {_peaks(group)}")
        for row in group["rungs"]:
            rows.append(row | {"label": f"{group['W']}, {group['n']}", "right": row.get("right", True)})
            if row["reason"] or row["rows"] < group["n"]:
                notes.append(f"W = {group['W']}, {row['name']}: {row['reason'] or 'on {rows} rows'.format_map(row)}")
    rungs = (
        ("W, n", "{label}"), ("rung", lambda row: row["name"] + "*" * (not row["right"])),
        ("GFLOP/s", "{gflops:.1f}"), ("GB/s", "{gbs:.1f}"), ("of bandwidth", "{of_bandwidth:.1%}"),
        ("of multiply-adds", "{of_arithmetic:.1%}"), ("max error", "{error:.0e}"),
    )  # fmt: skip
    words = "shares are of the peaks that took turns with the rungs; a rung with * is wrong and does not count"
    title = f"{table.where(result)}; peaks {_peaks(result)}"
    cells: dict[int, Row] = {}
    for row in result["reductions"]["rows"]:
        text = f"{row['gbs']:.1f} ({row['of_bandwidth']:.0%})" + "*" * (not row["right"])
        cells.setdefault(row["n"], {"n": f"2^{np.log2(row['n']):g}"})[row["name"]] = text
    names = dict.fromkeys(row["name"] for row in result["reductions"]["rows"])
    found: list[table.Column] = [("numbers", "{n}"), *((name, lambda row, name=name: row[name]) for name in names)]
    meanwhile = f"reductions, GB/s and share of the bandwidth; peaks meanwhile {_peaks(result['reductions'])}"
    inner = (
        ("working set", "{W}"), ("steps", "{steps}"), ("working sets", "{working_sets}"),
        ("microseconds a step", "{microseconds:.3f}"),
    )  # fmt: skip
    return [
        shown(title, rungs, rows, words, *notes, left=2),
        shown(meanwhile, found, [*cells.values()]),
        shown("inner steps of the solver", inner, result["inner"]),
    ]


def draw(result: Row, path: Path) -> None:
    """Draw GFLOP/s of the rungs at W = 2 over n, and 10^9 numbers a second of the reductions."""
    bandwidth, d = result["peaks"]["read_gbs"], result["groups"][0]["d"]
    with picture(result, path, 2) as (left, right):
        for name in result["sweep"][0]["gflops"]:
            points = [(one["n"], one["gflops"][name]) for one in result["sweep"] if one["gflops"][name] is not None]
            if points:
                left.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        bound = 4 * d / (4 * (d + 2)) * bandwidth  # 2 W = 4 flops a number of X, and the W results with it
        left.axhline(bound, color="black", linestyle="--", label="bound by reading X from memory")
        left.set(title=f"two kernel rows, d = {d}", xlabel="rows n", ylabel="GFLOP/s")
        for name in dict.fromkeys(row["name"] for row in result["reductions"]["rows"]):
            rows = [row for row in result["reductions"]["rows"] if row["name"] == name and row["right"]]
            rates = [row["gbs"] / 4 for row in rows]
            right.plot([row["n"] for row in rows], rates, marker="o", markersize=3, label=name)
        right.axhline(bandwidth / 4, color="black", linestyle="--", label="bound by reading from memory")
        right.set(title="reductions", xlabel="numbers", ylabel="10⁹ numbers a second")
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)


COMMAND = Command(
    "ladder",
    "kernel rows in ever better ways, and reductions, against the device's peaks",
    (option("--sizes", choices=tuple(SIZES), default="full", help="full takes some minutes"), PLOT),
    Part(measure, show, _holds, draw),
)
