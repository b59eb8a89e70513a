"""Threads of the host's linear algebra: how many there are is the process's to say, whoever calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


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
