"""One step in a process of its own: `python -m benchmarks.gpu.steps NAME FILE ASKED`, ASKED being JSON.

FILE is rewritten whole with each part of the record, so that it tells what there was when the process died.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import BY_NAME, Asked, PartialError, Step

WORDS = 2000  # characters of an error that are kept: build logs can be long


def main(argv: list[str]) -> int:
    """Runs the step and writes its record; 0 however it ends, since the record says how."""
    name, file, asked = argv
    told = json.loads(asked)
    paths = {key: Path(told[key]) if told[key] else None for key in ("data", "folder")}
    record(BY_NAME[name], Path(file), Asked(**told | paths))
    return 0


def record(step: Step, file: Path, asked: Asked) -> dict[str, Any]:
    """The step's record, on disk after each part: "status" and, but for "ok", "error"."""
    found: dict[str, Any] = {"status": "cut"}  # what stands there if the process dies
    write(file, found)
    try:
        module, _, function = step.run.partition(":")
        run = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
        for part in run(asked, **step.arguments):
            add(found, part)
            write(file, found)
        found["status"] = "ok"
    except PartialError as end:
        found |= {"status": "partial", "error": str(end)}
    except Exception as end:  # whatever a driver or a step throws is a result, and the other steps still count
        traceback.print_exc()
        words = f"{type(end).__name__}: {end}"[:WORDS]
        found |= {"status": "failed", "error": words, "traceback": traceback.format_exc()[-WORDS:]}
    write(file, found)
    return found


def add(found: dict[str, Any], part: Mapping[str, Any]) -> None:
    """A part into the record: lists grow, everything else is replaced."""
    for key, value in part.items():
        found[key] = found[key] + value if isinstance(value, list) and key in found else value


def write(file: Path, content: Any) -> None:
    """JSON, the file replaced whole."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(json.dumps(_plain(content), indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, file)


def _plain(value: Any) -> Any:
    """In JSON's types: NumPy's numbers as Python's, nan and infinity as None, what is unknown as its words."""
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
    sys.exit(main(sys.argv[1:]))
