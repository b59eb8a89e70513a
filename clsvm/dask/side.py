"""The rows' side of a solve on Dask's workers: chunk by chunk, each on the worker that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client, Future, wait
from numpy.typing import NDArray

from clsvm.dask import worker
from clsvm.dask.worker import CHANGES, Lost, Past, Terms
from clsvm.losses import LOSSES
from clsvm.nystrom.rows import Several

Vector = NDArray[np.float64]
PATIENCE = 2.0  # seconds after which it is asked whether a worker that has not answered is still there


@dataclass
class Chunks:
    """Futures of rows, targets and weights (or None), chunk by chunk; n: rows of each, known once it was asked. sent,
    received: bytes to and from the workers."""

    client: Client
    X: list[Future[Any]]
    y: list[Future[Any]]
    weights: list[Any]
    sent: int = 0
    received: int = 0

    def __post_init__(self) -> None:
        self.homes: list[str] = []  # the address of the worker that each chunk is asked at

    def each(self, call: Callable[..., Any], *columns: list[Any]) -> list[Any]:
        """``call`` with an entry of each column, for every chunk, wherever it is."""
        return list(self.client.gather([self.client.submit(call, *row) for row in zip(*columns, strict=True)]))

    def ask(self, make: Callable[[int, bool], tuple[Any, ...]], among: Sequence[int] | None = None) -> list[Any]:
        """worker.ask of every chunk, or of some, on its own worker, with what ``make(i, again)`` gives; again: after
        the chunk was lost, with its worker or without."""
        asked = range(len(self.X)) if among is None else among
        if not self.homes:
            self.settle()
        waiting = {self._submit(i, make(i, False)): i for i in asked}
        found: dict[int, Any] = {}
        while waiting:
            for future in self._ended(list(waiting)):
                i = waiting.pop(future)
                answer = Lost() if future.status in ("cancelled", "lost") else future.result()
                if isinstance(answer, Lost):
                    waiting[self._submit(i, make(i, True))] = i
                else:
                    self.received += nbytes(answer)
                    found[i] = answer
            if waiting:
                self._move(waiting, make)
        return [found[i] for i in asked]

    def _ended(self, futures: list[Future[Any]]) -> list[Future[Any]]:
        try:
            return list(wait(futures, timeout=PATIENCE, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []

    def _move(self, waiting: dict[Future[Any], int], make: Callable[[int, bool], tuple[Any, ...]]) -> None:
        """Ask elsewhere what was asked of workers that are gone."""
        there = self.workers()
        for future, i in list(waiting.items()):
            if there and self.homes[i] not in there:
                self.homes[i] = min(there, key=Counter(self.homes).__getitem__)
                del waiting[future]
                future.cancel()
                waiting[self._submit(i, make(i, True))] = i

    def workers(self) -> list[str]:
        """Addresses of those that are there."""
        return sorted(self.client.run_on_scheduler(_addresses))

    def settle(self) -> None:
        """Every chunk stays with a worker that has it."""
        wait(self.X)
        holders = self.client.who_has(self.X)
        counts: Counter[str] = Counter()
        for future in self.X:
            home = min(holders.get(future.key) or self.workers(), key=lambda one: (counts[one], one))
            counts[home] += 1
            self.homes.append(home)

    def _submit(self, i: int, given: tuple[Any, ...]) -> Future[Any]:
        terms, *rest = given
        self.sent += nbytes(rest)
        row = i, self.X[i], self.y[i], self.weights[i]
        return self.client.submit(worker.ask, terms, *row, *rest, workers=[self.homes[i]], pure=False)


def _addresses(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.workers)


def nbytes(given: Any) -> int:
    """Of all arrays in it, however deep."""
    return sum(array.nbytes for array in _arrays(given))


def _arrays(given: Any) -> Iterator[NDArray[Any]]:
    if isinstance(given, np.ndarray):
        yield given
    elif sp.issparse(given):
        yield from (given.data, given.indices, given.indptr)
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _arrays(one)


class OnWorkers(Several):
    """Rows in chunks on workers. What a chunk has to be is kept here, so that a lost one is made again."""

    def __init__(self, chunks: Chunks, terms: Future[Any], values: Terms, n: int) -> None:
        self._chunks, self._terms = chunks, terms
        self._version, self._past = 0, Past()
        self.loss, self.penalty = LOSSES[values.loss], values.penalty
        self.k, self.m, self.n = len(values.offset), values.centers.shape[0], n
        self._largest = np.maximum.reduce(self._all("largest"))

    def _all(self, name: str, *given: Any) -> list[Any]:
        version, past = self._version, self._past

        def make(i: int, again: bool) -> tuple[Any, ...]:
            return self._terms, version, past if again else None, name, list(given)

        answers = self._chunks.ask(make)
        if name in CHANGES:
            self._version, self._past = version + 1, self._after(name, *given)
        return answers

    def _after(self, name: str, *given: Any) -> Past:
        past = self._past
        match name:
            case "go":
                return past._replace(alpha=given[0], change=None)
            case "look":
                return past._replace(change=given[0])
            case "step":
                assert past.change is not None
                step = given[0] * past.change
                return past._replace(alpha=step if past.alpha is None else past.alpha + step, change=None)
            case "weigh":
                return past._replace(weighed=True)
        return past._replace(refined=True)
