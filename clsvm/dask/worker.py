"""What runs on Dask's workers: chunks of rows, laid out once on the worker's device, and the answers of their side.

What a chunk knows beside its rows (f, second derivatives) is gone with its worker; whoever asks says what it should be,
by a number that grows with each change, and how to make it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array

from clsvm import arrays
from clsvm.arrays import Data
from clsvm.dask.encoding import Encoding
from clsvm.errors import MemoryLimitError
from clsvm.estimators import targets
from clsvm.estimators.checks import check_values, variance
from clsvm.gram import layouts
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.gram.precision import measures
from clsvm.kernels import Kernel
from clsvm.kernels.evaluation import Extent
from clsvm.losses import LOSSES
from clsvm.nystrom.rows import Rows, Task
from clsvm.opencl.devices import listed
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
CHANGES = ("go", "look", "step", "weigh", "refine")


class Past(NamedTuple):
    """How the side of a chunk came to be as it is: coefficients (k, m) that f is of, a change that was looked at,
    whether it was weighed and refined."""

    alpha: Vector | None = None
    change: Vector | None = None
    weighed: bool = False
    refined: bool = False

    def relive(self, side: Rows) -> None:
        """The same again, of a new side."""
        if self.refined:
            side.refine()
        if self.alpha is not None:
            side.go(self.alpha)
        if self.weighed:
            side.weigh()
        if self.change is not None:
            side.look(self.change)


class Terms(NamedTuple):
    """What all chunks of a fit have in common. name: of the fit. centers (m, d). total: the weights' sum over all
    chunks; neighbours: workers of one machine, at most; chunks: how many of them a worker is likely to hold."""

    name: str
    encoding: Encoding
    kernel: Kernel
    centers: Data
    plan: Plan
    dtype: str
    finest: str
    loss: str
    offset: Vector
    largest: Vector
    penalty: float
    total: float
    device: Any
    memory_limit: int | str | None
    neighbours: int
    chunks: int
    samples: tuple[NDArray[np.intp] | None, ...]  # of each chunk: the rows that the preconditioner is made of

    @property
    def changes(self) -> tuple[str, ...]:
        """Questions after which a chunk is not as it was."""
        return CHANGES

    def laid(self, stream: Stream, left: int, i: int, X: Data, y: Any, weights: Any) -> Rows:
        """Chunk i on the device, where ``left`` of them are still to share the memory."""
        task = Task(LOSSES[self.loss], *self.encoding.encoded(y, weights), self.offset, self.penalty, self.largest)
        given = stream, X, self.centers, self.kernel, self.plan
        spared = (stream.limit - stream.held) * (left - 1) // left
        stream.limit -= spared
        try:
            cross = Cross(*given, self.dtype, len(self.offset))
        finally:
            stream.limit += spared
        exact = None if self.dtype == self.finest else lambda: Cross(*given, self.finest, cross.k, keep=False)
        return Rows(cross, task, self.samples[i], np.array([self.total]), exact)


class Agreed(Protocol):
    """What all chunks of a fit have in common: :class:`Terms`, or that of another solver."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> Any: ...

    @property
    def memory_limit(self) -> int | str | None: ...

    @property
    def neighbours(self) -> int: ...

    @property
    def chunks(self) -> int: ...

    @property
    def changes(self) -> tuple[str, ...]: ...

    def laid(self, stream: Stream, left: int, i: int, X: Data, y: Any, weights: Any) -> Any:
        """Chunk i on the device, where ``left`` of them are still to share the memory."""


class Lost:
    """The answer where a chunk is not as it should be."""


@dataclass
class _Held:
    side: Any
    version: int = 0


@dataclass
class _Fit:
    """What a worker has of a fit."""

    stream: Stream
    changes: tuple[str, ...]
    expected: int  # chunks, all told
    chunks: dict[int, _Held] = field(default_factory=dict)


_fits: dict[str, _Fit] = {}
_lock = threading.Lock()
_threads: list[ThreadPoolExecutor] = []


def in_thread(call: Callable[..., Any], *given: Any) -> Any:
    """``call`` in the one thread of this process that works with devices for Dask."""
    with _lock:
        if not _threads:
            _threads.append(ThreadPoolExecutor(1, "clsvm-dask"))
    return _threads[0].submit(call, *given).result()


def lay(terms: Agreed, i: int, X: Data, y: Any, weights: Any) -> None:
    """Lay out chunk i, rows X (n, d), targets y and weights, unless it is there."""
    in_thread(_lay, terms, i, X, y, weights)


def _lay(terms: Agreed, i: int, *chunk: Any) -> None:
    if terms.name not in _fits:
        stream = Stream(terms.device, terms.memory_limit)
        stream.limit //= 1 if terms.memory_limit is not None else terms.neighbours
        _fits[terms.name] = _Fit(stream, terms.changes, terms.chunks)
    fit = _fits[terms.name]
    while i not in fit.chunks:
        left = max(1, fit.expected - len(fit.chunks))
        try:
            fit.chunks[i] = _Held(terms.laid(fit.stream, left, i, *chunk))
        except MemoryLimitError:
            if not fit.chunks:
                raise
            fit.expected = len(fit.chunks) + 1  # a lost worker's chunk, of which those that are here left no room:
            fit.chunks.clear()  # they are laid out again, in less of it, when they are asked


class Desk:
    """An actor of Dask's, one on each worker, that answers for the chunks there."""

    def ask(self, fit: str, i: int, version: int, past: Past | None, name: str, given: list[Any]) -> Any:
        """What the side of chunk i of a fit answers to ``name`` at that version; Lost where it is not there, or not at
        that version and no past was given."""
        return in_thread(_ask, fit, i, version, past, name, given)


def _ask(name: str, i: int, version: int, past: Past | None, question: str, given: list[Any]) -> Any:
    fit = _fits.get(name)
    held = fit.chunks.get(i) if fit else None
    if not fit or not held:
        return Lost()
    if held.version != version:
        if version and past is None:
            return Lost()
        if version:
            assert past is not None
            held.side.restart()
            past.relive(held.side)
        held.version = version
    found = getattr(held.side, question)
    answer = found(*given) if callable(found) else found
    held.version = version + (question in fit.changes)
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
    targets.check_missing(chunk, name)
    given = {"ensure_2d": False, "dtype": None, "ensure_all_finite": False, "ensure_min_samples": 0}
    return np.asarray(check_array(typed(chunk), **given, input_name=name))


def facts(X: Data) -> Facts:
    """Of a chunk."""
    cells = X.shape[0] * X.shape[1]
    mean = float(X.sum(dtype=np.float64)) / max(1, cells)
    n, d = X.shape
    return Facts(n, d, sp.issparse(X), mean, variance(X) * cells if cells else 0.0)


def take(X: Data, places: NDArray[np.intp], weights: Any = None, there: bool = False) -> tuple[Data, NDArray[np.intp]]:
    """(rows, places) at some places of a chunk; there: counted among the rows that weigh something."""
    if there and weights is not None:
        places = np.flatnonzero(targets.read_weights(weights, X) > 0)[places]
    return X[places], places


def choose(X: Data, kernel: Kernel, layout: str, device: Any, memory_limit: int | str | None) -> tuple[Plan, str, str]:
    """(the plan for rows like these, the finest dtype, the device) on this worker. Raises ValueError where the kernel
    function is not for such rows."""
    check_values(kernel, X)

    def chosen() -> tuple[Plan, str, str]:
        with Stream(device, memory_limit) as stream:
            plan = layouts.choose(stream.profile, X, kernel.spec, layout)
            return plan, stream.profile.finest, str(stream.info)

    return in_thread(chosen)


def extent(X: Data, kernel: Kernel, plan: Plan) -> Extent:
    """Return the extent of a chunk's rows, laid out by a plan."""
    return measures(kernel, X, plan).extent


def slope_at(encoding: Encoding, loss: str, output: int, at: float, y: Any, weights: Any) -> float:
    """The sum of w l'(at, y) of one output of a chunk."""
    targets, w = encoding.encoded(y, weights)
    return float(w @ LOSSES[loss].derivative(np.full_like(targets[output], at), targets[output]))


def named(X: Any, columns: Any) -> Any:
    """Rows as a data frame with those columns, if there are any."""
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
    """The bytes that a fit may hold on each of these devices, where so many workers of a machine share its memory."""
    limits = []
    for one in listed(device):
        with Stream(one) as stream:
            limits.append(stream.limit)
    return min(limits) // workers


def peak(name: str) -> int:
    """The most bytes that a fit has held on this worker's device."""
    return _fits[name].stream.peak if name in _fits else 0


def forget(name: str) -> None:
    """Give back what a fit had here."""

    def give_back() -> None:
        if fit := _fits.pop(name, None):
            fit.stream.__exit__()

    in_thread(give_back)
