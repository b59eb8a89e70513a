"""Sparse rows: what does not fit together is refused wherever rows come in."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import clsvm
from clsvm import SVC
from clsvm.kernels import make
from clsvm.model_selection import SVCSearchCV
from clsvm.models import decoder

N, D = 24, 10
GOOD = sp.random(N, D, density=0.4, format="csr", random_state=0) + sp.csr_matrix(np.eye(N, D))
Y = np.arange(N) % 2


def damaged(form: str = "csr", **parts: Callable[[np.ndarray], np.ndarray]) -> Any:
    """GOOD in a form with some of its parts changed, as SciPy's attributes allow."""
    X = GOOD.asformat(form, copy=True)
    for name, change in parts.items():
        setattr(X, name, change(getattr(X, name).copy()))
    return X


def put(at: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.r_[array[:at], value, array[at:][1:]].astype(array.dtype)


def longer(lists: np.ndarray) -> np.ndarray:
    lists[4] = [*lists[4], 1.0]
    return lists


MALFORMED = {
    "beyond the columns": (damaged(indices=put(5, D)), f"indices must be < {D}"),
    "below 0": (damaged(indices=put(5, -1)), "indices must be >"),
    "rows that fall": (damaged(indptr=put(3, 10**5)), "must .*non-decreasing"),
    "rows that fall to 0": (damaged(indptr=put(-1, 0)), "must .*non-decreasing"),
    "rows that fall below 0": (damaged(indptr=put(-1, -1)), "must .*non-decreasing"),
    "rows beyond the data": (damaged(indptr=put(-1, 10**5)), "Last value of index pointer"),
    "a row too few": (damaged(indptr=lambda p: p[:-1]), f"index pointer size .*{N}.* should be .*{N + 1}"),
    "data too short": (damaged(data=lambda a: a[:-1]), "indices and data should have the same size"),
    "columns of floats": (
        damaged(indices=np.float64),
        "indices and indptr are of .*float64.*, expected int32 or int64",
    ),
    "a list too long": (damaged("lil", data=longer), "each row must have as many values as column indices"),
}
for form in ("csc", "bsr"):  # are looked at before they are changed
    MALFORMED[f"{form} beyond"] = damaged(form, indices=put(2, 10**4)), f"malformed .{form}."
    MALFORMED[f"{form} falls"] = damaged(form, indptr=put(-1, 0)), f"malformed .{form}."
for axis in ("row", "col"):
    for number in (10**6, -1):
        MALFORMED[f"coo, {axis} {number}"] = damaged("coo", **{axis: put(3, number)}), "malformed .coo."


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
    "probabilities": lambda X: decoder.calibrated(fitted(), X, Y),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_takes_a_column_that_is_not_there(entry: str) -> None:
    X, words = MALFORMED["beyond the columns"]
    with pytest.raises(ValueError, match=words):
        ENTRIES[entry](X)


@pytest.mark.parametrize(("X", "words"), MALFORMED.values(), ids=list(MALFORMED))
def test_what_is_wrong_is_named(X: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SVC().fit(X, Y)


def test_duplicates_that_scipy_does_not_know_of() -> None:
    """A matrix whose parts were changed in place says of itself what was so before."""
    X = GOOD.copy()
    assert X.has_canonical_format
    X.indices //= 2
    expected = SVC(gamma=0.5, tol=1e-6).fit(X.toarray(), Y).decision_function(X.toarray())
    model = SVC(gamma=0.5, tol=1e-6, layout="csr").fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-4)


@pytest.mark.skipif(os.name != "posix", reason="a file that is mapped cannot be cut short")
def test_every_array_that_is_mapped_is_looked_at(tmp_path: Path) -> None:
    """Coordinates, targets and weights as well as rows: reading beyond the end of a file ends the process."""

    def mapped(array: Any, short: bool = True) -> Any:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.npy"
        np.save(path, array)
        made = np.load(path, mmap_mode="r")
        if short:
            os.truncate(path, 200)
        return made

    rows, columns = GOOD.tocoo(copy=True), GOOD.tocoo(copy=True)
    rows.row, columns.col = mapped(rows.row), mapped(columns.col)
    dense = GOOD.toarray()
    for read in (
        lambda: SVC().fit(mapped(dense), Y),
        lambda: clsvm.FalkonClassifier().fit(mapped(dense), Y),
        lambda: fitted().predict(mapped(dense)),
        lambda: SVC().fit(rows, Y),
        lambda: SVC().fit(columns, Y),
        lambda: clsvm.SVR().fit(GOOD, mapped(np.arange(N, dtype=np.float64))),
        lambda: SVC().fit(GOOD, Y, sample_weight=mapped(np.ones(N))),
        lambda: SVC(kernel=lambda A, B: A @ B.T).fit(mapped(dense), Y),
        lambda: SVC().fit(list(mapped(dense)), Y),
        lambda: make("rbf").check(mapped(dense)),
    ):
        with pytest.raises(ValueError, match="a memory-mapped file had"):
            read()
    SVC().fit(mapped(dense, short=False), Y)


def test_support_vectors_are_looked_at_too() -> None:
    model = SVC(gamma=0.5).fit(GOOD, Y).model_
    model.support_vectors.indices[3] = D
    with pytest.raises(ValueError, match="malformed"):
        model.decision_function(GOOD)


def test_room_behind_the_entries_is_no_fault() -> None:
    X = GOOD.copy()
    X.indices, X.data = np.append(X.indices, 10**6).astype(np.int32), np.append(X.data, 7.0)
    np.testing.assert_array_equal(fitted().decision_function(X), fitted().decision_function(GOOD))
