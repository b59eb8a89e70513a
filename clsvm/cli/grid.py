"""``clsvm grid``: grid.py's flags and lines, in one process: folds share rows of K and begin at one another's ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clsvm.cli.common import (
    READ,
    TEXT,
    WRITTEN,
    Devices,
    LibsvmCommand,
    MemoryLimit,
    Quiet,
    Weights,
    apart,
    flagged,
    reporting,
    require,
    warn,
)
from clsvm.cli.train import kernel_name, row_weights, splits
from clsvm.parameters import PARAMETERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 10_000  # values of one of the two


def _powers(flag: str, text: str) -> list[float] | None:
    """``begin,end,step`` -> begin, begin + step, ... as far as end; ``null`` -> None."""
    if text == "null":
        return None
    try:
        begin, end, step = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"got {text!r}, expected begin,end,step or null", param_hint=flag) from None
    count = (end - begin) / step if step else -1.0
    if not 0 <= count < MOST:
        words = f"expected a step that leads from {begin:g} to {end:g}, in less than {MOST} values"
        raise typer.BadParameter(f"got {text!r}, {words}", param_hint=flag)
    return [begin + k * step for k in range(int(count + 1e-9) + 1)]


class GridCommand(LibsvmCommand):
    """A command with grid.py's flag -resume, whose value may be left out before another flag or FILE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        if "-resume" in words:
            after = words.index("-resume") + 1
            if len(words) < after + 2 or words[after].startswith("-"):
                words.insert(after, "")
        return super().parse_args(ctx, words)


def _by_range(ctx: typer.Context, param: Any, value: float | None) -> None:
    """Refuse -c and -g as grid.py does."""
    if value is not None:
        raise typer.BadParameter("C and gamma are searched: use -log2c and -log2g")


_PASSED = {name: one for name, one in PARAMETERS.items() if one.flag and len(one.flag.name) == 2 and name != "C"}


@flagged(short="weights", long="", table=_PASSED)
def grid(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(callback=READ, help=f"Training data of classes, {TEXT}.")],
    log2c: Annotated[
        str, typer.Option("-log2c", metavar="BEGIN,END,STEP", help="Powers of 2 for C; null: 1 alone.")
    ] = "-5,15,2",
    log2g: Annotated[
        str,
        typer.Option("-log2g", metavar="BEGIN,END,STEP", help="Powers of 2 for gamma; null: 1 / number of features."),
    ] = "3,-15,-2",
    folds: Annotated[int, typer.Option("-v", help="Folds of the cross-validation.")] = 5,
    out: Annotated[
        str | None,
        typer.Option(
            "-out", metavar="FILE", callback=WRITTEN, help="Where rates go. Default: FILE's name + .out; null: nowhere"
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("-resume", metavar="[FILE]", help="Take the rates that FILE has. Default: FILE's name + .out"),
    ] = None,
    png: Annotated[
        str | None,
        typer.Option("-png", metavar="FILE", callback=WRITTEN, help="Draw the rates there; grid.py's default is none."),
    ] = None,
    gnuplot: Annotated[
        str | None, typer.Option("-gnuplot", help="null: no picture. A program's name: taken, without effect.")
    ] = None,
    svmtrain: Annotated[str | None, typer.Option("-svmtrain", help="Taken, without effect: clsvm trains.")] = None,
    svm_type: Annotated[int, typer.Option("-s", help="Type: 0 C-SVC alone.")] = 0,
    kernel: Annotated[
        str | None, typer.Option("-t", callback=kernel_name, help="Kernel, as 'clsvm train' has it. Default: 2")
    ] = None,
    degree: Annotated[int, typer.Option("-d", min=0, help="degree of the kernel.")] = 3,
    coef0: Annotated[float, typer.Option("-r", help="coef0 of the kernel.")] = 0.0,
    cost: Annotated[float | None, typer.Option("-c", hidden=True, callback=_by_range)] = None,
    gamma: Annotated[float | None, typer.Option("-g", hidden=True, callback=_by_range)] = None,
    weights: Weights = None,
    shrinking: Annotated[int, typer.Option("-h", help="Shrinking, 0 or 1: taken, without effect.")] = 1,
    probability: Annotated[int, typer.Option("-b", help="0 alone: rates are of labels by decision values.")] = 0,
    quiet: Quiet = False,
    device: Devices = None,
    memory_limit: MemoryLimit = None,
    **asked: Any,
) -> None:
    """``clsvm grid``: see :class:`clsvm.model_selection.SVCSearchCV`."""
    given = {"c": _powers("-log2c", log2c), "g": _powers("-log2g", log2g)}
    powers = {name: values for name, values in given.items() if values}
    if not powers:
        raise typer.BadParameter("-log2c and -log2g are null, expected a range for one of them", param_hint="-log2c")
    require("-v", folds, folds >= 2, "2 or more folds")
    require("-s", svm_type, svm_type == 0, "0: rates are of C-SVC")
    require("-b", probability, probability == 0, "0: rates are of labels by decision values, not by probabilities")
    require("-h", shrinking, shrinking in (0, 1), "0 or 1")
    require("-r", coef0, True, "a finite number")
    target = None if out == "null" else out or Path(file).name + ".out"
    earlier = Path(file).name + ".out" if resume == "" else resume
    with reporting(ctx):
        from clsvm import files
        from clsvm.models import svmlight

        for flag, value in (("-svmtrain", svmtrain), ("-gnuplot", None if gnuplot == "null" else gnuplot)):
            if value is not None:
                warn(f"{flag} {value} has no effect: clsvm trains and draws by itself (-png FILE draws the rates)")
        if png is not None and (gnuplot == "null" or len(powers) < 2):
            warn(f"-png {png}: no picture without both ranges, nor with -gnuplot null")
            png = None
        if png is not None:
            from clsvm import plots

            figure = plots.figure()
        written = [name for name in (target, png) if name]
        apart([file], written)
        for name in written:
            files.check_writable(name)
        known = [] if earlier is None else _resumed(earlier, tuple(powers))
        X: Any
        if kernel == "precomputed":
            columns, X, y = svmlight.read_kernel(file)
            X = X[:, columns]
        else:
            X, y = svmlight.read_problem(file)
        if (y == y[0]).all():
            raise ValueError(f"{file}: got the label {y[0]:g} alone, expected two classes or more")
        solver = {name: value for name, value in asked.items() if PARAMETERS[name].solver}
        machine = {**solver, "device": device, "memory_limit": memory_limit, "gamma": 1.0 / X.shape[1]}
        machine |= {"kernel": kernel or "rbf", "degree": degree, "coef0": coef0}
        shown = not quiet and sys.stderr.isatty()
        done = {tuple(point.powers.values()) for point in known}
        todo = [at for at in product(*powers.values()) if at not in done]
        found = _points(X, y, row_weights(weights or [], y), folds, tuple(powers), todo, machine, shown)
        points, best = list[Point](), Point({}, -1.0)
        for point, who in chain(((one, "resumed") for one in known), ((one, "local") for one in found)):
            best = point if point.beats(best) else best
            points.append(point)
            if not quiet:
                at = " ".join(map(str, point.powers.values()))
                chosen = ", ".join([*(f"{name}={2.0**power}" for name, power in best.powers.items()), best.rated])
                typer.echo(f"[{who}] {at} {point.rate:g} (best {chosen})")
        if target:
            with files.atomic_write(target) as stream:
                stream.write("".join(f"{point}\n" for point in points).encode())
        if png is not None:
            plots.grid(_Searched.of(points), "log2(gamma)", "log2(C)", figure.subplots())
            with files.atomic_write(png) as stream:
                figure.savefig(stream, format="png")
        typer.echo(" ".join([*(str(2.0**power) for power in best.powers.values()), f"{best.rate:g}"]))


def _resumed(path: str, names: tuple[str, ...]) -> list[Point]:
    """Read the points of a file of -out, grid.py's or ours. Raise ValueError for another line, or other names."""
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


class _Searched(NamedTuple):
    """Points as :func:`clsvm.plots.grid` takes a search."""

    cv_results_: dict[str, Any]

    @classmethod
    def of(cls, points: list[Point]) -> _Searched:
        axes = {"c": "log2(C)", "g": "log2(gamma)"}
        params = [{axes[name]: power for name, power in point.powers.items()} for point in points]
        columns = {f"param_{name}": [at[name] for at in params] for name in axes.values()}
        return cls({**columns, "params": params, "mean_test_score": [point.rate for point in points]})


class Point(NamedTuple):
    """Powers of 2 by name, "c" and "g", and the per cent of the rows that folds without them get right."""

    powers: dict[str, float]
    rate: float

    def __str__(self) -> str:
        return " ".join([*(f"log2{name}={power}" for name, power in self.powers.items()), self.rated])

    @property
    def rated(self) -> str:
        return f"rate={self.rate:g}"

    def beats(self, other: Point) -> bool:
        """By its rate, or with the same gamma and rate by a smaller C."""
        same = self.rate == other.rate and self.powers.get("g") == other.powers.get("g")
        return self.rate > other.rate or (same and self.powers.get("c", 0) < other.powers.get("c", 0))


def _points(
    X: Any,
    y: NDArray[Any],
    weights: Any,
    count: int,
    names: tuple[str, ...],
    todo: list[tuple[float, ...]],
    machine: dict[str, Any],
    shown: bool,
) -> Iterator[Point]:
    """Yield the points of the powers ``todo``, each of which has a power for each of the names "c" and "g"."""
    import numpy as np

    import clsvm
    from clsvm.model_selection import SVCSearchCV

    if not todo:
        return
    _, one_each, index = np.unique(y, return_index=True, return_inverse=True)
    by_class = None if weights is None else dict(enumerate(weights[one_each].tolist()))  # (rates count rows)
    folds = splits(index, count, True)
    parameters = [{"c": "C", "g": "gamma"}[name] for name in names]
    values = [{name: [2.0**power] for name, power in zip(parameters, at, strict=True)} for at in todo]
    svc = clsvm.SVC(**machine, class_weight=by_class)
    found = SVCSearchCV(svc, values, cv=folds, refit=False, verbose=int(shown)).fit(X, index).cv_results_
    scores = np.stack([found[f"split{k}_test_score"] for k in range(len(folds))], axis=1)
    sizes = np.array([len(test) for _, test in folds])
    for at, row in zip(todo, scores, strict=True):
        rate = 100 * (row @ sizes) / sizes.sum()
        yield Point(dict(zip(names, at, strict=True)), float(f"{rate:g}"))  # (as svm-train prints it, for ties)
