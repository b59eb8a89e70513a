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
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import sklearn.svm
from numpy.typing import NDArray
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from benchmarks import check, tasks_check
from benchmarks.sets import EPSILON, OUTSIDE, TASK_SETS, Split, TaskSet, load_task

DUAL = 1e-5
VIOLATION = 1.2  # of tol
SAME = 0.999
MARGIN = 2e-3
R2 = 1e-3
SUPPORT, SUPPORT_REPEATED = 0.01, 0.07
FEASIBLE = 1e-9  # of the bounds, and of all that they allow
FINER = 100

Predictions = dict[str, float]
"""What is said of the test rows: ``score`` and ``peer_score``, and ``same`` (share) of ``compared`` rows if classes."""


@dataclass(frozen=True, slots=True)
class Task:
    """An estimator that both libraries have by the same name."""

    targets: tuple[str, ...]
    """Of TaskSet: the sets that fit it."""
    parameters: Callable[[TaskSet], dict[str, float]]
    duals: tasks_check.Duals
    predictions: Callable[[Any, Any, Any, Any], Predictions]
    """Ours, scikit-learn's, test rows, test targets."""
    classes: bool = False
    """Whether it takes class_weight."""
    peer_classes: bool = True
    """Whether scikit-learn's heeds it: NuSVC's does not, and gets sample weights times class weights."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one comparison is asked to do."""

    tasks: tuple[str, ...]
    data: Path | None
    tol: float = 1e-3
    device: str | None = None


def _same_classes(ours: Any, theirs: Any, X: Any, y: Any) -> Predictions:
    theirs.decision_function_shape = "ovo"
    mine, expected = ours.predict(X), theirs.predict(X)
    clear = tasks_check.clear(theirs.decision_function(X), len(theirs.classes_), MARGIN)
    return _shares(mine, expected, clear) | {"score": np.mean(mine == y), "peer_score": np.mean(expected == y)}


def _same_sides(ours: Any, theirs: Any, X: Any, y: Any) -> Predictions:
    mine, expected = ours.predict(X), theirs.predict(X)
    clear = tasks_check.clear(theirs.decision_function(X), 2, MARGIN)
    return _shares(mine, expected, clear) | {"score": np.mean(mine > 0), "peer_score": np.mean(expected > 0)}


def _same_numbers(ours: Any, theirs: Any, X: Any, y: Any) -> Predictions:
    return {"score": ours.score(X, y), "peer_score": theirs.score(X, y)}


def _shares(mine: Any, expected: Any, clear: NDArray[np.bool_]) -> Predictions:
    same = mine == expected
    return {"same": np.mean(same[clear]), "compared": clear.sum(), "same_of_all": np.mean(same), "test": len(same)}


TASKS: dict[str, Task] = {
    "SVC": Task(
        ("classes",),
        lambda one: {"C": one.C},
        tasks_check.c_svc,
        _same_classes,
        classes=True,
    ),
    "NuSVC": Task(
        ("classes",),
        lambda one: {"nu": one.nu},
        tasks_check.nu_svc,
        _same_classes,
        classes=True,
        peer_classes=False,
    ),
    "SVR": Task(
        ("numbers",),
        lambda one: {"C": one.C, "epsilon": EPSILON},
        tasks_check.epsilon_svr,
        _same_numbers,
    ),
    "NuSVR": Task(
        ("numbers",),
        lambda one: {"C": one.C, "nu": one.nu},
        tasks_check.nu_svr,
        _same_numbers,
    ),
    "OneClassSVM": Task(
        ("classes", "numbers"),
        lambda one: {"nu": OUTSIDE},
        tasks_check.one_class,
        _same_sides,
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Rows and weights of one row of the table."""

    form: str
    weighted: bool
    X: Any
    y: NDArray[np.float64]
    X_test: Any
    y_test: NDArray[np.float64]
    repeated: bool
    """Whether a training row comes twice."""
    sample_weight: NDArray[np.float64] | None
    class_weight: dict[float, float] | None

    def weights(self, task: Task) -> NDArray[np.float64]:
        """Of each row, of both kinds as far as the task takes them."""
        weights = np.ones(len(self.y)) if self.sample_weight is None else self.sample_weight.copy()
        if task.classes and self.class_weight:
            weights *= np.array([self.class_weight[label] for label in self.y])
        return weights


def run(name: str, options: Options) -> dict[str, Any]:
    """Every task that fits the set of that name in TASK_SETS: a record that fits JSON, a row for each pair of fits."""
    recipe, rows = TASK_SETS[name], []
    split = load_task(name, options.data)
    fitting = [task for task in options.tasks if recipe.target in TASKS[task].targets]
    for case in _cases(recipe, split) if fitting else ():
        for task in fitting:
            row = compare(task, recipe, case, options)
            said = "; ".join([row["error"]] if row["error"] else [*row["misses"], *row["notes"]]) or "holds"
            print(f"{name} {task} {row['form']} {row['weights']}: {said}", file=sys.stderr, flush=True)
            rows.append(row)
    return {
        "set": name,
        "gamma": recipe.gamma,
        "classes": len(np.unique(split[1])) if recipe.target == "classes" else 0,
        "tol": options.tol,
        "remark": recipe.remark,
        "rows": rows,
    }


def _cases(recipe: TaskSet, split: Split) -> Iterator[Case]:
    """Without and with weights, dense and CSR. Half, full and double weights, of rows at random, of classes in turn."""
    X, y, X_test, y_test = split
    sample_weight = np.random.default_rng(0).choice([0.5, 1.0, 2.0], len(y))
    class_weight = {float(label): (0.5, 1.0, 2.0)[i % 3] for i, label in enumerate(np.unique(y))}
    for form, one in (("dense", _dense(recipe, split)), ("CSR", (sp.csr_matrix(X), y, sp.csr_matrix(X_test), y_test))):
        repeated = _repeated(one[0])
        yield Case(form, False, *one, repeated, None, None)
        given = class_weight if recipe.target == "classes" else None
        yield Case(form, True, *one, repeated, sample_weight[: len(one[1])], given)


def _dense(recipe: TaskSet, split: Split) -> Split:
    """The split as arrays, or as much of it as the set takes."""
    X, y, X_test, y_test = split
    if recipe.most_dense:
        rows, tests = recipe.most_dense
        used = np.union1d(X[:rows].indices, X_test[:tests].indices)
        X, y, X_test, y_test = X[:rows, used], y[:rows], X_test[:tests, used], y_test[:tests]
    return (X.toarray(), y, X_test.toarray(), y_test) if sp.issparse(X) else (X, y, X_test, y_test)


def _repeated(X: Any) -> bool:
    rows = sp.csr_matrix(X)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    distinct = {(rows.indices[i:j].tobytes(), rows.data[i:j].tobytes()) for i, j in ends}
    return len(distinct) < rows.shape[0]


def compare(name: str, recipe: TaskSet, case: Case, options: Options) -> dict[str, Any]:
    """Fits both, recomputes both and judges ours: one row, which fits JSON. What raises is in its ``error``."""
    row: dict[str, Any] = {
        "task": name,
        "form": case.form,
        "weights": "weighted" if case.weighted else "none",
        "n": case.X.shape[0],
        "d": case.X.shape[1],
        "repeated": case.repeated,
        "parameters": TASKS[name].parameters(recipe),
        "error": "",
    }
    try:
        # BLAS in one thread: LIBSVM's inner products of dense rows are calls too short to share
        with threadpool_limits(1, user_api="blas"):
            row |= _compared(name, recipe, case, options)
    except Exception as error:
        traceback.print_exc()
        return row | {"error": f"{type(error).__name__}: {error}"}
    return row | {"misses": misses(row, options.tol), "notes": notes(row)}


def _compared(name: str, recipe: TaskSet, case: Case, options: Options) -> dict[str, Any]:
    import clsvm

    task, common = TASKS[name], TASKS[name].parameters(recipe) | {"gamma": recipe.gamma, "tol": options.tol}
    weights, kernel_fn = case.weights(task), check.kernel("rbf", gamma=recipe.gamma)
    of_classes = {"class_weight": case.class_weight} if task.classes else {}
    ours = getattr(clsvm, name)(**common, **of_classes, device=options.device)
    their_weights = case.sample_weight
    if task.classes and not task.peer_classes:
        of_classes, their_weights = {}, weights
    theirs = getattr(sklearn.svm, name)(**common, **of_classes, cache_size=1000)
    seconds, said = _fit(ours, case, case.sample_weight)
    peer_seconds, _ = _fit(theirs, case, their_weights)
    row: dict[str, Any] = {"seconds": seconds, "peer_seconds": peer_seconds, "warnings": said}
    row |= {"device": ours.fit_report_.device, "converged": ours.fit_report_.converged}

    def standings(model: Any) -> list[tasks_check.Standing]:
        bounds = common.get("C", 1.0) * weights
        return [tasks_check.standing(case.X, one, kernel_fn) for one in task.duals(model, case.y, bounds)]

    mine, best = standings(ours), standings(theirs)
    row |= tasks_check.merged(mine) | {f"peer_{key}": value for key, value in tasks_check.merged(best).items()}
    row |= {"dual_difference": _apart(mine, best), "worst_pair": max(map(_apart_one, mine, best), key=abs)}
    if abs(row["dual_difference"]) > DUAL:
        finer = [clone(model).set_params(tol=options.tol / FINER) for model in (ours, theirs)]
        for model, given in zip(finer, (case.sample_weight, their_weights), strict=True):
            _fit(model, case, given)
        mine_finer, best_finer = map(standings, finer)
        row |= {"finer_difference": _apart(mine_finer, best_finer)}
        row |= {"below_best": -_apart(mine, best_finer), "peer_below_best": -_apart(best, best_finer)}
    row |= {"n_support": len(ours.support_), "peer_n_support": len(theirs.support_)}
    found = task.predictions(ours, theirs, case.X_test, case.y_test)
    return row | {key: float(value) for key, value in found.items()}


def _fit(model: Any, case: Case, sample_weight: Any) -> tuple[float, list[str]]:
    """The seconds of a fit, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        started = time.perf_counter()
        model.fit(case.X, case.y, sample_weight=sample_weight)
        seconds = time.perf_counter() - started
    return seconds, [str(warning.message) for warning in caught]


def _apart(mine: Sequence[tasks_check.Standing], best: Sequence[tasks_check.Standing]) -> float:
    """How far the summed objective is above (below: negative) the other's, of the other's size."""
    return _relative(sum(one.dual for one in mine), sum(one.dual for one in best))


def _apart_one(mine: tasks_check.Standing, best: tasks_check.Standing) -> float:
    return _relative(mine.dual, best.dual)


def _relative(mine: float, best: float) -> float:
    return (mine - best) / abs(best) if best else mine - best


def misses(row: dict[str, Any], tol: float) -> list[str]:
    """What of ours does not hold in a row of ``compare``, in words; empty where all does."""
    found = []
    if not row["converged"]:
        found.append(f"not converged: {'; '.join(row['warnings'])}")
    if not row["dual_difference"] >= -DUAL:
        found.append(f"dual {row['dual']:.8g} is {-row['dual_difference']:.2g} below scikit-learn's")
    if not abs(row.get("finer_difference", 0.0)) <= DUAL:
        found.append(f"dual {row['finer_difference']:+.2g} of scikit-learn's when both have tol / {FINER}")
    if not row["violation"] <= VIOLATION * tol:
        found.append(f"KKT violation {row['violation']:.3g} above {VIOLATION:g} tol = {VIOLATION * tol:.3g}")
    if not max(row["box"], row["off_sum"]) <= FEASIBLE:
        found.append(f"constraints: bounds off by {row['box']:.2g}, sums by {row['off_sum']:.2g}")
    if "same" in row and not row["same"] >= SAME:
        found.append(f"{100 * row['same']:.3f} % of {row['compared']:.0f} test rows predicted alike")
    if "same" not in row and not abs(row["score"] - row["peer_score"]) <= R2:
        found.append(f"R^2 {row['score']:.5f}, scikit-learn's {row['peer_score']:.5f}")
    share = SUPPORT_REPEATED if row["repeated"] else SUPPORT
    if not abs(row["n_support"] - row["peer_n_support"]) <= max(1, share * row["peer_n_support"]):
        found.append(f"{row['n_support']} support vectors, scikit-learn's {row['peer_n_support']}")
    return found


def notes(row: dict[str, Any]) -> list[str]:
    """What is worth knowing beside that."""
    if "finer_difference" not in row:
        return []
    return [
        f"dual {row['dual_difference']:+.1e} of scikit-learn's at the same tol; it is {row['below_best']:.1e} below "
        f"scikit-learn's at tol / {FINER}, scikit-learn's {row['peer_below_best']:.1e}; when both have tol / {FINER}, "
        f"{row['finer_difference']:+.1e}"
    ]
