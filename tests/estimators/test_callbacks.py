"""Callbacks of scikit-learn 1.9 and later in fits of clsvm's estimators: which hooks they hear, and what they get."""

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from clsvm import SVC, SVR, FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier, NuSVC, NuSVR, OneClassSVM
from clsvm.estimators import callbacks
from tests.callbacks import Noted

callback = pytest.importorskip("sklearn.callback")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
SIGNS, LABELS = (X[:, 0] > 0.2).astype(int), np.array(["b", "a", "c"])[np.digitize(X[:, 0], [-0.5, 0.5])]
NUMBERS = np.sin(2 * X[:, 0]) + X[:, 1]
FIT = [("setup", "fit"), ("begin", "fit"), ("end", "fit"), ("teardown", "fit")]


@pytest.mark.parametrize(
    ("estimator", "y"),
    [(SVC(), LABELS), (NuSVC(nu=0.3), SIGNS), (SVR(), NUMBERS), (NuSVR(), NUMBERS), (OneClassSVM(), None)],
    ids=lambda one: type(one).__name__,
)
def test_a_fit_of_a_machine_is_one_task(estimator: Any, y: Any) -> None:
    heard = Noted()
    model = estimator.set_callbacks(heard).fit(X, y)
    assert heard.names == FIT
    assert all(call.estimator is model for call in heard.calls)
    np.testing.assert_array_equal(heard.calls[2].predicted, model.predict(X))
    plain = clone(estimator).set_callbacks().fit(X, y)
    np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)
    assert len(heard.calls) == len(FIT)
    assert "_callback_task" not in vars(model)
    assert vars(model).keys() == vars(plain).keys() | {"_skl_callbacks"}
    pickle.loads(pickle.dumps(model)).predict(X)
    copy.deepcopy(model).predict(X)


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (FalkonRegressor(n_centers=60, dtype="float64", random_state=0), np.c_[NUMBERS, X[:, 2]]),
        (FalkonClassifier(n_centers=60, random_state=0), LABELS),
        (LogisticFalkonClassifier(n_centers=30, random_state=0, penalty=1e-2), LABELS),
    ],
    ids=lambda one: type(one).__name__,
)
def test_steps_of_a_falkon_fit_are_tasks_with_a_fitted_estimator(estimator: Any, y: Any) -> None:
    """One step begins when another ends, the last does not run, and a fit stopped at a step predicts the same."""
    heard, coefficients = Noted(), []
    model = clone(estimator).set_params(callback=lambda step, found, seconds: coefficients.append(found))
    model.set_callbacks(heard).fit(X, y)
    steps = model.n_iter_
    assert steps > 1
    assert len(coefficients) == steps  # the estimator's own callback is called, too
    assert heard.names == [*FIT[:2], *[("begin", "step"), ("end", "step")] * (steps + 1), *FIT[2:]]
    ended = [call for call in heard.calls if call.hook == "end"]
    assert [call.predicted is not None for call in ended] == [True] * steps + [False, True]
    np.testing.assert_array_equal(ended[-1].predicted, model.predict(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        stopped = clone(estimator).set_params(max_iter=1).fit(X, y)
    if y.ndim > 1:  # (a step is an iterate also where Newton's method is not done with its equations)
        np.testing.assert_allclose(ended[0].predicted, stopped.predict(X), rtol=1e-6, atol=1e-6)
    plain = clone(estimator).fit(X, y)
    np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)
    assert vars(model).keys() == vars(plain).keys() | {"_skl_callbacks"}


def test_weights_are_metadata() -> None:
    heard = Noted()
    weights = np.linspace(1, 2, len(X))
    SVC().set_callbacks(heard).fit(X, SIGNS, sample_weight=weights)
    assert heard.metadata["sample_weight"] is weights


def test_a_failed_fit_tears_down_and_leaves_the_estimator() -> None:
    heard = Noted()
    model = SVC().set_callbacks(heard)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(X * np.nan, SIGNS)
    assert heard.names == [FIT[0], FIT[1], FIT[3]]
    assert vars(model).keys() == vars(SVC().set_callbacks(heard)).keys()
    with pytest.raises(TypeError, match="FitCallback"):
        SVC().set_callbacks(print)


def test_warnings_are_of_the_callers_line() -> None:
    model = SVC(max_iter=1).set_callbacks(Noted())
    with pytest.warns(ConvergenceWarning) as said:
        model.fit(X, SIGNS)
    assert [one.filename for one in said] == [__file__]


def test_nothing_is_done_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "FitTask", None)
    monkeypatch.setattr(SVC, "_init_callback_context", None)
    SVC().fit(X, SIGNS)
    FalkonClassifier(n_centers=30).fit(X, SIGNS)
