"""``clsvm describe``: what it prints of each kind of file, its picture, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from clsvm.opencl import devices
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
    quickly = devices.default_profile(devices.find(device)).shape == "vector"  # (a GPU's clusters would never pay)
    assert f"clusters hold    {'about 4 columns a row' if quickly else 'not estimated'}" in out.splitlines()
    assert re.search(r"density │ +100 % │ 33.3 % │ 33.3 % │ +- │", out)
    for rule in ("paper", "code", "cost"):
        assert re.search(rf"│ {rule} +│ +\d+ │ +[\d.]+ % │", out)
    for layout in ("dense", "csr", "clustered")[: 3 if quickly else 2]:
        assert re.search(rf"│ {layout} +│ +[\d.e-]+ │ +[\d.e+]+ │ +[\d.e-]+ │ +(yes )?│", out)
    for layout in ("hybrid", "inverted"):  # (no column is worth storing whole; of so few rows there is no index)
        assert re.search(rf"│ {layout} +│ +[\d.e-]+ │ +- │ +- │ +│", out)
    assert re.search(r"^auto takes       (\w+): a value of K takes, in dense cells, \1 ", out, re.MULTILINE)


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
    assert clsvm("describe", "text", "--plot", "tenths.jpg").code == 2
    (tmp_path / "rows.png").write_text(TEXT)
    code, _, err = clsvm("describe", "rows.png", "--plot", "rows.png")
    assert (code, "would be overwritten" in err) == (1, True)
    assert (tmp_path / "rows.png").read_text() == TEXT


def test_the_picture_has_the_deciles(device: str) -> None:
    pytest.importorskip("matplotlib")
    from clsvm import plots

    found = describe(ROWS, device)
    ax = plots.deciles(found, plots.figure().subplots())
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([1, 1 / 3, 1 / 3])
    assert ax.get_yscale() == "log"
    assert len(plots.deciles(describe(np.zeros((2, 2)), device), plots.figure().subplots()).patches) == 0


def test_without_matplotlib(clsvm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is read."""

    def no_matplotlib(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("clsvm.plots.import_module", no_matplotlib)
    code, out, err = clsvm("describe", "absent", "--plot", "tenths.png")
    assert (code, out) == (1, "")
    assert re.search(r"pictures need matplotlib: pip install .*plot", err)
    assert not (tmp_path / "tenths.png").exists()


BAD = {
    "label.txt": b"1 x:1\n",
    "empty.txt": b"",
    "nan.txt": b"1 1:nan\n",
    "text.npy": b"1 1:1\n",
    "text.npz": b"1 1:1\n",
    "cut.npz": b"PK\x03\x04",
    "empty.npy": b"",
}


@pytest.mark.parametrize("file", BAD)
def test_damaged_files(file: str, clsvm: Command, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(BAD[file])
    code, out, err = clsvm("describe", file)
    assert (code, out) == (1, "")
    assert re.match(rf"clsvm: error: {re.escape(file)}[:,].* got .*, expected ", err)
    assert "unexpected" not in err


ARRAYS: dict[str, Any] = {
    "flat": np.ones(3),
    "deep": np.ones((2, 2, 2)),
    "words": np.array([["a"]]),
    "objects": np.array([[1, None]]),
    "complex": np.array([[1j]]),
    "nan": np.array([[np.nan, 1]]),
    "no rows": np.ones((0, 2)),
    "no columns": np.ones((2, 0)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_no_rows(name: str, clsvm: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ARRAYS[name], allow_pickle=True)
    np.savez(tmp_path / "rows.npz", X=ARRAYS[name])
    for file in ("rows.npy", "rows.npz"):
        code, out, err = clsvm("describe", file)
        assert (code, out) == (1, "")
        assert err.startswith(f"clsvm: error: {file}: ")
        assert "unexpected" not in err


def test_archives_that_do_not_say_which(clsvm: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", A=ROWS, B=ROWS)
    np.savez(tmp_path / "none.npz", y=np.ones(3))
    bad = sp.csr_matrix(ROWS)
    bad.indices[0] = 77
    sp.save_npz(tmp_path / "beyond.npz", bad)
    for file in ("two.npz", "none.npz", "beyond.npz", "absent.npz", "absent"):
        code, out, err = clsvm("describe", file)
        assert (code, out) == (1, "")
        assert err.startswith(f"clsvm: error: {file}: ")
        assert "unexpected" not in err
