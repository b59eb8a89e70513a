"""``clsvm devices``; ``--device a,b`` of the commands that take several devices, and of those that take one."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import dump_svmlight_file, load_iris

from clsvm import SVC, FalkonClassifier, load_model
from clsvm.cli import common
from clsvm.models import svmlight
from clsvm.opencl.devices import DeviceInfo, devices, find
from tests.conftest import Command

SPAM = DeviceInfo(3, "Spam [CL]", "Egg [gpu]", "1.2", 3 * 2**30, 2**29, False, False, "it does not build", "gpu")


@pytest.fixture
def clsvm(command: Command, tmp_path: Path) -> Command:
    """Run a command in an empty folder that holds rows of three classes."""
    X, y = load_iris(return_X_y=True)
    dump_svmlight_file(X, y, str(tmp_path / "iris"), zero_based=False)
    return command


def test_train(clsvm: Command, device: str) -> None:
    done = clsvm("train", "-g", "0.1", "--device", f"{device}, {device}", "iris", "model")
    assert done.code == 0, done.err
    X, y = svmlight.read_problem("iris")
    own = SVC(gamma=0.1, cache_size=100, device=[device] * 2).fit(X, y)
    assert f"device           {own.fit_report_.device}" in done.out
    np.testing.assert_array_equal(load_model("model").predict(X), own.predict(X))
    held_out = clsvm("train", "-g", "0.1", "-v", "3", "--device", f"{device},{device}", "iris")
    assert float(held_out.out.split("Accuracy = ")[1].split("%")[0]) > 90, held_out.err
    assert clsvm("predict", "iris", "model", "--device", device).out.startswith("Accuracy = 9")


def test_falkon(clsvm: Command, device: str) -> None:
    done = clsvm("falkon", "train", "iris", "model", "--centers", "30", "--seed", "0", "--device", f"{device},{device}")
    assert done.code == 0, done.err
    X, y = svmlight.read_problem("iris")
    own = FalkonClassifier(n_centers=30, random_state=0, device=f"{device},{device}").fit(X, y)
    np.testing.assert_array_equal(load_model("model").dual_coef, own.dual_coef_)


def test_help_says_who_takes_several(clsvm: Command) -> None:
    for words, several in (("train", True), ("falkon train", True), ("tune", False)):
        text = " ".join(clsvm(*words.split(), "--help").out.split())
        assert "see 'clsvm devices'." in text
        assert ("Several: gpu:0,gpu:1." in text) == several


def test_devices_and_the_default(clsvm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def marked() -> tuple[list[str], str]:
        result = clsvm("devices")
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines() if "│" in line]
        assert (result.code, result.err) == (0, "")
        for row, record in zip(rows, devices(), strict=True):
            assert (row[0], row[2], row[3]) == (str(record.index), record.name, record.driver)
        return [row[0] for row in rows if row[-1] == "yes"], result.out

    usable = [record for record in devices() if record.usable][-1]
    monkeypatch.setenv("CLSVM_DEVICE", str(usable.index))
    indices, said = marked()
    assert indices == [str(usable.index)]
    assert f"The default is what CLSVM_DEVICE says: {str(usable.index)!r}" in said
    monkeypatch.delenv("CLSVM_DEVICE")
    indices, said = marked()
    assert indices == [str(find(None).index)]
    assert "The default is a usable GPU, else a usable CPU; of several the one with most memory" in said
    monkeypatch.setenv("CLSVM_DEVICE", "nobody's")
    indices, said = marked()
    assert indices == []
    assert 'The default is what CLSVM_DEVICE says: "nobody\'s", which is none of these' in said


def test_devices_says_why_one_is_unusable(clsvm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clsvm.opencl.devices.devices", lambda: [SPAM])
    lines = clsvm("devices").out.splitlines()
    assert lines[-1].startswith("None of these is usable: pip install")
    cells = [cell.strip() for cell in lines[3].split("│")[1:-1]]
    assert cells == ["3", "Spam [CL]", "Egg [gpu]", "1.2", "3.0 GiB", "0.5 GiB", "no", "no: it does not build", ""]
    monkeypatch.setattr("clsvm.opencl.devices.devices", list)
    result = clsvm("devices")
    assert (result.code, result.out) == (1, "")
    assert "pip install '.[cpu]' in the folder" in result.err


@pytest.mark.parametrize("width", [40, 100])
def test_a_table_in_a_narrow_terminal(clsvm: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Lines "column: cell" in place of the table."""
    monkeypatch.setattr("clsvm.opencl.devices.devices", lambda: [SPAM])
    monkeypatch.setattr(common, "console", lambda: Console(width=width, markup=False, highlight=False))
    lines = clsvm("devices").out.splitlines()
    assert max(map(len, lines)) <= width
    assert {"index: 3", "device: Egg [gpu]", "largest buffer: 0.5 GiB", "usable: no: it does not build"} <= set(lines)
