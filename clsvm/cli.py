"""The command ``clsvm``: train, predict, scale with the flags of LIBSVM's programs; kernels; tune; sample; devices.

Results go to stdout; progress (on a terminal), warnings and errors to stderr. Exit codes: 0 done, 1 it failed (data,
files, device), 2 the command line is wrong, 130 Ctrl-C. What is slow to import is imported where it is used. What a
command says of itself is its decorator's, since ``python -OO`` drops docstrings.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clsvm import cli_kernels, cli_scale, cli_tune
from clsvm.cli_common import (
    Device,
    Element,
    LibsvmCommand,
    Param,
    accuracy,
    apart,
    console,
    dtype_name,
    ending,
    kernel_of,
    numbers,
    regression_scores,
    reporting,
    require,
    warn,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clsvm.estimators import SVC, SVR, NuSVC, NuSVR, OneClassSVM
    from clsvm.model import KernelModel
    from clsvm.report import FitReport

_PIECE = 1 << 11  # rows predicted at a time, or more, where a bar is shown
_KERNELS = {"0": "linear", "1": "poly", "2": "rbf", "3": "sigmoid", "4": "precomputed", "polynomial": "poly"}

app = typer.Typer(
    name="clsvm",
    help="Kernel support vector machines through OpenCL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_kernels.app, name="kernels")
app.command(
    cls=LibsvmCommand, help="Scale each feature of FILE by its minimum and maximum and print the rows as svmlight text."
)(cli_scale.scale)
app.command(help="Search the tile sizes that are fastest on a device and keep them for later fits.")(cli_tune.tune)


def _version(asked: bool) -> None:
    if asked:
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


def _kernel_name(text: str | None) -> str | None:
    from clsvm.kernel_records import BUILTIN

    name = _KERNELS.get(text or "", text)
    if name is not None and name not in (*BUILTIN, "precomputed"):
        expected = f"0 linear, 1 poly, 2 rbf, 3 sigmoid, 4 precomputed, or a name: {', '.join(BUILTIN)}"
        raise typer.BadParameter(f"got {text!r}, expected one of {expected}")
    return name


def _weights(words: list[str]) -> dict[int, float]:
    """``label=weight`` words -> weights by label; the last one of a label counts."""
    weights = {}
    for word in words:
        label, _, weight = word.partition("=")
        try:
            weights[int(label)] = float(weight)
        except ValueError:
            raise typer.BadParameter(
                f"got '-w{label} {weight}', expected an integer label and a weight, such as -w-1 0.5", param_hint="-wi"
            ) from None
        require(f"-w{label}", weights[int(label)], weights[int(label)] > 0, "a weight above 0")
    return weights


def _memory(text: str | None) -> str | None:
    if text is not None:
        from clsvm.budget import parse_bytes

        try:
            parse_bytes(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return text


def _working_set(text: str) -> str:
    if text != "auto" and not (text.isascii() and text.isdecimal() and int(text) >= 2):
        raise typer.BadParameter(f"got {text!r}, expected 'auto' or a whole number, 2 or more")
    return text


MemoryLimit = Annotated[
    str | None,
    typer.Option("--memory-limit", callback=_memory, help="Device memory to use, such as 2GB. Default: a share of it."),
]
Quiet = Annotated[bool, typer.Option("-q", help="Print warnings and errors only.")]


@app.command(
    cls=LibsvmCommand, help="Train a model on FILE and write it to MODEL, in LIBSVM's format where that can hold it."
)
def train(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(help="Training data, svmlight text; may be .gz, .bz2 or .xz.")],
    model: Annotated[str | None, typer.Argument(help="Where the model goes. Default: FILE's name + .model")] = None,
    svm_type: Annotated[
        int, typer.Option("-s", help="Type: 0 C-SVC, 1 nu-SVC, 2 one-class, 3 epsilon-SVR, 4 nu-SVR.")
    ] = 0,
    name: Annotated[
        str | None,
        typer.Option(
            "-t",
            callback=_kernel_name,
            help="Kernel: 0 linear, 1 poly, 2 rbf, 3 sigmoid, 4 precomputed (FILE holds lines 'label 0:serial "
            "1:K(x,x1) 2:K(x,x2) ...'), or a name of 'clsvm kernels list'. Default: 2",
        ),
    ] = None,
    degree: Annotated[int | None, typer.Option("-d", help="degree of the kernel. Default: 3")] = None,
    gamma: Annotated[
        float | None, typer.Option("-g", help="gamma of the kernel. Default (or 0): 1 / number of features")
    ] = None,
    coef0: Annotated[float | None, typer.Option("-r", help="coef0 of the kernel. Default: 0")] = None,
    function: Annotated[
        str | None,
        typer.Option("--kernel", metavar="EXPR", help="A kernel of dot, sqdist, xx and yy: 'exp(-gamma * sqdist)'."),
    ] = None,
    element: Element = None,
    param: Param = None,
    cost: Annotated[float, typer.Option("-c", help="C: the weight of the loss.")] = 1.0,
    nu: Annotated[float, typer.Option("-n", help="nu of -s 1, 2 and 4: the share of the rows that err, about.")] = 0.5,
    epsilon: Annotated[float, typer.Option("-p", help="epsilon of epsilon-SVR: errors up to it are free.")] = 0.1,
    weights: Annotated[
        list[str] | None, typer.Option("-wi", metavar="WEIGHT", help="C of label i times WEIGHT: -w1 2 -w-1 0.5.")
    ] = None,
    tol: Annotated[float, typer.Option("-e", help="Stop where the KKT violation is at most this.")] = 1e-3,
    cache: Annotated[
        float | None, typer.Option("-m", help="Kernel cache in MB. Default: a share of the memory limit.")
    ] = None,
    shrinking: Annotated[int, typer.Option("-h", help="Shrinking, 0 or 1: taken, without effect.")] = 1,
    probability: Annotated[
        int, typer.Option("-b", help="1: fit probabilities, too, by five fits more. Those of -s 2 need LIBSVM 3.3.")
    ] = 0,
    folds: Annotated[
        int | None, typer.Option("-v", help="Cross-validation: so many folds, and no model is written.")
    ] = None,
    quiet: Quiet = False,
    device: Device = None,
    gap_tol: Annotated[
        float | None, typer.Option("--gap-tol", help="Stop as soon as the relative duality gap is this small.")
    ] = None,
    max_iter: Annotated[int, typer.Option("--max-iter", help="Stop after so many steps; -1: no limit.")] = -1,
    max_time: Annotated[float | None, typer.Option("--max-time", help="Stop after so many seconds.")] = None,
    coupled: Annotated[
        bool, typer.Option("--crammer-singer", help="Two or more classes in one problem without offsets.")
    ] = False,
    no_bias: Annotated[bool, typer.Option("--no-bias", help="Without an offset: rho is 0.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FILE", help="Keep the coefficients there, to go on with --resume FILE."),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", metavar="SECONDS", help="How often they are written.")
    ] = 60.0,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="FILE", help="Go on from a checkpoint of the same data, C and kernel."),
    ] = None,
    memory_limit: MemoryLimit = None,
    working_set_size: Annotated[
        str, typer.Option("--working-set-size", callback=_working_set, help="Rows of one step, or 'auto'.")
    ] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", callback=dtype_name, help="float32 or float64: kernel values.")
    ] = "float32",
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.png", callback=ending(".png"), help="Draw gap and violation over time."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE.json", callback=ending(".json"), help="Write the fit's report as JSON."),
    ] = None,
) -> None:
    """``clsvm train``: svm-train's flags, then ours."""
    require("-s", svm_type, svm_type in range(5), "0 C-SVC, 1 nu-SVC, 2 one-class, 3 epsilon-SVR or 4 nu-SVR")
    of_classes, regression = svm_type in (0, 1), svm_type in (3, 4)
    if coupled and svm_type != 0:
        raise typer.BadParameter(f"it is for classes (-s 0), got -s {svm_type}", param_hint="--crammer-singer")
    if no_bias and svm_type in (1, 2, 4):
        raise typer.BadParameter(f"a machine of -s {svm_type} has an offset", param_hint="--no-bias")
    require("-b", probability, probability in (0, 1), "0 or 1")
    if probability and coupled:
        raise typer.BadParameter("probabilities are of pairs of classes, not of one machine for all", param_hint="-b")
    require("-h", shrinking, shrinking in (0, 1), "0 or 1")
    require("-d", degree, degree is not None and degree >= 0, "0 or more")
    require("-g", gamma, gamma is not None and gamma >= 0, "0 or more")
    require("-r", coef0, True, "a finite number")
    require("-c", min(cost, sys.float_info.max), cost > 0, "a number above 0, or inf")
    require("-e", tol, tol > 0, "a number above 0")
    require("-n", nu, 0 < nu <= 1, "a number above 0, at most 1")
    require("-p", epsilon, epsilon >= 0, "0 or more")
    require("-v", folds, folds is not None and folds >= 2, "2 or more folds")
    require("-m", cache, cache is not None and cache > 0, "a number above 0")
    require("--gap-tol", gap_tol, gap_tol is not None and gap_tol > 0, "a number above 0")
    require("--max-iter", max_iter, max_iter == -1 or max_iter > 0, "-1 or a number above 0")
    require("--max-time", max_time, max_time is not None and max_time > 0, "a number above 0")
    require("--checkpoint-every", checkpoint_every, checkpoint_every >= 0, "0 or more")
    outputs = {"--report": report, "--plot": plot, "--checkpoint": checkpoint, "--resume": resume}
    if stray := [flag for flag, path in outputs.items() if folds is not None and path is not None]:
        raise typer.BadParameter("it goes without -v, which keeps none of its fits", param_hint=stray[0])
    if resume is not None and checkpoint not in (None, resume):
        raise typer.BadParameter("what is resumed is the checkpoint: give one of the two", param_hint="--resume")
    expression = function is not None or element is not None
    if name is not None and expression:
        raise typer.BadParameter("a kernel's name goes without --kernel and --element", param_hint="-t")
    params = numbers(param)
    flags = {"gamma": gamma or None, "coef0": coef0, "degree": degree}
    hint = "--kernel" if expression else "-t"
    given = name == "precomputed"
    kernel = None if given else kernel_of(function if expression else name or "rbf", element, params, flags, hint)
    by_label = _weights(weights or [])
    target = model if model is not None else Path(file).name + ".model"

    with reporting(ctx, resume or checkpoint):
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning

        from clsvm import files, libsvm, progress
        from clsvm import probability as probabilities
        from clsvm.estimators import SVC, SVR, NuSVC, NuSVR, OneClassSVM

        if resume is not None and not Path(resume).is_file():
            raise FileNotFoundError(f"--resume: there is no checkpoint {resume!r}")
        written = [out for out in (target, plot, report, resume or checkpoint) if out] if folds is None else []
        apart([file], written)
        for out in written:
            files.check_writable(out)
        if folds is not None and model is not None:
            warn(f"-v writes no model: {model} stays as it is")
        if checkpoint is not None and resume is None and Path(checkpoint).exists():
            raise FileExistsError(f"--checkpoint: {checkpoint!r} exists; go on from it with --resume, or delete it")
        if plot is not None:
            from clsvm import plots

            figure = plots.figure()
        X: Any
        if given:
            columns, X, y = libsvm.read_kernel(file)
            X = X[:, columns]
        else:
            X, y = libsvm.read_problem(file)
        classes, index = np.unique(y, return_inverse=True)
        if of_classes and len(classes) < 2:
            raise ValueError(f"{file}: got the label {classes[0]:g} alone, expected two classes or more (or -s 2)")
        for label in sorted(by_label.keys() - set(classes.tolist() if of_classes else ())):
            warn(f"no row has the label {label} of -w{label}" if of_classes else f"-w{label} is for classes (-s 0, 1)")
            del by_label[label]
        row_weights = np.array([by_label.get(label, 1.0) for label in y.tolist()]) if by_label else None
        numbered = of_classes and (len(classes) == 2 or coupled) and bool((classes != np.rint(classes)).any())
        targets: NDArray[Any] = index if numbered else y  # (labels that SVC would take for values)
        if kernel and "gamma" in kernel.params and not gamma and "gamma" not in params:
            kernel = kernel.set_params(gamma=1.0 / X.shape[1])
        estimator: SVC | NuSVC | OneClassSVM | SVR | NuSVR
        if svm_type == 0:
            estimator = SVC(C=cost, multi_class="crammer_singer" if coupled else "ovo", bias=not no_bias)
        elif svm_type == 3:
            estimator = SVR(C=cost, epsilon=epsilon, bias=not no_bias)
        else:
            estimator = {1: NuSVC(nu=nu), 2: OneClassSVM(nu=nu), 4: NuSVR(C=cost, nu=nu)}[svm_type]
        estimator.set_params(
            kernel=kernel or "precomputed",
            tol=tol,
            cache_size="auto" if cache is None else cache,
            max_iter=max_iter,
            verbose=not quiet and sys.stderr.isatty(),
            device=device,
            working_set_size=working_set_size if working_set_size == "auto" else int(working_set_size),
            gap_tol=gap_tol,
            dtype=dtype,
            memory_limit=memory_limit,
            max_time=max_time,
            checkpoint=resume or checkpoint,
            checkpoint_every=checkpoint_every,
        )
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below
        if folds is not None:
            predicted = _held_out(estimator, X, targets, row_weights, folds, bool(probability))
            if regression:
                error, correlation = regression_scores(predicted, y)
                typer.echo(f"Cross Validation Mean squared error = {error:g}")
                typer.echo(f"Cross Validation Squared correlation coefficient = {correlation:g}")
            else:
                typer.echo(f"Cross Validation Accuracy = {accuracy(predicted, targets)[0]:g}%")
            return
        estimator.fit(X, targets, sample_weight=row_weights)
        if not estimator.fit_report_.converged:
            warn(estimator.fit_report_.status)
        fitted = estimator.model_
        if probability:
            with warnings.catch_warnings():
                warnings.simplefilter("default", ConvergenceWarning)  # of the folds
                with progress.labelled("probabilities"):
                    fitted = probabilities.calibrated(estimator, X, targets, row_weights)
            if not fitted.has_probabilities:
                warn("no probabilities: fewer than 5 rows are inside, or outside")
        fitted = replace(fitted, classes=classes) if of_classes else fitted
        if given:  # rows are known by their serial numbers
            fitted = replace(fitted, support_vectors=columns[fitted.support_vectors])
        form = _write(fitted, target)
        if report is not None:
            with files.atomic_write(report) as stream:
                stream.write(f"{json.dumps(estimator.fit_report_.to_dict(), indent=1, allow_nan=False)}\n".encode())
        if plot is not None:
            plots.convergence(estimator.fit_report_, figure.subplots())
            with files.atomic_write(plot) as stream:
                figure.savefig(stream, format="png")
        if not quiet:
            for line in _training_lines(fitted, estimator.fit_report_, len(y), cost, by_label):
                typer.echo(line)
            typer.echo(f"model            {target}: {form}")
            for word, path in (("report", report), ("plot", plot)):
                if path is not None:
                    typer.echo(f"{word:<17}{path}")


def _held_out(
    estimator: SVC | NuSVC | OneClassSVM | SVR | NuSVR,
    X: Any,
    y: NDArray[Any],
    weights: NDArray[np.float64] | None,
    folds: int,
    by_probability: bool,
) -> NDArray[np.float64]:
    """What a model of the other folds (:func:`clsvm.probability.folds`) predicts for each row: of classes the most
    probable one, where that is asked for."""
    import numpy as np
    from sklearn.base import clone, is_classifier
    from sklearn.utils.metaestimators import _safe_split

    from clsvm import probability
    from clsvm.progress import labelled

    if folds > len(y):
        warn(f"-v {folds}: there are {len(y)} rows, so {len(y)} folds of one row each")
    of_classes = is_classifier(estimator) and bool((y != y[0]).any())
    predicted = np.zeros(len(y))
    for number, (train, test) in enumerate(probability.folds(y, folds, of_classes), 1):
        if of_classes and (y[train] == y[train[0]]).all():
            predicted[test] = y[train[0]]  # one class is left
            continue
        part = None if weights is None else weights[train]
        fold = clone(estimator)
        rows, labels = _safe_split(fold, X, y, train)  # (which knows kernel values)
        name = f"fold {number} of {min(folds, len(y))}"
        with labelled(name):
            fold.fit(rows, labels, sample_weight=part)
        test_rows = _safe_split(fold, X, y, test, train)[0]
        if not fold.fit_report_.converged:
            warn(f"fold {number}: {fold.fit_report_.status}")
        if by_probability and of_classes:
            with labelled(f"{name}, probabilities"):
                model = probability.calibrated(fold, rows, labels, part)
            found = model.predict_proba(test_rows, fold.device, fold.memory_limit)
            predicted[test] = model.classes[found.argmax(axis=1)]
        else:
            predicted[test] = fold.predict(test_rows)
    return predicted


def _write(model: KernelModel, target: str) -> str:
    """Write the model in LIBSVM's format where that can hold it, else in ours; which one, in words."""
    from clsvm import libsvm, model_files

    try:
        libsvm.check_savable(model)
    except ValueError as reason:
        model_files.save_model(model, target)
        return f"clsvm's format ({reason})"
    libsvm.save_model(model, target)
    return "LIBSVM's format"


def _training_lines(
    model: KernelModel, report: FitReport, rows: int, cost: float, weights: dict[int, float]
) -> Iterator[str]:
    """svm-train's lines (its objective is the minimised dual, so minus ours), then what it does not say. Of pairs they
    are the totals alone."""
    import numpy as np

    alpha = np.abs(model.dual_coef).max(axis=0, initial=0)  # (of coupled problems each row's own)
    yield f"optimization finished, #iter = {report.steps}"
    if not model.of_pairs:
        by_class = [weights.get(label, 1.0) for label in model.classes] or [1.0]
        box = np.repeat(by_class, model.n_support) * (1.0 if model.task == "one_class" else cost)
        nu = model.task.startswith("nu_")  # (its coefficients are scaled, or its box is not known here)
        if not weights and model.task != "one_class" and not nu:
            yield f"nu = {alpha.sum() / (cost * rows):f}"
        yield f"obj = {0.0 - report.dual:f}, rho = {0.0 - float(model.intercept[0]):f}"
        bounded = "" if nu else f", nBSV = {np.count_nonzero(alpha >= box * (1 - 1e-6))}"
        yield f"nSV = {len(alpha)}{bounded}"
    if model.task in ("c_svc", "nu_svc"):
        yield f"Total nSV = {len(alpha)}"
    elif model.has_probabilities and model.task != "one_class":
        yield _errors(model)
    total = report.seconds["total"]
    parts = ((part, value) for part, value in report.seconds.items() if part != "total" and value > 0.01 * total)
    yield ""
    yield f"objective        primal {report.primal:.9g}, dual {report.dual:.9g}"
    yield f"gap              {report.gap:.3g} (relative)"
    yield f"violation        {report.violation:.3g}"
    yield f"support vectors  {len(alpha)} of {rows} rows"
    yield f"seconds          {total:.3f}" + "".join(f", {part} {value:.3f}" for part, value in parts)
    yield f"device           {report.device}"
    yield f"layout           {report.layout}"
    yield f"working set      {report.working_set_size} ({report.selection})"
    yield f"status           {report.status}"


def _errors(model: KernelModel) -> str:
    """svm-predict's lines about the errors of a regression."""
    (sigma,) = model.probA if model.probA is not None else (float("nan"),)
    words = "Prob. model for test data: target value = predicted value + z,\nz: Laplace distribution "
    return f"{words}e^(-|z|/sigma)/(2sigma),sigma={sigma:g}"


@app.command(
    cls=LibsvmCommand, help="Predict the labels or values of TEST by MODEL and print the accuracy, or the error."
)
def predict(
    ctx: typer.Context,
    test: Annotated[str, typer.Argument(help="Test data, svmlight text; may be .gz, .bz2 or .xz.")],
    model: Annotated[str, typer.Argument(help="A model of 'clsvm train', clsvm.save_model or svm-train.")],
    output: Annotated[str | None, typer.Argument(help="Where the predictions go, one a line.")] = None,
    probability: Annotated[
        int, typer.Option("-b", help="1: of a model trained with -b 1, the most probable label and all probabilities.")
    ] = 0,
    quiet: Quiet = False,
    device: Device = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """``clsvm predict``: svm-predict's flags, then ours."""
    require("-b", probability, probability in (0, 1), "0 or 1")
    with reporting(ctx):
        from clsvm import files, libsvm, model_files
        from clsvm.device import find

        if output is not None:
            apart([test, model], [output])
            files.check_writable(output)
        fitted = model_files.load_model(model)
        values = fitted.task in ("epsilon_svr", "nu_svr")
        if probability and not fitted.has_probabilities:
            raise ValueError(f"-b 1: got {model} without probabilities, expected a model trained with -b 1")
        X: Any
        if fitted.kernel.name == "precomputed":
            _, X, y = libsvm.read_kernel(test, numbered=False)
        else:
            X, y = libsvm.read_problem(test)
            if X.shape[1] > (known := fitted.support_vectors.shape[1]) and fitted.support_vectors.shape[0]:
                warn(
                    f"{test} has {X.shape[1]} features, the model {known}: it takes the others for zero, as LIBSVM does"
                )
            fitted, X = libsvm.match_columns(fitted, X)
        if probability and not values:
            if find(device).fp64:  # else the sixth digit, which is printed, would not be LIBSVM's
                fitted = replace(fitted, dtype="float64")
            labels, lines = _probable(fitted, X, device, memory_limit)
        else:
            labels = _in_pieces(lambda rows: fitted.predict(rows, device=device, memory_limit=memory_limit), X)
            lines = [f"{label:.17g}" if values else _label(label) for label in labels.tolist()]
        if output is not None:
            with files.atomic_write(output) as stream:
                stream.write("".join(f"{line}\n" for line in lines).encode())
        if not quiet and fitted.has_probabilities and (values or not probability):
            said = "Model supports probability estimates, but disabled in prediction."  # as svm-predict says it
            typer.echo(_errors(fitted) if probability else said)
        if labels.dtype.kind == "U":
            warn(f"no accuracy: the labels of {model} are text, those of {test} numbers")
        elif not quiet and values:
            error, correlation = regression_scores(labels, y)
            typer.echo(f"Mean squared error = {error:g} (regression)")
            typer.echo(f"Squared correlation coefficient = {correlation:g} (regression)")
        elif not quiet:
            percent, shown = accuracy(labels, y)
            typer.echo(f"Accuracy = {percent:g}% ({shown}) (classification)")


def _in_pieces(predict: Callable[[Any], NDArray[Any]], X: Any) -> NDArray[Any]:
    """predict(X), where stderr is a terminal piece by piece and with a bar: no row's result depends on its piece."""
    import numpy as np

    from clsvm.progress import counting

    n = X.shape[0]
    step = max(_PIECE, -(-n // 100)) if sys.stderr.isatty() else n
    made = []
    with counting("predicting", n) as done:
        for first in range(0, n, step):
            made.append(predict(X[first : first + step]))
            done(min(first + step, n))
    return np.concatenate(made)


def _probable(
    model: KernelModel, X: Any, device: Any, memory_limit: int | str | None
) -> tuple[NDArray[Any], list[str]]:
    """svm-predict's labels with -b 1, and its lines, in the order of LIBSVM's file: of classes the most probable one of
    each row; of one class the probabilities say how sure it is."""
    import numpy as np

    from clsvm import libsvm

    found = _in_pieces(lambda rows: model.predict_proba(rows, device, memory_limit), X)
    if len(model.classes):
        order = libsvm.listing(model)
        found, classes = found[:, order], model.classes[order]
        labels, lines = classes[found.argmax(axis=1)], [" ".join(["labels", *map(_label, classes.tolist())])]
    else:
        labels, lines = model.predict(X, device, memory_limit), ["label normal outlier"]
    for label, row in zip(labels.tolist(), found.tolist(), strict=True):
        lines.append(" ".join([_label(label), *(f"{p:g}" for p in row)]))
    return np.asarray(labels), lines


def _label(label: bool | int | float | str) -> str:
    """A label as svmlight text has it: whole numbers without a point, others with every digit they need."""
    return label if isinstance(label, str) else f"{label:.0f}" if label == int(label) else repr(label)


@app.command(help="Write NAME.train and NAME.test, real data bundled with scikit-learn, scaled, as svmlight text.")
def sample(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="breast_cancer, or digits (8 against the rest).")],
    folder: Annotated[str, typer.Option("--folder", help="Where the files go.")] = ".",
    test_size: Annotated[float, typer.Option("--test-size", help="Share of the rows in the test file.")] = 0.25,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the split.")] = 0,
) -> None:
    """``clsvm sample``: see :func:`clsvm.datasets.sample`."""
    from clsvm import datasets

    if name not in datasets.NAMES:
        raise typer.BadParameter(f"got {name!r}, expected one of {', '.join(datasets.NAMES)}", param_hint="NAME")
    require("--test-size", test_size, 0 < test_size < 1, "a number between 0 and 1")
    with reporting(ctx):
        for path in datasets.sample(name, folder, test_size, seed):
            typer.echo(os.fspath(path))


@app.command(help="List the OpenCL devices of this machine, whether each is usable, and which is the default.")
def devices(ctx: typer.Context) -> None:
    """``clsvm devices``: see :func:`clsvm.device.devices`."""
    with reporting(ctx):
        from rich.table import Table

        from clsvm import device as machine

        records = machine.devices()
        if not records:
            raise machine.no_platform()
        default, rule = _default()
        table = Table()
        for title in ("index", "platform", "device", "driver", "memory", "largest buffer", "fp64", "usable", "default"):
            table.add_column(title, overflow="fold")
        for r in records:
            sizes = f"{r.memory / 2**30:.1f} GiB", f"{r.largest_buffer / 2**30:.1f} GiB"
            usable = "yes" if r.usable else f"no: {r.reason}"
            marks = "yes" if r.fp64 else "no", usable, "yes" if r.index == default else ""
            table.add_row(str(r.index), r.platform, r.name, r.driver, *sizes, *marks)
        console().print(table)
        typer.echo(rule)


def _default() -> tuple[int | None, str]:
    """The index of the device that is taken where none is named, if there is one, and the rule that makes it so."""
    from clsvm.device import find
    from clsvm.errors import DeviceError

    named = os.environ.get("CLSVM_DEVICE")
    rule = "a usable GPU, else a usable CPU; of several the one with most memory (CLSVM_DEVICE can name another)"
    rule = f"The default is what CLSVM_DEVICE says: {named!r}" if named else f"The default is {rule}"
    try:
        return find(None).index, rule
    except DeviceError:
        return None, f"{rule}, which is none of these, or more than one" if named else rule


def main() -> None:
    """The console script: runs :data:`app`."""
    app(prog_name="clsvm")
