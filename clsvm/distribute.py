"""Work at several places: the executor, which asks parts of a fit's rows, and a queue of pieces for devices.

A part is an object at a place: a shard of an SVM's rows (solvers/shard.py) or a block of a Nyström model's
(nystrom/rows.py). The places are threads of this process, one a device (:class:`OnDevices`), or Dask's workers
(clsvm.dask.executor.OnWorkers).

    ask       calls a method of every part, or reads an attribute
    notice    the executor notices that a part is gone, answers :class:`Lost` for it, and builds it anew before it is
              asked again
    replay    the solver, which alone knows the part's state, poses its problem again and repeats what led there
              (:func:`replayed`)

Pieces of work that share nothing but their input are dealt from a queue (:func:`dealt`).
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from clsvm.errors import DeviceError
from clsvm.opencl.contexts import SIMULATOR
from clsvm.opencl.devices import find
from clsvm.opencl.stream import Stream
from clsvm.threads import end_by

Vector = NDArray[np.float64]
Question = tuple[Any, ...]
Worker = TypeVar("Worker")
Piece = TypeVar("Piece")
TRIES = 3  # losses of a part during one question, beyond which the fit ends
ALIKE = 1.3  # ratio of speeds up to which devices share evenly
_ENDED = object()  # what a worker says at its end
_LOOK = 0.2  # s between two looks at whether Ctrl-C came


class Lost:
    """The answer of a part that is gone with all that it knew beside its rows."""


class Parts(Protocol):
    """Parts of the rows, in their order. sizes: rows of each."""

    sizes: Sequence[int]

    def ask(self, name: str, given: Sequence[Question | None]) -> list[Any]:
        """Return what each part answers to ``name`` with its arguments, None where these are None, or :class:`Lost`."""

    def peak(self) -> int:
        """Return the most bytes that a device has held for these parts."""

    def memory(self) -> tuple[int, int | str | None]:
        """Return the bytes that the caller's devices hold now, and the memory limit that is left there."""


def ask_one(parts: Parts, i: int, name: str, *given: Any) -> Any:
    """Return what part i answers, or :class:`Lost`."""
    return parts.ask(name, [given if k == i else None for k in range(len(parts.sizes))])[i]


def replayed(answers: list[Any], replay: Callable[[int], Any]) -> list[Any]:
    """Return the answers, with ``replay(i)`` in place of that of each lost part i.

    ``replay`` brings the part back to its state, asks it again, and returns its answer, or :class:`Lost` where the part
    is lost meanwhile. Raises DeviceError where a part is lost more than TRIES times.
    """
    for i, answer in enumerate(answers):
        losses = Counter[int]()
        while isinstance(answer, Lost):
            count_losses(losses, [i])
            answer = replay(i)
        answers[i] = answer
    return answers


def count_losses(losses: Counter[int], lost: Iterable[int]) -> None:
    """Count that parts were lost during one question. Raises DeviceError where one is lost more than TRIES times."""
    losses.update(lost)
    most = max(losses.values())
    if most > TRIES:
        raise DeviceError(f"Dask lost the rows of a chunk {most} times: do the workers have enough memory?")


def split(rows: NDArray[np.intp], sizes: Sequence[int]) -> list[NDArray[np.intp]]:
    """Return sorted rows by their part, counted from its first."""
    ends = np.cumsum(sizes)
    cuts = np.searchsorted(rows, ends[:-1])
    return [some - end + size for some, end, size in zip(np.split(rows, cuts), ends, sizes, strict=True)]


def call(part: Any, name: str, given: Sequence[Any]) -> Any:
    """Call a method of a part, or read an attribute."""
    found = getattr(part, name)
    return found(*given) if callable(found) else found


@contextmanager
def share_of(stream: Stream, left: int) -> Iterator[None]:
    """Limit the stream's memory to one share where ``left`` parts are still to be built there."""
    spared = (stream.limit - stream.held) * (left - 1) // left
    stream.limit -= spared
    try:
        yield
    finally:
        stream.limit += spared


class _Caller:
    """The caller's own thread."""

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*given))
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        """Nothing to wait for."""


@dataclass
class DeviceThread:
    """A thread, and the stream of a device that lives there."""

    thread: ThreadPoolExecutor | _Caller
    stream: Stream


@contextmanager
def opened(device: Any, memory_limit: int | str | None) -> Iterator[list[DeviceThread]]:
    """Open a stream in the caller's thread, or for a list of devices one in a thread for each.

    Entries of one device share its memory. Raises DeviceError where a device is not there.
    """
    if not isinstance(device, list | tuple):
        with Stream(device, memory_limit) as stream:
            yield [DeviceThread(_Caller(), stream)]
        return
    threads: list[DeviceThread] = []
    try:
        for one in device:
            # Oclgrind 21.10 crashes in any thread but the caller's.
            thread = _Caller() if find(one).platform == SIMULATOR else ThreadPoolExecutor(1, "clsvm")
            try:
                threads.append(DeviceThread(thread, thread.submit(Stream, one, memory_limit).result()))
            except BaseException:
                thread.shutdown()
                raise
        if memory_limit is None:
            counts = Counter(one.stream.info.index for one in threads)
            for one in threads:
                one.stream.limit //= counts[one.stream.info.index]
        yield threads
    finally:
        for one in threads:
            one.thread.submit(one.stream.__exit__)
        for one in threads:
            one.thread.shutdown()


class OnDevices:
    """:class:`Parts` at device threads, none of which is ever lost.

    owners: the thread of each part. build: makes part i on a stream.
    """

    def __init__(
        self, threads: Sequence[DeviceThread], owners: Sequence[int], build: Callable[[Stream, int], Any]
    ) -> None:
        def built(stream: Stream, i: int, left: int) -> Any:
            with share_of(stream, left):
                return build(stream, i)

        self._streams = [one.stream for one in threads]
        homes = [threads[owner] for owner in owners]
        self._threads = [one.thread for one in homes]
        made = [one.thread.submit(built, one.stream, i, owners[i:].count(owners[i])) for i, one in enumerate(homes)]
        self.parts = [one.result() for one in made]
        self.sizes: Sequence[int] = [part.n for part in self.parts]

    def ask(self, name: str, given: Sequence[Question | None]) -> list[Any]:
        asked = [
            None if one is None else thread.submit(call, part, name, one)
            for thread, part, one in zip(self._threads, self.parts, given, strict=True)
        ]
        return [None if one is None else one.result() for one in asked]

    def peak(self) -> int:
        return max(stream.peak for stream in self._streams)

    def memory(self) -> tuple[int, int]:
        left = min(stream.limit - stream.held for stream in self._streams)
        return max(stream.held for stream in self._streams), left


def speeds(threads: Sequence[DeviceThread], seconds: Callable[[Stream], float]) -> Vector:
    """Return how fast each device is by itself. seconds: what some work takes there.

    Devices of one name, or of about one speed, count as equal.
    """
    if len({str(one.stream.info) for one in threads}) == 1:
        return np.ones(len(threads))
    found = 1 / np.array([one.thread.submit(seconds, one.stream).result() for one in threads])
    return np.ones(len(threads)) if found.max() <= ALIKE * found.min() else found


def owners(parts: int, speeds: Vector) -> list[int]:
    """Return the device of each part: the next one goes to whichever would be done with it first. Neighbours stay
    together."""
    counts = np.zeros(len(speeds), int)
    for _ in range(parts):
        counts[np.argmin((counts + 1) / speeds)] += 1
    return [int(i) for i in np.repeat(np.arange(len(speeds)), counts)]


def dealt(
    workers: Sequence[Worker], pieces: Iterable[Piece], work: Callable[[Worker, Iterator[Piece]], Generator[None]]
) -> Generator[None]:
    """Have all pieces worked on by ``work(worker, pieces)``, in a thread for each worker, and yield whenever it does.

    A worker takes a piece when it is done with the one before, so a faster worker does more. One worker alone works in
    the caller's thread. An error of one worker ends the others and is raised here; so does the end of the iteration, by
    Ctrl-C, say. A worker that is to end gets a KeyboardInterrupt from its next :func:`clsvm.threads.go_on`.
    """
    if len(workers) == 1:
        yield from work(workers[0], iter(pieces))
        return
    todo, said, stop, lock = iter(pieces), SimpleQueue[Any](), threading.Event(), threading.Lock()

    def taken() -> Iterator[Piece]:
        while not stop.is_set():
            with lock:
                piece = next(todo, said)
            if piece is said:
                return
            yield cast(Piece, piece)

    def run(worker: Worker) -> None:
        end_by(stop)
        ended: Any = _ENDED
        try:
            with closing(work(worker, taken())) as steps:
                for _ in steps:
                    said.put(None)
                    if stop.is_set():
                        break
        except BaseException as error:
            ended = error
        said.put(ended)

    started: list[threading.Thread] = []
    try:
        for worker in workers:
            context = contextvars.copy_context()  # of the caller: the words that its progress begins with
            thread = threading.Thread(target=context.run, args=(run, worker), name="clsvm")
            thread.start()
            started.append(thread)
        left = len(started)
        while left:
            try:
                one = said.get(timeout=_LOOK)
            except Empty:  # A signal that the system hands to another thread does not wake this one up.
                continue
            if isinstance(one, BaseException):
                raise one
            left -= one is _ENDED
            if one is None:
                yield
    finally:
        stop.set()
        for thread in started:
            thread.join()
