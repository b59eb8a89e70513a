"""The example scripts beside themselves under clsvm.accel: which of them run, and what counts as a difference."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import gallery

FITS = "from sklearn.svm import SVC\nprint('score', SVC().fit([[0.0], [1.0]], [0, 1]).score([[0.0]], [0]))\n"


@pytest.mark.parametrize(
    ("left", "right", "numbers", "differ"),
    [
        ("score 0.500\nrows 3", "score 0.503\nrows 3", 2, 0),
        ("score 0.50", "score 0.52", 1, 1),
        ("large 1000", "large 1005", 1, 0),
        ("left 1", "right 1", 1, 1),
        ("one 1\ntwo 2", "one 1", 2, 1),
        ("done in 0.3s\nfit time: 12", "done in 8.3s\nfit time: 900", 0, 0),
        ("a  1.0\n", "a 1.0\n", 1, 0),  # (columns that moved)
    ],
)
def test_differences(left: str, right: str, numbers: int, differ: int) -> None:
    compared, found = gallery.differences(left, right)
    assert (compared, len(found)) == (numbers, differ)


def test_scripts_that_fit_a_machine_run_both_ways(tmp_path: Path, device: str) -> None:
    folder = tmp_path / "svm"
    folder.mkdir()
    (folder / "plot_fits.py").write_text(FITS)
    (folder / "plot_fails.py").write_text("from sklearn.svm import SVC\nSVC(C=-1).fit([[0.0], [1.0]], [0, 1])\n")
    (folder / "plot_fetches.py").write_text("from sklearn.datasets import fetch_olivetti_faces\nSVC()\n")
    (folder / "plot_trees.py").write_text("print(1)\n")
    (folder / "helper.py").write_text(FITS)
    assert [path.name for path in gallery.scripts(tmp_path)] == ["plot_fails.py", "plot_fits.py"]
    asked = argparse.Namespace(folder=tmp_path, scripts="fits", repeats=1, device=device)
    found = gallery.measure(asked)
    (row,) = found["rows"]
    assert (row["script"], row["numbers"], row["differing"]) == ("svm/plot_fits.py", 1, [])
    assert (row["failed"], row["skipped"]) == (False, "")
    assert found["total"]["ratio"] == row["accel"] / row["scikit-learn"]
    assert gallery.holds(found)
    (row,) = gallery.measure(argparse.Namespace(**vars(asked) | {"scripts": "fails"}))["rows"]
    assert not row["failed"]  # (without clsvm.accel it fails, too)
    assert "InvalidParameterError" in row["skipped"]
    with pytest.raises(SystemExit, match="expected scikit-learn's examples"):
        gallery.measure(argparse.Namespace(**vars(asked) | {"scripts": "nothing"}))
