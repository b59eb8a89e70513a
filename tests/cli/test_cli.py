"""The command line: what it prints where, exit codes, files."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clsvm import Kernel, datasets, kernels
from clsvm.cli import app
from clsvm.estimators.svm import SVC
from clsvm.models import libsvm, npz, svmlight
from clsvm.models.model import KernelModel
from clsvm.report import FitReport
from tests.conftest import Command, calls_of
from tests.estimators.test_report import Terminal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clsvm(command: Command, tmp_path: Path, folder: Path) -> Command:
    """Run a command in this process, in an empty folder that holds the sample's files."""
    for name in ("breast_cancer.train", "breast_cancer.test"):
        (tmp_path / name).symlink_to(folder / name)
    return command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's training and test file."""
    path = tmp_path_factory.mktemp("sample")
    datasets.sample("breast_cancer", path)
    return path


def shell(*args: str | Path, cwd: Path, code: str = "from clsvm.cli.app import main; main()") -> subprocess.Popen[str]:
    """A command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def raising(error: BaseException, first: Callable[[], object] = lambda: None) -> Callable[..., None]:
    """A function that raises an error, after it has called another one."""

    def raises(*_: Any, **__: Any) -> None:
        first()
        raise error

    return raises


# The main path


def test_train_prints_svm_trains_lines_and_the_report(clsvm: Command, tmp_path: Path) -> None:
    result = clsvm("train", "breast_cancer.train")
    assert (result.code, result.err) == (0, "")
    n = libsvm.load_model("breast_cancer.train.model").n_support.sum()
    number = r"-?[0-9.]+(e[-+]\d+)?"
    for line in (
        r"optimization finished, #iter = \d+",
        r"obj = -\d+\.\d{6}, rho = -?\d+\.\d{6}",
        f"nSV = {n}",
        f"Total nSV = {n}",
        rf"objective +primal {number}, dual {number}",
        rf"gap +{number} \(relative\)",
        rf"violation +{number}",
        f"support vectors +{n} of 426 rows",
        rf"seconds +{number}.*",
        r"device +\S.*",
        r"layout +\S.*",
        r"status +\S.*",
    ):
        assert re.search(f"^{line}$", result.out, re.MULTILINE), f"{line} in\n{result.out}"
    dual = float(re.search(r"dual ([0-9.e+]+)", result.out)[1])  # type: ignore[index]
    assert float(re.search(r"obj = (\S+),", result.out)[1]) == pytest.approx(-dual, rel=1e-6)  # type: ignore[index]


def test_quiet_says_nothing_and_default_name_is_in_this_folder(clsvm: Command, tmp_path: Path, folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert clsvm("train", "-q", folder / "breast_cancer.train") == (0, "", "")
    assert (tmp_path / "breast_cancer.train.model").is_file()
    assert sorted(folder.iterdir()) == before
    assert clsvm("predict", "-q", "breast_cancer.test", "breast_cancer.train.model") == (0, "", "")


def test_report_and_plot(clsvm: Command, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image", reason="pictures need matplotlib")
    (tmp_path / "a.json").write_text("old")
    before = {path.name for path in tmp_path.iterdir()}
    result = clsvm("train", "--report", "a.json", "--plot", "a.PNG", "breast_cancer.train", "m")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-2:] == ["report           a.json", "plot             a.PNG"]
    assert {path.name for path in tmp_path.iterdir()} == before | {"m", "a.PNG"}, "nothing else is left"
    report = json.loads((tmp_path / "a.json").read_text())
    assert set(report) == {field.name for field in dataclasses.fields(FitReport)}
    assert f"#iter = {report['steps']}\n" in result.out
    pixels = image.imread(tmp_path / "a.PNG")
    assert pixels.min() < pixels.max()


@pytest.mark.parametrize("flag", ["--report", "--plot"])
def test_a_report_that_fails_leaves_what_was_there(clsvm: Command, monkeypatch: Any, tmp_path: Path, flag: str) -> None:
    """Written whole or not at all; the model, which is written first, stays."""
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    broken = raising(OSError(28, "No space left on device"))
    monkeypatch.setattr("clsvm.report.FitReport.to_dict", broken)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    name = "a.json" if flag == "--report" else "a.png"
    (tmp_path / name).write_text("old")
    before = {path.name for path in tmp_path.iterdir()}
    result = clsvm("train", flag, name, "breast_cancer.train", "m")
    assert result == (1, "", "clsvm: error: [Errno 28] No space left on device\n")
    assert (tmp_path / name).read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == before | {"m"}


# Kernel functions and labels that LIBSVM does not have

BY_DEFAULT = {"gamma": 1 / 30, "coef0": 0.0, "degree": 3}
MANY = "minimum(abs(x), abs(y))"
OWN = [
    (["-t", "exponential", "-g", "0"], kernels.make("exponential", gamma=1 / 30)),
    (["-t", "cosine", "-g", "7", "-d", "2", "-r", "1"], kernels.make("cosine")),
    (
        ["--kernel", "c * exp(-gamma * sqdist) + dot", "--param", "c=0.5", "-g", "0.2"],
        Kernel("c * exp(-gamma * sqdist) + dot", c=0.5, gamma=0.2),
    ),
    (["--kernel", "(gamma * dot + coef0 + 1) ** degree"], Kernel("(gamma * dot + coef0 + 1) ** degree", **BY_DEFAULT)),
    (["--element", MANY], Kernel.elementwise(MANY)),
    (
        ["--element", "abs(x - y)", "--kernel", "exp(-gamma * s)"],
        Kernel.elementwise("abs(x - y)", "exp(-gamma * s)", gamma=1 / 30),
    ),
]


@pytest.mark.parametrize(("flags", "kernel"), OWN, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_kernels_that_libsvm_does_not_have(clsvm: Command, flags: list[str], kernel: Kernel) -> None:
    result = clsvm("train", *flags, "breast_cancer.train", "m")
    assert (result.code, result.err) == (0, "")
    said = f"LIBSVM's model format has no kernel '{kernel.name}'; it holds linear, poly, rbf, sigmoid"
    assert result.out.splitlines()[-1] == f"model            m: clsvm's format ({said})"
    model = npz.load_model("m")
    assert (model.kernel.spec.formula, model.kernel.params) == (kernel.spec.formula, kernel.params)
    result = clsvm("predict", "breast_cancer.test", "m", "labels")
    assert (result.code, result.err) == (0, "")
    X, y = svmlight.read_problem("breast_cancer.test")
    expected = SVC(kernel=kernel).fit(*svmlight.read_problem("breast_cancer.train")).predict(X)
    np.testing.assert_array_equal(np.loadtxt("labels"), expected)
    assert result.out.startswith(f"Accuracy = {np.mean(expected == y) * 100:g}% ")


def test_the_format_is_libsvms_where_that_is_enough(clsvm: Command) -> None:
    for flags in ([], ["-t", "poly", "--param", "degree=2"], ["--kernel", "rbf"]):
        result = clsvm("train", *flags, "breast_cancer.train")
        assert (result.code, result.err) == (0, "")
        assert result.out.splitlines()[-1] == "model            breast_cancer.train.model: LIBSVM's format"
        assert libsvm.load_model("breast_cancer.train.model").n_support.sum()
    assert libsvm.load_model("breast_cancer.train.model").kernel == kernels.make("rbf", gamma=1 / 30)


def test_labels_that_are_not_whole(clsvm: Command, tmp_path: Path) -> None:
    (tmp_path / "half").write_text("0.5 1:1 2:1\n-0.25 1:-1\n0.5 1:2\n-0.25 1:-1 2:-1\n")
    result = clsvm("train", "half", "m")
    assert (result.code, result.err) == (0, "")
    assert "holds integer labels only, got [-0.25, 0.5])" in result.out.splitlines()[-1]
    assert npz.load_model("m").classes.tolist() == [-0.25, 0.5]
    assert clsvm("predict", "half", "m", "out") == (0, "Accuracy = 100% (4/4) (classification)\n", "")
    assert (tmp_path / "out").read_text() == "0.5\n-0.25\n0.5\n-0.25\n"


@pytest.mark.parametrize("flags", [[], ["-t", "matern32"]], ids=" ".join)
def test_files_with_other_numbers_of_features(clsvm: Command, tmp_path: Path, flags: list[str]) -> None:
    """Models in LIBSVM's format and in ours."""
    (tmp_path / "train").write_text("1 1:1 2:1\n-1 1:-1\n1 1:2\n-1 1:-1 2:-1\n")
    (tmp_path / "wide").write_text("1 1:1 2:1 5:0.5\n-1 1:-1\n")
    (tmp_path / "narrow").write_text("1 1:1\n-1 1:-1\n")
    assert clsvm("train", "-q", *flags, "train", "m").code == 0
    assert npz.load_model("m").kernel.params == {"gamma": 0.5}
    assert clsvm("predict", "narrow", "m") == (0, "Accuracy = 100% (2/2) (classification)\n", "")
    wide = clsvm("predict", "wide", "m")
    assert (wide.code, wide.out) == (0, "Accuracy = 100% (2/2) (classification)\n")
    assert "wide has 5 features, the model 2" in wide.err


def test_models_of_other_labels_predict(clsvm: Command, tmp_path: Path) -> None:
    """Models that the library saved: text as labels, and truth values, against the files' numbers."""
    X, y = svmlight.read_problem("breast_cancer.train")
    for labels, words in ((np.array(["ill", "well"]), {"ill", "well"}), (np.array([False, True]), {"0", "1"})):
        npz.save_model(SVC().fit(X, labels[(y > 0).astype(int)]).model_, tmp_path / "m")
        result = clsvm("predict", "breast_cancer.test", "m", "out")
        assert result.code == 0
        assert set((tmp_path / "out").read_text().split()) == words
        assert (result.out == "") == (labels.dtype.kind == "U")
        assert ("no accuracy: the labels of m are text" in result.err) == (labels.dtype.kind == "U")


# Progress


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a command shows on a terminal, with a bar for all that takes a moment."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("clsvm.report.SOON", 0.0)
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    monkeypatch.setattr(sys, "argv", ["clsvm", *words])
    with pytest.raises(SystemExit) as end:
        app.main()
    assert not end.value.code
    return stderr.getvalue()


def test_training_has_a_bar(clsvm: Command, monkeypatch: Any) -> None:
    assert " left, violation " in on_a_terminal(monkeypatch, "train", "breast_cancer.train")


@pytest.mark.parametrize("flags", [[], ["-b", "1"]], ids=["labels", "probabilities"])
def test_predictions_have_a_bar_and_do_not_depend_on_it(
    flags: list[str],
    clsvm: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clsvm("train", "-q", *flags, "breast_cancer.train", "m")
    clsvm("predict", *flags, "breast_cancer.test", "m", "at once")
    calls = calls_of(monkeypatch, KernelModel, "predict_proba" if flags else "predict")
    monkeypatch.setattr("clsvm.cli.train._PIECE", 50)
    shown = on_a_terminal(monkeypatch, "predict", *flags, "breast_cancer.test", "m", "in pieces")
    assert [call.given[1].shape[0] for call in calls] == [50, 50, 43]
    assert "predicting, 143 of 143" in shown
    assert (tmp_path / "in pieces").read_bytes() == (tmp_path / "at once").read_bytes()


# What is noticed before the work, and what is said of it


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the data may be read nor a model fitted."""

    def fit(*_: Any, **__: Any) -> None:
        pytest.fail("it trained")

    monkeypatch.setattr("clsvm.estimators.svm.SVC.fit", fit)
    monkeypatch.setattr("clsvm.models.svmlight.read_problem", fit)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    "words",
    [
        "train data data",
        "train data folder/../data",
        "train data new.json --report new.json",
        "train data m --checkpoint data",
        "predict data m data",
        "predict data m m",
        "scale -s data data",
    ],
)
def test_no_file_that_is_read_is_overwritten(clsvm: Command, tmp_path: Path, words: str) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("data", "m"):
        (tmp_path / name).write_text("1 1:1\n-1 1:-1\n")
    result = clsvm(*words.split())
    assert result.code == 1
    assert re.search("(data|m|new.json) would be overwritten: the command names this file twice", result.err)
    assert (tmp_path / "data").read_text() == (tmp_path / "m").read_text() == "1 1:1\n-1 1:-1\n"


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("words", ["none/m", ".", "m --plot none/a.png", "m --report none/a.json"])
def test_what_cannot_be_written_is_noticed_before_training(clsvm: Command, words: str) -> None:
    result = clsvm("train", "breast_cancer.train", *words.split())
    assert result.code == 1
    assert words.split()[-1] in result.err


@pytest.mark.usefixtures("untrained")
def test_a_plot_without_matplotlib_is_noticed_before(clsvm: Command, monkeypatch: Any) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    said = "clsvm: error: pictures need matplotlib: pip install '.[plot]' in the folder of clsvm's source\n"
    assert clsvm("train", "--plot", "a.png", "F") == (1, "", said)


def test_a_defect_is_a_message_and_debug_shows_it(clsvm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clsvm.estimators.svm.SVC.fit", raising(KeyError("spam")))
    result = clsvm("train", "breast_cancer.train")
    assert (result.code, result.out) == (1, "")
    assert "unexpected KeyError: 'spam'" in result.err
    monkeypatch.setattr(sys, "argv", ["clsvm", "--debug", "train", "breast_cancer.train"])
    with pytest.raises(KeyError):
        app.main()


def test_not_converged_warns_and_still_writes(clsvm: Command, tmp_path: Path) -> None:
    result = clsvm("train", "--max-iter", "1", "--working-set-size", "2", "-c", "1000", "breast_cancer.train", "m")
    assert result.code == 0
    assert result.err.startswith("clsvm: warning: not converged: ")
    assert len(result.err.splitlines()) == 1
    assert "optimization finished" in result.out
    assert libsvm.load_model(tmp_path / "m").n_support.sum() >= 2


# Ctrl-C

WAITS = """
import sys, clsvm.estimators.svm, clsvm.cli.app
fit = clsvm.estimators.svm.SVC.fit
def told(self, *args, **kwargs):
    print("fitting", file=sys.stderr, flush=True)
    return fit(self, *args, **kwargs)
clsvm.estimators.svm.SVC.fit = told
clsvm.cli.app.main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals to a process need a POSIX system")
def test_ctrl_c_in_the_middle_of_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6000, 40)), rng.choice([-1, 1], 6000)
    rows = (
        " ".join([str(label), *(f"{j}:{v:.6f}" for j, v in enumerate(row, 1))]) for row, label in zip(X, y, strict=True)
    )
    (tmp_path / "noise").write_text("\n".join(rows))
    (tmp_path / "m").write_text("old")
    process = shell("train", "-c", "1e6", "-e", "1e-9", "-t", "0", "noise", "m", cwd=tmp_path, code=WAITS)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "fitting\n"
        time.sleep(2)
        assert process.poll() is None, "it should still be training"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", INTERRUPTED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "noise"]
    assert (tmp_path / "m").read_text() == "old"


INTERRUPTED = "clsvm: error: interrupted; no partial file is left\n"


@pytest.mark.parametrize("place", ["os.fsync", "clsvm.models.svmlight.read_problem"])
def test_ctrl_c_elsewhere(clsvm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    """While the model is written, and before there is a checkpoint."""
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(place, raising(KeyboardInterrupt()))
    flags = [] if place == "os.fsync" else ["--checkpoint", "c"]
    assert clsvm("train", *flags, "breast_cancer.train") == (130, "", INTERRUPTED)
    assert sorted(tmp_path.iterdir()) == before


def test_ctrl_c_says_that_the_checkpoint_stays(clsvm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = raising(KeyboardInterrupt(), first=lambda: Path("kept").write_text("coefficients"))
    monkeypatch.setattr("clsvm.estimators.svm.SVC.fit", interrupted)
    result = clsvm("train", "--checkpoint", "kept", "breast_cancer.train")
    said = "the checkpoint kept stays: the same command goes on from it"
    assert result == (130, "", f"clsvm: error: interrupted; {said}\n")


def test_a_checkpoint_of_pairs(clsvm: Command) -> None:
    Path("three").write_text("".join(f"{i % 3} 1:{i % 3 + 0.1 * (i % 7)} 2:{i % 5}\n" for i in range(60)))
    assert clsvm("train", "-q", "--checkpoint", "c", "three", "first") == (0, "", "")
    again = clsvm("train", "--checkpoint", "c", "three", "again")
    assert (again.code, again.err) == (0, "")
    assert int(again.out.partition("#iter = ")[2].split()[0]) < 5
    other = clsvm("train", "-c", "2", "--checkpoint", "c", "three", "other")
    assert (other.code, other.out) == (1, "")
    assert "c was written by a fit with different C, nu or weights" in other.err


# The rest


COMMANDS = ["train", "predict", "scale", "grid", "describe", "sample", "devices", "tune", "warm-up", "kernels"]
COMMANDS += [f"kernels {name}" for name in ("list", "show", "emit")]


def test_help_without_docstrings(tmp_path: Path) -> None:
    """python -OO drops them; every command still says what it does, in its own help and in the list."""
    code = """
import sys, typer, clsvm.cli.app
command = typer.main.get_command(clsvm.cli.app.app)
for name in sys.argv[1:]:
    one = command
    for word in name.split():
        one = one.commands[word]
    print(name, "|", one.help)
    assert len(one.get_short_help_str()) > 20, name
"""
    out = subprocess.run(
        [sys.executable, "-OO", "-c", code, *COMMANDS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert [line.partition(" | ")[0] for line in out.splitlines() if " | " in line] == COMMANDS
    assert "train | Train a model on FILE" in out
    assert "None" not in out


def test_help_of_the_module_imports_nothing_heavy(tmp_path: Path) -> None:
    code = """
import sys, atexit, runpy
heavy = {"sklearn", "pyopencl", "scipy", "numpy"}
atexit.register(lambda: print(heavy & set(sys.modules), file=sys.stderr))
runpy.run_module("clsvm.__main__", run_name="__main__")
"""
    out, err = shell("--help", cwd=tmp_path, code=code).communicate(timeout=60)
    assert ("Usage: clsvm" in out, err) == (True, "set()\n")


def test_version(clsvm: Command) -> None:
    from clsvm import __version__

    assert clsvm("--version") == (0, f"clsvm {__version__}\n", "")


def test_describe_counts_entries_and_names_the_layout_of_a_fit(clsvm: Command, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1 1:2 3:1\n-1 1:1\n1 1:0.5 4:1\n")
    code, out, err = clsvm("describe", "rows")
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == ["rows     3", "columns  4", "entries  5, 41.7 % of all values"]
    clsvm("train", "rows", "model", "--report", "report.json")
    laid_out = json.loads((tmp_path / "report.json").read_text())["layout"]
    assert laid_out.startswith(out.splitlines()[3].removeprefix("layout   ").partition(":")[0])


def test_sample_is_scaled_split_and_repeatable(clsvm: Command, tmp_path: Path) -> None:
    assert clsvm("sample", "digits") == (0, "digits.train\ndigits.test\n", "")
    X, y = svmlight.read_problem("digits.train")
    assert X.shape == (1347, 64)
    assert (X.data.min(), X.data.max()) == (1 / 16, 1)
    assert np.mean(y == 1) == pytest.approx(174 / 1797, abs=1e-3)
    assert sorted(set(y)) == [-1, 1]
    assert np.mean(svmlight.read_problem("digits.test")[1] == 1) == pytest.approx(174 / 1797, abs=2e-3)
    first = (tmp_path / "digits.train").read_bytes()
    clsvm("sample", "digits")
    assert (tmp_path / "digits.train").read_bytes() == first
    datasets.sample("digits", seed=1, test_size=0.5)
    assert (tmp_path / "digits.train").read_bytes() != first
    assert svmlight.read_problem("digits.test")[0].shape[0] == 899
    dense = svmlight.read_problem("breast_cancer.train")[0].toarray()
    np.testing.assert_allclose([dense.mean(axis=0), dense.std(axis=0)], [[0] * 30, [1] * 30], atol=1e-12)
    with pytest.raises(ValueError, match="breast_cancer, digits"):
        datasets.sample("spam")
    with pytest.raises(ValueError, match="between 0 and 1"):
        datasets.sample("digits", test_size=0)
