"""The kernel matrix itself, for whoever asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays

from clsvm import arrays, kernels
from clsvm.arrays import Data
from clsvm.gram import layouts
from clsvm.gram.precision import extent, sizes
from clsvm.gram.products import Gram
from clsvm.gram.responses import CHUNK, COPIES, PANEL, Vector, buffers_of, row_bytes, whole_tiles
from clsvm.kernels import Kernel, underflow
from clsvm.opencl.stream import Stream

_LOST = 1e-4  # of a kernel value


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
    """K(X, Y) (n, m) in ``dtype``, computed on a device: X (n, d), Y (m, d), dense or sparse; Y=None is X.

    kernel: a Kernel, or a built-in's name with ``params``. memory_limit: of the device; the result is the host's. Where
    inner products are too small for float32, values are computed in float64 and rounded; in float64 the host computes
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
    X, Y = check_pairwise_arrays(
        arrays.checked(X), arrays.checked(Y), accept_sparse="csr", dtype=[np.float64, np.float32]
    )
    X, Y = arrays.canonical(X), arrays.canonical(Y)
    if sp.issparse(X) and sp.issparse(Y) and kernel.of_entries and arrays.by_far_empty(X):
        known = arrays.columns(X, Y)
        X, Y = arrays.numbered(X, known), arrays.numbered(Y, known)
    kernel.check_domain(X)
    kernel.check_domain(Y)
    out: NDArray[Any] = np.empty((X.shape[0], Y.shape[0]), dtype)
    if not out.size:
        return out
    with Stream(device, memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec)
        found = np.concatenate([sizes(kernel, rows, plan) for rows in (X, Y)])
        dtype = _holding(kernel, found, (dtype, "float64"), X.shape[1])  # the result keeps its own
        if stream.profile.lacks(dtype):
            return _on_host(kernel, X, Y, out)
        itemsize, budget = np.dtype(dtype).itemsize, (stream.limit - stream.held) // 4
        step = whole_tiles(min(CHUNK, budget) // row_bytes(plan, X, itemsize))
        row = row_bytes(plan, Y, itemsize) + min(step, X.shape[0]) * itemsize
        capacity = min(whole_tiles(Y.shape[0]), whole_tiles(min(PANEL, budget) // row))
        for start in range(0, X.shape[0], step):
            rows = layouts.build(stream, X[start : start + step], plan, dtype, range(start, X.shape[0]))
            gram = Gram(stream, rows, kernel)
            for begin in range(0, Y.shape[0], capacity):
                right = layouts.build(stream, Y[begin : begin + capacity], plan, dtype, range(begin, Y.shape[0]))
                source = Gram(stream, right, kernel)
                panel = source.panel(capacity)
                K = gram.rows_of(panel, source)
                out[start : start + rows.n, begin : begin + right.n] = K.T[rows.position]
                stream.free(*panel.buffers(), *buffers_of(source))
            stream.free(*buffers_of(gram))
    return out


def _on_host(kernel: Kernel, X: Data, Y: Data, out: NDArray[Any]) -> NDArray[Any]:
    """``out`` filled by the kernel's oracle, some rows at a time."""
    step = max(1, CHUNK // (8 * COPIES * Y.shape[0]))
    for start in range(0, X.shape[0], step):
        out[start : start + step] = kernel(X[start : start + step], Y)
    return out


def _holding(kernel: Kernel, found: Vector, dtypes: Iterable[str], d: int) -> str:
    """The first of the dtypes in which what is lost of inner products that are too small does not show in K, for rows
    of those sizes. Raises ValueError where there is none."""
    largest, least = extent(found)
    for dtype in dtypes:
        eps = float(np.finfo(dtype).eps)
        lost = kernel.rounding(largest, eps, least, underflow(dtype, d)) - kernel.rounding(largest, eps, least)
        if not eps * lost > _LOST:  # (of what is too large it is nan: layouts.build refuses that)
            return dtype
    raise ValueError(f"squared norms of rows, down to {least:.3g}, are too small for {dtype}: scale X")
