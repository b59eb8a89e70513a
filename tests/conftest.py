"""What the tests share: the devices and profiles they run on, and small data sets."""

import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import clsvm
from clsvm.opencl import devices
from clsvm.opencl.contexts import SIMULATOR
from clsvm.opencl.runtime import cl
from clsvm.opencl.stream import Stream

os.environ["CLSVM_TUNED"] = os.path.join(
    tempfile.gettempdir(), "clsvm-tests-have-no-tuned.json"
)  # what ships is tested
signal.signal(signal.SIGINT, signal.default_int_handler)  # (a shell's background jobs begin with Ctrl-C ignored)
FULL = "--full" in sys.argv
USABLE = [devices.find(None)] if os.environ.get("CLSVM_DEVICE") or not FULL else clsvm.devices()
USABLE = [d for d in USABLE if d.usable]
PROFILES = ("cpu", pytest.param("cpu8", marks=pytest.mark.full), "gpu", "gpu-pair")
QUICK_TESTS = (  # what runs where nothing is asked for: something of every package, on one device, in three minutes
    "tests/accel/test_accel.py::test_answers_are_those_of_scikit_learn",
    "tests/benchmarks/test_check.py",
    "tests/cli/test_cli.py::test_the_format_is_libsvms_where_that_is_enough",
    "tests/cli/test_cli.py::test_train_prints_svm_trains_lines_and_the_report",
    "tests/dask/test_dask_svm.py::test_as_in_one_place[SVC",
    "tests/estimators/test_estimators.py::test_as_scikit_learn",
    "tests/examples/test_examples.py::test_blocks_run",
    "tests/fit/test_optimality.py::test_what_is_hard_is_solved",
    "tests/gram/test_products.py::test_shapes",
    "tests/project",
    "tests/kernels",
    "tests/linalg/test_linalg.py::test_against_numpy",
    "tests/model_selection/test_model_selection.py::test_two_classes",
    "tests/models/test_libsvm.py",
    "tests/models/test_model_files.py::test_the_same_bits",
    "tests/nystrom/test_falkon.py::test_all_rows_as_centres_are_kernel_ridge",
    "tests/nystrom/test_falkon.py::test_logistic_probabilities",
    "tests/opencl/test_device.py",
    "tests/solvers/test_tasks.py::test_nu",
    "tests/solvers/test_tasks.py::test_one_class",
    "tests/solvers/test_tasks.py::test_pairs",
    "tests/solvers/test_tasks.py::test_regression",
    "tests/tools/test_tune.py::test_a_record_is_used",
)
FIRST = re.compile(rf"({'|'.join(map(re.escape, QUICK_TESTS))})(?![\w.])")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run all tests, on every usable device")


def pytest_report_header(config: pytest.Config) -> list[str]:
    which = "all tests" if FULL else "a first look (--full: all tests, every device)" if _nothing_named(config) else ""
    return [f"device: {', '.join(map(str, USABLE)) or devices.describe()}", *([f"tests: {which}"] if which else [])]


def _nothing_named(config: pytest.Config) -> bool:
    by_words = config.option.keyword or config.option.markexpr
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not by_words


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take all tests with --full, the first look where nothing is named, and else what is not marked full.

    Of sweeps a share is taken, and what is marked sweep is left alone, unless CLSVM_SWEEP is set. What is named by
    ``::`` runs whole.
    """
    kept = [item for item in items if suits(_parameter(item, "profile"), _parameter(item, "device"))]
    by_name = any("::" in word for word in config.args)
    if not FULL and _nothing_named(config):
        own = "gpu" if any(d.kind == "gpu" for d in USABLE) else "cpu"
        kept = [item for item in kept if FIRST.match(item.nodeid) and _parameter(item, "profile") in (None, own)]
    if not FULL and not by_name:
        kept = [item for item in kept if not item.get_closest_marker("full")]
    if not by_name and not os.environ.get("CLSVM_SWEEP"):
        kept = _interleave_slow(share([item for item in kept if not item.get_closest_marker("sweep")]))
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def _parameter(item: pytest.Item, name: str) -> str | None:
    return item.callspec.params.get(name) if hasattr(item, "callspec") else None


def _cases(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """Yield the cases of each test on each device."""
    cases: dict[Any, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault((item.nodeid.partition("[")[0], _parameter(item, "device")), []).append(item)
    yield from cases.values()


def share(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return a few cases of each test that have all values of its parameters once.

    Many tests skip the profile of pairs of floats, so that its cases stand for no others.
    """
    kept: list[pytest.Item] = []
    for cases in _cases(items):
        met: dict[pytest.Item, set[Any]] = {}
        for item in cases:
            values = enumerate(item.callspec._idlist) if hasattr(item, "callspec") else ()  # one a parametrize()
            met[item] = set(values) or {()}
            if _parameter(item, "profile") == "gpu-pair":
                met[item] = {value for value in met[item] if "gpu-pair" in value}
        missing = set().union(*met.values())
        while missing:
            best = max(cases, key=lambda item: len(met[item] & missing))
            missing -= met[best]
            kept.append(best)
    chosen = set(kept)
    return [item for item in items if item in chosen]


def _interleave_slow(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take a third of a test's cases, at random, or one in k where it is marked sample(k), if a compiler is slow."""
    left_out: set[pytest.Item] = set()
    for cases in _cases(items):
        marker, device = cases[0].get_closest_marker("sample"), _parameter(cases[0], "device")
        if device and thrifty(device) and not simulated(device):
            cases.sort(key=lambda item: sha1(item.nodeid.encode()).digest())  # (the same ones each time)
            left_out.update(cases[-(-len(cases) // (marker.args[0] if marker else 3)) :])
    return [item for item in items if item not in left_out]


@pytest.fixture(params=[str(d.index) for d in USABLE], ids=[d.platform.split()[0] for d in USABLE])
def device(request: pytest.FixtureRequest) -> str:
    """Every usable device, or CLSVM_DEVICE's alone."""
    return request.param


@cache
def thrifty(device: str) -> bool:
    """Whether a device is spared what is many programs of a kind: a slow compiler's or the simulator's, unless
    CLSVM_SWEEP is set. Intel's, the fastest, has them all."""
    return not os.environ.get("CLSVM_SWEEP") and "Intel" not in devices.find(device).platform


@cache
def simulated(device: str) -> bool:
    """Whether it is Oclgrind, which takes a second for what others do in a millisecond."""
    return devices.find(device).platform == SIMULATOR


def suits(profile: Any, device: Any) -> bool:
    """Whether a profile of PROFILES is tested on a device.

    The two CPUs' differ in shapes of tiles alone: Intel's runtime has both. Pairs of floats differ from doubles in
    arithmetic alone: the simulator has none. Intel's CPU runtime miscompiles them (right without optimisation and
    elsewhere).
    """
    if device is not None and profile is not None and not devices.find(device).fp64:
        return bool(profile == "gpu")  # (takes pairs there)
    if device is None or profile not in ("cpu8", "gpu-pair"):
        return True
    if profile == "cpu8":
        return not thrifty(device)
    return not simulated(device) and not devices.find(device).platform.startswith("Intel")


def take_profile(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a profile for the test. A CPU's are not tried on a GPU, whose compilers take minutes over them."""
    monkeypatch.setenv("CLSVM_PROFILE", name)
    info = devices.find(device)
    if info.kind == "gpu" and not simulated(device) and devices.untuned_profile(info).style == "simd":
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
    """Kernels as CPUs have them (of 512-bit, of 256-bit vectors), as a GPU has them, and as one without double does."""
    take_profile(request.param, device, monkeypatch)
    return str(request.param)


@pytest.fixture
def stream(request: pytest.FixtureRequest, device: str) -> Iterator[Stream]:
    """Work on the device, by kernels of the test's profile, where it has the test's dtype."""
    if "profile" in request.fixturenames:
        request.getfixturevalue("profile")
    with Stream(device) as made:
        if made.profile.lacks(request.node.callspec.params.get("dtype", "float32")):
            pytest.skip("no double precision")
        yield made


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


class Call(NamedTuple):
    """A call that a test saw: what was given, by place and by name, and what came of it."""

    given: tuple[Any, ...]
    named: dict[str, Any]
    result: Any


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Call]:
    """Return a list that gets each call of a function or method from here on, when it is done."""
    real, calls = getattr(owner, name), list[Call]()

    def seen(*given: Any, **named: Any) -> Any:
        calls.append(Call(given, named, real(*given, **named)))
        return calls[-1].result

    monkeypatch.setattr(owner, name, seen)
    return calls
