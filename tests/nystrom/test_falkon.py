"""Machines on centres against dense algebra in float64: scikit-learn's KernelRidge, least squares, Newton, SciPy."""

import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge

from clsvm import FalkonClassifier, FalkonRegressor, Kernel, LogisticFalkonClassifier, load_model, save_model
from clsvm.kernels import make
from clsvm.nystrom import newton
from clsvm.opencl.profiles import PROFILES
from clsvm.report import Status

R = np.random.default_rng(7)
X, X_TEST = R.normal(size=(700, 4)), R.normal(size=(90, 4))
F = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
Y = F + 0.1 * R.normal(size=700)
SIGNS = np.where(F + 0.5 * R.normal(size=700) > 0, 1.0, -1.0)
CLASSES = np.digitize(F + 0.3 * R.normal(size=700), [-0.6, 0.6])
CENTRES = X[:60] + 0.01
G = 0.15


def machine_on(device: str, made: Any = FalkonRegressor, **given: Any) -> Any:
    return made(**{"center_selection": CENTRES, "gamma": G, "device": device} | given)


def direct(kernel: Kernel, rows: Any, centres: Any, y: Any, w: Any, penalty: float) -> np.ndarray:
    """(m, k) coefficients: the normal equations as least squares, which loses no digits."""
    K, M = kernel(rows, centres), kernel(centres)
    root = np.sqrt(w / w.sum())[:, None]
    L = np.linalg.cholesky(M + 1e-13 * np.trace(M) * np.eye(len(M)))
    A = np.concatenate([root * K, np.sqrt(penalty) * L.T])
    b = np.concatenate([root * y, np.zeros((len(M), y.shape[1]))])
    return np.linalg.lstsq(A, b, rcond=None)[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("penalty", [1e-2, 1e-5])
def test_all_rows_as_centres_are_kernel_ridge(device: str, profile: str, dtype: str, penalty: float) -> None:
    if (profile, dtype) == ("gpu-pair", "float64"):
        pytest.skip("the profile has no double precision")
    machine = FalkonRegressor(
        n_centers=len(X), penalty=penalty, gamma=G, fit_intercept=False, dtype=dtype, device=device
    ).fit(X, Y)
    ridge = KernelRidge(alpha=penalty * len(X), kernel="rbf", gamma=G).fit(X, Y)
    error = np.abs(machine.predict(X_TEST) - ridge.predict(X_TEST)).max() / np.abs(Y).max()
    assert error <= (1e-3 if dtype == "float32" else 1e-4)
    assert machine.fit_report_.converged
    if dtype == "float64":
        np.testing.assert_allclose(machine.predict(X_TEST), ridge.predict(X_TEST), atol=1e-6)


@pytest.mark.parametrize(
    "kernel",
    [
        make("rbf", gamma=G),
        make("matern32", gamma=0.4),
        make("laplacian", gamma=0.2),
        make("poly", gamma=0.3, coef0=1.0, degree=2),
        make("rbf", gamma=G) + 0.5,
        Kernel("dot / sqrt(xx * yy) + exp(-sqdist)"),
    ],
    ids=lambda kernel: kernel.name,
)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "csr"])
def test_centres_are_the_direct_solution(device: str, kernel: Kernel, form: Any) -> None:
    """Three outputs at once, weights, an offset, any kernel function."""
    y, w = np.stack([Y, Y**2, -F], axis=1), R.integers(0, 3, len(X)).astype(float)
    given = {"kernel": kernel, "penalty": 1e-4, "dtype": "float64", "tol": 1e-6}
    machine = machine_on(device, center_selection=form(CENTRES), **given).fit(form(X), y, w)
    mean = w @ y / w.sum()
    alpha = direct(kernel, X, CENTRES, y - mean, w, 1e-4)
    np.testing.assert_allclose(machine.intercept_, mean)
    expected = kernel(X_TEST, CENTRES) @ alpha + mean
    np.testing.assert_allclose(machine.predict(form(X_TEST)), expected, atol=1e-4 * np.abs(y).max())
    if np.linalg.cond(kernel(CENTRES)) < 1e6:
        np.testing.assert_allclose(machine.dual_coef_, alpha.T, atol=1e-4 * np.abs(alpha).max())
    assert machine.fit_report_.residual <= 1e-6


@pytest.mark.parametrize("way", ["rows", "stored", "streamed"])
def test_every_way_through_the_rows(device: str, profile: str, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """K made, kept or of rows that stream by, dense and CSR, with fewer sampled rows than there are, two outputs."""
    monkeypatch.setattr("clsvm.nystrom.fit.sampled", lambda n, m, *_: (2 * m, way != "rows"))
    monkeypatch.setattr("clsvm.gram.blocks.BLOCK", 1 if way == "streamed" else 1 << 28)
    if way == "streamed":
        monkeypatch.setattr("clsvm.gram.cross.SHARE", 0.0)
    for name, one in PROFILES.items():
        monkeypatch.setitem(PROFILES, name, replace(one, stored_cost=0.0 if way == "stored" else np.inf))
    kernel, y = make("rbf", gamma=G), np.stack([Y, F], axis=1)
    expected = kernel(X, X[:50]) @ direct(kernel, X, X[:50], y, np.ones(700), 1e-4)
    for form in (np.asarray, sp.csr_matrix):
        machine = machine_on(device, center_selection=form(X[:50]), penalty=1e-4, fit_intercept=False, tol=1e-6)
        machine.fit(form(X), y)
        assert f", {way};" in machine.fit_report_.layout
        assert machine.fit_report_.sample == 100
        np.testing.assert_allclose(machine.predict(form(X)), expected, atol=1e-3 * np.abs(y).max())


def test_sums_over_ill_conditioned_points(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preconditioner of sums over rows of K, whose rounding exceeds the penalty, has the minimum of the exact one."""
    found = []
    for sums in (False, True):
        monkeypatch.setattr("clsvm.nystrom.fit.sampled", lambda n, m, *_, sums=sums: (n, sums))
        machine = machine_on(device, center_selection=X[:300, :4], gamma=0.1, penalty=1e-6, tol=1e-7)
        found.append(machine.fit(X[:, :4], Y).fit_report_)
    exact, rounded = found
    assert exact.converged
    assert rounded.converged
    assert exact.steps <= 3 < rounded.steps < 60
    assert abs(exact.objective - rounded.objective) <= min(exact.bound + rounded.bound, 1e-6 * exact.objective)


def minimised(loss: Any, w: np.ndarray, penalty: float, k: int = 1) -> np.ndarray:
    """Return (m, k) coefficients on CENTRES: SciPy's minimiser, with the gradient.

    loss: of f (n, k) the losses (n,) and their derivatives (n, k).
    """
    kernel, shares = make("rbf", gamma=G), w / w.sum()
    L = np.linalg.cholesky(kernel(CENTRES) + 1e-12 * np.eye(60))
    B = np.linalg.solve(L, kernel(X, CENTRES).T).T

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        u = u.reshape(60, k)
        losses, slopes = loss(B @ u)
        gradient = B.T @ (shares[:, None] * slopes) + penalty * u
        return float(shares @ losses + penalty / 2 * (u**2).sum()), gradient.ravel()

    options = {"maxiter": 9999, "gtol": 1e-10, "ftol": 1e-16, "maxcor": 50}
    found = minimize(value, np.zeros(60 * k), jac=True, method="L-BFGS-B", options=options)
    return np.linalg.solve(L.T, found.x.reshape(60, k))


@pytest.mark.parametrize("penalty", [1e-2, 1e-4])
@pytest.mark.parametrize("k", [2, 3])
def test_logistic_probabilities(device: str, profile: str, penalty: float, k: int) -> None:
    w = R.integers(0, 3, len(X)).astype(float)
    machine = machine_on(device, LogisticFalkonClassifier, penalty=penalty, fit_intercept=False, tol=1e-6)
    machine.fit(X, SIGNS if k == 2 else CLASSES, w)

    def logistic(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.logaddexp(0, -SIGNS * f[:, 0]), (-SIGNS * expit(-SIGNS * f[:, 0]))[:, None]

    def of_three(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        there = (CLASSES[:, None] == np.arange(3)).astype(float)
        return np.logaddexp.reduce(f, axis=1) - (f * there).sum(axis=1), softmax(f, axis=1) - there

    alpha = minimised(logistic, w, penalty) if k == 2 else minimised(of_three, w, penalty, 3)
    f = make("rbf", gamma=G)(X_TEST, CENTRES) @ alpha
    expected = np.concatenate([expit(-f), expit(f)], axis=1) if k == 2 else softmax(f, axis=1)
    np.testing.assert_allclose(machine.predict_proba(X_TEST), expected, atol=1e-4)
    np.testing.assert_array_equal(np.log(machine.predict_proba(X_TEST)), machine.predict_log_proba(X_TEST))
    np.testing.assert_array_equal(machine.predict(X_TEST), machine.classes_[expected.argmax(axis=1)])


def test_class_weights(device: str) -> None:
    y = (X[:, 0] > 1.0).astype(int)
    balanced = machine_on(device, LogisticFalkonClassifier, class_weight="balanced", penalty=1e-3).fit(X, y)
    weights = len(y) / (2 * np.bincount(y))[y]
    by_hand = machine_on(device, LogisticFalkonClassifier, penalty=1e-3).fit(X, y, weights)
    np.testing.assert_allclose(balanced.decision_function(X), by_hand.decision_function(X), atol=1e-6)


@pytest.mark.parametrize("how", ["uniform", "k-means++", "leverage"])
def test_selections(device: str, how: str) -> None:
    """Rows, all different, none that weighs nothing; as good as one another here; the same for the same seed."""
    w = np.ones(len(X))
    w[:300] = 0
    machine = FalkonRegressor(n_centers=80, center_selection=how, random_state=3, gamma=G, penalty=1e-5, device=device)
    machine.fit(X, Y, w)
    index = machine.center_indices_
    assert len(np.unique(index)) == 80
    assert index.min() >= 300
    np.testing.assert_array_equal(X[index], machine.centers_)
    assert machine.score(X_TEST, np.sin(2 * X_TEST[:, 0]) + X_TEST[:, 1] * X_TEST[:, 2]) > 0.85
    again = clone(machine).fit(X, Y, w)
    np.testing.assert_array_equal(again.dual_coef_, machine.dual_coef_)


def test_an_interrupt_keeps_what_was_found(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, np.ndarray, float]] = []

    def callback(step: int, coefficients: np.ndarray, seconds: float) -> None:
        seen.append((step, coefficients.copy(), seconds))
        if step == 6:
            raise KeyboardInterrupt

    machine = machine_on(device, LogisticFalkonClassifier, penalty=1e-7, callback=callback, tol=1e-9)
    with pytest.raises(KeyboardInterrupt):
        machine.fit(X, SIGNS)
    assert [step for step, *_ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[0][1].shape == (60, 1)
    assert "interrupted" in machine.fit_report_.status
    assert not machine.fit_report_.converged
    assert machine.score(X, SIGNS) > 0.7
    squared = machine_on(device, penalty=1e-7, callback=callback)
    monkeypatch.setattr("clsvm.nystrom.fit.sampled", lambda n, m, *_: (m, False))  # (it takes many steps)
    with pytest.raises(KeyboardInterrupt):
        squared.fit(X, Y)
    assert squared.n_iter_ == 6
    assert squared.score(X, Y) > 0.3
    whole = clone(machine).set_params(callback=None, warm_start=True, tol=1e-4).fit(X, SIGNS)
    assert whole.fit_report_.converged
    monkeypatch.setattr(newton.Newton, "_hessian", interrupted)  # before the first step, so that nothing was found
    for one in (whole.set_params(warm_start=False), clone(whole)):
        before = vars(one).get("dual_coef_")
        with pytest.raises(KeyboardInterrupt):
            one.fit(X, SIGNS)
        assert vars(one).get("dual_coef_") is before


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_warm_starts(device: str) -> None:
    """Another penalty from the coefficients before, over the same centres."""
    machine = FalkonRegressor(n_centers=60, gamma=G, penalty=1e-3, random_state=0, warm_start=True, device=device)
    machine.fit(X, Y)
    centres, first = machine.centers_, machine.fit_report_
    machine.fit(X, Y)
    assert machine.fit_report_.steps == 0
    assert first.steps > 0
    machine.set_params(penalty=1e-4).fit(X, Y)
    assert machine.centers_ is centres
    cold = clone(machine).set_params(warm_start=False, center_selection=centres).fit(X, Y)
    np.testing.assert_allclose(machine.predict(X), cold.predict(X), atol=1e-3)
    with pytest.raises(ValueError, match="warm_start: the last fit had 1 outputs and 4 features, got 1 outputs and 3"):
        machine.fit(X[:, :3], Y)


@pytest.mark.parametrize("kernel", ["linear", "poly"])
@pytest.mark.parametrize("penalty", [1e-3, 1e-7])
def test_more_centres_than_the_kernel_has_dimensions(device: str, kernel: str, penalty: float) -> None:
    """K among the centres is singular: the ridge regression on the features, by as many centres as there are."""
    rows = 30 * X + 5
    given: dict[str, Any] = {"kernel": kernel, "degree": 2, "gamma": 1e-3, "coef0": 1.0}
    machine = FalkonRegressor(n_centers=200, penalty=penalty, tol=1e-7, random_state=0, device=device, **given)
    report = machine.fit(rows, Y).fit_report_
    assert report.converged
    assert report.rank == {"linear": 4, "poly": 15}[kernel]
    K = rows @ rows.T if kernel == "linear" else (1e-3 * rows @ rows.T + 1) ** 2
    alpha = np.linalg.solve(K + penalty * len(X) * np.eye(len(X)), Y - Y.mean())
    np.testing.assert_allclose(machine.predict(rows), K @ alpha + Y.mean(), atol=1e-3 * np.abs(Y).max())
    assert machine.set_params(warm_start=True).fit(rows, Y).fit_report_.steps == 0  # it is there already


def test_rounding_that_shows_is_said(device: str, profile: str) -> None:
    """Products of rows far from 0: in float64 where the device has it, else no tolerance is claimed."""
    machine = FalkonRegressor(kernel="linear", n_centers=3, penalty=1e-4, random_state=0, device=device)
    report = machine.fit(X + 1000, Y).fit_report_
    assert report.converged == (report.dtype == "float64")
    assert report.converged or "rounding in float32" in report.status
    machine.set_params(kernel="rbf", gamma=G, penalty=1e-2)
    assert machine.fit(X + 1000, Y).fit_report_.converged


def test_targets_that_weigh_nothing_hide_no_rounding(device: str) -> None:
    """What rounding does to f is held against the targets that count, and each output's own."""
    rows, signs, weights = X[:200, :2], np.sign(R.normal(size=200)), np.ones(200)
    weights[-1] = 0
    masked = np.where(weights > 0, signs, 1e6)
    machine = FalkonRegressor(center_selection=rows[:60], gamma=2.0, penalty=1e-10, device=device)
    seen = [clone(machine).fit(rows, masked, weights), clone(machine).fit(rows[:199], signs[:199])]
    assert seen[0].fit_report_.status == seen[1].fit_report_.status
    assert seen[0].fit_report_.dtype == seen[1].fit_report_.dtype
    if seen[0].fit_report_.converged:
        np.testing.assert_allclose(seen[0].predict(rows), seen[1].predict(rows), atol=1e-4)
    both = clone(machine).fit(rows, np.stack([signs, 1e7 * np.sin(rows[:, 0])], axis=1))
    assert both.fit_report_.dtype == seen[1].fit_report_.dtype


def test_where_nothing_is_to_be_learnt(device: str) -> None:
    """Targets that are their mean, up to rounding, and rows that are all the same: done before the first step."""
    given: dict[str, Any] = {"device": device, "random_state": 0, "n_centers": 40}
    constant = FalkonRegressor(gamma=0.5, **given).fit(X, np.full(len(X), 0.1))
    assert constant.fit_report_.converged
    assert constant.n_iter_ == 0
    np.testing.assert_allclose(constant.predict(X), 0.1, rtol=1e-14)
    for kernel in ("linear", "rbf"):
        same = FalkonRegressor(kernel=kernel, **given).fit(np.full((50, 1), 3.0), Y[:50])
        assert same.fit_report_.converged
        np.testing.assert_allclose(same.predict([[3.0]]), Y[:50].mean(), rtol=1e-9)


def test_kernel_values_beyond_the_dtype_are_refused(device: str, profile: str) -> None:
    """No gradient, no convergence: a row far out whose K overflows."""
    rows = np.r_[np.linspace(0, 1, 60), 1200.0][:, None]
    given = {"kernel": Kernel("exp(dot)"), "center_selection": rows[:3] + 0.5, "penalty": 1e-3}
    machine = machine_on(device, **given, fit_intercept=False)
    with pytest.raises(ValueError, match=r"finite|exceed|too large"):
        machine.fit(rows, np.ones(61))


def test_a_start_that_needs_finer_numbers(device: str) -> None:
    """A warm start that is within a larger tolerance is looked at in float64, too, where float32 hides it."""
    machine = machine_on(device, center_selection=X[:60, :2], gamma=2.0, penalty=1e-10, tol=1e-6, warm_start=True)
    signs = np.sign(R.normal(size=200))
    first = machine.fit(X[:200, :2], signs).fit_report_
    again = machine.set_params(tol=1e-2).fit(X[:200, :2], signs).fit_report_
    assert (again.converged, again.dtype) == (first.converged, first.dtype)
    assert again.steps == 0


def test_steps_go_on_in_finer_numbers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 stalls and float64 takes over, a callback's steps and seconds go on."""
    real, solves = newton.Newton._run, []

    def stalled(self: Any, start: Any) -> Any:
        found = real(self, start)
        solves.append(1)
        return Status.STALLED if len(solves) == 1 else found

    monkeypatch.setattr(newton.Newton, "_run", stalled)
    seen: list[tuple[int, float]] = []
    callback = lambda step, _, seconds: seen.append((step, seconds))  # noqa: E731
    machine = machine_on(device, LogisticFalkonClassifier, callback=callback)
    report = machine.fit(X, CLASSES).fit_report_
    steps, seconds = zip(*seen, strict=True)
    assert [*steps] == [*range(1, report.steps + 1)]
    assert [*seconds] == sorted(seconds)
    assert len(solves) == (2 if report.dtype == "float64" else 1)


def malformed() -> sp.csr_matrix:
    """Two rows, of which one has an entry in a column that is not there."""
    rows = sp.csr_matrix(np.eye(2, 4))
    rows.indices[1] = 9
    return rows


BAD = (
    ({"penalty": 0.0}, ValueError, "penalty must be > 0"),
    ({"n_centers": 0}, ValueError, "n_centers must be >= 1 or 'auto', got 0"),
    ({"center_selection": "best"}, ValueError, "must be 'uniform', 'k-means\\+\\+', 'leverage' or rows"),
    ({"center_selection": None}, TypeError, "center_selection must be .* got None"),
    (
        {"center_selection": np.zeros((3, 9))},
        ValueError,
        "center_selection: the inducing points have 9 features, X has 4",
    ),
    *(
        ({"center_selection": rows}, ValueError, f"center_selection.*{words}")
        for rows, words in (
            (X[0], "Expected 2D array"),
            (sp.csr_matrix(np.full((2, 4), np.inf)), "contains infinity"),
            (malformed(), "malformed .csr.: indices must be < 4"),
        )
    ),
    ({"center_selection": X[:3] * 1e30}, ValueError, "the squared norm of a row is too large for float"),
    ({"kernel": "sigmoid", "gamma": 1e-4, "coef0": 1.0}, ValueError, "is not positive semi-definite"),
    ({"kernel": "precomputed"}, ValueError, "kernel must be a name or a Kernel"),
    ({"loss": "hinge"}, ValueError, "loss must be 'squared' or 'log_cosh'"),
    ({"callback": 3}, TypeError, "callback must be a function or None"),
    ({"memory_limit": 9000}, ValueError, "memory_limit of 9000 bytes is too small"),
)


@pytest.mark.parametrize(("given", "error", "words"), BAD, ids=[str(given)[:40] for given, *_ in BAD])
def test_bad_input_is_refused(device: str, given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        FalkonRegressor(device=device, **given).fit(X, Y)


def test_centers_by_name(device: str) -> None:
    """Given centers need no names; if they have some, they are those of X."""
    frame, given = pd.DataFrame(abs(X), columns=[*"abcd"]), {"device": device, "gamma": G, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = FalkonRegressor(center_selection=frame[:9], **given).fit(frame, Y)
        plain = FalkonRegressor(center_selection=abs(X)[:9], **given).fit(frame, Y)
    np.testing.assert_array_equal(named.dual_coef_, plain.dual_coef_)
    with pytest.raises(ValueError, match=r"center_selection: .* the column names of X .*, \['a', .* got \['d'"):
        FalkonRegressor(center_selection=frame[[*"dcba"]][:9], **given).fit(frame, Y)
    with pytest.raises(ValueError, match="center_selection: kernel chi2 is for rows without negative values"):
        FalkonRegressor(kernel="chi2", center_selection=-frame[:9], **given).fit(frame, Y)


@pytest.mark.parametrize("made", [FalkonClassifier, LogisticFalkonClassifier])
@pytest.mark.parametrize("weight", [-1, np.nan, np.inf])
def test_class_weights_out_of_range(made: Any, weight: float) -> None:
    """Of two classes and of three; those of classes that are not there play no part."""
    for y in (np.arange(len(X)) % 2, np.arange(len(X)) % 3):
        with pytest.raises(ValueError, match=f"class_weight must be >= 0 and finite, got {weight} for class 0"):
            made(class_weight={0: weight}).fit(X, y)
    made(class_weight={0: 1, 1: 2, 7: weight}, n_centers=20, penalty=1e-3).fit(X, np.arange(len(X)) % 2)


def test_odd_input(device: str) -> None:
    """More centres than rows, one centre, equal centres, one row, one class, nan."""
    given: dict[str, Any] = {"gamma": G, "device": device, "penalty": 1e-3}
    many = FalkonRegressor(n_centers=10**6, **given).fit(X[:50], Y[:50])
    assert many.fit_report_.centers == "50 of 50 rows (1000000 were asked for): every row"
    one = FalkonRegressor(n_centers=1, fit_intercept=False, **given).fit(X, Y)
    k = make("rbf", gamma=G)(X, one.centers_)[:, 0]
    assert one.dual_coef_[0, 0] == pytest.approx(k @ Y / (k @ k + 1e-3 * len(X)), rel=1e-4)
    equal = FalkonRegressor(center_selection=np.repeat(CENTRES[:20], 3, axis=0), **given).fit(X, Y)
    single = FalkonRegressor(center_selection=CENTRES[:20], **given).fit(X, Y)
    np.testing.assert_allclose(equal.predict(X), single.predict(X), atol=1e-4)
    np.testing.assert_allclose(FalkonRegressor(**given).fit(X[:1], Y[:1]).predict(X[:1]), Y[:1])
    for machine in (FalkonClassifier(**given), LogisticFalkonClassifier(**given)):
        with pytest.raises(ValueError, match="number of classes has to be greater than one"):
            machine.fit(X, np.ones(len(X)))
        with pytest.raises(ValueError, match="all samples with positive weights belong to the same class"):
            machine.fit(X, SIGNS, (SIGNS > 0).astype(float))
    mixed = FalkonRegressor(center_selection=CENTRES, **given).fit(sp.csr_matrix(X), Y)
    other = FalkonRegressor(center_selection=sp.csr_matrix(CENTRES), **given).fit(X, Y)
    np.testing.assert_allclose(mixed.predict(sp.csr_matrix(X)), other.predict(X), atol=1e-4)
    with pytest.raises(ValueError, match="absolute values of y must be at most 1e"):
        FalkonRegressor(**given).fit(X, Y * 1e150)
    with pytest.raises(ValueError, match="NaN"):
        FalkonRegressor(**given).fit(X, np.where(np.arange(700) == 3, np.nan, Y))
    with pytest.warns(ConvergenceWarning, match="max_iter was reached"):
        LogisticFalkonClassifier(max_iter=1, tol=1e-12, **given).fit(X, SIGNS)


def test_coarse_kernel_values_are_made_in_float64(device: str) -> None:
    """Nearly equal centres, by far: K is as good as singular, and T^-1 enlarges what float32 rounds."""
    given: dict[str, Any] = {"penalty": 1e-9, "gamma": 0.01, "center_selection": CENTRES, "fit_intercept": False}
    machine = FalkonRegressor(device=device, **given).fit(X, Y)
    assert machine.fit_report_.dtype == "float64"
    assert machine.fit_report_.converged
    kernel = make("rbf", gamma=0.01)
    alpha = direct(kernel, X, CENTRES, Y[:, None], np.ones(700), 1e-9)
    np.testing.assert_allclose(machine.predict(X), (kernel(X, CENTRES) @ alpha)[:, 0], atol=1e-3)


def test_reports(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine = FalkonClassifier(n_centers=100, random_state=0, device=device, verbose=True)
    machine.fit(*load_digits(return_X_y=True))
    report = machine.fit_report_
    assert "residual" in capsys.readouterr().err
    assert pickle.loads(pickle.dumps(report)).to_dict() == report.to_dict()
    assert json.loads(json.dumps(report.to_dict()))["steps"] == report.steps == machine.n_iter_
    assert [point.violation for point in report.trace][-1] == report.residual <= 1e-5
    assert report.objective < report.trace[0].primal
    parts = [value for name, value in report.seconds.items() if name != "total"]
    assert sum(parts) == pytest.approx(report.seconds["total"])
    assert "converged: the residual is within tol" in str(report)


@pytest.mark.parametrize(
    ("made", "y"),
    [(FalkonRegressor, np.stack([Y, F], axis=1)), (FalkonClassifier, CLASSES), (LogisticFalkonClassifier, SIGNS)],
)
def test_model_files(device: str, tmp_path: Path, made: Any, y: Any) -> None:
    machine = made(n_centers=40, random_state=0, device=device, penalty=1e-4).fit(X, y)
    save_model(machine if y.ndim > 1 else machine.model_, tmp_path / "m.npz")
    read = load_model(tmp_path / "m.npz")
    np.testing.assert_array_equal(read.predict(X, device), machine.predict(X))
    if made is LogisticFalkonClassifier:
        np.testing.assert_allclose(read.predict_proba(X, device), machine.predict_proba(X), rtol=1e-12)
