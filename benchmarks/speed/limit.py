"""What share of the device's limit a fit reaches: what its kernel rows take at the peaks that the same run measures,
over its wall time; and where the rest goes.

Counted are the rows of the kernel matrix that the report says were computed. A row takes a multiply-add for each cell
that the layout stores, padding included, and an exponential for each of its values. The bytes are those of the rows of
X, read once for each working set, and of the kernel rows, written once. The limit is the longer of the two: arithmetic
(multiply-adds and exponentials, one after the other) and memory. Peaks and fits take turns; the best of each peak
counts, and the fit of the median time.

A part's gap is its time less its own limit, which only two parts have: rows, and the tiles of the working sets, whose
new values are a multiply-add for each cell and an exponential each. A fit of up to 1024 rows does not wait for its
parts, so that their seconds fall to those that come later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import check, command, sets, solvers, table
from benchmarks.boostsvm.timing import Laid
from benchmarks.command import Asked, Command, Parser, Result, add_repeats, add_sets
from benchmarks.gpu.peaks import peaks_of
from benchmarks.gpu.training import waiting
from benchmarks.ladder_device import Bench, Clock
from clsvm import arrays, kernels
from clsvm.gram import layouts
from clsvm.report import by_part

SETS = tuple(dict.fromkeys(("breast_cancer", "covtype20k", "ijcnn1", "a9a", "mnist8", *sets.HARD)))  # README's tables
NEW = {"vector": 3 / 8, "group": 1 / 2}  # of a tile's values: half of its rows are new; CPUs leave out mirror images
SHOWN = ("layout", "select", "tile", "subproblem", "rows", "update", "free", "exact")  # parts that have a column
PARTS = (*SHOWN, "gap", "check", "active set")  # of a report's seconds
OUTSIDE = "estimator"  # what a fit takes beside what its report tells of


@dataclass(frozen=True)
class Options:
    """What the command line asks."""

    data: Path | None = None
    device: Any = None
    repeats: int = 6


@dataclass(frozen=True)
class Work:
    """What a fit has to do. rows, tiles: values of K in kernel rows and in tiles. cells: that a row stores, on average.
    nbytes: of the rows on the device. working_sets: how often these are read."""

    rows: float
    tiles: float
    cells: float
    nbytes: float
    working_sets: int

    def multiply_adds(self) -> float:
        """Of the kernel rows, without the kernel function."""
        return self.rows * self.cells

    def moved(self) -> float:
        """Bytes that are read and written for the kernel rows."""
        return self.working_sets * self.nbytes + 4 * self.rows

    def limits(self, peaks: Mapping[str, float]) -> dict[str, float]:
        """Seconds at the peaks: arithmetic and memory of the rows, and arithmetic of the tiles."""
        value = self.cells / (0.5e9 * peaks["fma_gflops"]) + 1 / (1e9 * peaks["exp_gs"])
        memory = self.moved() / (1e9 * peaks["read_gbs"])
        return {"arithmetic": self.rows * value, "memory": memory, "tiles": self.tiles * value}


def measure(name: str, options: Options) -> dict[str, Any]:
    """One set: seconds, what was done, the peaks meanwhile, the share of the limit, seconds and gap of each part, and
    what the solution misses."""
    problem, fits = sets.load(name, options.data), []
    given = solvers.parameters(problem.C, problem.gamma)

    def fit() -> tuple[float, Any]:
        model = solvers.made("clsvm", "SVC", given, device=options.device)
        return solvers.fitted("clsvm", model, problem.X, problem.y), model

    with Bench(options.device) as bench:
        peaks, clock = peaks_of(bench, exps=True), Clock(0.0, rounds=1)
        for _ in range(options.repeats):
            fits.append(fit())
            clock.run(bench, peaks.launches)
        seconds, model = sorted(fits[1:] or fits, key=lambda one: one[0])[(len(fits) - 1) // 2]
        took, told = seconds, model
        if bench.profile.sync > 1:  # the host runs ahead of the device: seconds by part are those of a fit that waits
            with waiting():
                took, told = fit()
        report = model.fit_report_
        with bench.section() as part:
            work = counted(part, problem, report)
        device = str(bench.stream.info)
    rates = peaks.rates(clock)
    limits = work.limits(rates)
    bound = max(limits["arithmetic"], limits["memory"])
    spent = told.fit_report_.seconds
    parts = by_part(spent, {one: (one,) for one in PARTS} | {"other": ()}) | {OUTSIDE: took - spent["total"]}
    gaps = {one: passed - {"rows": bound, "tile": limits["tiles"]}.get(one, 0.0) for one, passed in parts.items()}
    largest = max(gaps, key=lambda one: gaps[one])
    coef, offset = check.full_coef(model, len(problem.y)), float(model.intercept_[0])
    found = check.recompute(problem.X, problem.y, problem.C, coef, offset, check.kernel("rbf", gamma=problem.gamma))
    return {
        "set": name,
        "n": problem.X.shape[0],
        "d": problem.X.shape[1],
        "C": problem.C,
        "gamma": problem.gamma,
        "device": device,
        "seconds": seconds,
        "all_seconds": [one for one, _ in fits],
        "report": report.to_dict() | {"trace": []},
        "peaks": rates,
        "multiply_adds": work.multiply_adds() + work.rows * rates["fma_gflops"] / 2 / rates["exp_gs"],
        "exponentials": work.rows,
        "bytes": work.moved(),
        "limits": limits,
        "limit": bound,
        "share": bound / seconds,
        "parts": parts,
        "gaps": gaps,
        "largest": {"part": largest, "seconds": gaps[largest], "share": gaps[largest] / took},
        "violation": found.violation,
        "dual": found.dual,
        "misses": check.misses(found, problem.C, solvers.TOL, max(found.dual, report.dual)),
    }


def counted(bench: Bench, problem: sets.Problem, report: Any) -> Work:
    """What the fit of that report had to do; the rows are laid out anew to count what they hold."""
    kernel = kernels.make("rbf", gamma=problem.gamma)
    X = arrays.canonical(problem.X)
    kind = report.layout.partition(",")[0]
    laid = Laid(bench.stream, X, layouts.choose(bench.profile, X, kernel.spec, kind), kernel)
    rows, steps = laid.rows, report.outer_steps
    return Work(
        rows=float(report.rows_computed) * rows.n_pad,
        tiles=NEW[bench.profile.shape] * steps * report.working_set_size**2,
        cells=rows.stored / rows.n_pad,
        nbytes=laid.nbytes,
        working_sets=steps,
    )


HEADER = (
    *("set", "stored", "s", "rows", "GFMA", "GB", "limit", "of", "%"),
    *SHOWN,
    *("rest", "largest gap"),
)
LEGEND = (
    "rows: of K that were computed; GFMA: 10^9 multiply-adds of these, an exponential counted as those that take as "
    "long\nGB: rows of X, read once for each working set, and rows of K, written once; limit: milliseconds at the "
    "peaks below, of FMA (arithmetic) or GB; %: the limit over the seconds\n"
    "from layout to rest: milliseconds of each part; "
    "largest gap: the part that takes longest beyond what its rows or tiles take at the peaks, and this as a share of "
    "the seconds; * does not count; notes below"
)


def cells(result: Result) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and notes: the peaks of each set, and what does not count."""
    rows: list[tuple[str, ...]] = []
    measured, notes = table.measured(result)
    for one in measured:
        peaks, limits, report, largest = one["peaks"], one["limits"], one["report"], one["largest"]
        words = f"peaks {peaks['fma_gflops'] / 2:.0f} GFMA/s, {peaks['exp_gs']:.2g} 10^9 exponentials/s"
        notes.append(f"{one['set']}: {words}, {peaks['read_gbs']:.0f} GB/s read")
        if report["dtype"] != "float32":
            notes.append(f"{one['set']}: kernel values in {report['dtype']}, the peaks are float32's")
        notes += [f"{one['set']}: {missed}" for missed in one["misses"]]
        work = _short(one["multiply_adds"] / 1e9), _short(one["bytes"] / 1e9)
        bound = "FMA" if limits["arithmetic"] >= limits["memory"] else "GB"
        share = _short(1e3 * one["limit"]), bound, f"{100 * one['share']:.1f}"
        rest = sum(took for part, took in one["parts"].items() if part not in SHOWN)
        parts = (_short(1e3 * took) for took in (*(one["parts"][part] for part in SHOWN), rest))
        kind = report["layout"].partition(",")[0]
        seconds = f"{one['seconds']:.3g}" + "*" * bool(one["misses"])
        gap = f"{largest['part']}, {100 * largest['share']:.0f} %"
        rows.append((table.label(one), kind, seconds, str(report["rows_computed"]), *work, *share, *parts, gap))
    return rows, notes


def _short(number: float) -> str:
    """Without more digits than count: a column for each part has to fit a terminal."""
    if number == 0 or number >= 10:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 1 else f"{number:.2f}" if number >= 0.01 else f"{number:.0e}"


LAYOUT = table.Layout(HEADER, 2, LEGEND, cells)


def holds(result: Result) -> bool:
    """Whether every set was measured and every solution counts."""
    return not any("error" in one or one["misses"] for one in result["sets"])


def _arguments(parser: Parser) -> None:
    add_sets(parser, tuple(sets.SETS), list(SETS), f"; {', '.join(SETS)}")
    sets.add_data(parser, f"none needed for {', '.join(sets.BUNDLED)}")
    add_repeats(parser, 6, "fits")


def _measure(asked: Asked) -> Result:
    options = Options(asked.data, asked.device, asked.repeats)
    return command.on_device(asked, {"sets": [command.in_own_process(measure, name, options) for name in asked.sets]})


COMMAND = Command(
    "limit",
    "what share of the device's limit a fit reaches, by the peaks of the same run, and where the rest goes",
    _arguments,
    _measure,
    partial(table.terminal, layout=LAYOUT),
    holds,
    partial(table.markdown, layout=LAYOUT),
)
