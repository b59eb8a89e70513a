"""Studies of Nyström kernel machines: the tables and figures of Meanti et al. 2020 (Kernel methods through the roof).

table5    seconds to train and test errors beside SVC and LIBSVM, all with the same rbf kernel
ablation  what each part gains (appendix A.1): from plain NumPy on, one part added at a time. All solve the same problem
          from the same inducing points by :class:`clsvm.nystrom.newton.Newton` to the same residual, whose norm is the
          preconditioner's: the objectives, compared with the least of them, say that solutions are as good
features  seconds of the product K(X, C)'(K(X, C) v) over the number of features, beside KeOps (figure 8)
curves    test errors against seconds: SVMs on ever more rows, Falkon on all rows with ever more inducing points
growth, outofcore: see benchmarks/larger.py
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.svm import SVC

import clsvm
from benchmarks import larger, solvers, table
from benchmarks.command import DATA, PLOT, Asked, Command, Part, chosen, number, option, peers, repeats, several
from benchmarks.falkon import (
    BLOCK,
    FALKON_SETS,
    TOL,
    NumPyCross,
    Split,
    draw_passes,
    features,
    passes_hold,
    score,
    show_passes,
)
from benchmarks.solvers import timed, told
from benchmarks.table import Row, Shown, label, percent, picture, shown
from clsvm.distribute import call
from clsvm.gram import layouts
from clsvm.gram.cross import Cross, kernel_matrix
from clsvm.kernels import make
from clsvm.losses import LOSSES
from clsvm.nystrom import newton
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.nystrom.rows import RowBlock, RowOperator, Task
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
WARM = 1000  # rows of a first fit that only builds programs


def over_sets(
    study: str, measure: Callable[[str, Asked], Row], usual: Sequence[str], further: Sequence[str] = ()
) -> Callable[[Asked], Row]:
    """Return a function that measures the sets asked for, by default the ``usual`` ones; it refuses all others."""

    def every(asked: Asked) -> Row:
        names = chosen("this study", asked.sets or usual, (*usual, *further))
        found = [measure(name, asked) for name in names]
        return {"study": study, "limit": asked.limit, "centers": asked.centers or 2000, "sets": found}

    return every


def fitted(model: Any, split: Split, n: int, classes: bool) -> Row:
    """Return seconds and test error of a fit on the first n rows; a fit on few rows has built the programs."""
    X, y, X_test, y_test = split
    gc.collect()
    model.fit(X[: min(n, WARM)], y[: min(n, WARM)])
    row = {"solver": type(model).__name__, "rows": n, "seconds": timed(lambda: model.fit(X[:n], y[:n]))[0]}
    row |= {"vectors": model.support_vectors_.shape[0], "error": score(model.predict, X_test, y_test, classes)}
    return row | {"converged": bool(model.fit_report_.converged)}


def _converged(result: Row) -> bool:
    return all(row.get("converged", True) for one in result["sets"] for row in one["rows"])


def _rows(result: Row) -> list[Row]:
    return [row | {"label": label(one), "one": one} for one in result["sets"] for row in one["rows"]]


# Table 5.

PAPER = {"mnist": {"Falkon": 10.9, "Falkon in core": 6.5, "ThunderSVM": 19.6}}  # seconds on two GPUs


def table5(name: str, asked: Asked) -> Row:
    """Fit Falkon, SVC and LIBSVM on a set."""
    recipe, m = FALKON_SETS[name], asked.centers or 2000
    X, y, *tests = recipe.make(asked.data)
    split = X[: asked.rows], y[: asked.rows], *tests
    given = {"gamma": recipe.gamma, "device": asked.device, "random_state": 0}
    models = (
        clsvm.FalkonClassifier(n_centers=m, penalty=recipe.penalty, tol=TOL, **given),
        clsvm.SVC(C=recipe.C, **given),
    )
    n = len(split[1])
    rows = [fitted(model, split, n, True) | {"note": ""} for model in models]
    if "libsvm" in asked.peers:
        rows.append(_libsvm(SVC(C=recipe.C, gamma=recipe.gamma, cache_size=solvers.CACHE_MB), asked, split))
    numbers = told(recipe, "gamma", "C", "penalty") | {"paper": PAPER.get(name, {})}
    return {"set": name, "n": n, "d": X.shape[1], **numbers, "rows": rows}


def _libsvm(model: SVC, asked: Asked, split: Split) -> Row:
    """Return the seconds of all rows: by the square of the rows where fewer are fitted; then the error is theirs."""
    X, y, X_test, y_test = split
    n, some = len(y), min(len(y), asked.libsvm_rows)
    (form,) = solvers.forms("libsvm", X)
    rows = solvers.formed(X[:some], form)
    seconds, _ = timed(lambda: model.fit(rows, y[:some]))
    error = score(model.predict, solvers.formed(X_test, form), y_test, True)
    note = "" if some == n else f"extrapolated from {some} rows with the square of the rows"
    row = {"solver": "LIBSVM", "form": form, "rows": some, "vectors": len(model.support_vectors_), "note": note}
    row |= {"measured_seconds": seconds, "measured_error": error}
    return row | {"seconds": seconds * (n / some) ** 2, "error": error if some == n else None}


def _show_table5(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("solver", "{solver}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("times Falkon's", lambda row: f"{row['seconds'] / row['one']['rows'][0]['seconds']:.1f}"),
        ("test error %", lambda row: f"{100 * (row['error'] or row['measured_error']):.2f}"), ("note", "{note}"),
    )  # fmt: skip
    title = f"Falkon on {result['centers']} inducing points beside SVMs: seconds to train and test errors"
    return shown(title, columns, _rows(result), left=2)


# Curves.

FIRST = 1000  # rows of the first SVM
CENTERS = (100, 200, 500, 1000, 2000, 4000)


def curves(name: str, asked: Asked) -> Row:
    """Return the points of a set; an SVM that takes longer than the limit is the last one."""
    recipe = FALKON_SETS[name]
    X, y, *tests = recipe.make(asked.data)
    some = np.random.default_rng(0).permutation(len(y))[: asked.rows or recipe.most]  # (ijcnn1 is a time series)
    points = _points(name, (X[some], y[some], *tests), asked)
    rows = [{**row, "machine": row.pop("solver")} for row in points]
    numbers = {"classes": recipe.epsilon is None, **told(recipe, "gamma", "penalty", "C", "epsilon")}
    return {"set": name, "n": len(some), "d": X.shape[1], **numbers, "rows": rows}


def _points(name: str, split: Split, asked: Asked) -> Iterator[Row]:
    recipe, most = FALKON_SETS[name], len(split[1])
    classes, n, seconds = recipe.epsilon is None, 0, 0.0
    given: Row = {"gamma": recipe.gamma, "device": asked.device}
    while seconds <= asked.limit and n < most:
        n = min(2 * n or FIRST, most)
        svr: Row = {} if classes else {"epsilon": recipe.epsilon}
        point = fitted((clsvm.SVC if classes else clsvm.SVR)(C=recipe.C, **svr, **given), split, n, classes)
        seconds = point["seconds"]
        yield point
    given |= {"penalty": recipe.penalty, "tol": TOL, "random_state": 0}
    for m in CENTERS:
        if m <= min(most, asked.centers or most):
            model = (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(n_centers=m, **given)
            yield fitted(model, split, most, classes)


def _show_curves(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("machine", "{machine}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("test error", lambda row: f"{row['error']:.2%}" if row["one"]["classes"] else f"{row['error']:.4f}"),
    )  # fmt: skip
    title = f"test errors against seconds; SVMs on ever more rows, until a fit takes {result['limit']:g} s"
    return shown(title, columns, _rows(result), left=2)


def draw_errors(panels: Sequence[Any], sets: Sequence[Row]) -> None:
    """Draw the test error of each set over the seconds of a fit into a panel."""
    for axes, one in zip(panels, sets, strict=True):
        for name in dict.fromkeys(row["machine"] for row in one["rows"]):
            points = [row for row in one["rows"] if row["machine"] == name]
            errors = [row["error"] * (100 if one["classes"] else 1) for row in points]
            axes.semilogx([row["seconds"] for row in points], errors, marker="o", label=name)
        error = "test error, %" if one["classes"] else "root of the mean squared error"
        axes.set(title=f"{one['set']}, {one['n']} rows", xlabel="seconds of a fit", ylabel=error)


def _draw_curves(result: Row, path: Path) -> None:
    with picture(result, path, len(result["sets"])) as panels:
        draw_errors(panels, result["sets"])


# Ablation.

ROWS = 116_000  # of covtype: a quarter of those that are trained on
MOST = 1000  # steps
TWO_CLASSES = ("synthetic", "ijcnn1", "covtype")


@dataclass(frozen=True)
class Added:
    """What a row of the table has: products in a dtype, ours or NumPy's; a preconditioner of more rows than centres; K
    kept where memory holds it."""

    name: str
    dtype: str = "float32"
    ours: bool = True
    more: bool = False
    keep: bool = False


PARTS = (
    Added("NumPy, float64", "float64", ours=False),
    Added("+ float32 products", ours=False),
    Added("+ generated OpenCL products"),
    Added("+ preconditioner of more rows than centres", more=True),
    Added("+ K kept where that is faster", more=True, keep=True),
)


@dataclass(frozen=True)
class Posed:
    """Rows (n, d), signs y (n,), centres (m, d), and which rows they are."""

    X: Any
    y: Vector
    C: Any
    places: NDArray[np.intp] | None
    gamma: float
    penalty: float
    device: Any


class OneBlock:
    """A block of all rows, in this thread: as much of :class:`clsvm.distribute.Parts` as a solver asks for."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block
        self.sizes = [block.n]

    def ask(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Return what the block answers to the one question."""
        return [call(self._block, name, given[0] or ())]


def ablation(asked: Asked) -> Row:
    """Solve the same problem with each part; objectives, compared with the least, say that solutions are as good."""
    name, *_ = chosen("this study", asked.sets or ["covtype"], TWO_CLASSES)
    recipe = FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(asked.data)
    n = min(len(y), asked.rows or ROWS)
    places = np.sort(np.random.default_rng(0).permutation(n)[: asked.centers or 2000])
    posed = Posed(X[:n], y[:n].astype(np.float64), X[places], places, recipe.gamma, recipe.penalty, asked.device)
    rows = [_ablated(part, posed, X_test, y_test) for part in PARTS]
    least = min(row["objective"] for row in rows)
    for before, row in zip([rows[0], *rows], rows, strict=False):
        row["above_least"] = row["objective"] / least - 1
        row["gain"] = before["seconds"]["total"] / row["seconds"]["total"]
    numbers = told(recipe, "gamma", "penalty") | {"tol": TOL, "centers": len(places)}
    return {"study": "ablation", "set": name, "n": n, "d": X.shape[1], **numbers, "rows": rows}


def _ablated(part: Added, posed: Posed, X_test: Any, y_test: Any) -> Row:
    _solve(part, replace(posed, X=posed.X[:WARM], y=posed.y[:WARM], places=None), most=2)  # builds programs
    found, row = _solve(part, posed, MOST)
    values = NumPyCross(X_test, posed.C, posed.gamma, "float32").forward(found.alpha)[0]
    row |= told(found, "steps", "newton_steps", "passes", "residual", "objective", "exact") | {"part": part.name}
    return row | {"converged": found.status.converged, "error": float(np.mean((values > 0) != (y_test > 0)))}


def _solve(part: Added, posed: Posed, most: int) -> tuple[newton.Result, Row]:
    """Return what was found; seconds by what they were spent on, the sample's size and where K was."""
    with ExitStack() as stack:
        times = [perf_counter()]
        cross, exact = _products(part, posed, stack)
        times.append(perf_counter())
        P = Preconditioner(kernel_matrix(posed.C, gamma=posed.gamma, dtype="float64", device=posed.device))
        sample = _sampled(cross, P, posed) if part.more else posed.places
        times.append(perf_counter())
        task = Task(LOSSES["squared"], posed.y[None], np.ones(cross.n), np.zeros(1), posed.penalty)
        blocks: Any = OneBlock(RowBlock(cross, exact, task))
        rows = RowOperator(blocks, task, cross.m, lambda i: (sample,))
        # (float32's for all: it is how well steps are solved before the residual is computed anew)
        solver = newton.Newton(rows, P, TOL, most)
        solver.fine = newton.FINE["float32"]
        found = solver.run(None)
        times.append(perf_counter())
    layout, made, solved = np.diff(times).tolist()
    weighed = found.weighing
    seconds = {"layout": layout, "preconditioner": made + weighed, "conjugate gradients": solved - weighed}
    seconds["total"] = sum(seconds.values())
    where = cross.describe() if part.ours else f"NumPy, blocks of {BLOCK} rows"
    return found, {"seconds": seconds, "sample": len(posed.C if sample is None else sample), "layout": where}


def _products(part: Added, posed: Posed, stack: ExitStack) -> tuple[Any, Callable[[], Any] | None]:
    """Return K(X, C) as the solver takes it, and what makes the same in float64."""
    if not part.ours:
        plain = partial(NumPyCross, posed.X, posed.C, posed.gamma)
        return plain(part.dtype), None if part.dtype == "float64" else partial(plain, "float64")
    stream = stack.enter_context(Stream(posed.device))
    kernel = make("rbf", gamma=posed.gamma)
    given = stream, posed.X, posed.C, kernel, layouts.choose(stream.profile, posed.X, kernel.spec)
    finest = stream.profile.finest
    finer = None if finest == part.dtype else partial(Cross, *given, finest, 1, keep=False)
    return Cross(*given, part.dtype, 1, keep=part.keep), finer


def _sampled(cross: Cross, P: Preconditioner, posed: Posed) -> NDArray[np.intp] | None:
    """Return the rows of which the preconditioner is made, as a fit draws them."""
    s = sampled(cross.n, cross.m, 1, cross.cost, TOL)
    if s <= cross.m:
        return posed.places
    sample = np.sort(np.random.default_rng(1).permutation(cross.n)[:s])
    P.sample(cross.values(sample), posed.penalty)
    return sample


def _show_ablation(result: Row) -> Shown:
    columns = (
        ("what", "{part}"), ("preconditioner of rows", "{sample}"), ("s of it", "{seconds[preconditioner]:.3g}"),
        ("steps", "{steps}"), ("s of them", "{seconds[conjugate gradients]:.3g}"), ("s in all", "{seconds[total]:.3g}"),
        ("gain", "{gain:.2f}"), ("F above the least", "{above_least:.1e}"),
        percent("test %", "error"),
    )  # fmt: skip
    words = f"{label(result)}, m = {result['centers']}, residual {result['tol']:g}; gain: over the row before"
    return shown(words, columns, result["rows"])


FEATURES = (1, 3, 10, 30, 100, 300, 784)
STUDIES = {
    "table5": Part(over_sets("table5", table5, ("mnist", "wide")), _show_table5, _converged),
    "ablation": Part(
        ablation,
        _show_ablation,
        lambda result: all(row["converged"] and row["above_least"] <= 1e-3 for row in result["rows"]),
    ),
    "features": Part(
        lambda asked: {"study": "features", **features(asked, FEATURES)}, show_passes, passes_hold, draw_passes
    ),
    "curves": Part(
        over_sets("curves", curves, ("kin40k", "ijcnn1", "covtype"), ("synthetic",)),
        _show_curves,
        _converged,
        _draw_curves,
    ),
    **larger.STUDIES,
}
COMMAND = Command(
    "study",
    "studies of Nyström kernel machines: beside SVMs and KeOps, what each part gains, growth with the rows, tiles",
    (
        option("study", choices=tuple(STUDIES), help="which one"),
        several("--sets", tuple(FALKON_SETS), None, "; the study's own"),
        peers(("keops", "libsvm"), ("keops", "libsvm")),
        number("--centers", None, "m, the largest of them in curves"),
        number("--rows", None, "n at most, the largest of them in growth"),
        number("--libsvm-rows", 5000, "rows that LIBSVM is fitted on, table5"),
        number("--limit", 60.0, "seconds of a fit or a pass, curves, features"),
        option("--memory-limit", default="400MB", help="of the device in growth"),
        option("--sizes", type=int, nargs="+", default=[2000, 4000, 6000, 8000, 12000], help="of matrices, outofcore"),
        option("--dtypes", nargs="+", choices=tuple(larger.APART_BY), default=[*larger.APART_BY], help="of them"),
        repeats(3, "of a product in features and of a factor in outofcore, after the cold one"), PLOT, DATA,
    ),
    STUDIES,
    lambda given: given["study"],
)  # fmt: skip
