"""Sparse rows: what does not fit together is refused wherever rows come in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import clsvm
from clsvm import SVC, arrays
from clsvm.kernels import make
from clsvm.model_selection import SVCSearchCV
from clsvm.models import probability

N, D = 24, 10
GOOD = sp.random(N, D, density=0.4, format="csr", random_state=0) + sp.csr_matrix(np.eye(N, D))
Y = np.arange(N) % 2


def spoilt(**parts: Callable[[np.ndarray], np.ndarray]) -> Any:
    """GOOD with some of its parts changed, as SciPy's attributes allow."""
    X = GOOD.copy()
    for name, change in parts.items():
        setattr(X, name, change(getattr(X, name).copy()))
    return X


def put(at: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[at] = value
        return array

    return change


MALFORMED = {
    "beyond the columns": (spoilt(indices=put(5, D)), rf"indices are 0 to {D}, expected 0 to {D - 1}"),
    "far beyond them": (spoilt(indices=put(5, 10**6)), f"0 to 1000000, expected 0 to {D - 1}"),
    "below 0": (spoilt(indices=put(5, -1)), f"-1 to {D - 1}, expected 0 to"),
    "rows from 2 on": (spoilt(indptr=put(0, 2)), f"indptr has {N + 1} numbers from 2 on, expected {N + 1} from 0 on"),
    "rows that fall": (spoilt(indptr=put(3, 10**5)), "indptr falls from 100000 to"),
    "rows beyond the data": (spoilt(indptr=put(-1, 10**5)), "indptr ends at 100000, expected at most the"),
    "a row too few": (spoilt(indptr=lambda p: p[:-1]), f"indptr has {N} numbers"),
    "data too short": (spoilt(data=lambda a: a[:-1]), "indices, expected"),
}


@cache
def fitted() -> SVC:
    return SVC(gamma=0.5).fit(GOOD, Y)


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda X: SVC(gamma=0.5).fit(X, Y),
    "SVR": lambda X: clsvm.SVR(gamma=0.5).fit(X, Y),
    "OneClassSVM": lambda X: clsvm.OneClassSVM(gamma=0.5).fit(X),
    "predict": lambda X: fitted().predict(X),
    "the model": lambda X: fitted().model_.decision_function(X),
    "a matrix": lambda X: clsvm.kernel_matrix(X),
    "its other side": lambda X: clsvm.kernel_matrix(GOOD, X),
    "on the host": lambda X: make("rbf")(GOOD, X),
    "check": lambda X: make("rbf").check(X),
    "search": lambda X: SVCSearchCV(SVC(gamma=0.5), {"C": [1.0]}, cv=2, error_score="raise").fit(X, Y),
    "probabilities": lambda X: probability.calibrated(fitted(), X, Y),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_takes_a_column_that_is_not_there(entry: str) -> None:
    X, words = MALFORMED["beyond the columns"]
    with pytest.raises(ValueError, match=words):
        ENTRIES[entry](X)


@pytest.mark.parametrize("fault", MALFORMED)
def test_what_is_wrong_is_named(fault: str) -> None:
    X, words = MALFORMED[fault]
    with pytest.raises(ValueError, match=words):
        SVC().fit(X, Y)


def test_support_vectors_are_looked_at_too() -> None:
    model = SVC(gamma=0.5).fit(GOOD, Y).model_
    model.support_vectors.indices[3] = D
    with pytest.raises(ValueError, match="malformed"):
        model.decision_function(GOOD)


@pytest.mark.parametrize("form", ["csc", "bsr"])
def test_other_forms_are_looked_at_before_they_are_changed(form: str) -> None:
    X = GOOD.asformat(form)
    X.indices[2] = 10**4
    for entry in ("fit", "a matrix", "on the host"):
        with pytest.raises(ValueError, match=f"10000, expected 0 to .*{form}"):
            ENTRIES[entry](X)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_what_fits_is_taken(form: str, kind: Any) -> None:
    X = kind(GOOD).asformat(form)
    np.testing.assert_array_equal(arrays.checked(X).toarray(), GOOD.toarray())


def test_room_behind_the_entries_is_no_fault() -> None:
    X = GOOD.copy()
    X.indices, X.data = np.append(X.indices, 10**6).astype(np.int32), np.append(X.data, 7.0)
    np.testing.assert_array_equal(fitted().decision_function(X), fitted().decision_function(GOOD))
