"""Every task of the library beside scikit-learn's estimator of the same name: objectives, optimality, predictions.

Each pair of fits, at the same tolerance, is with and without sample weights, on dense rows and on CSR. Of ours is
checked:

    dual         recomputed from the coefficients of both, summed over pairs of classes: at most 1e-5 below
                 scikit-learn's, relative (where it is higher, it is nearer to the optimum)
    violation    recomputed: at most 1.2 tol; bounds and sums of the coefficients kept
    predictions  the same for 99.9 % of the test rows that are farther than 2e-3 from a boundary of scikit-learn's;
                 of a regression: R^2 within 1e-3
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import sklearn.svm
from threadpoolctl import threadpool_limits

import clsvm
from benchmarks import check, sets, table
from benchmarks.command import DATA, Asked, Command, Part, each_set, number, several
from benchmarks.sets import EPSILON, OUTSIDE, DataSet, Split
from benchmarks.solvers import dense, timed
from benchmarks.table import Row, Shown, shown

SAME, MARGIN, R2 = 0.999, 2e-3, 1e-3
FEASIBLE = 1e-9  # of the bounds, and of all that they allow
TASKS: dict[str, tuple[bool, ...]] = {  # estimators by their names, and whether they are for sets of numbers
    "SVC": (False,), "NuSVC": (False,), "SVR": (True,), "NuSVR": (True,), "OneClassSVM": (False, True),
}  # fmt: skip


def parameters(task: str, one: DataSet) -> dict[str, float]:
    """Return what a task takes of a set's numbers, beside gamma."""
    every = {"C": one.C, "nu": OUTSIDE if task == "OneClassSVM" else one.nu, "epsilon": EPSILON}
    return {name: every[name] for name in getattr(sklearn.svm, task)().get_params() if name in every}


def tasks_set(name: str, asked: Asked) -> Row:
    """Compare every task that fits the set of that name."""
    recipe, rows = sets.SETS[name], []
    X, y, X_test, y_test = split = sets.load(name, asked.data, few=True).split
    in_csr = sp.csr_matrix(X), y, sp.csr_matrix(X_test), y_test
    for form, one in (("dense", _dense(recipe, split)), ("CSR", in_csr)):
        for weights in (None, np.random.default_rng(0).choice([0.5, 1.0, 2.0], len(y))[: len(one[1])]):
            words = {"form": form, "weights": "none" if weights is None else "weighted"}
            for task in asked.tasks:
                if recipe.numbers in TASKS[task]:
                    found = words | compare(task, recipe, one, weights, asked)
                    rows.append({"task": task, **found, "misses": misses(found, asked.tol)})
    return {"set": name, "gamma": recipe.gamma, "tol": asked.tol, "remark": recipe.remark, "rows": rows}


def _dense(recipe: DataSet, split: Split) -> Split:
    """Return the split as arrays, or as much of it as the set takes."""
    X, y, X_test, y_test = split
    if recipe.most_dense:
        rows, tests = recipe.most_dense
        used = np.union1d(X[:rows].indices, X_test[:tests].indices)
        X, y, X_test, y_test = X[:rows, used], y[:rows], X_test[:tests, used], y_test[:tests]
    return dense(X), y, dense(X_test), y_test


def compare(task: str, recipe: DataSet, split: Split, weights: Any, asked: Asked) -> Row:
    """Fit ours and scikit-learn's, and recompute both."""
    X, y, *tests = split
    given: Row = {**parameters(task, recipe), "gamma": recipe.gamma, "tol": asked.tol}
    ours = getattr(clsvm, task)(**given, device=asked.device)
    theirs = getattr(sklearn.svm, task)(**given, cache_size=1000)
    bounds = given.get("C", 1.0) * (np.ones(len(y)) if weights is None else weights)
    rbf, seconds, standings = check.kernel("rbf", gamma=recipe.gamma), list[float](), list[list[check.Checked]]()
    # BLAS in one thread: LIBSVM's inner products of dense rows are calls too short to share
    with threadpool_limits(1, user_api="blas"):
        for model in (ours, theirs):
            seconds.append(timed(partial(model.fit, X, y, sample_weight=weights))[0])
            standings.append([check.standing(X, one, rbf) for one in check.duals(model, y, bounds)])
    mine, best = standings
    row: Row = {"n": X.shape[0], "d": X.shape[1], "converged": ours.fit_report_.converged, "seconds": seconds[0]}
    row |= check.merged(mine) | {"peer_seconds": seconds[1], "status": ours.fit_report_.status}
    row |= {f"peer_{key}": value for key, value in check.merged(best).items()}
    row |= {"dual_difference": _apart(mine, best)}
    row["worst_pair"] = max((_apart([a], [b]) for a, b in zip(mine, best, strict=True)), key=abs)
    row |= {"n_support": len(ours.support_), "peer_n_support": len(theirs.support_)}
    return row | {key: float(value) for key, value in _predictions(ours, theirs, *tests).items()}


def _predictions(ours: Any, theirs: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return both scores, and of classes and sides the share that is predicted alike among the clear test rows."""
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
    most, alike = check.VIOLATION * tol, "same" in row
    rules = {
        f"not converged: {row['status']}": row["converged"],
        f"dual {row['dual']:.8g} is {-row['dual_difference']:.2g} below scikit-learn's":
            row["dual_difference"] >= -check.DUAL,
        f"KKT violation {row['violation']:.3g} above 1.2 tol = {most:.3g}": row["violation"] <= most,
        f"constraints: bounds off by {row['box']:.2g}, sums by {row['off_sum']:.2g}":
            max(row["box"], row["off_sum"]) <= FEASIBLE,
        f"{100 * row.get('same', 0):.3f} % of the test rows predicted alike": not alike or row["same"] >= SAME,
        f"R^2 {row['score']:.5f}, scikit-learn's {row['peer_score']:.5f}":
            alike or abs(row["score"] - row["peer_score"]) <= R2,
    }  # fmt: skip
    return [words for words, holds in rules.items() if not holds]


def _show(result: Row) -> Shown:
    rows, notes = list[Row](), [f"{one['set']}: {one['remark']}" for one in result["sets"] if one.get("remark")]
    for one in result["sets"]:
        for row in one["rows"]:
            place = f"{one['set']}, {row['task']}, {row['form']}, {row['weights']}"
            notes += [f"{place}: {note}" for note in (*row["misses"], *row.get("notes", []))]
            rows.append({**row, "label": table.label(one | row), "task": row["task"] + "*" * bool(row["misses"])})
    held = sum(not row["misses"] for row in rows)
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


COMMAND = Command(
    "tasks",
    "SVC, NuSVC, SVR, NuSVR and OneClassSVM against scikit-learn's",
    (
        several("--sets", sets.OF_TASKS, None, "; all that are there"),
        several("--tasks", tuple(TASKS), tuple(TASKS)), DATA, number("--tol", 1e-3, "KKT tolerance of both"),
    ),
    Part(_measure, _show, lambda result: not any(row["misses"] for one in result["sets"] for row in one["rows"])),
)  # fmt: skip
