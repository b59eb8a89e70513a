"""``clsvm train``: svm-train's flags, then ours."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from clsvm.cli import common, flags
from clsvm.cli.common import Array, warn
from clsvm.cli.flags import Option
from clsvm.parameters import PARAMETERS
from clsvm.tasks import CLASSES, NUMBERS, Task, listed, of_number

if TYPE_CHECKING:
    from clsvm.kernels import Kernel
    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport

PrintLines = Callable[..., None]  # prints svm-train's lines of a fit to some rows


def _task(number: int) -> Task:
    task = of_number(number)
    if task is None:
        raise typer.BadParameter(f"got {number}, expected {listed()}", param_hint="-s")
    return task


_CHECKPOINT = "Keep the coefficients there, to go on with --resume FILE."
OPTIONS = (
    flags.data("Training data"),
    flags.MODEL_OUT,
    Option("task", "-s", 0, f"Type: {listed()}.", read=_task),
    flags.KERNEL, flags.DEGREE,
    Option(
        "gamma", "-g", None, "gamma of the kernel. Default (or 0): 1 / number of features", float,
        ok=lambda value: value >= 0, expected="0 or more",
    ),
    flags.COEF0,
    Option("function", "--kernel", None, "A kernel of dot, sqdist, xx and yy: 'exp(-gamma * sqdist)'.", str, "EXPR"),
    flags.ELEMENT, flags.PARAM,
    *flags.of_estimators(short=True),
    flags.WEIGHTS, flags.SHRINKING, flags.PROBABILITY, flags.FOLDS, flags.QUIET, flags.DEVICES,
    *flags.of_estimators(),
    Option("coupled", "--crammer-singer", False, "Two or more classes in one problem without offsets."),
    Option("no_bias", "--no-bias", False, "Without an offset: rho is 0."),
    Option("checkpoint", "--checkpoint", None, _CHECKPOINT, str, "FILE"),
    Option("resume", "--resume", None, "Go on from a checkpoint of the same data, C and kernel.", str, "FILE"),
    flags.MEMORY_LIMIT, flags.PLOT, flags.REPORT,
)  # fmt: skip


class _Data(NamedTuple):
    """Training data. y: (n,) as the file has it; targets: (n,) what is fitted. columns: of the file's kernel values."""

    X: Any
    y: Array
    targets: Array
    weights: Array | None
    columns: Array | None


@flags.command(
    "Train a model on FILE and write it to MODEL, in LIBSVM's format where that can hold it.",
    *OPTIONS,
    cls=flags.LibsvmCommand,
)
def train(asked: Any) -> None:
    """Run ``clsvm train``."""
    _check_conflicts(asked)
    kernel = _kernel(asked)
    model_file = asked.model if asked.model is not None else Path(asked.file).name + ".model"
    if asked.resume is not None and not Path(asked.resume).is_file():
        raise FileNotFoundError(f"--resume: there is no checkpoint {asked.resume!r}")
    written = [model_file, asked.plot, asked.report, asked.resume or asked.checkpoint]
    common.check_files([asked.file], written if asked.folds is None else [])
    if asked.folds is not None and asked.model is not None:
        warn(f"-v writes no model: {asked.model} stays as it is")
    if asked.checkpoint is not None and asked.resume is None and Path(asked.checkpoint).exists():
        words = f"{asked.checkpoint!r} exists; go on from it with --resume, or delete it"
        raise FileExistsError(f"--checkpoint: {words}")
    figure = common.new_figure(asked.plot)
    rows = _read(asked)
    estimator = _estimator(asked, kernel, rows.X.shape[1])

    from sklearn.exceptions import ConvergenceWarning

    from clsvm.cli import lines

    warnings.simplefilter("ignore", ConvergenceWarning)  # said below

    def print_lines(fit: Any, places: Any = slice(None)) -> None:
        weights = None if rows.weights is None else rows.weights[places]
        if not asked.quiet:
            common.say(lines.svm_train(fit, rows.targets[places], weights))

    if asked.folds is not None:
        predicted = _held_out(asked, estimator, rows, print_lines)
        common.say(common.score_lines(predicted, rows.targets, asked.task.kind == NUMBERS, folds=True))
        return
    estimator.fit(rows.X, rows.targets, sample_weight=rows.weights)
    report = estimator.fit_report_
    if not report.converged:
        warn(report.status)
    model = _model(asked, estimator, rows, print_lines)
    form = _write(model, model_file)
    common.write_file(asked.report, common.as_json(report))
    common.draw(figure, asked.plot, "convergence", report)
    if asked.quiet:
        return
    if asked.task.kind == NUMBERS and model.has_probabilities:
        typer.echo(common.error_lines(model))
    print_lines(estimator)
    common.say(_further_lines(model, report, len(rows.y)))
    for word, path in (("model", f"{model_file}: {form}"), ("report", asked.report), ("plot", asked.plot)):
        if path is not None:
            typer.echo(f"{word:<17}{path}")


def _check_conflicts(asked: Any) -> None:
    """Raise a usage error for flags that do not go together."""
    task, number, given = asked.task, asked.task.number, vars(asked)
    written = [name for name in ("report", "plot", "checkpoint", "resume") if given[name] is not None]
    without = written if asked.folds is not None else []
    expression = asked.function is not None or asked.element is not None
    resumed = asked.resume is not None and asked.checkpoint not in (None, asked.resume)
    of_pairs = "probabilities are of pairs of classes, not of one machine for all"
    conflicts = [
        ("--crammer-singer", asked.coupled and task.estimator != "SVC", f"it is for classes (-s 0), got -s {number}"),
        ("--no-bias", asked.no_bias and "bias" not in task.parameters, f"a machine of -s {number} has an offset"),
        ("-b", asked.coupled and asked.probability, of_pairs),
        *((f"--{name}", True, "it goes without -v, which keeps none of its fits") for name in without),
        ("--resume", resumed, "what is resumed is the checkpoint: give one of the two"),
        ("-t", asked.kernel is not None and expression, "a kernel's name goes without --kernel and --element"),
    ]  # fmt: skip
    for flag, conflict, words in conflicts:
        if conflict:
            raise typer.BadParameter(words, param_hint=flag)


def _kernel(asked: Any) -> Kernel | None:
    """Return the kernel function, None for kernel values."""
    if asked.kernel == "precomputed":
        return None
    expression = asked.function is not None or asked.element is not None
    name, hint = (asked.function, "--kernel") if expression else (asked.kernel or "rbf", "-t")
    numbers = {"gamma": asked.gamma or None, "coef0": asked.coef0, "degree": asked.degree}
    return common.kernel_of(name, asked.element, asked.param, numbers, hint)


def _read(asked: Any) -> _Data:
    import numpy as np

    of_classes = asked.task.kind == CLASSES
    X, y, columns = common.training_rows(asked.file, asked.kernel == "precomputed", of_classes, " (or -s 2)")
    for label in () if of_classes else sorted(asked.weights):
        warn(f"-w{label} is for classes (-s 0, 1)")
    weights = common.row_weights(asked.weights if of_classes else {}, y)
    classes, index = np.unique(y, return_inverse=True)
    numbered = of_classes and (len(classes) == 2 or asked.coupled) and bool((classes != np.rint(classes)).any())
    return _Data(X, y, index if numbered else y, weights, columns)  # (labels that SVC would take for values)


def _estimator(asked: Any, kernel: Kernel | None, features: int) -> Any:
    """Return the estimator that the flags describe, for rows of so many features."""
    import clsvm

    if kernel and "gamma" in kernel.params and not asked.gamma and "gamma" not in asked.param:
        kernel = kernel.set_params(gamma=1.0 / features)
    given = {**vars(asked), "bias": not asked.no_bias}
    estimator = getattr(clsvm, asked.task.estimator)(**{name: given[name] for name in asked.task.parameters})
    solver = {name: given[name] for name, one in PARAMETERS.items() if one.solver and name in given}
    if asked.coupled:
        solver["multi_class"] = "crammer_singer"
    solver |= {"checkpoint": asked.resume or asked.checkpoint, "verbose": not asked.quiet and sys.stderr.isatty()}
    return estimator.set_params(kernel=kernel or "precomputed", **solver)


def _held_out(asked: Any, estimator: Any, rows: _Data, print_lines: PrintLines) -> Array:
    """Return for each row the prediction of a model of the other folds; with -b 1 the most probable class."""
    import numpy as np
    from sklearn.base import clone
    from sklearn.utils.metaestimators import _safe_split

    from clsvm.models import probability
    from clsvm.report import labelled

    X, y = rows.X, rows.targets
    of_classes = asked.task.kind == CLASSES
    predicted = np.zeros(len(y))
    for number, (train, test) in enumerate(common.folds_of(y, asked.folds, of_classes), 1):
        if of_classes and (y[train] == y[train[0]]).all():
            predicted[test] = y[train[0]]  # one class is left
            continue
        weights = None if rows.weights is None else rows.weights[train]
        fold = clone(estimator)
        fold_rows, labels = _safe_split(fold, X, y, train)  # (which knows kernel values)
        test_rows = _safe_split(fold, X, y, test, train)[0]
        name = f"fold {number} of {min(asked.folds, len(y))}"
        with labelled(name):
            fold.fit(fold_rows, labels, sample_weight=weights)
        print_lines(fold, train)
        if not fold.fit_report_.converged:
            warn(f"fold {number}: {fold.fit_report_.status}")
        if asked.probability and of_classes:

            def print_inner(inner: Any, places: Array, outer: Array = train) -> None:
                print_lines(inner, outer[places])

            with labelled(f"{name}, probabilities"):
                model = probability.calibrated(fold, fold_rows, labels, weights, print_inner)
            found = model.predict_proba(test_rows, fold.device, fold.memory_limit)
            predicted[test] = model.classes[found.argmax(axis=1)]
        else:
            predicted[test] = fold.predict(test_rows)
    return predicted


def _model(asked: Any, estimator: Any, rows: _Data, print_lines: PrintLines) -> KernelModel:
    """Return the model to write: with probabilities if asked for, labels and rows as the file has them."""
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning

    from clsvm.cli.lines import order_of_labels
    from clsvm.models import libsvm
    from clsvm.models import probability as probabilities
    from clsvm.report import labelled

    model: KernelModel = estimator.model_
    if asked.probability:
        with warnings.catch_warnings(), labelled("probabilities"):
            warnings.simplefilter("default", ConvergenceWarning)  # of the folds
            model = probabilities.calibrated(estimator, rows.X, rows.targets, rows.weights, print_lines)
        if not model.has_probabilities:
            warn("no probabilities: fewer than 5 rows are inside, or outside")
    if asked.task.kind == CLASSES:
        model = libsvm.ordered(replace(model, classes=np.unique(rows.y)), order_of_labels(rows.y))
    if rows.columns is not None:  # rows are known by their serial numbers
        model = replace(model, support_vectors=rows.columns[model.support_vectors])
    return model


def _write(model: KernelModel, file: str) -> str:
    """Write the model in LIBSVM's format where that can hold it, else in clsvm's; return which one, in words."""
    from clsvm.models import libsvm, npz

    try:
        libsvm.check_savable(model)
    except ValueError as reason:
        npz.save_model(model, file)
        return f"clsvm's format ({reason})"
    libsvm.save_model(model, file)
    return "LIBSVM's format"


def _further_lines(model: KernelModel, report: FitReport, rows: int) -> Iterator[str]:
    """Yield the lines on a fit to so many rows that svm-train does not print."""
    yield ""
    yield f"objective        primal {report.primal:.9g}, dual {report.dual:.9g}"
    yield f"gap              {report.gap:.3g} (relative)"
    yield f"violation        {report.violation:.3g}"
    yield f"support vectors  {model.dual_coef.shape[1]} of {rows} rows"
    yield f"seconds          {common.spent(report)}"
    yield f"device           {report.device}"
    yield f"layout           {report.layout}"
    yield f"working set      {report.working_set_size} ({report.selection})"
    yield f"status           {report.status}"
