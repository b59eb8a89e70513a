"""Launching kernels: what Python gives them as arguments, and of which types these are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from clsvm.opencl.contexts import Calling, build_lock, cached, of_thread
from clsvm.opencl.runtime import cl


class Kernel:
    """A kernel and the queue it runs on; Python ints go as int, floats as float, NumPy scalars as they are, a record
    of arguments (a NamedTuple, any tuple) as what it holds, in its order.

    The object behind it is the thread's, since making one takes longer than most of them run; each call sets all of its
    arguments. Their types are those of the thread's first call: told once, they are set twenty times as fast.
    """

    def __init__(self, queue: cl.CommandQueue, info: Any, lock: Any, program: cl.Program, name: str) -> None:
        self._queue, self._program, self._name = queue, program, name
        self._making, self._starting = (Calling(info, one, f"{name} did not start") for one in (build_lock, lock))
        made = of_thread("kernels")
        if (program, name) not in made:
            made[program, name] = self._made()
        self._kernel, self._typed = made[program, name], of_thread("typed kernels")

    def __call__(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> None:
        values = [*_flat(args)]
        if self._kernel not in self._typed:
            with self._making:
                _tell_types(self._kernel, values)
            self._typed[self._kernel] = True
        with self._starting:
            self._kernel.set_args(*values)
            cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, local)

    def held(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> Callable[[], None]:
        """Return a launch that is repeated with the same arguments, which an object of its own keeps: in a quarter of
        a call's time."""
        values, kernel = [*_flat(args)], self._made()
        with self._making:
            _tell_types(kernel, values)
            kernel.set_args(*values)

        def launch() -> None:
            with self._starting:
                cl.enqueue_nd_range_kernel(self._queue, kernel, size, local)

        return launch

    def _made(self) -> cl.Kernel:
        with self._making:
            return cached(lambda: cl.Kernel(self._program, self._name))


def local(nbytes: int) -> Any:
    """Return a kernel argument: so many bytes of local memory."""
    return cl.LocalMemory(nbytes)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _tell_types(kernel: cl.Kernel, values: list[Any]) -> None:
    """Tell a kernel the types of its arguments: setting them then takes a twentieth of the time."""
    cached(lambda: kernel.set_scalar_arg_dtypes([*map(_type, values)]))


def _type(value: Any) -> type[np.generic] | None:
    """Return the scalar type of a kernel argument; None of a buffer."""
    if isinstance(value, np.generic):
        return type(value)
    return np.int32 if isinstance(value, int) else np.float32 if isinstance(value, float) else None
