"""What a fit asks of a GPU, counted on a CPU: launches, waiting copies, multiply-adds, bytes; and what that would take.

The profile's kernels run on a CPU's runtime (CLSVM_PROFILE), and the counts are those of a GPU. Seconds of the host are
those within calls of the runtime that start something; what waits for the device is only counted. The seconds of GPUs
are estimates, from the counts and from rates that makers state, until figures take their place.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table

import clsvm
from benchmarks import sets
from benchmarks.command import add_sets
from clsvm.opencl import devices
from clsvm.opencl.runtime import cl

SETS = ("a9a", "mnist8", "letter", "mnist")


@dataclass(frozen=True)
class Rates:
    """Of a GPU, stated: float32 multiply-adds and bytes a second. Assumed: the shares of these that kernels reach, and
    seconds of a launch, of a copy that waits and of an inner step."""

    multiply_adds: float
    nbytes: float
    of_arithmetic: float = 0.5
    of_bandwidth: float = 0.75
    launch: float = 5e-6
    copy: float = 2e-5
    step: float = 2e-6


GPUS = {"H100": Rates(33.5e12, 3.35e12), "MI210": Rates(11.3e12, 1.64e12, launch=8e-6, step=3e-6)}


@dataclass
class Counts:
    """Of calls of the runtime, and seconds within them."""

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return call(*given, **named)
            finally:
                self.calls[kind] = self.calls.get(kind, 0) + 1
                self.seconds[kind] = self.seconds.get(kind, 0.0) + perf_counter() - began

        return counting


@contextmanager
def counting() -> Iterator[Counts]:
    """The calls inside are counted."""
    counts = Counts()
    kinds = {"enqueue_nd_range_kernel": "launches", "enqueue_copy": "copies", "enqueue_map_buffer": "copies"}
    before = {name: getattr(cl, name) for name in kinds}
    for name, call in before.items():
        setattr(cl, name, counts.counted(kinds[name], call))
    try:
        yield counts
    finally:
        for name, call in before.items():
            setattr(cl, name, call)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Beside --device and --out."""
    add_sets(parser, (*SETS, *sets.BUNDLED), list(SETS))
    sets.add_data(parser, "none: all of them are read from there")
    parser.add_argument("--profile", default="gpu", help="whose kernels run (gpu)")
    parser.add_argument("--rows", type=int, default=6000, help="first rows of each set at most (6000)")


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """A row for each set."""
    os.environ["CLSVM_PROFILE"] = asked.profile
    rows = [_row(name, asked) for name in asked.sets]
    return {"device": str(devices.find(asked.device)), "profile": asked.profile, "rows": rows}


def holds(result: dict[str, Any]) -> bool:
    """Whether every fit converged."""
    return all(row["converged"] for row in result["rows"])


def _data(name: str, folder: Path | None) -> tuple[Any, Any, float, float]:
    """X, y, C, gamma."""
    if name in sets.TASK_SETS:
        if folder is None:
            raise sets.MissingSetError(f"{name} is read from a folder: give it as --data DIR")
        kind = sets.TASK_SETS[name]
        return *kind.make(folder)[:2], kind.C, kind.gamma
    one = (sets.load_multiclass if name in sets.MULTICLASS else sets.load)(name, folder)
    return one.X, one.y, one.C, one.gamma


def _row(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    X, y, C, gamma = _data(name, asked.data)
    X, y = X[: asked.rows], np.asarray(y)[: asked.rows]
    machine = clsvm.SVC(C=C, gamma=gamma, device=asked.device).fit(X, y)  # (programs are built here)
    with counting() as counts:
        began = perf_counter()
        report = machine.fit(X, y).fit_report_
        seconds = perf_counter() - began
    sizes, calls = np.unique(y, return_counts=True)[1], counts.calls
    pairs = [a + b for k, a in enumerate(sizes) for b in sizes[k + 1 :]]
    values = float(sum(pair**2 for pair in pairs)) if len(pairs) > 1 else float(report.rows_computed) * len(y)
    cells = float((re.search(r"([\d.]+) cells", report.layout) or ["", X.shape[1]])[1])
    row = {
        "set": name, "n": len(y), "d": X.shape[1], "machines": len(pairs), "calls": calls, "seconds": seconds,
        "host_seconds": counts.seconds, "outer_steps": report.outer_steps, "steps": report.steps, "values": values,
        "multiply_adds": values * cells, "bytes": 4.0 * values, "layout": report.layout, "converged": report.converged,
        "microseconds_a_launch": 1e6 * counts.seconds.get("launches", 0.0) / max(1, calls.get("launches", 0)),
    }  # fmt: skip
    return row | {"estimates": {gpu: estimate(row, rates) for gpu, rates in GPUS.items()}}


PARTS = "s = host + multiply-adds + bytes + inner steps"


def estimate(row: dict[str, Any], rates: Rates) -> dict[str, float]:
    """Seconds by part. Values of K are written and read once; inner steps of several machines run side by side, as many
    as a GPU has compute units (some hundred)."""
    side_by_side = min(100, row["machines"])
    return {
        "host": row["calls"].get("launches", 0) * rates.launch + row["calls"].get("copies", 0) * rates.copy,
        "multiply-adds": row["multiply_adds"] / (rates.of_arithmetic * rates.multiply_adds),
        "bytes": 2 * row["bytes"] / (rates.of_bandwidth * rates.nbytes),
        "inner steps": row["steps"] / side_by_side * rates.step,
    }


def _sum(parts: dict[str, float]) -> str:
    return f"{sum(parts.values()):.2g} = {' + '.join(f'{seconds:.2g}' for seconds in parts.values())}"


def show(result: dict[str, Any]) -> Table:
    """A line for each set."""
    table = Table(title=f"{result['device']}, profile {result['profile']}")
    titles = "set", "rows", "machines", "working sets", "launches", "a working set", "waiting copies", "us a launch"
    for column in (*titles, *(f"{gpu}, estimated: {PARTS}" for gpu in GPUS)):
        table.add_column(column, justify="left" if column == "set" else "right")
    for row in result["rows"]:
        launches, outer = row["calls"].get("launches", 0), row["outer_steps"]
        each = f"{launches / outer:.1f}" if outer else "-"
        counts = row["n"], row["machines"], outer, launches, each, row["calls"].get("copies", 0)
        guesses = (_sum(parts) for parts in row["estimates"].values())
        table.add_row(row["set"], *map(str, counts), f"{row['microseconds_a_launch']:.1f}", *guesses)
    return table
