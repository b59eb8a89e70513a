"""What the commands share: a command as a record, sets in processes of their own, arguments that several take."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ladder_plot
from clsvm.opencl import devices

PEERS = ("libsvm", "onedal")
Asked = argparse.Namespace
Parser = argparse.ArgumentParser
Result = dict[str, Any]


@dataclass(frozen=True)
class Command:
    """One benchmark. help: a line. arguments: what it adds to its parser, beside --device and --out. measure: the
    figures, and the device that they are of. show: what the terminal draws. page: the same in a page; None: as there.
    holds: whether all of ours is as it should be. after: what is left to do with a result, and words about it."""

    name: str
    help: str
    arguments: Callable[[Parser], object]
    measure: Callable[[Asked], Result]
    show: Callable[[Result], Any]
    holds: Callable[[Result], bool]
    page: Callable[[Result], Any] | None = None
    after: Callable[[Asked, Result], str | None] = lambda asked, result: None


def in_own_process(measure: Callable[[str, Any], dict[str, Any]], name: str, options: Any) -> dict[str, Any]:
    """One set in a fresh process: its first fit is cold, and its memory goes back. A set that fails says why."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, name, options).result()
        except Exception as error:
            return {"set": name, "n": 0, "d": 0, "error": f"{type(error).__name__}: {error}"}


def names(known: tuple[str, ...]) -> Any:
    """An argparse type: a comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name {name!r}; there are {', '.join(known)}")
        return found

    return parse


def add_sets(parser: Parser, known: tuple[str, ...], default: list[str] | None, words: str = "") -> None:
    """--sets, a list of those that are known."""
    parser.add_argument("--sets", type=names(known), default=default, help=f"of {', '.join(known)}{words}")


def add_peers(parser: Parser, known: tuple[str, ...] = PEERS, default: tuple[str, ...] = (), words: str = "") -> None:
    """--peers, a list of those that are known."""
    parser.add_argument("--peers", type=names(known), default=list(default), help=f"of {', '.join(known)}{words}")


def add_repeats(parser: Parser, default: int, words: str) -> None:
    """--repeats of what the words name."""
    parser.add_argument("--repeats", type=int, default=default, help=f"{words}, the cold one included ({default})")


def add_plot(parser: Parser, words: str = "a picture to draw") -> None:
    """--plot, a file."""
    parser.add_argument("--plot", type=Path, help=f"{words}, .png; needs matplotlib")


def can_draw(asked: Asked) -> None:
    """Raises SystemExit where a picture is asked for that nothing can draw: better missed now than after minutes."""
    if asked.plot:
        ladder_plot.library()


def drawn(draw: Callable[[Result, Path], None] | None, asked: Asked, result: Result) -> str | None:
    """The picture of a result where one is asked for, in words."""
    if not asked.plot or draw is None:
        return None
    draw(result, asked.plot)
    return f"drawn to {asked.plot}"


def on_device(asked: Asked, found: Result) -> Result:
    """What was found, and the device that was asked for."""
    return {"device": str(devices.find(asked.device))} | found


def rows_of(result: Result) -> list[dict[str, Any]]:
    """The rows of all sets of a result."""
    return [row for one in result["sets"] for row in one.get("rows", [])]
