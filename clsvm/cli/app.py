"""The command ``clsvm``: train, predict, scale and grid with the flags of LIBSVM's programs; falkon; kernels; describe;
tune; sample; devices.

Results go to stdout; progress (on a terminal), warnings and errors to stderr. Exit codes: 0 done, 1 it failed (data,
files, device), 2 the command line is wrong, 130 Ctrl-C. What is slow to import is imported where it is used. The help
of a command stands in a table here, since ``python -OO`` drops docstrings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperCommand

from clsvm.cli import describe, devices, falkon, grid, kernels, predict, scale, train
from clsvm.cli.flags import LibsvmCommand

app = typer.Typer(
    name="clsvm",
    help="Kernel support vector machines through OpenCL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(kernels.app, name="kernels")
app.add_typer(falkon.app, name="falkon")
_COMMANDS: tuple[tuple[Callable[..., None], type[TyperCommand] | None, str], ...] = (
    (scale.scale, LibsvmCommand,
     "Scale each feature of FILE by its minimum and maximum and print the rows as svmlight text."),
    (describe.describe, None,
     "Describe the rows of FILE: how their entries are spread, and what each layout of them would cost."),
    (devices.tune, None, "Search the tile sizes that are fastest on a device, measure what its layouts of rows cost,"
     " and keep both for later fits."),
    (train.train, LibsvmCommand,
     "Train a model on FILE and write it to MODEL, in LIBSVM's format where that can hold it."),
    (grid.grid, grid.GridCommand,
     "Find C and gamma for FILE by cross-validation, as LIBSVM's grid.py does: the last line says which."),
    (predict.predict, LibsvmCommand,
     "Predict the labels or values of TEST by MODEL and print the accuracy, or the error."),
    (describe.sample, None,
     "Write NAME.train and NAME.test, real data bundled with scikit-learn, scaled, as svmlight text."),
    (devices.devices, None,
     "List the OpenCL devices of this machine, whether each is usable, and which is the default."),
)  # fmt: skip
for _function, _class, _help in _COMMANDS:
    app.command(cls=_class, help=_help)(_function)


def _version(asked: bool) -> None:
    if asked:
        from clsvm import __version__

        typer.echo(f"clsvm {__version__}")
        raise typer.Exit


@app.callback(context_settings={"help_option_names": ["--help"]})
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Kernel support vector machines through OpenCL."""


def main() -> None:
    """Run :data:`app`: the console script."""
    from clsvm.errors import HostMemoryError
    from clsvm.system import explained

    try:
        with explained():
            app(prog_name="clsvm")
    except HostMemoryError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"clsvm: error: {error}", err=True)
        raise SystemExit(1) from None
