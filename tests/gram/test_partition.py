"""The partition of columns by their density: its rules as walks, and rows that stand by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clsvm import SVC, SVR, FalkonRegressor, arrays, kernels
from clsvm.gram import layouts, partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.partition import RULES, Gain
from clsvm.gram.products import Gram
from clsvm.models.npz import load_model, save_model
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from tests.gram.panels import gathered


def walk(count: list[int], n: int, rule: str, gain: Gain) -> int:
    """Columns that are dense, column by column."""
    occur = sorted(c for c in count if c)
    total = cells = 0
    for i, c in enumerate(occur):
        total, cells, left = total + c, cells + n, len(occur) - i - 1
        if rule == "cost" and c * gain.entry > n:
            gained = sum((c / n * gain.entry) ** gain.power - 1 for c in occur[i:])
            return len(occur) - i if gained > gain.least else 0
        if rule != "cost" and (total / cells > 0.05 or c / n > 0.5):
            return len(occur) - i
        if rule == "code" and 4 * total > n * left:
            return len(occur) - i
    return 0


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.sampled_from(RULES),
    st.builds(Gain, st.floats(1, 10), st.sampled_from((1, 2)), st.floats(0, 50)),
)
@example([40, 40], "cost", Gain(3.0, 1, 4.0))
@example([40, 40], "cost", Gain(3.0, 2, 15.0))
def test_rules_are_walks(count: list[int], rule: str, gain: Gain) -> None:
    made = partition.partition(np.array(count), 40, rule, gain)
    assert made.dense == walk(count, 40, rule, gain)
    falling = np.array(count)[made.order]
    assert (np.diff(falling) <= 0).all()
    np.testing.assert_array_equal(np.sort(made.order), np.arange(len(count)))
    np.testing.assert_array_equal(made.order[made.rank], np.arange(len(count)))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_counts_and_split(form: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 12)) * (rng.random((50, 12)) < np.linspace(0, 0.9, 12))
    given = form(X)
    if sp.issparse(given):
        given.data[::7] = 0  # stored zeros are none
        X = given.toarray()
    count = partition.counts(given)
    np.testing.assert_array_equal(count, (X != 0).sum(axis=0))
    made = partition.partition(count, 50, "cost", Gain(2.0))
    assert 0 < made.dense < 12
    dense, rest = partition.split(sp.csr_matrix(given), made)
    np.testing.assert_array_equal(np.hstack([dense, rest.toarray()]), X[:, made.order])
    came = made.order[made.dense :][rest.indices]  # the columns as they were
    np.testing.assert_array_equal(
        sp.csr_matrix((rest.data, came, rest.indptr), shape=(50, 12)).has_sorted_indices, True
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["rbf", "linear", "laplacian"])
def test_the_bits_of_any_layout_with_this_order(device: str, profile: str, name: str, dtype: str) -> None:
    if profile == "gpu-pair" and dtype == "float64":
        pytest.skip("the device has no doubles")
    rng, n, d = np.random.default_rng(1), 300, 80
    X = sp.csr_matrix(rng.normal(size=(n, d)) * (rng.random((n, d)) < rng.random(d))).astype(np.float32)
    kernel = kernels.make(name, **({"gamma": 0.1} if name != "linear" else {}))
    found = []
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, "hybrid")
        assert plan.partition
        assert 0 < plan.partition.dense < d
        for kind in ("hybrid", "csr", "dense", *["inverted"] * (not kernel.spec.element)):
            splits = LAYOUTS[kind].splits
            rows = X if splits else X[:, plan.partition.chain].sorted_indices()
            one = replace(plan, kind=kind) if splits else layouts.choose(stream.profile, rows, kernel.spec, kind)
            gram = Gram(stream, layouts.build(stream, rows, one, dtype), kernel)
            found.append(gram.values(gathered(stream, gram, 70, square=True).panel, 70))
    if not kernel.spec.element:  # (element-wise sums over entries are corrected by those of zeros)
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[3], found[0])
    if name == "linear":  # (of distances, a dense layout takes the mean off)
        np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_allclose(found[0], kernel(X.toarray(), X[:70].toarray()), atol=2e-5)


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_many_columns_are_numbered_by_density(
    device: str, profile: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of K keep their bits, whatever the numbers."""
    rng, n, d = np.random.default_rng(1), 300, 40
    X = sp.csr_matrix(rng.normal(size=(n, d)) * (rng.random((n, d)) < rng.random(d) ** 2)).astype(np.float32)
    kernel, found = kernels.make(name, gamma=0.1), []
    with Stream(device) as stream:
        for columns in (d, d - 1):
            monkeypatch.setattr("clsvm.gram.layouts.csr.ORDERED", columns)
            plan = layouts.choose(stream.profile, X, kernel.spec, "csr")
            gram = Gram(stream, layouts.build(stream, X, plan, "float32"), kernel)
            found.append(gram.values(gathered(stream, gram, 70, square=True).panel, 70))
    assert plan.partition
    falling = np.bincount(X.indices, minlength=d)[plan.partition.order]
    assert (np.diff(falling) <= 0).all()
    assert plan.partition.dense == 0
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


@pytest.mark.sample(4)
@pytest.mark.parametrize("layout", ["dense", "csr", "clustered", "hybrid", "inverted"])
def test_every_layout_of_every_estimator_ends_alike(device: str, profile: str, layout: str) -> None:
    X, y = half_dense()
    machine = SVR(C=1.0, gamma=0.05, tol=1e-5, device=device).fit(X, y)
    other = SVR(C=1.0, gamma=0.05, tol=1e-5, device=device, layout=layout).fit(X, y)
    has = LAYOUTS[layout].suits(PROFILES["gpu" if "gpu" in profile else "cpu"])
    laid = layout if has else "hybrid"  # (work-groups have no inverted rows)
    assert other.fit_report_.layout.startswith(laid)
    assert other.fit_report_.primal == pytest.approx(machine.fit_report_.primal, rel=1e-6)
    np.testing.assert_allclose(other.predict(X), machine.predict(X), atol=1e-4)
    several = SVC(gamma=0.05, device=device, layout=layout).fit(X, np.digitize(y, [-1, 1]))
    assert several.fit_report_.converged
    falkon = FalkonRegressor(n_centers=50, gamma=0.05, penalty=1e-3, random_state=0, device=device, layout=layout)
    assert falkon.fit(X, y).fit_report_.layout.startswith(layout)


@pytest.mark.parametrize(("layout", "dense"), [("hybrid", 25), ("inverted", 25)])
def test_a_saved_model_has_its_partition(device: str, tmp_path: Path, layout: str, dense: int) -> None:
    X, y = half_dense()
    machine = SVC(gamma=0.05, device=device, layout=layout).fit(X, y > 0)
    save_model(machine, tmp_path / "model.npz")
    model = load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(model.decision_function(X, device), machine.decision_function(X))
    assert model.plan is not None
    assert model.plan.partition is not None
    assert model.plan.partition.dense == dense


def test_layouts_that_cannot_be(device: str) -> None:
    X, y = half_dense()
    with pytest.raises(
        ValueError, match="layout must be 'auto', 'dense', 'csr', 'clustered', 'hybrid' or 'inverted', got 'rows'"
    ):
        SVC(layout="rows", device=device).fit(X, y > 0)
    with pytest.raises(ValueError, match="layout must be 'auto' or one of dense, csr, hybrid for this kernel function"):
        SVC(kernel="laplacian", layout="clustered", device=device).fit(X, y > 0)
    wide = sp.csr_matrix((X.data, X.indices, X.indptr), shape=(400, 20000))
    with pytest.raises(ValueError, match="layout='clustered' holds rows of at most 16384 columns, got 20000"):
        SVC(layout="clustered", device=device).fit(wide, y > 0)


@pytest.mark.parametrize("layout", ["hybrid", "inverted", "auto"])
def test_hostile_rows(device: str, layout: str) -> None:
    """Unsorted, duplicate and zero entries, int64 indices, empty rows and columns, one dense column among very many."""
    rng, n, d = np.random.default_rng(2), 300, 10**6
    row = np.concatenate([np.arange(1, n), rng.integers(1, n, 900), rng.integers(1, n, 900)])
    column = np.concatenate([np.full(n - 1, 77), np.repeat(rng.integers(0, d, 450), 2), rng.integers(0, d, 900)])
    value = np.concatenate([rng.normal(size=n - 1), rng.normal(size=900), np.zeros(900)])
    X = sp.coo_matrix((value, (row, column)), shape=(n, d))
    y = np.sign(rng.normal(size=n))
    ordered = X.tocsr()
    expected = SVC(gamma=0.5, tol=1e-6, device=device, layout="csr").fit(ordered, y).decision_function(ordered)
    messy = sp.csr_matrix(X)
    messy.indices, messy.indptr = messy.indices[::-1].astype(np.int64), messy.indptr.astype(np.int64)
    messy.data = messy.data[::-1]
    messy.indptr = messy.nnz - messy.indptr[::-1]
    messy = messy[::-1]  # rows as before, entries of each backwards
    messy.has_sorted_indices = False
    for form in (X, X.tocsc(), messy):
        machine = SVC(gamma=0.5, tol=1e-6, device=device, layout=layout).fit(form, y)
        np.testing.assert_allclose(machine.decision_function(form), expected, atol=1e-4)


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
