"""The benchmarks' command line."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import clsvm
from benchmarks import (
    command,
    falkon,
    fits,
    gallery,
    growth,
    gtsvm,
    host,
    ladder,
    larger,
    predict,
    sharded,
    studies,
    table,
    tasks,
)
from benchmarks.boostsvm import command as boostsvm
from benchmarks.gpu import command as gpu
from benchmarks.gpu import summary
from clsvm import files
from clsvm.opencl import devices

_LISTED: tuple[command.Command, ...] = (
    *fits.COMMANDS, growth.COMMAND, predict.COMMAND, tasks.COMMAND, ladder.COMMAND, gtsvm.COMMAND,
    boostsvm.COMMAND, falkon.COMMAND, studies.COMMAND, larger.LARGER, larger.OUTOFCORE, sharded.COMMAND,
    gallery.COMMAND, host.COMMAND,
)  # fmt: skip
COMMANDS = {one.name: one for one in _LISTED}


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 0 where ours is right, 1 where it is not or where a set, a file or a package is missing."""
    asked = _parser().parse_args(argv)
    if getattr(asked, "data", ...) is None and os.environ.get("CLSVM_DATA"):
        asked.data = Path(os.environ["CLSVM_DATA"]).resolve()
    try:
        if asked.command == "gpu":
            return gpu.run(asked)
        return _table(asked) if asked.command == "table" else _run(asked)
    except (FileNotFoundError, ModuleNotFoundError, command.MissingSetError) as error:
        hint = " (pip install scikit-learn-intelex)" if getattr(error, "name", "") == "sklearnex" else ""
        print(f"python -m benchmarks: error: {error}{hint}", file=sys.stderr)
        return 1


def _run(asked: argparse.Namespace) -> int:
    one = COMMANDS[asked.command]
    part, plot, out = one.part(vars(asked)), getattr(asked, "plot", None), asked.out
    if plot:
        table.library()  # better missed now than after minutes
    device = str(devices.find(asked.device.partition(",")[0] if asked.device else None))
    result = _head() | {"device": device, "kind": one.name} | part.measure(asked)
    print(page(result))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as stream:
            stream.write(f"{json.dumps(result, indent=1)}\n".encode())
        print(f"written to {out}")
    if plot and part.draw:
        part.draw(result, plot)
        print(f"drawn to {plot}")
    return 0 if part.holds(result) else 1


def _head() -> dict[str, Any]:
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "devices": [dataclasses.asdict(device) for device in clsvm.devices()],
        "machine": command.machine(),
        "versions": command.versions(),
    }


def part_of(result: dict[str, Any]) -> command.Part:
    """Return the part of a command whose result it is."""
    return COMMANDS[result.get("kind", "fit")].part(result)


def page(result: dict[str, Any]) -> str:
    """Return a result as Markdown."""
    if result.get("kind") == "gpu":
        return summary.markdown(result)
    made = part_of(result).show(result)
    return "\n\n".join(one.markdown() for one in (made if isinstance(made, list) else [made]))


def _table(asked: argparse.Namespace) -> int:
    result = json.loads(asked.file.read_text())
    print(page(result))
    if asked.plot and result.get("kind") != "gpu" and (draw := part_of(result).draw):
        draw(result, asked.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    style = argparse.ArgumentDefaultsHelpFormatter
    for one in COMMANDS.values():
        own = commands.add_parser(one.name, help=one.help, formatter_class=style)
        for flags, given in one.options:
            own.add_argument(*flags, **given)
        own.add_argument("--device", help="as clsvm.SVC takes it")
        own.add_argument("--out", type=Path, metavar="FILE", help="a JSON file of all figures")
    gpu.add_arguments(commands.add_parser("gpu", help=gpu.HELP))
    show = commands.add_parser("table", help="print a result file as a Markdown table")
    show.add_argument("file", type=Path)
    show.add_argument("--plot", type=Path, metavar="FILE", help="a picture to draw of it, where there is one")
    return parser
