"""The executor over Dask's workers: parts of a fit's rows, each on the worker that has its chunk."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client, Future, wait
from distributed.protocol import pickle

from clsvm.dask import worker
from clsvm.dask.worker import Recipe
from clsvm.distribute import Lost, Question, count_losses
from clsvm.errors import DeviceError

LOST = "cancelled", "lost"  # how Dask says that a future has no result any more
LONG = 60.0  # seconds that a worker has to say that it is there
UNREACHED = "Unable to contact"  # Dask's words about an actor whose worker is gone
PATIENCE = 2.0  # seconds after which it is asked whether a worker that has not answered is still there


@dataclass
class Chunks:
    """Futures of rows, targets and weights (or None), chunk by chunk. sent, received: bytes to and from the workers."""

    client: Client
    X: list[Future[Any]]
    y: list[Any]
    weights: list[Any]
    sent: int = 0
    received: int = 0

    def keep(self, some: Sequence[int]) -> None:
        """Leave the other chunks out."""
        self.X, self.y, self.weights = ([column[i] for i in some] for column in (self.X, self.y, self.weights))

    def each(self, call: Callable[..., Any], *columns: list[Any]) -> list[Any]:
        """Return the results of ``call`` with an entry of each column, for every chunk, wherever it is."""
        return results(self.client, [self.client.submit(call, *row) for row in zip(*columns, strict=True)])

    def homes(self) -> list[str]:
        """Return for every chunk the address of a worker that has it, as evenly as can be."""
        wait(self.X)
        holders, counts, homes = self.client.who_has(self.X), Counter[str](), []
        for future in self.X:
            home = min(holders.get(future.key) or some(self.client), key=lambda one: (counts[one], one))
            counts[home] += 1
            homes.append(home)
        return homes

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes that went to the workers and came back."""
        return {"to the workers": self.sent, "back": self.received}


class OnWorkers:
    """:class:`clsvm.distribute.Parts` on Dask's workers: for every chunk, what ``build`` makes of it there.

    build: takes a stream and the chunk's rows, targets and weights. sizes: rows of each chunk. device, memory_limit: of
    each worker. A part is at a version, a number that grows with each question: one that was left behind by a lost
    answer counts as lost, too.
    """

    def __init__(
        self,
        chunks: Chunks,
        build: Callable[..., Any],
        sizes: Sequence[int],
        device: Any,
        memory_limit: int | str | None,
    ) -> None:
        self._chunks, self.client, self.sizes = chunks, chunks.client, sizes
        self.device, self.memory_limit = device, memory_limit
        self.homes = chunks.homes()  # the worker that each part is asked at
        self._name = uuid.uuid4().hex
        many = -(-len(sizes) // max(1, len(workers(self.client))))
        recipe = Recipe(self._name, build, device, memory_limit, neighbours(self.client), many)
        self._recipe = self.client.submit(_itself, recipe, pure=False)
        self._there: set[int] = set()
        self._versions: list[int | None] = [None] * len(sizes)
        self._desks: dict[str, Any] = {}

    def ask(self, name: str, given: Sequence[Question | None]) -> list[Any]:
        """See :class:`clsvm.distribute.Parts`."""
        asked = [i for i, one in enumerate(given) if one is not None]
        self._lay({*asked})
        calls = [(i, self._call(i, name, given[i])) for i in asked]
        answers: list[Any] = [None] * len(given)
        for i, call in calls:
            answers[i] = answer = self._answer(i, call)
            if isinstance(answer, Lost):
                self._there.discard(i)
                self._versions[i] = None
            else:
                self._chunks.received += nbytes(answer)
                self._versions[i] = 1 + (self._versions[i] or 0)
        return answers

    def peak(self) -> int:
        return max([0, *self.client.run(worker.peak, self._name, on_error="ignore").values()])

    def memory(self) -> tuple[int, int | str | None]:
        return 0, self.memory_limit

    def close(self) -> None:
        """Free what the workers hold."""
        self.client.run(worker.in_thread, worker.forget, self._name, on_error="ignore")

    def _lay(self, missing: set[int]) -> None:
        """Build missing parts on live workers. Raises DeviceError where a part is lost too often meanwhile."""
        asked, losses, chunks = dict[int, Future[Any]](), Counter[int](), self._chunks
        while missing := missing - self._there:
            gone = self._find_homes(missing) | {i for i, one in asked.items() if one.status in LOST}
            if gone := gone & asked.keys():
                count_losses(losses, gone)
            for i in gone:
                asked.pop(i).cancel()
            for i in sorted(missing - asked.keys()):
                given = worker.lay, self._recipe, i, chunks.X[i], chunks.y[i], chunks.weights[i]
                asked[i] = self.client.submit(worker.in_thread, *given, workers=[self.homes[i]], pure=False)
            done = ended([asked[i] for i in missing], "FIRST_COMPLETED")
            for i in missing:
                if asked[i] in done and asked[i].status not in LOST:
                    asked[i].result()
                    self._there.add(i)

    def _find_homes(self, parts: set[int]) -> set[int]:
        """Return the parts whose worker is gone, which have another one now."""
        there = some(self.client)
        lost = {i for i in parts if self.homes[i] not in there}
        for i in lost:
            self.homes[i] = min(there, key=Counter(self.homes).__getitem__)
        return lost

    def _call(self, i: int, name: str, given: Any) -> Any:
        """Return the future of an answer; None where there is nobody to ask."""
        self._chunks.sent += nbytes(given)
        try:
            return self._desk(self.homes[i]).ask(self._name, i, self._versions[i], name, given)
        except (RuntimeError, OSError, TimeoutError):
            return None

    def _desk(self, home: str) -> Any:
        """Return the actor that answers on a worker, some ten milliseconds faster than a task would."""
        if home not in self._desks:
            made = self.client.submit(worker.Desk, actor=True, workers=[home], pure=False)
            until = perf_counter() + LONG
            while home not in self._desks:
                try:
                    self._desks[home] = made, made.result(timeout=PATIENCE)
                except TimeoutError:
                    if home not in workers(self.client) or perf_counter() > until:
                        made.cancel()
                        raise
        return self._desks[home][1]

    def _answer(self, i: int, call: Any) -> Any:
        """Return an answer, or :class:`Lost` where its worker is gone."""
        while call is not None:
            try:
                return call.result(timeout=PATIENCE)
            except TimeoutError:
                if self.homes[i] not in workers(self.client):
                    break
            except OSError as error:
                if UNREACHED not in str(error):  # (the worker's own)
                    raise
                break
        self._desks.pop(self.homes[i], None)
        return Lost()


def _itself(recipe: Any) -> Any:
    return recipe


def workers(client: Client) -> list[str]:
    """Return the addresses of the workers that are there."""
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
    """Return the most workers that one machine has."""
    return max(Counter(address.rpartition(":")[0] for address in workers(client)).values(), default=1)


def _addresses(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.workers)


def pickled(given: Any) -> int:
    """Return the bytes that an object takes on its way to a worker; an array that is in it twice counts once."""
    buffers: list[Any] = []
    head = pickle.dumps(given, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def nbytes(given: Any) -> int:
    """Return the bytes of all arrays in an object, however deep."""
    if isinstance(given, np.ndarray):
        return given.nbytes
    if sp.issparse(given):
        given = given.data, given.indices, given.indptr
    return sum(map(nbytes, given)) if isinstance(given, list | tuple) else 0
