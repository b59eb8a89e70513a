"""Random nasty problems of every task, checked in long double and against LIBSVM, by checks that see what is wrong.

CLSVM_DIFFERENTIAL=5000 takes so many cases in place of the few that a test run has time for, from number
CLSVM_DIFFERENTIAL_SEED on, and prints what it saw.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn import svm

from tests.conftest import noisy, thrifty
from tests.differential import Result, Summary, Worker, broken, run, solved
from tests.nasty import MAX_TIME, case
from tests.recheck import Checked, check, gram

pytestmark = pytest.mark.full

COUNT = int(os.environ.get("CLSVM_DIFFERENTIAL", "60"))
FIRST = int(os.environ.get("CLSVM_DIFFERENTIAL_SEED", "1035"))
PATIENCE = MAX_TIME if "CLSVM_DIFFERENTIAL" in os.environ else 1.0  # seconds that LIBSVM has
COUNTED = ("unsolved", "refused", "warning")  # one by one no fault
TIGHT = {"tol": 1e-7, "gamma": 0.3}


def test_random_problems(device: str) -> None:
    if thrifty(device) and "CLSVM_DIFFERENTIAL" not in os.environ:
        pytest.skip("a program for every kernel and task; set CLSVM_DIFFERENTIAL")
    summary = Summary()
    for problem, ours, theirs in run(range(FIRST, FIRST + COUNT), device, patience=PATIENCE):
        summary.add(problem, ours, theirs)
    print(summary)
    assert [one for one in summary.found if one.rule not in COUNTED] == []
    within = "of these within float64's precision, "
    assert summary.counts[within + "converged"] >= summary.counts[within + "LIBSVM solved"] > COUNT // 4


def peers() -> list[tuple[Any, Any]]:
    """LIBSVM's machines of every task, of rows that ask for no accuracy, and their targets."""
    X, y = noisy(60, 3)
    several = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    weights = np.random.default_rng(0).choice([0.5, 1.0, 2.0], 60)
    made = [
        (svm.SVC(C=3, class_weight="balanced", **TIGHT), y),
        (svm.SVC(C=3, **TIGHT), several),
        (svm.NuSVC(nu=0.3, **TIGHT), y),
        (svm.NuSVC(nu=0.3, **TIGHT), several),
        (svm.SVR(C=3, epsilon=0.1, **TIGHT), X[:, 1]),
        (svm.NuSVR(C=3, nu=0.3, **TIGHT), X[:, 1]),
        (svm.OneClassSVM(nu=0.3, **TIGHT), None),
    ]
    return [(model.fit(X, target, sample_weight=weights), target) for model, target in made]


def scaled(model: Any) -> None:
    model.dual_coef_ *= 1.5


def added(model: Any) -> None:
    model.dual_coef_[:, 0] += 0.2


def moved(model: Any) -> None:
    """A tenth of a coefficient from one row to another with the same sign."""
    b = model.dual_coef_[0]
    i, j = np.flatnonzero(b > 0)[:2]
    b[[i, j]] += 0.1 * b[i] * np.array([-1, 1])


def shifted(model: Any) -> None:
    model.intercept_ += 0.5


@pytest.mark.parametrize("number", range(7))
def test_the_check_sees_what_is_wrong(number: int) -> None:
    """LIBSVM's solutions are right, and no longer so when coefficients or an offset are changed."""
    model, y = peers()[number]
    K, kind = gram("rbf", {"gamma": 0.3}, noisy(60, 3)[0]), type(model).__name__

    def checked(change: Any = None) -> Checked:
        other = deepcopy(model)
        if change is not None:
            change(other)
        return check(other, K, y, np.random.default_rng(0).choice([0.5, 1.0, 2.0], 60))

    right = checked()
    assert right.known
    assert right.violation < 1e-5
    assert max(right.sums, right.boxes, right.offset) < 1e-10
    assert 0 < right.reach <= right.size
    assert checked(moved).violation > 1e-2
    assert checked(moved).dual < right.dual
    assert max(checked(added).sums, checked(added).violation) > 1e-3
    if kind != "NuSVC":  # (which has its coefficients up to a factor)
        assert max(checked(scaled).sums, checked(scaled).boxes) > 1e-3
    if not kind.startswith("Nu"):
        assert checked(added).sums > 1e-5
        assert checked(shifted).offset > 0.1


GOOD = Result(True, "converged", 1e-4, 1.0, Checked(violation=1e-4, dual=1.0, size=2.0, reach=2.0), 0.1)


def seen(ours: Result, theirs: Result | None = GOOD) -> list[str]:
    """The rules that a result breaks, of a case with tol=1e-3."""
    return [rule for rule, _ in broken(case(2), ours, theirs)]


def test_the_rules() -> None:
    """Each is broken by what it is about."""
    assert case(2).asked["tol"] == 1e-3
    assert case(2).has_peer

    def but(**changes: Any) -> Result:
        assert GOOD.checked
        return GOOD._replace(checked=replace(GOOD.checked, **changes))

    undone = GOOD._replace(converged=False)
    assert seen(GOOD) == seen(GOOD, None) == []
    assert seen(but(violation=1.3e-3)) == ["violation"]
    assert seen(but(violation=1.3e-3, known=False)) == seen(but(violation=1.3e-3)._replace(converged=False), None) == []
    assert seen(but(boxes=1e-8)) == ["box"]
    assert seen(but(sums=1e-8)) == ["sum"]
    assert seen(but(offset=2e-3)) == ["offset"]
    assert seen(but(reach=1e12)) == ["beyond float64"]
    assert seen(GOOD._replace(dual=1.001)) == ["dual"]
    assert seen(GOOD._replace(dual=float("nan"))) == ["not finite"]
    assert seen(but(dual=0.9)._replace(dual=0.9)) == ["objective"]
    assert seen(but(dual=0.9)._replace(dual=0.9), but(violation=2e-3)) == []
    assert seen(undone) == ["unsolved"]
    assert seen(undone, undone) == []
    refused = Result(error="ValueError", words="ValueError: no")
    assert seen(refused, refused) == []
    assert seen(refused) == seen(refused, None) == ["refused"]
    assert seen(Result(error="hang")) == ["hang"]
    assert seen(GOOD._replace(words="model.py:1: overflow")) == ["warning"]
    summary = Summary()
    summary.add(case(2), but(violation=1.3e-3), GOOD)
    assert "1  BROKEN violation: seeds 2" in str(summary)


def test_a_worker_is_replaced() -> None:
    """What takes too long is ended, and so is what died; the next case has a process again."""
    worker = Worker("theirs", None, 0.0)
    try:
        assert worker(2).error == "hang"
        worker.seconds = MAX_TIME
        assert solved(worker(12), case(12).asked["tol"])
        worker.process.kill()
        assert worker(12).error == "crash"
        assert solved(worker(12), case(12).asked["tol"])
    finally:
        worker.close()
