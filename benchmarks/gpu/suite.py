"""The project's tests on the device, each file in a process of its own that may crash or hang; several at a time.

What has run is kept in the run's folder, so that a second step does not do it again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu.plan import Asked, PartialError

ROOT = Path(__file__).resolve().parents[2]
# the most telling of a new device
FIRST = tuple(f"tests/{name}.py" for name in ("gram/test_products", "solvers/test_solver", "solvers/test_selection"))
SHARE = 0.93  # of the step's limit, after which it stops by itself
HANG = 300.0  # seconds that a file may take
WORKERS = 16  # processes at most: compilers take cores, too
OURS = ("clsvm", "benchmarks", "tests")
MISSING = re.compile(r"No module named '(\w+)")


def suite(asked: Asked, first: bool, root: Path = ROOT, files: Sequence[str] = FIRST) -> Iterator[dict[str, Any]]:
    """Run ``files``, or all of ``root``'s test files but those that a step before has run."""
    end, done = time.monotonic() + SHARE * asked.seconds, asked.folder / "tests-done.txt"
    ran = set(done.read_text().split()) if done.exists() else set()
    every = list(files) if first else sorted(str(one.relative_to(root)) for one in root.rglob("test_*.py"))
    to_go = [name for name in every if name not in ran]
    counts: Counter[str] = Counter()
    failures: dict[str, dict[str, Any]] = {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max(1, min(WORKERS, cores - 1))) as pool:
        futures = {pool.submit(_file, root, name, asked.folder, end): name for name in to_go}
        for future in as_completed(futures):
            outcomes, failed = future.result()
            counts.update(outcomes)
            failures |= failed
            if "cut" not in outcomes:
                ran.add(futures[future])
            yield {"tests": dict(counts), "collected": sum(counts.values()), "failures": failures}
    done.write_text("\n".join(ran))
    left = f"the time was over with {counts['cut']} of {len(to_go)} files to go"
    if failures:
        raise AssertionError(f"{len(failures)} tests failed, crashed or hung" + f"; {left}" * bool(counts["cut"]))
    if counts["cut"]:
        raise PartialError(left)


def _file(root: Path, name: str, folder: Path, end: float) -> tuple[Counter[str], dict[str, dict[str, Any]]]:
    """Run one file; return counts by outcome, and what failed. A crash, a hang or a cut stands for the whole file."""
    limit, report = min(HANG, end - time.monotonic()), folder / f"{name.replace('/', '-')}.xml"
    if limit <= 0:
        return Counter(["cut"]), {}
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}", name]
    try:
        done = subprocess.run(
            words, cwd=root, env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.DEVNULL, timeout=limit
        )
    except subprocess.TimeoutExpired:
        hung = limit == HANG
        return Counter(["hung" if hung else "cut"]), {name: _bad("hung", f"longer than {limit:.0f} s")} if hung else {}
    if done.returncode not in (0, 1, 2, 5):
        return Counter(["crashed"]), {name: _bad("crashed", f"pytest's process ended with {done.returncode}")}
    counts: Counter[str] = Counter()
    failures = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome, text = next(((one.tag, one.text or "") for one in case if one.tag in _OUTCOMES), ("passed", ""))
        found = _OUTCOMES.get(outcome, "passed")
        missing = MISSING.search(text)
        if found == "error" and missing and missing[1] not in OURS:
            found = "lacking"  # a file that needs what is not installed here
        counts[found] += 1
        if found in ("failed", "error"):
            said = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
            failures[f"{name}::{case.get('name')}"] = _bad(found, *said[:4])
    report.unlink()
    return counts, failures


_OUTCOMES = {"failure": "failed", "error": "error", "skipped": "skipped"}


def _bad(outcome: str, *message: str) -> dict[str, Any]:
    return {"outcome": outcome, "message": [line[:300] for line in message]}
