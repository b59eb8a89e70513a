"""How a step of conjugate gradients grows with the rows: rows of 18 columns from a memory-mapped file, K not kept, a
memory limit that is the same for all."""

from __future__ import annotations

import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

import clsvm
from benchmarks.falkon_studies.pictures import picture
from benchmarks.falkon_studies.shared import Options
from clsvm.opencl.memory import parse_bytes

MOST, SHARES = 4_000_000, (1 / 40, 1 / 20, 1 / 8, 1 / 4, 1 / 2, 1)  # rows, and those of each fit
FEATURES, GAMMA, PENALTY = 18, 1 / 18, 1e-6  # (SUSY's: sigma 3)
STEPS = 6  # of conjugate gradients in each fit
BLOCK = 1 << 18  # rows that are written at a time


def run(options: Options) -> dict[str, Any]:
    """A row for each number of rows, and the exponent of their seconds a step."""
    most = options.rows or MOST
    sizes = [round(share * most) for share in SHARES]
    with tempfile.TemporaryDirectory() as folder:
        X, y = written(Path(folder) / "rows.npy", most)
        C = np.array(X[: min(sizes[0], options.centers or 2000)])
        _fit(X[: sizes[0]], y[: sizes[0]], C, options)  # builds the programs
        rows = [_fit(X[:n], y[:n], C, options) for n in sizes]
        del X
    exponent = float(np.polyfit(np.log(sizes), np.log([row["seconds_per_step"] for row in rows]), 1)[0])
    limit = parse_bytes(options.memory_limit)
    return {"d": FEATURES, "centers": len(C), "memory_limit": limit, "exponent": exponent, "rows": rows}


def written(path: Path, n: int) -> tuple[Any, Any]:
    """X (n, 18) float32, mapped from the file that it is written to, and y (n,)."""
    rng = np.random.default_rng(0)
    X, y = np.lib.format.open_memmap(path, "w+", np.float32, (n, FEATURES)), np.empty(n)
    for first in range(0, n, BLOCK):
        x = rng.standard_normal((min(BLOCK, n - first), FEATURES), np.float32)
        X[first : first + BLOCK] = x
        y[first : first + BLOCK] = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2
    X.flush()
    return np.load(path, mmap_mode="r"), y


def _fit(X: Any, y: Any, C: Any, options: Options) -> dict[str, Any]:
    times: list[float] = []
    machine = clsvm.FalkonRegressor(
        center_selection=C,
        penalty=PENALTY,
        gamma=GAMMA,
        tol=1e-12,  # never reached: the steps are what ends it
        max_iter=STEPS,
        random_state=0,
        device=options.device,
        memory_limit=options.memory_limit,
        callback=lambda step, alpha, seconds: times.append(seconds),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(X, y)
    report = machine.fit_report_
    between = [later - sooner for sooner, later in pairwise(times) if later > sooner]  # (a further solve begins at 0)
    step = float(np.median(between)) if between else report.seconds["solve"] / report.passes
    return {
        "n": len(y),
        "seconds_per_step": step,
        "rows_per_second": len(y) / step,
        "times": times,
        "bytes_held": report.bytes_held,
        "layout": report.layout,
        "dtype": report.dtype,
        "sample": report.sample,
        "seconds": dict(report.seconds),
    }


def holds(result: dict[str, Any]) -> bool:
    """Whether the memory limit was kept."""
    return all(row["bytes_held"] <= result["memory_limit"] for row in result["rows"])


def show(result: dict[str, Any]) -> Table:
    """A row for each number of rows."""
    table = Table(
        title=f"a step of conjugate gradients, d = {result['d']}, m = {result['centers']}, memory_limit "
        f"{result['memory_limit'] / 1e6:g} MB: seconds grow with the rows to the power of {result['exponent']:.3f}"
    )
    for title in ("rows", "s a step", "rows a second", "MB held", "s of the fit", "where K is"):
        table.add_column(title, justify="left" if title == "where K is" else "right")
    for row in result["rows"]:
        figures = f"{row['seconds_per_step']:.3g}", f"{row['rows_per_second']:.3g}", f"{row['bytes_held'] / 1e6:.0f}"
        table.add_row(str(row["n"]), *figures, f"{row['seconds']['total']:.3g}", row["layout"].partition(";")[0])
    return table


def draw(result: dict[str, Any], path: Path) -> None:
    """Seconds a step over rows, both axes logarithmic, into the file ``path``."""
    with picture(result, path, 1) as (axes,):
        points = [(row["n"], row["seconds_per_step"]) for row in result["rows"]]
        axes.loglog(*zip(*points, strict=True), marker="o", label=f"exponent {result['exponent']:.3f}")
        axes.set(title=f"m = {result['centers']}, d = {result['d']}", xlabel="rows n", ylabel="seconds a step")
