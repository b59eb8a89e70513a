"""The forms of rows that each peer is tried with, and which of them counts."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import SVC

from benchmarks import fits, gtsvm, sets, solvers, table

DENSE = np.random.default_rng(0).normal(size=(40, 10))
SOME = sp.random(40, 100, 0.1, "csr", random_state=0)
FEW = sp.random(40, 1000, 0.01, "csr", random_state=0)
FLOATS = ("dense float32", "dense float64")
FORMS = {
    "libsvm": (("dense float64",), ("dense float64",), ("CSR float64",)),
    "onedal": (
        FLOATS,
        ("dense float32", "CSR float32", "dense float64", "CSR float64"),
        ("CSR float32", "CSR float64"),
    ),
    "clsvm": (("dense float64",), ("CSR float64",), ("CSR float64",)),
}


@pytest.mark.parametrize("solver", FORMS)
def test_the_forms_of_a_solver(solver: str) -> None:
    for X, forms in zip((DENSE, SOME, FEW), FORMS[solver], strict=True):
        assert solvers.forms(solver, X) == forms
        expected = X.toarray() if sp.issparse(X) else X
        for form in forms:
            rows = solvers.formed(X, form)
            assert solvers.native(rows) == form
            np.testing.assert_allclose(rows.toarray() if sp.issparse(rows) else rows, expected, rtol=1e-6)


def row(form: str, seconds: float, *misses: str, solver: str = "onedal") -> dict[str, Any]:
    return {"solver": solver, "form": form, "seconds": seconds, "misses": list(misses), "failed": ""}


def test_the_fastest_right_form_counts_and_a_faster_wrong_one_is_named() -> None:
    rows = [row("dense float32", 1.0, "KKT violation 0.02"), row("dense float64", 2.0), row("CSR float64", 3.0)]
    rows.append({"solver": "onedal", "form": "CSR float32", "failed": "> 1 s"})
    ours = row("CSR float64", 1.0, solver="clsvm")
    shown, notes = table.compared([{"set": "s", "n": 1, "d": 1, "rows": [ours, *rows]}])
    assert [(one["named"], one["times"]) for one in shown[1:]] == [("onedal (dense float64)", 2.0)]
    assert notes == ["s, onedal (dense float32): 1 s, does not count: KKT violation 0.02"]
    points = [{"n": 10, "rows": rows}, {"n": 20, "rows": rows[1:3]}, {"n": 40, "rows": rows[3:]}]
    assert fits.seconds_of(points, "onedal") == {10: 2.0, 20: 2.0}  # the best form
    rows[0]["misses"] = []
    assert fits.seconds_of(points[:1], "onedal") == {10: 1.0}
    assert [one["form"] for one in table.best_forms(rows)] == ["dense float32"]
    assert table.starred(table.best_forms(rows[3:])[0]) == "onedal (CSR float32)*"


class Slow(SVC):
    """LIBSVM by the name of oneDAL, whose float32 is as bad as asked."""

    damaged = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        super().fit(X, y, sample_weight)
        self._onedal_estimator = True
        self.bad = Slow.damaged and X.dtype == np.float32
        return self

    def predict(self, X: Any) -> Any:
        return np.full(X.shape[0], self.classes_[0]) if self.bad else super().predict(X)


@pytest.fixture
def onedal(monkeypatch: pytest.MonkeyPatch) -> None:
    made = solvers.made

    def stub(solver: str, kind: str, given: Any, **ours: Any) -> Any:
        return Slow(**given) if solver == "onedal" else made(solver, kind, given, **ours)

    monkeypatch.setattr(solvers, "made", stub)


def test_a_search_takes_float64_only_where_float32_is_wrong(onedal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    y, grid = np.where(DENSE[:, 0] > 0, 1, -1), {"C": [1.0, 10.0], "gamma": [0.1]}
    ours = fits.GridSearchCV(SVC(), grid, cv=fits.FOLDS, refit=False).fit(DENSE, y)
    for damaged, forms in ((False, FLOATS[:1]), (True, FLOATS)):
        monkeypatch.setattr(Slow, "damaged", damaged)
        rows = list(fits.searched("onedal", grid, DENSE, y, ours))
        assert tuple(one["form"] for one in rows) == forms
        assert [bool(one["misses"]) for one in rows] == [damaged, False][: len(forms)]
        assert fits.search_holds({"rows": rows})


def test_a_form_that_never_reaches_the_gap_is_named(onedal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def value(model: Any, problem: Any) -> dict[str, Any]:
        return {"gap": 1.0 if getattr(model, "bad", False) else 0.005, "dual": 1.0, "test_error": 0.0}

    monkeypatch.setattr(gtsvm, "binary_value", value)
    monkeypatch.setattr(Slow, "damaged", True)
    y = np.where(DENSE[:, 0] > 0, 1.0, -1.0)
    rows = gtsvm.race(sets.Problem("s", DENSE, y, DENSE, y, 1.0, 1.0), None, ["onedal"], 1)
    assert [one["form"] for one in rows] == ["dense float64", *FLOATS]
    assert ["stays above" in one["failed"] for one in rows] == [False, True, False]
    head = {"date": "today", "device": "it", "machine": {"cpu": "c", "cores": 2}}
    shown = gtsvm.binary_table({"rows": rows, **head})
    assert [line[1] for line in shown.rows] == ["clsvm (dense float64)", "onedal (dense float64)"]
    assert rows[2]["tol"] > 0.1
