"""nu-SVC and nu-SVR: against scikit-learn's, and their own promises; both shapes of the subproblem with two groups."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.exceptions import ConvergenceWarning

from benchmarks import check
from clsvm import NuSVC, NuSVR, kernels
from clsvm.estimators import dual
from clsvm.fit import driver
from tests.conftest import noisy, simulated, thrifty
from tests.solvers import optimality

TOL = 1e-5


def regression(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, -1] + 0.2 * rng.normal(size=n)


@pytest.mark.oclgrind
def test_a_few_rows(device: str, profile: str) -> None:
    """A few steps, small enough for a simulator: each pair is of one group, so both sums stay as they were."""
    if thrifty(device) and profile == "gpu-pair":
        pytest.skip("the group shape is shown with doubles")
    X, y = noisy(24, 3)
    W, steps = 64 if thrifty(device) else 16, 3 if simulated(device) else 8
    with pytest.warns(ConvergenceWarning):
        model = NuSVC(nu=0.5, gamma=0.3, tol=1e-6, max_iter=steps, device=device, working_set_size=W).fit(X, y)
    (found,) = check.each(model, kernels.make("rbf", gamma=0.3)(X), y)
    assert max(found.box, found.off_share) <= 1e-9
    assert model.n_iter_ == steps


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("weighted", [False, True])
def test_nu_svc(device: str, profile: str, weighted: bool, form: Any) -> None:
    X, y = noisy(90, 4)
    weights = np.random.default_rng(1).choice([0.5, 1.0, 2.0], 90) if weighted else np.ones(90)
    ours = NuSVC(nu=0.4, gamma=0.3, tol=TOL, device=device, working_set_size=16).fit(form(X), y, weights)
    theirs = svm.NuSVC(nu=0.4, gamma=0.3, tol=TOL).fit(X, y, weights)
    np.testing.assert_allclose(ours.decision_function(form(X)), theirs.decision_function(X), atol=2e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-3)
    np.testing.assert_array_equal(ours.n_support_, theirs.n_support_)
    assert ours.fit_report_.gap < 1e-3
    optimality.verify(ours, kernels.make("rbf", gamma=0.3)(X), y, weights, 1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("weighted", [False, True])
def test_nu_svr(device: str, profile: str, weighted: bool, kernel: str) -> None:
    X, y = regression(120, 3)
    weights = np.random.default_rng(1).choice([0.5, 1.0, 2.0], 120) if weighted else np.ones(120)
    options: dict[str, Any] = {"C": 2, "nu": 0.3, "kernel": kernel, "gamma": 0.3, "tol": TOL}
    ours = NuSVR(**options, device=device, working_set_size=64).fit(X, y, weights)
    theirs = svm.NuSVR(**options).fit(X, y, weights)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-3)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-3)
    assert abs(len(ours.support_) - len(theirs.support_)) <= 1
    assert ours.fit_report_.gap < 1e-3
    optimality.verify(ours, ours.model_.kernel(X), y, weights, 1e-9)


def test_going_on(device: str) -> None:
    """A second fit from the first one's coefficients takes hardly a step."""
    X, y = regression(200, 3)
    model = NuSVR(C=3, nu=0.4, device=device, warm_start=True).fit(X, y)
    first, values = model.fit_report_.steps, model.predict(X)
    assert model.fit(X, y).fit_report_.steps < first / 2
    np.testing.assert_allclose(model.predict(X), values, atol=5e-3)


def test_bad_nu(device: str) -> None:
    for model, words in ((NuSVC(nu=1.5), r"1\.5"), (NuSVR(nu=1.5), r"1\.5"), (NuSVR(nu=0), "0")):
        with pytest.raises(ValueError, match=f"nu must be > 0 and <= 1, got {words}"):
            model.set_params(device=device).fit(*noisy(60, 3))


@pytest.mark.parametrize(("layout", "weighted"), [("auto", False), ("csr", True), ("dense", False)])
@pytest.mark.parametrize("kernel", ["linear", "rbf", "precomputed", "linear, large rows"])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_nu_that_a_warning_names_gives_a_margin(
    device: str, kernel: str, classes: int, layout: str, weighted: bool
) -> None:
    """Where the reduced hulls of classes meet, the margin is 0 and signs of decision values mean nothing. A fit with
    the nu that is said to be large enough does not warn; one with a nu that is a fifth smaller does."""
    rng = np.random.default_rng(classes)
    X = rng.normal(size=(60 * classes, 2)) * (30 if kernel.endswith("large rows") else 1)
    y = (np.argsort(np.argsort(X[:, 0] + np.std(X) * rng.normal(size=len(X)))) * classes) // len(X)
    X = X @ X.T if kernel == "precomputed" else X
    weights = rng.uniform(0.5, 1.5, len(X)) if weighted else None
    model = NuSVC(nu=0.02, kernel=kernel.partition(",")[0], gamma=0.05, layout=layout, device=device)
    with pytest.warns(UserWarning, match=r"margin of no more than tol=0.001.*nu=0.02 is too small") as said:
        model.fit(X, y, sample_weight=weights)
    words = next(str(one.message) for one in said if "too small" in str(one.message))
    enough, most = (float(re.search(rf"nu=(\S+?){end}", words)[1]) for end in (" is large enough", "$"))  # type: ignore[index]
    assert 0.02 < enough <= most
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.set_params(nu=enough).fit(X, y, sample_weight=weights).score(X, y) > 1.2 / classes
        model.set_params(nu=most).fit(X, y, sample_weight=weights)
    with pytest.warns(UserWarning, match="too small"):
        model.set_params(nu=0.8 * enough).fit(X, y, sample_weight=weights)


def test_where_no_nu_is_found_the_bound_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.ones((60, 2)), np.arange(60) % 3 == 0  # equal rows: no margin at all
    with pytest.warns(UserWarning, match=r"the sizes of the classes allow at most nu=0\.666666$"):
        NuSVC(nu=0.3, device=device).fit(X, y)
    with pytest.raises(ValueError, match=r"specified nu is infeasible: got nu=0\.7, at most 0\.666666 for"):
        NuSVC(nu=0.7, device=device).fit(X, y)
    X = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.warns(UserWarning, match=r"no smaller nu than 0\.666666 gives a margin of more than 0\.01, and"):
        NuSVC(nu=0.1, kernel="linear", device=device).fit(1e-5 * X, y)

    calls = iter([driver.solve])  # the fit itself; the search of a remedy fails

    def solve(*given: Any) -> Any:
        if (first := next(calls, None)) is None:
            raise MemoryError
        return first(*given)

    monkeypatch.setattr(dual, "driver", SimpleNamespace(solve=solve))
    with pytest.warns(UserWarning, match=r"function; the sizes of the classes allow at most nu=0\.666666$"):
        NuSVC(nu=0.1, kernel="linear", device=device).fit(X, y)
