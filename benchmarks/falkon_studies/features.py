"""Seconds of the product K(X, C)'(K(X, C) v) over the number of features, ours beside KeOps (Meanti et al. 2020,
figure 8), K made in every pass; float32, rbf, in turns.

KeOps slows down with the features: where a pass over all rows would take longer than the limit, it gets so many rows
that it does not, and its seconds are those times n over them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.falkon_product import keops
from benchmarks.falkon_studies.pictures import picture
from benchmarks.falkon_studies.shared import Options, seconds_of
from clsvm.gram import layouts
from clsvm.gram.cross import Cross
from clsvm.kernels import make
from clsvm.opencl.stream import Stream

FEATURES = (1, 3, 10, 30, 100, 300, 784)
PROBE = 1000  # rows that say what a pass of KeOps takes


def run(options: Options) -> dict[str, Any]:
    """A row for each number of features."""
    n, m = options.rows or 100_000, options.centers or 2000
    return {"n": n, "m": m, "rows": [_row(d, n, min(n, m), options) for d in FEATURES]}


def _row(d: int, n: int, m: int, options: Options) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, V, gamma = rng.random((n, d), np.float32), rng.normal(size=(1, m)), 1.0 / d
    C, rows = X[:m].copy(), {"clsvm": n}
    with Stream(options.device) as stream:
        kernel = make("rbf", gamma=gamma)
        plan = layouts.choose(stream.profile, X, kernel.spec)
        cross = Cross(stream, X, C, kernel, plan, "float32", 1, keep=False)
        calls: dict[str, Callable[[], Any]] = {"clsvm": lambda: cross.forward_back(V)}
        if "keops" in options.peers:
            rows["keops"] = _rows_of_keops(X, C, V, gamma, options.limit)
            calls["keops"] = keops(X[: rows["keops"]], C, V, gamma)
        answers, spent = in_turns(calls, options.repeats)
    apart = _apart(answers) if rows.get("keops") == n else None
    seconds = {name: statistics.median(times) * n / rows[name] for name, times in spent.items()}
    return {"d": d, "seconds": seconds, "all_seconds": spent, "rows": rows, "way": cross.way, "apart": apart}


def in_turns(
    calls: dict[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, NDArray[np.float64]], dict[str, list[float]]]:
    """What a first call of each gives, flat, and the seconds of some more."""
    answers = {name: np.asarray(call(), np.float64).reshape(-1) for name, call in calls.items()}
    turns = [{name: seconds_of(call) for name, call in calls.items()} for _ in range(repeats)]
    return answers, {name: [turn[name] for turn in turns] for name in calls}


def _rows_of_keops(X: Any, C: Any, V: Any, gamma: float, limit: float) -> int:
    """How many of the rows KeOps passes over within the limit."""
    probe = min(PROBE, len(X))
    call = keops(X[:probe], C, V, gamma)
    call()
    least = min(seconds_of(call) for _ in range(2))
    return int(min(len(X), max(probe, probe * limit / least)))


def _apart(answers: dict[str, Any]) -> float:
    """The largest difference, over the largest value."""
    ours, theirs = answers["clsvm"], answers["keops"]
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def holds(result: dict[str, Any]) -> bool:
    """Whether the products agree as well as float32 has them."""
    return all(row["apart"] is None or row["apart"] < 1e-4 for row in result["rows"])


def show(result: dict[str, Any]) -> Table:
    """A row for each number of features."""
    table = Table(title=f"K'(K v), n = {result['n']}, m = {result['m']}, float32: milliseconds of a pass")
    names = [*result["rows"][0]["seconds"]]
    for title in ("d", *names, *(["times ours", "KeOps' rows"] if "keops" in names else [])):
        table.add_column(title, justify="right")
    for row in result["rows"]:
        spent = row["seconds"]
        cells = [f"{1e3 * spent[name]:.3g}" for name in names]
        if "keops" in spent:
            cells += [f"{spent['keops'] / spent['clsvm']:.1f}", str(row["rows"]["keops"])]
        table.add_row(str(row["d"]), *cells)
    return table


def draw(result: dict[str, Any], path: Path) -> None:
    """The curves, both axes logarithmic, into the file ``path``."""
    with picture(result, path, 1) as (axes,):
        for name, label in (("clsvm", "clsvm"), ("keops", "KeOps")):
            points = [(row["d"], row["seconds"][name]) for row in result["rows"] if name in row["seconds"]]
            if points:
                axes.loglog(*zip(*points, strict=True), marker="o", label=label)
        axes.set(title=f"K'(K v), n = {result['n']}, m = {result['m']}, float32", xlabel="features d", ylabel="seconds")
