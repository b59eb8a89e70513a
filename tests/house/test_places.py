"""What is a record: a kernel function, a task, a device's profile is added in one place, here from outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

import clsvm
from clsvm import SVC, kernel_matrix, libsvm, load_model, save_model
from clsvm.kernels import BUILTIN
from clsvm.kernels.records import Parameter, Spec
from clsvm.opencl.profiles import PROFILES
from clsvm.tasks import CLASSES, TASKS, Task
from tests.conftest import Command

X, Y = load_iris(return_X_y=True)


def test_a_kernel_function(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One record: the device's programs, the estimators, the command line and model files know it."""

    def oracle(A: Any, B: Any, gamma: float) -> Any:
        return 1 / (1 + gamma * ((A[:, None] - B) ** 2).sum(axis=2))

    spec = Spec("cauchy", (Parameter("gamma", 1.0, lower=0.0),), "1 / (1 + gamma * sqdist)", oracle=oracle)
    monkeypatch.setitem(BUILTIN, "cauchy", spec)  # type: ignore[arg-type]
    K = kernel_matrix(X, kernel="cauchy", gamma=0.5, device=device)
    np.testing.assert_allclose(K, oracle(X, X, 0.5), rtol=1e-5)
    model = SVC(kernel="cauchy", gamma=0.5, device=device).fit(X, Y)
    save_model(model.model_, tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(X, device), model.predict(X))


class Weighted(SVC):
    """A task of its own: C counts half."""

    _task = "weighted_svc"

    @property
    def _scale(self) -> float:  # type: ignore[override]
        return self._bound / 2


def test_a_task(device: str, monkeypatch: pytest.MonkeyPatch, command: Command, tmp_path: Path) -> None:
    """One record and an estimator: the command line trains it, and both kinds of files hold its models."""
    monkeypatch.setitem(
        TASKS, "weighted_svc", Task("weighted_svc", 9, "weighted SVC", "Weighted", CLASSES, ("C", "bias"))
    )
    monkeypatch.setattr(clsvm, "Weighted", Weighted, raising=False)
    model = Weighted(C=4.0, device=device).fit(X, Y)
    assert np.abs(model.dual_coef_).max() == 2.0
    for save, load, file in ((save_model, load_model, "ours"), (libsvm.save_model, libsvm.load_model, "theirs")):
        save(model.model_, tmp_path / file)
        back = load(tmp_path / file)
        assert back.task == "weighted_svc"
        np.testing.assert_allclose(back.predict(X, device), model.predict(X))
    rows = (" ".join([str(y), *(f"{j + 1}:{v}" for j, v in enumerate(x))]) for x, y in zip(X, Y, strict=True))
    (tmp_path / "data").write_text("\n".join(rows) + "\n")
    assert command("train", "-s", "9", "-c", "4", "-q", "data", "m").code == 0
    assert np.abs(load_model(tmp_path / "m").dual_coef).max() == 2.0
    refused = command("train", "-s", "8", "data", "m")
    assert refused.code == 2
    assert "9 weighted SVC" in refused.err.replace("\n", " ").replace("│", "")


def test_a_profile(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record: small working sets, as a small device would have them."""
    monkeypatch.setitem(PROFILES, "small", replace(PROFILES["gpu"], name="small", working_set=64))  # type: ignore[arg-type]
    monkeypatch.setenv("CLSVM_PROFILE", "small")
    model = SVC(device=device).fit(X[50:], Y[50:])
    assert model.fit_report_.working_set_size <= 64
    assert model.fit_report_.converged
