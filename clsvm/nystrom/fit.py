"""One fit of a machine on centres: rows and centres on a device, the preconditioner on the host, Newton's method."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.gram.matrix import kernel_matrix
from clsvm.kernels import Kernel
from clsvm.losses import Loss
from clsvm.nystrom import newton
from clsvm.nystrom.centers import Centers
from clsvm.nystrom.preconditioner import Preconditioner, sampled
from clsvm.opencl.stream import Stream
from clsvm.report import NystromReport, Status
from clsvm.report.display import Display

Vector = NDArray[np.float64]
COARSE = (
    1e7  # a condition of K among the centres from which float32 products are too coarse: T^-1 enlarges their errors
)


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
    """Coefficients (k, m) and offsets (k,), the report, and what a model of it needs to know."""

    alpha: Vector
    offset: Vector
    report: NystromReport
    plan: Plan


def train(
    X: Data,
    y: Vector,
    weights: Vector,
    loss: Loss,
    penalty: float,
    offset: Vector,
    kernel: Kernel,
    centers: Centers,
    options: Options,
    start: Vector | None,
    random: np.random.RandomState,
    since: float,
) -> Trained:
    """Fit targets y (k, n) over the rows of X (n, d), dense or CSR, with weights (n,) and offsets (k,), from
    coefficients ``start`` (k, m) where they are given. random: what draws the sampled rows. since: perf_counter() at
    which the fit began.

    float64 is taken where K among the centres is too ill-conditioned for float32. Raises ValueError where memory is too
    small or the kernel function is no kernel for these centres.
    """
    seconds = {"check": perf_counter() - since}
    with Stream(options.device, options.memory_limit) as stream:

        def lap(part: str, began: float) -> None:
            seconds[part] = seconds.get(part, 0.0) + perf_counter() - began

        began = perf_counter()
        plan = layouts.choose(stream.profile, X, kernel.spec)
        fine = stream.profile.finest
        K = kernel_matrix(
            centers.rows, kernel=kernel, device=options.device, dtype="float64", memory_limit=options.memory_limit
        )
        if not np.isfinite(K).all():
            raise ValueError(f"{kernel!r} is not finite for some pairs of centres")
        preconditioner = Preconditioner(K)
        lap("preconditioner", began)

        began = perf_counter()
        dtype = fine if preconditioner.condition > COARSE else options.dtype
        cross = Cross(stream, X, centers.rows, kernel, plan, dtype, len(y))
        lap("layout", began)

        began = perf_counter()
        n, m = X.shape[0], len(K)
        s = sampled(n, m, len(y), cross.cells, options.tol, loss.quadratic)
        sample = centers.places
        if s > m or sample is None:
            sample = np.sort(random.choice(n, s, replace=False)) if s < n else np.arange(n)
            preconditioner.sample(cross.values(sample))
        lap("preconditioner", began)

        began = perf_counter()
        task = newton.Task(loss, y, weights, offset, penalty, sample)
        with Display(options.verbose, options.tol, violation="residual") as progress:
            found = newton.solve(
                cross, preconditioner, task, start, options.tol, options.max_iter, dtype, progress, options.callback
            )
        lap("solve", began)
        for part, spent in found.seconds.items():
            seconds[part] = seconds.get(part, 0.0) + spent
            seconds["solve"] -= spent
        total = perf_counter() - since
        report = NystromReport(
            objective=found.objective,
            residual=found.residual,
            bound=found.bound,
            status=found.status.value,
            converged=found.status.converged,
            steps=found.steps,
            newton_steps=found.newton_steps,
            passes=cross.passes,
            centers=centers.words,
            sample=len(sample),
            condition=preconditioner.condition,
            jitter=preconditioner.jitter,
            bytes_held=stream.peak,
            seconds={**seconds, "other": total - sum(seconds.values()), "total": total},
            device=str(stream.info),
            layout=cross.describe(),
            dtype=dtype,
            trace=tuple(found.trace),
        )
    return Trained(found.alpha, offset, report, plan)


def interrupted(report: NystromReport) -> bool:
    """Whether Ctrl-C ended a fit."""
    return report.status == Status.INTERRUPTED.value
