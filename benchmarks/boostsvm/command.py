"""The parts of the comparison by what the command line calls them."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks import command
from benchmarks.boostsvm import cases, fits, products
from benchmarks.command import DATA, PLOT, Asked, Command, Part, chosen, number, option, peers, several
from benchmarks.table import Row

SPARSE = tuple(name for name in cases.SETS if name not in ("letter", "gisette"))  # (these have no zeros to speak of)


def which(given: Row) -> str:
    """Return the name of the part that options ask for, or whose result it is."""
    for kind in ("table", "figure"):
        if given.get(kind):
            return f"{kind} {given[kind]}"
    return str(given.get("part", "products"))


def over_sets(
    measure: Callable[[str, Asked], Row], known: tuple[str, ...] = cases.SETS, repeats: int = 5
) -> Callable[[Asked], Row]:
    """Return what measures each set and number of common columns; it raises MissingSetError where it has not that set.

    repeats: of what it times, where none are asked for.
    """

    def every(asked: Asked) -> Row:
        name, found = which(vars(asked)), []
        asked.repeats = asked.repeats or repeats
        random = [f"{cases.RANDOM}{asked.seed + i}" for i in range(asked.random)]
        usual = [] if random else [one for one in known if asked.data or one not in cases.REAL]
        for one in [*chosen(name, asked.sets or usual, known), *random]:
            for h in asked.h if one in cases.SHAPES else [0]:
                head = {"set": one, "h": h}
                if why := cases.refused(one, h):
                    found.append(head | {"refused": why})
                else:
                    own = argparse.Namespace(**{**vars(asked), "h": h})
                    found.append(command.in_own_process(measure, one, own) | head)
        given = {"scale": asked.scale, "repeats": asked.repeats, "limit": asked.limit}
        return {"part": name, **given, "sets": found}

    return every


def _whole_numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


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
    {
        "products": Part(over_sets(products.measure), products.show, products.holds),
        "table 2": Part(over_sets(fits.measure, repeats=3), fits.show, fits.holds),
        "table 3": Part(
            over_sets(products.measure_variants, SPARSE, 3), products.show_variants, products.variants_hold
        ),
        "table 4": Part(over_sets(products.measure), products.show_rates, products.right),
        "table 5": Part(over_sets(fits.measure_folds), fits.show_folds, fits.holds),
        "figure 3": Part(
            over_sets(products.measure_squares, products.SIZES), products.show_squares, products.right,
            products.draw_squares,
        ),
        "figure 4": Part(
            over_sets(products.measure_columns), products.show_columns, products.columns_hold, products.draw_columns
        ),
    },
    which,
)  # fmt: skip
