"""Every objective of the solver on small random problems, checked in float64: with an offset, without, and Crammer and
Singer's; every kernel function, dense and sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import cross_val_score

from benchmarks import check
from clsvm import SVC, kernels
from clsvm.opencl import devices
from tests.conftest import simulated, thrifty

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


def verify(model: SVC, X: Any, y: np.ndarray, weights: np.ndarray, kernel: kernels.Kernel) -> None:
    """What the fit claims, from scratch in float64. (A small violation proves the optimum where K is definite.)"""
    report = model.fit_report_
    found = check.check(model, kernel(X.toarray() if sp.issparse(X) else X), y, weights)
    assert report.converged
    assert found.violation <= 1.2 * TOL
    assert abs(found.violation - report.violation) <= 2e-4
    assert found.box <= 1e-12
    assert found.off_sum <= 1e-5
    assert abs(report.dual - found.dual) <= 1e-5 * max(1.0, abs(found.dual))
    assert abs(report.primal - found.primal) <= 1e-3 * max(1.0, abs(found.primal))


def draw(seed: int, n: int, d: int, k: int, sparse: bool, nonnegative: bool) -> tuple[Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    y[:k] = np.arange(k)
    X = rng.normal(size=(n, d)) + np.eye(k, d)[y]
    X *= rng.random((n, d)) < (0.4 if sparse else 1.0)
    X = np.abs(X) if nonnegative else X
    weights = rng.choice([0.5, 1.0, 2.0], n)
    return sp.csr_matrix(X) if sparse else X, y, weights


small = settings(
    max_examples=8, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
problems = given(
    seed=st.integers(0, 10**6),
    n=st.integers(6, 90),
    d=st.integers(1, 7),
    k=st.integers(2, 6),
    C=st.sampled_from([0.3, 1.0, 20.0]),
)


@pytest.mark.sample(3)
@pytest.mark.full
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@small
@problems
def test_random_problems(
    device: str, objective: str, name: str, sparse: bool, seed: int, n: int, d: int, k: int, C: float
) -> None:
    k = k if objective == "Crammer-Singer" else 2
    X, y, weights = draw(seed, n, d, k, sparse, False)
    kernel = make(name)
    model = SVC(C=C, kernel=kernel, tol=TOL, device=device, working_set_size=32, **OBJECTIVES[objective])
    model.fit(X, y, sample_weight=weights)
    verify(model, X, y, weights, kernel)


@pytest.mark.full
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", [name for name in kernels.BUILTIN if name not in PAPERS])
def test_every_kernel_function(device: str, objective: str, name: str) -> None:
    if thrifty(device):
        pytest.skip("one program a function and layout")
    kernel = make(name)
    for sparse in (False, True):
        X, y, weights = draw(5, 120, 6, 4 if objective == "Crammer-Singer" else 2, sparse, kernel.spec.nonnegative)
        if name == "cosine":
            X = sp.csr_matrix(X.toarray() + 0.1) if sparse else X  # (a zero row has no direction)
        model = SVC(kernel=kernel, tol=TOL, device=device, working_set_size=64, **OBJECTIVES[objective])
        model.fit(X, y, sample_weight=weights)
        verify(model, X, y, weights, kernel)


@pytest.mark.oclgrind
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_in_both_shapes(device: str, profile: str, objective: str) -> None:
    slow = simulated(device)
    if slow and (objective == "offset" or profile == "gpu-pair"):
        pytest.skip("tests/solvers/test_solver.py has the one, pairs of floats differ in arithmetic alone")
    X, y, weights = draw(1, 40 if slow else 150, 3, 3 if objective == "Crammer-Singer" else 2, False, False)
    kernel, tol = make("rbf"), 0.3 if slow else TOL
    model = SVC(kernel=kernel, tol=tol, device=device, working_set_size=64 if slow else 32, **OBJECTIVES[objective])
    model.fit(X, y, sample_weight=weights)
    assert model.fit_report_.converged
    if not slow:
        verify(model, X, y, weights, kernel)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("cache", ["auto", 0])
def test_the_settings_of_the_paper(device: str, objective: str, cache: Any) -> None:
    """A working set of 16, with a row cache and without."""
    X, y, weights = draw(2, 400, 5, 3 if objective == "Crammer-Singer" else 2, False, False)
    kernel = make("rbf")
    model = SVC(kernel=kernel, tol=TOL, device=device, working_set_size=16, cache_size=cache, **OBJECTIVES[objective])
    if simulated(device):
        pytest.skip("too slow there")
    verify(model.fit(X, y, sample_weight=weights), X, y, weights, kernel)
    if "CPU" in devices.find(device).platform or "Intel" in devices.find(device).platform:
        assert model.fit_report_.working_set_size == 16
    assert model.fit_report_.rows_computed >= len(model.support_)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_duality_gap(device: str, objective: str) -> None:
    X, y, _ = draw(3, 500, 5, 4 if objective == "Crammer-Singer" else 2, False, False)
    options: dict[str, Any] = {
        "kernel": make("rbf"),
        "device": device,
        "tol": 1e-9,
        "working_set_size": 64,
        **OBJECTIVES[objective],
    }
    loose = SVC(gap_tol=0.1, **options).fit(X, y)
    fine = SVC(gap_tol=1e-3, **options).fit(X, y)
    for model, asked in ((loose, 0.1), (fine, 1e-3)):
        report = model.fit_report_
        assert "duality gap" in report.status
        assert 0 <= report.gap <= asked
        assert report.gap == pytest.approx(2 * (report.primal - report.dual) / (report.primal + report.dual))
        assert report.trace[-1].gap == pytest.approx(report.gap, rel=1e-6)
    assert loose.fit_report_.steps < fine.fit_report_.steps
    again = SVC(gap_tol=1e-3, **options).fit(X, y)
    np.testing.assert_array_equal(again.dual_coef_, fine.dual_coef_)


def test_decision_values_of_crammer_and_singer(device: str) -> None:
    X, y, _ = draw(4, 200, 5, 4, False, False)
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
    with pytest.raises(ValueError, match="multi_class must be 'ovo', 'ovr' or 'crammer_singer', got 'all'"):
        SVC(device=device, multi_class="all").fit(X, names)


def test_time_is_up(device: str) -> None:
    X, y, _ = draw(4, 300, 5, 2, False, False)
    with pytest.warns(UserWarning, match="max_time was over"):
        model = SVC(C=100, device=device, tol=1e-12, max_time=1e-9).fit(X, y)
    assert not model.fit_report_.converged
    with pytest.raises(ValueError, match="max_time must be > 0 and finite or None, got 0"):
        SVC(device=device, max_time=0).fit(X, y)


def test_two_classes_by_crammer_and_singer(device: str) -> None:
    """One decision value a row, as scikit-learn expects of a binary classifier."""
    X, y, _ = draw(6, 150, 4, 2, False, False)
    model = SVC(device=device, multi_class="crammer_singer").fit(X, y)
    values = model.decision_function(X)
    assert values.shape == (150,)
    np.testing.assert_array_equal(model.predict(X), values > 0)
    assert model.score(X, y) > 0.7
    assert cross_val_score(model, X, y, scoring="roc_auc", cv=2, error_score="raise").min() > 0.6


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_padding_has_no_part_in_the_objective(device: str, objective: str) -> None:
    """A function without a value at zero rows, which padding is."""
    X, y, _ = draw(7, 61, 4, 3 if objective == "Crammer-Singer" else 2, False, False)
    options: dict[str, Any] = {"kernel": kernels.Kernel("dot / sqrt(xx * yy)"), "gap_tol": 0.05, "tol": 1e-6}
    report = SVC(device=device, **options, **OBJECTIVES[objective]).fit(X, y).fit_report_
    assert 0 <= report.gap <= 0.05
    assert all(np.isfinite(point.primal) for point in report.trace)


def test_memory_limits_of_crammer_and_singer(device: str) -> None:
    """What fits with less fits with more."""
    X, y, _ = draw(8, 300, 5, 6, False, False)
    done = []
    for limit in range(100_000, 1_000_000, 60_000):
        try:
            report = SVC(device=device, multi_class="crammer_singer", memory_limit=limit).fit(X, y).fit_report_
            done.append("fits" if report.bytes_held <= limit else f"held {report.bytes_held} of {limit}")
        except ValueError as error:
            done.append("refused" if "memory_limit" in str(error) else str(error))
    fits = done.count("fits")
    assert done == ["refused"] * (len(done) - fits) + ["fits"] * fits
    assert fits


def test_float32_gives_up_where_rounding_hides_the_tolerance(device: str) -> None:
    if thrifty(device):
        pytest.skip("some seconds in float64")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 6)), rng.integers(0, 4, 300)
    X[:, 0] += y
    options: dict[str, Any] = {"C": 1e3, "kernel": "linear", "multi_class": "crammer_singer", "working_set_size": 64}
    report = SVC(device=device, **options).fit(X, y).fit_report_
    assert report.converged
    assert report.dtype == "float64"
    assert report.dual == pytest.approx(296591.313, rel=1e-6)
