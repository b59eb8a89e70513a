"""clsvm.SVC under scikit-learn's contract: its own checks, its conventions, and whatever a user may hand over."""

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import clsvm
from benchmarks.check import check as checked
from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, kernels
from clsvm.errors import DeviceError
from clsvm.estimators import svm
from clsvm.fit import driver
from clsvm.opencl import devices
from clsvm.report import Status
from tests.conftest import calls_of, noisy

X, SIGNS = noisy(200, 6)
Y = (SIGNS > 0).astype(int)
FEW = X[:40], Y[:40]
TEXT = sp.random(150, 40, density=0.1, format="csr", random_state=0)
TEXT_Y = (TEXT.sum(axis=1).A1 if hasattr(TEXT.sum(axis=1), "A1") else TEXT.sum(axis=1)) > 2

_VARIANCE = "gamma='scale' is 1 / (d var(X)) of the rows as they are, repeated ones too, as in scikit-learn's"
EXPECTED = {f"check_sample_weight_equivalence_on_{form}_data": _VARIANCE for form in ("dense", "sparse")}
OF_NU = {"check_class_weight_classifiers": "scikit-learn's own NuSVC fails it, too"}


FALKON = [clsvm.FalkonRegressor(loss="log_cosh", penalty=1e-3), clsvm.LogisticFalkonClassifier(penalty=1e-3)]
if os.environ.get("CLSVM_SWEEP"):  # (these take the same ways)
    FALKON += [clsvm.FalkonRegressor(), clsvm.FalkonClassifier()]


@parametrize_with_checks(
    [SVC(), SVR(), OneClassSVM(), NuSVC(), NuSVR(), *FALKON],
    expected_failed_checks=lambda estimator: EXPECTED | (OF_NU if isinstance(estimator, NuSVC) else {}),
)
def test_scikit_learn_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def with_value(value: object) -> np.ndarray:
    changed = FEW[0].astype(object)
    changed[3, 1] = value
    return changed


def message(error: type[Exception], match: str, *args: Any, **parameters: Any) -> None:
    """Fitting (X, y, sample_weight) raises just this, with nothing learnt."""
    estimator = SVC(**parameters)
    with pytest.raises(error, match=match):
        estimator.fit(*args)
    assert not hasattr(estimator, "model_")


@pytest.mark.parametrize(
    ("rows", "labels", "weights", "error", "match"),
    [
        (sp.csr_matrix(with_value(-np.inf).astype(float)), FEW[1], None, ValueError, "contains infinity"),
        (with_value("word"), FEW[1], None, ValueError, "could not convert string to float: 'word'"),
        (sp.csr_matrix((40, 2**31)), FEW[1], None, ValueError, "X has 2147483648 features, expected less than"),
        (FEW[0], np.where(FEW[1], np.nan, 1), None, ValueError, "contains NaN"),
        (FEW[0], np.array([1, "a"] * 20, object), None, ValueError, "Unknown label type: unknown"),
        (*FEW, -np.ones(40), ValueError, "all samples have zero or negative weights"),
        (*FEW, FEW[1] * 1.0, ValueError, "positive weights belong to the same class"),
        (*FEW, np.where(FEW[1], np.inf, 1), ValueError, "sample_weight contains infinity"),
        (*FEW, ["a"] * 40, ValueError, "sample_weight: could not convert string"),
        (*FEW, {0: 1}, TypeError, "sample_weight: "),
    ],
)
def test_bad_rows_labels_and_weights(rows: Any, labels: Any, weights: Any, error: Any, match: str) -> None:
    """Beside what scikit-learn's checks look for."""
    message(error, match, rows, labels, weights)


LIMITS: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {  # words, and what is no value and no number of it
    "C": ("> 0", (0, np.nan, -np.inf), ("1", None, True, np.ones(1))),
    "tol": ("> 0", (0, -1e-3, np.inf), (None,)),
    "gap_tol": ("> 0", (-1, np.nan), ("a",)),
    "cache_size": (">= 0", (-1, np.nan), ("a", None, True)),
    "max_iter": (">= -1", (-2, np.int64(-2)), (1.5, None, True)),
    "working_set_size": (">= 2 or 'auto'", (0, 1), (2.5, None)),
    "degree": (">= 0", (-1,), ()),
}


@pytest.mark.parametrize(
    ("name", "value", "error", "match"),
    [
        *(
            (name, value, error, f"{name} must be .*{words}.*, got ")
            for name, (words, *outside) in LIMITS.items()
            for error, values in zip((ValueError, TypeError), outside, strict=True)
            for value in values
        ),
        *(("gamma", value, ValueError, "gamma must be finite and > 0, got") for value in (0, np.nan, np.inf)),
        ("gamma", "Scale", ValueError, "'scale', 'auto' or a positive number, got 'Scale'"),
        ("gamma", None, TypeError, "gamma must be .scale., .auto. or a positive number, got None"),
        ("gamma", 1e300, ValueError, r"gamma=1e\+300 is outside the range .* for float32: scale X or take dtype"),
        ("degree", 2.5, TypeError, "degree must be an integer, got 2.5"),
        ("degree", True, TypeError, "degree must be an integer, got True"),
        ("coef0", -np.inf, ValueError, "coef0 must be finite, got"),
        ("coef0", "3", TypeError, "coef0 must be a number, got '3'"),
        *(("dtype", v, ValueError, "dtype must be 'float32' or 'float64', got") for v in ("float16", float, None)),
        *(
            ("memory_limit", value, ValueError, "memory_limit must be a positive number of bytes or text like '2GB'")
            for value in ("lots", "-1", "", "1.2.3GB", 0, 0.5, -5, np.nan, np.inf)
        ),
        ("memory_limit", [], TypeError, r"memory_limit must be None, .* got \[\]"),
        ("memory_limit", 1000, ValueError, r"memory_limit of 1000 bytes is too small: .*\d+ more are needed"),
        *(("kernel", value, ValueError, "unknown kernel .* expected one of linear, poly,") for value in ("RBF", "")),
        *(("kernel", value, TypeError, "kernel must be a name .*, a Kernel or a function, got") for value in (None, 3)),
        ("device", "no such thing", DeviceError, "no OpenCL device matches 'no such thing'; there are:"),
        *(("device", value, TypeError, "device must be None, an index, a string, a") for value in (True, b"cpu")),
        ("device", [], TypeError, "device must have at least one entry"),
        *((name, 1, TypeError, f"{name} must be True or False, got 1") for name in ("shrinking", "break_ties")),
        ("random_state", "a", ValueError, "cannot be used to seed"),
        ("class_weight", "even", ValueError, "'class_weight' parameter .* Got"),
        ("class_weight", {5: 1}, ValueError, r"labels of y as keys, got \[5\] for the labels \[0, 1\]"),
        ("class_weight", {0: "a"}, ValueError, "class_weight: could not convert string to float"),
        *(
            ("class_weight", {1: v}, ValueError, f"class_weight must be >= 0 and finite, got {v} for class 1")
            for v in (-1, np.nan, np.inf)
        ),
        ("class_weight", {0: 0}, ValueError, "with positive weights belong to the same class"),
    ],
)
def test_bad_parameters(name: str, value: Any, error: type[Exception], match: str) -> None:
    message(error, match, *FEW, **{name: value})


def test_numbers_are_checked_where_they_play_no_part() -> None:
    """As in scikit-learn; only what gamma="scale" computes is left alone."""
    message(ValueError, "gamma must be", *FEW, kernel="linear", gamma=-1)
    message(TypeError, "degree must be", *FEW, kernel="linear", degree="3")
    message(ValueError, r"degree must be less than 2147483648, got 1099511627776", *FEW, kernel="poly", degree=2**40)
    SVC(kernel="cosine", dtype="float64").fit(FEW[0] * 1e100, FEW[1])
    SVC(kernel=kernels.make("poly", gamma=0.2, degree=2), gamma=-1, degree="unused").fit(*FEW)


LARGE = {"layout": "dense"}  # few rows are solved as many rows are: in float32 first


@pytest.mark.parametrize(
    ("scale", "parameters", "match"),
    [
        (1e20, {}, r"gamma=\S+ is outside the range"),
        (1e-30, {}, r"gamma=\S+ is outside the range"),
        (1e300, {}, r"gamma='scale' divides by the variance of X, which is inf"),
        (1e20, {"gamma": 1.0} | LARGE, "squared norm of a row is too large for float32"),
        (1e20, {"kernel": "cosine"} | LARGE, "too large for float32"),
        (1e20, {"kernel": kernels.make("linear")} | LARGE, "too large for float32"),
        (1e10, {"kernel": "poly", "gamma": 1.0, "degree": 9} | LARGE, "too large for float32"),
        (1e200, {"kernel": "linear", "dtype": "float64"}, "too large for float64: scale X$"),
    ],
)
def test_numbers_beyond_the_dtype(scale: float, parameters: dict[str, Any], match: str) -> None:
    """They would be kernel values of 0, 1 or NaN, and a model that looks trained."""
    message(ValueError, match, FEW[0] * scale, FEW[1], **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        *({"cache_size": value} for value in (0, 1e-9, np.float32(1), 1e303)),
        *({"working_set_size": value} for value in (2, 17, 10**30)),
        *({"memory_limit": value} for value in ("300 kB", 1e6)),
        {"max_iter": 10**30},
        {"gap_tol": 1e-300},
        {"dtype": "float64"},
        {"verbose": True},
        {"random_state": np.random.RandomState(0)},
    ],
    ids=lambda given: str(given).split(" at 0x")[0],  # (the same in every process)
)
def test_settings_that_change_nothing(parameters: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Where the numbers stand, how many rows a step takes and what is kept decides about time, not about the result."""
    gram = kernels.make("rbf", gamma=0.3)(X, X)
    expected = SVC(gamma=0.3).fit(X, Y)
    model = SVC(gamma=0.3, **parameters).fit(X, Y)
    assert model.fit_report_.converged
    assert checked(model, gram, Y).dual == pytest.approx(checked(expected, gram, Y).dual, rel=1e-6)
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), atol=2e-3)
    said = capfd.readouterr()
    assert said.out == ""
    assert ("clsvm: violation" in said.err) if "verbose" in parameters else (said.err == "")


def test_every_way_to_name_the_device() -> None:
    import pyopencl as cl

    info = devices.find(None)
    device = [d for platform in cl.get_platforms() for d in platform.get_devices()][info.index]
    expected = SVC().fit(X, Y).decision_function(X)
    context = cl.Context([device])  # kept here: Intel's queues do not keep theirs alive
    names = [str(info.index), device, cl.CommandQueue(context)]
    if len(clsvm.devices()) == 1:
        names += [info.platform, f"{info.name[:4].lower()}:0", info.kind]
    for name in names:
        np.testing.assert_array_equal(SVC(device=name).fit(X, Y).decision_function(X), expected)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "a much longer yes"], object),
        np.array([False, True]),
        np.array([-1, 1], np.int8),
        np.array([3.0, 7.0]),
        np.array([-(2**62), 2**62]),
    ],
    ids=str,
)
def test_labels(labels: np.ndarray) -> None:
    """Any two, sorted; the decision value is positive for the second."""
    expected = SVC().fit(X, Y)
    model = SVC().fit(X, labels[Y])
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    assert model.classes_.dtype == labels.dtype
    sign = 1 if labels[0] == model.classes_[0] else -1
    np.testing.assert_allclose(model.decision_function(X) * sign, expected.decision_function(X), atol=2e-3)
    np.testing.assert_array_equal(model.predict(X), labels[expected.predict(X)])
    assert model.predict(X).dtype == labels.dtype
    assert model.score(X, labels[Y]) == expected.score(X, Y) > 0.7
    np.testing.assert_array_equal(SVC().fit(X.tolist(), labels[Y].tolist()).dual_coef_, model.dual_coef_)


@pytest.mark.parametrize("form", ["F", "slices", "backwards", ">f8", "longdouble", "U40"])
def test_dense_forms(form: str) -> None:
    """Beside those of scikit-learn's checks: lists, objects, and arrays that cannot be written."""
    wide = np.full((400, 18), 77.0)
    wide[::2, ::3] = X
    special = {"F": np.asfortranarray(X), "slices": wide[::2, ::3], "backwards": X[::-1].copy()[::-1]}
    given = special[form] if form in special else X.astype(form)
    expected, model = SVC().fit(X, Y), SVC().fit(given, Y)
    np.testing.assert_array_equal(model.support_vectors_, expected.support_vectors_)
    np.testing.assert_array_equal(model.decision_function(given), expected.decision_function(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, bool])
@pytest.mark.parametrize("made", [np.asarray, sp.csr_matrix])
def test_other_number_types(dtype: Any, made: Any) -> None:
    few = (X * 3 if dtype is np.int8 else abs(X) * 3).astype(dtype)
    given = made(few.astype(np.float32) if made is sp.csr_matrix and dtype is np.float16 else few)
    expected, model = SVC().fit(few.astype(np.float64), Y), SVC().fit(given, Y)
    assert model.support_vectors_.dtype in (np.float32, np.float64)
    np.testing.assert_allclose(model.decision_function(given), expected.decision_function(few), atol=2e-3)


def shuffled(given: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix with the entries of each row in another order."""
    order = np.concatenate([np.arange(start, end)[::-1] for start, end in pairwise(given.indptr)])
    return sp.csr_matrix((given.data[order], given.indices[order], given.indptr), shape=given.shape)


def doubled(given: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix with each entry in two halves."""
    return sp.csr_matrix(
        (np.repeat(given.data / 2, 2), np.repeat(given.indices, 2), given.indptr * 2), shape=given.shape
    )


def with_zeros(given: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix with some of its zeros stored."""
    made = given + sp.csr_matrix((given.toarray() == 0) * (np.random.default_rng(1).random(given.shape) < 0.2) * 1e30)
    made.data[made.data == 1e30] = 0
    return made


def large(given: sp.csr_matrix) -> sp.csr_matrix:
    """The same matrix with 64-bit indices."""
    made = given.copy()
    made.indices, made.indptr = made.indices.astype(np.int64), made.indptr.astype(np.int64)
    return made


FORMS = [sp.csc_matrix, sp.coo_matrix, sp.lil_array, sp.bsr_array, shuffled, doubled, with_zeros, large]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_sparse_forms(form: Callable[[sp.csr_matrix], Any]) -> None:
    """All the same to the last bit; row 5 is empty."""
    text = TEXT.copy()
    text.data[text.indptr[5] : text.indptr[6]] = 0
    text.eliminate_zeros()
    given, expected = form(text), SVC(C=3).fit(text, TEXT_Y)
    assert (abs(sp.csr_matrix(given) - text)).max() == 0
    model = SVC(C=3).fit(given, TEXT_Y)
    assert model.support_vectors_.format == "csr"
    assert (abs(model.support_vectors_ - expected.support_vectors_)).max() == 0
    for one, rows in ((model, given), (expected, given), (model, text.toarray())):
        np.testing.assert_array_equal(one.decision_function(rows), expected.decision_function(text))


def test_gamma_scale_of_sparse_rows() -> None:
    """The variance counts the zeros, in float64 whatever the rows are in."""
    for dtype in (np.float64, np.float32):
        given = (X * (X > 0) + 100).astype(dtype)
        kernel = SVC().fit(sp.csr_matrix(given), Y).model_.kernel
        assert kernel.values[0] == pytest.approx(1 / (6 * given.astype(np.float64).var()), rel=1e-9)
    zeros = X * (X > 0.5)
    assert SVC().fit(sp.csr_matrix(zeros), Y).model_.kernel.values[0] == pytest.approx(1 / (6 * zeros.var()), rel=1e-12)


def test_sparse_and_dense_do_not_mix_as_in_scikit_learn() -> None:
    """Dense rows for a sparse model are right; sparse rows for a dense model are refused."""
    model = SVC().fit(TEXT, TEXT_Y)
    np.testing.assert_array_equal(model.decision_function(TEXT.toarray()), model.decision_function(TEXT))
    with pytest.raises(ValueError, match="cannot use sparse input in 'SVC' trained on dense data"):
        SVC().fit(TEXT.toarray(), TEXT_Y).predict(TEXT)


def test_the_callers_arrays_stay_as_they_are() -> None:
    weights = np.linspace(-0.5, 2, 150)
    for rows in (TEXT.toarray(), np.asfortranarray(TEXT.toarray()), shuffled(TEXT), doubled(TEXT), large(TEXT)):
        parts = [rows] if isinstance(rows, np.ndarray) else [rows.data, rows.indices, rows.indptr]
        before = [part.copy() for part in (*parts, TEXT_Y, weights)]
        model = SVC().fit(rows, TEXT_Y, weights)
        model.predict(rows)
        for part, kept in zip((*parts, TEXT_Y, weights), before, strict=True):
            np.testing.assert_array_equal(part, kept)
            assert part.dtype == kept.dtype
        decision = model.decision_function(TEXT.toarray())
        parts[0][:] = 5  # and the model does not change with them
        np.testing.assert_array_equal(model.decision_function(TEXT.toarray()), decision)


REFERENCE = {
    "breast_cancer": lambda: (StandardScaler().fit_transform(load_breast_cancer().data), load_breast_cancer().target),
    "digits": lambda: (load_digits().data / 16, np.where(load_digits().target == 8, "eight", "other")),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "rbf": {},
    "linear": {},
    "poly": {"coef0": 0.5},
    "sigmoid": {"gamma": 1e-3},  # nearly positive definite, so that there is one optimum to compare with
}


@pytest.mark.parametrize("kernel", SETTINGS)
@pytest.mark.parametrize("data", REFERENCE)
def test_as_scikit_learn(data: str, kernel: str) -> None:
    """Same optimum, same attributes: their names, types, shapes, signs and order."""
    rows, labels = REFERENCE[data]()
    train, test = (rows[::2], labels[::2]), (rows[1::2], labels[1::2])
    parameters: dict[str, Any] = {"kernel": kernel, **SETTINGS[kernel]}
    ours = SVC(**parameters).fit(*train)
    theirs = sklearn.svm.SVC(**parameters, tol=1e-6).fit(*train)
    gram = ours.model_.kernel(train[0], train[0])
    dual = checked(ours, gram, train[1]).dual
    assert dual == pytest.approx(checked(theirs, gram, train[1]).dual, rel=1e-5)
    assert ours.fit_report_.dual == pytest.approx(dual, rel=1e-5)
    np.testing.assert_allclose(ours.decision_function(test[0]), theirs.decision_function(test[0]), atol=1e-2)
    assert ours.score(*test) == pytest.approx(theirs.score(*test), abs=2e-3)
    assert set(theirs.support_) ^ set(ours.support_) <= set(np.flatnonzero(near(theirs, *train)))

    for name in ("support_", "n_support_", "dual_coef_", "intercept_", "classes_", "class_weight_", "n_iter_"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (type(mine), mine.dtype, mine.ndim) == (type(other), other.dtype, other.ndim), name
    assert ours.intercept_.shape == theirs.intercept_.shape
    assert ours.n_iter_.shape == theirs.n_iter_.shape
    assert (ours.fit_status_, ours.shape_fit_, ours.n_features_in_) == (0, train[0].shape, train[0].shape[1])
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(ours.n_support_, [(train[1][ours.support_] == c).sum() for c in ours.classes_])
    first = ours.n_support_[0]
    assert (np.diff(ours.support_[:first]) > 0).all()
    assert (np.diff(ours.support_[first:]) > 0).all()
    assert (ours.dual_coef_[0, :first] < 0).all()
    assert (ours.dual_coef_[0, first:] > 0).all()
    np.testing.assert_array_equal(ours.support_vectors_, train[0][ours.support_])
    assert hasattr(ours, "coef_") == hasattr(theirs, "coef_") == (kernel == "linear")
    if kernel == "linear":
        assert ours.coef_.shape == theirs.coef_.shape
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=5e-3)
        np.testing.assert_allclose(
            test[0] @ ours.coef_[0] + ours.intercept_, ours.decision_function(test[0]), atol=1e-4
        )


def near(model: Any, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Rows at the margin, which an inexact solution may or may not count as support vectors."""
    margin = model.decision_function(rows) * np.where(labels == model.classes_[1], 1, -1)
    return abs(margin - 1) < 1e-2


def test_class_weights_are_factors_of_C() -> None:
    """{class: w}, its sample weights and a C for each class are one thing; "balanced" counts the rows."""
    for given, expected in (({0: 3, 1: 0.5}, [3, 0.5]), ("balanced", 200 / (2 * np.bincount(Y))), ({1: 4}, [1, 4])):
        model = SVC(class_weight=given, gamma=0.3).fit(X, Y)
        np.testing.assert_allclose(model.class_weight_, expected)
        weighted = SVC(gamma=0.3).fit(X, Y, np.asarray(expected)[Y])
        np.testing.assert_array_equal(model.dual_coef_, weighted.dual_coef_)
    names = np.array(["a", "b"])[Y]
    np.testing.assert_array_equal(SVC(class_weight={"b": 4}, gamma=0.3).fit(X, names).dual_coef_, model.dual_coef_)


@pytest.mark.parametrize("weight", [1e100, 1.7e308])
@pytest.mark.parametrize(
    "model",
    [SVC(), SVC(C=1e30), SVC(multi_class="crammer_singer"), NuSVC(), SVR(), NuSVR(), OneClassSVM()],
    ids=lambda model: type(model).__name__,
)
def test_weights_whose_squares_would_be_too_large(model: Any, weight: float) -> None:
    words = r"the sum of C \* (class_weight \* )?sample_weight must be at most 1e\+100, got ([4-9]e\+1\d\d|inf)"
    with pytest.raises(ValueError, match=words):
        model.fit(*FEW, sample_weight=np.full(40, weight))


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize(
    "model",
    [
        SVC(),
        SVC(class_weight={1: 0}),
        SVC(multi_class="ovr"),
        SVC(multi_class="crammer_singer"),
        NuSVC(nu=0.2),
        SVC(kernel="precomputed"),
        NuSVC(nu=0.2, kernel="precomputed"),
    ],
    ids=str,
)
def test_a_class_that_weighs_nothing_is_none(model: Any, k: int) -> None:
    """The model is that of the rows that are left, whatever they are called."""
    rows, y = np.random.default_rng(0).normal(size=(120, 3)), np.arange(120) % k
    rows[:, :2] += np.stack([y // 2, y % 2], axis=1)
    weights, left = None if model.get_params().get("class_weight") else (y != 1) * 1.0, y != 1
    given = kernels.make("rbf", gamma=0.5)(rows, rows)
    pre = model.kernel == "precomputed"
    model = clone(model).set_params(dtype="float64", tol=1e-6, **({} if pre else {"gamma": 0.5}))
    expected = clone(model).set_params(class_weight=None)
    model.fit(given if pre else rows, y, weights)
    expected.fit(given[np.ix_(left, left)] if pre else rows[left], y[left])
    np.testing.assert_array_equal(model.classes_, np.unique(y[left]))
    np.testing.assert_array_equal(model.class_weight_, np.ones(k - 1))
    assert left[model.support_].all()
    assert model.dual_coef_.shape[0] == expected.dual_coef_.shape[0]
    assert model.n_support_.sum() == model.n_support_[: k - 1].sum() == len(model.support_)
    values, wanted = (
        model.decision_function(given if pre else rows),
        expected.decision_function(given[:, left] if pre else rows),
    )
    np.testing.assert_allclose(values, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("sparse", [False, True])
def test_sample_weights_are_copies_of_rows(sparse: bool) -> None:
    """Weight 2 is a row twice, weight 0 or less no row; scikit-learn's check but for gamma's variance."""
    made = sp.csr_matrix if sparse else np.asarray
    weights = np.random.default_rng(0).integers(-1, 4, 200)
    repeated = np.repeat(np.arange(200), np.maximum(weights, 0))
    settings: dict[str, Any] = {"gamma": 0.3, "tol": 1e-7, "dtype": "float64"}
    weighted = SVC(**settings).fit(made(X), Y, weights)
    copies = SVC(**settings).fit(made(X[repeated]), Y[repeated])
    np.testing.assert_allclose(weighted.decision_function(made(X)), copies.decision_function(made(X)), atol=1e-6)
    assert (weights[weighted.support_] > 0).all()
    np.testing.assert_array_equal(SVC().fit(X, Y, 1.0).dual_coef_, SVC().fit(X, Y).dual_coef_)
    np.testing.assert_array_equal(SVC().fit(X, Y, [1] * 200).dual_coef_, SVC().fit(X, Y).dual_coef_)


@pytest.mark.parametrize("steps", [0, 5])
def test_max_iter_says_that_it_did_not_converge(steps: int) -> None:
    model = SVC(max_iter=steps)
    with pytest.warns(
        ConvergenceWarning, match=r"^not converged: max_iter was reached before the tolerance; primal .*violation"
    ):
        model.fit(X, Y)
    report = model.fit_report_
    assert (model.fit_status_, report.converged, report.status) == (1, False, report.status)
    assert report.status.startswith("not converged: max_iter")
    assert report.steps == model.n_iter_[0] == steps
    assert report.violation > model.tol
    assert model.predict(X).shape == (200,)


def test_the_words_and_costs_of_the_report() -> None:
    """Objectives and violations are held against recomputed ones in tests/solvers."""
    model = SVC(tol=1e-5, dtype="float64").fit(X, Y)
    report = model.fit_report_
    assert report.seconds["total"] >= max(report.seconds.values()) > 0
    assert report.steps == model.n_iter_[0] > 0
    assert min(report.outer_steps, report.rows_computed, report.bytes_held, report.working_set_size) > 0
    assert (report.device, report.dtype) == (str(devices.find(None)), "float64")
    assert str(report).startswith("converged: the KKT violation is within tol")


@pytest.mark.parametrize(("size", "C"), [(1e-13, np.inf), (1e-15, 1e32), (1e-20, 1e42)])
def test_a_large_bound_is_kept(size: float, C: float) -> None:
    """Of two rows so near to each other that their coefficients, 2 / size^2, are beyond 1e25."""
    X = np.array([[0.0], [size]])
    model = SVC(kernel="linear", C=C).fit(X, [0, 1])
    np.testing.assert_allclose(model.decision_function(X), [-1, 1], atol=1e-3)
    np.testing.assert_allclose(model.dual_coef_, [[-2 / size**2, 2 / size**2]], rtol=1e-3)


@pytest.mark.parametrize(("model", "tol", "seed"), [(SVC, 1e-4, 4), (NuSVC, 1e-4, 4), (NuSVC, 1e-5, 0)])
def test_pairs_in_parts(model: Any, tol: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of pairs that are made some at a time come to the same bits, and to one report of all."""
    X, _ = noisy(n=240, d=5, seed=seed)
    index = np.arange(240) % 6
    X[:, 0] += index
    whole = model(gamma=0.2, tol=tol).fit(X, index)
    monkeypatch.setattr(svm, "MIN_PROBLEMS", 4)
    monkeypatch.setattr(svm, "COEFFICIENTS", 1)
    solves = calls_of(monkeypatch, driver, "solve")
    parts = model(gamma=0.2, tol=tol).fit(X, index)
    assert [len(call.given[1]) for call in solves] == [4, 4, 4, 3]
    for name in ("support_", "dual_coef_", "intercept_", "n_iter_"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    for name in ("status", "violation", "steps", "dtype"):
        assert getattr(parts.fit_report_, name) == getattr(whole.fit_report_, name)
    assert parts.fit_report_.dual == pytest.approx(whole.fit_report_.dual, rel=1e-12)
    ended = model(gamma=0.2, tol=tol, max_time=1e-9)
    with pytest.warns(ConvergenceWarning):
        ended.fit(X, index)
    assert ended.fit_report_.status == Status.MAX_TIME.value
