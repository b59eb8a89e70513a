"""Provide the functions that several subcommands of ``clsvm`` share.

The functions print errors as messages, check and write files, read training data, make kernel functions from
command-line text, and print tables and scores. Slow modules, such as NumPy, are imported when a function runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from clsvm import files
from clsvm.errors import ClsvmError
from clsvm.system import explained

if TYPE_CHECKING:
    from rich.console import Console

    from clsvm.kernels import Kernel
    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport, NystromReport

Array = Any  # a NumPy or SciPy array: both packages are slow to import
_KERNEL_FLAGS = {"gamma": "-g", "coef0": "-r", "degree": "-d"}
_DEFAULTS = {"gamma": 1.0, "coef0": 0.0, "degree": 3}  # default parameters of a user's kernel expression
INTERRUPTED = 130  # exit code after Ctrl-C, which shells also return for SIGINT
_PIPE = 1 << 14  # longest line in characters if stdout is no terminal, so that no line wraps


@contextmanager
def reporting(ctx: typer.Context, checkpoint: str | None = None) -> Iterator[None]:
    """Print errors and warnings that occur inside this context as single messages on stderr.

    After an error, the command ends with exit code 1. After Ctrl-C, it ends with exit code 130. With --debug, Python
    prints tracebacks and warnings in its own form.

    checkpoint: file from which an interrupted command can continue, or None. If this file exists, the message after
        Ctrl-C names it.
    """
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
            raise  # typer handles these errors; after BrokenPipeError it exits silently
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        except (ClsvmError, ValueError, ImportError) as error:  # ImportError: an optional package is missing
            message = str(error)
        except Exception as error:
            message = f"unexpected {type(error).__name__}: {error} ('clsvm --debug ...' shows where)"
    typer.echo(f"clsvm: error: {message}", err=True)
    raise typer.Exit(code)


def _left(checkpoint: str | None) -> str:
    """Return the part of the message after Ctrl-C that says whether the command can continue from a checkpoint."""
    if checkpoint is None or not os.path.isfile(checkpoint):
        return "no partial file is left"
    return f"the checkpoint {checkpoint} stays: the same command goes on from it"


def say(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        typer.echo(line)


def warn(text: str) -> None:
    """Print one warning line on stderr."""
    typer.echo(f"clsvm: warning: {text}", err=True)


# Files


def check_files(reads: Sequence[str | None], writes: Sequence[str | None]) -> None:
    """Raise ValueError or OSError if a command would overwrite one of its own files, or could not write a file.

    ``reads`` and ``writes`` are the names of the files to read and to write. None is skipped. ValueError means that a
    file is read and also written, or is written twice. Pipes, terminals and /dev/null may be named several times.
    """
    sources, targets = [name for name in reads if name], [name for name in writes if name]
    for i, out in enumerate(targets):
        others = [] if os.path.exists(out) and not os.path.isfile(out) else [*sources, *targets[:i]]
        if os.path.realpath(out) in map(os.path.realpath, others):
            raise ValueError(f"{out} would be overwritten: the command names this file twice; name two different files")
        files.check_writable(out)


def training_rows(file: str, kernel_values: bool, of_classes: bool, hint: str = "") -> tuple[Any, Array, Array | None]:
    """Read a training file, and return X, y and columns.

    The file has n rows. X (n, d) are their features, y (n,) their labels or targets, and columns is None.

    If ``kernel_values`` is true, the file has kernel values in place of features. In this case row i of the file has
    the values K[i, 0], K[i, 1], ... of a kernel matrix K, and column columns[i] of K belongs to row i. X (n, n) are the
    kernel values among the rows: X[i, j] = K[i, columns[j]].

    ``of_classes`` says whether y holds class labels.

    Raises OSError if the file cannot be read. Raises ValueError if the file is damaged, or if all class labels are
    equal. The message about equal labels ends with ``hint``.
    """
    from clsvm import arrays
    from clsvm.models import svmlight

    columns = None
    if kernel_values:
        columns, K, y = svmlight.read_kernel(file, dense=False)
        X = arrays.gathered_columns(K, columns)
    else:
        X, y = svmlight.read_problem(file)
    if of_classes and (y == y[0]).all():
        raise ValueError(f"{file}: got the label {y[0]:g} alone, expected two classes or more{hint}")
    return X, y, columns


def numbered(y: Array, ascending: bool = False) -> tuple[Array, Array, bool]:
    """Return the k distinct labels in y (n,), the index (n,) of each row's label among them, and a flag.

    The labels ascend if there are two, or if ``ascending`` is set. Otherwise the labels are in the order of their first
    occurrence, as in svm-train. The flag says whether svm-train takes the smaller of two labels as the positive class.
    """
    import numpy as np

    labels, first, index = np.unique(y, return_index=True, return_inverse=True)
    order = np.argsort(first)
    smaller_first = len(labels) == 2 and order[0] == 0 and labels.tolist() != [-1, 1]  # svm-train lists +1 before -1
    if len(labels) > 2 and not ascending:
        labels, index = labels[order], np.argsort(order)[index]
    return labels, index, bool(smaller_first)


def row_weights(by_label: Mapping[int, float], y: Array) -> Array | None:
    """Return the weight of each row, (n,), for the labels y (n,) of the rows.

    ``by_label`` maps labels to weights. Other labels have the weight 1. Return None if ``by_label`` has no label of y.
    Warn of labels in ``by_label`` that are not in y.
    """
    import numpy as np

    unknown = sorted(by_label.keys() - set(y.tolist()))
    for label in unknown:
        warn(f"-w{label} has no effect: no row has the label {label}")
    if len(unknown) == len(by_label):
        return None
    return np.array([by_label.get(label, 1.0) for label in y.tolist()])


def folds_of(y: Array, folds: int, of_classes: bool) -> list[tuple[Array, Array]]:
    """Return the folds of a cross-validation (-v): for each fold the indices of its training and test rows.

    Warn if the data has fewer rows than folds. ``of_classes`` says whether y holds class labels.
    """
    from clsvm.models import decoder

    if folds > len(y):
        warn(f"-v {folds}: there are {len(y)} rows, so {len(y)} folds of one row each")
    return decoder.folds(y, folds, of_classes)


def new_figure(path: str | None) -> Any:
    """Return a new matplotlib figure, or None if ``path`` is None. Raises ImportError if matplotlib is missing."""
    if path is None:
        return None
    from clsvm import plots

    return plots.figure()


def draw(figure: Any, path: str | None, picture: str, *given: Any) -> None:
    """Draw into ``figure`` by calling the function ``picture`` of :mod:`clsvm.plots`, and write a PNG file.

    ``given`` are the arguments of ``picture``. After an error no partial file is left. Do nothing if ``figure`` is
    None.
    """
    if figure is None or path is None:
        return
    from clsvm import plots

    getattr(plots, picture)(*given, ax=figure.subplots())
    with files.atomic_write(path) as stream:
        figure.savefig(stream, format="png")


def write_file(path: str | None, lines: Iterable[str], end: str = "\n") -> None:
    """Write lines, each followed by ``end``, to a file. Do nothing if ``path`` is None.

    Raises OSError if the file cannot be written. No partial file is left then.
    """
    if path is not None:
        with files.atomic_write(path) as stream:
            stream.writelines(f"{line}{end}".encode() for line in lines)


def as_json(record: Any) -> Iterator[str]:
    """Yield one string: the JSON text of the dictionary ``record.to_dict()``."""
    yield json.dumps(record.to_dict(), indent=1, allow_nan=False)


# Kernel functions


def kernel_of(
    function: str | None, element: str | None, params: Mapping[str, Any], flags: Mapping[str, Any], hint: str
) -> Kernel:
    """Return the kernel function that a command line describes. Raises typer.BadParameter for an invalid one.

    function: name of a built-in kernel function, or an expression. In an expression, the variable s is the sum of
        ``element`` over the features. None stands for the expression "s".
    element: expression for one feature of two rows x and y (--element), such as "abs(x - y)", or None.
    params: names and values of kernel parameters, from --param.
    flags: values of gamma, coef0 and degree, from -g, -r and -d. The value None stands for a flag that is not given.
        A built-in function ignores parameters that it lacks. In an expression the defaults are gamma = 1, coef0 = 0
        and degree = 3.
    hint: the flag that error messages name.
    """
    from clsvm.kernels import Kernel
    from clsvm.kernels.records import BUILTIN

    given = {name: value for name, value in flags.items() if value is not None}
    if both := sorted(params.keys() & given.keys()):
        words = f"got {both[0]} here and by {_KERNEL_FLAGS[both[0]]}, expected it once"
        raise typer.BadParameter(words, param_hint="--param")
    function = "s" if function is None else function
    if function in BUILTIN and element is None:
        named = {p.name for p in BUILTIN[function].parameters}
        values = {name: given[name] for name in given.keys() & named}
    else:
        named = set(re.findall(r"[A-Za-z_]\w*", f"{function} {element or ''}"))
        values = {name: default for name, default in _DEFAULTS.items() if name in named} | given
    values |= params
    try:
        return Kernel(function, **values) if element is None else Kernel.elementwise(element, function, **values)
    except (ValueError, TypeError, ArithmeticError) as error:
        names = f"; built in are {', '.join(BUILTIN)}" * (function.isidentifier() and element is None)
        raise typer.BadParameter(f"{error}{names}", param_hint=hint) from None


# Tables and lines


def console() -> Console:
    """Return a console of the package rich that writes to stdout.

    If stdout is no terminal, the console's lines are wide enough for any table.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE, markup=False, highlight=False)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), title: str = ""
) -> None:
    """Print a table on stdout. ``right`` names the columns that are aligned to the right.

    If the terminal is too narrow, print each row as a block of lines "column: value" instead.
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
    """Return a fit's total seconds as text, then the seconds of each stage that took more than 1 % of the total."""
    total = report.seconds["total"]
    parts = ((part, value) for part, value in report.seconds.items() if part != "total" and value > 0.01 * total)
    return f"{total:.3f}" + "".join(f", {part} {value:.3f}" for part, value in parts)


def score_lines(predicted: Array, y: Array, of_numbers: bool, folds: bool = False) -> Iterator[str]:
    """Yield the lines in which svm-predict prints how well predictions match y.

    If ``folds`` is true, yield the lines that svm-train prints after a cross-validation. ``of_numbers`` says whether y
    holds numbers instead of class labels. The squared correlation is nan if all predictions or all targets are equal.
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
    """Return the lines in which svm-predict describes the Laplace distribution of a regression's errors."""
    (sigma,) = model.probA if model.probA is not None else (float("nan"),)
    words = "Prob. model for test data: target value = predicted value + z,\nz: Laplace distribution "
    return f"{words}e^(-|z|/sigma)/(2sigma),sigma={sigma:g}"
