"""Devices, queues, programs and memory: the only module that imports pyopencl. Buffers leave it as opaque handles.

Contexts are made lazily and belong to a process, queues and kernel objects to a thread; programs are built once per
context and text. Pooled slabs and what is :class:`Kept` outlive a call. Nothing here survives a pickle but names.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm import icd, sources, tuned
from clsvm.budget import MEMORY_SHARE, parse_bytes
from clsvm.errors import BuildError, DeviceError, install, warn
from clsvm.profiles import PROFILES, Profile

_settings = {name: os.environ[name] for name in icd.SETTINGS if os.environ.get(name)}  # the user's
icd.prepare()
import pyopencl as cl  # noqa: E402  (the loader reads its settings once, so they must stand before this)

Buffer = Any  # opaque to every other module


@dataclass(frozen=True)
class DeviceInfo:
    """One line of :func:`devices`; memory and largest_buffer in bytes, reason says why it is not usable."""

    index: int
    platform: str
    name: str
    driver: str
    memory: int
    largest_buffer: int
    fp64: bool
    usable: bool
    reason: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({self.platform}, driver {self.driver})"


@cache
def _all(process: int) -> list[cl.Device]:
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        return []


def devices() -> list[DeviceInfo]:
    """Every OpenCL device of this machine; usable means that a trial build and run gave the right answer."""
    return [_info(os.getpid(), index) for index in range(len(_all(os.getpid())))]


def _kind(device: cl.Device) -> str:
    return "gpu" if device.type & cl.device_type.GPU else "cpu" if device.type & cl.device_type.CPU else "other"


@cache
def _info(process: int, index: int) -> DeviceInfo:
    device = _all(process)[index]
    reason = _trial(device)
    return DeviceInfo(
        index=index,
        platform=device.platform.name.strip(),
        name=" ".join(device.name.split()),
        driver=device.driver_version.strip(),
        memory=device.global_mem_size,
        largest_buffer=device.max_mem_alloc_size,
        fp64=_fp64(device),
        usable=not reason,
        reason=reason,
        kind=_kind(device),
    )


def _fp64(device: cl.Device) -> bool:
    return "cl_khr_fp64" in device.extensions


def _trial(device: cl.Device) -> str:
    """Build and run a small program; the reason it failed, or the empty string."""
    try:
        context = _context(os.getpid(), device)
        with _build_lock:
            got = _cached(lambda: _tried(context))
    except Exception as error:  # whatever a broken driver throws: it is a reason, not a crash
        return f"a trial program failed: {str(error).strip().splitlines()[0][:120] if str(error) else type(error)}"
    expected = np.sqrt(np.arange(64, dtype=np.float32)) + 1
    return "" if np.allclose(got, expected, atol=1e-5) else "a trial program gave a wrong answer"


def _tried(context: cl.Context) -> NDArray[np.float32]:
    text = "kernel void trial(global float *x) { int i = get_global_id(0); x[i] = sqrt((float)i) + 1; }"
    queue = cl.CommandQueue(context)
    program = _quietly_built(context, text, ())
    got = np.zeros(64, np.float32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, got.nbytes)
    program.trial(queue, got.shape, None, buffer)
    cl.enqueue_copy(queue, got, buffer)
    queue.finish()
    return got


def _context(process: int, device: cl.Device) -> cl.Context:
    with _context_lock:  # one context a process and device, also where threads meet it first together
        return _made_context(process, device)


@cache
def _made_context(process: int, device: cl.Device) -> cl.Context:
    if process in _forked and device.platform.name.strip() not in _FORK_SAFE:
        raise DeviceError(
            f"{device.platform.name.strip()} does not survive a fork of a process that has used it; start workers with "
            "the 'spawn' or 'forkserver' method, or with joblib's default (loky)"
        )
    _used.append(process)
    return cl.Context([device])


# A fork waits for these and for every stream's own, so for what other threads are at: a lock that is held meanwhile,
# here or in a runtime, stays locked in the child. It may come from the thread that holds one, by a signal's handler.
_build_lock, _context_lock, _pool_lock = _LOCKS = tuple(threading.RLock() for _ in range(3))
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()  # those of this process that are open
_still: list[Stream] = []  # those that a fork waits for
_FORK_SAFE = ("Intel(R) OpenCL",)  # runtimes seen to work in a child forked after use; others hang there
_used: list[int] = []  # processes that have made a context
_forked: set[int] = set()  # processes forked from one of those


def _before_fork() -> None:
    for lock in _LOCKS:
        lock.acquire()
    _still.extend(_streams)
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
    _never_released.extend(kept.empty() for kept in list(_keeping))  # the parent's: not for this process to release
    _streams.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def describe(info: Sequence[DeviceInfo] | None = None) -> str:
    """One line a device, for error messages."""
    lines = [f"  {d.index}: {d}{'' if d.usable else ' - not usable: ' + d.reason}" for d in info or devices()]
    return "\n".join(lines) or "  (none)"


def no_platform() -> DeviceError:
    """The error where no platform is found: the user's settings that may hide them all, and what brings one."""
    named = " and ".join(f"{name}={value!r}" for name, value in _settings.items())
    where = f" where {named} says; without it those of the system and of pip count" if named else ""
    driver = "a GPU needs its vendor's driver ('clsvm devices' lists what is visible)"
    return DeviceError(f"no OpenCL platform was found{where}; {install('cpu')} brings a CPU runtime, {driver}")


def find(spec: Any = None) -> DeviceInfo:
    """The device that ``spec`` means.

    spec: None (CLSVM_DEVICE, else a usable GPU, else a usable CPU; of several the one with most memory), "gpu", "cpu",
    part of a platform's name or, where no platform has it, of a device's, "name:index" (the index-th of those that
    match), an index as a number or text, or a pyopencl Device or CommandQueue. Raises DeviceError (none, none usable,
    several match) and TypeError.
    """
    here = _all(os.getpid())
    if isinstance(spec, cl.CommandQueue):
        spec = spec.device
    if isinstance(spec, cl.Device):
        return _info(os.getpid(), here.index(spec))
    if isinstance(spec, int | np.integer) and not isinstance(spec, bool):
        spec = str(spec)
    if spec is not None and not isinstance(spec, str):
        raise TypeError(f"device must be None, an index, a string, a pyopencl Device or CommandQueue, got {spec!r}")
    if not here:
        raise no_platform()
    given = (spec if spec is not None else os.environ.get("CLSVM_DEVICE") or "").strip()
    asked = given.lower()
    hits = _matches(asked, here)
    if not hits:
        raise DeviceError(f"no OpenCL device matches {given!r}; there are:\n{describe()}")
    if asked in ("", "gpu", "cpu"):  # several are no ambiguity: the best usable one, tried in this order
        order = {"gpu": 0, "cpu": 1, "other": 2}
        hits.sort(key=lambda i: (order[_kind(here[i])], -here[i].global_mem_size, i))
        usable = next((info for i in hits if (info := _info(os.getpid(), i)).usable), None)
    else:
        infos = [info for i in hits if (info := _info(os.getpid(), i)).usable]
        if len(infos) > 1:
            words = f"{len(infos)} OpenCL devices match {given!r}; say more, or 'name:index'"
            raise DeviceError(f"{words}:\n{describe(infos)}")
        usable = infos[0] if infos else None
    if usable is None:
        raise DeviceError(f"no usable OpenCL device; {install('cpu')} brings a CPU runtime:\n{describe()}")
    return usable


def _matches(asked: str, here: list[cl.Device]) -> list[int]:
    """Indices of the devices that the lower-case text ``asked`` can mean; everything for the empty text."""
    if asked.isascii() and asked.isdecimal():
        return [int(asked)] if int(asked) < len(here) else []
    if asked in ("gpu", "cpu"):
        return [i for i, d in enumerate(here) if _kind(d) == asked]
    names = [(d.platform.name.strip().lower(), " ".join(d.name.split()).lower()) for d in here]
    number = re.fullmatch(r"(.*):(\d+)", asked)
    hits = _named(asked, names)
    if not hits and number:
        hits = _named(number[1], names)[int(number[2]) :][:1]
    return hits


def _named(text: str, names: list[tuple[str, str]]) -> list[int]:
    """Indices of the (platform, device) that ``text`` names: in full, else as part of the platform, else of the device
    (a processor's maker stands in the device's name on every platform)."""
    found = (
        [i for i, pair in enumerate(names) if text in pair],
        [i for i, (platform, _) in enumerate(names) if text in platform],
        [i for i, (_, device) in enumerate(names) if text in device],
    )
    return next(filter(None, found), [])


class Stream:
    """A device as one thread works with it: queue, programs, memory within a budget.

    Use as a context manager: leaving it gives every buffer back. ``limit`` in bytes. lock: held in every call of the
    runtime.
    """

    def __init__(self, spec: Any = None, memory_limit: int | str | None = None, profile: Profile | None = None) -> None:
        self.info = find(spec)
        self._device = _all(os.getpid())[self.info.index]
        self._context = _context(os.getpid(), self._device)
        self._queue = spec if isinstance(spec, cl.CommandQueue) else _queue(self._device)
        if isinstance(spec, cl.CommandQueue):
            if spec.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
                raise ValueError("device must be an in-order CommandQueue, got one that executes out of order")
            try:
                self._context = spec.context
            except cl.Error as error:
                raise DeviceError(f"the context of the given CommandQueue is gone; keep it alive ({error})") from None
        self.profile = profile or default_profile(self.info)
        self.largest = min(self._device.max_mem_alloc_size, int(os.environ.get("CLSVM_LARGEST_BUFFER", 2**62)))
        self.limit = parse_bytes(memory_limit) or int(MEMORY_SHARE * _free_memory(self._device))
        self.setting = self._context, self.profile, memory_limit  # what is kept for later calls holds for the same only
        self.held = self.peak = 0
        self.reads: list[Kept] = []  # what is kept beyond this stream and counted in ``held``
        self.local_memory = self._device.local_mem_size
        self.compute_units = int(self._device.max_compute_units)
        self._buffers: dict[int, tuple[Any, int]] = {}
        self._slabs: list[tuple[tuple[int, int, int], Any]] = []
        # Oclgrind 21.10 takes memory that it did not copy itself, and the part of a new buffer beyond the size of a
        # released one whose place it takes, for uninitialised: under it rows are copied and no buffer is released.
        self._simulated = self.info.platform == "Oclgrind"
        self.unified = self.info.kind == "cpu" and not self._simulated
        self._zero: Kernel | None = None
        self.lock = threading.RLock()
        with _context_lock:
            _streams.add(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.finish()
        finally:
            self.free(*(buffer for buffer, _size in self._buffers.values()))
            self.give_slabs_back()
            with _context_lock:
                _streams.discard(self)

    def give_slabs_back(self) -> None:
        """Return this stream's slabs to the pool."""
        with _pool_lock:
            for key, slab in self._slabs:
                _pool.setdefault(key, []).append(slab)
        self.held -= sum(key[2] for key, _slab in self._slabs)
        self._slabs.clear()

    def buffer(self, nbytes: int) -> Buffer:
        """An uninitialised buffer. Raises ValueError where the budget ends, DeviceError where the memory does."""
        nbytes = max(1, -(-int(nbytes) // 64)) * 64
        if self.held + nbytes > self.limit:
            raise ValueError(
                f"memory_limit of {self.limit} bytes is too small: {self.held} are in use and {nbytes} more are needed"
            )
        self._make_room(nbytes)
        if nbytes > self.largest:
            raise DeviceError(f"{self.info} allows buffers of {self.largest} bytes, {nbytes} are needed")
        try:
            with self.lock:
                buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
        except cl.Error as error:
            raise DeviceError(f"{self.info}: no memory for {nbytes} bytes ({error})") from None
        self._keep(buffer, nbytes)
        return buffer

    def _make_room(self, nbytes: int) -> None:
        """Have what others keep between calls given back where it and ``nbytes`` more would exceed the limit."""
        others = [kept for kept in _kept() if kept not in self.reads] if _keeping else []
        if others and self.held + nbytes + sum(kept.nbytes for kept in others) > self.limit:
            for kept in others:
                kept.empty()

    def _keep(self, buffer: Buffer, nbytes: int) -> None:
        self._buffers[buffer.int_ptr] = buffer, nbytes
        self.held += nbytes
        self.peak = max(self.peak, self.held)

    def slab(self, nbytes: int) -> Buffer:
        """A large buffer from the process's pool, for this stream's life; see :func:`release_memory`.

        On a device that shares the host's memory it asks for huge pages: first touch is then some five times faster.
        """
        if self.held + nbytes > self.limit:
            raise ValueError(f"memory_limit of {self.limit} bytes is too small for {nbytes} more")
        self._make_room(nbytes)
        key = os.getpid(), self._context.int_ptr, nbytes
        with _pool_lock:
            pool = _pool.setdefault(key, [])
            buffer = pool.pop(0) if pool else None  # in the order they came: the first is the most touched
        if buffer is None:
            if self.held + nbytes + _pooled() > self.limit:
                release_memory()  # slabs of other sizes
            try:
                with self.lock:
                    buffer = _huge(self._context, nbytes) if self.unified else None
                    buffer = buffer or cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
            except cl.Error as error:
                raise DeviceError(f"{self.info}: no memory for {nbytes} bytes ({error})") from None
        self._slabs.append((key, buffer))
        self.held += nbytes
        self.peak = max(self.peak, self.held)
        return buffer

    def free(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            kept, nbytes = self._buffers.pop(buffer.int_ptr)
            self.held -= nbytes
            if self._simulated:
                _never_released.append(kept)
                continue
            with self.lock:
                kept.release()

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A buffer with a copy of ``array``."""
        array = np.ascontiguousarray(array)
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            self._copy(buffer, array)
        return buffer

    @contextlib.contextmanager
    def view(self, array: NDArray[Any]) -> Iterator[tuple[Buffer, int]]:
        """(buffer, items): ``array`` (contiguous) stands in the buffer from that item on, for reading by kernels.

        Without a copy where the device shares the host's memory; runtimes copy what is not aligned, so the buffer then
        begins at the aligned address before the array, in the same page. That has to be whole items before it.
        """
        if not (array.nbytes and self.unified and array.flags.aligned):
            buffer = self.upload(array)
            yield buffer, 0
            self.finish()
            self.free(buffer)
            return
        address = array.ctypes.data
        before = address % 128
        raw: Any = (ctypes.c_char * (array.nbytes + before)).from_address(address - before)
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        with self.lock:
            buffer = cl.Buffer(self._context, flags, hostbuf=np.frombuffer(raw, np.uint8))
        try:
            yield buffer, before // array.itemsize
        finally:
            self.finish()
            with self.lock:
                buffer.release()

    @contextlib.contextmanager
    def tentative(self) -> Iterator[None]:
        """Buffers that are made inside are freed where it ends in an error."""
        before = set(self._buffers)
        try:
            yield
        except BaseException:
            self.finish()
            self.free(*(buffer for key, (buffer, _) in list(self._buffers.items()) if key not in before))
            raise

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.buffer(nbytes)
        self.clear(buffer, nbytes)
        return buffer

    def part(self, buffer: Buffer, first: int, nbytes: int) -> Buffer:
        """``nbytes`` of a buffer from byte ``first`` on, which is aligned as the device wants it (at most 512)."""
        with self.lock:
            return buffer.get_sub_region(first, max(1, nbytes))

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Zero the first ``nbytes`` of a buffer, rounded up to 64 as buffers are."""
        if self._zero is None:
            pair = ("-DWIDE_PAIR",) if self.profile.wide == "pair" else ()
            self._zero = self.kernel(sources.cl("zero"), pair, "zero")
        if nbytes:
            self._zero((-(-int(nbytes) // 64),), None, buffer)

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        self._copy(buffer, np.ascontiguousarray(array))

    def read(self, buffer: Buffer, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A copy of the buffer's start (from ``offset`` bytes) on the host; waits for all work enqueued before."""
        array: NDArray[Any] = np.empty(shape, dtype)
        if array.nbytes:
            self._copy(array, buffer, src_offset=offset)
        return array

    def wide(self, array: NDArray[np.float64]) -> Buffer:
        """A buffer with ``array`` as wide numbers (8 bytes each: doubles, or pairs of floats)."""
        return self.upload(self._wide(np.asarray(array, np.float64)))

    def write_wide(self, buffer: Buffer, array: NDArray[np.float64]) -> None:
        self.write(buffer, self._wide(array))

    def held_wide(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """``array`` as it comes back once it was on the device as wide numbers."""
        return array if self.profile.wide == "double" else self._wide(array).astype(np.float64).sum(axis=-1)

    def _wide(self, array: NDArray[np.float64]) -> NDArray[Any]:
        if self.profile.wide == "double":
            return array
        high = array.astype(np.float32)
        with np.errstate(invalid="ignore"):
            low = np.where(np.isfinite(high), array - high.astype(np.float64), 0).astype(np.float32)
        return np.stack([high, low], axis=-1)

    def read_wide(self, buffer: Buffer, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Wide numbers as float64 on the host."""
        if self.profile.wide == "double":
            return self.read(buffer, np.float64, shape)
        shape = (shape,) if isinstance(shape, int) else shape
        return self.read(buffer, np.float32, (*shape, 2)).astype(np.float64).sum(axis=-1)

    def flush(self) -> None:
        with self.lock:
            self._queue.flush()

    def finish(self) -> None:
        try:
            with self.lock:
                self._queue.finish()
        except cl.Error as error:
            raise DeviceError(f"{self.info}: the work in its queue failed ({error})") from None

    def _copy(self, to: Any, source: Any, **offset: Any) -> None:
        try:
            with self.lock:
                cl.enqueue_copy(self._queue, to, source, is_blocking=True, **offset)
        except cl.Error as error:
            raise DeviceError(f"{self.info}: a copy failed ({error})") from None

    def kernel(self, text: str, options: Sequence[str], name: str) -> Kernel:
        """A kernel object of the caller's own, from a program built once per context, text and options."""
        # PoCL counts its warnings aloud on stderr; Oclgrind 21.10 does not know the fetch instruction
        quirks = ("-DNO_FETCH",) if self._simulated else ("-w",)
        return Kernel(self, _program(os.getpid(), self._context, self._device, text, (*options, *quirks)), name)

    def variant(self, variant: Any, name: str | None = None) -> Kernel:
        """The kernel of a clsvm.variants.Variant, or another one of its program."""
        return self.kernel(variant.text, variant.options, name or variant.entry)


_never_released: list[Any] = []
_pool: dict[tuple[int, int, int], list[Any]] = {}


def _pooled() -> int:
    """Bytes of this process's pooled slabs."""
    with _pool_lock:
        return sum(key[2] * len(slabs) for key, slabs in _pool.items() if key[0] == os.getpid())


class Kept:
    """Room for one value that its owner keeps on a device between calls: buffers that are written no more, so that any
    thread may read them.

    It goes with its owner, by :func:`release_memory`, and as soon as a fit or call of this process would exceed its
    memory_limit with it; who reads it then has it until done. Copies, pickles and forked children begin empty.
    """

    _state: tuple[Any, Any, int] = None, None, 0  # Stream.setting, value, bytes: replaced as one, as threads read it

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()

    @property
    def nbytes(self) -> int:
        return self._state[2]

    def get(self, stream: Stream) -> Any:
        """What was kept under the stream's setting, counted as the stream's from here on; None where nothing was, or
        where it is more than half of what the stream may hold by now."""
        setting, value, nbytes = self._state
        if setting != stream.setting or nbytes > stream.limit // 2:
            return None
        stream.held += nbytes
        stream.peak = max(stream.peak, stream.held)
        stream.reads.append(self)
        return value

    def put(self, stream: Stream, value: Any, buffers: Sequence[Buffer]) -> None:
        """Keep ``value``, which holds these buffers of the stream, in place of what was here: they outlive the stream
        and go with the last reference to them."""
        nbytes = sum(stream._buffers.pop(buffer.int_ptr)[1] for buffer in buffers)
        if stream._simulated:
            _never_released.extend(buffers)
        self._state = stream.setting, value, nbytes
        stream.reads.append(self)
        with _pool_lock:
            _keeping.add(self)

    def empty(self) -> Any:
        """Forget the value, and return it."""
        (_, value, _), self._state = self._state, (None, None, 0)
        with _pool_lock:
            _keeping.discard(self)
        return value


_keeping: weakref.WeakSet[Kept] = weakref.WeakSet()


def _kept() -> list[Kept]:
    with _pool_lock:
        return list(_keeping)


def release_memory() -> int:
    """Give back to the system what is held between calls: slabs of the row store, and what is :class:`Kept`; the bytes
    that were freed."""
    freed = sum(kept.nbytes for kept in _kept())
    for kept in _kept():
        kept.empty()
    with _pool_lock:
        for key in [key for key in _pool if key[0] == os.getpid()]:  # a forked child leaves its parent's alone
            for slab in _pool.pop(key):
                slab.release()
                freed += key[2]
    return freed


def _huge(context: cl.Context, nbytes: int) -> Any:
    """A buffer over anonymous memory with huge pages, or None where the system has none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets none
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    host = np.frombuffer(memory, np.uint8)
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)


class Kernel:
    """A kernel and the stream it runs on; Python ints go as int, floats as float, NumPy scalars as they are.

    The object behind it is the thread's, since making one takes longer than most of them run; each call sets all of its
    arguments.
    """

    def __init__(self, stream: Stream, program: cl.Program, name: str) -> None:
        self._queue, self._info, self._lock = stream._queue, stream.info, stream.lock
        made = _of_thread("kernels")
        if (program, name) not in made:
            with _build_lock:
                made[program, name] = _cached(lambda: cl.Kernel(program, name))
        self._kernel = made[program, name]

    def __call__(self, size: tuple[int, ...], local: tuple[int, ...] | None, *args: Any) -> None:
        ready = [_argument(a) for a in args]
        try:
            with self._lock:
                self._kernel.set_args(*ready)
                cl.enqueue_nd_range_kernel(self._queue, self._kernel, size, local)
        except cl.Error as error:
            raise DeviceError(f"{self._info}: {self._kernel.function_name} did not start ({error})") from None


def local(nbytes: int) -> Any:
    """A kernel argument: so many bytes of local memory."""
    return cl.LocalMemory(nbytes)


def _argument(value: Any) -> Any:
    if type(value) is int:  # (numpy.float64 is a float too, and stays double)
        return np.int32(value)
    return np.float32(value) if type(value) is float else value


builds = 0  # programs built by this process: a test counts that new parameters build nothing


@cache
def _program(process: int, context: cl.Context, device: cl.Device, text: str, options: tuple[str, ...]) -> cl.Program:
    global builds
    with _build_lock:
        try:
            program = _cached(lambda: _quietly_built(context, text, options))
        except cl.Error as error:
            raise BuildError(device.name.strip(), str(error), text) from None
        builds += 1
        return program


def _quietly_built(context: cl.Context, text: str, options: tuple[str, ...]) -> cl.Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compilers that remark on success
        return cl.Program(context, text).build(options=list(options))


def _cached(make: Callable[[], Any]) -> Any:
    """What ``make`` has pyopencl make with its cache on the disk; without that from here on, where it fails."""
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


_local = threading.local()


def _of_thread(name: str) -> dict[Any, Any]:
    """This thread's table of that name; a forked child begins with an empty one."""
    table: dict[Any, Any] = _local.__dict__.setdefault(f"{name}{os.getpid()}", {})
    return table


def _queue(device: cl.Device) -> cl.CommandQueue:
    """This thread's queue on ``device``."""
    queues = _of_thread("queues")
    key = device.int_ptr
    if key not in queues:
        queues[key] = cl.CommandQueue(_context(os.getpid(), device))
    return queues[key]


def _free_memory(device: cl.Device) -> int:
    """Bytes that are free, as far as the device says: the host's available memory bounds devices that share it."""
    free = int(device.global_mem_size)
    if device.type & cl.device_type.CPU or device.host_unified_memory:
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
            available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
            free = min(free, available + _pooled())
    return free


def default_profile(info: DeviceInfo) -> Profile:
    """The profile of a device: CLSVM_PROFILE's, or its kind's, with what ``clsvm tune`` has found for it."""
    return tuned.apply(untuned_profile(info), tuning_key(info))


def tuning_key(info: DeviceInfo) -> str:
    """What the tuner's findings for a device stand under."""
    return tuned.key(info.platform, info.name, info.driver, untuned_profile(info).name)


def untuned_profile(info: DeviceInfo) -> Profile:
    """CLSVM_PROFILE's profile, or that of the device's kind, with the numbers that the device itself states."""
    device = _all(os.getpid())[info.index]
    cpu = "cpu" if device.native_vector_width_float >= 16 else "cpu8"
    name = os.environ.get("CLSVM_PROFILE") or (cpu if info.kind == "cpu" and info.fp64 else "gpu")
    name, _, option = name.partition("-")
    if name not in PROFILES:
        raise ValueError(f"CLSVM_PROFILE must be one of {', '.join(PROFILES)} (or gpu-pair), got {name!r}")
    profile = PROFILES[name]
    if profile.shape == "group":
        size = min(profile.group, device.max_work_group_size)
        profile = replace(profile, group=1 << (int(size).bit_length() - 1))
    return replace(profile, wide="double" if info.fp64 and option != "pair" else "pair")
