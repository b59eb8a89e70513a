"""Rows on several devices of this machine: a thread, a stream and some parts of the rows each.

Which part is where follows the devices' speeds, measured on the first rows; the parts themselves, and so the bits of
all sums, follow from the number of rows alone (:func:`clsvm.nystrom.rows.blocks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.arrays import Data
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Plan
from clsvm.kernels import Kernel
from clsvm.nystrom.rows import Rows, Several, Task, blocks, of_part, within
from clsvm.opencl.contexts import SIMULATOR
from clsvm.opencl.devices import find
from clsvm.opencl.stream import Stream

Vector = NDArray[np.float64]
PROBE = 8192  # rows that say how fast a device is


class _Here:
    """A thread that is the caller's own: Oclgrind 21.10 crashes in any other."""

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
class Place:
    """A device's thread, and the stream that lives there."""

    thread: ThreadPoolExecutor | _Here
    stream: Stream

    def ask(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        return self.thread.submit(call, *given)


@contextmanager
def opened(devices: Sequence[Any], memory_limit: int | str | None) -> Iterator[list[Place]]:
    """A place for each device; one that is named twice is two, which share the memory. Raises DeviceError."""
    places: list[Place] = []
    try:
        for device in devices:
            thread = _Here() if find(device).platform == SIMULATOR else ThreadPoolExecutor(1, "clsvm")
            try:
                places.append(Place(thread, thread.submit(Stream, device, memory_limit).result()))
            except BaseException:
                thread.shutdown()
                raise
        if memory_limit is None:
            counts = Counter(place.stream.info.index for place in places)
            for place in places:
                place.stream.limit //= counts[place.stream.info.index]
        yield places
    finally:
        for place in places:
            place.ask(place.stream.__exit__)
        for place in places:
            place.thread.shutdown()


@dataclass
class Held:
    """Some rows at a place: products, and of the task at hand the rows' side. See clsvm.nystrom.rows.Part."""

    place: Place
    rows: slice
    cross: Cross
    finer: Callable[[], Cross] | None
    side: Rows | None = None

    @property
    def n(self) -> int:
        return self.cross.n

    def pose(self, task: Task, sample: NDArray[np.intp] | None, total: Vector) -> None:
        """Take up a task over all rows."""
        given = of_part(task, self.rows), within(sample, self.rows), total
        self.side = Rows(self.cross, *given, exact=self.finer)

    def ask(self, name: str, *given: Any) -> Future[Any]:
        def call() -> Any:
            found = getattr(self.side, name)
            return found(*given) if callable(found) else found

        return self.place.ask(call)


class Spread:
    """K(X, C) in parts at several places: what :class:`clsvm.gram.cross.Cross` is at one, as far as a fit asks.

    X (n, d), centres (m, d); k outputs; finest: the dtype of gradients where ``dtype`` turns out too coarse, which may
    be the same."""

    def __init__(
        self,
        places: Sequence[Place],
        X: Data,
        centres: Data,
        kernel: Kernel,
        plan: Plan,
        dtype: str,
        k: int,
        finest: str,
    ) -> None:
        self.n, self.m, self.k, self.dtype = X.shape[0], centres.shape[0], k, dtype
        given = centres, kernel, plan
        parts = blocks(self.n)
        owners = _dealt(len(parts), _speeds(places, X, given, dtype, k)) if len(places) > 1 else [0] * len(parts)
        made = []
        for i, (rows, owner) in enumerate(zip(parts, owners, strict=True)):
            left = owners[i:].count(owner)
            made.append(places[owner].ask(_held, places[owner], X[rows], rows, given, dtype, k, left, finest))
        self.parts: list[Held] = [one.result() for one in made]
        self.cost = self.parts[0].cross.cost
        counts = ", ".join(f"{owners.count(i)} on {place.stream.info.name}" for i, place in enumerate(places))
        self._words = f"{len(parts)} parts, {counts}: {self.parts[0].cross.describe()}"

    def values(self, rows: NDArray[np.intp]) -> NDArray[np.floating]:
        """K (s, m) of some rows, ascending, on the host."""
        asked = [part.place.ask(part.cross.values, within(rows, part.rows)) for part in self.parts]
        return np.concatenate([one.result() for one in asked])

    def side(self, task: Task, sample: NDArray[np.intp] | None) -> Several:
        """The rows' side of a task."""
        total, task = task.total, replace(task, largest=task.deviation)  # (once, not for each part)
        for one in [part.place.ask(part.pose, task, sample, total) for part in self.parts]:
            one.result()
        return Several(self.parts, task, self.m)

    def describe(self) -> str:
        """Where K is, and why."""
        return self._words


def _held(
    place: Place, X: Data, rows: slice, given: tuple[Data, Kernel, Plan], dtype: str, k: int, left: int, finest: str
) -> Held:
    """A part at its place, ``left`` of which are still to share the memory there."""
    stream, (centres, kernel, plan) = place.stream, given

    def made(dtype: str, keep: bool) -> Cross:
        return Cross(stream, X, centres, kernel, plan, dtype, k, keep)

    spared = (stream.limit - stream.held) * (left - 1) // left
    stream.limit -= spared
    try:
        cross = made(dtype, True)
    finally:
        stream.limit += spared
    return Held(place, rows, cross, None if dtype == finest else lambda: made(finest, False))


def _speeds(places: Sequence[Place], X: Data, given: tuple[Data, Kernel, Plan], dtype: str, k: int) -> Vector:
    """Rows a second of each place by itself, in a second pass over the first rows."""
    some, (centres, kernel, plan) = X[:PROBE], given

    def seconds(stream: Stream) -> float:
        with stream.scratch():
            cross = Cross(stream, some, centres, kernel, plan, dtype, k, keep=False)
            V = np.zeros((k, centres.shape[0]))
            cross.forward_back(V)
            began = perf_counter()
            cross.forward_back(V)
            return perf_counter() - began

    return 1 / np.array([place.ask(seconds, place.stream).result() for place in places])


def _dealt(parts: int, speeds: Vector) -> list[int]:
    """Who has each part: the next one goes to whoever would be done with it first. Neighbours stay together."""
    counts = np.zeros(len(speeds), int)
    for _ in range(parts):
        counts[np.argmin((counts + 1) / speeds)] += 1
    return [int(i) for i in np.repeat(np.arange(len(speeds)), counts)]
