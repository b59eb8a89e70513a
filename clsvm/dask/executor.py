"""Build the parts of a fit on Dask's workers, send them requests, and rebuild parts of lost workers.

:class:`Chunks` holds futures of the rows. :class:`OnWorkers` builds one part for each chunk, on a worker that holds the
chunk, and implements :class:`clsvm.distribute.Parts`.
"""

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
from clsvm.distribute import Lost, Request, count_losses
from clsvm.errors import DeviceError

LOST = "cancelled", "lost"  # states of a Dask future whose result is lost
LONG = 60.0  # most seconds to wait for a worker to start
UNREACHED = "Unable to contact"  # Dask's message for an actor whose worker is lost
PATIENCE = 2.0  # seconds without a reply after which to check that the worker is alive


@dataclass
class Chunks:
    """Hold the rows of a data set in chunks on Dask's workers.

    Attributes
    ----------
    client
        Dask client.
    X
        futures of the rows, one for each chunk.
    y, weights
        futures of the targets and of the sample weights, or None, one for each chunk.
    sent, received
        bytes sent to the workers, and received from them.
    """

    client: Client
    X: list[Future[Any]]
    y: list[Any]
    weights: list[Any]
    sent: int = 0
    received: int = 0

    def keep(self, some: Sequence[int]) -> None:
        """Keep only the chunks with these numbers."""
        self.X, self.y, self.weights = ([column[i] for i in some] for column in (self.X, self.y, self.weights))

    def each(self, call: Callable[..., Any], *columns: list[Any]) -> list[Any]:
        """Call ``call`` for every chunk, with its entry of each column, on any worker. Return the results."""
        return results(self.client, [self.client.submit(call, *row) for row in zip(*columns, strict=True)])

    def homes(self) -> list[str]:
        """Return a worker's address for every chunk: among its holders the worker with the fewest chunks so far."""
        wait(self.X)
        holders, counts, homes = self.client.who_has(self.X), Counter[str](), []
        for future in self.X:
            home = min(holders.get(future.key) or live_workers(self.client), key=lambda one: (counts[one], one))
            counts[home] += 1
            homes.append(home)
        return homes

    @property
    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent and received, as the attribute bytes_sent_ of an estimator has them."""
        return {"to the workers": self.sent, "back": self.received}


class OnWorkers:
    """Implement :class:`clsvm.distribute.Parts` on Dask's workers, with one part for each chunk.

    A part has a version, which grows with each request. If a reply is lost on its way, the versions of part and caller
    differ, and the part counts as lost.

    Attributes
    ----------
    sizes
        number of rows of each chunk.
    device, memory_limit
        device of each worker, and the memory limit there.
    homes
        address of the worker that holds each part.
    build
        function that makes a part from a stream and the chunk's rows, targets and weights; an argument only.
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
        self.homes = chunks.homes()
        self._name = uuid.uuid4().hex
        many = -(-len(sizes) // max(1, len(workers(self.client))))
        recipe = Recipe(self._name, build, device, memory_limit, neighbours(self.client), many)
        self._recipe = self.client.submit(_identity, recipe, pure=False)
        self._built: set[int] = set()
        self._versions: list[int | None] = [None] * len(sizes)
        self._actors: dict[str, Any] = {}

    def ask(self, name: str, given: Sequence[Request | None]) -> list[Any]:
        """See :class:`clsvm.distribute.Parts`."""
        asked = [i for i, one in enumerate(given) if one is not None]
        self._build_missing({*asked})
        calls = [(i, self._call(i, name, given[i])) for i in asked]
        replies: list[Any] = [None] * len(given)
        for i, call in calls:
            replies[i] = reply = self._reply(i, call)
            if isinstance(reply, Lost):
                self._built.discard(i)
                self._versions[i] = None
            else:
                self._chunks.received += nbytes(reply)
                self._versions[i] = 1 + (self._versions[i] or 0)
        return replies

    def peak(self) -> int:
        return max([0, *self.client.run(worker.peak, self._name, on_error="ignore").values()])

    def memory(self) -> tuple[int, int | str | None]:
        return 0, self.memory_limit

    def close(self) -> None:
        """Free the memory of all parts on the workers."""
        self.client.run(worker.in_thread, worker.forget, self._name, on_error="ignore")

    def _build_missing(self, missing: set[int]) -> None:
        """Build missing parts on live workers. Raises DeviceError if a part is lost more than TRIES times."""
        asked, losses, chunks = dict[int, Future[Any]](), Counter[int](), self._chunks
        while missing := missing - self._built:
            gone = self._find_homes(missing) | {i for i, one in asked.items() if one.status in LOST}
            if gone := gone & asked.keys():
                count_losses(losses, gone)
            for i in gone:
                asked.pop(i).cancel()
            for i in sorted(missing - asked.keys()):
                given = worker.build_part, self._recipe, i, chunks.X[i], chunks.y[i], chunks.weights[i]
                asked[i] = self.client.submit(worker.in_thread, *given, workers=[self.homes[i]], pure=False)
            done = ended([asked[i] for i in missing], "FIRST_COMPLETED")
            for i in missing:
                if asked[i] in done and asked[i].status not in LOST:
                    asked[i].result()
                    self._built.add(i)

    def _find_homes(self, parts: set[int]) -> set[int]:
        """Assign parts of lost workers to live workers, and return the numbers of the reassigned parts."""
        live = live_workers(self.client)
        lost = {i for i in parts if self.homes[i] not in live}
        for i in lost:
            self.homes[i] = min(live, key=Counter(self.homes).__getitem__)
        return lost

    def _call(self, i: int, name: str, given: Any) -> Any:
        """Send a request to part i. Return the future of its reply, or None if its worker cannot be reached."""
        self._chunks.sent += nbytes(given)
        try:
            return self._actor(self.homes[i]).ask(self._name, i, self._versions[i], name, given)
        except (RuntimeError, OSError, TimeoutError):
            return None

    def _actor(self, home: str) -> Any:
        """Return the actor on a worker, created at the first call: it replies about 10 ms faster than a task."""
        if home not in self._actors:
            made = self.client.submit(worker.WorkerActor, actor=True, workers=[home], pure=False)
            until = perf_counter() + LONG
            while home not in self._actors:
                try:
                    self._actors[home] = made, made.result(timeout=PATIENCE)
                except TimeoutError:
                    if home not in workers(self.client) or perf_counter() > until:
                        made.cancel()
                        raise
        return self._actors[home][1]

    def _reply(self, i: int, call: Any) -> Any:
        """Return the reply of part i, or :class:`Lost` if its worker is lost."""
        while call is not None:
            try:
                return call.result(timeout=PATIENCE)
            except TimeoutError:
                if self.homes[i] not in workers(self.client):
                    break
            except OSError as error:
                if UNREACHED not in str(error):  # an error of the request itself
                    raise
                break
        self._actors.pop(self.homes[i], None)
        return Lost()


def _identity(recipe: Any) -> Any:
    return recipe


def workers(client: Client) -> list[str]:
    """Return the addresses of the live workers."""
    return sorted(client.run_on_scheduler(_addresses))


def live_workers(client: Client) -> list[str]:
    """Wait for at least one live worker, and return the addresses. Raises DeviceError after LONG seconds."""
    if not workers(client):
        try:
            client.wait_for_workers(1, timeout=LONG)
        except TimeoutError:
            raise DeviceError("Dask has no worker that runs, and none came: start one") from None
    return workers(client)


def ended(futures: list[Future[Any]], which: str) -> list[Future[Any]]:
    """Wait at most PATIENCE seconds for the first or all futures to end, as ``which`` says; return ended futures."""
    try:
        return list(wait(futures, timeout=PATIENCE, return_when=which).done)
    except TimeoutError:
        return []


def results(client: Client, futures: list[Future[Any]]) -> list[Any]:
    """Return the results of futures. Raises DeviceError if there is no worker, or if Dask has lost the chunks."""
    try:
        while futures and not ended(futures, "ALL_COMPLETED"):
            live_workers(client)
        return list(client.gather(futures))
    except CancelledError as error:
        words = "Dask cannot compute the chunks: a client that is closed had persisted them, or their workers are lost"
        raise DeviceError(f"{words} ({error})") from None


def neighbours(client: Client) -> int:
    """Return the largest number of workers on one computer."""
    return max(Counter(address.rpartition(":")[0] for address in workers(client)).values(), default=1)


def _addresses(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.workers)


def pickled(given: Any) -> int:
    """Return the size of a pickled object in bytes; an array that occurs twice in the object counts once."""
    buffers: list[Any] = []
    head = pickle.dumps(given, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def nbytes(given: Any) -> int:
    """Return the bytes of an array, or of all arrays in nested lists and tuples."""
    if isinstance(given, np.ndarray):
        return given.nbytes
    if sp.issparse(given):
        given = given.data, given.indices, given.indptr
    return sum(map(nbytes, given)) if isinstance(given, list | tuple) else 0
