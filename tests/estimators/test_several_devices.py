"""Machines of several classes and searches over several devices: dealt out from a queue, with the same results."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from clsvm import SVC, FalkonRegressor
from clsvm.distribute import dealt
from clsvm.fit import driver
from clsvm.model_selection import FalkonSearchCV, SVCSearchCV

X, DIGITS = load_digits(return_X_y=True)
X, DIGITS = (X[:600] / 16).astype(np.float32), DIGITS[:600] % 5


@pytest.mark.parametrize("way", ["ovo", "ovr"])
def test_classes(device: str, way: str) -> None:
    alone, many = (
        SVC(C=10, gamma=0.1, multi_class=way, device=where).fit(X, DIGITS) for where in (device, [device] * 3)
    )
    np.testing.assert_array_equal(alone.dual_coef_, many.dual_coef_)
    np.testing.assert_array_equal(alone.intercept_, many.intercept_)
    one, report = alone.fit_report_, many.fit_report_
    assert report.converged
    for name in ("steps", "rows_computed", "violation", "status", "device", "dtype"):
        assert getattr(report, name) == getattr(one, name)
    assert report.dual == pytest.approx(one.dual, rel=1e-12)
    assert report.seconds["total"] == pytest.approx(sum(report.seconds.values()) - report.seconds["total"])


def test_text_names_several(device: str) -> None:
    """As the commands take them; predictions are the first one's."""
    made = SVC(device=f"{device}, {device}").fit(X, DIGITS == 1)
    assert made.fit_report_.layout.startswith("2 shards of 300 to 300 rows")
    np.testing.assert_array_equal(made.predict(X), SVC(device=device).fit(X, DIGITS == 1).predict(X))


def test_an_error_ends_all(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(driver, "_room", broken)
    with pytest.raises(MemoryError, match="no room"):
        SVC(device=[device] * 2).fit(X, DIGITS)
    assert not [thread for thread in threading.enumerate() if thread.name == "clsvm"]


@pytest.mark.parametrize("grid", [{"C": [0.1, 1, 10], "gamma": [0.01, 0.1]}, {"C": [0.1, 10]}])
def test_searches(device: str, grid: dict[str, Any]) -> None:
    """By kernel functions, and by folds where there is one of these."""
    y = DIGITS == 1
    alone, many = (SVCSearchCV(SVC(device=where), grid, cv=3).fit(X, y) for where in (device, [device] * 3))
    for name in ("mean_test_score", "split2_test_score"):
        np.testing.assert_array_equal(alone.cv_results_[name], many.cv_results_[name])
    assert (many.cv_results_["mean_fit_time"] > 0).all()


def test_searches_of_what_goes_alone(device: str) -> None:
    """Small machines for pairs of classes share nothing, and machines on centres share K."""
    alone, many = (
        SVCSearchCV(SVC(device=one), {"C": [0.1, 10]}, cv=3).fit(X, DIGITS) for one in (device, [device] * 2)
    )
    np.testing.assert_array_equal(alone.cv_results_["mean_test_score"], many.cv_results_["mean_test_score"])
    grid = {"gamma": [0.01, 0.1], "penalty": [1e-3, 1e-4]}
    alone, many = (
        FalkonSearchCV(FalkonRegressor(n_centers=50, random_state=0, device=one), grid, cv=3).fit(X, DIGITS)
        for one in (device, [device] * 2)
    )
    np.testing.assert_array_equal(alone.cv_results_["mean_test_score"], many.cv_results_["mean_test_score"])


def test_who_is_faster_does_more() -> None:
    """And all pieces are done once; an error ends all, and so does who iterates."""
    slow, done = threading.Event(), list[tuple[str, int]]()

    def work(worker: str, pieces: Iterator[int]) -> Generator[None]:
        for piece in pieces:
            if worker == "slow":
                slow.wait(10)
            done.append((worker, piece))
            yield
            if len(done) == 19:
                slow.set()

    assert len(list(dealt(["slow", "fast"], range(20), work))) == 20
    assert sorted(piece for _, piece in done) == list(range(20))
    assert sum(worker == "fast" for worker, _ in done) >= 18

    def failing(worker: str, pieces: Iterator[int]) -> Generator[None]:
        for piece in pieces:
            yield
            if piece == 3:
                raise OSError("piece 3")

    with pytest.raises(OSError, match="piece 3"):
        list(dealt("ab", range(1000), failing))

    def waiting(worker: str, pieces: Iterator[int]) -> Generator[None]:
        for piece in pieces:
            time.sleep(0.001)
            done.append((worker, piece))
            yield

    reached = dealt("ab", range(100000), waiting)
    next(reached)
    reached.close()
    assert len(done) < 100000
    assert not [thread for thread in threading.enumerate() if thread.name == "clsvm"]
