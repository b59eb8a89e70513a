"""The parts of the comparison by what the command line calls them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks import ladder_plot
from benchmarks.boostsvm import cases
from benchmarks.boostsvm.ablation import TABLE_3
from benchmarks.boostsvm.deciles import FIGURE_4
from benchmarks.boostsvm.fits import TABLE_2
from benchmarks.boostsvm.products import PRODUCTS, TABLE_4
from benchmarks.boostsvm.shapes import COMMON_COLUMNS, SHAPES
from benchmarks.boostsvm.shared import Options, Part
from benchmarks.boostsvm.squares import FIGURE_3
from benchmarks.boostsvm.validation import TABLE_5
from benchmarks.sets import MissingSetError

Result = dict[str, Any]
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


def words(kind: str) -> str:
    """The same in a line of help."""
    return "; ".join(f"{number}: {PARTS[f'{kind} {number}'].words}" for number in numbers(kind))


def asked_for(asked: argparse.Namespace) -> str:
    """The name of the part that is asked for."""
    return f"table {asked.table}" if asked.table else f"figure {asked.figure}" if asked.figure else "products"


def run(asked: argparse.Namespace, one_set: Callable[[Any, str, Any], Result]) -> Result:
    """What the part measures of each set and number of common columns. ``one_set`` calls the measurement with a set's
    name and options, and makes a record of an error. Raises MissingSetError where the part has not that set."""
    name = asked_for(asked)
    part, found = PARTS[name], []
    if asked.plot:
        ladder_plot.library()  # better missed now than after minutes of measuring
    options = Options(
        peers=tuple(asked.peers),
        data=asked.data,
        device=asked.device,
        repeats=part.repeats if asked.repeats is None else asked.repeats,
        scale=asked.scale,
        limit=asked.limit,
    )
    for one in asked.sets or [one for one in part.sets if asked.data or one not in cases.REAL]:
        if one not in part.sets:
            raise MissingSetError(f"{name} has no set {one!r}; there are {', '.join(part.sets)}")
        for h in asked.h if one in SHAPES else [0]:
            head = {"set": one, "h": h}
            if why := cases.refused(one, h):
                found.append(head | {"refused": why})
            else:
                found.append(one_set(part.measure, one, replace(options, h=h)) | head)
    used = [one["device"] for one in found if "device" in one]
    given = {"scale": options.scale, "repeats": options.repeats, "limit": options.limit}
    return {"device": next(iter(used), "none"), "part": name, **given, "sets": found}


def draw(asked: argparse.Namespace, result: Result) -> str | None:
    """The picture of a result where one is asked for, in words."""
    drawn = PARTS[result["part"]].draw
    if not asked.plot or drawn is None:
        return None
    drawn(result, asked.plot)
    return f"drawn to {asked.plot}"


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
