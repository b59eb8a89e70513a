"""A report says what is so: on problems where rounding, time or a cap of steps once made it say more."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from clsvm import SVC, SVR
from clsvm.report import Status
from tests import recheck

TOL = 1e-3


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def violation(model: Any, K: Any, y: Any) -> float:
    """In long double, from the coefficients alone."""
    return float(recheck.check(model, np.asarray(K, np.longdouble), y, None).violation)


@pytest.mark.parametrize("way", ["ovo", "ovr"])
@pytest.mark.parametrize("C", [1.0, 10.0])
def test_several_classes_of_rows_that_are_not_scaled(device: str, way: str, C: float) -> None:
    X, y = load_wine(return_X_y=True)
    model = SVC(kernel="linear", C=C, multi_class=way, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert violation(model, X @ X.T, y) <= 1.2 * TOL


def test_a_member_is_checked_whatever_the_others_do(device: str, profile: str) -> None:
    """One machine of the batch stands still in float32; the others are within tol by their rough f alone."""
    rng = np.random.default_rng(1262)
    X = rng.normal(size=(60, 2)) * [1.0, 30.0] + 300.0
    y = np.arange(60) % 4
    X[y == 1] += 40.0
    model = SVC(kernel="linear", C=5.0, multi_class="ovr", device=device, max_time=60).fit(X, y)
    report = model.fit_report_
    assert report.converged
    assert violation(model, X @ X.T, y) <= 1.2 * TOL


@pytest.mark.parametrize("C", [0.3, 10 / 3])
def test_bounds_that_are_no_sum_of_two_floats(device: str, profile: str, C: float) -> None:
    X, y = load_iris(return_X_y=True)
    model = SVC(C=C, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert np.abs(model.dual_coef_).max() == C


def test_nothing_is_said_of_what_was_not_begun(device: str) -> None:
    X, y = load_digits(return_X_y=True)
    report = SVC(device=device, max_time=1e-9).fit(X, y).fit_report_
    assert report.status == Status.MAX_TIME.value
    assert not report.gap <= 0.01
    assert report.violation == np.inf


def test_rounding_in_float64_itself(device: str) -> None:
    rng = np.random.default_rng(0)
    X = 1e7 + rng.normal(size=(100, 3))
    y = (X[:, 0] > 1e7).astype(int)
    for extra in ({}, {"gap_tol": 1e-3}):
        report = SVC(kernel="linear", device=device, max_time=20, **extra).fit(X, y).fit_report_
        assert report.status == Status.PRECISION.value
        assert not report.converged
        assert report.error_bound > TOL / 10
    apart = SVC(kernel="linear", device=device).fit(X - 1e7, y).fit_report_
    assert apart.converged


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_rows_that_are_not_scaled_end(device: str, C: float) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = SVC(kernel="linear", C=C, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert violation(model, X @ X.T, y) <= 1.2 * TOL
    assert model.fit_report_.steps < 200_000


def test_pairs_that_need_many_steps_are_not_given_up(device: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 2)), rng.integers(0, 3, 120)
    model = SVC(C=1e6, gamma=0.05, device=device).fit(X, y)
    assert model.fit_report_.converged
    K = recheck.gram("rbf", {"gamma": 0.05}, X)
    assert violation(model, K, y) <= 1.2 * TOL


@pytest.mark.parametrize("options", [{"bias": False}, {"multi_class": "crammer_singer"}])
def test_equal_rows_with_opposite_labels(device: str, options: Any) -> None:
    model = SVC(C=1e8, device=device, **options).fit(np.ones((2, 1)), [0, 1])
    assert model.fit_report_.converged
    assert model.fit_report_.steps < 100_000


def test_objectives_are_those_of_the_coefficients(device: str) -> None:
    """The rounding of float32 values moved the objectives by per cents here, and their violation not at all."""
    rng = np.random.default_rng(0)
    X, y = np.round(rng.normal(size=(128, 2))), rng.integers(0, 2, 128)
    for kernel, numbers, C in (
        ("rbf", {"gamma": 1e-3}, 1e6),
        ("poly", {"gamma": 1e-3, "coef0": 1.0, "degree": 2}, 1e4),
    ):
        model = SVC(kernel=kernel, C=C, device=device, **numbers).fit(X, y)
        checked = recheck.check(model, recheck.gram(kernel, numbers, X), y, None)
        assert model.fit_report_.dual == pytest.approx(float(checked.dual), rel=1e-4)


def test_rows_of_tiny_curvature_keep_their_sums(device: str, profile: str) -> None:
    X, y = load_iris(return_X_y=True)
    X[::5] = 0
    model = SVC(multi_class="crammer_singer", kernel="linear", C=1e-6, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert np.abs(model.dual_coef_.sum(axis=0)).max() <= 1e-10 * 1e-6 + 1e-20


def test_time_ends_between_launches(device: str) -> None:
    """All pairs are at work in one batch, and one of them would go on for long."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(900, 4)), rng.integers(0, 3, 900)
    report = SVC(C=1e4, gamma=1.0, multi_class="ovr", tol=1e-7, device=device, max_time=0.2).fit(X, y).fit_report_
    assert report.status == Status.MAX_TIME.value


def test_where_tol_is_coarse_the_optimum_is_found(device: str) -> None:
    """All responses are smaller than tol here: within tol, the objective could be anywhere."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(48, 2)), rng.normal(size=48) * 0.02
    report = SVR(C=0.01, gamma=1e-3, epsilon=0.01, tol=0.02, device=device).fit(X, y).fit_report_
    assert report.converged
    assert report.gap <= 1e-3
