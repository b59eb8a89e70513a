"""Lets the OpenCL loader see CPU runtimes that pip installed, and drivers without an .icd file, beside the system's.

Runs before the first platform query. Where the user has set OCL_ICD_VENDORS or OCL_ICD_FILENAMES nothing is touched.
Otherwise a folder of .icd files is made in the user's cache (the system's own files copied, then what was found), and
OCL_ICD_VENDORS names it, so that nothing hides anything.
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
from importlib import metadata, util
from pathlib import Path

from platformdirs import user_cache_path

SETTINGS = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # the loader's: where a user has set one, it stays
SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
_DRIVERS = ("libnvidia-opencl.so.1", "libamdocl64.so", "libigdrcl.so")


def prepare() -> None:
    """Point the loader at all runtimes of this machine. Idempotent; never raises for a missing one."""
    if not _writable(user_cache_path("pyopencl")):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # its cache would raise, and the device look broken
    if any(os.environ.get(name) for name in SETTINGS):
        return
    if sys.platform == "win32":  # the Khronos loader: the registry's drivers stay, these are added
        found = [str(path) for path in _pip_runtimes("intelocl64.dll", "intelocl.dll")]
        if found:
            os.environ["OCL_ICD_FILENAMES"] = os.pathsep.join(found)
        return
    system = {path.name: path.read_text().strip() for path in sorted(SYSTEM_VENDORS.glob("*.icd"))}
    listed = " ".join(system.values())
    extra = {}
    for path in (*_pip_runtimes("libintelocl.so"), *_bundled()):
        if path.name not in listed:
            extra[f"clsvm-{path.stem}.icd"] = str(path)
    for name in _DRIVERS:
        if name.split(".so")[0] not in listed and _loads(name):
            extra[f"clsvm-{name.split('.so')[0]}.icd"] = name
    if extra:
        os.environ["OCL_ICD_VENDORS"] = str(_folder({**system, **extra}))


def _pip_runtimes(*names: str) -> Iterator[Path]:
    """Libraries of that name shipped by the intel-opencl-rt wheel of this environment."""
    try:
        files = metadata.files("intel-opencl-rt") or []
    except metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(f.locate())).resolve() for f in files if f.name in names]
    candidates += [Path(sysconfig.get_path("data")) / "lib" / name for name in names]
    for path in candidates:
        if path.is_file():
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


def _writable(path: Path) -> bool:
    """Whether the folder is there, or could be made, for writing."""
    nearest = next(folder for folder in (path, *path.parents) if folder.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _folder(entries: dict[str, str]) -> Path:
    """A folder holding just these .icd files; its name says its content, so processes share it and none changes it."""
    digest = hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()[:12]
    try:
        base = user_cache_path("clsvm", ensure_exists=True)
        if not os.access(base, os.W_OK):
            raise PermissionError(base)
    except OSError:
        base = Path(tempfile.mkdtemp(prefix="clsvm-"))
        atexit.register(shutil.rmtree, base, ignore_errors=True)
    folder = base / f"icd-{digest}"
    folder.mkdir(exist_ok=True)
    for name, text in entries.items():
        target = folder / name
        if not target.is_file() or target.read_text() != text:
            scratch = folder / f".{name}.{os.getpid()}"
            scratch.write_text(text)
            os.replace(scratch, target)
    return folder
