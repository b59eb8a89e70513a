"""Every objective of the solver on small random problems, checked in float64: with an offset, without, and Crammer and
Singer's; every kernel function, dense and sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from clsvm import SVC, SVR, NuSVC, OneClassSVM, kernels
from clsvm.opencl import devices
from tests.conftest import simulated, thrifty
from tests.solvers.optimality import Drawn, both_forms, draw, problems, small, verify

TOL = 1e-3
NUMBERS: dict[str, float] = {"gamma": 0.3, "coef0": 0.5, "degree": 2, "alpha": 1.5}
PAPERS = ("rbf", "poly", "sigmoid")  # the kernel functions of GTSVM
OBJECTIVES = {
    "offset": {"bias": True},
    "no offset": {"bias": False},
    "Crammer-Singer": {"multi_class": "crammer_singer"},
}


def make(name: str) -> kernels.Kernel:
    return kernels.make(name, **{p.name: NUMBERS[p.name] for p in kernels.BUILTIN[name].parameters})


def classes_of(seed: int, objective: str) -> int:
    return 3 + seed % 3 if objective == "Crammer-Singer" else 2


def rows(seed: int, n: int, d: int, objective: str, sparse: bool = False) -> tuple[Any, np.ndarray, np.ndarray]:
    """Rows, labels of as many classes as suit an objective, weights."""
    X, y, rng = draw(seed, n, d, classes_of(seed, objective), sparse)
    return X, y, rng.choice([0.5, 1.0, 2.0], n)


def verify_rows(model: Any, kernel: kernels.Kernel, X: Any, y: Any, weights: Any) -> None:
    verify(model, kernel(X.toarray() if sp.issparse(X) else X), y, weights)


@pytest.mark.full
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", PAPERS)
@both_forms
@small
@problems
def test_random_problems(device: str, objective: str, name: str, sparse: bool, drawn: Drawn) -> None:
    (X, y, weights, _), kernel = drawn.rows(classes_of(drawn.seed, objective), sparse), make(name)
    model = SVC(C=drawn.number, kernel=kernel, tol=TOL, device=device, working_set_size=32, **OBJECTIVES[objective])
    verify_rows(model.fit(X, y, weights), kernel, X, y, weights)


@pytest.mark.full
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", [name for name in kernels.BUILTIN if name not in PAPERS])
def test_every_kernel_function(device: str, objective: str, name: str) -> None:
    if thrifty(device):
        pytest.skip("one program a function and layout")
    kernel = make(name)
    for sparse in (False, True):
        X, y, weights = rows(5, 120, 6, objective, sparse)
        X = abs(X) if kernel.spec.nonnegative else X
        if name == "cosine":
            X = sp.csr_matrix(X.toarray() + 0.1) if sparse else X  # (a zero row has no direction)
        model = SVC(kernel=kernel, tol=TOL, device=device, working_set_size=64, **OBJECTIVES[objective])
        verify_rows(model.fit(X, y, weights), kernel, X, y, weights)


SHAPES: dict[str, Any] = {name: SVC(**given) for name, given in OBJECTIVES.items()}  # type: ignore[arg-type]
SHAPES |= {"pairs": SVC(), "regression": SVR(), "one class": OneClassSVM()}


@pytest.mark.oclgrind
@pytest.mark.parametrize("name", SHAPES)
def test_in_both_shapes(device: str, profile: str, name: str) -> None:
    """On every kind of device: kernels as a CPU, a GPU and a GPU without double have them."""
    slow = simulated(device)
    if slow and (name not in ("no offset", "Crammer-Singer") or profile == "gpu-pair"):
        pytest.skip("tests/solvers/test_solver.py has the one, pairs of floats differ in arithmetic alone")
    X, y, weights = rows(1, 40 if slow else 150, 3, "Crammer-Singer" if name == "pairs" else name)
    kernel, target = make("rbf"), None if name == "one class" else y.astype(float)
    given: dict[str, Any] = {"kernel": kernel, "device": device, "tol": 0.3 if slow else TOL}
    model = clone(SHAPES[name]).set_params(**given, working_set_size=64 if slow else 32)
    model.fit(X, target, sample_weight=weights)
    assert model.fit_report_.converged
    if not slow:
        verify(model, kernel(X), target, weights, 1e-5 if profile == "gpu-pair" else 1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cache", [0, 0.1, 100, "auto"])
@pytest.mark.parametrize("W", [16, 100, 1024])
def test_cache_and_working_set(device: str, objective: str, cache: Any, W: int) -> None:
    """They change the path, not the end; 0.1 MB hold some 60 rows, so rows are evicted."""
    if simulated(device):
        pytest.skip("too slow there")
    (X, y, weights), kernel = rows(2, 400, 5, objective), make("rbf")
    model = SVC(kernel=kernel, tol=TOL, device=device, working_set_size=W, cache_size=cache, **OBJECTIVES[objective])
    verify_rows(model.fit(X, y, sample_weight=weights), kernel, X, y, weights)
    report = model.fit_report_
    assert report.rows_computed >= len(model.support_)
    assert report.rows_computed <= len(X) or cache != 100
    if devices.find(device).kind == "cpu" and W == 16:
        assert report.working_set_size == 16


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_duality_gap(device: str, objective: str) -> None:
    X, y, _ = rows(3, 500, 5, objective)
    model = SVC(kernel=make("rbf"), device=device, tol=1e-9, working_set_size=64, **OBJECTIVES[objective])
    steps = []
    for asked in (0.1, 1e-3):
        report = model.set_params(gap_tol=asked).fit(X, y).fit_report_
        steps.append(report.steps)
        assert "duality gap" in report.status
        assert 0 <= report.gap <= asked
        assert report.gap == pytest.approx(2 * (report.primal - report.dual) / (report.primal + report.dual))
        assert report.trace[-1].gap == pytest.approx(report.gap, rel=1e-6)
    assert steps[0] < steps[1]
    np.testing.assert_array_equal(clone(model).fit(X, y).dual_coef_, model.dual_coef_)


def test_decision_values_of_crammer_and_singer(device: str) -> None:
    X, y, _ = draw(4, 200, 5, 4)
    names = np.array(["d", "a", "c", "b"])[y]
    kernel = make("rbf")
    model = SVC(kernel=kernel, device=device, multi_class="crammer_singer").fit(X, names)
    values = model.decision_function(X[:30])
    expected = kernel(X[:30], model.support_vectors_) @ model.dual_coef_.T
    assert values.shape == (30, 4)
    np.testing.assert_allclose(values, expected, atol=1e-4)
    np.testing.assert_array_equal(model.predict(X[:30]), np.array(["a", "b", "c", "d"])[expected.argmax(axis=1)])
    assert model.n_support_.sum() == len(model.support_)
    assert model.intercept_.shape == (4,)
    assert not model.intercept_.any()


def test_two_classes_by_crammer_and_singer(device: str) -> None:
    """One decision value a row, as scikit-learn expects of a binary classifier."""
    X, y, _ = draw(6, 150, 4, 2)
    model = SVC(device=device, multi_class="crammer_singer").fit(X, y)
    values = model.decision_function(X)
    assert values.shape == (150,)
    np.testing.assert_array_equal(model.predict(X), values > 0)
    assert model.score(X, y) > 0.7
    assert cross_val_score(model, X, y, scoring="roc_auc", cv=2, error_score="raise").min() > 0.6


ZERO: dict[str, Any] = {
    "whole": SVC(),
    "pairs with two sums": NuSVC(nu=0.7),
    **{name: SVC(gap_tol=0.05, tol=1e-6, **given) for name, given in OBJECTIVES.items()},
}


@pytest.mark.parametrize("text", ["dot / sqrt(xx * yy)", "dot / sqrt(xx) / sqrt(yy)"])
@both_forms
@pytest.mark.parametrize("name", ZERO)
def test_kernel_functions_without_a_value_at_zero(
    device: str, profile: str, name: str, sparse: bool, text: str
) -> None:
    """Padding is zero rows, of which such a function has no value: nothing of that may reach a sum."""
    y = np.arange(61) % (2 if name in ("whole", "offset", "no offset") else 3)
    X = np.random.default_rng(1).normal(size=(61, 4)) + 1 + np.eye(4)[y]
    X = sp.csr_matrix(X) if sparse else X
    model = clone(ZERO[name]).set_params(device=device, kernel=kernels.Kernel(text)).fit(X, y)
    assert model.fit_report_.converged
    if model.gap_tol:
        assert 0 <= model.fit_report_.gap <= 0.05
        assert all(np.isfinite(point.primal) for point in model.fit_report_.trace)
    else:
        known = clone(model).set_params(kernel="cosine").fit(X, y)
        np.testing.assert_allclose(model.decision_function(X), known.decision_function(X), atol=5e-3)
