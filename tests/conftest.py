"""What the tests share: the devices and profiles they run on, and small data sets."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import clsvm
from clsvm.opencl import devices
from clsvm.opencl.contexts import SIMULATOR
from clsvm.opencl.runtime import cl

os.environ["CLSVM_TUNED"] = os.path.join(
    tempfile.gettempdir(), "clsvm-tests-have-no-tuned.json"
)  # what ships is tested
signal.signal(signal.SIGINT, signal.default_int_handler)  # (a shell's background jobs begin with Ctrl-C ignored)
USABLE = [d for d in clsvm.devices() if d.usable]
if os.environ.get("CLSVM_DEVICE"):
    USABLE = [devices.find(None)]
PROFILES = ("cpu", pytest.param("cpu8", marks=pytest.mark.full), "gpu", "gpu-pair")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run what takes longer, too: a third more tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked full, without --full, and a part of what is marked sample; not what is named."""
    if any("::" in word for word in config.args):
        return
    left_out = set() if config.getoption("--full") else {item for item in items if item.get_closest_marker("full")}
    left_out |= _beside_the_sample([item for item in items if item not in left_out])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _beside_the_sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of the cases of a test that is marked sample(k), on each device that is spared: all but each k-th, at random, and
    those of the second CPU's profile. The simulator has a choice of its own."""
    beside: set[pytest.Item] = set()
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        device = given.get("device")
        if item.get_closest_marker("sample") and isinstance(device, str) and thrifty(device) and not simulated(device):
            if given.get("profile") == "cpu8":
                beside.add(item)
            else:
                cases.setdefault((item.nodeid.partition("[")[0], device), []).append(item)
    for same in cases.values():
        marker = same[0].get_closest_marker("sample")
        assert marker
        same.sort(key=lambda item: sha1(item.nodeid.encode()).digest())  # (the same ones each time)
        beside.update(same[-(-len(same) // marker.args[0]) :])
    return beside


@pytest.fixture(params=[str(d.index) for d in USABLE], ids=[d.platform.split()[0] for d in USABLE])
def device(request: pytest.FixtureRequest) -> str:
    """Every usable device, or CLSVM_DEVICE's alone."""
    return request.param


def thrifty(device: str) -> bool:
    """Whether a device is spared what is many programs of a kind: a slow compiler's or the simulator's, unless
    CLSVM_SWEEP is set. Intel's, the fastest, has them all."""
    return not os.environ.get("CLSVM_SWEEP") and "Intel" not in devices.find(device).platform


def simulated(device: str) -> bool:
    """Whether it is Oclgrind, which takes a second for what others do in a millisecond."""
    return devices.find(device).platform == SIMULATOR


def take_profile(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a profile for the test. A CPU's are not tried on a GPU, whose compilers take minutes over them."""
    monkeypatch.setenv("CLSVM_PROFILE", name)
    info = devices.find(device)
    if info.kind == "gpu" and not simulated(device) and devices.untuned_profile(info).shape == "vector":
        pytest.skip("a CPU's kernels are not for a GPU")


def halves(device: str) -> list[Any]:
    """The device in two parts of the same size; none where it has no such parts."""
    whole = devices.handle(device, devices.find(device))
    equally = cl.device_partition_property.EQUALLY
    if equally not in whole.partition_properties or whole.max_compute_units < 2:
        return []
    return list(whole.create_sub_devices([equally, whole.max_compute_units // 2])[:2])


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str) -> str:
    """Kernels as CPUs have them (of 512-bit, of 256-bit vectors), as a GPU has them, and as one without double does.

    The two CPUs differ in the shapes of tiles alone: a slow compiler is spared the second.
    """
    if request.param == "cpu8" and thrifty(device):
        pytest.skip("tiles for 256-bit vectors are tried on Intel's runtime, unless CLSVM_SWEEP is set")
    if request.param == "gpu-pair" and devices.find(device).platform.startswith("Intel"):
        pytest.skip("Intel's CPU runtime miscompiles float2 coefficients (right without optimisation and elsewhere)")
    take_profile(request.param, device, monkeypatch)
    return str(request.param)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets."""
    folder = os.environ.get("CLSVM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CLSVM_DATA names no folder with the real data sets")
    return Path(folder)


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """``clsvm ...`` in this process and an empty folder."""
    from clsvm.cli import app  # (typer may be absent, and the rest runs without)

    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["clsvm", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            app.main()
        return Result(int(end.value.code or 0), *capsys.readouterr())

    return run


def noisy(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping classes, so that some coefficients end at their bound and some do not."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.5, 1, -1)
    y[:2] = 1, -1
    return rng.normal(size=(n, d)) + 0.8 * y[:, None] / np.sqrt(d), y
