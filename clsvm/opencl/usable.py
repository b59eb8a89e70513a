"""Whether fits work on a device: a small fit in a process of its own, which a broken runtime may end.

A fit that passed is remembered by an empty file in a folder of :func:`runtime.folders`. Its name stands for the device
and its driver. A failure is tried again by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from clsvm.opencl import runtime
from clsvm.opencl.runtime import cl

PROGRAM = "clsvm.small_fit"  # the module that makes the fit
INSIDE = "CLSVM_TRIAL"  # the variable that is set in its process, where every device counts as usable
PASSED, FAILED = "passed", "failed: "  # how its last line of output begins
SECONDS = 90  # that a small fit may take: slow compilers take half of that


def failure(index: int, device: cl.Device) -> str:
    """Return why a fit on a device failed, in words; "" where one passed or none could be started.

    index: the device's place among the visible ones.
    """
    if os.environ.get(INSIDE):
        return ""
    name = hashlib.sha256(json.dumps([*identity(device), cl.VERSION_TEXT]).encode()).hexdigest()[:12]
    mark = next((folder / f"fits-{name}" for folder in runtime.folders()), None)
    if mark and mark.is_file():
        return ""
    words = _fit(index, device)
    if mark and words == PASSED:
        with contextlib.suppress(OSError):  # the next process tries again
            mark.touch(mode=0o600)
    return words.removeprefix(FAILED) if words.startswith(FAILED) else ""


def identity(device: cl.Device) -> list[str]:
    """Return what tells a device and its driver from others."""
    return [device.platform.name, device.platform.version, device.name, device.driver_version]


def _fit(index: int, device: cl.Device) -> str:
    """Return the last line of the program's output, made up where its process was killed; "" where nothing is known."""
    from multiprocessing.spawn import get_executable

    python = get_executable()
    if getattr(sys, "frozen", False) or not python:  # the program would start itself instead of Python
        return ""
    try:
        here = [str(Path(place).absolute()) for place in sys.path]
    except FileNotFoundError:  # the working directory was removed
        here = [place for place in sys.path if os.path.isabs(place)]
    environment = {name: value for name, value in os.environ.items() if name != "CLSVM_PROFILE"}
    environment |= {INSIDE: "1", "PYTHONPATH": os.pathsep.join(here)}
    command = [os.fsdecode(python), "-P", "-W", "ignore", "-m", PROGRAM, str(index), json.dumps(identity(device))]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{FAILED}a small fit did not end within {SECONDS} seconds"
    except OSError:
        return ""
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if said := next((line for line in lines if line.startswith((PASSED, FAILED))), ""):
        return said
    if not 0 <= done.returncode < 256:
        ending = f"exit code {done.returncode:#x}"
        with contextlib.suppress(ValueError):
            ending = signal.Signals(-done.returncode).name
        last = next(filter(None, reversed(done.stderr.decode("utf-8", "replace").splitlines())), "")
        return f"{FAILED}a small fit ended its process with {ending}" + f" ({last[:200]})" * bool(last)
    return ""
