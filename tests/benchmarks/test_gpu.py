"""`python -m benchmarks gpu`: what goes wrong is recorded and the next step runs; figures of each step, small; the
ladder's kernels against NumPy.
"""

import importlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.bench import Bench, Product
from benchmarks.command import main
from benchmarks.gpu import command, summary, training
from benchmarks.gpu import device as limits_of
from benchmarks.gpu.command import STEPS, Asked, PartialError, Step
from benchmarks.ladder import FORMS, RUNGS, Extremes, Problem, shapes
from clsvm.opencl import devices
from tests.conftest import noisy, thrifty

pytestmark = pytest.mark.full
HEAD: dict[str, Any] = {"date": "", "minutes": 1, "device": "d", "versions": {}}
HEAD["machine"] = {"cpu": "c", "cores": 1, "python": "3"}


def merged(parts: Any) -> dict[str, Any]:
    """The record of a step that is run here, and how it ended under "ending"."""
    found: dict[str, Any] = {"status": "ok", "seconds": 1.0}
    try:
        for part in parts:
            command.add(found, part)
    except Exception as error:
        found["ending"] = error
    return found


def test_what_goes_wrong_is_recorded_and_the_next_step_runs(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, share in (("error", 1), ("crash", 1), ("hang", 1e-3)):
        step = Step(f"drill {what}", "tests.benchmarks.drills:drill", share, {"what": what})
        monkeypatch.setitem(command.BY_NAME, step.name, step)
    monkeypatch.setattr(command, "LEAST", 1.0)
    monkeypatch.setattr(command, "WORTH", 0.5)
    words = ["--minutes", "2", "--device", device, "--steps", "drill error, drill hang,drill crash,limits"]
    assert main(["gpu", "--out", str(tmp_path), *words]) == 1
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline"))
    result = json.loads((tmp_path / "gpu.json").read_text())
    error, hang, crash, limits = result["steps"]
    assert [one["status"] for one in result["steps"]] == ["failed", "killed", "killed", "ok"]
    assert error["error"] == "RuntimeError: a drill: this step fails on purpose"
    assert hang["error"] == "stopped after its 1 s"
    assert crash["error"] == "the process ended with code -6"
    assert "Fatal Python error: Aborted" in crash["printed"]
    assert all(one["found"] for one in (error, hang, crash))
    assert limits["properties"]["max_compute_units"] > 0
    capsys.readouterr()
    assert main(["table", str(tmp_path / "gpu.json")]) == 0
    assert capsys.readouterr().out.strip() == (tmp_path / "gpu.md").read_text().strip()
    monkeypatch.delenv("CLSVM_DATA", raising=False)
    monkeypatch.setattr(command, "WORTH", 4.0)
    assert main(["gpu", "--out", str(tmp_path), "--minutes", "0.05", "--steps", "train a9a,limits"]) == 0
    skipped = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    assert ["--data DIR" in skipped[0]["error"], skipped[1]["error"]] == [True, "no time was left"]


def test_nothing_is_imported_that_such_a_machine_may_lack() -> None:
    code = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(('rich', 'typer', 'matplotlib', 'sklearnex', 'click', 'pandas')))\n"
        "import benchmarks.gpu.device, benchmarks.gpu.training\n"
        "import clsvm; clsvm.SVC\n"
        "sys.argv = ['benchmarks', 'gpu', '--help']\n"
        "runpy.run_module('benchmarks', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=["cpu", "gpu"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str) -> str:
    """Kernels as a CPU has them and as a GPU has them, at sizes that take no time."""
    own = devices.untuned_profile(devices.find(device)).name.removesuffix("8")
    if request.param != own and thrifty(device):
        pytest.skip("kernels of other devices are left to Intel's compiler, the fastest")
    monkeypatch.setenv("CLSVM_PROFILE", request.param)
    few = {"simd": 16, "workgroup": 16}
    for name, value in (
        ("bench.READ", 1 << 20), ("bench.CHAIN", 64), ("bench.TRIAL", few), ("gpu.device.TRIAL", few),
        ("gpu.device.COPIED", 1 << 16), ("gpu.device.LEAST_ROWS", 150),
        ("gpu.device.LONG", {"simd": 1 << 12, "workgroup": 1 << 12}), ("gpu.device.HALF", np.inf),
        ("gpu.device.WORKING", {"few": (2, 9), "many": (21,)}),
        ("gpu.training.FITS", 1),
        ("gpu.training.SETS", {"two": training.Training("two", small, {"C": 1, "gamma": 0.05})}),
    ):  # fmt: skip
        monkeypatch.setattr(f"benchmarks.{name}", value)
    return str(request.param)


def small(_: Path) -> Any:
    X, y = noisy(500, 12)
    return X[:400], y[:400], X[400:], y[400:]


def shifted(fit: Any, *given: Any) -> Any:
    model, seconds = fit(*given)
    model.intercept_ = model.intercept_ + 0.5
    return model, seconds


RUNS = {step.run: step.arguments for step in STEPS}


@pytest.mark.parametrize(
    "run", [pytest.param(run, marks=[pytest.mark.sweep] * run.endswith(("peaks", "products"))) for run in RUNS]
)
def test_steps(shape: str, device: str, tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is right and fills its tables; a wrong product is seen, and what there was no time for is named."""
    module, _, name = run.partition(":")
    step = getattr(importlib.import_module(module), name)
    given = {key: {"d": 7, "name": "two"}[key] for key in RUNS[run]}
    asked = Asked(device, tmp_path, 20.0)
    found = merged(step(asked, **given)) | {"step": name, "run": run}
    assert "ending" not in found, found["ending"]
    assert all(one["right"] for one in found.get("products", []) if "refused" not in one)
    page = summary.markdown({**HEAD, "steps": [found]})
    titles = [title for title, table, *_ in summary.TABLES if table == name]
    assert all(f"## {title}\n" in page for title in titles)
    if name == "train":
        assert found["report"]["converged"]
        assert found["checked"]["decisions right"]
        assert found["checked"]["optimal"]
        monkeypatch.setattr(training, "fit", partial(shifted, training.fit))
        found = merged(step(asked, **given))
        assert isinstance(found["ending"], ArithmeticError)
        assert [found["checked"][words] for words in ("decisions right", "optimal")] == [False, False]
    elif name == "kernels":
        assert found["launches"] == sum(one["launches"] for one in found["kernels"]) > 4
    elif name == "products":
        right = Product.launch
        monkeypatch.setattr(Product, "launch", lambda one: None if one.W == 9 and one.stored else right(one))
        found = merged(step(asked, **given))
        assert isinstance(found["ending"], ArithmeticError)
        assert {(one["W"], one["stored"]) for one in found["products"] if not one["right"]} == {(9, True)}
        monkeypatch.setattr(limits_of, "HALF", -1.0)
        assert isinstance(merged(step(asked, **given))["ending"], PartialError)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rungs(device: str, profile: str, rung: Any) -> None:
    with Bench(device) as bench:
        for n, d, W in ((1, 1, 1), (17, 5, 2), (300, 33, 16), (2000, 261, 9)):
            with bench.section() as part:
                problem = Problem(part, n, d, W)
                if reason := rung.lacks(problem):
                    pytest.skip(reason)
                one = rung.prepare(problem)
                one.into.clear()
                one.launch()
                assert one.into.error() < 1e-5, (rung.name, n, d, W)


def test_extremes(device: str, profile: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(0, 3, 50_000), np.full(300, np.inf), rng.permutation(50_003)]).astype(np.float32)
    with Bench(device) as bench:
        buffer = bench.stream.upload(x)
        for n in (1, 17, 513, 5000, len(x)):
            for form in FORMS:
                for one in (Extremes(bench, form, n, shape) for shape in shapes(bench)):
                    one.launch(buffer, n)()
                    assert one.right(x[:n]), (form.name, one.shape, n, one.read())


def test_the_peaks_do_what_they_count(device: str, profile: str) -> None:
    """Every multiply-add shows in what the peaks' kernels leave behind."""
    first = np.random.default_rng(0).random(64).astype(np.float32)
    with Bench(device) as bench:
        start, out = bench.stream.upload(first), bench.stream.buffer(64)
        local = (1,) if bench.simd else (2,)
        bench.kernel("peaks", "fma_chains", LANES=4, CHAINS=3)((2,), local, 5, 0.5, 0.25, start, out)
        v = first[:12].astype(np.float64)
        for _ in range(5):
            v = v * 0.5 + 0.25
        np.testing.assert_allclose(bench.stream.read(out, np.float32, 2), [v.sum()] * 2, rtol=1e-6)
