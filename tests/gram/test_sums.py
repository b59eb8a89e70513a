"""Products that are summed at once, forward, back and both, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from clsvm.gram.cross import Sums
from clsvm.kernels import Kernel, make
from clsvm.opencl.stream import Stream
from tests.conftest import simulated, take_profile
from tests.gram.panels import gathered, products


@contextmanager
def sums(
    device: str, X: Any, centres: Any, kernel: Kernel, kind: str, dtype: str, k: int, **options: Any
) -> Iterator[Sums]:
    with Stream(device) as stream:
        gram = products(stream, X, kernel, kind, dtype)
        yield Sums(gram, gathered(stream, gram, centres, square=True).panel, len(centres), k, **options)


@pytest.mark.oclgrind
@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_against_numpy(device: str, profile: str, kind: str, k: int) -> None:
    """Over tiles of a few rows, for outputs in fours and alone."""
    slow = simulated(device)
    if slow and (k != 7 or (profile == "gpu-pair" and kind != "dense")):
        pytest.skip("seven outputs go by fours and alone; pairs of floats differ in arithmetic alone")
    rng, n = np.random.default_rng(9), 40 if slow else 301
    X = rng.normal(size=(n, 6)) * (rng.random((n, 6)) < 0.6)
    m = 9 if slow else 23
    centres = rng.choice(n, m, replace=False)
    kernel = make("rbf", gamma=0.4)
    K = kernel(X, X[centres])
    V, R, w = rng.normal(size=(k, m)), rng.normal(size=(k, n)), rng.random(n)
    with sums(device, X, centres, kernel, kind, "float32", k, tile_bytes=4 * 64 * 64 * 3) as made:
        if not slow:
            np.testing.assert_allclose(made.forward(V), V @ K.T, rtol=0, atol=2e-5)
            np.testing.assert_allclose(made.back(R), R @ K, rtol=0, atol=2e-4)
            np.testing.assert_allclose(made.forward_back(V), (V @ K.T) @ K, rtol=0, atol=2e-3)
        made.set_weights(w)
        both = made.forward_back(V)
        np.testing.assert_allclose(both, (w * (V @ K.T)) @ K, rtol=0, atol=2e-3)
        if not slow:
            np.testing.assert_array_equal(made.forward_back(V), both)


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_in_float64(device: str, name: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Every digit that sums of doubles have."""
    take_profile(name, device, monkeypatch)
    rng, n = np.random.default_rng(3), 1500
    X, centres = rng.normal(size=(n, 3)), np.arange(40)
    for kernel in (make("rbf", gamma=0.2), make("laplacian", gamma=0.2)):
        K, V = kernel(X, X[centres]), rng.normal(size=(3, 40))
        with sums(device, X, centres, kernel, kind, "float64", 3) as made:
            np.testing.assert_allclose(made.forward_back(V), (V @ K.T) @ K, rtol=1e-11, atol=1e-9)


def test_sums_stay_accurate(device: str, profile: str) -> None:
    """Of many rows in float32: short sums lose less than K itself."""
    rng, n = np.random.default_rng(5), 60000
    X, centres = rng.random((n, 2)), np.arange(30)
    kernel = make("rbf", gamma=0.5)
    V = rng.normal(size=(2, 30))
    with sums(device, X, centres, kernel, "dense", "float32", 2) as made:
        K = kernel(X, X[centres])
        expected = (V @ K.T) @ K
        found = made.forward_back(V)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(np.abs(V @ K.T) @ K).max()


@pytest.mark.parametrize("kind", ["dense", "clustered"])
@pytest.mark.parametrize("k", [1, 6])
def test_the_same_bits_whatever_room_there_is(device: str, profile: str, kind: str, k: int) -> None:
    """Of one pass: many launches of one work-item or one of many; the last block and lane group are not whole."""
    if profile.startswith("gpu"):
        pytest.skip("tiles are summed in wide numbers: another tile is another order")
    rng, n, m = np.random.default_rng(8), 2777, 150
    X = rng.random((n, 7)) * (rng.random((n, 7)) < 0.5)
    kernel, V = make("rbf", gamma=1.5), rng.normal(size=(k, m))
    K = kernel(X, X[:m])
    found = []
    for room in (1 << 17 if k == 1 else 1 << 18, 1 << 20, None):
        with sums(device, X, np.arange(m), kernel, kind, "float32", k, tile_bytes=room) as made:
            found.append(made.forward_back(V))
    np.testing.assert_allclose(found[0], (V @ K.T) @ K, rtol=0, atol=3e-6 * np.abs(np.abs(V @ K.T) @ K).max())
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.oclgrind
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("k", [1, 5])
def test_weights_of_each_output_and_coupled_ones(device: str, profile: str, keep: bool, k: int) -> None:
    """H of a row is a number, one for each output, or couples them; from values that are made or that were kept."""
    slow = simulated(device)
    if slow and (profile == "gpu-pair" or k == 1):
        pytest.skip("enough of it is simulated without")
    rng, n, m = np.random.default_rng(2), 70 if slow else 333, 7 if slow else 30
    X = rng.normal(size=(n, 4))
    kernel = make("rbf", gamma=0.3)
    K, V, R = kernel(X, X[:m]), rng.normal(size=(k, m)), rng.normal(size=(k, n))
    w, shares = rng.random((k, n)), rng.dirichlet(np.ones(k), n).T
    with sums(device, X, np.arange(m), kernel, "dense", "float32", k, tile_bytes=4 * 64 * 64 * 3, keep=keep) as made:
        made.set_weights(w)
        close = {"rtol": 0, "atol": 2e-3}
        for _ in range(2):  # (the second time they are there)
            np.testing.assert_allclose(made.forward_back(V), (w * (V @ K.T)) @ K, **close)
        made.set_weights(w[0], shares=shares)
        T = V @ K.T
        coupled = w[0] * shares * (T - (shares * T).sum(axis=0))
        first = made.forward_back(V)
        np.testing.assert_allclose(first, coupled @ K, **close)
        if not slow:
            np.testing.assert_array_equal(made.forward_back(V), first)
            np.testing.assert_allclose(made.forward(V), T, rtol=0, atol=2e-5)
            np.testing.assert_allclose(made.back(R), R @ K, rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid", "inverted"])
def test_no_value_at_zero_rows(device: str, profile: str, kind: str) -> None:
    """Padding rows are zero, for which a kernel function need not have a value."""
    rng = np.random.default_rng(4)
    X = rng.random((77, 5)) + 0.1
    kernel = Kernel("dot / sqrt(xx * yy)")
    K, V = kernel(X, X[:11]), rng.normal(size=(2, 11))
    for keep in (False, True):
        with sums(device, X, np.arange(11), kernel, kind, "float32", 2, keep=keep) as made:
            for _ in range(2):
                np.testing.assert_allclose(made.forward_back(V), (V @ K.T) @ K, rtol=0, atol=2e-3)
            np.testing.assert_allclose(made.back(V @ K.T), (V @ K.T) @ K, rtol=0, atol=2e-3)


def test_a_panel_of_two_is_refused(device: str) -> None:
    X = np.eye(5)
    with Stream(device) as stream:
        gram = products(stream, X, make("rbf"), "auto")
        if (panel := gram.panel(2)).capacity % 4:
            with pytest.raises(ValueError, match="a panel of 2 right-hand rows is not whole lane groups"):
                Sums(gram, panel, 2, 1)
