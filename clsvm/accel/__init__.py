"""scikit-learn's own support vector machines on an OpenCL device, with no change of code.

    python -m clsvm.accel [--profile] SCRIPT ...        or -m MODULE ...
    %load_ext clsvm.accel                               in IPython
    clsvm.accel.install()                               in Python, before or after scikit-learn is imported

SVC, NuSVC, SVR, NuSVR and OneClassSVM stay scikit-learn's classes: they check their input, clone, pickle and print as
ever. What changes is who solves, and who evaluates decision values: clsvm where it can and where that is expected to
take less time (:mod:`clsvm.accel.costs`), LIBSVM inside scikit-learn else. The same holds for searches by GridSearchCV
over them, and in worker processes of joblib. ``CLSVM_ACCEL_LOG=info`` says of each call where it went, and why; OpenCL
is loaded with the first that goes to a device.
"""

from __future__ import annotations

from typing import Any

from clsvm.accel.patches import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]


def load_ipython_extension(_shell: Any) -> None:
    """Install for ``%load_ext clsvm.accel``."""
    install()


def unload_ipython_extension(_shell: Any) -> None:
    """Uninstall for ``%unload_ext clsvm.accel``."""
    uninstall()
