"""Layouts: the partition of columns by their density, as walks; what a value of K costs in each layout; the choice."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clsvm import SVC, SVR, FalkonRegressor, arrays, kernels
from clsvm.gram import exact, layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Survey
from clsvm.gram.partition import Gain
from clsvm.gram.products import Gram
from clsvm.models.npz import load_model, save_model
from clsvm.opencl.profiles import PROFILES, Profile
from clsvm.opencl.stream import Stream
from tests.conftest import noisy, take_profile
from tests.gram.panels import chain, gathered, products


def walk(count: list[int], n: int, gain: Gain) -> int:
    """Columns that are dense, column by column."""
    gained = [(c / n * gain.entry) ** gain.power - 1 for c in count if c * gain.entry > n]
    return len(gained) if sum(gained) > gain.least else 0


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.builds(Gain, st.floats(1, 10), st.sampled_from((1, 2)), st.floats(0, 50)),
)
@example([40, 40], Gain(3.0, 1, 4.0))
@example([40, 40], Gain(3.0, 2, 15.0))
def test_dense_columns_are_those_that_gain(count: list[int], gain: Gain) -> None:
    made = partition.partition(np.array(count), 40, gain)
    assert made.dense == walk(count, 40, gain)
    falling = np.array(count)[made.order]
    assert (np.diff(falling) <= 0).all()
    np.testing.assert_array_equal(np.sort(made.order), np.arange(len(count)))
    np.testing.assert_array_equal(made.order[made.rank], np.arange(len(count)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["rbf", "linear", "laplacian"])
def test_the_bits_of_any_layout_with_this_order(profile: str, name: str, dtype: str, stream: Stream) -> None:
    rng, n, d = np.random.default_rng(1), 300, 80
    X = sp.csr_matrix(rng.normal(size=(n, d)) * (rng.random((n, d)) < rng.random(d))).astype(np.float32)
    kernel = kernels.make(name, **({"gamma": 0.1} if name != "linear" else {}))
    found = []
    plan = layouts.choose(stream.profile, X, kernel.spec, "hybrid")
    assert plan.partition
    assert 0 < plan.partition.dense < d
    for kind in ("hybrid", "csr", "dense", *["inverted", "clustered"] * (not kernel.spec.element)):
        splits = LAYOUTS[kind].splits
        rows = X if splits else X[:, chain(plan.partition)].sorted_indices()
        one = replace(plan, kind=kind) if splits else layouts.choose(stream.profile, rows, kernel.spec, kind)
        gram = Gram(stream, layouts.build(stream, rows, one, dtype), kernel)
        found.append(gram.values(gathered(stream, gram, 70, square=True).panel, 70))
        norms = stream.read(gram.rows.xx, dtype, gram.rows.n_pad)[gram.rows.position]
        assert name != "linear" or (np.diag(found[-1]) == norms[:70]).all()  # a row meets itself at distance 0
    if not kernel.spec.element:  # (element-wise sums over entries are corrected by those of zeros)
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[3], found[0])
    if name == "linear":  # (of distances, a dense layout takes the mean off)
        np.testing.assert_array_equal(found[2], found[0])
        np.testing.assert_array_equal(found[4], found[0])
    np.testing.assert_allclose(found[0], kernel(X.toarray(), X[:70].toarray()), atol=2e-5)


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_many_columns_are_numbered_by_density(
    profile: str, name: str, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """Values of K keep their bits, whatever the numbers."""
    rng, n, d = np.random.default_rng(1), 300, 40
    X = sp.csr_matrix(rng.normal(size=(n, d)) * (rng.random((n, d)) < rng.random(d) ** 2)).astype(np.float32)
    kernel, found = kernels.make(name, gamma=0.1), []
    for columns in (d, d - 1):
        monkeypatch.setattr("clsvm.gram.layouts.csr.ORDERED", columns)
        gram = products(stream, X, kernel, "csr")
        found.append(gram.values(gathered(stream, gram, 70, square=True).panel, 70))
    made = layouts.choose(stream.profile, X, kernel.spec, "csr").partition
    assert made
    assert (np.diff(np.bincount(X.indices, minlength=d)[made.order]) <= 0).all()
    assert made.dense == 0
    np.testing.assert_array_equal(*found)


def test_columns_that_no_row_had_in_training(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are numbered behind the others."""
    monkeypatch.setattr("clsvm.gram.layouts.csr.ORDERED", 10)
    X, y = half_dense()
    wide = sp.csr_matrix((X.data, X.indices * 3000, X.indptr), shape=(X.shape[0], 10**6))
    rng = np.random.default_rng(0)
    anywhere = rng.normal(size=400), (rng.integers(0, len(y), 400), rng.integers(0, 10**6, 400))
    more = sp.csr_matrix(wide + sp.csr_matrix(anywhere, shape=wide.shape))
    for layout in ("csr", "hybrid", "inverted"):
        narrow = SVC(gamma=0.05, device=device, layout=layout).fit(X, y > 0)
        machine = SVC(gamma=0.05, device=device, layout=layout).fit(wide, y > 0)
        np.testing.assert_allclose(machine.decision_function(wide), narrow.decision_function(X), atol=1e-3)
        expected = SVC(gamma=0.05, device=device, layout="csr").fit(wide, y > 0).decision_function(more)
        np.testing.assert_allclose(machine.decision_function(more), expected, atol=1e-3)


def half_dense(n: int = 400, d: int = 300) -> tuple[sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(5)
    density = np.where(np.arange(d) % 12 == 0, 0.8, 0.02)
    X = sp.csr_matrix(rng.normal(size=(n, d)) * (rng.random((n, d)) < density))
    return X, X[:, :60] @ rng.normal(size=60)


@pytest.mark.sample(9)
@pytest.mark.parametrize("layout", ["dense", "csr", "clustered", "hybrid", "inverted"])
def test_every_layout_of_every_estimator_ends_alike(device: str, profile: str, layout: str, tmp_path: Path) -> None:
    """And a saved model has the partition of its columns."""
    X, y = half_dense()
    machine = SVR(C=1.0, gamma=0.05, tol=1e-5, device=device).fit(X, y)
    other = SVR(C=1.0, gamma=0.05, tol=1e-5, device=device, layout=layout).fit(X, y)
    has = LAYOUTS[layout].suits(PROFILES["gpu" if "gpu" in profile else "cpu"])
    laid = layout if has else "hybrid"  # (work-groups have no inverted rows)
    assert other.fit_report_.layout.startswith(laid)
    assert other.fit_report_.primal == pytest.approx(machine.fit_report_.primal, rel=1e-6)
    np.testing.assert_allclose(other.predict(X), machine.predict(X), atol=1e-4)
    save_model(other, tmp_path / "model.npz")
    model = load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(model.predict(X, device), other.predict(X))
    if LAYOUTS[layout].splits and profile.startswith("cpu"):
        assert model.plan.partition.dense == 25
    several = SVC(gamma=0.05, device=device, layout=layout).fit(X, np.digitize(y, [-1, 1]))
    assert several.fit_report_.converged
    falkon = FalkonRegressor(n_centers=50, gamma=0.05, penalty=1e-3, random_state=0, device=device, layout=layout)
    assert falkon.fit(X, y).fit_report_.layout.startswith(layout)


def test_layouts_that_cannot_be(device: str) -> None:
    X, y = half_dense()
    names = "'auto', 'dense', 'bits', 'csr', 'clustered', 'hybrid' or 'inverted'"
    with pytest.raises(ValueError, match=f"layout must be {names}, got 'rows'"):
        SVC(layout="rows", device=device).fit(X, y > 0)
    with pytest.raises(ValueError, match="layout must be 'auto' or one of dense, csr, hybrid for this kernel function"):
        SVC(kernel="laplacian", layout="clustered", device=device).fit(X, y > 0)
    wide = sp.csr_matrix((X.data, X.indices, X.indptr), shape=(400, 20000))
    with pytest.raises(ValueError, match="layout='clustered' holds rows of at most 16384 columns, got 20000"):
        SVC(layout="clustered", device=device).fit(wide, y > 0)


@pytest.mark.parametrize("layout", ["hybrid", "inverted"])
def test_hostile_rows(device: str, layout: str) -> None:
    """Unsorted, duplicate and zero entries, empty rows and columns, one dense column among very many."""
    rng, n, d = np.random.default_rng(2), 300, 10**6
    row = np.concatenate([np.arange(1, n), rng.integers(1, n, 900), rng.integers(1, n, 900)])
    column = np.concatenate([np.full(n - 1, 77), np.repeat(rng.integers(0, d, 450), 2), rng.integers(0, d, 900)])
    value = np.concatenate([rng.normal(size=n - 1), rng.normal(size=900), np.zeros(900)])
    X = sp.coo_matrix((value, (row, column)), shape=(n, d))
    y = np.sign(rng.normal(size=n))
    ordered = X.tocsr()
    expected = SVC(gamma=0.5, tol=1e-6, device=device, layout="csr").fit(ordered, y).decision_function(ordered)
    machine = SVC(gamma=0.5, tol=1e-6, device=device, layout=layout).fit(X, y)
    np.testing.assert_allclose(machine.decision_function(X), expected, atol=1e-4)


@pytest.mark.parametrize("most", [9, 1 << 16, 1 << 20])
def test_columns_by_density_are_in_their_old_order_where_level(most: int) -> None:
    count = np.random.default_rng(0).integers(0, 6, 500) * (most // 5)
    count[7] = most
    order = partition.by_density(count).order
    assert order.tolist() == sorted(range(500), key=lambda column: -count[column])


@pytest.mark.parametrize("full", [2, 9])
@pytest.mark.parametrize("missing", [0, 1])
def test_rows_in_csr_less_a_centre(missing: int, full: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((40, full + 4)) * (rng.random((40, full + 4)) < 0.5)
    X[:, 2 : full + 2] = rng.random((40, full)) + 1
    X[:missing, 2] = 0
    centre = np.pad(1 + rng.random(full), 2)
    np.testing.assert_array_equal(arrays.centred(sp.csr_matrix(X), centre).toarray(), X - centre)


FEW = np.concatenate([np.ones(10), np.full(90, 0.01)])
SIMPLE = replace(
    PROFILES["cpu"], outer_cost=0.0, value_cost=0.0, csr_cost=8.0, hybrid_cost=1.5, hit_cost=40.0, clustered_cost=1.2
)
N = 20000


def cost(profile: Profile, kind: str, density: Any, working: int, fill: float = 0.0) -> float | None:
    of = Survey(profile, sp.csr_matrix((N, len(density))), density, working, binary=True)
    vars(of)["fill"] = fill
    return LAYOUTS[kind].cost(of)


@pytest.mark.parametrize(
    ("kind", "density", "working", "fill", "expected"),
    [
        ("dense", FEW, 512, 0, 100),
        ("dense", FEW, 16, 0, 150),
        ("csr", FEW, 512, 0, 87.694),
        ("csr", FEW, 16, 0, 218.876),
        ("csr", np.full(5000, 0.5), 512, 0, 30894.9),
        ("csr", np.full(20000, 0.5), 16, 0, 309228),
        ("hybrid", FEW, 512, 0, 23.7303),
        ("hybrid", FEW, 16, 0, 40.4264),
        ("inverted", FEW, 512, 0, 16.2664),
        ("inverted", FEW, 16, 0, 21.827),
        ("bits", np.full(64, 0.5), 512, 0, 20),
        ("bits", np.full(65, 0.5), 512, 0, 30),
        ("clustered", np.zeros(256), 512, 100, 120),
        ("clustered", np.zeros(256), 16, 100, 160),
        ("clustered", np.zeros(4096), 512, 3072, 3801.6),
        ("clustered", np.zeros(4096), 512, 1024, 3310.08),
    ],
)
def test_what_a_value_costs(kind: str, density: Any, working: int, fill: float, expected: float) -> None:
    """By rates of cells and entries. Few working vectors stand in a narrower panel and wait for memory;
    columns whose lines no cache holds take longer; an index counts what meets; clusters read here and there."""
    assert cost(SIMPLE, kind, density, working, fill) == pytest.approx(expected, rel=1e-4)


def test_work_groups_wait_for_no_memory_and_have_no_index() -> None:
    group = replace(SIMPLE, style="workgroup")
    assert cost(group, "dense", FEW, 16) == 100
    wide = np.full(5000, 0.5)
    near, far = cost(group, "csr", wide, 512), cost(SIMPLE, "csr", wide, 512)
    assert near
    assert far == pytest.approx(near + 3 * SIMPLE.csr_cost * 904 / 2)  # (columns beyond 4096 are in no cache)
    assert cost(group, "inverted", FEW, 512) is None


def test_whole_columns_are_worth_their_start() -> None:
    """Ten full columns gain 10 (csr_cost - hybrid_cost) where they are whole; half of value_cost is what they take."""
    gained = 10 * (SIMPLE.csr_cost - SIMPLE.hybrid_cost)
    for value_cost, dense in (1.9 * gained, 10), (2.1 * gained, 0):
        profile = replace(SIMPLE, value_cost=value_cost)
        assert (cost(profile, "hybrid", FEW, 512) is not None) == (dense > 0)
        X = sp.csr_matrix(np.tile(FEW >= 1, (5, 1)).astype(np.float32))
        made = layouts.choose(profile, X, kernels.make("rbf").spec, "hybrid").partition
        assert made
        assert made.dense == dense


def test_what_laying_rows_out_takes_is_shared_by_the_values_of_a_row() -> None:
    """Whether a cell of a dense row is 0 takes a thousand cells' time to see: few rows are not worth it."""
    rng = np.random.default_rng(0)
    X = (rng.random((4000, 500)) < 0.1).astype(np.float32)
    for n, kind in (4000, "csr"), (1000, "dense"):
        assert layouts.choose(PROFILES["cpu"], X[:n], kernels.make("laplacian").spec).kind == kind
        assert layouts.choose(PROFILES["cpu"], sp.csr_matrix(X[:n]), kernels.make("laplacian").spec).kind == "csr"


@pytest.mark.filterwarnings("ignore:not converged")
def test_a_fit_chooses_for_its_working_set(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few entries: among many working vectors CSR is read fastest, among 16 an index."""
    take_profile("cpu", device, monkeypatch)
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(2 * (rng.random((2000, 400)) < 0.09)).astype(np.float32)
    _, y = noisy(2000, 4)
    costs = {W: layouts.choose(PROFILES["cpu"], X, kernels.make("rbf").spec, working=W).costs for W in (512, 16)}
    for W, kind in (512, "csr"), (16, "inverted"):
        assert min(costs[W], key=lambda name, W=W: costs[W][name]) == kind  # type: ignore[misc]
        found = SVC(working_set_size=W, max_iter=20, device=device).fit(X, y).fit_report_
        assert found.layout.startswith(kind)
        assert found.layout_costs == pytest.approx(costs[W])


def test_the_centre_is_that_of_a_sample_without_rows_far_out() -> None:
    """Of many rows some are enough; of all, where one of the sample would move it."""
    X, spec = np.random.default_rng(0).normal(5.0, 1.0, (40000, 3)), kernels.make("rbf").spec
    near = layouts.choose(PROFILES["cpu"], X, spec, "dense").centre
    np.testing.assert_allclose(near, 5.0, atol=0.1)
    assert (near != X.mean(axis=0)).all()
    X[0] = 1e7
    np.testing.assert_array_equal(layouts.choose(PROFILES["cpu"], X, spec, "dense").centre, X.mean(axis=0))
    few = X[1:9000]
    np.testing.assert_array_equal(layouts.choose(PROFILES["cpu"], few, spec, "dense").centre, few.mean(axis=0))


def test_clusters_are_estimated_where_they_may_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    X, spec = np.where(np.random.default_rng(0).random((500, 40)) < 0.1, 1.0, 0.0), kernels.make("rbf").spec
    dear = replace(PROFILES["cpu"], cluster_cost=1e9)
    assert "clustered" in layouts.choose(PROFILES["cpu"], X, spec).costs
    assert "clustered" not in layouts.choose(dear, X, spec).costs
    assert "clustered" in layouts.choose(dear, X, spec, "dense").costs  # (asked for: all that there is)


def test_rows_that_clusters_are_not_for() -> None:
    """Rows that are read by their numbers stand as entries where those are sooner read than dense ones; checks take the
    layout that they are estimated to take less time with."""
    costs = {"dense": 9.0, "csr": 2.0, "clustered": 4.0}
    plan = layouts.Plan("clustered", np.zeros(9), "", costs=costs)
    X = np.zeros((5, 9))
    for changed, free, expected in (
        ({"whole": {"dense": 9.0, "csr": 7.0}}, False, "csr"),
        ({"whole": {"dense": 9.0, "csr": 8.0}}, False, "dense"),
        ({}, False, "dense"),
        ({"kind": "inverted"}, False, "hybrid"),
        ({"kind": "inverted"}, True, "csr"),
        ({"kind": "inverted", "costs": costs | {"hybrid": 3.0}}, True, "hybrid"),
        ({"kind": "hybrid"}, True, "hybrid"),
    ):
        assert layouts.gathered_plan(replace(plan, **changed), X, free=free).kind == expected  # type: ignore[arg-type]
    entries = sp.csr_matrix(X)
    for one, rows, expected in (
        (plan, entries, "csr"),
        (plan, X, "clustered"),
        (replace(plan, costs={}), entries, "clustered"),
        (replace(plan, kind="csr"), entries, "csr"),
    ):
        assert layouts.cheaper_plan(one, rows).kind == expected


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_bits_are_for_rows_of_0_and_1_that_are_all_known(form: Any) -> None:
    X, spec = (np.random.default_rng(0).random((3000, 64)) < 0.5).astype(np.float32), kernels.make("rbf").spec
    choose = functools.partial(layouts.choose, PROFILES["cpu"], spec=spec)
    plan = choose(form(X), all_rows=True)
    assert plan.kind == "bits"
    assert plan.costs["bits"] < plan.costs["dense"]
    assert not plan.centre.any()
    for adapted in layouts.single_pass_plan, layouts.gathered_plan, layouts.streamed_plan:
        assert adapted(plan, form(X)).kind == "dense"
    for kind in "clustered", "csr":  # predictions take the cheapest layout for any entries
        cheap = replace(plan, costs=plan.costs | {kind: 1.0, "hybrid": 0.5})
        assert layouts.unrestricted_plan(cheap).kind == kind
    assert "bits" not in choose(form(X)).costs
    with pytest.raises(ValueError, match="layout='bits' is for SVMs over rows of 0 and 1 on one device, got a Falkon"):
        choose(form(X), kind="bits")
    for row, value in (0, 0.5), (2999, 2.0), (1500, -1.0), (0, 1e30):  # (1e30 squared is no float32)
        other = X.copy()
        other[row, 7] = value
        assert "bits" not in choose(form(other), all_rows=True).costs
        with pytest.raises(
            ValueError, match="layout='bits' is for SVMs over rows of 0 and 1 on one device, got rows with"
        ):
            choose(form(other), kind="bits", all_rows=True)


@pytest.mark.parametrize("name", ["rbf", "poly", "linear", "sigmoid"])
def test_fits_of_bits_are_those_of_dense_rows(device: str, profile: str, name: str) -> None:
    """Predictions take rows of any entries."""
    X, y = noisy(400, 40)
    X = (X > 0.3).astype(float)
    given: dict[str, Any] = {"kernel": name, "gamma": 0.05, "tol": 1e-4, "device": device}
    bits, dense = (SVC(layout=layout, **given).fit(X, y) for layout in ("bits", "dense"))
    assert bits.fit_report_.layout.startswith("bits")
    assert bits.fit_report_.converged
    assert bits.fit_report_.dual == pytest.approx(dense.fit_report_.dual, rel=1e-5)
    for rows in X, np.random.default_rng(1).normal(size=(50, 40)):
        np.testing.assert_allclose(bits.decision_function(rows), dense.decision_function(rows), atol=2e-3)


def test_sums_in_float64_over_rows_of_bits(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right whether the rows are laid out as bits or as other rows."""
    monkeypatch.setattr(exact, "HOST", -1)
    rng, spec, kernel = np.random.default_rng(0), kernels.make("rbf").spec, kernels.make("rbf", gamma=0.1)
    X, b = (rng.random((300, 70)) < 0.4).astype(np.float64), rng.normal(size=(2, 120))
    with Stream(device) as stream:
        if stream.profile.lacks("float64"):
            pytest.skip("the device has no doubles")
        plan = layouts.choose(stream.profile, X, spec, "bits", all_rows=True)
        for cells in 0, X.size * 120 + 1:
            monkeypatch.setattr(exact, "CLUSTERED", cells)
            found = exact.responses(stream, kernel, plan, X, X[:120], b)
            np.testing.assert_allclose(found, b @ kernel(X[:120], X), atol=1e-12)


@pytest.mark.parametrize("limit", [None, "2.5MB"])
def test_pairs_of_classes_over_rows_of_bits(device: str, limit: str | None) -> None:
    """Rows pass through the device as dense rows if they do not fit."""
    rng = np.random.default_rng(0)
    X, y = (rng.random((3000, 70)) < 0.3).astype(np.float64), np.arange(3000) % 3
    X[:, :3] = y[:, None] == rng.integers(0, 3, (3000, 3))
    given: dict[str, Any] = {"gamma": 0.05, "memory_limit": limit, "device": device}
    auto, dense = (SVC(layout=layout, **given).fit(X, y) for layout in ("auto", "dense"))
    assert auto.fit_report_.converged
    assert auto.fit_report_.dual == pytest.approx(dense.fit_report_.dual, rel=1e-4)
