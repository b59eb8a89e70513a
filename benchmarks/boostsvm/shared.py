"""What the parts are asked, and what their tables share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks import table
from benchmarks.boostsvm import cases


@dataclass(frozen=True)
class Options:
    """What the command line asks. h: columns of density 0.74 in a synthetic set. scale: what its rows are divided by.
    limit: seconds after which a fit is ended; 0: none, and fits run in this process."""

    h: int = 0
    peers: tuple[str, ...] = ()
    data: Path | None = None
    device: Any = None
    repeats: int = 5
    scale: int = 1
    limit: float = 120.0

    def load(self, name: str) -> cases.Case:
        """The set of that name as it is asked for."""
        return cases.load(name, self.h, self.scale, self.data)


@dataclass(frozen=True)
class Part:
    """A table or figure: words of help, its own sets, what it measures of one set, how a result is shown and whether
    it holds, and the picture of a result, where there is one. repeats: of what it times, where none are asked for."""

    words: str
    sets: tuple[str, ...]
    measure: Callable[[str, Options], dict[str, Any]]
    show: Callable[[dict[str, Any]], Table]
    holds: Callable[[dict[str, Any]], bool]
    draw: Callable[[dict[str, Any], Path], None] | None = None
    repeats: int = 5


def spread(seconds: Sequence[float]) -> float:
    """The range of the middle half of some times over their median."""
    low, high = np.quantile(seconds, (0.25, 0.75))
    return float((high - low) / statistics.median(seconds))


def label(one: dict[str, Any]) -> str:
    """A set in a table: its name, shape and common columns."""
    common = f", h = {one['h']}" if one["h"] else ""
    return f"{one['set']} {one['n']}x{one['d']}{common}"


def measured(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The sets of a result that were measured."""
    return [one for one in result["sets"] if "error" not in one and "refused" not in one]


def failed(result: dict[str, Any]) -> bool:
    """Whether a set could not be measured though it is possible."""
    return any("error" in one for one in result["sets"])


def shown(result: dict[str, Any], words: str, heads: Sequence[str], left: int, rows: Sequence[Sequence[str]]) -> Table:
    """A table with ``left`` columns of words, and below it what is not in it and why."""
    notes = [words]
    for one in result["sets"]:
        if why := one.get("error") or one.get("refused"):
            notes.append(f"{one['set']}, h = {one['h']}: {'' if 'error' in one else 'not possible, '}{why}")
    made = Table(title=table.title(result), caption="\n".join(notes), caption_justify="left")
    for i, name in enumerate(heads):
        made.add_column(name, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made
