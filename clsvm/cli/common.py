"""What the commands share: errors as messages, LIBSVM's way with flags, and a kernel function from words.

What is slow to import is imported where it is used.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from clsvm.parameters import PARAMETERS, Flag, Parameter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.table import Table

    from clsvm.kernels import Kernel
    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport, NystromReport

FLAGS = {"gamma": "-g", "coef0": "-r", "degree": "-d"}
_DEFAULTS = {"gamma": 1.0, "coef0": 0.0, "degree": 3}  # of an expression's parameters of these names
INTERRUPTED = 130  # the exit code of Ctrl-C: as a shell gives it for SIGINT
_PIPE = 1 << 14  # characters of a line where no terminal sets its width


class LibsvmCommand(TyperCommand):
    """A command whose short flags are LIBSVM's: a flag and its value are two words, and ``-w`` carries a label."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        params = self.get_params(ctx)
        known = {name for param in params for name in param.opts}
        switches = {name for param in params if getattr(param, "is_flag", False) for name in param.opts}
        training = "-wi" in known
        words, i = list(args), 0
        while i < len(words) and words[i] != "--":
            word = words[i]
            if training and word.startswith("-w"):
                if i + 1 == len(words):
                    raise typer.BadParameter("expected a weight after it", ctx, param_hint=word)
                words[i : i + 2] = ["-wi", f"{word[2:]}={words[i + 1]}"]
            elif len(word) > 2 and word[:2] in known and word not in known:
                hint = f"expected a flag and its value as two words: {word[:2]} {word[2:]}"
                raise typer.BadParameter(f"got {word}, {hint}", ctx, param_hint=word[:2])
            i += 2 if word.startswith("-") and word not in {*switches, "-"} and "=" not in word else 1
        return super().parse_args(ctx, words)


@contextmanager
def reporting(ctx: typer.Context, checkpoint: str | None = None) -> Iterator[None]:
    """Errors as one message on stderr and exit code 1, Ctrl-C as one and 130, warnings as one line each; with --debug
    as Python shows them. checkpoint: the file from which an interrupted command can go on."""
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
        except (BrokenPipeError, typer.Exit):
            raise  # the reader of stdout has gone: typer ends quietly
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        except (ClsvmError, ValueError, ImportError) as error:  # matplotlib, say, which is an extra
            message = str(error)
        except Exception as error:
            message = f"unexpected {type(error).__name__}: {error} ('clsvm --debug ...' shows where)"
    typer.echo(f"clsvm: error: {message}", err=True)
    raise typer.Exit(code)


def _left(checkpoint: str | None) -> str:
    """What is left of an interrupted command, in words."""
    if checkpoint is None or not os.path.isfile(checkpoint):
        return "no partial file is left"
    return f"the checkpoint stays: the same command with --resume {shlex.quote(checkpoint)} goes on from it"


def apart(reads: Sequence[str], writes: Sequence[str]) -> None:
    """Raise ValueError where a file to write is one that is read, or is written twice, or a pipe is to be read twice.

    Either way something would be lost. Pipes, terminals and /dev/null may be written more than once."""
    for place, source in enumerate(reads):
        if not os.path.isfile(source) and os.path.exists(source) and source in reads[:place]:
            raise ValueError(f"{source} is named twice and can be read once; give one of the two as a file")
    for place, out in enumerate(writes):
        if os.path.exists(out) and not os.path.isfile(out):
            continue
        for other in (*reads, *writes[:place]):
            if os.path.realpath(out) == os.path.realpath(other):
                raise ValueError(f"{out} would be overwritten: it is named twice; give each file its own name")


def _standard(stream: str) -> Callable[[str | None], str | None]:
    """Return a callback that reads "-" as the name of a standard stream."""
    return lambda name: stream if name == "-" else name


READ, WRITTEN = _standard("/dev/stdin"), _standard("/dev/stdout")


def warn(text: str) -> None:
    """One line on stderr."""
    typer.echo(f"clsvm: warning: {text}", err=True)


def accuracy(predicted: NDArray[Any], y: NDArray[Any]) -> tuple[float, str]:
    """(Share of right labels in percent, how many of how many)."""
    right, total = int((predicted == y).sum()), len(y)
    return right / total * 100, f"{right}/{total}"


def regression_scores(predicted: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """(Mean squared error, squared correlation coefficient: nan where predictions or targets are all the same)."""
    import numpy as np

    error = float(np.square(predicted - y).mean())
    if not (np.ptp(predicted) and np.ptp(y)):
        return error, float("nan")
    return error, float(np.corrcoef(predicted, y)[0, 1] ** 2)


def require(flag: str, value: float | None, ok: bool, expected: str) -> None:
    """A usage error unless ``value`` is None or finite and ``ok``."""
    if value is not None and not (ok and math.isfinite(value)):
        raise typer.BadParameter(f"got {value:g}, expected {expected}", param_hint=flag)


def dtype_name(text: str) -> str:
    """A callback: one of the two."""
    if text not in ("float32", "float64"):
        raise typer.BadParameter(f"got {text!r}, expected float32 or float64")
    return text


def flagged(
    short: str, long: str, table: Mapping[str, Parameter] = PARAMETERS
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the flags of a table of parameters, LIBSVM's in front of its parameter ``short`` and the others
    in front of ``long``; it takes their values by the parameters' names."""

    def made(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: Any, **given: Any) -> None:
            command(*args, **given)

        listed = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            for place, letters in ((short, True), (long, False)):
                if one.name == place:
                    flags = ((p, p.flag) for p in table.values() if p.flag)
                    listed += [_flag(p, flag) for p, flag in flags if flag.name.startswith("--") != letters]
            if one.kind is not one.VAR_KEYWORD:
                listed.append(one)
        run.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in listed}
        return run

    return made


def _flag(one: Parameter, flag: Flag) -> inspect.Parameter:
    """What typer makes a flag of. Words that may stand for a number are read by the table, numbers by typer."""
    worded = isinstance(one.default, str)
    kind: Any = str if worded else type(one.default) if one.default is not None else float | None

    def checked(value: Any) -> Any:
        try:
            value = one.limits.read(value) if worded else value
            one.limits.check(one.name, value)
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error).replace(" or None", "")) from None
        return value

    option = typer.Option(flag.name, callback=checked, metavar=flag.metavar, help=flag.help)
    hint = Annotated[kind, option]
    return inspect.Parameter(one.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=one.default, annotation=hint)


TEXT = "svmlight text; may be .gz, .bz2 or .xz; - is standard input"


def ending(suffix: str) -> Callable[[str | None], str | None]:
    """A callback: a file's name with this suffix."""

    def check(name: str | None) -> str | None:
        if name is not None and not name.lower().endswith(suffix):
            raise typer.BadParameter(f"got {name!r}, expected a name that ends in {suffix}")
        return name

    return check


Device = Annotated[
    str | None,
    typer.Option("--device", help="gpu, cpu, gpu:1, part of a name or an index; see 'clsvm devices'."),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="gpu, cpu, gpu:1, part of a name or an index; see 'clsvm devices'. Several: gpu:0,gpu:1.",
    ),
]
Element = Annotated[
    str | None,
    typer.Option(
        "--element", metavar="EXPR", help="Element-wise kernel f(s), s the sum of EXPR over features: 'abs(x - y)'."
    ),
]
Param = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter of the kernel; repeatable.")
]


def kernel_of(
    function: str | None,
    element: str | None,
    params: Mapping[str, float | int],
    flags: Mapping[str, float | int | None] | None = None,
    hint: str = "--kernel",
) -> Kernel:
    """The kernel function of a command line; what is wrong with it is a usage error with the language's own words.

    function: a built-in's name, or an expression, "s" by default where ``element`` is given. params: of --param.
    flags: what -g, -r and -d say, by their parameters' names, None where they say nothing: built-ins take what they
    have of it. Expressions that name gamma, coef0 or degree without a value have 1, 0 and 3.
    """
    from clsvm.kernels import Kernel
    from clsvm.kernels.records import BUILTIN

    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if both := sorted(params.keys() & given.keys()):
        raise typer.BadParameter(f"got {both[0]} here and by {FLAGS[both[0]]}, expected it once", param_hint="--param")
    function = "s" if function is None and element is not None else function or ""
    if function in BUILTIN and element is None:
        named = {p.name for p in BUILTIN[function].parameters}
        values = {name: given[name] for name in given.keys() & named}
    else:
        named = set(re.findall(r"[A-Za-z_]\w*", f"{function} {element or ''}"))
        if stray := sorted(given.keys() - named):
            message = f"got a value for {stray[0]}, which {function!r} does not have"
            raise typer.BadParameter(message, param_hint=FLAGS[stray[0]])
        values = {name: given.get(name, default) for name, default in _DEFAULTS.items() if name in named}
    values |= params
    try:
        return Kernel(function, **values) if element is None else Kernel.elementwise(element, function, **values)
    except (ValueError, TypeError, ArithmeticError) as error:
        names = f"; built in are {', '.join(BUILTIN)}" * (function.isidentifier() and element is None)
        raise typer.BadParameter(f"{error}{names}", param_hint=hint) from None


def numbers(words: Sequence[str] | None) -> dict[str, float | int]:
    """What --param says: ``name=value`` words -> numbers by name, whole where they are written so."""
    found: dict[str, float | int] = {}
    for word in words or ():
        name, equals, text = (part.strip() for part in word.partition("="))
        try:
            value: float | int = int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
        except ValueError:
            equals = ""
        if not (equals and name.isidentifier()):
            raise typer.BadParameter(f"got {word!r}, expected name=number, such as alpha=0.5", param_hint="--param")
        if name in found:
            raise typer.BadParameter(f"got {name} twice, expected it once", param_hint="--param")
        found[name] = value
    return found


def console() -> Console:
    """stdout for tables: as wide as the terminal, and as wide as a table needs where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPE, markup=False, highlight=False)


def show_table(table: Table) -> None:
    """Print a table on stdout.

    Where the terminal is too narrow for its rows, print a block of lines "column: cell" for each row instead.
    """
    from rich.measure import Measurement

    out = console()
    if Measurement.get(out, out.options.update(max_width=_PIPE), table).maximum <= out.width:
        out.print(table)
        return
    if table.title:
        out.print(table.title)
    titles = [str(column.header) for column in table.columns]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for title, cell in zip(titles, row, strict=True):
            if cell:
                out.print(f"{title}: {', '.join(str(cell).splitlines())}")
        out.print()


def _memory(text: str | None) -> str | None:
    if text is not None:
        from clsvm.opencl.memory import parse_bytes

        try:
            parse_bytes(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return text


MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", callback=_memory, help="Device memory to use, such as 2GB. Default: a share of it."),
]
ModelOut = Annotated[
    str | None,
    typer.Argument(callback=WRITTEN, help="Where the model goes; - is standard output. Default: FILE's name + .model"),
]
Quiet = Annotated[bool, typer.Option("-q", help="Print warnings and errors only.")]
Weights = Annotated[
    list[str] | None, typer.Option("-wi", metavar="WEIGHT", help="C of label i times WEIGHT: -w1 2 -w-1 0.5.")
]


def spent(report: FitReport | NystromReport) -> str:
    """The seconds of a fit in words: all, and what a hundredth of them or more went to."""
    total = report.seconds["total"]
    parts = ((part, value) for part, value in report.seconds.items() if part != "total" and value > 0.01 * total)
    return f"{total:.3f}" + "".join(f", {part} {value:.3f}" for part, value in parts)


def write_report(report: FitReport | NystromReport, path: str) -> None:
    """A fit's report as JSON, whole or not at all. Raises OSError."""
    from clsvm import files

    with files.atomic_write(path) as stream:
        stream.write(f"{json.dumps(report.to_dict(), indent=1, allow_nan=False)}\n".encode())


def errors(model: KernelModel) -> str:
    """svm-predict's lines about the errors of a regression."""
    (sigma,) = model.probA if model.probA is not None else (float("nan"),)
    words = "Prob. model for test data: target value = predicted value + z,\nz: Laplace distribution "
    return f"{words}e^(-|z|/sigma)/(2sigma),sigma={sigma:g}"
