"""Training end to end on small data: against an independent check in float64, and against scikit-learn's LIBSVM."""

from __future__ import annotations

import warnings
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC as Reference

from benchmarks import check
from clsvm import SVC, NuSVC, kernels
from clsvm.fit import driver
from clsvm.opencl.profiles import PROFILES
from clsvm.parameters import Options
from clsvm.problem import Subproblem, c_svc
from clsvm.solvers import batch
from clsvm.solvers.decomposition import Solver
from tests.conftest import noisy, simulated
from tests.solvers import claims

TOL = 1e-3


def verify(model: SVC, X: Any, y: Any, gamma: float, weights: Any = None) -> None:
    """Check everything that the fit claims; the objective and decision values beside LIBSVM's at a finer tolerance."""
    X = X.toarray() if sp.issparse(X) else np.asarray(X, np.float64)
    K = kernels.make("rbf", gamma=gamma)(X)
    dual, _ = claims.verify(model, K, y, weights)
    used = np.flatnonzero(weights if weights is not None else np.ones(len(X)))
    given = {} if weights is None else {"sample_weight": weights[used]}
    theirs = Reference(C=model.C, gamma=gamma, tol=1e-5, class_weight=model.class_weight).fit(X[used], y[used], **given)
    own = K[np.ix_(used, used)]
    best = check.check(theirs, own, y[used], given.get("sample_weight")).dual
    assert dual == pytest.approx(best, rel=1e-5)
    expected = theirs.decision_function(X[:50])
    np.testing.assert_allclose(model.decision_function(X[:50]), expected, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_optimum(device: str, profile: str, kind: str) -> None:
    X, y = noisy(700, 9)
    if kind == "sparse":
        X = sp.csr_matrix(X * (np.random.default_rng(3).random(X.shape) < 0.3))
    model = SVC(C=2.1, gamma=0.2, device=device, working_set_size=128).fit(X, y)
    verify(model, X, y, 0.2)
    size = np.abs(model.dual_coef_[0])  # a coefficient at a bound stands on it, not a rounding away
    assert size.min() > 1e-9
    assert not ((size < 2.1) & (size > 2.1 - 1e-9)).any()


@pytest.mark.parametrize("n", [2, 3, 17, 130])
def test_few_rows(device: str, n: int) -> None:
    X, y = noisy(n, 3, seed=n)
    verify(SVC(gamma=0.5, device=device).fit(X, y), X, y, 0.5)


@pytest.mark.oclgrind
def test_rows_of_half_a_pass(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four doubles a vector, eight rows a pass: 66 rows are 17 vectors and no more, unless they are padded."""
    monkeypatch.setitem(PROFILES, "short", replace(PROFILES["cpu8"], name="short", lanes=8))
    monkeypatch.setenv("CLSVM_PROFILE", "short")
    X, y = noisy(66, 4)
    model = SVC(gamma=0.3, device=device, dtype="float64", working_set_size=16).fit(X, y)
    verify(model, X, y, 0.3)


@pytest.mark.oclgrind
def test_small_fit(device: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of a fit and a prediction, small enough for a simulator: choice, store, eviction and all."""
    X, y = noisy(70, 4)
    slow = simulated(device)
    if slow and profile == "gpu-pair":
        pytest.skip("tests/fit/test_shards.py has a fit of pairs of floats")
    tol, W = (0.3, 64) if slow else (1e-3, 16)
    if slow:  # looks at the violation more often, and so ends sooner
        monkeypatch.setitem(PROFILES, "gpu", replace(PROFILES["gpu"], sync=2))
    model = SVC(C=0.3, gamma=0.3, tol=tol, device=device, working_set_size=W, cache_size=0.03).fit(X, y)
    assert model.fit_report_.converged
    if not slow:
        verify(model, X, y, 0.3)


@pytest.mark.parametrize("cache_size", [0, 0.3, 100, "auto"])
@pytest.mark.parametrize("working_set_size", [16, 100, 1024])
def test_cache_and_working_set(device: str, cache_size: Any, working_set_size: int) -> None:
    """Working set and row cache change the path, not the end; 0.3 MB hold some 80 rows, so rows are evicted."""
    X, y = noisy(900, 5)
    options = {"device": device, "cache_size": cache_size, "working_set_size": working_set_size}
    model = SVC(gamma=0.4, **options).fit(X, y)
    verify(model, X, y, 0.4)
    if cache_size == 100:
        assert model.fit_report_.rows_computed <= len(X)


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("working_set_size", [2, 16, 33])
def test_small_working_sets(device: str, profile: str, layout: str, working_set_size: int) -> None:
    """As many rows as are asked for, whatever blocks a layout has: two are sequential minimal optimisation. Of an odd
    number one more, or what stays of the tile would be another corner."""
    X, y = noisy(150, 3)
    options = {"device": device, "cache_size": 1, "working_set_size": working_set_size, "layout": layout}
    model = SVC(gamma=0.4, **options).fit(X, y)
    verify(model, X, y, 0.4)
    if working_set_size < 33:
        assert model.fit_report_.working_set_size == working_set_size
    if working_set_size == 2:
        assert model.fit_report_.outer_steps > 100
    if working_set_size == 33:
        assert model.fit_report_.working_set_size in (32, 34)


@pytest.mark.parametrize("working_set_size", [2, 3, 4])
def test_small_working_sets_of_two_sums(
    device: str, profile: str, working_set_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four rows, so that a pair of each class has room; the pair with the largest violation is among them."""
    monkeypatch.setattr("clsvm.fit.host.MOST", 0)  # (or the host would end what stands still)
    X, y = noisy(250, 3)
    model = NuSVC(nu=0.4, gamma=0.4, tol=1e-5, device=device, working_set_size=working_set_size).fit(X, y)
    assert model.fit_report_.converged
    assert model.fit_report_.working_set_size == 4
    expected = NuSVC(nu=0.4, gamma=0.4, tol=1e-5, device=device).fit(X, y).decision_function(X)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=2e-3)


def test_weights(device: str) -> None:
    X, y = noisy(500, 5)
    weight = np.random.default_rng(4).random(len(y)) * (np.random.default_rng(5).random(len(y)) < 0.9)
    model = SVC(C=3.0, gamma=0.3, class_weight={1: 2.0}, device=device).fit(X, y, sample_weight=weight)
    verify(model, X, y, 0.3, weight)
    assert not set(model.support_) & set(np.flatnonzero(weight == 0))


def test_large_C(device: str) -> None:
    """float32 kernel values alone would leave a violation far above tol here."""
    X, y = noisy(800, 4)
    model = SVC(C=1e4, gamma=0.3, device=device).fit(X, y)
    verify(model, X, y, 0.3)
    assert model.fit_report_.exact_rows > 0
    assert len(model.support_) > 100
    exact = kernels.make("rbf", gamma=0.3)(X, X[model.support_]) @ model.dual_coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(X), exact, rtol=0, atol=1e-6)


def test_the_check_in_float64_has_the_memory_of_the_panel(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, int] = {}

    def noted(owner: type, name: str) -> None:
        function = getattr(owner, name)

        def noting(self: Any, *given: Any) -> Any:
            held[name] = min(self.stream.held, held.get(name, self.stream.held))
            if name == "_step":
                held["panel"] = self.state.gram.panel_bytes(self.square.panel.capacity)
            return function(self, *given)

        monkeypatch.setattr(owner, name, noting)

    noted(Solver, "_step")
    noted(Solver, "_now")
    X, y = noisy(800, 4)
    model = SVC(C=1e4, gamma=0.3, working_set_size=512, device=device).fit(X, y)
    assert model.fit_report_.exact_rows > 0
    assert held["_now"] <= held["_step"] - held["panel"]


def test_features_far_from_zero(device: str) -> None:
    X, y = noisy(600, 6)
    model = SVC(gamma=0.3, device=device).fit(X + 1e4, y)
    near = SVC(gamma=0.3, device=device).fit(X, y)
    assert abs(model.fit_report_.dual - near.fit_report_.dual) <= 1e-5 * near.fit_report_.dual
    assert model.fit_report_.dtype == "float32"  # centred before the cast, float32 suffices
    far = model.decision_function(X[:100] + 1e4)
    assert np.abs(far - near.decision_function(X[:100])).max() <= 1e-2
    shifted = sp.csr_matrix(X + 1e4)
    as_sparse = SVC(gamma=0.3, device=device).fit(shifted, y)
    assert as_sparse.fit_report_.dtype == "float32"
    assert abs(as_sparse.fit_report_.dual - near.fit_report_.dual) <= 1e-5 * near.fit_report_.dual


def test_duplicates_and_a_zero_row(device: str) -> None:
    X, y = noisy(300, 5)
    X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    y[::7] *= -1  # equal rows with different labels
    X[10] = 0
    verify(SVC(gamma=0.3, device=device).fit(X, y), X, y, 0.3)


def test_indefinite_kernel_ends(device: str) -> None:
    X, y = noisy(200, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SVC(kernel="sigmoid", gamma=2.0, coef0=-1.0, device=device).fit(X, y)
    assert np.isfinite(model.fit_report_.dual)


def test_float64(device: str) -> None:
    X, y = noisy(400, 5)
    model = SVC(C=100.0, gamma=0.3, dtype="float64", tol=1e-6, device=device).fit(X, y)
    claims.verify(model, kernels.make("rbf", gamma=0.3)(X), y)


def test_prediction_in_little_memory(device: str) -> None:
    """Support vectors and rows in pieces give the same bits as all at once."""
    X, y = noisy(2500, 40)
    model = SVC(gamma=0.05, C=5.0, device=device).fit(X, y)
    assert len(model.support_) > 1000
    whole = model.decision_function(X)
    model.set_params(memory_limit="400kB")
    np.testing.assert_array_equal(model.decision_function(X), whole)
    model.set_params(memory_limit="20kB")
    with pytest.raises(ValueError, match="memory_limit"):
        model.decision_function(X)


def test_rounding_of_distances_is_certified(device: str) -> None:
    """Distances lose digits in proportion to the squared norms: the bound has to know (this one was certified wrongly
    by a bound that took the largest kernel value alone)."""
    rng = np.random.default_rng(82)
    X = rng.normal(size=(33, 1)) * 10 ** rng.uniform(0, 2)
    y = rng.integers(0, 2, 33)
    y[:2] = 0, 1
    verify(SVC(C=50, gamma=1.0, device=device).fit(X, y), X, y, 1.0)


def test_float64_where_float32_cannot_reach_tol(device: str) -> None:
    X, y = noisy(30, 2)
    X *= 400  # kernel values near 1e6 are off by more than a hundred times tol
    model = SVC(kernel="linear", device=device).fit(X, y)
    assert model.fit_report_.dtype == "float64"
    claims.verify(model, X @ X.T, y)


def test_a_tolerance_beyond_reach_ends(device: str) -> None:
    X, y = noisy(60, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        report = SVC(C=10.0, gamma=0.4, tol=1e-300, device=device).fit(X, y).fit_report_
    assert report.converged == (report.violation <= 1e-300)
    if not report.converged:
        assert "rounding in float64" in report.status


@pytest.mark.parametrize("name", ["rbf", "linear", "cosine"])
def test_rows_beyond_float32_are_decided_in_float64(device: str, name: str) -> None:
    X, y = noisy(60, 3)
    model = SVC(kernel=name, gamma=0.4, device=device).fit(X, y)
    far = np.vstack([X[0], np.full(3, 1e30)])
    expected = model.model_.kernel(far, model.support_vectors_) @ model.dual_coef_[0] + model.intercept_
    np.testing.assert_allclose(model.decision_function(far), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="row 1 is too large for float64"):
        model.decision_function(np.vstack([X[0], np.full(3, 1e200)]))


@pytest.mark.full
def test_every_memory_limit_gives_the_optimum_or_an_error(device: str) -> None:
    """A row cache too small for one step must be none at all: it once lost rows, and called the result converged."""
    X, y = noisy(1024, 150)
    options = {"C": 10.0, "gamma": 1 / 150, "working_set_size": 256, "cache_size": 1e3, "device": device}
    best = SVC(**options).fit(X, y).fit_report_.dual
    outcomes = []
    for limit in range(1_000_000, 4_000_000, 150_000):
        try:
            report = SVC(**options, memory_limit=limit).fit(X, y).fit_report_
            outcomes.append("kept" if report.bytes_held <= limit else f"held {report.bytes_held} of {limit}")
            if abs(report.dual - best) > 1e-5 * best:
                outcomes[-1] = f"dual {report.dual} with {limit}, {best} without"
        except ValueError as error:
            outcomes.append("refused" if "memory_limit" in str(error) else str(error))
    kept = outcomes.count("kept")
    assert outcomes == ["refused"] * (len(outcomes) - kept) + ["kept"] * kept
    assert kept > 10


@pytest.mark.parametrize("text", ["cos(xx - yy)", "exp(-((xx - yy) ** 2)) + cos(xx) * cos(yy)"])
def test_norms_are_certified_too(device: str, text: str) -> None:
    X, y = noisy(60, 4)
    X *= np.geomspace(0.1, 300, 60)[:, None]
    kernel = kernels.Kernel(text)
    claims.verify(SVC(kernel=kernel, device=device).fit(X, y), kernel(X), y)


def test_functions_that_are_not_symmetric_are_refused(device: str) -> None:
    X, y = noisy(30, 3)
    for kernel in (kernels.Kernel("exp(-0.1 * sqdist) * (1 + xx)"), kernels.Kernel.elementwise("x")):
        with pytest.raises(ValueError, match="is not symmetric"):
            SVC(kernel=kernel, device=device).fit(X, y)


def test_a_solver_used_again_counts_from_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = noisy(400, 5)
    problem = c_svc(np.where(y == y.max(), 1.0, -1.0)[None], np.ones((1, 400)))
    asked = Options(tol=TOL, working_set_size=64, cache_size=0, device=device)
    monkeypatch.setattr(batch, "largest", lambda stream: 0)
    posed = [Subproblem(np.arange(400), problem)] * 2
    first, again = driver.solve(X, posed, kernels.make("rbf", gamma=0.3), asked, perf_counter()).results
    assert first.rows_computed > 0
    for name in ("rows_computed", "steps", "outer_steps", "dual"):
        assert getattr(again, name) == getattr(first, name), name
