"""What belongs to a process or a thread: contexts, queues, programs, kernels and their launches; and what a fork has
to wait for.

Contexts are made lazily and belong to a process, queues and kernel objects to a thread; programs are built once per
context and text.
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

from clsvm.errors import BuildError, DeviceError, warn
from clsvm.opencl.memory import POOLS, all_kept, never_released, pool_lock
from clsvm.opencl.runtime import cl

SIMULATOR = "Oclgrind"  # the name of its platform


def context_of(device: cl.Device) -> cl.Context:
    """Return the context of a device in this process. Raises DeviceError in a forked child whose runtime would hang."""
    with context_lock:  # one context a process and device, also where threads meet it first together
        return _made_context(os.getpid(), device)


@cache
def _made_context(process: int, device: cl.Device) -> cl.Context:
    if process in _forked and device.platform.name.strip() not in _FORK_SAFE:
        raise lost(device.platform.name.strip())
    _used.append(process)
    return cl.Context([device])


def lost(runtime: str) -> DeviceError:
    """Return the error of a runtime in a forked child."""
    return DeviceError(
        f"{runtime} does not survive a fork of a process that has used it; start workers with the 'spawn' or "
        "'forkserver' method, or with joblib's default (loky)"
    )


def forked() -> bool:
    """Return whether this process began as a fork of one that had made a context."""
    return os.getpid() in _forked


# A fork waits for these and for every stream's own, so for what other threads are at: a lock that is held meanwhile,
# here or in a runtime, stays locked in the child. It may come from the thread that holds one, by a signal's handler.
build_lock, context_lock = threading.RLock(), threading.RLock()
_LOCKS = build_lock, context_lock, pool_lock
streams: weakref.WeakSet[Any] = weakref.WeakSet()  # those of this process that are open
_still: list[Any] = []  # those that a fork waits for
_FORK_SAFE = ("Intel(R) OpenCL",)  # runtimes seen to work in a child forked after use; others hang there
_used: list[int] = []  # processes that have made a context
_forked: set[int] = set()  # processes forked from one of those


def _before_fork() -> None:
    for lock in _LOCKS:
        lock.acquire()
    _still.extend(streams)
    for stream in _still:
        stream.lock.acquire()
        with contextlib.suppress(DeviceError):  # its own thread will meet it
            stream.finish()


def _after_fork() -> None:
    while _still:
        _still.pop().lock.release()
    for lock in reversed(_LOCKS):
        lock.release()


def _in_child() -> None:
    if _used:
        _forked.add(os.getpid())
    never_released.extend(kept.empty() for kept in all_kept())  # the parent's: not for this process to release
    for pool in POOLS:
        pool.forget()
    streams.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)

builds = 0  # programs built by this process: a test counts that new parameters build nothing


@cache
def quirks(device: cl.Device) -> tuple[str, ...]:
    """Return the options that a device's compiler needs beside a program's own."""
    if device.platform.name == SIMULATOR:  # (version 21.10 does not know the fetch instruction)
        return ("-DNO_FETCH",)
    if "NVIDIA" in device.platform.name:  # (its compiler ends without a word at that instruction)
        return "-w", "-DNO_FETCH", *("-DREDUX",) * (device.compute_capability_major_nv >= 8)
    return ("-w",)  # PoCL counts its warnings aloud on stderr


@cache
def built(process: int, context: cl.Context, device: cl.Device, text: str, options: tuple[str, ...]) -> cl.Program:
    """Return the program of a text and its options, built once with the device's quirks. Raises BuildError."""
    global builds
    log = ""

    def make() -> cl.Program:  # (no more than this is quiet: ``cached`` has something to say)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # compilers that remark on success
            return cl.Program(context, text).build(options=[*options, *quirks(device)])

    with build_lock:
        try:
            program = cached(make)
        except cl.Error as error:
            log = told(error)
    if log:  # (raised here it has no context, which would not pickle)
        raise BuildError(device.name.strip(), log, text)
    builds += 1
    return program


def cached(make: Callable[[], Any]) -> Any:
    """Return what ``make`` has pyopencl make with its cache on the disk; where that fails, without it from then on."""
    try:
        return make()
    except cl.Error:
        raise
    except Exception as error:  # a disk that is full by now, a damaged file
        if cl._PYOPENCL_NO_CACHE:
            raise
        cl._PYOPENCL_NO_CACHE = True
        words = f"pyopencl's cache failed ({error}): compiled programs are no longer kept from one process to the next"
        warn(words)
        return make()


_OUT_OF_MEMORY = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
)
_CURE = "; the device is short of memory: set a smaller memory_limit or cache_size, or end what else uses it"


def told(error: cl.Error) -> str:
    """Return the runtime's own words for an error, and what to change where it ran out of memory."""
    return f"{error}{_CURE if error.code in _OUT_OF_MEMORY else ''}"


class Calling:
    """Calls of the runtime on the device ``info``, inside, with a lock held.

    Raises DeviceError, which says in ``words`` what failed, where one of them does.
    """

    def __init__(self, info: Any, lock: Any, words: str) -> None:
        self._info, self._lock, self._words = info, lock, words

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._lock.release()
        if isinstance(error, cl.Error):
            raise DeviceError(f"{self._info}: {self._words} ({told(error)})") from None


_local = threading.local()


def of_thread(name: str) -> dict[Any, Any]:
    """Return this thread's table of that name; a forked child begins with an empty one."""
    table: dict[Any, Any] = _local.__dict__.setdefault(f"{name}{os.getpid()}", {})
    return table


def queue_for(spec: Any, device: cl.Device) -> tuple[cl.CommandQueue, cl.Context]:
    """Return a CommandQueue of the caller's and its context, or this thread's on ``device``. Raises ValueError for one
    that executes out of order, DeviceError where its context is gone."""
    own = context_of(device)
    if not isinstance(spec, cl.CommandQueue):
        queues, key = of_thread("queues"), device.int_ptr
        if key not in queues:
            queues[key] = cl.CommandQueue(own)
        return queues[key], own
    if spec.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
        raise ValueError("device must be an in-order CommandQueue, got one that executes out of order")
    try:
        return spec, spec.context
    except cl.Error as error:
        raise DeviceError(f"the context of the given CommandQueue is gone; keep it alive ({error})") from None


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
