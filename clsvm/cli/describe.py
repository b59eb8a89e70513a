"""``clsvm describe`` and ``clsvm sample``: figures of a data set and its layouts; real data as svmlight files."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from clsvm.cli import common, flags
from clsvm.cli.flags import Option

if TYPE_CHECKING:
    from clsvm.tools.describe import Description


@flags.command(
    "Describe the rows of FILE: how their entries are spread, and what each layout of them would cost.",
    replace(flags.data(""), help="Rows: svmlight text (may be .gz, .bz2 or .xz; or -), .npy, or .npz."),
    flags.DEVICE,
    Option("features", "--features", None, "Number of columns. Default: the highest in svmlight text.", int, least=1),
    replace(flags.PLOT, help="Draw density by tenth of columns."),
    Option("json", "--json", False, "Print all figures as JSON."),
)  # fmt: skip
def describe(asked: Any) -> None:
    """Run ``clsvm describe``, see :func:`clsvm.tools.describe.describe`."""
    figure = common.new_figure(asked.plot)
    common.check_files([asked.file], [asked.plot])
    from clsvm.models import svmlight
    from clsvm.tools import describe as tool

    X = svmlight.read_rows(asked.file, asked.features)
    try:
        found = tool.describe(X, asked.device)
    except ValueError as error:
        raise ValueError(f"{asked.file}: {error}") from None
    common.draw(figure, asked.plot, "deciles", found)
    if asked.json:
        common.say(common.as_json(found))
    else:
        _print(found)


def _print(found: Description) -> None:
    """Print all figures."""
    from clsvm.gram.layouts.record import WORKING

    out = common.console()
    out.print(f"rows             {found.rows}")
    out.print(f"columns          {found.columns}, {found.occurring} of them with an entry")
    out.print(f"entries a row    {found.mean:.4g} on average, {found.longest} at most, {found.entries} in all")
    out.print(f"density          {_percent(found.density)}")
    fill = "not estimated" if found.cluster_columns is None else f"about {found.cluster_columns:.4g} columns a row"
    out.print(f"clusters hold    {fill}")
    out.print(f"device           {found.device}: {found.speed / 1e9:.3g} * 10^9 dense multiply-adds a second")
    tenths = [str(i + 1) for i in range(len(found.deciles))]
    densities = [("density", *map(_percent, found.deciles))]
    words = "density by tenth of the columns with an entry, densest first"
    common.show_table(["tenth", *tenths], densities, tenths, words)
    splits = [(split.rule, str(split.dense), _percent(split.share)) for split in found.splits]
    figures = "dense columns", "share of the entries"
    common.show_table(["rule", *figures], splits, figures, "dense columns by rule of the partition")
    layouts = []
    for one in found.layouts:
        nbytes = "-" if one.nbytes is None else f"{one.nbytes / 1e6:.3g}"
        costs = ("-" if value is None else f"{value:.4g}" for value in (one.cost, one.milliseconds))
        layouts.append((one.layout, nbytes, *costs, "yes" if one.layout == found.chosen else ""))
    of_layouts = "MB on the device", "a value of K in dense cells", "ms", "auto"
    words = f"ms: predicted, of a product with {WORKING} working rows; -: not looked at, of no gain for such rows"
    common.show_table(["layout", *of_layouts], layouts, of_layouts, f"layouts; {words}")
    out.print(f"auto takes       {found.chosen}: {found.reason}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


@flags.command(
    "Write NAME.train and NAME.test, real data bundled with scikit-learn, scaled, as svmlight text.",
    Option("name", "", flags.REQUIRED, "breast_cancer, or digits (8 against the rest)."),
    Option("folder", "--folder", ".", "Where the files go."),
    Option(
        "test_size", "--test-size", 0.25, "Share of the rows in the test file.", ok=lambda value: 0 < value < 1,
        expected="a number between 0 and 1",
    ),
    Option("seed", "--seed", 0, "Seed of the split.", least=0),
)  # fmt: skip
def sample(asked: Any) -> None:
    """Run ``clsvm sample``, see :func:`clsvm.datasets.sample`."""
    from clsvm import datasets

    flags.one_of("NAME", asked.name, datasets.NAMES)
    for path in datasets.sample(asked.name, asked.folder, asked.test_size, asked.seed):
        typer.echo(os.fspath(path))
