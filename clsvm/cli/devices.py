"""``clsvm devices`` and ``clsvm tune``: the OpenCL devices of this machine, and the numbers that suit one of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from clsvm.cli import common, flags
from clsvm.cli.flags import Option

if TYPE_CHECKING:
    from clsvm.tools.tune import Tuning


@flags.command("List the OpenCL devices of this machine, whether each is usable, and which is the default.")
def devices(asked: Any) -> None:
    """Run ``clsvm devices``, see :func:`clsvm.opencl.devices.devices`."""
    from clsvm.opencl import devices as machine
    from clsvm.opencl.runtime import unloaded

    records = machine.devices()
    if not records:
        raise machine.no_platform()
    default, rule = _default()
    columns = "index", "platform", "device", "driver", "memory", "largest buffer", "fp64", "usable", "default"
    rows = []
    for r in records:
        sizes = f"{r.memory / 2**30:.1f} GiB", f"{r.largest_buffer / 2**30:.1f} GiB"
        usable = "yes" if r.usable else f"no: {r.reason}"
        marks = "yes" if r.fp64 else "no", usable, "yes" if r.index == default else ""
        rows.append((str(r.index), r.platform, r.name, r.driver, *sizes, *marks))
    common.show_table(columns, rows)
    for words in unloaded():
        common.console().print(words)
    any_usable = any(r.usable for r in records)
    common.console().print(rule if any_usable else f"None of these is usable: {machine.cure()}")


def _default() -> tuple[int | None, str]:
    """Return the index of the default device, None where there is none, and the rule that chooses it."""
    from clsvm.errors import DeviceError
    from clsvm.opencl.devices import find

    named = os.environ.get("CLSVM_DEVICE")
    rule = "a usable GPU, else a usable CPU; of several the one with most memory (CLSVM_DEVICE can name another)"
    rule = f"The default is what CLSVM_DEVICE says: {named!r}" if named else f"The default is {rule}"
    try:
        return find(None).index, rule
    except DeviceError:
        return None, f"{rule}, which is none of these, or more than one" if named else rule


@flags.command(
    "Search the tile sizes that are fastest on a device, measure what its layouts of rows cost, and keep both for later"
    " fits.",
    flags.DEVICE,
    Option("seconds", "--seconds", 60.0, "About how long the search may take, compilers included.", least=0),
    Option("show", "--show", False, "Print what was found before, and where it is kept."),
    Option("reset", "--reset", False, "Forget what was found."),
)
def tune(asked: Any) -> None:
    """Run ``clsvm tune``, see :func:`clsvm.tools.tune.tune`."""
    if asked.show and asked.reset:
        raise typer.BadParameter("expected one of --show and --reset, got both", param_hint="--reset")
    from rich.console import Console
    from rich.progress import Progress

    from clsvm.opencl import profiles
    from clsvm.tools import tune as tool

    if asked.reset:
        typer.echo(f"{profiles.tuned_path()}: {'deleted' if profiles.delete_tuned() else 'there was none'}")
        return
    if asked.show:
        _show_kept()
        return
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        found = tool.tune(
            asked.device, asked.seconds, lambda words, done: bar.update(task, description=words, completed=done)
        )
    _show_found(found)
    kept, more = f"kept in {profiles.tuned_path()}", f"nothing is kept: give --seconds more than {asked.seconds:g}"
    typer.echo(kept if found.kept else more)


def _show_kept() -> None:
    """Print the records of earlier searches."""
    from clsvm.opencl import profiles

    records = profiles.read_tuned()
    typer.echo(f"{profiles.tuned_path()}: {len(records)} device{'s' * (len(records) != 1)}")
    for name, record in records.items():
        rows = [(field, str(value)) for field, value in record["profile"].items()]
        common.show_table(("field", "value"), rows, title=f"{name} ({record.get('date')})")


def _show_found(found: Tuning) -> None:
    """Print what a search found."""
    figures = "default ms", "best ms", "gain"
    rows, figures = [], ("default ms", "best ms", "gain")
    for one in found.families:
        numbers = f"{1e3 * one.default:.3g}", f"{1e3 * one.best:.3g}", f"{one.default / one.best:.2f}"
        cells = (*numbers, str(one.choice or "the default")) if one.searched else (*"---", "not searched")
        rows.append((one.family, *cells))
    common.show_table(("part of the work", *figures, "choice"), rows, figures)
    rates = []
    for rate in found.rates:
        measured = "not measured" if rate.ratio is None else f"{rate.ratio:g}"
        rates.append((rate.field, f"{rate.words}, over a dense cell's", f"{rate.default:g}", measured))
    if rates:
        common.show_table(("rate", "time of", "default", "measured"), rates, ("default", "measured"))
    if not all(one.searched for one in found.families):
        typer.echo("what is not searched had no time for two candidates: it stays the default")
    if any(rate.ratio is None for rate in found.rates):
        typer.echo("a rate that is not measured had no time, or came out beyond its limits: it stays the default")
