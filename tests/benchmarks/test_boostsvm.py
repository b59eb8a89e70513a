"""BoostSVM's tables at tiny sizes: the synthetic sets, every part and its verdict. Seconds are not looked at."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import SVC, SVR

from benchmarks import solvers
from benchmarks.__main__ import main
from benchmarks.boostsvm import (
    ablation,
    cases,
    deciles,
    fits,
    limited,
    machines,
    parts,
    products,
    shapes,
    shared,
    squares,
    validation,
    variants,
)
from clsvm.gram import partition
from clsvm.gram.layouts import LAYOUTS
from clsvm.opencl import devices

TINY = {
    "real-sim": shapes.Shape(400, 300, 0.05, paper_n=4000),
    "e2006": shapes.Shape(150, 400, 0.25, paper_n=150, target="numbers"),
    "gisette": shapes.Shape(120, 50, 0.99, paper_n=120, dense=True),
}
POSSIBLE = [("real-sim", 0), ("rcv1", 0), ("e2006", 0), ("e2006", 100), ("e2006", 1000), ("gisette", 0), ("url", 100)]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes of some rows, and every set measured in this process."""
    for name, shape in TINY.items():
        monkeypatch.setitem(shapes.SHAPES, name, shape)
    monkeypatch.setattr("benchmarks.command.in_own_process", lambda measure, name, options: measure(name, options))


def measured(tmp_path: Path, capsys: Any, *words: str) -> tuple[int, dict[str, Any], str]:
    """What the command returns, writes and shows from its file."""
    out = tmp_path / "found.json"
    code = main(["boostsvm", *words, "--limit", "0", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["kind"] == "boostsvm"
    assert {"date", "device", "machine", "versions", "part"} <= set(result)
    capsys.readouterr()
    assert main(["table", str(out)]) == 0
    return code, result, capsys.readouterr().out


def spoilt(result: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A result with another value at a path."""
    made = copy.deepcopy(result)
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


def lengths(X: Any) -> Any:
    return np.sqrt(np.asarray(sp.csr_matrix(X, dtype=float).power(2).sum(axis=1)))


@pytest.mark.parametrize(("name", "h"), POSSIBLE)
def test_synthetic_rows_have_the_shape_and_density_asked_for(name: str, h: int) -> None:
    shape = shapes.SHAPES[name]
    case = cases.load(name, h, scale=40)
    n, d = case.X.shape
    assert (n, d, case.X.dtype) == (shape.n // 40, shape.d, np.float32)
    assert case.nnz / (n * d) == pytest.approx(shape.density, rel=0.1)
    assert case.record["density"] == pytest.approx(case.nnz / (n * d))
    np.testing.assert_allclose(lengths(case.X), 1, rtol=1e-5)
    if sp.issparse(case.X):
        assert case.X.indices.dtype == np.int32
        assert case.X.has_canonical_format
    count = partition.counts(case.X)
    if h:
        common = np.sort(count)[-h:]
        assert common.mean() / n == pytest.approx(0.74, abs=0.02)
        assert common.sum() / case.nnz == pytest.approx(case.record["share_common"], abs=0.01)
        assert np.diff(np.flatnonzero(count >= common[0])).max() > 1  # (they do not stand together)
    again = cases.load(name, h, scale=40)
    assert abs(case.X - again.X).max() == 0
    np.testing.assert_array_equal(case.y, again.y)


def test_columns_follow_the_power_law() -> None:
    shape = shapes.Shape(20000, 200, 0.05, paper_n=20000)
    made = shapes.make(shape)
    expected = shapes.power_law(200, made.record["exponent"])
    assert expected.sum() == pytest.approx(10)
    assert expected[0] == shapes.CAP
    np.testing.assert_allclose(np.sort(partition.counts(made.X))[::-1] / 20000, expected, rtol=0.25)


def test_common_columns_that_a_set_cannot_have_are_named() -> None:
    assert "need 74 entries a row, rows have 50.3" in cases.refused("real-sim", 100)
    assert cases.refused("e2006", 1000) == cases.refused("url", 100) == cases.refused("rcv1", 0) == ""
    assert "dense" in cases.refused("gisette", 100)
    assert "real set" in cases.refused("a9a", 100)
    with pytest.raises(ValueError, match="need 74 entries"):
        shapes.make(shapes.SHAPES["real-sim"], 100)


def test_what_the_teacher_says_can_be_learnt() -> None:
    shape = shapes.Shape(2000, 300, 0.1, paper_n=2000)
    made = shapes.make(shape)
    assert np.count_nonzero(made.teacher) == shapes.TEACHER
    assert abs(made.y.mean()) < 0.1
    said = np.asarray(made.X @ made.teacher)
    assert np.mean((said > np.median(said)) != (made.y > 0)) == pytest.approx(shapes.NOISE, abs=0.015)
    assert SVC(C=10, gamma=0.5).fit(made.X[:1500], made.y[:1500]).score(made.X[1500:], made.y[1500:]) > 0.75
    made = shapes.make(shapes.Shape(2000, 300, 0.1, paper_n=2000, target="numbers"))
    assert made.y.std() == pytest.approx(1, abs=0.02)
    assert SVR(C=10, gamma=0.5).fit(made.X[:1500], made.y[:1500]).score(made.X[1500:], made.y[1500:]) > 0.6


def test_real_sets_have_rows_of_length_1(data_folder: Path) -> None:
    letter, text = (cases.load(name, 0, 20, data_folder) for name in ("letter", "news20_bydate"))
    assert isinstance(letter.X, np.ndarray)
    assert letter.X.shape == (750, 16)
    assert len(np.unique(letter.y)) == 26
    assert text.X.shape == (565, 130107)
    for case in letter, text:
        assert case.X.dtype == np.float32
        np.testing.assert_allclose(lengths(case.X), 1, rtol=1e-5)


def test_products(tiny: None, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "real-sim,e2006,gisette", "--h", "0,100", "--repeats", "2"
    _, result, said = measured(tmp_path, capsys, "--products", *words)
    assert [(one["set"], one["h"]) for one in result["sets"]] == [
        (name, h) for name in ("real-sim", "e2006", "gisette") for h in (0, 100)
    ]
    assert "real-sim, h = 100: not possible, 100 columns of density 0.74" in " ".join(said.split())
    one = next(one for one in result["sets"] if (one["set"], one["h"]) == ("e2006", 100))
    assert (one["n"], one["d"]) == (150, 400)
    assert [row["layout"] for row in one["layouts"]] == list(LAYOUTS)
    assert one["layouts"][-1]["whole"] >= 100
    for row in one["rows"]:
        working = min(row["W"], 150)
        assert row["effective"] == one["nnz"] * working
        assert row["done"] >= row["effective"]
        assert row["apart"] < 1e-5
        assert row["bytes"] > 4 * 150 * working
        assert len(row["all_seconds"]) == 2
    dense = next(row for row in one["rows"] if row["name"] == "dense")
    lanes = devices.default_profile(devices.find(None)).lanes
    assert dense["done"] == -(-150 // lanes) * lanes * 400 * 150  # (rows are padded)
    fine = copy.deepcopy(result)
    for one in shared.measured(fine):
        for verdict in one["verdicts"]:
            verdict["within"] = True
    assert products.holds(fine)
    assert not products.holds(spoilt(fine, "sets", 0, "rows", 0, "apart", value=1e-3))
    slow = spoilt(fine, "sets", 0, "verdicts", 0, "within", value=False)
    assert not products.holds(slow)
    assert products.TABLE_4.holds(slow)
    assert not products.TABLE_4.holds(spoilt(fine, "sets", 0, "rows", 0, "apart", value=1e-3))
    assert not products.holds(spoilt(fine, "sets", 0, "error", value="MemoryError: no"))
    assert "GFMA/s" in str([column.header for column in parts.PARTS["table 4"].show(result).columns])


def test_products_of_sets_that_are_drawn(
    tiny: None, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another seed draws another shape; the same one the same rows."""
    monkeypatch.setattr(shapes, "DRAWN_ROWS", (100, 200))
    monkeypatch.setattr(shapes, "DRAWN_COLUMNS", (100, 300))
    first, second = cases.load("random-7"), cases.load("random-8")
    assert first.X.shape != second.X.shape
    assert (first.X != cases.load("random-7").X).nnz == 0
    for case in first, second:
        n, d = case.X.shape
        assert 100 <= n <= 200
        assert 100 <= d <= 300
        assert 2 <= case.nnz / n <= 0.5 * d
        assert set(case.y) == {-1, 1}
    _, result, _ = measured(tmp_path, capsys, "--products", "--random", "2", "--seed", "7", "--repeats", "2")
    assert [(one["set"], one["n"]) for one in result["sets"]] == [
        ("random-7", first.X.shape[0]),
        ("random-8", second.X.shape[0]),
    ]
    _, result, _ = measured(tmp_path, capsys, "--figure", "4", "--random", "1", "--sets", "gisette", "--h", "0")
    assert [one["set"] for one in result["sets"]] == ["gisette", "random-0"]


def test_the_verdict_on_the_chosen_layout() -> None:
    def row(working: int, name: str, seconds: float, spread: float) -> dict[str, Any]:
        return {"W": working, "name": name, "seconds": seconds, "spread": spread}

    rows = [
        row(512, "dense", 1.0, 0.01),
        row(512, "csr", 1.18, 0.02),
        row(16, "dense", 1.0, 0.0),
        row(16, "csr", 0.5, 0),
    ]
    first, second = products.verdicts(rows, {512: "csr", 16: "csr"})
    assert first == {"W": 512, "best": "dense", "chosen": "csr", "ratio": 1.18, "allowed": 1.17, "within": False}
    assert (second["best"], second["ratio"], second["within"]) == ("csr", 1.0, True)
    first, second = products.verdicts(rows, {512: "dense", 16: "dense"})
    assert (first["ratio"], first["within"], second["ratio"], second["within"]) == (1.0, True, 2.0, False)
    first, second = products.verdicts(rows, {512: "dense", 16: "csr"})
    assert first["within"]
    assert second["within"]
    assert shared.spread([1.0, 1.0, 2.0, 3.0, 3.0]) == 1.0


def test_table_2(tiny: None, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "real-sim,e2006,gisette", "--h", "0", "--peers", "libsvm", "--repeats", "2"
    code, result, said = measured(tmp_path, capsys, "--table", "2", *words)
    assert code == 0
    for one in result["sets"]:
        ours, libsvm = one["rows"]
        assert (ours["solver"], libsvm["solver"]) == ("clsvm", "libsvm")
        assert ours["misses"] == libsvm["misses"] == []
        assert ours["dual"] == pytest.approx(libsvm["dual"], rel=1e-5)
        assert (len(ours["all_seconds"]), len(libsvm["all_seconds"])) == (2, 1)
    first, _, last = result["sets"]
    (estimate,) = first["estimates"]
    assert (estimate["set"], estimate["n"], estimate["d"]) == ("real-sim", 4000, 300)
    assert estimate["seconds"] == pytest.approx(100 * first["rows"][0]["seconds"])  # (ten times the rows)
    (estimate,) = last["estimates"]
    assert (estimate["set"], estimate["n"], estimate["d"]) == ("epsilon", 400000, 2000)
    counted = last["rows"][0]["report"]["rows_computed"] / 120 * 400000 * 400000 * 2000
    assert estimate["multiply_adds"] == pytest.approx(counted)
    assert "estimate" in said
    assert "172000 / 2280 / 66.98 / 43.67" in said
    assert not fits.holds(spoilt(result, "sets", 0, "rows", 0, "misses", value=["violation"]))
    assert not fits.holds(spoilt(result, "sets", 0, "rows", 0, "failed", value="> 1 s"))
    assert fits.holds(spoilt(result, "sets", 0, "rows", 1, "failed", value="> 1 s"))


def test_a_spoilt_solution_misses(tiny: None) -> None:
    for name in ("real-sim", "e2006"):
        case = cases.load(name)
        (form,) = solvers.forms("libsvm", case.X)
        answer = machines.solver(name, shared.Options(), "libsvm", variants.AS_THEY_ARE, form)
        answer("fit")
        solution = answer("model")
        row = machines.standing(case, solution)
        solution.dual_coef_ = 0.99 * solution.dual_coef_
        rows = [row, machines.standing(case, solution)]
        machines.judge(rows)
        assert rows[0]["misses"] == []
        assert "violation" in " ".join(rows[1]["misses"])


def test_coefficients_may_stand_on_their_bounds_and_not_beyond(tiny: None) -> None:
    case = dataclasses.replace(cases.load("real-sim"), C=0.5)
    model = SVC(C=0.5, gamma=0.5).fit(case.X, case.y)
    assert (np.abs(model.dual_coef_.data) == 0.5).sum() > 50
    solution = solvers.solution(model)
    rows = [machines.standing(one, solution) for one in (case, *(dataclasses.replace(case, C=C) for C in (1.0, 0.4)))]
    machines.judge(rows)
    assert rows[0]["misses"] == []
    assert "violation" in " ".join(rows[1]["misses"])
    assert "constraints" in " ".join(rows[2]["misses"])


def test_table_3(tiny: None, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "real-sim,e2006", "--h", "0,100", "--repeats", "1"
    code, result, _ = measured(tmp_path, capsys, "--table", "3", *words)
    assert code == 0
    for one in shared.measured(result):
        assert [fit["solver"] for fit in one["fits"]] == list(variants.VARIANTS)
        assert [fit["report"]["layout"].split(",")[0] for fit in one["fits"]] == ["csr", "csr", "hybrid", "hybrid"]
        assert [row["name"] for row in one["rows"]] == 2 * list(variants.VARIANTS)
        assert max(row["apart"] for row in one["rows"]) < 1e-5
        assert one["split_seconds"] > 0
    assert not ablation.holds(spoilt(result, "sets", 0, "rows", 3, "apart", value=0.1))
    dual = result["sets"][0]["fits"][2]["report"]["dual"]
    assert not ablation.holds(spoilt(result, "sets", 0, "fits", 2, "report", "dual", value=1.01 * dual))
    assert not ablation.holds(spoilt(result, "sets", 0, "fits", 2, "failed", value="ValueError: no"))


def test_variants_keep_or_change_the_order_of_columns() -> None:
    case = cases.load("e2006", 100, scale=40)
    count = partition.counts(case.X)
    for name, falls in (("neither", False), ("order", True)):
        with variants.VARIANTS[name].applied():
            made = LAYOUTS["csr"].partition(Rates(), case.X)
        assert (made is not None) == falls
        if falls:
            np.testing.assert_array_equal(count[made.order], np.sort(count)[::-1])
    usual = LAYOUTS["hybrid"]
    with variants.VARIANTS["partition"].applied():
        made = LAYOUTS["hybrid"].partition(Rates(), case.X)
    assert LAYOUTS["hybrid"] is usual
    by_density = usual.partition(Rates(), case.X)
    assert made.dense == by_density.dense >= 100
    for part in (slice(None, made.dense), slice(made.dense, None)):
        assert (np.diff(made.order[part]) > 0).all()
        assert set(made.order[part]) == set(by_density.order[part])
    assert (np.diff(count[by_density.order]) <= 0).all()


class Rates:
    """Of a profile what the hybrid layout asks."""

    csr_cost, hybrid_cost, value_cost = 3.0, 1.0, 10.0


def test_table_5(tiny: None, tmp_path: Path, capsys: Any) -> None:
    code, result, said = measured(tmp_path, capsys, "--table", "5", "--sets", "real-sim,e2006", "--h", "0")
    assert code == 0
    assert [one["score"] for one in result["sets"]] == ["accuracy", "mean squared error"]
    for one, make in zip(result["sets"], (SVC(C=100, gamma=0.5), SVR(C=256, gamma=0.125)), strict=True):
        case = cases.load(one["set"])
        expected = []
        for train, test in machines.folds(case):
            found = make.fit(case.X[train], case.y[train]).predict(case.X[test])
            expected.append(np.mean(found == case.y[test]) if case.classes else np.mean((found - case.y[test]) ** 2))
        ours, libsvm = one["rows"]
        assert libsvm["value"] == pytest.approx(np.mean(expected))
        assert ours["value"] == pytest.approx(np.mean(expected), rel=0.01)
        assert len(ours["all"]) == 2
    assert "86 %" in said
    value = result["sets"][0]["rows"][0]["value"]
    assert not validation.holds(spoilt(result, "sets", 0, "rows", 0, "value", value=value + 0.01))
    assert not validation.holds(spoilt(result, "sets", 1, "rows", 0, "value", value=2.0))


def test_the_figures(tiny: None, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "new" / "figure.png"
    plot = ("--plot", str(path)) if find_spec("matplotlib") else ()
    code, result, _ = measured(tmp_path, capsys, "--figure", "3", "--scale", "32", "--repeats", "1", *plot)
    assert code == 0
    assert [one["n"] for one in result["sets"]] == [16, 32, 64, 128]
    for one in result["sets"]:
        assert [row["name"] for row in one["rows"]] == ["dense", "csr"]
        assert [row["effective"] for row in one["rows"]] == 2 * [one["n"] ** 3]
    assert not squares.holds(spoilt(result, "sets", 0, "rows", 0, "apart", value=0.1))
    code, result, _ = measured(tmp_path, capsys, "--figure", "4", "--sets", "real-sim,gisette", "--h", "0", *plot)
    assert code == 0
    assert not plot or path.read_bytes().startswith(b"\x89PNG")
    sparse, dense = result["sets"]
    assert sparse["deciles"] == sorted(sparse["deciles"], reverse=True)
    assert sparse["deciles"][0] > 5 * sparse["deciles"][-1]
    assert dense["deciles"] == pytest.approx(10 * [0.99], abs=0.04)
    assert dense["whole"] == {"paper": 50, "code": 50}
    assert not deciles.holds(spoilt(result, "sets", 0, "deciles", 0, value=2.0))


def test_sets_that_a_part_has_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["boostsvm", "--table", "3", "--sets", "gisette"]) == 1
    assert "table 3 has no set 'gisette'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["boostsvm", "--products", "--h", "many"])
    assert "expected whole numbers" in capsys.readouterr().err


def test_a_process_that_takes_too_long_is_ended() -> None:
    with limited.Worker(20, functools.partial, time.sleep) as worker:
        assert worker.ask(0.001) is None
        worker.limit = 0.2
        began = time.perf_counter()
        with pytest.raises(limited.TooLongError, match=r"> 0\.2 s"):
            worker.ask(60)
        assert time.perf_counter() - began < 20
    with limited.Worker(20, functools.partial, time.sleep) as worker:
        one = machines.Contestant("one", 1, worker)
        assert one.ask("now") is None
        assert one.failed.startswith("TypeError")
        assert not one.too_long
        assert one.row() == {"solver": "one", "form": "", "failed": one.failed, "too_long": False}
