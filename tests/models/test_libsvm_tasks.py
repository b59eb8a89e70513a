"""LIBSVM's files and flags for every task: more than two classes, regression, one class, with its programs as peers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris

from clsvm import SVC, SVR, NuSVC, NuSVR, OneClassSVM, load_model, save_model
from clsvm.kernels import Kernel
from clsvm.models import libsvm, svmlight
from tests.conftest import Command
from tests.models.test_libsvm import KERNELS, needs_libsvm, write_text

pytestmark = pytest.mark.full

FLAGS = {
    "linear": ["-t", "0"],
    "poly": ["-t", "1", "-g", "0.3", "-r", "1.1", "-d", "2"],
    "rbf": ["-t", "2", "-g", "0.2"],
    "sigmoid": ["-t", "3", "-g", "0.05", "-r", "-0.2"],
}
TYPES = {"c_svc": 0, "nu_svc": 1, "one_class": 2, "epsilon_svr": 3, "nu_svr": 4}
LABELS = np.array([7, -3, 2])
VALUES = ("epsilon_svr", "nu_svr")


def rows_of(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Irises, shuffled: three kinds of them, one kind against the rest for one class, or the width of a petal."""
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    X, y = (X[order] - X.mean(axis=0)) / X.std(axis=0), y[order]
    if task in VALUES:
        return X[:, :3], np.round(3 * X[:, 3] + 50, 3)
    return (X + 2, np.where(y == 1, 1, -1)) if task == "one_class" else (X, LABELS[y])


def data_of(task: str, folder: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Writes ``data``, and ``fresh``: rows between those, whose decision values are not those of a support vector."""
    X, y = rows_of(task)
    rng = np.random.default_rng(9)
    write_text(folder / "fresh", X[rng.permutation(150)] * rng.uniform(0.5, 1.2, (150, 1)), y)
    return write_text(folder / "data", X, y), X, y


def svm_train(*words: Any) -> str:
    return subprocess.run(["svm-train", *map(str, words)], check=True, capture_output=True, text=True).stdout


def svm_predict(data: Path, model: Path, out: Path) -> np.ndarray:
    subprocess.run(["svm-predict", data, model, out], check=True, capture_output=True)
    return np.loadtxt(out)


def assert_predictions(got: np.ndarray, expected: np.ndarray, task: str) -> None:
    assert len(np.unique(expected)) > 1, "a test where not all predictions are the same"
    if task in VALUES:
        np.testing.assert_allclose(got, expected, rtol=2e-6)
    else:
        np.testing.assert_array_equal(got, expected)


# Model files


@needs_libsvm
@pytest.mark.parametrize("kernel", FLAGS)
@pytest.mark.parametrize("task", TYPES)
def test_reads_models_of_svm_train(tmp_path: Path, task: str, kernel: str) -> None:
    data, _, _ = data_of(task, tmp_path)
    svm_train("-q", "-s", TYPES[task], "-n", 0.2, "-c", 2, *FLAGS[kernel], data, tmp_path / "m")
    expected = svm_predict(tmp_path / "fresh", tmp_path / "m", tmp_path / "out")
    model, rows = svmlight.match_columns(
        libsvm.load_model(tmp_path / "m"), svmlight.read_problem(tmp_path / "fresh")[0]
    )
    assert model.task == task
    assert sorted(model.classes) == (sorted(LABELS) if task.endswith("svc") else [])
    assert_predictions(model.predict(rows), expected, task)
    libsvm.save_model(model, tmp_path / "again")
    assert_predictions(svm_predict(tmp_path / "fresh", tmp_path / "again", tmp_path / "out"), expected, task)
    save_model(model, tmp_path / "ours")
    np.testing.assert_array_equal(load_model(tmp_path / "ours").predict(rows), model.predict(rows))


@needs_libsvm
def test_reads_a_nu_svc_of_two_classes(tmp_path: Path) -> None:
    X, y = rows_of("one_class")
    data = write_text(tmp_path / "data", X, -4 * y)
    svm_train("-q", "-s", 1, "-n", 0.3, data, tmp_path / "m")
    model, rows = svmlight.match_columns(libsvm.load_model(tmp_path / "m"), svmlight.read_problem(data)[0])
    assert (model.task, model.classes.tolist(), len(model.dual_coef)) == ("nu_svc", [-4, 4], 1)
    assert_predictions(model.predict(rows), svm_predict(data, tmp_path / "m", tmp_path / "out"), "nu_svc")


@needs_libsvm
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("task", TYPES)
def test_svm_predict_reads_our_models(tmp_path: Path, task: str, kernel: Kernel) -> None:
    _, X, y = data_of(task, tmp_path)
    estimator: Any = {
        "c_svc": SVC(kernel=kernel),
        "one_class": OneClassSVM(kernel=kernel),
        "epsilon_svr": SVR(kernel=kernel),
        "nu_svc": NuSVC(nu=0.2, kernel=kernel),
        "nu_svr": NuSVR(kernel=kernel),
    }[task]
    estimator.fit(X, y)
    libsvm.save_model(estimator.model_, tmp_path / "m")
    assert (tmp_path / "m").read_text().startswith(f"svm_type {task}\n")
    rows = svmlight.read_problem(tmp_path / "fresh")[0].toarray()
    expected = estimator.predict(rows)
    assert_predictions(svm_predict(tmp_path / "fresh", tmp_path / "m", tmp_path / "out"), expected, task)
    np.testing.assert_array_equal(estimator.model_.predict(rows), expected)


@needs_libsvm
def test_ten_classes_both_ways(tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:400] / 16, y[:400]
    data = write_text(tmp_path / "data", X, y)
    svm_train("-q", "-g", 0.02, data, tmp_path / "theirs")
    libsvm.save_model(SVC(gamma=0.02).fit(X, y).model_, tmp_path / "ours")
    answers = []
    for name in ("theirs", "ours"):
        model, rows = svmlight.match_columns(libsvm.load_model(tmp_path / name), svmlight.read_problem(data)[0])
        answers.append(svm_predict(data, tmp_path / name, tmp_path / "out"))
        np.testing.assert_array_equal(model.predict(rows), answers[-1])
    assert np.count_nonzero(answers[0] != answers[1]) <= 2
    assert np.mean(answers[1] == y) > 0.9


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


@needs_libsvm
@pytest.mark.parametrize("kernel", FLAGS)
@pytest.mark.parametrize("task", TYPES)
def test_the_same_flags_give_svm_trains_answer(command: Command, tmp_path: Path, task: str, kernel: str) -> None:
    data, _, _ = data_of(task, tmp_path)
    flags = ["-s", str(TYPES[task]), *FLAGS[kernel], "-n", "0.3", "-p", "0.2", "-c", "2", "-e", "0.0001", "-m", "50"]
    ours = command("train", *flags, "data", "ours")
    assert (ours.code, ours.err) == (0, "")
    theirs = svm_train(*flags, data, tmp_path / "theirs")
    assert ours.out.splitlines()[-1] == "model            ours: LIBSVM's format"
    own = {line.split(" = ")[0] for line in ours.out.splitlines() if " = " in line}
    said = {line.split(" = ")[0] for line in theirs.splitlines() if " = " in line}
    assert own == said
    assert number("rho", ours.out) == pytest.approx(number("rho", theirs), rel=1e-3, abs=1e-3 * task.endswith("svc"))
    for count in ("nSV", "nBSV"):
        assert number(count, ours.out) == pytest.approx(number(count, theirs), abs=4)

    answers = []
    for model in ("ours", "theirs"):
        result = command("predict", "fresh", model, "out")
        assert (result.code, result.err) == (0, "")
        peer = subprocess.run(
            ["svm-predict", "fresh", model, "peer"], check=True, capture_output=True, text=True
        ).stdout
        got = np.loadtxt("out")
        assert_predictions(got, np.loadtxt("peer"), task)
        answers.append(got)
        assert re.sub(r" = \S+", "", result.out) == re.sub(r" = \S+", "", peer)
        for key in ("Mean squared error", "Squared correlation coefficient") if task in VALUES else ("Accuracy",):
            assert number(key, result.out) == pytest.approx(number(key, peer), rel=2e-5)
        if task not in VALUES:
            assert (result.out, Path("out").read_bytes()) == (peer, Path("peer").read_bytes())
    assert np.mean(np.abs(answers[0] - answers[1]) > 0.01) < 0.03


def test_values_are_written_with_every_digit(command: Command, tmp_path: Path) -> None:
    _, X, y = data_of("epsilon_svr", tmp_path)
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


def test_the_flags_of_regression_and_one_class(command: Command, tmp_path: Path) -> None:
    _, X, y = data_of("epsilon_svr", tmp_path)
    for flags, estimator in {
        ("-s", "3", "-p", "0.7", "-c", "3", "-g", "0.3"): SVR(epsilon=0.7, C=3, gamma=0.3),
        ("-s", "3", "--no-bias"): SVR(bias=False, gamma="auto"),
        ("-s", "2", "-n", "0.15"): OneClassSVM(nu=0.15, gamma="auto"),
        ("-s", "2"): OneClassSVM(gamma="auto"),
        ("-s", "4", "-n", "0.3", "-c", "3"): NuSVR(nu=0.3, C=3, gamma="auto"),
    }.items():
        assert command("train", "-q", *flags, "data", "m") == (0, "", "")
        model = libsvm.load_model("m")
        fitted = estimator.fit(sparse.csr_matrix(X), y)
        np.testing.assert_array_equal(model.intercept, fitted.intercept_)
        np.testing.assert_array_equal(model.dual_coef, fitted.dual_coef_)


def test_regression_without_support_vectors(command: Command, tmp_path: Path) -> None:
    data_of("epsilon_svr", tmp_path)
    result = command("train", "-s", "3", "-p", "1000", "data", "m")
    assert (result.code, result.err) == (0, "")
    assert "obj = 0.000000, rho = -" in result.out
    assert "nSV = 0, nBSV = 0\n" in result.out
    result = command("predict", "data", "m")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("Squared correlation coefficient = nan (regression)\n")


def test_weights_of_three_classes(command: Command, tmp_path: Path) -> None:
    _, X, y = data_of("c_svc", tmp_path)
    assert command("train", "-q", "-w7", "0.01", "-w2", "3", "-c", "0.5", "data", "m") == (0, "", "")
    fitted = SVC(C=0.5, gamma="auto", class_weight={7: 0.01, 2: 3}).fit(sparse.csr_matrix(X), y)
    found = libsvm.ordered(libsvm.load_model("m"), fitted.classes_)  # (the file has them in the order of its rows)
    np.testing.assert_array_equal(found.dual_coef, fitted.dual_coef_)
    result = command("train", "-q", "-s", "2", "-w7", "0.1", "data", "m")
    assert result == (0, "", "clsvm: warning: -w7 is for classes (-s 0, 1)\n")


def test_crammer_singer_stays_in_our_format(command: Command, tmp_path: Path) -> None:
    data_of("c_svc", tmp_path)
    result = command("train", "--crammer-singer", "data", "m")
    assert (result.code, result.err) == (0, "")
    reason = "LIBSVM's model format holds pairs of classes, got 3 classes in one machine"
    assert result.out.splitlines()[-1] == f"model            m: clsvm's format ({reason})"
    assert command("predict", "data", "m").out.startswith("Accuracy = 9")


def test_our_format_of_every_task(command: Command, tmp_path: Path) -> None:
    """A kernel function that LIBSVM does not have."""
    for task in ("c_svc", "one_class", "epsilon_svr"):
        data_of(task, tmp_path)
        assert command("train", "-q", "-s", str(TYPES[task]), "-t", "matern32", "data", "m") == (0, "", "")
        result = command("predict", "data", "m", "out")
        assert (result.code, result.err) == (0, "")
        model, rows = load_model("m"), svmlight.read_problem("data")[0]
        assert model.task == task
        np.testing.assert_array_equal(np.loadtxt("out"), model.predict(rows))
        assert ("(regression)" in result.out) == (task == "epsilon_svr")


# Cross-validation


@needs_libsvm
@pytest.mark.parametrize("task", TYPES)
def test_cross_validation_as_svm_train_says_it(command: Command, tmp_path: Path, task: str) -> None:
    data, _, _ = data_of(task, tmp_path)
    flags = ["-s", str(TYPES[task]), "-v", "5", "-n", "0.2", "-q"]
    ours = command("train", *flags, "data")
    theirs = svm_train(*flags, data)
    assert (ours.code, ours.err) == (0, "")
    assert re.sub(r"= [0-9.e+-]+", "=", ours.out) == re.sub(r"= [0-9.e+-]+", "=", theirs)
    for mine, other in zip(re.findall(r"= ([0-9.]+)", ours.out), re.findall(r"= ([0-9.]+)", theirs), strict=True):
        assert float(mine) == pytest.approx(float(other), rel=0.25)
    assert command("train", *flags, "data").out == ours.out, "the folds are the same ones every time"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "fresh"], "no model is written"


def test_held_out_rows_are_held_out(command: Command, tmp_path: Path) -> None:
    """Labels by chance, each row learnt by heart: right where it was seen, by chance where it was not."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    write_text(tmp_path / "chance", X, np.repeat([1, 2, 3], 30))
    assert command("train", "-q", "-g", "100", "-c", "100", "chance", "m").code == 0
    assert command("predict", "chance", "m").out.startswith("Accuracy = 100%")
    assert number("Accuracy", command("train", "-v", "3", "-g", "100", "-c", "100", "chance").out.replace("%", "")) < 60
    write_text(tmp_path / "values", X, rng.normal(size=90))
    assert number("coefficient", command("train", "-s", "3", "-v", "3", "-g", "100", "values").out) < 0.3


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
    """One row of each class: the only class that is left is what the other one gets."""
    (tmp_path / "two").write_text("1 1:1\n2 1:2\n")
    result = command("train", "-q", "-v", "5", "two", "none/m")
    assert (result.code, result.out) == (0, "Cross Validation Accuracy = 0%\n")
    assert "warning: -v 5: there are 2 rows, so 2 folds of one row each\n" in result.err
    assert "warning: -v writes no model: none/m stays as it is\n" in result.err
    assert not (tmp_path / "none").exists()
    (tmp_path / "rare").write_text("1 1:1\n1 1:1.1\n1 1:0.9\n1 1:0.8\n2 1:5\n2 1:5.1\n2 1:5.2\n2 1:5.3\n3 1:9\n")
    result = command("train", "-q", "-v", "4", "-c", "100", "rare")
    assert result == (0, "Cross Validation Accuracy = 88.8889%\n", "")


def test_weights_reach_the_folds(command: Command, tmp_path: Path) -> None:
    """A class whose errors cost nothing is never predicted."""
    data_of("c_svc", tmp_path)
    flags = ["train", "-v", "3", "-c", "1", "-g", "0.1"]
    whole, without = (
        number("Accuracy", command(*flags, *more, "data").out.replace("%", "")) for more in ([], ["-w2", "1e-4"])
    )
    assert whole > 90
    assert without < 70


def test_folds_that_do_not_converge_say_so(command: Command, tmp_path: Path) -> None:
    data_of("epsilon_svr", tmp_path)
    result = command("train", "-s", "3", "-q", "-v", "2", "--max-iter", "1", "--working-set-size", "2", "data")
    assert result.code == 0
    words = "not converged: max_iter was reached before the tolerance"
    assert result.err == "".join(f"clsvm: warning: fold {i}: {words}\n" for i in (1, 2))


# LIBSVM's grid.py and easy.py


def rate(out: str) -> float:
    """What grid.py reads: of the first line with the word Cross the last word without its last character."""
    return float(next(line for line in out.splitlines() if "Cross" in line).split()[-1][:-1])


@needs_libsvm
def test_the_steps_of_grid_and_easy(command: Command, tmp_path: Path) -> None:
    """Scale, the rate for each C and gamma, train with the best, scale by the same range, predict."""
    _, _, y = data_of("c_svc", tmp_path)
    (tmp_path / "scaled").write_text(command("scale", "-s", "range", "data").out)
    for gamma, at_least in (("0.5", 90), ("0.0078125", 0)):
        flags = ["-c", "2.0", "-g", gamma, "-v", "5", "scaled"]
        got = rate(command("train", *flags).out)
        assert got == pytest.approx(rate(svm_train(*flags)), abs=5)
        assert got >= at_least
    assert command("train", "-c", "2.0", "-g", "0.5", "scaled", "scaled.model").code == 0
    (tmp_path / "fresh.scale").write_text(command("scale", "-r", "range", "fresh").out)
    said = command("predict", "fresh.scale", "scaled.model", "fresh.predict").out
    right = np.mean(np.loadtxt(tmp_path / "fresh.predict") == y)
    assert float(said.split("%")[0].split()[-1]) == pytest.approx(100 * right, rel=1e-5)
    data_of("epsilon_svr", tmp_path)
    out = command("train", "-s", "3", "-v", "5", "data").out
    assert rate(out) == pytest.approx(number("Cross Validation Mean squared error", out), rel=0.1)
