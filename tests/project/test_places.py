"""A kernel function, a layout, a task, a device's profile and a parameter are records, added in one place."""

from __future__ import annotations  # (documentation is written from the texts of annotations)

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from sklearn.base import clone
from sklearn.datasets import load_iris
from typer.testing import CliRunner

import clsvm
from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, kernel_matrix, libsvm, load_model, save_model
from clsvm.cli.flags import command, of_estimators
from clsvm.estimators.base import documented
from clsvm.fit import driver
from clsvm.gram.layouts import LAYOUTS
from clsvm.gram.layouts.lanes import Lanes
from clsvm.kernels import BUILTIN
from clsvm.kernels.records import Parameter, Spec
from clsvm.opencl.profiles import PROFILES
from clsvm.parameters import PARAMETERS, Flag, Number
from clsvm.parameters import Parameter as Option
from clsvm.tasks import CLASSES, TASKS, Task
from tests.conftest import Command, calls_of

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


class LinesLayout(Lanes):
    """Dense rows by another name."""

    name = "lines"

    def cost(self, survey: Any) -> float:
        return 0.5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_a_layout(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str, dtype: str) -> None:
    """One record: it is chosen by its cost, fits and predictions run in it, model files know it."""
    monkeypatch.setenv("CLSVM_PROFILE", "cpu")
    few = SVC(kernel=kernel, device=device, dtype=dtype, tol=1e-6).fit(X[50:], Y[50:])
    monkeypatch.setitem(LAYOUTS, "lines", LinesLayout())
    model = clone(few).fit(X[50:], Y[50:])
    assert model.fit_report_.layout.startswith("lines, ")
    assert model.fit_report_.converged
    np.testing.assert_allclose(model.decision_function(X), few.decision_function(X), atol=1e-4)
    many = SVC(kernel=kernel, device=device, dtype=dtype).fit(X, Y)
    assert "lines" in many.fit_report_.layout
    save_model(many.model_, tmp_path / "m")
    np.testing.assert_array_equal(load_model(tmp_path / "m").predict(X, device), many.predict(X))


class Weighted(SVC):
    """A task of its own: C counts half."""

    _task = "weighted_svc"

    @property
    def _bound(self) -> float:
        return super()._bound / 2


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
    monkeypatch.setitem(PROFILES, "small", replace(PROFILES["gpu"], name="small", working_set=64, batch_rows=64))  # type: ignore[arg-type]
    monkeypatch.setenv("CLSVM_PROFILE", "small")
    model = SVC(device=device).fit(X[50:], Y[50:])
    assert model.fit_report_.working_set_size <= 64
    assert model.fit_report_.converged


TABLE = Option("patience", 3, "how long to wait", Number(least=1, whole=True), int, Flag("--patience", "How long."))


def test_a_parameter_of_the_solver(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record and a constructor: it is documented, checked, told to the fit, and a flag."""
    monkeypatch.setitem(PARAMETERS, "patience", TABLE)

    @documented
    class Patient(OneClassSVM):
        """A patient one."""

        def __init__(self, *, nu: float = 0.5, patience: int = 3, device: Any = None) -> None:
            super().__init__(nu=nu, device=device)
            self.patience = patience

    assert "patience : int, default=3\n    how long to wait." in (Patient.__doc__ or "")
    with pytest.raises(ValueError, match="patience must be >= 1, got 0"):
        Patient(patience=0).fit(X)
    solved = calls_of(monkeypatch, driver, "solve")
    Patient(patience=7, device=device).fit(X)
    assert [call.given[3].patience for call in solved] == [7]

    app = typer.Typer()

    @command("Wait.", *of_estimators(short=True), *of_estimators(), to=app)
    def patient(asked: Any) -> None:
        typer.echo(f"{asked.patience} {asked.tol}")

    run = CliRunner().invoke
    assert run(app, ["--patience", "5", "-e", "0.01"]).output == "5 0.01\n"
    assert "patience must be >= 1" in run(app, ["--patience", "0"]).output.replace("\n", " ")


@pytest.mark.parametrize("estimator", [SVC, NuSVC, SVR, NuSVR, OneClassSVM])
def test_constructors_are_the_tables(estimator: Any) -> None:
    """Their defaults, written out for scikit-learn, are those of the table."""
    for name, parameter in list(inspect.signature(estimator.__init__).parameters.items())[1:]:
        assert parameter.default == PARAMETERS[name].default, name
