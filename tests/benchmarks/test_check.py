"""The one checker of solutions: right by the definitions, and blind to nothing that can be wrong with a solution."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.metrics.pairwise import pairwise_kernels

from benchmarks import check
from tests.conftest import noisy

X, SIGNS = noisy(60, 3)
WEIGHTS = np.random.default_rng(0).choice([0.5, 1.0, 2.0], 60)
THREE = np.array(["a", "b", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
TIGHT: dict[str, Any] = {"tol": 1e-7, "gamma": 0.3}
PEERS = {
    "SVC": (svm.SVC(C=3, class_weight="balanced", **TIGHT), SIGNS),
    "SVC of three classes": (svm.SVC(C=3, **TIGHT), THREE),
    "NuSVC": (svm.NuSVC(nu=0.3, **TIGHT), SIGNS),
    "NuSVC of three classes": (svm.NuSVC(nu=0.3, **TIGHT), THREE),
    "SVR": (svm.SVR(C=3, epsilon=0.1, **TIGHT), X[:, 1]),
    "NuSVR": (svm.NuSVR(C=3, nu=0.3, **TIGHT), X[:, 1]),
    "OneClassSVM": (svm.OneClassSVM(nu=0.3, **TIGHT), None),
}
RBF = check.kernel("rbf", gamma=0.3)


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


@pytest.mark.parametrize("name", PEERS)
def test_libsvms_solutions_are_right_and_changed_ones_are_not(name: str) -> None:
    model, y = PEERS[name]
    model.fit(X, y, sample_weight=WEIGHTS)
    K, kind = check.gram("rbf", {"gamma": 0.3}, X), name.split()[0]

    def checked(change: Any = None) -> check.Checked:
        other = deepcopy(model)
        if change is not None:
            change(other)
        return check.check(other, K, y, WEIGHTS)

    right = checked()
    assert right.known
    assert right.violation < 1e-5
    assert 0 <= right.primal - right.dual < 1e-5 * max(1.0, abs(right.dual))
    assert max(right.off_share, right.box, right.offset) < 1e-10
    assert 0 < right.reach <= right.size
    assert right.n_support >= len(model.support_)
    assert checked(moved).violation > 1e-2
    assert checked(moved).dual < right.dual
    assert max(checked(added).off_share, checked(added).violation) > 1e-3
    if kind != "NuSVC":  # (which has its coefficients up to a factor)
        assert max(checked(scaled).off_share, checked(scaled).box) > 1e-3
    if not kind.startswith("Nu"):
        assert checked(added).off_share > 1e-5
        assert checked(shifted).offset > 0.1
        assert checked(shifted).primal > right.primal
    for form in (np.asarray, sp.csr_matrix):  # in blocks the same to rounding
        given = list(check.duals(model, y, check.bounds_of(model, y, 60, WEIGHTS)))
        again = check.joined([check.standing(form(X), one, RBF) for one in given])
        assert again.dual == pytest.approx(right.dual, rel=1e-12)
        assert again.primal == pytest.approx(right.primal, rel=1e-9)


@pytest.mark.parametrize("rho", [None, 0.2])
def test_any_dual_is_recomputed_from_its_definition(rho: float | None) -> None:
    """Variables over some of the rows, two over the same row, two groups, with epsilon: step by step along pairs."""
    rng = np.random.default_rng(2)
    rows, first = np.array([8, 0, 3, 5, 3, 7]), np.arange(6) < 3
    b = np.array([0.0, 1.0, 0.3, -0.2, 0.5, -1.0])
    lo, hi, q, epsilon = np.full(6, -1.0), np.ones(6), rng.normal(size=6), 0.3
    problem = check.Dual(rows, b, lo, hi, q, epsilon, [(first, 1.3), (~first, -0.6)], rho)
    K = pairwise_kernels(X[rows], metric="rbf", gamma=0.3)

    def value(b: Any) -> float:
        return -sum(b[i] * (sum(b[j] * K[i, j] for j in range(6)) / 2 + q[i]) + epsilon * abs(b[i]) for i in range(6))

    def primal(offsets: Any) -> float:
        losses, t = 0.0, np.linspace(-1, 1, 201)
        for i in range(6):
            losses += max(-(K[i] @ b + q[i] - offsets[int(i >= 3)]) * t - epsilon * np.abs(t))
        return float(b @ K @ b / 2 + losses - offsets[0] * 1.3 + offsets[1] * 0.6)

    steepest, step = 0.0, 1e-7
    for i, j in ((i, j) for i in range(6) for j in range(6) if i != j and first[i] == first[j]):
        moved = b.copy()
        moved[i] += step
        moved[j] -= step
        if moved[i] <= 1 and moved[j] >= -1:
            steepest = max(steepest, (value(moved) - value(b)) / step)
    found = check.standing(X, problem, RBF)
    assert found.dual == pytest.approx(value(b), rel=1e-12)
    assert found.violation == pytest.approx(steepest, abs=1e-5)
    assert found.violation > 0.1
    assert found.off_sum == pytest.approx(0.1)
    assert found.box == 0
    if rho is None:
        grid = np.linspace(-3, 3, 601)
        best = min(primal((one, 0.0)) for one in grid) + min(primal((0.0, one)) for one in grid) - primal((0.0, 0.0))
        assert best - 0.05 < found.primal <= best
    else:
        assert found.primal == pytest.approx(primal((rho, rho)), rel=1e-9)


def test_without_an_offset_each_coefficient_counts_alone() -> None:
    b = np.where(np.arange(60) % 3, 0.0, SIGNS)
    box = 2.0 * SIGNS
    problem = check.Dual(np.arange(60), b, np.minimum(box, 0), np.maximum(box, 0), -SIGNS)
    found, f = check.standing(X, problem, RBF), RBF(X, X) @ b - SIGNS
    up, down = np.where(b < problem.hi, -f, 0).max(), np.where(b > problem.lo, f, 0).max()
    assert found.violation == pytest.approx(max(up, down))
    assert found.primal == pytest.approx(b @ RBF(X, X) @ b / 2 + 2 * np.maximum(0, -SIGNS * f).sum())


def test_crammer_and_singers_solution_is_the_formulas() -> None:
    rng, labels = np.random.default_rng(0), np.digitize(X[:, 0], [-0.5, 0.5])
    K, C, own = RBF(X, X), WEIGHTS, np.arange(3)[:, None] == labels
    a = C * rng.dirichlet(np.full(3, 0.3), 60).T * (rng.random((3, 60)) < 0.6)  # (some at 0)
    a += own * (C - a.sum(axis=0))
    b = C * own - a
    c = b @ K
    quadratic = sum(b[m] @ K @ b[m] for m in range(3))
    losses = [max((m != labels[i]) - c[labels[i], i] + c[m, i] for m in range(3)) for i in range(60)]  # equation 3
    found = check.crammer_singer(b, own, C, c)
    assert found.primal == pytest.approx(quadratic / 2 + C @ losses)
    assert found.dual == pytest.approx(sum(b[labels[i], i] for i in range(60)) - quadratic / 2)
    f = c - own
    assert found.violation == pytest.approx(
        max(max(f[:, i]) - min(f[m, i] for m in range(3) if a[m, i] > 0) for i in range(60))
    )
    assert max(found.box, found.off_sum) < 1e-12
    b[0] += 0.1
    assert min(check.crammer_singer(b, own, C, c).box, check.crammer_singer(b, own, C, c).off_sum) > 0.04


@pytest.mark.parametrize("name", ["linear", "poly", "rbf", "sigmoid"])
def test_kernel_values_in_blocks_and_in_long_double(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide sparse rows and rows far from zero have the same values."""
    numbers = {"linear": {}, "rbf": {"gamma": 0.3}, "sigmoid": {"gamma": 0.3}}
    given = numbers.get(name, {"gamma": 0.3, "coef0": 1.0, "degree": 2})
    K, function = check.gram(name, given, X).astype(float), check.kernel(name, **given)  # type: ignore[arg-type]
    np.testing.assert_allclose(check.responses(X, X, WEIGHTS, function), K @ WEIGHTS, rtol=1e-10, atol=1e-10)
    for constant, value in (("ROW_BLOCK", 7), ("SUPPORT_BLOCK", 11), ("DENSE_COLUMNS", 2)):
        monkeypatch.setattr(check, constant, value)
    sparse = sp.csr_matrix(X)
    np.testing.assert_allclose(check.responses(sparse, sparse, WEIGHTS, function), K @ WEIGHTS, rtol=1e-10, atol=1e-10)
    if name == "rbf":
        Z = np.round(X * 64) / 64  # so that the shifted rows are the same points exactly
        far, near = (check.responses(rows, rows, WEIGHTS, function) for rows in (Z + 4096.0, Z))
        np.testing.assert_allclose(far, near, atol=1e-11)


def test_what_counts_beside_the_best() -> None:
    """A bound missed by rounding is a bound; a float32 coefficient is none."""
    model = svm.SVC(C=2.0, gamma=0.3).fit(X, SIGNS)
    (dual,) = check.c_svc(model, SIGNS, np.full(60, 2.0))
    coef = dual.b
    at_bound = np.abs(coef) == 2.0

    def found(b: Any) -> dict[str, Any]:
        return check.merged([check.standing(X, replace(dual, b=b), RBF)])

    one_off = np.where(np.arange(60) == np.argmax(coef), coef + 0.01, coef)
    rows = [found(coef), found(0.99 * coef), found(one_off), {"failed": "no time"}]
    check.judge(rows, 1e-3)
    good, low, outside = (" ".join(row["misses"]) for row in rows[:3])
    assert not good
    assert "dual" in low
    assert "KKT" in low
    assert "constraints" in outside
    rounded = (found(np.where(at_bound, coef * (1 - rounding), coef))["violation"] for rounding in (1e-14, 6e-8))
    assert next(rounded) == pytest.approx(found(coef)["violation"])
    assert next(rounded) > 0.1
