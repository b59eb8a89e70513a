"""Table 4: products K(X, U) in every layout that can hold the rows, and how near the chosen layout is to the best."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from rich.table import Table

from benchmarks.boostsvm import cases, paper
from benchmarks.boostsvm.shared import Options, Part, failed, label, measured, shown
from benchmarks.boostsvm.timing import WORKING, Laid, race
from clsvm import kernels
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.opencl.stream import Stream

MOST_DENSE = 4 << 30  # bytes of dense rows that are tried
ALLOWED = 1.15  # of the best layout's time, beside the spread
APART = 1e-4  # of a kernel value, in float32


def measure(name: str, options: Options) -> dict[str, Any]:
    """rows: those of timing.race by layout; layouts: how the rows are stored; chosen: the layout of "auto" for
    each number of working rows; verdicts: its time over the best one's."""
    case = options.load(name)
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(options.device) as stream:
        began = perf_counter()
        plans = {W: layouts.choose(stream.profile, case.X, kernel.spec, working=W) for W in WORKING}
        took = (perf_counter() - began) / len(plans)
        chosen = {W: plan.kind for W, plan in plans.items()}
        laid, kept = {}, []
        for kind in layouts.names(kernel.spec):
            if kind not in chosen.values() and not _fits(case, kind):
                continue
            began = perf_counter()
            plan = layouts.choose(stream.profile, case.X, kernel.spec, kind)
            laid[kind] = one = Laid(stream, case.X, plan, kernel)
            seconds, whole = perf_counter() - began, plan.partition.dense if plan.partition else 0
            stored = {"stored": one.rows.stored, "nbytes": one.nbytes, "whole": whole}
            kept.append({"layout": kind, "build_seconds": seconds, **stored})
        rows = race(stream, case, laid, options.repeats)
        device = str(stream.info)
    auto = [{"W": W, "layout": plan.kind, "reason": plan.reason, "seconds": took} for W, plan in plans.items()]
    found = {"device": device, "chosen": auto, "layouts": kept, "rows": rows}
    return case.head() | found | {"verdicts": verdicts(rows, chosen)}


def _fits(case: cases.Case, kind: str) -> bool:
    n, d = case.X.shape
    return d <= LAYOUTS[kind].most and (kind != "dense" or 4 * n * d <= MOST_DENSE)


def verdicts(rows: list[dict[str, Any]], chosen: Mapping[int, str]) -> list[dict[str, Any]]:
    """For each number of working rows: the best layout, the one ``chosen`` for so many, its time over the best one's,
    and whether that is at most ALLOWED and the larger spread of the two."""
    found = []
    for working in dict.fromkeys(row["W"] for row in rows):
        timed = {row["name"]: row for row in rows if row["W"] == working}
        best = min(timed, key=lambda name: timed[name]["seconds"])
        own = chosen[working]
        ratio = timed[own]["seconds"] / timed[best]["seconds"]
        allowed = ALLOWED + max(timed[name]["spread"] for name in (own, best))
        verdict = {"W": working, "best": best, "chosen": own, "ratio": ratio, "allowed": allowed}
        found.append(verdict | {"within": ratio <= allowed})
    return found


def right(result: dict[str, Any]) -> bool:
    """Whether every set was measured and every kernel value is float32's."""
    return not failed(result) and all(row["apart"] <= APART for one in measured(result) for row in one["rows"])


def holds(result: dict[str, Any]) -> bool:
    """The same, and whether the chosen layout is near the best one."""
    return right(result) and all(found["within"] for one in measured(result) for found in one["verdicts"])


def show(result: dict[str, Any]) -> Table:
    """Milliseconds of each layout, * at the chosen one, and the verdicts."""
    names, rows = tuple(LAYOUTS), []
    for one in measured(result):
        built = {row["layout"]: f"{1e3 * row['build_seconds']:.3g}" for row in one["layouts"]}
        rows.append([label(one), "build", *(built.get(name, "-") for name in names), "", "", "", ""])
        for found in one["verdicts"]:
            cells = {row["name"]: _milliseconds(row, one) for row in one["rows"] if row["W"] == found["W"]}
            said = f"{found['ratio']:.2f}", f"{found['allowed']:.2f}", "yes" if found["within"] else "no"
            rows.append(["", str(found["W"]), *(cells.get(name, "-") for name in names), found["best"], *said])
    words = (
        "ms of K(X, U) for W working rows, median and spread; *: the chosen layout; ratio: its time over the best\n"
        f"allowed: {ALLOWED:g} and the larger spread of the two"
    )
    return shown(result, words, ("set", "W", *names, "best", "ratio", "allowed", "within"), 2, rows)


def _milliseconds(row: dict[str, Any], one: dict[str, Any]) -> str:
    mark = "*" if _chosen(row, one) else ""
    return f"{1e3 * row['seconds']:.3g} ±{100 * row['spread']:.0f} %{mark}"


def show_rates(result: dict[str, Any]) -> Table:
    """Table 4: rates of each layout."""
    rows = []
    for one in measured(result):
        head = label(one)
        for row in one["rows"]:
            counted = f"{row['effective'] / 1e9:.3g}", f"{row['done'] / 1e9:.3g}", f"{row['bytes'] / 1e9:.3g}"
            rates = (f"{row[what] / row['seconds'] / 1e9:.3g}" for what in ("effective", "done", "bytes"))
            mark = "*" if _chosen(row, one) else ""
            rows.append([head, row["name"] + mark, str(row["W"]), f"{1e3 * row['seconds']:.3g}", *counted, *rates])
            head = ""
    beside = "; ".join(
        f"{name}: ThunderSVM {a:g} GFLOP/s and {c:g} GB/s, BoostSVM {b:g} and {d:g}"
        for name, (a, b, c, d) in paper.TABLE_4.items()
    )
    words = (
        "GFMA: 10^9 multiply-adds of entries, done: of all cells that are stored; GB: rows read once, panel and K\n"
        f"the paper's, on an RTX 3090: {beside}"
    )
    heads = "set", "layout", "W", "ms", "GFMA", "done", "GB", "GFMA/s", "done/s", "GB/s"
    return shown(result, words, heads, 2, rows)


def _chosen(row: dict[str, Any], one: dict[str, Any]) -> bool:
    """Whether a row is of the layout that was chosen for so many working rows."""
    return any((own["W"], own["layout"]) == (row["W"], row["name"]) for own in one["chosen"])


PRODUCTS = Part("products in every layout, and the choice", cases.SETS, measure, show, holds)
TABLE_4 = Part("rates of products", cases.SETS, measure, show_rates, right)
