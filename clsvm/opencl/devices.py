"""Find and test the OpenCL devices of this machine, choose one, and give it a profile.

:func:`devices` lists all devices. :func:`find` returns the device that a user names. :func:`default_profile` returns
the profile of a device: sizes for OpenCL kernels, such as work-group sizes, and estimated costs of operations.

A device is usable if a small fit on it gives the right result. The small fit runs in a separate process, because a
broken OpenCL runtime may end the process. If the fit passed, an empty file in a folder of :func:`runtime.folders`
records the success. The file's name is a hash of the device's name, its driver and pyopencl's version. If the fit
failed, the next process repeats it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from clsvm.errors import DeviceError, install
from clsvm.opencl import profiles, runtime
from clsvm.opencl.contexts import build_lock, context_of, device_options, fork_error, forked
from clsvm.opencl.profiles import PROFILES, Profile
from clsvm.opencl.runtime import SETTINGS, cl, unloaded


@dataclass(frozen=True)
class DeviceInfo:
    """Describe one OpenCL device.

    Attributes
    ----------
    index
        position of the device among all devices, counted from 0. A parameter ``device`` can name the device by it.
    platform
        platform name that the OpenCL runtime reports.
    name
        device name that the OpenCL runtime reports.
    driver
        driver version that the OpenCL runtime reports.
    memory
        bytes of the device's memory.
    largest_buffer
        size in bytes of the largest buffer that the device allows.
    fp64
        whether the device has double precision.
    usable
        whether clsvm can use the device.
    reason
        why the device is not usable, "" if it is.
    kind
        "gpu", "cpu" or "other".
    """

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
    """Return pyopencl's objects for the devices of all platforms. The index of a device is its position in this list.

    An OpenCL loader that finds one library under two names lists its devices twice. Here each device is listed once.
    The list is cached for the process id ``process``, so a forked process does not use its parent's list.
    """
    try:
        return list(dict.fromkeys(device for platform in cl.get_platforms() for device in platform.get_devices()))
    except cl.Error:
        return []


def devices() -> list[DeviceInfo]:
    """Return every OpenCL device of this machine.

    Returns
    -------
    list of DeviceInfo
        One record for each device, in the order of their indices. A device is usable if a small fit in a separate
        process gave the right result. A success is remembered until the driver or pyopencl changes.
    """
    return [_info(os.getpid(), index, tried=True) for index in range(len(visible(os.getpid())))]


def _kind(device: cl.Device) -> str:
    return "gpu" if device.type & cl.device_type.GPU else "cpu" if device.type & cl.device_type.CPU else "other"


@cache
def _info(process: int, index: int, tried: bool) -> DeviceInfo:
    """Return the record of the device that has this index in the list of :func:`visible`.

    The record calls the device usable if an OpenCL context can be made. If ``tried`` is true, a small fit on the device
    must also pass. The record is cached for the process id ``process``, so a forked process does not use its parent's
    record.
    """
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
    """Return the reason why a device is not usable, or "" if the device is usable.

    A device is not usable if no OpenCL context can be made. If ``tried`` is true, it is not usable either if a small
    SVM fit on it fails.
    """
    try:
        context_of(device)
    except DeviceError as error:
        return str(error)
    except Exception as error:  # a broken driver may raise any exception, which means that the device is not usable
        return f"no context could be made: {str(error).strip()[:200] or type(error).__name__}"
    with build_lock:
        return fit_failure(index, device) if tried else ""


def describe(info: Sequence[DeviceInfo] | None = None) -> str:
    """Return text for an error message, with a line for each device in ``info``, a list of records of devices.

    If ``info`` is None, return a line for each device of this machine, and for each OpenCL runtime that does not load.
    """
    lines = [f"{d.index}: {d}{'' if d.usable else ' - not usable: ' + d.reason}" for d in info or devices()]
    return "\n".join(f"  {line}" for line in [*lines, *([] if info else unloaded())]) or "  (none)"


def no_platform() -> DeviceError:
    """Return the error to raise if there is no OpenCL platform. Its message names causes, and how to install a runtime.

    A cause is a runtime that does not load, or an environment variable that hides platforms. If the process was forked
    after use of OpenCL, the message names the fork instead.
    """
    if forked():
        return fork_error("the OpenCL runtime")
    causes = "".join(f"{words}; " for words in unloaded())
    named = " and ".join(f"{name}={value!r}" for name, value in SETTINGS.items())
    where = f" where {named} says; without this setting, runtimes of the system and of pip are found" if named else ""
    words = f"no OpenCL platform was found{where}; {install_advice()} ('clsvm devices' lists what is visible)"
    return DeviceError(f"{causes}{words}")


def _unusable(named: str, infos: Sequence[DeviceInfo]) -> DeviceError:
    """Return the error to raise if devices match the text ``named``, but none of them is usable.

    ``infos`` are the records of the matching devices. The error's message begins with the reasons why they are not
    usable.
    """
    causes = "; ".join(dict.fromkeys(info.reason for info in infos))
    whose = f" that {named!r} names" if named else ""
    helps = "" if any(info.usable for info in devices()) else f"; {install_advice()}"
    return DeviceError(f"{causes}; no OpenCL device{whose} is usable{helps}; there are:\n{describe()}")


def install_advice() -> str:
    """Return the part of an error message that says how to install an OpenCL runtime."""
    return f"{install('cpu')} brings a CPU runtime, a GPU needs its vendor's driver"


_KINDS = "device must be None, an index, a string, a pyopencl Device or CommandQueue"


def find(spec: Any = None) -> DeviceInfo:
    """Return the device that ``spec`` means.

    Parameters
    ----------
    spec : None, str, int, pyopencl.Device or pyopencl.CommandQueue
        None: the first device that the environment variable CLSVM_DEVICE names. If the variable is not set, the usable
        GPU with the most memory. Without a usable GPU, the usable CPU with the most memory. Without either, the usable
        device of another kind with the most memory.

        pyopencl.Device: the device, or the device of which it is a part.

        pyopencl.CommandQueue: the device of the queue.

        int: an index in the list of :func:`devices`.

        str: one of the forms

        - "gpu" or "cpu": the usable device of this kind with the most memory
        - a name: part of a platform's name or, if no platform matches, part of a device's name
        - "name:index", such as "gpu:1": the device at this index, counted from 0, among the devices that match "name"
        - the digits of an index in the list of :func:`devices`

    Raises
    ------
    DeviceError
        No device matches ``spec``, no matching device is usable, or several usable devices match a name.
    TypeError
        ``spec`` is of another type.
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
    given = (first_device(None) or "" if spec is None else spec).strip()
    named = repr(given) + " of the environment variable CLSVM_DEVICE" * (spec is None and given != "")
    if isinstance(split_names(given), list):
        raise DeviceError(f"expected one device, got several: {named}")
    asked = _normalized(given)
    hits = _matches(asked, here)
    if not hits:
        raise DeviceError(f"no OpenCL device matches {named}; there are:\n{describe()}")
    # A test of a device by a small fit takes seconds, so devices are tested only if several match the name.
    info = partial(_info, os.getpid(), tried=len(hits) > 1)
    choice = asked in ("", "gpu", "cpu")  # each of these texts may match several devices; the first usable one is taken
    if choice:
        order = {"gpu": 0, "cpu": 1, "other": 2}
        hits.sort(key=lambda i: (order[_kind(here[i])], -here[i].global_mem_size, i))
    usable = [*islice((one for one in map(info, hits) if one.usable), 1 if choice else None)]
    if len(usable) > 1:
        words = f"{len(usable)} OpenCL devices match {named}; give more of the name, or 'name:index'"
        raise DeviceError(f"{words}:\n{describe(usable)}")
    if not usable:
        raise _unusable(given, [*map(info, hits)])
    return usable[0]


def split_names(spec: Any) -> Any:
    """Return the list of device names in ``spec`` if it is a text with commas. Return any other ``spec`` unchanged.

    The full name of a visible device may contain commas. A text that is such a name, or such a name followed by
    ":index", is returned unchanged. Raises DeviceError if a name between commas is empty.
    """
    if not (isinstance(spec, str) and "," in spec):
        return spec
    full_names = {name for device in visible(os.getpid()) for name in _names(device)}
    if {_normalized(spec), _normalized(spec).rpartition(":")[0]} & full_names:
        return spec
    names = [name.strip() for name in spec.split(",")]
    if not all(names):
        raise DeviceError(f"device must have a name on each side of a comma, got {spec!r}")
    return names


def _normalized(name: str) -> str:
    """Return ``name`` in lower case, without outer blanks, and with single blanks between words."""
    return " ".join(name.split()).lower()


def device_list(spec: Any) -> list[Any]:
    """Return the names of devices in ``spec`` as a list. ``spec`` is a list, a text with commas, or one device.

    If ``spec`` is None, return the names in the environment variable CLSVM_DEVICE. Without that variable, return
    [None], which stands for the default device. Raises TypeError for an empty list, DeviceError for an empty name.
    """
    spec = split_names(os.environ.get("CLSVM_DEVICE") if spec is None else spec)
    if not isinstance(spec, list | tuple):
        return [spec]
    if not spec:
        raise TypeError(f"device must have at least one entry if it is a list, got {spec!r}")
    return list(spec)


def first_device(spec: Any) -> Any:
    """Return the first of the devices that a user names by ``spec``, for work that uses only one device."""
    return device_list(spec)[0]


def handle(spec: Any, info: DeviceInfo) -> cl.Device:
    """Return the pyopencl device that ``spec`` names. ``info`` is the result of ``find(spec)``.

    If ``spec`` is a sub-device or a queue on a sub-device, return the sub-device and not the whole device.
    """
    spec = spec.device if isinstance(spec, cl.CommandQueue) else spec
    return spec if isinstance(spec, cl.Device) else visible(os.getpid())[info.index]


def _whole(device: cl.Device, here: list[cl.Device]) -> cl.Device:
    """Return ``device`` if the list ``here`` has it. For a sub-device of a device in the list, return that device.

    Raises DeviceError if ``device`` is neither.
    """
    whole: Any = device
    while whole not in here:
        try:
            whole = whole.parent_device
        except cl.Error:
            whole = None
        if whole is None:
            raise DeviceError(
                f"expected an OpenCL device that clsvm has found, or a sub-device of such a device, got {device}"
            )
    return whole


def _matches(asked: str, here: list[cl.Device]) -> list[int]:
    """Return the indices of the devices that the lower-case text ``asked`` names. An index is a position in ``here``.

    ``asked`` is an index, a name, or a name followed by ":index". "gpu" and "cpu" are names too. The empty text names
    all devices.
    """
    if asked.isascii() and asked.isdecimal():
        return [int(asked)] if int(asked) < len(here) else []
    name, _, number = asked.rpartition(":")
    numbered = number.isascii() and number.isdecimal()
    hits = [] if numbered and name in ("gpu", "cpu") else _named(asked, here)
    return hits or (_named(name, here)[int(number) :][:1] if numbered else [])


def _named(text: str, here: list[cl.Device]) -> list[int]:
    """Return the indices of all devices that ``text`` names. An index is a position in the list ``here``.

    The texts "gpu" and "cpu" name all devices of a kind. Another text is compared first with full names, then with
    parts of platform names, then with parts of device names. The first comparison that finds a device decides. For
    example, "intel" means Intel's platform, even if a device name of another platform contains "intel".
    """
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
    """Return the platform name and the device name of a device, in lower case."""
    return _normalized(device.platform.name), _normalized(device.name)


def default_profile(info: DeviceInfo) -> Profile:
    """Return a device's profile: sizes for OpenCL kernels, such as work-group sizes, and costs of operations.

    The environment variable CLSVM_PROFILE can name the profile; otherwise the kind of the device decides. If the
    command ``clsvm tune`` has found better sizes for the device, these sizes replace the sizes of the profile.
    """
    return _default_profile(info, os.environ.get("CLSVM_PROFILE"), profiles.tuned_state(), *PROFILES.values())


@lru_cache(64)
def _default_profile(info: DeviceInfo, *depends: Any) -> Profile:
    return profiles.with_tuned(untuned_profile(info), tuning_key(info))


def tuning_key(info: DeviceInfo) -> str:
    """Return the key under which the file of tuning results stores the results of a device."""
    return " | ".join((info.platform, info.name, info.driver, untuned_profile(info).name))


def untuned_profile(info: DeviceInfo) -> Profile:
    """Return a device's profile without the results of the command ``clsvm tune``.

    A profile has sizes for OpenCL kernels, such as work-group sizes, and estimated costs of operations.

    The environment variable CLSVM_PROFILE can name the profile; otherwise the kind of the device decides. Work-group
    sizes in the profile are reduced to the limit that the device reports.
    """
    device = visible(os.getpid())[info.index]
    cpu = "cpu" if device.native_vector_width_float >= 16 else "cpu8"
    gpu = "nvidia" if "-DREDUX" in device_options(device) else "gpu"
    name = os.environ.get("CLSVM_PROFILE") or (cpu if info.kind == "cpu" and info.fp64 else gpu)
    name, _, option = name.partition("-")
    if name not in PROFILES:
        raise ValueError(f"CLSVM_PROFILE must be one of {', '.join(PROFILES)}, with or without '-pair', got {name!r}")
    profile = PROFILES[name]
    if profile.style == "workgroup":
        most = 1 << int(device.max_work_group_size).bit_length() - 1
        profile = replace(profile, group=min(profile.group, most), smo_items=min(profile.smo_items, most))
    return replace(profile, wide="double" if info.fp64 and option != "pair" else "pair")


PROGRAM = "clsvm.small_fit"  # the module that tests a device by a small fit
TRIAL = "CLSVM_TRIAL"  # environment variable that is set in a process that tests a device; it starts no further test
PASSED, FAILED = "passed", "failed: "  # a process that tests a device prints a line that begins with one of these texts
SECONDS = 90  # a small fit that takes longer counts as failed


def fit_failure(index: int, device: cl.Device) -> str:
    """Return why a small fit on a device failed, or "" if the fit passed.

    The fit runs in a separate process. Return "" too if this process did not start or exited without a result, because
    the device may not be the cause.

    A fit that passed is recorded in a file, and is not repeated until the driver or pyopencl changes. ``index`` is the
    position of the device in the list of :func:`visible`.
    """
    if os.environ.get(TRIAL):
        return ""
    name = hashlib.sha256(json.dumps([*identity(device), cl.VERSION_TEXT]).encode()).hexdigest()[:12]
    mark = next((folder / f"fits-{name}" for folder in runtime.folders()), None)
    if mark and mark.is_file():
        return ""
    words = _fit(index, device)
    if mark and words == PASSED:
        with contextlib.suppress(OSError):  # if the file cannot be written, the next process tests the device again
            mark.touch(mode=0o600)
    return words.removeprefix(FAILED) if words.startswith(FAILED) else ""


def identity(device: cl.Device) -> list[str]:
    """Return the platform's name and version, the device's name and the driver's version, which identify a device."""
    return [device.platform.name, device.platform.version, device.name, device.driver_version]


def _fit(index: int, device: cl.Device) -> str:
    """Run a small fit on a device in a separate process, and return a line that begins with PASSED or FAILED.

    If the process crashed or took longer than SECONDS, the line begins with FAILED. Return "" if the process did not
    start, or exited normally but printed no such line.
    """
    if getattr(sys, "frozen", False) or not sys.executable:  # there is no Python interpreter to start
        return ""
    environment = {name: value for name, value in os.environ.items() if name != "CLSVM_PROFILE"}
    environment |= {TRIAL: "1", "PYTHONPATH": os.pathsep.join(str(path) or "." for path in sys.path)}
    command = [sys.executable, "-P", "-W", "ignore", "-m", PROGRAM, str(index), json.dumps(identity(device))]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{FAILED}a small fit did not end within {SECONDS} seconds"
    except OSError:
        return ""
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if verdict := next((line for line in lines if line.startswith((PASSED, FAILED))), ""):
        return verdict
    if not 0 <= done.returncode < 256:
        ending = f"exit code {done.returncode:#x}"
        with contextlib.suppress(ValueError):
            ending = signal.Signals(-done.returncode).name
        last = next(filter(None, reversed(done.stderr.decode("utf-8", "replace").splitlines())), "")
        return f"{FAILED}a small fit ended its process with {ending}" + f" ({last[:200]})" * bool(last)
    return ""
