"""How large rows are, and for which of them kernel values in float32 are fine enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.errors import ROW, RowError
from clsvm.gram.layouts.record import Plan, Rows
from clsvm.kernels import Kernel, underflow
from clsvm.kernels.expression import BROKEN, Extent
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
LOST = 1e-4  # share of the largest kernel value that leaving a type's range may cost
EPS = float(np.finfo(np.float64).eps)
DECISION_ERROR = 5e-3  # bound of a decision value's error above which kernel values are evaluated in float64


class Measures(NamedTuple):
    """The measures of n rows, from which rounding errors follow.

    sizes: (n,) by Kernel.sizes. high, low: the largest and the smallest nonzero absolute entry of each row, (n,), for
    element-wise kernels; (0,) for the others.
    """

    sizes: Vector
    high: Vector
    low: Vector

    @property
    def extent(self) -> Extent:
        """Return the extremes over all rows, 0 where there are none."""
        return Extent(_most(self.sizes), _least(self.sizes), _most(self.high), _least(self.low))

    def some(self, rows: NDArray[Any]) -> Measures:
        """Return the measures of some rows."""
        return Measures(self.sizes[rows], *(entries[rows] if len(entries) else entries for entries in self[1:]))


def _most(numbers: Vector) -> float:
    return float(numbers.max(initial=0.0))


def _least(numbers: Vector) -> float:
    return float(numbers[numbers > 0].min(initial=np.inf)) if numbers.any() else 0.0


def measures(kernel: Kernel, X: Data, plan: Plan) -> Measures:
    """Return the measures of the rows of X (n, d) as they are laid out, centred; some of them at a time."""
    step = max(1, (1 << 22) // max(1, X.shape[1]))
    found = [(np.zeros(0), np.zeros(0), np.zeros(0))]
    for start in range(0, X.shape[0], step):
        some = X[start : start + step]
        block = arrays.centred(some if sp.issparse(some) else np.asarray(some), plan.centre)
        found.append((kernel.sizes(block), *(_entries(block) if kernel.spec.element else found[0][:2])))
    return Measures(*map(np.concatenate, zip(*found, strict=True)))


def _entries(X: Data) -> tuple[Vector, Vector]:
    """Return the largest and the smallest nonzero absolute entry of each row, (n,) each, 0 for a row of zeros."""
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
    """Return whether inner values of K between rows and others of d features leave the range of ``dtype``, so that
    values are off by more than LOST of the largest."""
    found = kernel.evaluation(rows, others, dtype, d)
    return found.outside > LOST * found.largest


def refuse(kernel: Kernel, rows: Extent, others: Extent, d: int, which: str = "", dtype: str = "float64") -> None:
    """Raise ValueError where inner values of K between rows and others of d features leave the range of ``dtype``."""
    if outside(kernel, rows, others, dtype, d):
        both = rows.joined(others)
        words = f"squared norms{which} from {both.least:.3g} to {both.largest:.3g}"
        if kernel.spec.element:
            words = f"entries{which} from {both.low:.3g} to {both.high:.3g}"
        raise ValueError(f"{words} leave the range of {dtype} inside {kernel!r}: scale X")


class Scales(NamedTuple):
    """Rounding errors of kernel values of n rows, in units of eps.

    own: of their dtype, in its eps. double: of float64, in float64's. sizes, extent: of rows (n,), which the errors
    follow from; None for values that are given.
    """

    own: float
    double: float
    sizes: Vector | None = None
    extent: Extent | None = None


def scales(
    kernel: Kernel, sizes: Vector, extent: Extent, d: int, dtype: str, asked: str, error: float | None = None
) -> Scales:
    """Return the rounding errors of kernel values in ``dtype``, of rows of d features with such sizes.

    error: that of an inner product over its norms, where it is not the dtype's. Raises ValueError where values are too
    large for the dtype, in words for the one that was ``asked`` for, and where inner values leave the range of float64.
    """
    size, least, *_ = extent
    single, double = (kernel.evaluation(extent, extent, one, d) for one in (dtype, "float64"))
    eps, most = float(np.finfo(dtype).eps), float(np.finfo(dtype).max)
    error = error or eps
    own = kernel.rounding(size, error, least, underflow(dtype, d)) * (error / eps)
    wide = kernel.rounding(size, EPS, least, underflow("float64", d))
    if not (single.largest <= most and wide < np.inf):
        raise ValueError(beyond(f"{kernel!r} of these rows (inner products up to {size:.3g}) is too large", asked))
    refuse(kernel, extent, extent, d)
    return Scales(min(max(own, single.error / eps), BROKEN), max(wide, double.error / EPS), sizes, extent)


def measured(stream: Stream, rows: Rows, kernel: Kernel, X: Data, plan: Plan) -> Measures:
    """Return the measures of rows on a device, by their squared norms there where these say enough."""
    eps, floor = float(np.finfo(rows.dtype).eps), underflow(rows.dtype, X.shape[1])
    found: Vector = stream.read(rows.xx, rows.dtype, rows.n_pad)[rows.position].astype(np.float64)
    if kernel.spec.element or found.min(initial=np.inf) * eps < floor:  # (too small for the dtype is 0 there)
        return measures(kernel, X, plan)
    return Measures(found, found[:0], found[:0])


def beyond(what: str, dtype: str) -> str:
    """Return the words for numbers that ``dtype`` does not hold."""
    return f"{what} for {dtype}: scale X" + (" or take dtype='float64'" * (dtype == "float32"))


def terms(X: Data) -> int:
    """Return the most terms that an inner product of rows of X can have."""
    return int(np.diff(X.indptr).max(initial=0)) if sp.issparse(X) else int(X.shape[1])


class Reach:
    """For which rows float32 kernel values keep a decision value within DECISION_ERROR: coefficients near 1e4 turn the
    last bit of K into the third digit of the sum, and a row far out its own last bit.

    span: extent of the support vectors. weight: the largest sum of absolute coefficients. d: terms of an inner product.
    A row's answer depends on its own measures alone. Measures beyond the span are rounded to eighths of an octave.
    """

    def __init__(self, kernel: Kernel, span: Extent, weight: float, d: int) -> None:
        self._kernel, self._span, self._weight, self._d = kernel, span, weight, d
        self._found: dict[tuple[str, Extent], bool] = {}
        self.own = self._holds("float32", span)

    def _holds(self, dtype: str, rows: Extent) -> bool:
        """Return whether values in ``dtype`` are fine enough for rows of this extent."""
        if (dtype, rows) not in self._found:
            info, both = np.finfo(dtype), rows.joined(self._span)
            eps, (largest, least, *_) = float(info.eps), both
            error = eps * self._kernel.rounding(largest, eps, least, underflow(dtype, self._d))
            error = max(error, self._kernel.evaluation(rows, self._span, dtype, self._d).error)
            # (|x - y|^2 is up to four times as large)
            within = 4 * largest < float(info.max) and error * self._weight <= DECISION_ERROR
            self._found[dtype, rows] = within
        return self._found[dtype, rows]

    def __call__(self, found: Measures, dtype: str = "float32") -> NDArray[np.bool_]:
        """Return for each row whether ``dtype`` serves, by its measures."""
        out = np.full(len(found.sizes), self._holds(dtype, self._span))
        for extent, rows in self._beyond(found):
            out[rows] = self._holds(dtype, extent)
        return out

    def check(self, found: Measures, rows: NDArray[np.intp]) -> None:
        """Raise RowError for one of the rows, of these numbers, for which float64 does not serve either."""
        refuse(self._kernel, self._span, self._span, self._d, " of support vectors")
        for extent, which in self._beyond(found):
            try:
                refuse(self._kernel, extent, self._span, self._d, f" of row {ROW} and support vectors")
            except ValueError as error:
                raise RowError(str(error), int(rows[which[0]])) from None

    def _beyond(self, found: Measures) -> Iterator[tuple[Extent, NDArray[np.intp]]]:
        """Yield the extents of rows beyond the span, in steps of an eighth of an octave, and which rows have them."""
        span, (sizes, high, low) = self._span, found
        if not len(high) and sizes.max(initial=0.0) <= span.largest and sizes.min(initial=np.inf) >= span.least:
            return
        steps = [_stepped(sizes, span.largest, np.ceil), _stepped(sizes, span.least, np.floor)]
        if len(high):
            steps += [_stepped(high, span.high, np.ceil), _stepped(low, span.low, np.floor)]
        rows = np.flatnonzero(~np.isnan(steps).all(axis=0))
        if not rows.size:
            return
        each, which = np.unique(np.array(steps)[:, rows], axis=1, return_inverse=True)
        limits = np.array(span)[: len(steps), None]
        for number, numbers in enumerate(np.where(np.isnan(each), limits, np.exp2(each / 8)).T.tolist()):
            yield Extent(*numbers), rows[which.ravel() == number]


def _stepped(numbers: Vector, limit: float, rounded: Callable[..., Vector]) -> Vector:
    """Return the eighths of an octave of numbers beyond a limit, rounded away from it, nan for the others."""
    beyond = numbers > limit if rounded is np.ceil else (numbers < limit) & (numbers > 0)
    octaves = np.full(len(numbers), np.nan)
    octaves[beyond] = rounded(8 * np.log2(numbers[beyond]))
    return octaves
