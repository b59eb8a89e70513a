"""Fits of ours and the peers in turns, every solution checked: data sets, small sets, grid searches, growth with rows.

Order: ours, peer, peer, ours, peer, ... so that whatever else the machine does falls on all alike. The first fit of
each is its cold one; a time is the median of the later ones. A peer has a row for each form of its input.
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
from benchmarks.sets import EPSILON, Problem
from benchmarks.solvers import Contestant, in_turns, later, turns
from benchmarks.table import Row, Shown, shown
from clsvm.model_selection import SVCSearchCV

REPORT_ERROR = 2e-4  # how far a reported violation or gap may stand from the recomputed one before a note says so
LOOSE = 1e-5  # how far constraints of a peer's float32 coefficients may be off
DECISION_DIFFERENCE = 1e-2  # the same for a test decision and LIBSVM's


def fit_set(name: str, asked: Asked, few: bool = False) -> Row:
    """Time and check the fits of one set; few: on as many rows as machines of pairs take."""
    return raced(partial(sets.load, name, asked.data, few), asked)


def raced(load: Callable[[], Problem], asked: Asked) -> Row:
    """Time fits of a problem by ours and the peers in turns, and check them."""
    problem, tol = load(), getattr(asked, "tol", solvers.TOL)
    given = solvers.parameters(problem.C, problem.gamma, tol, getattr(asked, "cache", solvers.CACHE_MB))
    with solvers.entrants(load, given | ({"epsilon": EPSILON} if problem.numbers else {}), asked) as made:
        for one in turns(made):
            one.time()
        return problem.head() | {"tol": tol, "rows": judged(made, problem, tol)}


def judged(made: Sequence[Contestant], problem: Problem, tol: float) -> list[Row]:
    """Return a row for each contestant's last solution, judged against the best feasible dual among them.

    Solutions with test rows, of fits in this process, are tested as well.
    """
    solutions = [one.ask("solution") for one in made]
    rows = [one.row() | {"misses": [], "notes": []} for one in made]
    for row, found in zip(rows, solutions, strict=True):
        row |= {"report": found.report} if found and found.report else {}
    check.judged(rows, solutions, problem, tol, LOOSE)
    if problem.X_test is not None:
        models = {i: model for i, one in enumerate(made) if (model := one.ask("model")) is not None}
        if len(np.unique(problem.y)) == 2:
            _decided(models, rows, problem)
        else:
            for i, model in models.items():
                found = model.predict(solvers.formed(problem.X_test, made[i].form))
                rows[i]["accuracy"] = float(np.mean(found == problem.y_test))
    return rows


def _decided(models: dict[int, Any], rows: list[Row], problem: Problem) -> None:
    """Add what decision values of the test rows say, in float64 of peers, of ours as it computes them."""
    rbf, decisions = check.kernel("rbf", gamma=problem.gamma), {}
    for i, model in models.items():
        coef = check.full_coef(model, len(problem.y))
        support = np.flatnonzero(coef)
        decisions[i] = check.responses(problem.X_test, problem.X[support], coef[support], rbf) + model.intercept_[0]
    libsvm = next((decisions[i] for i in decisions if rows[i]["solver"] == "libsvm"), None)
    for i, model in models.items():
        row, exact = rows[i], decisions[i]
        row["decision_difference"] = None
        if row["solver"] == "clsvm":
            row["predict_seconds"], found = solvers.timed(partial(model.decision_function, problem.X_test))
            decisions[i] = np.asarray(found, np.float64)
            row["decision_error"] = _largest(decisions[i] - exact)
        row["accuracy"] = float(np.mean((decisions[i] > 0) == (problem.y_test > 0)))
        if libsvm is not None and row["solver"] != "libsvm":
            row["decision_difference"] = _largest(decisions[i] - libsvm)
        row["notes"] = _notes(row)


def _notes(row: Row) -> list[str]:
    """Return what of ours differs from its own report and from LIBSVM."""
    if row["solver"] != "clsvm":
        return []
    notes = [
        f"reports {part} {row['report'][part]:.3e}, recomputed {row[part]:.3e}"
        for part in ("violation", "gap")
        if not abs(row["report"][part] - row[part]) <= REPORT_ERROR
    ]
    if (row["decision_difference"] or 0.0) > DECISION_DIFFERENCE:
        notes.append(f"a test decision is {row['decision_difference']:.2g} off LIBSVM's")
    return notes


def _largest(difference: Any) -> float:
    return float(np.max(np.abs(difference)))


COLUMNS: tuple[table.Column, ...] = (
    *table.SOLVED, *table.CERTIFIED, ("gap", "{gap:.1e}"), ("SVs", "{n_support}"),
    table.percent("test %", "accuracy", "score"), ("max diff", "{decision_difference:.1e}"),
)  # fmt: skip


def _show(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    words = (
        f"warm: median of the later fits; max diff: largest difference of a test decision to LIBSVM's; {table.CHECKED}"
    )
    return shown(result, COLUMNS, rows, words, *notes, left=2)


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

SMALL = ("iris", "wine", "breast_cancer", "diabetes", "digits")  # scikit-learn's own


def small(asked: Asked) -> Row:
    """Time fits of some hundred standardised rows and answers for one, ours and scikit-learn's, with their defaults."""
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
    words = "milliseconds; ratio: scikit-learn's over ours; the violation recomputed in float64"
    return shown(result, columns, result["rows"], words)


# Grid searches.

GRIDS = {  # by name: what is searched on a9a's first rows
    "moderate": {"C": [0.1, 0.3, 1, 3, 10, 30], "gamma": [0.01, 0.03, 0.1, 0.3]},
    "short": {"C": [0.1, 1, 10, 100], "gamma": [0.005, 0.02, 0.08]},
    "wide": {"C": [0.1, 0.5, 1, 5, 20, 100], "gamma": [0.005, 0.02, 0.05, 0.2]},
}
FOLDS, APART = 5, 0.002  # how far mean scores of the same candidate may differ
FEW = 200  # rows of a peer's first fit, which is not timed


def search(asked: Asked) -> Row:
    """Time SVCSearchCV ``repeats`` times, and then scikit-learn's search once over each peer's forms."""
    data, grid = sets.load("a9a", asked.data), GRIDS[asked.grid]
    X, y = solvers.formed(data.X[: asked.rows], "dense float64"), data.y[: asked.rows]
    own = SVCSearchCV(clsvm.SVC(device=asked.device), grid, cv=FOLDS, refit=False)
    seconds, ours = in_turns({"clsvm": lambda: clone(own).fit(X, y)}, asked.repeats)["clsvm"]
    rows = [_found("clsvm", solvers.native(X), ours, seconds, ours)]
    for peer in asked.peers:
        rows += searched(peer, grid, X, y, ours)
    return {"set": f"a9a, first {asked.rows} rows", "grid": grid, "folds": FOLDS, "rows": rows}


def searched(peer: str, grid: dict[str, Any], X: Any, y: Any, ours: Any) -> Iterator[Row]:
    """Yield a row for each form of a peer's rows; float64 only where no scores by float32 are right."""
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
    apart = _largest(scores - ours.cv_results_["mean_test_score"])
    return {
        "solver": solver, "form": form, "cold": seconds[0], "seconds": min(seconds[1:], default=seconds[0]),
        "all_seconds": seconds, "best": search.best_params_, "best_score": float(search.best_score_),
        "scores": scores.tolist(), "apart": apart,
        "misses": [f"scores {apart:.1e} from ours"] * (not apart <= APART),
    }  # fmt: skip


def search_holds(result: Row) -> bool:
    """Return whether the scores of each peer, with the best form of its rows, are ours."""
    return all(row["apart"] <= APART for row in table.best_forms(result["rows"]))


def _show_search(result: Row) -> Shown:
    rows, notes = table.compared([result], lambda one: one["set"])
    own = ("best", "{best}"), ("its score", "{best_score:.4f}"), ("scores apart", "{apart:.1e}")
    columns = (*table.SOLVED, *own)
    return shown(result, columns, rows, f"{result['folds']} folds, {result['grid']}", *notes, left=2)


# Growth: the first rows of a set, twice as many each time, until a fit takes longer than the limit. Each solver has a
# process of its own, in which a first fit of few rows builds the programs. A fit that is not done at the limit is
# ended, and so is its solver's series. Exponents are of the UPPER largest numbers of rows: of the solver's own, and of
# those that all solvers have, since a solver that is slower ends earlier, where exponents are smaller.

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


def growth(asked: Asked) -> Row:
    """Measure a series for each set and C."""
    cases = [(name, C) for name in asked.sets for C in asked.C]
    return {
        "limit": asked.limit,
        "sets": [command.in_own_process(series, name, asked, C=C) | {"C": C} for name, C in cases],
    }


def series(name: str, asked: Asked) -> Row:
    """Return the fits of each number of rows, and the exponents of each solver, by its own and by common ones."""
    problem, points = replace(sets.load(name, asked.data), C=asked.C, X_test=None), list[Row]()
    (n, d), gamma, load = problem.X.shape, problem.gamma, partial(sets.load, name, asked.data)
    with solvers.entrants(load, solvers.parameters(asked.C, gamma), asked, min(FIRST, n)) as made:
        for size in sizes(min(asked.rows or n, n)):
            if going := [one for one in made if not one.failed]:
                _timed(going, size, asked)
                some = replace(problem, X=problem.X[:size], y=problem.y[:size])
                points.append({"n": size, "rows": judged(going, some, solvers.TOL)})
    seconds = {name: seconds_of(points, name) for name in ("clsvm", *asked.peers)}
    shared = set.intersection(*(set(found) for found in seconds.values()))
    return {
        "set": name, "n": n, "d": d, "C": asked.C, "gamma": gamma, "tol": solvers.TOL, "points": points,
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
    """Return the seconds of a solver's fits that ended, by the number of rows, with one form of its input.

    The form is that of the most fits that count, and among these the fastest for the most rows.
    """
    by_form: dict[str, dict[int, Row]] = {}
    for point in points:
        for row in point["rows"]:
            if row["solver"] == solver and not row["failed"]:
                by_form.setdefault(row.get("form", ""), {})[point["n"]] = row

    def rank(fits: Mapping[int, Row]) -> tuple[int, float]:
        return -sum(not row.get("misses") for row in fits.values()), float(fits[max(fits)]["seconds"])

    return {n: row["seconds"] for n, row in min(by_form.values(), key=rank, default={}).items()}


def exponent(seconds: Mapping[int, float]) -> Row | None:
    """Return the slope of log seconds over log rows on the UPPER largest numbers of rows; None of fewer than two."""
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
        "exponent: least squares of log seconds over log rows on the four largest numbers of rows (from-to), of each "
        "solver's and of those that all have"
    )
    return shown(result, columns, rows, words, table.CHECKED, *notes)


def _grown(result: Row) -> bool:
    """Return whether each series of ours has a fit, and all that ended count."""
    for one in result["sets"]:
        ours = [row for point in one["points"] for row in point["rows"] if row["solver"] == "clsvm"]
        if not any("seconds" in row for row in ours) or any(row["misses"] for row in ours):
            return False
        if any(row["failed"] and not row["too_long"] for row in ours):
            return False
    return True


COMMANDS = (
    _command("fit", "fit sets with clsvm and its peers, check and time every fit", ("breast_cancer", "digits8"), 3),
    _command("hard", "fit sets that take many pair steps, as fit does", sets.HARD, 6),
    _command("text", "fit groups of 20 Newsgroups, as fit does", sets.TEXT, 6),
    _command("pairs", "a machine for each pair of classes, as fit does", sets.PAIRS, 4, sets.CLASSES, few=True),
    Command(
        "small", "fits of some hundred rows, and answers for one, beside scikit-learn's", (repeats(21),),
        Part(small, _show_small, lambda result: not any(row["misses"] for row in result["rows"])),
    ),
    Command(
        "search", "a grid search on a9a by SVCSearchCV and by GridSearchCV over the peers",
        (
            option("--grid", choices=tuple(GRIDS), default="moderate", help="values of C and gamma"),
            number("--rows", 8000, "rows of a9a"), peers(), repeats(3, "searches of ours"), DATA,
        ),
        Part(search, _show_search, search_holds),
    ),
    Command(
        "growth", "seconds of a fit over the rows, ours and the peers', with exponents",
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
