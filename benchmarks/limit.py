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
from typing import Any

from benchmarks import check, sets, solvers, table
from benchmarks.bench import Bench, Clock, Laid, peaks_of
from benchmarks.command import DATA, Asked, Command, Part, each_set, repeats, sets_of
from benchmarks.gpu.training import waiting
from benchmarks.table import Row, Shown, shown
from clsvm import arrays, kernels
from clsvm.report import by_part

SETS = tuple(dict.fromkeys(("breast_cancer", "covtype20k", "ijcnn1", "a9a", "mnist8", *sets.HARD)))
NEW = {"vector": 3 / 8, "group": 1 / 2}  # of a tile's values: half of its rows are new; CPUs leave out mirror images
SHOWN = ("layout", "select", "tile", "subproblem", "rows", "update", "free", "exact")  # parts that have a column
PARTS = (*SHOWN, "gap", "check", "active set")  # of a report's seconds


@dataclass(frozen=True)
class Work:
    """What a fit has to do.

    rows, tiles: values of K in kernel rows and in tiles. cells: that a row stores, on average. nbytes: of the rows on
    the device. working_sets: how often these are read.
    """

    rows: float
    tiles: float
    cells: float
    nbytes: float
    working_sets: int

    def multiply_adds(self) -> float:
        """Return those of the kernel rows, without the kernel function."""
        return self.rows * self.cells

    def moved(self) -> float:
        """Return the bytes that are read and written for the kernel rows."""
        return self.working_sets * self.nbytes + 4 * self.rows

    def limits(self, peaks: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds at the peaks: arithmetic and memory of the rows, and arithmetic of the tiles."""
        value = self.cells / (0.5e9 * peaks["fma_gflops"]) + 1 / (1e9 * peaks["exp_gs"])
        memory = self.moved() / (1e9 * peaks["read_gbs"])
        return {"arithmetic": self.rows * value, "memory": memory, "tiles": self.tiles * value}


def limit_set(name: str, asked: Asked) -> Row:
    """Measure the seconds, the peaks meanwhile, the share of the limit, and the seconds and gap of each part."""
    problem, fits = sets.load(name, asked.data), []
    given = solvers.parameters(problem.C, problem.gamma)

    def fit() -> tuple[float, Any]:
        model = solvers.made("clsvm", "SVC", given, device=asked.device)
        return solvers.fitted("clsvm", model, problem.X, problem.y), model

    with Bench(asked.device) as bench:
        peaks, clock = peaks_of(bench, exps=True), Clock(0.0, rounds=1)
        for _ in range(asked.repeats):
            fits.append(fit())
            clock.run(bench, peaks.launches)
        seconds, model = sorted(fits[1:] or fits, key=lambda one: one[0])[(len(fits) - 1) // 2]
        took, told = seconds, model
        if bench.profile.sync > 1:  # the host runs ahead of the device: seconds by part are those of a fit that waits
            with waiting():
                took, told = fit()
        report = model.fit_report_
        with bench.section() as part:
            work = _work(part, problem, report)
    rates = peaks.rates(clock)
    limits = work.limits(rates)
    bound, spent = max(limits["arithmetic"], limits["memory"]), told.fit_report_.seconds
    parts = by_part(spent, {one: (one,) for one in PARTS} | {"other": ()}) | {"estimator": took - spent["total"]}
    gaps = {one: passed - {"rows": bound, "tile": limits["tiles"]}.get(one, 0.0) for one, passed in parts.items()}
    largest = max(gaps, key=lambda one: gaps[one])
    row = {
        "set": name, "n": problem.X.shape[0], "d": problem.X.shape[1], "C": problem.C, "gamma": problem.gamma,
        "seconds": seconds, "all_seconds": [one for one, _ in fits], "report": report.to_dict() | {"trace": []},
        "peaks": rates,
        "multiply_adds": work.multiply_adds() + work.rows * rates["fma_gflops"] / 2 / rates["exp_gs"],
        "exponentials": work.rows, "bytes": work.moved(), "limits": limits, "limit": bound, "share": bound / seconds,
        "parts": parts, "gaps": gaps,
        "largest": {"part": largest, "seconds": gaps[largest], "share": gaps[largest] / took},
        "misses": [], **check.solved(model, problem.X, problem.y, problem.C, problem.gamma),
    }  # fmt: skip
    check.judge([row], solvers.TOL)
    return row


def _work(bench: Bench, problem: sets.Problem, report: Any) -> Work:
    """Return what the fit of that report had to do; the rows are laid out anew to count what they hold."""
    kind = report.layout.partition(",")[0]
    laid = Laid(bench.stream, arrays.canonical(problem.X), kernels.make("rbf", gamma=problem.gamma), kind)
    n_pad, steps = laid.rows.n_pad, report.outer_steps
    return Work(
        rows=float(report.rows_computed) * n_pad,
        tiles=NEW[bench.profile.shape] * steps * report.working_set_size**2,
        cells=laid.rows.stored / n_pad,
        nbytes=laid.nbytes,
        working_sets=steps,
    )


def _show(result: Row) -> Shown:
    measured = [one for one in result["sets"] if "error" not in one]
    notes = [f"{one['set']}: {one['error']}" for one in result["sets"] if "error" in one]
    for one in measured:
        peaks = one["peaks"]
        words = f"peaks {peaks['fma_gflops'] / 2:.0f} GFMA/s, {peaks['exp_gs']:.2g} 10^9 exponentials/s"
        notes += [f"{one['set']}: {words}, {peaks['read_gbs']:.0f} GB/s read"]
        notes += [f"{one['set']}: {missed}" for missed in one["misses"]]
        if one["report"]["dtype"] != "float32":
            notes.append(f"{one['set']}: kernel values in {one['report']['dtype']}, the peaks are float32's")

    def scaled(title: str, by: float, *path: str) -> table.Column:
        def figure(row: Row) -> str:
            value: Any = row
            for key in path:
                value = value[key]
            return f"{by * value:.3g}"

        return title, figure

    columns: tuple[table.Column, ...] = (
        ("set", table.label), ("stored", lambda row: row["report"]["layout"].partition(",")[0]),
        ("s", lambda row: f"{row['seconds']:.3g}" + "*" * bool(row["misses"])), ("rows", "{report[rows_computed]}"),
        scaled("GFMA", 1e-9, "multiply_adds"), scaled("GB", 1e-9, "bytes"), scaled("limit", 1e3, "limit"),
        ("of", lambda row: "FMA" if row["limits"]["arithmetic"] >= row["limits"]["memory"] else "GB"),
        scaled("%", 100, "share"), *(scaled(part, 1e3, "parts", part) for part in SHOWN),
        ("rest", lambda row: f"{1e3 * sum(took for part, took in row['parts'].items() if part not in SHOWN):.3g}"),
        ("largest gap", lambda row: f"{row['largest']['part']}, {100 * row['largest']['share']:.0f} %"),
    )  # fmt: skip
    words = (
        "rows: of K that were computed; GFMA: 10^9 multiply-adds of these, exponentials counted by the time they take\n"
        "GB: rows of X, read once for each working set, and rows of K, written once; limit: milliseconds at the peaks "
        "below, of FMA (arithmetic) or GB; %: the limit over the seconds\nfrom layout to rest: milliseconds of each "
        "part; largest gap: the part that takes longest beyond what its rows or tiles take at the peaks"
    )
    return shown(result, columns, measured, words, table.CHECKED, *notes, left=2)


COMMAND = Command(
    "limit",
    "what share of the device's limit a fit reaches, by the peaks of the same run, and where the rest goes",
    (sets_of(sets.BINARY, SETS), DATA, repeats(6)),
    Part(
        each_set(limit_set),
        _show,
        lambda result: not any("error" in one or one["misses"] for one in result["sets"]),
    ),
)
