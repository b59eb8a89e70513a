"""The problem of a machine by itself: one of few rows as a member of a batch, which takes a tenth of the launches, else
by decomposition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clsvm.fit import several, sharded, train
from clsvm.fit.prepare import Vector
from clsvm.fit.trained import Several
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import default_profile, find, listed
from clsvm.parameters import Options
from clsvm.problem import Constraint, Problem
from clsvm.report import Point
from clsvm.solvers.member import Member


def solve(
    X: Any, problem: Problem, kernel: Kernel | Precomputed, options: Options, start: Vector | None, since: float
) -> Several:
    """:func:`clsvm.fit.train.train`, with b (n,), offsets and steps of each of its problems in order."""
    if not _whole(X, problem, options):
        trained = train.train(X, problem, kernel, options, start, since)
        solution = trained.solution
        return Several([*solution.b], solution.rho, solution.dual, solution.steps, trained.report, trained.plan)
    member = Member(np.arange(problem.n), problem, None if start is None else start[0])
    made = several.train(X, [member], kernel, options, since)
    report = replace(made.report, outer_steps=max(int(np.isfinite(made.report.violation)), made.report.outer_steps))
    if not report.trace:
        of_end = (report.steps, report.outer_steps, report.primal, report.dual, report.gap, report.violation)
        end = Point(report.seconds["total"], *of_end, report.rows_computed)
        report = replace(report, trace=(end,), selection="all rows are one working set")
    return replace(made, report=report)


def _whole(X: Any, problem: Problem, options: Options) -> bool:
    """Whether a problem is a batch's: of few rows, alone, on one device that has double precision, with nothing asked
    that a batch does not do."""
    if problem.problems > 1 or problem.constraint is Constraint.COUPLED:
        return False
    if sharded.elsewhere(X) or len(there := listed(options.device)) > 1:
        return False
    profile = default_profile(find(there[0]))
    nothing = options.gap_tol is None and options.checkpoint is None
    auto = options.working_set_size == options.layout == "auto"
    values = np.dtype(options.dtype).itemsize * problem.n**2  # bytes of all of K
    kept = options.cache_size == "auto" or 1e6 * float(options.cache_size) >= values
    return nothing and auto and kept and profile.wide == "double" and problem.n <= profile.alone
