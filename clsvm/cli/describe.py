"""``clsvm describe``: what a data set is like, and what each layout of its rows would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clsvm.cli.common import READ, Device, apart, console, ending, reporting, show_table

if TYPE_CHECKING:
    from rich.table import Table

    from clsvm.tools.describe import Description


def describe(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(callback=READ, help="Rows: svmlight text (may be .gz, .bz2 or .xz; or -), .npy, or .npz.")
    ],
    device: Device = None,
    features: Annotated[
        int | None, typer.Option("--features", min=1, help="Number of columns. Default: the highest in svmlight text.")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.png", callback=ending(".png"), help="Draw density by tenth of columns."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """``clsvm describe``: see :func:`clsvm.tools.describe.describe`."""
    with reporting(ctx):
        import json

        from clsvm import files
        from clsvm.models import rows
        from clsvm.tools import describe as tool

        if plot is not None:
            from clsvm import plots

            apart([file], [plot])
            files.check_writable(plot)
            figure = plots.figure()
        X = rows.read_rows(file, features)
        try:
            found = tool.describe(X, device)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
        if plot is not None:
            plots.deciles(found, figure.subplots())
            with files.atomic_write(plot) as stream:
                figure.savefig(stream, format="png")
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False))
        else:
            _print(found)


def _print(found: Description) -> None:
    """All figures, in tables."""
    out = console()
    out.print(f"rows             {found.rows}")
    out.print(f"columns          {found.columns}, {found.occurring} of them with an entry")
    out.print(f"entries a row    {found.mean:.4g} on average, {found.longest} at most, {found.entries} in all")
    out.print(f"density          {_percent(found.density)}")
    fill = "not estimated" if found.cluster_columns is None else f"about {found.cluster_columns:.4g} columns a row"
    out.print(f"clusters hold    {fill}")
    out.print(f"device           {found.device}: {found.speed / 1e9:.3g} * 10^9 dense multiply-adds a second")
    for table in (_deciles(found), _splits(found), _layouts(found)):
        show_table(table)
    out.print(f"auto takes       {found.chosen}: {found.reason}")


def _table(title: str, *columns: str) -> Table:
    """An empty table whose first column is words and the others are figures."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    return table


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _deciles(found: Description) -> Table:
    table = _table(
        "density by tenth of the columns with an entry, densest first",
        "tenth",
        *(str(i + 1) for i in range(len(found.deciles))),
    )
    table.add_row("density", *(_percent(density) for density in found.deciles))
    return table


def _splits(found: Description) -> Table:
    table = _table("dense columns by rule of the partition", "rule", "dense columns", "share of the entries")
    for split in found.splits:
        table.add_row(split.rule, str(split.dense), _percent(split.share))
    return table


def _layouts(found: Description) -> Table:
    from clsvm.gram.layouts.survey import WORKING

    table = _table(
        f"layouts; ms: predicted, of a product with {WORKING} working rows; -: not looked at, of no gain for such rows",
        *("layout", "MB on the device", "a value of K in dense cells", "ms", "auto"),
    )
    for one in found.layouts:
        nbytes = "-" if one.nbytes is None else f"{one.nbytes / 1e6:.3g}"
        figures = ("-" if value is None else f"{value:.4g}" for value in (one.cost, one.milliseconds))
        table.add_row(one.layout, nbytes, *figures, "yes" if one.layout == found.chosen else "")
    return table
