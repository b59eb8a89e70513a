"""Make OpenCL contexts, queues, programs and kernels, and keep them valid across threads and forks of the process.

A process has one context for each device, made at first use. Each thread has its own queues and kernel objects.
:func:`built` builds a program once for each context, source text and list of compiler options. :class:`Kernel` launches
a kernel of a program.

Before a process forks, the forking thread waits until no other thread is inside an OpenCL runtime, and until all queued
work is done (:func:`_before_fork`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from clsvm.errors import BuildError, DeviceError
from clsvm.opencl.memory import POOLS, filled_caches, never_released, pool_lock
from clsvm.opencl.runtime import cl

SIMULATOR = "Oclgrind"  # platform name of the OpenCL simulator


def context_of(device: cl.Device) -> cl.Context:
    """Return this process's OpenCL context of a device. The first call makes the context.

    Raises DeviceError in a forked child process if the device's OpenCL runtime would hang in this child.
    """
    with context_lock:  # so that threads that call at the same time get the same context
        return _made_context(os.getpid(), device)


@cache
def _made_context(process: int, device: cl.Device) -> cl.Context:
    if process in _forked and device.platform.name.strip() not in _FORK_SAFE:
        raise fork_error(device.platform.name.strip())
    _used.append(process)
    return cl.Context([device])


def fork_error(runtime: str) -> DeviceError:
    """Return the error to raise in a forked child process in which the OpenCL runtime named ``runtime`` would hang."""
    return DeviceError(
        f"{runtime} does not survive a fork of a process that has used it; start workers with the 'spawn' or "
        "'forkserver' method, or with joblib's default (loky)"
    )


def forked() -> bool:
    """Return whether this process was forked from a process that had already made an OpenCL context."""
    return os.getpid() in _forked


# A thread that forks first acquires all _LOCKS. Otherwise a lock of another thread would stay locked in the child.
# _LOCKS are reentrant, because a signal handler may fork while its own thread holds one of the locks.
build_lock, context_lock = threading.RLock(), threading.RLock()
_LOCKS = build_lock, context_lock, pool_lock
streams: weakref.WeakSet[Any] = weakref.WeakSet()  # open streams, each of which is locked during a fork of the process
_forking: list[Any] = []  # streams whose locks the fork in progress has acquired
_FORK_SAFE = ("Intel(R) OpenCL",)  # OpenCL runtimes that work in a forked child whose parent used them; others hang
_used: list[int] = []  # ids of processes that have made a context
_forked: set[int] = set()  # ids of processes forked from a process that has made a context


def _before_fork() -> None:
    for lock in _LOCKS:
        lock.acquire()
    _forking.extend(streams)
    for stream in _forking:
        stream.lock.acquire()
        with contextlib.suppress(DeviceError):  # the thread that uses the stream gets this error at its next call
            stream.finish()


def _after_fork() -> None:
    while _forking:
        _forking.pop().lock.release()
    for lock in reversed(_LOCKS):
        lock.release()


def _in_child() -> None:
    if _used:
        _forked.add(os.getpid())
    # The parent process owns the buffers in the caches, so this forked child must never release them.
    never_released.extend(cache.empty() for cache in filled_caches())
    for pool in POOLS:
        pool.forget()
    streams.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@cache
def device_options(device: cl.Device) -> tuple[str, ...]:
    """Return the compiler options that every program needs on this device, in addition to the program's own."""
    if device.platform.name == SIMULATOR:  # Oclgrind 21.10 lacks the prefetch instruction
        return ("-DNO_FETCH",)
    if "NVIDIA" in device.platform.name:  # NVIDIA's compiler crashes at the prefetch instruction
        return "-w", "-DNO_FETCH", *("-DREDUX",) * (device.compute_capability_major_nv >= 8)
    return ("-w",)  # without -w, PoCL prints the number of compiler warnings to stderr


@cache
def built(process: int, context: cl.Context, device: cl.Device, text: str, options: tuple[str, ...]) -> cl.Program:
    """Return the OpenCL program built for ``device`` from the source ``text`` with compiler ``options``.

    A repeated call returns the same program. A forked child has another process id ``process``, so it builds its own
    program. Raises BuildError if the compiler rejects the text.
    """
    # Some compilers warn about programs that they build successfully, so pyopencl's CompilerWarning is ignored.
    with build_lock, warnings.catch_warnings(action="ignore", category=cl.CompilerWarning):
        try:
            return cl.Program(context, text).build(options=[*options, *device_options(device)])
        except cl.Error as error:
            log = message_of(error)
    # Raise outside the except block, so that BuildError is not chained to pyopencl's error, which cannot be pickled.
    raise BuildError(device.name.strip(), log, text)


_OUT_OF_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
_CURE = "; the device is short of memory: set a smaller memory_limit or cache_size, or end what else uses it"


def message_of(error: cl.Error) -> str:
    """Return the message of an OpenCL error. If the device ran out of memory, append advice on how to use less."""
    return f"{error}{_CURE if error.code in _OUT_OF_MEMORY else ''}"


class RuntimeCall:
    """Hold ``lock`` inside a ``with`` block that calls the OpenCL runtime, and turn pyopencl's errors into DeviceError.

    The message of the DeviceError begins with ``info``, the record of the device. Then ``words`` say what failed.
    """

    def __init__(self, info: Any, lock: Any, words: str) -> None:
        self._info, self._lock, self._words = info, lock, words

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._lock.release()
        if isinstance(error, cl.Error):
            raise DeviceError(f"{self._info}: {self._words} ({message_of(error)})") from None


_local = threading.local()


def thread_dict(name: str) -> dict[Any, Any]:
    """Return this thread's dictionary named ``name``. It is empty at first, also in a forked child process."""
    return _local.__dict__.setdefault(f"{name}{os.getpid()}", {})


def queue_for(spec: Any, device: cl.Device) -> tuple[cl.CommandQueue, cl.Context]:
    """Return a command queue on ``device`` and the queue's context.

    If ``spec`` is a CommandQueue, return ``spec``. Otherwise return this thread's own queue on the device. Raises
    ValueError if ``spec`` is a queue that executes out of order, DeviceError if its context no longer exists.
    """
    context = context_of(device)
    if not isinstance(spec, cl.CommandQueue):
        queues, key = thread_dict("queues"), device.int_ptr
        if key not in queues:
            queues[key] = cl.CommandQueue(context)
        return queues[key], context
    if spec.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError("device must be an in-order CommandQueue, got one that executes out of order")
    try:
        return spec, spec.context
    except cl.Error as error:
        raise DeviceError(f"the context of the given CommandQueue is gone; keep it alive ({error})") from None


class Kernel:
    """Launch one OpenCL kernel of a program on a queue, by ``kernel(global size, local size, *arguments)``.

    A Python int is passed as OpenCL's int, a float as float, and a NumPy scalar in its own type. A tuple, such as a
    named tuple of buffers, is passed as several arguments: its items in their order.

    Each thread keeps one pyopencl object for each OpenCL kernel, because making the object takes longer than most
    launches. The first launch fixes the types of the arguments, which makes later launches faster.
    """

    def __init__(self, queue: cl.CommandQueue, info: Any, lock: Any, program: cl.Program, name: str) -> None:
        self._queue, self._program, self._name = queue, program, name
        self._making, self._starting = (RuntimeCall(info, one, f"{name} did not start") for one in (build_lock, lock))
        made = thread_dict("kernels")
        if (program, name) not in made:
            made[program, name] = self._made()
        self._kernel, self._typed = made[program, name], thread_dict("typed kernels")

    def __call__(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> None:
        values = _flat(args)
        if self._kernel not in self._typed:
            with self._making:
                self._kernel.set_scalar_arg_dtypes([*map(_type, values)])
            self._typed[self._kernel] = True
        with self._starting:
            self._kernel.set_args(*values)
            cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, local)

    def prepared(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> Callable[[], None]:
        """Return a function without arguments that launches the kernel with these sizes and arguments.

        A call of this function takes a quarter of the time of a launch that sets the arguments anew.
        """
        values, kernel = _flat(args), self._made()
        with self._making:
            kernel.set_scalar_arg_dtypes([*map(_type, values)])
            kernel.set_args(*values)

        def launch() -> None:
            with self._starting:
                cl.enqueue_nd_range_kernel(self._queue, kernel, size, local)

        return launch

    def _made(self) -> cl.Kernel:
        with self._making:
            return cl.Kernel(self._program, self._name)


def local(nbytes: int) -> Any:
    """Return a kernel argument that allocates ``nbytes`` bytes of local memory."""
    return cl.LocalMemory(nbytes)


def _flat(values: tuple[Any, ...]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, tuple):
            flat += _flat(value)
        else:
            flat.append(value)
    return flat


def _type(value: Any) -> type[np.generic] | None:
    """Return the NumPy scalar type of an OpenCL kernel's argument, or None for a buffer or for local memory."""
    if isinstance(value, np.generic):
        return type(value)
    return np.int32 if isinstance(value, int) else np.float32 if isinstance(value, float) else None
