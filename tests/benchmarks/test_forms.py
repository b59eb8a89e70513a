"""The forms of rows that each peer is tried with, and which of them counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import SVC

from benchmarks import falkon, fit, gtsvm, gtsvm_tables, pairs, search, sets, solvers, table
from benchmarks.boostsvm import machines, shared, validation
from benchmarks.speed import growth

DENSE = np.random.default_rng(0).normal(size=(40, 10))
SOME = sp.random(40, 100, 0.1, "csr", random_state=0)
FEW = sp.random(40, 1000, 0.01, "csr", random_state=0)
FORMS = {
    "libsvm": (("dense float64",), ("dense float64",), ("CSR float64",)),
    "onedal": (
        ("dense float32", "dense float64"),
        ("dense float32", "CSR float32", "dense float64", "CSR float64"),
        ("CSR float32", "CSR float64"),
    ),
    "clsvm": (("dense float64",), ("CSR float64",), ("CSR float64",)),
}


@pytest.mark.parametrize("solver", FORMS)
def test_the_forms_of_a_solver(solver: str) -> None:
    assert tuple(solvers.forms(solver, X) for X in (DENSE, SOME, FEW)) == FORMS[solver]


@pytest.mark.parametrize("X", [DENSE, np.asfortranarray(DENSE), SOME, FEW])
def test_rows_have_the_form_and_the_same_values(X: Any) -> None:
    expected = X.toarray() if sp.issparse(X) else X
    for form in (form for found in FORMS.values() for forms in found for form in forms):
        rows = solvers.formed(X, form)
        assert solvers.native(rows) == form
        assert sp.issparse(rows) or rows.flags.c_contiguous
        np.testing.assert_allclose(rows.toarray() if sp.issparse(rows) else rows, expected, rtol=1e-6)


def row(form: str, seconds: float, *misses: str, solver: str = "onedal") -> dict[str, Any]:
    return {"solver": solver, "form": form, "seconds": seconds, "misses": list(misses), "apart": 0.0, "failed": ""}


def test_the_fastest_right_form_counts_and_a_faster_wrong_one_is_named() -> None:
    rows = [row("dense float32", 1.0, "KKT violation 0.02"), row("dense float64", 2.0), row("CSR float64", 3.0)]
    rows.append({"solver": "onedal", "form": "CSR float32", "failed": "> 1 s"})
    assert [one["form"] for one in table.best_forms(rows)] == ["dense float64"]
    assert table.passed_over("s", rows) == ["s, onedal (dense float32): 1 s, does not count: KKT violation 0.02"]
    rows[0]["misses"] = []
    assert [one["form"] for one in table.best_forms(rows)] == ["dense float32"]
    assert table.passed_over("s", rows) == []
    points = [{"n": 10, "rows": rows}, {"n": 20, "rows": rows[1:3]}, {"n": 40, "rows": rows[3:]}]
    assert growth.seconds_of(points, "onedal") == {10: 2.0, 20: 2.0}  # one form, of the most fits that count
    assert growth.seconds_of(points[:1], "onedal") == {10: 1.0}
    assert growth.seconds_of(points, "libsvm") == {}


class Slow(SVC):
    """LIBSVM by the name of oneDAL, whose float32 is as bad as asked."""

    spoilt = False
    asked: list[str] = []  # noqa: RUF012

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Slow:
        Slow.asked.append(solvers.native(X))
        super().fit(X, y, sample_weight)
        self._onedal_estimator = True
        self.bad = Slow.spoilt and X.dtype == np.float32
        return self

    def predict(self, X: Any) -> Any:
        return np.full(X.shape[0], self.classes_[0]) if self.bad else super().predict(X)


@pytest.fixture
def onedal(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    made = solvers.made

    def stub(solver: str, kind: str, given: Any, **ours: Any) -> Any:
        return Slow(**given) if solver == "onedal" else made(solver, kind, given, **ours)

    monkeypatch.setattr(solvers, "made", stub)
    monkeypatch.setattr(Slow, "asked", [])
    monkeypatch.setattr(Slow, "spoilt", False)
    return Slow


def searched(X: Any, y: Any) -> list[dict[str, Any]]:
    grid = {"C": [1.0, 10.0], "gamma": [0.1]}
    ours = search.GridSearchCV(SVC(), grid, cv=search.FOLDS, refit=False).fit(X, y)
    return list(search._searched("onedal", grid, X, y, ours))


def test_a_search_takes_float64_only_where_float32_is_wrong(onedal: type[Slow]) -> None:
    y = np.where(DENSE[:, 0] > 0, 1, -1)
    rows = searched(DENSE, y)
    assert [one["form"] for one in rows] == ["dense float32"]
    assert set(onedal.asked) == {"dense float32"}
    onedal.spoilt = True
    rows = searched(DENSE, y)
    assert [one["form"] for one in rows] == ["dense float32", "dense float64"]
    assert [bool(one["misses"]) for one in rows] == [True, False]
    result = {"set": "s", "folds": 5, "grid": {}, "rows": [row("dense float64", 1.0, solver="clsvm"), *rows]}
    assert search.holds(result)
    assert not search.holds(result | {"rows": rows[:1]})
    for one in rows:
        one |= {"seconds": 2.0 + (one["form"] == "dense float64"), "cold": 1.0, "best": {}, "best_score": 0.5}
    result["rows"][0] |= {"cold": 1.0, "best": {}, "best_score": 0.5}
    shown = search.show(result)
    assert list(shown.columns[0].cells) == ["clsvm (dense float64)", "onedal (dense float64)"]
    assert "onedal (dense float32)" in str(shown.caption)


def test_a_fit_has_a_contestant_for_each_form() -> None:
    problem = sets.Problem("s", SOME, np.ones(40), SOME, np.ones(40), 1.0, 1.0)
    made = fit.contestants(problem, fit.Options(("libsvm", "onedal"), None, repeats=4))
    expected = [("clsvm", "CSR float64", 4), ("libsvm", "dense float64", 1)]
    assert [(one.solver, one.form, one.repeats) for one in made[:2]] == expected
    assert tuple(one.form for one in made[2:]) == FORMS["onedal"][1]
    rows = fit.rows_of(made, SOME)
    assert set(rows) == {"CSR float64", *FORMS["onedal"][1]}
    assert all(solvers.native(X) == form for form, X in rows.items())


def test_table_2_and_5_have_a_contestant_for_each_form(onedal: type[Slow]) -> None:
    y = np.arange(40) % 2.0
    case = machines.Case("s", 0, DENSE.astype(np.float32), y, C=1.0)

    class Options(shared.Options):
        def load(self, name: str) -> machines.Case:
            return case

    with machines.contestants(case, Options(limit=0, repeats=2), ("libsvm", "onedal")) as made:
        found = [(one.row()["solver"], one.row()["form"], one.repeats) for one in made]
        for one in made[2:]:
            one.ask("fit")
    assert found[0] == ("clsvm", "dense float32", 2)
    assert found[1:] == [("libsvm", "dense float64", 1), *(("onedal", form, 2) for form in FORMS["onedal"][0])]
    assert tuple(onedal.asked) == FORMS["onedal"][0]


def test_a_score_far_from_libsvms_does_not_count() -> None:
    one = {"score": "accuracy"}
    assert validation._off(one, 0.9, 0.9015) <= 1 < validation._off(one, 0.9, 0.9025)


def test_pairs_are_fitted_in_each_form(onedal: type[Slow]) -> None:
    one = pairs._run("iris", ["onedal"], None, None, 1)
    assert [row["form"] for row in one["rows"]] == ["dense float64", *FORMS["onedal"][0]]
    assert tuple(onedal.asked) == FORMS["onedal"][0]
    assert [row["misses"] for row in one["rows"]] == [[], [], []]


def test_a_form_that_never_reaches_the_gap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def value(model: Any, problem: Any) -> dict[str, Any]:
        return {"gap": 1.0 if model.form == "dense float32" else 0.005, "dual": 1.0}

    def fitted(one: Any, problem: Any) -> tuple[Any, float]:
        return SimpleNamespace(form=one.form), 1.0

    monkeypatch.setattr(gtsvm_tables, "_fit", fitted)
    monkeypatch.setattr(gtsvm_tables, "binary_value", value)
    monkeypatch.setattr(gtsvm_tables, "_binary_error", lambda model, problem: 0.0)
    problem = sets.Problem("s", DENSE, np.ones(40), DENSE, np.ones(40), 1.0, 1.0)
    rows = gtsvm_tables._race(problem, None, ["onedal"], 1, 9.0)
    assert [one["form"] for one in rows] == ["dense float64", "dense float32", "dense float64"]
    assert ["stays above" in one["error"] for one in rows] == [False, True, False]
    head = {"date": "today", "device": "it", "machine": {"cpu": "c", "cores": 2}}
    shown = gtsvm.binary_table({"rows": rows, **head})
    assert list(shown.columns[1].cells) == ["clsvm dense float64", "onedal dense float64"]
    assert "stays above" in str(gtsvm.binary_table({"rows": rows[:2], **head}).caption)


def test_the_direct_solution_counts_with_the_form_whose_error_is_right() -> None:
    def found(solver: str, form: str, seconds: float, error: float, *misses: str) -> dict[str, Any]:
        return row(form, seconds, *misses, solver=solver) | {"loss": "squared", "score": error}

    ours = found("clsvm", "dense float32", 1.0, 0.1) | {"report": {"converged": True}}
    peers = found("nystroem", "dense float32", 2.0, 0.3, "error"), found("nystroem", "dense float64", 4.0, 0.1)
    assert falkon.by_loss({"rows": [ours, *peers]}) == [[ours, peers[1]]]
    assert falkon.holds({"sets": [{"rows": [ours, *peers]}]})
    assert not falkon.holds({"sets": [{"rows": [ours | {"score": 0.2}, *peers]}]})
    assert falkon.near(0.1019, 0.1)
    assert not falkon.near(0.1021, 0.1)
