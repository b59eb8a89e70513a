"""Answers for some thousand rows by models of many support vectors: seconds, whether they are the same, and memory.

Ours is trained once, and scikit-learn's (LIBSVM) is made of it by clsvm.to_sklearn; oneDAL, which takes no models of
several classes, trains its own, with each form of input, the best of which counts. Solutions are checked in float64.
Each model is then loaded into a fresh process of its own, which does nothing else. These answer in turns: classes
(predict) and decision values (a column for each pair of classes). The rise of resident memory is counted meanwhile, for
the first answer, which builds programs and moves the model to the device, and for the later ones.

Decision values are compared to those of our model in float64, by the largest difference over the largest value.
"""

from __future__ import annotations

import ctypes
import gc
import pickle
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp

import clsvm
from benchmarks import check, command, sets, solvers, table
from benchmarks.command import DATA, Asked, Command, Part, each_set, number, peers, repeats, sets_of
from benchmarks.solvers import Answer, at_work, later, turns
from benchmarks.table import Row, Shown, shown

SETS = ("mnist", "a9a", "letter", "news20_bydate")
CALLS = ("predict", "decision_function")
APART = 1e-4  # of decision values, in float32
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def train(name: str, asked: Asked) -> Row:
    """Train asked.solver with asked.form, or make LIBSVM's model of ours, and write it to asked.folder.

    Returns the seconds and the solution, and of ours the decision values of the tests in float64.
    """
    folder, form = asked.folder, asked.form
    if asked.solver == "libsvm":
        ours = pickle.loads((folder / "clsvm").read_bytes())
        model: Any = in_form(clsvm.to_sklearn(ours), form)
        (folder / f"libsvm {form}").write_bytes(pickle.dumps(model))
        return {}
    problem = sets.load(name, asked.data)
    given = solvers.parameters(problem.C, problem.gamma) | {"decision_function_shape": "ovo"}
    answer = solvers.fitting(lambda: problem, asked.solver, form, given, {"device": asked.device})
    found = {"seconds": answer("fit"), "solution": answer("solution")}
    model = answer("model")
    (folder / ("clsvm" if asked.solver == "clsvm" else f"{asked.solver} {form}")).write_bytes(pickle.dumps(model))
    if asked.solver == "clsvm":
        wide = clsvm.from_sklearn(clsvm.to_sklearn(model), device=asked.device, dtype="float64")
        found["decisions"] = wide.decision_function(problem.X_test[: asked.tests])
    return found


def in_form(model: Any, form: str) -> Any:
    """Return a fitted SVC of scikit-learn whose vectors are an array where the form says so."""
    if form.startswith("dense") and sp.issparse(model.support_vectors_):
        model._sparse = False
        for name in ("support_vectors_", "dual_coef_", "_dual_coef_"):
            setattr(model, name, getattr(model, name).toarray())
    return model


def answerer(model: Path, X: Any) -> Answer:
    """Return what answers the name of a call with its values, seconds, resident bytes before it and their rise."""
    loaded = pickle.loads(model.read_bytes())

    def answer(call: Any) -> tuple[Any, float, int | None, int | None]:
        gc.collect()
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back to the system, so that reusing it counts
        with suppress(OSError):
            CLEAR.write_text("5")  # resets the peak, see proc(5)
        before = resident("VmRSS")
        began = perf_counter()
        values = getattr(loaded, call)(X)
        seconds, peak = perf_counter() - began, resident("VmHWM")
        return values, seconds, before, None if before is None or peak is None else max(0, peak - before)

    return answer


def resident(field: str) -> int | None:
    """Return a field of Linux's status of this process in bytes; None on other systems."""
    if not STATUS.exists():
        return None
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def predict_set(name: str, asked: Asked) -> Row:
    """Train each solver with each form of its input, and time their answers in turns."""
    problem = sets.load(name, asked.data)
    tests = problem.X_test[: asked.tests]
    entered = solvers.entered(asked.peers, problem.X, asked.repeats, asked.repeats_libsvm)
    with tempfile.TemporaryDirectory() as folder:
        models = [Path(folder) / ("clsvm" if who == "clsvm" else f"{who} {form}") for who, form, _ in entered]
        trained = [
            command.in_own_process(train, name, asked, solver=who, form=form, folder=Path(folder))
            for who, form, _ in entered
        ]
        given = [
            (*one, (model, solvers.formed(tests, one[1])))
            for one, model, found in zip(entered, models, trained, strict=True)
            if "error" not in found
        ]
        with at_work(asked.limit, answerer, given) as made:
            answers: dict[Any, dict[str, list[Any]]] = {one: {call: [] for call in CALLS} for one in made}
            for call in CALLS:
                for one in turns(made):
                    if (answer := one.ask(call)) is not None:
                        answers[one][call].append(answer)
    ended = {(one.name, one.form): (one.failed, answers[one]) for one in made}
    rows = [
        _row(who, form, found, *ended.get((who, form), (found.get("error", ""), {})))
        for (who, form, _), found in zip(entered, trained, strict=True)
    ]
    values = [{} if row["failed"] else ended[row["solver"], row["form"]][1] for row in rows]
    _compare(rows, values, trained[0].get("decisions"), problem.y_test[: asked.tests])
    check.judged(rows, [found.get("solution") for found in trained], problem, solvers.TOL)
    told = {"tests": tests.shape[0], "all_tests": problem.X_test.shape[0]}
    return problem.head() | told | {"tol": solvers.TOL, "rows": rows}


def _row(solver: str, form: str, trained: Row, failed: str, answers: dict[str, list[Any]]) -> Row:
    """Return seconds and memory of a solver's answers; warm: the seconds of predict."""
    row: Row = {"solver": solver, "form": form, "failed": failed, "misses": []}
    if failed:
        return row
    every = {call: [seconds for _, seconds, _, _ in answers[call]] for call in CALLS}
    seconds = {call: later(times) for call, times in every.items()}
    _, _, before, first = answers["predict"][0]
    growths = [growth for *_, growth in answers["predict"][1:] if growth is not None]
    row |= {"train_seconds": trained.get("seconds"), "seconds": seconds, "warm": seconds["predict"]}
    return row | {"all_seconds": every, "resident": before, "first": first, "later": max(growths, default=None)}


def _compare(rows: list[Row], answers: list[dict[str, list[Any]]], wide: Any, labels: Any) -> None:
    """Add the shares of right classes and of ours, and how far decision values are from ours in float64."""
    for row, found in zip(rows, answers, strict=True):
        if row["failed"]:
            continue
        classes, values = (found[call][0][0] for call in CALLS)
        row["accuracy"] = float(np.mean(classes == labels))
        if not rows[0]["failed"]:
            row["same"] = float(np.mean(classes == answers[0]["predict"][0][0]))
            row["apart"] = float(np.abs(values - wide).max() / np.abs(wide).max())
            if row["solver"] != "onedal" and not row["apart"] <= APART:
                row["misses"].append(f"decision values {row['apart']:.1e} from ours in float64")


def _show(result: Row) -> Shown:
    rows, notes = table.compared(result["sets"])
    ours: Row = {row["label"]: row.get("seconds") for row in rows if row.get("solver") == "clsvm"}

    def times(call: str) -> table.Column:
        return "times ours", lambda row: f"{row['seconds'][call] / ours[row['label']][call]:.1f}"

    columns = (
        ("set", "{label}"), ("tests", "{one[tests]}"), ("solver", "{named}"),
        ("classes s", "{seconds[predict]:.3g}"), times("predict"),
        ("values s", "{seconds[decision_function]:.3g}"), times("decision_function"),
        ("first MB", lambda row: f"{row['first'] / 1e6:.1f}"), ("later MB", lambda row: f"{row['later'] / 1e6:.1f}"),
        table.percent("right %", "accuracy"), table.percent("as ours %", "same"), ("apart", "{apart:.1e}"),
    )  # fmt: skip
    words = (
        "MB: by which resident memory rises during the first answer and a later one; apart: of decision values, from "
        "ours in float64, of the largest (oneDAL's model is its own)"
    )
    return shown(result, columns, rows, words, table.CHECKED, *notes, left=3)


COMMAND = Command(
    "predict",
    "answers of models of many support vectors beside the peers': seconds, memory, and whether they are the same",
    (
        sets_of(sets.CLASSES, SETS), peers(), DATA, repeats(5, "answers of each solver"),
        number("--repeats-libsvm", 1, "answers of LIBSVM"), number("--tests", 10000, "rows to answer for, at most"),
        number("--limit", 900.0, "seconds of an answer, after which a solver has no row; 0: none, in one process"),
    ),
    Part(each_set(predict_set), _show, table.ours_hold),
)  # fmt: skip
