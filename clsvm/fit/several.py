"""Several problems over subsets of the rows of one data set: one-vs-one pairs and the like, trained together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import MemoryLimitError
from clsvm.fit import host, prepare, sharded, spread
from clsvm.fit.alone import HostFit
from clsvm.fit.train import train_each
from clsvm.fit.trained import Several
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Products
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import listed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.report import FitReport, Point, Progress, Status, relative_gap
from clsvm.report.display import Display
from clsvm.solvers import Solution, batch, certificate
from clsvm.solvers.batch import Member, Outcome

Vector = NDArray[np.float64]


@dataclass
class _Record:
    """What the report adds up."""

    plan: Plan | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layouts: list[str] = field(default_factory=list)
    reports: list[FitReport] = field(default_factory=list)
    device: str = ""
    peak: int = 0
    rows: int = 0
    most: int = 0
    alone: bool = False  # memory holds no batch
    statuses: dict[int, Status] = field(default_factory=dict)
    dtypes: dict[int, str] = field(default_factory=dict)  # of kernel values, by member; "float32" is the lesser one

    def lap(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - since


def train(X: Any, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float) -> Several:
    """Solve every member over the rows of X (n, d), dense or CSR, or over X = K (n, n) where the kernel is precomputed:
    small ones side by side on one layout of X (solvers/batch.py), and on the host what that leaves (host.py); large
    ones one after another, those that are of all rows with one row cache.

    since: perf_counter() at which the fit began. max_time is that of all together. Raises as train.train does. Several
    devices take members from a queue; of rows that are elsewhere, all shards take one member after another.
    """
    if isinstance(X, sharded.Elsewhere) or len(listed(options.device)) > 1:
        return spread.train(train, X, members, kernel, options, since)
    record, found = _Record(), dict[int, Outcome]()
    record.lap("check", since)

    def left() -> float:
        return np.inf if options.max_time is None else options.max_time - (perf_counter() - since)

    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = _small(members, found, options, dtype, record)
        if todo and left() > 0:
            try:
                _solve(X, members, todo, kernel, options, dtype, record, found, left)
            except MemoryLimitError:  # one after another they take less
                record.most, record.alone = 0, True
                found.clear()
                record.statuses.clear()
                break
    for places in _together(members, record.most, X.shape[0]):
        if left() <= 0:
            break
        some = [members[place] for place in places]
        rows = _rows(X, some[0].rows, kernel) if len(some[0].rows) < X.shape[0] else X
        problems, starts = [one.problem for one in some], [one.start for one in some]
        own = options.but(max_time=None if options.max_time is None else left())
        for place, one in zip(places, train_each(rows, problems, kernel, own, starts, perf_counter()), strict=True):
            record.reports.append(one.report)
            found[place] = _outcome(one.solution)
            record.statuses[place] = one.solution.status
    if record.plan is None and not isinstance(kernel, Precomputed):
        with Stream(options.device, options.memory_limit) as stream:
            record.plan = layouts.choose(stream.profile, X, kernel.spec, options.layout)
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
        record.device = str(stream.info)
        if stream.profile.lacks(dtype):
            return []
        record.most = record.most or batch.largest(stream)
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
        gram, record.plan, scale, _ = prepare.products(stream, X, kernel, options, dtype, record.plan, gathered=True)
        record.lap("layout", started)
        record.layouts.append(f"{gram.rows.describe()}, {dtype}")
        started = perf_counter()
        work = _Work(stream, gram, X, members, kernel, options, scale, record, found, left, progress)
        work.side_by_side(todo)
        record.lap("subproblem", started)
        started = perf_counter()
        work.on_host(todo)
        record.lap("active set", started)
        work.conclude(todo)
        record.peak = max(record.peak, stream.peak)


@dataclass
class _Work:
    """Members on one device in one dtype: what they are made of, and what was found so far."""

    stream: Stream
    gram: Products
    X: Any
    members: Sequence[Member]
    kernel: Kernel | Precomputed
    options: Options
    scale: prepare.Scales
    record: _Record
    found: dict[int, Outcome]
    left: Callable[[], float]
    progress: Progress | None
    finished: set[int] = field(default_factory=set)  # those that the host has solved
    began: float = field(default_factory=perf_counter)

    def side_by_side(self, todo: list[int]) -> None:
        """Members that their dtype is fine enough for, and those that are too large for the host."""
        able = [place for place in todo if not (self._hopeless(place) and self._takes(place))]
        again = [replace(self.members[p], start=self.found[p].b) if p in self.found else self.members[p] for p in able]
        options, single = self.options, self.gram.rows.dtype == "float32"
        checked = single and (self.stream.profile.wide == "double" or host.holds(self.stream, self.X.shape))
        outcomes = batch.solve(
            self.stream,
            self.gram,
            again,
            options.tol,
            options.max_iter,
            self.scale.own,
            self._watch,
            lambda: self.left() <= 0,
            (lambda: self._double) if checked else None,
        )
        for place, outcome in zip(able, outcomes, strict=True):
            if outcome is not None:
                before = self.found[place].steps if place in self.found else 0
                self.found[place] = replace(outcome, steps=before + outcome.steps)
                capped = 0 <= options.max_iter <= self.found[place].steps
                left = Status.GAP if self._within(outcome) else Status.MAX_ITER if capped else Status.STALLED
                self.record.statuses[place] = Status.TOLERANCE if outcome.sure else left
                self.record.dtypes[place] = self.gram.rows.dtype

    def on_host(self, todo: list[int]) -> None:
        """What that left, what is finer there, and, of few small problems, those for which tol is coarse."""
        quick = len(todo) <= host.SEVERAL and host.holds(self.stream, self.X.shape)
        for place in todo:
            status, outcome = self.record.statuses.get(place, Status.STALLED), self.found.get(place)
            rough = status is Status.TOLERANCE and certificate.beyond(self._hidden(place), self.options.tol)
            aim = host.aim(self.kernel, self._shape(place), status, outcome.gap if outcome else np.inf, rough, quick)
            if aim is not None and self._takes(place) and self.left() > 0:
                one = self._one_on_host(place, aim)
                self.found[place], self.record.statuses[place] = _outcome(one), one.status
                self.record.dtypes[place] = one.dtype
                self.finished.add(place)
                self._watch(place, self.found[place])

    def conclude(self, todo: list[int]) -> None:
        """Statuses that say so where rounding in float64 itself could hide the tolerance, or time was over."""
        statuses = self.record.statuses
        for place in todo:
            status = statuses.get(place)
            if status not in (Status.TOLERANCE, Status.GAP, Status.STALLED):
                continue
            outcome = self.found[place]
            bound = outcome.error_bound if place in self.finished else self._hidden(place)
            weight, options = float(np.abs(outcome.b).sum()), self.options
            numbers = bound, weight, outcome.primal, options.tol, options.gap_tol
            if certificate.doubtful(status, *numbers):
                if self._within(outcome) and not certificate.doubtful(Status.GAP, *numbers):
                    statuses[place] = Status.GAP
                    continue
                statuses[place] = Status.PRECISION
                self.found[place] = replace(outcome, error_bound=max(outcome.error_bound, bound))
            elif statuses[place] is Status.STALLED and self.left() <= 0:
                statuses[place] = Status.MAX_TIME

    def _one_on_host(self, place: int, aim: float) -> Solution:
        """A member over its own rows, from what was found before."""
        member, before, most = self.members[place], self.found.get(place), self.options.max_iter
        rows = _rows(self.X, member.rows, self.kernel)
        values = host.kernel_values(self.stream, rows, self.kernel, self.record.plan, member.problem, self.scale.double)
        start = before.b if before else member.start
        steps = before.steps if before else 0
        one = host.solve(
            self.stream,
            values,
            member.problem,
            None if start is None else member.problem.feasible(start[None]),
            self.options.tol,
            self.options.gap_tol,
            most=np.inf if most < 0 else most - steps,
            max_time=self.left(),
            aim=aim,
        )
        return replace(one, steps=one.steps + steps)

    @cached_property
    def _double(self) -> Products | NDArray[np.float64]:
        """All of K in float64 on the host, where that is quickly made, else products in float64 on the device."""
        if host.holds(self.stream, self.X.shape):
            return self.X if isinstance(self.kernel, Precomputed) else self.kernel(self.X)
        plan = self.record.plan
        return prepare.products(self.stream, self.X, self.kernel, self.options, "float64", plan, gathered=True)[0]

    def _watch(self, place: int, outcome: Outcome) -> None:
        self.record.rows += len(outcome.b)
        if self.progress:
            now, nan, steps = perf_counter() - self.began, float("nan"), sum(one.steps for one in self.found.values())
            self.progress(Point(now, steps, place, nan, nan, nan, outcome.violation, self.record.rows))

    def _within(self, outcome: Outcome) -> bool:
        """Whether gap_tol is reached."""
        return self.options.gap_tol is not None and outcome.gap <= self.options.gap_tol

    def _shape(self, place: int) -> tuple[int, int]:
        return len(self.members[place].rows), self.X.shape[1]

    def _takes(self, place: int) -> bool:
        return host.takes(self.stream, self.members[place].problem)

    def _hopeless(self, place: int) -> bool:
        """Whether one coefficient's rounding would hide the tolerance, and there is a better dtype."""
        if self.gram.rows.dtype == self.stream.profile.finest:
            return False
        rounding = float(np.finfo(self.gram.rows.dtype).eps) * self.scale.own
        return certificate.hopeless(rounding, self.members[place].problem, self.options.tol)

    def _hidden(self, place: int) -> float:
        """What rounding of kernel values in float64, as devices compute them, can hide of a member's violation."""
        return host.EPS * self.scale.double * float(np.abs(self.found[place].b).sum())


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
    statuses = list(record.statuses.values())
    whole = Status.GAP if Status.GAP in statuses else Status.TOLERANCE
    status = next((one for one in statuses if not one.converged), whole)
    if len(found) < count:  # what has no coefficients yet has no objective, and no optimality
        status, primal, violation = Status.MAX_TIME, np.inf, np.inf
    seconds = dict(record.seconds)
    for one in reports:
        for part, value in one.seconds.items():
            if part not in ("other", "total"):
                seconds[part] = seconds.get(part, 0.0) + value
    total = perf_counter() - since
    words = f"{count - len(reports)} problems of up to {record.most} rows solved whole, {len(reports)} by decomposition"
    words = words if record.most or record.alone else HostFit.reason
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
        dtype=min([*record.dtypes.values(), *(one.dtype for one in reports)], default=options.dtype),
        selection=words,
        layout_costs=record.plan.costs if record.plan else {},
    )
