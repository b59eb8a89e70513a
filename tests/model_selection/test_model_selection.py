"""The grid search that shares rows: against scikit-learn's over the same estimators, fit by fit."""

import os
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.metrics import make_scorer
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clsvm import SVC, SVR, FalkonClassifier, Kernel, NuSVC, NuSVR, OneClassSVM
from clsvm.errors import CheckpointError
from clsvm.fit import prepare
from clsvm.model_selection import FalkonSearchCV, SVCSearchCV, folds
from clsvm.model_selection.fits import Fits
from clsvm.solvers import certificate
from tests.callbacks import Noted
from tests.conftest import Call, calls_of, noisy

GRID = {"C": [0.3, 1, 10], "gamma": [0.1, 1.0]}


def of_three(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 3))
    return X, np.array(["c", "a", "b"])[np.digitize(X[:, 0] + 0.3 * rng.normal(size=n), [-0.4, 0.4])]


def both(estimator: Any, grid: Any, X: Any, y: Any, atol: float = 1e-9, **options: Any) -> tuple[Any, Any]:
    """Our search and scikit-learn's, whose scores are the same."""
    params = options.pop("params", {})
    ours = (FalkonSearchCV if hasattr(estimator, "penalty") else SVCSearchCV)(clone(estimator), grid, **options)
    ours.fit(X, y, **params)
    theirs = GridSearchCV(clone(estimator), grid, **options).fit(X, y, **params)
    for name in theirs.cv_results_:
        if name.startswith(("split", "mean_test", "mean_train", "rank")):
            np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], atol=atol, err_msg=name)
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    return ours, theirs


def shared(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the fits that are not shared, from here on."""
    return calls_of(monkeypatch, Fits, "_fit_alone")


@pytest.mark.parametrize("sparse", [False, True])
def test_two_classes(device: str, monkeypatch: pytest.MonkeyPatch, sparse: bool) -> None:
    alone = shared(monkeypatch)
    X, y = noisy(200, 4)
    rows = sp.csr_matrix(np.where(np.abs(X) < 0.5, 0, X)) if sparse else X
    ours, theirs = both(
        SVC(device=device, tol=1e-5), GRID, rows, y, scoring=["accuracy", "roc_auc"], refit="roc_auc", cv=4
    )
    assert ours.best_params_ == theirs.best_params_
    assert not alone
    np.testing.assert_allclose(ours.decision_function(rows), theirs.decision_function(rows), atol=1e-6)
    assert (ours.cv_results_["mean_fit_time"] > 0).all()
    assert isinstance(ours.best_estimator_, SVC)
    assert ours.score(rows, y) == pytest.approx(theirs.score(rows, y), abs=1e-6)


NUMBERS, (ROWS, SIGNS) = np.arange(90), noisy(90, 3)
TWICE, WEIGHTS = np.random.default_rng(0).integers(0, 45, 80), np.random.default_rng(0).choice([0.0, 0.5, 2.0], 90)
KINDS = [{"C": [0.5, 5], "class_weight": [None, {-1: 3.0, 1: 0.7}]}, {"kernel": ["linear", Kernel("laplacian")]}]
SAME: dict[str, tuple[Any, dict[str, Any]]] = {  # what is searched, and how
    "weights, training scores": (KINDS, {"cv": 3, "return_train_score": True, "params": {"sample_weight": WEIGHTS}}),
    "gamma by the rows of a fold": ({"C": [1, 4], "gamma": ["scale", "auto", 0.2]}, {"cv": 3}),
    "groups": ({"C": [1]}, {"cv": GroupKFold(5), "params": {"groups": NUMBERS % 5}}),
    "one split of all rows": ({"C": [1, 2]}, {"cv": [(NUMBERS, NUMBERS[:30])]}),
    "the same rows to fit": (
        {"C": [1]},
        {"cv": [(NUMBERS[:60], NUMBERS[60:75]), (NUMBERS[:60], NUMBERS[75:])], "return_train_score": True},
    ),
    "rows taken twice": ({"C": [0.1, 1]}, {"cv": [(TWICE, NUMBERS[45:])]}),
    "fits that go on from others": ({"C": [1], "warm_start": [True]}, {"cv": 3}),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_scores(device: str, case: str) -> None:
    grid, options = SAME[case]
    both(SVC(device=device, tol=1e-5), grid, ROWS, SIGNS, **options)


@pytest.mark.full
@pytest.mark.parametrize("most", [4096, 16])
@pytest.mark.parametrize("multi_class", ["ovo", "ovr", "crammer_singer"])
def test_three_classes(device: str, monkeypatch: pytest.MonkeyPatch, most: int, multi_class: str) -> None:
    """Pairs that are solved side by side as they are, and larger ones, which share rows."""
    alone = shared(monkeypatch)
    monkeypatch.setattr("clsvm.solvers.batch.max_rows", lambda stream: most)
    X, y = of_three(150)
    ours, _ = both(SVC(device=device, multi_class=multi_class, tol=1e-5), GRID, X, y, cv=StratifiedKFold(3))
    assert bool(alone) == (most == 4096 or multi_class == "crammer_singer")
    assert set(ours.predict(X)) == {"a", "b", "c"}


@pytest.mark.parametrize("most", [4096, 16])
def test_a_class_that_weighs_nothing(device: str, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("clsvm.solvers.batch.max_rows", lambda stream: most)
    X, y = of_three(150)
    both(SVC(device=device, tol=1e-5), GRID, X, y, cv=StratifiedKFold(3), params={"sample_weight": (y != "a") * 1.0})


def test_machines_of_a_fit_share_its_time(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clsvm.solvers.batch.max_rows", lambda stream: 16)
    solves = calls_of(monkeypatch, prepare.PreparedFit, "solve_smo")
    X, y = of_three(90)
    splits = [(np.arange(60), np.arange(60, 90))]
    SVCSearchCV(SVC(device=device, max_time=60), {"C": [1]}, cv=splits, refit=False).fit(X, y)
    left = [call.named["max_time"] for call in solves]
    assert 60 >= left[0] > left[1] > left[2] > 0


def test_nu_and_epsilon(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = shared(monkeypatch)
    X, y = noisy(160, 3)
    both(NuSVC(device=device, tol=1e-6), {"nu": [0.5, 0.6, 0.7], "gamma": [0.3]}, X, y, cv=3, atol=0.02)
    target = np.sin(X[:, 0]) + 0.1 * X[:, 1]
    grid = {"C": [0.5, 5], "epsilon": [0.01, 0.2], "gamma": [0.1, 0.5]}
    ours, theirs = both(SVR(device=device, tol=1e-6), grid, X, target, cv=3, atol=1e-4)
    assert ours.best_params_ == theirs.best_params_
    assert not alone
    assert ours.best_score_ > 0.5


@pytest.mark.parametrize("most", [0, 10000])
def test_values_of_pairs_are_not_kept(device: str, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Of a fit predictions stay, and as many values as there are classes."""
    monkeypatch.setattr(folds.batch, "max_rows", lambda stream: most)
    kept: list[int] = []
    real = folds.Folds.fold_of

    def fold_of(self: Any, train: Any) -> Any:
        kept.append(max(found.values.size for found in self.results.values()))
        return real(self, train)

    monkeypatch.setattr(folds.Folds, "fold_of", fold_of)
    rng = np.random.default_rng(5)
    y = np.repeat(np.arange(6), 12)
    X = rng.normal(size=(72, 3)) + y[:, None] % 3
    margin = make_scorer(lambda y, values: float(np.abs(values).mean()), response_method="decision_function")
    both(SVC(device=device), {"C": [1, 10]}, X, y, 1e-2, cv=2, scoring=margin)
    assert max(kept) == 36 * 6  # of 15 pairs


def test_failed_fits(device: str) -> None:
    """What one candidate cannot do is scikit-learn's error_score; the others have theirs."""
    X, y = noisy(90, 3)
    search = SVCSearchCV(SVC(device=device), {"C": [-1, 1]}, cv=3)
    with pytest.warns(FitFailedWarning, match="C must be > 0, got -1"):
        search.fit(X, y)
    assert np.isnan(search.cv_results_["mean_test_score"]).tolist() == [True, False]
    assert search.best_params_ == {"C": 1}
    with pytest.raises(ValueError, match="C must be > 0, got -1"):
        search.set_params(error_score="raise").fit(X, y)
    with pytest.raises(TypeError, match="support vector machines, or a Pipeline that ends in one, got SVC"):
        SVCSearchCV(svm.SVC(), {"C": [1]}).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        SVCSearchCV(SVC(device=device), {"C": [1]}).fit(np.full_like(X, np.nan), y)
    with pytest.warns(ConvergenceWarning, match="3 of 6 fold fits did not converge"), warnings.catch_warnings():
        SVCSearchCV(SVC(device=device), {"max_iter": [2, -1]}, cv=3, refit=False).fit(X, y)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_features_that_are_not_centred(device: str, monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    """Where the rounding of float32 kernel values could move scores, folds are checked in float64 or fitted in it."""
    alone = shared(monkeypatch)
    X, y = noisy(160, 3)
    scores = {"scoring": ["accuracy", "roc_auc"], "refit": False}
    both(SVC(device=device, kernel="linear", tol=1e-4), {"C": [0.1, 1]}, X + offset, y, cv=3, atol=1e-3, **scores)
    assert bool(alone) == (offset > 1e3)
    both(NuSVC(device=device, kernel="linear"), {"nu": [0.6]}, X + offset, y, cv=3, atol=0.02)


def test_candidates_of_other_kinds(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shares rows does so; machines that are coupled, and kernels of another kind, are fitted by themselves."""
    X, y = noisy(90, 3)
    alone = shared(monkeypatch)
    both(SVC(device=device, tol=1e-5), {"multi_class": ["ovo", "crammer_singer"]}, X, y, cv=3)
    assert len(alone) == 3

    def product(A: Any, B: Any) -> Any:
        return np.asarray(A) @ np.asarray(B).T

    with pytest.warns(UserWarning, match="on the host"):
        both(SVC(device=device, kernel=product, tol=1e-5), {"kernel": [product, "rbf"]}, X.tolist(), y, cv=3)


def test_refused_before_the_work(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What GridSearchCV refuses, in its words, and before any fit."""
    X, y = noisy(60, 3)
    monkeypatch.setattr(folds.Folds, "_run_all", lambda self: pytest.fail("a fit was begun"))
    with pytest.raises(TypeError, match=r"should have a 'score' method. The estimator OneClassSVM\(device="):
        SVCSearchCV(OneClassSVM(device=device), {"nu": [0.1]}, cv=3).fit(X)
    search = SVCSearchCV(SVC(device=device), {"C": [1]}, cv=3)
    with pytest.raises(ValueError, match="refit must be set to a scorer key"):
        clone(search).set_params(scoring=["accuracy", "f1"]).fit(X, y)
    with pytest.raises(ValueError, match="5"):
        search.fit(X, y, sample_weight=np.ones(5))
    with pytest.raises(TypeError, match="expected sample_weight or groups, got weights"):
        search.fit(X, y, weights=np.ones(60))
    scaled = make_pipeline(StandardScaler(), SVC(device=device))
    with pytest.raises(ValueError, match=r"checkpoint is not supported for a Pipeline, .*, got Pipeline"):
        SVCSearchCV(scaled, {"svc__C": [1]}, checkpoint="file").fit(X, y)
    with pytest.raises(ValueError, match="give checkpoint= to the search"):
        SVCSearchCV(SVC(checkpoint="file", device=device), {"C": [1]}, cv=3).fit(X, y)
    with pytest.raises(TypeError, match=r"support vector machines, or a Pipeline that ends in one, got Pipeline"):
        SVCSearchCV(make_pipeline(StandardScaler(), svm.SVC()), {"svc__C": [1]}).fit(X, y)


def test_pipeline(device: str) -> None:
    """Rows are scaled fold by fold, and parameters of every step are searched."""
    X, y = noisy(90, 4)
    X = X * [1, 1e3, 1e-2, 1] + 100
    pipeline = make_pipeline(StandardScaler(), PCA(), SVC(device=device))
    ours, theirs = both(pipeline, {"pca__n_components": [2, 4], "svc__C": [0.1, 1]}, X, y, cv=3)
    assert ours.best_params_ == theirs.best_params_
    assert ours.score(X, y) == theirs.score(X, y) > 0.7


def test_lines_where_there_is_no_terminal(device: str, monkeypatch: Any, capsys: Any) -> None:
    X, y = noisy(60, 3)
    search = SVCSearchCV(SVC(device=device), {"C": [1, 2]}, cv=3, verbose=1, refit=False)
    monkeypatch.setattr("clsvm.report.EVERY", 0)
    search.fit(X, y)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" fits")[0][-6:] for line in lines] == [f"{i} of 6" for i in (1, 2, 3, 4, 5, 6, 6)]
    search.set_params(verbose=0).fit(X, y)
    assert capsys.readouterr().err == ""


def test_goes_on_from_a_checkpoint(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = noisy(120, 3)
    file = tmp_path / "search.npz"
    search = SVCSearchCV(SVC(device=device, tol=1e-5), GRID, cv=3, checkpoint=file, refit=False)
    real, count = prepare.PreparedFit.solve_smo, [0]

    def interrupts(self: Any, problem: Any, **settings: Any) -> Any:
        count[0] += 1
        if count[0] == 8:
            raise KeyboardInterrupt
        return real(self, problem, **settings)

    monkeypatch.setattr(prepare.PreparedFit, "solve_smo", interrupts)
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, y)
    assert os.listdir(tmp_path) == ["search.npz"]
    search.fit(X, y)
    assert count[0] == 8 + 18 - 7
    whole = SVCSearchCV(SVC(device=device, tol=1e-5), GRID, cv=3).fit(X, y)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], whole.cv_results_["mean_test_score"])
    before = count[0]
    search.fit(X, y)
    assert count[0] == before
    for other in ({"return_train_score": True}, {"param_grid": {"C": [1]}}):
        with pytest.raises(CheckpointError, match="another search"):
            clone(search).set_params(**other).fit(X, y)
    file.write_bytes(b"no such thing")
    with pytest.raises(CheckpointError, match="no checkpoint of a search"):
        search.fit(X, y)


class Scaled:
    """A kernel function whose copies are not equal to it."""

    def __call__(self, A: Any, B: Any) -> Any:
        return A @ B.T / 5


def test_candidates_whose_copies_differ(device: str) -> None:
    """scikit-learn hands over copies of a candidate's values; and 1 is not True."""
    X, y = noisy(60, 3)
    grid = {"kernel": [Scaled(), "linear"]}
    ours = SVCSearchCV(SVC(device=device), grid, cv=3).fit(X, y)
    theirs = GridSearchCV(SVC(device=device), grid, cv=3).fit(X, y)
    np.testing.assert_allclose(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    assert ours.cv_results_["params"] == [{"kernel": one} for one in grid["kernel"]]
    with pytest.warns(FitFailedWarning):
        mixed = SVCSearchCV(SVC(device=device), {"bias": [True, 1]}, cv=3).fit(X, y)
    assert np.isnan(mixed.cv_results_["mean_test_score"]).tolist() == [False, True]


def test_a_fitted_search_keeps_no_rows(device: str) -> None:
    X, y = noisy(2000, 40)
    search = SVCSearchCV(SVC(device=device), {"C": [1, 10]}, cv=2, refit=False).fit(X, y)
    assert len(pickle.dumps(search)) < 20000
    assert "SVC.score" in repr(search.scorer_)


class Strict(SVC):
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return float(super().score(X, y, sample_weight)) - 1


class Inner(SVC):
    """Have other decision values than those of its fit."""

    def _decision_values(self, X: Any, *shape: str) -> Any:
        return -super()._decision_values(X, *shape)


@pytest.mark.parametrize("kind", [Strict, Inner])
def test_subclasses_that_answer_by_themselves(device: str, kind: Any) -> None:
    X, y = noisy(60, 3)
    found, expected = (
        search(kind(device=device), {"C": [1, 10]}, cv=2).fit(X, y).cv_results_["mean_test_score"]
        for search in (SVCSearchCV, GridSearchCV)
    )
    np.testing.assert_allclose(found, expected)
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("task", ["two classes", "regression", "nu", "nu regression", "one class"])
def test_certified_folds(device: str, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Where rounding moves decision values too far, the rows that decide and those that are asked for are evaluated at
    once in float64, and again by what has changed alone; values and violation are right by K in float64."""
    X, labels = noisy(400, 3)
    y = None if task == "one class" else X[:, 0] * X[:, 1] if "regression" in task else labels
    machines = {"regression": SVR(), "nu": NuSVC(nu=0.4), "nu regression": NuSVR(), "one class": OneClassSVM(nu=0.2)}
    estimator = machines.get(task, SVC(C=10)).set_params(gamma=0.5, device=device)
    K, calls, ended = rbf_kernel(X.astype(np.float64), gamma=0.5), [], []
    made, certified = prepare.PreparedFit.__init__, folds.FoldSolution.certified

    def counted(self: Any, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        exact = self.settings.exact
        kept = lambda rows, b: calls.append((len(rows), np.count_nonzero(b))) or exact(rows, b)  # noqa: E731
        self.settings = replace(self.settings, exact=kept)

    def seen(self: Any, ready: Any, kept: Any, asked: Any) -> Any:
        begun = len(calls)
        found = certified(self, ready, kept, asked)
        ended.append((self.solution, found, kept, calls[begun:]))
        return found

    monkeypatch.setattr(folds, "DECISION_ERROR", 0.0)
    monkeypatch.setattr(prepare.PreparedFit, "__init__", counted)
    monkeypatch.setattr(folds.FoldSolution, "certified", seen)
    scoring = {"one class": lambda machine, rows, y=None: machine.score_samples(rows).mean()}.get(task)
    grid = {"tol": [1e-4, 1e-5]}
    SVCSearchCV(estimator, grid, cv=3, refit=False, scoring=scoring, error_score="raise").fit(X, y)
    assert len(ended) == 6
    for before, found, kept, asked in ended:
        problem, b = found.problem, found.solution.b
        copies = b.shape[1] // len(X)
        f = b @ np.tile(K, (copies, copies)) + problem.q
        np.testing.assert_allclose(found.solution.f[:, kept], f[:, kept], atol=1e-9)
        assert certificate.of(problem, b, f).violation <= 1.2e-4
        changed = np.count_nonzero(b != before.b)
        assert asked[0][0] >= len(kept)
        assert all(count <= changed for _, count in asked[1:])  # (of nothing, where the first look was enough)


@pytest.mark.parametrize("on_search", [True, False])
@pytest.mark.parametrize(
    ("search", "estimator", "grid"),
    [
        (SVCSearchCV, SVC(), {"C": [1, 10]}),
        (FalkonSearchCV, FalkonClassifier(n_centers=20, random_state=0), {"penalty": [1e-4, 1e-2]}),
    ],
    ids=["SVC", "Falkon"],
)
def test_callbacks_hear_of_every_fit(
    search: Any, estimator: Any, grid: dict[str, Any], on_search: bool, device: str, tmp_path: Path
) -> None:
    """As in GridSearchCV, fit by fit, whether they are set on the search or on the estimator."""
    pytest.importorskip("sklearn.callback")
    X, y = of_three(90)

    def heard(kind: Any) -> tuple[list[tuple[str, str]], Any]:
        noted = Noted()
        made = kind(clone(estimator).set_params(device=device), grid, cv=2)
        (made if on_search else made.estimator).set_callbacks(noted)
        made.fit(X, y)
        return noted.names, made

    names, ours = heard(search)
    expected, theirs = heard(GridSearchCV)
    assert {task for _, task in expected} >= ({"search"} if on_search else {"fit"})
    assert names == expected
    np.testing.assert_array_equal(ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"])
    kept = search(clone(estimator), grid, cv=2, checkpoint=tmp_path / "c").set_callbacks(Noted())
    with pytest.raises(ValueError, match=r"the search has callbacks, got .* with callbacks"):
        kept.fit(X, y)
