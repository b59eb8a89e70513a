"""Find how much host memory this process can still allocate, and explain errors of memory.

:func:`memory_limits` reads the limits from /proc and the cgroups of Linux. On other systems no limit is found.
:func:`explained` turns a refused allocation into a HostMemoryError that names the nearest limit.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from clsvm.errors import HostMemoryError

PROC = Path("/proc")
# files of limit and usage in cgroups of version 1 and 2, and the field of memory.stat that counts reclaimable cache
_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_V2 = ("memory.max", "memory.current", "inactive_file"), ("memory.high", "memory.current", "inactive_file")
_UNLIMITED = 1 << 60  # bytes: cgroups of version 1 write "no limit" as a number above this
_NOT_MAPPED = "failed to map segment", "annot allocate memory"  # words of an ImportError whose cause is short memory
_RLIMITS = {
    "Max address space": ("VmSize", "the limit of address space (ulimit -v)"),
    "Max data size": ("VmData", "the limit of data (ulimit -d)"),
}


def available(proc: Path = PROC) -> int | None:
    """Return the bytes that this process can still allocate: the minimum over all limits, None if none is known."""
    return min((free for free, _ in memory_limits(proc)), default=None)


def memory_limits(proc: Path = PROC) -> list[tuple[int, str]]:
    """Return the bytes that each limit of this process's memory leaves free, with the limit's name for messages.

    The limits are the system's free memory, the limits of cgroups and the process's own limits, as far as they can be
    read.

    Parameters
    ----------
    proc : Path
        The folder of the proc file system. Its mount table says where the cgroups are.
    """
    return [(max(0, free), name) for free, name in (*_system(proc), *_cgroups(proc), *_ulimits(proc))]


def _system(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the bytes that the whole system has free, with a name."""
    if (free := _fields(_read(proc / "meminfo")).get("MemAvailable")) is not None:
        yield free, "the system's free memory"


def _ulimits(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the free bytes and name of each limit set by ulimit: the limit less its current use."""
    used: dict[str, int] = {}
    for line in _read(proc / "self" / "limits").splitlines():
        for title, (key, name) in _RLIMITS.items():
            soft = line.removeprefix(title).split()[:1]
            if line.startswith(title) and soft and soft[0].isdecimal():
                used = used or _fields(_read(proc / "self" / "status"))
                yield int(soft[0]) - used.get(key, 0), name


def _cgroups(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the free bytes and name of each limit of the process's memory cgroup and the cgroups above it.

    Cgroups of versions 1 and 2 are read.
    """
    paths = {}
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or "memory" in controllers.split(","):
            paths[bool(controllers)] = path
    for line in _read(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        is_v1 = kind[:1] == ["cgroup"] and "memory" in kind[-1].split(",")
        if len(fields) < 5 or not (is_v1 or kind[:1] == ["cgroup2"]) or is_v1 not in paths:
            continue
        mount = Path(_unescaped(fields[4]))
        for folder in _upwards(mount, _unescaped(fields[3]), paths[is_v1]):
            for limit, usage, cache in (_V1,) if is_v1 else _V2:
                if (most := _number(folder / limit)) is not None:
                    dropped = _fields(_read(folder / "memory.stat"), 1).get(cache, 0)
                    used = max(0, (_number(folder / usage) or 0) - dropped)
                    yield most - used, f"the memory limit of the container or cgroup ({folder / limit})"


def _upwards(mount: Path, root: str, path: str) -> Iterator[Path]:
    """Yield the folder of the cgroup ``path``, then each folder above it up to ``mount``, where ``root`` is mounted.

    Inside a container ``path`` may be a path of the host that is not below ``root``; then only ``mount`` is yielded.
    """
    inside = path.removeprefix(root.rstrip("/")).strip("/") if f"{path}/".startswith(f"{root.rstrip('/')}/") else ""
    names = [] if ".." in inside.split("/") else [name for name in inside.split("/") if name]
    for depth in range(len(names), -1, -1):
        yield mount.joinpath(*names[:depth])


def _unescaped(text: str) -> str:
    """Replace the octal escapes in a path of the mount table by their characters."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _read(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number that a file holds; None if the file is missing or states no limit."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _fields(text: str, unit: int = 1024) -> dict[str, int]:
    """Return the lines ``name: number`` of a text as a dict, with each number multiplied by ``unit``."""
    words = (line.split()[:2] for line in text.splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) * unit for pair in words if len(pair) == 2 and pair[1].isdecimal()}


@contextlib.contextmanager
def explained(what: str = "") -> Iterator[None]:
    """Turn an error raised inside into a HostMemoryError if its cause is that the system refused memory.

    Parameters
    ----------
    what : str
        The work done inside, such as "reading FILE", for the message.
    """
    try:
        yield
    except (MemoryError, OSError, ImportError) as error:
        if isinstance(error, HostMemoryError) or not _refuses(error):
            raise
        raise out_of_memory(error, what) from error


def _refuses(error: Exception) -> bool:
    """Return whether an error says that memory is short. An ImportError counts if a library could not be mapped."""
    if isinstance(error, ImportError):
        return any(words in str(error) for words in _NOT_MAPPED)
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def out_of_memory(error: Exception, what: str = "") -> HostMemoryError:
    """Return a HostMemoryError that names the request, the nearest limit and a remedy.

    error: the original error. what: the work that failed, or "".
    """
    request = str(error) or "the system refused a request for memory, whose size it does not tell"
    with contextlib.suppress(OSError, MemoryError):
        if found := memory_limits():
            free, name = min(found)
            request += f"; {name} leaves {free / 1e6:.0f} MB"
    advice = "raise that limit or free memory, or set a smaller memory_limit or cache_size (--memory-limit, -m)"
    return HostMemoryError(f"out of memory{f', {what}' * bool(what)}: {request}. To go on, {advice}")
