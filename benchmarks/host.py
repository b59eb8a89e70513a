"""Work of a fit on a GPU, counted on a CPU: launches, blocking copies and multiply-adds.

The kernels of a GPU's profile run on a CPU's OpenCL runtime (CLSVM_PROFILE), so the counts are those of a GPU.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

import clsvm
from benchmarks import sets, table
from benchmarks.command import DATA, Asked, Command, Part, number, option, sets_of
from benchmarks.solvers import fields_of
from benchmarks.table import Row, Shown, shown
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.runtime import cl

SETS = ("a9a", "mnist8", "ijcnn1", "covtype20k", "letter", "mnist")
# Seconds of an NVIDIA H100 for a launch, a blocking copy, an SMO iteration over 1024 rows, and 10^9 multiply-adds of K.
# gpu-h100-2026-11-27.json has the rates. It has 2.1e-6 s for an iteration that changes one pair; with eight pairs, the
# time is an estimate: 16 rows of Q are read in place of 2, three barriers are added, and one item finds eight numbers.
LAUNCH, COPY, ITERATION, PRODUCTS = 3e-6, 2e-5, {1: 2.1e-6, 8: 3.3e-6}, 1 / 15e3


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


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def measure(asked: Asked) -> Row:
    """Count the launches, copies and SMO iterations of a second fit of each data set."""
    os.environ["CLSVM_PROFILE"], kind = asked.profile, asked.profile.partition("-")[0]
    profile = PROFILES[kind]
    rows = []
    for name, C, pairs in product(asked.sets, asked.penalties or [None], asked.pairs or [profile.pairs]):
        with patch.dict(PROFILES, {kind: replace(profile, pairs=int(pairs))}):
            rows.append({"pairs": int(pairs), **_row(name, C, asked)})
    return {"profile": asked.profile, "rows": rows}


def _row(name: str, C: float | None, asked: Asked) -> dict[str, Any]:
    problem = sets.load(name, asked.data)
    X, y, C, gamma = problem.X[: asked.rows], problem.y[: asked.rows], C or problem.C, problem.gamma
    model = clsvm.SVC(C=C, gamma=gamma, device=asked.device).fit(X, y)  # builds the programs
    with counting() as calls:
        model.fit(X, y)
    report, sizes = model.fit_report_, np.unique(y, return_counts=True)[1]
    pairs = [a + b for k, a in enumerate(sizes) for b in sizes[k + 1 :]]
    values = float(sum(pair**2 for pair in pairs)) if len(pairs) > 1 else float(report.rows_computed) * len(y)
    entries = float((re.search(r"([\d.]+) cells", report.layout) or ["", X.shape[1]])[1])
    return {
        "set": name, "C": C, "n": len(y), "d": X.shape[1], "machines": len(pairs), "calls": dict(calls),
        "multiply_adds": values * entries, "objective": report.dual,
        **fields_of(report, "outer_steps", "steps", "rows_computed", "layout", "converged"),
    }  # fmt: skip


def _modelled(row: Row) -> float:
    """Return the seconds of the counted work on an H100 if nothing overlaps, without layout, checks and host.

    The result is NaN for several subproblems.
    """
    if row["machines"] > 1:  # (their iterations run side by side)
        return np.nan
    work = row["steps"] * ITERATION.get(row.get("pairs", 1), np.nan) + 1e-9 * row["multiply_adds"] * PRODUCTS
    return float(work + row["calls"]["launches"] * LAUNCH + row["calls"]["copies"] * COPY)


def _show(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{set}"), ("C", "{C:g}"), ("pairs", "{pairs}"), ("rows", "{n}"), ("machines", "{machines}"),
        ("working sets", "{outer_steps}"),
        ("SMO iterations", "{steps}"), ("launches", "{calls[launches]}"),
        ("a working set", lambda row: f"{row['calls']['launches'] / row['outer_steps']:.1f}"),
        ("waiting copies", "{calls[copies]}"), ("GFMA", lambda row: f"{1e-9 * row['multiply_adds']:.3g}"),
        ("modelled ms", lambda row: f"{1e3 * _modelled(row):.3g}".replace("nan", "")), ("objective", "{objective:.9g}"),
    )  # fmt: skip
    return shown(f"{result['device']}, profile {result['profile']}", columns, result["rows"])


COMMAND = Command(
    "host",
    "launches and waiting copies of fits on a GPU's profile, counted on a CPU",
    (
        sets_of(tuple(sets.SETS), SETS),
        DATA,
        option("--profile", default="gpu", help="the device profile whose kernels run"),
        option("--penalties", type=_numbers, help="values of C, such as 1,10,100; default: the C of each set"),
        option("--pairs", type=_numbers, help="pairs of an SMO iteration, such as 1,8; default: the profile's"),
        number("--rows", 6000, "first rows of each set at most"),
    ),
    Part(measure, _show, lambda result: all(row["converged"] for row in result["rows"])),
)
