"""Several problems over subsets of the rows of one data set: one-vs-one pairs and the like, trained together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import host, layout, training
from clsvm.device import Stream
from clsvm.gram import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.progress import Display
from clsvm.report import FitReport, Point, Status, relative_gap
from clsvm.solvers import HOPELESS, Solution, batch
from clsvm.solvers.batch import Member, Outcome
from clsvm.tasks import Problem
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
    statuses: dict[int, Status] = field(default_factory=dict)

    def lap(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - since


def train(X: Any, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float) -> Several:
    """Solve every member over the rows of X (n, d), dense or CSR, or over X = K (n, n) where the kernel is precomputed:
    small ones side by side on one layout of X (solvers/batch.py), and on the host what that leaves (host.py); large
    ones one after another, those that are of all rows with one row store.

    since: perf_counter() at which the fit began. max_time is that of all together. Raises as training.train does.
    """
    record, found = _Record(), dict[int, Outcome]()
    record.lap("check", since)

    def left() -> float:
        return np.inf if options.max_time is None else options.max_time - (perf_counter() - since)

    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = _small(members, found, options, dtype, record)
        if todo and left() > 0:
            _solve(X, members, todo, kernel, options, dtype, record, found, left)
    for places in _together(members, record.most, X.shape[0]):
        if left() <= 0:
            break
        some = [members[place] for place in places]
        rows = _rows(X, some[0].rows, kernel) if len(some[0].rows) < X.shape[0] else X
        problems, starts = [one.problem for one in some], [one.start for one in some]
        own = replace(options, max_time=None if options.max_time is None else left())
        for place, one in zip(
            places, training.train_each(rows, problems, kernel, own, starts, perf_counter()), strict=True
        ):
            record.reports.append(one.report)
            found[place] = _outcome(one.solution)
            record.statuses[place] = one.solution.status
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
    """The members that a device takes whole and that are not done; float64 is for those that float32 left."""
    with Stream(options.device, options.memory_limit) as stream:
        if dtype == "float64" and options.dtype == "float32" and stream.profile.wide == "pair":
            return []
        record.most = record.most or batch.largest(stream)
        record.device = str(stream.info)
    small = [place for place, member in enumerate(members) if len(member.rows) <= record.most]
    return [place for place in small if record.statuses.get(place, Status.STALLED) is Status.STALLED]


def _solve(
    X: Any,
    members: Sequence[Member],
    todo: list[int],
    kernel: Kernel | Precomputed,
    options: Options,
    dtype: str,
    record: _Record,
    found: dict[int, Outcome],
    left: Callable[[], float],
) -> None:
    """The members ``todo``, from what was found before: side by side, then what is left of them on the host."""
    with (
        Stream(options.device, options.memory_limit) as stream,
        Display(options.verbose, options.tol, options.gap_tol) as progress,
    ):
        started = perf_counter()
        gram, record.plan, scale, _ = training.products(stream, X, kernel, options, dtype, record.plan, gathered=True)
        record.lap("layout", started)
        record.layouts.append(f"{gram.rows.describe()}, {dtype}")
        started, steps, nan = perf_counter(), 0, float("nan")
        record.dtype = dtype

        @cache
        def exact() -> Gram | NDArray[np.float64]:
            if host.holds(stream, X.shape):
                return X if isinstance(kernel, Precomputed) else kernel(X)
            return training.products(stream, X, kernel, options, "float64", record.plan, gathered=True)[0]

        def watch(place: int, outcome: Outcome) -> None:
            nonlocal steps
            steps += outcome.steps
            record.rows += len(outcome.b)
            if progress:
                now = perf_counter() - started
                progress(Point(now, steps, place, nan, nan, nan, outcome.violation, record.rows))

        def over() -> bool:
            return left() <= 0

        def takes(place: int) -> bool:
            return host.takes(stream, members[place].problem)

        def hidden(place: int) -> float:
            return host.EPS * scale.double * float(np.abs(found[place].b).sum())

        finished = set[int]()

        double = dtype == "float64" or stream.profile.wide == "pair"
        hides = float(np.finfo(dtype).eps) * scale.own / HOPELESS * (not double)
        hopeless = [p for p in todo if hides * _largest(members[p].problem) > options.tol]
        able = [p for p in todo if p not in hopeless or not takes(p)]
        again = [replace(members[p], start=found[p].b) if p in found else members[p] for p in able]
        doubly = (
            exact if dtype == "float32" and (stream.profile.wide == "double" or host.holds(stream, X.shape)) else None
        )
        outcomes = (
            batch.solve(stream, gram, again, options.tol, options.max_iter, scale.own, watch, over, doubly)
            if able
            else []
        )
        for place, outcome in zip(able, outcomes, strict=True):
            if outcome is not None:
                before = found[place].steps if place in found else 0
                found[place] = replace(outcome, steps=before + outcome.steps)
                capped = 0 <= options.max_iter <= found[place].steps
                record.statuses[place] = (
                    Status.TOLERANCE if outcome.sure else Status.MAX_ITER if capped else Status.STALLED
                )
        record.lap("subproblem", started)
        started, quick = perf_counter(), len(todo) <= host.SEVERAL and host.holds(stream, X.shape)
        for place in todo:
            done = quick and record.statuses.get(place) is Status.TOLERANCE
            coarse = done and host.coarse((len(members[place].rows), X.shape[1]), found[place].gap)
            aim = host.FINE if coarse else 1.0
            left_over = aim < 1.0 or record.statuses.get(place, Status.STALLED) is Status.STALLED
            left_over |= place in found and hidden(place) > options.tol / 10 and host.finer(kernel, X.shape)
            if not left_over or not takes(place) or over():
                continue
            one = _on_host(
                stream,
                _rows(X, members[place].rows, kernel),
                members[place],
                found.get(place),
                kernel,
                options,
                record,
                scale.double,
                left(),
                aim,
            )
            found[place], record.statuses[place], record.dtype = _outcome(one), one.status, one.dtype
            finished.add(place)
            watch(place, found[place])
        record.lap("active set", started)
        for place in todo:
            status = record.statuses.get(place)
            if status not in (Status.TOLERANCE, Status.STALLED):
                continue
            bound = found[place].error_bound if place in finished else hidden(place)
            if bound > options.tol / 10:
                record.statuses[place] = Status.PRECISION
                found[place] = replace(found[place], error_bound=max(found[place].error_bound, bound))
            elif status is Status.STALLED and over():
                record.statuses[place] = Status.MAX_TIME
        record.peak = max(record.peak, stream.peak)


def _largest(problem: Problem) -> float:
    return float(np.maximum(problem.hi, -problem.lo).max())


def _on_host(
    stream: Stream,
    rows: Any,
    member: Member,
    before: Outcome | None,
    kernel: Kernel | Precomputed,
    options: Options,
    record: _Record,
    scale: float,
    left: float,
    aim: float,
) -> Solution:
    """A member over its own rows, from what was found before."""
    start = before.b if before else member.start
    most = np.inf if options.max_iter < 0 else options.max_iter - (before.steps if before else 0)
    problem = member.problem
    values = host.kernel_values(stream, rows, kernel, record.plan, problem, scale)
    found = host.solve(
        stream,
        values,
        problem,
        None if start is None else problem.feasible(start[None]),
        options.tol,
        most=most,
        max_time=left,
        aim=aim,
    )
    return found if before is None else replace(found, steps=found.steps + before.steps)


def _outcome(s: Solution) -> Outcome:
    primal, dual, violation = (float(array[0]) for array in (s.primal, s.dual, s.violation))
    sure = s.status is Status.TOLERANCE
    return Outcome(
        s.b[0], s.f[0], s.rho[0], primal, dual, violation, int(s.steps[0]), s.error_bound, s.exact_rows, sure
    )


def _report(found: dict[int, Outcome], count: int, record: _Record, options: Options, since: float) -> FitReport:
    outcomes, reports = list(found.values()), record.reports
    primal, dual = sum(one.primal for one in outcomes), sum(one.dual for one in outcomes)
    violation = max((one.violation for one in outcomes), default=np.inf)
    steps = sum(one.steps for one in outcomes)
    status = next((one for one in record.statuses.values() if not one.converged), Status.TOLERANCE)
    if len(found) < count:  # what has no coefficients yet has no objective, and no optimality
        status, primal, violation = Status.MAX_TIME, np.inf, np.inf
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
        status=status.value,
        converged=status.converged,
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
