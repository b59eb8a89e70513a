"""Define the report of a fit and the display of its progress.

:class:`FitReport` (SVMs) and :class:`NystromReport` (Nyström kernel machines) say how a fit ended, how accurate its
result is, and which time and memory it took. :class:`Progress` and :class:`Display` show progress on stderr.
"""

from __future__ import annotations

import contextlib
import enum
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from numbers import Integral, Real
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Self


class Status(enum.Enum):
    """Name the ways in which a solve can end. The value is the text that a report shows."""

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
    """Return the relative duality gap 2 * (p - d) / |p + d| of the primal objective p and the dual objective d.

    Return p - d if p + d is 0, and infinity if p is not finite. Source: Cotter, Srebro, Keshet 2011, section 6, for
    positive objectives. Those of a one-class model are negative.
    """
    if not math.isfinite(primal):
        return math.inf
    return 2 * (primal - dual) / (abs(primal + dual) or 2.0)


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


# PARTS maps the name of each part of a fit to keys of ``FitReport.seconds``. A part takes the sum of their values.
# The seconds of the part "other" are the seconds of the whole fit, minus the seconds of all other parts.
PARTS: Mapping[str, tuple[str, ...]] = {
    "clustering": ("layout", "cluster"),
    "selection": ("select",),
    "gram": ("tile", "gram"),
    "subproblem": ("subproblem", "free"),
    "update": ("rows", "update"),
    "other": (),
}


def by_part(seconds: Mapping[str, float], of: Mapping[str, tuple[str, ...]] = PARTS) -> dict[str, float]:
    """Return the seconds of each part of a fit, from the ``seconds`` of its report.

    ``of`` is a dict from the name of each part to keys of ``seconds``. A part takes the sum of the seconds of its keys.
    The part "other" takes the rest of the report's "total". By default the parts are:

        "clustering"  converting the rows to their storage format on the device
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
    """Define what the reports of all kinds of fits have in common. Each kind of report is a subclass of this class.

    Each subclass is a frozen dataclass. :meth:`to_dict` converts a report to types of JSON.

    Attributes
    ----------
    status
        how the fit ended, in words.
    seconds
        dict from the name of a kind of work to the seconds that the fit spent on this work.
    trace
        state of the solver at each convergence check, a tuple of :class:`Point`.
    parts
        dict. Each key is the name of a part of the fit. The value is a tuple of keys of ``seconds``. The time of the
        part is the sum of the seconds under these keys.
    curves
        dict. Each key is the name of a quantity in a plot of the convergence. The value is a pair of field names. The
        first is the field of :class:`Point` that holds the quantity at a convergence check. The second is the field of
        the report that holds the quantity at the end of the fit.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    curves: ClassVar[Mapping[str, tuple[str, str]]]
    status: str
    seconds: Mapping[str, float]
    trace: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict of JSON's types; numbers that are nan or infinite become None."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True)
class FitReport(Record):
    """Describe the result, accuracy and cost of one fit of a support vector machine.

    The report is frozen and can be pickled. If the fit has several binary problems, objectives and counts are sums over
    the problems, and ``violation`` is the largest of their violations.

    Attributes
    ----------
    primal, dual : float
        Objectives as in Cotter, Srebro, Keshet 2011, equations 1 and 2. The dual is maximised. Both are equal at the
        optimum.
    gap : float
        Relative duality gap 2 (primal - dual) / (primal + dual); primal - dual if their sum is not positive.
    violation : float
        KKT violation, computed from the gradient f of the negative dual objective. The violation is the largest f among
        rows whose coefficient can fall, less the smallest f among rows whose coefficient can rise. Kernel values are in
        ``dtype``, sums in float64. If rounding errors of a row could decide about convergence, its f is computed again
        in float64.
    error_bound : float
        Upper bound of the error of the gradient f that rounding of the kernel values can have caused.
    exact_rows : int
        Number of rows whose gradient f was computed again in float64.
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
        Seconds by part of the fit, with "total"; see :func:`by_part`. If several devices took part, the seconds are
        averages over the devices.
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
        Why the working set and the row cache have their sizes. If the fit has several problems, the text says instead
        how many of them each solver solved.
    layout_costs : mapping of str to float
        Estimated cost of a kernel value in each layout; empty for precomputed kernels. The unit is the cost of a
        multiply-add of dense rows.
    precision : str
        How kernel values were computed. If ``precision="fast"`` was asked for but not used, the text also says why.
    """

    parts = PARTS
    curves: ClassVar = {"relative duality gap": ("gap", "gap"), "KKT violation": ("violation", "violation")}
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
    """Describe the result, accuracy and cost of one fit of a Nyström kernel machine.

    The report is frozen and can be pickled.

    Attributes
    ----------
    objective : float
        (1 / sum_i w_i) * sum_i w_i l(f(x_i), y_i) + (penalty / 2) * |f|^2, with the decision function f, its norm |f|
        in the kernel's function space, the loss l, and the sample weights w_i and targets y_i of the rows x_i.
    residual : float
        Norm of the objective's gradient in preconditioned coordinates (:mod:`clsvm.nystrom.newton`), divided by the
        norm for coefficients that are all 0. The residual is at most tol if the fit converged. If there are several
        outputs, it is the largest of their residuals.
    bound : float
        Upper bound of the difference between the objective and its minimum over all coefficients of the inducing points
        in use. The bound includes rounding errors in ``dtype``, and is valid even if the fit did not converge. If
        there are several outputs, it is the sum of their bounds.
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
        Number of rows from which the preconditioner was made.
    condition : float
        Lower bound of the condition number of the kernel matrix K of the inducing points in use.
    jitter : float
        Number that was added to the diagonal of the kernel matrix K of the inducing points.
    rank : int
        Number of inducing points in use. It is the numerical rank of the kernel matrix K of all inducing points. The
        coefficients of points that are not in use are 0.
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

    parts: ClassVar = {**{name: (name,) for name in ("layout", "preconditioner", "solve")}, "other": ()}
    curves: ClassVar = {"residual": ("violation", "residual")}
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
        case bool():
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
    return value


EVERY = 10.0  # seconds between two progress lines if stderr is no terminal
SOON = 1.0  # seconds of work after which a terminal shows a progress bar


class Progress:
    """Show progress on stderr until the context ends.

    A terminal shows a bar if the work takes longer than a second. If stderr is no terminal and ``lines`` is true, lines
    are printed every ten seconds and at the end.
    """

    def __init__(self, lines: bool = True) -> None:
        self._lines, self._last = lines, ""
        self._bar: Callable[[str, float], None] | None = None
        self._exit_stack = contextlib.ExitStack()
        self._start = self._printed = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()
        if self._last and self._lines and not sys.stderr.isatty():
            self._print(f"{self._last}, {perf_counter() - self._start:.1f} s")

    def show(self, words: str, share: float) -> None:
        """Show the text ``words``, the ``share`` of the work that is done, 0 to 1, and an estimate of the time left."""
        self._last = words
        self._put(words, share)

    def _put(self, words: str, share: float) -> None:
        spent = perf_counter() - self._start
        left = timedelta(seconds=math.ceil(spent * (1 - share) / share)) if share > 1e-6 else "-"
        words = f"{left} left, {words}"
        if not sys.stderr.isatty():
            if self._lines and perf_counter() - self._printed >= EVERY:
                self._print(words)
            return
        if self._bar is None and spent > SOON:
            self._bar = self._exit_stack.enter_context(progress_bar())
        if self._bar:
            self._bar(words, share)

    def _print(self, words: str) -> None:
        self._printed = perf_counter()
        print(f"clsvm: {words}", file=sys.stderr, flush=True)


class Display(Progress):
    """Show the progress of a fit. The solver calls the display with a :class:`Point` at each convergence check.

    A Point holds the state of the solver. The display shows an estimate of the share of the fit's work that is done.
    The share rises from 0 to 1 as the logarithm of the KKT violation falls from its first value to log(tol).

    wanted: whether to show the progress. If it is false, ``with Display(...) as display`` sets ``display`` to None.
    tol: KKT violation at which the fit ends.
    gap_tol: relative duality gap at which the fit ends, or None. If ``gap_tol`` is given, the share is estimated from
        the relative duality gap and ``gap_tol``, in place of the KKT violation and ``tol``.
    violation: word for the KKT violation in the displayed text, such as "residual".
    """

    def __init__(self, wanted: Any, tol: float, gap_tol: float | None = None, violation: str = "violation") -> None:
        super().__init__()
        self._wanted = bool(wanted)
        self._field, self._goal = ("violation", tol) if gap_tol is None else ("gap", gap_tol)
        self._name = violation if gap_tol is None else "gap"
        self._value = math.nan
        # _first is the first positive value of log(violation / tol), or of log(gap / gap_tol) if gap_tol is given.
        # _share is the estimated share of the fit's work that is done, from 0 to 1.
        self._first = self._share = 0.0

    def __enter__(self) -> Self | None:  # type: ignore[override]
        return self if self._wanted else None

    def __call__(self, point: Point) -> None:
        """Show the state ``point`` of the solver at a convergence check."""
        value = getattr(point, self._field)
        if math.isfinite(value):
            level = math.log(max(value / self._goal, 1.0))
            self._first = self._first or level
            self._share = max(self._share, 1 - level / self._first) if self._first else 1.0
            self._value = value
        speed = point.rows / point.seconds if point.seconds > 0 else 0.0
        self.show(f"{self._name} {self._value:.2g}, {point.steps} steps, {speed:.0f} rows/s", self._share)

    def phase(self, words: str) -> None:
        """Show ``words``, the name of the fit's current phase, until the solver reports its next :class:`Point`."""
        self._put(words, self._share)


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar on stderr until the context ends.

    Yield a function update(text, share) that shows a text and the share of the work that is done, from 0 to 1.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    remaining = Column(ratio=1, no_wrap=True)  # this column is cut off if the terminal is narrow
    text = TextColumn("{task.fields[words]}", markup=False, table_column=remaining)
    columns = BarColumn(16), TimeElapsedColumn(), text
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as progress:
        task = progress.add_task("", total=1.0, words="")
        yield lambda words, share: progress.update(task, completed=share, words=words)
