"""Several outputs at once: each ends by its own tolerance, whatever the others are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clsvm import FalkonRegressor


def machine(device: str, **params: Any) -> FalkonRegressor:
    given = {"n_centers": 100, "penalty": 1e-6, "gamma": 0.3, "tol": 1e-6, "random_state": 0, "device": device}
    return FalkonRegressor(**{**given, **params})


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
    made = machine(device, loss=loss, warm_start=True, max_iter=300).fit(X, before)
    made.fit(X, now)
    assert made.fit_report_.converged
    for p in range(2):
        one = machine(device, loss=loss).fit(X, now[:, p])
        error = np.abs(made.predict(X)[:, p] - one.predict(X)).max()
        assert error <= 1e-3 * np.abs(now[:, p]).max()


def test_an_output_without_anything_to_learn_forgets_its_start(device: str) -> None:
    X, Y = targets(400)
    made = machine(device, warm_start=True).fit(X, Y[:, [0, 1]])
    made.fit(X, Y[:, [0, 2]])
    assert made.fit_report_.converged
    np.testing.assert_array_equal(made.predict(X)[:, 1], 3.0)
    np.testing.assert_allclose(made.predict(X)[:, 0], machine(device).fit(X, Y[:, 0]).predict(X), atol=2e-5)


def test_targets_so_small_that_a_goal_underflows(device: str) -> None:
    X, Y = targets(300)
    made = machine(device).fit(X, Y[:, :2] * [1e-170, 1.0])
    assert made.fit_report_.converged
    assert 0 <= made.fit_report_.residual <= 1e-6


def test_many_outputs_need_no_more_memory_than_tiles(device: str) -> None:
    """Where scratch of a whole work-item does not fit, tiles do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    Y = np.sin(X @ rng.normal(size=(3, 32)))
    given: dict[str, Any] = {"n_centers": 700, "penalty": 1e-3, "tol": 1e-3}
    small = machine(device, memory_limit=2_500_000, **given).fit(X, Y)
    assert small.fit_report_.bytes_held <= 2_500_000
    np.testing.assert_allclose(small.predict(X), machine(device, **given).fit(X, Y).predict(X), atol=2e-3)
