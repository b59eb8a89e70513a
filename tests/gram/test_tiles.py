"""Tiles of dense rows in chunks of features, entries that are listed first, and stores that no cache holds: the bits of
the plain way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clsvm import kernels
from clsvm.gram import layouts, programs
from clsvm.gram.layouts import lanes
from clsvm.gram.products import Gram, Store, Update
from clsvm.gram.programs import SLABS
from clsvm.gram.sums import Sums
from clsvm.opencl.profiles import shape_class
from clsvm.opencl.stream import Stream
from tests.conftest import take_profile
from tests.gram.panels import gathered, products, store, stored, tile

FAR = 8 << 20  # bytes of a store beyond which values go past the caches (epilogue.mako)


def rows_of(stream: Stream, X: np.ndarray, kind: str, dtype: str, name: str = "rbf") -> Gram:
    return products(stream, X, kernels.make(name, gamma=0.5 / X.shape[1]), kind, dtype)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "m"), [("rbf", 150), ("rbf", 11), ("laplacian", 150)])
@pytest.mark.parametrize("profile", ["cpu", "cpu8"])
def test_features_in_chunks(
    device: str, monkeypatch: pytest.MonkeyPatch, profile: str, name: str, m: int, dtype: str
) -> None:
    """Of no whole number of chunks, working vectors or lane groups; of all rows, of a panel, and of its half."""
    take_profile(profile, device, monkeypatch)
    n, d = 500, 83
    X = np.random.default_rng(0).normal(size=(n, d))
    found = []
    monkeypatch.setattr(lanes, "UNEVEN", 0)  # (an item of a panel has several tiles, as of many rows)
    for chunk in (10**9, 16):
        monkeypatch.setattr(lanes, "CHUNK", chunk)
        with Stream(device) as stream:
            gram = rows_of(stream, X, "dense", dtype, name)
            made = programs.gram(gram.kernel.spec, "both", "dense", dtype, stream.profile, d, shape_class(m))
            assert (f"-DCHUNK={chunk}" in made.options) == (chunk < d)
            panel, _, count = gathered(stream, gram, m)
            c, kept = stream.wide(np.zeros(gram.rows.n_pad)), store(stream, gram, panel)
            D = stream.wide(np.random.default_rng(1).normal(size=panel.capacity))
            gram.accumulate(panel, count, kept, Update(1, gram.rows.n_pad, c, D, panel.capacity))
            of = gathered(stream, gram, m, square=True)
            whole, half = (tile(stream, gram, of, half=half)[:m, :m] for half in (False, True))
            found.append((stored(stream, gram, kept)[:m], stream.read_wide(c, n), whole, np.tril(half)))
    for whole, cut in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, cut)
    np.testing.assert_array_equal(np.tril(found[0][2]), found[0][3])
    np.testing.assert_allclose(found[1][0], kernels.make(name, gamma=0.5 / d)(X, X[:m]).T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 7])
def test_one_pass_in_chunks(device: str, monkeypatch: pytest.MonkeyPatch, outputs: int) -> None:
    """Forward and back over more vectors and features than a tile takes at a time."""
    take_profile("cpu", device, monkeypatch)
    n, d, m, found = 900, 83, 150, []
    X, V = np.random.default_rng(0).normal(size=(n, d)), np.random.default_rng(1).normal(size=(outputs, m))
    for chunk in (10**9, 16):
        monkeypatch.setattr(lanes, "CHUNK", chunk)
        with Stream(device) as stream:
            gram = rows_of(stream, X, "dense", "float32")
            panel, _, _ = gathered(stream, gram, m, square=True)
            found.append(Sums(gram, panel, m, outputs).forward_back(V))
    K = kernels.make("rbf", gamma=0.5 / d)(X, X[:m])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[1], (V @ K.T) @ K, rtol=0, atol=1e-5 * np.abs((V @ K.T) @ K).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [41, 10])
def test_entries_that_meet_none(device: str, monkeypatch: pytest.MonkeyPatch, m: int, dtype: str) -> None:
    """Long rows of which all entries meet the working vectors, and others of which few do, in turns: the bits of dense
    rows in this order of columns, whichever of both a row comes after."""
    take_profile("cpu", device, monkeypatch)
    n, d, rng = 150, 4000, np.random.default_rng(0)
    thick = np.arange(n) < m - 1
    thick[m:] = rng.random(n - m) < 0.7
    density = np.where(thick[:, None], 0.65, 0.2) * ((np.arange(d) < 1000) == thick[:, None])
    there = rng.random((n, d)) < density
    X, found = (rng.normal(size=(n, d)) * there).astype(dtype), []
    for kind in ("hybrid", "dense"):
        with Stream(device) as stream:
            gram = rows_of(stream, X, kind, dtype, "poly")
            if kind == "hybrid":
                made = layouts.choose(stream.profile, X, gram.kernel.spec, kind).partition
                assert made is not None
                assert 0 < made.dense < d / 2
                X = np.ascontiguousarray(X[:, made.chain])
            panel, _, count = gathered(stream, gram, m)
            kept = store(stream, gram, panel)
            gram.accumulate(panel, count, kept, None)
            found.append(stored(stream, gram, kept)[:m])
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], gram.kernel(X[:m], X), rtol=0, atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["dense", "clustered", "csr", "hybrid"])
def test_values_that_go_past_the_caches(device: str, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str) -> None:
    """In one buffer and in slabs, beside an update and without: the values of small stores, and nothing beyond them."""
    take_profile("cpu", device, monkeypatch)
    n, m, real = 16461, 600, np.dtype(dtype)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.6)
    with Stream(device) as stream:
        gram = rows_of(stream, X, kind, dtype)
        panel, _, count = gathered(stream, gram, m)
        n_pad, slot = gram.rows.n_pad, gram.slot(panel.capacity)
        c, D = stream.wide(np.zeros(n_pad)), stream.wide(np.ones(panel.capacity))
        assert real.itemsize * m * n_pad > FAR
        whole = stream.zeros(real.itemsize * (panel.capacity + 1) * n_pad)
        gram.accumulate(panel, count, Store((whole,), panel.capacity, n_pad, slot), None)
        K = stream.read(whole, real, (panel.capacity + 1, n_pad))
        assert not K[m:].any()
        each = -(-panel.capacity // SLABS)
        slabs = tuple(stream.zeros(real.itemsize * each * n_pad) for _ in range(SLABS))
        gram.accumulate(panel, count, Store(slabs, each, n_pad, slot), Update(1, n_pad, c, D, panel.capacity))
        parts = np.concatenate([stream.read(slab, real, (each, n_pad)) for slab in slabs])
        np.testing.assert_array_equal(parts[:m], K[:m])
        few, _, count = gathered(stream, gram, 40)
        small = store(stream, gram, few)
        gram.accumulate(few, count, small, None)
        np.testing.assert_array_equal(stored(stream, gram, small)[:40], K[:40, gram.rows.position])
        sums = stream.read_wide(c, n_pad)[gram.rows.position]
    np.testing.assert_allclose(sums, K[:m, gram.rows.position].sum(axis=0, dtype=np.float64), rtol=1e-12)


@pytest.mark.parametrize(
    ("of_panel", "groups", "cells", "items"),
    [
        (False, 1000, 1e9, 124),  # four register tiles of two lane groups each, or a little more
        (False, 1000, 8400, 8),  # 8.4 million cells
        (False, 1000, 10, 4),  # one for each compute unit
        (False, 3, 10, 2),  # as many as there are tiles
        (True, 200, 1e9, 100),  # a tile each
        (True, 1000, 8400, 8),
    ],
)
def test_work_items_have_enough_to_do(of_panel: bool, groups: int, cells: float, items: int) -> None:
    stream: Any = SimpleNamespace(compute_units=4)
    assert lanes.DENSE.size(stream, {"GROUPS": 2}, of_panel, groups, cells) == items
    assert lanes.DENSE.size(stream, {}, of_panel, groups, cells) == groups
