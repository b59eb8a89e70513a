"""Where a fit's time on the device goes: seconds of each kernel by the device's own clock, and what lies between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.gpu import training
from benchmarks.gpu.peaks import speed
from benchmarks.gpu.plan import Asked
from benchmarks.ladder_device import Bench
from clsvm.opencl.runtime import cl

VERBOSE = {"NVIDIA": "-cl-nv-verbose"}  # by a word of the vendor: the option with which a build log tells of registers
LIMITS = {"private": "PRIVATE_MEM_SIZE", "local": "LOCAL_MEM_SIZE", "largest_group": "WORK_GROUP_SIZE"}
LOG = 3000  # characters of a log
Launches = list[tuple[Any, Any]]
"""(kernel, event) of each."""


def kernels(asked: Asked, name: str) -> Iterator[dict[str, Any]]:
    """A second fit of one set, on a queue that keeps times: the first one builds the programs. A kernel's record has
    its launches, their seconds, the longest of them, and what the driver says that its items and groups take, in bytes.
    """
    one = training.SETS[name]
    X, y, *_ = one.make(asked.data or Path())
    whole, d = X.shape
    with Bench(asked.device) as bench:
        device, context, gflops = bench.device, bench.context, speed(bench)  # (a queue does not keep its context)
    n = min(whole, training.most(gflops, asked.seconds, d, one.passes))
    yield {"set": name, "what": one.what, "n": n, "of": whole, "d": d, "parameters": one.parameters}
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    parameters = {**one.parameters, "device": queue, "max_time": max(1.0, training.COLD * asked.seconds)}
    training.fit(parameters, X[:n], y[:n])
    with timed() as launches:
        _, seconds = training.fit(parameters, X[:n], y[:n])
    queue.finish()
    yield {"fit_seconds": seconds, **summed(launches, device)}
    for word, option in VERBOSE.items():
        if word in device.vendor:
            yield {"logs": logs(launches, device, option)}


@contextmanager
def timed() -> Iterator[Launches]:
    """The launches inside, by whatever thread."""
    launches: Launches = []
    usual = cl.enqueue_nd_range_kernel

    def enqueue(queue: Any, kernel: Any, *given: Any, **named: Any) -> Any:
        event = usual(queue, kernel, *given, **named)
        launches.append((kernel, event))
        return event

    with patch.object(cl, "enqueue_nd_range_kernel", enqueue):
        yield launches


def logs(launches: Launches, device: Any, option: str) -> list[dict[str, str]]:
    """What the compiler says of each program that was launched, built again with one option more."""
    programs: dict[int, tuple[Any, str]] = {}
    for kernel, _ in launches:
        program = kernel.get_info(cl.kernel_info.PROGRAM)
        programs.setdefault(program.int_ptr, (program, kernel.function_name))
    found = []
    for program, name in programs.values():
        options = program.get_build_info(device, cl.program_build_info.OPTIONS)
        context, text = (program.get_info(getattr(cl.program_info, what)) for what in ("CONTEXT", "SOURCE"))
        again = cl.Program(context, text).build(f"{options} {option}".split(), [device])
        words = again.get_build_info(device, cl.program_build_info.LOG).strip()
        found.append({"kernel": name, "options": options, "log": words[:LOG]})
    return found


def summed(launches: Launches, device: Any) -> dict[str, Any]:
    """span: seconds from the first launch's begin to the last one's end; busy: of kernels in it; longest_wait: the
    longest time between two of them; kernels: a record each, those first that take longest."""
    spans = np.array([(event.profile.start, event.profile.end) for _, event in launches], np.int64).reshape(-1, 2)
    found: dict[str, dict[str, Any]] = {}
    for (kernel, _), seconds in zip(launches, 1e-9 * np.diff(spans, axis=1)[:, 0], strict=True):
        words = kernel.function_name
        one = found.setdefault(words, {"kernel": words, "launches": 0, "seconds": 0.0, "longest": 0.0})
        one["launches"] += 1
        one["seconds"] += seconds
        one["longest"] = max(one["longest"], seconds)
        for name, limit in LIMITS.items():  # (several programs have a kernel of this name: the most of them)
            got = int(kernel.get_work_group_info(getattr(cl.kernel_work_group_info, limit), device))
            one[name] = max(one.get(name, 0), got)
    begins, ends = spans[np.argsort(spans[:, 0])].T
    ends = np.maximum.accumulate(ends)
    waits = 1e-9 * np.maximum(begins[1:] - ends[:-1], 0)
    return {
        "launches": len(launches),
        "span": float(1e-9 * (ends[-1] - begins[0])) if launches else 0.0,
        "busy": float(sum(one["seconds"] for one in found.values())),
        "longest_wait": float(waits.max(initial=0.0)),
        "kernels": sorted(found.values(), key=lambda one: -one["seconds"]),
    }
