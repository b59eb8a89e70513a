"""The command ``clsvm``: train, predict, scale and grid with the flags of LIBSVM's programs; falkon; kernels; describe;
tune; sample; devices.

Results go to stdout; progress (on a terminal), warnings and errors to stderr. Exit codes: 0 done, 1 it failed (data,
files, device), 2 the command line is wrong, 130 Ctrl-C. What is slow to import is imported where it is used.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clsvm.cli import describe, devices, falkon, grid, kernels, predict, scale, train
from clsvm.cli.flags import app

__all__ = ["app", "describe", "devices", "falkon", "grid", "kernels", "main", "predict", "scale", "train"]


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
