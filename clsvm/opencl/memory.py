"""Memory: limits as a user writes them, pools of buffers that outlive a call, what owners keep on a device."""

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

HUGE = 4 << 20  # bytes of a large buffer
LEAST, MOST, KEPT = 64 << 10, 128 << 20, 256 << 20  # of one that is kept when it is given back; of all of these
MEMORY_SHARE = 0.5  # of the device's free memory: the default of memory_limit
_UNITS = {
    letter + end: float(base) ** power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
} | {"": 1.0, "b": 1.0}


def parse_bytes(value: Any, name: str = "memory_limit") -> int | None:
    """Return a number of bytes for None, a number, or text such as "2GB", "512 MiB". Raises TypeError or ValueError."""
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
Key = tuple[int, int]  # of buffers: context, bytes


class Pool:
    """Buffers that were given back, for later ones of their size; ``nbytes`` of all.

    Memory that is touched for the first time costs a CPU more than most of what is done with it.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, list[Any]] = {}
        self.nbytes = 0

    def put(self, key: Key, buffer: Any, most: float = float("inf")) -> None:
        """Keep a buffer. Others go for it, sizes that came long ago first, where all would be more than ``most``."""
        with pool_lock:
            while self._kept and self.nbytes + key[1] > most:
                self._drop(next(iter(self._kept)))
            self._kept[key] = [*self._kept.pop(key, []), buffer]
            self.nbytes += key[1]

    def take(self, key: Key) -> Any:
        """Return the buffer that was given back last, or None."""
        if key not in self._kept:  # (as of every small one)
            return None
        with pool_lock:
            kept = self._kept.pop(key, [])
            buffer = kept.pop() if kept else None
            if kept:
                self._kept[key] = kept
            self.nbytes -= key[1] * (buffer is not None)
            return buffer

    def release(self) -> int:
        """Give all of them back to the system; return the bytes that were freed."""
        with pool_lock:
            freed = self.nbytes
            while self._kept:
                self._drop(next(iter(self._kept)))
            return freed

    def forget(self) -> None:
        """Leave the buffers alone in a forked child: they are its parent's."""
        never_released.append(self._kept)
        self._kept, self.nbytes = {}, 0

    def _drop(self, key: Key) -> None:
        gone = self._kept.pop(key)
        self.nbytes -= key[1] * len(gone)
        for buffer in gone:
            buffer.release()


spare, slabs = POOLS = Pool(), Pool()  # KEPT bytes at most; what :meth:`Stream.slab` returned


def pooled() -> int:
    """Return the bytes that this process keeps for the next fit."""
    return sum(pool.nbytes for pool in POOLS)


def roomy(nbytes: int, most: int) -> int:
    """Return the bytes of a buffer that may be kept, up to an eighth more where ``most`` allows it: buffers of about
    the same size can stand in for each other."""
    step = 1 << max(0, nbytes.bit_length() - 4)
    room = -(-nbytes // step) * step
    return room if nbytes >= LEAST and room <= min(most, MOST) else nbytes


class DeviceCache:
    """Room for one value that its owner keeps on a device between calls: buffers that are written no more, so that any
    thread may read them.

    It goes with its owner, by :func:`release_memory`, and as soon as a fit or call of this process would exceed its
    memory_limit with it; whoever reads it then keeps it until the call is done. Copies, pickles and forked children
    begin empty.
    """

    _state: tuple[Any, Any, int] = None, None, 0  # Stream.setting, value, bytes: replaced as one, as threads read it

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, ()

    @property
    def nbytes(self) -> int:
        return self._state[2]

    def get(self, stream: Any) -> Any:
        """Return what was kept under the stream's setting, counted as the stream's from here on; None for nothing, or
        where it is more than half of what the stream may hold by now."""
        setting, value, nbytes = self._state
        if setting != stream.setting or nbytes > stream.limit // 2:
            return None
        stream.hold(nbytes)
        stream.reads.append(self)
        return value

    def put(self, stream: Any, value: Any, buffers: Sequence[Any]) -> None:
        """Keep ``value``, which holds these buffers of the stream, in place of what was here: they outlive the stream
        and go with the last reference to them."""
        nbytes = stream.hand_over(buffers)
        self._state = stream.setting, value, nbytes
        stream.reads.append(self)
        with pool_lock:
            keeping.add(self)

    def empty(self) -> Any:
        """Forget the value, and return it."""
        (_, value, _), self._state = self._state, (None, None, 0)
        with pool_lock:
            keeping.discard(self)
        return value


keeping: weakref.WeakSet[DeviceCache] = weakref.WeakSet()


def all_kept() -> list[DeviceCache]:
    """Return every room of this process that is not empty."""
    with pool_lock:
        return list(keeping)


def release_memory() -> int:
    """Give back to the system what is held between calls: slabs of the row cache, other buffers, and every
    :class:`DeviceCache`; return the bytes that were freed."""
    freed = sum(kept.nbytes for kept in all_kept())
    for kept in all_kept():
        kept.empty()
    return freed + released()


def released() -> int:
    """Give what this process has in its pools back to the system; return the bytes that were freed."""
    return sum(pool.release() for pool in POOLS)


def huge_pages(context: cl.Context, nbytes: int) -> Any:
    """Return a buffer over anonymous memory with huge pages, or None where the system has none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets none
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    host = np.frombuffer(memory, np.uint8)
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)


def in_place(context: cl.Context, array: NDArray[Any]) -> tuple[Any, int]:
    """Return (buffer, bytes before): a buffer for reading ``array`` (contiguous) where it is. Runtimes copy what is
    not aligned, so it begins at the aligned address before the array, in the same page."""
    address = array.ctypes.data
    before = address % 128
    raw: Any = (ctypes.c_char * (array.nbytes + before)).from_address(address - before)
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(context, flags, hostbuf=np.frombuffer(raw, np.uint8)), before


def pairs(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return each number as an unevaluated sum of two: (..., 2)."""
    high = array.astype(np.float32)
    with np.errstate(invalid="ignore"):
        low = np.where(np.isfinite(high), array - high.astype(np.float64), 0).astype(np.float32)
    return np.stack([high, low], axis=-1)


def free_memory(device: cl.Device) -> int:
    """Return the bytes of the device that are free, as far as is known.

    A device that shares the host's memory is bounded by what the system leaves to this process.
    """
    free = int(device.global_mem_size)
    if device.type & cl.device_type.CPU or device.host_unified_memory:
        available = _available()
        free = free if available is None else min(free, available + pooled())
    return free


def _available() -> int | None:
    """Return :func:`clsvm.system.available` as it was a moment ago."""
    global _looked
    if (now := perf_counter()) - _looked[0] > MOMENT:
        _looked = now, system.available()
    return _looked[1]


MOMENT = 0.05  # seconds for which it is taken to stay
_looked: tuple[float, int | None] = -MOMENT, None


def in_rows(array: NDArray[Any], ld: int) -> tuple[NDArray[Any], dict[str, Any]]:
    """Return how rows of ``array`` (h, w) are copied from or to rows of ``ld`` items: its own memory as one array, and
    what OpenCL is told."""
    (height, width), size = array.shape, array.itemsize
    span = (height - 1) * array.strides[0] // size + width
    flat = np.lib.stride_tricks.as_strided(array, (span,), (size,))
    pitch = max(array.strides[0], width * size)  # (of one row it can be any number)
    origins = {"buffer_origin": (0, 0, 0), "host_origin": (0, 0, 0), "region": (width * size, height, 1)}
    return flat, {**origins, "buffer_pitches": (ld * size,), "host_pitches": (pitch,)}
