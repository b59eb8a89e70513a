"""Clusters of rows of like sparsity: GTSVM's Algorithm 2 on the device against itself in plain NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks import gtsvm
from clsvm import kernels
from clsvm.gram import partition
from clsvm.opencl.stream import Stream
from tests.gram.panels import products


def algorithm_2(pattern: np.ndarray, walk: np.ndarray, size: int, active: int | None) -> list[list[int]]:
    """The paper's, row by row: the members of each cluster in the order they came. A new cluster takes the place of the
    full one among the candidates, and of equal costs the first candidate wins."""
    clusters: list[list[int]] = [[] for _ in range(-(-len(walk) // size))]
    candidates = list(range(min(active or len(clusters), len(clusters))))
    opened = len(candidates)
    for i in walk:
        costs = []
        for c in candidates:
            union = pattern[clusters[c]].any(axis=0)
            costs.append(len(clusters[c]) * (pattern[i] & ~union).sum() + (union & ~pattern[i]).sum())
        at = int(np.argmin(costs))
        clusters[candidates[at]].append(int(i))
        if len(clusters[candidates[at]]) == size:
            if opened < len(clusters):
                candidates[at], opened = opened, opened + 1
            else:
                del candidates[at]
    return clusters


def random_walk(n: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(n)


def members(found: partition.Clusters) -> list[list[int]]:
    places = found.order.reshape(-1, found.size)
    for row in places:  # padding stands behind the rows
        assert not (np.diff((row >= 0).astype(int)) > 0).any()
    return [row[row >= 0].tolist() for row in places]


def check(stream: Stream, X: Any, size: int, active: int | None) -> partition.Clusters:
    """The same rows in the same places as plain Algorithm 2, and the columns they use."""
    found = partition.cluster(stream, X, size, active, "random")
    pattern = (X.toarray() if sp.issparse(X) else X) != 0
    expected = algorithm_2(pattern, random_walk(len(pattern)), size, active)
    assert members(found) == expected
    unions = [pattern[rows].any(axis=0) for rows in expected]
    np.testing.assert_array_equal(found.mask, np.array(unions, bool).reshape(len(expected), X.shape[1]))
    return found


def sparse_rows(n: int, d: int, seed: int, density: float = 0.3) -> np.ndarray:
    """Rows after a few prototypes, some of them empty."""
    rng = np.random.default_rng(seed)
    kinds = rng.random((4, d)) < density
    pattern = kinds[rng.integers(0, 4, n)] ^ (rng.random((n, d)) < 0.1)
    return rng.normal(size=(n, d)) * pattern * (rng.random(n) > 0.1)[:, None]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(0, 90),
    d=st.integers(1, 70),
    size=st.integers(1, 20),
    active=st.sampled_from([1, 2, 5, 16, 17, 64, None]),
    seed=st.integers(0, 5),
    density=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    csr=st.booleans(),
)
@example(n=30, d=32, size=4, active=3, seed=2, density=0.4, csr=False)  # a whole word
@example(n=0, d=5, size=4, active=64, seed=0, density=0.4, csr=True)
@example(n=7, d=5, size=16, active=64, seed=0, density=0.0, csr=False)  # fewer rows than a cluster holds
def test_is_algorithm_2(
    profile: str, n: int, d: int, size: int, active: int | None, seed: int, density: float, csr: bool, stream: Stream
) -> None:
    X = sparse_rows(n, d, seed, density)
    X = X.astype(np.float32) if profile == "gpu-pair" or seed % 2 else X
    check(stream, sp.csr_matrix(X) if csr else X, size, active)


@pytest.mark.oclgrind
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_small_clusters(profile: str, form: Any, stream: Stream) -> None:
    """More slots than work-items, then clusters that do not fill up; a word that is not full."""
    X = sparse_rows(70, 37, 1).astype(np.float32)
    for size, active in ((1, None), (16, 3)):
        check(stream, form(X), size, active)


@pytest.mark.oclgrind
def test_pieces_of_sorted_rows(profile: str, monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    """With many clusters for the active ones rows come sorted, and each piece is clustered on its own."""
    monkeypatch.setattr(partition, "_CROSSING", 1)
    monkeypatch.setattr(partition, "ACTIVE", 2)
    X = sparse_rows(39, 37, 6).astype(np.float32)
    pattern = X != 0
    walk = partition.by_pattern(pattern[:, partition.informative_columns(pattern)])
    expected = [rows for at in (0, 12, 24, 36) for rows in algorithm_2(pattern, walk[at : at + 12], 3, 2)]
    stream.profile = replace(stream.profile, chunks=4)
    assert members(partition.cluster(stream, X, 3, 2)) == expected


def test_explicit_zeros_and_a_centre(stream: Stream) -> None:
    X = sp.csr_matrix(sparse_rows(40, 20, 3))
    X.data[::3] = 0
    centre = np.where(np.arange(20) < 5, 2.0, 0.0)
    assert members(partition.cluster(stream, np.zeros((3, 0)), 2)) == [[0, 1], [2]]  # (no column)
    check(stream, X, 4, 3)
    moved = partition.cluster(stream, X.toarray() + centre, 4, 3, "random", centre)
    np.testing.assert_array_equal(moved.order, partition.cluster(stream, X, 4, 3, "random").order)


def test_sorted_pieces_keep_every_row_and_repeat(stream: Stream) -> None:
    """Many clusters for the active ones: the rows come sorted, in pieces; better than the paper's order there."""
    X = sparse_rows(6000, 40, 4)
    first, again = (partition.cluster(stream, X, 4) for _ in range(2))
    np.testing.assert_array_equal(first.order, again.order)
    assert sorted(first.order.tolist()) == list(range(6000))
    assert gtsvm.nonzeros(first) < gtsvm.nonzeros(partition.cluster(stream, X, 4, order="random"))
    few = partition.cluster(stream, X[:1500], 4)
    np.testing.assert_array_equal(few.order, partition.cluster(stream, X[:1500], 4, order="random").order)


def test_rows_sorted_by_their_pattern() -> None:
    bits = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 0]])
    assert partition.by_pattern(bits).tolist() == [1, 3, 2, 0]
    assert partition.by_pattern(np.zeros((3, 0))).tolist() == [0, 1, 2]
    wide = np.zeros((2, 32))
    wide[0, 31] = 1
    assert partition.by_pattern(wide).tolist() == [1, 0]
    rng = np.random.default_rng(0)
    half, few = rng.random(500) < 0.5, rng.random(500) < 0.05
    sample = np.stack([np.ones(500), few, half, ~half], axis=1)
    # its complement tells nothing more, the full one nothing
    assert partition.informative_columns(sample).tolist() == [2, 1]


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_the_layout_stores_what_the_clusters_use(profile: str, form: Any, stream: Stream) -> None:
    """Padding stands where clusters are not full, also where rows come to the device a few at a time."""
    X = sparse_rows(150, 37, 5).astype(np.float32)
    rbf = kernels.Kernel("rbf", gamma=0.1)
    stream.profile = replace(stream.profile, lanes=16 if profile.startswith("cpu") else 32, cluster=2)
    gram = products(stream, form(X), rbf, "clustered")
    rows, V = gram.rows, gram.rows.lanes
    found = partition.cluster(stream, form(X), 2 * V)
    np.testing.assert_array_equal(rows.order, found.order)
    np.testing.assert_array_equal(rows.order[rows.position], np.arange(150))
    assert rows.stored == 2 * V * found.mask.sum()
    assert "clustered" in rows.describe()
    K = gram.values(gram.of_all(), 150)
    np.testing.assert_allclose(K, rbf(X, X), atol=1e-5)
