"""Reports of fits: how a fit ended, how good the result is, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, ClassVar

from clsvm.report.status import Point

# The parts of GTSVM's figure 2 and the keys of ``FitReport.seconds`` that they sum; "other" is all the rest.
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "clustering": ("layout", "cluster"),
        "selection": ("select",),
        "gram": ("tile", "gram"),
        "subproblem": ("subproblem", "free"),
        "update": ("rows", "update"),
        "other": (),
    }
)


def by_part(seconds: Mapping[str, float], of: Mapping[str, tuple[str, ...]] = PARTS) -> dict[str, float]:
    """Return a report's seconds as parts, by default :data:`PARTS`, which sum to its "total", or to all seconds.

    Clustering is all that it takes to lay the rows out on the device; gram is K among the working set; update is kernel
    rows, computed or stored, and what they add to f. Source: Cotter, Srebro, Keshet 2011, figure 2.
    """
    parts = {part: sum(seconds.get(key, 0.0) for key in keys) for part, keys in of.items()}
    total = seconds.get("total", sum(seconds.values()))
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


class Record:
    """What the reports of all fits share: they are frozen dataclasses with ``seconds``, picklable, and JSON's.

    parts: of seconds, as :data:`PARTS`. curves: what falls until a fit converges, by its name in words: what a
    :class:`Point` of the trace calls it, and what the report does.
    """

    parts: ClassVar[Mapping[str, tuple[str, ...]]]
    curves: ClassVar[Mapping[str, tuple[str, str]]]
    status: str
    seconds: Mapping[str, float]
    trace: tuple[Point, ...]

    def __post_init__(self) -> None:
        for name, value in self._held():
            if isinstance(value, Mapping):
                object.__setattr__(self, name, MappingProxyType(dict(value)))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(dict(value) if isinstance(value, Mapping) else value for _, value in self._held())

    def to_dict(self) -> dict[str, Any]:
        """Return the record in JSON's types: ``trace`` a list of objects, numbers that are nan or infinite None."""
        return {name: _plain(value) for name, value in self._held()}

    def _held(self) -> list[tuple[str, Any]]:
        """Return the fields by name, in their order."""
        return [(one.name, getattr(self, one.name)) for one in fields(self)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class FitReport(Record):
    """The record of one fit of a support vector machine; frozen and picklable.

    primal, dual: objectives as in GTSVM, equations 1 and 2; the dual is maximised, and equal at the optimum.
    gap: 2 (primal - dual) / (primal + dual), or primal - dual where their sum is not positive.
    violation: KKT violation, max over low of f minus min over up of f, float64 sums over kernel values in ``dtype``,
    re-evaluated in float64 where ``error_bound`` says that this could change it (``exact_rows`` rows were).
    error_bound: largest error of f that rounding of the kernel values can have caused.
    steps: pair updates. outer_steps: working sets. rows_computed: rows of the kernel matrix (values that are mirror
    images do not count).
    bytes_held: the most that was held on the device at a time. seconds: by part, with "total" (:func:`by_part`); of
    machines that are dealt to several devices a part is the mean of theirs.
    trace: a :class:`Point` for each time the host looked. selection: why working set and cache have their sizes.
    layout_costs: what the choice of the layout estimated, in dense cells a row, by layout; of all rows, where several
    problems are of some each. Empty for kernel values that are given.
    precision: how they were computed: in ``dtype``, or what precision="fast" made of it: a device's matrix units, or
    why it was float32 after all.
    """

    parts = PARTS
    curves = MappingProxyType({"relative duality gap": ("gap", "gap"), "KKT violation": ("violation", "violation")})
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
    trace: tuple[Point, ...] = ()
    selection: str = ""
    layout_costs: Mapping[str, float] = field(default_factory=dict)
    precision: str = "float32"

    def __str__(self) -> str:
        gap = f"{self.gap:.3g}" if math.isfinite(self.gap) else str(self.gap)
        return (
            f"{self.status}; primal {self.primal:.9g}, dual {self.dual:.9g}, gap {gap}, "
            f"violation {self.violation:.3g}, {self.steps} steps, {self.rows_computed} rows, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )


@dataclass(frozen=True)
class NystromReport(Record):
    """The record of one fit of a machine on centres; frozen and picklable.

    objective: (1 / sum w) sum w l(f, y) + (penalty / 2) |f|^2. residual: the gradient's size over that at 0, in
    coordinates in which the Hessian is near the identity (:mod:`clsvm.nystrom.newton`): at most tol where it converged;
    sums in wide numbers of kernel values in ``dtype``.
    bound: the objective is above its least, over the span of the centres kept, by no more. It holds whether the fit
    converged or not, with what rounding in ``dtype`` can hide. Of several outputs the residual is the largest of
    theirs, and the bound the sum.
    steps: of conjugate gradients, a pass over all rows each. newton_steps: how often the gradient was computed anew.
    passes: over the rows, altogether. centers: how many there are, and why. sample: rows of which the preconditioner is
    made. rank: of K among the centres, by float64: coefficients of the others are 0. condition: at least so large is
    that of K among these; jitter: what its diagonal got.
    bytes_held: the most that was held on the device at a time. seconds: by part, with "total". layout: where rows and
    kernel values were, and why. factors: where those of the preconditioner were made, and why. trace: a :class:`Point`
    for each gradient, whose violation is the residual.
    """

    parts = MappingProxyType({name: (name,) for name in ("layout", "preconditioner", "solve")} | {"other": ()})
    curves = MappingProxyType({"residual": ("violation", "residual")})
    objective: float
    residual: float
    bound: float
    status: str
    converged: bool
    steps: int
    newton_steps: int
    passes: int
    centers: str
    sample: int
    condition: float
    jitter: float
    rank: int
    bytes_held: int
    seconds: Mapping[str, float]
    device: str
    layout: str
    factors: str
    dtype: str
    trace: tuple[Point, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.status}; objective {self.objective:.9g}, residual {self.residual:.3g}, {self.steps} steps, "
            f"{self.seconds.get('total', 0):.2f} s on {self.device}"
        )


def _plain(value: Any) -> Any:
    match value:
        case bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case Point():
            return _plain(value._asdict())
        case tuple():
            return [_plain(item) for item in value]
    raise TypeError(f"got {value!r}, expected a number, words, or a tuple or mapping of such")
