"""Compile every program for GPUs that this machine does not have, and list registers, spills and loops of the kernels.

Kernels with problems come first for each target. The exit code is 1 if a kernel spills registers or exceeds memory, or
if a compiler rejects a program.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

from clsvm.cli.common import show_table
from clsvm.errors import ClsvmError
from clsvm.kernels.records import BUILTIN, Spec
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.sources import Variant
from tools import compilers
from tools.compilers import TARGETS, Finding, Target
from tools.registry import registry


def programs(target: Target, specs: Sequence[Spec]) -> list[Variant]:
    """Return the programs that run on a target for some kernel functions."""
    return registry(specs, PROFILES[target.profile], target.units)


def audit(variants: Sequence[Variant], target: Target, jobs: int = 2) -> Iterator[tuple[str, Finding]]:
    """Yield the label of each program with each of its findings, in order. jobs: compilers that run concurrently.

    Raises as :func:`tools.compilers.compile` does, at the program's place in the order.
    """
    with ThreadPoolExecutor(jobs) as pool:
        made = [(one.label, pool.submit(compilers.compile, one.text, one.options, target)) for one in variants]
        try:
            for label, future in made:
                yield from ((label, found) for found in future.result())
        finally:
            pool.shutdown(cancel_futures=True)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command with the arguments ``words`` and return its exit code."""
    targets = {target.name: target for target in TARGETS}
    parser = argparse.ArgumentParser("python -m tools.audit", description=__doc__)
    parser.add_argument("--targets", type=_names(targets), metavar="A,B", help="default: all that are known")
    parser.add_argument("--kernels", type=_names(BUILTIN), metavar="A,B", help="default: all built-in ones")
    parser.add_argument("--jobs", type=_positive, help="compilers at a time; default: one for each processor")
    asked = parser.parse_args(words)
    if absent := compilers.missing():
        print(f"error: {absent}", file=sys.stderr)
        return 1
    specs = [BUILTIN[name] for name in asked.kernels or BUILTIN]
    made = {targets[name]: programs(targets[name], specs) for name in asked.targets or targets}
    count, jobs = sum(map(len, made.values())), asked.jobs or os.cpu_count() or 1
    found = (one for target, variants in made.items() for one in audit(variants, target, jobs))
    stderr, hidden = Console(stderr=True), not sys.stderr.isatty()
    try:
        findings = sorted(track(found, "compiling", console=stderr, transient=True, disable=hidden), key=_badness)
    except ClsvmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print(findings)
    bad = sum(bool(finding.problems) for _, finding in findings)
    print(f"{count} programs, {len(made)} targets, {len(findings)} kernels: {bad} with problems")
    return int(bad > 0)


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return an argument parser for lists of known names such as ``a,b``."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"got {name!r}, expected one of {', '.join(known)}")
        return names

    return read


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of 1 or more")
    return int(text)


def _badness(found: tuple[str, Finding]) -> tuple[str, int, float, int]:
    _, one = found
    return one.target.name, -len(one.problems), one.occupancy or 0.0, -(one.registers or 0)


def _print(findings: Sequence[tuple[str, Finding]]) -> None:
    figures = "registers", "scalar", "spills", "scratch", "local memory", "occupancy", "multiply-adds", "barriers"
    rows = []
    for label, one in findings:
        counts = one.registers, one.scalar_registers, one.spills, one.scratch, one.local_memory
        words = ["-" if figure is None else str(figure) for figure in counts]
        words.append("-" if one.occupancy is None else f"{one.occupancy:.3g}")
        loop = f"{one.multiply_adds:.0%}" if one.multiply_adds else "-", str(one.barriers or "-")
        rows.append((one.target.name, label, one.entry, *words, *loop, "; ".join(one.problems)))
    show_table(("target", "program", "kernel", *figures, "problems"), rows, figures)


if __name__ == "__main__":
    sys.exit(main())
