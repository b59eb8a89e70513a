"""Threads: how one is told to end its work, and the process's number of threads for the host's linear algebra."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

_local = threading.local()  # stop: the event that ends this thread's work, where it is a worker's


def end_by(stop: threading.Event) -> None:
    """Have this thread's work end when an event is set: see :func:`go_on`."""
    _local.stop = stop


def go_on() -> None:
    """Look, from time to time in what may take long, whether this thread's work is to end.

    Raises KeyboardInterrupt then, as Ctrl-C does in the main thread: once, since what follows tidies up.
    """
    stop: threading.Event | None = getattr(_local, "stop", None)
    if stop is not None and stop.is_set():
        _local.stop = None
        raise KeyboardInterrupt


class _OneThread:
    """Limits the host's linear algebra to one thread inside, for one caller at a time.

    The limit is the process's, and another number of threads would be another sum. On small work several threads wait
    for each other more than they work, and stay awake for a while, on cores that a device's threads want next.
    """

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
        """Let all threads work inside, with nobody beside who limits them."""
        with self._lock:
            yield

    def forked(self) -> None:
        """Forget the parent's threads in a forked child: none of them is inside."""
        self._lock, self._limited = threading.RLock(), False


one_thread = _OneThread()
all_threads = one_thread.all
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forked)
