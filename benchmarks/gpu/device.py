"""What the device is, and whether one small fit of every kind comes out as LIBSVM's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm

import clsvm
from benchmarks.gpu.plan import Asked
from clsvm.errors import DeviceError
from clsvm.opencl import devices, icd
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
    """Every device, and all that the driver says of the one that is tried; how its library was found."""
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
    """What vendors' tools say of clocks, bus and power, where they are."""
    found = {}
    for words in TOOLS:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
            found[words[0]] = done.stdout.strip()[:2000]
    return found


def _discovery() -> dict[str, Any]:
    """What clsvm.opencl.icd told the loader, and which drivers' libraries it could have told of."""
    folder = os.environ.get("OCL_ICD_VENDORS", "")
    listed = {}
    for file in sorted(Path(folder or icd.SYSTEM_VENDORS).glob("*.icd")):
        listed[file.name] = file.read_text(errors="replace").strip()
    loads = {name: not icd._load_error(name) for name in icd._DRIVERS}
    return {"OCL_ICD_VENDORS": folder, "icd": listed, "drivers that load": loads}


def _property(raw: Any, name: str) -> Any:
    """One of a device's properties in JSON's types; None where the device has none such."""
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
    """One small fit of every kind on the device, its decision values beside those of LIBSVM on the host."""
    wrong = []
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
    if wrong:
        raise ArithmeticError(f"{len(wrong)} of {len(FITS)} fits are wrong or failed: {'; '.join(wrong)}")


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
    from sklearn.datasets import load_digits

    if fit.target == "digits":
        X, y = load_digits(n_class=4, return_X_y=True)
        return X[:300] / 16, y[:300]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 8))
    y = X @ rng.normal(size=8) + rng.normal(size=300)
    if fit.sparse:
        X = sp.csr_matrix(np.where(rng.random(X.shape) < 0.3, X, 0.0))
    return X, {"classes": np.where(y > 0, 1, -1), "numbers": y, "none": None}[fit.target]
