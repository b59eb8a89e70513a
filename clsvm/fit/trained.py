"""What a fit comes to: the solution, its report, and what a model of it needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm import solvers
from clsvm.gram.layouts.record import Plan
from clsvm.report import FitReport, Status, relative_gap

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Trained:
    """The solution, its report, and what a model of it needs to know."""

    solution: solvers.Solution
    report: FitReport
    plan: Plan | None


@dataclass(frozen=True)
class Several:
    """Coefficients (m,) of each problem, offsets (problems, groups), dual objectives (problems,), nan where a problem
    was not begun, and pair steps of each, in order; one report."""

    b: list[Vector]
    rho: Vector
    dual: Vector
    steps: NDArray[np.int64]
    report: FitReport
    plan: Plan | None


class At(NamedTuple):
    """Where a problem was solved. peak: the most bytes that a device held; layout: words; reason: why the working set
    and the row cache are as they are; plan: None for given values; precision: words, where it is not the dtype."""

    peak: int
    device: str
    layout: str
    reason: str
    plan: Plan | None
    precision: str = ""


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
        precision=at.precision if at.precision and solution.dtype == "float32" else solution.dtype,
    )


def joined(parts: Sequence[Several], seconds: float) -> Several:
    """Return what several fits, one after another, came to as one: problems in order, one report of ``seconds``."""
    if len(parts) == 1:
        return parts[0]
    rho, dual, steps = (np.concatenate([getattr(one, name) for one in parts]) for name in ("rho", "dual", "steps"))
    report = together([one.report for one in parts], seconds)
    return Several([b for one in parts for b in one.b], rho, dual, steps, report, parts[0].plan)


def together(reports: Sequence[FitReport], seconds: float) -> FitReport:
    """One report of fits, one after another, that took so many seconds in all."""
    primal, dual = sum(one.primal for one in reports), sum(one.dual for one in reports)
    statuses = [one.status for one in reports]
    by_gap = Status.GAP.value if Status.GAP.value in statuses else Status.TOLERANCE.value
    status = next((one.status for one in reports if not one.converged), by_gap)
    parts: dict[str, float] = {}
    for one in reports:
        for part, spent in one.seconds.items():
            if part not in ("other", "total"):
                parts[part] = parts.get(part, 0.0) + spent
    return FitReport(
        primal=primal,
        dual=dual,
        gap=relative_gap(primal, dual),
        violation=max(one.violation for one in reports),
        error_bound=max(one.error_bound for one in reports),
        exact_rows=sum(one.exact_rows for one in reports),
        status=status,
        converged=all(one.converged for one in reports),
        steps=sum(one.steps for one in reports),
        outer_steps=sum(one.outer_steps for one in reports),
        rows_computed=sum(one.rows_computed for one in reports),
        bytes_held=max(one.bytes_held for one in reports),
        seconds={**parts, "other": seconds - sum(parts.values()), "total": seconds},
        device=" and ".join(dict.fromkeys(one.device for one in reports)),
        layout="; ".join(dict.fromkeys(one.layout for one in reports)),
        working_set_size=max(one.working_set_size for one in reports),
        dtype=min(one.dtype for one in reports),
        selection="; ".join(dict.fromkeys(one.selection for one in reports)),
        layout_costs=reports[0].layout_costs,
        precision="; ".join(dict.fromkeys(one.precision for one in reports)),
    )
