"""Several problems over subsets of the rows of one data set: one-vs-one pairs and the like, trained together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import layout, training
from clsvm.device import Stream
from clsvm.gram import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.progress import Display
from clsvm.report import FitReport, Point, Status, relative_gap
from clsvm.solvers import batch
from clsvm.solvers.batch import Member, Outcome
from clsvm.training import Options

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Several:
    """Coefficients (m,) of each problem, offsets (problems, groups) and pair steps of each, in order; one report."""

    b: list[Vector]
    rho: Vector
    steps: NDArray[np.int64]
    report: FitReport
    plan: layout.Plan | None


@dataclass
class _Record:
    """What the report adds up."""

    plan: layout.Plan | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layouts: list[str] = field(default_factory=list)
    reports: list[FitReport] = field(default_factory=list)
    device: str = ""
    dtype: str = "float32"
    peak: int = 0
    rows: int = 0
    most: int = 0

    def lap(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - since


def train(X: Any, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float) -> Several:
    """Solve every member over the rows of X (n, d), dense or CSR, or over X = K (n, n) where the kernel is precomputed:
    small ones side by side on one layout of X (solvers/batch.py), large ones one after another, those that are of all
    rows with one row store.

    since: perf_counter() at which the fit began. max_time is that of all together. Raises as training.train does.
    """
    record, found = _Record(), dict[int, Outcome]()
    record.lap("check", since)

    def over() -> bool:
        return options.max_time is not None and perf_counter() - since >= options.max_time

    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = _small(members, found, options, dtype, record)
        if todo and not over():
            _solve(X, members, todo, kernel, options, dtype, record, found, over)
    for places in _together(members, record.most, X.shape[0]):
        if over():
            break
        some = [members[place] for place in places]
        left = None if options.max_time is None else options.max_time - (perf_counter() - since)
        rows = _rows(X, some[0].rows, kernel) if len(some[0].rows) < X.shape[0] else X
        problems, starts = [one.problem for one in some], [one.start for one in some]
        own = replace(options, max_time=left)
        for place, one in zip(
            places, training.train_each(rows, problems, kernel, own, starts, perf_counter()), strict=True
        ):
            record.reports.append(one.report)
            found[place] = _outcome(one)
    if record.plan is None and not isinstance(kernel, Precomputed):
        with Stream(options.device, options.memory_limit) as stream:
            record.plan = layout.choose(stream.profile, X, kernel.spec)
    b = [found[place].b if place in found else np.zeros(len(member.rows)) for place, member in enumerate(members)]
    none = np.zeros(members[0].problem.groups)
    rho = np.stack([found[place].rho if place in found else none for place in range(len(members))])
    steps = np.array([found[place].steps if place in found else 0 for place in range(len(members))], np.int64)
    return Several(b, rho, steps, _report(found, len(members), record, options, since), record.plan)


def _together(members: Sequence[Member], most: int, n: int) -> list[list[int]]:
    """Members of more than ``most`` rows: those of all n rows, then each other one by itself."""
    large = [place for place, member in enumerate(members) if len(member.rows) > most]
    whole = [place for place in large if len(members[place].rows) == n]
    return [*([whole] if whole else []), *([place] for place in large if place not in whole)]


def _rows(X: Any, rows: NDArray[np.intp], kernel: Kernel | Precomputed) -> Any:
    """What there is of some rows: themselves, or the kernel values between them."""
    return X[np.ix_(rows, rows)] if isinstance(kernel, Precomputed) else X[rows]


def _small(
    members: Sequence[Member], found: dict[int, Outcome], options: Options, dtype: str, record: _Record
) -> list[int]:
    """The members that a device takes whole and that are not solved; float64 is for those that stalled in float32."""
    with Stream(options.device, options.memory_limit) as stream:
        if dtype == "float64" and options.dtype == "float32" and stream.profile.wide == "pair":
            return []
        record.most = record.most or batch.largest(stream)
        record.device = str(stream.info)
    small = [place for place, member in enumerate(members) if len(member.rows) <= record.most]
    capped = options.max_iter if options.max_iter >= 0 else np.inf
    return [p for p in small if p not in found or (found[p].violation > options.tol and found[p].steps < capped)]


def _solve(
    X: Any,
    members: Sequence[Member],
    todo: list[int],
    kernel: Kernel | Precomputed,
    options: Options,
    dtype: str,
    record: _Record,
    found: dict[int, Outcome],
    over: Callable[[], bool],
) -> None:
    """The members ``todo`` side by side, from what was found before."""
    with (
        Stream(options.device, options.memory_limit) as stream,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        started = perf_counter()
        gram, record.plan, scale, _ = training.products(stream, X, kernel, options, dtype, record.plan, gathered=True)
        record.lap("layout", started)
        record.layouts.append(f"{gram.rows.describe()}, {dtype}")
        started, steps, nan, doubles = perf_counter(), 0, float("nan"), list[Gram]()

        def exact() -> Gram:
            if not doubles:
                doubles.append(training.products(stream, X, kernel, options, "float64", record.plan, gathered=True)[0])
            return doubles[0]

        def watch(place: int, outcome: Outcome) -> bool:
            nonlocal steps
            steps += outcome.steps
            record.rows += len(outcome.b)
            if progress:
                now = perf_counter() - started
                progress(Point(now, steps, place, nan, nan, nan, outcome.violation, record.rows))
            return not over()

        again = [replace(members[p], start=found[p].b) if p in found else members[p] for p in todo]
        doubly = exact if dtype == "float32" and stream.profile.wide == "double" else None
        outcomes = batch.solve(stream, gram, again, options.tol, options.max_iter, scale, watch, doubly)
        record.lap("subproblem", started)
        record.peak, record.dtype = max(record.peak, stream.peak), dtype
        for place, outcome in zip(todo, outcomes, strict=True):
            if outcome is not None:
                before = found[place].steps if place in found else 0
                found[place] = replace(outcome, steps=before + outcome.steps)


def _outcome(one: training.Trained) -> Outcome:
    s = one.solution
    primal, dual, violation = (float(array[0]) for array in (s.primal, s.dual, s.violation))
    return Outcome(s.b[0], s.f[0], s.rho[0], primal, dual, violation, int(s.steps[0]), s.error_bound, s.exact_rows)


def _report(found: dict[int, Outcome], count: int, record: _Record, options: Options, since: float) -> FitReport:
    outcomes, reports = list(found.values()), record.reports
    primal, dual = sum(one.primal for one in outcomes), sum(one.dual for one in outcomes)
    violation = max((one.violation for one in outcomes), default=np.inf)
    steps = sum(one.steps for one in outcomes)
    capped = options.max_iter >= 0 and any(one.steps >= options.max_iter for one in outcomes)
    status = Status.TOLERANCE
    if len(found) < count:
        status = Status.MAX_TIME
    elif violation > options.tol and all(one.converged for one in reports):
        status = Status.MAX_ITER if capped else Status.STALLED
    seconds = dict(record.seconds)
    for one in reports:
        for part, value in one.seconds.items():
            if part not in ("other", "total"):
                seconds[part] = seconds.get(part, 0.0) + value
    total = perf_counter() - since
    whole = count - len(reports)
    words = f"{whole} problems of up to {record.most} rows solved whole, {len(reports)} by decomposition"
    return FitReport(
        primal=primal,
        dual=dual,
        gap=relative_gap(primal, dual),
        violation=violation,
        error_bound=max((one.error_bound for one in outcomes), default=0.0),
        exact_rows=sum(one.exact_rows for one in outcomes),
        status=next((one.status for one in reports if not one.converged), status.value),
        converged=status.converged and all(one.converged for one in reports),
        steps=steps,
        outer_steps=sum(one.outer_steps for one in reports),
        rows_computed=record.rows + sum(one.rows_computed for one in reports),
        bytes_held=max([record.peak, *(one.bytes_held for one in reports)]),
        seconds={**seconds, "other": total - sum(seconds.values()), "total": total},
        device=record.device,
        layout="; ".join([*record.layouts, *sorted({one.layout for one in reports})]),
        working_set_size=max([0, *(len(one.b) for one in outcomes), *(one.working_set_size for one in reports)]),
        dtype=record.dtype,
        selection=words,
    )
