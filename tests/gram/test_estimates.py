"""What a value of K costs in each layout, by the profile's rates: the estimates that "auto" goes by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import SVC
from clsvm.gram import layouts
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.record import Survey
from clsvm.kernels import make
from clsvm.opencl.profiles import PROFILES, Profile
from tests.conftest import noisy, take_profile

FREE = replace(PROFILES["cpu"], step_cost=0.0, value_cost=0.0)  # of which only cells and entries take time
N, D = 20000, 100


def survey(profile: Profile, density: np.ndarray, working: int = 512) -> Survey:
    return Survey(profile, sp.csr_matrix((N, len(density))), density, working)


def cost(name: str, of: Survey) -> float:
    found = LAYOUTS[name].cost(of)
    assert found is not None
    return found


def test_an_entry_takes_longer_in_a_narrow_panel() -> None:
    """Half of it is its block's: of 64 vectors, or of the 16 that a vector of the device holds."""
    density = np.full(D, 0.1)
    for working, width, times in (512, 64, 1.0), (64, 64, 1.0), (17, 64, 1.0), (16, 16, 2.5), (3, 16, 2.5):
        filled = 12000 / width * D * (1 - 0.9**width) / N  # (of a block: the lines of columns that a vector has)
        assert cost("csr", survey(FREE, density, working)) == pytest.approx(10 * times * FREE.csr_cost + filled)


def test_few_working_vectors_wait_for_memory() -> None:
    """A cell of rows takes a third longer, where a core computes, of dense rows half as long again; finding a column's
    rows takes longer still."""
    density, group = np.full(D, 0.1), replace(FREE, shape="group")
    full = np.concatenate([np.ones(10), np.full(90, 0.01)])
    for working, times, dense, found in (17, 1.0, 1.0, 60), (16, 4 / 3, 1.5, 105):
        assert cost("dense", survey(FREE, density, working)) == pytest.approx(dense * D)
        assert cost("dense", survey(group, density, working)) == D
        clusters = survey(FREE, np.zeros(256), working)
        vars(clusters)["fill"] = 100.0
        assert cost("clustered", clusters) == pytest.approx(times * 100 * FREE.clustered_cost)
        entries = cost("csr", survey(FREE, full[10:], working))
        whole = times * 10 * FREE.hybrid_cost
        assert cost("hybrid", survey(FREE, full, working)) == pytest.approx(1.05 * (whole + entries))
        expected = times * 1.05 * FREE.hit_cost * (D * 0.01 + found * 10 / 16384)
        assert cost("inverted", survey(FREE, density, working)) == pytest.approx(expected)
        met = FREE.hit_cost * (90 * 1e-4 + found * 0.9 / 16384)
        expected = times * 1.05 * (10 * FREE.hybrid_cost + met)
        assert cost("inverted", survey(FREE, full, working)) == pytest.approx(expected)


def test_columns_whose_lines_no_cache_holds() -> None:
    """Of 64 vectors, nearly all of those beyond 4096 are in the block: their entries take four times as long. Of 16
    four times as many lines are in the cache."""
    density = np.full(5000, 0.5)
    expected = FREE.csr_cost * (2500 + 3 * 904 / 2) + 12000 / 64 * 5000 / N
    assert cost("csr", survey(FREE, density)) == pytest.approx(expected)
    less = 3 * FREE.csr_cost * 452
    assert cost("csr", survey(replace(FREE, shape="group"), density)) == pytest.approx(expected - less)
    for d, far in (16384, 0), (16385, 0.5):
        expected = 2.5 * FREE.csr_cost * (d / 2 + 3 * far) + 12000 / 16 * d / N
        assert cost("csr", survey(FREE, np.full(d, 0.5), 16)) == pytest.approx(expected, rel=1e-5)


def test_whole_columns_are_worth_their_start() -> None:
    """Ten full columns gain 10 (csr_cost - hybrid_cost) where they are whole; half of value_cost is what they take."""
    density = np.concatenate([np.ones(10), np.full(90, 0.01)])
    gained = 10 * (FREE.csr_cost - FREE.hybrid_cost)
    for value_cost, dense in (1.9 * gained, 10), (2.1 * gained, 0):
        profile = replace(FREE, value_cost=value_cost)
        found = LAYOUTS["hybrid"].cost(survey(profile, density))
        assert (found is not None) == (dense > 0)
        X = sp.csr_matrix(np.tile(density >= 1, (5, 1)).astype(np.float32))
        assert layouts.choose(profile, X, make("rbf").spec, "hybrid").partition.dense == dense  # type: ignore[union-attr]
    both = survey(replace(FREE, value_cost=gained), density)
    rest = 0.9 * FREE.csr_cost + 12000 / 64 * 90 * (1 - 0.99**64) / N
    assert cost("hybrid", both) == pytest.approx(1.05 * (10 * FREE.hybrid_cost + rest + (1.4 + 0.5) * gained))


def test_inverted_rows_cost_what_meets() -> None:
    """A column of density p meets p^2 times, and each of a working vector's entries finds its column in a block."""
    density = np.full(D, 0.1)
    expected = 1.05 * FREE.hit_cost * (D * 0.01 + 60 * 10 / 16384)
    assert cost("inverted", survey(FREE, density)) == pytest.approx(expected)
    assert LAYOUTS["inverted"].cost(survey(PROFILES["gpu"], density)) is None


def test_clusters_that_leave_out_many_columns_read_here_and_there() -> None:
    """A panel's lines are fetched in order where a cluster has all columns; each is read for a first time."""
    one, first = survey(FREE, np.zeros(4096)), 600 * 4096 / N * (1 - 256 / 4096)
    for fill, times in (4096.0, 1.0), (4096.0 - 1024, 1.0), (1024.0, 1 + 2048 / 1280):
        vars(one)["fill"] = fill
        assert cost("clustered", one) == pytest.approx(fill * FREE.clustered_cost * times + first)


def test_what_laying_rows_out_takes_is_shared_by_the_values_of_a_row() -> None:
    """Whether a cell of a dense row is 0 takes a thousand cells' time to see: few rows are not worth it."""
    rng = np.random.default_rng(0)
    X = (rng.random((4000, 500)) < 0.1).astype(np.float32)
    for n, kind in (4000, "csr"), (1000, "dense"):
        assert layouts.choose(PROFILES["cpu"], X[:n], make("laplacian").spec).kind == kind
        assert layouts.choose(PROFILES["cpu"], sp.csr_matrix(X[:n]), make("laplacian").spec).kind == "csr"


@pytest.mark.filterwarnings("ignore:not converged")
def test_a_fit_chooses_for_its_working_set(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few entries: among many working vectors CSR is read fastest, among 16 an index."""
    take_profile("cpu", device, monkeypatch)
    rng = np.random.default_rng(0)
    X = sp.csr_matrix(rng.random((2000, 400)) < 0.09).astype(np.float32)
    _, y = noisy(2000, 4)
    costs = {W: layouts.choose(PROFILES["cpu"], X, make("rbf").spec, working=W).costs for W in (512, 16)}
    for W, kind in (512, "csr"), (16, "inverted"):
        assert min(costs[W], key=lambda name, W=W: costs[W][name]) == kind  # type: ignore[misc]
        found = SVC(working_set_size=W, max_iter=20, device=device).fit(X, y).fit_report_
        assert found.layout.startswith(kind)
        assert found.layout_costs == pytest.approx(costs[W])


def test_the_centre_is_that_of_a_sample_without_rows_far_out() -> None:
    """Of many rows some are enough; of all, where one of the sample would move it."""
    X, spec = np.random.default_rng(0).normal(5.0, 1.0, (40000, 3)), make("rbf").spec
    near = layouts.choose(PROFILES["cpu"], X, spec, "dense").centre
    np.testing.assert_allclose(near, 5.0, atol=0.1)
    assert (near != X.mean(axis=0)).all()
    X[0] = 1e7
    np.testing.assert_array_equal(layouts.choose(PROFILES["cpu"], X, spec, "dense").centre, X.mean(axis=0))
    few = X[1:9000]
    np.testing.assert_array_equal(layouts.choose(PROFILES["cpu"], few, spec, "dense").centre, few.mean(axis=0))


def test_clusters_are_estimated_where_they_may_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.where(np.random.default_rng(0).random((500, 40)) < 0.1, 1.0, 0.0)
    dear = replace(PROFILES["cpu"], cluster_price=1e9)
    assert "clustered" in layouts.choose(PROFILES["cpu"], X, make("rbf").spec).costs
    assert "clustered" not in layouts.choose(dear, X, make("rbf").spec).costs
    assert "clustered" in layouts.choose(dear, X, make("rbf").spec, "dense").costs  # (asked for: all that there is)
