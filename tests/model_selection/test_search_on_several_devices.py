"""Grid searches over several devices: kernel functions from a queue, or folds; the same scores."""

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning

from clsvm import SVC, SVR, FalkonClassifier, NuSVR, OneClassSVM
from clsvm.fit import prepare
from clsvm.model_selection import FalkonSearchCV, SVCSearchCV
from tests.conftest import calls_of, noisy

X, Y = noisy(300, 4)
THREE = (X[:, 0] > 0) + (X[:, 1] > 0.5).astype(int)
GRID = {"C": [0.1, 1, 10], "gamma": [0.05, 0.2, 0.5]}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "clsvm"]


def searched(device: Any, machine: Any = SVC, grid: Any = GRID, y: Any = Y, **given: Any) -> Any:
    kept = {name: given.pop(name) for name in ("tol", "max_iter", "multi_class") if name in given}
    return SVCSearchCV(machine(device=device, **kept), grid, **{"cv": 4} | given).fit(X, y)


def scores(search: Any) -> Any:
    return np.stack([search.cv_results_[f"split{fold}_test_score"] for fold in range(4)])


@pytest.mark.parametrize(
    ("machine", "y", "given"),
    [
        (SVC, Y, {"scoring": "roc_auc"}),
        (SVC, THREE, {}),
        (SVC, THREE, {"multi_class": "ovr"}),
        (SVR, X[:, 0] ** 2, {}),
        (NuSVR, X[:, 0] ** 2, {}),
        (OneClassSVM, Y, {"scoring": "roc_auc", "grid": {"nu": [0.1, 0.5], "gamma": [0.05, 0.5]}}),
    ],
)
def test_kernel_functions(device: str, machine: Any, y: Any, given: dict[str, Any]) -> None:
    """A kernel function is one device's, whatever others do, so the scores are the same numbers."""
    one, two = (searched(where, machine, y=y, **given) for where in (device, [device] * 2))
    np.testing.assert_array_equal(scores(one), scores(two))
    assert one.best_params_ == two.best_params_
    assert (two.cv_results_["mean_fit_time"] > 0).all()


def test_folds_of_one_kernel_function(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device makes K once."""
    made = calls_of(monkeypatch, prepare.PreparedFit, "__init__")
    grid = {"C": [0.1, 1, 10], "gamma": [0.2]}
    one, alone = searched(device, grid=grid, refit=False), len(made)
    two = searched([device] * 2, grid=grid, refit=False)
    np.testing.assert_array_equal(scores(one), scores(two))
    assert (alone, len(made) - alone) == (1, 2)


def test_warnings_are_as_they_were(device: str) -> None:
    """Fits that go alone, in several threads at once, leave the process's filters alone."""
    before = list(warnings.filters)
    with pytest.warns(ConvergenceWarning) as said:
        searched([device] * 3, y=THREE, max_iter=1, refit=False)
    assert ["of 36 fold fits did not converge" in str(one.message) for one in said] == [True]
    assert list(warnings.filters) == before


def test_failed_fits_and_devices_of_candidates(device: str) -> None:
    """What one fit raises is its own, and a candidate may name its device."""
    grid = [{"C": [1, -1]}, {"C": [1], "device": [device, [device]]}]
    with pytest.warns(FitFailedWarning, match="4 fits failed"):
        found = searched([device] * 2, grid=grid, refit=False)
    assert np.isnan(scores(found)).sum() == 4
    np.testing.assert_array_equal(scores(found)[:, 0], scores(found)[:, 2])


def test_machines_on_centres(device: str) -> None:
    grid = {"penalty": [1e-2, 1e-4], "gamma": [0.1, 0.3]}
    one, two, list_of_one = (
        FalkonSearchCV(FalkonClassifier(n_centers=40, random_state=0, device=where), grid, cv=4).fit(X, Y)
        for where in (device, [device] * 2, [device])
    )
    np.testing.assert_array_equal(scores(one), scores(two))
    np.testing.assert_array_equal(scores(one), scores(list_of_one))
