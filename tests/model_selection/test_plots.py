"""The pictures: what their artists hold."""

import math
import subprocess
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

import clsvm
from clsvm import plots
from clsvm.report import PARTS, NystromReport, Point, by_part
from tests.estimators.test_report import TRACE, made

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _no_figure_stays() -> Any:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def lines(ax: Any) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): [tuple(map(float, xy)) for xy in line.get_xydata()] for line in ax.lines}


def test_convergence_is_the_trace_on_a_log_scale() -> None:
    ax = plots.convergence(made(trace=TRACE))
    assert lines(ax) == {
        "relative duality gap": [(p.seconds, p.gap) for p in TRACE],
        "KKT violation": [(p.seconds, p.violation) for p in TRACE],
    }
    assert (ax.get_yscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "seconds", "gap, violation")
    assert ax.get_title() == made().status
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["relative duality gap", "KKT violation"]


def test_convergence_leaves_out_what_has_no_logarithm_and_shows_the_end_without_a_trace() -> None:
    nan = Point(0.5, 1, 1, math.nan, math.nan, math.nan, 0.5)
    below = Point(0.75, 1, 1, 1.0, 1.0, -1e-9, 0.0)
    assert lines(plots.convergence(made(trace=(*TRACE[:2], nan, below)))) == {
        "relative duality gap": [(0.0, 2.0), (0.25, 0.2)],
        "KKT violation": [(0.0, 1.0), (0.25, 0.1), (0.5, 0.5)],
    }
    assert list(lines(plots.convergence(made(trace=(nan,))))) == ["KKT violation"]
    ax = plots.convergence(made())
    assert lines(ax) == {"relative duality gap": [(30.0, 2 / 3)], "KKT violation": [(30.0, 5e-4)]}
    assert ax.get_xlabel() == "seconds (no trace was kept: the end alone)"
    ax = plots.convergence(made(gap=math.nan, violation=0.0))
    assert (lines(ax), ax.get_legend()) == ({}, None)


def on_centres() -> Any:
    points = tuple(Point(t, 2, 1, 0.5, math.nan, math.nan, r) for t, r in ((0.1, 1.0), (0.4, 1e-3), (0.9, 1e-6)))
    numbers = {field.name: 1 for field in fields(NystromReport)}
    words = dict.fromkeys(("status", "centers", "device", "layout", "factors", "dtype"), "words")
    seconds = {"check": 0.1, "layout": 0.2, "preconditioner": 0.3, "solve": 0.3, "other": 0.1, "total": 1.0}
    return NystromReport(**numbers | words | {"seconds": seconds, "trace": points, "residual": 1e-6})


def test_pictures_of_machines_on_centres() -> None:
    """Their residual, and their own parts; not beside those of other machines."""
    report = on_centres()
    ax = plots.convergence(report)
    assert lines(ax) == {"residual": [(0.1, 1.0), (0.4, 1e-3), (0.9, 1e-6)]}
    assert ax.get_ylabel() == "residual"
    assert lines(plots.convergence(replace(report, trace=()))) == {"residual": [(1.0, 1e-6)]}
    bars = plots.breakdown({"kin40k": report})
    texts = [text.get_text() for text in bars.get_legend().get_texts()]
    assert texts == ["layout", "preconditioner", "solve", "other: check + other"]
    assert [round(one.get_width(), 9) for box in bars.containers for one in box] == [0.2, 0.3, 0.3, 0.2]


def test_pictures_go_where_they_are_told() -> None:
    figure = plots.figure()
    one, two = figure.subplots(1, 2)
    assert plots.convergence(made(), one) is one
    assert plots.breakdown({"a": made()}, two) is two


def test_breakdown_stacks_shares() -> None:
    other = made(seconds={"layout": 1.0, "rows": 2.0, "exact": 1.0, "total": 4.0})
    reports = {"a9a": made(), "mnist": other}
    ax = plots.breakdown(reports)
    assert [group.get_label() for group in ax.containers] == [
        "clustering: layout",
        "selection: select",
        "gram: tile",
        "subproblem",
        "update: rows",
        "other: check + exact + other",
    ]
    widths = np.array([[bar.get_width() for bar in group] for group in ax.containers])
    lefts = np.array([[bar.get_x() for bar in group] for group in ax.containers])
    for i, report in enumerate(reports.values()):
        shares = np.array(list(by_part(report.seconds).values())) / report.seconds["total"]
        np.testing.assert_allclose(widths[:, i], shares, atol=1e-12)
        np.testing.assert_allclose(lefts[:, i], np.cumsum(shares) - shares, atol=1e-12)
    np.testing.assert_allclose(widths[:, 1], [0.25, 0, 0, 0, 0.5, 0.25])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a9a (30 s)", "mnist (4 s)"]
    assert ax.yaxis_inverted(), "the first is on top"
    ax = plots.breakdown({"a": made(seconds={"total": 0.0})})
    assert [bar.get_width() for group in ax.containers for bar in group] == [0.0] * len(PARTS)


@pytest.mark.parametrize("names", [["a"], ["a", "a longer name of a data set"]])
def test_the_legend_of_a_breakdown_is_whole(names: list[str]) -> None:
    seconds = {key: 1.0 for keys in PARTS.values() for key in keys} | {"gap": 1.0, "check": 1.0, "total": 12.0}
    own, given = plots.breakdown({name: made(seconds=seconds) for name in names}), plots.figure().subplots()
    for ax in own, plots.breakdown({name: made(seconds=seconds) for name in names}, given):
        ax.figure.draw_without_rendering()
        box, whole = ax.get_legend().get_window_extent(), ax.figure.bbox
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
        assert ax.bbox.width > 0.4 * whole.width


PLANE = np.random.default_rng(0).normal(size=(60, 2))
KINDS = np.array(["left", "right"])[(PLANE[:, 0] > 0).astype(int)]


def test_boundary_shows_values_margins_rows_and_support() -> None:
    model = clsvm.SVC(kernel="linear").fit(PLANE, KINDS)
    ax = plots.boundary(model, PLANE, KINDS)
    *surface, rows, support = ax.collections
    assert len(surface) == 2
    line = surface[1].get_paths()[list(surface[1].levels).index(0)].vertices
    np.testing.assert_allclose(model.decision_function(line), 0, atol=1e-2)
    np.testing.assert_allclose(rows.get_offsets(), PLANE)
    np.testing.assert_array_equal(rows.get_array(), KINDS == "right")
    np.testing.assert_allclose(support.get_offsets(), model.support_vectors_)
    assert ax.get_xlim()[0] < PLANE[:, 0].min()
    assert ax.get_ylim()[1] > PLANE[:, 1].max()


def test_boundary_of_several_classes_is_their_regions() -> None:
    three = np.where(PLANE[:, 1] > 0.5, "up", KINDS)
    model = clsvm.SVC().fit(sp.csr_matrix(PLANE), three)
    ax = plots.boundary(model, PLANE, three)
    regions, rows, support = ax.collections
    assert {float(v) for v in np.unique(regions.get_array())} == {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(rows.get_array(), np.searchsorted(model.classes_, three))
    assert regions.get_clim() == rows.get_clim() == (0, 2)
    assert len(support.get_offsets()) == len(model.support_)


@pytest.mark.parametrize("model", [clsvm.OneClassSVM(nu=0.3), clsvm.SVR(), clsvm.FalkonRegressor()])
def test_boundary_of_values(model: Any) -> None:
    ax = plots.boundary(model.fit(PLANE, PLANE[:, 0]), PLANE, ax=matplotlib.figure.Figure().subplots())
    assert len(ax.collections) == 3 + isinstance(model, clsvm.OneClassSVM)  # (whose boundary is a line)


def search(x: np.ndarray, y: np.ndarray, scores: np.ndarray) -> SimpleNamespace:
    params = [{"C": C, "gamma": gamma} for C in y for gamma in x]
    results = {"params": params, "param_C": 0, "param_gamma": 0, "mean_test_score": scores.ravel()}
    return SimpleNamespace(cv_results_=results, refit=True)


WRONG: list[tuple[Any, str]] = [
    (
        lambda: plots.breakdown({"one": made(), "other": on_centres()}),
        "must be of one type, got FitReport and NystromReport",
    ),
    *((partial(plots.breakdown, one), "expected a dict from names to reports") for one in ({}, made())),
    (lambda: plots.boundary(clsvm.SVC(), PLANE[:, :1]), r"got rows of shape \(60, 1\), expected two features"),
    (lambda: plots.grid(search(np.arange(2), np.arange(2), np.eye(2)), y="nu"), "'nu' was not searched; .* C, gamma"),
]


@pytest.mark.parametrize(("draw", "words"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_wrong_input(draw: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw()
    with pytest.raises(NotFittedError):
        plots.boundary(clsvm.SVC(), PLANE)


def test_matplotlib_is_imported_when_a_picture_is_drawn() -> None:
    code = "import sys, clsvm; clsvm.plots.convergence; print(any('matplotlib' in name for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(clsvm.__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_grid_shows_the_best_of_what_else_was_searched() -> None:
    params = [{"C": C, "gamma": 1, "tol": tol} for C in (1, 10) for tol in (1e-3, 1e-1)]
    results = {"params": params, "param_C": 0, "param_gamma": 0, "mean_test_score": [0.9, 0.7, 0.6, 0.8]}
    ax = plots.grid(SimpleNamespace(cv_results_=results, refit=True))
    np.testing.assert_array_equal(ax.images[0].get_array(), [[0.9], [0.8]])


def test_grid_has_short_ticks_a_star_and_blank_cells() -> None:
    scores = np.linspace(0.9, 0.95, 24).reshape(4, 6)
    scores[1, 2] = np.nan
    ax = plots.grid(search(np.logspace(-5, 0, 6) / 3, np.logspace(0, 3, 4), scores))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["1", "10", "100", "1000"]
    assert ax.get_xticklabels()[0].get_text() == "3.33e-06"
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {45}, "side by side they would overlap"
    assert [*ax.lines[0].get_xdata(), *ax.lines[0].get_ydata()] == [5, 3], "the best is marked"
    np.testing.assert_array_equal(ax.images[0].get_array().mask, np.isnan(scores))


def test_grid_of_failed_fits_alone() -> None:
    ax = plots.grid(search(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.full(4, np.nan)))
    ax.figure.draw_without_rendering()
    assert not ax.lines
