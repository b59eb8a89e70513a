"""What a fit says of itself: how it ended, how good the result is, what it cost."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Status(enum.Enum):
    """How a solver ended; the value explains it."""

    TOLERANCE = "converged: the KKT violation is within tol"
    GAP = "converged: the relative duality gap is within gap_tol"
    MAX_ITER = "not converged: max_iter was reached before the tolerance"
    STALLED = "not converged: no further progress at the precision of the kernel values"

    @property
    def converged(self) -> bool:
        return self in (Status.TOLERANCE, Status.GAP)


def relative_gap(primal: float, dual: float) -> float:
    """2 (p - d) / (p + d), the measure of GTSVM (Cotter, Srebro, Keshet 2011, section 6).

    Where p + d is not positive there is nothing to relate the gap to, and it is p - d itself.
    """
    return 2 * (primal - dual) / (primal + dual) if primal + dual > 0 else primal - dual


@dataclass(frozen=True)
class FitReport:
    """The record of one fit; frozen and picklable.

    primal, dual: objectives as in GTSVM, equations 1 and 2; the dual is maximised, and equal at the optimum.
    gap: 2 (primal - dual) / (primal + dual), or primal - dual where their sum is not positive.
    violation: KKT violation, max over low of f minus min over up of f, float64 sums over kernel values in ``dtype``,
    re-evaluated in float64 where ``error_bound`` says that this could change it (``exact_rows`` rows were).
    error_bound: largest error of f that rounding of the kernel values can have caused.
    steps: pair updates. outer_steps: working sets. rows_computed: rows of the kernel matrix.
    bytes_held: the most that was held on the device at a time. seconds: by part, with "total".
    """

    primal: float
    dual: float
    gap: float
    violation: float
    error_bound: float
    exact_rows: int
    status: str
    converged: bool
    steps: int
    outer_steps: int
    rows_computed: int
    bytes_held: int
    seconds: Mapping[str, float]
    device: str
    layout: str
    working_set_size: int
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", MappingProxyType(dict(self.seconds)))

    def __reduce__(self) -> tuple[object, ...]:
        fields = [getattr(self, name) for name in self.__dataclass_fields__]
        fields[list(self.__dataclass_fields__).index("seconds")] = dict(self.seconds)
        return FitReport, tuple(fields)

    def __str__(self) -> str:
        gap = f"{self.gap:.3g}" if math.isfinite(self.gap) else str(self.gap)
        return (
            f"{self.status}; primal {self.primal:.6f}, dual {self.dual:.6f}, gap {gap}, "
            f"violation {self.violation:.3g}, {self.steps} steps, {self.rows_computed} rows, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )
