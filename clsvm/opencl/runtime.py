"""Make the OpenCL runtimes of this machine visible to pyopencl's loader, and import pyopencl.

Other modules of clsvm import pyopencl from here. :func:`prepare` finds runtimes that the system's loader misses: CPU
runtimes that pip installed, and drivers without an .icd file. It makes a folder of .icd files in the user's cache:
copies of the system's .icd files, and one for each runtime found. The environment variable OCL_ICD_VENDORS then names
this folder for the loader. If the user has set OCL_ICD_VENDORS, nothing is changed. The variable OCL_ICD_FILENAMES
names further libraries. The loader in pyopencl's wheels for Linux ignores this variable, so :func:`prepare` adds its
libraries to the folder too.

The folder is shared by all processes of the user. For safety it is used only if no other user can change it. Caches of
compiled programs are optional. If a cache cannot be written, pyopencl or PoCL is told to work without it.
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
# Folders where containers, WSL and ROCm place drivers, which the system's loader does not search
_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/rocm/lib",
    "/opt/rocm/opencl/lib",
)
_MIN_FREE = 16 << 20  # least free bytes on a cache's disk; some OpenCL compilers end the process if the disk is full


def prepare() -> None:
    """Make all OpenCL runtimes of this machine visible to the loader, and disable caches that cannot be used.

    Further calls are allowed. An absent runtime raises no error.
    """
    disable_unusable_caches()
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    if sys.platform == "win32":  # the loader reads OCL_ICD_FILENAMES in addition to the drivers in the registry
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
    elif extra and not system:  # no folder can be written, but OCL_ICD_VENDORS may also name one library
        os.environ["OCL_ICD_VENDORS"] = next(iter(extra.values()))


def unloaded() -> list[str]:
    """Return a line for each library that the loader should load but cannot. The line gives the reason."""
    location = Path(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS)
    is_folder = location == SYSTEM_VENDORS or location.is_dir()
    libraries = [*_entries(location).values()] if is_folder else [str(location)]
    return [f"{one} does not load ({error})" for one in libraries if (error := load_error(one))]


def load_error(library: str) -> str:
    """Return the system's message about why a library does not load, or "" if it loads."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error).removeprefix(f"{library}: ")
    return ""


def _pip_runtimes(*names: str) -> list[Path]:
    """Return the path of the library that pip's package intel-opencl-rt installed, as a list of at most one path.

    names: possible file names of the library.
    """
    try:
        shipped = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        shipped = []
    candidates = [Path(str(f.locate())).resolve() for f in shipped if f.name in names]
    candidates += [Path(sysconfig.get_path("data")) / "lib" / name for name in names]
    # os.path.isfile returns False for a file in an unreadable folder, where Path.is_file raises an error.
    return [path for path in candidates if os.path.isfile(path)][:1]


def _bundled() -> Iterator[Path]:
    """Yield the paths of runtime libraries in pyopencl's own folder, where PoCL's wheel installs its library."""
    spec = util.find_spec("pyopencl")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for icd in sorted(Path(folder, ".libs").glob("*.icd")):
            library = icd.parent / icd.read_text().strip()
            if library.is_file():
                yield library


def _entries(folder: Path) -> dict[str, str]:
    """Return file name -> content for the .icd files of a folder. Return an empty dictionary if it cannot be read."""
    try:
        return {path.name: path.read_text().strip() for path in sorted(folder.glob("*.icd"))}
    except OSError:
        return {}


def _folder(entries: dict[str, str]) -> Path | None:
    """Return a folder with exactly the .icd files ``entries`` (name -> content), or None if no folder can be written.

    The name of the folder is a hash of its content. Processes share the folder, and no process changes its content.
    """
    name = f"icd-{hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]}"
    for base in folders():
        with contextlib.suppress(OSError):
            return _written(base / name, entries)
    return None


def _written(folder: Path, entries: dict[str, str]) -> Path:
    """Write the .icd files ``entries`` (name -> content) to the folder, remove all others, and return the folder.

    Raises OSError if the folder cannot be written or other users can change it.
    """
    files.private_folder(folder)
    if words := files.exposed(folder):
        raise PermissionError(words)
    for present in folder.glob("*.icd"):  # the loader would also load an .icd file that is not in entries
        private = present.is_file() and not present.is_symlink() and not files.changed_by_others(present)
        if not private or present.read_text("utf-8", "replace") != entries.get(present.name):
            present.unlink()
    for name, text in entries.items():
        if not (folder / name).exists():
            with files.atomic_write(folder / name) as stream:
                stream.write(text.encode())
                Path(stream.name).chmod(0o600)  # independent of the umask
    return folder


def disable_unusable_caches() -> None:
    """Test the caches of compiled programs of pyopencl and PoCL. Disable those that cannot be used, and warn once."""
    caches = {"PYOPENCL_NO_CACHE": ("pyopencl", "pytools"), "POCL_CACHE_DIR": ("pocl",)}
    faults = {
        setting: words
        for setting, names in caches.items()
        if not os.environ.get(setting) and (words := next(filter(None, map(_fault, map(user_cache_path, names))), ""))
    }
    os.environ.setdefault("PYOPENCL_CACHE_FAILURE_FATAL", "")  # pyopencl then warns and builds without its cache
    if "PYOPENCL_NO_CACHE" in faults:
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    if "POCL_CACHE_DIR" in faults and (folder := fallback_folder()):  # PoCL compiles in its cache, so it needs a folder
        os.environ["POCL_CACHE_DIR"] = str(folder / "pocl")
    if faults:
        words = "compiled programs are not kept from one process to the next; XDG_CACHE_HOME can name another folder"
        warn(f"{next(iter(faults.values()))}: {words}")


def folders() -> Iterator[Path]:
    """Yield the usable folders for clsvm's files: one in the user's cache, then the temporary folder of the user."""
    if not _fault(cache := user_cache_path("clsvm")):
        yield cache
    if other := fallback_folder():
        yield other


@cache
def fallback_folder() -> Path | None:
    """Return a temporary folder of this user that replaces unusable cache folders, or None if there is none.

    All processes of the user share the folder, so no process removes it.
    """
    user = getattr(os, "geteuid", lambda: "user")()
    with contextlib.suppress(OSError):  # gettempdir raises if there is no folder for temporary files
        folder = Path(tempfile.gettempdir(), f"clsvm-{user}")
        if not _fault(folder) and not files.exposed(folder):
            return folder
    return None


@cache
def _fault(folder: Path) -> str:
    """Return why a folder cannot be used, or "" if it can. Make the folder, and write a temporary file to test it."""
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


# The user's environment variables for the loader, read before prepare() changes them
SETTINGS = {name: value for name in ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES") if (value := os.environ.get(name))}
prepare()
import pyopencl as cl  # noqa: E402

__all__ = ["SETTINGS", "cl", "folders", "unloaded"]
