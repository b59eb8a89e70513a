"""How many fits of a search are done, shown while it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import perf_counter

_SHOW_EVERY = 10.0  # seconds between two lines about what is done, where there is no terminal


@contextlib.contextmanager
def shown_fits(wanted: bool, begun: int, total: int) -> Iterator[Callable[[int], None]]:
    """What shows how many fits are done, of which ``begun`` were before: a bar on a terminal, elsewhere a line every
    few seconds and one at the end."""
    if not wanted:
        yield lambda done: None
        return
    started = shown = perf_counter()
    words = ""

    def said(done: int) -> str:
        nonlocal words
        left = (total - done) * (perf_counter() - started) / max(1, done - begun)
        words = f"{done} of {total} fits, {timedelta(seconds=round(left))} left"
        return words

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = BarColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(f"0 of {total} fits", total=total)
            yield lambda done: progress.update(task, completed=done, description=said(done))
        return

    def line(done: int) -> None:
        nonlocal shown
        said(done)
        if perf_counter() - shown >= _SHOW_EVERY:
            print(words, file=sys.stderr, flush=True)
            shown = perf_counter()

    yield line
    print(words, file=sys.stderr, flush=True)
