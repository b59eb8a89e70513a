"""`python -m benchmarks gpu`: tries everything on a GPU within so many minutes, and writes down each thing at once.

Each step is a process of its own with a time limit; what crashes, hangs or fails is recorded, and the next one runs.
This process imports no OpenCL: nothing that a driver does can end it. Into the folder go gpu.json (everything),
gpu.md (the same as tables), gpu.log (what the steps printed) and steps/, a JSON file for each step.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.command import machine, versions
from benchmarks.gpu import summary
from benchmarks.gpu.plan import BY_NAME, STEPS, Step, write

ROOT = Path(__file__).resolve().parents[2]
HELP = "try everything on a GPU: limits, tests, training, peaks, products; JSON and tables into a folder"
LEAST = 10.0  # seconds that a step gets where so much is left, however small its share
WORTH = 4.0  # seconds below which no step is begun
CLOSING = 2.0  # seconds kept for what comes after the last step
GREEN = ("ok", "partial", "skipped")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    parser.add_argument("--minutes", type=_minutes, default=9.0, help="when to have ended (9)")
    parser.add_argument("--device", help="as clsvm.SVC takes it; CLSVM_DEVICE, else gpu")
    parser.add_argument("--data", type=_folder, help="folder of the data sets; CLSVM_DATA, else synthetic stand-ins")
    parser.add_argument("--steps", type=_steps, default=[], help=f"some of the steps: {', '.join(BY_NAME)}")


def main(argv: list[str]) -> int:
    """Run the command by itself, which needs none of what the other benchmarks import."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(asked: argparse.Namespace) -> int:
    """Run the steps; return 0 where none failed or was killed, 1 otherwise."""
    end = time.monotonic() + 60 * asked.minutes - CLOSING
    folder = asked.out.resolve()
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    for file in (folder / "steps").iterdir():  # an earlier run's: its tests would pass for this one's
        file.unlink()
    (folder / "gpu.log").write_text("")
    named = os.environ.get("CLSVM_DATA")
    data = asked.data or (Path(named).resolve() if named else None)
    told = {
        "device": asked.device or os.environ.get("CLSVM_DEVICE") or "gpu",
        "data": str(data) if data else None,
        "folder": str(folder / "steps"),
    }
    result: dict[str, Any] = {
        "kind": "gpu",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        "minutes": asked.minutes,
        "device": told["device"],
        "machine": machine(),
        "versions": versions(),
        "steps": [],
    }
    plan = chosen(asked.steps, told["data"])
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run as Ctrl-C does
    try:
        for i, step in enumerate(plan):
            left = end - time.monotonic()
            fair = left * step.share / sum(later.share for later in plan[i:])
            _step(result, folder, i, step, told, min(left, max(fair, LEAST)))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if all(one["status"] in GREEN for one in result["steps"]) else 1


def chosen(names: list[str], data: str | None) -> list[Step]:
    """Return the steps of those names, or all but the drills; no stand-in for a set that is there."""
    steps = [BY_NAME[name] for name in names] or [step for step in STEPS if not step.name.startswith("drill")]
    return [step for step in steps if not (step.instead_of and _there(data, step.instead_of))]


def _step(result: dict[str, Any], folder: Path, i: int, step: Step, told: dict[str, Any], limit: float) -> None:
    """Run one step; write its record and, as it stands by then, that of all."""
    file = folder / "steps" / f"{i:02d}-{re.sub(r'[^a-z0-9]+', '-', step.name)}.json"
    head: dict[str, Any] = {"step": step.name, "run": step.run, "limit": limit}
    started = time.monotonic()
    found: dict[str, Any] = {"status": "killed", "error": "the whole run was stopped meanwhile"}
    print(f"{step.name}, {max(0.0, limit):.0f} s at most", flush=True)
    try:
        if step.file and not _there(told["data"], step.file):
            where = told["data"] or "no data folder was given (--data DIR or CLSVM_DATA)"
            found = {"status": "skipped", "error": f"{step.file} is not there: {where}"}
        elif limit < WORTH:
            found = {"status": "skipped", "error": "no time was left"}
        else:
            found = _process(step, file, {**told, "seconds": limit}, folder / "gpu.log")
    finally:
        record = head | {"seconds": time.monotonic() - started} | found
        result["steps"].append(record)
        write(file, record)
        write(folder / "gpu.json", result)
        (folder / "gpu.md").write_text(summary.markdown(result), encoding="utf-8")
        print(summary.said(record), flush=True)


def _process(step: Step, file: Path, told: dict[str, Any], log: Path) -> dict[str, Any]:
    """Run a step in a process of its own and return its record, whatever became of it."""
    command = [sys.executable, "-m", "benchmarks.gpu.plan", step.name, str(file), json.dumps(told)]
    paths = [str(ROOT), *(os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)]
    extra = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    extra |= {"CLSVM_DEVICE": told["device"]} | ({"CLSVM_DATA": told["data"]} if told["data"] else {})
    before, limit = log.stat().st_size, told["seconds"]
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **extra}, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
            ended = f"its process ended by itself: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after its {limit:.0f} s"
        finally:
            _kill(process)
    found: dict[str, Any] = {"status": "cut"}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
    if found["status"] == "cut":
        printed = log.read_bytes()[before:][-3000:].decode(errors="replace")
        found |= {"status": "killed", "error": ended, "printed": printed}
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started; one that hangs inside a driver may stay, and is not waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _there(data: str | None, file: str) -> bool:
    return data is not None and (Path(data) / file).is_file()


def _folder(text: str) -> Path:
    folder = Path(text).resolve()
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"expected a folder, got {text!r}")
    return folder


def _minutes(text: str) -> float:
    value = float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) else 0.0
    if not 0 < value < 1e4:
        raise argparse.ArgumentTypeError(f"expected a number of minutes above 0, got {text!r}")
    return value


def _steps(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BY_NAME:
            raise argparse.ArgumentTypeError(f"unknown step {name!r}; there are {', '.join(BY_NAME)}")
    return names
