"""Interrupt worker threads, and limit the threads of the host's linear algebra (BLAS).

A worker thread calls :func:`stop_on` with an event. Long computations call :func:`check_interrupt`, which raises
KeyboardInterrupt once the event is set. ``one_thread`` and :func:`threads_for` are context managers that set the
number of BLAS threads.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from threadpoolctl import ThreadpoolController

SMALL_WORK = 1 << 30  # linear algebra with fewer multiply-adds uses one thread
_local = threading.local()  # _local.stop is the event that ends this worker thread's computation


def stop_on(stop: threading.Event) -> None:
    """Let this thread's calls of :func:`check_interrupt` raise KeyboardInterrupt once the event ``stop`` is set."""
    _local.stop = stop


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if the event that this thread gave to :func:`stop_on` is set.

    Long computations call this function regularly. Before the exception is raised, the thread forgets the event, so
    that cleanup code is not interrupted.
    """
    stop: threading.Event | None = getattr(_local, "stop", None)
    if stop is not None and stop.is_set():
        _local.stop = None
        raise KeyboardInterrupt


class _OneThread:
    """Limit the host's linear algebra to one thread inside the context, for one caller at a time.

    A lock admits one caller, because the limit applies to the whole process. With one thread, sums keep their order, so
    that results are reproducible. One thread is also faster for small matrices. Additional BLAS threads would wait in
    busy loops for their next work, and so take cores from an OpenCL device that runs on the same CPU.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, because a user's kernel function may fit another model
        self._limited = False
        self._libraries: ThreadpoolController | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._limited:  # this thread entered the context before
                yield
                return
            self._libraries = self._libraries or ThreadpoolController()
            with self._libraries.limit(limits=1):
                self._limited = True
                try:
                    yield
                finally:
                    self._limited = False

    def all(self) -> AbstractContextManager[object]:
        """Return a context in which BLAS uses all threads. Calls of ``one_thread`` wait until it ends."""
        return self._lock

    def forked(self) -> None:
        """Make a new lock in a forked child, because no thread of the child can release a lock that the parent held."""
        self._lock, self._limited = threading.RLock(), False


one_thread = _OneThread()


def threads_for(work: float) -> AbstractContextManager[object]:
    """Return a context in which linear algebra uses one thread if ``work`` is small, else all threads.

    For small matrices, several threads would mostly wait for one another.

    work: number of multiply-adds. Nothing else decides the number of threads outside ``one_thread``, so the bits of
        results are reproducible.
    """
    return one_thread() if work < SMALL_WORK else one_thread.all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forked)
