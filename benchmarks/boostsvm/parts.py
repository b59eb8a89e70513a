"""The parts of the comparison by what the command line calls them."""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks import command
from benchmarks.boostsvm import cases
from benchmarks.boostsvm.ablation import TABLE_3
from benchmarks.boostsvm.deciles import FIGURE_4
from benchmarks.boostsvm.fits import TABLE_2
from benchmarks.boostsvm.products import PRODUCTS, TABLE_4
from benchmarks.boostsvm.shapes import COMMON_COLUMNS, SHAPES
from benchmarks.boostsvm.shared import Options, Part
from benchmarks.boostsvm.squares import FIGURE_3
from benchmarks.boostsvm.validation import TABLE_5
from benchmarks.command import Asked, Command, Parser, Result, add_peers, add_plot, add_sets, can_draw, drawn
from benchmarks.sets import MissingSetError, add_data

PARTS: dict[str, Part] = {
    "products": PRODUCTS,
    "table 2": TABLE_2,
    "table 3": TABLE_3,
    "table 4": TABLE_4,
    "table 5": TABLE_5,
    "figure 3": FIGURE_3,
    "figure 4": FIGURE_4,
}


def numbers(kind: str) -> tuple[int, ...]:
    """The numbers that there are of tables or figures."""
    return tuple(int(name.split()[1]) for name in PARTS if name.startswith(kind))


def words_of(kind: str) -> str:
    """The same in a line of help."""
    return "; ".join(f"{number}: {PARTS[f'{kind} {number}'].words}" for number in numbers(kind))


def asked_for(asked: Asked) -> str:
    """The name of the part that is asked for."""
    return f"table {asked.table}" if asked.table else f"figure {asked.figure}" if asked.figure else "products"


def run(asked: Asked) -> Result:
    """What the part measures of each set and number of common columns. Raises MissingSetError where the part has not
    that set."""
    name = asked_for(asked)
    part, found = PARTS[name], []
    can_draw(asked)
    options = Options(
        peers=tuple(asked.peers),
        data=asked.data,
        device=asked.device,
        repeats=part.repeats if asked.repeats is None else asked.repeats,
        scale=asked.scale,
        limit=asked.limit,
    )
    random = [f"{cases.RANDOM}{asked.seed + i}" for i in range(asked.random)]
    usual = [] if random else [one for one in part.sets if asked.data or one not in cases.REAL]
    for one in [*(asked.sets or usual), *random]:
        if one not in (*part.sets, *random):
            raise MissingSetError(f"{name} has no set {one!r}; there are {', '.join(part.sets)}")
        for h in asked.h if one in SHAPES else [0]:
            head = {"set": one, "h": h}
            if why := cases.refused(one, h):
                found.append(head | {"refused": why})
            else:
                found.append(command.in_own_process(part.measure, one, replace(options, h=h)) | head)
    used = [one["device"] for one in found if "device" in one]
    given = {"scale": options.scale, "repeats": options.repeats, "limit": options.limit}
    return {"device": next(iter(used), "none"), "part": name, **given, "sets": found}


def whole_numbers(text: str) -> list[int]:
    """An argparse type: values of h, separated by commas."""
    known = ", ".join(map(str, COMMON_COLUMNS))
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as {known}, got {text!r}") from None
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"expected numbers of columns, got {text!r}")
    return found


def _arguments(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--table", type=int, choices=numbers("table"), help=words_of("table"))
    which.add_argument("--figure", type=int, choices=numbers("figure"), help=words_of("figure"))
    which.add_argument("--products", action="store_true", help=PARTS["products"].words)
    add_sets(parser, cases.SETS, None, "; all that the part has")
    words = f"columns of density 0.74 in a synthetic set ({','.join(map(str, COMMON_COLUMNS))})"
    parser.add_argument("--h", type=whole_numbers, default=list(COMMON_COLUMNS), help=words)
    words = "N sets besides, or alone, of shapes that are drawn by the seeds from --seed on"
    parser.add_argument("--random", type=int, default=0, metavar="N", help=words)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first of these seeds (0)")
    add_peers(parser)
    words = "runs of each product after the first (5); fits of each solver, the cold one included (3)"
    parser.add_argument("--repeats", type=int, help=words)
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="divide the rows of every set by N (1)")
    words = "seconds after which a fit is ended; 0: never (120)"
    parser.add_argument("--limit", type=float, default=120, metavar="S", help=words)
    add_plot(parser, "a picture of a figure")
    add_data(parser, "none needed for synthetic sets")


COMMAND = Command(
    "boostsvm",
    "the tables and figures of BoostSVM's paper, and the choice of a layout",
    _arguments,
    run,
    lambda result: PARTS[result["part"]].show(result),
    lambda result: PARTS[result["part"]].holds(result),
    after=lambda asked, result: drawn(PARTS[result["part"]].draw, asked, result),
)
