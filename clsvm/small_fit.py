"""Check one device by a small fit against scikit-learn: ``python -m clsvm.small_fit INDEX IDENTITY``.

INDEX is the number of the device. IDENTITY is a JSON list with the names and versions of device, platform and driver.
:mod:`clsvm.opencl.devices` starts this program and reads its output.
"""

import json
import sys

import numpy as np
from sklearn import svm

from clsvm.estimators.svm import SVC
from clsvm.opencl import devices

_ROWS, _FEATURES, _GAMMA = 100, 10, 0.1


def fitted(index: int) -> str:
    """Fit an SVC on the device with this index. Return a message if the decision values are wrong, else "".

    Raises the exceptions of the fit.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(_ROWS, _FEATURES))
    y = X[:, 0] + 0.5 * rng.normal(size=_ROWS) > 0
    got = SVC(gamma=_GAMMA, device=index).fit(X, y).decision_function(X)
    if not np.allclose(got, svm.SVC(gamma=_GAMMA).fit(X, y).decision_function(X), atol=0.02):
        return "a small fit had wrong decision values"
    return ""


def main(index: int, identity: list[str]) -> str:
    """Check the device with this ``index`` by a small fit, and return the outcome as a line of text.

    The line says that the fit passed, or how it failed. Return "" if there is no device with this index, or if
    ``identity`` is not the list of names and versions of the device, its platform and its driver.
    """
    device = devices.visible(0)[index] if index < len(devices.visible(0)) else None
    if device is None or devices.identity(device) != identity:
        return ""
    try:
        words = fitted(index)
    except Exception as error:  # a broken OpenCL runtime may raise any exception
        words = f"a small fit failed: {' '.join(str(error).split())[:200] or type(error).__name__}"
    return f"{devices.FAILED}{words}" if words else devices.PASSED


if __name__ == "__main__":
    print(main(int(sys.argv[1]), json.loads(sys.argv[2])), flush=True)
