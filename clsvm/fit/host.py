"""Problems of few rows, finished on the host: K in float64, and the active set method (solvers/active_set.py).

For what pair steps on a device leave: coefficients that stand still in float32 though they are not at the optimum, and
problems on which pair steps go on for very long. What comes back needs no further certificate, since f is computed from
the coefficients in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm.errors import BufferSizeError, MemoryLimitError
from clsvm.gram import layouts
from clsvm.gram.exact import few_threads
from clsvm.gram.layouts.record import Plan
from clsvm.gram.products import Gram
from clsvm.kernels import Kernel, Precomputed
from clsvm.opencl.stream import Stream
from clsvm.problem import Constraint, Problem
from clsvm.report import Point, Progress, Status
from clsvm.solvers import Result, active_set, certificate
from clsvm.threads import go_on

Vector = NDArray[np.float64]
MOST, COUPLED = 4096, 600  # coefficients at most; of coupled problems, whose sums are as many as their rows
COPIES = 4  # of a matrix of all coefficients, beside K
LEAST = 4096  # pair steps that every problem is given, beside the profile's patience
COARSE, FINE = 3e-4, 1e-3  # a relative gap that says that tol is coarse for a problem; the share of tol aimed at then
FEW, FEW_COARSE = 256, 1e-5  # the same gap for so few rows at most, of which all this takes some milliseconds
SEVERAL = 200  # problems of one fit at most that are brought nearer to the optimum
EPS = certificate.EPS
CONSTANT = 0.25  # a mean of a row of K beyond this share of the centred diagonal: the means are taken off
QUICK = 1 << 26  # multiply-adds that take less than the making of a program
ON_HOST = 1 << 28  # multiply-adds of K up to which the host computes it, too


def most(problem: Problem) -> int:
    """Coefficients of such a problem at most."""
    return COUPLED if problem.constraint is Constraint.COUPLED else MOST


def takes(stream: Stream, problem: Problem) -> bool:
    """Whether a problem is small enough, and memory_limit holds what it needs."""
    size = problem.q.size
    return size <= most(problem) and 8 * (problem.n**2 + COPIES * size**2) <= stream.limit - stream.held


def holds(stream: Stream, shape: tuple[int, int]) -> bool:
    """Whether all of K of rows of that shape (n, d) is quickly made and kept on the host."""
    n, d = shape
    return n <= MOST and n * n * d <= QUICK and 16 * n * n <= stream.limit - stream.held


def aim(
    kernel: Kernel | Precomputed, shape: tuple[int, int], status: Status, gap: float, rough: bool, quick: bool
) -> float | None:
    """The share of tol that the host shall come to from a solution of pair steps over rows of that shape (n, d).

    None where there is nothing to gain. The host goes on with

    - what stalled;
    - what is within tol but may be far from the optimum, by its relative gap, where that is ``quick``;
    - what rounding in float64 on a device leaves too ``rough``, where the host is finer.
    """
    if status is Status.TOLERANCE and quick and gap > (FEW_COARSE if shape[0] <= FEW else COARSE):
        return FINE
    return 1.0 if status is Status.STALLED or (rough and finer(kernel, shape)) else None


def finer(kernel: Kernel | Precomputed, shape: tuple[int, int]) -> bool:
    """Whether the host computes distances of such rows from their differences, which loses no digits far from 0."""
    n, d = shape
    return isinstance(kernel, Kernel) and kernel.spec.of_distance and n * n * d <= ON_HOST


class Values(NamedTuple):
    """K (m, m) float64 of some rows, and its rounding error in units of eps. shift (m,): where K is not that of the
    rows themselves, which is K + shift 1' + 1 shift'."""

    K: NDArray[np.float64]
    scale: float
    shift: Vector | None = None

    def beyond(self, b: Vector) -> Vector | float:
        """What f of the rows themselves has beyond K b (problems, 1), for coefficients b that add up to 0."""
        return 0.0 if self.shift is None else (b @ self.shift)[:, None]


def _centred(values: Values, problem: Problem) -> Values:
    """K less the means of its rows and columns, where coefficients add up to 0: f is then another by one number for all
    rows, which the offset takes, a large constant is out of the rounding, and functions such as -|x - y|^2, which are
    positive for such coefficients alone, have no negative eigenvalue."""
    if not problem.balanced:
        return values
    means = values.K.mean(axis=1)
    size = float((values.K.diagonal() - 2 * means + means.mean()).mean())  # of K's diagonal then
    if np.abs(means).max() < CONSTANT * size:
        return values
    shift = means - (means.mean() + size) / 2  # (a mean of 0 would make K singular)
    return values._replace(K=values.K - shift[:, None] - shift, shift=shift)


def kernel_values(
    stream: Stream, X: Any, kernel: Kernel | Precomputed, plan: Plan | None, problem: Problem, scale: float
) -> Values:
    """K of the rows X, or X itself where it holds K, centred where that changes nothing. scale: the rounding error of
    values as devices compute them. With the linear kernel and dense rows these are centred, which loses no digits."""
    if isinstance(kernel, Precomputed) or plan is None:
        return _centred(Values(np.asarray(X, np.float64), scale), problem)
    m, d = X.shape
    if kernel.name == "linear" and not sp.issparse(X) and problem.balanced:
        centre = X.mean(axis=0, dtype=np.float64)
        rows = X - centre
        with few_threads(m):
            return Values(rows @ rows.T, scale, rows @ centre + centre @ centre / 2)
    if m * m * d > ON_HOST and stream.profile.wide == "double":
        try:
            with stream.tentative():
                gram = Gram(stream, layouts.build(stream, X, plan, "float64"), kernel)
                panel = gram.of_all()
                K = gram.values(panel, m).T
                stream.free(*panel.buffers(), *gram.rows.buffers())
            certificate.finite(K, kernel)
            return _centred(Values(K, scale), problem)
        except (MemoryLimitError, BufferSizeError):  # the device holds no panel: the host takes longer, and less
            pass
    with few_threads(m):
        K = kernel(X)
    certificate.finite(K, kernel)
    own = 2 * float(np.abs(K).max(initial=0.0)) if finer(kernel, X.shape) else scale
    return _centred(Values((K + K.T) / 2, min(scale, own)), problem)


@dataclass
class End:
    """What ends a solve on the host beside its tolerance, and who is told of it. most: steps of the active set.
    max_time: seconds. save: called with the best coefficients where the solve is interrupted."""

    gap_tol: float | None = None
    most: float = np.inf
    max_time: float = np.inf
    progress: Progress | None = None
    save: Callable[[Vector], None] | None = None


def solve(
    stream: Stream, values: Values, problem: Problem, start: Vector | None, tol: float, end: End, aim: float = 1.0
) -> Result:
    """Solve ``problem``, one or coupled ones, over K of ``values`` from feasible coefficients ``start`` (problems, m).
    aim: the share of tol at which the work ends."""
    began, best, K, status = perf_counter(), start, values.K, Status.STALLED
    stream.peak = max(stream.peak, stream.held + 8 * (K.size + COPIES * problem.q.size**2))
    if start is None:
        start = np.zeros(problem.q.shape) if problem.start is None else problem.start

    def going(found: active_set.Found) -> bool:
        nonlocal status, best
        go_on()
        best, now = found.b, perf_counter() - began
        if end.progress:
            nan = float("nan")
            end.progress(Point(now, found.steps, 0, nan, nan, nan, found.violation))
        if end.gap_tol is not None and certificate.reached(problem, found.b, found.f).gap <= end.gap_tol:
            status = Status.GAP
        elif now >= end.max_time:
            status = Status.MAX_TIME
        elif found.steps >= end.most:
            status = Status.MAX_ITER
        return status is Status.STALLED

    try:
        with few_threads(K.shape[0]):
            found = active_set.solve(K, problem, start, aim * tol, going, end.most)
    except KeyboardInterrupt:
        if end.save and best is not None:
            end.save(best)
        raise
    b, f = found.b, found.f + values.beyond(found.b)
    at = certificate.reached(problem, b, f)
    seconds, primal, dual = perf_counter() - began, float(at.primal.sum()), float(at.dual.sum())
    return Result(
        b=b,
        f=f,
        rho=at.rho,
        primal=primal,
        dual=dual,
        violation=at.violation,
        steps=found.steps,
        status=Status.TOLERANCE if at.violation <= tol else status,
        error_bound=EPS * values.scale * float(np.abs(b).sum(axis=1).max()),
        exact_rows=int(b.size),
        rows_computed=len(K),
        working_set=int(b.size),
        seconds={"active set": seconds},
        trace=(Point(seconds, found.steps, 0, primal, dual, at.gap, at.violation, len(K)),),
        dtype="float64",
    )
