"""The progress display of a fit: one line on stderr, where that is a terminal."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

from clsvm.report import Point


class Course:
    """A value on its way down to a goal, on a logarithmic scale; its ups are passed over."""

    def __init__(self, goal: float) -> None:
        self._goal, self._start = goal, 0.0
        self._seen: deque[tuple[float, float]] = deque()  # seconds, log(least value so far / goal)

    def add(self, seconds: float, value: float) -> Self:
        """Take note of a value at a time; nan and infinity say nothing."""
        if math.isfinite(value):
            level = math.log(max(value / self._goal, 1.0))
            self._start = self._start if self._seen else level
            self._seen.append((seconds, min(level, self._seen[-1][1]) if self._seen else level))
            while len(self._seen) > 2 and self._seen[1][0] <= seconds / 2:
                self._seen.popleft()
        return self

    @property
    def done(self) -> float:
        """The share of the way that lies behind, in 0..1."""
        if not self._seen:
            return 0.0
        return 1 - self._seen[-1][1] / self._start if self._start else 1.0

    @property
    def left(self) -> float | None:
        """Seconds to the goal at the slope of the second half of the time; None while there is no slope."""
        if not self._seen:
            return None
        (before, above), (now, level) = self._seen[0], self._seen[-1]
        if not level:
            return 0.0
        return level * (now - before) / (above - level) if above > level else None


class Display:
    """A context manager: what it gives takes the solver's points and shows them; None where nothing is to be shown.

    wanted: whether to show anything; only a terminal is shown it. The bar goes, on a logarithmic scale, from the first
    gap to ``gap_tol``, or without one from the first violation to ``tol``.
    """

    def __init__(self, wanted: Any, tol: float, gap_tol: float | None = None) -> None:
        self._on, self._name = bool(wanted) and sys.stderr.isatty(), "violation" if gap_tol is None else "gap"
        self._course = Course(tol if gap_tol is None else gap_tol)
        self._progress: Any = None

    def __enter__(self) -> Callable[[Point], None] | None:
        if not self._on:
            return None
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = BarColumn(bar_width=16), TextColumn("{task.fields[words]}"), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        task = self._progress.add_task("", total=1.0, words="training")
        self._progress.start()

        value = math.nan

        def show(point: Point) -> None:
            nonlocal value
            seen = getattr(point, self._name)
            value = seen if math.isfinite(seen) else value
            self._course.add(point.seconds, seen)
            self._progress.update(task, completed=self._course.done, words=self._words(point, value))

        return show

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _words(self, point: Point, value: float) -> str:
        speed = point.rows / point.seconds if point.seconds > 0 else 0.0
        left = self._course.left
        time = "-" if left is None or left > 1e6 else timedelta(seconds=math.ceil(left))
        return f"{self._name} {value:.2g}, {point.steps} steps, {speed:.0f} rows/s, {time} left"
