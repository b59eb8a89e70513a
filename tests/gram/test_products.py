"""Every kernel function, layout, shape and dtype against the records' own oracles: tile, stored rows and update; and
products that are summed at once, forward, back and both, against NumPy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.host import counting
from clsvm import kernels
from clsvm.gram import layouts, products
from clsvm.gram.cross import Sums
from clsvm.gram.layouts import LAYOUTS, lanes, record
from clsvm.gram.products import Store
from clsvm.gram.programs import SLABS
from clsvm.gram.programs import gram as gram_program
from clsvm.opencl.profiles import PROFILES, shape_class
from clsvm.opencl.stream import Stream
from tests.conftest import simulated, take_profile, thrifty
from tests.gram.panels import chain, gathered, store, stored, summed, tile
from tests.gram.panels import products as products_of

NUMBERS = {"gamma": 0.7, "coef0": 0.3, "degree": 3, "alpha": 1.5}
TOLERANCE = {"float32": 4e-6, "float64": 1e-13}
USUAL = ("rbf", "poly", "laplacian")  # functions of each form, and one with an integer
SIZES = ((1, 3), (17, 1), (17, 5), (300, 21))
ELEMENTWISE = ("laplacian", "dense"), ("laplacian", "csr")
FAR = 8 << 20  # bytes of a store beyond which values go past the caches (epilogue.mako)


def make(name: str) -> kernels.Kernel:
    return kernels.make(name, **{p.name: NUMBERS[p.name] for p in kernels.BUILTIN[name].parameters})


def check(device: str, name: str, kind: str, dtype: str, n: int, d: int, m: int, sparse: bool = False) -> None:
    rng = np.random.default_rng(n + d)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    if kind != "dense":
        X *= rng.random((n, d)) < 0.4
    kernel = make(name)
    X = np.abs(X) if kernel.spec.nonnegative else X
    if LAYOUTS[kind].binary:
        X = (X != 0).astype(float)
    check_kernel(device, kernel, kind, dtype, X, rng.choice(n, min(m, n), replace=False), sparse)


def check_kernel(
    device: str, kernel: kernels.Kernel, kind: str, dtype: str, X: np.ndarray, chosen: np.ndarray, sparse: bool = False
) -> None:
    rng, m = np.random.default_rng(len(X)), len(chosen)
    expected = kernel(X, X[chosen])
    tolerance = TOLERANCE[dtype] * max(1.0, np.abs(expected).max())
    with Stream(device) as stream:
        gram = products_of(stream, sp.csr_matrix(X) if sparse else X, kernel, kind, dtype)
        rows = gram.rows
        found = tile(stream, gram, gathered(stream, gram, chosen, square=True))[:m, :m]
        np.testing.assert_allclose(found, expected[chosen].T, rtol=0, atol=tolerance)

        of = gathered(stream, gram, chosen)
        panel = of.panel
        if panel.capacity * rows.n_pad * np.dtype(dtype).itemsize <= stream.largest:  # (a test makes that small)
            kept = store(stream, gram, panel)
            gram.accumulate(panel, of.count, kept, None)
            np.testing.assert_allclose(stored(stream, gram, kept)[:m], expected.T, rtol=0, atol=tolerance)

        weights = rng.normal(size=(2, m))
        per_slab = -(-panel.capacity // 8)
        slabs = tuple(stream.zeros(per_slab * rows.n_pad * np.dtype(dtype).itemsize) for _ in range(8))
        slots = rng.permutation(panel.capacity).astype(np.int32)
        for kept in (Store(slabs, per_slab, rows.n_pad, stream.upload(slots)), None):
            sums = summed(stream, gram, of, weights, kept)
            np.testing.assert_allclose(sums, weights @ expected.T, rtol=0, atol=2 * m * tolerance)
        for u in range(m):
            slab = stream.read(slabs[slots[u] // per_slab], dtype, (per_slab, rows.n_pad))
            values = slab[slots[u] % per_slab][rows.position]
            np.testing.assert_allclose(values, expected[:, u], rtol=0, atol=tolerance)


@pytest.mark.parametrize("profile_name", ["cpu", "gpu"])
@pytest.mark.parametrize("sparse", [False, True])
def test_terms_of_two_zeros_count(
    device: str, profile_name: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e(0, 0) = 2 for every column that neither row has an entry in, and for none of the padding."""
    take_profile(profile_name, device, monkeypatch)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 21)) * (rng.random((40, 21)) < 0.3)
    kernel = kernels.Kernel.elementwise("cos(x - y) + cos(x * y)", "s * c", c=0.1)
    expected = 0.1 * (np.cos(X[:, None] - X[None]) + np.cos(X[:, None] * X[None])).sum(axis=2)
    assert layouts.names(kernel.spec) == ("dense", "csr", "hybrid")
    np.testing.assert_allclose(kernel(X, X), expected, rtol=1e-12)
    check_kernel(device, kernel, "csr" if sparse else "dense", "float32", X, np.arange(11), sparse)


@pytest.mark.sample(9)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "kind"), [*(("rbf", kind) for kind in LAYOUTS), *ELEMENTWISE])
def test_shapes(device: str, profile: str, name: str, kind: str, dtype: str) -> None:
    if profile == "gpu-pair" and dtype == "float64":
        with pytest.raises(ValueError, match="double precision"):
            check(device, name, kind, dtype, 5, 2, 3)
        return
    for n, d in SIZES:
        check(device, name, kind, dtype, n, d, 70, sparse=n > 200)


SWEPT = [pytest.param(name, marks=pytest.mark.sweep) for name in kernels.BUILTIN if name not in USUAL]


@pytest.mark.full
@pytest.mark.oclgrind
@pytest.mark.parametrize("profile_name", ["cpu", "gpu"])
@pytest.mark.parametrize("name", [*USUAL, *SWEPT])
def test_records(device: str, name: str, profile_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three functions in each layout (the others differ in an expression), in float32, one size class. With CLSVM_SWEEP
    set every function in every dtype and size class; a slow compiler or the simulator has one or two layouts."""
    take_profile(profile_name, device, monkeypatch)
    every, kinds = bool(os.environ.get("CLSVM_SWEEP")), list(layouts.names(kernels.BUILTIN[name]))
    for kind in kinds[USUAL.index(name) :: len(USUAL)] if thrifty(device) else kinds:
        for dtype in ("float32", "float64") if every else ("float32",):
            for working in (2, 9, 18) if every else (9,):
                check(device, name, kind, dtype, 19, 3, working)


@pytest.mark.parametrize("kind", ["dense", "clustered"])
def test_buffers_are_split(device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the largest allocation stand in several buffers, and nothing else changes."""
    monkeypatch.setenv("CLSVM_LARGEST_BUFFER", "65536")
    X = np.random.default_rng(0).normal(size=(2000, 30))
    with Stream(device) as stream:
        rows = layouts.build(stream, X, layouts.choose(stream.profile, X, make("rbf").spec, kind), "float32")
        assert len(rows.parts) > 1
        assert sum(part.groups for part in rows.parts) == rows.n_pad // rows.lanes
    monkeypatch.setenv("CLSVM_LARGEST_BUFFER", "60000")
    check(device, "rbf", kind, "float32", 1200, 30, 8)


@pytest.mark.parametrize("kind", list(LAYOUTS))
@pytest.mark.parametrize("name", ["cpu", "short", "gpu"])
def test_rows_are_padded_to_whole_passes(device: str, monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    """Also where fewer doubles than that are a vector; what pads is nobody's row."""
    monkeypatch.setitem(PROFILES, "short", replace(PROFILES["cpu8"], name="short", lanes=8))
    take_profile(name, device, monkeypatch)
    for dtype in ("float32", "float64"):
        for n in (1, 12, 25, 66):
            X = np.random.default_rng(n).integers(0, 2, (n, 3)).astype(float)
            with Stream(device) as stream:
                plan = layouts.choose(stream.profile, X, make("rbf").spec, kind, all_rows=True)
                rows = layouts.build(stream, X, plan, dtype)
            assert rows.n_pad % record.WHOLE == 0
            assert len(rows.order) == rows.n_pad
            assert sorted(rows.order[rows.order >= 0]) == list(range(n))
            np.testing.assert_array_equal(rows.order[rows.position], np.arange(n))


def test_places_of_a_block_start_again(stream: Stream) -> None:
    """The numbers that tell a block's features from those of earlier ones are used up some time."""
    rng = np.random.default_rng(3)
    X = sp.random(200, 3000, 0.01, "csr", rng=rng)
    kernel = make("rbf")
    gram = products_of(stream, X, kernel, "csr")
    of = gathered(stream, gram, 150, square=True)
    lines = of.panel.nbytes // (4 * of.panel.width)
    for base in (0, 2**31 - 1 - 4 * lines, 0):  # before, across the end, and after it
        of.panel.block.base = base or of.panel.block.base
        gram.gather(*of)
        found = tile(stream, gram, of)[:150, :150]
        np.testing.assert_allclose(found, kernel(X[:150].toarray(), X[:150].toarray()), atol=4e-6)
    assert 0 < of.panel.block.base < 2**31 - 1 - 4 * lines
    with pytest.raises(ValueError, match="buffer for the rows U of a product K\\(X, U\\) is too small"):
        gram.gather(replace(of.panel, nbytes=0), of.places, of.count)


@pytest.mark.parametrize("kind", ["dense", "clustered", "csr"])
def test_long_launches_are_split(device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that shows a screen is reset after two seconds. The bits are the same, in small and in wide tiles."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    X = np.random.default_rng(5).normal(size=(700, 6))
    kernel, found, launches = make("rbf"), [], []
    for longest, units in ((products.MAX_LAUNCH, 1), (1.0, 1), (products.MAX_LAUNCH, 10**6)):
        monkeypatch.setattr(products, "MAX_LAUNCH", longest)
        with Stream(device) as stream:
            stream.compute_units = units  # (one: wide tiles)
            gram = products_of(stream, X, kernel, kind)
            of, D = gathered(stream, gram, 130), np.random.default_rng(6).normal(size=(2, 130))
            kept = store(stream, gram, of.panel)
            with counting() as counts:
                sums = summed(stream, gram, of, D, kept)
            launches.append(counts["launches"])
            found.append((sums, stored(stream, gram, kept)[:130]))
    assert launches[1] >= launches[0] + 4
    for sums, K in found[1:]:
        np.testing.assert_array_equal(sums, found[0][0])
        np.testing.assert_array_equal(K, found[0][1])
    expected = kernel(X[:130], X)
    np.testing.assert_allclose(found[0][1], expected, atol=4e-6)
    np.testing.assert_allclose(found[0][0], D @ expected, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "m"), [("rbf", 150), ("rbf", 11), ("laplacian", 150)])
@pytest.mark.parametrize("profile", ["cpu", "cpu8"])
def test_features_in_chunks(
    device: str, monkeypatch: pytest.MonkeyPatch, profile: str, name: str, m: int, dtype: str
) -> None:
    """No whole number of chunks, vectors or lane groups; all rows, a panel, its half, and one pass forward and back."""
    take_profile(profile, device, monkeypatch)
    n, d, found, kernel = 500, 83, [], kernels.make(name, gamma=0.5 / 83)
    X, V = np.random.default_rng(0).normal(size=(n, d)), np.random.default_rng(2).normal(size=(7, m))
    monkeypatch.setattr(lanes, "UNEVEN", 0)  # (an item of a panel has several tiles, as of many rows)
    for chunk in (10**9, 16):
        monkeypatch.setattr(lanes, "CHUNK", chunk)
        with Stream(device) as stream:
            gram = products_of(stream, X, kernel, "dense", dtype)
            made = gram_program(gram.kernel.spec, "both", "dense", dtype, stream.profile, d, shape_class(m))
            assert (f"-DCHUNK={chunk}" in made.options) == (chunk < d)
            of = gathered(stream, gram, m)
            kept = store(stream, gram, of.panel)
            sums = summed(stream, gram, of, np.random.default_rng(1).normal(size=(1, m)), kept)
            of = gathered(stream, gram, m, square=True)
            whole, half = (tile(stream, gram, of, symmetric=symmetric)[:m, :m] for symmetric in (False, True))
            both = Sums(gram, of.panel, m, len(V)).forward_back(V)
            found.append((stored(stream, gram, kept)[:m], sums, whole, np.tril(half), both))
    for whole, cut in zip(*found, strict=True):
        np.testing.assert_array_equal(whole, cut)
    np.testing.assert_array_equal(np.tril(found[0][2]), found[0][3])
    K = kernel(X, X[:m])
    np.testing.assert_allclose(found[1][0], K.T, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1][4], (V @ K.T) @ K, rtol=0, atol=1e-5 * np.abs((V @ K.T) @ K).max())


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
            gram = products_of(stream, X, kernels.make("poly", gamma=0.5 / d), kind, dtype)
            if kind == "hybrid":
                made = layouts.choose(stream.profile, X, gram.kernel.spec, kind).partition
                assert made is not None
                assert 0 < made.dense < d / 2
                X = np.ascontiguousarray(X[:, chain(made)])
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
        gram = products_of(stream, X, make("rbf"), kind, dtype)
        of = gathered(stream, gram, m)
        panel, _, count = of
        n_pad, slot = gram.rows.n_pad, gram.slot(panel.capacity)
        assert real.itemsize * m * n_pad > FAR
        whole = stream.zeros(real.itemsize * (panel.capacity + 1) * n_pad)
        gram.accumulate(panel, count, Store((whole,), panel.capacity, n_pad, slot), None)
        K = stream.read(whole, real, (panel.capacity + 1, n_pad))
        assert not K[m:].any()
        each = -(-panel.capacity // SLABS)
        slabs = tuple(stream.zeros(real.itemsize * each * n_pad) for _ in range(SLABS))
        (sums,) = summed(stream, gram, of, np.ones((1, m)), Store(slabs, each, n_pad, slot))
        parts = np.concatenate([stream.read(slab, real, (each, n_pad)) for slab in slabs])
        np.testing.assert_array_equal(parts[:m], K[:m])
        few, _, count = gathered(stream, gram, 40)
        small = store(stream, gram, few)
        gram.accumulate(few, count, small, None)
        np.testing.assert_array_equal(stored(stream, gram, small)[:40], K[:40, gram.rows.position])
    np.testing.assert_allclose(sums, K[:m, gram.rows.position].sum(axis=0, dtype=np.float64), rtol=1e-12)


def test_work_items_have_enough_to_do() -> None:
    stream: Any = SimpleNamespace(compute_units=4)
    for symmetric, groups, cells, items in (
        (False, 1000, 1e9, 124),  # four register tiles of two lane groups each, or a little more
        (False, 1000, 8400, 8),  # 8.4 million cells
        (False, 1000, 10, 4),  # one for each compute unit
        (False, 3, 10, 2),  # as many as there are tiles
        (False, 200, 1e9, 24),
        (True, 200, 1e9, 100),  # a tile each
        (True, 1000, 8400, 8),
    ):
        product = "symmetric tile" if symmetric else "tile"
        program = gram_program(kernels.make("rbf").spec, product, "dense", "float32", PROFILES["cpu"], 10)
        numbers = program.numbers | {"GROUPS": 2}
        assert lanes.DENSE.size(stream, numbers, symmetric, groups, cells) == items
        assert lanes.DENSE.size(stream, {}, symmetric, groups, cells) == groups


@contextmanager
def sums(
    device: str, X: Any, centres: Any, kernel: kernels.Kernel, kind: str, dtype: str, k: int, **options: Any
) -> Iterator[Sums]:
    with Stream(device) as stream:
        gram = products_of(stream, X, kernel, kind, dtype)
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
    kernel = kernels.make("rbf", gamma=0.4)
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


@pytest.mark.parametrize(("kind", "dtype"), [("dense", "float32"), ("dense", "float64"), ("csr", "float64")])
def test_sums_stay_accurate(device: str, profile: str, kind: str, dtype: str) -> None:
    """Of many rows in float32: short sums lose less than K itself. Of doubles: every digit."""
    if (profile, dtype) == ("gpu-pair", "float64"):
        pytest.skip("the profile has no double precision")
    rng, n, close = np.random.default_rng(5), *((60000, 2e-6) if dtype == "float32" else (1500, 1e-13))
    X, V = rng.random((n, 2)), rng.normal(size=(2, 30))
    for name in ("rbf",) if dtype == "float32" else ("rbf", "laplacian"):
        kernel = kernels.make(name, gamma=0.5)
        K = kernel(X, X[:30])
        with sums(device, X, np.arange(30), kernel, kind, dtype, 2) as made:
            errors = np.abs(made.forward_back(V) - (V @ K.T) @ K)
        assert errors.max() <= close * np.abs(np.abs(V @ K.T) @ K).max()


@pytest.mark.parametrize("kind", ["dense", "clustered"])
@pytest.mark.parametrize("k", [1, 6])
def test_the_same_bits_whatever_room_there_is(device: str, profile: str, kind: str, k: int) -> None:
    """Of one pass: many launches of one work-item or one of many; the last block and lane group are not whole."""
    if profile.startswith("gpu"):
        pytest.skip("tiles are summed in wide numbers: another tile is another order")
    rng, n, m = np.random.default_rng(8), 2777, 150
    X = rng.random((n, 7)) * (rng.random((n, 7)) < 0.5)
    kernel, V = kernels.make("rbf", gamma=1.5), rng.normal(size=(k, m))
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
    kernel = kernels.make("rbf", gamma=0.3)
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
    kernel = kernels.Kernel("dot / sqrt(xx * yy)")
    K, V = kernel(X, X[:11]), rng.normal(size=(2, 11))
    for keep in (False, True):
        with sums(device, X, np.arange(11), kernel, kind, "float32", 2, keep=keep) as made:
            for _ in range(2):
                np.testing.assert_allclose(made.forward_back(V), (V @ K.T) @ K, rtol=0, atol=2e-3)
            np.testing.assert_allclose(made.back(V @ K.T), (V @ K.T) @ K, rtol=0, atol=2e-3)
