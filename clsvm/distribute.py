"""Distribute a fit over several devices or Dask workers.

The training rows are divided among objects that are called parts. A part stores some of the rows on a device, and
computes with them. Parts live in threads of this process, one thread for each device (:class:`OnDevices`), or on Dask's
workers (clsvm.dask.executor.OnWorkers).

In a request, the solver calls a method of some or all parts, or reads an attribute of them. If a Dask worker fails, the
parts on this worker are lost. The solver gets the reply :class:`Lost` in place of a lost part's reply. The next request
to the lost part builds the part again on a live worker. The solver then sends the requests that give the new part the
state of the lost part (:func:`replayed`).

:func:`run_pieces` works without parts: several workers take independent pieces of work from one queue.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import DeviceError
from clsvm.opencl.contexts import SIMULATOR
from clsvm.opencl.devices import find
from clsvm.opencl.stream import Stream
from clsvm.threads import stop_on

Vector = NDArray[np.float64]
Request = tuple[Any, ...]
Worker = TypeVar("Worker")
Piece = TypeVar("Piece")
TRIES = 3  # a fit fails if workers with the same training rows fail more than this many times during one request
_ENDED = object()  # a worker's thread sends this message when it ends without an error
_POLL = 0.2  # seconds between two checks for Ctrl-C


class Lost:
    """Replace the reply that a failed Dask worker could not send. The training rows of this worker are lost too."""


class Parts(Protocol):
    """Send requests to the parts of a fit. A part is an object that stores some of the training rows.

    Attributes
    ----------
    sizes
        number of rows of each part, in the order of the training rows.
    """

    sizes: Sequence[int]

    def call(self, name: str, given: Sequence[Request | None]) -> list[Any]:
        """Call the method ``name`` of each part i with the arguments ``given[i]``, and return the replies.

        A part is an object that stores some of the training rows. If ``given[i]`` is None, part i is not called, and
        its reply is None. If the worker of a part has failed, the part's reply is :class:`Lost`.
        """

    def peak(self) -> int:
        """Return the largest number of bytes that one device has allocated at a time for this fit."""

    def memory(self) -> tuple[int, int | str | None]:
        """Return how many bytes are allocated now on a device of this process, and how many more may be allocated.

        With several devices, the first number is that of the device with the most bytes allocated. The second is that
        of the device with the fewest bytes left. If Dask's workers store the training rows, no bytes are allocated in
        this process. The result is then 0 and the memory limit that the user gave, which may be text or None.
        """


def call_one(parts: Parts, i: int, name: str, *given: Any) -> Any:
    """Call the method ``name`` of part i alone. Return its reply, or :class:`Lost` if the part's worker has failed."""
    return parts.call(name, [given if k == i else None for k in range(len(parts.sizes))])[i]


def replayed(replies: list[Any], replay: Callable[[int], Any]) -> list[Any]:
    """Return the replies of all parts, with ``replay(i)`` in place of each reply i that is :class:`Lost`.

    A part stores some of the training rows, and is lost if its worker fails. ``replay(i)`` builds part i again, repeats
    the request, and returns the reply, or :class:`Lost` if the part is lost again. Raises DeviceError if a part is lost
    more than TRIES times.
    """
    for i, reply in enumerate(replies):
        losses = Counter[int]()
        while isinstance(reply, Lost):
            count_losses(losses, [i])
            reply = replay(i)
        replies[i] = reply
    return replies


def count_losses(losses: Counter[int], lost: Iterable[int]) -> None:
    """Add one to the losses of each part in ``lost``. Raises DeviceError if a part was lost more than TRIES times.

    A part is an object that stores some of the training rows. It is lost if its worker fails.

    losses: number of losses of each part, by the part's index.
    lost: indices of the parts that have been lost once more.
    """
    losses.update(lost)
    most = max(losses.values())
    if most > TRIES:
        raise DeviceError(f"Dask lost the rows of a chunk {most} times: do the workers have enough memory?")


def split(rows: NDArray[np.intp], sizes: Sequence[int]) -> list[NDArray[np.intp]]:
    """Divide the row numbers ``rows`` among parts: part i stores ``sizes[i]`` consecutive training rows.

    ``rows`` ascends. Return an array for each part: the numbers of its rows, counted from the part's first row.
    """
    ends = np.cumsum(sizes)
    cuts = np.searchsorted(rows, ends[:-1])
    return [some - end + size for some, end, size in zip(np.split(rows, cuts), ends, sizes, strict=True)]


def call_part(part: Any, name: str, given: Sequence[Any]) -> Any:
    """Call the method ``name`` of the object ``part`` with the arguments ``given``, and return the result.

    If ``name`` is an attribute that is not a method, return its value.
    """
    found = getattr(part, name)
    return found(*given) if callable(found) else found


@contextmanager
def memory_share(stream: Stream, left: int) -> Iterator[None]:
    """Lower the memory limit of ``stream`` in a ``with`` block, so that several new objects get equal shares of memory.

    Each object is made in a ``with`` block of its own. ``left`` is the number of objects that are not made yet. The
    block may allocate 1 / ``left`` of the bytes that the stream could allocate before the block. The old limit is
    restored at the end of the block.
    """
    reserved = (stream.limit - stream.allocated) * (left - 1) // left
    stream.limit -= reserved
    try:
        yield
    finally:
        stream.limit += reserved


class _Caller(Executor):
    """Run each submitted call at once in the caller's thread, with the interface of a thread pool."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*given, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


@dataclass
class DeviceThread:
    """Hold the stream of a device, and the only thread that uses this stream."""

    thread: Executor
    stream: Stream


@contextmanager
def open_streams(device: Any, memory_limit: int | str | None) -> Iterator[list[DeviceThread]]:
    """Open a stream (a command queue with a memory limit) for each device. Close all streams after the ``with`` block.

    A single device is used in the caller's thread, and each device of a list in a new thread. If a list names a device
    several times and ``memory_limit`` is None, the streams of this device share its memory equally. Raises DeviceError
    if a device is not found.
    """
    if not isinstance(device, list | tuple):
        with Stream(device, memory_limit) as stream:
            yield [DeviceThread(_Caller(), stream)]
        return
    threads: list[DeviceThread] = []
    with ExitStack() as stack:
        for one in device:
            # Oclgrind 21.10 crashes outside the caller's thread, so the caller's thread runs an Oclgrind device.
            in_caller = find(one).platform == SIMULATOR
            thread = stack.enter_context(_Caller() if in_caller else ThreadPoolExecutor(1, "clsvm"))
            threads.append(DeviceThread(thread, thread.submit(Stream, one, memory_limit).result()))
            stack.callback(thread.submit, threads[-1].stream.__exit__)
        if memory_limit is None:
            counts = Counter(one.stream.info.index for one in threads)
            for one in threads:
                one.stream.limit //= counts[one.stream.info.index]
        yield threads


class OnDevices:
    """Send requests to parts in this process. A request to a part runs in the thread of the part's device.

    A part is an object that stores some of the training rows on a device. ``owners[i]`` is the index in ``threads`` of
    the thread that uses part i. ``build(stream, i)`` makes and returns part i on that thread's stream.
    """

    def __init__(
        self, threads: Sequence[DeviceThread], owners: Sequence[int], build: Callable[[Stream, int], Any]
    ) -> None:
        def build_part(stream: Stream, i: int, left: int) -> Any:
            with memory_share(stream, left):
                return build(stream, i)

        self._streams = [one.stream for one in threads]
        owner_threads = [threads[owner] for owner in owners]
        self._threads = [one.thread for one in owner_threads]
        futures = [
            one.thread.submit(build_part, one.stream, i, owners[i:].count(owners[i]))
            for i, one in enumerate(owner_threads)
        ]
        self.parts = [one.result() for one in futures]
        self.sizes: Sequence[int] = [part.n for part in self.parts]

    def call(self, name: str, given: Sequence[Request | None]) -> list[Any]:
        futures = [
            None if one is None else thread.submit(call_part, part, name, one)
            for thread, part, one in zip(self._threads, self.parts, given, strict=True)
        ]
        return [None if one is None else one.result() for one in futures]

    def peak(self) -> int:
        return max(stream.peak for stream in self._streams)

    def memory(self) -> tuple[int, int]:
        left = min(stream.limit - stream.allocated for stream in self._streams)
        return max(stream.allocated for stream in self._streams), left


def run_pieces(
    workers: Sequence[Worker], pieces: Iterable[Piece], work: Callable[[Worker, Iterator[Piece]], Generator[None]]
) -> Generator[None]:
    """Run a generator ``work(worker, pieces)`` in a thread for each worker, and yield whenever one of them yields.

    Each worker takes its next piece of work from a common queue, so a faster worker does more pieces. A single worker
    runs in the caller's thread. If a worker raises an exception, the other workers are stopped, and the exception is
    raised here. All workers are stopped if the caller closes this generator. In a stopped worker, the next call of
    :func:`clsvm.threads.check_interrupt` raises KeyboardInterrupt.
    """
    if len(workers) == 1:
        yield from work(workers[0], iter(pieces))
        return
    queue, messages, stop, lock = iter(pieces), SimpleQueue[Any](), threading.Event(), threading.Lock()

    def next_pieces() -> Iterator[Piece]:
        while not stop.is_set():
            with lock:
                piece = next(queue, messages)
            if piece is messages:
                return
            yield cast(Piece, piece)

    def run(worker: Worker) -> None:
        stop_on(stop)
        ended: Any = _ENDED
        try:
            with closing(work(worker, next_pieces())) as steps:
                for _ in steps:
                    messages.put(None)
                    if stop.is_set():
                        break
        except BaseException as error:
            ended = error
        messages.put(ended)

    with ThreadPoolExecutor(len(workers), "clsvm") as threads, ExitStack() as stack:
        stack.callback(stop.set)
        for worker in workers:
            threads.submit(run, worker)
        left = len(workers)
        while left:
            try:
                message = messages.get(timeout=_POLL)
            except Empty:  # Ctrl-C does not end a wait if another thread receives the signal, so waits are short
                continue
            if isinstance(message, BaseException):
                raise message
            left -= message is _ENDED
            if message is None:
                yield
