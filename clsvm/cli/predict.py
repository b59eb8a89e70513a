"""``clsvm predict``: svm-predict's flags, then ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from clsvm.cli import common, flags
from clsvm.cli.common import Array, warn
from clsvm.cli.flags import REQUIRED, Option
from clsvm.tasks import NUMBERS, TASKS

if TYPE_CHECKING:
    from clsvm.models.model import KernelModel

_PIECE = 1 << 11  # rows predicted at a time, or more, where a bar is shown
_OF_TRAINING = "a model of 'train -b 1', or of two classes by 'falkon train --machine logistic'"
OPTIONS = (
    flags.data("Test data", "test"),
    Option("model", "", REQUIRED, "A model of 'clsvm train', clsvm.save_model or svm-train; or -.", read=flags.to_read),
    Option("output", "", None, "Where the predictions go, one a line; - is standard output.", read=flags.to_write),
    replace(flags.PROBABILITY, help=f"1: the most probable label and all probabilities, of {_OF_TRAINING}."),
    flags.QUIET, flags.DEVICE, flags.MEMORY_LIMIT,
)  # fmt: skip


@flags.command(
    "Predict the labels or values of TEST by MODEL and print the accuracy, or the error.",
    *OPTIONS,
    cls=flags.LibsvmCommand,
)
def predict(asked: Any) -> None:
    """Run ``clsvm predict``."""
    from clsvm.models import npz

    common.check_files([asked.test, asked.model], [asked.output])
    model = npz.load_model(asked.model)
    values = TASKS[model.task].kind == NUMBERS
    if asked.probability and not model.has_probabilities:
        raise ValueError(f"-b 1: got {asked.model} without probabilities, expected {_OF_TRAINING}")
    model, X, y = _read(asked.test, model)
    where = asked.device, asked.memory_limit
    if asked.probability and not values:
        labels, lines = _probable(model, X, where)
    else:
        labels = _in_pieces(lambda rows: model.predict(rows, *where), X)
        lines = (f"{label:.17g}" if values else _label(label) for label in labels.tolist())
    common.write_file(asked.output, lines)
    if not asked.quiet and model.has_probabilities and (values or not asked.probability):
        disabled = "Model supports probability estimates, but disabled in prediction."  # as svm-predict says it
        typer.echo(common.error_lines(model) if asked.probability else disabled)
    if labels.dtype.kind == "U":
        warn(f"no accuracy: the labels of {asked.model} are text, those of {asked.test} numbers")
    elif not asked.quiet:
        common.say(common.score_lines(labels, y, values))


def _read(test: str, model: KernelModel) -> tuple[KernelModel, Any, Array]:
    """Return the model and the rows of a file with the same number of columns, and the file's labels or values."""
    from clsvm.models import svmlight

    if model.kernel.name == "precomputed":
        _, X, y = svmlight.read_kernel(test, numbered=False, dense=False)
        return model, X, y
    X, y = svmlight.read_problem(test)
    rows, known = model.support_vectors.shape
    if rows and X.shape[1] > known:
        warn(f"{test} has {X.shape[1]} features, the model {known}: it takes the others for zero, as LIBSVM does")
    return *svmlight.match_columns(model, X), y


def _in_pieces(predict: Callable[[Any], Array], X: Any) -> Array:
    """Return predict(X), on a terminal piece by piece with a bar: a row's result does not depend on its piece."""
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
    """Return svm-predict's labels with -b 1, and its lines, in the order of LIBSVM's file.

    The label of several classes is the most probable one. One class has the model's own label.
    """
    import numpy as np

    from clsvm.models import libsvm
    from clsvm.opencl.devices import find

    if find(where[0]).fp64:  # else the sixth digit, which is printed, would not be LIBSVM's
        model = replace(model, dtype="float64")
    found = _in_pieces(lambda rows: model.predict_proba(rows, *where), X)
    if len(model.classes):
        order = libsvm.listing(model)
        found, classes = found[:, order], model.classes[order]
        labels, head = classes[found.argmax(axis=1)], " ".join(["labels", *map(_label, classes.tolist())])
    else:
        labels, head = model.predict(X, *where), "label normal outlier"

    def lines() -> Iterator[str]:
        yield head
        for label, row in zip(labels.tolist(), found.tolist(), strict=True):
            yield " ".join([_label(label), *(f"{p:g}" for p in row)])

    return np.asarray(labels), lines()


def _label(label: bool | int | float | str) -> str:
    """Return a label as svmlight text has it: whole numbers without a point, others with every digit they need."""
    return label if isinstance(label, str) else f"{label:.0f}" if label == int(label) else repr(label)
