"""Record, for each fit, prediction and grid search of scikit-learn's SVMs, which package ran the call, and why.

The package is clsvm or scikit-learn. If the environment variable CLSVM_ACCEL_LOG is "info", a line is printed for each
call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

OURS, THEIRS = "clsvm", "scikit-learn"
VARIABLE = "CLSVM_ACCEL_LOG"


@dataclass
class Call:
    """Record one call of a method of a scikit-learn estimator.

    Attributes
    ----------
    name
        class and method, such as "SVC.fit".
    shape
        shape of X.
    who
        OURS or THEIRS: the package that ran the call.
    why
        the reason why this package ran the call.
    seconds
        duration of the call.
    by_fits
        whether the call is a grid search that scikit-learn runs. Each fit of this search has a record of its own.
    """

    name: str
    shape: tuple[int, ...]
    who: str = THEIRS
    why: str = ""
    seconds: float = 0.0
    by_fits: bool = False

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape))
        took = "its fits one by one" if self.by_fits else f"{self.seconds:.3g} s"
        return f"{self.name} ({size}): {self.who}, {took}; {self.why}"


calls: list[Call] = []  # all calls of this process that were logged
_depth = threading.local()


@contextmanager
def call(name: str, shape: tuple[int, ...]) -> Iterator[Call]:
    """Yield a record of a call of the method ``name``, and log the record when the call ends.

    A call inside another call is not logged.

    shape: shape of the call's argument X.
    """
    made, began = Call(name, shape), perf_counter()
    depth = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    try:
        yield made
    finally:
        _depth.value = depth
        made.seconds = perf_counter() - began
        if not depth:
            calls.extend([made] * (not made.by_fits))
            if os.environ.get(VARIABLE, "").lower() == "info":
                print(f"clsvm.accel: {made}", file=sys.stderr, flush=True)
