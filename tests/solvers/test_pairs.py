"""Small problems side by side: what their tiles are made of, and what of it is checked in float64. No bit and no
objective depends on the former."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from benchmarks import check
from clsvm import SVC, SVR, NuSVC, kernels
from clsvm.fit import driver, host
from clsvm.gram import store
from clsvm.gram.store import StoredGram
from clsvm.opencl.stream import Stream
from clsvm.solvers import batch, gradients
from tests.conftest import calls_of, take_profile, thrifty
from tests.gram.panels import products


def classes(n: int, d: int, k: int, apart: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    y = rng.integers(0, k, n)
    return rng.normal(size=(k, d))[y] * apart + rng.normal(size=(n, d)), y


@pytest.mark.oclgrind
@pytest.mark.parametrize(
    "estimator",
    [
        SVC(),
        NuSVC(),
        SVC(multi_class="ovr"),
        SVC(bias=False, dtype="float64"),
        SVC(kernel="laplacian", bias=False),
        SVC(kernel="laplacian", dtype="float64"),
        *(SVC(layout=layout) for layout in ("csr", "hybrid", "inverted", "clustered")),
    ],
    ids=str,
)
def test_no_bit_depends_on_what_tiles_are_made_of(device: str, monkeypatch: pytest.MonkeyPatch, estimator: Any) -> None:
    """Of all values once, by rows that the subproblem picks (NuSVC: by tiles), one side of each tile and its mirror
    image, both sides, or rows that the subproblem makes, whose last vector is not full."""
    if thrifty(device) and estimator.get_params().get("layout", "auto") != "auto":
        pytest.skip("other layouts are left to Intel's compiler")
    take_profile("cpu8", device, monkeypatch)
    X, y = classes(61, 5, 3) if thrifty(device) else classes(261, 150, 4, apart=0.2)
    rows, tiles = (calls_of(monkeypatch, StoredGram, name) for name in ("row_source", "tile"))
    found = []
    for long, mirrored, in_cache in ((0, 64, 0), (10**9, 64, 0), (10**9, 10**9, 0), (10**9, 64, 1 << 20)):
        monkeypatch.setattr(driver, "LONG_ROWS", long)
        monkeypatch.setattr(gradients, "MIRRORED", mirrored)
        monkeypatch.setattr(batch, "IN_CACHE", in_cache)
        found.append(clone(estimator).set_params(gamma=0.01, device=device).fit(X, y))
        assert bool(rows or tiles) == (long == 0)
        rows.clear()
        tiles.clear()
        assert found[-1].fit_report_.converged
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].dual_coef_, other.dual_coef_)
        np.testing.assert_array_equal(found[0].intercept_, other.intercept_)


def test_float64_values_are_of_members_in_doubt_alone(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three pairs, one is looked at: no row of another is laid out."""
    monkeypatch.setattr(driver, "FEW", 0)  # (float32 first)
    X, y = classes(600, 12, 3, apart=0.6)
    looked = calls_of(monkeypatch, gradients, "responses")
    found, exactly = [], batch._Batch._respond_exactly
    monkeypatch.setattr(host, "computes_quickly", lambda stream, shape: False)
    monkeypatch.setattr(driver, "WIDE", 0)
    monkeypatch.setattr(batch, "ON_HOST", 0)
    for only in (None, 1):

        def some(self: Any, near: Any, only: int | None = only) -> None:
            if only is not None:
                near = near & (np.arange(len(self.b)) == only)[:, None]
            before = self.f.copy()
            exactly(self, near)
            found.append((near, before, self.f.copy()))

        monkeypatch.setattr(batch._Batch, "_respond_exactly", some)
        SVC(C=1, gamma=0.05, tol=1e-5, device=device).fit(X, y)
    whole, one = found[0], next(given for given in found if given[0].any(axis=1).tolist() == [False, True, False])
    assert whole[0].any(axis=1).all()
    assert {1, 3} <= {len(call.given[1]) for call in looked}
    np.testing.assert_array_equal(one[1][[0, 2]], one[2][[0, 2]])
    same = whole[0][1] & one[0][1]
    assert same.any()
    np.testing.assert_allclose(whole[2][1, same], one[2][1, same], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("d", "common", "in_cache", "limit"),
    [(150, 2, 0, None), (5, 1.3, 0, None), (150, 1.3, 0, "1MB"), (150, 1.3, 1 << 20, None)],
)
def test_values_are_not_shared(
    device: str, monkeypatch: pytest.MonkeyPatch, d: int, common: float, in_cache: int, limit: str | None
) -> None:
    """Where members have few in common, rows are short, memory is little, or the subproblem makes the rows it needs."""
    take_profile("cpu8", device, monkeypatch)
    X, y = classes(232, d, 4)
    y = np.arange(232) % 4
    made = calls_of(monkeypatch, store, "computed")
    monkeypatch.setattr(batch, "IN_CACHE", 0)
    SVC(gamma=0.01, device=device, memory_limit="4MB").fit(np.tile(X, 150 // d), y)
    assert made
    made.clear()
    monkeypatch.setattr(batch, "IN_CACHE", in_cache)
    monkeypatch.setattr(driver, "COMMON_VALUES", common)
    SVC(gamma=0.01, device=device, memory_limit=limit).fit(X, y)
    assert not made


def test_a_sample_spares_the_objective_s_float64_values(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding could move the objective by its worst case, and did not; where it did, float64 values are taken."""
    monkeypatch.setattr(driver, "FEW", 0)  # (float32 first)
    X, y = classes(600, 12, 3, apart=0.6)
    model = SVC(C=1, gamma=0.05, device=device)
    dual = SVC(C=1, gamma=0.05, tol=1e-6, dtype="float64", device=device).fit(X, y).fit_report_.dual
    looked = calls_of(monkeypatch, batch._Batch, "_largest_error")
    for sure in (batch.SAFETY, 1e9):
        monkeypatch.setattr(batch, "SAFETY", sure)
        report = model.fit(X, y).fit_report_
        assert looked
        assert (report.exact_rows > 0) == (sure == 1e9)
        assert report.dual == pytest.approx(dual, rel=1e-5)


@pytest.mark.parametrize("make", [SVC, SVR])
def test_a_sample_of_a_large_member_spares_the_rest(device: str, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    """As above, of members of many support vectors, whose f is left as it is. What is off alike in all rows does not
    count."""
    X, y = classes(1400, 6, 2, apart=0.05)
    K = kernels.make("rbf", gamma=0.1)(X)
    shifted, exactly = batch._Batch._sampled_error, batch._Batch._respond_exactly

    def moved(self: Any, near: Any) -> None:
        exactly(self, near)
        self.f[near] += 0.1

    def looked(self: Any, members: Any) -> Any:
        f = self.f.copy()
        with monkeypatch.context() as patched:
            patched.setattr(batch._Batch, "_respond_exactly", moved)
            found = shifted(self, members)
        np.testing.assert_array_equal(self.f, f)
        return found

    monkeypatch.setattr(batch._Batch, "_sampled_error", looked)
    for most, spared in ((None, True), (np.inf, False)):
        if most:
            monkeypatch.setattr(batch._Batch, "_sampled_error", lambda self, members: np.full(len(self.b), np.inf))
        model = make(gamma=0.1, tol=1e-2, device=device).fit(X, y)
        report, checked = model.fit_report_, check.check(model, K, y)
        assert report.selection == "all rows are one working set"
        assert len(model.support_) > batch.MANY
        assert (report.exact_rows == 0) == spared
        assert checked.violation <= 1.1 * model.tol
        assert report.dual == pytest.approx(checked.dual, rel=1e-4)


def test_a_few_rows_that_rounding_moves_are_found(device: str) -> None:
    """Two free support vectors beside a heap of copies at the bound, whose errors add up; all others have none."""
    rng, copies, C = np.random.default_rng(0), 600, 1000.0
    far = rng.standard_normal((1100, 20))
    far *= rng.uniform(5, 6, (1100, 1)) / np.linalg.norm(far, axis=1, keepdims=True)
    near = rng.standard_normal((2, 20))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    apart = -6 * np.eye(20)[[0]]
    X = np.concatenate([np.zeros((copies, 20)), np.repeat(apart, copies, axis=0), near, far])
    K, b = kernels.make("rbf", gamma=1.0)(X), np.concatenate([np.full(copies, C), np.full(copies, -C), np.zeros(1102)])
    b[2 * copies :] = rng.uniform(-0.3, 0.3, 1102) * C
    y = K @ b + 0.1 * np.sign(b)
    y[:copies], y[copies : 2 * copies] = 2 * copies * C, -2 * copies * C
    model = SVR(gamma=1.0, C=C, epsilon=0.1, device=device).fit(X, y)
    assert model.fit_report_.converged
    assert check.check(model, K, y).violation <= 1.2 * model.tol


@pytest.mark.parametrize("sparse", [False, True])
def test_half_of_the_values_among_rows_and_support_vectors(
    device: str, monkeypatch: pytest.MonkeyPatch, sparse: bool
) -> None:
    """In float64: members of which most rows are support vectors, and others, beside K in NumPy."""
    take_profile("cpu8", device, monkeypatch)
    rng, n = np.random.default_rng(3), 300
    X = rng.normal(size=(n, 90)) * (rng.random((n, 90)) < (0.8 if sparse else 1.0))
    kernel = kernels.make("rbf", gamma=0.02)
    K = kernel(X)
    halved = calls_of(monkeypatch, gradients, "_from_tile")
    parts = [(range(40, 250), range(30, 245)), (range(5, 300), range(0, 300, 9)), (range(7), range(3, 160)), ([4], [9])]
    with Stream(device) as stream:
        if not stream.info.fp64:
            pytest.skip("no double precision")
        rows = sp.csr_matrix(X) if sparse else X
        gram = products(stream, rows, kernel, "csr" if sparse else "dense", "float64")
        position = gram.rows.position
        asked, expected = [], []
        for here, support in parts:
            at, of, b, q = np.array(here), np.array(support), rng.normal(size=len(support)), rng.normal(size=len(here))
            asked.append(gradients.GradientRequest(position[at[::-1]], position[of], q, b))
            expected.append(K[np.ix_(at[::-1], of)] @ b + q)
        for most, squares in (64, [210]), (64, [210]), (10**9, []):  # (twice: what products keep is still theirs)
            monkeypatch.setattr(gradients, "MIRRORED", most)
            halved.clear()
            for got, wanted in zip(gradients.responses(gram, asked), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11)
            assert [len(call.given[1].rows) for call in halved] == squares
