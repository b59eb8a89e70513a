"""Large arrays on their way to a device with memory of its own: through pinned memory, a piece after the other.

A device reads pinned memory at the rate of its bus, and by itself. Two pieces take turns: the host fills one of them
while the device copies the other, by several threads: one copied 7 GB/s beside an H100, whose bus has 52. From memory
that is not pinned the driver does as much, at a half to a quarter of the rate (NVIDIA, OpenCL Best Practices Guide,
section 3.1).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.opencl.contexts import of_thread
from clsvm.opencl.runtime import cl

PIECE = 8 << 20  # bytes
FILLERS = 4  # threads that fill a piece, of half as many cores at most
LEAST = 2 * PIECE  # of an array that goes this way


def write(context: cl.Context, queue: cl.CommandQueue, to: cl.Buffer, array: NDArray[Any]) -> None:
    """Copies ``array``, which is contiguous, to the start of a buffer, and waits until it is there."""
    pieces, flat = _pieces(context, queue), array.reshape(-1).view(np.uint8)
    events: list[cl.Event | None] = [None] * len(pieces)
    fillers = max(1, min(FILLERS, cores() // 2))
    with ThreadPoolExecutor(fillers, "clsvm copies") if fillers > 1 else nullcontext() as pool:
        apply: Callable[..., Any] = pool.map if pool else map
        for number, first in enumerate(range(0, flat.size, PIECE)):
            turn, some = number % len(pieces), flat[first : first + PIECE]
            if (busy := events[turn]) is not None:
                busy.wait()
            piece = pieces[turn][: some.size]
            list(apply(np.copyto, np.array_split(piece, fillers), np.array_split(some, fillers)))
            events[turn] = cl.enqueue_copy(queue, to, piece, dst_offset=first, is_blocking=False)
            queue.flush()
    for event in filter(None, events):
        event.wait()


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pieces(context: cl.Context, queue: cl.CommandQueue) -> list[NDArray[np.uint8]]:
    """This thread's, of the context that it used last: beyond any memory_limit, since they are the host's."""
    made = of_thread("pinned")
    if (context, PIECE) not in made:
        made.clear()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffers = [cl.Buffer(context, flags, PIECE) for _ in range(2)]
        asked = cl.map_flags.WRITE, 0, (PIECE,), np.dtype(np.uint8)
        made[context, PIECE] = buffers, [cl.enqueue_map_buffer(queue, one, *asked)[0] for one in buffers]
    pieces: list[NDArray[np.uint8]] = made[context, PIECE][1]
    return pieces
