"""``clsvm grid``: grid.py's lines, the folds of ``clsvm train -v``, and what it refuses."""

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_iris

from tests.conftest import Command

LINE = re.compile(r"\[local\] (\S+) (\S+) (\S+) \(best c=(\S+), g=(\S+), rate=(\S+)\)")


@pytest.fixture
def clsvm(command: Command, tmp_path: Path) -> Command:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X = X + np.random.default_rng(1).normal(size=X.shape)  # (so that rates differ)
    dump_svmlight_file(X[order], y[order], str(tmp_path / "iris"), zero_based=False)
    return command


def test_its_lines(clsvm: Command, device: str, tmp_path: Path) -> None:
    asked = ("-log2c", "-4,2,3", "-log2g", "1,-7,-4", "-v", "3", "iris", "--device", device)
    code, out, err = clsvm("grid", *asked)
    assert (code, err) == (0, "")
    *lines, last = out.splitlines()
    points = [tuple(map(float, LINE.fullmatch(line).groups())) for line in lines]  # type: ignore[union-attr]
    assert [point[:2] for point in points] == [(c, g) for c in (-4, -1, 2) for g in (1, -3, -7)]
    rates = [point[2] for point in points]
    assert [point[5] for point in points] == np.maximum.accumulate(rates).tolist()
    assert len(set(rates)) > 3
    c, g, rate = map(float, last.split())
    assert rate == max(rates)
    assert (np.log2(c), np.log2(g), rate) in [point[:3] for point in points]
    written = (tmp_path / "iris.out").read_text().splitlines()
    assert written == [f"log2c={point[0]} log2g={point[1]} rate={point[2]:g}" for point in points]
    _, out, _ = clsvm("train", "-c", str(c), "-g", str(g), "-v", "3", "iris", "--device", device)
    assert f"Accuracy = {rate:g}%" in out


def test_one_of_the_two_and_weights(clsvm: Command, device: str, tmp_path: Path) -> None:
    asked = ("-log2g", "null", "-log2c", "-9,-9,1", "-v", "2", "-out", "null", "-q", "-w1", "1e6", "-w7", "2")
    code, out, err = clsvm("grid", *asked, "iris", "--device", device)
    assert (code, err) == (0, "clsvm: warning: -w7 has no effect: no row has the label 7\n")
    c, rate = map(float, out.split())
    assert c == 2**-9
    assert 30 < rate < 80  # (most rows go to class 1)
    assert not (tmp_path / "iris.out").exists()


SMALL = ("-log2c", "0,2,2", "-log2g", "-1,-3,-2", "-v", "2")


def test_what_grid_py_passes_on(clsvm: Command, device: str) -> None:
    """Of another kernel the rate is that of ``clsvm train -v`` with the same flags."""
    flags = ("-t", "1", "-d", "2", "-r", "1", "-e", "0.01", "-h", "0", "-m", "50", "-p", "0.1", "-n", "0.3", "-s", "0")
    asked = ("-log2c", "1,1,1", "-log2g", "-1,-1,1", "-v", "3", "-out", "null")
    code, out, err = clsvm("grid", *asked, *flags, "-b", "0", "iris", "--device", device)
    assert (code, err) == (0, "")
    train = ("-c", "2", "-g", "0.5", "-v", "3")
    assert f"Accuracy = {out.split()[-1]}%" in clsvm("train", *train, *flags, "iris", "--device", device).out
    rbf = clsvm("grid", *asked, "iris", "--device", device).out
    assert rbf.split()[-1] != out.split()[-1]


def test_flags_without_effect(clsvm: Command, device: str) -> None:
    """Those that name other programs, or a file of earlier rates."""
    flags = ("-svmtrain", "/none/svm-train", "-gnuplot", "/none/gnuplot", "-resume")
    plain = clsvm("grid", *SMALL, "-out", "null", "iris", "--device", device)
    assert (plain.code, plain.err, len(plain.out.splitlines())) == (0, "", 5)
    assert clsvm("grid", *SMALL, "-out", "null", *flags, "iris", "--device", device) == plain


def test_the_picture(clsvm: Command, device: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert clsvm("grid", "-q", *SMALL, "-png", "rates.png", "iris", "--device", device).code == 0
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    result = clsvm("grid", "-q", *SMALL, "-log2g", "null", "-png", "no.png", "iris", "--device", device)
    assert "-png no.png: no picture is drawn, since it needs both ranges" in result.err
    assert not (tmp_path / "no.png").exists()
