"""The report of a fit: its points, parts and JSON; and the display that shows the points while they come."""

import io
import json
import math
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clsvm import SVC, report
from clsvm import report as display
from clsvm.gram import layouts
from clsvm.kernels import make
from clsvm.opencl.stream import Stream
from clsvm.report import PARTS, Display, FitReport, Point, TimeEstimate, counting, labelled
from tests.conftest import noisy

TRACE = tuple(
    Point(
        seconds=t / 4, steps=100 * t, outer=t, primal=2.0, dual=1.0, gap=2 * 10.0**-t, violation=10.0**-t, rows=50 * t
    )
    for t in range(4)
)


def made(**changed: Any) -> FitReport:
    """A report as a fit fills it."""
    numbers = {"primal": 2.0, "dual": 1.0, "gap": 2 / 3, "violation": 5e-4, "error_bound": 1e-7}
    counts = {"exact_rows": 3, "steps": 300, "outer_steps": 3, "rows_computed": 40, "bytes_held": 10**9}
    seconds = {"check": 0.5, "layout": 1.0, "select": 2.0, "subproblem": 3.0, "tile": 4.0, "rows": 5.0, "exact": 6.0}
    seconds |= {"other": 7.0, "total": 30.0}
    words = {"status": "converged: the KKT violation is within tol", "converged": True, "device": "one"}
    words |= {"layout": "dense", "working_set_size": 512, "dtype": "float32"}
    return FitReport(**(numbers | counts | words | {"seconds": seconds} | changed))


def test_it_is_frozen_and_pickles() -> None:
    costs = {"dense": 30.0, "csr": 12.5}
    before = made(trace=TRACE, selection="16 rows, no cache: they are cheap", layout_costs=costs)
    after = pickle.loads(pickle.dumps(before))
    assert after == before
    assert all(isinstance(point, Point) for point in after.trace)
    with pytest.raises(FrozenInstanceError):
        before.trace = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        after.seconds["total"] = 0.0
    with pytest.raises(TypeError):
        after.layout_costs["csr"] = 0.0
    costs["csr"] = 0.0
    assert (before.layout_costs["csr"], after.layout_costs["csr"]) == (12.5, 12.5)


def test_json_has_every_field() -> None:
    before = made(trace=TRACE, selection="why", layout_costs={"dense": 30.0, "csr": 12.5})
    read = json.loads(json.dumps(before.to_dict(), allow_nan=False))
    assert list(read) == [field.name for field in fields(FitReport)]
    assert [Point(**point) for point in read["trace"]] == list(TRACE)
    assert FitReport(**read | {"trace": tuple(Point(**point) for point in read["trace"])}) == before


def test_numbers_that_json_lacks_are_none() -> None:
    point = Point(0.0, 0, 0, math.nan, -math.inf, math.inf, 1.0)
    read = json.loads(json.dumps(made(gap=math.inf, violation=math.nan, trace=(point,)).to_dict(), allow_nan=False))
    assert (read["gap"], read["violation"], read["primal"]) == (None, None, 2.0)
    assert [read["trace"][0][name] for name in ("primal", "dual", "gap", "violation")] == [None, None, None, 1.0]


def test_numpys_numbers_are_plain() -> None:
    read = made(steps=np.int64(7), gap=np.float32(0.5), seconds={"total": np.float64(1.5)}).to_dict()
    assert (read["steps"], read["gap"], read["seconds"]) == (7, 0.5, {"total": 1.5})
    assert json.loads(json.dumps(read)) == read
    assert read["converged"] is True
    with pytest.raises(TypeError, match="expected a number"):
        made(device=object()).to_dict()


@pytest.mark.parametrize("layout", ["auto", "csr"])
def test_a_fit_reports_what_each_layout_would_cost(device: str, layout: str) -> None:
    """In dense multiply-adds a value of K; what kernel functions do not have is not estimated."""
    X, y = noisy(200, 4)
    wide = np.pad(X, ((0, 0), (0, 36)))  # 40 columns, 4 of them with entries
    with Stream(device) as stream:
        costs = layouts.choose(stream.profile, wide, make("rbf").spec, layout, working=150).costs
    model = SVC(device=device, layout=layout, working_set_size=150)
    for found in (model.fit(wide, y).fit_report_, model.fit(wide, np.arange(200) % 3).fit_report_):
        assert found.layout_costs == pytest.approx(costs)
        assert set(found.layout_costs) >= {"dense", "csr"}
        assert found.to_dict()["layout_costs"] == dict(found.layout_costs)
    laplacian = SVC(device=device, kernel="laplacian", layout=layout).fit(wide, y).fit_report_
    assert set(laplacian.layout_costs) == set(costs) - {"clustered", "inverted"}
    assert SVC(device=device, kernel="precomputed").fit(X @ X.T, y).fit_report_.layout_costs == {}


# Seconds by part


def test_parts_are_sums_of_seconds() -> None:
    assert report.by_part({"cluster": 1.0, "gram": 2.0, "update": 3.0, "gap": 4.0}) == {
        "clustering": 1.0, "selection": 0, "gram": 2.0, "subproblem": 0, "update": 3.0, "other": 4.0,
    }  # fmt: skip
    told = report.by_part({"spam": 1.0, "tile": 2.0, "total": 9.0})
    assert (sum(told.values()), told["other"], list(told)) == (9, 7, list(PARTS)), "what no part names is other"


# Progress


@given(st.floats(0.1, 10), st.floats(1e-6, 1e-2), st.integers(2, 50))
def test_time_left_of_an_exponential(rate: float, goal: float, looks: int) -> None:
    """exp(-rate t) reaches the goal at log(1 / goal) / rate, wherever on its way it is looked at."""
    end = math.log(1 / goal) / rate
    course = TimeEstimate(goal)
    for t in np.linspace(0, 0.9 * end, looks):
        course.add(t, math.exp(-rate * t))
    assert course.left == pytest.approx(0.1 * end, rel=1e-6)
    assert course.done == pytest.approx(0.9, rel=1e-6)
    course.add(end, goal)
    assert (course.left, course.done) == (0, 1)


def test_time_left_is_unknown_without_a_slope() -> None:
    course = TimeEstimate(1e-3)
    assert (course.left, course.done) == (None, 0)
    course.add(0.0, math.nan).add(0.0, math.inf)
    assert (course.left, course.done) == (None, 0)
    course.add(0.0, 1.0).add(1.0, 1.0).add(2.0, 5.0)
    assert (course.left, course.done) == (None, 0)
    assert TimeEstimate(1e-3).add(0.0, 1e-4).left == 0
    assert TimeEstimate(1e-3).add(0.0, 1e-4).done == 1


def test_time_left_holds_near_the_end() -> None:
    """The value goes up and down around its trend and dips below the goal long before the trend does."""
    course, rate = TimeEstimate(1e-3), math.log(1e3) / 100

    def value(t: int) -> float:
        return math.exp(-rate * t) * (0.1 if t % 10 == 0 else 1.0)

    for t in range(1, 98):
        course.add(t, value(t))
        if t > 50 and t % 10:
            assert course.left is not None
            assert 0.5 * (100 - t) - 2 < course.left < 1.5 * (100 - t) + 2, t


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 1e3)), max_size=30))
def test_the_bar_never_goes_back(looks: list[tuple[float, float]]) -> None:
    course, done = TimeEstimate(1e-3), 0.0
    for seconds, value in sorted(looks):
        before, done = done, course.add(seconds, value).done
        assert 0 <= before <= done <= 1
        assert course.left is None or course.left >= 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The last line of a terminal of 80 columns after a display has got some points."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def show(display: Callable[[], Display], *points: Point, use: Callable[[Display], None] | None = None) -> str:
        monkeypatch.setattr(sys, "stderr", stderr := Terminal())
        with display() as take:
            assert take is not None
            for point in points:
                take(point)
            if use is not None:
                use(take)
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr.getvalue())
        return [line for line in re.split("[\r\n]+", text) if line.strip()][-1]

    return show


@pytest.mark.parametrize(("gap_tol", "words"), [(1e-6, "gap 0.002"), (None, "violation 0.001")])
def test_the_display_shows_the_last_point(shown: Callable[..., str], gap_tol: float | None, words: str) -> None:
    line = shown(lambda: Display(True, tol=1e-6, gap_tol=gap_tol), *TRACE)
    assert re.search(rf"\d:\d\d:\d\d 0:00:01 left, {words}, 300 steps, 200 rows/s", line)


def test_the_display_says_what_has_no_points(shown: Callable[..., str]) -> None:
    """Until the next point, and with the words that stand before all of it."""

    def checking(display: Display) -> None:
        display(TRACE[0])
        display.phase("checking in float64")

    with labelled("fold 2 of 5"):
        line = shown(lambda: Display(True, tol=1e-6), use=checking)
        assert re.search("fold 2 of 5: checking in float64", line)
        line = shown(lambda: Display(True, tol=1e-6), *TRACE)
        assert re.search(r"^[━╸╺]{16} 0:00:00 fold 2 of 5: 0:00:01 left, violation 0.001, 300 steps", line)
    assert "fold" not in shown(lambda: Display(True, tol=1e-6), *TRACE)


def test_lines_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One every ten seconds, by the clock of the process, and one at the end; a fit without points has none."""
    now = 0.0
    monkeypatch.setattr(display, "perf_counter", lambda: now)
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    with labelled("fold 2 of 5"), Display(True, tol=1e-3) as take:
        assert take is not None
        for now in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0):
            take(Point(now, int(now), 1, math.nan, math.nan, math.nan, 2.0**-now, 100))
        now = 31.0
        take.phase("checking in float64")
        now = 32.5
    lines = stderr.getvalue().splitlines()
    assert [re.findall(r"(\d+) steps|(checking in float64)", line) for line in lines] == [
        [("10", "")],
        [("21", "")],
        [("", "checking in float64")],
        [("21", "")],
    ]
    assert lines[0] == "clsvm: fold 2 of 5: 0:00:00 left, violation 0.00098, 10 steps, 10 rows/s"
    assert lines[-1] == "clsvm: fold 2 of 5: violation 4.8e-07, 21 steps, 5 rows/s, 32.5 s"
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    with Display(True, tol=1e-3):
        pass
    assert stderr.getvalue() == ""


def test_what_is_counted_has_a_bar_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    now = 0.0
    monkeypatch.setattr(display, "perf_counter", lambda: now)
    for stderr, slow in (Terminal(), False), (io.StringIO(), True), (Terminal(), True):
        monkeypatch.setattr(sys, "stderr", stderr)
        now = 0.0
        with counting("{left} left, predicting, {done} of {total}", 300) as done:
            for count in (100, 200):
                now += 30.0 if slow else 0.1
                done(count)
        assert ("0:00:30 left, predicting, 200 of 300" in stderr.getvalue()) == (slow and stderr.isatty())
        assert bool(stderr.getvalue()) == (slow and stderr.isatty())
