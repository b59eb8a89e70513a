"""One problem after another over the same rows: in float32, then in float64 where that is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from clsvm.fit import checkpoint, sharded
from clsvm.fit.alone import HostFit
from clsvm.fit.prepare import PreparedFit, Vector
from clsvm.fit.trained import At, Trained, reported
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.devices import listed
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.problem import Problem
from clsvm.report import Status
from clsvm.report.display import Display
from clsvm.solvers.member import Member


def train(
    X: Any, problem: Problem, kernel: Kernel | Precomputed, options: Options, start: Vector | None, since: float
) -> Trained:
    """Solve ``problem`` over the rows of X (n, d), dense or CSR (arrays.canonical), or over X = K (n, n) where the
    kernel is precomputed, from ``start`` where it is given.

    since: perf_counter() at which the fit began. float64 is taken where float32 cannot reach the tolerance. Raises
    ValueError where numbers are too large or memory too small, CheckpointError for a checkpoint of another fit. Rows
    for several devices, or that are elsewhere already, are solved in shards.
    """
    with checkpoint.opened(options, X, [Member(np.arange(problem.n), problem, start)], kernel) as kept:
        if kept is None:
            return _solved(X, problem, kernel, options, start, since, None)
        trained = _solved(X, problem, kernel, options, kept.b[0], since, kept.save)
        kept.stands(0, trained.solution.b)
        return trained


def _solved(
    X: Any,
    problem: Problem,
    kernel: Kernel | Precomputed,
    options: Options,
    start: Vector | None,
    since: float,
    save: Callable[[int, Vector], None] | None,
) -> Trained:
    if sharded.elsewhere(X) or len(listed(options.device)) > 1:
        return sharded.train(X, problem, kernel, options, start, since, save and partial(save, 0))
    return train_each(X, [problem], kernel, options, [start], since, save)[0]


def train_each(
    X: Any,
    problems: Sequence[Problem],
    kernel: Kernel | Precomputed,
    options: Options,
    starts: Sequence[Vector | None],
    since: float,
    save: Callable[[int, Vector], None] | None = None,
    ended: Callable[[int, Trained], object] = lambda i, one: None,
) -> list[Trained]:
    """:func:`train` for several problems of one constraint, one after another over the same rows and row cache;
    max_time is that of all together. save: called with the number of a problem and its coefficients from time to time.
    ended: told of each problem that nothing more is done for."""
    feasible = [None if b is None or not b.any() else p.feasible(b) for p, b in zip(problems, starts, strict=True)]
    made: list[Trained | None] = [None] * len(problems)
    begun: dict[int, float] = {}
    for dtype in ("float32", "float64") if options.dtype == "float32" else ("float64",):
        todo = [i for i, one in enumerate(made) if one is None or one.solution.status is Status.STALLED]
        if not todo:
            break
        began = perf_counter()
        with (
            Stream(options.device, options.memory_limit) as stream,
            Display(options.verbose, options.tol, options.gap_tol) as progress,
        ):
            ready: PreparedFit | HostFit = (
                HostFit(stream, X, kernel, options)
                if stream.profile.lacks(dtype)
                else PreparedFit(stream, X, kernel, options, dtype)
            )
            seconds = {"layout": perf_counter() - began} | ({} if begun else {"check": began - since})
            for i in todo:
                problem, now, before = problems[i], perf_counter(), made[i]
                taken = int(before.solution.steps.sum()) if before else 0
                begun.setdefault(i, now if begun else since)
                solution = ready.settle(
                    problem,
                    start=feasible[i],
                    max_iter=options.max_iter if options.max_iter < 0 else options.max_iter - taken,
                    max_time=None if options.max_time is None else options.max_time - (now - since),
                    progress=progress,
                    save=save and partial(save, i),
                    save_every=options.checkpoint_every,
                )
                if solution is None:
                    continue
                solution = solution.after(before.solution) if before else solution
                feasible[i] = problem.feasible(solution.b)
                where = ready.stream.peak, str(ready.stream.info), ready.describe(), ready.reason
                at, parts = At(*where, ready.plan, ready.precision), {**seconds, **solution.seconds}
                report = reported(solution, at, parts, perf_counter() - begun[i])
                made[i] = one = Trained(solution, report, ready.plan)
                seconds = {}
                if ready.last or solution.status is not Status.STALLED:
                    ended(i, one)
        if ready.last:
            break
    return [one for one in made if one is not None]
