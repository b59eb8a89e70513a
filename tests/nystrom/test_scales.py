"""Targets and weights of any size, and several outputs at once: each fit is that of the scaled, or of one output."""

from typing import Any

import numpy as np
import pytest

from clsvm import FalkonRegressor, Kernel, LogisticFalkonClassifier

R = np.random.default_rng(5)
X = R.normal(size=(300, 4))
Y = np.sin(X[:, 0]) + 0.1 * R.normal(size=300)
CLASSES, W = np.digitize(Y, [-0.5, 0.5]), R.random(300)
CENTRES = X[:40]


def machine(device: str, made: Any = FalkonRegressor, **params: Any) -> Any:
    return made(**{"center_selection": CENTRES, "gamma": 0.3, "penalty": 1e-4, "device": device, **params})


@pytest.mark.parametrize("loss", ["squared", "log_cosh"])
def test_tiny_and_huge_targets(device: str, profile: str, loss: str) -> None:
    """Of the squared loss at any size; log cosh is half the square of what is tiny."""
    first = machine(device).fit(X, Y)
    expected, report = first.predict(X), first.fit_report_
    for s in (1e-300, 1e-170, 1e-40, 1e90 if loss == "squared" else 1e-9):
        made = machine(device, loss=loss).fit(X, Y * s)
        np.testing.assert_allclose(made.predict(X) / s, expected, atol=1e-4, err_msg=str(s))
        assert made.fit_report_.converged
        assert made.fit_report_.objective == pytest.approx(report.objective * s * s, rel=1e-6, abs=1e-322)
        assert made.fit_report_.bound == pytest.approx(report.bound * s * s, rel=0.1, abs=1e-322)
        assert made.fit_report_.trace[0].primal == pytest.approx(report.trace[0].primal * s * s, rel=1e-6, abs=1e-322)


@pytest.mark.parametrize("loss", ["squared", "log_cosh"])
def test_columns_of_very_different_sizes(device: str, loss: str) -> None:
    """Each as if it were the only one: tiny, ordinary, constant, huge, far from 0."""
    columns = Y * 1e-170, Y, np.full(300, 7.25), Y * 1e40, Y + 1e6
    made = machine(device, loss=loss, tol=1e-7, max_iter=2000).fit(X, np.stack(columns, axis=1))
    assert made.fit_report_.converged
    assert 0 <= made.fit_report_.residual <= 1e-7  # (a goal of so small targets underflows)
    assert made.predict(X)[0, 2] == 7.25
    for column, found in zip(columns, made.predict(X).T, strict=True):
        expected = machine(device, loss=loss, tol=1e-7).fit(X, column).predict(X)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(column - column.mean()).max() + 1e-9)


@pytest.mark.parametrize("loss", ["squared", "log_cosh"])
def test_an_intercept_far_above_the_variation(device: str, loss: str) -> None:
    expected, steps = (made := machine(device, loss=loss).fit(X, Y)).predict(X), made.fit_report_.steps
    for far in (1e6, -1e9, 1e12):
        made = machine(device, loss=loss).fit(X, Y + far)
        np.testing.assert_allclose(made.predict(X) - far, expected, atol=1e-5 + 1e-15 * abs(far))
        assert made.fit_report_.converged
        assert made.fit_report_.steps <= steps + 3


@pytest.mark.parametrize("made", [FalkonRegressor, LogisticFalkonClassifier])
def test_tiny_and_huge_weights(device: str, made: Any) -> None:
    """They count relative to one another."""
    y = Y if made is FalkonRegressor else CLASSES
    first = machine(device, made, tol=1e-7).fit(X, y, W)
    for s in (1e-310, 1e-60, 1e300, 1.7e308):
        again = machine(device, made, tol=1e-7).fit(X, y, W * s)
        assert again.fit_report_.converged
        np.testing.assert_allclose(again.dual_coef_ @ X[:40], first.dual_coef_ @ X[:40], atol=1e-2)
        assert again.fit_report_.objective == pytest.approx(first.fit_report_.objective, rel=1e-6)
    if made is LogisticFalkonClassifier:
        by_class = machine(device, made, tol=1e-7, class_weight=dict.fromkeys(range(3), 1e200)).fit(X, y, W * 1e200)
        assert by_class.fit_report_.objective == pytest.approx(first.fit_report_.objective, rel=1e-6)


def test_what_goes_in_and_comes_out_on_the_way(device: str) -> None:
    """Coefficients of a callback and of a warm start are the caller's."""
    seen: list[np.ndarray] = []
    made = machine(device, warm_start=True, callback=lambda _, coefficients, __: seen.append(coefficients))
    made.fit(X, Y * 1e-100)
    np.testing.assert_allclose(seen[-1].T, made.dual_coef_, rtol=1e-6)
    made.fit(X, Y * 1e-100)
    assert made.fit_report_.steps == 0
    made.fit(X, Y * 1e80)
    np.testing.assert_allclose(made.predict(X) / 1e80, machine(device).fit(X, Y).predict(X), atol=1e-4)


@pytest.mark.parametrize("scale", [3e9, 1e15, 1e-11, 1e-13])
def test_inner_values_of_a_kernel_function_that_leave_float32s_range(device: str, scale: float) -> None:
    """The function does not depend on the rows' scale: predictions are those of rows near 1, in float64."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.sin(X[:, 0])
    kernel = Kernel("(dot / sqrt(xx * yy) + 1) ** 2")
    given = {"kernel": kernel, "n_centers": 9, "random_state": 0, "device": device}
    expected = FalkonRegressor(**given).fit(X, y).predict(X)
    model = FalkonRegressor(**given).fit(X * scale, y)
    assert model.fit_report_.dtype == "float64"
    np.testing.assert_allclose(model.predict(X * scale), expected, atol=1e-3)
    with pytest.raises(ValueError, match="leave the range of float64"):
        FalkonRegressor(**given).fit(X * 1e-160, y)


def several(device: str, **params: Any) -> Any:
    given = {"center_selection": "uniform", "n_centers": 100, "penalty": 1e-6, "tol": 1e-6, "random_state": 0}
    return machine(device, **{**given, **params})


def targets(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    rough = np.sign(X[:, 0] * X[:, 1]) + 0.3 * rng.normal(size=n)
    return X, np.stack([rough, np.sin(X).sum(axis=1), np.full(n, 3.0)], axis=1)


@pytest.mark.parametrize("loss", ["squared", "log_cosh"])
def test_a_large_output_hides_no_small_one(device: str, loss: str) -> None:
    """The large one starts where it ends: a norm over both would be small enough at once."""
    X, Y = targets(900)
    scale = np.array([1.0, 1e8 if loss == "squared" else 1.0])
    scale[0] = 1.0 if loss == "squared" else 1e-8
    before, now = Y[:, [1, 1]] * scale, Y[:, :2] * scale
    made = several(device, loss=loss, warm_start=True, max_iter=300).fit(X, before)
    made.fit(X, now)
    assert made.fit_report_.converged
    for p in range(2):
        one = several(device, loss=loss).fit(X, now[:, p])
        error = np.abs(made.predict(X)[:, p] - one.predict(X)).max()
        assert error <= 1e-3 * np.abs(now[:, p]).max()


def test_an_output_without_anything_to_learn_forgets_its_start(device: str) -> None:
    X, Y = targets(400)
    made = several(device, warm_start=True).fit(X, Y[:, [0, 1]])
    made.fit(X, Y[:, [0, 2]])
    assert made.fit_report_.converged
    np.testing.assert_array_equal(made.predict(X)[:, 1], 3.0)
    np.testing.assert_allclose(made.predict(X)[:, 0], several(device).fit(X, Y[:, 0]).predict(X), atol=2e-5)


def test_many_outputs_need_no_more_memory_than_tiles(device: str) -> None:
    """Where scratch of a whole work-item does not fit, tiles do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    Y = np.sin(X @ rng.normal(size=(3, 32)))
    given: dict[str, Any] = {"n_centers": 700, "penalty": 1e-3, "tol": 1e-3}
    small = several(device, memory_limit=2_500_000, **given).fit(X, Y)
    assert small.fit_report_.bytes_held <= 2_500_000
    np.testing.assert_allclose(small.predict(X), several(device, **given).fit(X, Y).predict(X), atol=2e-3)
