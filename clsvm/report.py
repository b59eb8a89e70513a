"""Define the report of a fit and the display of its progress.

:class:`FitReport` (SVMs) and :class:`NystromReport` (Nyström kernel machines) say how a fit ended, how accurate its
result is, and which time and memory it took. :class:`Display` and :func:`counting` show progress on stderr.
"""

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
from typing import Any, ClassVar, NamedTuple, Self


class Status(enum.Enum):
    """Name the ways in which a solve can end; each value is the text for the report."""

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
    """Return the relative duality gap 2 * (p - d) / (p + d) of the primal objective p and the dual objective d.

    Return p - d if p + d is not positive, and infinity if p is not finite. Source: GTSVM (Cotter, Srebro, Keshet 2011),
    section 6.
    """
    if not math.isfinite(primal):
        return math.inf
    return 2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual


class Point(NamedTuple):
    """Hold the state of a solver at one convergence check.

    Attributes
    ----------
    seconds : float
        Time since the solver's start.
    steps : int
        SMO iterations so far.
    outer : int
        Outer iterations (working sets) so far.
    primal, dual, gap, violation : float
        Objectives, relative duality gap and KKT violation, as in :class:`FitReport`; nan if not evaluated.
    rows : int
        Rows of the kernel matrix computed so far.
    """

    seconds: float
    steps: int
    outer: int
    primal: float
    dual: float
    gap: float
    violation: float
    rows: int = 0


# Part of a fit in GTSVM's figure 2 -> keys of ``FitReport.seconds`` whose sum is its time; "other" has all other time.
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
    """Sum a report's seconds into the parts of a fit that GTSVM's figure 2 shows (:data:`PARTS`).

    The parts add up to the report's "total":

        "clustering"  laying the rows out on the device
        "selection"   choosing working sets
        "gram"        computing the kernel matrix of the working set
        "subproblem"  solving the dual over the working set, and Newton steps
        "update"      computing kernel rows and their products with the changed coefficients
        "other"       all other seconds

    Source: Cotter, Srebro, Keshet 2011, figure 2.
    """
    parts = {part: sum(seconds.get(key, 0.0) for key in keys) for part, keys in of.items()}
    total = seconds.get("total", sum(seconds.values()))
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


class Record:
    """Let its subclasses, the frozen dataclasses of reports, be pickled and converted to JSON.

    Attributes
    ----------
    parts
        name of a part of the fit -> keys of ``seconds``. Their sum is the part's time (:data:`PARTS`).
    curves
        name -> (field of :class:`Point`, field of the report), for quantities that fall until a fit converges. Plots
        read the first field at each point of ``trace``, or the second field if there is no trace.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    curves: ClassVar[Mapping[str, tuple[str, str]]]
    status: str
    seconds: Mapping[str, float]
    trace: tuple[Point, ...]

    def __post_init__(self) -> None:
        for name, value in self._items():
            if isinstance(value, Mapping):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(dict(value) if isinstance(value, Mapping) else value for _, value in self._items())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON's types; numbers that are nan or infinite become None."""
        return {name: _plain(value) for name, value in self._items()}

    def _items(self) -> list[tuple[str, Any]]:
        """Return the fields as (name, value), in their order."""
        return [(one.name, getattr(self, one.name)) for one in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class FitReport(Record):
    """Report of one fit of a support vector machine. It is frozen and can be pickled.

    If the fit has several binary problems, objectives and counts are sums over the problems. ``violation`` is then the
    largest of their violations.

    Attributes
    ----------
    primal, dual : float
        Objectives as in GTSVM, equations 1 and 2. The dual is maximised; both are equal at the optimum.
    gap : float
        Relative duality gap 2 (primal - dual) / (primal + dual); primal - dual if their sum is not positive.
    violation : float
        KKT violation: the largest gradient f among rows whose coefficient can fall, less the smallest among rows whose
        coefficient can rise. Kernel values are in ``dtype``, sums in float64; where ``error_bound`` could change the
        outcome, kernel values were computed again in float64.
    error_bound : float
        Largest error of f that rounding of the kernel values can have caused.
    exact_rows : int
        Number of rows whose f was computed again in float64.
    status : str
        How the fit ended, in words.
    converged : bool
        Whether the requested tolerance was reached.
    steps : int
        SMO iterations.
    outer_steps : int
        Outer iterations; each solves the dual over one working set.
    rows_computed : int
        Rows of the kernel matrix that were computed; values copied by symmetry do not count.
    bytes_held : int
        Largest number of bytes allocated on a device at a time.
    seconds : mapping of str to float
        Seconds by part of the fit, with "total"; see :func:`by_part`. Seconds of several devices are averaged.
    device : str
        Name of the device.
    layout : str
        Layout of the rows on the device, and why it was chosen.
    working_set_size : int
        Rows of a working set.
    dtype : str
        Dtype of kernel values, "float32" or "float64".
    trace : tuple of :class:`Point`
        State at each convergence check, for a fit of one problem.
    selection : str
        Why working set and row cache have their sizes. If a fit has several problems, how many each solver took.
    layout_costs : mapping of str to float
        Estimated cost of a kernel value in each layout, in units of a multiply-add of a dense row; empty for
        precomputed kernels.
    precision : str
        How kernel values were computed. If ``precision="fast"`` did not apply, also why not.
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
        return (
            f"{self.status}; primal {self.primal:.9g}, dual {self.dual:.9g}, gap {self.gap:.3g}, "
            f"violation {self.violation:.3g}, {self.steps} steps, {self.rows_computed} rows, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )


@dataclass(frozen=True)
class NystromReport(Record):
    """Report of one fit of a Nyström kernel machine. It is frozen and can be pickled.

    Attributes
    ----------
    objective : float
        (1 / sum_i w_i) * sum_i w_i l(f_i, y_i) + (penalty / 2) * |f|^2 for sample weights w, loss l and targets y.
    residual : float
        Norm of the gradient over its norm at coefficients 0, in preconditioned coordinates
        (:mod:`clsvm.nystrom.newton`); at most tol if the fit converged. With several outputs, the largest residual of
        an output.
    bound : float
        Upper bound of the objective less its minimum over the span of the inducing points in use. The bound counts the
        rounding errors in ``dtype``, and is valid whether or not the fit converged. Several outputs add their bounds.
    status : str
        How the fit ended, in words.
    converged : bool
        Whether the requested tolerance was reached.
    steps : int
        Conjugate gradient steps.
    newton_steps : int
        Newton steps.
    passes : int
        Passes over all rows.
    centers : str
        Number of inducing points, and the reason for this number.
    sample : int
        Rows from which the preconditioner was made.
    condition : float
        Lower bound of the condition number of K among the inducing points in use.
    jitter : float
        Number that was added to the diagonal of K among the inducing points.
    rank : int
        Number of inducing points in use: the numerical rank of K among all of them. The others have the coefficient 0.
    bytes_held : int
        Largest number of bytes allocated on a device at a time.
    seconds : mapping of str to float
        Seconds by part of the fit, with "total".
    device : str
        Name of the device.
    layout : str
        Where rows and kernel values were stored, and why.
    factors : str
        Where the preconditioner's factors were computed, and why.
    dtype : str
        Dtype of kernel values, "float32" or "float64".
    trace : tuple of :class:`Point`
        State at each computation of the gradient. The violation of a point is the residual.
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
    raise TypeError(f"got {value!r}, expected a number, text, or a tuple or mapping of these")


EVERY = 10.0  # seconds between two progress lines if stderr is no terminal
SOON = 1.0  # seconds of work after which ``counting`` shows a progress bar
_label: ContextVar[str] = ContextVar("label", default="")


@contextlib.contextmanager
def labelled(words: str) -> Iterator[None]:
    """Begin every progress line within this context with ``words``, such as "fold 2 of 5"."""
    token = _label.set(words)
    try:
        yield
    finally:
        _label.reset(token)


class TimeEstimate:
    """Estimate when a falling value reaches a goal, on a logarithmic scale.

    The value may go up and down, so its trend is the least-squares line through its values in the second half of the
    time. The remaining time is the distance of the trend from the goal over the trend's slope. If the trend has passed
    the goal but the value has not, the distance of the value from the goal is taken.
    """

    def __init__(self, goal: float) -> None:
        self._goal, self._start = goal, 0.0
        self._points: deque[tuple[float, float]] = deque()  # (seconds, level); level: log(value / goal), at least 0
        self._sums = [0.0, 0.0, 0.0, 0.0]  # over all _points: sums of seconds, levels, seconds^2, seconds * levels
        self.done = 0.0  # share of the way to the goal, 0 to 1; it never falls

    def add(self, seconds: float, value: float) -> Self:
        """Add the ``value`` that was seen ``seconds`` after the start; ignore nan and infinity."""
        if not math.isfinite(value):
            return self
        level = math.log(max(value / self._goal, 1.0))
        self._start = self._start if self._points else level
        self._points.append((seconds, level))
        self._count(seconds, level, 1)
        while len(self._points) > 2 and self._points[0][0] < seconds / 2:
            self._count(*self._points.popleft(), -1)
        _, remaining = self._trend()
        self.done = max(self.done, 1 - max(remaining, 0.0) / self._start) if self._start else 1.0
        return self

    @property
    def left(self) -> float | None:
        """Return the estimated seconds until the value reaches the goal, None if its trend does not fall."""
        slope, remaining = self._trend()
        if self._points and not remaining:
            return 0.0
        return remaining / slope if slope > 0 else None

    def _count(self, seconds: float, level: float, sign: int) -> None:
        for i, term in enumerate((seconds, level, seconds * seconds, seconds * level)):
            self._sums[i] += sign * term

    def _trend(self) -> tuple[float, float]:
        """Return how fast the level log(value / goal) falls, and the level that remains.

        The rate is per second, and 0 if it is unknown.
        """
        n, (t, y, tt, ty) = len(self._points), self._sums
        if not n:
            return 0.0, 0.0
        now, level = self._points[-1]
        variance = tt - t * t / n
        slope = (t * y / n - ty) / variance if variance > 1e-9 * tt else 0.0
        trend = y / n - slope * (now - t / n)
        return slope, trend if level and slope > 0 and trend > 0 else level


class Display:
    """Show the progress of a fit; a context manager that yields itself, or None if ``wanted`` is false.

    The solver calls the display with each :class:`Point`. On a terminal the display shows a bar, on a logarithmic scale
    from the first gap to ``gap_tol``, or from the first violation to ``tol``. Without a terminal it prints a line every
    ten seconds and one at the end.

    violation: the word that stands for the KKT violation in these lines.
    """

    def __init__(self, wanted: Any, tol: float, gap_tol: float | None = None, violation: str = "violation") -> None:
        self._enabled, self._field = bool(wanted), "violation" if gap_tol is None else "gap"
        self._name = violation if gap_tol is None else "gap"
        self._estimate = TimeEstimate(tol if gap_tol is None else gap_tol)
        self._label = f"{label}: " if (label := _label.get()) else ""
        self._value, self._last = math.nan, ""
        self._bar: Callable[[str, float], None] | None = None
        self._exit_stack = contextlib.ExitStack()
        self._start_time = self._printed = perf_counter()

    def __enter__(self) -> Self | None:
        if not self._enabled:
            return None
        if sys.stderr.isatty():
            self._bar = self._exit_stack.enter_context(progress_bar())
            self.phase("training")
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()
        if self._enabled and self._bar is None and self._last:
            self._say(f"{self._last}, {perf_counter() - self._start_time:.1f} s")

    def __call__(self, point: Point) -> None:
        """Show the solver's state at a convergence check."""
        value = getattr(point, self._field)
        self._value = value if math.isfinite(value) else self._value
        self._estimate.add(point.seconds, value)
        speed = point.rows / point.seconds if point.seconds > 0 else 0.0
        self._last = f"{self._name} {self._value:.2g}, {point.steps} steps, {speed:.0f} rows/s"
        left = self._estimate.left
        time = "-" if left is None or left > 1e6 else timedelta(seconds=math.ceil(left))
        self.phase(f"{time} left, {self._last}")

    def phase(self, words: str) -> None:
        """Show the name of the current phase of the fit until the next point."""
        if self._bar is not None:
            self._bar(f"{self._label}{words}", self._estimate.done)
        elif perf_counter() - self._printed >= EVERY:
            self._say(words)

    def _say(self, words: str) -> None:
        self._printed = perf_counter()
        print(f"clsvm: {self._label}{words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def counting(words: str, total: int, done_before: int = 0, lines: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items done so far; after a second, a terminal shows it as a bar.

    words: the text to show, with the fields {done}, {total} and {left} (time).
    done_before: number of items that were done before.
    lines: print a line every ten seconds, and one at the end, if stderr is no terminal.
    """
    began = printed = perf_counter()
    shown, terminal = "", sys.stderr.isatty()
    with contextlib.ExitStack() as stack:
        bar: Callable[[str, float], None] | None = None

        def done(count: int) -> None:
            nonlocal bar, printed, shown
            now = perf_counter()
            left = timedelta(seconds=math.ceil((now - began) * (total - count) / max(count - done_before, 1)))
            shown = words.format(done=count, total=total, left=left)
            if bar is None and terminal and now - began > SOON:
                bar = stack.enter_context(progress_bar())
            if bar is not None:
                bar(shown, count / total)
            elif lines and not terminal and now - printed >= EVERY:
                print(shown, file=sys.stderr, flush=True)
                printed = now

        yield done
    if lines and not terminal:
        print(shown, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar on stderr until the context ends.

    Yield the function that updates the bar. Its arguments are the text to show and the share that is done, 0 to 1.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    remaining = Column(ratio=1, no_wrap=True)  # a narrow terminal truncates this column only
    text = TextColumn("{task.fields[words]}", markup=False, table_column=remaining)
    columns = BarColumn(16), TimeElapsedColumn(), text
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task("", total=1.0, words="")
        yield lambda words, share: progress.update(task, completed=share, words=words)
