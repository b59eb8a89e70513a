"""Write small data sets of scikit-learn as svmlight files, with which users can try clsvm's commands."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from clsvm.files import atomic_write

_POSITIVE = {"breast_cancer": 1, "digits": 8}  # for each data set, the label that becomes +1; all others become -1
NAMES = tuple(_POSITIVE)


def sample(
    name: str, folder: str | os.PathLike[str] = ".", test_size: float = 0.25, seed: int = 0
) -> tuple[Path, Path]:
    """Write a data set as two svmlight files, ``name``.train and ``name``.test, with labels -1 and +1.

    Parameters
    ----------
    name : str
        "breast_cancer" has 569 rows of 30 features, and the label +1 for a benign tumour. Each column has mean 0 and
        standard deviation 1 over the training rows. "digits" has 1797 images of 8 x 8 pixels, divided by 16, and the
        label +1 for the digit 8.
    folder : str or path
        Folder of the files.
    test_size : float
        Share of each class that goes to the test file, between 0 and 1.
    seed : int
        Seed of the random division.

    Returns
    -------
    train, test : path
        Paths of both files.

    Raises
    ------
    ValueError
        If the name is unknown, or test_size is out of range.
    OSError
        If a file cannot be written.
    """
    if name not in NAMES:
        raise ValueError(f"there is no sample {name!r}; expected one of {', '.join(NAMES)}")
    if not 0 < test_size < 1:
        raise ValueError(f"test_size must lie between 0 and 1, got {test_size!r}")
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    X, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = np.where(labels == _POSITIVE[name], 1, -1)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=test_size, random_state=seed, stratify=y)
    if name == "digits":
        X_train, X_test = X_train / 16, X_test / 16
    else:
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    train, test = Path(folder) / f"{name}.train", Path(folder) / f"{name}.test"
    for path, rows, labels in ((train, X_train, y_train), (test, X_test, y_test)):
        with atomic_write(path) as stream:
            datasets.dump_svmlight_file(rows, labels, stream, zero_based=False)
    return train, test
