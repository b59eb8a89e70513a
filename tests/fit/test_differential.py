"""Random hard problems of every task and random kernel expressions: no fit claims what long double does not show.

``python -m tests.differential`` takes thousands of the problems; CLSVM_EXPRESSIONS=2000 takes so many expressions, from
number CLSVM_EXPRESSIONS_SEED on.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.conftest import thrifty
from tests.differential import Summary, both
from tests.expressions import outcome

pytestmark = pytest.mark.full
COUNTED = ("unsolved", "refused", "warning")  # one by one no fault


def test_random_problems(device: str) -> None:
    if thrifty(device):
        pytest.skip("a program for every kernel and task")
    summary = Summary()
    for seed in range(1035, 1095):
        summary.add(*both(seed, device, steps=200_000))
    print(summary)
    assert [one for one in summary.found if one[0] not in COUNTED] == []
    within = "of these within float64's precision, "
    assert summary.counts[within + "converged"] >= summary.counts[within + "LIBSVM solved"] > 15


def test_random_expressions(device: str) -> None:
    if thrifty(device) and "CLSVM_EXPRESSIONS" not in os.environ:
        pytest.skip("a program for every expression; set CLSVM_EXPRESSIONS")
    first, count = (int(os.environ.get(name, "0")) for name in ("CLSVM_EXPRESSIONS_SEED", "CLSVM_EXPRESSIONS"))
    count = count or 15
    found = [outcome(seed, device, "float64" if seed % 5 == 4 else "float32") for seed in range(first, first + count)]
    assert [words for what, words in found if what == "WRONG"] == []
    assert Counter(what for what, _ in found)["converged"] > count // 4
