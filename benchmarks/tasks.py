"""Every task of the library beside scikit-learn's estimator of the same name: objectives, optimality, predictions.

Each pair of fits, at the same tolerance, is with and without weights, on dense rows and on CSR. Of ours is checked:

    dual         recomputed from the coefficients of both, summed over pairs of classes: within 1e-5 of scikit-learn's,
                 relative; where it is higher, which is nearer to the optimum, both have to agree to 1e-5 at a
                 hundredth of the tolerance, and a note has the figures
    violation    recomputed: at most 1.2 tol; bounds and sums of the coefficients kept
    predictions  the same for 99.9 % of the test rows that are farther than 2e-3 from a boundary of scikit-learn's;
                 of a regression: R^2 within 1e-3
    n_support_   within 1 % (or a row), 7 % where training rows repeat, whose coefficients may stand on any of them
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import sklearn.svm
from numpy.typing import NDArray
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import clsvm
from benchmarks import check, sets, table
from benchmarks.command import DATA, Asked, Command, Part, each_set, number, several
from benchmarks.sets import EPSILON, OUTSIDE, DataSet, Split
from benchmarks.table import Row, Shown, shown

SAME, MARGIN, R2 = 0.999, 2e-3, 1e-3
SUPPORT, SUPPORT_REPEATED = 0.01, 0.07
FEASIBLE = 1e-9  # of the bounds, and of all that they allow
FINER = 100


@dataclass(frozen=True, slots=True)
class Task:
    """An estimator that both libraries have by the same name.

    numbers: whether it is for sets of numbers. classes: whether it takes class_weight. peer_classes: whether
    scikit-learn's heeds it; NuSVC's does not, and gets sample weights times class weights.
    """

    numbers: tuple[bool, ...]
    parameters: Callable[[DataSet], dict[str, float]]
    duals: check.Duals
    classes: bool = False
    peer_classes: bool = True


TASKS: dict[str, Task] = {
    "SVC": Task((False,), lambda one: {"C": one.C}, check.c_svc, classes=True),
    "NuSVC": Task((False,), lambda one: {"nu": one.nu}, check.nu_svc, classes=True, peer_classes=False),
    "SVR": Task((True,), lambda one: {"C": one.C, "epsilon": EPSILON}, check.epsilon_svr),
    "NuSVR": Task((True,), lambda one: {"C": one.C, "nu": one.nu}, check.nu_svr),
    "OneClassSVM": Task((False, True), lambda one: {"nu": OUTSIDE}, check.one_class),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Rows and weights of one row of the table. repeated: whether a training row comes twice."""

    form: str
    split: Split
    repeated: bool
    sample_weight: NDArray[np.float64] | None = None
    class_weight: dict[float, float] | None = None

    def weights(self, task: Task) -> NDArray[np.float64]:
        """Return the weight of each row, of both kinds as far as the task takes them."""
        _, y, *_ = self.split
        weights = np.ones(len(y)) if self.sample_weight is None else self.sample_weight.copy()
        if task.classes and self.class_weight:
            weights *= np.array([self.class_weight[label] for label in y])
        return weights


def tasks_set(name: str, asked: Asked) -> Row:
    """Compare every task that fits the set of that name."""
    recipe, rows = sets.SETS[name], []
    split = sets.load(name, asked.data, few=True).split
    fitting = [task for task in asked.tasks if recipe.numbers in TASKS[task].numbers]
    for case in _cases(recipe, split) if fitting else ():
        for task in fitting:
            row = compare(task, recipe, case, asked)
            said = "; ".join([row["error"]] if row["error"] else [*row["misses"], *row["notes"]]) or "holds"
            print(f"{name} {task} {row['form']} {row['weights']}: {said}", file=sys.stderr, flush=True)
            rows.append(row)
    return {"set": name, "gamma": recipe.gamma, "tol": asked.tol, "remark": recipe.remark, "rows": rows}


def _cases(recipe: DataSet, split: Split) -> Iterator[Case]:
    """Yield dense and CSR rows, without and with weights: half, full and double, of random rows, of classes in turn."""
    X, y, X_test, y_test = split
    sample_weight = np.random.default_rng(0).choice([0.5, 1.0, 2.0], len(y))
    class_weight = {float(label): (0.5, 1.0, 2.0)[i % 3] for i, label in enumerate(np.unique(y))}
    for form, one in (("dense", dense(recipe, split)), ("CSR", (sp.csr_matrix(X), y, sp.csr_matrix(X_test), y_test))):
        rows = sp.csr_matrix(one[0])
        repeats = len({(row.indices.tobytes(), row.data.tobytes()) for row in rows}) < rows.shape[0]
        yield Case(form, one, repeats)
        given = None if recipe.numbers else class_weight
        yield Case(form, one, repeats, sample_weight[: len(one[1])], given)


def dense(recipe: DataSet, split: Split) -> Split:
    """Return the split as arrays, or as much of it as the set takes."""
    X, y, X_test, y_test = split
    if recipe.most_dense:
        rows, tests = recipe.most_dense
        used = np.union1d(X[:rows].indices, X_test[:tests].indices)
        X, y, X_test, y_test = X[:rows, used], y[:rows], X_test[:tests, used], y_test[:tests]
    return (X.toarray(), y, X_test.toarray(), y_test) if sp.issparse(X) else (X, y, X_test, y_test)


def compare(name: str, recipe: DataSet, case: Case, asked: Asked) -> Row:
    """Fit both, recompute both and judge ours. An error is in the row's ``error``."""
    n, d = case.split[0].shape
    weights = "none" if case.sample_weight is None else "weighted"
    row: Row = {"task": name, "form": case.form, "weights": weights, "n": n, "d": d, "repeated": case.repeated}
    try:
        # BLAS in one thread: LIBSVM's inner products of dense rows are calls too short to share
        with threadpool_limits(1, user_api="blas"):
            row |= {"error": ""} | _compared(name, recipe, case, asked)
    except Exception as error:
        traceback.print_exc()
        return row | {"error": f"{type(error).__name__}: {error}"}
    return row | {"misses": misses(row, asked.tol), "notes": _notes(row)}


def _compared(name: str, recipe: DataSet, case: Case, asked: Asked) -> Row:
    task, common = TASKS[name], TASKS[name].parameters(recipe) | {"gamma": recipe.gamma, "tol": asked.tol}
    weights, rbf = case.weights(task), check.kernel("rbf", gamma=recipe.gamma)
    of_classes = {"class_weight": case.class_weight} if task.classes else {}
    ours = getattr(clsvm, name)(**common, **of_classes, device=asked.device)
    given = [case.sample_weight, case.sample_weight]
    if task.classes and not task.peer_classes:
        of_classes, given[1] = {}, weights
    both = ours, getattr(sklearn.svm, name)(**common, **of_classes, cache_size=1000)

    def fits(models: Sequence[Any]) -> tuple[list[float], list[list[check.Checked]], list[str]]:
        """Return the seconds, standings and warnings of the fits."""
        X, y, *_ = case.split
        seconds, standings, said = [], [], []
        bounds = common.get("C", 1.0) * weights
        for model, own in zip(models, given, strict=True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                began = time.perf_counter()
                model.fit(X, y, sample_weight=own)
                seconds.append(time.perf_counter() - began)
            said += [str(warning.message) for warning in caught if model is ours]
            standings.append([check.standing(X, one, rbf) for one in task.duals(model, y, bounds)])
        return seconds, standings, said

    seconds, (mine, best), said = fits(both)
    report = ours.fit_report_
    row: Row = {"seconds": seconds[0], "peer_seconds": seconds[1], "warnings": said, "converged": report.converged}
    row |= check.merged(mine) | {f"peer_{key}": value for key, value in check.merged(best).items()}
    row["dual_difference"] = _apart(mine, best)
    row["worst_pair"] = max((_apart([a], [b]) for a, b in zip(mine, best, strict=True)), key=abs)
    if abs(row["dual_difference"]) > check.DUAL:
        _, (mine_finer, best_finer), _ = fits([clone(model).set_params(tol=asked.tol / FINER) for model in both])
        row["finer_difference"] = _apart(mine_finer, best_finer)
        row |= {"below_best": -_apart(mine, best_finer), "peer_below_best": -_apart(best, best_finer)}
    row |= {"n_support": len(both[0].support_), "peer_n_support": len(both[1].support_)}
    return row | {key: float(value) for key, value in _predictions(*both, case.split).items()}


def _predictions(ours: Any, theirs: Any, split: Split) -> dict[str, Any]:
    """Return both scores, and of classes and sides the share that is predicted alike among the clear test rows."""
    *_, X, y = split
    if not hasattr(theirs, "decision_function"):
        return {"score": ours.score(X, y), "peer_score": theirs.score(X, y)}
    classes = getattr(theirs, "classes_", np.array([-1, 1]))
    if len(classes) > 2:
        theirs.decision_function_shape = "ovo"
    mine, expected = ours.predict(X), theirs.predict(X)
    clear = check.clear(theirs.decision_function(X), len(classes), MARGIN)
    right = y if hasattr(theirs, "classes_") else 1
    scores = {"score": np.mean(mine == right), "peer_score": np.mean(expected == right)}
    return scores | {"same": np.mean((mine == expected)[clear]), "compared": clear.sum()}


def _apart(mine: Sequence[check.Checked], best: Sequence[check.Checked]) -> float:
    """Return how far the summed objective is above (below: negative) the other's, relative to it."""
    ours, theirs = (sum(one.dual for one in some) for some in (mine, best))
    return (ours - theirs) / abs(theirs) if theirs else ours - theirs


def misses(row: Row, tol: float) -> list[str]:
    """Return what of ours does not hold in a row of ``compare``, in words."""
    most = check.VIOLATION * tol
    share = SUPPORT_REPEATED if row["repeated"] else SUPPORT
    apart = abs(row["n_support"] - row["peer_n_support"])
    alike = "same" in row
    rules = {
        f"not converged: {'; '.join(row['warnings'])}": row["converged"],
        f"dual {row['dual']:.8g} is {-row['dual_difference']:.2g} below scikit-learn's":
            row["dual_difference"] >= -check.DUAL,
        f"dual {row.get('finer_difference', 0):+.2g} of scikit-learn's when both have tol / {FINER}":
            abs(row.get("finer_difference", 0.0)) <= check.DUAL,
        f"KKT violation {row['violation']:.3g} above 1.2 tol = {most:.3g}": row["violation"] <= most,
        f"constraints: bounds off by {row['box']:.2g}, sums by {row['off_sum']:.2g}":
            max(row["box"], row["off_sum"]) <= FEASIBLE,
        f"{100 * row.get('same', 0):.3f} % of the test rows predicted alike": not alike or row["same"] >= SAME,
        f"R^2 {row['score']:.5f}, scikit-learn's {row['peer_score']:.5f}":
            alike or abs(row["score"] - row["peer_score"]) <= R2,
        f"{row['n_support']} support vectors, scikit-learn's {row['peer_n_support']}":
            apart <= max(1, share * row["peer_n_support"]),
    }  # fmt: skip
    return [words for words, holds in rules.items() if not holds]


def _notes(row: Row) -> list[str]:
    if "finer_difference" not in row:
        return []
    return [
        f"dual {row['dual_difference']:+.1e} of scikit-learn's at the same tol; it is {row['below_best']:.1e} below "
        f"scikit-learn's at tol / {FINER}, scikit-learn's {row['peer_below_best']:.1e}; when both have tol / {FINER}, "
        f"{row['finer_difference']:+.1e}"
    ]


def _show(result: Row) -> Shown:
    rows, notes, held = [], [], 0
    for one in result["sets"]:
        notes += [f"{one['set']}: {words}" for words in (one.get("error"), one.get("remark")) if words]
        for row in one.get("rows", []):
            missed = [row["error"]] if row["error"] else row["misses"]
            held += not missed
            place = f"{one['set']}, {row['task']}, {row['form']}, {row['weights']}"
            notes += [f"{place}: {note}" for note in (*missed, *row.get("notes", []))]
            marked = row["task"] + "*" * bool(missed)
            rows.append({**row, "label": table.label(one | row), "task": marked})
    columns = (
        ("set", "{label}"), ("task", "{task}"), ("form", "{form}"),
        ("weights", lambda row: "yes" if row["weights"] == "weighted" else ""), ("dual", "{dual:.8g}"),
        ("off by", "{dual_difference:+.1e}"), ("worst pair", "{worst_pair:+.1e}"),
        ("violation", "{violation:.2e} / {peer_violation:.2e}"),
        ("predicted alike", lambda row: f"{100 * row['same']:.2f} % of {row['compared']:.0f}"),
        ("score", "{score:.4f} / {peer_score:.4f}"), ("SVs", "{n_support} / {peer_n_support}"),
        ("seconds", "{seconds:.2g} / {peer_seconds:.2g}"),
    )  # fmt: skip
    words = (
        "pairs of figures: ours / scikit-learn's; off by: of its dual objective, and of the worst pair of classes; "
        f"predicted alike: test rows farther than {MARGIN:g} from a boundary; score: accuracy, R^2, or the share inside"
    )
    return shown(result, columns, rows, f"{held} of {len(rows)} rows hold", words, table.CHECKED, *notes, left=4)


def _measure(asked: Asked) -> Row:
    asked.sets = asked.sets or [name for name in sets.OF_TASKS if asked.data or name in sets.BUNDLED]
    return each_set(tasks_set)(asked)


def _holds(result: Row) -> bool:
    every = [row for one in result["sets"] for row in one.get("rows", [one])]
    return not any(row.get("error") or row.get("misses") for row in every)


COMMAND = Command(
    "tasks",
    "SVC, NuSVC, SVR, NuSVR and OneClassSVM against scikit-learn's",
    (
        several("--sets", sets.OF_TASKS, None, "; all that are there"),
        several("--tasks", tuple(TASKS), tuple(TASKS)), DATA, number("--tol", 1e-3, "KKT tolerance of both"),
    ),
    Part(_measure, _show, _holds),
)  # fmt: skip
