"""Newton steps over all free coefficients: the minimum they find, the factor they keep, when they pay, their gain."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone

from clsvm import SVC, SVR, Kernel, NuSVC
from clsvm.solvers import newton


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not done by Newton steps would be the host's."""
    monkeypatch.setattr("clsvm.fit.host.MOST", 0)


def kernel(m: int, seed: int = 0, gamma: float = 0.5) -> NDArray[np.float64]:
    X = np.random.default_rng(seed).normal(size=(m, 4))
    return np.asarray(np.exp(-gamma * ((X[:, None] - X) ** 2).sum(axis=2)))


def made(K: NDArray[Any]) -> newton.Factor:
    one = newton.Factor(K.dtype, newton.RIDGE * float(np.finfo(K.dtype).eps) * len(K) ** 0.5, 1.0)
    assert one.extend(np.arange(len(K)), K[:0], np.tril(K))  # (of the upper triangle nothing is read)
    return one


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("groups", [0, 1, 2])
def test_minimum_within_bounds(groups: int, seed: int) -> None:
    """Derivatives are the same in each group or 0, sums stay, what is found is feasible, free ones are at a minimum."""
    m, rng = 40, np.random.default_rng(seed)
    K, g, group, wide = kernel(m, seed), rng.normal(size=m), np.arange(m) % max(groups, 1), np.full(m, 1e9)
    d = newton.minimum(made(K), g, -wide, wide, group, groups, np.zeros(0, np.intp))
    assert d is not None
    slope = K @ d + g
    for one in range(groups):
        assert abs(d[group == one].sum()) < 1e-7 * np.abs(d).max()
        assert np.ptp(slope[group == one]) < 1e-5
    assert groups or np.abs(slope).max() <= 1e-5
    bottom, top = -30 * rng.random(m), 30 * rng.random(m)
    gone = np.flatnonzero(rng.random(m) < 0.1)
    d = newton.minimum(made(K), g, bottom, top, group, groups, gone)
    if d is None:
        pytest.skip("all of a group are held")
    assert (d >= bottom - 1e-12).all()
    assert (d <= top + 1e-12).all()
    assert not d[gone].any()
    slope, free = K @ d + g, (d > bottom) & (d < top)
    free[gone] = False
    assert free.any()
    for one in range(groups):
        assert abs(d[group == one].sum()) < 1e-9
        assert np.ptp(slope[free & (group == one)]) < 1e-5
    assert groups or np.abs(slope[free]).max() < 1e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_factor_in_blocks(dtype: type) -> None:
    """Blocks of any sizes are the factor of the whole: U'U = K + ridge I, in either direction."""
    K = kernel(50).astype(dtype)
    whole, some = made(K), made(K[:20, :20])
    for first, last in ((20, 37), (37, 50)):
        assert some.extend(np.arange(first, last), K[:first, first:last], np.tril(K[first:last, first:last]))
    np.testing.assert_array_equal(some.rows, whole.rows)
    assert some.nbytes < whole.nbytes == K.nbytes
    assert some.ridge == pytest.approx(whole.ridge, rel=0.6)  # (of 20 rows at first)
    M = K.astype(np.float64) + some.ridge * np.eye(50)
    right = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 3)).astype(dtype))
    down, exact = some.forward(right).astype(np.float64), np.linalg.solve(M, right)
    near = {"rtol": 100 * np.finfo(dtype).eps * np.linalg.cond(M), "atol": 1e-9}
    np.testing.assert_allclose(down.T @ down, right.T @ exact, **near)
    np.testing.assert_allclose(some.back(down[:, 0].astype(dtype)), exact[:, 0], **near)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_of_the_inverse(dtype: type) -> None:
    """They stay as the factor grows, and are those of U'^-1."""
    K = kernel(60, gamma=5.0).astype(dtype)
    some, eps = made(K[:35, :35]), np.finfo(dtype).eps

    def right(at: NDArray[np.intp], kept: int) -> None:
        column, m = some.add_columns(at), len(some.rows)
        M = K[:m, :m].astype(np.float64) + some.ridge * np.eye(m)
        U = np.linalg.cholesky(M).T
        assert some.columns.shape == (m, kept)
        near = {"rtol": 0, "atol": 200 * eps * np.linalg.cond(M)}
        np.testing.assert_allclose(some.columns[:, column], np.linalg.inv(U.T)[:, at], **near)
        np.testing.assert_allclose(some.products[np.ix_(column, column)], np.linalg.inv(M)[np.ix_(at, at)], **near)

    first, more = np.array([3, 17, 34]), np.array([1, 17, 20, 34, 59])
    right(first, 3)
    assert some.extend(np.arange(35, 60), K[:35, 35:], np.tril(K[35:, 35:]))
    right(first, 3)
    size = some.nbytes
    right(more, 6)
    assert some.nbytes == size + 3 * 60 * K.itemsize + 8 * (36 - 9)


def test_indefinite() -> None:
    """The ridge grows where K is indefinite by little, and no factor is made where it is so by much."""

    def with_ridge(K: NDArray[Any]) -> newton.Factor | None:
        ridges = newton.ridges(K.dtype, len(K))
        return newton.factor_with_ridge(K.dtype, ridges, 1.0, lambda one: one.extend(np.arange(len(K)), K[:0], K))

    little = with_ridge(np.diag([1.0, 1.0, -1e-13]))
    assert little is not None
    assert little.ridge > 1e-13
    assert with_ridge(np.diag([1.0, 1.0, -1.0])) is None
    broken, wide = made(np.diag([1.0, 1.0, np.nan]) + 0), np.full(3, 1e9)
    assert newton.minimum(broken, np.ones(3), -wide, wide, np.zeros(3, np.intp), 0, np.zeros(0, np.intp)) is None


def steps_due(rate: float, beyond: float = 0.0, price: float = 1.0, late: bool = False) -> list[int]:
    """The costs of 40 working sets after which a step is due: the violation is 2, ten times ``beyond``, then falls."""
    costs = newton.CostModel()
    levels = [2.0] + 10 * [beyond or 2.0] + [rate**cost for cost in range(30)]
    return [cost for cost, level in enumerate(levels) if costs.pays(cost, level, 1e-3, price, late and cost > 4)]


def test_cost_model() -> None:
    """Due where working sets hardly bring the violation down any more; not while they do, nor before it has begun to
    fall, unless very many rows were computed; nor where a step costs more than what is left."""
    first = 11 + newton.CHECKS_BEFORE
    assert steps_due(0.99)[0] == first
    assert steps_due(0.99, beyond=9.0)[0] == first
    assert steps_due(0.2) == []
    assert steps_due(0.99, price=1e5) == []
    assert steps_due(0.99, beyond=9.0, late=True)[0] == 5 + newton.CHECKS_BEFORE


def test_cost_model_after_a_step() -> None:
    """A step that did well is soon followed by another; one that did not is dearer."""

    def again(well: bool) -> int:
        costs, price = newton.CostModel(), 20.0
        costs.pays(0, 2.0, 1e-3, price, False)
        costs.record(well)
        level = 0.1
        return next((i for i in range(1, 40) if costs.pays(i, level * 0.9**i, 1e-3, price, False)), 40)

    assert again(True) == newton.CHECKS_BETWEEN + 1
    assert again(False) > again(True)


def hard(n: int = 1500) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    return X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n) > 0, 1, -1)


ESTIMATORS = {
    "c_svc": SVC(C=1e3),
    "no bias": SVC(C=1e3, bias=False),
    "nu_svc": NuSVC(nu=0.05, tol=1e-4),
    "svr": SVR(C=1e3, epsilon=0.05),
}


@pytest.mark.parametrize("task", ESTIMATORS)
def test_fewer_working_sets(device: str, profile: str, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same optimum, in at most half of the working sets."""
    X, y = hard(400 if task == "svr" else 1500)  # (without the step SVR takes long)
    machine = clone(ESTIMATORS[task]).set_params(gamma=0.3, working_set_size=128, device=device)
    reports = []
    for least in (32, 10**9):
        monkeypatch.setattr(newton, "LEAST", least)
        reports.append(machine.fit(X, y).fit_report_)
        assert reports[-1].converged
        assert (reports[-1].seconds["free"] > 0) == (least == 32)
    steps, none = reports
    assert steps.trace[-1].outer <= 0.7 * none.trace[-1].outer
    assert steps.dual == pytest.approx(none.dual, rel=1e-4)


KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {"kernel": "rbf", "gamma": 0.3},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.5, "coef0": -1.0},
    "of a conditionally positive function": {"kernel": Kernel("-sqdist")},
    "small values": {"kernel": "linear", "C": 1e5},
    "float64": {"kernel": "rbf", "gamma": 0.3, "dtype": "float64"},
    "given": {"kernel": "precomputed"},
    "cached": {"kernel": "rbf", "gamma": 0.3, "cache_size": 100},
    **{layout: {"gamma": 0.3, "layout": layout} for layout in ("clustered", "csr", "hybrid", "inverted")},
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_step_at_every_look(device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step before every working set, whatever K is: fits end where they end without."""
    X, y = hard(700)
    X = X * 1e-2 if name == "small values" else X
    X = X * (np.random.default_rng(1).random(X.shape) < 0.6) if "layout" in KERNELS[name] else X
    rows = np.exp(-0.3 * ((X[:, None] - X) ** 2).sum(axis=2)) if name == "given" else X
    given = {"C": 10.0, "working_set_size": 64, "device": device} | KERNELS[name]
    with monkeypatch.context() as without:
        without.setattr(newton, "MOST", 0)
        alone = SVC(**given, max_iter=100_000).fit(rows, y).fit_report_
    monkeypatch.setattr(newton, "LEAST", 4)
    turns = cycle((True, False))
    monkeypatch.setattr(newton.CostModel, "pays", lambda *given: next(turns))
    model = SVC(**given, max_iter=100_000).fit(rows, y)
    assert model.fit_report_.seconds["free"] > 0
    assert model.fit_report_.converged or not alone.converged
    assert np.isfinite(model.dual_coef_).all()
    if name != "sigmoid":  # (which has several optima)
        assert model.fit_report_.dual == pytest.approx(alone.dual, rel=1e-4)
    assert abs(model.dual_coef_.sum()) <= 1e-9 * np.abs(model.dual_coef_).sum()


def test_little_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for a factor of all free coefficients there is no step, and the fit ends as with steps."""
    X, y = hard(700)
    monkeypatch.setattr(newton, "LEAST", 100)
    monkeypatch.setattr(newton.CostModel, "pays", lambda *given: True)
    duals = []
    for limit in (None, 900_000):
        model = SVC(C=10.0, gamma=0.3, working_set_size=64, cache_size=0, memory_limit=limit, device=device)
        report = model.fit(X, y).fit_report_
        assert report.converged
        assert (report.seconds["free"] > 0) == (limit is None)
        duals.append(report.dual)
    assert duals[0] == pytest.approx(duals[1], rel=1e-4)
