"""Several problems over rows that are elsewhere, one after another: see several.py."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from clsvm.fit import sharded
from clsvm.fit.trained import Several, together
from clsvm.kernels import Kernel, Precomputed
from clsvm.parameters import Options
from clsvm.solvers.member import Member


def train(
    X: sharded.RemoteRows, members: Sequence[Member], kernel: Kernel | Precomputed, options: Options, since: float
) -> Several:
    """several.train of rows (n, d) that are elsewhere: each member is a problem over all of them."""
    found, reports = [], []
    for member in members:
        left = None if options.max_time is None else options.max_time - (perf_counter() - since)
        start = None if member.start is None else np.zeros((1, X.shape[0]))
        if start is not None:
            start[0, member.rows] = member.start
        problem = member.problem.among(member.rows, X.shape[0])
        one = sharded.train(X, problem, kernel, options.but(max_time=left), start, perf_counter())
        found.append((one.solution.b[0, member.rows], one.solution.rho, one.solution.dual, one.solution.steps))
        reports.append(one.report)
    b, rho, dual, steps = zip(*found, strict=True)
    report = together(reports, perf_counter() - since)
    return Several(list(b), np.concatenate(rho), np.concatenate(dual), np.concatenate(steps), report, one.plan)
