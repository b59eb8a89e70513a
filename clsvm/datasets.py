"""Small real data sets as svmlight files, to try the commands on: those bundled with scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.files import atomic_write

Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]


def _breast_cancer() -> Rows:
    from sklearn.datasets import load_breast_cancer

    data: Any = load_breast_cancer()
    return data.data, data.target == 1


def _digits() -> Rows:
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    return data.data / 16.0, data.target == 8


# name: (rows and which of them are the class +1, whether the columns still have to be scaled)
_SETS: dict[str, tuple[Callable[[], Rows], bool]] = {
    "breast_cancer": (_breast_cancer, True),
    "digits": (_digits, False),
}
NAMES = tuple(_SETS)


def sample(
    name: str, folder: str | os.PathLike[str] = ".", test_size: float = 0.25, seed: int = 0
) -> tuple[Path, Path]:
    """Write ``name``.train and ``name``.test into ``folder``: svmlight text, labels -1 and +1, columns from 1.

    "breast_cancer": 569 rows x 30 features, benign (+1) or malignant; each column shifted and scaled to mean 0 and
    deviation 1 on the training part. "digits": 1797 images of 8 x 8 pixels, 8 (+1) or another digit; pixels / 16.
    A share ``test_size`` (between 0 and 1) of each class goes to the test file, drawn by ``seed``.

    Returns both paths. Raises ValueError (unknown name, test_size) and OSError.
    """
    if name not in _SETS:
        raise ValueError(f"there is no sample {name!r}; expected one of {', '.join(NAMES)}")
    if not 0 < test_size < 1:
        raise ValueError(f"test_size must lie between 0 and 1, got {test_size!r}")
    from sklearn.datasets import dump_svmlight_file
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    load, scale = _SETS[name]
    X, positive = load()
    y = np.where(positive, 1, -1)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=test_size, random_state=seed, stratify=y)
    if scale:
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    train, test = Path(folder) / f"{name}.train", Path(folder) / f"{name}.test"
    for path, rows, labels in ((train, X_train, y_train), (test, X_test, y_test)):
        with atomic_write(path) as stream:
            dump_svmlight_file(rows, labels, stream, zero_based=False)
    return train, test
