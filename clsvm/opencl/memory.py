"""Device memory: limits, pools of buffers that outlive a call, and values that stay on a device between calls.

:func:`parse_bytes` reads a limit as a user writes it. :class:`Pool` keeps freed buffers of this process for later ones
of the same size. :class:`DeviceCache` keeps a value of an estimator on a device. :func:`release_memory` empties both.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
import weakref
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm import system
from clsvm.opencl.runtime import cl

HUGE = 4 << 20  # bytes from which on a buffer gets huge pages
LEAST, MOST, KEPT = (
    64 << 10,
    128 << 20,
    256 << 20,
)  # bytes of a freed buffer that the pool keeps; most bytes of the pool
MEMORY_SHARE = 0.5  # share of the device's free memory: the default of memory_limit
_UNITS = {
    letter + end: float(base) ** power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
} | {"": 1.0, "b": 1.0}


def parse_bytes(value: Any, name: str = "memory_limit") -> int | None:
    """Return a number of bytes, given as a number or as text such as "2GB" or "512 MiB"; None for None.

    Raises TypeError or ValueError.
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", value)
        number = float(match[1]) * _UNITS.get(match[2].lower(), -1) if match else -1.0
    elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
        number = float(value)
    else:
        raise TypeError(f"{name} must be None, a number of bytes or text like '2GB', got {value!r}")
    if not 1 <= number < 2**60:
        raise ValueError(f"{name} must be a positive number of bytes or text like '2GB', got {value!r}")
    return int(number)


pool_lock = threading.RLock()
never_released: list[Any] = []
Key = tuple[int, int]  # key of a pool: context handle, bytes of a buffer


class Pool:
    """Hold freed buffers, for later buffers of the same size. nbytes: bytes of all of them.

    Reuse saves time, because on a CPU the first access to new memory costs more than most uses of it.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, list[Any]] = {}
        self.nbytes = 0

    def put(self, key: Key, buffer: Any, most: float = float("inf")) -> None:
        """Keep a buffer. First release others if the pool would exceed ``most`` bytes; the sizes used longest ago
        go first.
        """
        with pool_lock:
            while self._kept and self.nbytes + key[1] > most:
                self._drop(next(iter(self._kept)))
            self._kept[key] = [*self._kept.pop(key, []), buffer]
            self.nbytes += key[1]

    def take(self, key: Key) -> Any:
        """Return the buffer of this key that was put last, or None."""
        if key not in self._kept:  # the usual case, without the lock
            return None
        with pool_lock:
            kept = self._kept.pop(key, [])
            buffer = kept.pop() if kept else None
            if kept:
                self._kept[key] = kept
            self.nbytes -= key[1] * (buffer is not None)
            return buffer

    def release(self) -> int:
        """Release all buffers, and return the number of bytes freed."""
        with pool_lock:
            freed = self.nbytes
            while self._kept:
                self._drop(next(iter(self._kept)))
            return freed

    def forget(self) -> None:
        """Empty the pool in a forked child without releasing the buffers, which belong to the parent."""
        never_released.append(self._kept)
        self._kept, self.nbytes = {}, 0

    def _drop(self, key: Key) -> None:
        gone = self._kept.pop(key)
        self.nbytes -= key[1] * len(gone)
        for buffer in gone:
            buffer.release()


spare, slabs = POOLS = Pool(), Pool()  # freed buffers, of at most KEPT bytes; slabs of :meth:`Stream.slab`


def pooled() -> int:
    """Return the number of bytes in the pools of this process."""
    return sum(pool.nbytes for pool in POOLS)


def roomy(nbytes: int, most: int) -> int:
    """Return the size in bytes to allocate for a buffer that the pool may keep.

    It is up to an eighth more than ``nbytes`` if ``most`` allows it, so that buffers of similar size are
    interchangeable."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    room = -(-nbytes // step) * step
    return room if nbytes >= LEAST and room <= min(most, MOST) else nbytes


class DeviceCache:
    """Keep one value on a device between calls, for its owner. Its buffers are never written again, so any thread may
    read them.

    The value is dropped with its owner, by :func:`release_memory`, and as soon as a fit or call of this process would
    exceed its memory_limit. A call that is reading the value then keeps it to its end. Copies, pickles and forked
    children begin empty.
    """

    _state: tuple[Any, Any, int] = (
        None,
        None,
        0,
    )  # Stream.setting, value, bytes: a tuple, since threads read without a lock

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, ()

    @property
    def nbytes(self) -> int:
        return self._state[2]

    def get(self, stream: Any) -> Any:
        """Return the value that was kept under the stream's setting, and count its bytes as allocated by the stream.

        Return None if there is none, or if it takes more than half of the stream's memory limit.
        """
        setting, value, nbytes = self._state
        if setting != stream.setting or nbytes > stream.limit // 2:
            return None
        stream.hold(nbytes)
        stream.reads.append(self)
        return value

    def put(self, stream: Any, value: Any, buffers: Sequence[Any]) -> None:
        """Keep ``value``, which uses these buffers of the stream, instead of the value before.

        The buffers outlive the stream. They are released with the last reference to them.
        """
        nbytes = stream.hand_over(buffers)
        self._state = stream.setting, value, nbytes
        stream.reads.append(self)
        with pool_lock:
            keeping.add(self)

    def empty(self) -> Any:
        """Drop the value, and return it."""
        (_, value, _), self._state = self._state, (None, None, 0)
        with pool_lock:
            keeping.discard(self)
        return value


keeping: weakref.WeakSet[DeviceCache] = weakref.WeakSet()


def all_kept() -> list[DeviceCache]:
    """Return every DeviceCache of this process that has a value."""
    with pool_lock:
        return list(keeping)


def release_memory() -> int:
    """Release all device memory that clsvm keeps between calls.

    That memory is: slabs of the row cache, freed buffers in pools, and the vectors of fitted models that stay on a
    device for later predictions.

    Returns
    -------
    int
        The number of bytes freed.
    """
    freed = sum(kept.nbytes for kept in all_kept())
    for kept in all_kept():
        kept.empty()
    return freed + released()


def released() -> int:
    """Release all buffers in the pools of this process, and return the number of bytes freed."""
    return sum(pool.release() for pool in POOLS)


def huge_pages(context: cl.Context, nbytes: int) -> Any:
    """Return a buffer in anonymous host memory with huge pages, or None if the system has none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    host = np.frombuffer(memory, np.uint8)
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)


def in_place(context: cl.Context, array: NDArray[Any]) -> tuple[Any, int]:
    """Return (buffer, offset in bytes) for reading a contiguous array without a copy.

    Runtimes copy arrays that are not aligned, so the buffer begins at the aligned address before the array.
    """
    address = array.ctypes.data
    before = address % 128
    raw: Any = (ctypes.c_char * (array.nbytes + before)).from_address(address - before)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(context, flags, hostbuf=np.frombuffer(raw, np.uint8)), before


def pairs(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return each float64 number as the unevaluated sum of two float32 numbers, (..., 2)."""
    high = array.astype(np.float32)
    with np.errstate(invalid="ignore"):
        low = np.where(np.isfinite(high), array - high.astype(np.float64), 0).astype(np.float32)
    return np.stack([high, low], axis=-1)


def free_memory(device: cl.Device) -> int:
    """Return the free bytes of the device, as far as they are known.

    A device that shares the host's memory has no more than the system has available for this process.
    """
    free = int(device.global_mem_size)
    if device.type & cl.device_type.CPU or device.host_unified_memory:
        available = _available()
        free = free if available is None else min(free, available + pooled())
    return free


def _available() -> int | None:
    """Return :func:`clsvm.system.available`, at most MOMENT seconds old."""
    global _looked
    if (now := perf_counter()) - _looked[0] > MOMENT:
        _looked = now, system.available()
    return _looked[1]


MOMENT = 0.05  # seconds for which the available memory is taken as unchanged
_looked: tuple[float, int | None] = -MOMENT, None


def in_rows(array: NDArray[Any], ld: int) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return the arguments of a copy between ``array`` (h, w) and a buffer with rows of ``ld`` items.

    The first is the memory of the array as one flat array, the second the keyword arguments of OpenCL's rectangle copy.
    """
    (height, width), size = array.shape, array.itemsize
    span = (height - 1) * array.strides[0] // size + width
    flat = np.lib.stride_tricks.as_strided(array, (span,), (size,))
    pitch = max(array.strides[0], width * size)  # the stride of an array with one row can be any number
    origins = {"buffer_origin": (0, 0, 0), "host_origin": (0, 0, 0), "region": (width * size, height, 1)}
    return flat, {**origins, "buffer_pitches": (ld * size,), "host_pitches": (pitch,)}
