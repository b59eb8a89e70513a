"""Large members of one fit on a device with memory of its own: what they share goes there once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs, make_classification

from clsvm import SVC
from clsvm.fit import host, prepare
from clsvm.fit.run import FitContext
from clsvm.gram import exact
from clsvm.gram.layouts.lanes import DeviceRows
from clsvm.opencl.stream import Stream
from clsvm.solvers import batch
from tests.conftest import calls_of


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not share the host's memory, and members of which none is small."""
    before = Stream.__init__

    def begun(self: Stream, *given: Any, **named: Any) -> None:
        before(self, *given, **named)
        self.unified = False

    monkeypatch.setattr(Stream, "__init__", begun)
    monkeypatch.setattr(host, "MOST", 20)
    monkeypatch.setattr(batch, "max_rows", lambda stream: 0)
    monkeypatch.setattr(exact, "HOST", 0)


def fitted_from_the_host(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], X: Any, y: Any) -> Any:
    with monkeypatch.context() as alone:
        alone.setattr(prepare, "SHARED", 0.0)
        return SVC(**asked).fit(X, y)


def same(found: Any, expected: Any, X: Any) -> None:
    assert found.fit_report_.converged
    assert found.fit_report_.dual == pytest.approx(expected.fit_report_.dual, rel=1e-6)
    np.testing.assert_allclose(found.decision_function(X), expected.decision_function(X), atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "laplacian"])
def test_pairs_are_laid_out_from_rows_on_the_device(
    device: str, kernel: str, dtype: Any, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host copies no member's rows, and the machine is the same."""
    X, y = make_blobs(500, 6, centers=4, cluster_std=4.0, random_state=0)
    X, asked = X.astype(dtype), {"kernel": kernel, "tol": 1e-5, "device": device}
    expected = fitted_from_the_host(monkeypatch, asked, X, y)

    def none(*_: Any, **__: Any) -> None:
        raise AssertionError("all rows of a member came to the host")

    monkeypatch.setattr(FitContext, "rows", none)
    if kernel != "laplacian":  # (whose rows' sizes are sums that the host makes)
        monkeypatch.setattr(DeviceRows, "__array__", none)
    found = SVC(**asked).fit(X, y)
    same(found, expected, X)
    assert found.fit_report_.layout.startswith("dense")


@pytest.mark.parametrize(
    ("kernel", "form"), [("rbf", np.asarray), ("linear", sp.csr_matrix), ("laplacian", np.asarray)]
)
def test_a_fit_goes_on_from_rows_on_the_device(
    device: str, kernel: str, form: Any, apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate in float64 too, of rows and support vectors that are laid out from there."""
    X, y = make_classification(900, 70, flip_y=0.2, random_state=0)
    X = form(X)
    asked = {"kernel": kernel, "C": 0.1, "tol": 1e-4, "device": device}
    expected = fitted_from_the_host(monkeypatch, asked, X, y)
    whole: list[int] = []
    monkeypatch.setattr(DeviceRows, "__array__", lambda self, *_, **__: whole.append(len(self)) or self.X[self.numbers])
    found = SVC(**asked).fit(X, y)
    same(found, expected, X)
    assert found.fit_report_.exact_rows
    assert not whole or kernel == "laplacian"  # (whose rows' sizes are sums that the host makes)


def test_little_memory_holds_no_copy(device: str, apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fit had within memory_limit it has still: a copy of X is kept where there is room beside everything."""
    X, y = make_blobs(3000, 4, centers=2, cluster_std=4.0, random_state=0)
    made = calls_of(monkeypatch, DeviceRows, "__init__")
    for limit in (290_000, 315_000, 600_000):
        assert SVC(device=device, memory_limit=limit).fit(X.astype(np.float32), y).fit_report_.converged
    assert not made
    report = SVC(device=device, memory_limit=20_000_000).fit(X, y).fit_report_
    assert made
    assert report.bytes_held <= 20_000_000


def test_pairs_that_a_fit_before_has_solved_need_no_rows(
    device: str, apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = make_blobs(500, 6, centers=4, cluster_std=4.0, random_state=0)
    asked = {"device": device, "checkpoint": tmp_path / "pairs"}
    first = SVC(**asked).fit(X, y)
    monkeypatch.setattr(prepare, "on_device", lambda *_: pytest.fail("rows went to the device"))
    again = SVC(**asked).fit(X, y)
    np.testing.assert_array_equal(again.dual_coef_, first.dual_coef_)


def test_some_of_picked_rows() -> None:
    X = np.arange(40.0).reshape(10, 4)
    plan: Any = None
    one = DeviceRows(X, None, plan, np.array([7, 2, 5]))
    assert one.shape == (3, 4)
    assert len(one) == 3
    np.testing.assert_array_equal(np.asarray(one), X[[7, 2, 5]])
    np.testing.assert_array_equal(np.asarray(one[1:]), X[[2, 5]])
    np.testing.assert_array_equal(np.asarray(one[np.array([2, 0])][:1]), X[[5]])
