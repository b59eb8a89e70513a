"""Training end to end on small data: against an independent check in float64, and against scikit-learn's LIBSVM."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import SVC as Reference

from benchmarks import check
from clsvm import SVC, Kernel, NuSVC
from clsvm.opencl.devices import default_profile, find
from clsvm.opencl.profiles import PROFILES
from clsvm.solvers import state
from clsvm.solvers.decomposition import Solver
from tests.conftest import noisy, simulated, thrifty
from tests.solvers import optimality


def verify(model: SVC, X: Any, y: Any, weights: Any = None) -> None:
    """Check everything that the fit claims; the objective and decision values beside LIBSVM's at a finer tolerance."""
    X = X.toarray() if sp.issparse(X) else np.asarray(X, np.float64)
    K = model.model_.kernel(X)
    dual, _ = optimality.verify(model, K, y, weights)
    if model.kernel != "rbf":
        return
    used = np.flatnonzero(weights if weights is not None else np.ones(len(X)))
    given = {} if weights is None else {"sample_weight": weights[used]}
    theirs = Reference(C=model.C, gamma=model.gamma, tol=1e-5, class_weight=model.class_weight)
    best = check.check(theirs.fit(X[used], y[used], **given), K[np.ix_(used, used)], y[used], *given.values()).dual
    assert dual == pytest.approx(best, rel=1e-5)
    expected = theirs.decision_function(X[:50])
    np.testing.assert_allclose(model.decision_function(X[:50]), expected, rtol=2e-3, atol=1e-2)


def doubled() -> tuple[Any, Any]:
    """Rows twice with either label, and a row of zeros."""
    X, y = (np.repeat(part, 2, axis=0) for part in noisy(300, 5))
    y[::7] *= -1
    X[10] = 0
    return X, y


def far_out() -> tuple[Any, Any]:
    """Large squared norms, of which distances lose digits: a bound by the largest kernel value alone certified this."""
    rng = np.random.default_rng(82)
    return rng.normal(size=(33, 1)) * 10 ** rng.uniform(0, 2), np.r_[0, 1, rng.integers(0, 2, 33)[2:]]


def of_four() -> tuple[Any, Any]:
    """Four classes in heaps that overlap."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(150, 6)), rng.integers(0, 4, 150)
    X[:, 0] += y
    return X, y


def scaled(n: int, d: int, by: Any = 1.0, shift: float = 0.0) -> tuple[Any, Any]:
    """Noisy rows that are large or far from zero."""
    X, y = noisy(n, d)
    return X * by + shift, y


COUPLED: dict[str, Any] = {"C": 1e3, "kernel": "linear", "multi_class": "crammer_singer", "working_set_size": 64}
ODD: dict[str, tuple[tuple[Any, Any], dict[str, Any], str]] = {  # X and y, what is asked, the dtype that it takes
    **{f"{n} rows": (noisy(n, 3, seed=n), {"gamma": 0.5}, "float32") for n in (2, 3, 17, 130)},
    "equal rows": (doubled(), {"gamma": 0.3}, "float32"),
    "large norms": (far_out(), {"C": 50, "gamma": 1.0}, ""),
    "far from zero": (scaled(600, 6, shift=1e4), {"gamma": 0.3}, "float32"),  # (centred before the cast)
    "float64": (noisy(400, 5), {"C": 100.0, "gamma": 0.3, "dtype": "float64", "tol": 1e-6}, "float64"),
    "values near 1e6": (scaled(30, 2, 400), {"kernel": "linear"}, "float64"),
    "coupled": (of_four(), COUPLED, "float64"),
    **{
        text: (scaled(60, 4, np.geomspace(0.1, 300, 60)[:, None]), {"kernel": Kernel(text)}, "")
        for text in ("cos(xx - yy)", "exp(-((xx - yy) ** 2)) + cos(xx) * cos(yy)")
    },
}


@pytest.mark.parametrize("name", ODD)
def test_odd_rows(device: str, name: str) -> None:
    """Few, equal, far from zero, or such that float32 or a coarse bound of its rounding would not do."""
    (X, y), asked, dtype = ODD[name]
    if default_profile(find(device)).double_rows:
        dtype = dtype.replace("float32", "float64")
    if thrifty(device) and name == "coupled":
        pytest.skip("some seconds in float64")
    for form in (np.asarray, sp.csr_matrix)[: 2 if name == "far from zero" else 1]:
        model = SVC(**asked, device=device).fit(form(X), y)
        assert model.fit_report_.dtype == (dtype or model.fit_report_.dtype)
        verify(model, X, y)


@pytest.mark.oclgrind
def test_small_fit(device: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of a fit and a prediction, small enough for a simulator: choice, store, eviction and all."""
    X, y = noisy(70, 4)
    slow = simulated(device)
    if slow and profile == "gpu-pair":
        pytest.skip("tests/fit/test_shards.py has a fit of pairs of floats")
    tol, W = (0.3, 64) if slow else (1e-3, 16)
    monkeypatch.setattr(state, "PART", 32)
    if slow:  # looks at the violation more often, and so ends sooner
        monkeypatch.setitem(PROFILES, "gpu", replace(PROFILES["gpu"], sync=2))
    model = SVC(C=0.3, gamma=0.3, tol=tol, device=device, working_set_size=W, cache_size=0.03).fit(X, y)
    assert model.fit_report_.converged
    if not slow:
        verify(model, X, y)


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("working_set_size", [2, 16, 33])
def test_small_working_sets(device: str, profile: str, layout: str, working_set_size: int) -> None:
    """As many rows as are asked for, whatever blocks a layout has: two are sequential minimal optimisation. Of an odd
    number one more, or what stays of the tile would be another corner."""
    X, y = noisy(150, 3)
    options = {"device": device, "cache_size": 1, "working_set_size": working_set_size, "layout": layout}
    model = SVC(gamma=0.4, **options).fit(X, y)
    verify(model, X, y)
    if working_set_size < 33:
        assert model.fit_report_.working_set_size == working_set_size
    if working_set_size == 2:
        assert model.fit_report_.outer_steps > 100
    if working_set_size == 33:
        assert model.fit_report_.working_set_size in (32, 34)
    size = np.abs(model.dual_coef_[0])  # a coefficient at a bound stands on it, not a rounding away
    assert size.min() > 1e-9
    assert not ((size < 1) & (size > 1 - 1e-9)).any()


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


def test_a_check_in_float64(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large C, where float32 values alone leave a violation far above tol: the check takes the memory of the panel,
    and decision values are exact."""
    least: dict[str, int] = {}  # fewest bytes allocated at each call

    def note_bytes(name: str) -> None:
        real = getattr(Solver, name)

        def noting(self: Any, *given: Any) -> Any:
            least["panel"] = self.state.gram.panel_bytes(self.panel.capacity)
            least[name] = min(self.stream.allocated, least.get(name, self.stream.allocated))
            return real(self, *given)

        monkeypatch.setattr(Solver, name, noting)

    note_bytes("_step")
    note_bytes("_now")
    X, y = noisy(800, 4)
    model = SVC(C=1e4, gamma=0.3, working_set_size=512, cache_size=0, device=device).fit(X, y)
    assert least["_now"] <= least["_step"] - least["panel"]
    verify(model, X, y)
    assert model.fit_report_.exact_rows > 0
    exact = model.model_.kernel(X, X[model.support_]) @ model.dual_coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(X), exact, rtol=0, atol=1e-6)


@pytest.mark.full
def test_every_memory_limit_gives_the_optimum_or_an_error(device: str) -> None:
    """A row cache too small for one step must be none at all: it once lost rows, and called the result converged."""
    X, y = noisy(1024, 150)
    options = {"C": 10.0, "gamma": 1 / 150, "working_set_size": 256, "cache_size": 1e3, "device": device}
    best, outcomes = SVC(**options).fit(X, y).fit_report_.dual, list[str]()
    for limit in range(40_000, 3_400_000, 160_000):
        model = SVC(**options, memory_limit=limit)
        outcomes.append(optimality.outcome(model, X, y))
        assert outcomes[-1] != "fits" or model.fit_report_.dual == pytest.approx(best, rel=1e-5)
    assert optimality.fits_from_some_limit_on(outcomes)
    assert outcomes.count("fits") > 10


def test_functions_that_are_not_symmetric_are_refused(device: str) -> None:
    X, y = noisy(30, 3)
    for kernel in (Kernel("exp(-0.1 * sqdist) * (1 + xx)"), Kernel.elementwise("x")):
        with pytest.raises(ValueError, match="is not symmetric"):
            SVC(kernel=kernel, device=device).fit(X, y)
