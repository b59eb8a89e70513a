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

from clsvm import SVC, OneClassSVM, report
from clsvm import report as display
from clsvm.gram import layouts
from clsvm.kernels import make
from clsvm.opencl.stream import Stream
from clsvm.report import PARTS, Display, FitReport, Point, Progress
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
    before = made(trace=TRACE, selection="16 rows", layout_costs={"dense": 30.0, "csr": 12.5})
    after = pickle.loads(pickle.dumps(before))
    assert after == before
    assert all(isinstance(point, Point) for point in after.trace)
    with pytest.raises(FrozenInstanceError):
        before.trace = ()  # type: ignore[misc]


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


def test_the_gap_is_relative_for_negative_objectives_too() -> None:
    assert report.relative_gap(-2.0, -3.0) == report.relative_gap(3.0, 2.0) == pytest.approx(2 / 5)
    assert (report.relative_gap(0.0, 0.0), report.relative_gap(math.nan, 1.0)) == (0.0, math.inf)
    model = OneClassSVM(nu=0.1, gamma=0.05).fit(np.random.default_rng(0).normal(size=(1500, 20)))
    assert 0 <= model.fit_report_.gap < 1e-5 < model.fit_report_.primal - model.fit_report_.dual


def test_numpys_numbers_are_plain() -> None:
    read = made(steps=np.int64(7), gap=np.float32(0.5), seconds={"total": np.float64(1.5)}).to_dict()
    assert (read["steps"], read["gap"], read["seconds"]) == (7, 0.5, {"total": 1.5})
    assert json.loads(json.dumps(read)) == read
    assert read["converged"] is True


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the seconds that have passed; the terminal has 80 columns."""
    now = [0.0]
    monkeypatch.setattr(display, "perf_counter", lambda: now[0])
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    return lambda seconds: now.__setitem__(0, seconds)


@pytest.mark.parametrize(
    ("gap_tol", "phase", "words"),
    [
        (1e-6, "", "0:00:50 left, gap 0.002, 300 steps, 200 rows/s"),
        (None, "", "0:00:45 left, violation 0.001, 300 steps, 200 rows/s"),
        (None, "checking in float64", "0:00:45 left, checking in float64"),
    ],
)
def test_a_terminal_has_a_bar(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None], gap_tol: float | None, phase: str, words: str
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    with Display(True, tol=1e-6, gap_tol=gap_tol) as take:
        assert take is not None
        for point in TRACE:
            clock(60 * point.seconds)
            take(point)
        if phase:
            take.phase(phase)
    assert re.search(rf"[━╸╺]{{16}} \S+ {words}", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stderr.getvalue()))


@given(st.lists(st.floats(-1, 1e3), min_size=1, max_size=30))
def test_the_bar_never_goes_back(values: list[float]) -> None:
    shares: list[float] = []
    take = Display(True, tol=1e-3)
    take.show = lambda words, share: shares.append(share)  # type: ignore[method-assign]
    for value in values:
        take(Point(1.0, 1, 1, math.nan, math.nan, math.nan, value))
    assert shares == sorted(shares)
    assert 0 <= min(shares) <= max(shares) <= 1


def test_lines_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]) -> None:
    """One every ten seconds, by the clock of the process, and one at the end; a fit without points has none."""
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    with Display(True, tol=1e-3) as take:
        assert take is not None
        for now in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0):
            clock(now)
            take(Point(now, int(now), 1, math.nan, math.nan, math.nan, 2.0**-now, 100))
        clock(31.0)
        take.phase("checking in float64")
        clock(32.5)
    assert stderr.getvalue().splitlines() == [
        "clsvm: 0:00:00 left, violation 0.00098, 10 steps, 10 rows/s",
        "clsvm: 0:00:00 left, violation 4.8e-07, 21 steps, 5 rows/s",
        "clsvm: 0:00:00 left, checking in float64",
        "clsvm: violation 4.8e-07, 21 steps, 5 rows/s, 32.5 s",
    ]
    monkeypatch.setattr(sys, "stderr", stderr := io.StringIO())
    with Display(True, tol=1e-3):
        pass
    assert stderr.getvalue() == ""


@pytest.mark.parametrize(("stderr", "slow"), [(Terminal(), False), (io.StringIO(), True), (Terminal(), True)])
def test_what_is_counted_has_a_bar_where_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None], stderr: io.StringIO, slow: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with Progress(lines=False) as shown:
        assert shown is not None
        for done in (1, 2):
            clock(done * (30.0 if slow else 0.1))
            shown.show(f"predicting, {done} of 4", done / 4)
    assert ("0:01:00 left, predicting, 2 of 4" in stderr.getvalue()) == (slow and stderr.isatty())
    assert bool(stderr.getvalue()) == (slow and stderr.isatty())
