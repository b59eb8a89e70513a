"""Steps over all free coefficients: the minimum they find, the factor they keep, when they are made, what fits gain."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clsvm import SVC, SVR, Kernel, NuSVC
from clsvm.solvers import free
from tests.conftest import noisy

Vector = NDArray[np.float64]


def kernel(m: int, seed: int = 0, gamma: float = 0.5) -> NDArray[np.float64]:
    X = np.random.default_rng(seed).normal(size=(m, 4))
    return np.asarray(np.exp(-gamma * ((X[:, None] - X) ** 2).sum(axis=2)))


def made(K: NDArray[Any]) -> free.Factor:
    factor = free.Factor(np.arange(len(K)), 1.0)
    assert factor.make(np.tril(K))  # (of the upper triangle nothing is read)
    return factor


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_minimum_within_wide_bounds(groups: int) -> None:
    """Derivatives at the end are the same within each group, 0 where nothing is held, and the sums stay."""
    m, rng = 40, np.random.default_rng(groups)
    K, g, group = kernel(m), rng.normal(size=m), np.arange(m) % max(groups, 1)
    wide = np.full(m, 1e9)
    d = free.minimum(made(K), g, -wide, wide, group, groups, np.zeros(0, np.intp))
    assert d is not None
    slope = K @ d + g
    for one in range(groups):
        assert abs(d[group == one].sum()) < 1e-7 * np.abs(d).max()
        assert np.ptp(slope[group == one]) < 1e-5
    if not groups:
        np.testing.assert_allclose(slope, 0, atol=1e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_minimum_within_narrow_bounds(groups: int, seed: int) -> None:
    """What is found is feasible, and those that are gone do not move."""
    m, rng = 40, np.random.default_rng(seed)
    K, g, group = kernel(m, seed), rng.normal(size=m), np.arange(m) % max(groups, 1)
    bottom, top = -30 * rng.random(m), 30 * rng.random(m)
    gone = np.flatnonzero(rng.random(m) < 0.1)
    d = free.minimum(made(K), g, bottom, top, group, groups, gone)
    if d is None:
        pytest.skip("all of a group are held")
    assert (d >= bottom - 1e-12).all()
    assert (d <= top + 1e-12).all()
    assert not d[gone].any()
    for one in range(groups):
        assert abs(d[group == one].sum()) < 1e-9


def test_minimum_on_a_face() -> None:
    """What stays within its bounds is at its minimum, and the dual lower than where the first bound is met."""
    m, rng = 60, np.random.default_rng(1)
    K, g, group, none = kernel(m, 1) + np.eye(m), rng.normal(size=m), np.zeros(m, np.intp), np.zeros(0, np.intp)
    wide, narrow = np.full(m, 1e9), np.full(m, 0.8)
    free_of_bounds = free.minimum(made(K), g, -wide, wide, group, 1, none)
    d = free.minimum(made(K), g, -narrow, narrow, group, 1, none)
    assert d is not None
    assert free_of_bounds is not None
    held = np.abs(d) == 0.8
    assert 5 < held.sum() < m / 2
    assert np.ptp((K @ d + g)[~held]) < 1e-6
    first = free_of_bounds * (0.8 / np.abs(free_of_bounds).max())
    assert d @ K @ d / 2 + g @ d < first @ K @ first / 2 + g @ first - 0.1


def test_extended_factor() -> None:
    K = kernel(50)
    factor, whole = made(K[:37, :37]), made(K)
    assert factor.extend(np.arange(37, 50), K[:37, 37:], np.tril(K[37:, 37:]))
    np.testing.assert_array_equal(factor.rows, whole.rows)
    right = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 3)))
    np.testing.assert_allclose(factor.forward(right), whole.forward(right), rtol=1e-5, atol=1e-7)


def test_indefinite() -> None:
    """The ridge grows where K is indefinite by little, and no factor is made where it is so by much."""
    assert free.Factor(np.arange(3), 1.0).make(np.diag([1.0, 1.0, -1e-13]))
    assert not free.Factor(np.arange(3), 1.0).make(np.diag([1.0, 1.0, -1.0]))
    broken = made(np.eye(3))
    broken.U[1, 1] = np.nan
    wide = np.full(3, 1e9)
    assert free.minimum(broken, np.ones(3), -wide, wide, np.zeros(3, np.intp), 0, np.zeros(0, np.intp)) is None


def due(rate: float, beyond: float = 0.0, price: float = 1.0, late: bool = False) -> list[int]:
    """The costs of 40 working sets after which a step is due, where the violation is 2 at first, is ``beyond`` for ten
    of them, and then falls by ``rate`` in each."""
    pace = free.Pace()
    levels = [2.0] + 10 * [beyond or 2.0] + [rate**cost for cost in range(30)]
    return [cost for cost, level in enumerate(levels) if pace.pays(cost, level, 1e-3, price, late and cost > 4)]


def test_pace() -> None:
    """Due where working sets hardly bring the violation down any more; not while they do, nor before it has begun to
    fall, unless very many rows were computed; nor where a step costs more than what is left."""
    first = 11 + free.LOOKS
    assert due(0.99)[0] == first
    assert due(0.99, beyond=9.0)[0] == first
    assert due(0.2) == []
    assert due(0.99, price=1e5) == []
    assert due(0.99, beyond=9.0, late=True)[0] == 5 + free.LOOKS


def test_pace_after_a_step() -> None:
    """A step that did well is soon followed by another; one that did not is dearer."""

    def again(well: bool) -> int:
        pace, price = free.Pace(), 20.0
        pace.pays(0, 2.0, 1e-3, price, False)
        pace.made(well)
        level = 0.1
        return next((i for i in range(1, 40) if pace.pays(i, level * 0.9**i, 1e-3, price, False)), 40)

    assert again(True) == free.MORE + 1
    assert again(False) > again(True)


def hard(n: int = 1500) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    return X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n) > 0, 1, -1)


def violation(K: NDArray[Any], b: Vector, q: Vector, lo: Vector, hi: Vector, kink: float = 0.0) -> float:
    """KKT violation of coefficients whose sum is held."""
    f = K @ b + q
    right, left = f + np.where(b < 0, -kink, kink), f + np.where(b > 0, kink, -kink)
    return float(left[b > lo].max() - right[b < hi].min())


ESTIMATORS = {
    "c_svc": lambda **given: SVC(C=1e3, gamma=0.3, **given),
    "no bias": lambda **given: SVC(C=1e3, gamma=0.3, bias=False, **given),
    "nu_svc": lambda **given: NuSVC(nu=0.05, gamma=0.3, tol=1e-4, **given),
    "svr": lambda **given: SVR(C=1e3, gamma=0.3, epsilon=0.05, **given),
}


@pytest.mark.parametrize("task", ESTIMATORS)
def test_fewer_working_sets(device: str, profile: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same optimum, in at most half of the working sets."""
    X, y = hard(400 if task == "svr" else 1500)  # (without the step SVR takes long)
    given = {"device": device, "working_set_size": 128}
    monkeypatch.setattr("clsvm.fit.host.MOST", 0)  # (what is not done by then would be the host's)
    monkeypatch.setattr(free, "LEAST", 32)
    with_steps = ESTIMATORS[task](**given).fit(X, y).fit_report_
    monkeypatch.setattr(free, "LEAST", 10**9)
    without = ESTIMATORS[task](**given).fit(X, y).fit_report_
    assert with_steps.converged
    assert without.converged
    assert with_steps.seconds["free"] > 0
    assert without.seconds["free"] == 0
    assert with_steps.trace[-1].outer <= 0.7 * without.trace[-1].outer
    assert abs(with_steps.dual - without.dual) <= 1e-4 * abs(without.dual)


@pytest.mark.parametrize("layout", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_violation_in_every_layout(device: str, layout: str) -> None:
    X, y = hard()
    X = X * (np.random.default_rng(1).random(X.shape) < 0.6)
    model = SVC(C=1e3, gamma=0.3, layout=layout, working_set_size=128, device=device).fit(X, y)
    assert model.fit_report_.seconds["free"] > 0
    K = np.exp(-0.3 * ((X[:, None].astype(np.float64) - X) ** 2).sum(axis=2))
    b = np.zeros(len(X))
    b[model.support_] = model.dual_coef_[0]
    assert violation(K, b, -y.astype(float), np.minimum(0, 1e3 * y), np.maximum(0, 1e3 * y)) <= 1.2e-3
    assert abs(b.sum()) <= 1e-9 * np.abs(b).sum()


def test_same_bits(device: str) -> None:
    X, y = hard(900)
    one, other = (SVC(C=1e3, gamma=0.3, working_set_size=128, device=device).fit(X, y) for _ in range(2))
    assert one.fit_report_.seconds["free"] > 0
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)


KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {"kernel": "rbf", "gamma": 0.3},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.5, "coef0": -1.0},
    "of a conditionally positive function": {"kernel": Kernel("-sqdist")},
    "small values": {"kernel": "linear", "C": 1e5},
    "float64": {"kernel": "rbf", "gamma": 0.3, "dtype": "float64"},
    "given": {"kernel": "precomputed"},
    "cached": {"kernel": "rbf", "gamma": 0.3, "cache_size": 100},
    "in blocks": {"kernel": "rbf", "gamma": 0.3, "memory_limit": 12_000_000, "cache_size": 0},
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_step_at_every_look(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often and early they are made, and whatever K is, fits end where they end without: a step before every
    working set."""
    X, y = hard(700)
    X = X * 1e-2 if name == "small values" else np.repeat(X, 40, axis=1) / 6 if name == "in blocks" else X
    rows = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2)) if name == "given" else X
    given = {"C": 10.0, "working_set_size": 64, "device": device} | KERNELS[name]
    monkeypatch.setattr("clsvm.fit.host.MOST", 0)
    monkeypatch.setattr(free, "MOST", 0)
    alone = SVC(**given, max_iter=100_000).fit(rows, y).fit_report_
    monkeypatch.undo()
    monkeypatch.setattr("clsvm.fit.host.MOST", 0)
    monkeypatch.setattr(free, "LEAST", 4)
    turns = cycle((True, False))
    monkeypatch.setattr(free.Pace, "pays", lambda *given: next(turns))
    model = SVC(**given, max_iter=100_000).fit(rows, y)
    assert model.fit_report_.seconds["free"] > 0
    assert model.fit_report_.converged or not alone.converged
    assert np.isfinite(model.dual_coef_).all()
    if name != "sigmoid":  # (which has several optima)
        assert model.fit_report_.dual == pytest.approx(alone.dual, rel=1e-4)
    assert abs(model.dual_coef_.sum()) <= 1e-9 * np.abs(model.dual_coef_).sum()


def test_no_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory ends in the middle of a step, the fit goes on without, and nothing stays held."""
    X, y = hard(700)
    freed: list[int] = []

    def tile(self: Any, *given: Any) -> Any:
        freed.append(self._stream.held)
        self._stream.buffer(self._stream.limit)

    monkeypatch.setattr("clsvm.fit.host.MOST", 0)
    monkeypatch.setattr(free.Leap, "_tile", tile)
    monkeypatch.setattr(free.Pace, "pays", lambda *given: True)
    model = SVC(C=10.0, gamma=0.3, working_set_size=64, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert len(set(freed)) == 1 < len(freed)


def test_memory(device: str) -> None:
    """Where memory_limit does not hold K among the free coefficients and its factor, working sets go on."""
    X, y = noisy(3000, 5)
    limit = 6_000_000
    model = SVC(C=100, gamma=0.3, memory_limit=limit, device=device, max_iter=200_000).fit(X, y)
    assert model.fit_report_.bytes_held <= limit
