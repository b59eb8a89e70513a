"""``clsvm kernels``: list kernel functions, show and check one, write its OpenCL text for other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from clsvm.cli import common, flags
from clsvm.cli.flags import Option

if TYPE_CHECKING:
    from clsvm.kernels import Kernel

GROUP = flags.group("kernels", "Kernel functions: list, show, check, emit as OpenCL.")
FUNCTION = Option("function", "--kernel", None, "A name of 'list', or an expression of dot, sqdist, ...", str, "EXPR")


def _kernel(asked: Any, function: str | None, hint: str = "--kernel") -> Kernel:
    if function is None and asked.element is None:
        raise typer.BadParameter("expected one of them", param_hint=f"{hint} / --element")
    return common.kernel_of(function, asked.element, asked.param, hint=hint)


@flags.command("List the built-in kernel functions with their parameters.", to=GROUP, name="list")
def list_(asked: Any) -> None:
    """Run ``clsvm kernels list``."""
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
def show(asked: Any) -> None:
    """Run ``clsvm kernels show``."""
    if asked.function is not None and asked.named is not None:
        raise typer.BadParameter("it says the same as KERNEL: give one of the two", param_hint="--kernel")
    function = asked.named if asked.function is None else asked.function
    common.say(_shown(_kernel(asked, function, "KERNEL")))


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
    "Look at symmetry, finite values and eigenvalues on a sample of the rows of FILE."
    "\n\nA gamma without a value is 1 / number of features. Exit code 1 where the function is no kernel on the sample.",
    flags.data("Rows"),
    FUNCTION,
    flags.ELEMENT,
    flags.PARAM,
    Option("rows", "--rows", 500, "Rows of the sample.", least=1),
    Option("seed", "--seed", 0, "Seed of the sample.", least=0),
    to=GROUP,
)
def check(asked: Any) -> None:
    """Run ``clsvm kernels check``, see :meth:`clsvm.Kernel.check`."""
    from clsvm.models import svmlight

    kernel = _kernel(asked, asked.function)
    X, _ = svmlight.read_problem(asked.file)
    if "gamma" in kernel.params and "gamma" not in asked.param:
        kernel = kernel.set_params(gamma=1.0 / X.shape[1])
    found = kernel.check(X, asked.rows, asked.seed)
    typer.echo(f"{kernel!r} {found}")
    if not found.positive_semidefinite:
        raise typer.Exit(1)


@flags.command(
    "Write the OpenCL text of a product with the kernel matrix, for a host in any language."
    "\n\nA comment at its head says how to run it.",
    FUNCTION, flags.ELEMENT, flags.PARAM,
    Option("product", "--product", "rows", "rows, update, both, forward-back or tile."),
    Option("layout", "--layout", "dense", "Of the rows: dense, clustered, csr or hybrid."),
    Option(
        "dtype", "--dtype", "float32", "Of kernel values: float32 or float64.",
        read=lambda text: flags.one_of(None, text, ("float32", "float64"), "float32 or float64"),
    ),
    flags.DEVICE,
    Option("profile", "--profile", None, "For a kind of device, cpu or gpu, instead of --device."),
    Option("features", "--features", 0, "Number of features, if above 65536.", least=0),
    Option("output", "-o", None, "Where the text goes. Default: stdout"), to=GROUP,
)  # fmt: skip
def emit(asked: Any) -> None:
    """Run ``clsvm kernels emit``, see :func:`clsvm.tools.emit.emit`."""
    from clsvm.gram import layouts
    from clsvm.opencl.devices import default_profile, find
    from clsvm.opencl.profiles import PROFILES
    from clsvm.tools import emit as tool

    kernel = _kernel(asked, asked.function)
    if asked.profile is not None and asked.device is not None:
        raise typer.BadParameter("expected --device or --profile, got both", param_hint="--profile")
    flags.one_of("--product", asked.product, tool.PRODUCTS)
    flags.one_of(
        "--layout", asked.layout, [name for name in layouts.names(kernel.spec) if not layouts.LAYOUTS[name].plain]
    )
    if asked.profile is not None:
        flags.one_of("--profile", asked.profile, PROFILES)
    profile = PROFILES[asked.profile] if asked.profile is not None else default_profile(find(asked.device))
    text = tool.emit(kernel, asked.product, asked.layout, asked.dtype, profile, asked.features)
    if asked.output is None:
        typer.echo(text)
    common.write_file(asked.output, [text], end="")
