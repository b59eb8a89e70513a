"""Exact SVMs over chunks of rows: a shard on each of Dask's workers, the working set here.

chunks         checked and kept by the workers that have them, one below the other in a shard for each worker
a step         rows of the working set go to the shards of which they are not, candidates come back (solvers/sharded.py)
a lost shard   is laid out again by another worker, and its f made anew from the coefficients, which are here
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_y

from clsvm.arrays import Data, stacked
from clsvm.dask import worker
from clsvm.dask.rows import (
    HEAD,
    Answering,
    gathered,
    here,
    in_chunks,
    is_dask,
    measured,
    one_device,
    scored,
    split,
    taken,
    variance,
)
from clsvm.dask.side import Chunks
from clsvm.estimators import classification, one_class, regression, targets
from clsvm.fit.sharded import Laid, OneShard
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.opencl.stream import Stream
from clsvm.parameters import Options
from clsvm.solvers.shard import Part
from clsvm.solvers.sharded import Lost

Vector = NDArray[np.float64]
CHANGES = "pose", "step", "respond", "put"


class Terms(NamedTuple):
    """What all shards of a fit have in common: see :class:`clsvm.dask.worker.Agreed`."""

    name: str
    kernel: Kernel
    plan: Plan
    dtype: str
    device: Any
    memory_limit: int | str | None
    neighbours: int
    chunks: int = 1

    @property
    def changes(self) -> tuple[str, ...]:
        """Questions after which a shard is not as it was."""
        return CHANGES

    def laid(self, stream: Stream, left: int, i: int, X: Data, y: Any, weights: Any) -> OneShard:
        """Shard i on the device."""
        return OneShard(stream, X, self.kernel, self.plan, self.dtype)


class OnWorkers:
    """Rows X (n, d) in chunks on workers: what a fit takes for X (clsvm.fit.sharded.Elsewhere). Each worker's chunks
    become one shard; some of the rows come here by their numbers."""

    def __init__(self, chunks: Chunks, columns: Any = None) -> None:
        self.columns = columns  # of a data frame
        facts = measured(chunks)
        sizes = [one.n for one in facts]
        self.shape, self._variance = (sum(sizes), max(facts).d), variance(facts)
        ends, client = np.cumsum(sizes), chunks.client
        chunks.settle()
        shards: list[Any] = []
        order: list[NDArray[np.intp]] = []
        self._sizes: list[int] = []
        for home in sorted(set(chunks.homes)):
            own = [i for i, one in enumerate(chunks.homes) if one == home and sizes[i]]
            if own:
                parts = [chunks.X[i] for i in own]
                shards.append(client.submit(stacked, parts, workers=[home], allow_other_workers=True))
                order += [np.arange(ends[i] - sizes[i], ends[i]) for i in own]
                self._sizes.append(sum(sizes[i] for i in own))
        self.order = np.concatenate(order)
        self._place = np.argsort(self.order)
        none = [None] * len(shards)
        self.shards = Chunks(client, shards, none, none)

    def var(self, dtype: Any = None) -> float:
        """Of all cells."""
        return self._variance

    def __getitem__(self, rows: Any) -> Data:
        """Some of the rows, by a slice or by their numbers, here."""
        places, inverse = np.unique(self._place[rows], return_inverse=True)
        found = [some for some, _ in taken(self.shards, split(places, np.cumsum(self._sizes))) if some.shape[0]]
        if not found:
            found = [self.shards.client.submit(worker.take, self.shards.X[0], places).result()[0]]
        return stacked(found)[inverse]

    @contextmanager
    def laid(self, kernel: Kernel, options: Options, dtype: str) -> Iterator[Laid]:
        """A shard for each worker that has chunks."""
        shards, name = self.shards, uuid.uuid4().hex
        largest = shards.X[int(np.argmax(self._sizes))]
        given = kernel, options.layout, options.device, options.memory_limit
        plan, finest, device = shards.client.submit(worker.choose, largest, *given, pure=False).result()
        terms = Terms(name, kernel, plan, dtype, options.device, options.memory_limit, shards.neighbours())
        try:
            words = f"{len(self._sizes)} of Dask's workers, each with {device}"
            yield AtWorkers(shards, terms, self._sizes, finest, words)
        finally:
            shards.client.run(worker.forget, name, on_error="ignore")


class AtWorkers:
    """:class:`clsvm.fit.sharded.Laid` of rows at Dask's workers."""

    def __init__(self, shards: Chunks, terms: Terms, sizes: Sequence[int], finest: str, device: str) -> None:
        self._shards, self.sizes, self.finest, self.device, self.plan = shards, sizes, finest, device, terms.plan
        shards.agree(terms)
        self._versions = [0] * len(sizes)
        self._part: Callable[[int], Part] | None = None

    def begin(self, part: Callable[[int], Part]) -> None:
        """See :class:`clsvm.solvers.sharded.Shards`."""
        self._part, self._versions = part, [0] * len(self.sizes)
        self.ask("pose", [(part(i),) for i in range(len(self.sizes))])

    def ask(self, name: str, given: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """See :class:`clsvm.solvers.sharded.Shards`."""
        lost: set[int] = set()

        def make(i: int, again: bool) -> tuple[Any, ...]:
            if again and self._part:
                lost.add(i)
                return 0, None, "pose", [self._part(i)]
            return self._versions[i], None, name, list(given[i] or ())

        among = [i for i, one in enumerate(given) if one is not None]
        answers: list[Any] = [None] * len(given)
        for i, answer in zip(among, self._shards.ask(make, among), strict=True):
            answers[i] = Lost() if i in lost else answer
            self._versions[i] = 1 if i in lost else self._versions[i] + (name in CHANGES)
        return answers


class OverWorkers(Answering):
    """What the machines of this package share; what is said there of X and y holds of Dask's collections, too.

    Rows come in chunks, of known sizes or unknown; columns in one. A Dask client has to be there. ``device`` and
    ``memory_limit`` are of each worker's device, and of the caller's for the working set. y and sample_weight come
    here, rows stay. bytes_sent_ (dict) says what travelled.
    """

    kernel: Any
    checkpoint: Any

    def _learn(self, X: Any, y: Any, sample_weight: Any, started: float) -> Any:
        if is_dask(X):
            X, y, sample_weight = self._laid_out(X, y, sample_weight)
        y, sample_weight = here(y=y, sample_weight=sample_weight).values()
        rows = super()._learn(X, y, sample_weight, started)  # type: ignore[misc]
        if isinstance(rows, OnWorkers):
            self.bytes_sent_ = {"to the workers": rows.shards.sent, "back": rows.shards.received}
        return rows

    def _laid_out(self, X: Any, y: Any, sample_weight: Any) -> tuple[OnWorkers, Any, Any]:
        """Return the rows on their workers, y and sample_weight. Raises ValueError for what chunks do not support."""
        one_device(self.device)  # type: ignore[attr-defined]
        if self.checkpoint is not None:
            raise ValueError(f"checkpoint is for rows in one place, got rows in chunks and {self.checkpoint!r}")
        if self.kernel == "precomputed" or (callable(self.kernel) and not isinstance(self.kernel, Kernel)):
            raise ValueError(f"rows in chunks take kernel functions of the device, got kernel={self.kernel!r}")
        chunks = gathered(X)
        y, sample_weight = (chunks.client.persist(one) if is_dask(one) else one for one in (y, sample_weight))
        return OnWorkers(chunks, getattr(X, "columns", None)), y, sample_weight

    def _rows(self, X: Any, y: Any = "no_validation", reset: bool = False, **checks: Any) -> Any:
        if not isinstance(X, OnWorkers):
            return super()._rows(X, y, reset=reset, **checks)  # type: ignore[misc]
        super()._rows(worker.named(X[:HEAD], X.columns), reset=reset)  # type: ignore[misc]
        if isinstance(y, str):
            return X
        if y is None:
            raise ValueError("y must be given, got None")
        targets.check_missing(y)
        y = _check_y(y, y_numeric=checks.get("y_numeric", False))
        if len(y) != X.shape[0]:
            raise ValueError(f"y must have as many rows as X, got {len(y)} and {X.shape[0]}")
        return X, y


class SVC(OverWorkers, classification.SVC):
    """:class:`clsvm.SVC` for rows in chunks."""

    predict = in_chunks(classification.SVC.predict)
    decision_function = in_chunks(classification.SVC.decision_function)
    score = scored(classification.SVC.score)


class NuSVC(OverWorkers, classification.NuSVC):
    """:class:`clsvm.NuSVC` for rows in chunks."""

    predict = in_chunks(classification.NuSVC.predict)
    decision_function = in_chunks(classification.NuSVC.decision_function)
    score = scored(classification.NuSVC.score)


class SVR(OverWorkers, regression.SVR):
    """:class:`clsvm.SVR` for rows in chunks."""

    predict = in_chunks(regression.SVR.predict)
    score = scored(regression.SVR.score)


class OneClassSVM(OverWorkers, one_class.OneClassSVM):
    """:class:`clsvm.OneClassSVM` for rows in chunks."""

    predict = in_chunks(one_class.OneClassSVM.predict)
    decision_function = in_chunks(one_class.OneClassSVM.decision_function)
    score_samples = in_chunks(one_class.OneClassSVM.score_samples)
