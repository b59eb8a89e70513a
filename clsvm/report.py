"""What a fit says of itself: how it ended, how good the result is, what it cost; and what it shows meanwhile."""

from __future__ import annotations

import contextlib
import enum
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import timedelta
from numbers import Integral, Real
from time import perf_counter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self


class Status(enum.Enum):
    """How a solver ended; the value explains it."""

    TOLERANCE = "converged: the KKT violation is within tol"
    GAP = "converged: the relative duality gap is within gap_tol"
    RESIDUAL = "converged: the residual is within tol"
    MAX_ITER = "not converged: max_iter was reached before the tolerance"
    MAX_TIME = "not converged: max_time was over before the tolerance was reached"
    INTERRUPTED = "not converged: it was interrupted before the tolerance was reached"
    STALLED = "not converged: no further progress at the precision of the kernel values"
    COARSE = "not converged: rounding in float32 can hide more than the tolerance, and the device has nothing finer"
    PRECISION = "not converged: rounding in float64 itself can hide more than the tolerance"

    @property
    def converged(self) -> bool:
        return self in (Status.TOLERANCE, Status.GAP, Status.RESIDUAL)


def relative_gap(primal: float, dual: float) -> float:
    """2 (p - d) / (p + d), the measure of GTSVM (Cotter, Srebro, Keshet 2011, section 6).

    Where p + d is not positive there is nothing to relate the gap to, and it is p - d itself. Infinite where the primal
    objective is not known.
    """
    if not math.isfinite(primal):
        return math.inf
    return 2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual


class Point(NamedTuple):
    """Where a solver stood at one moment.

    seconds: since the solver's start. steps: pair updates. outer: working sets. primal, dual, gap, violation: as in
    :class:`FitReport`, nan where they were not evaluated. rows: of the kernel matrix, computed so far.
    """

    seconds: float
    steps: int
    outer: int
    primal: float
    dual: float
    gap: float
    violation: float
    rows: int = 0


class Progress(Protocol):
    """Show a fit while it runs."""

    def __call__(self, point: Point) -> None:
        """Show where the solver stands."""

    def phase(self, words: str) -> None:
        """Show what the fit does until the next point: a part of it that has no points of its own."""


# The parts of GTSVM's figure 2 and the keys of ``FitReport.seconds`` that they sum; "other" is all the rest.
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "clustering": ("layout", "cluster"),
        "selection": ("select",),
        "gram": ("tile", "gram"),
        "subproblem": ("subproblem", "free"),
        "update": ("rows", "update"),
        "other": (),
    }
)


def by_part(seconds: Mapping[str, float], of: Mapping[str, tuple[str, ...]] = PARTS) -> dict[str, float]:
    """Return a report's seconds as parts, by default :data:`PARTS`, which sum to its "total", or to all seconds.

    Clustering is all that it takes to lay the rows out on the device; gram is K among the working set; update is kernel
    rows, computed or stored, and what they add to f. Source: Cotter, Srebro, Keshet 2011, figure 2.
    """
    parts = {part: sum(seconds.get(key, 0.0) for key in keys) for part, keys in of.items()}
    total = seconds.get("total", sum(seconds.values()))
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


class Record:
    """What the reports of all fits share: they are frozen dataclasses with ``seconds``, picklable, and JSON's.

    parts: of seconds, as :data:`PARTS`. curves: what falls until a fit converges, by its name in words: what a
    :class:`Point` of the trace calls it, and what the report does.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    curves: ClassVar[Mapping[str, tuple[str, str]]]
    status: str
    seconds: Mapping[str, float]
    trace: tuple[Point, ...]

    def __post_init__(self) -> None:
        for name, value in self._held():
            if isinstance(value, Mapping):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(dict(value) if isinstance(value, Mapping) else value for _, value in self._held())

    def to_dict(self) -> dict[str, Any]:
        """Return the record in JSON's types: ``trace`` a list of objects, numbers that are nan or infinite None."""
        return {name: _plain(value) for name, value in self._held()}

    def _held(self) -> list[tuple[str, Any]]:
        """Return the fields by name, in their order."""
        return [(one.name, getattr(self, one.name)) for one in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class FitReport(Record):
    """The record of one fit of a support vector machine; frozen and picklable.

    primal, dual: objectives as in GTSVM, equations 1 and 2; the dual is maximised, and equal at the optimum.
    gap: 2 (primal - dual) / (primal + dual), or primal - dual where their sum is not positive.
    violation: KKT violation, max over low of f minus min over up of f, float64 sums over kernel values in ``dtype``,
    re-evaluated in float64 where ``error_bound`` says that this could change it (``exact_rows`` rows were).
    error_bound: largest error of f that rounding of the kernel values can have caused.
    steps: pair updates. outer_steps: working sets. rows_computed: rows of the kernel matrix (values that are mirror
    images do not count).
    bytes_held: the most that was held on the device at a time. seconds: by part, with "total" (:func:`by_part`); of
    machines that are dealt to several devices a part is the mean of theirs.
    trace: a :class:`Point` for each time the host looked. selection: why working set and cache have their sizes.
    layout_costs: what the choice of the layout estimated, in dense cells a row, by layout; of all rows, where several
    problems are of some each. Empty for kernel values that are given.
    precision: how they were computed: in ``dtype``, or what precision="fast" made of it: a device's matrix units, or
    why it was float32 after all.
    """

    parts = PARTS
    curves = MappingProxyType({"relative duality gap": ("gap", "gap"), "KKT violation": ("violation", "violation")})
    primal: float
    dual: float
    gap: float
    violation: float
    error_bound: float
    exact_rows: int
    status: str
    converged: bool
    steps: int
    outer_steps: int
    rows_computed: int
    bytes_held: int
    seconds: Mapping[str, float]
    device: str
    layout: str
    working_set_size: int
    dtype: str
    trace: tuple[Point, ...] = ()
    selection: str = ""
    layout_costs: Mapping[str, float] = field(default_factory=dict)
    precision: str = "float32"

    def __str__(self) -> str:
        gap = f"{self.gap:.3g}" if math.isfinite(self.gap) else str(self.gap)
        return (
            f"{self.status}; primal {self.primal:.9g}, dual {self.dual:.9g}, gap {gap}, "
            f"violation {self.violation:.3g}, {self.steps} steps, {self.rows_computed} rows, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )


@dataclass(frozen=True)
class NystromReport(Record):
    """The record of one fit of a machine on centres; frozen and picklable.

    objective: (1 / sum w) sum w l(f, y) + (penalty / 2) |f|^2. residual: the gradient's size over that at 0, in
    coordinates in which the Hessian is near the identity (:mod:`clsvm.nystrom.newton`): at most tol where it converged;
    sums in wide numbers of kernel values in ``dtype``.
    bound: the objective is above its least, over the span of the centres kept, by no more. It holds whether the fit
    converged or not, with what rounding in ``dtype`` can hide. Of several outputs the residual is the largest of
    theirs, and the bound the sum.
    steps: of conjugate gradients, a pass over all rows each. newton_steps: how often the gradient was computed anew.
    passes: over the rows, altogether. centers: how many there are, and why. sample: rows of which the preconditioner is
    made. rank: of K among the centres, by float64: coefficients of the others are 0. condition: at least so large is
    that of K among these; jitter: what its diagonal got.
    bytes_held: the most that was held on the device at a time. seconds: by part, with "total". layout: where rows and
    kernel values were, and why. factors: where those of the preconditioner were made, and why. trace: a :class:`Point`
    for each gradient, whose violation is the residual.
    """

    parts = MappingProxyType({name: (name,) for name in ("layout", "preconditioner", "solve")} | {"other": ()})
    curves = MappingProxyType({"residual": ("violation", "residual")})
    objective: float
    residual: float
    bound: float
    status: str
    converged: bool
    steps: int
    newton_steps: int
    passes: int
    centers: str
    sample: int
    condition: float
    jitter: float
    rank: int
    bytes_held: int
    seconds: Mapping[str, float]
    device: str
    layout: str
    factors: str
    dtype: str
    trace: tuple[Point, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.status}; objective {self.objective:.9g}, residual {self.residual:.3g}, {self.steps} steps, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )


def _plain(value: Any) -> Any:
    match value:
        case bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case Point():
            return _plain(value._asdict())
        case tuple():
            return [_plain(item) for item in value]
    raise TypeError(f"got {value!r}, expected a number, words, or a tuple or mapping of such")


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
