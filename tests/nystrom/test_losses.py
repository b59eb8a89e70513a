"""Losses: derivatives against differences, constants against a search."""

import numpy as np
import pytest
from scipy.optimize import minimize

from clsvm.losses import LOSSES, Loss, crossing

RANDOM = np.random.default_rng(0)


def targets(loss: Loss, k: int, n: int) -> np.ndarray:
    match loss.name:
        case "logistic":
            return RANDOM.choice([-1.0, 1.0], (1, n))
        case "softmax":
            return (np.arange(k)[:, None] == np.arange(n) % k).astype(float)
    return RANDOM.normal(size=(k, n)) * 3


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives(name: str) -> None:
    """Of each row by central differences; of a coupled loss diag(p) - p p'."""
    loss, n = LOSSES[name], 40
    y = targets(loss, 3, n)
    f, h = RANDOM.normal(size=y.shape) * 2, 1e-5
    second, slopes = loss.second(f, y), loss.derivative(f, y)
    for p in range(len(y)):
        step = np.zeros_like(f)
        step[p] = h
        change = (loss.value(f + step, y) - loss.value(f - step, y)).sum(axis=0)
        np.testing.assert_allclose(change / (2 * h), slopes[p], atol=1e-8)
        bent = (loss.derivative(f + step, y) - loss.derivative(f - step, y)) / (2 * h)
        expected = np.zeros_like(f)
        expected[p] = second[p]
        if loss.coupled:
            expected -= second * second[p]
        np.testing.assert_allclose(bent, expected, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_the_best_constant(name: str) -> None:
    """Beyond which weighted losses go up on all sides."""
    loss = LOSSES[name]
    y = targets(loss, 3, 50)
    w = RANDOM.integers(0, 4, 50).astype(float)
    c = loss.constant(y, w)

    def total(f: np.ndarray) -> float:
        return float((w * loss.value(np.broadcast_to(f[:, None], y.shape), y)).sum())

    found = minimize(total, np.zeros(len(y)), tol=1e-12)
    assert total(c) <= found.fun + 1e-9


@pytest.mark.parametrize("name", LOSSES)
def test_far_values_stay_numbers(name: str) -> None:
    loss = LOSSES[name]
    y = targets(loss, 3, 8)
    for size in (1e3, 1e6, -1e6):
        f = np.full(y.shape, size)
        for values in (loss.value(f, y), loss.derivative(f, y), loss.second(f, y)):
            assert np.isfinite(values).all()


def test_losses_in_units() -> None:
    """l(unit f, unit y) / unit^2, as exactly for a tiny unit as for 1."""
    loss = LOSSES["log_cosh"]
    f, y = np.array([[0.3, -1.0, 1.9, 1e-5]]), np.array([[0.1, 1.0, -1.5, 0.0]])
    for unit in (1.0, 0.25, 2.0**-10, 2.0**-40, 2.0**-600):
        made = loss.in_units(np.array([unit]))
        expected = loss.value(f * unit, y * unit) / unit**2 if unit > 1e-100 else np.square(f - y) / 2
        np.testing.assert_allclose(made.value(f, y), expected, rtol=1e-14)
        np.testing.assert_allclose(made.derivative(f, y), loss.derivative(f * unit, y * unit) / unit, rtol=1e-14)
        np.testing.assert_allclose(made.second(f, y), loss.second(f * unit, y * unit), rtol=1e-14)
    assert LOSSES["softmax"].units(np.array([5.0])) == 1
    np.testing.assert_array_equal(loss.units(np.array([0.0, 1e-3, 1.0, 1e9])), [1, 2.0**-10, 1, 1])


def test_where_a_rising_function_is_zero() -> None:
    for low, high, at in ((-1e-40, 3e-40, 1e-40), (-1e60, 1e60, 3.0), (1e6, 1e6 + 1e-3, 1e6 + 2e-4), (2.0, 2.0, 2.0)):
        found = crossing(lambda c, at=at: c - at, low, high)
        assert found == pytest.approx(at, rel=1e-9, abs=1e-11 * min(high - low, 1))
