"""Find how much host memory this process can still allocate, and explain failed allocations.

:func:`memory_limits` reads the limits from /proc, from the cgroups of Linux and from ulimit. On other systems most of
them are not found. :func:`explained` turns a refused allocation into a HostMemoryError that names the nearest limit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from clsvm.errors import HostMemoryError

if sys.platform != "win32":
    import resource

ROOT = Path("/")
# Cgroups 1 and 2: names of the files of limit and usage, and the field of memory.stat with the reclaimable cache.
_V1 = (("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),)
_V2 = ("memory.max", "memory.current", "inactive_file"), ("memory.high", "memory.current", "inactive_file")
_UNLIMITED = 1 << 60  # bytes: cgroups of version 1 write "no limit" as a number above this


def available(root: Path = ROOT) -> int | None:
    """Return the bytes that this process can still allocate, the minimum over all limits; None if no limit is known."""
    return min((free for free, _ in memory_limits(root)), default=None)


def memory_limits(root: Path = ROOT) -> list[tuple[int, str]]:
    """Return the limits of this process's memory: the bytes that each limit leaves free, and its name for messages.

    The limits are the system's free memory, the limits of cgroups and the process's own limits (ulimit), as far as
    they can be read. ``root`` is the folder that contains the folders proc and sys.
    """
    return [(max(0, free), name) for free, name in (*_system(root), *_cgroups(root), *_ulimits(root))]


def _system(root: Path) -> Iterator[tuple[int, str]]:
    """Yield one pair: the free memory of the whole system in bytes, and a name of this memory for error messages.

    Yield no pair if the free memory cannot be read. ``root`` is the folder that contains the folder proc.
    """
    if (free := _fields(_read(root / "proc/meminfo")).get("MemAvailable")) is not None:
        yield free, "the system's free memory"


def _ulimits(root: Path) -> Iterator[tuple[int, str]]:
    """Yield the free bytes and the name of each limit that ulimit sets. Free is the limit less the current use."""
    if sys.platform == "win32":
        return
    limits = {
        "VmSize": (resource.RLIMIT_AS, "the limit of address space (ulimit -v)"),
        "VmData": (resource.RLIMIT_DATA, "the limit of data (ulimit -d)"),
    }
    for key, (limit, name) in limits.items():
        if (most := resource.getrlimit(limit)[0]) != resource.RLIM_INFINITY:
            yield most - _fields(_read(root / "proc/self/status")).get(key, 0), name


def _cgroups(root: Path) -> Iterator[tuple[int, str]]:
    """Yield the free bytes and name of each memory limit of the process's cgroup and the cgroups above it.

    ``root`` is the folder that contains the folders proc and sys. Limits of cgroups are files below the mount folder,
    which is root/sys/fs/cgroup/memory for version 1 and root/sys/fs/cgroup for version 2. The file
    root/proc/self/cgroup names the subfolder of the process's cgroup. In a container, this subfolder may exist only on
    the host. If the subfolder does not exist, only the limits in the mount folder itself are read.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        folder = mount / path.strip("/")
        if ".." in folder.parts or not os.path.isdir(folder):
            folder = mount
        for place in (folder, *folder.parents):
            for limit, usage, cache in _V1 if controllers else _V2:
                if (most := _number(place / limit)) is not None:
                    dropped = _fields(_read(place / "memory.stat"), 1).get(cache, 0)
                    used = max(0, (_number(place / usage) or 0) - dropped)
                    yield most - used, f"the memory limit of the container or cgroup ({place / limit})"
            if place == mount:
                break


def _read(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the whole number that a file contains, such as the memory limit of a cgroup in bytes.

    Return None if the file is missing, or if it says that there is no limit. It says so by a word such as "max", or by
    a number of at least 2^60.
    """
    text = _read(path).strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _fields(text: str, unit: int = 1024) -> dict[str, int]:
    """Return the lines ``name: number`` of a text as a dict, with each number multiplied by ``unit``."""
    words = (line.split()[:2] for line in text.splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) * unit for pair in words if len(pair) == 2 and pair[1].isdecimal()}


@contextlib.contextmanager
def explained(what: str = "") -> Iterator[None]:
    """Turn an error raised in the with block into a HostMemoryError if the system refused memory.

    Parameters
    ----------
    what : str
        The work of the with block, such as "reading FILE", for the message.
    """
    try:
        yield
    except (MemoryError, OSError) as error:
        refused = isinstance(error, MemoryError) or error.errno == errno.ENOMEM
        if isinstance(error, HostMemoryError) or not refused:
            raise
        raise out_of_memory(error, what) from error


def out_of_memory(error: Exception, what: str = "") -> HostMemoryError:
    """Return a HostMemoryError that explains why an allocation of host memory failed.

    Its message has the text of the original error, the memory limit that leaves the fewest bytes, and a remedy.

    error: the original error, which the failed allocation raised.
    what: the work that needed the memory, such as "reading FILE", or "" to leave it out.
    """
    request = str(error) or "the system refused a request for memory, whose size it does not tell"
    with contextlib.suppress(OSError, MemoryError):
        if found := memory_limits():
            free, name = min(found)
            request += f"; {name} leaves {free / 1e6:.0f} MB"
    advice = "raise that limit or free memory, or set a smaller memory_limit or cache_size (--memory-limit, -m)"
    return HostMemoryError(f"out of memory{f', {what}' * bool(what)}: {request}. To go on, {advice}")
