"""Several arrays in one buffer."""

from __future__ import annotations

import numpy as np
import pytest

from clsvm.opencl.parts import APART, together
from clsvm.opencl.stream import Stream


@pytest.mark.oclgrind
def test_arrays_that_go_and_come_together(device: str, profile: str) -> None:
    """Each part is a buffer like any other; what kernels write there comes back with one copy."""
    with Stream(device) as stream:
        numbers = stream.as_wide(np.arange(70.0).reshape(7, 10))
        arrays = numbers, np.arange(5, dtype=np.int32), np.zeros((0, 4)), np.array([[1, 2]], np.int64)
        made = together(stream, arrays)
        assert stream.simulated or stream.held >= 4 * APART
        for found, array in zip(made.read(stream), arrays, strict=True):
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype
        np.testing.assert_array_equal(stream.read(made.each[1], np.int32, 5), arrays[1])
        stream.write(made.each[3], np.array([[-3, 4]], np.int64))
        stream.clear(made.each[1], 20)
        wide, places, _, counters = made.read(stream)
        np.testing.assert_array_equal(stream.narrow(wide), np.arange(70.0).reshape(7, 10))
        assert not places.any()
        np.testing.assert_array_equal(counters, [[-3, 4]])
        made.write(stream, (numbers, arrays[1] + 1, arrays[2], arrays[3]))
        np.testing.assert_array_equal(stream.read(made.each[1], np.int32, 5), arrays[1] + 1)
        np.testing.assert_array_equal(made.read(stream)[3], [[1, 2]])
