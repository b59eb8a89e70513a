"""Memory that the system still gives this process, and an error in words where it gives none.

Linux alone tells its limits in files. Elsewhere no limit is found, and the device's own size is the only bound.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clsvm.errors import HostMemoryError

PROC = Path("/proc")
_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"  # limit, usage, droppable cache
_V2 = ("memory.max", "memory.current", "inactive_file"), ("memory.high", "memory.current", "inactive_file")
_UNLIMITED = 1 << 60  # bytes: version 1 writes "no limit" as a number above this
_NOT_MAPPED = "failed to map segment", "annot allocate memory"  # the loader's words where memory ends
_RLIMITS = {
    "Max address space": ("VmSize", "the limit of address space (ulimit -v)"),
    "Max data size": ("VmData", "the limit of data (ulimit -d)"),
}


class Room(NamedTuple):
    """A limit of this process's memory: the bytes that it leaves free, and its name for a user."""

    free: int
    name: str


def available(proc: Path = PROC) -> int | None:
    """Return the bytes that this process can still get: the least that any limit leaves, None where none is known."""
    return min((room.free for room in rooms(proc)), default=None)


def rooms(proc: Path = PROC) -> list[Room]:
    """Return every limit that can be read: the system's free memory, each cgroup's limit, the process's own limits.

    Parameters
    ----------
    proc : Path
        The folder of the proc file system. Its mount table says where the cgroups are.
    """
    return [Room(max(0, free), name) for free, name in (*_whole(proc), *_cgroups(proc), *_own(proc))]


def _whole(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the memory that the whole system has free."""
    if (free := _fields(_read(proc / "meminfo")).get("MemAvailable")) is not None:
        yield free, "the system's free memory"


def _own(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the process's own limits (getrlimit), less what it uses of each."""
    used: dict[str, int] = {}
    for line in _read(proc / "self" / "limits").splitlines():
        for title, (key, name) in _RLIMITS.items():
            soft = line.removeprefix(title).split()[:1]
            if line.startswith(title) and soft and soft[0].isdecimal():
                used = used or _fields(_read(proc / "self" / "status"))
                yield int(soft[0]) - used.get(key, 0), name


def _cgroups(proc: Path) -> Iterator[tuple[int, str]]:
    """Yield the limits of the process's memory cgroup and of every cgroup above it, of versions 1 and 2."""
    paths = {}
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or "memory" in controllers.split(","):
            paths[bool(controllers)] = path
    for line in _read(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        is_v1 = kind[:1] == ["cgroup"] and "memory" in kind[-1].split(",")
        if len(place) < 5 or not (is_v1 or kind[:1] == ["cgroup2"]) or is_v1 not in paths:
            continue
        mount = Path(_unescaped(place[4]))
        for folder in _upwards(mount, _unescaped(place[3]), paths[is_v1]):
            for limit, usage, cache in (_V1,) if is_v1 else _V2:
                if (most := _number(folder / limit)) is not None:
                    dropped = _fields(_read(folder / "memory.stat"), 1).get(cache, 0)
                    used = max(0, (_number(folder / usage) or 0) - dropped)
                    yield most - used, f"the memory limit of the container or cgroup ({folder / limit})"


def _upwards(mount: Path, root: str, path: str) -> Iterator[Path]:
    """Yield the folder of the cgroup ``path``, then each folder above it, up to where the cgroup ``root`` is mounted.

    A container may see its own cgroup mounted as the root, or the host's path that it has no folder for.
    """
    inside = path.removeprefix(root.rstrip("/")).strip("/") if f"{path}/".startswith(f"{root.rstrip('/')}/") else ""
    names = [] if ".." in inside.split("/") else [name for name in inside.split("/") if name]
    for depth in range(len(names), -1, -1):
        yield mount.joinpath(*names[:depth])


def _unescaped(text: str) -> str:
    """Return a path of the mount table with its octal escapes as characters."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _read(path: Path) -> str:
    """Return a file's text, the empty text where the system does not give it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the only number of a file; None where the file is not there or says that there is no limit."""
    text = _read(path).strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _fields(text: str, unit: int = 1024) -> dict[str, int]:
    """Return the numbers of lines ``name: number`` in bytes, by name; ``unit`` is the bytes of one."""
    words = (line.split()[:2] for line in text.splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) * unit for pair in words if len(pair) == 2 and pair[1].isdecimal()}


@contextlib.contextmanager
def explained(what: str = "") -> Iterator[None]:
    """Raise HostMemoryError for any error inside by which the system refuses memory.

    Parameters
    ----------
    what : str
        The work that is done inside, such as "reading FILE": the error names it.
    """
    try:
        yield
    except (MemoryError, OSError, ImportError) as error:
        if isinstance(error, HostMemoryError) or not _refuses(error):
            raise
        raise refused(error, what) from error


def _refuses(error: Exception) -> bool:
    """Return whether memory is what the error is about; a library that cannot be mapped is an ImportError."""
    if isinstance(error, ImportError):
        return any(words in str(error) for words in _NOT_MAPPED)
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def refused(error: Exception, what: str = "") -> HostMemoryError:
    """Return the error as one that says what was asked for, which limit is nearest and what to change."""
    if isinstance(error, HostMemoryError):
        return error
    asked = str(error) or "the system refused a request for memory, whose size it does not tell"
    with contextlib.suppress(OSError, MemoryError):
        if found := rooms():
            free, name = min(found)
            asked += f"; {name} leaves {free / 1e6:.0f} MB"
    advice = "raise that limit or free memory, or set a smaller memory_limit or cache_size (--memory-limit, -m)"
    return HostMemoryError(f"out of memory{f', {what}' * bool(what)}: {asked}. To go on, {advice}")
