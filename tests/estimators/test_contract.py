"""The estimators under the rest of scikit-learn, beside its own in the same place."""

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_predict

import clsvm
from clsvm import SVC, OneClassSVM
from clsvm.estimators import base
from clsvm.model_selection import SVCSearchCV
from clsvm.models import decoder
from clsvm.opencl import devices
from tests.conftest import thrifty

IRIS = load_iris(return_X_y=True)

CLASSES = pytest.mark.parametrize("name", ["SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM"])
CLASSIFIERS = pytest.mark.parametrize("name", ["SVC", "NuSVC"])


@pytest.fixture(autouse=True)
def one_device() -> None:
    if thrifty(str(devices.find(None).index)):
        pytest.skip("Intel's runtime has them")


def pair(name: str, **parameters: Any) -> tuple[Any, Any]:
    """(ours, scikit-learn's)."""
    return getattr(clsvm, name)(**parameters), getattr(sklearn.svm, name)(**parameters)


def values_of(model: Any, X: Any) -> np.ndarray:
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@CLASSES
def test_names_parameters_and_tags(name: str) -> None:
    """All that is documented of scikit-learn's is there, with its defaults: but for probabilities and the cache."""
    ours, theirs = pair(name)
    parameters, defaults = theirs.get_params(), ours.get_params()
    left_out = {"probability", "predict_proba", "predict_log_proba", "probA_", "probB_", "unused_param"}
    assert parameters.keys() - left_out <= defaults.keys()
    assert {k for k in parameters.keys() & defaults if parameters[k] != defaults[k]} == {"cache_size"}
    assert repr(ours.set_params(tol=0.5)) == repr(theirs.set_params(tol=0.5)) == f"{name}(tol=0.5)"
    assert ours.__sklearn_tags__() == theirs.__sklearn_tags__()
    for model in (ours, theirs):
        model.fit(*IRIS)
    # scikit-learn's objects of every task have the parameters of all the others as attributes
    expected = public(theirs) - left_out - (set().union(*(pair(n)[1].get_params() for n in clsvm_names())))
    assert expected <= public(ours)
    assert expected >= {"fit", "predict", "support_", "dual_coef_", "set_fit_request", "n_features_in_"}
    for method in (m for m in expected if inspect.isfunction(getattr(type(theirs), m, None))):
        mine, other = (list(inspect.signature(getattr(type(model), method)).parameters) for model in (ours, theirs))
        assert mine == other, method


@CLASSES
def test_help_lists_every_parameter_once(name: str) -> None:
    words = inspect.getdoc(getattr(clsvm, name))
    assert words is not None
    listed = re.split(r"\n\n\w+\n-+\n", words)[1]
    found = re.findall(r"^(\w+) : .+, default=(.+)\n    \S", listed, re.MULTILINE)
    assert found == [(key, repr(value)) for key, value in signature_of(getattr(clsvm, name)).items()]


def signature_of(made: Any) -> dict[str, Any]:
    return {key: one.default for key, one in inspect.signature(made).parameters.items()}


@CLASSIFIERS
def test_probability_is_refused_with_what_there_is_instead(name: str) -> None:
    made = getattr(clsvm, name)
    with pytest.raises(
        TypeError, match=rf"^{name} has no parameter 'probability': .*CalibratedClassifierCV.*calibrated"
    ):
        made(probability=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'probabilities'"):
        made(probabilities=True)

    class Own(made):  # type: ignore[misc]
        def __init__(self, *, C: float = 2.0, third: int = 3) -> None:
            super().__init__()
            self.C, self.third = C, third

    assert list(signature_of(Own)) == ["C", "third"]
    assert clone(Own(third=4)).get_params() == {"C": 2.0, "third": 4}


def clsvm_names() -> list[str]:
    return [name for name in clsvm.__all__ if hasattr(sklearn.svm, name)]


LEARNT = ("support_", "dual_coef_", "intercept_", "n_iter_", "n_support_")


def same_bits(one: Any, other: Any, X: Any) -> None:
    for name in LEARNT:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(values_of(one, X), values_of(other, X))


def shared_letters(texts: Any, others: Any) -> np.ndarray:
    """A kernel function of words, as a user writes it: of two letters, how often either has each."""
    one, other = (np.array([[text.count("a"), text.count("b")] for text in part], float) for part in (texts, others))
    return one @ other.T


@pytest.mark.filterwarnings("ignore:kernel is a Python function")
def test_kernel_functions_of_the_caller() -> None:
    """Rows need not be numbers; copies, folds and searches of them are those of the linear kernel on the numbers."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("ab"), 4 + i % 7)) for i in range(60)]
    X = np.array([[word.count("a"), word.count("b")] for word in words], float)
    y = (X[:, 0] + rng.normal(size=60) > X[:, 1]).astype(int)
    own, linear = (SVC(kernel=kernel, dtype="float64", tol=1e-6) for kernel in (shared_letters, "linear"))
    same_bits(pickle.loads(pickle.dumps(own.fit(words, y))), own, words)
    assert clone(own).kernel is shared_letters
    mine, other = (
        cross_val_predict(GridSearchCV(model, {"C": [0.01, 1.0]}, cv=3), rows, y, cv=3, method="decision_function")
        for model, rows in ((own, words), (linear, X))
    )
    np.testing.assert_allclose(mine, other, atol=1e-4)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        assert SVC(kernel=shared_letters, max_iter=2).fit(words, y).n_iter_[0] == 2


@CLASSES
@pytest.mark.parametrize("rows", [100, 150], ids=["two classes", "three classes"])
def test_a_fit_that_is_interrupted_leaves_the_one_before(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learnt changes together, at the end, or not at all."""
    X, y = IRIS[0][:rows], IRIS[1][:rows]
    model = getattr(clsvm, name)().fit(X, y)
    before, values = dict(vars(model)), values_of(model, X)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(base, "KernelModel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X[:90, :2], 7 - y[:90])
    assert vars(model).keys() == before.keys()
    assert [key for key, value in vars(model).items() if value is not before[key]] == []
    np.testing.assert_array_equal(values_of(model, X), values)


@pytest.mark.parametrize(
    ("warns", "words"),
    [
        (lambda: SVC(max_iter=1).fit(*IRIS), "not converged: max_iter"),
        (lambda: OneClassSVM(max_iter=1).fit(IRIS[0]), "not converged: max_iter"),
        (lambda: SVC(kernel=rbf_kernel).fit(*IRIS), "kernel is a Python function"),
        (lambda: SVCSearchCV(SVC(max_iter=1), {}, cv=2, refit=False).fit(*IRIS), "fold fits did not converge"),
        (lambda: decoder.calibrated(SVC(max_iter=1).fit(*IRIS), *IRIS), "from fits that did not converge"),
    ],
    ids=["fit", "fit without labels", "kernel function", "search", "probabilities"],
)
def test_a_warning_names_the_callers_line_and_says_it_once(warns: Callable[[], Any], words: str) -> None:
    with pytest.warns(UserWarning, match=words) as seen:
        warns()
    (one,) = [warning for warning in seen if words in str(warning.message)][:1]
    assert (one.filename, one.lineno) == (__file__, warns.__code__.co_firstlineno)
    assert str(one.message).count(words) == 1


def test_a_fit_that_did_not_converge_advises_to_scale_rows_that_can_be_scaled() -> None:
    X, y = IRIS
    with pytest.warns(ConvergenceWarning, match=r"; it may help to scale the columns of X, by .*MaxAbsScaler$"):
        SVC(max_iter=1).fit(X, y)
    with pytest.warns(ConvergenceWarning) as seen:
        SVC(kernel="precomputed", max_iter=1).fit(rbf_kernel(X), y)
    assert "Scaler" not in str(seen[0].message)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.filterwarnings("error")
def test_no_support_vectors(sparse: bool) -> None:
    """A tube around everything: the model is its offset, whoever made it."""
    X, y = np.eye(4)[[1, 3, 2, 3]], np.array([0.04, 0.04, 0.10, 0.16])
    rows = sp.csr_matrix(X) if sparse else X
    ours, theirs = (model.fit(rows, y) for model in pair("SVR", kernel="linear"))
    for model in (ours, clsvm.from_sklearn(theirs), clsvm.to_sklearn(ours)):
        for name in ("support_", "support_vectors_", "dual_coef_", "coef_"):
            assert getattr(model, name).shape == getattr(theirs, name).shape, name
        assert model.support_vectors_.shape == (0, 4)
        np.testing.assert_array_equal(model.predict(rows), theirs.predict(rows))


def test_a_subclass_that_fixes_parameters(device: str) -> None:
    """What its constructor hands on is checked, and told to the solver; what it takes beside that is its own."""
    X, y = load_breast_cancer(return_X_y=True)

    class Fixed(SVC):
        def __init__(self, nu: Any = 5, C: float = 10.0) -> None:
            super().__init__(C=C, tol=1e-8, max_iter=3, dtype="float64", device=device)
            self.nu = nu

    with pytest.warns(ConvergenceWarning):
        model = Fixed().fit(X, y)
    assert model.n_iter_[0] <= 3
    assert model.fit_report_.dtype == "float64"
    with pytest.raises(ValueError, match="C must be > 0, got -1"):
        Fixed(C=-1).fit(X, y)


def test_answers_are_of_the_fit(device: str) -> None:
    """Another multi_class counts from the next fit on; a subclass's decision values count in predict."""
    X, y = load_iris(return_X_y=True)
    for now, later in (("ovo", "ovr"), ("ovr", "ovo"), ("crammer_singer", "ovo")):
        model = SVC(multi_class=now, device=device).fit(X, y)
        before = model.predict(X)
        np.testing.assert_array_equal(model.set_params(multi_class=later).predict(X), before)

    class Shifted(SVC):
        def decision_function(self, X: Any) -> Any:
            return super().decision_function(X) + 100

    two = y < 2
    assert (Shifted(device=device).fit(X[two], y[two]).predict(X[two]) == 1).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library: str) -> None:
    """Their columns' names are kept, and asked for; labels may be a column."""
    frames = pytest.importorskip(library)
    X, y = IRIS
    rows = frames.DataFrame(dict(zip("abcd", X.T.copy(), strict=True)))
    model = SVC().fit(rows, frames.Series(y))
    same_bits(model, SVC().fit(X, y), rows)
    np.testing.assert_array_equal(model.feature_names_in_, list("abcd"))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(rows[list("dcba")])


@pytest.mark.parametrize("name", ["SVC", "FalkonClassifier"])
@pytest.mark.parametrize("form", ["None", "nan", "string"])
def test_missing_labels(name: str, form: str) -> None:
    """A missing label is refused with its value, in a list, an array or a column."""
    pandas = pytest.importorskip("pandas")
    labels = ["no", "yes"] * 5
    y: Any = {
        "None": [*labels[:-1], None],
        "nan": np.array([*labels[:-1], np.nan], dtype=object),
        "string": pandas.Series([*labels[:-1], pandas.NA], dtype="string"),
    }[form]
    with pytest.raises(ValueError, match=r"y must have a value for each row, got (None|nan|<NA>): missing"):
        getattr(clsvm, name)().fit(np.arange(20.0).reshape(10, 2), y)
