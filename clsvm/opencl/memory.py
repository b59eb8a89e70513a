"""Manage device memory: limits, pools of freed buffers, and data that remains on a device between calls.

:func:`parse_bytes` reads a memory limit as a user writes it. :class:`Pool` keeps freed buffers, which serve later
requests for buffers of the same size. :class:`DeviceCache` keeps data of an estimator on a device between calls.
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

HUGE = 4 << 20  # on a CPU, buffers of at least this many bytes get huge pages
# The pool of freed buffers takes buffers of MIN_POOLED to MAX_POOLED bytes, and has at most POOL_BYTES bytes in all.
MIN_POOLED, MAX_POOLED, POOL_BYTES = 64 << 10, 128 << 20, 256 << 20
MEMORY_SHARE = 0.5  # the default of memory_limit is this share of the device's free memory
_UNITS = {
    letter + end: float(base) ** power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
} | {"": 1.0, "b": 1.0}


def parse_bytes(value: Any) -> int | None:
    """Return the number of bytes that ``value`` means. ``value`` is a number, or text such as "2GB" or "512 MiB".

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
Key = tuple[int, int]  # key of a buffer in a pool: handle of its OpenCL context, and its size in bytes


class Pool:
    """Keep freed buffers for later requests of the same size. The attribute ``nbytes`` is their total size in bytes.

    Reuse saves time, because on a CPU the first access to new memory costs more than most work on a buffer.
    """

    def __init__(self) -> None:
        self._buffers: dict[Key, list[Any]] = {}
        self.nbytes = 0

    def put(self, key: Key, buffer: Any, most: float = float("inf")) -> None:
        """Add a freed buffer to the pool. ``key`` has the handle of its OpenCL context, and its size in bytes.

        If the pool would then have more than ``most`` bytes, first release other buffers. The buffers under the key
        that was used longest ago are released first.
        """
        with pool_lock:
            while self._buffers and self.nbytes + key[1] > most:
                self._drop(next(iter(self._buffers)))
            self._buffers[key] = [*self._buffers.pop(key, []), buffer]
            self.nbytes += key[1]

    def take(self, key: Key) -> Any:
        """Remove the buffer that was last put under ``key``, and return it. Return None if there is no such buffer."""
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
        """Empty the pool in a forked child process. The buffers are not released, because the parent owns them."""
        never_released.append(self._buffers)
        self._buffers, self.nbytes = {}, 0

    def _drop(self, key: Key) -> None:
        gone = self._buffers.pop(key)
        self.nbytes -= key[1] * len(gone)
        for buffer in gone:
            buffer.release()


spare, slabs = POOLS = Pool(), Pool()  # ``slabs`` has large buffers for rows of the kernel matrix, ``spare`` all others


def pooled_bytes() -> int:
    """Return the total size in bytes of all freed buffers that this process keeps for reuse."""
    return sum(pool.nbytes for pool in POOLS)


def rounded_size(nbytes: int, most: int) -> int:
    """Return the size in bytes to allocate if a buffer of ``nbytes`` bytes is requested.

    The size is ``nbytes``, rounded up by at most an eighth. A freed buffer can then serve a later request for slightly
    more or fewer bytes. The size is not rounded if it would exceed ``most`` bytes, or if the pool of freed buffers
    takes no buffers of this size.
    """
    step = 1 << max(0, nbytes.bit_length() - 4)
    rounded = -(-nbytes // step) * step
    return rounded if nbytes >= MIN_POOLED and rounded <= min(most, MAX_POOLED) else nbytes


class DeviceCache:
    """Keep one value on a device between calls, such as the support vectors of a fitted model.

    The buffers of the value are never written again, so any thread may read them. The value is dropped with the object
    that owns this cache, or by :func:`release_memory`. A fit or another call in this process also drops the value if
    the call would otherwise exceed its memory limit. A call that is using the value can finish before the memory is
    released. Copies of the cache, unpickled caches, and caches in a forked child process begin empty.
    """

    # (stream setting, cached value, its bytes) is always assigned as one tuple, because threads read it without a lock.
    _state: tuple[Any, Any, int] = (None, None, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, ()

    @property
    def nbytes(self) -> int:
        return self._state[2]

    def get(self, stream: Any) -> Any:
        """Return the cached value, and count its bytes as allocated by ``stream``.

        Return None if the cache is empty, or if the value takes more than half of the stream's memory limit. Return
        None also if the stream that stored the value had another OpenCL context, profile or memory_limit.
        """
        setting, value, nbytes = self._state
        if setting != stream.setting or nbytes > stream.limit // 2:
            return None
        stream.charge(nbytes)
        stream.reads.append(self)
        return value

    def put(self, stream: Any, value: Any, buffers: Sequence[Any]) -> None:
        """Replace the cached value by ``value``, whose data is in the buffers ``buffers`` of ``stream``.

        The buffers outlive the stream. Each is released when no Python object refers to it.
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

    Between calls, clsvm keeps large buffers for rows of the kernel matrix, and freed buffers for reuse. It also keeps
    the support vectors or inducing points of fitted models on a device for later predictions.

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
    """Release all freed buffers that this process keeps for reuse, and return the number of bytes released."""
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
    """Return a buffer by which OpenCL kernels read a contiguous array in place, and the array's byte offset in it.

    OpenCL runtimes copy memory that does not begin at a multiple of 128 bytes. So the buffer begins at the address of
    the array, rounded down to a multiple of 128.
    """
    address = array.ctypes.data
    before = address % 128
    raw: Any = (ctypes.c_char * (array.nbytes + before)).from_address(address - before)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(context, flags, hostbuf=np.frombuffer(raw, np.uint8)), before


def pairs(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Split each float64 number of ``array`` into two float32 numbers, whose sum is the number up to rounding.

    The result has one more axis, of length 2. The larger of the two numbers comes first.
    """
    high = array.astype(np.float32)
    with np.errstate(invalid="ignore"):
        low = np.where(np.isfinite(high), array - high.astype(np.float64), 0).astype(np.float32)
    return np.stack([high, low], axis=-1)


def free_memory(device: cl.Device) -> int:
    """Return an upper bound of the device's free memory in bytes.

    The bound is at most the memory that the device reports. If the device shares the host's memory, the bound is also
    at most the sum of two numbers: the bytes that the host can still give this process, and the bytes of freed buffers
    that the process keeps for reuse.
    """
    free = int(device.global_mem_size)
    if device.type & cl.device_type.CPU or device.host_unified_memory:
        available = _available(int(perf_counter() / MAX_AGE))
        free = free if available is None else min(free, available + pooled_bytes())
    return free


MAX_AGE = 0.05  # seconds after which the memory available on the host is measured anew


@lru_cache(1)
def _available(period: int) -> int | None:
    """Return the bytes of memory available to this process on the host, or None if the system does not tell.

    Time is divided into intervals of MAX_AGE seconds, and ``period`` is the number of the current interval. Memory is
    measured once in an interval, because the result is cached for each ``period``.
    """
    return system.available()


def in_rows(array: NDArray[Any], ld: int) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return arguments with which pyopencl copies ``array`` (h, w) to or from a buffer with rows of ``ld`` items.

    The array may have gaps between its rows, but pyopencl copies only contiguous arrays. So the first result is a
    one-dimensional view of the array's memory, gaps included. The second result has keyword arguments that describe the
    rectangle to copy.
    """
    (height, width), size = array.shape, array.itemsize
    span = (height - 1) * array.strides[0] // size + width
    flat = np.lib.stride_tricks.as_strided(array, (span,), (size,))
    pitch = max(array.strides[0], width * size)  # the stride of a single row may be so small that OpenCL rejects it
    origins = {"buffer_origin": (0, 0, 0), "host_origin": (0, 0, 0), "region": (width * size, height, 1)}
    return flat, {**origins, "buffer_pitches": (ld * size,), "host_pitches": (pitch,)}
