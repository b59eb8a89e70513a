"""Rows and models of other libraries: data frames, sparse arrays, mapped files, and ONNX where that is installed."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import clsvm
from clsvm import SVC

X, KINDS = load_iris(return_X_y=True)
NAMES = ["sepal length", "sepal width", "petal length", "petal width"]
PLAIN = SVC().fit(X, KINDS)


def assert_same_machine(model: SVC, rows: Any) -> None:
    np.testing.assert_array_equal(model.dual_coef_, PLAIN.dual_coef_)
    np.testing.assert_array_equal(model.decision_function(rows), PLAIN.decision_function(X))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library: str) -> None:
    """Their columns' names are kept, and asked for; labels may be a column."""
    frames = pytest.importorskip(library)
    rows = frames.DataFrame(dict(zip(NAMES, X.T.copy(), strict=True)))
    model = SVC().fit(rows, frames.Series(KINDS))
    assert_same_machine(model, rows)
    np.testing.assert_array_equal(model.feature_names_in_, NAMES)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(rows[NAMES[::-1]])


def test_mapped_files(tmp_path: Path) -> None:
    """Files opened for reading alone, by rows and by columns."""
    for order in ("C", "F"):
        path = tmp_path / f"{order}.npy"
        np.save(path, np.asarray(X, order=order))
        rows = np.load(path, mmap_mode="r")
        assert isinstance(rows, np.memmap)
        model = SVC().fit(rows, KINDS)
        assert_same_machine(model, rows)
        assert_same_machine(pickle.loads(pickle.dumps(model)), rows)


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
