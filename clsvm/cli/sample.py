"""``clsvm sample``: real data as svmlight files."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from clsvm.cli.common import (
    reporting,
    require,
)


def sample(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="breast_cancer, or digits (8 against the rest).")],
    folder: Annotated[str, typer.Option("--folder", help="Where the files go.")] = ".",
    test_size: Annotated[float, typer.Option("--test-size", help="Share of the rows in the test file.")] = 0.25,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the split.")] = 0,
) -> None:
    """``clsvm sample``: see :func:`clsvm.datasets.sample`."""
    from clsvm import datasets

    if name not in datasets.NAMES:
        raise typer.BadParameter(f"got {name!r}, expected one of {', '.join(datasets.NAMES)}", param_hint="NAME")
    require("--test-size", test_size, 0 < test_size < 1, "a number between 0 and 1")
    with reporting(ctx):
        for path in datasets.sample(name, folder, test_size, seed):
            typer.echo(os.fspath(path))
