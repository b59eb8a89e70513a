"""A device as one thread works with it: queue, kernels, memory within a budget. Buffers leave it as opaque handles."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm import system
from clsvm.errors import BufferSizeError, DeviceError, HostMemoryError, MemoryLimitError
from clsvm.opencl import memory, sources
from clsvm.opencl.contexts import SIMULATOR, Calling, Kernel, built, context_lock, of_thread, queue_for, streams
from clsvm.opencl.devices import default_profile, find, handle
from clsvm.opencl.profiles import Profile
from clsvm.opencl.runtime import cl
from clsvm.threads import go_on

Buffer = Any  # opaque to every other module
# Large arrays go to a device with memory of its own through pinned memory, which it reads at the rate of its bus and by
# itself. The host fills one of two pieces, by several threads, while the device copies the other. One thread copied
# 7 GB/s beside an H100, whose bus has 52; the driver does as much from other memory, at half of that rate or less.
PIECE = 8 << 20  # bytes
FILLERS = 4  # threads that fill a piece, of half as many cores at most
LEAST_PINNED = 2 * PIECE  # bytes of an array that goes this way
APART = 512  # bytes, of which the first of a part of a buffer is a multiple: devices want no more


class Stream:
    """A device as one thread works with it: queue, programs, memory within a budget.

    Use as a context manager: leaving it gives every buffer back. ``limit`` in bytes. lock: held in every call of the
    runtime. unified: whether kernels read the host's memory in place. simulated: whether the device is Oclgrind.
    """

    def __init__(self, spec: Any = None, memory_limit: int | str | None = None, profile: Profile | None = None) -> None:
        self.info, self.lock = find(spec), threading.RLock()
        self._device = handle(spec, self.info)
        with self._calling("no context or queue"):
            self._queue, self._context = queue_for(spec, self._device)
        self.profile = profile or default_profile(self.info)
        self.largest = min(self._device.max_mem_alloc_size, int(os.environ.get("CLSVM_LARGEST_BUFFER", 2**62)))
        self.limit = memory.parse_bytes(memory_limit) or int(memory.MEMORY_SHARE * memory.free_memory(self._device))
        self.setting = self._context, self.profile, memory_limit  # what is kept for later calls holds for the same only
        self.held = self.peak = 0
        self.reads: list[memory.DeviceCache] = []  # what is kept beyond this stream and counted in ``held``
        self.compute_units = int(self._device.max_compute_units)
        self._buffers: dict[int, tuple[Any, int]] = {}
        self._slabs: list[tuple[memory.Key, Any]] = []
        self._spare: dict[int, list[Any]] | None = None  # freed buffers by size, while they are recycled
        self._loose = 1.0
        # Oclgrind 21.10 takes memory that it did not copy itself, and the part of a new buffer beyond the size of a
        # released one whose place it takes, for uninitialised: under it rows are copied and no buffer is released.
        self.simulated = self.info.platform == SIMULATOR
        self.unified = self.info.kind == "cpu" and not self.simulated
        with context_lock:
            streams.add(self)

    @property
    def queue(self) -> int:
        """Return where its kernel objects enqueue."""
        return int(self._queue.int_ptr)

    @property
    def local_memory(self) -> int:
        """Return the bytes of local memory that a work-group can have."""
        return int(self._device.local_mem_size)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
        try:
            self.finish()
        finally:
            self.free(*(buffer for buffer, _size in self._buffers.values()))
            self.give_slabs_back()
            self.reads.clear()
            with context_lock:
                streams.discard(self)
        if isinstance(error, MemoryError) and not isinstance(error, HostMemoryError):
            raise system.refused(error) from error

    @contextlib.contextmanager
    def beside(self, nbytes: int) -> Iterator[Stream]:
        """Yield a stream of the same context and profile with a queue of its own, for one other thread: the device
        copies or computes for both at once. Buffers of either may be read by the other once the queue they are written
        in is finished.

        ``nbytes`` of this one's budget are the other's alone meanwhile. Raises ValueError where so much is not left.
        """
        before, start = self.peak, self.limit - nbytes
        self.reserve(nbytes)
        self.peak = self.held
        with self._calling("no further queue"):
            queue = cl.CommandQueue(self._context, self._device)
        other = Stream(queue, self.limit, self.profile)
        other.hold(start)  # all but its share is taken: its errors name the limit that a user knows
        other.reads = memory.all_kept()  # they were counted when room was made
        try:
            with other:
                yield other
        finally:
            self.held -= nbytes
            self.peak = max(before, self.peak - nbytes + other.peak - start)  # of both together, at most

    def hold(self, nbytes: int) -> None:
        """Count ``nbytes`` of the budget as held; a negative number gives them back."""
        self.held += nbytes
        self.peak = max(self.peak, self.held)

    def reserve(self, nbytes: int) -> None:
        """Hold ``nbytes``, for what is made in :meth:`lent` or on the host. Raises ValueError where so much is not
        left."""
        self._make_room(nbytes)
        self.hold(nbytes)

    @contextlib.contextmanager
    def lent(self, nbytes: int) -> Iterator[None]:
        """Have ``nbytes`` that were reserved free inside."""
        self.held -= nbytes
        try:
            yield
        finally:
            self.held += nbytes

    def _make_room(self, nbytes: int) -> None:
        """Have what others keep between calls given back where it and ``nbytes`` more would exceed the limit. Raises
        MemoryLimitError where so much is not left."""
        if self.held + nbytes > self.limit:
            raise MemoryLimitError(self.limit, self.held, nbytes)
        others = [kept for kept in memory.all_kept() if kept not in self.reads] if memory.keeping else []
        wanted = self.held + nbytes + sum(kept.nbytes for kept in others)
        if wanted + memory.spare.nbytes > self.limit:
            memory.spare.release()
        for kept in others if wanted > self.limit else []:
            kept.empty()

    def buffer(self, nbytes: int) -> Buffer:
        """Return an uninitialised buffer of at least so many bytes. Raises ValueError where the budget ends,
        DeviceError where the memory does."""
        nbytes = max(1, -(-int(nbytes) // 64)) * 64
        if self._spare:
            most = max(self._loose * nbytes, memory.roomy(nbytes, self.largest))
            if fitting := [size for size, some in self._spare.items() if some and nbytes <= size <= most]:
                buffer = self._spare[min(fitting)].pop()
                self._buffers[buffer.int_ptr] = buffer, min(fitting)
                return buffer
        if self._spare and self.held + nbytes > self.limit:
            self._drop_spare()
        self._make_room(nbytes)
        if nbytes > self.largest:
            raise BufferSizeError(f"{self.info} allows buffers of {self.largest} bytes, {nbytes} are needed")
        nbytes = memory.roomy(nbytes, min(self.largest, (self.limit - self.held) // 16)) if self.unified else nbytes
        buffer = memory.spare.take(self._key(nbytes)) or self._made(nbytes)
        self._buffers[buffer.int_ptr] = buffer, nbytes
        self.hold(nbytes)
        return buffer

    def slab(self, nbytes: int) -> Buffer:
        """Return a large buffer from the process's pool, for this stream's life; see :func:`memory.release_memory`."""
        self._make_room(nbytes)
        buffer = memory.slabs.take(self._key(nbytes))
        if buffer is None and self.held + nbytes + memory.pooled() > self.limit:
            memory.released()  # slabs of other sizes
        buffer = buffer or self._made(nbytes)
        self._slabs.append((self._key(nbytes), buffer))
        self.hold(nbytes)
        return buffer

    def give_slabs_back(self) -> None:
        """Return this stream's slabs to the pool, which has the first of them, the most touched, first."""
        while self._slabs:
            key, slab = self._slabs.pop()
            memory.slabs.put(key, slab)
            self.held -= key[1]

    def _key(self, nbytes: int) -> memory.Key:
        return self._context.int_ptr, nbytes

    def _made(self, nbytes: int) -> Buffer:
        """Return new memory. A large one of the host's has huge pages: first touch is then some five times faster."""
        with self._calling(f"no memory for {nbytes} bytes"):
            huge = self.unified and nbytes >= memory.HUGE and memory.huge_pages(self._context, nbytes)
            return huge or cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def free(self, *buffers: Buffer) -> None:
        """Give buffers back; those that may be kept once the work in the queue is done."""
        if self._spare is None:
            self._done_with(max((self._buffers[buffer.int_ptr][1] for buffer in buffers), default=0))
        for buffer in buffers:
            kept, nbytes = self._buffers.pop(buffer.int_ptr)
            if self._spare is not None and not self.simulated:
                self._spare.setdefault(nbytes, []).append(kept)
            else:
                self._release(kept, nbytes)

    def _release(self, buffer: Buffer, nbytes: int) -> None:
        """Give a buffer to the process's pool or to the runtime."""
        self.held -= nbytes
        if self.simulated:
            memory.never_released.append(buffer)
        elif self.unified and memory.LEAST <= nbytes <= memory.MOST:
            memory.spare.put(self._key(nbytes), buffer, memory.KEPT)
        else:
            with self.lock:
                buffer.release()

    def _done_with(self, nbytes: int) -> None:
        """Wait before a buffer of so many bytes goes: the runtime keeps memory of its own for what is in the queue, but
        not that of huge pages, and another queue may take what is kept. What failed is told by the next call."""
        if self.unified and nbytes >= memory.LEAST:
            with contextlib.suppress(DeviceError):
                self.finish()

    @contextlib.contextmanager
    def recycling(self, loose: float = 1) -> Iterator[None]:
        """Have buffers that are freed inside taken again for others of their size, or ``loose`` times smaller, up to
        its end: new memory costs a CPU as much as a copy into it. They are counted as held meanwhile."""
        before, self._spare, self._loose = (self._spare, self._loose), {}, loose
        try:
            yield
        finally:
            self._drop_spare()
            self._spare, self._loose = before

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare or {}, {}
        self._done_with(max(spare, default=0))
        for nbytes, buffers in spare.items():
            for buffer in buffers:
                self._release(buffer, nbytes)

    def hand_over(self, buffers: Sequence[Buffer]) -> int:
        """Leave buffers to whoever keeps them from here on; return how many bytes they are."""
        if self.simulated:
            memory.never_released.extend(buffers)
        return sum(self._buffers.pop(buffer.int_ptr)[1] for buffer in buffers)

    @contextlib.contextmanager
    def scratch(self, always: bool = True) -> Iterator[None]:
        """Free the buffers that are made inside where it ends."""
        before = set(self._buffers)
        try:
            yield
        except BaseException:
            always = True
            raise
        finally:
            if always:
                self.finish()
                self.free(*(buffer for key, (buffer, _) in list(self._buffers.items()) if key not in before))

    def tentative(self) -> contextlib.AbstractContextManager[None]:
        """Free the buffers that are made inside where it ends in an error."""
        return self.scratch(always=False)

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.buffer(nbytes)
        self.clear(buffer, nbytes)
        return buffer

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Zero the first ``nbytes`` of a buffer, rounded up to 64 as buffers are."""
        if nbytes:
            pair = ("-DWIDE_PAIR",) if self.profile.wide == "pair" else ()
            zero = self.kernel(sources.cl("opencl/zero"), pair, "zero")
            zero((-(-int(nbytes) // 64),), None, buffer)

    def part(self, buffer: Buffer, first: int, nbytes: int) -> Buffer:
        """Return ``nbytes``, in whole 64s, of a buffer from byte ``first`` on, aligned as devices want it (at most
        512)."""
        with self._calling("a buffer has no such part"):
            return buffer.get_sub_region(first, -(-max(1, nbytes) // 64) * 64)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """Return a buffer with a copy of ``array``."""
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            self.write(buffer, array)
        return buffer

    @contextlib.contextmanager
    def view(self, array: NDArray[Any]) -> Iterator[tuple[Buffer, int]]:
        """Yield (buffer, items): ``array`` (contiguous) stands in the buffer from that item on, for reading by kernels.

        Without a copy where the device shares the host's memory; what is before it there has to be whole items.
        """
        if not (array.nbytes and self.unified and array.flags.aligned):
            buffer = self.upload(array)
            yield buffer, 0
            self.finish()
            self.free(buffer)
            return
        with self._calling("no buffer for an array in place"):
            buffer, before = memory.in_place(self._context, array)
        try:
            yield buffer, before // array.itemsize
        finally:
            self.finish()
            with self.lock:
                buffer.release()

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        array = np.ascontiguousarray(array)
        if self.unified or self.simulated or array.nbytes < LEAST_PINNED:
            self._copy(buffer, array)
        else:
            with self._calling("a copy failed"):
                self._write_pinned(buffer, array.reshape(-1).view(np.uint8))

    def _write_pinned(self, buffer: Buffer, array: NDArray[np.uint8]) -> None:
        """Copy bytes to the start of a buffer through pinned memory, and wait until they are there."""
        pieces = self._pinned()
        events: list[Any] = [None] * len(pieces)
        fillers = max(1, min(FILLERS, cores() // 2))
        with ThreadPoolExecutor(fillers, "clsvm copies") if fillers > 1 else contextlib.nullcontext() as pool:
            apply: Callable[..., Any] = pool.map if pool else map
            for number, first in enumerate(range(0, array.size, PIECE)):
                turn, some = number % len(pieces), array[first : first + PIECE]
                if events[turn] is not None:
                    events[turn].wait()
                piece = pieces[turn][: some.size]
                list(apply(np.copyto, np.array_split(piece, fillers), np.array_split(some, fillers)))
                events[turn] = cl.enqueue_copy(self._queue, buffer, piece, dst_offset=first, is_blocking=False)
                self._queue.flush()
        for event in filter(None, events):
            event.wait()

    def _pinned(self) -> list[NDArray[np.uint8]]:
        """Return this thread's pinned pieces, of the context that it used last: beyond any memory_limit, since they are
        the host's."""
        made = of_thread("pinned")
        if (self._context, PIECE) not in made:
            made.clear()
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
            buffers = [cl.Buffer(self._context, flags, PIECE) for _ in range(2)]
            asked = cl.map_flags.WRITE, 0, (PIECE,), np.dtype(np.uint8)
            mapped = [cl.enqueue_map_buffer(self._queue, one, *asked)[0] for one in buffers]
            made[self._context, PIECE] = buffers, mapped
        pieces: list[NDArray[np.uint8]] = made[self._context, PIECE][1]
        return pieces

    def read(self, buffer: Buffer, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Return a copy of the buffer's start (from ``offset`` bytes); waits for all work enqueued before.

        Raises KeyboardInterrupt where the work of this thread is to end (:func:`clsvm.threads.go_on`)."""
        go_on()
        array: NDArray[Any] = np.empty(shape, dtype)
        if array.nbytes:
            self._copy(array, buffer, src_offset=offset)
        return array

    def write_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy the rows of ``array`` (h, w), each without gaps, into rows of ``ld`` items of the buffer."""
        flat, places = memory.in_rows(array, ld)
        self._copy(buffer, flat, **places)

    def read_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy the first (h, w) items of the buffer's rows of ``ld`` into ``array``."""
        flat, places = memory.in_rows(array, ld)
        self._copy(flat, buffer, **places)

    def wide(self, array: NDArray[np.float64]) -> Buffer:
        """Return a buffer with ``array`` as wide numbers (8 bytes each: doubles, or pairs of floats)."""
        return self.upload(self.as_wide(np.asarray(array, np.float64)))

    def write_wide(self, buffer: Buffer, array: NDArray[np.float64]) -> None:
        self.write(buffer, self.as_wide(array))

    def as_wide(self, array: NDArray[np.float64]) -> NDArray[Any]:
        """Return ``array`` as wide numbers, on the host."""
        return array if self.profile.wide == "double" else memory.pairs(array)

    def narrow(self, wide: NDArray[Any]) -> NDArray[np.float64]:
        """Return wide numbers as the device has them as float64."""
        return wide if self.profile.wide == "double" else wide.astype(np.float64).sum(axis=-1)

    def held_wide(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``array`` as it comes back once it was on the device as wide numbers."""
        return self.narrow(self.as_wide(array))

    def read_wide(self, buffer: Buffer, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return wide numbers of a buffer as float64."""
        shape = (shape,) if isinstance(shape, int) else shape
        double = self.profile.wide == "double"
        return self.narrow(self.read(buffer, np.float64 if double else np.float32, shape if double else (*shape, 2)))

    def flush(self) -> None:
        with self.lock:
            self._queue.flush()

    def finish(self) -> None:
        with self._calling("the work in its queue failed"):
            self._queue.finish()

    def _copy(self, to: Any, source: Any, **places: Any) -> None:
        with self._calling("a copy failed"):
            cl.enqueue_copy(self._queue, to, source, is_blocking=True, **places)

    def _calling(self, words: str) -> Calling:
        return Calling(self.info, self.lock, words)

    def kernel(self, text: str, options: Sequence[str], name: str) -> Kernel:
        """Return a kernel object of the caller's own, from a program built once per context, text and options."""
        program = built(os.getpid(), self._context, self._device, text, tuple(options))
        return Kernel(self._queue, self.info, self.lock, program, name)

    def variant(self, variant: sources.Variant, name: str | None = None) -> Kernel:
        """Return the kernel of a variant, or another one of its program."""
        return self.kernel(variant.text, variant.options, name or variant.entry)


class Sections(NamedTuple):
    """Several arrays in one buffer: one copy to it, or from it, takes them all.

    each: the part of the buffer that each array is; starts: where these begin. arrays: arrays like them. Oclgrind takes
    what is copied to a part of a buffer for uninitialised, so under it each array has a buffer of its own.
    """

    buffer: Buffer
    each: list[Buffer]
    starts: list[int]
    arrays: Sequence[NDArray[Any]]

    def write(self, stream: Stream, arrays: Sequence[NDArray[Any]]) -> None:
        """Write others like them in their place."""
        if not stream.simulated:
            stream.write(self.buffer, _whole(arrays, self.starts))
            return
        for part, array in zip(self.each, arrays, strict=True):
            stream.write(part, array)

    def read(self, stream: Stream) -> list[NDArray[Any]]:
        """Return copies of all of them, once the work enqueued before is done."""
        if stream.simulated:
            return [stream.read(part, one.dtype, one.shape) for part, one in zip(self.each, self.arrays, strict=True)]
        whole = stream.read(self.buffer, np.uint8, self.starts[-1])
        places = zip(self.arrays, self.starts, strict=False)
        return [whole[first : first + one.nbytes].view(one.dtype).reshape(one.shape) for one, first in places]


def together(stream: Stream, arrays: Sequence[NDArray[Any]]) -> Sections:
    """Return copies of some arrays: a buffer of its own for each takes a CPU longer than many of these copies."""
    starts = np.cumsum([0, *(-(-max(1, array.nbytes) // APART) * APART for array in arrays)]).tolist()
    if stream.simulated:
        alone = [stream.upload(array) for array in arrays]
        return Sections(alone[0], alone, starts, arrays)
    buffer = stream.upload(_whole(arrays, starts))
    each = [stream.part(buffer, first, one.nbytes) for one, first in zip(arrays, starts, strict=False)]
    return Sections(buffer, each, starts, arrays)


def _whole(arrays: Sequence[NDArray[Any]], starts: Sequence[int]) -> NDArray[np.uint8]:
    """Return the bytes of a buffer in which arrays begin there."""
    whole = np.zeros(starts[-1], np.uint8)
    for array, first in zip(arrays, starts, strict=False):
        whole[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return whole


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
