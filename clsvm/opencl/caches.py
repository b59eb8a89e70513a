"""The folders that processes share: which of them can be used, and what stands in for one that cannot.

Programs are loaded from them, so only folders count that no other user can change. Caches of compiled programs are a
convenience: where one cannot be used, the library that would is told to do without, before it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

from clsvm import files
from clsvm.errors import warn

_LEAST = 16 << 20  # bytes that a cache's disk must have free: compilers of runtimes end the process where it is full


def prepare() -> None:
    """Have pyopencl and PoCL do without their caches where these cannot be used, and say so once."""
    kept = {"PYOPENCL_NO_CACHE": ("pyopencl", "pytools"), "POCL_CACHE_DIR": ("pocl",)}
    faults = {
        setting: words
        for setting, names in kept.items()
        if not os.environ.get(setting) and (words := next(filter(None, map(_fault, map(user_cache_path, names))), ""))
    }
    os.environ.setdefault("PYOPENCL_CACHE_FAILURE_FATAL", "1")  # (unset it is a KeyError there, whatever has failed)
    if "PYOPENCL_NO_CACHE" in faults:
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    if "POCL_CACHE_DIR" in faults and (folder := spare()):  # PoCL compiles in its cache, so it needs a folder
        os.environ["POCL_CACHE_DIR"] = str(folder / "pocl")
    if faults:
        words = "compiled programs are not kept from one process to the next; XDG_CACHE_HOME can name another folder"
        warn(f"{next(iter(faults.values()))}: {words}")


def folders() -> Iterator[Path]:
    """Return the folders for clsvm's own files that can be used: the user's cache, then the one that stands in."""
    if not _fault(own := user_cache_path("clsvm")):
        yield own
    if other := spare():
        yield other


@cache
def spare() -> Path | None:
    """Return the folder that stands in for caches that cannot be used, or None where there is no place for one.

    All processes of a user share it, so none has to remove it.
    """
    user = getattr(os, "geteuid", lambda: "user")()
    for base in (tempfile.gettempdir, lambda: "/dev/shm"):
        try:
            folder = Path(base(), f"clsvm-{user}")
        except OSError:  # no folder for temporary files
            continue
        if not _fault(folder):
            return folder
    return None


@cache
def _fault(folder: Path) -> str:
    """Return why a folder cannot be used, in words; "" where it can. The folder and a file in it are made."""
    if not folder.is_absolute():
        return f"the cache {str(folder)!r} is in no home folder"
    try:
        files.private_folder(folder)
        if words := files.exposed(folder) or _exposed_inside(folder):
            return f"the cache {str(folder)!r} is open to others ({words})"
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the cache {str(folder)!r} cannot be written ({error.strerror})"
    return "" if free >= _LEAST else f"the cache {str(folder)!r} is on a disk with {free} bytes free"


def _exposed_inside(folder: Path) -> str:
    """Return who else can change what a folder holds directly, where others can reach into the folder."""
    if not folder.stat().st_mode & 0o011:
        return ""
    for place in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process removed it meanwhile
            if words := files.changed_by_others(place):
                return words
    return ""
