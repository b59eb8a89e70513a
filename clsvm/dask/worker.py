"""Functions that run on Dask's workers: they build parts of a fit from chunks on a device, and ask the parts.

State that a part has beside its rows (f, second derivatives) is lost with its worker; clsvm.distribute replays it.
Functions that work with devices run in the one thread of :func:`in_thread`.
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
from clsvm.distribute import Lost, Question, call, share_of
from clsvm.errors import MemoryLimitError
from clsvm.estimators import checks
from clsvm.estimators.checks import check_values, variance
from clsvm.gram import layouts
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures
from clsvm.kernels import Kernel
from clsvm.kernels.expression import Extent
from clsvm.losses import LOSSES
from clsvm.opencl.devices import listed
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]


_thread = ThreadPoolExecutor(1, "clsvm-dask")  # (begins with the first call)


class Summary(NamedTuple):
    """A chunk's targets. there: how many rows weigh something; keys: the labels, or the weighted mean (1, k) of the
    numbers; weights, counts: the sum of weights and the rows of each key; least, most (k,): ends of the numbers of rows
    that weigh something."""

    there: int
    keys: NDArray[Any]
    weights: Vector
    counts: NDArray[Any]
    least: Vector
    most: Vector


def joined(parts: list[NDArray[Any]], name: str = "y") -> NDArray[Any]:
    """Return the labels or numbers ``name`` of all chunks as one array.

    Raises ValueError where some chunks have strings and others have numbers: NumPy would make strings of both.
    """
    kinds = {("strings" if one.dtype.kind in "OSTU" else "numbers"): str(one.dtype) for one in parts if one.size}
    if len(kinds) > 1:
        raise ValueError(f"chunks of {name} must have one kind of values, got {' and '.join(kinds.values())}")
    return np.concatenate([one for one in parts if one.size] or parts)


class Numbers:
    """The encoding of a regression's targets. classes: none."""

    classes = np.zeros(0)

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise a chunk. Raises ValueError for targets that are no finite numbers."""
        y = checks.within(np.asarray(_check_y(y, multi_output=True, y_numeric=True), np.float64))
        w, columns = checks.read_weights(weights, y), y.reshape(len(y), -1)
        total = np.array([w.sum()])
        means = (w @ columns / total)[None] if total[0] > 0 else np.zeros((1, columns.shape[1]))
        there = columns[w > 0]
        ends = (there.min(axis=0), there.max(axis=0)) if len(there) else (means[0], means[0])
        return Summary(int((w > 0).sum()), means, total, np.array([len(y)]), *ends)

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y, np.float64)
        return np.ascontiguousarray(y.reshape(len(y), -1).T), checks.read_weights(weights, y)


class Labels(NamedTuple):
    """The encoding of classes (c,) that weigh something. known (a,): all classes that there are; by_class (a,): what
    multiplies the weights of each; table (k, c): the targets of each class."""

    classes: NDArray[Any]
    known: NDArray[Any]
    by_class: Vector
    table: Vector

    @staticmethod
    def summary(y: Any, weights: Any) -> Summary:
        """Summarise a chunk."""
        y = _check_y(y)
        check_classification_targets(y)
        w = checks.read_weights(weights, y)
        keys, index = np.unique(y, return_inverse=True)
        sums, counts = np.bincount(index, w, len(keys)).astype(np.float64), np.bincount(index, minlength=len(keys))
        return Summary(int((w > 0).sum()), keys, sums, counts, np.zeros(0), np.zeros(0))

    @classmethod
    def of(cls, chunks: list[Summary], class_weight: Any, table: Any) -> tuple[Labels, Vector]:
        """Return the encoding by all summaries, and the weights (c,) of the classes.

        table: makes targets (k, c) of places (c,) and their number. Raises ValueError for fewer than two classes.
        """
        known, places = np.unique(joined([one.keys for one in chunks]), return_inverse=True)
        if len(known) < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {len(known)} class")
        sums, counts = (
            np.bincount(places, np.concatenate(column))
            for column in ([one.weights for one in chunks], [one.counts for one in chunks])
        )
        if isinstance(class_weight, str) and class_weight == "balanced":
            by_class = counts.sum() / (len(known) * counts)
        else:
            by_class = checks.class_weights(class_weight, known, known)
        if not sums.any():
            raise ValueError("Invalid input - all samples have zero or negative weights.")
        left, _ = checks.weighing(np.arange(len(known)), sums * by_class, "Invalid input")
        made = cls(known[left], known, by_class, table(np.arange(len(left)), len(left)))
        return made, (sums * by_class)[left]

    def encoded(self, y: Any, weights: Any) -> tuple[Vector, Vector]:
        y = np.asarray(y).reshape(-1)
        places = np.searchsorted(self.classes, y).clip(max=len(self.classes) - 1)
        w = checks.read_weights(weights, y) * self.by_class[np.searchsorted(self.known, y)]
        return np.ascontiguousarray(self.table[:, places]), w


Encoding = Numbers | Labels


class Recipe(NamedTuple):
    """How the parts of a fit are built. build: of a stream and a chunk. neighbours: the most workers of one machine;
    chunks: how many of them a worker is likely to hold."""

    name: str
    build: Callable[..., Any]
    device: Any
    memory_limit: int | str | None
    neighbours: int
    chunks: int


@dataclass
class _Fit:
    """Parts of one fit on a worker.

    expected: how many parts the fit has on all workers; versions: of the state of each part here.
    """

    stream: Stream
    expected: int
    parts: dict[int, Any] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)


_fits: dict[str, _Fit] = {}


def in_thread(call: Callable[..., Any], *given: Any) -> Any:
    """Return what ``call`` returns in the one thread of this process that works with devices for Dask."""
    return _thread.submit(call, *given).result()


def lay(recipe: Recipe, i: int, *chunk: Any) -> None:
    """Build part i of a chunk, unless it is there."""
    if recipe.name not in _fits:
        stream = Stream(recipe.device, recipe.memory_limit)
        stream.limit //= 1 if recipe.memory_limit is not None else recipe.neighbours
        _fits[recipe.name] = _Fit(stream, recipe.chunks)
    fit = _fits[recipe.name]
    while i not in fit.parts:
        try:
            with share_of(fit.stream, max(1, fit.expected - len(fit.parts))):
                fit.parts[i], fit.versions[i] = recipe.build(fit.stream, *chunk), 0
        except MemoryLimitError:
            if not fit.parts:
                raise
            # A lost worker's part, for which those that are here left no room: all are built again, in less room each.
            fit.expected = len(fit.parts) + 1
            fit.parts.clear()


class Desk:
    """An actor of Dask's, one on each worker, that answers for the parts there."""

    def ask(self, fit: str, i: int, version: int | None, name: str, given: Question) -> Any:
        """Return what part i of a fit answers to ``name``, or Lost where it is not there at that version.

        Without a version the part answers as it is: a lost one's problem is posed again.
        """
        return in_thread(_ask, fit, i, version, name, given)


def _ask(fit: str, i: int, version: int | None, name: str, given: Question) -> Any:
    here = _fits.get(fit)
    if here is None or i not in here.parts or version not in (None, here.versions[i]):
        return Lost()
    answer = call(here.parts[i], name, given)
    here.versions[i] = 1 + (version or 0)
    return answer


class Facts(NamedTuple):
    """A chunk's rows, features and sparsity, with the mean of its n d values and the sum of squares about it."""

    n: int
    d: int
    sparse: bool
    mean: float
    squares: float


def checked(X: Any) -> Data:
    """Return a chunk of rows as layouts read it. Raises ValueError for values that are not finite numbers."""
    given = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C", "ensure_min_samples": 0}
    return arrays.canonical(check_array(arrays.checked(typed(X)), **given, input_name="X"))


def typed(chunk: Any) -> Any:
    """Return a chunk, objects in it as a pandas column of their own dtype.

    Dask makes objects of a data frame's nullable columns, where NumPy has no dtype for them.
    """
    if not isinstance(chunk, np.ndarray) or chunk.dtype.kind != "O" or chunk.ndim not in (1, 2):
        return chunk
    import pandas as pd

    return (pd.Series if chunk.ndim == 1 else pd.DataFrame)(chunk).convert_dtypes()


def values(chunk: Any, name: str) -> NDArray[Any]:
    """Return a chunk of ``name``, labels or numbers, as NumPy's, with the dtype that scikit-learn reads from pandas.

    Raises ValueError for missing labels.
    """
    checks.check_missing(chunk, name)
    given = {"ensure_2d": False, "dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
    return np.asarray(check_array(typed(chunk), **given, input_name=name))


def facts(X: Data) -> Facts:
    """Return the facts of a chunk."""
    cells = X.shape[0] * X.shape[1]
    mean = float(X.sum(dtype=np.float64)) / max(1, cells)
    n, d = X.shape
    return Facts(n, d, sp.issparse(X), mean, variance(X) * cells if cells else 0.0)


def take(X: Data, places: NDArray[np.intp], weights: Any = None, there: bool = False) -> tuple[Data, NDArray[np.intp]]:
    """Return (rows, places) at some places of a chunk; there: counted among the rows that weigh something."""
    if there and weights is not None:
        places = np.flatnonzero(checks.read_weights(weights, X) > 0)[places]
    return X[places], places


def choose(X: Data, kernel: Kernel, layout: str, device: Any, memory_limit: int | str | None) -> tuple[Plan, str, str]:
    """Return the plan for rows like these, the finest dtype and the device, on this worker.

    Raises ValueError where the kernel function is not for such rows.
    """
    check_values(kernel, X)
    with Stream(device, memory_limit) as stream:
        plan = layouts.choose(stream.profile, X, kernel.spec, layout)
        return plan, stream.profile.finest, str(stream.info)


def extent(X: Data, kernel: Kernel, plan: Plan) -> Extent:
    """Return the extent of a chunk's rows, laid out by a plan."""
    return measures(kernel, X, plan).extent


def slope_at(loss: str, output: int, at: float, y: Any, weights: Any) -> float:
    """Return the sum of w l'(at, y) of one output of a chunk's numbers."""
    numbers, w = Numbers().encoded(y, weights)
    return float(w @ LOSSES[loss].derivative(np.full_like(numbers[output], at), numbers[output]))


def named(X: Any, columns: Any) -> Any:
    """Return rows as a data frame with the columns, if there are any."""
    if columns is None:
        return X
    import pandas as pd

    return pd.DataFrame(X, columns=[*columns])


def answer(X: Any, machine: Any, name: str) -> Any:
    """Return what a method of an estimator answers for a chunk of rows, a data frame or an array."""
    some = typed(X) if X.shape[0] else sample(machine, X.shape[1], getattr(X, "columns", None))
    return in_thread(getattr(machine, name), some)[: X.shape[0]]


def sample(machine: Any, d: int, columns: Any) -> Any:
    """Return one row of d features that an estimator's methods take: a support vector, or zeros where it keeps none."""
    rows = getattr(machine, "support_vectors_", None)
    if not isinstance(rows, np.ndarray) or not len(rows) or rows.shape[1] != d:
        rows = np.zeros((1, d))
    return named(rows[:1], columns)


def share(device: Any, workers: int) -> int:
    """Return the bytes that a fit may hold on each of some devices, where so many workers share a machine's memory."""
    limits = []
    for one in listed(device):
        with Stream(one) as stream:
            limits.append(stream.limit)
    return min(limits) // workers


def peak(name: str) -> int:
    """Return the most bytes that a fit has held on this worker's device."""
    return _fits[name].stream.peak if name in _fits else 0


def forget(name: str) -> None:
    """Give back what a fit had here."""
    if fit := _fits.pop(name, None):
        fit.stream.__exit__()
