"""Fits of ours and the peers in turns, every solution checked: data sets, beside a busy process, pairs of classes,
small sets, layouts, grid searches.

Order: ours, peer, peer, ours, peer, ... so that whatever else the machine does falls on all alike. The first fit of
each is its cold one; a time is the median of the later ones. A peer has a row for each form of its input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import datasets
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

import clsvm
from benchmarks import check, sets, solvers, table
from benchmarks.command import DATA, PLOT, Asked, Command, Part, each_set, number, option, peers, repeats, sets_of
from benchmarks.solvers import Contestant, Worker, gathered, later, turns
from benchmarks.table import Row, Shown, shown
from clsvm import arrays, kernels
from clsvm.gram import layouts
from clsvm.model_selection import SVCSearchCV
from clsvm.opencl.stream import Stream

REPORT_ERROR = 2e-4  # how far a reported violation or gap may stand from the recomputed one before a note says so
LOOSE = 1e-5  # how far constraints of a peer's float32 coefficients may be off
DECISION_DIFFERENCE = 1e-2  # the same for a test decision and LIBSVM's


def fit_set(name: str, asked: Asked) -> Row:
    """Time and check the fits of one binary set."""
    problem = sets.load(name, asked.data)
    made = _gathered(problem, asked)
    for one in turns(made):
        one.time()
    rows = judged(made, problem, asked.tol)
    return head(problem) | {"tol": asked.tol, "cache_mb": asked.cache, "rows": rows}


def _gathered(problem: sets.Problem, asked: Asked) -> list[Contestant]:
    given = solvers.parameters(problem.C, problem.gamma, asked.tol, asked.cache)
    libsvm = getattr(asked, "repeats_libsvm", None)
    return gathered(asked.peers, problem.X, problem.y, given, asked.repeats, libsvm, device=asked.device)


def head(problem: sets.Problem) -> Row:
    """Return what a result says of a set."""
    n, d = problem.X.shape
    numbers = {"C": problem.C, "gamma": problem.gamma, "density": solvers.density(problem.X)}
    return {"set": problem.name, "n": n, "d": d, **numbers}


def judged(made: Sequence[Contestant], problem: sets.Problem, tol: float) -> list[Row]:
    """Return a row for each contestant's last solution, judged against the best feasible dual among them."""
    rows = [one.row() | {"misses": [], "notes": []} for one in made]
    rbf, decisions = check.kernel("rbf", gamma=problem.gamma), {}
    models = {i: model for i, one in enumerate(made) if (model := one.ask("model")) is not None}
    for i, model in models.items():
        rows[i] |= check.solved(model, problem.X, problem.y, problem.C, problem.gamma)
        coef = check.full_coef(model, len(problem.y))
        support = np.flatnonzero(coef)
        decisions[i] = check.responses(problem.X_test, problem.X[support], coef[support], rbf) + model.intercept_[0]
    check.judge(rows, tol, LOOSE)
    libsvm = next((decisions[i] for i in decisions if made[i].name == "libsvm"), None)
    for i, model in models.items():
        row, exact = rows[i], decisions[i]
        row["decision_difference"] = None
        if made[i].name == "clsvm":
            began = perf_counter()
            decisions[i] = np.asarray(model.decision_function(problem.X_test), np.float64)
            row["predict_seconds"] = perf_counter() - began
            row["decision_error"] = _largest(decisions[i] - exact)
            row["report"] = model.fit_report_.to_dict() | {"trace": []}
        row["accuracy"] = float(np.mean((decisions[i] > 0) == (problem.y_test > 0)))
        if libsvm is not None and made[i].name != "libsvm":
            row["decision_difference"] = _largest(decisions[i] - libsvm)
        row["notes"] = _notes(row)
    return rows


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
    table.percent("test %", "accuracy"), ("max diff", "{decision_difference:.1e}"),
)  # fmt: skip


def _show(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    words = (
        f"warm: median of the later fits; max diff: largest difference of a test decision to LIBSVM's; {table.CHECKED}"
    )
    return shown(result, COLUMNS, rows, words, *notes, left=2)


def _command(name: str, words: str, known: Sequence[str], count: int) -> Command:
    options = (
        sets_of(sets.BINARY, known), peers(), DATA, repeats(count), number("--repeats-libsvm", 1, "of LIBSVM"),
        number("--tol", 1e-3, "KKT tolerance"), number("--cache", 2000.0, "MB of the kernel cache of every solver"),
    )  # fmt: skip
    return Command(name, words, (*options, PLOT), Part(each_set(fit_set), _show, table.ours_hold, table.draw))


# Beside a busy process, which ends by itself where the benchmark was killed.
SPIN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextmanager
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """Run another process that computes on one thread."""
    with subprocess.Popen([sys.executable, "-S", "-E", "-c", SPIN], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is about to compute
            yield process
        finally:
            process.kill()


def busy_set(name: str, asked: Asked) -> Row:
    """Time fits alone and beside a busy process, in turns; ``asked`` in the record: whether oneDAL loses more."""
    problem = sets.load(name, asked.data)
    asked.tol, asked.cache = solvers.TOL, solvers.CACHE_MB
    alone, beside = _gathered(problem, asked), _gathered(problem, asked)
    other = dict(zip(alone, beside, strict=True))
    for one in turns(alone):
        one.time()
        with busy():
            other[one].time()
    pairs = zip(judged(alone, problem, asked.tol), judged(beside, problem, asked.tol), strict=True)
    rows = [_loses(*pair) for pair in pairs]
    return head(problem) | {"rows": rows, "asked": _no_more(rows)}


def _loses(alone: Row, beside: Row) -> Row:
    row = {key: alone[key] for key in ("solver", "form")} | {"failed": alone["failed"] or beside["failed"]}
    if row["failed"]:
        return row
    ratio = beside["seconds"] / alone["seconds"]
    misses = list(dict.fromkeys([*alone["misses"], *beside["misses"]]))
    return row | {"warm": alone["seconds"], "ratio": ratio, "alone": alone, "beside": beside, "misses": misses}


def _no_more(rows: Sequence[Row]) -> bool | None:
    """Return whether ours loses no more than oneDAL; None where one of them has no row."""
    loses = {row["solver"]: row["ratio"] for row in table.best_forms(rows) if not table.failure(row)}
    return loses["clsvm"] <= loses["onedal"] if {"clsvm", "onedal"} <= loses.keys() else None


def _show_busy(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    columns = (
        ("set", "{label}"), ("solver", "{named}"), ("alone s", "{took:.3g}"),
        ("beside s", lambda row: f"{table.took(row['beside']):.3g}"), ("times as long", "{ratio:.2f}"),
        ("dual", "{alone[dual]:.8g}"),
        ("violation", lambda row: f"{max(row['alone']['violation'], row['beside']['violation']):.2e}"),
        ("ours no more than oneDAL", lambda row: table.verdict(row["one"]["asked"])),
    )  # fmt: skip
    return shown(result, columns, rows, f"beside: one other process computes; {table.CHECKED}", *notes, left=2)


# A machine for each pair of classes.


def pairs_set(name: str, asked: Asked) -> Row:
    """Time and check the fits of one set of classes."""
    recipe = sets.load(name, asked.data, few=True)
    X, y, X_test, y_test = recipe.split
    X, X_test = (part.toarray() if sp.issparse(part) else part for part in (X, X_test))
    given = solvers.parameters(recipe.C, recipe.gamma)
    made = gathered(asked.peers, X, y, given, asked.repeats, device=asked.device, cache_size="auto")
    for one in turns(made):
        one.time()
    rows = [one.row() for one in made]
    for one, row in zip(made, rows, strict=True):
        if (model := one.ask("model")) is not None:
            row |= check.solved(model, X, y, recipe.C, recipe.gamma)
            row["score"] = float(np.mean(model.predict(solvers.formed(X_test, one.form)) == y_test))
    check.judge(rows, solvers.TOL)
    numbers = {"classes": len(np.unique(y)), "C": recipe.C, "gamma": recipe.gamma}
    return {"set": name, "n": len(y), "d": X.shape[1], **numbers, "rows": rows}


def _show_pairs(result: Row) -> Shown:
    rows, notes = table.compared(
        result["sets"], lambda one: "{set}, {classes} classes, C = {C:g}, gamma = {gamma:g}".format_map(one)
    )
    columns = (*table.SOLVED, *table.CERTIFIED, ("score", "{score:.4f}"))
    return shown(result, columns, rows, f"a machine for each pair of classes; {table.CHECKED}", *notes, left=2)


# Small sets.

SMALL = ("iris", "wine", "breast_cancer", "diabetes", "digits")  # scikit-learn's own


def small(asked: Asked) -> Row:
    """Time fits of some hundred standardised rows and answers for one, ours and scikit-learn's, with their defaults."""
    return {"rows": [_small(name, asked) for name in SMALL]}


def _small(name: str, asked: Asked) -> Row:
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X, numbers = solvers.formed(StandardScaler().fit_transform(X), "dense float64"), name == "diabetes"
    kind = "SVR" if numbers else "SVC"
    made = [
        Contestant(told, "", asked.repeats, Worker(0, solvers.fitting, name, kind, {}, X, y, device=asked.device))
        for told, name in (("clsvm", "clsvm"), ("scikit-learn", "libsvm"))
    ]
    answers: dict[str, list[float]] = {one.name: [] for one in made}
    for one in turns(made):
        one.time()
    for i, one in enumerate(turns(made)):
        model, row = one.ask("model"), X[i % len(X)][None]
        began = perf_counter()
        model.predict(row)
        answers[one.name].append(perf_counter() - began)
    gamma = 1 / (X.shape[1] * X.var())
    found = {one.name: check.solved(one.ask("model"), X, y, 1.0, gamma, numbers) for one in made}
    rows = [dict(one) for one in found.values()]
    check.judge(rows, solvers.TOL)
    return {
        "set": name, "n": len(y), "d": X.shape[1], "fit_ms": {one.name: 1e3 * later(one.seconds) for one in made},
        "answer_ms": {who: 1e3 * later(seconds) for who, seconds in answers.items()}, "solutions": found,
        "misses": rows[0]["misses"],
    }  # fmt: skip


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


# Layouts.


def layouts_set(name: str, asked: Asked) -> Row:
    """Time the same fits with rows in each layout."""
    p = sets.load(name, asked.data)
    given = {"C": p.C, "gamma": p.gamma}
    made = [
        Contestant(
            kind, "", asked.repeats,
            Worker(0, solvers.fitting, "clsvm", "SVC", given, p.X, p.y, device=asked.device, layout=kind),
        )
        for kind in layouts.LAYOUTS
    ]  # fmt: skip
    rows: list[Row] = []
    for one in turns(made):
        one.time()
    for one in made:
        report = one.ask("model").fit_report_
        told = {"dual": report.dual, "violation": report.violation, "stored": report.layout, "report": str(report)}
        rows.append({"layout": one.name} | one.row() | told)
    best = max(row["dual"] for row in rows)
    for row in rows:
        row["agrees"] = bool(best - row["dual"] <= check.DUAL * abs(best))
    with Stream(asked.device) as stream:
        plan = layouts.choose(stream.profile, arrays.canonical(p.X), kernels.make("rbf", gamma=p.gamma).spec)
    return head(p) | {"chosen": plan.kind, "reason": plan.reason, "rows": rows}


def _show_layouts(result: Row) -> Shown:
    rows = []
    for one in result["sets"]:
        ours = next(row["seconds"] for row in one["rows"] if row["layout"] == one["chosen"])
        more = {"label": table.label(one), "ours": ours, "chosen": one["chosen"]}
        rows += [row | more for row in one["rows"]]
    columns: tuple[table.Column, ...] = (
        ("set", "{label}"), ("layout", lambda row: row["layout"] + " *" * (row["layout"] == row["chosen"])),
        ("cold s", "{cold:.3g}"), ("s", "{seconds:.3g}"),
        ("times the chosen", lambda row: f"{row['seconds'] / row['ours']:.2f}"), ("dual", "{dual:.8g}"),
        ("violation", "{violation:.2e}"),
    )  # fmt: skip
    return shown(result, columns, rows, "one solver, each layout; * is the one that it takes by itself", left=2)


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
    ours, seconds = None, []
    for _ in range(asked.repeats):
        began = perf_counter()
        ours = SVCSearchCV(clsvm.SVC(device=asked.device), grid, cv=FOLDS, refit=False).fit(X, y)
        seconds.append(perf_counter() - began)
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
        began = perf_counter()
        found = GridSearchCV(model, grid, cv=FOLDS, refit=False).fit(given, y)
        row = _found(peer, form, found, [perf_counter() - began], ours)
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


COMMANDS = (
    _command("fit", "fit sets with clsvm and its peers, check and time every fit", ("breast_cancer", "digits8"), 3),
    _command("hard", "fit sets that take many pair steps, as fit does", sets.HARD, 6),
    _command("text", "fit groups of 20 Newsgroups, as fit does", sets.TEXT, 6),
    Command(
        "busy", "the sets of hard, fitted alone and beside one other busy process",
        (sets_of(sets.BINARY, sets.HARD), peers(), DATA, repeats(8)),
        Part(each_set(busy_set), _show_busy, table.ours_hold),
    ),
    Command(
        "pairs", "a machine for each pair of classes, by clsvm and its peers in turns",
        (sets_of(sets.CLASSES, ("letter", "pendigits", "mnist7k")), peers(), repeats(4), DATA),
        Part(each_set(pairs_set), _show_pairs, table.ours_hold),
    ),
    Command(
        "small", "fits of some hundred rows, and answers for one, beside scikit-learn's", (repeats(21),),
        Part(small, _show_small, lambda result: not any(row["misses"] for row in result["rows"])),
    ),
    Command(
        "layouts", "the same fits with rows in each layout, in turns",
        (sets_of(sets.BINARY, ("synthetic20k",)), repeats(6), DATA),
        Part(
            lambda asked: {"sets": [layouts_set(name, asked) for name in asked.sets]}, _show_layouts,
            lambda result: all(row["agrees"] for one in result["sets"] for row in one["rows"]),
        ),
    ),
    Command(
        "search", "a grid search on a9a by SVCSearchCV and by GridSearchCV over the peers",
        (
            option("--grid", choices=tuple(GRIDS), default="moderate", help="values of C and gamma"),
            number("--rows", 8000, "rows of a9a"), peers(), repeats(3, "searches of ours"), DATA,
        ),
        Part(search, _show_search, search_holds),
    ),
)  # fmt: skip
