"""Whole rows of a working set before its tile: when that pays, that fits end as they do without, the tile's bits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import check
from clsvm import SVC, SVR, NuSVC, OneClassSVM, kernels
from clsvm.fit import sizes
from clsvm.gram import layouts
from clsvm.gram.products import Gram
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.problem.posed import c_svc
from clsvm.solvers import kernel_rows, newton
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.result import Settings
from tests.conftest import noisy, thrifty


def rows_of(n: int) -> tuple[Any, Any]:
    """CSR rows, and labels of three classes."""
    X, y = noisy(n, 40, seed=2)
    X = X * (np.random.default_rng(3).random(X.shape) < 0.2)
    return sp.csr_matrix(X), np.where(X.sum(axis=1) > 1, 2.0, y)


MACHINES: dict[str, Any] = {
    "svc": SVC(C=3, gamma=0.05),
    "svr": SVR(C=3, gamma=0.05, epsilon=0.05),
    "nu": NuSVC(nu=0.3, gamma=0.05),
    "one class": OneClassSVM(nu=0.3, gamma=0.05),
    "all at once": SVC(C=3, gamma=0.05, multi_class="crammer_singer"),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", MACHINES)
def test_fits_end_as_without(device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a row cache for all rows, and with one that holds them at the beginning alone."""
    (X, y), machine = rows_of(600), MACHINES[name]
    y = y if name == "all at once" else np.where(y == 2, 1.0, y)
    steps: list[bool] = []
    before, found = Solver._tile, []

    def tile(self: Solver, stay: int) -> None:
        steps.append(self.rows.first)
        before(self, stay)

    monkeypatch.setattr(Solver, "_tile", tile)
    for first, cache in ((False, 100), (True, 100), (True, 0.5)):
        steps.clear()
        monkeypatch.setattr(kernel_rows, "before_tile", lambda *a, first=first: first)
        given = machine.get_params() | {"device": device, "layout": "csr", "tol": 1e-4}
        model = type(machine)(**given | {"working_set_size": 64, "cache_size": cache}).fit(X, y)
        assert model.fit_report_.converged
        assert steps[0] == (first and (cache == 100 or profile.startswith("cpu")))  # (GPUs look at every eighth step)
        assert steps[-1] == (first and cache == 100)
        values = model.predict(X) if name == "svr" else model.decision_function(X)
        found.append((model.fit_report_.dual, values))
    for dual, values in found[1:]:
        assert dual == pytest.approx(found[0][0], rel=1e-5)
        np.testing.assert_allclose(values, found[0][1], atol=5e-3)


def solver(stream: Stream, X: Any, y: Any, W: int) -> Solver:
    kernel = kernels.make("rbf", gamma=0.1)
    plan = layouts.choose(stream.profile, X, kernel.spec, "csr")
    gram = Gram(stream, layouts.build(stream, X, plan, "float32"), kernel)
    problem = c_svc(np.where(y > 0, 1.0, -1.0)[None], np.ones((1, len(y))))
    return Solver(stream, gram, problem, Settings(1e-3, None, -1, W, 10**7, 1.0, None))


@pytest.mark.oclgrind
def test_the_tile_has_its_bits(device: str, profile: str) -> None:
    """Of a first working set and of one of which a half stays; where rows are missing there are zeros."""
    if thrifty(device) and profile == "gpu":
        pytest.skip("the same kernels as of gpu-pair, which do more: a slow device has those")
    X, y = rows_of(100)
    with Stream(device) as stream:
        made = solver(stream, X, y, 32)
        W = made.square.panel.capacity
        made.rows.cache.reserve(len(y), 1)  # (no row leaves)
        for step in range(3):
            made._look()
            if step == 2:  # some places are empty
                ws = stream.read(made.selection.ws, np.int32, W)
                ws[5:9] = -1
                stream.write(made.selection.ws, ws)
            made.selection.choose(made.view, made.stay if step else 0)
            Q = []
            for first in (False, True):
                made.rows.first = first
                if first:
                    made.rows.plan(made.W, all_of_them=True)
                    made.rows.make_misses(add=False)
                made._tile(0)
                Q.append(stream.read(made.square.Q, np.float32, (W, W)))
            there = stream.read(made.selection.ws, np.int32, W) >= 0
            np.testing.assert_array_equal(Q[0][there][:, there], Q[1][there][:, there])
            assert not Q[1][~there].any()
            made._solve_set()
            made.rows.plan(made.stay)
            assert not stream.read(made.rows.misses.count, np.int32, 1)[0]  # (all that changed are there)


def test_rows_that_change_nothing_are_counted(device: str, profile: str) -> None:
    """Those beyond the half that stays, before the tile and after alike; none of the places that are empty."""
    X, y = rows_of(300)
    with Stream(device) as stream:
        made = solver(stream, X, y, 64)
        made._look()
        made.selection.choose(made.view, 0)
        delta, ws = np.zeros(made.selection.stride), stream.read(made.selection.ws, np.int32, made.selection.stride)
        delta[::3] = 1
        ws[-4:] = -1
        delta[-4:] = 0
        stream.write(made.selection.ws, ws)
        stream.write_wide(made.rows.delta, delta)
        made.rows.plan(made.W, all_of_them=True)
        assert int(stream.read(made.selection.counters, np.int64, 4)[3]) == 0
        assert int(stream.read(made.rows.misses.count, np.int32, 1)[0]) == (ws >= 0).sum()
        made.rows.plan(made.stay)
        counters = stream.read(made.selection.counters, np.int64, 4)
        assert int(counters[3]) == ((delta == 0) & (ws >= 0))[made.stay :].sum()
        assert int(counters[1]) == (ws >= 0).sum()
        assert int(stream.read(made.rows.misses.count, np.int32, 1)[0]) == 0
        assert int(stream.read(made.rows.hits.count, np.int32, 1)[0]) == (delta != 0).sum()


def test_steps_over_free_coefficients_take_them_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor is of values that the row cache has, where it has all rows and they are dear."""
    X, y = rows_of(600)
    there, taken = KernelRows.tile_if_there, []

    def look(self: KernelRows, *given: Any) -> bool:
        taken.append(there(self, *given))
        return taken[-1]

    monkeypatch.setattr(KernelRows, "tile_if_there", look)
    monkeypatch.setattr(newton.CostModel, "pays", lambda self, *given: True)
    monkeypatch.setattr(newton, "LEAST", 8)
    duals = []
    for cost in (1e9, 0.0):
        monkeypatch.setattr(kernel_rows, "copy_cost", lambda profile, cost=cost: cost)
        given: Any = {"device": device, "layout": "csr", "working_set_size": 64, "cache_size": 100}
        duals.append(SVC(C=100, gamma=0.01, **given).fit(X, np.where(y > 0, 1, -1)).fit_report_.dual)
        assert taken
        assert all(taken) == (cost == 0)
        assert any(taken) == (cost == 0)
        taken.clear()
    assert duals[0] == pytest.approx(duals[1], rel=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("seed", [0, 5, 26])
def test_no_row_leaves_a_ring_that_can_grow(
    device: str, profile: str, seed: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is exactly full before it grows it goes on behind what it has: no row is computed twice, and the report
    says what is so."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(59, 10))
    y = np.sign(Z.sum(axis=1) + rng.normal(size=59))
    X = np.hstack([Z, np.zeros((59, 390))]) @ np.linalg.qr(rng.normal(size=(400, 400)))[0]
    monkeypatch.setattr(kernel_rows, "before_tile", lambda *seen: first)
    read, rows = Solver._read, []

    def seen(self: Solver) -> Any:
        look = read(self)
        rows.append(look.rows)
        return look

    monkeypatch.setattr(Solver, "_read", seen)
    given: Any = {"layout": "dense", "working_set_size": 48, "cache_size": 100, "device": device}
    model = SVC(C=1000, gamma=0.1, tol=1e-2, **given).fit(X, y)
    coefficients = np.zeros(59)
    coefficients[model.support_] = model.dual_coef_[0]
    kernel = kernels.make("rbf", gamma=0.1)
    found = check.recompute(X, y, np.full(59, 1000.0), coefficients, float(model.intercept_[0]), kernel)
    assert model.fit_report_.converged
    assert 0 < max(rows) <= 59
    assert found.violation <= 1.2e-2


def test_where_it_pays(device: str) -> None:
    """Where a value of the tile costs much more than one of a row; not for cheap rows, many rows, or idle ones."""
    X, _ = rows_of(300)
    of = PROFILES["cpu"]
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, X, kernels.make("rbf", gamma=0.1).spec, "csr")
        rows = replace(layouts.build(stream, X, plan, "float32"), cost=1500.0, tile_cost=6000.0)
        assert kernel_rows.before_tile(of, rows, 16000, 2048, 0, 10)
        assert not kernel_rows.before_tile(of, rows, 16000, 2048, 10 * 1024, 10)
        assert not kernel_rows.before_tile(of, rows, 10**6, 2048, 0, 0)
        assert not kernel_rows.before_tile(of, replace(rows, cost=100.0, tile_cost=100.0), 300, 2048, 0, 10)

        def chosen(cache: float) -> int:  # a dear tile calls for a small set, but not where it comes from rows
            return sizes.choose(stream, gram, "auto", cache)[0]

        dear = replace(rows, n=16000, n_pad=16000, cost=150.0, tile_cost=6000.0)
        gram = Gram(stream, dear, kernels.make("rbf", gamma=0.1))
        assert chosen(1100) > chosen(0)
        assert chosen(100) == chosen(0)  # (of which the row cache does not hold all)


def test_rows_that_are_all_there_are_copied_where_a_copy_costs_less() -> None:
    """However many were idle."""
    copy = kernel_rows.copy_cost(PROFILES["cpu"])
    for cost, first in (copy + 1, True), (copy - 1, False):
        rows = SimpleNamespace(cost=1e6, tile_cost=cost)
        assert not kernel_rows.before_tile(PROFILES["cpu"], rows, 1000, 64, 64, 1)  # type: ignore[arg-type]
        assert kernel_rows.before_tile(PROFILES["cpu"], rows, 1000, 64, 64, 1, missing=False) == first  # type: ignore[arg-type]
