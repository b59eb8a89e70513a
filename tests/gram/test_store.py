"""Kernel values that are given, as a matrix or by a function of the caller's; and machines of one class against the
rest. Against the same machines on rows, and scikit-learn's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.metrics.pairwise import rbf_kernel

import clsvm
from clsvm import SVC, SVR, NuSVC
from clsvm.gram import programs, store
from clsvm.gram.layouts.panel import PanelPair
from clsvm.gram.products import Update
from clsvm.opencl.stream import Stream
from tests.conftest import calls_of, noisy
from tests.gram.panels import gathered, products, tile

TOL = 1e-5


def rbf(X: Any, Y: Any) -> np.ndarray:
    return np.asarray(rbf_kernel(X, Y, gamma=0.3))


def of_classes(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(3).normal(size=(n, 3))
    score = X[:, 0] + 0.5 * X[:, 1] ** 2
    return X, np.digitize(score, np.quantile(score, np.arange(1, k) / k))


@pytest.mark.oclgrind
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(profile: str, dtype: str, stream: Stream) -> None:
    """The methods that solvers call, on one row more than whole vectors have; rows of -1 are no rows."""
    n = 33
    K = np.random.default_rng(0).normal(size=(n, n))
    K = (K + K.T).astype(dtype)
    gram, rows = store.precomputed(stream, K, dtype), [32, 0, 7]
    of = gathered(stream, gram, rows, square=True)
    panel, at, count = of
    found = tile(stream, gram, of)
    np.testing.assert_array_equal(found[:3, :3], K[np.ix_(rows, rows)])
    assert not found[3:].any()
    assert not found[:, 3:].any()
    weights = np.zeros((2, panel.capacity))
    weights[:, :3] = [[1, -2, 0.5], [0, 3, 1]]
    D, c = stream.wide(weights), stream.zeros(8 * 2 * gram.rows.n_pad)
    gram.accumulate(panel, count, None, Update(2, gram.rows.n_pad, c, D, panel.capacity))
    sums = stream.read_wide(c, (2, gram.rows.n_pad))[:, :n]
    np.testing.assert_allclose(sums, weights[:, :3] @ K[rows].astype(np.float64), rtol=1e-12, atol=1e-12)
    answers = stream.zeros(8 * panel.capacity)
    gram.between(PanelPair(panel, at, panel, count), None, Update(1, panel.capacity, answers, D, panel.capacity))
    expected = K[np.ix_(rows, rows)].astype(np.float64) @ weights[0, :3]
    np.testing.assert_allclose(stream.read_wide(answers, panel.capacity)[:3], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", ["dense", "clustered", "csr"])
def test_tiles_of_rows_whose_k_is_there(
    profile: str, kind: str, symmetric: bool, monkeypatch: pytest.MonkeyPatch, stream: Stream
) -> None:
    """They are picked from K, or made of vectors that are cheap, to the same values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 7)) * (rng.random((100, 7)) < 0.5)
    kernel = clsvm.kernels.make("rbf", gamma=0.3)
    made, tiles = products(stream, X, kernel, kind), []
    spared = calls_of(monkeypatch, made, "tile")
    for cost in (0.0, np.inf):
        monkeypatch.setattr(programs, "gather_cost", lambda profile, n, W, cost=cost: cost)
        gram = store.computed(made, tiles=True)
        assert gram.rows.tile_cost == min(cost, made.rows.tile_cost)
        rows = rng.permutation(100)[:30] if not tiles else tiles[0][0]
        of = gathered(stream, gram, rows, square=True)
        found = tile(stream, gram, of, symmetric=symmetric)[:30, :30]
        tiles.append((rows, np.tril(found) if symmetric else found))
    assert len(spared) == 1
    np.testing.assert_allclose(tiles[0][1], tiles[1][1], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("make", [SVC, NuSVC])
def test_classifiers(device: str, make: Callable[..., Any], k: int, dtype: str) -> None:
    X, y = of_classes(150, k)
    K, options = rbf(X, X), {"tol": TOL, "decision_function_shape": "ovo", **({"nu": 0.3} if make is NuSVC else {})}
    ours = make(kernel="precomputed", dtype=dtype, device=device, **options).fit(K, y)
    theirs = getattr(svm, make.__name__)(kernel="precomputed", **options).fit(K, y)
    np.testing.assert_allclose(ours.decision_function(K), theirs.decision_function(K), atol=3e-3)
    for name in ("support_", "n_support_"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.dual_coef_.shape == theirs.dual_coef_.shape
    assert ours.support_vectors_.shape == theirs.support_vectors_.shape == (0, 0)
    assert ours.fit_report_.converged
    with pytest.warns(UserWarning, match="on the host"):
        by_function = make(kernel=rbf, dtype=dtype, device=device, **options).fit(X, y)
    np.testing.assert_allclose(by_function.decision_function(X), ours.decision_function(K), atol=1e-9)
    np.testing.assert_array_equal(by_function.support_vectors_, X[by_function.support_])


@pytest.mark.parametrize("most", [4096, 32])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_against_the_rest(device: str, monkeypatch: pytest.MonkeyPatch, most: int, sparse: bool) -> None:
    """Solved whole side by side, and one after another over the same rows."""
    monkeypatch.setattr("clsvm.solvers.batch.max_rows", lambda stream: most)
    X, y = of_classes(200, 4)
    rows = sp.csr_matrix(X) if sparse else X
    weights = np.random.default_rng(1).choice([0.5, 1.0, 2.0], 200)
    labels = np.array(["d", "a", "c", "b"])[y]
    ours = SVC(multi_class="ovr", gamma=0.3, tol=TOL, device=device).fit(rows, labels, weights)
    theirs = [
        svm.SVC(gamma=0.3, tol=TOL).fit(X, labels == name, weights).decision_function(X) for name in ours.classes_
    ]
    np.testing.assert_allclose(ours.decision_function(rows), np.stack(theirs, axis=1), atol=2e-3)
    np.testing.assert_array_equal(ours.predict(rows), ours.classes_[np.argmax(theirs, axis=0)])
    assert ours.dual_coef_.shape == (4, len(ours.support_))
    assert ours.intercept_.shape == ours.n_iter_.shape == (4,)
    assert ours.fit_report_.converged


def test_two_classes_need_no_rest(device: str) -> None:
    X, y = noisy(80, 3)
    one = SVC(multi_class="ovr", device=device).fit(X, y)
    np.testing.assert_array_equal(one.decision_function(X), SVC(device=device).fit(X, y).decision_function(X))


def values(X: Any, Y: Any) -> Any:
    return np.arange(len(X) * len(Y), dtype=float).reshape(len(X), len(Y))


@pytest.mark.filterwarnings("ignore:kernel is a Python function")
@pytest.mark.parametrize(
    ("kernel", "X", "words"),
    [
        ("precomputed", np.ones((6, 5)), "square matrix. Input is a 6x5 matrix"),
        ("precomputed", np.arange(36.0).reshape(6, 6), "not symmetric: .* by up to 25"),
        ("precomputed", np.full((6, 6), 1e300), "1e\\+300 is too large for float32"),
        (lambda X, Y: values(X, Y)[:, :1], np.ones((6, 2)), "must return 6x6 values, got \\(6, 1\\)"),
        (values, np.ones((6, 2)), "not symmetric"),
        (lambda X, Y: values(X, Y) + np.inf, np.ones((6, 2)), "must return finite numbers, got NaN or infinity"),
        (lambda X, Y: X @ Y.T + 0j, np.ones((6, 2)), "real.*got complex128"),
    ],
)
def test_bad_values(device: str, kernel: Any, X: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SVC(kernel=kernel, device=device, working_set_size=4).fit(X, [0, 1] * 3)


def test_bad_calls(device: str) -> None:
    K = np.eye(6)
    with pytest.raises(TypeError, match="dense data is required"):
        SVC(kernel="precomputed", device=device).fit(sp.csr_matrix(K), [0, 1] * 3)
    model = SVC(kernel="precomputed", device=device).fit(K, [0, 1] * 3)
    with pytest.raises(ValueError, match="6 features"):
        model.predict(K[:, :5])
    with pytest.raises(AttributeError, match="linear"):
        _ = model.coef_
    with pytest.raises(ValueError, match="precision must be 'float32' or 'fast', got 'half'"):
        SVR(precision="half", device=device).fit(K, [0.0, 1.0] * 3)
    with pytest.raises(ValueError, match="multi_class must be 'ovo', 'ovr' or 'crammer_singer', got 'all'"):
        SVC(multi_class="all", device=device).fit(K, [0, 1] * 3)
    with pytest.raises(ValueError, match="memory_limit"):
        SVC(kernel="precomputed", device=device, memory_limit="1MB").fit(np.eye(1200), [0, 1] * 600)
    with pytest.raises(ValueError, match="kernel values in at least 6 columns, got the shape \\(1, 3\\)"):
        model.model_.decision_function(np.ones((1, 3)))
