"""Launching kernels: what Python gives them as arguments, and of which types these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clsvm.errors import DeviceError
from clsvm.opencl.contexts import build_lock, cached, of_thread
from clsvm.opencl.memory import failed
from clsvm.opencl.runtime import cl


class Kernel:
    """A kernel and the queue it runs on; Python ints go as int, floats as float, NumPy scalars as they are, a record
    of arguments (a NamedTuple, any tuple) as what it holds, in its order.

    The object behind it is the thread's, since making one takes longer than most of them run; each call sets all of its
    arguments. Their types are those of the thread's first call: told once, they are set twenty times as fast.
    """

    def __init__(self, queue: cl.CommandQueue, info: Any, lock: Any, program: cl.Program, name: str) -> None:
        self._queue, self._info, self._lock = queue, info, lock
        self._program, self._name = program, name
        made = of_thread("kernels")
        try:
            if (program, name) not in made:
                with build_lock:
                    made[program, name] = cached(lambda: cl.Kernel(program, name))
        except cl.Error as error:
            raise self._failed(error) from None
        self._kernel, self._typed = made[program, name], of_thread("typed kernels")

    def __call__(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> None:
        values = [*_flat(args)]
        try:
            if self._kernel not in self._typed:
                with build_lock:
                    _tell_types(self._kernel, values)
                self._typed[self._kernel] = True
            with self._lock:
                self._kernel.set_args(*values)
                cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, local)
        except cl.Error as error:
            raise self._failed(error) from None

    def held(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> Callable[[], None]:
        """A launch that is repeated with the same arguments, which an object of its own keeps: in a quarter of a call's
        time."""
        values = [*_flat(args)]
        try:
            with build_lock:
                kernel = cached(lambda: cl.Kernel(self._program, self._name))
                _tell_types(kernel, values)
                kernel.set_args(*values)
        except cl.Error as error:
            raise self._failed(error) from None

        def launch() -> None:
            try:
                with self._lock:
                    cl.enqueue_nd_range_kernel(self._queue, kernel, size, local)
            except cl.Error as error:
                raise self._failed(error) from None

        return launch

    def _failed(self, error: cl.Error) -> DeviceError:
        return failed(self._info, f"{self._name} did not start", error)


def local(nbytes: int) -> Any:
    """A kernel argument: so many bytes of local memory."""
    return cl.LocalMemory(nbytes)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _tell_types(kernel: cl.Kernel, values: list[Any]) -> None:
    """Of a kernel's arguments, so that setting them takes a twentieth of the time."""
    cached(lambda: kernel.set_scalar_arg_dtypes([*map(_type, values)]))


def _type(value: Any) -> type[np.generic] | None:
    """The scalar type of a kernel argument; None of a buffer."""
    if isinstance(value, np.generic):
        return type(value)
    return np.int32 if isinstance(value, int) else np.float32 if isinstance(value, float) else None
