"""Lets the OpenCL loader see CPU runtimes that pip installed, and drivers without an .icd file, beside the system's.

Runs before the first platform query. Where the user has set OCL_ICD_VENDORS nothing is touched; OCL_ICD_FILENAMES names
more libraries, which only one of the two loaders takes from there, and not that of pyopencl's wheels for Linux.
Otherwise a folder of .icd files is made in the user's cache (the system's own files copied, then what was found), and
OCL_ICD_VENDORS names it, so that nothing hides anything.

Caches of compiled programs are a convenience: where their folder cannot be written, or its disk is full, the libraries
that would stumble over it are told to do without, before they are loaded.
"""

from __future__ import annotations

import atexit
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

from clsvm.errors import warn

SETTINGS = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # the loader's: where a user has set one, it stays
SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_LEAST = 16 << 20  # bytes that a cache's disk must have free: compilers of runtimes end the process where it is full
_DRIVERS = ("libnvidia-opencl.so.1", "libamdocl64.so", "libigdrcl.so")
# Where containers, WSL and ROCm put them, beside the folders that the system's loader looks in
_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/rocm/lib",
    "/opt/rocm/opencl/lib",
)


def prepare() -> None:
    """Point the loader at all runtimes of this machine, and away from caches that cannot be kept. Idempotent; never
    raises for a missing one."""
    _prepare_caches()
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    if sys.platform == "win32":  # the Khronos loader: the registry's drivers stay, these are added
        if os.environ.get("OCL_ICD_FILENAMES"):
            return
        found = [str(path) for path in _pip_runtimes("intelocl64.dll", "intelocl.dll")]
        if found:
            os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(found)
        return
    system = _system()
    listed = " ".join(system.values())
    extra = {}
    for path in (*_pip_runtimes("libintelocl.so"), *_bundled()):
        if path.name not in listed:
            extra[f"clsvm-{path.stem}.icd"] = str(path)
    named = filter(None, os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep))
    for name in (*_DRIVERS, *named):
        places = (name, *(f"{folder}/{name}" for folder in _FOLDERS))
        library = Path(name).name.split(".so")[0]
        if library not in listed and (place := next(filter(_loads, places), None)):
            extra[f"clsvm-{library}.icd"] = place
    folder = _folder({**system, **extra}) if extra else None
    if folder:
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    elif extra and not system:  # no file can be written anywhere: the loader takes the name of one library
        os.environ["OCL_ICD_VENDORS"] = next(iter(extra.values()))


def _prepare_caches() -> None:
    """Where pyopencl's caches or PoCL's cannot be kept, say so once and have them do without."""
    kept = {"PYOPENCL_NO_CACHE": ("pyopencl", "pytools"), "POCL_CACHE_DIR": ("pocl",)}
    faults = {
        setting: fault
        for setting, names in kept.items()
        if not os.environ.get(setting) and (fault := next(filter(None, map(_fault, map(user_cache_path, names))), ""))
    }
    os.environ.setdefault("PYOPENCL_CACHE_FAILURE_FATAL", "1")  # (unset it is a KeyError there, whatever has failed)
    if "PYOPENCL_NO_CACHE" in faults:
        os.environ["PYOPENCL_NO_CACHE"] = "1"
    if "POCL_CACHE_DIR" in faults and (folder := _spare()):  # (it compiles in there, so it needs one)
        os.environ["POCL_CACHE_DIR"] = str(folder)
    if faults:
        words = "compiled programs are not kept from one process to the next; XDG_CACHE_HOME can name another folder"
        warn(f"{next(iter(faults.values()))}: {words}")


def _fault(folder: Path) -> str:
    """Why no cache can be kept in a folder, found by making it and a file in it; "" where one can."""
    if not folder.is_absolute():
        return f"the cache {str(folder)!r} is in no home folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"the cache {str(folder)!r} cannot be written ({error.strerror})"
    return "" if free >= _LEAST else f"the cache {str(folder)!r} is on a disk with {free} bytes free"


@cache
def _spare() -> Path | None:
    """A folder of this process's own for what its cache cannot hold, or None."""
    for base in (None, "/dev/shm"):
        try:
            folder = Path(tempfile.mkdtemp(prefix="clsvm-", dir=base))
        except OSError:
            continue
        atexit.register(_remove, folder, os.getpid())
        if not _fault(folder):
            return folder
    return None


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not one forked from it
        shutil.rmtree(folder, ignore_errors=True)


def _pip_runtimes(*names: str) -> Iterator[Path]:
    """Libraries of that name shipped by the intel-opencl-rt wheel of this environment."""
    try:
        files = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(f.locate())).resolve() for f in files if f.name in names]
    candidates += [Path(sysconfig.get_path("data")) / "lib" / name for name in names]
    for path in candidates:
        if os.path.isfile(path):  # (False where it may not be looked at)
            yield path
            return


def _bundled() -> Iterator[Path]:
    """Runtimes that wheels put into pyopencl's own folder (PoCL's wheel does)."""
    spec = util.find_spec("pyopencl")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for icd in sorted(Path(folder, ".libs").glob("*.icd")):
            library = icd.parent / icd.read_text().strip()
            if library.is_file():
                yield library


def _system() -> dict[str, str]:
    """What the system's .icd files hold, by their names; nothing where they may not be read."""
    try:
        return {path.name: path.read_text().strip() for path in sorted(SYSTEM_VENDORS.glob("*.icd"))}
    except OSError:
        return {}


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _folder(entries: dict[str, str]) -> Path | None:
    """A folder holding just these .icd files; its name says its content, so processes share it and none changes it.
    None where there is no place for one."""
    name = f"icd-{hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]}"
    for base in (user_cache_path("clsvm"), _spare()):
        if base is None:
            continue
        try:
            return _written(base / name, entries)
        except OSError:
            continue
    return None


def _written(folder: Path, entries: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in entries.items():
        target = folder / name
        if not target.is_file() or target.read_text() != text:
            scratch = folder / f".{name}.{os.getpid()}"
            try:
                scratch.write_text(text)
                os.replace(scratch, target)
            finally:
                scratch.unlink(missing_ok=True)
    return folder
