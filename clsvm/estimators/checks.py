"""Checks of rows and kernel values before a fit, and words about a likely remedy after one."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from clsvm import arrays
from clsvm.errors import warn
from clsvm.kernels import Kernel, Precomputed

_LOOK = 20  # rows on which a kernel function is tried before anything else
_SCALED = 2000  # rows whose columns' scales are looked at where a fit did not converge
_ROUGH = 1e-6  # of the largest kernel value: beyond it, what is not symmetric shows in decision values
_APART, _LARGE = 1e3, 1e6  # factors between the scales of columns, and kernel values, that are hard to solve


def times(shape: tuple[int, ...]) -> str:
    """Return a shape in words: 3x4."""
    return "x".join(map(str, shape))


def symmetric(K: NDArray[Any]) -> NDArray[Any]:
    """Return kernel values K (n, n), or (K + K') / 2 where rounding has left them not quite symmetric.

    Raises ValueError where they differ by more than float32's rounding of the largest value.
    """
    step = max(1, (1 << 22) // len(K))
    worst = max(float(np.abs(K[i : i + step] - K[:, i : i + step].T).max()) for i in range(0, len(K), step))
    if worst > 1e-5 * float(np.abs(K).max()):
        raise ValueError(f"the kernel matrix is not symmetric: K(x, y) and K(y, x) differ by up to {worst:g}")
    if worst > _ROUGH * float(np.abs(K).max()):
        words = f"the kernel matrix is not quite symmetric: K and K' differ by up to {worst:.2g}"
        warn(f"{words}; the fit is to (K + K') / 2")
    return (K + K.T) / 2 if worst else K


def defined(made: type, base: type) -> set[str]:
    """Return the names that ``made``, a subclass of ``base``, and its other base classes define, but for those that
    every subclass gets from Python and scikit-learn."""

    class Bare(base):
        """Define nothing."""

    between = (one for one in made.__mro__ if one not in base.__mro__)
    return {name for one in between for name in vars(one)} - vars(Bare).keys()


def check_values(kernel: Kernel, X: Any) -> None:
    """Raise ValueError, from a few rows of X, for a kernel function that is not for such rows."""
    kernel.check_domain(X)
    few = X[:: -(-X.shape[0] // _LOOK)]
    K = kernel(few)
    with np.errstate(over="ignore"):
        held = np.isfinite((few.multiply(few) if sp.issparse(few) else few * few).sum())  # (else refused by its norms)
    if held and np.isnan(K).any():
        raise ValueError(f"{kernel!r} is nan for some rows of X")
    if np.isfinite(K).all() and np.abs(K - K.T).max() > 1e-9 * np.abs(K).max():
        raise ValueError(f"{kernel!r} is not symmetric: K(x, y) and K(y, x) differ by up to {np.abs(K - K.T).max():g}")


def remedy(kernel: Kernel | Precomputed, X: Any) -> str:
    """Return words about the scale of the columns of X where it is the likely cause of a failed fit, else ""."""
    if isinstance(kernel, Precomputed):
        return ""
    few = arrays.without_empty(X[:: -(-X.shape[0] // _SCALED)])
    with np.errstate(over="ignore"):
        spans = few.max(axis=0) - few.min(axis=0)
        spans = (spans.toarray() if sp.issparse(spans) else spans).ravel()
        largest = float(np.abs(kernel(few[:_LOOK])).max())
    spans = spans[spans > 0].astype(np.float64)
    apart = float(spans.max() / spans.min()) if len(spans) else 1.0
    if apart > _APART:
        words = f"the columns of X differ in scale by a factor of {apart:.0e}"
    elif largest > _LARGE:
        words = f"kernel values are as large as {largest:.0e}"
    else:
        return ""
    return f"; {words}: scikit-learn's {'MaxAbsScaler' if sp.issparse(X) else 'StandardScaler'} would help"


def variance(X: Any) -> float:
    """Return the variance of all cells of X; infinite or nan where it is beyond float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not sp.issparse(X):
            return float(X.var(dtype=np.float64))
        cells, data = X.shape[0] * X.shape[1], X.data.astype(np.float64)
        mean = data.sum() / cells
        return float((np.square(data - mean).sum() + (cells - len(data)) * mean**2) / cells)
