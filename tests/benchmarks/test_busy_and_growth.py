"""Fits beside a busy process and over the rows at tiny sizes: verdicts and tables. Seconds are not looked at."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import solvers, table
from benchmarks.boostsvm.limited import TooLongError
from benchmarks.boostsvm.machines import Contestant
from benchmarks.speed import busy, growth
from tests.commands import HEAD, measured

pytestmark = pytest.mark.full

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells of its processes so")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# busy


@linux
def test_the_busy_process_computes_and_ends_with_the_block() -> None:
    with busy.busy() as process:
        before, began = processor_seconds(process.pid), time.perf_counter()
        while time.perf_counter() < began + 10 and processor_seconds(process.pid) < before + 0.1:
            time.sleep(0.02)
        assert processor_seconds(process.pid) >= before + 0.1
    assert not alive(process.pid)


@linux
def test_the_busy_process_ends_with_a_benchmark_that_is_killed() -> None:
    text = (
        "import os\nfrom benchmarks.speed.busy import busy\n"
        "with busy() as process:\n    print(process.pid, flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).parents[2])
    found = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=False, cwd=root)
    pid, began = int(found.stdout), time.perf_counter()
    while alive(pid) and time.perf_counter() < began + 20:
        time.sleep(0.05)
    assert not alive(pid)


def test_fits_alone_and_beside_a_busy_process(here: None, device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "breast_cancer", "--peers", "libsvm", "--repeats", "3", "--device", device
    code, result, shown = measured(tmp_path, capsys, "busy", *words)
    (one,) = result["sets"]
    assert code == 0
    assert [row["solver"] for row in one["rows"]] == ["clsvm", "libsvm"]
    for row in one["rows"]:
        assert len(row["alone"]["seconds"]) == len(row["beside"]["seconds"]) == 3
        assert row["warm"] == np.median(row["alone"]["seconds"][1:])
        assert row["ratio"] == pytest.approx(np.median(row["beside"]["seconds"][1:]) / row["warm"])
        assert row["misses"] == []
    assert one["asked"] is None
    assert "| breast_cancer 426x30 | clsvm (dense float64) |" in shown


def fits(ratio: float, missed: str = "", solver: str = "clsvm", warm: float = 1.0) -> dict[str, Any]:
    half = {"error": "", "dual": 2.0, "violation": 1e-3, "misses": [], "solver": solver, "form": "dense"}
    return busy._row(half | {"warm": warm}, half | {"warm": ratio * warm, "misses": [missed] * bool(missed)})


def test_what_is_asked_beside_a_busy_process() -> None:
    peer = fits(1.5, solver="onedal"), fits(1.1, solver="onedal", warm=2.0)  # (the first form is the faster one)
    assert busy._asked([fits(1.5), *peer]) is True
    assert busy._asked([fits(1.51), *peer]) is False
    assert busy._asked([fits(9.0)]) is None
    good = {"set": "s", "n": 3, "d": 2, "rows": [fits(1.2), *peer], "asked": True}
    assert busy.holds({"sets": [good]})
    assert not busy.holds({"sets": [good | {"asked": False}]})
    assert not busy.holds({"sets": [good | {"rows": [fits(1.2, "KKT violation"), *peer]}]})
    assert not busy.holds({"sets": [{"set": "s", "error": "ValueError: no"}]})
    spoilt = good | {"rows": [fits(1.2), fits(1.5, "KKT violation", "onedal")]}
    text = table.markdown(HEAD | {"sets": [spoilt, {"set": "broken", "error": "ValueError: no"}]}, busy.LAYOUT)
    assert "| s 3x2 | clsvm (dense) | 1 | 1.2 | 1.20 | 2 | 1.00e-03 | yes |" in text
    assert "|  | onedal (dense)* | 1 | 1.5 | 1.50 |" in text
    assert "s, onedal (dense): KKT violation" in text
    assert "broken: ValueError: no" in text
    failed = busy._row(fits(1.0)["alone"], {"error": "MemoryError: no"})
    assert failed["error"] == "MemoryError: no"


# growth


class Stub:
    """A worker that fits in this process, and takes too long for more than ``most`` rows."""

    def __init__(self, answer: Any, most: float) -> None:
        self.answer, self.most = answer, most

    def ask(self, question: Any) -> Any:
        if question != "solution" and question > self.most:
            raise TooLongError("> 1 s")
        return self.answer(question)


def growing(monkeypatch: pytest.MonkeyPatch, **most: float) -> None:
    """Solvers that end at so many rows."""

    @contextmanager
    def at_work(limit: float, make: Any, asked: Sequence[Any]) -> Iterator[list[Contestant]]:
        yield [Contestant(name, n, Stub(make(*given), most.get(name, math.inf))) for name, n, given in asked]  # type: ignore[arg-type]

    monkeypatch.setattr(growth, "at_work", at_work)


def test_seconds_over_the_rows(
    here: None, device: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "FIRST", 200)
    picture = tmp_path / "new" / "growth.png"
    words = ["--sets", "digits8", "--peers", "libsvm", "--C", "1", "10", "--rows", "1000", "--limit", "0"]
    words += ["--repeats", "2", "--device", device, *(["--plot", str(picture)] if find_spec("matplotlib") else [])]
    code, result, shown = measured(tmp_path, capsys, "growth", *words)
    assert code == 0
    assert [(one["set"], one["C"], one["d"]) for one in result["sets"]] == [("digits8", 1.0, 64), ("digits8", 10.0, 64)]
    for one in result["sets"]:
        assert [point["n"] for point in one["points"]] == [200, 400, 800]
        for point in one["points"]:
            ours, theirs = point["rows"]
            assert (ours["solver"], theirs["solver"]) == ("clsvm", "libsvm")
            assert ours["misses"] == theirs["misses"] == []
            assert ours["dual"] == pytest.approx(theirs["dual"], rel=1e-5)
            assert len(ours["all_seconds"]) == 2
        assert one["exponents"] == one["common"]
        assert (one["exponents"]["clsvm"]["from"], one["exponents"]["clsvm"]["to"]) == (200, 800)
    first, second = ([row["dual"] for row in one["points"][0]["rows"]] for one in result["sets"])
    assert first[0] < second[0]
    assert "| digits8 | 1 | 200 |" in shown
    assert "| exponent |" in shown
    assert not find_spec("matplotlib") or picture.read_bytes().startswith(b"\x89PNG")


def test_a_series_ends_where_a_fit_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FIRST", 100)
    growing(monkeypatch, libsvm=250)
    one = growth.series("digits8", growth.Options(("libsvm",), repeats=1, rows=800))
    assert [[row["solver"] for row in point["rows"]] for point in one["points"]] == [
        *[["clsvm", "libsvm"]] * 3,
        ["clsvm"],
    ]
    assert [row["failed"] for row in one["points"][2]["rows"]] == ["", "> 1 s"]
    assert growth.seconds_of(one["points"], "libsvm").keys() == {100, 200}
    slopes = one["exponents"]["clsvm"], one["common"]["clsvm"], one["common"]["libsvm"]
    assert [(slope["from"], slope["to"]) for slope in slopes] == [(100, 800), (100, 200), (100, 200)]
    text = table.markdown(HEAD | {"sets": [one]}, growth.LAYOUT)
    assert " | > 1 s |" in text
    assert growth.holds({"sets": [one]})
    growing(monkeypatch, clsvm=0)
    assert not growth.holds({"sets": [growth.series("digits8", growth.Options(repeats=1, rows=800))]})


def test_slow_fits_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FIRST", 100)
    growing(monkeypatch)
    for allowed, fitted in ((60.0, 3), (1e-9, 1)):
        one = growth.series("digits8", growth.Options(repeats=3, rows=100, limit=allowed))
        assert len(one["points"][0]["rows"][0]["all_seconds"]) == fitted


def test_a_spoilt_solution_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(model: Any) -> Any:
        found = solution(model)
        found.dual_coef_ = 0.99 * found.dual_coef_
        return found

    solution = solvers.solution
    monkeypatch.setattr(growth, "FIRST", 100)
    monkeypatch.setattr(solvers, "solution", spoilt)
    growing(monkeypatch)
    one = growth.series("digits8", growth.Options(repeats=1, rows=100))
    assert "KKT" in " ".join(one["points"][0]["rows"][0]["misses"])
    assert not growth.holds({"sets": [one]})
    text = table.markdown(HEAD | {"sets": [one]}, growth.LAYOUT)
    assert "* |" in text
    assert "digits8, C = 1, 100 rows, clsvm (dense float64): KKT" in text


def test_a_fit_in_its_own_process_is_ended(device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "breast_cancer", "--C", "1", "--limit", "1e-4", "--repeats", "1", "--device", device
    code, result, shown = measured(tmp_path, capsys, "growth", *words)
    assert code == 1
    (row,) = result["sets"][0]["points"][0]["rows"]
    assert row["too_long"]
    assert "| > 0.0001 s |" in shown


def test_the_exponent_is_of_the_largest_numbers_of_rows() -> None:
    found = growth.exponent({n: (7e-9 * n**1.7 if n > 1000 else 5.0) for n in (500, 1000, 2000, 4000, 8000, 16000)})
    assert found == {"exponent": pytest.approx(1.7), "from": 2000, "to": 16000}
    assert growth.exponent({1000: 1.0}) is None
    assert list(growth.sizes(60000)) == [1000, 2000, 4000, 8000, 16000, 32000, 60000]
    assert list(growth.sizes(581012))[-2:] == [256000, 512000]
    assert list(growth.sizes(400)) == [400]
    assert list(growth.sizes(1000)) == [1000]


def test_a_panel_takes_axes_and_returns_them() -> None:
    plot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = plot.subplots()
    rows = [{"solver": "clsvm", "seconds": 0.1, "failed": ""}, {"solver": "libsvm", "failed": "> 1 s"}]
    slopes = {"clsvm": {"exponent": 1.5}, "libsvm": None}
    one = {"set": "s", "d": 3, "C": 1.0, "exponents": slopes, "points": [{"n": 10, "rows": rows}]}
    assert growth.panel(axes, one) is axes
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[10, 0.1]]
    assert line.get_label() == "clsvm, exponent 1.50"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    plot.close(figure)
