"""Define ``clsvm grid``, which searches C and gamma by cross-validation as LIBSVM's grid.py does.

Flags and output lines are those of grid.py. All fits run in one process and share rows of the kernel matrix. A fit
starts from the coefficients of a similar fit, if there is one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import typer

from clsvm.cli import common, flags
from clsvm.cli.common import warn
from clsvm.cli.flags import Option, to_write
from clsvm.parameters import PARAMETERS

MOST = 10_000  # a range has at most this many values of C or gamma


def _powers(text: str) -> list[float] | None:
    """Return the numbers begin, begin + step, ... up to end for the text ``begin,end,step``, or None for ``null``.

    Raises ValueError for another text.
    """
    if text == "null":
        return None
    try:
        begin, end, step = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"got {text!r}, expected begin,end,step or null") from None
    count = (end - begin) / step if step else -1.0
    if not 0 <= count < MOST:
        words = f"expected a step that leads from {begin:g} to {end:g}, in less than {MOST} values"
        raise ValueError(f"got {text!r}, {words}")
    return [begin + k * step for k in range(int(count + 1e-9) + 1)]


SOLVER = [one for one in flags.of_estimators(short=True) if one.name != "C"]
RANGE = "BEGIN,END,STEP"
OPTIONS = (
    flags.data("Training data of classes"),
    Option("c", "-log2c", "-5,15,2", "Exponents of 2 for C; null: C = 1.", str, RANGE, _powers),
    Option(
        "g", "-log2g", "3,-15,-2", "Exponents of 2 for gamma; null: gamma = 1 / number of features.", str, RANGE,
        read=_powers,
    ),
    replace(flags.FOLDS, default=5, help="Folds of the cross-validation."),
    Option("out", "-out", None, "File of rates. Default: FILE's name + .out; null: nowhere", str, "FILE", to_write),
    Option("resume", "-resume", False, "Accepted, without effect: all rates are computed."),
    Option("png", "-png", None, "Draw the rates to this file. Default: no picture", str, "FILE", to_write),
    Option("gnuplot", "-gnuplot", None, "Accepted, without effect: -png draws."),
    Option("svmtrain", "-svmtrain", None, "Accepted, without effect: clsvm trains."),
    Option("svm_type", "-s", 0, "Type: only 0, C-SVC.", least=0, most=0),
    replace(flags.KERNEL, help="Kernel, as 'clsvm train' has it. Default: 2"),
    replace(flags.DEGREE, default=3, help="degree of the kernel."),
    replace(flags.COEF0, default=0.0, help="coef0 of the kernel."),
    *SOLVER,
    flags.WEIGHTS, flags.SHRINKING,
    replace(flags.PROBABILITY, help="Only 0: rates are of labels by decision values.", most=0),
    flags.QUIET, flags.DEVICES, flags.MEMORY_LIMIT,
)  # fmt: skip


class Point(NamedTuple):
    """Hold one point of the grid and its cross-validation accuracy.

    Attributes
    ----------
    powers
        dict of exponents: C is 2 ** powers["c"], and gamma is 2 ** powers["g"]. A parameter that is not searched is
        missing.
    rate
        accuracy in per cent.
    """

    powers: dict[str, float]
    rate: float

    def __str__(self) -> str:
        return " ".join([*(f"log2{name}={power}" for name, power in self.powers.items()), f"rate={self.rate:g}"])

    def beats(self, other: Point) -> bool:
        """Return whether this point has a higher rate than ``other``.

        For the same rate and the same gamma, return whether this point has a smaller C.
        """
        same = self.rate == other.rate and self.powers.get("g") == other.powers.get("g")
        return self.rate > other.rate or (same and self.powers.get("c", 0) < other.powers.get("c", 0))


@flags.command(
    "Find C and gamma for FILE by cross-validation, as LIBSVM's grid.py does. The last line names them.",
    *OPTIONS, cls=flags.LibsvmCommand,
)  # fmt: skip
def grid(args: Any) -> None:
    """Run ``clsvm grid``: search C and gamma by cross-validation, and print the accuracy of each pair of values."""
    powers = {name: values for name, values in (("c", args.c), ("g", args.g)) if values}
    if not powers:
        raise typer.BadParameter("-log2c and -log2g are null, expected a range for one of them", param_hint="-log2c")
    target = None if args.out == "null" else args.out or Path(args.file).name + ".out"
    png = args.png if len(powers) == 2 else None
    if args.png != png:
        warn(f"-png {args.png}: no picture is drawn, since it needs both ranges, -log2c and -log2g")
    figure = common.new_figure(png)
    common.check_files([args.file], [target, png])
    search, points = _searched(args, powers)
    best = Point({}, -1.0)
    for point in points:
        best = point if point.beats(best) else best
        if not args.quiet:
            at = " ".join(map(str, point.powers.values()))
            chosen = ", ".join(f"{name}={2.0**power}" for name, power in best.powers.items())
            typer.echo(f"[local] {at} {point.rate:g} (best {chosen}, rate={best.rate:g})")
    common.write_file(target, map(str, points))
    common.draw(figure, png, "grid", search)
    typer.echo(" ".join([*(str(2.0**power) for power in best.powers.values()), f"{best.rate:g}"]))


def _searched(args: Any, powers: dict[str, list[float]]) -> tuple[Any, list[Point]]:
    """Run the cross-validation for all values of C and gamma. Return the fitted search, and a Point for each pair.

    The values of C are 2 ** x for each x in ``powers["c"]``. The values of gamma are 2 ** x for each x in
    ``powers["g"]``.
    """
    import numpy as np

    import clsvm
    from clsvm.model_selection import SVCSearchCV

    X, y, _ = common.training_rows(args.file, args.kernel == "precomputed", True)
    weights = common.row_weights(args.weights, y)
    _, index, _ = common.numbered(y)
    # The weights are given as class weights: sample weights would also count in the accuracy of cross-validation.
    by_class = None if weights is None else dict(zip(index.tolist(), weights.tolist(), strict=True))
    points = [dict(zip(powers, values, strict=True)) for values in product(*powers.values())]
    names = {"c": "C", "g": "gamma"}
    values = [{names[name]: [2.0**power] for name, power in at.items()} for at in points]
    of_solver = [one.name for one in SOLVER if PARAMETERS[one.name].solver]
    given = {name: vars(args)[name] for name in ("degree", "coef0", "device", "memory_limit", *of_solver)}
    svc = clsvm.SVC(kernel=args.kernel or "rbf", gamma=1.0 / X.shape[1], class_weight=by_class, **given)
    folds, shown = common.folds_of(index, args.folds, True), int(not args.quiet and sys.stderr.isatty())
    search = SVCSearchCV(svc, values, cv=folds, refit=False, verbose=shown).fit(X, index)
    scores = np.stack([search.cv_results_[f"split{k}_test_score"] for k in range(len(folds))], axis=1)
    rates = 100 * np.average(scores, axis=1, weights=[len(test) for _, test in folds])
    # Accuracies are rounded to six digits, as svm-train prints them, so that nearly equal ones count as equal.
    return search, [Point(at, float(f"{rate:g}")) for at, rate in zip(points, rates, strict=True)]
