"""`python -m benchmarks gpu`: measure a GPU within a number of minutes, and write each figure to disk at once.

Each step runs in a fresh process with a time limit. If a step crashes, hangs or fails, its error is recorded, and the
next step runs. This process imports no OpenCL, so that no driver can end it. The steps need only NumPy, SciPy,
scikit-learn, pyopencl and Mako. The folder gets gpu.json with all figures, gpu.md with the tables, and gpu.log with
the output of the steps.

A step is a generator function, named as "module:function". It takes an :class:`Asked` and the step's arguments, and
yields parts of its record. Each part is on disk before the next one is computed. The step is "ok" if it ends,
"partial" if it raises :class:`PartialError`, and "failed" if it raises another exception.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command import machine, several, versions
from benchmarks.gpu import summary
from benchmarks.solvers import Contestant, Reply, Worker
from clsvm import files

HELP = "measure a GPU: limits, training, peaks, products; writes JSON and tables into a folder"
LEAST = 10.0  # seconds of a step at least, if as many are left
WORTH = 4.0  # seconds below which no step is begun
CLOSING = 2.0  # seconds kept for the end of the command
WORDS = 2000  # characters of an error at most, since build logs can be long
GREEN = ("ok", "partial", "skipped")
TRAINING, DEVICE = "benchmarks.gpu.training", "benchmarks.gpu.device"


@dataclass(frozen=True)
class Asked:
    """The request to a step. device: as clsvm.SVC takes it. seconds: the step's time limit."""

    device: str | None
    data: Path | None
    seconds: float


class PartialError(Exception):
    """The time of a step ended before its work, which had no errors until then."""


@dataclass(frozen=True)
class Step:
    """A step of the command.

    run: "module:function". share: the step's part of the remaining time, relative to those of the later steps. file: a
    file of the data folder, without which the step is skipped.
    """

    name: str
    run: str
    share: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


def _fits(name: str, share: float, file: str = "", run: str = "train") -> Step:
    return Step(f"{run} {name}", f"{TRAINING}:{run}", share, {"name": name}, file)


def _products(d: int, share: float) -> Step:
    return Step(f"products {d}", f"{DEVICE}:products", share, {"d": d})


STEPS = (  # the most important steps first
    Step("limits", f"{DEVICE}:limits", 4),
    _fits("a9a", 6, "a9a.xz"),
    _fits("mnist8", 6, "mnist.npz"),
    _fits("synthetic", 7),
    _fits("a9a", 2, "a9a.xz", "kernels"),
    _fits("mnist8", 2, "mnist.npz", "kernels"),
    Step("peaks", f"{DEVICE}:peaks", 4),
    _products(784, 4),
    _fits("letter", 4, "letter.scale.xz"),
    _fits("letter", 2, "letter.scale.xz", "kernels"),
    _fits("covtype", 8, "covtype_full.npz"),
    _fits("mnist10", 8, "mnist.npz"),
    _fits("mnist10 at once", 6, "mnist.npz"),
    *(_products(d, share) for d, share in ((128, 3), (54, 3), (2000, 4), (16, 3))),
)
BY_NAME = {step.name: step for step in STEPS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    flags, given = several("--steps", tuple(BY_NAME), ())
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    parser.add_argument("--minutes", type=float, default=9.0, help="when to have ended (9)")
    parser.add_argument("--device", help="as clsvm.SVC takes it; CLSVM_DEVICE, else gpu")
    parser.add_argument("--data", type=Path, help="folder of the data sets; CLSVM_DATA")
    parser.add_argument(*flags, **given)
    parser.set_defaults(run=run)


def main(argv: list[str]) -> int:
    """Run the command without the imports of the other benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(asked: argparse.Namespace) -> int:
    """Run the steps; return 1 if a step failed or was killed, else 0."""
    end = time.monotonic() + 60 * asked.minutes - CLOSING
    folder, data = asked.out.resolve(), asked.data or os.environ.get("CLSVM_DATA")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.log").write_text("")
    device, data = asked.device or os.environ.get("CLSVM_DEVICE") or "gpu", Path(data).resolve() if data else None
    result: dict[str, Any] = {
        "kind": "gpu",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        "minutes": asked.minutes,
        "device": device,
        "machine": machine(),
        "versions": versions(),
        "steps": [],
    }
    plan = [BY_NAME[name] for name in asked.steps] or STEPS
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the run as Ctrl-C does
    try:
        for i, step in enumerate(plan):
            left = end - time.monotonic()
            fair = left * step.share / sum(later.share for later in plan[i:])
            _step(result, folder, step, Asked(device, data, min(left, max(fair, LEAST))))
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0 if all(one["status"] in GREEN for one in result["steps"]) else 1


def _step(result: dict[str, Any], folder: Path, step: Step, asked: Asked) -> None:
    """Run one step, or skip it, and append its record to the result."""
    record: dict[str, Any] = {"step": step.name, "run": step.run, "limit": asked.seconds}
    record |= {"status": "killed", "error": "the whole run was stopped meanwhile"}
    result["steps"].append(record)
    started = time.monotonic()
    print(f"{step.name}, {max(0.0, asked.seconds):.0f} s at most", flush=True)
    try:
        if step.file and not (asked.data and (asked.data / step.file).is_file()):
            where = asked.data or "no data folder was given (--data DIR or CLSVM_DATA)"
            record |= {"status": "skipped", "error": f"{step.file} is not there: {where}"}
        elif asked.seconds < WORTH:
            record |= {"status": "skipped", "error": "no time was left"}
        else:
            _process(result, record, folder, step, asked)
    finally:
        record["seconds"] = time.monotonic() - started
        _save(result, folder)
        print(summary.said(record), flush=True)


def _process(result: dict[str, Any], record: dict[str, Any], folder: Path, step: Step, asked: Asked) -> None:
    """Run a step in a fresh process, and add its parts and its status to the record."""
    log, end = folder / "gpu.log", time.monotonic() + asked.seconds
    before = log.stat().st_size
    one = Contestant(step.name, "", 1, Worker(asked.seconds, _parts, step.run, asked, dict(step.arguments), log))
    try:
        while (part := one.ask(None)) is not None and "status" not in part:
            add(record, part)
            _save(result, folder)
            one.worker.limit = max(1e-3, end - time.monotonic())
    finally:
        one.worker.end()
    del record["error"]
    record |= part or {"error": f"stopped after its {asked.seconds:.0f} s" if one.too_long else one.failed}
    if record["status"] == "killed":
        record["printed"] = log.read_bytes()[before:][-3000:].decode(errors="replace")


def _parts(run: str, asked: Asked, arguments: dict[str, Any], log: Path) -> Reply:
    """Return a function that returns the next part of a step, and after the last one a part with the status."""
    with log.open("ab") as stream:
        for standard in (sys.stdout, sys.stderr):
            os.dup2(stream.fileno(), standard.fileno())
    faulthandler.enable()
    os.environ |= {"CLSVM_DEVICE": asked.device or ""} | ({"CLSVM_DATA": str(asked.data)} if asked.data else {})

    def parts() -> Iterator[dict[str, Any]]:
        module, _, function = run.partition(":")
        try:
            yield from getattr(importlib.import_module(module), function)(asked, **arguments)
            yield {"status": "ok"}
        except PartialError as end:
            yield {"status": "partial", "error": str(end)}
        except Exception as end:  # an error of a driver or a step is a result, and the other steps still count
            traceback.print_exc()
            error = f"{type(end).__name__}: {end}"[:WORDS]
            yield {"status": "failed", "error": error, "traceback": traceback.format_exc()[-WORDS:]}

    every = parts()
    return lambda request: next(every)


def _save(result: dict[str, Any], folder: Path) -> None:
    texts = {"gpu.json": json.dumps(result, indent=1, default=_plain) + "\n", "gpu.md": summary.markdown(result)}
    for name, text in texts.items():
        with files.atomic_write(folder / name) as stream:
            stream.write(text.encode())


def _plain(value: Any) -> Any:
    """Return a value that JSON lacks as a dictionary, a number or a string."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.item() if hasattr(value, "item") else str(value)


def add(found: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part to the record, whose lists grow and whose other values are replaced."""
    for key, value in part.items():
        found[key] = found[key] + value if isinstance(value, list) and key in found else value


def ended(wrong: list[str], left_out: list[str]) -> None:
    """Raise ArithmeticError if results are wrong, and PartialError if some are missing for lack of time."""
    if wrong:
        raise ArithmeticError(f"wrong: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(f"no time for {', '.join(left_out)}")
