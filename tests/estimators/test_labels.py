"""Labels that are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clsvm


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
