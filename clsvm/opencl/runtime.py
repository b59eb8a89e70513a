"""The OpenCL runtimes of this machine, made ready before pyopencl is imported, which happens here alone.

The loader sees CPU runtimes that pip installed, and drivers without an .icd file, beside the system's. Where the user
has set OCL_ICD_VENDORS nothing is touched; OCL_ICD_FILENAMES names more libraries, which only one of the two loaders
takes from there, and not that of pyopencl's wheels for Linux. Otherwise a folder of .icd files is made in the user's
cache (the system's own files copied, then what was found), and OCL_ICD_VENDORS names it, so that nothing hides
anything.

Programs and libraries are loaded from folders that processes share, so only folders count that no other user can
change. Caches of compiled programs are a convenience: where one cannot be used, the library that would use it is told
to do without.
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

if sys.platform != "win32":
    import resource

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
DRIVERS = ("libnvidia-opencl.so.1", "libamdocl64.so", "libigdrcl.so")
# Where containers, WSL and ROCm put them, beside the folders that the system's loader looks in
_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/rocm/lib",
    "/opt/rocm/opencl/lib",
)
_LEAST = 16 << 20  # bytes that a cache's disk must have free: compilers of runtimes end the process where it is full


def prepare() -> None:
    """Point the loader at all runtimes of this machine, and away from caches that cannot be kept. Idempotent; never
    raises for a missing one."""
    leave_caches()
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    if sys.platform == "win32":  # the Khronos loader: the registry's drivers stay, these are added
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
        if library not in listed and (place := next((one for one in places if not load_error(one)), None)):
            extra[f"clsvm-{library}.icd"] = place
    if extra and (folder := _folder({**system, **extra})):
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    elif extra and not system:  # no file can be written anywhere: the loader takes the name of one library
        os.environ["OCL_ICD_VENDORS"] = next(iter(extra.values()))


def unloaded() -> list[str]:
    """Return why runtimes that the loader is pointed at are not there, a line for each library that does not load."""
    place = Path(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS)
    libraries = _entries(place).values() if place.is_dir() else [str(place)] if place != SYSTEM_VENDORS else []
    limit = ""
    if sys.platform != "win32" and (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limit = f" within an address space of {most >> 10} KiB (ulimit -v)"
    return [f"{one} does not load{limit} ({error})" for one in libraries if (error := load_error(one))]


def load_error(library: str) -> str:
    """Return why a library does not load, in the system's words; "" where it does."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error).removeprefix(f"{library}: ")
    return ""


def _pip_runtimes(*names: str) -> list[Path]:
    """Return the library of one of these names that the intel-opencl-rt wheel of this environment has, if any."""
    try:
        shipped = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        shipped = []
    candidates = [Path(str(f.locate())).resolve() for f in shipped if f.name in names]
    candidates += [Path(sysconfig.get_path("data")) / "lib" / name for name in names]
    return [path for path in candidates if os.path.isfile(path)][:1]  # (False where it may not be looked at)


def _bundled() -> Iterator[Path]:
    """Yield runtimes that wheels put into pyopencl's own folder (PoCL's wheel does)."""
    spec = util.find_spec("pyopencl")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for icd in sorted(Path(folder, ".libs").glob("*.icd")):
            library = icd.parent / icd.read_text().strip()
            if library.is_file():
                yield library


def _entries(folder: Path) -> dict[str, str]:
    """Return what a folder's .icd files hold, by their names; nothing where they may not be read."""
    try:
        return {path.name: path.read_text().strip() for path in sorted(folder.glob("*.icd"))}
    except OSError:
        return {}


def _folder(entries: dict[str, str]) -> Path | None:
    """Return a folder that holds just these .icd files, or None where there is no place for one.

    The folder's name tells its content: processes share it, and none changes it.
    """
    name = f"icd-{hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]}"
    for base in folders():
        with contextlib.suppress(OSError):
            return _written(base / name, entries)
    return None


def _written(folder: Path, entries: dict[str, str]) -> Path:
    """Return the folder once it holds these .icd files and no other. Raises OSError where that cannot be."""
    files.private_folder(folder)
    if words := files.exposed(folder):
        raise PermissionError(words)
    for present in folder.glob("*.icd"):  # the loader takes all of them
        own = present.is_file() and not present.is_symlink() and not files.changed_by_others(present)
        if not own or present.read_text("utf-8", "replace") != entries.get(present.name):
            present.unlink()
    for name, text in entries.items():
        if not (folder / name).exists():
            with files.atomic_write(folder / name) as stream:
                stream.write(text.encode())
                Path(stream.name).chmod(0o600)  # whatever the umask
    return folder


def leave_caches() -> None:
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
    """Yield the folders for clsvm's own files that can be used: the user's cache, then the one that stands in."""
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
        with contextlib.suppress(OSError):  # no folder for temporary files
            folder = Path(base(), f"clsvm-{user}")
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
    for place in folder.iterdir() if folder.stat().st_mode & 0o011 else ():
        with contextlib.suppress(FileNotFoundError):  # another process removed it meanwhile
            if words := files.changed_by_others(place):
                return words
    return ""


# The user's own settings of the loader, which stay
SETTINGS = {name: value for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES") if (value := os.environ.get(name))}
prepare()
import pyopencl as cl  # noqa: E402

__all__ = ["SETTINGS", "SYSTEM_VENDORS", "cl", "folders", "load_error", "prepare", "unloaded"]
