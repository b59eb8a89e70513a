"""``clsvm train`` and ``predict`` beside LIBSVM's programs: random cases by seed."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.conftest import Command

CASES, QUICK = 40, 5
pytestmark = pytest.mark.skipif(
    not (shutil.which("svm-train") and shutil.which("svm-predict")),
    reason="LIBSVM's svm-train and svm-predict are not installed (Debian: libsvm-tools)",
)
SEEDS = [pytest.param(seed, marks=[pytest.mark.full] * (seed >= QUICK)) for seed in range(CASES)]
NUMBER = r"-?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
WITHIN = {  # of a key's number: of its size, and beside that
    "obj": (2e-4, 1e-3),
    "rho": (2e-3, 5e-3),
    "C": (5e-3, 1e-3),
    "epsilon": (2e-3, 2e-3),
    "nSV": (0.03, 2),
    "Total nSV": (0.03, 3),
}


class Case(NamedTuple):
    task: int
    flags: list[str]
    text: str
    labels: list[int]


def drawn(seed: int) -> Case:
    """Draw a task, a kernel, flags and rows, a row in one of the forms that LIBSVM reads."""
    rng = np.random.default_rng(seed)
    task = seed % 5
    n, d, k = int(rng.integers(40, 90)), int(rng.integers(3, 7)), int(rng.choice([2, 2, 3, 4]))
    labels = [-1, 1] if k == 2 and rng.random() < 0.5 else rng.choice(np.arange(-9, 10), k, replace=False).tolist()
    labels = rng.permutation(labels).tolist()
    index = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    X = rng.normal(size=(n, d)) + (1.2 + (task == 1)) * (index[:, None] == np.arange(d)) + 2 * (task == 2)
    X[rng.random((n, d)) < 0.2] = 0
    y = [labels[i] for i in index] if task < 3 else (X[:, 0] + 0.3 * rng.normal(size=n)).round(3).tolist()
    flags = [["-t", "0"], ["-t", "1", "-g", "0.5", "-r", "1", "-d", "2"], [], ["-t", "2", "-g", "0.3"]][rng.integers(4)]
    nu = f"{rng.uniform(0.1, 0.3) + 0.25 * (task == 1):.3f}"
    flags = ["-s", str(task), *flags, "-e", "1e-6", "-p", "0.05", "-n", nu]
    flags += ["-c", f"{rng.choice([0.1, 1, 4])}", "-h", str(rng.integers(2)), "-m", "20"]
    if task == 0 and rng.random() < 0.4:
        flags += [f"-w{labels[0]}", "2.5"]
    lines = []
    for row, label in zip(X, y, strict=True):
        gap, end = rng.choice(["", " ", "\t", "  "]), rng.choice(["\n", " \n", "\t\r\n", " \r\n"])
        value = [repr, lambda v: f"{v:.17e}", lambda v: f"{v:+}"][rng.integers(3)]
        cells = [f"{rng.choice(['', '0', '+'])}{j + 1}:{gap}{value(float(v))}" for j, v in enumerate(row) if v or not j]
        lines.append(rng.choice(["", " "]) + f"{label:+}" + rng.choice([" ", "\t", "  "]).join(["", *cells]) + end)
    return Case(task, flags, "".join(lines), sorted(set(map(int, y))) if task < 3 else [])


def said(text: str) -> list[dict[str, float]]:
    """The lines ``key = number, key = number`` of svm-train, but for what clsvm leaves out."""
    lines = [dict(re.findall(rf"([A-Z#a-z ]*[A-Z#a-z]) = ({NUMBER})", line)) for line in text.splitlines()]
    found = [{k: float(v) for k, v in line.items() if k.strip() not in ("nu", "nBSV")} for line in lines]
    return [{k.strip(): v for k, v in line.items()} for line in found if line]


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_labels_and_predictions(command: Command, tmp_path: Path, seed: int) -> None:
    case = drawn(seed)
    (tmp_path / "data").write_bytes(case.text.encode())
    ours, theirs = command("train", *case.flags, "data", "ours"), run("svm-train", *case.flags, "data", "theirs")
    assert (ours.code, ours.err) == (0, "")
    got, expected = said(ours.out), said(theirs)
    assert [list(line) for line in got] == [list(line) for line in expected]
    for mine, other in zip(got, expected, strict=True):
        for key in mine.keys() & WITHIN.keys():
            rel, beside = WITHIN[key]
            beside += 4 * (case.task == 2 and "nSV" in key)  # (K may be singular, and so coefficients not unique)
            assert mine[key] == pytest.approx(other[key], rel=rel, abs=beside), f"{key} of {mine} beside {other}"
    heads = [re.findall("^(?:svm_type|label|nr_class).*", (tmp_path / m).read_text(), re.MULTILINE) for m in HELD]
    assert heads[0] == heads[1]
    (tmp_path / "fresh").write_bytes(drawn(seed + 5).text.encode())  # (f is 0 at support vectors of one class)
    found = []
    for model in HELD:
        told = run("svm-predict", "fresh", model, "by_them")
        assert command("predict", "fresh", model, "by_us").out == told or case.task > 2
        found.append(np.loadtxt("by_us"))
        np.testing.assert_allclose(found[-1], np.loadtxt("by_them"), rtol=2e-5, atol=2e-5)
    assert case.task > 2 or (found[0] == found[1]).mean() > 0.9


HELD = "ours", "theirs"


def run(*words: Any) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("seed", [0, 40, *(pytest.param(s, marks=pytest.mark.full) for s in (6, 13, 19, 86, 100))])
def test_folds_and_probabilities(command: Command, tmp_path: Path, seed: int) -> None:
    """Folds are drawn otherwise than LIBSVM draws them: the lines are the same, and so is the order of the labels. The
    same model says the same, whoever wrote it. Of two labels the smaller one is the first in 40 and 86."""
    case = drawn(seed)
    (tmp_path / "data").write_bytes(case.text.encode())
    assert command("train", *case.flags, "-b", "1", "-q", "data", "ours").code == 0
    run("svm-train", *case.flags, "-b", "1", "-q", "data", "theirs")
    heads, shares = [], []
    for model in HELD:
        told = run("svm-predict", "-b", "1", "data", model, "by_them")
        ours = command("predict", "-b", "1", "data", model, "by_us")
        if case.task > 2:
            np.testing.assert_allclose(np.loadtxt("by_us"), np.loadtxt("by_them"), rtol=2e-5, atol=2e-5)
            assert ours.out.splitlines()[0] == told.splitlines()[0]  # (sigma, of the errors)
            continue
        (head, *mine), (other, *theirs) = (Path(name).read_text().splitlines() for name in ("by_us", "by_them"))
        assert (ours.out, head) == (told, other)
        heads.append(head)
        shares.append(np.loadtxt("by_us", skiprows=1)[:, 1:])
        for line, peer in zip(mine, theirs, strict=True):
            assert line.split()[0] == peer.split()[0]
            assert [*map(float, line.split()[1:])] == pytest.approx([*map(float, peer.split()[1:])], abs=1e-5)
    assert len(set(heads)) <= 1
    assert not shares or np.abs(shares[0] - shares[1]).mean() < 0.05
    out = [command("train", *case.flags, "-v", "3", "data").out, run("svm-train", *case.flags, "-v", "3", "data")]
    ends = [re.findall(r"^Cross Validation .* =", text, re.MULTILINE) for text in out]
    assert ends[0] == ends[1] != []
