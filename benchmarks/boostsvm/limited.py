"""A process that answers questions one after another and is ended when an answer takes too long."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

Answer = Callable[[Any], Any]


class TooLongError(Exception):
    """No answer came within the limit."""


class Worker:
    """Answers questions by ``make(*given)``, which is called once, in a process of its own.

    limit: seconds of an answer; what ``make`` takes does not count. 0: no limit, and no process. Use as a context
    manager. Raises RuntimeError with the words of an error in the process.
    """

    def __init__(self, limit: float, make: Callable[..., Answer], *given: Any) -> None:
        self.limit = limit
        if not limit:
            self._answer = make(*given)
            return
        context = multiprocessing.get_context("spawn")
        self._line, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, make, given), daemon=True)
        self._process.start()
        other.close()
        self._received()

    def ask(self, question: Any) -> Any:
        """The answer. Raises TooLongError, and ends the process, where it does not come within the limit."""
        if not self.limit:
            return self._answer(question)
        began = perf_counter()
        self._line.send(question)
        in_time = self._line.poll(self.limit) and perf_counter() - began <= self.limit  # (this process may sleep too)
        if not in_time:
            self._end()
            raise TooLongError(f"> {self.limit:g} s")
        return self._received()

    def _received(self) -> Any:
        try:
            right, answer = self._line.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"the process ended with code {self._process.exitcode}") from None
        if not right:
            raise RuntimeError(answer)
        return answer

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.limit:
            self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._line.close()


def _serve(line: Connection, make: Callable[..., Answer], given: tuple[Any, ...]) -> None:
    """What the process runs: the first message says whether it is ready."""
    try:
        answer = make(*given)
        line.send((True, None))
        while True:
            line.send((True, answer(line.recv())))
    except EOFError:
        return
    except Exception as error:
        line.send((False, f"{type(error).__name__}: {error}"))
