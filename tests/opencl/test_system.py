"""Limits of the process's memory, in made-up trees of the system's files, and errors where memory ends."""

import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clsvm
from clsvm import system
from clsvm.errors import DeviceError, HostMemoryError
from clsvm.opencl import memory
from clsvm.opencl.runtime import cl
from clsvm.opencl.stream import Stream
from tests.conftest import USABLE

MB = 10**6


def tree(folder: Path, files: dict[str, Any], groups: str) -> Path:
    """Return a folder of files of proc and of cgroups; a value None is a file that cannot be read."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text("MemTotal: 32000000 kB\nMemAvailable: 16000000 kB\n")
    (folder / "proc" / "self" / "status").write_text("VmSize:\t  100000 kB\nVmData:\t   50000 kB\n")
    (folder / "proc" / "self" / "cgroup").write_text(groups)
    for name, content in files.items():
        path = folder / "sys" / "fs" / "cgroup" / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()  # (root may read every file, so a folder stands for one that cannot be read)
        else:
            path.write_text(f"{content}\n")
    return folder


HOST = 16_000_000 * 1024
NONE = 9223372036854771712  # version 1's "no limit"


def v1(folder: str, limit: int, used: int, cache: int = 0) -> dict[str, Any]:
    return {
        f"memory/{folder}/memory.limit_in_bytes": limit,
        f"memory/{folder}/memory.usage_in_bytes": used,
        f"memory/{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}",
    }


def v2(folder: str, most: Any, used: Any, cache: int = 0, high: Any = "max") -> dict[str, Any]:
    stat = f"anon 5\ninactive_file {cache}\nactive_file 7"
    names = {"memory.max": most, "memory.high": high, "memory.current": used, "memory.stat": stat}
    return {f"{folder}/{name}": value for name, value in names.items()}


CASES: dict[str, tuple[dict[str, Any], str, int]] = {  # files, groups, and what is left
    "no cgroup": ({}, "", HOST),
    "v1, cache": (v1("a", 900 * MB, 800 * MB, 500 * MB), "5:cpu:/b\n4:cpu,memory:/a\n", 600 * MB),
    "v1, above": (v1("a/b", NONE, 0) | v1("a", 700 * MB, 300 * MB), "4:memory:/a/b\n", 400 * MB),
    "v1, no folder": (v1("", 90 * MB, 0), "4:memory:/docker/x\n", 90 * MB),
    "v2": (v2("a", 900 * MB, 300 * MB, 100 * MB), "0::/a\n", 700 * MB),
    "v2, high": (v2("a", 900 * MB, 300 * MB, high=500 * MB), "0::/a\n", 200 * MB),
    "v2, nested": (v2("a/b/c", "max", 1) | v2("a", 400 * MB, 100 * MB), "0::/a/b/c\n", 300 * MB),
    "v2, above the root": (v2("", 400 * MB, 100 * MB), "0::/../x\n", 300 * MB),
    "v2, over its limit": (v2("a", 100 * MB, 200 * MB), "0::/a\n", 0),
    "v2, usage unreadable": (v2("a", 100 * MB, None), "0::/a\n", 100 * MB),
    "v2, limit unreadable": (v2("a", None, 5), "0::/a\n", HOST),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_limit_counts(tmp_path: Path, case: str) -> None:
    files, groups, expected = CASES[case]
    assert system.available(tree(tmp_path, files, groups)) == expected


@pytest.mark.parametrize(("limit", "expected"), [("AS", 300 * MB - 100_000 * 1024), ("DATA", 300 * MB - 50_000 * 1024)])
def test_limits_of_the_process_count(tmp_path: Path, monkeypatch: Any, limit: str, expected: int) -> None:
    most = {getattr(resource, f"RLIMIT_{limit}"): 300 * MB}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (most.get(which, resource.RLIM_INFINITY), 0))
    assert system.available(tree(tmp_path, {}, "")) == expected


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own size is the limit then."""
    assert system.available(tmp_path) is None
    monkeypatch.setattr(system, "available", lambda: None)
    monkeypatch.setattr(memory, "MAX_AGE", 1e-9)
    device = cl.get_platforms()[0].get_devices()[0]
    assert memory.free_memory(device) == device.global_mem_size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are read where Linux has them")
def test_the_default_budget_is_a_share_of_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = next((info for info in USABLE if info.kind == "cpu"), None)
    if cpu is None:
        pytest.skip("no device shares the host's memory")
    monkeypatch.setattr(system, "available", lambda: 10 * MB)
    monkeypatch.setattr(memory, "MAX_AGE", 1e-9)
    with Stream(cpu.index) as stream:
        assert stream.limit <= (10 * MB + memory.pooled_bytes()) // 2


def test_a_limit_of_the_process_that_is_real() -> None:
    """A child under a real limit sees it."""
    code = "from clsvm import system; print(*min(system.memory_limits()))"

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**31, resource.RLIM_INFINITY))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limited, capture_output=True, text=True)
    assert "ulimit -v" in done.stdout, done
    assert int(done.stdout.split()[0]) < 2**31


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "refused a request for memory"),
        (MemoryError("std::bad_alloc"), "std::bad_alloc"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
)
def test_errors_of_memory_say_what_to_change(error: Any, words: str) -> None:
    with pytest.raises(MemoryError) as caught, system.explained("reading x"):
        raise error
    said = str(caught.value)
    assert said.startswith("out of memory, reading x: ")
    assert words in said
    assert "memory_limit or cache_size" in said
    assert str(pickle.loads(pickle.dumps(caught.value))) == said
    with pytest.raises(HostMemoryError) as again, system.explained("more"):
        raise caught.value
    assert again.value is caught.value


def test_numpys_own_words_stay() -> None:
    with pytest.raises(MemoryError, match=r"Unable to allocate .* set a smaller memory_limit"), system.explained():
        np.empty(2**60, np.uint8)
    for error in (ValueError("no memory"), OSError(2, "none")):
        with pytest.raises(type(error)) as caught, system.explained():
            raise error
        assert caught.value is error


def test_an_estimator_explains_what_the_host_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(clsvm.SVC, "_learn", refuse)
    with pytest.raises(MemoryError, match=r"out of memory, SVC.fit: .* set a smaller memory_limit"):
        clsvm.SVC().fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize("code", ["MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY"])
def test_the_runtime_is_out_of_memory(monkeypatch: pytest.MonkeyPatch, code: str, stream: Stream) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise cl.Error(cl._cl._ErrorRecord("it failed", getattr(cl.status_code, code), "buffer"))

    monkeypatch.setattr(cl, "enqueue_copy", refuse)
    with pytest.raises(DeviceError, match="set a smaller memory_limit"):
        stream.upload(np.zeros(9))
    monkeypatch.undo()
