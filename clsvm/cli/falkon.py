"""``clsvm falkon train`` and ``predict``: kernel machines on centres, for many rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clsvm.cli.common import (
    INTERRUPTED,
    READ,
    TEXT,
    Devices,
    Element,
    MemoryLimit,
    ModelOut,
    Param,
    Quiet,
    apart,
    ending,
    flagged,
    kernel_of,
    numbers,
    reporting,
    require,
    spent,
    warn,
    write_report,
)
from clsvm.cli.predict import predict
from clsvm.nystrom.parameters import TABLE

if TYPE_CHECKING:
    from clsvm.report import NystromReport

_MACHINES: dict[str, tuple[str, dict[str, str]]] = {  # estimators and what they are told
    "classes": ("FalkonClassifier", {}),
    "logistic": ("LogisticFalkonClassifier", {}),
    "numbers": ("FalkonRegressor", {}),
    "log-cosh": ("FalkonRegressor", {"loss": "log_cosh"}),
}
app = typer.Typer(help="Kernel machines on centres, for many rows: Falkon and Logistic Falkon.", no_args_is_help=True)


def _machine(text: str) -> str:
    if text not in _MACHINES:
        raise typer.BadParameter(f"got {text!r}, expected one of {', '.join(_MACHINES)}")
    return text


@app.command(help="Train a machine on FILE and write it to MODEL, in clsvm's format.")
@flagged(short="", long="seed", table=TABLE)
def train(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(callback=READ, help=f"Training data, {TEXT}.")],
    model: ModelOut = None,
    machine: Annotated[
        str,
        typer.Option(
            "--machine",
            callback=_machine,
            help="classes (least squares), logistic (with probabilities of two classes), numbers, or log-cosh: numbers "
            "with outliers.",
        ),
    ] = "classes",
    function: Annotated[
        str | None,
        typer.Option("--kernel", metavar="NAME|EXPR", help="A name of 'clsvm kernels list', or an expression: rbf."),
    ] = None,
    gamma: Annotated[
        float | None, typer.Option("--gamma", help="gamma of the kernel. Default: 1 / (features * variance)")
    ] = None,
    element: Element = None,
    param: Param = None,
    no_intercept: Annotated[bool, typer.Option("--no-intercept", help="Without an offset.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the centres that are drawn.")] = 0,
    quiet: Quiet = False,
    device: Devices = None,
    memory_limit: MemoryLimit = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE.json", callback=ending(".json"), help="Write the fit's report as JSON."),
    ] = None,
    **asked: Any,
) -> None:
    """``clsvm falkon train``."""
    from clsvm.kernels.records import BUILTIN

    require("--gamma", gamma, gamma is not None and gamma > 0, "above 0")
    params = numbers(param)
    function = "rbf" if function is None and element is None else function
    named = function in BUILTIN and element is None and not params
    kernel: Any = function if named else kernel_of(function, element, params, {"gamma": gamma})
    target = model if model is not None else Path(file).name + ".model"
    with reporting(ctx):
        from sklearn.exceptions import ConvergenceWarning

        import clsvm
        from clsvm import files
        from clsvm.models import npz, svmlight

        written = [out for out in (target, report) if out]
        apart([file], written)
        for out in written:
            files.check_writable(out)
        X, y = svmlight.read_problem(file)
        name, told = _MACHINES[machine]
        estimator = getattr(clsvm, name)(
            kernel=kernel,
            gamma=gamma or "scale",
            fit_intercept=not no_intercept,
            random_state=seed,
            verbose=not quiet and sys.stderr.isatty(),
            device=device,
            memory_limit=memory_limit,
            **told,
            **asked,
        )
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below
        stopped = False
        try:
            estimator.fit(X, y)
        except KeyboardInterrupt:
            if not hasattr(estimator, "model_"):
                raise
            stopped = True
        fitted: NystromReport = estimator.fit_report_
        if not fitted.converged:
            warn(fitted.status)
        npz.save_model(estimator.model_, target)
        if report is not None:
            write_report(fitted, report)
        if not quiet:
            for line in _lines(fitted):
                typer.echo(line)
            typer.echo(f"model            {target}: clsvm's format")
        if stopped:
            raise typer.Exit(INTERRUPTED)


def _lines(report: NystromReport) -> Iterator[str]:
    yield f"objective        {report.objective:.9g}, at most {report.bound:.2g} above its least"
    yield f"residual         {report.residual:.3g}"
    yield f"steps            {report.steps} of conjugate gradients, {report.newton_steps} of Newton's method"
    yield f"centers          {report.centers}"
    yield f"seconds          {spent(report)}"
    yield f"device           {report.device}"
    yield f"layout           {report.layout}"
    numbers = f"rank {report.rank}, condition {report.condition:.1g}, jitter {report.jitter:.1g}"
    yield f"preconditioner   of {report.sample} rows, {numbers}; {report.factors}"
    yield f"status           {report.status}"


app.command(help="Predict the labels or values of TEST by MODEL and print the accuracy, or the error.")(predict)
