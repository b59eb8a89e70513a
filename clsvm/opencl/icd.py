"""Lets the OpenCL loader see CPU runtimes that pip installed, and drivers without an .icd file, beside the system's.

Runs before the first platform query. Where the user has set OCL_ICD_VENDORS nothing is touched; OCL_ICD_FILENAMES names
more libraries, which only one of the two loaders takes from there, and not that of pyopencl's wheels for Linux.
Otherwise a folder of .icd files is made in the user's cache (the system's own files copied, then what was found), and
OCL_ICD_VENDORS names it, so that nothing hides anything.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from clsvm import files
from clsvm.opencl import caches

if sys.platform != "win32":
    import resource

SETTINGS = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # the loader's: where a user has set one, it stays
SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
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
    caches.prepare()
    if os.environ.get("OCL_ICD_VENDORS"):
        return
    if sys.platform == "win32":  # the Khronos loader: the registry's drivers stay, these are added
        if os.environ.get("OCL_ICD_FILENAMES"):
            return
        found = [str(path) for path in _pip_runtimes("intelocl64.dll", "intelocl.dll")]
        if found:
            os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(found)
        return
    system = _entries(SYSTEM_VENDORS)
    listed = " ".join(system.values())
    extra = {}
    for path in (*_pip_runtimes("libintelocl.so"), *_bundled()):
        if path.name not in listed:
            extra[f"clsvm-{path.stem}.icd"] = str(path)
    named = filter(None, os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep))
    for name in (*_DRIVERS, *named):
        places = (name, *(f"{folder}/{name}" for folder in _FOLDERS))
        library = Path(name).name.split(".so")[0]
        if library not in listed and (place := next((one for one in places if not _load_error(one)), None)):
            extra[f"clsvm-{library}.icd"] = place
    folder = _folder({**system, **extra}) if extra else None
    if folder:
        os.environ["OCL_ICD_VENDORS"] = str(folder)
    elif extra and not system:  # no file can be written anywhere: the loader takes the name of one library
        os.environ["OCL_ICD_VENDORS"] = next(iter(extra.values()))


def _pip_runtimes(*names: str) -> Iterator[Path]:
    """Libraries of that name shipped by the intel-opencl-rt wheel of this environment."""
    try:
        shipped = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        shipped = []
    candidates = [Path(str(f.locate())).resolve() for f in shipped if f.name in names]
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


def _entries(folder: Path) -> dict[str, str]:
    """Return what a folder's .icd files hold, by their names; nothing where they may not be read."""
    try:
        return {path.name: path.read_text().strip() for path in sorted(folder.glob("*.icd"))}
    except OSError:
        return {}


def unloaded() -> list[str]:
    """Return why runtimes that the loader is pointed at are not there, a line for each library that does not load."""
    place = Path(os.environ.get("OCL_ICD_VENDORS") or SYSTEM_VENDORS)
    libraries = _entries(place).values() if place.is_dir() else [str(place)] if place != SYSTEM_VENDORS else []
    return [f"{one} does not load{_limit()} ({error})" for one in libraries if (error := _load_error(one))]


def _limit() -> str:
    """Return the limit of this process's address space in words, "" where there is none."""
    if sys.platform == "win32":
        return ""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if most == resource.RLIM_INFINITY else f" within an address space of {most >> 10} KiB (ulimit -v)"


def _load_error(library: str) -> str:
    """Return why a library does not load, in the system's words; "" where it does."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error).removeprefix(f"{library}: ")
    return ""


def _folder(entries: dict[str, str]) -> Path | None:
    """Return a folder that holds just these .icd files, or None where there is no place for one.

    The folder's name tells its content: processes share it, and none changes it.
    """
    name = f"icd-{hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]}"
    for base in caches.folders():
        try:
            return _written(base / name, entries)
        except OSError:
            continue
    return None


def _written(folder: Path, entries: dict[str, str]) -> Path:
    """Return the folder once it holds these .icd files and no other. Raises OSError where that cannot be."""
    files.private_folder(folder)
    if words := files.exposed(folder):
        raise PermissionError(words)
    for present in folder.glob("*.icd"):  # the loader takes all of them
        if not _right(present, entries.get(present.name)):
            present.unlink()
    for name, text in entries.items():
        if not (folder / name).exists():
            with files.atomic_write(folder / name) as stream:
                stream.write(text.encode())
                Path(stream.name).chmod(0o600)  # whatever the umask
    return folder


def _right(path: Path, text: str | None) -> bool:
    """Return whether a file is this user's own and holds the text."""
    own = path.is_file() and not path.is_symlink() and not files.changed_by_others(path)
    return own and path.read_text("utf-8", "replace") == text
