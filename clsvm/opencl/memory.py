"""Manage device memory: its limits, freed buffers for reuse, and values that remain on a device between calls.

:func:`parse_bytes` reads a memory limit as a user writes it. :class:`Pool` keeps freed buffers, which serve later
requests for buffers of the same size. :class:`DeviceCache` keeps a value of an estimator on a device between calls.
:func:`release_memory` empties all pools and caches.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import system
from clsvm.opencl.runtime import cl

HUGE = 4 << 20  # buffers of at least this many bytes get huge pages
# The pool keeps a freed buffer of MIN_POOLED to MAX_POOLED bytes, and at most POOL_BYTES bytes of buffers in all.
MIN_POOLED, MAX_POOLED, POOL_BYTES = 64 << 10, 128 << 20, 256 << 20
MEMORY_SHARE = 0.5  # the default of memory_limit is this share of the device's free memory
_UNITS = {
    letter + end: float(base) ** power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
} | {"": 1.0, "b": 1.0}


def parse_bytes(value: Any) -> int | None:
    """Return the number of bytes that ``value`` gives as a number or as text such as "2GB" or "512 MiB".

    Return None for None. Raises TypeError for another type, ValueError for other text or a number out of range.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", value)
        number = float(match[1]) * _UNITS.get(match[2].lower(), -1) if match else -1.0
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"memory_limit must be None, a number of bytes or text like '2GB', got {value!r}")
    if not 1 <= number < 2**60:
        raise ValueError(f"memory_limit must be a positive number of bytes or text like '2GB', got {value!r}")
    return int(number)


pool_lock = threading.RLock()
never_released: list[Any] = []
Key = tuple[int, int]  # key of a pool: handle of the OpenCL context, bytes of a buffer


class Pool:
    """Keep freed buffers for later requests of the same size. The attribute ``nbytes`` is their total size in bytes.

    Reuse saves time, because on a CPU the first access to new memory costs more than most work on a buffer.
    """

    def __init__(self) -> None:
        self._buffers: dict[Key, list[Any]] = {}
        self.nbytes = 0

    def put(self, key: Key, buffer: Any, most: float = float("inf")) -> None:
        """Keep a freed buffer under its key.

        Before that, release other buffers until the pool, with the new buffer, has at most ``most`` bytes. The buffers
        under the key that was used longest ago are released first.
        """
        with pool_lock:
            while self._buffers and self.nbytes + key[1] > most:
                self._drop(next(iter(self._buffers)))
            self._buffers[key] = [*self._buffers.pop(key, []), buffer]
            self.nbytes += key[1]

    def take(self, key: Key) -> Any:
        """Remove the buffer that was last put under this key from the pool, and return it, or None if none is left."""
        with pool_lock:
            buffers = self._buffers.pop(key, [])
            buffer = buffers.pop() if buffers else None
            if buffers:
                self._buffers[key] = buffers
            self.nbytes -= key[1] * (buffer is not None)
            return buffer

    def release(self) -> int:
        """Release all buffers, and return the number of bytes freed."""
        with pool_lock:
            freed = self.nbytes
            while self._buffers:
                self._drop(next(iter(self._buffers)))
            return freed

    def forget(self) -> None:
        """Empty the pool in a forked child without releasing the buffers, which belong to the parent."""
        never_released.append(self._buffers)
        self._buffers, self.nbytes = {}, 0

    def _drop(self, key: Key) -> None:
        gone = self._buffers.pop(key)
        self.nbytes -= key[1] * len(gone)
        for buffer in gone:
            buffer.release()


spare, slabs = POOLS = Pool(), Pool()  # pools of freed buffers, and of slabs: large buffers for cached rows of K


def pooled_bytes() -> int:
    """Return the number of bytes in the pools of this process."""
    return sum(pool.nbytes for pool in POOLS)


def rounded_size(nbytes: int, most: int) -> int:
    """Return the size in bytes to allocate for a buffer of ``nbytes`` bytes.

    The size is rounded up by at most an eighth, so that the pool can reuse a buffer for a slightly different request.
    The size stays ``nbytes`` if rounding would exceed ``most`` or the limits of the pool.
    """
    step = 1 << max(0, nbytes.bit_length() - 4)
    rounded = -(-nbytes // step) * step
    return rounded if nbytes >= MIN_POOLED and rounded <= min(most, MAX_POOLED) else nbytes


class DeviceCache:
    """Keep one value on a device between calls, such as the support vectors of a fitted model.

    The buffers of the value are never written again, so any thread may read them. The value is dropped with the object
    that owns this cache, or by :func:`release_memory`. It is also dropped when a fit or call of this process would
    otherwise exceed memory_limit. A call that uses the value at that time can use it until the call ends. A copy of the
    cache, an unpickled cache, and the cache in a forked child begin empty.
    """

    # A tuple: Stream.setting, value, bytes of the value. Threads read it without a lock, so it is replaced as a whole.
    _state: tuple[Any, Any, int] = (None, None, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, ()

    @property
    def nbytes(self) -> int:
        return self._state[2]

    def get(self, stream: Any) -> Any:
        """Return the value if the stream that stored it had this stream's context, profile and memory_limit.

        The stream counts the bytes of the value as allocated. Return None if there is no such value, or if it takes
        more than half of the stream's memory limit.
        """
        setting, value, nbytes = self._state
        if setting != stream.setting or nbytes > stream.limit // 2:
            return None
        stream.charge(nbytes)
        stream.reads.append(self)
        return value

    def put(self, stream: Any, value: Any, buffers: Sequence[Any]) -> None:
        """Replace the cached value by ``value``, whose data is in ``buffers`` of the stream.

        The buffers outlive the stream. They are released when nothing refers to them any more.
        """
        nbytes = stream.detach(buffers)
        self._state = stream.setting, value, nbytes
        stream.reads.append(self)
        with pool_lock:
            live_caches.add(self)

    def empty(self) -> Any:
        """Remove the value from the cache, and return it."""
        (_, value, _), self._state = self._state, (None, None, 0)
        with pool_lock:
            live_caches.discard(self)
        return value


live_caches: weakref.WeakSet[DeviceCache] = weakref.WeakSet()


def filled_caches() -> list[DeviceCache]:
    """Return all objects of :class:`DeviceCache` in this process that have a value."""
    with pool_lock:
        return list(live_caches)


def release_memory() -> int:
    """Release all device memory that clsvm keeps between calls.

    Such memory is the row cache's large buffers, and freed buffers for reuse. The support vectors or inducing points
    of fitted models, which remain on a device for later predictions, are released too.

    Returns
    -------
    int
        The number of bytes freed.
    """
    freed = sum(cache.nbytes for cache in filled_caches())
    for cache in filled_caches():
        cache.empty()
    return freed + release_pools()


def release_pools() -> int:
    """Release all buffers in the pools of this process, and return the number of bytes freed."""
    return sum(pool.release() for pool in POOLS)


def huge_pages(context: cl.Context, nbytes: int) -> Any:
    """Return a buffer of ``nbytes`` bytes in host memory with huge pages, or None if the system has no huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared maps get no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    host = np.frombuffer(memory, np.uint8)
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)


def in_place(context: cl.Context, array: NDArray[Any]) -> tuple[Any, int]:
    """Return a buffer by which kernels read a contiguous array in place, and the array's byte offset in the buffer.

    Runtimes copy memory that is not aligned. So the buffer begins at the last aligned address up to the array's start.
    """
    address = array.ctypes.data
    before = address % 128
    raw: Any = (ctypes.c_char * (array.nbytes + before)).from_address(address - before)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(context, flags, hostbuf=np.frombuffer(raw, np.uint8)), before


def pairs(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Split each float64 number into two float32 numbers, whose sum is the number up to rounding.

    The result has shape (..., 2), with the larger of the two numbers first.
    """
    high = array.astype(np.float32)
    with np.errstate(invalid="ignore"):
        low = np.where(np.isfinite(high), array - high.astype(np.float64), 0).astype(np.float32)
    return np.stack([high, low], axis=-1)


def free_memory(device: cl.Device) -> int:
    """Return an upper bound of the device's free memory in bytes.

    For a device with memory of its own, the bound is all of its memory. For a device that shares the host's memory, it
    is the memory that is available to this process, including the pools of freed buffers.
    """
    free = int(device.global_mem_size)
    if device.type & cl.device_type.CPU or device.host_unified_memory:
        available = _available(int(perf_counter() / MAX_AGE))
        free = free if available is None else min(free, available + pooled_bytes())
    return free


MAX_AGE = 0.05  # seconds for which a measurement of the available memory is used again


@lru_cache(1)
def _available(period: int) -> int | None:
    """Return the bytes of memory available to this process on the host, or None if the system does not tell.

    ``period`` is the number of the current interval of MAX_AGE seconds, so that each interval has one measurement.
    """
    return system.available()


def in_rows(array: NDArray[Any], ld: int) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return arguments with which pyopencl copies ``array`` (h, w) to or from a buffer with rows of ``ld`` items.

    The first result is a contiguous view of the array's memory, since pyopencl copies no other arrays. The second has
    keyword arguments that describe the rectangle to copy.
    """
    (height, width), size = array.shape, array.itemsize
    span = (height - 1) * array.strides[0] // size + width
    flat = np.lib.stride_tricks.as_strided(array, (span,), (size,))
    pitch = max(array.strides[0], width * size)  # a single row may have a smaller stride, which OpenCL rejects
    origins = {"buffer_origin": (0, 0, 0), "host_origin": (0, 0, 0), "region": (width * size, height, 1)}
    return flat, {**origins, "buffer_pitches": (ld * size,), "host_pitches": (pitch,)}
