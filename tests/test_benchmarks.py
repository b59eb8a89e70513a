"""The benchmarks' own arithmetic: the independent check against the definition, the sets, the table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.svm import SVC

from benchmarks import check, sets, table
from benchmarks.__main__ import main

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
    assert "onedal (dense)" not in text
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
