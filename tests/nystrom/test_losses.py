"""Losses: derivatives against differences, constants against a search."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from clsvm.losses import LOSSES, Loss

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
