"""``clsvm falkon train`` and ``predict``: Nyström kernel machines, for many rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clsvm.cli import common, flags
from clsvm.cli.flags import Option
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
GROUP = flags.group("falkon", "Kernel machines on centres, for many rows: Falkon and Logistic Falkon.")
OF_TABLE = flags.of_estimators(TABLE)
OPTIONS = (
    flags.data("Training data"),
    flags.MODEL_OUT,
    Option(
        "machine", "--machine", "classes", "classes (least squares), logistic (with probabilities of two classes), "
        "numbers, or log-cosh: numbers with outliers.", read=lambda text: flags.one_of(None, text, _MACHINES),
    ),
    Option("function", "--kernel", None, "A name of 'clsvm kernels list', or an expression: rbf.", str, "NAME|EXPR"),
    Option(
        "gamma", "--gamma", None, "gamma of the kernel. Default: 1 / (features * variance)", float,
        ok=lambda value: value > 0, expected="above 0",
    ),
    flags.ELEMENT, flags.PARAM,
    Option("no_intercept", "--no-intercept", False, "Without an offset."),
    *OF_TABLE,
    Option("seed", "--seed", 0, "Seed of the centres that are drawn.", least=0),
    flags.QUIET, flags.DEVICES, flags.MEMORY_LIMIT, flags.REPORT,
)  # fmt: skip


@flags.command("Train a machine on FILE and write it to MODEL, in clsvm's format.", *OPTIONS, to=GROUP)
def train(asked: Any) -> None:
    """Run ``clsvm falkon train``."""
    from clsvm.kernels.records import BUILTIN

    function = "rbf" if asked.function is None and asked.element is None else asked.function
    kernel: Any = function
    if function not in BUILTIN or asked.element is not None or asked.param:
        kernel = common.kernel_of(function, asked.element, asked.param, {"gamma": asked.gamma})
    target = asked.model if asked.model is not None else Path(asked.file).name + ".model"

    from sklearn.exceptions import ConvergenceWarning

    import clsvm
    from clsvm.models import npz, svmlight

    common.check_files([asked.file], [target, asked.report])
    X, y = svmlight.read_problem(asked.file)
    name, told = _MACHINES[asked.machine]
    estimator = getattr(clsvm, name)(
        kernel=kernel,
        gamma=asked.gamma or "scale",
        fit_intercept=not asked.no_intercept,
        random_state=asked.seed,
        verbose=not asked.quiet and sys.stderr.isatty(),
        device=asked.device,
        memory_limit=asked.memory_limit,
        **told,
        **{option.name: vars(asked)[option.name] for option in OF_TABLE},
    )
    warnings.simplefilter("ignore", ConvergenceWarning)  # said below
    stopped = False
    try:
        estimator.fit(X, y)
    except KeyboardInterrupt:
        if not hasattr(estimator, "model_"):
            raise
        stopped = True
    report: NystromReport = estimator.fit_report_
    if not report.converged:
        common.warn(report.status)
    npz.save_model(estimator.model_, target)
    common.write_file(asked.report, common.as_json(report))
    if not asked.quiet:
        common.say([*_lines(report), f"model            {target}: clsvm's format"])
    if stopped:
        raise typer.Exit(common.INTERRUPTED)


def _lines(report: NystromReport) -> Iterator[str]:
    yield f"objective        {report.objective:.9g}, at most {report.bound:.2g} above its least"
    yield f"residual         {report.residual:.3g}"
    yield f"steps            {report.steps} of conjugate gradients, {report.newton_steps} of Newton's method"
    yield f"centers          {report.centers}"
    yield f"seconds          {common.spent(report)}"
    yield f"device           {report.device}"
    yield f"layout           {report.layout}"
    numbers = f"rank {report.rank}, condition {report.condition:.1g}, jitter {report.jitter:.1g}"
    yield f"preconditioner   of {report.sample} rows, {numbers}; {report.factors}"
    yield f"status           {report.status}"


GROUP.command(help="Predict the labels or values of TEST by MODEL and print the accuracy, or the error.")(predict)
