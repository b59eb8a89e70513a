"""Falkon models over Dask's workers: as in one place, whoever has the rows."""

import re
from typing import Any

import dask.array as da
import numpy as np
import pytest

import clsvm
from clsvm import dask as over_dask
from clsvm.dask.worker import Labels, Numbers
from tests.dask.conftest import DEVICE, current

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 5)).astype(np.float32)
Y = np.sin(X).sum(axis=1)
CLASSES = np.array(["a", "b", "c"])[(Y > 0).astype(int) + (Y > 1.5)]


def machine(name: str, **given: Any) -> Any:
    return getattr(over_dask, name)(**{"n_centers": 80, "random_state": 0, "device": DEVICE} | given)


@pytest.mark.parametrize(
    ("name", "y", "given"),
    [
        ("FalkonRegressor", Y, {}),
        pytest.param("FalkonRegressor", Y, {"loss": "log_cosh"}, marks=pytest.mark.full),
        ("FalkonRegressor", np.stack([Y, 1 - 3 * Y], axis=1), {"fit_intercept": False}),
        ("FalkonClassifier", CLASSES, {"class_weight": "balanced"}),
        pytest.param("LogisticFalkonClassifier", CLASSES == "a", {}, marks=pytest.mark.full),
        ("LogisticFalkonClassifier", CLASSES, {"class_weight": {"a": 2, "b": 1, "c": 1}, "penalty": 1e-4}),
    ],
)
def test_as_in_one_place(client: Any, name: str, y: Any, given: dict[str, Any]) -> None:
    """Objective, offsets and answers."""
    rows = da.from_array(X, chunks=(1000, 2))
    made = machine(name, tol=1e-6, **given).fit(rows, da.from_array(y, chunks=(900, *y.shape[1:])))
    twin = getattr(clsvm, name)(center_selection=made.centers_, random_state=0, device=DEVICE, tol=1e-6, **given)
    alone = twin.fit(X, y)
    assert made.fit_report_.converged
    assert made.fit_report_.objective == pytest.approx(alone.fit_report_.objective, rel=1e-6)
    np.testing.assert_allclose(made.intercept_, alone.intercept_, atol=1e-9)
    np.testing.assert_array_equal(X[made.center_indices_], made.centers_)
    answers = "decision_function" if hasattr(made, "classes_") else "predict"
    np.testing.assert_allclose(getattr(made, answers)(X), getattr(alone, answers)(X), atol=2e-3)
    assert "3 chunks on " in made.fit_report_.layout  # (one worker or two: where the scheduler had them made)


@pytest.mark.parametrize("name", ["FalkonRegressor", "FalkonClassifier", "LogisticFalkonClassifier"])
def test_rows_that_are_no_chunks_are_taken_as_ever(name: str) -> None:
    made = machine(name, n_centers=20, warm_start=True)
    expected = getattr(clsvm, name)(n_centers=20, random_state=0, warm_start=True, device=DEVICE)
    for _ in range(2):
        np.testing.assert_array_equal(made.fit(X, Y > 0).dual_coef_, expected.fit(X, Y > 0).dual_coef_)


def test_the_same_bits_by_any_number_of_workers(client: Any) -> None:
    rows, y = da.from_array(X, chunks=(800, 5)), da.from_array(CLASSES, chunks=800)
    two = machine("FalkonClassifier").fit(rows, y)
    with current(1, processes=False):
        np.testing.assert_array_equal(machine("FalkonClassifier").fit(rows, y).dual_coef_, two.dual_coef_)


@pytest.mark.filterwarnings("error")
def test_many_classes_in_one_chunk_are_no_reason_to_warn() -> None:
    labels = np.repeat(np.arange(30), 4)
    made, weights = Labels.of([Labels.summary(labels, None)], None, lambda places, k: np.eye(k)[:, places])
    assert made.classes.tolist() == list(range(30))
    np.testing.assert_array_equal(weights, 4)


def test_encodings() -> None:
    """Of classes that some chunks do not have."""
    table = lambda index, k: np.where(np.arange(k)[:, None] == index, 1.0, -1.0)  # noqa: E731
    chunks = [Labels.summary(["b", "a"], None), Labels.summary(["c", "c"], [1.0, 0.0]), Labels.summary(["d"], [0.0])]
    made, weights = Labels.of(chunks, "balanced", table)
    assert made.classes.tolist() == ["a", "b", "c"]
    assert made.by_class.tolist() == [1.25, 1.25, 0.625, 1.25]
    assert weights.tolist() == [1.25, 1.25, 0.625]
    y, w = made.encoded(["c", "d", "a"], [1.0, 0.0, 3.0])
    assert y[:, [0, 2]].T.tolist() == [[-1, -1, 1], [1, -1, -1]]
    assert w.tolist() == [0.625, 0.0, 3.75]
    assert Numbers.summary([1.0, 3.0], [1.0, 3.0]).keys.tolist() == [[2.5]]
    with pytest.raises(ValueError, match=re.escape("sample_weight.shape == (3,), expected (2,)!")):
        Numbers.summary([1.0, 3.0], [1.0, 1.0, 1.0])
