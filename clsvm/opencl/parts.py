"""Several arrays in one buffer of a device: one copy to it, or from it, takes them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clsvm.opencl.stream import Buffer, Stream

APART = 512  # bytes, of which the first of a part of a buffer is a multiple: devices want no more


class Parts(NamedTuple):
    """A buffer, the part of it that each array is, and where these begin, with arrays like them."""

    buffer: Buffer
    each: list[Buffer]
    starts: list[int]
    arrays: Sequence[NDArray[Any]]

    def write(self, stream: Stream, arrays: Sequence[NDArray[Any]]) -> None:
        """Write others like them in their place."""
        if stream.simulated:
            for part, array in zip(self.each, arrays, strict=True):
                stream.write(part, array)
        else:
            stream.write(self.buffer, _whole(arrays, self.starts))

    def read(self, stream: Stream) -> list[NDArray[Any]]:
        """Return copies of all of them, once the work enqueued before is done."""
        if stream.simulated:
            return [
                stream.read(part, like.dtype, like.shape) for part, like in zip(self.each, self.arrays, strict=True)
            ]
        whole = stream.read(self.buffer, np.uint8, self.starts[-1])
        return [
            whole[first : first + like.nbytes].view(like.dtype).reshape(like.shape)
            for like, first in zip(self.arrays, self.starts, strict=False)
        ]


def together(stream: Stream, arrays: Sequence[NDArray[Any]]) -> Parts:
    """Return copies of some arrays: a buffer of its own for each takes a CPU longer than many of these copies."""
    starts = np.cumsum([0, *(-(-max(1, array.nbytes) // APART) * APART for array in arrays)]).tolist()
    if stream.simulated:  # (Oclgrind takes what is copied to a part of a buffer for uninitialised: one for each)
        alone = [stream.upload(array) for array in arrays]
        return Parts(alone[0], alone, starts, arrays)
    buffer = stream.upload(_whole(arrays, starts))
    each = [stream.part(buffer, first, one.nbytes) for one, first in zip(arrays, starts, strict=False)]
    return Parts(buffer, each, starts, arrays)


def _whole(arrays: Sequence[NDArray[Any]], starts: Sequence[int]) -> NDArray[np.uint8]:
    """Return the bytes of a buffer in which they begin there."""
    whole = np.zeros(starts[-1], np.uint8)
    for array, first in zip(arrays, starts, strict=False):
        whole[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return whole
