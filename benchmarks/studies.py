"""Studies of Nyström kernel machines: the tables and figures of Meanti et al. 2020 (Kernel methods through the roof).

table5    seconds to train and test errors beside SVC and LIBSVM, all with the same rbf kernel
ablation  what each part gains (appendix A.1): from plain NumPy on, one part added at a time
features  seconds of the product K(X, C)'(K(X, C) v) over the number of features, beside KeOps (figure 8)
growth    how a step of conjugate gradients grows with the rows of a memory-mapped file under a memory limit
curves    test errors against seconds: SVMs on ever more rows, Falkon on all rows with ever more inducing points
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

import clsvm
from benchmarks import ablation, solvers, table
from benchmarks.command import DATA, PLOT, Asked, Command, Part, chosen, number, option, peers, repeats, several
from benchmarks.falkon import (
    FALKON_SETS,
    TOL,
    Split,
    draw_passes,
    features,
    passes_hold,
    score,
    seconds_of,
    show_passes,
)
from benchmarks.table import Row, Shown, picture, shown
from clsvm.opencl.memory import parse_bytes

WARM = 1000  # rows of a fit that only builds programs


def fitted(model: Any, split: Split, n: int, classes: bool) -> Row:
    """Return seconds and test error of a fit on the first n rows; a fit on few rows has built the programs."""
    X, y, X_test, y_test = split
    gc.collect()
    model.fit(X[: min(n, WARM)], y[: min(n, WARM)])
    return {
        "solver": type(model).__name__,
        "rows": n,
        "seconds": seconds_of(lambda: model.fit(X[:n], y[:n])),
        "vectors": model.support_vectors_.shape[0],
        "error": score(model.predict, X_test, y_test, classes),
        "converged": bool(model.fit_report_.converged),
    }


def _converged(result: Row) -> bool:
    return all(row.get("converged", True) for one in result["sets"] for row in one["rows"])


# Table 5.

TRAINED, TESTED = 50000, 10000  # rows of the synthetic set
BLOCK, PILOT = 4096, 5000  # rows made at a time; rows that show how large each output is
WRONG = 0.05  # share of labels that are drawn anew
PAPER = {"mnist": {"Falkon": 10.9, "Falkon in core": 6.5, "ThunderSVM": 19.6}}  # seconds on two GPUs


def wide(
    n: int, seed: int, d: int = 3072, classes: int = 10, latent: int = 20, hidden: int = 40
) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return X (n, d) float32, as wide as CIFAR10's images, and y (n,).

    x = A z + e / 2 with z (latent,) and e (d,) normal; the class of x is the largest output of a tanh layer over z and
    a linear one, each output with mean 0 and deviation 1.
    """
    made = np.random.default_rng(0)
    A = (made.normal(size=(latent, d)) / np.sqrt(latent)).astype(np.float32)
    first = made.normal(size=(latent, hidden)) / np.sqrt(latent)
    last, bias = made.normal(size=(hidden, classes)), made.normal(size=hidden) / 2
    pilot = np.tanh(made.normal(size=(PILOT, latent)) @ first + bias) @ last
    last, mean = last / pilot.std(axis=0), (pilot / pilot.std(axis=0)).mean(axis=0)
    rng, X, y = np.random.default_rng((0, seed)), np.empty((n, d), np.float32), np.empty(n, np.intp)
    for start in range(0, n, BLOCK):
        rows = slice(start, min(start + BLOCK, n))
        z = rng.standard_normal((rows.stop - start, latent))
        X[rows] = rng.standard_normal(X[rows].shape, np.float32) / 2 + z.astype(np.float32) @ A
        labels = (np.tanh(z @ first + bias) @ last - mean).argmax(axis=1)
        drawn = rng.random(len(z)) < WRONG
        labels[drawn] = rng.integers(0, classes, int(drawn.sum()))
        y[rows] = labels
    return X, y


def _synthetic(asked: Asked) -> Split:
    n = min(TRAINED, asked.rows or TRAINED)
    return *wide(n, 1), *wide(min(TESTED, n), 2)


@dataclass(frozen=True)
class WideSet:
    """How to make a set, and its numbers: gamma of all machines, C of SVMs, penalty of ours."""

    make: Callable[[Asked], Split]
    gamma: float
    C: float
    penalty: float


WIDE_SETS = {
    "mnist": WideSet(lambda asked: FALKON_SETS["mnist"].make(asked.data), gamma=0.02, C=10, penalty=1e-6),
    "synthetic": WideSet(_synthetic, gamma=0.5 / 3072, C=1, penalty=1e-6),
}


def table5(asked: Asked) -> Row:
    """Fit Falkon, SVC and LIBSVM on each set."""
    names = chosen("this study", asked.sets or [*WIDE_SETS], WIDE_SETS)
    return {"study": "table5", "centers": asked.centers or 2000, "sets": [_table5(name, asked) for name in names]}


def _table5(name: str, asked: Asked) -> Row:
    recipe = WIDE_SETS[name]
    X, y, X_test, y_test = recipe.make(asked)
    X, y = X[: asked.rows], y[: asked.rows]
    given = {"gamma": recipe.gamma, "device": asked.device, "random_state": 0}
    m = asked.centers or 2000
    models = (
        clsvm.FalkonClassifier(n_centers=m, penalty=recipe.penalty, tol=TOL, **given),
        clsvm.SVC(C=recipe.C, **given),
    )
    rows = [fitted(model, (X, y, X_test, y_test), len(y), True) | {"note": ""} for model in models]
    if "libsvm" in asked.peers:
        rows.append(_libsvm(recipe, asked, (X, y, X_test, y_test)))
    numbers = {"gamma": recipe.gamma, "C": recipe.C, "penalty": recipe.penalty}
    return {"set": name, "n": len(y), "d": X.shape[1], **numbers, "paper": PAPER.get(name, {}), "rows": rows}


def _libsvm(recipe: WideSet, asked: Asked, split: Split) -> Row:
    """Return the seconds of all rows: by the square of the rows where fewer are fitted; then the error is theirs."""
    X, y, X_test, y_test = split
    n, some = len(y), min(len(y), asked.libsvm_rows)
    model = SVC(C=recipe.C, gamma=recipe.gamma, cache_size=solvers.CACHE_MB)
    (form,) = solvers.forms("libsvm", X)
    rows = solvers.formed(X[:some], form)
    measured = seconds_of(lambda: model.fit(rows, y[:some]))
    error = score(model.predict, solvers.formed(X_test, form), y_test, True)
    return {
        "solver": "LIBSVM",
        "form": form,
        "rows": some,
        "vectors": len(model.support_vectors_),
        "measured_seconds": measured,
        "measured_error": error,
        "seconds": measured * (n / some) ** 2,
        "error": error if some == n else None,
        "note": "" if some == n else f"extrapolated from {some} rows with the square of the rows",
    }


def _show_table5(result: Row) -> Shown:
    rows = [row | {"label": table.label(one), "one": one} for one in result["sets"] for row in one["rows"]]
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("solver", "{solver}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("times Falkon's", lambda row: f"{row['seconds'] / row['one']['rows'][0]['seconds']:.1f}"),
        ("test error %", lambda row: f"{100 * (row['error'] or row['measured_error']):.2f}"), ("note", "{note}"),
    )  # fmt: skip
    title = f"Falkon on {result['centers']} inducing points beside SVMs: seconds to train and test errors"
    return shown(title, columns, rows, left=2)


FEATURES = (1, 3, 10, 30, 100, 300, 784)


# Growth.

MOST_ROWS, SHARES = 4_000_000, (1 / 40, 1 / 20, 1 / 8, 1 / 4, 1 / 2, 1)  # rows, and those of each fit
COLUMNS, PENALTY = 18, 1e-6  # (SUSY's: sigma 3)
STEPS = 6  # of conjugate gradients in each fit
WRITTEN = 1 << 18  # rows that are written at a time


def growth(asked: Asked) -> Row:
    """Return a row for each number of rows, and the exponent of their seconds a step."""
    most = asked.rows or MOST_ROWS
    sizes = [round(share * most) for share in SHARES]
    with tempfile.TemporaryDirectory() as folder:
        X, y = written(Path(folder) / "rows.npy", most)
        C = np.array(X[: min(sizes[0], asked.centers or 2000)])
        _growth(X[: sizes[0]], y[: sizes[0]], C, asked)  # builds the programs
        rows = [_growth(X[:n], y[:n], C, asked) for n in sizes]
        del X
    exponent = float(np.polyfit(np.log(sizes), np.log([row["seconds_per_step"] for row in rows]), 1)[0])
    limit = parse_bytes(asked.memory_limit)
    return {
        "study": "growth",
        "d": COLUMNS,
        "centers": len(C),
        "memory_limit": limit,
        "exponent": exponent,
        "rows": rows,
    }


def written(path: Path, n: int) -> tuple[Any, Any]:
    """Return X (n, 18) float32, mapped from the file that it is written to, and y (n,)."""
    rng = np.random.default_rng(0)
    X, y = np.lib.format.open_memmap(path, "w+", np.float32, (n, COLUMNS)), np.empty(n)
    for first in range(0, n, WRITTEN):
        x = rng.standard_normal((min(WRITTEN, n - first), COLUMNS), np.float32)
        X[first : first + WRITTEN] = x
        y[first : first + WRITTEN] = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2
    X.flush()
    return np.load(path, mmap_mode="r"), y


def _growth(X: Any, y: Any, C: Any, asked: Asked) -> Row:
    times: list[float] = []
    model = clsvm.FalkonRegressor(
        center_selection=C,
        penalty=PENALTY,
        gamma=1 / COLUMNS,
        tol=1e-12,  # never reached: the steps are what ends it
        max_iter=STEPS,
        random_state=0,
        device=asked.device,
        memory_limit=asked.memory_limit,
        callback=lambda step, alpha, seconds: times.append(seconds),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        report = model.fit(X, y).fit_report_
    between = [later - sooner for sooner, later in pairwise(times) if later > sooner]  # (a further solve begins at 0)
    step = float(np.median(between)) if between else report.seconds["solve"] / report.passes
    kept = {key: getattr(report, key) for key in ("bytes_held", "layout", "dtype", "sample")}
    return {"n": len(y), "seconds_per_step": step, "times": times, **kept, "seconds": dict(report.seconds)}


def _show_growth(result: Row) -> Shown:
    columns: tuple[table.Column, ...] = (
        ("rows", "{n}"), ("s a step", "{seconds_per_step:.3g}"),
        ("rows a second", lambda row: f"{row['n'] / row['seconds_per_step']:.3g}"),
        ("MB held", lambda row: f"{row['bytes_held'] / 1e6:.0f}"), ("s of the fit", "{seconds[total]:.3g}"),
        ("where K is", lambda row: row["layout"].partition(";")[0]),
    )  # fmt: skip
    title = (
        f"a step of conjugate gradients, d = {result['d']}, m = {result['centers']}, memory_limit "
        f"{result['memory_limit'] / 1e6:g} MB: seconds grow with the rows to the power of {result['exponent']:.3f}"
    )
    return shown(title, columns, result["rows"], left=0)


def _draw_growth(result: Row, path: Path) -> None:
    with picture(result, path) as (axes,):
        points = [(row["n"], row["seconds_per_step"]) for row in result["rows"]]
        axes.loglog(*zip(*points, strict=True), marker="o", label=f"exponent {result['exponent']:.3f}")
        axes.set(title=f"m = {result['centers']}, d = {result['d']}", xlabel="rows n", ylabel="seconds a step")


# Curves.

FIRST = 1000  # rows of the first SVM
CENTERS = (100, 200, 500, 1000, 2000, 4000)
CURVE_SETS: dict[str, tuple[float, float | None, int | None]] = {  # C, epsilon of numbers, rows at most
    "kin40k": (10, 0.05, None),
    "ijcnn1": (32, None, None),
    "covtype": (10, None, 116_000),
    "synthetic": (1, None, None),
}


def curves(asked: Asked) -> Row:
    """Return the points of every set; an SVM that takes longer than the limit is the last one."""
    names = chosen("this study", asked.sets or ["kin40k", "ijcnn1", "covtype"], CURVE_SETS)
    return {"study": "curves", "limit": asked.limit, "sets": [_curves(name, asked) for name in names]}


def _curves(name: str, asked: Asked) -> Row:
    (C, epsilon, most), recipe = CURVE_SETS[name], FALKON_SETS[name]
    X, y, X_test, y_test = recipe.make(asked.data)
    some = np.random.default_rng(0).permutation(len(y))[: asked.rows or most]  # (ijcnn1 is a time series)
    split = X[some], y[some], X_test, y_test
    rows = [{**row, "machine": row.pop("solver")} for row in _points(name, split, asked)]
    numbers = {"gamma": recipe.gamma, "penalty": recipe.penalty, "C": C, "epsilon": epsilon}
    return {"set": name, "n": len(some), "d": X.shape[1], "classes": epsilon is None, **numbers, "rows": rows}


def _points(name: str, split: Split, asked: Asked) -> Iterator[Row]:
    (C, epsilon, _), recipe, most = CURVE_SETS[name], FALKON_SETS[name], len(split[1])
    classes, n, seconds = epsilon is None, 0, 0.0
    while seconds <= asked.limit and n < most:
        n = min(2 * n or FIRST, most)
        given = {"C": C, "gamma": recipe.gamma, "device": asked.device}
        point = fitted(clsvm.SVC(**given) if classes else clsvm.SVR(epsilon=epsilon or 0.0, **given), split, n, classes)
        seconds = point["seconds"]
        yield point
    given = {"gamma": recipe.gamma, "penalty": recipe.penalty, "tol": TOL, "random_state": 0, "device": asked.device}
    for m in CENTERS:
        if m <= min(most, asked.centers or most):
            model = (clsvm.FalkonClassifier if classes else clsvm.FalkonRegressor)(n_centers=m, **given)
            yield fitted(model, split, most, classes)


def _show_curves(result: Row) -> Shown:
    rows = [row | {"label": table.label(one), "one": one} for one in result["sets"] for row in one["rows"]]
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("machine", "{machine}"), ("rows", "{rows}"), ("vectors", "{vectors}"),
        ("s", "{seconds:.3g}"),
        ("test error", lambda row: f"{row['error']:.2%}" if row["one"]["classes"] else f"{row['error']:.4f}"),
    )  # fmt: skip
    title = f"test errors against seconds; SVMs on ever more rows, until a fit takes {result['limit']:g} s"
    return shown(title, columns, rows, left=2)


def _draw_curves(result: Row, path: Path) -> None:
    with picture(result, path, len(result["sets"])) as panels:
        for axes, one in zip(panels, result["sets"], strict=True):
            for name in dict.fromkeys(row["machine"] for row in one["rows"]):
                points = [row for row in one["rows"] if row["machine"] == name]
                errors = [row["error"] * (100 if one["classes"] else 1) for row in points]
                axes.semilogx([row["seconds"] for row in points], errors, marker="o", label=name)
            error = "test error, %" if one["classes"] else "test error, root of the mean square"
            axes.set(title=f"{one['set']}, {one['n']} rows", xlabel="seconds to train", ylabel=error)


STUDIES = {
    "table5": Part(table5, _show_table5, _converged),
    "ablation": Part(
        ablation.measure,
        ablation.show,
        lambda result: all(row["converged"] and row["above_least"] <= 1e-3 for row in result["rows"]),
    ),
    "features": Part(
        lambda asked: {"study": "features", **features(asked, FEATURES)}, show_passes, passes_hold, draw_passes
    ),
    "growth": Part(
        growth,
        _show_growth,
        lambda result: all(row["bytes_held"] <= result["memory_limit"] for row in result["rows"]),
        _draw_growth,
    ),
    "curves": Part(curves, _show_curves, _converged, _draw_curves),
}
COMMAND = Command(
    "study",
    "studies of Nyström kernel machines: beside SVMs and KeOps, what each part gains, growth with the rows",
    (
        option("study", choices=tuple(STUDIES), help="which one"),
        several("--sets", tuple(dict.fromkeys((*WIDE_SETS, *CURVE_SETS))), None, "; the study's own"),
        peers(("keops", "libsvm"), ("keops", "libsvm")),
        number("--centers", None, "m, the largest of them in curves"),
        number("--rows", None, "n at most, the largest of them in growth"),
        number("--libsvm-rows", 5000, "rows that LIBSVM is fitted on, table5"),
        number("--limit", 60.0, "seconds of a fit or a pass, curves, features"),
        option("--memory-limit", default="400MB", help="of the device in growth"),
        repeats(3, "of a product in features, after the cold one"), PLOT, DATA,
    ),
    STUDIES,
    lambda given: given["study"],
)  # fmt: skip
