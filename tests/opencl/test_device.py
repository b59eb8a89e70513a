"""Devices, memory budgets, build errors, several arrays in one buffer, large arrays for a device with own memory."""

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import clsvm
from clsvm import SVC
from clsvm.errors import BuildError, DeviceError
from clsvm.opencl import contexts, devices, memory, runtime, sources
from clsvm.opencl import stream as copies
from clsvm.opencl.stream import ALIGNMENT, Stream, join_arrays
from tests.conftest import USABLE, noisy


def test_a_device_is_listed_and_usable() -> None:
    assert USABLE, devices.describe()
    for info in USABLE:
        assert info.memory > info.largest_buffer / 2 > 0
        assert info.reason == ""


def test_names_that_find(monkeypatch: pytest.MonkeyPatch) -> None:
    info = USABLE[0]
    assert devices.find(str(info.index)) == devices.find(info.index) == info
    assert devices.find(info.name.upper()) == info
    first = next(d for d in clsvm.devices() if info.platform.split()[0] in d.platform)
    assert devices.find(f"{info.platform.split()[0]}:0") == first
    monkeypatch.setenv("CLSVM_DEVICE", str(info.index))
    assert devices.find(None) == info
    monkeypatch.setenv("CLSVM_DEVICE", f"{info.index}, nowhere")
    assert devices.find(None) == info
    assert devices.device_list(None) == [str(info.index), "nowhere"]
    with pytest.raises(DeviceError, match="expected one device, got several: '0,1'"):
        devices.find("0,1")
    monkeypatch.setenv("CLSVM_DEVICE", "nowhere")
    with pytest.raises(DeviceError, match="matches 'nowhere' of the environment variable CLSVM_DEVICE; there are"):
        devices.find(None)


def test_names_that_do_not() -> None:
    for spec in ("no such device", "99", 99, -1, "no such:0"):
        with pytest.raises(DeviceError, match="no OpenCL device matches") as caught:
            devices.find(spec)  # type: ignore[arg-type]
        assert USABLE[0].name in str(caught.value)
    for thing in (True, 1.5, [], object()):
        with pytest.raises(TypeError, match="device must be"):
            devices.find(thing)  # type: ignore[arg-type]


def test_several_matches_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLSVM_DEVICE", raising=False)
    same = [d for d in clsvm.devices() if "e" in f"{d.name}{d.platform}".lower() and d.usable]
    if len(same) < 2:
        pytest.skip("needs two usable devices")
    with pytest.raises(DeviceError, match="devices match 'e'"):
        devices.find("e")


def test_a_platform_s_name_comes_before_a_device_s() -> None:
    names = [("intel opencl", "genuine intel cpu"), ("portable", "pthread-intel xeon"), ("simulator", "some xeon")]
    here = [Listed(platform, name) for platform, name in (*names, ("cuda", "card"), ("cuda too", "card"))]
    meant = {"pthread": [1], "xeon": [1, 2], "xeon:1": [2], "intel:0": [0], "": [0, 1, 2, 3, 4]}
    meant |= {"intel": [0]}  # a platform's name, though it is part of another's device too
    meant |= {"cuda": [3]}  # in full a platform's name, in part another's
    assert {text: devices._matches(text, here) for text in meant} == meant  # type: ignore[arg-type]


MESA = "AMD Radeon RX 6800 (navi21, LLVM 15.0.6, DRM 3.49)"
PIPE = "llvmpipe (LLVM 15.0.6, 256 bits)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MESA, MESA),
        (f"{PIPE.upper()}:0", f"{PIPE.upper()}:0"),
        ("10, 12", ["10", "12"]),  # indices, though a device's name holds that
        ([MESA, PIPE], [MESA, PIPE]),
    ],
)
def test_a_comma_in_a_full_name_separates_nothing(monkeypatch: pytest.MonkeyPatch, text: Any, expected: Any) -> None:
    names = [("rusticl", PIPE), ("rusticl", MESA), ("Maker, Inc.", "card 10,12")]
    here = [Listed(platform, name) for platform, name in names]
    monkeypatch.setattr(devices, "visible", lambda process: here)
    assert devices.split_names(text) == expected
    assert devices.device_list(text) == (expected if isinstance(expected, list) else [expected])
    for missing in (",", "0,", "0,,1", ", 0"):
        with pytest.raises(DeviceError, match="a name on each side of a comma"):
            devices.split_names(missing)


def test_a_device_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader lists a platform twice where it meets its library under two names."""
    platforms = devices.cl.get_platforms()
    monkeypatch.setattr(devices.cl, "get_platforms", lambda: [*platforms, *platforms])
    assert devices.visible.__wrapped__(0) == devices.visible(os.getpid())


class Listed:
    """As much of a pyopencl Device as a search looks at."""

    def __init__(self, platform: str, name: str) -> None:
        self.name, self.type = name, 0
        self.platform = type("Platform", (), {"name": platform})


def test_no_platform_says_which_setting_hides_them_and_what_helps() -> None:
    program = "from clsvm import SVC; SVC().fit([[0.], [1.]], [0, 1])"
    env = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent/folder", "PYTHONPATH": str(Path(clsvm.__file__).parents[1])}
    env.pop("CLSVM_DEVICE", None)
    if "oclgrind" in env.get("LD_PRELOAD", ""):
        pytest.skip("the simulator stands in for the loader")
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no OpenCL platform was found where OCL_ICD_VENDORS='/nonexistent/folder' says" in done.stderr
    assert "pip install '.[cpu]' in the folder of clsvm's source" in done.stderr


def test_pip_runtimes_hide_no_system_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system, cache = tmp_path / "vendors", tmp_path / "cache"
    system.mkdir()
    (system / "one.icd").write_text("libone.so\n")
    cache.mkdir()
    library = tmp_path / "libtwo.so"
    library.touch()
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.setenv("OCL_ICD_FILENAMES", "/my/libthree.so.1:libone.so.2:libnot.so")  # (not every loader reads it)
    monkeypatch.setattr(runtime, "SYSTEM_VENDORS", system)
    monkeypatch.setattr(runtime, "_pip_runtimes", lambda *names: iter([library]))
    monkeypatch.setattr(runtime, "_bundled", lambda: iter(()))
    monkeypatch.setattr(runtime, "user_cache_path", lambda *a, **k: cache)
    driver = f"{runtime._FOLDERS[0]}/{runtime.DRIVERS[1]}"  # where the loader does not look
    there = driver, "/my/libthree.so.1", "libone.so.2"
    monkeypatch.setattr(runtime, "load_error", lambda name: "" if name in there else "no such file")
    runtime.prepare()
    folder = Path(os.environ["OCL_ICD_VENDORS"])
    entries = {path.read_text().strip() for path in folder.glob("*.icd")}
    assert entries == {"libone.so", str(library), driver, "/my/libthree.so.1"}
    monkeypatch.setenv("OCL_ICD_VENDORS", "mine")
    runtime.prepare()
    assert os.environ["OCL_ICD_VENDORS"] == "mine"


def test_a_runtime_that_does_not_load_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libbroken.so").write_text("no library")
    (tmp_path / "one.icd").write_text(f"{tmp_path}/libbroken.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    broken = f"{tmp_path}/libbroken.so does not load"
    assert str(devices.no_platform()).startswith(f"{broken} (file too short); no OpenCL platform was found")
    with pytest.raises(DeviceError) as caught:
        devices.find("nobody's")
    assert f"\n  {broken} (" in str(caught.value)


def test_bytes() -> None:
    given = {"2GB": 2e9, "512 MiB": 512 * 2**20, "1.5k": 1500, 1000: 1000, None: None}
    assert {text: memory.parse_bytes(text) for text in given} == given
    for text in ("", "GB", "-1", "2 parsecs", "1e400", "\N{ARABIC-INDIC DIGIT TWO}GB", 0, -5, float("nan"), "0"):
        with pytest.raises(ValueError, match="memory_limit must be a positive number"):
            memory.parse_bytes(text)
    for value in (True, [], {}):
        with pytest.raises(TypeError, match="memory_limit"):
            memory.parse_bytes(value)


def test_budget_and_release(device: str) -> None:
    with Stream(device, memory_limit=10_000) as stream:
        kept = stream.buffer(4000)
        stream.buffer(4000)
        with pytest.raises(ValueError, match="memory_limit of 10000 bytes"):
            stream.buffer(4000)
        stream.free(kept)
        stream.buffer(4000)
        assert stream.peak <= 10_000
    with Stream(device) as stream:
        stream.slab(1 << 20)
    assert memory.release_memory() >= 1 << 20
    assert memory.release_memory() == 0


def test_wide_numbers(profile: str, stream: Stream) -> None:
    """Sums of many float32 products keep far more than float32's digits, also where double is missing."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=1000) * 10.0 ** rng.integers(-4, 5, 1000), rng.normal(size=1000)
    text = sources.cl() + (
        "kernel void ops(global const wide *a, global const wide *b, global wide *o) {"
        "  const int i = get_global_id(0); o[4*i] = wide_add(a[i], b[i]); o[4*i+1] = wide_mul(a[i], b[i]);"
        "  o[4*i+2] = wide_div(a[i], b[i]); o[4*i+3] = wide_pick(wide_less(a[i], b[i]), a[i], b[i]); }"
    )
    kernel = stream.kernel(text, ["-DWIDE_PAIR"] * (profile == "gpu-pair"), "ops")
    x, y, out = stream.wide(a), stream.wide(b), stream.zeros(8 * 4000)
    a, b = stream.read_wide(x, 1000), stream.read_wide(y, 1000)
    kernel((1000,), None, x, y, out)
    got = stream.read_wide(out, (1000, 4)).T
    for values, expected in zip(got, (a + b, a * b, a / b, np.minimum(a, b)), strict=True):
        assert np.max(np.abs(values - expected) / np.abs(expected)) < 1e-13


def test_build_error_tells_all(device: str) -> None:
    with Stream(device) as stream, pytest.raises(BuildError) as caught:
        stream.kernel("kernel void f(global int *x) {\n  x[0] = undeclared_name;\n}", (), "f")
    words = str(caught.value)
    assert "undeclared_name" in caught.value.log
    assert "   2   x[0] = undeclared_name;" in words
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.log, again.source) == (words, caught.value.log, caught.value.source)


def test_no_platform_after_a_fork_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some runtimes have none in a forked child."""
    assert "no OpenCL platform was found" in str(devices.no_platform())
    monkeypatch.setattr(contexts, "_forked", {os.getpid()})
    assert re.match(
        "the OpenCL runtime does not survive a fork of a process that has used it", str(devices.no_platform())
    )


TRAINS = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from clsvm import SVC
    made = SVC(device=sys.argv[1]).fit([[0.], [1.], [2.], [3.]], [0, 0, 1, 1])
print(made.fit_report_.converged, *(w.message for w in caught), sep="|")
"""


@pytest.mark.full
@pytest.mark.skipif(any("Oclgrind" in d.platform for d in USABLE), reason="the simulator stands in for the loader")
def test_a_home_that_cannot_be_written_is_no_obstacle(device: str) -> None:
    settings = ("XDG_CACHE_HOME", "OCL_ICD_VENDORS", "CLSVM_DEVICE", "PYOPENCL_NO_CACHE", "POCL_CACHE_DIR")
    env = {name: value for name, value in os.environ.items() if name not in settings}
    env |= {"HOME": "/proc", "PYTHONPATH": str(Path(clsvm.__file__).parents[1])}
    command = [sys.executable, "-c", TRAINS, devices.find(device).platform]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    converged, words = done.stdout.strip().split("|")
    assert converged == "True"
    assert re.match(r"the cache '/proc/\.cache/.*cannot be written", words)


def test_a_build_says_that_the_cache_failed(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyopencl._PYOPENCL_NO_CACHE", False)
    monkeypatch.setattr("pyopencl.characterize.has_src_build_cache", lambda device: False)
    monkeypatch.setattr("pyopencl.cache._create_built_program_from_source_cached", failing)
    with Stream(device) as stream, pytest.warns(UserWarning, match="caching failed .*\n.*\n(.*\n)*.*No space left"):
        stream.kernel("kernel void full_disk(global int *a) { a[0] = 1; }", (), "full_disk")


def unaligned(array: np.ndarray) -> np.ndarray:
    """The array at an address that is no multiple of its items' size."""
    return np.frombuffer(b"x" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def test_large_buffers_go_once_their_queue_is_done(stream: Stream) -> None:
    """Their memory is the host's own, which the system takes at once: work in the queue would write where it was."""
    nbytes = 4 * memory.HUGE
    for _ in range(20):
        buffer = stream.buffer(nbytes)
        stream.clear(buffer, nbytes)
        stream.free(buffer)
    with stream.recycling():
        for size in (nbytes, 2 * nbytes):
            buffer = stream.buffer(size)
            stream.clear(buffer, size)
            stream.free(buffer)
    assert stream.allocated == 0


def test_large_buffers_are_taken_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next of about their size, in any stream; at most POOL_BYTES stay, and none without room in a limit."""
    clsvm.release_memory()
    size = 9 << 19  # (in eighths of 4 MB)
    with Stream(device) as stream:
        if not stream.unified:
            pytest.skip("of devices that share the host's memory")
        first, small = stream.buffer(size - 4096), stream.buffer(memory.MIN_POOLED - 64)
        assert stream.allocated == size + memory.MIN_POOLED - 64
        where = first.int_ptr
        stream.free(first, small)
        assert (stream.allocated, memory.pooled_bytes()) == (0, size)
        again = stream.buffer(size)
        assert (again.int_ptr, memory.pooled_bytes()) == (where, 0)
    assert memory.pooled_bytes() == size
    with Stream(device) as stream:
        assert stream.buffer(size - 128).int_ptr == where
        other = stream.buffer(size)
        assert other.int_ptr != where
    assert memory.pooled_bytes() == 2 * size
    with Stream(device, memory_limit=2 * size + 64) as stream:  # (no room to take more than is asked for)
        stream.buffer(size - 128)
        assert (stream.allocated, memory.pooled_bytes()) == (size - 128, 0)
    clsvm.release_memory()
    with Stream(device) as stream:  # what is taken from the budget otherwise has room, too
        stream.free(stream.buffer(size))
        stream.reserve(stream.limit - size)
        assert memory.pooled_bytes() == size
        stream.reserve(64)
        assert memory.pooled_bytes() == 0
        stream.reserve(size - stream.limit - 64)
    monkeypatch.setattr(memory, "POOL_BYTES", 2 * memory.HUGE + 64)
    with Stream(device) as stream:
        for _ in range(2):
            stream.buffer(size)
        other = stream.buffer(2 * memory.HUGE - 64).int_ptr
    assert memory.pooled_bytes() == 2 * memory.HUGE  # (the last size; others went for it)
    with Stream(device) as stream, stream.recycling():
        found = {stream.buffer(2 * memory.HUGE - 64 * i) for i in range(3)}
        assert len(found) == 3
        stream.free(*found)
        held = stream.allocated
        assert {one.int_ptr for one in found} >= {stream.buffer(2 * memory.HUGE - 128).int_ptr, other}
        assert stream.allocated == held  # (those that were rounded are recycled, too)
    assert clsvm.release_memory() == 2 * memory.HUGE
    assert memory.pooled_bytes() == 0


@pytest.mark.parametrize("form", ["dense", "field", "csr"])
def test_rows_that_are_not_aligned_are_read_right(device: str, form: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) * (rng.random((60, 4)) < 0.7)
    y, rows = (X[:, 0] > 0).astype(int), sp.csr_matrix(X) if form == "csr" else X
    given: Any = sp.csr_matrix(X) if form == "csr" else unaligned(X)
    if form == "csr":
        given.data, given.indices = unaligned(given.data), unaligned(given.indices)
    elif form == "field":
        fields = np.zeros(60, [("tag", "u1"), ("rows", "f8", 4)])
        fields["rows"], given = X, fields["rows"]
    made, expected = (SVC(device=device, gamma=0.5).fit(some, y) for some in (given, rows))
    np.testing.assert_array_equal(made.dual_coef_, expected.dual_coef_)
    np.testing.assert_array_equal(expected.decision_function(given), expected.decision_function(rows))
    np.testing.assert_array_equal(clsvm.kernel_matrix(given, device=device), clsvm.kernel_matrix(rows, device=device))


def _child_s_exit(device: str) -> int | None:
    """How a forked child ends that trains with a new kernel function: 0 if it did or said why not, None if it hangs."""
    X, y = noisy(80, 3)
    process = os.fork()
    if not process:
        with contextlib.suppress(DeviceError):
            SVC(kernel=clsvm.Kernel("dot + 0.25 * dot * dot"), device=device).fit(X, y)
            clsvm.release_memory()
        os._exit(0)
    for _ in range(600):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["build_lock", "context_lock", "pool_lock", "a stream's"])
def test_a_fork_waits_for_what_other_threads_are_at(device: str, name: str) -> None:
    """And not for what its own thread has, in the midst of a build, as a signal's handler may."""
    SVC(device=device).fit(*noisy(80, 3))
    taken, done = threading.Event(), []
    stream = Stream(device)
    lock = getattr(contexts, name, stream.lock)

    def at_it() -> None:
        with lock:
            taken.set()
            time.sleep(0.3)
            done.append(name)

    other = threading.Thread(target=at_it)
    other.start()
    taken.wait()
    assert _child_s_exit(device) == 0
    assert done
    other.join()
    assert lock.acquire(timeout=1)  # the parent has it back, too
    try:
        assert _child_s_exit(device) == 0
    finally:
        lock.release()


@pytest.mark.oclgrind
def test_arrays_that_go_and_come_together(profile: str, stream: Stream) -> None:
    """Each part is a buffer like any other; what kernels write there comes back with one copy."""
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
    """Devices have memory of their own, three threads fill pieces of 1000 bytes; the sizes that went through."""
    monkeypatch.setattr(copies, "PIECE", 1000)
    monkeypatch.setattr(copies, "COPY_THREADS", 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
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
def test_an_array_comes_whole(apart: list[int], size: int, dtype: Any, stream: Stream) -> None:
    """Whatever part of the last piece it fills, and the first bytes of a larger buffer alone are written."""
    nbytes = np.dtype(dtype).itemsize * size
    array = np.random.default_rng(size).integers(0, 250, size).astype(dtype)
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

    with ThreadPoolExecutor(len(arrays)) as threads:
        list(threads.map(copies, range(len(arrays))))
    assert not wrong
    assert len(apart) == 20
