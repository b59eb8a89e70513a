"""Copies: several arrays in one buffer; large arrays on their way to a device with memory of its own."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from clsvm import SVC
from clsvm.opencl import stream as copies
from clsvm.opencl.stream import ALIGNMENT, Stream, join_arrays


@pytest.mark.oclgrind
def test_arrays_that_go_and_come_together(device: str, profile: str) -> None:
    """Each part is a buffer like any other; what kernels write there comes back with one copy."""
    with Stream(device) as stream:
        numbers = stream.as_wide(np.arange(70.0).reshape(7, 10))
        arrays = numbers, np.arange(5, dtype=np.int32), np.zeros((0, 4)), np.array([[1, 2]], np.int64)
        made = join_arrays(stream, arrays)
        assert stream.simulated or stream.allocated >= 4 * ALIGNMENT
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


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Devices have memory of their own, pieces are of 1000 bytes that three threads fill; the sizes of what went
    through them."""
    monkeypatch.setattr(copies, "PIECE", 1000)
    monkeypatch.setattr(copies, "COPY_THREADS", 3)
    monkeypatch.setattr(copies, "cores", lambda: 8)
    monkeypatch.setattr(copies, "LEAST_PINNED", 2000)
    sizes: list[int] = []
    write, init = Stream._write_pinned, Stream.__init__

    def counted(self: Stream, to: Any, array: np.ndarray) -> None:
        sizes.append(array.nbytes)
        write(self, to, array)

    def made(self: Stream, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        self.unified = self.simulated = False

    monkeypatch.setattr(Stream, "_write_pinned", counted)
    monkeypatch.setattr(Stream, "__init__", made)
    return sizes


@pytest.mark.parametrize("size", [1999, 2000, 2001, 3000, 12345])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_an_array_comes_whole(device: str, apart: list[int], size: int, dtype: Any) -> None:
    """Whatever part of the last piece it fills, and the first bytes of a larger buffer alone are written."""
    nbytes = np.dtype(dtype).itemsize * size
    array = np.random.default_rng(size).integers(0, 250, size).astype(dtype)
    with Stream(device) as stream:
        buffer = stream.upload(array)
        np.testing.assert_array_equal(stream.read(buffer, dtype, size), array)
        larger = stream.zeros(nbytes + 4096)
        stream.write(larger, array[::-1])  # (what is not contiguous is, on its way)
        np.testing.assert_array_equal(stream.read(larger, dtype, size), array[::-1])
        assert not stream.read(larger, np.uint8, 4096, offset=nbytes).any()
    assert apart == [nbytes] * 2 * (nbytes >= 2000)


def test_threads_have_pieces_of_their_own(device: str, apart: list[int]) -> None:
    arrays = [np.random.default_rng(seed).integers(0, 250, 50_000).astype(np.uint8) for seed in range(4)]
    wrong: list[int] = []

    def copies(place: int) -> None:
        with Stream(device) as stream:
            for _ in range(5):
                buffer = stream.upload(arrays[place])
                wrong.extend([place] * (not np.array_equal(stream.read(buffer, np.uint8, 50_000), arrays[place])))
                stream.free(buffer)

    threads = [threading.Thread(target=copies, args=(place,)) for place in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(apart) == 20


def test_a_fit_is_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit that of a device that reads the host's memory."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 30))
    y = (X[:, 0] + rng.normal(size=400) > 0).astype(int)
    one = SVC(device=device).fit(X, y)
    with monkeypatch.context() as patch:
        sizes = apart.__wrapped__(patch)
        other = SVC(device=device).fit(X, y)
    assert max(sizes) >= X.nbytes
    np.testing.assert_array_equal(one.dual_coef_, other.dual_coef_)
    np.testing.assert_array_equal(one.decision_function(X), other.decision_function(X))
