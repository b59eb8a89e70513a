"""How the seconds of a fit grow with the rows: ours beside the peers, on the first rows of a set, twice as many each
time, until a fit takes longer than the limit.

Each solver has a process of its own, in which a first fit of few rows builds the programs and is not timed; the fits
take turns. A fit that is not done at the limit is ended, and so is its solver's series. The exponent is the slope of a
straight line through log seconds over log rows, by least squares, on the UPPER largest numbers of rows: of the solver's
own, and of those that all solvers have, since a solver that is slower ends earlier, where exponents are smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import check, sets, solvers, table
from benchmarks.command import (
    DATA,
    PEERS,
    PLOT,
    Asked,
    Command,
    Part,
    in_own_process,
    number,
    option,
    peers,
    repeats,
    sets_of,
)
from benchmarks.fits import LOOSE
from benchmarks.solvers import Contestant, at_work
from benchmarks.table import Row, Shown, picture, shown

FIRST = 1000  # rows of the first fits
UPPER = 4  # points of an exponent
ONCE, TWICE = 1 / 2, 1 / 6  # of the limit: a first fit that takes longer is the only one; more than two only below this
ALL = 1.5  # times the last number of rows: a set that has more is fitted whole as well


def sizes(n: int) -> Iterator[int]:
    """Yield FIRST, twice as many, and so on, and all n where there are by far more than the last of these."""
    size = FIRST
    while size <= n:
        yield size
        size *= 2
    if n >= ALL * size / 2 or size == FIRST:
        yield n


def series(name: str, asked: Asked) -> Row:
    """Return the fits of each number of rows, and the exponents of each solver, by its own and by common ones."""
    problem = sets.load(name, asked.data)
    X, y, gamma = problem.X, problem.y, problem.gamma
    points: list[Row] = []
    given, first = solvers.parameters(asked.C, gamma), min(FIRST, len(y))
    load, ours = partial(sets.load, name, asked.data), {"device": asked.device}
    entered = [(*one, (load, *one[:2], given, ours, first)) for one in solvers.entered(asked.peers, X, asked.repeats)]
    with at_work(asked.limit, solvers.fitting, entered) as made:
        for n in sizes(min(asked.rows or len(y), len(y))):
            if going := [one for one in made if not one.failed]:
                points.append({"n": n, "rows": _rows(going, n, problem, asked)})
    seconds = {name: seconds_of(points, name) for name in ("clsvm", *asked.peers)}
    shared = set.intersection(*(set(found) for found in seconds.values()))
    return {
        "set": name, "n": len(y), "d": X.shape[1], "C": asked.C, "gamma": gamma, "tol": solvers.TOL, "points": points,
        "exponents": {name: exponent(found) for name, found in seconds.items()},
        "common": {name: exponent({n: found[n] for n in shared}) for name, found in seconds.items()},
    }  # fmt: skip


def _rows(going: list[Contestant], n: int, problem: sets.Problem, asked: Asked) -> list[Row]:
    for one in going:
        one.seconds = []
    for _ in range(asked.repeats):
        for one in going:
            most = asked.limit * (TWICE if len(one.seconds) > 1 else ONCE) or np.inf
            if min(one.seconds, default=0.0) <= most:
                one.time(n)
    X, y, gamma = problem.X, problem.y, problem.gamma
    rows: list[Row] = []
    for one in going:
        found = one.ask("solution")
        solved = {} if found is None else check.solved(found, X[:n], y[:n], asked.C, gamma)
        rows.append(one.row() | {"misses": []} | solved)
    check.judge(rows, solvers.TOL, LOOSE)
    return rows


def seconds_of(points: Sequence[Mapping[str, Any]], solver: str) -> dict[int, float]:
    """Return the seconds of a solver's fits that ended, by the number of rows, with one form of its input.

    The form is that of the most fits that count, and among these the fastest for the most rows.
    """
    by_form: dict[str, dict[int, Mapping[str, Any]]] = {}
    for point in points:
        for row in point["rows"]:
            if row["solver"] == solver and not row["failed"]:
                by_form.setdefault(row.get("form", ""), {})[point["n"]] = row

    def rank(fits: Mapping[int, Mapping[str, Any]]) -> tuple[int, float]:
        return -sum(not row.get("misses") for row in fits.values()), float(fits[max(fits)]["seconds"])

    return {n: row["seconds"] for n, row in min(by_form.values(), key=rank, default={}).items()}


def exponent(seconds: Mapping[int, float]) -> Row | None:
    """Return the slope of log seconds over log rows on the UPPER largest numbers of rows; None of fewer than two."""
    upper = sorted(seconds)[-UPPER:]
    if len(upper) < 2:
        return None
    slope = np.polyfit(np.log(upper), np.log([seconds[n] for n in upper]), 1)[0]
    return {"exponent": float(slope), "from": upper[0], "to": upper[-1]}


def _show(result: Row) -> Shown:
    rows: list[Row] = []
    notes = [f"{one['set']}: {one['error']}" for one in result["sets"] if "error" in one]
    for one in (one for one in result["sets"] if "points" in one):
        name = f"{one['set']}, C = {one['C']:g}"
        for point in one["points"]:
            best, said = table.compared([{**one, **point, "set": f"{name}, {point['n']} rows"}])
            notes += said
            cells = {row["solver"]: row["failed"] or f"{row['took']:.3g}" + "*" * bool(row["misses"]) for row in best}
            rows.append({"label": name, "n": point["n"], **cells})
            rows[-1] |= {f"{row['solver']} times": f"{row['times']:.2f}" for row in best if row["times"]}
        for words, slopes in (("exponent", one["exponents"]), ("of the same rows", one["common"])):
            found = {who: "{exponent:.2f} ({from}-{to})".format_map(slope) for who, slope in slopes.items() if slope}
            rows.append({"label": name, "n": words, **found})
    columns: list[table.Column] = [("set", "{label}"), ("rows", "{n}"), ("clsvm s", "{clsvm}")]
    for peer in PEERS:
        columns += [(f"{peer} s", f"{{{peer}}}"), ("times ours", f"{{{peer} times}}")]
    words = (
        "exponent: least squares of log seconds over log rows on the four largest numbers of rows (from-to), of each "
        "solver's and of those that all have"
    )
    return shown(result, columns, rows, words, table.CHECKED, *notes)


def _holds(result: Row) -> bool:
    """Return whether each series of ours has a fit, and all that ended count."""
    for one in result["sets"]:
        ours = [row for point in one.get("points", ()) for row in point["rows"] if row["solver"] == "clsvm"]
        if not any("seconds" in row for row in ours) or any(row["misses"] for row in ours):
            return False
        if any(row["failed"] and not row["too_long"] for row in ours):
            return False
    return True


def draw(result: Row, path: Path) -> None:
    """Draw a panel for each series."""
    measured = [one for one in result["sets"] if one.get("points")]
    with picture(result, path, max(1, len(measured))) as panels:
        for axes, one in zip(panels, measured, strict=False):
            for name, slope in one["exponents"].items():
                if found := seconds_of(one["points"], name):
                    words = f"{name}, exponent {slope['exponent']:.2f}" if slope else name
                    axes.loglog([*found], [*found.values()], marker="o", markersize=4, label=words)
            axes.set(
                title=f"{one['set']}, d = {one['d']}, C = {one['C']:g}", xlabel="rows n", ylabel="seconds of a fit"
            )


def _measure(asked: Asked) -> Row:
    found = []
    for name in asked.sets:
        for C in asked.C:
            found.append(in_own_process(series, name, argparse.Namespace(**{**vars(asked), "C": C})) | {"C": C})
    return {"limit": asked.limit, "sets": found}


COMMAND = Command(
    "growth",
    "seconds of a fit over the rows, ours and the peers', with exponents",
    (
        sets_of(sets.BINARY, ("covtype", "mnist8")),
        option("--C", type=float, nargs="+", default=[1.0, 100.0], help="a series for each"),
        number("--rows", None, "of a fit at most"),
        number("--limit", 60.0, "seconds of a fit, which end a solver's series; 0: none, in one process"),
        peers(), DATA, repeats(3, "fits of each solver, one or two where it is slow"), PLOT,
    ),
    Part(_measure, _show, _holds, draw),
)  # fmt: skip
