"""`python -m benchmarks gpu`: what goes wrong is recorded and the next step runs; figures of each step, small."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.gpu import (
    command,
    kernels,
    layouts,
    nystrom,
    peaks,
    plugin,
    products,
    steps,
    suite,
    summary,
    training,
    trials,
)
from benchmarks.gpu import device as device_steps
from benchmarks.gpu.plan import BY_NAME, STEPS, Asked, PartialError
from benchmarks.ladder_device import Bench
from benchmarks.ladder_extremes import FORMS
from clsvm.gram import units
from clsvm.opencl import devices
from clsvm.opencl.profiles import PROFILES, SEARCH
from clsvm.opencl.stream import Stream
from tests.conftest import thrifty

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def asked(device: str, folder: Path, seconds: float = 20.0) -> Asked:
    return Asked(device=device, data=None, seconds=seconds, folder=folder)


def merged(parts: Any) -> dict[str, Any]:
    """The record of a step that is run here, and how it ended under "ending"."""
    found: dict[str, Any] = {}
    try:
        for part in parts:
            steps.add(found, part)
    except Exception as error:
        found["ending"] = error
    return found


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time."""
    few = {"vector": 16, "group": 16}
    for module, numbers in (
        (peaks, {"READ": 1 << 20, "COPIED": 1 << 16, "CHAIN": 64, "TRIAL": few, "LOCAL": few}),
        (products, {"LEAST_ROWS": 150, "LONG": {"vector": 1 << 12, "group": 1 << 12}}),
        (products, {"WORKING": {"few": (2, 9), "many": (21,)}, "HALF": np.inf, "REDUCED": (100, 1 << 12)}),
        (products, {"CHOSEN": ((300, 16), (300, 64)), "SUBPROBLEMS": (16, 32), "STEPS": 300}),
    ):
        for name, value in numbers.items():
            monkeypatch.setattr(module, name, value)


@pytest.fixture(params=["cpu", "gpu"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tiny: None, device: str) -> str:
    """Kernels as a CPU has them and as a GPU has them; with a slow compiler the device's own alone."""
    own = devices.untuned_profile(devices.find(device)).name.removesuffix("8")
    if request.param != own and thrifty(device):
        pytest.skip("kernels of other devices are left to Intel's compiler, the fastest")
    monkeypatch.setenv("CLSVM_PROFILE", request.param)
    return str(request.param)


# The run.


def test_what_goes_wrong_is_recorded_and_the_next_step_runs(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.BY_NAME, "drill hang", replace(BY_NAME["drill hang"], share=1e-3))
    monkeypatch.setattr(command, "LEAST", 1.0)
    monkeypatch.setattr(command, "WORTH", 0.5)
    words = ["--minutes", "2", "--device", device, "--steps", "drill error, drill hang,drill crash,limits"]
    (tmp_path / "out" / "steps").mkdir(parents=True)
    for name in ("00-old.json", "tests.jsonl"):  # an earlier run's
        (tmp_path / "out" / "steps" / name).touch()
    assert main(["gpu", "--out", str(tmp_path / "out"), *words]) == 1
    printed = capsys.readouterr().out
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline"))
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    error, hang, crash, limits = result["steps"]
    assert [one["status"] for one in result["steps"]] == ["failed", "killed", "killed", "ok"]
    assert error["error"] == "RuntimeError: a drill: this step fails on purpose"
    assert "drills.py" in error["traceback"]
    assert hang["error"] == "stopped after its 1 s"
    assert crash["error"] == "its process ended by itself: SIGABRT"
    assert "Fatal Python error: Aborted" in crash["printed"]
    assert [one["found"] for one in (error, hang, crash)] == [
        [f"before the {what}"] for what in ("error", "hang", "crash")
    ]
    assert limits["properties"]["max_compute_units"] > 0
    files = sorted((tmp_path / "out" / "steps").iterdir())
    assert [json.loads(file.read_text()) for file in files] == result["steps"]
    table = (tmp_path / "out" / "gpu.md").read_text()
    for text in (printed, table):
        assert limits["device"] in text
        assert "SIGABRT" in text
        assert f"{limits['properties']['max_compute_units']} compute units" in text
    assert main(["table", str(tmp_path / "out" / "gpu.json")]) == 0
    assert capsys.readouterr().out.strip() == table.strip()


def test_when_the_minutes_are_over_nothing_is_begun(tmp_path: Path, device: str) -> None:
    words = ["--minutes", "0.05", "--device", device, "--steps", "limits,smoke"]
    assert command.main(["--out", str(tmp_path), *words]) == 0
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert [(one["status"], one["error"]) for one in result["steps"]] == [("skipped", "no time was left")] * 2


def test_sets_that_are_not_there_are_skipped_with_the_reason(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLSVM_DATA", raising=False)
    command.main(["--out", str(tmp_path), "--minutes", "1", "--device", device, "--steps", "train a9a"])
    (one,) = json.loads((tmp_path / "gpu.json").read_text())["steps"]
    assert one["status"] == "skipped"
    assert "--data DIR" in one["error"]


def test_stand_ins_stand_in_for_what_is_missing_alone(tmp_path: Path) -> None:
    def sets(data: Path | None) -> set[str]:
        return {one.name for one in command.chosen([], data and str(data)) if one.instead_of}

    assert (
        sets(None)
        == sets(tmp_path)
        == {*("train a9a-like", "train mnist8-like", "train mnist10-like", "kernels a9a-like", "kernels mnist8-like")}
    )
    (tmp_path / "mnist.npz").touch()
    assert sets(tmp_path) == {"train a9a-like", "kernels a9a-like"}


def test_every_step_is_there_and_drills_only_by_name() -> None:
    for step in STEPS:
        module, _, function = step.run.partition(":")
        assert callable(getattr(__import__(f"benchmarks.gpu.{module}", fromlist=["*"]), function))
        assert step.run.startswith(("training:", "kernels:")) == ("name" in step.arguments)
    assert {step.arguments["name"] for step in STEPS if "name" in step.arguments} == set(training.SETS)
    usual = [step.name for step in command.chosen([], None)]
    assert usual[:2] == ["limits", "smoke"]
    assert not any(name.startswith("drill") for name in usual)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "minutes above 0, got '0'"),
        (["--minutes", "soon"], "minutes above 0, got 'soon'"),
        (["--steps", "limits,limit"], "unknown step 'limit'; there are limits,"),
        (["--data", "/no/such/folder"], "expected a folder, got '/no/such/folder'"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path), *words])
    assert said in capsys.readouterr().err


BLOCKED = ("rich", "typer", "matplotlib", "hypothesis", "sklearnex", "click", "pandas")


def test_nothing_is_imported_that_such_a_machine_may_lack() -> None:
    code = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({BLOCKED}))\n"
        "import benchmarks.gpu.device, benchmarks.gpu.products, benchmarks.gpu.suite, benchmarks.gpu.training\n"
        "import clsvm; clsvm.SVC\n"
        "sys.argv = ['benchmarks', 'gpu', '--help']\n"
        "runpy.run_module('benchmarks', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--minutes" in done.stdout


# Figures.


def test_limits_and_smoke(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = merged(device_steps.limits(asked(device, tmp_path)))
    assert "ending" not in found
    assert found["profile"]["tiles"]["many"]
    assert found["properties"]["name"].split() == found["devices"][int(device)]["name"].split()
    monkeypatch.setattr(device_steps, "FITS", device_steps.FITS[:1])
    assert "ending" not in merged(device_steps.smoke(asked(device, tmp_path)))
    monkeypatch.setattr(device_steps.svm, "SVC", lambda gamma, tol: device_steps.clsvm.SVC(gamma=2 * gamma, tol=tol))
    found = merged(device_steps.smoke(asked(device, tmp_path)))
    assert isinstance(found["ending"], ArithmeticError)
    assert [one["right"] for one in found["fits"]] == [False]


def test_peaks(shape: str, device: str, tmp_path: Path) -> None:
    found = merged(peaks.peaks(asked(device, tmp_path, 0.0)))
    assert "ending" not in found
    figures = [found["peaks"]["fma_gflops"], found["peaks"]["read_gbs"], found["local"]["gbs"]]
    assert min(*figures, *found["microseconds"].values(), *found["copies_gbs"].values()) > 0


def test_trials(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SECONDS", 0.0), ("GROUPS", 2), ("STEPS", 3)):
        monkeypatch.setattr(trials, name, value)
    found = merged(trials.trials(asked(device, tmp_path)))
    assert "ending" not in found
    assert [one["trial"] for one in found["trials"]] == [one.name for one in trials.TRIALS]
    simulated = "lacking" in found["trials"][0]
    assert all(one.get("lacking") or one["right"] for one in found["trials"])
    record = {"step": "trials", "run": "trials:trials", "status": "ok", "seconds": 1.0, **found}
    assert "| mma.sync m16n8k8 tf32 | lacking |" in summary.markdown({**HEAD, "steps": [record]})
    if simulated:
        return
    barrier = trials.TRIALS[0]
    unknown, wrong = replace(barrier, macro="NO_SUCH"), replace(barrier, expected=lambda given, steps: given[:256] + 1)
    monkeypatch.setattr(trials, "TRIALS", (unknown, wrong))
    found = merged(trials.trials(asked(device, tmp_path)))
    assert isinstance(found["ending"], ArithmeticError)
    assert [one.get("right") for one in found["trials"]] == [None, False]
    assert found["trials"][0]["log"]
    record = {"step": "trials", "run": "trials:trials", "status": "failed", "seconds": 1.0, **found}
    assert "| NOT BUILT |" in summary.markdown({**HEAD, "steps": [record]})
    assert "barrier of 256 items WRONG" in summary.said(record)[-1]


def test_products_of_trials() -> None:
    """A B of the fragments' shapes, steps times."""
    given = np.arange(1024, dtype=np.float32)
    (one,) = (one for one in trials.TRIALS if one.macro == "MFMA_F32")
    A, B = given[:64].reshape(32, 2), given[64:128].reshape(2, 32)
    np.testing.assert_array_equal(one.expected(given, 3).reshape(32, 32), 3 * A @ B)


@pytest.mark.parametrize(("lanes", "chains", "group"), [(2, 4, 16), (4, 8, 8), (16, 8, 1)])
def test_local_memory_is_read_in_order(device: str, lanes: int, chains: int, group: int) -> None:
    """Item l reads the vectors l, l + GROUP, ... over and over; where each is is in its value."""
    numbers, rounds, groups = np.random.default_rng(0).random(4096, np.float32), 70, 3
    with Bench(device) as bench:
        kernel = bench.kernel("local_read", "local_read", LANES=lanes, CHAINS=chains, GROUP=group)
        first, out = bench.stream.upload(numbers), bench.stream.zeros(4 * groups * group)
        kernel((groups * group,), (group,), rounds, first, out)
        got = bench.stream.read(out, np.float32, (groups, group))
    at = (np.arange(group)[:, None] + group * np.arange(rounds * chains)) % (4096 // lanes)
    expected = numbers.reshape(-1, lanes).sum(axis=1, dtype=np.float64)[at].sum(axis=1)
    np.testing.assert_allclose(got, np.tile(expected, (groups, 1)), rtol=1e-4)


def test_products(shape: str, device: str, tmp_path: Path) -> None:
    found = merged(products.products(asked(device, tmp_path, 0.0), d=7))
    assert "ending" not in found
    rows = found["products"]
    assert all(one["right"] for one in rows)
    for W, count in ((2, 2), (9, 2), (21, 4 if shape == "gpu" else 2)):  # (wide tiles, too)
        tiles = {(one["usual"], str(one["tile"])) for one in rows if one["W"] == W}
        assert (len(tiles), len(dict(tiles))) == (count, 2)
        assert sum(one["W"] == W for one in rows) == 2 * count
    for one in rows:
        assert one["gflops"] == pytest.approx(2e-9 * one["n"] * one["W"] * 7 / one["seconds"])
        written = 4 * one["W"] if one["stored"] else 16
        assert one["gbs"] == pytest.approx(1e-9 * one["n"] * (4 * 7 + written) / one["seconds"])


def test_products_by_matrix_units(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have lines of their own beside the wide tile's, where a trial finds them right."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    monkeypatch.setattr(units, "UNITS", (units.EMULATED,))
    built, build = [], units.gram
    monkeypatch.setattr(units, "gram", lambda *given: built.append(given[0].name) or build(*given))
    monkeypatch.setattr(products, "WORKING", {"many": (70,)})
    monkeypatch.setattr(products, "HALF", np.inf)
    rows = merged(products.products(asked(device, tmp_path, 0.0), d=7))["products"]
    own = [one for one in rows if one["tile"] == {"UNITS": units.EMULATED.name}]
    assert sorted(one["stored"] for one in own) == [False, True]
    assert all(one["right"] and not one["usual"] and 0 < one["error"] < 1e-6 for one in own)
    assert sum(one["usual"] for one in rows) == 4
    assert built.count("rbf") == 2


def test_tiles_of_the_search(shape: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ALL", np.inf)
    found = merged(products.tiles(asked(device, tmp_path, 0.0), d=7))
    assert "ending" not in found
    rows, profile = found["products"], PROFILES[shape]
    searched = [dict(one) for name in ("wide", "many") for one in SEARCH[profile.shape]["tiles"].get(name, ())]
    for stored in (True, False):
        some = [one for one in rows if one["stored"] is stored]
        assert sorted(str(one["tile"]) for one in some) == sorted(map(str, searched))
    assert all(one["right"] and one["W"] == 21 for one in rows if "refused" not in one)
    record = {"step": "tiles 7", "run": "products:tiles", "status": "ok", "seconds": 1.0, **found}
    assert "## Tiles of many vectors" in summary.markdown({**HEAD, "steps": [record]})
    assert "TFLOP/s, the profile's" in summary.said(record)[-1]
    monkeypatch.setattr(products, "ALL", -1.0)
    assert isinstance(merged(products.tiles(asked(device, tmp_path, 1.0), d=7))["ending"], PartialError)


def test_layouts_of_sparse_rows(shape: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "one": (0.05, lambda: training.a9a_like(Path(), 300, 1)[0]),
        "two": (1.0, lambda: layouts.text_like(300, 500)),
    }
    monkeypatch.setattr(layouts, "SETS", rows)
    monkeypatch.setattr(layouts, "WORKING", (9, 21))
    monkeypatch.setattr(layouts, "HALF", np.inf)
    found = merged(layouts.layouts(asked(device, tmp_path, 0.0)))
    assert "ending" not in found
    assert all(one["right"] for one in found["layouts"])
    for name in rows:
        for W in (9, 21):
            some = [one for one in found["layouts"] if (one["set"], one["W"]) == (name, W)]
            assert {"dense", "csr", "clustered"} <= {one["layout"] for one in some}
            assert len({one["layout"] for one in some if one["chosen"]}) == 1
            assert len(some) == 2 * len({one["layout"] for one in some})
    record = {"step": "layouts", "run": "layouts:layouts", "status": "ok", "seconds": 1.0, **found}
    assert "## Layouts of sparse rows" in summary.markdown({**HEAD, "steps": [record]})
    assert "two, W = 21, update: " in summary.said(record)[-1]
    right = products.Product.launch
    monkeypatch.setattr(products.Product, "launch", lambda one: None if one.W == 9 and one.stored else right(one))
    found = merged(layouts.layouts(asked(device, tmp_path, 0.0)))
    assert isinstance(found["ending"], ArithmeticError)
    assert {(one["W"], one["stored"]) for one in found["layouts"] if not one["right"]} == {(9, True)}
    monkeypatch.setattr(layouts, "HALF", -1.0)
    assert isinstance(merged(layouts.layouts(asked(device, tmp_path, 1.0)))["ending"], PartialError)


def test_a_wrong_product_is_seen(device: str, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = products.Product.launch

    def spoilt(one: products.Product) -> None:
        if not (one.stored and one.W == 9):
            right(one)

    monkeypatch.setattr(products.Product, "launch", spoilt)
    found = merged(products.products(asked(device, tmp_path, 0.0), d=7))
    assert isinstance(found["ending"], ArithmeticError)
    assert {(one["W"], one["stored"]) for one in found["products"] if not one["right"]} == {(9, True)}
    record = {"step": "", "run": "products:products", "status": "failed", "seconds": 1.0, **found}
    assert "! |" in summary.markdown({**HEAD, "steps": [record]})


def test_products_end_where_the_time_does(
    device: str, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "HALF", 0.0)
    found = merged(products.products(asked(device, tmp_path), d=3))
    assert isinstance(found["ending"], PartialError)
    assert "products" not in found


def test_other_tiles_are_known_ones() -> None:
    for profile in PROFILES.values():
        for kind in ("two", "few", "many"):
            tile = products.other_tile(profile, kind)
            assert tile in SEARCH[profile.shape]["tiles"][kind]
            assert tile != profile.tiles[kind]


def test_reductions_and_steps(shape: str, device: str, tmp_path: Path) -> None:
    found = merged(products.reductions(asked(device, tmp_path, 0.0)))
    assert "ending" not in found
    assert [(one["n"], one["right"]) for one in found["reductions"]] == [
        (n, True) for n in (100, 1 << 12) for _ in FORMS
    ]
    assert [(one["n"], one["W"]) for one in found["choices"]] == [(300, 16), (300, 64)]
    found = merged(products.subproblem(asked(device, tmp_path)))
    assert "ending" not in found
    assert len(found["subproblems"]) == 2
    for one in found["subproblems"]:
        assert one["steps"] > 0
        assert one["of_a_set"]["subproblem"] * one["working_sets"] == pytest.approx(one["microseconds"] * one["steps"])


# Training.


def test_a_fit_can_wait_for_each_part(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")
    with training.waiting(), Stream(device) as stream:
        assert stream.profile == replace(PROFILES["gpu"], sync=1, group=stream.profile.group, wide=stream.profile.wide)
    with Stream(device) as stream:
        assert stream.profile.sync == PROFILES["gpu"].sync > 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    two = training.Training("two", lambda _: training.a9a_like(_, 400, 100), {"C": 1, "gamma": 0.05})
    ten = training.Training(
        "ten",
        lambda _: training.mnist_like(_, 300, 100),
        {"C": 1, "gamma": 0.02, "multi_class": "crammer_singer", "gap_tol": 0.01},
    )
    monkeypatch.setattr(training, "SETS", {"two": two, "ten": ten})
    monkeypatch.setattr(training, "FITS", 2)


def test_training(small: None, shape: str, device: str, tmp_path: Path) -> None:
    for name, d in (("two", 123), ("ten", 784)) if shape == "cpu" else (("two", 123),):
        found = merged(training.train(asked(device, tmp_path, 60.0), name))
        assert "ending" not in found
        assert found["report"]["converged"]
        assert found["d"] == d
        assert found["checked"]["decisions right"]
        assert found["checked"].get("optimal", True)
        assert found["accuracy"] > 0.7
        assert len(found["warm"]) == 2
        assert ("all_parts" in found) == (shape == "gpu")
        record = {"step": name, "run": "training:train", "status": "ok", "seconds": 1.0, **found}
        assert f"| {name} | {found['n']} x {d}" in summary.markdown({**HEAD, "steps": [record]})
        assert f"set {name}" in summary.said(record)[1]


def test_machines_on_centres(
    small: None, shape: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CENTERS": 64, "ROWS": 400, "LEAST": 200, "FEATURES": (5,), "GROWING": (1024, 1024)}.items():
        monkeypatch.setattr(nystrom, name, value)
    monkeypatch.setattr(nystrom, "MACHINES", {"two": {"penalty": 1e-4, "gamma": 0.05}})
    told = replace(asked(device, tmp_path, 1.0), data=tmp_path)
    found = merged(nystrom.nystrom(told))
    assert "ending" not in found
    assert [one["k"] for one in found["passes"]] == [1, 10]
    assert all(one["right"] and one["gflops"] > 0 for one in found["passes"])
    (machine,) = found["machines"]
    assert machine["accuracy"] > 0.7
    assert machine["m"] == 1024
    record = {"step": "machines on centres", "run": "nystrom:nystrom", "status": "ok", "seconds": 1.0, **found}
    page = summary.markdown({**HEAD, "steps": [record]})
    assert "## Passes over rows" in page
    assert "## Machines on centres" in page
    monkeypatch.setattr(nystrom, "TOLERANCE", -1.0)
    monkeypatch.setattr(nystrom, "MACHINES", {})
    with pytest.raises(ArithmeticError, match="d = 5, k = 10"):
        list(nystrom.nystrom(told))


def test_tables_of_runs_that_are_kept() -> None:
    files = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("gpu-*.json"))
    assert files
    kept = {file.stem.removesuffix("-2026-11-27"): json.loads(file.read_text("utf-8")) for file in files}
    for name, result in kept.items():
        title, least = ("Passes over rows", 4) if name == "gpu-h100-passes" else ("Training", 6)
        assert summary.section(result, title).count("\n") >= least
        assert summary.section(result, title) in summary.markdown(result)
        assert summary.section(result, "Peers").count("ThunderSVM") == 4 * (name == "gpu-h100")


def test_kernels_of_a_fit(
    small: None, shape: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "VERBOSE", {"": "-DNO_MORE"})  # (of any vendor)
    found = merged(kernels.kernels(asked(device, tmp_path, 60.0), "two"))
    assert "ending" not in found
    assert (found["n"], found["d"]) == (400, 123)
    assert found["launches"] == sum(one["launches"] for one in found["kernels"]) > 5
    assert 0 < found["busy"] == pytest.approx(sum(one["seconds"] for one in found["kernels"]))
    assert found["busy"] <= 1.01 * found["span"] < 2 * found["fit_seconds"]  # (one queue: nothing at the same time)
    assert all(0 < one["longest"] <= 1.0001 * one["seconds"] for one in found["kernels"])
    assert (np.diff([one["seconds"] for one in found["kernels"]]) <= 0).all()
    named = [one["kernel"] for one in found["kernels"]]
    assert {"gather", "subproblem"} < set(named)
    record = {"step": "kernels two", "run": "kernels:kernels", "status": "ok", "seconds": 1.0, **found}
    assert {one["kernel"] for one in found["logs"]} <= set(named)
    assert sum("-DV=" in one["options"] for one in found["logs"]) > 3
    assert f"| two | {named[0]} |" in summary.markdown({**HEAD, "steps": [record]})
    assert f"{found['launches']} launches" in summary.said(record)[1]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.5), (1.0, -0.5), (3.0, 0.0), (0.5, 0.0)])
def test_a_wrong_model_is_seen(
    small: None, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, shift: float
) -> None:
    fit = training.fit

    def spoilt(parameters: Any, X: Any, y: Any) -> Any:
        model, seconds = fit(parameters, X, y)
        model.dual_coef_ = scale * model.dual_coef_
        model.intercept_ = scale * model.intercept_ + shift
        return model, seconds

    monkeypatch.setattr(training, "fit", spoilt)
    found = merged(training.train(asked(device, tmp_path, 60.0), "two"))
    assert isinstance(found["ending"], ArithmeticError)
    assert not found["checked"]["decisions right"]
    assert not found["checked"]["optimal"]


def test_slow_devices_take_fewer_rows(
    small: None, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "speed", lambda bench: 1e-3)
    found = merged(training.train(asked(device, tmp_path, 9.84), "two"))
    assert (found["n"], found["of"]) == (100, 400)  # 2 d n^2 at 1e6 a second in a quarter of the limit


def test_stand_ins_have_the_shape_of_what_they_stand_for() -> None:
    X, y, X_test, y_test = training.a9a_like(Path(), 3000, 50)
    assert X.shape == (3000, 123)
    assert X_test.shape == (50, 123)
    assert np.all(np.diff(X.indptr) == 14)
    assert np.all(X.data == 1)
    assert 0.2 < np.mean(y == 1) < 0.28
    assert set(y_test) == {-1, 1}
    X, y, X_test, y_test = training.mnist_like(Path(), 500, 50)
    assert X.shape == (500, 784)
    assert X.min() == 0
    assert X.max() <= 1
    assert 0.15 < np.mean(X > 0) < 0.25
    assert len(np.unique(y)) == 10


# The suite.

TESTS = """
import os, time, pytest
def test_passes(): pass
def test_fails(): assert 1 == 2, "one is not two"
def test_crashes(): os.abort()
def test_hangs(): time.sleep(60)
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError("no fixture")
def test_errs(broken): pass
@pytest.fixture
def richer(): import no_such_module
def test_lacks(richer): pass
def test_passes_at_the_end(): pass
"""


def test_a_suite_outlives_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folder = tmp_path / "root", tmp_path / "steps"
    root.mkdir()
    folder.mkdir()
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "test_a.py").write_text(TESTS)
    (root / "test_b.py").write_text("def test_more(): pass\n")
    (root / "test_c.py").write_text("import no_such_module\n")
    (root / "test_d.py").write_text("import clsvm.no_such_module\n")
    (folder / "tests.jsonl").write_text('{"start": "test_a.py::test_cut_off_before", "at": 0}\n')  # no one's fault
    monkeypatch.setattr(suite, "HANG", (1.0, 1.0))
    found = merged(suite.suite(asked("", folder, 60.0), True, root, ("test_a.py",)))
    counts = {"passed": 2, "skipped": 1, "failed": 1, "crashed": 1, "hung": 1, "error": 1, "lacking": 1}
    assert (found["tests"], found["collected"], found["earlier"]) == (counts, 8, 0)
    assert isinstance(found["ending"], AssertionError)
    messages = {name.partition("::")[2]: one["message"] for name, one in found["failures"].items()}
    assert messages["test_fails"][0] == "AssertionError: one is not two"
    assert messages["test_errs"] == ["ValueError: no fixture"]
    assert messages["test_hangs"] == ["ran longer than 1 s"]
    assert set(messages) == {"test_fails", "test_errs", "test_hangs", "test_crashes"}
    found = merged(suite.suite(asked("", folder, 60.0), False, root))
    assert (found["tests"], found["earlier"]) == ({"passed": 1, "error": 1, "lacking": 1}, 8)
    assert found["lacking"] == ("test_a.py::test_lacks", "test_c.py")
    assert found["failures"]["test_d.py"]["message"] == ["ModuleNotFoundError: No module named 'clsvm.no_such_module'"]


def test_a_suite_that_dies_between_its_tests_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("def test_one(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "import os, pathlib\n"
        "seen = pathlib.Path(__file__).with_name('seen')\n"
        "seen.write_text(seen.read_text() + 'x' if seen.exists() else 'x')\n"
        "if len(seen.read_text()) in (1, 3, 4, 5):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    found = merged(suite.suite(asked("", tmp_path, 60.0), False, tmp_path))
    assert found["tests"] == {"passed": 1}
    assert "ending" not in found
    found = merged(suite.suite(asked("", tmp_path, 60.0), False, tmp_path))
    assert "pytest ended before its tests: signal -9" in str(found["ending"])
    assert (tmp_path / "seen").read_text() == "x" * 5


def test_a_suite_that_is_cut_off_says_how_much_is_left(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("import time\ndef test_one(): pass\ndef test_two(): time.sleep(60)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    found = merged(suite.suite(asked("", tmp_path, 3.0), False, tmp_path))
    assert isinstance(found["ending"], PartialError)
    assert found["tests"] == {"passed": 1}
    assert "1 of 2 tests to go" in str(found["ending"])
    assert list(found["running"]) == ["test_a.py::test_two"]


def test_kernels_of_the_device_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugin._own, "profile", "")
    monkeypatch.setenv("CLSVM_PROFILE", "nvidia")

    def rank(*fixtures: str, **params: Any) -> int:
        return plugin._rank(SimpleNamespace(fixturenames=fixtures, callspec=SimpleNamespace(params=params)))

    assert rank("device", profile="gpu-pair") == rank("device", kind="csr") == 0
    assert rank("tmp_path") == plugin._rank(SimpleNamespace()) == 1
    assert rank("device", profile="cpu") == 2


# The summary.

HEAD: dict[str, Any] = {
    "date": "today", "device": "d", "minutes": 9, "machine": {"cpu": "c", "cores": 1, "python": "3"}, "versions": {}
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_record_that_breaks_off_is_shown_as_far_as_it_goes(step: Any) -> None:
    record = {"step": step.name, "run": step.run, "status": "killed", "seconds": 1.0, "error": "stopped\nand more"}
    assert summary.said(record) == ["killed in 1.0 s: stopped"]
    assert f"| {step.name} | killed | 1.0 | stopped |" in summary.markdown({**HEAD, "steps": [record]})


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    steps.write(
        tmp_path / "one", {"a": np.float32(0.5), "b": np.nan, "c": (np.int64(3), True), "d": Path("x"), 5: None}
    )
    assert json.loads((tmp_path / "one").read_text()) == {"a": 0.5, "b": None, "c": [3, True], "d": "x", "5": None}
