"""``--device a,b``: the commands that take several devices, and those that say that they take one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_iris

from clsvm import SVC, FalkonClassifier, load_model
from clsvm.models import svmlight
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
