"""``clsvm kernels``: what kernel functions there are, what becomes of one, and its OpenCL text for other hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from clsvm.cli.common import READ, TEXT, Device, Element, Param, dtype_name, kernel_of, numbers, reporting, show_table

if TYPE_CHECKING:
    from clsvm.kernels import Kernel
    from clsvm.kernels.records import Spec
    from clsvm.tools.audit import Finding, Target

T = TypeVar("T")

app = typer.Typer(
    help="Kernel functions: list, show, check, emit as OpenCL, audit.", no_args_is_help=True, rich_markup_mode=None
)
Function = Annotated[
    str | None, typer.Option("--kernel", metavar="EXPR", help="A name of 'list', or an expression of dot, sqdist, ...")
]


def _asked(function: str | None, element: str | None, param: list[str] | None, hint: str = "--kernel") -> Kernel:
    if function is None and element is None:
        raise typer.BadParameter("expected one of them", param_hint=f"{hint} / --element")
    return kernel_of(function, element, numbers(param), hint=hint)


@app.command("list", help="List the built-in kernel functions with their parameters.")
def list_(ctx: typer.Context) -> None:
    """``clsvm kernels list``: the records of clsvm.kernels.records."""
    with reporting(ctx):
        from rich.table import Table

        from clsvm.kernels.records import BUILTIN

        table = Table()
        for title in ("name", "parameters", "formula"):
            table.add_column(title, overflow="fold")
        for name, spec in BUILTIN.items():
            table.add_row(name, "\n".join(_parameters(spec)), spec.formula)
        show_table(table)


def _parameters(spec: Spec) -> Iterator[str]:
    """A line for each parameter: name, default, limits."""
    return (f"{p.name} = {p.default:g} ({p.limits})" for p in spec.parameters)


@app.command(help="Show a kernel function: formula, parameters, layouts, and its OpenCL text.")
def show(
    ctx: typer.Context,
    function: Annotated[
        str | None, typer.Argument(metavar="KERNEL", help="A name of 'list', or an expression.")
    ] = None,
    named: Function = None,
    element: Element = None,
    param: Param = None,
) -> None:
    """``clsvm kernels show``."""
    if function is not None and named is not None:
        raise typer.BadParameter("it says the same as KERNEL: give one of the two", param_hint="--kernel")
    kernel = _asked(named if function is None else function, element, param, "KERNEL")
    with reporting(ctx):
        for line in _shown(kernel):
            typer.echo(line)


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


@app.command(
    help="Look at symmetry, finite values and eigenvalues on a sample of the rows of FILE."
    "\n\nA gamma without a value is 1 / number of features. Exit code 1 where the function is no kernel on the sample."
)
def check(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(callback=READ, help=f"Rows, {TEXT}.")],
    function: Function = None,
    element: Element = None,
    param: Param = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of the sample.")] = 500,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the sample.")] = 0,
) -> None:
    """``clsvm kernels check``: see :meth:`clsvm.Kernel.check`."""
    kernel = _asked(function, element, param)
    with reporting(ctx):
        from clsvm.models import svmlight

        X, _ = svmlight.read_problem(file)
        if "gamma" in kernel.params and "gamma" not in numbers(param):
            kernel = kernel.set_params(gamma=1.0 / X.shape[1])
        found = kernel.check(X, rows, seed)
        typer.echo(f"{kernel!r} {found}")
        if not found.positive_semidefinite:
            raise typer.Exit(1)


@app.command(
    help="Write the OpenCL text of a product with the kernel matrix, for a host in any language."
    "\n\nA comment at its head says how to run it."
)
def emit(
    ctx: typer.Context,
    function: Function = None,
    element: Element = None,
    param: Param = None,
    product: Annotated[str, typer.Option("--product", help="rows, update, both, forward-back or tile.")] = "rows",
    layout: Annotated[str, typer.Option("--layout", help="Of the rows: dense, clustered, csr or hybrid.")] = "dense",
    dtype: Annotated[
        str, typer.Option("--dtype", callback=dtype_name, help="Of kernel values: float32 or float64.")
    ] = "float32",
    device: Device = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="For a kind of device, cpu or gpu, instead of --device.")
    ] = None,
    features: Annotated[int, typer.Option("--features", min=0, help="Number of features, if above 65536.")] = 0,
    output: Annotated[str | None, typer.Option("-o", help="Where the text goes. Default: stdout")] = None,
) -> None:
    """``clsvm kernels emit``: see :func:`clsvm.tools.emit.emit`."""
    kernel = _asked(function, element, param)
    if profile is not None and device is not None:
        raise typer.BadParameter("expected --device or --profile, got both", param_hint="--profile")
    from clsvm.gram import layouts
    from clsvm.opencl.profiles import PROFILES
    from clsvm.tools.emit import PRODUCTS
    from clsvm.tools.emit import emit as text_of

    _one_of("--product", product, PRODUCTS)
    _one_of("--layout", layout, [name for name in layouts.names(kernel.spec) if not layouts.LAYOUTS[name].plain])
    if profile is not None:
        _one_of("--profile", profile, PROFILES)
    with reporting(ctx):
        from clsvm import files
        from clsvm.opencl.devices import default_profile, find

        wanted = PROFILES[profile] if profile is not None else default_profile(find(device))
        text = text_of(kernel, product, layout, dtype, wanted, features)
        if output is None:
            typer.echo(text)
            return
        with files.atomic_write(output) as stream:
            stream.write(text.encode())


def _one_of(flag: str, got: str, known: Iterable[str]) -> str:
    if got not in known:
        raise typer.BadParameter(f"got {got!r}, expected one of {', '.join(known)}", param_hint=flag)
    return got


def _names(flag: str, text: str | None, known: Iterable[str]) -> list[str]:
    """What a list such as ``a,b`` names, everything for None."""
    known = list(known)
    return known if text is None else [_one_of(flag, name.strip(), known) for name in text.split(",")]


@app.command(
    help="Compile the programs for GPUs that are not here and list what their kernels take."
    "\n\nThe worst of each target comes first. Exit code 1 where registers are spilled, memory is "
    "exceeded or a compiler refuses."
)
def audit(
    ctx: typer.Context,
    targets: Annotated[
        str | None, typer.Option("--targets", metavar="A,B", help="Default: all that are known.")
    ] = None,
    kernels: Annotated[str | None, typer.Option("--kernels", metavar="A,B", help="Default: all built-in ones.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Compilers at a time. Default: one for each processor.")
    ] = None,
) -> None:
    """``clsvm kernels audit``: see :func:`clsvm.tools.audit.audit`."""
    from clsvm.kernels.records import BUILTIN
    from clsvm.tools import audit as compilers

    known = {target.name: target for target in compilers.TARGETS}
    chosen = [known[name] for name in _names("--targets", targets, known)]
    specs = [BUILTIN[name] for name in _names("--kernels", kernels, BUILTIN)]
    with reporting(ctx):
        from clsvm.errors import ClsvmError

        if words := compilers.missing():
            raise ClsvmError(words)
        made = {target: list(_programs(target, specs)) for target in chosen}
        found = (one for target in chosen for one in compilers.audit(made[target], target, jobs or os.cpu_count() or 1))
        findings = sorted(_counted(found), key=lambda f: (f.target.name, *_badness(f)))
        _print(findings)
        programs, bad = sum(map(len, made.values())), sum(1 for finding in findings if finding.problems)
        typer.echo(f"{programs} programs, {len(chosen)} targets, {len(findings)} kernels: {bad} with problems")
        if bad:
            raise typer.Exit(1)


def _programs(target: Target, specs: list[Spec]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """All that a target runs, as (label, text, options)."""
    from clsvm.gram.units import UNITS
    from clsvm.opencl.profiles import PROFILES
    from clsvm.tools import registry

    profile = PROFILES[target.profile]
    units = [v for one in UNITS if one.name == target.units for v in registry.of_units(one, specs, profile)]
    for v in (*registry.fixed(profile), *registry.registry(specs, profile), *units):
        yield v.label, v.text, v.options


def _badness(f: Finding) -> tuple[int, float, int]:
    return -len(f.problems), f.occupancy if f.occupancy is not None else 0.0, -(f.registers or 0)


def _counted(found: Iterable[T]) -> Iterator[T]:
    """``found``, with their number on stderr meanwhile if that is a terminal."""
    if not sys.stderr.isatty():
        yield from found
        return
    from rich.console import Console

    with Console(stderr=True).status("compiling") as status:
        for number, finding in enumerate(found, 1):
            status.update(f"compiling, {number} kernels seen")
            yield finding


def _print(findings: list[Finding]) -> None:
    from rich.table import Table

    table = Table()
    for title in ("target", "program", "kernel"):
        table.add_column(title, overflow="fold")
    for title in (
        "registers", "scalar", "spills", "scratch", "local memory", "occupancy", "multiply-adds", "barriers"
    ):  # fmt: skip
        table.add_column(title, justify="right")
    table.add_column("problems", overflow="fold")
    for f in findings:
        figures = f.registers, f.scalar_registers, f.spills, f.scratch, f.local_memory
        words = ("-" if figure is None else str(figure) for figure in figures)
        occupancy = "-" if f.occupancy is None else f"{f.occupancy:.3g}"
        loop = f"{f.multiply_adds:.0%}" if f.multiply_adds else "-", str(f.barriers or "-")
        table.add_row(f.target.name, f.program, f.entry, *words, occupancy, *loop, "; ".join(f.problems))
    show_table(table)
