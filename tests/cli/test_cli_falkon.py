"""``clsvm falkon``: what it prints where, its files, what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_diabetes

from clsvm import FalkonRegressor, LogisticFalkonClassifier, datasets, load_model
from clsvm.models import svmlight
from tests.conftest import Command


@pytest.fixture
def clsvm(command: Command, tmp_path: Path) -> Command:
    """Run a command in an empty folder that holds the sample's files, and a regression's."""
    datasets.sample("breast_cancer", tmp_path)
    rows, values = load_diabetes(return_X_y=True)
    dump_svmlight_file(rows * 20, values, str(tmp_path / "diabetes"), zero_based=False)
    return command


@pytest.mark.parametrize("machine", ["classes", "logistic"])
def test_classes(clsvm: Command, device: str, machine: str) -> None:
    given = "--machine", machine, "--centers", "80", "--penalty", "1e-4", "--device", device, "--seed", "3"
    done = clsvm("falkon", "train", "breast_cancer.train", "model", *given, "--report", "r.json")
    assert done.code == 0, done.err
    assert "80 of 426 rows as asked for" in done.out
    assert "status           converged: the residual is within tol" in done.out
    report = json.loads(Path("r.json").read_text())
    assert report["converged"]
    assert report["residual"] <= 1e-5
    told = clsvm("falkon", "predict", "breast_cancer.test", "model", "out", "--device", device)
    assert float(told.out.split("Accuracy = ")[1].split("%")[0]) > 90
    probable = clsvm("predict", "-b", "1", "breast_cancer.test", "model", "out", "--device", device)
    assert (probable.code == 0) == (machine == "logistic")
    if machine == "logistic":
        X, y = svmlight.read_problem("breast_cancer.train")
        own = LogisticFalkonClassifier(n_centers=80, penalty=1e-4, device=device, random_state=3).fit(X, y)
        np.testing.assert_array_equal(load_model("model").dual_coef, own.dual_coef_)


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (("--machine", "numbers"), {}),
        (("--machine", "log-cosh", "--gamma", "0.05", "--selection", "leverage", "--centers", "50"), {
            "loss": "log_cosh", "gamma": 0.05, "center_selection": "leverage", "n_centers": 50,
        }),
        (("--machine", "numbers", "--kernel", "laplacian", "--tol", "1e-3", "--no-intercept"), {
            "kernel": "laplacian", "tol": 1e-3, "fit_intercept": False,
        }),
    ],
    ids=["numbers", "log-cosh", "laplacian"],
)  # fmt: skip
def test_numbers(clsvm: Command, device: str, flags: tuple[str, ...], given: dict[str, Any]) -> None:
    done = clsvm("falkon", "train", "diabetes", *flags, "--penalty", "1e-2", "--device", device, "-q")
    assert (done.code, done.out) == (0, "")
    X, y = svmlight.read_problem("diabetes")
    own = FalkonRegressor(penalty=1e-2, device=device, random_state=0, **given).fit(X, y)
    np.testing.assert_array_equal(load_model("diabetes.model").dual_coef, own.dual_coef_)
    told = clsvm("falkon", "predict", "diabetes", "diabetes.model", "--device", device)
    assert "Mean squared error" in told.out


def test_kernels_of_ones_own(clsvm: Command, device: str) -> None:
    given = "--machine", "numbers", "--device", device
    words = "--kernel", "1 / (1 + gamma * sqdist)", "--gamma", "0.3"
    assert clsvm("falkon", "train", "diabetes", "one", *given, *words).code == 0
    assert load_model("one").kernel.params == {"gamma": 0.3}
    words = "--element", "abs(x - y)", "--kernel", "exp(-c * s)", "--param", "c=0.1"
    assert clsvm("falkon", "train", "diabetes", "two", *given, *words).code == 0
    assert load_model("two").kernel.spec.element_text == "abs(x - y)"


def test_an_interrupt_writes_what_was_found(clsvm: Command, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from clsvm.nystrom import newton

    hessian = newton.Newton._hessian

    def interrupted(self: Any, d: Any) -> Any:
        if self.result.steps == 2:
            raise KeyboardInterrupt
        return hessian(self, d)

    monkeypatch.setattr(newton.Newton, "_hessian", interrupted)
    done = clsvm("falkon", "train", "breast_cancer.train", "model", "--machine", "logistic", "--device", device)
    assert done.code == 130
    assert "it was interrupted before the tolerance" in done.err
    assert clsvm("predict", "breast_cancer.test", "model", "--device", device).code == 0
