"""Decide for which rows kernel values in float32 are precise enough.

Rounding errors of a kernel value K(x, y) depend on the squared norms of the rows x and y. For an element-wise kernel
function, K(x, y) = f(sum_j e(x_j, y_j)), they also depend on the largest and smallest entries of the rows.

    measures: compute the norms and the largest and smallest absolute entries of rows on the host.
    measured: read the norms from the device if norms suffice, else call ``measures``.
    outside, check_range: test whether intermediate values of K leave the range of a dtype.
    scales: estimate the rounding errors of kernel values in a fit.
    RowPrecision: find the rows whose decision values are precise enough in float32.

An Extent (clsvm/kernels/expression.py) holds the largest and smallest squared norm and absolute entry in a set of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.gram.layouts.record import Plan, Rows
from clsvm.kernels import Kernel, underflow
from clsvm.kernels.expression import INVALID, Extent
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
# LOST: largest accepted error of kernel values by overflow or underflow, divided by the largest kernel value.
LOST = 1e-4
EPS = float(np.finfo(np.float64).eps)
DECISION_ERROR = 5e-3  # largest accepted error bound of a decision value computed from float32 kernel values


class Measures(NamedTuple):
    """Hold the squared norms and absolute entries of n rows from which rounding errors of kernel values are estimated.

    Attributes
    ----------
    sizes
        (n,) the squared norm of each row. For an element-wise kernel function, K(x, y) = f(sum_j e(x_j, y_j)), the
        number of row x is instead an estimate of the largest |sum_j e(x_j, y_j)| over all rows y (Kernel.sizes).
    high
        (n,) the largest absolute entry of each row for element-wise kernel functions; (0,) for others.
    low
        (n,) the smallest nonzero absolute entry of each row for element-wise kernel functions; (0,) for others.
    """

    sizes: Vector
    high: Vector
    low: Vector

    @property
    def extent(self) -> Extent:
        """Return four numbers: the maximum and minimum of ``sizes``, the maximum of ``high``, the minimum of ``low``.

        The array ``sizes`` holds the squared norms of the rows. The arrays ``high`` and ``low`` hold the largest and
        the smallest nonzero absolute entry of each row. A minimum is taken over the positive numbers of an array. If an
        array has no positive number, its maximum and minimum are 0.
        """
        return Extent(_most(self.sizes), _least(self.sizes), _most(self.high), _least(self.low))

    def some(self, rows: NDArray[Any]) -> Measures:
        """Return the Measures of some of the rows. ``rows`` are the indices of these rows.

        The Measures of a row are its squared norm, its largest absolute entry and its smallest nonzero absolute entry.
        For kernel functions of inner products, they are only the squared norm.
        """
        return Measures(self.sizes[rows], *(entries[rows] if len(entries) else entries for entries in self[1:]))


def _most(numbers: Vector) -> float:
    return float(numbers.max(initial=0.0))


def _least(numbers: Vector) -> float:
    return float(numbers[numbers > 0].min(initial=np.inf)) if numbers.any() else 0.0


def measures(kernel: Kernel, X: Data, plan: Plan) -> Measures:
    """Compute on the host the Measures of the rows of X minus the vector plan.centre.

    The Measures are the squared norm, the largest absolute entry and the smallest nonzero absolute entry of each row.
    For kernel functions of inner products, they are only the squared norm.
    """
    step = max(1, (1 << 22) // max(1, X.shape[1]))
    found = [(np.zeros(0), np.zeros(0), np.zeros(0))]
    for start in range(0, X.shape[0], step):
        some = X[start : start + step]
        block = arrays.centred(some if sp.issparse(some) else np.asarray(some), plan.centre)
        found.append((kernel.sizes(block), *(_entries(block) if kernel.spec.element else found[0][:2])))
    return Measures(*map(np.concatenate, zip(*found, strict=True)))


def _entries(X: Data) -> tuple[Vector, Vector]:
    """Return two arrays (n,): the largest absolute entry of each row, and the smallest nonzero one. Zero rows get 0."""
    if sp.issparse(X):
        rows, sizes = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), np.abs(X.data, dtype=np.float64)
        high, low = np.zeros(X.shape[0]), np.full(X.shape[0], np.inf)
        np.maximum.at(high, rows, sizes)
        np.minimum.at(low, rows[sizes > 0], sizes[sizes > 0])
    else:
        sizes = np.abs(X, dtype=np.float64)
        high, low = sizes.max(axis=1, initial=0.0), sizes.min(axis=1, initial=np.inf, where=sizes > 0)
    return high, np.where(high > 0, low, 0.0)


def outside(kernel: Kernel, rows: Extent, others: Extent, dtype: str, d: int) -> bool:
    """Return whether intermediate values of K leave the range of ``dtype`` and cause too large an error.

    An error is too large if it exceeds LOST times the largest kernel value. K is computed between two sets of rows.
    ``rows`` and ``others`` are the Extents of the two sets: their largest and smallest squared norm and absolute entry.
    Rows have d features.
    """
    found = kernel.evaluation(rows, others, dtype, d)
    return found.outside > LOST * found.largest


def check_range(kernel: Kernel, rows: Extent, others: Extent, d: int, which: str = "", dtype: str = "float64") -> None:
    """Raise ValueError if intermediate values of K leave the range of ``dtype`` and cause too large an error.

    K is computed between two sets of rows. ``rows`` and ``others`` are the Extents of the two sets: their largest and
    smallest squared norm and absolute entry. ``which`` names the rows in the error message.
    """
    if outside(kernel, rows, others, dtype, d):
        both = rows.union(others)
        words = f"squared norms{which} from {both.least:.3g} to {both.largest:.3g}"
        if kernel.spec.element:
            words = f"entries{which} from {both.low:.3g} to {both.high:.3g}"
        raise ValueError(f"{words}: intermediate values of {kernel!r} leave the range of {dtype}; scale X")


class Scales(NamedTuple):
    """Hold the rounding errors of the kernel values of n rows.

    Attributes
    ----------
    in_dtype
        largest error of a kernel value in the dtype of K, in units of this dtype's eps.
    double
        largest error of a kernel value in float64, in units of float64's eps.
    sizes
        (n,) the squared norm of each row. For an element-wise kernel function, K(x, y) = f(sum_j e(x_j, y_j)), the
        number of row x is instead an estimate of the largest |sum_j e(x_j, y_j)| over all rows y (Measures.sizes).
        ``sizes`` is None for a precomputed kernel.
    extent
        four numbers. The first two are the largest and the smallest nonzero number in ``sizes``. For an element-wise
        kernel function, the last two are the largest and the smallest nonzero absolute entry of the rows. For other
        kernel functions, the last two are 0. ``extent`` is None for a precomputed kernel.
    """

    in_dtype: float
    double: float
    sizes: Vector | None = None
    extent: Extent | None = None


def scales(
    kernel: Kernel, sizes: Vector, extent: Extent, d: int, dtype: str, asked: str, error: float | None = None
) -> Scales:
    """Estimate the largest rounding error of a kernel value between two of n rows, in ``dtype`` and in float64.

    Return a Scales, which holds the two estimates, ``sizes`` and ``extent``. The unit of an estimate is the eps of the
    estimate's dtype.

    sizes: squared norm of each of the n rows, (n,). For an element-wise kernel function, other numbers replace the
        squared norms (Measures.sizes).
    extent: four numbers. The first two are the largest and the smallest nonzero number in ``sizes``. The last two are
        the largest and the smallest nonzero absolute entry of the rows, or 0 for kernel functions of inner products.
    d: number of features of a row.
    dtype: dtype in which kernel values are computed.
    asked: dtype that the user requested, for error messages.
    error: relative rounding error of an inner product in ``dtype``; None stands for the eps of ``dtype``.

    Raises ValueError if kernel values exceed the range of ``dtype``, or if intermediate values leave the range of
    float64.
    """
    size, least, *_ = extent
    single, double = (kernel.evaluation(extent, extent, one, d) for one in (dtype, "float64"))
    eps, most = float(np.finfo(dtype).eps), float(np.finfo(dtype).max)
    error = error or eps
    in_dtype = kernel.rounding(size, error, least, underflow(dtype, d)) * (error / eps)
    wide = kernel.rounding(size, EPS, least, underflow("float64", d))
    if not (single.largest <= most and wide < np.inf):
        raise ValueError(
            beyond(f"a value of {kernel!r} for these rows (inner products up to {size:.3g}) is too large", asked)
        )
    check_range(kernel, extent, extent, d)
    return Scales(min(max(in_dtype, single.error / eps), INVALID), max(wide, double.error / EPS), sizes, extent)


def measured(stream: Stream, rows: Rows, kernel: Kernel, X: Data, plan: Plan) -> Measures:
    """Return the Measures of the rows X, which ``rows`` holds on a device.

    The Measures are the squared norm of each row and, for element-wise kernel functions, its largest and smallest
    nonzero absolute entry. For element-wise kernel functions, the host computes the Measures from X. The host also
    computes them if a norm is so small that underflow of squares may have changed it. Otherwise the norms are read from
    the device.
    """
    eps, floor = float(np.finfo(rows.dtype).eps), underflow(rows.dtype, X.shape[1])
    found: Vector = stream.read(rows.xx, rows.dtype, rows.n_pad)[rows.position].astype(np.float64)
    # On the device, the square of a tiny entry becomes 0. If this may change a norm much, the host computes all norms.
    if kernel.spec.element or found.min(initial=np.inf) * eps < floor:
        return measures(kernel, X, plan)
    return Measures(found, found[:0], found[:0])


def beyond(what: str, dtype: str) -> str:
    """Return the error message for a quantity ``what`` that exceeds the range of ``dtype``."""
    return f"{what} for {dtype}: scale X" + (" or take dtype='float64'" * (dtype == "float32"))


class RowPrecision:
    """Tell for which rows float32 kernel values keep the error of a decision value below DECISION_ERROR.

    The error bound of a decision value grows with the coefficients and with the norm of the row. The result for a row
    does not depend on other rows.

    An Extent holds the largest and the smallest squared norm in a set of rows. For a kernel function
    K(x, y) = f(sum_j e(x_j, y_j)), an Extent also holds the largest and the smallest nonzero absolute entry.

    Rows are tested in groups. All rows within the Extent of the support vectors form one group. For any other row, the
    Extent of the support vectors is widened until it includes the row. If widening raises a maximum, the new maximum is
    rounded up to the next power 2^(i / 8) with an integer i. If widening lowers a minimum, the new minimum is rounded
    down to such a power. Rows with the same widened Extent form a group. Rounding keeps the number of groups small.

    span: Extent of the support vectors.
    weight: sum of the absolute coefficients of the decision function. If there are several decision functions, this is
        the largest of their sums.
    d: number of features, which is the number of terms in an inner product.

    Attributes
    ----------
    sufficient
        whether float32 is precise enough for rows within the Extent of the support vectors.
    """

    def __init__(self, kernel: Kernel, span: Extent, weight: float, d: int) -> None:
        self._kernel, self._span, self._weight, self._d = kernel, span, weight, d
        self._found: dict[tuple[str, Extent], bool] = {}
        self.sufficient = self._holds("float32", span)

    def _holds(self, dtype: str, rows: Extent) -> bool:
        """Return whether ``dtype`` is precise enough for all rows whose norms and entries are in given ranges.

        ``rows`` is an Extent, which holds the largest and smallest squared norm and absolute entry.
        """
        if (dtype, rows) not in self._found:
            info, both = np.finfo(dtype), rows.union(self._span)
            eps, (largest, least, *_) = float(info.eps), both
            error = eps * self._kernel.rounding(largest, eps, least, underflow(dtype, self._d))
            error = max(error, self._kernel.evaluation(rows, self._span, dtype, self._d).error)
            # |x - y|^2 must be in the range of dtype, and is up to four times as large as a squared norm
            within = 4 * largest < float(info.max) and error * self._weight <= DECISION_ERROR
            self._found[dtype, rows] = within
        return self._found[dtype, rows]

    def __call__(self, found: Measures, dtype: str = "float32") -> NDArray[np.bool_]:
        """Return for each row whether kernel values in ``dtype`` are precise enough for its decision value.

        ``found`` holds the squared norm and the largest and smallest absolute entry of each row.
        """
        out = np.full(len(found.sizes), self._holds(dtype, self._span))
        for extent, rows in self._beyond(found):
            out[rows] = self._holds(dtype, extent)
        return out

    def check(self, found: Measures) -> None:
        """Raise ValueError if kernel values between a row and the support vectors leave the range of float64.

        ``found`` holds the squared norm and the largest and smallest absolute entry of each row.
        """
        check_range(self._kernel, self._span, self._span, self._d, " of support vectors")
        for extent, _ in self._beyond(found):
            check_range(self._kernel, extent, self._span, self._d, " of rows and support vectors")

    def _beyond(self, found: Measures) -> Iterator[tuple[Extent, NDArray[np.intp]]]:
        """Yield groups of the rows whose norm or entries are outside the Extent of the support vectors.

        An Extent holds the largest and smallest squared norm of a set of rows, and their largest and smallest absolute
        entry. For each row outside, the Extent of the support vectors is widened until it includes the row. If widening
        raises a maximum, the new maximum is rounded up to the next power 2^(i / 8) with an integer i. If widening
        lowers a minimum, the new minimum is rounded down to such a power. Rows with the same widened Extent form a
        group. A group is yielded as its widened Extent and the indices of its rows.
        """
        sizes, high, low = found
        rows = np.stack([sizes, sizes, high, low][: 4 if len(high) else 2])
        limits, upper = np.array(self._span)[: len(rows), None], np.arange(len(rows))[:, None] % 2 == 0
        beyond = np.where(upper, rows > limits, (rows < limits) & (rows > 0))
        outside = np.flatnonzero(beyond.any(axis=0))
        if not outside.size:
            return
        eighths = 8 * np.log2(rows[:, outside], out=np.zeros((len(rows), outside.size)), where=beyond[:, outside])
        rounded = np.exp2(np.where(upper, np.ceil(eighths), np.floor(eighths)) / 8)
        extents, which = np.unique(np.where(beyond[:, outside], rounded, limits), axis=1, return_inverse=True)
        for number, numbers in enumerate(extents.T.tolist()):
            yield Extent(*numbers), outside[which.ravel() == number]
