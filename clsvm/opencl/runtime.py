"""Make the OpenCL runtimes of this machine visible to pyopencl's loader, and import pyopencl.

Other modules of clsvm import pyopencl from here. An .icd file names the library of an OpenCL runtime. Before the
import, :func:`prepare` finds runtimes that the loader would miss: CPU runtimes that pip installed, and drivers without
an .icd file. It makes a folder of .icd files in the user's cache: copies of the system's .icd files, and one for each
runtime that it found. It sets the environment variable OCL_ICD_VENDORS, which tells the loader to read this folder. If
the user has set the variable, nothing is changed.

A user can name further runtimes in OCL_ICD_FILENAMES. The loader in pyopencl's wheels for Linux ignores this variable,
so :func:`prepare` adds .icd files for the named runtimes to the folder.

All processes of the user share the folder. For safety it is used only if no other user can change it. Further, if
pyopencl or PoCL cannot write its cache of compiled programs, :func:`prepare` tells it to do without this cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata, util
from pathlib import Path

from platformdirs import user_cache_path

from clsvm import files
from clsvm.errors import warn

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
DRIVERS = ("libnvidia-opencl.so.1", "libamdocl64.so", "libigdrcl.so")
# Containers, WSL and ROCm place drivers in the folders _FOLDERS, which the loader does not search.
_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/rocm/lib",
    "/opt/rocm/opencl/lib",
)
_MIN_FREE = 16 << 20  # free bytes needed on a cache's disk; some OpenCL compilers end the process if the disk is full


def prepare() -> None:
    """Make all OpenCL runtimes of this machine visible to pyopencl's loader.

    If pyopencl or PoCL cannot write to its cache of compiled programs, the function also switches the cache off, or
    moves it to a temporary folder. The function may be called again. If no runtime is found, it raises no error.
    """
    disable_unusable_caches()
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    if sys.platform == "win32":  # Windows lists drivers in its registry, and OCL_ICD_FILENAMES adds further ones
        found = [str(path) for path in _pip_runtimes("intelocl64.dll", "intelocl.dll")]
        if found and not os.environ.get("OCL_ICD_FILENAMES"):
            os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(found)
        return
    system = _entries(SYSTEM_VENDORS)
    listed = " ".join(system.values())
    shipped = (path for path in (*_pip_runtimes("libintelocl.so"), *_bundled()) if path.name not in listed)
    extra = {f"clsvm-{path.stem}.icd": str(path) for path in shipped}
    named = filter(None, os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep))
    for name in (*DRIVERS, *named):
        places = (name, *(f"{folder}/{name}" for folder in _FOLDERS))
        library = Path(name).name.split(".so")[0]
        if library not in listed and (location := next((one for one in places if not load_error(one)), None)):
            extra[f"clsvm-{library}.icd"] = location
    if extra and (folder := _folder({**system, **extra})):
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    elif extra and not system:
        # No folder that lists several libraries can be written, so OCL_ICD_VENDORS is the path of a single library.
        os.environ["OCL_ICD_VENDORS"] = next(iter(extra.values()))


def unloaded() -> list[str]:
    """Return a line of text for each OpenCL runtime that the loader is told to load but cannot load.

    The line has the path of the runtime's library, and the reason.
    """
    location = Path(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS)
    is_folder = location == SYSTEM_VENDORS or location.is_dir()
    libraries = [*_entries(location).values()] if is_folder else [str(location)]
    return [f"{one} does not load ({error})" for one in libraries if (error := load_error(one))]


def load_error(library: str) -> str:
    """Try to load the library with this path. Return the system's error message, or "" if the library loads."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error).removeprefix(f"{library}: ")
    return ""


def _pip_runtimes(*names: str) -> list[Path]:
    """Return a list with the path of the library that pip's package intel-opencl-rt installed, or an empty list.

    ``names`` are possible file names of the library.
    """
    try:
        shipped = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        shipped = []
    candidates = [Path(str(f.locate())).resolve() for f in shipped if f.name in names]
    candidates += [Path(sysconfig.get_path("data")) / "lib" / name for name in names]
    # For a file in an unreadable folder, os.path.isfile returns False, but Path.is_file would raise an error.
    return [path for path in candidates if os.path.isfile(path)][:1]


def _bundled() -> Iterator[Path]:
    """Yield the paths of OpenCL runtimes in pyopencl's package folder. PoCL's wheel installs its library there."""
    spec = util.find_spec("pyopencl")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for icd in sorted(Path(folder, ".libs").glob("*.icd")):
            library = icd.parent / icd.read_text().strip()
            if library.is_file():
                yield library


def _entries(folder: Path) -> dict[str, str]:
    """Return a dict from the name of each .icd file in a folder to the file's content.

    If the folder or a file cannot be read, return {}.
    """
    try:
        return {path.name: path.read_text().strip() for path in sorted(folder.glob("*.icd"))}
    except OSError:
        return {}


def _folder(entries: dict[str, str]) -> Path | None:
    """Make a folder with exactly the .icd files in ``entries``, and return the folder's path.

    ``entries`` maps file names to contents. Return None if no folder can be written. The folder's name is a hash of
    ``entries``, so processes that need equal files share one folder.
    """
    name = f"icd-{hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]}"
    for base in folders():
        with contextlib.suppress(OSError):
            return _written(base / name, entries)
    return None


def _written(folder: Path, entries: dict[str, str]) -> Path:
    """Write .icd files to a folder, and remove its other .icd files. ``entries`` maps file names to contents.

    Return the folder. Raises OSError if the folder cannot be written, or if other users can change it.
    """
    files.private_folder(folder)
    if words := files.exposed(folder):
        raise PermissionError(words)
    for present in folder.glob("*.icd"):  # delete each file whose name or content is not in ``entries``
        private = present.is_file() and not present.is_symlink() and not files.changed_by_others(present)
        if not private or present.read_text("utf-8", "replace") != entries.get(present.name):
            present.unlink()
    for name, text in entries.items():
        if not (folder / name).exists():
            with files.atomic_write(folder / name) as stream:
                stream.write(text.encode())
                Path(stream.name).chmod(0o600)  # so that the access rights do not depend on the umask
    return folder


def disable_unusable_caches() -> None:
    """Test the folders in which pyopencl and PoCL cache compiled programs.

    If pyopencl's folder cannot be used, set the environment variable PYOPENCL_NO_CACHE, so that pyopencl works without
    a cache. If PoCL's folder cannot be used, set POCL_CACHE_DIR to a temporary folder. Give one warning if any folder
    cannot be used.
    """
    caches = {"PYOPENCL_NO_CACHE": ("pyopencl", "pytools"), "POCL_CACHE_DIR": ("pocl",)}
    faults = {
        setting: words
        for setting, names in caches.items()
        if not os.environ.get(setting) and (words := next(filter(None, map(_fault, map(user_cache_path, names))), ""))
    }
    os.environ.setdefault("PYOPENCL_CACHE_FAILURE_FATAL", "")  # "": if its cache fails, pyopencl warns and goes on
    if "PYOPENCL_NO_CACHE" in faults:
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    if "POCL_CACHE_DIR" in faults and (folder := fallback_folder()):  # PoCL cannot compile without a cache folder
        os.environ["POCL_CACHE_DIR"] = str(folder / "pocl")
    if faults:
        words = "compiled programs are not kept from one process to the next; XDG_CACHE_HOME can name another folder"
        warn(f"{next(iter(faults.values()))}: {words}")


def folders() -> Iterator[Path]:
    """Yield the folders that clsvm can write its files to: first one in the user's cache, then a temporary one."""
    if not _fault(cache := user_cache_path("clsvm")):
        yield cache
    if other := fallback_folder():
        yield other


@cache
def fallback_folder() -> Path | None:
    """Return the temporary folder to use if this user's cache folders cannot be used.

    Return None if the temporary folder cannot be used either. All processes of the user share the temporary folder, so
    no process removes it.
    """
    user = getattr(os, "geteuid", lambda: "user")()
    with contextlib.suppress(OSError):  # gettempdir raises if there is no folder for temporary files
        folder = Path(tempfile.gettempdir(), f"clsvm-{user}")
        if not _fault(folder) and not files.exposed(folder):
            return folder
    return None


@cache
def _fault(folder: Path) -> str:
    """Make a folder, and test it by writing a temporary file. Return why it cannot be used as a cache, or "" if it can.

    A folder on a disk that is almost full cannot be used.
    """
    if not folder.is_absolute():
        return f"the cache {str(folder)!r} is in no home folder"
    try:
        files.private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the cache {str(folder)!r} cannot be written ({error.strerror})"
    return "" if free >= _MIN_FREE else f"the cache {str(folder)!r} is on a disk with {free} bytes free"


# Environment variables of the OpenCL loader with the user's values. They are read before prepare() changes them.
SETTINGS = {name: value for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES") if (value := os.environ.get(name))}
prepare()
import pyopencl as cl  # noqa: E402

__all__ = ["SETTINGS", "cl", "folders", "unloaded"]
