"""``clsvm predict``: svm-predict's flags, then ours."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clsvm.cli.common import (
    READ,
    TEXT,
    WRITTEN,
    Device,
    accuracy,
    apart,
    regression_scores,
    reporting,
    require,
    warn,
)
from clsvm.tasks import NUMBERS, TASKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clsvm.models.model import KernelModel
from clsvm.cli.common import MemoryLimit, Quiet, errors

_PIECE = 1 << 11  # rows predicted at a time, or more, where a bar is shown


def predict(
    ctx: typer.Context,
    test: Annotated[str, typer.Argument(callback=READ, help=f"Test data, {TEXT}.")],
    model: Annotated[
        str, typer.Argument(callback=READ, help="A model of 'clsvm train', clsvm.save_model or svm-train; or -.")
    ],
    output: Annotated[
        str | None,
        typer.Argument(callback=WRITTEN, help="Where the predictions go, one a line; - is standard output."),
    ] = None,
    probability: Annotated[
        int,
        typer.Option(
            "-b",
            help="1: the most probable label and all probabilities, of a model of 'train -b 1', or of two classes by "
            "'falkon train --machine logistic'.",
        ),
    ] = 0,
    quiet: Quiet = False,
    device: Device = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """``clsvm predict``: svm-predict's flags, then ours."""
    require("-b", probability, probability in (0, 1), "0 or 1")
    with reporting(ctx):
        from clsvm import files
        from clsvm.models import npz, svmlight
        from clsvm.opencl.devices import find

        apart([test, model], [output] if output is not None else [])
        if output is not None:
            files.check_writable(output)
        fitted = npz.load_model(model)
        values = TASKS[fitted.task].kind == NUMBERS
        if probability and not fitted.has_probabilities:
            raise ValueError(
                f"-b 1: got {model} without probabilities, expected a model of 'train -b 1', or of two classes by "
                "'falkon train --machine logistic'"
            )
        X: Any
        if fitted.kernel.name == "precomputed":
            _, X, y = svmlight.read_kernel(test, numbered=False, dense=False)
        else:
            X, y = svmlight.read_problem(test)
            if X.shape[1] > (known := fitted.support_vectors.shape[1]) and fitted.support_vectors.shape[0]:
                warn(
                    f"{test} has {X.shape[1]} features, the model {known}: it takes the others for zero, as LIBSVM does"
                )
            fitted, X = svmlight.match_columns(fitted, X)
        if probability and not values:
            if find(device).fp64:  # else the sixth digit, which is printed, would not be LIBSVM's
                fitted = replace(fitted, dtype="float64")
            labels, lines = _probable(fitted, X, device, memory_limit)
        else:
            labels = _in_pieces(lambda rows: fitted.predict(rows, device=device, memory_limit=memory_limit), X)
            lines = (f"{label:.17g}" if values else _label(label) for label in labels.tolist())
        if output is not None:
            with files.atomic_write(output) as stream:
                stream.writelines(f"{line}\n".encode() for line in lines)
        if not quiet and fitted.has_probabilities and (values or not probability):
            said = "Model supports probability estimates, but disabled in prediction."  # as svm-predict says it
            typer.echo(errors(fitted) if probability else said)
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

    from clsvm.report.display import counting

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
) -> tuple[NDArray[Any], Iterable[str]]:
    """svm-predict's labels with -b 1, and its lines, in the order of LIBSVM's file: of classes the most probable one of
    each row; of one class the probabilities say how sure it is."""
    import numpy as np

    from clsvm.models import libsvm

    found = _in_pieces(lambda rows: model.predict_proba(rows, device, memory_limit), X)
    if len(model.classes):
        order = libsvm.listing(model)
        found, classes = found[:, order], model.classes[order]
        labels, head = classes[found.argmax(axis=1)], " ".join(["labels", *map(_label, classes.tolist())])
    else:
        labels, head = model.predict(X, device, memory_limit), "label normal outlier"
    rows = zip(labels.tolist(), found, strict=True)
    lines = (" ".join([_label(label), *(f"{p:g}" for p in row.tolist())]) for label, row in rows)
    return np.asarray(labels), itertools.chain([head], lines)


def _label(label: bool | int | float | str) -> str:
    """A label as svmlight text has it: whole numbers without a point, others with every digit they need."""
    return label if isinstance(label, str) else f"{label:.0f}" if label == int(label) else repr(label)
