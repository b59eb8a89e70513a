"""The scripts of scikit-learn's example gallery as they are, and under ``clsvm.accel``: what they print, and how long
they take.

--folder: the ``examples`` of a source distribution of the scikit-learn that is installed. Scripts that name one of
its kernel machines and fetch nothing run, each in a process of its own, in turns. A number counts as the same up to
1e-2 of its size, or of 1; words that tell how long something took are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from rich.table import Table

from clsvm.opencl import devices

NAMED = re.compile(r"\b(SVC|NuSVC|SVR|NuSVR|OneClassSVM)\(")
FETCHES = re.compile(r"fetch_|urlretrieve|https?://\S+\.(csv|zip)\"")
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
TAKES = re.compile(r"\bin \d|\btimes?\b|seconds|\btook\b|latency|elapsed|\d ?m?s\b", re.IGNORECASE)
WITHIN = 1e-2
LIMIT = 900  # seconds of a script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Folder, scripts, repeats."""
    parser.add_argument("--folder", type=Path, required=True, help="examples of scikit-learn's source distribution")
    parser.add_argument("--scripts", default="", help="a regular expression of paths in it (all)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each script, each way (3)")


def scripts(folder: Path, pattern: str = "") -> list[Path]:
    """Those that name a kernel machine and fetch nothing."""
    found = []
    for path in sorted(folder.rglob("plot_*.py")):
        text = path.read_text()
        if NAMED.search(text) and not FETCHES.search(text) and re.search(pattern, str(path.relative_to(folder))):
            found.append(path)
    return found


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Each script, and the sum."""
    found = scripts(asked.folder, asked.scripts)
    if not found:
        raise SystemExit(f"{asked.folder}: got no script that fits a kernel machine, expected scikit-learn's examples")
    rows = [_both(path, asked) for path in found]
    return {"device": str(devices.find(asked.device)), "rows": rows, "total": _total(rows)}


def _both(path: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """A script in turns without and with clsvm.accel."""
    given = [(), ("-m", "clsvm.accel", "--profile")]
    runs = [[_run(path, how, asked.device) for how in given] for _ in range(asked.repeats)]
    plain, ours = (statistics.median(run[i][0] for run in runs) for i in range(2))
    (_, theirs, error), (_, printed, failed) = runs[-1]
    compared, differing = differences(theirs, printed)
    return {
        "script": str(path.relative_to(asked.folder)),
        "scikit-learn": plain,
        "accel": ours,
        "numbers": compared,
        "differing": differing,
        "calls": [line for line in failed.splitlines() if " clsvm " in line],
        "failed": "Traceback" in failed and "Traceback" not in error,
        "skipped": error.splitlines()[-1] if "Traceback" in error else "",
    }


def _run(path: Path, how: tuple[str, ...], device: str | None) -> tuple[float, str, str]:
    """(seconds, what it printed, what it said of errors)."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(Path(__file__).parents[1])}
        environment |= {"CLSVM_DEVICE": device} if device else {}
        began = perf_counter()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *how, str(path)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        return perf_counter() - began, done.stdout, done.stderr


def differences(expected: str, got: str) -> tuple[int, list[list[str]]]:
    """(numbers that were compared, [line, the other line] where words, or numbers by more than WITHIN, differ)."""
    compared, found = 0, []
    kept = ([line for line in text.splitlines() if not TAKES.search(line)] for text in (expected, got))
    for left, right in zip_longest(*kept, fillvalue=""):
        numbers = [[float(number) for number in NUMBER.findall(line)] for line in (left, right)]
        compared += len(numbers[0])
        apart = len(numbers[0]) != len(numbers[1]) or any(
            abs(a - b) > WITHIN * max(1.0, abs(a)) for a, b in zip(*numbers, strict=True)
        )
        if apart or NUMBER.sub("", left).split() != NUMBER.sub("", right).split():
            found.append([left, right])
    return compared, found


def _total(rows: list[dict[str, Any]]) -> dict[str, float]:
    plain, ours = (sum(row[who] for row in rows) for who in ("scikit-learn", "accel"))
    return {"scikit-learn": plain, "accel": ours, "ratio": ours / plain}


def show(result: dict[str, Any]) -> Table:
    """A row for each script."""
    table = Table("script", "scikit-learn s", "accel s", "accel / scikit-learn", "numbers", "lines that differ", "")
    for row in result["rows"]:
        ratio = row["accel"] / row["scikit-learn"]
        cells = f"{row['scikit-learn']:.2f}", f"{row['accel']:.2f}", f"{ratio:.2f}"
        note = "failed" if row["failed"] else row["skipped"]
        table.add_row(row["script"], *cells, str(row["numbers"]), str(len(row["differing"])), note)
    total = result["total"]
    table.add_row("all", f"{total['scikit-learn']:.1f}", f"{total['accel']:.1f}", f"{total['ratio']:.3f}", "", "", "")
    return table


def holds(result: dict[str, Any]) -> bool:
    """Whether all end and print the same."""
    return not any(row["failed"] or row["differing"] for row in result["rows"])
