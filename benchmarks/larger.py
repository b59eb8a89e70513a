"""Fits of more data than a memory limit allows.

larger: exact SVMs within a quarter of the rows' bytes, interleaved with the same fit in core, and an SVM of a mapped
file that is larger than the process's memory. A result is correct if the objectives agree up to SAME, the bytes stay
within the limit, and the time is at most LOSS times that in core. ``mapped`` and ``huge`` are files of two classes with
few support vectors.

Two studies are here as well. growth: seconds of an iteration of conjugate gradients over the rows of a mapped file,
within a memory limit. outofcore: figure 7 of Falkon's paper (Meanti et al. 2020), Cholesky factors and LAUUM in tiles
on one device, beside LAPACK in core.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

import clsvm
from benchmarks import table
from benchmarks.boostsvm import cases
from benchmarks.command import DATA, Asked, Command, Part, each_set, number, repeats, sets_of
from benchmarks.predict import STATUS, resident
from benchmarks.solvers import fields_of, interleaved, later
from benchmarks.table import Row, Shown, shown
from clsvm import linalg
from clsvm.linalg.factors import usual_tile
from clsvm.opencl.memory import parse_bytes

SETS = ("gisette", "mnist8", "mapped", "huge")
CACHE = 10  # MB of the row cache
SHARE, LOSS, SAME = 4, 1.5, 1e-5
WIDE, PIECE = 2000, 4096  # columns of a mapped file, rows that are written at a time
APART, ALONG, ACROSS = 1.5, 0.5, 0.1  # half the distance of the classes, deviation along it, deviation across it
C, GAMMA = 1.0, 0.05  # for the mapped files
ROWS = 100_000  # of ``mapped``
LIMIT, MOST, RESIDENT = 1 << 30, 120.0, 2 << 30  # of ``huge``: device bytes, seconds, anonymous bytes of the process
EVERY = 0.05  # seconds between readings of the process's memory


def larger_set(name: str, asked: Asked) -> Row:
    """Fit one data set in core and within a quarter of X's bytes, interleaved; fit ``huge`` once, within LIMIT."""
    with TemporaryDirectory() as folder:
        numbers = C, GAMMA
        if name in ("mapped", "huge"):
            n = ROWS if name == "mapped" else int(asked.bytes) // (4 * WIDE)
            X, y = mapped(Path(folder) / "rows.npy", n, WIDE, PIECE, _clouds)
        else:
            case = cases.load(name, folder=asked.data)
            X, y, numbers = np.ascontiguousarray(case.X), case.y, (case.C, case.gamma)
        limit = LIMIT if name == "huge" else X.nbytes // SHARE
        found: Row = {"set": name, "n": X.shape[0], "d": X.shape[1], "bytes": X.nbytes, "limit": limit}
        fit = partial(_fit, X, y, *numbers, asked.device)
        if name == "huge":
            with watched() as peak:
                found["limited"] = fit(memory_limit=limit, max_time=MOST)
            return found | {"anonymous": peak[0]}
        calls = {"in core": fit, "limited": partial(fit, memory_limit=limit)}
        for kind, (seconds, row) in interleaved(calls, asked.repeats).items():
            found[kind] = row | {"seconds": later(seconds)}
        return found | {"times": found["limited"]["seconds"] / found["in core"]["seconds"]}


KEPT = ("status", "primal", "dual", "violation", "outer_steps", "rows_computed", "bytes_held", "layout")


def _fit(X: Any, y: Any, cost: float, gamma: float, device: str | None, **given: Any) -> Row:
    report = clsvm.SVC(C=cost, gamma=gamma, cache_size=CACHE, device=device, **given).fit(X, y).fit_report_
    return {"C": cost, "gamma": gamma, "seconds": report.seconds["total"]} | fields_of(report, *KEPT)


def mapped(path: Path, n: int, d: int, piece: int, made: Callable[[int, Any], Any]) -> tuple[Any, Any]:
    """Return X (n, d) float32 in a mapped file, and y (n,).

    ``made`` gets the index of the first row of a piece and the piece, whose rows are normal. It returns the piece's
    targets, and may change its rows.
    """
    rng, out = np.random.default_rng(0), np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    y = np.empty(n)
    for first in range(0, n, piece):
        rows = rng.standard_normal((min(piece, n - first), d), np.float32)
        y[first : first + piece] = made(first, rows)
        out[first : first + piece] = rows
    out.flush()
    return np.load(path, mmap_mode="r"), y


def _clouds(first: int, rows: Any) -> Any:
    """Move rows to two classes at the distance 2 APART in the first column, and return their labels."""
    y = np.where(np.arange(first, first + len(rows)) % 2, 1.0, -1.0)
    rows[:, 0] = ALONG * rows[:, 0] + APART * y
    rows[:, 1:] *= ACROSS
    return y


@contextmanager
def watched() -> Iterator[list[int]]:
    """Yield a list of one number: the peak of the process's anonymous memory in the context, in bytes; 0 if unknown."""
    peak, over = [0], threading.Event()

    def read() -> None:
        while STATUS.exists() and not over.wait(EVERY):
            peak[0] = max(peak[0], resident("RssAnon") or 0)

    watcher = threading.Thread(target=read, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()


def _apart(one: Row) -> float:
    return float(abs(one["limited"]["dual"] / one["in core"]["dual"] - 1))


def _show(result: Row) -> Shown:
    def mega(title: str, value: Callable[[Row], float]) -> table.Column:
        return title, lambda one: f"{value(one) / 1e6:.1f}"

    columns: tuple[table.Column, ...] = (
        ("set", table.label), mega("MB", lambda one: one["bytes"]), mega("limit MB", lambda one: one["limit"]),
        mega("held MB", lambda one: one["limited"]["bytes_held"]),
        ("in core s", "{in core[seconds]:.2f}"), ("limited s", "{limited[seconds]:.2f}"), ("times", "{times:.2f}"),
        ("objective apart", lambda one: f"{_apart(one):.1e}"), mega("own memory MB", lambda one: one["anonymous"]),
    )  # fmt: skip
    return shown(result, columns, result["sets"])


def right(one: Row) -> bool:
    """Return whether the fits of a data set are correct and within their limits."""
    if one["limited"]["bytes_held"] > one["limit"]:
        return False
    if "anonymous" in one:
        return bool(one["anonymous"] < RESIDENT)
    return one["times"] <= LOSS and _apart(one) <= SAME


COMMAND = Command(
    "larger",
    "SVMs within a memory limit below the size of the rows, beside the same fits in core",
    (
        sets_of(SETS, SETS), repeats(3, "fits of each kind"), DATA,
        number("--bytes", 8.8e9, "of the file of huge, which is written to the folder for temporary files"),
    ),
    Part(each_set(larger_set), _show, lambda result: all(right(one) for one in result["sets"])),
)  # fmt: skip


# Growth: an iteration of conjugate gradients over growing numbers of rows.

MOST_ROWS, SHARES = 4_000_000, (1 / 40, 1 / 20, 1 / 8, 1 / 4, 1 / 2, 1)  # rows of the file, and shares of each fit
COLUMNS, PENALTY = 18, 1e-6  # those of SUSY in Falkon's paper
STEPS = 6  # iterations of conjugate gradients in each fit
WRITTEN = 1 << 18  # rows that are written at a time


def growth(asked: Asked) -> Row:
    """Return a row for each number of rows, and the exponent of the seconds of an iteration."""
    most = asked.rows or MOST_ROWS
    sizes = [round(share * most) for share in SHARES]
    with TemporaryDirectory() as folder:
        X, y = mapped(Path(folder) / "rows.npy", most, COLUMNS, WRITTEN, _susy)
        C = np.array(X[: min(sizes[0], asked.centers or 2000)])
        _growth(X[: sizes[0]], y[: sizes[0]], C, asked)  # builds the programs
        rows = [_growth(X[:n], y[:n], C, asked) for n in sizes]
        del X
    exponent = float(np.polyfit(np.log(sizes), np.log([row["seconds_per_step"] for row in rows]), 1)[0])
    numbers = {"d": COLUMNS, "centers": len(C), "memory_limit": parse_bytes(asked.memory_limit)}
    return {"study": "growth", **numbers, "exponent": exponent, "rows": rows}


def _susy(_: int, rows: Any) -> Any:
    return np.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2] / 2


def _growth(X: Any, y: Any, C: Any, asked: Asked) -> Row:
    times: list[float] = []
    model = clsvm.FalkonRegressor(
        center_selection=C,
        penalty=PENALTY,
        gamma=1 / COLUMNS,
        tol=1e-12,  # never reached, so that max_iter ends the fit
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
    kept = fields_of(report, "bytes_held", "layout", "dtype", "sample") | {"seconds": dict(report.seconds)}
    return {"n": len(y), "seconds_per_step": step, "times": times, **kept}


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


# Factors in tiles.

APART_BY = {"float32": 1e-5, "float64": 1e-13}  # by which a factor may differ from LAPACK's, relative to its norm
ROUTINES: dict[str, Callable[..., Any]] = {"cholesky": linalg.cholesky, "lauum": linalg.lauum}


def outofcore(asked: Asked) -> Row:
    """Time each routine, dtype and size."""
    teams: dict[str, dict[str, Any]] = {"LAPACK": {"device": "cpu"}, "one": {"device": asked.device}}
    rows = [
        {"routine": name, "dtype": dtype, "m": m} | _timed(routine, matrix(m, dtype), teams, asked.repeats)
        for dtype in asked.dtypes
        for m in asked.sizes
        for name, routine in ROUTINES.items()
    ]
    return {"study": "outofcore", "workers": list(teams), "named": [asked.device], "rows": rows}


def matrix(m: int, dtype: str) -> NDArray[Any]:
    """Return a symmetric and well conditioned matrix."""
    A = np.random.default_rng(m).random((m, m), np.float32).astype(dtype)
    A += A.T
    np.fill_diagonal(A, m)
    return A


def _timed(routine: Callable[..., Any], A: NDArray[Any], teams: dict[str, Any], count: int) -> Row:
    """Return the seconds of each team, copies of A included.

    same: whether all tiled results have the same bits. apart: the relative difference from LAPACK's result.
    """
    tile = min(len(A), usual_tile(len(A)))
    given = {name: where | ({} if name == "LAPACK" else {"tile": tile}) for name, where in teams.items()}
    calls = {name: partial(routine, A, clean=False, **where) for name, where in given.items()}
    spent, found = dict[str, list[float]](), dict[str, NDArray[Any]]()
    for name, (spent[name], result) in interleaved(calls, count + 1).items():
        found[name] = np.triu(result)
    one, reference = found["one"], found["LAPACK"]
    return {
        "tile": tile,
        "seconds": {name: later(seconds) for name, seconds in spent.items()},
        "cold": {name: seconds[0] for name, seconds in spent.items()},
        "same": all(np.array_equal(one, other) for name, other in found.items() if name != "LAPACK"),
        "apart": float(np.linalg.norm(one - reference) / np.linalg.norm(reference)),
    }


def _speedup(name: str, row: Row) -> str:
    return f"{row['seconds']['one'] / row['seconds'][name]:.2f}"


def _show_outofcore(result: Row) -> Shown:
    teams = result["workers"]
    columns: tuple[table.Column, ...] = (
        ("routine", "{routine}"), ("dtype", "{dtype}"), ("m", "{m}"), ("tile", "{tile}"),
        *((name, f"{{seconds[{name}]:.3g}}") for name in teams),
        ("of LAPACK's rate", lambda row: f"{row['seconds']['LAPACK'] / row['seconds']['one']:.2f}"),
        *((f"{name}, speedup", partial(_speedup, name)) for name in teams[2:]),
    )  # fmt: skip
    words = "U'U = A and U U', m x m, in tiles: seconds"
    if len(result["named"]) == 1 and len(teams) > 2:
        words += "; two workers of one device share its cores, so a speedup is not possible"
    return shown(words, columns, result["rows"], left=2)


STUDIES = {
    "growth": Part(
        growth,
        _show_growth,
        lambda result: all(row["bytes_held"] <= result["memory_limit"] for row in result["rows"]),
    ),
    "outofcore": Part(
        outofcore,
        _show_outofcore,
        lambda result: all(row["same"] and row["apart"] <= APART_BY[row["dtype"]] for row in result["rows"]),
    ),
}
