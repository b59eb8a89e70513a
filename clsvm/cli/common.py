"""Shared code of the commands: errors as messages, files, data, kernel functions from words, tables, scores.

What is slow to import is imported where it is used.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from clsvm.kernels import Kernel
    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport, NystromReport

Array = Any  # of NumPy or SciPy, which are slow to import
_KERNEL_FLAGS = {"gamma": "-g", "coef0": "-r", "degree": "-d"}
_DEFAULTS = {"gamma": 1.0, "coef0": 0.0, "degree": 3}  # of an expression's parameters of these names
INTERRUPTED = 130  # the exit code of Ctrl-C: as a shell gives it for SIGINT
_PIPE = 1 << 14  # characters of a line where no terminal sets its width


@contextmanager
def reporting(ctx: typer.Context, checkpoint: str | None = None) -> Iterator[None]:
    """Show an error as one message on stderr with exit code 1, Ctrl-C as one with 130, each warning as one line.

    With --debug Python shows them. checkpoint: the file from which an interrupted command can go on.
    """
    from clsvm.errors import ClsvmError
    from clsvm.system import explained

    if ctx.find_root().params.get("debug"):
        yield
        return
    code = 1
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        try:
            with explained():
                yield
            return
        except KeyboardInterrupt:
            code, message = INTERRUPTED, f"interrupted; {_left(checkpoint)}"
        except (BrokenPipeError, typer.Exit, typer.BadParameter):
            raise  # for typer, which ends quietly where the reader of stdout has gone
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        except (ClsvmError, ValueError, ImportError) as error:  # matplotlib, say, which is an extra
            message = str(error)
        except Exception as error:
            message = f"unexpected {type(error).__name__}: {error} ('clsvm --debug ...' shows where)"
    typer.echo(f"clsvm: error: {message}", err=True)
    raise typer.Exit(code)


def _left(checkpoint: str | None) -> str:
    """Return in words the file that an interrupted command left."""
    if checkpoint is None or not os.path.isfile(checkpoint):
        return "no partial file is left"
    return f"the checkpoint stays: the same command with --resume {shlex.quote(checkpoint)} goes on from it"


def say(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        typer.echo(line)


def warn(text: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"clsvm: warning: {text}", err=True)


# Files


def check_files(reads: Sequence[str | None], writes: Sequence[str | None]) -> None:
    """Raise ValueError or OSError where a command would lose a file, or could not write one; None is no file.

    No file that is read may be written, none may be written twice, and no pipe can be read twice. Pipes, terminals and
    /dev/null may be written more than once.
    """
    from clsvm import files

    sources, targets = [name for name in reads if name], [name for name in writes if name]
    for place, source in enumerate(sources):
        if not os.path.isfile(source) and os.path.exists(source) and source in sources[:place]:
            raise ValueError(f"{source} is named twice and can be read once; give one of the two as a file")
    for place, out in enumerate(targets):
        others = [] if os.path.exists(out) and not os.path.isfile(out) else [*sources, *targets[:place]]
        if os.path.realpath(out) in map(os.path.realpath, others):
            raise ValueError(f"{out} would be overwritten: it is named twice; give each file its own name")
    for out in targets:
        files.check_writable(out)


def training_rows(file: str, kernel_values: bool, of_classes: bool, hint: str = "") -> tuple[Any, Array, Array | None]:
    """Read training data, rows or kernel values: X, y, and the columns of the file that hold the kernel values.

    Raises OSError and ValueError, also for classes of one label; ``hint`` ends that message.
    """
    from clsvm import arrays
    from clsvm.models import svmlight

    X: Any
    columns = None
    if kernel_values:
        columns, X, y = svmlight.read_kernel(file, dense=False)
        X = arrays.picked(X, columns)
    else:
        X, y = svmlight.read_problem(file)
    if of_classes and (y == y[0]).all():
        raise ValueError(f"{file}: got the label {y[0]:g} alone, expected two classes or more{hint}")
    return X, y, columns


def row_weights(by_label: Mapping[int, float], y: Array) -> Array | None:
    """Return the weight of each row by its label, None where no row has a weight; warn of labels that no row has."""
    import numpy as np

    strange = sorted(by_label.keys() - set(y.tolist()))
    for label in strange:
        warn(f"no row has the label {label} of -w{label}")
    if len(strange) == len(by_label):
        return None
    return np.array([by_label.get(label, 1.0) for label in y.tolist()])


def folds_of(y: Array, folds: int, of_classes: bool) -> list[tuple[Array, Array]]:
    """Return the folds of -v (:func:`clsvm.models.decoder.folds`), with a warning where there are fewer."""
    from clsvm.models import decoder

    if folds > len(y):
        warn(f"-v {folds}: there are {len(y)} rows, so {len(y)} folds of one row each")
    return decoder.folds(y, folds, of_classes)


def new_figure(path: str | None) -> Any:
    """Return a matplotlib figure, None where no picture is asked for. Raises ImportError without matplotlib."""
    if path is None:
        return None
    from clsvm import plots

    return plots.figure()


def draw(figure: Any, path: str, picture: str, *given: Any) -> None:
    """Draw a picture of :mod:`clsvm.plots` and write it as PNG, whole or not at all, where there is a figure."""
    from clsvm import files

    if figure is None:
        return
    from clsvm import plots

    getattr(plots, picture)(*given, ax=figure.subplots())
    with files.atomic_write(path) as stream:
        figure.savefig(stream, format="png")


def write_file(path: str | None, lines: Iterable[str], end: str = "\n") -> None:
    """Write lines, all or nothing, where a path is given. Raises OSError."""
    from clsvm import files

    if path is not None:
        with files.atomic_write(path) as stream:
            stream.writelines(f"{line}{end}".encode() for line in lines)


def as_json(record: Any) -> Iterator[str]:
    """Yield the text of a record that has ``to_dict``."""
    yield json.dumps(record.to_dict(), indent=1, allow_nan=False)


# Kernel functions


def kernel_of(
    function: str | None,
    element: str | None,
    params: Mapping[str, float | int],
    flags: Mapping[str, float | int | None] | None = None,
    hint: str = "--kernel",
) -> Kernel:
    """Return the kernel function of a command line; raise a usage error with the language's own words.

    function: a built-in's name, or an expression, "s" by default where ``element`` is given. params: of --param.
    flags: the values of -g, -r and -d by their parameters' names, None where they are not given: built-ins take those
    that they have. Expressions that name gamma, coef0 or degree without a value have 1, 0 and 3.
    """
    from clsvm.kernels import Kernel
    from clsvm.kernels.records import BUILTIN

    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if both := sorted(params.keys() & given.keys()):
        words = f"got {both[0]} here and by {_KERNEL_FLAGS[both[0]]}, expected it once"
        raise typer.BadParameter(words, param_hint="--param")
    function = "s" if function is None and element is not None else function or ""
    if function in BUILTIN and element is None:
        named = {p.name for p in BUILTIN[function].parameters}
        values = {name: given[name] for name in given.keys() & named}
    else:
        named = set(re.findall(r"[A-Za-z_]\w*", f"{function} {element or ''}"))
        if stray := sorted(given.keys() - named):
            message = f"got a value for {stray[0]}, which {function!r} does not have"
            raise typer.BadParameter(message, param_hint=_KERNEL_FLAGS[stray[0]])
        values = {name: given.get(name, default) for name, default in _DEFAULTS.items() if name in named}
    values |= params
    try:
        return Kernel(function, **values) if element is None else Kernel.elementwise(element, function, **values)
    except (ValueError, TypeError, ArithmeticError) as error:
        names = f"; built in are {', '.join(BUILTIN)}" * (function.isidentifier() and element is None)
        raise typer.BadParameter(f"{error}{names}", param_hint=hint) from None


# Tables and lines


def console() -> Console:
    """Return stdout for tables: as wide as the terminal, and as wide as a table needs where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE, markup=False, highlight=False)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), title: str = ""
) -> None:
    """Print a table on stdout, whose columns ``right`` hold figures.

    Where the terminal is too narrow for its rows, print a block of lines "column: cell" for each row instead.
    """
    from rich.measure import Measurement
    from rich.table import Table

    out, rows = console(), list(rows)
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if Measurement.get(out, out.options.update(max_width=_PIPE), table).maximum <= out.width:
        out.print(table)
        return
    if title:
        out.print(title)
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if cell:
                out.print(f"{column}: {', '.join(cell.splitlines())}")
        out.print()


def spent(report: FitReport | NystromReport) -> str:
    """Return the seconds of a fit in words: all, and the parts that took a hundredth of them or more."""
    total = report.seconds["total"]
    parts = ((part, value) for part, value in report.seconds.items() if part != "total" and value > 0.01 * total)
    return f"{total:.3f}" + "".join(f", {part} {value:.3f}" for part, value in parts)


def score_lines(predicted: Array, y: Array, of_numbers: bool, folds: bool = False) -> Iterator[str]:
    """Yield svm-predict's lines on predictions, or svm-train's on those of its ``folds``.

    The squared correlation is nan where predictions or targets are all the same.
    """
    import numpy as np

    head = "Cross Validation " if folds else ""
    if of_numbers:
        varied = np.ptp(predicted) and np.ptp(y)
        correlation = float(np.corrcoef(predicted, y)[0, 1] ** 2) if varied else float("nan")
        tail = "" if folds else " (regression)"
        yield f"{head}Mean squared error = {float(np.square(predicted - y).mean()):g}{tail}"
        yield f"{head}Squared correlation coefficient = {correlation:g}{tail}"
        return
    right, total = int((predicted == y).sum()), len(y)
    tail = "" if folds else f" ({right}/{total}) (classification)"
    yield f"{head}Accuracy = {right / total * 100:g}%{tail}"


def error_lines(model: KernelModel) -> str:
    """Return svm-predict's lines about the errors of a regression."""
    (sigma,) = model.probA if model.probA is not None else (float("nan"),)
    words = "Prob. model for test data: target value = predicted value + z,\nz: Laplace distribution "
    return f"{words}e^(-|z|/sigma)/(2sigma),sigma={sigma:g}"
