"""The search that shares K(X, C) among folds and penalties: against scikit-learn's over the same estimators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit

from clsvm import SVC, FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier
from clsvm.gram.cross import Cross
from clsvm.model_selection import FalkonSearchCV, SVCSearchCV, folds
from clsvm.model_selection.folds import NystromFolds
from clsvm.nystrom import newton
from clsvm.report import Status
from tests.conftest import Call, calls_of
from tests.model_selection.test_model_selection import both as compared
from tests.model_selection.test_model_selection import shared

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 4))
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * RANDOM.normal(size=400)
THREE = np.array(["low", "middle", "top"])[np.digitize(Y, [-0.5, 0.5])]
GRID = {"penalty": [1e-5, 1e-2, 1e-3], "gamma": [0.1, 0.4]}
CENTERS = X[::8]
SETTINGS: dict[str, Any] = {"center_selection": CENTERS, "tol": 1e-7, "dtype": "float64"}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    return shared(monkeypatch)


def both(*given: Any, **options: Any) -> tuple[Any, Any]:
    return compared(*given, **{"atol": 1e-5, "error_score": "raise"} | options)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", ["squared", "log_cosh"])
def test_regression(device: str, alone: list[Call], loss: str, sparse: bool) -> None:
    rows = sp.csr_matrix(X) if sparse else X
    centers = sp.csr_matrix(CENTERS) if sparse else CENTERS
    machine = FalkonRegressor(**SETTINGS | {"center_selection": centers}, loss=loss, device=device)
    ours, theirs = both(machine, GRID, rows, Y, cv=4, return_train_score=True)
    assert not alone
    assert ours.best_params_ == theirs.best_params_
    np.testing.assert_allclose(ours.predict(rows), theirs.predict(rows), atol=1e-5)
    assert (ours.cv_results_["mean_fit_time"] > 0).all()


def test_outputs_and_weights(device: str, alone: list[Call]) -> None:
    """Several targets, weights with zeros, and a grid of another loss and without the intercept."""
    y = np.stack([Y, -2 * Y + 3, Y**2], axis=1)
    weights = RANDOM.choice([0.0, 0.5, 2.0], 400)
    grid = [GRID, {"loss": ["log_cosh"], "penalty": [1e-3]}, {"fit_intercept": [False], "penalty": [1e-3]}]
    machine = FalkonRegressor(**SETTINGS, gamma=0.2, device=device)
    both(machine, grid, X, y, cv=3, params={"sample_weight": weights})
    assert not alone


@pytest.mark.parametrize("machine", [FalkonClassifier, LogisticFalkonClassifier])
@pytest.mark.parametrize("k", [2, 3])
def test_classes(device: str, alone: list[Call], machine: Any, k: int) -> None:
    y = THREE if k == 3 else THREE == "top"
    grid = {"gamma": [0.2], "penalty": [1e-3, 1e-2], "class_weight": [None, "balanced"]}
    scoring = ["accuracy"] + (["neg_log_loss"] if machine is LogisticFalkonClassifier else [])
    ours, _ = both(
        machine(**SETTINGS | {"tol": 1e-6}, device=device), grid, X, y, cv=3, scoring=scoring, refit="accuracy"
    )
    assert not alone
    assert ours.best_score_ > 0.6
    assert set(ours.predict(X)) == set(y)


def test_one_kernel_matrix_for_all(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds and penalties of a kernel function meet the same products."""
    made = calls_of(monkeypatch, Cross, "__init__")
    FalkonSearchCV(FalkonRegressor(**SETTINGS, device=device), GRID, cv=4, refit=False).fit(X, Y)
    assert len(made) == len(GRID["gamma"])


def test_centres_are_those_of_the_refit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from all rows by the same seed, as many as of all rows."""
    machine = FalkonRegressor(n_centers=50, random_state=3, gamma=0.2, device=device)
    calls = calls_of(monkeypatch, FalkonRegressor, "_choose_centers")
    search = FalkonSearchCV(machine, {"penalty": [1e-3, 1e-4]}, cv=3).fit(X, Y)
    first, second = (call.result.indices for call in calls)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(search.best_estimator_.center_indices_, first)


def test_what_goes_alone(device: str, alone: list[Call]) -> None:
    machine = FalkonRegressor(**SETTINGS, gamma=0.2, device=device)
    twice = [(np.r_[0:300, 0:50], np.r_[300:400])]
    both(machine, {"penalty": [1e-3]}, X, Y, cv=twice)
    both(machine.set_params(warm_start=True), {"penalty": [1e-3]}, X, Y, cv=3)
    both(machine.set_params(warm_start=False, callback=lambda *given: None), {"penalty": [1e-3]}, X, Y, cv=3)
    assert len(alone) == 1 + 3 + 3


def test_folds_without_a_class(device: str, alone: list[Call]) -> None:
    """Fewer outputs: by themselves over the same rows."""
    order = np.argsort(THREE)
    both(
        FalkonClassifier(**SETTINGS, gamma=0.2, device=device), {"penalty": [1e-3]}, X[order], THREE[order], cv=KFold(4)
    )
    assert not alone


@pytest.mark.parametrize(
    ("name", "value", "most"), [("MAX_OUTPUTS", 4, 3), ("MAX_HOST_BYTES", 8 * folds.ARRAYS * len(X) * 2, 2)]
)
def test_more_folds_than_outputs_at_once(
    device: str, alone: list[Call], monkeypatch: pytest.MonkeyPatch, name: str, value: int, most: int
) -> None:
    """Folds are in parts of about one size, as many as are allowed or memory holds."""
    monkeypatch.setattr(folds, name, value)
    asked = calls_of(monkeypatch, NystromFolds, "_task")
    splits = ShuffleSplit(6, random_state=0)
    both(FalkonRegressor(**SETTINGS, gamma=0.2, device=device), {"penalty": [1e-3, 1e-4]}, X, Y, cv=splits)
    assert max(len(call.given[1]) for call in asked) == most
    assert not alone


def test_stalled_fits_are_done_again(device: str, alone: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    real = newton.Newton._run

    def stalled(self: Any, start: Any) -> Status:
        found = real(self, start)
        return Status.STALLED if self.rows.dtype == "float32" and self.rows.k > 1 else found

    monkeypatch.setattr(newton.Newton, "_run", stalled)
    machine = FalkonRegressor(center_selection=CENTERS, gamma=0.2, device=device, tol=1e-4)
    search = FalkonSearchCV(machine, {"penalty": [1e-3]}, cv=3, refit=False).fit(X, Y)
    info = machine.fit(X, Y).fit_report_
    assert len(alone) == (3 if info.dtype == "float32" else 0)
    assert search.best_score_ > 0.5


def test_failures(device: str) -> None:
    machine = FalkonRegressor(gamma=0.2, device=device)
    with pytest.raises(TypeError, match=r"Falkon estimators, .*SVC"):
        FalkonSearchCV(SVC(device=device), {"C": [1]}).fit(X, Y)
    with pytest.raises(TypeError, match=r"vector machines, .*Falkon"):
        SVCSearchCV(machine, {"penalty": [1e-3]}).fit(X, Y)
    for name, values in (
        ("penalty", [1e-3, -1]),
        *(("center_selection", [CENTERS, np.hstack([CENTERS, CENTERS])[:, :columns]]) for columns in (1, 5)),
    ):  # what the estimator refuses is scikit-learn's error_score
        with pytest.warns(FitFailedWarning, match="3 fits failed"):
            search = FalkonSearchCV(machine, {name: values}, cv=3, refit=False).fit(X, Y)
        assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [False, True]
    with pytest.warns(UserWarning, match="6 of 6 fold fits did not converge"):
        FalkonSearchCV(machine, {"max_iter": [1], "penalty": [1e-8, 1e-9]}, cv=3, refit=False).fit(X, Y)


def error(estimator: Any, X: Any, y: Any) -> float:
    return -float(np.square(estimator.predict(X) - y).mean())


def test_scorers_of_one_column(device: str) -> None:
    """Answers have the estimator's shape, for scorers that subtract."""
    made = FalkonRegressor(**SETTINGS | {"tol": 1e-6}, gamma=0.2, device=device)
    both(made, {"penalty": [1e-2]}, X, Y[:, None], cv=3, scoring=error, refit=False)


def test_targets_that_are_no_numbers(device: str) -> None:
    """Folds without them have their scores; others fail, as the estimator does."""
    y = Y.copy()
    y[0] = np.nan
    machine = FalkonRegressor(**SETTINGS, gamma=0.2, device=device)
    splits = [(np.arange(100, 250), np.arange(250, 300)), (np.arange(200), np.arange(200, 300))]
    search = FalkonSearchCV(machine, {"penalty": [1e-3]}, cv=splits, refit=False)
    with pytest.warns(FitFailedWarning, match="1 fits failed"):
        search.fit(X, y)
    expected = GridSearchCV(machine, {"penalty": [1e-3]}, cv=splits[:1], refit=False).fit(X, y)
    found = search.cv_results_
    assert found["split0_test_score"] == pytest.approx(expected.cv_results_["split0_test_score"], abs=1e-5)
    assert np.isnan(found["split1_test_score"])


def test_folds_of_targets_far_from_0(device: str) -> None:
    """What a fold leaves out is no target: rounding is held against those that it has."""
    random = np.random.RandomState(0)
    rows, y = random.randn(200, 2), np.sign(random.randn(200)) + 1e4
    machine = FalkonRegressor(center_selection=rows[:60], gamma=2.0, penalty=1e-10, device=device)
    both(machine, {"penalty": [1e-10]}, rows, y, cv=KFold(4), refit=False, scoring="neg_max_error", atol=1e-3)


def test_checkpoint(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted search goes on with what it had."""
    file, solves, real = tmp_path / "search.npz", [0], newton.Newton.run

    def interrupted(*given: Any) -> Any:
        solves[0] += 1
        found = real(*given)
        if solves[0] == 3:
            found.status = Status.INTERRUPTED
        return found

    monkeypatch.setattr(newton.Newton, "run", interrupted)
    search = FalkonSearchCV(FalkonRegressor(**SETTINGS, device=device), GRID, cv=3, refit=False, checkpoint=file)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, Y)
    assert file.exists()
    search.fit(X, Y)
    assert solves[0] == 3 + 4  # two of six candidates were there
    whole = FalkonSearchCV(FalkonRegressor(**SETTINGS, device=device), GRID, cv=3, refit=False).fit(X, Y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], whole.cv_results_["mean_test_score"], atol=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [(("no room for all folds",), "out of memory: no room for all folds; "), ((), "out of memory: .*To go on, ")],
)
def test_what_cannot_be_shared_is_said(
    device: str, alone: list[Call], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """Memory may hold the fits one by one."""

    def full(*_: Any) -> None:
        raise MemoryError(*words)

    monkeypatch.setattr(NystromFolds, "_solve_fits", full)
    machine = FalkonRegressor(**SETTINGS, device=device)
    with pytest.warns(RuntimeWarning, match=f"done one by one: {said}"):
        both(machine, {"penalty": [1e-3, 1e-2]}, X, Y, cv=3)
    assert len(alone) == 6
