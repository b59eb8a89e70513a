"""Folds of NuSVR and OneClassSVM, whose coefficients add up to something: they share rows, and keep their own sums."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold

import clsvm
from benchmarks import check
from clsvm import SVC, Kernel, OneClassSVM
from clsvm import problem as posed
from clsvm.fit import prepare
from clsvm.model_selection import SVCSearchCV, folds
from tests.conftest import calls_of
from tests.model_selection.test_model_selection import both, shared

RNG = np.random.default_rng(5)
X = RNG.normal([2, 0, 0], size=(150, 3))  # (around 0 a linear boundary of one class would be nowhere)
Y = np.sin(2 * X[:, 0] + 1) + 0.3 * X[:, 1] + 0.2 * RNG.normal(size=150)
WEIGHTS = RNG.choice([0.5, 1.0, 2.0], 150)
CV = KFold(3, shuffle=True, random_state=0)


def of_one_class(machine: Any, X: Any, y: Any = None, sample_weight: Any = None) -> dict[str, float]:
    """A scorer's scores by all that a machine of one class has to say."""
    typical, values = machine.score_samples(X).mean(), machine.decision_function(X)
    clear = machine.predict(X) * (np.abs(values) > 1e-3)  # (of rows at the boundary the sign is anyone's guess)
    inside, least = np.average(clear, weights=sample_weight), values.min()
    return {"inside": inside, "typical": typical, "least": least}


TASKS: dict[str, tuple[Any, Any, Any]] = {  # y, what is searched, how it is scored
    "NuSVR": (Y, {"nu": [0.23, 0.61], "C": [0.5, 5]}, ["r2", "neg_mean_absolute_error"]),
    "OneClassSVM": (None, {"nu": [0.117, 0.331, 0.613]}, of_one_class),
}
of_tasks = pytest.mark.parametrize("task", TASKS)


def machine(task: str, device: str, **given: Any) -> Any:
    return getattr(clsvm, task)(**{"device": device, "tol": 1e-6} | given)


def search(task: str, device: str, grid: Any = None, **given: Any) -> Any:
    """Of the rows with their weights, fitted."""
    target, usual, scoring = TASKS[task]
    kept = {name: given.pop(name) for name in ("tol", "gamma") if name in given}
    made = SVCSearchCV(machine(task, device, **kept), grid or usual, scoring=scoring, cv=CV, refit=False, **given)
    return made.fit(X, target, sample_weight=WEIGHTS)


def fitted(job: Any, one: Any, train: Any) -> Any:
    """The machine of a job that has learnt a solution over all rows, of which it was fitted to some."""
    model = clone(job.estimator)
    model.dual_coef_, model.support_ = (
        one.solution.b.reshape(-1, len(X)).sum(axis=0)[None, train],
        np.arange(len(train)),
    )
    model.intercept_ = np.array([-one.decision_values(model)[1]])
    return model


def scores(made: Any) -> Any:
    return np.stack([values for name, values in sorted(made.cv_results_.items()) if name.startswith("split")])


def product(A: Any, B: Any) -> Any:
    return rbf_kernel(A, B, gamma=0.4)


KERNELS: dict[str, tuple[Any, Any, Any]] = {  # rows, the kernel function, what is searched of it
    "rbf": (X, "rbf", {"gamma": [0.1, 1.0]}),
    "sparse": (sp.csr_matrix(np.where(np.abs(X) < 0.5, 0, X)), "rbf", {}),
    "linear": (X, "linear", {}),
    "precomputed": (rbf_kernel(X, gamma=0.4), "precomputed", {}),
    "function": (X, product, {}),
    "expression": (X, Kernel("1 / (1 + c * sqdist)", c=0.5), {"kernel__c": [0.5, 3]}),
}


@of_tasks
@pytest.mark.parametrize("case", KERNELS)
@pytest.mark.filterwarnings("ignore:kernel is a Python function")
def test_as_grid_search(device: str, monkeypatch: pytest.MonkeyPatch, task: str, case: str) -> None:
    alone, (rows, kernel, own) = shared(monkeypatch), KERNELS[case]
    target, grid, scoring = TASKS[task]
    options = {"cv": CV, "scoring": scoring, "refit": False, "return_train_score": True}
    weighted, grid = {"sample_weight": WEIGHTS}, grid | own
    ours, _ = both(machine(task, device, kernel=kernel), grid, rows, target, atol=2e-3, params=weighted, **options)
    assert not alone
    if case != "expression":
        theirs = GridSearchCV(getattr(svm, task)(kernel=kernel, tol=1e-6), grid, **options)
        np.testing.assert_allclose(scores(ours), scores(theirs.fit(rows, target, **weighted)), atol=2e-3)


@of_tasks
def test_each_solution_is_that_of_its_fold(device: str, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Rows that are left out have the coefficient 0; the others are a solution by long double, with the fold's sums."""
    found = calls_of(monkeypatch, folds.Folds, "_solve_fits")
    made = search(task, device, tol=1e-4, gamma=0.4)
    assert len(found) == 3 * len(made.cv_results_["params"])
    K, splits = check.gram("rbf", {"gamma": 0.4}, X), list(CV.split(X))
    for (_, job, *_), _, (one,) in found:
        train, test = splits[job.fold]
        copies = one.solution.b.reshape(-1, len(X))
        assert not copies[:, test].any()
        model = fitted(job, one, train)
        checked = check.check(model, K[np.ix_(train, train)], Y[train], WEIGHTS[train])
        assert checked.violation < 1.5e-4
        assert max(checked.off_share, checked.box, checked.offset) < 1e-9
        expected = model.nu * WEIGHTS[train].sum() * getattr(model, "C", 1)
        np.testing.assert_allclose(np.abs(copies).sum(), expected, rtol=1e-9)


@of_tasks
def test_a_fold_begins_near_its_end(device: str, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Of what is solved after the first candidate and fold, most is there already."""
    solves = calls_of(monkeypatch, prepare.PreparedFit, "solve_smo")
    grid = TASKS[task][1] | ({"C": [0.1, 0.3]} if task == "NuSVR" else {})
    near = search(task, device, grid, tol=1e-3, gamma=0.4)
    taken, before = sum(call.result.steps for call in solves), len(solves)
    monkeypatch.setattr(folds.FoldSolution, "start", lambda self, problem: {})
    cold = search(task, device, grid, tol=1e-3, gamma=0.4)
    assert taken < 0.75 * sum(call.result.steps for call in solves[before:])
    np.testing.assert_allclose(scores(near), scores(cold), atol=0.02)


SIGNS = np.array([[1.0, 1.0, -1.0, -1.0, 1.0, -1.0]])
FOUR = np.array([[1.0, -1.0, 1.0, -1.0]])
BEGINNINGS: dict[str, tuple[Any, ...]] = {  # the old problem, its b, f and rho, the new one, where that begins
    "new rows begin at the side that their margin says": (
        posed.c_svc(SIGNS * [1, 1, 1, 1, 0, 0], np.ones((1, 6))),
        [1.0, 0.2, -0.2, -1.0, 0, 0],
        [-3.0, 0, 0, 3.0, -2.0, 2.0],
        [0.0],
        posed.c_svc(SIGNS * [0, 1, 1, 1, 1, 1], np.full((1, 6), 2.0)),
        [0, 2, 0, -2, 2, -2],
    ),
    "for another nu b is not scaled: rows nearest to the margin take what is missing": (
        posed.one_class(0.5, np.ones(6)).embedded(np.arange(6), 8),
        [1, 1, 0.5, 0.5, 0, 0, 0, 0],
        [5, 6, 7, 7, 7.2, 9, 4, 10.0],
        [7.0],
        posed.one_class(0.75, np.ones(6)).embedded(np.arange(1, 7), 8),
        [0, 1, 1, 1, 0.5, 0, 1, 0],
    ),
    "each of two sums is made up by the rows nearest to its own margin, and C scales what is there": (
        posed.nu_svr(np.zeros(4), np.ones(4), 0.5).embedded(np.arange(8), 8),
        [0.4, 0, 0.6, 0, 0, -1, 0, 0],
        [-1, 0.9, -1, 1.2] * 2,
        [-1, 1.0],
        posed.nu_svr(np.zeros(4), np.full(4, 10.0), 0.8).embedded(np.arange(8), 8),
        [10, 0, 6, 0, 0, -10, 0, -6],
    ),
    "what is at a bound stays there, whatever rounding does to the ratio of two values of C": (
        posed.c_svc(0.1 * FOUR, np.ones((1, 4))),
        [0.1, -0.1, 0.05, -0.05],
        [-1, 1, -1, 1.0],
        [0.0],
        posed.c_svc(1.9 * FOUR, np.ones((1, 4))),
        [1.9, -1.9, 0.95, -0.95],
    ),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_where_the_next_problem_begins(case: str) -> None:
    """Within its bounds and with its sums; coefficients that are only rounded cost no row of K."""
    old, b, f, rho, new, expected = BEGINNINGS[case]
    b, f = np.array([b], np.float64), np.array([f], np.float64)
    solution = type("S", (), {"b": b, "f": f, "rho": np.array([rho])})
    begun, ratio = folds.FoldSolution(old, solution).start(new), old.ratio(new)  # type: ignore[arg-type]
    start, (near, of_near) = begun["start"], begun["known_gradient"]
    np.testing.assert_allclose(start, [expected], atol=1e-12)
    np.testing.assert_allclose(near, ratio * b, rtol=1e-12)
    np.testing.assert_allclose(of_near, ratio * (f - old.q) + new.q)
    for other in (new.lo, new.hi, near):
        alike = np.isclose(start, other, rtol=1e-12, atol=0)
        np.testing.assert_array_equal(start[alike], other[alike])


def test_goes_on_from_a_checkpoint(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What scorers of one class ask for is kept, too."""
    first = search("OneClassSVM", device, checkpoint=tmp_path / "search.npz")
    monkeypatch.setattr(prepare.PreparedFit, "solve_smo", lambda *_, **__: pytest.fail("a fit was begun"))
    again = search("OneClassSVM", device, checkpoint=tmp_path / "search.npz")
    np.testing.assert_array_equal(scores(first), scores(again))


def test_scorers_of_one_class(device: str) -> None:
    """Fits that go alone say the same, and machines of other kinds have no scores."""
    both(OneClassSVM(device=device, warm_start=True), {"nu": [0.2]}, X, None, cv=3, scoring=of_one_class, refit=False)

    def said(machine: Any, X: Any, y: Any) -> float:
        return float(hasattr(machine, "score_samples"))

    assert SVCSearchCV(SVC(device=device), {"C": [1]}, cv=2, scoring=said).fit(X, Y > 0).best_score_ == 0
