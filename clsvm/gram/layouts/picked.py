"""Some rows of an array that a device holds whole, as it came: laid out there, again and again, without the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.gram.layouts.record import Plan
from clsvm.opencl.stream import Buffer


class Picked:
    """The rows ``numbers`` of X (n, d), C-contiguous float32 or float64, that stand in ``source`` on a device, and the
    plan of all rows, dense.

    An index picks some of them; numpy.asarray brings them to the host.
    """

    ndim = 2

    def __init__(self, X: NDArray[Any], source: Buffer, plan: Plan, numbers: NDArray[Any]) -> None:
        self.X, self.source, self.plan, self.numbers = X, source, plan, np.asarray(numbers)
        self.shape, self.dtype, self.itemsize = (len(self.numbers), X.shape[1]), X.dtype, X.itemsize
        self.nbytes = X.nbytes  # of what is held

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> Picked:
        return Picked(self.X, self.source, self.plan, self.numbers[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.X[self.numbers], dtype)
