"""Fits of rows that the device may not hold, beside the same in core: small ones, and what counts as right."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import larger
from benchmarks.speed import memory

pytestmark = pytest.mark.full


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, device: str) -> larger.Options:
    monkeypatch.setattr(larger, "ROWS", 6000)
    monkeypatch.setattr(larger, "WIDE", 100)
    monkeypatch.setattr(larger, "CACHE", 0.1)
    return larger.Options(device, None, 1, 400 * 6000)


def test_a_mapped_file_beside_the_same_in_core(small: larger.Options) -> None:
    found = larger.beside("mapped", small)
    assert (found["n"], found["d"], found["bytes"], found["limit"]) == (6000, 100, 2400000, 600000)
    assert 0 < found["limited"]["bytes_held"] <= found["limit"] < found["in core"]["bytes_held"]
    assert found["limited"]["status"].startswith("converged")
    assert found["limited"]["dual"] == pytest.approx(found["in core"]["dual"], rel=larger.SAME)
    assert larger.holds({"sets": [found | {"times": 1.4}]})
    assert larger.show({"sets": [found, {"set": "mnist8", "error": "missing"}]}).row_count == 2


def test_a_file_that_is_passed_under_a_limit(small: larger.Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(larger, "LIMIT", 600000)
    found = larger.huge("huge", small)
    assert found["n"] == 6000
    assert found["limited"]["bytes_held"] <= 600000
    assert not memory.STATUS.exists() or found["anonymous"] > 1 << 20
    assert larger.holds({"sets": [found]})
    assert not larger.holds({"sets": [found | {"anonymous": larger.RESIDENT}]})


def test_what_does_not_hold() -> None:
    limited, core = {"bytes_held": 10, "dual": 1.0}, {"dual": 1.0}
    right: dict[str, Any] = {"limit": 10, "times": 1.5, "limited": limited, "in core": core}
    assert larger.holds({"sets": [right]})
    for path, value in ((("times",), 1.6), (("limit",), 9), (("in core", "dual"), 1.00002), (("error",), "words")):
        wrong = copy.deepcopy(right)
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert not larger.holds({"sets": [wrong]})


def test_the_file_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(larger, "WIDE", 8)
    (X, y), (again, _) = (larger.mapped(tmp_path / name, 5000) for name in ("a.npy", "b.npy"))
    assert isinstance(X, np.memmap)
    assert not X.flags.writeable
    np.testing.assert_array_equal(X, again)
    assert X[y > 0, 0].mean() - X[y < 0, 0].mean() == pytest.approx(2 * larger.APART, abs=0.1)
