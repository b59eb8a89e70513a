"""Products of rows that pass through a device in blocks, or stay there in several, beside those of rows in one go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from clsvm import SVC, SVR, FalkonClassifier, NuSVC, OneClassSVM
from clsvm.gram import blocks, layouts
from clsvm.gram.blocks import BlockGram, products_of
from clsvm.gram.products import Gram, Operator, Update
from clsvm.kernels import make
from clsvm.opencl.stream import Stream
from clsvm.solvers import newton
from tests.conftest import thrifty
from tests.gram.panels import gathered, products, store, stored, tile

N, D, W = 260, 24, 36
FORMS = ("dense", "mapped", "clustered", "csr", pytest.param("hybrid", marks=pytest.mark.oclgrind))


class Made(NamedTuple):
    """Rows of K of the chosen, sums over them, K among them, and sums over the last of them for the first."""

    stored: np.ndarray
    sums: np.ndarray
    tile: np.ndarray
    responses: np.ndarray


def rows_of(form: str, folder: Path) -> tuple[Any, str]:
    """(X (n, d), layout)."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < (1 if form in ("dense", "mapped") else 0.3))
    if form == "hybrid":
        X[:, 7] = 1 + rng.random(N)
    if form == "mapped":
        np.save(folder / "X.npy", X)
        return np.load(folder / "X.npy", mmap_mode="r"), "dense"
    return (sp.csr_matrix(X), form) if form in ("csr", "hybrid") else (X, form)


def made(stream: Stream, gram: Operator, dtype: str) -> Made:
    """By a panel that is used twice, for other rows each time; one of its vectors is none."""
    rng, rows = np.random.default_rng(2), gram.rows
    for _ in range(2):
        chosen = rng.choice(N, W, replace=False)
        chosen[5] = -1
        of = gathered(stream, gram, chosen, square=True)
    panel, places, count = of
    K, weights = store(stream, gram, panel), rng.normal(size=(2, panel.capacity))
    weights[:, 5] = 0
    c, D_ = stream.wide(np.ones((2, rows.n_pad))), stream.wide(weights)
    update = Update(2, rows.n_pad, c, D_, panel.capacity)
    gram.accumulate(panel, count, K, update)
    gram.accumulate(panel, count, None, update)
    gram.gather(panel, places, none := stream.zeros(4))
    gram.accumulate(panel, none, None, update)  # of nothing
    gram.gather(panel, places, count)
    right = gathered(stream, gram, W, square=True).panel
    part = stream.wide(np.zeros((1, panel.capacity)))
    one = stream.wide(weights[:1, : right.capacity])
    gram.respond(panel, places, right, count, Update(1, panel.capacity, part, one, right.capacity))
    there = np.delete(np.arange(W), 5)  # (what stands for no row has no meaning)
    sums = stream.read_wide(c, (2, rows.n_pad))[:, rows.position]
    answers = stream.read_wide(part, (1, panel.capacity))[0, there]
    return Made(stored(stream, gram, K)[there], sums, tile(stream, gram, of)[np.ix_(there, there)], answers)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 rows or 128, which do not stay, and several fetches for a panel."""
    monkeypatch.setattr(blocks, "STAY_SHARE", 0.0)
    monkeypatch.setattr(blocks, "UNIFIED", 48 * D * 4)
    monkeypatch.setattr(blocks, "COPIED", 96 * D * 4)
    monkeypatch.setattr(blocks, "SAMPLE", 16)
    monkeypatch.setattr(blocks, "LEAST", 16)


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stays", [False, True], ids=["passing", "staying"])
def test_the_same_bits_as_in_one_piece(
    profile: str,
    device: str,
    form: str,
    stays: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_blocks: None,
) -> None:
    if thrifty(device) and form in ("mapped", "clustered"):
        pytest.skip("dense and CSR rows show it")
    if thrifty(device) and profile == "gpu-pair":
        pytest.skip("pairs of floats differ in arithmetic alone")
    if stays and thrifty(device) and form == "hybrid":
        pytest.skip("CSR rows show it")
    kernel, (X, kind) = make("rbf", gamma=0.05), rows_of(form, tmp_path)
    if stays:
        monkeypatch.setattr(blocks, "STAY_SHARE", 0.8)
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, kind)
        whole = made(stream, products(stream, X, kernel, kind), "float32")
        largest, stream.largest = stream.largest, 96 * D * 4 if stays else stream.largest
        gram = BlockGram(stream, X, plan, kernel, "float32")
        stream.largest = largest
        assert ("which stay" in gram.rows.describe()) == stays
        if form == "hybrid":
            assert "and so not hybrid" in gram.rows.describe()
        some = made(stream, gram, "float32")
    for one, expected in zip(some, whole, strict=True):
        if form == "hybrid":  # (in another order of columns)
            np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(one, expected)


def test_rows_beyond_the_largest_buffer_of_a_device(device: str, small_blocks: None) -> None:
    """No buffer stands for all of them, so they are not read where they are."""
    kernel, (X, kind) = make("rbf", gamma=0.05), rows_of("dense", Path())
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, kind)
        near = BlockGram(stream, X, plan, kernel, "float32")
        stream.info = replace(stream.info, largest_buffer=X.nbytes - 1)
        far = BlockGram(stream, X, plan, kernel, "float32")
        assert (near._window is None) == (stream.profile.wide == "pair" or not stream.unified)
        assert far._window is None
        for one, expected in zip(made(stream, far, "float32"), made(stream, near, "float32"), strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", ["csr", "hybrid", "inverted", "clustered", "dense"])
def test_arrays_as_any_rows_in_little_memory(device: str, layout: str) -> None:
    """An array that is mostly zeros, in every layout: a fit within a quarter of its bytes ends as in core."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((1200, 600)) < 0.02, rng.normal(size=(1200, 600)), 0.0).astype(np.float32)
    y = np.where(X @ rng.normal(size=600) > 0, 1, -1)
    model = SVC(gamma=0.1, tol=1e-4, layout=layout, cache_size=0.5, device=device)
    whole = clone(model).fit(X, y)
    limited = clone(model).set_params(memory_limit=X.nbytes // 4).fit(X, y)
    assert limited.fit_report_.converged
    assert limited.fit_report_.dual == pytest.approx(whole.fit_report_.dual, rel=1e-6)
    np.testing.assert_allclose(limited.decision_function(X), whole.decision_function(X), atol=1e-3)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_element_wise_functions(device: str, form: str, tmp_path: Path, small_blocks: None) -> None:
    kernel, (X, kind) = make("laplacian", gamma=0.05), rows_of(form, tmp_path)
    with Stream(device) as stream:
        whole = products(stream, X, kernel, kind, "float64")
        some = BlockGram(stream, X, layouts.choose(stream.profile, X, kernel.spec, kind), kernel, "float64")
        for one, expected in zip(*(made(stream, gram, "float64") for gram in (some, whole)), strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["dense", "mapped", "csr", "clustered"])
def test_fits_of_a_quarter(device: str, form: str, tmp_path: Path) -> None:
    """The objective of a fit in one piece, within the limit; every pass goes the other way."""
    rng, (n, d) = np.random.default_rng(0), (1500, 600)
    X = rng.normal(size=(n, d)).astype(np.float32) * (rng.random((n, d)) < (0.2 if form in ("csr", "clustered") else 1))
    y = np.where(X[:, :9].sum(axis=1) + X[:, 3] * X[:, 4] > 0, 1, -1)
    limit = X.nbytes // 4
    if form == "mapped":
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    given = sp.csr_matrix(X) if form == "csr" else X
    layout = "dense" if form == "mapped" else form
    fits = [
        SVC(C=1, gamma=1 / d, device=device, layout=layout, memory_limit=some, tol=1e-4).fit(given, y).fit_report_
        for some in (None, limit)
    ]
    assert "pass through" in fits[1].layout
    assert "blocks" not in fits[0].layout
    assert fits[1].converged
    assert fits[1].bytes_held <= limit
    assert fits[1].dual == pytest.approx(fits[0].dual, rel=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "machine",
    [
        SVR(C=1, gamma=0.002),
        NuSVC(nu=0.3, gamma=0.002),
        OneClassSVM(nu=0.2, gamma=0.002),
        SVC(gamma=0.002, C=2),
        SVC(gamma=0.002, multi_class="crammer_singer"),
        SVC(kernel="laplacian", gamma=0.002),
    ],
    ids=str,
)
def test_every_task(device: str, machine: Any) -> None:
    """Of three classes or numbers; with the answers."""
    rng, (n, d) = np.random.default_rng(0), (900, 500)
    X = rng.normal(size=(n, d)).astype(np.float32)
    numbers = X[:, :5].sum(axis=1)
    y = numbers if isinstance(machine, SVR) else np.digitize(numbers, [-1, 1])
    y = (y > 0).astype(int) if isinstance(machine, NuSVC) else y
    found = []
    for limit in (None, X.nbytes // 3):
        model = clone(machine).set_params(device=device, memory_limit=limit, tol=1e-4).fit(X, y)
        answers = model.predict if isinstance(machine, SVR) else model.decision_function
        found.append((model.fit_report_, answers(X[:200])))
    (whole, f), (some, g) = found
    assert "blocks" in some.layout
    assert "blocks" not in whole.layout
    assert some.bytes_held <= X.nbytes // 3
    assert some.dual == pytest.approx(whole.dual, rel=1e-5)
    np.testing.assert_allclose(f, g, atol=5e-3 * np.abs(f).max())


def test_csr_rows_beyond_the_largest_buffer(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = sp.random(3000, 200, 0.1, "csr", random_state=0)
    y = np.where(np.asarray(X.sum(axis=1)).ravel() > np.median(np.asarray(X.sum(axis=1))), 1, -1)
    duals = []
    monkeypatch.setattr(newton, "MOST", 0)  # (the smaller buffers hold no tile of that many rows)
    for largest in ("4000000000", "200000"):
        monkeypatch.setenv("CLSVM_LARGEST_BUFFER", largest)
        report = SVC(gamma=0.5, device=device, layout="csr", cache_size=0.1, working_set_size=64).fit(X, y).fit_report_
        assert ("which stay" in report.layout) == (largest == "200000")
        duals.append(report.dual)
    assert duals[0] == pytest.approx(duals[1], rel=1e-12)  # (half of K is computed or all of it)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_a_row_that_is_too_large_is_named(device: str, form: str) -> None:
    """By the caller's number, whatever block it is in, among the longest rows or not."""
    rng, (n, d) = np.random.default_rng(0), (1500, 600)
    X, y = rng.normal(size=(n, d)).astype(np.float32), np.arange(n) % 2
    X[np.arange(n) != 1203, ::2] *= form != "csr"
    X[1203, 7] = 3e19
    given = sp.csr_matrix(X) if form == "csr" else X
    with pytest.raises(ValueError, match="the squared norm of row 1203 is too large for float32"):
        SVC(device=device, gamma=1 / d, layout=form, memory_limit=X.nbytes // 4).fit(given, y)


@pytest.mark.parametrize("model", [SVC, FalkonClassifier])
def test_a_file_that_was_cut_before_the_fit(device: str, tmp_path: Path, model: Any) -> None:
    np.save(tmp_path / "X.npy", np.ones((4000, 10)))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    fitted = SVC(device=device).fit(np.arange(40.0).reshape(4, 10), [0, 1, 0, 1])
    (tmp_path / "X.npy").open("r+b").truncate(9000)
    for use in (lambda: model(device=device).fit(X, np.arange(4000) % 2), lambda: fitted.predict(X)):
        with pytest.raises(ValueError, match="by a map, had 320128 bytes and now has 9000"):
            use()


def test_what_fits_is_in_one_piece(device: str) -> None:
    """Up to ROWS_SHARE of what is left, and what was laid out in vain is freed."""
    X, kernel = np.random.default_rng(0).random((4096, 64), np.float32), make("rbf", gamma=0.1)
    for limit, expected in ((2 << 20, Gram), (1 << 20, BlockGram)):
        with Stream(device, limit) as stream:
            plan = layouts.choose(stream.profile, X, kernel.spec, "dense")
            made = products_of(stream, X, plan, kernel, "float32")
            assert type(made) is expected
            assert stream.peak <= limit
            assert stream.held >= 4 * 4096


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 1.1])
def test_pairs_in_little_memory(device: str, share: float) -> None:
    """One after another where memory holds no batch of them, or not their float64 values."""
    rng, (n, d) = np.random.default_rng(0), (900, 500)
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = np.digitize(X[:, :5].sum(axis=1), [-1, 1])
    whole = SVC(gamma=0.002, C=100, tol=1e-5, device=device).fit(X, y).fit_report_
    limit = int(share * X.nbytes)
    some = SVC(gamma=0.002, C=100, tol=1e-5, device=device, memory_limit=limit).fit(X, y).fit_report_
    assert some.converged
    assert some.bytes_held <= limit
    assert some.dual == pytest.approx(whole.dual, rel=1e-6)


@pytest.mark.parametrize("share", [0.9, 1.0, 1.1, 1.3])
def test_what_the_host_finishes_is_counted(device: str, share: float) -> None:
    """The host goes on where memory_limit holds its matrices beside the solver's, but for the panel."""
    X = np.random.default_rng(0).normal(size=(115, 1517))
    model = OneClassSVM(nu=0.3, kernel="laplacian", gamma=0.00083, tol=1e-5, device=device, working_set_size=121)
    model.set_params(layout="dense", cache_size=0.01, memory_limit=int(share * X.nbytes))
    limited = model.fit(X).fit_report_
    assert limited.bytes_held <= share * X.nbytes
    whole = clone(model).set_params(memory_limit=None).fit(X).fit_report_
    assert limited.converged
    assert limited.dual == pytest.approx(whole.dual, rel=1e-6)


def test_more_counted_than_a_panel_holds(device: str, small_blocks: None, tmp_path: Path) -> None:
    X, kind = rows_of("dense", tmp_path)
    kernel = make("rbf", gamma=0.05)
    with Stream(device) as stream:
        gram = BlockGram(stream, X, layouts.choose(stream.profile, X, kernel.spec, kind), kernel, "float32")
        panel = gram.panel(64)
        places = stream.upload(np.arange(panel.capacity, dtype=np.int32))
        gram.gather(panel, places, stream.upload(np.array([10 * panel.capacity], np.int32)))
        assert panel.fetched.known == panel.capacity


def test_csr_rows_of_very_different_lengths(device: str) -> None:
    """The longest rows of all may be a working set."""
    rng, (n, d) = np.random.default_rng(0), (4000, 2000)
    lengths = np.minimum(5 + 20 * rng.pareto(1.2, n), 1500).astype(int)
    columns = np.concatenate([rng.choice(d, some, replace=False) for some in lengths])
    X = sp.csr_matrix((rng.random(len(columns)), columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(n, d))
    y = np.where(np.asarray(X[:, :50].sum(axis=1)).ravel() > 0.5, 1, -1)
    fits = [
        SVC(gamma=0.01, device=device, layout="csr", memory_limit=limit, max_iter=2000).fit(X, y).fit_report_
        for limit in (2_400_000, None)
    ]
    assert "pass through" in fits[0].layout
    assert fits[0].bytes_held <= 2_400_000
    assert fits[0].working_set_size >= 16


@pytest.mark.sample(4)
@pytest.mark.parametrize("C", [0.1, 10.0])
@pytest.mark.parametrize("limit", [240_000, 300_000, 460_000])
def test_a_solve_ends_within_the_memory_that_it_began_with(device: str, C: float, limit: int) -> None:
    """Sparse rows that are fetched for one working set after the other, or stay where they just fit."""
    rng = np.random.default_rng(0)
    X = sp.random(1500, 120, 0.15, "csr", random_state=rng, data_rvs=rng.standard_normal)
    y = np.sign(X.toarray()[:, :6].sum(axis=1) + 0.3 * rng.normal(size=1500))
    report = SVC(C=C, gamma=0.05, memory_limit=limit, device=device).fit(X, y).fit_report_
    assert report.converged
    assert report.bytes_held <= limit
