"""The studies as records: what each measures, how it is shown and drawn, and whether it holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.command import (
    Asked,
    Command,
    Parser,
    Result,
    add_peers,
    add_plot,
    add_sets,
    can_draw,
    drawn,
    on_device,
)
from benchmarks.falkon_studies import ablation, curves, features, growth, table5
from benchmarks.falkon_studies.shared import Options
from benchmarks.sets import add_data


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
PEERS = ("keops", "libsvm")


def _arguments(parser: Parser) -> None:
    words = "; ".join(f"{name}: {one.words}" for name, one in STUDIES.items())
    parser.add_argument("study", choices=tuple(STUDIES), help=words)
    add_sets(parser, SETS, None, "; the study's own")
    add_peers(parser, PEERS, PEERS, " (all)")
    parser.add_argument("--centers", type=int, help="m, the largest of them in curves (the study's own, mostly 2000)")
    parser.add_argument("--rows", type=int, help="n at most, the largest of them in growth (the study's own)")
    parser.add_argument("--libsvm-rows", type=int, default=5000, help="that LIBSVM is fitted on, table5 (5000)")
    parser.add_argument(
        "--limit", type=float, default=60, metavar="S", help="of a fit or a pass, curves, features (60)"
    )
    parser.add_argument("--memory-limit", default="400MB", help="of the device in growth (400MB)")
    parser.add_argument("--repeats", type=int, default=3, help="of a product in features, after the cold one (3)")
    add_plot(parser)
    add_data(parser, "none needed for synthetic, features and growth")


def _measure(asked: Asked) -> Result:
    can_draw(asked)
    given = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Options)}
    measured = STUDIES[asked.study].measure(Options(**given))
    return on_device(asked, {"study": asked.study} | measured)


COMMAND = Command(
    "study",
    "studies of machines on centres: beside SVMs and KeOps, what each part gains, growth with the rows",
    _arguments,
    _measure,
    lambda result: STUDIES[result["study"]].show(result),
    lambda result: STUDIES[result["study"]].holds(result),
    after=lambda asked, result: drawn(STUDIES[result["study"]].draw, asked, result),
)
