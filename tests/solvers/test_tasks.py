"""Classification of more than two classes by pairs, regression and one-class machines, nu-SVC and nu-SVR: every claim
of a fit recomputed in float64, and held against scikit-learn's estimators."""

import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels

from benchmarks import check
from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, kernels
from clsvm.models.decoder import strips, votes
from clsvm.solvers import batch
from tests.conftest import noisy, simulated, thrifty
from tests.solvers import optimality
from tests.solvers.optimality import Drawn, both_forms, draw, problems, small, verify

TOL = 1e-4
FINE = 1e-5  # scikit-learn's tolerance here
KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {"gamma": 0.3},
    "linear": {},
    "poly": {"gamma": 0.3, "coef0": 0.5, "degree": 2},
    "sigmoid": {"gamma": 0.01, "coef0": 0.0},  # nearly positive definite: else there is more than one optimum
}
IRIS = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)[0] * 20, load_diabetes(return_X_y=True)[1] / 80


def gram(kernel: str, A: Any, B: Any) -> np.ndarray:
    A, B = (np.asarray(part.toarray() if sp.issparse(part) else part, np.float64) for part in (A, B))
    return pairwise_kernels(A, B, metric=kernel, **KERNELS[kernel])


def same_optimum(mine: float, theirs: Any, K: np.ndarray, y: Any, weights: Any, slack: float = 1e-7) -> None:
    assert mine == pytest.approx(check.check(theirs, K, y, weights).dual, rel=1e-5, abs=slack)


every_kernel = pytest.mark.parametrize("kernel", KERNELS)


@every_kernel
@both_forms
@small
@problems
def test_pairs(device: str, kernel: str, sparse: bool, drawn: Drawn) -> None:
    X, y, weights, _ = drawn.rows(3 + drawn.seed % 3, sparse)
    of_class: Any = [None, "balanced", {0: 2.0, 2: 0.5}][drawn.seed % 3] if drawn.flag else None
    options: dict[str, Any] = {"C": drawn.number, "kernel": kernel, "class_weight": of_class, **KERNELS[kernel]}
    model, K = SVC(**options, tol=TOL, device=device).fit(X, y, weights), gram(kernel, X, X)
    mine, offsets = verify(model, K, y, weights)
    alone = clone(model).set_params(bias=False).fit(X, y, weights)
    verify(alone, K, y, weights)  # (scikit-learn has none without an offset: the violation alone proves the optimum)
    assert not alone.intercept_.any()
    theirs = sklearn.svm.SVC(**options, tol=FINE).fit(X, y, weights)
    np.testing.assert_allclose(model.class_weight_, theirs.class_weight_)
    same_optimum(mine, theirs, K, y, weights)
    model.decision_function_shape = theirs.decision_function_shape = "ovo"
    values, expected = model.decision_function(X), theirs.decision_function(X)
    near = 5e-3 * max(1.0, drawn.number) + offsets
    assert (np.abs(values - expected) <= near).all()
    clear = (np.abs(expected) > near).all(axis=1)
    np.testing.assert_array_equal(model.predict(X)[clear], theirs.predict(X)[clear])


@every_kernel
@both_forms
@small
@problems
def test_regression(device: str, kernel: str, sparse: bool, drawn: Drawn) -> None:
    (X, y, weights, rng), number, flag = drawn.rows(3, sparse), drawn.number, drawn.flag
    y = y + 0.3 * rng.normal(size=drawn.n)
    epsilon = [0.0, 0.1, 0.4][drawn.seed % 3]
    options: dict[str, Any] = {"C": number, "kernel": kernel, "epsilon": epsilon, **KERNELS[kernel]}
    model = SVR(**options, tol=TOL, bias=flag, device=device).fit(X, y, weights)
    K = gram(kernel, X, X)
    mine, offsets = verify(model, K, y, weights)
    values = K[:, model.support_] @ model.dual_coef_[0] + model.intercept_
    np.testing.assert_allclose(model.predict(X), values, atol=1e-4 * max(1.0, number))
    if not flag:  # (scikit-learn has none: the violation alone proves the optimum)
        assert model.intercept_ == 0
        return
    theirs = sklearn.svm.SVR(**options, tol=FINE).fit(X, y, weights)
    same_optimum(mine, theirs, K, y, weights)
    np.testing.assert_allclose(model.predict(X), theirs.predict(X), atol=5e-3 * max(1.0, number) + offsets[0])


@every_kernel
@both_forms
@small
@problems
def test_one_class(device: str, kernel: str, sparse: bool, drawn: Drawn) -> None:
    X, _, weights, _ = drawn.rows(2, sparse)
    nu = {0.3: 0.05, 1.0: 0.3, 10.0: 0.8}[drawn.number]
    options: dict[str, Any] = {"nu": nu, "kernel": kernel, **KERNELS[kernel]}
    model = OneClassSVM(**options, tol=TOL, device=device).fit(X, sample_weight=weights)
    theirs = sklearn.svm.OneClassSVM(**options, tol=FINE).fit(X, sample_weight=weights)
    K = gram(kernel, X, X)
    found, offsets = verify(model, K, None, weights)
    b = model.dual_coef_[0]
    mine, expected = model.decision_function(X), theirs.decision_function(X)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(mine, K[:, model.support_] @ b - model.offset_, atol=1e-5 * scale)
    if kernel == "sigmoid":
        return  # more than one optimum, whose objectives are next to nothing
    best = check.check(theirs, K, None, weights).dual
    same_optimum(found, theirs, K, None, weights, TOL * b.sum())  # (what a violation of TOL can be worth)
    # an objective worse by g is of a w within sqrt(2 g) of the best one
    near = 5e-4 * scale + offsets + np.sqrt(2 * (abs(best - found) + 1e-8) * K.diagonal())
    assert (np.abs(mine - expected) <= near).all()
    clear = np.abs(expected) > near
    np.testing.assert_array_equal(model.predict(X)[clear], theirs.predict(X)[clear])


LEARNT = "support_ support_vectors_ n_support_ dual_coef_ intercept_ n_iter_ fit_status_ shape_fit_ n_features_in_"
OWN = {"SVC": ("classes_", "class_weight_"), "SVR": (), "OneClassSVM": ("offset_",)}


@pytest.mark.parametrize("task", OWN)
@every_kernel
def test_attributes(task: str, kernel: str) -> None:
    """Types, dtypes, dimensions and values are scikit-learn's; there may be a support vector or two more or less."""
    X, y = DIABETES if task != "SVC" else (IRIS[0], np.array(["c", "a", "b"])[IRIS[1]])
    X = X + 2 if task == "OneClassSVM" else X  # (rows around 0 would have no boundary between them and 0)
    options: dict[str, Any] = {"kernel": kernel, "tol": FINE, **KERNELS[kernel]}
    ours: Any = {"SVC": SVC, "SVR": SVR, "OneClassSVM": OneClassSVM}[task](**options).fit(X, y)
    theirs = getattr(sklearn.svm, task)(**options).fit(X, y)
    for name in (*LEARNT.split(), *OWN[task]):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert type(mine) is type(other), name
        if isinstance(other, np.ndarray):
            assert (mine.dtype, mine.ndim) == (other.dtype, other.ndim), name
    one = task != "OneClassSVM" or kernel in ("rbf", "poly")  # (else there is more than one optimum)
    assert len(set(ours.support_) ^ set(theirs.support_)) <= (0 if task == "SVC" else 2) or not one
    np.testing.assert_array_equal(ours.support_vectors_, X[ours.support_])
    assert ours.n_support_.sum() == len(ours.support_) == ours.dual_coef_.shape[1]
    assert np.sum(ours.n_iter_) == ours.fit_report_.steps > 0
    assert (ours.fit_status_, ours.shape_fit_, ours.n_features_in_) == (0, X.shape, X.shape[1])
    expected = values_of(theirs, X)
    scale = 1e-3 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=scale)
    assert hasattr(ours, "coef_") == hasattr(theirs, "coef_") == (kernel == "linear")
    if task == "SVC":
        np.testing.assert_array_equal(ours.n_support_, theirs.n_support_)
        np.testing.assert_allclose(ours.dual_coef_, theirs.dual_coef_, atol=2e-3)
        ours.decision_function_shape = "ovo"
    else:
        clear = np.abs(expected) > (scale if task == "OneClassSVM" else -1)
        assert clear.mean() > 0.5 or not one
        np.testing.assert_allclose(ours.predict(X)[clear], theirs.predict(X)[clear], atol=scale)
    if kernel == "linear":
        assert ours.coef_.shape == theirs.coef_.shape
        values = values_of(ours, X).reshape(len(X), -1)
        np.testing.assert_allclose(X @ ours.coef_.T + ours.intercept_, values, atol=scale)
        sparse = clone(ours).fit(sp.csr_matrix(X), y)
        np.testing.assert_allclose(sparse.coef_, ours.coef_, atol=1e-3)
    if task == "OneClassSVM":
        np.testing.assert_array_equal(ours.offset_, -ours.intercept_)
        np.testing.assert_array_equal(ours.score_samples(X), ours.decision_function(X) + ours.offset_)
        np.testing.assert_allclose(ours.score_samples(X), theirs.score_samples(X), atol=scale)
        np.testing.assert_array_equal(clone(ours).fit_predict(X), ours.predict(X))
        np.testing.assert_array_equal(np.unique(ours.predict(X)), [-1, 1])
    else:
        assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=1e-4)


def cyclic() -> tuple[np.ndarray, np.ndarray]:
    """Five classes in heaps that overlap, so that some rows have as many votes for two of them."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 5, 200)
    return rng.normal(size=(200, 2)) + np.stack([np.cos(y), np.sin(y)], axis=1), y


def test_shapes_of_decision_values_and_ties() -> None:
    X, y = cyclic()
    ours, theirs = SVC(tol=FINE).fit(X, y), sklearn.svm.SVC(tol=FINE).fit(X, y)
    grid = np.random.default_rng(3).normal(size=(3000, 2)) * 1.5
    assert ours.decision_function(grid).shape == (3000, 5)
    np.testing.assert_allclose(ours.decision_function(grid), theirs.decision_function(grid), atol=1e-3)
    plain = ours.predict(grid)
    assert (plain != theirs.predict(grid)).mean() < 2e-3
    for model in (ours, theirs):
        model.set_params(decision_function_shape="ovo")
    values = ours.decision_function(grid)
    assert values.shape == (3000, 10)
    np.testing.assert_allclose(values, theirs.decision_function(grid), atol=1e-3)
    np.testing.assert_array_equal(ours.predict(grid), plain)
    for model in (ours, theirs):
        with pytest.raises(ValueError, match="break_ties must be False when decision_function_shape is 'ovo'"):
            model.set_params(break_ties=True).predict(grid)
        model.set_params(decision_function_shape="ovr")
    broken = ours.predict(grid)
    assert (broken != theirs.predict(grid)).mean() < 2e-3
    np.testing.assert_array_equal(broken, ours.decision_function(grid).argmax(axis=1))
    most = votes(strips(values, 5), len(values), 5)
    tied = (most == most.max(axis=1, keepdims=True)).sum(axis=1) > 1
    assert (broken != plain).any()
    assert not (broken != plain)[~tied].any()


def of_each_task() -> list[tuple[Any, Any, Any]]:
    """(estimator, X, y) of each."""
    return [(SVC(C=3, gamma=0.3), *IRIS), (SVR(gamma=0.1), *DIABETES), (OneClassSVM(gamma=0.1), DIABETES[0], None)]


def values_of(model: Any, X: Any) -> np.ndarray:
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


@pytest.mark.parametrize(("estimator", "X", "y"), [*of_each_task(), (SVC(multi_class="crammer_singer"), *IRIS)])
def test_memory_limits(estimator: Any, X: Any, y: Any) -> None:
    """What fits with less fits with more; the rest is refused in words, with nothing learnt."""
    limits = 1000, 30_000, 60_000, 120_000, 250_000, 500_000, 1_000_000, 4_000_000
    done = [optimality.outcome(clone(estimator).set_params(memory_limit=limit), X, y) for limit in limits]
    assert optimality.fits_from_some_limit_on(done), done


@pytest.mark.parametrize("bias", [True, False])
@both_forms
def test_large_pairs_go_through_the_decomposition(monkeypatch: pytest.MonkeyPatch, sparse: bool, bias: bool) -> None:
    """All of them, or those of the two larger classes, beside the small ones."""
    X, y, rng = draw(4, 300, 4, 3, sparse)
    y[(y == 2) & (rng.random(300) < 0.6)] = 1
    weights, K = rng.choice([0.5, 1.0, 2.0], 300), gram("rbf", X, X)
    sizes, found = sorted(np.isin(y, two).sum() for two in combinations(range(3), 2)), []
    for most, count in ((300, 0), (16, 3), (sizes[1], 1)):
        monkeypatch.setattr(batch, "max_rows", lambda stream, most=most: most)
        model = SVC(C=3, tol=TOL, bias=bias, **KERNELS["rbf"]).fit(X, y, weights)
        assert f"{3 - count} problems of up to {most} rows solved whole, {count} by" in model.fit_report_.selection
        found.append((verify(model, K, y, weights)[0], model.intercept_, model.decision_function(X)))
        assert found[-1][0] == pytest.approx(found[0][0], rel=1e-5)
        for values, whole in zip(found[-1][1:], found[0][1:], strict=True):
            np.testing.assert_allclose(values, whole, atol=1e-3)
        assert model.n_iter_.shape == (3,)
        assert (model.n_iter_ > 0).all()


def test_weights_of_zero_are_no_rows() -> None:
    X, y = IRIS
    weights = np.random.default_rng(0).integers(-1, 3, 150).astype(float)
    used = weights > 0
    options: dict[str, Any] = {"gamma": 0.3, "tol": 1e-6, "dtype": "float64"}
    for made, target in ((SVC, y), (SVR, X[:, 0] + y), (OneClassSVM, None)):
        part = None if target is None else target[used]
        model: Any = made(**options).fit(X, target, sample_weight=weights)
        expected = made(**options).fit(X[used], part, sample_weight=weights[used])
        assert (weights[model.support_] > 0).all()
        np.testing.assert_allclose(values_of(model, X), values_of(expected, X), atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "error", "match"),
    [
        (SVC(break_ties=True, decision_function_shape="all"), ValueError, "decision_function_shape must be 'ovr' or"),
        (SVC(max_time=0), ValueError, "max_time must be > 0 and finite or None, got 0"),
        (SVR(epsilon=-0.1), ValueError, "epsilon must be >= 0 and finite, got -0.1"),
        (SVR(bias=None), TypeError, "bias must be True or False, got None"),
        (NuSVC(nu=1.5), ValueError, r"nu must be > 0 and <= 1, got 1\.5"),
        (NuSVR(nu=1.5), ValueError, r"nu must be > 0 and <= 1, got 1\.5"),
        (NuSVR(nu=0), ValueError, "nu must be > 0 and <= 1, got 0"),
    ],
    ids=str,
)
def test_bad_parameters(estimator: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        estimator.fit(*IRIS)
    assert not hasattr(estimator, "model_")


def test_corners() -> None:
    """Nothing to learn from is no reason to fail; numbers as scikit-learn has them."""
    X, y = IRIS
    same = np.full((30, 2), 0.5)
    cases: list[tuple[str, dict[str, Any], Any, Any]] = [
        ("SVR", {}, X, np.full(150, 3.0)),
        ("SVR", {"epsilon": 100.0}, X, y.astype(float)),
        ("SVR", {}, same, np.arange(30.0)),
        ("SVR", {}, X[:1], [2.0]),
        ("OneClassSVM", {}, X[:1], None),
        ("OneClassSVM", {}, same, None),
        ("SVC", {}, X[[0, 60, 120]], [0, 1, 2]),
        ("SVC", {}, same, np.arange(30) % 3),
        ("SVC", {}, X, y == 0),
    ]
    for name, options, rows, target in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = {"SVC": SVC, "SVR": SVR, "OneClassSVM": OneClassSVM}[name](**options).fit(rows, target)
        theirs = getattr(sklearn.svm, name)(**options, tol=FINE).fit(rows, target)
        np.testing.assert_allclose(values_of(ours, rows), values_of(theirs, rows), atol=5e-3, err_msg=name)
    everything = OneClassSVM(nu=1.0).fit(X)  # (scikit-learn's has no finite offset then)
    np.testing.assert_array_equal(everything.dual_coef_, np.ones((1, 150)))
    assert everything.fit_report_.converged
    assert everything.decision_function(X).max() == pytest.approx(0, abs=1e-5 * 150)


def regression(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.3 * X[:, -1] + 0.2 * rng.normal(size=n)


@pytest.mark.oclgrind
def test_a_few_rows(device: str, profile: str) -> None:
    """A few steps, small enough for a simulator: each pair is of one group, so both sums stay as they were."""
    if thrifty(device) and profile == "gpu-pair":
        pytest.skip("the group shape is shown with doubles")
    X, y = noisy(24, 3)
    W, steps = 64 if thrifty(device) else 16, 3 if simulated(device) else 8
    with pytest.warns(ConvergenceWarning):
        model = NuSVC(nu=0.5, gamma=0.3, tol=1e-6, max_iter=steps, device=device, working_set_size=W).fit(X, y)
    (found,) = check.each(model, kernels.make("rbf", gamma=0.3)(X), y)
    assert max(found.box, found.off_share) <= 1e-9
    assert model.n_iter_ == steps


NU: dict[str, tuple[Any, Any, dict[str, Any], int, float]] = {  # ours, scikit-learn's, what is asked, W, tolerance
    "classes": (NuSVC, sklearn.svm.NuSVC, {"nu": 0.4}, 16, 2e-3),
    "targets": (NuSVR, sklearn.svm.NuSVR, {"nu": 0.3, "C": 2}, 64, 1e-3),
    "targets, linear": (NuSVR, sklearn.svm.NuSVR, {"nu": 0.3, "C": 2, "kernel": "linear"}, 64, 1e-3),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["dense", "sparse, weights"])
@pytest.mark.parametrize("name", NU)
def test_nu(device: str, profile: str, name: str, weighted: bool) -> None:
    ours, theirs, asked, W, near = NU[name]
    X, y = noisy(90, 4) if name == "classes" else regression(120, 3)
    weights = np.random.default_rng(1).choice([0.5, 1.0, 2.0], len(X)) if weighted else np.ones(len(X))
    rows, options = sp.csr_matrix(X) if weighted else X, {"gamma": 0.3, "tol": FINE, **asked}
    found = ours(**options, device=device, working_set_size=W).fit(rows, y, weights)
    expected = theirs(**options).fit(X, y, weights)
    np.testing.assert_allclose(values_of(found, rows), values_of(expected, X), atol=near)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=near)
    assert np.abs(found.n_support_ - expected.n_support_).max() <= (ours is NuSVR)
    assert found.fit_report_.gap < 1e-3
    verify(found, found.model_.kernel(X), y, weights, 1e-9)
    first = found.fit_report_.steps  # and from these coefficients it takes hardly a step
    assert found.set_params(warm_start=True).fit(rows, y, weights).fit_report_.steps < first / 2


def test_no_margin_is_said_with_the_largest_nu(device: str) -> None:
    """Where the reduced hulls of classes meet, signs of decision values mean nothing; the largest nu gives a fit."""
    X, y = np.ones((60, 2)), np.arange(60) % 3 == 0  # equal rows: no margin at all
    words = r"margin of no more than tol=0.001.*nu=0.3 is too small.*classes allow at most nu=0\.666666$"
    with pytest.warns(UserWarning, match=words):
        NuSVC(nu=0.3, device=device).fit(X, y)
    with pytest.raises(ValueError, match=r"specified nu is infeasible: got nu=0\.7, at most 0\.666666 for"):
        NuSVC(nu=0.7, device=device).fit(X, y)
    rng = np.random.default_rng(3)
    X = rng.normal(size=(180, 2))
    y = (np.argsort(np.argsort(X[:, 0] + rng.normal(size=180))) * 3) // 180
    with pytest.warns(UserWarning, match="nu=0.02 is too small .* allow at most nu=1$"):
        model = NuSVC(nu=0.02, kernel="linear", device=device).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.set_params(nu=1).fit(X, y).score(X, y) > 0.4
