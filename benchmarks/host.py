"""Work of a fit on a GPU, counted on a CPU: launches, blocking copies and multiply-adds.

The kernels of a GPU's profile run on a CPU's OpenCL runtime (CLSVM_PROFILE), so the counts are those of a GPU.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import clsvm
from benchmarks import sets, table
from benchmarks.command import DATA, Asked, Command, Part, number, option, sets_of
from benchmarks.solvers import fields_of
from benchmarks.table import Row, Shown, shown
from clsvm.opencl.runtime import cl

SETS = ("a9a", "mnist8", "letter", "mnist")


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the launches and copies of the context."""
    counts: Counter[str] = Counter()

    def counted(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            counts[kind] += 1
            return call(*given, **named)

        return counting

    kinds = {"enqueue_nd_range_kernel": "launches", "enqueue_copy": "copies", "enqueue_map_buffer": "copies"}
    with ExitStack() as stack:
        for name, kind in kinds.items():
            stack.enter_context(patch.object(cl, name, counted(kind, getattr(cl, name))))
        yield counts


def measure(asked: Asked) -> Row:
    """Count the launches and copies of a second fit of each data set."""
    os.environ["CLSVM_PROFILE"] = asked.profile
    return {"profile": asked.profile, "rows": [_row(name, asked) for name in asked.sets]}


def _row(name: str, asked: Asked) -> dict[str, Any]:
    problem = sets.load(name, asked.data)
    X, y, C, gamma = problem.X[: asked.rows], problem.y[: asked.rows], problem.C, problem.gamma
    model = clsvm.SVC(C=C, gamma=gamma, device=asked.device).fit(X, y)  # builds the programs
    with counting() as calls:
        model.fit(X, y)
    report, sizes = model.fit_report_, np.unique(y, return_counts=True)[1]
    pairs = [a + b for k, a in enumerate(sizes) for b in sizes[k + 1 :]]
    values = float(sum(pair**2 for pair in pairs)) if len(pairs) > 1 else float(report.rows_computed) * len(y)
    entries = float((re.search(r"([\d.]+) cells", report.layout) or ["", X.shape[1]])[1])
    return {
        "set": name, "n": len(y), "d": X.shape[1], "machines": len(pairs), "calls": dict(calls),
        "multiply_adds": values * entries, **fields_of(report, "outer_steps", "steps", "layout", "converged"),
    }  # fmt: skip


def _show(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{set}"), ("rows", "{n}"), ("machines", "{machines}"), ("working sets", "{outer_steps}"),
        ("launches", "{calls[launches]}"),
        ("a working set", lambda row: f"{row['calls']['launches'] / row['outer_steps']:.1f}"),
        ("waiting copies", "{calls[copies]}"), ("GFMA", lambda row: f"{1e-9 * row['multiply_adds']:.3g}"),
    )  # fmt: skip
    return shown(f"{result['device']}, profile {result['profile']}", columns, result["rows"])


COMMAND = Command(
    "host",
    "launches and waiting copies of fits on a GPU's profile, counted on a CPU",
    (
        sets_of((*SETS, *sets.BUNDLED), SETS),
        DATA,
        option("--profile", default="gpu", help="the device profile whose kernels run"),
        number("--rows", 6000, "first rows of each set at most"),
    ),
    Part(measure, _show, lambda result: all(row["converged"] for row in result["rows"])),
)
