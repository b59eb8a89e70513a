"""What the tests share: the devices and profiles they run on, and small data sets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import clsvm
from clsvm import device as devices

os.environ["CLSVM_TUNED"] = os.path.join(
    tempfile.gettempdir(), "clsvm-tests-have-no-tuned.json"
)  # what ships is tested
USABLE = [d for d in clsvm.devices() if d.usable]
if os.environ.get("CLSVM_DEVICE"):
    USABLE = [devices.find(None)]
PROFILES = ("cpu", "gpu", "gpu-pair")


@pytest.fixture(params=[str(d.index) for d in USABLE], ids=[d.platform.split()[0] for d in USABLE])
def device(request: pytest.FixtureRequest) -> str:
    """Every usable device, or CLSVM_DEVICE's alone."""
    return request.param


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str) -> str:
    """Kernels as a CPU has them, as a GPU has them, and as a GPU without double has them."""
    if request.param == "gpu-pair" and devices.find(device).platform.startswith("Intel"):
        pytest.skip("Intel's CPU runtime miscompiles float2 coefficients (right without optimisation and elsewhere)")
    monkeypatch.setenv("CLSVM_PROFILE", request.param)
    return request.param


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets."""
    folder = os.environ.get("CLSVM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CLSVM_DATA names no folder with the real data sets")
    return Path(folder)


def noisy(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping classes, so that some coefficients end at their bound and some do not."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, 1, -1)
    y[:2] = 1, -1
    return rng.normal(size=(n, d)) + 0.8 * y[:, None] / np.sqrt(d), y
