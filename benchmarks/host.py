"""What a fit asks of a GPU, counted on a CPU: launches, waiting copies, multiply-adds, bytes; and what that would take.

The profile's kernels run on a CPU's runtime (CLSVM_PROFILE), and the counts are those of a GPU. Seconds of the host are
those within calls of the runtime that start something; what waits for the device is only counted. The seconds of GPUs
are estimates, from the counts and from rates that makers state, until figures take their place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

import clsvm
from benchmarks import sets, table
from benchmarks.command import DATA, Asked, Command, number, option, sets_of
from benchmarks.table import Row, Shown, shown
from clsvm.opencl.runtime import cl

SETS = ("a9a", "mnist8", "letter", "mnist")


@dataclass(frozen=True)
class Rates:
    """A GPU, stated: float32 multiply-adds and bytes a second; assumed: the shares that kernels reach, seconds of a
    launch, of a copy that waits and of an inner step."""

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
    """Calls of the runtime by kind, and seconds within them."""

    calls: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with its count and seconds added."""

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
    """Count the calls inside."""
    counts = Counts()
    kinds = {"enqueue_nd_range_kernel": "launches", "enqueue_copy": "copies", "enqueue_map_buffer": "copies"}
    with ExitStack() as stack:
        for name, kind in kinds.items():
            stack.enter_context(patch.object(cl, name, counts.counted(kind, getattr(cl, name))))
        yield counts


def measure(asked: Asked) -> Row:
    """Count the calls of a second fit of each set."""
    os.environ["CLSVM_PROFILE"] = asked.profile
    return {"profile": asked.profile, "rows": [_row(name, asked) for name in asked.sets]}


def _data(name: str, folder: Path | None) -> tuple[Any, Any, float, float]:
    """Return X, y, C, gamma."""
    if name in sets.TASK_SETS:
        kind = sets.TASK_SETS[name]
        return *sets.load_task(name, folder, whole=True)[:2], kind.C, kind.gamma
    one = (sets.load_multiclass if name in sets.MULTICLASS else sets.load)(name, folder)
    return one.X, one.y, one.C, one.gamma


def _row(name: str, asked: Asked) -> dict[str, Any]:
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
    """Return the seconds by part. Values of K are written and read once; some hundred machines run side by side."""
    side_by_side = min(100, row["machines"])
    return {
        "host": row["calls"].get("launches", 0) * rates.launch + row["calls"].get("copies", 0) * rates.copy,
        "multiply-adds": row["multiply_adds"] / (rates.of_arithmetic * rates.multiply_adds),
        "bytes": 2 * row["bytes"] / (rates.of_bandwidth * rates.nbytes),
        "inner steps": row["steps"] / side_by_side * rates.step,
    }


def _show(result: Row) -> Shown:
    def guess(gpu: str) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            parts = row["estimates"][gpu].values()
            return f"{sum(parts):.2g} = {' + '.join(f'{seconds:.2g}' for seconds in parts)}"

        return text

    columns: tuple[table.Column, ...] = (
        ("set", "{set}"), ("rows", "{n}"), ("machines", "{machines}"), ("working sets", "{outer_steps}"),
        ("launches", "{calls[launches]}"),
        ("a working set", lambda row: f"{row['calls']['launches'] / row['outer_steps']:.1f}"),
        ("waiting copies", "{calls[copies]}"), ("us a launch", "{microseconds_a_launch:.1f}"),
        *((f"{gpu}, estimated: {PARTS}", guess(gpu)) for gpu in GPUS),
    )  # fmt: skip
    return shown(f"{result['device']}, profile {result['profile']}", columns, result["rows"])


COMMAND = Command(
    "host",
    "launches and waiting copies of fits on a GPU's profile, counted on a CPU",
    (
        sets_of((*SETS, *sets.BUNDLED), SETS),
        DATA,
        option("--profile", default="gpu", help="whose kernels run"),
        number("--rows", 6000, "first rows of each set at most"),
    ),
    measure,
    _show,
    lambda result: all(row["converged"] for row in result["rows"]),
)
