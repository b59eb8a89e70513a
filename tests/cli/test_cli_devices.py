"""``--device a,b``: the commands that take several devices, and those that say that they take one; tables of devices
and others in narrow terminals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from sklearn.datasets import dump_svmlight_file, load_iris

from clsvm import SVC, FalkonClassifier, load_model
from clsvm.cli import common
from clsvm.models import svmlight
from clsvm.opencl.devices import DeviceInfo
from tests.conftest import Command


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
    held_out = clsvm("train", "-g", "0.1", "-v", "3", "-b", "1", "--device", f"{device},{device}", "iris")
    assert float(held_out.out.split("Accuracy = ")[1].split("%")[0]) > 90, held_out.err
    assert clsvm("predict", "iris", "model", "--device", device).out.startswith("Accuracy = 9")


def test_falkon(clsvm: Command, device: str) -> None:
    done = clsvm("falkon", "train", "iris", "model", "--centers", "30", "--seed", "0", "--device", f"{device},{device}")
    assert done.code == 0, done.err
    X, y = svmlight.read_problem("iris")
    own = FalkonClassifier(n_centers=30, random_state=0, device=f"{device},{device}").fit(X, y)
    np.testing.assert_array_equal(load_model("model").dual_coef, own.dual_coef_)
    listed = FalkonClassifier(n_centers=30, random_state=0, device=[device] * 2).fit(X, y)
    np.testing.assert_array_equal(listed.dual_coef_, own.dual_coef_)
    np.testing.assert_array_equal(listed.predict(X), own.predict(X))


@pytest.mark.parametrize("command_words", [("train",), ("falkon", "train")])
@pytest.mark.parametrize("names", ["{},", ",{}", ",", "{},,{}"])
def test_a_name_that_is_missing(clsvm: Command, device: str, command_words: tuple[str, ...], names: str) -> None:
    """It would be the default device."""
    got = names.format(device, device)
    done = clsvm(*command_words, "iris", "model", "--device", got)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"clsvm: error: device must have a name on each side of a comma, got '{got}'\n"
    assert not Path("model").exists()


def test_help_says_who_takes_several(clsvm: Command) -> None:
    for words, several in (("train", True), ("falkon train", True), ("describe", False), ("tune", False)):
        text = " ".join(clsvm(*words.split(), "--help").out.split())
        assert "see 'clsvm devices'." in text
        assert ("Several: gpu:0,gpu:1." in text) == several
    assert clsvm("describe", "iris", "--device", "0,0").err.startswith(
        "clsvm: error: expected one device, got several: '0,0'"
    )


def test_a_name_with_a_comma(clsvm: Command, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = int(device)
    monkeypatch.setattr("clsvm.opencl.devices._matches", lambda asked, here: [index] if asked == "a (b, c)" else [])
    done = clsvm("train", "-g", "0.1", "--device", "a (b, c)", "iris", "model")
    assert done.code == 0, done.err
    assert clsvm("predict", "iris", "model", "--device", "A (b,  c)").out.startswith("Accuracy = 9")
    monkeypatch.setenv("CLSVM_DEVICE", "a (b, c)")
    assert clsvm("describe", "iris").code == 0
    assert "no OpenCL device matches 'b'" in clsvm("describe", "iris", "--device", "b").err


def narrow(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Give stdout the width of a terminal."""
    for place in ("common", "devices", "describe"):
        made = lambda: Console(width=width, markup=False, highlight=False)  # noqa: E731
        monkeypatch.setattr(f"clsvm.cli.{place}.console", made)


@pytest.mark.parametrize("width", [40, 80])
def test_devices_in_a_narrow_terminal(clsvm: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    records = [
        DeviceInfo(0, "Portable Computing Language", "pthread-skylake-avx512-AMD EPYC", "3.1+debian", 2**33, 2**31,
                   True, True, "", "cpu"),
        DeviceInfo(1, "rusticl", "llvmpipe (LLVM 15.0.6, 256 bits)", "22.3.6", 2**34, 2**30,
                   False, False, "a small fit failed: error: unknown target CPU 'generic'", "cpu"),
    ]  # fmt: skip
    monkeypatch.setattr("clsvm.opencl.devices.devices", lambda: records)
    monkeypatch.delenv("CLSVM_DEVICE", raising=False)
    narrow(monkeypatch, width)
    lines = clsvm("devices").out.splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < 26
    for words in (
        "index: 0",
        "device: pthread-skylake-avx512-AMD EPYC",
        "largest buffer: 2.0 GiB",
        "usable: yes",
        "index: 1",
        "driver: 22.3.6",
        "fp64: no",
    ):
        assert words in lines
    joined = " ".join(" ".join(lines).split())
    assert "device: llvmpipe (LLVM 15.0.6, 256 bits) driver" in joined
    assert "usable: no: a small fit failed: error: unknown target CPU 'generic'" in joined
    assert "of several the one with most memory" in joined


@pytest.mark.parametrize("words", ["kernels list", "describe iris"])
@pytest.mark.parametrize("width", [40, 80])
def test_no_table_breaks_words(clsvm: Command, monkeypatch: pytest.MonkeyPatch, width: int, words: str) -> None:
    whole = clsvm(*words.split()).out
    narrow(monkeypatch, width)
    lines = clsvm(*words.split()).out.splitlines()
    assert max(map(len, lines)) <= width
    longest = {word for word in whole.split() if 3 < len(word) < 30 and word.isalpha()}
    assert longest <= {word.strip(",:;()") for line in lines for word in line.split()}


def test_a_table_that_fits_stays_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("name", "note", title="some things")
    table.add_row("first", "one\ntwo")
    table.add_row("second", "")
    narrow(monkeypatch, 20)
    common.show_table(table)
    assert "│ first  │ one  │" in capsys.readouterr().out
    narrow(monkeypatch, 16)
    common.show_table(table)
    assert capsys.readouterr().out == "some things\nname: first\nnote: one, two\n\nname: second\n\n"
