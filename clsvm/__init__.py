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

_HOMES = {
    "SVC": "estimators.svm",
    "SVR": "estimators.svm",
    "NuSVC": "estimators.svm",
    "NuSVR": "estimators.svm",
    "OneClassSVM": "estimators.svm",
    "FalkonRegressor": "estimators.falkon",
    "FalkonClassifier": "estimators.falkon",
    "LogisticFalkonClassifier": "estimators.falkon",
    "Kernel": "kernels",
    "kernel_matrix": "gram.cross",
    "load_model": "models.npz",
    "save_model": "models.npz",
    "from_sklearn": "estimators.convert",
    "to_sklearn": "estimators.convert",
    "devices": "opencl.devices",
    "release_memory": "opencl.memory",
    "BuildError": "errors",
    "ClsvmError": "errors",
    "DeviceError": "errors",
}
_MODULES = ("libsvm", "linalg", "model_selection", "plots", "probability")


def __getattr__(name: str) -> Any:
    """Import a public name on its first use, so that ``import clsvm`` and the command line start fast."""
    if name in _HOMES or name in _MODULES:
        from importlib import import_module

        home = import_module(f"clsvm.{_HOMES.get(name, name)}")
        return home if name in _MODULES else getattr(home, name)
    raise AttributeError(f"module 'clsvm' has no attribute {name!r}")
