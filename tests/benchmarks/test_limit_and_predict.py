"""The benchmarks of the device's limit and of answers at tiny sizes: what they count, verdicts, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification

from benchmarks import check, command, sets, solvers, table
from benchmarks.speed import limit, memory, predict
from clsvm.gram import layouts
from tests.commands import HEAD, measured

pytestmark = pytest.mark.full


# limit


def test_the_share_of_the_limit(here: None, device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "digits8", "--repeats", "2", "--device", device
    code, result, shown = measured(tmp_path, capsys, "limit", *words)
    (one,) = result["sets"]
    report, peaks, limits = one["report"], one["peaks"], one["limits"]
    assert code == 0
    assert one["misses"] == []
    kind = report["layout"].partition(",")[0]
    assert kind in layouts.LAYOUTS
    values = one["exponentials"]
    assert values >= report["rows_computed"] * 1347
    assert values <= report["rows_computed"] * (1347 + 256)
    seconds = limits["arithmetic"]
    assert one["multiply_adds"] / (peaks["fma_gflops"] * 5e8) == pytest.approx(seconds)
    assert one["bytes"] / (peaks["read_gbs"] * 1e9) == pytest.approx(limits["memory"])
    assert one["limit"] == max(limits["arithmetic"], limits["memory"])
    assert one["share"] == pytest.approx(one["limit"] / one["seconds"])
    assert sum(one["parts"].values()) == pytest.approx(sum(one["gaps"].values()) + one["limit"] + limits["tiles"])
    assert one["largest"]["seconds"] == max(one["gaps"].values()) == one["gaps"][one["largest"]["part"]]
    assert f"| {one['largest']['part']}, " in shown
    assert "digits8: peaks " in shown
    spoilt = one | {"misses": ["KKT violation 1"]}
    assert limit.holds({"sets": [one]})
    assert not limit.holds({"sets": [spoilt]})
    assert "digits8: KKT violation 1" in table.markdown(HEAD | {"sets": [spoilt]}, limit.LAYOUT)


def test_what_a_fit_has_to_do_is_counted() -> None:
    work = limit.Work(rows=3e9, tiles=1e9, cells=10, nbytes=4e6, working_sets=100)
    assert work.multiply_adds() == 3e10
    assert work.moved() == 100 * 4e6 + 4 * 3e9
    limits = work.limits({"fma_gflops": 200, "exp_gs": 2, "read_gbs": 10})
    assert limits == pytest.approx({"arithmetic": 0.3 + 1.5, "memory": 1.24, "tiles": 0.1 + 0.5})


# predict


def test_answers_beside_scikit_learns(here: None, device: str, tmp_path: Path, capsys: Any) -> None:
    words = "--sets", "digits,breast_cancer", "--peers", "libsvm", "--tests", "200", "--repeats", "3", "--limit", "0"
    code, result, shown = measured(tmp_path, capsys, "predict", *words, "--device", device)
    assert code == 0
    digits, cancer = result["sets"]
    assert (digits["n"], digits["classes"], digits["tests"], digits["all_tests"]) == (1347, 10, 200, 450)
    assert (cancer["n"], cancer["classes"], cancer["tests"]) == (426, 2, 143)
    for one in digits, cancer:
        ours, theirs = one["rows"]
        assert (ours["solver"], theirs["solver"]) == ("clsvm", "libsvm")
        for row in ours, theirs:
            assert row["misses"] == []
            assert row["same"] == 1
            assert row["accuracy"] > 0.9
            assert row["apart"] <= 1e-4
        assert ours["apart"] > theirs["apart"] > 0
        assert ours["violation"] <= 1.2e-3
        assert [len(ours["all_seconds"][call]) for call in predict.CALLS] == [3, 3]
        assert [len(theirs["all_seconds"][call]) for call in predict.CALLS] == [1, 1]
        assert one["asked"] is None
    assert "breast_cancer: it has 143 tests" in shown
    assert "digits: it has" not in shown


def test_answers_and_memory_of_processes(device: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("sklearnex")
    words = "--sets", "digits", "--peers", "onedal", "--repeats", "2", "--device", device
    code, result, shown = measured(tmp_path, capsys, "predict", *words)
    (one,) = result["sets"]
    ours = one["rows"][0]
    theirs = table.best_forms(one["rows"])[1]
    assert [row["form"] for row in one["rows"][1:]] == ["dense float32", "dense float64"]
    assert code == (0 if one["asked"] else 1)
    for row in ours, theirs:
        assert row["misses"] == []
        assert row["same"] > 0.99
        if memory.CLEAR.exists():
            assert row["resident"] > 2e7
            assert row["first"] > 0
            assert row["later"] < 1e9
    assert theirs["apart"] < 1e-2
    assert theirs["train_seconds"] > 0
    assert "| digits 1347x64 | 450 | clsvm (dense float64) |" in shown


def answered(solver: str, predict_seconds: float, values_seconds: float, form: str = "dense") -> dict[str, Any]:
    seconds = {"predict": predict_seconds, "decision_function": values_seconds}
    row = {"solver": solver, "form": form, "error": "", "misses": [], "seconds": seconds, "warm": predict_seconds}
    return row | {"accuracy": 0.5, "first": 2_500_000, "later": None, "same": 0.75, "apart": 2e-5}


def test_what_is_asked_of_answers() -> None:
    ours = answered("clsvm", 1.0, 1.0)
    assert predict._asked([ours, answered("onedal", 4.0, 4.0)]) is True
    assert predict._asked([ours, answered("onedal", 3.9, 9.0)]) is False
    assert predict._asked([ours, answered("onedal", 9.0, 3.9)]) is False
    assert predict._asked([ours, answered("onedal", 9.0, 9.0), answered("onedal", 3.0, 3.0, "CSR")]) is False
    assert predict._asked([ours]) is None
    head = {"set": "s", "n": 9, "d": 2, "tests": 7, "asked": True}
    good = head | {"rows": [ours, answered("onedal", 4.0, 5.0)]}
    assert predict.holds({"sets": [good]})
    assert not predict.holds({"sets": [good | {"asked": False}]})
    assert not predict.holds({"sets": [good | {"rows": [ours | {"misses": ["KKT"]}]}]})
    assert not predict.holds({"sets": [good | {"rows": [ours | {"error": "MemoryError: no"}]}]})
    assert not predict.holds({"sets": [{"set": "s", "error": "ValueError: no"}]})
    text = table.markdown(HEAD | {"tests": 7, "sets": [good]}, predict.LAYOUT)
    assert "| s 9x2 | 7 | clsvm (dense) | 1 |  | 1 |  | 2.5 |  | 50.00 | 75.00 | 2.0e-05 | yes |" in text
    assert "|  |  | onedal (dense) | 4 | 4.0 | 5 | 5.0 | 2.5 |" in text


def test_answers_that_are_not_ours_are_seen() -> None:
    rows = [answered(solver, 1.0, 1.0) for solver in ("clsvm", "libsvm", "onedal")]
    wide, classes = np.array([-2.0, 1.0, 0.5]), np.array([0, 1, 1])
    found = [{"predict values": classes, "decision_function values": wide + off} for off in (1e-5, 3e-4, 3e-4)]
    found[2]["predict values"] = np.array([0, 1, 0])
    predict._compare(rows, found, wide, np.array([1, 1, 1]))
    assert [row["apart"] for row in rows] == pytest.approx([5e-6, 1.5e-4, 1.5e-4])
    assert [bool(row["misses"]) for row in rows] == [False, True, False]
    assert [row["same"] for row in rows] == pytest.approx([1, 1, 2 / 3])
    assert [row["accuracy"] for row in rows] == pytest.approx([2 / 3, 2 / 3, 1 / 3])


def test_a_solver_that_fails_has_a_row_that_says_why(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(measure: Any, name: str, options: Any) -> dict[str, Any]:
        failed = options.solver == "libsvm"
        return {"set": name, "error": "MemoryError: no"} if failed else measure(name, options)

    monkeypatch.setattr(command, "in_own_process", own)
    one = predict.measure("breast_cancer", predict.Options(("libsvm",), repeats=1, limit=0))
    assert [row["error"] for row in one["rows"]] == ["", "MemoryError: no"]
    assert "*" in table.markdown(HEAD | {"tests": 1, "sets": [one]}, predict.LAYOUT)


def test_a_model_of_sparse_rows_answers_for_an_array() -> None:
    X = sp.random(60, 20, 0.1, "csr", random_state=0)
    model = solvers.made("libsvm", "SVC", {"decision_function_shape": "ovo"}).fit(X, np.arange(60) % 3)
    expected = model.decision_function(X)
    assert predict.in_form(model, "CSR float64") is model
    assert sp.issparse(model.support_vectors_)
    changed = predict.in_form(model, "dense float64")
    assert isinstance(changed.support_vectors_, np.ndarray)
    np.testing.assert_allclose(changed.decision_function(X.toarray()), expected, rtol=0, atol=1e-12)


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="this system does not reset the peak of resident memory")
def test_memory_that_a_call_needs_at_most() -> None:
    def touched(megabytes: int) -> float:
        return float(np.ones(megabytes << 17).sum())

    touched(300)  # an earlier peak does not count
    used = memory.growth(lambda: touched(100))
    assert used.value == 100 << 17
    assert used.before is not None
    assert used.growth is not None
    assert 95e6 < used.growth < 150e6
    nothing = memory.growth(lambda: None)
    assert nothing.growth is not None
    assert nothing.growth < 5e6


def test_all_rows_of_a_set_of_tasks(data_folder: Path) -> None:
    assert [part.shape[0] for part in sets.load_task("news20_bydate", data_folder)] == [3000, 3000, 1000, 1000]
    one = predict.load("news20_bydate", data_folder)
    assert (one.X.shape[0], one.X_test.shape[0], len(one.y_test)) == (11314, 7532, 7532)
    mnist = predict.load("mnist", data_folder)
    assert (mnist.X.shape, mnist.X_test.shape[0], mnist.C) == ((60000, 784), 10000, 1.0)
    assert len(np.unique(mnist.y)) == 10


def test_the_best_feasible_solution_is_what_others_are_held_to() -> None:
    X, y = make_classification(80, 4, random_state=0)
    y = 2.0 * y - 1
    model = solvers.made("libsvm", "SVC", solvers.parameters(1.0, 0.3)).fit(X, y)
    coef, kernel = check.full_coef(model, 80), check.kernel("rbf", gamma=0.3)
    found = [check.recompute(X, y, 1.0, share * coef, model.intercept_[0], kernel) for share in (1.0, 0.9, 2.0)]
    good, low, outside = check.judged(found, 1.0, 1e-3)
    assert good == []
    assert "dual" in " ".join(low)
    assert "constraints" in " ".join(outside)
