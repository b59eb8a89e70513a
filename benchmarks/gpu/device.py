"""What the device is and can do at most, and whether one small fit of every kind comes out as LIBSVM's.

Times are the best wall times of batches of launches in which everything takes its turn (bench.Clock).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import datasets, svm

import clsvm
from benchmarks.bench import TRIAL, Bench, Clock, Launch, peaks_of
from benchmarks.gpu.plan import Asked, ended
from clsvm.errors import DeviceError
from clsvm.opencl import devices, runtime
from clsvm.opencl.stream import Stream

# isort: split
import pyopencl as cl  # (after clsvm.device, which prepares the loader)

PROPERTIES = (
    "name", "vendor", "version", "opencl_c_version", "driver_version", "profile", "max_compute_units",
    "max_clock_frequency", "address_bits", "global_mem_size", "global_mem_cache_size", "global_mem_cacheline_size",
    "max_mem_alloc_size", "max_constant_buffer_size", "local_mem_size", "local_mem_type", "max_work_group_size",
    "max_work_item_sizes", "max_parameter_size", "mem_base_addr_align", "native_vector_width_float",
    "native_vector_width_double", "preferred_vector_width_float", "host_unified_memory", "profiling_timer_resolution",
    "image_support", "image2d_max_width", "image2d_max_height", "error_correction_support", "extensions",
    "compute_capability_major_nv", "compute_capability_minor_nv", "warp_size_nv", "registers_per_block_nv",
    "wavefront_width_amd", "simd_per_compute_unit_amd", "local_mem_size_per_compute_unit_amd",
)  # fmt: skip

_CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current"
TOOLS = (
    ("nvidia-smi", f"--query-gpu=name,{_CLOCKS},power.draw,power.limit,temperature.gpu", "--format=csv"),
    ("rocm-smi", "--showclocks", "--showbus", "--showpower"),
)


def limits(asked: Asked) -> Iterator[dict[str, Any]]:
    """Tell of every device, all that the driver says of the one that is tried, and how its library was found."""
    yield {"discovery": _discovery()}
    yield {"devices": [asdict(info) for info in clsvm.devices()]}
    info = devices.find(asked.device)
    raw = [one for platform in cl.get_platforms() for one in platform.get_devices()][info.index]
    properties = {name: _property(raw, name) for name in PROPERTIES}
    yield {
        "device": str(info),
        "kind": info.kind,
        "properties": {name: value for name, value in properties.items() if value is not None},
    }
    profile = devices.default_profile(info)
    yield {"profile": {**asdict(profile, dict_factory=_record)}}
    yield {"tools": _told()}
    with Stream(asked.device) as stream:
        yield {"memory_limit": stream.limit, "largest_buffer": stream.largest, "unified": stream.unified}


def _told() -> dict[str, str]:
    """Return what vendors' tools say of clocks, bus and power, where they are."""
    found = {}
    for words in TOOLS:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
            found[words[0]] = done.stdout.strip()[:2000]
    return found


def _discovery() -> dict[str, Any]:
    """Return what clsvm.opencl.runtime told the loader, and which drivers' libraries it could have told of."""
    folder = os.environ.get("OCL_ICD_VENDORS", "")
    listed = {}
    for file in sorted(Path(folder or runtime.SYSTEM_VENDORS).glob("*.icd")):
        listed[file.name] = file.read_text(errors="replace").strip()
    loads = {name: not runtime.load_error(name) for name in runtime.DRIVERS}
    return {"OCL_ICD_VENDORS": folder, "icd": listed, "drivers that load": loads}


def _property(raw: Any, name: str) -> Any:
    """Return one of a device's properties in JSON's types; None where the device has none such."""
    try:
        value = getattr(raw, name)
    except (cl.Error, AttributeError):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)


def _record(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: {**value} if isinstance(value, Mapping) else value for key, value in items}


TOL = 1e-5  # of both, so that what is left between them is rounding
AGREE = 2e-3  # of the largest decision value


@dataclass(frozen=True)
class Fit:
    """An estimator of this name in clsvm and in sklearn.svm. target: "classes", "digits" (ten), "numbers", "none"."""

    estimator: str
    target: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sparse: bool = False


FITS = (
    Fit("SVC", "classes", {"gamma": 0.1}),
    Fit("SVC", "classes", {"kernel": "linear"}),
    Fit("SVC", "classes", {"kernel": "poly", "gamma": 0.1, "coef0": 1.0}),
    Fit("SVC", "classes", {"gamma": 0.1}, sparse=True),
    Fit("SVC", "digits", {"gamma": 0.05, "decision_function_shape": "ovo"}),
    Fit("NuSVC", "classes", {"gamma": 0.1, "nu": 0.4}),
    Fit("SVR", "numbers", {"gamma": 0.1}),
    Fit("NuSVR", "numbers", {"gamma": 0.1}),
    Fit("OneClassSVM", "none", {"gamma": 0.1, "nu": 0.3}),
)


def smoke(asked: Asked) -> Iterator[dict[str, Any]]:
    """Fit every kind on the device, and compare its decision values to those of LIBSVM on the host."""
    wrong = list[str]()
    for fit in FITS:
        row: dict[str, Any] = {"fit": f"{fit.estimator} {fit.target} {dict(fit.parameters)}{' CSR' * fit.sparse}"}
        started = perf_counter()
        try:
            row |= _compared(fit, asked.device)
            row["right"] = row["converged"] and row["difference"] <= AGREE
        except Exception as error:  # one kind that a driver does not take leaves the others worth trying
            row |= {"right": False, "error": f"{type(error).__name__}: {error}"[:500]}
            if isinstance(error, DeviceError) and not clsvm.devices():
                raise
        row["seconds"] = perf_counter() - started
        wrong += [row["fit"]] * (not row["right"])
        yield {"fits": [row]}
    ended(wrong, [])


def _compared(fit: Fit, device: str | None) -> dict[str, Any]:
    X, y = _data(fit)
    ours = getattr(clsvm, fit.estimator)(**fit.parameters, tol=TOL, device=device)
    theirs = getattr(svm, fit.estimator)(**fit.parameters, tol=TOL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = [_decisions(model.fit(X, y), X) for model in (ours, theirs)]
    report = ours.fit_report_
    difference = float(np.abs(values[0] - values[1]).max() / np.abs(values[1]).max())
    return {"difference": difference, "converged": report.converged, "status": report.status, "steps": report.steps}


def _decisions(model: Any, X: Any) -> Any:
    return model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)


def _data(fit: Fit) -> tuple[Any, Any]:
    if fit.target == "digits":
        X, y = datasets.load_digits(n_class=4, return_X_y=True)
        return X[:300] / 16, y[:300]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8))
    y = X @ rng.normal(size=8) + rng.normal(size=300)
    if fit.sparse:
        X = sp.csr_matrix(np.where(rng.random(X.shape) < 0.3, X, 0.0))
    return X, {"classes": np.where(y > 0, 1, -1), "numbers": y, "none": None}[fit.target]


COPIED = 1 << 26  # bytes of a copy


def peaks(asked: Asked) -> Iterator[dict[str, Any]]:
    """Measure multiply-adds, reads, local memory, launches, copies."""
    with Bench(asked.device) as bench:
        some = min(0.5, asked.seconds / 30)
        yield {"microseconds": _latencies(bench, some)}
        yield {"copies_gbs": _copies(bench, some)}
        yield {"local": _local(bench, some)}
        clock, most = Clock(min(8.0, asked.seconds / 4)), peaks_of(bench)
        clock.run(bench, most.launches)
        yield {"peaks": most.rates(clock)}


def _local(bench: Bench, seconds: float) -> dict[str, Any]:
    """Return GB/s of reads from local memory, over all compute units, and the shape that reached them."""
    group = 1 if bench.vector else min(256, bench.profile.group)
    groups, steps = (8 if bench.vector else 16) * bench.units, TRIAL[bench.profile.shape]
    work, launches = {}, {}
    with bench.section() as part:
        first, out = part.stream.upload(np.full(4096, 0.5, np.float32)), part.stream.buffer(4 * groups * group)
        for lanes in (8, 16) if bench.vector else (2, 4):
            for chains in (4, 8):
                kernel = part.kernel("local_read", "local_read", LANES=lanes, CHAINS=chains, GROUP=group)
                name = f"{chains} chains of float{lanes}"
                work[name] = 4e-9 * groups * group * steps * lanes * chains
                launches[name] = partial(kernel, (groups * group,), (group,), steps, first, out)
        clock = Clock(seconds)
        clock.run(part, launches)
    rates = {name: work[name] / clock.best[name] for name in work}
    best = max(rates, key=lambda name: rates[name])
    return {"gbs": rates[best], "shape": best}


def _latencies(bench: Bench, seconds: float) -> dict[str, float]:
    """Return microseconds of a launch among many, of a launch and the wait for it, of reading one number."""
    with bench.section() as part:
        stream = part.stream
        room, kernel = stream.zeros(64), part.kernel("idle", "idle")

        def launch() -> None:
            kernel((64,), (1,) if bench.vector else (64,), room)

        def wait() -> None:
            launch()
            stream.finish()

        launches: dict[str, Launch] = {
            "launch": launch,
            "launch and wait": wait,
            "read of a number": partial(stream.read, room, np.float32, 1),
        }
        clock = Clock(seconds)
        clock.run(part, launches)
    return {name: 1e6 * seconds for name, seconds in clock.best.items()}


def _copies(bench: Bench, seconds: float) -> dict[str, Any]:
    """Return GB/s of copies from and to NumPy's memory, from and to pinned memory, and within the device."""
    nbytes = min(COPIED, bench.stream.largest, bench.stream.limit // 8)
    with bench.section() as part:
        stream, queue = part.stream, bench.queue
        here, there = stream.zeros(nbytes), stream.zeros(nbytes)
        numbers = np.ones(nbytes // 4, np.float32)
        launches: dict[str, Launch] = {
            "to the device": partial(stream.write, here, numbers),
            "from the device": partial(stream.read, here, np.float32, nbytes // 4),
            "within the device": partial(cl.enqueue_copy, queue, there, here, byte_count=nbytes),
        }
        rates: dict[str, Any] = {}
        try:
            memory = cl.Buffer(bench.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
            pinned, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.WRITE, 0, numbers.shape, numbers.dtype)
            pinned[:] = 1
            launches["to the device, pinned"] = partial(cl.enqueue_copy, queue, here, pinned, is_blocking=True)
            launches["from the device, pinned"] = partial(cl.enqueue_copy, queue, pinned, here, is_blocking=True)
        except cl.Error as error:
            rates["pinned"] = f"{type(error).__name__}: {error}"
        clock = Clock(seconds)
        clock.run(part, launches)
    rates |= {name: 1e-9 * nbytes / seconds for name, seconds in clock.best.items()}
    return rates  # (within the device: bytes copied, each of which is read and written)
