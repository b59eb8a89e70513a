"""Exact SVMs of rows that the device may not hold: dense rows under a quarter of their bytes, beside the same fit in
core, and rows of a mapped file that are more than the memory that the process takes.

In core and within the limit have the same row cache, which is small, and take turns, in one process for each set. What
counts as right: the same objective up to 1e-5, what the allocator counted within the limit, and at most
LOSS times the seconds. ``mapped`` is written by seed: two clouds of rows, well apart in one direction, so that few of
them are support vectors; --bytes says how many it has for the run whose memory is looked at, which MOST seconds end.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.table import Table

import clsvm
from benchmarks import command, sets
from benchmarks.boostsvm import cases
from benchmarks.command import add_repeats, add_sets
from benchmarks.speed import memory
from clsvm.opencl import devices

SETS = ("gisette", "mnist8", "mapped", "huge")
CACHE = 10  # MB of kernel rows
SHARE, LOSS, SAME = 4, 1.5, 1e-5
WIDE, PIECE = 2000, 4096  # columns of a mapped file, rows that are written at a time
APART, ALONG, ACROSS = 1.5, 0.5, 0.1  # half of the distance of its classes, deviations in that direction and in others
C, GAMMA = 1.0, 0.05  # over it
ROWS = 100_000  # of ``mapped``
LIMIT, MOST, RESIDENT = 1 << 30, 120.0, 2 << 30  # of ``huge``: device bytes, seconds, anonymous bytes of the process
EVERY = 0.05  # seconds between looks at the process's memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Sets, repeats, the size of the largest file."""
    add_sets(parser, SETS, list(SETS))
    add_repeats(parser, 3, "fits of each kind")
    words = "bytes of the file of huge (8.8e9), which is written to the folder for temporary files"
    parser.add_argument("--bytes", type=float, default=8.8e9, help=words)
    sets.add_data(parser, "none needed but for mnist8")


@dataclass(frozen=True)
class Options:
    """What the processes are told."""

    device: str | None
    data: Path | None
    repeats: int
    nbytes: int


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """A record for each set."""
    options = Options(asked.device, asked.data, asked.repeats, int(asked.bytes))
    found = [command.in_own_process(huge if name == "huge" else beside, name, options) for name in asked.sets]
    return {"device": str(devices.find(asked.device)), "share": 1 / SHARE, "cache_mb": CACHE, "sets": found}


def beside(name: str, options: Options) -> dict[str, Any]:
    """In core and within a quarter of X's bytes, in turns, the first fits not counted."""
    with TemporaryDirectory() as folder:
        if name == "mapped":
            X, y = mapped(Path(folder) / "rows.npy", ROWS)
            given = C, GAMMA
        else:
            case = cases.load(name, folder=options.data)
            X, y, given = np.ascontiguousarray(case.X), case.y, (case.C, case.gamma)
        limits = {"in core": None, "limited": X.nbytes // SHARE}
        rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in limits}
        for _ in range(options.repeats):
            for kind, limit in limits.items():
                rows[kind].append(_fit(X, y, *given, options.device, memory_limit=limit))
        found: dict[str, Any] = {"set": name, "n": X.shape[0], "d": X.shape[1], "bytes": X.nbytes}
        for kind, some in rows.items():
            found[kind] = some[-1] | {"seconds": statistics.median(one["seconds"] for one in some[1:] or some)}
        found["limit"] = limits["limited"]
        found["times"] = found["limited"]["seconds"] / found["in core"]["seconds"]
        return found


def huge(name: str, options: Options) -> dict[str, Any]:
    """One fit over a mapped file, and the most memory of its own that the process had."""
    with TemporaryDirectory() as folder:
        X, y = mapped(Path(folder) / "rows.npy", options.nbytes // (4 * WIDE))
        with watched() as peak:
            row = _fit(X, y, C, GAMMA, options.device, memory_limit=LIMIT, max_time=MOST)
        shape = {"set": name, "n": X.shape[0], "d": X.shape[1], "bytes": X.nbytes, "limit": LIMIT}
        return shape | {"limited": row, "anonymous": peak[0]}


def _fit(X: Any, y: Any, cost: float, gamma: float, device: str | None, **given: Any) -> dict[str, Any]:
    report = clsvm.SVC(C=cost, gamma=gamma, cache_size=CACHE, device=device, **given).fit(X, y).fit_report_
    numbers = report.to_dict()
    kept = ("status", "primal", "dual", "violation", "outer_steps", "rows_computed", "bytes_held", "layout")
    return {"C": cost, "gamma": gamma, "seconds": report.seconds["total"]} | {key: numbers[key] for key in kept}


def mapped(path: Path, n: int) -> tuple[Any, Any]:
    """(X (n, WIDE) float32 in a file, open for reading; y (n,)): normal numbers, and two classes that are 2 APART from
    each other in the first column."""
    rng, out = np.random.default_rng(0), np.lib.format.open_memmap(path, "w+", np.float32, (n, WIDE))
    y = np.where(np.arange(n) % 2, 1.0, -1.0)
    for first in range(0, n, PIECE):
        some = slice(first, min(first + PIECE, n))
        out[some] = rng.standard_normal((some.stop - first, WIDE), np.float32)
        out[some, 0] = ALONG * out[some, 0] + APART * y[some]
        out[some, 1:] *= ACROSS
    out.flush()
    del out
    return np.load(path, mmap_mode="r"), y


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most anonymous resident memory of this process inside, in bytes, in a list of one; 0 where the system does
    not say."""
    peak, over = [0], threading.Event()

    def look() -> None:
        while memory.STATUS.exists():
            peak[0] = max(peak[0], memory.bytes_of("RssAnon"))
            if over.wait(EVERY):
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def show(result: dict[str, Any]) -> Table:
    """A row for each set."""
    table = Table(
        "set", "MB", "limit MB", "held MB", "in core s", "limited s", "times", "objective apart", "own memory MB"
    )
    for one in result["sets"]:
        if "error" in one:
            table.add_row(one["set"], one["error"])
            continue
        limited, core = one["limited"], one.get("in core")
        sizes = [f"{one[key] / 1e6:.1f}" for key in ("bytes", "limit")] + [f"{limited['bytes_held'] / 1e6:.1f}"]
        beside = [f"{core['seconds']:.2f}"] if core else [""]
        last = [f"{one['times']:.2f}", f"{_apart(one):.1e}"] if core else ["", ""]
        own = f"{one['anonymous'] / 1e6:.0f}" if "anonymous" in one else ""
        table.add_row(f"{one['set']} {one['n']}x{one['d']}", *sizes, *beside, f"{limited['seconds']:.2f}", *last, own)
    return table


def _apart(one: dict[str, Any]) -> float:
    core = one["in core"]["dual"]
    return abs(one["limited"]["dual"] - core) / abs(core)


def holds(result: dict[str, Any]) -> bool:
    """Whether every set is within its limits."""
    return all(_right(one) for one in result["sets"])


def _right(one: dict[str, Any]) -> bool:
    if "error" in one or one["limited"]["bytes_held"] > one["limit"]:
        return False
    if "anonymous" in one:
        return bool(one["anonymous"] < RESIDENT)
    return one["times"] <= LOSS and _apart(one) <= SAME
