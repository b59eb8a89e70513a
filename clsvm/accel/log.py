"""Record for each call whether clsvm or scikit-learn ran it, and why.

``CLSVM_ACCEL_LOG=info`` prints a line for each call. :func:`summary` returns a table of all calls.
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
VARIABLE, LEVELS = "CLSVM_ACCEL_LOG", ("info", "debug")


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
        whether the call is a search that scikit-learn ran. It is printed, but :func:`summary` counts only its fits.
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
    """Yield a record of a call, and log it when the call ends. A call inside another call is not logged."""
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
            if os.environ.get(VARIABLE, "").lower() in LEVELS:
                print(f"clsvm.accel: {made}", file=sys.stderr, flush=True)


def summary() -> str:
    """Return a table of this process's calls: number and seconds for each method and package.

    Calls in worker processes are not counted.
    """
    rows: dict[tuple[str, str], tuple[int, float]] = {}
    for one in calls:
        number, seconds = rows.get((one.name, one.who), (0, 0.0))
        rows[one.name, one.who] = number + 1, seconds + one.seconds
    lines = [f"{'call':<28}{'by':<16}{'calls':>7}{'seconds':>11}"]
    lines += [
        f"{name:<28}{who:<16}{number:>7}{seconds:>11.3f}" for (name, who), (number, seconds) in sorted(rows.items())
    ]
    return "\n".join(lines)
