"""The devices of this machine: which there are, which of them work, which one a user means, and its profile.

A device works where a small fit in a process of its own, which a broken runtime may end, has the right result. A fit
that passed is remembered by an empty file in a folder of :func:`runtime.folders`. Its name stands for the device and
its driver. A failure is tried again by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from clsvm.errors import DeviceError, install
from clsvm.opencl import profiles, runtime
from clsvm.opencl.contexts import build_lock, context_of, forked, lost, quirks
from clsvm.opencl.profiles import PROFILES, Profile
from clsvm.opencl.runtime import SETTINGS, cl, unloaded


@dataclass(frozen=True)
class DeviceInfo:
    """One line of :func:`devices`; memory and largest_buffer in bytes, reason says why it is not usable."""

    index: int
    platform: str
    name: str
    driver: str
    memory: int
    largest_buffer: int
    fp64: bool
    usable: bool
    reason: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name} ({self.platform}, driver {self.driver})"


@cache
def visible(process: int) -> list[cl.Device]:
    """Return pyopencl's devices of every platform, in the order of their indices, each once.

    A loader lists a platform twice where it meets one library under two names.
    """
    try:
        return list(dict.fromkeys(device for platform in cl.get_platforms() for device in platform.get_devices()))
    except cl.Error:
        return []


def devices() -> list[DeviceInfo]:
    """Return every OpenCL device of this machine.

    A device is usable where a small fit in a process of its own had the right result. A fit that passed is remembered
    until the driver or clsvm changes.
    """
    return [_info(os.getpid(), index, tried=True) for index in range(len(visible(os.getpid())))]


def _kind(device: cl.Device) -> str:
    return "gpu" if device.type & cl.device_type.GPU else "cpu" if device.type & cl.device_type.CPU else "other"


@cache
def _info(process: int, index: int, tried: bool) -> DeviceInfo:
    """Return what is known of a device. tried: whether it counts as usable by a small fit, not by a context alone."""
    device = visible(process)[index]
    reason = _reason(index, device, tried)
    return DeviceInfo(
        index=index,
        platform=device.platform.name.strip(),
        name=" ".join(device.name.split()),
        driver=device.driver_version.strip(),
        memory=device.global_mem_size,
        largest_buffer=device.max_mem_alloc_size,
        fp64="cl_khr_fp64" in device.extensions,
        usable=not reason,
        reason=reason,
        kind=_kind(device),
    )


def _reason(index: int, device: cl.Device, tried: bool) -> str:
    """Return why a device is not usable, in words; "" where nothing speaks against it."""
    try:
        context_of(device)
    except DeviceError as error:
        return str(error)
    except Exception as error:  # whatever a broken driver throws: it is a reason, not a crash
        return f"no context could be made: {str(error).strip()[:200] or type(error).__name__}"
    with build_lock:
        return fit_failure(index, device) if tried else ""


def describe(info: Sequence[DeviceInfo] | None = None) -> str:
    """Return a line for each device, for error messages; of all devices with the runtimes that did not load."""
    lines = [f"{d.index}: {d}{'' if d.usable else ' - not usable: ' + d.reason}" for d in info or devices()]
    return "\n".join(f"  {line}" for line in [*lines, *([] if info else unloaded())]) or "  (none)"


def no_platform() -> DeviceError:
    """Return the error where no platform is found: first its cause, then what brings a platform.

    Causes are a fork, a runtime that does not load, and the user's settings, which may hide platforms.
    """
    if forked():
        return lost("the OpenCL runtime")
    causes = "".join(f"{words}; " for words in unloaded())
    named = " and ".join(f"{name}={value!r}" for name, value in SETTINGS.items())
    where = f" where {named} says; without it those of the system and of pip count" if named else ""
    words = f"no OpenCL platform was found{where}; {cure()} ('clsvm devices' lists what is visible)"
    return DeviceError(f"{causes}{words}")


def _unusable(named: str, infos: Sequence[DeviceInfo]) -> DeviceError:
    """Return the error where no device that ``named`` can mean is usable: first its cause."""
    causes = "; ".join(dict.fromkeys(info.reason for info in infos))
    whose = f" that {named!r} names" if named else ""
    helps = "" if any(info.usable for info in devices()) else f"; {cure()}"
    return DeviceError(f"{causes}; no OpenCL device{whose} is usable{helps}; there are:\n{describe()}")


def cure() -> str:
    """Return what brings a device, in words."""
    return f"{install('cpu')} brings a CPU runtime, a GPU needs its vendor's driver"


_NUMBERED = re.compile(r"\d+|(gpu|cpu)(:\d+)?")  # text that is no part of a name
_KINDS = "device must be None, an index, a string, a pyopencl Device or CommandQueue"


def find(spec: Any = None) -> DeviceInfo:
    """Return the device that ``spec`` means.

    spec: None (CLSVM_DEVICE, its first where it names several, else a usable GPU, else a usable CPU; of several the one
    with most memory), "gpu", "cpu", part of a platform's name or, where no platform has it, of a device's, "name:index"
    and "gpu:index" (the index-th of those that match), an index as a number or text, or a pyopencl Device (or a
    sub-device of one) or CommandQueue.
    Raises DeviceError (none, none usable, several match) and TypeError.
    """
    here = visible(os.getpid())
    if isinstance(spec, cl.CommandQueue):
        spec = spec.device
    if isinstance(spec, cl.Device):
        return _info(os.getpid(), here.index(_whole(spec, here)), tried=False)
    if isinstance(spec, int | np.integer) and not isinstance(spec, bool):
        spec = str(spec)
    if spec is not None and not isinstance(spec, str):
        raise TypeError(f"{_KINDS}, got {spec!r}")
    if not here:
        raise no_platform()
    given = (first(None) or "" if spec is None else spec).strip()
    if isinstance(separated(given), list):
        raise DeviceError(f"expected one device, got several: {given!r}")
    asked = " ".join(given.split()).lower()
    hits = _matches(asked, here)
    if not hits:
        raise DeviceError(f"no OpenCL device matches {given!r}; there are:\n{describe()}")
    info = partial(_info, os.getpid(), tried=len(hits) > 1)  # (a small fit takes seconds: where there is a choice)
    choice = asked in ("", "gpu", "cpu")  # several are no ambiguity: the best usable one, tried in this order
    if choice:
        order = {"gpu": 0, "cpu": 1, "other": 2}
        hits.sort(key=lambda i: (order[_kind(here[i])], -here[i].global_mem_size, i))
    usable = [*islice((one for one in map(info, hits) if one.usable), 1 if choice else None)]
    if len(usable) > 1:
        words = f"{len(usable)} OpenCL devices match {given!r}; say more, or 'name:index'"
        raise DeviceError(f"{words}:\n{describe(usable)}")
    if not usable:
        raise _unusable(given, [*map(info, hits)])
    return usable[0]


def separated(spec: Any) -> Any:
    """Return the list of names that text with commas stands for, and anything else unchanged.

    A comma inside the name of a visible device separates nothing: pieces that only together are part of such a name
    stay together. Raises DeviceError for an empty name, which would mean the default device.
    """
    if not (isinstance(spec, str) and "," in spec):
        return spec
    here, pieces = visible(os.getpid()), spec.split(",")
    names = []
    while pieces:
        ends = range(len(pieces), 1, -1)  # the most pieces first
        joined = next((end for end in ends if _one_name(pieces[:end], here)), 1)
        names.append(",".join(pieces[:joined]).strip())
        pieces = pieces[joined:]
    if not all(names):
        raise DeviceError(f"device must have a name on each side of a comma, got {spec!r}")
    return names[0] if len(names) == 1 else names


def _one_name(pieces: list[str], here: list[cl.Device]) -> bool:
    """Return whether pieces of text are one device's or platform's name, or part of one, with its commas."""
    texts = [" ".join(piece.split()).lower() for piece in pieces]
    if not all(texts) or all(_NUMBERED.fullmatch(text) for text in texts):
        return False
    return bool(_matches(" ".join(",".join(pieces).split()).lower(), here))


def listed(spec: Any) -> list[Any]:
    """Return the devices that a user names, one or several: in a list, or with commas between them; of None those that
    CLSVM_DEVICE names. Raises TypeError for an empty list, DeviceError for an empty name between commas."""
    spec = separated(os.environ.get("CLSVM_DEVICE") if spec is None else spec)
    if not isinstance(spec, list | tuple):
        return [spec]
    if not spec:
        raise TypeError(f"{_KINDS}, or a list of at least one of them, got {spec!r}")
    return list(spec)


def first(spec: Any) -> Any:
    """Return the one of several devices that does what one device does."""
    return listed(spec)[0]


def handle(spec: Any, info: DeviceInfo) -> cl.Device:
    """Return pyopencl's device of what :func:`find` found ``info`` for: a part of it where that was given."""
    spec = spec.device if isinstance(spec, cl.CommandQueue) else spec
    return spec if isinstance(spec, cl.Device) else visible(os.getpid())[info.index]


def _whole(device: cl.Device, here: list[cl.Device]) -> cl.Device:
    """Return the visible device that ``device`` is, or that it is a part of."""
    whole: Any = device
    while whole not in here:
        try:
            whole = whole.parent_device
        except cl.Error:
            whole = None
        if whole is None:
            raise DeviceError(f"{device} is no device of this process, nor a part of one")
    return whole


def _matches(asked: str, here: list[cl.Device]) -> list[int]:
    """Return the indices of the devices that the lower-case text ``asked`` can mean; all for the empty text."""
    if asked.isascii() and asked.isdecimal():
        return [int(asked)] if int(asked) < len(here) else []
    name, _, number = asked.rpartition(":")
    numbered = number.isascii() and number.isdecimal()
    hits = [] if numbered and name in ("gpu", "cpu") else _named(asked, here)
    return hits or (_named(name, here)[int(number) :][:1] if numbered else [])


def _named(text: str, here: list[cl.Device]) -> list[int]:
    """Return the indices of the devices of a kind, or of those that ``text`` names: in full, else as part of the
    platform, else of the device (a processor's maker stands in the device's name on every platform)."""
    if text in ("gpu", "cpu"):
        return [i for i, device in enumerate(here) if _kind(device) == text]
    names = [*map(_names, here)]
    found = (
        [i for i, pair in enumerate(names) if text in pair],
        [i for i, (platform, _) in enumerate(names) if text in platform],
        [i for i, (_, device) in enumerate(names) if text in device],
    )
    return next(filter(None, found), [])


@cache
def _names(device: cl.Device) -> tuple[str, str]:
    """Return the names of a device's platform and its own, in lower case."""
    return device.platform.name.strip().lower(), " ".join(device.name.split()).lower()


def default_profile(info: DeviceInfo) -> Profile:
    """Return the profile of a device: CLSVM_PROFILE's, or its kind's, with what ``clsvm tune`` has found for it."""
    return _default_profile(info, os.environ.get("CLSVM_PROFILE"), profiles.tuned_state(), *PROFILES.values())


@lru_cache(64)
def _default_profile(info: DeviceInfo, *depends: Any) -> Profile:
    return profiles.with_tuned(untuned_profile(info), tuning_key(info))


def tuning_key(info: DeviceInfo) -> str:
    """Return what the tuner's findings for a device stand under."""
    return " | ".join((info.platform, info.name, info.driver, untuned_profile(info).name))


def untuned_profile(info: DeviceInfo) -> Profile:
    """Return CLSVM_PROFILE's profile, or that of the device's kind, with the numbers that the device itself states."""
    device = visible(os.getpid())[info.index]
    cpu = "cpu" if device.native_vector_width_float >= 16 else "cpu8"
    gpu = "nvidia" if "-DREDUX" in quirks(device) else "gpu"
    name = os.environ.get("CLSVM_PROFILE") or (cpu if info.kind == "cpu" and info.fp64 else gpu)
    name, _, option = name.partition("-")
    if name not in PROFILES:
        raise ValueError(f"CLSVM_PROFILE must be one of {', '.join(PROFILES)} (or gpu-pair), got {name!r}")
    profile = PROFILES[name]
    if profile.shape == "group":
        most = 1 << int(device.max_work_group_size).bit_length() - 1
        profile = replace(profile, group=min(profile.group, most), pair_items=min(profile.pair_items, most))
    return replace(profile, wide="double" if info.fp64 and option != "pair" else "pair")


PROGRAM = "clsvm.small_fit"  # the module that makes the fit
INSIDE = "CLSVM_TRIAL"  # the variable that is set in its process, where every device counts as usable
PASSED, FAILED = "passed", "failed: "  # how its last line of output begins
SECONDS = 90  # that a small fit may take: slow compilers take half of that


def fit_failure(index: int, device: cl.Device) -> str:
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
