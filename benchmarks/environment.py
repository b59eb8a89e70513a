"""What the numbers depend on besides the code: machine and versions, without names of people, hosts or folders."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "numpy",
    "scipy",
    "scikit-learn",
    "pyopencl",
    "mako",
    "scikit-learn-intelex",
    "daal",
    "intel-opencl-rt",
    "pykeops",
)


def machine() -> dict[str, str | int | float]:
    """Processor, cores that this process may use, memory in bytes (0 where unknown), system."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Of the packages that matter here; those not installed are left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
