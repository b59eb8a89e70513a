"""How large rows are, and for which of them kernel values in float32 are fine enough."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel, underflow

Vector = NDArray[np.float64]
DECISION_ERROR = 5e-3  # bound of a decision value's error above which kernel values are evaluated in float64


def sizes(kernel: Kernel, X: Data, plan: Plan) -> Vector:
    """Kernel.sizes of the rows as they are laid out, centred; some of them at a time."""
    step = max(1, (1 << 22) // max(1, X.shape[1]))
    some = (X[start : start + step] for start in range(0, X.shape[0], step))
    blocks = some if sp.issparse(X) else (np.asarray(block) for block in some)
    return np.concatenate([np.zeros(0), *(kernel.sizes(arrays.centred(block, plan.centre)) for block in blocks)])


def extent(sizes: Vector) -> tuple[float, float]:
    """(largest, smallest but 0) of the sizes; 0 where there are none."""
    return float(sizes.max(initial=0.0)), float(sizes[sizes > 0].min(initial=np.inf)) if sizes.any() else 0.0


def terms(X: Data) -> int:
    """The most terms that an inner product of rows of X can have."""
    return int(np.diff(X.indptr).max(initial=0)) if sp.issparse(X) else int(X.shape[1])


class Reach:
    """For which rows float32 kernel values keep a decision value within DECISION_ERROR: coefficients near 1e4 turn the
    last bit of K into the third digit of the sum, and a row far out its own last bit.

    span: largest and smallest size of the support vectors (:func:`extent`). weight: the largest sum of absolute
    coefficients. d: terms of an inner product. A row's answer is of its own size alone: of all sizes within the span,
    beyond it of steps of an eighth of an octave.
    """

    def __init__(self, kernel: Kernel, span: tuple[float, float], weight: float, d: int) -> None:
        self._kernel, self._span, self._weight = kernel, span, weight
        self._floor = underflow("float32", d)
        self._found: dict[float, bool] = {}
        self.own = self._holds(*span)

    def _holds(self, largest: float, least: float) -> bool:
        info = np.finfo(np.float32)
        eps, within = float(info.eps), 4 * largest < float(info.max)  # (|x - y|^2 is up to four times as large)
        return within and eps * self._kernel.rounding(largest, eps, least, self._floor) * self._weight <= DECISION_ERROR

    def __call__(self, sizes: Vector) -> NDArray[np.bool_]:
        """Of each row, by its size."""
        largest, least = self._span
        beyond = (sizes > largest) | ((sizes < least) & (sizes > 0))
        out = np.full(len(sizes), self.own)
        if not beyond.any():
            return out
        with np.errstate(divide="ignore"):
            octaves = 8 * np.log2(sizes)
        steps = np.where(sizes > largest, np.ceil(octaves), np.where(sizes < least, np.floor(octaves), 0.0))
        for step in np.unique(steps[beyond]).tolist():
            if step not in self._found:
                size = float(np.exp2(step / 8))
                self._found[step] = self._holds(max(size, largest), min(size, least) if least else size)
            out[beyond & (steps == step)] = self._found[step]
        return out
