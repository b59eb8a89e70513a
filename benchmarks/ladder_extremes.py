"""The smallest and the largest of n float32 and where they stand, in several forms, against reading alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.ladder_device import Bench, Launch


class Shape(NamedTuple):
    """Macros of extremes.cl."""

    lanes: int
    chains: int
    together: int


VECTOR_SHAPES = Shape(8, 2, 4), Shape(16, 2, 8)  # which of them keeps up with memory depends on the processor
GROUP_SHAPES = Shape(4, 4, 1), Shape(4, 2, 2), Shape(4, 2, 4)
PARTS = 8  # work-groups for each compute unit, at most


@dataclass(frozen=True)
class Form:
    """macros of extremes.cl; of its results: 0 the minimum, 1 the maximum; whether indices come with them."""

    name: str
    macros: tuple[str, ...]
    results: tuple[int, ...]
    indices: bool = True


FORMS = (
    Form("min", ("VALUES_ONLY",), (0,), False),
    Form("argmin", (), (0,)),
    Form("argmin ?:", ("TERNARY",), (0,)),
    Form("argmax", ("MAXIMUM",), (1,)),
    Form("argmin + argmax", ("BOTH",), (0, 1)),
)


def shapes(bench: Bench) -> tuple[Shape, ...]:
    """What a device may like; the best counts."""
    return VECTOR_SHAPES if bench.vector else GROUP_SHAPES


class Extremes:
    """One form over vectors of up to ``most`` numbers."""

    def __init__(self, bench: Bench, form: Form, most: int, shape: Shape | None = None) -> None:
        self.bench, self.form, self.shape = bench, form, shape or shapes(bench)[0]
        self.group = 1 if bench.vector else bench.profile.group
        lanes, chains, together = self.shape
        macros: dict[str, int | None] = dict.fromkeys(form.macros)
        macros |= {"GROUP": self.group, "LANES": lanes, "CHAINS": chains, "TOGETHER": together}
        self._stages = [bench.kernel("extremes", name, **macros) for name in ("extremes", "last")]
        parts = self._parts(most)[0] if bench.vector else PARTS * bench.units
        stream, room = bench.stream, 4 * len(form.results) * parts
        self._values, self._indices = stream.buffer(room), stream.buffer(room)
        self.value, self.index = stream.buffer(64), stream.buffer(64)

    def _parts(self, n: int) -> tuple[int, int]:
        """Parts and the numbers of one (which only the vector shape wants): pieces of 128 KB at least, whole steps."""
        step = self.shape.lanes * self.shape.chains * self.shape.together
        if not self.bench.vector:  # (as many as leave few numbers after the last whole step)
            whole = max(1, n // (self.group * step))
            return whole // -(-whole // (PARTS * self.bench.units)), 0
        piece = -(-max(-(-n // 128), 32768) // step) * step
        return -(-n // piece), piece

    def launch(self, x: Any, n: int) -> Launch:
        """Reduces x[:n]; one stage where one part is all."""
        first, last = self._stages
        parts, piece = self._parts(n)
        size = (parts * self.group,), (self.group,)
        if parts == 1:
            return lambda: first(*size, n, piece, x, self.value, self.index)

        def both() -> None:
            first(*size, n, piece, x, self._values, self._indices)
            last((self.group,), (self.group,), parts, self._values, self._indices, self.value, self.index)

        return both

    def read(self) -> tuple[list[float], list[int]]:
        """Values and indices, of the minimum before the maximum."""
        count = len(self.form.results)
        values = self.bench.stream.read(self.value, np.float32, count)
        return values.tolist(), self.bench.stream.read(self.index, np.int32, count).tolist()

    def right(self, x: NDArray[np.float32]) -> bool:
        """Whether what it last found in x is what NumPy finds: of equal numbers the first."""
        expected = [int((x.argmin, x.argmax)[which]()) for which in self.form.results]
        values, indices = self.read()
        same = values == [float(x[i]) for i in expected]
        return same and (indices == expected or not self.form.indices)
