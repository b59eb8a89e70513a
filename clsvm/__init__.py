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
    "from_sklearn",
    "kernel_matrix",
    "libsvm",
    "load_model",
    "model_selection",
    "plots",
    "probability",
    "release_memory",
    "save_model",
    "to_sklearn",
]

if TYPE_CHECKING:
    from clsvm import libsvm, model_selection, plots, probability
    from clsvm.convert import from_sklearn, to_sklearn
    from clsvm.device import devices, release_memory
    from clsvm.errors import BuildError, ClsvmError, DeviceError
    from clsvm.estimators import SVC, SVR, NuSVC, NuSVR, OneClassSVM
    from clsvm.kernels import Kernel
    from clsvm.model_files import load_model, save_model
    from clsvm.responses import kernel_matrix

_HOMES = {
    "SVC": "estimators",
    "SVR": "estimators",
    "NuSVC": "estimators",
    "NuSVR": "estimators",
    "OneClassSVM": "estimators",
    "Kernel": "kernels",
    "kernel_matrix": "responses",
    "load_model": "model_files",
    "save_model": "model_files",
    "from_sklearn": "convert",
    "to_sklearn": "convert",
    "devices": "device",
    "release_memory": "device",
    "BuildError": "errors",
    "ClsvmError": "errors",
    "DeviceError": "errors",
}
_MODULES = ("libsvm", "model_selection", "plots", "probability")


def __getattr__(name: str) -> Any:
    """Import on first use, so that the command line answers at once."""
    if name in _HOMES or name in _MODULES:
        from importlib import import_module

        home = import_module(f"clsvm.{_HOMES.get(name, name)}")
        return home if name in _MODULES else getattr(home, name)
    raise AttributeError(f"module 'clsvm' has no attribute {name!r}")
