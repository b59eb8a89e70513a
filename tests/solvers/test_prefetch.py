"""Prefetched rows: their bits, that fits end as they do without, and when it is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import SVC, SVR, NuSVC, kernels
from clsvm.gram import layouts
from clsvm.gram.products import Gram
from clsvm.opencl.stream import Stream
from clsvm.problem.posed import c_svc
from clsvm.solvers import kernel_rows
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.newton import Newton
from clsvm.solvers.result import Settings
from tests.conftest import thrifty

pytestmark = pytest.mark.parametrize("profile", ["cpu", "cpu8"], indirect=True)


def far_apart(n: int, d: int = 600, dense: float = 0.3) -> tuple[Any, Any]:
    """Rows of which nearly all become support vectors, and labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < dense)
    return X, np.where(rng.random(n) < 0.5, 1.0, -1.0)


def solver(stream: Stream, X: Any, y: Any, kind: str, dtype: str, cache: int = 10**8) -> Solver:
    kernel = kernels.make("rbf", gamma=0.01)
    plan = layouts.choose(stream.profile, X, kernel.spec, kind)
    gram = Gram(stream, layouts.build(stream, X, plan, dtype), kernel)
    problem = c_svc(y[None], np.ones((1, len(y))))
    return Solver(stream, gram, problem, Settings(1e-3, None, -1, 32, cache, 1.0, None))


def kept(one: Solver) -> NDArray[Any]:
    """The rows of K (n, n_pad) that the row cache has, in the caller's order."""
    at, real = one.state.gram.rows.position, np.dtype(one.dtype)
    slots = one.stream.read(one.rows.cache.slot_of, np.int32, one.n)[at]
    owner = one.stream.read(one.rows.cache.owner, np.int32, slots.max() + 1)
    np.testing.assert_array_equal(owner[slots[slots >= 0]], at[slots >= 0])
    slabs = [one.stream.read(slab, real, (one.rows.cache.slab_rows, one.n)) for slab in one.rows.cache._slabs]
    return np.concatenate(slabs)[slots[slots >= 0]]


def rest_of(one: Solver) -> NDArray[np.int32]:
    """Positions of the rows that the row cache lacks."""
    return one.rows.missing()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_rows_have_their_bits(device: str, profile: str, kind: str, dtype: str) -> None:
    """After a step, by several panels."""
    if thrifty(device) and (kind, dtype) not in (("dense", "float32"), ("clustered", "float64")):
        pytest.skip("other layouts are left to Intel's compiler")
    X, y = far_apart(325, 80, 0.4)
    with Stream(device) as stream:
        one = solver(stream, X if kind in ("dense", "clustered") else sp.csr_matrix(X), y, kind, dtype)
        one._step()
        assert 0 < one._read().rows < 325
        before = one._read().rows
        assert one.rows.prefetch()[0] == 325 - before
        assert one._read().rows == 325
        assert not len(rest_of(one))
        assert isinstance(one.state.gram, Gram)
        K, at = kept(one), one.state.gram.rows.position
        np.testing.assert_array_equal(K[:, at], one.state.gram.values(one.state.gram.of_all(), 325).T)
        np.testing.assert_array_equal(K[:, at], K[:, at].T)


def test_what_is_there_when_time_is_over_stays(device: str, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = far_apart(325, 80)
    clock = iter((0.0, 1.0, 2.0))
    monkeypatch.setattr("clsvm.gram.store.perf_counter", lambda: next(clock))
    with Stream(device) as stream:
        one = solver(stream, X, y, "dense", "float32")
        assert one.rows.prefetch(until=2.0)[0]
        assert isinstance(one.state.gram, Gram)
        K, some = kept(one), 2 * one.square.panel.capacity
        assert one._read().rows == len(K) == some
        at = one.state.gram.rows.position
        np.testing.assert_array_equal(K[:, at], one.state.gram.values(one.state.gram.of_all(), 325).T[-some:])


def test_a_ring_without_room_stays(device: str, profile: str) -> None:
    X, y = far_apart(300)
    with Stream(device) as stream:
        one = solver(stream, X, y, "dense", "float32", cache=4 * 304 * 200)
        assert one.rows.cache.most < 300
        assert not one.rows.prefetch_pays(299)
        before = stream.read(one.rows.cache.slot_of, np.int32, one.n)
        assert one.rows.prefetch() == (0, 0)
        np.testing.assert_array_equal(stream.read(one.rows.cache.slot_of, np.int32, one.n), before)
        assert one._read().rows == 0


MACHINES: dict[str, Any] = {
    "svc": SVC(C=3, gamma=0.01),
    "svr": SVR(C=3, gamma=0.01, epsilon=0.05),
    "coupled": SVC(C=3, gamma=0.01, multi_class="crammer_singer"),
    "nu": NuSVC(nu=0.6, gamma=0.01),
}


@pytest.mark.parametrize("name", MACHINES)
def test_fits_end_as_without(device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (X, y), machine, found, made = far_apart(500), MACHINES[name], [], []
    make = KernelRows.prefetch

    def counted(self: KernelRows, *given: Any) -> tuple[int, int]:
        made.append(make(self, *given))
        return made[-1]

    monkeypatch.setattr(KernelRows, "prefetch", counted)
    for some in (True, False):
        if not some:
            monkeypatch.setattr(kernel_rows, "prefetches", lambda gram: False)
        given = {"device": device, "layout": "dense", "working_set_size": 32, "cache_size": 100}
        model = type(machine)(**machine.get_params() | given).fit(X, y)
        assert model.fit_report_.converged
        found.append(model)
    assert len(made) == 1
    assert 0 < made[0][0] < 500
    np.testing.assert_array_equal(found[0].dual_coef_, found[1].dual_coef_)
    assert found[0].fit_report_.steps == found[1].fit_report_.steps
    assert found[0].fit_report_.rows_computed == 500 - made[0][1] < found[1].fit_report_.rows_computed


def test_what_is_made_at_once_is_not_in_the_cost_model(
    device: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step over all free coefficients is due by the rows of working sets; then none is missing for a tile."""
    X, y = far_apart(500)
    rows, lacks = [], []
    monkeypatch.setattr(Newton, "due", lambda self, *given: rows.append(self._rows.counts.asked) or False)
    monkeypatch.setattr(kernel_rows, "before_tile", lambda *given: lacks.append(given[-1]) or False)
    with Stream(device) as stream:
        one = solver(stream, X, y, "dense", "float32")
        one.run()
        assert not len(rest_of(one))
    assert max(np.diff(rows)) <= 32
    assert lacks[0]
    assert not lacks[-1]


def test_at_the_start_of_a_problem_it_is_not_looked_at(
    device: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There all coefficients violate, and rows of the problem before count as computed."""
    (X, y), begun, found = far_apart(500), [], []
    other = np.where(np.random.default_rng(1).random(500) < 0.5, 1.0, -1.0)
    with Stream(device) as stream:
        one = solver(stream, X, y, "dense", "float32")
        monkeypatch.setattr(
            KernelRows, "prefetch_pays", lambda self, computed: begun.append(one.coefficients().any()) or False
        )
        found.append(one.run())
        problem = c_svc(other[None], np.ones((1, 500)))
        one.load(problem, one.settings)
        found.append(one.run())
        assert len(begun) > 2
        assert all(begun)
        monkeypatch.undo()
        fresh = solver(stream, X, other, "dense", "float32")
        found.append(fresh.run())
    np.testing.assert_array_equal(found[1].b, found[2].b)


def test_where_few_rows_are_asked_for_it_is_not_done(
    device: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where a value costs little more than a copy of it: such a solve does not even look."""
    X, _ = far_apart(500)
    y = np.where(X[:, :300].sum(axis=1) > 0, 1.0, -1.0)
    X[:, :300] += 2 * y[:, None]  # (far from the boundary)
    monkeypatch.setattr(KernelRows, "prefetch", lambda *given: pytest.fail("it was done"))
    given: Any = {"device": device, "layout": "dense", "working_set_size": 32, "cache_size": 100}
    assert SVC(gamma=1e-3, **given).fit(X, y).fit_report_.converged
    X, y = far_apart(500, 20)
    assert SVC(gamma=0.1, **given).fit(X, y).fit_report_.converged
    with Stream(device) as stream:
        assert not kernel_rows.prefetches(solver(stream, X, y, "dense", "float32").state.gram)
