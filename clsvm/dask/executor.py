"""Build the parts of a fit on Dask's workers, send requests to the parts, and rebuild the parts of lost workers.

A part is an object that computes with the rows of one chunk. :class:`Chunks` holds Dask futures of the chunks.
:class:`OnWorkers` builds one part for each chunk, on a worker that holds the chunk.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from distributed import Client, Future, wait

from clsvm.dask import worker
from clsvm.distribute import Lost, Request, count_losses
from clsvm.errors import DeviceError

LOST_STATES = "cancelled", "lost"  # states of a Dask future whose result is lost
WORKER_TIMEOUT = 60.0  # wait at most this many seconds for a worker to start
UNREACHED = "Unable to contact"  # Dask's error message has these words if the worker of an actor is lost
REPLY_TIMEOUT = 2.0  # after this many seconds without a reply, check whether the worker is alive


@dataclass
class Chunks:
    """Hold the rows of a data set in chunks on Dask's workers.

    Attributes
    ----------
    client
        Dask client.
    X
        for each chunk, the Dask future of its rows.
    y
        for each chunk, the Dask future of its targets, or None.
    weights
        for each chunk, the Dask future of its sample weights; or one weight for all rows of the chunk; or None.
    """

    client: Client
    X: list[Future[Any]]
    y: list[Any]
    weights: list[Any]

    def select(self, some: Sequence[int]) -> None:
        """Keep only the chunks with the indices ``some``, and forget all others."""
        self.X, self.y, self.weights = ([column[i] for i in some] for column in (self.X, self.y, self.weights))

    def map(self, call: Callable[..., Any], *columns: list[Any]) -> list[Any]:
        """Call the function ``call`` once for each chunk of rows, on any worker. Return a list of the results.

        ``columns`` has a list for each argument of the function. Item i of each list is the argument for chunk i.
        """
        return results(self.client, [self.client.submit(call, *row) for row in zip(*columns, strict=True)])

    def addresses(self) -> list[str]:
        """Return for every chunk the address of the worker that will compute with the chunk.

        If several workers hold a chunk, the worker to which the fewest chunks are assigned so far is chosen.
        """
        wait(self.X)
        holders, counts, addresses = self.client.who_has(self.X), Counter[str](), []
        for future in self.X:
            address = min(holders.get(future.key) or live_workers(self.client), key=lambda one: (counts[one], one))
            counts[address] += 1
            addresses.append(address)
        return addresses


class OnWorkers:
    """Implement :class:`clsvm.distribute.Parts` on Dask's workers, with one part for each chunk.

    A part is an object on a worker that computes with the rows of its chunk. The version of a part is the number of
    requests that the part has answered. The worker and the caller count the version independently. If a reply was lost
    on its way, the two versions differ, and the part counts as lost.

    The argument ``build`` of the constructor is a function: build(stream, rows, targets, weights) makes a part.

    Attributes
    ----------
    sizes
        number of rows of each chunk.
    memory_limit
        memory limit of each worker's device.
    addresses
        for each part, the address of the worker that holds it.
    """

    def __init__(
        self,
        chunks: Chunks,
        build: Callable[..., Any],
        sizes: Sequence[int],
        device: Any,
        memory_limit: int | str | None,
    ) -> None:
        self._chunks, self.client, self.sizes, self.memory_limit = chunks, chunks.client, sizes, memory_limit
        self.addresses = chunks.addresses()
        self._name = uuid.uuid4().hex
        chunks_each = -(-len(sizes) // max(1, len(workers(self.client))))
        recipe = self._name, build, device, memory_limit, neighbours(self.client), chunks_each
        self._recipe = self.client.submit(worker.Recipe, *recipe, pure=False)
        self._built: set[int] = set()
        self._versions: list[int | None] = [None] * len(sizes)
        self._actors: dict[str, Any] = {}

    def call(self, name: str, given: Sequence[Request | None]) -> list[Any]:
        """Call the method ``name`` of each part i with the arguments ``given[i]``, and return the replies.

        If ``given[i]`` is None, part i is not called, and its reply is None. The reply of a part that was lost with its
        worker is :class:`Lost`.
        """
        called = [i for i, one in enumerate(given) if one is not None]
        self._build_missing({*called})
        calls = [(i, self._send(i, name, given[i])) for i in called]
        replies: list[Any] = [None] * len(given)
        for i, call in calls:
            replies[i] = reply = self._receive(i, call)
            if isinstance(reply, Lost):
                self._built.discard(i)
                self._versions[i] = None
            else:
                self._versions[i] = 1 + (self._versions[i] or 0)
        return replies

    def peak(self) -> int:
        return max([0, *self.client.run(worker.peak, self._name, on_error="ignore").values()])

    def memory(self) -> tuple[int, int | str | None]:
        return 0, self.memory_limit

    def close(self) -> None:
        """Free the device memory that this fit uses on the workers."""
        self.client.run(worker.in_thread, worker.forget, self._name, on_error="ignore")

    def _build_missing(self, missing: set[int]) -> None:
        """Build the parts of the fit with the indices ``missing`` on live workers, unless they are built already.

        A part is an object on a Dask worker that stores some of the training rows and computes with them. Raises
        DeviceError if one part loses its worker more than ``clsvm.distribute.TRIES`` times during this call.
        """
        builds, losses, chunks = dict[int, Future[Any]](), Counter[int](), self._chunks
        while missing := missing - self._built:
            lost = self._reassign(missing) | {i for i, one in builds.items() if one.status in LOST_STATES}
            if lost := lost & builds.keys():
                count_losses(losses, lost)
            for i in lost:
                builds.pop(i).cancel()
            for i in sorted(missing - builds.keys()):
                given = worker.build_part, self._recipe, i, chunks.X[i], chunks.y[i], chunks.weights[i]
                builds[i] = self.client.submit(worker.in_thread, *given, workers=[self.addresses[i]], pure=False)
            done = ended([builds[i] for i in missing], "FIRST_COMPLETED")
            for i in missing:
                if builds[i] in done and builds[i].status not in LOST_STATES:
                    builds[i].result()
                    self._built.add(i)

    def _reassign(self, parts: set[int]) -> set[int]:
        """Assign live workers to the parts whose workers are lost. Return the indices of these parts.

        parts: indices of the parts to check.
        """
        live = live_workers(self.client)
        lost = {i for i in parts if self.addresses[i] not in live}
        for i in lost:
            self.addresses[i] = min(live, key=Counter(self.addresses).__getitem__)
        return lost

    def _send(self, i: int, name: str, given: Any) -> Any:
        """Ask the worker that stores part i to call the method ``name`` of part i with the arguments ``given``.

        A part is an object on a Dask worker that stores some of the training rows and computes with them. Return the
        future of the reply, or None if the worker cannot be reached.
        """
        try:
            return self._actor(self.addresses[i]).call(self._name, i, self._versions[i], name, given)
        except (RuntimeError, OSError, TimeoutError):
            return None

    def _actor(self, address: str) -> Any:
        """Return the :class:`worker.WorkerActor` on the worker at ``address``. The first call creates it.

        Requests go through this Dask actor because it replies about 10 ms faster than a Dask task.
        """
        if address not in self._actors:
            made = self.client.submit(worker.WorkerActor, actor=True, workers=[address], pure=False)
            until = perf_counter() + WORKER_TIMEOUT
            while address not in self._actors:
                try:
                    self._actors[address] = made, made.result(timeout=REPLY_TIMEOUT)
                except TimeoutError:
                    if address not in workers(self.client) or perf_counter() > until:
                        made.cancel()
                        raise
        return self._actors[address][1]

    def _receive(self, i: int, call: Any) -> Any:
        """Wait for the reply to a request that was sent to part i, and return the reply.

        A part is an object on a Dask worker that stores some of the training rows and computes with them. Return a
        :class:`Lost` object in place of the reply if the worker of part i is lost, or if ``call`` is None.

        call: the future of the reply, as :meth:`_send` returned it. None if :meth:`_send` could not reach the worker.
        """
        while call is not None:
            try:
                return call.result(timeout=REPLY_TIMEOUT)
            except TimeoutError:
                if self.addresses[i] not in workers(self.client):
                    break
            except OSError as error:
                if UNREACHED not in str(error):  # the request itself raised the error
                    raise
                break
        self._actors.pop(self.addresses[i], None)
        return Lost()


def workers(client: Client) -> list[str]:
    """Return the addresses of the live Dask workers."""
    return sorted(client.nthreads())


def live_workers(client: Client) -> list[str]:
    """Wait for at least one live Dask worker, and return the addresses of all live workers.

    Raises DeviceError after WORKER_TIMEOUT seconds without a worker.
    """
    if not workers(client):
        try:
            client.wait_for_workers(1, timeout=WORKER_TIMEOUT)
        except TimeoutError:
            raise DeviceError("Dask has no running worker, and none came in time: start one") from None
    return workers(client)


def ended(futures: list[Future[Any]], which: str) -> list[Future[Any]]:
    """Wait at most REPLY_TIMEOUT seconds for futures to end, and return the futures that have ended.

    ``which`` is "FIRST_COMPLETED" to wait for any future, "ALL_COMPLETED" to wait for all futures.
    """
    try:
        return list(wait(futures, timeout=REPLY_TIMEOUT, return_when=which).done)
    except TimeoutError:
        return []


def results(client: Client, futures: list[Future[Any]]) -> list[Any]:
    """Wait for all futures, and return their results.

    Raises DeviceError if no worker is live, or if Dask has lost data that the futures need.
    """
    try:
        while futures and not ended(futures, "ALL_COMPLETED"):
            live_workers(client)
        return list(client.gather(futures))
    except CancelledError as error:
        words = "Dask has lost the chunks: the client that persisted them is closed, or their workers are gone"
        raise DeviceError(f"{words} ({error})") from None


def neighbours(client: Client) -> int:
    """Return the largest number of workers on one computer."""
    return max(Counter(address.rpartition(":")[0] for address in workers(client)).values(), default=1)
