"""scikit-learn's fitted estimators as ours and ours as scikit-learn's: the same answers, both ways."""

import pickle
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import svm
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import clsvm
from clsvm import SVC, SVR, Kernel, NuSVC, NuSVR, OneClassSVM, from_sklearn, to_sklearn
from clsvm.kernels import make

pytestmark = pytest.mark.full

PAIRS: dict[str, tuple[Any, Any]] = {
    "SVC": (svm.SVC, SVC),
    "NuSVC": (svm.NuSVC, NuSVC),
    "SVR": (svm.SVR, SVR),
    "NuSVR": (svm.NuSVR, NuSVR),
    "OneClassSVM": (svm.OneClassSVM, OneClassSVM),
}
KERNELS: dict[str, dict[str, Any]] = {
    "linear": {},
    "poly": {"degree": 2, "gamma": 0.2, "coef0": 1.0},
    "rbf": {"gamma": "auto"},
    "sigmoid": {"gamma": 0.01, "coef0": -0.3},
}
FORMS = {"dense": np.asarray, "csr": sparse.csr_matrix}


def rows_of(name: str, k: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(X, y, other rows): irises of two or three kinds with text as labels, or the width of a petal."""
    X, y = load_iris(return_X_y=True)
    X, y = X[y < k], y[y < k]
    fresh = X[::3] * np.random.default_rng(3).uniform(0.8, 1.2, X[::3].shape)
    if name.endswith("SVC"):
        return X, np.array(["setosa", "versicolor", "virginica"])[y], fresh
    return X[:, :3], X[:, 3], fresh[:, :3]


def fitted(estimator: Any, X: Any, y: Any) -> Any:
    return estimator.fit(X) if "OneClass" in type(estimator).__name__ else estimator.fit(X, y)


def values_of(model: Any, X: Any) -> Any:
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def assert_same(got: Any, expected: Any, X: Any, atol: float) -> None:
    """The same answers and attributes of two fitted estimators, one of ours and one of scikit-learn's."""
    np.testing.assert_allclose(values_of(got, X), values_of(expected, X), rtol=atol / 10, atol=atol)
    predicted = expected.predict(X)
    if is_classifier(got) or hasattr(got, "offset_"):
        assert len(set(predicted.tolist())) > 1
        np.testing.assert_array_equal(got.predict(X), predicted)
    names = ["support_", "n_support_", "dual_coef_", "intercept_", "support_vectors_", "shape_fit_", "fit_status_"]
    names += ["n_features_in_", "n_iter_", *(["classes_", "class_weight_"] if is_classifier(got) else [])]
    names += ["offset_"] if hasattr(expected, "offset_") else []
    names += ["coef_"] if expected.kernel == "linear" else []
    for name in names:
        one, other = (getattr(model, name) for model in (got, expected))
        one, other = (part.toarray() if sparse.issparse(part) else np.asarray(part) for part in (one, other))
        if other.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)
    ours, theirs = got.get_params(), expected.get_params()
    shared = (ours.keys() & theirs.keys()) - {"cache_size", "kernel", "gamma", "coef0", "degree"}
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", PAIRS)
def test_there_and_back(name: str, kernel: str, form: str) -> None:
    X, y, fresh = rows_of(name)
    X, fresh = FORMS[form](X), FORMS[form](fresh)
    theirs = fitted(PAIRS[name][0](kernel=kernel, tol=1e-4, shrinking=False, **KERNELS[kernel]), X, y)
    ours = from_sklearn(theirs)
    assert type(ours) is PAIRS[name][1]
    assert_same(ours, theirs, fresh, 1e-4)
    exact = from_sklearn(theirs, dtype="float64")
    assert_same(exact, theirs, fresh, 1e-10)
    back = to_sklearn(exact)
    assert type(back) is type(theirs)
    assert_same(back, theirs, fresh, 1e-12)
    assert {**back.get_params(), "cache_size": 200} == theirs.get_params()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_our_fits_as_scikit_learns(name: str, k: int, form: str) -> None:
    X, y, fresh = rows_of(name, k)
    X, fresh = FORMS[form](X), FORMS[form](fresh)
    single = fitted(PAIRS[name][1](gamma=0.3), X.astype(np.float32), y)
    theirs = to_sklearn(single)
    assert theirs.support_vectors_.dtype == np.float64
    assert_same(theirs, single, fresh, 1e-4)
    assert_same(from_sklearn(theirs, dtype="float64"), theirs, fresh, 1e-10)


@pytest.mark.parametrize("name", PAIRS)
def test_given_kernel_values(name: str) -> None:
    X, y, fresh = rows_of(name)
    theirs = fitted(PAIRS[name][0](kernel="precomputed"), X @ X.T, y)
    ours = from_sklearn(theirs)
    assert_same(ours, theirs, fresh @ X.T, 1e-9)
    assert_same(to_sklearn(ours), theirs, fresh @ X.T, 1e-12)
    fit = fitted(PAIRS[name][1](kernel="precomputed", tol=1e-5), X @ X.T, y)
    assert_same(to_sklearn(fit), fit, fresh @ X.T, 1e-9)


@pytest.mark.parametrize("shape", ["ovr", "ovo"])
@pytest.mark.parametrize("k", [2, 3])
def test_classes(k: int, shape: str) -> None:
    """Both shapes of decision values, ties, weights of classes, and labels that are not sorted in the data."""
    X, y, fresh = rows_of("SVC", k)
    weights = {"setosa": 0.5, "versicolor": 2.0}
    ties = shape == "ovr"
    theirs = svm.SVC(decision_function_shape=shape, class_weight=weights, break_ties=ties, C=0.3).fit(X[::-1], y[::-1])
    ours = from_sklearn(theirs, dtype="float64")
    assert_same(ours, theirs, fresh, 1e-10)
    assert ours.class_weight_.tolist() == [0.5, 2, 1][:k]
    assert_same(to_sklearn(ours), theirs, fresh, 1e-12)


def test_what_is_made_is_an_estimator() -> None:
    """It can be cloned, pickled, fitted anew; what it was made of can go on; arrays are its own."""
    X, y, fresh = rows_of("SVC")
    theirs = svm.SVC(C=2.0, random_state=3).fit(X, y)
    expected = theirs.decision_function(fresh)
    ours = from_sklearn(theirs, device=None, tol=1e-5)
    assert (ours.C, ours.random_state, ours.tol, theirs.tol) == (2.0, 3, 1e-5, 1e-3)
    np.testing.assert_allclose(ours.decision_function(fresh), expected, atol=1e-4)
    np.testing.assert_array_equal(theirs.decision_function(fresh), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ours)).predict(fresh), theirs.predict(fresh))
    assert clone(ours).get_params() == ours.get_params()
    assert not np.shares_memory(ours.support_vectors_, theirs.support_vectors_)
    back = to_sklearn(ours)
    assert not np.shares_memory(ours.support_vectors_, back.support_vectors_)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(back)).predict(fresh), theirs.predict(fresh))
    assert cross_val_score(back, X, y).mean() > 0.9
    theirs.feature_names_in_ = np.array(list("abcd"), object)  # as a data frame leaves them
    for model in (named := from_sklearn(theirs), to_sklearn(named)):
        assert model.feature_names_in_.tolist() == list("abcd")
    assert not hasattr(ours, "fit_report_")
    assert ours.fit(X, y).fit_report_.converged


def test_a_kernel_object_becomes_its_name_and_numbers() -> None:
    X, y, fresh = rows_of("SVC")
    ours = SVC(kernel=make("poly", gamma=0.1, coef0=0.5, degree=2), gamma=7.0, dtype="float64").fit(X, y)
    theirs = to_sklearn(ours)
    assert [theirs.get_params()[name] for name in ("kernel", "gamma", "coef0", "degree")] == ["poly", 0.1, 0.5, 2]
    np.testing.assert_allclose(theirs.decision_function(fresh), ours.decision_function(fresh), atol=1e-9)
    assert theirs.fit(X, y).score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore:kernel is a Python function")
def test_what_cannot_be_converted() -> None:
    X, y, _ = rows_of("SVC")
    for model, words in (
        (
            SVC(kernel="laplacian").fit(X, y),
            r"has the kernels linear, poly, rbf, sigmoid, precomputed, got .*laplacian",
        ),
        (SVC(kernel=lambda A, B: A @ B.T).fit(X, y), "precomputed, got <function"),
        (SVC(kernel=2 * Kernel("rbf", gamma=0.2)).fit(X, y), "has the kernels"),
        (SVC(kernel=Kernel("exp(-gamma * sqdist)", gamma=0.2)).fit(X, y), "has the kernels"),
        (SVC(bias=False).fit(X, y), "got an estimator with bias=False"),
        (SVC(multi_class="crammer_singer", gap_tol=0.1).fit(X, y), "for each pair of classes, got multi_class='cram"),
        (SVC(multi_class="crammer_singer", gap_tol=0.1).fit(X[:100], y[:100]), "got multi_class='crammer_singer'"),
    ):
        with pytest.raises(ValueError, match=words):
            to_sklearn(model)
    theirs = svm.SVC(kernel=lambda A, B: A @ B.T).fit(X, y)
    with pytest.raises(ValueError, match=r"model must have one of the kernels linear, .*, precomputed, got <func"):
        from_sklearn(theirs)
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'float64', got 'float16'"):
        from_sklearn(svm.SVC().fit(X, y), dtype="float16")
    for convert, stranger in ((from_sklearn, SVC()), (to_sklearn, svm.SVC()), (from_sklearn, svm.LinearSVC())):
        with pytest.raises(
            TypeError, match=r"model must be one of (scikit-learn|clsvm)'s SVC, NuSVC, SVR, NuSVR, OneClassSVM"
        ):
            convert(stranger)
    for convert, unfitted in ((from_sklearn, svm.SVC()), (to_sklearn, SVC())):
        with pytest.raises(NotFittedError):
            convert(unfitted)
    assert {"from_sklearn", "to_sklearn"} <= set(clsvm.__all__)
