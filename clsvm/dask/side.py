"""The rows' side of a solve on Dask's workers: chunk by chunk, each on the worker that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client, Future, wait
from distributed.protocol import pickle
from numpy.typing import NDArray

from clsvm.dask import worker
from clsvm.dask.worker import CHANGES, Agreed, Lost, Past, Terms
from clsvm.errors import DeviceError
from clsvm.nystrom.rows import Several, Task

Vector = NDArray[np.float64]
LONG = 60.0  # seconds that a worker has to say that it is there
TRIES = 3  # how often a chunk may be lost in one question, with its worker or without
UNREACHED = "Unable to contact"  # what Dask says of an actor whose worker is gone
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
        self._desks: dict[str, Any] = {}

    def keep(self, some: Sequence[int]) -> None:
        """Leave the other chunks out, before any of them is asked."""
        self.X, self.y, self.weights = ([column[i] for i in some] for column in (self.X, self.y, self.weights))

    def each(self, call: Callable[..., Any], *columns: list[Any]) -> list[Any]:
        """``call`` with an entry of each column, for every chunk, wherever it is."""
        return results(self.client, [self.client.submit(call, *row) for row in zip(*columns, strict=True)])

    def agree(self, terms: Agreed) -> None:
        """Lay the chunks out by these terms from here on."""
        self._terms, self._name = self.client.submit(_itself, terms, pure=False), terms.name
        self._there: set[int] = set()

    def ask(self, make: Callable[[int, bool], tuple[Any, ...]], among: Sequence[int] | None = None) -> list[Any]:
        """worker.ask of every chunk, or of some, on its own worker, with what ``make(i, again)`` gives; again: after
        the chunk was lost, with its worker or without."""
        asked = range(len(self.X)) if among is None else among
        todo, found = dict.fromkeys(asked, False), {}
        losses: Counter[int] = Counter()
        while todo:
            self._lay([i for i in todo if i not in self._there])
            calls = [(i, self._call(i, make(i, again))) for i, again in todo.items()]
            for i, call in calls:
                answer = self._answer(i, call)
                if isinstance(answer, Lost):
                    self._lose(i, losses)
                    todo[i] = True
                    continue
                self.received += nbytes(answer)
                found[i] = answer
                del todo[i]
        return [found[i] for i in asked]

    def _lose(self, i: int, losses: Counter[int]) -> None:
        self._there.discard(i)
        losses[i] += 1
        if losses[i] > TRIES:
            raise DeviceError(f"Dask lost the rows of a chunk {losses[i]} times: do the workers have enough memory?")

    def _lay(self, missing: list[int]) -> None:
        """Have chunks laid out by workers that are there."""
        if not missing:
            return
        if not self.homes:
            self.settle()
        waiting: dict[Future[Any], int] = {}
        self._find_homes(missing)
        for i in missing:
            waiting[self._laying(i)] = i
        while waiting:
            for future in ended(list(waiting), "FIRST_COMPLETED"):
                i = waiting.pop(future)
                if future.status in ("cancelled", "lost"):
                    waiting[self._laying(i)] = i
                    continue
                future.result()
                self._there.add(i)
            moved = self._find_homes(list(waiting.values()))
            for future, i in list(waiting.items()):
                if i in moved:
                    del waiting[future]
                    future.cancel()
                    waiting[self._laying(i)] = i

    def _laying(self, i: int) -> Future[Any]:
        row = i, self.X[i], self.y[i], self.weights[i]
        return self.client.submit(worker.lay, self._terms, *row, workers=[self.homes[i]], pure=False)

    def _find_homes(self, chunks: list[int]) -> set[int]:
        """Those of some chunks whose worker is gone, which have another one now."""
        there = some(self.client) if chunks else []
        lost = {i for i in chunks if self.homes[i] not in there}
        for i in lost:
            self.homes[i] = min(there, key=Counter(self.homes).__getitem__)
        return lost

    def _call(self, i: int, given: tuple[Any, ...]) -> Any:
        """What an answer will be; None where there is nobody to ask."""
        self.sent += nbytes(given)
        try:
            return self._desk(self.homes[i]).ask(self._name, i, *given)
        except (RuntimeError, OSError, TimeoutError):
            return None

    def _desk(self, home: str) -> Any:
        """Who answers on a worker, some ten milliseconds faster than a task would."""
        if home not in self._desks:
            made = self.client.submit(worker.Desk, actor=True, workers=[home], pure=False)
            until = perf_counter() + LONG
            while home not in self._desks:
                try:
                    self._desks[home] = made, made.result(timeout=PATIENCE)
                except TimeoutError:
                    if home not in self.workers() or perf_counter() > until:
                        made.cancel()
                        raise
        return self._desks[home][1]

    def _answer(self, i: int, call: Any) -> Any:
        """An answer, or :class:`Lost` where its worker is gone."""
        while call is not None:
            try:
                return call.result(timeout=PATIENCE)
            except TimeoutError:
                if self.homes[i] not in self.workers():
                    break
            except OSError as error:
                if UNREACHED not in str(error):  # (the worker's own)
                    raise
                break
        self._desks.pop(self.homes[i], None)
        return Lost()

    def workers(self) -> list[str]:
        """Addresses of those that are there."""
        return workers(self.client)

    def neighbours(self) -> int:
        """The most workers that one machine has."""
        return neighbours(self.client)

    def settle(self) -> None:
        """Every chunk stays with a worker that has it."""
        wait(self.X)
        holders = self.client.who_has(self.X)
        counts: Counter[str] = Counter()
        for future in self.X:
            home = min(holders.get(future.key) or some(self.client), key=lambda one: (counts[one], one))
            counts[home] += 1
            self.homes.append(home)


def _itself(terms: Any) -> Any:
    return terms


def workers(client: Client) -> list[str]:
    """Addresses of the workers that are there."""
    return sorted(client.run_on_scheduler(_addresses))


def some(client: Client) -> list[str]:
    """Return the addresses of at least one worker. Raises DeviceError where none is there and none comes."""
    if not workers(client):
        try:
            client.wait_for_workers(1, timeout=LONG)
        except TimeoutError:
            raise DeviceError("Dask has no worker that runs, and none came: start one") from None
    return workers(client)


def ended(futures: list[Future[Any]], which: str) -> list[Future[Any]]:
    """Return the futures that have ended, as soon as the first or all have; none after PATIENCE seconds."""
    try:
        return list(wait(futures, timeout=PATIENCE, return_when=which).done)
    except TimeoutError:
        return []


def results(client: Client, futures: list[Future[Any]]) -> list[Any]:
    """Return the results of futures. Raises DeviceError where no worker comes, and where Dask has lost the chunks."""
    try:
        while futures and not ended(futures, "ALL_COMPLETED"):
            some(client)
        return list(client.gather(futures))
    except CancelledError as error:
        words = (
            "Dask cannot compute the chunks: a client that is closed had made them persist, or their workers are lost"
        )
        raise DeviceError(f"{words} ({error})") from None


def neighbours(client: Client) -> int:
    """The most workers that one machine has."""
    return max(Counter(address.rpartition(":")[0] for address in workers(client)).values(), default=1)


def _addresses(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.workers)


def pickled(given: Any) -> int:
    """The bytes that an object takes on its way to a worker; an array that is in it twice counts once."""
    buffers: list[Any] = []
    head = pickle.dumps(given, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


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

    def __init__(self, chunks: Chunks, values: Terms, task: Task, n: int) -> None:
        self._chunks = chunks
        self._version, self._past = 0, Past()
        chunks.agree(values)
        self.task, self.units = task.in_units(), task.units
        self.k, self.m, self.n = len(values.offset), values.centers.shape[0], n

    def _all(self, name: str, *given: Any) -> list[Any]:
        version, past = self._version, self._past

        def make(i: int, again: bool) -> tuple[Any, ...]:
            return version, past if again else None, name, list(given)

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
