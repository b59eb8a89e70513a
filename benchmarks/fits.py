"""Interleaved fits of clsvm and its peers, with checked solutions: data sets, small sets, grid searches, growing sets.

Solvers take turns, so that other load on the computer slows all of them. The first fit of each solver is its cold one,
and a time is the median of the later fits. A peer has a row for each form of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

import clsvm
from benchmarks import check, command, sets, solvers, table
from benchmarks.command import (
    DATA,
    PEERS,
    Asked,
    Command,
    Part,
    each_set,
    number,
    option,
    peers,
    repeats,
    sets_of,
)
from benchmarks.sets import Problem
from benchmarks.solvers import Contestant, interleaved, later, turns
from benchmarks.table import Row, Shown, shown
from clsvm.model_selection import SVCSearchCV

REPORT_ERROR = 2e-4  # by which a reported violation or gap may differ from the recomputed one without a note
LOOSE = 1e-5  # by which the coefficients of a peer, in float32, may violate the constraints


def fit_set(name: str, asked: Asked, few: bool = False) -> Row:
    """Time and check the fits of one data set. few: whether its training rows are limited, for fits of many pairs."""
    return raced(partial(sets.load, name, asked.data, few), asked)


def raced(load: Callable[[], Problem], asked: Asked) -> Row:
    """Time interleaved fits of a problem by clsvm and the peers, and check their solutions."""
    problem, tol = load(), getattr(asked, "tol", solvers.TOL)
    given = solvers.parameters(problem, tol, getattr(asked, "cache", solvers.CACHE_MB))
    with solvers.entrants(load, given, asked) as made:
        for one in turns(made):
            one.time()
        return problem.head() | {"tol": tol, "rows": judged(made, problem, tol)}


def judged(made: Sequence[Contestant], problem: Problem, tol: float) -> list[Row]:
    """Return a row for each contestant's last solution, compared with the best feasible dual objective.

    A problem with test rows also gets the accuracy of each model.
    """
    solutions = [one.ask("solution") for one in made]
    rows = [one.row() | {"misses": [], "notes": []} for one in made]
    for row, found in zip(rows, solutions, strict=True):
        row |= {"report": found.report} if found and found.report else {}
    check.judged(rows, solutions, problem, tol, LOOSE)
    for one, row in zip(made, rows, strict=True):
        if problem.X_test is not None and (model := one.ask("model")) is not None:
            found = model.predict(solvers.formed(problem.X_test, one.form))
            row["accuracy"] = float(np.mean(found == problem.y_test))
        row["notes"] = [
            f"reports {part} {row['report'][part]:.3e}, recomputed {row[part]:.3e}"
            for part in ("violation", "gap")
            if "report" in row and not abs(row["report"][part] - row[part]) <= REPORT_ERROR
        ]
    return rows


COLUMNS: tuple[table.Column, ...] = (
    *table.SOLVED, *table.CERTIFIED, ("gap", "{gap:.1e}"), ("SVs", "{n_support}"),
    table.percent("test %", "accuracy", "score"),
)  # fmt: skip


def _show(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    return shown(result, COLUMNS, rows, f"warm: median of the later fits; {table.CHECKED}", *notes, left=2)


def _command(
    name: str, words: str, default: Sequence[str], count: int, known: Sequence[str] = sets.BINARY, few: bool = False
) -> Command:
    options = (
        sets_of(known, default), peers(), DATA, repeats(count), number("--repeats-libsvm", 1, "of LIBSVM"),
        number("--tol", 1e-3, "KKT tolerance"), number("--cache", 2000.0, "MB of the kernel cache of every solver"),
    )  # fmt: skip
    part = Part(each_set(partial(fit_set, few=few)), _show, table.ours_hold)
    return Command(name, words, options, part)


# Small sets.

SMALL = ("iris", "wine", "breast_cancer", "diabetes", "digits")


def small(asked: Asked) -> Row:
    """Time fits of some hundred standardised rows, and predictions of one row, with clsvm and scikit-learn."""
    return {"rows": [_small(name, asked) for name in SMALL]}


def _standardised(name: str) -> Problem:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X = solvers.formed(StandardScaler().fit_transform(X), "dense float64")
    return Problem(name, X, y, None, y, 1.0, 1 / (X.shape[1] * X.var()), name == "diabetes")


def _small(name: str, asked: Asked) -> Row:
    problem, asked.peers, asked.repeats_libsvm = _standardised(name), ("libsvm",), asked.repeats
    X, names = problem.X, {"clsvm": "clsvm", "libsvm": "scikit-learn"}
    answers: dict[str, list[float]] = {who: [] for who in names.values()}
    with solvers.entrants(partial(_standardised, name), {}, asked) as made:
        for one in turns(made):
            one.time()
        for i, one in enumerate(turns(made)):
            call = partial(one.ask("model").predict, X[i % len(X)][None])
            answers[names[one.name]].append(solvers.timed(call)[0])
        rows = judged(made, problem, solvers.TOL)
    kept = ("primal", "dual", "gap", "violation", "n_support", "box", "off_sum")
    return problem.head() | {
        "fit_ms": {names[one.name]: 1e3 * later(one.seconds) for one in made},
        "answer_ms": {who: 1e3 * later(seconds) for who, seconds in answers.items()},
        "solutions": {names[row["solver"]]: {key: row[key] for key in kept} for row in rows},
        "misses": rows[0]["misses"],
    }


def _ratio(key: str, row: Row) -> str:
    return f"{row[key]['scikit-learn'] / row[key]['clsvm']:.2f}"


def _show_small(result: Row) -> Shown:
    columns: list[table.Column] = [("set", table.label)]
    for title, key in (("fit", "fit_ms"), ("one row", "answer_ms")):
        columns += [
            (f"{title}, ours", f"{{{key}[clsvm]:.3g}}"), ("scikit-learn", f"{{{key}[scikit-learn]:.3g}}"),
            ("ratio", partial(_ratio, key)),
        ]  # fmt: skip
    columns += [("violation", "{solutions[clsvm][violation]:.1e}"), ("misses", lambda row: "; ".join(row["misses"]))]
    words = "milliseconds; ratio: scikit-learn's time over clsvm's; violation: recomputed in float64"
    return shown(result, columns, result["rows"], words)


# Grid searches.

GRIDS = {
    "moderate": {"C": [0.1, 0.3, 1, 3, 10, 30], "gamma": [0.01, 0.03, 0.1, 0.3]},
    "short": {"C": [0.1, 1, 10, 100], "gamma": [0.005, 0.02, 0.08]},
}
FOLDS, APART = 5, 0.002  # APART: by which the mean scores of a candidate may differ
FEW = 200  # rows of a peer's first fit, which is not timed


def search(asked: Asked) -> Row:
    """Time SVCSearchCV ``repeats`` times, and then scikit-learn's search once with each form of each peer."""
    data, grid = sets.load("a9a", asked.data), GRIDS[asked.grid]
    X, y = solvers.formed(data.X[: asked.rows], "dense float64"), data.y[: asked.rows]
    own = SVCSearchCV(clsvm.SVC(device=asked.device), grid, cv=FOLDS, refit=False)
    seconds, ours = interleaved({"clsvm": lambda: clone(own).fit(X, y)}, asked.repeats)["clsvm"]
    rows = [_found("clsvm", solvers.native(X), ours, seconds, ours)]
    for peer in asked.peers:
        rows += searched(peer, grid, X, y, ours)
    return {"set": f"a9a, first {asked.rows} rows", "grid": grid, "folds": FOLDS, "rows": rows}


def searched(peer: str, grid: dict[str, Any], X: Any, y: Any, ours: Any) -> Iterator[Row]:
    """Yield a row for each form of a peer's rows, with float64 only if no form in float32 has correct scores."""
    forms, right = solvers.forms(peer, X), False
    for form in forms:
        if right and form.split()[1] != forms[0].split()[1]:
            return
        given, model = solvers.formed(X, form), solvers.made(peer, "SVC", {"cache_size": solvers.CACHE_MB})
        solvers.own(peer, clone(model).fit(given[:FEW], y[:FEW]))
        seconds, found = solvers.timed(partial(GridSearchCV(model, grid, cv=FOLDS, refit=False).fit, given, y))
        row = _found(peer, form, found, [seconds], ours)
        right = right or not row["misses"]
        yield row


def _found(solver: str, form: str, search: Any, seconds: list[float], ours: Any) -> Row:
    scores = search.cv_results_["mean_test_score"]
    apart = float(np.abs(scores - ours.cv_results_["mean_test_score"]).max())
    return {
        "solver": solver, "form": form, "cold": seconds[0], "seconds": min(seconds[1:], default=seconds[0]),
        "all_seconds": seconds, "best": search.best_params_, "best_score": float(search.best_score_),
        "scores": scores.tolist(), "apart": apart,
        "misses": [f"scores differ from clsvm's by {apart:.1e}"] * (not apart <= APART),
    }  # fmt: skip


def search_holds(result: Row) -> bool:
    """Return whether each peer, with the best form of its rows, has clsvm's scores."""
    return all(row["apart"] <= APART for row in table.best_forms(result["rows"]))


def _show_search(result: Row) -> Shown:
    rows, notes = table.compared([result], lambda one: one["set"])
    own = ("best", "{best}"), ("its score", "{best_score:.4f}"), ("scores apart", "{apart:.1e}")
    columns = (*table.SOLVED, *own)
    return shown(result, columns, rows, f"{result['folds']} folds, {result['grid']}", *notes, left=2)


# Growth: the first rows of a data set, twice as many each time, until a fit takes longer than the limit. Each solver
# has its own process, in which a fit of few rows builds the programs first. A slower solver ends at fewer rows, where
# exponents are smaller. So a second exponent of each solver takes only the numbers of rows that all solvers reached.

FIRST = 1000  # rows of the first fits
UPPER = 4  # points of an exponent
ONCE, TWICE = 1 / 2, 1 / 6  # shares of the limit, above which a solver fits once, or twice at most
ALL = 1.5  # times the last number of rows, above which all rows of a data set are fitted as well


def sizes(n: int) -> Iterator[int]:
    """Yield FIRST, twice as many, and so on up to n, and n itself if it is much larger than the last number."""
    size = FIRST
    while size <= n:
        yield size
        size *= 2
    if n >= ALL * size / 2 or size == FIRST:
        yield n


def growth(asked: Asked) -> Row:
    """Measure a series of fits for each data set and C."""
    cases = [(name, C) for name in asked.sets for C in asked.C]
    return {
        "limit": asked.limit,
        "sets": [command.in_own_process(series, name, asked, C=C) | {"C": C} for name, C in cases],
    }


def series(name: str, asked: Asked) -> Row:
    """Return the fits of each number of rows, and two exponents for each solver."""
    problem, points = replace(sets.load(name, asked.data), C=asked.C, X_test=None), list[Row]()
    (n, d), load = problem.X.shape, partial(sets.load, name, asked.data)
    with solvers.entrants(load, solvers.parameters(problem), asked, min(FIRST, n)) as made:
        for size in sizes(min(asked.rows or n, n)):
            if going := [one for one in made if not one.failed]:
                _timed(going, size, asked)
                some = replace(problem, X=problem.X[:size], y=problem.y[:size])
                points.append({"n": size, "rows": judged(going, some, solvers.TOL)})
    seconds = {name: seconds_of(points, name) for name in ("clsvm", *asked.peers)}
    shared = set.intersection(*(set(found) for found in seconds.values()))
    return {
        "set": name, "n": n, "d": d, "C": asked.C, "gamma": problem.gamma, "tol": solvers.TOL, "points": points,
        "exponents": {name: exponent(found) for name, found in seconds.items()},
        "common": {name: exponent({n: found[n] for n in shared}) for name, found in seconds.items()},
    }  # fmt: skip


def _timed(going: list[Contestant], n: int, asked: Asked) -> None:
    for one in going:
        one.seconds = []
    for _ in range(asked.repeats):
        for one in going:
            most = asked.limit * (TWICE if len(one.seconds) > 1 else ONCE) or np.inf
            if min(one.seconds, default=0.0) <= most:
                one.time(n)


def seconds_of(points: Sequence[Mapping[str, Any]], solver: str) -> dict[int, float]:
    """Return the seconds of a solver's completed fits with the best form of its rows, by the number of rows."""
    best = ((point["n"], row) for point in points for row in table.best_forms(point["rows"]))
    return {n: row["seconds"] for n, row in best if row["solver"] == solver and not row["failed"]}


def exponent(seconds: Mapping[int, float]) -> Row | None:
    """Return the slope of log seconds over log rows on the UPPER largest numbers of rows, or None below two points."""
    upper = sorted(seconds)[-UPPER:]
    if len(upper) < 2:
        return None
    slope = np.polyfit(np.log(upper), np.log([seconds[n] for n in upper]), 1)[0]
    return {"exponent": float(slope), "from": upper[0], "to": upper[-1]}


def _show_growth(result: Row) -> Shown:
    rows, notes = list[Row](), list[str]()
    for one in result["sets"]:
        name = f"{one['set']}, C = {one['C']:g}"
        for point in one["points"]:
            best, said = table.compared([{**one, **point, "set": f"{name}, {point['n']} rows"}])
            notes += said
            cells = {row["solver"]: row["failed"] or f"{row['took']:.3g}" + "*" * bool(row["misses"]) for row in best}
            cells |= {f"{row['solver']} times": f"{row['times']:.2f}" for row in best if row["times"]}
            rows.append({"label": name, "n": point["n"], **cells})
        for words, slopes in (("exponent", one["exponents"]), ("of the same rows", one["common"])):
            found = {who: "{exponent:.2f} ({from}-{to})".format_map(slope) for who, slope in slopes.items() if slope}
            rows.append({"label": name, "n": words, **found})
    columns: list[table.Column] = [("set", "{label}"), ("rows", "{n}"), ("clsvm s", "{clsvm}")]
    for peer in PEERS:
        columns += [(f"{peer} s", f"{{{peer}}}"), ("times ours", f"{{{peer} times}}")]
    words = (
        "exponent: slope of log seconds over log rows on the four largest numbers of rows (from-to) of a solver, and "
        "on those that all solvers reached"
    )
    return shown(result, columns, rows, words, table.CHECKED, *notes)


def _grown(result: Row) -> bool:
    """Return whether each of clsvm's series has a fit, and all its completed fits count."""
    for one in result["sets"]:
        ours = [row for point in one["points"] for row in point["rows"] if row["solver"] == "clsvm"]
        if not any("seconds" in row for row in ours) or any(row["misses"] for row in ours):
            return False
        if any(row["failed"] and not row["too_long"] for row in ours):
            return False
    return True


COMMANDS = (
    _command("fit", "fit sets with clsvm and its peers, check and time every fit", ("breast_cancer", "digits8"), 3),
    _command("hard", "fit sets that take many SMO iterations, as fit does", sets.HARD, 6),
    _command("text", "fit groups of 20 Newsgroups, as fit does", sets.TEXT, 6),
    _command("pairs", "fit a classifier for each pair of classes, as fit does", sets.PAIRS, 4, sets.CLASSES, few=True),
    Command(
        "small", "fits of some hundred rows, and answers for one, beside scikit-learn's", (repeats(21),),
        Part(small, _show_small, lambda result: not any(row["misses"] for row in result["rows"])),
    ),
    Command(
        "search", "a grid search on a9a by SVCSearchCV and by GridSearchCV over the peers",
        (
            option("--grid", choices=tuple(GRIDS), default="moderate", help="values of C and gamma"),
            number("--rows", 8000, "rows of a9a"), peers(), repeats(3, "searches by clsvm"), DATA,
        ),
        Part(search, _show_search, search_holds),
    ),
    Command(
        "growth", "seconds of a fit over the number of rows, with exponents",
        (
            sets_of(sets.BINARY, ("covtype", "mnist8")),
            option("--C", type=float, nargs="+", default=[1.0, 100.0], help="a series for each"),
            number("--rows", None, "of a fit at most"),
            number("--limit", 60.0, "seconds of a fit, which end a solver's series; 0: none, in one process"),
            peers(), DATA, repeats(3, "fits of each solver, one or two where it is slow"),
        ),
        Part(growth, _show_growth, _grown),
    ),
)  # fmt: skip
