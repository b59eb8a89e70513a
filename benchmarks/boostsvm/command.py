"""The parts of the comparison by what the command line calls them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import command
from benchmarks.boostsvm import cases, fits, products
from benchmarks.command import DATA, PLOT, Asked, Command, number, option, peers, several
from benchmarks.sets import MissingSetError
from benchmarks.table import Row, Shown


@dataclass(frozen=True)
class Part:
    """A table or figure: what it measures of one set, how it is shown, whether it holds, its sets, its picture.

    repeats: of what it times, where none are asked for.
    """

    measure: Callable[[str, Asked], Row]
    show: Callable[[Row], Shown]
    holds: Callable[[Row], bool]
    sets: tuple[str, ...] = cases.SETS
    repeats: int = 5
    draw: Callable[[Row, Path], None] | None = None


SPARSE = tuple(name for name in cases.SETS if name not in ("letter", "gisette"))  # (these have no zeros to speak of)
PARTS: dict[str, Part] = {
    "products": Part(products.measure, products.show, products.holds),
    "table 2": Part(fits.measure, fits.show, fits.holds, repeats=3),
    "table 3": Part(products.measure_variants, products.show_variants, products.variants_hold, SPARSE, 3),
    "table 4": Part(products.measure, products.show_rates, products.right),
    "table 5": Part(fits.measure_folds, fits.show_folds, fits.holds),
    "figure 3": Part(
        products.measure_squares, products.show_squares, products.right, products.SIZES, draw=products.draw_squares
    ),
    "figure 4": Part(
        products.measure_columns, products.show_columns, products.columns_hold, draw=products.draw_columns
    ),
}


def measure(asked: Asked) -> Row:
    """Measure a part of each set and number of common columns; raise MissingSetError where it has not that set."""
    name = f"table {asked.table}" if asked.table else f"figure {asked.figure}" if asked.figure else "products"
    part, found = PARTS[name], []
    asked.repeats = asked.repeats or part.repeats
    random = [f"{cases.RANDOM}{asked.seed + i}" for i in range(asked.random)]
    usual = [] if random else [one for one in part.sets if asked.data or one not in cases.REAL]
    for one in [*(asked.sets or usual), *random]:
        if one not in (*part.sets, *random):
            raise MissingSetError(f"{name} has no set {one!r}; there are {', '.join(part.sets)}")
        for h in asked.h if one in cases.SHAPES else [0]:
            head = {"set": one, "h": h}
            if why := cases.refused(one, h):
                found.append(head | {"refused": why})
            else:
                own = argparse.Namespace(**{**vars(asked), "h": h})
                found.append(command.in_own_process(part.measure, one, own) | head)
    given = {"scale": asked.scale, "repeats": asked.repeats, "limit": asked.limit}
    return {"part": name, **given, "sets": found}


def _whole_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _draw(result: Row, path: Path) -> None:
    if draw := PARTS[result["part"]].draw:
        draw(result, path)


COMMAND = Command(
    "boostsvm",
    "the tables and figures of BoostSVM's paper, and the choice of a layout",
    (
        option("--table", type=int, choices=(2, 3, 4, 5), help="2: fits, 3: order and partition, 4: rates, 5: folds"),
        option("--figure", type=int, choices=(3, 4), help="3: square matrices, 4: density over the columns"),
        option("--products", action="store_true", help="products in every layout, and the choice"),
        several("--sets", (*cases.SETS, *products.SIZES), None, "; all that the part has"),
        option("--h", type=_whole_numbers, default=[0, 100, 1000], help="columns of density 0.74 in synthetic sets"),
        number("--random", 0, "sets besides, or alone, of shapes that are drawn by seeds"),
        number("--seed", 0, "the first of these seeds"), peers(),
        number("--repeats", None, "runs of each product after the first; fits of each solver"),
        number("--scale", 1, "divide the rows of every set"),
        number("--limit", 120.0, "seconds after which a fit is ended; 0: never"), PLOT, DATA,
    ),
    measure,
    lambda result: PARTS[result["part"]].show(result),
    lambda result: PARTS[result["part"]].holds(result),
    _draw,
)  # fmt: skip
