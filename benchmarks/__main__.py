"""The benchmarks' command line."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu import command as gpu
from benchmarks.gpu import summary

if __name__ == "__main__" and sys.argv[1:2] == ["gpu"]:  # its machines may have nothing of what the others import
    sys.exit(gpu.main(sys.argv[2:]))

from rich.console import Console

import clsvm
from benchmarks import chart, environment
from benchmarks.command import Command, add_plot
from benchmarks.commands import COMMANDS
from benchmarks.sets import MissingSetError
from clsvm import files


def main(argv: list[str] | None = None) -> int:
    """Runs one of the commands; 0 when every row of ours counts and every rung is right, 1 otherwise; 1, and
    what it is, where a data set, a file or a package is missing."""
    asked = _parser().parse_args(argv)
    try:
        return int(asked.run(asked))
    except (FileNotFoundError, ModuleNotFoundError, MissingSetError) as error:
        hint = " (pip install scikit-learn-intelex)" if getattr(error, "name", "") == "sklearnex" else ""
        print(f"python -m benchmarks: error: {error}{hint}", file=sys.stderr)
        return 1


def _run(command: Command, asked: argparse.Namespace) -> int:
    """Measure, show, write where a file is named."""
    found = command.measure(asked)
    result = _head() | {"kind": command.name} | found
    console = _console()
    console.print(command.show(result))
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(asked.out) as stream:
            stream.write(f"{json.dumps(result, indent=1)}\n".encode())
        console.print(f"written to {asked.out}", soft_wrap=True)
    if words := command.after(asked, result):
        console.print(words, soft_wrap=True)
    return 0 if command.holds(result) else 1


def _head() -> dict[str, Any]:
    """What every result file begins with; devices: as clsvm sees them, with driver and limits."""
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "device": "none",
        "devices": [dataclasses.asdict(device) for device in clsvm.devices()],
        "machine": environment.machine(),
        "versions": environment.versions(),
    }


def _table(asked: argparse.Namespace) -> int:
    """A result file as a page has it, or as the console draws it."""
    result = json.loads(asked.file.read_text())
    kind = result.get("kind", "fit")
    command = COMMANDS.get(kind)
    shown = (command.page or command.show)(result) if command else summary.markdown(result)
    print(shown) if isinstance(shown, str) else _console().print(shown)
    if asked.plot and kind in ("fit", "hard", "text"):
        chart.draw(result, asked.plot)
    return 0


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 200)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for one in COMMANDS.values():
        own = commands.add_parser(one.name, help=one.help)
        one.arguments(own)
        own.add_argument("--device", help="as clsvm.SVC takes it")
        own.add_argument("--out", type=Path, metavar="FILE", help="the JSON file of all figures; default: none")
        own.set_defaults(run=lambda asked, one=one: _run(one, asked))
    machines = commands.add_parser("gpu", help=gpu.HELP)
    gpu.add_arguments(machines)
    machines.set_defaults(run=gpu.run)
    show = commands.add_parser("table", help="print a result file as a markdown table")
    show.add_argument("file", type=Path)
    add_plot(show, "a picture to draw of a result of fit, hard or text")
    show.set_defaults(run=_table)
    return parser


if __name__ == "__main__":
    sys.exit(main())
