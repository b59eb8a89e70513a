"""Train kernel SVMs and Nyström kernel machines on any OpenCL device, with scikit-learn's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "SVC",
    "SVR",
    "BuildError",
    "ClsvmError",
    "DeviceError",
    "FalkonClassifier",
    "FalkonRegressor",
    "Kernel",
    "LogisticFalkonClassifier",
    "NuSVC",
    "NuSVR",
    "OneClassSVM",
    "__version__",
    "devices",
    "from_sklearn",
    "kernel_matrix",
    "libsvm",
    "linalg",
    "load_model",
    "model_selection",
    "plots",
    "probability",
    "release_memory",
    "save_model",
    "to_sklearn",
]

if TYPE_CHECKING:
    from clsvm import libsvm, linalg, model_selection, plots, probability
    from clsvm.errors import BuildError, ClsvmError, DeviceError
    from clsvm.estimators.convert import from_sklearn, to_sklearn
    from clsvm.estimators.falkon import FalkonClassifier, FalkonRegressor, LogisticFalkonClassifier
    from clsvm.estimators.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM
    from clsvm.gram.cross import kernel_matrix
    from clsvm.kernels import Kernel
    from clsvm.models.npz import load_model, save_model
    from clsvm.opencl.devices import devices
    from clsvm.opencl.memory import release_memory

_MODULES = ("libsvm", "linalg", "model_selection", "plots", "probability")
_HOMES = {  # for each module, the public names that it defines
    "errors": ("BuildError", "ClsvmError", "DeviceError"),
    "estimators.convert": ("from_sklearn", "to_sklearn"),
    "estimators.falkon": ("FalkonClassifier", "FalkonRegressor", "LogisticFalkonClassifier"),
    "estimators.svm": ("SVC", "SVR", "NuSVC", "NuSVR", "OneClassSVM"),
    "gram.cross": ("kernel_matrix",),
    "kernels": ("Kernel",),
    "models.npz": ("load_model", "save_model"),
    "opencl.devices": ("devices",),
    "opencl.memory": ("release_memory",),
}


def __dir__() -> list[str]:
    """Return the public names of the package, sorted."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, so that ``import clsvm`` and the command line start fast."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"clsvm.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"clsvm.{home}"), name)
    raise AttributeError(f"module 'clsvm' has no attribute {name!r}")
