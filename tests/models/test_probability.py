"""Probabilities as LIBSVM has them: the mathematics alone, fits with folds, files and commands beside LIBSVM's own."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline

from clsvm import SVC, SVR, FalkonClassifier, NuSVC, OneClassSVM, load_model, save_model
from clsvm.models import decoder, libsvm
from tests.conftest import Command, noisy
from tests.models.test_libsvm import model_of, with_estimates, write_text

NAMES = np.array(["setosa", "versicolor", "virginica"])


def irises(k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Shuffled and moved towards each other, so that classes overlap."""
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(1).permutation(np.flatnonzero(y < k))
    return X[order] - 0.6 * X[y == 2].mean(axis=0) * (y[order, None] == 2), y[order]


# The mathematics


def loss(parameters: np.ndarray, values: np.ndarray, target: np.ndarray) -> float:
    """Platt's: the cross-entropy of the target and 1 / (1 + exp(A f + B))."""
    z = parameters[0] * values + parameters[1]
    return float((target * np.logaddexp(0, z) + (1 - target) * np.logaddexp(0, -z)).sum())


@pytest.mark.parametrize("apart", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_sigmoid_of_the_most_likely_numbers(apart: float, scale: float) -> None:
    rng = np.random.default_rng(int(apart))
    y = rng.random(150) < 0.3
    values = rng.normal(size=150) + np.where(y, apart, 0) + 4
    A, B = decoder.platt(values * scale, y)
    target = np.where(y, (y.sum() + 1) / (y.sum() + 2), 1 / ((~y).sum() + 2))
    best = optimize.minimize(loss, [0, 0], (values, target), method="BFGS", options={"gtol": 1e-9})
    assert loss(np.array([A * scale, B]), values, target) <= best.fun + 1e-9
    assert (A < 0) == (np.corrcoef(values, y)[0, 1] > 0)
    assert decoder.platt(-values * scale, y) == pytest.approx((-A, B), rel=1e-6)
    assert decoder.platt(values * scale, ~y) == pytest.approx((-A, -B), rel=1e-6)


def test_a_sigmoid_of_values_that_say_nothing() -> None:
    y = np.arange(10) < 3
    share = (3 * 4 / 5 + 7 / 9) / 10
    A, B = decoder.platt(np.full(10, 7.0), y)
    assert (A, 1 / (1 + np.exp(B))) == (0, pytest.approx(share))


@pytest.mark.parametrize("k", [3, 4, 11])
def test_coupled_pairs(k: int) -> None:
    """What agrees with some p gives that p; else the minimum of p'Qp, to LIBSVM's 0.005 / k of its condition."""
    rng = np.random.default_rng(k)
    p = rng.dirichlet(np.ones(k), 30)
    i, j = np.array(list(combinations(range(k), 2))).T
    np.testing.assert_allclose(decoder.coupled(p[:, i] / (p[:, i] + p[:, j]), k), p, atol=0.05)
    first = rng.uniform(0.01, 0.99, (300, len(i)))
    got = decoder.coupled(first, k)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)
    for row, p in zip(first, got, strict=True):
        r = np.zeros((k, k))
        r[i, j], r[j, i] = row, 1 - row
        Q = np.diag((r**2).sum(axis=0)) - r * r.T
        assert np.abs(Q @ p - p @ Q @ p).max() < 0.005 / k
        system = np.block([[Q, np.ones((k, 1))], [np.ones((1, k)), np.zeros((1, 1))]])
        best = np.linalg.solve(system, np.r_[np.zeros(k), 1])[:k]
        assert p @ Q @ p <= best @ Q @ best + 0.01 / k
        assert p.argmax() == best.argmax() or np.sort(best)[-2] > best.max() - 0.05


def test_rows_are_coupled_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    first = np.random.default_rng(0).random((50, 10))
    whole = decoder.coupled(first, 5)
    np.testing.assert_array_equal([decoder.coupled(row[None], 5)[0] for row in first], whole)
    monkeypatch.setattr(decoder, "_CELLS", 175)  # seven rows at a time
    np.testing.assert_array_equal(decoder.coupled(first, 5), whole)


def test_the_scale_of_errors_without_outliers() -> None:
    assert decoder.laplace(np.array([1.0, -3.0, 2.0])) == 2
    errors = np.tile([0.5, -1.5], 50)
    assert decoder.laplace(np.r_[errors, 9.0]) == 1  # 5 sqrt(2) times the mean size, 1.079, is 7.63
    assert decoder.laplace(np.r_[errors, 7.0]) > 1
    assert decoder.laplace(np.zeros(3)) == 0


def test_marks_of_one_class() -> None:
    values = np.r_[np.arange(-20.0, 0) / 10, np.arange(0.5, 30) / 10]
    marks = decoder.density_marks(np.random.default_rng(0).permutation(values))
    ends = [-2.0, -1.6, -1.2, -0.8, -0.4, 0, 0.55, 1.15, 1.75, 2.35, 2.95]
    np.testing.assert_allclose(marks, (np.array(ends[1:]) + ends[:-1]) / 2)
    assert decoder.density_marks(values[16:]) is None
    assert decoder.density_marks(values[:24]) is None
    assert decoder.density_marks(values[15:25]) is not None
    assert decoder.density_marks(-np.ones(20)) is None
    got = decoder.of_one_class(np.array([-9, marks[0], -1.7, -0.01, 0.1, marks[8], 2.6, marks[9], 9]), marks)
    np.testing.assert_allclose(got[:, 0], [0.001, 0.1, 0.1, 0.5, 0.5, 0.9, 0.9, 0.999, 0.999])
    np.testing.assert_allclose(got.sum(axis=1), 1)


# Fits


def by_hand(estimator: Any, X: Any, y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """A and B of each pair, positive for its first class: a fit of two classes for each pair and fold."""
    parts, found = decoder.folds(y, 5, True), []
    for a, b in combinations(np.unique(y), 2):
        values = np.zeros(len(y))
        for train, test in parts:
            train, test = (rows[np.isin(y[rows], (a, b))] for rows in (train, test))
            w = None if weights is None else weights[train]
            fold = clone(estimator)
            fold.class_weight = {label: fold.class_weight[label] for label in (a, b)}
            values[test] = -fold.fit(X[train], y[train], w).decision_function(X[test])
        rows = np.isin(y, (a, b))
        found.append(decoder.platt(values[rows], y[rows] == a))
    A, B = np.array(found).T
    return A, B


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("k", [2, 3])
def test_folds_of_every_pair(k: int, form: Any) -> None:
    """With weights of rows and of classes, which the folds have to keep."""
    X, y = irises(k)
    y, X = NAMES[y], form(X)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(y))
    model = SVC(C=0.5, gamma=0.3, class_weight=dict(zip(NAMES[:k], (0.1, 3, 1), strict=False)), tol=1e-6)
    model.fit(X, y, weights)
    got = decoder.calibrated(model, X, y, weights)
    A, B = by_hand(model, X, y, weights)
    np.testing.assert_allclose(got.probA, A, rtol=1e-3)
    np.testing.assert_allclose(got.probB, -B if k == 2 else B, rtol=1e-3, atol=1e-3)
    unweighted = decoder.calibrated(model, X, y)
    assert not np.allclose(unweighted.probA, A, rtol=0.02)
    proba = got.predict_proba(model.model_.support_vectors)
    assert proba.shape == (model.n_support_.sum(), k)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(got.dual_coef, model.dual_coef_)
    assert model.model_.probA is None


def test_classes_that_a_fold_lacks() -> None:
    """One row of the third class: where it is held out, no machine knows it, and the pairs' values are 1 and -1."""
    X, y = irises(2)
    X, y = np.concatenate([X, [[9.0, 9, 9, 9]]]), np.r_[y, 2]
    model = SVC(C=10.0).fit(X, y)
    got = decoder.calibrated(model, X, y)
    assert got.has_probabilities
    assert np.isfinite([got.probA, got.probB]).all()
    np.testing.assert_array_equal(got.predict_proba(X).argmax(axis=1)[:100], y[:100])
    fold = next(test for _, test in decoder.folds(y, 5, True) if 100 in test)
    one = SVC(C=10.0, decision_function_shape="ovo")
    for p, own in ((1, 0), (2, 1)):  # the pairs with it: 1 for the rows of that fold, its own one among them
        values = np.zeros(101)
        for train, test in decoder.folds(y, 5, True):
            known = 100 not in test
            values[test] = one.fit(X[train], y[train]).decision_function(X[test])[:, p] if known else 1
        rows = np.isin(y, (own, 2))
        assert decoder.platt(values[rows], y[rows] == own) == pytest.approx((got.probA[p], got.probB[p]))
    assert len(fold) > 15
    weights = {0: 2.0, 2: 3.0}  # (of a class that a fold lacks, while another has none)
    assert decoder.calibrated(SVC(class_weight=weights).fit(X, y), X, y).has_probabilities
    X, y = X[[0, 1, 2, 100]], np.array([0, 0, 0, 1])
    assert np.isfinite(decoder.calibrated(SVC().fit(X, y), X, y).probA).all()


def test_regression_and_one_class() -> None:
    X, y = load_diabetes(return_X_y=True)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(y))
    model = SVR(C=50.0, epsilon=5.0).fit(X, y, weights)
    got = decoder.calibrated(model, X, y, weights)
    errors = np.zeros(len(y))
    for train, test in decoder.folds(y, 5, False):
        errors[test] = y[test] - clone(model).fit(X[train], y[train], weights[train]).predict(X[test])
    assert got.probA.tolist() == [decoder.laplace(errors)]
    assert got.probB is None
    with pytest.raises(ValueError, match="the probabilities of epsilon_svr's errors alone, expected a classifier"):
        got.predict_proba(X)
    inside = OneClassSVM(nu=0.3).fit(X)
    got = decoder.calibrated(inside, X)
    np.testing.assert_array_equal(got.prob_density_marks, decoder.density_marks(inside.decision_function(X)))
    assert np.mean((got.predict_proba(X)[:, 0] >= 0.5) == (inside.predict(X) > 0)) > 0.9
    assert not decoder.calibrated(OneClassSVM(nu=0.1).fit(X[:9]), X[:9]).has_probabilities


def test_labels_that_the_fit_had_are_asked_for() -> None:
    X, y = load_iris(return_X_y=True)
    model = SVC().fit(X, y)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[100, 150\]"):
        decoder.calibrated(model, X[:100], y)
    with pytest.raises(ValueError, match=r"y has the label .*5.*, expected one of: .*0.*1.*2"):
        decoder.calibrated(model, X, y + 5)
    with pytest.raises(ValueError, match="y must be the labels or targets of the rows, got None"):
        decoder.calibrated(model, X)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[150, 150, 5\]"):
        decoder.calibrated(model, X, y, [1.0] * 5)
    with pytest.raises(ValueError, match="X has 2 features, but SVC is expecting 4 features as input"):
        decoder.calibrated(model, X[:, :2], y)
    with pytest.raises(ValueError, match=r"rows of two classes or more, got only the label .*0"):
        decoder.calibrated(model, X[:10], y[:10])
    with pytest.raises(TypeError, match="must be an estimator of clsvm, got Pipeline"):
        decoder.calibrated(make_pipeline(SVC()).fit(X, y), X, y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["list", "pandas", "polars"])
def test_rows_of_any_kind(form: str) -> None:
    pd = pytest.importorskip("pandas")
    frame = list if form == "list" else pytest.importorskip(form).DataFrame
    X, y = irises()
    rows, K = frame(X), frame(X @ X.T)
    if form == "pandas":
        rows = pd.DataFrame(X, columns=list("abcd"), index=range(500, 500 + len(X)))
    weights = pd.Series(np.where(y, 2.0, 1), index=range(9, 9 + len(y)))
    for model, given, plain, labels, more in (
        (SVC(), rows, X, y.tolist(), [weights]),
        (SVR(), rows, X, pd.DataFrame(y), []),
        (OneClassSVM(nu=0.2), rows, X, None, []),
        (SVC(kernel="precomputed"), K, X @ X.T, y, []),
    ):
        got = decoder.calibrated(model.fit(given, y, *more), given, labels, *more)
        expected = decoder.calibrated(model.fit(plain, y, *more), plain, y, *more)
        for name in ("probA", "prob_density_marks"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


def test_rows_that_only_the_callers_kernel_reads() -> None:
    rng = np.random.default_rng(0)
    ragged = [rng.normal(size=n).tolist() for n in rng.integers(2, 7, 60)]
    y = np.array([sum(row) > 0 for row in ragged])

    def sums(A: Any, B: Any) -> Any:
        return np.outer([sum(row) for row in A], [sum(row) for row in B])

    assert decoder.calibrated(SVC(kernel=sums).fit(ragged, y), ragged, y).probA[0] < 0


def test_what_cannot_have_them(tmp_path: Path) -> None:
    X, y = irises(3)
    for multi_class in ("crammer_singer", "ovr"):
        model = SVC(multi_class=multi_class, gap_tol=0.1).fit(X, y)
        with pytest.raises(ValueError, match="need multi_class='ovo', got a decision function for each of 3 classes"):
            decoder.calibrated(model, X, y)
    with pytest.raises(ValueError, match="got a model with no probabilities, expected"):
        SVC().fit(X, y).model_.predict_proba(X)
    few = np.r_[np.flatnonzero(y == 0)[:6], np.flatnonzero(y == 1)[:14]]
    nu = NuSVC(nu=0.6).fit(X[few], y[few])  # (6 of 20 rows allow just that, 4 of 15 do not)
    with pytest.raises(ValueError, match=r"fold \d of 5 for the probabilities failed: specified nu is infeasible"):
        decoder.calibrated(nu, X[few], y[few])


def test_folds_leave_no_trace_and_say_what_failed(tmp_path: Path) -> None:
    X, y = irises(2)
    model = SVC(checkpoint=tmp_path / "c", max_iter=2, working_set_size=2)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    before = (tmp_path / "c").read_bytes()
    with pytest.warns(
        ConvergenceWarning, match=r"from fits that did not converge \(fold 1: not converged: max_iter"
    ) as said:
        decoder.calibrated(model, X, y)
    assert len(said) == 1
    assert (tmp_path / "c").read_bytes() == before


# Files


def test_numbers_of_another_task_are_refused(tmp_path: Path) -> None:
    classes, one, values = with_estimates("c_svc", 4), with_estimates("one_class", 0), with_estimates("epsilon_svr", 0)
    for model, change, words in (
        (classes, {"probB": None}, "prob"),
        (classes, {"probA": np.ones(3)}, "prob"),
        (values, {"probB": np.ones(1)}, "prob"),
        (one, {"probA": np.ones(1)}, "prob"),
        (model_of("c_svc", 4), {"prob_density_marks": np.ones(10)}, "prob"),
        (classes, {"probA": np.array([1, 2, 3, 4, 5, np.nan])}, "not finite"),
    ):
        for write in (libsvm.save_model, save_model):
            with pytest.raises(ValueError, match=words):
                write(replace(model, **change), tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_fitted_estimators_go_into_files(tmp_path: Path) -> None:
    X, y = irises(3)
    model = SVC().fit(X, y)
    for write in (libsvm.save_model, save_model):
        write(model, tmp_path / "m")
        np.testing.assert_array_equal(load_model(tmp_path / "m").dual_coef, model.dual_coef_)
        with pytest.raises(TypeError, match=r"a KernelModel or a fitted estimator of clsvm, got \[1\]"):
            write([1], tmp_path / "m")
        with pytest.raises(ValueError, match="not fitted"):
            write(SVC(), tmp_path / "m")


# Commands


def test_one_class_on_the_command_line(command: Command, tmp_path: Path) -> None:
    X, _ = irises(3)
    write_text(tmp_path / "data", X, np.ones(len(X)))
    assert command("train", "-q", "-s", "2", "-n", "0.3", "-b", "1", "data", "m") == (0, "", "")
    assert "\nprob_density_marks -" in (tmp_path / "m").read_text()
    result = command("predict", "-b", "1", "data", "m", "out")
    assert (result.code, result.err) == (0, "")
    head, *lines = (tmp_path / "out").read_text().splitlines()
    assert head == "label normal outlier"
    rows = [line.split(" ") for line in lines]
    assert len(rows) == len(X)
    assert {row[0] for row in rows} == {"1", "-1"}
    assert {row[1] for row in rows} <= {"0.001", *(f"0.{i}" for i in range(1, 10)), "0.999"}
    assert all(float(row[1]) + float(row[2]) == pytest.approx(1) for row in rows)
    assert np.mean([(float(row[1]) >= 0.5) == (row[0] == "1") for row in rows]) > 0.9
    write_text(tmp_path / "rows", X[:9], np.ones(9))
    result = command("train", "-q", "-s", "2", "-n", "0.1", "-b", "1", "rows", "few")
    assert result == (0, "", "clsvm: warning: no probabilities: expected at least 5 rows inside, and 5 outside\n")
    assert "prob" not in (tmp_path / "few").read_text()


def test_our_format_and_labels_of_text(command: Command, tmp_path: Path) -> None:
    X, y = irises(3)
    write_text(tmp_path / "data", X, y)
    assert command("train", "-q", "-t", "matern32", "-b", "1", "data", "m") == (0, "", "")
    assert command("predict", "-b", "1", "data", "m", "out").out == "Accuracy = 100% (150/150) (classification)\n"
    found = load_model(tmp_path / "m").predict_proba(X)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out", skiprows=1)[:, 1:], found, atol=1e-5)
    save_model(decoder.calibrated(model := SVC().fit(X, NAMES[y]), X, NAMES[y]), tmp_path / "text")
    assert command("predict", "-b", "1", "data", "text", "out").code == 0
    head, *lines = (tmp_path / "out").read_text().splitlines()
    assert head.split(" ") == ["labels", *NAMES]
    assert np.mean([line.split(" ")[0] for line in lines] == model.predict(X)) > 0.95


def test_probabilities_of_a_falkon_classifier(device: str) -> None:
    X, y = noisy(200, 3)
    model = FalkonClassifier(n_centers=20, random_state=0, device=device).fit(X, y)
    found = decoder.calibrated(model, X, y)
    sure = np.argsort(model.decision_function(X))[[0, -1]]
    low, high = found.predict_proba(X[sure])[:, 1]
    assert low < 0.2
    assert high > 0.8
