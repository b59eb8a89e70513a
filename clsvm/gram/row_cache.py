"""The row cache: rows of the kernel matrix kept on the device, by position, shared by all problems.

A ring of slots in up to SLABS equal slabs; slabs are taken one after another as rows come, from a pool that outlives
the fit. What is kept and what leaves is decided on the device (cl_kernels/solvers/rowcache.cl); the host only makes
room.
"""

from __future__ import annotations

import numpy as np

from clsvm.errors import DeviceError
from clsvm.opencl.stream import Buffer, Stream

SLABS = 8


class RowCache:
    """Room for rows of ``ld`` values of ``itemsize`` bytes within ``limit`` bytes; capacity 0 where that is too little.

    entries: rows that one step can ask for at most (the ring has to hold that many).
    """

    def __init__(self, stream: Stream, ld: int, itemsize: int, limit: int, entries: int) -> None:
        self._stream, self.ld = stream, ld
        row = ld * itemsize
        # powers of two, so that a later fit finds slabs of its size in the pool; no more than all rows of K. (A memory
        # of its own is large: eighths of them.)
        all_rows = 1 << (-(-ld // SLABS) * row - 1).bit_length()
        most = max(limit // SLABS, 1)
        unit = 1 << max(0, most.bit_length() - (1 if stream.unified else 4))
        self.slab_bytes = min(all_rows, max(1, most // unit) * unit, stream.largest)
        self.slab_rows = self.slab_bytes // row
        self._entries = entries
        self._slabs: list[Buffer] = []
        self._most = SLABS if self.slab_rows * SLABS >= entries and limit > 0 else 0
        self.slot_of = stream.upload(np.full(ld, -1, np.int32))
        rows = max(1, self.slab_rows * self._most)
        self.owner = stream.upload(np.full(rows, -1, np.int32))
        while self._most and self.capacity < entries:
            if not self._grow():  # no ring at all rather than one that a single step would overrun
                stream.give_slabs_back()
                self._slabs.clear()
                self._most = 0

    @property
    def capacity(self) -> int:
        """Slots of the ring as it is now."""
        return self.slab_rows * len(self._slabs)

    @property
    def most(self) -> int:
        """Slots that the ring may grow to."""
        return self.slab_rows * self._most

    @property
    def slabs(self) -> tuple[Buffer, ...]:
        """SLABS buffers, the last one standing in for those that are not there yet."""
        missing = SLABS - len(self._slabs)
        return (*self._slabs, *[self._slabs[-1]] * missing)

    @property
    def coming(self) -> int:
        """Bytes by which it may still grow."""
        return (self._most - len(self._slabs)) * self.slab_bytes

    def reserve(self, computed: int, steps: int) -> None:
        """While the limit lasts, grow so that the next ``steps`` steps evict nothing after ``computed`` rows."""
        while len(self._slabs) < self._most and computed + steps * self._entries > self.capacity:
            if not self._grow():
                return

    def _grow(self) -> bool:
        try:
            self._slabs.append(self._stream.slab(self.slab_bytes))
        except (ValueError, DeviceError):  # the budget ends here: the ring stays as large as it is
            self._most = len(self._slabs)
            return False
        return True
