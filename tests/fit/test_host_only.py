"""Fits in float64 on a device without double precision: the host solves what is small, and the rest is refused."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel

from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM
from clsvm.fit import host
from tests.conftest import noisy

X, Y = noisy(120, 4, seed=3)
Y = np.where(X[:, 0] > 1.2, 2, Y)  # a third class
MACHINES = (
    SVC(C=3.0),
    SVC(multi_class="crammer_singer"),
    SVC(multi_class="ovr"),
    NuSVC(nu=0.3),
    SVR(),
    NuSVR(),
    OneClassSVM(),
)


def answers(machine: Any, rows: Any) -> Any:
    return getattr(machine, "decision_function", machine.predict)(rows)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_small_fits(device: str, monkeypatch: pytest.MonkeyPatch, machine: Any, form: Any) -> None:
    y = Y if is_classifier(machine) else X[:, 1] + 0.1 * Y
    rows = form(X)
    machine = machine.set_params(gamma=0.3, device=device, dtype="float64", tol=1e-6)
    values, report = answers(machine.fit(rows, y), rows), machine.fit_report_
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    found, own = answers(machine.fit(rows, y), rows), machine.fit_report_
    assert own.converged
    assert own.dtype == "float64"
    assert own.layout == "host, float64"
    assert own.dual == pytest.approx(report.dual, rel=1e-5)
    assert own.violation <= 1e-6
    np.testing.assert_allclose(found, values, atol=1e-4)


def test_time_and_steps_are_the_hosts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.warns(ConvergenceWarning):
        stopped = SVC(device=device, dtype="float64", max_iter=3).fit(X, X[:, 0] > 0)
    assert stopped.fit_report_.steps <= 3
    assert not stopped.fit_report_.converged
    assert "max_iter" in stopped.fit_report_.status


BEYOND = 1e39  # float32, and so pairs of float32, end at 3.4e38


@pytest.mark.parametrize("machine", [SVR(C=2.0), NuSVR(C=2.0, nu=0.4)], ids=str)
def test_targets_beyond_pairs_are_solved_on_the_host(
    device: str, monkeypatch: pytest.MonkeyPatch, machine: Any
) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    y = X[:, 1] * BEYOND
    report = machine.set_params(device=device, gamma=0.3).fit(X, y).fit_report_
    assert report.converged
    f = rbf_kernel(X, gamma=0.3)[:, machine.support_] @ machine.dual_coef_[0] + machine.intercept_[0]
    assert np.abs(f - machine.predict(X)).max() <= 1e-12 * BEYOND
    assert np.abs(machine.dual_coef_).max() == 2.0  # (all targets are that far from what C allows)


def test_weights_beyond_pairs_end_with_a_report(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.warns(ConvergenceWarning):
        fitted = NuSVC(device=device, nu=0.3).fit(X, X[:, 0] > 0, sample_weight=np.full(len(X), BEYOND))
    assert "rounding in float64" in fitted.fit_report_.status


LARGE = r"float64' needs a device with double precision for a problem of 120 coefficients, .* has none: use 'float32'"
REFUSED = ((SVC(dtype="float64"), X[:, 0] > 0, LARGE), (SVR(), X[:, 1] * BEYOND, r"beyond 3\.4e\+35 .* 120 .*make y"))


@pytest.mark.parametrize(("machine", "y", "words"), REFUSED, ids=["dtype", "targets"])
def test_what_is_too_large_for_the_host_is_refused(
    device: str, monkeypatch: pytest.MonkeyPatch, machine: Any, y: Any, words: str
) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    monkeypatch.setattr(host, "MOST", 100)
    with pytest.raises(ValueError, match=words):
        machine.set_params(device=device).fit(X, y)
