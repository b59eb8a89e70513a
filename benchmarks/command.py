"""The command line of the benchmarks: records of commands and their parts, shared options, and fresh processes.

`python -m benchmarks NAME` runs a command, writes its result as JSON and prints it as a table. A data set that fails
has an "error" in the result. A data set that a part cannot take is "refused". Neither has other figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import json
import multiprocessing
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.table import Row, Shown
from clsvm import files

MODULES = ("fits", "predict", "ladder", "gtsvm", "boostsvm.command", "falkon", "studies", "larger", "sharded",
           "gallery", "host")  # fmt: skip
PEERS = ("libsvm", "onedal")
PACKAGES = ("numpy", "scipy", "scikit-learn", "pyopencl", "mako", "scikit-learn-intelex", "daal", "intel-opencl-rt",
            "pykeops")  # fmt: skip
Asked = argparse.Namespace
Option = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """One measurement of a command.

    measure: returns the figures, JSON-ready. show: returns their tables. right: returns whether clsvm's results are
    correct. The last two get the data sets that were measured.
    """

    measure: Callable[..., Row]
    show: Callable[[Row], Shown | list[Shown]]
    right: Callable[[Row], bool] = lambda result: True

    def holds(self, result: Row) -> bool:
        """Return whether clsvm's results are correct and every data set was measured."""
        return not any("error" in one for one in result.get("sets", ())) and self.right(_measured(result))

    def page(self, result: Row) -> str:
        """Return the tables as Markdown, with a note on each data set that was not measured."""
        made = self.show(_measured(result))
        tables = made if isinstance(made, list) else [made]
        for one in result.get("sets", ()):
            if why := one.get("error") or one.get("refused"):
                name = one["set"] + (f", h = {one['h']}" if "h" in one else "")
                tables[-1].notes.append(f"{name}: {'' if 'error' in one else 'not possible, '}{why}")
        return "\n\n".join(one.markdown() for one in tables)


def _measured(result: Row) -> Row:
    if "sets" not in result:
        return result
    return result | {"sets": [one for one in result["sets"] if not ("error" in one or "refused" in one)]}


@dataclass(frozen=True)
class Command:
    """One benchmark.

    options: those besides --device and --out. parts: its only part, or its parts by the key that ``which`` returns for
    options or for a result.
    """

    name: str
    help: str
    options: Sequence[Option]
    parts: Part | Mapping[Any, Part]
    which: Callable[[Row], Any] = lambda given: None

    def part(self, given: Row) -> Part:
        """Return the part that the options select, or the part that made a result."""
        return self.parts if isinstance(self.parts, Part) else self.parts[self.which(given)]


def option(*flags: str, **given: Any) -> Option:
    """Return the arguments of argparse's add_argument."""
    return flags, given


def several(flag: str, known: Sequence[str], default: Sequence[str] | None, words: str = "") -> Option:
    """Return an option that takes a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; there are {', '.join(known)}")
        return found

    words = f"of {', '.join(known)}{words}"
    return option(flag, type=parse, default=None if default is None else list(default), help=words)


class MissingSetError(ValueError):
    """A data set is unknown, or needs a data folder."""


def chosen(what: str, names: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """Return the names of data sets; raise MissingSetError for a name that is not known."""
    for name in names:
        if name not in known:
            raise MissingSetError(f"{what} has no set {name!r}; there are {', '.join(known)}")
    return names


def sets_of(known: Sequence[str], default: Sequence[str] | None) -> Option:
    """Return the option --sets."""
    return several("--sets", tuple(known), default)


def peers(known: Sequence[str] = PEERS, default: Sequence[str] = ()) -> Option:
    """Return the option --peers."""
    return several("--peers", known, default)


def repeats(default: int, words: str = "fits of each, the cold one included") -> Option:
    """Return the option --repeats."""
    return option("--repeats", type=int, default=default, help=words)


def number(flag: str, default: float | None, words: str) -> Option:
    """Return an option that takes a number of the default's type, or an integer if the default is None."""
    return option(flag, type=float if isinstance(default, float) else int, default=default, help=words)


DATA = option("--data", type=Path, help="folder of the data sets, CLSVM_DATA where it is not given")


def in_own_process(measure: Callable[[str, Asked], Row], name: str, asked: Asked, **more: Any) -> Row:
    """Measure one data set in a fresh process, whose first fit builds the programs; an error becomes the result.

    more: options in addition to those of the command line.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, Asked(**vars(asked) | more)).result()
        except Exception as error:
            return {"set": name, "n": 0, "d": 0, "error": f"{type(error).__name__}: {error}"}


def each_set(measure: Callable[[str, Asked], Row], *recorded: str) -> Callable[[Asked], Row]:
    """Return a function that measures each data set of the options in a fresh process.

    recorded: names of options that the result has beside the sets.
    """

    def every(asked: Asked) -> Row:
        head = {name: getattr(asked, name) for name in recorded}
        return head | {"sets": [in_own_process(measure, name, asked) for name in asked.sets]}

    return every


def machine() -> dict[str, str | int | float]:
    """Return the processor, the number of cores that this process may use, the memory in bytes and the system."""
    info, cpu = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Return the versions of PACKAGES that are installed."""
    installed = {one.metadata["Name"].lower(): one.version for one in metadata.distributions() if one.metadata["Name"]}
    return {name: installed[name] for name in PACKAGES if name in installed}


@cache
def commands() -> dict[str, Command]:
    """Return all commands by name, except for gpu and table."""
    every = [vars(importlib.import_module(f"benchmarks.{module}")) for module in MODULES]
    return {one.name: one for names in every for one in names.get("COMMANDS") or (names["COMMAND"],)}


def page(result: Row) -> str:
    """Return a result as Markdown."""
    if result.get("kind") == "gpu":
        return str(importlib.import_module("benchmarks.gpu.summary").markdown(result))
    return part_of(result).page(result)


def part_of(result: Row) -> Part:
    """Return the part of a command that made a result."""
    return commands()[result.get("kind", "fit")].part(result)


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 0 if clsvm's results are correct, else 1, also if a set, a file or a package is missing."""
    asked = _parser().parse_args(argv)
    if getattr(asked, "data", ...) is None and os.environ.get("CLSVM_DATA"):
        asked.data = Path(os.environ["CLSVM_DATA"]).resolve()
    try:
        return int(asked.run(asked))
    except (FileNotFoundError, ModuleNotFoundError, MissingSetError) as error:
        hint = " (pip install scikit-learn-intelex)" if getattr(error, "name", "") == "sklearnex" else ""
        print(f"python -m benchmarks: error: {error}{hint}", file=sys.stderr)
        return 1


def _run(asked: Asked) -> int:
    import clsvm
    from clsvm.opencl import devices

    part, out = commands()[asked.command].part(vars(asked)), asked.out
    head = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "devices": [dataclasses.asdict(device) for device in clsvm.devices()],
        "machine": machine(),
        "versions": versions(),
        "device": str(devices.find(asked.device.partition(",")[0] if asked.device else None)),
        "kind": asked.command,
    }
    result = head | part.measure(asked)
    print(part.page(result))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with files.atomic_write(out) as stream:
            stream.write(f"{json.dumps(result, indent=1)}\n".encode())
        print(f"written to {out}")
    return 0 if part.holds(result) else 1


def _table(asked: Asked) -> int:
    print(page(json.loads(asked.file.read_text())))
    return 0


def _parser() -> argparse.ArgumentParser:
    from benchmarks.gpu import command as gpu

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks of clsvm.")
    names = parser.add_subparsers(dest="command", required=True)
    style = argparse.ArgumentDefaultsHelpFormatter
    for one in commands().values():
        own = names.add_parser(one.name, help=one.help, formatter_class=style)
        for flags, given in one.options:
            own.add_argument(*flags, **given)
        own.add_argument("--device", help="as clsvm.SVC takes it")
        own.add_argument("--out", type=Path, metavar="FILE", help="a JSON file of all figures")
        own.set_defaults(run=_run)
    gpu.add_arguments(names.add_parser("gpu", help=gpu.HELP))
    show = names.add_parser("table", help="print a result file as a Markdown table")
    show.add_argument("file", type=Path)
    show.set_defaults(run=_table)
    return parser
