"""Table 3: what the order of columns and their partition gain, alone and together, in products and in fits."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import scipy.sparse as sp
from rich.table import Table

from benchmarks.boostsvm import cases, paper
from benchmarks.boostsvm.machines import contestants, in_turns
from benchmarks.boostsvm.products import APART
from benchmarks.boostsvm.shared import Options, Part, failed, label, measured, shown
from benchmarks.boostsvm.timing import WORKING, Laid, race
from benchmarks.boostsvm.variants import VARIANTS
from clsvm import kernels
from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.opencl.profiles import Profile
from clsvm.opencl.stream import Stream

DUAL = 1e-4  # of the dual objective, that the variants may differ by at a KKT tolerance of 1e-3
PRODUCTS = 5  # runs of each product after the first
SETS = tuple(name for name in cases.SETS if name not in ("letter", "gisette"))  # (these have no zeros to speak of)


def measure(name: str, options: Options) -> dict[str, Any]:
    """rows: those of timing.race by variant; fits: of each variant; split_seconds: of counting columns and splitting
    rows, which a fit of hybrid rows does once."""
    case = options.load(name)
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(options.device) as stream:
        laid = {}
        for own, variant in VARIANTS.items():
            with variant.applied():
                plan = layouts.choose(stream.profile, case.X, kernel.spec, variant.layout)
                laid[own] = Laid(stream, case.X, plan, kernel)
        rows = race(stream, case, laid, PRODUCTS)
        device, seconds = str(stream.info), _split_seconds(stream.profile, case.X)
    fits = []
    with contestants(case, options, (), VARIANTS) as made:
        in_turns(made)
        for one in made:
            solution = one.ask("model")
            fits.append(one.row() | ({} if solution is None else {"report": solution.report}))
    return case.head() | {"device": device, "rows": rows, "fits": fits, "split_seconds": seconds}


def _split_seconds(profile: Profile, X: Any) -> float:
    began = perf_counter()
    made = LAYOUTS["hybrid"].partition(profile, X)
    assert made
    partition.split(sp.csr_matrix(X), made)
    return perf_counter() - began


def holds(result: dict[str, Any]) -> bool:
    """Whether all kernel values are float32's, and the fits that ended converged to the same objective."""
    return not failed(result) and all(_agrees(one) for one in measured(result))


def _agrees(one: dict[str, Any]) -> bool:
    ended = [fit for fit in one["fits"] if not fit["too_long"]]
    if any(fit["failed"] or not fit["report"]["converged"] for fit in ended):
        return False
    duals = [fit["report"]["dual"] for fit in ended]
    apart = max(duals, default=0.0) - min(duals, default=0.0)
    return apart <= DUAL * abs(max(duals, default=0.0)) and all(row["apart"] <= APART for row in one["rows"])


def show(result: dict[str, Any]) -> Table:
    """Milliseconds of products and seconds of fits, each with its gain over "neither"."""
    rows = []
    for one in measured(result):
        head, beside = label(one), paper.TABLE_3.get(one["set"], (None,) * len(VARIANTS))
        for own, fit, theirs in zip(VARIANTS, one["fits"], beside, strict=True):
            cells = []
            for working in WORKING:
                timed = {row["name"]: row["seconds"] for row in one["rows"] if row["W"] == working}
                cells += [f"{1e3 * timed[own]:.3g}", f"{timed['neither'] / timed[own]:.2f}"]
            first, split = one["fits"][0].get("seconds"), one["split_seconds"] * (VARIANTS[own].layout == "hybrid")
            cells.append(f"{fit['seconds']:.3g}" if "seconds" in fit else fit["failed"])
            cells.append(f"{first / fit['seconds']:.2f}" if first and "seconds" in fit else "")
            cells.append(f"{100 * split / fit['seconds']:.2g}" if split and "seconds" in fit else "")
            rows.append([head, own, *cells, "-" if theirs is None else f"{theirs:g}"])
            head = ""
    words = (
        "gain: over neither; order: columns by falling density; partition: dense columns whole, in their old order\n"
        "split: what counting columns and splitting rows take, of the fit's seconds\n"
        "paper's s: ThunderSVM, with its columns in order, partitioned, and BoostSVM, on an RTX 3090"
    )
    products = (text for working in WORKING for text in (f"W = {working}, ms", "gain"))
    return shown(result, words, ("set", "variant", *products, "fit s", "gain", "split %", "paper's s"), 2, rows)


TABLE_3 = Part("what order and partition gain", SETS, measure, show, holds, repeats=3)
