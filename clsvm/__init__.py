"""clsvm: exact kernel machines on any OpenCL device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "SVC",
    "SVR",
    "BuildError",
    "ClsvmError",
    "DeviceError",
    "Kernel",
    "NuSVC",
    "NuSVR",
    "OneClassSVM",
    "__version__",
    "devices",
    "kernel_matrix",
    "load_model",
    "plots",
    "release_memory",
    "save_model",
]

if TYPE_CHECKING:
    from clsvm import plots
    from clsvm.device import devices, release_memory
    from clsvm.errors import BuildError, ClsvmError, DeviceError
    from clsvm.estimators import SVC, SVR, NuSVC, NuSVR, OneClassSVM
    from clsvm.kernels import Kernel
    from clsvm.model import kernel_matrix
    from clsvm.model_files import load_model, save_model

_HOMES = {
    "SVC": "estimators",
    "SVR": "estimators",
    "NuSVC": "estimators",
    "NuSVR": "estimators",
    "OneClassSVM": "estimators",
    "Kernel": "kernels",
    "kernel_matrix": "model",
    "load_model": "model_files",
    "save_model": "model_files",
    "devices": "device",
    "release_memory": "device",
    "BuildError": "errors",
    "ClsvmError": "errors",
    "DeviceError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line answers at once."""
    if name in _HOMES or name == "plots":
        from importlib import import_module

        home = import_module(f"clsvm.{_HOMES.get(name, name)}")
        return home if name == "plots" else getattr(home, name)
    raise AttributeError(f"module 'clsvm' has no attribute {name!r}")
