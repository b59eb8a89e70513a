"""Pair steps whose smallest values sub-groups find by an instruction (cl_kernels/solvers/least.cl): the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification

from clsvm import SVC, NuSVC
from clsvm.opencl.runtime import cl
from clsvm.opencl.stream import Stream
from tests.conftest import take_profile


def sub_groups(device: str) -> bool:
    raw = [one for platform in cl.get_platforms() for one in platform.get_devices()][int(device)]
    return "subgroup" in raw.extensions and "NVIDIA" not in raw.platform.name


@pytest.mark.parametrize("profile", ["gpu", "nvidia"])
@pytest.mark.parametrize(
    "estimator",
    [
        SVC(C=10.0, gamma=0.05),
        pytest.param(SVC(kernel="poly", degree=2, C=3.0), marks=pytest.mark.sweep),
        NuSVC(nu=0.4, gamma=0.05),
        SVC(dtype="float64", gamma=0.1),
        SVC(multi_class="crammer_singer", gamma=0.1),
    ],
    ids=["pairs", "poly", "two sums", "float64", "coupled"],
)
def test_sub_groups_take_the_same_steps(
    device: str, profile: str, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sub_groups(device):
        pytest.skip("the device has no sub-groups by OpenCL's own functions")
    take_profile(profile, device, monkeypatch)
    classes = 3 if getattr(estimator, "multi_class", "") == "crammer_singer" else 2
    X, y = make_classification(1500, 12, n_informative=6, n_classes=classes, flip_y=0.1, random_state=1)
    estimator.set_params(device=device)
    expected = estimator.fit(X, y)
    report, coef = expected.fit_report_, expected.dual_coef_.copy()
    programs = []
    before = Stream.kernel

    def kernel(self: Stream, text: str, options: Sequence[str], name: str) -> Any:
        if "SUBGROUPS" in text:
            programs.append(name)
            options = *options, "-DSUBGROUPS", "-cl-std=CL2.0"
        return before(self, text, options, name)

    monkeypatch.setattr(Stream, "kernel", kernel)
    found = estimator.fit(X, y)
    assert programs
    assert report.converged
    assert found.fit_report_.steps == report.steps
    np.testing.assert_array_equal(found.dual_coef_, coef)
