"""The dual problems that the solver takes, as records, and how each task builds its own.

In signed coefficients b (one for each row of each problem; b_i = y_i a_i for classification):

    minimise 1/2 b'Kb + q'b   subject to   lo <= b <= hi,  sum b = 0

with gradient f = K b + q, offset rho and decision values K b - rho. The primal that belongs to it has the loss
max(lo (rho - f), hi (rho - f)) for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Problems over one set of rows: lo, hi, q, each (problems, n) float64; a row with lo = hi = 0 is not in it."""

    lo: Vector
    hi: Vector
    q: Vector

    @property
    def problems(self) -> int:
        return int(self.q.shape[0])

    @property
    def n(self) -> int:
        return int(self.q.shape[1])


def c_svc(signs: Vector, C: Vector) -> Problem:
    """C-SVC (GTSVM, equation 2): signs (problems, n) of +1, -1 or 0 (row not in the problem), C (problems, n)."""
    box = signs * C
    return Problem(np.minimum(box, 0), np.maximum(box, 0), -signs.astype(np.float64))
