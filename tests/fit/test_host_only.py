"""Fits on a device without double precision: what needs float64 on the device is refused."""

from typing import Any

import numpy as np
import pytest

from clsvm import SVC, SVR, NuSVC, NuSVR
from tests.conftest import noisy

X, Y = noisy(120, 4, seed=3)
BEYOND = 1e39  # float32, and so pairs of float32, end at 3.4e38
LARGE = r"dtype 'float64' needs a device with double precision, .* has none: use 'float32'"
RANGE = r"beyond 3\.4e\+35 need a device with double precision, .*make y or sample_weight smaller"
REFUSED = [
    (SVC(dtype="float64"), Y, 1.0, LARGE),
    (SVC(dtype="float64"), np.arange(120) % 3, 1.0, LARGE),
    *((machine, X[:, 1] * BEYOND, 1.0, RANGE) for machine in (SVR(), NuSVR())),
    (NuSVC(nu=0.3), Y, BEYOND, RANGE),
]


@pytest.mark.parametrize(("machine", "y", "weight", "words"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_needs_double_precision_is_refused(
    device: str, monkeypatch: pytest.MonkeyPatch, machine: Any, y: Any, weight: float, words: str
) -> None:
    monkeypatch.setenv("CLSVM_PROFILE", "gpu-pair")
    with pytest.raises(ValueError, match=words):
        machine.set_params(device=device).fit(X, y, sample_weight=np.full(120, weight))
