"""A device as one thread works with it: queue, kernels, memory within a budget. Buffers leave it as opaque handles."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm import system
from clsvm.errors import BufferSizeError, DeviceError, HostMemoryError, MemoryLimitError
from clsvm.opencl import memory, pinned, sources
from clsvm.opencl.contexts import SIMULATOR, built, context_lock, queue_for, streams
from clsvm.opencl.devices import default_profile, find, handle
from clsvm.opencl.launch import Kernel
from clsvm.opencl.profiles import Profile
from clsvm.opencl.runtime import cl
from clsvm.threads import go_on

Buffer = Any  # opaque to every other module


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
        self.queue = self._queue.int_ptr  # where its kernel objects enqueue
        self.held = self.peak = 0
        self.reads: list[memory.DeviceCache] = []  # what is kept beyond this stream and counted in ``held``
        self.local_memory, self.compute_units = self._device.local_mem_size, int(self._device.max_compute_units)
        self._buffers: dict[int, tuple[Any, int]] = {}
        self._spare: dict[int, list[Any]] | None = None  # freed buffers by size, while they are recycled
        self._loose = 1.0
        self._slabs: list[tuple[tuple[int, int, int], Any]] = []
        # Oclgrind 21.10 takes memory that it did not copy itself, and the part of a new buffer beyond the size of a
        # released one whose place it takes, for uninitialised: under it rows are copied and no buffer is released.
        self.simulated = self.info.platform == SIMULATOR
        self.unified = self.info.kind == "cpu" and not self.simulated
        self._zero: Kernel | None = None
        with context_lock:
            streams.add(self)

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
        """A stream of the same context and profile with a queue of its own, for one other thread: the device copies or
        computes for both at once. Buffers of either may be read by the other once the queue they are written in is
        finished.

        ``nbytes`` of this one's budget are the other's alone meanwhile. Raises ValueError where so much is not left.
        """
        self._make_room(nbytes)
        before, start = self.peak, self.limit - nbytes
        self.held = self.peak = self.held + nbytes
        with self._calling("no further queue"):
            queue = cl.CommandQueue(self._context, self._device)
        other = Stream(queue, self.limit, self.profile)
        other.held = other.peak = start  # all but its share is taken: its errors name the limit that a user knows
        other.reads = memory.all_kept()  # they were counted when room was made
        try:
            with other:
                yield other
        finally:
            self.held -= nbytes
            self.peak = max(before, self.peak - nbytes + other.peak - start)  # of both together, at most

    def reserve(self, nbytes: int) -> None:
        """Count ``nbytes`` of the budget as held, for what is made in :meth:`lent` or on the host; a negative number
        gives them back. Raises ValueError where so much is not left."""
        self._make_room(nbytes)
        self._hold(nbytes)

    @contextlib.contextmanager
    def lent(self, nbytes: int) -> Iterator[None]:
        """``nbytes`` that were reserved are free inside."""
        self.held -= nbytes
        try:
            yield
        finally:
            self.held += nbytes

    def give_slabs_back(self) -> None:
        """Return this stream's slabs to the pool."""
        with memory.pool_lock:
            for key, slab in self._slabs:
                memory.pool.setdefault(key, []).append(slab)
        self.held -= sum(key[2] for key, _slab in self._slabs)
        self._slabs.clear()

    def buffer(self, nbytes: int) -> Buffer:
        """An uninitialised buffer of at least so many bytes. Raises ValueError where the budget ends, DeviceError where
        the memory does."""
        nbytes = max(1, -(-int(nbytes) // 64)) * 64
        if spare := self._fitting(nbytes):
            size = min(spare)
            buffer = spare[size].pop()
            self._buffers[buffer.int_ptr] = buffer, size
            return buffer
        if self._spare and self.held + nbytes > self.limit:
            self._drop_spare()
        self._make_room(nbytes)
        if nbytes > self.largest:
            raise BufferSizeError(f"{self.info} allows buffers of {self.largest} bytes, {nbytes} are needed")
        nbytes = memory.roomy(nbytes, min(self.largest, (self.limit - self.held) // 16)) if self.unified else nbytes
        buffer = memory.spare.take(self._key(nbytes)) or self._made(nbytes)
        self._keep(buffer, nbytes)
        return buffer

    def _key(self, nbytes: int) -> tuple[int, int, int]:
        return os.getpid(), self._context.int_ptr, nbytes

    def _release(self, buffer: Buffer, nbytes: int) -> None:
        """To the process's pool or to the runtime."""
        if not (self.unified and memory.spare.put(self._key(nbytes), buffer)):
            with self.lock:
                buffer.release()

    def _made(self, nbytes: int) -> Buffer:
        """New memory; where it is the host's, a large one of huge pages: first touch is then some five times faster."""
        with self._calling(f"no memory for {nbytes} bytes"):
            huge = self.unified and nbytes >= memory.HUGE and memory.huge_pages(self._context, nbytes)
            return huge or cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

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

    def _keep(self, buffer: Buffer, nbytes: int) -> None:
        self._buffers[buffer.int_ptr] = buffer, nbytes
        self._hold(nbytes)

    def _hold(self, nbytes: int) -> None:
        self.held += nbytes
        self.peak = max(self.peak, self.held)

    def slab(self, nbytes: int) -> Buffer:
        """A large buffer from the process's pool, for this stream's life; see :func:`memory.release_memory`."""
        self._make_room(nbytes)
        key = self._key(nbytes)
        with memory.pool_lock:
            slabs = memory.pool.setdefault(key, [])
            buffer = slabs.pop(0) if slabs else None  # in the order they came: the first is the most touched
        if buffer is None and self.held + nbytes + memory.pooled() > self.limit:
            memory.released()  # slabs of other sizes
        buffer = buffer or self._made(nbytes)
        self._slabs.append((key, buffer))
        self._hold(nbytes)
        return buffer

    def free(self, *buffers: Buffer) -> None:
        """Give buffers back; those that may be kept once the work in the queue is done."""
        if self._spare is None:
            self._done_with(max((self._buffers[buffer.int_ptr][1] for buffer in buffers), default=0))
        for buffer in buffers:
            kept, nbytes = self._buffers.pop(buffer.int_ptr)
            if self._spare is not None and not self.simulated:
                self._spare.setdefault(nbytes, []).append(kept)
                continue
            self.held -= nbytes
            if self.simulated:
                memory.never_released.append(kept)
                continue
            self._release(kept, nbytes)

    @contextlib.contextmanager
    def recycling(self, loose: float = 1) -> Iterator[None]:
        """Buffers that are freed inside are taken again for others of their size, or ``loose`` times smaller, up to its
        end: new memory costs a CPU as much as a copy into it. They are counted as held meanwhile."""
        before, self._spare, self._loose = (self._spare, self._loose), {}, loose
        try:
            yield
        finally:
            self._drop_spare()
            self._spare, self._loose = before

    def _fitting(self, nbytes: int) -> dict[int, list[Any]]:
        """Freed buffers by size that are large enough, and not much larger."""
        most = max(self._loose * nbytes, memory.roomy(nbytes, self.largest))
        return {size: some for size, some in (self._spare or {}).items() if some and nbytes <= size <= most}

    def _done_with(self, nbytes: int) -> None:
        """Wait before a buffer of so many bytes goes: the runtime keeps memory of its own for what is in the queue, but
        not that of huge pages, and another queue may take what is kept. What failed is told by the next call."""
        if self.unified and nbytes >= memory.LEAST:
            with contextlib.suppress(DeviceError):
                self.finish()

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare or {}, {}
        self._done_with(max(spare, default=0))
        for nbytes, buffers in spare.items():
            self.held -= nbytes * len(buffers)
            for buffer in buffers:
                self._release(buffer, nbytes)

    def hand_over(self, buffers: Sequence[Buffer]) -> int:
        """Leave buffers to whoever keeps them from here on; how many bytes they are."""
        if self.simulated:
            memory.never_released.extend(buffers)
        return sum(self._buffers.pop(buffer.int_ptr)[1] for buffer in buffers)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """A buffer with a copy of ``array``."""
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            self.write(buffer, array)
        return buffer

    @contextlib.contextmanager
    def view(self, array: NDArray[Any]) -> Iterator[tuple[Buffer, int]]:
        """(buffer, items): ``array`` (contiguous) stands in the buffer from that item on, for reading by kernels.

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

    @contextlib.contextmanager
    def tentative(self) -> Iterator[None]:
        """Buffers that are made inside are freed where it ends in an error."""
        before = set(self._buffers)
        try:
            yield
        except BaseException:
            self._free_but(before)
            raise

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """Buffers that are made inside are freed where it ends."""
        before = set(self._buffers)
        try:
            yield
        finally:
            self._free_but(before)

    def _free_but(self, kept: set[int]) -> None:
        self.finish()
        self.free(*(buffer for key, (buffer, _) in list(self._buffers.items()) if key not in kept))

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.buffer(nbytes)
        self.clear(buffer, nbytes)
        return buffer

    def part(self, buffer: Buffer, first: int, nbytes: int) -> Buffer:
        """``nbytes``, in whole 64s, of a buffer from byte ``first`` on, aligned as devices want it (at most 512)."""
        with self._calling("a buffer has no such part"):
            return buffer.get_sub_region(first, -(-max(1, nbytes) // 64) * 64)

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Zero the first ``nbytes`` of a buffer, rounded up to 64 as buffers are."""
        if self._zero is None:
            pair = ("-DWIDE_PAIR",) if self.profile.wide == "pair" else ()
            self._zero = self.kernel(sources.cl("opencl/zero"), pair, "zero")
        if nbytes:
            self._zero((-(-int(nbytes) // 64),), None, buffer)

    def write(self, buffer: Buffer, array: NDArray[Any]) -> None:
        array = np.ascontiguousarray(array)
        if self.unified or self.simulated or array.nbytes < pinned.LEAST:
            self._copy(buffer, array)
            return
        with self._calling("a copy failed"):
            pinned.write(self._context, self._queue, buffer, array)

    def read(self, buffer: Buffer, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """A copy of the buffer's start (from ``offset`` bytes) on the host; waits for all work enqueued before.

        Raises KeyboardInterrupt where the work of this thread is to end (:func:`clsvm.threads.go_on`)."""
        go_on()
        array: NDArray[Any] = np.empty(shape, dtype)
        if array.nbytes:
            self._copy(array, buffer, src_offset=offset)
        return array

    @contextlib.contextmanager
    def mapped(self, buffer: Buffer, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[NDArray[Any]]:
        """The buffer's start on the host, to be read inside: in place where the device shares the host's memory."""
        if not self.unified:
            yield self.read(buffer, dtype, shape)
            return
        go_on()
        with self._calling("a copy failed"):
            array, _ = cl.enqueue_map_buffer(self._queue, buffer, cl.map_flags.READ, 0, shape, np.dtype(dtype))
        try:
            yield array
        finally:
            with self.lock:
                array.base.release(self._queue)

    def write_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """The rows of ``array`` (h, w), each without gaps, into rows of ``ld`` items of the buffer."""
        self._copy(buffer, memory.flat(array), **memory.in_rows(array, ld))

    def read_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """The same back: the first (h, w) items of rows of ``ld`` into ``array``."""
        self._copy(memory.flat(array), buffer, **memory.in_rows(array, ld))

    def wide(self, array: NDArray[np.float64]) -> Buffer:
        """A buffer with ``array`` as wide numbers (8 bytes each: doubles, or pairs of floats)."""
        return self.upload(self.as_wide(np.asarray(array, np.float64)))

    def write_wide(self, buffer: Buffer, array: NDArray[np.float64]) -> None:
        self.write(buffer, self.as_wide(array))

    def held_wide(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """``array`` as it comes back once it was on the device as wide numbers."""
        return array if self.profile.wide == "double" else self.as_wide(array).astype(np.float64).sum(axis=-1)

    def as_wide(self, array: NDArray[np.float64]) -> NDArray[Any]:
        """``array`` as wide numbers, on the host."""
        return array if self.profile.wide == "double" else memory.pairs(array)

    def read_wide(self, buffer: Buffer, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Wide numbers as float64 on the host."""
        dtype, pair = (np.float64, ()) if self.profile.wide == "double" else (np.float32, (2,))
        return self.narrow(self.read(buffer, dtype, (*((shape,) if isinstance(shape, int) else shape), *pair)))

    def narrow(self, wide: NDArray[Any]) -> NDArray[np.float64]:
        """Wide numbers as the device has them, as float64."""
        return wide if self.profile.wide == "double" else wide.astype(np.float64).sum(axis=-1)

    def flush(self) -> None:
        with self.lock:
            self._queue.flush()

    def finish(self) -> None:
        with self._calling("the work in its queue failed"):
            self._queue.finish()

    def _copy(self, to: Any, source: Any, **offset: Any) -> None:
        with self._calling("a copy failed"):
            cl.enqueue_copy(self._queue, to, source, is_blocking=True, **offset)

    @contextlib.contextmanager
    def _calling(self, words: str) -> Iterator[None]:
        """Calls of the runtime inside. Raises DeviceError that says so in ``words`` where one fails."""
        try:
            with self.lock:
                yield
        except cl.Error as error:
            raise memory.failed(self.info, words, error) from None

    def kernel(self, text: str, options: Sequence[str], name: str) -> Kernel:
        """A kernel object of the caller's own, from a program built once per context, text and options."""
        program = built(os.getpid(), self._context, self._device, text, tuple(options))
        return Kernel(self._queue, self.info, self.lock, program, name)

    def variant(self, variant: Any, name: str | None = None) -> Kernel:
        """The kernel of a clsvm.opencl.sources.Variant, or another one of its program."""
        return self.kernel(variant.text, variant.options, name or variant.entry)
