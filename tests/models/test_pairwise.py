"""Machines of many classes: what is made of the values of all pairs, a few rows and classes at a time."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.utils.multiclass import _ovr_decision_function

from clsvm import SVC
from clsvm.gram import responses
from clsvm.models import decoder
from clsvm.models import model as models
from clsvm.opencl.stream import Stream

K, ROWS = 60, 4000


def of_classes(k: int, per: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of k classes, their labels, and n further rows."""
    rng = np.random.default_rng(seed)
    centres, y = 3 * rng.normal(size=(k, 6)), np.repeat(np.arange(k), per)
    T = centres[rng.integers(0, k, n)] + rng.normal(size=(n, 6))
    return centres[y] + rng.normal(size=(len(y), 6)), y, T


@pytest.fixture(scope="module")
def fitted() -> SVC:
    X, y, _ = of_classes(K, 3, 0)
    return SVC(gamma=0.05, C=10).fit(X, y)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_no_value_depends_on_the_pieces(device: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on whether a launch takes one class or all of them. A value of 0 is a vote as well."""
    k, (X, y, T) = 18, of_classes(18, 3, 100)
    model, rows = SVC(gamma=0.05, C=10).fit(form(X), y).model_, form(T)
    expected = model.decision_function(rows, device)
    ovr, won = _ovr_decision_function(expected < 0, -expected, k), np.zeros((len(T), k), int)
    for p, (i, j) in enumerate(decoder.pairs(k)):
        won[np.arange(len(T)), np.where(expected[:, p] > 0, i, j)] += 1
    nothing = replace(model, dual_coef=0 * model.dual_coef, intercept=0 * model.intercept)
    ovr_of_nothing = _ovr_decision_function(np.zeros_like(expected, bool), np.zeros_like(expected), k)
    for piece, sections in ((1 << 14, 2), (1 << 16, 1), (1 << 17, 99), (1 << 26, 99)):
        monkeypatch.setattr(models, "MAX_BYTES", piece)
        monkeypatch.setattr(responses, "SECTIONS", sections)
        np.testing.assert_array_equal(model.decision_function(rows, device), expected)
        np.testing.assert_array_equal(model.decision_function(rows, device, shape="ovr"), ovr)
        np.testing.assert_array_equal(model.predict(rows, device), won.argmax(axis=1))
        np.testing.assert_array_equal(nothing.predict(rows, device), k - 1)
        np.testing.assert_array_equal(nothing.decision_function(rows, device, shape="ovr"), ovr_of_nothing)
        np.testing.assert_array_equal(model.decision_function(rows[:5], device), expected[:5])


@pytest.mark.parametrize("method", ["predict", "decision_function", "predict_proba"])
def test_memory_of_many_classes(fitted: SVC, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither host nor device holds a value for each row and pair: 57 MB here, twice that on the way."""
    limit, peaks, T = 16 << 20, [], of_classes(K, 3, ROWS)[2]
    monkeypatch.setattr(Stream, "__exit__", noted(peaks))
    pairs = K * (K - 1) // 2
    model, rows = fitted.model_, T[:400] if method == "predict_proba" else T
    model = replace(model, probA=-np.ones(pairs), probB=np.zeros(pairs))
    shape = {"shape": "ovr"} if method == "decision_function" else {}

    def ask(X: np.ndarray) -> np.ndarray:
        return np.asarray(getattr(model, method)(X, memory_limit=limit, **shape))

    ask(rows[:20])
    tracemalloc.start()
    found = ask(rows)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == len(rows)
    assert most < limit / 2 + 3 * found.nbytes
    assert 0 < max(peaks) <= limit
    if method == "predict":
        assert (fitted.predict(T[:500]) == found[:500]).all()


def noted(peaks: list[int]) -> Any:
    """Stream.__exit__, which notes what the device held at most."""
    real = Stream.__exit__

    def leave(self: Stream, *given: Any) -> None:
        peaks.append(self.peak)
        real(self, *given)

    return leave
