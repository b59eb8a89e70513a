"""How a solver ended, and where it stood at a moment."""

from __future__ import annotations

import enum
import math
from typing import NamedTuple, Protocol


class Status(enum.Enum):
    """How a solver ended; the value explains it."""

    TOLERANCE = "converged: the KKT violation is within tol"
    GAP = "converged: the relative duality gap is within gap_tol"
    RESIDUAL = "converged: the residual is within tol"
    MAX_ITER = "not converged: max_iter was reached before the tolerance"
    MAX_TIME = "not converged: max_time was over before the tolerance was reached"
    INTERRUPTED = "not converged: it was interrupted before the tolerance was reached"
    STALLED = "not converged: no further progress at the precision of the kernel values"
    COARSE = "not converged: rounding in float32 can hide more than the tolerance, and the device has nothing finer"
    PRECISION = "not converged: rounding in float64 itself can hide more than the tolerance"

    @property
    def converged(self) -> bool:
        return self in (Status.TOLERANCE, Status.GAP, Status.RESIDUAL)


def relative_gap(primal: float, dual: float) -> float:
    """2 (p - d) / (p + d), the measure of GTSVM (Cotter, Srebro, Keshet 2011, section 6).

    Where p + d is not positive there is nothing to relate the gap to, and it is p - d itself. Infinite where the primal
    objective is not known.
    """
    if not math.isfinite(primal):
        return math.inf
    return 2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual


class Point(NamedTuple):
    """Where a solver stood at one moment.

    seconds: since the solver's start. steps: pair updates. outer: working sets. primal, dual, gap, violation: as in
    :class:`FitReport`, nan where they were not evaluated. rows: of the kernel matrix, computed so far.
    """

    seconds: float
    steps: int
    outer: int
    primal: float
    dual: float
    gap: float
    violation: float
    rows: int = 0


class Progress(Protocol):
    """Show a fit while it runs."""

    def __call__(self, point: Point) -> None:
        """Show where the solver stands."""

    def phase(self, words: str) -> None:
        """Show what the fit does until the next point: a part of it that has no points of its own."""
