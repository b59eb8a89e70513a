"""Describe the flags and arguments of the subcommands of ``clsvm`` as :class:`Option` records.

:func:`command` makes a command of the package typer from a function and its options. The constants at the end are
options that several commands share.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clsvm.cli.common import reporting
from clsvm.parameters import PARAMETERS, Parameter

REQUIRED = inspect.Parameter.empty
TEXT = "svmlight text; may be .gz, .bz2 or .xz; - is standard input"
_KERNELS = {"0": "linear", "1": "poly", "2": "rbf", "3": "sigmoid", "4": "precomputed", "polynomial": "poly"}


@dataclass(frozen=True)
class Option:
    """Describe a flag or an argument of a command.

    Attributes
    ----------
    name
        name of the option. The function of the command gets one object as its argument. The value of the option is the
        attribute of the object with this name.
    flag
        the flag, such as "-c"; "" for an argument.
    default
        default value, or REQUIRED if the option has none.
    help
        help text of a flag or argument. A flag with the help text "" is not listed in the help.
    kind
        type of the value. None means the type of ``default``, or str if ``default`` is None or REQUIRED.
    metavar
        placeholder for the value in the help, or None.
    read
        function that converts the value, and raises ValueError or TypeError if the value is invalid. None leaves the
        value unchanged.
    least
        smallest valid number, or None for no bound.
    most
        largest valid number, or None for no bound.
    """

    name: str
    flag: str
    default: Any
    help: str
    kind: Any = None
    metavar: str | None = None
    read: Callable[[Any], Any] | None = None
    least: float | None = None
    most: float | None = None

    def parameter(self) -> inspect.Parameter:
        """Return the function parameter from which typer makes the flag or argument."""
        settings: dict[str, Any] = {"help": self.help, "metavar": self.metavar, "min": self.least}
        settings["max"] = self.most
        made = typer.Option(self.flag, hidden=not self.help, **settings) if self.flag else typer.Argument(**settings)
        kind: Any = self.kind or (str if self.default in (None, REQUIRED) else type(self.default))
        hint = Annotated[kind, made]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=hint)

    def value(self, value: Any) -> Any:
        """Check a value from the command line, and return it after conversion. Raises BadParameter if it is invalid."""
        try:
            return value if self.read is None else self.read(value)
        except (ValueError, TypeError) as error:
            words = str(error).replace(" or None", "")  # a command line cannot give None, so the message omits it
            raise typer.BadParameter(words, param_hint=self.flag) from None


app = typer.Typer(
    name="clsvm",
    help="Kernel support vector machines through OpenCL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def command(
    words: str, *options: Option, to: typer.Typer = app, name: str | None = None, cls: type[TyperCommand] | None = None
) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Return a decorator that makes a typer command of a function.

    The function gets an object that has each option's value as an attribute. Errors of the function are printed as
    messages. ``words`` is the help text, which cannot be the docstring because ``python -OO`` removes docstrings.
    ``to`` is the group to which the command belongs. ``name`` is the name of the command, by default that of the
    function. ``cls`` is the class of the command, such as :class:`LibsvmCommand`.
    """

    def made(function: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            with reporting(ctx, given.get("checkpoint")):
                function(SimpleNamespace(**{option.name: option.value(given[option.name]) for option in options}))

        ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        listed = [ctx, *(option.parameter() for option in options)]
        run.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
        to.command(name, cls=cls, help=words)(run)
        return run

    return made


def group(name: str, words: str) -> typer.Typer:
    """Return a new group of subcommands, ``clsvm NAME ...``, with the help text ``words``."""
    made = typer.Typer(help=words, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


class LibsvmCommand(TyperCommand):
    """Parse a command line with LIBSVM's weight flags: ``-w1 2``, the weight 2 for class 1, becomes ``-wi 1=2``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words, given = list[str](), iter(args)
        for word in given:
            if word == "--":
                words += [word, *given]
                break
            if word.startswith("-w") and (weight := next(given, None)) is None:
                raise typer.BadParameter("expected a weight after it", ctx, param_hint=word)
            words += ["-wi", f"{word[2:]}={weight}"] if word.startswith("-w") else [word]
        return super().parse_args(ctx, words)


# Functions that read values


def to_read(name: str | None) -> str | None:
    """Return the name of a file to read. The name "-" becomes /dev/stdin."""
    return "/dev/stdin" if name == "-" else name


def to_write(name: str | None) -> str | None:
    """Return the name of a file to write. The name "-" becomes /dev/stdout."""
    return "/dev/stdout" if name == "-" else name


def one_of(flag: str, got: str, known: Collection[str]) -> str:
    """Return the value ``got`` of a flag if it is among ``known``, else raise BadParameter."""
    if got not in known:
        raise typer.BadParameter(f"got {got!r}, expected one of {', '.join(known)}", param_hint=flag)
    return got


def numbers(words: Sequence[str] | None) -> dict[str, float | int]:
    """Return the names and numbers in ``words``, which are texts ``name=number``, as a dict.

    A number without a point or exponent becomes an int. Raises ValueError for another text, or a name that occurs
    twice.
    """
    found: dict[str, float | int] = {}
    for word in words or ():
        name, equals, text = (part.strip() for part in word.partition("="))
        try:
            value: float | int = int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
        except ValueError:
            equals = ""
        if not (equals and name.isidentifier()):
            raise ValueError(f"got {word!r}, expected name=number, such as alpha=0.5")
        if name in found:
            raise ValueError(f"got {name} twice, expected it once")
        found[name] = value
    return found


def _weights(words: Sequence[str] | None) -> dict[int, float]:
    """Return the labels and weights in ``words``, which are texts ``label=weight``, as a dict.

    If a label occurs several times, its last weight counts.
    Raises ValueError for another text, or a weight that is not above 0 and finite.
    """
    weights = {}
    for word in words or ():
        label, _, text = word.partition("=")
        try:
            weight = weights[int(label)] = float(text)
        except ValueError:
            expected = "expected an integer label and a weight, such as -w-1 0.5"
            raise ValueError(f"got '-w{label} {text}', {expected}") from None
        if not 0 < weight < math.inf:
            raise ValueError(f"got '-w{label} {text}', expected a weight above 0")
    return weights


def _kernel_name(text: str | None) -> str | None:
    """Return the name of the kernel for the value of the flag -t: LIBSVM's number of a kernel function, or a name.

    Raises ValueError for another value.
    """
    from clsvm.kernels.records import BUILTIN

    name = _KERNELS.get(text or "", text)
    if name is not None and name not in (*BUILTIN, "precomputed"):
        expected = f"0 linear, 1 poly, 2 rbf, 3 sigmoid, 4 precomputed, or a name: {', '.join(BUILTIN)}"
        raise ValueError(f"got {text!r}, expected one of {expected}")
    return name


# Options of several commands


def data(words: str, name: str = "file") -> Option:
    """Return the :class:`Option` that describes a positional argument, the path of a data file.

    ``name`` is the argument's name. ``words`` describe the file's content in the help text.
    """
    return Option(name, "", REQUIRED, f"{words}, {TEXT}.", read=to_read)


def of_estimators(table: Mapping[str, Parameter] = PARAMETERS, short: bool = False) -> list[Option]:
    """Return the command-line options for the estimator parameters in ``table``.

    If ``short`` is true, return only options with one of LIBSVM's one-letter flags, such as "-c". If ``short`` is
    false, return only options with a long flag, such as "--dtype".
    """
    flags = [one for one in table.values() if one.flag and one.flag.name.startswith("--") != short]
    return [of_parameter(one) for one in flags]


def of_parameter(one: Parameter) -> Option:
    """Return the command-line option for the estimator parameter ``one``.

    If the parameter's default is not a word, the package typer converts the text of the flag to the type of the
    default, or to float if the default is None. If the default is a word such as "auto", ``one.limits`` converts the
    text instead. In both cases, ``one.limits`` checks that the value is valid.
    """
    assert one.flag
    is_text = isinstance(one.default, str)

    def checked(value: Any) -> Any:
        value = one.limits.read(value) if is_text else value
        one.limits.check(one.name, value)
        return value

    kind = float if one.default is None else None
    return Option(one.name, one.flag.name, one.default, one.flag.help, kind, one.flag.metavar, read=checked)


_ONE_DEVICE = "gpu, cpu, gpu:1, part of a name or an index; see 'clsvm devices'."
_MEMORY = "Device memory to use, such as 2GB. Default: a share of it."
_MODEL_OUT = "File for the model; - is standard output. Default: FILE's name + .model"
_ELEMENT = "Element-wise kernel f(s), s the sum of EXPR over features: 'abs(x - y)'."
DEVICE = Option("device", "--device", None, _ONE_DEVICE)
DEVICES = Option("device", "--device", None, f"{_ONE_DEVICE} Several: gpu:0,gpu:1.")
MEMORY_LIMIT = Option("memory_limit", "--memory-limit", None, _MEMORY)
QUIET = Option("quiet", "-q", False, "Print warnings and errors only.")
MODEL_OUT = Option("model", "", None, _MODEL_OUT, read=to_write)
REPORT = Option("report", "--report", None, "Write the fit's report as JSON.", str, "FILE.json")
PLOT = Option("plot", "--plot", None, "Draw gap and violation over time.", str, "FILE.png")
ELEMENT = Option("element", "--element", None, _ELEMENT, str, "EXPR")
PARAM = Option("param", "--param", None, "A parameter of the kernel; repeatable.", list[str], "NAME=VALUE", numbers)

# The options below are flags of svm-train. LIBSVM's grid.py accepts them too, and passes them on to svm-train.
_KERNEL = (
    "Kernel: 0 linear, 1 poly, 2 rbf, 3 sigmoid, 4 precomputed (FILE holds lines 'label 0:serial 1:K(x,x1) 2:K(x,x2)"
    " ...'), or a name of 'clsvm kernels list'. Default: 2"
)
KERNEL = Option("kernel", "-t", None, _KERNEL, read=_kernel_name)
DEGREE = Option("degree", "-d", None, "degree of the kernel. Default: 3", int, least=0)
COEF0 = Option("coef0", "-r", None, "coef0 of the kernel. Default: 0", float)
WEIGHTS = Option(
    "weights", "-wi", None, "Multiply C of a label by WEIGHT: -w1 2 -w-1 0.5.", list[str], "WEIGHT", _weights
)
SHRINKING = Option("shrinking", "-h", 1, "Shrinking, 0 or 1: accepted, without effect.", least=0, most=1)
PROBABILITY = Option(
    "probability", "-b", 0, "1: also fit probabilities, by five more fits; of -s 2 for LIBSVM 3.3 or later.", least=0,
    most=1,
)  # fmt: skip
FOLDS = Option("folds", "-v", None, "Number of folds for cross-validation, which writes no model.", int, least=2)
