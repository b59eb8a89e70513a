"""A finished kernel machine: support vectors, coefficients, offset; and its decision values on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.metrics.pairwise import check_pairwise_arrays

from clsvm import csr, kernels, layout, probability
from clsvm.device import Buffer, Kept, Stream
from clsvm.gram import Gram, Panel, Update
from clsvm.kernels import Kernel, Precomputed
from clsvm.layout import Data, Plan

Vector = NDArray[np.float64]
_CHUNK = 256 << 20  # bytes of rows that are evaluated at a time
DECISION_ERROR = 5e-3  # bound of a decision value's error above which kernel values are evaluated in float64
_HOST = 1 << 22  # multiply-adds below which float64 values are computed on the host
_CLUSTERED = 1 << 30  # multiply-adds below which rows that are read once are not worth clustering
_PANEL = 32 << 20  # bytes of support vectors that are evaluated at a time
_TILE = 64  # a multiple of every layout's lanes and panel blocks


class Support:
    """Support vectors (m, d) on a device, as the working vectors of products with rows laid out by ``plan``.

    ``buffers`` may be kept for later calls, within a quarter of the memory that is free: panels of all of them, or
    their CSR rows; else there are none, and the support vectors pass through a panel in each call. No value depends on
    which it is. The rows are what is clustered: with the parts exchanged, as GTSVM has them (section 5.4), K has to be
    stored for its sums, which took twice as long with few features.
    """

    def __init__(
        self, stream: Stream, kernel: Kernel, plan: Plan, vectors: Data, dtype: str, ends: Sequence[int] = ()
    ) -> None:
        self.kernel, self.plan, self.vectors, self.dtype = kernel, plan, vectors, dtype
        self._single = plan if plan.kind == "csr" else replace(plan, kind="dense")  # read once: not worth clustering
        m, itemsize, budget = vectors.shape[0], np.dtype(dtype).itemsize, stream.limit - stream.held
        row, block = _row_bytes(plan, vectors, itemsize), 0
        if plan.kind == "csr":  # a panel of them holds a block at a time (gram.Panel)
            longest = np.sort(np.diff(sp.csr_matrix(vectors).indptr))[-_TILE:].sum()
            block = int(min(vectors.shape[1], longest) + 1) * _TILE * itemsize + 4 * vectors.shape[1]
        self._capacity = min(_whole(m + _TILE - 1), _whole(min(_PANEL, max(0, budget // 8 - block)) // row))
        self._pieces, self._groups = [], max(1, len(ends))  # a piece is of one group
        for group, (first, end) in enumerate(pairwise((0, *(ends or (m,))))):
            for begin in range(first, end, self._capacity):
                self._pieces.append((slice(begin, min(begin + self._capacity, end)), group))
        self._kept: list[_Piece] = []
        self.buffers: tuple[Buffer, ...] = ()
        if len(self._pieces) * (self._capacity * row + block) <= budget // 4:
            self._kept = [self._gathered(stream, piece) for piece, _ in self._pieces]
            self.buffers = tuple(buffer for piece in self._kept for buffer in piece.buffers)
        stream.finish()

    def _gathered(self, stream: Stream, piece: slice) -> _Piece:
        """A piece of them in a panel of its own."""
        gram = Gram(stream, layout.build(stream, self.vectors[piece], self._single, self.dtype), self.kernel)
        panel = gram.panel(self._capacity)
        at = stream.upload(gram.rows.position)
        count = stream.upload(np.array([gram.rows.n], np.int32))
        gram.gather(panel, at, count)
        if panel.listed:  # the panel is filled from the rows, a block at a time
            return _Piece(panel, count, (*panel.buffers(), count, at, *_buffers(gram)))
        stream.finish()
        stream.free(at, *_buffers(gram))
        return _Piece(panel, count, (*panel.buffers(), count))

    def responses(self, stream: Stream, X: Data, coefficients: Vector) -> Vector:
        """c = K(X, support) coefficients' with sums in float64: (problems, n) for (problems, m) coefficients; where the
        support vectors were given ``ends`` of groups, those of each group one after another, (groups * problems, n).

        Nothing of K is stored; rows pass through bounded memory. A row's value depends on neither the other rows of
        the call nor the memory. Raises ValueError where memory_limit does not hold one tile.
        """
        problems, n = len(coefficients), X.shape[0]
        out = np.zeros((self._groups * problems, n))
        row = _row_bytes(self.plan, X, np.dtype(self.dtype).itemsize) + 8 * problems * (self._groups - 1)
        step = _whole(min(_CHUNK, (stream.limit - stream.held) // 4) // row)
        for start in range(0, n, step):
            gram = Gram(stream, layout.build(stream, X[start : start + step], self.plan, self.dtype), self.kernel)
            rows = gram.rows
            sums = [stream.zeros(8 * problems * rows.n_pad) for _ in range(self._groups)]
            for number, (piece, group) in enumerate(self._pieces):
                part = self._kept[number] if self._kept else self._gathered(stream, piece)
                weights = np.zeros((problems, part.panel.capacity))
                weights[:, : piece.stop - piece.start] = coefficients[:, piece]
                D = stream.wide(weights)
                update = Update(problems, rows.n_pad, sums[group], D, part.panel.capacity)
                gram.accumulate(part.panel, part.count, None, update)
                stream.finish()
                stream.free(D, *(() if self._kept else part.buffers))
            for group, c in enumerate(sums):
                here = out[group * problems : (group + 1) * problems, start : start + step]
                here[:] = stream.read_wide(c, (problems, rows.n_pad))[:, rows.position]
            stream.free(*sums, *_buffers(gram))
        return out


class _Piece(NamedTuple):
    """Working vectors in a panel, how many there are, and every buffer of theirs."""

    panel: Panel
    count: Buffer
    buffers: tuple[Buffer, ...]


def _row_bytes(plan: Plan, X: Data, itemsize: int) -> int:
    """Bytes of a row of X as it is laid out, about."""
    if plan.kind == "csr":
        return 16 + (X.nnz if sp.issparse(X) else X.size) * (4 + itemsize) // max(1, X.shape[0])
    return max(1, X.shape[1] * itemsize)


def _buffers(gram: Gram) -> tuple[Buffer, ...]:
    """What rows and their products hold."""
    sums = () if gram.norms is gram.rows.xx else (gram.norms,)
    return (*gram.rows.buffers(), *sums)


def _whole(rows: int) -> int:
    """So many rows in whole tiles of any layout, at least one; sums then group the same way however memory is."""
    return max(1, rows // _TILE) * _TILE


def exact_responses(stream: Stream, kernel: Kernel, plan: Plan, X: Data, support: Data, coefficients: Vector) -> Vector:
    """:meth:`Support.responses` in float64: on the device where it has it and room, else by the kernel's oracle on the
    host, as where there is so little of it that no program is worth building."""
    cells = X.shape[0] * support.shape[0] * X.shape[1]
    if cells > _HOST and stream.info.fp64 and stream.profile.wide == "double":
        if plan.kind == "clustered" and cells < _CLUSTERED:
            plan = replace(plan, kind="dense")
        try:
            made = Support(stream, kernel, plan, as_float64(support), "float64")
            return made.responses(stream, as_float64(X), coefficients)
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
    X, Y = check_pairwise_arrays(csr.checked(X), csr.checked(Y), accept_sparse="csr", dtype=[np.float64, np.float32])
    X, Y = layout.canonical(X), layout.canonical(Y)
    kernel.check_domain(X)
    kernel.check_domain(Y)
    out: NDArray[Any] = np.empty((X.shape[0], Y.shape[0]), dtype)
    if not out.size:
        return out
    with Stream(device, memory_limit) as stream:
        plan = layout.choose(stream.profile, X, kernel.spec)
        itemsize, budget = np.dtype(dtype).itemsize, (stream.limit - stream.held) // 4
        step = _whole(min(_CHUNK, budget) // _row_bytes(plan, X, itemsize))
        row = _row_bytes(plan, Y, itemsize) + min(step, X.shape[0]) * itemsize
        capacity = min(_whole(Y.shape[0]), _whole(min(_PANEL, budget) // row))
        for start in range(0, X.shape[0], step):
            rows = layout.build(stream, X[start : start + step], plan, dtype)
            gram = Gram(stream, rows, kernel)
            for begin in range(0, Y.shape[0], capacity):
                right = layout.build(stream, Y[begin : begin + capacity], plan, dtype)
                source = Gram(stream, right, kernel)
                panel = source.panel(capacity)
                K = gram.rows_of(panel, source)
                K = K[:, rows.position] if plan.kind == "clustered" else K[:, : rows.n]
                out[start : start + rows.n, begin : begin + right.n] = K.T
                stream.free(*panel.buffers(), *_buffers(source))
            stream.free(*_buffers(gram))
    return out


def size(kernel: Kernel, X: Data, plan: Plan) -> float:
    """Kernel.size of the rows as they are laid out, centred; some of them at a time."""
    centre, largest = plan.centre, 0.0
    step = max(1, (1 << 22) // max(1, X.shape[1]))
    for start in range(0, X.shape[0], step):
        largest = max(largest, kernel.size(layout.centred(X[start : start + step], centre)))
    return largest


def as_float64(X: Data) -> Data:
    """X with float64 values; itself where it has them."""
    return X.astype(np.float64) if X.dtype != np.float64 else X


def dense(X: Data) -> NDArray[np.float64]:
    """X as a dense float64 array."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float64)


def pairs(k: int) -> list[tuple[int, int]]:
    """(0, 1), (0, 2), ..., (1, 2), ...: the pairs of k classes in the order of their problems."""
    return list(combinations(range(k), 2))


def votes(values: Vector, k: int) -> NDArray[np.intp]:
    """How many pairs each class wins, (n, k), by their decision values (n, pairs)."""
    won = np.zeros((len(values), k), np.intp)
    for p, (i, j) in enumerate(pairs(k)):
        first = values[:, p] > 0
        won[:, i] += first
        won[:, j] += ~first
    return won


CLASSIFIERS = ("c_svc", "nu_svc")  # LIBSVM's words: with classes, and
TASKS = (*CLASSIFIERS, "one_class", "epsilon_svr", "nu_svr")  # without


@dataclass(frozen=True)
class KernelModel:
    """A kernel machine: of two classes with one problem, of k classes with a problem each or one for each pair, or one
    without classes (regression, one-class).

    support_vectors (n_SV, d) float64 dense or CSR, grouped by class in the order of ``classes``; dual_coef
    (problems, n_SV) float64, for two classes = y alpha with y = +1 for classes[1]; intercept (problems,) float64;
    classes (2,), (k,) sorted or (0,); n_support int32, one for each class, or of all (1,). task: one of TASKS.
    Of pairs (:func:`pairs`, y = +1 for the first class) dual_coef is (k - 1, n_SV), scikit-learn's and LIBSVM's: a
    vector's coefficients against each other class in order; intercept is (k (k - 1) / 2,); classes are in any order,
    which decides between as many votes.
    Of a precomputed kernel the support vectors are their columns of X, (n_SV,) ints.
    plan: the layout of its rows; None is chosen from the support vectors. dtype: of its kernel values.
    probA, probB (pairs,) float64 where it gives probabilities (:mod:`clsvm.probability`): P(class) = 1 / (1 + exp(probA
    f + probB)) of the class for which f is positive; of regression probA (1,) alone, the scale of the errors; of
    one_class prob_density_marks (10,). smaller_first: of two classes, whether LIBSVM's file lists classes[0] first.

    The first decision_function lays the support vectors out on the device and keeps them there, within a quarter of
    memory_limit, for later calls from any thread with the same device and memory_limit: those bring their rows alone.
    The host's support vectors become read-only with it. See :class:`clsvm.device.Kept` for how long that lasts.
    """

    kernel: Kernel | Precomputed
    support_vectors: Any
    dual_coef: Vector
    intercept: Vector
    classes: NDArray[Any]
    n_support: NDArray[np.int32]
    plan: Plan | None = None
    dtype: str = "float32"
    task: str = "c_svc"
    probA: Vector | None = None  # noqa: N815  (LIBSVM's and scikit-learn's names)
    probB: Vector | None = None  # noqa: N815
    prob_density_marks: Vector | None = None
    smaller_first: bool = False
    _kept: Kept = field(default_factory=Kept, init=False, repr=False, compare=False)

    def decision_function(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> Vector:
        """sum_j dual_coef_pj K(x, sv_j) + intercept_p for the rows of X (n, d), dense or CSR: float64, (n,) for two
        classes or none with one problem, else (n, problems) or (n, pairs).

        Of a precomputed kernel X is K (n, columns), and the host adds up. Raises ValueError where X has another number
        of features, or negative values and the kernel function is not for them, or memory_limit is too small for one
        tile.
        """
        X = layout.canonical(X)
        if isinstance(self.kernel, Precomputed):
            c = self._given_responses(X)
        else:
            d = self.support_vectors.shape[1]
            if X.ndim != 2 or X.shape[1] != d:
                raise ValueError(f"X has {X.shape[1] if X.ndim == 2 else X.shape} features, the model expects {d}")
            self.kernel.check_domain(X)
            with Stream(device, memory_limit) as stream:
                support = self._kept.get(stream) or self._laid_out(stream, self.kernel)
                c = support.responses(stream, X, self.dual_coef)
        if self.of_pairs:
            k = len(self.classes)
            parts = c.reshape(k, k - 1, -1)
            c = np.stack([parts[i, j - 1] + parts[j, i] for i, j in pairs(k)])
        values: Vector = np.add(c.T, self.intercept, order="C")
        return values[:, 0] if self._single else values

    @property
    def of_pairs(self) -> bool:
        """Whether there is a problem for each pair of classes."""
        return len(self.classes) > 2 and len(self.intercept) != len(self.dual_coef)

    @property
    def _single(self) -> bool:
        return len(self.dual_coef) == 1 and len(self.classes) in (0, 2)

    def _given_responses(self, K: Data) -> Vector:
        """:meth:`Support.responses` where kernel values are given, each row's by itself."""
        columns = self.support_vectors
        ends = np.cumsum(self.n_support) if self.of_pairs else [len(columns)]
        if K.ndim != 2 or sp.issparse(K) or K.shape[1] <= columns.max(initial=-1):
            needed = columns.max(initial=-1) + 1
            raise ValueError(f"X must be kernel values, dense, {needed} columns or more; got {K.shape}")
        out = np.zeros((len(ends) * len(self.dual_coef), len(K)))
        step = max(1, _HOST // max(1, len(columns)))
        for start in range(0, len(K), step):
            values = np.ascontiguousarray(K[start : start + step, columns], np.float64)
            parts = (
                (values[:, first:end] * coefficients[first:end]).sum(axis=1)
                for first, end in pairwise((0, *ends))
                for coefficients in self.dual_coef
            )
            for c, part in zip(out, parts, strict=True):
                c[start : start + step] = part
        return out

    def _laid_out(self, stream: Stream, kernel: Kernel) -> Support:
        """The support vectors on the device, and kept there if they may be, in place of what was laid out before."""
        self._kept.empty()
        vectors = csr.checked(self.support_vectors)
        plan = self.plan or layout.choose(stream.profile, vectors, kernel.spec)
        ends = np.cumsum(self.n_support).tolist() if self.of_pairs else ()
        support = Support(stream, kernel, plan, vectors, self._precision(stream, plan, kernel), ends)
        if support.buffers:
            for array in (vectors.data, vectors.indices, vectors.indptr) if sp.issparse(vectors) else (vectors,):
                array.flags.writeable = False  # else the device's would differ from the host's
            self._kept.put(stream, support, support.buffers)
        return support

    def _precision(self, stream: Stream, plan: Plan, kernel: Kernel) -> str:
        """float64 where float32 kernel values could move a decision value by more than DECISION_ERROR (and the device
        has it): coefficients near 1e4 turn the last bit of K into the third digit of the sum."""
        eps = float(np.finfo(np.float32).eps)
        scale = kernel.rounding(size(kernel, self.support_vectors, plan), eps)
        small = eps * scale * float(np.abs(self.dual_coef).sum(axis=1).max(initial=0.0)) <= DECISION_ERROR
        return self.dtype if small or stream.profile.wide == "pair" else "float64"

    def predict(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> NDArray[Any]:
        """The class of each row: classes[1] where the decision value is positive, or that of the largest one, or of the
        most pairs (of equally many the first). Where there are no classes the decision value itself, of one_class +1
        where it is positive and -1 elsewhere."""
        values = self.decision_function(X, device, memory_limit)
        if not len(self.classes):
            return np.where(values > 0, 1, -1) if self.task == "one_class" else values
        index = (values > 0).astype(np.intp) if self._single else values.argmax(axis=1)
        if self.of_pairs:
            index = votes(values, len(self.classes)).argmax(axis=1)
        predicted: NDArray[Any] = self.classes[index]
        return predicted

    @property
    def has_probabilities(self) -> bool:
        """Whether it was fitted to give probabilities, of regression those of its errors."""
        return (self.prob_density_marks if self.task == "one_class" else self.probA) is not None

    def predict_proba(self, X: Data, device: Any = None, memory_limit: int | str | None = None) -> Vector:
        """Probabilities (n, k) float64 of the classes in their order, as LIBSVM has them (:mod:`clsvm.probability`); of
        one_class (n, 2) of being normal and of being an outlier.

        Raises ValueError as :meth:`decision_function`, and where the model has none (regression has those of its
        errors: Laplace's with the scale probA).
        """
        A, B, marks, k = self.probA, self.probB, self.prob_density_marks, len(self.classes)
        if marks is None and (A is None or B is None):
            words = "no probabilities" if A is None else f"the probabilities of {self.task}'s errors alone"
            raise ValueError(f"got a model with {words}, expected one of classes, fitted for probabilities")
        values = self.decision_function(X, device, memory_limit)
        if A is None or B is None:
            return probability.of_one_class(values, np.asarray(marks))
        if k > 2:
            return probability.of_pairs(values, A, B, k)
        return probability.of_pairs(values[:, None], A, B, k)[:, ::-1]
