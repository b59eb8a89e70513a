"""Rows of K that come before they are asked for: prefetched, or whole rows of a working set before its tile. Their
bits, that fits end as they do without, and when it is done; the sizes of working sets."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks import check
from clsvm import SVC, SVR, NuSVC, OneClassSVM, kernels
from clsvm.gram import layouts
from clsvm.gram.products import Gram
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.problem import c_svc
from clsvm.solvers import kernel_rows
from clsvm.solvers.decomposition import Solver
from clsvm.solvers.kernel_rows import KernelRows
from clsvm.solvers.newton import Newton
from clsvm.solvers.result import Settings
from clsvm.solvers.state import Limits
from tests.conftest import calls_of, noisy, thrifty
from tests.gram.panels import products

vectors = pytest.mark.parametrize("profile", ["cpu", "cpu8"], indirect=True)  # of which rows are prefetched
GIVEN: dict[str, Any] = {"layout": "dense", "working_set_size": 32, "cache_size": 100}
MACHINES: dict[str, Any] = {
    "svc": SVC(C=3),
    "svr": SVR(C=3, epsilon=0.05),
    "nu": NuSVC(nu=0.6),
    "one class": OneClassSVM(nu=0.3),
    "all at once": SVC(C=3, multi_class="crammer_singer"),
}


def far_apart(n: int, d: int = 600, dense: float = 0.3) -> tuple[Any, Any]:
    """Rows of which nearly all become support vectors, and labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < dense)
    return X, np.where(rng.random(n) < 0.5, 1.0, -1.0)


def rows_of(n: int) -> tuple[Any, Any]:
    """CSR rows, and labels of three classes."""
    X, y = noisy(n, 40, seed=2)
    X = X * (np.random.default_rng(3).random(X.shape) < 0.2)
    return sp.csr_matrix(X), np.where(X.sum(axis=1) > 1, 2.0, y)


def solver(
    stream: Stream, X: Any, y: Any, kind: str = "dense", dtype: str = "float32", W: int = 32, cache: int = 10**8
) -> Solver:
    gram = products(stream, X, kernels.make("rbf", gamma=0.01), kind, dtype)
    problem = c_svc(np.where(y > 0, 1.0, -1.0)[None], np.ones((1, len(y))))
    return Solver(stream, gram, problem, Settings(1e-3, working_set=W, cache_bytes=cache))


def kept(one: Solver) -> NDArray[Any]:
    """The rows of K (n, n) that the row cache has, in the caller's order."""
    at, real = one.state.gram.rows.position, np.dtype(one.dtype)
    slots = one.stream.read(one.rows.cache.slot_of, np.int32, one.n)[at]
    owner = one.stream.read(one.rows.cache.owner, np.int32, slots.max() + 1)
    np.testing.assert_array_equal(owner[slots[slots >= 0]], at[slots >= 0])
    slabs = [one.stream.read(slab, real, (one.rows.cache.slab_rows, one.n)) for slab in one.rows.cache._slabs]
    return np.concatenate(slabs)[slots[slots >= 0]][:, at]


def all_rows(one: Solver) -> NDArray[Any]:
    """K (n, n), by products."""
    assert isinstance(one.state.gram, Gram)
    return one.state.gram.values(one.state.gram.of_all(), one.state.gram.rows.n).T


@vectors
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_prefetched_rows_have_their_bits(device: str, profile: str, kind: str, dtype: str, stream: Stream) -> None:
    """After a step, by several panels."""
    if thrifty(device) and (kind, dtype) not in (("dense", "float32"), ("clustered", "float64")):
        pytest.skip("other layouts are left to Intel's compiler")
    X, y = far_apart(325, 80, 0.4)
    one = solver(stream, X if kind in ("dense", "clustered") else sp.csr_matrix(X), y, kind, dtype)
    one._step()
    before = one._read().rows
    assert 0 < before < 325
    assert one.rows.prefetch()[0] == 325 - before
    assert one._read().rows == 325
    assert not len(one.rows.missing())
    np.testing.assert_array_equal(kept(one), all_rows(one))
    np.testing.assert_array_equal(kept(one), kept(one).T)


def test_blocks_of_changed_rows(stream: Stream) -> None:
    """Gradients after steps that change other numbers of rows than whole blocks, of a layout that copies blocks."""
    X, y = rows_of(400)
    one = solver(stream, X, y, "csr", W=256)
    for _ in range(2):
        one._step()
        assert stream.read(one.rows.misses.count, np.int32, 1)[0] % one.panel.width
        problem, b, f = one._now()
        np.testing.assert_allclose(f[0], all_rows(one).astype(float) @ b[0] + problem.q[0], atol=1e-5)


@vectors
def test_prefetching_ends_where_time_or_room_does(
    profile: str, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """What is there by then stays; a ring without room is left as it was."""
    X, y = far_apart(325, 80)
    clock = iter((0.0, 1.0, 2.0))
    monkeypatch.setattr("clsvm.gram.store.perf_counter", lambda: next(clock))
    one = solver(stream, X, y)
    assert one.rows.prefetch(deadline=2.0)[0]
    some = 2 * one.panel.capacity
    assert one._read().rows == some
    np.testing.assert_array_equal(kept(one), all_rows(one)[-some:])
    one = solver(stream, X, y, cache=4 * 304 * 200)
    assert one.rows.cache.most < 325
    assert not one.rows.prefetch_pays(324)
    before = one.rows.slots()
    assert one.rows.prefetch() == (0, 0)
    np.testing.assert_array_equal(one.rows.slots(), before)
    assert one._read().rows == 0


def test_a_cache_that_begins_later(device: str) -> None:
    """Its rows have the bits of products, and a solve computes fewer rows than without a cache."""
    X, y = noisy(400, 5, seed=1)
    computed = {}
    for cache, after in ((10**8, 0), (10**8, 300), (0, 0)):
        with Stream(device) as stream:
            gram = products(stream, X, kernels.make("rbf", gamma=0.3), "dense", "float32")
            problem = c_svc(np.where(y > 0, 1.0, -1.0)[None], np.full((1, 400), 10.0))
            settings = Settings(1e-3, working_set=32, cache_bytes=cache, cache_after=after)
            one = Solver(stream, gram, problem, settings)
            assert (one.rows.cache.capacity > 0) == (cache > 0 and not after)
            found = one.run()
            assert found.status.converged
            computed[cache, after] = found.rows_computed
            if cache:
                _, rows, stored, _ = one.rows.counters()
                assert (rows - stored >= 300) == (after == 300)
                assert 0 < len(kept(one)) <= stored
                np.testing.assert_array_equal(kept(one), all_rows(one)[one.rows.slots()[gram.rows.position] >= 0])
    first, later, never = computed.values()
    assert first <= 400
    assert 300 <= later <= 300 + 32 * PROFILES["gpu"].sync + 400
    assert later < never


def test_when_rows_are_cached(stream: Stream) -> None:
    """At once where a value costs more than a stored one, else after half of all rows were computed."""
    stream.profile = replace(stream.profile, cache_cost=45.0, value_cost=30.0)
    gram = products(stream, np.ones((500, 2)), kernels.make("rbf", gamma=0.3), "dense", "float32")
    for cost, after in ((31.0, 0), (29.0, 250)):
        gram.rows = replace(gram.rows, cost=cost)
        found = kernel_rows.sizes(stream, gram, "auto", "auto")
        assert (found.cache_bytes, found.cache_after) == (stream.limit, after)
        assert kernel_rows.sizes(stream, gram, "auto", 1.0).cache_after == 0
        assert kernel_rows.sizes(stream, gram, "auto", 0).cache_bytes == 0


@vectors
@pytest.mark.parametrize("name", ["svc", "svr", "nu", "all at once"])
def test_fits_end_as_without_prefetching(device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (X, y), machine, found = far_apart(500), MACHINES[name], []
    made = calls_of(monkeypatch, KernelRows, "prefetch")
    for some in (True, False):
        if not some:
            monkeypatch.setattr(kernel_rows, "prefetches", lambda gram: False)
        found.append(type(machine)(**machine.get_params() | GIVEN | {"device": device, "gamma": 0.01}).fit(X, y))
        assert found[-1].fit_report_.converged
    ((rows, mirrored),) = (call.result for call in made)
    assert 0 < rows < 500
    np.testing.assert_array_equal(found[0].dual_coef_, found[1].dual_coef_)
    assert found[0].fit_report_.steps == found[1].fit_report_.steps
    assert found[0].fit_report_.rows_computed == 500 - mirrored < found[1].fit_report_.rows_computed


@vectors
def test_prefetched_rows_are_not_in_the_cost_model(
    profile: str, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """A step over all free coefficients is due by the rows of working sets; then none is missing for a tile."""
    rows, lacks = [], []
    monkeypatch.setattr(Newton, "should_run", lambda self, *given: rows.append(self._rows.computed) or False)
    monkeypatch.setattr(kernel_rows, "compute_rows_first", lambda *given: lacks.append(given[-1]) or False)
    one = solver(stream, *far_apart(500))
    one.run()
    assert not len(one.rows.missing())
    assert max(np.diff(rows)) <= 32
    assert lacks[0]
    assert not lacks[-1]


@vectors
def test_at_the_start_of_a_problem_prefetching_is_not_looked_at(
    profile: str, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """There all coefficients violate, and rows of the problem before count as computed."""
    (X, y), begun = far_apart(500), []
    one = solver(stream, X, y)
    looks = lambda self, computed: begun.append(one.coefficients().any()) or False  # noqa: E731
    monkeypatch.setattr(KernelRows, "prefetch_pays", looks)
    one.run()
    one.load(c_svc(-np.sign(y)[None], np.ones((1, 500))), one.settings)
    one.run()
    assert len(begun) > 2
    assert all(begun)


@vectors
def test_where_few_rows_are_asked_for_nothing_is_prefetched(
    device: str, profile: str, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """Nor where a value costs little more than a copy of it: such a solve does not even look."""
    X, _ = far_apart(500)
    y = np.where(X[:, :300].sum(axis=1) > 0, 1.0, -1.0)
    X[:, :300] += 2 * y[:, None]  # (far from the boundary)
    monkeypatch.setattr(KernelRows, "prefetch", lambda *given: pytest.fail("it was done"))
    assert SVC(gamma=1e-3, device=device, **GIVEN).fit(X, y).fit_report_.converged
    X, y = far_apart(500, 20)
    assert SVC(gamma=0.1, device=device, **GIVEN).fit(X, y).fit_report_.converged
    assert not kernel_rows.prefetches(solver(stream, X, y).state.gram)


@pytest.mark.parametrize("name", MACHINES)
def test_fits_end_as_without_rows_before_the_tile(
    device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a row cache for all rows, and with one that holds them at the beginning alone."""
    (X, y), machine, tile = rows_of(600), MACHINES[name], Solver._tile
    y = y if name == "all at once" else np.where(y == 2, 1.0, y)
    steps: list[bool] = []
    found: list[tuple[float, Any]] = []

    def noted(self: Solver, stay: int) -> None:
        steps.append(self.rows.rows_before_tile)
        tile(self, stay)

    monkeypatch.setattr(Solver, "_tile", noted)
    for first, cache in ((False, 100), (True, 100), (True, 0.5)):
        steps.clear()
        monkeypatch.setattr(kernel_rows, "compute_rows_first", lambda *a, first=first: first)
        given = machine.get_params() | {"device": device, "layout": "csr", "tol": 1e-4, "gamma": 0.05}
        given |= {"working_set_size": 64, "cache_size": cache} | ({"nu": 0.3} if name == "nu" else {})
        model = type(machine)(**given).fit(X, y)
        assert model.fit_report_.converged
        assert steps[0] == (first and (cache == 100 or profile.startswith("cpu")))  # (GPUs look at every eighth step)
        assert steps[-1] == (first and cache == 100)
        found.append((model.fit_report_.dual, getattr(model, "decision_function", model.predict)(X)))
    for dual, values in found[1:]:
        assert dual == pytest.approx(found[0][0], rel=1e-5)
        np.testing.assert_allclose(values, found[0][1], atol=5e-3)


@pytest.mark.oclgrind
def test_a_tile_from_rows_has_its_bits(device: str, profile: str, stream: Stream) -> None:
    """Of a first working set and of two of which a half stays; where rows are missing there are zeros."""
    if thrifty(device) and profile == "gpu":
        pytest.skip("the same kernels as of gpu-pair, which do more: a slow device has those")
    X, y = rows_of(100)
    made = solver(stream, X, y, "csr", cache=10**7)
    W = made.panel.capacity
    made.rows.cache.reserve(len(y), 1)  # (no row leaves)
    for step in range(3):
        made._update_optimality()
        if step == 2:  # some places are empty
            ws = stream.read(made.selection.ws, np.int32, W)
            ws[5:9] = -1
            stream.write(made.selection.ws, ws)
        made.selection.choose(made.view, made._new)
        Q = []
        for first, new in ((False, made._new), (False, range(made.W)), (True, range(made.W))):
            made.rows.rows_before_tile = first
            if first:
                made.rows.plan(range(0), all_rows=True)
                made.rows.compute_misses(add=False)
            made._tile(new)
            Q.append(stream.read(made.Q, np.float32, (W, W)))
        there = stream.read(made.selection.ws, np.int32, W) >= 0
        for other in Q[:2]:
            np.testing.assert_array_equal(other[there][:, there], Q[2][there][:, there])
        assert not Q[2][~there].any()
        made._solve_set(Limits.of(1e-3, -1, made.W))
        before, delta = made.rows.counters()[3], stream.read_wide(made.rows.delta, W)
        made._new = range(made.stay, made.W) if step == 1 else range(made.stay)
        made.rows.plan(made._new)
        assert not stream.read(made.rows.misses.count, np.int32, 1)[0]  # (all that changed are there)
        assert stream.read(made.rows.hits.count, np.int32, 1)[0] == np.count_nonzero(delta)
        assert made.rows.counters()[3] - before == np.delete(there & (delta == 0), made._new).sum()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("seed", [0, 5, 26])
def test_no_row_leaves_a_ring_that_can_grow(
    device: str, profile: str, seed: int, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that is full before it grows goes on behind what it has: no row is computed twice."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(59, 10))
    y = np.sign(Z.sum(axis=1) + rng.normal(size=59))
    X = np.hstack([Z, np.zeros((59, 390))]) @ np.linalg.qr(rng.normal(size=(400, 400)))[0]
    monkeypatch.setattr(kernel_rows, "compute_rows_first", lambda *seen: first)
    looks = calls_of(monkeypatch, Solver, "_read")
    given = GIVEN | {"working_set_size": 48, "device": device}
    model = SVC(C=1000, gamma=0.1, tol=1e-2, **given).fit(X, y)
    assert model.fit_report_.converged
    assert 0 < max(call.result.rows for call in looks) <= 59
    assert check.check(model, kernels.make("rbf", gamma=0.1)(X), y).violation <= 1.2e-2


def test_where_rows_before_the_tile_pay(device: str) -> None:
    """Where a value of the tile costs much more than one of a row; not for cheap rows, many rows, or idle ones."""
    X, _ = rows_of(300)
    of = PROFILES["cpu"]
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, X, kernels.make("rbf", gamma=0.1).spec, "csr")
        rows = replace(layouts.build(stream, X, plan, "float32"), cost=1500.0, tile_cost=6000.0)
        assert kernel_rows.compute_rows_first(of, rows, 16000, 2048, 0, 10)
        assert not kernel_rows.compute_rows_first(of, rows, 16000, 2048, 10 * 1024, 10)
        assert not kernel_rows.compute_rows_first(of, rows, 10**6, 2048, 0, 0)
        assert not kernel_rows.compute_rows_first(of, replace(rows, cost=100.0, tile_cost=100.0), 300, 2048, 0, 10)

        def chosen(cache: float) -> int:  # a dear tile calls for a small set, but not where it comes from rows
            return kernel_rows.sizes(stream, gram, "auto", cache)[0]

        dear = replace(rows, n=16000, n_pad=16000, cost=150.0, tile_cost=6000.0)
        gram = Gram(stream, dear, kernels.make("rbf", gamma=0.1))
        assert chosen(1100) > chosen(0)
        assert chosen(100) == chosen(0)  # (of which the row cache does not hold all)
    copy = kernel_rows.copy_cost(of)  # rows that are all there are copied where that costs less, however many were idle
    for cost, first in (copy + 1, True), (copy - 1, False):
        there: Any = SimpleNamespace(cost=1e6, tile_cost=cost)
        assert not kernel_rows.compute_rows_first(of, there, 1000, 64, 64, 1)
        assert kernel_rows.compute_rows_first(of, there, 1000, 64, 64, 1, missing=False) == first


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_cost_of_working_sets(profile: str) -> None:
    """More rows call for larger sets, dearer steps as well, wider rows for smaller ones."""
    of = PROFILES[profile]
    tried = kernel_rows._sizes(of.working_set)
    assert tried[0] == 16
    assert tried[-1] == of.working_set

    def best(n: int, width: float = 100, value: float = 30) -> int:
        return min(tried, key=lambda W: kernel_rows.cost(of, n, width, value, W))

    assert best(300) <= best(10**5)
    assert best(10**4, width=1e5) < best(10**4)
    assert best(10**5, value=2000) >= best(10**5, value=2)


def test_a_small_row_cache_calls_for_sets_that_it_holds() -> None:
    """A value is cheap where its row is kept; of sets larger than the row cache, rows that stay are computed again."""
    of = PROFILES["cpu"]
    value = partial(kernel_rows._value, of, 5000.0, 6000)
    assert value(2000.0, 256) == value(6000.0, 2048) == of.cache_cost
    assert value(0.0, 16) == value(0.0, 2048) == 5000
    assert of.cache_cost < value(400.0, 256) < 5000 < value(400.0, 512) < value(400.0, 2048)
    tried = kernel_rows._sizes(2048)
    assert min(tried, key=lambda W: kernel_rows.cost(of, 6000, 5000, value(400.0, W), W)) == 256
