"""The project's tests on the device, in pytest processes that may crash or hang: the test to blame is left out then,
and the rest goes on. What has run is kept in the run's folder, so that a second step does not do it again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Asked, PartialError

ROOT = Path(__file__).resolve().parents[2]
# the most telling of a new device
FIRST = tuple(f"tests/{name}.py" for name in ("gram/test_products", "solvers/test_solver", "solvers/test_selection"))
SHARE = 0.93  # of the step's limit, after which it stops by itself
HANG = 60.0, 120.0  # seconds that a test may take: a third of the limit, between these
WORKERS = 16  # pytest processes at most, where pytest-xdist is there and the cores are: compilers take them
POLL = 0.1
LISTED = 60  # failures that are kept by name
GOOD = ("passed", "skipped", "lacking")  # lacking: a file that needs what is not installed here
ALL, AGAIN, CUT = "all", "again", "cut"  # how a pytest process ended
DIED = "signal "  # the same, where no test was to blame
DEATHS = 3  # of pytest processes with no test to blame, after which none is begun


class Log:
    """What the plugin has written so far: outcomes by test, tests that are running, by when they began."""

    def __init__(self, file: Path) -> None:
        self.file, self._read = file, 0
        self.file.touch()
        self.outcome: dict[str, str] = {}
        self.message: dict[str, list[str]] = {}
        self.running: dict[str, float] = {}
        self.collected = 0
        self.look()

    def look(self) -> None:
        """Reads what is new in the file, whole lines only."""
        with self.file.open(encoding="utf-8") as stream:
            stream.seek(self._read)
            text = stream.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            event = json.loads(line)
            if "collected" in event:
                self.collected = event["collected"]
            elif "start" in event:
                self.running[event["start"]] = event["at"]
            else:
                name = event["end"]
                self.running.pop(name, None)
                if self.outcome.get(name) not in ("failed", "error"):  # an error after a failure is the same one
                    self.outcome[name] = event["outcome"]
                    self.message[name] = event.get("message", [])

    def blame(self, outcome: str, message: str, end: float = float("inf")) -> None:
        """What was running, and had begun before ``end``, is why pytest ended: noted, and so not run again."""
        with self.file.open("a", encoding="utf-8") as stream:
            for name, began in self.running.items():
                if began < end:
                    event = {"end": name, "outcome": outcome, "message": [message], "at": time.time()}
                    stream.write(json.dumps(event) + "\n")
        self.running.clear()
        self.look()


def suite(asked: Asked, first: bool, root: Path = ROOT, files: Sequence[str] = FIRST) -> Iterator[dict[str, Any]]:
    """``files``, or all of ``root``'s tests but those that a step before has run."""
    end = time.monotonic() + SHARE * asked.seconds
    log = Log(asked.folder / "tests.jsonl")
    before = set(log.outcome)
    ending, died = AGAIN, 0
    while ending == AGAIN or (ending.startswith(DIED) and died < DEATHS):
        ending = _pytest(files if first else (), root, log, end, min(HANG[1], max(HANG[0], asked.seconds / 3)))
        died += ending.startswith(DIED)
        yield _record(log, before)
    if ending not in (ALL, CUT):
        raise RuntimeError(f"pytest ended before its tests: {ending}")
    ran = sum("::" in name for name in log.outcome)
    to_go = f"the time was over with {max(0, log.collected - ran)} of {log.collected} tests to go"
    if bad := _bad(log, before):
        raise AssertionError(f"{len(bad)} tests failed, crashed or hung" + f"; {to_go}" * (ending == CUT))
    if ending == CUT:
        raise PartialError(to_go)


def _pytest(words: Sequence[str], root: Path, log: Log, end: float, hang: float) -> str:
    """One pytest process over what has not run yet: ALL, AGAIN (a test is left out from now on), CUT, or its words."""
    done, printed = log.file.with_name("done.txt"), log.file.with_name("pytest.txt")
    done.write_text("\n".join(log.outcome), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.gpu.plugin", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "--tb=short", *_parallel(), *words]
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    extra = {"CLSVM_GPU_TESTS": str(log.file), "CLSVM_GPU_DONE": str(done), "PYTHONPATH": paths}
    log.running.clear()  # what an earlier step was cut off at
    late = over = False
    with printed.open("wb") as stream:
        process = subprocess.Popen(
            command, cwd=root, env={**os.environ, **extra}, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        while process.poll() is None and not (late or over):
            time.sleep(POLL)
            log.look()
            late = min(log.running.values(), default=time.time()) + hang < time.time()
            over = time.monotonic() >= end
        if late or over:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
    log.look()
    if late:
        log.blame("hung", f"ran longer than {hang:.0f} s", end=time.time() - hang)
        return AGAIN
    if over:
        return CUT
    if process.returncode in (0, 1, 5):  # all passed, some failed, none left
        return ALL
    if log.running:
        log.blame("crashed", f"pytest's process ended with {process.returncode}")
        return AGAIN
    said = printed.read_text(encoding="utf-8", errors="replace")[-1500:]
    return f"{DIED if process.returncode < 0 else 'code '}{process.returncode} {said}"


def _parallel() -> list[str]:
    """pytest-xdist's words, where it is there and the cores but one are several."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(WORKERS, cores - 1)
    there = workers > 1 and importlib.util.find_spec("xdist") is not None
    return ["-n", str(workers), "--dist", "loadgroup"] if there else []


def _bad(log: Log, before: set[str]) -> list[str]:
    return [name for name, outcome in log.outcome.items() if name not in before and outcome not in GOOD]


def _record(log: Log, before: set[str]) -> dict[str, Any]:
    """Counts by outcome of this step's tests, what failed, and what was running at the end, for how many seconds."""
    counts = Counter(outcome for name, outcome in log.outcome.items() if name not in before)
    failed = {name: {"outcome": log.outcome[name], "message": log.message[name]} for name in _bad(log, before)[:LISTED]}
    counted = {"tests": dict(counts), "collected": log.collected, "earlier": len(before), "failures": failed}
    counted["lacking"] = tuple(name for name, outcome in log.outcome.items() if outcome == "lacking")
    return counted | {"running": {name: time.time() - began for name, began in log.running.items()}}
