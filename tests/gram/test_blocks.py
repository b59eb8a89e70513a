"""Products of rows that pass through a device in blocks, beside those of rows in one go."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from clsvm import SVC, SVR, NuSVC, OneClassSVM
from clsvm.gram import blocks, layouts
from clsvm.gram.blocks import BlockGram, products_of
from clsvm.gram.layouts.panel import PanelPair
from clsvm.gram.products import Gram, Operator, Update
from clsvm.kernels import Kernel, make
from clsvm.opencl.stream import Stream
from tests.conftest import thrifty
from tests.gram.panels import gathered, products, store, stored, tile

N, D, W = 260, 24, 36
RBF = make("rbf", gamma=0.05)
FORMS = (
    "dense",
    "mapped",
    "file",
    "clustered",
    "csr",
    "element-wise",
    pytest.param("hybrid", marks=pytest.mark.oclgrind),
)


def in_file(X: np.ndarray, folder: Path) -> Any:
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def rows_of(form: str, folder: Path = Path()) -> tuple[Any, str]:
    """(X (n, d), layout)."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < (1 if form in ("dense", "mapped", "file") else 0.3))
    if form == "hybrid":
        X[:, 7] = 1 + rng.random(N)
    if form in ("mapped", "file"):
        return in_file(X, folder), "dense"
    if form == "element-wise":
        return sp.csr_matrix(X), "csr"
    if form in ("csr", "hybrid"):
        X = sp.csr_matrix(X)
        X.data = in_file(X.data, folder)
    return X, form


def in_blocks(stream: Stream, X: Any, kind: str, kernel: Kernel = RBF, dtype: str = "float32") -> BlockGram:
    return BlockGram(stream, X, layouts.choose(stream.profile, X, kernel.spec, kind), kernel, dtype)


def made(stream: Stream, gram: Operator) -> tuple[np.ndarray, ...]:
    """Rows of K of the chosen, sums over them, K among them, and sums over the last of them for the first. By a panel
    that is used twice, for other rows each time; one of its vectors is none."""
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
    gram.between(PanelPair(panel, places, right, count), None, Update(1, panel.capacity, part, one, right.capacity))
    there = np.delete(np.arange(W), 5)  # (what stands for no row has no meaning)
    sums = stream.read_wide(c, (2, rows.n_pad))[:, rows.position]
    answers = stream.read_wide(part, (1, panel.capacity))[0, there]
    return stored(stream, gram, K)[there], sums, tile(stream, gram, of)[np.ix_(there, there)], answers


def limited(model: Any, X: Any, y: Any, limit: float, rel: float = 1e-6) -> tuple[Any, Any]:
    """A fit in core and one within a limit, which comes to its objective."""
    whole, some = (clone(model).set_params(memory_limit=most).fit(X, y) for most in (None, int(limit)))
    report = some.fit_report_
    assert report.converged
    assert report.bytes_held <= limit
    assert report.dual == pytest.approx(whole.fit_report_.dual, rel=rel)
    return whole, some


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 rows or 128, and several fetches for a panel."""
    numbers = {"UNIFIED": 48 * D * 4, "COPIED": 96 * D * 4, "SAMPLE": 16, "MIN_ROWS": 16}
    for name, number in numbers.items():
        monkeypatch.setattr(blocks, name, number)


@pytest.mark.sample(9)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_as_in_one_piece(
    profile: str, device: str, form: str, tmp_path: Path, small_blocks: None, stream: Stream, monkeypatch: Any
) -> None:
    """A form "file" is a mapped file that no memory holds."""
    if thrifty(device) and (form in ("mapped", "file", "clustered") or profile == "gpu-pair"):
        pytest.skip("dense and CSR rows show it; pairs of floats differ in arithmetic alone")
    monkeypatch.setattr(blocks, "CACHED_SHARE", 0.5 * (form != "file"))
    X, kind = rows_of(form, tmp_path)
    kernel = make("laplacian", gamma=0.05) if form == "element-wise" else RBF
    whole = made(stream, products(stream, X, kernel, kind))
    gram = in_blocks(stream, X, kind, kernel)
    assert "which pass through the device" in gram.rows.describe()
    in_place = form in ("dense", "mapped", "clustered") and stream.unified and stream.profile.wide != "pair"
    assert (gram._window is not None) == in_place
    some = made(stream, gram)
    close = 2e-5 if form == "hybrid" else 0  # (in another order of columns)
    for one, expected in zip(some, whole, strict=True):
        assert_allclose(one, expected, rtol=close, atol=close)


def test_rows_beyond_the_largest_buffer_of_a_device(small_blocks: None, stream: Stream) -> None:
    """No buffer stands for all of them, so they are not read where they are."""
    X, kind = rows_of("dense")
    near = in_blocks(stream, X, kind)
    stream.info = replace(stream.info, largest_buffer=X.nbytes - 1)
    far = in_blocks(stream, X, kind)
    assert (near._window is None) == (stream.profile.wide == "pair" or not stream.unified)
    assert far._window is None
    for one, expected in zip(made(stream, far), made(stream, near), strict=True):
        assert_array_equal(one, expected)


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("form", "layout"),
    [*((form, form) for form in ("dense", "csr", "clustered")), ("mapped", "dense"), ("array", "inverted")],
)
def test_fits_of_a_quarter(device: str, form: str, layout: str, tmp_path: Path) -> None:
    """The objective of a fit in one piece, within the limit, whatever form rows have; every pass goes the other way."""
    rng, (n, d) = np.random.default_rng(0), (1000, 600)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < {"array": 0.02, "csr": 0.2, "clustered": 0.2}.get(form, 1))
    X = X.astype(np.float32)
    score = X @ rng.normal(size=d) if form == "array" else X[:, :9].sum(axis=1) + X[:, 3] * X[:, 4]
    y = np.where(score > 0, 1, -1)
    given = sp.csr_matrix(X) if form == "csr" else in_file(X, tmp_path) if form == "mapped" else X
    model = SVC(gamma=0.1 if form == "array" else 1 / d, tol=1e-4, layout=layout, device=device)
    whole, some = limited(model.set_params(cache_size=0.5), given, y, X.nbytes // 4)
    assert "blocks" not in whole.fit_report_.layout
    if form != "array":
        assert "pass through" in some.fit_report_.layout
    assert_allclose(some.decision_function(X), whole.decision_function(X), atol=1e-3)


TASKS = [
    SVR(C=1, gamma=0.002, tol=1e-4),
    NuSVC(nu=0.3, gamma=0.002, tol=1e-4),
    OneClassSVM(nu=0.2, gamma=0.002, tol=1e-4),
    SVC(gamma=0.002, C=2, tol=1e-4),
    SVC(gamma=0.002, multi_class="crammer_singer", tol=1e-4),
    SVC(kernel="laplacian", gamma=0.002, tol=1e-4),
]
# Pairs one after another where memory holds no batch of them, or not their float64 values.
PAIRS = SVC(gamma=0.002, C=100, tol=1e-5)
# The host goes on where memory_limit holds its matrices beside the solver's, but for the panel.
HOST = OneClassSVM(nu=0.3, kernel="laplacian", gamma=0.00083, tol=1e-5, layout="dense", cache_size=0.01)
HOST.set_params(working_set_size=121)


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("machine", "n", "d", "share"),
    [(machine, 900, 500, 0.34) for machine in TASKS]
    + [(PAIRS, 900, 500, share) for share in (0.5, 1.1)]
    + [(HOST, 115, 1517, share) for share in (0.9, 1.1)],
)
def test_every_task(device: str, machine: Any, n: int, d: int, share: float) -> None:
    """Of three classes or numbers; with the answers."""
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float64 if machine is HOST else np.float32)
    numbers = X[:, :5].sum(axis=1)
    y = numbers if isinstance(machine, SVR) else np.digitize(numbers, [-1, 1])
    y = (y > 0).astype(int) if isinstance(machine, NuSVC) else y
    fits = limited(clone(machine).set_params(device=device), X, y, share * X.nbytes, rel=1e-5)
    f, g = (fit.predict(X[:200]) if isinstance(fit, SVR) else fit.decision_function(X[:200]) for fit in fits)
    assert share > 0.5 or ["blocks" in fit.fit_report_.layout for fit in fits] == [False, True]
    zero = 1e-5 if machine is HOST else 0  # its coefficients are all at their bounds
    assert_allclose(f, g, atol=5e-3 * np.abs(f).max() + zero)


def test_what_fits_is_in_one_piece(device: str) -> None:
    """Up to ROWS_SHARE of what is left, and sparse rows up to the largest buffer; what was in vain is freed."""
    X = np.random.default_rng(0).random((4096, 64), np.float32)
    cases = (
        (2 << 20, 2 << 20, "dense", Gram),
        (1 << 20, 1 << 20, "dense", BlockGram),
        (8 << 20, 1 << 19, "csr", BlockGram),
    )
    for limit, largest, kind, expected in cases:
        with Stream(device, limit) as stream:
            stream.largest = largest
            plan = layouts.choose(stream.profile, X, RBF.spec, kind)
            assert type(products_of(stream, X, plan, RBF, "float32")) is expected
            assert stream.peak <= limit
            assert stream.allocated >= 4 * 4096


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shortens no file that is mapped")
@pytest.mark.parametrize("work", ["gather", "pass"])
def test_a_file_cut_short_between_passes(work: str, tmp_path: Path, small_blocks: None, stream: Stream) -> None:
    gram = in_blocks(stream, *rows_of("mapped", tmp_path))
    panel, places, count = gathered(stream, gram, np.arange(W))
    os.truncate(tmp_path / "X.npy", 100)
    with pytest.raises(ValueError, match=r"memory-mapped file had \d+ bytes and now has 100"):
        gram.gather(panel, places, count) if work == "gather" else gram.accumulate(panel, count, None, None)


def test_more_counted_than_a_panel_holds(small_blocks: None, stream: Stream) -> None:
    gram = in_blocks(stream, *rows_of("dense"))
    panel = gram.panel(64)
    places = stream.upload(np.arange(panel.capacity, dtype=np.int32))
    gram.gather(panel, places, stream.upload(np.array([10 * panel.capacity], np.int32)))
    assert panel.fetched.count == panel.capacity


def test_csr_rows_of_very_different_lengths(device: str) -> None:
    """The longest rows of all may be a working set."""
    rng, (n, d) = np.random.default_rng(0), (4000, 2000)
    lengths = np.minimum(5 + 20 * rng.pareto(1.2, n), 1500).astype(int)
    columns = np.concatenate([rng.choice(d, some, replace=False) for some in lengths])
    X = sp.csr_matrix((rng.random(len(columns)), columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(n, d))
    y = np.where(np.asarray(X[:, :50].sum(axis=1)).ravel() > 0.5, 1, -1)
    report = SVC(gamma=0.01, device=device, layout="csr", memory_limit=2_400_000, max_iter=2000).fit(X, y).fit_report_
    assert "pass through" in report.layout
    assert report.bytes_held <= 2_400_000
    assert report.working_set_size >= 16


@pytest.mark.parametrize(("C", "limit"), [(0.1, 250_000), (10.0, 460_000)])
def test_a_solve_ends_within_the_memory_that_it_began_with(device: str, C: float, limit: int) -> None:
    """Sparse rows that are fetched for one working set after the other."""
    rng = np.random.default_rng(0)
    X = sp.random(1500, 120, 0.15, "csr", random_state=rng, data_rvs=rng.standard_normal)
    y = np.sign(X.toarray()[:, :6].sum(axis=1) + 0.3 * rng.normal(size=1500))
    report = SVC(C=C, gamma=0.05, memory_limit=limit, device=device).fit(X, y).fit_report_
    assert report.converged
    assert report.bytes_held <= limit
