"""Run scikit-learn's own support vector machines on an OpenCL device, without a change of the user's code.

    python -m clsvm.accel SCRIPT ...        run a script
    python -m clsvm.accel -m MODULE ...     run a module
    %load_ext clsvm.accel                   in IPython
    clsvm.accel.install()                   in Python, before or after scikit-learn is imported

The classes SVC, NuSVC, SVR, NuSVR and OneClassSVM are still those of scikit-learn: they check their input, clone,
pickle and print as before. clsvm runs a fit or a prediction if clsvm supports the call and is expected to be faster
than LIBSVM (:mod:`clsvm.accel.costs`). Otherwise scikit-learn's LIBSVM runs the call. GridSearchCV over these classes,
and fits in joblib's worker processes, are accelerated too.

If the environment variable CLSVM_ACCEL_LOG is "info", a line for each call says whether clsvm or scikit-learn ran the
call, and why. The first call that runs on a device loads OpenCL.
"""

from __future__ import annotations

from typing import Any

from clsvm.accel.patches import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]


def load_ipython_extension(_shell: Any) -> None:
    """Patch scikit-learn's SVMs when IPython runs ``%load_ext clsvm.accel``."""
    install()


def unload_ipython_extension(_shell: Any) -> None:
    """Restore scikit-learn's own SVMs when IPython runs ``%unload_ext clsvm.accel``."""
    uninstall()
