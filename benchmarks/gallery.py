"""Output and seconds of scikit-learn's example scripts, run unchanged and under ``clsvm.accel``.

--folder is the folder ``examples`` of the source distribution of the installed scikit-learn. Scripts run if they fit a
support vector machine and download nothing. Two printed numbers agree if they differ by at most 1e-2 of the larger of
the first number and 1. Lines about time are ignored.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.command import Asked, Command, Part, option, repeats
from benchmarks.solvers import interleaved
from benchmarks.table import Row, Shown, shown

NAMED = re.compile(r"\b(SVC|NuSVC|SVR|NuSVR|OneClassSVM)\(")
FETCHES = re.compile(r"fetch_|urlretrieve|https?://\S+\.(csv|zip)\"")
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
TAKES = re.compile(r"\bin \d|\btimes?\b|seconds|\btook\b|latency|elapsed|\d ?m?s\b", re.IGNORECASE)
WITHIN = 1e-2
LIMIT = 900  # seconds of a script


def scripts(folder: Path, pattern: str = "") -> list[Path]:
    """Return the paths of the scripts that fit a support vector machine and download nothing."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("plot_*.py"))}
    found = [path for path, text in texts.items() if NAMED.search(text) and not FETCHES.search(text)]
    return [path for path in found if re.search(pattern, str(path.relative_to(folder)))]


def measure(asked: Asked) -> Row:
    """Run each script in both ways, and sum the seconds."""
    found = scripts(asked.folder, asked.scripts)
    if not found:
        raise SystemExit(f"{asked.folder}: got no script that fits a kernel machine, expected scikit-learn's examples")
    rows = [_both(path, asked) for path in found]
    plain, ours = (sum(row[who] for row in rows) for who in ("scikit-learn", "accel"))
    return {"rows": rows, "total": {"scikit-learn": plain, "accel": ours, "ratio": ours / plain}}


def _both(path: Path, asked: Asked) -> Row:
    given = {"scikit-learn": (), "accel": ("-m", "clsvm.accel")}
    runs = interleaved({who: partial(_run, path, how, asked.device) for who, how in given.items()}, asked.repeats)
    (theirs, error), (printed, failed) = (last for _, last in runs.values())
    numbers, differing = differences(theirs, printed)
    return {
        "script": str(path.relative_to(asked.folder)),
        **{who: statistics.median(seconds) for who, (seconds, _) in runs.items()},
        "numbers": numbers,
        "differing": differing,
        "calls": [line for line in failed.splitlines() if "): clsvm, " in line],
        "failed": "Traceback" in failed and "Traceback" not in error,
        "skipped": error.splitlines()[-1] if "Traceback" in error else "",
    }


def _run(path: Path, how: tuple[str, ...], device: str | None) -> tuple[str, str]:
    """Return a script's standard output and error output."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(Path(__file__).parents[1])}
    environment["CLSVM_ACCEL_LOG"] = "info"
    environment |= {"CLSVM_DEVICE": device} if device else {}
    words: list[Any] = [sys.executable, "-W", "ignore", *how, str(path)]
    with TemporaryDirectory() as folder:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
        return done.stdout, done.stderr


def differences(expected: str, got: str) -> tuple[int, list[list[str]]]:
    """Return the number of compared numbers, and the pairs of lines whose words or numbers differ."""
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


def _show(result: Row) -> Shown:
    columns = (
        ("script", "{script}"), ("scikit-learn s", "{scikit-learn:.2f}"), ("accel s", "{accel:.2f}"),
        ("accel / scikit-learn", lambda row: f"{row['accel'] / row['scikit-learn']:.2f}"), ("numbers", "{numbers}"),
        ("lines that differ", lambda row: str(len(row["differing"]))),
        ("", lambda row: "failed" if row["failed"] else row["skipped"]),
    )  # fmt: skip
    return shown(result, columns, [*result["rows"], {"script": "all", **result["total"]}])


COMMAND = Command(
    "gallery",
    "scikit-learn's example scripts, unchanged and under clsvm.accel",
    (
        option("--folder", type=Path, required=True, help="examples of scikit-learn's source distribution"),
        option("--scripts", default="", help="a regular expression of paths in the folder"),
        repeats(3, "runs of each script, each way"),
    ),
    Part(measure, _show, lambda result: not any(row["failed"] or row["differing"] for row in result["rows"])),
)
