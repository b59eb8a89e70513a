"""What is shown of a long fit or prediction: a line on stderr that changes or, where that is no terminal, a few."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import timedelta
from time import perf_counter
from typing import Any, Self

from clsvm.report.status import Point

EVERY = 10.0  # seconds between lines where stderr is no terminal
SOON = 1.0  # seconds: what takes no longer has no bar
_label: ContextVar[str] = ContextVar("label", default="")


@contextlib.contextmanager
def labelled(words: str) -> Iterator[None]:
    """Begin all that is shown inside with ``words``, such as "fold 2 of 5"."""
    token = _label.set(words)
    try:
        yield
    finally:
        _label.reset(token)


class Course:
    """A value on its way down to a goal, on a logarithmic scale.

    Its trend is the line of least squares through the second half of the time: the value itself goes up and down on its
    way. Where the trend has passed the goal and the value has not, what is left is the way of the value at that slope.
    """

    def __init__(self, goal: float) -> None:
        self._goal, self._start = goal, 0.0
        self._seen: deque[tuple[float, float]] = deque()  # seconds, log(value / goal) or 0 below the goal
        self._sums = [0.0, 0.0, 0.0, 0.0]  # over them: seconds, levels, seconds^2, seconds * levels
        self.done = 0.0  # the share of the way that lies behind, in 0..1, which never falls

    def add(self, seconds: float, value: float) -> Self:
        """Take note of a value at a time; nan and infinity say nothing."""
        if not math.isfinite(value):
            return self
        level = math.log(max(value / self._goal, 1.0))
        self._start = self._start if self._seen else level
        self._seen.append((seconds, level))
        self._count(seconds, level, 1)
        while len(self._seen) > 2 and self._seen[0][0] < seconds / 2:
            self._count(*self._seen.popleft(), -1)
        _, rest = self._trend()
        self.done = max(self.done, 1 - max(rest, 0.0) / self._start) if self._start else 1.0
        return self

    @property
    def left(self) -> float | None:
        """Return the seconds to the goal; None while there is no slope."""
        slope, rest = self._trend()
        if self._seen and not rest:
            return 0.0
        return rest / slope if slope > 0 else None

    def _count(self, seconds: float, level: float, sign: int) -> None:
        for i, term in enumerate((seconds, level, seconds * seconds, seconds * level)):
            self._sums[i] += sign * term

    def _trend(self) -> tuple[float, float]:
        """Return how fast the levels fall, 0 where that cannot be said, and what is left of them."""
        n, (t, y, tt, ty) = len(self._seen), self._sums
        if not n:
            return 0.0, 0.0
        now, level = self._seen[-1]
        spread = tt - t * t / n
        slope = (t * y / n - ty) / spread if spread > 1e-9 * tt else 0.0
        trend = y / n - slope * (now - t / n)
        return slope, trend if level and slope > 0 and trend > 0 else level


class Display:
    """A context manager: what it gives is called with the solver's points and shows them; None where nothing is wanted.

    On a terminal that is a bar, which goes on a logarithmic scale from the first gap to ``gap_tol``, or without one
    from the first violation to ``tol``. Elsewhere it is a line every ten seconds, and one at the end. violation: what
    it is called.
    """

    def __init__(self, wanted: Any, tol: float, gap_tol: float | None = None, violation: str = "violation") -> None:
        self._on, self._field = bool(wanted), "violation" if gap_tol is None else "gap"
        self._name = violation if gap_tol is None else "gap"
        self._course = Course(tol if gap_tol is None else gap_tol)
        self._label = f"{label}: " if (label := _label.get()) else ""
        self._value, self._last = math.nan, ""
        self._bar: Callable[[str, float], None] | None = None
        self._open = contextlib.ExitStack()
        self._began = self._said = perf_counter()

    def __enter__(self) -> Self | None:
        if not self._on:
            return None
        if sys.stderr.isatty():
            self._bar = self._open.enter_context(progress_bar())
            self.phase("training")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        if self._on and self._bar is None and self._last:
            self._say(f"{self._last}, {perf_counter() - self._began:.1f} s")

    def __call__(self, point: Point) -> None:
        """Show where the solver stands."""
        seen = getattr(point, self._field)
        self._value = seen if math.isfinite(seen) else self._value
        self._course.add(point.seconds, seen)
        speed = point.rows / point.seconds if point.seconds > 0 else 0.0
        self._last = f"{self._name} {self._value:.2g}, {point.steps} steps, {speed:.0f} rows/s"
        left = self._course.left
        time = "-" if left is None or left > 1e6 else timedelta(seconds=math.ceil(left))
        self.phase(f"{time} left, {self._last}")

    def phase(self, words: str) -> None:
        """Show what the fit does now, until the next point: a part of it that has no points of its own."""
        if self._bar is not None:
            self._bar(f"{self._label}{words}", self._course.done)
        elif perf_counter() - self._said >= EVERY:
            self._say(words)

    def _say(self, words: str) -> None:
        self._said = perf_counter()
        print(f"clsvm: {self._label}{words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counting(words: str, total: int, begun: int = 0, lines: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of things done, of ``total``, which a terminal shows after a moment.

    words: what is shown, with {done}, {total} and the time that is {left}. begun: how many were done before. lines:
    whether there is a line every ten seconds and one at the end where stderr is no terminal.
    """
    began = said = perf_counter()
    shown, terminal = "", sys.stderr.isatty()
    with contextlib.ExitStack() as stack:
        bar: Callable[[str, float], None] | None = None

        def done(count: int) -> None:
            nonlocal bar, said, shown
            now = perf_counter()
            left = timedelta(seconds=math.ceil((now - began) * (total - count) / max(count - begun, 1)))
            shown = words.format(done=count, total=total, left=left)
            if bar is None and terminal and now - began > SOON:
                bar = stack.enter_context(progress_bar())
            if bar is not None:
                bar(shown, count / total)
            elif lines and not terminal and now - said >= EVERY:
                print(shown, file=sys.stderr, flush=True)
                said = now

        yield done
    if lines and not terminal:
        print(shown, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Yield a function to call with words and the share that is done, for a line on stderr that goes at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    rest = Column(ratio=1, no_wrap=True)  # of a narrow terminal the words alone are cut
    columns = BarColumn(16), TimeElapsedColumn(), TextColumn("{task.fields[words]}", markup=False, table_column=rest)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task("", total=1.0, words="")
        yield lambda words, share: progress.update(task, completed=share, words=words)
