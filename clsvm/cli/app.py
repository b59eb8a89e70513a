"""Define the command ``clsvm`` and its subcommands.

The modules train, scale and grid have the subcommands ``train``, ``predict``, ``falkon``, ``scale`` and ``grid``. The
module app has the others: ``describe``, ``sample``, ``devices``, ``tune``, ``warm-up`` and ``kernels``.

Results go to stdout. Progress bars, warnings and errors go to stderr. The exit code is 0 for success, 1 for an error of
data, files or device, 2 for an invalid command line, and 130 for Ctrl-C. Functions import slow modules when they run,
so that ``clsvm --help`` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clsvm.cli import common, flags, grid, scale, train
from clsvm.cli.flags import Option, app
from clsvm.errors import DeviceError, HostMemoryError
from clsvm.parameters import PARAMETERS
from clsvm.report import Progress
from clsvm.system import explained

if TYPE_CHECKING:
    from clsvm.kernels import Kernel
    from clsvm.tools.tune import FamilyResult

__all__ = ["app", "grid", "main", "scale", "train"]


@flags.command(
    "Describe the rows of FILE: how many entries they have, and in which layout a fit stores them.",
    flags.data("Rows"),
    flags.DEVICE,
)
def describe(args: Any) -> None:
    """Run ``clsvm describe``: print a file's numbers of rows, columns and entries, and the layout of the rows.

    The layout is the storage format that a fit would choose for the rows on the device.
    """
    from clsvm.gram import layouts
    from clsvm.kernels import Kernel
    from clsvm.models import svmlight
    from clsvm.opencl import devices
    from clsvm.opencl.stream import Stream

    X, _ = svmlight.read_problem(args.file)
    with Stream(devices.first_device(args.device), None) as stream:
        plan = layouts.choose(stream.profile, X, Kernel("rbf").spec, all_rows=True)
    (n, d), entries = X.shape, X.count_nonzero()
    typer.echo(f"rows     {n}")
    typer.echo(f"columns  {d}")
    typer.echo(f"entries  {entries}, {100 * entries / (n * d):.3g} % of all values")
    typer.echo(f"layout   {plan.kind}: {plan.reason}")


@flags.command(
    "Write a scaled data set of scikit-learn as svmlight text: NAME.train and NAME.test.",
    Option("name", "", flags.REQUIRED, "breast_cancer, or digits (8 against the rest)."),
    Option("folder", "--folder", ".", "Folder for the files."),
)  # fmt: skip
def sample(args: Any) -> None:
    """Run ``clsvm sample``: write a data set of scikit-learn as svmlight text, and print the names of the files."""
    from clsvm import datasets

    flags.one_of("NAME", args.name, datasets.NAMES)
    for path in datasets.sample(args.name, args.folder):
        typer.echo(os.fspath(path))


@flags.command("List the OpenCL devices of this machine, whether each is usable, and which is the default.")
def devices(args: Any) -> None:
    """Run ``clsvm devices``: print a table of the OpenCL devices, and which device is the default."""
    from clsvm.opencl import devices as machine
    from clsvm.opencl.runtime import unloaded

    records = machine.devices()
    if not records:
        raise machine.no_platform()
    default, rule = _default()
    columns = "index", "platform", "device", "driver", "memory", "largest buffer", "fp64", "usable", "default"
    rows = []
    for r in records:
        sizes = f"{r.memory / 2**30:.1f} GiB", f"{r.largest_buffer / 2**30:.1f} GiB"
        usable = "yes" if r.usable else f"no: {r.reason}"
        marks = "yes" if r.fp64 else "no", usable, "yes" if r.index == default else ""
        rows.append((str(r.index), r.platform, r.name, r.driver, *sizes, *marks))
    common.show_table(columns, rows)
    for words in unloaded():
        common.console().print(words)
    any_usable = any(r.usable for r in records)
    common.console().print(rule if any_usable else f"None of these is usable: {machine.install_advice()}")


def _default() -> tuple[int | None, str]:
    """Return the index of the default device, and a sentence with the rule that chooses it.

    The index is None if there is no default device.
    """
    from clsvm.opencl.devices import find

    named = os.environ.get("CLSVM_DEVICE")
    rule = "a usable GPU, else a usable CPU; of several the one with most memory (CLSVM_DEVICE can name another)"
    rule = f"The default is what CLSVM_DEVICE says: {named!r}" if named else f"The default is {rule}"
    try:
        return find(None).index, rule
    except DeviceError:
        return None, f"{rule}, which is none of these, or more than one" if named else rule


@flags.command(
    "Search a device's fastest tile sizes, and keep the results for later fits.",
    flags.DEVICE,
    Option("seconds", "--seconds", 60.0, "Approximate time of the search in seconds, compilation included.", least=0),
    Option("show", "--show", False, "Print the results of earlier searches, and the file that holds them."),
    Option("reset", "--reset", False, "Delete the results of earlier searches."),
)
def tune(args: Any) -> None:
    """Run ``clsvm tune``: search the fastest block sizes of OpenCL kernels for a device, and store them in a file.

    With --show, print the stored results instead. With --reset, delete them.
    """
    if args.show and args.reset:
        raise typer.BadParameter("expected one of --show and --reset, got both", param_hint="--reset")
    from clsvm.opencl import profiles
    from clsvm.tools import tune as tool

    if args.reset:
        typer.echo(f"{profiles.tuned_path()}: {'deleted' if profiles.delete_tuned() else 'there was none'}")
        return
    if args.show:
        kept = profiles.tuned_path()
        typer.echo(f"{kept}:\n{kept.read_text()}" if kept.exists() else f"{kept}: there is none")
        return
    with Progress(lines=False) as progress:
        found = tool.tune(args.device, args.seconds, progress.show)
    _show_found(found)
    stored, more = f"stored in {profiles.tuned_path()}", f"nothing is stored: give --seconds more than {args.seconds:g}"
    typer.echo(stored if any(one.searched for one in found) else more)


def _show_found(found: list[FamilyResult]) -> None:
    """Print the results of a search for fast block sizes as a table.

    A row is for one kind of product with a kernel matrix. It has the milliseconds with the default block sizes, the
    milliseconds with the best block sizes, the ratio of both, and the best block sizes.
    """
    rows, figures = [], ("default ms", "best ms", "gain")
    for one in found:
        numbers = f"{1e3 * one.default:.3g}", f"{1e3 * one.best:.3g}", f"{one.default / one.best:.2f}"
        cells = (*numbers, str(one.choice or "the default")) if one.searched else (*"---", "not searched")
        rows.append((one.family, *cells))
    common.show_table(("part of the work", *figures, "choice"), rows, figures)


FUNCTION = Option("function", "--kernel", None, "A name of 'list', or an expression of dot, sqdist, ...", str, "EXPR")


@flags.command(
    "Build the OpenCL programs of common fits, so that the first fit of a later process finds them in the cache.",
    flags.DEVICE,
    replace(FUNCTION, help="A name of 'kernels list', or an expression of dot, sqdist, ... Default: rbf."),
    flags.ELEMENT, flags.PARAM, name="warm-up",
)  # fmt: skip
def warm_up(args: Any) -> None:
    """Run ``clsvm warm-up``: build the OpenCL programs of common fits by running small fits.

    Each small fit runs twice. A table shows the seconds of the first and of the second run.
    """
    from clsvm import warm_up as tool

    function = "rbf" if args.function is None and args.element is None else args.function
    kernel = common.kernel_of(function, args.element, args.param, {}, "--kernel")
    with Progress(lines=False) as progress:
        found = tool.warm_up(kernel, args.device, progress.show)
    rows = [(one.name, f"{one.first:.2f}", f"{one.second:.2f}") for one in found]
    common.show_table(("work", "first s", "again s"), rows, ("first s", "again s"))
    off = "pyopencl's cache is off: later processes may have to build the programs again"
    typer.echo("later processes load these programs" if tool.kept() else off)


GROUP = flags.group("kernels", "Kernel functions: list, show, emit as OpenCL.")


def _kernel(args: Any, function: str | None, hint: str = "--kernel") -> Kernel:
    if function is None and args.element is None:
        raise typer.BadParameter("expected one of them", param_hint=f"{hint} / --element")
    return common.kernel_of(function, args.element, args.param, {}, hint)


@flags.command("List the built-in kernel functions with their parameters.", to=GROUP, name="list")
def list_(args: Any) -> None:
    """Run ``clsvm kernels list``: print a table of the built-in kernel functions."""
    from clsvm.kernels.records import BUILTIN

    rows = []
    for name, spec in BUILTIN.items():
        lines = (f"{p.name} = {p.default:g} ({p.limits})" for p in spec.parameters)
        rows.append((name, "\n".join(lines), spec.formula))
    common.show_table(("name", "parameters", "formula"), rows)


@flags.command(
    "Show a kernel function: formula, parameters, layouts, and its OpenCL text.",
    Option("named", "", None, "A name of 'list', or an expression.", str, "KERNEL"),
    FUNCTION, flags.ELEMENT, flags.PARAM, to=GROUP,
)  # fmt: skip
def show(args: Any) -> None:
    """Run ``clsvm kernels show``: print a kernel function's formula, parameters, layouts and OpenCL text.

    A layout is a storage format for rows on a device. The layouts that the kernel function can use are printed.
    """
    if args.function is not None and args.named is not None:
        raise typer.BadParameter("KERNEL and --kernel both give a kernel function: drop one", param_hint="--kernel")
    function = args.named if args.function is None else args.function
    common.say(_shown(_kernel(args, function, "KERNEL")))


def _shown(kernel: Kernel) -> Iterator[str]:
    from clsvm.gram import layouts
    from clsvm.opencl import sources

    spec = kernel.spec
    yield f"kernel      {kernel!r}"
    yield f"formula     {spec.formula}"
    if spec.doc:
        yield f"that is     {spec.doc}"
    for p in spec.parameters:
        yield f"parameter   {p.name} = {kernel.params[p.name]!r} ({p.limits})"
    yield f"rows        {'without negative values' if spec.nonnegative else 'any'}"
    yield f"layouts     {', '.join(layouts.names(spec))}"
    yield f"shift       {'depends on x - y alone' if spec.of_distance else 'does not depend on x - y alone'}"
    for argument, value in zip(spec.arguments, kernel.numbers, strict=True):
        yield f"number      {argument.type} {argument.name} = {value:.17g}"
    yield ""
    yield sources.render("gram/kernel_function", kernel=spec).removeprefix(sources.cl()).strip()


@flags.command(
    "Write the OpenCL text of a product with the kernel matrix, for a host in any language."
    "\n\nA comment at its head says how to run it.",
    FUNCTION, flags.ELEMENT, flags.PARAM,
    Option("product", "--product", "rows", "rows, update or both."),
    Option("layout", "--layout", "dense", "Layout of the rows: dense, bits, clustered, csr or hybrid."),
    flags.of_parameter(PARAMETERS["dtype"]),
    flags.DEVICE,
    Option("profile", "--profile", None, "Kind of device, cpu or gpu, instead of --device."),
    Option("features", "--features", 0, "Number of features, if above 65536.", least=0),
    Option("output", "-o", None, "File for the text. Default: stdout"), to=GROUP,
)  # fmt: skip
def emit(args: Any) -> None:
    """Run ``clsvm kernels emit``: write the OpenCL text that :func:`clsvm.tools.emit.emit` returns."""
    from clsvm.gram import layouts
    from clsvm.opencl.devices import default_profile, find
    from clsvm.opencl.profiles import PROFILES
    from clsvm.tools import emit as tool

    kernel = _kernel(args, args.function)
    if args.profile is not None and args.device is not None:
        raise typer.BadParameter("expected --device or --profile, got both", param_hint="--profile")
    flags.one_of("--product", args.product, tool.PRODUCTS)
    kinds = [name for name in layouts.names(kernel.spec) if not layouts.LAYOUTS[name].plain]
    flags.one_of("--layout", args.layout, kinds)
    if args.profile is not None:
        flags.one_of("--profile", args.profile, PROFILES)
    profile = PROFILES[args.profile] if args.profile is not None else default_profile(find(args.device))
    text = tool.emit(kernel, args.product, args.layout, args.dtype, profile, args.features)
    if args.output is None:
        typer.echo(text)
    common.write_file(args.output, [text], end="")


def _version(args: bool) -> None:
    if args:
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
    """Run the command ``clsvm``. If the host lacks memory, print one message and exit with code 1."""
    try:
        with explained():
            app(prog_name="clsvm")
    except HostMemoryError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"clsvm: error: {error}", err=True)
        raise SystemExit(1) from None
