"""Commands and their parts as records, options that several take, sets in processes of their own, the machine."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.table import Row, Shown

PEERS = ("libsvm", "onedal")
PACKAGES = ("numpy", "scipy", "scikit-learn", "pyopencl", "mako", "scikit-learn-intelex", "daal", "intel-opencl-rt",
            "pykeops")  # fmt: skip
Asked = argparse.Namespace
Option = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Part:
    """What is measured together.

    measure: returns the figures, JSON-ready. show: returns their tables. holds: whether ours is right. draw: writes a
    picture to a file.
    """

    measure: Callable[..., Row]
    show: Callable[[Row], Shown | list[Shown]]
    holds: Callable[[Row], bool] = lambda result: True
    draw: Callable[[Row, Path], None] | None = None


@dataclass(frozen=True)
class Command:
    """One benchmark: its options beside --device and --out, its parts by what ``which`` says of options or a result."""

    name: str
    help: str
    options: Sequence[Option]
    parts: Part | Mapping[Any, Part]
    which: Callable[[Row], Any] = lambda given: None

    def part(self, given: Row) -> Part:
        """Return the part that options ask for, or whose result it is."""
        return self.parts if isinstance(self.parts, Part) else self.parts[self.which(given)]


def option(*flags: str, **given: Any) -> Option:
    """Return an option as argparse takes it."""
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
    """A data set that there is not, or not without a folder."""


def chosen(what: str, names: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """Return the names of sets; raise MissingSetError for one that a part of a command has not."""
    for name in names:
        if name not in known:
            raise MissingSetError(f"{what} has no set {name!r}; there are {', '.join(known)}")
    return names


def sets_of(known: Sequence[str], default: Sequence[str] | None) -> Option:
    """Return --sets."""
    return several("--sets", tuple(known), default)


def peers(known: Sequence[str] = PEERS, default: Sequence[str] = ()) -> Option:
    """Return --peers."""
    return several("--peers", known, default)


def repeats(default: int, words: str = "fits of each, the cold one included") -> Option:
    """Return --repeats."""
    return option("--repeats", type=int, default=default, help=words)


def number(flag: str, default: float | None, words: str) -> Option:
    """Return an option that takes a number of the default's type; a whole one where there is no default."""
    return option(flag, type=float if isinstance(default, float) else int, default=default, help=words)


DATA = option("--data", type=Path, help="folder of the data sets, CLSVM_DATA where it is not given")
PLOT = option("--plot", type=Path, metavar="FILE", help="a picture to draw; needs matplotlib")


def in_own_process(measure: Callable[[str, Asked], Row], name: str, asked: Asked) -> Row:
    """Measure one set in a fresh process: its first fit is cold. A set that fails says why."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, asked).result()
        except Exception as error:
            return {"set": name, "n": 0, "d": 0, "error": f"{type(error).__name__}: {error}"}


def each_set(measure: Callable[[str, Asked], Row]) -> Callable[[Asked], Row]:
    """Return what measures each of the sets asked for in its own process."""
    return lambda asked: {"sets": [in_own_process(measure, name, asked) for name in asked.sets]}


def machine() -> dict[str, str | int | float]:
    """Return the processor, the cores that this process may use, the memory in bytes and the system."""
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
    """Return the versions of the packages that are installed."""
    installed = {one.metadata["Name"].lower(): one.version for one in metadata.distributions() if one.metadata["Name"]}
    return {name: installed[name] for name in PACKAGES if name in installed}
