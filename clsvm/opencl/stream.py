"""Give one thread the use of one device: a command queue, kernels, and buffers within a memory limit.

:class:`Stream` allocates buffers, copies arrays to and from them, and makes kernels. :class:`JoinedArrays` and
:func:`join_arrays` put several arrays in one buffer. Other modules pass buffers to kernels and streams without reading
them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clsvm import system
from clsvm.errors import BufferSizeError, DeviceError, HostMemoryError, MemoryLimitError
from clsvm.opencl import memory, sources
from clsvm.opencl.contexts import SIMULATOR, Kernel, RuntimeCall, built, context_lock, queue_for, streams, thread_dict
from clsvm.opencl.devices import default_profile, find, handle
from clsvm.opencl.profiles import Profile
from clsvm.opencl.runtime import cl
from clsvm.threads import check_interrupt

Buffer = Any  # a pyopencl buffer, which other modules only pass on
# A large array is copied to a GPU through two pieces of pinned host memory, which a GPU reads at its bus's full rate.
# Several threads fill one piece of pinned memory while the device copies the other piece.
PIECE = 8 << 20  # bytes of one of the two pieces of pinned memory
COPY_THREADS = 4  # largest number of threads that fill a piece of pinned memory; at most half of the cores are used
LEAST_PINNED = 2 * PIECE  # arrays of at least this many bytes are copied through pinned memory
ALIGNMENT = 512  # arrays that share a buffer begin at multiples of 512 bytes, which every device allows


class Stream:
    """Give one thread the use of a device: a command queue, programs, and memory within a limit.

    Use it as a context manager. At the end of the context every buffer is released.

    Attributes
    ----------
    info
        record of the device (:class:`clsvm.opencl.devices.DeviceInfo`).
    lock
        lock that this stream holds during each of its calls of the OpenCL runtime.
    profile
        sizes of kernels and costs of operations for the device (:class:`clsvm.opencl.profiles.Profile`).
    largest
        largest size of a buffer, in bytes.
    limit
        memory limit of the stream in bytes.
    setting
        context, profile and memory_limit. A :class:`clsvm.opencl.memory.DeviceCache` returns its value only to streams
        with the setting of the stream that stored it.
    allocated
        bytes that the stream has allocated now.
    peak
        largest value that ``allocated`` has had.
    reads
        list of caches whose values this stream uses and counts in ``allocated``. The values outlive the stream.
    queue
        address of the OpenCL command queue.
    compute_units
        number of compute units of the device.
    local_memory
        bytes of local memory that a work-group can use.
    unified
        whether kernels read the host's memory without a copy.
    simulated
        whether the device is simulated by Oclgrind.
    """

    def __init__(self, spec: Any = None, memory_limit: int | str | None = None, profile: Profile | None = None) -> None:
        self.info, self.lock = find(spec), threading.RLock()
        self._device = handle(spec, self.info)
        with self._runtime_call("no context or queue"):
            self._queue, self._context = queue_for(spec, self._device)
        self.profile = profile or default_profile(self.info)
        self.largest = min(self._device.max_mem_alloc_size, int(os.environ.get("CLSVM_LARGEST_BUFFER", 2**62)))
        self.limit = memory.parse_bytes(memory_limit) or int(memory.MEMORY_SHARE * memory.free_memory(self._device))
        self.setting = self._context, self.profile, memory_limit
        self.allocated = self.peak = 0
        self.reads: list[memory.DeviceCache] = []
        self.queue, self.compute_units = int(self._queue.int_ptr), int(self._device.max_compute_units)
        self.local_memory = int(self._device.local_mem_size)
        self._buffers: dict[int, tuple[Any, int]] = {}
        self._slabs: list[tuple[memory.Key, Any]] = []
        self._spare: dict[int, list[Any]] | None = None  # size in bytes -> freed buffers; None outside of recycling()
        self._loose = 1.0
        # Oclgrind 21.10 wrongly reports host memory that kernels read in place as uninitialised, so arrays are copied.
        # Under Oclgrind no buffer is released: a new buffer in released memory would be reported as uninitialised.
        self.simulated = self.info.platform == SIMULATOR
        self.unified = self.info.kind == "cpu" and not self.simulated
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
            raise system.out_of_memory(error) from error

    @contextlib.contextmanager
    def second_stream(self, nbytes: int) -> Iterator[Stream]:
        """Yield a second stream on the same device for another thread, with a queue of its own.

        Both streams have the same OpenCL context and profile, and the device can work for both at once. A stream may
        read a buffer of the other stream after the queue that wrote the buffer is finished. Inside the ``with`` block
        the second stream can allocate ``nbytes`` bytes of this stream's memory limit. Raises MemoryLimitError if fewer
        bytes are free.
        """
        before, start = self.peak, self.limit - nbytes
        self.reserve(nbytes)
        self.peak = self.allocated
        with self._runtime_call("no further queue"):
            queue = cl.CommandQueue(self._context, self._device)
        other = Stream(queue, self.limit, self.profile)
        other.charge(start)  # leaves nbytes free; the limit itself stays, because error messages state it
        # A stream that needs memory empties caches outside its list ``reads``. The second stream must empty none.
        other.reads = memory.filled_caches()
        try:
            with other:
                yield other
        finally:
            self.allocated -= nbytes
            self.peak = max(before, self.peak - nbytes + other.peak - start)  # an upper bound for both streams

    def charge(self, nbytes: int) -> None:
        """Count ``nbytes`` more bytes as allocated. A negative number counts as freed."""
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)

    def reserve(self, nbytes: int) -> None:
        """Reserve ``nbytes`` bytes of the memory limit: count them as allocated from now on.

        Buffers that are made inside :meth:`unreserved` use reserved bytes. Bytes can also be reserved for
        arrays on the host. Raises MemoryLimitError if fewer bytes are free.
        """
        self._make_available(nbytes)
        self.charge(nbytes)

    @contextlib.contextmanager
    def unreserved(self, nbytes: int) -> Iterator[None]:
        """Inside a ``with`` block, let new buffers use ``nbytes`` of the bytes that :meth:`reserve` reserved."""
        self.allocated -= nbytes
        try:
            yield
        finally:
            self.allocated += nbytes

    def _make_available(self, nbytes: int) -> None:
        """Make ``nbytes`` bytes available within the memory limit.

        If necessary, release the pool of freed buffers, and then the values in caches that this stream does not use.
        Raises MemoryLimitError if the stream itself has allocated too much.
        """
        if self.allocated + nbytes > self.limit:
            raise MemoryLimitError(self.limit, self.allocated, nbytes)
        others = [cache for cache in memory.filled_caches() if cache not in self.reads] if memory.live_caches else []
        wanted = self.allocated + nbytes + sum(cache.nbytes for cache in others)
        if wanted + memory.spare.nbytes > self.limit:
            memory.spare.release()
        for cache in others if wanted > self.limit else []:
            cache.empty()

    def buffer(self, nbytes: int) -> Buffer:
        """Return an uninitialised buffer of at least ``nbytes`` bytes.

        Raises MemoryLimitError if the stream's limit would be exceeded, DeviceError if the device is out of memory.
        Raises BufferSizeError if the device does not allow a buffer of this size.
        """
        nbytes = max(1, -(-int(nbytes) // 64)) * 64
        if self._spare:
            most = max(self._loose * nbytes, memory.rounded_size(nbytes, self.largest))
            if fitting := [size for size, some in self._spare.items() if some and nbytes <= size <= most]:
                buffer = self._spare[min(fitting)].pop()
                self._buffers[buffer.int_ptr] = buffer, min(fitting)
                return buffer
            if self.allocated + nbytes > self.limit:
                self._drop_spare()
        self._make_available(nbytes)
        if nbytes > self.largest:
            raise BufferSizeError(f"{self.info} allows buffers of {self.largest} bytes, {nbytes} are needed")
        if self.unified:
            nbytes = memory.rounded_size(nbytes, min(self.largest, (self.limit - self.allocated) // 16))
        buffer = memory.spare.take(self._key(nbytes)) or self._made(nbytes)
        self._buffers[buffer.int_ptr] = buffer, nbytes
        self.charge(nbytes)
        return buffer

    def slab(self, nbytes: int) -> Buffer:
        """Return a slab: a large buffer for the row cache, from the process's pool of slabs or new.

        When the stream ends, it puts the slab into the pool.
        """
        self._make_available(nbytes)
        buffer = memory.slabs.take(self._key(nbytes))
        if buffer is None and self.allocated + nbytes + memory.pooled_bytes() > self.limit:
            memory.release_pools()  # makes room for a new slab, since no slab in the pools has this size
        buffer = buffer or self._made(nbytes)
        self._slabs.append((self._key(nbytes), buffer))
        self.charge(nbytes)
        return buffer

    def give_slabs_back(self) -> None:
        """Move this stream's slabs, large buffers for rows of K, to the process's pool of slabs.

        The slab that was allocated first is moved last, so the pool returns it first. Its memory is fast to access,
        because most of it has been used before.
        """
        while self._slabs:
            key, slab = self._slabs.pop()
            memory.slabs.put(key, slab)
            self.allocated -= key[1]

    def _key(self, nbytes: int) -> memory.Key:
        return self._context.int_ptr, nbytes

    def _made(self, nbytes: int) -> Buffer:
        """Return a new buffer of ``nbytes`` bytes.

        On a CPU a large buffer gets huge pages, which make the first access to its memory about five times faster.
        """
        with self._runtime_call(f"no memory for {nbytes} bytes"):
            huge = self.unified and nbytes >= memory.HUGE and memory.huge_pages(self._context, nbytes)
            return huge or cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def free(self, *buffers: Buffer) -> None:
        """Free buffers. First wait for queued work, if the buffers' memory could be reused before this work ends."""
        if self._spare is None:
            self._done_with(max((self._buffers[buffer.int_ptr][1] for buffer in buffers), default=0))
        for buffer in buffers:
            owned, nbytes = self._buffers.pop(buffer.int_ptr)
            if self._spare is not None and not self.simulated:
                self._spare.setdefault(nbytes, []).append(owned)
            else:
                self._release(owned, nbytes)

    def _release(self, buffer: Buffer, nbytes: int) -> None:
        """Move a buffer to the process's pool of freed buffers if its size allows it, else release it."""
        self.allocated -= nbytes
        if self.simulated:
            memory.never_released.append(buffer)
        elif self.unified and memory.MIN_POOLED <= nbytes <= memory.MAX_POOLED:
            memory.spare.put(self._key(nbytes), buffer, memory.POOL_BYTES)
        else:
            with self.lock:
                buffer.release()

    def _done_with(self, nbytes: int) -> None:
        """Wait for the queued work, if the memory of a freed buffer could be reused while that work still uses it.

        This is so for large buffers on a CPU. The pool may give the buffer to another queue, and huge pages return to
        the system at once. An error of the queued work is raised by a later call.

        nbytes: bytes of the buffer.
        """
        if self.unified and nbytes >= memory.MIN_POOLED:
            with contextlib.suppress(DeviceError):
                self.finish()

    @contextlib.contextmanager
    def recycling(self, loose: float = 1) -> Iterator[None]:
        """Inside a ``with`` block, reuse buffers that are freed in the block for new buffers.

        Reuse saves time, because on a CPU the first access to new memory costs as much as a copy. A reused buffer may
        be up to ``loose`` times as large as requested. Freed buffers count as allocated until the block ends.
        """
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

    def detach(self, buffers: Sequence[Buffer]) -> int:
        """Transfer buffers from the stream to the caller, who releases them. Return their total size in bytes."""
        if self.simulated:
            memory.never_released.extend(buffers)
        return sum(self._buffers.pop(buffer.int_ptr)[1] for buffer in buffers)

    @contextlib.contextmanager
    def scratch(self, always: bool = True) -> Iterator[None]:
        """At the end of a ``with`` block, free the buffers that were made inside it.

        If ``always`` is False, free them only if the block ends with an error.
        """
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
        """If a ``with`` block ends with an error, free the buffers that were made inside it."""
        return self.scratch(always=False)

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.buffer(nbytes)
        self.clear(buffer, nbytes)
        return buffer

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Set the first ``nbytes`` bytes of a buffer to zero.

        ``nbytes`` is rounded up to a multiple of 64, as sizes of buffers are.
        """
        if nbytes:
            self._zero((-(-int(nbytes) // 64),), None, buffer)

    @cached_property
    def _zero(self) -> Kernel:
        pair = ("-DWIDE_PAIR",) if self.profile.wide == "pair" else ()
        return self.kernel(sources.cl("opencl/zero"), pair, "zero")

    def part(self, buffer: Buffer, first: int, nbytes: int) -> Buffer:
        """Return the part of a buffer that begins at byte ``first`` and has ``nbytes`` bytes.

        ``nbytes`` is rounded up to a multiple of 64. ``first`` must be a multiple of the device's alignment.
        Multiples of ALIGNMENT suit every device.
        """
        with self._runtime_call("a buffer has no such part"):
            return buffer.get_sub_region(first, -(-max(1, nbytes) // 64) * 64)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """Return a buffer with a copy of ``array``."""
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            self.write(buffer, array)
        return buffer

    @contextlib.contextmanager
    def view(self, array: NDArray[Any]) -> Iterator[tuple[Buffer, int]]:
        """Yield a buffer that holds the contiguous ``array``, and the index of the array's first item in the buffer.

        The array is not copied if the device shares the host's memory. Kernels must not read items of the buffer before
        the array's first item, because that memory does not belong to the array.
        """
        if not (array.nbytes and self.unified and array.flags.aligned):
            buffer = self.upload(array)
            yield buffer, 0
            self.finish()
            self.free(buffer)
            return
        with self._runtime_call("no buffer for an array in place"):
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
            with self._runtime_call("a copy failed"):
                self._write_pinned(buffer, array.reshape(-1).view(np.uint8))

    def _write_pinned(self, buffer: Buffer, array: NDArray[np.uint8]) -> None:
        """Copy bytes to the start of a buffer through pinned memory, and wait until the copy is done."""
        pieces = self._pinned()
        events: list[Any] = [None] * len(pieces)
        fillers = max(1, min(COPY_THREADS, (os.cpu_count() or 1) // 2))
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
        """Return this thread's two pieces of pinned host memory, as arrays of PIECE bytes.

        The thread keeps them until its OpenCL context changes. They do not count for memory_limit.
        """
        made = thread_dict("pinned")
        if (self._context, PIECE) not in made:
            made.clear()
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
            buffers = [cl.Buffer(self._context, flags, PIECE) for _ in range(2)]
            asked = cl.map_flags.WRITE, 0, (PIECE,), np.dtype(np.uint8)
            mapped = [cl.enqueue_map_buffer(self._queue, one, *asked)[0] for one in buffers]
            made[self._context, PIECE] = buffers, mapped
        return made[self._context, PIECE][1]

    def read(self, buffer: Buffer, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Return an array with a copy of the buffer's content from byte ``offset`` on, after all queued work is done.

        Raises KeyboardInterrupt if this thread is asked to end (:func:`clsvm.threads.check_interrupt`).
        """
        check_interrupt()
        array: NDArray[Any] = np.empty(shape, dtype)
        if array.nbytes:
            self._copy(array, buffer, src_offset=offset)
        return array

    def write_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy ``array`` (h, w) to the first w items of the first h rows of the buffer, whose rows have ``ld`` items.

        Each row of the array must be contiguous.
        """
        flat, places = memory.in_rows(array, ld)
        self._copy(buffer, flat, **places)

    def read_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy the first w items of the first h rows of the buffer to ``array`` (h, w).

        The rows of the buffer have ``ld`` items.
        """
        flat, places = memory.in_rows(array, ld)
        self._copy(flat, buffer, **places)

    def wide(self, array: NDArray[np.float64]) -> Buffer:
        """Return a buffer with ``array`` in the wide type of the device: double, or pair of float32."""
        return self.upload(self.as_wide(np.asarray(array, np.float64)))

    def write_wide(self, buffer: Buffer, array: NDArray[np.float64]) -> None:
        self.write(buffer, self.as_wide(array))

    def as_wide(self, array: NDArray[np.float64]) -> NDArray[Any]:
        """Return ``array`` on the host in the wide type of the device: as float64, or as pairs (..., 2) of float32."""
        return array if self.profile.wide == "double" else memory.pairs(array)

    def narrow(self, wide: NDArray[Any]) -> NDArray[np.float64]:
        """Convert an array in the wide type of the device, doubles or pairs of float32, to float64."""
        return wide if self.profile.wide == "double" else wide.astype(np.float64).sum(axis=-1)

    def round_wide(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Round ``array`` to the wide type of the device, double or pair of float32, and return it as float64."""
        return self.narrow(self.as_wide(array))

    def read_wide(self, buffer: Buffer, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return in float64 the numbers of a buffer in the device's wide type, double or pair of float32."""
        shape = (shape,) if isinstance(shape, int) else shape
        double = self.profile.wide == "double"
        return self.narrow(self.read(buffer, np.float64 if double else np.float32, shape if double else (*shape, 2)))

    def flush(self) -> None:
        with self.lock:
            self._queue.flush()

    def finish(self) -> None:
        with self._runtime_call("the work in its queue failed"):
            self._queue.finish()

    def _copy(self, to: Any, source: Any, **places: Any) -> None:
        with self._runtime_call("a copy failed"):
            cl.enqueue_copy(self._queue, to, source, is_blocking=True, **places)

    def _runtime_call(self, words: str) -> RuntimeCall:
        return RuntimeCall(self.info, self.lock, words)

    def kernel(self, text: str, options: Sequence[str], name: str) -> Kernel:
        """Return the kernel ``name`` of the program with this source text and these compiler options.

        The program is built once for each context.
        """
        program = built(os.getpid(), self._context, self._device, text, tuple(options))
        return Kernel(self._queue, self.info, self.lock, program, name)

    def variant(self, variant: sources.Variant, name: str | None = None) -> Kernel:
        """Return the kernel ``name`` of the program that ``variant`` describes, by default ``variant.entry``."""
        return self.kernel(variant.text, variant.options, name or variant.entry)


class JoinedArrays(NamedTuple):
    """Hold several arrays in one device buffer, so that one copy writes or reads all of them.

    Under the simulator Oclgrind each array has a separate buffer, because Oclgrind reports copies to a part of a buffer
    as uninitialised.

    Attributes
    ----------
    buffer
        the whole buffer.
    each
        list of sub-buffers, one for each array.
    starts
        position in bytes of each array in the buffer, followed by the size of the whole buffer in bytes.
    arrays
        host arrays with the shapes and dtypes of the arrays in the buffer.
    """

    buffer: Buffer
    each: list[Buffer]
    starts: list[int]
    arrays: Sequence[NDArray[Any]]

    def write(self, stream: Stream, arrays: Sequence[NDArray[Any]]) -> None:
        """Replace the arrays in the buffer by copies of ``arrays``, which have the same shapes and dtypes."""
        if not stream.simulated:
            stream.write(self.buffer, _whole(arrays, self.starts))
            return
        for part, array in zip(self.each, arrays, strict=True):
            stream.write(part, array)

    def read(self, stream: Stream) -> list[NDArray[Any]]:
        """Return copies of all arrays in the buffer, after the queued work is done."""
        if stream.simulated:
            return [stream.read(part, one.dtype, one.shape) for part, one in zip(self.each, self.arrays, strict=True)]
        whole = stream.read(self.buffer, np.uint8, self.starts[-1])
        places = zip(self.arrays, self.starts, strict=False)
        return [whole[first : first + one.nbytes].view(one.dtype).reshape(one.shape) for one, first in places]


def join_arrays(stream: Stream, arrays: Sequence[NDArray[Any]]) -> JoinedArrays:
    """Copy several arrays to one new device buffer, and return the :class:`JoinedArrays` of this buffer.

    Making one buffer takes less time than making a buffer for each array.
    """
    starts = np.cumsum([0, *(-(-max(1, array.nbytes) // ALIGNMENT) * ALIGNMENT for array in arrays)]).tolist()
    if stream.simulated:
        separate = [stream.upload(array) for array in arrays]
        return JoinedArrays(separate[0], separate, starts, arrays)
    buffer = stream.upload(_whole(arrays, starts))
    each = [stream.part(buffer, first, one.nbytes) for one, first in zip(arrays, starts, strict=False)]
    return JoinedArrays(buffer, each, starts, arrays)


def _whole(arrays: Sequence[NDArray[Any]], starts: Sequence[int]) -> NDArray[np.uint8]:
    """Join ``arrays`` to one array of bytes. ``starts`` has each array's offset in bytes, and then the total size."""
    whole = np.zeros(starts[-1], np.uint8)
    for array, first in zip(arrays, starts, strict=False):
        whole[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return whole
