"""Threads: of the host's linear algebra, of which the process says how many there are, whoever calls; and workers that
take pieces of work from one queue."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from threadpoolctl import ThreadpoolController

Worker = TypeVar("Worker")
Piece = TypeVar("Piece")
_ENDED = object()  # what a worker says at its end
_LOOK = 0.2  # s between two looks at whether Ctrl-C came
_local = threading.local()  # stop: the event that ends this thread's work, where it is a worker's


def dealt(
    workers: Sequence[Worker], pieces: Iterable[Piece], work: Callable[[Worker, Iterator[Piece]], Generator[None]]
) -> Generator[None]:
    """Have all pieces worked on by ``work(worker, pieces)``, in a thread for each worker: it takes a piece when it is
    done with the one before, so a faster worker does more. One worker alone works in the caller's thread.

    Yields whenever ``work`` does. An error of one worker ends the others and is raised here; so does the end of the
    iteration, by Ctrl-C, say. A worker that is to end gets a KeyboardInterrupt from its next :func:`go_on`.
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
        _local.stop = stop
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
            one = _heard(said)
            if isinstance(one, BaseException):
                raise one
            left -= one is _ENDED
            if one is None:
                yield
    finally:
        stop.set()
        for thread in started:
            thread.join()


def _heard(said: SimpleQueue[Any]) -> Any:
    """What the next worker says. The caller's thread wakes up from time to time: a signal that the system hands to
    another thread does not wake it, and Python raises KeyboardInterrupt in this one alone."""
    while True:
        try:
            return said.get(timeout=_LOOK)
        except Empty:
            continue


def go_on() -> None:
    """Called from time to time by what may take long. Raises KeyboardInterrupt in a worker of :func:`dealt` that is to
    end, as Ctrl-C does in the main thread: once, since what follows tidies up."""
    stop: threading.Event | None = getattr(_local, "stop", None)
    if stop is not None and stop.is_set():
        _local.stop = None
        raise KeyboardInterrupt


class _OneThread:
    """One thread for the linear algebra of whoever is inside, one at a time: the limit is the process's, and another
    number of threads would be another sum. Several would wait for each other more than they work on what is small, and
    stay awake for a while, on cores that a device's threads want next. :meth:`all`: as many as there are, and nobody
    inside who limits them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # (a kernel function of the caller's, called inside, may fit a machine)
        self._limited = False
        self._libraries: ThreadpoolController | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._limited:  # (by this thread, further out)
                yield
                return
            self._libraries = self._libraries or ThreadpoolController()
            with self._libraries.limit(limits=1):
                self._limited = True
                try:
                    yield
                finally:
                    self._limited = False

    @contextmanager
    def all(self) -> Iterator[None]:
        with self._lock:
            yield

    def forked(self) -> None:
        """In a forked child none of the parent's threads is inside."""
        self._lock, self._limited = threading.RLock(), False


one_thread = _OneThread()
all_threads = one_thread.all
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forked)
