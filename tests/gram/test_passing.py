"""Rows that pass through a device block by block, the next one laid out while one is computed with."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm.errors import DeviceError
from clsvm.gram import layouts
from clsvm.gram.blocks import Streamed
from clsvm.gram.cross import Cross
from clsvm.gram.layouts.record import Rows
from clsvm.kernels import make
from clsvm.opencl.stream import Stream

N, STEP = 700, 128
KERNEL = make("rbf", gamma=0.2)
BUILD = layouts.build
Watch = Callable[[int, Stream], None]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 128 rows of eight floats, five of them whole."""
    monkeypatch.setattr("clsvm.gram.blocks.BLOCK", STEP * (8 * 4 + 16))


def rows_of(form: str, folder: Path, dtype: str = "float32", n: int = N) -> Any:
    """(n, 8): "dense", "csr", "mapped" or "mapped csr", whose parts are in files."""

    def in_file(array: Any, name: str) -> Any:
        array.tofile(folder / name)
        return np.memmap(folder / name, array.dtype, "r", shape=array.shape)

    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 8)).astype(dtype)
    if "csr" in form:
        X = sp.csr_matrix(X * (rng.random(X.shape) < 0.6))
    if form == "mapped csr":
        X.data, X.indices = in_file(X.data, "X"), in_file(X.indices, "indices")
    return np.asarray(in_file(X, "X")) if form == "mapped" else X


def streamed(stream: Stream, X: Any) -> Streamed:
    kind = "csr" if sp.issparse(X) else "dense"
    return Streamed(stream, X, layouts.choose(stream.profile, X, KERNEL.spec, kind), "float32")


def passed(rows: Streamed) -> int:
    """How many blocks a pass has, which leaves nothing."""
    with rows.passing() as blocks:
        count = len(list(blocks))
    assert nothing_left(rows.stream)
    return count


def watched(monkeypatch: pytest.MonkeyPatch, watch: Watch) -> None:
    """Call ``watch`` with 0, 1, ... and the stream wherever a block is laid out, before that."""
    count = iter(range(10**6))

    def build(stream: Stream, *given: Any) -> Rows:
        watch(next(count), stream)
        return BUILD(stream, *given)

    monkeypatch.setattr("clsvm.gram.layouts.build", build)


def held(stream: Stream) -> int:
    """Bytes of a stream's buffers."""
    return sum(nbytes for _, nbytes in list(stream._buffers.values()))


def nothing_left(stream: Stream) -> bool:
    """Whether a pass left no thread, no buffer, no other stream and no reservation."""
    from clsvm.opencl.contexts import streams

    threads = [thread for thread in threading.enumerate() if thread.name.startswith("clsvm rows")]
    return not (threads or stream._buffers or stream.allocated) and list(streams) == [stream]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["dense", "csr", "mapped", "mapped csr"])
def test_the_same_bits_as_in_turn(
    profile: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, dtype: str, stream: Stream
) -> None:
    """Every product, with weights of two outputs, and against NumPy."""
    if (profile, dtype) == ("gpu-pair", "float64"):
        pytest.skip("the profile has no double precision")
    monkeypatch.setattr("clsvm.gram.cross.SHARE", 0.0)
    X, kind, k = rows_of(form, tmp_path, dtype), "csr" if "csr" in form else "dense", 2
    rng, C = np.random.default_rng(2), X[:30]
    V, R, w = rng.normal(size=(k, 30)), rng.normal(size=(k, N)), rng.random((k, N))
    plan = layouts.choose(stream.profile, X, KERNEL.spec, kind)
    cross = Cross(stream, X, C, KERNEL, plan, dtype, k)
    cross.set_weights(w)
    rows = cross._streamed
    assert cross.way == "streamed"
    assert rows.ahead == (form != "dense" or not stream.unified)
    assert len(rows.slices) > 3
    found = []
    for ahead in (rows.ahead, False):
        rows.ahead = ahead
        found.append((cross.forward(V), cross.back(R), cross.forward_back(V)))
    for one, in_turn in zip(*found, strict=True):
        np.testing.assert_array_equal(one, in_turn)
    K = KERNEL(X, C)
    for one, expected in zip(found[0], (V @ K.T, R @ K, (w * (V @ K.T)) @ K), strict=True):
        np.testing.assert_allclose(one, expected, atol=2e-3)


@pytest.mark.parametrize("form", ["mapped", "csr"])
@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
def test_the_limit_holds_for_both_blocks(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, copied: bool
) -> None:
    """float64 rows in float32, on a device that reads them in place and on one that does not; peak counts both."""
    monkeypatch.setattr("clsvm.gram.blocks.BLOCK", 1 << 30)
    limit, together, others = 200_000, [0], []

    def watch(number: int, stream: Stream) -> None:
        stream.unified = not copied
        others.append(stream)

    X = rows_of(form, tmp_path, "float64", 20000)
    with Stream(device, limit) as stream:
        stream.unified = not copied
        rows = streamed(stream, X)
        assert rows.ahead
        watched(monkeypatch, watch)
        for _ in range(2):
            with rows.passing() as blocks:
                for _, laid in blocks:
                    beside = stream.upload(np.zeros(limit // 3, np.uint8))
                    together.append(held(stream) + held(others[-1]))
                    assert 0 < laid.n <= rows.step
                    stream.free(beside)
        assert nothing_left(stream)
    assert max(together) <= stream.peak <= limit
    assert stream.peak < limit // 3 + limit // 2  # what was there, not what was set aside


@pytest.mark.parametrize("error", [MemoryError("no more"), DeviceError("gone"), ValueError("too large")])
@pytest.mark.parametrize("number", [0, 2])
def test_an_error_of_the_thread_is_the_callers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, number: int, stream: Stream
) -> None:
    def watch(at: int, stream: Stream) -> None:
        stream.buffer(1000)  # (left over by what failed)
        if at == number:
            raise error

    rows, seen = streamed(stream, rows_of("mapped", tmp_path)), []
    watched(monkeypatch, watch)
    with pytest.raises(type(error), match=str(error)), rows.passing() as blocks:
        seen.extend(rows for rows, _ in blocks)
    assert seen == rows.slices[:number]
    assert nothing_left(stream)
    assert passed(rows) == len(rows.slices)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shortens no file that is mapped")
@pytest.mark.parametrize("form", ["mapped", "mapped csr"])
def test_a_file_that_became_shorter_is_no_crash(tmp_path: Path, form: str, stream: Stream) -> None:
    rows = streamed(stream, rows_of(form, tmp_path))
    os.truncate(tmp_path / "X", 100)
    with pytest.raises(ValueError, match=r"memory-mapped file had \d+ bytes and now has 100"), rows.passing() as blocks:
        next(blocks)
    assert nothing_left(stream)


def test_an_interrupt_amid_a_block(tmp_path: Path, stream: Stream) -> None:
    def third(rows: Streamed) -> None:
        with rows.passing() as blocks:
            for at, _ in blocks:
                rows.stream.buffer(1000)  # (of what is done with a block)
                if at.start == 2 * STEP:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        third(streamed(stream, rows_of("mapped", tmp_path)))
    assert nothing_left(stream)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_an_interrupt_while_waiting_for_a_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    """Ctrl-C twice: the thread is waited for all the same, since it works with buffers that are freed then."""
    ended = threading.Event()

    def watch(number: int, stream: Stream) -> None:
        if number == 2:
            for _ in range(2):
                ended.wait(0.3)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            ended.wait(0.3)
            ended.set()

    rows = streamed(stream, rows_of("mapped", tmp_path))
    watched(monkeypatch, watch)
    with pytest.raises(KeyboardInterrupt), rows.passing() as blocks:
        for _ in blocks:
            pass
    assert ended.is_set()
    assert nothing_left(stream)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_amid_a_pass_does_not_hang(tmp_path: Path, stream: Stream) -> None:
    """The child has no thread that would lay out its next block."""
    rows = streamed(stream, rows_of("mapped", tmp_path))
    with rows.passing() as blocks:
        next(blocks)
        process = os.fork()
        if process == 0:
            signal.alarm(20)
            try:
                next(blocks)
            except DeviceError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(process, 0)[1] == 0
        assert len(list(blocks)) == len(rows.slices) - 1
    assert nothing_left(stream)


def test_no_thread_where_there_is_nothing_to_gain(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: Stream
) -> None:
    """One block alone, the simulator, and memory that holds no two blocks of as few rows as there can be."""
    threads = set()
    watched(monkeypatch, lambda number, stream: threads.add(threading.current_thread()))
    X = rows_of("mapped", tmp_path)
    slow = stream.simulated
    for some, limit, is_slow, blocks in ((X[:100], 10**6, slow, 1), (X, 10**6, True, 6), (X, 8000, slow, 11)):
        stream.simulated, stream.limit = is_slow, limit
        rows = streamed(stream, some)
        stream.simulated = slow
        assert not rows.ahead
        assert passed(rows) == blocks
    assert threads == {threading.current_thread()}


def test_blocks_of_uneven_sparse_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most entries stand in a few rows that follow one another: no block has far more than others."""
    monkeypatch.setattr("clsvm.gram.blocks.BLOCK", 1 << 30)
    rng, n = np.random.default_rng(3), 12000
    fill = np.where(np.arange(n) // 500 == 3, 0.8, 0.02)[:, None]
    X = sp.csr_matrix((rng.random((n, 100)) * (rng.random((n, 100)) < fill)).astype(np.float32))
    with Stream(device, 1_000_000) as stream:
        rows = streamed(stream, X)
        with rows.passing() as blocks:
            got = [(at, laid.n, laid.stored) for at, laid in blocks]
        assert rows.ahead
        assert nothing_left(stream)
    ends = [at.stop for at, *_ in got]
    assert [at.start for at, *_ in got] == [0, *ends[:-1]]
    assert ends[-1] == n
    assert all(at.stop - at.start == laid <= rows.step for at, laid, _ in got)
    assert all(at.start % 64 == 0 for at, *_ in got)
    assert max(stored for *_, stored in got) <= 1.5 * rows.step * X.nnz / n
    assert stream.peak <= stream.limit


def test_too_small_a_limit_is_named(device: str, tmp_path: Path) -> None:
    """By the limit that the user knows, whatever share of it is the thread's."""
    with Stream(device, 50_000) as stream:
        rows = streamed(stream, rows_of("mapped", tmp_path))
        assert rows.ahead
        rows.share //= 20
        for taken in (0, 49_000):
            buffers = [stream.buffer(taken)] if taken else []
            with pytest.raises(ValueError, match="memory_limit of 50000 bytes is too small"), rows.passing() as blocks:
                next(blocks)
            stream.free(*buffers)
            assert nothing_left(stream)
