"""Define ``clsvm train``, ``clsvm predict`` and ``clsvm falkon``.

``clsvm train`` and ``clsvm predict`` take the flags of LIBSVM's svm-train and svm-predict, and print the same lines.
Both have additional flags, and print additional lines. ``clsvm falkon train`` fits a Nyström kernel machine by the
Falkon method.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from clsvm.cli import common, flags
from clsvm.cli.common import Array, warn
from clsvm.cli.flags import REQUIRED, Option
from clsvm.nystrom.parameters import TABLE
from clsvm.parameters import PARAMETERS
from clsvm.tasks import CLASSES, NUMBERS, TASKS, Task, listed

if TYPE_CHECKING:
    from clsvm.kernels import Kernel
    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport, NystromReport

_CHECKPOINT = "Write the coefficients to FILE while training; continue from FILE if it exists."
_ESTIMATORS: dict[str, tuple[str, dict[str, str]]] = {  # for each value of --machine: estimator and its parameters
    "classes": ("FalkonClassifier", {}),
    "logistic": ("LogisticFalkonClassifier", {}),
    "numbers": ("FalkonRegressor", {}),
    "log-cosh": ("FalkonRegressor", {"loss": "log_cosh"}),
}
FALKON = flags.group("falkon", "Nyström kernel machines for many rows: Falkon and Logistic Falkon.")
OF_TABLE = flags.of_estimators(TABLE)
_PIECE = 1 << 11  # with a progress bar, at least this many rows are predicted at a time
_OF_TRAINING = (
    "a model that was trained by 'clsvm train -b 1', or, for two classes, by 'clsvm falkon train --machine logistic'"
)
PREDICT = "Predict the labels or values of TEST by MODEL and print the accuracy, or the error."


def _task(number: int) -> Task:
    for task in TASKS.values():
        if task.number == number:
            return task
    raise ValueError(f"got {number}, expected {listed()}")


class _Data(NamedTuple):
    """Hold the training data of ``clsvm train``.

    Attributes
    ----------
    X
        features (n, d) of the n rows, as CSR; kernel values (n, n) among the rows if the file has kernel values.
    y
        targets (n,), or the index of each row's class in ``classes``.
    classes
        labels (k,) of the classes; None for a task without classes.
    smaller_first
        whether svm-train would list the smaller of two labels first in the model file.
    weights
        factor of C for each row (n,), or None.
    columns
        column number (n,) of each row in the file's kernel matrix; None if the file has features.
    """

    X: Any
    y: Array
    classes: Array | None
    smaller_first: bool
    weights: Array | None
    columns: Array | None


@flags.command(
    "Train a model on FILE and write it to MODEL, in LIBSVM's format if that can hold it.",
    flags.data("Training data"),
    flags.MODEL_OUT,
    Option("task", "-s", 0, f"Type: {listed()}.", read=_task),
    flags.KERNEL, flags.DEGREE,
    Option(
        "gamma", "-g", None, "gamma of the kernel. Default (or 0): 1 / number of features", float, least=0,
    ),
    flags.COEF0,
    Option("function", "--kernel", None, "A kernel of dot, sqdist, xx and yy: 'exp(-gamma * sqdist)'.", str, "EXPR"),
    flags.ELEMENT, flags.PARAM,
    *flags.of_estimators(short=True),
    flags.WEIGHTS, flags.SHRINKING, flags.PROBABILITY, flags.FOLDS, flags.QUIET, flags.DEVICES,
    *flags.of_estimators(),
    Option("coupled", "--crammer-singer", False, "Solve all classes as one problem without offsets."),
    Option("no_bias", "--no-bias", False, "Fit no offset: rho is 0."),
    Option("checkpoint", "--checkpoint", None, _CHECKPOINT, str, "FILE"),
    flags.MEMORY_LIMIT, flags.PLOT, flags.REPORT,
    cls=flags.LibsvmCommand,
)  # fmt: skip
def train(args: Any) -> None:
    """Run ``clsvm train``: fit an SVM to a data file, and write the model."""
    _check_conflicts(args)
    kernel = _kernel(args)
    model_file = args.model if args.model is not None else Path(args.file).name + ".model"
    written = [model_file, args.plot, args.report, args.checkpoint]
    common.check_files([args.file], written if args.folds is None else [])
    if args.folds is not None and args.model is not None:
        warn(f"-v writes no model: {args.model} stays as it is")
    figure = common.new_figure(args.plot)
    rows = _read(args)
    estimator = _estimator(args, kernel, rows.X.shape[1])

    if args.folds is not None:
        predicted = _cross_validate(args, estimator, rows)
        common.say(common.score_lines(predicted, rows.y, args.task.kind == NUMBERS, folds=True))
        return

    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)  # a line below prints the status instead
    estimator.fit(rows.X, rows.y, sample_weight=rows.weights)
    report = estimator.fit_report_
    if not report.converged:
        warn(report.status)
    model = _model(args, estimator, rows)
    form = _write(model, model_file)
    common.write_file(args.report, common.as_json(report))
    common.draw(figure, args.plot, "convergence", report)
    if args.quiet:
        return
    if args.task.kind == NUMBERS and model.has_probabilities:
        typer.echo(common.error_lines(model))
    common.say(svm_train(estimator, rows.smaller_first))
    common.say(_more_lines(model, report, len(rows.y)))
    for word, path in (("model", f"{model_file}: {form}"), ("report", args.report), ("plot", args.plot)):
        if path is not None:
            typer.echo(f"{word:<17}{path}")


def _check_conflicts(args: Any) -> None:
    """Raise BadParameter for flags that contradict each other."""
    task, number = args.task, args.task.number
    written = [name for name in ("report", "plot", "checkpoint") if vars(args)[name] is not None]
    expression = args.function is not None or args.element is not None
    of_pairs = "probabilities are fitted for pairs of classes, which --crammer-singer does not have"
    by_decision = "-v counts labels by decision values, not by probabilities"
    held_out = args.folds is not None
    conflicts = [
        ("--crammer-singer", args.coupled and task.estimator != "SVC", f"it is for classes (-s 0), got -s {number}"),
        ("--no-bias", args.no_bias and "bias" not in task.parameters, f"the model of -s {number} has an offset"),
        ("-b", args.coupled and args.probability, of_pairs),
        ("-b", held_out and args.probability and task.kind == CLASSES, by_decision),
        *((f"--{one}", held_out, "it goes without -v, which keeps none of its fits") for one in written),
        ("-t", args.kernel is not None and expression, "a kernel's name goes without --kernel and --element"),
    ]  # fmt: skip
    for flag, conflict, words in conflicts:
        if conflict:
            raise typer.BadParameter(words, param_hint=flag)


def _kernel(args: Any) -> Kernel | None:
    """Return the kernel function that the flags describe, or None if the data file holds kernel values."""
    if args.kernel == "precomputed":
        return None
    expression = args.function is not None or args.element is not None
    name, hint = (args.function, "--kernel") if expression else (args.kernel or "rbf", "-t")
    numbers = {"gamma": args.gamma or None, "coef0": args.coef0, "degree": args.degree}
    return common.kernel_of(name, args.element, args.param, numbers, hint)


def _read(args: Any) -> _Data:
    of_classes = args.task.kind == CLASSES
    X, y, columns = common.training_rows(args.file, args.kernel == "precomputed", of_classes, " (or -s 2)")
    for label in () if of_classes else sorted(args.weights):
        warn(f"-w{label} is for classes (-s 0, 1)")
    weights = common.row_weights(args.weights if of_classes else {}, y)
    if not of_classes:
        return _Data(X, y, None, False, weights, columns)
    classes, index, smaller_first = common.numbered(y, args.coupled)
    return _Data(X, index, classes, smaller_first, weights, columns)


def _estimator(args: Any, kernel: Kernel | None, features: int) -> Any:
    """Return the unfitted estimator that the flags describe. gamma is 1 / ``features`` by default."""
    import clsvm

    if kernel and "gamma" in kernel.params and not args.gamma and "gamma" not in args.param:
        kernel = kernel.set_params(gamma=1.0 / features)
    given = {**vars(args), "bias": not args.no_bias}
    estimator = getattr(clsvm, args.task.estimator)(**{name: given[name] for name in args.task.parameters})
    solver = {name: given[name] for name, one in PARAMETERS.items() if one.solver and name in given}
    if args.coupled:
        solver["multi_class"] = "crammer_singer"
    solver |= {"checkpoint": args.checkpoint, "verbose": not args.quiet and sys.stderr.isatty()}
    return estimator.set_params(kernel=kernel or "precomputed", **solver)


def _cross_validate(args: Any, estimator: Any, rows: _Data) -> Array:
    """Return a prediction for each row, (n,), by an estimator that is fitted to the folds without this row."""
    from sklearn.model_selection import cross_val_predict

    folds = common.folds_of(rows.y, args.folds, rows.classes is not None)
    params = None if rows.weights is None else {"sample_weight": rows.weights}
    return cross_val_predict(estimator, rows.X, rows.y, cv=folds, params=params)


def _model(args: Any, estimator: Any, rows: _Data) -> KernelModel:
    """Return the model of a fitted estimator as it is to be written to a file.

    The model has the class labels of the data file, and the flag that sets their order in LIBSVM's format. The option
    -b 1 adds the parameters of probabilities. If the data file holds kernel values in place of features, the model
    stores for each support vector the number of its column in the file's kernel matrix, counted from 0.
    """
    from sklearn.exceptions import ConvergenceWarning

    from clsvm.models import decoder

    model: KernelModel = estimator.model_
    if args.probability:
        with warnings.catch_warnings():
            warnings.simplefilter("default", ConvergenceWarning)  # shows the warnings of the folds
            model = decoder.calibrated(estimator, rows.X, rows.y, rows.weights)
        if not model.has_probabilities:
            warn("no probabilities: expected at least 5 rows inside, and 5 outside")
    if rows.classes is not None:
        model = replace(model, classes=rows.classes, smaller_first=rows.smaller_first)
    if rows.columns is not None:
        # A fitted model with a precomputed kernel stores a support vector as its row number in the training data.
        # A model file with a precomputed kernel stores a support vector as its column number in the kernel matrix.
        model = replace(model, support_vectors=rows.columns[model.support_vectors])
    return model


def _write(model: KernelModel, file: str) -> str:
    """Write the model in LIBSVM's format if this format can hold it, else in clsvm's format.

    Return the name of the format, with the reason if it is clsvm's.
    """
    from clsvm.models import libsvm, npz

    try:
        libsvm.check_savable(model)
    except ValueError as reason:
        npz.save_model(model, file)
        return f"clsvm's format ({reason})"
    libsvm.save_model(model, file)
    return "LIBSVM's format"


def _more_lines(model: KernelModel, report: FitReport, rows: int) -> Iterator[str]:
    """Yield the lines about a fit that svm-train does not print. ``rows`` is the number of training rows."""
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


@flags.command(
    "Train a Falkon model on FILE and write it to MODEL, in clsvm's format.",
    flags.data("Training data"),
    flags.MODEL_OUT,
    Option(
        "machine", "--machine", "classes", "classes (least squares), logistic (with probabilities of two classes), "
        "numbers, or log-cosh: numbers with outliers.", read=lambda text: flags.one_of("--machine", text, _ESTIMATORS),
    ),
    Option("function", "--kernel", None, "A name of 'clsvm kernels list', or an expression: rbf.", str, "NAME|EXPR"),
    Option(
        "gamma", "--gamma", None, "gamma of the kernel. Default: 1 / (features * variance)", float, least=0,
    ),
    flags.ELEMENT, flags.PARAM,
    Option("no_intercept", "--no-intercept", False, "Fit no offset."),
    *OF_TABLE,
    Option("random_state", "--seed", 0, "Seed of the random choice of inducing points.", least=0),
    flags.QUIET, flags.DEVICES, flags.MEMORY_LIMIT, flags.REPORT,
    to=FALKON, name="train",
)  # fmt: skip
def falkon_train(args: Any) -> None:
    """Run ``clsvm falkon train``: fit a Nyström kernel machine to a data file, and write the model."""
    from clsvm.kernels.records import BUILTIN

    if args.gamma == 0:
        raise typer.BadParameter("got 0, expected a number above 0", param_hint="--gamma")
    function = "rbf" if args.function is None and args.element is None else args.function
    kernel: Any = function
    if function not in BUILTIN or args.element is not None or args.param:
        kernel = common.kernel_of(function, args.element, args.param, {"gamma": args.gamma}, "--kernel")
    target = args.model if args.model is not None else Path(args.file).name + ".model"

    from sklearn.exceptions import ConvergenceWarning

    import clsvm
    from clsvm.models import npz, svmlight

    common.check_files([args.file], [target, args.report])
    X, y = svmlight.read_problem(args.file)
    name, params = _ESTIMATORS[args.machine]
    options = "random_state", "device", "memory_limit", *(option.name for option in OF_TABLE)
    estimator = getattr(clsvm, name)(kernel=kernel, gamma=args.gamma or "scale", fit_intercept=not args.no_intercept)
    estimator.set_params(**params, **{name: vars(args)[name] for name in options})
    estimator.set_params(verbose=not args.quiet and sys.stderr.isatty())
    warnings.simplefilter("ignore", ConvergenceWarning)  # a line below prints the status instead
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
    common.write_file(args.report, common.as_json(report))
    if not args.quiet:
        common.say([*_falkon_lines(report), f"model            {target}: clsvm's format"])
    if stopped:
        raise typer.Exit(common.INTERRUPTED)


def _falkon_lines(report: NystromReport) -> Iterator[str]:
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


@flags.command(
    PREDICT,
    flags.data("Test data", "test"),
    Option("model", "", REQUIRED, "A model of 'clsvm train', clsvm.save_model or svm-train; or -.", read=flags.to_read),
    Option("output", "", None, "File for the predictions, one a line; - is standard output.", read=flags.to_write),
    replace(flags.PROBABILITY, help=f"1: the most probable label and all probabilities, of {_OF_TRAINING}."),
    flags.QUIET, flags.DEVICE, flags.MEMORY_LIMIT,
    cls=flags.LibsvmCommand,
)  # fmt: skip
def predict(args: Any) -> None:
    """Run ``clsvm predict``: predict labels or values of a file's rows by a model, and print the accuracy or error.

    ``clsvm falkon predict`` is the same command.
    """
    from clsvm.models import npz

    common.check_files([args.test, args.model], [args.output])
    model = npz.load_model(args.model)
    values = TASKS[model.task].kind == NUMBERS
    if args.probability and not model.has_probabilities:
        raise ValueError(f"-b 1: the model {args.model} has no probabilities, expected {_OF_TRAINING}")
    model, X, y = _test_rows(args.test, model)
    where = args.device, args.memory_limit
    if args.probability and not values:
        labels, lines = _probable(model, X, where)
    else:
        labels = _in_pieces(lambda rows: model.predict(rows, *where), X)
        lines = (f"{label:.17g}" if values else _label(label) for label in labels.tolist())
    common.write_file(args.output, lines)
    if not args.quiet and args.probability and values:
        typer.echo(common.error_lines(model))
    if labels.dtype.kind == "U":
        warn(f"no accuracy: the labels of {args.model} are text, those of {args.test} numbers")
    elif not args.quiet:
        common.say(common.score_lines(labels, y, values))


FALKON.command("predict", help=PREDICT)(predict)


def _test_rows(test: str, model: KernelModel) -> tuple[KernelModel, Any, Array]:
    """Read a test file. Return the model, the file's rows, and the file's labels or targets.

    If the rows have fewer columns than the model's support vectors, columns of zeros are added to the rows. If the
    support vectors have fewer columns, the returned model has support vectors with added columns of zeros. Kernel
    values for a precomputed kernel are returned as they are.
    """
    from clsvm.models import svmlight

    if model.kernel.name == "precomputed":
        _, X, y = svmlight.read_kernel(test, numbered=False, dense=False)
        return model, X, y
    X, y = svmlight.read_problem(test)
    rows, n_features = model.support_vectors.shape
    if rows and X.shape[1] > n_features:
        warn(f"{test} has {X.shape[1]} features, the model {n_features}: support vectors count as 0 in the others")
    return *svmlight.match_columns(model, X), y


def _in_pieces(predict: Callable[[Any], Array], X: Any) -> Array:
    """Return ``predict(X)``. On a terminal, call ``predict`` for blocks of rows, and show a progress bar.

    The result does not depend on the blocks.
    """
    import numpy as np

    from clsvm.report import Progress

    n = X.shape[0]
    step = max(_PIECE, -(-n // 100)) if sys.stderr.isatty() else n
    made = []
    with Progress(lines=False) as shown:
        for first in range(0, n, step):
            made.append(predict(X[first : first + step]))
            done = min(first + step, n)
            shown.show(f"predicting, {done} of {n}", done / n)
    return np.concatenate(made)


def _probable(model: KernelModel, X: Any, where: tuple[Any, Any]) -> tuple[Array, Iterator[str]]:
    """Return the predicted labels (n,) and the output lines of ``clsvm predict -b 1`` for the rows X.

    A line has the predicted label, and the probability of each class in svm-predict's order. A classifier predicts the
    most probable class. A one-class model predicts by the sign of its decision value. ``where`` is the device and the
    memory limit.
    """
    from clsvm.models import libsvm
    from clsvm.opencl.devices import find

    if find(where[0]).fp64:  # float64, because float32 would change the sixth digit, which LIBSVM prints
        model = replace(model, dtype="float64")
    found = _in_pieces(lambda rows: model.predict_proba(rows, *where), X)
    if len(model.classes):
        order = libsvm.class_order(model)
        found, classes = found[:, order], model.classes[order]
        labels, head = classes[found.argmax(axis=1)], " ".join(["labels", *map(_label, classes.tolist())])
    else:
        labels, head = model.predict(X, *where), "label normal outlier"

    rows = zip(labels.tolist(), found.tolist(), strict=True)
    lines = (" ".join([_label(label), *(f"{p:g}" for p in row)]) for label, row in rows)
    return labels, chain([head], lines)


def _label(label: bool | int | float | str) -> str:
    """Return a label as text: a whole number without a decimal point, and text unchanged.

    A number that is not whole gets as many digits as are needed to read back the same float.
    """
    return label if isinstance(label, str) else f"{label:.0f}" if label == int(label) else repr(label)


def svm_train(estimator: Any, smaller_first: bool) -> Iterator[str]:
    """Yield the lines that svm-train prints about a fit: some for each binary problem, and a line for the whole fit.

    ``estimator`` is a fitted SVM. ``smaller_first`` says whether LIBSVM takes the smaller of two labels as the positive
    class, which reverses the sign of the offset rho. The last line, the number of support vectors, is for classifiers
    only. LIBSVM's progress, its nu and its number of bounded support vectors are left out.

    Source: svm_train_one and the functions that it calls, in LIBSVM's svm.cpp.
    """
    import numpy as np

    model: KernelModel = estimator.model_
    task, (ends, duals) = TASKS[model.task], estimator._ends
    steps, rho = np.atleast_1d(estimator.n_iter_), (model.intercept if smaller_first else -model.intercept) + 0.0
    if model.of_pairs:
        blocks = np.split(model.dual_coef != 0, np.cumsum(model.n_support)[:-1], axis=1)
        counts = [int(blocks[a][b - 1].sum() + blocks[b][a].sum()) for a, b in combinations(range(len(blocks)), 2)]
    else:
        counts, duals = [model.dual_coef.shape[1]], duals.sum(keepdims=True)
    for i, count in enumerate(counts):
        scale = 1.0
        yield f"optimization finished, #iter = {int(steps[i])}"
        if task.name == "nu_svc":
            r = float(ends[i, 0] - ends[i, 1]) / 2
            scale = r if r > 0 else 1.0
            yield f"C = {1 / scale:f}"
        elif task.name == "nu_svr":
            yield f"epsilon = {float(ends[i, 1] - ends[i, 0]) / 2:f}"
        yield f"obj = {0.0 - duals[i] / scale**2:f}, rho = {rho[i]:f}"
        yield f"nSV = {count}"
    if task.kind == CLASSES:
        yield f"Total nSV = {model.dual_coef.shape[1]}"
