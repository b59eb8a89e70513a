"""``clsvm tune``: search a device for its best tile sizes and measure its rates; show what is kept, forget it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clsvm.cli.common import Device, reporting, show_table


def tune(
    ctx: typer.Context,
    device: Device = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="About how long the search may take, compilers included.")
    ] = 60.0,
    show: Annotated[bool, typer.Option("--show", help="Print what was found before, and where it is kept.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was found.")] = False,
) -> None:
    """``clsvm tune``: see :func:`clsvm.tools.tune.tune`."""
    if show and reset:
        raise typer.BadParameter("expected one of --show and --reset, got both", param_hint="--reset")
    with reporting(ctx):
        from clsvm.opencl import tuned

        if reset:
            typer.echo(f"{tuned.path()}: {'deleted' if tuned.reset() else 'there was none'}")
        elif show:
            _show_tuned()
        else:
            _tune(device, seconds)


def _show_tuned() -> None:
    from rich.table import Table

    from clsvm.opencl import tuned

    records = tuned.read()
    typer.echo(f"{tuned.path()}: {len(records)} device{'s' * (len(records) != 1)}")
    for name, record in records.items():
        table = Table(title=f"{name} ({record.get('date')})", title_justify="left")
        for title in ("field", "value"):
            table.add_column(title, overflow="fold")
        for field, value in record["profile"].items():
            table.add_row(field, str(value))
        show_table(table)


def _tune(device: str | None, seconds: float) -> None:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from clsvm.opencl import tuned
    from clsvm.tools import tune as search

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        found = search.tune(device, seconds, lambda words, done: bar.update(task, description=words, completed=done))
    table = Table()
    for title in ("part of the work", "default ms", "best ms", "gain", "choice"):
        table.add_column(title, justify="left" if title in ("part of the work", "choice") else "right", overflow="fold")
    for one in found.families:
        figures = [f"{1e3 * one.default:.3g}", f"{1e3 * one.best:.3g}", f"{one.default / one.best:.2f}"]
        choice = str(one.choice) if one.choice else "the default"
        table.add_row(one.family, *(figures if one.searched else "---"), choice if one.searched else "not searched")
    show_table(table)
    rates = Table()
    for title in ("rate", "time of", "default", "measured"):
        rates.add_column(title, justify="right" if title in ("default", "measured") else "left", overflow="fold")
    for rate in found.rates:
        measured = "not measured" if rate.ratio is None else f"{rate.ratio:g}"
        rates.add_row(rate.field, f"{rate.words}, over a dense cell's", f"{rate.default:g}", measured)
    if found.rates:
        show_table(rates)
    if not all(one.searched for one in found.families):
        typer.echo("what is not searched had no time for two candidates: it stays the default")
    if any(rate.ratio is None for rate in found.rates):
        typer.echo("a rate that is not measured had no time, or came out beyond its limits: it stays the default")
    if found.kept:
        typer.echo(f"kept in {tuned.path()}")
    else:
        typer.echo(f"nothing is kept: give --seconds more than {seconds:g}")
