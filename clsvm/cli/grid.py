"""Define ``clsvm grid``, which searches C and gamma by cross-validation as LIBSVM's grid.py does.

Flags and output lines are those of grid.py. All fits run in one process. They share rows of the kernel matrix, and a
fit starts from the coefficients of another fit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import typer

from clsvm.cli import common, flags
from clsvm.cli.common import warn
from clsvm.cli.flags import Option, to_write
from clsvm.parameters import PARAMETERS

MOST = 10_000  # a range has fewer than this many values of C or gamma


def _powers(text: str) -> list[float] | None:
    """Return the numbers begin, begin + step, ..., end for the text ``begin,end,step``. Return None for ``null``.

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


class GridCommand(flags.LibsvmCommand):
    """Parse a command line of grid.py. The flag -resume may lack its value before another flag or before FILE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        if "-resume" in words:
            after = words.index("-resume") + 1
            if len(words) < after + 2 or words[after].startswith("-"):
                words.insert(after, "")
        return super().parse_args(ctx, words)


def _by_range(value: float | None) -> None:
    """Raise ValueError if -c or -g is given, because the grid search chooses C and gamma."""
    if value is not None:
        raise ValueError("C and gamma are searched: use -log2c and -log2g")


def _is_zero(value: int) -> bool:
    return value == 0


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
    Option("earlier", "-resume", None, "Reuse the rates in FILE. Default: FILE's name + .out", str, "[FILE]"),
    Option("png", "-png", None, "Draw the rates to this file. Default: no picture", str, "FILE", to_write),
    Option("gnuplot", "-gnuplot", None, "null: no picture. Other values: accepted, without effect."),
    Option("svmtrain", "-svmtrain", None, "Accepted, without effect: clsvm trains."),
    Option("svm_type", "-s", 0, "Type: only 0, C-SVC.", ok=_is_zero, expected="0: rates are of C-SVC"),
    replace(flags.KERNEL, help="Kernel, as 'clsvm train' has it. Default: 2"),
    replace(flags.DEGREE, default=3, help="degree of the kernel.", ok=None, least=0),
    replace(flags.COEF0, default=0.0, help="coef0 of the kernel."),
    Option("cost", "-c", None, "", float, read=_by_range),
    Option("gamma", "-g", None, "", float, read=_by_range),
    *SOLVER,
    flags.WEIGHTS, flags.SHRINKING,
    replace(
        flags.PROBABILITY, help="Only 0: rates are of labels by decision values.", ok=_is_zero,
        expected="0: rates are of labels by decision values, not by probabilities",
    ),
    flags.QUIET, flags.DEVICES, flags.MEMORY_LIMIT,
)  # fmt: skip


class Point(NamedTuple):
    """Hold one point of the grid and its cross-validation accuracy.

    Attributes
    ----------
    powers
        "c" -> exponent of 2 that gives C, and "g" -> exponent of 2 that gives gamma.
    rate
        accuracy in per cent.
    """

    powers: dict[str, float]
    rate: float

    def __str__(self) -> str:
        return " ".join([*(f"log2{name}={power}" for name, power in self.powers.items()), f"rate={self.rate:g}"])

    def beats(self, other: Point) -> bool:
        """Return whether this point has a higher rate than ``other``, or the same rate and gamma and a smaller C."""
        same = self.rate == other.rate and self.powers.get("g") == other.powers.get("g")
        return self.rate > other.rate or (same and self.powers.get("c", 0) < other.powers.get("c", 0))


@flags.command(
    "Find C and gamma for FILE by cross-validation, as LIBSVM's grid.py does. The last line names them.",
    *OPTIONS, cls=GridCommand,
)  # fmt: skip
def grid(args: Any) -> None:
    """Run ``clsvm grid``: find C and gamma by :class:`clsvm.model_selection.SVCSearchCV`, and print their accuracy."""
    powers = {name: values for name, values in (("c", args.c), ("g", args.g)) if values}
    if not powers:
        raise typer.BadParameter("-log2c and -log2g are null, expected a range for one of them", param_hint="-log2c")
    beside = Path(args.file).name + ".out"
    target = None if args.out == "null" else args.out or beside
    for flag, value in (("-svmtrain", args.svmtrain), ("-gnuplot", args.gnuplot)):
        if value is not None and (flag, value) != ("-gnuplot", "null"):
            warn(f"{flag} {value} has no effect: clsvm runs no other programs (-png FILE draws the rates)")
    png = args.png
    if png is not None and (args.gnuplot == "null" or len(powers) < 2):
        warn(f"-png {png}: no picture without both ranges, nor with -gnuplot null")
        png = None
    figure = common.new_figure(png)
    common.check_files([args.file], [target, png])
    known = [] if args.earlier is None else _resumed(args.earlier or beside, tuple(powers))
    best, points = Point({}, -1.0), list[Point]()
    for point, who in _points(args, powers, known):
        best = point if point.beats(best) else best
        points.append(point)
        if not args.quiet:
            at = " ".join(map(str, point.powers.values()))
            chosen = ", ".join(f"{name}={2.0**power}" for name, power in best.powers.items())
            typer.echo(f"[{who}] {at} {point.rate:g} (best {chosen}, rate={best.rate:g})")
    _write(points, target, figure, png)
    typer.echo(" ".join([*(str(2.0**power) for power in best.powers.values()), f"{best.rate:g}"]))


def _points(args: Any, powers: dict[str, list[float]], known: list[Point]) -> Iterator[tuple[Point, str]]:
    """Yield all points of the grid, each with the word that grid.py prints for its origin.

    First come the points in ``known``, from an earlier run, with the word "resumed". Then come the points that are
    computed now, with the word "local".
    """
    import numpy as np

    import clsvm
    from clsvm.model_selection import SVCSearchCV

    X, y, _ = common.training_rows(args.file, args.kernel == "precomputed", True)
    weights = common.row_weights(args.weights, y)
    _, one_each, index = np.unique(y, return_index=True, return_inverse=True)
    # Class weights replace sample weights, because sample weights would also weight the accuracy.
    by_class = None if weights is None else dict(enumerate(weights[one_each].tolist()))
    yield from ((point, "resumed") for point in known)
    done = [point.powers for point in known]
    todo = [at for values in product(*powers.values()) if (at := dict(zip(powers, values, strict=True))) not in done]
    if not todo:
        return
    names = {"c": "C", "g": "gamma"}
    values = [{names[name]: [2.0**power] for name, power in at.items()} for at in todo]
    of_solver = [one.name for one in SOLVER if PARAMETERS[one.name].solver]
    given = {name: vars(args)[name] for name in ("degree", "coef0", "device", "memory_limit", *of_solver)}
    svc = clsvm.SVC(kernel=args.kernel or "rbf", gamma=1.0 / X.shape[1], class_weight=by_class, **given)
    folds, shown = common.folds_of(index, args.folds, True), int(not args.quiet and sys.stderr.isatty())
    found = SVCSearchCV(svc, values, cv=folds, refit=False, verbose=shown).fit(X, index).cv_results_
    scores = np.stack([found[f"split{k}_test_score"] for k in range(len(folds))], axis=1)
    sizes = np.array([len(test) for _, test in folds])
    for at, row in zip(todo, scores, strict=True):
        rate = 100 * (row @ sizes) / sizes.sum()
        yield Point(at, float(f"{rate:g}")), "local"  # six digits as in svm-train's output, so that equal rates tie


def _resumed(path: str, names: tuple[str, ...]) -> list[Point]:
    """Read the grid points in a file that ``clsvm grid -out`` or LIBSVM's grid.py wrote.

    ``names`` are the parameters that are searched: "c", "g" or both. Raises ValueError for a line of another form or
    with other parameters.
    """
    form = re.compile(" ".join([*(rf"log2{name}=(\S+)" for name in names), r"rate=(\S+)"]))
    found = []
    with open(path, encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):
            match = form.fullmatch(line.strip())
            try:
                *at, rate = map(float, match.groups() if match else [])
            except ValueError:
                expected = " ".join([*(f"log2{name}=number" for name in names), "rate=number"])
                raise ValueError(f"{path}, line {number}: got {line.strip()[:80]!r}, expected {expected!r}") from None
            found.append(Point(dict(zip(names, at, strict=True)), rate))
    return found


def _write(points: list[Point], target: str | None, figure: Any, png: str | None) -> None:
    """Write the grid points to the text file ``target``, and draw them to the file ``png``. None skips a file."""
    common.write_file(target, map(str, points))
    if png is not None:
        axes = {"c": "log2(C)", "g": "log2(gamma)"}
        params = [{axes[name]: power for name, power in point.powers.items()} for point in points]
        results: dict[str, Any] = {f"param_{name}": [at[name] for at in params] for name in axes.values()}
        results |= {"params": params, "mean_test_score": [point.rate for point in points]}
        common.draw(figure, png, "grid", SimpleNamespace(cv_results_=results), axes["g"], axes["c"])
