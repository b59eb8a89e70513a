"""The studies as records: what each measures, how it is shown and drawn, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.falkon_studies import ablation, curves, features, growth, table5
from benchmarks.falkon_studies.shared import Options

Result = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """One study. words: a line of help. draw: the picture of a result, where there is one."""

    words: str
    measure: Callable[[Options], Result]
    show: Callable[[Result], Table]
    holds: Callable[[Result], bool]
    draw: Callable[[Result, Path], None] | None = None


STUDIES = {
    "table5": Study("seconds and errors beside SVC and LIBSVM", table5.run, table5.show, table5.holds),
    "ablation": Study("what each part gains, from NumPy on", ablation.run, ablation.show, ablation.holds),
    "features": Study(
        "the product beside KeOps over features", features.run, features.show, features.holds, features.draw
    ),
    "growth": Study("a step over the rows", growth.run, growth.show, growth.holds, growth.draw),
    "curves": Study("errors over seconds, SVMs and Falkon", curves.run, curves.show, curves.holds, curves.draw),
}
SETS = tuple(dict.fromkeys((*table5.WIDE_SETS, *ablation.TWO_CLASSES, *curves.CURVE_SETS)))
