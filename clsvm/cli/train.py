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

PrintLines = Callable[..., None]  # function that prints what svm-train prints about a fit
_CHECKPOINT = "Write the coefficients to FILE while training, to continue with --resume FILE."
_ESTIMATORS: dict[str, tuple[str, dict[str, str]]] = {  # value of --machine -> estimator and parameters
    "classes": ("FalkonClassifier", {}),
    "logistic": ("LogisticFalkonClassifier", {}),
    "numbers": ("FalkonRegressor", {}),
    "log-cosh": ("FalkonRegressor", {"loss": "log_cosh"}),
}
FALKON = flags.group("falkon", "Nyström kernel machines for many rows: Falkon and Logistic Falkon.")
OF_TABLE = flags.of_estimators(TABLE)
_PIECE = 1 << 11  # with a progress bar, at least this many rows are predicted at a time
_OF_TRAINING = "a model of 'train -b 1', or of two classes by 'falkon train --machine logistic'"
PREDICT = "Predict the labels or values of TEST by MODEL and print the accuracy, or the error."
_AT_BOUND = 1 - 1e-6  # a coefficient counts as bounded if it has at least this share of its bound


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
        rows (n, d) as CSR, or kernel values (n, n).
    y
        labels or targets (n,) in the file.
    targets
        labels or targets (n,) that the estimator is fitted to.
    weights
        factor of C for each row (n,), or None.
    columns
        column of the kernel matrix in the file that belongs to each row; None if the file has no kernel matrix.
    """

    X: Any
    y: Array
    targets: Array
    weights: Array | None
    columns: Array | None


@flags.command(
    "Train a model on FILE and write it to MODEL, in LIBSVM's format if that can hold it.",
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
    Option("coupled", "--crammer-singer", False, "Solve all classes as one problem without offsets."),
    Option("no_bias", "--no-bias", False, "Fit no offset: rho is 0."),
    Option("checkpoint", "--checkpoint", None, _CHECKPOINT, str, "FILE"),
    Option("resume", "--resume", None, "Continue from a checkpoint of the same data, C and kernel.", str, "FILE"),
    flags.MEMORY_LIMIT, flags.PLOT, flags.REPORT,
    cls=flags.LibsvmCommand,
)  # fmt: skip
def train(args: Any) -> None:
    """Run ``clsvm train``: fit an SVM to a data file, and write the model."""
    _check_conflicts(args)
    kernel = _kernel(args)
    model_file = args.model if args.model is not None else Path(args.file).name + ".model"
    if args.resume is not None and not Path(args.resume).is_file():
        raise FileNotFoundError(f"--resume: there is no checkpoint {args.resume!r}")
    written = [model_file, args.plot, args.report, args.resume or args.checkpoint]
    common.check_files([args.file], written if args.folds is None else [])
    if args.folds is not None and args.model is not None:
        warn(f"-v writes no model: {args.model} stays as it is")
    if args.checkpoint is not None and args.resume is None and Path(args.checkpoint).exists():
        raise FileExistsError(f"--checkpoint: {args.checkpoint!r} exists; go on from it with --resume, or delete it")
    figure = common.new_figure(args.plot)
    rows = _read(args)
    estimator = _estimator(args, kernel, rows.X.shape[1])

    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)  # a line below prints the status instead

    def print_lines(fit: Any, positions: Any = slice(None)) -> None:
        weights = None if rows.weights is None else rows.weights[positions]
        if not args.quiet:
            common.say(svm_train(fit, rows.targets[positions], weights))

    if args.folds is not None:
        predicted = _cross_validate(args, estimator, rows, print_lines)
        common.say(common.score_lines(predicted, rows.targets, args.task.kind == NUMBERS, folds=True))
        return
    estimator.fit(rows.X, rows.targets, sample_weight=rows.weights)
    report = estimator.fit_report_
    if not report.converged:
        warn(report.status)
    model = _model(args, estimator, rows, print_lines)
    form = _write(model, model_file)
    common.write_file(args.report, common.as_json(report))
    common.draw(figure, args.plot, "convergence", report)
    if args.quiet:
        return
    if args.task.kind == NUMBERS and model.has_probabilities:
        typer.echo(common.error_lines(model))
    print_lines(estimator)
    common.say(_more_lines(model, report, len(rows.y)))
    for word, path in (("model", f"{model_file}: {form}"), ("report", args.report), ("plot", args.plot)):
        if path is not None:
            typer.echo(f"{word:<17}{path}")


def _check_conflicts(args: Any) -> None:
    """Raise BadParameter for flags that contradict each other."""
    task, number = args.task, args.task.number
    written = [name for name in ("report", "plot", "checkpoint", "resume") if vars(args)[name] is not None]
    expression = args.function is not None or args.element is not None
    resumed = args.resume is not None and args.checkpoint not in (None, args.resume)
    of_pairs = "probabilities are fitted for pairs of classes, which --crammer-singer does not have"
    conflicts = [
        ("--crammer-singer", args.coupled and task.estimator != "SVC", f"it is for classes (-s 0), got -s {number}"),
        ("--no-bias", args.no_bias and "bias" not in task.parameters, f"the model of -s {number} has an offset"),
        ("-b", args.coupled and args.probability, of_pairs),
        *((f"--{one}", args.folds is not None, "it goes without -v, which keeps none of its fits") for one in written),
        ("--resume", resumed, "what is resumed is the checkpoint: give one of the two"),
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
    import numpy as np

    of_classes = args.task.kind == CLASSES
    X, y, columns = common.training_rows(args.file, args.kernel == "precomputed", of_classes, " (or -s 2)")
    for label in () if of_classes else sorted(args.weights):
        warn(f"-w{label} is for classes (-s 0, 1)")
    weights = common.row_weights(args.weights if of_classes else {}, y)
    classes, index = np.unique(y, return_inverse=True)
    numbered = of_classes and (len(classes) == 2 or args.coupled) and bool((classes != np.rint(classes)).any())
    return _Data(X, y, index if numbered else y, weights, columns)  # SVC rejects fractions as labels


def _estimator(args: Any, kernel: Kernel | None, features: int) -> Any:
    """Return the unfitted estimator that the flags describe, for rows with this number of features."""
    import clsvm

    if kernel and "gamma" in kernel.params and not args.gamma and "gamma" not in args.param:
        kernel = kernel.set_params(gamma=1.0 / features)
    given = {**vars(args), "bias": not args.no_bias}
    estimator = getattr(clsvm, args.task.estimator)(**{name: given[name] for name in args.task.parameters})
    solver = {name: given[name] for name, one in PARAMETERS.items() if one.solver and name in given}
    if args.coupled:
        solver["multi_class"] = "crammer_singer"
    solver |= {"checkpoint": args.resume or args.checkpoint, "verbose": not args.quiet and sys.stderr.isatty()}
    return estimator.set_params(kernel=kernel or "precomputed", **solver)


def _cross_validate(args: Any, estimator: Any, rows: _Data, print_lines: PrintLines) -> Array:
    """Cross-validate: return for each row the prediction (n,) of a model that was fitted to the other folds.

    With -b 1 the prediction is the most probable class.
    """
    from sklearn.base import clone
    from sklearn.utils.metaestimators import _safe_split

    from clsvm.models import decoder
    from clsvm.report import labelled

    X, y = rows.X, rows.targets
    of_classes = args.task.kind == CLASSES
    predicted = y.copy()  # the folds replace each value
    for number, (train, test) in enumerate(common.folds_of(y, args.folds, of_classes), 1):
        if of_classes and (y[train] == y[train[0]]).all():
            predicted[test] = y[train[0]]  # the training rows have only one class
            continue
        weights = None if rows.weights is None else rows.weights[train]
        fold = clone(estimator)
        fold_rows, labels = _safe_split(fold, X, y, train)  # splits kernel values by rows and by columns
        test_rows = _safe_split(fold, X, y, test, train)[0]
        name = f"fold {number} of {min(args.folds, len(y))}"
        with labelled(name):
            fold.fit(fold_rows, labels, sample_weight=weights)
        print_lines(fold, train)
        if not fold.fit_report_.converged:
            warn(f"fold {number}: {fold.fit_report_.status}")
        if args.probability and of_classes:

            def print_inner(inner: Any, positions: Array, outer: Array = train) -> None:
                print_lines(inner, outer[positions])

            with labelled(f"{name}, probabilities"):
                model = decoder.calibrated(fold, fold_rows, labels, weights, print_inner)
            found = model.predict_proba(test_rows, fold.device, fold.memory_limit)
            predicted[test] = model.classes[found.argmax(axis=1)]
        else:
            predicted[test] = fold.predict(test_rows)
    return predicted


def _model(args: Any, estimator: Any, rows: _Data, print_lines: PrintLines) -> KernelModel:
    """Return the model of a fitted estimator as it is to be written to a file.

    The model has the data file's labels in LIBSVM's order, and probabilities if -b 1 asks for them. If the data file
    holds kernel values, the model's support vectors are numbers of columns in this file.
    """
    import numpy as np
    from sklearn.exceptions import ConvergenceWarning

    from clsvm.models import decoder as probabilities
    from clsvm.models import libsvm
    from clsvm.report import labelled

    model: KernelModel = estimator.model_
    if args.probability:
        with warnings.catch_warnings(), labelled("probabilities"):
            warnings.simplefilter("default", ConvergenceWarning)  # shows the warnings of the folds
            model = probabilities.calibrated(estimator, rows.X, rows.targets, rows.weights, print_lines)
        if not model.has_probabilities:
            warn("no probabilities: fewer than 5 rows are inside, or outside")
    if args.task.kind == CLASSES:
        model = libsvm.ordered(replace(model, classes=np.unique(rows.y)), order_of_labels(rows.y))
    if rows.columns is not None:  # the support vectors are columns of the kernel matrix in the file
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
        "gamma", "--gamma", None, "gamma of the kernel. Default: 1 / (features * variance)", float,
        ok=lambda value: value > 0, expected="above 0",
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
    """Run ``clsvm predict``: predict for the rows of a file by a model, and print the accuracy or error.

    ``clsvm falkon predict`` is the same command.
    """
    from clsvm.models import npz

    common.check_files([args.test, args.model], [args.output])
    model = npz.load_model(args.model)
    values = TASKS[model.task].kind == NUMBERS
    if args.probability and not model.has_probabilities:
        raise ValueError(f"-b 1: got {args.model} without probabilities, expected {_OF_TRAINING}")
    model, X, y = _test_rows(args.test, model)
    where = args.device, args.memory_limit
    if args.probability and not values:
        labels, lines = _probable(model, X, where)
    else:
        labels = _in_pieces(lambda rows: model.predict(rows, *where), X)
        lines = (f"{label:.17g}" if values else _label(label) for label in labels.tolist())
    common.write_file(args.output, lines)
    if not args.quiet and model.has_probabilities and (values or not args.probability):
        disabled = "Model supports probability estimates, but disabled in prediction."  # as svm-predict says it
        typer.echo(common.error_lines(model) if args.probability else disabled)
    if labels.dtype.kind == "U":
        warn(f"no accuracy: the labels of {args.model} are text, those of {args.test} numbers")
    elif not args.quiet:
        common.say(common.score_lines(labels, y, values))


FALKON.command("predict", help=PREDICT)(predict)


def _test_rows(test: str, model: KernelModel) -> tuple[KernelModel, Any, Array]:
    """Read a test file. Return the model, the file's rows, and the file's labels or targets.

    The model's support vectors and the rows get the same number of columns, by added columns of zeros.
    """
    from clsvm.models import svmlight

    if model.kernel.name == "precomputed":
        _, X, y = svmlight.read_kernel(test, numbered=False, dense=False)
        return model, X, y
    X, y = svmlight.read_problem(test)
    rows, n_features = model.support_vectors.shape
    if rows and X.shape[1] > n_features:
        warn(f"{test} has {X.shape[1]} features, the model {n_features}: its support vectors are 0 in the others")
    return *svmlight.match_columns(model, X), y


def _in_pieces(predict: Callable[[Any], Array], X: Any) -> Array:
    """Return ``predict(X)``. On a terminal, call ``predict`` for blocks of rows, and show a progress bar.

    The result does not depend on the blocks.
    """
    import numpy as np

    from clsvm.report import counting

    n = X.shape[0]
    step = max(_PIECE, -(-n // 100)) if sys.stderr.isatty() else n
    made = []
    with counting("{left} left, predicting, {done} of {total}", n) as done:
        for first in range(0, n, step):
            made.append(predict(X[first : first + step]))
            done(min(first + step, n))
    return np.concatenate(made)


def _probable(model: KernelModel, X: Any, where: tuple[Any, Any]) -> tuple[Array, Iterator[str]]:
    """Return the predicted labels (n,) and the output lines of ``clsvm predict -b 1`` for the rows X.

    A line has the label and the probability of each class, in the order of svm-predict. A classifier predicts the most
    probable class. A one-class model predicts by the sign of its decision value. ``where`` is the device and the memory
    limit.
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
    """Return a label as text: a whole number without a point, another number with all digits."""
    return label if isinstance(label, str) else f"{label:.0f}" if label == int(label) else repr(label)


def order_of_labels(y: Array) -> list[Any]:
    """Return the distinct labels in y (n,) in svm-train's order: by first occurrence, except that +1 precedes -1."""
    listed = list(dict.fromkeys(y.tolist()))
    return listed[::-1] if listed == [-1, 1] else listed


def svm_train(estimator: Any, y: Array, weights: Array | None) -> Iterator[str]:
    """Yield the lines that svm-train prints about a fit: lines for each binary problem, then a classifier's total nSV.

    ``estimator`` is a fitted SVM, and y (n,) are the labels or targets that it was fitted to. ``weights`` (n,) are the
    factors of C for each row, equal within a class. The dots and stars of LIBSVM's progress are left out. The source is
    svm.cpp of LIBSVM: svm_train_one and the functions that it calls.
    """
    import numpy as np

    from clsvm.models import libsvm

    model: KernelModel = estimator.model_
    task, (ends, duals) = TASKS[model.task], estimator._ends
    k = len(model.classes)
    order = np.searchsorted(model.classes, order_of_labels(y)) if task.kind == CLASSES else np.zeros(1, np.intp)
    blocks = np.split(np.abs(model.dual_coef), np.cumsum(model.n_support)[:-1], axis=1)
    _, first, rows = np.unique(y if k else np.zeros(len(y)), return_index=True, return_counts=True)
    factors = np.ones(len(first)) if weights is None else weights[first]
    steps = np.atleast_1d(estimator.n_iter_)
    if model.of_pairs:
        positions, signs = libsvm.reordered_pairs(order)
        class_pairs = list(combinations(order.tolist(), 2))
    else:  # the second of two classes is the positive one
        positions, signs = np.zeros(1, np.intp), np.array([-1.0 if k == 2 and order[0] == 0 else 1.0])
        class_pairs, duals = [tuple(order.tolist())], duals.sum(keepdims=True)
    rho = signs * (0.0 - model.intercept[positions]) + 0.0
    for number, (position, pair) in enumerate(zip(positions.tolist(), class_pairs, strict=True)):
        if model.of_pairs:
            a, b = pair
            alphas = [blocks[a][b - (b > a)], blocks[b][a - (a > b)]]
        else:
            alphas = [blocks[one].max(axis=0, initial=0.0) for one in pair]
        pair_factors, count, scale = factors[list(pair)], int(rows[list(pair)].sum()), 1.0
        cost = float(estimator.C) if "C" in task.parameters else 1.0
        yield f"optimization finished, #iter = {int(steps[position])}"
        if task.name == "nu_svc":
            r = float(ends[position, 0] - ends[position, 1]) / 2
            scale = r if r > 0 else 1.0
            cost = 1 / scale
            yield f"C = {cost:f}"
        elif task.name == "nu_svr":
            yield f"epsilon = {float(ends[position, 1] - ends[position, 0]) / 2:f}"
        elif "C" in task.parameters and (pair_factors == pair_factors[0]).all():
            yield f"nu = {sum(alpha.sum() for alpha in alphas) / (cost * pair_factors[0] * count):f}"
        yield f"obj = {0.0 - duals[position] / scale**2:f}, rho = {rho[number]:f}"
        bounds = [cost * factor * _AT_BOUND for factor in pair_factors]
        bounded = sum(np.count_nonzero(alpha >= bound) for alpha, bound in zip(alphas, bounds, strict=True))
        yield f"nSV = {sum(np.count_nonzero(alpha) for alpha in alphas)}, nBSV = {bounded}"
    if task.kind == CLASSES:
        yield f"Total nSV = {model.dual_coef.shape[1]}"
