"""Machines on centres over several devices: the same bits by any of them, errors and interrupts that end all."""

import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm import FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier
from clsvm.distribute import Lost, OnDevices
from clsvm.errors import DeviceError, MemoryLimitError
from clsvm.nystrom import rows
from clsvm.opencl import devices

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6000, 6)).astype(np.float32)
Y = np.sin(X).sum(axis=1)
MACHINES = [
    (FalkonRegressor, Y, {}),
    (FalkonRegressor, np.stack([Y, -2 * Y], axis=1), {"loss": "log_cosh"}),
    (FalkonClassifier, (Y > 0) + (Y > 2), {}),
    (LogisticFalkonClassifier, Y > 0, {}),
    (LogisticFalkonClassifier, (Y > 0) + (Y > 2), {}),
]


def fitted(device: Any, machine: Any = FalkonRegressor, y: Any = Y, data: Any = X, **given: Any) -> Any:
    return machine(n_centers=100, random_state=0, device=device, **given).fit(data, y)


@pytest.mark.parametrize(("machine", "y", "given"), MACHINES)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_same_bits_by_any_devices(device: str, machine: Any, y: Any, given: dict[str, Any], sparse: bool) -> None:
    data = sp.csr_matrix(np.where(X > 0, X, 0)) if sparse else X
    alone, listed = fitted(device, machine, y, data, **given), fitted([device], machine, y, data, **given)
    several = fitted([device] * 3, machine, y, data, **given)
    np.testing.assert_array_equal(several.dual_coef_, listed.dual_coef_)
    scale = np.abs(alone.dual_coef_).max()
    np.testing.assert_allclose(several.dual_coef_, alone.dual_coef_, rtol=0, atol=1e-5 * scale)
    assert several.fit_report_.converged
    assert several.fit_report_.objective == pytest.approx(alone.fit_report_.objective, rel=1e-9)
    assert "5 parts, " in several.fit_report_.layout
    np.testing.assert_array_equal(several.predict(data[:50]), listed.predict(data[:50]))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("clsvm_")]


@pytest.mark.parametrize(("machine", "y", "given"), [MACHINES[0], MACHINES[3]])
def test_lost_blocks_are_posed_again(
    device: str, machine: Any, y: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then a block forgets all that it knows, also while it is brought back: the end is the same."""
    whole = fitted([device] * 2, machine, y, **given)
    real, count = OnDevices.call, 0

    def ask(self: Any, name: str, given: Any) -> list[Any]:
        nonlocal count
        count += 1
        answers = real(self, name, given)
        if count % 20 in (5, 11, 13) and name != "values" and given[count % len(given)] is not None:
            for known in ("_f", "_df", "_gradient_products"):
                vars(self.parts[count % len(given)]).pop(known, None)
            answers[count % len(given)] = Lost()
        return answers

    monkeypatch.setattr(OnDevices, "call", ask)
    again = fitted([device] * 2, machine, y, **given)
    assert count > 30
    scale = np.abs(whole.dual_coef_).max()
    np.testing.assert_allclose(again.dual_coef_, whole.dual_coef_, rtol=0, atol=1e-5 * scale)


def test_kinds_by_number(device: str) -> None:
    """The first CPU is "cpu:0"."""
    info = devices.find(device)
    of_kind = [one for one in devices.devices() if one.kind == info.kind]
    for i, one in enumerate(of_kind):
        assert devices.find(f"{info.kind}:{i}") == one
    with pytest.raises(DeviceError, match=f"no OpenCL device matches '{info.kind}:{len(of_kind)}'"):
        devices.find(f"{info.kind}:{len(of_kind)}")


def test_many_rows_have_the_most_blocks() -> None:
    assert len(rows.blocks(10**6)) == rows.MAX_BLOCKS


def test_finer_products_and_memory(device: str) -> None:
    """Where rounding of K shows the gradients of all parts are made in float64; limits hold on each device."""
    if devices.default_profile(devices.find(device)).finest == "float32":
        pytest.skip("the device has no double precision")
    given = {"gamma": 0.01, "penalty": 1e-12}
    one, two = fitted(device, **given), fitted([device] * 2, **given)
    assert one.fit_report_.dtype == two.fit_report_.dtype == "float64"
    np.testing.assert_allclose(two.predict(X), one.predict(X), atol=1e-4)
    limit = 3_000_000
    small = fitted([device] * 2, memory_limit=limit)
    assert small.fit_report_.bytes_held <= limit
    np.testing.assert_allclose(small.dual_coef_, fitted([device]).dual_coef_, rtol=0, atol=1e-5)
    with pytest.raises(MemoryLimitError):
        fitted([device] * 2, memory_limit=20_000)
    with pytest.raises(TypeError, match="device must have at least one entry if it is a list"):
        fitted([])
    with pytest.raises(DeviceError, match="no OpenCL device matches 'nowhere'"):
        fitted([device, "nowhere"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("clsvm_")]
