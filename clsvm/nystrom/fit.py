"""One fit of a machine on centres: rows and centres on a device, the preconditioner on the host, Newton's method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.gram.matrix import kernel_matrix
from clsvm.kernels import Kernel
from clsvm.nystrom import newton
from clsvm.nystrom.centers import Centers
from clsvm.nystrom.newton import Task
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.opencl.stream import Stream
from clsvm.report import NystromReport, Status
from clsvm.report.display import Display

Vector = NDArray[np.float64]
COARSE = 1e7  # a condition of K among the centres beyond which float32 is too coarse: T^-1 enlarges its errors
SINGLE = 1e-6  # of K's diagonal: the jitter that leaves T as well conditioned as float32 wants, where nothing is finer


@dataclass(frozen=True)
class Options:
    """What a fit asks, by the parameters' names."""

    tol: float
    max_iter: int
    dtype: str
    device: Any
    memory_limit: int | str | None
    verbose: Any
    callback: newton.Callback | None


@dataclass(frozen=True)
class Trained:
    """Coefficients (k, m), the report, and what a model of it needs to know."""

    alpha: Vector
    report: NystromReport
    plan: Plan


def train(
    X: Data,
    task: Task,
    kernel: Kernel,
    centers: Centers,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    since: float,
) -> Trained:
    """Fit ``task`` over the rows of X (n, d), dense or CSR, from coefficients ``start`` (k, m) where they are given.
    random: what draws the sampled rows. since: perf_counter() at which the fit began.

    float64 is taken where float32 is too coarse: where K among the centres is ill-conditioned, or coefficients turn out
    so large that rounding of K shows. Raises ValueError where memory is too small or the kernel function is no kernel
    for these centres.
    """
    clock = _Clock(since)
    with Stream(options.device, options.memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec)
        finest, device = stream.profile.finest, str(stream.info)
    clock.lap("check")
    given = {"device": options.device, "memory_limit": options.memory_limit}
    K = kernel_matrix(centers.rows, kernel=kernel, dtype="float64", **given)
    if not np.isfinite(K).all():
        raise ValueError(f"{kernel!r} is not finite for some pairs of centres")
    preconditioner = Preconditioner(K, least=SINGLE if finest == "float32" else 0.0)
    clock.lap("preconditioner")
    dtypes = dict.fromkeys((options.dtype, finest))
    if preconditioner.condition > COARSE and finest in dtypes:
        dtypes = dict.fromkeys((finest,))
    found, peak, sample = None, 0, centers.places
    for dtype in dtypes:
        with Stream(options.device, options.memory_limit) as stream:
            cross = Cross(stream, X, centers.rows, kernel, plan, dtype, len(task.y))
            clock.lap("layout")
            sample = _sampled(cross, preconditioner, centers, task, options.tol, random)
            clock.lap("preconditioner")
            most = options.max_iter - (found.steps if found else 0)
            finer = partial(Cross, stream, X, centers.rows, kernel, plan, finest, len(task.y), keep=False)
            with Display(options.verbose, options.tol, violation="residual") as progress:
                given_it = (
                    start,
                    options.tol,
                    most,
                    dtype,
                    progress,
                    options.callback,
                    None if dtype == finest else finer,
                )
                now = newton.solve(cross, preconditioner, task, sample, *given_it)
            clock.lap("solve", now.seconds)
            found, start, peak = now.after(found), now.alpha, max(peak, stream.peak)
        if found.status is not Status.STALLED:
            break
    assert found is not None
    report = NystromReport(
        objective=found.objective,
        residual=found.residual,
        bound=found.bound,
        status=found.status.value,
        converged=found.status.converged,
        steps=found.steps,
        newton_steps=found.newton_steps,
        passes=found.passes,
        centers=centers.words,
        sample=len(K) if sample is None else len(sample),
        condition=preconditioner.condition,
        jitter=preconditioner.jitter,
        bytes_held=peak,
        seconds=clock.seconds(),
        device=device,
        layout=cross.describe(),
        dtype=finest if found.exact else dtype,
        trace=tuple(found.trace),
    )
    return Trained(found.alpha, report, plan)


def _sampled(
    cross: Cross,
    preconditioner: Preconditioner,
    centers: Centers,
    task: Task,
    tol: float,
    random: np.random.RandomState,
) -> NDArray[np.intp] | None:
    """Make the preconditioner of some rows, and return which they are; None: of centres that are no rows."""
    n, m = cross.n, cross.m
    s = sampled(n, m, cross.k, cross.cells, tol, task.loss.quadratic)
    if s <= m:
        return centers.places
    sample = np.sort(random.choice(n, s, replace=False)) if s < n else np.arange(n)
    preconditioner.sample(cross.values(sample), task.penalty)
    return sample


class _Clock:
    """Seconds by part."""

    def __init__(self, since: float) -> None:
        self._since = self._last = since
        self._spent: dict[str, float] = {}

    def lap(self, part: str, of_it: Mapping[str, float] = MappingProxyType({})) -> None:
        """Count the time since the last one as ``part``, but for ``of_it``."""
        now = perf_counter()
        for name, seconds in {part: now - self._last - sum(of_it.values()), **of_it}.items():
            self._spent[name] = self._spent.get(name, 0.0) + seconds
        self._last = now

    def seconds(self) -> dict[str, float]:
        total = perf_counter() - self._since
        return {**self._spent, "other": total - sum(self._spent.values()), "total": total}


def interrupted(status: str) -> bool:
    """Whether Ctrl-C ended a fit."""
    return status == Status.INTERRUPTED.value
