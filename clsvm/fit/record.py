"""What solves of several problems on some devices add up to: a record for each device, then the report of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.fit.alone import HostFit
from clsvm.fit.checkpoint import Checkpoint, Ended
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import find, listed
from clsvm.parameters import Options
from clsvm.report import FitReport, Status, relative_gap
from clsvm.solvers import Solution
from clsvm.solvers.member import Member, Outcome


@dataclass
class Record:
    """What the report adds up."""

    plan: Plan | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layouts: list[str] = field(default_factory=list)
    reports: list[FitReport] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)  # that did something
    peak: int = 0
    rows: int = 0
    most: int = 0
    alone: bool = False  # memory holds no batch
    statuses: dict[int, Status] = field(default_factory=dict)
    dtypes: dict[int, str] = field(default_factory=dict)  # of kernel values, by member; "float32" is the lesser one
    recalled: int = 0  # members that a checkpoint has solved

    def lap(self, part: str, since: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - since

    def beside(self) -> Record:
        """A record for one of several devices, which notes statuses and dtypes of its members here."""
        return replace(self, seconds={}, layouts=[], reports=[], devices=[], peak=0, rows=0)

    def recall(self, solved: Mapping[int, Ended]) -> dict[int, Outcome]:
        """What was found, where there is nothing but what a checkpoint has solved."""
        self.recalled = len(solved)
        self.statuses = {place: one.status for place, one in solved.items()}
        self.dtypes = {place: one.dtype for place, one in solved.items()}
        self.devices += [one.device for one in solved.values()]
        return {place: one.outcome for place, one in solved.items()}

    def add(self, others: Sequence[Record]) -> None:
        """What some devices did at the same time; their seconds are the mean."""
        for one in others:
            self.plan = self.plan or one.plan
            for took in (one.seconds, *(report.seconds for report in one.reports)):
                for part, seconds in took.items():
                    if part not in ("other", "total"):
                        self.seconds[part] = self.seconds.get(part, 0.0) + seconds / len(others)
            self.layouts += one.layouts
            self.reports += one.reports
            self.devices += one.devices
            self.peak = max(self.peak, one.peak)
            self.rows += one.rows

    def report(self, found: dict[int, Outcome], count: int, options: Options, since: float) -> FitReport:
        """The report of ``count`` problems, of which some were found, since perf_counter() was ``since``."""
        outcomes, reports = [found[place] for place in sorted(found)], self.reports
        primal, dual = sum(one.primal for one in outcomes), sum(one.dual for one in outcomes)
        violation = max((one.violation for one in outcomes), default=np.inf)
        steps = sum(one.steps for one in outcomes)
        statuses = [self.statuses[place] for place in sorted(self.statuses)]
        within = Status.GAP if Status.GAP in statuses else Status.TOLERANCE
        status = next((one for one in statuses if not one.converged), within)
        if len(found) < count:  # what has no coefficients yet has no objective, and no optimality
            status, primal, violation = Status.MAX_TIME, np.inf, np.inf
        total = perf_counter() - since
        if count == len(reports) == 1:  # it says more of itself
            parts = {**reports[0].seconds, "check": self.seconds.get("check", 0.0), "other": 0.0, "total": 0.0}
            return replace(reports[0], seconds={**parts, "other": total - sum(parts.values()), "total": total})
        whole = count - len(reports) - self.recalled
        words = f"{whole} problems of up to {self.most} rows solved whole, {len(reports)} by decomposition"
        words = words if self.most or self.alone else HostFit.reason
        words += f", {self.recalled} solved by the fit before, as its checkpoint says" if self.recalled else ""
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
            rows_computed=self.rows + sum(one.rows_computed for one in reports),
            bytes_held=max([self.peak, *(one.bytes_held for one in reports)]),
            seconds={**self.seconds, "other": total - sum(self.seconds.values()), "total": total},
            device=" and ".join(dict.fromkeys(self.devices or [str(find(one)) for one in listed(options.device)])),
            layout="; ".join(dict.fromkeys([*self.layouts, *sorted(one.layout for one in reports)])),
            working_set_size=max([0, *(len(one.b) for one in outcomes), *(one.working_set_size for one in reports)]),
            dtype=min([*self.dtypes.values(), *(one.dtype for one in reports)], default=options.dtype),
            selection=words,
            layout_costs=self.plan.costs if self.plan else {},
            precision=self._precision(reports, options),
        )

    def _precision(self, reports: Sequence[FitReport], options: Options) -> str:
        """How kernel values were computed: of problems solved whole, and of each other one."""
        why = ": problems of few rows are solved whole" * (options.precision == "fast")
        whole = {f"{dtype}{why if dtype == 'float32' else ''}" for dtype in self.dtypes.values()}
        return "; ".join(sorted({*whole, *(one.precision for one in reports)})) or options.dtype


class Worker(NamedTuple):
    """A device, by the options of what is solved there, and the record of it."""

    options: Options
    record: Record


class Given(NamedTuple):
    """What all devices have in common: the rows X (n, d), or K (n, n) of a precomputed kernel; the members; what was
    found of them so far, by their places; left: how many seconds are; kept: where that is kept, if it is."""

    X: Any
    members: Sequence[Member]
    kernel: Kernel | Precomputed
    found: dict[int, Outcome]
    left: Callable[[], float]
    kept: Checkpoint | None

    def rows(self, rows: NDArray[np.intp]) -> Any:
        """What there is of some rows: themselves, or the kernel values between them."""
        return self.X[np.ix_(rows, rows)] if isinstance(self.kernel, Precomputed) else self.X[rows]


def as_outcome(s: Solution) -> Outcome:
    """A solution of one problem as solves of several have it."""
    primal, dual, violation = (float(array[0]) for array in (s.primal, s.dual, s.violation))
    sure = s.status is Status.TOLERANCE
    return Outcome(s.b[0], s.rho[0], primal, dual, violation, int(s.steps[0]), s.error_bound, s.exact_rows, sure)
