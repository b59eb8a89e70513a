"""Rows of any size and of any number of columns: float64 where float32 is too coarse, and memory for what is there."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.check import check
from clsvm import SVC, Kernel, kernel_matrix
from clsvm.gram import exact, layouts, precision
from clsvm.kernels import BUILTIN, make, underflow
from clsvm.opencl import devices
from clsvm.opencl.stream import Stream
from tests.conftest import noisy, thrifty

WIDE = 2**30  # columns


def long_values(kernel: Kernel, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """K(X, Y) in long double."""
    X, Y, spec = X.astype(np.longdouble), Y.astype(np.longdouble), kernel.spec
    x, y = X[:, None], Y[None]
    xx, yy = (np.square(one).sum(axis=2) for one in (x, y))
    values = {"dot": X @ Y.T, "sqdist": np.square(x - y).sum(axis=2), "xx": xx, "yy": yy, **kernel.params}
    with np.errstate(invalid="ignore", divide="ignore"):
        if spec.element:
            values["s"] = spec.element.evaluate({"x": x, "y": y, **kernel.params}).sum(axis=2)
        return np.asarray(spec.expression.evaluate(values), np.longdouble)


def decided(model: Any, T: np.ndarray) -> np.ndarray:
    """Decision values in long double, by the support vectors."""
    K = long_values(model.model_.kernel, T, model.support_vectors_)
    return K @ model.dual_coef_.T.astype(np.longdouble)[:, :1].ravel() + model.intercept_[0]


@pytest.mark.sample(9)
@pytest.mark.parametrize("far", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("kernel", [make("linear"), make("poly", degree=2, gamma=1.0, coef0=1.0)], ids=lambda k: k.name)
def test_rows_beyond_the_support_vectors(device: str, profile: str, kernel: Kernel, far: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X[:, 0] + 0.5 * rng.normal(size=200) > 0
    model = SVC(C=10, kernel=kernel, device=device).fit(X, y)
    T = rng.normal(size=(100, 3)) * far
    if kernel.name == "linear":  # near the boundary, however far out
        w = model.dual_coef_[0] @ model.support_vectors_
        T += (rng.normal(size=(100, 1)) - T @ w[:, None]) * w / (w @ w)
    values, expected = model.decision_function(T), decided(model, T)
    largest = np.abs(expected).max()
    assert np.abs(values - expected).max() <= precision.DECISION_ERROR + 1e-11 * largest
    if profile != "gpu-pair":  # (on the host sums of a batch are grouped otherwise)
        np.testing.assert_array_equal(model.decision_function(T[17:18]), values[17:18])


def test_far_rows_of_several_classes(device: str, profile: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 3)), np.arange(90) % 3
    X[np.arange(90), y] += 2
    T = np.concatenate([X[:5], X[:5] * 1e4])
    for shape in ("ovr", "ovo"):
        model = SVC(kernel="linear", multi_class=shape, decision_function_shape=shape, device=device).fit(X, y)
        together = model.model_.decision_function(T)
        apart = np.concatenate([model.model_.decision_function(T[:5]), model.model_.decision_function(T[5:])])
        np.testing.assert_allclose(together, apart, rtol=1e-12)
        assert (np.sign(together[:, 0]) != 0).all()
        slope, level = model.model_.decision_function(X[:5] * 2e4) / 2e4, together[5:] / 1e4
        np.testing.assert_allclose(slope, level, atol=1e-3)


POWERS, RATIO = "(1 + dot) ** 20 / (1 + xx) ** 10 / (1 + yy) ** 10", "dot / sqrt(xx * yy)"


@pytest.mark.parametrize(
    ("kernel", "scale", "close"),
    [
        (Kernel(POWERS), 30.0, 1e-5),
        *((Kernel(RATIO), scale, 1e-5) for scale in (1e-13, 1e-11, 3e9, 1e10, 1e15)),
        *(("cosine", scale, 1e-7) for scale in (1.6e-19, 1e-25)),
        ("rbf", 1e-19, 1e-7),
    ],
)
def test_inner_values_that_leave_float32s_range(device: str, kernel: Any, scale: float, close: float) -> None:
    """K is moderate, what it is computed of is not: float64 is taken, for the fit, for answers and for K itself."""
    X, y = noisy(60, 3)
    if thrifty(device) and (1e-13 < scale < 30 or scale > 30):
        pytest.skip("a slow compiler is spared most")
    X = X * scale
    model = SVC(C=10, kernel=kernel, device=device).fit(X, y)
    kernel = model.model_.kernel
    true = long_values(kernel, X, X)
    for dtype, most in (("float32", close), ("float64", 1e-12)):
        K = kernel_matrix(X, kernel=kernel, device=device, dtype=dtype)
        assert K.dtype == dtype
        np.testing.assert_allclose(K, true.astype(float), atol=most)
    assert model.fit_report_.converged
    assert check(model, true, y).violation <= 1.2e-3
    np.testing.assert_allclose(model.decision_function(X), decided(model, X).astype(float), atol=min(1e-5, 10 * close))


@pytest.mark.parametrize(
    ("kernel", "far"),
    [
        (Kernel("exp(-sqdist)"), 1e9),
        (Kernel("exp(-sqdist)"), 1e15),
        (Kernel.elementwise("exp(-(x - y) ** 2)", "s"), 1e6),
        (Kernel.elementwise("exp(-(x - y) ** 2)", "s"), 1e8),
    ],
)
def test_a_support_vector_far_from_the_others(device: str, kernel: Kernel, far: float) -> None:
    """It takes digits from distances made of inner products, and from its columns, which stand less their mean."""
    X, y = noisy(60, 3)
    X[0] *= far
    model = SVC(C=10, kernel=kernel, device=device).fit(X, y)
    squares = np.square(X[:, None] - model.support_vectors_[None])
    K = np.exp(-squares).sum(axis=2) if kernel.spec.element else np.exp(-squares.sum(axis=2))
    np.testing.assert_allclose(model.decision_function(X), K @ model.dual_coef_[0] + model.intercept_, atol=5e-3)


def test_answers_that_are_not_finite_are_errors(device: str) -> None:
    """A row far from those of the fit is answered in float64, and refused where that does not hold it either."""
    X, y = noisy(60, 3)
    model = SVC(C=10, kernel=Kernel("dot / sqrt(xx * yy)"), device=device).fit(X, y)
    near = model.decision_function(X[:3])
    np.testing.assert_allclose(model.decision_function(X[:3] * 1e30), near, atol=1e-5)
    with pytest.raises(ValueError, match=r"of rows and support vectors from \S+ to \S+: .* leave the range of float64"):
        model.predict(np.concatenate([X[:1], X[:1] * 1e30, X[1:2] * 1e-160]))
    pole = SVC(kernel=Kernel("dot + where(xx + yy > 1e9, log(dot), 0)"), device=device).fit(X, y)
    with pytest.raises(ValueError, match="is not finite for some rows and support vectors"):
        pole.predict(np.concatenate([X[:2], X[:1] * 1e6]))


def test_small_rows_where_it_does_not_matter(device: str) -> None:
    X, y = noisy(60, 3)
    X[3] = 0
    X[4] *= 1e-25
    report = SVC(gamma=0.5, device=device, layout="dense").fit(np.tile(X, (5, 1)), np.tile(y, 5)).fit_report_
    assert report.dtype == "float32"
    assert np.isfinite(kernel_matrix(X, kernel="linear", device=device)).all()


@contextmanager
def grows(most: int) -> Iterator[None]:
    """What is inside takes at most so many bytes for NumPy's arrays at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("kernel", [make("rbf", gamma=0.01), make("laplacian", gamma=0.01)], ids=lambda k: k.name)
def test_sums_on_the_host_keep_to_the_memory(device: str, form: Any, kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    n = 1500 if kernel.name == "rbf" else 300
    X = rng.normal(size=(n, 40)) * (rng.random((n, 40)) < 0.5)
    b = rng.normal(size=(2, n))
    plan = layouts.Plan("dense", np.zeros(40), "")
    expected = b @ kernel(X)
    with Stream(device, "1MB") as stream, grows(8 << 20):  # (all of K takes 18 MB, all rows and two copies 1.4)
        c = exact.responses(stream, kernel, plan, form(X), form(X), b)
        assert 0 < stream.peak <= 1_000_000
    np.testing.assert_allclose(c, expected, atol=1e-9)


def wide_rows(n: int, seed: int, d: int = WIDE) -> sp.csr_matrix:
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.choice(400, (n, 20)) * (d // 401) + 7, axis=1)
    return sp.csr_matrix((rng.random(n * 20), (np.repeat(np.arange(n), 20), columns.ravel())), shape=(n, d))


def narrow(*parts: sp.csr_matrix) -> list[np.ndarray]:
    """The same rows over the columns that occur in some of them."""
    used, place = np.unique(np.concatenate([part.indices for part in parts]), return_inverse=True)
    places = np.split(place, np.cumsum([part.nnz for part in parts])[:-1])
    pairs = zip(parts, places, strict=True)
    return [sp.csr_matrix((p.data, at, p.indptr), (p.shape[0], len(used))).toarray() for p, at in pairs]


@pytest.mark.parametrize("name", ["linear", "rbf", "laplacian"])
def test_memory_goes_with_the_entries_and_not_the_columns(device: str, name: str) -> None:
    X, few, more = wide_rows(60, 0), wide_rows(5, 1), wide_rows(50, 2)
    more = sp.csr_matrix((more.data, more.indices + 1, more.indptr), shape=more.shape)  # columns that X does not have
    both = few + more[:5]
    y = np.arange(60) % 2
    dense, *tests = narrow(X, few, more, both)
    expected = SVC(kernel=name, gamma=0.1, device=device).fit(dense, y)
    with grows(20 << 20):
        model = SVC(kernel=name, gamma=0.1, device=device, memory_limit="200MB").fit(X, y)
        values = [model.decision_function(rows) for rows in (few, more, both, few)]
        K = kernel_matrix(X, more, name, device=device, **({"gamma": 0.1} if name != "linear" else {}))
        host = model.model_.kernel(X, more)
    assert model.support_vectors_.shape == (len(model.support_), WIDE)
    np.testing.assert_allclose(model.dual_coef_, expected.dual_coef_, atol=2e-2)
    np.testing.assert_array_equal(values[0], values[3])  # the layout in between was of more columns
    for got, rows in zip(values, (*tests, tests[0]), strict=True):
        own = model.model_.kernel(rows, dense[model.support_]) @ model.dual_coef_[0] + model.intercept_
        np.testing.assert_allclose(got, own, atol=1e-5)
    np.testing.assert_allclose(K, model.model_.kernel(dense, tests[1]), atol=1e-5)
    np.testing.assert_allclose(host, model.model_.kernel(dense, tests[1]), atol=1e-12)


def test_columns_of_zeros_count_where_they_do() -> None:
    kernel = Kernel.elementwise("exp(-abs(x - y))", "s / 1000")
    X, Y = wide_rows(6, 0, 5000), wide_rows(4, 1, 5000)
    np.testing.assert_allclose(kernel(X, Y), kernel(X.toarray(), Y.toarray()), rtol=1e-12)
    for one in (kernel, make("rbf"), make("laplacian")):
        np.testing.assert_allclose(one.sizes(X), one.sizes(X.toarray()), rtol=1e-6)
    assert not kernel.of_entries
    assert all(make(name).of_entries for name in BUILTIN)


def test_sparse_rows_without_an_entry(device: str) -> None:
    rng = np.random.default_rng(0)
    X, zeros = sp.random(40, 6, density=0.4, random_state=0, format="csr"), sp.csr_matrix((2, 6))
    for kernel in (make("linear"), make("rbf", gamma=1.0)):
        model = SVC(kernel=kernel, device=device).fit(X, rng.integers(2, size=40))
        among = model.decision_function(sp.vstack([X, zeros]))
        np.testing.assert_array_equal(model.decision_function(zeros), among[-2:])
        K = kernel_matrix(zeros, X, kernel=kernel, device=device)
        np.testing.assert_allclose(K, kernel(zeros, X), rtol=1e-5)
    assert underflow("float32", 10) == 10 * float(np.finfo(np.float32).tiny)


@pytest.mark.parametrize("name", BUILTIN)
def test_a_bound_of_the_rounding_errors(device: str, name: str) -> None:
    """Of sums of any length, against long double, on the device and on the host."""
    if thrifty(device) and name not in ("linear", "rbf", "matern52", "laplacian"):
        pytest.skip("a slow compiler is spared most")
    spec, names, worst = BUILTIN[name], {parameter.name for parameter in BUILTIN[name].parameters}, 0.0
    dtypes = ["float32", "float64"] if devices.find(device).fp64 else ["float32"]
    for d, scale, offset in ((2, 1.0, 0.0), (30, 30.0, 50.0), (30, 0.01, 1.0), (400, 1.0, 3.0), (400, 30.0, 0.0)):
        rng = np.random.default_rng(d)
        X = (rng.normal(size=(40, d)) + offset) * scale
        X[20:] = X[:20] + 1e-3 * scale * rng.normal(size=(20, d))  # pairs of near rows
        X = (np.abs(X) if spec.nonnegative else X).astype(np.float32).astype(np.float64)
        chosen: dict[str, Any] = {"gamma": 3 / (d * X.var()), "coef0": 1.0, "degree": 3}
        kernel = make(name, **{key: value for key, value in chosen.items() if key in names})
        centre = X.mean(axis=0) if spec.of_distance else np.zeros(d)  # as the dense layout has it
        size, expected = kernel.sizes(X - centre).max(), long_values(kernel, X, X)
        host = kernel.evaluate(X - centre, X - centre)
        for dtype in dtypes:
            eps, K = float(np.finfo(dtype).eps), kernel_matrix(X, kernel=kernel, device=device, dtype=dtype)
            bound = eps * kernel.rounding(size, eps, terms=d)
            worst = max(worst, float(np.abs(K - expected).max()) / bound)
            if dtype == "float64":
                worst = max(worst, float(np.abs(host - expected).max()) / bound)
    assert worst <= 1
