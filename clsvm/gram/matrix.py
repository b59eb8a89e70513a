"""The kernel matrix itself, for whoever asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays
from sklearn.utils import check_array

from clsvm import arrays, kernels
from clsvm.arrays import Data
from clsvm.errors import naming, rows_of
from clsvm.gram import layouts
from clsvm.gram.exact import COPIES
from clsvm.gram.layouts import row_bytes
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures, outside, refuse
from clsvm.gram.products import Gram
from clsvm.gram.responses import CHUNK, PANEL, whole_tiles
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream

_DTYPES = [np.float64, np.float32]


def _checked(X: Any, name: str) -> Any:
    """Return rows as scikit-learn checks them, with their own name in errors."""
    with naming(name):
        return check_array(arrays.checked(X, name), accept_sparse="csr", dtype=_DTYPES, input_name=name)


def kernel_matrix(
    X: Any,
    Y: Any = None,
    kernel: str | Kernel = "rbf",
    *,
    device: Any = None,
    dtype: str = "float32",
    memory_limit: int | str | None = None,
    **params: Any,
) -> NDArray[Any]:
    """Compute K(X, Y) (n, m) in ``dtype`` on a device: X (n, d), Y (m, d), dense or sparse; Y=None is X.

    kernel: a Kernel, or a built-in's name with ``params``. memory_limit: of the device; the result is the host's. Where
    an inner value leaves the range of float32, values are computed in float64 and rounded; in float64 the host computes
    them where the device has no double precision.
    Raises ValueError or TypeError for bad input, DeviceError and BuildError where the machine fails.
    """
    if isinstance(kernel, Kernel) and params:
        raise TypeError(f"parameters {', '.join(params)} go with a kernel's name, got {kernel!r}")
    kernel = kernel if isinstance(kernel, Kernel) else kernels.make(kernel, **params)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    if words := kernel.beyond(dtype):
        raise ValueError(f"{words} for {dtype}")
    X, Y = _checked(X, "X"), None if Y is None else _checked(Y, "Y")
    X, Y = check_pairwise_arrays(X, Y, accept_sparse="csr", dtype=_DTYPES, ensure_all_finite=False)
    X, Y = arrays.canonical(X), arrays.canonical(Y)
    if sp.issparse(X) and sp.issparse(Y) and kernel.of_entries and arrays.by_far_empty(X):
        known = arrays.columns(X, Y)
        X, Y = arrays.numbered(X, known), arrays.numbered(Y, known)
    for name, rows in (("X", X), ("Y", Y)):
        with naming(name):
            kernel.check_domain(rows)
    out: NDArray[Any] = np.empty((X.shape[0], Y.shape[0]), dtype)
    if not out.size:
        return out
    with Stream(device, memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec)
        of_x, of_y = (measures(kernel, rows, plan).extent for rows in (X, Y))
        if dtype == "float32" and outside(kernel, of_x, of_y, dtype, X.shape[1]):
            dtype = "float64"  # the result keeps its own
        if dtype == "float64":
            refuse(kernel, of_x, of_y, X.shape[1])
        if stream.profile.lacks(dtype):
            step = max(1, CHUNK // (8 * COPIES * Y.shape[0]))
            for start in range(0, X.shape[0], step):
                out[start : start + step] = kernel(X[start : start + step], Y)
            return out
        _fill(stream, kernel, plan, dtype, X, Y, out)
    if not np.isfinite(out).all():
        i, j = np.argwhere(~np.isfinite(out))[0]
        raise ValueError(f"{kernel!r} is {out[i, j]} in {out.dtype} for row {i} of X and row {j} of Y")
    return out


def _fill(stream: Stream, kernel: Kernel, plan: Plan, dtype: str, X: Data, Y: Data, out: NDArray[Any]) -> None:
    """Put K(X, Y) into ``out`` by the device, some rows and some working vectors at a time."""
    itemsize, budget = np.dtype(dtype).itemsize, (stream.limit - stream.held) // 4
    step = whole_tiles(min(CHUNK, budget) // row_bytes(plan, X, itemsize))
    row = row_bytes(plan, Y, itemsize) + min(step, X.shape[0]) * itemsize
    capacity = min(whole_tiles(Y.shape[0]), whole_tiles(min(PANEL, budget) // row))
    for start in range(0, X.shape[0], step):
        rows = layouts.build(stream, X[start : start + step], plan, dtype, range(start, X.shape[0]))
        gram = Gram(stream, rows, kernel)
        for begin in range(0, Y.shape[0], capacity):
            with rows_of("Y"):
                right = layouts.build(stream, Y[begin : begin + capacity], plan, dtype, range(begin, Y.shape[0]))
            source = Gram(stream, right, kernel)
            panel = source.of_all(capacity)
            out[start : start + rows.n, begin : begin + right.n] = gram.values(panel, right.n)
            stream.free(*panel.buffers(), *source.buffers())
        stream.free(*gram.buffers())
