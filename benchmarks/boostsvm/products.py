"""Products K(X, U): the choice of a layout, tables 3 and 4 and figures 3 and 4 of BoostSVM's paper.

Table 3 has the gain by the order of columns and by their partition, in products and in fits. Table 4 has the rates of
layouts. Figure 3 compares square matrices that are stored dense and as CSR. Figure 4 has the densities of columns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp

from benchmarks import solvers, table
from benchmarks.bench import TOLERANCE, Laid, Product
from benchmarks.boostsvm.cases import loaded
from benchmarks.command import Asked
from benchmarks.sets import Problem
from benchmarks.table import Row, Shown, shown
from clsvm import kernels
from clsvm.arrays import Data
from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.bits import BITS, binary
from clsvm.gram.layouts.csr import Csr, Hybrid
from clsvm.gram.layouts.record import Layout
from clsvm.gram.partition import Partition
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream

WORKING = (512, 16)  # right-hand rows of a product
MOST_DENSE = 4 << 30  # bytes of dense rows at most
ALLOWED = 1.15  # time of the chosen layout over the best one's at most, before the spread is added
PAPER_3: dict[str, tuple[float | None, ...]] = {  # seconds on a GPU: ThunderSVM, with order, with partition, BoostSVM
    "real-sim": (3.80, 2.69, None, 1.97),
    "rcv1": (348.58, 100.27, None, 93.76),
    "e2006": (13.86, 7.02, 5.96, 3.10),
}
PAPER_4 = (  # GFLOP/s, then GB/s
    "the paper's, on an RTX 3090: real-sim: ThunderSVM 419.75 GFLOP/s and 61.11 GB/s, BoostSVM 1123.8 and 221.4; "
    "rcv1: ThunderSVM 425.65 GFLOP/s and 55.41 GB/s, BoostSVM 1187.18 and 206.93"
)


def race(
    stream: Stream, case: Problem, contestants: Mapping[str, Laid], repeats: int, numbers: Sequence[int] = WORKING
) -> list[Row]:
    """Return a row for each of the ``numbers`` of right-hand rows and each contestant, measured interleaved.

    effective, done: multiply-adds of the non-zero entries, and of all stored entries. apart: the largest error of a
    kernel value. Each timed run follows an untimed one, since the products of a fit follow each other. All products
    write to the same buffer, since on some systems its pages influence the time more than the layout.
    """
    found, rng, n = [], np.random.default_rng(1), case.X.shape[0]
    for working in numbers:
        chosen = rng.choice(n, min(working, n), replace=False)
        out = stream.buffer(max(Product.values_bytes(laid, len(chosen)) for laid in contestants.values()))
        products = {name: Product(laid, chosen, out=out) for name, laid in contestants.items()}
        every: dict[str, list[float]] = {name: [] for name in products}
        for _ in range(repeats):
            for name, product in products.items():
                for _ in range(2):
                    stream.finish()
                    began = perf_counter()
                    product.launch()
                    stream.finish()
                every[name].append(perf_counter() - began)
        for name, product in products.items():
            seconds = every[name]
            low, high = np.quantile(seconds, (0.25, 0.75))
            middle = statistics.median(seconds)
            row = {"W": working, "name": name, "seconds": middle, "spread": float(high - low) / middle}
            row |= {"all_seconds": seconds, "effective": case.nnz * len(chosen), "bytes": product.nbytes}
            found.append(row | {"done": product.laid.rows.stored * len(chosen), "apart": product.error()})
            product.free()
        stream.free(out)
    return found


def right(result: Row) -> bool:
    """Return whether every kernel value is correct within the precision of float32."""
    return all(row["apart"] <= TOLERANCE for one in result["sets"] for row in one["rows"])


# All layouts, and the choice of one.


def measure(name: str, asked: Asked) -> Row:
    """Time each layout.

    chosen: the layout of "auto" for each number of right-hand rows. verdicts: the time of the chosen layout over the
    best one's.
    """
    case = loaded(name, asked)()
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(asked.device) as stream:
        plans = {W: layouts.choose(stream.profile, case.X, kernel.spec, working=W, all_rows=True) for W in WORKING}
        chosen = {W: plan.kind for W, plan in plans.items()}
        laid, kept = {}, []
        n, d = case.X.shape
        for kind in layouts.names(kernel.spec):
            fit = d <= LAYOUTS[kind].most and (kind != "dense" or 4 * n * d <= MOST_DENSE)
            fit = fit and (kind != BITS.name or binary(case.X))
            if not fit and kind not in chosen.values():
                continue
            began = perf_counter()
            laid[kind] = one = Laid(stream, case.X, kernel, kind)
            kept.append({"layout": kind, "build_seconds": perf_counter() - began, "nbytes": one.nbytes})
        rows = race(stream, case, laid, asked.repeats)
    auto = [{"W": W, "layout": plan.kind, "reason": plan.reason} for W, plan in plans.items()]
    found = {"chosen": auto, "layouts": kept, "rows": rows, "verdicts": verdicts(rows, chosen)}
    return case.head() | found


def verdicts(rows: Sequence[Row], chosen: Mapping[int, str]) -> list[Row]:
    """Return for each number of right-hand rows whether the chosen layout takes at most ALLOWED of the best one's time.

    The larger spread of both times is added to ALLOWED.
    """
    found = []
    for working in dict.fromkeys(row["W"] for row in rows):
        timed = {row["name"]: row for row in rows if row["W"] == working}
        best, own = min(timed, key=lambda name: timed[name]["seconds"]), chosen[working]
        ratio = timed[own]["seconds"] / timed[best]["seconds"]
        allowed = ALLOWED + max(timed[name]["spread"] for name in (own, best))
        verdict = {"W": working, "best": best, "chosen": own, "ratio": ratio, "allowed": allowed}
        found.append(verdict | {"within": ratio <= allowed})
    return found


def holds(result: Row) -> bool:
    """Return whether all values are correct and each chosen layout is near the best one."""
    return right(result) and all(found["within"] for one in result["sets"] for found in one["verdicts"])


def _mark(row: Row, one: Row) -> str:
    return "*" * any((own["W"], own["layout"]) == (row["W"], row["name"]) for own in one["chosen"])


def show(result: Row) -> Shown:
    """Return the cells of the milliseconds of each layout and the verdicts."""
    rows: list[Row] = []
    for one in result["sets"]:
        built = {row["layout"]: f"{1e3 * row['build_seconds']:.3g}" for row in one["layouts"]}
        rows.append({"label": table.label(one), "W": "build", **built})
        for found in one["verdicts"]:
            cells = {
                row["name"]: f"{1e3 * row['seconds']:.3g} ±{row['spread']:.0%}{_mark(row, one)}"
                for row in one["rows"]
                if row["W"] == found["W"]
            }
            rows.append({"label": table.label(one)} | found | cells)
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("W", "{W}"), *((name, f"{{{name}}}") for name in LAYOUTS), ("best", "{best}"),
        ("ratio", "{ratio:.2f}"), ("allowed", "{allowed:.2f}"),
        ("within", lambda row: "yes" if row["within"] else "no"),
    )  # fmt: skip
    words = (
        "ms of K(X, U) for W working rows, median and spread; *: the chosen layout; ratio: its time over the best; "
        f"allowed: {ALLOWED:g} and the larger spread of the two"
    )
    return shown(result, columns, rows, words, left=2)


def show_rates(result: Row) -> Shown:
    """Return the cells of table 4: rates of each layout."""
    rows = [row | {"one": one} for one in result["sets"] for row in one["rows"]]

    def giga(title: str, value: str, over: str = "") -> table.Column:
        return title, lambda row: f"{row[value] / (row[over] if over else 1) / 1e9:.3g}"

    columns: tuple[table.Column, ...] = (
        ("set", lambda row: table.label(row["one"])), ("layout", lambda row: row["name"] + _mark(row, row["one"])),
        ("W", "{W}"), ("ms", lambda row: f"{1e3 * row['seconds']:.3g}"), giga("GFMA", "effective"),
        giga("done", "done"),
        giga("GB", "bytes"), giga("GFMA/s", "effective", "seconds"), giga("done/s", "done", "seconds"),
        giga("GB/s", "bytes", "seconds"),
    )  # fmt: skip
    words = "GFMA: 10^9 multiply-adds of non-zero entries; done: of all stored entries; GB: rows, right-hand rows and K"
    return shown(result, columns, rows, words, PAPER_4, left=2)


# Table 3.


class AsTheyCame(Csr):
    """Rows in CSR with the columns in their original order."""

    def partition(self, profile: Profile, X: Data) -> None:
        return None


class Ordered(Csr):
    """Rows in CSR with the columns in the order of falling density."""

    def partition(self, profile: Profile, X: Data) -> Partition:
        return partition.by_density(partition.counts(X))


class InPlace(Hybrid):
    """The hybrid layout with the columns of each part in their original order."""

    def partition(self, profile: Profile, X: Data) -> Partition:
        made = super().partition(profile, X)
        parts = np.split(made.order, [made.dense])
        return Partition(np.concatenate([np.sort(part) for part in parts]), made.dense)


@dataclass(frozen=True)
class Variant:
    """A layout's name, and a record that replaces the layout."""

    layout: str = "auto"
    record: Layout | None = None

    def applied(self) -> Any:
        """Return a context in which the variant replaces the layout of this process."""
        return patch.dict(LAYOUTS, {self.layout: self.record} if self.record else {})


VARIANTS = {
    "neither": Variant("csr", AsTheyCame()),
    "order": Variant("csr", Ordered()),
    "partition": Variant("hybrid", InPlace()),
    "both": Variant("hybrid"),
}
DUAL = 1e-4  # by which the dual objectives of variants may differ, relative to the largest one
RUNS = 5  # timed runs of each product


def measure_variants(name: str, asked: Asked) -> Row:
    """Time products and fits of each variant. split_seconds: the seconds of counting columns and splitting rows."""
    case = loaded(name, asked)()
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(asked.device) as stream:
        laid = {}
        for own, variant in VARIANTS.items():
            with variant.applied():
                laid[own] = Laid(stream, case.X, kernel, variant.layout)
        rows = race(stream, case, laid, RUNS)
        began = perf_counter()
        parts = LAYOUTS["hybrid"].partition(stream.profile, case.X)
        assert parts
        partition.split(sp.csr_matrix(case.X), parts)
        seconds = perf_counter() - began
    given, form, ours = solvers.parameters(case), solvers.native(case.X), {"device": asked.device}
    entries = [(own, form, asked.repeats, (own, loaded(name, asked), form, given, ours)) for own in VARIANTS]
    with solvers.at_work(asked.limit, fitting, entries) as made:
        for one in solvers.turns(made):
            one.time()
        ended = [one.row() | {"report": getattr(one.ask("solution"), "report", {})} for one in made]
    return case.head() | {"rows": rows, "fits": ended, "split_seconds": seconds}


def fitting(variant: str, load: Callable[[], Problem], form: str, given: Row, ours: Row) -> solvers.Reply:
    """Return the function of solvers.fitting with the variant's layout."""
    one = VARIANTS[variant]
    reply = solvers.fitting(load, "clsvm", form, given, ours | {"layout": one.layout})

    def applied(request: Any) -> Any:
        with one.applied():
            return reply(request)

    return applied


def variants_hold(result: Row) -> bool:
    """Return whether all values are correct and the completed fits converged to the same objective."""
    for one in result["sets"]:
        ended = [fit for fit in one["fits"] if not fit["too_long"]]
        if any(fit["failed"] or not fit["report"]["converged"] for fit in ended):
            return False
        duals = [fit["report"]["dual"] for fit in ended] or [0.0]
        if max(duals) - min(duals) > DUAL * abs(max(duals)):
            return False
    return right(result)


def show_variants(result: Row) -> Shown:
    """Return the cells of table 3: products and fits, each with its gain over the variant "neither"."""
    rows: list[Row] = []
    for one in result["sets"]:
        first, paper = one["fits"][0].get("seconds"), PAPER_3.get(one["set"], (None,) * len(VARIANTS))
        for own, fit, theirs in zip(VARIANTS, one["fits"], paper, strict=True):
            row: Row = {"label": table.label(one), "own": own, "paper": "-" if theirs is None else f"{theirs:g}"}
            for W in WORKING:
                timed = {row["name"]: row["seconds"] for row in one["rows"] if row["W"] == W}
                row |= {f"ms {W}": f"{1e3 * timed[own]:.3g}", f"gain {W}": f"{timed['neither'] / timed[own]:.2f}"}
            row["fit"] = fit["failed"]
            if "seconds" in fit:
                split = one["split_seconds"] * (VARIANTS[own].layout == "hybrid") / fit["seconds"]
                row |= {"fit": f"{fit['seconds']:.3g}", "gain": f"{first / fit['seconds']:.2f}" if first else ""}
                row |= {"split": f"{100 * split:.2g}" if split else ""}
            rows.append(row)
    products = (part for W in WORKING for part in ((f"W = {W}, ms", f"{{ms {W}}}"), ("gain", f"{{gain {W}}}")))
    columns = (
        ("set", "{label}"), ("variant", "{own}"), *products, ("fit s", "{fit}"), ("gain", "{gain}"),
        ("split %", "{split}"), ("paper's s", "{paper}"),
    )  # fmt: skip
    words = (
        "gain: over neither; order: columns by falling density; partition: dense columns whole, in their old order; "
        "split: counting columns and splitting rows, of the fit's seconds; paper's s: ThunderSVM, ThunderSVM with its "
        "columns in order, with a partition, and BoostSVM, on an RTX 3090"
    )
    return shown(result, columns, rows, words, left=2)


# Figures.

SIZES = ("512", "1024", "2048", "4096")
TENTHS = 10  # parts of the columns
COMMON = 0.5  # density above which a column is common


def measure_squares(name: str, asked: Asked) -> Row:
    """Time K(X, X) of n = d rows without a zero, stored dense and as CSR."""
    n = int(name) // asked.scale
    X = np.random.default_rng(0).random((n, n), np.float32) + np.float32(0.5)
    case = Problem(name, X, np.ones(n), None, np.ones(n), 1.0, 1 / n)
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(asked.device) as stream:
        laid = {kind: Laid(stream, X, kernel, kind) for kind in ("dense", "csr")}
        return case.head() | {"rows": race(stream, case, laid, asked.repeats, (n,))}


def show_squares(result: Row) -> Shown:
    """Return the cells of figure 3: milliseconds, rates and their ratio for each size."""

    def figures(i: int, kind: str) -> tuple[table.Column, table.Column]:
        return (
            (f"{kind} ms", lambda one: f"{1e3 * one['rows'][i]['seconds']:.3g}"),
            (f"{kind} GFMA/s", lambda one: f"{one['rows'][i]['done'] / one['rows'][i]['seconds'] / 1e9:.3g}"),
        )

    columns: list[table.Column] = [("n = d", "{n}"), *figures(0, "dense"), *figures(1, "CSR")]
    columns.append(("CSR / dense", lambda one: f"{one['rows'][1]['seconds'] / one['rows'][0]['seconds']:.2f}"))
    words = "GFMA/s: 10^9 multiply-adds a second; the paper has some 20 and 1 TFLOP/s on an RTX 3090"
    return shown(result, columns, result["sets"], words, left=0)


def measure_columns(name: str, asked: Asked) -> Row:
    """Return the density of each tenth of the columns with entries, densest first."""
    case = loaded(name, asked)()
    n, count = case.X.shape[0], partition.counts(case.X)
    falling = np.sort(count[count > 0])[::-1] / n
    return case.head() | {
        "occur": len(falling),
        "common": int((falling > COMMON).sum()),
        "deciles": [float(tenth.mean()) if len(tenth) else None for tenth in np.array_split(falling, TENTHS)],
    }


def show_columns(result: Row) -> Shown:
    """Return the cells of figure 4."""

    def tenth(i: int) -> table.Column:
        return str(i + 1), lambda one: "-" if one["deciles"][i] is None else f"{100 * one['deciles'][i]:.3g}"

    columns: tuple[table.Column, ...] = (
        ("set", table.label), ("density %", lambda one: f"{100 * one['density']:.3g}"), ("occur", "{occur}"),
        ("> 50 %", "{common}"), *map(tenth, range(TENTHS)),
    )  # fmt: skip
    words = "density in % of each tenth of the columns that occur, densest first"
    return shown(result, columns, result["sets"], words)
