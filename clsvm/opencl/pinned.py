"""Large arrays on their way to a device with memory of its own: through pinned memory, a piece after the other.

A device reads pinned memory at the rate of its bus, and by itself. Two pieces take turns: the host fills one of them
while the device copies the other. From memory that is not pinned the driver does as much, at a half to a quarter of
the rate (NVIDIA, OpenCL Best Practices Guide, section 3.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clsvm.opencl.contexts import of_thread
from clsvm.opencl.runtime import cl

PIECE = 8 << 20  # bytes
LEAST = 2 * PIECE  # of an array that goes this way


def write(context: cl.Context, queue: cl.CommandQueue, to: cl.Buffer, array: NDArray[Any]) -> None:
    """Copies ``array``, which is contiguous, to the start of a buffer, and waits until it is there."""
    pieces, flat = _pieces(context, queue), array.reshape(-1).view(np.uint8)
    events: list[cl.Event | None] = [None] * len(pieces)
    for number, first in enumerate(range(0, flat.size, PIECE)):
        turn, some = number % len(pieces), flat[first : first + PIECE]
        if (busy := events[turn]) is not None:
            busy.wait()
        piece = pieces[turn][: some.size]
        np.copyto(piece, some)
        events[turn] = cl.enqueue_copy(queue, to, piece, dst_offset=first, is_blocking=False)
        queue.flush()
    for event in filter(None, events):
        event.wait()


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
