"""The ladder's kernels against NumPy, and its records and tables; no test looks at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import ladder, ladder_plot
from benchmarks.__main__ import main
from benchmarks.ladder_device import Bench
from benchmarks.ladder_extremes import FORMS, Extremes, shapes
from benchmarks.ladder_rungs import RUNGS, Matrix, Problem, Rung
from tests.conftest import simulated

pytestmark = pytest.mark.full

TINY = ladder.Sizes(5, ((2, 40), (3, 17)), (16, 33), (64, 100), 1 << 16, 4, 0.0, (16,))


class Device:
    """A pyopencl device some of whose properties are others."""

    def __init__(self, device: Any, **other: Any) -> None:
        self._device, self._other = device, other

    def __getattr__(self, name: str) -> Any:
        return self._other[name] if name in self._other else getattr(self._device, name)


def check(bench: Bench, rung: Rung, n: int, d: int, W: int) -> None:
    with bench.section() as part:
        problem = Problem(Matrix(part, n, d), W)
        if reason := rung.lacks(problem):
            pytest.skip(reason)
        one = rung.prepare(problem)
        one.clear()
        one.launch(n)
        assert problem.error(one.read, n) < 1e-5, (rung.name, n, d, W)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rungs(device: str, profile: str, rung: Rung) -> None:
    with Bench(device) as bench:
        for n, d, W in ((1, 1, 1), (17, 5, 2), (300, 33, 16), (300, 5, 19), (17, 33, 1), (2000, 261, 9)):
            check(bench, rung, n, d, W)


@pytest.mark.oclgrind
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_small_rungs(device: str, profile: str, rung: Rung) -> None:
    if simulated(device) and rung.name.startswith("images"):
        pytest.skip("Oclgrind takes every image argument for uninitialised, its width included")
    with Bench(device) as bench:
        check(bench, rung, 19, 5, 3)


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung.name != "clsvm"], ids=lambda rung: rung.name)
def test_fewer_rows(device: str, rung: Rung) -> None:
    """A rung that is asked for m rows does those, and does not touch the others' results beyond a vector's width."""
    with Bench(device) as bench:
        problem = Problem(Matrix(bench, 400, 7), 3)
        if reason := rung.lacks(problem):
            pytest.skip(reason)
        one = rung.prepare(problem)
        if not one.partial:
            return
        one.clear()
        one.launch(100)
        assert problem.error(one.read, 100) < 1e-5
        assert not one.read(np.arange(112, 400)).any()
        assert problem.error(one.read, 400) > 0.01


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_lanes(device: str, lanes: int) -> None:
    with Bench(device) as bench:
        bench.lanes = lanes
        for rung in RUNGS:
            if not rung.lacks(Problem(Matrix(bench, 8, 2), 2)):
                check(bench, rung, 77, 9, 5)


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if "images" in rung.name], ids=lambda rung: rung.name)
def test_images_narrower_than_a_row(device: str, rung: Rung) -> None:
    with Bench(device) as bench:
        bench.device = Device(bench.device, image2d_max_width=3)
        check(bench, rung, 40, 33, 5)  # 9 pixels in 3 lines
        check(bench, rung, 40, 14, 3)  # 4 pixels in 2 lines
        check(bench, rung, 40, 27, 3)  # 7 pixels in 3 lines, two of them empty


def test_what_a_device_lacks_is_said(device: str) -> None:
    with Bench(device) as bench:
        real, problem = bench.device, Problem(Matrix(bench, 8, 2), 2)
        lacks = {rung.name: rung.lacks for rung in RUNGS}
        bench.device = Device(real, image_support=0)
        assert "no images" in lacks["images, own copy"](problem)
        bench.device = Device(real, local_mem_size=1000)
        assert "local memory" in lacks["local memory"](problem)
        assert lacks["vectorised"](problem) == ""
        if not real.image_support:
            return
        bench.device = Device(real, image2d_max_height=1)
        assert "2 lines of pixels" in lacks["images"](problem)


def data(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return {
        "distinct": lambda: rng.permutation(n).astype(np.float32) - n / 2,
        "ties": lambda: rng.integers(0, 3, n).astype(np.float32),
        "equal": lambda: np.full(n, 7.0, np.float32),
        "infinite": lambda: np.full(n, np.inf, np.float32),
        "both infinite": lambda: np.where(rng.random(n) < 0.5, np.float32(np.inf), np.float32(-np.inf)),
        "falling": lambda: -np.arange(n, dtype=np.float32),
        "rising": lambda: np.arange(n, dtype=np.float32),
    }[kind]()


def find(bench: Bench, x: np.ndarray, n: int) -> None:
    with bench.section() as part:
        buffer = part.stream.upload(x)
        for form in FORMS:
            for shape in shapes(part):
                one = Extremes(part, form, n, shape)
                one.launch(buffer, n)()
                assert one.right(x[:n]), (form.name, shape, n, one.read(), x[:n].argmin(), x[:n].argmax())


@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "infinite", "both infinite", "falling", "rising"])
def test_extremes(device: str, profile: str, kind: str) -> None:
    with Bench(device) as bench:
        for n in (1, 17, 256, 300, 513, 5000, 100_003):
            find(bench, data(kind, n), n)


def test_extremes_of_a_beginning(device: str, profile: str) -> None:
    """What stands beyond the first n numbers is not seen."""
    x = data("distinct", 3000)
    x[-1], x[-2] = -1e9, 1e9
    with Bench(device) as bench:
        find(bench, x, 2990)


def test_an_extreme_anywhere_is_found(device: str, profile: str) -> None:
    """Every lane, chain, step and piece, and the numbers that fill no step."""
    with Bench(device) as bench:
        n = 70_001 if bench.vector else 40_003
        x = np.zeros(n, np.float32)
        buffer = bench.stream.upload(x)
        low, high = (Extremes(bench, form, n) for form in FORMS if form.name in ("argmin", "argmax"))
        for at in [*range(0, 700, 7), *range(n - 700, n, 7), *range(0, n, 1511)]:
            for value, one in ((-1.0, low), (1.0, high)):
                x[at] = value
                bench.stream.write(buffer, x)
                one.launch(buffer, n)()
                assert one.read() == ([value], [at])
                x[at] = 0.0


@pytest.mark.oclgrind
def test_small_extremes(device: str, profile: str) -> None:
    with Bench(device) as bench:
        for n in (1, 700, 40_000 if bench.vector else 9000):
            find(bench, data("ties", n), n)


@pytest.mark.oclgrind
def test_the_peaks_do_what_they_count(device: str, profile: str) -> None:
    """Every multiply-add and every number shows in what the peaks' kernels leave behind."""
    rng = np.random.default_rng(0)
    first = rng.random(64).astype(np.float32)
    with Bench(device) as bench:
        start, out = bench.stream.upload(first), bench.stream.buffer(64)
        local = (1,) if bench.vector else (2,)
        bench.kernel("peaks", "fma_chains", LANES=4, CHAINS=3)((2,), local, 5, 0.5, 0.25, start, out)
        v = first[:12].astype(np.float64)
        for _ in range(5):
            v = v * 0.5 + 0.25
        np.testing.assert_allclose(bench.stream.read(out, np.float32, 2), [v.sum()] * 2, rtol=1e-6)

        bench.kernel("peaks", "exp_chains", LANES=4, CHAINS=2)((2,), local, 3, -0.5, start, out)
        v = first[:8].astype(np.float64)
        for _ in range(3):
            v = np.exp(-0.5 * v)
        np.testing.assert_allclose(bench.stream.read(out, np.float32, 2), [v.sum()] * 2, rtol=1e-6)

        count, items = 16, 2
        x = rng.integers(0, 100, items * count * 4).astype(np.float32)
        buffer = bench.stream.upload(x)
        for streams in (1, 2, 4):
            for pieces in ({"PIECES": None}, {}):
                kernel = bench.kernel("peaks", "read_sum", LANES=4, CHAINS=4, STREAMS=streams, **pieces)
                kernel((items,), local, count, buffer, out)
                whole = x.reshape(items, -1) if pieces else x.reshape(count, items, 4).swapaxes(0, 1)
                expected = whole.reshape(items, -1).sum(axis=1)
                np.testing.assert_array_equal(bench.stream.read(out, np.float32, items), expected)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ladder.SIZES, "small", TINY)


def test_the_command_measures_checks_and_writes(
    tiny: None, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ladder.json"
    assert main(["ladder", "--device", device, "--sizes", "small", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    result = json.loads(out.read_text())
    assert result["kind"] == "ladder"
    assert {"date", "device", "devices", "machine", "versions"} <= set(result)
    assert result["peaks"]["fma_gflops"] > 0
    assert [(group["W"], group["n"], group["d"]) for group in result["groups"]] == [(2, 40, 5), (3, 17, 5)]
    for group in result["groups"]:
        assert [row["name"] for row in group["rungs"]] == [rung.name for rung in RUNGS]
        for row in group["rungs"]:
            if not row["reason"]:
                assert row["right"]
                assert row["gflops"] == pytest.approx(2e-9 * row["rows"] * group["W"] * 5 / row["seconds"])
                assert row["of_bound"] == max(row["of_bandwidth"], row["of_arithmetic"])
    assert [one["n"] for one in result["sweep"]] == [16, 33]
    assert all(one["gflops"]["vectorised"] > 0 for one in result["sweep"])
    assert len(result["reductions"]["rows"]) == 2 * len(FORMS)
    assert main(["table", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in (shown, printed):
        assert all(rung.name in text for rung in RUNGS)
        assert all(form.name in text for form in FORMS)


def test_a_device_without_images_is_a_record_with_a_reason(
    tiny: None, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Imageless(Bench):
        def __init__(self, spec: Any = None) -> None:
            super().__init__(spec)
            self.device = Device(self.device, image_support=0)

    monkeypatch.setattr(ladder, "Bench", Imageless)
    out = tmp_path / "ladder.json"
    assert main(["ladder", "--device", device, "--sizes", "small", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    row = next(row for row in result["groups"][0]["rungs"] if row["name"] == "images")
    assert row == {"name": "images", "what": row["what"], "reason": "the device has no images"}
    assert result["sweep"][0]["gflops"]["images"] is None
    assert "W = 2, images: the device has no images" in capsys.readouterr().out
    assert "|  |  | images | - | - |" in ladder.markdown(result)


def test_a_wrong_rung_is_marked(tiny: None, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ladder.RUNGS[0]

    def spoilt(problem: Problem) -> Any:
        made = good.prepare(problem)
        problem.matrix.gamma *= 1.01  # what NumPy is asked for from now on
        return made

    monkeypatch.setattr(ladder, "RUNGS", (Rung("spoilt", "", spoilt),))
    result = ladder.run(device, TINY) | {"date": "", "machine": {"cpu": "", "cores": 1}}
    assert not ladder.all_right(result)
    assert "| spoilt* |" in ladder.markdown(result)
    assert result["sweep"][0]["gflops"]["spoilt"] is None


def test_a_rung_that_fails_says_why(tiny: None, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Problem) -> Any:
        raise RuntimeError("no such luck\nand more")

    monkeypatch.setattr(ladder, "RUNGS", (Rung("broken", "", broken), ladder.RUNGS[0]))
    result = ladder.run(device, TINY)
    assert [row["reason"] for row in result["groups"][0]["rungs"]] == ["RuntimeError: no such luck", ""]


def test_slow_rungs_are_measured_on_fewer_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "SLOW", 0.0)
    monkeypatch.setattr(ladder, "RUNGS", ladder.RUNGS[:1])
    result = ladder.run(device, ladder.Sizes(3, ((2, 3000),), (64,), (64,), 1 << 16, 4, 0.0, (16,)))
    (row,) = result["groups"][0]["rungs"]
    assert row["rows"] == 1024
    assert row["right"]
    result |= {"date": "", "machine": {"cpu": "", "cores": 1}}
    assert "W = 2, row-major: measured on 1024 rows" in ladder.markdown(result)


def record() -> dict[str, Any]:
    sweep = [{"n": n, "gflops": {"one": n * 0.1, "none": None}} for n in (16, 32)]
    reductions = [{"n": n, "name": "min", "gbs": 3.0, "right": True} for n in (16, 32)]
    peaks = {"read_gbs": 40.0, "fma_gflops": 100.0}
    result = {"device": "d", "date": "", "peaks": peaks, "groups": [{"d": 5}], "sweep": sweep}
    return result | {"reductions": {"peaks": peaks, "rows": reductions}}


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ladder_plot.draw(record(), tmp_path / "new" / "ladder.png")
    assert (tmp_path / "new" / "ladder.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("benchmarks.ladder_plot.importlib.import_module", missing)
    monkeypatch.setattr(ladder, "run", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit, match="matplotlib"):
        main(["ladder", "--sizes", "small", "--plot", str(tmp_path / "ladder.png")])
