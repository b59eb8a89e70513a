"""Rows as an inverted index: its blocks, products over some of the rows, what it costs, and what has none."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import SVC, kernels
from clsvm.gram import layouts, products
from clsvm.gram.blocks import products_of
from clsvm.gram.layouts import csr
from clsvm.gram.layouts.csr import CsrRows
from clsvm.gram.partition import Partition
from clsvm.gram.products import Gram, Store, Update
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.tools import emit
from tests.conftest import take_profile, thrifty
from tests.gram.panels import gathered

pytestmark = pytest.mark.usefixtures("blocks")


@pytest.fixture
def blocks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 rows, and indices of any number of rows."""
    take_profile("cpu", device, monkeypatch)
    monkeypatch.setattr(csr, "BLOCK", 64)
    monkeypatch.setattr(csr, "MIN_INDEXED", 1)


def rows_of(n: int = 300, d: int = 120, dense: int = 3) -> tuple[sp.csr_matrix, Partition]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < np.r_[np.full(dense, 0.9), 0.5 / np.arange(1, d - dense + 1)])
    X[:, d - 20 :] = 0
    order = np.r_[np.arange(dense), rng.permutation(np.arange(dense, d - 20)), np.arange(d - 20, d)].astype(np.int32)
    return sp.csr_matrix(X).astype(np.float32), Partition(order, dense)


def plan_of(X: sp.csr_matrix, made: Partition) -> layouts.Plan:
    return layouts.Plan("inverted", np.zeros(X.shape[1]), "", made)


@pytest.mark.oclgrind
@pytest.mark.parametrize(("dense", "parts"), [(0, 1), (3, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_over_some_of_the_rows(
    dtype: str, dense: int, parts: int, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """Whole blocks and parts of them, stored or passing by a store of a few rows, to the bits of hybrid rows; values
    that no launch has to touch stay as they were; however many items make the index."""
    monkeypatch.setattr(csr, "PARTS", parts)
    X, made = rows_of(dense=dense)
    kernel, real = kernels.make("rbf", gamma=0.1), np.dtype(dtype)
    chosen = [5, -1, 299, *range(100, 170)]
    D = np.random.default_rng(4).normal(size=(2, 128))
    found: dict[str, list[Any]] = {"inverted": [], "hybrid": []}
    for kind, out in found.items():
        gram = Gram(stream, layouts.build(stream, X, replace(plan_of(X, made), kind=kind), dtype), kernel)
        panel, _, count = gathered(stream, gram, chosen)
        V, n_pad = gram.rows.lanes, gram.rows.n_pad
        slot = stream.upload(np.arange(panel.capacity, dtype=np.int32)[::-1])
        for groups in (range(n_pad // V), range(1, 64 // V), range(64 // V - 1, 192 // V + 1)):
            size, base = len(groups) * V, groups.start * V
            K = stream.upload(np.full((panel.capacity, size + 8), 7, real))
            store = Store((K,), panel.capacity, size + 8, slot)
            c, weights = stream.wide(np.ones((2, size + 4))), stream.wide(D[:, : panel.capacity])
            update = Update(2, size + 4, c, weights, D[:, : panel.capacity].shape[1])
            gram.over_rows(groups, base, panel, count, store, update)
            monkeypatch.setattr(products, "PASSING", 64 * panel.width * real.itemsize)
            gram.over_rows(groups, base, panel, count, None, update)
            out.append(stream.read(K, real, (panel.capacity, size + 8)))
            out.append(stream.read_wide(c, (2, size + 4)))
    for one, other in zip(found["inverted"], found["hybrid"], strict=True):
        np.testing.assert_array_equal(one, other)
    there = np.array(chosen)[[0, *range(2, len(chosen))]]
    expected = kernel(X.toarray(), X[there].toarray()).T
    K = found["inverted"][0][::-1][: len(chosen), :300]
    np.testing.assert_allclose(np.delete(K, 1, axis=0), expected, atol=2e-6)


@pytest.mark.parametrize("few", [64, 4096])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_take_what_memory_is_left(dtype: str, few: int, monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    """A store for sums is as small as it has to be, down to ``few`` rows at a time; with less there is none."""
    monkeypatch.setattr(products, "MIN_STORE_ROWS", few)
    X, made = rows_of(n=1000)
    kernel, D, found = kernels.make("rbf", gamma=0.1), np.random.default_rng(4).normal(size=(2, 64)), []
    gram = Gram(stream, layouts.build(stream, X, plan_of(X, made), dtype), kernel)
    panel, _, count = gathered(stream, gram, 64)
    c, weights = stream.wide(np.zeros((2, gram.rows.n_pad))), stream.wide(D)
    limit, held = stream.limit, stream.allocated
    for left in (1 << 24, 300_000, 89_000, 500):
        stream.limit = held + left
        stream.write_wide(c, np.zeros((2, gram.rows.n_pad)))
        gram.accumulate(panel, count, None, Update(2, gram.rows.n_pad, c, weights, panel.capacity))
        found.append(stream.read_wide(c, (2, gram.rows.n_pad)))
        assert stream.allocated == held
    stream.limit = limit
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_the_row_cache_is_worth_more_than_an_index(stream: Stream) -> None:
    X, made = rows_of(n=1500)
    limit = stream.limit
    for left, kind in ((limit, "inverted"), (300_000, "hybrid")):
        stream.limit = stream.allocated + left
        rows = products_of(stream, X, plan_of(X, made), kernels.make("rbf", gamma=0.1), "float32").rows
        assert rows.kind == kind
        stream.limit = limit


@pytest.mark.parametrize("form", ["dense", "empty"])
def test_rows_of_one_part(form: str, stream: Stream) -> None:
    """Every column is dense, or there is no entry at all."""
    rng = np.random.default_rng(5)
    X = sp.csr_matrix(rng.normal(size=(70, 12)) if form == "dense" else np.zeros((70, 12)))
    made, kernel = Partition(np.arange(12, dtype=np.int32), 12 * (form == "dense")), kernels.make("rbf", gamma=0.1)
    gram = Gram(stream, layouts.build(stream, X, plan_of(X, made), "float32"), kernel)
    found = gram.values(gathered(stream, gram, 70).panel, 70)
    np.testing.assert_allclose(found, kernel(X.toarray(), X.toarray()), atol=2e-6)


def test_blocks_grow_where_columns_are_many() -> None:
    """The ends of a block's columns take no more room than the entries, unless 16 bits number no more rows."""
    assert csr._size(1000, 10, 10**6) == 64
    assert csr._size(1000, 1000, 5000) == 256  # 4 blocks of 1000 columns
    assert csr._size(10**9, 10**6, 10) == 1 << 16


def test_rare_columns_are_worth_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csr, "BLOCK", 1 << 14)
    profile, rng = PROFILES["cpu"], np.random.default_rng(6)
    rare = sp.random(2000, 8000, 0.005, "csr", rng=rng)
    common = sp.csr_matrix(rng.random((2000, 40)) * (rng.random((2000, 40)) < 0.5))
    for X, kind in ((rare, "inverted"), (common, "dense")):
        assert layouts.choose(profile, X, kernels.BUILTIN["rbf"]).kind == kind
    assert "inverted" not in layouts.choose(PROFILES["gpu"], rare, kernels.BUILTIN["rbf"]).costs
    assert "inverted" not in layouts.choose(profile, rare, kernels.BUILTIN["laplacian"]).costs
    made = layouts.choose(profile, sp.hstack([common, rare], "csr"), kernels.BUILTIN["rbf"], "inverted").partition
    assert made
    assert made.dense == 40  # (half of the rows have them: a quarter of the entries meet, each as long as 50 cells)


def test_few_rows_and_work_groups_have_no_index(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if thrifty(device):
        pytest.skip("four fits in different layouts: many programs")
    X, made = rows_of()
    y = np.sign(X[:, :20].sum(axis=1).A1 + 0.1)
    expected = SVC(gamma=0.1, layout="inverted", device=device).fit(X, y).decision_function(X)
    monkeypatch.setattr(csr, "MIN_INDEXED", 301)
    with Stream(device) as stream:
        rows = layouts.build(stream, X, plan_of(X, made), "float32")
        assert type(rows) is CsrRows
        assert rows.kind == "hybrid"
    few = SVC(gamma=0.1, layout="inverted", device=device).fit(X, y)
    np.testing.assert_array_equal(few.decision_function(X), expected)
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    group = SVC(gamma=0.1, layout="inverted", device=device).fit(X, y)
    assert group.fit_report_.layout.startswith("hybrid")
    np.testing.assert_allclose(group.decision_function(X), expected, atol=2e-3)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_several_kernels_are_not_emitted(name: str) -> None:
    with pytest.raises(ValueError, match="got 'inverted', which needs several kernels"):
        emit.emit(kernels.make("rbf", gamma=1.0), "rows", "inverted", "float32", PROFILES[name])
