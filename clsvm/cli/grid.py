"""``clsvm grid``: grid.py's flags and lines, in one process: folds share rows of K and begin at one another's ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clsvm.cli.common import READ, TEXT, Devices, MemoryLimit, Quiet, Weights, apart, reporting, require
from clsvm.cli.train import row_weights, splits

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
        typer.Option("-out", metavar="FILE", help="Where rates go. Default: FILE's name + .out; null: nowhere"),
    ] = None,
    tol: Annotated[float, typer.Option("-e", help="Tolerance of the fits.")] = 1e-3,
    weights: Weights = None,
    quiet: Quiet = False,
    device: Devices = None,
    memory_limit: MemoryLimit = None,
) -> None:
    """``clsvm grid``: see :class:`clsvm.model_selection.SVCSearchCV`."""
    asked = {"c": _powers("-log2c", log2c), "g": _powers("-log2g", log2g)}
    powers = {name: values for name, values in asked.items() if values}
    require("-v", folds, folds >= 2, "2 or more folds")
    require("-e", tol, tol > 0, "above 0")
    target = None if out == "null" else out or Path(file).name + ".out"
    with reporting(ctx):
        from clsvm import files
        from clsvm.models import svmlight

        apart([file], [target] if target else [])
        if target:
            files.check_writable(target)
        X, y = svmlight.read_problem(file)
        if (y == y[0]).all():
            raise ValueError(f"{file}: got the label {y[0]:g} alone, expected two classes or more")
        machine = {"tol": tol, "device": device, "memory_limit": memory_limit, "gamma": 1.0 / X.shape[1]}
        shown = not quiet and sys.stderr.isatty()
        lines, best = [], Point({}, -1.0)
        for point in _points(X, y, row_weights(weights or [], y), folds, powers, machine, shown):
            best = point if point.beats(best) else best
            lines.append(f"{' '.join(f'log2{name}={power}' for name, power in point.powers.items())} {point.rated}")
            if not quiet:
                at = " ".join(map(str, point.powers.values()))
                chosen = ", ".join([*(f"{name}={2.0**power}" for name, power in best.powers.items()), best.rated])
                typer.echo(f"[local] {at} {point.rate:g} (best {chosen})")
        if target:
            with files.atomic_write(target) as stream:
                stream.write("".join(f"{line}\n" for line in lines).encode())
        typer.echo(" ".join([*(str(2.0**power) for power in best.powers.values()), f"{best.rate:g}"]))


class Point(NamedTuple):
    """Powers of 2 by name, "c" and "g", and the per cent of the rows that folds without them get right."""

    powers: dict[str, float]
    rate: float

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
    powers: dict[str, list[float]],
    machine: dict[str, Any],
    shown: bool,
) -> Iterator[Point]:
    import numpy as np

    import clsvm
    from clsvm.model_selection import SVCSearchCV

    _, one_each, index = np.unique(y, return_index=True, return_inverse=True)
    by_class = None if weights is None else dict(enumerate(weights[one_each].tolist()))  # (rates count rows)
    folds = splits(index, count, True)
    names = {"c": "C", "g": "gamma"}
    values = {names[name]: [2.0**power for power in of] for name, of in powers.items()}
    svc = clsvm.SVC(**machine, class_weight=by_class)
    found = SVCSearchCV(svc, values, cv=folds, refit=False, verbose=int(shown)).fit(X, index).cv_results_
    scores = np.stack([found[f"split{k}_test_score"] for k in range(len(folds))], axis=1)
    sizes = np.array([len(test) for _, test in folds])
    for candidate, row in zip(found["params"], scores, strict=True):
        at = {name: float(np.log2(candidate[names[name]])) for name in powers}
        yield Point(at, float(100 * (row @ sizes) / sizes.sum()))
