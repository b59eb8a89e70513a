"""The references themselves: against SciPy's general solvers on tiny problems, LIBSVM, and the formulas written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, minimize
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC

from tests import reference

METRICS: dict[str, dict[str, float]] = {
    "linear": {},
    "rbf": {"gamma": 0.3},
    "poly": {"degree": 3, "gamma": 0.3, "coef0": 1.0},
    "sigmoid": {"gamma": 0.3},
}
SEEDS = st.integers(0, 2**32 - 1)


def problem(seed: int, metric: str = "rbf", n: int = 12, k: int = 2) -> tuple[Any, Any, Any, Any]:
    """Rows of overlapping classes, labels 0 .. k - 1, a box for each row, the kernel matrix."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(k), rng.integers(k, size=n - k)])
    X = rng.normal(size=(n, 3)) + 0.7 * labels[:, None]
    return X, labels, rng.uniform(0.1, 2.0, n), pairwise_kernels(X, metric=metric, **METRICS[metric])


def by_slsqp(Q: Any, wanted: Any, low: Any, high: Any, sums: Any) -> float:
    """The largest wanted'b - 1/2 b'Qb for low <= b <= high and sums b = 0, by SciPy."""
    found = minimize(
        lambda b: b @ Q @ b / 2 - wanted @ b,
        np.zeros(len(low)),
        jac=lambda b: Q @ b - wanted,
        method="SLSQP",
        bounds=Bounds(low, high),
        constraints=[LinearConstraint(sums, 0, 0)] if len(sums) else [],
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    assert found.success or found.status == 8, found.message  # 8: no descent is left at its precision
    return -float(found.fun)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("metric", ["rbf", "poly"])
@settings(max_examples=8, deadline=None)
@given(seed=SEEDS)
def test_binary_is_what_a_general_solver_finds(metric: str, bias: bool, seed: int) -> None:
    _, labels, C, K = problem(seed, metric)
    y = 2.0 * labels - 1
    found = reference.binary(K, y, C, bias)
    expected = by_slsqp(K, y, np.minimum(0, y * C), np.maximum(0, y * C), np.ones((int(bias), len(y))))
    assert found.dual == pytest.approx(expected, rel=1e-6)
    assert abs(found.gap) <= 1e-9
    assert abs(found.b.sum()) < 1e-9 or not bias
    assert (y * found.b >= 0).all()
    assert (y * found.b <= C * (1 + 1e-12)).all()


@pytest.mark.parametrize("k", [2, 3, 4])
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_crammer_singer_is_what_a_general_solver_finds(k: int, seed: int) -> None:
    _, labels, C, K = problem(seed, k=k)
    n = len(labels)
    found = reference.crammer_singer(K, labels, C, k)
    own = (np.arange(k)[:, None] == labels).astype(float)
    Q, sums = np.kron(np.eye(k), K), np.tile(np.eye(n), k)
    expected = by_slsqp(Q, own.ravel(), np.tile(-C, k), (C * own).ravel(), sums)
    assert found.dual == pytest.approx(expected, rel=1e-6)
    assert abs(found.gap) <= 1e-9
    np.testing.assert_allclose(found.b.sum(axis=0), 0, atol=1e-12)
    assert (found.b <= C * own * (1 + 1e-12)).all()


@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_two_classes_of_crammer_and_singer_are_a_binary_problem_without_bias(seed: int) -> None:
    """b = (-a, a) makes its dual the binary one's with 2 K for K."""
    _, labels, C, K = problem(seed)
    both = reference.crammer_singer(K, labels, C, 2)
    one = reference.binary(2 * K, 2.0 * labels - 1, C, bias=False)
    assert both.dual == pytest.approx(one.dual, rel=1e-7)
    np.testing.assert_allclose(both.b[1], one.b, atol=1e-3)
    np.testing.assert_allclose(both.b[0], -one.b, atol=1e-3)


@pytest.mark.parametrize("metric", METRICS)
def test_binary_is_libsvms_solution(metric: str) -> None:
    _, labels, C, K = problem(1, metric, n=80)
    y, K = 2.0 * labels - 1, K.astype(np.float32).astype(np.float64)  # LIBSVM keeps kernel values as float32
    model = SVC(C=1.0, kernel="precomputed", tol=1e-9).fit(K, y, sample_weight=C)
    b = np.zeros(len(y))
    b[model.support_] = model.dual_coef_[0]
    theirs, ours = reference.binary_value(K, y, C, b), reference.binary(K, y, C)
    assert theirs.violation < 1e-8
    assert theirs.bias == pytest.approx(model.intercept_[0], abs=1e-6)
    assert theirs.gap < 1e-8
    if metric != "sigmoid":  # of which there may be more than one
        assert ours.dual == pytest.approx(theirs.dual, rel=1e-8)
    assert ours.violation < 1e-3


@pytest.mark.parametrize("bias", [True, False])
def test_the_gap_closes_for_an_indefinite_kernel_too(bias: bool) -> None:
    _, labels, C, K = problem(2, "sigmoid", n=40, k=3)
    assert np.linalg.eigvalsh(K)[0] < -0.1
    assert abs(reference.binary(K, np.where(labels, 1.0, -1.0), C, bias).gap) <= 1e-9
    assert abs(reference.crammer_singer(K, labels, C, 3).gap) <= 1e-9


@pytest.mark.parametrize("metric", ["linear", "poly"])
def test_a_large_C_and_few_features_are_no_hindrance(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps in one row or two creep; what is left is the Newton step's."""
    monkeypatch.setattr(reference, "SWEEPS", 300)
    _, labels, _, K = problem(6, metric, n=40, k=3)
    y = np.where(labels, 1.0, -1.0)
    for found in (
        reference.binary(K, y, 100.0),
        reference.binary(K, y, 100.0, bias=False),
        reference.crammer_singer(K, labels, 100.0, 3),
    ):
        assert abs(found.gap) <= 1e-9
        assert found.violation < 1e-6
    assert (found.b <= 100.0 * (np.arange(3)[:, None] == labels)).all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_value_of_a_binary_solution_is_the_formulas(bias: bool) -> None:
    _, labels, C, K = problem(3)
    y, n = 2.0 * labels - 1, len(labels)
    rng = np.random.default_rng(0)
    alpha = C * rng.choice([0.0, 0.3, 1.0], n)
    Q = y[:, None] * y * K

    def primal(offset: float) -> float:
        hinge = (max(0.0, 1 - y[i] * (offset + sum(alpha[j] * y[j] * K[i, j] for j in range(n)))) for i in range(n))
        return float(alpha @ Q @ alpha / 2 + sum(C[i] * h for i, h in enumerate(hinge)))

    found = reference.binary_value(K, y, C, y * alpha, bias)
    assert found.dual == pytest.approx(alpha.sum() - alpha @ Q @ alpha / 2)
    assert found.primal == pytest.approx(primal(found.bias))
    if bias:
        assert found.primal <= min(primal(offset) for offset in np.linspace(-9, 9, 2001)) + 1e-12
    else:
        assert found.bias == 0
    gradient = y * (1 - Q @ alpha)  # of the dual, along y alpha
    up = [gradient[i] for i in range(n) if (alpha[i] < C[i] if y[i] > 0 else alpha[i] > 0)]
    down = [gradient[i] for i in range(n) if (alpha[i] > 0 if y[i] > 0 else alpha[i] < C[i])]
    assert found.violation == pytest.approx(max(up) - min(down) if bias else max(max(up), -min(down)))


def test_the_value_of_a_multiclass_solution_is_the_formulas() -> None:
    _, labels, C, K = problem(4, k=3)
    n = len(labels)
    rng = np.random.default_rng(0)
    a = C * rng.dirichlet(np.full(3, 0.3), n).T * (rng.random((3, n)) < 0.6)  # (some at 0)
    own = np.arange(3)[:, None] == labels
    a[own] += C - a.sum(axis=0)
    b = C * own - a
    c = b @ K
    quadratic = sum(b[m] @ K @ b[m] for m in range(3))
    loss = sum(
        C[i] * max((y != labels[i]) - c[labels[i], i] + c[y, i] for y in range(3)) for i in range(n)
    )  # equation 3
    found = reference.crammer_singer_value(K, labels, C, b)
    assert found.primal == pytest.approx(quadratic / 2 + loss)
    assert found.dual == pytest.approx(sum(b[labels[i], i] for i in range(n)) - quadratic / 2)
    f = c - own
    worst = max(max(f[:, i]) - min(f[m, i] for m in range(3) if a[m, i] > 0) for i in range(n))
    assert found.violation == pytest.approx(worst)


def test_nothing_to_learn_is_no_gap() -> None:
    found = reference.binary(np.eye(3), np.ones(3), 1.0)
    assert (found.primal, found.dual, found.violation, found.gap) == (0, 0, 0, 0)


def test_a_gap_out_of_reach_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, labels, C, K = problem(5)
    monkeypatch.setattr(reference, "SWEEPS", 1)
    for bias in (True, False):
        with pytest.raises(RuntimeError, match="wanted 1e-09"):
            reference.binary(K, 2.0 * labels - 1, C, bias)
    with pytest.raises(RuntimeError, match="wanted 1e-09"):
        reference.crammer_singer(K, labels, C, 2)
