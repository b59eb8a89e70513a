"""Make OpenCL contexts, queues, programs and kernels, and keep them valid across threads and forks of the process.

A process has one context for each device, made at first use. Each thread has its own queues and kernel objects.
:func:`built` builds a program once for each context, source text and list of options. :class:`Kernel` launches a
kernel of a program.

If the process forks, the parent first waits until no other thread is inside an OpenCL runtime (:func:`_before_fork`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from clsvm.errors import BuildError, DeviceError
from clsvm.opencl.memory import POOLS, filled_caches, never_released, pool_lock
from clsvm.opencl.runtime import cl

SIMULATOR = "Oclgrind"  # platform name of the OpenCL simulator


def context_of(device: cl.Device) -> cl.Context:
    """Return this process's OpenCL context of a device, made at the first call.

    Raises DeviceError in a forked child in which the device's runtime would hang.
    """
    with context_lock:  # so that threads that call at once get the same context
        return _made_context(os.getpid(), device)


@cache
def _made_context(process: int, device: cl.Device) -> cl.Context:
    if process in _forked and device.platform.name.strip() not in _FORK_SAFE:
        raise fork_error(device.platform.name.strip())
    _used.append(process)
    return cl.Context([device])


def fork_error(runtime: str) -> DeviceError:
    """Return the error to raise in a forked child, where the OpenCL runtime named ``runtime`` would hang."""
    return DeviceError(
        f"{runtime} does not survive a fork of a process that has used it; start workers with the 'spawn' or "
        "'forkserver' method, or with joblib's default (loky)"
    )


def forked() -> bool:
    """Return whether this process is a fork of a process that had made a context."""
    return os.getpid() in _forked


# A fork waits for _LOCKS, because a lock that another thread holds at the fork would stay locked in the child.
# The locks are reentrant, because a signal handler may fork in the thread that holds one of them.
build_lock, context_lock = threading.RLock(), threading.RLock()
_LOCKS = build_lock, context_lock, pool_lock
streams: weakref.WeakSet[Any] = weakref.WeakSet()  # open streams of this process; a fork first acquires their locks
_forking: list[Any] = []  # streams whose locks the fork in progress has acquired
_FORK_SAFE = ("Intel(R) OpenCL",)  # runtimes that work in a child forked after use; others hang there
_used: list[int] = []  # ids of processes that have made a context
_forked: set[int] = set()  # ids of processes forked from a process that has made a context


def _before_fork() -> None:
    for lock in _LOCKS:
        lock.acquire()
    _forking.extend(streams)
    for stream in _forking:
        stream.lock.acquire()
        with contextlib.suppress(DeviceError):  # the thread that uses the stream gets the error at its next call
            stream.finish()


def _after_fork() -> None:
    while _forking:
        _forking.pop().lock.release()
    for lock in reversed(_LOCKS):
        lock.release()


def _in_child() -> None:
    if _used:
        _forked.add(os.getpid())
    never_released.extend(cache.empty() for cache in filled_caches())  # the parent process owns these buffers
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
    return ("-w",)  # PoCL otherwise prints the number of its warnings to stderr


@cache
def built(process: int, context: cl.Context, device: cl.Device, text: str, options: tuple[str, ...]) -> cl.Program:
    """Return the program built from an OpenCL source text with these compiler options.

    Each process builds it once. Raises BuildError if the compiler rejects the text.
    """
    with build_lock, warnings.catch_warnings(action="ignore", category=cl.CompilerWarning):
        try:  # some compilers warn although they succeed
            return cl.Program(context, text).build(options=[*options, *device_options(device)])
        except cl.Error as error:
            log = message_of(error)
    # Raised outside the except block, because a BuildError chained to pyopencl's error could not be pickled.
    raise BuildError(device.name.strip(), log, text)


_OUT_OF_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
_CURE = "; the device is short of memory: set a smaller memory_limit or cache_size, or end what else uses it"


def message_of(error: cl.Error) -> str:
    """Return the runtime's message for an error, and advice on memory if the device ran out of it."""
    return f"{error}{_CURE if error.code in _OUT_OF_MEMORY else ''}"


class RuntimeCall:
    """Hold a lock inside a ``with`` block that calls the OpenCL runtime, and turn errors of pyopencl into DeviceError.

    The message of the DeviceError names the device ``info``, and then says in ``words`` what failed.
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
    """Return this thread's dictionary named ``name``. It begins empty, also in a forked child."""
    return _local.__dict__.setdefault(f"{name}{os.getpid()}", {})


def queue_for(spec: Any, device: cl.Device) -> tuple[cl.CommandQueue, cl.Context]:
    """Return a queue on ``device`` and the queue's context.

    If ``spec`` is a CommandQueue, it is the queue. Otherwise the queue is this thread's own queue on the device. Raises
    ValueError for a queue that executes out of order, DeviceError if the context of the given queue is gone.
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
    """Launch one kernel of a program on a queue, by ``kernel(global size, local size, *arguments)``.

    A Python int is passed as OpenCL's int, a float as float, and a NumPy scalar in its own type. A tuple of arguments,
    such as a named tuple of buffers, is passed as its items in their order.

    Each thread keeps one pyopencl object for each kernel, because making one takes longer than most launches. The first
    call fixes the argument types, so that setting the arguments takes later calls a twentieth of the time.
    """

    def __init__(self, queue: cl.CommandQueue, info: Any, lock: Any, program: cl.Program, name: str) -> None:
        self._queue, self._program, self._name = queue, program, name
        self._making, self._starting = (RuntimeCall(info, one, f"{name} did not start") for one in (build_lock, lock))
        made = thread_dict("kernels")
        if (program, name) not in made:
            made[program, name] = self._made()
        self._kernel, self._typed = made[program, name], thread_dict("typed kernels")

    def __call__(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> None:
        values = [*_flat(args)]
        if self._kernel not in self._typed:
            with self._making:
                self._kernel.set_scalar_arg_dtypes([*map(_type, values)])
            self._typed[self._kernel] = True
        with self._starting:
            self._kernel.set_args(*values)
            cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, local)

    def prepared(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> Callable[[], None]:
        """Return a function without arguments that launches the kernel with these sizes and arguments.

        A call of the function takes a quarter of the time of an ordinary launch.
        """
        values, kernel = [*_flat(args)], self._made()
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


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _type(value: Any) -> type[np.generic] | None:
    """Return the scalar type of a kernel argument, or None for a buffer."""
    if isinstance(value, np.generic):
        return type(value)
    return np.int32 if isinstance(value, int) else np.float32 if isinstance(value, float) else None
