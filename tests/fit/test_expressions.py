"""Random kernel expressions over rows of any size: no fit claims what long double does not show.

CLSVM_EXPRESSIONS=2000 takes so many, from number CLSVM_EXPRESSIONS_SEED on.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.conftest import thrifty
from tests.expressions import outcome

COUNT = int(os.environ.get("CLSVM_EXPRESSIONS", "30"))
FIRST = int(os.environ.get("CLSVM_EXPRESSIONS_SEED", "0"))


@pytest.mark.full
def test_random_expressions(device: str) -> None:
    if thrifty(device) and "CLSVM_EXPRESSIONS" not in os.environ:
        pytest.skip("a program for every expression; set CLSVM_EXPRESSIONS")
    found = [outcome(seed, device, "float64" if seed % 5 == 4 else "float32") for seed in range(FIRST, FIRST + COUNT)]
    assert [words for what, words in found if what == "WRONG"] == []
    assert Counter(what for what, _ in found)["converged"] > COUNT // 4
