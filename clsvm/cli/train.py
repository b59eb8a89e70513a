"""``clsvm train``: svm-train's flags, then ours."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clsvm.cli.common import (
    READ,
    TEXT,
    Devices,
    Element,
    ModelOut,
    Param,
    accuracy,
    apart,
    ending,
    flagged,
    kernel_of,
    numbers,
    regression_scores,
    reporting,
    require,
    spent,
    warn,
    write_report,
)
from clsvm.parameters import PARAMETERS
from clsvm.tasks import CLASSES, NUMBERS, listed, of_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from clsvm.models.model import KernelModel
    from clsvm.report import FitReport
from clsvm.cli.common import MemoryLimit, Quiet, Weights, errors

_KERNELS = {"0": "linear", "1": "poly", "2": "rbf", "3": "sigmoid", "4": "precomputed", "polynomial": "poly"}


def kernel_name(text: str | None) -> str | None:
    """Return the name of the kernel that -t says by its number or name."""
    from clsvm.kernels.records import BUILTIN

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


def splits(y: NDArray[Any], folds: int, of_classes: bool) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The folds of -v (:func:`clsvm.models.probability.folds`), with a word where there are fewer."""
    from clsvm.models import probability

    if folds > len(y):
        warn(f"-v {folds}: there are {len(y)} rows, so {len(y)} folds of one row each")
    return probability.folds(y, folds, of_classes)


def row_weights(words: list[str], y: NDArray[Any]) -> NDArray[np.float64] | None:
    """``label=weight`` words -> a weight for each row; None where there is none."""
    return _of_rows(_weights(words), y)


def _of_rows(by_label: dict[int, float], y: NDArray[Any]) -> NDArray[np.float64] | None:
    """The weights of the rows by those of labels, from which those of no row are taken, with a word."""
    import numpy as np

    for label in sorted(by_label.keys() - set(y.tolist())):
        warn(f"no row has the label {label} of -w{label}")
        del by_label[label]
    return np.array([by_label.get(label, 1.0) for label in y.tolist()]) if by_label else None


@flagged(short="weights", long="coupled")
def train(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(callback=READ, help=f"Training data, {TEXT}.")],
    model: ModelOut = None,
    svm_type: Annotated[int, typer.Option("-s", help=f"Type: {listed()}.")] = 0,
    name: Annotated[
        str | None,
        typer.Option(
            "-t",
            callback=kernel_name,
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
    weights: Weights = None,
    shrinking: Annotated[int, typer.Option("-h", help="Shrinking, 0 or 1: taken, without effect.")] = 1,
    probability: Annotated[
        int, typer.Option("-b", help="1: fit probabilities, too, by five fits more. Those of -s 2 need LIBSVM 3.3.")
    ] = 0,
    folds: Annotated[
        int | None, typer.Option("-v", help="Cross-validation: so many folds, and no model is written.")
    ] = None,
    quiet: Quiet = False,
    device: Devices = None,
    coupled: Annotated[
        bool, typer.Option("--crammer-singer", help="Two or more classes in one problem without offsets.")
    ] = False,
    no_bias: Annotated[bool, typer.Option("--no-bias", help="Without an offset: rho is 0.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="FILE", help="Keep the coefficients there, to go on with --resume FILE."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="FILE", help="Go on from a checkpoint of the same data, C and kernel."),
    ] = None,
    memory_limit: MemoryLimit = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.png", callback=ending(".png"), help="Draw gap and violation over time."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE.json", callback=ending(".json"), help="Write the fit's report as JSON."),
    ] = None,
    **asked: Any,
) -> None:
    """``clsvm train``: svm-train's flags, then ours."""
    task = of_number(svm_type)
    require("-s", svm_type, task is not None, listed())
    assert task
    of_classes, regression = task.kind == CLASSES, task.kind == NUMBERS
    if coupled and task.estimator != "SVC":
        raise typer.BadParameter(f"it is for classes (-s 0), got -s {svm_type}", param_hint="--crammer-singer")
    if no_bias and "bias" not in task.parameters:
        raise typer.BadParameter(f"a machine of -s {svm_type} has an offset", param_hint="--no-bias")
    require("-b", probability, probability in (0, 1), "0 or 1")
    if probability and coupled:
        raise typer.BadParameter("probabilities are of pairs of classes, not of one machine for all", param_hint="-b")
    require("-h", shrinking, shrinking in (0, 1), "0 or 1")
    require("-d", degree, degree is not None and degree >= 0, "0 or more")
    require("-g", gamma, gamma is not None and gamma >= 0, "0 or more")
    require("-r", coef0, True, "a finite number")
    require("-v", folds, folds is not None and folds >= 2, "2 or more folds")
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

        import clsvm
        from clsvm import arrays, files
        from clsvm.cli import lines
        from clsvm.models import libsvm, svmlight
        from clsvm.models import probability as probabilities
        from clsvm.report import display

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
            columns, X, y = svmlight.read_kernel(file, dense=False)
            X = arrays.picked(X, columns)
        else:
            X, y = svmlight.read_problem(file)
        classes, index = np.unique(y, return_inverse=True)
        if of_classes and len(classes) < 2:
            raise ValueError(f"{file}: got the label {classes[0]:g} alone, expected two classes or more (or -s 2)")
        for label in sorted(by_label) if not of_classes else ():
            warn(f"-w{label} is for classes (-s 0, 1)")
            del by_label[label]
        weights_of_rows = _of_rows(by_label, y)
        numbered = of_classes and (len(classes) == 2 or coupled) and bool((classes != np.rint(classes)).any())
        targets: NDArray[Any] = index if numbered else y  # (labels that SVC would take for values)
        if kernel and "gamma" in kernel.params and not gamma and "gamma" not in params:
            kernel = kernel.set_params(gamma=1.0 / X.shape[1])
        own = {**asked, "bias": not no_bias}
        estimator = getattr(clsvm, task.estimator)(**{word: own[word] for word in task.parameters})
        if coupled:
            estimator.set_params(multi_class="crammer_singer")
        estimator.set_params(
            kernel=kernel or "precomputed",
            verbose=not quiet and sys.stderr.isatty(),
            device=device,
            memory_limit=memory_limit,
            checkpoint=resume or checkpoint,
            **{word: value for word, value in asked.items() if PARAMETERS[word].solver},
        )
        warnings.simplefilter("ignore", ConvergenceWarning)  # said below

        def said(fit: Any, rows: Any = slice(None)) -> None:
            """Print svm-train's lines of a fit to some of the rows."""
            given_weights = None if weights_of_rows is None else weights_of_rows[rows]
            for line in lines.svm_train(fit, targets[rows], given_weights) if not quiet else ():
                typer.echo(line)

        if folds is not None:
            predicted = _held_out(estimator, X, targets, weights_of_rows, folds, bool(probability), said)
            if regression:
                error, correlation = regression_scores(predicted, y)
                typer.echo(f"Cross Validation Mean squared error = {error:g}")
                typer.echo(f"Cross Validation Squared correlation coefficient = {correlation:g}")
            else:
                typer.echo(f"Cross Validation Accuracy = {accuracy(predicted, targets)[0]:g}%")
            return
        estimator.fit(X, targets, sample_weight=weights_of_rows)
        if not estimator.fit_report_.converged:
            warn(estimator.fit_report_.status)
        fitted = estimator.model_
        if probability:
            with warnings.catch_warnings():
                warnings.simplefilter("default", ConvergenceWarning)  # of the folds
                with display.labelled("probabilities"):
                    fitted = probabilities.calibrated(estimator, X, targets, weights_of_rows, said)
            if not fitted.has_probabilities:
                warn("no probabilities: fewer than 5 rows are inside, or outside")
        if of_classes:
            fitted = libsvm.ordered(replace(fitted, classes=classes), lines.order_of_labels(y))
        if given:  # rows are known by their serial numbers
            fitted = replace(fitted, support_vectors=columns[fitted.support_vectors])
        form = _write(fitted, target)
        if report is not None:
            write_report(estimator.fit_report_, report)
        if plot is not None:
            plots.convergence(estimator.fit_report_, figure.subplots())
            with files.atomic_write(plot) as stream:
                figure.savefig(stream, format="png")
        if not quiet:
            if regression and fitted.has_probabilities:
                typer.echo(errors(fitted))
            said(estimator)
            for line in _further_lines(fitted, estimator.fit_report_, len(y)):
                typer.echo(line)
            typer.echo(f"model            {target}: {form}")
            for word, path in (("report", report), ("plot", plot)):
                if path is not None:
                    typer.echo(f"{word:<17}{path}")


def _held_out(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    weights: NDArray[np.float64] | None,
    folds: int,
    by_probability: bool,
    said: Callable[[Any, NDArray[np.intp]], object],
) -> NDArray[np.float64]:
    """What a model of the other folds (:func:`clsvm.models.probability.folds`) predicts for each row: of classes the
    most probable one, where that is asked for. said: told of each fit, and of the places of its rows."""
    import numpy as np
    from sklearn.base import clone, is_classifier
    from sklearn.utils.metaestimators import _safe_split

    from clsvm.models import probability
    from clsvm.report.display import labelled

    of_classes = is_classifier(estimator) and bool((y != y[0]).any())
    predicted = np.zeros(len(y))
    for number, (train, test) in enumerate(splits(y, folds, of_classes), 1):
        if of_classes and (y[train] == y[train[0]]).all():
            predicted[test] = y[train[0]]  # one class is left
            continue
        part = None if weights is None else weights[train]
        fold = clone(estimator)
        rows, labels = _safe_split(fold, X, y, train)  # (which knows kernel values)
        name = f"fold {number} of {min(folds, len(y))}"
        with labelled(name):
            fold.fit(rows, labels, sample_weight=part)
        said(fold, train)
        test_rows = _safe_split(fold, X, y, test, train)[0]
        if not fold.fit_report_.converged:
            warn(f"fold {number}: {fold.fit_report_.status}")
        if by_probability and of_classes:

            def told(inner: Any, places: NDArray[np.intp], outer: NDArray[np.intp] = train) -> None:
                said(inner, outer[places])

            with labelled(f"{name}, probabilities"):
                model = probability.calibrated(fold, rows, labels, part, told)
            found = model.predict_proba(test_rows, fold.device, fold.memory_limit)
            predicted[test] = model.classes[found.argmax(axis=1)]
        else:
            predicted[test] = fold.predict(test_rows)
    return predicted


def _write(model: KernelModel, target: str) -> str:
    """Write the model in LIBSVM's format where that can hold it, else in ours; which one, in words."""
    from clsvm.models import libsvm, npz

    try:
        libsvm.check_savable(model)
    except ValueError as reason:
        npz.save_model(model, target)
        return f"clsvm's format ({reason})"
    libsvm.save_model(model, target)
    return "LIBSVM's format"


def _further_lines(model: KernelModel, report: FitReport, rows: int) -> Iterator[str]:
    """Yield what svm-train does not say of a fit to so many rows."""
    yield ""
    yield f"objective        primal {report.primal:.9g}, dual {report.dual:.9g}"
    yield f"gap              {report.gap:.3g} (relative)"
    yield f"violation        {report.violation:.3g}"
    yield f"support vectors  {model.dual_coef.shape[1]} of {rows} rows"
    yield f"seconds          {spent(report)}"
    yield f"device           {report.device}"
    yield f"layout           {report.layout}"
    yield f"working set      {report.working_set_size} ({report.selection})"
    yield f"status           {report.status}"
