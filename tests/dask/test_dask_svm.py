"""Exact SVMs over Dask's workers: as in one place, whoever has the rows."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import clsvm
from clsvm import dask as over_dask
from tests.dask.conftest import DEVICE, LABELS, NUMBERS, SIGNS, X


def machine(name: str, module: Any = over_dask, **given: Any) -> Any:
    return getattr(module, name)(**{"device": DEVICE, "gamma": 0.1, "working_set_size": 256} | given)


@pytest.mark.parametrize(
    ("name", "y", "given"),
    [
        ("SVC", LABELS, {"C": 2.0, "class_weight": "balanced"}),
        ("SVR", NUMBERS, {"epsilon": 0.2, "gamma": "scale"}),
        pytest.param("NuSVC", LABELS, {"nu": 0.4, "tol": 1e-6}, marks=pytest.mark.full),
        ("OneClassSVM", None, {"nu": 0.2}),
    ],
)
def test_as_in_one_place(client: Any, name: str, y: Any, given: dict[str, Any]) -> None:
    """Objective and answers; rows keep their numbers, whichever worker has them."""
    rows = da.from_array(X, chunks=(300, 3))
    alone = machine(name, clsvm, **given).fit(X, y)
    made = machine(name, **given).fit(rows, None if y is None else da.from_array(y, chunks=300))
    assert made.fit_report_.converged
    assert made.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-4 if name == "NuSVC" else 1e-5)
    assert made.fit_report_.layout.startswith("2 shards of ")
    np.testing.assert_array_equal(made.support_vectors_, X[made.support_])
    answers = "predict" if name == "SVR" else "decision_function"
    scale = np.abs(getattr(alone, answers)(X)).max()
    np.testing.assert_allclose(getattr(made, answers)(X), getattr(alone, answers)(X), atol=1e-2 * scale)


def test_sparse_rows_and_weights(client: Any) -> None:
    sparse, weights = sp.csr_matrix(np.where(X > 0, X, 0)), np.where(SIGNS > 0, 1.0, 0.5)
    rows = da.from_array(np.where(X > 0, X, 0), chunks=(500, 6)).map_blocks(sp.csr_matrix)
    alone = machine("SVC", clsvm).fit(sparse, LABELS, weights)
    made = machine("SVC").fit(rows, da.from_array(LABELS, chunks=500), da.from_array(weights, chunks=500))
    assert made.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-5)


def test_more_classes(client: Any) -> None:
    """A machine for each pair, one after another over all shards."""
    classes = (NUMBERS > 0).astype(int) + (NUMBERS > 1.5)
    alone = machine("SVC", clsvm).fit(X, classes)
    rows, y = da.from_array(X, chunks=(500, 6)), da.from_array(classes, chunks=500)
    made = machine("SVC", warm_start=True).fit(rows, y)
    assert made.fit_report_.converged
    assert made.fit_report_.dual == pytest.approx(alone.fit_report_.dual, rel=1e-4)
    assert (made.predict(X) == alone.predict(X)).mean() > 0.995
    cold = made.fit_report_.steps
    assert made.fit(rows, y).fit_report_.steps < cold // 4  # (each pair goes on from its own coefficients)
