"""The benchmarks' own arithmetic: the independent check against the definition, the sets, the table."""

from __future__ import annotations

import json
import os
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC

from benchmarks import chart, check, host, pairs, sets, small, solvers, table, tasks, tasks_check, tasks_table
from benchmarks.__main__ import _parser, main
from clsvm.opencl.profiles import PROFILES

pytestmark = pytest.mark.full

FOLDER = Path(os.environ["CLSVM_DATA"]) if os.environ.get("CLSVM_DATA") else None
KERNELS = [("linear", {}), ("poly", {"degree": 3, "coef0": 0.5}), ("rbf", {}), ("sigmoid", {"coef0": -0.2})]


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    X, y = make_classification(301, 20, n_informative=6, random_state=3)
    return X, np.where(y > 0, 1.0, -1.0)


def by_definition(K: Any, y: Any, C: Any, coef: Any, b: float) -> dict[str, float]:
    """The check's numbers from the whole kernel matrix, row by row, as the formulas are written."""
    n, alpha = len(y), y * coef
    Q = y[:, None] * y[None, :] * K
    dual = sum(alpha) - alpha @ Q @ alpha / 2
    hinge = [max(0.0, 1 - y[i] * (sum(coef[j] * K[i, j] for j in range(n)) + b)) for i in range(n)]
    primal = alpha @ Q @ alpha / 2 + sum(C[i] * hinge[i] for i in range(n))
    f = K @ coef - y
    up = [f[i] for i in range(n) if (y[i] > 0 and alpha[i] < C[i]) or (y[i] < 0 and alpha[i] > 0)]
    low = [f[i] for i in range(n) if (y[i] > 0 and alpha[i] > 0) or (y[i] < 0 and alpha[i] < C[i])]
    return {
        "dual": dual,
        "primal": primal,
        "gap": 2 * (primal - dual) / (primal + dual),
        "violation": max(low) - min(up),
        "sum_y_alpha": abs(sum(coef)),
        "box": max(0.0, *(-alpha), *(alpha - C)),
        "n_support": np.count_nonzero(coef),
    }


@pytest.mark.parametrize(("name", "parameters"), KERNELS, ids=[name for name, _ in KERNELS])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_recomputes_the_definition(name: str, parameters: dict[str, float], form: Any, data: Any) -> None:
    X, y = data
    rng = np.random.default_rng(0)
    C = rng.uniform(0.5, 2.0, len(y))
    alpha = np.where(rng.random(len(y)) < 0.3, 0.0, np.where(rng.random(len(y)) < 0.3, C, rng.uniform(-0.01, 1.01) * C))
    K = pairwise_kernels(X, metric=name, gamma=0.07, filter_params=True, **parameters)
    found = check.recompute(form(X), y, C, y * alpha, 0.3, check.kernel(name, gamma=0.07, **parameters))
    expected = by_definition(K, y, C, y * alpha, 0.3)
    for part, value in expected.items():
        assert getattr(found, part) == pytest.approx(value, rel=1e-9, abs=1e-12), part


def test_blocks_and_wide_sparse_rows_give_the_same(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data
    coef = y * np.random.default_rng(1).random(len(y))
    kernel_fn = check.kernel("rbf", gamma=0.05)
    whole = check.responses(X, X, coef, kernel_fn)
    for name, value in (("ROW_BLOCK", 7), ("SUPPORT_BLOCK", 11), ("DENSE_COLUMNS", 4)):
        monkeypatch.setattr(check, name, value)
        np.testing.assert_allclose(
            check.responses(sp.csr_matrix(X), sp.csr_matrix(X), coef, kernel_fn), whole, rtol=1e-10
        )


def test_a_shift_far_from_zero_changes_nothing(data: Any) -> None:
    X, y = data
    X = np.round(X * 64) / 64  # so that the shifted rows are the same points exactly
    coef = y * np.random.default_rng(1).random(len(y))
    kernel_fn = check.kernel("rbf", gamma=0.05)
    np.testing.assert_allclose(
        check.responses(X + 4096.0, X + 4096.0, coef, kernel_fn), check.responses(X, X, coef, kernel_fn), atol=1e-11
    )


def test_libsvms_solution_counts_and_a_spoilt_one_does_not(data: Any) -> None:
    X, y = data
    model = SVC(C=2.0, gamma=0.05, tol=1e-3).fit(X, y)
    coef = check.full_coef(model, len(y))
    kernel_fn = check.kernel("rbf", gamma=0.05)

    def verdict(coef: Any) -> tuple[check.Check, str]:
        found = check.recompute(X, y, 2.0, coef, model.intercept_[0], kernel_fn)
        return found, " ".join(check.misses(found, 2.0, 1e-3, best.dual))

    best = check.recompute(X, y, 2.0, coef, model.intercept_[0], kernel_fn)
    found, missed = verdict(coef)
    assert missed == ""
    assert 0 < found.gap < 1e-2
    assert found.n_support == model.n_support_.sum()

    assert "dual" in verdict(0.99 * coef)[1]
    assert "KKT" in verdict(0.99 * coef)[1]
    one_off = coef.copy()
    one_off[np.argmax(coef)] += 0.01
    assert "constraints" in verdict(one_off)[1]
    assert "box" in verdict(one_off)[1]


def test_a_bound_missed_by_rounding_is_a_bound(data: Any) -> None:
    X, y = data
    model = SVC(C=2.0, gamma=0.05).fit(X, y)
    kernel_fn = check.kernel("rbf", gamma=0.05)
    coef = check.full_coef(model, len(y))
    at_bound = np.abs(coef) == 2.0
    assert at_bound.any()

    def violation(share: float) -> float:
        return check.recompute(X, y, 2.0, np.where(at_bound, coef * (1 - share), coef), 0.0, kernel_fn).violation

    assert violation(1e-14) == pytest.approx(violation(0.0), abs=1e-9)
    assert violation(6e-8) > 0.1  # a float32 alpha is not forgiven


def test_the_check_refuses_what_it_cannot_judge(data: Any) -> None:
    X, y = data
    with pytest.raises(ValueError, match="expected y of -1 and \\+1"):
        check.recompute(X, (y + 1) / 2, 1.0, y, 0.0, check.kernel("linear"))


def test_no_support_rows() -> None:
    found = check.recompute(np.eye(3), [1, 1, -1], 1.0, np.zeros(3), 0.0, check.kernel("linear"))
    assert (found.dual, found.primal, found.violation) == (0.0, 3.0, 2.0)
    assert check.recompute(np.eye(2), [1, 1], 1.0, np.zeros(2), 0.0, check.kernel("linear")).violation == 0.0


@pytest.mark.parametrize(("name", "n", "d", "n_test"), [("breast_cancer", 426, 30, 143), ("digits8", 1347, 64, 450)])
def test_bundled_sets_need_no_folder(name: str, n: int, d: int, n_test: int) -> None:
    problem = sets.load(name, None)
    assert problem.X.shape == (n, d)
    assert problem.X_test.shape == (n_test, d)
    assert set(problem.y) == set(problem.y_test) == {-1.0, 1.0}
    assert problem.X.min() >= 0
    assert problem.X.max() <= 1


FROM_FOLDER = {
    "a9a": (32561, 123, 16281, 7841),
    "mnist8": (60000, 784, 10000, 5851),
    "ijcnn1": (35000, 22, 14990, 3415),
    "covtype20k": (15000, 54, 5000, None),
    "a9a5k_C1e4": (5000, 123, 16281, None),
    "covtype_shift": (5000, 54, 5000, None),
    "duplicates": (5000, 123, 16281, None),
    "zero_row": (3000, 123, 16281, None),
}


@pytest.mark.skipif(FOLDER is None, reason="CLSVM_DATA does not name the folder of the data sets")
@pytest.mark.parametrize("name", FROM_FOLDER)
def test_sets_of_the_folder(name: str) -> None:
    n, d, n_test, positive = FROM_FOLDER[name]
    problem = sets.load(name, FOLDER)
    assert problem.X.shape == (n, d)
    assert problem.X_test.shape == (n_test, d)
    assert set(problem.y) == {-1.0, 1.0}
    if positive is not None:
        assert (problem.y > 0).sum() == positive
    if name == "zero_row":
        assert problem.X[7].nnz == 0
    if name == "duplicates":
        assert (problem.X[:2500] != problem.X[2500:]).nnz == 0


def test_a_set_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="--data"):
        sets.load("a9a", None)
    with pytest.raises(ValueError, match="unknown data set 'a9'"):
        sets.load("a9", None)


def row(solver: str, form: str, warm: float, misses: list[str] | None = None) -> dict[str, Any]:
    return {
        "solver": solver,
        "form": form,
        "error": "",
        "cold": 2 * warm,
        "warm": warm,
        "dual": 12.5,
        "gap": 1e-4,
        "violation": 9e-4,
        "n_support": 7,
        "accuracy": 0.975,
        "decision_difference": 1e-3,
        "misses": misses or [],
    }


def test_the_table_shows_the_better_form_that_counts() -> None:
    rows = [row("clsvm", "CSR", 1.0), row("onedal", "dense", 1.5, ["too far off"]), row("onedal", "CSR", 2.5)]
    rows.append({"solver": "libsvm", "form": "CSR", "error": "MemoryError: no"})
    result = {
        "device": "a device",
        "date": "2026-01-01",
        "machine": {"cpu": "a cpu", "cores": 2},
        "sets": [{"set": "s", "n": 10, "d": 3, "rows": rows}, {"set": "broken", "error": "ValueError: nothing"}],
    }
    text = table.markdown(json.loads(json.dumps(result)))
    assert "| s 10x3 | clsvm (CSR) | 2 | 1 |  | 12.5 |" in text
    assert "|  | onedal (CSR) | 5 | 2.5 | 2.50 |" in text
    assert "| onedal (dense)" not in text
    assert "s, onedal (dense): 1.5 s, does not count: too far off" in text
    assert "libsvm (CSR)*" in text
    assert "s, libsvm (CSR): MemoryError: no" in text
    assert "broken: ValueError: nothing" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {len(table.HEADER) + 1}

    rows[2]["misses"] = ["KKT"]
    assert [r["form"] for r in table.best_forms(rows)] == ["CSR", "dense", "CSR"]  # none counts: the faster one, marked
    assert "onedal (dense)*" in table.markdown(result)


def test_the_command_fits_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clsvm = pytest.importorskip("clsvm")
    if not any(device.usable for device in clsvm.devices()):
        pytest.skip("no usable OpenCL device")
    out = tmp_path / "result.json"
    code = main(["fit", "--sets", "breast_cancer", "--peers", "libsvm", "--repeats", "2", "--out", str(out)])
    result = json.loads(out.read_text())
    (one,) = result["sets"]
    ours, libsvm = one["rows"]
    assert code == 0
    assert ours["misses"] == libsvm["misses"] == ours["notes"] == []
    assert len(ours["seconds"]) == 2
    assert ours["report"]["seconds"]["total"] > 0
    assert ours["decision_difference"] < 1e-2
    assert ours["decision_error"] < 1e-4
    assert main(["table", str(out)]) == 0
    assert "breast_cancer 426x30" in capsys.readouterr().out


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--sets", "mnist9"])
    assert stopped.value.code == 2
    assert "mnist9" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fit", "tasks"])
def test_nothing_is_written_unasked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("clsvm")
    report = {"set": "iris", "n": 0, "d": 0, "rows": [], "error": "not measured"}
    monkeypatch.setattr("benchmarks.command.in_own_process", lambda *_: report)
    monkeypatch.chdir(tmp_path)
    results = Path(__file__).parents[2] / "benchmarks" / "results"
    before = sorted(results.iterdir())
    main([command])
    assert sorted(results.iterdir()) == before
    assert list(tmp_path.iterdir()) == []
    assert "written" not in capsys.readouterr().out
    main([command, "--out", "folder/result.json"])
    assert json.loads((tmp_path / "folder" / "result.json").read_text())["sets"][0] == report


def duals_of(name: str, weighted: bool, tol: float = 1e-5) -> tuple[Any, list[tasks_check.Dual], Any, Any]:
    """scikit-learn's estimator on three clouds of points, with its problems as the check sees them."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 90).astype(float)
    X = rng.normal(size=(90, 4)) + y[:, None]
    weights = rng.choice([0.5, 1.0, 2.0], 90) if weighted else np.ones(90)
    task, recipe = tasks.TASKS[name], sets.TaskSet(lambda _: (X, y, X, y), "classes", gamma=0.2, C=3, nu=0.3)
    parameters = task.parameters(recipe)
    model = getattr(svm, name)(**parameters, gamma=0.2, tol=tol).fit(X, y, sample_weight=weights)
    return model, list(task.duals(model, y, parameters.get("C", 1.0) * weights)), X, y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", tasks.TASKS)
def test_scikit_learns_solutions_of_every_task_stand_and_spoilt_ones_do_not(name: str, weighted: bool) -> None:
    _, problems, X, _ = duals_of(name, weighted)
    kernel_fn = check.kernel("rbf", gamma=0.2)
    assert len(problems) == (3 if tasks.TASKS[name].classes else 1)
    for problem in problems:
        found = tasks_check.standing(X, problem, kernel_fn)
        assert found.violation <= 1.2e-5
        assert max(found.box, found.off_sum) <= 1e-12
        free = np.argmax(np.where((problem.b > problem.lo) & (problem.b < problem.hi), np.abs(problem.b), -1))
        problem.b[free] *= 0.99
        spoilt = tasks_check.standing(X, problem, kernel_fn)
        assert spoilt.violation > 1e-4
        assert spoilt.off_sum > 1e-6
        problem.b[free] = 2 * problem.hi[free] - problem.lo[free]
        assert tasks_check.standing(X, problem, kernel_fn).box > 0.1


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_any_dual_is_recomputed_from_its_definition(form: Any) -> None:
    """Variables over some of the rows, two of them over the same row, two groups, a kink: step by step along pairs."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(9, 3))
    rows, group = np.array([8, 0, 3, 5, 3, 7]), np.array([0, 0, 0, 1, 1, 1])
    b = np.array([0.0, 1.0, 0.3, -0.2, 0.5, -1.0])
    lo, hi, q, kink = np.full(6, -1.0), np.ones(6), rng.normal(size=6), 0.3
    problem = tasks_check.Dual(rows, b, lo, hi, q, (1.3, -0.6), group, kink)
    K = pairwise_kernels(X[rows], metric="rbf", gamma=0.4)

    def value(b: Any) -> float:
        return -sum(b[i] * (sum(b[j] * K[i, j] for j in range(6)) / 2 + q[i]) + kink * abs(b[i]) for i in range(6))

    steepest, step = 0.0, 1e-7
    for i, j in ((i, j) for i in range(6) for j in range(6) if i != j and group[i] == group[j]):
        moved = b.copy()
        moved[i] += step
        moved[j] -= step
        if moved[i] <= 1 and moved[j] >= -1:
            steepest = max(steepest, (value(moved) - value(b)) / step)
    found = tasks_check.standing(form(X), problem, check.kernel("rbf", gamma=0.4))
    assert found.dual == pytest.approx(value(b), rel=1e-12)
    assert found.violation == pytest.approx(steepest, abs=1e-5)
    assert found.violation > 0.1
    assert found.off_sum == pytest.approx(0.1 / 12)
    assert found.box == 0


def test_clear_predictions_are_those_that_no_small_step_changes() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([-0.5, -0.05, 0.05, 0.5], (300, 6), p=[0.35, 0.15, 0.15, 0.35])

    def winner(row: Any) -> int:
        votes = np.zeros(4)
        for p, pair in enumerate(combinations(range(4), 2)):
            votes[pair[0] if row[p] > 0 else pair[1]] += 1
        return int(votes.argmax())

    clear = tasks_check.clear(values, 4, 0.1)
    for row, said in zip(values, clear, strict=True):
        moves = [row + 0.1 * np.array(signs) for signs in np.ndindex(*[2] * 6)]
        fixed = len({winner(2 * move - row - 0.1) for move in moves}) == 1
        assert fixed or not said  # (that all near pairs go against the winner at once is never ruled out)
    assert 0.3 < clear.mean() < 0.95
    assert tasks_check.clear(values, 4, 1e-3).all()
    assert list(tasks_check.clear(np.array([0.2, -0.2, 0.05]), 2, 0.1)) == [True, True, False]


GOOD_TASK: dict[str, Any] = {
    "task": "SVC", "form": "CSR", "weights": "weighted", "n": 10, "d": 3, "error": "", "converged": True,
    "warnings": [], "dual": 12.5, "dual_difference": 2e-6, "worst_pair": -3e-5, "violation": 1.1e-3,
    "peer_violation": 1e-3, "box": 0.0, "off_sum": 1e-17, "same": 0.9995, "compared": 2000.0, "score": 0.9,
    "peer_score": 0.91, "n_support": 101, "peer_n_support": 100, "repeated": False, "seconds": 0.1, "peer_seconds": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"converged": False, "warnings": ["max_iter"]}, "not converged: max_iter"),
        ({"dual_difference": -2e-5}, "dual 12.5 is 2e-05 below scikit-learn's"),
        ({"dual_difference": float("nan")}, "below scikit-learn's"),
        ({"dual_difference": 2e-5, "finer_difference": 2e-5}, "when both have tol / 100"),
        ({"violation": 1.21e-3}, "KKT violation 0.00121 above 1.2 tol"),
        ({"box": 1e-6}, "constraints: bounds off by 1e-06"),
        ({"off_sum": 1e-6}, "sums by 1e-06"),
        ({"same": 0.9985}, "99.850 % of 2000 test rows predicted alike"),
        ({"same": float("nan")}, "predicted alike"),
        ({"n_support": 102}, "102 support vectors, scikit-learn's 100"),
        ({"n_support": 108, "repeated": True}, "108 support vectors"),
    ],
)
def test_each_claim_of_a_task_can_fail(change: dict[str, Any], said: str) -> None:
    assert tasks.misses(GOOD_TASK, 1e-3) == []
    (missed,) = tasks.misses(GOOD_TASK | change, 1e-3)
    assert said in missed
    numbers = {key: value for key, value in GOOD_TASK.items() if key != "same"}
    assert tasks.misses(numbers | {"score": 0.9095}, 1e-3) == []
    assert tasks.misses(numbers, 1e-3) == ["R^2 0.90000, scikit-learn's 0.91000"]
    assert tasks.misses(GOOD_TASK | {"n_support": 107, "repeated": True}, 1e-3) == []


def test_the_table_of_tasks_marks_and_explains_what_does_not_hold() -> None:
    finer = {"finer_difference": 1e-7, "below_best": 2e-6, "peer_below_best": 3e-5, "dual_difference": 2.8e-5}
    rows = [GOOD_TASK | finer | {"misses": [], "notes": []}, GOOD_TASK | finer | {"misses": ["KKT"]}]
    rows[1]["notes"] = tasks.notes(rows[1])
    rows.append({"task": "NuSVC", "form": "dense", "weights": "none", "n": 4, "d": 3, "error": "ValueError: no"})
    result = {
        "device": "a device",
        "date": "2026-01-01",
        "machine": {"cpu": "a cpu", "cores": 2},
        "sets": [{"set": "s", "remark": "half of it", "rows": rows}, {"set": "broken", "error": "ValueError: nothing"}],
    }
    text = table.markdown(json.loads(json.dumps(result)), tasks_table.LAYOUT)
    assert "| s 10x3 | SVC | CSR | yes | 12.5 | +2.8e-05 | -3.0e-05 | 1.10e-03 / 1.00e-03 | 99.95 % of 2000 |" in text
    assert "|  | SVC* | CSR | yes |" in text
    assert "| s 4x3 | NuSVC* | dense |  |" in text
    assert "1 of 3 rows hold, 1 of them with a dual more than 1e-05 above scikit-learn's" in text
    assert "s: half of it" in text
    assert "s, SVC, CSR, weighted: KKT" in text
    assert "below scikit-learn's at tol / 100, scikit-learn's 3.0e-05" in text
    assert "s, NuSVC, dense, none: ValueError: no" in text
    assert "broken: ValueError: nothing" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert columns == {len(tasks_table.HEADER) + 1}


def test_the_command_compares_every_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clsvm = pytest.importorskip("clsvm")
    if not any(device.usable for device in clsvm.devices()):
        pytest.skip("no usable OpenCL device")
    out = tmp_path / "result.json"
    code = main(["tasks", "--sets", "iris", "--out", str(out)])
    (iris,) = json.loads(out.read_text())["sets"]
    diabetes = tasks.run("diabetes", tasks.Options(tuple(tasks.TASKS), None))
    assert code == 0
    assert [row["task"] for row in iris["rows"]] == 4 * ["SVC", "NuSVC", "OneClassSVM"]
    assert [row["task"] for row in diabetes["rows"]] == 4 * ["SVR", "NuSVR", "OneClassSVM"]
    for row in iris["rows"] + diabetes["rows"]:
        assert row["misses"] == []
        assert row["error"] == ""
        assert row["n_support"] > 0
    assert {(row["form"], row["weights"]) for row in iris["rows"]} == {
        (form, weights) for form in ("dense", "CSR") for weights in ("none", "weighted")
    }
    plain, weighted = iris["rows"][0], iris["rows"][3]
    assert abs(plain["dual"] - weighted["dual"]) > 1
    assert main(["table", str(out)]) == 0
    assert "12 of 12 rows hold" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["tasks", "--tasks", "SVM"])
    assert "unknown name 'SVM'" in capsys.readouterr().err


def test_the_command_times_pairs_of_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clsvm = pytest.importorskip("clsvm")
    if not any(device.usable for device in clsvm.devices()):
        pytest.skip("no usable OpenCL device")
    out = tmp_path / "result.json"
    command = ["pairs", "--sets", "iris", "--peers", "libsvm", "--repeats", "2", "--out", str(out)]
    assert main(command) == 0
    (iris,) = json.loads(out.read_text())["sets"]
    assert (iris["classes"], iris["n"]) == (3, 112)
    ours, theirs = iris["rows"]
    assert (ours["solver"], theirs["solver"]) == ("clsvm", "libsvm")
    assert ours["misses"] == theirs["misses"] == []
    assert ours["dual"] == pytest.approx(theirs["dual"], rel=1e-5)
    assert len(ours["all_seconds"]) == 2
    assert main(["table", str(out)]) == 0
    assert "iris, 3 classes" in capsys.readouterr().out
    made = solvers.made
    loose = {"tol": 0.5}
    monkeypatch.setattr(solvers, "made", lambda who, kind, given, **ours: made(who, kind, given | loose, **ours))
    assert main(command) == 0  # (a peer's row does not fail the command)
    _, theirs = json.loads(out.read_text())["sets"][0]["rows"]
    assert "above 0.0012" in "; ".join(theirs["misses"])
    good = {"dual": 2.0, "violation": 1e-3, "box": 0.0, "off_sum": 0.0}
    assert pairs.misses(good, 2.0, 1e-3) == []
    for name, value in (("dual", 1.9999), ("violation", 1.3e-3), ("box", 1e-7), ("off_sum", 1e-7)):
        assert len(pairs.misses(good | {name: value}, 2.0, 1e-3)) == 1


def test_the_command_times_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clsvm = pytest.importorskip("clsvm")
    if not any(device.usable for device in clsvm.devices()):
        pytest.skip("no usable OpenCL device")
    out = tmp_path / "result.json"
    command = ["layouts", "--sets", "digits8", "--repeats", "2", "--out", str(out)]
    assert main(command) == 0
    (digits,) = json.loads(out.read_text())["sets"]
    layouts = ["dense", "csr", "clustered", "hybrid", "inverted"]
    assert [row["layout"] for row in digits["rows"]] == layouts
    assert digits["chosen"] in layouts
    assert re.search(r"dense \d+", digits["reason"])
    duals = [row["dual"] for row in digits["rows"]]
    assert duals == pytest.approx([duals[0]] * 5, rel=1e-5)
    assert all(row["agrees"] for row in digits["rows"])
    assert all(row["stored"].startswith(f"{row['layout']}, ") for row in digits["rows"])  # (each was what it says)
    assert main(["table", str(out)]) == 0
    assert f"{digits['chosen']} *" in capsys.readouterr().out


def test_a_set_that_needs_a_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLSVM_DATA", raising=False)
    assert main(["layouts", "--sets", "a9a"]) == 1
    assert "a9a is read from a folder: give it as --data DIR" in capsys.readouterr().err
    monkeypatch.setenv("CLSVM_DATA", str(tmp_path))
    assert main(["layouts", "--sets", "a9a"]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_rows_that_repeat_are_seen_and_dense_rows_keep_what_they_hold() -> None:
    X = sp.random(60, 300, density=0.02, format="csr", random_state=np.random.RandomState(0))
    X_test = sp.random(50, 300, density=0.02, format="csr", random_state=np.random.RandomState(1))
    recipe = sets.TaskSet(lambda _: (X, X, X, X), "classes", gamma=1, C=1, nu=0.1, most_dense=(20, 10))
    dense, y, dense_test, _ = tasks._dense(recipe, (X, np.arange(60.0), X_test, np.arange(50.0)))
    assert list(y) == list(range(20))
    assert dense.shape[1] == dense_test.shape[1] < 300
    np.testing.assert_allclose(dense_test @ dense.T, (X_test[:10] @ X[:20].T).toarray())
    np.testing.assert_allclose(np.square(dense_test).sum(), X_test[:10].power(2).sum())
    assert not tasks._repeated(dense[:5])
    assert tasks._repeated(dense[[0, 1, 2, 1]])
    assert tasks._repeated(sp.csr_matrix(dense[[0, 1, 2, 1]]))


@pytest.mark.parametrize(("name", "n", "classes"), [("iris", 112, 3), ("digits", 1347, 10), ("diabetes", 331, 0)])
def test_sets_of_tasks(name: str, n: int, classes: int) -> None:
    X, y, X_test, y_test = sets.load_task(name, None)
    assert X.shape == (n, X_test.shape[1])
    assert len(y) == n
    if classes:
        assert set(y) == set(y_test) == set(range(classes))
    else:
        np.testing.assert_allclose([X.mean(), y.mean(), X.std(), y.std()], [0, 0, 1, 1], atol=1e-12)
        assert 0 < abs(y_test.mean()) < 1


@pytest.mark.skipif(FOLDER is None, reason="CLSVM_DATA does not name the folder of the data sets")
@pytest.mark.parametrize(
    ("name", "n", "d", "n_test", "classes"),
    [("a9a", 5000, 123, 16281, 2), ("letter", 15000, 16, 5000, 26), ("cpusmall", 6144, 12, 2048, 0)],
)
def test_sets_of_tasks_from_the_folder(name: str, n: int, d: int, n_test: int, classes: int) -> None:
    X, y, X_test, y_test = sets.load_task(name, FOLDER)
    assert X.shape == (n, d)
    assert X_test.shape == (n_test, d)
    assert len(np.unique(y)) == classes or not classes
    assert len(y_test) == n_test


def test_a_set_of_tasks_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="--data"):
        sets.load_task("a9a", None)
    with pytest.raises(ValueError, match="unknown data set 'a9'"):
        sets.load_task("a9", None)


def test_the_command_times_small_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("benchmarks.small.SETS", {name: small.SETS[name] for name in ("iris", "diabetes")})
    out = tmp_path / "small.json"
    assert main(["small", "--repeats", "2", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["set"] for row in rows] == ["iris", "diabetes"]
    for row in rows:
        assert row["solutions"]["clsvm"]["dual"] == pytest.approx(row["solutions"]["scikit-learn"]["dual"], rel=1e-4)
        assert row["solutions"]["clsvm"]["violation"] <= 1.2e-3
        assert set(row["fit_ms"]) == set(row["answer_ms"]) == {"clsvm", "scikit-learn"}
    assert "iris 150x4" in capsys.readouterr().out


def test_hard_sets_and_text_are_fitted_as_others() -> None:
    asked = [_parser().parse_args([name]) for name in ("hard", "text", "fit")]
    assert [len(one.sets) for one in asked] == [5, 2, 2]
    assert all(name in sets.SETS for one in asked for name in one.sets)


def test_fits_as_a_picture(tmp_path: Path) -> None:
    def row(solver: str, warm: float, misses: tuple[str, ...] = ()) -> dict[str, Any]:
        return {"solver": solver, "warm": warm, "error": "", "misses": list(misses)}

    one = [row("clsvm", 0.2), row("onedal", 1.0), row("onedal", 0.8), row("libsvm", 0.1, ("its violation",))]
    result = {"device": "some", "date": "today", "sets": [{"set": "a", "n": 5, "d": 2, "rows": one}, {"set": "b"}]}
    assert chart.fastest(result) == [("a\n5 x 2", {"clsvm": 0.2, "onedal": 0.8})]  # what misses does not count
    chart.draw(result, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 1000


def test_the_command_counts_what_the_host_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Two working sets at least, each of several launches; the runtime is as it was afterwards."""
    monkeypatch.setenv("CLSVM_PROFILE", "gpu")  # (and is put back)
    launch, out, n = host.cl.enqueue_nd_range_kernel, tmp_path / "host.json", PROFILES["gpu"].alone + 100
    assert main(["host", "--sets", "synthetic20k", "--rows", str(n), "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["n"], row["machines"]) == (n, 1)
    assert row["outer_steps"] >= 2
    assert 5 * row["outer_steps"] < row["calls"]["launches"] < 60 * row["outer_steps"]
    assert set(row["estimates"]) == set(host.GPUS)
    assert row["estimates"]["MI210"]["multiply-adds"] > row["estimates"]["H100"]["multiply-adds"] > 0
    assert host.cl.enqueue_nd_range_kernel is launch
    assert "synthetic20k" in capsys.readouterr().out
