"""Record for each call whether clsvm or scikit-learn ran it, and why.

``CLSVM_ACCEL_LOG=info`` prints a line for each call.
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
    """Record one call of an estimator.

    Attributes
    ----------
    name
        class and method, such as "SVC.fit".
    shape
        shape of X.
    who
        OURS or THEIRS: the package that ran the call.
    why
        the reason for that choice.
    seconds
        duration of the call.
    by_fits
        whether the call is a search whose fits ran one by one. A line is printed for the search, but the list
        ``calls`` has the single fits in its place.
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
    """Yield the record of a call of the method ``name`` with X of this shape, and log it when the call ends.

    A call inside another call is not logged.
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
