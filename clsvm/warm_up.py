"""Build the OpenCL programs of common fits before they are needed, by running a small fit of each kind.

The first fit of a process builds its programs. pyopencl or the driver stores the built programs in a cache folder, from
which later processes load them. The programs depend on the kernel function, the layout of the rows on the device and
the dtype of the kernel values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from clsvm.estimators.falkon import FalkonClassifier, FalkonRegressor
from clsvm.estimators.svm import SVC, SVR, OneClassSVM
from clsvm.kernels import Kernel
from clsvm.opencl.devices import find
from clsvm.opencl.runtime import cl

# ROWS: number of rows of each fit, except the smallest fit.
# FEW: number of rows of the smallest fit, number of inducing points, and number of rows to predict after a fit.
ROWS, FEW = 4000, 300
VOCABULARY = 100_000  # columns of the rows of word counts: above 65,536, so that column numbers take four bytes


class Work(NamedTuple):
    """Hold a small fit that warm_up runs: its name in words, an estimator, rows X (n, d) and targets y (n,)."""

    name: str
    estimator: Any
    X: Any
    y: np.ndarray[Any, Any]


class Warmed(NamedTuple):
    """Hold the seconds that one kind of work took.

    Attributes
    ----------
    name
        the kind of work, in words.
    first
        seconds of the first run, which includes building the programs.
    second
        seconds of the second run.
    """

    name: str
    first: float
    second: float


def kept() -> bool:
    """Return whether pyopencl's cache of built programs is on."""
    return not cl._PYOPENCL_NO_CACHE


def warm_up(
    kernel: Kernel | str = "rbf", device: Any = None, progress: Callable[[str, float], None] = lambda *_: None
) -> list[Warmed]:
    """Compile the OpenCL programs of common fits, by running small fits and predictions.

    Each small fit runs twice, and each run includes predictions. The first run compiles the programs, unless they are
    in the cache already. The second run shows how long the fit and the predictions take without compiling.

    Parameters
    ----------
    kernel : Kernel or str
        Kernel function of the programs.
    device : None, int, str, Device or CommandQueue
        Device of the programs, as estimators take it.
    progress : callable
        Called with the name of the next small fit, and the share of the work that is done, from 0 to 1.

    Returns
    -------
    list of Warmed
        A record for each small fit, with the seconds of the first run and of the second run. Fits that refuse the
        kernel function are left out. For example, Nyström kernel machines refuse a function that is not positive
        semidefinite.

    Raises
    ------
    DeviceError
        If there is no such device.
    """
    find(device)
    found, jobs = [], [*works(kernel, device)]
    for number, work in enumerate(jobs):
        progress(work.name, number / len(jobs))
        with suppress(ValueError):
            found.append(Warmed(work.name, _run(work), _run(work)))
    return found


def _run(work: Work) -> float:
    """Fit the estimator, then predict FEW rows and a single row; return the seconds that this took."""
    began = perf_counter()
    with warnings.catch_warnings(action="ignore"):  # hides the warnings of fits that stop at max_iter
        work.estimator.fit(work.X, work.y).predict(work.X[:FEW])
    work.estimator.predict(work.X[:1])
    return perf_counter() - began


def works(kernel: Kernel | str, device: Any) -> Iterator[Work]:
    """Yield small fits that together compile the OpenCL programs of common fits. The random seed is fixed."""
    draw = np.random.default_rng(0)
    X = draw.random((ROWS, 20))
    noise, y = 0.3 * draw.normal(size=ROWS), X[:, :4].sum(axis=1)
    classes = np.digitize(y, [1.6, 2.0, 2.4])
    rows = sp.random(ROWS, 3000, 0.01, "csr", rng=draw)
    marks = (draw.random((ROWS, 80)) < 0.2).astype(float)
    kinds = (draw.random((40, 300)) < 0.1)[draw.integers(40, size=ROWS)] * draw.random((ROWS, 300))
    words = np.minimum(draw.zipf(1.4, size=(ROWS, 100)), VOCABULARY) - 1  # some words occur in most texts
    texts = sp.csr_matrix((draw.random(words.size), words.ravel(), 100 * np.arange(ROWS + 1)), (ROWS, VOCABULARY))
    texts.sum_duplicates()
    shared: dict[str, Any] = {"kernel": kernel, "device": device}
    two = SVC(max_iter=20 * ROWS, **shared)
    hard = SVC(C=1e3, max_iter=20 * ROWS, **shared)
    yield Work("few rows", two, X[:FEW], y[:FEW] > 2)
    yield Work("two classes", two, X, y + noise > 2)
    yield Work("two classes, float32", two, X.astype(np.float32), y + noise > 2)
    yield Work("two classes, large C", hard, X[:, :6], y + noise > 2)
    yield Work("several classes", two, X, classes)
    yield Work("rows of 0 and 1", two, marks, marks[:, :20].sum(axis=1) + 3 * noise > 4)
    yield Work("sparse rows", two, rows, np.asarray(rows[:, :1500].sum(axis=1)).ravel() + noise > 7.5)
    yield Work("rows with zeros", two, kinds, kinds[:, :150].sum(axis=1) + noise > 7.5)
    yield Work("texts", two, texts, np.asarray(texts[:, :3].sum(axis=1)).ravel() + noise > 25)
    yield Work("regression", SVR(max_iter=20 * ROWS, **shared), X, y + noise)
    yield Work("one class", OneClassSVM(nu=0.1, max_iter=20 * ROWS, **shared), X, y)
    yield Work("Nystroem regression", FalkonRegressor(n_centers=FEW, random_state=0, **shared), X, y + noise)
    yield Work("Nystroem classes", FalkonClassifier(n_centers=FEW, random_state=0, **shared), X, classes)
