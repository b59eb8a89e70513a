"""What describe says of rows: by hand, and as the choice of a layout has it."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import arrays
from clsvm.gram import layouts
from clsvm.kernels import make
from clsvm.opencl.profiles import PROFILES
from clsvm.opencl.stream import Stream
from clsvm.tools import tune
from clsvm.tools.describe import Estimate, Split, describe
from tests.conftest import take_profile

COUNTS = (4, 1, 1, 4, 3, 0, 2, 1, 1, 1, 0, 1)  # entries of each column, in its first rows
X = (np.arange(4)[:, None] < np.array(COUNTS)) * 2.5
CPU = PROFILES["cpu"]
SPEED = tune.ROWS["simd"] * 256 * (256 - 32) / 0.4  # 224 cells more a value take 0.4 seconds more


@pytest.fixture(autouse=True)
def known_seconds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile is that of a CPU; its product over dense rows takes 0.1 seconds for narrow and 0.5 for wide ones."""
    take_profile("cpu", device, monkeypatch)
    monkeypatch.setattr(tune, "best_of", lambda *launches: [0.1, 0.5])


def stored_zeros(X: np.ndarray) -> sp.csr_matrix:
    """Every cell of X, zeros too."""
    n, d = X.shape
    return sp.csr_matrix((X.ravel(), np.tile(np.arange(d), n), np.arange(0, n * d + 1, d)), shape=(n, d))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.csc_matrix, stored_zeros, lambda X: X.astype(int)])
def test_the_figures_of_a_small_matrix(form: Any, device: str) -> None:
    found = describe(form(X), device)
    assert (found.rows, found.columns, found.occurring, found.entries) == (4, 12, 10, 19)
    assert (found.mean, found.longest, found.density) == (4.75, 10, pytest.approx(19 / 48))
    assert found.deciles == (1, 1, 0.75, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)
    assert CPU.value_cost / 2 > 5.75  # so that the rule of costs stores no column whole: four would gain 5.75 cells
    assert found.splits == (Split("cost", 0, 0.0),)
    assert found.speed == pytest.approx(SPEED)


def test_the_layouts_of_a_small_matrix(device: str) -> None:
    """Milliseconds are of four working vectors, by the measured speed; four rows are too few to sample clusters of."""
    found = describe(sp.csr_matrix(X), device)
    nbytes: dict[str, int | None] = {
        "dense": 4 * 12 * 4,
        "csr": 4 * 8 + 19 * 6,
        "clustered": 4 * 12 * 4,
        "hybrid": 4 * 8 + 19 * 6,
    }
    nbytes["inverted"] = 4 * 10 * 4 + 4 * 8 + 4 * 3
    nbytes["bits"] = None  # X has other entries than 0 and 1
    assert {one.layout: one.nbytes for one in found.layouts} == nbytes
    for one in found.layouts:
        if one.layout in ("hybrid", "inverted", "bits"):  # (no column would be whole; of rows so few there is no index)
            assert (one.cost, one.milliseconds) == (None, None)
        else:
            assert one.cost is not None
            assert one.milliseconds == pytest.approx(1e3 * one.cost * 4 * 4 / SPEED)
    assert found.chosen == "dense"
    assert found.cluster_columns == pytest.approx(12)


def test_bytes_are_those_that_a_device_gets(device: str) -> None:
    """Of the values and columns, without norms and padding: 256 rows are whole lane groups."""
    rng = np.random.default_rng(0)
    rows = sp.csr_matrix(rng.random((256, 40)) * (rng.random((256, 40)) < np.linspace(0.02, 1, 40)))
    found = {one.layout: one.nbytes for one in describe(rows, device).layouts}
    canonical, spec = arrays.canonical(rows), make("rbf").spec
    with Stream(device) as stream:
        for kind in ("dense", "hybrid", "csr", "inverted"):
            made = layouts.build(stream, canonical, layouts.choose(stream.profile, canonical, spec, kind), "float32")
            whole = getattr(made, "dense", None)
            entries = made.stored - 256 * getattr(whole, "number", 0)
            beside = 0 if kind == "dense" else 256 * 8 + 2 * entries
            if kind == "inverted":
                beside += 6 * entries + 4 * (made.index.columns + 2)
            assert found[kind] == 4 * made.stored + beside, kind


def test_fewer_than_ten_columns(device: str) -> None:
    found = describe(np.array([[1.0, 0.0, 2.0], [1.0, 0.0, 0.0]]), device)
    assert found.deciles == (1, 0.5, *[None] * 8)
    empty = describe(np.zeros((3, 2)), device)
    assert (empty.occurring, empty.entries, empty.longest, empty.deciles) == (0, 0, 0, (None,) * 10)
    assert [split.share for split in empty.splits] == [0]
    d = 2**31 - 1  # columns, empty by far
    found = describe(sp.csr_matrix((np.ones(3), [5, d - 1, 5], [0, 2, 3]), shape=(2, d)), device)
    assert (found.columns, found.occurring, found.deciles[:3]) == (d, 2, (1, 0.5, None))
    assert found.density == 3 / 2 / d


@pytest.mark.parametrize("d", [30, 20000])
def test_every_layout_that_is_estimated_is_listed(d: int, device: str) -> None:
    """With the estimates by which a fit chooses; those that cannot hold the columns have none."""
    rows = sp.random(50, d, 0.02, "csr", rng=np.random.default_rng(0))
    found = describe(rows, device)
    with Stream(device) as stream:
        plan = layouts.choose(stream.profile, arrays.canonical(rows), make("rbf").spec)
    assert {one.layout: one.cost for one in found.layouts if one.cost is not None} == plan.costs
    assert [one.layout for one in found.layouts] == list(layouts.names(make("rbf").spec))
    assert (found.chosen, found.reason) == (plan.kind, plan.reason)
    if d == 20000:
        assert Estimate("clustered", None, None, None) in found.layouts
        assert found.cluster_columns is None
