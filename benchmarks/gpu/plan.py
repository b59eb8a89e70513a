"""The steps of the command, those most worth knowing first, and how one runs in a process of its own:
`python -m benchmarks.gpu.plan NAME FILE ASKED`, ASKED being JSON.

A step is a generator function of this package, named as "module:function". It takes an :class:`Asked` and the step's
arguments, and yields parts of its record, each of which is on disk when the next one is asked for. It ends by itself
(ok), or raises :class:`PartialError` or anything else (failed).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

WORDS = 2000  # characters of an error that are kept: build logs can be long


@dataclass(frozen=True)
class Asked:
    """What a step is told. device as clsvm.SVC takes it; seconds: its limit; folder: of all records of the run."""

    device: str | None
    data: Path | None
    seconds: float
    folder: Path


class PartialError(Exception):
    """What there was time for went well; the words say what is missing."""


@dataclass(frozen=True)
class Step:
    """share: of the time that is left, beside the shares of the later steps. file: of the data folder, without which
    the step is skipped; instead_of: a file in whose absence alone it runs. Drills run only when asked for by name."""

    name: str
    run: str
    share: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    instead_of: str = ""


def _train(name: str, share: float, file: str = "", instead_of: str = "", run: str = "train") -> Step:
    return Step(f"{run} {name}", f"training:{run}", share, {"name": name}, file, instead_of)


def _kernels(name: str, file: str = "", instead_of: str = "") -> Step:
    return _train(name, 2, file, instead_of, "kernels")


def _products(d: int, share: float, run: str = "products") -> Step:
    return Step(f"{run} {d}", f"products:{run}", share, {"d": d})


STEPS = (
    Step("limits", "device:limits", 4),
    Step("smoke", "device:smoke", 5),
    Step("tests first", "suite:suite", 14, {"first": True}),
    _train("a9a", 6, "a9a.xz"),
    _train("a9a-like", 6, instead_of="a9a.xz"),
    _train("mnist8", 6, "mnist.npz"),
    _train("mnist8-like", 6, instead_of="mnist.npz"),
    _train("synthetic", 7),
    _kernels("a9a", "a9a.xz"),
    _kernels("a9a-like", instead_of="a9a.xz"),
    _kernels("mnist8", "mnist.npz"),
    _kernels("mnist8-like", instead_of="mnist.npz"),
    Step("peaks", "device:peaks", 4),
    Step("trials", "trials:trials", 2),
    _products(784, 4),
    Step("subproblem", "products:subproblem", 4),
    _train("letter", 4, "letter.scale.xz"),
    _kernels("letter", "letter.scale.xz"),
    _train("covtype", 8, "covtype_full.npz"),
    _train("mnist10", 8, "mnist.npz"),
    _train("mnist10-like", 8, instead_of="mnist.npz"),
    _train("mnist10 at once", 6, "mnist.npz"),
    _products(128, 3),
    _products(54, 3),
    _products(2000, 4),
    _products(16, 3),
    Step("reductions", "products:reductions", 4),
    Step("machines on centres", "training:nystrom", 5),
    Step("layouts", "products:layouts", 3),
    _products(784, 3, "tiles"),
    _products(54, 3, "tiles"),
    Step("tests rest", "suite:suite", 12, {"first": False}),
    *(Step(f"drill {what}", "plan:drill", 1, {"what": what}) for what in ("error", "crash", "hang")),
)
BY_NAME = {step.name: step for step in STEPS}


def drill(asked: Asked, what: str) -> Iterator[dict[str, Any]]:
    """Go wrong on purpose after a first result, to see that a run notes it and goes on."""
    yield {"found": [f"before the {what}"]}
    if what == "error":
        raise RuntimeError("a drill: this step fails on purpose")
    if what == "crash":
        os.abort()
    time.sleep(1e6)


def record(step: Step, file: Path, asked: Asked) -> dict[str, Any]:
    """Run the step; return its record, on disk after each part: "status" and, but for "ok", "error"."""
    found: dict[str, Any] = {"status": "cut"}  # what stands there if the process dies
    write(file, found)
    try:
        module, _, function = step.run.partition(":")
        run = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
        for part in run(asked, **step.arguments):
            add(found, part)
            write(file, found)
        found["status"] = "ok"
    except Exception as end:  # whatever a driver or a step throws is a result, and the other steps still count
        # (run as a script, this module has a second copy, whose class it is that steps raise)
        if type(end).__name__ == PartialError.__name__:
            found |= {"status": "partial", "error": str(end)}
        else:
            traceback.print_exc()
            words = f"{type(end).__name__}: {end}"[:WORDS]
            found |= {"status": "failed", "error": words, "traceback": traceback.format_exc()[-WORDS:]}
    write(file, found)
    return found


def add(found: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part to the record: lists grow, everything else is replaced."""
    for key, value in part.items():
        found[key] = found[key] + value if isinstance(value, list) and key in found else value


def ended(wrong: list[str], left_out: list[str]) -> None:
    """Raise ArithmeticError where something is wrong, PartialError where there was no time for something."""
    if wrong:
        raise ArithmeticError(f"wrong: {'; '.join(wrong)}")
    if left_out:
        raise PartialError(f"no time for {', '.join(left_out)}")


def write(file: Path, content: Any) -> None:
    """Write JSON, the file replaced whole."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps(_plain(content), indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, file)


def _plain(value: Any) -> Any:
    """Return JSON's types: NumPy's numbers as Python's, nan and infinity as None, what is unknown as its words."""
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return str(value)


if __name__ == "__main__":
    name, path, words = sys.argv[1:]
    told = json.loads(words)
    paths = {key: Path(told[key]) if told[key] else None for key in ("data", "folder")}
    record(BY_NAME[name], Path(path), Asked(**told | paths))
