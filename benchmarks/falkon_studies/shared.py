"""What the studies are asked, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.sets import MissingSetError

WARM = 1000  # rows of a fit that only builds programs


@dataclass(frozen=True)
class Options:
    """What the command line asks. sets: None for the study's own. rows, centers: n and m, the most of them where a
    study has several; None: the study's own. repeats: of a product after its first call. limit: seconds after which
    what is slow is not made larger. libsvm_rows: that LIBSVM is fitted on at most."""

    sets: Sequence[str] | None = None
    peers: Sequence[str] = ()
    data: Path | None = None
    device: Any = None
    rows: int | None = None
    centers: int | None = None
    repeats: int = 3
    limit: float = 60.0
    libsvm_rows: int = 5000
    memory_limit: str = "400MB"


def named(options: Options, known: Sequence[str], default: Sequence[str]) -> list[str]:
    """The sets that are asked for; MissingSetError where a study has not that one."""
    names = list(default if options.sets is None else options.sets)
    for name in names:
        if name not in known:
            raise MissingSetError(f"this study has no set {name!r}; there are {', '.join(known)}")
    return names


def seconds_of(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    began = perf_counter()
    call()
    return perf_counter() - began


def fitted(machine: Any, X: Any, y: Any) -> float:
    """Seconds of a fit, all programs of which a fit on few rows has built."""
    machine.fit(X[:WARM], y[:WARM])
    return seconds_of(lambda: machine.fit(X, y))
