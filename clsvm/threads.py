"""Threads: of the host's linear algebra, of which the process says how many there are, whoever calls; and workers that
take pieces of work from one queue."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Worker = TypeVar("Worker")
Piece = TypeVar("Piece")


def dealt(
    workers: Sequence[Worker], pieces: Sequence[Piece], work: Callable[[Worker, Piece], Generator[None]]
) -> Iterator[None]:
    """Have every piece worked on: a thread for each worker takes the next one when it is done with one, so that who is
    faster does more. Yields when ``work`` does; what it raises ends all, as the end of whoever iterates does, after the
    step that each is at."""
    todo, said, stop = iter(pieces), SimpleQueue[Any](), threading.Event()
    lock, done = threading.Lock(), object()

    def run(worker: Worker) -> None:
        try:
            while not stop.is_set():
                with lock:
                    piece = next(todo)
                with closing(work(worker, piece)) as steps:
                    for _ in steps:
                        said.put(None)
                        if stop.is_set():
                            break
        except StopIteration:
            pass
        except BaseException as error:
            said.put(error)
        said.put(done)

    threads = [threading.Thread(target=run, args=(worker,), name="clsvm") for worker in workers]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            one = said.get()
            if isinstance(one, BaseException):
                raise one
            left -= one is done
            if one is None:
                yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class _OneThread:
    """One thread for the linear algebra of whoever is inside, one at a time: the limit is the process's, and another
    number of threads would be another sum. Several would wait for each other more than they work on what is small, and
    stay awake for a while, on cores that a device's threads want next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._libraries: ThreadpoolController | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._libraries = self._libraries or ThreadpoolController()
            with self._libraries.limit(limits=1):
                yield

    def forked(self) -> None:
        """In a forked child none of the parent's threads is inside."""
        self._lock = threading.Lock()


one_thread = _OneThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forked)
