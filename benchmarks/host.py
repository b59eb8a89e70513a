"""What a fit asks of a GPU, counted on a CPU: launches, waiting copies, multiply-adds, bytes.

The profile's kernels run on a CPU's runtime (CLSVM_PROFILE), and the counts are those of a GPU. Seconds of the host are
those within calls of the runtime that start something; what waits for the device is only counted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np

import clsvm
from benchmarks import sets, table
from benchmarks.command import DATA, Asked, Command, Part, number, option, sets_of
from benchmarks.solvers import timed, told
from benchmarks.table import Row, Shown, shown
from clsvm.opencl.runtime import cl

SETS = ("a9a", "mnist8", "letter", "mnist")


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


def _row(name: str, asked: Asked) -> dict[str, Any]:
    problem = sets.load(name, asked.data)
    X, y, C, gamma = problem.X[: asked.rows], problem.y[: asked.rows], problem.C, problem.gamma
    machine = clsvm.SVC(C=C, gamma=gamma, device=asked.device).fit(X, y)  # (programs are built here)
    with counting() as counts:
        seconds, _ = timed(lambda: machine.fit(X, y))
    report = machine.fit_report_
    sizes, calls = np.unique(y, return_counts=True)[1], counts.calls
    pairs = [a + b for k, a in enumerate(sizes) for b in sizes[k + 1 :]]
    values = float(sum(pair**2 for pair in pairs)) if len(pairs) > 1 else float(report.rows_computed) * len(y)
    cells = float((re.search(r"([\d.]+) cells", report.layout) or ["", X.shape[1]])[1])
    return {
        "set": name, "n": len(y), "d": X.shape[1], "machines": len(pairs), "calls": calls, "seconds": seconds,
        "host_seconds": counts.seconds, "values": values, "multiply_adds": values * cells, "bytes": 4.0 * values,
        **told(report, "outer_steps", "steps", "layout", "converged"),
        "microseconds_a_launch": 1e6 * counts.seconds.get("launches", 0.0) / max(1, calls.get("launches", 0)),
    }  # fmt: skip


def _show(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{set}"), ("rows", "{n}"), ("machines", "{machines}"), ("working sets", "{outer_steps}"),
        ("launches", "{calls[launches]}"),
        ("a working set", lambda row: f"{row['calls']['launches'] / row['outer_steps']:.1f}"),
        ("waiting copies", "{calls[copies]}"), ("us a launch", "{microseconds_a_launch:.1f}"),
        ("GFMA", lambda row: f"{1e-9 * row['multiply_adds']:.3g}"),
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
    Part(measure, _show, lambda result: all(row["converged"] for row in result["rows"])),
)
