"""LIBSVM's files and flags: votes of more than two classes, regression, folds."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris

from clsvm import SVR, load_model, save_model
from clsvm.models import libsvm
from tests.conftest import Command
from tests.models.test_libsvm import needs_libsvm, write_text

pytestmark = pytest.mark.full


def regression(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write ``data``, the width of irises' petals by the other columns; return its rows and targets."""
    X, _ = load_iris(return_X_y=True)
    X = X[np.random.default_rng(1).permutation(len(X))]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    write_text(folder / "data", X[:, :3], y := np.round(3 * X[:, 3] + 50, 3))
    return X[:, :3], y


def svm_predict(data: Path, model: Path, out: Path) -> np.ndarray:
    subprocess.run(["svm-predict", data, model, out], check=True, capture_output=True)
    return np.loadtxt(out)


TIE = """svm_type c_svc
kernel_type linear
nr_class 3
total_sv 3
rho -1 1 -1
label 9 4 6
nr_sv 1 1 1
SV
0.001 0 1:1\x20
0 0.001 2:1\x20
0 0.001 3:1\x20
"""


@needs_libsvm
def test_as_many_votes(tmp_path: Path) -> None:
    """9 beats 4, 4 beats 6, 6 beats 9: the first of the file's labels has it, not the smallest."""
    (tmp_path / "m").write_text(TIE)
    data = write_text(tmp_path / "data", np.eye(3), np.zeros(3))
    expected = svm_predict(data, tmp_path / "m", tmp_path / "out")
    assert expected.tolist() == [9, 9, 9]
    model, rows = load_model(tmp_path / "m"), np.eye(3)
    save_model(model, tmp_path / "ours")
    libsvm.save_model(model, tmp_path / "again")
    assert model.predict(rows).tolist() == [9, 9, 9]
    assert load_model(tmp_path / "ours").predict(rows).tolist() == [9, 9, 9]
    assert svm_predict(data, tmp_path / "again", tmp_path / "out").tolist() == [9, 9, 9]


# The command line


def number(key: str, text: str) -> float:
    found = re.search(rf"{key} = ([-0-9.e+]+)", text)
    assert found, f"{key} in\n{text}"
    return float(found[1])


def test_values_are_written_with_every_digit(command: Command, tmp_path: Path) -> None:
    X, y = regression(tmp_path)
    assert command("train", "-q", "-s", "3", "data", "m") == (0, "", "")
    result = command("predict", "data", "m", "out")
    expected = libsvm.load_model("m").predict(X)
    np.testing.assert_array_equal(np.loadtxt("out"), expected)
    assert Path("out").read_text() == "".join(f"{value:.17g}\n" for value in expected)
    error, correlation = np.mean((expected - y) ** 2), np.corrcoef(expected, y)[0, 1] ** 2
    said = (
        f"Mean squared error = {error:g} (regression)\nSquared correlation coefficient = {correlation:g} (regression)\n"
    )
    assert (result.out, result.err) == (said, "")
    assert command("predict", "-q", "data", "m") == (0, "", "")
    said = "clsvm: warning: -w7 is for classes (-s 0, 1)\n"
    assert command("train", "-q", "-s", "2", "-w7", "0.1", "data", "m") == (0, "", said)


def test_a_regression_without_an_offset(command: Command, tmp_path: Path) -> None:
    X, y = regression(tmp_path)
    assert command("train", "-q", "-s", "3", "--no-bias", "data", "m") == (0, "", "")
    fitted = SVR(bias=False, gamma="auto").fit(sparse.csr_matrix(X), y)
    np.testing.assert_array_equal(libsvm.load_model("m").dual_coef, fitted.dual_coef_)


def test_regression_without_support_vectors(command: Command, tmp_path: Path) -> None:
    regression(tmp_path)
    result = command("train", "-s", "3", "-p", "1000", "data", "m")
    assert (result.code, result.err) == (0, "")
    assert "obj = 0.000000, rho = -" in result.out
    assert "nSV = 0\n" in result.out
    result = command("predict", "data", "m")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("Squared correlation coefficient = nan (regression)\n")


# Cross-validation


def test_folds_of_each_class_share_and_of_shuffled_rows(command: Command, tmp_path: Path) -> None:
    """Two rows of each class, so that each fold has to have one; values in order, where neighbours are not enough."""
    write_text(tmp_path / "pairs", np.repeat(10 * np.eye(8), 2, axis=0), np.repeat(np.arange(8), 2))
    assert command("train", "-q", "-v", "2", "pairs") == (0, "Cross Validation Accuracy = 100%\n", "")
    write_text(tmp_path / "halves", np.array([[0.0], [0.1], [5], [5.1]] * 5), np.array([0.5, 0.5, 1, 1] * 5))
    assert command("train", "-q", "-v", "2", "halves") == (0, "Cross Validation Accuracy = 100%\n", "")
    steps = np.arange(40.0)
    write_text(tmp_path / "values", steps[:, None] + 1, steps)
    out = command("train", "-s", "3", "-v", "2", "-c", "100", "-g", "0.01", "values").out
    assert number("coefficient", out) > 0.99


def test_more_folds_than_rows(command: Command, tmp_path: Path) -> None:
    (tmp_path / "four").write_text("1 1:1\n1 1:1.1\n2 1:2\n2 1:2.1\n")
    result = command("train", "-v", "5", "four", "none/m")
    assert (result.code, result.out) == (0, "Cross Validation Accuracy = 100%\n")
    assert "warning: -v 5: there are 4 rows, so 4 folds of one row each\n" in result.err
    assert "warning: -v writes no model: none/m stays as it is\n" in result.err
    assert not (tmp_path / "none").exists()


def test_folds_that_do_not_converge_say_so(command: Command, tmp_path: Path) -> None:
    regression(tmp_path)
    result = command("train", "-s", "3", "-v", "2", "--max-iter", "1", "--working-set-size", "2", "data")
    assert result.code == 0
    assert "clsvm: warning: not converged: max_iter was reached before the tolerance" in result.err
