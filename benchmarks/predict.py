"""Predictions of some thousand rows by models of many support vectors: seconds, agreement and memory.

clsvm trains a model, and clsvm.to_sklearn makes scikit-learn's of it. oneDAL trains its own models, one for each form
of the rows. Solutions are checked in float64. Each model is loaded into a fresh process. The processes take turns to
predict classes and decision values, with a column for each pair of classes. The rise of resident memory is measured for
the first prediction, which builds programs, and for the later ones. Decision values are compared with those of clsvm's
model in float64, by the largest difference over the largest value.
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
from benchmarks.solvers import Reply, at_work, later, turns
from benchmarks.table import Row, Shown, shown

SETS = ("mnist", "a9a", "letter", "news20_bydate")
CALLS = ("predict", "decision_function")
APART = 1e-4  # the relative difference of decision values in float32
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def train(name: str, asked: Asked) -> Row:
    """Train asked.solver with asked.form, or make LIBSVM's model from clsvm's, and write it to asked.folder.

    Returns the seconds and the solution, and for clsvm the decision values of the test rows in float64.
    """
    folder, form = asked.folder, asked.form
    if asked.solver == "libsvm":
        ours = pickle.loads((folder / "clsvm").read_bytes())
        model: Any = in_form(clsvm.to_sklearn(ours), form)
        (folder / f"libsvm {form}").write_bytes(pickle.dumps(model))
        return {}
    problem = sets.load(name, asked.data)
    given = solvers.parameters(problem) | {"decision_function_shape": "ovo"}
    reply = solvers.fitting(lambda: problem, asked.solver, form, given, {"device": asked.device})
    found = {"seconds": reply("fit"), "solution": reply("solution")}
    model = reply("model")
    (folder / ("clsvm" if asked.solver == "clsvm" else f"{asked.solver} {form}")).write_bytes(pickle.dumps(model))
    if asked.solver == "clsvm":
        wide = clsvm.from_sklearn(clsvm.to_sklearn(model), device=asked.device, dtype="float64")
        found["decisions"] = wide.decision_function(problem.X_test[: asked.tests])
    return found


def in_form(model: Any, form: str) -> Any:
    """Return a fitted SVC of scikit-learn, with its support vectors as an array if the form is dense."""
    if form.startswith("dense") and sp.issparse(model.support_vectors_):
        model._sparse = False
        for name in ("support_vectors_", "dual_coef_", "_dual_coef_"):
            setattr(model, name, getattr(model, name).toarray())
    return model


def answerer(model: Path, X: Any) -> Reply:
    """Return a function that calls a method of the model on X by its name.

    The function returns the values, the seconds, the resident bytes before the call and their rise.
    """
    loaded = pickle.loads(model.read_bytes())

    def reply(call: Any) -> tuple[Any, float, int | None, int | None]:
        gc.collect()
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, so that memory that is used again counts
        with suppress(OSError):
            CLEAR.write_text("5")  # resets the peak, see proc(5)
        before = resident("VmRSS")
        began = perf_counter()
        values = getattr(loaded, call)(X)
        seconds, peak = perf_counter() - began, resident("VmHWM")
        return values, seconds, before, None if before is None or peak is None else max(0, peak - before)

    return reply


def resident(field: str) -> int | None:
    """Return a field of this process's status in bytes, or None on systems other than Linux."""
    if not STATUS.exists():
        return None
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def predict_set(name: str, asked: Asked) -> Row:
    """Train each solver with each form of the rows, and time interleaved predictions."""
    problem = sets.load(name, asked.data)
    tests = problem.X_test[: asked.tests]
    entered = solvers.entered(asked.peers, problem.X, asked.repeats, asked.repeats_libsvm)
    with tempfile.TemporaryDirectory() as folder:
        trained = [
            command.in_own_process(train, name, asked, solver=who, form=form, folder=Path(folder))
            for who, form, _ in entered
        ]
        right = [i for i, found in enumerate(trained) if "error" not in found]
        models = [Path(folder) / ("clsvm" if who == "clsvm" else f"{who} {form}") for who, form, _ in entered]
        works = [(*entered[i], (models[i], solvers.formed(tests, entered[i][1]))) for i in right]
        with at_work(asked.limit, answerer, works) as made:
            answers: dict[Any, dict[str, list[Any]]] = {one: {call: [] for call in CALLS} for one in made}
            for call in CALLS:
                for one in turns(made):
                    answers[one][call].append(one.ask(call))
    rows: list[Row] = [
        {"solver": who, "form": form, "failed": found.get("error", ""), "misses": []}
        for (who, form, _), found in zip(entered, trained, strict=True)
    ]
    ours = None
    for i, one in zip(right, made, strict=True):
        row = rows[i]
        if one.failed:
            row["failed"] = one.failed
            continue
        row |= _replied(trained[i], answers[one])
        classes, values = (answers[one][call][0][0] for call in CALLS)
        row["accuracy"] = float(np.mean(classes == problem.y_test[: asked.tests]))
        ours = classes if i == 0 else ours
        if ours is not None:
            wide = trained[0]["decisions"]
            row["same"] = float(np.mean(classes == ours))
            row["apart"] = apart = float(np.abs(values - wide).max() / np.abs(wide).max())
            if row["solver"] != "onedal" and not apart <= APART:
                row["misses"].append(f"decision values differ from clsvm's in float64 by {apart:.1e}")
    check.judged(rows, [found.get("solution") for found in trained], problem, solvers.TOL)
    told = {"tests": tests.shape[0], "all_tests": problem.X_test.shape[0]}
    return problem.head() | told | {"tol": solvers.TOL, "rows": rows}


def _replied(trained: Row, answers: dict[str, list[Any]]) -> Row:
    """Return seconds and memory of a solver's predictions. warm: the seconds of predict."""
    every = {call: [seconds for _, seconds, _, _ in answers[call]] for call in CALLS}
    seconds = {call: later(times) for call, times in every.items()}
    _, _, before, first = answers["predict"][0]
    growths = [growth for *_, growth in answers["predict"][1:] if growth is not None]
    row = {"train_seconds": trained.get("seconds"), "seconds": seconds, "warm": seconds["predict"]}
    return row | {"all_seconds": every, "resident": before, "first": first, "later": max(growths, default=None)}


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
        "MB: rise of resident memory in the first prediction and a later one; apart: largest difference of a decision "
        "value from clsvm's model in float64, relative to the largest value (oneDAL trains its own model)"
    )
    return shown(result, columns, rows, words, table.CHECKED, *notes, left=3)


COMMAND = Command(
    "predict",
    "predictions by models of many support vectors beside the peers': seconds, memory and agreement",
    (
        sets_of(sets.CLASSES, SETS), peers(), DATA, repeats(5, "predictions of each solver"),
        number("--repeats-libsvm", 1, "predictions of LIBSVM"), number("--tests", 10000, "test rows at most"),
        number("--limit", 900.0, "seconds of a prediction, after which a solver ends; 0: none, in one process"),
    ),
    Part(each_set(predict_set), _show, table.ours_hold),
)  # fmt: skip
