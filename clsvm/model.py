"""A finished kernel machine: support vectors, coefficients, offset; and its decision values on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays

from clsvm import kernels, layout
from clsvm.device import Buffer, Stream
from clsvm.gram import Gram, Panel, Update
from clsvm.kernels import Kernel
from clsvm.layout import Data, Plan

Vector = NDArray[np.float64]
_CHUNK = 256 << 20  # bytes of rows that are evaluated at a time
DECISION_ERROR = 5e-3  # bound of a decision value's error above which kernel values are evaluated in float64
_HOST = 1 << 22  # multiply-adds below which float64 values are computed on the host
_PANEL = 32 << 20  # bytes of support vectors that are evaluated at a time
_TILE = 64  # a multiple of every layout's lanes and panel blocks


def responses(
    stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, coefficients: Vector, dtype: str
) -> Vector:
    """c = K(X, support) coefficients' in ``dtype`` with sums in float64: (problems, n) for (problems, m) coefficients.

    Nothing of K is stored; rows and support vectors pass through bounded memory. A row's value does not depend on
    the other rows of the call. Raises ValueError where memory_limit does not hold one tile.
    """
    problems, m = coefficients.shape
    n, d = X.shape
    out = np.zeros((problems, n))
    if not (n and m):
        return out
    row = max(1, d * np.dtype(dtype).itemsize)
    budget = stream.limit - stream.held
    step = _whole(min(_CHUNK, budget // 4) // row) if plan.kind != "csr" else 1 << 16
    capacity = min(_whole(m), _whole(min(_PANEL, budget // 8) // row))
    support_step = max(capacity, step)
    everything = layout.build(stream, support, plan, dtype) if m <= support_step else None
    for start in range(0, n, step):
        rows = layout.build(stream, X[start : start + step], plan, dtype)
        gram = Gram(stream, rows, kernel)
        panel = gram.panel(capacity)
        c = stream.zeros(8 * problems * rows.n_pad)
        for begin in range(0, m, support_step):
            piece = slice(begin, min(begin + support_step, m))
            sv = everything or layout.build(stream, support[piece], plan, dtype)
            _add(gram, Gram(stream, sv, kernel), panel, coefficients[:, piece], c)
            if not everything:
                stream.free(*sv.buffers())
        out[:, start : start + step] = stream.read_wide(c, (problems, rows.n_pad))[:, rows.position]
        stream.free(c, panel.values, panel.uu, *rows.buffers())
    if everything:
        stream.free(*everything.buffers())
    return out


def _whole(rows: int) -> int:
    """So many rows in whole tiles of any layout, at least one; sums then group the same way however memory is."""
    return max(1, rows // _TILE) * _TILE


def _add(gram: Gram, source: Gram, panel: Panel, coefficients: Vector, c: Buffer) -> None:
    """c += K(X, support) coefficients', a panel of support vectors at a time."""
    stream, (problems, m) = gram.stream, coefficients.shape
    for first in range(0, m, panel.capacity):
        size = min(panel.capacity, m - first)
        weights = np.zeros((problems, panel.capacity))
        weights[:, :size] = coefficients[:, first : first + size]
        D = stream.wide(weights)
        at = stream.upload(source.rows.position[first : first + size])
        count = stream.upload(np.array([size], np.int32))
        source.gather(panel, at, count)
        gram.accumulate(panel, count, None, Update(problems, gram.rows.n_pad, c, D, panel.capacity))
        stream.finish()
        stream.free(D, at, count)


def exact_responses(stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, coefficients: Vector) -> Vector:
    """:func:`responses` in float64: on the device where it has it and room, else by the kernel's oracle on the host, as
    where there is so little of it that no program is worth building."""
    much = X.shape[0] * support.shape[0] * X.shape[1] > _HOST
    if much and stream.info.fp64 and stream.profile.wide == "double":
        plan = replace(plan, kind="dense") if plan.kind == "clustered" else plan  # too few rows to be worth clustering
        try:
            return responses(stream, kernel, plan, as_float64(X), as_float64(support), coefficients, "float64")
        except ValueError:  # what is left of the budget holds no tile of them
            pass
    out = np.zeros((len(coefficients), X.shape[0]))
    Y = dense(support)
    step = max(1, (64 << 20) // (8 * max(1, len(Y), X.shape[1])))
    for start in range(0, X.shape[0], step):
        out[:, start : start + step] = (kernel(dense(X[start : start + step]), Y) @ coefficients.T).T
    return out


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

    kernel: a Kernel, or a built-in's name with ``params``. memory_limit: of the device; the result is the host's.
    Raises ValueError or TypeError for bad input, DeviceError and BuildError where the machine fails.
    """
    if isinstance(kernel, Kernel) and params:
        raise TypeError(f"parameters {', '.join(params)} go with a kernel's name, got {kernel!r}")
    kernel = kernel if isinstance(kernel, Kernel) else kernels.make(kernel, **params)
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    if words := kernel.beyond(dtype):
        raise ValueError(f"{words} for {dtype}")
    X, Y = check_pairwise_arrays(X, Y, accept_sparse="csr", dtype=[np.float64, np.float32])
    X, Y = layout.canonical(X), layout.canonical(Y)
    kernel.check_domain(X)
    kernel.check_domain(Y)
    out: NDArray[Any] = np.empty((X.shape[0], Y.shape[0]), dtype)
    if not out.size:
        return out
    with Stream(device, memory_limit) as stream:
        plan = layout.choose(stream.profile, X, kernel.spec)
        row = X.shape[1] * np.dtype(dtype).itemsize
        budget = (stream.limit - stream.held) // 4
        step = _whole(min(_CHUNK, budget) // max(1, row)) if plan.kind != "csr" else 1 << 16
        capacity = min(_whole(Y.shape[0]), _whole(min(_PANEL, budget) // (row + step * np.dtype(dtype).itemsize)))
        for start in range(0, X.shape[0], step):
            rows = layout.build(stream, X[start : start + step], plan, dtype)
            gram = Gram(stream, rows, kernel)
            panel = gram.panel(capacity)
            for begin in range(0, Y.shape[0], panel.capacity):
                right = layout.build(stream, Y[begin : begin + panel.capacity], plan, dtype)
                K = gram.rows_of(panel, Gram(stream, right, kernel))
                K = K[:, rows.position] if plan.kind == "clustered" else K[:, : rows.n]
                out[start : start + rows.n, begin : begin + right.n] = K.T
                stream.free(*right.buffers())
            stream.free(panel.values, panel.uu, *rows.buffers())
    return out


def size(kernel: Kernel, X: Data, plan: Plan) -> float:
    """Kernel.size of the rows as they are laid out, centred; some of them at a time."""
    centre, largest = plan.centre, 0.0
    step = max(1, (1 << 22) // max(1, X.shape[1]))
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        if centre.any():
            rows = layout.centred_csr(rows, centre) if sp.issparse(X) else rows - centre
        largest = max(largest, kernel.size(rows))
    return largest


def as_float64(X: Data) -> Data:
    """X with float64 values; itself where it has them."""
    return X.astype(np.float64) if X.dtype != np.float64 else X


def dense(X: Data) -> NDArray[np.float64]:
    """X as a dense float64 array."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float64)


@dataclass(frozen=True)
class KernelModel:
    """A binary kernel machine.

    support_vectors (n_SV, d) float64 dense or CSR, grouped by class in the order of ``classes``; dual_coef (1, n_SV)
    float64 = y alpha with y = +1 for classes[1]; intercept (1,) float64; classes (2,) sorted; n_support (2,) int32.
    plan: the layout of its rows; None is chosen from the support vectors. dtype: of its kernel values.
    """

    kernel: Kernel
    support_vectors: Any
    dual_coef: Vector
    intercept: Vector
    classes: NDArray[Any]
    n_support: NDArray[np.int32]
    plan: Plan | None = None
    dtype: str = "float32"

    def decision_function(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> Vector:
        """sum_j dual_coef_j K(x, sv_j) + intercept for the rows of X (n, d), dense or CSR: (n,) float64.

        Raises ValueError where X has another number of features, or negative values and the kernel function is not for
        them, or memory_limit is too small for one tile.
        """
        d, X = self.support_vectors.shape[1], layout.canonical(X)
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"X has {X.shape[1] if X.ndim == 2 else X.shape} features, the model expects {d}")
        self.kernel.check_domain(X)
        with Stream(device, memory_limit) as stream:
            plan = self.plan or layout.choose(stream.profile, self.support_vectors, self.kernel.spec)
            if plan.kind != "csr" and sp.issparse(X) and not sp.issparse(self.support_vectors):
                X = X.toarray()
            dtype = self._precision(stream, plan)
            c = responses(stream, self.kernel, plan, X, self.support_vectors, self.dual_coef, dtype)
        values: Vector = c[0] + self.intercept[0]
        return values

    def _precision(self, stream: Stream, plan: Plan) -> str:
        """float64 where float32 kernel values could move a decision value by more than DECISION_ERROR (and the device
        has it): coefficients near 1e4 turn the last bit of K into the third digit of the sum."""
        eps = float(np.finfo(np.float32).eps)
        scale = self.kernel.rounding(size(self.kernel, self.support_vectors, plan), eps)
        small = eps * scale * float(np.abs(self.dual_coef).sum(axis=1).max(initial=0.0)) <= DECISION_ERROR
        return self.dtype if small or stream.profile.wide == "pair" else "float64"

    def predict(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> NDArray[Any]:
        """The class of each row: classes[1] where the decision value is positive."""
        positive = self.decision_function(X, device, memory_limit) > 0
        predicted: NDArray[Any] = self.classes[positive.astype(np.intp)]
        return predicted
