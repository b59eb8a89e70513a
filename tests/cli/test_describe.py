"""``clsvm describe``: what it prints of each kind of file, its picture, and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm.tools.describe import describe
from tests.conftest import Command

TEXT = "1 1:2 3:1\n-1 1:1\n1 1:0.5 4:1\n"
ROWS = np.array([[2.0, 0, 1, 0], [1, 0, 0, 0], [0.5, 0, 0, 1]])


@pytest.fixture
def clsvm(command: Command, tmp_path: Path) -> Command:
    """Run a command in a folder that holds the same rows in every form."""
    (tmp_path / "text").write_text(TEXT)
    np.save(tmp_path / "rows.npy", ROWS)
    np.savez(tmp_path / "named.npz", X=ROWS, Z=np.ones((2, 2)), y=np.ones(3))
    np.savez(tmp_path / "only.npz", features=ROWS, y=np.ones(3))
    sp.save_npz(tmp_path / "sparse.npz", sp.csr_matrix(ROWS))
    return command


@pytest.mark.parametrize("file", ["text", "rows.npy", "named.npz", "only.npz", "sparse.npz"])
def test_it_prints_the_figures(file: str, clsvm: Command, device: str) -> None:
    code, out, err = clsvm("describe", file, "--device", device)
    assert (code, err) == (0, "")
    for words in (
        "rows             3",
        "columns          4, 3 of them with an entry",
        "entries a row    1.667 on average, 2 at most, 5 in all",
        "density          41.7 %",
    ):
        assert words in out.splitlines()
    for name in ("cost", "dense", "bits", "csr", "clustered", "hybrid", "inverted"):
        assert re.search(rf"│ {name} ", out)
    assert re.search(r"^auto takes       (\w+): a value of K takes, in dense multiply-adds, \1 ", out, re.MULTILINE)


def test_json_has_the_figures_of_the_library(clsvm: Command, device: str) -> None:
    code, out, err = clsvm("describe", "text", "--device", device, "--json")
    assert (code, err) == (0, "")
    measured = {"speed", "layouts"}
    expected = json.loads(json.dumps(describe(sp.csr_matrix(ROWS), device).to_dict()))
    assert {k: v for k, v in json.loads(out).items() if k not in measured} == {
        k: v for k, v in expected.items() if k not in measured
    }
    assert [one["layout"] for one in json.loads(out)["layouts"]] == [one["layout"] for one in expected["layouts"]]


def test_features_are_columns(clsvm: Command, device: str) -> None:
    assert "columns          9, 3 of them" in clsvm("describe", "text", "--features", "9", "--device", device).out
    assert clsvm("describe", "rows.npy", "--features", "4", "--device", device).code == 0
    for file, words in ("text", "expected at most 3"), ("rows.npy", "got 4 columns, expected 3"):
        code, out, err = clsvm("describe", file, "--features", "3", "--device", device)
        assert (code, out) == (1, "")
        assert re.search(rf"^clsvm: error: {re.escape(file)}.*{words}", err)


def test_a_picture(clsvm: Command, device: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert clsvm("describe", "text", "--plot", "tenths.png", "--device", device).code == 0
    assert (tmp_path / "tenths.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_the_deciles(device: str) -> None:
    pytest.importorskip("matplotlib")
    from clsvm import plots

    found = describe(ROWS, device)
    ax = plots.deciles(found, plots.figure().subplots())
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([1, 1 / 3, 1 / 3])
    assert len(plots.deciles(describe(np.zeros((2, 2)), device), plots.figure().subplots()).patches) == 0


BAD: dict[str, bytes] = {
    "label.txt": b"1 x:1\n",
    "empty.txt": b"",
    "nan.txt": b"1 1:nan\n",
    "text.npy": b"1 1:1\n",
    "text.npz": b"1 1:1\n",
    "cut.npz": b"PK\x03\x04",
}
ARRAYS: dict[str, Any] = {
    "flat": np.ones(3),
    "words": np.array([["a"]]),
    "objects": np.array([[1, None]]),
    "complex": np.array([[1j]]),
    "nan": np.array([[np.nan, 1]]),
    "no rows": np.ones((0, 2)),
    "no columns": np.ones((2, 0)),
}


def test_files_that_hold_no_rows(clsvm: Command, tmp_path: Path) -> None:
    """Damaged ones, arrays that are none, and archives that do not say which."""
    for name, content in BAD.items():
        (tmp_path / name).write_bytes(content)
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
        np.savez(tmp_path / f"{name}.npz", X=array)
    np.savez(tmp_path / "two.npz", A=ROWS, B=ROWS)
    np.savez(tmp_path / "none.npz", y=np.ones(3))
    beyond = sp.csr_matrix(ROWS)
    beyond.indices[0] = 77
    sp.save_npz(tmp_path / "beyond.npz", beyond)
    of_arrays = [f"{name}.{kind}" for name in ARRAYS for kind in ("npy", "npz")]
    for file in (*BAD, *of_arrays, "two.npz", "none.npz", "beyond.npz", "absent.npz", "absent"):
        code, out, err = clsvm("describe", file)
        assert (code, out) == (1, "")
        assert re.match(rf"clsvm: error: {re.escape(file)}[:,]", err), err
        assert file not in BAD or re.search("got .*, expected ", err)
        assert "unexpected" not in err
