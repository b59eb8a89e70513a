"""The report's bound of the objective against minima by dense Newton steps in float64, over random fits.

CLSVM_BOUNDS=100 takes so many fits of each loss.
"""

import os
from typing import Any

import numpy as np
import pytest
from scipy.linalg import cho_solve, lapack, solve_triangular

from clsvm import FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier
from clsvm.losses import LOSSES, Loss

QUICK, MANY = 4, int(os.environ.get("CLSVM_BOUNDS", "14"))  # random fits of each loss


def features(machine: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return B (n, r) and u (k, r) over the centres that have coefficients: f is B u' + intercept, |f|^2 is |u|^2."""
    kernel, there = machine.model_.kernel, machine.dual_coef_.any(axis=0)
    there = there if there.any() else ~there
    centers = machine.centers_[there]
    L, pivots, rank, _ = lapack.dpstrf(kernel(centers), lower=1)
    order = pivots[:rank] - 1
    L, rest = np.tril(L[:rank, :rank]), pivots[rank:] - 1
    alpha = machine.dual_coef_[:, there]
    alpha = alpha[:, order] + alpha[:, rest] @ cho_solve((L, True), kernel(centers[order], centers[rest])).T
    return solve_triangular(L, kernel(X, centers[order]).T, lower=True).T, alpha @ L


def above_the_least(
    loss: Loss, B: np.ndarray, u: np.ndarray, offset: np.ndarray, y: np.ndarray, w: np.ndarray, penalty: float
) -> tuple[float, float]:
    """Return how far the objective is above its least at u, and the objective."""
    (k, r), shares, offset = u.shape, w / w.sum(), offset[:, None]

    def value(u: np.ndarray) -> np.ndarray:
        losses = (shares * loss.value(u @ B.T + offset, y)).sum(axis=1)
        return losses + penalty / 2 * (np.square(u).sum(axis=1) if len(losses) == k else np.square(u).sum())

    def step(u: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        f = u @ B.T + offset
        g, D = (shares * loss.derivative(f, y)) @ B + penalty * u, loss.second(f, y)
        if not loss.coupled:
            H = [(B.T * (shares * D[j])) @ B + penalty * np.eye(r) for j in range(k)]
            d = np.stack([np.linalg.solve(H[j], -g[j]) for j in range(k)])
            return d, -(g * d).sum(axis=1)
        H = np.empty((k, r, k, r))
        for i in range(k):
            for j in range(k):
                H[i, :, j] = (B.T * (shares * D[i] * ((i == j) - D[j]))) @ B + (i == j) * penalty * np.eye(r)
        d = np.linalg.solve(H.reshape(k * r, k * r), -g.ravel()).reshape(k, r)
        return d, -(g * d).sum()

    first = now = value(u)
    for _ in range(60):
        d, falls = step(u)
        if (falls <= 1e-15 * now).all():
            break
        s = np.ones(len(now))
        for _ in range(60):
            later = value(u + s[:, None] * d)
            if (later <= now).all():
                break
            s = np.where(later <= now, s, s / 2)
        s = np.where(later <= now, s, 0.0)
        u, now = u + s[:, None] * d, np.minimum(now, later)
    return float((first - now).sum()), float(first.sum())


def drawn(loss: str, seed: int, small: bool) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Return a machine that is not yet fitted, rows, targets (n,) or (n, k) and weights, all at random."""
    rng = np.random.default_rng([seed, *map(ord, loss)])
    n, d, m = int(rng.integers(50, 3000)), int(rng.integers(1, 8)), int(rng.integers(3, 25 if small else 70))
    X = rng.normal(size=(n, d)) * rng.choice([0.3, 1.0, 3.0])
    k = int(rng.integers(1, 4))
    F = np.stack([np.sin(X @ rng.normal(size=d) * 2) + X @ rng.normal(size=d) / 3 for _ in range(k)], axis=1)
    F += 0.3 * rng.standard_t(2, size=F.shape) * rng.random(k)
    w = [np.ones(n), rng.integers(0, 3, n) * 1.0, np.exp(4 * rng.normal(size=n)), 10.0 ** rng.uniform(-9, 9, n)]
    params: dict[str, Any] = {
        "kernel": "rbf" if small else rng.choice(["rbf", "rbf", "matern32", "laplacian"]),
        "gamma": float(10 ** rng.uniform(-2, 0.5)),
        "penalty": float(10 ** rng.uniform(-8, -2)),
        "tol": float(10 ** rng.uniform(-8, -0.5)),
        "dtype": str(rng.choice(["float32", "float64"])),
        "center_selection": X[:m] + 0.01 if rng.random() < 0.25 else "uniform",
        "fit_intercept": bool(rng.random() < 0.7),
        "n_centers": m,
        "random_state": seed,
        "max_iter": int(rng.choice([2, 20, 500])),
    }
    if loss in ("logistic", "softmax"):
        classes = 2 if loss == "logistic" else int(rng.integers(3, 6))
        y = np.digitize(F[:, 0], np.quantile(F[:, 0], np.sort(rng.random(classes - 1))))
        y[:classes] = np.arange(classes)
        return LogisticFalkonClassifier(**params), X, y, w[rng.integers(4)] + 1e-9
    if loss == "squared" and rng.random() < 0.3:
        return FalkonClassifier(**params), X, (F > 0) @ 2 ** np.arange(k) % 3, w[rng.integers(4)] + 1e-9
    scales = 10.0 ** (rng.uniform(-6, 6, k) if loss == "squared" else rng.uniform(-4, 2, k))
    return FalkonRegressor(loss=loss, **params), X, F * scales + rng.choice([0.0, 1e3]) * scales, w[rng.integers(4)]


def check(device: str, loss: str, seed: int, small: bool = False) -> None:
    """Fit and compare."""
    machine, X, y, w = drawn(loss, seed, small)
    machine.set_params(device=device).fit(X, y, w)
    targets = np.atleast_2d(y.T)
    if isinstance(machine, FalkonClassifier):
        targets = machine._targets(np.searchsorted(machine.classes_, y), len(machine.classes_))
    B, u = features(machine, X)
    report = machine.fit_report_
    given = LOSSES[loss], B, u, machine.intercept_, targets, w, machine.penalty
    above, objective = above_the_least(*given)
    assert objective == pytest.approx(report.objective, rel=1e-3), f"{loss} {seed}"
    assert above <= report.bound + 1e-13 * objective, f"{loss} {seed}: {above} above, bound {report.bound}: {report}"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.full)])
def test_the_bound_of_the_objective_is_one(device: str, loss: str, small: bool) -> None:
    for seed in range(QUICK) if small else range(QUICK, MANY):
        check(device, loss, seed, small)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bound_of_a_converged_fit_is_small(device: str, dtype: str) -> None:
    """Else F itself would do."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    F = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    y, classes = F + 0.3 * rng.normal(size=600), np.digitize(F, [-0.6, 0.6])
    given: dict[str, Any] = {"n_centers": 25, "gamma": 0.4, "dtype": dtype, "random_state": 0, "device": device}
    for machine, targets in (
        (FalkonRegressor(**given), np.stack([y, 100 * F], axis=1)),
        (FalkonRegressor(loss="log_cosh", **given), y),
        (LogisticFalkonClassifier(**given), classes > 0),
        (LogisticFalkonClassifier(**given), classes),
    ):
        report = machine.fit(X, targets).fit_report_
        assert report.converged
        assert report.bound <= (1e-3 if dtype == "float32" else 1e-6) * report.objective


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_objective_is_that_of_the_finer_products(device: str) -> None:
    """A fit that stops just after it took float64 in place of float32, which had f wrong in the first digits."""
    check(device, "softmax", 146)


def test_the_bound_of_a_start_that_classes_share(device: str) -> None:
    """No class gets more probable by what is added to all of them."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(400, 3)), rng.integers(0, 3, 400)
    given: dict[str, Any] = {"n_centers": 20, "gamma": 0.4, "penalty": 1e-3, "dtype": "float64", "random_state": 0}
    machine = LogisticFalkonClassifier(**given, warm_start=True, tol=1e-11, device=device).fit(X, y)
    machine.dual_coef_ = machine.dual_coef_ + 1e-4 * rng.normal(size=20)
    report = machine.set_params(tol=0.1).fit(X, y).fit_report_
    B, u = features(machine, X)
    targets = (y == np.arange(3)[:, None]).astype(float)
    above, objective = above_the_least(LOSSES["softmax"], B, u, machine.intercept_, targets, np.ones(400), 1e-3)
    assert above <= report.bound + 1e-13 * objective
