"""Figure 3: products of square matrices without a zero, stored dense and as CSR, by our kernels.

K(X, X) of the rbf kernel is timed; the kernel function itself is a small part of it, since n = d.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.boostsvm.cases import Case
from benchmarks.boostsvm.products import APART
from benchmarks.boostsvm.shared import Options, Part, failed, measured, shown
from benchmarks.boostsvm.timing import Laid, race
from benchmarks.falkon_studies.pictures import picture
from clsvm import kernels
from clsvm.gram import layouts
from clsvm.opencl.stream import Stream

SIZES = ("512", "1024", "2048", "4096")


def measure(name: str, options: Options) -> dict[str, Any]:
    """The rows of timing.race for the two layouts; ``name`` is n = d."""
    n = int(name) // options.scale
    X = np.random.default_rng(0).random((n, n), np.float32) + np.float32(0.5)
    case = Case(name, 0, X, np.ones(n), gamma=1 / n)
    kernel = kernels.make("rbf", gamma=case.gamma)
    with Stream(options.device) as stream:
        plans = {kind: layouts.choose(stream.profile, X, kernel.spec, kind) for kind in ("dense", "csr")}
        laid = {kind: Laid(stream, X, plan, kernel) for kind, plan in plans.items()}
        rows = race(stream, case, laid, options.repeats, (n,))
        return case.head() | {"device": str(stream.info), "rows": rows}


def holds(result: dict[str, Any]) -> bool:
    """Whether every kernel value is float32's."""
    return not failed(result) and all(row["apart"] <= APART for one in measured(result) for row in one["rows"])


def show(result: dict[str, Any]) -> Table:
    """Milliseconds, rates and the ratio for each size."""
    rows = []
    for one in measured(result):
        dense, csr = one["rows"]
        seconds = (f"{1e3 * row['seconds']:.3g}" for row in (dense, csr))
        rates = (f"{row['done'] / row['seconds'] / 1e9:.3g}" for row in (dense, csr))
        rows.append([str(one["n"]), *seconds, f"{csr['seconds'] / dense['seconds']:.2f}", *rates])
    words = "GFMA/s: 10^9 multiply-adds a second; on an RTX 3090 the paper has some 20 and 1 TFLOP/s"
    heads = "n = d", "dense ms", "CSR ms", "CSR / dense", "dense GFMA/s", "CSR GFMA/s"
    return shown(result, words, heads, 0, rows)


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds over n, both axes logarithmic, into the file ``path``."""
    with picture(result, path, 1) as (axes,):
        for i, kind in enumerate(("dense", "csr")):
            points = [(one["n"], one["rows"][i]["seconds"]) for one in measured(result)]
            axes.loglog(*zip(*points, strict=True), marker="o", label=kind)
        axes.set(title="products of square matrices without a zero", xlabel="n = d", ylabel="seconds")


FIGURE_3 = Part("square matrices stored dense and as CSR", SIZES, measure, show, holds, draw)
