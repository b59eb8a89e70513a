"""Answers for some thousand rows by models of many support vectors: seconds, whether they are the same, and memory.

Ours is trained once, and scikit-learn's (LIBSVM) is made of it by clsvm.to_sklearn; oneDAL, which takes no models of
several classes, trains its own, with each form of input, the best of which counts. Solutions are checked in float64.
Each model is then loaded into a fresh process of its own, which does nothing else. These answer in turns: classes
(predict) and decision values (a column for each pair of classes). How much resident memory an answer needs at most is
counted meanwhile: the first, which builds programs and moves the model to the device, and the later ones. On a GPU that
is the host's memory alone.

Decision values are compared to those of our model in float64, by the largest difference over the largest value.
"""

from __future__ import annotations

import pickle
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import clsvm
from benchmarks import command, pairs, sets, solvers, table, tasks_check
from benchmarks.boostsvm.limited import Answer
from benchmarks.boostsvm.machines import Contestant, at_work
from benchmarks.command import Asked, Command, Parser, Result, add_peers, add_repeats, add_sets
from benchmarks.speed import memory

SETS = ("mnist", "a9a", "letter", "news20_bydate")
KNOWN = (*SETS, "pendigits", *(name for name in sets.BUNDLED_TASKS if sets.TASK_SETS[name].target == "classes"))
CALLS = ("predict", "decision_function")
APART = 1e-4  # of decision values, in float32
FASTER = 4.0  # times, that oneDAL is to take longer


@dataclass(frozen=True)
class Options:
    """What the command line asks. tests: at most so many. limit: seconds of an answer; 0: none, and all in this
    process. solver, form, folder: what is trained, on which form of its input, and where its model goes."""

    peers: tuple[str, ...] = ()
    data: Path | None = None
    device: Any = None
    repeats: int = 5
    repeats_libsvm: int = 1
    tests: int = 10000
    limit: float = 900.0
    solver: str = "clsvm"
    form: str = "dense float64"
    folder: Path = field(default_factory=Path)

    @property
    def model(self) -> Path:
        """The file of the model."""
        return self.folder / f"{self.solver} {self.form}"

    @property
    def rows(self) -> Path:
        """The file of the rows to answer for."""
        return self.folder / f"rows {self.form}"


def load(name: str, folder: Path | None) -> sets.Problem:
    """Return all rows of a set of classes, with its labels as they come; MNIST as one of all classes, C = 1.

    Sparse rows that are not mostly zeros become an array.
    """
    if name == "mnist":
        return replace(sets.load_multiclass(name, folder), C=1.0)
    recipe = sets.TASK_SETS[name]
    X, y, X_test, y_test = sets.load_task(name, folder, whole=True)
    if solvers.density(X) >= solvers.SPARSE:
        X, X_test = (part.toarray() if sp.issparse(part) else part for part in (X, X_test))
    return sets.Problem(name, X, y, X_test, y_test, recipe.C, recipe.gamma)


def train(name: str, options: Options) -> dict[str, Any]:
    """Trains a model, or makes LIBSVM's of ours, and writes it to its file: seconds and solution. Of ours also the
    decision values of the tests in float64."""
    if options.solver == "libsvm":
        native = solvers.native(load(name, options.data).X)
        ours = pickle.loads(replace(options, solver="clsvm", form=native).model.read_bytes())
        options.model.write_bytes(pickle.dumps(in_form(clsvm.to_sklearn(ours), options.form)))
        return {}
    problem = load(name, options.data)
    given = solvers.parameters(problem.C, problem.gamma) | {"decision_function_shape": "ovo"}
    model = solvers.made(options.solver, "SVC", given, device=options.device)
    seconds = solvers.fitted(options.solver, model, solvers.formed(problem.X, options.form), problem.y)
    options.model.write_bytes(pickle.dumps(model))
    found = {"seconds": seconds, "solution": solvers.solution(model)}
    if options.solver == "clsvm":
        wide = clsvm.from_sklearn(clsvm.to_sklearn(model), device=options.device, dtype="float64")
        found["decisions"] = wide.decision_function(pickle.loads(options.rows.read_bytes()))
    return found


def in_form(model: Any, form: str) -> Any:
    """Return a fitted SVC of scikit-learn whose vectors are an array where the form says so."""
    if form.startswith("dense") and sp.issparse(model.support_vectors_):
        model._sparse = False
        for name in ("support_vectors_", "dual_coef_", "_dual_coef_"):
            setattr(model, name, getattr(model, name).toarray())
    return model


def answerer(options: Options) -> Answer:
    """What answers the name of one of CALLS with the answers, seconds and memory of it."""
    model, X = (pickle.loads(file.read_bytes()) for file in (options.model, options.rows))

    def timed(call: str) -> tuple[Any, float]:
        began = perf_counter()
        return getattr(model, call)(X), perf_counter() - began

    def answer(call: Any) -> tuple[Any, float, int | None, int | None]:
        used = memory.growth(partial(timed, call))
        return *used.value, used.before, used.growth

    return answer


def measure(name: str, options: Options) -> dict[str, Any]:
    """One set: a row for each solver and form of its input, and whether ours is as fast as asked."""
    problem = load(name, options.data)
    tests = problem.X_test[: options.tests]
    with tempfile.TemporaryDirectory() as folder:
        asked = [
            replace(options, solver=solver, form=form, folder=Path(folder))
            for solver in ("clsvm", *options.peers)
            for form in solvers.forms(solver, problem.X)
        ]
        for one in asked:
            one.rows.write_bytes(pickle.dumps(solvers.formed(tests, one.form)))
        trained = [command.in_own_process(train, name, one) for one in asked]
        ready = [one for one, found in zip(asked, trained, strict=True) if "error" not in found]
        given = [(str(one.model), _repeats(one), (one,)) for one in ready]
        with at_work(options.limit, answerer, given) as made:
            found = _answers(made)
        answers = [found.get(str(one.model), {}) for one in asked]
    rows = [_row(one, *pair) for one, *pair in zip(asked, trained, answers, strict=True)]
    _compare(rows, answers, trained[0].get("decisions"), problem.y_test[: options.tests])
    _judge(rows, [found.get("solution") for found in trained], problem)
    n, d = problem.X.shape
    head = {"set": name, "n": n, "d": d, "classes": len(np.unique(problem.y)), "C": problem.C, "gamma": problem.gamma}
    told = {"tests": tests.shape[0], "all_tests": problem.X_test.shape[0]}
    return head | told | {"tol": solvers.TOL, "rows": rows, "asked": _asked(rows)}


def _repeats(one: Options) -> int:
    return one.repeats_libsvm if one.solver == "libsvm" else one.repeats


def _answers(made: list[Contestant]) -> dict[str, dict[str, Any]]:
    """By contestant: its answers to each of CALLS, that of the first time whole, or why there are none."""
    found: dict[str, dict[str, Any]] = {one.name: {call: [] for call in CALLS} for one in made}
    for turn in range(max((one.repeats for one in made), default=0)):
        for call in CALLS:
            for one in made:
                if turn < one.repeats and (answer := one.ask(call)) is not None:
                    found[one.name].setdefault(f"{call} values", answer[0])
                    found[one.name][call].append(answer[1:])
    for one in made:
        found[one.name]["error"] = one.failed
    return found


def _row(one: Options, trained: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    """Seconds and memory of a solver's answers; warm: those of predict."""
    row = {"solver": one.solver, "form": one.form, "error": trained.get("error") or answers["error"], "misses": []}
    if row["error"]:
        return row
    every = {call: [seconds for seconds, _, _ in answers[call]] for call in CALLS}
    seconds = {call: statistics.median(times[1:] or times) for call, times in every.items()}
    _, before, first = answers["predict"][0]
    later = [growth for _, _, growth in answers["predict"][1:] if growth is not None]
    row |= {"train_seconds": trained.get("seconds"), "seconds": seconds, "warm": seconds["predict"]}
    return row | {"all_seconds": every, "resident": before, "first": first, "later": max(later, default=None)}


def _compare(rows: list[dict[str, Any]], answers: list[dict[str, Any]], wide: Any, labels: Any) -> None:
    """Add the share of right classes and of those that ours gives, and how far decision values are from ours in
    float64, of the largest."""
    for row, found in zip(rows, answers, strict=True):
        if row["error"]:
            continue
        classes, values = found["predict values"], found["decision_function values"]
        row["accuracy"] = float(np.mean(classes == labels))
        if not rows[0]["error"]:
            row["same"] = float(np.mean(classes == answers[0]["predict values"]))
            row["apart"] = float(np.abs(values - wide).max() / np.abs(wide).max())
            if row["solver"] != "onedal" and not row["apart"] <= APART:
                row["misses"].append(f"decision values {row['apart']:.1e} from ours in float64")


def _judge(rows: list[dict[str, Any]], solutions: list[Any], problem: sets.Problem) -> None:
    """Add what each solution amounts to and misses, beside the best one; LIBSVM's is ours."""
    numbers = problem.X, problem.y, problem.C, problem.gamma
    standing = {i: tasks_check.of_pairs(one, *numbers) for i, one in enumerate(solutions) if one is not None}
    best = max((found["dual"] for found in standing.values()), default=0.0)
    for i, found in standing.items():
        rows[i] |= found
        rows[i]["misses"] += pairs.misses(found, best, solvers.TOL)


def _asked(rows: list[dict[str, Any]]) -> bool | None:
    """Whether oneDAL takes FASTER times as long as ours, for classes and for decision values; None where one of them
    has no row."""
    best = {row["solver"]: row["seconds"] for row in table.best_forms(rows) if not row["error"]}
    if not {"clsvm", "onedal"} <= best.keys():
        return None
    return all(best["onedal"][call] >= FASTER * best["clsvm"][call] for call in CALLS)


HEADER = (
    *("set", "tests", "solver", "classes s", "times ours", "values s", "times ours", "first MB", "later MB"),
    *("right %", "as ours %", "apart", f"{FASTER:g} times"),
)
LEGEND = (
    "medians of the answers after the first; MB: by which resident memory rises at most during the first answer and a "
    "later one\nas ours: the same class; apart: of decision values, from ours in float64, of the largest (oneDAL's "
    "model is its own)\nviolation and dual of each training recomputed in float64; * does not count; notes below"
)


def cells(result: Result) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table's rows in the order of HEADER, and notes: on tests that are fewer, and on rows marked with *."""
    rows: list[tuple[str, ...]] = []
    measured, notes = table.measured(result)
    for one in measured:
        head, said = (table.label(one), str(one["tests"])), table.verdict(one["asked"])
        if one["tests"] < result["tests"]:
            notes.append(f"{one['set']}: it has {one['tests']} tests")
        best = table.best_forms(one["rows"])
        ours = best[0].get("seconds")
        for row in best:
            name, missed = table.solver(one["set"], row)
            notes += missed
            rows.append((*head, name, *(_numbers(row, ours) if not row["error"] else [""] * 9), said))
            head, said = ("", ""), ""
        notes += table.passed_over(one["set"], one["rows"])
    return rows, notes


def _numbers(row: dict[str, Any], ours: dict[str, float] | None) -> list[str]:
    found = []
    for call in CALLS:
        times = f"{row['seconds'][call] / ours[call]:.1f}" if ours and row["solver"] != "clsvm" else ""
        found += [f"{row['seconds'][call]:.3g}", times]
    found += ["" if row[part] is None else f"{row[part] / 1e6:.1f}" for part in ("first", "later")]
    found.append(f"{100 * row['accuracy']:.2f}")
    return found + ([f"{100 * row['same']:.2f}", f"{row['apart']:.1e}"] if "same" in row else ["", ""])


LAYOUT = table.Layout(HEADER, 3, LEGEND, cells)


def holds(result: Result) -> bool:
    """Whether every model and answer of ours counts, and is as fast as asked where oneDAL's was measured."""
    for one in result["sets"]:
        ours = one["rows"][0] if "error" not in one else {"error": one["error"]}
        if ours["error"] or ours["misses"] or one["asked"] is False:
            return False
    return True


def _arguments(parser: Parser) -> None:
    add_sets(parser, KNOWN, list(SETS), f"; {', '.join(SETS)}")
    add_peers(parser)
    sets.add_data(parser, "none needed for iris, breast_cancer and digits")
    add_repeats(parser, 5, "answers of each solver")
    parser.add_argument("--repeats-libsvm", type=int, default=1, help="answers of LIBSVM (1)")
    parser.add_argument("--tests", type=int, default=10000, help="rows to answer for, at most (10000)")
    words = "of an answer, after which a solver has no row; 0: none, in one process (900)"
    parser.add_argument("--limit", type=float, default=900, metavar="S", help=words)


def _measure(asked: Asked) -> Result:
    options = Options(
        peers=tuple(asked.peers),
        data=asked.data,
        device=asked.device,
        repeats=asked.repeats,
        repeats_libsvm=asked.repeats_libsvm,
        tests=asked.tests,
        limit=asked.limit,
    )
    found = [command.in_own_process(measure, name, options) for name in asked.sets]
    return command.on_device(asked, {"tests": asked.tests, "sets": found})


COMMAND = Command(
    "predict",
    "answers of models of many support vectors beside the peers': seconds, memory, and whether they are the same",
    _arguments,
    _measure,
    partial(table.terminal, layout=LAYOUT),
    holds,
    partial(table.markdown, layout=LAYOUT),
)
