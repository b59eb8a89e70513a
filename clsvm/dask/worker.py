"""Check chunks, encode targets, build the parts of a fit, and pass requests to the parts, all on Dask's workers.

A part is an object that computes with the rows of a chunk on the worker's device. The part's state, such as the
decision values of the rows, is lost if the worker is lost. The solver then lets another worker build a new part, and
repeats the requests that led to the lost state (clsvm.distribute). On each worker, a single thread runs everything that
uses a device (:func:`in_thread`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.distribute import Lost, Request, Vector, call_part, memory_share
from clsvm.errors import MemoryLimitError
from clsvm.estimators import checks
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures
from clsvm.kernels import Extent, Kernel
from clsvm.losses import LOSSES
from clsvm.opencl.devices import device_list
from clsvm.opencl.stream import Stream

_thread = ThreadPoolExecutor(1, "clsvm-dask")  # the only thread of a worker that uses devices


class Summary(NamedTuple):
    """Summarise the targets of a chunk: class labels, or real-valued targets of k outputs.

    Attributes
    ----------
    weighted
        number of rows with positive weight.
    keys
        distinct labels of the chunk; for real-valued targets the weighted mean of the targets, (1, k).
    weights
        sum of the weights of the rows with each label; for real-valued targets the sum of all weights (1,).
    counts
        number of rows with each label; for real-valued targets the number of all rows (1,).
    least
        smallest target (k,) over the rows with positive weight; empty for labels.
    most
        largest target (k,) over the rows with positive weight; empty for labels.
    """

    weighted: int
    keys: NDArray[Any]
    weights: Vector
    counts: NDArray[Any]
    least: Vector
    most: Vector


def joined(parts: list[NDArray[Any]], name: str = "y") -> NDArray[Any]:
    """Join the labels or numbers of all chunks to one array.

    name: the parameter's name in messages.

    Raises ValueError if some chunks have strings and others have numbers. NumPy would convert the numbers to strings.
    """
    kinds = {("strings" if one.dtype.kind in "OSTU" else "numbers"): str(one.dtype) for one in parts if one.size}
    if len(kinds) > 1:
        raise ValueError(f"chunks of {name} must be all numbers or all strings, got {' and '.join(kinds.values())}")
    return np.concatenate([one for one in parts if one.size] or parts)


class Numbers:
    """Convert the targets of a regression to float64. This class takes the place of :class:`Labels` for regressions."""

    classes = np.zeros(0)

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise the targets of a chunk: their weighted mean, the sum of the weights, and the range of the targets.

        The range is from the smallest to the largest target of the rows with positive weight.

        y: the targets of the chunk's rows, (n,), or (n, k) for k outputs.
        weights: the sample weights of the rows, (n,); or one weight for all rows; or None.

        Raises ValueError if a target is not a finite number.
        """
        y = checks.check_size(np.asarray(_check_y(y, multi_output=True, y_numeric=True), np.float64))
        w, columns = checks.read_weights(weights, y), y.reshape(len(y), -1)
        total = np.array([w.sum()])
        means = (w @ columns / total)[None] if total[0] > 0 else np.zeros((1, columns.shape[1]))
        positive = columns[w > 0]
        ends = (positive.min(axis=0), positive.max(axis=0)) if len(positive) else (means[0], means[0])
        return Summary(int((w > 0).sum()), means, total, np.array([len(y)]), *ends)

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y, np.float64)
        return np.ascontiguousarray(y.reshape(len(y), -1).T), checks.read_weights(weights, y)


class Labels(NamedTuple):
    """Encode class labels as numeric targets of k outputs.

    Attributes
    ----------
    classes
        classes (c,) that have a row of positive weight.
    all_classes
        all classes (a,) of the labels.
    by_class
        for each class in ``all_classes``, (a,), the factor for the weights of its rows, from ``class_weight``.
    table
        for each class in ``classes``, the targets of the k outputs, (k, c).
    """

    classes: NDArray[Any]
    all_classes: NDArray[Any]
    by_class: Vector
    table: Vector

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise the labels (n,) of a chunk."""
        y = _check_y(y)
        check_classification_targets(y)
        w = checks.read_weights(weights, y)
        keys, index = np.unique(y, return_inverse=True)
        sums, counts = np.bincount(index, w, len(keys)).astype(np.float64), np.bincount(index, minlength=len(keys))
        return Summary(int((w > 0).sum()), keys, sums, counts, np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, chunks: list[Summary], class_weight: Any, table: Any) -> tuple[Labels, Vector]:
        """Return the object that encodes labels as numeric targets, and the summed weight of each class, (c,).

        A class whose rows all have weight 0 is left out. c is the number of the remaining classes.

        chunks: for each chunk, the summary of its labels.
        class_weight: the estimator's parameter ``class_weight``, by which the weights of rows are multiplied.
        table: function that returns numeric targets. For n rows, table(indices, c) is an array (k, n) of the targets of
            k outputs. ``indices`` (n,) has for each row the index of its class among the c classes.

        Raises ValueError if fewer than two classes remain.
        """
        all_classes, indices = np.unique(joined([one.keys for one in chunks]), return_inverse=True)
        if len(all_classes) < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {len(all_classes)} class")
        sums = np.bincount(indices, np.concatenate([one.weights for one in chunks]))
        counts = np.bincount(indices, np.concatenate([one.counts for one in chunks]))
        if isinstance(class_weight, str) and class_weight == "balanced":
            by_class = counts.sum() / (len(all_classes) * counts)
        else:
            by_class = checks.class_weights(class_weight, all_classes, all_classes)
        if not sums.any():
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        left, _ = checks.weighted_classes(np.arange(len(all_classes)), sums * by_class, "Invalid input")
        made = cls(all_classes[left], all_classes, by_class, table(np.arange(len(left)), len(left)))
        return made, (sums * by_class)[left]

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y).reshape(-1)
        indices = np.searchsorted(self.classes, y).clip(max=len(self.classes) - 1)
        w = checks.read_weights(weights, y) * self.by_class[np.searchsorted(self.all_classes, y)]
        return np.ascontiguousarray(self.table[:, indices]), w


Encoding = Numbers | Labels


class Recipe(NamedTuple):
    """Describe how workers build the parts of a fit. A part is an object that computes with the rows of one chunk.

    Attributes
    ----------
    name
        unique name of the fit, under which each worker stores its parts.
    build
        function: build(stream, rows, targets, weights) makes a part from a chunk.
    device
        device that each worker uses.
    memory_limit
        memory limit of each worker's device.
    neighbours
        largest number of workers on one computer. If ``memory_limit`` is None, the workers of a computer divide the
        memory of its device.
    chunks
        number of chunks that a worker is expected to hold.
    """

    name: str
    build: Callable[..., Any]
    device: Any
    memory_limit: int | str | None
    neighbours: int
    chunks: int


@dataclass
class _Fit:
    """Hold the parts of one fit on this worker. A part is an object that computes with the rows of one chunk.

    Attributes
    ----------
    stream
        stream of the worker's device.
    expected
        number of parts that this worker is expected to hold. The worker divides its memory equally among them.
    parts
        the parts by part number.
    versions
        for each part number, the number of requests that the part has answered.
    """

    stream: Stream
    expected: int
    parts: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)


_fits: dict[str, _Fit] = {}


def in_thread(call: Callable[..., Any], *given: Any) -> Any:
    """Run ``call(*given)`` in the only thread of this worker that uses devices, and return its result."""
    return _thread.submit(call, *given).result()


def build_part(recipe: Recipe, i: int, *chunk: Any) -> None:
    """Build part i of a fit from a chunk, unless this worker has built the part already.

    A part is an object that computes with the rows of one chunk.

    chunk: rows, targets and weights.
    """
    if recipe.name not in _fits:
        stream = Stream(recipe.device, recipe.memory_limit)
        stream.limit //= 1 if recipe.memory_limit is not None else recipe.neighbours
        _fits[recipe.name] = _Fit(stream, recipe.chunks)
    fit = _fits[recipe.name]
    while i not in fit.parts:
        try:
            with memory_share(fit.stream, max(1, fit.expected - len(fit.parts))):
                fit.parts[i], fit.versions[i] = recipe.build(fit.stream, *chunk), 0
        except MemoryLimitError:
            if not fit.parts:
                raise
            # No memory is left for another part, so build all parts again, each with a smaller share of memory.
            fit.expected = len(fit.parts) + 1
            fit.parts.clear()


class WorkerActor:
    """Pass the caller's requests to this worker's parts. A part is an object that computes with the rows of one chunk.

    Each worker has one such Dask actor.
    """

    def call(self, fit: str, i: int, version: int | None, name: str, given: Request) -> Any:
        """Call the method ``name`` of part i of a fit with the arguments ``given``, and return the part's reply.

        version: number of requests that the part has answered so far, by the caller's count. The worker keeps a count
            of its own. If the two counts differ, the part is not called. None skips this comparison, and the worker
            counts from 0 again. The caller gives None with its first request to a part, and with the first request
            after the part was lost.

        Return :class:`Lost` if this worker does not hold the part, or if the two counts differ.
        """
        return in_thread(_call_part, fit, i, version, name, given)


def _call_part(fit: str, i: int, version: int | None, name: str, given: Request) -> Any:
    fit_parts = _fits.get(fit)
    if fit_parts is None or i not in fit_parts.parts or version not in (None, fit_parts.versions[i]):
        return Lost()
    reply = call_part(fit_parts.parts[i], name, given)
    fit_parts.versions[i] = 1 + (version or 0)
    return reply


class ChunkInfo(NamedTuple):
    """Hold the shape (n, d) of a chunk of rows, and the mean and the sum of squared deviations of its values.

    Attributes
    ----------
    n
        number of rows.
    d
        number of features.
    sparse
        whether the chunk is a sparse matrix.
    mean
        mean of all n * d values.
    squares
        sum of the squared deviations of all values from ``mean``.
    """

    n: int
    d: int
    sparse: bool
    mean: float
    squares: float


def checked(X: Any) -> Data:
    """Return a chunk of rows as a contiguous array or CSR matrix of floats.

    Raises ValueError if a value is not a finite number.
    """
    given = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C", "ensure_min_samples": 0}
    return arrays.canonical(check_array(arrays.checked(typed(X)), **given, input_name="X"))


def typed(chunk: Any) -> Any:
    """Convert an array of Python objects to a pandas object with inferred dtypes. Return other chunks unchanged.

    NumPy has no nullable dtypes. A pandas column of a nullable dtype, such as "Int64", therefore becomes an array of
    Python objects in NumPy.
    """
    if not isinstance(chunk, np.ndarray) or chunk.dtype.kind != "O" or chunk.ndim not in (1, 2):
        return chunk
    import pandas as pd

    return (pd.Series if chunk.ndim == 1 else pd.DataFrame)(chunk).convert_dtypes()


def values(chunk: Any, name: str) -> NDArray[Any]:
    """Return a chunk of labels or numbers as a NumPy array, in the dtype that scikit-learn's ``check_array`` chooses.

    ``name`` is the parameter's name in messages. Raises ValueError for missing labels.
    """
    checks.check_missing(chunk, name)
    given = {"ensure_2d": False, "dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
    return np.asarray(check_array(typed(chunk), **given, input_name=name))


def describe(X: Data) -> ChunkInfo:
    """Return the shape of a chunk X (n, d), whether X is sparse, and statistics of all values of X.

    The statistics are the mean, and the sum of the squared deviations from the mean.
    """
    cells = X.shape[0] * X.shape[1]
    mean = float(X.sum(dtype=np.float64)) / max(1, cells)
    n, d = X.shape
    return ChunkInfo(n, d, sp.issparse(X), mean, checks.variance(X) * cells if cells else 0.0)


def take(
    X: Data, indices: NDArray[np.intp], weights: Any = None, weighted: bool = False
) -> tuple[Data, NDArray[np.intp]]:
    """Return the selected rows of the chunk X, and the index in X of each selected row.

    indices: numbers of the rows to select. If ``weighted`` is true and ``weights`` is given, they count only the rows
        with positive weight. For example, number 0 then selects the first row with positive weight. Otherwise they
        count all rows of X. The returned indices count all rows of X in either case.
    weights: weights of the rows of X, or None.
    weighted: whether ``indices`` count only the rows with positive weight, if ``weights`` is given.
    """
    if weighted and weights is not None:
        indices = np.flatnonzero(checks.read_weights(weights, X) > 0)[indices]
    return X[indices], indices


def choose(X: Data, kernel: Kernel, layout: str, device: Any, memory_limit: int | str | None) -> tuple[Plan, str, str]:
    """Choose the layout of a chunk X (n, d). A layout is a storage format of rows on this worker's device.

    Return the layout, the most precise dtype of the device, and the name of the device. Raises ValueError if the kernel
    function is not defined for the rows of X.
    """
    checks.check_values(kernel, X)
    with Stream(device, memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, layout)
        return plan, stream.profile.finest, str(stream.info)


def extent(X: Data, kernel: Kernel, plan: Plan) -> Extent:
    """Return four numbers about the sizes and the entries of a chunk's rows X (n, d).

    From these numbers, a fit determines whether intermediate values of the kernel function leave the range of a dtype.

    The first two numbers are the largest and the smallest nonzero size of a row. The size of a row is usually its
    squared norm. An element-wise kernel function is K(x, y) = f(sum_j e(x_j, y_j)) with functions f and e of numbers.
    For such a function, the size of a row x is an estimate of the largest |sum_j e(x_j, y_j)| over all rows y.

    The last two numbers are the largest and the smallest nonzero absolute entry of the rows if the kernel function is
    element-wise. For other kernel functions, the last two numbers are 0.

    plan: storage format of the rows on the device. The vector plan.centre is subtracted from each row first.
    """
    return measures(kernel, X, plan).extent


def slope_at(loss: str, output: int, at: float, y: Any, weights: Any) -> float:
    """Return the derivative of a chunk's loss with respect to the prediction, if all rows have the prediction ``at``.

    The chunk's loss is the sum of the rows' losses, each times the weight of the row.

    loss: name of the loss function.
    output: the column of the targets y to use.
    """
    numbers, w = Numbers().encoded(y, weights)
    return float(w @ LOSSES[loss].derivative(np.full_like(numbers[output], at), numbers[output]))


def named(X: Any, columns: Any) -> Any:
    """Return the rows X as a data frame with these column names. Return X unchanged if ``columns`` is None."""
    if columns is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=[*columns])


def predicted(X: Any, estimator: Any, name: str) -> Any:
    """Call the prediction method ``name`` of an estimator for a chunk X of rows, and return the predictions.

    X is an array or a data frame. For an empty chunk, the result is empty, with the dtype and dimensions of the
    predictions for other chunks.
    """
    some = typed(X) if X.shape[0] else sample(estimator, X.shape[1], getattr(X, "columns", None))
    return in_thread(getattr(estimator, name), some)[: X.shape[0]]


def sample(estimator: Any, d: int, columns: Any) -> Any:
    """Return one row of d features for which the estimator can predict.

    The row is a support vector, or zeros if there is none. The prediction for this row shows the dtype and dimensions
    of all predictions.

    columns: names of the row's columns, or None.
    """
    rows = getattr(estimator, "support_vectors_", None)
    if not isinstance(rows, np.ndarray) or not len(rows) or rows.shape[1] != d:
        rows = np.zeros((1, d))
    return named(rows[:1], columns)


def share(device: Any, workers: int) -> int:
    """Return the memory limit of one worker, in bytes, if ``workers`` workers divide the memory of each device.

    The device with the least memory decides the limit. The same limit holds for all devices.
    """
    limits = []
    for one in device_list(device):
        with Stream(one) as stream:
            limits.append(stream.limit)
    return min(limits) // workers


def peak(name: str) -> int:
    """Return the largest number of bytes that the fit ``name`` has allocated on this worker's device."""
    return _fits[name].stream.peak if name in _fits else 0


def forget(name: str) -> None:
    """Free all device memory that the fit ``name`` uses on this worker."""
    if fit := _fits.pop(name, None):
        fit.stream.__exit__()
