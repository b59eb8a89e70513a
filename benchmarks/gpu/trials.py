"""Instructions that some devices have and OpenCL C has not, each by itself: is it built, is it right, how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import TEXTS, Bench, Clock
from benchmarks.gpu.plan import Asked, ended
from clsvm.opencl.runtime import cl

Numbers = NDArray[np.float32]
GROUPS = 64  # for each compute unit, where a trial is timed
STEPS = 1001  # of a timed trial; odd, since a shuffle there and back is none
SECONDS = 0.2  # of readings of a trial
LOG = 600  # characters of a build log


@dataclass(frozen=True)
class Trial:
    """A macro of cl_kernels/trials.cl. needs: an extension's name, or a word of the vendor's. items: of a work-group.
    expected: what a group writes for ``steps`` over numbers. flops: of a group's step."""

    name: str
    macro: str
    needs: str
    items: int
    expected: Callable[[Numbers, int], Numbers]
    flops: int = 0


def _product(m: int, n: int, k: int) -> Callable[[Numbers, int], Numbers]:
    """Return what computes steps A B of A (m, k) and B (k, n), which stand one after the other."""

    def expected(given: Numbers, steps: int) -> Numbers:
        A, B = given[: m * k].reshape(m, k), given[m * k : m * k + k * n].reshape(k, n)
        return np.asarray(steps * (A @ B), np.float32).ravel()

    return expected


def _shuffled(items: int) -> Callable[[Numbers, int], Numbers]:
    return lambda given, steps: given[np.arange(items) ^ (steps % 2)]


def _staged(given: Numbers, steps: int) -> Numbers:
    return np.roll(given[: 4 * 64].reshape(64, 4).sum(axis=1), -1)


def _same(given: Numbers, steps: int) -> Numbers:
    return given[:256]


TRIALS = (
    Trial("barrier of 256 items", "BARRIER", "", 256, _same),
    Trial("shuffle, PTX", "SHUFFLE_PTX", "NVIDIA", 32, _shuffled(32)),
    Trial("shuffle, cl_khr_subgroup_shuffle", "SHUFFLE_KHR", "cl_khr_subgroup_shuffle", 32, _shuffled(32)),
    Trial("shuffle, cl_intel_subgroups", "SHUFFLE_INTEL", "cl_intel_subgroups", 32, _shuffled(32)),
    Trial("shuffle, ds_swizzle", "SHUFFLE_AMD", "Advanced Micro Devices", 64, _shuffled(64)),
    Trial("mma.sync m16n8k8 tf32", "MMA_TF32", "NVIDIA", 32, _product(16, 8, 8), 2 * 16 * 8 * 8),
    Trial("mma.sync m16n8k16 f16", "MMA_F16", "NVIDIA", 32, _product(16, 8, 16), 2 * 16 * 8 * 16),
    Trial("mfma 32x32x2 f32", "MFMA_F32", "Advanced Micro Devices", 64, _product(32, 32, 2), 2 * 32 * 32 * 2),
    Trial("cp.async of 16 bytes", "CP_ASYNC", "NVIDIA", 64, _staged),
)


def trials(asked: Asked) -> Iterator[dict[str, Any]]:
    """Record of each trial that it is lacking, or whether it is built with the log and right, the nanoseconds of a step
    of all work-groups that a compute unit has at a time, and TFLOP/s of a product."""
    wrong = []
    with Bench(asked.device) as bench:
        for trial in TRIALS:
            row = {"trial": trial.name, **tried(bench, trial)}
            wrong += [trial.name] * (row.get("right") is False)
            yield {"trials": [row]}
    ended(wrong, [])


def tried(bench: Bench, trial: Trial) -> dict[str, Any]:
    """Return what comes of a trial."""
    device = bench.device
    there = f"{device.extensions} {device.vendor} {device.platform.vendor}"
    if bench.stream.simulated or trial.needs not in there:
        return {"lacking": trial.needs or "a device that is no simulator"}
    text = (TEXTS / "trials.cl").read_text("utf-8")
    program = cl.Program(bench.context, text)
    try:
        program = program.build([f"-D{trial.macro}", f"-DSIZE={trial.items}", "-w"], [device])
    except Exception as error:  # whatever a compiler says of what it does not know
        return {"built": False, "log": str(error)[-LOG:]}
    row = {"built": True, "log": program.get_build_info(device, cl.program_build_info.LOG).strip()[-LOG:]}
    kernel = cl.Kernel(program, "trial")
    given = np.random.default_rng(0).integers(0, 4, 1024).astype(np.float32)  # (exact in any format)
    groups = GROUPS * bench.units
    source = cl.Buffer(bench.context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=given)
    found = np.empty((groups, len(trial.expected(given, 1))), np.float32)
    out = cl.Buffer(bench.context, cl.mem_flags.WRITE_ONLY, found.nbytes)

    def run(steps: int) -> None:
        kernel(bench.queue, (groups * trial.items,), (trial.items,), np.int32(steps), source, out)

    right = True
    for steps in (1, 7):
        run(steps)
        cl.enqueue_copy(bench.queue, found, out)
        right &= bool((found == trial.expected(given, steps)).all())
    clock = Clock(SECONDS)
    clock.run(bench, {"many": lambda: run(STEPS), "one": lambda: run(1)})
    seconds = clock.best["many"] - clock.best["one"]
    row |= {"right": right, "nanoseconds": 1e9 * seconds / (STEPS - 1), "groups": groups}
    if trial.flops:
        row["tflops"] = 1e-12 * trial.flops * groups * (STEPS - 1) / seconds
    return row
