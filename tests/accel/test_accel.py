"""scikit-learn's machines under clsvm.accel: the same answers, classes and pickles; who did what, and why."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_classification, make_moons
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm._base import BaseLibSVM

import clsvm
from clsvm import accel
from clsvm.accel import costs, log, patches
from tests.callbacks import Noted

ROOT = Path(__file__).parents[2]
# every call that can go to a device goes there
ALWAYS = costs.Costs(fit=0, answer=0, machine=0, vote=0, share=0, first=0)


@pytest.fixture
def eager(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call that clsvm can do is its."""
    monkeypatch.setattr(patches, "COSTS", ALWAYS)
    monkeypatch.setattr(costs, "COSTS", ALWAYS)
    monkeypatch.setitem(patches._state, "broken", "")
    log.calls.clear()
    accel.install()
    yield
    accel.uninstall()


def rows(task: str, n: int = 240) -> tuple[Any, Any]:
    if task in ("SVR", "NuSVR"):
        X = np.random.default_rng(0).normal(size=(n, 3))
        return X, np.sin(X[:, 0]) + 0.1 * X[:, 1]
    X, y = make_blobs(n, centers=3, cluster_std=2.5, random_state=0)
    return X, y


MODELS = {
    "SVC": svm.SVC(C=3, gamma=0.2),
    "SVC poly": svm.SVC(kernel="poly", degree=2, coef0=1, C=0.1, class_weight="balanced", break_ties=True),
    "NuSVC": svm.NuSVC(nu=0.3, gamma="auto", class_weight={1: 2}),  # (which LIBSVM has no use for)
    "SVR": svm.SVR(C=2),
    "NuSVR": svm.NuSVR(nu=0.4, kernel="linear"),
    "OneClassSVM": svm.OneClassSVM(nu=0.2),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("eager")
def test_answers_are_those_of_scikit_learn(name: str, sparse: bool) -> None:
    X, y = rows(name.split()[0])
    X = sp.csr_matrix(X) if sparse else X
    weights = np.linspace(0.5, 1.5, len(y)) if name in ("SVC", "SVR") else None
    accel.uninstall()
    theirs = clone(MODELS[name]).set_params(tol=1e-5).fit(X, y, sample_weight=weights)
    accel.install()
    ours = clone(MODELS[name]).set_params(tol=1e-5).fit(X, y, sample_weight=weights)
    assert {call.who for call in log.calls} == {log.OURS}
    assert type(ours) is type(theirs)
    assert vars(ours).keys() == vars(theirs).keys()
    assert ours.dual_coef_.shape == theirs.dual_coef_.shape or len(ours.support_) != len(theirs.support_)
    assert type(ours.n_iter_) is type(theirs.n_iter_)
    accel.uninstall()  # what was fitted on a device answers without one
    decide = "predict" if name.endswith("SVR") else "decision_function"
    expected = getattr(theirs, decide)(X)
    np.testing.assert_allclose(getattr(ours, decide)(X), expected, atol=2e-3)
    accel.install()
    np.testing.assert_allclose(getattr(ours, decide)(X), expected, atol=2e-3)
    np.testing.assert_allclose(getattr(theirs, decide)(X), expected, atol=2e-3)  # LIBSVM's fit, answered on a device
    if decide != "predict":
        sure = np.abs(expected).min(axis=-1) > 0.01 if expected.ndim > 1 else np.abs(expected) > 0.01
        np.testing.assert_array_equal(ours.predict(X)[sure], theirs.predict(X)[sure])
    assert {call.who for call in log.calls} == {log.OURS}


@pytest.mark.usefixtures("eager")
def test_two_classes_and_given_kernel_values() -> None:
    X, y = make_moons(200, noise=0.2, random_state=0)
    names, K = np.where(y, "up", "down"), rbf_kernel(X, gamma=0.7)
    machines = (svm.SVC(kernel="precomputed", C=5), K), (svm.SVC(gamma=0.7, C=5), X)
    ours = [(model.fit(given, names), given) for model, given in machines]
    accel.uninstall()
    theirs = svm.SVC(kernel="precomputed", C=5).fit(K, names)
    for model, given in ours:
        np.testing.assert_allclose(model.decision_function(given), theirs.decision_function(K), atol=5e-3)
        assert (model.predict(given) == theirs.predict(K)).mean() > 0.98
        assert (model.dual_coef_[0] * np.where(names[model.support_] == "up", 1, -1) > 0).all()


@pytest.mark.usefixtures("eager")
def test_pickles_are_scikit_learn_s() -> None:
    X, y = rows("SVC")
    model = svm.SVC().fit(X, y)
    model.predict(X)
    assert repr(model) == "SVC()"
    code = "import pickle, sys; sys.modules['clsvm'] = None; pickle.load(sys.stdin.buffer).predict([[0, 0]])"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(model), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


CHANGES: dict[str, Any] = {
    "_intercept_": lambda model: model._intercept_ - 1,
    "_gamma": lambda model: 5.0,
    "support_vectors_": lambda model: model.support_vectors_ + 1,
    "in place": lambda model: np.multiply(model._dual_coef_, 2, out=model._dual_coef_),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("eager")
def test_numbers_that_were_changed_count(name: str) -> None:
    X, y = make_moons(100, noise=0.2, random_state=0)
    model = svm.SVC().fit(X, y)
    before = model.decision_function(X)
    changed = CHANGES[name](model)
    if hasattr(model, name):
        setattr(model, name, changed)
    after = model.decision_function(X)
    accel.uninstall()
    np.testing.assert_allclose(after, model.decision_function(X), atol=1e-4)
    assert np.abs(after - before).max() > 0.1


WAYS: dict[str, Any] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "attributes": lambda model: vars(made := clone(model)).update(vars(model)) or made,
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("eager")
def test_copies_answer_with_the_same_bits(name: str, sparse: bool) -> None:
    """Rows far from 0, so that a copy with another centre of rows would show it."""
    X, y = rows(name.split()[0], 60)
    X = sp.csr_matrix(X) if sparse else X + 30
    model = clone(MODELS[name]).fit(X, y)
    answer = "predict" if name.endswith("SVR") else "decision_function"
    for make in WAYS.values():
        np.testing.assert_array_equal(getattr(make(model), answer)(X), getattr(model, answer)(X))
    assert {call.who for call in log.calls if not call.name.endswith("fit")} == {log.OURS}


class Flipped:
    def predict(self, X: Any) -> Any:
        return 1 - super().predict(X)  # type: ignore[misc]


class Mixed(Flipped, svm.SVC):
    """Predict the other class, by a class in between."""


class Given(svm.SVC):
    """Answer for rows twice as large."""

    def _compute_kernel(self, X: Any) -> Any:
        return super()._compute_kernel(2 * X)


class Levels(svm.SVR):
    """Classify by regression: classes_ are no classes of LIBSVM's."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        self.classes_ = np.unique(y)
        return super().fit(X, y.astype(float), sample_weight)

    def predict(self, X: Any) -> Any:
        return (super().predict(X) > 0.5).astype(int)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return float((self.predict(X) == y).mean())


def replaced(name: str, value: Any) -> Any:
    model = svm.SVC()
    setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    "model",
    [
        *(kind() for kind in (Mixed, Given, Levels)),
        replaced("__sklearn_clone__", lambda: svm.SVC(gamma=1e-4)),
        replaced("score", lambda X, y: 0.5),
    ],
)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("eager")
def test_estimators_with_own_methods_are_searched_as_by_scikit_learn(model: Any) -> None:
    X, y = make_moons(90, noise=0.3, random_state=0)
    grid = {"C": [0.01, 3.0]}
    found = GridSearchCV(model, grid, cv=2).fit(X, y)
    assert not any("GridSearchCV" in call.name for call in log.calls)
    accel.uninstall()
    expected = GridSearchCV(model, grid, cv=2).fit(X, y)
    for one in ("mean_test_score", "params"):
        np.testing.assert_array_equal(found.cv_results_[one], expected.cv_results_[one])
    assert (found.predict(X) == expected.predict(X)).mean() > 0.9


class Own(svm.SVC):
    """Has parameters of its own, which only by name are clsvm's."""

    def __init__(self, C: float = 1.0, bias: bool = False, device: str = "none", checkpoint: str = "none"):
        super().__init__(C=C)
        self.bias, self.device, self.checkpoint = bias, device, checkpoint


@pytest.mark.usefixtures("eager")
def test_parameters_of_a_subclass_are_its_own() -> None:
    X, y = make_moons(60, noise=0.3, random_state=0)
    values = [model.fit(X + 1, y).decision_function(X + 1) for model in (Own(), svm.SVC())]
    np.testing.assert_array_equal(*values)
    assert {call.who for call in log.calls} == {log.OURS}
    assert clsvm.from_sklearn(Own().fit(X, y)).get_params() == clsvm.from_sklearn(svm.SVC().fit(X, y)).get_params()


@pytest.mark.usefixtures("eager")
def test_a_nu_without_a_margin_is_libsvm_s() -> None:
    """LIBSVM ends before the optimum, which tells nothing, and its model is of use."""
    X, y = make_classification(300, 6, n_informative=3, flip_y=0.25, class_sep=1.5, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = svm.NuSVC(nu=0.2, kernel="linear").fit(X, y)
        search = GridSearchCV(svm.NuSVC(kernel="linear"), {"nu": [0.2, 0.6]}, cv=2).fit(X, y)
        svm.NuSVC(nu=0.6, kernel="linear").fit(X, y)
    fits = [(call.who, call.why) for call in log.calls if call.name == "NuSVC.fit"]
    assert fits[0] == (log.THEIRS, "clsvm failed: nu=0.2 leaves no margin between two classes")
    assert fits[-1][0] == log.OURS
    accel.uninstall()
    theirs = svm.NuSVC(nu=0.2, kernel="linear").fit(X, y)
    np.testing.assert_array_equal(ours.dual_coef_, theirs.dual_coef_)
    expected = GridSearchCV(svm.NuSVC(kernel="linear"), {"nu": [0.2, 0.6]}, cv=2).fit(X, y)
    for one in ("split0_test_score", "split1_test_score"):
        np.testing.assert_allclose(search.cv_results_[one], expected.cv_results_[one], atol=0.02)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (svm.SVC(kernel=lambda a, b: a @ b.T), costs.PYTHON),
        (svm.SVC(max_iter=50), costs.CAPPED),
        (svm.SVC(verbose=True), costs.TALKS),
        (svm.SVC(probability=np.bool_(True)), costs.PROBABILITY),
        (svm.SVC(class_weight={0: 0}), "a weight is 0 or less"),
    ],
)
@pytest.mark.usefixtures("eager")
@pytest.mark.filterwarnings("ignore")
def test_what_stays_scikit_learn_s(model: Any, why: str) -> None:
    X, y = rows("SVC", 60)
    with contextlib.suppress(ValueError):  # (no coefficient is finite where a class weighs nothing)
        model.fit(X, y)
    assert [(call.who, call.why) for call in log.calls] == [(log.THEIRS, why)]


@pytest.mark.usefixtures("eager")
def test_a_kernel_of_words() -> None:
    def kernel(one: Any, other: Any) -> Any:
        return np.array([[float(len(a) * len(b)) for b in other] for a in one])

    words = ["a", "aaa", "bbbb", "c"]
    assert svm.SVC(kernel=kernel).fit(words, [0, 1, 1, 0]).predict(words).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("change", [{"cv": "once"}, {"verbose": 1}, {"n_jobs": 0}, {"n_jobs": "x"}])
@pytest.mark.usefixtures("eager")
def test_searches_that_stay_scikit_learn_s(change: dict[str, Any]) -> None:
    X, y = rows("SVC", 60)
    if "cv" in change:
        change = {"cv": KFold(3, shuffle=True, random_state=0).split(X)}
    search = GridSearchCV(svm.SVC(), {"C": [1, 3]}, **change)
    if "n_jobs" in change:
        with pytest.raises(ValueError, match="n_jobs"):
            search.fit(X, y)
    else:
        assert len(search.fit(X, y).cv_results_["params"]) == 2
    assert "GridSearchCV(SVC).fit" not in {call.name for call in log.calls if call.who == log.OURS}


@pytest.mark.usefixtures("eager")
def test_what_fails_is_left_to_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows("SVC", 60)

    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(patches, "_learn", fails)
    monkeypatch.setattr(patches, "_clsvm_model", fails)
    assert svm.SVC().fit(X, y).score(X, y) > 0.5
    assert {(call.who, call.why) for call in log.calls} == {(log.THEIRS, "clsvm failed: no room")}
    with pytest.raises(ValueError, match="specified nu is infeasible"):
        svm.NuSVC(nu=0.99).fit(np.arange(20.0)[:, None], np.arange(20) < 2)


class Bare(svm.SVC):
    """Define nothing."""


@pytest.mark.usefixtures("eager")
def test_search_is_scikit_learn_s() -> None:
    """Also of a subclass that defines nothing."""
    X, y = rows("SVC", 200)
    grid = {"C": [0.1, 1, 10], "gamma": [0.05, 0.5]}
    ours = GridSearchCV(Bare(), grid, cv=3, return_train_score=True).fit(X, y)
    assert [(call.name, call.who) for call in log.calls] == [("GridSearchCV(Bare).fit", log.OURS)]
    accel.uninstall()
    theirs = GridSearchCV(Bare(), grid, cv=3, return_train_score=True).fit(X, y)
    assert ours.cv_results_.keys() == theirs.cv_results_.keys()
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    for name in ("mean_test_score", "mean_train_score", "std_test_score"):
        np.testing.assert_allclose(ours.cv_results_[name], theirs.cv_results_[name], atol=0.011)
    assert type(ours.best_estimator_) is Bare
    assert ours.score(X, y) == pytest.approx(theirs.score(X, y), abs=0.02)
    assert {name for name in vars(ours) if name.endswith("_")} == {name for name in vars(theirs) if name.endswith("_")}


@pytest.mark.usefixtures("eager")
def test_a_search_with_callbacks_is_left_to_scikit_learn() -> None:
    """They hear what they hear without clsvm, whose device does the single fits."""
    pytest.importorskip("sklearn.callback")
    X, y = rows("SVC", 120)
    ours, theirs = Noted(), Noted()
    GridSearchCV(svm.SVC(), {"C": [1, 10]}, cv=2).set_callbacks(ours).fit(X, y)
    assert {call.name for call in log.calls if call.who == log.OURS} >= {"SVC.fit"}
    assert "GridSearchCV(SVC).fit" not in {call.name for call in log.calls}
    accel.uninstall()
    GridSearchCV(svm.SVC(), {"C": [1, 10]}, cv=2).set_callbacks(theirs).fit(X, y)
    assert ours.names == theirs.names
    assert len(theirs.names) > 2 * 5


@pytest.mark.usefixtures("eager")
def test_worker_processes_are_accelerated() -> None:
    """What the workers run installs the patches there."""
    from sklearn.utils.parallel import delayed

    sent = delayed(accel.installed)()[0].function
    accel.uninstall()
    assert not sent()  # here it is what it was
    arrived = pickle.loads(pickle.dumps(sent))
    arrived.sender = -1  # another process's
    assert arrived()
    assert not accel.installed()  # the worker is as it was before


def test_methods_come_back() -> None:
    before = {(owner, name): vars(owner)[name] for owner, name, _ in patches._PATCHES}
    accel.install()
    accel.install()
    assert all(vars(owner)[name] is not method for (owner, name), method in before.items())
    accel.uninstall()
    accel.uninstall()
    assert all(vars(owner)[name] is method for (owner, name), method in before.items())


def test_another_release_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_PATCHES", (*patches._PATCHES, (BaseLibSVM, "_gone", patches._fit)))
    before = BaseLibSVM._dense_fit
    with pytest.raises(RuntimeError, match=r"BaseLibSVM\._gone"):
        accel.install()
    assert BaseLibSVM._dense_fit is before
    assert not accel.installed()


def run(tmp_path: Path, script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "clsvm.accel", *options, "script.py", "one"]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)


SMALL = """
    import sys
    from sklearn.datasets import load_iris
    from sklearn.svm import SVC
    print(sys.argv, SVC().fit(*load_iris(return_X_y=True)).score(*load_iris(return_X_y=True)) > 0.9)
    print("pyopencl" in sys.modules)
"""


def test_a_small_script_never_loads_opencl(tmp_path: Path) -> None:
    done = run(tmp_path, SMALL, CLSVM_ACCEL_LOG="info")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["['script.py', 'one'] True", "False"]
    assert "SVC.fit (150 x 4): scikit-learn" in done.stderr
    assert "OpenCL is not loaded yet" in done.stderr


def test_what_loading_takes_is_paid_once_libsvm_took_as_long() -> None:
    made = costs.Costs(fit=0.1, share=0.2, first=1.0, max_share=0.5)
    assert not made.pays(1.0, 0.1, 0.0)
    assert not made.pays(1.0, 0.1, 0.7)
    assert made.pays(1.0, 0.1, 0.9)
    assert made.pays(4.0, 0.1, 0.0)
    assert not made.pays(0.3, 0.1, 9.0)  # what ours takes at least stays


def test_pairs_of_classes_count_in_an_answer() -> None:
    """A value for each row and pair comes to the host: of few support vectors a class LIBSVM is as fast."""
    made = costs.Costs()

    def pays(rows: int, per: int, k: int) -> bool:
        return made.pays(*made.predict_seconds(rows, per * k, 40, k), made.first)

    assert not pays(20000, 3, 100)
    assert pays(20000, 100, 100)
    assert pays(20000, 5000, 2)
    assert made.predict_seconds(20000, 1, 40, 2)[1] == made.answer


@pytest.mark.usefixtures("eager")
def test_no_device_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows("SVC", 60)
    monkeypatch.setenv("CLSVM_DEVICE", "nonsense")
    with pytest.warns(RuntimeWarning, match=r"leaves all fits and predictions to scikit-learn: .*nonsense"):
        svm.SVC().fit(X, y)
    monkeypatch.setitem(patches._state, "broken", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svm.SVC().fit(X, y)  # (not an error of the fit)
        svm.SVC().fit(X, y)
    assert {call.who for call in log.calls} == {log.THEIRS}


@pytest.mark.usefixtures("eager")
def test_a_search_that_stays_is_its_fits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(log.VARIABLE, "info")
    X, y = rows("SVC", 60)
    GridSearchCV(svm.SVC(), {"class_weight": [None, "balanced"]}, cv=2).fit(X, y)
    assert "its fits one by one; the grid varies class_weight" in capsys.readouterr().err
    assert {call.name for call in log.calls} == {"SVC.fit", "SVC.predict"}


def test_scripts_end_as_python_ends_them(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys\nsys.exit(3)\n").returncode == 3
    done = run(tmp_path, "", "nowhere.py")
    assert (done.returncode, "there is no script nowhere.py" in done.stderr) == (2, True)
