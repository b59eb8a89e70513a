"""What a fit comes to: the solution, its report, and what a model of it needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clsvm import solvers
from clsvm.gram.layouts.record import Plan
from clsvm.report import FitReport, relative_gap


@dataclass(frozen=True)
class Trained:
    """The solution, its report, and what a model of it needs to know."""

    solution: solvers.Solution
    report: FitReport
    plan: Plan | None


class At(NamedTuple):
    """Where a problem was solved. peak: the most bytes that a device held; layout: words; reason: why the working set
    and the row cache are as they are; plan: None for given values."""

    peak: int
    device: str
    layout: str
    reason: str
    plan: Plan | None


def reported(solution: solvers.Solution, at: At, seconds: dict[str, float], total: float) -> FitReport:
    """The report of a solution that took ``total`` seconds, of which ``seconds`` say where."""
    primal, dual = float(solution.primal.sum()), float(solution.dual.sum())
    return FitReport(
        primal=primal,
        dual=dual,
        gap=relative_gap(primal, dual),
        violation=float(solution.violation.max()),
        error_bound=solution.error_bound,
        exact_rows=solution.exact_rows,
        status=solution.status.value,
        converged=solution.status.converged,
        steps=int(solution.steps.sum()),
        outer_steps=solution.outer_steps,
        rows_computed=solution.rows_computed,
        bytes_held=at.peak,
        seconds={**seconds, "other": total - sum(seconds.values()), "total": total},
        device=at.device,
        layout=at.layout,
        working_set_size=solution.working_set,
        dtype=solution.dtype,
        trace=solution.trace,
        selection=at.reason,
        layout_costs=at.plan.costs if at.plan else {},
    )
