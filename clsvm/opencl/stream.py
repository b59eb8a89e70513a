"""Give one thread the use of one device: a command queue, OpenCL kernels, and buffers within a memory limit.

:class:`Stream` allocates buffers, copies arrays to and from them, and makes objects that launch OpenCL kernels.
:class:`JoinedArrays` and :func:`join_arrays` put several arrays in one buffer. Other modules only pass buffers on, to
streams and kernels.
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

Buffer = Any  # a pyopencl buffer; other modules only pass buffers on to streams and OpenCL kernels
# Arrays are copied to a GPU by way of two pieces of pinned memory: threads fill one while the GPU reads the other.
PIECE = 8 << 20  # bytes of each of the two pieces of pinned host memory
COPY_THREADS = 4  # at most this many threads, and at most half of the cores, fill a piece of pinned host memory
LEAST_PINNED = 2 * PIECE  # arrays of at least this many bytes are copied to a GPU through pinned host memory
ALIGNMENT = 512  # arrays that share a buffer begin at multiples of 512 bytes, which every device allows


class Stream:
    """Give one thread the use of a device: a command queue, OpenCL programs, and memory within a limit.

    Use a stream in a ``with`` block. At the end of the block all its buffers are released.

    Attributes
    ----------
    info
        record of the device (:class:`clsvm.opencl.devices.DeviceInfo`).
    lock
        lock that the stream holds while it calls the OpenCL runtime.
    profile
        work sizes of OpenCL kernels and costs of operations on the device (:class:`clsvm.opencl.profiles.Profile`).
    largest
        size in bytes of the largest buffer that the device allows.
    limit
        memory limit of the stream in bytes.
    setting
        tuple of OpenCL context, profile and memory_limit. A :class:`clsvm.opencl.memory.DeviceCache` returns a value
        only to streams that have the same setting as the stream that stored the value.
    allocated
        number of bytes that the stream has allocated or reserved at present.
    peak
        largest value that ``allocated`` has had.
    reads
        list of caches (:class:`clsvm.opencl.memory.DeviceCache`) with values that the stream may be using. If the
        stream lacks memory, it does not empty these caches. The values stay on the device after the stream ends.
    queue
        address of the OpenCL command queue, as a number.
    compute_units
        number of compute units of the device.
    local_memory
        bytes of local memory that a work-group can use.
    unified
        whether OpenCL kernels read the host's memory without a copy.
    simulated
        whether Oclgrind, an OpenCL simulator, simulates the device.
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
        self._spare: dict[int, list[Any]] | None = None  # freed buffers by size in bytes; None outside of recycling()
        self._loose = 1.0
        # Oclgrind reports host memory and reused memory as uninitialised. So copy arrays and reuse no buffer.
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
        """Yield a second stream on the same device for another thread, with a command queue of its own.

        Both streams have the same OpenCL context and profile, and the device can work for both at once. A stream may
        read a buffer of the other stream after the queue that wrote the buffer is finished. Inside the ``with`` block
        the second stream can allocate ``nbytes`` bytes, which count for the memory limit of the first stream. Raises
        MemoryLimitError if the first stream has fewer bytes left.
        """
        before, start = self.peak, self.limit - nbytes
        self.reserve(nbytes)
        self.peak = self.allocated
        with self._runtime_call("no further queue"):
            queue = cl.CommandQueue(self._context, self._device)
        other = Stream(queue, self.limit, self.profile)
        # Both streams have the same memory limit, in bytes, so that error messages of both streams name the same limit.
        # Count all of this limit except ``nbytes`` bytes as allocated already, so that ``nbytes`` bytes remain free.
        other.charge(start)
        # List all caches in ``reads``, because a stream that lacks memory empties the caches that are not in ``reads``.
        other.reads = memory.filled_caches()
        try:
            with other:
                yield other
        finally:
            self.allocated -= nbytes
            # The two streams may reach their peaks at different times. The sum of the two peaks is an upper bound of
            # the largest number of bytes that both streams together have allocated at a time.
            self.peak = max(before, self.peak - nbytes + other.peak - start)

    def charge(self, nbytes: int) -> None:
        """Add ``nbytes`` to the number of allocated bytes. A negative ``nbytes`` counts bytes as freed."""
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)

    def reserve(self, nbytes: int) -> None:
        """Reserve ``nbytes`` bytes of the stream's memory limit: count the bytes as allocated from now on.

        The bytes are reserved for arrays on the host, or for buffers that are made later. A new buffer itself counts as
        allocated. So make these buffers in a block ``with stream.unreserved(nbytes)``, in which the reserved bytes do
        not count. Otherwise the buffers' bytes would count twice.

        Raises MemoryLimitError if less than ``nbytes`` bytes of the memory limit are left.
        """
        self._make_available(nbytes)
        self.charge(nbytes)

    @contextlib.contextmanager
    def unreserved(self, nbytes: int) -> Iterator[None]:
        """Inside a ``with`` block, let new buffers use ``nbytes`` bytes that :meth:`reserve` reserved before."""
        self.allocated -= nbytes
        try:
            yield
        finally:
            self.allocated += nbytes

    def _make_available(self, nbytes: int) -> None:
        """Make sure that ``nbytes`` more bytes can be allocated within the memory limit.

        If necessary, release the freed buffers that the process keeps for reuse. If that is not enough, empty the
        caches of fitted models whose values this stream does not use. Raises MemoryLimitError if the stream's own
        buffers leave fewer than ``nbytes`` bytes.
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
        """Return a buffer of at least ``nbytes`` bytes, whose content is undefined.

        Raises MemoryLimitError if the stream's memory limit would be exceeded, and DeviceError if the device is out of
        memory. Raises BufferSizeError if the device allows no buffer of this size.
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
        """Return a slab, a large buffer for cached rows of the kernel matrix.

        The slab comes from the process's pool of slabs, or is new if the pool has none of this size. When the stream
        ends, it puts the slab into the pool.
        """
        self._make_available(nbytes)
        buffer = memory.slabs.take(self._key(nbytes))
        if buffer is None and self.allocated + nbytes + memory.pooled_bytes() > self.limit:
            memory.release_pools()  # no pooled buffer has this size, and a new one needs the memory of the pools
        buffer = buffer or self._made(nbytes)
        self._slabs.append((self._key(nbytes), buffer))
        self.charge(nbytes)
        return buffer

    def give_slabs_back(self) -> None:
        """Move this stream's slabs to the process's pool. A slab is a large buffer for rows of the kernel matrix.

        The pool hands out slabs last in, first out. The slab that this stream allocated first is put in last, so that
        a later stream gets it first. Most memory of this slab has been used before, and memory that has been used
        before is faster to access than new memory.
        """
        while self._slabs:
            key, slab = self._slabs.pop()
            memory.slabs.put(key, slab)
            self.allocated -= key[1]

    def _key(self, nbytes: int) -> memory.Key:
        return self._context.int_ptr, nbytes

    def _made(self, nbytes: int) -> Buffer:
        """Allocate a buffer of ``nbytes`` bytes.

        On a CPU a large buffer gets huge pages, which make the first access to its memory about five times faster.
        """
        with self._runtime_call(f"no memory for {nbytes} bytes"):
            huge = self.unified and nbytes >= memory.HUGE and memory.huge_pages(self._context, nbytes)
            return huge or cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def free(self, *buffers: Buffer) -> None:
        """Free ``buffers``. If their memory could be reused before the queued work ends, first wait for this work."""
        if self._spare is None:
            self._done_with(max((self._buffers[buffer.int_ptr][1] for buffer in buffers), default=0))
        for buffer in buffers:
            owned, nbytes = self._buffers.pop(buffer.int_ptr)
            if self._spare is not None and not self.simulated:
                self._spare.setdefault(nbytes, []).append(owned)
            else:
                self._release(owned, nbytes)

    def _release(self, buffer: Buffer, nbytes: int) -> None:
        """Release a buffer of ``nbytes`` bytes, or keep it in memory. Either way, it no longer counts in ``allocated``.

        On a CPU, a buffer of 64 KB to 128 MB is kept in the process's pool of freed buffers, for later use. Under the
        simulator Oclgrind, every buffer stays in memory until the process ends. All other buffers are released.
        """
        self.allocated -= nbytes
        if self.simulated:
            memory.never_released.append(buffer)
        elif self.unified and memory.MIN_POOLED <= nbytes <= memory.MAX_POOLED:
            memory.spare.put(self._key(nbytes), buffer, memory.POOL_BYTES)
        else:
            with self.lock:
                buffer.release()

    def _done_with(self, nbytes: int) -> None:
        """Wait for queued work if this is necessary before a buffer of ``nbytes`` bytes is freed.

        It is necessary for a buffer of 64 KB or more on a CPU. After such a buffer is freed, its memory may be given to
        another queue, or may return to the system, although queued work still uses the memory. If the queued work
        fails, this method raises no error. A later call of the stream raises the error.
        """
        if self.unified and nbytes >= memory.MIN_POOLED:
            with contextlib.suppress(DeviceError):
                self.finish()

    @contextlib.contextmanager
    def recycling(self, loose: float = 1) -> Iterator[None]:
        """Inside a ``with`` block, reuse the buffers that are freed in the block when new ones are requested.

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
        """Hand ``buffers`` over to the caller: the stream no longer frees them. Return their total size in bytes.

        The bytes still count as allocated by the stream.
        """
        if self.simulated:
            memory.never_released.extend(buffers)
        return sum(self._buffers.pop(buffer.int_ptr)[1] for buffer in buffers)

    @contextlib.contextmanager
    def scratch(self, always: bool = True) -> Iterator[None]:
        """At the end of a ``with`` block, free all buffers that were made in the block.

        If ``always`` is False, free the buffers only if the block ends with an error.
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
        """If a ``with`` block ends with an error, free all buffers that were made in the block."""
        return self.scratch(always=False)

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.buffer(nbytes)
        self.clear(buffer, nbytes)
        return buffer

    def clear(self, buffer: Buffer, nbytes: int) -> None:
        """Set the first ``nbytes`` bytes of a buffer to zero.

        ``nbytes`` is rounded up to a multiple of 64. Every buffer that :meth:`buffer` made has a multiple of 64 bytes.
        """
        if nbytes:
            self._zero((-(-int(nbytes) // 64),), None, buffer)

    @cached_property
    def _zero(self) -> Kernel:
        pair = ("-DWIDE_PAIR",) if self.profile.wide == "pair" else ()
        return self.kernel(sources.cl("opencl/zero"), pair, "zero")

    def part(self, buffer: Buffer, first: int, nbytes: int) -> Buffer:
        """Return an OpenCL sub-buffer: the part of a buffer that begins at byte ``first`` and has ``nbytes`` bytes.

        ``nbytes`` is rounded up to a multiple of 64. ``first`` must be a multiple of the device's alignment. A
        multiple of ALIGNMENT (512 bytes) suits every device.
        """
        with self._runtime_call("a buffer has no such part"):
            return buffer.get_sub_region(first, -(-max(1, nbytes) // 64) * 64)

    def upload(self, array: NDArray[Any]) -> Buffer:
        """Return a new buffer with a copy of ``array``."""
        buffer = self.buffer(array.nbytes)
        if array.nbytes:
            self.write(buffer, array)
        return buffer

    @contextlib.contextmanager
    def view(self, array: NDArray[Any]) -> Iterator[tuple[Buffer, int]]:
        """Yield a buffer that holds the contiguous ``array``, and the index of the array's first item in the buffer.

        If the device is a CPU, the array is usually not copied. Items of the buffer before the array's first item do
        not belong to the array, and kernels must not read them.
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
        """Copy an array of bytes to the start of a buffer through two pieces of pinned host memory.

        The method returns after the copy is done.
        """
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
        """Return this thread's two pieces of pinned host memory, as two arrays of PIECE bytes.

        The thread keeps the two pieces for later copies. If a stream with another OpenCL context copies an array in
        this thread, two new pieces replace the old ones. The pieces do not count for memory_limit.
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
        """Wait for all queued work, and return a copy of the buffer's content from byte ``offset`` on as an array.

        Raises KeyboardInterrupt if this thread was asked to end (:func:`clsvm.threads.check_interrupt`).
        """
        check_interrupt()
        array: NDArray[Any] = np.empty(shape, dtype)
        if array.nbytes:
            self._copy(array, buffer, src_offset=offset)
        return array

    def write_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy ``array`` (h, w) to the first h rows of a buffer, into the first w of the ``ld`` items of each row.

        Each row of the array must be contiguous.
        """
        flat, places = memory.in_rows(array, ld)
        self._copy(buffer, flat, **places)

    def read_rows(self, buffer: Buffer, array: NDArray[Any], ld: int) -> None:
        """Copy the first h rows of a buffer to ``array`` (h, w): the first w of the ``ld`` items of each row.

        Each row of the array must be contiguous.
        """
        flat, places = memory.in_rows(array, ld)
        self._copy(flat, buffer, **places)

    def wide(self, array: NDArray[np.float64]) -> Buffer:
        """Return a new buffer with a copy of ``array`` in the wide type of the device.

        The wide type is double, or on a device without double precision a pair of float32 numbers.
        """
        return self.upload(self.as_wide(np.asarray(array, np.float64)))

    def write_wide(self, buffer: Buffer, array: NDArray[np.float64]) -> None:
        self.write(buffer, self.as_wide(array))

    def as_wide(self, array: NDArray[np.float64]) -> NDArray[Any]:
        """Convert ``array`` on the host to the wide type of the device: float64, or pairs of float32 numbers.

        Pairs are for devices without double precision. An array of pairs has one more axis, of length 2.
        """
        return array if self.profile.wide == "double" else memory.pairs(array)

    def narrow(self, wide: NDArray[Any]) -> NDArray[np.float64]:
        """Convert an array on the host from the wide type of the device, double or pairs of float32, to float64."""
        return wide if self.profile.wide == "double" else wide.astype(np.float64).sum(axis=-1)

    def round_wide(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Round ``array`` to the wide type of the device, double or pairs of float32. Return the values in float64."""
        return self.narrow(self.as_wide(array))

    def read_wide(self, buffer: Buffer, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return the numbers in ``buffer`` as a float64 array. The buffer has doubles, or pairs of float32 numbers.

        Pairs are for devices without double precision.
        """
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
        """Return the OpenCL kernel ``name`` of the program with this source text and these compiler options.

        The program is built only once for each OpenCL context.
        """
        program = built(os.getpid(), self._context, self._device, text, tuple(options))
        return Kernel(self._queue, self.info, self.lock, program, name)

    def variant(self, variant: sources.Variant, name: str | None = None) -> Kernel:
        """Return the kernel ``name`` of the OpenCL program that ``variant`` describes. The default is variant.entry."""
        return self.kernel(variant.text, variant.options, name or variant.entry)


class JoinedArrays(NamedTuple):
    """Hold several arrays in one device buffer, so that one copy writes or reads all of them.

    Under the simulator Oclgrind each array has a buffer of its own. Otherwise Oclgrind would report data that is copied
    to a part of a buffer as uninitialised.

    Attributes
    ----------
    buffer
        the whole buffer.
    each
        list of sub-buffers, one for each array.
    starts
        position in bytes of each array in the buffer, followed by the size of the whole buffer in bytes.
    arrays
        arrays on the host that have the shapes and dtypes of the arrays in the buffer.
    """

    buffer: Buffer
    each: list[Buffer]
    starts: list[int]
    arrays: Sequence[NDArray[Any]]

    def write(self, stream: Stream, arrays: Sequence[NDArray[Any]]) -> None:
        """Copy ``arrays`` to the buffer, in place of the arrays there. Shapes and dtypes must be the same."""
        if not stream.simulated:
            stream.write(self.buffer, _whole(arrays, self.starts))
            return
        for part, array in zip(self.each, arrays, strict=True):
            stream.write(part, array)

    def read(self, stream: Stream) -> list[NDArray[Any]]:
        """Wait for the queued work of ``stream``, and return copies of all arrays in the buffer."""
        if stream.simulated:
            return [stream.read(part, one.dtype, one.shape) for part, one in zip(self.each, self.arrays, strict=True)]
        whole = stream.read(self.buffer, np.uint8, self.starts[-1])
        places = zip(self.arrays, self.starts, strict=False)
        return [whole[first : first + one.nbytes].view(one.dtype).reshape(one.shape) for one, first in places]


def join_arrays(stream: Stream, arrays: Sequence[NDArray[Any]]) -> JoinedArrays:
    """Copy several arrays to one new device buffer, and return a :class:`JoinedArrays` that describes the buffer.

    To make one buffer takes less time than to make a buffer for each array.
    """
    starts = np.cumsum([0, *(-(-max(1, array.nbytes) // ALIGNMENT) * ALIGNMENT for array in arrays)]).tolist()
    if stream.simulated:
        separate = [stream.upload(array) for array in arrays]
        return JoinedArrays(separate[0], separate, starts, arrays)
    buffer = stream.upload(_whole(arrays, starts))
    each = [stream.part(buffer, first, one.nbytes) for one, first in zip(arrays, starts, strict=False)]
    return JoinedArrays(buffer, each, starts, arrays)


def _whole(arrays: Sequence[NDArray[Any]], starts: Sequence[int]) -> NDArray[np.uint8]:
    """Join ``arrays`` into one array of bytes.

    ``starts`` has the offset of each array in bytes, followed by the size of the joined array.
    """
    whole = np.zeros(starts[-1], np.uint8)
    for array, first in zip(arrays, starts, strict=False):
        whole[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return whole
